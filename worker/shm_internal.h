/*
 * The back end "shm": the parts that its files share.
 *
 * The ranks of a group map one segment of memory. It holds, for each rank, a
 * control block and two slots for data. Progress is counted in ticks: a rank
 * writes what the others shall read into the slot of its next tick (slots
 * alternate), then publishes the tick by one store, then waits until every
 * rank has published it. Everything else follows from that one rule:
 *
 *   What was written before tick t may be read after t, and may be
 *   overwritten once t + 1 is complete, because nobody publishes t + 1
 *   before it has read what it needs from t.
 *
 * So every operation makes the same number of ticks on all ranks, and what
 * was written for tick t is safe until its writer prepares tick t + 2, which
 * is when the slot comes round again.
 *
 * Beside the segment each pair of ranks keeps a connected socket, over which
 * little is sent after set-up: its end of file is the peer's death. A process
 * that a peer has forked may hold the socket open, so a pidfd of the peer is
 * watched along with it.
 *
 * Operations run on one thread at a time, messages between two ranks (p2p.h)
 * on another: what comes over the sockets is taken in under a lock.
 */
#ifndef COLL_SHM_INTERNAL_H
#define COLL_SHM_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "coll_algorithm.h"
#include "coll_signature.h"

/* The tick that all counters start at. They wrap; starting just below that
 * makes every run cross it. */
#define SHM_FIRST_TICK ((uint32_t)-16)

/* Data so small travels with the tick. */
#define SHM_INLINE_BYTES ((size_t)32)

/* What a rank publishes, in one cache line: all that a waiting rank reads. */
struct shm_tick {
    _Alignas(64) _Atomic uint32_t tick; /* futex */
    uint32_t unused;
    struct coll_signature signature; /* of the call, at its first tick */
    char data[SHM_INLINE_BYTES];
};

_Static_assert(sizeof(struct shm_tick) == 64, "a tick is one cache line");

/* Written by its own rank only, but for sleepers, asleep and pipes. */
struct shm_control {
    /* By parity. A rank may be one tick ahead: then it is the other one that
     * it has written. */
    _Alignas(128) struct shm_tick ticks[2];
    _Atomic uint32_t sleepers; /* ranks asleep on a tick */
    _Atomic uint32_t has_left; /* destroyed in good order */
    _Atomic uint32_t failure; /* 0, or minus the coll_status_t and flags */
    uint64_t left_after_seq; /* valid once has_left is set */
    /* Lanes, as bits, that wait for messages in epoll_wait(): who has some
     * clears the bit and sends a SHM_WAKE. */
    _Atomic uint32_t asleep;
    _Atomic uint32_t pipes; /* SHM_PIPEs sent to this rank so far */
    char failure_text[472]; /* valid once failure is set */
};

/* Flag in failure: the text is another rank's, or names the one at fault. */
#define SHM_IS_RELAYED 0x100u

/* And: this rank had the group before it failed. */
#define SHM_HAD_GROUP 0x200u

/* And: status and text are those that every rank shall return. */
#define SHM_AS_IT_IS 0x400u

#define SHM_FAILURE_FLAGS (SHM_IS_RELAYED | SHM_HAD_GROUP | SHM_AS_IT_IS)

_Static_assert(sizeof(struct shm_control) == 640, "control blocks are dense");

/* The process of another rank. */
struct shm_peer {
    int link; /* socket; -1 for this rank and for those lost or not met yet */
    int pidfd; /* -1 likewise, and where the kernel has none */
    pid_t pid; /* as seen from here; 0 if invisible */
    _Atomic bool is_lost; /* it is known to have ended, or has given up */
    _Atomic bool has_memory; /* the descriptor of this process's memory */
};

/* Who exchanges messages over the links of a group: the group, and a larger
 * one whose ranks of this node it is. */
enum shm_lane {
    SHM_LANE_OWN,
    SHM_LANE_OUTER,
    SHM_LANE_MEMORY, /* no messages: a descriptor of coll_alloc()'s memory */
    SHM_LANES
};

/* What came for a lane, until it is taken. Guarded by the lock. */
struct shm_inbox {
    int *pipes; /* [size] the descriptors of SHM_PIPEs, or -1 */
    int wake_fd; /* an eventfd that SHM_WAKE is passed on to, or -1 */
};

