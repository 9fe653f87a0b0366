/*
 * A test double, see nccl_fake.h: operations, and groups of them. A call that
 * is in no group is a group of one. At the end of a group the operations of
 * each communicator become one launch: one host function on the first stream
 * that they were given, before which that stream waits for the others, and
 * after which they wait for it.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/fake_nccl/nccl_fake.h"

/* What is linked is the test double of the driver. */
#define DECLARE(member, symbol, required, args) cu_result_t symbol args;
COLL_CUDA_MAP(DECLARE)
#undef DECLARE

#define STREAMS_MAX 8

struct launch {
    struct launch *next;
    struct nccl_comm *comm;
    struct cu_stream *streams[STREAMS_MAX];
    size_t nstreams;
    struct fake_work *works;
    size_t count;
    uint64_t number; /* of the communicator's launches, from 1 */
};

static THREAD_LOCAL struct {
    int depth;
    struct launch *launches;
    struct fake_job *jobs;
    nccl_result_t failure; /* of a call in the group */
} group;

static void free_launch(struct launch *launch)
{
    free(launch->works);
    free(launch);
}

static bool is_its_turn(struct launch *launch)
{
    struct nccl_comm *comm = launch->comm;
    bool is_turn;

    pthread_mutex_lock(&comm->lock);
    while (
        comm->done + 1 < launch->number && !fake_must_stop(comm, FAKE_STREAM))
        pthread_cond_wait(&comm->changed, &comm->lock);
    is_turn = comm->done + 1 >= launch->number;
    pthread_mutex_unlock(&comm->lock);
    return is_turn && !fake_must_stop(comm, FAKE_STREAM);
}

/* In the thread of a stream. */
static void run_launch(void *arg)
{
    struct launch *launch = arg;
    struct nccl_comm *comm = launch->comm;
    int code = COLL_NCCL_REMOTE_ERROR;

    if (is_its_turn(launch)) {
        if (fake_fault("op_error", comm->rank, launch->number, &code)) {
            fake_error(comm, (nccl_result_t)code, "scripted");
            atomic_store(&comm->state, (nccl_result_t)code);
            fake_hang(comm, FAKE_STREAM);
        } else if (fake_fault("op_hang", comm->rank, launch->number, NULL)) {
            fake_hang(comm, FAKE_STREAM);
        } else {
            fake_run(comm, launch->works, launch->count);
        }
    }
    pthread_mutex_lock(&comm->lock);
    if (comm->done < launch->number)
        comm->done = launch->number;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    fake_comm_release(comm);
    free_launch(launch);
}

/* Orders all streams of a launch: before it (others, first), after it. */
static cu_result_t order(
    struct cu_stream *const *streams, size_t count, bool is_before)
{
    cu_result_t rc = COLL_CUDA_SUCCESS;

    for (size_t i = 1; i < count && rc == COLL_CUDA_SUCCESS; i++) {
        struct cu_event *event;

        rc = cuEventCreate(&event, COLL_CUDA_EVENT_NO_TIMING);
        if (rc != COLL_CUDA_SUCCESS)
            break;
        rc = cuEventRecord(event, streams[is_before ? i : 0]);
        if (rc == COLL_CUDA_SUCCESS)
            rc = cuStreamWaitEvent(streams[is_before ? 0 : i], event, 0);
        cuEventDestroy_v2(event);
    }
    return rc;
}

/* As where NCCL connects to a rank that does not answer: until the communicator
 * is aborted, or revoked, by another thread. */
static void hang_in_launch(struct nccl_comm *comm)
{
    fake_comm_hold(comm);
    fake_hang(comm, FAKE_STREAM);
    fake_comm_release(comm);
}

