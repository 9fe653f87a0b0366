/*
 * Prints the table of all_reduce between two nodes, beside what bare TCP does
 * on the same way:
 *
 *   coll_nodes RANKS FOLDER MISSES COMMAND TCP_COMMAND
 *
 * COMMAND starts RANKS ranks of libcollective on two nodes, TCP_COMMAND the
 * two of bench_tcp.
 *
 * Large: all_reduce must bring half of the vector to the other node and the
 * other half's result back, both ways at once, so each direction carries as
 * many bytes as the vector has; that is what the two streams send.
 *
 * Small: two nodes need one step, in which both send and then wait. That is
 * what the two streams do, too, with messages of the vector's size, and what
 * the latency is judged by. Half of a ping-pong is printed beside it, but one
 * step cannot be that short on the same machine: there, one node's send is all
 * that happens at a time.
 *
 * Misses are written as in coll_table.c.
 */
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/coll_jobs.h"

#define ROUNDS_SMALL 5
#define ROUNDS_LARGE 3
#define STEPS 1 /* between two nodes */
#define SMALL_BYTES ((size_t)4 << 10)
#define SMALL_RATIO 1.5
#define LARGE_BYTES ((size_t)4 << 20)
#define LARGE_SHARE 0.8

enum column {
    ALL_REDUCE,
    STREAMS,
    PING_PONG,
    COLUMNS,
};

static const enum bench_op ops[COLUMNS] = {
    [ALL_REDUCE] = BENCH_ALL_REDUCE,
    [STREAMS] = BENCH_EXCHANGE,
    [PING_PONG] = BENCH_PING_PONG,
};

struct table {
    int ranks;
    struct bench_job ours, tcp;
    FILE *misses;
    uint64_t wrong;
};

static int measure(struct table *t, size_t bytes, double *us, uint64_t *wrong)
{
    bool is_large = bytes >= LARGE_BYTES;
    int rounds = is_large ? ROUNDS_LARGE : ROUNDS_SMALL;
    double all[COLUMNS][ROUNDS_SMALL];

    for (int round = 0; round < rounds; round++) {
        for (enum column c = 0; c < COLUMNS; c++) {
            struct bench_turn turn = {
                .op = ops[c],
                .bytes = bytes,
                .budget_us = 10000,
                .calls_min = is_large ? 2 : 5,
            };
            struct bench_time time;
            if (bench_job_turn(
                    c == ALL_REDUCE ? &t->ours : &t->tcp, &turn, &time) < 0)
                return -1;
            all[c][round] = time.median_us;
            wrong[c == ALL_REDUCE ? 0 : 1] += time.wrong;
        }
    }
    for (enum column c = 0; c < COLUMNS; c++)
        us[c] = bench_median(all[c], (size_t)rounds);
    return 0;
}

static void miss(struct table *t, size_t bytes, const char *goal,
    double reached, double wanted)
{
    printf(" MISS %s", goal);
    fprintf(t->misses, "nodes:all_reduce %d %zu %s %.3f %.3f\n", t->ranks,
        bytes, goal, reached, wanted);
}

static int print_line(struct table *t, size_t bytes)
{
    double us[COLUMNS];
    uint64_t wrong[2] = {0};
    double gb_per_s, share, ratio;

    if (measure(t, bytes, us, wrong) < 0)
        return -1;
    t->wrong += wrong[0] + wrong[1];
    gb_per_s = (double)bytes / us[ALL_REDUCE] / 1e3;
    share = us[STREAMS] / us[ALL_REDUCE];
    ratio = us[ALL_REDUCE] / (STEPS * us[STREAMS]);
    printf("%9zu | %9.2f %6.3f %6.3f %3llu | %9.2f %6.3f %3llu | %9.2f | "
           "%5.0f%% %7.2f",
        bytes, us[ALL_REDUCE], gb_per_s,
        gb_per_s * 2 * (t->ranks - 1) / t->ranks, (unsigned long long)wrong[0],
        us[STREAMS], (double)bytes / us[STREAMS] / 1e3,
        (unsigned long long)wrong[1], us[PING_PONG], share * 100, ratio);
    if (bytes >= LARGE_BYTES && share < LARGE_SHARE)
        miss(t, bytes, "80%-of-two-streams", share, LARGE_SHARE);
    if (bytes <= SMALL_BYTES && ratio > SMALL_RATIO)
        miss(t, bytes, "1.5x-steps", ratio, SMALL_RATIO);
    printf("\n");
    fflush(stdout);
    return 0;
}

static int print_table(struct table *t)
{
    printf("\nall_reduce, float32, %d ranks on two nodes (network namespaces)\n"
           "%9s | %-27s | %-20s | %9s |\n"
           "%9s | %9s %6s %6s %3s | %9s %6s %3s | %9s | %6s %7s\n",
        t->ranks, "", "libcollective", "two TCP streams", "half trip", "bytes",
        "us", "algbw", "busbw", "bad", "us", "GB/s", "bad", "us", "of TCP",
        "x steps");
    for (size_t bytes = BENCH_BYTES_MIN; bytes <= BENCH_BYTES_MAX; bytes *= 4)
        if (print_line(t, bytes) < 0)
            return -1;
    if (t->wrong > 0) {
        fprintf(stderr, "some results were wrong\n");
        return -1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct table t = {0};
    char dir[PATH_MAX];
    int rc = -1;

    if (argc != 6 || (t.ranks = atoi(argv[1])) < 2) {
        fprintf(stderr, "usage: %s RANKS FOLDER MISSES COMMAND TCP_COMMAND\n",
            argv[0]);
        return 2;
    }
    t.misses = fopen(argv[3], "a");
    if (t.misses == NULL) {
        perror(argv[3]);
        return 1;
    }
    snprintf(dir, sizeof(dir), "%s/nodes.%d", argv[2], t.ranks);
    if (bench_job_start(&t.ours, "libcollective", argv[4], dir, t.ranks) < 0)
        goto done;
    snprintf(dir, sizeof(dir), "%s/tcp.%d", argv[2], t.ranks);
    if (bench_job_start(&t.tcp, "bench_tcp", argv[5], dir, 2) < 0)
        goto done;
    rc = print_table(&t);
done:
    bench_job_end(&t.ours);
    bench_job_end(&t.tcp);
    if (fclose(t.misses) != 0) {
        perror(argv[3]);
        rc = -1;
    }
    return rc < 0;
}
