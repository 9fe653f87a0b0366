/*
 * The blocking client's operations: against the real server in each of its
 * dialects, and against peers that freeze, close, or talk nonsense.
 */
#include "rendezvous/store_client.h"

#include <linux/sockios.h>

#include "rendezvous/store_call.h"
#include "test_store_peer.h"
#include "unit.h"

static void assert_get(
    struct store_client *c, const char *key, const char *want)
{
    struct buf out;

    buf_init(&out, 4096);
    assert_ok(store_client_get(c, key, &out, later(), &e));
    ck_assert_uint_eq(out.len, strlen(want));
    if (out.len > 0)
        ck_assert_mem_eq(buf_bytes(&out), want, out.len);
    buf_fini(&out);
}

static void set_text(struct store_client *c, const char *key, const char *text)
{
    assert_ok(store_client_set(c, key, text, strlen(text), later(), &e));
}

/* --- With the real server, in every dialect ------------------------------ */

static struct old_served served;
static int port;
static struct store_client *a, *b;

static void setup(enum store_dialect dialect)
{
    old_start(&served, dialect);
    /* Its own port speaks the newest. */
    port = dialect == STORE_DIALECT_C ? served.s.port : served.port;
    a = connect_to(port);
    b = connect_to(port);
    ck_assert_int_eq(store_client_dialect(a), dialect);
}

static void setup_a(void)
{
    setup(STORE_DIALECT_A);
}

static void setup_b(void)
{
    setup(STORE_DIALECT_B);
}

static void setup_c(void)
{
    setup(STORE_DIALECT_C);
}

static void teardown(void)
{
    store_client_close(a);
    store_client_close(b);
    old_stop(&served);
}

/* The connection is usable: an answer belongs to its question. */
static void assert_usable(struct store_client *c)
{
    int64_t count = 0, sum = 0;

    assert_ok(store_client_add(c, "usable", 0, &count, later(), &e));
    assert_ok(store_client_add(c, "usable", 1, &sum, later(), &e));
    ck_assert_int_eq(sum, count + 1);
}

START_TEST(what_one_sets_another_gets)
{
    set_text(a, "key", "value");
    assert_get(b, "key", "value");
    set_text(a, "empty", "");
    assert_get(b, "empty", "");
}
END_TEST

START_TEST(get_appends_to_the_buffer)
{
    struct buf out = from_hex("61");

    set_text(a, "key", "bc");
    assert_ok(store_client_get(a, "key", &out, later(), &e));
    ck_assert_uint_eq(out.len, 3);
    ck_assert_mem_eq(buf_bytes(&out), "abc", 3);
    buf_fini(&out);
}
END_TEST

/* Seen by a client that puts no slash in front. */
START_TEST(keys_get_the_slash_of_pytorch)
{
    int fd = raw_client(served.s.port);

    set_text(a, "key", "v");
    assert_get(a, "key", "v"); /* so it has arrived */
    raw_send(fd, "03 0400000000000000 2f6b6579");
    raw_expect(fd, "0100000000000000 76");
    close(fd);
}
END_TEST

START_TEST(workers_check_in_without_a_slash)
{
    int fd = raw_client(served.s.port);
    int64_t count = 0;

    assert_ok(store_client_check_in(a, &count, later(), &e));
    ck_assert_int_eq(count, 1);
    assert_ok(store_client_check_in(b, &count, later(), &e));
    ck_assert_int_eq(count, 2);
    raw_send(fd, "03 0500000000000000 696e69742f"); /* init/ */
    raw_expect(fd, "0100000000000000 32");
    close(fd);
}
END_TEST

START_TEST(add_counts_for_all)
{
    int64_t sum = 0;

    assert_ok(store_client_add(a, "n", 5, &sum, later(), &e));
    ck_assert_int_eq(sum, 5);
    assert_ok(store_client_add(b, "n", -7, &sum, later(), &e));
    ck_assert_int_eq(sum, -2);
    assert_get(a, "n", "-2");
}
END_TEST

START_TEST(check_tells_whether_all_keys_exist)
{
    const char *const keys[] = {"x", "y"};
    bool all = true;

    set_text(a, "x", "");
    assert_ok(store_client_check(a, keys, 2, &all, later(), &e));
    ck_assert(!all);
    set_text(a, "y", "");
    assert_ok(store_client_check(a, keys, 2, &all, later(), &e));
    ck_assert(all);
    assert_ok(store_client_check(a, keys, 0, &all, later(), &e));
    ck_assert(all);
}
END_TEST

START_TEST(get_that_times_out_leaves_the_connection_usable)
{
    struct buf out = from_hex("61");
    int64_t sum;

    ck_assert_int_eq(
        store_client_get(a, "never", &out, soon(), &e), -ETIMEDOUT);
    ck_assert_int_eq(e.rc, -ETIMEDOUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "never"));
    ck_assert_uint_eq(out.len, 1);
    buf_fini(&out);

    /* A late answer would be taken for the first byte of the next one. */
    set_text(b, "never", "x");
    assert_get(b, "never", "x");
    assert_ok(store_client_add(a, "n", 1, &sum, later(), &e));
    ck_assert_int_eq(sum, 1);
    assert_get(a, "never", "x");
}
END_TEST

START_TEST(deadline_that_is_over_finds_only_what_is_there)
{
    const char *const key = "key";

    ck_assert_int_eq(store_client_wait(a, &key, 1, 0, &e), -ETIMEDOUT);
    set_text(a, "key", "v");
    assert_get(a, "key", "v");
    assert_ok(store_client_wait(b, &key, 1, 0, &e));
    assert_usable(b);
}
END_TEST

struct setter {
    struct store_client *client;
    const char *key;
};

