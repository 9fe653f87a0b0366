/*
 * Large operations without slots: the first tick tells where everybody's
 * buffers are, then each rank takes what it needs from where it is, and the
 * last tick tells that everybody has it.
 *
 * What is taken is copied once, or read by the reduction itself where it is
 * mapped. Of a reduction every rank does its share for all, and writes the
 * result to where all want it if that is mapped; else the others take it, with
 * one tick more.
 */
#include "shm_reach.h"

#include <stdlib.h>
#include <string.h>

#include "kernel.h"

/* Shares begin at cache lines, so that no two ranks write to one. */
#define LINE_BYTES ((size_t)64)

/* A reduction goes on in blocks that stay in the caches. */
#define BLOCK_BYTES ((size_t)32 * 1024)

struct direct {
    struct coll_group *g;
    const struct coll_call *call;
    struct shm_state *s;
    struct shm_views views;
    size_t size; /* of an element */
};

/* --- What the call is about ----------------------------------------------- */

/* Bytes that this rank's buffers have. */
struct extents {
    size_t send, recv;
};

static size_t end_of(const size_t *counts, const size_t *at, int n)
{
    size_t end = 0;

    for (int r = 0; r < n; r++)
        if (counts[r] > 0 && at[r] + counts[r] > end)
            end = at[r] + counts[r];
    return end;
}

static struct extents extents_of(
    const struct coll_group *g, const struct coll_call *call)
{
    size_t size = coll_dtype_size(call->dtype);
    size_t n = (size_t)g->size;
    size_t one = call->count * size;
    bool is_root = call->root == g->rank;

    switch (call->kind) {
    case COLL_KIND_ALL_REDUCE:
        return (struct extents){one, one};
    case COLL_KIND_REDUCE:
        return (struct extents){one, is_root ? one : 0};
    case COLL_KIND_BROADCAST:
        return (struct extents){0, is_root ? one : 0};
    case COLL_KIND_ALL_GATHER:
        return (struct extents){one, 0};
    case COLL_KIND_GATHER:
        return (struct extents){one, is_root ? one * n : 0};
    case COLL_KIND_SCATTER:
        return (struct extents){is_root ? one * n : 0, 0};
    case COLL_KIND_REDUCE_SCATTER:
        return (struct extents){one * n, 0};
    case COLL_KIND_ALL_TO_ALL:
        return (struct extents){one * n, one * n};
    case COLL_KIND_ALL_GATHER_V:
        return (struct extents){call->recv_counts[g->rank] * size, 0};
    case COLL_KIND_REDUCE_SCATTER_V:
        return (struct extents){
            end_of(call->send_counts, call->send_at, g->size) * size, 0};
    default:
        return (struct extents){0, 0};
    }
}

/* --- Reductions ----------------------------------------------------------- */

/* Memory for a block of each rank. */
static char *scratch_of(struct shm_state *s)
{
    if (s->scratch == NULL)
        s->scratch = malloc((size_t)s->size * BLOCK_BYTES);
    return s->scratch;
}

/* dst = op over all ranks of what they have at offset (of this rank's part in
 * reduce_scatter_v), no longer than a block. dst may be a source. */
static coll_status_t reduce_block(
    const struct direct *d, void *dst, size_t offset, size_t len)
{
    const void **srcs = d->s->srcs;

    for (int r = 0; r < d->s->size; r++) {
        const struct shm_view *view = &d->views.send[r];

        coll_status_t status =
            shm_reach_get(d->g, d->call, r, view, view->part + offset, len,
                d->s->scratch + (size_t)r * BLOCK_BYTES, &srcs[r]);

        if (status != COLL_OK)
            return status;
    }
    kernel_reduce(
        dst, srcs, d->s->size, len / d->size, d->call->dtype, d->call->op);
    return COLL_OK;
}

