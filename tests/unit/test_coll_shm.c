/*
 * The operations over shared memory, ranks as threads: results against a
 * slow reference, and what happens when ranks do not do the same, or leave,
 * or do not come.
 */
#include <fcntl.h>
#include <stdint.h>

#include "tests/unit/coll_cases.h"
#include "tests/unit/coll_harness.h"
#include "tests/unit/unit.h"
#include "worker/shm_internal.h"

static struct harness_store store;

static void setup(void)
{
    harness_store_start(&store);
}

static void teardown(void)
{
    harness_store_stop(&store);
}

/* Long enough for any of these tests on a loaded machine, short enough to
 * tell a hang. */
#define TIMEOUT_MS 30000

static const int sizes[] = {1, 2, 3, 4, 7, 8};
#define SIZE_CASES ((int)(sizeof(sizes) / sizeof(sizes[0])))

/* --- all_reduce --------------------------------------------------------- */

static void every_small_reduction(struct coll_group *g, int rank, void *arg)
{
    static const size_t counts[] = {0, 1, 2, 3, 7, 1000};
    int style = 0;

    (void)arg;
    for (int dtype = COLL_FLOAT32; dtype <= COLL_INT64; dtype++)
        for (int op = COLL_SUM; op <= COLL_PRODUCT; op++)
            for (int c = 0; c < 6; c++)
                for (int i = 0; i < 4; i++)
                    reduce_once(g, rank, counts[c], (coll_dtype_t)dtype,
                        (coll_op_t)op, style++ % 8);
}

START_TEST(small_reductions_are_right)
{
    harness_run(&store, sizes[_i], TIMEOUT_MS, every_small_reduction, NULL);
}
END_TEST

/* Around the sizes where the way of working changes. */
static void large_reductions(struct coll_group *g, int rank, void *arg)
{
    struct shm_state *s = g->state;
    int style = 0;

    (void)arg;
    for (int dtype = COLL_FLOAT32; dtype <= COLL_INT64; dtype++) {
        size_t chunk = s->chunk_bytes / coll_dtype_size((coll_dtype_t)dtype);
        size_t counts[] = {2047, 2048, 2049, 5003, chunk - 1, chunk, chunk + 1,
            2 * chunk, 3 * chunk + 5};

        for (int c = 0; c < 9; c++, style++)
            reduce_once(g, rank, counts[c], (coll_dtype_t)dtype,
                (coll_op_t)(style % (COLL_PRODUCT + 1)), style % 8);
    }
}

START_TEST(large_reductions_are_right)
{
    harness_run(&store, sizes[_i], TIMEOUT_MS, large_reductions, NULL);
}
END_TEST

/* --- Same bits ---------------------------------------------------------- */

enum { BITS_COUNT = 70001, BITS_RANKS = 7 };

static void reduce_noise(struct coll_group *g, int rank, void *arg)
{
    float *results = arg;
    float *mine = results + (size_t)rank * BITS_COUNT;

    /* Any bit pattern: rounding, infinities, NaNs with payloads. */
    for (uint32_t i = 0; i < BITS_COUNT; i++) {
        uint32_t bits = (i * 31 + (uint32_t)rank) * 2654435761u;
        memcpy(&mine[i], &bits, sizeof(bits));
    }
    EXPECT_OK(coll_all_reduce(mine, mine, 1001, COLL_FLOAT32, COLL_SUM, g));
    EXPECT_OK(coll_all_reduce(mine + 1001, mine + 1001, BITS_COUNT - 1001,
        COLL_FLOAT32, COLL_AVG, g));
}

START_TEST(all_ranks_get_the_same_bits)
{
    float *results = calloc(BITS_RANKS * BITS_COUNT, sizeof(float));

    harness_run(&store, BITS_RANKS, TIMEOUT_MS, reduce_noise, results);
    for (size_t r = 1; r < BITS_RANKS; r++)
        ck_assert_int_eq(memcmp(results, results + r * BITS_COUNT,
                             BITS_COUNT * sizeof(float)),
            0);
    free(results);
}
END_TEST

/* --- Broadcast and barrier ---------------------------------------------- */