/* Takes the launch. */
static nccl_result_t start(struct launch *launch)
{
    struct nccl_comm *comm = launch->comm;
    struct cu_stream *streams[STREAMS_MAX];
    size_t nstreams = launch->nstreams;
    cu_capture_status_t capture;
    int busy = 1;
    cu_result_t rc = cuStreamIsCapturing(launch->streams[0], &capture);

    memcpy(streams, launch->streams, sizeof(streams));
    if (rc == COLL_CUDA_SUCCESS && capture != COLL_CUDA_CAPTURE_NONE) {
        free_launch(launch); /* is in the graph, and runs with it */
        return COLL_NCCL_SUCCESS;
    }
    if (rc == COLL_CUDA_SUCCESS)
        rc = order(streams, nstreams, true);
    if (rc != COLL_CUDA_SUCCESS) {
        free_launch(launch);
        return fake_error(comm, COLL_NCCL_UNHANDLED_CUDA_ERROR,
            "the stream of an operation: CUDA error %u", rc);
    }
    if (fake_fault("launch_hang", comm->rank, comm->launched + 1, NULL)) {
        hang_in_launch(comm);
        free_launch(launch);
        return COLL_NCCL_INTERNAL_ERROR;
    }
    fake_comm_hold(comm);
    pthread_mutex_lock(&comm->lock); /* numbered in the order of the queue */
    launch->number = comm->launched + 1;
    if (!comm->does_block &&
        fake_fault("busy", comm->rank, launch->number, &busy))
        atomic_store(&comm->busy, busy);
    rc = cuLaunchHostFunc(streams[0], run_launch, launch);
    if (rc == COLL_CUDA_SUCCESS)
        comm->launched++;
    pthread_mutex_unlock(&comm->lock);
    if (rc != COLL_CUDA_SUCCESS) {
        fake_comm_release(comm);
        free_launch(launch);
    }
    if (rc == COLL_CUDA_SUCCESS)
        rc = order(streams, nstreams, false);
    if (rc != COLL_CUDA_SUCCESS)
        return fake_error(comm, COLL_NCCL_UNHANDLED_CUDA_ERROR,
            "launching an operation: CUDA error %u", rc);
    return atomic_load(&comm->busy) > 0 ? COLL_NCCL_IN_PROGRESS
                                        : COLL_NCCL_SUCCESS;
}

/* On the communicator's device, whichever is the caller's current one: stream
 * NULL is that of the device. Takes the launch. */
static nccl_result_t start_on_device(struct launch *launch)
{
    const int device = launch->comm->device;
    struct cu_context *context;
    nccl_result_t result;

    if (cuDevicePrimaryCtxRetain(&context, device) != COLL_CUDA_SUCCESS ||
        cuCtxPushCurrent_v2(context) != COLL_CUDA_SUCCESS)
        return start(launch); /* which says what is wrong */
    result = start(launch);
    cuCtxPopCurrent_v2(&context);
    cuDevicePrimaryCtxRelease_v2(device);
    return result;
}

static nccl_result_t add(struct nccl_comm *comm, struct cu_stream *stream,
    const struct fake_work *work)
{
    struct launch **at = &group.launches, *launch;
    struct fake_work *works;
    size_t i;

    while (*at != NULL && (*at)->comm != comm)
        at = &(*at)->next;
    if (*at == NULL) {
        *at = calloc(1, sizeof(**at));
        if (*at == NULL)
            return COLL_NCCL_SYSTEM_ERROR;
        (*at)->comm = comm;
    }
    launch = *at;
    works = realloc(launch->works, (launch->count + 1) * sizeof(*works));
    if (works == NULL)
        return COLL_NCCL_SYSTEM_ERROR;
    launch->works = works;
    works[launch->count++] = *work;
    for (i = 0; i < launch->nstreams; i++)
        if (launch->streams[i] == stream)
            return COLL_NCCL_SUCCESS;
    if (i == STREAMS_MAX)
        return fake_error(comm, COLL_NCCL_INVALID_USAGE,
            "the test double takes %d streams in a group", STREAMS_MAX);
    launch->streams[launch->nstreams++] = stream;
    return COLL_NCCL_SUCCESS;
}

nccl_result_t fake_job_add(struct fake_job *job)
{
    nccl_result_t rc;

    atomic_store(&job->comm->state, COLL_NCCL_IN_PROGRESS);
    if (job->parent != NULL)
        atomic_store(&job->parent->state, COLL_NCCL_IN_PROGRESS);
    ncclGroupStart();
    job->next = group.jobs;
    group.jobs = job;
    rc = ncclGroupEnd();
    return group.depth > 0 ? COLL_NCCL_SUCCESS : rc;
}

static void end_job(struct fake_job *job, nccl_result_t rc)
{
    struct nccl_comm *comm = job->comm;
    nccl_result_t state = COLL_NCCL_IN_PROGRESS;

    if (job->parent != NULL) /* unless it has failed in the meantime */
        atomic_compare_exchange_strong(
            &job->parent->state, &state, COLL_NCCL_SUCCESS);
    atomic_store(&comm->state, rc);
    pthread_mutex_lock(&comm->lock);
    comm->has_job = false;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    fake_comm_release(comm);
    free(job);
}

static void *run_job(void *arg)
{
    struct fake_job *job = arg;

    end_job(job, job->run(job));
    return NULL;
}