static size_t min(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* A rank's share of so many bytes. */
static size_t share_begin(const struct direct *d, size_t bytes, int rank)
{
    size_t n = (size_t)d->s->size;
    size_t lines = (bytes + LINE_BYTES - 1) / LINE_BYTES;

    return min(bytes, (lines + n - 1) / n * LINE_BYTES * (size_t)rank);
}

/* Writes the result of this rank's share to everybody who wants it. */
static coll_status_t reduce_and_push(const struct direct *d)
{
    size_t bytes = d->call->count * d->size;
    size_t end = share_begin(d, bytes, d->s->rank + 1);
    int first = d->call->kind == COLL_KIND_REDUCE ? d->call->root : d->s->rank;
    int receivers = d->call->kind == COLL_KIND_REDUCE ? 1 : d->s->size;

    for (size_t at = share_begin(d, bytes, d->s->rank); at < end;
         at += BLOCK_BYTES) {
        size_t len = min(end - at, BLOCK_BYTES);
        char *out = d->views.recv[first].base + at;
        coll_status_t status;

        status = reduce_block(d, out, at, len);
        if (status != COLL_OK)
            return status;
        for (int i = 0; i < receivers; i++) {
            char *to = d->views.recv[(first + i) % d->s->size].base + at;

            if (to != out)
                memcpy(to, out, len);
        }
    }
    return COLL_OK;
}

/* Reduces this rank's share into its own buffer, from where the others take
 * it. */
static coll_status_t reduce_and_pull(const struct direct *d)
{
    struct shm_state *s = d->s;
    size_t bytes = d->call->count * d->size;
    size_t end = share_begin(d, bytes, s->rank + 1);
    char *recv = d->call->recvbuf;
    coll_status_t status = COLL_OK;

    for (size_t at = share_begin(d, bytes, s->rank);
         at < end && status == COLL_OK; at += BLOCK_BYTES)
        status = reduce_block(d, recv + at, at, min(end - at, BLOCK_BYTES));
    if (status == COLL_OK)
        status = shm_tick(d->g, d->call, d->call->deadline_ns);
    for (int i = 1; i < s->size && status == COLL_OK; i++) {
        int r = (s->rank + i) % s->size;
        size_t at = share_begin(d, bytes, r);

        status = shm_reach_copy(d->g, d->call, r, &d->views.recv[r], at,
            share_begin(d, bytes, r + 1) - at, recv + at);
    }
    return status;
}

static coll_status_t reduce_scatter(const struct direct *d)
{
    const struct coll_call *call = d->call;
    int rank = d->s->rank;
    size_t count =
        call->send_counts == NULL ? call->count : call->send_counts[rank];
    /* Of reduce_scatter_v each rank has said where this one's part is. */
    size_t begin = call->send_at == NULL ? call->count * (size_t)rank : 0;
    size_t bytes = count * d->size;
    coll_status_t status = COLL_OK;

    for (size_t at = 0; at < bytes && status == COLL_OK; at += BLOCK_BYTES)
        status = reduce_block(d, (char *)call->recvbuf + at,
            begin * d->size + at, min(bytes - at, BLOCK_BYTES));
    return status;
}

/* --- Copies --------------------------------------------------------------- */

/* Takes len bytes at offset of a rank's buffer. */
static coll_status_t take(const struct direct *d, int rank,
    const struct shm_view *view, size_t offset, size_t len, void *to)
{
    return shm_reach_copy(d->g, d->call, rank, view, offset, len, to);
}

/* What every rank sends is for this one, or a part of it is. */
static coll_status_t take_from_all(const struct direct *d)
{
    const struct coll_call *call = d->call;
    struct shm_state *s = d->s;
    coll_status_t status = COLL_OK;

    for (int i = 0; i < s->size && status == COLL_OK; i++) {
        int r = (s->rank + i) % s->size;
        size_t count =
            call->recv_counts == NULL ? call->count : call->recv_counts[r];
        size_t at =
            call->recv_at == NULL ? call->count * (size_t)r : call->recv_at[r];
        size_t from = call->kind == COLL_KIND_ALL_TO_ALL
                          ? call->count * (size_t)s->rank
                          : 0;

        status = take(d, r, &d->views.send[r], from * d->size, count * d->size,
            (char *)call->recvbuf + at * d->size);
    }
    return status;
}

static coll_status_t take_from_root(const struct direct *d)
{
    const struct coll_call *call = d->call;
    size_t bytes = call->count * d->size;

    if (call->kind == COLL_KIND_SCATTER)
        return take(d, call->root, &d->views.send[call->root],
            bytes * (size_t)d->s->rank, bytes, call->recvbuf);
    if (call->root == d->s->rank)
        return COLL_OK;
    return take(
        d, call->root, &d->views.recv[call->root], 0, bytes, call->recvbuf);
}

/* gather: each rank writes its part where the root wants it. */
static void give_to_root(const struct direct *d)
{
    const struct coll_call *call = d->call;
    size_t bytes = call->count * d->size;
    char *to = d->views.recv[call->root].base + bytes * (size_t)d->s->rank;

    if (to != call->sendbuf)
        memcpy(to, call->sendbuf, bytes);
}

/* Then nobody may write before all have read. */
static bool some_are_in_place(const struct direct *d)
{
    for (int r = 0; r < d->s->size; r++)
        if (d->views.send[r].address == d->views.recv[r].address)
            return true;
    return false;
}

/* --- Choosing ------------------------------------------------------------- */

/* The buffers that a call reads or writes where they are. */
static bool are_mapped(const struct direct *d)
{
    const struct shm_views *v = &d->views;

    switch (d->call->kind) {
    case COLL_KIND_REDUCE:
    case COLL_KIND_ALL_REDUCE:
        return v->all_send_mapped && v->all_recv_mapped;
    case COLL_KIND_BROADCAST:
        return v->all_recv_mapped;
    case COLL_KIND_GATHER:
        return v->all_send_mapped || v->all_recv_mapped;
    case COLL_KIND_ALL_TO_ALL:
        return v->all_send_mapped && !some_are_in_place(d);
    default:
        return v->all_send_mapped;
    }
}

static bool are_readable(const struct direct *d)
{
    return d->views.may_read &&
           !(d->call->kind == COLL_KIND_ALL_TO_ALL && some_are_in_place(d));
}

/* Between the first tick and the last. */
static coll_status_t run(const struct direct *d, bool is_mapped)
{
    const struct coll_call *call = d->call;

    switch (call->kind) {
    case COLL_KIND_REDUCE:
    case COLL_KIND_ALL_REDUCE:
        return is_mapped ? reduce_and_push(d) : reduce_and_pull(d);
    case COLL_KIND_REDUCE_SCATTER:
    case COLL_KIND_REDUCE_SCATTER_V:
        return reduce_scatter(d);
    case COLL_KIND_BROADCAST:
    case COLL_KIND_SCATTER:
        return take_from_root(d);
    case COLL_KIND_GATHER:
        if (is_mapped && d->views.all_recv_mapped) {
            give_to_root(d);
            return COLL_OK;
        }
        return call->root == d->s->rank ? take_from_all(d) : COLL_OK;
    default:
        return take_from_all(d);
    }
}

static bool is_direct(enum coll_algorithm algorithm)
{
    return algorithm == COLL_ALGORITHM_MAPPED ||
           algorithm == COLL_ALGORITHM_CMA;
}

/* Whether it would be for the kernel if nothing were mapped. */
static bool wants_read(const struct coll_group *g, struct coll_case c)
{
    c.is_reached = true;
    c.are_readable = true;
    return coll_algorithm_pick(g->tuning, COLL_LEVEL_SHM, &c) ==
           COLL_ALGORITHM_CMA;
}

coll_status_t shm_direct(struct coll_group *g, const struct coll_call *call,
    enum coll_algorithm *algorithm)
{
    struct direct d = {.g = g,
        .call = call,
        .s = g->state,
        .size = coll_dtype_size(call->dtype)};
    struct coll_case c = coll_case_of(g, call, g->size);
    struct extents x;
    coll_status_t status;

    c.is_crowded = !d.s->may_spin;
    *algorithm =
        coll_algorithm_choose(g->tuning, COLL_LEVEL_SHM, &c, call->seq);
    if (!is_direct(*algorithm))
        return COLL_OK;
    if (scratch_of(d.s) == NULL)
        return coll_fail(COLL_ERR_MEMORY, "out of memory for an operation");
    x = extents_of(g, call);
    status =
        shm_reach_begin(g, call, x.send, x.recv, wants_read(g, c), &d.views);
    if (status != COLL_OK)
        return status;
    d.s->has_begun = true;
    c.is_reached = true;
    c.are_mapped = are_mapped(&d);
    c.are_readable = are_readable(&d);
    *algorithm =
        coll_algorithm_choose(g->tuning, COLL_LEVEL_SHM, &c, call->seq);
    if (!is_direct(*algorithm))
        return COLL_OK;
    status = run(&d, *algorithm == COLL_ALGORITHM_MAPPED);
    return status == COLL_OK ? shm_tick(g, call, call->deadline_ns) : status;
}
