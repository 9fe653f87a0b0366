/*
 * Calls that do not wait: their order, their results, who may wait for them
 * and how often, and what becomes of those that are on their way when the
 * group fails, is aborted, or is to be destroyed.
 */
#include <malloc.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>

#include "tests/unit/coll_every.h"
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

/* Another group of the same ranks, in the opposite order if is_turned. */
static struct coll_group *join_other(
    struct coll_group *g, const char *prefix, bool is_turned)
{
    struct harness_job job = {.store = &store, .timeout_ms = TIMEOUT_MS};
    struct coll_group *other = NULL;

    snprintf(job.prefix, sizeof(job.prefix), "%s/", prefix);
    EXPECT_OK(harness_join(
        &job, is_turned ? g->size - 1 - g->rank : g->rank, g->size, &other));
    return other;
}

static coll_work_t *start_sum(
    struct coll_group *g, const int64_t *from, int64_t *to)
{
    coll_work_t *work = NULL;

    EXPECT_OK(
        coll_all_reduce_async(from, to, 1, COLL_INT64, COLL_SUM, g, &work));
    return work;
}

static void finish(coll_work_t *work)
{
    EXPECT_OK(coll_work_wait(work, 0));
    coll_work_free(work);
}

/* --- Results -------------------------------------------------------------- */

/* All of them are on their way before the first one is waited for. */
static void all_at_once(struct coll_group *g, int rank, void *arg)
{
    static const size_t counts[] = {1, 7, 5000};
    bool is_backwards = arg != NULL;
    struct every_call calls[3 * EVERY_OPS];
    coll_work_t *works[3 * EVERY_OPS] = {NULL};
    int n = 3 * EVERY_OPS;

    for (int i = 0; i < n; i++) {
        every_make(&calls[i], (enum every)(i % EVERY_OPS),
            counts[i / EVERY_OPS], i % g->size, rank, g->size);
        EXPECT_OK(every_run(&calls[i], g, &works[i]));
        EXPECT(works[i] != NULL, "no work");
    }
    for (int k = 0; k < n; k++) {
        int i = is_backwards ? n - 1 - k : k;

        EXPECT_OK(coll_work_wait(works[i], 0));
        EXPECT(every_wrong(&calls[i], rank, g->size) == 0, "%s of %zu is wrong",
            every_ops[calls[i].kind].name, calls[i].count);
        EXPECT(coll_work_source(works[i]) == -1, "a source");
        coll_work_free(works[i]);
        every_free(&calls[i]);
    }
}

START_TEST(every_operation_has_a_form_that_does_not_wait)
{
    static const int sizes[] = {1, 2, 3, 4, 7, 8};
    int size = sizes[_i / 2];

    harness_backend = size == 1 ? &coll_backend_self : &coll_backend_shm;
    harness_run(
        &store, size, TIMEOUT_MS, all_at_once, _i % 2 == 0 ? NULL : &store);
}
END_TEST

/* Each operation needs the result of the one before; who waits for which one
 * differs between the ranks. */
static void in_order(struct coll_group *g, int rank, void *arg)
{
    enum { N = 200 };
    int64_t x[N + 1] = {1};
    coll_work_t *works[N] = {NULL};
    unsigned int seed = 17 + (unsigned int)rank;

    (void)arg;
    for (int i = 0; i < N; i++) {
        x[i + 1] = -1;
        if (rand_r(&seed) % 3 == 0)
            EXPECT_OK(
                coll_all_reduce(&x[i], &x[i + 1], 1, COLL_INT64, COLL_MAX, g));
        else
            EXPECT_OK(coll_all_reduce_async(
                &x[i], &x[i + 1], 1, COLL_INT64, COLL_MAX, g, &works[i]));
    }
    EXPECT_OK(coll_barrier(g)); /* comes after all of them */
    EXPECT(x[N] == 1, "the last one is %lld", (long long)x[N]);
    for (int i = 0; i < N; i++) {
        bool done = false;

        if (works[i] == NULL)
            continue;
        /* What is done may be a moment from saying so. */
        while (!done)
            EXPECT_OK(coll_work_test(works[i], &done));
        coll_work_free(works[i]);
    }
}

START_TEST(operations_keep_the_order_of_the_calls)
{
    for (int i = 0; i < 5; i++)
        harness_run(&store, 3, TIMEOUT_MS, in_order, NULL);
}
END_TEST

static void many_queued(struct coll_group *g, int rank, void *arg)
{
    enum { N = 1000 };
    pthread_barrier_t *all_have = arg;
    int64_t *x = calloc(N, sizeof(*x));
    coll_work_t **works = calloc(N, sizeof(*works));

    /* Nothing can move before rank 1 has come. */
    if (rank == 1)
        pthread_barrier_wait(all_have);
    for (int i = 0; i < N; i++) {
        x[i] = i + rank;
        works[i] = start_sum(g, &x[i], &x[i]);
    }
    if (rank != 1)
        pthread_barrier_wait(all_have);
    for (int i = 0; i < N; i++) {
        finish(works[i]);
        EXPECT(x[i] == 3 * i + 3, "work %d got %lld", i, (long long)x[i]);
    }
    free(works);
    free(x);
}

