/* What the files of flat.h share. */
#ifndef COLL_FLAT_INTERNAL_H
#define COLL_FLAT_INTERNAL_H

#include "flat.h"
#include "p2p.h"
#include "pattern.h"

/* One call on one rank. */
struct flat {
    struct coll_group *g;
    const struct coll_call *call;
    int rank;
    int size; /* of the group */
    size_t elem; /* bytes of an element */
    enum coll_algorithm algorithm;
};

/* What an operation takes at most for data that are on their way. */
#define FLAT_SCRATCH_BYTES ((size_t)4 << 20)

/* Messages up to here take about as long as empty ones. */
#define FLAT_SMALL_BYTES ((size_t)16 << 10)

/* Ranks that one exchanges messages with at a time: enough to keep the wire
 * busy while one is late, too few to swamp a receiver. */
#define FLAT_WINDOW 8

/* --- flat.c --------------------------------------------------------------- */

/* Address of an element. NULL for a NULL buffer, which has none. */
static inline void *flat_at(const struct flat *f, const void *buf, size_t at)
{
    return buf == NULL ? NULL : (char *)buf + at * f->elem;
}

/* Takes NULL buffers if count is 0, and to == from. */
void flat_copy(const struct flat *f, void *to, const void *from, size_t count);

/* NULL with an error sentence if there is no memory. */
void *flat_scratch(const struct flat *f, size_t bytes);

/* Messages of this call, for p2p_run(). */
struct p2p_op flat_send(
    const struct flat *f, int peer, const void *buf, size_t count);
struct p2p_op flat_recv(
    const struct flat *f, int peer, void *buf, size_t count);

/* Waits for all of them. */
coll_status_t flat_wait(const struct flat *f, struct p2p_op *ops, size_t n);

/* Messages that are on their way while something else is done. */
struct flat_batch {
    struct p2p_op *ops; /* [room] */
    struct p2p_op **list; /* [room] */
    size_t n;
};

/* false with an error sentence if there is no memory; takes what free() does.
 */
bool flat_batch_init(const struct flat *f, struct flat_batch *b, size_t room);
void flat_batch_fini(struct flat_batch *b);

void flat_batch_add(struct flat_batch *b, struct p2p_op op);
void flat_batch_post(const struct flat *f, struct flat_batch *b);

/* Waits for all of it; it is empty then. If that fails nothing of the group is
 * on its way any more. */
coll_status_t flat_batch_finish(const struct flat *f, struct flat_batch *b);

/* --- flat_gather.c -------------------------------------------------------- */

coll_status_t flat_gather(const struct flat *f);
coll_status_t flat_scatter(const struct flat *f);

/*
 * Through a tree. recvbuf on the root becomes count elements of each rank, in
 * rank order; on the others it may be NULL. own may be its place there.
 */
coll_status_t flat_gather_tree(const struct flat *f, int root, const void *own,
    void *recvbuf, size_t count);

/* --- flat_all_gather.c ---------------------------------------------------- */

coll_status_t flat_all_gather(const struct flat *f);

/* The parts of buf, of which every rank has its own one there: the two ways. */
coll_status_t flat_all_gather_bruck(
    const struct flat *f, void *buf, const struct pattern_parts *parts);
coll_status_t flat_all_gather_ring(
    const struct flat *f, void *buf, const struct pattern_parts *parts);

/* --- flat_reduce.c -------------------------------------------------------- */

coll_status_t flat_all_reduce(const struct flat *f);
coll_status_t flat_reduce(const struct flat *f);
coll_status_t flat_reduce_scatter(const struct flat *f);

/* --- flat_all_to_all.c ---------------------------------------------------- */

coll_status_t flat_all_to_all(const struct flat *f);
coll_status_t flat_all_to_all_v(const struct flat *f);

#endif
