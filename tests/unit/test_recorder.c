/* The recorder: what is read is what was written, or nothing. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/recorder.h"
#include "tests/unit/unit.h"

static struct recorder *r;

static void setup(void)
{
    r = aligned_alloc(64, sizeof(*r));
    ck_assert_ptr_nonnull(r);
    memset(r, 0, sizeof(*r));
    recorder_init(r, 3);
    recorder_set_name(r->kinds, 1, "all_reduce");
    recorder_set_name(r->kinds, 2, "barrier");
    recorder_set_name(r->dtypes, 1, "float32");
}

static void teardown(void)
{
    free(r);
}

static uint64_t enter(uint64_t seq)
{
    return recorder_enter(
        r, &(struct recorder_call){
               .seq = seq, .count = 1024, .now_ns = 5, .kind = 1, .dtype = 1});
}

static void assert_last(const char *want)
{
    char text[128];

    ck_assert(recorder_last_text(r, text, sizeof(text)));
    ck_assert_str_eq(text, want);
}

START_TEST(an_empty_one_says_nothing)
{
    char text[128] = "as before";

    ck_assert(recorder_is_valid(r));
    ck_assert(!recorder_last_text(r, text, sizeof(text)));
    ck_assert_str_eq(text, "as before");
}
END_TEST

START_TEST(a_call_is_not_finished_until_it_is)
{
    uint64_t ticket = enter(17);

    assert_last("all_reduce #17 of 1024 float32, not finished");
    recorder_finish(r, ticket, 0, 9);
    assert_last("all_reduce #17 of 1024 float32, finished");
    recorder_finish(r, enter(18), -8, 9);
    assert_last("all_reduce #18 of 1024 float32, failed");
}
END_TEST

START_TEST(what_a_call_does_not_have_is_left_out)
{
    recorder_enter(r, &(struct recorder_call){.seq = 3, .kind = 2});
    assert_last("barrier #3, not finished");
    recorder_enter(r, &(struct recorder_call){.kind = 2, .group = 4});
    assert_last("barrier in group 4, not finished");
}
END_TEST

START_TEST(the_ring_keeps_the_last_ones)
{
    uint64_t first = enter(1);
    uint64_t last = 0;

    for (uint64_t seq = 2; seq <= 3 * RECORDER_ENTRIES; seq++)
        last = enter(seq);
    recorder_finish(r, first, 0, 9); /* its entry is another call's now */
    assert_last("all_reduce #192 of 1024 float32, not finished");
    for (int i = 0; i < RECORDER_ENTRIES; i++)
        ck_assert_uint_eq(atomic_load(&r->entries[i].finished_ns), 0);
    recorder_finish(r, last, 0, 9);
    assert_last("all_reduce #192 of 1024 float32, finished");
}
END_TEST

START_TEST(a_torn_entry_is_passed_over)
{
    uint64_t ticket;

    enter(1);
    ticket = enter(2);
    atomic_store(&r->entries[ticket % RECORDER_ENTRIES].ticket, 0);
    assert_last("all_reduce #1 of 1024 float32, not finished");
    /* Its number was taken, and then its writer died. */
    atomic_store(&r->head, 3);
    assert_last("all_reduce #1 of 1024 float32, not finished");
}
END_TEST

START_TEST(an_unknown_kind_is_a_number)
{
    recorder_enter(
        r, &(struct recorder_call){
               .seq = 1, .count = 7, .kind = 200, .dtype = RECORDER_NAMES - 1});
    assert_last("200 #1 of 7 63, not finished");
}
END_TEST

START_TEST(names_are_cut_and_cleaned)
{
    recorder_set_name(r->kinds, 1, "a_name_that_is_longer_than_fits_there");
    enter(1);
    assert_last(
        "a_name_that_is_longer_than_fits #1 of 1024 float32, not finished");
    memset(r->kinds[1], '\n', RECORDER_NAME_LEN); /* no NUL either */
    assert_last(
        "??????????????????????????????? #1 of 1024 float32, not finished");
    recorder_set_name(r->kinds, 1, "a\"b\\c");
    assert_last("a?b?c #1 of 1024 float32, not finished");
    recorder_set_name(r->kinds, RECORDER_NAMES, "beyond");
    ck_assert_str_eq(r->dtypes[0], "");
}
END_TEST