START_TEST(a_thousand_works_wait_in_line)
{
    pthread_barrier_t all_have;

    pthread_barrier_init(&all_have, NULL, 3);
    harness_run(&store, 3, TIMEOUT_MS, many_queued, &all_have);
    pthread_barrier_destroy(&all_have);
}
END_TEST

/* Rank 1 comes to the first group when everybody is through with the other. */
static void overlapping(struct coll_group *g, int rank, void *arg)
{
    enum { N = 20 };
    pthread_barrier_t *through = arg;
    struct coll_group *b = join_other(g, "b", true);
    struct coll_group *c = join_other(g, "c", false);
    coll_work_t *late = NULL;
    int64_t one = 1;
    int64_t sum = 0;

    if (b == NULL || c == NULL)
        return;
    if (rank != 1)
        late = start_sum(g, &one, &sum);
    for (int i = 0; i < N; i++) {
        int64_t x[2] = {i, 10 * i};
        coll_work_t *of_b = start_sum(b, &x[0], &x[0]);
        coll_work_t *of_c = start_sum(c, &x[1], &x[1]);

        finish(of_c);
        finish(of_b);
        EXPECT(x[0] == 3 * i && x[1] == 30 * i, "round %d", i);
    }
    if (late != NULL) {
        bool done = true;

        EXPECT_OK(coll_work_test(late, &done));
        EXPECT(!done, "done without rank 1");
    }
    pthread_barrier_wait(through);
    if (rank == 1)
        late = start_sum(g, &one, &sum);
    finish(late);
    EXPECT(sum == 3, "got %lld", (long long)sum);
    coll_group_free(b);
    coll_group_free(c);
}

START_TEST(a_late_rank_of_one_group_does_not_hold_up_another)
{
    pthread_barrier_t through;

    pthread_barrier_init(&through, NULL, 3);
    harness_run(&store, 3, TIMEOUT_MS, overlapping, &through);
    pthread_barrier_destroy(&through);
}
END_TEST

/* --- Waiting -------------------------------------------------------------- */

struct waiter {
    coll_work_t *work;
    pthread_t thread;
};

static void *wait_main(void *arg)
{
    struct waiter *w = arg;

    for (int i = 0; i < 3; i++)
        EXPECT_OK(coll_work_wait(w->work, i == 0 ? 0 : INT64_MAX));
    return NULL;
}

static void wait_in_every_way(struct coll_group *g, int rank, void *arg)
{
    enum { THREADS = 4 };
    pthread_barrier_t *seen = arg;
    struct waiter waiters[THREADS];
    coll_work_t *work;
    int64_t x = rank;
    bool done = false;

    if (rank == 1)
        pthread_barrier_wait(seen);
    work = start_sum(g, &x, &x);
    if (rank == 0) {
        EXPECT_FAILS(coll_work_wait(work, 1), COLL_ERR_TIMEOUT,
            "not done after 0.001 s; it goes on");
        EXPECT_OK(coll_work_test(work, &done));
        EXPECT(!done, "done without rank 1");
        EXPECT_FAILS(
            coll_work_wait(work, -1), COLL_ERR_ARGUMENT, "timeout_ms is -1");
        EXPECT_FAILS(
            coll_work_test(work, NULL), COLL_ERR_ARGUMENT, "done is NULL");
    }
    for (int i = 0; i < THREADS; i++) {
        waiters[i].work = work;
        EXPECT(pthread_create(
                   &waiters[i].thread, NULL, wait_main, &waiters[i]) == 0,
            "thread");
    }
    if (rank == 0)
        pthread_barrier_wait(seen);
    for (int i = 0; i < THREADS; i++)
        pthread_join(waiters[i].thread, NULL);
    EXPECT(x == 1, "got %lld", (long long)x);
    finish(work);
}

START_TEST(a_work_may_be_waited_for_by_many_and_again)
{
    pthread_barrier_t seen;

    pthread_barrier_init(&seen, NULL, 2);
    harness_run(&store, 2, TIMEOUT_MS, wait_in_every_way, &seen);
    pthread_barrier_destroy(&seen);
}
END_TEST

/* Given back while it is on its way, before and after others. */
static void free_early(struct coll_group *g, int rank, void *arg)
{
    enum { N = 50 };
    pthread_barrier_t *seen = arg;
    int64_t x[N];

    if (rank == 1)
        pthread_barrier_wait(seen);
    for (int i = 0; i < N; i++) {
        x[i] = i;
        coll_work_free(start_sum(g, &x[i], &x[i]));
    }
    if (rank == 0)
        pthread_barrier_wait(seen);
    EXPECT_OK(coll_barrier(g));
    for (int i = 0; i < N; i++)
        EXPECT(x[i] == 2 * i, "work %d got %lld", i, (long long)x[i]);
}

