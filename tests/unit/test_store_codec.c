/* The wire format: recorded requests and replies, every split, limits,
 * garbage. */
#include "rendezvous/store_codec.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>

#include "test_store.h"
#include "unit.h"

static const struct store_limits limits = {.key_len = 8192,
    .value_len = (size_t)1 << 20,
    .list_count = 131072,
    .memory = (size_t)16 << 20};

/* Requests as real PyTorch clients send them, and some edge cases. */
static const struct {
    enum store_dialect dialect;
    enum store_op op;
    const char *hex;
    const char *key, *expected, *value;
    int64_t number;
    uint32_t word;
    size_t list_count;
    const char *items[4];
} vectors[] = {
    {.dialect = STORE_DIALECT_C,
        .op = STORE_OP_VALIDATE,
        .hex = GREETING,
        .word = STORE_MAGIC},
    {.dialect = STORE_DIALECT_C,
        .op = STORE_OP_PING,
        .hex = "0d 39300000",
        .word = 12345},
    {.dialect = STORE_DIALECT_C,
        .op = STORE_OP_ADD,
        .hex = "04 0500000000000000 696e69742f 0100000000000000",
        .key = "init/",
        .number = 1},
    {.dialect = STORE_DIALECT_C,
        .op = STORE_OP_ADD,
        .hex = "04 0200000000000000 2f6e feffffffffffffff",
        .key = "/n",
        .number = -2},
    {.dialect = STORE_DIALECT_C,
        .op = STORE_OP_SET,
        .hex = "01 0200000000000000 2f61 0100000000000000 78",
        .key = "/a",
        .value = "x"},
    {.dialect = STORE_DIALECT_C,
        .op = STORE_OP_SET,
        .hex = "01 0000000000000000 0000000000000000"},
    {.dialect = STORE_DIALECT_C,
        .op = STORE_OP_WAIT,
        .hex = "06 0100000000000000 0200000000000000 2f61",
        .list_count = 1,
        .items = {"/a"}},
    {.dialect = STORE_DIALECT_C,
        .op = STORE_OP_WAIT,
        .hex = "06 0000000000000000"},
    {.dialect = STORE_DIALECT_C,
        .op = STORE_OP_GET,
        .hex = "03 0200000000000000 2f61",
        .key = "/a"},
    {.dialect = STORE_DIALECT_C,
        .op = STORE_OP_COMPARE_SET,
        .hex = "02 0400000000000000 2f636173 0000000000000000 "
               "0300000000000000 6e6577",
        .key = "/cas",
        .value = "new"},
    {.dialect = STORE_DIALECT_C,
        .op = STORE_OP_COMPARE_SET,
        .hex = "02 0100000000000000 6b 0200000000000000 6f6c "
               "0100000000000000 6e",
        .key = "k",
        .expected = "ol",
        .value = "n"},
    {.dialect = STORE_DIALECT_C,
        .op = STORE_OP_CHECK,
        .hex = "05 0200000000000000 0200000000000000 2f61 "
               "0500000000000000 2f6e6f7065",
        .list_count = 2,
        .items = {"/a", "/nope"}},
    {.dialect = STORE_DIALECT_C, .op = STORE_OP_GETNUMKEYS, .hex = "07"},
    {.dialect = STORE_DIALECT_C,
        .op = STORE_OP_DELETE_KEY,
        .hex = "08 0200000000000000 2f61",
        .key = "/a"},
    {.dialect = STORE_DIALECT_C, .op = STORE_OP_CANCEL_WAIT, .hex = "0c"},
    {.dialect = STORE_DIALECT_C,
        .op = STORE_OP_APPEND,
        .hex = "09 0300000000000000 2f6170 0100000000000000 31",
        .key = "/ap",
        .value = "1"},
    {.dialect = STORE_DIALECT_C,
        .op = STORE_OP_MULTI_SET,
        .hex =
            "0b 0200000000000000 0300000000000000 2f6d31 0100000000000000 31 "
            "0300000000000000 2f6d32 0100000000000000 32",
        .list_count = 2,
        .items = {"/m1", "1", "/m2", "2"}},
    {.dialect = STORE_DIALECT_C,
        .op = STORE_OP_MULTI_GET,
        .hex = "0a 0200000000000000 0300000000000000 2f6d31 0300000000000000 "
               "2f6d32",
        .list_count = 2,
        .items = {"/m1", "/m2"}},
    {.dialect = STORE_DIALECT_C,
        .op = STORE_OP_QUEUE_PUSH,
        .hex = "0e 0200000000000000 2f71 0100000000000000 78",
        .key = "/q",
        .value = "x"},
    {.dialect = STORE_DIALECT_C,
        .op = STORE_OP_QUEUE_POP,
        .hex = "0f 0200000000000000 2f71",
        .key = "/q"},
    {.dialect = STORE_DIALECT_C,
        .op = STORE_OP_QUEUE_LEN,
        .hex = "10 0200000000000000 2f71",
        .key = "/q"},
    {.dialect = STORE_DIALECT_C, .op = STORE_OP_LIST_KEYS, .hex = "11"},
    {.dialect = STORE_DIALECT_C,
        .op = STORE_OP_BARRIER,
        .hex = "12 0400000000000000 2f626172 0100000000000000",
        .key = "/bar",
        .number = 1},
    {.dialect = STORE_DIALECT_A,
        .op = STORE_OP_SET,
        .hex = "00 0200000000000000 2f61 0100000000000000 78",
        .key = "/a",
        .value = "x"},
    {.dialect = STORE_DIALECT_A, .op = STORE_OP_GETNUMKEYS, .hex = "06"},
    {.dialect = STORE_DIALECT_A,
        .op = STORE_OP_WATCH_KEY,
        .hex = "07 0200000000000000 2f61",
        .key = "/a"},
    {.dialect = STORE_DIALECT_A,
        .op = STORE_OP_DELETE_KEY,
        .hex = "08 0200000000000000 2f61",
        .key = "/a"},
    {.dialect = STORE_DIALECT_B,
        .op = STORE_OP_DELETE_KEY,
        .hex = "07 0200000000000000 2f61",
        .key = "/a"},
    {.dialect = STORE_DIALECT_B, .op = STORE_OP_CANCEL_WAIT, .hex = "0b"},
};

