/* Which operation is stuck, by recorders that are written by hand. */
#include <stdlib.h>
#include <string.h>

#include "agent/verdict.h"
#include "rendezvous/base/clock.h"
#include "tests/unit/unit.h"

enum { NRANKS = 4, S = 1000 * 1000 * 1000 };
enum kind { ALL_REDUCE = 1, BROADCAST, BARRIER, RECV, ALL_TO_ALL_V };
enum { PEER = -8 }; /* a status */
enum { NEVER = 0 };

static struct recorder *recorders; /* [NRANKS] */
static struct verdict_rank ranks[NRANKS];
static struct verdict_input in;

static void set_up(void)
{
    recorders = aligned_alloc(64, NRANKS * sizeof(*recorders));
    ck_assert_ptr_nonnull(recorders);
    memset(recorders, 0, NRANKS * sizeof(*recorders));
    for (int i = 0; i < NRANKS; i++) {
        struct recorder *r = &recorders[i];

        recorder_init(r, i);
        recorder_set_name(r->kinds, ALL_REDUCE, "all_reduce");
        recorder_set_name(r->kinds, BROADCAST, "broadcast");
        recorder_set_name(r->kinds, BARRIER, "barrier");
        recorder_set_name(r->kinds, RECV, "recv");
        recorder_set_name(r->kinds, ALL_TO_ALL_V, "all_to_all_v");
        recorder_set_name(r->kinds, RECORDER_INIT, "coll_init");
        recorder_set_name(r->dtypes, 1, "float32");
        recorder_set_name(r->ops, 1, "sum");
        ranks[i] =
            (struct verdict_rank){.recorder = r, .ended_ns = UINT64_C(100) * S};
    }
    in = (struct verdict_input){.ranks = ranks,
        .nranks = NRANKS,
        .world_size = NRANKS,
        .first_failure = -1,
        .as_of_ns = UINT64_MAX};
}

static void tear_down(void)
{
    free(recorders);
}

/* A call that began at second began and ended, unless that is NEVER, at
 * second ended. */
static uint64_t call(int rank, uint32_t group, enum kind kind, uint64_t seq,
    int began, int ended, int status)
{
    const struct recorder_call c = {.group = group,
        .seq = seq,
        .count = kind == BARRIER ? 0 : 1024,
        .now_ns = (uint64_t)began * S,
        .root = kind == BROADCAST || kind == RECV ? 1 : RECORDER_NO_ROOT,
        .kind = kind,
        .dtype = kind == BARRIER ? 0 : 1,
        .op = kind == ALL_REDUCE ? 1 : 0};
    uint64_t ticket = recorder_enter(&recorders[rank], &c);

    if (ended != NEVER)
        recorder_finish(&recorders[rank], ticket, status, (uint64_t)ended * S);
    return ticket;
}

static uint64_t done(int rank, enum kind kind, uint64_t seq, int at)
{
    return call(rank, 0, kind, seq, at, at, 0);
}

static uint64_t waits(int rank, enum kind kind, uint64_t seq, int since)
{
    return call(rank, 0, kind, seq, since, NEVER, 0);
}

static void init(int rank, int began, int ended)
{
    const struct recorder_call c = {.now_ns = (uint64_t)began * S,
        .root = RECORDER_NO_ROOT,
        .kind = RECORDER_INIT};
    uint64_t ticket = recorder_enter(&recorders[rank], &c);

    if (ended != NEVER)
        recorder_finish(&recorders[rank], ticket, 0, (uint64_t)ended * S);
}

static void init_all(void)
{
    for (int i = 0; i < NRANKS; i++)
        init(i, 1, 2);
}

static void says(const char *want)
{
    struct buf text;

    buf_init(&text, 1 << 16);
    ck_assert_int_eq(verdict_write(&in, &text), 0);
    ck_assert_int_eq(buf_append(&text, "", 1), 0);
    ck_assert_str_eq(buf_bytes(&text), want);
    buf_fini(&text);
}

/* --- Nothing is stuck ----------------------------------------------------- */

