/*
 * Calls of device memory, from the core's side: which they are, and their way
 * to a launch.
 */
#include "gpu_internal.h"

#include <stdlib.h>
#include <string.h>

#include "coll_recorder.h"
#include "rendezvous/base/clock.h"

#define ENV_CHECK "COLL_CHECK"

/* --- Where the buffers are -------------------------------------------------
 */

/* Of a call's buffers so far. */
struct place {
    const char *function;
    bool is_known;
    int device;
};

static coll_status_t look_at(struct place *p, const void *buf, size_t count)
{
    int device;

    if (count == 0 || buf == NULL)
        return COLL_OK;
    device = gpu_device_of(buf);
    if (!p->is_known) {
        p->is_known = true;
        p->device = device;
    }
    if (device == p->device)
        return COLL_OK;
    if (device == GPU_HOST || p->device == GPU_HOST)
        return coll_fail(COLL_ERR_ARGUMENT,
            "%s: one buffer is in host memory, another one on GPU %d",
            p->function, device == GPU_HOST ? p->device : device);
    return coll_fail(COLL_ERR_ARGUMENT,
        "%s: one buffer is on GPU %d, another one on GPU %d", p->function,
        p->device, device);
}

static coll_status_t look_at_all(struct place *p, const struct coll_call *call)
{
    coll_status_t status = COLL_OK;

    if (call->kind == COLL_KIND_SEND || call->kind == COLL_KIND_RECV) {
        /* Also of an empty one, which another rank may have beside others. */
        for (size_t i = 0; status == COLL_OK && i < call->nmany; i++)
            status = look_at(p, call->messages[i].buf, 1);
        return status;
    }
    for (size_t i = 0; status == COLL_OK && i < call->nmany; i++) {
        status = look_at(p, call->many_send[i], call->many_counts[i]);
        if (status == COLL_OK)
            status = look_at(p, call->many_recv[i], call->many_counts[i]);
    }
    if (status == COLL_OK && call->nmany == 0)
        status = look_at(p, call->sendbuf, 1);
    if (status == COLL_OK && call->nmany == 0)
        status = look_at(p, call->recvbuf, 1);
    return status;
}

/* Of all calls only those of which every rank knows from its own arguments
 * that no data move. */
static bool is_empty(const struct coll_call *call)
{
    switch (call->kind) {
    case COLL_KIND_ALL_TO_ALL_V:
    case COLL_KIND_SEND:
    case COLL_KIND_RECV:
        return false;
    default:
        return call->count == 0 && call->nmany == 0;
    }
}

static coll_status_t check_captured(
    struct coll_group *g, const char *function, const struct coll_call *call)
{
    struct gpu *gpu = gpu_of(g);
    struct cu_stream *stream = atomic_load(&g->gpu_stream);
    const struct cuda_api *cu;
    cu_capture_status_t capture = COLL_CUDA_CAPTURE_NONE;

    if (stream == NULL ||
        (gpu != NULL && !call->is_async && !gpu_ops_needs_copy(call)))
        return COLL_OK;
    if (cuda_api_get(&cu) != COLL_OK ||
        cu->stream_is_capturing(stream, &capture) != COLL_CUDA_SUCCESS ||
        capture == COLL_CUDA_CAPTURE_NONE)
        return COLL_OK;
    if (gpu == NULL)
        return coll_fail(COLL_ERR_STATE,
            "%s: the stream captures a graph, and the group has no "
            "communicator yet; call coll_gpu_connect() before",
            function);
    if (call->is_async)
        return coll_fail(COLL_ERR_UNSUPPORTED,
            "%s%s: the stream captures a graph; use the call that waits",
            function, call->messages != NULL ? "" : "_async");
    return coll_fail(COLL_ERR_UNSUPPORTED,
        "%s: the stream captures a graph, which cannot have the copy that NCCL "
        "needs for what is in place; use two buffers",
        function);
}

coll_status_t gpu_check(
    struct coll_group *g, const char *function, struct coll_call *call)
{
    struct place p = {.function = function, .device = GPU_HOST};
    struct gpu *gpu;
    coll_status_t status;

    if (!gpu_is_possible() || is_empty(call))
        return COLL_OK;
    status = look_at_all(&p, call);
    if (status != COLL_OK || p.device == GPU_HOST)
        return status;
    gpu = gpu_of(g);
    if (gpu != NULL && gpu->device != p.device)
        return coll_fail(COLL_ERR_ARGUMENT,
            "%s: the buffers are on GPU %d, the group's communicator on GPU %d",
            function, p.device, gpu->device);
    status = gpu_ops_check(gpu == NULL ? NULL : gpu->nccl, function, call);
    if (status == COLL_OK)
        status = check_captured(g, function, call);
    if (status != COLL_OK)
        return status;
    call->on_gpu = true;
    call->device = p.device;
    return COLL_OK;
}

