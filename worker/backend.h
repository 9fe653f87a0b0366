/*
 * What a back end is: one table of functions. The core (coll_group.c) checks
 * arguments, holds the group's lock, keeps the sequence number and makes a
 * failure sticky; a back end moves the data. Adding one means adding its
 * table to backends[] in backend.c.
 */
#ifndef COLL_BACKEND_H
#define COLL_BACKEND_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collective.h"

/* X(symbol, name): what one operation can be. */
#define COLL_KIND_MAP(X)                                                       \
    X(COLL_KIND_ALL_REDUCE, "all_reduce")                                      \
    X(COLL_KIND_BROADCAST, "broadcast")                                        \
    X(COLL_KIND_BARRIER, "barrier")                                            \
    X(COLL_KIND_REDUCE, "reduce")                                              \
    X(COLL_KIND_ALL_GATHER, "all_gather")                                      \
    X(COLL_KIND_GATHER, "gather")                                              \
    X(COLL_KIND_SCATTER, "scatter")                                            \
    X(COLL_KIND_REDUCE_SCATTER, "reduce_scatter")                              \
    X(COLL_KIND_ALL_TO_ALL, "all_to_all")                                      \
    X(COLL_KIND_ALL_GATHER_V, "all_gather_v")                                  \
    X(COLL_KIND_REDUCE_SCATTER_V, "reduce_scatter_v")                          \
    X(COLL_KIND_ALL_TO_ALL_V, "all_to_all_v")                                  \
    X(COLL_KIND_ALL_REDUCE_COALESCED, "all_reduce_coalesced")                  \
    X(COLL_KIND_ALL_GATHER_COALESCED, "all_gather_coalesced")                  \
    X(COLL_KIND_REDUCE_SCATTER_COALESCED, "reduce_scatter_coalesced")          \
    X(COLL_KIND_GROUP_SPLIT, "group_split")                                    \
    X(COLL_KIND_BROADCAST_OBJECT, "broadcast_object")                          \
    X(COLL_KIND_ALL_GATHER_OBJECT, "all_gather_object")                        \
    X(COLL_KIND_GPU_CONNECT, "gpu_connect")                                    \
    X(COLL_KIND_SEND, "send")                                                  \
    X(COLL_KIND_RECV, "recv")

enum coll_kind {
#define COLL_KIND_ENUM(symbol, name) symbol,
    COLL_KIND_MAP(COLL_KIND_ENUM)
#undef COLL_KIND_ENUM
};

#define COLL_KINDS (COLL_KIND_RECV + 1)

const char *coll_kind_name(enum coll_kind kind);

/* One call, as every rank must make it. */
struct coll_call {
    enum coll_kind kind;
    coll_dtype_t dtype;
    coll_op_t op;
    int root; /* send, recv: the peer */
    /* As in the public call: of all_gather, gather, scatter, reduce_scatter
     * and all_to_all, of one rank's part; of the _v calls, of all parts on
     * this rank that are sent (all_to_all_v) or received. */
    size_t count;
    const void *sendbuf; /* broadcast: NULL; scatter: NULL but on the root */
    void *recvbuf; /* broadcast: the buffer; gather, reduce: NULL likewise */
    /* [size], NULL unless the call is a _v one: how many elements go to and
     * come from each rank, and where they begin, in elements. all_gather_v
     * has recv_*, reduce_scatter_v has send_*, all_to_all_v has both. */
    const size_t *send_counts, *send_at;
    const size_t *recv_counts, *recv_at;
    /* Of what all ranks must pass alike beside the above: a hash, or 0. */
    uint32_t extra;
    int tag; /* send, recv */
    /* NULL, or the operation is one of many buffers: of nmany, with counts, and
     * what is above is not set but for kind, type, op and the sum as count. */
    const void *const *many_send;
    void *const *many_recv;
    const size_t *many_counts;
    size_t nmany;
    double factor; /* of what is sent, with has_factor; op is then SUM */
    bool has_factor;
    void *owned; /* memory of the arrays above, freed after the call */
    int64_t timeout_ms; /* 0: the group's */
    uint64_t seq; /* 1 for the group's first operation; send, recv: 0 */
    uint32_t algorithms; /* code of what is forced here: coll_algorithm.h */
    uint64_t deadline_ns;
    /* Of device memory: it is put on a stream (gpu.h). */
    bool on_gpu;
    bool is_async; /* the program gets a work */
    bool is_refused; /* all ranks alike: a failure that the group survives */
    int device;
    coll_work_t *work; /* which its end on the device ends; or NULL */
    const struct coll_gpu_options *gpu_options; /* gpu_connect; or NULL */
    const coll_message_t *messages; /* [nmany] of send and recv, instead */
    /* 0, or many_ has a buffer for each of so many devices. */
    int ndevices;
    const int *devices;
    /* NULL, or the call that this one is a part of: ranks compare it, and
     * sentences name it. */
    const struct coll_call *whole;
};

