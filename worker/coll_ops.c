/*
 * The public operations: each checks its arguments, says what it is in a
 * struct coll_call, and takes a turn in its group's line. With work == NULL
 * it waits for the result.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "coll_factor.h"
#include "coll_work.h"
#include "gpu.h"
#include "kernel.h"

/* --- Checks --------------------------------------------------------------- */

/* What a call is checked against; name is that of the public function. */
struct check {
    struct coll_group *g;
    const char *name;
};

static coll_status_t begin(struct check *c, const coll_group_t *group,
    const char *name, const struct coll_call *call)
{
    coll_status_t status = COLL_OK;

    c->name = name;
    c->g = coll_group_get(group, name, &status);
    if (status == COLL_OK && coll_dtype_size(call->dtype) == 0)
        status = coll_fail(COLL_ERR_ARGUMENT, "%s: unknown data type %d", name,
            (int)call->dtype);
    return status;
}

/* parts * count elements fit the address space. */
static coll_status_t check_count(
    const struct check *c, size_t count, size_t parts, coll_dtype_t dtype)
{
    if (count <= (size_t)PTRDIFF_MAX / coll_dtype_size(dtype) / parts)
        return COLL_OK;
    return coll_fail(COLL_ERR_ARGUMENT,
        "%s: %zu elements of %s%s are more than the address space", c->name,
        count, coll_dtype_name(dtype), parts > 1 ? " per rank" : "");
}

static coll_status_t check_root(const struct check *c, int root)
{
    if (root >= 0 && root < c->g->size)
        return COLL_OK;
    return coll_fail(COLL_ERR_ARGUMENT,
        "%s: root %d is not a rank of a group of %d", c->name, root,
        c->g->size);
}

static coll_status_t check_buffer(
    const struct check *c, const char *what, const void *buf, size_t count)
{
    if (count == 0 || buf != NULL)
        return COLL_OK;
    return coll_fail(COLL_ERR_ARGUMENT, "%s: %s is NULL, count is %zu", c->name,
        what, count);
}

static bool overlap(const void *a, size_t a_len, const void *b, size_t b_len)
{
    uintptr_t x = (uintptr_t)a;
    uintptr_t y = (uintptr_t)b;

    if (a_len == 0 || b_len == 0)
        return false;
    return x < y ? y - x < a_len : x - y < b_len;
}

/* is_in_place: the smaller one lies where this rank's part is in the other. */
static coll_status_t check_overlap(const struct check *c, const void *send,
    size_t send_len, const void *recv, size_t recv_len, bool is_in_place)
{
    if (is_in_place || !overlap(send, send_len, recv, recv_len))
        return COLL_OK;
    return coll_fail(COLL_ERR_ARGUMENT,
        "%s: sendbuf and recvbuf overlap without being in place", c->name);
}

/* Resolves a reduction of the program's, too. */
static coll_status_t check_op(const struct check *c, struct coll_call *call)
{
    if (coll_factor_get(call->op, &call->factor)) {
        call->has_factor = true;
        call->op = COLL_SUM;
        if (call->dtype != COLL_BOOL)
            return COLL_OK;
        return coll_fail(COLL_ERR_ARGUMENT,
            "%s: a bool cannot be multiplied with a factor", c->name);
    }
    if (strcmp(coll_op_name(call->op), "?") == 0)
        return coll_fail(COLL_ERR_ARGUMENT, "%s: unknown reduction %d", c->name,
            (int)call->op);
    if (!kernel_supports(call->dtype, call->op))
        return coll_fail(COLL_ERR_ARGUMENT, "%s: there is no %s of %s", c->name,
            coll_op_name(call->op), coll_dtype_name(call->dtype));
    return COLL_OK;
}

static size_t bytes_of(const struct coll_call *call, size_t count)
{
    return count * coll_dtype_size(call->dtype);
}

/* Where rank's part of an array of parts of call->count begins. */
static const char *part_of(
    const struct coll_call *call, const void *buf, int rank)
{
    return (const char *)buf + bytes_of(call, call->count * (size_t)rank);
}

