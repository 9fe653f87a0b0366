/*
 * Broadcast: the root puts one chunk per tick into its slot and the others
 * copy it out. Slots alternate, so the root fills one while the other is
 * being read.
 */
#include "shm_internal.h"

#include <string.h>

coll_status_t shm_broadcast(struct coll_group *g, const struct coll_call *call)
{
    struct shm_state *s = g->state;
    size_t left = call->count * coll_dtype_size(call->dtype);
    char *at = call->recvbuf;
    bool is_first = true;

    do {
        size_t n = left < s->chunk_bytes ? left : s->chunk_bytes;
        coll_status_t status;

        if (s->rank == call->root && n > 0)
            memcpy(shm_place(s, s->rank, s->tick + 1, n), at, n);
        status = shm_next_tick(g, call, is_first);
        if (status != COLL_OK)
            return status;
        if (s->rank != call->root && n > 0)
            memcpy(at, shm_place(s, call->root, s->tick, n), n);
        is_first = false;
        if (n > 0)
            at += n;
        left -= n;
    } while (left > 0);
    return COLL_OK;
}