static void *set_in_thread(void *arg)
{
    struct setter *s = arg;

    store_client_set(s->client, s->key, "late", 4, later(), NULL);
    return NULL;
}

START_TEST(wait_is_released_by_another_client)
{
    struct setter setter = {.client = b, .key = "k2"};
    const char *const keys[] = {"k1", "k2"};
    pthread_t thread;

    set_text(a, "k1", "");
    ck_assert_int_eq(pthread_create(&thread, NULL, set_in_thread, &setter), 0);
    assert_ok(store_client_wait(a, keys, 2, later(), &e));
    assert_get(a, "k2", "late");
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}
END_TEST

/* The new connection of a client of dialect A does not overtake the old. */
START_TEST(requests_stay_in_order_across_a_timeout)
{
    const char *const never = "never";
    char text[16];

    for (int i = 0; i < 100; i++) {
        snprintf(text, sizeof(text), "%d", i);
        set_text(a, "k", "old");
        set_text(a, "k", text);
        ck_assert_int_eq(store_client_wait(a, &never, 1, 0, &e), -ETIMEDOUT);
        assert_get(a, "k", text);
    }
}
END_TEST

/* Time-outs against sets at the same moment: whoever wins, every answer
 * belongs to its question. */
START_TEST(race_of_timeout_and_set_never_confuses_the_connection)
{
    for (int i = 0; i < 300; i++) {
        struct buf out = from_hex("");
        struct setter setter = {.client = b};
        char key[16];
        pthread_t thread;
        int64_t sum;
        int rc;

        snprintf(key, sizeof(key), "k%d", i);
        setter.key = key;
        ck_assert_int_eq(
            pthread_create(&thread, NULL, set_in_thread, &setter), 0);
        rc = store_client_get(
            a, key, &out, clock_now_ns() + (uint64_t)(i % 30) * 10000, &e);
        ck_assert(rc == 0 || rc == -ETIMEDOUT);
        ck_assert_uint_eq(out.len, rc == 0 ? 4 : 0);
        assert_ok(store_client_add(a, "n", 1, &sum, later(), &e));
        ck_assert_int_eq(sum, i + 1);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        buf_fini(&out);
    }
}
END_TEST

static const size_t sizes[] = {
    0, 1, 4096, 1 << 16, 1 << 20, (size_t)(UNIT_IS_SANITIZED ? 8 : 64) << 20};

START_TEST(values_of_all_sizes_come_back_the_same)
{
    size_t size = sizes[_i];
    char *value = malloc(size + 1);
    struct buf out;

    for (size_t i = 0; i < size; i++)
        value[i] = (char)(i * 31 + i / 4099);
    buf_init(&out, size); /* as much as it needs, and no more */
    assert_ok(store_client_set(a, "big", value, size, later(), &e));
    assert_ok(store_client_get(b, "big", &out, later(), &e));
    ck_assert_uint_eq(out.len, size);
    if (size > 0)
        ck_assert(memcmp(buf_bytes(&out), value, size) == 0);
    buf_fini(&out);
    free(value);
}
END_TEST

START_TEST(too_long_is_refused_before_anything_is_sent)
{
    const struct store_limits limits = STORE_LIMITS_DEFAULT;
    struct store_bytes huge = store_bytes("", limits.value_len + 1);
    struct store_bytes none = store_bytes("", 0);
    const char *keys[2];
    const struct store_bytes values[] = {none, huge};
    struct buf now;
    char *key = malloc(limits.key_len + 1);
    int64_t sum;

    memset(key, 'k', limits.key_len);
    key[limits.key_len] = '\0';
    ck_assert_int_eq(store_client_add(a, key, 1, &sum, later(), &e), -EMSGSIZE);
    ck_assert_int_eq(
        store_client_set(a, "k", huge.data, huge.len, later(), &e), -EMSGSIZE);
    ck_assert_int_eq(
        store_client_append(a, "k", huge.data, huge.len, later(), &e),
        -EMSGSIZE);
    buf_init(&now, 1);
    ck_assert_int_eq(
        store_client_compare_set(a, "k", none, huge, &now, later(), &e),
        -EMSGSIZE);
    ck_assert_int_eq(
        store_client_compare_set(a, "k", huge, none, &now, later(), &e),
        -EMSGSIZE);
    keys[0] = "k1";
    keys[1] = "k2";
    ck_assert_int_eq(
        store_client_multi_set(a, keys, values, 2, later(), &e), -EMSGSIZE);
    keys[1] = key;
    ck_assert_int_eq(store_client_wait(a, keys, 2, later(), &e), -EMSGSIZE);
    ck_assert_int_eq(
        store_client_wait(a, keys, limits.list_count + 1, later(), &e),
        -EMSGSIZE);
    key[limits.key_len - 1] = '\0'; /* with the slash: just allowed */
    assert_ok(store_client_add(a, key, 1, &sum, later(), &e));
    ck_assert_int_eq(sum, 1);
    assert_ok(store_client_num_keys(a, &sum, later(), &e));
    ck_assert_int_eq(sum, 1); /* nothing else was set */
    free(key);
}
END_TEST

START_TEST(value_larger_than_the_buffer_is_an_error)
{
    struct buf out;

    buf_init(&out, 3);
    set_text(a, "key", "four");
    ck_assert_int_eq(store_client_get(a, "key", &out, later(), &e), -ENOBUFS);
    ck_assert_uint_eq(out.len, 0);
    ck_assert_int_eq(store_client_get(a, "key", &out, later(), &e), -ENOTCONN);
    buf_fini(&out);
}
END_TEST