struct shm_state {
    int rank;
    int size;
    const int *names; /* the group's */
    struct shm_control *control; /* [size], start of the mapping */
    char *slots;
    size_t map_bytes;
    size_t chunk_bytes; /* data of one tick in one slot */
    size_t result_bytes; /* room behind it for a share of the result */
    uint32_t tick; /* the last one this rank has published */
    bool may_spin; /* every rank has a CPU of its own */
    int spin_rounds; /* how long, by what it was good for so far */
    _Atomic bool is_relaying; /* the failure of this rank is another's */
    int epoll; /* every link and pidfd, so that a look is one call */
    uint64_t verdict_ns; /* 0, or when to wait no longer; see below */
    /* Of the peers' sockets, the inboxes, and the own failure. */
    pthread_mutex_t lock;
    struct shm_peer *peers; /* [size] */
    struct shm_inbox inboxes[SHM_LANES];
    struct shm_reach *reach; /* shm_reach.c's, NULL until it is needed */
    char *scratch; /* shm_direct.c's, likewise */
    bool has_begun; /* the first tick of this call is over */
    bool *set; /* [size] scratch for error texts */
    const void **srcs; /* [size] scratch for kernel_reduce() */
    /* NULL, or what else can end the wait of an operation; asked in slices. */
    coll_status_t (*watch_cb)(void *arg, const struct coll_call *call);
    void *watch_arg;
};

/* In a loop that waits for another CPU. */
static inline void shm_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

/* How many rounds to spin the next time, by whether it was of use this time:
 * it is in vain where others have a part of the CPUs that the ranks could have.
 */
static inline int shm_spin_next(int rounds, bool was_of_use, int most)
{
    const int least = 12;

    rounds = was_of_use ? rounds * 2 : rounds / 2;
    if (rounds > most)
        return most;
    return rounds < least ? least : rounds;
}

static inline bool shm_is_behind(const struct shm_state *s, int rank)
{
    uint32_t tick = atomic_load_explicit(
        &s->control[rank].ticks[s->tick & 1].tick, memory_order_acquire);

    return (int32_t)(tick - s->tick) < 0;
}

/* Where a rank's data of the next or, after shm_tick(), the current tick
 * lies. */
static inline char *shm_slot(const struct shm_state *s, int rank, uint32_t tick)
{
    size_t slot_bytes = s->chunk_bytes + s->result_bytes;

    return s->slots + (2 * (size_t)rank + (tick & 1)) * slot_bytes;
}

/* The same for a message of so many bytes, on all ranks. */
static inline char *shm_place(
    const struct shm_state *s, int rank, uint32_t tick, size_t bytes)
{
    return bytes <= SHM_INLINE_BYTES ? s->control[rank].ticks[tick & 1].data
                                     : shm_slot(s, rank, tick);
}

/* --- shm_peers.c: the processes of the other ranks ---------------------- */

/* Digits of a random name or token. */
#define SHM_NAME_BYTES 32

/* What is said over the sockets, most of it while a group is made. */
enum shm_message_kind {
    SHM_JOIN, /* to rank 0: rank, world_size, name of the own socket */
    SHM_WELCOME, /* from rank 0: you are counted, wait */
    SHM_SEGMENT, /* from rank 0, with the descriptor: token */
    SHM_HELLO, /* among the others: rank, token */
    SHM_FAILURE, /* there will be no group: status, timeout_ms, text */
    SHM_PIPE, /* with the descriptor of a pipe's memory: lane */
    SHM_WAKE, /* look at the pipes: lane, or SHM_LANES for a failure */
};

struct shm_message {
    uint32_t magic;
    uint32_t kind;
    int32_t rank;
    int32_t world_size;
    int32_t status;
    uint32_t lane;
    int64_t timeout_ms;
    char name[SHM_NAME_BYTES];
    char token[SHM_NAME_BYTES];
    char text[440];
};

enum shm_event_kind {
    SHM_EV_NONE,
    SHM_EV_LISTENER, /* somebody connects */
    SHM_EV_STRANGER, /* an accepted connection has something to read */
    SHM_EV_MESSAGE, /* from a rank */
    SHM_EV_LOST, /* a rank has ended, or closed its socket */
    SHM_EV_AGENT, /* the launcher, or an interrupt, tells of a failure */
};