/* --- Running ---------------------------------------------------------------
 */

static bool is_checked(void)
{
    static _Atomic int wanted = -1;

    if (wanted < 0) {
        const char *text = getenv(ENV_CHECK);

        wanted = text != NULL && strcmp(text, "1") == 0;
    }
    return wanted;
}

/* Have all ranks called the same? By a barrier that is told to compare it. */
static coll_status_t compare(struct coll_group *g, const struct coll_call *call)
{
    struct coll_call step = {.kind = COLL_KIND_BARRIER,
        .timeout_ms = call->timeout_ms,
        .deadline_ns = call->deadline_ns,
        .algorithms = call->algorithms,
        .seq = call->seq,
        .whole = call};

    return is_checked() ? g->backend->run(g, &step) : COLL_OK;
}

/* Of one on host memory. Without a device this rank goes to the meeting to say
 * so. */
static void choose_device(struct coll_call *call)
{
    const struct cuda_api *cu;

    call->device = GPU_HOST;
    if (gpu_driver(&cu, "coll_gpu_connect") == COLL_OK)
        gpu_choose_device(cu, "coll_gpu_connect", &call->device);
}

coll_status_t gpu_reach(
    struct coll_group *g, struct coll_call *call, struct gpu **out)
{
    coll_status_t status;
    struct gpu *gpu = gpu_of(g);
    uint64_t ticket;
    uint64_t now_ns;

    if (gpu == NULL) {
        if (!call->on_gpu || call->kind == COLL_KIND_GPU_CONNECT)
            choose_device(call);
        now_ns = clock_now_ns();
        ticket = coll_recorder_enter(g, call, now_ns);
        status = gpu_meet(g, call, call->gpu_options, &call->device, 1, &gpu);
        coll_recorder_finish(ticket, status, now_ns);
        if (status != COLL_OK)
            return status;
        atomic_store_explicit(&g->gpu, gpu, memory_order_release);
        if (is_checked())
            status = gpu_selftest(gpu, call);
        if (status != COLL_OK)
            return status;
    }
    *out = gpu;
    return COLL_OK;
}

coll_status_t gpu_run(struct coll_group *g, struct coll_call *call)
{
    struct cu_stream *stream;
    struct gpu *gpu;
    coll_status_t status;

    call->deadline_ns =
        clock_now_ns() + (uint64_t)call->timeout_ms * CLOCK_NS_PER_MS;
    if (call->ndevices > 0)
        return gpu_many_run(g, call);
    status = gpu_reach(g, call, &gpu);
    if (status != COLL_OK || call->kind == COLL_KIND_GPU_CONNECT)
        return status;
    status = compare(g, call);
    if (status != COLL_OK)
        return status;
    stream = call->work != NULL ? gpu->own : atomic_load(&g->gpu_stream);
    return gpu_launch(&gpu, &stream, call, 1);
}

coll_status_t gpu_send_recv(struct coll_group *g, struct coll_call *call)
{
    struct gpu *gpu = gpu_of(g);
    struct cu_stream *stream;
    coll_status_t status;

    if (gpu == NULL)
        return coll_fail(COLL_ERR_STATE,
            "%s: the group has no communicator for device memory yet; all its "
            "ranks call coll_gpu_connect() before",
            coll_kind_name(call->kind));
    stream = call->work != NULL ? gpu->own : atomic_load(&g->gpu_stream);
    atomic_fetch_add(&g->messages, 1);
    status = gpu_launch(&gpu, &stream, call, 1);
    if (status != COLL_OK)
        coll_group_give_up(g, status);
    if (status != COLL_OK)
        status = coll_group_check(g);
    atomic_fetch_sub(&g->messages, 1);
    return status;
}

coll_status_t gpu_order(struct coll_group *g, const coll_work_t *work,
    void *stream, bool *is_ending)
{
    struct gpu *gpu = gpu_of(g);
    struct cu_context *before;
    cu_result_t rc = COLL_CUDA_SUCCESS;
    bool is_aborted = false;

    *is_ending = true;
    if (gpu == NULL)
        return COLL_OK;
    before = gpu_enter(gpu->cu, gpu->context); /* the default stream's */
    pthread_mutex_lock(&gpu->lock);
    for (struct gpu_op *op = gpu->first; op != NULL; op = op->next) {
        if (op->work != work)
            continue;
        *is_ending = false;
        is_aborted = gpu->comm == NULL;
        if (!is_aborted)
            rc = gpu->cu->stream_wait_event(stream, op->event, 0);
    }
    pthread_mutex_unlock(&gpu->lock);
    gpu_leave(gpu->cu, gpu->context, before);
    if (is_aborted)
        return coll_group_check(g);
    return rc == COLL_CUDA_SUCCESS
               ? COLL_OK
               : gpu_fail_cuda(
                     gpu->cu, "coll_work_wait_stream", "cuStreamWaitEvent", rc);
}
