/*
 * A communicator's first operation where COLL_CHECK is set: does NCCL's order
 * of ranks agree with ours? With devices, hosts or a topology file that are not
 * what they seem it has happened that it did not.
 */
#include "gpu_internal.h"

#include <stdlib.h>
#include <time.h>

#include "coll_ranks.h"
#include "coll_signature.h"
#include "rendezvous/base/clock.h"

/* Every rank's number in a block, gathered on the device; the watchdog ends
 * what hangs. */
static coll_status_t gather(
    struct gpu *gpu, const struct coll_call *call, int32_t *out)
{
    const struct timespec pause = {.tv_nsec = 20 * 1000};
    size_t bytes = (size_t)gpu->size * sizeof(*out);
    struct coll_call step = {.kind = COLL_KIND_ALL_GATHER,
        .dtype = COLL_INT32,
        .count = 1,
        .seq = call->seq,
        .timeout_ms = call->timeout_ms,
        .whole = call};
    cu_address_t memory = 0;
    cu_address_t own;
    coll_status_t status = COLL_OK;
    cu_result_t rc = gpu->cu->memory_alloc(&memory, bytes);

    own = memory + (cu_address_t)gpu->rank * sizeof(*out);
    if (rc == COLL_CUDA_SUCCESS)
        rc = gpu->cu->memory_copy(
            own, (cu_address_t)(uintptr_t)&gpu->rank, sizeof(gpu->rank));
    if (rc == COLL_CUDA_SUCCESS) {
        step.sendbuf = (const void *)(uintptr_t)own;
        step.recvbuf = (void *)(uintptr_t)memory;
        status = gpu_launch(&gpu, &gpu->own, &step, 1);
        while (status == COLL_OK && gpu_reap(gpu)) {
            nanosleep(&pause, NULL);
            status = coll_group_check(gpu->group);
        }
        if (status == COLL_OK)
            rc = gpu->cu->memory_copy(
                (cu_address_t)(uintptr_t)out, memory, bytes);
    }
    if (memory != 0)
        gpu->cu->memory_free(memory);
    return rc == COLL_CUDA_SUCCESS
               ? status
               : gpu_fail_cuda(gpu->cu, "COLL_CHECK", "cuMemcpy", rc);
}

coll_status_t gpu_selftest(struct gpu *gpu, const struct coll_call *call)
{
    int32_t *blocks = malloc((size_t)gpu->size * sizeof(*blocks));
    struct cu_context *before;
    coll_status_t status;

    if (blocks == NULL)
        return coll_fail(COLL_ERR_MEMORY, "COLL_CHECK: out of memory");
    before = gpu_enter(gpu->cu, gpu->context);
    status = gather(gpu, call, blocks);
    gpu_leave(gpu->cu, gpu->context, before);
    for (int r = 0; status == COLL_OK && r < gpu->size; r++)
        if (blocks[r] != r)
            status = coll_fail(COLL_ERR_SYSTEM,
                "COLL_CHECK: block %d of an all_gather on GPU %d holds what "
                "rank %d has: NCCL has the ranks in another order; look at "
                "CUDA_VISIBLE_DEVICES and NCCL_TOPO_FILE",
                r, gpu->device, blocks[r]);
    free(blocks);
    return status;
}
