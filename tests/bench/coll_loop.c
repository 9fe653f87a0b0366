/*
 * Times one collective over a range of sizes. Each iteration
 *
 *   1. writes new input, so that no call finds the data or the mappings of
 *      the one before it in a cache
 *   2. passes a barrier
 *   3. times the call
 *   4. checks every element
 *
 * The time of an iteration is that of the slowest rank, the time of a size
 * the median over the iterations.
 */
#include "tests/bench/coll_loop.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define BYTES_MIN ((size_t)4)
#define BYTES_MAX ((size_t)64 << 20)
/* Small sizes are repeated until the median is steady, large ones until
 * about this much has been reduced. */
#define BYTES_TOTAL ((size_t)512 << 20)
#define ITERATIONS_MIN 9
#define ITERATIONS_MAX 1001
#define WARMUP_ITERATIONS 5

static double now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

/* Small integers: their sums are exact in any order, so results are compared
 * for equality. Every element differs from its neighbours, between ranks and
 * between iterations. */
static float input(size_t i, size_t iteration, int rank)
{
    return (float)((i * 3 + iteration * 31 + (size_t)rank * 7) & 0xfff);
}

static void write_input(float *send, size_t count, size_t iteration, int rank)
{
    for (size_t i = 0; i < count; i++)
        send[i] = input(i, iteration, rank);
}

static size_t count_wrong(
    const float *recv, size_t count, size_t iteration, int size)
{
    size_t wrong = 0;

    for (size_t i = 0; i < count; i++) {
        float want = 0;
        for (int rank = 0; rank < size; rank++)
            want += input(i, iteration, rank);
        wrong += recv[i] != want;
    }
    return wrong;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static size_t iterations_of(size_t bytes)
{
    size_t n = BYTES_TOTAL / bytes;

    if (n < ITERATIONS_MIN)
        return ITERATIONS_MIN;
    return n > ITERATIONS_MAX ? ITERATIONS_MAX : n;
}

/* Times one size. The figures are the same on every rank. */
static int time_size(const struct bench_coll *coll, float *send, float *recv,
    size_t bytes, double *us, double *wrong)
{
    double times[ITERATIONS_MAX];
    size_t count = bytes / sizeof(*send);
    size_t timed = iterations_of(bytes);
    size_t bad = 0;

    for (size_t i = 0; i < WARMUP_ITERATIONS + timed; i++) {
        double start;
        write_input(send, count, i, coll->rank);
        if (coll->barrier() < 0)
            return -1;
        start = now_us();
        if (coll->all_reduce_sum(send, recv, count) < 0)
            return -1;
        if (i >= WARMUP_ITERATIONS)
            times[i - WARMUP_ITERATIONS] = now_us() - start;
        bad += count_wrong(recv, count, i, coll->size);
    }
    *wrong = (double)bad;
    if (coll->all_reduce_max(times, timed) < 0 ||
        coll->all_reduce_max(wrong, 1) < 0)
        return -1;
    qsort(times, timed, sizeof(*times), compare_doubles);
    *us = times[timed / 2];
    return 0;
}

int bench_coll_loop(const struct bench_coll *coll, const char *path)
{
    /* Moving 2(n-1)/n of the data through each rank's link is the least that
     * an all_reduce can do: the bus bandwidth is comparable between sizes of
     * a job. */
    double bus_factor = 2.0 * (coll->size - 1) / coll->size;
    float *send = malloc(BYTES_MAX);
    float *recv = malloc(BYTES_MAX);
    FILE *out = NULL;
    int rc = -1;

    if (send == NULL || recv == NULL) {
        fprintf(stderr, "out of memory\n");
        goto done;
    }
    if (coll->rank == 0) {
        out = fopen(path, "w");
        if (out == NULL) {
            perror(path);
            goto done;
        }
    }
    for (size_t bytes = BYTES_MIN; bytes <= BYTES_MAX; bytes *= 4) {
        double us, wrong, gb_per_s;
        if (time_size(coll, send, recv, bytes, &us, &wrong) < 0)
            goto done;
        gb_per_s = (double)bytes / us / 1e3;
        if (out != NULL)
            fprintf(out, "%zu %.2f %.3f %.3f %.0f\n", bytes, us, gb_per_s,
                gb_per_s * bus_factor, wrong);
    }
    rc = 0;
done:
    if (out != NULL && fclose(out) != 0) {
        perror(path);
        rc = -1;
    }
    free(recv);
    free(send);
    return rc;
}