static void broadcasts(struct coll_group *g, int rank, void *arg)
{
    struct shm_state *s = g->state;
    size_t chunk = s->chunk_bytes / 8;
    size_t counts[] = {
        0, 1, 3, 1000, chunk - 1, chunk, chunk + 1, 3 * chunk + 5};

    (void)arg;
    for (int root = 0; root < g->size; root++) {
        for (int c = 0; c < 8; c++) {
            size_t bytes = counts[c] * 8;
            char *memory = malloc(bytes + 16);
            char *buf = memory + (rank + c) % 5;
            size_t wrong = 0;

            for (size_t i = 0; i < bytes; i++)
                buf[i] = rank == root ? (char)(i * 7 + (size_t)root) : -1;
            buf[bytes] = 77;
            EXPECT_OK(coll_broadcast(
                counts[c] == 0 ? NULL : buf, counts[c], COLL_INT64, root, g));
            for (size_t i = 0; i < bytes; i++)
                wrong += buf[i] != (char)(i * 7 + (size_t)root);
            EXPECT(wrong == 0 && buf[bytes] == 77,
                "rank %d: %zu of %zu bytes from %d are wrong", rank, wrong,
                bytes, root);
            free(memory);
        }
    }
}

START_TEST(broadcast_reaches_everybody_from_every_root)
{
    harness_run(&store, sizes[_i], TIMEOUT_MS, broadcasts, NULL);
}
END_TEST

static void barriers(struct coll_group *g, int rank, void *arg)
{
    _Atomic int *arrived = arg;

    (void)rank;
    for (int i = 1; i <= 200; i++) {
        atomic_fetch_add(arrived, 1);
        EXPECT_OK(coll_barrier(g));
        EXPECT(
            atomic_load(arrived) >= i * g->size, "barrier %d let through", i);
    }
}

START_TEST(barrier_waits_for_everybody)
{
    _Atomic int arrived = 0;

    harness_run(&store, sizes[_i], TIMEOUT_MS, barriers, &arrived);
}
END_TEST

/* All kinds in one sequence, and a count of 0 is a step of it. */
static void mixture(struct coll_group *g, int rank, void *arg)
{
    (void)arg;
    for (uint64_t i = 0; i < 300; i += 4) {
        int64_t x = rank;
        int64_t y[50] = {0};

        EXPECT_OK(coll_all_reduce(&x, &x, 1, COLL_INT64, COLL_SUM, g));
        EXPECT(x == g->size * (g->size - 1) / 2, "sum is %lld", (long long)x);
        EXPECT_OK(coll_all_reduce(NULL, NULL, 0, COLL_FLOAT32, COLL_AVG, g));
        EXPECT_OK(coll_broadcast(y, 50, COLL_INT64, (int)i % g->size, g));
        EXPECT_OK(coll_barrier(g));
        EXPECT(g->seq == i + 4, "sequence is %llu after %llu operations",
            (unsigned long long)g->seq, (unsigned long long)i + 4);
    }
}

START_TEST(kinds_mix_in_one_sequence)
{
    harness_run(&store, sizes[_i], TIMEOUT_MS, mixture, NULL);
}
END_TEST

/* --- Two groups at once ------------------------------------------------- */

static void *reduce_in_thread(void *arg)
{
    struct coll_group *g = arg;

    for (int i = 0; i < 300; i++) {
        int64_t x = g->rank + i;

        EXPECT_OK(coll_all_reduce(&x, &x, 1, COLL_INT64, COLL_MAX, g));
        EXPECT(x == g->size - 1 + i, "got %lld", (long long)x);
    }
    return NULL;
}

/* A second group over the first one's store, then a thread on each. */
static void two_groups(struct coll_group *g, int rank, void *arg)
{
    struct harness_job second = {
        .store = &store, .timeout_ms = TIMEOUT_MS, .prefix = "second/"};
    struct coll_group *g2 = NULL;
    pthread_t thread;

    (void)arg;
    EXPECT_OK(harness_join(&second, g->size - 1 - rank, g->size, &g2));
    if (g2 == NULL)
        return;
    EXPECT(pthread_create(&thread, NULL, reduce_in_thread, g2) == 0, "thread");
    reduce_in_thread(g);
    pthread_join(thread, NULL);
    coll_group_free(g2);
}