static coll_status_t submit(
    struct check *c, struct coll_call *call, coll_work_t **work)
{
    coll_status_t status;

    call->is_async = work != NULL;
    status = gpu_check(c->g, c->name, call);
    if (status == COLL_OK && work != NULL && !call->on_gpu)
        return coll_work_start(work, c->g, call);
    if (status == COLL_OK)
        status = work != NULL ? coll_work_launch(work, c->g, call)
                              : coll_group_run(c->g, call);
    free(call->owned);
    return status;
}

/* Of a call that does not wait. */
static coll_status_t check_work(const char *name, coll_work_t **work)
{
    if (work != NULL)
        return COLL_OK;
    return coll_fail(COLL_ERR_ARGUMENT, "%s_async: work is NULL", name);
}

/* --- One part or one per rank --------------------------------------------- */

static coll_status_t all_reduce(const void *sendbuf, void *recvbuf,
    size_t count, coll_dtype_t dtype, coll_op_t op, coll_group_t *group,
    coll_work_t **work)
{
    struct coll_call call = {
        .kind = COLL_KIND_ALL_REDUCE,
        .dtype = dtype,
        .op = op,
        .count = count,
        .sendbuf = sendbuf,
        .recvbuf = recvbuf,
    };
    struct check c;
    coll_status_t status = begin(&c, group, "coll_all_reduce", &call);

    if (status == COLL_OK)
        status = check_count(&c, count, 1, dtype);
    if (status == COLL_OK)
        status = check_op(&c, &call);
    if (status == COLL_OK)
        status = check_buffer(&c, "sendbuf", sendbuf, count);
    if (status == COLL_OK)
        status = check_buffer(&c, "recvbuf", recvbuf, count);
    if (status == COLL_OK)
        status = check_overlap(&c, sendbuf, bytes_of(&call, count), recvbuf,
            bytes_of(&call, count), sendbuf == recvbuf);
    return status == COLL_OK ? submit(&c, &call, work) : status;
}

static coll_status_t reduce(const void *sendbuf, void *recvbuf, size_t count,
    coll_dtype_t dtype, coll_op_t op, int root, coll_group_t *group,
    coll_work_t **work)
{
    struct coll_call call = {
        .kind = COLL_KIND_REDUCE,
        .dtype = dtype,
        .op = op,
        .root = root,
        .count = count,
        .sendbuf = sendbuf,
    };
    struct check c;
    coll_status_t status = begin(&c, group, "coll_reduce", &call);

    if (status == COLL_OK)
        status = check_count(&c, count, 1, dtype);
    if (status == COLL_OK)
        status = check_op(&c, &call);
    if (status == COLL_OK)
        status = check_root(&c, root);
    if (status == COLL_OK)
        status = check_buffer(&c, "sendbuf", sendbuf, count);
    if (status == COLL_OK && root == c.g->rank) {
        call.recvbuf = recvbuf;
        status = check_buffer(&c, "recvbuf", recvbuf, count);
        if (status == COLL_OK)
            status = check_overlap(&c, sendbuf, bytes_of(&call, count), recvbuf,
                bytes_of(&call, count), sendbuf == recvbuf);
    }
    return status == COLL_OK ? submit(&c, &call, work) : status;
}

static coll_status_t broadcast(void *buf, size_t count, coll_dtype_t dtype,
    int root, coll_group_t *group, coll_work_t **work)
{
    struct coll_call call = {
        .kind = COLL_KIND_BROADCAST,
        .dtype = dtype,
        .root = root,
        .count = count,
        .recvbuf = buf,
    };
    struct check c;
    coll_status_t status = begin(&c, group, "coll_broadcast", &call);

    if (status == COLL_OK)
        status = check_count(&c, count, 1, dtype);
    if (status == COLL_OK)
        status = check_root(&c, root);
    if (status == COLL_OK)
        status = check_buffer(&c, "buf", buf, count);
    return status == COLL_OK ? submit(&c, &call, work) : status;
}

