/*
 * A call as calls of NCCL. What only moves data moves bytes, of whichever type;
 * what NCCL has no operation for is a group of sends and receives, broadcasts
 * or reductions.
 */
#include "gpu_internal.h"

#include <stdio.h>
#include <string.h>

#include "kernel.h"

/* --- Types and reductions --------------------------------------------------
 */

struct nccl_type {
    int dtype; /* -1: NCCL cannot reduce it */
    int since; /* a version; 0: all */
    uint8_t one[8]; /* the number, in this type */
};

static const struct nccl_type types[] = {
    [COLL_FLOAT32] = {COLL_NCCL_FLOAT32, 0, {0, 0, 0x80, 0x3f}},
    [COLL_FLOAT64] = {COLL_NCCL_FLOAT64, 0, {0, 0, 0, 0, 0, 0, 0xf0, 0x3f}},
    [COLL_INT32] = {COLL_NCCL_INT32, 0, {1}},
    [COLL_INT64] = {COLL_NCCL_INT64, 0, {1}},
    [COLL_FLOAT16] = {COLL_NCCL_FLOAT16, 0, {0, 0x3c}},
    [COLL_BFLOAT16] = {COLL_NCCL_BFLOAT16, 0, {0x80, 0x3f}},
    [COLL_FLOAT8_E4M3] = {COLL_NCCL_FLOAT8_E4M3, COLL_NCCL_FLOAT8_VERSION,
        {0x38}},
    [COLL_FLOAT8_E5M2] = {COLL_NCCL_FLOAT8_E5M2, COLL_NCCL_FLOAT8_VERSION,
        {0x3c}},
    [COLL_INT8] = {COLL_NCCL_INT8, 0, {1}},
    [COLL_INT16] = {-1, 0, {0}},
    [COLL_UINT8] = {COLL_NCCL_UINT8, 0, {1}},
    [COLL_UINT16] = {-1, 0, {0}},
    [COLL_UINT32] = {COLL_NCCL_UINT32, 0, {1}},
    [COLL_UINT64] = {COLL_NCCL_UINT64, 0, {1}},
    [COLL_BOOL] = {COLL_NCCL_UINT8, 0, {1}},
};

/* -1: NCCL has none. Of 0 and 1, "or" is the maximum and "and" the minimum. */
static int op_of(const struct coll_call *call)
{
    bool is_bool = call->dtype == COLL_BOOL;

    switch (call->op) {
    case COLL_SUM:
        return is_bool ? COLL_NCCL_MAX : COLL_NCCL_SUM;
    case COLL_PRODUCT:
        return is_bool ? COLL_NCCL_MIN : COLL_NCCL_PROD;
    case COLL_MAX:
        return COLL_NCCL_MAX;
    case COLL_MIN:
        return COLL_NCCL_MIN;
    case COLL_AVG:
        return COLL_NCCL_AVG;
    case COLL_BAND:
    case COLL_BOR:
        return !is_bool                ? -1
               : call->op == COLL_BAND ? COLL_NCCL_MIN
                                       : COLL_NCCL_MAX;
    default:
        return -1;
    }
}

static bool does_reduce(enum coll_kind kind)
{
    return kind == COLL_KIND_ALL_REDUCE || kind == COLL_KIND_REDUCE ||
           kind == COLL_KIND_REDUCE_SCATTER ||
           kind == COLL_KIND_REDUCE_SCATTER_V ||
           kind == COLL_KIND_ALL_REDUCE_COALESCED ||
           kind == COLL_KIND_REDUCE_SCATTER_COALESCED;
}

bool gpu_ops_can(const struct nccl_api *nccl, const struct coll_call *call)
{
    const struct nccl_type *type = &types[call->dtype];

    if (!does_reduce(call->kind))
        return true;
    return type->dtype >= 0 && op_of(call) >= 0 &&
           (nccl == NULL || nccl->version >= type->since);
}