#define NVECTORS ((int)LENGTH_OF(vectors))

static const char *or_empty(const char *text)
{
    return text != NULL ? text : "";
}

START_TEST(recorded_request_is_parsed)
{
    struct buf b = from_hex(vectors[_i].hex);
    struct store_parser p = {0};
    struct store_request req;
    struct store_bytes item;
    size_t used, i = 0;
    struct err e;

    ck_assert_int_eq(store_parse(&p, vectors[_i].dialect, &limits,
                         buf_bytes(&b), b.len, &req, &used, &e),
        1);
    ck_assert_uint_eq(used, b.len);
    ck_assert_int_eq(req.op, vectors[_i].op);
    assert_bytes(req.key, or_empty(vectors[_i].key));
    assert_bytes(req.expected, or_empty(vectors[_i].expected));
    assert_bytes(req.value, or_empty(vectors[_i].value));
    ck_assert_int_eq(req.number, vectors[_i].number);
    ck_assert_uint_eq(req.word, vectors[_i].word);
    ck_assert_uint_eq(req.list_count, vectors[_i].list_count);
    for (; store_list_next(&req.list, &item); i++)
        assert_bytes(item, or_empty(vectors[_i].items[i]));
    ck_assert(
        i == LENGTH_OF(vectors[_i].items) || vectors[_i].items[i] == NULL);
    buf_fini(&b);
}
END_TEST

START_TEST(encoding_gives_the_recorded_bytes_back)
{
    struct buf b = from_hex(vectors[_i].hex);
    struct buf again = from_hex("");
    struct store_parser p = {0};
    struct store_request req;
    size_t used;
    struct err e;

    ck_assert_int_eq(store_parse(&p, vectors[_i].dialect, &limits,
                         buf_bytes(&b), b.len, &req, &used, &e),
        1);
    ck_assert_int_eq(store_encode(&again, vectors[_i].dialect, &req), 0);
    assert_is_hex(buf_bytes(&again), again.len, vectors[_i].hex);
    buf_fini(&b);
    buf_fini(&again);
}
END_TEST