START_TEST(nothing_is_said_without_calls)
{
    says("");
    for (int i = 0; i < NRANKS; i++)
        ranks[i].recorder = NULL;
    says("");
    in.nranks = 0;
    says("");
}
END_TEST

START_TEST(nothing_is_said_where_nobody_waits)
{
    init_all();
    for (int i = 0; i < NRANKS; i++)
        done(i, BROADCAST, 1, 3);
    done(1, BROADCAST, 2, 4); /* its root is ahead */
    says("");
}
END_TEST

/* --- Who is missing ------------------------------------------------------- */

START_TEST(who_never_entered_is_named)
{
    init_all();
    for (int i = 0; i < NRANKS; i++)
        done(i, BROADCAST, 16, 3);
    for (int i = 0; i < NRANKS; i++)
        if (i != 2)
            waits(i, ALL_REDUCE, 17, 90 + i);
    says("rank 2 never entered all_reduce #17 (1024 float32 sum, default "
         "group), in which ranks 0-1,3 waited for 10.000 s; its last call was "
         "broadcast #16\n");
}
END_TEST

START_TEST(so_is_who_was_waited_for_in_vain)
{
    in.rank_base = 8;
    in.world_size = 16;
    init_all();
    done(2, BROADCAST, 16, 3);
    done(3, BROADCAST, 16, 3);
    call(0, 0, ALL_REDUCE, 17, 4, 6, RECORDER_TIMEOUT);
    call(1, 0, ALL_REDUCE, 17, 4, 6, PEER);
    says("ranks 10-11 never entered all_reduce #17 (1024 float32 sum, default "
         "group), in which ranks 8-9 waited for 2.000 s; their last call was "
         "broadcast #16\n");
}
END_TEST

START_TEST(different_last_calls_are_left_out)
{
    init_all();
    done(1, BARRIER, 1, 3);
    done(2, BARRIER, 1, 3);
    done(2, BARRIER, 2, 3);
    waits(0, BARRIER, 3, 99);
    done(3, BARRIER, 3, 99);
    says("ranks 1-2 never entered barrier #3 (default group), in which rank 0 "
         "waited for 1.000 s\n");
}
END_TEST

START_TEST(the_first_operation_counts)
{
    init_all();
    done(1, BROADCAST, 1, 3); /* the root has passed it */
    waits(1, BARRIER, 2, 4);
    waits(0, BROADCAST, 1, 3);
    waits(3, BROADCAST, 1, 3);
    says("rank 2 never entered broadcast #1 (1024 float32, root 1, default "
         "group), in which ranks 0,3 waited for 97.000 s; its last call was "
         "coll_init\n");
}
END_TEST

START_TEST(coll_init_is_an_operation_too)
{
    for (int i = 0; i < NRANKS; i++)
        if (i != 1)
            init(i, 98, NEVER);
    ranks[1].recorder = NULL;
    says("rank 1 never entered coll_init, in which ranks 0,2-3 waited for "
         "2.000 s\n");
    ranks[1].recorder = &recorders[1]; /* attached, and no further */
    says("rank 1 never entered coll_init, in which ranks 0,2-3 waited for "
         "2.000 s\n");
}
END_TEST

START_TEST(of_a_rank_that_never_attached_nothing_more_is_claimed)
{
    init_all();
    ranks[1].recorder = NULL;
    waits(0, BARRIER, 1, 99);
    waits(2, BARRIER, 1, 99);
    waits(3, BARRIER, 1, 99);
    says("ranks 0,2-3 all waited for 1.000 s in barrier #1 (default group)\n");
}
END_TEST

START_TEST(calls_before_coll_init_do_not_count)
{
    init_all();
    for (int i = 0; i < NRANKS; i++)
        for (uint64_t seq = 1; seq <= RECORDER_ENTRIES; seq++)
            done(i, BARRIER, seq, 3);
    init_all(); /* the next program of each worker */
    for (int i = 1; i < NRANKS; i++)
        waits(i, BARRIER, 1, 99);
    says("rank 0 never entered barrier #1 (default group), in which ranks 1-3 "
         "waited for 1.000 s; its last call was coll_init\n");
}
END_TEST

