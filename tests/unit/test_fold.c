/* Equal lines of several ranks become one. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/fold.h"
#include "tests/unit/unit.h"

#define MS 1000000u
#define NRANKS 70 /* more than one word of a set */
#define LINES_MAX 20000

/* What each rank wrote, and how far it came out. */
static char *wrote[NRANKS][LINES_MAX];
static size_t nwrote[NRANKS];
static size_t ncame[NRANKS];
static uint64_t now_ns;
static uint64_t oldest_ns; /* the longest wait of a line that came out */
static size_t nlines_out;
static char seen[4096]; /* "RANKS:LINE" of all lines, while there is room */

static bool is_in(const uint64_t *ranks, int rank)
{
    return (ranks[rank / 64] >> (rank % 64) & 1) != 0;
}

static void on_line(void *arg, const uint64_t *ranks, const char *line,
    size_t len, uint64_t since_ns)
{
    int nranks = *(int *)arg;
    int nin = 0;
    struct buf text;

    for (int r = 0; r < nranks; r++) {
        if (!is_in(ranks, r))
            continue;
        nin++;
        ck_assert_uint_lt(ncame[r], nwrote[r]);
        ck_assert_uint_eq(strlen(wrote[r][ncame[r]]), len);
        ck_assert_int_eq(memcmp(wrote[r][ncame[r]], line, len), 0);
        ncame[r]++;
    }
    ck_assert_int_gt(nin, 0);
    nlines_out++;
    if (now_ns - since_ns > oldest_ns)
        oldest_ns = now_ns - since_ns;
    buf_init(&text, 4096);
    ck_assert_int_eq(fold_ranks_text(ranks, nranks, 0, &text), 0);
    if (strlen(seen) + text.len + len + 2 < sizeof(seen)) {
        strncat(seen, buf_bytes(&text), text.len);
        strcat(seen, ":");
        strncat(seen, line, len);
    }
    buf_fini(&text);
}

static int nranks_now;
static struct fold *fold;

static void start(int nranks)
{
    nranks_now = nranks;
    ck_assert_int_eq(fold_create(&fold, nranks, on_line, &nranks_now), 0);
    for (int r = 0; r < nranks; r++)
        fold_join(fold, r);
}

static void tear_down(void)
{
    fold_destroy(fold);
    fold = NULL;
    for (int r = 0; r < NRANKS; r++) {
        for (size_t i = 0; i < nwrote[r]; i++)
            free(wrote[r][i]);
        nwrote[r] = ncame[r] = 0;
    }
    seen[0] = '\0';
    now_ns = oldest_ns = nlines_out = 0;
}

static void add(int rank, const char *line)
{
    ck_assert_uint_lt(nwrote[rank], LINES_MAX);
    wrote[rank][nwrote[rank]] = strdup(line);
    ck_assert_ptr_nonnull(wrote[rank][nwrote[rank]]);
    nwrote[rank]++;
    ck_assert_int_eq(fold_add(fold, rank, line, strlen(line), now_ns), 0);
}

START_TEST(equal_lines_meet)
{
    start(4);
    for (int r = 0; r < 3; r++)
        add(r, "same\n");
    ck_assert_str_eq(seen, "");
    add(3, "same\n");
    ck_assert_str_eq(seen, "0-3:same\n");
    ck_assert_uint_eq(fold_due_ns(fold, now_ns), UINT64_MAX);
}
END_TEST

START_TEST(order_of_a_rank_is_kept)
{
    start(2);
    add(0, "a\n");
    add(0, "b\n");
    add(1, "b\n");
    add(1, "a\n"); /* behind its b: not the a of rank 0 */
    fold_flush_rank(fold, 1);
    ck_assert_str_eq(seen, "0:a\n0-1:b\n1:a\n");
}
END_TEST

START_TEST(one_rank_twice_is_two_lines)
{
    start(2);
    add(0, "x\n");
    add(0, "x\n");
    add(1, "x\n");
    add(1, "x\n");
    ck_assert_str_eq(seen, "0-1:x\n0-1:x\n");
}
END_TEST

START_TEST(a_wait_is_bounded)
{
    start(2);
    add(0, "alone\n");
    ck_assert_uint_eq(fold_due_ns(fold, now_ns), FOLD_WAIT_MS * MS);
    now_ns = FOLD_WAIT_MS * MS - 1;
    fold_tick(fold, now_ns);
    ck_assert_str_eq(seen, "");
    now_ns++;
    fold_tick(fold, now_ns);
    ck_assert_str_eq(seen, "0:alone\n");
}
END_TEST

START_TEST(ranks_that_left_are_not_waited_for)
{
    start(3);
    add(0, "x\n");
    add(1, "x\n");
    fold_leave(fold, 0); /* its line stays */
    ck_assert_str_eq(seen, "");
    fold_leave(fold, 2);
    ck_assert_str_eq(seen, "0-1:x\n");
    fold_join(fold, 2);
    add(1, "y\n");
    ck_assert_str_eq(seen, "0-1:x\n");
    fold_leave(fold, 2);
    ck_assert_str_eq(seen, "0-1:x\n1:y\n");
}
END_TEST

