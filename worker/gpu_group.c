/*
 * A group's communicators: their life, and the public calls that concern the
 * group as a whole.
 */
#include "gpu_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coll_work.h"
#include "rendezvous/base/clock.h"

/* How long leaving a communicator may wait for other ranks. */
#define LEAVE_MS 5000

/* --- Life ------------------------------------------------------------------
 */

struct gpu *gpu_of(struct coll_group *g)
{
    return atomic_load_explicit(&g->gpu, memory_order_acquire);
}

coll_status_t gpu_create(struct gpu **out, struct coll_group *g,
    const struct cuda_api *cu, const struct nccl_api *nccl, int device,
    const char *function)
{
    struct gpu *gpu = calloc(1, sizeof(*gpu));
    struct cu_context *before = NULL;
    const char *what = "cuDevicePrimaryCtxRetain";
    pthread_condattr_t attr;
    cu_device_t handle;
    cu_result_t rc;

    if (gpu == NULL)
        return coll_fail(COLL_ERR_MEMORY, "%s: out of memory", function);
    gpu->group = g;
    gpu->cu = cu;
    gpu->nccl = nccl;
    gpu->device = device;
    nccl_config_init(&gpu->config, nccl->version);
    pthread_mutex_init(&gpu->launching, NULL);
    pthread_mutex_init(&gpu->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&gpu->changed, &attr);
    pthread_condattr_destroy(&attr);
    rc = cu->device_get(&handle, device);
    if (rc == COLL_CUDA_SUCCESS)
        rc = cu->primary_context_retain(&gpu->context, handle);
    if (rc == COLL_CUDA_SUCCESS) {
        before = gpu_enter(cu, gpu->context);
        what = "cuStreamCreate";
        rc = cu->stream_create(&gpu->own, COLL_CUDA_STREAM_NON_BLOCKING, 0);
        if (rc == COLL_CUDA_SUCCESS)
            rc = cu->event_create(&gpu->before, COLL_CUDA_EVENT_NO_TIMING);
        gpu_leave(cu, gpu->context, before);
    }
    if (rc != COLL_CUDA_SUCCESS) {
        coll_status_t status = gpu_fail_cuda(cu, function, what, rc);

        gpu_destroy(gpu);
        return status;
    }
    *out = gpu;
    return COLL_OK;
}

static void free_ops(struct gpu *gpu, struct gpu_op *op)
{
    while (op != NULL) {
        struct gpu_op *next = op->next;

        if (op->event != NULL)
            gpu->cu->event_destroy(op->event);
        free(op);
        op = next;
    }
}

/* The communicator is gone, or given up. */
void gpu_destroy(struct gpu *gpu)
{
    struct cu_context *before;
    cu_device_t handle;

    if (gpu == NULL)
        return;
    if (gpu->context != NULL) {
        before = gpu_enter(gpu->cu, gpu->context);
        free_ops(gpu, gpu->first);
        free_ops(gpu, gpu->spare);
        if (gpu->before != NULL)
            gpu->cu->event_destroy(gpu->before);
        if (gpu->own != NULL)
            gpu->cu->stream_destroy(gpu->own);
        for (int i = 0; i < GPU_SCRATCHES; i++)
            if (gpu->scratch[i] != 0)
                gpu->cu->memory_free(gpu->scratch[i]);
        if (gpu->stage != 0)
            gpu->cu->memory_free(gpu->stage);
        gpu_leave(gpu->cu, gpu->context, before);
        if (gpu->cu->device_get(&handle, gpu->device) == COLL_CUDA_SUCCESS)
            gpu->cu->primary_context_release(handle);
    }
    pthread_cond_destroy(&gpu->changed);
    pthread_mutex_destroy(&gpu->lock);
    pthread_mutex_destroy(&gpu->launching);
    free(gpu);
}

/* Waits till all its operations have ended: their time-outs see to it. */
static void drain(struct gpu *gpu)
{
    const struct timespec pause = {.tv_nsec = 100 * 1000};

    while (gpu_reap(gpu))
        nanosleep(&pause, NULL);
}

/* Begins to leave the communicator, if that has not been done. NULL: there is
 * nothing to wait for. */
static struct gpu_job *start_leaving(struct gpu *gpu)
{
    struct gpu_job *job;
    struct nccl_comm *comm;
    bool is_well = coll_group_check(gpu->group) == COLL_OK && !gpu->must_abort;

    pthread_mutex_lock(&gpu->lock);
    job = gpu->ending;
    gpu->ending = NULL;
    comm = gpu->comm;
    gpu->comm = NULL;
    pthread_mutex_unlock(&gpu->lock);
    if (comm == NULL)
        return job;
    job = gpu_job_create(gpu);
    if (job == NULL)
        return NULL;
    job->comm = comm;
    job->run = is_well ? gpu_job_destroy : gpu_job_abort;
    gpu_job_start(job);
    return job;
}

