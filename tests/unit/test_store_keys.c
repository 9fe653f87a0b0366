/* The key space: values, counters, compare-and-set, waiters. */
#include "rendezvous/store_keys.h"

#include <errno.h>

#include "test_store.h"
#include "unit.h"

static struct store_keys keys;

static void setup(void)
{
    store_keys_init(&keys);
}

static void teardown(void)
{
    store_keys_fini(&keys);
}

static void set(const char *key, const char *value)
{
    ck_assert_int_eq(
        store_keys_set(&keys, text_bytes(key), text_bytes(value)), 0);
}

static void assert_value(const char *key, const char *want)
{
    struct store_bytes value;

    ck_assert(store_keys_get(&keys, text_bytes(key), &value));
    assert_bytes(value, want);
}

static bool exists(const char *key)
{
    struct store_bytes value;

    return store_keys_get(&keys, text_bytes(key), &value);
}

/* A list of one-letter keys; valid until the next call. */
static struct store_bytes list_of(const char *letters)
{
    static struct buf b = {.max = 4096};

    buf_fini(&b);
    for (; *letters != '\0'; letters++)
        ck_assert_int_eq(store_put_bytes(&b, store_bytes(letters, 1)), 0);
    return b.len > 0 ? store_bytes(buf_bytes(&b), b.len) : store_bytes("", 0);
}

START_TEST(set_replaces_and_get_finds)
{
    ck_assert(!exists("k"));
    set("k", "a long value, then");
    set("k", "short");
    assert_value("k", "short");
    set("k", "");
    assert_value("k", "");
    ck_assert_uint_eq(keys.count, 1);
}
END_TEST

START_TEST(keys_are_any_bytes)
{
    struct store_bytes value;

    ck_assert_int_eq(
        store_keys_set(&keys, store_bytes("a\0b", 3), store_bytes("\0\xff", 2)),
        0);
    set("", "empty");
    ck_assert(!exists("a"));
    ck_assert(store_keys_get(&keys, store_bytes("a\0b", 3), &value));
    ck_assert_uint_eq(value.len, 2);
    ck_assert_mem_eq(value.data, "\0\xff", 2);
    assert_value("", "empty");
    ck_assert_uint_eq(keys.count, 2);
}
END_TEST

START_TEST(ten_thousand_keys_are_all_found_and_deleted)
{
    char name[16];

    for (int i = 0; i < 10000; i++) {
        snprintf(name, sizeof(name), "%d", i);
        set(name, name);
    }
    ck_assert_uint_eq(keys.count, 10000);
    for (int i = 0; i < 10000; i++) {
        snprintf(name, sizeof(name), "%d", i);
        assert_value(name, name);
        ck_assert(store_keys_delete(&keys, text_bytes(name)));
        ck_assert(!store_keys_delete(&keys, text_bytes(name)));
    }
    ck_assert_uint_eq(keys.count, 0);
}
END_TEST

START_TEST(append_creates_and_extends)
{
    char want[1001] = "";

    for (int i = 0; i < 1000; i++) {
        ck_assert_int_eq(
            store_keys_append(&keys, text_bytes("k"), text_bytes("x")), 0);
        want[i] = 'x';
    }
    assert_value("k", want);
    set("k", "y");
    ck_assert_int_eq(
        store_keys_append(&keys, text_bytes("k"), text_bytes("z")), 0);
    assert_value("k", "yz");
}
END_TEST

START_TEST(append_beyond_the_limit_changes_nothing)
{
    char *big = calloc(1, STORE_VALUE_MAX);

    set("k", "x");
    ck_assert_int_eq(store_keys_append(&keys, text_bytes("k"),
                         store_bytes(big, STORE_VALUE_MAX)),
        -EMSGSIZE);
    assert_value("k", "x");
    free(big);
}
END_TEST

