/*
 * Who is in the job: nodes join and leave, die and wait as spares; rounds
 * begin when enough of them are there, and end by success, by a failure or
 * because the set of nodes changes. A pure state machine, run by the
 * coordinator: events in, messages out through a callback, the time passed in.
 *
 *   GATHERING  nodes wait for a round. It begins when max_nodes are there; with
 *              min_nodes or more after a last call for others, which is left
 *              out where everybody of the round before is still there
 *   PREPARING  group rank 0 opens the store of the round
 *   RUNNING    every node of the round runs its workers
 *   STOPPING   the round is over; until nothing is left of its workers on any
 *              node there is no other
 *   DELAY      the restart waits (--restart_delay)
 *   CLOSED     the job is over, and everybody has been told
 *
 * A coordinator that is started again knows nothing. The nodes tell what they
 * were in when they join, and the round goes on from there: the first one
 * shows how many belong to it, and the others are awaited for a while.
 *
 * A node that was taken for lost may come back while its workers still run, of
 * a round that went on or ended without it. It is told to end them and is one
 * that waits when it has.
 */
#ifndef CRUN_RENDEZVOUS_MEMBERSHIP_H
#define CRUN_RENDEZVOUS_MEMBERSHIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <uthash.h>

#include "rendezvous/base/err.h"
#include "rendezvous/base/ring.h"
#include "rendezvous/node_protocol.h"

/* As in one node's lifecycle: so long the first cause may still become known,
 * since a peer that sees connections close can be heard of before the one
 * whose death closed them. */
#define MEMBERSHIP_SETTLE_MS 50

/* A node that has not opened the store by then is lost: the others wait. */
#define MEMBERSHIP_PREPARE_MS 10000

/* Nodes of a round that are not back by then, after the coordinator was, are
 * lost: what an agent needs to notice that its connection is dead, and this,
 * while it tries once a second. */
#define MEMBERSHIP_RETURN_MS 5000

/* More nodes than this no job has. */
#define MEMBERSHIP_NODES_MAX 65536

struct membership_settings {
    char run_id[NODE_RUN_ID_MAX];
    bool has_agent_store; /* rank 0's agent hosts it, and not rank 0 */
    /* Of the node that hosts this; 0: none does. Static: it is node rank 0. */
    uint64_t host_agent_id;
    char host[NODE_HOST_MAX];
    int host_pid;
    bool is_static; /* group rank is node rank; nobody can be spared */
    int min_nodes;
    int max_nodes;
    int max_restarts;
    uint64_t join_timeout_ms; /* from the first node, or the end of a round */
    uint64_t last_call_ms;
    uint64_t keep_alive_ms; /* between two signs of life of a node */
    int keep_alive_attempts; /* missed, and it is lost */
    uint64_t restart_delay_ms; /* before the first restart; then doubled */
    uint64_t restart_delay_max_ms;
    int crash_loop_count; /* 0: never */
    uint64_t crash_loop_ms;
    bool is_lasting; /* nodes may wait for another coordinator at this place */
    uint64_t id; /* of this coordinator: random */
    /* static: where every round's store is */
    char master_addr[NODE_HOST_MAX];
    int master_port; /* 0: at the port of group rank 0, as else */
};

enum membership_phase {
    MEMBERSHIP_GATHERING,
    MEMBERSHIP_PREPARING,
    MEMBERSHIP_RUNNING,
    MEMBERSHIP_STOPPING,
    MEMBERSHIP_DELAY,
    MEMBERSHIP_CLOSED,
};

enum member_state {
    MEMBER_WAITING, /* for a round; its workers, if any, are reaped */
    MEMBER_ACTIVE, /* in the round; it may have workers */
    MEMBER_ENDED, /* in the round; nothing is left of its workers */
    MEMBER_STALE, /* has workers of a round that is not its any more */
};