START_TEST(a_work_that_is_freed_early_goes_on)
{
    pthread_barrier_t seen;

    pthread_barrier_init(&seen, NULL, 2);
    harness_run(&store, 2, TIMEOUT_MS, free_early, &seen);
    pthread_barrier_destroy(&seen);
}
END_TEST

struct sleeper {
    coll_work_t *work;
    pthread_t thread;
    _Atomic pid_t tid;
};

static void *sleep_main(void *arg)
{
    struct sleeper *s = arg;

    s->tid = (pid_t)syscall(SYS_gettid);
    EXPECT_OK(coll_work_wait(s->work, 0));
    return NULL;
}

static bool is_asleep(pid_t tid)
{
    char path[64];
    char state = '?';
    FILE *f;

    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)tid);
    f = fopen(path, "re");
    if (f == NULL)
        return false;
    if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
        state = '?';
    fclose(f);
    return state == 'S';
}

/* Until it sleeps for good, and not for a moment on its way. */
static void await_sleep(const struct sleeper *s)
{
    for (int seen = 0; seen < 20; sched_yield())
        seen = s->tid != 0 && is_asleep(s->tid) ? seen + 1 : 0;
}

struct free_case {
    bool is_message;
    pthread_barrier_t seen;
};

static void free_under_waiters(struct coll_group *g, int rank, void *arg)
{
    enum { THREADS = 2 };
    struct free_case *c = arg;
    struct sleeper sleepers[THREADS] = {0};
    int64_t x = rank;
    coll_work_t *work = NULL;

    if (rank == 1) {
        pthread_barrier_wait(&c->seen);
        if (c->is_message)
            EXPECT_OK(coll_send(&x, 1, COLL_INT64, 0, 0, g));
        else
            finish(start_sum(g, &x, &x));
        return;
    }
    if (c->is_message)
        EXPECT_OK(coll_irecv(&x, 1, COLL_INT64, 1, 0, g, &work));
    else
        work = start_sum(g, &x, &x);
    for (int i = 0; i < THREADS; i++) {
        sleepers[i].work = work;
        EXPECT(pthread_create(
                   &sleepers[i].thread, NULL, sleep_main, &sleepers[i]) == 0,
            "thread");
    }
    for (int i = 0; i < THREADS; i++)
        await_sleep(&sleepers[i]);
    coll_work_free(work);
    pthread_barrier_wait(&c->seen);
    for (int i = 0; i < THREADS; i++)
        pthread_join(sleepers[i].thread, NULL);
    EXPECT(x == 1, "got %lld", (long long)x);
}

/* What is freed does not keep its look. */
START_TEST(a_work_may_be_freed_while_others_wait_for_it)
{
    struct free_case c = {.is_message = _i != 0};

    mallopt(M_PERTURB, 0xa5);
    pthread_barrier_init(&c.seen, NULL, 2);
    for (int i = 0; i < 5; i++)
        harness_run(&store, 2, TIMEOUT_MS, free_under_waiters, &c);
    pthread_barrier_destroy(&c.seen);
}
END_TEST

struct told {
    coll_work_t *work; /* NULL, or to be freed in the call */
    _Atomic int calls;
    _Atomic coll_status_t status;
    char text[256];
};

static void tell(coll_status_t status, void *arg)
{
    struct told *told = arg;

    if (status != COLL_OK)
        snprintf(told->text, sizeof(told->text), "%s", coll_last_error());
    told->status = status;
    coll_work_free(told->work);
    atomic_fetch_add(&told->calls, 1);
}

static void call_back(struct coll_group *g, int rank, void *arg)
{
    pthread_barrier_t *seen = arg;
    struct told told[4] = {{.calls = 0}};
    int64_t x[3] = {1, 1, 1};
    coll_work_t *work;

    /* Before it is done, and the function gives it back. */
    if (rank == 1)
        pthread_barrier_wait(seen);
    told[0].work = start_sum(g, &x[0], &x[0]);
    EXPECT_OK(coll_work_then(told[0].work, tell, &told[0]));
    if (rank == 0)
        pthread_barrier_wait(seen);
    /* After it. */
    work = start_sum(g, &x[1], &x[1]);
    EXPECT_OK(coll_work_wait(work, 0));
    EXPECT_FAILS(
        coll_work_then(work, NULL, NULL), COLL_ERR_ARGUMENT, "fn is NULL");
    EXPECT_OK(coll_work_then(work, tell, &told[1]));
    EXPECT(told[1].calls == 1, "not called at once");
    EXPECT_FAILS(coll_work_then(work, tell, &told[2]), COLL_ERR_STATE,
        "has a function already");
    coll_work_free(work);
    /* That of a failure. */
    EXPECT_OK(rank == 0 ? coll_all_reduce_async(
                              &x[2], &x[2], 1, COLL_INT64, COLL_SUM, g, &work)
                        : coll_barrier_async(g, &work));
    EXPECT_OK(coll_work_then(work, tell, &told[3]));
    EXPECT_FAILS(coll_work_wait(work, 0), COLL_ERR_MISMATCH, "operation #3");
    while (told[3].calls == 0)
        sched_yield();
    EXPECT(told[3].status == COLL_ERR_MISMATCH, "%d", (int)told[3].status);
    EXPECT(strstr(told[3].text, "operation #3") != NULL, "the function got: %s",
        told[3].text);
    coll_work_free(work);
    EXPECT(told[0].calls == 1 && told[0].status == COLL_OK && x[0] == 2,
        "the first one: %d calls", (int)told[0].calls);
    EXPECT(told[2].calls == 0, "called without having been taken");
}

