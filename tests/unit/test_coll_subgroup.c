/*
 * Groups that a program makes: who is in them, in which order, what they are
 * called in sentences; who makes which one first; their end, and the end of
 * everything. Ranks are processes, because there is one job per process.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rendezvous/worker_env.h"
#include "tests/unit/coll_every.h"
#include "tests/unit/unit.h"

enum { RANKS = 8 };

/* --- Processes ------------------------------------------------------------ */

/* What ranks tell each other beside the library: a byte to each rank. */
static int mail[RANKS][2];

static void post(int rank)
{
    if (write(mail[rank][1], "x", 1) != 1)
        _exit(9);
}

static void await_post(int rank)
{
    char byte;

    if (read(mail[rank][0], &byte, 1) != 1)
        _exit(9);
}

typedef int process_fn(int rank, int size);

#define CHECK_THAT(cond)                                                       \
    do {                                                                       \
        if (!(cond)) {                                                         \
            fprintf(stderr, "rank %d, line %d: %s: %s\n", rank, __LINE__,      \
                #cond, coll_last_error());                                     \
            return 1;                                                          \
        }                                                                      \
    } while (0)

#define CHECK_OK(call) CHECK_THAT((call) == COLL_OK)

static bool has_said(const char *words)
{
    return strstr(coll_last_error(), words) != NULL;
}

#define CHECK_FAILS(call, status, words)                                       \
    do {                                                                       \
        CHECK_THAT((call) == (status));                                        \
        CHECK_THAT(has_said(words));                                           \
    } while (0)

static int rank_main(int rank, int size, int port_pipe, process_fn *fn)
{
    char text[16];
    int port;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (read(port_pipe, &port, sizeof(port)) != sizeof(port))
        return 2;
    close(port_pipe);
    snprintf(text, sizeof(text), "%d", rank);
    setenv(ENV_RANK, text, 1);
    snprintf(text, sizeof(text), "%d", size);
    setenv(ENV_WORLD_SIZE, text, 1);
    setenv(ENV_LOCAL_WORLD_SIZE, text, 1);
    harness_set_master(port);
    setenv("COLL_TIMEOUT", "60", 1);
    return fn(rank, size);
}

/* Each rank ends with 0, but for one that is killed. */
static void run(int size, process_fn *fn, int killed)
{
    struct harness_store st;
    int ports[2];
    pid_t pids[RANKS];

    ck_assert_int_eq(pipe2(ports, O_CLOEXEC), 0);
    for (int r = 0; r < size; r++)
        ck_assert_int_eq(pipe2(mail[r], O_CLOEXEC), 0);
    for (int r = 0; r < size; r++) {
        pids[r] = fork();
        ck_assert_int_ge(pids[r], 0);
        if (pids[r] == 0) {
            close(ports[1]);
            exit(rank_main(r, size, ports[0], fn));
        }
    }
    harness_store_start(&st);
    for (int r = 0; r < size; r++)
        ck_assert_int_eq(
            write(ports[1], &st.port, sizeof(st.port)), sizeof(st.port));
    for (int r = 0; r < size; r++) {
        int status;

        ck_assert_int_eq(waitpid(pids[r], &status, 0), pids[r]);
        if (r == killed)
            ck_assert_msg(WIFSIGNALED(status), "rank %d: %x", r, status);
        else
            ck_assert_msg(status == 0, "rank %d: status %x", r, status);
    }
    harness_store_stop(&st);
    close(ports[0]);
    close(ports[1]);
    for (int r = 0; r < size; r++) {
        close(mail[r][0]);
        close(mail[r][1]);
    }
}

/* A group of these, with a time-out of its own or 0. */
static coll_status_t make(
    coll_group_t **g, int64_t timeout_ms, int n, const int *ranks)
{
    const coll_group_options_t options = {.timeout_ms = timeout_ms};

    return coll_group_new(g, ranks, n, timeout_ms == 0 ? NULL : &options);
}

#define LIST(...)                                                              \
    (const int[])                                                              \
    {                                                                          \
        __VA_ARGS__                                                            \
    }

/* Every operation, and the ranks in their order. */
static int use(int rank, coll_group_t *g)
{
    for (int kind = 0; kind < EVERY_OPS; kind++) {
        struct every_call c;

        every_make(&c, (enum every)kind, 11, kind % g->size, g->rank, g->size);
        CHECK_OK(every_run(&c, g, NULL));
        CHECK_THAT(every_wrong(&c, g->rank, g->size) == 0);
        every_free(&c);
    }
    return 0;
}

/* --- Who is in it --------------------------------------------------------- */

static int any_order(int rank, int size)
{
    static const int lists[][4] = {
        {3, 1, 0, 2}, {2, 0, -1, -1}, {1, 3, 2, -1}, {0, -1, -1, -1}};
    static const int lens[] = {4, 2, 3, 1};

    CHECK_OK(coll_init(NULL));
    for (int i = 0; i < 4; i++) {
        coll_group_t *g = (coll_group_t *)&lens; /* is set, also to NULL */
        int own = -1;

        CHECK_OK(make(&g, 0, lens[i], lists[i]));
        for (int k = 0; k < lens[i]; k++)
            own = lists[i][k] == rank ? k : own;
        if (own < 0) {
            CHECK_THAT(g == NULL);
            continue;
        }
        CHECK_THAT(coll_rank(g) == own && coll_world_size(g) == lens[i]);
        for (int k = -1; k <= 4; k++)
            CHECK_THAT(coll_global_rank(g, k) ==
                       (k >= 0 && k < lens[i] ? lists[i][k] : -1));
        for (int r = -1; r <= size; r++) {
            int want = -1;

            for (int k = 0; k < lens[i]; k++)
                want = r >= 0 && lists[i][k] == r ? k : want;
            CHECK_THAT(coll_group_rank(g, r) == want);
        }
        CHECK_THAT(use(rank, g) == 0);
        CHECK_OK(coll_group_destroy(g));
        CHECK_FAILS(coll_barrier(g), COLL_ERR_ARGUMENT, "been destroyed");
        CHECK_FAILS(coll_group_destroy(g), COLL_ERR_ARGUMENT, "destroyed");
    }
    CHECK_OK(coll_barrier(NULL));
    CHECK_OK(coll_destroy());
    return 0;
}

START_TEST(ranks_come_in_any_order)
{
    run(4, any_order, -1);
}
END_TEST

static int bad_lists(int rank, int size)
{
    coll_group_t *g = NULL;
    coll_group_options_t options = {.timeout_ms = -1};

    CHECK_OK(coll_init(NULL));
    CHECK_FAILS(make(&g, 0, 0, LIST(0)), COLL_ERR_ARGUMENT, "nranks is 0");
    CHECK_FAILS(make(&g, 0, -1, LIST(0)), COLL_ERR_ARGUMENT, "nranks is -1");
    CHECK_FAILS(make(&g, 0, 3, LIST(0, 1, 1)), COLL_ERR_ARGUMENT, "1 to 2");
    CHECK_FAILS(make(&g, 0, 2, LIST(1, 1)), COLL_ERR_ARGUMENT,
        "rank 1 is in the list twice");
    CHECK_FAILS(make(&g, 0, 2, LIST(0, 2)), COLL_ERR_ARGUMENT,
        "2 is not a rank of the job, which has 2");
    CHECK_FAILS(make(&g, 0, 2, LIST(-1, 0)), COLL_ERR_ARGUMENT, "-1 is not");
    CHECK_FAILS(make(&g, 0, 1, NULL), COLL_ERR_ARGUMENT, "ranks is NULL");
    CHECK_FAILS(make(NULL, 0, 1, LIST(0)), COLL_ERR_ARGUMENT, "out is NULL");
    CHECK_FAILS(coll_group_new(&g, LIST(0, 1), 2, &options), COLL_ERR_ARGUMENT,
        "timeout_ms is -1");
    CHECK_FAILS(coll_group_split(NULL, NULL, 0, 0, NULL), COLL_ERR_ARGUMENT,
        "out is NULL");
    CHECK_FAILS(coll_group_split(&g, NULL, -2, 0, NULL), COLL_ERR_ARGUMENT,
        "color is -2");
    /* Before anything was communicated: rank 1 does not call it. */
    if (rank == 0)
        CHECK_FAILS(coll_group_split(&g, NULL, 0, 0, &options),
            COLL_ERR_ARGUMENT, "timeout_ms is -1");
    CHECK_FAILS(coll_group_destroy(NULL), COLL_ERR_ARGUMENT, "coll_destroy()");
    CHECK_FAILS(coll_group_destroy(coll_default_group()), COLL_ERR_ARGUMENT,
        "coll_destroy()");
    CHECK_THAT(g == NULL);
    CHECK_OK(coll_barrier(NULL));
    CHECK_OK(coll_destroy());
    return size - 2;
}

/* PG-09 */
START_TEST(bad_lists_are_refused)
{
    run(2, bad_lists, -1);
}
END_TEST

/* Halves of halves, turned round, with those in them that nobody wants. */
static int nested_split(int rank, int size)
{
    coll_group_t *half = NULL;
    coll_group_t *quarter = NULL;
    coll_group_t *none = (coll_group_t *)&half;
    coll_group_t *all = NULL;
    char words[96];

    CHECK_OK(coll_init(NULL));
    CHECK_OK(coll_group_split(&half, NULL, rank % 2, -rank, NULL));
    CHECK_THAT(coll_world_size(half) == size / 2);
    CHECK_THAT(coll_rank(half) == (size - 1 - rank) / 2);
    CHECK_THAT(use(rank, half) == 0);
    /* The keys are equal: the order of the parent decides. */
    CHECK_OK(coll_group_split(&quarter, half, coll_rank(half) / 2, 0, NULL));
    CHECK_THAT(coll_world_size(quarter) == 2);
    CHECK_THAT(
        coll_global_rank(quarter, 0) == coll_global_rank(quarter, 1) + 2);
    CHECK_THAT(use(rank, quarter) == 0);
    CHECK_OK(coll_group_split(
        &none, NULL, rank == 3 ? INT32_MAX : COLL_NO_COLOR, 0, NULL));
    CHECK_THAT((none == NULL) == (rank != 3));
    if (rank == 3)
        CHECK_OK(coll_group_destroy(none));
    /* The parent may be left before the child. */
    CHECK_OK(coll_group_destroy(half));
    CHECK_OK(coll_barrier(quarter));
    /* PG-09: a group of all ranks is not the default group. */
    CHECK_OK(coll_group_split(&all, NULL, 7, rank, NULL));
    CHECK_THAT(coll_world_size(all) == size && coll_rank(all) == rank);
    CHECK_OK(coll_barrier(all));
    CHECK_OK(coll_group_destroy(all));
    CHECK_OK(coll_barrier(NULL));
    /* Sentences have the ranks of the job. */
    if (coll_rank(quarter) == 0) {
        snprintf(words, sizeof(words),
            "rank %d called barrier(), rank %d called all_to_all(count=0, ",
            rank, rank - 2);
        CHECK_FAILS(coll_barrier(quarter), COLL_ERR_MISMATCH, words);
    } else {
        snprintf(words, sizeof(words), "rank %d called all_to_all", rank);
        CHECK_FAILS(coll_all_to_all(NULL, NULL, 0, COLL_INT8, quarter),
            COLL_ERR_MISMATCH, words);
    }
    CHECK_OK(coll_barrier(NULL)); /* another group has not failed */
    CHECK_OK(coll_destroy()); /* leaves that one, too */
    CHECK_FAILS(coll_barrier(quarter), COLL_ERR_ARGUMENT, "been destroyed");
    return 0;
}

START_TEST(groups_are_split_and_split_again)
{
    run(8, nested_split, -1);
}
END_TEST

/* --- Who makes what, and when --------------------------------------------- */

/* PG-06: by their members only; then in different order; then one alone. */
static int by_members_only(int rank, int size)
{
    coll_group_t *a = NULL;
    coll_group_t *b = NULL;
    coll_group_t *own = NULL;
    bool is_outer = rank == 0 || rank == 3;

    (void)size;
    CHECK_OK(coll_init(NULL));
    CHECK_OK(
        is_outer ? make(&a, 0, 2, LIST(0, 3)) : make(&a, 0, 2, LIST(1, 2)));
    CHECK_OK(coll_barrier(a));
    CHECK_THAT(coll_global_rank(a, 0) == (is_outer ? 0 : 1));
    CHECK_THAT(use(rank, a) == 0);
    CHECK_OK(coll_group_destroy(a));
    /* No two ranks that share both make them in different order. */
    if (rank % 2 == 0) {
        CHECK_OK(make(&a, 0, 2, LIST(0, 2)));
        CHECK_OK(make(&b, 0, 2, LIST(1, 3)));
    } else {
        CHECK_OK(make(&b, 0, 2, LIST(1, 3)));
        CHECK_OK(make(&a, 0, 2, LIST(0, 2)));
    }
    CHECK_THAT((a == NULL) == (rank % 2 == 1) && (b == NULL) != (a == NULL));
    CHECK_THAT(use(rank, a != NULL ? a : b) == 0);
    CHECK_OK(coll_group_destroy(a != NULL ? a : b));
    if (rank == 0) {
        CHECK_OK(make(&own, 0, 1, LIST(0)));
        CHECK_THAT(use(rank, own) == 0);
    }
    CHECK_OK(coll_barrier(NULL));
    CHECK_OK(coll_destroy());
    return 0;
}

START_TEST(members_make_their_groups_alone)
{
    run(4, by_members_only, -1);
}
END_TEST

/* PG-06: two groups of the same ranks in different order. Whoever they are
 * paired with in the end, it is nobody of the other group. */
static int crossed(int rank, int size)
{
    coll_group_t *a = NULL;
    coll_group_t *b = NULL;
    coll_status_t status;

    (void)size;
    CHECK_OK(coll_init(NULL));
    if (rank == 0)
        status = make(&a, 300, 2, LIST(0, 1));
    else
        status = make(&b, 300, 2, LIST(1, 0));
    CHECK_THAT(status == COLL_ERR_TIMEOUT || status == COLL_ERR_PEER);
    CHECK_THAT(a == NULL && b == NULL);
    CHECK_THAT(has_said(rank == 0 ? "waiting for rank 1" : "rank 0"));
    CHECK_THAT(has_said("coll_group_new"));
    /* And then in one order. */
    CHECK_OK(coll_barrier(NULL));
    CHECK_OK(make(&a, 0, 2, LIST(0, 1)));
    CHECK_OK(make(&b, 0, 2, LIST(1, 0)));
    CHECK_THAT(use(rank, a) == 0 && use(rank, b) == 0);
    CHECK_OK(coll_destroy());
    return 0;
}

START_TEST(crossed_groups_are_an_error)
{
    run(2, crossed, -1);
}
END_TEST

/* PG-19, PG-06: a rank that does not come is named, and may come later. Each
 * rank in turn is the one. */
static int one_does_not_come(int rank, int size)
{
    const int list[] = {2, 0, 1};

    (void)size;
    CHECK_OK(coll_init(NULL));
    for (int missing = 0; missing < 3; missing++) {
        coll_group_t *g = NULL;
        char words[32];

        snprintf(words, sizeof(words), "rank %d", missing);
        if (rank != missing) {
            coll_status_t status = make(&g, 300, 3, list);

            CHECK_THAT(status == COLL_ERR_TIMEOUT);
            CHECK_THAT(has_said("in coll_group_new"));
            CHECK_THAT(has_said(words));
            CHECK_THAT(g == NULL);
        }
        CHECK_OK(coll_barrier(NULL));
        CHECK_OK(make(&g, 0, 3, list));
        CHECK_THAT(use(rank, g) == 0);
        CHECK_OK(coll_group_destroy(g));
    }
    CHECK_OK(coll_destroy());
    return 0;
}

START_TEST(who_does_not_come_is_named_and_may_come_later)
{
    run(3, one_does_not_come, -1);
}
END_TEST

/* PG-19: the group's own time-out, for its operations, the first one too. */
static int own_time_out(int rank, int size)
{
    coll_group_t *g = NULL;

    (void)size;
    CHECK_OK(coll_init(NULL));
    CHECK_OK(make(&g, 2000, 3, LIST(2, 1, 0)));
    if (rank == 1) {
        await_post(1);
        await_post(1);
    } else {
        /* One of the two is first, and the other hears of it. */
        CHECK_FAILS(coll_barrier(g), COLL_ERR_TIMEOUT,
            "timed out after 2.0 s in barrier #1");
        CHECK_THAT(has_said(" waiting for rank"));
        post(1);
    }
    CHECK_OK(coll_barrier(NULL)); /* that of the default group is longer */
    CHECK_OK(coll_group_destroy(g));
    CHECK_OK(coll_destroy());
    return 0;
}

START_TEST(a_group_has_its_own_time_out)
{
    run(3, own_time_out, -1);
}
END_TEST

/* A group that has failed in some way is made anew, with the same list. */
static int made_anew(int rank, int size)
{
    static const int list[] = {1, 3, 0, 2};
    int64_t x[4] = {0};

    (void)size;
    CHECK_OK(coll_init(NULL));
    for (int i = 0; i < 20; i++) {
        coll_group_t *g = NULL;
        coll_work_t *work = NULL;
        coll_status_t status;

        CHECK_OK(make(&g, 0, 4, list));
        CHECK_OK(coll_barrier(g));
        CHECK_OK(coll_all_reduce_async(x, x, i % 4 == 0 && rank == 2 ? 2 : 1,
            COLL_INT64, COLL_SUM, g, &work));
        if (i % 4 == 1 && rank == 3)
            CHECK_OK(coll_abort(g));
        if (i % 4 == 2 && rank == 0) {
            /* Leaves in the middle, by force. */
            coll_abort(g);
            coll_work_wait(work, 0);
            coll_work_free(work);
            work = NULL;
            CHECK_OK(coll_group_destroy(g));
            continue;
        }
        status = coll_work_wait(work, 0);
        coll_work_free(work);
        if (i % 4 == 0)
            CHECK_THAT(status == COLL_ERR_MISMATCH);
        if (i % 4 == 1)
            CHECK_FAILS(coll_barrier(g),
                rank == 3 ? COLL_ERR_ABORTED : COLL_ERR_PEER, "aborted");
        if (i % 4 == 2)
            CHECK_FAILS(coll_barrier(g), COLL_ERR_PEER, "rank 0");
        if (i % 4 == 3)
            CHECK_OK(status);
        CHECK_OK(coll_group_destroy(g));
    }
    CHECK_OK(coll_destroy());
    return 0;
}

START_TEST(a_failed_group_is_made_anew)
{
    run(4, made_anew, -1);
}
END_TEST

/* --- The end -------------------------------------------------------------- */

static int entries(const char *path)
{
    DIR *dir = opendir(path);
    int n = 0;

    while (dir != NULL && readdir(dir) != NULL)
        n++;
    if (dir != NULL)
        closedir(dir);
    return n;
}

/* PG-08: descriptors, threads and mappings are back, and so it is with groups,
 * works and messages. */
static int hundred_cycles(int rank, int size)
{
    int fds = 0;
    int threads = 0;

    for (int i = 0; i < 100; i++) {
        coll_group_t *half = NULL;
        coll_work_t *work[2] = {NULL, NULL};
        int64_t x = rank + i;
        int32_t y = i;
        int peer = (rank + 1) % size;

        /* They come as they like, and one fails once. */
        for (int k = (i * 7 + rank * 13) % 50; k > 0; k--)
            sched_yield();
        if (i == 50 && rank == 1) {
            coll_options_t options = {.backend = "none"};

            CHECK_THAT(coll_init(&options) == COLL_ERR_ARGUMENT);
        }
        CHECK_OK(coll_init(NULL));
        CHECK_OK(coll_group_split(&half, NULL, rank / 2, 0, NULL));
        CHECK_OK(coll_all_reduce_async(
            &x, &x, 1, COLL_INT64, COLL_MAX, NULL, &work[0]));
        CHECK_OK(coll_isend(&i, 1, COLL_INT32, peer, 0, NULL, &work[1]));
        CHECK_OK(coll_recv(&y, 1, COLL_INT32, COLL_ANY_SOURCE, 0, NULL, NULL));
        CHECK_OK(coll_barrier(half));
        for (int k = 0; k < 2; k++) {
            CHECK_OK(coll_work_wait(work[k], 0));
            coll_work_free(work[k]);
        }
        CHECK_THAT(x == size - 1 + i && y == i);
        if (i % 2 == 0)
            CHECK_OK(coll_group_destroy(half));
        CHECK_OK(coll_destroy());
        if (i == 0) { /* a sanitizer may have a thread of its own by now */
            fds = entries("/proc/self/fd");
            threads = entries("/proc/self/task");
        }
        CHECK_THAT(entries("/proc/self/fd") == fds);
        /* A thread that was joined is listed for a moment more; one that was
         * not ends this test by its time limit. */
        while (entries("/proc/self/task") > threads)
            sched_yield();
    }
    return 0;
}

START_TEST(a_hundred_cycles_leave_nothing)
{
    run(4, hundred_cycles, -1);
}
END_TEST

/* PG-09 */
static int destroy_with_works(int rank, int size)
{
    coll_group_t *g = NULL;
    coll_work_t *works[3] = {NULL};
    int64_t x[2] = {1, 1};
    int32_t y;

    (void)size;
    CHECK_OK(coll_init(NULL));
    CHECK_FAILS(coll_init(NULL), COLL_ERR_STATE, "already initialized");
    CHECK_OK(make(&g, 0, 2, LIST(1, 0)));
    if (rank == 0) {
        CHECK_OK(coll_all_reduce_async(
            &x[0], &x[0], 1, COLL_INT64, COLL_SUM, NULL, &works[0]));
        CHECK_OK(coll_all_reduce_async(
            &x[1], &x[1], 1, COLL_INT64, COLL_SUM, g, &works[1]));
        CHECK_OK(coll_irecv(&y, 1, COLL_INT32, 0, 0, g, &works[2]));
        CHECK_FAILS(coll_destroy(), COLL_ERR_STATE, "on its way");
        CHECK_THAT(coll_is_initialized());
        post(1);
        CHECK_OK(coll_work_wait(works[0], 0));
        CHECK_FAILS(coll_destroy(), COLL_ERR_STATE, "on its way");
        CHECK_FAILS(coll_group_destroy(g), COLL_ERR_STATE, "on its way");
        CHECK_OK(coll_abort(g));
        post(1);
        for (int i = 1; i < 3; i++)
            CHECK_FAILS(
                coll_work_wait(works[i], 0), COLL_ERR_ABORTED, "aborted");
        for (int i = 0; i < 3; i++)
            coll_work_free(works[i]);
    } else {
        await_post(1);
        CHECK_OK(coll_all_reduce(&x[0], &x[0], 1, COLL_INT64, COLL_SUM, NULL));
        await_post(1);
        /* What rank 0 did before may be enough for one. */
        if (coll_all_reduce(&x[1], &x[1], 1, COLL_INT64, COLL_SUM, g) ==
            COLL_OK)
            coll_barrier(g);
        CHECK_FAILS(coll_barrier(g), COLL_ERR_PEER, "aborted by coll_abort()");
    }
    CHECK_THAT(x[0] == 2);
    CHECK_OK(coll_destroy());
    CHECK_FAILS(coll_destroy(), COLL_ERR_STATE, "not initialized");
    CHECK_FAILS(coll_barrier(g), COLL_ERR_ARGUMENT, "been destroyed");
    CHECK_FAILS(coll_group_destroy(g), COLL_ERR_ARGUMENT, "been destroyed");
    CHECK_FAILS(make(&g, 0, 1, LIST(0)), COLL_ERR_STATE, "coll_init");
    CHECK_FAILS(coll_barrier(NULL), COLL_ERR_STATE, "coll_init");
    return 0;
}

START_TEST(nothing_is_destroyed_under_its_works)
{
    run(2, destroy_with_works, -1);
}
END_TEST

enum { VICTIM = 2 };

/* Rank 2 is killed when all others have a work of each group on its way, some
 * of them behind others, and messages. */
static int death_in_flight(int rank, int size)
{
    enum { N = 10 };
    coll_group_t *g = NULL;
    coll_group_t *others = NULL;
    coll_work_t *works[2 * N] = {NULL};
    coll_work_t *messages[2] = {NULL};
    int64_t x[2 * N] = {0};
    int32_t y[2];
    int peer = rank == 3 ? 0 : rank + 1;

    (void)size;
    CHECK_OK(coll_init(NULL));
    CHECK_OK(make(&g, 0, 4, LIST(3, 2, 1, 0)));
    CHECK_OK(make(&others, 0, 3, LIST(0, 1, 3)));
    if (rank == VICTIM) {
        for (int i = 0; i < 3; i++)
            await_post(rank);
        raise(SIGKILL);
    }
    for (int i = 0; i < N; i++) {
        CHECK_OK(coll_all_reduce_async(
            &x[i], &x[i], 1, COLL_INT64, COLL_SUM, g, &works[i]));
        CHECK_OK(coll_all_reduce_async(&x[N + i], &x[N + i], 1, COLL_INT64,
            COLL_SUM, NULL, &works[N + i]));
    }
    /* From the victim, and from one who may send but has no reason to. */
    CHECK_OK(coll_irecv(
        &y[0], 1, COLL_INT32, coll_group_rank(g, VICTIM), 0, g, &messages[0]));
    CHECK_OK(coll_irecv(&y[1], 1, COLL_INT32,
        coll_group_rank(g, peer == VICTIM ? 3 : peer), 0, g, &messages[1]));
    post(VICTIM);
    for (int i = 0; i < 2 * N; i++)
        CHECK_FAILS(coll_work_wait(works[i], 0), COLL_ERR_PEER, "rank 2 (pid ");
    for (int i = 0; i < 2; i++)
        CHECK_FAILS(
            coll_work_wait(messages[i], 0), COLL_ERR_PEER, "rank 2 (pid ");
    for (int i = 0; i < 2 * N; i++)
        coll_work_free(works[i]);
    coll_work_free(messages[0]);
    coll_work_free(messages[1]);
    /* Who does not need it goes on. */
    CHECK_THAT(use(rank, others) == 0);
    CHECK_OK(coll_group_destroy(g));
    g = NULL;
    CHECK_OK(make(&g, 0, 3, LIST(3, 1, 0)));
    CHECK_THAT(use(rank, g) == 0);
    CHECK_OK(coll_destroy());
    return 0;
}

START_TEST(a_death_ends_all_that_is_on_its_way)
{
    for (int i = 0; i < 5; i++)
        run(4, death_in_flight, VICTIM);
}
END_TEST

static void *die_when_told(void *arg)
{
    (void)arg;
    await_post(VICTIM);
    raise(SIGKILL);
    return NULL;
}

static enum every victims_kind;

/* PG-05: at any instant of any operation, small or of many pieces. */
static int death_in_one_kind(int rank, int size)
{
    static const size_t counts[] = {3, 20000};
    coll_status_t status = COLL_OK;
    pthread_t thread;

    CHECK_OK(coll_init(NULL));
    if (rank == VICTIM)
        CHECK_THAT(pthread_create(&thread, NULL, die_when_told, NULL) == 0);
    CHECK_OK(coll_barrier(NULL));
    for (int i = 0; status == COLL_OK; i++) {
        struct every_call c;

        every_make(&c, victims_kind, counts[i % 2], 0, rank, size);
        if (i == 4 && rank == 0)
            post(VICTIM);
        status = every_run(&c, coll_default_group(), NULL);
        CHECK_THAT(status != COLL_OK || every_wrong(&c, rank, size) == 0);
        every_free(&c);
    }
    CHECK_THAT(status == COLL_ERR_PEER);
    CHECK_THAT(has_said("rank 2 (pid ") && has_said("died during"));
    CHECK_THAT(has_said(every_ops[victims_kind].name));
    CHECK_OK(coll_destroy());
    return 0;
}

START_TEST(a_death_in_any_operation_is_named)
{
    victims_kind = (enum every)_i;
    run(3, death_in_one_kind, VICTIM);
}
END_TEST

/* While a group is made. */
static int death_in_the_making(int rank, int size)
{
    coll_group_t *g = NULL;

    (void)size;
    CHECK_OK(coll_init(NULL));
    if (rank == VICTIM)
        raise(SIGKILL);
    CHECK_FAILS(coll_barrier(NULL), COLL_ERR_PEER, "rank 2 (pid ");
    CHECK_THAT(make(&g, 500, 4, LIST(0, 1, 2, 3)) == COLL_ERR_TIMEOUT);
    CHECK_THAT(has_said("coll_group_new") && has_said("rank"));
    CHECK_OK(make(&g, 0, 3, LIST(1, 0, 3)));
    CHECK_THAT(use(rank, g) == 0);
    CHECK_OK(coll_destroy());
    return 0;
}

START_TEST(survivors_make_a_group_of_their_own)
{
    run(4, death_in_the_making, VICTIM);
}
END_TEST

/* --- What is left of a group -----------------------------------------------
 */

static int shrink_after_death(int rank, int size)
{
    coll_group_t *g = NULL;
    coll_group_t *rest = NULL;
    int32_t x = rank;

    CHECK_OK(coll_init(NULL));
    CHECK_FAILS(coll_group_shrink(&g, NULL, LIST(rank), 1, NULL),
        COLL_ERR_ARGUMENT, "this rank itself");
    CHECK_FAILS(coll_group_shrink(&g, NULL, LIST(size), 1, NULL),
        COLL_ERR_ARGUMENT, "not a rank of a group of 5");
    CHECK_FAILS(coll_group_shrink(NULL, NULL, LIST(0), 1, NULL),
        COLL_ERR_ARGUMENT, "out is NULL");
    if (rank == VICTIM)
        raise(SIGKILL);
    CHECK_THAT(coll_all_reduce(&x, &x, 1, COLL_INT32, COLL_SUM, NULL) ==
               COLL_ERR_PEER);
    CHECK_OK(coll_group_shrink(&g, NULL, LIST(VICTIM), 1, NULL));
    CHECK_THAT(coll_world_size(g) == 4);
    CHECK_THAT(coll_rank(g) == rank - (rank > VICTIM));
    CHECK_THAT(coll_global_rank(g, 2) == 3);
    CHECK_THAT(use(coll_rank(g), g) == 0);
    /* Of one that is well, by ranks of it, and of nobody. */
    if (rank != 3) {
        CHECK_OK(coll_group_shrink(&rest, g, LIST(2), 1, NULL));
        CHECK_THAT(coll_global_rank(rest, 2) == 4);
        CHECK_THAT(use(coll_rank(rest), rest) == 0);
    }
    CHECK_OK(coll_barrier(g));
    CHECK_OK(coll_group_shrink(&rest, g, NULL, 0, NULL));
    CHECK_THAT(coll_world_size(rest) == 4);
    CHECK_THAT(use(coll_rank(rest), rest) == 0);
    CHECK_OK(coll_destroy());
    return 0;
}

START_TEST(a_group_is_shrunk)
{
    run(5, shrink_after_death, VICTIM);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("subgroup");

    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, ranks_come_in_any_order);
    tcase_add_test(tc, bad_lists_are_refused);
    tcase_add_test(tc, groups_are_split_and_split_again);
    tcase_add_test(tc, members_make_their_groups_alone);
    tcase_add_test(tc, crossed_groups_are_an_error);
    tcase_add_test(tc, who_does_not_come_is_named_and_may_come_later);
    tcase_add_test(tc, a_group_has_its_own_time_out);
    tcase_add_test(tc, a_failed_group_is_made_anew);
    tcase_add_test(tc, a_hundred_cycles_leave_nothing);
    tcase_add_test(tc, nothing_is_destroyed_under_its_works);
    tcase_add_test(tc, a_death_ends_all_that_is_on_its_way);
    tcase_add_loop_test(tc, a_death_in_any_operation_is_named, 0, EVERY_OPS);
    tcase_add_test(tc, survivors_make_a_group_of_their_own);
    tcase_add_test(tc, a_group_is_shrunk);
    return unit_run("coll_subgroup", tc);
}
