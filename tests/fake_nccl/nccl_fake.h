/*
 * A test double of NCCL: the functions of COLL_NCCL_MAP on host memory, for
 * ranks that are threads or processes of one machine, over streams of the
 * CUDA double. What one may set:
 *
 *   FAKE_NCCL_DIR      folder of the files through which ranks meet; else
 *                      TMPDIR, else /tmp
 *   FAKE_NCCL_VERSION  what ncclGetVersion() says, e.g. 22809
 *   FAKE_NCCL_FAULT    kind:rank:nth:value,...  what goes wrong on a rank of
 *                      any communicator; rank and nth may be '*', which is also
 *                      what a field that is left out at the end stands for
 *     init_fail:R::V   making a communicator fails on its rank R with result V
 *     init_hang:R      it never ends there
 *     version:R::V     rank R pretends to be of version V when ranks meet
 *     op_error:R:N:V   the Nth launch of rank R ends in the asynchronous error
 *                      V (6, a remote error) and runs until it is aborted
 *     op_hang:R:N      the Nth launch of rank R never begins
 *     launch_hang:R:N  the call of the Nth launch of rank R does not return
 *                      until it is aborted or revoked by another thread
 *     busy:R:N:V       after its Nth launch a communicator that does not block
 *                      says V (1) times that it is in progress
 *     order:R          rank R finds others' blocks one place too far
 *     abort_hang:R     ncclCommAbort() of rank R does not return
 *     destroy_hang:R   nor does ncclCommDestroy()
 *   NCCL_HOSTID, NCCL_MULTI_RANK_GPU_ENABLE  as of the real one
 *
 * As with the real one, a rank whose peer is gone waits until it aborts;
 * Destroy and Finalize wait for all ranks; a failed communicator must be
 * aborted. Unlike it, ranks that call different operations get an asynchronous
 * "invalid usage" with a sentence, not a hang or wrong data.
 *
 * Built with FAKE_NCCL_SYMBOLS=21800 it lacks what came later than 2.18, with
 * less also what 2.18 brought.
 */
#ifndef FAKE_NCCL_H
#define FAKE_NCCL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "worker/nccl_api.h"

#ifndef FAKE_NCCL_SYMBOLS
#define FAKE_NCCL_SYMBOLS 22809
#endif

#define EXPORT __attribute__((visibility("default")))

/* As in cuda_fake.h. */
#define THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))

#define FAKE_NCCL_DECLARE(member, symbol, required, result, args)              \
    EXPORT result symbol args;
COLL_NCCL_MAP(FAKE_NCCL_DECLARE)
#undef FAKE_NCCL_DECLARE

/* For tests alone: the configuration that a communicator was made with. */
EXPORT void fake_nccl_config(struct nccl_comm *comm, nccl_config_t *out);

/* Unique ids, which are names of files, begin with it. */
#define FAKE_ID_PREFIX "fake_nccl."

#define FAKE_RANKS_MAX 32
#define FAKE_CHUNK 16384
#define FAKE_MAIL 8192

/* --- The segment: memory that the ranks of a communicator share -------- */

enum fake_kind {
    FAKE_ALL_REDUCE,
    FAKE_REDUCE,
    FAKE_BROADCAST,
    FAKE_REDUCE_SCATTER,
    FAKE_ALL_GATHER,
    FAKE_ALL_TO_ALL,
    FAKE_GATHER,
    FAKE_SCATTER,
    FAKE_SEND,
    FAKE_RECV,
};

/* What all ranks must call alike. */
struct fake_call {
    uint64_t count;
    uint32_t kind, dtype, op;
    int32_t root;
};

/* What one rank shows the others; its tick says how often. */
struct fake_slot {
    _Atomic uint32_t tick;
    struct fake_call call;
    unsigned char data[FAKE_CHUNK];
};

/* From one rank to one other: full while written is ahead of read. */
struct fake_mail {
    _Atomic uint32_t written, read;
    uint64_t total; /* bytes of the whole message */
    uint32_t bytes;
    unsigned char data[FAKE_MAIL];
};

/* Operations of streams, and what the ranks' own threads agree on. */
enum fake_lane { FAKE_STREAM, FAKE_MEETING, FAKE_LANES };

/* New files are full of zeros: that is how a segment begins. */
struct fake_segment {
    _Atomic uint32_t bell; /* a futex that every change rings */
    _Atomic uint32_t arrived;
    _Atomic uint32_t is_taken[FAKE_RANKS_MAX];
    struct fake_slot slots[FAKE_LANES][FAKE_RANKS_MAX];
    struct fake_mail mail[FAKE_RANKS_MAX][FAKE_RANKS_MAX];
};

/* --- A communicator ---------------------------------------------------- */

#define FAKE_OPS_MAX 64

struct fake_op {
    bool is_used;
    nccl_dtype_t dtype;
    nccl_residence_t residence;
    const void *at; /* where the scalar is, if on the device */
    unsigned char scalar[8];
};

