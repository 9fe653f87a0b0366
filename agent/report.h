/*
 * What went wrong, for a person: which rank failed first and how, and what
 * became of the others. Pure: text from a finished lifecycle.
 */
#ifndef CRUN_AGENT_REPORT_H
#define CRUN_AGENT_REPORT_H

#include <stddef.h>

#include "agent/lifecycle.h"
#include "rendezvous/base/buf.h"

/* "exit code 7", "signal 9 (SIGKILL)", "did not start: ..., exit code 126".
 * Truncated to size. */
void report_outcome(const struct lc_worker *w, char *out, size_t size);

/*
 * Appends the final report of a job called title on host to out: nothing if
 * every worker succeeded and nobody asked for a stop. Ranks that ended alike
 * share a line. rank_base is the global rank of local rank 0. 0 or -ENOMEM.
 */
int report_write(const struct lifecycle *lc, const char *title,
    const char *host, int rank_base, struct buf *out);

#endif
