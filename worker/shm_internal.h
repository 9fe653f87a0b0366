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
 * Beside the segment each pair of ranks keeps a connected socket on which
 * nothing is sent after set-up: its end of file is the peer's death.
 */
#ifndef COLL_SHM_INTERNAL_H
#define COLL_SHM_INTERNAL_H

#include <poll.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "backend.h"

/* The tick that all counters start at. They wrap; starting just below that
 * makes every run cross it. */
#define SHM_FIRST_TICK ((uint32_t)-16)

/* What one rank called, compared by all ranks before data is touched. */
struct shm_signature {
    uint8_t kind;
    uint8_t dtype;
    uint8_t op;
    uint8_t unused;
    int32_t root;
    uint64_t count;
    uint64_t seq;
};

/* Written by its own rank only, but for sleepers. */
struct shm_control {
    _Alignas(128) _Atomic uint32_t tick; /* futex */
    _Atomic uint32_t sleepers; /* ranks asleep on tick */
    _Atomic uint32_t has_left; /* destroyed in good order */
    _Atomic uint32_t failure; /* 0 or minus the coll_status_t */
    struct shm_signature signature[2]; /* of the call, by tick parity */
    uint64_t left_after_seq; /* valid once has_left is set */
    char failure_text[440]; /* valid once failure is set */
};

/* Up to here a waiting rank reads one cache line per peer. */
_Static_assert(offsetof(struct shm_control, left_after_seq) == 64,
    "the hot part of a control block is one cache line");
_Static_assert(sizeof(struct shm_control) == 512, "control blocks are dense");

struct shm_state {
    int rank;
    int size;
    struct shm_control *control; /* [size], start of the mapping */
    char *slots;
    size_t map_bytes;
    size_t chunk_bytes; /* data of one tick in one slot */
    size_t result_bytes; /* room behind it for a share of the result */
    uint32_t tick; /* the last one this rank has published */
    bool may_spin; /* every rank has a CPU of its own */
    struct pollfd *links; /* [size] sockets; own fd and lost ones are -1 */
    pid_t *pids; /* [size] as seen from here; 0 if invisible */
    bool *is_lost; /* [size] its process is known to have ended */
    bool *set; /* [size] scratch for error texts */
};

static inline bool shm_is_behind(const struct shm_state *s, int rank)
{
    uint32_t tick =
        atomic_load_explicit(&s->control[rank].tick, memory_order_acquire);

    return (int32_t)(tick - s->tick) < 0;
}

/* Where a rank's data of the next or, after shm_tick(), the current tick
 * lies. */
static inline char *shm_slot(const struct shm_state *s, int rank, uint32_t tick)
{
    size_t slot_bytes = s->chunk_bytes + s->result_bytes;

    return s->slots + (2 * (size_t)rank + (tick & 1)) * slot_bytes;
}

/* shm_boot.c: meets the other ranks and maps the segment. s is zeroed but
 * for rank, size and the arrays; shm_release() undoes a partial success. */
coll_status_t shm_connect(struct coll_group *g, const struct coll_boot *boot);

/* shm_wait.c. call == NULL means coll_init(). */

/* Publishes the next tick and waits until every rank has published it. */
coll_status_t shm_tick(
    struct coll_group *g, const struct coll_call *call, uint64_t deadline_ns);

/* An operation's first tick: all ranks also compare what they called. */
coll_status_t shm_first_tick(
    struct coll_group *g, const struct coll_call *call);

/* Tells all ranks, if they are mapped, that this one gives up with the
 * calling thread's error sentence. */
void shm_announce_failure(struct shm_state *s, coll_status_t status);

/* Wakes whoever sleeps on any rank's tick. */
void shm_wake_all(struct shm_state *s);

/* The operations; every one makes its first tick through
 * shm_first_tick(). */
coll_status_t shm_all_reduce(
    struct coll_group *g, const struct coll_call *call);
coll_status_t shm_broadcast(struct coll_group *g, const struct coll_call *call);

#endif