coll_status_t gpu_ops_check(const struct nccl_api *nccl, const char *function,
    const struct coll_call *call)
{
    const struct nccl_type *type = &types[call->dtype];
    char text[COLL_NCCL_VERSION_TEXT];

    if (gpu_ops_can(nccl, call))
        return COLL_OK;
    if (type->dtype < 0 || op_of(call) < 0)
        return coll_fail(COLL_ERR_UNSUPPORTED,
            "%s: NCCL has no %s of %s; it can be done in host memory", function,
            coll_op_name(call->op), coll_dtype_name(call->dtype));
    return coll_fail(COLL_ERR_UNSUPPORTED,
        "%s: NCCL %s cannot reduce %s; 2.24 can", function,
        nccl_version_text(nccl->version, text), coll_dtype_name(call->dtype));
}

nccl_result_t gpu_ops_make_op(
    struct gpu *gpu, const struct coll_call *call, nccl_op_t *op, bool *made)
{
    const struct nccl_type *type = &types[call->dtype];
    uint8_t factor[8];
    nccl_result_t result;

    *made = false;
    if (!does_reduce(call->kind))
        return COLL_NCCL_SUCCESS;
    *op = (nccl_op_t)op_of(call);
    if (!call->has_factor)
        return COLL_NCCL_SUCCESS;
    kernel_scale(factor, type->one, 1, call->dtype, call->factor);
    result = gpu->nccl->op_create_premul_sum(op, factor,
        (nccl_dtype_t)type->dtype, COLL_NCCL_SCALAR_HOST, gpu->comm);
    *made = result == COLL_NCCL_SUCCESS;
    return result;
}

/* --- One part --------------------------------------------------------------
 */

/* What a call is put on, and what it consists of. */
struct target {
    struct gpu *gpu;
    const struct nccl_api *nccl;
    struct nccl_comm *comm;
    struct cu_stream *stream;
    int rank, size;
    nccl_dtype_t dtype; /* of reductions */
    nccl_op_t op;
    size_t bytes; /* of an element */
};

static void *at(const struct target *t, const void *buf, size_t elements)
{
    return (char *)buf + elements * t->bytes;
}

static nccl_result_t send(
    const struct target *t, const void *from, size_t count, int peer)
{
    return t->nccl->send(
        from, count * t->bytes, COLL_NCCL_UINT8, peer, t->comm, t->stream);
}

static nccl_result_t recv(
    const struct target *t, void *to, size_t count, int peer)
{
    return t->nccl->recv(
        to, count * t->bytes, COLL_NCCL_UINT8, peer, t->comm, t->stream);
}

/* The first error counts. */
static void note(nccl_result_t *result, nccl_result_t next)
{
    if (*result == COLL_NCCL_SUCCESS || *result == COLL_NCCL_IN_PROGRESS)
        *result = next;
}

/* What a rank sends to itself. */
static void keep(const struct target *t, nccl_result_t *result,
    const void *from, void *to, size_t count)
{
    if (count == 0 || from == to)
        return;
    note(result, send(t, from, count, t->rank));
    note(result, recv(t, to, count, t->rank));
}

static nccl_result_t gather(
    const struct target *t, const struct coll_call *call)
{
    nccl_result_t result = COLL_NCCL_SUCCESS;
    size_t n = call->count;

    if (t->nccl->gather != NULL)
        return t->nccl->gather(call->sendbuf, call->recvbuf, n * t->bytes,
            COLL_NCCL_UINT8, call->root, t->comm, t->stream);
    if (t->rank != call->root)
        return send(t, call->sendbuf, n, call->root);
    for (int r = 0; r < t->size; r++)
        if (r != t->rank)
            note(&result, recv(t, at(t, call->recvbuf, n * (size_t)r), n, r));
    keep(t, &result, call->sendbuf, at(t, call->recvbuf, n * (size_t)t->rank),
        n);
    return result;
}

static nccl_result_t scatter(
    const struct target *t, const struct coll_call *call)
{
    nccl_result_t result = COLL_NCCL_SUCCESS;
    size_t n = call->count;

    if (t->nccl->scatter != NULL)
        return t->nccl->scatter(call->sendbuf, call->recvbuf, n * t->bytes,
            COLL_NCCL_UINT8, call->root, t->comm, t->stream);
    if (t->rank != call->root)
        return recv(t, call->recvbuf, n, call->root);
    for (int r = 0; r < t->size; r++)
        if (r != t->rank)
            note(&result, send(t, at(t, call->sendbuf, n * (size_t)r), n, r));
    keep(t, &result, at(t, call->sendbuf, n * (size_t)t->rank), call->recvbuf,
        n);
    return result;
}

