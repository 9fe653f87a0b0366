/* What the files gpu_*.c share. */
#ifndef COLL_GPU_INTERNAL_H
#define COLL_GPU_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "collective_gpu.h"
#include "cuda_api.h"
#include "gpu.h"
#include "nccl_api.h"

#define GPU_NET_NAME_SIZE 64

/* Devices that one process may have in a call. */
#define GPU_MANY_MAX 64

/* Sizes of the memory for copies: all that there can be. */
#define GPU_SCRATCH_MIN 65536
#define GPU_SCRATCHES 48

/* An operation on a stream that is not known to have ended. */
struct gpu_op {
    struct gpu_op *next;
    struct cu_event *event; /* behind it in its stream */
    struct cu_stream *stream;
    bool is_launched; /* the event is in the stream; else it is being put there
                       */
    struct coll_call call; /* its buffers and arrays may be gone */
    coll_work_t *work; /* NULL: nobody's */
    uint64_t ticket; /* in the recorder */
    uint64_t entered_ns;
};

/* One communicator of this rank's, on one device. */
struct gpu {
    struct gpu *next; /* of those that were given up */
    struct coll_group *group;
    const struct cuda_api *cu;
    const struct nccl_api *nccl;
    int device;
    struct cu_context *context; /* the device's primary one, retained */
    int rank, size;
    uint64_t name; /* a random number that the ranks have agreed on */
    bool must_abort; /* instead of leaving it */
    uint64_t nchildren; /* that were made of it */
    nccl_config_t config;
    char net_name[GPU_NET_NAME_SIZE]; /* what config points to */
    pthread_mutex_t launching; /* held while NCCL is called */
    _Atomic bool is_launching;
    struct cu_stream *own; /* of operations with a work */
    struct cu_event *before; /* what such a one waits for */
    cu_address_t scratch[GPU_SCRATCHES]; /* 0, or of GPU_SCRATCH_MIN << i */
    cu_address_t stage; /* of stage_bytes: gpu_stage.c */
    size_t stage_bytes;
    pthread_mutex_t lock; /* of what follows */
    struct nccl_comm *_Atomic comm; /* NULL once it is being aborted */
    struct gpu_op *first, *last; /* in the order of their launch */
    struct gpu_op *spare;
    uint64_t since_ns; /* the first one is the first one since then */
    struct gpu_job *ending; /* the abort, once comm is NULL */
    bool wants_abort; /* a launch has failed half-way */
    pthread_cond_t changed; /* the watchdog has something to do */
    pthread_t watchdog;
    bool has_watchdog;
    bool is_ending;
    uint64_t looked_ns; /* the watchdog's: when it looked for the others */
};

/* --- gpu_device.c ----------------------------------------------------------
 */

/* The driver, initialised; or fails with function's sentence. */
coll_status_t gpu_driver(const struct cuda_api **out, const char *function);

/* "function: cuStreamCreate: CUDA_ERROR_...": COLL_ERR_SYSTEM, or _MEMORY. */
coll_status_t gpu_fail_cuda(const struct cuda_api *cu, const char *function,
    const char *what, cu_result_t error);

/* The current context's device, or that of the local rank. */
coll_status_t gpu_choose_device(
    const struct cuda_api *cu, const char *function, int *device);

/* Around calls that need the device's context: makes it the current one, and
 * what was current before current again. */
struct cu_context *gpu_enter(
    const struct cuda_api *cu, struct cu_context *context);
void gpu_leave(const struct cuda_api *cu, struct cu_context *entered,
    struct cu_context *before);

/* COLL_SHARE_GPU: how many ranks a device may have, 1 without it. */
int gpu_share(void);

/* --- gpu_job.c: calls of NCCL that may never return ------------------------
 */

