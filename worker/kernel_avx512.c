/* The kernels for x86-64 with AVX-512 as servers have had it since 2017. */
#ifdef __x86_64__
#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(                                                  \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c"))),        \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c")
#endif

#define KERNEL_SET kernel_set_avx512
#define KERNEL_NAME "avx512"
#define VECTOR_BYTES 64
#define HAS_F16C 1
#include "kernel_loops.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
