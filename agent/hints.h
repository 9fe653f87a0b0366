/* What the way a worker ended often means, in a sentence. */
#ifndef CRUN_AGENT_HINTS_H
#define CRUN_AGENT_HINTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/lifecycle.h"

/* What beside the wait status may say something; all borrowed. */
struct hint_facts {
    const char *program; /* the file that was executed */
    const char *stderr_file; /* the worker's; NULL: none */
    bool has_stack; /* it has told where it failed */
    int64_t oom_kills; /* as in report.h */
};

/* Writes a hint without a newline into out, with what it quotes of files as
 * it stands there; false if there is nothing worth saying. */
bool hint_for(const struct lc_worker *w, const struct hint_facts *facts,
    char *out, size_t size);

/* "state D (uninterruptible), in nfs_wait_bit_killable": of a process that
 * could not be killed; "" if /proc does not tell. */
void hint_process_state(pid_t pid, char *out, size_t size);

#endif