START_TEST(request_arriving_byte_by_byte_is_parsed_at_its_last_byte)
{
    struct buf b = from_hex(vectors[_i].hex);
    struct store_parser p = {0};
    struct store_request req;
    size_t used;
    struct err e;

    for (size_t len = 0; len < b.len; len++)
        ck_assert_int_eq(store_parse(&p, vectors[_i].dialect, &limits,
                             buf_bytes(&b), len, &req, &used, &e),
            0);
    ck_assert_int_eq(store_parse(&p, vectors[_i].dialect, &limits,
                         buf_bytes(&b), b.len, &req, &used, &e),
        1);
    ck_assert_uint_eq(used, b.len);
    buf_fini(&b);
}
END_TEST

START_TEST(what_follows_a_request_is_left_alone)
{
    struct buf b = from_hex(vectors[_i].hex);
    struct store_parser p = {0};
    size_t used, first = b.len;
    struct store_request req;
    struct err e;

    put_hex(&b, vectors[_i].hex);
    put_hex(&b, "ff ff");
    ck_assert_int_eq(store_parse(&p, vectors[_i].dialect, &limits,
                         buf_bytes(&b), b.len, &req, &used, &e),
        1);
    ck_assert_uint_eq(used, first);
    ck_assert_uint_eq(p.pos, 0);
    ck_assert_int_eq(store_parse(&p, vectors[_i].dialect, &limits,
                         buf_bytes(&b) + used, b.len - used, &req, &used, &e),
        1);
    ck_assert_int_eq(req.op, vectors[_i].op);
    buf_fini(&b);
}
END_TEST

/* Refused as soon as the length is there, long before what it announces. */
static const struct {
    enum store_dialect dialect;
    const char *hex;
    int rc;
} bad[] = {
    {STORE_DIALECT_A, "09", -EPROTO},
    {STORE_DIALECT_A, "0b", -EPROTO},
    {STORE_DIALECT_B, "0c", -EPROTO},
    {STORE_DIALECT_C, "13", -EPROTO},
    {STORE_DIALECT_C, "ff", -EPROTO},
    {STORE_DIALECT_C, "00 cef7853d", -EPROTO},
    {STORE_DIALECT_A, "00 cef7853c 00000000", -EMSGSIZE}, /* a greeting */
    {STORE_DIALECT_C, "01 0120000000000000", -EMSGSIZE}, /* 8193 bytes */
    {STORE_DIALECT_C, "01 ffffffffffffff7f", -EMSGSIZE},
    {STORE_DIALECT_C, "01 ffffffffffffffff", -EMSGSIZE},
    /* a value of 1 MiB + 1 */
    {STORE_DIALECT_C, "01 0100000000000000 6b 0100100000000000", -EMSGSIZE},
    {STORE_DIALECT_C, "01 0100000000000000 6b 0000000000000080", -EMSGSIZE},
    {STORE_DIALECT_C,
        "02 0100000000000000 6b 0000000000000000 ffffffffffffff7f", -EMSGSIZE},
    {STORE_DIALECT_C, "06 0100020000000000", -EMSGSIZE}, /* 131073 keys */
    {STORE_DIALECT_C, "0b ffffffffffffffff", -EMSGSIZE},
    {STORE_DIALECT_C, "06 0100000000000000 ffffffffffffff7f", -EMSGSIZE},
    {STORE_DIALECT_C,
        "0b 0100000000000000 0100000000000000 6b ffffffffffffff7f", -EMSGSIZE},
};

START_TEST(over_limit_or_unknown_is_refused_with_a_reason)
{
    struct buf b = from_hex(bad[_i].hex);
    struct store_parser p = {0};
    struct store_request req;
    struct err e = {0};
    size_t used;

    ck_assert_int_eq(store_parse(&p, bad[_i].dialect, &limits, buf_bytes(&b),
                         b.len, &req, &used, &e),
        bad[_i].rc);
    ck_assert_int_eq(e.rc, bad[_i].rc);
    ck_assert_str_ne(e.msg, "");
    buf_fini(&b);
}
END_TEST

