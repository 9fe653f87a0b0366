/*
 * The simulator: the membership, the participant and the workers' life cycle
 * of crun as they are, on a virtual clock and a simulated network, with faults.
 * One thread, no sockets, no real time. Everything that is left to chance comes
 * from one generator, so a seed tells all of a run.
 *
 *   engine.c   events in the order of their times, chance, the trace
 *   net.c      machines, processes, connections
 *   coord.c    the coordinator around membership.c, as coordinator.c is
 *   node.c     the agent around participant.c and lifecycle.c, as agent.c and
 *              node_link.c are, and who starts it again
 *   worker.c   the processes that it runs
 *   faults.c   what goes wrong
 *   check.c    what must hold
 */
#ifndef CRUN_SIM_H
#define CRUN_SIM_H

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>

#include <uthash.h>

#include "agent/lifecycle.h"
#include "agent/participant.h"
#include "rendezvous/base/buf.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/ring.h"
#include "rendezvous/membership.h"
#include "rendezvous/node_protocol.h"

#define SIM_MS CLOCK_NS_PER_MS
#define SIM_S CLOCK_NS_PER_S
#define SIM_NPROC_MAX 3
#define SIM_TRACE_LEN 48
#define SIM_WHY_MAX 512

struct sim;
struct agent;
struct coord;

/* --- engine.c ----------------------------------------------------------- */

/* X(symbol, name): what may go wrong. */
#define SIM_FAULT_MAP(X)                                                       \
    X(FAULT_CRASH, "crash")                                                    \
    X(FAULT_POWER, "power")                                                    \
    X(FAULT_FREEZE, "freeze")                                                  \
    X(FAULT_COORD_CRASH, "coord-crash")                                        \
    X(FAULT_COORD_FREEZE, "coord-freeze")                                      \
    X(FAULT_PARTITION, "partition")                                            \
    X(FAULT_COORD_PARTITION, "coord-partition")                                \
    X(FAULT_RESET, "reset")                                                    \
    X(FAULT_SLOW, "slow")                                                      \
    X(FAULT_SKEW, "skew")                                                      \
    X(FAULT_LEAVE, "leave")                                                    \
    X(FAULT_JOIN, "join")                                                      \
    X(FAULT_WORKER, "worker")                                                  \
    X(FAULT_HANG, "hang")

enum sim_fault {
#define SIM_ENUM(symbol, name) symbol,
    SIM_FAULT_MAP(SIM_ENUM) FAULT_COUNT
#undef SIM_ENUM
};

/* Changes of who takes part that are wanted: nothing fails. */
#define SIM_CLEAN_FAULTS ((1u << FAULT_LEAVE) | (1u << FAULT_JOIN))

typedef void sim_event_fn(struct sim *s, void *obj, uint64_t arg);

struct sim_event {
    uint64_t at_ns;
    uint64_t seq; /* of two at one time the older one is first */
    sim_event_fn *fn;
    void *obj;
    uint64_t arg;
};

struct sim_trace {
    uint64_t at_ns;
    const char *what; /* static */
    const char *detail; /* static or NULL */
    int64_t a, b;
};

struct sim_options {
    uint64_t seed;
    int nodes; /* 0: by the seed */
    int until_s; /* when the faults stop; 0: by the seed */
    int64_t faults; /* bits; -1: by the seed */
    bool is_verbose;
};

void sim_at(
    struct sim *s, uint64_t at_ns, sim_event_fn *fn, void *obj, uint64_t arg);
void sim_after(
    struct sim *s, uint64_t ns, sim_event_fn *fn, void *obj, uint64_t arg);
/* Runs the next event, if there is one before until_ns. */
bool sim_step(struct sim *s, uint64_t until_ns);

uint64_t sim_random(struct sim *s);
/* From lo to hi, both included. */
uint64_t sim_between(struct sim *s, uint64_t lo, uint64_t hi);
bool sim_chance(struct sim *s, int percent);

