/*
 * The environment of a worker: the agent's own, with the variables of the
 * contract (rendezvous/worker_env.h) set, whatever they were before, and with
 * what NCCL has to be told where the user does not tell it otherwise. Pure.
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
    int role_rank;
    int role_world_size;
    const char *role;
    const char *master_addr;
    int master_port;
    const char *run_id;
    bool has_agent_store; /* TORCHELASTIC_USE_AGENT_STORE */
    const char *error_file; /* "": none */
    const char *signals_text; /* TORCHELASTIC_SIGNALS_TO_HANDLE */
    const char *omp_num_threads; /* NULL: as inherited */
    const char *visible_devices; /* CUDA_VISIBLE_DEVICES; NULL: as inherited */
    int share_gpu; /* above 1: so many workers use one device */
    const char *nccl_ras_addr; /* NCCL_RAS_ADDR; NULL: as inherited */
    const char *agent; /* CRUN_AGENT; NULL: not set, nor inherited */
    const char *node_addr; /* CRUN_NODE_ADDR; NULL: as inherited */
};

/*
 * Builds an environment for execve: one allocation, freed with free(). The
 * strings of base that pass through are borrowed. NULL when out of memory.
 */
char **worker_vars_build(const struct worker_vars *v, char *const *base);

struct job;

/* What a job says of one of its workers; the rest is the round's: restart
 * count, port, run id, error file, devices, channel. omp_text is where the
 * number of threads may be written; borrowed. */
struct worker_vars worker_vars_of_job(
    const struct job *job, int local_rank, char omp_text[16]);

/* The value of name in base; NULL if it is not there. */
const char *worker_vars_find(char *const *base, const char *name);

#endif
