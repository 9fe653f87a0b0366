/*
 * Small operations: there the number of steps counts and not the bytes, so
 * every rank, or the root, gives all it has to all the others, who take from
 * it what is theirs. What they give is a block, as long on all ranks, which
 * can travel with the agreement on what all call: that costs no step of its
 * own.
 */
#ifndef COLL_SPREAD_H
#define COLL_SPREAD_H

#include "backend.h"

/* Up to here an operation is small: the blocks of all ranks together. */
#define SPREAD_BYTES ((size_t)128 << 10)

struct spread {
    bool is_from_root; /* only the root has a block */
    size_t count; /* elements of a block */
    size_t bytes; /* of a block */
};

/* Whether a call among so many ranks is small; *out is set then. Never true of
 * all_to_all_v, where no rank knows how much the others have. */
bool spread_plan(struct spread *out, const struct coll_call *call, int size);

/* Writes this rank's block; the root's only, if the root gives. */
void spread_pack(const struct spread *plan, const struct coll_call *call,
    void *block, int rank, int size);

/* Does what the call is for, from the blocks of all ranks: [size], apart from
 * the call's buffers; all the same if the root gives. */
void spread_unpack(
    const struct coll_call *call, const void **blocks, int rank, int size);

#endif
