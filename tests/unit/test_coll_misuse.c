/*
 * Ranks that do not do the same, ranks that leave, and calls that make no
 * sense: every operation ends with the error that the manual gives, on every
 * rank, and touches nothing.
 */
#include <stdint.h>
#include <stdlib.h>

#include "tests/unit/coll_every.h"
#include "tests/unit/coll_layouts.h"
#include "tests/unit/unit.h"

enum { TIMEOUT_MS = 60000 };

static struct harness_store store;

static void setup(void)
{
    harness_store_start(&store);
}

static void teardown(void)
{
    harness_store_stop(&store);
}

/* --- Different calls ------------------------------------------------------ */

/* What rank 0 does, and what the others do. */
struct pair {
    struct every_call first;
    struct every_call second;
    bool is_async;
};

static coll_status_t run_form(
    struct every_call *c, struct coll_group *g, bool is_async)
{
    coll_work_t *work = NULL;
    coll_status_t status;

    if (!is_async)
        return every_run(c, g, NULL);
    status = every_run(c, g, &work);
    if (status == COLL_OK)
        status = coll_work_wait(work, 0);
    coll_work_free(work);
    return status;
}

static void run_pair(struct coll_group *g, int rank, void *arg)
{
    const struct pair *pair = arg;
    struct every_call c = rank == 0 ? pair->first : pair->second;
    size_t bytes = every_elements(&c, g->size) * coll_dtype_size(c.dtype) + 1;
    const char *name = every_ops[c.kind].name;

    c.send = calloc(bytes, 1);
    c.recv = calloc(bytes, 1);
    EXPECT_OK(coll_barrier(g));
    EXPECT_FAILS(run_form(&c, g, pair->is_async), COLL_ERR_MISMATCH,
        "mismatch at operation #2: ");
    EXPECT(strstr(coll_last_error(), every_ops[pair->first.kind].name) != NULL,
        "%s", coll_last_error());
    EXPECT(strstr(coll_last_error(), name) != NULL, "%s", coll_last_error());
    /* And the group is broken, whatever comes next. */
    EXPECT_FAILS(coll_barrier(g), COLL_ERR_MISMATCH, "operation #2");
    EXPECT_FAILS(coll_all_to_all(c.send, c.recv, c.count, c.dtype, g),
        COLL_ERR_MISMATCH, "operation #2");
    every_free(&c);
}

static void fails_as_a_mismatch(int size, const struct pair *pair)
{
    harness_run(&store, size, TIMEOUT_MS, run_pair, (void *)pair);
}

static struct every_call plain(enum every kind, size_t count)
{
    return (struct every_call){.kind = kind,
        .count = count,
        .dtype = COLL_FLOAT32,
        .op = COLL_SUM,
        .root = 1};
}

static const size_t different[][2] = {{100, 200}, {0, 1}, {200, 100000}};

/* PG-01 */
START_TEST(different_counts_fail_everywhere)
{
    for (size_t i = 0; i < 3; i++) {
        struct pair pair = {.first = plain((enum every)_i, different[i][0]),
            .second = plain((enum every)_i, different[i][1]),
            .is_async = i % 2 == 0};

        fails_as_a_mismatch(4, &pair);
    }
}
END_TEST

/* The sum is the same, and so is what rank 0 has to do with it. */
static void different_parts(struct coll_group *g, int rank, void *arg)
{
    enum every kind = *(const enum every *)arg;
    size_t one[3] = {2, 3, 4};
    size_t other[3] = {2, 4, 3};
    size_t *counts = rank == 0 ? one : other;
    float x[9] = {0};
    float y[9] = {0};
    const void *send[3] = {x, x + 4, x + 8};
    void *recv[3] = {y, y + 4, y + 8};
    coll_status_t status;

    if (kind == EVERY_ALL_GATHER_V)
        status = coll_all_gather_v(
            x, counts[rank], y, counts, NULL, COLL_FLOAT32, g);
    else if (kind == EVERY_REDUCE_SCATTER_V)
        status = coll_reduce_scatter_v(
            x, counts, NULL, y, COLL_FLOAT32, COLL_SUM, g);
    else
        status = coll_all_reduce_coalesced(
            send, recv, counts, rank == 0 ? 1 : 2, COLL_FLOAT32, COLL_SUM, g);
    EXPECT(status == COLL_ERR_MISMATCH, "got %s: %s", coll_strerror(status),
        coll_last_error());
}