START_TEST(largest_key_and_longest_list_are_accepted)
{
    struct buf b = from_hex("03 0020000000000000");
    struct store_parser p = {0};
    struct store_request req;
    size_t used;
    struct err e;

    memset(buf_reserve(&b, limits.key_len), 'k', limits.key_len);
    buf_added(&b, limits.key_len);
    ck_assert_int_eq(store_parse(&p, STORE_DIALECT_C, &limits, buf_bytes(&b),
                         b.len, &req, &used, &e),
        1);
    ck_assert_uint_eq(req.key.len, limits.key_len);
    buf_fini(&b);

    put_hex(&b, "06 0000020000000000");
    for (size_t i = 0; i < limits.list_count; i++)
        ck_assert_int_eq(store_put_bytes(&b, text_bytes("key")), 0);
    ck_assert_int_eq(store_parse(&p, STORE_DIALECT_C, &limits, buf_bytes(&b),
                         b.len, &req, &used, &e),
        1);
    ck_assert_uint_eq(req.list_count, limits.list_count);
    buf_fini(&b);
}
END_TEST

/* Values that are allowed one by one must not add up without bound; not even
 * where the bound falls into a length. */
START_TEST(request_as_a_whole_is_bounded)
{
    size_t max = store_limits_request(&limits);
    struct store_parser p = {0};
    struct store_request req;
    size_t used, len = 9;
    char *data = calloc(1, max + 64);
    struct err e;
    int rc = 0;

    data[0] = 0x0b; /* MULTI_SET of 1000 pairs, which fill all but _i bytes */
    data[1] = 0xe8;
    data[2] = 0x03;
    while (rc == 0) {
        size_t end = max - (size_t)_i;
        size_t left = end > len ? end - len : 0;
        uint64_t n;

        ck_assert_uint_le(len, max);
        if (p.pos > 9 && p.items_left % 2 == 1 && left >= 8)
            n = htole64(
                left - 8 < limits.value_len ? left - 8 : limits.value_len);
        else
            n = 0; /* a key, or a value that does not fit any more */
        memcpy(data + len, &n, sizeof(n));
        len += sizeof(n) + le64toh(n);
        rc = store_parse(
            &p, STORE_DIALECT_C, &limits, data, len, &req, &used, &e);
    }
    ck_assert_int_eq(rc, -EMSGSIZE);
    ck_assert_uint_le(len, max + 8);
    free(data);
}
END_TEST

/* Parsing again with more bytes starts where it stopped, also in a list. */
START_TEST(parsing_resumes_where_it_stopped)
{
    struct buf b = from_hex("06 0300000000000000 0100000000000000 61 "
                            "0100000000000000 62 0100000000000000 63");
    struct store_parser p = {0};
    struct store_request req;
    size_t used;
    struct err e;

    ck_assert_int_eq(store_parse(&p, STORE_DIALECT_C, &limits, buf_bytes(&b),
                         9 + 9 + 9, &req, &used, &e),
        0);
    ck_assert_uint_eq(p.pos, 9 + 9 + 9);
    ck_assert_uint_eq(p.items_left, 1);
    ck_assert_int_eq(store_parse(&p, STORE_DIALECT_C, &limits, buf_bytes(&b),
                         b.len, &req, &used, &e),
        1);
    ck_assert_uint_eq(req.list_count, 3);
    buf_fini(&b);
}
END_TEST

START_TEST(failed_encoding_leaves_nothing_behind)
{
    const struct store_request req = {
        .op = STORE_OP_SET, .key = text_bytes("key"), .value = {"value", 5}};
    struct buf out;

    buf_init(&out, 20);
    ck_assert_int_eq(store_put_u8(&out, 7), 0);
    ck_assert_int_eq(store_encode(&out, STORE_DIALECT_C, &req), -ENOBUFS);
    ck_assert_uint_eq(out.len, 1);
    buf_fini(&out);
}
END_TEST

/* The outcome of a stream must not depend on how it is cut into pieces. */
START_TEST(random_bytes_have_the_same_outcome_in_any_pieces)
{
    unsigned seed = 1;
    char data[64];

    for (int round = 0; round < 20000; round++) {
        struct store_parser whole = {0}, pieces = {0};
        struct store_request a, b;
        size_t used_a = 0, used_b = 0, len = 0;
        int rc_a, rc_b;
        struct err e;

        for (size_t i = 0; i < sizeof(data); i++)
            data[i] = rand_r(&seed) % 4 == 0 ? (char)(rand_r(&seed) % 16) : 0;
        rc_a = store_parse(&whole, STORE_DIALECT_C, &limits, data, sizeof(data),
            &a, &used_a, &e);
        do {
            len += 1 + (size_t)rand_r(&seed) % 8;
            if (len > sizeof(data))
                len = sizeof(data);
            rc_b = store_parse(
                &pieces, STORE_DIALECT_C, &limits, data, len, &b, &used_b, &e);
        } while (rc_b == 0 && len < sizeof(data));
        ck_assert_int_eq(rc_a, rc_b);
        ck_assert_uint_eq(used_a, used_b);
    }
}
END_TEST