void sim_trace(
    struct sim *s, const char *what, const char *detail, int64_t a, int64_t b);
void sim_print_trace(const struct sim *s);

/* Runs one seed to its end; false: an invariant is violated, and s->violation
 * says which. sim_fini() in any case. */
bool sim_run(struct sim *s, const struct sim_options *options);
void sim_fini(struct sim *s);

/* --- net.c -------------------------------------------------------------- */

/* A host, with a clock of its own. */
struct machine {
    int64_t offset_ns;
    int64_t rate; /* thousandths that its clock is fast or slow by */
    bool is_up;
    bool is_apart; /* nothing gets in or out */
    uint64_t delay_ns; /* of its messages, beside what all have */
};

/* What can die, or stand still, as a whole. */
struct process {
    struct ring link; /* of those that are nobody's */
    struct machine *machine;
    bool is_alive;
    uint64_t frozen_until_ns;
    struct ring ends; /* of connections */
};

/* Set on the process's clock; late while it stands still. */
struct sim_timer {
    struct process *process;
    void (*fn)(void *arg);
    void *arg;
    uint64_t gen; /* older events are void */
};

struct chunk;

/* One side of a connection: what rendezvous/node_conn.c is. */
struct end {
    struct ring link; /* in its process */
    struct conn *conn;
    struct process *process;
    void (*message)(void *arg, const struct node_msg *msg);
    void (*ended)(void *arg, const char *why);
    void *arg;
    bool is_open;
    bool is_owned; /* until end_close() */
    bool is_flushing;
    bool is_stuck; /* a frame did not fit */
    struct buf out;
    struct chunk *first, *last; /* on their way to here, in order */
    uint64_t last_ns;
};

/* A TCP connection: bytes arrive in order, late, or not at all, and then
 * nothing follows. */
struct conn {
    struct ring link; /* of all there are */
    struct sim *sim;
    struct end ends[2]; /* the agent's, the coordinator's */
    bool is_cut; /* nothing gets through any more */
    int nrefs; /* events and owners */
};

uint64_t machine_now(const struct sim *s, const struct machine *m);
/* Keeps the time that it shows. */
void machine_set_rate(struct sim *s, struct machine *m, int64_t rate);

void process_init(struct process *p, struct machine *m);
/* SIGKILL, or an exit: the kernel closes what it had open. */
void process_end(struct sim *s, struct process *p);
/* Its machine has lost power: nobody is told anything. */
void process_vanish(struct sim *s, struct process *p);
/* An event of the process: false if it is dead, or stands still; then the event
 * comes again. */
bool process_takes(struct sim *s, struct process *p, sim_event_fn *fn,
    void *obj, uint64_t arg);

void timer_set(struct sim *s, struct sim_timer *t, uint64_t local_ns);
void timer_stop(struct sim_timer *t);

/* How long a message takes between them. */
uint64_t net_delay(
    struct sim *s, const struct machine *a, const struct machine *b);
bool net_is_open(const struct machine *a, const struct machine *b);

struct conn *conn_create(
    struct sim *s, struct process *client, struct process *server);
void end_send(struct end *e, const struct node_msg *msg);
void conn_free(struct conn *c);
/* Frees it if nothing refers to it any more. */
void conn_release(struct conn *c);
/* What is queued is sent, then the end of the stream. Whoever has an end owes
 * it this, also after ended(). */
void end_close(struct end *e);
/* Something between the two forgets the connection; some of them hear of it. */
void conn_reset(struct conn *c);

/* --- coord.c ------------------------------------------------------------ */

struct coord_node;

struct coord {
    struct sim *sim;
    struct process *process;
    bool is_open; /* to any job: crund; else the one of a node's agent */
    struct ring link; /* of all there ever were */
    struct membership *job; /* owned; NULL: none at the moment */
    struct ring nodes;
    const struct node_msg *joining; /* while that is at work */
    struct ring gone; /* nodes that have been; events may name them */
    struct sim_timer timer;
    uint64_t due_ns;
    bool is_empty; /* the job has no nodes */
    struct sim_timer keep_timer; /* so long it is kept */
};

