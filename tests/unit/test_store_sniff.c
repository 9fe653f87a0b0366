/* Whom the first bytes of a connection belong to. */
#include "rendezvous/store_sniff.h"

#include "test_store.h"
#include "unit.h"

#define AGENT "89 63 72 75 6e"

static const struct {
    const char *hex;
    enum store_dialect old; /* what old clients are taken for */
    enum sniff want;
    enum store_dialect dialect; /* of SNIFF_STORE */
} heads[] = {
    {"", STORE_DIALECT_A, SNIFF_MORE, 0},
    {"", STORE_DIALECT_C, SNIFF_MORE, 0},

    {GREETING, STORE_DIALECT_A, SNIFF_STORE, STORE_DIALECT_C},
    {GREETING, STORE_DIALECT_C, SNIFF_STORE, STORE_DIALECT_C},
    {GREETING "0d 01020304", STORE_DIALECT_B, SNIFF_STORE, STORE_DIALECT_C},

    {AGENT, STORE_DIALECT_A, SNIFF_AGENT, 0},
    {AGENT, STORE_DIALECT_C, SNIFF_AGENT, 0},
    {AGENT "01", STORE_DIALECT_C, SNIFF_AGENT, 0},
    {"89 63 72 75 6f", STORE_DIALECT_A, SNIFF_UNKNOWN, 0},
    {"89 50 4e 47", STORE_DIALECT_A, SNIFF_UNKNOWN, 0}, /* a picture */

    /* A SET, a GET, a DELETE_KEY of clients without a greeting. */
    {"00 0200000000000000 2f61", STORE_DIALECT_A, SNIFF_STORE, STORE_DIALECT_A},
    {"00 02", STORE_DIALECT_A, SNIFF_STORE, STORE_DIALECT_A},
    {"00 cef7853d", STORE_DIALECT_A, SNIFF_STORE, STORE_DIALECT_A},
    {"02", STORE_DIALECT_A, SNIFF_STORE, STORE_DIALECT_A},
    {"08", STORE_DIALECT_A, SNIFF_STORE, STORE_DIALECT_A},
    {"08", STORE_DIALECT_B, SNIFF_STORE, STORE_DIALECT_B},
    {"0b", STORE_DIALECT_B, SNIFF_STORE, STORE_DIALECT_B},
    {"09", STORE_DIALECT_A, SNIFF_UNKNOWN, 0},
    {"0c", STORE_DIALECT_B, SNIFF_UNKNOWN, 0},

    /* They are refused where they are not wanted. */
    {"00 02", STORE_DIALECT_C, SNIFF_UNKNOWN, 0},
    {"00 cef7853d", STORE_DIALECT_C, SNIFF_UNKNOWN, 0},
    {"02", STORE_DIALECT_C, SNIFF_UNKNOWN, 0},
    {"0d 01020304", STORE_DIALECT_C, SNIFF_UNKNOWN, 0},

    {"47 45 54 20 2f", STORE_DIALECT_A, SNIFF_UNKNOWN, 0}, /* HTTP */
    {"16 03 01", STORE_DIALECT_A, SNIFF_UNKNOWN, 0}, /* TLS */
    {"53 53 48 2d", STORE_DIALECT_A, SNIFF_UNKNOWN, 0}, /* SSH */
    {"ff", STORE_DIALECT_A, SNIFF_UNKNOWN, 0},
};

START_TEST(first_bytes_tell_the_protocol)
{
    struct buf head = from_hex(heads[_i].hex);
    enum store_dialect dialect = (enum store_dialect) - 1;
    const void *bytes = head.len > 0 ? buf_bytes(&head) : "";

    ck_assert_int_eq(
        sniff(bytes, head.len, heads[_i].old, &dialect), heads[_i].want);
    if (heads[_i].want == SNIFF_STORE)
        ck_assert_int_eq(dialect, heads[_i].dialect);
    buf_fini(&head);
}
END_TEST

/* However the bytes trickle in: no early verdict is revised, and none is
 * open after SNIFF_MAX bytes. */
START_TEST(verdict_is_final)
{
    struct buf head = from_hex(heads[_i].hex);
    enum sniff verdict = SNIFF_MORE;

    put_hex(&head, "00 00 00 00 00");
    for (size_t len = 1; len <= head.len; len++) {
        enum store_dialect dialect;
        enum sniff now = sniff(
            (const uint8_t *)buf_bytes(&head), len, heads[_i].old, &dialect);

        if (verdict != SNIFF_MORE)
            ck_assert_int_eq(now, verdict);
        if (len >= SNIFF_MAX)
            ck_assert_int_ne(now, SNIFF_MORE);
        verdict = now;
    }
    buf_fini(&head);
}
END_TEST

START_TEST(greeting_and_magic_are_awaited)
{
    static const char *const starts[] = {
        "00", "00ce", "00cef7", "00cef785", "89", "8963", "896372", "89637275"};
    enum store_dialect dialect;

    for (size_t i = 0; i < LENGTH_OF(starts); i++) {
        struct buf head = from_hex(starts[i]);

        for (int old = 0; old < STORE_DIALECT_COUNT; old++)
            ck_assert_int_eq(sniff((const uint8_t *)buf_bytes(&head), head.len,
                                 (enum store_dialect)old, &dialect),
                SNIFF_MORE);
        buf_fini(&head);
    }
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("sniff");

    tcase_add_loop_test(
        tc, first_bytes_tell_the_protocol, 0, (int)LENGTH_OF(heads));
    tcase_add_loop_test(tc, verdict_is_final, 0, (int)LENGTH_OF(heads));
    tcase_add_test(tc, greeting_and_magic_are_awaited);
    return unit_run("store_sniff", tc);
}