/* What add makes of a value that is there. NULL: the key is missing. */
static const struct {
    const char *old;
    int64_t delta;
    int rc;
    int64_t sum;
    const char *text;
} adds[] = {
    {NULL, 0, 0, 0, "0"},
    {NULL, -2, 0, -2, "-2"},
    {"41", 1, 0, 42, "42"},
    {" 41xyz", 1, 0, 42, "42"},
    {"\t\n +7", 1, 0, 8, "8"},
    {"-5", 5, 0, 0, "0"},
    {"9223372036854775807", 1, 0, INT64_MIN, "-9223372036854775808"},
    {"-9223372036854775808", -1, 0, INT64_MAX, "9223372036854775807"},
    {"", 1, -EINVAL, 0, ""},
    {"xyz", 1, -EINVAL, 0, "xyz"},
    {" ", 1, -EINVAL, 0, " "},
    {"9223372036854775808", 1, -ERANGE, 0, "9223372036854775808"},
};

START_TEST(add_counts_in_decimal)
{
    int64_t sum = 0;

    if (adds[_i].old != NULL)
        set("n", adds[_i].old);
    ck_assert_int_eq(
        store_keys_add(&keys, text_bytes("n"), adds[_i].delta, &sum),
        adds[_i].rc);
    ck_assert_int_eq(sum, adds[_i].sum);
    assert_value("n", adds[_i].text);
}
END_TEST

static const struct {
    const char *old, *expected, *reply, *after;
} compare_sets[] = {
    {NULL, "", "new", "new"},
    {NULL, "other", "other", NULL},
    {"old", "old", "new", "new"},
    {"old", "other", "old", "old"},
    {"old", "", "old", "old"},
    {"", "", "new", "new"},
};

START_TEST(compare_set_follows_the_table)
{
    struct store_bytes now;

    if (compare_sets[_i].old != NULL)
        set("k", compare_sets[_i].old);
    ck_assert_int_eq(
        store_keys_compare_set(&keys, text_bytes("k"),
            text_bytes(compare_sets[_i].expected), text_bytes("new"), &now),
        0);
    assert_bytes(now, compare_sets[_i].reply);
    if (compare_sets[_i].after != NULL)
        assert_value("k", compare_sets[_i].after);
    else
        ck_assert(!exists("k"));
}
END_TEST

START_TEST(check_wants_all_keys)
{
    set("a", "");
    ck_assert(store_keys_check(&keys, list_of("")));
    ck_assert(store_keys_check(&keys, list_of("aa")));
    ck_assert(!store_keys_check(&keys, list_of("ab")));
    set("b", "");
    ck_assert(store_keys_check(&keys, list_of("ab")));
}
END_TEST

START_TEST(wait_for_present_keys_is_over_at_once)
{
    struct store_waiter w = {0};

    set("a", "");
    ck_assert_int_eq(store_keys_wait(&keys, &w, list_of("a")), 1);
    ck_assert_int_eq(store_keys_wait(&keys, &w, list_of("")), 1);
    ck_assert_int_eq(w.state, STORE_WAITER_IDLE);
}
END_TEST

START_TEST(waiter_is_released_by_the_last_missing_key)
{
    struct store_waiter w = {0};

    set("b", "");
    ck_assert_int_eq(store_keys_wait(&keys, &w, list_of("abc")), 0);
    set("b", "again");
    set("a", "");
    ck_assert_ptr_null(store_keys_next_released(&keys));
    set("c", "");
    ck_assert_ptr_eq(store_keys_next_released(&keys), &w);
    ck_assert_int_eq(w.state, STORE_WAITER_IDLE);
    ck_assert_ptr_null(store_keys_next_released(&keys));
}
END_TEST

START_TEST(key_that_came_and_went_counts_as_come)
{
    struct store_waiter w = {0};

    ck_assert_int_eq(store_keys_wait(&keys, &w, list_of("ab")), 0);
    set("a", "");
    ck_assert(store_keys_delete(&keys, text_bytes("a")));
    set("b", "");
    ck_assert_ptr_eq(store_keys_next_released(&keys), &w);
}
END_TEST

START_TEST(key_listed_twice_is_waited_for_once)
{
    struct store_waiter w = {0};

    ck_assert_int_eq(store_keys_wait(&keys, &w, list_of("aa")), 0);
    set("a", "");
    ck_assert_ptr_eq(store_keys_next_released(&keys), &w);
}
END_TEST

