/*
 * Messages between two ranks: what the files of p2p.h share.
 *
 *   p2p.c        the calls, and who moves the bytes while others wait
 *   p2p_match.c  which message goes to which receive, and the protocol
 *   p2p_shm.c    the bytes of two ranks of one node
 *
 * Two ranks have a channel: a stream of bytes in each direction. Neither
 * blocks. On it travel headers, some with data behind them:
 *
 *   EAGER  a small message, whole: the receiver keeps it until it is asked for
 *   RTS    "ready to send": a large one waits in the sender's buffer
 *   CTS    the answer to an RTS, once there is a receive for it
 *   DATA   a part of it
 *   FIN    or: the receiver has taken it from the sender's memory itself
 *
 * The headers EAGER and RTS come in the order of the sends, so the first one
 * that fits a receive is the right one.
 */
#ifndef COLL_P2P_INTERNAL_H
#define COLL_P2P_INTERNAL_H

#include <stdatomic.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "p2p.h"
#include "shm_internal.h"

enum p2p_header_kind { P2P_EAGER, P2P_RTS, P2P_CTS, P2P_DATA, P2P_FIN };

#define P2P_MAGIC 0x7032u

struct p2p_header {
    uint16_t magic;
    uint8_t kind;
    uint8_t is_step;
    int32_t tag;
    uint32_t dtype;
    uint32_t id; /* RTS and what follows it: the sender's number for it */
    uint64_t count; /* elements; DATA: bytes behind the header */
    uint64_t at; /* RTS: where the data lies in the sender's memory */
};

_Static_assert(sizeof(struct p2p_header) == 32, "headers have no holes");

/* Messages that no receive has asked for, of all ranks together: beyond this
 * the group has failed, because nobody means that. */
#define P2P_UNEXPECTED_MAX ((size_t)1 << 30)

struct p2p_queue {
    struct p2p_op *first;
    struct p2p_op **end; /* NULL means &first */
};

/* A message that came before its receive. */
struct p2p_unexpected {
    struct p2p_unexpected *next;
    struct p2p_header header;
    uint64_t arrival; /* to compare those of several ranks */
    size_t bytes; /* of data here; RTS: 0 */
    bool is_whole;
    struct p2p_op *op; /* NULL, or who waits for the rest of it */
    char data[];
};

struct p2p_peer;

struct p2p_channel_ops {
    size_t eager_max; /* bytes that a message of kind EAGER may have */
    size_t chunk; /* data of one DATA */
    /* Bytes taken, 0 if there is no room, or a negative errno: -EPIPE if the
     * other side has ended. */
    ssize_t (*send)(struct p2p_peer *peer, const struct iovec *iov, int count);
    /* Bytes given, 0 if there are none, or likewise. */
    ssize_t (*recv)(struct p2p_peer *peer, void *buf, size_t len);
    /* Takes a part of what a rank has announced from its memory: bytes, or a
     * negative errno. NULL: never. */
    ssize_t (*pull)(
        struct p2p_peer *peer, void *buf, uint64_t from, size_t len);
    void (*close)(struct p2p_peer *peer);
};

/* See p2p_shm.c. */
struct p2p_ring;

struct p2p_pipe {
    int index; /* the peer's rank in the segment */
    pid_t pid;
    struct p2p_ring *out; /* NULL until the first message */
    struct p2p_ring *in;
    uint32_t out_head; /* where the next byte goes */
    uint32_t out_tail; /* up to where there is known to be room */
    uint32_t in_tail; /* where the next byte is */
    uint32_t in_told; /* up to where the sender has been told so */
};

/* Header and data of one message on their way out. */
struct p2p_out {
    struct p2p_header header;
    size_t header_left;
    const char *at;
    size_t left;
    struct p2p_op *op; /* NULL, or whose it is */
};

/* One message on its way in. */
struct p2p_in {
    struct p2p_header header;
    size_t have; /* bytes of the header */
    char *at;
    size_t left; /* of the data */
    struct p2p_op *op; /* whose it is, or */
    struct p2p_unexpected *unexpected; /* where it is kept */
};