START_TEST(numbers_that_are_none_end_the_connection)
{
    int64_t sum = 0;

    set_text(a, "key", "x");
    ck_assert_int_eq(
        store_client_add(a, "key", 1, &sum, later(), &e), -ECONNRESET);
    ck_assert_int_eq(e.rc, -ECONNRESET);
    ck_assert_int_eq(store_client_add(a, "n", 1, &sum, later(), &e), -ENOTCONN);
    assert_ok(store_client_add(b, "n", 1, &sum, later(), &e));
}
END_TEST

static void assert_compare_set(const char *expected, const char *now)
{
    struct buf out;

    buf_init(&out, 64);
    assert_ok(store_client_compare_set(a, "claim", text_bytes(expected),
        text_bytes("mine"), &out, later(), &e));
    ck_assert_uint_eq(out.len, strlen(now));
    ck_assert_mem_eq(buf_bytes(&out), now, out.len);
    buf_fini(&out);
}

START_TEST(compare_set_takes_what_is_free_or_as_expected)
{
    assert_compare_set("theirs", "theirs"); /* missing: not set */
    assert_compare_set("", "mine");
    assert_get(b, "claim", "mine");
    set_text(b, "claim", "theirs");
    assert_compare_set("", "theirs");
    assert_compare_set("mine", "theirs");
    assert_compare_set("theirs", "mine");
    assert_get(b, "claim", "mine");
}
END_TEST

static void assert_holds(const struct buf *out, struct store_bytes want)
{
    ck_assert(store_bytes_equal(store_bytes(out->data, out->len), want));
}

static const size_t compared[] = {
    0, 1, 1 << 16, (size_t)(UNIT_IS_SANITIZED ? 8 : 64) << 20};

/* Zeros among them: lengths count, not text. */
START_TEST(compare_set_takes_values_of_all_sizes)
{
    size_t size = compared[_i];
    char *value = calloc(size + 1, 1);
    struct store_bytes bytes = store_bytes(value, size);
    struct buf now;

    buf_init(&now, size + 1);
    value[size / 2] = 'x';
    assert_ok(store_client_compare_set(
        a, "k", text_bytes(""), bytes, &now, later(), &e));
    assert_holds(&now, bytes);
    buf_fini(&now);
    /* What is set is what was there: no difference to be seen. */
    assert_ok(
        store_client_compare_set(a, "k", bytes, bytes, &now, later(), &e));
    assert_holds(&now, bytes);
    buf_fini(&now);
    assert_ok(store_client_compare_set(
        b, "k", bytes, text_bytes("y"), &now, later(), &e));
    ck_assert_uint_eq(now.len, 1);
    assert_get(a, "k", "y");
    buf_fini(&now);
    free(value);
}
END_TEST

START_TEST(deleted_key_is_gone_when_the_call_returns)
{
    const char *const keys[] = {"gone"};
    bool exists = true, existed = false;

    set_text(b, "gone", "x");
    assert_get(a, "gone", "x");
    assert_ok(store_client_delete(a, "gone", &existed, later(), &e));
    ck_assert(existed);
    assert_ok(store_client_check(b, keys, 1, &exists, later(), &e));
    ck_assert(!exists);
    assert_ok(store_client_delete(a, "gone", &existed, later(), &e));
    ck_assert(!existed);
    assert_ok(store_client_delete(a, "gone", NULL, later(), &e));
}
END_TEST

START_TEST(keys_are_counted)
{
    int64_t count = -1;

    assert_ok(store_client_num_keys(a, &count, later(), &e));
    ck_assert_int_eq(count, 0);
    set_text(a, "x", "");
    set_text(a, "y", "");
    assert_ok(store_client_num_keys(a, &count, later(), &e));
    ck_assert_int_eq(count, 2);
}
END_TEST

/* Not every append is answered, and what another client does may overtake it;
 * but nothing overtakes it on its own way. */
static void come_through(struct store_client *c)
{
    int64_t count;

    assert_ok(store_client_num_keys(c, &count, later(), NULL));
}

static void append_text(struct store_client *c, const char *text)
{
    assert_ok(store_client_append(c, "ap", text, strlen(text), later(), &e));
    come_through(c);
}

START_TEST(append_creates_and_extends)
{
    append_text(a, "one");
    append_text(b, "");
    append_text(a, "two");
    assert_get(b, "ap", "onetwo");
    assert_ok(store_client_delete(a, "ap", NULL, later(), &e));
    append_text(b, "");
    assert_get(a, "ap", "");
    append_text(b, "x");
    append_text(b, "x"); /* what is there is not taken for its own */
    assert_get(a, "ap", "xx");
}
END_TEST

struct appender {
    struct store_client *client;
    char letter;
};

#define APPENDS 100

static void *append_in_thread(void *arg)
{
    struct appender *p = arg;

    for (int i = 0; i < APPENDS; i++)
        assert_ok(
            store_client_append(p->client, "ap", &p->letter, 1, later(), NULL));
    come_through(p->client);
    return NULL;
}

START_TEST(appends_of_two_are_not_lost)
{
    struct appender mine = {a, 'a'}, theirs = {b, 'b'};
    int count = 0;
    pthread_t thread;
    struct buf out;

    ck_assert_int_eq(
        pthread_create(&thread, NULL, append_in_thread, &theirs), 0);
    append_in_thread(&mine);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    buf_init(&out, 4096);
    assert_ok(store_client_get(a, "ap", &out, later(), &e));
    ck_assert_uint_eq(out.len, 2 * APPENDS);
    for (size_t i = 0; i < out.len; i++)
        count += buf_bytes(&out)[i] == 'a';
    ck_assert_int_eq(count, APPENDS);
    buf_fini(&out);
}
END_TEST

#define MANY 1000

/* Of sizes that are sent together, and such that are sent on their own. */
static size_t many_size(size_t i)
{
    return i % 100 == 7 ? (size_t)100 << 10 : i % 300;
}