struct shm_event {
    enum shm_event_kind kind;
    int fd; /* of a stranger, or what came with the message, or -1 */
    int rank;
    struct shm_message msg;
};

/* Waits up to timeout_ms for one event. 0 or a negative errno. */
int shm_next_event(struct shm_state *s, int timeout_ms, struct shm_event *ev);

/* The event of one rank that is due, if any. */
void shm_peer_event(struct shm_state *s, int rank, struct shm_event *ev);

/* A socket that has no rank yet: 0 or a negative errno. */
int shm_watch_listener(struct shm_state *s, int fd);
int shm_watch_stranger(struct shm_state *s, int fd);

/* Before closing such a socket: a forked process may have a copy of it, and
 * then closing alone would not end the watch. */
void shm_unwatch(struct shm_state *s, int fd);

/* What the launcher tells, if there is one: 0 or a negative errno. */
int shm_watch_agent(struct shm_state *s);

/* While the group is made: the thread's interrupt, if it is not the launcher.
 */
int shm_watch_interrupt(struct shm_state *s);
void shm_unwatch_interrupt(struct shm_state *s);

/* Makes the socket, not watched yet, the link to a rank; takes fd, also on
 * failure. 0 or a negative errno. */
int shm_add_peer(struct shm_state *s, int rank, int fd, pid_t pid);

/* Closes what there is of a peer. The other side notices at once, even if a
 * forked process has a copy of the socket. */
void shm_drop_peer(struct shm_state *s, int rank);

/* Sends with a descriptor, or without if it is -1; sets the magic number. 0
 * or a negative errno; never blocks. */
int shm_send(int fd, struct shm_message *msg, int descriptor);

/* 1: a message, and *descriptor is what came with it or -1; 0: nothing there
 * yet; -ECONNRESET: the other side has ended, or is none of ours; another
 * negative errno: this side cannot receive. */
int shm_receive(int fd, struct shm_message *msg, int *descriptor);

/* Notes the peers that have ended, and what they said before. */
void shm_look_for_deaths(struct shm_state *s);

/* The same without the peers of which only /proc can tell; lane: the one that
 * looks, and need not be woken. From any thread. */
void shm_look(struct shm_state *s, enum shm_lane lane);

/* Whether a peer has ended, asked of the kernel now. From any thread. */
bool shm_has_ended(struct shm_state *s, int rank);

/* Hands the memory of a pipe to a rank: 0 or a negative errno, -EAGAIN: not
 * now. Does not take fd. From any thread. */
int shm_send_pipe(
    struct shm_state *s, int rank, enum shm_lane lane, int descriptor);

/* The pipe that a rank has sent, the caller's, or -1. From any thread. */
int shm_take_pipe(struct shm_state *s, int rank, enum shm_lane lane);

/* Hands the memory of coll_alloc(), of which there is some, to a rank that does
 * not have it: 0 or a negative errno. From any thread. */
int shm_send_memory(struct shm_state *s, int rank);

/* The memory that a rank has handed over, the group's, or -1: it is there once
 * anything is that the rank did afterwards, unless it found no place among this
 * process's descriptors. lane: as with shm_look(). From any thread. */
int shm_memory_of(struct shm_state *s, int rank, enum shm_lane lane);

/* Where SHM_WAKE is passed on to if another thread than the sleeper takes it
 * in: an eventfd, or -1. From any thread. */
void shm_set_wake_fd(struct shm_state *s, enum shm_lane lane, int fd);

/* Ends a rank's sleep in a lane, if it sleeps. After what it waits for has
 * been stored with memory_order_seq_cst. From any thread. */
void shm_wake(struct shm_state *s, int rank, enum shm_lane lane);

/* --- shm_segment.c: the shared memory ----------------------------------- */

/* A slot has that much at least, however many ranks there are. */
#define SHM_CHUNK_MIN_BYTES ((size_t)16 * 1024)

/* Rank 0: creates and maps it, with the names that shm_segment_names()
 * returns until the first tick. *fd is the caller's, also on failure. */
coll_status_t shm_segment_create(struct shm_state *s, int *fd);