START_TEST(groups_do_not_disturb_each_other)
{
    harness_run(&store, 3, TIMEOUT_MS, two_groups, NULL);
}
END_TEST

/* --- Ranks that do not do the same -------------------------------------- */

/* After a failure every call says the same at once. */
static void expect_broken(
    struct coll_group *g, coll_status_t status, const char *words)
{
    EXPECT_FAILS(coll_barrier(g), status, words);
    EXPECT_FAILS(coll_broadcast(NULL, 0, COLL_INT32, 0, g), status, words);
}

struct counts_case {
    size_t small;
    size_t large;
};

static const struct counts_case counts_cases[] = {
    {100, 200}, {0, 200}, {1, 100000}, {100000, 100001}, {200, 100000}};

static void different_counts(struct coll_group *g, int rank, void *arg)
{
    const struct counts_case *c = arg;
    size_t count = rank == 0 ? c->small : c->large;
    float *x = calloc(c->large, sizeof(*x));
    char mine[96];
    char theirs[96];

    snprintf(mine, sizeof(mine),
        "operation #2: rank 0 called all_reduce(count=%zu, float32, sum), ",
        c->small);
    snprintf(theirs, sizeof(theirs),
        "ranks 1-3 called all_reduce(count=%zu, float32, sum)", c->large);
    EXPECT_OK(coll_barrier(g));
    EXPECT_FAILS(coll_all_reduce(x, x, count, COLL_FLOAT32, COLL_SUM, g),
        COLL_ERR_MISMATCH, mine);
    EXPECT(strstr(coll_last_error(), theirs) != NULL, "%s is not in %s", theirs,
        coll_last_error());
    expect_broken(g, COLL_ERR_MISMATCH, theirs);
    free(x);
}

START_TEST(different_counts_fail_everywhere)
{
    struct counts_case c = counts_cases[_i];

    harness_run(&store, 4, TIMEOUT_MS, different_counts, &c);
}
END_TEST

static void broadcast_counts(struct coll_group *g, int rank, void *arg)
{
    double x[200] = {0};

    (void)arg;
    EXPECT_FAILS(coll_broadcast(x, rank == 0 ? 100 : 200, COLL_FLOAT64, 1, g),
        COLL_ERR_MISMATCH,
        "rank 0 called broadcast(count=100, float64, root=1)"
        ", ranks 1-3 called broadcast(count=200, ");
}

START_TEST(different_broadcast_counts_fail_everywhere)
{
    harness_run(&store, 4, TIMEOUT_MS, broadcast_counts, NULL);
}
END_TEST

static void different_order(struct coll_group *g, int rank, void *arg)
{
    int32_t x[10] = {0};
    const char *words =
        "mismatch at operation #1: rank 0 called all_reduce(count=10, int32, "
        "max), rank 1 called broadcast(count=10, int32, root=0)";

    (void)arg;
    if (rank == 0)
        EXPECT_FAILS(coll_all_reduce(x, x, 10, COLL_INT32, COLL_MAX, g),
            COLL_ERR_MISMATCH, words);
    else
        EXPECT_FAILS(
            coll_broadcast(x, 10, COLL_INT32, 0, g), COLL_ERR_MISMATCH, words);
    expect_broken(g, COLL_ERR_MISMATCH, words);
}

START_TEST(different_order_fails_everywhere)
{
    harness_run(&store, 2, TIMEOUT_MS, different_order, NULL);
}
END_TEST

static void barrier_against_all_reduce(
    struct coll_group *g, int rank, void *arg)
{
    int64_t x = 0;

    (void)arg;
    EXPECT_FAILS(rank % 2 == 0
                     ? coll_barrier(g)
                     : coll_all_reduce(&x, &x, 1, COLL_INT64, COLL_SUM, g),
        COLL_ERR_MISMATCH,
        "ranks 0,2 called barrier(), ranks 1,3 called all_reduce(count=1, "
        "int64, sum)");
}