struct gpu_job {
    nccl_result_t (*run)(struct gpu_job *job);
    const struct cuda_api *cu;
    const struct nccl_api *nccl;
    struct cu_context *context;
    struct nccl_comm *comm; /* what it is done to, or what it has made */
    /* Of making one. */
    struct nccl_comm *parent;
    int rank, size, color, key, flags;
    nccl_unique_id_t *ids; /* [nids], the job's */
    int nids;
    int *excluded; /* [nexcluded], the job's */
    int nexcluded;
    nccl_config_t config; /* that of the communicator that is made */
    /* Of the result; after gpu_job_wait() was true. */
    nccl_result_t result;
    char error[256];
    /* gpu_job.c's. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned int refs;
    bool is_done;
};

/* A job with the two libraries, context and configuration of gpu, or NULL for
 * lack of memory. */
struct gpu_job *gpu_job_create(const struct gpu *gpu);

/* Starts it in a thread of its own, or runs it at once if there is none to be
 * had. */
void gpu_job_start(struct gpu_job *job);

/* Is it done, by deadline_ns at the latest? */
bool gpu_job_wait(struct gpu_job *job, uint64_t deadline_ns);

/* Whoever made it needs it no more; takes NULL. */
void gpu_job_release(struct gpu_job *job);

nccl_result_t gpu_job_init(struct gpu_job *job);
nccl_result_t gpu_job_split(struct gpu_job *job);
nccl_result_t gpu_job_shrink(struct gpu_job *job);
nccl_result_t gpu_job_abort(struct gpu_job *job);
nccl_result_t gpu_job_revoke(struct gpu_job *job);
nccl_result_t gpu_job_destroy(struct gpu_job *job);

/* --- gpu_meet.c ------------------------------------------------------------
 */

/*
 * Has the ranks of a group meet, and makes the communicators of their n devices
 * (on each rank), as a step of call. call->is_refused: all ranks know why
 * there is none, and the group is as it was.
 */
coll_status_t gpu_meet(struct coll_group *g, struct coll_call *call,
    const coll_gpu_options_t *options, const int *devices, int n,
    struct gpu **out);

/* The configuration of a communicator that a split makes. */
void gpu_configure_child(struct gpu *gpu, const struct gpu *parent);

/* Waits for the job that makes gpu's communicator, and takes it. All ranks of
 * the group take part; has_turn: call has its turn in it. */
coll_status_t gpu_take_made(struct gpu *gpu, struct gpu_job *job,
    struct coll_group *g, const struct coll_call *call, bool has_turn);

/* The same of the one that it is made of; without a turn. */
coll_status_t gpu_await_parent(struct gpu *parent, struct gpu_job *job,
    struct coll_group *g, const struct coll_call *call);

/* --- gpu_group.c -----------------------------------------------------------
 */

/* All but the communicator. */
coll_status_t gpu_create(struct gpu **out, struct coll_group *g,
    const struct cuda_api *cu, const struct nccl_api *nccl, int device,
    const char *function);
void gpu_destroy(struct gpu *gpu);

/* Waits for their operations, leaves the communicators and frees all. */
void gpu_end(struct gpu *const *gpus, int n);

/* Frees one when the job, and its abort, are done, by then; else it is kept, as
 * what they use. */
void gpu_discard(struct gpu *gpu, struct gpu_job *job, int64_t wait_ms);

/* How long that of one may take which could not be made. Nothing but another
 * rank ends a call that makes a communicator which blocks. */
#define GPU_DISCARD_MS 500

/* The group's communicator, NULL if it has none (yet). */
struct gpu *gpu_of(struct coll_group *g);

/* --- gpu_many.c ------------------------------------------------------------
 */

coll_status_t gpu_many_run(struct coll_group *g, struct coll_call *call);
bool gpu_many_advance(struct coll_group *g);
void gpu_many_free(struct coll_group *g);

/* --- gpu_call.c ------------------------------------------------------------
 */

/* The group's communicator for a call, made if it is missing. */
coll_status_t gpu_reach(
    struct coll_group *g, struct coll_call *call, struct gpu **out);

/* --- gpu_selftest.c --------------------------------------------------------
 */

/* Does all_gather put what rank r has into block r? As a step of call. */
coll_status_t gpu_selftest(struct gpu *gpu, const struct coll_call *call);

/* --- gpu_launch.c ----------------------------------------------------------
 */

/* Puts a call on each of n streams, in one launch. */
coll_status_t gpu_launch(struct gpu *const *gpus, struct cu_stream *const *on,
    const struct coll_call *calls, int n);

/* Around calls of NCCL with the communicator, which is not freed meanwhile. */
void gpu_hold(struct gpu *gpu);
void gpu_let_go(struct gpu *gpu);

/* As gpu_advance(), of one. */
bool gpu_reap(struct gpu *gpu);

/* Fails the operations that have not ended with the group's failure; those
 * that are being launched fail by themselves. */
void gpu_fail_all(struct gpu *gpu);

/* Ends the communicator so that no stream hangs; the group has failed. */
void gpu_abort(struct gpu *gpu);

/* What went wrong: "all_reduce #6 on GPU 0: ncclAllReduce: ...". */
coll_status_t gpu_fail_nccl(const struct gpu *gpu, const struct coll_call *call,
    nccl_result_t result, const char *last_error);

/* --- gpu_ops.c: a call as calls of NCCL ------------------------------------
 */

/* COLL_OK, or this NCCL cannot do it (nccl NULL: whichever it is). */
coll_status_t gpu_ops_check(const struct nccl_api *nccl, const char *function,
    const struct coll_call *call);

/* The same question, without a sentence. */
bool gpu_ops_can(const struct nccl_api *nccl, const struct coll_call *call);

/* Does it use memory of the communicator's, once it runs? */
bool gpu_ops_needs_copy(const struct coll_call *call);

/* Within a group of NCCL's, the launch of a call. */
nccl_result_t gpu_ops_enqueue(struct gpu *gpu, const struct coll_call *call,
    struct cu_stream *stream, nccl_op_t made);

/* The reduction that a factor needs; *made false: none. */
nccl_result_t gpu_ops_make_op(
    struct gpu *gpu, const struct coll_call *call, nccl_op_t *op, bool *made);

/* What NCCL says of the communicator by itself, and the device of the first
 * operation. */
nccl_result_t gpu_async_error(struct gpu *gpu);
cu_result_t gpu_device_error(struct gpu *gpu);

/* --- gpu_watch.c: the watchdog ---------------------------------------------
 */

coll_status_t gpu_watch_start(struct gpu *gpu);
void gpu_watch_end(struct gpu *gpu);

/* --- gpu_blame.c -----------------------------------------------------------
 */

/* Time is over for a call: fails with a sentence that names who has not come.
 * Asks the others through the store, which takes two seconds at most. */
coll_status_t gpu_blame(struct gpu *gpu, const struct coll_call *call);

#endif