START_TEST(a_function_is_called_once_with_the_result)
{
    pthread_barrier_t seen;

    for (int i = 0; i < 10; i++) {
        pthread_barrier_init(&seen, NULL, 2);
        harness_run(&store, 2, TIMEOUT_MS, call_back, &seen);
        pthread_barrier_destroy(&seen);
    }
}
END_TEST

struct waits {
    struct coll_group *g;
    coll_work_t *work; /* whose function it is */
    coll_work_t *next; /* comes when the function is over on both ranks */
    int64_t got;
    _Atomic bool is_over;
};

/* Waits for what is done, and for nothing else. */
static void wait_in_function(coll_status_t status, void *arg)
{
    struct waits *w = arg;
    const char *words = "called by a function of coll_work_then()";
    bool is_done = false;

    EXPECT(status == COLL_OK, "%s", coll_last_error());
    EXPECT_OK(coll_work_wait(w->work, 0));
    EXPECT_OK(coll_work_test(w->work, &is_done));
    EXPECT(is_done, "its work is not done");
    coll_work_free(w->work);
    EXPECT_OK(
        coll_irecv(&w->got, 1, COLL_INT64, 1 - w->g->rank, 9, w->g, &w->next));
    EXPECT_FAILS(coll_work_wait(w->next, 0), COLL_ERR_STATE, words);
    EXPECT_FAILS(coll_work_wait(w->next, 1), COLL_ERR_STATE, words);
    EXPECT_FAILS(coll_barrier(w->g), COLL_ERR_STATE, words);
    EXPECT_FAILS(coll_send(&w->got, 1, COLL_INT64, 1 - w->g->rank, 0, w->g),
        COLL_ERR_STATE, words);
    w->is_over = true;
}

/* Works of each kind, with functions that are called later and at once. */
static void wait_in_functions(struct coll_group *g, int rank, void *arg)
{
    pthread_barrier_t *both = arg;

    for (int i = 0; i < 4; i++) {
        struct waits w = {.g = g};
        int64_t x = 1;

        if (i < 2)
            w.work = start_sum(g, &x, &x);
        else if (rank == 0)
            EXPECT_OK(coll_isend(&x, 1, COLL_INT64, 1 - rank, 0, g, &w.work));
        else
            EXPECT_OK(coll_irecv(&x, 1, COLL_INT64, 1 - rank, 0, g, &w.work));
        if (i % 2 == 1)
            EXPECT_OK(coll_work_wait(w.work, 0));
        EXPECT_OK(coll_work_then(w.work, wait_in_function, &w));
        while (!w.is_over)
            sched_yield();
        pthread_barrier_wait(both);
        x = 5;
        EXPECT_OK(coll_send(&x, 1, COLL_INT64, 1 - rank, 9, g));
        finish(w.next);
        EXPECT(w.got == 5, "got %d", (int)w.got);
    }
}

START_TEST(a_function_waits_for_nobody)
{
    pthread_barrier_t both;

    pthread_barrier_init(&both, NULL, 2);
    harness_run(&store, 2, TIMEOUT_MS, wait_in_functions, &both);
    pthread_barrier_destroy(&both);
}
END_TEST

/* It may be set while the work becomes done. */
static void call_back_in_time(struct coll_group *g, int rank, void *arg)
{
    enum { N = 500 };
    struct told told = {.calls = 0};
    int64_t x = rank;

    (void)arg;
    for (int i = 0; i < N; i++) {
        coll_work_t *work = start_sum(g, &x, &x);

        EXPECT_OK(coll_work_then(work, tell, &told));
        while (told.calls == i)
            sched_yield();
        EXPECT_OK(coll_work_wait(work, 0));
        coll_work_free(work);
        x = rank;
    }
    EXPECT(
        told.calls == N && told.status == COLL_OK, "%d calls", (int)told.calls);
}

START_TEST(a_function_is_not_lost_when_the_work_is_quick)
{
    harness_run(&store, 2, TIMEOUT_MS, call_back_in_time, NULL);
}
END_TEST

/* --- Failure -------------------------------------------------------------- */