struct coord *coord_create(struct sim *s, struct process *p, bool is_open);
void coord_accept(struct coord *c, struct end *e);
/* The process ends, or has ended. */
void coord_destroy(struct coord *c);
void coord_free(struct coord *c);
/* The connection of one of its nodes, or NULL. */
struct conn *coord_some_conn(struct coord *c, int which);

/* --- node.c ------------------------------------------------------------- */

enum sim_link_state {
    SIM_LINK_PAUSING,
    SIM_LINK_CONNECTING,
    SIM_LINK_GREETING,
    SIM_LINK_UP,
    SIM_LINK_ENDED,
};

/* As agent/node_link.c. */
struct sim_link {
    enum sim_link_state state;
    uint64_t deadline_ns;
    uint64_t pause_ms;
    uint64_t heard_ns;
    uint64_t keep_alive_ms;
    int keep_alive_attempts;
    uint64_t gen; /* of the attempt */
    bool is_lasting;
    bool was_up;
    bool has_joined; /* JOIN is sent */
    struct sim_timer timer;
    struct end *end;
};

struct sim_worker {
    struct agent *agent;
    int local_rank;
    uint64_t gen; /* older events are void */
    bool is_alive;
    bool is_dead; /* and not reaped */
    bool is_attached;
    bool is_blocked; /* waits for workers that will not come */
    bool is_stubborn; /* ends by SIGKILL only */
    bool is_leaving; /* its end is on its way */
    int wait_status;
    uint64_t dead_seq;
    uint64_t group_until_ns; /* something is in its group */
};

/* One run of crun on a node. */
struct agent {
    struct ring link; /* of all there ever were */
    struct sim *sim;
    struct sim_node *node;
    int number; /* counted up, over all nodes */
    struct process process;
    struct participant part;
    struct lifecycle life;
    struct sim_worker workers[SIM_NPROC_MAX];
    int nstrays;
    int told_failure;
    bool is_starting;
    bool is_round_due;
    bool is_finishing;
    bool is_exited; /* by itself */
    bool is_success;
    bool knows_failure; /* of its last round */
    uint64_t finished_ns;
    struct round *round; /* that its workers are of */
    struct sim_link net;
    struct sim_timer life_timer;
    struct sim_timer group_timer;
    struct coord *coord; /* owned; NULL: elsewhere */
};

struct sim_node {
    int index;
    int nproc;
    struct machine machine;
    struct agent *agent; /* the last one; NULL: none yet */
    int nlive; /* workers */
    bool is_coming; /* somebody starts it soon */
};

void node_start(struct sim *s, struct sim_node *n);
void node_start_later(struct sim *s, struct sim_node *n, uint64_t ns);
bool node_is_running(const struct sim_node *n);
void agent_crash(struct agent *a, bool is_power);
void agent_stop_signal(struct agent *a, int sig);
void agent_settle(struct agent *a);
void agent_post(struct agent *a, struct lc_event ev);
uint64_t agent_now(const struct agent *a);
void agent_free(struct agent *a);

/* --- worker.c ----------------------------------------------------------- */

void worker_start(struct agent *a, int local_rank);
void worker_signal(struct agent *a, int local_rank, int sig);
/* A worker elsewhere has failed, says the agent. */
void workers_tell(struct agent *a);
void workers_signal_strays(struct agent *a, int sig);
/* The agent is dead, and they with it. */
void workers_die(struct agent *a);
/* One that runs fails. */
void worker_fail(struct agent *a, int local_rank);

/* --- faults.c ----------------------------------------------------------- */

void faults_start(struct sim *s);
/* The coordinator says something: a moment at which it matters what dies. */
void faults_tempt(struct sim *s, const struct node_msg *msg, struct conn *conn);

/* --- check.c ------------------------------------------------------------ */

