/* The key space: values, counters, compare-and-set, queues, barriers; who
 * waits and who watches; its memory. */
#include "rendezvous/store_keys.h"

#include <errno.h>

#include "test_store.h"
#include "unit.h"

static struct store_keys keys;

static const struct store_limits limits = {
    .value_len = (size_t)1 << 20, .memory = (size_t)16 << 20};

static void setup(void)
{
    store_keys_init(&keys, &limits);
}

/* Whatever a test did: nobody's memory is still counted then. */
static void teardown(void)
{
    store_keys_fini(&keys);
    ck_assert_uint_eq(keys.budget.used, 0);
}

static void set(const char *key, const char *value)
{
    ck_assert_int_eq(
        store_keys_set(&keys, text_bytes(key), text_bytes(value)), 0);
}

static bool exists(const char *key)
{
    return store_keys_get(&keys, text_bytes(key)) != NULL;
}

static void assert_value(const char *key, const char *want)
{
    struct store_blob *value = store_keys_get(&keys, text_bytes(key));

    ck_assert_ptr_nonnull(value);
    assert_bytes(store_blob_bytes(value), want);
    ck_assert_int_eq(value->data[value->len], '\0');
}

/* The next who is due has so many waits done; 0: nobody is due. */
static void assert_done(struct store_party *party, size_t done)
{
    struct store_party *next = store_keys_next_due(&keys);

    ck_assert_ptr_eq(next, done > 0 ? party : NULL);
    if (done > 0) {
        ck_assert_uint_eq(party->done, done);
        party->done = 0;
    }
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
    struct store_blob *value;

    ck_assert_int_eq(
        store_keys_set(&keys, store_bytes("a\0b", 3), store_bytes("\0\xff", 2)),
        0);
    set("", "empty");
    ck_assert(!exists("a"));
    value = store_keys_get(&keys, store_bytes("a\0b", 3));
    ck_assert_ptr_nonnull(value);
    ck_assert_uint_eq(value->len, 2);
    ck_assert_mem_eq(value->data, "\0\xff", 2);
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
    char *big = calloc(1, limits.value_len);

    set("k", "x");
    ck_assert_int_eq(store_keys_append(&keys, text_bytes("k"),
                         store_bytes(big, limits.value_len)),
        -EMSGSIZE);
    assert_value("k", "x");
    ck_assert_int_eq(store_keys_append(&keys, text_bytes("k"),
                         store_bytes(big, limits.value_len - 1)),
        0);
    ck_assert_int_eq(
        store_keys_append(&keys, text_bytes("k"), text_bytes("y")), -EMSGSIZE);
    ck_assert_uint_eq(
        store_keys_get(&keys, text_bytes("k"))->len, limits.value_len);
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

/* A value that somebody still has to send stays what it was. */
START_TEST(referenced_value_does_not_change)
{
    struct store_blob *old;

    set("k", "old");
    old = store_blob_ref(store_keys_get(&keys, text_bytes("k")));
    set("k", "new");
    ck_assert_int_eq(
        store_keys_append(&keys, text_bytes("k"), text_bytes("er")), 0);
    assert_bytes(store_blob_bytes(old), "old");
    assert_value("k", "newer");
    ck_assert(store_keys_delete(&keys, text_bytes("k")));
    assert_bytes(store_blob_bytes(old), "old");
    store_blob_unref(old);
}
END_TEST

START_TEST(unreferenced_value_is_overwritten_in_place)
{
    const struct store_blob *value;

    set("k", "old");
    value = store_keys_get(&keys, text_bytes("k"));
    set("k", "new");
    ck_assert_ptr_eq(store_keys_get(&keys, text_bytes("k")), value);
    assert_value("k", "new");
}
END_TEST

START_TEST(large_value_gives_its_memory_back_when_a_small_one_comes)
{
    const size_t size = 100000;
    char *big = calloc(1, size);
    size_t used;

    set("k", "x");
    used = keys.budget.used;
    ck_assert_int_eq(
        store_keys_set(&keys, text_bytes("k"), store_bytes(big, size)), 0);
    ck_assert_uint_ge(keys.budget.used, used + size - 1);
    set("k", "x");
    ck_assert_uint_eq(keys.budget.used, used);
    free(big);
}
END_TEST

/* The block, and who is woken, are as of a set. */
START_TEST(value_keeps_the_memory_it_came_in)
{
    struct store_party p = {0};
    char *memory = malloc(4096);

    ck_assert_int_eq(store_keys_wait(&keys, &p, list_of("k")), 0);
    memcpy(memory, "....k.value", 11);
    ck_assert_int_eq(store_keys_set_in(&keys, store_bytes(memory + 4, 1),
                         store_bytes(memory + 6, 5), memory, 4096),
        0);
    assert_value("k", "value");
    assert_done(&p, 1);
    ck_assert_uint_lt(keys.budget.used, 1024); /* not all of the block */
    set("k", "short");
    ck_assert_int_eq(
        store_keys_append(&keys, text_bytes("k"), text_bytes(" or long")), 0);
    assert_value("k", "short or long");
}
END_TEST

static void put_key(struct store_bytes key, void *arg)
{
    ck_assert_int_eq(buf_append(arg, key.data, key.len), 0);
}

START_TEST(each_names_the_keys_with_a_value)
{
    struct buf names = from_hex("");

    set("a", "");
    set("b", "");
    ck_assert_int_eq(
        store_keys_push(&keys, text_bytes("q"), text_bytes("x")), 0);
    ck_assert(store_keys_delete(&keys, text_bytes("a")));
    store_keys_each(&keys, put_key, &names);
    assert_is_hex(buf_bytes(&names), names.len, "62");
    buf_fini(&names);
}
END_TEST

/* --- Waiting -------------------------------------------------------------- */

START_TEST(wait_for_present_keys_is_over_at_once)
{
    struct store_party p = {0};

    set("a", "");
    ck_assert_int_eq(store_keys_wait(&keys, &p, list_of("a")), 1);
    ck_assert_int_eq(store_keys_wait(&keys, &p, list_of("")), 1);
    ck_assert_ptr_null(p.waits);
    assert_done(&p, 0);
}
END_TEST

START_TEST(wait_ends_with_the_last_missing_key)
{
    struct store_party p = {0};

    set("b", "");
    ck_assert_int_eq(store_keys_wait(&keys, &p, list_of("abc")), 0);
    set("b", "again");
    set("a", "");
    assert_done(&p, 0);
    set("c", "");
    assert_done(&p, 1);
    assert_done(&p, 0);
}
END_TEST

START_TEST(key_that_came_and_went_counts_as_come)
{
    struct store_party p = {0};

    ck_assert_int_eq(store_keys_wait(&keys, &p, list_of("ab")), 0);
    set("a", "");
    ck_assert(store_keys_delete(&keys, text_bytes("a")));
    set("b", "");
    assert_done(&p, 1);
}
END_TEST

START_TEST(key_listed_twice_is_waited_for_once)
{
    struct store_party p = {0};

    ck_assert_int_eq(store_keys_wait(&keys, &p, list_of("aa")), 0);
    set("a", "");
    assert_done(&p, 1);
    ck_assert_int_eq(store_keys_wait(&keys, &p, list_of("bbb")), 0);
    ck_assert_int_eq(
        store_keys_push(&keys, text_bytes("b"), text_bytes("")), 0);
    assert_done(&p, 1);
    ck_assert_int_eq(store_keys_wait(&keys, &p, list_of("ccc")), 0);
    store_keys_leave(&keys, &p);
}
END_TEST

START_TEST(every_operation_that_creates_a_key_ends_a_wait)
{
    struct store_party p = {0};
    struct store_bytes now;
    int64_t sum;

    ck_assert_int_eq(store_keys_wait(&keys, &p, list_of("a")), 0);
    ck_assert_int_eq(store_keys_add(&keys, text_bytes("a"), 0, &sum), 0);
    assert_done(&p, 1);

    ck_assert_int_eq(store_keys_wait(&keys, &p, list_of("b")), 0);
    ck_assert_int_eq(
        store_keys_append(&keys, text_bytes("b"), text_bytes("")), 0);
    assert_done(&p, 1);

    ck_assert_int_eq(store_keys_wait(&keys, &p, list_of("c")), 0);
    ck_assert_int_eq(store_keys_compare_set(&keys, text_bytes("c"),
                         text_bytes("x"), text_bytes("y"), &now),
        0);
    assert_done(&p, 0); /* not created */
    ck_assert_int_eq(store_keys_compare_set(&keys, text_bytes("c"),
                         text_bytes(""), text_bytes("y"), &now),
        0);
    assert_done(&p, 1);

    ck_assert_int_eq(store_keys_wait(&keys, &p, list_of("d")), 0);
    ck_assert_int_eq(
        store_keys_push(&keys, text_bytes("d"), text_bytes("")), 0);
    assert_done(&p, 1);
}
END_TEST

START_TEST(waited_for_key_does_not_exist_yet)
{
    struct store_party p = {0};

    ck_assert_int_eq(store_keys_wait(&keys, &p, list_of("a")), 0);
    ck_assert(!exists("a"));
    ck_assert(!store_keys_check(&keys, list_of("a")));
    ck_assert(!store_keys_delete(&keys, text_bytes("a")));
    ck_assert_uint_eq(keys.count, 0);
    store_keys_leave(&keys, &p);
    ck_assert_ptr_null(keys.table);
}
END_TEST

START_TEST(several_waits_of_one_party_end_each_on_its_own)
{
    struct store_party p = {0};

    ck_assert_int_eq(store_keys_wait(&keys, &p, list_of("ab")), 0);
    ck_assert_int_eq(store_keys_wait(&keys, &p, list_of("b")), 0);
    ck_assert_int_eq(store_keys_wait(&keys, &p, list_of("bc")), 0);
    set("b", "");
    assert_done(&p, 1);
    set("c", "");
    set("a", "");
    assert_done(&p, 2);
}
END_TEST

START_TEST(canceled_wait_is_forgotten_others_are_not)
{
    struct store_party a = {0}, b = {0}, c = {0};

    ck_assert_int_eq(store_keys_wait(&keys, &a, list_of("xy")), 0);
    ck_assert_int_eq(store_keys_wait(&keys, &b, list_of("x")), 0);
    ck_assert_int_eq(store_keys_wait(&keys, &c, list_of("x")), 0);
    store_keys_cancel(&keys, &a);
    set("x", "");
    store_keys_cancel(&keys, &b); /* done, but not told yet */
    assert_done(&c, 1);
    ck_assert_uint_eq(b.done, 0);
    assert_done(NULL, 0);
    store_keys_cancel(&keys, &c); /* idle: nothing happens */
    ck_assert_uint_eq(keys.count, 1);
}
END_TEST

START_TEST(waiters_are_due_in_the_order_they_came)
{
    struct store_party p[3] = {{0}};

    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(store_keys_wait(&keys, &p[i], list_of("x")), 0);
    set("x", "");
    for (int i = 0; i < 3; i++)
        assert_done(&p[i], 1);
}
END_TEST

/* --- Queues --------------------------------------------------------------- */

static void push(const char *key, const char *value)
{
    ck_assert_int_eq(
        store_keys_push(&keys, text_bytes(key), text_bytes(value)), 0);
}

static void assert_pop(const char *key, const char *want)
{
    struct store_blob *blob = store_keys_pop(&keys, text_bytes(key));

    ck_assert_ptr_nonnull(blob);
    assert_bytes(store_blob_bytes(blob), want);
    store_blob_unref(blob);
}

START_TEST(queue_gives_back_in_order)
{
    push("q", "1");
    push("q", "");
    push("q", "3");
    ck_assert_uint_eq(store_keys_queue_len(&keys, text_bytes("q")), 3);
    assert_pop("q", "1");
    assert_pop("q", "");
    push("q", "4");
    assert_pop("q", "3");
    assert_pop("q", "4");
    ck_assert_ptr_null(store_keys_pop(&keys, text_bytes("q")));
    ck_assert_uint_eq(store_keys_queue_len(&keys, text_bytes("q")), 0);
    ck_assert_ptr_null(keys.table);
}
END_TEST

START_TEST(queue_and_value_of_one_name_do_not_know_each_other)
{
    push("q", "1");
    ck_assert(!exists("q"));
    ck_assert(!store_keys_delete(&keys, text_bytes("q")));
    ck_assert_uint_eq(keys.count, 0);
    ck_assert(store_keys_check(&keys, list_of("q")));
    set("q", "value");
    assert_pop("q", "1");
    assert_value("q", "value");
    push("q", "2");
    ck_assert(store_keys_delete(&keys, text_bytes("q")));
    ck_assert(store_keys_check(&keys, list_of("q")));
    ck_assert_uint_eq(store_keys_queue_len(&keys, text_bytes("q")), 1);
}
END_TEST

START_TEST(key_watched_twice_is_noted_once)
{
    struct store_change *change;
    struct store_party p = {0};

    ck_assert_int_eq(store_keys_watch(&keys, &p, text_bytes("k")), 0);
    ck_assert_int_eq(store_keys_watch(&keys, &p, text_bytes("k")), 0);
    set("k", "1");
    ck_assert_ptr_eq(store_keys_next_due(&keys), &p);
    change = store_party_next_change(&p);
    ck_assert_ptr_nonnull(change);
    store_change_free(change);
    ck_assert_ptr_null(store_party_next_change(&p));
    store_keys_leave(&keys, &p);
}
END_TEST

/* Nobody waits while a value of any length is searched for a number. */
START_TEST(number_is_looked_for_at_the_beginning_only)
{
    char text[2 * STORE_NUMBER_MAX];
    int64_t sum = 0;

    memset(text, ' ', sizeof(text));
    text[sizeof(text) - 1] = '7';
    ck_assert_int_eq(
        store_keys_set(&keys, text_bytes("n"), store_bytes(text, sizeof(text))),
        0);
    ck_assert_int_eq(store_keys_add(&keys, text_bytes("n"), 1, &sum), -EINVAL);
    text[STORE_NUMBER_MAX - 2] = '7';
    ck_assert_int_eq(
        store_keys_set(&keys, text_bytes("n"), store_bytes(text, sizeof(text))),
        0);
    ck_assert_int_eq(store_keys_add(&keys, text_bytes("n"), 1, &sum), 0);
    ck_assert_int_eq(sum, 8);
}
END_TEST

START_TEST(push_wakes_the_oldest_waiter_only)
{
    struct store_party a = {0}, b = {0}, c = {0};

    ck_assert_int_eq(store_keys_wait(&keys, &a, list_of("qx")), 0);
    ck_assert_int_eq(store_keys_wait(&keys, &b, list_of("q")), 0);
    ck_assert_int_eq(store_keys_wait(&keys, &c, list_of("q")), 0);
    push("q", "1"); /* it is there for a, too, which waits for x still */
    assert_done(&b, 1);
    assert_done(NULL, 0);
    push("q", "2");
    assert_done(&c, 1);
    set("x", "");
    assert_done(&a, 1);
    assert_done(NULL, 0);
}
END_TEST

/* --- Barriers ------------------------------------------------------------- */

static int barrier(struct store_party *p, int64_t count)
{
    return store_keys_barrier(&keys, p, text_bytes("k"), count);
}

START_TEST(barrier_holds_until_the_last_comes)
{
    struct store_party p[3] = {{0}};

    ck_assert_int_eq(barrier(&p[0], 3), 0);
    assert_value("k", "1");
    ck_assert_int_eq(barrier(&p[1], 3), 0);
    assert_done(NULL, 0);
    ck_assert_int_eq(barrier(&p[2], 3), 1);
    assert_done(&p[0], 1);
    assert_done(&p[1], 1);
    assert_done(NULL, 0);
    ck_assert_int_eq(barrier(&p[2], 3), 1); /* a finished one is open */
    assert_value("k", "4");
}
END_TEST

START_TEST(barrier_of_nobody_is_no_barrier)
{
    struct store_party p = {0};

    ck_assert_int_eq(barrier(&p, 0), 1);
    ck_assert_int_eq(barrier(&p, -5), 1);
    ck_assert_int_eq(barrier(&p, INT64_MAX), 0);
    store_keys_leave(&keys, &p);
}
END_TEST

START_TEST(incomplete_barrier_does_not_end_a_wait_for_its_key)
{
    struct store_party waiter = {0}, a = {0}, b = {0}, late = {0};

    ck_assert_int_eq(store_keys_wait(&keys, &waiter, list_of("k")), 0);
    ck_assert_int_eq(barrier(&a, 2), 0);
    assert_done(NULL, 0);
    ck_assert_int_eq(store_keys_wait(&keys, &late, list_of("k")), 1);
    ck_assert(store_keys_delete(&keys, text_bytes("k")));
    set("k", "1");
    assert_done(&waiter, 1);
    assert_done(&a, 1);
    ck_assert_int_eq(barrier(&b, 2), 1);
}
END_TEST

START_TEST(write_to_the_key_releases_the_held)
{
    struct store_party p = {0};
    struct store_bytes now;
    int64_t sum;

    ck_assert_int_eq(barrier(&p, 9), 0);
    set("k", "1");
    assert_done(&p, 1);
    ck_assert_int_eq(barrier(&p, 9), 0);
    ck_assert_int_eq(store_keys_add(&keys, text_bytes("k"), 0, &sum), 0);
    assert_done(&p, 1);
    ck_assert_int_eq(barrier(&p, 9), 0);
    ck_assert_int_eq(
        store_keys_append(&keys, text_bytes("k"), text_bytes("")), 0);
    assert_done(&p, 1);
    ck_assert_int_eq(barrier(&p, 9), 0);
    ck_assert_int_eq(store_keys_compare_set(&keys, text_bytes("k"),
                         text_bytes("no"), text_bytes("5"), &now),
        0);
    assert_done(&p, 0); /* a failed one writes nothing */
    ck_assert_int_eq(store_keys_compare_set(&keys, text_bytes("k"),
                         text_bytes("4"), text_bytes("5"), &now),
        0);
    assert_done(&p, 1);
}
END_TEST

START_TEST(canceled_barrier_has_counted)
{
    struct store_party a = {0}, b = {0};

    ck_assert_int_eq(barrier(&a, 2), 0);
    store_keys_cancel(&keys, &a);
    ck_assert_int_eq(barrier(&b, 2), 1);
    assert_done(NULL, 0);
}
END_TEST

START_TEST(barrier_at_a_text_fails_and_holds_nobody)
{
    struct store_party p = {0};

    set("k", "text");
    ck_assert_int_eq(barrier(&p, 2), -EINVAL);
    ck_assert_ptr_null(p.waits);
    assert_value("k", "text");
}
END_TEST

/* --- Watching ------------------------------------------------------------- */

static void assert_text(const struct store_blob *blob, const char *want)
{
    if (want == NULL)
        ck_assert_ptr_null(blob);
    else
        assert_bytes(store_blob_bytes(blob), want);
}

static void assert_change(struct store_party *p, enum store_change_kind kind,
    const char *key, const char *old, const char *now)
{
    struct store_change *c = store_party_next_change(p);

    ck_assert_ptr_nonnull(c);
    ck_assert_int_eq(c->kind, kind);
    assert_text(c->key, key);
    assert_text(c->old, old);
    assert_text(c->now, now);
    store_change_free(c);
}

START_TEST(watcher_sees_each_change_in_order)
{
    struct store_party p = {0}, held = {0};
    struct store_bytes now;
    int64_t sum;

    ck_assert_int_eq(store_keys_watch(&keys, &p, text_bytes("k")), 0);
    set("other", "");
    ck_assert_ptr_null(store_keys_next_due(&keys));
    set("k", "1");
    set("k", "2");
    ck_assert_int_eq(store_keys_add(&keys, text_bytes("k"), 3, &sum), 0);
    ck_assert_int_eq(
        store_keys_append(&keys, text_bytes("k"), text_bytes("0")), 0);
    ck_assert_int_eq(store_keys_compare_set(&keys, text_bytes("k"),
                         text_bytes("50"), text_bytes("6"), &now),
        0);
    ck_assert_int_eq(store_keys_compare_set(&keys, text_bytes("k"),
                         text_bytes("50"), text_bytes("7"), &now),
        0); /* no change */
    ck_assert_int_eq(barrier(&held, 9), 0);
    ck_assert(store_keys_delete(&keys, text_bytes("k")));
    push("k", "no change either, but it wakes");
    ck_assert_ptr_eq(store_keys_next_due(&keys), &p);
    ck_assert_ptr_eq(store_keys_next_due(&keys), &held);
    ck_assert_ptr_null(store_keys_next_due(&keys));
    assert_change(&p, STORE_CHANGE_CREATED, "k", NULL, "1");
    assert_change(&p, STORE_CHANGE_UPDATED, "k", "1", "2");
    assert_change(&p, STORE_CHANGE_UPDATED, "k", "2", "5");
    assert_change(&p, STORE_CHANGE_UPDATED, "k", "5", "50");
    assert_change(&p, STORE_CHANGE_UPDATED, "k", "50", "6");
    assert_change(&p, STORE_CHANGE_UPDATED, "k", "6", "7");
    assert_change(&p, STORE_CHANGE_DELETED, "k", "7", NULL);
    ck_assert_ptr_null(store_party_next_change(&p));
    store_keys_leave(&keys, &p);
    store_keys_leave(&keys, &held);
}
END_TEST

START_TEST(cancel_keeps_watches_leave_ends_them)
{
    struct store_party p = {0};

    ck_assert_int_eq(store_keys_watch(&keys, &p, text_bytes("k")), 0);
    ck_assert_int_eq(store_keys_watch(&keys, &p, text_bytes("l")), 0);
    ck_assert_int_eq(store_keys_wait(&keys, &p, list_of("k")), 0);
    set("k", "1");
    store_keys_cancel(&keys, &p);
    ck_assert_ptr_eq(store_keys_next_due(&keys), &p);
    ck_assert_uint_eq(p.done, 0);
    assert_change(&p, STORE_CHANGE_CREATED, "k", NULL, "1");
    set("k", "2");
    store_keys_leave(&keys, &p); /* with a change that nobody took */
    set("k", "3");
    ck_assert_ptr_null(store_keys_next_due(&keys));
}
END_TEST

/* --- Memory --------------------------------------------------------------- */

static void limit_memory(size_t more)
{
    keys.budget.max = keys.budget.used + more;
}

enum {
    OP_SET,
    OP_APPEND,
    OP_ADD,
    OP_CAS,
    OP_PUSH,
    OP_WAIT,
    OP_BARRIER,
    OP_WATCH,
    OP_SET_IN,
    OP_COUNT
};

static int operate(int op, struct store_party *p, char *memory)
{
    struct store_bytes k = text_bytes("k"), v = text_bytes("a value as such");
    struct store_bytes now;
    int64_t sum;

    switch (op) {
    case OP_SET:
        return store_keys_set(&keys, k, v);
    case OP_APPEND:
        return store_keys_append(&keys, text_bytes("has"), v);
    case OP_ADD:
        return store_keys_add(&keys, k, 1, &sum);
    case OP_CAS:
        return store_keys_compare_set(&keys, k, text_bytes(""), v, &now);
    case OP_PUSH:
        return store_keys_push(&keys, k, v);
    case OP_WAIT:
        return store_keys_wait(&keys, p, list_of("xky"));
    case OP_BARRIER:
        return store_keys_barrier(&keys, p, k, 2);
    case OP_WATCH:
        return store_keys_watch(&keys, p, k);
    default:
        return store_keys_set_in(
            &keys, k, store_bytes(memory + 4, 8), memory, 16);
    }
}

/* An operation is tried with ever more memory until it succeeds. */
START_TEST(without_memory_nothing_changes)
{
    struct store_party p = {0};
    char *memory = malloc(16);
    size_t used, more = 0;
    int rc;

    set("has", "a value of some length, not to fit in place");
    used = keys.budget.used;
    do {
        limit_memory(more++);
        rc = operate(_i, &p, memory);
        if (rc == -EDQUOT) {
            ck_assert_uint_eq(keys.budget.used, used);
            ck_assert_uint_eq(keys.count, 1);
            ck_assert(!store_keys_check(&keys, list_of("k")));
            assert_value("has", "a value of some length, not to fit in place");
            ck_assert_ptr_null(p.waits);
        }
    } while (rc == -EDQUOT);
    ck_assert_int_eq(rc, 0);
    ck_assert_uint_gt(more, 1);
    ck_assert_uint_le(keys.budget.used, keys.budget.max);
    if (_i != OP_SET_IN)
        free(memory);
    store_keys_leave(&keys, &p);
}
END_TEST

/* Notes are not stored: they become replies at once. */
START_TEST(full_store_notes_changes_still)
{
    struct store_change *change;
    struct store_party p = {0};

    set("k", "1");
    ck_assert_int_eq(store_keys_watch(&keys, &p, text_bytes("k")), 0);
    limit_memory(0);
    ck_assert(store_keys_delete(&keys, text_bytes("k")));
    ck_assert_ptr_eq(store_keys_next_due(&keys), &p);
    ck_assert(!p.has_lost);
    change = store_party_next_change(&p);
    ck_assert_ptr_nonnull(change);
    ck_assert_int_eq(change->kind, STORE_CHANGE_DELETED);
    store_change_free(change);
    store_keys_leave(&keys, &p);
}
END_TEST

START_TEST(entry_of_a_short_key_is_small)
{
    size_t before;

    set("a", "1");
    before = keys.budget.used;
    set("b", "1");
    ck_assert_uint_le(keys.budget.used - before, 192);
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
    tcase_add_test(tc, check_wants_all_keys);
    tcase_add_test(tc, referenced_value_does_not_change);
    tcase_add_test(tc, unreferenced_value_is_overwritten_in_place);
    tcase_add_test(
        tc, large_value_gives_its_memory_back_when_a_small_one_comes);
    tcase_add_test(tc, value_keeps_the_memory_it_came_in);
    tcase_add_test(tc, each_names_the_keys_with_a_value);
    suite_add_tcase(suite, tc);

    tc = tcase_create("waiting");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, wait_for_present_keys_is_over_at_once);
    tcase_add_test(tc, wait_ends_with_the_last_missing_key);
    tcase_add_test(tc, key_that_came_and_went_counts_as_come);
    tcase_add_test(tc, key_listed_twice_is_waited_for_once);
    tcase_add_test(tc, every_operation_that_creates_a_key_ends_a_wait);
    tcase_add_test(tc, waited_for_key_does_not_exist_yet);
    tcase_add_test(tc, several_waits_of_one_party_end_each_on_its_own);
    tcase_add_test(tc, canceled_wait_is_forgotten_others_are_not);
    tcase_add_test(tc, waiters_are_due_in_the_order_they_came);
    suite_add_tcase(suite, tc);

    tc = tcase_create("queues and barriers");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, queue_gives_back_in_order);
    tcase_add_test(tc, queue_and_value_of_one_name_do_not_know_each_other);
    tcase_add_test(tc, push_wakes_the_oldest_waiter_only);
    tcase_add_test(tc, barrier_holds_until_the_last_comes);
    tcase_add_test(tc, barrier_of_nobody_is_no_barrier);
    tcase_add_test(tc, incomplete_barrier_does_not_end_a_wait_for_its_key);
    tcase_add_test(tc, write_to_the_key_releases_the_held);
    tcase_add_test(tc, canceled_barrier_has_counted);
    tcase_add_test(tc, barrier_at_a_text_fails_and_holds_nobody);
    suite_add_tcase(suite, tc);

    tc = tcase_create("watching");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, watcher_sees_each_change_in_order);
    tcase_add_test(tc, cancel_keeps_watches_leave_ends_them);
    tcase_add_test(tc, key_watched_twice_is_noted_once);
    tcase_add_test(tc, number_is_looked_for_at_the_beginning_only);
    suite_add_tcase(suite, tc);

    tc = tcase_create("memory");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, without_memory_nothing_changes, 0, OP_COUNT);
    tcase_add_test(tc, full_store_notes_changes_still);
    tcase_add_test(tc, entry_of_a_short_key_is_small);
    suite_add_tcase(suite, tc);
    return unit_run_suite(suite);
}