START_TEST(barrier_against_all_reduce_fails_everywhere)
{
    harness_run(&store, 4, TIMEOUT_MS, barrier_against_all_reduce, NULL);
}
END_TEST

static void different_details(struct coll_group *g, int rank, void *arg)
{
    int which = *(const int *)arg;
    double x[8] = {0};

    if (which == 0)
        EXPECT_FAILS(coll_all_reduce(x, x, 8,
                         rank == 1 ? COLL_INT64 : COLL_FLOAT64, COLL_SUM, g),
            COLL_ERR_MISMATCH, "int64");
    else if (which == 1)
        EXPECT_FAILS(coll_all_reduce(x, x, 8, COLL_FLOAT64,
                         rank == 1 ? COLL_AVG : COLL_SUM, g),
            COLL_ERR_MISMATCH, "avg");
    else
        EXPECT_FAILS(coll_broadcast(x, 8, COLL_FLOAT64, rank == 1, g),
            COLL_ERR_MISMATCH, "root=1");
}

START_TEST(different_type_operation_or_root_fails)
{
    int which = _i;

    harness_run(&store, 3, TIMEOUT_MS, different_details, &which);
}
END_TEST

/* --- Ranks that leave or do not come ------------------------------------ */

static void one_leaves(struct coll_group *g, int rank, void *arg)
{
    float x = 1;
    int operations = rank == 1 ? 9 : 10;

    (void)arg;
    for (int i = 1; i <= operations; i++) {
        coll_status_t status =
            coll_all_reduce(&x, &x, 1, COLL_FLOAT32, COLL_SUM, g);

        EXPECT(status == (i == 10 ? COLL_ERR_PEER : COLL_OK),
            "operation %d: %s", i, coll_last_error());
    }
    if (rank == 1)
        return; /* the harness destroys its group */
    EXPECT(strstr(coll_last_error(), "rank 1 left after operation 9") != NULL,
        "%s", coll_last_error());
    expect_broken(g, COLL_ERR_PEER, "rank 1 left after operation 9");
}

START_TEST(rank_that_left_is_named)
{
    harness_run(&store, 2 + 2 * _i, TIMEOUT_MS, one_leaves, NULL);
}
END_TEST

/* Rank 1 publishes all that the last operation needs and leaves at once;
 * that is no error for ranks that come later. */
static void last_words(struct coll_group *g, int rank, void *arg)
{
    _Atomic int *has_left = arg;
    int64_t x = rank;

    (void)rank;
    EXPECT_OK(coll_all_reduce(&x, &x, 1, COLL_INT64, COLL_SUM, g));
    EXPECT(x == 3, "sum is %lld", (long long)x);
    atomic_fetch_add(has_left, 1);
}

/* coll_init() can fail on a rank when the others have the group already. */
static void fail_after_creation(struct coll_group *g, int rank, void *arg)
{
    (void)arg;
    if (rank == 1)
        g->failure = coll_fail(COLL_ERR_STORE, "coll_init: no mark");
    else
        EXPECT_FAILS(coll_barrier(g), COLL_ERR_PEER,
            "rank 1 gave up: coll_init: no mark");
}

START_TEST(reason_of_a_rank_that_fails_late_is_told)
{
    harness_run(&store, 3, 20000, fail_after_creation, NULL);
}
END_TEST

START_TEST(leaving_after_the_last_operation_is_no_error)
{
    for (int i = 0; i < 20; i++) {
        _Atomic int has_left = 0;

        harness_run(&store, 3, TIMEOUT_MS, last_words, &has_left);
        ck_assert_int_eq(has_left, 3);
    }
}
END_TEST

struct late {
    pthread_barrier_t done;
};