/* PG-01 */
START_TEST(different_parts_fail_everywhere)
{
    enum every kinds[] = {
        EVERY_ALL_GATHER_V, EVERY_REDUCE_SCATTER_V, EVERY_ALL_REDUCE_COALESCED};

    for (int i = 0; i < 3; i++)
        harness_run(&store, 3, TIMEOUT_MS, different_parts, &kinds[i]);
}
END_TEST

/* Ranks 1 and 2 do not agree; rank 0 sends to both what they expect. */
static void different_pairs(struct coll_group *g, int rank, void *arg)
{
    size_t send[3] = {1, 1, 1};
    size_t recv[3] = {1, 1, 1};
    int32_t x[3] = {0};
    int32_t y[8] = {0};

    (void)arg;
    if (rank == 2)
        recv[1] = 5;
    EXPECT_FAILS(coll_all_to_all_v(x, send, NULL, y, recv, NULL, COLL_INT32, g),
        COLL_ERR_MISMATCH,
        "in all_to_all_v rank 1 sends 1 int32 to rank 2, which expects 5");
}

/* PG-01 */
START_TEST(all_to_all_v_of_two_that_differ_fails_everywhere)
{
    harness_run(&store, 3, TIMEOUT_MS, different_pairs, NULL);
}
END_TEST

/* PG-03, PG-01: operation, type, reduction, root. */
START_TEST(different_operations_fail_everywhere)
{
    for (int other = 0; other < EVERY_OPS; other++) {
        struct pair pair = {.first = plain((enum every)_i, 5),
            .second = plain((enum every)other, 5),
            .is_async = other % 2 == 0};

        if (other != _i)
            fails_as_a_mismatch(2, &pair);
    }
}
END_TEST

START_TEST(different_details_fail_everywhere)
{
    for (int detail = 0; detail < 3; detail++) {
        struct pair pair = {.first = plain((enum every)_i, 5),
            .second = plain((enum every)_i, 5)};

        if ((detail == 0 && _i == EVERY_BARRIER) ||
            (detail == 1 && !every_ops[_i].has_op) ||
            (detail == 2 && !every_ops[_i].has_root))
            continue;
        if (detail == 0)
            pair.second.dtype = COLL_INT32;
        else if (detail == 1)
            pair.second.op = COLL_MAX;
        else
            pair.second.root = 0;
        fails_as_a_mismatch(3, &pair);
    }
}
END_TEST

/* --- Who leaves ----------------------------------------------------------- */

static void one_leaves(struct coll_group *g, int rank, void *arg)
{
    enum every kind = *(const enum every *)arg;
    coll_status_t status = COLL_OK;

    for (int i = 1; status == COLL_OK && i <= (rank == 1 ? 9 : 10); i++) {
        struct every_call c;

        every_make(&c, kind, 3, 0, rank, g->size);
        status = run_form(&c, g, i % 2 == 0);
        EXPECT(status == (i == 10 ? COLL_ERR_PEER : COLL_OK),
            "%s, operation %d: %s", every_ops[kind].name, i, coll_last_error());
        EXPECT(status != COLL_OK || every_wrong(&c, rank, g->size) == 0,
            "%s, operation %d is wrong", every_ops[kind].name, i);
        every_free(&c);
    }
    if (rank != 1)
        EXPECT_FAILS(
            coll_barrier(g), COLL_ERR_PEER, "rank 1 left after operation 9");
}

/* PG-04 */
static void exchange_in_place_on_one(struct coll_group *g, int rank, void *arg)
{
    int32_t x[64] = {0};
    int32_t y[64];

    (void)arg;
    EXPECT_FAILS(coll_all_to_all(x, rank == 0 ? x : y, 8, COLL_INT32, g),
        COLL_ERR_MISMATCH,
        "rank 0 called all_to_all(count=8, int32, in place)");
}

/* _i: a layout. */
START_TEST(all_to_all_is_in_place_on_all_or_none)
{
    choose_layout(_i);
    harness_run(&store, 3, TIMEOUT_MS, exchange_in_place_on_one, NULL);
    harness_backend = &coll_backend_shm;
    harness_node_of = NULL;
    harness_run(&store, 3, TIMEOUT_MS, exchange_in_place_on_one, NULL);
}
END_TEST

START_TEST(who_leaves_early_is_named)
{
    enum every kind = (enum every)_i;

    harness_run(&store, 3, TIMEOUT_MS, one_leaves, &kind);
}
END_TEST

/* --- Nothing to do -------------------------------------------------------- */

