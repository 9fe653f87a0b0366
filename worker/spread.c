/* See spread.h. */
#include "spread.h"

#include <string.h>

#include "kernel.h"

/* Elements of this rank's block, SIZE_MAX if it cannot be said. */
static size_t count_block(const struct coll_call *call, size_t size)
{
    size_t sum = 0;
    size_t most = 0;

    switch (call->kind) {
    case COLL_KIND_ALL_REDUCE:
    case COLL_KIND_REDUCE:
    case COLL_KIND_BROADCAST:
    case COLL_KIND_ALL_GATHER:
    case COLL_KIND_GATHER:
        return call->count;
    case COLL_KIND_SCATTER:
    case COLL_KIND_REDUCE_SCATTER:
    case COLL_KIND_ALL_TO_ALL:
        return call->count > SPREAD_BYTES ? SIZE_MAX : call->count * size;
    case COLL_KIND_ALL_GATHER_V:
        for (size_t r = 0; r < size; r++)
            most = call->recv_counts[r] > most ? call->recv_counts[r] : most;
        return most;
    case COLL_KIND_REDUCE_SCATTER_V:
        for (size_t r = 0; r < size && sum <= SPREAD_BYTES; r++)
            sum += call->send_counts[r];
        return sum;
    default: /* a barrier has nothing, of all_to_all_v it is not known */
        return SIZE_MAX;
    }
}

bool spread_plan(struct spread *out, const struct coll_call *call, int size)
{
    size_t elem = coll_dtype_size(call->dtype);
    size_t count = count_block(call, (size_t)size);
    bool is_from_root =
        call->kind == COLL_KIND_BROADCAST || call->kind == COLL_KIND_SCATTER;
    size_t blocks = is_from_root ? 1 : (size_t)size;

    if (count > SPREAD_BYTES / elem / blocks)
        return false;
    *out = (struct spread){is_from_root, count, count * elem};
    return true;
}

static void copy(void *to, const void *from, size_t bytes)
{
    if (bytes > 0)
        memcpy(to, from, bytes);
}

void spread_pack(const struct spread *plan, const struct coll_call *call,
    void *block, int rank, int size)
{
    size_t elem = coll_dtype_size(call->dtype);
    const char *send = call->sendbuf;
    char *at = block;

    switch (call->kind) {
    case COLL_KIND_BROADCAST:
        copy(block, call->recvbuf, plan->bytes);
        return;
    case COLL_KIND_ALL_GATHER_V: /* as long as the longest */
        copy(block, send, call->recv_counts[rank] * elem);
        memset(at + call->recv_counts[rank] * elem, 0,
            plan->bytes - call->recv_counts[rank] * elem);
        return;
    case COLL_KIND_REDUCE_SCATTER_V:
        for (int r = 0; r < size; r++) {
            size_t bytes = call->send_counts[r] * elem;

            if (bytes > 0)
                memcpy(at, send + call->send_at[r] * elem, bytes);
            at += bytes;
        }
        return;
    default:
        copy(block, send, plan->bytes);
        return;
    }
}

static void reduce(const struct coll_call *call, const void **blocks, int size,
    size_t from, size_t count)
{
    size_t elem = coll_dtype_size(call->dtype);

    for (int r = 0; r < size; r++)
        blocks[r] = (const char *)blocks[r] + from * elem;
    kernel_reduce(call->recvbuf, blocks, size, count, call->dtype, call->op);
}

/* Of each block the same part. */
static void gather(const struct coll_call *call, const void *const *blocks,
    int size, size_t from)
{
    size_t bytes = call->count * coll_dtype_size(call->dtype);
    char *at = call->recvbuf;

    for (int r = 0; r < size; r++, at += bytes)
        copy(at, (const char *)blocks[r] + from, bytes);
}

static void gather_v(
    const struct coll_call *call, const void *const *blocks, int size)
{
    size_t elem = coll_dtype_size(call->dtype);

    for (int r = 0; r < size; r++)
        if (call->recv_counts[r] > 0)
            memcpy((char *)call->recvbuf + call->recv_at[r] * elem, blocks[r],
                call->recv_counts[r] * elem);
}

void spread_unpack(
    const struct coll_call *call, const void **blocks, int rank, int size)
{
    size_t bytes = call->count * coll_dtype_size(call->dtype);
    size_t own = (size_t)rank * bytes;
    size_t before = 0;

    switch (call->kind) {
    case COLL_KIND_ALL_REDUCE:
        reduce(call, blocks, size, 0, call->count);
        return;
    case COLL_KIND_REDUCE:
        if (rank == call->root)
            reduce(call, blocks, size, 0, call->count);
        return;
    case COLL_KIND_REDUCE_SCATTER:
        reduce(call, blocks, size, (size_t)rank * call->count, call->count);
        return;
    case COLL_KIND_REDUCE_SCATTER_V:
        for (int r = 0; r < rank; r++)
            before += call->send_counts[r];
        reduce(call, blocks, size, before, call->send_counts[rank]);
        return;
    case COLL_KIND_BROADCAST:
        if (rank != call->root)
            copy(call->recvbuf, blocks[call->root], bytes);
        return;
    case COLL_KIND_SCATTER:
        copy(call->recvbuf, (const char *)blocks[call->root] + own, bytes);
        return;
    case COLL_KIND_GATHER:
        if (rank == call->root)
            gather(call, blocks, size, 0);
        return;
    case COLL_KIND_ALL_GATHER:
        gather(call, blocks, size, 0);
        return;
    case COLL_KIND_ALL_TO_ALL:
        gather(call, blocks, size, own);
        return;
    case COLL_KIND_ALL_GATHER_V:
        gather_v(call, blocks, size);
        return;
    default: /* never planned */
        return;
    }
}