START_TEST(many_keys_are_set_and_fetched_together)
{
    char *value = malloc(many_size(7) + 13);
    char names[MANY][16];
    const char *keys[MANY];
    struct store_bytes values[MANY];
    struct buf out[MANY];

    for (size_t i = 0; i < many_size(7) + 13; i++)
        value[i] = (char)(i * 31);
    for (size_t i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof(names[i]), "k%zu", i);
        keys[i] = names[i];
        values[i] = store_bytes(value + i % 13, many_size(i));
        buf_init(&out[i], many_size(7));
    }
    assert_ok(store_client_multi_set(a, keys, values, MANY, later(), &e));
    assert_ok(store_client_multi_get(a, keys, MANY, out, later(), &e));
    for (size_t i = 0; i < MANY; i++) {
        assert_holds(&out[i], values[i]);
        buf_fini(&out[i]);
    }
    assert_usable(a);
    assert_ok(store_client_multi_set(a, keys, values, 0, later(), &e));
    assert_ok(store_client_multi_get(a, keys, 0, out, later(), &e));
    assert_usable(a);
    free(value);
}
END_TEST

START_TEST(missing_one_of_many_changes_no_value)
{
    const char *const keys[] = {"there", "missing"};
    struct buf out[] = {from_hex("61"), from_hex("62")};

    set_text(a, "there", "x");
    ck_assert_int_eq(
        store_client_multi_get(a, keys, 2, out, soon(), &e), -ETIMEDOUT);
    assert_says("not all of 2 keys (there");
    ck_assert_uint_eq(out[0].len, 1);
    ck_assert_uint_eq(out[1].len, 1);
    assert_usable(a);
    buf_fini(&out[0]);
    buf_fini(&out[1]);
}
END_TEST

START_TEST(sixty_four_clients_meet)
{
    struct store_client *clients[64];
    const char *keys[64];
    char names[64][16];

    for (int i = 0; i < 64; i++) {
        clients[i] = connect_to(port);
        snprintf(names[i], sizeof(names[i]), "r%d", i);
        keys[i] = names[i];
        set_text(clients[i], keys[i], keys[i]);
    }
    for (int i = 0; i < 64; i++) {
        assert_ok(store_client_wait(clients[i], keys, 64, later(), &e));
        assert_get(clients[i], keys[63 - i], keys[63 - i]);
    }
    for (int i = 0; i < 64; i++)
        store_client_close(clients[i]);
}
END_TEST

/* --- What only new servers have ------------------------------------------ */

static void push_text(struct store_client *c, const char *text)
{
    assert_ok(store_client_queue_push(c, "q", text, strlen(text), later(), &e));
}

static void assert_pops(struct store_client *c, const char *want)
{
    struct buf out;

    buf_init(&out, 64);
    assert_ok(store_client_queue_pop(c, "q", &out, later(), &e));
    assert_bytes(store_bytes(out.data, out.len), want);
    buf_fini(&out);
}

START_TEST(queue_gives_elements_in_order)
{
    int64_t len = -1;

    assert_ok(store_client_queue_len(a, "q", &len, later(), &e));
    ck_assert_int_eq(len, 0);
    push_text(a, "one");
    push_text(a, "two");
    assert_ok(store_client_queue_len(a, "q", &len, later(), &e));
    ck_assert_int_eq(len, 2);
    assert_pops(b, "one");
    assert_pops(a, "two");
}
END_TEST

START_TEST(pop_of_an_empty_queue_times_out)
{
    struct buf out;

    buf_init(&out, 64);
    ck_assert_int_eq(
        store_client_queue_pop(a, "q", &out, soon(), &e), -ETIMEDOUT);
    assert_says("key q did not appear");
    /* A key of the same name releases the wait, but is no element. */
    set_text(a, "q", "v");
    ck_assert_int_eq(
        store_client_queue_pop(a, "q", &out, soon(), &e), -ETIMEDOUT);
    ck_assert_uint_eq(out.len, 0);
    assert_usable(a);
    buf_fini(&out);
}
END_TEST

#define ELEMENTS 200

struct popper {
    struct store_client *client;
    int64_t sum;
};

static void *pop_in_thread(void *arg)
{
    struct popper *p = arg;

    for (;;) {
        struct buf out;
        char byte;

        buf_init(&out, 1);
        assert_ok(store_client_queue_pop(p->client, "q", &out, later(), NULL));
        byte = buf_bytes(&out)[0];
        buf_fini(&out);
        if (byte == 0)
            return NULL;
        p->sum += (unsigned char)byte;
    }
}

/* Whoever loses a race for an element waits for the next one. */
START_TEST(every_element_is_popped_once)
{
    struct popper poppers[4];
    pthread_t threads[4];
    int64_t sum = 0;

    for (int i = 0; i < 4; i++) {
        poppers[i] = (struct popper){connect_to(port), 0};
        ck_assert_int_eq(
            pthread_create(&threads[i], NULL, pop_in_thread, &poppers[i]), 0);
    }
    for (int i = 1; i <= ELEMENTS; i++)
        assert_ok(store_client_queue_push(
            a, "q", &(const char){(char)i}, 1, later(), &e));
    for (int i = 0; i < 4; i++)
        assert_ok(store_client_queue_push(a, "q", "", 1, later(), &e));
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        sum += poppers[i].sum;
        store_client_close(poppers[i].client);
    }
    ck_assert_int_eq(sum, ELEMENTS * (ELEMENTS + 1) / 2);
}
END_TEST

static void collect_cb(struct store_bytes key, void *arg)
{
    struct buf *all = arg;

    ck_assert_int_eq(buf_append(all, "<", 1), 0);
    ck_assert_int_eq(buf_append(all, key.data, key.len), 0);
}

