/* Texts that say where output goes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/log_spec.h"
#include "tests/unit/unit.h"

#define LEN(array) ((int)(sizeof(array) / sizeof((array)[0])))

static const struct {
    const char *text;
    int nproc;
    int rc;
    const char *streams; /* a digit for each rank */
    long long rank; /* of -ERANGE */
} specs[] = {
    {"0", 3, 0, "000", 0},
    {"1", 3, 0, "111", 0},
    {"2", 2, 0, "22", 0},
    {"3", 1, 0, "3", 0},
    {"0:3,1:1", 3, 0, "310", 0},
    {"2:2", 3, 0, "002", 0},
    {"0:1,0:2", 2, 0, "20", 0},
    {"11:3,007:1", 12, 0, "000000010003", 0},
    {"0:0", 1, 0, "0", 0},
    {"4", 4, -EINVAL, NULL, 0},
    {"10", 4, -EINVAL, NULL, 0},
    {"", 4, -EINVAL, NULL, 0},
    {"-1", 4, -EINVAL, NULL, 0},
    {" 1", 4, -EINVAL, NULL, 0},
    {"1 ", 4, -EINVAL, NULL, 0},
    {"x", 4, -EINVAL, NULL, 0},
    {"0:4", 4, -EINVAL, NULL, 0},
    {"0:", 4, -EINVAL, NULL, 0},
    {":1", 4, -EINVAL, NULL, 0},
    {"0:1,", 4, -EINVAL, NULL, 0},
    {"0:1,,1:1", 4, -EINVAL, NULL, 0},
    {"0:1;1:1", 4, -EINVAL, NULL, 0},
    {"0:11", 4, -EINVAL, NULL, 0},
    {"0:1, 1:1", 4, -EINVAL, NULL, 0},
    {"4:1", 4, -ERANGE, NULL, 4},
    {"0:1,10:1", 4, -ERANGE, NULL, 10},
    {"99999999999999999999:1", 4, -ERANGE, NULL, 0x7fffffffffffffff},
};

START_TEST(streams)
{
    unsigned char *out = NULL;
    long long rank = 0;
    int rc;

    rc = log_spec_streams(specs[_i].text, specs[_i].nproc, &out, &rank);
    ck_assert_int_eq(rc, specs[_i].rc);
    if (rc == -ERANGE)
        ck_assert(rank == specs[_i].rank);
    for (int i = 0; rc == 0 && i < specs[_i].nproc; i++)
        ck_assert_int_eq(out[i], specs[_i].streams[i] - '0');
    free(out);
}
END_TEST

static const struct {
    const char *text;
    int rc;
    const char *shown; /* of four */
} lists[] = {
    {"0", 0, "1000"},
    {"0,2", 0, "1010"},
    {" 3 , 1 ", 0, "0101"},
    {"2,2", 0, "0010"},
    {"", -EINVAL, NULL},
    {",", -EINVAL, NULL},
    {"1,", -EINVAL, NULL},
    {"1 2", -EINVAL, NULL},
    {"-1", -EINVAL, NULL},
    {"0-2", -EINVAL, NULL},
    {"a", -EINVAL, NULL},
    {"4", -ERANGE, NULL},
    {"0,99999999999999999999", -ERANGE, NULL},
};

START_TEST(ranks)
{
    bool *out = NULL;
    long long rank = 0;
    int rc;

    rc = log_spec_ranks(lists[_i].text, 4, &out, &rank);
    ck_assert_int_eq(rc, lists[_i].rc);
    for (int i = 0; rc == 0 && i < 4; i++)
        ck_assert_int_eq(out[i], lists[_i].shown[i] - '0');
    free(out);
}
END_TEST

static const struct {
    const char *text;
    const char *needles[4];
} filters[] = {
    {"a", {"a"}},
    {"a,b c", {"a", "b c"}},
    {"a,,b", {"a,b"}},
    {"a,,,b", {"a,", "b"}},
    {",,", {","}},
    {",,,,", {",,"}},
    {"x,", {"x"}},
    {",x", {"x"}},
    {",", {NULL}},
    {"", {NULL}},
};

START_TEST(needles)
{
    const char *const *out = NULL;
    int i;

    ck_assert_int_eq(log_spec_needles(filters[_i].text, &out), 0);
    if (filters[_i].needles[0] == NULL) {
        ck_assert_ptr_null(out);
        return;
    }
    for (i = 0; filters[_i].needles[i] != NULL; i++)
        ck_assert_str_eq(out[i], filters[_i].needles[i]);
    ck_assert_ptr_null(out[i]);
    free((void *)out);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("log_spec");

    tcase_add_loop_test(t, streams, 0, LEN(specs));
    tcase_add_loop_test(t, ranks, 0, LEN(lists));
    tcase_add_loop_test(t, needles, 0, LEN(filters));
    return unit_run("log_spec", t);
}
