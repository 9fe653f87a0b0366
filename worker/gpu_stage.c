/*
 * Operations on host memory by way of the device, for a group whose back end is
 * "nccl": in, through NCCL, and out again. Where NCCL's network is better than
 * TCP that pays for programs that know nothing of GPUs.
 */
#include "gpu_internal.h"

#include <string.h>
#include <time.h>

#include "coll_signature.h"
#include "rendezvous/base/clock.h"

/* So the two parts of the memory are aligned for whatever lies there. */
#define ALIGNMENT ((size_t)256)

/* Elements that a call has on this rank. */
struct extent {
    size_t sent, received;
    bool keeps; /* some of what is received there is not written */
};

static size_t end_of(const size_t *counts, const size_t *at, int n)
{
    size_t end = 0;

    for (int r = 0; r < n; r++)
        if (counts[r] > 0 && at[r] + counts[r] > end)
            end = at[r] + counts[r];
    return end;
}

static struct extent extent_of(
    const struct coll_group *g, const struct coll_call *call)
{
    size_t n = call->count;
    size_t all = n * (size_t)g->size;
    bool is_root = call->root == g->rank;

    switch (call->kind) {
    case COLL_KIND_ALL_REDUCE:
        return (struct extent){n, n, false};
    case COLL_KIND_REDUCE:
        return (struct extent){n, is_root ? n : 0, false};
    case COLL_KIND_BROADCAST:
        return (struct extent){0, n, true};
    case COLL_KIND_ALL_GATHER:
        return (struct extent){n, all, false};
    case COLL_KIND_GATHER:
        return (struct extent){n, is_root ? all : 0, false};
    case COLL_KIND_SCATTER:
        return (struct extent){is_root ? all : 0, n, false};
    case COLL_KIND_REDUCE_SCATTER:
        return (struct extent){all, n, false};
    case COLL_KIND_ALL_TO_ALL:
        return (struct extent){all, all, false};
    case COLL_KIND_ALL_GATHER_V:
        return (struct extent){call->recv_counts[g->rank],
            end_of(call->recv_counts, call->recv_at, g->size), true};
    case COLL_KIND_REDUCE_SCATTER_V:
        return (struct extent){
            end_of(call->send_counts, call->send_at, g->size),
            call->send_counts[g->rank], false};
    case COLL_KIND_ALL_TO_ALL_V:
        return (struct extent){
            end_of(call->send_counts, call->send_at, g->size),
            end_of(call->recv_counts, call->recv_at, g->size), true};
    default:
        return (struct extent){0, 0, false};
    }
}

static enum coll_kind kind_of_one(enum coll_kind kind)
{
    return kind == COLL_KIND_ALL_REDUCE_COALESCED   ? COLL_KIND_ALL_REDUCE
           : kind == COLL_KIND_ALL_GATHER_COALESCED ? COLL_KIND_ALL_GATHER
           : kind == COLL_KIND_REDUCE_SCATTER_COALESCED
               ? COLL_KIND_REDUCE_SCATTER
               : kind;
}

bool gpu_stage_takes(struct coll_group *g, const struct coll_call *call)
{
    struct gpu *gpu = gpu_of(g);

    if (!g->stages || call->on_gpu)
        return false;
    switch (kind_of_one(call->kind)) {
    case COLL_KIND_BARRIER:
    case COLL_KIND_GROUP_SPLIT:
    case COLL_KIND_BROADCAST_OBJECT:
    case COLL_KIND_ALL_GATHER_OBJECT:
    case COLL_KIND_GPU_CONNECT:
    case COLL_KIND_SEND:
    case COLL_KIND_RECV:
        return false;
    default:
        /* What NCCL cannot do the CPU can. */
        return gpu_ops_can(gpu == NULL ? NULL : gpu->nccl, call);
    }
}

