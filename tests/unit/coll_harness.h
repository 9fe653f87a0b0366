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
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/worker_env.h"
#include "worker/backend.h"

/* --- The store ---------------------------------------------------------- */

struct harness_store {
    coll_store_t *store; /* hosts it, in a thread */
    int port;
};

/* Starts a thread, so fork before. */
static inline void harness_store_start(struct harness_store *st)
{
    const coll_store_options_t options = {.is_host = true};

    ck_assert_msg(
        coll_store_tcp(&st->store, "127.0.0.1", 0, &options) == COLL_OK, "%s",
        coll_last_error());
    st->port = coll_store_port(st->store);
}

static inline void harness_store_stop(struct harness_store *st)
{
    coll_store_close(st->store);
}

/* A port that nobody listens on, and below those that the kernel gives to
 * outgoing connections: so it stays free. */
static inline int harness_free_port(void)
{
    struct sockaddr_in sin = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    unsigned int seed = (unsigned int)getpid() ^ (unsigned int)clock_now_ns();

    for (;;) {
        int port = 20000 + rand_r(&seed) % 12000;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int rc;

        ck_assert_int_ge(fd, 0);
        sin.sin_port = htons((uint16_t)port);
        rc = bind(fd, (struct sockaddr *)&sin, sizeof(sin));
        close(fd);
        if (rc == 0)
            return port;
        ck_assert_int_eq(errno, EADDRINUSE);
    }
}

/* What a launcher that serves the store tells its workers. */
static inline void harness_set_master(int port)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", port);
    setenv(ENV_MASTER_ADDR, "127.0.0.1", 1);
    setenv(ENV_MASTER_PORT, text, 1);
    setenv(ENV_USE_AGENT_STORE, "True", 1);
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

/* What a test may choose before it runs ranks. */
static const struct coll_backend *harness_backend = &coll_backend_shm;
static int (*harness_node_of)(int rank); /* NULL: nobody says */

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
        .node = harness_node_of == NULL ? -1 : harness_node_of(rank),
    };
    const coll_store_options_t options = {.timeout_ms = job->timeout_ms};
    coll_status_t status =
        coll_store_tcp(&boot.store, "127.0.0.1", job->store->port, &options);

    if (status != COLL_OK)
        return status;
    status = coll_group_create(
        out, harness_backend, rank, size, job->timeout_ms, &boot);
    coll_store_close(boot.store);
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
    coll_group_free(g);
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