struct p2p_peer {
    struct p2p *p2p;
    const struct p2p_channel_ops *ops;
    int rank;
    int pending; /* operations that need this rank */
    bool can_pull; /* until the first refusal */
    bool has_ended; /* nothing more comes from it or goes to it */
    uint32_t last_id;
    struct p2p_out out;
    struct p2p_in in;
    struct p2p_queue sends; /* not announced yet */
    struct p2p_queue announced; /* RTS is out */
    struct p2p_queue streaming; /* CTS has come */
    struct p2p_queue recvs; /* of this rank, nothing has come */
    struct p2p_queue pulling; /* being taken from the sender's memory */
    struct p2p_queue taking; /* CTS is queued, or out */
    struct p2p_unexpected *kept, **kept_end;
    /* Headers without data that wait for room. */
    struct p2p_header *replies;
    size_t replies_count, replies_room;
    struct p2p_pipe pipe;
};

struct p2p {
    struct coll_group *g;
    pthread_mutex_t lock; /* of all below */
    struct p2p_peer **peers; /* [size] by rank, NULL until needed */
    struct p2p_peer **active; /* [active_count] the others */
    int active_count;
    struct p2p_queue any; /* receives from any rank */
    uint64_t posted; /* so far: numbers the receives */
    uint64_t arrivals;
    size_t kept_bytes;
    struct p2p_op *outstanding; /* all that are not done */
    struct p2p_op *to_report; /* done, and their done_cb is to be called */
    coll_status_t failure;
    char failure_text[512];
    bool *set; /* [size] scratch for error texts */

    /* --- p2p.c: who drives --- */
    bool is_driven; /* somebody who waits moves everything */
    bool is_asleep; /* somebody is in epoll_wait() */
    bool has_finished; /* an operation of somebody else, perhaps */
    int followers; /* asleep on has_changed */
    pthread_cond_t has_changed;
    int epoll; /* -1 until the first sleep */
    int wake_fd; /* in it: an eventfd */
    unsigned int polls; /* of p2p_is_done() in vain */
    bool has_thread;
    bool thread_is_polling; /* it sleeps in epoll_wait() */
    bool thread_is_parked; /* it sleeps on has_work */
    bool is_ending;
    pthread_t thread;
    pthread_cond_t has_work;

    /* --- p2p_shm.c --- */
    struct shm_state *shm; /* NULL: no other rank is on this node */
    enum shm_lane lane;
    const int *local; /* [shm->size] ranks of the group; NULL: the same */
    const int *indices; /* [size] the reverse */
    uint32_t pipes_seen;
    bool may_pull;
};

static inline int p2p_rank_of(const struct p2p *p, int index)
{
    return p->local == NULL ? index : p->local[index];
}

/* --- p2p_match.c. All under the lock ---------------------------------------
 *
 * Failing means the whole of the engine: p2p_fail_all() has been called. */

/* Starts one; op's private fields are set. */
void p2p_start(struct p2p *p, struct p2p_op *op);

/* Takes in what has come from a rank, sends what waits. Whether that was
 * anything. */
bool p2p_move(struct p2p *p, struct p2p_peer *peer);

/* Has done_cb called, if there is one, once the lock is given back. */
void p2p_report(struct p2p *p, struct p2p_op *op);

/* Fails everything with the thread's error sentence, and what comes later,
 * and tells the other ranks. */
void p2p_fail_all(struct p2p *p, coll_status_t status);

/* The same without telling anybody. */
void p2p_end_all(struct p2p *p, coll_status_t status);

/* NULL: has failed. */
struct p2p_peer *p2p_peer_get(struct p2p *p, int rank);

void p2p_peer_free(struct p2p_peer *peer);

/* What an operation is called in sentences: the collective that it is a step
 * of, or send or recv with its tag. */
struct coll_call p2p_call_of(const struct p2p_op *op);

/* --- p2p_shm.c ----------------------------------------------------------- */

/* Makes the channel to a rank of this node. */
void p2p_shm_open(struct p2p *p, struct p2p_peer *peer);

/* Makes new pipes known; whether there were any. */
bool p2p_shm_accept(struct p2p *p);

/* Before a sleep, then look again; and after it. */
void p2p_shm_arm(struct p2p *p);
void p2p_shm_disarm(struct p2p *p);

/* Fails the engine if a rank has said that it gives up, or has ended without
 * having done what is needed of it. */
void p2p_shm_check(struct p2p *p);

#endif
