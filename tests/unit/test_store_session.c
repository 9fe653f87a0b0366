/* One client's conversation, fed by hand: bytes in, bytes out. */
#include "rendezvous/store_session.h"

#include <errno.h>

#include "test_store.h"
#include "unit.h"

static const struct store_limits limits = {.key_len = 8192,
    .value_len = (size_t)128 << 20,
    .list_count = 131072,
    .memory = (size_t)1 << 30};

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

    while (rc == 0 && s->is_tired)
        rc = store_session_resume(s, e);
    buf_fini(&bytes);
    return rc;
}

static void feed(struct store_session *s, const char *hex)
{
    struct err e = {0};

    ck_assert_msg(feed_hex(s, hex, &e) == 0, "%s", e.msg);
}

/* Appends the first len unsent bytes, which count as sent. */
static void take_out(struct store_session *s, size_t len, struct buf *taken)
{
    struct err e = {0};

    while (len > 0) {
        struct iovec iov[3];
        int n = store_out_iov(&s->out, iov, 3);
        size_t sum = 0;

        ck_assert_int_gt(n, 0);
        for (int i = 0; i < n && sum < len; i++) {
            size_t part =
                iov[i].iov_len < len - sum ? iov[i].iov_len : len - sum;

            ck_assert_int_eq(buf_append(taken, iov[i].iov_base, part), 0);
            sum += part;
        }
        ck_assert_msg(store_session_sent(s, sum, &e) == 0, "%s", e.msg);
        len -= sum;
    }
}

/* All that the client gets, is served further until there is no more. */
static struct buf take_all(struct store_session *s)
{
    struct buf taken = from_hex("");

    while (store_out_len(&s->out) > 0)
        take_out(s, store_out_len(&s->out), &taken);
    return taken;
}

/* What lies in out is exactly this; it is consumed. */
static void expect(struct store_session *s, const char *hex)
{
    struct buf taken = take_all(s);

    assert_is_hex(taken.len > 0 ? buf_bytes(&taken) : "", taken.len, hex);
    buf_fini(&taken);
}

static void expect_bytes(struct store_session *s, const struct buf *want)
{
    struct buf taken = take_all(s);

    ck_assert_uint_eq(taken.len, want->len);
    ck_assert_mem_eq(buf_bytes(&taken), buf_bytes(want), want->len);
    buf_fini(&taken);
}

static void init(struct store_session *s, enum store_dialect dialect)
{
    store_session_init(s, &keys, &limits, dialect, wake_cb);
}

static void setup(void)
{
    wakes = 0;
    wake_rc = 0;
    store_keys_init(&keys, &limits);
    init(&a, STORE_DIALECT_C);
    init(&b, STORE_DIALECT_C);
    feed(&a, GREETING);
    feed(&b, GREETING);
}

/* Whatever a test did: nobody's memory is still counted then. */
static void teardown(void)
{
    store_session_fini(&a);
    store_session_fini(&b);
    store_keys_fini(&keys);
    ck_assert_uint_eq(keys.budget.used, 0);
}

/* Feeds as a server does: what is there, at most 64 KiB, in place if the
 * session wants that. */
static int feed_large(
    struct store_session *s, const char *bytes, size_t len, struct err *e)
{
    int rc = 0;

    while (rc == 0 && len > 0) {
        size_t n, piece = len < 65536 ? len : 65536;
        char *space = store_session_space(s, &n);

        if (space != NULL) {
            if (n > len)
                n = len;
            memcpy(space, bytes, n);
            rc = store_session_added(s, n, e);
        } else {
            n = piece;
            rc = store_session_feed(s, bytes, n, e);
        }
        while (rc == 0 && s->is_tired)
            rc = store_session_resume(s, e);
        bytes += n;
        len -= n;
    }
    return rc;
}

/* SETs key "k" to size bytes c. */
static int try_set_large(
    struct store_session *s, size_t size, char c, struct err *e)
{
    struct buf request = from_hex("01 0100000000000000 6b");
    int rc;

    if (s->dialect != STORE_DIALECT_C)
        *(char *)buf_bytes(&request) = 0;
    ck_assert_int_eq(store_put_u64(&request, size), 0);
    memset(buf_reserve(&request, size), c, size);
    buf_added(&request, size);
    rc = feed_large(s, buf_bytes(&request), request.len, e);
    buf_fini(&request);
    return rc;
}

