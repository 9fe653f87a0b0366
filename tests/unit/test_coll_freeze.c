/*
 * A rank that freezes in the middle of an operation: every other rank's call
 * ends as a time-out and names that one, also where it waits for a third one
 * that waits itself. Ranks are processes; the victim stops itself at some
 * system call on its way through the operation, another one in every job.
 */
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rendezvous/worker_env.h"
#include "tests/unit/coll_harness.h"
#include "tests/unit/coll_layouts.h"
#include "tests/unit/unit.h"

enum { SIZE = 4, SMALL = 3, LARGE = 20000, JOBS = 4 };

/* Of which all but the last operation of a job need little. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { TIMEOUT_MS = 8000 };
#else
enum { TIMEOUT_MS = 2000 };
#endif

/* The process stops when it reaches 0; 0: never. */
static int countdown;

static void step(void)
{
    if (countdown > 0 && --countdown == 0)
        raise(SIGSTOP);
}

/* libc's own. ISO C has no cast from an object to a function pointer. */
static void find_real(const char *name, void *real)
{
    void *address = dlsym(RTLD_NEXT, name);

    memcpy(real, &address, sizeof(address));
}

/* Stand in for libc's, also in the library under test. */
#define DEFINE_CALL(result, name, parameters, arguments)                       \
    result name parameters                                                     \
    {                                                                          \
        result(*real) parameters;                                              \
        find_real(#name, &real);                                               \
        step();                                                                \
        return real arguments;                                                 \
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
DEFINE_CALL(ssize_t, send, (int fd, const void *data, size_t len, int flags),
    (fd, data, len, flags))
DEFINE_CALL(ssize_t, recv, (int fd, void *data, size_t len, int flags),
    (fd, data, len, flags))
DEFINE_CALL(ssize_t, sendmsg, (int fd, const struct msghdr *msg, int flags),
    (fd, msg, flags))
DEFINE_CALL(int, sched_yield, (void), ())
#pragma GCC diagnostic pop

/* --- The operations ------------------------------------------------------- */

static int32_t *from, *to; /* SIZE * LARGE elements */

typedef coll_status_t operation_fn(size_t n);

static coll_status_t all_reduce(size_t n)
{
    return coll_all_reduce(from, to, n, COLL_INT32, COLL_SUM, NULL);
}

static coll_status_t reduce(size_t n)
{
    return coll_reduce(from, to, n, COLL_INT32, COLL_SUM, 0, NULL);
}

static coll_status_t broadcast(size_t n)
{
    return coll_broadcast(to, n, COLL_INT32, 1, NULL);
}

static coll_status_t all_gather(size_t n)
{
    return coll_all_gather(from, to, n, COLL_INT32, NULL);
}

static coll_status_t gather(size_t n)
{
    return coll_gather(from, to, n, COLL_INT32, 1, NULL);
}

static coll_status_t scatter(size_t n)
{
    return coll_scatter(from, to, n, COLL_INT32, 0, NULL);
}

static coll_status_t reduce_scatter(size_t n)
{
    return coll_reduce_scatter(from, to, n, COLL_INT32, COLL_SUM, NULL);
}

static coll_status_t all_to_all(size_t n)
{
    return coll_all_to_all(from, to, n, COLL_INT32, NULL);
}

/* Parts of n, 0, n and n elements. */
static void parts(size_t n, size_t counts[SIZE], size_t at[SIZE])
{
    for (size_t r = 0; r < SIZE; r++) {
        counts[r] = r == 1 ? 0 : n;
        at[r] = r * n;
    }
}

static coll_status_t all_gather_v(size_t n)
{
    size_t counts[SIZE], at[SIZE];

    parts(n, counts, at);
    return coll_all_gather_v(
        from, counts[coll_rank(NULL)], to, counts, at, COLL_INT32, NULL);
}

static coll_status_t reduce_scatter_v(size_t n)
{
    size_t counts[SIZE], at[SIZE];

    parts(n, counts, at);
    return coll_reduce_scatter_v(
        from, counts, at, to, COLL_INT32, COLL_SUM, NULL);
}

static coll_status_t all_to_all_v(size_t n)
{
    size_t out[SIZE], in[SIZE], at[SIZE];

    parts(n, out, at);
    for (int r = 0; r < SIZE; r++)
        in[r] = coll_rank(NULL) == 1 ? 0 : n;
    return coll_all_to_all_v(from, out, at, to, in, at, COLL_INT32, NULL);
}

static coll_status_t barrier(size_t n)
{
    (void)n;
    return coll_barrier(NULL);
}

static operation_fn *const operations[] = {
    all_reduce,
    reduce,
    broadcast,
    all_gather,
    gather,
    scatter,
    reduce_scatter,
    all_to_all,
    all_gather_v,
    reduce_scatter_v,
    all_to_all_v,
    barrier,
};

enum { OPERATIONS = sizeof(operations) / sizeof(operations[0]) };

/* --- Jobs ----------------------------------------------------------------- */

struct job {
    operation_fn *run;
    size_t count;
    int victim;
    int steps; /* till it freezes */
    char store[64]; /* a file */
    pid_t pids[SIZE];
};

/* Exit status 0: the error was the right one. */
static int run_until_error(const struct job *job, int rank)
{
    coll_options_t options = COLL_OPTIONS_INIT;
    coll_status_t status;
    char method[96];
    char words[64];
    const char *found;

    snprintf(method, sizeof(method), "file://%s", job->store);
    options.init_method = method;
    options.backend = harness_backend->name;
    options.timeout_ms = 60000;
    from = calloc((size_t)SIZE * LARGE, sizeof(*from));
    to = calloc((size_t)SIZE * LARGE, sizeof(*to));
    if (from == NULL || to == NULL || coll_init(&options) != COLL_OK ||
        coll_barrier(NULL) != COLL_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, coll_last_error());
        return 2;
    }
    coll_default_group()->timeout_ms = TIMEOUT_MS;
    if (rank == job->victim)
        countdown = job->steps;
    do
        status = job->run(job->count);
    while (status == COLL_OK);
    snprintf(words, sizeof(words), " waiting for rank %d", job->victim);
    found = strstr(coll_last_error(), words);
    if (status != COLL_ERR_TIMEOUT || found == NULL ||
        found[strlen(words)] != '\0') {
        fprintf(stderr, "rank %d, victim %d at step %d: %s: %s\n", rank,
            job->victim, job->steps, coll_strerror(status), coll_last_error());
        return 3;
    }
    return coll_destroy() == COLL_OK ? 0 : 4;
}

static void start(struct job *job)
{
    char text[16];

    for (int r = 0; r < SIZE; r++) {
        job->pids[r] = fork();
        ck_assert_int_ge(job->pids[r], 0);
        if (job->pids[r] > 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        snprintf(text, sizeof(text), "%d", r);
        setenv(ENV_RANK, text, 1);
        snprintf(text, sizeof(text), "%d", SIZE);
        setenv(ENV_WORLD_SIZE, text, 1);
        if (harness_node_of != NULL) {
            snprintf(text, sizeof(text), "%d", harness_node_of(r));
            setenv(ENV_GROUP_RANK, text, 1);
        }
        _exit(run_until_error(job, r));
    }
}

static void end(const struct job *job)
{
    int status;

    for (int r = 0; r < SIZE; r++)
        if (r != job->victim) {
            ck_assert_int_eq(waitpid(job->pids[r], &status, 0), job->pids[r]);
            ck_assert_msg(status == 0, "rank %d: status %x", r, status);
        }
    kill(job->pids[job->victim], SIGKILL);
    ck_assert_int_eq(
        waitpid(job->pids[job->victim], &status, 0), job->pids[job->victim]);
    ck_assert_msg(WIFSIGNALED(status), "the victim has ended: %x", status);
    unlink(job->store);
}

/* Some at the same time, since most of it is waiting. */
START_TEST(the_one_that_freezes_is_named)
{
    char folder[] = "/tmp/test_coll_freeze.XXXXXX";
    struct job jobs[JOBS];

    choose_layout(_i % LAYOUTS_OF_NODES);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    for (int k = 0; k < JOBS; k++) {
        unsigned int number = (unsigned int)(_i * JOBS + k);

        jobs[k] = (struct job){
            .run = operations[(_i / LAYOUTS_OF_NODES * JOBS + k) % OPERATIONS],
            .count = number % 3 == 0 ? SMALL : LARGE,
            .victim = (_i / LAYOUTS_OF_NODES + k) % SIZE,
            .steps = 1 + (int)(number * 2654435761u % 97),
        };
        snprintf(jobs[k].store, sizeof(jobs[k].store), "%s/%d", folder, k);
        start(&jobs[k]);
    }
    for (int k = 0; k < JOBS; k++)
        end(&jobs[k]);
    rmdir(folder);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("freeze");

    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, the_one_that_freezes_is_named, 0,
        LAYOUTS_OF_NODES * OPERATIONS / JOBS);
    return unit_run("coll_freeze", tc);
}