/* Ranks 1 and 2 do not come until rank 0 and 3 have given up. */
static void some_are_late(struct coll_group *g, int rank, void *arg)
{
    struct late *late = arg;

    EXPECT_OK(coll_barrier(g));
    /* Enough for both to be there before the time of one is over. */
    g->timeout_ms = 2000;
    if (rank == 0 || rank == 3)
        EXPECT_FAILS(coll_barrier(g), COLL_ERR_TIMEOUT,
            "timed out after 2.0 s in barrier #2 waiting for ranks 1,2");
    pthread_barrier_wait(&late->done);
    if (rank == 1 || rank == 2) {
        coll_status_t status = coll_barrier(g);

        /* The second of the two may find everybody there. */
        if (status == COLL_OK)
            status = coll_barrier(g);
        EXPECT(status == COLL_ERR_PEER || status == COLL_ERR_TIMEOUT,
            "got %s: %s", coll_strerror(status), coll_last_error());
        EXPECT(strstr(coll_last_error(), "waiting for rank") != NULL, "%s",
            coll_last_error());
    }
    pthread_barrier_wait(&late->done); /* nobody leaves before */
}

START_TEST(late_ranks_are_named)
{
    struct late late;

    pthread_barrier_init(&late.done, NULL, 4);
    harness_run(&store, 4, TIMEOUT_MS, some_are_late, &late);
    pthread_barrier_destroy(&late.done);
}
END_TEST

/* One rank's short time-out ends everybody's wait. */
static void one_gives_up(struct coll_group *g, int rank, void *arg)
{
    struct late *late = arg;

    EXPECT_OK(coll_barrier(g));
    if (rank == 0)
        g->timeout_ms = 100;
    if (rank != 2)
        EXPECT_FAILS(coll_barrier(g), COLL_ERR_TIMEOUT,
            "timed out after 0.1 s "
            "in barrier #2 waiting "
            "for rank");
    pthread_barrier_wait(&late->done);
}

START_TEST(one_time_out_ends_all_waiting)
{
    struct late late;

    pthread_barrier_init(&late.done, NULL, 3);
    harness_run(&store, 3, TIMEOUT_MS, one_gives_up, &late);
    pthread_barrier_destroy(&late.done);
}
END_TEST

/* Whoever hears of it first: the sentence does not grow on its way. */
static void last_gives_up(struct coll_group *g, int rank, void *arg)
{
    struct late *late = arg;
    const char *told;

    EXPECT_OK(coll_barrier(g));
    if (rank == g->size - 1)
        g->timeout_ms = 100;
    if (rank != 2)
        EXPECT_FAILS(
            coll_barrier(g), COLL_ERR_TIMEOUT, "timed out after 0.1 s");
    told = strstr(coll_last_error(), "gave up: ");
    EXPECT(told == NULL || strstr(told + 1, "gave up: ") == NULL, "%s",
        coll_last_error());
    pthread_barrier_wait(&late->done);
}

START_TEST(reason_is_passed_on_as_it_is)
{
    struct late late;

    pthread_barrier_init(&late.done, NULL, 8);
    harness_run(&store, 8, TIMEOUT_MS, last_gives_up, &late);
    pthread_barrier_destroy(&late.done);
}
END_TEST

/* --- Joining ------------------------------------------------------------ */

struct joiner {
    struct harness_job job;
    int rank;
    int size;
    coll_status_t status;
    char text[512];
    pthread_t thread;
};

static void *join_main(void *arg)
{
    struct joiner *j = arg;
    struct coll_group *g = NULL;

    j->status = harness_join(&j->job, j->rank, j->size, &g);
    snprintf(j->text, sizeof(j->text), "%s", coll_last_error());
    coll_group_free(g);
    return NULL;
}

static void join_start(
    struct joiner *j, const char *prefix, int64_t timeout_ms, int rank, int n)
{
    *j = (struct joiner){.rank = rank, .size = n};
    j->job.store = &store;
    j->job.timeout_ms = timeout_ms;
    snprintf(j->job.prefix, sizeof(j->job.prefix), "%s", prefix);
    ck_assert_int_eq(pthread_create(&j->thread, NULL, join_main, j), 0);
}

static void join_end(struct joiner *j, coll_status_t status, const char *words)
{
    pthread_join(j->thread, NULL);
    ck_assert_msg(j->status == status, "rank %d: %s: %s", j->rank,
        coll_strerror(j->status), j->text);
    ck_assert_msg(strstr(j->text, words) != NULL, "rank %d: \"%s\" not in %s",
        j->rank, words, j->text);
}