static void set_large(struct store_session *s, size_t size, char c)
{
    struct err e = {0};

    ck_assert_msg(try_set_large(s, size, c, &e) == 0, "%s", e.msg);
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
    {"0e 0200000000000000 2f71 0100000000000000 78", ""},
    {"0e 0200000000000000 2f71 0000000000000000", ""},
    {"10 0200000000000000 2f71", "0200000000000000"},
    {"0f 0200000000000000 2f71", "0200000000000000 0100000000000000 78"},
    {"06 0100000000000000 0200000000000000 2f71", "00"},
    {"0f 0200000000000000 2f71", "0100000000000000 0000000000000000"},
    {"0f 0200000000000000 2f71", "0000000000000000"},
    {"12 0400000000000000 2f626172 0100000000000000", "00"},
    {"03 0400000000000000 2f626172", "0100000000000000 31"},
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
    expect_bytes(&a, &replies);
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
        store_session_fini(&b);
        store_keys_fini(&keys);
        setup();
        ck_assert_int_eq(
            store_session_feed(&a, buf_bytes(&requests), cut, &e), 0);
        ck_assert_int_eq(store_session_feed(&a, buf_bytes(&requests) + cut,
                             requests.len - cut, &e),
            0);
        expect_bytes(&a, &replies);
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
    expect_bytes(&a, &replies);
    buf_fini(&requests);
    buf_fini(&replies);
}
END_TEST

START_TEST(idle_client_costs_little)
{
    feed(&a, "04 0100000000000000 6b 0700000000");
    feed(&a, "000000");
    expect(&a, "0700000000000000");
    ck_assert_ptr_null(a.in.data);
    ck_assert_ptr_null(a.out.bytes.data);
    ck_assert_ptr_null(a.out.refs);
    ck_assert_uint_eq(a.charged, 0);
    ck_assert_uint_le(sizeof(a), 512);
}
END_TEST

START_TEST(keys_are_listed)
{
    feed(&a, "11");
    expect(&a, "0000000000000000");
    feed(&a, "01 0100000000000000 6b 0000000000000000"
             "0e 0100000000000000 71 0000000000000000 11");
    expect(&a, "0100000000000000 0100000000000000 6b");
}
END_TEST

/* --- Older clients -------------------------------------------------------- */

/* The key that tells a client that this is crun's: alone, and not in fact. */
START_TEST(crun_is_recognised)
{
    feed(&a, "05 0100000000000000 0500000000000000 6372756e2f");
    expect(&a, "00");
    feed(&a, "05 0100000000000000 0500000000000000 6372756e2e");
    expect(&a, "01");
    feed(&a, "05 0200000000000000 0500000000000000 6372756e2f "
             "0500000000000000 6372756e2f");
    expect(&a, "01");
    feed(&a, "07 03 0500000000000000 6372756e2f");
    expect(&a, "0000000000000000 0000000000000000");
}
END_TEST

START_TEST(old_clients_need_no_greeting)
{
    struct store_session old;

    init(&old, STORE_DIALECT_A);
    feed(&old, "00 0100000000000000 6b 0100000000000000 78"
               "02 0100000000000000 6b 06 08 0100000000000000 6b");
    expect(&old, "0100000000000000 78 0100000000000000 0100000000000000");
    store_session_fini(&old);

    init(&old, STORE_DIALECT_B);
    feed(&old, "08 0100000000000000 6b 0100000000000000 78"
               "09 0100000000000000 0100000000000000 6b"
               "07 0100000000000000 6b 0b");
    expect(&old, "0100000000000000 78 0100000000000000 01");
    store_session_fini(&old);
}
END_TEST

START_TEST(watcher_gets_a_notice_of_each_change)
{
    init(&b, STORE_DIALECT_A);
    feed(&b, "07 0200000000000000 2f6b");
    expect(&b, "03");
    feed(&a, "01 0200000000000000 2f6b 0100000000000000 78");
    ck_assert_int_eq(wakes, 1);
    expect(&b, "01 0200000000000000 2f6b 0000000000000000"
               "0100000000000000 78");
    feed(&a, "09 0200000000000000 2f6b 0100000000000000 79"
             "08 0200000000000000 2f6b");
    expect(&a, "0100000000000000");
    expect(&b, "00 0200000000000000 2f6b 0100000000000000 78"
               "0200000000000000 7879"
               "02 0200000000000000 2f6b 0200000000000000 7879"
               "0000000000000000");
    feed(&b, "00 0200000000000000 2f6b 0000000000000000"); /* its own doing */
    expect(&b, "01 0200000000000000 2f6b 0000000000000000 0000000000000000");
}
END_TEST