START_TEST(who_comes_when_the_others_have_given_up_is_late)
{
    uint64_t ticket;

    init_all();
    call(0, 0, BARRIER, 1, 3, 5, RECORDER_TIMEOUT);
    call(1, 0, BARRIER, 1, 3, 5, PEER);
    ticket = call(2, 0, BARRIER, 1, 6, 6, PEER);
    call(3, 0, BARRIER, 1, 4, 5, PEER);
    says("rank 2 entered barrier #1 (default group) only when ranks 0-1,3 had "
         "waited for 2.000 s\n");
    recorder_finish(&recorders[2], ticket, 0, UINT64_C(6) * S);
    says("rank 2 entered barrier #1 (default group) only when ranks 0-1,3 had "
         "waited for 2.000 s\n");
}
END_TEST

/* A rank of another node has died. */
START_TEST(who_comes_after_another_ones_end_is_not)
{
    in.world_size = 8;
    init_all();
    call(0, 0, BARRIER, 1, 3, 5, PEER);
    call(1, 0, BARRIER, 1, 3, 5, PEER);
    call(2, 0, BARRIER, 1, 6, 6, PEER);
    call(3, 0, BARRIER, 1, 4, 5, PEER);
    says("ranks 0-1,3 all waited for 2.000 s in barrier #1 (default group), "
         "for a rank of another node\n");
}
END_TEST

START_TEST(calls_that_are_not_kept_are_not_missing)
{
    init_all();
    recorder_add_group(&recorders[2], 9, 2, "2-3");
    recorder_add_group(&recorders[3], 9, 2, "2-3");
    waits(3, BARRIER, 5, 99); /* of the default group */
    waits(0, BARRIER, 5, 99);
    waits(1, BARRIER, 5, 99);
    for (uint64_t seq = 1; seq <= 2 * RECORDER_ENTRIES; seq++)
        call(2, 9, ALL_REDUCE, seq, 3, 3, 0);
    says("ranks 0-1,3 waited for 1.000 s in barrier #5 (default group), which "
         "is none of the last calls of rank 2; its last call was all_reduce "
         "#128 (1024 float32 sum, group of ranks 2-3)\n");
}
END_TEST

/* --- Nobody is missing ---------------------------------------------------- */

START_TEST(all_may_wait)
{
    init_all();
    for (int i = 0; i < NRANKS; i++)
        waits(i, ALL_REDUCE, 17, 99);
    says("ranks 0-3 all waited for 1.000 s in all_reduce #17 (1024 float32 "
         "sum, default group)\n");
    in.world_size = 8;
    says("ranks 0-3 all waited for 1.000 s in all_reduce #17 (1024 float32 "
         "sum, default group), for a rank of another node\n");
}
END_TEST

START_TEST(who_ended_within_is_named)
{
    init_all();
    in.first_failure = 1;
    waits(1, BARRIER, 1, 3);
    call(0, 0, BARRIER, 1, 3, 5, PEER);
    call(2, 0, BARRIER, 1, 6, 6, PEER);
    call(3, 0, BARRIER, 1, 3, 5, PEER);
    says("rank 1 ended within barrier #1 (default group), in which ranks 0,3 "
         "waited\n");
}
END_TEST

START_TEST(who_never_returned_is_named)
{
    init_all();
    waits(1, BARRIER, 1, 3);
    call(0, 0, BARRIER, 1, 3, 5, RECORDER_TIMEOUT);
    call(2, 0, BARRIER, 1, 3, 5, PEER);
    call(3, 0, BARRIER, 1, 3, 5, PEER);
    says("barrier #1 (default group) failed on ranks 0,2-3 and rank 1 never "
         "returned from it\n");
}
END_TEST

START_TEST(who_had_left_is_named)
{
    init_all();
    done(1, BROADCAST, 1, 3);
    for (int i = 0; i < NRANKS; i++)
        if (i != 1)
            call(i, 0, BROADCAST, 1, 3, 5, PEER);
    says("ranks 0,2-3 waited for 2.000 s in broadcast #1 (1024 float32, root "
         "1, default group), which rank 1 had left; its last call was "
         "broadcast #1\n");
}
END_TEST

