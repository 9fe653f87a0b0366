/*
 * Reduction kernels: finds the best set of them that the machine can run, and
 * passes calls on to it. The kernels themselves are in kernel_loops.h.
 */
#include "kernel.h"

#include <stdatomic.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "kernel_set.h"

static bool has_base(void)
{
    return true;
}

#ifdef __x86_64__
/* Older compilers do not know "f16c" as a name below. */
static bool has_f16c(void)
{
    unsigned int a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

static bool has_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && has_f16c();
}
#endif

/* The best one last. */
static const struct {
    const struct kernel_set *set;
    bool (*is_usable)(void);
} sets[] = {
    {&kernel_set_base, has_base},
#ifdef __x86_64__
    {&kernel_set_avx2, has_avx2},
#endif
};

enum { SET_COUNT = sizeof(sets) / sizeof(sets[0]) };

/* Threads that choose at once choose the same. */
static const struct kernel_set *_Atomic chosen;

static const struct kernel_set *chosen_set(void)
{
    const struct kernel_set *set =
        atomic_load_explicit(&chosen, memory_order_relaxed);

    for (int i = SET_COUNT - 1; set == NULL; i--) {
        if (!sets[i].is_usable())
            continue;
        set = sets[i].set;
        atomic_store_explicit(&chosen, set, memory_order_relaxed);
    }
    return set;
}

const char *kernel_use_set(int i)
{
    if (i < 0 || i >= SET_COUNT || !sets[i].is_usable())
        return NULL;
    atomic_store(&chosen, sets[i].set);
    return sets[i].set->name;
}

bool kernel_supports(coll_dtype_t dtype, coll_op_t op)
{
    return (unsigned int)dtype < KERNEL_DTYPES &&
           (unsigned int)op < KERNEL_OPS &&
           kernel_set_base.fold[dtype][op] != NULL;
}

void kernel_reduce(void *dst, const void *const *srcs, int nsrcs, size_t count,
    coll_dtype_t dtype, coll_op_t op)
{
    if (nsrcs > 1 || dtype == COLL_BOOL)
        chosen_set()->fold[dtype][op](dst, srcs, nsrcs, count, nsrcs);
    else if (dst != srcs[0] && count > 0)
        memcpy(dst, srcs[0], count * coll_dtype_size(dtype));
}

void kernel_divide(void *dst, size_t count, coll_dtype_t dtype, int divisor)
{
    const void *src = dst;

    chosen_set()->fold[dtype][COLL_AVG](dst, &src, 1, count, divisor);
}

void kernel_scale(
    void *dst, const void *src, size_t count, coll_dtype_t dtype, double factor)
{
    chosen_set()->scale[dtype](dst, &src, 1, count, factor);
}

uint64_t kernel_whole(double x)
{
    if (x >= 0x1p63)
        return x < 0x1p64 ? (uint64_t)x : UINT64_MAX;
    if (x >= -0x1p63)
        return (uint64_t)(int64_t)x;
    return x < 0 ? (uint64_t)INT64_MIN : 0;
}
