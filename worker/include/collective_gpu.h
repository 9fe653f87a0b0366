/*
 * libcollective on NVIDIA GPUs, through NCCL.
 *
 * An operation of collective.h whose buffers are memory of a CUDA device runs
 * there; nothing else has to be called:
 *
 *     cudaSetDevice(coll_gpu_device());
 *     cudaMalloc((void **)&x, count * sizeof(*x));
 *     coll_all_reduce(x, x, count, COLL_FLOAT32, COLL_SUM, NULL);
 *
 * The same group serves both kinds of memory: what lies in host memory, and
 * barriers, objects and messages of host memory, are the business of the
 * group's CPU back end. The library is not linked to CUDA or NCCL: it loads
 * libcuda.so.1 where the machine has a GPU, and libnccl.so.2 (or the file that
 * COLL_NCCL_LIBRARY names; 2.18 or later) when a group first needs it. Streams
 * are void pointers here: a cudaStream_t, or a CUstream.
 *
 * Order and waiting
 * - The calls that wait on the CPU (coll_all_reduce()) wait on the GPU here:
 *   they return when the operation is on the group's stream, and what is put
 *   there after it finds its result. That stream is CUDA's default stream, or
 *   the one of coll_gpu_set_stream().
 * - Those that do not wait (coll_all_reduce_async()) run on a stream of the
 *   group's own, after what is on the group's stream by then and beside what
 *   comes later. coll_work_wait() blocks the host until the result is there;
 *   coll_work_wait_stream() has a stream wait instead.
 * - Operations on device memory are done in the order of the calls, as all
 *   others of the group, and a call waits for those on host memory before it.
 *   On all ranks the same operation is one of device memory, or none: a rank
 *   that has no elements in an all_to_all_v passes a buffer all the same.
 * - All buffers of a call are on one device, that of the group's first such
 *   call (or coll_gpu_connect()). Memory of cudaMallocManaged() counts as the
 *   device's, page-locked host memory as the host's.
 * - The communicator is made in the group's first operation on device memory,
 *   or in coll_gpu_connect(): all ranks of the group take part, and wait for
 *   each other. Messages need one that is there: COLL_ERR_STATE.
 * - Operations of different groups can keep each other waiting on a stream that
 *   they share: threads that use different groups give each its own.
 *   coll_group_destroy() and coll_destroy() wait for what is on its way on a
 *   device, at most as long as its time-out.
 *
 * What NCCL does differently
 * - There is no reduction of int16 and uint16, none by BAND, BOR and BXOR, and
 *   none of the eight-bit floats before NCCL 2.24: COLL_ERR_UNSUPPORTED. A BOOL
 *   must be 0 or 1. Rounding, the order of sums, and AVG of integers are
 *   NCCL's. Everything else moves any type.
 * - A message has no tag (the tag is not looked at) and must name its source:
 *   messages between two ranks are received in the order in which they are
 *   sent. A send waits for its receive, and messages that are not in one
 *   coll_batch() follow each other as operations do: two ranks that send to
 *   each other at the same time do so in a batch, each with its receive.
 * - Ranks that call different operations, or pass different counts, are not
 *   told so at once, which would take a message: the operations hang until the
 *   time-out, or the data are wrong. COLL_CHECK=1 in the environment of all
 *   ranks has each operation compared before it begins, as those on host memory
 *   always are; that costs about as much as a barrier. A new communicator then
 *   also has to show that it has the ranks in the right order.
 *
 * Failures
 * - A thread of the library watches what has not ended. When an operation has
 *   not after the group's time-out, counted from when it became the oldest one,
 *   or NCCL reports an error, or the launcher tells of a rank that has failed,
 *   the communicator is aborted, so that no stream hangs; the group is broken,
 *   and every later call (also coll_gpu_synchronize() and coll_work_wait())
 *   says which operation it was, and which ranks have not come to it. Buffers
 *   of operations that had not ended are undefined.
 * - In a stream that captures a CUDA graph only calls that wait are possible,
 *   but no all_to_all in place, with a communicator that is there already; no
 *   time-out watches over what a graph replays.
 */
#ifndef COLLECTIVE_GPU_H
#define COLLECTIVE_GPU_H

#include "collective.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The device for this rank, a number as in cudaSetDevice(), of those that
 * CUDA_VISIBLE_DEVICES shows this process: that of the local rank; the only one
 * where one is visible, as Slurm and --virtual_local_rank do it. If there are
 * fewer devices than ranks they begin anew, so that the ranks that share one
 * are told so when they meet. With COLL_SHARE_GPU=N (crun --share_gpu N) N
 * ranks have a device in common. -1, with a sentence: there is none. May be
 * called before coll_init(); initializes CUDA.
 */
COLL_API int coll_gpu_device(void);