/* Some other rank keeps a thread in NCCL: it stays, and so does what it uses.
 */
static void keep(struct gpu *gpu)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct gpu *kept;

    pthread_mutex_lock(&lock);
    gpu->next = kept;
    kept = gpu;
    pthread_mutex_unlock(&lock);
}

void gpu_discard(struct gpu *gpu, struct gpu_job *job, int64_t wait_ms)
{
    struct gpu_job *ending = gpu->ending;
    uint64_t deadline_ns = clock_deadline_ns(wait_ms);
    bool is_over = (job == NULL || gpu_job_wait(job, deadline_ns)) &&
                   (ending == NULL || gpu_job_wait(ending, deadline_ns));

    gpu->ending = NULL;
    gpu_job_release(ending);
    if (is_over)
        gpu_destroy(gpu);
    else
        keep(gpu);
}

/* The ranks of one process leave at the same time, as they wait for each
 * other. */
void gpu_end(struct gpu *const *gpus, int n)
{
    struct gpu_job *jobs[GPU_MANY_MAX];

    for (int i = 0; i < n; i++) {
        drain(gpus[i]);
        gpu_watch_end(gpus[i]);
        jobs[i] = start_leaving(gpus[i]);
    }
    for (int i = 0; i < n; i++) {
        gpu_discard(gpus[i], jobs[i], LEAVE_MS);
        gpu_job_release(jobs[i]);
    }
}

void gpu_free(struct coll_group *g)
{
    struct gpu *gpu = gpu_of(g);

    if (gpu != NULL)
        gpu_end(&gpu, 1);
    atomic_store(&g->gpu, NULL);
    gpu_many_free(g);
}

/* --- Public ----------------------------------------------------------------
 */

coll_status_t coll_gpu_connect(
    coll_group_t *group, const coll_gpu_options_t *options)
{
    static const char name[] = "coll_gpu_connect";
    coll_status_t status = COLL_OK;
    struct coll_group *g = coll_group_get(group, name, &status);
    struct coll_call call = {
        .kind = COLL_KIND_GPU_CONNECT,
        .on_gpu = true,
        .device = GPU_HOST,
        .gpu_options = options,
    };

    if (g == NULL)
        return status;
    if (options != NULL &&
        (options->min_ctas < 0 || options->max_ctas < 0 ||
            options->cga_cluster_size < 0 ||
            (options->net_name != NULL &&
                strlen(options->net_name) >= GPU_NET_NAME_SIZE)))
        return coll_fail(COLL_ERR_ARGUMENT,
            "%s: min_ctas, max_ctas and cga_cluster_size must not be negative, "
            "and net_name has less than %d characters",
            name, GPU_NET_NAME_SIZE);
    return coll_group_run(g, &call);
}

coll_status_t coll_gpu_set_stream(coll_group_t *group, void *stream)
{
    coll_status_t status = COLL_OK;
    struct coll_group *g =
        coll_group_get(group, "coll_gpu_set_stream", &status);

    if (g != NULL)
        atomic_store(&g->gpu_stream, stream);
    return status;
}

static coll_status_t synchronize(struct coll_group *g, int64_t timeout_ms)
{
    const struct timespec pause = {.tv_nsec = 20 * 1000};
    uint64_t deadline_ns =
        timeout_ms > 0 ? clock_deadline_ns(timeout_ms) : UINT64_MAX;
    uint64_t broken_ns = 0;

    while (gpu_advance(g)) {
        uint64_t now_ns = clock_now_ns();

        if (now_ns >= deadline_ns)
            return coll_fail(COLL_ERR_TIMEOUT,
                "coll_gpu_synchronize: not done after %.3f s; it goes on",
                (double)timeout_ms / 1000.0);
        /* What does not end then is in a call of NCCL that does not return. */
        if (broken_ns == 0 && coll_group_check(g) != COLL_OK)
            broken_ns = now_ns;
        if (broken_ns != 0 && now_ns > broken_ns + LEAVE_MS * CLOCK_NS_PER_MS)
            break;
        nanosleep(&pause, NULL);
    }
    return coll_group_check(g);
}

coll_status_t coll_gpu_synchronize(coll_group_t *group, int64_t timeout_ms)
{
    coll_status_t status = COLL_OK;
    struct coll_group *g =
        coll_group_get(group, "coll_gpu_synchronize", &status);

    if (g == NULL)
        return status;
    if (timeout_ms < 0)
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_gpu_synchronize: timeout_ms is %lld, it must not be negative",
            (long long)timeout_ms);
    atomic_fetch_add(&g->drivers, 1); /* it stays till the end of this */
    status = synchronize(g, timeout_ms);
    atomic_fetch_sub(&g->drivers, 1);
    return status;
}

bool gpu_advance(struct coll_group *g)
{
    struct gpu *gpu = gpu_of(g);
    bool is_left = gpu != NULL && gpu_reap(gpu);

    return gpu_many_advance(g) || is_left;
}