START_TEST(keys_are_listed_without_the_store_s_own)
{
    int64_t count;
    struct buf all;

    buf_init(&all, 4096);
    assert_ok(store_client_list_keys(a, collect_cb, &all, later(), &e));
    ck_assert_uint_eq(all.len, 0);
    assert_ok(store_client_check_in(a, &count, later(), &e));
    set_text(a, "one", "");
    set_text(a, "/two", "");
    assert_ok(store_client_list_keys(a, collect_cb, &all, later(), &e));
    assert_ok(buf_append(&all, "", 1));
    ck_assert_uint_eq(all.len, strlen("<one</two") + 1);
    ck_assert_ptr_nonnull(strstr(buf_bytes(&all), "<one"));
    ck_assert_ptr_nonnull(strstr(buf_bytes(&all), "</two"));
    buf_fini(&all);
    assert_usable(a);
}
END_TEST

/* More than is received at once. */
START_TEST(long_list_of_keys_is_complete)
{
    char key[1024];
    struct buf all;

    buf_init(&all, (size_t)8 << 20);
    memset(key, 'k', sizeof(key));
    for (int i = 0; i < 3000; i++) {
        snprintf(key + 1000, 24, "%d", i);
        set_text(a, key, "");
    }
    assert_ok(store_client_list_keys(a, collect_cb, &all, later(), &e));
    ck_assert_uint_eq(all.len, 3000 * 1001 + 10 + 90 * 2 + 900 * 3 + 2000 * 4);
    buf_fini(&all);
}
END_TEST

START_TEST(old_server_lacks_queues_and_lists)
{
    struct buf out;
    int64_t len;

    buf_init(&out, 64);
    ck_assert_int_eq(
        store_client_queue_push(a, "q", "x", 1, later(), &e), -EOPNOTSUPP);
    assert_says("queue push");
    assert_says("older than PyTorch 2.8");
    ck_assert_int_eq(
        store_client_queue_pop(a, "q", &out, later(), &e), -EOPNOTSUPP);
    ck_assert_int_eq(
        store_client_queue_len(a, "q", &len, later(), &e), -EOPNOTSUPP);
    ck_assert_int_eq(
        store_client_list_keys(a, collect_cb, &out, later(), &e), -EOPNOTSUPP);
    assert_says("older than PyTorch 2.10");
    assert_usable(a);
}
END_TEST

/* A server of the newest dialect may lack them, too: it is asked once, on a
 * connection of its own, which it closes. */
START_TEST(server_that_lacks_queues_is_asked_once)
{
    static const char *const lines[] = {"+", PING_GREETING, "=", "+",
        "< 00cef7853c 07", "> 0100000000000000", "< 10 0000000000000000", "-",
        "+", "< 00cef7853c 07", "> 0100000000000000", "< 11", "-", "< 07",
        "> 0300000000000000", ".", NULL};
    struct store_client *c;
    struct script script;
    int64_t count = 0;

    script_start(&script, lines);
    c = connect_to(script.port);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(
            store_client_queue_push(c, "q", "x", 1, later(), &e), -EOPNOTSUPP);
        ck_assert_int_eq(
            store_client_list_keys(c, collect_cb, NULL, later(), &e),
            -EOPNOTSUPP);
    }
    assert_ok(store_client_num_keys(c, &count, later(), &e));
    ck_assert_int_eq(count, 3);
    store_client_close(c);
    script_stop(&script);
}
END_TEST

/* One that closes at once has not said what it lacks. */
START_TEST(server_that_closes_the_question_is_not_taken_for_old)
{
    static const char *const lines[] = {
        "+", PING_GREETING, "=", "+", "< 00cef7853c 07", "-", ".", NULL};
    struct store_client *c;
    struct script script;

    script_start(&script, lines);
    c = connect_to(script.port);
    ck_assert_int_eq(
        store_client_queue_push(c, "q", "x", 1, later(), &e), -ECONNRESET);
    ck_assert_int_eq(
        store_client_queue_push(c, "q", "x", 1, later(), &e), -ENOTCONN);
    store_client_close(c);
    script_stop(&script);
}
END_TEST

/* --- The bytes of old dialects ------------------------------------------- */

#define GREETED_A                                                              \
    "+", PING_GREETING, "-", "+", PLAIN_GREETING, "-", "+", "< 0b", "-", "+",  \
        "< 06", "> 0000000000000000", "+", PING_GREETING, "-"
#define GREETED_B                                                              \
    "+", PING_GREETING, "-", "+", PLAIN_GREETING, "-", "+", "< 0b", "> 01",    \
        "+", PING_GREETING, "-"
#define KEY_K "0200000000000000 2f6b"

/* A WAIT that is over: CHECK, then another connection. */
START_TEST(timeout_of_a_wait_in_1_13)
{
    static const char *const lines[] = {GREETED_A,
        "< 05 0100000000000000 " KEY_K, "< 04 0100000000000000 " KEY_K, "> 01",
        "+", "< 00 " KEY_K "0100000000000000 76",
        "< 03 " KEY_K "0100000000000000", "> 0700000000000000", ".", ".", NULL};
    const char *const key = "k";
    struct store_client *c;
    struct script script;
    int64_t sum = 0;

    script_start(&script, lines);
    c = connect_to(script.port);
    ck_assert_int_eq(store_client_wait(c, &key, 1, soon(), &e), -ETIMEDOUT);
    set_text(c, "k", "v");
    assert_ok(store_client_add(c, "k", 1, &sum, later(), &e));
    ck_assert_int_eq(sum, 7);
    store_client_close(c);
    script_stop(&script);
}
END_TEST

