/*
 * all_reduce and reduce in two ways that give the same bits on every rank:
 *
 * one_shot  every rank reduces everything itself. One tick, but each rank
 *           reads the data of all the others.
 * two_shot  every rank reduces its share of a chunk for all and the others
 *           copy the result. One tick more, but each rank reads every byte
 *           only once or twice however many ranks there are.
 *
 * Of a reduce only the root reads, or copies, the result.
 */
#include "shm_internal.h"

#include <string.h>

#include "kernel.h"

/* Where shares of a chunk may begin: cache lines, so that no two ranks write
 * to one. */
#define SHARE_BYTES ((size_t)64)

static bool wants_result(
    const struct shm_state *s, const struct coll_call *call)
{
    return call->kind != COLL_KIND_REDUCE || call->root == s->rank;
}

static coll_status_t reduce_one_shot(
    struct coll_group *g, const struct coll_call *call)
{
    struct shm_state *s = g->state;
    size_t size = coll_dtype_size(call->dtype);
    size_t bytes = call->count * size;
    const void **srcs = s->srcs;
    char *own = shm_place(s, s->rank, s->tick + 1, bytes);
    coll_status_t status;

    if (bytes > 0)
        memcpy(own, call->sendbuf, bytes);
    status = shm_next_tick(g, call, true);
    if (status != COLL_OK || bytes == 0 || !wants_result(s, call))
        return status;
    /* From the slot even for this rank: recvbuf, which may be sendbuf,
     * already holds partial results when a later source is read. */
    for (int r = 0; r < s->size; r++)
        srcs[r] = shm_place(s, r, s->tick, bytes);
    kernel_reduce(
        call->recvbuf, srcs, s->size, call->count, call->dtype, call->op);
    return COLL_OK;
}

/* A chunk of the message, and how the ranks share it. */
struct chunk {
    size_t at; /* bytes from the start of the message */
    size_t bytes; /* 0 beyond the end of the message */
    size_t share; /* bytes of every share but the last ones */
};

static struct chunk chunk_get(
    const struct shm_state *s, const struct coll_call *call, size_t index)
{
    size_t total = call->count * coll_dtype_size(call->dtype);
    struct chunk c = {.at = index * s->chunk_bytes};
    size_t lines;

    if (c.at >= total)
        return c;
    c.bytes = total - c.at < s->chunk_bytes ? total - c.at : s->chunk_bytes;
    lines = (c.bytes + SHARE_BYTES - 1) / SHARE_BYTES;
    c.share = (lines + (size_t)s->size - 1) / (size_t)s->size * SHARE_BYTES;
    return c;
}

static size_t share_begin(const struct chunk *c, int rank)
{
    size_t begin = (size_t)rank * c->share;

    return begin < c->bytes ? begin : c->bytes;
}

/* Gives the others what they reduce of this rank's data. */
static void put_input(struct shm_state *s, const struct coll_call *call,
    const struct chunk *c, uint32_t for_tick)
{
    const char *send = (const char *)call->sendbuf + c->at;
    char *slot = shm_slot(s, s->rank, for_tick);
    size_t begin = share_begin(c, s->rank);
    size_t end = share_begin(c, s->rank + 1);

    memcpy(slot, send, begin);
    memcpy(slot + end, send + end, c->bytes - end);
}

/* Reduces this rank's share of a chunk put for tick input_tick, for readers
 * of the next tick. */
static void put_result(struct shm_state *s, const struct coll_call *call,
    const struct chunk *c, uint32_t input_tick)
{
    size_t begin = share_begin(c, s->rank);
    size_t bytes = share_begin(c, s->rank + 1) - begin;
    char *result = shm_slot(s, s->rank, input_tick + 1) + s->chunk_bytes;
    const void **srcs = s->srcs;

    for (int r = 0; r < s->size; r++)
        srcs[r] = shm_slot(s, r, input_tick) + begin;
    srcs[s->rank] = (const char *)call->sendbuf + c->at + begin;
    kernel_reduce(result, srcs, s->size, bytes / coll_dtype_size(call->dtype),
        call->dtype, call->op);
}

static void get_results(struct shm_state *s, const struct coll_call *call,
    const struct chunk *c, uint32_t result_tick)
{
    char *recv = (char *)call->recvbuf + c->at;

    for (int r = 0; r < s->size; r++) {
        size_t begin = share_begin(c, r);
        size_t bytes = share_begin(c, r + 1) - begin;

        memcpy(
            recv + begin, shm_slot(s, r, result_tick) + s->chunk_bytes, bytes);
    }
}

/* A pipeline with one tick per step: the input of one chunk and the result
 * of the one before are published together. */
static coll_status_t reduce_two_shot(
    struct coll_group *g, const struct coll_call *call)
{
    struct shm_state *s = g->state;
    struct chunk previous = {0};
    struct chunk current = chunk_get(s, call, 0);

    for (size_t i = 1; current.bytes > 0 || previous.bytes > 0; i++) {
        coll_status_t status;

        if (current.bytes > 0)
            put_input(s, call, &current, s->tick + 1);
        if (previous.bytes > 0)
            put_result(s, call, &previous, s->tick);
        status = shm_next_tick(g, call, i == 1);
        if (status != COLL_OK)
            return status;
        if (previous.bytes > 0 && wants_result(s, call))
            get_results(s, call, &previous, s->tick);
        previous = current;
        current = chunk_get(s, call, i);
    }
    return COLL_OK;
}

coll_status_t shm_reduce(struct coll_group *g, const struct coll_call *call,
    enum coll_algorithm algorithm)
{
    if (algorithm == COLL_ALGORITHM_ONE_SHOT)
        return reduce_one_shot(g, call);
    return reduce_two_shot(g, call);
}