bool gpu_ops_needs_copy(const struct coll_call *call)
{
    return call->kind == COLL_KIND_ALL_TO_ALL && call->sendbuf == call->recvbuf;
}

/*
 * A copy of what is in place, which NCCL cannot do; NULL: there is no memory
 * for it. Operations follow each other, so one place is enough; but it is not
 * freed for a larger one, since streams may have yet to come to its use, and
 * freeing waits for them. Places of twice the size each are no more than twice
 * what the largest needs.
 */
static const void *copy_of(
    const struct target *t, const void *buf, size_t bytes)
{
    struct gpu *gpu = t->gpu;
    cu_address_t *place = gpu->scratch;
    size_t size = GPU_SCRATCH_MIN;

    for (; size < bytes; size *= 2)
        place++;
    if (*place == 0 && gpu->cu->memory_alloc(place, size) != COLL_CUDA_SUCCESS)
        return NULL;
    if (gpu->cu->memory_copy_async(*place, (cu_address_t)(uintptr_t)buf, bytes,
            t->stream) != COLL_CUDA_SUCCESS)
        return NULL;
    return (const void *)(uintptr_t)*place;
}

static nccl_result_t all_to_all(
    const struct target *t, const struct coll_call *call)
{
    nccl_result_t result = COLL_NCCL_SUCCESS;
    const void *from = call->sendbuf;
    size_t n = call->count;

    if (gpu_ops_needs_copy(call))
        from = copy_of(t, from, n * t->bytes * (size_t)t->size);
    if (from == NULL)
        return COLL_NCCL_UNHANDLED_CUDA_ERROR;
    if (t->nccl->all_to_all != NULL)
        return t->nccl->all_to_all(from, call->recvbuf, n * t->bytes,
            COLL_NCCL_UINT8, t->comm, t->stream);
    for (int r = 0; r < t->size; r++) {
        note(&result, send(t, at(t, from, n * (size_t)r), n, r));
        note(&result, recv(t, at(t, call->recvbuf, n * (size_t)r), n, r));
    }
    return result;
}

static nccl_result_t all_gather_v(
    const struct target *t, const struct coll_call *call)
{
    nccl_result_t result = COLL_NCCL_SUCCESS;

    for (int r = 0; r < t->size; r++) {
        void *to = at(t, call->recvbuf, call->recv_at[r]);

        if (call->recv_counts[r] > 0)
            note(&result, t->nccl->broadcast(r == t->rank ? call->sendbuf : to,
                              to, call->recv_counts[r] * t->bytes,
                              COLL_NCCL_UINT8, r, t->comm, t->stream));
    }
    return result;
}

static nccl_result_t reduce_scatter_v(
    const struct target *t, const struct coll_call *call)
{
    nccl_result_t result = COLL_NCCL_SUCCESS;

    for (int r = 0; r < t->size; r++) {
        const void *from = at(t, call->sendbuf, call->send_at[r]);

        if (call->send_counts[r] > 0)
            note(&result,
                t->nccl->reduce(from, r == t->rank ? call->recvbuf : NULL,
                    call->send_counts[r], t->dtype, t->op, r, t->comm,
                    t->stream));
    }
    return result;
}

static nccl_result_t all_to_all_v(
    const struct target *t, const struct coll_call *call)
{
    nccl_result_t result = COLL_NCCL_SUCCESS;

    for (int r = 0; r < t->size; r++) {
        if (call->send_counts[r] > 0)
            note(&result, send(t, at(t, call->sendbuf, call->send_at[r]),
                              call->send_counts[r], r));
        if (call->recv_counts[r] > 0)
            note(&result, recv(t, at(t, call->recvbuf, call->recv_at[r]),
                              call->recv_counts[r], r));
    }
    return result;
}

