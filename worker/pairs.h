/*
 * all_to_all_v: no rank knows how much the others send to each other, so
 * before anything moves all tell each other, in blocks of equal length, and
 * find the same pair that does not fit.
 */
#ifndef COLL_PAIRS_H
#define COLL_PAIRS_H

#include "backend.h"

/*
 * Bytes of a rank's block, of which there are so many: all it sends and awaits,
 * or if that is too much for SPREAD_BYTES a sum of it, from which can be told
 * that some pair does not fit, but not which. 0: too many even for that.
 */
size_t pairs_bytes(int size, size_t blocks);

void pairs_pack(const struct coll_call *call, int rank, int size, size_t bytes,
    void *block);

/* COLL_OK, or COLL_ERR_MISMATCH, on all ranks alike. */
coll_status_t pairs_check(const struct coll_group *g,
    const struct coll_call *call, const void *const *blocks, size_t bytes);

#endif
