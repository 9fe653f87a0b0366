/*
 * What one node does in a job of several, as a pure state machine between the
 * coordinator's messages and the life of the node's workers: events in, what is
 * to be done out through callbacks.
 *
 *   WAITING  for a round; nothing of its own runs
 *   RUNNING  it is in a round: workers are started, run, or are being ended
 *   ENDED    nothing is left of them; the coordinator says what follows
 *   OVER     for this node the job is over
 *
 * The connection may be lost meanwhile. With a coordinator that may come back
 * the workers go on, and what was said of the round is said again to the next
 * one; with another one this is the end.
 */
#ifndef CRUN_AGENT_PARTICIPANT_H
#define CRUN_AGENT_PARTICIPANT_H

#include <stdbool.h>
#include <stdint.h>

#include "rendezvous/node_protocol.h"

enum participant_state {
    PARTICIPANT_WAITING,
    PARTICIPANT_RUNNING,
    PARTICIPANT_ENDED,
    PARTICIPANT_OVER,
};

/* None of them may call back into the participant. */
struct participant_callbacks {
    void (*send)(void *arg, const struct node_msg *msg);
    /* From these addresses, with blanks between them, workers come; is_first:
     * nobody else's do any more. */
    void (*allow_peers)(void *arg, const char *addrs, bool is_first);
    /* A new one, without the keys of the one before. 0 or a negative errno. */
    int (*open_store)(void *arg);
    void (*close_store)(void *arg);
    /* Workers, as place says; then participant_ended() in any case. */
    void (*start)(void *arg);
    /* why: NODE_FAILED, NODE_STOP, NODE_CLOSED, or NULL if the coordinator is
     * lost for good. Also before they have been started. */
    void (*end_workers)(void *arg, const struct node_msg *why);
    /* Something that the user may want to know: NODE_VERDICT, NODE_PARKED,
     * NODE_CLOSED. */
    void (*tell)(void *arg, const struct node_msg *msg);
    void (*finish)(void *arg);
};

struct participant {
    struct participant_callbacks callbacks;
    void *arg;
    uint64_t agent_id;
    enum participant_state state;
    struct node_msg place; /* NODE_ROUND, of the last round; round -1: none */
    int restart_count; /* of the job */
    int peers_round; /* that NODE_PEERS was about last; -1: none */
    enum node_result result; /* ENDED */
    bool was_parked; /* as a spare; no round since */
    bool is_done; /* the verdict on the round is known */
    bool has_failure; /* a worker here has failed in the round */
    struct node_msg failure; /* NODE_FAILED; ago_ns is not kept */
    uint64_t failure_ns; /* when it happened */
    bool has_why;
    struct node_msg why; /* the round is over: FAILED or STOP, from elsewhere */
    uint64_t why_ns; /* when it was heard */
    bool has_cause;
    struct node_msg cause; /* NODE_VERDICT, of the last round that failed */
    bool is_leaving;
    char leave_text[NODE_TEXT_MAX];
    bool is_last; /* no round follows for this node */
    bool is_closed; /* the coordinator has said so */
    bool is_success; /* of the job, as far as is known */
};

void participant_init(struct participant *p,
    const struct participant_callbacks *callbacks, void *arg,
    uint64_t agent_id);

/* Adds to NODE_JOIN what the coordinator has to know of the last round. */
void participant_join(const struct participant *p, struct node_msg *join);

/* A message of the coordinator's; WELCOME, too. */
void participant_message(
    struct participant *p, const struct node_msg *msg, uint64_t now_ns);

/* The coordinator is lost, and will not come back. */
void participant_abandoned(struct participant *p);

/* The first failure of a worker of the round; again, if another one turns out
 * to be its cause. */
void participant_failed(struct participant *p, const struct node_msg *failure,
    uint64_t happened_ns, uint64_t now_ns);

/* Nothing is left of the round's workers on this node. */
void participant_ended(struct participant *p, enum node_result result);

/* This node is asked to stop; the others may go on. Its workers are ended by
 * the caller. */
void participant_leave(struct participant *p, const char *why);

/* It can do nothing more: workers that cannot be ended, no memory. The
 * coordinator takes it for lost. */
void participant_give_up(struct participant *p);

#endif
