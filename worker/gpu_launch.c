/*
 * Launches: a call goes on a stream with an event behind it, and into the list
 * of what is on its way. Whoever looks there (the watchdog, and who waits)
 * takes out what the device is done with.
 */
#include "gpu_internal.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coll_recorder.h"
#include "coll_signature.h"
#include "coll_work.h"
#include "rendezvous/base/clock.h"

/* How long a call that is under way may take to end by itself, and after a
 * revocation. */
#define HOLD_MS 100
#define REVOKE_MS 1000

/* What an abort gets before the works of what it ends are given back. */
#define ABORT_MS 2000

/* --- Sentences -------------------------------------------------------------
 */

coll_status_t gpu_fail_nccl(const struct gpu *gpu, const struct coll_call *call,
    nccl_result_t result, const char *last_error)
{
    char name[64];
    const char *text = gpu->nccl->get_error_string(result);
    bool is_remote =
        result == COLL_NCCL_REMOTE_ERROR || result == COLL_NCCL_SYSTEM_ERROR;

    if (last_error == NULL)
        last_error = gpu->nccl->get_last_error(NULL);
    return coll_fail(is_remote ? COLL_ERR_PEER : COLL_ERR_SYSTEM,
        "%s on GPU %d: NCCL says: %s%s%.200s; NCCL_DEBUG=WARN says more",
        coll_call_text(name, sizeof(name), call), gpu->device,
        text == NULL ? "?" : text,
        last_error == NULL || last_error[0] == '\0' ? "" : ": ",
        last_error == NULL ? "" : last_error);
}

/* --- The list --------------------------------------------------------------
 */

static coll_status_t take_op(
    struct gpu *gpu, const struct coll_call *call, struct gpu_op **out)
{
    char name[64];
    struct gpu_op *op;
    cu_result_t rc;

    pthread_mutex_lock(&gpu->lock);
    op = gpu->spare;
    if (op != NULL)
        gpu->spare = op->next;
    pthread_mutex_unlock(&gpu->lock);
    if (op != NULL) {
        *out = op;
        return COLL_OK;
    }
    coll_call_text(name, sizeof(name), call);
    op = calloc(1, sizeof(*op));
    if (op == NULL)
        return coll_fail(COLL_ERR_MEMORY, "%s: out of memory", name);
    rc = gpu->cu->event_create(&op->event, COLL_CUDA_EVENT_NO_TIMING);
    if (rc != COLL_CUDA_SUCCESS) {
        free(op);
        return gpu_fail_cuda(gpu->cu, name, "cuEventCreate", rc);
    }
    *out = op;
    return COLL_OK;
}

static void give_back(struct gpu *gpu, struct gpu_op *op)
{
    pthread_mutex_lock(&gpu->lock);
    op->next = gpu->spare;
    gpu->spare = op;
    pthread_mutex_unlock(&gpu->lock);
}

/* From now on the watchdog sees it. Returns the one before it, whose event may
 * have to be waited for. */
static void append(struct gpu *gpu, struct gpu_op *op)
{
    pthread_mutex_lock(&gpu->lock);
    op->next = NULL;
    if (gpu->last != NULL) {
        gpu->last->next = op;
    } else {
        gpu->first = op;
        gpu->since_ns = op->entered_ns;
        pthread_cond_signal(&gpu->changed);
    }
    gpu->last = op;
    pthread_mutex_unlock(&gpu->lock);
}

/* Of an operation whose launch has failed: it is the last one. */
static void withdraw(struct gpu *gpu, struct gpu_op *op)
{
    struct gpu_op *before = NULL;

    pthread_mutex_lock(&gpu->lock);
    for (struct gpu_op *o = gpu->first; o != op; o = o->next)
        before = o;
    if (before != NULL)
        before->next = NULL;
    else
        gpu->first = NULL;
    gpu->last = before;
    op->next = gpu->spare;
    gpu->spare = op;
    pthread_mutex_unlock(&gpu->lock);
}

