/*
 * all_gather, all_gather_v and gather: every rank puts what it has into its
 * slot, a chunk per tick, and those who want it copy it out.
 */
#include "shm_internal.h"

#include <string.h>

/* Of rank's part, what the chunk at that many bytes has. */
static size_t chunk_len(const struct shm_state *s, size_t len, size_t at)
{
    if (at >= len)
        return 0;
    return len - at < s->chunk_bytes ? len - at : s->chunk_bytes;
}

static size_t part_count(const struct coll_call *call, int rank)
{
    return call->recv_counts == NULL ? call->count : call->recv_counts[rank];
}

static size_t part_at(const struct coll_call *call, int rank)
{
    return call->recv_at == NULL ? call->count * (size_t)rank
                                 : call->recv_at[rank];
}

/* Where the chunk at that many bytes of rank's part belongs. */
static char *place(const struct coll_call *call, int rank, size_t at)
{
    return (char *)call->recvbuf +
           part_at(call, rank) * coll_dtype_size(call->dtype) + at;
}

static void take_chunks(
    const struct shm_state *s, const struct coll_call *call, size_t at)
{
    size_t size = coll_dtype_size(call->dtype);

    /* Each rank begins with its neighbour, so that not all read the same. */
    for (int i = 1; i < s->size; i++) {
        int r = (s->rank + i) % s->size;
        size_t n = chunk_len(s, part_count(call, r) * size, at);

        if (n > 0)
            memcpy(place(call, r, at), shm_place(s, r, s->tick, n), n);
    }
}

coll_status_t shm_gather(struct coll_group *g, const struct coll_call *call)
{
    struct shm_state *s = g->state;
    size_t size = coll_dtype_size(call->dtype);
    size_t own = part_count(call, s->rank) * size;
    bool is_receiver = call->kind != COLL_KIND_GATHER || call->root == s->rank;
    /* The receiver of a gather has no reader. */
    bool is_sender = call->kind != COLL_KIND_GATHER || !is_receiver;
    size_t longest = 0;
    size_t at = 0;

    for (int r = 0; r < s->size; r++)
        if (part_count(call, r) * size > longest)
            longest = part_count(call, r) * size;
    do {
        size_t n = chunk_len(s, own, at);
        const char *send = (const char *)call->sendbuf + (n > 0 ? at : 0);
        coll_status_t status;

        if (n > 0 && is_sender)
            memcpy(shm_place(s, s->rank, s->tick + 1, n), send, n);
        status = shm_next_tick(g, call, at == 0);
        if (status != COLL_OK)
            return status;
        if (n > 0 && is_receiver && place(call, s->rank, at) != send)
            memcpy(place(call, s->rank, at), send, n);
        if (is_receiver)
            take_chunks(s, call, at);
        at += s->chunk_bytes;
    } while (at < longest);
    return COLL_OK;
}