static nccl_result_t messages(
    const struct target *t, const struct coll_call *call)
{
    nccl_result_t result = COLL_NCCL_SUCCESS;

    for (size_t i = 0; i < call->nmany; i++) {
        const coll_message_t *m = &call->messages[i];
        struct target of_it = *t;

        of_it.bytes = coll_dtype_size(m->dtype);
        note(&result, m->is_send ? send(&of_it, m->buf, m->count, m->peer)
                                 : recv(&of_it, m->buf, m->count, m->peer));
    }
    return result;
}

/* One of those that NCCL has as they are, from and to any buffer. */
static nccl_result_t plain(const struct target *t, enum coll_kind kind,
    int root, const void *from, void *to, size_t n)
{
    const struct nccl_api *nccl = t->nccl;

    switch (kind) {
    case COLL_KIND_ALL_REDUCE:
    case COLL_KIND_ALL_REDUCE_COALESCED:
        return nccl->all_reduce(
            from, to, n, t->dtype, t->op, t->comm, t->stream);
    case COLL_KIND_REDUCE:
        return nccl->reduce(
            from, to, n, t->dtype, t->op, root, t->comm, t->stream);
    case COLL_KIND_BROADCAST:
        return nccl->broadcast(
            to, to, n * t->bytes, COLL_NCCL_UINT8, root, t->comm, t->stream);
    case COLL_KIND_ALL_GATHER:
    case COLL_KIND_ALL_GATHER_COALESCED:
        return nccl->all_gather(
            from, to, n * t->bytes, COLL_NCCL_UINT8, t->comm, t->stream);
    case COLL_KIND_REDUCE_SCATTER:
    case COLL_KIND_REDUCE_SCATTER_COALESCED:
        return nccl->reduce_scatter(
            from, to, n, t->dtype, t->op, t->comm, t->stream);
    default:
        return COLL_NCCL_INVALID_USAGE;
    }
}

static nccl_result_t many(const struct target *t, const struct coll_call *call)
{
    nccl_result_t result = COLL_NCCL_SUCCESS;

    for (size_t i = 0; i < call->nmany; i++)
        if (call->many_counts[i] > 0)
            note(&result, plain(t, call->kind, 0, call->many_send[i],
                              call->many_recv[i], call->many_counts[i]));
    return result;
}

/* NULL: it is one of the plain ones. */
typedef nccl_result_t several_fn(
    const struct target *t, const struct coll_call *call);

static several_fn *several_of(enum coll_kind kind)
{
    switch (kind) {
    case COLL_KIND_GATHER:
        return gather;
    case COLL_KIND_SCATTER:
        return scatter;
    case COLL_KIND_ALL_TO_ALL:
        return all_to_all;
    case COLL_KIND_ALL_GATHER_V:
        return all_gather_v;
    case COLL_KIND_REDUCE_SCATTER_V:
        return reduce_scatter_v;
    case COLL_KIND_ALL_TO_ALL_V:
        return all_to_all_v;
    case COLL_KIND_ALL_REDUCE_COALESCED:
    case COLL_KIND_ALL_GATHER_COALESCED:
    case COLL_KIND_REDUCE_SCATTER_COALESCED:
        return many;
    case COLL_KIND_SEND:
    case COLL_KIND_RECV:
        return messages;
    default:
        return NULL;
    }
}

nccl_result_t gpu_ops_enqueue(struct gpu *gpu, const struct coll_call *call,
    struct cu_stream *stream, nccl_op_t op)
{
    const struct target t = {
        .gpu = gpu,
        .nccl = gpu->nccl,
        .comm = gpu->comm,
        .stream = stream,
        .rank = gpu->rank,
        .size = gpu->size,
        .dtype = (nccl_dtype_t)types[call->dtype].dtype,
        .op = op,
        .bytes = coll_dtype_size(call->dtype),
    };
    several_fn *several = several_of(call->kind);
    nccl_result_t result;
    nccl_result_t end;

    if (several == NULL)
        return plain(&t, call->kind, call->root, call->sendbuf, call->recvbuf,
            call->count);
    result = gpu->nccl->group_start();
    if (result != COLL_NCCL_SUCCESS)
        return result;
    result = several(&t, call);
    end = gpu->nccl->group_end();
    return result == COLL_NCCL_SUCCESS || result == COLL_NCCL_IN_PROGRESS
               ? end
               : result;
}