static void end_op(struct gpu *gpu, struct gpu_op *op, coll_status_t status)
{
    coll_work_t *work = op->work;

    coll_recorder_finish(op->ticket, status, op->entered_ns);
    give_back(gpu, op);
    if (work != NULL)
        coll_work_finish(work, status);
}

/* The first operation, taken out of the list, if it is one that has ended; or
 * (is_over) any one that is not being launched. */
static struct gpu_op *take_ended(struct gpu *gpu, bool is_over, bool *is_left)
{
    struct gpu_op *op;
    cu_result_t rc = COLL_CUDA_SUCCESS;

    pthread_mutex_lock(&gpu->lock);
    op = gpu->first;
    if (op != NULL && !op->is_launched)
        op = NULL;
    /* What ends while the communicator is aborted ends because of that, and has
     * no result: gpu_fail_all() takes it. */
    if (op != NULL && !is_over && gpu->comm == NULL)
        op = NULL;
    if (op != NULL && !is_over)
        rc = gpu->cu->event_query(op->event);
    /* An error of the device is for the watchdog. */
    if (rc != COLL_CUDA_SUCCESS)
        op = NULL;
    if (op != NULL) {
        gpu->first = op->next;
        if (gpu->first == NULL)
            gpu->last = NULL;
        gpu->since_ns = clock_now_ns();
    }
    *is_left = gpu->first != NULL;
    pthread_mutex_unlock(&gpu->lock);
    return op;
}

bool gpu_reap(struct gpu *gpu)
{
    struct cu_context *before = gpu_enter(gpu->cu, gpu->context);
    struct gpu_op *op;
    bool is_left;

    while ((op = take_ended(gpu, false, &is_left)) != NULL)
        end_op(gpu, op, COLL_OK);
    gpu_leave(gpu->cu, gpu->context, before);
    return is_left;
}

void gpu_fail_all(struct gpu *gpu)
{
    struct gpu_op *op;
    bool is_left;

    /* What one of its functions does changes the sentence. */
    while ((op = take_ended(gpu, true, &is_left)) != NULL)
        end_op(gpu, op, coll_group_check(gpu->group));
}

/* --- The end of a communicator ---------------------------------------------
 */

void gpu_hold(struct gpu *gpu)
{
    pthread_mutex_lock(&gpu->launching);
    atomic_store(&gpu->is_launching, true); /* before it looks at comm */
}

void gpu_let_go(struct gpu *gpu)
{
    atomic_store(&gpu->is_launching, false);
    pthread_mutex_unlock(&gpu->launching);
}

static bool is_let_go(struct gpu *gpu, uint64_t deadline_ns)
{
    const struct timespec pause = {.tv_nsec = 1000 * 1000};

    while (atomic_load(&gpu->is_launching)) {
        if (clock_now_ns() >= deadline_ns)
            return false;
        nanosleep(&pause, NULL);
    }
    return true;
}

/* A call that is under way would find its communicator freed; but where NCCL
 * cannot revoke, only the abort gets it out. */
static void get_out(struct gpu *gpu, struct nccl_comm *comm)
{
    uint64_t deadline_ns;
    struct gpu_job *job;

    if (is_let_go(gpu, clock_deadline_ns(HOLD_MS)) ||
        gpu->nccl->comm_revoke == NULL)
        return;
    job = gpu_job_create(gpu);
    if (job == NULL)
        return;
    job->run = gpu_job_revoke;
    job->comm = comm;
    deadline_ns = clock_deadline_ns(REVOKE_MS);
    gpu_job_start(job);
    gpu_job_wait(job, deadline_ns);
    gpu_job_release(job);
    is_let_go(gpu, deadline_ns);
}

void gpu_abort(struct gpu *gpu)
{
    struct gpu_job *job;
    struct nccl_comm *comm;

    pthread_mutex_lock(&gpu->lock);
    comm = gpu->comm;
    gpu->comm = NULL; /* before it looks at is_launching */
    gpu->wants_abort = false;
    pthread_mutex_unlock(&gpu->lock);
    if (comm == NULL)
        return;
    get_out(gpu, comm);
    job = gpu_job_create(gpu);
    if (job == NULL)
        return;
    job->run = gpu_job_abort;
    job->comm = comm;
    gpu_job_start(job);
    gpu_job_wait(job, clock_deadline_ns(ABORT_MS));
    pthread_mutex_lock(&gpu->lock);
    gpu->ending = job;
    pthread_mutex_unlock(&gpu->lock);
}