static void zero_elements(struct coll_group *g, int rank, void *arg)
{
    char guard[2] = {7, 7};
    uint64_t seq = g->seq;

    (void)arg;
    (void)rank;
    for (int kind = 0; kind < EVERY_OPS; kind++)
        for (int dtype = 0; dtype <= COLL_BOOL; dtype++) {
            struct every_call c = {.kind = (enum every)kind,
                .dtype = (coll_dtype_t)dtype,
                .op = COLL_MAX,
                .root = g->size - 1};

            EXPECT_OK(run_form(&c, g, dtype % 4 == 0));
            c.send = &guard[0];
            c.recv = &guard[1];
            EXPECT_OK(run_form(&c, g, false));
            seq += 2;
            EXPECT(g->seq == seq, "%s is no step", every_ops[kind].name);
        }
    EXPECT(guard[0] == 7 && guard[1] == 7, "memory was touched");
}

/* PG-10 */
START_TEST(zero_elements_are_a_step)
{
    harness_backend = _i == 1 ? &coll_backend_self : &coll_backend_shm;
    harness_run(&store, _i, TIMEOUT_MS, zero_elements, NULL);
}
END_TEST

static void one_has_nothing(struct coll_group *g, int rank, void *arg)
{
    size_t send[3] = {0};
    size_t recv[3] = {0};
    int32_t x[3] = {rank * 10, rank * 10 + 1, rank * 10 + 2};
    int32_t y[3] = {-1, -1, -1};

    (void)arg;
    /* Rank 1 neither sends nor gets anything. */
    for (int r = 0; rank != 1 && r < g->size; r++)
        send[r] = recv[r] = r != 1;
    EXPECT_OK(coll_all_to_all_v(rank == 1 ? NULL : x, send, NULL,
        rank == 1 ? NULL : y, recv, NULL, COLL_INT32, g));
    if (rank != 1)
        EXPECT(y[0] == rank / 2 && y[1] == 20 + rank / 2 && y[2] == -1,
            "rank %d got %d %d %d", rank, (int)y[0], (int)y[1], (int)y[2]);
    /* Nobody has anything, and there is one who has all. */
    EXPECT_OK(coll_all_gather_v(
        NULL, 0, NULL, (size_t[]){0, 0, 0}, NULL, COLL_INT32, g));
    EXPECT_OK(coll_all_gather_v(rank == 2 ? x : NULL, rank == 2 ? 3 : 0, y,
        (size_t[]){0, 0, 3}, NULL, COLL_INT32, g));
    EXPECT(y[0] == 20 && y[2] == 22, "rank %d got %d", rank, (int)y[0]);
    EXPECT_OK(coll_reduce_scatter_v(x, (size_t[]){0, 3, 0}, NULL,
        rank == 1 ? y : NULL, COLL_INT32, COLL_SUM, g));
    EXPECT(rank != 1 || y[2] == 36, "got %d", (int)y[2]);
}

/* PG-10 */
START_TEST(one_rank_may_have_no_elements)
{
    harness_run(&store, 3, TIMEOUT_MS, one_has_nothing, NULL);
}
END_TEST

/* --- Calls that make no sense --------------------------------------------- */

#define BAD(call, words) EXPECT_FAILS(call, COLL_ERR_ARGUMENT, words)

static void bad_roots_and_types(struct coll_group *g, int rank, void *arg)
{
    static const int roots[] = {-1, 2, INT32_MAX, INT32_MIN};
    uint64_t turns = g->next_turn;
    char memory[512];
    coll_work_t *work = NULL;

    (void)arg;
    (void)rank;
    memset(memory, 3, sizeof(memory));
    for (int kind = 0; kind < EVERY_OPS; kind++) {
        struct every_call c = plain((enum every)kind, 2);

        c.send = memory;
        c.recv = memory + 256;
        for (int i = 0; every_ops[kind].has_root && i < 4; i++) {
            c.root = roots[i];
            BAD(every_run(&c, g, NULL), "is not a rank of a group of 2");
            BAD(every_run(&c, g, &work), "is not a rank of a group of 2");
        }
        c.root = 0;
        c.op = (coll_op_t)8;
        if (every_ops[kind].has_op)
            BAD(every_run(&c, g, NULL), "unknown reduction 8");
        c.dtype = COLL_FLOAT64;
        c.op = COLL_BXOR;
        if (every_ops[kind].has_op)
            BAD(every_run(&c, g, NULL), "there is no bxor of float64");
        if (kind == EVERY_BARRIER)
            continue;
        c = plain((enum every)kind, 2);
        c.send = memory;
        c.recv = memory + 256;
        c.count = (size_t)PTRDIFF_MAX / sizeof(float) + 1;
        BAD(every_run(&c, g, NULL), "address space");
        c.count = 2;
        c.send = NULL;
        c.recv = NULL;
        c.root = g->rank;
        BAD(every_run(&c, g, NULL), "NULL");
        c.dtype = (coll_dtype_t)15;
        BAD(every_run(&c, g, &work), "unknown data type 15");
    }
    for (size_t i = 0; i < sizeof(memory); i++)
        EXPECT(memory[i] == 3, "byte %zu was written", i);
    EXPECT(work == NULL, "a work of a call that failed");
    EXPECT(g->next_turn == turns, "something was communicated");
    EXPECT_OK(coll_barrier(g));
}

