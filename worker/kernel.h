/* Element-wise reduction of buffers in memory. */
#ifndef COLL_KERNEL_H
#define COLL_KERNEL_H

#include "collective.h"

/* Not for floats: BAND, BOR, BXOR. Not for BOOL: AVG. */
bool kernel_supports(coll_dtype_t dtype, coll_op_t op);

/*
 * dst[i] = op over s of srcs[s][i], folded in the order of s, for i < count;
 * AVG divides by nsrcs. Needs kernel_supports(). The rules for overflow and
 * NaN are those beside COLL_DTYPE_MAP and COLL_OP_MAP; floats of 16 and 8 bits
 * are rounded once, at the end. No buffer needs to be aligned. dst may be one
 * of the sources; otherwise it overlaps none. The same sources give the same
 * bits, wherever they lie, whatever is beside them, and on every machine. One
 * source is copied, NaN payloads and all; but a BOOL is always 0 or 1.
 */
void kernel_reduce(void *dst, const void *const *srcs, int nsrcs, size_t count,
    coll_dtype_t dtype, coll_op_t op);

/* dst[i] = dst[i] / divisor, as AVG does at its end. Not for BOOL. */
void kernel_divide(void *dst, size_t count, coll_dtype_t dtype, int divisor);

/*
 * dst[i] = src[i] * factor, as a PRODUCT with an element of that value: the
 * factor is rounded to the type first (by way of float32 to those of 16 and 8
 * bits), or for integers loses its fraction. Not for BOOL. dst may be src;
 * otherwise they do not overlap.
 */
void kernel_scale(void *dst, const void *src, size_t count, coll_dtype_t dtype,
    double factor);

/*
 * For tests: from now on the kernels for instruction set i, counted from 0,
 * are used in this process. Returns the set's name, NULL if there is none with
 * that number or the machine cannot run it.
 */
const char *kernel_use_set(int i);

#endif