/* --- Different calls ------------------------------------------------------ */

START_TEST(different_calls_are_told)
{
    init_all();
    call(0, 0, ALL_REDUCE, 17, 3, 4, RECORDER_MISMATCH);
    call(1, 0, BROADCAST, 17, 3, 4, RECORDER_MISMATCH);
    call(2, 0, ALL_REDUCE, 17, 3, 4, RECORDER_MISMATCH);
    waits(3, BARRIER, 17, 3);
    says("operation #17 of the default group differs: ranks 0,2 called "
         "all_reduce (1024 float32 sum), rank 1 called broadcast (1024 "
         "float32, root 1), rank 3 called barrier\n");
}
END_TEST

START_TEST(counts_may_differ_unless_the_library_says_so)
{
    uint64_t ticket;

    init_all();
    for (int i = 0; i < NRANKS; i++) {
        ticket = waits(i, ALL_TO_ALL_V, 1, 99);
        atomic_store(
            &recorders[i].entries[ticket % RECORDER_ENTRIES].count, 5 + i / 3);
    }
    says("ranks 0-3 all waited for 1.000 s in all_to_all_v #1 (5 float32, "
         "default group)\n");
    for (int i = 0; i < NRANKS; i++)
        recorder_finish(
            &recorders[i], ticket, RECORDER_MISMATCH, UINT64_C(100) * S);
    says("operation #1 of the default group differs: ranks 0-2 called "
         "all_to_all_v (5 float32), rank 3 called all_to_all_v (6 float32)\n");
}
END_TEST

START_TEST(roots_and_types_may_not)
{
    struct recorder_entry *e;

    init_all();
    for (int i = 0; i < NRANKS; i++) {
        e = &recorders[i].entries[waits(i, BROADCAST, 1, 99)];
        if (i == 2 && _i == 0)
            atomic_store(&e->root, 0);
        else if (i == 2)
            atomic_store(&e->dtype, 9);
    }
    says(_i == 0 ? "operation #1 of the default group differs: ranks 0-1,3 "
                   "called broadcast (1024 float32, root 1), rank 2 called "
                   "broadcast (1024 float32, root 0)\n"
                 : "operation #1 of the default group differs: ranks 0-1,3 "
                   "called broadcast (1024 float32, root 1), rank 2 called "
                   "broadcast (1024 9, root 1)\n");
}
END_TEST

/* With ranks of another node, or in what the recorder does not hold. */
START_TEST(equal_calls_may_differ_from_others)
{
    init_all();
    for (int i = 0; i < NRANKS; i++)
        call(i, 0, BARRIER, 2, 3, 4, RECORDER_MISMATCH);
    in.world_size = NRANKS + _i;
    says(_i == 0
             ? "operation #2 of the default group differs: ranks 0-3 called "
               "barrier alike; what is not recorded differs: forced algorithms "
               "(COLL_ALGORITHM), counts of single ranks, or who works in "
               "place\n"
             : "operation #2 of the default group differs: ranks 0-3 called "
               "barrier, which is not what the others called, or how "
               "(COLL_ALGORITHM, counts of single ranks)\n");
}
END_TEST

/* Whoever waits for them then, or has not come yet, is not the cause. */
START_TEST(environments_that_do_not_fit_are_told)
{
    call(0, 0, RECORDER_INIT, 0, 1, NEVER, 0);
    call(1, 0, RECORDER_INIT, 0, 1, 2, RECORDER_ENVIRONMENT);
    call(3, 0, RECORDER_INIT, 0, 1, 2, RECORDER_ENVIRONMENT);
    says("coll_init failed on ranks 1,3 for the environment, which is "
         "incomplete or not the same on all ranks\n");
}
END_TEST

/* --- Groups --------------------------------------------------------------- */