/* Each change is 2 MiB: the old value and the new one. */
START_TEST(watcher_that_does_not_read_is_ended)
{
    int n = 0;

    init(&b, STORE_DIALECT_A);
    feed(&b, "07 0100000000000000 6b");
    for (; wake_rc == 0 && n < 100; n++)
        set_large(&a, 1 << 20, (char)n);
    ck_assert_int_eq(wake_rc, -ENOBUFS);
    ck_assert_int_gt(n, 4);
    ck_assert_int_lt(n, 12);
}
END_TEST

START_TEST(watcher_that_reads_gets_everything)
{
    init(&b, STORE_DIALECT_A);
    feed(&b, "07 0100000000000000 6b");
    expect(&b, "03");
    for (int i = 0; i < 100; i++) {
        struct buf notice = from_hex("");

        set_large(&a, 1 << 20, (char)i);
        ck_assert_int_eq(wake_rc, 0);
        ck_assert(b.is_stalled);
        take_out(&b, store_out_len(&b.out), &notice);
        ck_assert_int_eq(buf_bytes(&notice)[notice.len - 1], i);
        ck_assert(!b.is_stalled);
        buf_fini(&notice);
    }
    ck_assert_int_eq(wakes, 100);
}
END_TEST

/* --- Waiting -------------------------------------------------------------- */

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
    init(&b, STORE_DIALECT_C);
}
END_TEST

START_TEST(several_waits_are_answered_each_when_it_is_over)
{
    feed(&b, "06 0100000000000000 0100000000000000 6b"
             "06 0100000000000000 0100000000000000 6c"
             "06 0100000000000000 0100000000000000 6c");
    feed(&a, "01 0100000000000000 6c 0000000000000000");
    expect(&b, "00 00");
    feed(&b, "0c");
    feed(&a, "01 0100000000000000 6b 0000000000000000");
    expect(&b, "01");
}
END_TEST

START_TEST(push_ends_one_wait)
{
    feed(&a, "06 0100000000000000 0100000000000000 71");
    feed(&b, "06 0100000000000000 0100000000000000 71");
    feed(&a, "0e 0100000000000000 71 0100000000000000 78");
    expect(&a, "00");
    ck_assert_int_eq(wakes, 0);
    feed(&a, "0e 0100000000000000 71 0100000000000000 79");
    expect(&b, "00");
    feed(&b, "0f 0100000000000000 71");
    expect(&b, "0200000000000000 0100000000000000 78");
}
END_TEST

START_TEST(barrier_is_answered_when_the_last_has_come)
{
    feed(&b, "12 0100000000000000 6b 0200000000000000");
    expect(&b, "");
    feed(&a, "12 0100000000000000 6b 0200000000000000");
    expect(&a, "00");
    expect(&b, "00");
    feed(&b, "12 0100000000000000 6b 0900000000000000 0c");
    expect(&b, "01");
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

    init(&s, STORE_DIALECT_C);
    ck_assert_int_eq(feed_hex(&s, strangers[_i], &e), -EPROTO);
    ck_assert_str_ne(e.msg, "");
    ck_assert_uint_eq(store_out_len(&s.out), 0);
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
    {"13", -EPROTO}, {"ff", -EPROTO}, {"01 ffffffffffffff7f", -EMSGSIZE},
    {"07 01 ffffffffffffff7f", -EMSGSIZE},
    {"01 0100000000000000 6b 0100000000000000 78"
     "04 0100000000000000 6b 0100000000000000",
        -EINVAL}, /* ADD to "x" */
    {"01 0100000000000000 6b 0100000000000000 78"
     "12 0100000000000000 6b 0100000000000000",
        -EINVAL}, /* BARRIER at "x" */
    {"01 0200000000000000 0a1b 1300000000000000"
     "39323233333732303336383534373735383038"
     "04 0200000000000000 0a1b 0100000000000000",
        -ERANGE}, /* a key that must not reach a terminal */
};

