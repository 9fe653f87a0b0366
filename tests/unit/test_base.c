/* rendezvous/base: what everything else stands on. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/base/buf.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/err.h"
#include "rendezvous/base/text.h"
#include "tests/unit/unit.h"

START_TEST(buffer_is_a_bounded_queue)
{
    struct buf b;
    char ten[10] = "0123456789";

    buf_init(&b, 25);
    ck_assert_int_eq(buf_append(&b, ten, 10), 0);
    ck_assert_int_eq(buf_append(&b, ten, 10), 0);
    ck_assert_int_eq(buf_append(&b, ten, 10), -ENOBUFS);
    ck_assert_uint_eq(b.len, 20);
    buf_consume(&b, 13);
    ck_assert_int_eq(memcmp(buf_bytes(&b), "3456789", 7), 0);
    ck_assert_int_eq(buf_append(&b, ten, 10), 0);
    ck_assert_int_eq(memcmp(buf_bytes(&b), "34567890123456789", 17), 0);
    ck_assert_ptr_null(buf_reserve(&b, SIZE_MAX));
    ck_assert_int_eq(buf_append(&b, NULL, 0), 0);
    buf_consume(&b, 17);
    ck_assert_uint_eq(b.len, 0);
    buf_fini(&b);
}
END_TEST

/* A queue that is filled and emptied for ever keeps its size. */
START_TEST(buffer_reuses_what_was_consumed)
{
    struct buf b;
    char block[100] = "";

    buf_init(&b, 1000);
    for (int i = 0; i < 10000; i++) {
        ck_assert_int_eq(buf_append(&b, block, sizeof(block)), 0);
        ck_assert_int_eq(buf_append(&b, block, 50), 0);
        buf_consume(&b, 150 - (i == 0));
    }
    ck_assert_uint_le(b.cap, 1024);
    buf_fini(&b);
}
END_TEST

static const struct {
    const char *text;
    int rc;
    int64_t value;
} numbers[] = {
    {"0", 0, 0},
    {"-7", 0, -7},
    {"+12", 0, 12},
    {"9223372036854775807", 0, INT64_MAX},
    {"-9223372036854775808", 0, INT64_MIN},
    {"9223372036854775808", -ERANGE, 0},
    {"", -EINVAL, 0},
    {" 1", -EINVAL, 0},
    {"1 ", -EINVAL, 0},
    {"1.0", -EINVAL, 0},
    {"0x10", -EINVAL, 0},
    {"-", -EINVAL, 0},
    {"+-1", -EINVAL, 0},
};

START_TEST(number_is_the_whole_text_or_nothing)
{
    int64_t value = 99;

    ck_assert_int_eq(text_to_i64(numbers[_i].text, &value), numbers[_i].rc);
    ck_assert(value == (numbers[_i].rc == 0 ? numbers[_i].value : 99));
}
END_TEST

START_TEST(random_text_is_hexadecimal_and_differs)
{
    char a[33];
    char b[33];

    ck_assert_int_eq(text_random_hex(a), 0);
    ck_assert_int_eq(text_random_hex(b), 0);
    ck_assert_uint_eq(strspn(a, "0123456789abcdef"), 32);
    ck_assert_str_ne(a, b);
}
END_TEST

START_TEST(deadline_counts_down_to_zero)
{
    uint64_t deadline = clock_deadline_ns(60000);

    ck_assert_int_gt(clock_left_ms(deadline), 0);
    ck_assert_int_le(clock_left_ms(deadline), 60000);
    ck_assert_int_eq(clock_left_ms(clock_deadline_ns(-5)), 0);
    ck_assert_int_eq(clock_left_ms(0), 0);
}
END_TEST

START_TEST(error_keeps_code_and_cuts_long_text)
{
    struct err e;
    char text[2000];

    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    ck_assert_int_eq(err_set(&e, -EPERM, "%s", text), -EPERM);
    ck_assert_int_eq(e.rc, -EPERM);
    ck_assert_uint_eq(strlen(e.msg), sizeof(e.msg) - 1);
    ck_assert_int_eq(err_set(NULL, -EIO, "%s", text), -EIO);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("base");

    tcase_add_test(t, buffer_is_a_bounded_queue);
    tcase_add_test(t, buffer_reuses_what_was_consumed);
    tcase_add_loop_test(t, number_is_the_whole_text_or_nothing, 0,
        sizeof(numbers) / sizeof(numbers[0]));
    tcase_add_test(t, random_text_is_hexadecimal_and_differs);
    tcase_add_test(t, deadline_counts_down_to_zero);
    tcase_add_test(t, error_keeps_code_and_cuts_long_text);
    return unit_run("base", t);
}