static void fail_in_line(struct coll_group *g, int rank, void *arg)
{
    enum { N = 20 };
    coll_work_t *works[N] = {NULL};
    int64_t x[N] = {0};
    const char *words = "mismatch at operation #6: rank 0 called "
                        "all_reduce(count=1, int64, sum), ranks 1,2 called "
                        "broadcast(count=1, int64, root=0)";
    int n = 0;

    (void)arg;
    while (n < N) {
        coll_status_t status =
            n == 5 && rank != 0
                ? coll_broadcast_async(&x[n], 1, COLL_INT64, 0, g, &works[n])
                : coll_all_reduce_async(
                      &x[n], &x[n], 1, COLL_INT64, COLL_SUM, g, &works[n]);

        /* The failure may be known before all have been called. */
        if (status != COLL_OK) {
            EXPECT(n > 5 && status == COLL_ERR_MISMATCH, "%d: %s", n,
                coll_last_error());
            break;
        }
        n++;
    }
    for (int i = 0; i < n; i++) {
        if (i < 5)
            EXPECT_OK(coll_work_wait(works[i], 0));
        else
            EXPECT_FAILS(coll_work_wait(works[i], 0), COLL_ERR_MISMATCH, words);
        coll_work_free(works[i]);
    }
    EXPECT_FAILS(coll_barrier_async(g, &works[0]), COLL_ERR_MISMATCH, words);
}

START_TEST(all_that_stand_in_line_fail_with_the_first)
{
    for (int i = 0; i < 10; i++)
        harness_run(&store, 3, TIMEOUT_MS, fail_in_line, NULL);
}
END_TEST

static void *abort_main(void *arg)
{
    EXPECT_OK(coll_abort(arg));
    return NULL;
}

/* Rank 0 stands in an operation, has others behind it, and waits for messages,
 * when another thread ends all that. */
static void abort_all(struct coll_group *g, int rank, void *arg)
{
    enum { N = 5 };
    pthread_barrier_t *over = arg;
    const char *words = "aborted by coll_abort()";
    coll_work_t *works[N] = {NULL};
    coll_work_t *message = NULL;
    int64_t x[N] = {0};
    int32_t y;
    pthread_t thread;

    EXPECT_OK(coll_barrier(g));
    if (rank == 0) {
        for (int i = 0; i < N; i++)
            works[i] = start_sum(g, &x[i], &x[i]);
        EXPECT_OK(coll_irecv(&y, 1, COLL_INT32, 1, 7, g, &message));
        EXPECT(pthread_create(&thread, NULL, abort_main, g) == 0, "thread");
        EXPECT_FAILS(coll_recv(&y, 1, COLL_INT32, 2, 8, NULL, g),
            COLL_ERR_ABORTED, words);
        for (int i = 0; i < N; i++) {
            EXPECT_FAILS(coll_work_wait(works[i], 0), COLL_ERR_ABORTED, words);
            coll_work_free(works[i]);
        }
        EXPECT_FAILS(coll_work_wait(message, 0), COLL_ERR_ABORTED, words);
        coll_work_free(message);
        pthread_join(thread, NULL);
        EXPECT_FAILS(coll_barrier(g), COLL_ERR_ABORTED, words);
        EXPECT_FAILS(coll_isend(&y, 1, COLL_INT32, 1, 0, g, &message),
            COLL_ERR_ABORTED, words);
        EXPECT_OK(coll_abort(g)); /* again is no error */
    } else if (rank == 1) {
        EXPECT_FAILS(coll_recv(&y, 1, COLL_INT32, 0, 0, NULL, g), COLL_ERR_PEER,
            "rank 0 gave up: aborted by coll_abort()");
    } else {
        EXPECT_FAILS(coll_monitored_barrier(TIMEOUT_MS, g), COLL_ERR_PEER,
            "rank 0 gave up: aborted by coll_abort()");
    }
    if (rank != 0)
        EXPECT_FAILS(coll_barrier(g), COLL_ERR_PEER, words);
    pthread_barrier_wait(over); /* so nobody hears of the end instead */
}

START_TEST(abort_ends_all_waits)
{
    pthread_barrier_t over;

    for (int i = 0; i < 5; i++) {
        pthread_barrier_init(&over, NULL, 3);
        harness_run(&store, 3, TIMEOUT_MS, abort_all, &over);
        pthread_barrier_destroy(&over);
    }
}
END_TEST

/* Rank 1 makes a mismatch of it before rank 0's operation hears of the end. */
static void abort_first(struct coll_group *g, int rank, void *arg)
{
    pthread_barrier_t *seen = arg;
    coll_work_t *work;
    int64_t x = 1;

    if (rank == 0) {
        work = start_sum(g, &x, &x);
        EXPECT_FAILS(coll_work_wait(work, 10), COLL_ERR_TIMEOUT, "goes on");
        EXPECT_OK(coll_abort(g));
        pthread_barrier_wait(seen);
        EXPECT_FAILS(coll_work_wait(work, 0), COLL_ERR_ABORTED, "aborted");
        coll_work_free(work);
    } else {
        pthread_barrier_wait(seen);
        EXPECT(coll_barrier(g) < 0, "a barrier without rank 0");
    }
    pthread_barrier_wait(seen);
}