/* PG-09 */
START_TEST(bad_arguments_of_every_operation)
{
    harness_run(&store, 2, TIMEOUT_MS, bad_roots_and_types, NULL);
}
END_TEST

static void bad_buffers(struct coll_group *g, int rank, void *arg)
{
    int32_t x[16] = {0};
    size_t two[2] = {2, 2};
    size_t at[2] = {0, 1};
    size_t huge[2] = {1, SIZE_MAX / 4};
    const void *send[2] = {x, x + 2};
    void *recv[2] = {x + 4, x + 3};
    int other = 1 - rank;

    (void)arg;
    /* In place is where the rank's own part lies, and nowhere else. */
    BAD(coll_all_gather(x + 2 * other, x, 2, COLL_INT32, g), "overlap");
    BAD(coll_gather(x + 1, x, 2, COLL_INT32, rank, g), "overlap");
    BAD(coll_scatter(x, x + 2 * other, 2, COLL_INT32, rank, g), "overlap");
    BAD(coll_reduce_scatter(x, x + 2 * other, 2, COLL_INT32, COLL_SUM, g),
        "overlap");
    BAD(coll_all_to_all(x, x + 2, 2, COLL_INT32, g), "overlap");
    BAD(coll_reduce(x, x + 1, 2, COLL_INT32, COLL_SUM, rank, g), "overlap");
    BAD(coll_all_to_all_v(x, two, NULL, x, two, NULL, COLL_INT32, g),
        "overlap");
    BAD(coll_all_gather_v(x + 1, 2, x, two, NULL, COLL_INT32, g), "overlap");
    BAD(coll_reduce_scatter_v(x, two, NULL, x + 1, COLL_INT32, COLL_SUM, g),
        "overlap");
    BAD(coll_all_reduce_coalesced(send, recv, two, 2, COLL_INT32, COLL_SUM, g),
        "overlap");
    /* Parts that are written are apart. */
    BAD(coll_all_gather_v(x + 8, 2, x, two, at, COLL_INT32, g),
        "parts of ranks 0 and 1 in recvbuf overlap");
    BAD(coll_all_to_all_v(x + 8, two, NULL, x, two, at, COLL_INT32, g),
        "parts of ranks 0 and 1 in recvbuf overlap");
    BAD(coll_reduce_scatter_v(x, two, at, x + rank, COLL_INT32, COLL_SUM, g),
        "parts of ranks 0 and 1 in sendbuf overlap");
    /* Those that are only read may overlap. */
    EXPECT_OK(
        coll_reduce_scatter_v(x, two, at, x + 4, COLL_INT32, COLL_SUM, g));
    /* Counts and offsets. */
    BAD(coll_all_gather_v(x, 1, x + 8, two, NULL, COLL_INT32, g),
        "send_count is 1, recv_counts of this rank");
    BAD(coll_all_gather_v(x, 2, x + 8, NULL, NULL, COLL_INT32, g),
        "recv_counts is NULL");
    BAD(coll_reduce_scatter_v(x, NULL, NULL, x + 8, COLL_INT32, COLL_SUM, g),
        "send_counts is NULL");
    BAD(coll_reduce_scatter_v(x, huge, NULL, x + 8, COLL_INT32, COLL_SUM, g),
        "beyond the address space");
    BAD(coll_all_to_all_v(x, two, huge, x + 8, two, NULL, COLL_INT32, g),
        "beyond the address space");
    at[rank] = 7;
    BAD(coll_all_to_all_v(x, two, NULL, x + 8, at, NULL, COLL_INT32, g),
        "sends itself 2 elements and expects 7");
    BAD(coll_all_reduce_coalesced(NULL, recv, two, 2, COLL_INT32, COLL_SUM, g),
        "a list is NULL, n is 2");
    BAD(coll_monitored_barrier(0, g), "timeout_ms is 0");
    BAD(coll_monitored_barrier(-5, g), "timeout_ms is -5");
    BAD(coll_barrier_async(g, NULL), "coll_barrier_async: work is NULL");
    BAD(coll_all_reduce_async(x, x, 1, COLL_INT32, COLL_SUM, g, NULL),
        "coll_all_reduce_async: work is NULL");
    EXPECT_OK(coll_barrier(g));
}