/* The others: maps what came from rank 0. */
coll_status_t shm_segment_map(struct shm_state *s, int fd);

/* [size] names, all of the same length. */
char (*shm_segment_names(const struct shm_state *s))[SHM_NAME_BYTES];

/* --- shm_boot.c --------------------------------------------------------- */

/* Beyond this, sharing one flat segment is the wrong design: every rank
 * reads a cache line per peer and tick. */
#define SHM_MAX_RANKS 1024

/* Meets the other ranks and maps the segment. s is zeroed but for rank, size
 * and the arrays; the caller releases what a failure leaves in it. */
coll_status_t shm_connect(struct coll_group *g, const struct coll_boot *boot);

/* --- shm_wait.c. call == NULL means coll_init() ------------------------- */

/* Publishes the next tick and waits until every rank has published it. */
coll_status_t shm_tick(
    struct coll_group *g, const struct coll_call *call, uint64_t deadline_ns);

/* An operation's first tick: all ranks also compare what they called. */
coll_status_t shm_first_tick(
    struct coll_group *g, const struct coll_call *call);

/* Either of them; is_first counts only if the call has not begun before. */
coll_status_t shm_next_tick(
    struct coll_group *g, const struct coll_call *call, bool is_first);

/* Tells all ranks, if they are mapped, that this one gives up with the
 * calling thread's error sentence. flags: those of failure. */
void shm_announce_failure(
    struct shm_state *s, coll_status_t status, uint32_t flags);

/* Notes why a rank gives up that cannot say so itself. Only the first reason
 * of a rank counts. */
void shm_note_failure(
    struct shm_state *s, int rank, uint32_t failure, const char *text);

/*
 * During coll_init() it is rank 0 that says that another one is lost: that one
 * may have told it why, and the news may reach others before the reason does.
 * They wait so long for rank 0 to say it.
 */
#define SHM_VERDICT_MS 1000

bool shm_may_judge(const struct shm_state *s, int rank);

/* Has this rank said that it gives up? */
bool shm_has_failed(const struct shm_state *s, int rank);

/* Fails with the reason that another rank gave for its failure. */
coll_status_t shm_fail_with(struct shm_state *s, int rank, bool is_behind);

/* For a rank that waits for something else while the others wait for it: fails
 * if one of them has ended or has given up. What there is to notice makes
 * s->epoll readable. */
coll_status_t shm_check_alive(
    struct shm_state *s, const struct coll_call *call);

/* The same for what runs on a device, which may be over there and not yet here:
 * who has left after it is no reason to fail. is_numbered: this is the group
 * whose number call has, else nobody is missed who has left. */
coll_status_t shm_check_others(
    struct shm_state *s, const struct coll_call *call, bool is_numbered);

/* Fails because a rank has died. */
coll_status_t shm_fail_dead(
    const struct shm_state *s, int rank, const struct coll_call *call);

/* Wakes whoever sleeps on any rank's tick. */
void shm_wake_all(struct shm_state *s);

/* --- shm_cpus.c ----------------------------------------------------------- */

/* Before the group's first tick, and after it: sets may_spin. */
void shm_put_cpus(struct shm_state *s);
void shm_take_cpus(struct shm_state *s);

/* --- The operations; each makes its first tick through shm_first_tick() - */

/*
 * Chooses the algorithm, and runs the call if it is one without slots: MAPPED
 * or CMA. Else the call's first tick may be over. Not for a barrier, nor for
 * all_to_all_v.
 */
coll_status_t shm_direct(struct coll_group *g, const struct coll_call *call,
    enum coll_algorithm *algorithm);

/* all_reduce and reduce: ONE_SHOT or TWO_SHOT */
coll_status_t shm_reduce(struct coll_group *g, const struct coll_call *call,
    enum coll_algorithm algorithm);
coll_status_t shm_broadcast(struct coll_group *g, const struct coll_call *call);
/* all_gather, all_gather_v and gather */
coll_status_t shm_gather(struct coll_group *g, const struct coll_call *call);
/* scatter, reduce_scatter, reduce_scatter_v and all_to_all */
coll_status_t shm_scatter(struct coll_group *g, const struct coll_call *call);
coll_status_t shm_all_to_all_v(
    struct coll_group *g, const struct coll_call *call);

#endif