/* Works that wait for their turn, and the thread that runs them. */
struct coll_work_queue {
    struct coll_work *first, *last;
    pthread_t thread;
    pthread_cond_t changed;
    bool has_thread;
    bool is_ending;
};

struct coll_group {
    uint32_t magic; /* see coll_group_get() */
    const struct coll_backend *backend;
    void *state; /* the back end's, from create to destroy */
    int rank;
    int size;
    /* What ranks are called in sentences, ascending; NULL: what they are. */
    const int *names;
    int64_t timeout_ms;
    uint32_t id; /* in the recorder; 0: the default group */
    /* Reductions give the same bits whichever ranks share a node. */
    bool is_deterministic;
    struct coll_tuning *tuning; /* coll_algorithm.h; own or borrowed */
    struct p2p *p2p; /* NULL in a world of one */
    bool stages; /* host memory goes by way of the device: gpu_stage.c */
    struct gpu *_Atomic gpu; /* its communicator, once there is one: gpu.h */
    void *_Atomic gpu_stream; /* the program's */
    /* Operations stand in line: each takes the next turn and runs when it has
     * come. seq is of the one that runs, or that has run last. */
    _Atomic uint64_t next_turn;
    _Atomic uint64_t turn;
    _Atomic uint32_t waiters; /* threads that sleep till their turn */
    pthread_mutex_t lock; /* of what follows, and of going to sleep */
    pthread_cond_t turn_came;
    bool is_looking; /* the turn is no operation's: news are told or heard */
    uint64_t seq;
    struct coll_work_queue queue;
    struct gpu_many *gpu_many; /* of several devices a rank */
    /* COLL_OK, or what every later call returns; set once, after its text. */
    _Atomic coll_status_t failure;
    char failure_text[512];
    _Atomic bool is_aborted; /* ends every wait of this rank */
    _Atomic bool must_tell; /* the other ranks do not know of the failure */
    _Atomic uint32_t messages; /* calls and works of them that are not done */
    _Atomic uint32_t drivers; /* threads that move messages for a work */
    int *own_names; /* NULL or what names points to */
    struct coll_tuning *own_tuning; /* likewise */
    struct coll_group *prev, *next; /* the groups of this process */
};

/* What a back end may use while a group is being made. */
struct coll_boot {
    coll_store_t *store; /* borrowed; NULL for "self" */
    /* NULL, or rank 0 hosts the store for this one attempt, and a back end
     * that finds rank 0 to have given up earlier sets it and fails: there will
     * be another store. */
    bool *is_over;
    const char *prefix; /* in front of every key, ends in '/' */
    uint64_t deadline_ns;
    const int *names; /* NULL or [size], for as long as the group lives */
    /* What the launcher calls this node (GROUP_RANK), -1 if it does not say. */
    int node;
    /* NULL, or what another group lends this one, which is a part of it. */
    struct coll_tuning *tuning;
    bool is_deterministic; /* the group's */
    bool stages; /* likewise */
};