START_TEST(the_calls_are_read_in_order)
{
    struct recorder_seen seen[RECORDER_ENTRIES];

    ck_assert_uint_eq(recorder_read(r, seen), 0);
    recorder_enter(
        r, &(struct recorder_call){
               .now_ns = 4, .kind = RECORDER_INIT, .root = RECORDER_NO_ROOT});
    recorder_finish(r,
        recorder_enter(r, &(struct recorder_call){.seq = 2,
                              .count = 3,
                              .now_ns = 5,
                              .group = 6,
                              .root = 1,
                              .kind = 2,
                              .op = 4}),
        -7, 9);
    ck_assert_uint_eq(recorder_read(r, seen), 2);
    ck_assert(seen[0].is_init && !seen[0].is_finished);
    ck_assert_int_eq(seen[0].root, RECORDER_NO_ROOT);
    ck_assert(!seen[1].is_init && seen[1].is_finished);
    ck_assert_uint_eq(seen[1].ticket, 2);
    ck_assert_uint_eq(seen[1].seq, 2);
    ck_assert_uint_eq(seen[1].count, 3);
    ck_assert_uint_eq(seen[1].entered_ns, 5);
    ck_assert_uint_eq(seen[1].finished_ns, 9);
    ck_assert_uint_eq(seen[1].group, 6);
    ck_assert_int_eq(seen[1].root, 1);
    ck_assert_int_eq(seen[1].status, -7);
    ck_assert_str_eq(seen[1].kind, "barrier");
    ck_assert_str_eq(seen[1].dtype, "");
    ck_assert_str_eq(seen[1].op, "4");
    for (uint64_t seq = 1; seq <= RECORDER_ENTRIES; seq++)
        enter(seq);
    ck_assert_uint_eq(recorder_read(r, seen), RECORDER_ENTRIES);
    for (uint64_t i = 0; i < RECORDER_ENTRIES; i++)
        ck_assert_uint_eq(seen[i].seq, i + 1);
}
END_TEST

static void assert_group(uint32_t id, const char *want)
{
    char text[RECORDER_RANKS_LEN + 32];

    recorder_group_text(r, id, text, sizeof(text));
    ck_assert_str_eq(text, want);
}

START_TEST(groups_are_known_by_their_ranks)
{
    char ranks[RECORDER_RANKS_LEN];
    uint32_t size;

    assert_group(0, "default group");
    assert_group(7, "group 7");
    recorder_add_group(r, 7, 3, "0,2-3");
    assert_group(7, "group of ranks 0,2-3");
    ck_assert(recorder_find_group(r, 7, ranks, &size));
    ck_assert_uint_eq(size, 3);
    recorder_enter(r, &(struct recorder_call){.seq = 3, .kind = 2, .group = 7});
    assert_last("barrier #3 in group of ranks 0,2-3, not finished");
    recorder_add_group(r, 7, 2, "4-5"); /* in the same place */
    assert_group(7, "group of ranks 4-5");
    ck_assert_uint_eq(atomic_load(&r->ngroups), 1);
    ck_assert(!recorder_find_group(r, 8, ranks, &size));
}
END_TEST

START_TEST(the_table_keeps_the_last_groups)
{
    char text[32];

    for (uint32_t id = 1; id <= RECORDER_GROUPS + 1; id++) {
        snprintf(text, sizeof(text), "%u", id);
        recorder_add_group(r, id, 1, text);
    }
    assert_group(1, "group 1");
    assert_group(2, "group of ranks 2");
    assert_group(RECORDER_GROUPS + 1, "group of ranks 33");
}
END_TEST

