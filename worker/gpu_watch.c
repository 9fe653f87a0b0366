/*
 * The watchdog of a communicator: a thread that looks at the operations on
 * their way, and sleeps when there are none.
 */
#include "gpu_internal.h"

#include <signal.h>
#include <string.h>
#include <time.h>

#include "coll_agent.h"
#include "coll_signature.h"
#include "rendezvous/base/clock.h"

/* Works that nobody waits for end, and failures are noticed, so late. */
#define PERIOD_MS 2

/* What takes longer may wait for a rank that has failed: so often the back end
 * of host memory is asked. */
#define LOOK_MS 100

/* The oldest operation, if it is late or there is anything else about it;
 * what it is goes to *call. */
static bool oldest(struct gpu *gpu, struct coll_call *call, uint64_t *since_ns)
{
    bool is_there;

    pthread_mutex_lock(&gpu->lock);
    is_there = gpu->first != NULL;
    if (is_there) {
        *call = gpu->first->call;
        *since_ns = gpu->since_ns;
    }
    pthread_mutex_unlock(&gpu->lock);
    return is_there;
}

nccl_result_t gpu_async_error(struct gpu *gpu)
{
    nccl_result_t error = COLL_NCCL_SUCCESS;
    struct nccl_comm *comm;

    pthread_mutex_lock(&gpu->lock);
    comm = gpu->comm;
    if (comm == NULL)
        error = COLL_NCCL_INTERNAL_ERROR; /* it is being aborted */
    else if (gpu->nccl->comm_get_async_error(comm, &error) != COLL_NCCL_SUCCESS)
        error = COLL_NCCL_INTERNAL_ERROR;
    pthread_mutex_unlock(&gpu->lock);
    return error;
}

/* A kernel that has gone wrong, NCCL's or the program's, ends the context. */
cu_result_t gpu_device_error(struct gpu *gpu)
{
    cu_result_t rc = COLL_CUDA_SUCCESS;

    pthread_mutex_lock(&gpu->lock);
    if (gpu->first != NULL && gpu->first->is_launched)
        rc = gpu->cu->event_query(gpu->first->event);
    pthread_mutex_unlock(&gpu->lock);
    return rc == COLL_CUDA_NOT_READY ? COLL_CUDA_SUCCESS : rc;
}

/* Ranks that give up, or end, say so to the back end of host memory. */
static coll_status_t look_for_others(
    struct gpu *gpu, const struct coll_call *call, uint64_t since_ns)
{
    uint64_t now_ns = clock_now_ns();
    uint64_t from_ns = gpu->looked_ns > since_ns ? gpu->looked_ns : since_ns;

    if (now_ns < from_ns + LOOK_MS * CLOCK_NS_PER_MS)
        return COLL_OK;
    gpu->looked_ns = now_ns;
    return coll_group_look(gpu->group, call);
}

static coll_status_t look(
    struct gpu *gpu, const struct coll_call *call, uint64_t since_ns)
{
    char text[64];
    nccl_result_t error;
    cu_result_t rc;
    coll_status_t status = coll_group_check(gpu->group);

    if (status != COLL_OK)
        return status;
    if (coll_agent_is_told())
        return coll_agent_fail(coll_call_text(text, sizeof(text), call));
    rc = gpu_device_error(gpu);
    if (rc != COLL_CUDA_SUCCESS)
        return gpu_fail_cuda(gpu->cu, coll_call_text(text, sizeof(text), call),
            "the device", rc);
    error = gpu_async_error(gpu);
    if (error != COLL_NCCL_SUCCESS && error != COLL_NCCL_IN_PROGRESS) {
        /* A rank that dies takes its connections along: who it was, and why,
         * the launcher says in a moment. */
        if (coll_agent_await_cause())
            return coll_agent_fail(coll_call_text(text, sizeof(text), call));
        return gpu_fail_nccl(gpu, call, error, NULL);
    }
    if (clock_now_ns() >
        since_ns + (uint64_t)call->timeout_ms * CLOCK_NS_PER_MS)
        return gpu_blame(gpu, call);
    return look_for_others(gpu, call, since_ns);
}

static void watch(struct gpu *gpu, bool wants_abort)
{
    struct coll_call call;
    uint64_t since_ns;
    coll_status_t status;

    /* Whoever launched it fails the group next. */
    if (wants_abort && coll_group_check(gpu->group) != COLL_OK)
        gpu_abort(gpu);
    if (!gpu_reap(gpu) || !oldest(gpu, &call, &since_ns))
        return;
    status = look(gpu, &call, since_ns);
    if (status != COLL_OK) {
        coll_group_give_up(gpu->group, status);
        gpu_abort(gpu);
        gpu_fail_all(gpu);
    }
}

/* With the lock. */
static void rest(struct gpu *gpu)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += PERIOD_MS * 1000 * 1000;
    if (until.tv_nsec >= 1000 * 1000 * 1000) {
        until.tv_nsec -= 1000 * 1000 * 1000;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&gpu->changed, &gpu->lock, &until);
}

static void *thread_main(void *arg)
{
    struct gpu *gpu = arg;
    bool wants_abort;

    gpu->cu->context_set(gpu->context);
    pthread_mutex_lock(&gpu->lock);
    while (!gpu->is_ending) {
        wants_abort = gpu->wants_abort;
        if (gpu->first == NULL && !wants_abort) {
            pthread_cond_wait(&gpu->changed, &gpu->lock);
            continue;
        }
        pthread_mutex_unlock(&gpu->lock);
        watch(gpu, wants_abort);
        pthread_mutex_lock(&gpu->lock);
        if (!gpu->is_ending)
            rest(gpu);
    }
    pthread_mutex_unlock(&gpu->lock);
    return NULL;
}

coll_status_t gpu_watch_start(struct gpu *gpu)
{
    sigset_t every;
    sigset_t before;
    int rc;

    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    rc = pthread_create(&gpu->watchdog, NULL, thread_main, gpu);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    gpu->has_watchdog = rc == 0;
    return rc == 0
               ? COLL_OK
               : coll_fail(COLL_ERR_SYSTEM,
                     "cannot start a thread for the group: %s", strerror(rc));
}

void gpu_watch_end(struct gpu *gpu)
{
    if (!gpu->has_watchdog)
        return;
    pthread_mutex_lock(&gpu->lock);
    gpu->is_ending = true;
    pthread_cond_signal(&gpu->changed);
    pthread_mutex_unlock(&gpu->lock);
    pthread_join(gpu->watchdog, NULL);
    gpu->has_watchdog = false;
}