/* all_gather, where every rank is a receiver, and gather. */
static coll_status_t check_gather(
    const struct check *c, struct coll_call *call, bool is_receiver)
{
    size_t n = (size_t)c->g->size;
    coll_status_t status = check_count(c, call->count, n, call->dtype);

    if (status == COLL_OK)
        status = check_buffer(c, "sendbuf", call->sendbuf, call->count);
    if (!is_receiver) {
        call->recvbuf = NULL;
        return status;
    }
    if (status == COLL_OK)
        status = check_buffer(c, "recvbuf", call->recvbuf, call->count);
    if (status == COLL_OK)
        status = check_overlap(c, call->sendbuf, bytes_of(call, call->count),
            call->recvbuf, bytes_of(call, n * call->count),
            call->sendbuf == part_of(call, call->recvbuf, c->g->rank));
    return status;
}

static coll_status_t all_gather(const void *sendbuf, void *recvbuf,
    size_t count, coll_dtype_t dtype, coll_group_t *group, coll_work_t **work)
{
    struct coll_call call = {
        .kind = COLL_KIND_ALL_GATHER,
        .dtype = dtype,
        .count = count,
        .sendbuf = sendbuf,
        .recvbuf = recvbuf,
    };
    struct check c;
    coll_status_t status = begin(&c, group, "coll_all_gather", &call);

    if (status == COLL_OK)
        status = check_gather(&c, &call, true);
    return status == COLL_OK ? submit(&c, &call, work) : status;
}

static coll_status_t gather(const void *sendbuf, void *recvbuf, size_t count,
    coll_dtype_t dtype, int root, coll_group_t *group, coll_work_t **work)
{
    struct coll_call call = {
        .kind = COLL_KIND_GATHER,
        .dtype = dtype,
        .root = root,
        .count = count,
        .sendbuf = sendbuf,
        .recvbuf = recvbuf,
    };
    struct check c;
    coll_status_t status = begin(&c, group, "coll_gather", &call);

    if (status == COLL_OK)
        status = check_root(&c, root);
    if (status == COLL_OK)
        status = check_gather(&c, &call, root == c.g->rank);
    return status == COLL_OK ? submit(&c, &call, work) : status;
}

/* scatter, and reduce_scatter, where every rank is a sender. */
static coll_status_t check_scatter(
    const struct check *c, struct coll_call *call, bool is_sender)
{
    size_t n = (size_t)c->g->size;
    coll_status_t status = check_count(c, call->count, n, call->dtype);

    if (status == COLL_OK)
        status = check_buffer(c, "recvbuf", call->recvbuf, call->count);
    if (!is_sender) {
        call->sendbuf = NULL;
        return status;
    }
    if (status == COLL_OK)
        status = check_buffer(c, "sendbuf", call->sendbuf, call->count);
    if (status == COLL_OK)
        status =
            check_overlap(c, call->sendbuf, bytes_of(call, n * call->count),
                call->recvbuf, bytes_of(call, call->count),
                call->recvbuf == part_of(call, call->sendbuf, c->g->rank));
    return status;
}

static coll_status_t scatter(const void *sendbuf, void *recvbuf, size_t count,
    coll_dtype_t dtype, int root, coll_group_t *group, coll_work_t **work)
{
    struct coll_call call = {
        .kind = COLL_KIND_SCATTER,
        .dtype = dtype,
        .root = root,
        .count = count,
        .sendbuf = sendbuf,
        .recvbuf = recvbuf,
    };
    struct check c;
    coll_status_t status = begin(&c, group, "coll_scatter", &call);

    if (status == COLL_OK)
        status = check_root(&c, root);
    if (status == COLL_OK)
        status = check_scatter(&c, &call, root == c.g->rank);
    return status == COLL_OK ? submit(&c, &call, work) : status;
}