/* One node. */
struct member {
    struct ring link;
    UT_hash_handle by_agent;
    UT_hash_handle by_rank; /* static */
    void *owner; /* the connection: the caller's */
    enum member_state state;
    uint64_t number; /* counted up as they join */
    uint64_t seen_ns;
    int group_rank; /* of its last round */
    int round; /* which that was; -1: none */
    enum node_result result; /* ENDED */
    bool is_leaving;
    bool is_parked;
    int node_rank;
    int nproc;
    int store_port;
    int pid;
    uint64_t agent_id;
    char host[NODE_HOST_MAX];
    char role[NODE_ROLE_MAX];
    char addr[NODE_ADDR_MAX]; /* that the other nodes see */
    char addrs[NODE_ADDRS_MAX]; /* others that its workers may come from */
};

/* A group rank of the round. */
struct place {
    struct member *m; /* NULL: lost, or not back yet */
    bool is_awaited;
};

/* May not call back into the membership. */
struct membership_callbacks {
    void (*send)(void *arg, struct member *m, const struct node_msg *msg);
    /* It is out, for that reason: its connection ends after what was sent. m
     * is gone when the call that led here returns. */
    void (*drop)(void *arg, struct member *m, const char *why);
};

struct membership {
    struct membership_settings settings;
    struct membership_callbacks callbacks;
    void *arg;
    enum membership_phase phase;
    uint64_t phase_ns; /* when it was entered */
    struct ring members;
    struct member *agents; /* the same, by agent_id */
    struct member *ranks; /* and by node_rank */
    int nmembers;
    int ncandidates; /* that could be in a round */
    uint64_t next_number;
    int round; /* the present or last one; -1: none yet */
    uint64_t round_id;
    int last_round; /* the highest number that was ever given */
    int restart_count;
    int round_restart_count; /* of the round */
    struct place *group; /* owned, by group rank */
    int group_size;
    int nactive; /* of the group; those that are awaited, too */
    int nawaited;
    uint64_t await_ns; /* until when */
    int nsucceeded;
    uint64_t last_call_ns; /* when it is over; 0: none runs */
    bool has_lost; /* a node is missing that the round before had */
    bool is_resumed; /* by what nodes of another coordinator told */
    bool is_counted; /* round_restart_count is not the present count any more */
    bool has_failure;
    struct node_msg failure; /* NODE_FAILED: the first one so far */
    uint64_t failure_ns; /* when it happened */
    uint64_t heard_ns; /* when the first one was heard of */
    uint64_t round_ns; /* when the round's workers were started */
    uint64_t delay_ms; /* of the next restart */
    uint64_t delay_until_ns;
    uint64_t check_ns; /* when to look for silent nodes next */
    int nshort;
    int result; /* CLOSED: 0 is a success */
    char why[NODE_TEXT_MAX]; /* CLOSED */
};

void membership_init(struct membership *ms,
    const struct membership_settings *settings,
    const struct membership_callbacks *callbacks, void *arg, uint64_t now_ns);
void membership_fini(struct membership *ms); /* frees the members, too */

/* The coordinator ends: whoever is there is told why, unless the job was over.
 */
void membership_close(struct membership *ms, const char *why, uint64_t now_ns);

/*
 * A node asks to be let in; addr is what others reach it by. Returns the
 * member, which has been sent WELCOME, or NULL: then e says why it is refused,
 * for the node's user and this side's log.
 */
struct member *membership_join(struct membership *ms, void *owner,
    const struct node_msg *join, const char *addr, uint64_t now_ns,
    struct err *e);

/* Any other message. -EPROTO: it makes no sense, and the node is to be treated
 * as lost. */
int membership_message(struct membership *ms, struct member *m,
    const struct node_msg *msg, uint64_t now_ns);

/* Its connection has ended, for the reason that is given. Frees m. */
void membership_lost(
    struct membership *ms, struct member *m, const char *why, uint64_t now_ns);

/* It has said NODE_AWAY: its workers run on, and it is awaited in its round.
 * Frees m. */
void membership_away(struct membership *ms, struct member *m, uint64_t now_ns);

/* The time that membership_due_ns() named has come. */
void membership_tick(struct membership *ms, uint64_t now_ns);

/* UINT64_MAX: nothing is waited for. */
uint64_t membership_due_ns(const struct membership *ms);

#endif
