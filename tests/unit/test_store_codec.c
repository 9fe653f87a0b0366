/* The wire format: recorded requests, every split, limits, garbage. */
#include "rendezvous/store_codec.h"

#include <errno.h>
#include <sys/mman.h>

#include "test_store.h"
#include "unit.h"

/* Requests as real PyTorch clients send them, and some edge cases. */
static const struct {
    enum store_op op;
    const char *hex;
    const char *key, *expected, *value;
    int64_t number;
    uint32_t word;
    size_t list_count;
    const char *items[4];
} vectors[] = {
    {.op = STORE_OP_VALIDATE, .hex = GREETING, .word = STORE_MAGIC},
    {.op = STORE_OP_PING, .hex = "0d 39300000", .word = 12345},
    {.op = STORE_OP_ADD,
        .hex = "04 0500000000000000 696e69742f 0100000000000000",
        .key = "init/",
        .number = 1},
    {.op = STORE_OP_ADD,
        .hex = "04 0200000000000000 2f6e feffffffffffffff",
        .key = "/n",
        .number = -2},
    {.op = STORE_OP_SET,
        .hex = "01 0200000000000000 2f61 0100000000000000 78",
        .key = "/a",
        .value = "x"},
    {.op = STORE_OP_SET, .hex = "01 0000000000000000 0000000000000000"},
    {.op = STORE_OP_WAIT,
        .hex = "06 0100000000000000 0200000000000000 2f61",
        .list_count = 1,
        .items = {"/a"}},
    {.op = STORE_OP_WAIT, .hex = "06 0000000000000000"},
    {.op = STORE_OP_GET, .hex = "03 0200000000000000 2f61", .key = "/a"},
    {.op = STORE_OP_COMPARE_SET,
        .hex = "02 0400000000000000 2f636173 0000000000000000 "
               "0300000000000000 6e6577",
        .key = "/cas",
        .value = "new"},
    {.op = STORE_OP_COMPARE_SET,
        .hex = "02 0100000000000000 6b 0200000000000000 6f6c "
               "0100000000000000 6e",
        .key = "k",
        .expected = "ol",
        .value = "n"},
    {.op = STORE_OP_CHECK,
        .hex = "05 0200000000000000 0200000000000000 2f61 "
               "0500000000000000 2f6e6f7065",
        .list_count = 2,
        .items = {"/a", "/nope"}},
    {.op = STORE_OP_GETNUMKEYS, .hex = "07"},
    {.op = STORE_OP_DELETE_KEY, .hex = "08 0200000000000000 2f61", .key = "/a"},
    {.op = STORE_OP_CANCEL_WAIT, .hex = "0c"},
    {.op = STORE_OP_APPEND,
        .hex = "09 0300000000000000 2f6170 0100000000000000 31",
        .key = "/ap",
        .value = "1"},
    {.op = STORE_OP_MULTI_SET,
        .hex =
            "0b 0200000000000000 0300000000000000 2f6d31 0100000000000000 31 "
            "0300000000000000 2f6d32 0100000000000000 32",
        .list_count = 2,
        .items = {"/m1", "1", "/m2", "2"}},
    {.op = STORE_OP_MULTI_GET,
        .hex = "0a 0200000000000000 0300000000000000 2f6d31 0300000000000000 "
               "2f6d32",
        .list_count = 2,
        .items = {"/m1", "/m2"}},
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

    ck_assert_int_eq(store_parse(&p, buf_bytes(&b), b.len, &req, &used, &e), 1);
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

    ck_assert_int_eq(store_parse(&p, buf_bytes(&b), b.len, &req, &used, &e), 1);
    ck_assert_int_eq(store_encode(&again, &req), 0);
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
        ck_assert_int_eq(
            store_parse(&p, buf_bytes(&b), len, &req, &used, &e), 0);
    ck_assert_int_eq(store_parse(&p, buf_bytes(&b), b.len, &req, &used, &e), 1);
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

    put_hex(&b, "07 ff ff");
    ck_assert_int_eq(store_parse(&p, buf_bytes(&b), b.len, &req, &used, &e), 1);
    ck_assert_uint_eq(used, first);
    ck_assert_uint_eq(p.pos, 0);
    ck_assert_int_eq(
        store_parse(&p, buf_bytes(&b) + used, b.len - used, &req, &used, &e),
        1);
    ck_assert_int_eq(req.op, STORE_OP_GETNUMKEYS);
    buf_fini(&b);
}
END_TEST