START_TEST(only_the_ranks_of_a_group_are_missed)
{
    init_all();
    recorder_add_group(&recorders[0], 7, 3, "0,2-3");
    recorder_add_group(&recorders[2], 7, 3, "0,2-3");
    call(0, 7, BARRIER, 1, 99, NEVER, 0);
    call(2, 7, BARRIER, 1, 99, NEVER, 0);
    /* Rank 3 has not even made the group, but the others know of it. */
    says("rank 3 never entered barrier #1 (group of ranks 0,2-3), in which "
         "ranks 0,2 waited for 1.000 s; its last call was coll_init\n");
}
END_TEST

START_TEST(a_group_may_be_larger_than_this_node)
{
    init_all();
    recorder_add_group(&recorders[1], 7, 2, "1,5");
    call(1, 7, BARRIER, 1, 99, NEVER, 0);
    says("rank 1 waited for 1.000 s in barrier #1 (group of ranks 1,5), for a "
         "rank of another node\n");
}
END_TEST

START_TEST(a_group_may_be_unknown)
{
    init_all();
    call(1, 7, BARRIER, 2, 99, NEVER, 0);
    call(0, 7, BARRIER, 1, 99, 99, 0);
    says("rank 0 never entered barrier #2 (group 7), in which rank 1 waited "
         "for 1.000 s; its last call was barrier #1\n");
}
END_TEST

START_TEST(the_one_that_waits_for_nobody_comes_first)
{
    init_all();
    recorder_add_group(&recorders[1], 7, 2, "1-2");
    waits(0, BARRIER, 1, 50); /* for rank 1, which waits for rank 2 */
    waits(3, BARRIER, 1, 50);
    call(1, 7, BROADCAST, 1, 99, NEVER, 0);
    call(2, 0, BARRIER, 1, 50, 50, 0);
    says("rank 2 never entered broadcast #1 (1024 float32, root 1, group of "
         "ranks 1-2), in which rank 1 waited for 1.000 s; its last call was "
         "barrier #1 (default group)\n"
         "rank 1 never entered barrier #1 (default group), in which ranks 0,3 "
         "waited for 50.000 s; its last call was broadcast #1 (1024 float32, "
         "root 1, group of ranks 1-2), not finished\n");
}
END_TEST

START_TEST(so_it_does_when_all_have_given_up)
{
    init_all();
    recorder_add_group(&recorders[1], 7, 2, "1-2");
    call(0, 0, BARRIER, 1, 50, 100, RECORDER_TIMEOUT);
    call(3, 0, BARRIER, 1, 50, 100, PEER);
    call(2, 0, BARRIER, 1, 50, 50, 0);
    call(1, 7, BROADCAST, 1, 99, 100, RECORDER_TIMEOUT);
    says("rank 2 never entered broadcast #1 (1024 float32, root 1, group of "
         "ranks 1-2), in which rank 1 waited for 1.000 s; its last call was "
         "barrier #1 (default group)\n"
         "rank 1 never entered barrier #1 (default group), in which ranks 0,3 "
         "waited for 50.000 s; its last call was broadcast #1 (1024 float32, "
         "root 1, group of ranks 1-2), which failed\n");
}
END_TEST

/* Rank 2 keeps both groups waiting: the shorter chain says so. */
START_TEST(who_is_missing_alone_comes_first)
{
    init_all();
    recorder_add_group(&recorders[1], 7, 2, "1-2");
    waits(0, BARRIER, 1, 50);
    waits(3, BARRIER, 1, 50);
    call(1, 7, BARRIER, 1, 99, NEVER, 0);
    says("rank 2 never entered barrier #1 (group of ranks 1-2), in which rank "
         "1 waited for 1.000 s; its last call was coll_init\n"
         "ranks 1-2 never entered barrier #1 (default group), in which ranks "
         "0,3 waited for 50.000 s\n");
}
END_TEST