static coll_status_t reduce_scatter(const void *sendbuf, void *recvbuf,
    size_t count, coll_dtype_t dtype, coll_op_t op, coll_group_t *group,
    coll_work_t **work)
{
    struct coll_call call = {
        .kind = COLL_KIND_REDUCE_SCATTER,
        .dtype = dtype,
        .op = op,
        .count = count,
        .sendbuf = sendbuf,
        .recvbuf = recvbuf,
    };
    struct check c;
    coll_status_t status = begin(&c, group, "coll_reduce_scatter", &call);

    if (status == COLL_OK)
        status = check_op(&c, &call);
    if (status == COLL_OK)
        status = check_scatter(&c, &call, true);
    return status == COLL_OK ? submit(&c, &call, work) : status;
}

static coll_status_t all_to_all(const void *sendbuf, void *recvbuf,
    size_t count, coll_dtype_t dtype, coll_group_t *group, coll_work_t **work)
{
    struct coll_call call = {
        .kind = COLL_KIND_ALL_TO_ALL,
        .dtype = dtype,
        .count = count,
        .sendbuf = sendbuf,
        .recvbuf = recvbuf,
    };
    struct check c;
    coll_status_t status = begin(&c, group, "coll_all_to_all", &call);
    size_t bytes;

    if (status == COLL_OK)
        status = check_count(&c, count, (size_t)c.g->size, dtype);
    if (status == COLL_OK)
        status = check_buffer(&c, "sendbuf", sendbuf, count);
    if (status == COLL_OK)
        status = check_buffer(&c, "recvbuf", recvbuf, count);
    if (status == COLL_OK) {
        bytes = bytes_of(&call, count * (size_t)c.g->size);
        status = check_overlap(
            &c, sendbuf, bytes, recvbuf, bytes, sendbuf == recvbuf);
    }
    return status == COLL_OK ? submit(&c, &call, work) : status;
}

static coll_status_t barrier(
    int64_t timeout_ms, coll_group_t *group, coll_work_t **work)
{
    struct coll_call call = {
        .kind = COLL_KIND_BARRIER, .timeout_ms = timeout_ms};
    struct check c;
    coll_status_t status = begin(&c, group, "coll_barrier", &call);

    return status == COLL_OK ? submit(&c, &call, work) : status;
}

/* --- Parts of different length -------------------------------------------- */

static uint32_t hash_counts(const size_t *counts, int n)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a, a count at a time */

    for (int r = 0; r < n; r++)
        h = (h ^ counts[r]) * 0x100000001b3u;
    return (uint32_t)(h ^ h >> 32) | 1; /* 0 is for calls without */
}

/* What is known of an array of parts. */
struct parts {
    size_t sum;
    size_t end; /* in elements, of the last one in the buffer */
};

/* Reads counts and offsets. *at, which may be NULL, becomes an array that is
 * not, in memory at packed[n] where it has to be made. */
static coll_status_t check_parts(const struct check *c, const char *what,
    const size_t *counts, const size_t **at, size_t *packed, coll_dtype_t dtype,
    struct parts *out)
{
    size_t most = (size_t)PTRDIFF_MAX / coll_dtype_size(dtype);

    *out = (struct parts){0};
    if (counts == NULL)
        return coll_fail(
            COLL_ERR_ARGUMENT, "%s: %s_counts is NULL", c->name, what);
    for (int r = 0; r < c->g->size; r++) {
        size_t begin = *at == NULL ? out->sum : (*at)[r];

        if (counts[r] > most || begin > most - counts[r] ||
            out->sum > most - counts[r])
            return coll_fail(COLL_ERR_ARGUMENT,
                "%s: %s part of rank %d, %zu elements of %s at %zu, is beyond "
                "the address space",
                c->name, what, r, counts[r], coll_dtype_name(dtype), begin);
        packed[r] = begin;
        out->sum += counts[r];
        if (counts[r] > 0 && begin + counts[r] > out->end)
            out->end = begin + counts[r];
    }
    *at = packed;
    return COLL_OK;
}