/* --- A launch --------------------------------------------------------------
 */

/* A communicator that does not block does it in a thread of its own. The
 * watchdog ends it if it takes too long. */
static nccl_result_t await_launch(struct gpu *gpu)
{
    nccl_result_t result;

    while ((result = gpu_async_error(gpu)) == COLL_NCCL_IN_PROGRESS)
        sched_yield();
    return result;
}

/* One call on one stream, within a launch. */
struct launch {
    struct gpu *gpu;
    const struct coll_call *call;
    struct cu_stream *stream;
    struct gpu_op *op; /* NULL: nobody watches it, as a graph is captured */
    struct cu_context *before;
    nccl_op_t made; /* a reduction for it */
    bool has_made;
};

static bool is_captured(struct gpu *gpu, struct cu_stream *stream)
{
    cu_capture_status_t status = COLL_CUDA_CAPTURE_NONE;

    return stream != NULL &&
           gpu->cu->stream_is_capturing(stream, &status) == COLL_CUDA_SUCCESS &&
           status != COLL_CUDA_CAPTURE_NONE;
}

/* What the operation has to wait for, in its stream: the one before it, if that
 * is on another one; and what is on the group's stream, if it has its own. */
static cu_result_t order(struct launch *l, struct gpu_op *previous)
{
    const struct cuda_api *cu = l->gpu->cu;
    cu_result_t rc = COLL_CUDA_SUCCESS;

    if (l->call->work != NULL) {
        rc = cu->event_record(
            l->gpu->before, atomic_load(&l->gpu->group->gpu_stream));
        if (rc == COLL_CUDA_SUCCESS)
            rc = cu->stream_wait_event(l->stream, l->gpu->before, 0);
    }
    if (rc == COLL_CUDA_SUCCESS && previous != NULL &&
        previous->stream != l->stream)
        rc = cu->stream_wait_event(l->stream, previous->event, 0);
    return rc;
}

/* Its place in the list. */
static coll_status_t prepare(struct launch *l)
{
    struct gpu *gpu = l->gpu;
    struct gpu_op *previous;
    coll_status_t status;
    cu_result_t rc;

    if (is_captured(gpu, l->stream))
        return COLL_OK;
    status = take_op(gpu, l->call, &l->op);
    if (status != COLL_OK)
        return status;
    l->op->call = *l->call;
    l->op->work = l->call->work;
    l->op->stream = l->stream;
    l->op->is_launched = false;
    l->op->entered_ns = clock_now_ns();
    l->op->ticket = coll_recorder_enter(gpu->group, l->call, l->op->entered_ns);
    /* Only this thread, which launches, puts anything behind it; if it ends
     * meanwhile its event is past, and so is any later use of that. */
    pthread_mutex_lock(&gpu->lock);
    previous = gpu->last;
    pthread_mutex_unlock(&gpu->lock);
    append(gpu, l->op);
    rc = order(l, previous);
    if (rc != COLL_CUDA_SUCCESS) {
        char name[64];

        return gpu_fail_cuda(gpu->cu,
            coll_call_text(name, sizeof(name), l->call), "cuStreamWaitEvent",
            rc);
    }
    return COLL_OK;
}

static coll_status_t mark(struct launch *l)
{
    struct gpu *gpu = l->gpu;
    cu_result_t rc;

    if (l->op == NULL)
        return COLL_OK;
    rc = gpu->cu->event_record(l->op->event, l->stream);
    if (rc != COLL_CUDA_SUCCESS) {
        char name[64];

        return gpu_fail_cuda(gpu->cu,
            coll_call_text(name, sizeof(name), l->call), "cuEventRecord", rc);
    }
    pthread_mutex_lock(&gpu->lock);
    l->op->is_launched = true;
    pthread_mutex_unlock(&gpu->lock);
    l->op = NULL; /* it may have ended */
    return COLL_OK;
}

