/*
 * Ranks of libcollective on the doubles of CUDA and NCCL: processes that
 * coll_spawn() starts, each with a device of its own. What a rank finds wrong
 * it reports with EXPECT(), which fails the test.
 */
#ifndef CRUN_TESTS_GPU_RANKS_H
#define CRUN_TESTS_GPU_RANKS_H

#include <dlfcn.h>
#include <sys/mman.h>

#include "collective_gpu.h"
#include "tests/unit/coll_harness.h"
#include "tests/unit/gpu_fakes.h"

/* --- The doubles ---------------------------------------------------------- */

/*
 * Opens the doubles for this process and those that it forks off. They have
 * the names of the real ones, so the library, which asks for these names, gets
 * what is loaded. name: that of NCCL's double.
 */
static inline void doubles_open(const char *name)
{
    void *found;

    open_nccl(name);
    for (int i = 0; i < 2; i++) {
        found = dlopen(
            i == 0 ? "libcuda.so.1" : "libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
        ck_assert_msg(found != NULL, "%s", dlerror());
        ck_assert_ptr_eq(found, i == 0 ? cu.handle : nccl.handle);
        dlclose(found);
    }
}

/* --- Ranks ---------------------------------------------------------------- */

typedef void gpu_rank_fn(int rank, int size, void *arg);

struct ranks_job {
    gpu_rank_fn *run;
    void *arg;
    int size;
    bool is_bare; /* the ranks set up nothing */
    char (*reports)[sizeof(harness_report.text)]; /* [size], shared */
};

/* Makes a device this thread's current one. */
static inline void device_enter(int device)
{
    struct cu_context *context;

    CU(init(0));
    CU(primary_context_retain(&context, device));
    CU(context_set(context));
}

static inline void device_leave(int device)
{
    CU(context_set(NULL));
    CU(primary_context_release(device));
}

static inline int gpu_rank_main(int local_rank, void *arg)
{
    const struct ranks_job *job = arg;
    int device;

    if (job->is_bare) {
        job->run(local_rank, job->size, job->arg);
    } else {
        device = coll_gpu_device();
        EXPECT(device == local_rank, "%d: %s", device, coll_last_error());
        device_enter(device);
        EXPECT_OK(coll_init(NULL));
        if (harness_report.text[0] == '\0')
            job->run(local_rank, job->size, job->arg);
        EXPECT_OK(coll_destroy());
        device_leave(device);
    }
    memcpy(job->reports[local_rank], harness_report.text,
        sizeof(harness_report.text));
    return harness_report.text[0] != '\0';
}

static inline void gpu_ranks_start(
    int size, gpu_rank_fn *run, void *arg, bool is_bare)
{
    struct ranks_job job = {run, arg, size, is_bare, NULL};
    size_t bytes = (size_t)size * sizeof(*job.reports);
    coll_status_t status;

    job.reports = mmap(
        NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(job.reports, MAP_FAILED);
    status = coll_spawn(gpu_rank_main, &job, size, NULL);
    for (int r = 0; r < size; r++)
        ck_assert_msg(job.reports[r][0] == '\0', "rank %d of %d: %s", r, size,
            job.reports[r]);
    ck_assert_msg(status == COLL_OK, "%d ranks: %s", size, coll_last_error());
    munmap(job.reports, bytes);
}

/* Between coll_init() and coll_destroy(), with a device as the current one. */
static inline void gpu_ranks(int size, gpu_rank_fn *run, void *arg)
{
    gpu_ranks_start(size, run, arg, false);
}

/* Without anything. */
static inline void gpu_ranks_bare(int size, gpu_rank_fn *run, void *arg)
{
    gpu_ranks_start(size, run, arg, true);
}

/* Fixture: as that of the doubles, and no wait of a rank is for ever. */
static inline void gpu_setup(void)
{
    fakes_setup();
    setenv("COLL_TIMEOUT", "120", 1);
    unsetenv("COLL_CHECK");
    unsetenv("COLL_SHARE_GPU");
    unsetenv("NCCL_SOCKET_IFNAME");
}

/* --- Streams -------------------------------------------------------------- */

/* Something in a stream that ends when it is told to. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_open;
};

#define GATE_CLOSED                                                            \
    {                                                                          \
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER \
    }

static inline void gate_pass(void *arg)
{
    struct gate *gate = arg;

    pthread_mutex_lock(&gate->lock);
    while (!gate->is_open)
        pthread_cond_wait(&gate->changed, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
}

static inline void gate_open(struct gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    gate->is_open = true;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

static inline struct cu_stream *stream_make(void)
{
    struct cu_stream *stream;

    CU(stream_create(&stream, COLL_CUDA_STREAM_NON_BLOCKING, 0));
    return stream;
}

#endif