/* The key comes at the last moment: the 0 is the WAIT's or the CHECK's. */
START_TEST(timeout_that_was_too_early_in_1_13)
{
    static const char *const lines[] = {GREETED_A,
        "< 05 0100000000000000 " KEY_K, "< 04 0100000000000000 " KEY_K,
        "> 0000", "+", "< 02 " KEY_K, "> 0100000000000000 78", ".", ".", NULL};
    struct store_client *c;
    struct script script;
    struct buf out;

    script_start(&script, lines);
    c = connect_to(script.port);
    buf_init(&out, 1);
    assert_ok(store_client_get(c, "k", &out, soon(), &e));
    ck_assert_mem_eq(buf_bytes(&out), "x", 1);
    buf_fini(&out);
    store_client_close(c);
    script_stop(&script);
}
END_TEST

#define ANY_8 "????????????????"
#define TOKEN "2000000000000000" ANY_8 ANY_8 ANY_8 ANY_8

/* Made of COMPARE_SET: what is there, then changed until nobody was faster.
 * Here it is "a", gone, "y", and with the "x" behind it at last. */
START_TEST(append_in_1_13)
{
    static const char *const lines[] = {GREETED_A, "< 01" KEY_K TOKEN TOKEN,
        "> 0100000000000000 61",
        "< 01" KEY_K "0100000000000000 61 0200000000000000 6178",
        "> 0100000000000000 61",
        "< 01" KEY_K "0000000000000000 0100000000000000 78",
        "> 0100000000000000 79",
        "< 01" KEY_K "0100000000000000 79 0200000000000000 7978",
        "> 0200000000000000 7978", ".", NULL};
    struct store_client *c;
    struct script script;

    script_start(&script, lines);
    c = connect_to(script.port);
    assert_ok(store_client_append(c, "k", "x", 1, later(), &e));
    store_client_close(c);
    script_stop(&script);
}
END_TEST

START_TEST(timeout_of_a_wait_in_2_1)
{
    static const char *const lines[] = {GREETED_B,
        "< 05 0100000000000000 " KEY_K, "< 0b", "> 01",
        "< 05 0100000000000000 " KEY_K, "< 0b", ": 0001", "< 06",
        "> 0700000000000000", ".", NULL};
    const char *const key = "k";
    struct store_client *c;
    struct script script;
    int64_t count = 0;

    script_start(&script, lines);
    c = connect_to(script.port);
    ck_assert_int_eq(store_client_wait(c, &key, 1, soon(), &e), -ETIMEDOUT);
    assert_ok(store_client_wait(c, &key, 1, soon(), &e)); /* too early */
    assert_ok(store_client_num_keys(c, &count, later(), &e));
    ck_assert_int_eq(count, 7);
    store_client_close(c);
    script_stop(&script);
}
END_TEST

/* --- Servers in trouble -------------------------------------------------- */

#define GREETED "+", PING_GREETING, "="
#define WAIT_K "< 06 0100000000000000 " KEY_K
#define GET_K "< 03 " KEY_K

static const struct {
    int rc;
    const char *lines[8]; /* what comes after the greeting, to a get of k */
} troubles[] = {
    {-EHOSTDOWN, {WAIT_K, "> 00", GET_K, "."}},
    {-EHOSTDOWN, {WAIT_K, "> 00", GET_K, "> 0500", "."}},
    {-EHOSTDOWN, {WAIT_K, "> 00", GET_K, "> 0500000000000000 6162", "."}},
    {-EHOSTDOWN, {WAIT_K, "< 0c", "."}}, /* nor is the wait taken back */
    {-ECONNRESET, {WAIT_K, "-"}},
    {-ECONNRESET, {WAIT_K, "> 00", "-"}},
    {-ECONNRESET, {WAIT_K, "> 00", GET_K, "> 0500000000000000 6162", "-"}},
    {-EPROTO, {WAIT_K, "> 07", "."}},
    {-EPROTO, {WAIT_K, "> 00", GET_K, "> ffffffffffffff7f", "."}},
    {-EPROTO, {WAIT_K, "> 00", GET_K, "> 0100000800000000", "."}},
    {-EPROTO, {WAIT_K, "< 0c", "> 0000", "."}},
    {-EPROTO, {WAIT_K, "< 0c", "> 02", "."}},
};

START_TEST(server_in_trouble_ends_the_connection_and_no_more)
{
    const char *lines[12] = {GREETED};
    struct store_client *c;
    struct script script;
    struct buf out;

    memcpy(lines + 3, troubles[_i].lines, sizeof(troubles[_i].lines));
    script_start(&script, lines);
    c = connect_to(script.port);
    buf_init(&out, SIZE_MAX / 2);
    /* It may be that RST overtakes the request. */
    ck_assert_int_eq(store_client_get(c, "k", &out, soon(), &e) == -EPIPE
                         ? -ECONNRESET
                         : e.rc,
        troubles[_i].rc);
    assert_names("127.0.0.1", script.port);
    ck_assert_uint_eq(out.len, 0);
    ck_assert_uint_lt(out.cap, (size_t)2 << 20);
    ck_assert_int_eq(store_client_get(c, "k", &out, later(), &e), -ENOTCONN);
    store_client_close(c);
    script_stop(&script);
    buf_fini(&out);
}
END_TEST

/* crun's is asked for a key and its value at once. */
#define CHECK_AND_GET_K "< 05 0100000000000000 " KEY_K "03 " KEY_K

static const struct {
    const char *value;
    const char *lines[8];
} quick[] = {
    {"xy", {CHECK_AND_GET_K, ": 00 0200000000000000 7879", ".", NULL}},
    {"", {CHECK_AND_GET_K, "> 00 0000000000000000", ".", NULL}},
    /* It is missing, and comes. */
    {"xy", {CHECK_AND_GET_K, ": 01 0000000000000000", WAIT_K, "> 00", GET_K,
               "> 0200000000000000 7879", ".", NULL}},
    /* It comes between the two questions. */
    {"z", {CHECK_AND_GET_K, "> 01 0100000000000000 79", WAIT_K, "> 00", GET_K,
              "> 0100000000000000 7a", ".", NULL}},
};