/* --- Memory ----------------------------------------------------------------
 */

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static cu_result_t reserve(struct gpu *gpu, size_t bytes)
{
    cu_result_t rc;

    if (gpu->stage_bytes >= bytes)
        return COLL_CUDA_SUCCESS;
    if (gpu->stage != 0)
        gpu->cu->memory_free(gpu->stage);
    gpu->stage = 0;
    gpu->stage_bytes = 0;
    rc = gpu->cu->memory_alloc(&gpu->stage, bytes);
    if (rc == COLL_CUDA_SUCCESS)
        gpu->stage_bytes = bytes;
    return rc;
}

static cu_result_t copy(
    struct gpu *gpu, const void *to, const void *from, size_t bytes)
{
    return bytes == 0 ? COLL_CUDA_SUCCESS
                      : gpu->cu->memory_copy((cu_address_t)(uintptr_t)to,
                            (cu_address_t)(uintptr_t)from, bytes);
}

/* --- One call --------------------------------------------------------------
 */

/* The watchdog ends it if it takes too long. */
static coll_status_t await(struct gpu *gpu)
{
    const struct timespec pause = {.tv_nsec = 20 * 1000};
    coll_status_t status = COLL_OK;

    for (int i = 0; status == COLL_OK &&
                    gpu->cu->stream_query(gpu->own) == COLL_CUDA_NOT_READY;
         i++) {
        status = coll_group_check(gpu->group);
        if (i >= 100)
            nanosleep(&pause, NULL);
    }
    return status == COLL_OK ? coll_group_check(gpu->group) : status;
}

static coll_status_t run_one(struct gpu *gpu, const struct coll_call *call)
{
    struct extent e = extent_of(gpu->group, call);
    size_t size = coll_dtype_size(call->dtype);
    struct coll_call staged = *call;
    coll_status_t status = COLL_OK;
    char name[64];
    cu_result_t rc;
    char *from;
    char *to;

    coll_call_text(name, sizeof(name), call);
    rc = reserve(gpu, aligned(e.sent * size) + e.received * size);
    from = (char *)(uintptr_t)gpu->stage;
    to = from + aligned(e.sent * size);
    if (rc == COLL_CUDA_SUCCESS)
        rc = copy(gpu, from, call->sendbuf, e.sent * size);
    if (rc == COLL_CUDA_SUCCESS && e.keeps)
        rc = copy(gpu, to, call->recvbuf, e.received * size);
    if (rc != COLL_CUDA_SUCCESS)
        return gpu_fail_cuda(gpu->cu, name, "to the device", rc);
    staged.sendbuf = from;
    staged.recvbuf = to;
    staged.on_gpu = true;
    status = gpu_launch(&gpu, &gpu->own, &staged, 1);
    if (status == COLL_OK)
        status = await(gpu);
    if (status != COLL_OK)
        return status;
    rc = copy(gpu, call->recvbuf, to, e.received * size);
    return rc == COLL_CUDA_SUCCESS
               ? COLL_OK
               : gpu_fail_cuda(gpu->cu, name, "from the device", rc);
}

static coll_status_t run_many(struct gpu *gpu, const struct coll_call *call)
{
    struct coll_call one = *call;
    coll_status_t status = COLL_OK;

    one.kind = kind_of_one(call->kind);
    one.nmany = 0;
    for (size_t i = 0; status == COLL_OK && i < call->nmany; i++) {
        one.sendbuf = call->many_send[i];
        one.recvbuf = call->many_recv[i];
        one.count = call->many_counts[i];
        if (one.count > 0)
            status = run_one(gpu, &one);
    }
    return status;
}

coll_status_t gpu_stage_run(struct coll_group *g, struct coll_call *call)
{
    struct cu_context *before;
    struct gpu *gpu;
    coll_status_t status;

    call->deadline_ns =
        clock_now_ns() + (uint64_t)call->timeout_ms * CLOCK_NS_PER_MS;
    status = gpu_reach(g, call, &gpu);
    if (status != COLL_OK)
        return status;
    before = gpu_enter(gpu->cu, gpu->context);
    status = kind_of_one(call->kind) != call->kind ? run_many(gpu, call)
                                                   : run_one(gpu, call);
    gpu_leave(gpu->cu, gpu->context, before);
    return status;
}
