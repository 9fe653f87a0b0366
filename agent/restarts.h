/*
 * Whether a round of workers that has ended is followed by another one, and
 * when. Pure: the time is passed in.
 */
#ifndef CRUN_AGENT_RESTARTS_H
#define CRUN_AGENT_RESTARTS_H

#include <stddef.h>
#include <stdint.h>

#include "agent/lifecycle.h"

/* Rounds that are remembered for the report; of more, the first and the last
 * ones. */
#define RESTARTS_HISTORY_MAX 16

/* How a round ended. */
struct round_end {
    int restart_count; /* of that round */
    int local_rank; /* the first failure */
    enum lc_outcome outcome;
    int wait_status;
    int start_error;
    pid_t pid;
    uint64_t lived_ns;
};

struct restarts {
    int max_restarts;
    uint64_t delay_ms; /* of the next restart; 0: none */
    uint64_t delay_max_ms;
    int crash_loop_count; /* 0: any number */
    uint64_t crash_loop_ms;
    int count; /* restarts so far: TORCHELASTIC_RESTART_COUNT */
    int nshort; /* rounds in a row that lived for less than crash_loop_ms */
    struct round_end history[RESTARTS_HISTORY_MAX];
    int nhistory;
    int nforgotten; /* between the first half and the second */
};

enum restarts_verdict {
    RESTARTS_END, /* a success, a stop, or nothing left to try with */
    RESTARTS_AGAIN,
    RESTARTS_EXHAUSTED, /* a failure, and max_restarts are used up */
    RESTARTS_CRASH_LOOP,
};

/* A round is over: lc is LC_DONE. Notes a failure in the history. For
 * RESTARTS_AGAIN count is the next round's and *delay_ms how long to wait. */
enum restarts_verdict restarts_decide(struct restarts *r,
    const struct lifecycle *lc, uint64_t lived_ns, uint64_t *delay_ms);

#endif