START_TEST(what_is_aborted_ends_with_nothing_else)
{
    pthread_barrier_t seen;

    for (int i = 0; i < 20; i++) {
        pthread_barrier_init(&seen, NULL, 2);
        harness_run(&store, 2, TIMEOUT_MS, abort_first, &seen);
        pthread_barrier_destroy(&seen);
    }
}
END_TEST

/* Between two operations of the rank, or in the middle of many: others hear of
 * it, whatever they do. */
static void abort_any_time(struct coll_group *g, int rank, void *arg)
{
    pthread_barrier_t *over = arg;
    coll_status_t status = COLL_OK;
    pthread_t thread;

    EXPECT_OK(coll_barrier(g));
    if (rank == 0)
        EXPECT(pthread_create(&thread, NULL, abort_main, g) == 0, "thread");
    while (status == COLL_OK) {
        int64_t x = 1;

        status = coll_all_reduce(&x, &x, 1, COLL_INT64, COLL_SUM, g);
        EXPECT(status != COLL_OK || x == g->size, "got %lld", (long long)x);
    }
    EXPECT(status == (rank == 0 ? COLL_ERR_ABORTED : COLL_ERR_PEER), "%s: %s",
        coll_strerror(status), coll_last_error());
    EXPECT(strstr(coll_last_error(), "aborted by coll_abort()") != NULL, "%s",
        coll_last_error());
    if (rank == 0)
        pthread_join(thread, NULL);
    pthread_barrier_wait(over);
}

START_TEST(abort_is_told_whenever_it_comes)
{
    pthread_barrier_t over;

    for (int i = 0; i < 40; i++) {
        pthread_barrier_init(&over, NULL, 2);
        harness_run(&store, 2, TIMEOUT_MS, abort_any_time, &over);
        pthread_barrier_destroy(&over);
    }
}
END_TEST

/* A back end that does nothing but count how often it is to tell the others. */
static _Atomic int tellings;
static _Atomic bool is_running;

static coll_status_t fake_create(
    struct coll_group *g, const struct coll_boot *boot)
{
    (void)g;
    (void)boot;
    return COLL_OK;
}

static void fake_destroy(struct coll_group *g)
{
    (void)g;
}

static coll_status_t fake_run(
    struct coll_group *g, const struct coll_call *call)
{
    (void)g;
    (void)call;
    is_running = true;
    sched_yield();
    is_running = false;
    return COLL_OK;
}

static void fake_give_up(struct coll_group *g, coll_status_t status)
{
    (void)g;
    EXPECT(status == COLL_ERR_ABORTED, "%d", (int)status);
    EXPECT(
        strstr(coll_last_error(), "aborted") != NULL, "%s", coll_last_error());
    EXPECT(!is_running, "beside an operation");
    tellings++;
}

static const struct coll_backend fake = {
    .name = "fake",
    .max_ranks = 1,
    .create = fake_create,
    .destroy = fake_destroy,
    .run = fake_run,
    .give_up = fake_give_up,
    .wake = fake_destroy,
};

static void *barriers_main(void *arg)
{
    while (coll_barrier(arg) == COLL_OK)
        continue;
    return NULL;
}

/* Between the look at a failure and the end of the turn, too. */
START_TEST(no_abort_goes_untold)
{
    for (int i = 0; i < 500; i++) {
        struct coll_group *g = NULL;
        pthread_t thread;

        tellings = 0;
        ck_assert_int_eq(
            coll_group_create(&g, &fake, 0, 1, 1000, NULL), COLL_OK);
        ck_assert_int_eq(pthread_create(&thread, NULL, barriers_main, g), 0);
        while (atomic_load(&g->turn) == 0)
            sched_yield();
        for (int k = 0; k < i % 100; k++)
            atomic_load(&g->turn);
        ck_assert_int_eq(coll_abort(g), COLL_OK);
        pthread_join(thread, NULL);
        ck_assert_msg(tellings >= 1, "attempt %d: nobody was told", i);
        coll_group_free(g);
    }
    ck_assert_msg(harness_report.text[0] == '\0', "%s", harness_report.text);
}
END_TEST

/* PG-19: the group's time-out holds for works that nobody waits for. */
static void time_out_alone(struct coll_group *g, int rank, void *arg)
{
    pthread_barrier_t *over = arg;

    EXPECT_OK(coll_barrier(g));
    g->timeout_ms = 200;
    if (rank == 0) {
        struct told told = {.calls = 0};
        int64_t x = 1;
        coll_work_t *work = start_sum(g, &x, &x);

        EXPECT_OK(coll_work_then(work, tell, &told));
        while (told.calls == 0)
            sched_yield();
        EXPECT(told.status == COLL_ERR_TIMEOUT, "%d", (int)told.status);
        EXPECT_FAILS(coll_work_wait(work, 1), COLL_ERR_TIMEOUT,
            "timed out after 0.2 s in all_reduce #2 waiting for rank 1");
        coll_work_free(work);
    }
    pthread_barrier_wait(over);
}

START_TEST(the_groups_time_out_ends_a_work)
{
    pthread_barrier_t over;

    pthread_barrier_init(&over, NULL, 2);
    harness_run(&store, 2, TIMEOUT_MS, time_out_alone, &over);
    pthread_barrier_destroy(&over);
}
END_TEST

