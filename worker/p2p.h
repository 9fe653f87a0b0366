/*
 * Messages between two ranks of a group: what coll_send() and coll_recv() are
 * made of, and the steps of collectives where a transport has no better way.
 *
 * A receive takes, of the messages of one sender with its tag, the one that
 * was sent first. Types and counts must be equal: where they are not, the
 * receive fails with COLL_ERR_MISMATCH, and nothing is written behind the end
 * of its buffer.
 *
 * Whoever waits moves everybody's bytes: there is one driver at a time, and
 * the others sleep until theirs is done or the driver's place is free. A
 * thread does that only for messages for which nobody waits.
 */
#ifndef COLL_P2P_H
#define COLL_P2P_H

#include "backend.h"

#define P2P_ANY_SOURCE (-2)

struct p2p;

/* One message, sent or awaited. The caller's from p2p_post() until it is done;
 * the first fields are the caller's to set, and it must not move. */
struct p2p_op {
    bool is_send;
    bool is_step; /* of a collective: its tags are apart from the users' */
    int peer; /* rank in the group; P2P_ANY_SOURCE for a receive */
    int tag;
    coll_dtype_t dtype;
    size_t count;
    void *buf; /* read only if is_send */
    const struct coll_call *call; /* for sentences; p2p_run(): its deadline */
    /* NULL, or called once it is done, with its sentence as the thread's if it
     * has failed; outside of the engine's lock, by whoever drives. */
    void (*done_cb)(struct p2p_op *op);
    void *owner; /* for it */

    /* The result. A send is done when its buffer may be used again. */
    bool is_done; /* read it with p2p_is_done() */
    coll_status_t status;
    int source; /* a receive: who sent it */

    /* The engine's. */
    struct p2p_op *next; /* in a queue */
    struct p2p_op *after, **before; /* among all that are not done */
    size_t bytes;
    size_t moved; /* of them */
    unsigned int waiters; /* threads that wait for it and others */
    uint64_t number; /* in the order of posting */
    uint64_t from; /* in the sender's memory, or its memfd */
    bool is_mapped; /* that is what from is about */
    uint32_t id;
};

/* With the group's back end made. Threads and connections come with the first
 * message that needs them. On failure *out is untouched. */
coll_status_t p2p_create(struct p2p **out, struct coll_group *g);

/* Fails what is not done. Takes NULL. */
void p2p_destroy(struct p2p *p);

/* Starts all ops, whose order is that of the messages, and moves what can be
 * moved at once. Never waits. */
void p2p_post(struct p2p *p, struct p2p_op *const *ops, size_t n);

/*
 * Waits until all are done. The first status that is not COLL_OK is returned,
 * with its sentence. At deadline_ns: COLL_ERR_TIMEOUT with the ranks that were
 * waited for; what is not done goes on, and so does the group. Its end is that
 * of the operations' own calls: UINT64_MAX waits for no other.
 */
coll_status_t p2p_wait(
    struct p2p *p, struct p2p_op *const *ops, size_t n, uint64_t deadline_ns);

/* Moves what can be moved without waiting; whether the op is done. */
bool p2p_is_done(struct p2p *p, struct p2p_op *op);

/* From now on a thread moves messages while nobody waits. */
coll_status_t p2p_start_thread(struct p2p *p);

/* The group has failed with the calling thread's error sentence, which every
 * rank knows or will be told: fails what is not done, and what comes later.
 * From any thread; p may be NULL. */
void p2p_fail(struct p2p *p, coll_status_t status);

/* COLL_OK, or fails as everything does since it has failed. p may be NULL. */
coll_status_t p2p_failure(struct p2p *p);

/* In a forked child: closes the connections there, and nothing else. Takes
 * NULL. */
void p2p_after_fork(struct p2p *p);

/* Post and wait, for the steps of a collective: up to the call's deadline. A
 * time-out is the group's failure. */
coll_status_t p2p_run(struct p2p *p, struct p2p_op *ops, size_t n);

/*
 * For a rank that waits in a collective in another way than by messages, and
 * looks here from time to time: whether its wait makes no sense any more, since
 * somebody's time is over who waits for this rank in that operation or a later
 * one. Then, or when its own time is over, it calls p2p_await().
 */
bool p2p_is_asked(struct p2p *p, uint64_t seq);

/* Finds out on whose account the ranks that the call needs do not come, which
 * is COLL_ERR_TIMEOUT, or hears of another end of the group. Never COLL_OK. */
coll_status_t p2p_await(
    struct p2p *p, const struct coll_call *call, const int *ranks, size_t n);

#endif
