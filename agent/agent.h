/*
 * One node's supervisor: hosts the store its workers meet at, starts them,
 * passes on their output, and ends when none is left. The decisions are in
 * lifecycle.c; this is the libuv shell around it.
 */
#ifndef CRUN_AGENT_AGENT_H
#define CRUN_AGENT_AGENT_H

#include "agent/job.h"

/* Runs the job to its end; blocks. Call in the process that front_run()
 * made. Returns the exit status for crun and has reported what failed. */
int agent_run(const struct job *job);

#endif