START_TEST(bad_buffers_of_every_operation)
{
    harness_run(&store, 2, TIMEOUT_MS, bad_buffers, NULL);
}
END_TEST

/* A time-out that is out of reach is none. */
static void no_time_limit(struct coll_group *g, int rank, void *arg)
{
    pthread_barrier_t *late = arg;

    if (rank == 1) {
        struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};

        pthread_barrier_wait(late);
        nanosleep(&pause, NULL);
    } else {
        pthread_barrier_wait(late);
    }
    EXPECT_OK(coll_monitored_barrier(INT64_MAX, g));
    EXPECT_OK(coll_monitored_barrier(INT64_MAX / 1000000, g));
}

START_TEST(large_time_outs_are_no_short_ones)
{
    pthread_barrier_t late;

    pthread_barrier_init(&late, NULL, 2);
    harness_run(&store, 2, TIMEOUT_MS, no_time_limit, &late);
    pthread_barrier_destroy(&late);
}
END_TEST

static void late_ranks(struct coll_group *g, int rank, void *arg)
{
    pthread_barrier_t *over = arg;

    EXPECT_OK(coll_barrier(g));
    if (rank == 0 || rank == 2)
        EXPECT_FAILS(coll_monitored_barrier(200, g), COLL_ERR_TIMEOUT,
            "timed out after 0.2 s in barrier #2 waiting for ranks 1,3");
    pthread_barrier_wait(over);
}

/* PG-19 */
START_TEST(monitored_barrier_names_all_who_are_missing)
{
    pthread_barrier_t over;

    pthread_barrier_init(&over, NULL, 4);
    harness_run(&store, 4, TIMEOUT_MS, late_ranks, &over);
    pthread_barrier_destroy(&over);
}
END_TEST

/* --- After the end -------------------------------------------------------- */

/* PG-09 */
START_TEST(a_group_that_was_destroyed_is_an_error)
{
    struct coll_group *g = NULL;
    coll_work_t *work = NULL;
    bool done = true;
    int32_t x = 5;
    void *data = &x;
    size_t len = sizeof(x);

    ck_assert_int_eq(
        coll_group_create(&g, &coll_backend_self, 0, 1, 1000, NULL), COLL_OK);
    ck_assert_int_eq(
        coll_all_reduce_async(&x, &x, 1, COLL_INT32, COLL_SUM, g, &work),
        COLL_OK);
    ck_assert_int_eq(coll_work_wait(work, 0), COLL_OK);
    coll_group_free(g);
    /* The work is the program's still. */
    ck_assert_int_eq(coll_work_wait(work, 1), COLL_OK);
    ck_assert_int_eq(coll_work_test(work, &done), COLL_OK);
    ck_assert(done);
    ck_assert_int_eq(coll_work_source(work), -1);
    coll_work_free(work);
    for (int kind = 0; kind < EVERY_OPS; kind++) {
        struct every_call c = {.kind = (enum every)kind};

        /* every_run() reads the group's size and rank, which stay. */
        ck_assert_int_eq(every_run(&c, g, NULL), COLL_ERR_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(coll_last_error(), "been destroyed"));
        ck_assert_int_eq(every_run(&c, g, &work), COLL_ERR_ARGUMENT);
    }
    ck_assert_int_eq(coll_send(&x, 1, COLL_INT32, 1, 0, g), COLL_ERR_ARGUMENT);
    ck_assert_int_eq(
        coll_recv(&x, 1, COLL_INT32, 1, 0, NULL, g), COLL_ERR_ARGUMENT);
    ck_assert_int_eq(coll_batch(NULL, 0, g, &work), COLL_ERR_ARGUMENT);
    ck_assert_int_eq(
        coll_broadcast_object(&data, &len, 0, g), COLL_ERR_ARGUMENT);
    ck_assert_int_eq(
        coll_all_gather_object(NULL, 0, &data, &len, g), COLL_ERR_ARGUMENT);
    ck_assert_int_eq(coll_abort(g), COLL_ERR_ARGUMENT);
    ck_assert_int_eq(coll_monitored_barrier(5, g), COLL_ERR_ARGUMENT);
    ck_assert_int_eq(coll_group_destroy(g), COLL_ERR_ARGUMENT);
    ck_assert_int_eq(coll_group_destroy(NULL), COLL_ERR_ARGUMENT);
    ck_assert_int_eq(coll_group_split(&g, g, 0, 0, NULL), COLL_ERR_ARGUMENT);
    ck_assert_int_eq(coll_rank(g), -1);
    ck_assert_int_eq(coll_world_size(g), -1);
    ck_assert_int_eq(coll_global_rank(g, 0), -1);
    ck_assert_int_eq(coll_group_rank(g, 0), -1);
    ck_assert_ptr_null(coll_backend_name(g));
    /* Who asks for names has a sentence to write. */
    ck_assert_ptr_nonnull(strstr(coll_last_error(), "coll_group_split: "));
}
END_TEST