START_TEST(get_from_crun_takes_one_round_trip)
{
    const char *lines[12] = {"+", PING_GREETING, "!"};
    struct store_client *c;
    struct script script;
    struct buf out;

    memcpy(lines + 3, quick[_i].lines, sizeof(quick[_i].lines));
    script_start(&script, lines);
    c = connect_to(script.port);
    buf_init(&out, SIZE_MAX / 2);
    assert_ok(store_client_get(c, "k", &out, later(), &e));
    assert_bytes(store_bytes(buf_bytes(&out), out.len), quick[_i].value);
    store_client_close(c);
    script_stop(&script);
    buf_fini(&out);
}
END_TEST

/* What has come of several values is taken back. */
START_TEST(server_that_ends_among_values_changes_none)
{
    static const char *const lines[] = {GREETED,
        "< 06 0200000000000000" KEY_K KEY_K, "> 00",
        "< 0a 0200000000000000" KEY_K KEY_K, "> 0100000000000000 78 0300", "-",
        NULL};
    const char *const keys[] = {"k", "k"};
    struct buf out[] = {from_hex("61"), from_hex("")};
    struct store_client *c;
    struct script script;

    script_start(&script, lines);
    c = connect_to(script.port);
    ck_assert_int_eq(
        store_client_multi_get(c, keys, 2, out, later(), &e), -ECONNRESET);
    ck_assert_uint_eq(out[0].len, 1);
    ck_assert_uint_eq(out[1].len, 0);
    store_client_close(c);
    script_stop(&script);
    buf_fini(&out[0]);
    buf_fini(&out[1]);
}
END_TEST

START_TEST(reply_may_come_in_pieces)
{
    static const char *const lines[] = {GREETED, WAIT_K, ": 00", GET_K,
        ": 0300000000000000 616263", "< 04 " KEY_K "0100000000000000",
        ": feffffffffffffff", ".", NULL};
    struct store_client *c;
    struct script script;
    struct buf out;
    int64_t sum = 0;

    script_start(&script, lines);
    c = connect_to(script.port);
    buf_init(&out, 3);
    assert_ok(store_client_get(c, "k", &out, later(), &e));
    ck_assert_mem_eq(buf_bytes(&out), "abc", 3);
    assert_ok(store_client_add(c, "k", 1, &sum, later(), &e));
    ck_assert_int_eq(sum, -2);
    store_client_close(c);
    script_stop(&script);
    buf_fini(&out);
}
END_TEST

START_TEST(answer_that_nobody_asked_for_is_noticed)
{
    static const char *const lines[] = {GREETED, WAIT_K, "> 0000", ".", NULL};
    const char *const key = "k";
    struct store_client *c;
    struct script script;
    int64_t sum;

    script_start(&script, lines);
    c = connect_to(script.port);
    assert_ok(store_client_wait(c, &key, 1, later(), &e));
    ck_assert_int_eq(store_client_add(c, "k", 1, &sum, later(), &e), -EPROTO);
    store_client_close(c);
    script_stop(&script);
}
END_TEST

/* Requests without an answer find it out, and no signal ends the process. */
START_TEST(set_notices_that_the_server_has_gone)
{
    static const char *const lines[] = {GREETED, "-", NULL};
    struct store_client *c;
    struct script script;
    int rc;

    script_start(&script, lines);
    c = connect_to(script.port);
    script_stop(&script);
    do {
        rc = store_client_set(c, "k", "v", 1, later(), &e);
    } while (rc == 0);
    ck_assert_msg(rc == -EPIPE || rc == -ECONNRESET, "%s", e.msg);
    assert_says("its process has ended, or the request exceeded its limits");
    store_client_close(c);
}
END_TEST

/* It is sent as far as the buffers go, and then the deadline counts. */
START_TEST(frozen_server_does_not_hold_a_large_set)
{
    static const char *const lines[] = {GREETED, "?", NULL};
    const struct store_limits limits = STORE_LIMITS_DEFAULT;
    char *value = calloc(limits.value_len, 1);
    struct store_client *c;
    struct script script;

    script_start(&script, lines);
    c = connect_to(script.port);
    ck_assert_int_eq(
        store_client_set(c, "k", value, limits.value_len, soon(), &e),
        -EHOSTDOWN);
    store_client_close(c);
    script_stop(&script);
    free(value);
}
END_TEST

START_TEST(server_that_ends_releases_who_waits)
{
    const char *const key = "never";
    struct store_client *c;
    struct served s;
    int raw;

    served_start(&s);
    c = connect_to(s.port);
    raw = raw_client(s.port);
    served_stop(&s);
    raw_expect_closed(raw);
    ck_assert_int_eq(store_client_wait(c, &key, 1, later(), &e), -ECONNRESET);
    store_client_close(c);
}
END_TEST

static void assert_option(int fd, int level, int option, int value)
{
    socklen_t len = sizeof(int);
    int got = 0;

    ck_assert_int_eq(getsockopt(fd, level, option, &got, &len), 0);
    ck_assert_int_eq(got, value);
}

static int unacknowledged(int fd)
{
    int bytes = -1;

    ck_assert_int_eq(ioctl(fd, SIOCOUTQ, &bytes), 0);
    return bytes;
}

static void *wait_in_thread(void *arg)
{
    const char *const key = "k";

    ck_assert_int_eq(
        store_client_wait(arg, &key, 1, UINT64_MAX, &e), -EHOSTDOWN);
    return NULL;
}

/* The cable is cut during a wait: TCP asks now and then, and gives up. The
 * deadline of the wait is never. */
