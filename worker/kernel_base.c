/* The kernels for every machine that the compiler builds for: on x86-64
 * SSE2, on arm64 NEON. */
#define KERNEL_SET kernel_set_base
#define KERNEL_NAME "base"
#define VECTOR_BYTES 16
#define HAS_F16C 0
#include "kernel_loops.h"
