/*
 * The GPU back end when something goes wrong, on the test doubles of CUDA and
 * NCCL: ranks that do not come, hang, die or differ, libraries that are missing
 * or fail, aborts from elsewhere. Each time whoever waits must hear why, must
 * get away, and must be able to begin anew.
 *
 * A scenario is a process of its own, whose children are the ranks; the
 * scenarios run side by side, as most of their time is that of time-outs, and
 * each is one test for Check. `test_gpu_faults NAME` runs one of them.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/unit/coll_harness.h"
#include "tests/unit/unit.h"
#include "worker/cuda_api.h"
#include "worker/include/collective_gpu.h"

enum { COUNT = 256, RANKS_MAX = 4, STEPS = 8, AT_ONCE = 8 };

/* With this leak sanitizer looks now; a rank ends without atexit(). */
__attribute__((weak)) int __lsan_do_recoverable_leak_check(void);

/* What the processes of a scenario share. */
struct shared {
    sem_t steps[STEPS];
    _Atomic pid_t pids[RANKS_MAX];
};

struct scenario {
    const char *name;
    void (*run)(int rank);
    int ranks;
    const char *nccl_fault, *cuda_fail;
    /* Instead of ranks in processes: whatever it likes, alone. */
    int (*run_alone)(void);
};

static struct shared *shared;
static const struct scenario *current;
static int own_rank;
static const struct cuda_api *cu;
static char folder[] = "/tmp/crun-gpu-faults.XXXXXX";

static const char *seconds(void)
{
    static char text[16];
    static struct timespec began;
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    if (began.tv_sec == 0)
        began = now;
    snprintf(text, sizeof(text), "%.1f",
        (double)(now.tv_sec - began.tv_sec) +
            (double)(now.tv_nsec - began.tv_nsec) / 1e9);
    return text;
}

/* Check's assertions may only run in the test's own process. */
#define MUST(condition)                                                        \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr,                                                    \
                "%s: rank %d, line %d, after %s s: not true: %s "              \
                "(%s)\n",                                                      \
                current->name, own_rank, __LINE__, seconds(), #condition,      \
                coll_last_error());                                            \
            _exit(99);                                                         \
        }                                                                      \
    } while (0)

/* It fails so, with a sentence that has these words. */
#define MUST_FAIL(call, status, ...)                                           \
    do {                                                                       \
        const char *const must_words[] = {__VA_ARGS__};                        \
        coll_status_t must_status = (call);                                    \
                                                                               \
        if (must_status != (status)) {                                         \
            fprintf(stderr, "%s: rank %d, line %d, after %s s: got %s: %s\n",  \
                current->name, own_rank, __LINE__, seconds(),                  \
                coll_strerror(must_status), coll_last_error());                \
            _exit(99);                                                         \
        }                                                                      \
        for (size_t must_i = 0;                                                \
             must_i < sizeof(must_words) / sizeof(must_words[0]); must_i++)    \
            must_contain(must_words[must_i], coll_last_error(), __LINE__);     \
    } while (0)

static void must_contain(const char *word, const char *text, int line)
{
    if (strstr(text, word) != NULL)
        return;
    fprintf(stderr, "%s: rank %d, line %d: \"%s\" is not in: %s\n",
        current->name, own_rank, line, word, text);
    _exit(99);
}

/* Its own time is over, or it has heard that that of another rank is. */
static coll_status_t timed_out(coll_status_t status)
{
    return status == COLL_ERR_PEER &&
                   strstr(coll_last_error(), "gave up: timed out") != NULL
               ? COLL_ERR_TIMEOUT
               : status;
}

#define MUST_TIME_OUT(call, ...)                                               \
    MUST_FAIL(timed_out(call), COLL_ERR_TIMEOUT, "timed out after", __VA_ARGS__)

static void say(int step)
{
    MUST(sem_post(&shared->steps[step]) == 0);
}

static void await(int step)
{
    while (sem_wait(&shared->steps[step]) < 0)
        MUST(errno == EINTR);
}

static void check_leaks(void)
{
    if (__lsan_do_recoverable_leak_check != NULL)
        MUST(__lsan_do_recoverable_leak_check() == 0);
}

/* --- Ranks ----------------------------------------------------------------
 */

static int slow(int ms)
{
    const char *multiplier = getenv("CK_TIMEOUT_MULTIPLIER");

    return multiplier == NULL ? ms : ms * (int)strtol(multiplier, NULL, 10) / 2;
}

/* Beside the folder of the test program. */
static const char *fake_file(const char *name)
{
    static char out[PATH_MAX + 64];
    char self[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);

    MUST(len > 0);
    self[len] = '\0';
    *strrchr(self, '/') = '\0';
    snprintf(out, sizeof(out), "%s/../fake_nccl/%s", self, name);
    return out;
}

/* The double is there before libcollective looks, as with a program that is
 * linked to CUDA. */
