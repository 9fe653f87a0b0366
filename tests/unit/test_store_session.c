/* One client's conversation, fed by hand: bytes in, bytes out. */
#include "rendezvous/store_session.h"

#include <errno.h>

#include "test_store.h"
#include "unit.h"

static struct store_keys keys;
static struct store_session a, b;
static int wakes; /* calls of wake_cb for b */
static int wake_rc;

static void wake_cb(struct store_session *s, int rc)
{
    ck_assert_ptr_eq(s, &b);
    wakes++;
    wake_rc = rc;
}

static int feed_hex(struct store_session *s, const char *hex, struct err *e)
{
    struct buf bytes = from_hex(hex);
    int rc = store_session_feed(s, buf_bytes(&bytes), bytes.len, e);

    buf_fini(&bytes);
    return rc;
}

static void feed(struct store_session *s, const char *hex)
{
    struct err e = {0};

    ck_assert_msg(feed_hex(s, hex, &e) == 0, "%s", e.msg);
}

/* What lies in out is exactly this; it is consumed. */
static void expect(struct store_session *s, const char *hex)
{
    assert_is_hex(buf_bytes(&s->out), s->out.len, hex);
    buf_consume(&s->out, s->out.len);
}

static void setup(void)
{
    wakes = 0;
    store_keys_init(&keys);
    store_session_init(&a, &keys, wake_cb);
    store_session_init(&b, &keys, wake_cb);
    /* Something in out, so that it always has memory to look at. */
    feed(&a, GREETING "0d 01020304");
    expect(&a, "01020304");
    feed(&b, GREETING "0d 01020304");
    expect(&b, "01020304");
}

static void teardown(void)
{
    store_session_fini(&a);
    store_session_fini(&b);
    store_keys_fini(&keys);
}

/* Requests and replies of one client's whole life. */
static const struct {
    const char *request, *reply;
} life[] = {
    {"04 0500000000000000 696e69742f 0100000000000000", "0100000000000000"},
    {"01 0200000000000000 2f61 0100000000000000 78", ""},
    {"06 0100000000000000 0200000000000000 2f61", "00"},
    {"03 0200000000000000 2f61", "0100000000000000 78"},
    {"03 0500000000000000 2f6e6f7065", "0000000000000000"},
    {"04 0200000000000000 2f6e 0300000000000000", "0300000000000000"},
    {"03 0200000000000000 2f6e", "0100000000000000 33"},
    {"02 0400000000000000 2f636173 0000000000000000 0300000000000000 6e6577",
        "0300000000000000 6e6577"},
    {"02 0100000000000000 7a 0100000000000000 65 0100000000000000 64",
        "0100000000000000 65"},
    {"05 0200000000000000 0200000000000000 2f61 0500000000000000 2f6e6f7065",
        "01"},
    {"05 0100000000000000 0200000000000000 2f61", "00"},
    {"05 0000000000000000", "00"},
    {"07", "0400000000000000"},
    {"08 0200000000000000 2f61", "0100000000000000"},
    {"08 0200000000000000 2f61", "0000000000000000"},
    {"09 0300000000000000 2f6170 0100000000000000 31", ""},
    {"09 0300000000000000 2f6170 0100000000000000 32", ""},
    {"03 0300000000000000 2f6170", "0200000000000000 3132"},
    {"0b 0200000000000000 0300000000000000 2f6d31 0100000000000000 31 "
     "0300000000000000 2f6d32 0100000000000000 32",
        ""},
    {"0a 0300000000000000 0300000000000000 2f6d31 0100000000000000 6e "
     "0300000000000000 2f6d32",
        "0100000000000000 31 0000000000000000 0100000000000000 32"},
    {"0a 0000000000000000", ""},
    {"0c", "01"},
    {"0d 39300000", "39300000"},
};

static void whole_life(struct buf *requests, struct buf *replies)
{
    *requests = from_hex("");
    *replies = from_hex("");
    for (size_t i = 0; i < LENGTH_OF(life); i++) {
        put_hex(requests, life[i].request);
        put_hex(replies, life[i].reply);
    }
}

START_TEST(each_request_gets_its_reply)
{
    for (size_t i = 0; i < LENGTH_OF(life); i++) {
        feed(&a, life[i].request);
        expect(&a, life[i].reply);
    }
}
END_TEST

START_TEST(pipelined_requests_are_answered_in_order)
{
    struct buf requests, replies;
    struct err e;

    whole_life(&requests, &replies);
    ck_assert_int_eq(
        store_session_feed(&a, buf_bytes(&requests), requests.len, &e), 0);
    ck_assert_uint_eq(a.out.len, replies.len);
    ck_assert_mem_eq(buf_bytes(&a.out), buf_bytes(&replies), replies.len);
    buf_fini(&requests);
    buf_fini(&replies);
}
END_TEST

