/*
 * The environment of a worker: the agent's own, with the variables of the
 * contract (rendezvous/worker_env.h) set, whatever they were before. Pure.
 */
#ifndef CRUN_AGENT_WORKER_VARS_H
#define CRUN_AGENT_WORKER_VARS_H

#include <stdbool.h>

struct worker_vars {
    int rank;
    int local_rank;
    int world_size;
    int local_world_size;
    int group_rank;
    int group_world_size;
    int restart_count;
    int max_restarts;
    const char *role;
    const char *master_addr;
    int master_port;
    const char *run_id;
};

/*
 * Builds an environment for execve: one allocation, freed with free(). The
 * strings of base that pass through are borrowed. NULL when out of memory.
 */
char **worker_vars_build(const struct worker_vars *v, char *const *base);

/* torchrun's rule: with several workers and no OMP_NUM_THREADS at all (an
 * empty one counts as set), each worker gets OMP_NUM_THREADS=1. */
bool worker_vars_limits_omp(const struct worker_vars *v, char *const *base);

#endif
