/*
 * The timing loop of the collective benchmarks, apart from the library that
 * is timed, so that every library runs the same one.
 */
#ifndef CRUN_BENCH_COLL_LOOP_H
#define CRUN_BENCH_COLL_LOOP_H

#include <stddef.h>

/* What the loop needs of a library. Functions return 0 or -1, and have
 * printed why. */
struct bench_coll {
    int rank;
    int size;
    int (*barrier)(void);
    int (*all_reduce_sum)(const float *send, float *recv, size_t count);
    /* In place, for the loop's own figures. */
    int (*all_reduce_max)(double *values, size_t count);
};

/*
 * Times all_reduce from 4 B to 64 MiB by factors of 4. On rank 0 a line per
 * size is written to the file at path: bytes, microseconds, algorithm and
 * bus bandwidth in GB/s, wrong elements. Returns 0 or -1.
 */
int bench_coll_loop(const struct bench_coll *coll, const char *path);

#endif
