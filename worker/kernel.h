/* Element-wise reduction of buffers in memory. */
#ifndef COLL_KERNEL_H
#define COLL_KERNEL_H

#include "collective.h"

/*
 * dst[i] = op over s of srcs[s][i], folded in the order of s, for i < count;
 * AVG divides by nsrcs. The rules for overflow and NaN are those beside
 * COLL_OP_MAP. No buffer needs to be aligned. dst may be srcs[0] or srcs[1];
 * otherwise it overlaps no source. The same sources give the same bits,
 * wherever they lie.
 */
void kernel_reduce(void *dst, const void *const *srcs, int nsrcs, size_t count,
    coll_dtype_t dtype, coll_op_t op);

/* dst[i] = dst[i] / divisor, as AVG does at its end. */
void kernel_divide(void *dst, size_t count, coll_dtype_t dtype, int divisor);

#endif