/* Parts that are written: any two of them apart. Packed ones are. */
static coll_status_t check_apart(const struct check *c, const char *buffer,
    const size_t *counts, const size_t *at, const size_t *given)
{
    if (given == NULL)
        return COLL_OK;
    for (int a = 0; a < c->g->size; a++)
        for (int b = 0; b < a; b++)
            if (counts[a] > 0 && counts[b] > 0 && at[a] < at[b] + counts[b] &&
                at[b] < at[a] + counts[a])
                return coll_fail(COLL_ERR_ARGUMENT,
                    "%s: the parts of ranks %d and %d in %s overlap", c->name,
                    b, a, buffer);
    return COLL_OK;
}

static coll_status_t take_memory(
    const struct check *c, struct coll_call *call, int arrays)
{
    call->owned = calloc((size_t)c->g->size * (size_t)arrays, sizeof(size_t));
    return call->owned != NULL
               ? COLL_OK
               : coll_fail(COLL_ERR_MEMORY, "%s: out of memory", c->name);
}

static coll_status_t submit_or_free(struct check *c, struct coll_call *call,
    coll_work_t **work, coll_status_t status)
{
    if (status == COLL_OK)
        return submit(c, call, work);
    free(call->owned);
    return status;
}

static coll_status_t all_gather_v(const void *sendbuf, size_t send_count,
    void *recvbuf, const size_t *recv_counts, const size_t *recv_at,
    coll_dtype_t dtype, coll_group_t *group, coll_work_t **work)
{
    struct coll_call call = {
        .kind = COLL_KIND_ALL_GATHER_V,
        .dtype = dtype,
        .sendbuf = sendbuf,
        .recvbuf = recvbuf,
        .recv_counts = recv_counts,
        .recv_at = recv_at,
    };
    struct check c;
    struct parts parts;
    coll_status_t status = begin(&c, group, "coll_all_gather_v", &call);
    const char *own;

    if (status == COLL_OK)
        status = take_memory(&c, &call, 1);
    if (status == COLL_OK)
        status = check_parts(
            &c, "recv", recv_counts, &call.recv_at, call.owned, dtype, &parts);
    if (status == COLL_OK && send_count != recv_counts[c.g->rank])
        status = coll_fail(COLL_ERR_ARGUMENT,
            "%s: send_count is %zu, recv_counts of this rank %d is %zu", c.name,
            send_count, c.g->rank, recv_counts[c.g->rank]);
    if (status == COLL_OK)
        status = check_buffer(&c, "sendbuf", sendbuf, send_count);
    if (status == COLL_OK)
        status = check_buffer(&c, "recvbuf", recvbuf, parts.sum);
    if (status == COLL_OK)
        status = check_apart(&c, "recvbuf", recv_counts, call.recv_at, recv_at);
    if (status == COLL_OK) {
        own = (const char *)recvbuf + bytes_of(&call, call.recv_at[c.g->rank]);
        call.count = parts.sum;
        call.extra = hash_counts(recv_counts, c.g->size);
        status = check_overlap(&c, sendbuf, bytes_of(&call, send_count),
            recvbuf, bytes_of(&call, parts.end), sendbuf == own);
    }
    return submit_or_free(&c, &call, work, status);
}

