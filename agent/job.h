/* What one agent runs: decided by the command line, constant afterwards. */
#ifndef CRUN_AGENT_JOB_H
#define CRUN_AGENT_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/inherited.h"
#include "agent/log_options.h"
#include "agent/program.h"

struct binding;

/* How the nodes of a job find each other. */
struct job_nodes {
    int min; /* number of nodes that a round needs */
    int max; /* 1: there is no other node, and nothing else here matters */
    bool is_static; /* node rank 0 hosts the coordinator and the store */
    int node_rank; /* -1: none was given */
    int is_host; /* of the coordinator: 1, 0, or -1: who owns the endpoint */
    const char *host; /* borrowed: the endpoint */
    int port;
    const char *local_addr; /* borrowed: this node's; NULL: as others see it */
    uint64_t join_timeout_ms;
    uint64_t last_call_ms;
    uint64_t keep_alive_ms;
    int keep_alive_attempts;
    /* How long a coordinator that is gone may take to come back. */
    uint64_t coordinator_timeout_ms;
    const char *token_path; /* borrowed; NULL: the job has no secret */
    const char *store_allow; /* borrowed: networks in a list; NULL: no more */
};

/* What becomes of OMP_NUM_THREADS where the workers' environment has none. */
enum job_omp {
    JOB_OMP_TORCHRUN, /* 1 if there are several workers, and a warning */
    JOB_OMP_UNSET, /* nothing */
    JOB_OMP_NUMBER, /* omp_threads */
};

struct job {
    struct program program;
    char *const *env; /* borrowed: what the workers' environment is made of */
    int nproc; /* workers of this node */
    const char *role; /* borrowed */
    const char *master_addr; /* borrowed: as workers shall see it */
    int master_port; /* 0: the kernel chooses one */
    /* False: rank 0 hosts the store, at a free port that the agent found. */
    bool has_agent_store;
    const char *run_id; /* borrowed; NULL: a random one */
    struct job_nodes nodes;

    int max_restarts;
    uint64_t restart_delay_ms; /* before the first restart; then doubled */
    uint64_t restart_delay_max_ms;
    /* Give up when this many rounds in a row each lived for less than
     * crash_loop_ms, whatever max_restarts says. 0: never. */
    int crash_loop_count;
    uint64_t crash_loop_ms;

    uint64_t grace_ms; /* from the polite signal to SIGKILL */
    uint64_t failure_grace_ms; /* for workers that are told of a failure */
    const char *signals_text; /* borrowed: as TORCHELASTIC_SIGNALS_TO_HANDLE */
    bool is_exit_cause; /* exit as the first failure did */

    enum job_omp omp;
    int omp_threads;
    bool is_virtual_local_rank;
    int share_gpu; /* so many workers use one device; 1: it is their own */
    /* NCCL's service for queries is told a port of this job's own. */
    bool has_nccl_ras_port;
    const struct binding *binding; /* borrowed; NULL: workers are not bound */

    struct log_options log;
    const char *report_path; /* borrowed; NULL: no report as JSON */
    const char *parent_error_file; /* borrowed; NULL or "": none */

    struct inherited inherited;
};

#endif