START_TEST(bad_request_ends_the_connection_and_only_that)
{
    struct err e = {0};

    ck_assert_int_eq(feed_hex(&a, bad[_i].hex, &e), bad[_i].rc);
    ck_assert_int_eq(e.rc, bad[_i].rc);
    ck_assert_str_ne(e.msg, "");
    for (const char *c = e.msg; *c != '\0'; c++)
        ck_assert(*c >= 0x20 && *c < 0x7f);
    feed(&b, "0d 01020304");
    expect(&b, "01020304");
}
END_TEST

START_TEST(announced_length_takes_no_memory_before_the_bytes_come)
{
    feed(&a, "01 0100000000000000 6b 0000000800000000 ff"); /* 128 MiB */
    ck_assert_uint_lt(a.in.cap, 4096);
    ck_assert_uint_lt(keys.budget.used, 4096);
}
END_TEST

START_TEST(large_value_in_small_pieces_arrives_whole)
{
    const size_t size = (size_t)100 << 20, piece = (size_t)64 << 10;
    char *bytes = malloc(piece);
    struct store_blob *value;
    struct err e;

    memset(bytes, 'x', piece);
    feed(&a, "01 0100000000000000 6b 0000400600000000");
    for (size_t i = 0; i < size / piece; i++)
        ck_assert_int_eq(store_session_feed(&a, bytes, piece, &e), 0);
    value = store_keys_get(&keys, text_bytes("k"));
    ck_assert_ptr_nonnull(value);
    ck_assert_uint_eq(value->len, size);
    ck_assert_int_eq(value->data[size - 1], 'x');
    ck_assert_ptr_null(a.in.data);
    free(bytes);
}
END_TEST

static const size_t sizes[] = {1, 4095, 4096, 65535, 65536, 131000, 131054,
    131055, 131056, 262100, 1 << 20, 3000000};

/* Whatever way a value takes in and out, it is the same afterwards. */
START_TEST(value_of_any_size_is_read_back)
{
    struct buf taken;
    size_t size = sizes[_i];

    set_large(&b, size, 'y');
    set_large(&b, size, 'z');
    ck_assert_ptr_null(b.in.data);
    feed(&a, "03 0100000000000000 6b 07");
    taken = take_all(&a);
    ck_assert_uint_eq(taken.len, 8 + size + 8);
    ck_assert_uint_eq(store_get_u64(buf_bytes(&taken)), size);
    for (size_t i = 0; i < size; i++)
        if (buf_bytes(&taken)[8 + i] != 'z')
            ck_abort_msg("byte %zu is another", i);
    buf_fini(&taken);

    feed(&a, "09 0100000000000000 6b 0100000000000000 2e"
             "03 0100000000000000 6b");
    taken = take_all(&a);
    ck_assert_uint_eq(taken.len, 8 + size + 1);
    ck_assert_int_eq(buf_bytes(&taken)[8 + size], '.');
    buf_fini(&taken);
    ck_assert_uint_lt(keys.budget.used, 2 * size + 1024);
}
END_TEST

START_TEST(space_is_for_what_is_missing_of_a_large_request)
{
    struct err e;
    size_t len;
    char *space;

    ck_assert_ptr_null(store_session_space(&a, &len));
    feed(&a, "01 0100000000000000 6b 0004000000000000 78"); /* 1 KiB */
    ck_assert_ptr_null(store_session_space(&a, &len));
    feed(&b, "01 0100000000000000 6b 0000200000000000 78"); /* 2 MiB */
    space = store_session_space(&b, &len);
    ck_assert_ptr_nonnull(space);
    ck_assert_uint_eq(len, 1 << 20);
    memset(space, 'x', len);
    ck_assert_int_eq(store_session_added(&b, len, &e), 0);
    space = store_session_space(&b, &len);
    ck_assert_ptr_nonnull(space);
    ck_assert_uint_eq(len, (1 << 20) - 1); /* the last byte is the last */
    memset(space, 'x', len);
    ck_assert_int_eq(store_session_added(&b, len, &e), 0);
    ck_assert_ptr_null(store_session_space(&b, &len));
    ck_assert_uint_eq(store_keys_get(&keys, text_bytes("k"))->len, 2u << 20);
}
END_TEST

/* --- Backpressure --------------------------------------------------------- */

#define GET_K "03 0100000000000000 6b"

START_TEST(client_that_does_not_read_is_not_served_further)
{
    set_large(&b, 3 << 20, 'x');
    feed(&a, GET_K GET_K "04 0100000000000000 6e 0100000000000000");
    ck_assert(a.is_stalled);
    ck_assert_uint_eq(store_out_len(&a.out), 8 + (3 << 20));
    ck_assert_ptr_null(store_keys_get(&keys, text_bytes("n")));
    feed(&a, "07"); /* what comes now is kept */
    ck_assert_uint_eq(store_out_len(&a.out), 8 + (3 << 20));
}
END_TEST