START_TEST(ranks_to_come_are_waited_for)
{
    ck_assert_int_eq(fold_create(&fold, 3, on_line, &nranks_now), 0);
    nranks_now = 3;
    fold_hold(fold);
    fold_join(fold, 0);
    add(0, "x\n");
    fold_join(fold, 1);
    add(1, "x\n");
    fold_leave(fold, 1);
    ck_assert_str_eq(seen, "");
    fold_join(fold, 2);
    fold_unhold(fold);
    ck_assert_str_eq(seen, "");
    add(2, "x\n");
    ck_assert_str_eq(seen, "0-2:x\n");
}
END_TEST

START_TEST(memory_is_bounded)
{
    char line[1024];

    start(2);
    for (int i = 0; i < FOLD_LINES_MAX + 5; i++)
        add(0, "x\n");
    ck_assert_uint_eq(nlines_out, 5);
    memset(line, 'y', sizeof(line));
    line[sizeof(line) - 1] = '\0';
    for (int i = 0; i < 2 * FOLD_BYTES_MAX / 1024; i++)
        add(0, line);
    ck_assert_uint_ge(nwrote[0] - ncame[0], FOLD_BYTES_MAX / 1024 - 1);
    ck_assert_uint_le(nwrote[0] - ncame[0], FOLD_BYTES_MAX / 1023 + 1);
}
END_TEST

START_TEST(sets_as_text)
{
    static const struct {
        int ranks[5];
        int base;
        const char *text;
    } cases[] = {
        {{0, -1}, 0, "0"},
        {{0, 1, -1}, 0, "0-1"},
        {{0, 2, 3, 69, -1}, 0, "0,2-3,69"},
        {{63, 64, -1}, 100, "163-164"},
        {{1, 3, 5, -1}, 0, "1,3,5"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t set[2] = {0};
        struct buf out;

        for (const int *r = cases[i].ranks; *r >= 0; r++)
            set[*r / 64] |= (uint64_t)1 << (*r % 64);
        buf_init(&out, 100);
        ck_assert_int_eq(fold_ranks_text(set, NRANKS, cases[i].base, &out), 0);
        ck_assert_int_eq(buf_append(&out, "", 1), 0);
        ck_assert_str_eq(buf_bytes(&out), cases[i].text);
        buf_fini(&out);
    }
}
END_TEST

/*
 * Random writers with few different lines. on_line() checks that each rank's
 * lines come out once and in order; here, that nothing waits too long and
 * that all of it came in the end.
 */
START_TEST(random_writers)
{
    unsigned seed = (unsigned)_i + 1;
    int nranks = 1 + rand_r(&seed) % NRANKS;
    int nwords = 1 + rand_r(&seed) % 6;
    bool is_here[NRANKS];
    size_t total = 0;

    start(nranks);
    memset(is_here, true, sizeof(is_here));
    for (int step = 0; step < 5000; step++) {
        int rank = rand_r(&seed) % nranks;
        int what = rand_r(&seed) % 100;
        char line[32];

        if (what == 0 && is_here[rank]) {
            fold_leave(fold, rank);
            is_here[rank] = false;
        } else if (what == 1 && !is_here[rank]) {
            fold_join(fold, rank);
            is_here[rank] = true;
        } else if (what == 2) {
            fold_flush_rank(fold, rank);
            ck_assert_uint_eq(ncame[rank], nwrote[rank]);
        } else if (what < 10) {
            uint64_t pause = (uint64_t)rand_r(&seed) % (50 * MS);
            uint64_t due = fold_due_ns(fold, now_ns);

            now_ns += due < pause ? due : pause; /* as a timer would */
            fold_tick(fold, now_ns);
            ck_assert_uint_gt(fold_due_ns(fold, now_ns), 0);
        } else if (is_here[rank]) {
            snprintf(line, sizeof(line), "%d\n", rand_r(&seed) % nwords);
            add(rank, line);
        }
    }
    for (int r = 0; r < nranks; r++)
        if (is_here[r])
            fold_leave(fold, r);
    for (int r = 0; r < nranks; r++) {
        ck_assert_uint_eq(ncame[r], nwrote[r]);
        total += nwrote[r];
    }
    ck_assert_uint_le(oldest_ns, FOLD_WAIT_MS * MS);
    ck_assert_uint_le(nlines_out, total);
    ck_assert(nranks < 10 || nlines_out < total);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("fold");

    tcase_add_checked_fixture(t, NULL, tear_down);
    tcase_add_test(t, equal_lines_meet);
    tcase_add_test(t, order_of_a_rank_is_kept);
    tcase_add_test(t, one_rank_twice_is_two_lines);
    tcase_add_test(t, a_wait_is_bounded);
    tcase_add_test(t, ranks_that_left_are_not_waited_for);
    tcase_add_test(t, ranks_to_come_are_waited_for);
    tcase_add_test(t, memory_is_bounded);
    tcase_add_test(t, sets_as_text);
    tcase_add_loop_test(t, random_writers, 0, 40);
    return unit_run("fold", t);
}