static nccl_result_t enqueue_one(struct launch *l)
{
    nccl_result_t result =
        gpu_ops_make_op(l->gpu, l->call, &l->made, &l->has_made);

    return result == COLL_NCCL_SUCCESS
               ? gpu_ops_enqueue(l->gpu, l->call, l->stream, l->made)
               : result;
}

/* NCCL's part. */
static nccl_result_t enqueue(struct launch *launches, int n)
{
    const struct nccl_api *nccl = launches[0].gpu->nccl;
    nccl_result_t result = COLL_NCCL_SUCCESS;
    nccl_result_t end;

    if (n > 1)
        result = nccl->group_start();
    for (int i = 0; result == COLL_NCCL_SUCCESS && i < n; i++) {
        launches[i].gpu->cu->context_set(launches[i].gpu->context);
        result = enqueue_one(&launches[i]);
        if (n > 1 && result == COLL_NCCL_IN_PROGRESS)
            result = COLL_NCCL_SUCCESS;
    }
    if (n > 1) {
        end = nccl->group_end();
        if (result == COLL_NCCL_SUCCESS)
            result = end;
    }
    if (result != COLL_NCCL_IN_PROGRESS)
        return result;
    result = COLL_NCCL_SUCCESS;
    for (int i = 0; result == COLL_NCCL_SUCCESS && i < n; i++)
        result = await_launch(launches[i].gpu);
    return result;
}

static coll_status_t run(struct launch *launches, int n)
{
    coll_status_t status = COLL_OK;
    nccl_result_t result;

    for (int i = 0; status == COLL_OK && i < n; i++) {
        launches[i].gpu->cu->context_set(launches[i].gpu->context);
        status = prepare(&launches[i]);
    }
    if (status != COLL_OK)
        return status;
    result = enqueue(launches, n);
    if (result != COLL_NCCL_SUCCESS)
        return gpu_fail_nccl(launches[0].gpu, launches[0].call, result, NULL);
    for (int i = 0; status == COLL_OK && i < n; i++) {
        launches[i].gpu->cu->context_set(launches[i].gpu->context);
        status = mark(&launches[i]);
    }
    return status;
}

/* What of it is on a stream may wait for other ranks for ever. */
static void ask_for_abort(struct gpu *gpu)
{
    pthread_mutex_lock(&gpu->lock);
    gpu->wants_abort = gpu->comm != NULL;
    pthread_cond_signal(&gpu->changed);
    pthread_mutex_unlock(&gpu->lock);
}

coll_status_t gpu_launch(struct gpu *const *gpus, struct cu_stream *const *on,
    const struct coll_call *calls, int n)
{
    struct launch few[1];
    struct launch *launches =
        n == 1 ? few : calloc((size_t)n, sizeof(*launches));
    struct cu_context *before = NULL;
    coll_status_t status;

    if (launches == NULL)
        return coll_fail(COLL_ERR_MEMORY, "%s: out of memory",
            coll_kind_name(calls[0].kind));
    gpus[0]->cu->context_get(&before);
    for (int i = 0; i < n; i++) {
        launches[i] =
            (struct launch){.gpu = gpus[i], .call = &calls[i], .stream = on[i]};
        gpu_hold(gpus[i]);
    }
    status = coll_group_check(gpus[0]->group);
    if (status == COLL_OK)
        status = run(launches, n);
    for (int i = n - 1; i >= 0; i--) {
        struct nccl_comm *comm = gpus[i]->comm;

        if (launches[i].has_made && comm != NULL)
            gpus[i]->nccl->op_destroy(launches[i].made, comm);
        if (launches[i].op != NULL) {
            coll_recorder_finish(
                launches[i].op->ticket, status, launches[i].op->entered_ns);
            withdraw(gpus[i], launches[i].op);
        }
        gpu_let_go(gpus[i]);
        if (status != COLL_OK)
            ask_for_abort(gpus[i]);
    }
    gpu_leave(gpus[0]->cu, gpus[n - 1]->context, before);
    if (n > 1)
        free(launches);
    return status;
}
