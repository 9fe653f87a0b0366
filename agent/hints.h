/* What the way a worker ended often means, in a sentence. */
#ifndef CRUN_AGENT_HINTS_H
#define CRUN_AGENT_HINTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/lifecycle.h"

/*
 * Writes a hint without a newline into out; false if there is nothing worth
 * saying. oom_kills: as in report.h. stderr_file: the worker's, or NULL; it
 * is searched for what the dynamic loader says.
 */
bool hint_for(const struct lc_worker *w, int64_t oom_kills,
    const char *stderr_file, char *out, size_t size);

/* "state D (uninterruptible), in nfs_wait_bit_killable": of a process that
 * could not be killed; "" if /proc does not tell. */
void hint_process_state(pid_t pid, char *out, size_t size);

#endif