START_TEST(head_of_a_request_lacks_only_the_value)
{
    struct buf whole = from_hex(vectors[_i].hex), head = from_hex("");
    struct store_parser p = {0};
    struct store_request req;
    size_t used;
    struct err e;

    ck_assert_int_eq(store_parse(&p, vectors[_i].dialect, &limits,
                         buf_bytes(&whole), whole.len, &req, &used, &e),
        1);
    ck_assert_int_eq(store_encode_head(&head, vectors[_i].dialect, &req), 0);
    ck_assert_uint_eq(head.len + req.value.len, whole.len);
    ck_assert_mem_eq(buf_bytes(&head), buf_bytes(&whole), head.len);
    buf_fini(&whole);
    buf_fini(&head);
}
END_TEST

START_TEST(parser_says_how_much_it_needs)
{
    static const struct {
        size_t len, need;
    } steps[] = {{0, 1}, {1, 9}, {8, 9}, {9, 11}, {10, 11}, {11, 19}, {18, 19},
        {19, 1019}, {20, 1019}, {1018, 1019}};
    struct buf b = from_hex("01 0200000000000000 2f61 e803000000000000");
    struct store_parser p = {0};
    struct store_request req;
    size_t used;
    struct err e;

    memset(buf_reserve(&b, 1000), 0, 1000);
    for (size_t i = 0; i < LENGTH_OF(steps); i++) {
        ck_assert_int_eq(store_parse(&p, STORE_DIALECT_C, &limits,
                             buf_bytes(&b), steps[i].len, &req, &used, &e),
            0);
        ck_assert_uint_eq(p.need, steps[i].need);
    }
    ck_assert_int_eq(store_parse(&p, STORE_DIALECT_C, &limits, buf_bytes(&b),
                         1019, &req, &used, &e),
        1);
    buf_fini(&b);
}
END_TEST

START_TEST(operation_that_a_dialect_lacks_is_not_encoded)
{
    struct store_request req = {.op = STORE_OP_APPEND};
    struct buf out = from_hex("");

    ck_assert_int_eq(store_encode(&out, STORE_DIALECT_A, &req), -EOPNOTSUPP);
    req.op = STORE_OP_WATCH_KEY;
    ck_assert_int_eq(store_encode(&out, STORE_DIALECT_C, &req), -EOPNOTSUPP);
    ck_assert_uint_eq(out.len, 0);
}
END_TEST

/* The numbers that PyTorch gives them, and the way back from each byte. */
START_TEST(opcodes_of_the_dialects)
{
    static const enum store_op a[] = {STORE_OP_SET, STORE_OP_COMPARE_SET,
        STORE_OP_GET, STORE_OP_ADD, STORE_OP_CHECK, STORE_OP_WAIT,
        STORE_OP_GETNUMKEYS, STORE_OP_WATCH_KEY, STORE_OP_DELETE_KEY};
    static const enum store_op b[] = {STORE_OP_SET, STORE_OP_COMPARE_SET,
        STORE_OP_GET, STORE_OP_ADD, STORE_OP_CHECK, STORE_OP_WAIT,
        STORE_OP_GETNUMKEYS, STORE_OP_DELETE_KEY, STORE_OP_APPEND,
        STORE_OP_MULTI_GET, STORE_OP_MULTI_SET, STORE_OP_CANCEL_WAIT};
    static const enum store_op c[] = {STORE_OP_VALIDATE, STORE_OP_SET,
        STORE_OP_COMPARE_SET, STORE_OP_GET, STORE_OP_ADD, STORE_OP_CHECK,
        STORE_OP_WAIT, STORE_OP_GETNUMKEYS, STORE_OP_DELETE_KEY,
        STORE_OP_APPEND, STORE_OP_MULTI_GET, STORE_OP_MULTI_SET,
        STORE_OP_CANCEL_WAIT, STORE_OP_PING, STORE_OP_QUEUE_PUSH,
        STORE_OP_QUEUE_POP, STORE_OP_QUEUE_LEN, STORE_OP_LIST_KEYS,
        STORE_OP_BARRIER};
    static const struct {
        const enum store_op *ops;
        int n;
    } all[STORE_DIALECT_COUNT] = {
        {a, LENGTH_OF(a)}, {b, LENGTH_OF(b)}, {c, LENGTH_OF(c)}};
    enum store_dialect dialect = (enum store_dialect)_i;

    for (int code = 0; code < 256; code++) {
        int op = store_op_of(dialect, (uint8_t)code);

        if (code >= all[_i].n) {
            ck_assert_int_eq(op, -1);
            continue;
        }
        ck_assert_int_eq(op, all[_i].ops[code]);
        ck_assert_int_eq(store_opcode(dialect, all[_i].ops[code]), code);
    }
}
END_TEST