START_TEST(ranks_that_do_not_join_are_named)
{
    struct joiner j[2];

    join_start(&j[0], "missing/", 1500, 0, 5);
    join_start(&j[1], "missing/", 1500, 3, 5);
    for (int i = 0; i < 2; i++)
        join_end(&j[i], COLL_ERR_TIMEOUT,
            "timed out after 1.5 s in coll_init waiting for ranks 1,2,4");
}
END_TEST

START_TEST(missing_rank_0_is_named)
{
    struct joiner j;

    join_start(&j, "headless/", 1500, 1, 2);
    join_end(&j, COLL_ERR_TIMEOUT,
        "timed out after 1.5 s in coll_init waiting for rank 0");
}
END_TEST

START_TEST(different_world_sizes_are_told)
{
    struct joiner j[2];

    join_start(&j[0], "sizes/", TIMEOUT_MS, 0, 2);
    join_start(&j[1], "sizes/", TIMEOUT_MS, 1, 3);
    for (int i = 0; i < 2; i++)
        join_end(&j[i], COLL_ERR_ENVIRONMENT,
            "rank 1 has a world size of 3, rank 0 of 2");
}
END_TEST

/* Also to a rank that has not been counted yet. */
START_TEST(different_world_size_is_told_to_all)
{
    struct joiner j[4];

    for (int i = 0; i < 4; i++)
        join_start(&j[i], "sizes4/", TIMEOUT_MS, i, i == 0 ? 2 : 4);
    for (int i = 0; i < 4; i++)
        join_end(
            &j[i], COLL_ERR_ENVIRONMENT, "has a world size of 4, rank 0 of 2");
}
END_TEST

/* Ranks that are just starting are told, too. */
START_TEST(wrong_set_up_is_told_to_late_ranks)
{
    struct joiner j[3];

    join_start(&j[0], "late/", TIMEOUT_MS, 0, 3);
    join_start(&j[1], "late/", TIMEOUT_MS, 1, 4);
    join_end(&j[1], COLL_ERR_ENVIRONMENT, "rank 1 has a world size of 4");
    join_start(&j[2], "late/", TIMEOUT_MS, 2, 3);
    join_end(&j[0], COLL_ERR_ENVIRONMENT, "rank 1 has a world size of 4");
    join_end(&j[2], COLL_ERR_ENVIRONMENT, "rank 1 has a world size of 4");
}
END_TEST

START_TEST(same_rank_twice_is_told)
{
    struct joiner j[3];
    int twice = _i;

    join_start(&j[0], "twice/", TIMEOUT_MS, 0, 3);
    join_start(&j[1], "twice/", TIMEOUT_MS, twice, 3);
    join_start(&j[2], "twice/", TIMEOUT_MS, 1, 3);
    for (int i = 0; i < 3; i++)
        join_end(&j[i], COLL_ERR_ENVIRONMENT,
            "two workers of the job have the same RANK");
}
END_TEST

/* A rank gives up waiting and tries again, the others come only then. */
START_TEST(failed_attempt_can_be_repeated)
{
    struct joiner j[3];

    for (int i = 0; i < 3; i++) {
        char prefix[32];

        snprintf(prefix, sizeof(prefix), "again/%d/", i);
        join_start(&j[1], prefix, 500, 1, 3);
        join_end(&j[1], COLL_ERR_TIMEOUT, "waiting for rank 0");
        join_start(&j[0], prefix, 500, 0, 3);
        join_end(&j[0], COLL_ERR_TIMEOUT, "waiting for ranks 1,2");
        join_start(&j[0], prefix, TIMEOUT_MS, 0, 3);
        join_start(&j[2], prefix, TIMEOUT_MS, 2, 3);
        join_start(&j[1], prefix, TIMEOUT_MS, 1, 3);
        for (int r = 0; r < 3; r++)
            join_end(&j[r], COLL_OK, "");
    }
}
END_TEST

START_TEST(garbage_in_the_store_is_no_group)
{
    struct joiner j;

    ck_assert_int_eq(
        coll_store_set(store.store, "garbage/rank0", "1 2 x", 5), COLL_OK);
    join_start(&j, "garbage/", TIMEOUT_MS, 1, 2);
    join_end(&j, COLL_ERR_STORE, "what rank 0 left in the store");
}
END_TEST