START_TEST(vanished_host_ends_a_long_wait)
{
    static const char *const lines[] = {GREETED, WAIT_K, "?", NULL};
    uint64_t deadline_ns = later();
    struct store_client *c;
    struct script script;
    int one = 1;
    int fd; /* c is the thread's */
    pthread_t thread;

    if (!enter_private_network())
        return;
    script_start(&script, lines);
    c = connect_to(script.port);
    fd = c->fd;
    assert_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    assert_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 60);
    assert_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
    assert_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 6);
    /* Two minutes are long for a test. */
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &one, sizeof(one));
    ck_assert_int_eq(pthread_create(&thread, NULL, wait_in_thread, c), 0);
    /* The WAIT has come and is acknowledged: there is nothing to repeat. */
    while (script.at < LENGTH_OF(lines) - 2 || unacknowledged(fd) > 0) {
        ck_assert_int_gt(clock_left_ms(deadline_ns), 0);
        sched_yield();
    }
    ck_assert(set_loopback(0));
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    assert_says("did not answer");
    store_client_close(c);
    script_stop(&script);
}
END_TEST

START_TEST(close_takes_null)
{
    store_client_close(NULL);
}
END_TEST

static void add_every_dialect(TCase *tc)
{
    tcase_add_test(tc, what_one_sets_another_gets);
    tcase_add_test(tc, get_appends_to_the_buffer);
    tcase_add_test(tc, keys_get_the_slash_of_pytorch);
    tcase_add_test(tc, workers_check_in_without_a_slash);
    tcase_add_test(tc, add_counts_for_all);
    tcase_add_test(tc, check_tells_whether_all_keys_exist);
    tcase_add_test(tc, get_that_times_out_leaves_the_connection_usable);
    tcase_add_test(tc, deadline_that_is_over_finds_only_what_is_there);
    tcase_add_test(tc, wait_is_released_by_another_client);
    tcase_add_test(tc, requests_stay_in_order_across_a_timeout);
    tcase_add_test(tc, race_of_timeout_and_set_never_confuses_the_connection);
    tcase_add_loop_test(
        tc, values_of_all_sizes_come_back_the_same, 0, (int)LENGTH_OF(sizes));
    tcase_add_test(tc, too_long_is_refused_before_anything_is_sent);
    tcase_add_test(tc, value_larger_than_the_buffer_is_an_error);
    tcase_add_test(tc, numbers_that_are_none_end_the_connection);
    tcase_add_test(tc, compare_set_takes_what_is_free_or_as_expected);
    tcase_add_loop_test(
        tc, compare_set_takes_values_of_all_sizes, 0, (int)LENGTH_OF(compared));
    tcase_add_test(tc, deleted_key_is_gone_when_the_call_returns);
    tcase_add_test(tc, keys_are_counted);
    tcase_add_test(tc, append_creates_and_extends);
    tcase_add_test(tc, appends_of_two_are_not_lost);
    tcase_add_test(tc, many_keys_are_set_and_fetched_together);
    tcase_add_test(tc, missing_one_of_many_changes_no_value);
    tcase_add_test(tc, sixty_four_clients_meet);
}

static TCase *add_case(Suite *suite, const char *name, void (*set_up)(void),
    void (*tear_down)(void))
{
    TCase *tc = tcase_create(name);

    tcase_set_timeout(tc, 60);
    if (set_up != NULL)
        tcase_add_checked_fixture(tc, set_up, tear_down);
    suite_add_tcase(suite, tc);
    return tc;
}

int main(void)
{
    Suite *suite = suite_create("store_client");
    TCase *tc = add_case(suite, "dialect A", setup_a, teardown);

    add_every_dialect(tc);
    tcase_add_test(tc, old_server_lacks_queues_and_lists);
    tc = add_case(suite, "dialect B", setup_b, teardown);
    add_every_dialect(tc);
    tcase_add_test(tc, old_server_lacks_queues_and_lists);
    tc = add_case(suite, "dialect C", setup_c, teardown);
    add_every_dialect(tc);
    tcase_add_test(tc, queue_gives_elements_in_order);
    tcase_add_test(tc, pop_of_an_empty_queue_times_out);
    tcase_add_test(tc, every_element_is_popped_once);
    tcase_add_test(tc, keys_are_listed_without_the_store_s_own);
    tcase_add_test(tc, long_list_of_keys_is_complete);

    tc = add_case(suite, "scripts", NULL, NULL);
    tcase_add_test(tc, server_that_lacks_queues_is_asked_once);
    tcase_add_test(tc, server_that_closes_the_question_is_not_taken_for_old);
    tcase_add_test(tc, timeout_of_a_wait_in_1_13);
    tcase_add_test(tc, timeout_that_was_too_early_in_1_13);
    tcase_add_test(tc, append_in_1_13);
    tcase_add_test(tc, timeout_of_a_wait_in_2_1);

    tc = add_case(suite, "troubles", NULL, NULL);
    tcase_add_loop_test(tc, server_in_trouble_ends_the_connection_and_no_more,
        0, (int)LENGTH_OF(troubles));
    tcase_add_loop_test(
        tc, get_from_crun_takes_one_round_trip, 0, (int)LENGTH_OF(quick));
    tcase_add_test(tc, server_that_ends_among_values_changes_none);
    tcase_add_test(tc, reply_may_come_in_pieces);
    tcase_add_test(tc, answer_that_nobody_asked_for_is_noticed);
    tcase_add_test(tc, set_notices_that_the_server_has_gone);
    tcase_add_test(tc, frozen_server_does_not_hold_a_large_set);
    tcase_add_test(tc, server_that_ends_releases_who_waits);
    tcase_add_test(tc, vanished_host_ends_a_long_wait);
    tcase_add_test(tc, close_takes_null);
    return unit_run_suite(suite);
}