START_TEST(replies_do_not_depend_on_where_the_stream_is_cut)
{
    struct buf requests, replies;
    struct err e;

    whole_life(&requests, &replies);
    for (size_t cut = 1; cut < requests.len; cut++) {
        store_session_fini(&a);
        store_keys_fini(&keys);
        store_session_init(&a, &keys, wake_cb);
        feed(&a, GREETING);
        ck_assert_int_eq(
            store_session_feed(&a, buf_bytes(&requests), cut, &e), 0);
        ck_assert_int_eq(store_session_feed(&a, buf_bytes(&requests) + cut,
                             requests.len - cut, &e),
            0);
        ck_assert_uint_eq(a.out.len, replies.len);
        ck_assert_mem_eq(buf_bytes(&a.out), buf_bytes(&replies), replies.len);
        ck_assert_uint_eq(a.in.len, 0);
    }
    buf_fini(&requests);
    buf_fini(&replies);
}
END_TEST

START_TEST(replies_do_not_depend_on_arriving_byte_by_byte)
{
    struct buf requests, replies;
    struct err e;

    whole_life(&requests, &replies);
    for (size_t i = 0; i < requests.len; i++)
        ck_assert_int_eq(
            store_session_feed(&a, buf_bytes(&requests) + i, 1, &e), 0);
    ck_assert_uint_eq(a.out.len, replies.len);
    ck_assert_mem_eq(buf_bytes(&a.out), buf_bytes(&replies), replies.len);
    ck_assert_ptr_null(a.in.data); /* an idle client costs no buffer */
    buf_fini(&requests);
    buf_fini(&replies);
}
END_TEST

START_TEST(pending_wait_is_answered_when_another_client_sets_the_key)
{
    feed(&b, "06 0100000000000000 0100000000000000 6b");
    expect(&b, "");
    feed(&a, "01 0100000000000000 6b 0000000000000000");
    expect(&a, "");
    expect(&b, "00");
    ck_assert_int_eq(wakes, 1);
    ck_assert_int_eq(wake_rc, 0);
}
END_TEST

START_TEST(client_is_served_while_its_wait_is_pending)
{
    feed(&a, "06 0100000000000000 0100000000000000 6b 07");
    expect(&a, "0000000000000000");
    feed(&a, "04 0100000000000000 6b 0700000000000000");
    expect(&a, "0700000000000000 00"); /* it has released itself */
    ck_assert_int_eq(wakes, 0);
}
END_TEST

START_TEST(canceled_wait_is_not_answered)
{
    feed(&b, "06 0100000000000000 0100000000000000 6b 0c");
    expect(&b, "01");
    feed(&a, "01 0100000000000000 6b 0000000000000000");
    expect(&b, "");
    feed(&b, "0c"); /* always answered, also without a wait */
    expect(&b, "01");
}
END_TEST

START_TEST(cancel_that_comes_too_late_is_answered_after_the_wait)
{
    feed(&b, "06 0100000000000000 0100000000000000 6b");
    feed(&a, "01 0100000000000000 6b 0000000000000000");
    feed(&b, "0c");
    expect(&b, "00 01");
}
END_TEST

START_TEST(ended_client_waits_no_more)
{
    feed(&b, "06 0100000000000000 0100000000000000 6b");
    store_session_fini(&b);
    feed(&a, "01 0100000000000000 6b 0000000000000000");
    ck_assert_int_eq(wakes, 0);
    store_session_init(&b, &keys, wake_cb);
}
END_TEST

START_TEST(multi_set_releases_the_waiters_of_each_key)
{
    feed(&b, "06 0200000000000000 0100000000000000 6b 0100000000000000 6c");
    feed(&a, "0b 0200000000000000 0100000000000000 6b 0000000000000000 "
             "0100000000000000 6c 0000000000000000");
    expect(&b, "00");
    ck_assert_int_eq(wakes, 1);
}
END_TEST

/* As the first bytes of a connection. */
static const char *const strangers[] = {
    "07",
    "01 0200000000000000 2f61 0100000000000000 78", /* not greeted */
    "47455420 2f204854", /* GET / HT */
    "16030100",
    "00cef7853d",
    "00000000000000000000", /* TLS, magic */
    "0d 01020304",
    "ff",
};

START_TEST(connection_without_the_greeting_is_refused)
{
    struct store_session s;
    struct err e = {0};

    store_session_init(&s, &keys, wake_cb);
    ck_assert_int_eq(feed_hex(&s, strangers[_i], &e), -EPROTO);
    ck_assert_str_ne(e.msg, "");
    ck_assert_uint_eq(s.out.len, 0);
    ck_assert_ptr_null(s.in.data);
    store_session_fini(&s);
}
END_TEST