START_TEST(at_most_three_are_told)
{
    static const char line[] = "waited for 1.000 s";
    struct buf text;
    int n = 0;

    init_all();
    for (uint32_t group = 1; group <= 40; group++)
        call(0, group, BARRIER, 1, 99, NEVER, 0);
    buf_init(&text, 1 << 16);
    ck_assert_int_eq(verdict_write(&in, &text), 0);
    ck_assert_int_eq(buf_append(&text, "", 1), 0);
    for (const char *at = buf_bytes(&text); (at = strstr(at, line)) != NULL;
         at += sizeof(line))
        n++;
    ck_assert_int_eq(n, VERDICT_SENTENCES_MAX);
    buf_fini(&text);
}
END_TEST

/* A job that has lived on with a new group in the place of a broken one. */
START_TEST(what_was_overcome_is_not_told)
{
    init_all();
    for (int i = 0; i < NRANKS - 1; i++)
        call(i, 7, BARRIER, 1, 3, 4, RECORDER_TIMEOUT);
    recorder_add_group(&recorders[3], 7, 4, "0-3");
    for (int i = 0; i < NRANKS; i++)
        call(i, 8, BARRIER, 1, 5, 5, 0);
    says("");
}
END_TEST

START_TEST(a_number_that_begins_anew_is_of_a_new_group)
{
    init_all();
    for (int i = 0; i < NRANKS; i++) {
        recorder_add_group(&recorders[i], 7, 4, "0-3");
        call(i, 7, BARRIER, 1, 3, 3, 0);
        call(i, 7, BARRIER, 2, 3, 4, PEER);
    }
    for (int i = 0; i < NRANKS; i++)
        if (i != 2)
            call(i, 7, BROADCAST, 1, 99, NEVER, 0);
    call(2, 7, BARRIER, 1, 98, 98, 0);
    waits(2, BARRIER, 1, 99);
    says("operation #1 of the group of ranks 0-3 differs: ranks 0-1,3 called "
         "broadcast (1024 float32, root 1), rank 2 called barrier\n"
         "ranks 0-1,3 never entered barrier #1 (default group), in which rank "
         "2 waited for 1.000 s; their last call was broadcast #1 (1024 "
         "float32, root 1, group of ranks 0-3), not finished\n");
}
END_TEST

/* --- A stop --------------------------------------------------------------- */

START_TEST(after_a_stop_only_what_was_before_counts)
{
    init_all();
    in.as_of_ns = UINT64_C(50) * S;
    for (int i = 0; i < NRANKS - 1; i++)
        call(i, 0, BARRIER, 1, 40, 51, PEER);
    call(3, 0, BARRIER, 1, 52, 52, PEER);
    says("rank 3 never entered barrier #1 (default group), in which ranks 0-2 "
         "waited for 10.000 s; its last call was coll_init\n");
    in.least_wait_ns = UINT64_C(11) * S;
    says("");
}
END_TEST

/* --- One rank and another ------------------------------------------------- */

START_TEST(who_waits_for_one_rank_is_told_if_nothing_else_is)
{
    init_all();
    call(0, 0, RECV, 0, 98, NEVER, 0);
    says("rank 0 waited for 2.000 s in recv (1024 float32, peer 1, default "
         "group)\n");
    waits(2, BARRIER, 1, 99);
    says("ranks 0-1,3 never entered barrier #1 (default group), in which rank "
         "2 waited for 1.000 s\n");
}
END_TEST

/* --- Garbage -------------------------------------------------------------- */

START_TEST(a_recorder_of_another_layout_says_nothing)
{
    init_all();
    for (int i = 0; i < NRANKS; i++)
        waits(i, BARRIER, 1, 99);
    recorders[1].magic++;
    says("ranks 0,2-3 all waited for 1.000 s in barrier #1 (default group)\n");
}
END_TEST

START_TEST(a_recorder_that_cannot_be_read_is_not_missed)
{
    init_all();
    for (int i = 0; i < NRANKS; i++)
        waits(i, BARRIER, 1, 99);
    atomic_store(&recorders[1].head, UINT64_MAX);
    says("ranks 0,2-3 all waited for 1.000 s in barrier #1 (default group)\n");
}
END_TEST

