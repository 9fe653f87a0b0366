/*
 * Calls of NCCL that may never return, since another rank is to answer them:
 * each in a thread of its own, which is given up when its time is over.
 */
#include "gpu_internal.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/base/clock.h"

struct gpu_job *gpu_job_create(const struct gpu *gpu)
{
    struct gpu_job *job = calloc(1, sizeof(*job));
    pthread_condattr_t attr;

    if (job == NULL)
        return NULL;
    job->cu = gpu->cu;
    job->nccl = gpu->nccl;
    job->context = gpu->context;
    job->refs = 1;
    job->config = gpu->config;
    pthread_mutex_init(&job->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&job->changed, &attr);
    pthread_condattr_destroy(&attr);
    return job;
}

void gpu_job_release(struct gpu_job *job)
{
    bool is_last;

    if (job == NULL)
        return;
    pthread_mutex_lock(&job->lock);
    is_last = --job->refs == 0;
    pthread_mutex_unlock(&job->lock);
    if (!is_last)
        return;
    pthread_cond_destroy(&job->changed);
    pthread_mutex_destroy(&job->lock);
    free(job->ids);
    free(job->excluded);
    free(job);
}

static void *thread_main(void *arg)
{
    struct gpu_job *job = arg;
    nccl_result_t result;

    result = COLL_NCCL_UNHANDLED_CUDA_ERROR;
    if (job->cu->context_set(job->context) == COLL_CUDA_SUCCESS)
        result = job->run(job);
    job->cu->context_set(NULL);
    pthread_mutex_lock(&job->lock);
    job->result = result;
    if (result != COLL_NCCL_SUCCESS && result != COLL_NCCL_IN_PROGRESS) {
        const char *text = job->nccl->get_last_error(NULL);

        strncpy(job->error, text == NULL ? "" : text, sizeof(job->error) - 1);
    }
    job->is_done = true;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
    gpu_job_release(job);
    return NULL;
}

void gpu_job_start(struct gpu_job *job)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t every;
    sigset_t before;
    int rc;

    job->refs++;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    rc = pthread_create(&thread, &attr, thread_main, job);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (rc != 0) {
        struct cu_context *current = NULL;

        job->cu->context_get(&current);
        thread_main(job);
        job->cu->context_set(current);
    }
}

bool gpu_job_wait(struct gpu_job *job, uint64_t deadline_ns)
{
    const struct timespec end = {
        .tv_sec = (time_t)(deadline_ns / CLOCK_NS_PER_S),
        .tv_nsec = (long)(deadline_ns % CLOCK_NS_PER_S),
    };
    bool is_done;
    int rc = 0;

    pthread_mutex_lock(&job->lock);
    while (!job->is_done && rc == 0)
        rc = pthread_cond_timedwait(&job->changed, &job->lock, &end);
    is_done = job->is_done;
    pthread_mutex_unlock(&job->lock);
    return is_done;
}

/* --- What they do ----------------------------------------------------------
 */

nccl_result_t gpu_job_init(struct gpu_job *job)
{
    if (job->nids > 1)
        return job->nccl->comm_init_scalable(&job->comm, job->size, job->rank,
            job->nids, job->ids, &job->config);
    return job->nccl->comm_init(
        &job->comm, job->size, job->ids[0], job->rank, &job->config);
}

nccl_result_t gpu_job_split(struct gpu_job *job)
{
    return job->nccl->comm_split(
        job->parent, job->color, job->key, &job->comm, &job->config);
}

nccl_result_t gpu_job_shrink(struct gpu_job *job)
{
    return job->nccl->comm_shrink(job->parent, job->excluded, job->nexcluded,
        &job->comm, &job->config, job->flags);
}

nccl_result_t gpu_job_revoke(struct gpu_job *job)
{
    return job->nccl->comm_revoke(job->comm, 0);
}

nccl_result_t gpu_job_abort(struct gpu_job *job)
{
    return job->nccl->comm_abort(job->comm);
}

/* Without the flush, what other ranks still need could be lost with the
 * communicator; a communicator that does not block has to be asked for its
 * end. */
nccl_result_t gpu_job_destroy(struct gpu_job *job)
{
    const struct timespec pause = {.tv_nsec = 200 * 1000};
    nccl_result_t result = job->nccl->comm_finalize(job->comm);

    while (result == COLL_NCCL_IN_PROGRESS) {
        nanosleep(&pause, NULL);
        if (job->nccl->comm_get_async_error(job->comm, &result) !=
            COLL_NCCL_SUCCESS)
            break;
    }
    return job->nccl->comm_destroy(job->comm);
}
