/*
 * What went wrong, for a person and as JSON: which rank failed first and how,
 * in its own words where it left an error file, who failed on account of it,
 * and what became of the others.
 */
#ifndef CRUN_AGENT_REPORT_H
#define CRUN_AGENT_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/lifecycle.h"
#include "agent/restarts.h"
#include "rendezvous/base/buf.h"
#include "rendezvous/base/err.h"
#include "rendezvous/node_protocol.h"

/* What is known of a worker beside its wait status; all borrowed. */
struct report_worker {
    const char *error_file; /* path; NULL or "": none */
    const char *stderr_file; /* path; NULL: none */
    const char *last_call; /* from its recorder; NULL: nothing */
    const char *collateral; /* why a call failed, in its words; NULL: none */
};

struct report_input {
    const struct lifecycle *life; /* the last round, LC_DONE */
    const struct restarts *restarts;
    const struct report_worker *workers; /* [life->nworkers] */
    enum restarts_verdict verdict;
    const char *title; /* script, module or program */
    const char *program; /* the file that was executed */
    const char *host;
    const char *run_id;
    const char *log_folder; /* NULL: none */
    int rank_base; /* global rank of local rank 0 */
    /* NODE_VERDICT: the first failure, where another node had it; NULL: it was
     * here, or there was none. */
    const struct node_msg *peer;
    const char *reason; /* several nodes: why else the job ended; NULL: no */
    /* Several nodes, and the coordinator has not said who was first. */
    bool is_own_view;
    /* Which operation was stuck and why, a line each; NULL or "": none. */
    const char *collective;
    int exit_code; /* crun's own */
    /* Processes that the kernel killed for lack of memory in this cgroup
     * since crun began; -1: not known. */
    int64_t oom_kills;
    /* What clock_now_ns() values lack to nanoseconds since 1970. */
    int64_t clock_offset_ns;
};

/* "exit code 7", "signal 9 (SIGKILL)", "did not start: ..., exit code 126".
 * Truncated to size. */
void report_outcome(const struct lc_worker *w, char *out, size_t size);

/* Appends the final report: nothing if every worker succeeded and nobody
 * asked for a stop. Reads the error files. 0 or -ENOMEM. */
int report_write(const struct report_input *in, struct buf *out);

/* Whether the next one may write to path, as far as can be told before it
 * does; on failure e says why not. */
int report_check_path(const char *path, struct err *e);

/* The same as a JSON object in the file at path (also for a success),
 * replaced as a whole. */
int report_write_json(
    const struct report_input *in, const char *path, struct err *e);

/*
 * If the first failure left an error file: copies it to path with
 * message.errorCode set to the exit code, as torchrun does for an outer
 * scheduler. Else writes a file of that form with what is known. Nothing
 * without a failure.
 */
int report_copy_error(
    const struct report_input *in, const char *path, struct err *e);

/* Out-of-memory kills counted in this process's cgroup (memory.events of
 * version 2, memory.oom_control of version 1); -1 if it cannot be told. */
int64_t report_count_oom_kills(void);

#endif
