/*
 * What the tests of libcollective share: a real store in a thread, and ranks
 * that are threads of this process or children of it.
 *
 * Check's assertions may only run in the test's own thread, so what a rank
 * finds wrong it reports with EXPECT(); the test fails when all are joined.
 */
#ifndef COLL_HARNESS_H
#define COLL_HARNESS_H

#include <check.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/store_client.h"
#include "rendezvous/store_server.h"
#include "worker/backend.h"

/* --- The store ---------------------------------------------------------- */

struct harness_store {
    uv_loop_t loop;
    uv_async_t stop;
    struct store_server *server;
    pthread_t thread;
    int port;
};

static inline void harness_on_stop(uv_async_t *async)
{
    struct harness_store *st = async->data;

    store_server_destroy(st->server);
    uv_close((uv_handle_t *)async, NULL);
}

static inline void *harness_serve(void *arg)
{
    struct harness_store *st = arg;

    uv_run(&st->loop, UV_RUN_DEFAULT);
    return NULL;
}

/* Starts a thread, so fork before. */
static inline void harness_store_start(struct harness_store *st)
{
    struct err e = {0};

    ck_assert_int_eq(uv_loop_init(&st->loop), 0);
    ck_assert_int_eq(uv_async_init(&st->loop, &st->stop, harness_on_stop), 0);
    st->stop.data = st;
    ck_assert_int_eq(store_server_create(&st->server, &st->loop), 0);
    ck_assert_msg(
        store_server_listen(st->server, "127.0.0.1", 0, &st->port, &e) == 0,
        "%s", e.msg);
    ck_assert_int_eq(pthread_create(&st->thread, NULL, harness_serve, st), 0);
}

static inline void harness_store_stop(struct harness_store *st)
{
    uv_async_send(&st->stop);
    pthread_join(st->thread, NULL);
    ck_assert_int_eq(uv_loop_close(&st->loop), 0);
}

/* --- What a rank found wrong -------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    char text[1024]; /* the first report, "" while all is well */
} harness_report = {.lock = PTHREAD_MUTEX_INITIALIZER};

__attribute__((format(printf, 1, 2))) static inline void harness_wrong(
    const char *fmt, ...)
{
    va_list args;

    pthread_mutex_lock(&harness_report.lock);
    if (harness_report.text[0] == '\0') {
        va_start(args, fmt);
        vsnprintf(harness_report.text, sizeof(harness_report.text), fmt, args);
        va_end(args);
    }
    pthread_mutex_unlock(&harness_report.lock);
}

#define EXPECT(cond, ...)                                                      \
    do {                                                                       \
        if (!(cond)) {                                                         \
            char expect_text[512];                                             \
            snprintf(expect_text, sizeof(expect_text), __VA_ARGS__);           \
            harness_wrong(                                                     \
                "%s:%d: %s: %s", __FILE__, __LINE__, #cond, expect_text);      \
        }                                                                      \
    } while (0)

#define EXPECT_OK(call)                                                        \
    EXPECT((call) == COLL_OK, "failed with: %s", coll_last_error())

#define EXPECT_FAILS(call, status, words)                                      \
    do {                                                                       \
        coll_status_t expect_status = (call);                                  \
        EXPECT(expect_status == (status), "got %s: %s",                        \
            coll_strerror(expect_status), coll_last_error());                  \
        EXPECT(strstr(coll_last_error(), (words)) != NULL,                     \
            "\"%s\" is not in: %s", (words), coll_last_error());               \
    } while (0)

/* --- Ranks as threads --------------------------------------------------- */

/* g is NULL where the group could not be made and want_group is false. */
typedef void harness_rank_fn(struct coll_group *g, int rank, void *arg);

struct harness_job {
    const struct harness_store *store;
    int size;
    int64_t timeout_ms;
    harness_rank_fn *run;
    void *arg;
    char prefix[32];
};

struct harness_thread {
    const struct harness_job *job;
    int rank;
    pthread_t thread;
};

static inline coll_status_t harness_join(
    const struct harness_job *job, int rank, int size, struct coll_group **out)
{
    struct coll_boot boot = {
        .prefix = job->prefix,
        .deadline_ns = clock_deadline_ns(job->timeout_ms),
    };
    struct err e = {0};
    coll_status_t status;

    if (store_client_connect(&boot.store, "127.0.0.1", job->store->port,
            boot.deadline_ns, &e) < 0)
        return coll_fail(COLL_ERR_STORE, "%s", e.msg);
    status = coll_group_create(
        out, &coll_backend_shm, rank, size, job->timeout_ms, &boot);
    store_client_close(boot.store);
    return status;
}

static inline void *harness_rank_main(void *arg)
{
    struct harness_thread *t = arg;
    struct coll_group *g = NULL;
    coll_status_t status = harness_join(t->job, t->rank, t->job->size, &g);

    EXPECT(status == COLL_OK, "rank %d: %s", t->rank, coll_last_error());
    if (status == COLL_OK)
        t->job->run(g, t->rank, t->job->arg);
    coll_group_destroy(g);
    return NULL;
}

/* Runs one function on every rank of a new group. */
static inline void harness_run(const struct harness_store *st, int size,
    int64_t timeout_ms, harness_rank_fn *run, void *arg)
{
    static int jobs; /* a test's process has one main thread */
    struct harness_job job = {st, size, timeout_ms, run, arg, ""};
    struct harness_thread threads[16];

    ck_assert_int_le(size, 16);
    snprintf(job.prefix, sizeof(job.prefix), "test/%d/", jobs++);
    for (int r = 0; r < size; r++) {
        threads[r] = (struct harness_thread){.job = &job, .rank = r};
        ck_assert_int_eq(pthread_create(&threads[r].thread, NULL,
                             harness_rank_main, &threads[r]),
            0);
    }
    for (int r = 0; r < size; r++)
        pthread_join(threads[r].thread, NULL);
    ck_assert_msg(harness_report.text[0] == '\0', "size %d: %s", size,
        harness_report.text);
}

#endif
