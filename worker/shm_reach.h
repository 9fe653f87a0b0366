/*
 * Reaching the buffers of other ranks without a copy on the way: what was
 * allocated with coll_alloc() is mapped, and of the rest parts are read by the
 * kernel (process_vm_readv), where it permits that.
 */
#ifndef COLL_SHM_REACH_H
#define COLL_SHM_REACH_H

#include "shm_internal.h"

/* A buffer of another rank, or of this one. */
struct shm_view {
    char *base; /* where it is mapped here; NULL: it is not */
    uint64_t address; /* in its process */
    size_t part; /* reduce_scatter_v: where this rank's part begins, in bytes */
};

struct shm_reach; /* in struct shm_state, NULL until the first large call */

/*
 * The first tick of a large call: every rank says where its buffers are. What
 * begins with all or may is the same on all ranks afterwards: whether every
 * rank can see the buffers that the call is about as its own memory, or can at
 * least read them. The views are valid during the call.
 */
struct shm_views {
    struct shm_view *send; /* [size] */
    struct shm_view *recv; /* [size] */
    bool all_send_mapped, all_recv_mapped;
    bool may_read; /* the kernel gives all ranks the buffers of all others */
};

/* wants_read, the same on all ranks: else may_read is not found out. */
coll_status_t shm_reach_begin(struct coll_group *g,
    const struct coll_call *call, size_t send_bytes, size_t recv_bytes,
    bool wants_read, struct shm_views *views);

/* *out: what lies at offset in a view, where it is mapped, or in scratch, into
 * which len bytes are read. */
coll_status_t shm_reach_get(struct coll_group *g, const struct coll_call *call,
    int rank, const struct shm_view *view, size_t offset, size_t len,
    void *scratch, const void **out);

/* Copies what lies there. */
coll_status_t shm_reach_copy(struct coll_group *g, const struct coll_call *call,
    int rank, const struct shm_view *view, size_t offset, size_t len, void *to);

/* Takes NULL. */
void shm_reach_free(struct shm_reach *r);

#endif
