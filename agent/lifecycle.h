/*
 * The life of one generation of workers on one node, as a pure state
 * machine: events in, actions out, the time passed in as a number. It does
 * no I/O and calls no system function, so tests can drive every path.
 *
 *   RUNNING   workers run
 *   STOPPING  a signal went to every worker's process group, or goes there
 *             soon: workers that are told of a failure may end by themselves
 *             first; the grace runs until the groups are empty, since a worker
 *             may be a shell whose program is still saving its state
 *   KILLING   SIGKILL went to them; a bounded wait runs
 *   SWEEPING  all workers are reaped; what they left behind is being ended
 *   DONE      nothing is left, or it was given up and is reported
 */
#ifndef CRUN_AGENT_LIFECYCLE_H
#define CRUN_AGENT_LIFECYCLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define LIFECYCLE_STATE_MAP(X)                                                 \
    X(LC_RUNNING)                                                              \
    X(LC_STOPPING)                                                             \
    X(LC_KILLING)                                                              \
    X(LC_SWEEPING)                                                             \
    X(LC_DONE)

enum lc_state {
#define LC_ENUM(name) name,
    LIFECYCLE_STATE_MAP(LC_ENUM) LC_STATE_COUNT
};

/* X(symbol): named for what happened. */
#define LIFECYCLE_EVENT_MAP(X)                                                 \
    X(LC_EV_STARTED) /* worker: pid */                                         \
    X(LC_EV_START_FAILED) /* worker: error is the errno of fork or exec */     \
    X(LC_EV_EXITED) /* worker: wait_status */                                  \
    X(LC_EV_GROUP_GONE) /* worker: its process group is empty */               \
    X(LC_EV_ATTACHED) /* worker: it can be told of a failure */                \
    X(LC_EV_COLLATERAL) /* worker: a call of its failed through another rank   \
                         */                                                    \
    X(LC_EV_PEER_FAILED) /* a rank of another node has failed */               \
    X(LC_EV_ROUND_OVER) /* the round ends on every node, without a failure */  \
    X(LC_EV_STOP_SIGNAL) /* signal: asked from outside */                      \
    X(LC_EV_PARENT_LOST) /* whoever started the agent is dead */               \
    X(LC_EV_TIMER) /* the armed deadline is over */                            \
    X(LC_EV_CHILDREN_LEFT) /* all that ended is told, but children exist */    \
    X(LC_EV_CHILDREN_GONE) /* all is told, and there is no child */

enum lc_event_kind {
    LIFECYCLE_EVENT_MAP(LC_ENUM) LC_EVENT_COUNT
#undef LC_ENUM
};

const char *lc_state_name(enum lc_state state);
const char *lc_event_name(enum lc_event_kind kind);

struct lc_event {
    enum lc_event_kind kind;
    uint64_t now_ns;
    int worker; /* local rank, where the event is one of a worker */
    pid_t pid; /* STARTED */
    int wait_status; /* EXITED: as from waitpid */
    int error; /* START_FAILED */
    int signal; /* STOP_SIGNAL */
};

/* What the caller must do now, in order. */
enum lc_action_kind {
    LC_ACT_SIGNAL, /* signal to the process group of worker */
    LC_ACT_TELL, /* the first failure to every worker that is attached */
    LC_ACT_CHILDREN, /* signal to every child there is, known or adopted */
    LC_ACT_ARM, /* one LC_EV_TIMER at deadline_ns; replaces the last */
    LC_ACT_DISARM,
};

struct lc_action {
    enum lc_action_kind kind;
    int worker;
    int signal;
    uint64_t deadline_ns;
};

enum lc_worker_state { LC_WORKER_NEW, LC_WORKER_RUNNING, LC_WORKER_ENDED };

enum lc_outcome {
    LC_OUT_NONE, /* not ended, or never started */
    LC_OUT_SUCCESS, /* exit status 0 */
    LC_OUT_FAILED, /* ended badly by itself */
    LC_OUT_COLLATERAL, /* ended badly after a call of its failed through
                        * another rank, or after it was told of a failure */
    LC_OUT_STOPPED, /* ended, in whatever way, after it was told to */
    LC_OUT_NOT_BEGUN, /* fork or exec failed */
};

struct lc_worker {
    enum lc_worker_state state;
    enum lc_outcome outcome;
    pid_t pid;
    int wait_status;
    int start_error;
    int sent_signal; /* strongest signal it was sent, 0 for none */
    bool has_group; /* ended when told to; its group may still be busy */
    bool is_attached; /* is told of failures */
    bool is_collateral; /* was told of one, or said LC_EV_COLLATERAL */
    uint64_t started_ns;
    uint64_t ended_ns;
};

struct lifecycle {
    enum lc_state state;
    int nworkers;
    int nstarted;
    int nrunning;
    int ngroups; /* workers with has_group */
    struct lc_worker *workers; /* owned, nworkers */
    int first_failure; /* local rank, -1 while there is none */
    int stop_signal; /* 0 unless stopped from outside */
    bool is_parent_lost;
    bool is_cut; /* ended because of another node */
    bool was_swept; /* the strays have had their polite signal */
    bool gave_up; /* something could not be killed */
    uint64_t grace_ns; /* from the polite signal to SIGKILL */
    uint64_t failure_grace_ns; /* from the news of a failure to that signal */
    bool is_signal_due; /* STOPPING: attached workers have that time */
    uint64_t state_ns; /* when the state was entered */
    struct lc_action *actions; /* owned */
    size_t nactions;
};

/*
 * The kernel closes a dying process's descriptors before it tells of its
 * death. A peer that sees them close may so be told of first, if it gives up
 * at once. Therefore a death by a signal that becomes known this soon after
 * a plain exit is taken for the cause.
 */
#define LC_SETTLE_MS 50

#define LC_GRACE_DEFAULT_MS 30000
#define LC_FAILURE_GRACE_DEFAULT_MS 100
/* What successful workers left behind gets this long after SIGTERM. */
#define LC_STRAY_GRACE_MS 1000
/* After SIGKILL only a process stuck in the kernel is still there. */
#define LC_KILL_WAIT_MS 5000

int lifecycle_init(struct lifecycle *lc, int nworkers, uint64_t grace_ms,
    uint64_t failure_grace_ms, uint64_t now_ns);
void lifecycle_fini(struct lifecycle *lc);

/*
 * Exits are only noted until CHILDREN_LEFT or CHILDREN_GONE tells that there
 * are no more for now. So of workers that end together none is taken for
 * stopped on account of another one's failure, and the first one told is
 * the first failure: tell them in the order of their deaths.
 */

/* Takes one event; lc->actions then holds the nactions to carry out, valid
 * until the next call. An event that means nothing in the present state is
 * ignored. */
void lifecycle_step(struct lifecycle *lc, const struct lc_event *ev);

/* The exit status of crun, once the state is LC_DONE: 0 if every worker
 * succeeded, nobody asked for a stop and nothing is left, else 1. */
int lifecycle_exit_code(const struct lifecycle *lc);

/* Likewise, but as the first failure ended, or as a stop signal would have
 * ended it: the code, or 128 + signal; 126 or 127 for what did not start. */
int lifecycle_cause_code(const struct lifecycle *lc);

#endif
