/* --dry_run: what crun would do, as text. */
#ifndef CRUN_CMD_DRY_RUN_H
#define CRUN_CMD_DRY_RUN_H

#include <stdio.h>

#include "agent/job.h"
#include "cmd/options.h"

/*
 * Prints the job as a job file that --config takes, and in remarks of it what
 * each worker is: the variables that crun sets and the command, quoted for a
 * shell. What is known only when the job runs is in <angle brackets>. 0 or
 * -ENOMEM.
 */
int dry_run_print(const struct job *job, const struct options *o, FILE *out);

#endif