START_TEST(a_list_of_ranks_is_cut_and_cleaned)
{
    char text[2 * RECORDER_RANKS_LEN], ranks[RECORDER_RANKS_LEN];
    uint32_t size;

    memset(text, '1', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    recorder_add_group(r, 1, 9, text);
    ck_assert(recorder_find_group(r, 1, ranks, &size));
    ck_assert_uint_eq(strlen(ranks), RECORDER_RANKS_LEN - 1);
    recorder_add_group(r, 1, 9, "0\x1b\"1");
    assert_group(1, "group of ranks 0??1");
    /* No NUL either. */
    for (size_t i = 0; i < RECORDER_RANKS_LEN / 8; i++)
        atomic_store(&r->groups[0].ranks[i], 0x3131313131313131);
    ck_assert(recorder_find_group(r, 1, ranks, &size));
    ck_assert_uint_eq(strlen(ranks), RECORDER_RANKS_LEN - 1);
}
END_TEST

/* A worker can write anything anywhere. */
START_TEST(garbage_is_read_without_harm)
{
    unsigned char *bytes = (unsigned char *)r;
    unsigned int seed = (unsigned int)_i;
    char text[128];

    for (size_t i = 0; i < sizeof(*r); i++)
        bytes[i] = (unsigned char)rand_r(&seed);
    if (_i % 2 == 0)
        memset(bytes, _i, sizeof(*r));
    if (recorder_last_text(r, text, sizeof(text)))
        ck_assert_uint_lt(strlen(text), sizeof(text));
    ck_assert(!recorder_is_valid(r));
    atomic_store(&r->head, UINT64_MAX);
    atomic_store(&r->entries[UINT64_MAX % RECORDER_ENTRIES].ticket, UINT64_MAX);
    ck_assert(recorder_last_text(r, text, sizeof(text)));
    for (size_t i = 0; i < strlen(text); i++)
        ck_assert(text[i] >= ' ' && text[i] < 0x7f);
}
END_TEST

START_TEST(another_layout_is_not_valid)
{
    r->version++;
    ck_assert(!recorder_is_valid(r));
    r->version--;
    r->entry_count *= 2;
    ck_assert(!recorder_is_valid(r));
}
END_TEST

/* --- Written and read at the same time ------------------------------------ */

#define CALLS 20000
enum { WRITERS = 3 };

static _Atomic bool is_over;

static void *write_calls(void *arg)
{
    (void)arg;
    for (uint64_t i = 1; i <= CALLS; i++) {
        /* All fields of one call say the same. */
        const struct recorder_call call = {
            .seq = i, .count = i, .group = (uint32_t)i, .kind = 2, .dtype = 1};

        recorder_finish(r, recorder_enter(r, &call), 0, 1);
    }
    return NULL;
}

static void *read_calls(void *arg)
{
    long *wrong = arg;
    struct recorder_seen seen;

    while (!atomic_load(&is_over))
        if (recorder_last(r, &seen))
            *wrong += seen.count != seen.seq || seen.group != seen.seq ||
                      strcmp(seen.kind, "barrier") != 0;
    return NULL;
}

START_TEST(a_reader_sees_whole_entries)
{
    pthread_t writers[WRITERS], reader;
    struct recorder_seen seen;
    long wrong = 0;

    ck_assert_int_eq(pthread_create(&reader, NULL, read_calls, &wrong), 0);
    for (int i = 0; i < WRITERS; i++)
        ck_assert_int_eq(
            pthread_create(&writers[i], NULL, write_calls, NULL), 0);
    for (int i = 0; i < WRITERS; i++)
        pthread_join(writers[i], NULL);
    atomic_store(&is_over, true);
    pthread_join(reader, NULL);
    ck_assert_int_eq(wrong, 0);
    ck_assert_uint_eq(atomic_load(&r->head), (uint64_t)WRITERS * CALLS);
    ck_assert(recorder_last(r, &seen));
    ck_assert(seen.is_finished);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("recorder");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, an_empty_one_says_nothing);
    tcase_add_test(tcase, a_call_is_not_finished_until_it_is);
    tcase_add_test(tcase, what_a_call_does_not_have_is_left_out);
    tcase_add_test(tcase, the_ring_keeps_the_last_ones);
    tcase_add_test(tcase, a_torn_entry_is_passed_over);
    tcase_add_test(tcase, an_unknown_kind_is_a_number);
    tcase_add_test(tcase, names_are_cut_and_cleaned);
    tcase_add_test(tcase, the_calls_are_read_in_order);
    tcase_add_test(tcase, groups_are_known_by_their_ranks);
    tcase_add_test(tcase, the_table_keeps_the_last_groups);
    tcase_add_test(tcase, a_list_of_ranks_is_cut_and_cleaned);
    tcase_add_loop_test(tcase, garbage_is_read_without_harm, 0, 200);
    tcase_add_test(tcase, another_layout_is_not_valid);
    tcase_add_test(tcase, a_reader_sees_whole_entries);
    return unit_run("recorder", tcase);
}