/* PG-09 */
static void destroy_in_flight(struct coll_group *g, int rank, void *arg)
{
    pthread_barrier_t *seen = arg;
    struct coll_group *other = join_other(g, "other", false);
    coll_work_t *work = NULL;
    coll_work_t *message = NULL;
    int64_t x = 1;
    int32_t y = 0;

    if (other == NULL)
        return;
    if (rank == 0) {
        work = start_sum(other, &x, &x);
        EXPECT_FAILS(coll_group_destroy(other), COLL_ERR_STATE,
            "an operation is on its way");
        EXPECT_OK(coll_irecv(&y, 1, COLL_INT32, 1, 0, other, &message));
        pthread_barrier_wait(seen);
        finish(work);
        EXPECT_FAILS(coll_group_destroy(other), COLL_ERR_STATE,
            "an operation is on its way");
        pthread_barrier_wait(seen);
        finish(message);
        EXPECT(x == 2 && y == 5, "got %d and %d", (int)x, (int)y);
    } else {
        pthread_barrier_wait(seen);
        finish(start_sum(other, &x, &x));
        pthread_barrier_wait(seen);
        y = 5;
        EXPECT_OK(coll_send(&y, 1, COLL_INT32, 0, 0, other));
    }
    EXPECT_OK(coll_group_destroy(other));
    EXPECT_FAILS(
        coll_group_destroy(other), COLL_ERR_ARGUMENT, "been destroyed");
    EXPECT_OK(coll_barrier(g));
}

START_TEST(a_group_is_not_destroyed_under_its_works)
{
    pthread_barrier_t seen;

    pthread_barrier_init(&seen, NULL, 2);
    harness_run(&store, 2, TIMEOUT_MS, destroy_in_flight, &seen);
    pthread_barrier_destroy(&seen);
}
END_TEST

struct race {
    struct coll_group *g;
    coll_work_t *work;
    _Atomic bool is_over;
    pthread_t thread;
};

static void *race_main(void *arg)
{
    struct race *r = arg;

    EXPECT_OK(coll_work_wait(r->work, 0));
    if (!atomic_exchange(&r->is_over, true))
        EXPECT_OK(coll_group_destroy(r->g));
    return NULL;
}

/* Whoever is first to know that the work is done destroys the group. */
static void destroy_after_wait(struct coll_group *g, int rank, void *arg)
{
    struct race r = {.g = join_other(g, "other", false)};
    int32_t x = 7;

    (void)arg;
    if (r.g == NULL)
        return;
    if (rank == 1) {
        EXPECT_OK(coll_send(&x, 1, COLL_INT32, 0, 0, r.g));
        EXPECT_OK(coll_group_destroy(r.g));
    } else {
        EXPECT_OK(coll_irecv(&x, 1, COLL_INT32, 1, 0, r.g, &r.work));
        EXPECT(pthread_create(&r.thread, NULL, race_main, &r) == 0, "thread");
        race_main(&r);
        pthread_join(r.thread, NULL);
        coll_work_free(r.work);
    }
    EXPECT_OK(coll_barrier(g));
}

START_TEST(the_first_that_has_waited_may_destroy_the_group)
{
    for (int i = 0; i < 50; i++)
        harness_run(&store, 2, TIMEOUT_MS, destroy_after_wait, NULL);
}
END_TEST

/* PG-09: what is left is destroyed right after coll_abort(), and works live on,
 * unless they have been given back. */
static void abort_and_destroy(struct coll_group *g, int rank, void *arg)
{
    enum { N = 10 };
    pthread_barrier_t *aborted = arg;
    struct coll_group *other = join_other(g, "other", false);
    coll_work_t *works[N] = {NULL};
    coll_work_t *message = NULL;
    int64_t x[N] = {0};
    int32_t y;

    if (other == NULL)
        return;
    if (rank == 0) {
        for (int i = 0; i < N; i++)
            works[i] = start_sum(other, &x[i], &x[i]);
        EXPECT_OK(coll_irecv(&y, 1, COLL_INT32, 1, 0, other, &message));
        coll_work_free(message);
        for (int i = 0; i < N / 2; i++)
            coll_work_free(works[i]);
        EXPECT_OK(coll_abort(other));
    }
    /* Else rank 1 may have left first, which is another reason to fail. */
    pthread_barrier_wait(aborted);
    EXPECT_OK(coll_group_destroy(other));
    for (int i = N / 2; rank == 0 && i < N; i++) {
        EXPECT_FAILS(coll_work_wait(works[i], 0), COLL_ERR_ABORTED, "aborted");
        coll_work_free(works[i]);
    }
    EXPECT_OK(coll_barrier(g));
}

START_TEST(works_outlive_a_group_that_was_aborted)
{
    pthread_barrier_t aborted;

    pthread_barrier_init(&aborted, NULL, 2);
    for (int i = 0; i < 10; i++)
        harness_run(&store, 2, TIMEOUT_MS, abort_and_destroy, &aborted);
    pthread_barrier_destroy(&aborted);
}
END_TEST