static void start_job(struct fake_job *job)
{
    pthread_attr_t attributes;
    pthread_t thread;
    int rc;

    pthread_mutex_lock(&job->comm->lock);
    job->comm->has_job = true;
    job->comm->refs++;
    pthread_mutex_unlock(&job->comm->lock);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    rc = pthread_create(&thread, &attributes, run_job, job);
    pthread_attr_destroy(&attributes);
    if (rc != 0)
        end_job(job, COLL_NCCL_SYSTEM_ERROR);
}

void fake_job_wait(struct nccl_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->has_job)
        pthread_cond_wait(&comm->changed, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
}

/* Starts all, then waits for those of communicators that block. */
static nccl_result_t run_jobs(struct fake_job *jobs)
{
    struct nccl_comm *waiting[FAKE_RANKS_MAX];
    size_t nwaiting = 0;
    nccl_result_t rc = COLL_NCCL_SUCCESS;

    while (jobs != NULL) {
        struct fake_job *job = jobs;

        jobs = job->next;
        if (job->comm->does_block && nwaiting < FAKE_RANKS_MAX) {
            fake_comm_hold(job->comm); /* another thread may abort it */
            waiting[nwaiting++] = job->comm;
        } else if (job->comm->does_block) {
            rc = COLL_NCCL_INVALID_USAGE; /* too many; it goes on */
        } else if (rc == COLL_NCCL_SUCCESS) {
            rc = COLL_NCCL_IN_PROGRESS;
        }
        start_job(job);
    }
    for (size_t i = 0; i < nwaiting; i++) {
        fake_job_wait(waiting[i]);
        if (rc == COLL_NCCL_SUCCESS)
            rc = atomic_load(&waiting[i]->state);
        fake_comm_release(waiting[i]);
    }
    return rc;
}

nccl_result_t ncclGroupStart(void)
{
    group.depth++;
    return COLL_NCCL_SUCCESS;
}

nccl_result_t ncclGroupEnd(void)
{
    struct launch *launch = group.launches, *next;
    struct fake_job *jobs = group.jobs;
    nccl_result_t failure = group.failure, rc;

    if (group.depth == 0)
        return fake_error(NULL, COLL_NCCL_INVALID_USAGE,
            "ncclGroupEnd: not in a group call.");
    if (--group.depth > 0)
        return COLL_NCCL_SUCCESS;
    group.launches = NULL;
    group.jobs = NULL;
    group.failure = COLL_NCCL_SUCCESS;
    rc = run_jobs(jobs);
    for (; launch != NULL; launch = next) {
        next = launch->next;
        if (failure != COLL_NCCL_SUCCESS ||
            (rc != COLL_NCCL_SUCCESS && rc != COLL_NCCL_IN_PROGRESS)) {
            free_launch(launch);
            continue;
        }
        failure = start_on_device(launch);
        if (failure == COLL_NCCL_IN_PROGRESS) {
            rc = failure;
            failure = COLL_NCCL_SUCCESS;
        }
    }
    return failure != COLL_NCCL_SUCCESS ? failure : rc;
}

/* --- Operations -------------------------------------------------------- */

static nccl_result_t check_op(struct nccl_comm *comm, struct fake_work *work)
{
    struct fake_op copy = {.is_used = false}, *op = &copy;
    uint32_t number = work->call.op;

    if (number <= COLL_NCCL_AVG)
        return COLL_NCCL_SUCCESS;
    number -= COLL_NCCL_AVG + 1;
    pthread_mutex_lock(&comm->lock);
    if (number < FAKE_OPS_MAX)
        copy = comm->ops[number];
    pthread_mutex_unlock(&comm->lock);
    if (!op->is_used)
        return fake_error(comm, COLL_NCCL_INVALID_ARGUMENT,
            "reduction operator %u is not one", work->call.op);
    if (op->dtype != work->call.dtype)
        return fake_error(comm, COLL_NCCL_INVALID_ARGUMENT,
            "reduction operator is for another data type");
    work->call.op = COLL_NCCL_AVG + 1; /* numbers may differ between ranks */
    if (op->residence == COLL_NCCL_SCALAR_DEVICE)
        work->factor_at = op->at;
    else
        fake_scalar_read(op->dtype, op->scalar, work);
    return COLL_NCCL_SUCCESS;
}

static nccl_result_t check(
    struct nccl_comm *comm, const char *name, struct fake_work *work)
{
    nccl_result_t rc = fake_comm_check_ready(comm);

