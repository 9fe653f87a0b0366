/*
 * The timing loop of the collective benchmarks, apart from the library that
 * is timed, so that every library runs the same one.
 */
#ifndef CRUN_BENCH_COLL_LOOP_H
#define CRUN_BENCH_COLL_LOOP_H

#include <stddef.h>

/*
 * A library. Functions return 0 or -1, and have printed why; NULL stands for
 * what the library does not have. Counts are in elements; of all_gather,
 * reduce_scatter and all_to_all in those of one part. coll_gloo.py has the same
 * struct: keep them alike.
 */
struct bench_coll {
    int rank;
    int size;
    int reduces_in_place; /* all_reduce is given its input in recv */
    int (*all_reduce)(const float *send, float *recv, size_t count); /* sum */
    int (*broadcast)(float *buf, size_t count); /* from rank 0 */
    int (*all_gather)(const float *send, float *recv, size_t count);
    int (*reduce_scatter)(const float *send, float *recv, size_t count);
    int (*all_to_all)(const float *send, float *recv, size_t count);
    int (*barrier)(void);
    int (*send)(const float *buf, size_t count, int peer);
    int (*recv)(float *buf, size_t count, int peer);
    /* Both with the partner, at once. */
    int (*exchange)(const float *send, float *recv, size_t count);
    void *(*alloc)(size_t bytes);
    void (*free)(void *buf);
};

/*
 * Takes turns at the folder dir until the driver has no more. Returns 0 or -1,
 * and has printed why.
 */
int bench_coll_loop(const struct bench_coll *coll, const char *dir);

#endif