/* --- Threads -------------------------------------------------------------- */

struct worker {
    struct coll_group *g;
    int value;
    pthread_t thread;
};

/* Operations that wait and that do not, and messages, one after the other. */
static void *work_main(void *arg)
{
    const struct worker *w = arg;
    struct coll_group *g = w->g;

    for (int i = 0; i < 300; i++) {
        int64_t x[2] = {w->value, w->value};
        int64_t from = -1;
        coll_work_t *sum = start_sum(g, &x[0], &x[0]);
        coll_work_t *sent = NULL;

        EXPECT_OK(coll_isend(
            &i, 1, COLL_INT32, (g->rank + 1) % g->size, w->value, g, &sent));
        EXPECT_OK(coll_all_reduce(&x[1], &x[1], 1, COLL_INT64, COLL_MAX, g));
        EXPECT_OK(coll_recv(&from, 1, COLL_INT32,
            (g->rank + g->size - 1) % g->size, w->value, NULL, g));
        finish(sent);
        finish(sum);
        EXPECT(x[0] == (int64_t)w->value * g->size && x[1] == w->value,
            "round %d: %lld %lld", i, (long long)x[0], (long long)x[1]);
        EXPECT((int32_t)from == i, "round %d", i);
    }
    return NULL;
}

static void two_threads(struct coll_group *g, int rank, void *arg)
{
    struct coll_group *other = join_other(g, "other", true);
    struct worker workers[2] = {{.g = g, .value = 3}, {.g = other, .value = 4}};

    (void)rank;
    (void)arg;
    if (other == NULL)
        return;
    for (int i = 0; i < 2; i++)
        EXPECT(pthread_create(
                   &workers[i].thread, NULL, work_main, &workers[i]) == 0,
            "thread");
    for (int i = 0; i < 2; i++)
        pthread_join(workers[i].thread, NULL);
    coll_group_free(other);
}

/* PG-21 */
START_TEST(threads_on_groups_of_their_own)
{
    harness_run(&store, 3, TIMEOUT_MS, two_threads, NULL);
}
END_TEST

static void *reduce_main(void *arg)
{
    const struct worker *w = arg;

    for (int i = 0; i < 500; i++) {
        int64_t x = w->value;
        coll_work_t *work = NULL;

        if (i % 2 == 0) {
            EXPECT_OK(coll_all_reduce(&x, &x, 1, COLL_INT64, COLL_SUM, w->g));
        } else {
            work = start_sum(w->g, &x, &x);
            finish(work);
        }
        EXPECT(x == (int64_t)w->value * w->g->size, "round %d: %lld", i,
            (long long)x);
    }
    return NULL;
}

static void one_group(struct coll_group *g, int rank, void *arg)
{
    enum { THREADS = 3 };
    struct worker workers[THREADS];

    (void)rank;
    (void)arg;
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.g = g, .value = 3};
        EXPECT(pthread_create(
                   &workers[i].thread, NULL, reduce_main, &workers[i]) == 0,
            "thread");
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
}

/* PG-21: the same call from all, so that their order does not matter. */
START_TEST(threads_on_one_group_are_serialised)
{
    harness_run(&store, 3, TIMEOUT_MS, one_group, NULL);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("work");

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(
        tc, every_operation_has_a_form_that_does_not_wait, 0, 12);
    tcase_add_test(tc, operations_keep_the_order_of_the_calls);
    tcase_add_test(tc, a_thousand_works_wait_in_line);
    tcase_add_test(tc, a_late_rank_of_one_group_does_not_hold_up_another);
    tcase_add_test(tc, a_work_may_be_waited_for_by_many_and_again);
    tcase_add_test(tc, a_work_that_is_freed_early_goes_on);
    tcase_add_loop_test(tc, a_work_may_be_freed_while_others_wait_for_it, 0, 2);
    tcase_add_test(tc, a_function_is_called_once_with_the_result);
    tcase_add_test(tc, a_function_waits_for_nobody);
    tcase_add_test(tc, a_function_is_not_lost_when_the_work_is_quick);
    tcase_add_test(tc, all_that_stand_in_line_fail_with_the_first);
    tcase_add_test(tc, abort_ends_all_waits);
    tcase_add_test(tc, what_is_aborted_ends_with_nothing_else);
    tcase_add_test(tc, abort_is_told_whenever_it_comes);
    tcase_add_test(tc, no_abort_goes_untold);
    tcase_add_test(tc, the_groups_time_out_ends_a_work);
    tcase_add_test(tc, a_group_is_not_destroyed_under_its_works);
    tcase_add_test(tc, the_first_that_has_waited_may_destroy_the_group);
    tcase_add_test(tc, works_outlive_a_group_that_was_aborted);
    tcase_add_test(tc, threads_on_groups_of_their_own);
    tcase_add_test(tc, threads_on_one_group_are_serialised);
    return unit_run("coll_work", tc);
}