/* Or the next program of the same workers would find it. */
START_TEST(nothing_of_a_group_stays_in_the_store)
{
    static const char *const key[] = {"tidy/rank0"};
    struct joiner j[4];
    bool exists = true;

    for (int cycle = 0; cycle < 20; cycle++) {
        for (int i = 0; i < 4; i++)
            join_start(&j[i], "tidy/", TIMEOUT_MS, i, 4);
        join_end(&j[cycle % 4], COLL_OK, "");
        /* Looked at as soon as one rank has its group. */
        ck_assert_int_eq(
            coll_store_check(store.store, key, 1, &exists), COLL_OK);
        ck_assert(!exists);
        for (int i = 0; i < 4; i++)
            if (i != cycle % 4)
                join_end(&j[i], COLL_OK, "");
    }
}
END_TEST

static void nothing(struct coll_group *g, int rank, void *arg)
{
    (void)arg;
    EXPECT(coll_rank(g) == rank, "rank %d", coll_rank(g));
    EXPECT(strcmp(coll_backend_name(g), "shm") == 0, "back end");
}

static int count_fds(void)
{
    int count = 0;

    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

START_TEST(groups_leave_no_descriptor)
{
    int before = count_fds();

    for (int i = 0; i < 30; i++)
        harness_run(&store, 3, TIMEOUT_MS, nothing, NULL);
    /* The server notices a closed connection a moment later. */
    for (uint64_t deadline_ns = clock_deadline_ns(TIMEOUT_MS);
         count_fds() > before && clock_now_ns() < deadline_ns;)
        sched_yield();
    ck_assert_int_eq(count_fds(), before);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("shm");

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, small_reductions_are_right, 0, SIZE_CASES);
    tcase_add_loop_test(tc, large_reductions_are_right, 0, SIZE_CASES);
    tcase_add_test(tc, all_ranks_get_the_same_bits);
    tcase_add_loop_test(
        tc, broadcast_reaches_everybody_from_every_root, 0, SIZE_CASES);
    tcase_add_loop_test(tc, barrier_waits_for_everybody, 0, SIZE_CASES);
    tcase_add_loop_test(tc, kinds_mix_in_one_sequence, 0, SIZE_CASES);
    tcase_add_test(tc, groups_do_not_disturb_each_other);
    tcase_add_loop_test(tc, different_counts_fail_everywhere, 0,
        (int)(sizeof(counts_cases) / sizeof(counts_cases[0])));
    tcase_add_test(tc, different_broadcast_counts_fail_everywhere);
    tcase_add_test(tc, different_order_fails_everywhere);
    tcase_add_test(tc, barrier_against_all_reduce_fails_everywhere);
    tcase_add_loop_test(tc, different_type_operation_or_root_fails, 0, 3);
    tcase_add_loop_test(tc, rank_that_left_is_named, 0, 3);
    tcase_add_test(tc, reason_of_a_rank_that_fails_late_is_told);
    tcase_add_test(tc, leaving_after_the_last_operation_is_no_error);
    tcase_add_test(tc, late_ranks_are_named);
    tcase_add_test(tc, one_time_out_ends_all_waiting);
    tcase_add_test(tc, reason_is_passed_on_as_it_is);
    tcase_add_test(tc, ranks_that_do_not_join_are_named);
    tcase_add_test(tc, missing_rank_0_is_named);
    tcase_add_test(tc, different_world_sizes_are_told);
    tcase_add_test(tc, different_world_size_is_told_to_all);
    tcase_add_test(tc, wrong_set_up_is_told_to_late_ranks);
    tcase_add_loop_test(tc, same_rank_twice_is_told, 0, 2);
    tcase_add_test(tc, nothing_of_a_group_stays_in_the_store);
    tcase_add_test(tc, failed_attempt_can_be_repeated);
    tcase_add_test(tc, garbage_in_the_store_is_no_group);
    tcase_add_test(tc, groups_leave_no_descriptor);
    return unit_run("coll_shm", tc);
}