/* After the greeting. */
static const struct {
    const char *hex;
    int rc;
} bad[] = {
    {GREETING, -EPROTO}, /* a second time */
    {"0e", -EPROTO}, {"12", -EPROTO}, {"01 ffffffffffffff7f", -EMSGSIZE},
    {"07 01 ffffffffffffff7f", -EMSGSIZE},
    {"01 0100000000000000 6b 0100000000000000 78"
     "04 0100000000000000 6b 0100000000000000",
        -EINVAL}, /* ADD to "x" */
    {"06 0100000000000000 0100000000000000 6b"
     "06 0100000000000000 0100000000000000 6c",
        -EPROTO}, /* a second WAIT */
};

START_TEST(bad_request_ends_the_connection_and_only_that)
{
    struct err e = {0};

    ck_assert_int_eq(feed_hex(&a, bad[_i].hex, &e), bad[_i].rc);
    ck_assert_int_eq(e.rc, bad[_i].rc);
    ck_assert_str_ne(e.msg, "");
    feed(&b, "0d 01020304");
    expect(&b, "01020304");
}
END_TEST

START_TEST(announced_length_takes_no_memory_before_the_bytes_come)
{
    feed(&a, "01 0100000000000000 6b 0000000800000000 ff"); /* 128 MiB */
    ck_assert_uint_lt(a.in.cap, 4096);
}
END_TEST

START_TEST(large_value_in_small_pieces_arrives_whole)
{
    const size_t size = (size_t)100 << 20, piece = (size_t)64 << 10;
    char *bytes = malloc(piece);
    struct store_bytes value;
    struct err e;

    memset(bytes, 'x', piece);
    feed(&a, "01 0100000000000000 6b 0000400600000000");
    for (size_t i = 0; i < size / piece; i++)
        ck_assert_int_eq(store_session_feed(&a, bytes, piece, &e), 0);
    ck_assert(store_keys_get(&keys, text_bytes("k"), &value));
    ck_assert_uint_eq(value.len, size);
    ck_assert_int_eq(value.data[size - 1], 'x');
    ck_assert_ptr_null(a.in.data);
    free(bytes);
}
END_TEST

START_TEST(client_that_does_not_read_is_refused_at_the_bound)
{
    struct err e = {0};
    int rc = 0, n = 0;

    feed(&a, "01 0100000000000000 6b 0000000200000000"); /* 32 MiB */
    for (int i = 0; i < 32; i++) {
        char *zeros = calloc(1, 1 << 20);

        ck_assert_int_eq(store_session_feed(&a, zeros, 1 << 20, &e), 0);
        free(zeros);
    }
    for (; rc == 0 && n < 10; n++)
        rc = feed_hex(&a, "03 0100000000000000 6b", &e);
    ck_assert_int_eq(rc, -ENOBUFS);
    ck_assert_int_eq(n, 5); /* 4 x 32 MiB fit */
    ck_assert_uint_le(a.out.len, STORE_OUTPUT_MAX);
}
END_TEST

START_TEST(waiter_that_cannot_be_answered_is_reported)
{
    feed(&b, "06 0100000000000000 0100000000000000 6b");
    b.out.max = b.out.len;
    feed(&a, "01 0100000000000000 6b 0000000000000000");
    ck_assert_int_eq(wakes, 1);
    ck_assert_int_eq(wake_rc, -ENOBUFS);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_session");
    TCase *tc = tcase_create("conversation");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, each_request_gets_its_reply);
    tcase_add_test(tc, pipelined_requests_are_answered_in_order);
    tcase_add_test(tc, replies_do_not_depend_on_where_the_stream_is_cut);
    tcase_add_test(tc, replies_do_not_depend_on_arriving_byte_by_byte);
    suite_add_tcase(suite, tc);

    tc = tcase_create("waiting");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(
        tc, pending_wait_is_answered_when_another_client_sets_the_key);
    tcase_add_test(tc, client_is_served_while_its_wait_is_pending);
    tcase_add_test(tc, canceled_wait_is_not_answered);
    tcase_add_test(tc, cancel_that_comes_too_late_is_answered_after_the_wait);
    tcase_add_test(tc, ended_client_waits_no_more);
    tcase_add_test(tc, multi_set_releases_the_waiters_of_each_key);
    tcase_add_test(tc, waiter_that_cannot_be_answered_is_reported);
    suite_add_tcase(suite, tc);

    tc = tcase_create("bounds");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, connection_without_the_greeting_is_refused, 0,
        (int)LENGTH_OF(strangers));
    tcase_add_loop_test(tc, bad_request_ends_the_connection_and_only_that, 0,
        (int)LENGTH_OF(bad));
    tcase_add_test(tc, announced_length_takes_no_memory_before_the_bytes_come);
    tcase_add_test(tc, large_value_in_small_pieces_arrives_whole);
    tcase_add_test(tc, client_that_does_not_read_is_refused_at_the_bound);
    suite_add_tcase(suite, tc);
    return unit_run_suite(suite);
}
