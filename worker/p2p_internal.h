/*
 * Messages between two ranks: what the files of p2p.h share.
 *
 *   p2p.c        the calls, and who moves the bytes while others wait
 *   p2p_match.c  which message goes to which receive, and the protocol
 *   p2p_check.c  whether what is waited for can still come
 *   p2p_late.c   and if it does not come in time, who is to blame
 *   p2p_shm.c    the bytes of two ranks of one node
 *   p2p_memory.c and those that lie in memory of coll_alloc()
 *   p2p_tcp.c    those of two others, p2p_door.c how they come to connect
 *
 * Two ranks have a channel: a stream of bytes in each direction. Neither
 * blocks. On it travel headers, some with data behind them:
 *
 *   EAGER  a small message, whole: the receiver keeps it until it is asked for
 *   RTS    "ready to send": a large one waits in the sender's buffer
 *   CTS    the answer to an RTS, once there is a receive for it
 *   DATA   a part of it
 *   FIN    or: the receiver has taken it from the sender's memory itself
 *   LEFT   the last word over TCP of a rank that leaves
 *   ASK    "my time is over: do you wait yourself?", or no longer
 *   WAITS  the answer, if so; p2p_late.c has the rules
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
#include "tcp_internal.h"

enum p2p_header_kind {
    P2P_EAGER,
    P2P_RTS,
    P2P_CTS,
    P2P_DATA,
    P2P_FIN,
    P2P_LEFT,
    P2P_ASK,
    P2P_WAITS,
};

/* What ASK is about: a collective's number, or one of these. */
#define P2P_ASK_NOTHING ((uint64_t)0)
#define P2P_ASK_MESSAGE UINT64_MAX

#define P2P_MAGIC 0x7032u

struct p2p_header {
    uint16_t magic;
    uint8_t kind;
    uint8_t is_step;
    int32_t tag;
    uint16_t dtype;
    uint16_t is_mapped; /* RTS: in memory that the receiver can map */
    uint32_t id; /* RTS and what follows it: the sender's number for it; ASK
                  * and WAITS: the asker's */
    uint64_t count; /* elements; DATA: bytes behind the header; LEFT: after
                     * which operation; ASK: what it is about */
    uint64_t at; /* RTS: where the data lies in the sender's memory, or in its
                  * memfd if is_mapped */
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

enum p2p_end { P2P_GOES_ON, P2P_HAS_LEFT, P2P_HAS_DIED };

struct p2p_channel_ops {
    size_t eager_max; /* bytes that a message of kind EAGER may have */
    size_t chunk; /* data of one DATA, or taken at a time */
    size_t pull_min; /* bytes that are worth a pull */
    /* Bytes taken, 0 if there is no room, or a negative errno: -EPIPE if the
     * other side has ended. */
    ssize_t (*send)(struct p2p_peer *peer, const struct iovec *iov, int count);
    /* Bytes given, 0 if there are none, or likewise. */
    ssize_t (*recv)(struct p2p_peer *peer, void *buf, size_t len);
    /* Takes a part of what a rank has announced from its memory: bytes, or a
     * negative errno. NULL: never. */
    ssize_t (*pull)(
        struct p2p_peer *peer, void *buf, uint64_t from, size_t len);
    /* Whether the other side may copy these data from memory that it maps, and
     * where they are in it. NULL: never. */
    bool (*find)(
        struct p2p_peer *peer, const void *buf, size_t len, uint64_t *at);
    /* Copies a part of such data: len, or a negative errno. NULL likewise. */
    ssize_t (*copy)(struct p2p_peer *peer, void *buf, uint64_t at, size_t len);
    void (*close)(struct p2p_peer *peer);
    /* Whether more can come from the other side than the channel holds. */
    enum p2p_end (*ask)(struct p2p_peer *peer);
    /* Fails because it has ended while the call needs it. */
    coll_status_t (*blame)(
        const struct p2p_peer *peer, const struct coll_call *call);
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
    char *memory; /* the peer's of coll_alloc(), as mapped here, or NULL */
    size_t memory_len;
};

/* See p2p_tcp.c: what is said beside the stream of messages. */
struct p2p_word {
    uint32_t magic;
    uint32_t kind; /* enum p2p_word_kind */
    int32_t rank; /* HELLO: who connects */
    int32_t status; /* FAILED */
    uint64_t seq; /* LEFT: after which operation; WAITS: the asker's number */
    uint32_t has_sent; /* LEFT: there is a connection the other way */
    uint32_t unused;
    char token[TCP_TOKEN_BYTES];
    char text[440]; /* FAILED */
};

enum p2p_word_kind {
    P2P_WORD_HELLO, /* first, from who connects, before the messages */
    P2P_WORD_WELCOME, /* these come back */
    P2P_WORD_HAS_LEFT,
    P2P_WORD_FAILED,
    P2P_WORD_WAITS, /* as P2P_WAITS, over a connection that is there */
};

#define P2P_WORD_MAGIC 0x70327032u /* and version */

/* The messages to a rank and those from it take a connection each, made by who
 * sends: so no two cross, and each carries one thing. */
struct p2p_wire {
    int out; /* -1: none, yet or any more */
    int in;
    bool is_connecting;
    bool can_write;
    bool can_read;
    bool out_has_ended;
    bool in_has_ended;
    bool is_welcome; /* the other side has answered */
    bool has_news; /* of it, in the net, more may come */
    bool has_left; /* the other side says so */
    bool has_sent; /* and that it had connected */
    uint64_t left_after;
    int error; /* why it cannot be reached, or 0 */
    uint64_t reach_ns; /* until when that is tried */
    uint64_t ended_ns; /* when the first sign of its end was seen, or 0 */
    struct p2p_word word; /* being received */
    size_t word_len;
    size_t at, end; /* of what has been read ahead */
    char ahead[16384];
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
    struct p2p_pipe pipe; /* of a rank of this node */
    struct p2p_wire *wire; /* of another one */
    /* When somebody's time is over. Its question and whether that is answered;
     * when, in attended_ns, it was asked itself, or 0, and whether it has said
     * that it waits. */
    uint64_t question;
    uint32_t question_id;
    bool is_answered;
    bool waits;
    uint64_t asked_ns;
    uint32_t asked_id;
};

/* Connections that have not said yet whose they are. */
#define P2P_STRANGERS 64

struct p2p_stranger {
    int fd;
    struct p2p_word word;
    size_t len;
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
    uint64_t expires_ns; /* before there is nothing to do about the time of an
                          * operation; or UINT64_MAX */
    uint64_t looked_ns; /* at the clock, when there was something to do */
    uint64_t attended_ns; /* time, as far as this rank could notice answers */
    uint64_t late_ns; /* since when, of it, one's time is over, or 0 */
    uint32_t asked; /* questions so far */
    coll_status_t failure;
    char failure_text[512];
    bool *set; /* [size] scratch for error texts */