/* What is known of a round, by its id. */
struct round {
    UT_hash_handle hh;
    uint64_t id;
    struct node_msg place; /* as told to the first node */
    struct agent **agents; /* owned, by group rank; NULL: not begun */
    int *nproc; /* owned, by group rank */
    int *nzero; /* likewise: workers that ended with 0 */
    bool *taken; /* owned, by rank */
    int nstarted; /* nodes */
    bool is_broken; /* a worker has ended badly */
    int job; /* which membership told of it: sim.njobs */
    int resumed_job; /* the last one that went on with it */
    bool is_failed; /* by what that one has heard */
    bool is_told_failed; /* to a node */
    bool is_left; /* it failed because a node was leaving */
    bool has_verdict;
    struct node_msg verdict;
    int verdict_job;
};

__attribute__((format(printf, 3, 4))) void check_fail(
    struct sim *s, int invariant, const char *fmt, ...);
struct round *check_round_begins(struct agent *a);
void check_told(struct agent *a, const struct node_msg *msg);
void check_coordinator_says(
    struct coord *c, const struct member *m, const struct node_msg *msg);
void check_coordinator_hears(
    struct coord *c, const struct member *m, const struct node_msg *msg);
void check_let_in(struct coord *c, const struct member *m,
    const struct node_msg *join, bool was_new);
void check_joins(struct coord *c, const struct node_msg *join);
void check_node_lost(struct coord *c, const struct member *m);
void check_gives_up(struct coord *c, uint64_t now_ns);
void check_membership(struct sim *s, const struct membership *ms);
void check_end(struct sim *s);
void check_fini(struct sim *s);

/* --- The world ---------------------------------------------------------- */

struct sim {
    struct sim_options options;
    uint64_t random;
    uint64_t now_ns;
    uint64_t seq;
    uint64_t nnow; /* events at the present time */
    struct sim_event *heap; /* owned */
    size_t nheap, heap_cap;
    struct sim_trace trace[SIM_TRACE_LEN];
    uint64_t ntrace;
    uint64_t hash; /* of all of the trace */
    char violation[SIM_WHY_MAX]; /* "": none */

    /* What the seed has chosen. */
    struct membership_settings settings;
    unsigned faults;
    uint64_t faults_end_ns;
    uint64_t end_ns; /* by then everybody has finished */
    uint64_t fault_gap_ns;
    uint64_t grace_ms, failure_grace_ms;
    uint64_t coordinator_timeout_ms;
    uint64_t work_ns; /* of a worker, at most */
    uint64_t base_delay_ns;
    bool is_hosted; /* the coordinator is of node 0's agent */
    bool is_coupled; /* workers wait for each other */
    int noticed; /* percent of them that fail when another one is gone */
    bool is_patient; /* restarts enough for any fault */
    bool is_long; /* workers are not done before the faults are over */

    int nnodes;
    struct sim_node *nodes; /* owned */
    struct ring agents;
    struct agent **by_number; /* owned; the same */
    int nagents;
    struct machine coord_machine; /* unless it is hosted */
    struct ring conns;
    struct ring coords;
    struct ring processes; /* of coordinators that are nobody's */
    struct coord *coord; /* that listens; NULL: nobody does */
    int njobs; /* memberships that have been */

    /* For check.c. */
    struct round *rounds; /* uthash */
    int nrounds; /* that began */
    int nfailed; /* of those that another one followed */
    struct round *last_round;
    int known_count; /* restarts that a node of the present job knew of */
    bool has_known; /* one was in a round that the job began with */
    int known_job; /* which that is */
    const struct member *stopped; /* that STOP was said to last */
    int failed_job; /* that a node was told of; by sim.njobs */
    struct round *success_round; /* the last one */
    int success_job;
    uint64_t success_ns; /* when the first node was told of it; 0 */
    uint64_t nmsgs; /* but PING and PONG */
    uint64_t nallowed; /* of them */
    uint64_t dead_seq;
    uint64_t nevents;
    uint64_t started_ns; /* when all of the first round had begun */
    uint64_t started_msgs;
};

#endif