static coll_status_t reduce_scatter_v(const void *sendbuf,
    const size_t *send_counts, const size_t *send_at, void *recvbuf,
    coll_dtype_t dtype, coll_op_t op, coll_group_t *group, coll_work_t **work)
{
    struct coll_call call = {
        .kind = COLL_KIND_REDUCE_SCATTER_V,
        .dtype = dtype,
        .op = op,
        .sendbuf = sendbuf,
        .recvbuf = recvbuf,
        .send_counts = send_counts,
        .send_at = send_at,
    };
    struct check c;
    struct parts parts;
    coll_status_t status = begin(&c, group, "coll_reduce_scatter_v", &call);
    const char *own;
    size_t own_count;

    if (status == COLL_OK)
        status = check_op(&c, &call);
    if (status == COLL_OK)
        status = take_memory(&c, &call, 1);
    if (status == COLL_OK)
        status = check_parts(
            &c, "send", send_counts, &call.send_at, call.owned, dtype, &parts);
    if (status == COLL_OK)
        status = check_buffer(&c, "sendbuf", sendbuf, parts.sum);
    if (status == COLL_OK)
        status = check_buffer(&c, "recvbuf", recvbuf, send_counts[c.g->rank]);
    if (status == COLL_OK) {
        own = (const char *)sendbuf + bytes_of(&call, call.send_at[c.g->rank]);
        own_count = send_counts[c.g->rank];
        call.count = parts.sum;
        call.extra = hash_counts(send_counts, c.g->size);
        status = check_overlap(&c, sendbuf, bytes_of(&call, parts.end), recvbuf,
            bytes_of(&call, own_count), recvbuf == own);
        /* In place the result would be written where others still read. All
         * parts, so that all ranks find the same. */
        if (status == COLL_OK && recvbuf == own)
            status =
                check_apart(&c, "sendbuf", send_counts, call.send_at, send_at);
    }
    return submit_or_free(&c, &call, work, status);
}

static coll_status_t all_to_all_v(const void *sendbuf,
    const size_t *send_counts, const size_t *send_at, void *recvbuf,
    const size_t *recv_counts, const size_t *recv_at, coll_dtype_t dtype,
    coll_group_t *group, coll_work_t **work)
{
    struct coll_call call = {
        .kind = COLL_KIND_ALL_TO_ALL_V,
        .dtype = dtype,
        .sendbuf = sendbuf,
        .recvbuf = recvbuf,
        .send_counts = send_counts,
        .send_at = send_at,
        .recv_counts = recv_counts,
        .recv_at = recv_at,
    };
    struct check c;
    struct parts send;
    struct parts recv;
    coll_status_t status = begin(&c, group, "coll_all_to_all_v", &call);
    int rank;

    if (status == COLL_OK)
        status = take_memory(&c, &call, 2);
    if (status == COLL_OK)
        status = check_parts(
            &c, "send", send_counts, &call.send_at, call.owned, dtype, &send);
    if (status == COLL_OK)
        status = check_parts(&c, "recv", recv_counts, &call.recv_at,
            (size_t *)call.owned + c.g->size, dtype, &recv);
    if (status == COLL_OK) {
        rank = c.g->rank;
        call.count = send.sum;
        if (send_counts[rank] != recv_counts[rank])
            status = coll_fail(COLL_ERR_ARGUMENT,
                "%s: this rank %d sends itself %zu elements and expects %zu",
                c.name, rank, send_counts[rank], recv_counts[rank]);
    }
    if (status == COLL_OK)
        status = check_buffer(&c, "sendbuf", sendbuf, send.sum);
    if (status == COLL_OK)
        status = check_buffer(&c, "recvbuf", recvbuf, recv.sum);
    if (status == COLL_OK)
        status = check_apart(&c, "recvbuf", recv_counts, call.recv_at, recv_at);
    if (status == COLL_OK)
        status = check_overlap(&c, sendbuf, bytes_of(&call, send.end), recvbuf,
            bytes_of(&call, recv.end), false);
    return submit_or_free(&c, &call, work, status);
}

/* --- Many buffers --------------------------------------------------------- */

/* What the buffers of one call of the kind look like: all of count, or on one
 * side a part for each rank. */
