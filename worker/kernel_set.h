/* What kernel.c chooses from: the same kernels for several instruction
 * sets. */
#ifndef COLL_KERNEL_SET_H
#define COLL_KERNEL_SET_H

#include "collective.h"

enum { KERNEL_DTYPES = COLL_BOOL + 1, KERNEL_OPS = COLL_BXOR + 1 };

/* As kernel_reduce(), from one source on. The operand is what AVG divides by
 * and scaling multiplies with; the other kernels do not look at it. */
typedef void kernel_fold_fn(void *dst, const void *const *srcs, int nsrcs,
    size_t count, double operand);

struct kernel_set {
    const char *name;
    kernel_fold_fn *fold[KERNEL_DTYPES][KERNEL_OPS]; /* NULL: undefined */
    kernel_fold_fn *scale[KERNEL_DTYPES]; /* NULL: undefined */
};

extern const struct kernel_set kernel_set_base;
#ifdef __x86_64__
extern const struct kernel_set kernel_set_avx2;
#endif

/* x without its fraction, in two's complement; what 64 bits cannot hold
 * becomes the nearest that they can, NaN 0. */
uint64_t kernel_whole(double x);

#endif