struct coll_backend {
    const char *name;
    int max_ranks;
    /* Sets g->state. On failure leaves nothing behind and has set the
     * error text. */
    coll_status_t (*create)(struct coll_group *g, const struct coll_boot *boot);
    void (*destroy)(struct coll_group *g);
    /* Runs one call. count may be 0; sendbuf may equal recvbuf. */
    coll_status_t (*run)(struct coll_group *g, const struct coll_call *call);
    /* Tells the other ranks that this one gives up with the calling thread's
     * error sentence. From any thread, but not beside run. */
    void (*give_up)(struct coll_group *g, coll_status_t status);
    /*
     * In a turn, while run is not: COLL_OK, or fails because another rank has
     * failed, or has ended without a word. call is what they may be waited for
     * in, on a device. NULL: there are no others.
     */
    coll_status_t (*look)(struct coll_group *g, const struct coll_call *call);
    /* Has a run() in another thread look at is_aborted. */
    void (*wake)(struct coll_group *g);
    /* In a child that was forked off: closes, and nothing else, what would keep
     * the other ranks from noticing this rank's end. NULL: nothing would. */
    void (*after_fork)(struct coll_group *g);
};

extern const struct coll_backend coll_backend_self;
extern const struct coll_backend coll_backend_shm;
extern const struct coll_backend coll_backend_tcp;
extern const struct coll_backend coll_backend_nodes;

/* NULL for an unknown name. */
const struct coll_backend *coll_backend_find(const char *name);

/* COLL_OK, or blame with a sentence if the back end is not made for so many
 * ranks. */
coll_status_t coll_backend_check_size(
    const struct coll_backend *backend, int size, coll_status_t blame);

/* What the program calls the group's back end. */
const char *coll_group_backend_name(const struct coll_group *g);

/* The known names, "shm, self", for an error text. */
void coll_backend_names(char *out, size_t cap);

/*
 * Makes a group; *out is the caller's. coll_init() uses it for the default
 * group; tests use it to run several ranks as threads of one process.
 * Frees nothing of boot.
 */
coll_status_t coll_group_create(struct coll_group **out,
    const struct coll_backend *backend, int rank, int size, int64_t timeout_ms,
    const struct coll_boot *boot);

/* Takes NULL. */
void coll_group_free(struct coll_group *g);

/* COLL_OK, or this process was forked off by one that has groups. */
coll_status_t coll_group_check_fork(const char *function);

/* The group that a NULL argument means; NULL before coll_init(). */
struct coll_group *coll_default_group(void);

/*
 * What an argument of a public function means. NULL, with a sentence and
 * *status set, if there is no such group: the memory of a group that was
 * destroyed stays what it is for a while, so that this can be told.
 */
struct coll_group *coll_group_get(
    const coll_group_t *group, const char *function, coll_status_t *status);

/* Takes a turn, waits for it and runs the call. */
coll_status_t coll_group_run(struct coll_group *g, struct coll_call *call);

/* The two halves of that, for who takes a turn long before. */
uint64_t coll_group_take_turn(struct coll_group *g);
coll_status_t coll_group_run_in_turn(
    struct coll_group *g, struct coll_call *call, uint64_t turn);

/* Looks what other ranks have said, or whether they are gone, if nobody has the
 * turn: who has it hears by itself. COLL_OK, or fails with what it is. */
coll_status_t coll_group_look(
    struct coll_group *g, const struct coll_call *call);

/* Is an operation running, or waiting for its turn, or a message on its way? */
bool coll_group_is_busy(struct coll_group *g);

/* Is an operation running, or waiting for its turn? */
bool coll_group_is_running(struct coll_group *g);

/* The same before the group is destroyed: first waits for the end of what
 * coll_abort() has ended, which is a matter of milliseconds. */
bool coll_group_is_in_use(struct coll_group *g);

/* The same of all groups of this process. */
bool coll_groups_are_in_use(void);

/* Frees all groups that have own_names: those that the program has made. */
void coll_groups_free_made(void);

/* COLL_OK, or the group's failure with its sentence. */
coll_status_t coll_group_check(struct coll_group *g);

/* Fails the group as below, for what is no operation, and tells the others. */
void coll_group_give_up(struct coll_group *g, coll_status_t status);

/* The group has failed with the calling thread's sentence, if that is its first
 * failure: every later call returns it, and the launcher is told. Returns
 * status. */
coll_status_t coll_group_fail(struct coll_group *g, coll_status_t status);

/* In the calling thread's sentence a word becomes another one, once. */
void coll_fail_reword(const char *word, const char *other);

/* Records the calling thread's error sentence and returns status. */
coll_status_t coll_fail(coll_status_t status, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
