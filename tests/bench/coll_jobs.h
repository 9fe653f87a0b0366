/*
 * The driver's side of a collective benchmark: starts the jobs that are
 * compared and gives them turns.
 */
#ifndef CRUN_BENCH_COLL_JOBS_H
#define CRUN_BENCH_COLL_JOBS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/bench/coll_turn.h"

struct bench_job {
    const char *name; /* borrowed */
    int size;
    uint32_t ops; /* bits: what all ranks have */
    bool has_alloc;
    /* the rest is coll_jobs.c's */
    pid_t pid;
    char dir[96];
    int fds[BENCH_RANKS_MAX]; /* by rank; -1 */
    struct bench_area *area;
};

/* The figures of one turn. The time of a call is that of its slowest rank. */
struct bench_time {
    double median_us;
    double mean_us;
    uint64_t wrong;
};

/*
 * Starts "command dir", a shell's command that runs size ranks, and waits
 * until all have come. The folder dir must not exist; what the job prints is
 * in the file log there, and is shown if the job fails. Returns 0 or -1, and
 * has printed why; then, too, the job must be ended.
 */
int bench_job_start(struct bench_job *job, const char *name,
    const char *command, const char *dir, int size);

bool bench_job_has(const struct bench_job *job, enum bench_op op);

int bench_job_turn(struct bench_job *job, const struct bench_turn *turn,
    struct bench_time *time);

/* Lets the ranks go, waits for the job, and kills it after some seconds. */
void bench_job_end(struct bench_job *job);

const char *bench_op_name(enum bench_op op);

/* Sorts and returns the one in the middle. n > 0. */
double bench_median(double *values, size_t n);

#endif