typedef struct coll_gpu_options {
    /* ncclConfig_t's minCTAs, maxCTAs and cgaClusterSize; 0: NCCL's choice. */
    int min_ctas, max_ctas, cga_cluster_size;
    /* Its netName, "IB", "Socket"; NULL: NCCL's choice. */
    const char *net_name;
    /*
     * A communicator of which no call ever blocks (its "blocking" is 0): then
     * making it can be ended at any time, but every launch costs a thread's
     * start. Else a call may block in NCCL while it connects to
     * other ranks, until the communicator is aborted.
     */
    bool non_blocking;
} coll_gpu_options_t;

#ifdef __cplusplus
#define COLL_GPU_OPTIONS_INIT (coll_gpu_options_t())
#else
#define COLL_GPU_OPTIONS_INIT ((coll_gpu_options_t){0, 0, 0, NULL, false})
#endif

/*
 * Makes the group's communicator now, on the calling thread's current device,
 * or on coll_gpu_device() where it has none. An operation of the group: all
 * ranks call it, with the same options (NULL: the defaults). COLL_OK, too, if
 * it is there already. Two ranks of one host on one GPU, ranks with different
 * versions of NCCL, and a rank without a GPU, a driver that can do CUDA 11, or
 * NCCL, are COLL_ERR_ENVIRONMENT on all ranks, with a sentence that names them,
 * before NCCL is asked for anything; the group goes on with host memory.
 */
COLL_API coll_status_t coll_gpu_connect(
    coll_group_t *group, const coll_gpu_options_t *options);

/* From now on the group's stream; NULL is CUDA's default stream. It is
 * borrowed until another one is set or the group is destroyed. */
COLL_API coll_status_t coll_gpu_set_stream(coll_group_t *group, void *stream);

/*
 * Blocks until all operations on device memory that this rank has called are
 * done. COLL_OK, or the group's failure. timeout_ms greater than 0: for so long
 * at most, then COLL_ERR_TIMEOUT, and they go on; 0: the group's time-out ends
 * it, and the group with it.
 */
COLL_API coll_status_t coll_gpu_synchronize(
    coll_group_t *group, int64_t timeout_ms);

/* What is put on stream from now on waits for the work. Does not block, but
 * for a work on host memory, which it waits for as coll_work_wait() does. */
COLL_API coll_status_t coll_work_wait_stream(coll_work_t *work, void *stream);

/* --- Memory -------------------------------------------------------------- */

/* Memory on the current device, or coll_gpu_device(), as NCCL likes it best
 * (ncclMemAlloc(), where NCCL is there and has it; else cuMemAlloc()). Its
 * contents are undefined. COLL_ERR_MEMORY if there is not enough. */
COLL_API coll_status_t coll_gpu_alloc(void **out, size_t bytes);

/* Takes NULL. What did not come from coll_gpu_alloc(): COLL_ERR_ARGUMENT. */
COLL_API coll_status_t coll_gpu_free(void *memory);

/*
 * Registers a buffer with the group's communicator (ncclCommRegister()), which
 * spares NCCL copies. COLL_ERR_STATE before the communicator is there;
 * COLL_ERR_UNSUPPORTED if this NCCL cannot (before 2.19). Deregister it before
 * it is freed, and before the group is destroyed.
 */
COLL_API coll_status_t coll_gpu_register(
    coll_group_t *group, void *buf, size_t bytes, void **handle);
COLL_API coll_status_t coll_gpu_deregister(coll_group_t *group, void *handle);

/* --- Several GPUs in one process ----------------------------------------- */

/*
 * One process that drives n GPUs: operations on n buffers of each rank, each on
 * another device. They are the ranks of a world of their own, n times as large:
 * buffer i of rank r has rank r * n + i there, and sizes and the order of parts
 * follow from that; so does root of broadcast and reduce. All ranks pass the
 * same n, 1 to 64, and the same devices in the same order in every call with
 * this n. Calls do as those that wait, each on its device's default stream, and
 * coll_gpu_synchronize() waits for them.
 */
COLL_API coll_status_t coll_all_reduce_multigpu(const void *const *sendbufs,
    void *const *recvbufs, int n, size_t count, coll_dtype_t dtype,
    coll_op_t op, coll_group_t *group);
COLL_API coll_status_t coll_reduce_multigpu(const void *const *sendbufs,
    void *const *recvbufs, int n, size_t count, coll_dtype_t dtype,
    coll_op_t op, int root, coll_group_t *group);
COLL_API coll_status_t coll_broadcast_multigpu(void *const *bufs, int n,
    size_t count, coll_dtype_t dtype, int root, coll_group_t *group);
COLL_API coll_status_t coll_all_gather_multigpu(const void *const *sendbufs,
    void *const *recvbufs, int n, size_t count, coll_dtype_t dtype,
    coll_group_t *group);
COLL_API coll_status_t coll_reduce_scatter_multigpu(const void *const *sendbufs,
    void *const *recvbufs, int n, size_t count, coll_dtype_t dtype,
    coll_op_t op, coll_group_t *group);

#ifdef __cplusplus
}
#endif

#endif