START_TEST(every_operation_that_creates_a_key_releases)
{
    struct store_waiter w = {0};
    struct store_bytes now;
    int64_t sum;

    ck_assert_int_eq(store_keys_wait(&keys, &w, list_of("a")), 0);
    ck_assert_int_eq(store_keys_add(&keys, text_bytes("a"), 0, &sum), 0);
    ck_assert_ptr_eq(store_keys_next_released(&keys), &w);

    ck_assert_int_eq(store_keys_wait(&keys, &w, list_of("b")), 0);
    ck_assert_int_eq(
        store_keys_append(&keys, text_bytes("b"), text_bytes("")), 0);
    ck_assert_ptr_eq(store_keys_next_released(&keys), &w);

    ck_assert_int_eq(store_keys_wait(&keys, &w, list_of("c")), 0);
    ck_assert_int_eq(store_keys_compare_set(&keys, text_bytes("c"),
                         text_bytes("x"), text_bytes("y"), &now),
        0);
    ck_assert_ptr_null(store_keys_next_released(&keys)); /* not created */
    ck_assert_int_eq(store_keys_compare_set(&keys, text_bytes("c"),
                         text_bytes(""), text_bytes("y"), &now),
        0);
    ck_assert_ptr_eq(store_keys_next_released(&keys), &w);
}
END_TEST

START_TEST(waited_for_key_does_not_exist_yet)
{
    struct store_waiter w = {0};

    ck_assert_int_eq(store_keys_wait(&keys, &w, list_of("a")), 0);
    ck_assert(!exists("a"));
    ck_assert(!store_keys_check(&keys, list_of("a")));
    ck_assert(!store_keys_delete(&keys, text_bytes("a")));
    ck_assert_uint_eq(keys.count, 0);
    store_keys_cancel(&keys, &w);
    ck_assert_ptr_null(keys.table);
}
END_TEST

START_TEST(canceled_waiter_is_forgotten_others_are_not)
{
    struct store_waiter a = {0}, b = {0}, c = {0};

    ck_assert_int_eq(store_keys_wait(&keys, &a, list_of("xy")), 0);
    ck_assert_int_eq(store_keys_wait(&keys, &b, list_of("x")), 0);
    ck_assert_int_eq(store_keys_wait(&keys, &c, list_of("x")), 0);
    store_keys_cancel(&keys, &a);
    set("x", "");
    store_keys_cancel(&keys, &b); /* released, but not told yet */
    ck_assert_ptr_eq(store_keys_next_released(&keys), &c);
    ck_assert_ptr_null(store_keys_next_released(&keys));
    store_keys_cancel(&keys, &c); /* idle: nothing happens */
    ck_assert_uint_eq(keys.count, 1);
}
END_TEST

START_TEST(waiters_are_released_in_the_order_they_came)
{
    struct store_waiter w[3] = {{0}};

    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(store_keys_wait(&keys, &w[i], list_of("x")), 0);
    set("x", "");
    for (int i = 0; i < 3; i++)
        ck_assert_ptr_eq(store_keys_next_released(&keys), &w[i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_keys");
    TCase *tc = tcase_create("values");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, set_replaces_and_get_finds);
    tcase_add_test(tc, keys_are_any_bytes);
    tcase_add_test(tc, ten_thousand_keys_are_all_found_and_deleted);
    tcase_add_test(tc, append_creates_and_extends);
    tcase_add_test(tc, append_beyond_the_limit_changes_nothing);
    tcase_add_loop_test(tc, add_counts_in_decimal, 0, (int)LENGTH_OF(adds));
    tcase_add_loop_test(
        tc, compare_set_follows_the_table, 0, (int)LENGTH_OF(compare_sets));
    suite_add_tcase(suite, tc);

    tc = tcase_create("waiters");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, check_wants_all_keys);
    tcase_add_test(tc, wait_for_present_keys_is_over_at_once);
    tcase_add_test(tc, waiter_is_released_by_the_last_missing_key);
    tcase_add_test(tc, key_that_came_and_went_counts_as_come);
    tcase_add_test(tc, key_listed_twice_is_waited_for_once);
    tcase_add_test(tc, every_operation_that_creates_a_key_releases);
    tcase_add_test(tc, waited_for_key_does_not_exist_yet);
    tcase_add_test(tc, canceled_waiter_is_forgotten_others_are_not);
    tcase_add_test(tc, waiters_are_released_in_the_order_they_came);
    suite_add_tcase(suite, tc);
    return unit_run_suite(suite);
}