    if (rc != COLL_NCCL_SUCCESS)
        return rc;
    if (fake_dtype_size(work->call.dtype) == 0)
        return fake_error(comm, COLL_NCCL_INVALID_ARGUMENT,
            "%s : invalid type %u", name, work->call.dtype);
    if (work->call.root < 0 || work->call.root >= comm->size)
        return fake_error(comm, COLL_NCCL_INVALID_ARGUMENT,
            "%s : invalid root or peer %d", name, work->call.root);
    if (atomic_load(&comm->is_finalized) || atomic_load(&comm->is_revoked))
        return fake_error(comm, COLL_NCCL_INVALID_USAGE,
            "%s : the communicator was finalized or revoked", name);
    return check_op(comm, work);
}

static nccl_result_t enqueue(const char *name, struct nccl_comm *comm,
    struct cu_stream *stream, struct fake_work work)
{
    nccl_result_t rc = check(comm, name, &work), ended;

    ncclGroupStart();
    if (rc == COLL_NCCL_SUCCESS)
        rc = add(comm, stream, &work);
    if (rc != COLL_NCCL_SUCCESS)
        group.failure = rc;
    ended = ncclGroupEnd();
    return rc != COLL_NCCL_SUCCESS ? rc : ended;
}

static struct fake_work work_of(enum fake_kind kind, const void *from, void *to,
    size_t count, nccl_dtype_t dtype, nccl_op_t op, int root)
{
    return (struct fake_work){.call = {.count = count,
                                  .kind = kind,
                                  .dtype = dtype,
                                  .op = op,
                                  .root = root},
        .from = from,
        .to = to};
}

nccl_result_t ncclAllReduce(const void *from, void *to, size_t count,
    nccl_dtype_t dtype, nccl_op_t op, COLL_NCCL_STREAM)
{
    return enqueue(__func__, comm, stream,
        work_of(FAKE_ALL_REDUCE, from, to, count, dtype, op, 0));
}

nccl_result_t ncclReduce(const void *from, void *to, size_t count,
    nccl_dtype_t dtype, nccl_op_t op, int root, COLL_NCCL_STREAM)
{
    return enqueue(__func__, comm, stream,
        work_of(FAKE_REDUCE, from, to, count, dtype, op, root));
}

nccl_result_t ncclBroadcast(const void *from, void *to, size_t count,
    nccl_dtype_t dtype, int root, COLL_NCCL_STREAM)
{
    return enqueue(__func__, comm, stream,
        work_of(FAKE_BROADCAST, from, to, count, dtype, 0, root));
}

nccl_result_t ncclReduceScatter(const void *from, void *to, size_t count,
    nccl_dtype_t dtype, nccl_op_t op, COLL_NCCL_STREAM)
{
    return enqueue(__func__, comm, stream,
        work_of(FAKE_REDUCE_SCATTER, from, to, count, dtype, op, 0));
}

nccl_result_t ncclAllGather(const void *from, void *to, size_t count,
    nccl_dtype_t dtype, COLL_NCCL_STREAM)
{
    return enqueue(__func__, comm, stream,
        work_of(FAKE_ALL_GATHER, from, to, count, dtype, 0, 0));
}

#if FAKE_NCCL_SYMBOLS >= 22800
nccl_result_t ncclAlltoAll(const void *from, void *to, size_t count,
    nccl_dtype_t dtype, COLL_NCCL_STREAM)
{
    return enqueue(__func__, comm, stream,
        work_of(FAKE_ALL_TO_ALL, from, to, count, dtype, 0, 0));
}

nccl_result_t ncclGather(const void *from, void *to, size_t count,
    nccl_dtype_t dtype, int root, COLL_NCCL_STREAM)
{
    return enqueue(__func__, comm, stream,
        work_of(FAKE_GATHER, from, to, count, dtype, 0, root));
}

nccl_result_t ncclScatter(const void *from, void *to, size_t count,
    nccl_dtype_t dtype, int root, COLL_NCCL_STREAM)
{
    return enqueue(__func__, comm, stream,
        work_of(FAKE_SCATTER, from, to, count, dtype, 0, root));
}
#endif

nccl_result_t ncclSend(const void *from, size_t count, nccl_dtype_t dtype,
    int peer, COLL_NCCL_STREAM)
{
    return enqueue(__func__, comm, stream,
        work_of(FAKE_SEND, from, NULL, count, dtype, 0, peer));
}

nccl_result_t ncclRecv(
    void *to, size_t count, nccl_dtype_t dtype, int peer, COLL_NCCL_STREAM)
{
    return enqueue(__func__, comm, stream,
        work_of(FAKE_RECV, NULL, to, count, dtype, 0, peer));
}