static void load_cuda(void)
{
    MUST(dlopen(fake_file("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) != NULL);
    MUST(cuda_api_get(&cu) == COLL_OK);
}

static void use_nccl(const char *name)
{
    setenv("COLL_NCCL_LIBRARY", fake_file(name), 1);
}

static void join(void)
{
    coll_options_t options = COLL_OPTIONS_INIT;
    int64_t seconds_of_all = 60;

    options.timeout_ms = seconds_of_all * 1000;
    MUST(coll_init(&options) == COLL_OK);
}

/* From now on operations have this time, which is short. */
static void hurry(void)
{
    coll_default_group()->timeout_ms = slow(500);
}

static void use_device(void)
{
    struct cu_context *context;
    int device = coll_gpu_device();

    MUST(device >= 0);
    MUST(cu->primary_context_retain(&context, device) == COLL_CUDA_SUCCESS);
    MUST(cu->context_set(context) == COLL_CUDA_SUCCESS);
}

static float *device_floats(void)
{
    void *memory;

    MUST(coll_gpu_alloc(&memory, COUNT * sizeof(float)) == COLL_OK);
    return memory;
}

static void fill(float *x, float value)
{
    float host[COUNT];

    for (int i = 0; i < COUNT; i++)
        host[i] = value;
    MUST(cu->memory_copy((cu_address_t)(uintptr_t)x,
             (cu_address_t)(uintptr_t)host, sizeof(host)) == COLL_CUDA_SUCCESS);
}

static void must_hold(const float *x, float value)
{
    float host[COUNT];

    MUST(cu->memory_copy((cu_address_t)(uintptr_t)host,
             (cu_address_t)(uintptr_t)x, sizeof(host)) == COLL_CUDA_SUCCESS);
    for (int i = 0; i < COUNT; i++)
        MUST(host[i] == value);
}

static struct cu_stream *make_stream(void)
{
    struct cu_stream *stream;

    MUST(cu->stream_create(&stream, COLL_CUDA_STREAM_NON_BLOCKING, 0) ==
         COLL_CUDA_SUCCESS);
    return stream;
}

/* Everything works, on host and device. */
static void must_work(float *x)
{
    float y = 1;
    float size = (float)coll_world_size(NULL);

    fill(x, 1);
    MUST(coll_all_reduce(x, x, COUNT, COLL_FLOAT32, COLL_SUM, NULL) == COLL_OK);
    MUST(coll_gpu_synchronize(NULL, 0) == COLL_OK);
    must_hold(x, size);
    MUST(coll_all_reduce(&y, &y, 1, COLL_FLOAT32, COLL_SUM, NULL) == COLL_OK);
    MUST(y == size);
}

/* With a communicator, and little time. */
static float *begin(void)
{
    float *x;

    load_cuda();
    join();
    use_device();
    x = device_floats();
    must_work(x);
    MUST(coll_barrier(NULL) == COLL_OK);
    hurry();
    return x;
}

/* A world of the first n ranks, in which all is well. */
static void begin_anew(float *x, int n)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", n);
    setenv(ENV_WORLD_SIZE, text, 1);
    setenv(ENV_LOCAL_WORLD_SIZE, text, 1);
    setenv(ENV_RESTART_COUNT, "1", 1);
    unsetenv("FAKE_NCCL_FAULT");
    join();
    must_work(x);
    MUST(coll_barrier(NULL) == COLL_OK);
    MUST(coll_destroy() == COLL_OK);
}

static coll_status_t reduce(float *x)
{
    return coll_all_reduce(x, x, COUNT, COLL_FLOAT32, COLL_SUM, NULL);
}

static coll_work_t *reduce_async(float *x)
{
    coll_work_t *work = NULL;

    MUST(coll_all_reduce_async(
             x, x, COUNT, COLL_FLOAT32, COLL_SUM, NULL, &work) == COLL_OK);
    return work;
}

static void synchronize(struct cu_stream *stream)
{
    MUST(cu->stream_synchronize(stream) == COLL_CUDA_SUCCESS);
}

/* --- Time-outs ------------------------------------------------------------
 */

/* One after the other sees it. The third rank stays away until all have. */
static void stays_away(int rank)
{
    float *x = begin();
    struct cu_stream *stream = make_stream();

    MUST(coll_gpu_set_stream(NULL, stream) == COLL_OK);
    if (rank == 2) {
        await(0);
        await(0);
        MUST(coll_barrier(NULL) != COLL_OK);
        MUST(coll_destroy() == COLL_OK);
        return;
    }
    MUST(reduce(x) == COLL_OK);
    MUST_TIME_OUT(coll_gpu_synchronize(NULL, 0), "all_reduce #4 on GPU ",
        "waiting for rank 2");
    synchronize(stream);
    MUST_TIME_OUT(reduce(x), "all_reduce #4", "rank 2");
    MUST_TIME_OUT(coll_barrier(NULL), "all_reduce #4", "rank 2");
    say(0);
    MUST(coll_destroy() == COLL_OK);
    MUST(cu->stream_destroy(stream) == COLL_CUDA_SUCCESS);
    begin_anew(x, 2);
    MUST(coll_gpu_free(x) == COLL_OK);
}

/* What the works of one rank have come to, and by which thread. */
struct outcome {
    pthread_t main;
    sem_t called;
    coll_status_t status, status_of_destroy;
    bool is_own_thread;
};

static void then_cb(coll_status_t status, void *arg)
{
    struct outcome *o = arg;

    must_contain("waiting for rank 2", coll_last_error(), __LINE__);
    o->status = status;
    o->is_own_thread = pthread_equal(o->main, pthread_self()) != 0;
    o->status_of_destroy = coll_destroy();
    sem_post(&o->called);
}

static void *wait_thread(void *arg)
{
    MUST_TIME_OUT(coll_work_wait(arg, 0), "all_reduce #", "waiting for rank 2");
    return NULL;
}

/* Works of every kind: threads block in one, one is asked, one has a function,
 * one orders a stream, one is nobody's; all end alike. */
static void works_end(int rank)
{
    float *x = begin();
    struct cu_stream *stream = make_stream();
    struct outcome o = {.main = pthread_self()};
    coll_work_t *works[4];
    pthread_t threads[2];
    bool is_done = false;
    coll_status_t status;

    if (rank == 2) {
        await(0);
        await(0);
        MUST(coll_barrier(NULL) != COLL_OK);
        MUST(coll_destroy() == COLL_OK);
        return;
    }
    sem_init(&o.called, 0, 0);
    for (int i = 0; i < 4; i++)
        works[i] = reduce_async(x);
    coll_work_free(reduce_async(x));
    MUST(coll_work_wait_stream(works[2], stream) == COLL_OK);
    MUST(coll_work_then(works[3], then_cb, &o) == COLL_OK);
    MUST_FAIL(coll_work_wait(works[0], 1), COLL_ERR_TIMEOUT, "it goes on");
    for (int i = 0; i < 2; i++)
        MUST(pthread_create(&threads[i], NULL, wait_thread, works[0]) == 0);
    do
        status = coll_work_test(works[1], &is_done);
    while (status == COLL_OK && !is_done);
    MUST_TIME_OUT(status, "all_reduce #4", "waiting for rank 2");
    MUST(is_done);
    for (int i = 0; i < 2; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    synchronize(stream);
    MUST_TIME_OUT(
        coll_work_wait_stream(works[2], stream), "waiting for rank 2");
    while (sem_wait(&o.called) < 0)
        MUST(errno == EINTR);
    MUST(o.status == COLL_ERR_TIMEOUT || o.status == COLL_ERR_PEER);
    MUST(o.status_of_destroy == COLL_ERR_STATE);
    for (int i = 0; i < 4; i++)
        coll_work_free(works[i]);
    say(0);
    MUST(coll_destroy() == COLL_OK);
    MUST(cu->stream_destroy(stream) == COLL_CUDA_SUCCESS);
    MUST(coll_gpu_free(x) == COLL_OK);
}

/* COLL_BACKEND=nccl: host memory by way of the device, which others see like
 * any call that waits. */
static void host_memory_waits(int rank)
{
    float y[COUNT] = {1};

    setenv("COLL_BACKEND", "nccl", 1);
    load_cuda();
    join();
    MUST(coll_all_reduce(y, y, COUNT, COLL_FLOAT32, COLL_SUM, NULL) == COLL_OK);
    MUST(y[0] == 3);
    MUST(coll_barrier(NULL) == COLL_OK);
    hurry();
    if (rank == 2) {
        await(0);
        await(0);
        MUST(coll_barrier(NULL) != COLL_OK);
    } else {
        MUST_TIME_OUT(
            coll_all_reduce(y, y, COUNT, COLL_FLOAT32, COLL_SUM, NULL),
            "all_reduce #4 on GPU ", "waiting for rank 2");
        say(0);
    }
    MUST(coll_destroy() == COLL_OK);
}

/* What nobody waits for: the caller's time may be over before the group's, and
 * leaving the group waits for the rest. */
static void nobody_waits(int rank)
{
    float *x = begin();

    coll_default_group()->timeout_ms = 60000;
    if (rank == 0)
        await(0);
    coll_work_free(reduce_async(x));
    MUST(reduce(x) == COLL_OK);
    if (rank == 1) {
        MUST_FAIL(
            coll_gpu_synchronize(NULL, 1), COLL_ERR_TIMEOUT, "it goes on");
        say(0);
    }
    MUST(coll_destroy() == COLL_OK);
    must_hold(x, 8);
}

/* It is stopped by somebody, and goes on when the others have gone on. */
static void is_stopped(int rank)
{
    float *x = begin();

    if (rank == 2) {
        MUST(raise(SIGSTOP) == 0);
        if (reduce(x) == COLL_OK)
            MUST(coll_gpu_synchronize(NULL, 0) != COLL_OK);
        MUST(coll_destroy() == COLL_OK);
        return;
    }
    MUST(reduce(x) == COLL_OK);
    MUST_TIME_OUT(
        coll_gpu_synchronize(NULL, 0), "all_reduce #4", "waiting for rank 2");
    MUST(coll_destroy() == COLL_OK);
    begin_anew(x, 2);
    if (rank == 0)
        MUST(kill(atomic_load(&shared->pids[2]), SIGCONT) == 0);
}

static void never_ends(void *arg)
{
    (void)arg;
    await(1);
}

/* What is before it in the stream of one rank does not end. */
static void device_computes(int rank)
{
    float *x = begin();
    struct cu_stream *stream = make_stream();

    MUST(coll_gpu_set_stream(NULL, stream) == COLL_OK);
    if (rank == 2)
        MUST(cu->launch_host_function(stream, never_ends, NULL) ==
             COLL_CUDA_SUCCESS);
    MUST(reduce(x) == COLL_OK);
    MUST_TIME_OUT(coll_gpu_synchronize(NULL, 0), "all_reduce #4",
        "so did all other ranks");
    if (rank == 2)
        say(1);
    synchronize(stream);
    MUST(coll_destroy() == COLL_OK);
    MUST(cu->stream_destroy(stream) == COLL_CUDA_SUCCESS);
    begin_anew(x, 3);
}

/* One rank's kernel hangs: "op_hang:1:2". */
static void device_hangs(int rank)
{
    float *x = begin();
    coll_work_t *work = reduce_async(x);

    (void)rank;
    MUST_TIME_OUT(
        coll_work_wait(work, 0), "all_reduce #4", "so did all other ranks");
    coll_work_free(work);
    MUST(coll_destroy() == COLL_OK);
    begin_anew(x, 3);
}

/* Rank 1 waits for rank 0, who does not send; rank 2 has no part in it. */
static void message_does_not_come(int rank)
{
    float *x = begin();

    if (rank == 1) {
        MUST(coll_recv(x, COUNT, COLL_FLOAT32, 0, 0, NULL, NULL) == COLL_OK);
        MUST_TIME_OUT(coll_gpu_synchronize(NULL, 0), "recv",
            "on GPU 1 waiting for rank 0");
    } else {
        coll_work_t *work = NULL;

        /* The others hear of it when they wait for somebody. */
        coll_default_group()->timeout_ms = 60000;
        MUST(coll_barrier(NULL) != COLL_OK);
        MUST(coll_isend(x, COUNT, COLL_FLOAT32, 1, 0, NULL, &work) != COLL_OK);
    }
    MUST(coll_destroy() == COLL_OK);
    begin_anew(x, 3);
}

/* Ranks of a part are called what they are in the whole, and devices are no
 * ranks: this one has two of each rank. */
static void group_is_named(int rank)
{
    static const int ranks[] = {1, 2};
    coll_group_t *group = NULL;
    void *bufs[2];

    load_cuda();
    join();
    MUST(coll_gpu_device() >= 0);
    for (int i = 0; i < 2; i++) {
        struct cu_context *context;

        MUST(cu->primary_context_retain(&context, (2 * rank + i) % 4) ==
             COLL_CUDA_SUCCESS);
        MUST(cu->context_set(context) == COLL_CUDA_SUCCESS);
        bufs[i] = device_floats();
    }
    MUST(coll_group_new(&group, ranks, 2, NULL) == COLL_OK);
    if (rank > 0) {
        const void *const from[] = {bufs[0], bufs[1]};

        MUST(coll_all_reduce_multigpu(from, bufs, 2, COUNT, COLL_FLOAT32,
                 COLL_SUM, group) == COLL_OK);
        MUST(coll_gpu_synchronize(group, 0) == COLL_OK);
        group->timeout_ms = slow(500);
    }
    if (rank == 1) {
        MUST(coll_broadcast_multigpu(bufs, 2, COUNT, COLL_FLOAT32, 0, group) ==
             COLL_OK);
        MUST_TIME_OUT(coll_gpu_synchronize(group, 0), "broadcast #2 on GPU ",
            "waiting for rank 2");
    }
    MUST(coll_barrier(NULL) == COLL_OK);
    if (rank == 2)
        MUST(coll_barrier(group) != COLL_OK);
    MUST(coll_destroy() == COLL_OK);
}

/* --- Errors of NCCL --------------------------------------------------------
 */

/* "op_error:1:2:6": a remote error on rank 1, which the others do not see. */
static void device_fails(int rank)
{
    float *x = begin();

    coll_default_group()->timeout_ms = 60000;
    MUST(reduce(x) == COLL_OK);
    if (rank == 1)
        MUST_FAIL(coll_gpu_synchronize(NULL, 0), COLL_ERR_PEER,
            "all_reduce #4 on GPU 1", "ncclRemoteError", "scripted");
    else
        MUST_FAIL(coll_gpu_synchronize(NULL, 0), COLL_ERR_PEER,
            "all_reduce #4 on GPU 1", "ncclRemoteError");
    MUST(coll_destroy() == COLL_OK);
    begin_anew(x, 3);
}

static void start_without(int rank)
{
    (void)rank;
    load_cuda();
    join();
    use_device();
}

/* "version:0::22000": NCCL finds out itself. */
static void nccl_refuses(int rank)
{
    (void)rank;
    load_cuda();
    join();
    use_device();
    /* Its own, or what another rank has heard of it. */
    MUST(coll_gpu_connect(NULL, NULL) != COLL_OK);
    must_contain("gpu_connect #1 on GPU ", coll_last_error(), __LINE__);
    must_contain("Mismatched NCCL version", coll_last_error(), __LINE__);
    MUST(coll_destroy() == COLL_OK);
}

/* A launch that fails on one rank, half-way or at all: "cuEventRecord:2:1", or
 * "cuLaunchHostFunc:2:1", which NCCL's double needs. */
static void fail_launch(int rank, const char *variable, const char *words)
{
    float *x;

    if (rank == 0)
        setenv("FAKE_CUDA_FAIL", variable, 1);
    x = begin();
    coll_default_group()->timeout_ms = 60000;
    if (rank == 0) {
        MUST_FAIL(reduce(x), COLL_ERR_SYSTEM, "all_reduce #4", words);
    } else {
        MUST(reduce(x) == COLL_OK);
        if (coll_gpu_synchronize(NULL, 0) == COLL_OK)
            MUST(coll_barrier(NULL) != COLL_OK);
        MUST_FAIL(coll_barrier(NULL), COLL_ERR_PEER,
            "rank 0 gave up: all_reduce #4", words);
    }
    synchronize(NULL);
    MUST(coll_destroy() == COLL_OK);
    begin_anew(x, 2);
}

static void launch_fails(int rank)
{
    fail_launch(rank, "cuLaunchHostFunc:2:1", "ncclUnhandledCudaError");
}

static void launch_fails_half_way(int rank)
{
    fail_launch(rank, "cuEventRecord:2:1", "CUDA_ERROR_INVALID_VALUE");
}

static coll_status_t connect_group(bool is_non_blocking)
{
    coll_gpu_options_t options = COLL_GPU_OPTIONS_INIT;

    options.non_blocking = is_non_blocking;
    return coll_gpu_connect(NULL, &options);
}

/* "init_fail:1::2": that rank says why, and the others hear it at once. */
static void fail_in_init(int rank, bool is_non_blocking)
{
    float *x;

    start_without(rank);
    if (rank == 1)
        MUST_FAIL(connect_group(is_non_blocking), COLL_ERR_PEER,
            "gpu_connect #1 on GPU 1", "ncclSystemError");
    else
        MUST_FAIL(connect_group(is_non_blocking), COLL_ERR_PEER,
            "gpu_connect #1 on GPU 1", "ncclSystemError");
    MUST(coll_barrier(NULL) == COLL_ERR_PEER);
    MUST(coll_destroy() == COLL_OK);
    x = device_floats();
    begin_anew(x, 3);
}

static void init_fails(int rank)
{
    fail_in_init(rank, false);
}

static void init_fails_non_blocking(int rank)
{
    fail_in_init(rank, true);
}

/* "init_hang:1" */
static void hang_in_init(int rank, bool is_non_blocking)
{
    float *x;

    start_without(rank);
    x = device_floats();
    MUST(coll_barrier(NULL) == COLL_OK);
    hurry();
    MUST_TIME_OUT(connect_group(is_non_blocking), "gpu_connect #2",
        "communicator of 3 ranks");
    MUST(coll_destroy() == COLL_OK);
    begin_anew(x, 3);
}

static void init_hangs(int rank)
{
    hang_in_init(rank, false);
}

static void init_hangs_non_blocking(int rank)
{
    hang_in_init(rank, true);
}

/* "init_hang:1", or "init_fail:1::2", while NCCL makes a part of the whole. */
static void fail_in_split(int rank, const char *fault, coll_status_t status)
{
    coll_group_t *part = NULL;
    float *x = begin();

    (void)rank;
    coll_default_group()->timeout_ms = slow(1500);
    setenv("FAKE_NCCL_FAULT", fault, 1);
    MUST_FAIL(timed_out(coll_group_split(&part, NULL, 0, 0, NULL)), status,
        "group_split #4");
    MUST(part == NULL);
    MUST(timed_out(coll_barrier(NULL)) == status);
    MUST(coll_destroy() == COLL_OK);
    begin_anew(x, 2);
}

static void split_hangs(int rank)
{
    fail_in_split(rank, "init_hang:1", COLL_ERR_TIMEOUT);
}

static void split_fails(int rank)
{
    fail_in_split(rank, "init_fail:1::2", COLL_ERR_PEER);
}

/* --- What is missing, or differs -------------------------------------------
 */

/* All are refused with the same sentence, and host memory goes on working. */
static void must_be_refused(
    coll_status_t got, const char *first, const char *second)
{
    float y = 1;

    MUST_FAIL(got, COLL_ERR_ENVIRONMENT, "coll_gpu_connect: ", first, second);
    MUST(coll_all_reduce(&y, &y, 1, COLL_FLOAT32, COLL_SUM, NULL) == COLL_OK);
    MUST(y == (float)coll_world_size(NULL));
    MUST_FAIL(
        coll_gpu_connect(NULL, NULL), COLL_ERR_ENVIRONMENT, first, second);
    MUST(coll_barrier(NULL) == COLL_OK);
    MUST(coll_destroy() == COLL_OK);
}

static void versions_differ(int rank)
{
    float *x;

    if (rank == 1)
        setenv("FAKE_NCCL_VERSION", "22703", 1);
    start_without(rank);
    x = device_floats();
    must_be_refused(
        reduce(x), "has NCCL 2.28.9, rank 1 (host ", ") has 2.27.3");
}

static void one_lacks_nccl(int rank)
{
    if (rank == 1)
        setenv("COLL_NCCL_LIBRARY", "/nonexistent/libnccl.so.2", 1);
    start_without(rank);
    must_be_refused(reduce(device_floats()), "on rank 1: NCCL cannot be loaded",
        "/nonexistent/libnccl.so.2");
}

static void all_lack_nccl(int rank)
{
    setenv("COLL_NCCL_LIBRARY", "/nonexistent/libnccl.so.2", 1);
    start_without(rank);
    must_be_refused(coll_gpu_connect(NULL, NULL),
        "on ranks 0,1: NCCL cannot be loaded", "/nonexistent/libnccl.so.2");
}

static void nccl_is_old(int rank)
{
    if (rank == 0)
        use_nccl("2.17/libnccl.so.2");
    start_without(rank);
    must_be_refused(coll_gpu_connect(NULL, NULL),
        "on rank 0: ", "2.17/libnccl.so.2 is NCCL 2.17.1, and 2.18");
}

static void nccl_lacks_a_function(int rank)
{
    if (rank == 1) {
        use_nccl("2.17/libnccl.so.2");
        setenv("FAKE_NCCL_VERSION", "22809", 1);
    }
    start_without(rank);
    must_be_refused(coll_gpu_connect(NULL, NULL),
        "on rank 1: ", "2.17/libnccl.so.2 (NCCL 2.28.9) has no function nccl");
}

static void driver_is_old(int rank)
{
    if (rank == 1)
        setenv("FAKE_CUDA_VERSION", "10020", 1);
    MUST(dlopen(fake_file("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) != NULL);
    join();
    must_be_refused(coll_gpu_connect(NULL, NULL), "on rank 1: ",
        "the CUDA driver libcuda.so.1 is of CUDA 10.2, and 11.0");
}

static void one_has_no_device(int rank)
{
    if (rank == 1)
        setenv("FAKE_CUDA_DEVICES", "0", 1);
    load_cuda();
    join();
    must_be_refused(coll_gpu_connect(NULL, NULL),
        "on rank 1: ", "CUDA_VISIBLE_DEVICES may hide all devices");
}

/* --- Aborts ----------------------------------------------------------------
 */

/* When the main thread is in an operation, or has one on the device. */
static void *abort_thread(void *arg)
{
    (void)arg;
    while (!coll_group_is_running(coll_default_group()))
        sched_yield();
    MUST(coll_abort(NULL) == COLL_OK);
    return NULL;
}

static void *abort_when_told(void *arg)
{
    (void)arg;
    await(0);
    MUST(coll_abort(NULL) == COLL_OK);
    return NULL;
}

/* "op_hang:0:2" */
static void abort_on_device(int rank)
{
    float *x = begin();
    coll_work_t *work;
    pthread_t thread;

    coll_default_group()->timeout_ms = 60000;
    if (rank == 0)
        MUST(pthread_create(&thread, NULL, abort_when_told, NULL) == 0);
    work = reduce_async(x);
    say(rank);
    if (rank == 0) {
        MUST_FAIL(coll_work_wait(work, 0), COLL_ERR_ABORTED, "coll_abort()");
        MUST(pthread_join(thread, NULL) == 0);
    } else {
        MUST_FAIL(coll_work_wait(work, 0), COLL_ERR_PEER, "rank 0 gave up",
            "coll_abort()");
    }
    coll_work_free(work);
    MUST(coll_destroy() == COLL_OK);
    begin_anew(x, 2);
}

/* "init_hang:0" */
static void abort_in_init(int rank, bool is_non_blocking)
{
    float *x;
    pthread_t thread;

    start_without(rank);
    x = device_floats();
    if (rank == 0) {
        MUST(pthread_create(&thread, NULL, abort_thread, NULL) == 0);
        MUST_FAIL(
            connect_group(is_non_blocking), COLL_ERR_ABORTED, "coll_abort()");
        MUST(pthread_join(thread, NULL) == 0);
    } else {
        MUST_FAIL(connect_group(is_non_blocking), COLL_ERR_PEER,
            "rank 0 gave up", "coll_abort()");
    }
    MUST(coll_destroy() == COLL_OK);
    begin_anew(x, 2);
}

static void abort_while_making(int rank)
{
    abort_in_init(rank, false);
}

static void abort_while_making_non_blocking(int rank)
{
    abort_in_init(rank, true);
}

/* "launch_hang:0:2" */
static void abort_in_launch(int rank)
{
    float *x = begin();
    pthread_t thread;

    coll_default_group()->timeout_ms = 60000;
    if (rank == 0) {
        MUST(pthread_create(&thread, NULL, abort_thread, NULL) == 0);
        MUST_FAIL(reduce(x), COLL_ERR_ABORTED, "coll_abort()");
        MUST(pthread_join(thread, NULL) == 0);
    } else {
        MUST(reduce(x) == COLL_OK);
        MUST_FAIL(coll_gpu_synchronize(NULL, 0), COLL_ERR_PEER,
            "rank 0 gave up", "coll_abort()");
    }
    MUST(coll_destroy() == COLL_OK);
    begin_anew(x, 2);
}

static void abort_in_launch_of_2_18(int rank)
{
    use_nccl("2.18/libnccl.so.2");
    abort_in_launch(rank);
}

/* The same by the time-out. */
static void launch_hangs(int rank)
{
    float *x = begin();

    if (rank == 0) {
        MUST_TIME_OUT(reduce(x), "all_reduce #4 on GPU 0");
    } else {
        coll_status_t status = reduce(x);

        if (status == COLL_OK)
            status = coll_gpu_synchronize(NULL, 0);
        MUST(status == COLL_ERR_TIMEOUT || status == COLL_ERR_PEER);
        must_contain("all_reduce #4 on GPU ", coll_last_error(), __LINE__);
    }
    MUST(coll_destroy() == COLL_OK);
    begin_anew(x, 2);
}

static void launch_of_2_18_hangs(int rank)
{
    use_nccl("2.18/libnccl.so.2");
    launch_hangs(rank);
}

/* "abort_hang:0,op_hang:0:2": what is on that stream stays there. */
static void abort_hangs(int rank)
{
    float *x = begin();

    (void)rank;
    MUST(coll_gpu_set_stream(NULL, make_stream()) == COLL_OK);
    MUST(reduce(x) == COLL_OK);
    MUST_TIME_OUT(coll_gpu_synchronize(NULL, 0), "all_reduce #4");
    MUST(coll_destroy() == COLL_OK);
    begin_anew(x, 2);
}

/* "destroy_hang:1" */
static void destroy_hangs(int rank)
{
    float *x = begin();

    (void)rank;
    MUST(coll_destroy() == COLL_OK);
    begin_anew(x, 2);
}

/* --- Ranks that end --------------------------------------------------------
 */

static void leaves_early(int rank)
{
    float *x = begin();

    if (rank == 2) {
        MUST(coll_destroy() == COLL_OK);
        return;
    }
    MUST(reduce(x) == COLL_OK);
    MUST_TIME_OUT(
        coll_gpu_synchronize(NULL, 0), "all_reduce #4", "waiting for rank 2");
    MUST(coll_destroy() == COLL_OK);
    begin_anew(x, 2);
}

/* The others hear of it long before their time-out. */
static void die(int rank, const char *words)
{
    float *x = begin();

    coll_default_group()->timeout_ms = 60000;
    if (rank == 2) {
        await(0);
        await(0);
        kill(getpid(), SIGKILL);
    }
    MUST(reduce(x) == COLL_OK);
    say(0);
    MUST_FAIL(
        coll_gpu_synchronize(NULL, 0), COLL_ERR_PEER, words, "all_reduce #4");
    MUST(coll_destroy() == COLL_OK);
    begin_anew(x, 2);
}

static void dies(int rank)
{
    die(rank, "rank 2 (pid ");
}

static void dies_behind_tcp(int rank)
{
    setenv("COLL_BACKEND", "tcp", 1);
    die(rank, "rank 2 at ");
}

static void dies_among_nodes(int rank)
{
    setenv("COLL_BACKEND", "nodes", 1);
    die(rank, "rank 2 ");
}

/* What is left goes on, with what NCCL makes of the communicator. */
static void is_shrunk(int rank)
{
    static const int gone[] = {2};
    float *x = begin();
    float y = 1;
    coll_group_t *rest = NULL;

    coll_default_group()->timeout_ms = 60000;
    if (rank == 2)
        kill(getpid(), SIGKILL);
    if (reduce(x) == COLL_OK)
        MUST(coll_gpu_synchronize(NULL, 0) == COLL_ERR_PEER);
    MUST(coll_group_shrink(&rest, NULL, gone, 1, NULL) == COLL_OK);
    fill(x, 2);
    MUST(coll_all_reduce(x, x, COUNT, COLL_FLOAT32, COLL_SUM, rest) == COLL_OK);
    MUST(coll_gpu_synchronize(rest, 0) == COLL_OK);
    must_hold(x, 4);
    MUST(coll_all_reduce(&y, &y, 1, COLL_FLOAT32, COLL_SUM, rest) == COLL_OK);
    MUST(y == 2);
    MUST(coll_group_destroy(rest) == COLL_OK);
    MUST(coll_destroy() == COLL_OK);
}

/* Each has to wait for the other one only so long. */
static void groups_end_in_any_order(int rank)
{
    static const int ranks[] = {0, 1};
    float *x = begin();
    coll_group_t *groups[2];

    coll_default_group()->timeout_ms = 60000;
    for (int i = 0; i < 2; i++) {
        MUST(coll_group_new(&groups[i], ranks, 2, NULL) == COLL_OK);
        MUST(coll_all_reduce(x, x, COUNT, COLL_FLOAT32, COLL_SUM, groups[i]) ==
             COLL_OK);
        MUST(coll_gpu_synchronize(groups[i], 0) == COLL_OK);
    }
    MUST(coll_group_destroy(groups[rank]) == COLL_OK);
    MUST(coll_group_destroy(groups[1 - rank]) == COLL_OK);
    must_work(x);
    MUST(coll_destroy() == COLL_OK);
}

/* --- Around it --------------------------------------------------------------
 */

static void dump(char *out, size_t size)
{
    int fd = memfd_create("recorder", MFD_CLOEXEC);
    ssize_t len;

    MUST(fd >= 0 && coll_recorder_dump(fd) == COLL_OK);
    len = pread(fd, out, size - 1, 0);
    MUST(len > 0);
    out[len] = '\0';
    close(fd);
}

/* "op_hang:0:2" */
static void recorder_tells(int rank)
{
    static char text[65536];
    float *x = begin();
    coll_work_t *work;

    (void)rank;
    coll_default_group()->timeout_ms = 60000;
    work = reduce_async(x);
    dump(text, sizeof(text));
    must_contain("\"seq\": 1, \"kind\": \"all_reduce\"", text, __LINE__);
    must_contain("\"seq\": 4, \"kind\": \"all_reduce\"", text, __LINE__);
    must_contain("\"finished_ns\": null, \"status\": null}",
        strstr(text, "\"seq\": 4"), __LINE__);
    MUST(coll_abort(NULL) == COLL_OK);
    MUST(coll_work_wait(work, 0) != COLL_OK);
    coll_work_free(work);
    dump(text, sizeof(text));
    MUST(strstr(text, "\"finished_ns\": null") == NULL);
    MUST(coll_destroy() == COLL_OK);
    begin_anew(x, 2);
}

/* A child may not use it, and its end is nobody's. */
static void forks(int rank)
{
    float *x = begin();
    coll_work_t *work;
    int status;
    pid_t pid;

    (void)rank;
    coll_default_group()->timeout_ms = 60000;
    work = reduce_async(x);
    pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        bool is_done;

        prctl(PR_SET_PDEATHSIG, SIGKILL);

        MUST_FAIL(reduce(x), COLL_ERR_STATE, "forked off");
        MUST_FAIL(coll_gpu_synchronize(NULL, 0), COLL_ERR_STATE, "forked off");
        MUST_FAIL(coll_gpu_connect(NULL, NULL), COLL_ERR_STATE, "forked off");
        MUST_FAIL(coll_work_wait(work, 0), COLL_ERR_STATE, "forked off");
        MUST_FAIL(coll_work_test(work, &is_done), COLL_ERR_STATE, "forked off");
        MUST_FAIL(
            coll_work_wait_stream(work, NULL), COLL_ERR_STATE, "forked off");
        _exit(0);
    }
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
    MUST(coll_work_wait(work, 0) == COLL_OK);
    coll_work_free(work);
    must_work(x);
    MUST(coll_barrier(NULL) == COLL_OK);
    MUST(coll_destroy() == COLL_OK);
}

static void slow_cb(coll_status_t status, void *arg)
{
    sem_t nobody;
    struct timespec until;

    (void)status;
    (void)arg;
    sem_init(&nobody, 0, 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += coll_default_group()->timeout_ms / 1000 + 1;
    while (sem_timedwait(&nobody, &until) < 0 && errno == EINTR)
        continue;
}

/* "op_hang:1:3": the second work fails while the function of the first one is
 * run, by the watchdog or by who waits. */
static void fails_in_callback(int rank)
{
    float *x = begin();
    coll_work_t *works[2];

    (void)rank;
    works[0] = reduce_async(x);
    MUST(coll_work_then(works[0], slow_cb, NULL) == COLL_OK);
    works[1] = reduce_async(x);
    MUST(coll_work_wait(works[0], 0) == COLL_OK);
    MUST_TIME_OUT(coll_work_wait(works[1], 0), "all_reduce #5");
    for (int i = 0; i < 2; i++)
        coll_work_free(works[i]);
    MUST(coll_destroy() == COLL_OK);
    begin_anew(x, 2);
}

/* --- Errors of CUDA ---------------------------------------------------------
 */

/* Whatever fails says so. */
static bool is_well(coll_status_t status)
{
    if (status != COLL_OK)
        MUST(coll_last_error()[0] != '\0');
    return status == COLL_OK;
}

static bool finish(coll_work_t *work)
{
    bool was_well = is_well(coll_work_wait(work, 0));

    coll_work_free(work);
    return was_well;
}

static bool order_and_finish(coll_work_t *work)
{
    bool was_well = is_well(coll_work_wait_stream(work, NULL));

    return finish(work) && was_well;
}

static bool use_all(float *x)
{
    coll_work_t *work;
    const void *from[] = {x};
    void *to[] = {x};
    void *handle;
    bool are_well;

    are_well = is_well(reduce(x)) &&
               is_well(coll_all_to_all(x, x, COUNT / 2, COLL_FLOAT32, NULL)) &&
               is_well(coll_gpu_synchronize(NULL, 0)) &&
               is_well(coll_all_reduce_async(
                   x, x, COUNT, COLL_FLOAT32, COLL_SUM, NULL, &work)) &&
               order_and_finish(work) &&
               is_well(coll_all_reduce_multigpu(
                   from, to, 1, COUNT, COLL_FLOAT32, COLL_SUM, NULL)) &&
               is_well(coll_gpu_synchronize(NULL, 0));
    if (are_well && is_well(coll_gpu_register(NULL, x, COUNT, &handle)))
        are_well = is_well(coll_gpu_deregister(NULL, handle));
    return are_well;
}

/* All that one rank can do, as long as all is well. */
static bool use_one_rank(void)
{
    void *x = NULL;
    coll_group_t *part = NULL;
    bool was_well;

    if (dlopen(fake_file("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) == NULL ||
        !is_well(coll_init(NULL)))
        _exit(97);
    coll_default_group()->timeout_ms = slow(500);
    was_well =
        coll_gpu_device() >= 0 &&
        is_well(coll_gpu_alloc(&x, COUNT * sizeof(float))) &&
        is_well(coll_gpu_connect(NULL, NULL)) && use_all(x) &&
        is_well(coll_group_split(&part, NULL, 0, 0, NULL)) &&
        is_well(coll_all_reduce(x, x, COUNT, COLL_FLOAT32, COLL_SUM, part));
    was_well &= is_well(coll_destroy());
    /* A stream may have it still, if not all is. */
    return was_well && is_well(coll_gpu_free(x));
}

static _Noreturn void fail_function(const char *function, int nth)
{
    static struct scenario self;
    char text[64];
    bool was_well;

    self.name = function;
    current = &self;
    own_rank = nth;
    alarm((unsigned int)slow(10));
    snprintf(text, sizeof(text), "%s:%d:1", function, nth);
    setenv("FAKE_CUDA_FAIL", text, 1);
    was_well = use_one_rank();
    MUST(was_well || strcmp(function, "nothing") != 0);
    /* What cannot be given back is lost. */
    if (strstr(function, "Destroy") == NULL && strstr(function, "Free") == NULL)
        check_leaks();
    _exit(0);
}

static int await_one(void)
{
    int status;
    pid_t pid = wait(&status);

    MUST(pid > 0);
    if (status != 0)
        fprintf(stderr, "%s: a process: status %x\n", current->name,
            (unsigned int)status);
    return status != 0;
}

/* Each function of the driver fails, the first time, the second, and so on, and
 * always: no crash, no hang, no leak, but an error. */
static int cuda_fails(void)
{
    static const char *const functions[] = {"nothing",
#define NAME(member, symbol, required, args) #symbol,
        COLL_CUDA_MAP(NAME)
#undef NAME
    };
    enum { TIMES = 4, ALL = sizeof(functions) / sizeof(functions[0]) * TIMES };
    int failed = 0;

    setenv(ENV_RANK, "0", 1);
    setenv(ENV_WORLD_SIZE, "1", 1);
    setenv(ENV_LOCAL_RANK, "0", 1);
    for (int i = 0; i < ALL; i++) {
        const char *function = functions[i / TIMES];
        pid_t pid = fork();

        MUST(pid >= 0);
        if (pid == 0)
            fail_function(function, i % TIMES);
        if (i >= AT_ONCE)
            failed |= await_one();
    }
    for (int i = 0; i < AT_ONCE; i++)
        failed |= await_one();
    return failed;
}

/* --- The runner -----------------------------------------------------------
 */

#define RANKS(function, n, ...)                                                \
    {                                                                          \
        .name = #function, .run = function, .ranks = (n), __VA_ARGS__          \
    }

/* Those that take long go first. */
static const struct scenario scenarios[] = {
    {.name = "cuda_fails", .run_alone = cuda_fails},
    RANKS(groups_end_in_any_order, 2),
    RANKS(abort_hangs, 2, .nccl_fault = "abort_hang:0,op_hang:0:2"),
    RANKS(destroy_hangs, 2, .nccl_fault = "destroy_hang:1"),
    RANKS(leaves_early, 3),
    RANKS(stays_away, 3),
    RANKS(works_end, 3),
    RANKS(is_stopped, 3),
    RANKS(host_memory_waits, 3),
    RANKS(split_hangs, 2),
    RANKS(device_computes, 3),
    RANKS(device_hangs, 3, .nccl_fault = "op_hang:1:2"),
    RANKS(message_does_not_come, 3),
    RANKS(group_is_named, 3),
    RANKS(launch_hangs, 2, .nccl_fault = "launch_hang:0:2"),
    RANKS(launch_of_2_18_hangs, 2, .nccl_fault = "launch_hang:0:2"),
    RANKS(init_hangs, 3, .nccl_fault = "init_hang:1"),
    RANKS(init_hangs_non_blocking, 3, .nccl_fault = "init_hang:1"),
    RANKS(fails_in_callback, 2, .nccl_fault = "op_hang:1:3"),
    RANKS(device_fails, 3, .nccl_fault = "op_error:1:2:6"),
    RANKS(init_fails, 3, .nccl_fault = "init_fail:1::2"),
    RANKS(init_fails_non_blocking, 3, .nccl_fault = "init_fail:1::2"),
    RANKS(launch_fails, 2),
    RANKS(launch_fails_half_way, 2),
    RANKS(nccl_refuses, 2, .nccl_fault = "version:0::22000"),
    RANKS(versions_differ, 2),
    RANKS(one_lacks_nccl, 2),
    RANKS(all_lack_nccl, 2),
    RANKS(nccl_is_old, 2),
    RANKS(nccl_lacks_a_function, 2),
    RANKS(driver_is_old, 2),
    RANKS(one_has_no_device, 2),
    RANKS(abort_on_device, 2, .nccl_fault = "op_hang:0:2"),
    RANKS(abort_while_making, 2, .nccl_fault = "init_hang:0"),
    RANKS(abort_while_making_non_blocking, 2, .nccl_fault = "init_hang:0"),
    RANKS(abort_in_launch, 2, .nccl_fault = "launch_hang:0:2"),
    RANKS(abort_in_launch_of_2_18, 2, .nccl_fault = "launch_hang:0:2"),
    RANKS(split_fails, 2),
    RANKS(nobody_waits, 2),
    RANKS(is_shrunk, 3),
    RANKS(dies, 3),
    RANKS(dies_behind_tcp, 3),
    RANKS(dies_among_nodes, 3),
    RANKS(recorder_tells, 2, .nccl_fault = "op_hang:0:2"),
    RANKS(forks, 2),
};

enum { SCENARIOS = sizeof(scenarios) / sizeof(scenarios[0]) };

static void set_rank(int rank, int size)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", rank);
    setenv(ENV_RANK, text, 1);
    setenv(ENV_LOCAL_RANK, text, 1);
    snprintf(text, sizeof(text), "%d", size);
    setenv(ENV_WORLD_SIZE, text, 1);
    setenv(ENV_LOCAL_WORLD_SIZE, text, 1);
}

static void run_rank(int rank, int port_pipe)
{
    int port;

    own_rank = rank;
    if (read(port_pipe, &port, sizeof(port)) != sizeof(port))
        _exit(98);
    close(port_pipe);
    set_rank(rank, current->ranks);
    harness_set_master(port);
    atomic_store(&shared->pids[rank], getpid());
    current->run(rank);
    check_leaks();
    _exit(0);
}

static void kill_all(const pid_t *pids, int n)
{
    for (int i = 0; i < n; i++)
        if (pids[i] > 0)
            kill(pids[i], SIGKILL);
}

/* Ends when all have; the first failure ends the others. */
static int await_ranks(pid_t *pids, int n)
{
    int failed = 0;

    for (int left = n; left > 0;) {
        int status;
        pid_t pid = waitpid(-1, &status, 0);

        if (pid < 0)
            return 97;
        for (int i = 0; i < n; i++) {
            if (pids[i] != pid)
                continue;
            pids[i] = 0;
            left--;
            /* Who kills itself is meant to. */
            if (status != 0 && failed == 0 &&
                !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) {
                fprintf(stderr, "%s: rank %d: status %x\n", current->name, i,
                    (unsigned int)status);
                failed = 1;
                kill_all(pids, n);
            }
        }
    }
    return failed;
}

static int run_ranks(void)
{
    const coll_store_options_t options = {.is_host = true};
    coll_store_t *store;
    pid_t pids[RANKS_MAX] = {0};
    int pipes[RANKS_MAX];
    int port;
    int rc;

    for (int i = 0; i < current->ranks; i++) {
        int fds[2];

        MUST(pipe2(fds, O_CLOEXEC) == 0);
        pids[i] = fork();
        MUST(pids[i] >= 0);
        if (pids[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(fds[1]);
            run_rank(i, fds[0]);
        }
        close(fds[0]);
        pipes[i] = fds[1];
    }
    MUST(coll_store_tcp(&store, "127.0.0.1", 0, &options) == COLL_OK);
    port = coll_store_port(store);
    for (int i = 0; i < current->ranks; i++) {
        if (write(pipes[i], &port, sizeof(port)) < 0)
            perror("write");
        close(pipes[i]);
    }
    rc = await_ranks(pids, current->ranks);
    coll_store_close(store);
    return rc;
}

static void run_scenario(const struct scenario *s)
{
    current = s;
    own_rank = -1;
    seconds();
    setpgid(0, 0);
    alarm((unsigned int)slow(40));
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(shared != MAP_FAILED);
    for (int i = 0; i < STEPS; i++)
        MUST(sem_init(&shared->steps[i], 1, 0) == 0);
    if (s->nccl_fault != NULL)
        setenv("FAKE_NCCL_FAULT", s->nccl_fault, 1);
    if (s->cuda_fail != NULL)
        setenv("FAKE_CUDA_FAIL", s->cuda_fail, 1);
    setenv("FAKE_CUDA_DEVICES", "4", 1);
    setenv("FAKE_NCCL_DIR", folder, 1);
    use_nccl("libnccl.so.2");
    _exit(s->run_alone != NULL ? s->run_alone() : run_ranks());
}

static int outcomes[SCENARIOS];

/* Before the tests, in the main process. */
static void run_scenarios(void)
{
    pid_t pids[SCENARIOS];
    int begun = 0;
    int ended = 0;

    while (ended < SCENARIOS) {
        int status;
        pid_t pid;

        if (begun < SCENARIOS && begun - ended < AT_ONCE) {
            pids[begun] = fork();
            if (pids[begun] < 0)
                abort();
            if (pids[begun] == 0)
                run_scenario(&scenarios[begun]);
            begun++;
            continue;
        }
        pid = waitpid(-1, &status, 0);
        if (pid < 0)
            abort();
        for (int i = 0; i < begun; i++)
            if (pids[i] == pid)
                outcomes[i] = status;
        ended++;
    }
}

START_TEST(scenario_passes)
{
    ck_assert_msg(outcomes[_i] == 0, "%s: status %x", scenarios[_i].name,
        (unsigned int)outcomes[_i]);
}
END_TEST

static int run_named(const char *name)
{
    for (int i = 0; i < SCENARIOS; i++) {
        int status = 1;
        pid_t pid;

        if (strcmp(scenarios[i].name, name) != 0)
            continue;
        pid = fork();
        if (pid == 0)
            run_scenario(&scenarios[i]);
        waitpid(pid, &status, 0);
        printf("%s: status %x\n", name, (unsigned int)status);
        return status != 0;
    }
    return 2;
}

int main(int argc, char **argv)
{
    TCase *tc;
    char command[PATH_MAX];
    int rc;

    if (mkdtemp(folder) == NULL)
        return 1;
    if (argc > 1) {
        rc = run_named(argv[1]);
    } else {
        run_scenarios();
        tc = tcase_create("faults");
        tcase_add_loop_test(tc, scenario_passes, 0, SCENARIOS);
        rc = unit_run("gpu_faults", tc);
    }
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    return system(command) != 0 || rc;
}