START_TEST(names_of_operations)
{
    ck_assert_str_eq(store_op_name(STORE_OP_COMPARE_SET), "COMPARE_SET");
    ck_assert_str_eq(store_op_name(STORE_OP_COUNT), "?");
    ck_assert_str_eq(store_op_name(255), "?");
}
END_TEST

/* --- Replies -------------------------------------------------------------- */

static const struct {
    enum store_op op;
    const char *hex;
    int rc; /* 1: a reply */
    size_t nkeys;
    int64_t number; /* of whatever width */
    const char *value;
    size_t list_count;
    const char *items[3];
} replies[] = {
    {STORE_OP_SET, "", .rc = 1},
    {STORE_OP_GET, "0500000000000000 76616c7565", .rc = 1, .value = "value"},
    {STORE_OP_GET, "0000000000000000", .rc = 1},
    {STORE_OP_GET, "0100100000000000", .rc = -EMSGSIZE}, /* 1 MiB + 1 */
    {STORE_OP_GET, "ffffffffffffffff", .rc = -EMSGSIZE},
    {STORE_OP_COMPARE_SET, "0100000000000000 76", .rc = 1, .value = "v"},
    {STORE_OP_ADD, "feffffffffffffff", .rc = 1, .number = -2},
    {STORE_OP_CHECK, "00", .rc = 1},
    {STORE_OP_CHECK, "01", .rc = 1, .number = 1},
    {STORE_OP_CHECK, "02", .rc = -EPROTO},
    {STORE_OP_WAIT, "00", .rc = 1},
    {STORE_OP_WAIT, "01", .rc = -EPROTO},
    {STORE_OP_WAIT, "48", .rc = -EPROTO}, /* HTTP */
    {STORE_OP_BARRIER, "00", .rc = 1},
    {STORE_OP_BARRIER, "03", .rc = -EPROTO},
    {STORE_OP_CANCEL_WAIT, "00", .rc = 1},
    {STORE_OP_CANCEL_WAIT, "01", .rc = 1, .number = 1},
    {STORE_OP_CANCEL_WAIT, "02", .rc = -EPROTO},
    {STORE_OP_WATCH_KEY, "03", .rc = 1, .number = 3},
    {STORE_OP_WATCH_KEY, "00", .rc = -EPROTO},
    {STORE_OP_GETNUMKEYS, "0700000000000000", .rc = 1, .number = 7},
    {STORE_OP_GETNUMKEYS, "ffffffffffffffff", .rc = -EPROTO},
    {STORE_OP_DELETE_KEY, "0100000000000000", .rc = 1, .number = 1},
    {STORE_OP_DELETE_KEY, "0200000000000000", .rc = -EPROTO},
    {STORE_OP_PING, "39300000", .rc = 1, .number = 12345},
    {STORE_OP_MULTI_GET, "", .rc = 1},
    {STORE_OP_MULTI_GET, "0100000000000000 61 0000000000000000", .rc = 1,
        .nkeys = 2, .list_count = 2, .items = {"a", ""}},
    {STORE_OP_QUEUE_LEN, "0700000000000000", .rc = 1, .number = 7},
    {STORE_OP_QUEUE_LEN, "f9ffffffffffffff", .rc = -EPROTO},
    {STORE_OP_QUEUE_POP, "0000000000000000", .rc = 1},
    {STORE_OP_QUEUE_POP, "0200000000000000 0100000000000000 78", .rc = 1,
        .number = 2, .value = "x"},
    {STORE_OP_QUEUE_POP, "ffffffffffffffff", .rc = -EPROTO},
    {STORE_OP_LIST_KEYS, "0000000000000000", .rc = 1},
    {STORE_OP_LIST_KEYS,
        "0200000000000000 0200000000000000 2f61 0500000000000000 696e69742f",
        .rc = 1, .list_count = 2, .items = {"/a", "init/"}},
    {STORE_OP_LIST_KEYS, "ffffffffffffffff", .rc = -EMSGSIZE},
    {STORE_OP_LIST_KEYS, "0100000000000000 ffffffffffffff7f", .rc = -EMSGSIZE},
};

