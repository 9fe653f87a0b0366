/* Sets of ranks as text. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/unit.h"
#include "worker/coll_ranks.h"

static const struct {
    const char *members; /* one character per rank, 'x' is in the set */
    const char *text;
} cases[] = {
    {"x", "rank 0"},
    {"...x", "rank 3"},
    {".xx", "ranks 1,2"},
    {"xxx", "ranks 0-2"},
    {"xxx....x", "ranks 0-2,7"},
    {"x.x.x", "ranks 0,2,4"},
    {"xx.xxxx.xx", "ranks 0,1,3-6,8,9"},
};

START_TEST(set_reads_as)
{
    bool in[16] = {false};
    int size = (int)strlen(cases[_i].members);
    char text[64];

    for (int r = 0; r < size; r++)
        in[r] = cases[_i].members[r] == 'x';
    coll_ranks_text(text, sizeof(text), in, size, NULL);
    ck_assert_str_eq(text, cases[_i].text);
}
END_TEST

/* Whatever the room, the text is whole items, or ends in dots. */
START_TEST(long_list_is_cut_at_an_item)
{
    enum { RANKS = 300 };
    bool in[RANKS];

    for (int r = 0; r < RANKS; r++)
        in[r] = r % 2 == 0;
    for (size_t cap = 32; cap < 100; cap++) {
        char text[128];
        size_t len;

        memset(text, '#', sizeof(text));
        coll_ranks_text(text, cap, in, RANKS, NULL);
        len = strlen(text);
        ck_assert_uint_lt(len, cap);
        ck_assert_int_eq(text[cap], '#');
        ck_assert_str_eq(text + len - 3, "...");
        ck_assert_int_eq(strncmp(text, "ranks 0,2,4,6,8,10,", 19), 0);
    }
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("text");

    tcase_add_loop_test(
        tc, set_reads_as, 0, (int)(sizeof(cases) / sizeof(cases[0])));
    tcase_add_test(tc, long_list_is_cut_at_an_item);
    return unit_run("coll_ranks", tc);
}