/* Refused as soon as the length is there, long before what it announces. */
static const struct {
    const char *hex;
    int rc;
} bad[] = {
    {"0e", -EPROTO},
    {"ff", -EPROTO},
    {"00 cef7853d", -EPROTO},
    {"01 0120000000000000", -EMSGSIZE}, /* a key of 8193 bytes */
    {"01 ffffffffffffff7f", -EMSGSIZE},
    {"01 ffffffffffffffff", -EMSGSIZE},
    {"01 0100000000000000 6b 0100000800000000", -EMSGSIZE}, /* 128 MiB + 1 */
    {"01 0100000000000000 6b 0000000000000080", -EMSGSIZE},
    {"02 0100000000000000 6b 0000000000000000 ffffffffffffff7f", -EMSGSIZE},
    {"06 0100020000000000", -EMSGSIZE}, /* 131073 keys */
    {"0b ffffffffffffffff", -EMSGSIZE},
    {"06 0100000000000000 ffffffffffffff7f", -EMSGSIZE},
    {"0b 0100000000000000 0100000000000000 6b ffffffffffffff7f", -EMSGSIZE},
};

START_TEST(over_limit_or_unknown_is_refused_with_a_reason)
{
    struct buf b = from_hex(bad[_i].hex);
    struct store_parser p = {0};
    struct store_request req;
    struct err e = {0};
    size_t used;

    ck_assert_int_eq(
        store_parse(&p, buf_bytes(&b), b.len, &req, &used, &e), bad[_i].rc);
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

    memset(buf_reserve(&b, STORE_KEY_MAX), 'k', STORE_KEY_MAX);
    buf_added(&b, STORE_KEY_MAX);
    ck_assert_int_eq(store_parse(&p, buf_bytes(&b), b.len, &req, &used, &e), 1);
    ck_assert_uint_eq(req.key.len, STORE_KEY_MAX);
    buf_fini(&b);

    put_hex(&b, "06 0000020000000000");
    for (size_t i = 0; i < STORE_LIST_MAX; i++)
        ck_assert_int_eq(store_put_bytes(&b, text_bytes("key")), 0);
    ck_assert_int_eq(store_parse(&p, buf_bytes(&b), b.len, &req, &used, &e), 1);
    ck_assert_uint_eq(req.list_count, STORE_LIST_MAX);
    buf_fini(&b);
}
END_TEST

/* Values that are allowed one by one must not add up without bound. */
START_TEST(request_as_a_whole_is_bounded)
{
    size_t size = STORE_REQUEST_MAX + STORE_VALUE_MAX;
    char *data = mmap(NULL, size, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct store_parser p = {0};
    struct store_request req;
    size_t used, pos = 9;
    struct err e;

    ck_assert_ptr_ne(data, MAP_FAILED);
    data[0] = STORE_OP_MULTI_SET;
    data[1] = 3;
    for (int i = 0; i < 3; i++) { /* an empty key, a largest value */
        data[pos + 8 + 3] = 8;
        pos += 16 + STORE_VALUE_MAX;
        if (i < 2)
            ck_assert_int_eq(store_parse(&p, data, pos, &req, &used, &e), 0);
    }
    ck_assert_int_eq(store_parse(&p, data, size, &req, &used, &e), -EMSGSIZE);
    munmap(data, size);
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

    ck_assert_int_eq(
        store_parse(&p, buf_bytes(&b), 9 + 9 + 9, &req, &used, &e), 0);
    ck_assert_uint_eq(p.pos, 9 + 9 + 9);
    ck_assert_uint_eq(p.items_left, 1);
    ck_assert_int_eq(store_parse(&p, buf_bytes(&b), b.len, &req, &used, &e), 1);
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
    ck_assert_int_eq(store_encode(&out, &req), -ENOBUFS);
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
        rc_a = store_parse(&whole, data, sizeof(data), &a, &used_a, &e);
        do {
            len += 1 + (size_t)rand_r(&seed) % 8;
            if (len > sizeof(data))
                len = sizeof(data);
            rc_b = store_parse(&pieces, data, len, &b, &used_b, &e);
        } while (rc_b == 0 && len < sizeof(data));
        ck_assert_int_eq(rc_a, rc_b);
        ck_assert_uint_eq(used_a, used_b);
    }
}
END_TEST

START_TEST(names_of_operations)
{
    ck_assert_str_eq(store_op_name(STORE_OP_COMPARE_SET), "COMPARE_SET");
    ck_assert_str_eq(store_op_name(14), "?");
    ck_assert_str_eq(store_op_name(255), "?");
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
    tcase_add_test(tc, names_of_operations);
    suite_add_tcase(suite, tc);

    tc = tcase_create("limits");
    tcase_add_loop_test(tc, over_limit_or_unknown_is_refused_with_a_reason, 0,
        (int)LENGTH_OF(bad));
    tcase_add_test(tc, largest_key_and_longest_list_are_accepted);
    tcase_add_test(tc, request_as_a_whole_is_bounded);
    tcase_add_test(tc, random_bytes_have_the_same_outcome_in_any_pieces);
    suite_add_tcase(suite, tc);
    return unit_run_suite(suite);
}
