/* What one agent runs: decided by the command line, constant afterwards. */
#ifndef CRUN_AGENT_JOB_H
#define CRUN_AGENT_JOB_H

#include <stdint.h>

#include "agent/inherited.h"
#include "agent/program.h"

struct job {
    struct program program;
    int nproc; /* workers of this node */
    const char *master_addr; /* borrowed: as workers shall see it */
    int master_port; /* 0: the kernel chooses one */
    const char *run_id; /* borrowed; NULL: a random one */
    uint64_t grace_ms; /* from the polite signal to SIGKILL */
    struct inherited inherited;
};

#endif