/* PG-09 */
START_TEST(nothing_works_before_coll_init)
{
    coll_group_t *g = NULL;
    coll_work_t *work = NULL;
    bool done = false;
    int rank = 0;
    void *data = NULL;
    size_t len = 0;

    ck_assert_int_eq(coll_group_new(&g, &rank, 1, NULL), COLL_ERR_STATE);
    ck_assert_int_eq(coll_group_split(&g, NULL, 0, 0, NULL), COLL_ERR_STATE);
    ck_assert_int_eq(coll_abort(NULL), COLL_ERR_STATE);
    ck_assert_int_eq(
        coll_send(&rank, 1, COLL_INT32, 1, 0, NULL), COLL_ERR_STATE);
    ck_assert_int_eq(
        coll_irecv(&rank, 1, COLL_INT32, 1, 0, NULL, &work), COLL_ERR_STATE);
    ck_assert_int_eq(coll_batch(NULL, 0, NULL, &work), COLL_ERR_STATE);
    ck_assert_int_eq(
        coll_broadcast_object(&data, &len, 0, NULL), COLL_ERR_STATE);
    ck_assert_int_eq(
        coll_all_gather_object(NULL, 0, &data, &len, NULL), COLL_ERR_STATE);
    ck_assert_int_eq(coll_barrier_async(NULL, &work), COLL_ERR_STATE);
    ck_assert_int_eq(coll_monitored_barrier(5, NULL), COLL_ERR_STATE);
    ck_assert_int_eq(coll_work_wait(NULL, 0), COLL_ERR_ARGUMENT);
    ck_assert_int_eq(coll_work_test(NULL, &done), COLL_ERR_ARGUMENT);
    ck_assert_int_eq(coll_work_then(NULL, NULL, NULL), COLL_ERR_ARGUMENT);
    ck_assert_int_eq(coll_work_source(NULL), -1);
    coll_work_free(NULL);
    ck_assert_int_eq(coll_global_rank(NULL, 0), -1);
    ck_assert_int_eq(coll_group_rank(NULL, 0), -1);
    ck_assert_ptr_null(work);
    ck_assert_ptr_null(g);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("misuse");

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, different_counts_fail_everywhere, 0, EVERY_BARRIER);
    tcase_add_test(tc, different_parts_fail_everywhere);
    tcase_add_test(tc, all_to_all_v_of_two_that_differ_fails_everywhere);
    tcase_add_loop_test(tc, different_operations_fail_everywhere, 0, EVERY_OPS);
    tcase_add_loop_test(tc, different_details_fail_everywhere, 0, EVERY_OPS);
    tcase_add_loop_test(tc, all_to_all_is_in_place_on_all_or_none, 0, LAYOUTS);
    tcase_add_loop_test(tc, who_leaves_early_is_named, 0, EVERY_OPS);
    tcase_add_loop_test(tc, zero_elements_are_a_step, 1, 4);
    tcase_add_test(tc, one_rank_may_have_no_elements);
    tcase_add_test(tc, bad_arguments_of_every_operation);
    tcase_add_test(tc, bad_buffers_of_every_operation);
    tcase_add_test(tc, large_time_outs_are_no_short_ones);
    tcase_add_test(tc, monitored_barrier_names_all_who_are_missing);
    tcase_add_test(tc, a_group_that_was_destroyed_is_an_error);
    tcase_add_test(tc, nothing_works_before_coll_init);
    return unit_run("coll_misuse", tc);
}