START_TEST(garbage_is_judged_without_harm)
{
    unsigned int seed = (unsigned int)_i;
    struct buf text;

    init_all();
    for (int i = 0; i < NRANKS; i++)
        waits(i, BARRIER, 1, 99);
    /* All but the head, or it would not be looked at; and few values, so that
     * they meet. */
    for (int i = 0; i < NRANKS; i++) {
        unsigned char *bytes = (unsigned char *)&recorders[i];
        unsigned int mask = _i % 3 == 0 ? 0xff : _i % 3 == 1 ? 1 : 0x83;

        for (size_t k = offsetof(struct recorder, head); k < sizeof(*recorders);
             k++)
            if (rand_r(&seed) % 8 != 0)
                bytes[k] = (unsigned char)(rand_r(&seed) & (int)mask);
        atomic_store(&recorders[i].head, (uint64_t)(rand_r(&seed) % 200));
        for (uint64_t k = 0; k < RECORDER_ENTRIES; k++) {
            uint64_t head = atomic_load(&recorders[i].head);

            if (head > k)
                atomic_store(
                    &recorders[i].entries[(head - k) % RECORDER_ENTRIES].ticket,
                    head - k);
        }
    }
    in.first_failure = _i % 6 - 1;
    buf_init(&text, 1 << 16);
    ck_assert_int_eq(verdict_write(&in, &text), 0);
    for (size_t i = 0; i < text.len; i++) {
        char c = buf_bytes(&text)[i];

        ck_assert(c == '\n' || (c >= ' ' && c < 0x7f));
    }
    buf_fini(&text);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("verdict");

    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, nothing_is_said_without_calls);
    tcase_add_test(t, nothing_is_said_where_nobody_waits);
    tcase_add_test(t, who_never_entered_is_named);
    tcase_add_test(t, so_is_who_was_waited_for_in_vain);
    tcase_add_test(t, different_last_calls_are_left_out);
    tcase_add_test(t, the_first_operation_counts);
    tcase_add_test(t, coll_init_is_an_operation_too);
    tcase_add_test(t, of_a_rank_that_never_attached_nothing_more_is_claimed);
    tcase_add_test(t, calls_before_coll_init_do_not_count);
    tcase_add_test(t, who_comes_when_the_others_have_given_up_is_late);
    tcase_add_test(t, who_comes_after_another_ones_end_is_not);
    tcase_add_test(t, calls_that_are_not_kept_are_not_missing);
    tcase_add_test(t, all_may_wait);
    tcase_add_test(t, who_ended_within_is_named);
    tcase_add_test(t, who_never_returned_is_named);
    tcase_add_test(t, who_had_left_is_named);
    tcase_add_test(t, different_calls_are_told);
    tcase_add_test(t, counts_may_differ_unless_the_library_says_so);
    tcase_add_loop_test(t, roots_and_types_may_not, 0, 2);
    tcase_add_loop_test(t, equal_calls_may_differ_from_others, 0, 2);
    tcase_add_test(t, environments_that_do_not_fit_are_told);
    tcase_add_test(t, only_the_ranks_of_a_group_are_missed);
    tcase_add_test(t, a_group_may_be_larger_than_this_node);
    tcase_add_test(t, a_group_may_be_unknown);
    tcase_add_test(t, the_one_that_waits_for_nobody_comes_first);
    tcase_add_test(t, so_it_does_when_all_have_given_up);
    tcase_add_test(t, who_is_missing_alone_comes_first);
    tcase_add_test(t, at_most_three_are_told);
    tcase_add_test(t, what_was_overcome_is_not_told);
    tcase_add_test(t, a_number_that_begins_anew_is_of_a_new_group);
    tcase_add_test(t, after_a_stop_only_what_was_before_counts);
    tcase_add_test(t, who_waits_for_one_rank_is_told_if_nothing_else_is);
    tcase_add_test(t, a_recorder_of_another_layout_says_nothing);
    tcase_add_test(t, a_recorder_that_cannot_be_read_is_not_missed);
    tcase_add_loop_test(t, garbage_is_judged_without_harm, 0, 300);
    return unit_run("verdict", t);
}