static coll_status_t check_many(const struct check *c,
    const struct coll_call *call, size_t send_parts, size_t recv_parts)
{
    coll_status_t status = COLL_OK;

    if (call->nmany > 0 &&
        (call->many_send == NULL || call->many_recv == NULL ||
            call->many_counts == NULL))
        return coll_fail(COLL_ERR_ARGUMENT, "%s: a list is NULL, n is %zu",
            c->name, call->nmany);
    for (size_t i = 0; status == COLL_OK && i < call->nmany; i++) {
        size_t count = call->many_counts[i];
        const void *send = call->many_send[i];
        const void *recv = call->many_recv[i];
        size_t n = send_parts > recv_parts ? send_parts : recv_parts;
        size_t own;
        bool is_in_place;

        status = check_count(c, count, n, call->dtype);
        if (status == COLL_OK)
            status = check_buffer(c, "a send buffer", send, count);
        if (status == COLL_OK)
            status = check_buffer(c, "a receive buffer", recv, count);
        if (status != COLL_OK)
            break;
        own = bytes_of(call, count * (size_t)c->g->rank);
        is_in_place = send_parts == recv_parts ? send == recv
                      : send_parts > 1 ? recv == (const char *)send + own
                                       : send == (const char *)recv + own;
        status = check_overlap(c, send, bytes_of(call, send_parts * count),
            recv, bytes_of(call, recv_parts * count), is_in_place);
    }
    return status;
}

static coll_status_t coalesced(enum coll_kind kind, const char *name,
    const void *const *sendbufs, void *const *recvbufs, const size_t *counts,
    size_t n, coll_dtype_t dtype, coll_op_t op, coll_group_t *group,
    coll_work_t **work)
{
    struct coll_call call = {
        .kind = kind,
        .dtype = dtype,
        .op = op,
        .many_send = sendbufs,
        .many_recv = recvbufs,
        .many_counts = counts,
        .nmany = n,
    };
    struct check c;
    coll_status_t status = begin(&c, group, name, &call);
    size_t size;

    if (status == COLL_OK && kind != COLL_KIND_ALL_GATHER_COALESCED)
        status = check_op(&c, &call);
    if (status != COLL_OK)
        return status;
    size = (size_t)c.g->size;
    status = check_many(&c, &call,
        kind == COLL_KIND_REDUCE_SCATTER_COALESCED ? size : 1,
        kind == COLL_KIND_ALL_GATHER_COALESCED ? size : 1);
    if (status != COLL_OK)
        return status;
    call.extra = 1;
    for (size_t i = 0; i < n; i++) {
        call.count += counts[i];
        call.extra = call.extra * 31 + hash_counts(&counts[i], 1);
    }
    return submit(&c, &call, work);
}

/* --- The public functions ------------------------------------------------- */

#define UNPACK(...) __VA_ARGS__