struct nccl_comm {
    uint64_t magic;
    char name[128]; /* of the file of the segment */
    struct fake_segment *_Atomic segment;
    /* Of a child: held as long as it lives. In the parent while it is made:
     * who else may end what its ranks agree on. */
    struct nccl_comm *parent;
    struct nccl_comm *_Atomic child;
    int rank, size, device;
    nccl_config_t config;
    char net_name[64], comm_name[64]; /* what config points to */
    bool does_block;
    _Atomic nccl_result_t state; /* what ncclCommGetAsyncError() says */
    _Atomic bool is_aborted; /* ends every wait of this rank */
    _Atomic bool is_revoked; /* ends what streams run */
    _Atomic bool is_finalized;
    _Atomic int busy; /* answers of "in progress" that are left */
    uint32_t ticks[FAKE_LANES];
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    unsigned int refs; /* the handle, launches in a queue, a job, children */
    bool has_job;
    uint64_t launched, done; /* they run in the order of their launch */
    unsigned int children; /* splits and shrinks so far */
    struct fake_op ops[FAKE_OPS_MAX];
    char error[256];
};

/* One operation of a launch. */
struct fake_work {
    struct fake_call call; /* root: of send and recv the peer */
    const unsigned char *from;
    unsigned char *to;
    uint64_t moved; /* of send and recv: bytes so far */
    bool is_done;
    double factor; /* of a pre-multiplied sum */
    int64_t factor_int;
    const void *factor_at; /* where it is read when the launch runs */
};

/* nccl_segment.c */
nccl_result_t fake_segment_open(struct nccl_comm *comm);
void fake_segment_close(struct nccl_comm *comm);
/* Shows call and data, and returns when all ranks have; false if this rank is
 * to stop. What is shown stays until the rank's next tick on this lane. */
bool fake_show(struct nccl_comm *comm, enum fake_lane lane,
    const struct fake_call *call, const void *data, size_t bytes);
const struct fake_slot *fake_slot_of(
    const struct nccl_comm *comm, enum fake_lane lane, int rank);
bool fake_must_stop(const struct nccl_comm *comm, enum fake_lane lane);
uint32_t fake_bell(const struct nccl_comm *comm);
void fake_ring(struct nccl_comm *comm);
/* Sleeps until the bell has rung since it read seen. */
void fake_listen(struct nccl_comm *comm, uint32_t seen);
/* Returns when this rank is to stop. */
void fake_hang(struct nccl_comm *comm, enum fake_lane lane);

/* nccl_fault.c: is it scripted? nth and value may be 0 and NULL. */
bool fake_fault(const char *kind, int rank, uint64_t nth, int *value);
int fake_setting(const char *name, int otherwise);

/* nccl_reduce.c */
size_t fake_dtype_size(nccl_dtype_t dtype); /* 0: there is none such */
/* Element by element: to = the reduction of one array per rank. */
void fake_reduce(const struct fake_work *work, const unsigned char *const *from,
    int ranks, unsigned char *to, size_t count);
/* Sets the factor of a pre-multiplied sum, and multiplies with it. */
void fake_scalar_read(
    nccl_dtype_t dtype, const void *at, struct fake_work *work);
void fake_scale(
    const struct fake_work *work, unsigned char *data, size_t count);

/* nccl_run.c: does what a launch consists of; false: stopped or failed. */
bool fake_run(struct nccl_comm *comm, struct fake_work *works, size_t count);

/* nccl_comm.c */
/* COLL_NCCL_SUCCESS, or it is no communicator, or one that is not ready. */
nccl_result_t fake_comm_check(const struct nccl_comm *comm);
nccl_result_t fake_comm_check_ready(struct nccl_comm *comm);
nccl_result_t fake_comm_make(struct nccl_comm **out, const char *name, int size,
    int rank, int device, const nccl_config_t *config);
/* Has its ranks meet, in a job. Takes comm, which is in *out from now on. */
nccl_result_t fake_comm_begin(struct nccl_comm **out, struct nccl_comm *comm);
/* What such a job does. */
nccl_result_t fake_comm_meet(struct nccl_comm *comm);
/* For whoever waits for what has changed in it. */
void fake_comm_wake(struct nccl_comm *comm);
void fake_comm_hold(struct nccl_comm *comm);
void fake_comm_release(struct nccl_comm *comm);
/* Sets the text of ncclGetLastError(), of comm or (NULL) of none; returns rc.
 */
nccl_result_t fake_error(struct nccl_comm *comm, nccl_result_t rc,
    const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/*
 * nccl_group.c: what takes time is done in a thread, started now or by the end
 * of the group that the caller is in, and waited for if comm blocks. What run
 * returns is the state of comm; it is freed with free().
 */
struct fake_job {
    struct fake_job *next;
    nccl_result_t (*run)(const struct fake_job *job);
    struct nccl_comm *comm;
    struct nccl_comm *parent; /* of a split */
    struct fake_call call; /* its color (root) and key (count) */
};
/* Takes the job, and returns what the caller is to return. */
nccl_result_t fake_job_add(struct fake_job *job);
void fake_job_wait(struct nccl_comm *comm);

#endif