/* Whole, and byte by byte: what is not enough is not taken for a reply. */
START_TEST(reply_is_parsed_or_refused)
{
    struct buf b = from_hex(replies[_i].hex);
    const char *bytes = b.len > 0 ? buf_bytes(&b) : "";
    struct store_parser p = {0}, trickle = {0};
    struct store_reply reply;
    struct store_bytes item;
    size_t used = 99, i = 0;
    struct err e = {0};
    int rc;

    rc = store_parse_reply(&p, replies[_i].op, replies[_i].nkeys, &limits,
        bytes, b.len, &reply, &used, &e);
    ck_assert_int_eq(rc, replies[_i].rc);
    if (rc < 0) {
        ck_assert_int_eq(e.rc, rc);
        ck_assert_str_ne(e.msg, "");
        buf_fini(&b);
        return;
    }
    ck_assert_uint_eq(used, b.len);
    ck_assert_int_eq(
        reply.byte + reply.word + reply.number, replies[_i].number);
    assert_bytes(reply.value, or_empty(replies[_i].value));
    ck_assert_uint_eq(reply.list_count, replies[_i].list_count);
    for (; store_list_next(&reply.list, &item); i++)
        assert_bytes(item, or_empty(replies[_i].items[i]));
    ck_assert_uint_eq(i, reply.list_count);
    for (size_t len = 0; len < b.len; len++) {
        ck_assert_int_eq(
            store_parse_reply(&trickle, replies[_i].op, replies[_i].nkeys,
                &limits, bytes, len, &reply, &used, &e),
            0);
        ck_assert_uint_gt(trickle.need, len);
    }
    ck_assert_int_eq(
        store_parse_reply(&trickle, replies[_i].op, replies[_i].nkeys, &limits,
            bytes, b.len, &reply, &used, &e),
        1);
    ck_assert(store_has_reply(replies[_i].op) || b.len == 0);
    buf_fini(&b);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_codec");
    TCase *tc = tcase_create("requests");

    tcase_add_loop_test(tc, recorded_request_is_parsed, 0, NVECTORS);
    tcase_add_loop_test(
        tc, encoding_gives_the_recorded_bytes_back, 0, NVECTORS);
    tcase_add_loop_test(tc,
        request_arriving_byte_by_byte_is_parsed_at_its_last_byte, 0, NVECTORS);
    tcase_add_loop_test(tc, what_follows_a_request_is_left_alone, 0, NVECTORS);
    tcase_add_test(tc, parsing_resumes_where_it_stopped);
    tcase_add_test(tc, failed_encoding_leaves_nothing_behind);
    tcase_add_loop_test(
        tc, head_of_a_request_lacks_only_the_value, 0, NVECTORS);
    tcase_add_test(tc, parser_says_how_much_it_needs);
    tcase_add_test(tc, operation_that_a_dialect_lacks_is_not_encoded);
    tcase_add_loop_test(tc, opcodes_of_the_dialects, 0, STORE_DIALECT_COUNT);
    tcase_add_test(tc, names_of_operations);
    suite_add_tcase(suite, tc);

    tc = tcase_create("replies");
    tcase_add_loop_test(
        tc, reply_is_parsed_or_refused, 0, (int)LENGTH_OF(replies));
    suite_add_tcase(suite, tc);

    tc = tcase_create("limits");
    tcase_add_loop_test(tc, over_limit_or_unknown_is_refused_with_a_reason, 0,
        (int)LENGTH_OF(bad));
    tcase_add_test(tc, largest_key_and_longest_list_are_accepted);
    tcase_add_loop_test(tc, request_as_a_whole_is_bounded, 0, 17);
    tcase_add_test(tc, random_bytes_have_the_same_outcome_in_any_pieces);
    suite_add_tcase(suite, tc);
    return unit_run_suite(suite);
}