START_TEST(stalled_client_goes_on_when_it_reads)
{
    struct buf taken = from_hex("");

    set_large(&b, 3 << 20, 'x');
    feed(&a, GET_K GET_K "04 0100000000000000 6e 0100000000000000 07");
    take_out(&a, 2 << 20, &taken);
    ck_assert(a.is_stalled);
    ck_assert_uint_eq(store_out_len(&a.out), 8 + (1 << 20));
    take_out(&a, 8, &taken); /* now only the high-water mark is left */
    ck_assert(a.is_stalled); /* for the second value */
    ck_assert_uint_eq(store_out_len(&a.out), 8 + (4 << 20));
    take_out(&a, 4 << 20, &taken);
    ck_assert(!a.is_stalled);
    expect(&a, "7878787878787878 0100000000000000 0200000000000000");
    ck_assert_ptr_null(a.in.data);
    ck_assert_uint_eq(a.charged, 0);
    buf_fini(&taken);
}
END_TEST

START_TEST(reply_keeps_the_value_that_it_was_made_of)
{
    struct buf taken;

    set_large(&b, 100000, 'x');
    feed(&a, GET_K);
    set_large(&b, 100000, 'y');
    feed(&a, GET_K "08 0100000000000000 6b");
    taken = take_all(&a);
    ck_assert_uint_eq(taken.len, 3 * 8 + 200000);
    ck_assert_int_eq(buf_bytes(&taken)[8], 'x');
    ck_assert_int_eq(buf_bytes(&taken)[8 + 100000 - 1], 'x');
    ck_assert_int_eq(buf_bytes(&taken)[8 + 100000 + 8], 'y');
    buf_fini(&taken);
}
END_TEST

START_TEST(value_that_many_read_is_in_memory_once)
{
    struct store_session readers[100];

    set_large(&b, 1 << 20, 'x');
    for (size_t i = 0; i < LENGTH_OF(readers); i++) {
        init(&readers[i], STORE_DIALECT_C);
        feed(&readers[i], GREETING GET_K);
        ck_assert_uint_eq(store_out_len(&readers[i].out), 8 + (1 << 20));
    }
    ck_assert_uint_lt(keys.budget.used, 2 << 20);
    for (size_t i = 0; i < LENGTH_OF(readers); i++)
        store_session_fini(&readers[i]);
}
END_TEST

/* --- The memory limit ----------------------------------------------------- */

/* What is executed of a buffer does not keep its memory behind a few bytes of
 * the next request. */
START_TEST(rest_behind_a_large_request_takes_little)
{
    struct buf request = from_hex("0b 0200000000000000"); /* MULTI_SET */
    static const char value[1 << 20];
    struct err e = {0};

    ck_assert_int_eq(store_put_bytes(&request, text_bytes("a")), 0);
    ck_assert_int_eq(
        store_put_bytes(&request, store_bytes(value, sizeof(value))), 0);
    ck_assert_int_eq(store_put_bytes(&request, text_bytes("b")), 0);
    ck_assert_int_eq(store_put_bytes(&request, text_bytes("")), 0);
    put_hex(&request, "0d 0102"); /* the beginning of a PING */
    ck_assert_int_eq(feed_large(&a, buf_bytes(&request), request.len, &e), 0);
    feed(&a, "03");
    ck_assert_uint_lt(a.in.cap, 8192);
    ck_assert_uint_lt(keys.buffers.used, 16384);
    feed(&a, "04");
    expect(&a, "01020304");
    buf_fini(&request);
}
END_TEST

/* Requests that are short and take long: the others come in between. */
START_TEST(client_that_makes_much_work_has_to_rest)
{
    struct buf request = from_hex("06 0050000000000000"); /* WAIT */
    struct err e = {0};
    int rests = 0;

    for (int i = 0; i < 0x5000; i++) {
        char key[16];

        snprintf(key, sizeof(key), "%d", i);
        ck_assert_int_eq(store_put_bytes(&request, text_bytes(key)), 0);
    }
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(
            store_put_u8(&request,
                (uint8_t)store_opcode(STORE_DIALECT_C, STORE_OP_LIST_KEYS)),
            0);
    ck_assert_int_eq(
        store_session_feed(&a, buf_bytes(&request), request.len, &e), 0);
    for (; a.is_tired; rests++) {
        feed(&b, "0d 01020304");
        expect(&b, "01020304");
        ck_assert_int_eq(store_session_resume(&a, &e), 0);
    }
    ck_assert_int_gt(rests, 20);
    ck_assert_uint_eq(store_out_len(&a.out), 100 * 8);
    buf_fini(&request);
}
END_TEST

