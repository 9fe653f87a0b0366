/*
 * scatter, reduce_scatter, all_to_all and their forms with parts of different
 * length: a slot is shared out, one lane for each receiver. Every tick all
 * ranks fill the lanes of their slot, then each reads its own lane of all
 * slots. What a rank has for itself goes through none.
 */
#include "shm_internal.h"

#include <string.h>

#include "kernel.h"

/* Lanes hold whole elements of every type. */
#define LANE_UNIT ((size_t)8)

_Static_assert(SHM_MAX_RANKS *LANE_UNIT <= SHM_CHUNK_MIN_BYTES,
    "each rank has a lane in the smallest chunk");

/* A call as it goes through the lanes. */
struct lanes {
    struct shm_state *s;
    const struct coll_call *call;
    size_t size; /* of an element */
    size_t bytes; /* of a lane */
    size_t longest; /* bytes of the longest part of any rank */
};

static struct lanes lanes_of(struct shm_state *s, const struct coll_call *call)
{
    return (struct lanes){
        .s = s,
        .call = call,
        .size = coll_dtype_size(call->dtype),
        .bytes = s->chunk_bytes / (size_t)s->size / LANE_UNIT * LANE_UNIT,
    };
}

static size_t min(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Bytes that go to a rank, and come from one. */
static size_t send_len(const struct lanes *l, int to)
{
    const struct coll_call *call = l->call;

    if (call->kind == COLL_KIND_SCATTER && call->root != l->s->rank)
        return 0;
    return l->size *
           (call->send_counts == NULL ? call->count : call->send_counts[to]);
}

static size_t recv_len(const struct lanes *l, int from)
{
    const struct coll_call *call = l->call;

    if (call->recv_counts != NULL)
        return l->size * call->recv_counts[from];
    if (call->send_counts != NULL) /* reduce_scatter_v */
        return l->size * call->send_counts[l->s->rank];
    if (call->kind == COLL_KIND_SCATTER && call->root != from)
        return 0;
    return l->size * call->count;
}

static const char *send_at(const struct lanes *l, int to)
{
    const struct coll_call *call = l->call;
    size_t at =
        call->send_at == NULL ? call->count * (size_t)to : call->send_at[to];

    return (const char *)call->sendbuf + at * l->size;
}

static char *recv_at(const struct lanes *l, int from)
{
    const struct coll_call *call = l->call;
    size_t at = 0;

    if (call->recv_at != NULL)
        at = call->recv_at[from];
    else if (call->kind == COLL_KIND_ALL_TO_ALL)
        at = call->count * (size_t)from;
    return (char *)call->recvbuf + at * l->size;
}

static char *lane(const struct lanes *l, int from, int to, uint32_t tick)
{
    return shm_place(l->s, from, tick, (size_t)l->s->size * l->bytes) +
           (size_t)to * l->bytes;
}

/* Fills the lanes of the next tick with what is at that many bytes of each
 * part. */
static void fill(const struct lanes *l, size_t at)
{
    for (int i = 1; i < l->s->size; i++) {
        int to = (l->s->rank + i) % l->s->size;
        size_t len = send_len(l, to);

        if (at < len)
            memcpy(lane(l, l->s->rank, to, l->s->tick + 1), send_at(l, to) + at,
                min(len - at, l->bytes));
    }
}

static void take(const struct lanes *l, size_t at)
{
    int rank = l->s->rank;
    size_t own = recv_len(l, rank);

    if (at < own && recv_at(l, rank) != send_at(l, rank))
        memcpy(recv_at(l, rank) + at, send_at(l, rank) + at,
            min(own - at, l->bytes));
    for (int i = 1; i < l->s->size; i++) {
        int from = (rank + i) % l->s->size;
        size_t len = recv_len(l, from);

        if (at < len)
            memcpy(recv_at(l, from) + at, lane(l, from, rank, l->s->tick),
                min(len - at, l->bytes));
    }
}

static void reduce(const struct lanes *l, size_t at)
{
    const void **srcs = l->s->srcs;
    size_t len = recv_len(l, l->s->rank);

    if (at >= len)
        return;
    for (int r = 0; r < l->s->size; r++)
        srcs[r] = lane(l, r, l->s->rank, l->s->tick);
    srcs[l->s->rank] = send_at(l, l->s->rank) + at;
    kernel_reduce((char *)l->call->recvbuf + at, srcs, l->s->size,
        min(len - at, l->bytes) / l->size, l->call->dtype, l->call->op);
}

/* is_first: the operation's first tick is still to come. */
static coll_status_t run(struct coll_group *g, struct lanes *l, bool is_first)
{
    bool is_reduction = l->call->kind == COLL_KIND_REDUCE_SCATTER ||
                        l->call->kind == COLL_KIND_REDUCE_SCATTER_V;
    size_t at = 0;

    /* What is short lies close together. */
    if (l->longest < l->bytes)
        l->bytes = (l->longest + LANE_UNIT - 1) / LANE_UNIT * LANE_UNIT;
    do {
        coll_status_t status;

        fill(l, at);
        status = shm_next_tick(g, l->call, is_first && at == 0);
        if (status != COLL_OK)
            return status;
        if (is_reduction)
            reduce(l, at);
        else
            take(l, at);
        at += l->bytes;
    } while (at < l->longest);
    return COLL_OK;
}

coll_status_t shm_scatter(struct coll_group *g, const struct coll_call *call)
{
    struct lanes l = lanes_of(g->state, call);

    l.longest = call->count * l.size;
    if (call->send_counts != NULL) {
        l.longest = 0;
        for (int r = 0; r < g->size; r++)
            if (send_len(&l, r) > l.longest)
                l.longest = send_len(&l, r);
    }
    return run(g, &l, true);
}

/* What each rank puts into its slot first: the number of elements for every
 * other one. */
static coll_status_t check_counts(struct coll_group *g, struct lanes *l)
{
    struct shm_state *s = l->s;
    const struct coll_call *call = l->call;

    for (int from = 0; from < s->size; from++) {
        const uint64_t *row =
            (const uint64_t *)(const void *)shm_slot(s, from, s->tick);

        for (int to = 0; to < s->size; to++)
            if (row[to] * l->size > l->longest)
                l->longest = row[to] * l->size;
        if (row[s->rank] != call->recv_counts[from])
            return coll_fail(COLL_ERR_MISMATCH,
                "mismatch at operation #%llu: in all_to_all_v rank %d sends "
                "%llu %s to rank %d, which expects %zu",
                (unsigned long long)call->seq, coll_global_rank(g, from),
                (unsigned long long)row[s->rank], coll_dtype_name(call->dtype),
                coll_global_rank(g, s->rank), call->recv_counts[from]);
    }
    return COLL_OK;
}

/* Nobody returns before all have checked their counts: that is the second
 * tick. */
coll_status_t shm_all_to_all_v(
    struct coll_group *g, const struct coll_call *call)
{
    struct lanes l = lanes_of(g->state, call);
    uint64_t *row = (uint64_t *)(void *)shm_slot(l.s, l.s->rank, l.s->tick + 1);
    coll_status_t status;

    for (int to = 0; to < l.s->size; to++)
        row[to] = call->send_counts[to];
    status = shm_next_tick(g, call, true);
    if (status == COLL_OK)
        status = check_counts(g, &l);
    return status == COLL_OK ? run(g, &l, false) : status;
}