/* Both forms of an operation. */
#define DEFINE_FORMS(name, parameters, arguments)                              \
    coll_status_t coll_##name(UNPACK parameters)                               \
    {                                                                          \
        return name(UNPACK arguments, NULL);                                   \
    }                                                                          \
                                                                               \
    coll_status_t coll_##name##_async(UNPACK parameters, coll_work_t **work)   \
    {                                                                          \
        coll_status_t status = check_work("coll_" #name, work);                \
                                                                               \
        return status == COLL_OK ? name(UNPACK arguments, work) : status;      \
    }

DEFINE_FORMS(all_reduce,
    (const void *sendbuf, void *recvbuf, size_t count, coll_dtype_t dtype,
        coll_op_t op, coll_group_t *group),
    (sendbuf, recvbuf, count, dtype, op, group))

DEFINE_FORMS(reduce,
    (const void *sendbuf, void *recvbuf, size_t count, coll_dtype_t dtype,
        coll_op_t op, int root, coll_group_t *group),
    (sendbuf, recvbuf, count, dtype, op, root, group))

DEFINE_FORMS(broadcast,
    (void *buf, size_t count, coll_dtype_t dtype, int root,
        coll_group_t *group),
    (buf, count, dtype, root, group))

DEFINE_FORMS(all_gather,
    (const void *sendbuf, void *recvbuf, size_t count, coll_dtype_t dtype,
        coll_group_t *group),
    (sendbuf, recvbuf, count, dtype, group))

DEFINE_FORMS(gather,
    (const void *sendbuf, void *recvbuf, size_t count, coll_dtype_t dtype,
        int root, coll_group_t *group),
    (sendbuf, recvbuf, count, dtype, root, group))

DEFINE_FORMS(scatter,
    (const void *sendbuf, void *recvbuf, size_t count, coll_dtype_t dtype,
        int root, coll_group_t *group),
    (sendbuf, recvbuf, count, dtype, root, group))

DEFINE_FORMS(reduce_scatter,
    (const void *sendbuf, void *recvbuf, size_t count, coll_dtype_t dtype,
        coll_op_t op, coll_group_t *group),
    (sendbuf, recvbuf, count, dtype, op, group))

DEFINE_FORMS(all_to_all,
    (const void *sendbuf, void *recvbuf, size_t count, coll_dtype_t dtype,
        coll_group_t *group),
    (sendbuf, recvbuf, count, dtype, group))

DEFINE_FORMS(all_gather_v,
    (const void *sendbuf, size_t send_count, void *recvbuf,
        const size_t *recv_counts, const size_t *recv_at, coll_dtype_t dtype,
        coll_group_t *group),
    (sendbuf, send_count, recvbuf, recv_counts, recv_at, dtype, group))

DEFINE_FORMS(reduce_scatter_v,
    (const void *sendbuf, const size_t *send_counts, const size_t *send_at,
        void *recvbuf, coll_dtype_t dtype, coll_op_t op, coll_group_t *group),
    (sendbuf, send_counts, send_at, recvbuf, dtype, op, group))

DEFINE_FORMS(all_to_all_v,
    (const void *sendbuf, const size_t *send_counts, const size_t *send_at,
        void *recvbuf, const size_t *recv_counts, const size_t *recv_at,
        coll_dtype_t dtype, coll_group_t *group),
    (sendbuf, send_counts, send_at, recvbuf, recv_counts, recv_at, dtype,
        group))

/* The lists of many buffers, and what of a kind there are. */
#define MANY                                                                   \
    const void *const *sendbufs, void *const *recvbufs, const size_t *counts,  \
        size_t n, coll_dtype_t dtype

static coll_status_t all_reduce_coalesced(
    MANY, coll_op_t op, coll_group_t *group, coll_work_t **work)
{
    return coalesced(COLL_KIND_ALL_REDUCE_COALESCED,
        "coll_all_reduce_coalesced", sendbufs, recvbufs, counts, n, dtype, op,
        group, work);
}

static coll_status_t all_gather_coalesced(
    MANY, coll_group_t *group, coll_work_t **work)
{
    return coalesced(COLL_KIND_ALL_GATHER_COALESCED,
        "coll_all_gather_coalesced", sendbufs, recvbufs, counts, n, dtype,
        COLL_SUM, group, work);
}

static coll_status_t reduce_scatter_coalesced(
    MANY, coll_op_t op, coll_group_t *group, coll_work_t **work)
{
    return coalesced(COLL_KIND_REDUCE_SCATTER_COALESCED,
        "coll_reduce_scatter_coalesced", sendbufs, recvbufs, counts, n, dtype,
        op, group, work);
}

DEFINE_FORMS(all_reduce_coalesced, (MANY, coll_op_t op, coll_group_t *group),
    (sendbufs, recvbufs, counts, n, dtype, op, group))

DEFINE_FORMS(all_gather_coalesced, (MANY, coll_group_t *group),
    (sendbufs, recvbufs, counts, n, dtype, group))

DEFINE_FORMS(reduce_scatter_coalesced,
    (MANY, coll_op_t op, coll_group_t *group),
    (sendbufs, recvbufs, counts, n, dtype, op, group))

coll_status_t coll_barrier(coll_group_t *group)
{
    return barrier(0, group, NULL);
}

coll_status_t coll_barrier_async(coll_group_t *group, coll_work_t **work)
{
    coll_status_t status = check_work("coll_barrier", work);

    return status == COLL_OK ? barrier(0, group, work) : status;
}

coll_status_t coll_monitored_barrier(int64_t timeout_ms, coll_group_t *group)
{
    if (timeout_ms <= 0)
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_monitored_barrier: timeout_ms is %lld, it must be greater "
            "than 0",
            (long long)timeout_ms);
    return barrier(timeout_ms, group, NULL);
}