START_TEST(client_over_the_memory_limit_is_ended_others_are_not)
{
    struct err e = {0};

    keys.budget.max = (size_t)3 << 20;
    set_large(&a, 1 << 20, 'x');
    ck_assert_int_eq(try_set_large(&a, 4 << 20, 'y', &e), -EDQUOT);
    ck_assert_int_eq(e.rc, -EDQUOT);
    ck_assert_ptr_nonnull(strstr(e.msg, "3145728"));
    ck_assert_uint_le(keys.budget.used, keys.budget.max);
    store_session_fini(&a);
    init(&a, STORE_DIALECT_C);
    ck_assert_uint_lt(keys.budget.used, (1 << 20) + 1024);
    feed(&b, "01 0100000000000000 6b 0100000000000000 78" GET_K);
    expect(&b, "0100000000000000 78");
}
END_TEST

/* Each value is copied, being short: the whole reply would be 16 MiB. */
START_TEST(reply_over_the_memory_limit_is_not_made)
{
    struct buf request = from_hex("0a 0080000000000000"); /* 32768 keys */
    struct err e = {0};

    set_large(&a, 511, 'x');
    for (int i = 0; i < 32768; i++)
        ck_assert_int_eq(store_put_bytes(&request, text_bytes("k")), 0);
    keys.buffers.max = (size_t)4 << 20;
    ck_assert_int_eq(
        store_session_feed(&a, buf_bytes(&request), request.len, &e), -EDQUOT);
    ck_assert_uint_le(store_out_memory(&a.out), 8 << 20);
    buf_fini(&request);
}
END_TEST

START_TEST(waiter_that_cannot_be_answered_is_reported)
{
    feed(&b, "06 0100000000000000 0100000000000000 6b");
    b.out.bytes.max = 0;
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
    tcase_add_test(tc, idle_client_costs_little);
    tcase_add_test(tc, keys_are_listed);
    tcase_add_test(tc, crun_is_recognised);
    tcase_add_test(tc, rest_behind_a_large_request_takes_little);
    tcase_add_test(tc, client_that_makes_much_work_has_to_rest);
    suite_add_tcase(suite, tc);

    tc = tcase_create("older clients");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, old_clients_need_no_greeting);
    tcase_add_test(tc, watcher_gets_a_notice_of_each_change);
    tcase_add_test(tc, watcher_that_does_not_read_is_ended);
    tcase_add_test(tc, watcher_that_reads_gets_everything);
    suite_add_tcase(suite, tc);

    tc = tcase_create("waiting");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(
        tc, pending_wait_is_answered_when_another_client_sets_the_key);
    tcase_add_test(tc, client_is_served_while_its_wait_is_pending);
    tcase_add_test(tc, canceled_wait_is_not_answered);
    tcase_add_test(tc, cancel_that_comes_too_late_is_answered_after_the_wait);
    tcase_add_test(tc, ended_client_waits_no_more);
    tcase_add_test(tc, several_waits_are_answered_each_when_it_is_over);
    tcase_add_test(tc, push_ends_one_wait);
    tcase_add_test(tc, barrier_is_answered_when_the_last_has_come);
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
    tcase_add_loop_test(
        tc, value_of_any_size_is_read_back, 0, (int)LENGTH_OF(sizes));
    tcase_add_test(tc, space_is_for_what_is_missing_of_a_large_request);
    tcase_add_test(tc, client_that_does_not_read_is_not_served_further);
    tcase_add_test(tc, stalled_client_goes_on_when_it_reads);
    tcase_add_test(tc, reply_keeps_the_value_that_it_was_made_of);
    tcase_add_test(tc, value_that_many_read_is_in_memory_once);
    tcase_add_test(tc, client_over_the_memory_limit_is_ended_others_are_not);
    tcase_add_test(tc, reply_over_the_memory_limit_is_not_made);
    suite_add_tcase(suite, tc);
    return unit_run_suite(suite);
}
