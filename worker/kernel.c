/*
 * Reduction kernels: for each type and operation one loop over two buffers,
 * simple enough for the compiler to vectorise.
 *
 * Elements are read through types without alignment that may alias anything,
 * because users' buffers may have any address. That also keeps the compiler
 * from peeling the loop until an address is aligned, so which elements the
 * vector part and the scalar rest handle depends on the count only, and
 * ranks with different addresses get the same bits, NaN payloads included.
 */
#include "kernel.h"

#include <string.h>

#define ANY_ADDRESS __attribute__((aligned(1), may_alias))

typedef float float_any ANY_ADDRESS;
typedef double double_any ANY_ADDRESS;
typedef int32_t int32_t_any ANY_ADDRESS;
typedef int64_t int64_t_any ANY_ADDRESS;
typedef uint32_t uint32_t_any ANY_ADDRESS;
typedef uint64_t uint64_t_any ANY_ADDRESS;

/* The destination is one of the sources or apart from them, so no iteration
 * reads what an earlier one wrote: no run-time check, no slow second loop. */
#ifdef __clang__
#define INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

typedef void combine_fn(void *dst, const void *a, const void *b, size_t n);
typedef void divide_fn(void *dst, size_t n, int divisor);

#define DEFINE_COMBINE(name, type, value)                                      \
    static void name(void *dst, const void *left, const void *right, size_t n) \
    {                                                                          \
        type##_any *out = dst;                                                 \
        const type##_any *in_a = left;                                         \
        const type##_any *in_b = right;                                        \
                                                                               \
        INDEPENDENT_ITERATIONS                                                 \
        for (size_t i = 0; i < n; i++) {                                       \
            type a = in_a[i];                                                  \
            type b = in_b[i];                                                  \
            out[i] = (value);                                                  \
        }                                                                      \
    }

#define DEFINE_DIVIDE(name, type)                                              \
    static void name(void *dst, size_t n, int divisor)                         \
    {                                                                          \
        type##_any *out = dst;                                                 \
                                                                               \
        for (size_t i = 0; i < n; i++)                                         \
            out[i] = out[i] / (type)divisor;                                   \
    }

/* Integers add and multiply as unsigned: wrapping without undefined
 * behaviour. */
#define DEFINE_TYPE(t, ordered, wrapping)                                      \
    DEFINE_COMBINE(sum_##t, wrapping, a + b)                                   \
    DEFINE_COMBINE(product_##t, wrapping, a *b)                                \
    DEFINE_COMBINE(min_##t, ordered, MIN_RULE(a, b))                           \
    DEFINE_COMBINE(max_##t, ordered, MAX_RULE(a, b))                           \
    DEFINE_DIVIDE(divide_##t, ordered)

/* A NaN on either side wins: the left one by the second test, the right one
 * because every comparison with it is false. Integers pay nothing. */
#define MIN_RULE(a, b) (a < b || a != a ? a : b)
#define MAX_RULE(a, b) (a > b || a != a ? a : b)

DEFINE_TYPE(f32, float, float)
DEFINE_TYPE(f64, double, double)
DEFINE_TYPE(i32, int32_t, uint32_t)
DEFINE_TYPE(i64, int64_t, uint64_t)

#define TYPE_KERNELS(t)                                                        \
    {                                                                          \
        {                                                                      \
            [COLL_SUM] = sum_##t,                                              \
            [COLL_AVG] = sum_##t,                                              \
            [COLL_MIN] = min_##t,                                              \
            [COLL_MAX] = max_##t,                                              \
            [COLL_PRODUCT] = product_##t,                                      \
        },                                                                     \
            divide_##t                                                         \
    }

static const struct {
    combine_fn *combine[COLL_PRODUCT + 1];
    divide_fn *divide;
} kernels[] = {
    [COLL_FLOAT32] = TYPE_KERNELS(f32),
    [COLL_FLOAT64] = TYPE_KERNELS(f64),
    [COLL_INT32] = TYPE_KERNELS(i32),
    [COLL_INT64] = TYPE_KERNELS(i64),
};

/* Several sources are folded block by block, so that the partial result
 * stays in the first-level cache. */
#define BLOCK_BYTES ((size_t)8192)

void kernel_reduce(void *dst, const void *const *srcs, int nsrcs, size_t count,
    coll_dtype_t dtype, coll_op_t op)
{
    combine_fn *combine = kernels[dtype].combine[op];
    size_t size = coll_dtype_size(dtype);
    size_t end = count * size;

    if (nsrcs == 1) {
        if (dst != srcs[0])
            memcpy(dst, srcs[0], end);
        return;
    }
    for (size_t at = 0; at < end; at += BLOCK_BYTES) {
        size_t n = (end - at < BLOCK_BYTES ? end - at : BLOCK_BYTES) / size;
        char *out = (char *)dst + at;

        combine(out, (const char *)srcs[0] + at, (const char *)srcs[1] + at, n);
        for (int s = 2; s < nsrcs; s++)
            combine(out, out, (const char *)srcs[s] + at, n);
        if (op == COLL_AVG)
            kernels[dtype].divide(out, n, nsrcs);
    }
}

void kernel_divide(void *dst, size_t count, coll_dtype_t dtype, int divisor)
{
    kernels[dtype].divide(dst, count, divisor);
}
