/* The kernels for x86-64 with AVX2 and F16C (2013 and later). */
#ifdef __x86_64__
#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(                                                  \
    __attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c")
#endif

#define KERNEL_SET kernel_set_avx2
#define KERNEL_NAME "avx2"
#define VECTOR_BYTES 32
#define HAS_F16C 1
#include "kernel_loops.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