    /* --- p2p.c: who drives --- */
    bool is_driven; /* somebody who waits moves everything */
    bool is_asleep; /* somebody is in epoll_wait() */
    bool has_finished; /* an operation of somebody else, perhaps */
    int followers; /* asleep on has_changed */
    pthread_cond_t has_changed;
    int epoll; /* -1 until it is needed */
    int agent_fd; /* in it, perhaps */
    int wake_fd; /* in it: an eventfd */
    unsigned int polls; /* of p2p_is_done() in vain */
    bool has_thread;
    bool thread_is_polling; /* it sleeps in epoll_wait() */
    bool thread_is_parked; /* it sleeps on has_work */
    int spin_rounds; /* how long to spin, by what it was good for so far */
    bool is_ending;
    pthread_t thread;
    pthread_cond_t has_work;

    /* --- p2p_shm.c --- */
    struct shm_state *shm; /* NULL: no other rank is on this node */
    enum shm_lane lane;
    const int *local; /* [shm->size] ranks of the group; NULL: the same */
    const int *indices; /* [size] the reverse, of those of this node */
    const int *nodes; /* [size] whose they are; NULL: all of one, or none */
    uint32_t pipes_seen;
    bool may_pull;

    /* --- p2p_door.c --- */
    struct tcp_places *places; /* NULL: all are on this node */
    struct tcp_net *net; /* NULL, or whom to tell as well */
    unsigned int rounds;
    struct p2p_stranger *strangers[P2P_STRANGERS];
    unsigned int next_stranger;
    bool knows_neighbours; /* connections to them are made, or under way */
    coll_status_t told; /* COLL_OK, or what another rank failed with */
    char told_text[440];
};

static inline int p2p_rank_of(const struct p2p *p, int index)
{
    return p->local == NULL ? index : p->local[index];
}

/* --- backend_nodes.c ------------------------------------------------------ */

/* Sets shm and what belongs to it, places, net. */
void nodes_find_ways(struct p2p *p, const struct coll_group *g);

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

/* Queues a header without data. */
void p2p_reply(
    struct p2p *p, struct p2p_peer *peer, const struct p2p_header *header);

/* What an operation is called in sentences: the collective that it is a step
 * of, or send or recv with its tag. */
struct coll_call p2p_call_of(const struct p2p_op *op);

/* --- p2p_late.c ----------------------------------------------------------- */

/* Of the program's own; else it belongs to a collective. */
bool p2p_is_message(const struct p2p_op *op);

/* When its time is over; or UINT64_MAX. */
uint64_t p2p_deadline_of(const struct p2p_op *op);

/* In p->set: the ranks that it needs. */
void p2p_mark_awaited(struct p2p *p, const struct p2p_op *op);

/* Fails because a wait for op is over that began then; in p->set are those that
 * were waited for. */
coll_status_t p2p_fail_late(
    struct p2p *p, const struct p2p_op *op, uint64_t since_ns);

/* What it is, in words that are true on every rank. */
const char *p2p_op_text(
    char *out, size_t cap, const struct p2p *p, const struct p2p_op *op);

/* Answers the question of a rank if there is one and this rank waits. */
void p2p_answer(struct p2p *p, struct p2p_peer *peer);

/* Whether another rank asks about a collective with this number or one after
 * it. */
bool p2p_has_question(const struct p2p *p, uint64_t seq);

/* Fails the engine if the time of an operation is over and it is known on
 * whose account; finds that out, and answers others who do. */
void p2p_check_time(struct p2p *p);

/* --- p2p_check.c ---------------------------------------------------------- */

/* Fails the engine if there is a reason. Costs system calls: for who is about
 * to sleep. */
void p2p_check(struct p2p *p);

/* Takes in what has happened to connections, and what that leads to. */
void p2p_settle(struct p2p *p);

/* --- p2p_shm.c ----------------------------------------------------------- */

bool p2p_is_here(const struct p2p *p, int rank);

/* Makes the channel to a rank of this node. */
void p2p_shm_open(struct p2p_peer *peer);

/* Makes new pipes known; whether there were any. */
bool p2p_shm_accept(struct p2p *p);

/* Before a sleep, then look again; and after it. */
void p2p_shm_arm(struct p2p *p);
void p2p_shm_disarm(struct p2p *p);

/* Takes in what there is to know of the other ranks. */
void p2p_shm_look(struct p2p *p);

/* --- p2p_memory.c: see find and copy of the channel ----------------------- */

bool p2p_memory_find(
    struct p2p_peer *peer, const void *buf, size_t len, uint64_t *at);
ssize_t p2p_memory_copy(
    struct p2p_peer *peer, void *buf, uint64_t at, size_t len);
void p2p_memory_close(struct p2p_peer *peer);

/* --- p2p_tcp.c ------------------------------------------------------------ */

/* Makes the channel to a rank of another node, without connections. 0 or
 * -ENOMEM. */
int p2p_tcp_open(struct p2p_peer *peer);

/* Something has happened on the connection out, or in. */
void p2p_tcp_out_ready(struct p2p_peer *peer, uint32_t events);
void p2p_tcp_in_ready(struct p2p_peer *peer);

/* Connects to a rank, unless that has been done. */
void p2p_tcp_reach(struct p2p_peer *peer);

/* Takes fd: the other side's connection, which has said whose it is. */
void p2p_tcp_admit(struct p2p_peer *peer, int fd);

/* Takes in what is said where collectives are done. */
void p2p_tcp_hear(struct p2p *p);

/* Answers a question that has come over the connection in. */
void p2p_tcp_answer(struct p2p_peer *peer, uint32_t id);

/* Tells all that this rank gives up. */
void p2p_tcp_tell(struct p2p *p, coll_status_t status);

/* Tells all that this rank leaves, and lets them have what was sent to them:
 * waits a moment for that. */
void p2p_tcp_leave(struct p2p *p);

/* --- p2p_door.c ----------------------------------------------------------- */

/* What an event of the engine's epoll set is of. */
enum p2p_watch {
    P2P_WATCH_WAKE,
    P2P_WATCH_SHM,
    P2P_WATCH_AGENT,
    P2P_WATCH_DOOR,
    P2P_WATCH_STRANGER, /* index: its slot */
    P2P_WATCH_OUT, /* index: rank */
    P2P_WATCH_IN,
    P2P_WATCH_NEWS,
};

/* 0 or a negative errno. */
int p2p_watch(
    struct p2p *p, int fd, uint32_t events, enum p2p_watch what, int index);
void p2p_unwatch(struct p2p *p, int fd);

/* Makes the epoll set, if there is none. Whether there is one: else it has
 * failed. */
bool p2p_watch_open(struct p2p *p);

/* The same for who can do without: 0 or a negative errno. */
int p2p_watch_try(struct p2p *p);

/* Gives the lock back and tells those who want to be called what is done. */
void p2p_unlock(struct p2p *p);

/* Takes in what has happened to any connection; waits so long for something,
 * without the lock if it waits at all. Whether there was anything. */
bool p2p_watch_step(struct p2p *p, int timeout_ms);

void p2p_watch_close(struct p2p *p);

/* Another descriptor would be one too many: raises the limit. Whether it is
 * worth another try. */
bool p2p_more_fds(int error);

/* Connects to those over whom failures spread. */
void p2p_meet_neighbours(struct p2p *p);

#endif
