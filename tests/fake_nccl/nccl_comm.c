/*
 * A test double, see nccl_fake.h: communicators from their making to their
 * end. What takes time is a job in a thread: the caller waits for it if the
 * communicator blocks, else ncclCommGetAsyncError() tells how it stands.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "tests/fake_nccl/nccl_fake.h"

#define DECLARE(member, symbol, required, args) cu_result_t symbol args;
COLL_CUDA_MAP(DECLARE)
#undef DECLARE

#define MAGIC 0x66616b656e63636cULL

/* What ranks tell each other when they meet. */
struct peer {
    int version, size;
    uint64_t host;
    char bus_id[32];
};

static pthread_mutex_t error_lock = PTHREAD_MUTEX_INITIALIZER;
static char last_error[256];

nccl_result_t fake_error(
    struct nccl_comm *comm, nccl_result_t rc, const char *fmt, ...)
{
    char text[256];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    pthread_mutex_lock(&error_lock);
    memcpy(last_error, text, sizeof(text));
    if (comm != NULL)
        memcpy(comm->error, text, sizeof(text));
    pthread_mutex_unlock(&error_lock);
    return rc;
}

const char *ncclGetLastError(struct nccl_comm *comm)
{
    static THREAD_LOCAL char text[256];

    pthread_mutex_lock(&error_lock);
    memcpy(text,
        comm != NULL && comm->error[0] != '\0' ? comm->error : last_error,
        sizeof(text));
    pthread_mutex_unlock(&error_lock);
    return text;
}

const char *ncclGetErrorString(nccl_result_t result)
{
    switch (result) {
#define CASE(ours, value, theirs)                                              \
    case ours:                                                                 \
        return #theirs;
        COLL_NCCL_RESULT_MAP(CASE)
#undef CASE
    }
    return "unknown result code";
}

static int version(void)
{
    return fake_setting("FAKE_NCCL_VERSION", FAKE_NCCL_SYMBOLS);
}

nccl_result_t ncclGetVersion(int *out)
{
    *out = version();
    return COLL_NCCL_SUCCESS;
}

nccl_result_t ncclGetUniqueId(nccl_unique_id_t *id)
{
    uint64_t random[2];

    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return COLL_NCCL_SYSTEM_ERROR;
    memset(id, 0, sizeof(*id));
    snprintf(id->internal, sizeof(id->internal),
        FAKE_ID_PREFIX "%016llx%016llx", (unsigned long long)random[0],
        (unsigned long long)random[1]);
    return COLL_NCCL_SUCCESS;
}

nccl_result_t fake_comm_check(const struct nccl_comm *comm)
{
    if (comm == NULL || comm->magic != MAGIC)
        return fake_error(
            NULL, COLL_NCCL_INVALID_ARGUMENT, "that is no communicator");
    return COLL_NCCL_SUCCESS;
}

nccl_result_t fake_comm_check_ready(struct nccl_comm *comm)
{
    nccl_result_t rc = fake_comm_check(comm);

    if (rc != COLL_NCCL_SUCCESS)
        return rc;
    rc = atomic_load(&comm->state);
    if (rc == COLL_NCCL_IN_PROGRESS || atomic_load(&comm->busy) > 0)
        return fake_error(comm, COLL_NCCL_INVALID_ARGUMENT,
            "Attempt to use communicator before the previous operation "
            "returned ncclSuccess");
    return rc;
}

void fake_comm_wake(struct nccl_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    fake_ring(comm);
}

void fake_comm_hold(struct nccl_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->refs++;
    pthread_mutex_unlock(&comm->lock);
}

void fake_comm_release(struct nccl_comm *comm)
{
    struct nccl_comm *parent = comm->parent;
    bool is_last;

    pthread_mutex_lock(&comm->lock);
    is_last = --comm->refs == 0;
    pthread_mutex_unlock(&comm->lock);
    if (!is_last)
        return;
    fake_segment_close(comm);
    pthread_cond_destroy(&comm->changed);
    pthread_mutex_destroy(&comm->lock);
    comm->magic = 0;
    free(comm);
    if (parent != NULL)
        fake_comm_release(parent);
}

/* --- Making ------------------------------------------------------------ */

static void keep_text(const char **text, char copy[64])
{
    if (*text == NULL)
        return;
    snprintf(copy, 64, "%s", *text);
    *text = copy;
}

/* Of a configuration as much as its size says; NULL: nothing is set. */
static nccl_result_t read_config(
    struct nccl_comm *comm, const nccl_config_t *config)
{
    nccl_config_t *own = &comm->config;
    size_t size;

    nccl_config_init(own, version());
    comm->does_block = true;
    if (config == NULL)
        return COLL_NCCL_SUCCESS;
    size = config->size < own->size ? config->size : own->size;
    if (size < offsetof(nccl_config_t, blocking) ||
        config->magic != COLL_NCCL_CONFIG_MAGIC)
        return fake_error(comm, COLL_NCCL_INVALID_ARGUMENT,
            "ncclConfig_t argument not initialized via "
            "NCCL_CONFIG_INITIALIZER");
    memcpy(own, config, size);
    if ((own->blocking != COLL_NCCL_UNDEFINED && own->blocking != 0 &&
            own->blocking != 1) ||
        (own->minCTAs != COLL_NCCL_UNDEFINED &&
            own->maxCTAs != COLL_NCCL_UNDEFINED && own->minCTAs > own->maxCTAs))
        return fake_error(comm, COLL_NCCL_INVALID_ARGUMENT,
            "Invalid config blocking or CTAs attribute value");
    keep_text(&own->netName, comm->net_name);
    keep_text(&own->commName, comm->comm_name);
    comm->does_block = own->blocking != 0;
    return COLL_NCCL_SUCCESS;
}

static int current_device(void)
{
    cu_device_t device;

    return cuCtxGetDevice(&device) == COLL_CUDA_SUCCESS ? device : 0;
}

nccl_result_t fake_comm_make(struct nccl_comm **out, const char *name, int size,
    int rank, int device, const nccl_config_t *config)
{
    struct nccl_comm *comm;
    nccl_result_t rc;

    if (size < 1 || size > FAKE_RANKS_MAX || rank < 0 || rank >= size)
        return fake_error(NULL, COLL_NCCL_INVALID_ARGUMENT,
            "Invalid rank requested : %d/%d", rank, size);
    comm = calloc(1, sizeof(*comm));
    if (comm == NULL)
        return COLL_NCCL_SYSTEM_ERROR;
    comm->magic = MAGIC;
    comm->refs = 1;
    comm->rank = rank;
    comm->size = size;
    comm->device = device;
    snprintf(comm->name, sizeof(comm->name), "%s", name);
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->changed, NULL);
    rc = read_config(comm, config);
    if (rc != COLL_NCCL_SUCCESS) {
        fake_comm_release(comm);
        return rc;
    }
    *out = comm;
    return COLL_NCCL_SUCCESS;
}

static uint64_t host_hash(void)
{
    const char *text = getenv("NCCL_HOSTID");
    uint64_t hash = 5381;

    for (; text != NULL && *text != '\0'; text++)
        hash = hash * 33 + (unsigned char)*text;
    return hash;
}

static nccl_result_t check_peers(struct nccl_comm *comm)
{
    bool may_share = version() >= 23003 &&
                     fake_setting("NCCL_MULTI_RANK_GPU_ENABLE", 0) == 1;
    struct peer mine, its;

    memcpy(&mine, fake_slot_of(comm, FAKE_MEETING, comm->rank)->data,
        sizeof(mine));
    for (int i = 0; i < comm->size; i++) {
        memcpy(&its, fake_slot_of(comm, FAKE_MEETING, i)->data, sizeof(its));
        if (its.size != mine.size)
            return fake_error(comm, COLL_NCCL_INVALID_USAGE,
                "rank %d is of %d ranks, rank %d of %d", i, its.size,
                comm->rank, mine.size);
        if (its.version != mine.version)
            return fake_error(comm, COLL_NCCL_INVALID_USAGE,
                "Mismatched NCCL version detected : rank %d version %d rank "
                "%d version %d",
                i, its.version, comm->rank, mine.version);
        if (i != comm->rank && its.host == mine.host && !may_share &&
            strcmp(its.bus_id, mine.bus_id) == 0)
            return fake_error(comm, COLL_NCCL_INVALID_USAGE,
                "Duplicate GPU detected : rank %d and rank %d both on CUDA "
                "device %s",
                comm->rank, i, mine.bus_id);
    }
    return COLL_NCCL_SUCCESS;
}

nccl_result_t fake_comm_meet(struct nccl_comm *comm)
{
    struct peer peer;
    nccl_result_t rc = fake_segment_open(comm);
    int value = COLL_NCCL_SYSTEM_ERROR;

    if (rc != COLL_NCCL_SUCCESS)
        return rc;
    if (fake_fault("init_fail", comm->rank, 0, &value))
        return fake_error(comm, (nccl_result_t)value, "scripted");
    if (fake_fault("init_hang", comm->rank, 0, NULL)) {
        fake_hang(comm, FAKE_MEETING);
        return COLL_NCCL_INTERNAL_ERROR;
    }
    memset(&peer, 0, sizeof(peer));
    peer.version = version();
    fake_fault("version", comm->rank, 0, &peer.version);
    peer.size = comm->size;
    peer.host = host_hash();
    if (cuDeviceGetPCIBusId(peer.bus_id, sizeof(peer.bus_id), comm->device) !=
        COLL_CUDA_SUCCESS)
        return fake_error(comm, COLL_NCCL_UNHANDLED_CUDA_ERROR,
            "Cuda failure: device %d has no bus id", comm->device);
    if (!fake_show(comm, FAKE_MEETING, NULL, &peer, sizeof(peer)))
        return COLL_NCCL_INTERNAL_ERROR;
    rc = check_peers(comm);
    /* Nobody shows anything else before all have looked at it. */
    if (!fake_show(comm, FAKE_MEETING, NULL, NULL, 0))
        return COLL_NCCL_INTERNAL_ERROR;
    return rc;
}

static nccl_result_t run_init(const struct fake_job *job)
{
    return fake_comm_meet(job->comm);
}

nccl_result_t fake_comm_begin(struct nccl_comm **out, struct nccl_comm *comm)
{
    struct fake_job *job = calloc(1, sizeof(*job));

    if (job == NULL) {
        fake_comm_release(comm);
        return COLL_NCCL_SYSTEM_ERROR;
    }
    job->run = run_init;
    job->comm = comm;
    *out = comm;
    return fake_job_add(job);
}

static nccl_result_t init(struct nccl_comm **out, int size,
    const nccl_unique_id_t *id, int rank, int device,
    const nccl_config_t *config)
{
    struct nccl_comm *comm = NULL;
    nccl_result_t rc;

    if (strncmp(id->internal, FAKE_ID_PREFIX, strlen(FAKE_ID_PREFIX)) != 0 ||
        memchr(id->internal, '\0', sizeof(id->internal)) == NULL ||
        strchr(id->internal, '/') != NULL)
        return fake_error(
            NULL, COLL_NCCL_INVALID_ARGUMENT, "that is no unique id");
    rc = fake_comm_make(&comm, id->internal, size, rank, device, config);
    return rc == COLL_NCCL_SUCCESS ? fake_comm_begin(out, comm) : rc;
}

nccl_result_t ncclCommInitRankConfig(struct nccl_comm **comm, int size,
    nccl_unique_id_t id, int rank, nccl_config_t *config)
{
    return init(comm, size, &id, rank, current_device(), config);
}

#if FAKE_NCCL_SYMBOLS >= 22300
nccl_result_t ncclCommInitRankScalable(struct nccl_comm **comm, int size,
    int rank, int nids, nccl_unique_id_t *ids, nccl_config_t *config)
{
    if (nids < 1 || nids > size)
        return fake_error(
            NULL, COLL_NCCL_INVALID_ARGUMENT, "%d ids are given", nids);
    return init(comm, size, &ids[0], rank, current_device(), config);
}
#endif

nccl_result_t ncclCommInitAll(
    struct nccl_comm **comms, int count, const int *devices)
{
    nccl_unique_id_t id;
    nccl_result_t rc = ncclGetUniqueId(&id), ended;

    ncclGroupStart();
    for (int i = 0; i < count && rc == COLL_NCCL_SUCCESS; i++)
        rc = init(
            &comms[i], count, &id, i, devices != NULL ? devices[i] : i, NULL);
    ended = ncclGroupEnd();
    return rc != COLL_NCCL_SUCCESS ? rc : ended;
}

/* --- The end ----------------------------------------------------------- */

static void wait_for_launches(struct nccl_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->done < comm->launched && !fake_must_stop(comm, FAKE_STREAM))
        pthread_cond_wait(&comm->changed, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
}

static nccl_result_t run_finalize(const struct fake_job *job)
{
    wait_for_launches(job->comm);
    return fake_show(job->comm, FAKE_MEETING, NULL, NULL, 0)
               ? COLL_NCCL_SUCCESS
               : COLL_NCCL_INTERNAL_ERROR;
}

nccl_result_t ncclCommFinalize(struct nccl_comm *comm)
{
    nccl_result_t rc = fake_comm_check_ready(comm);
    struct fake_job *job;

    if (rc != COLL_NCCL_SUCCESS)
        return rc;
    if (atomic_load(&comm->is_revoked) ||
        atomic_exchange(&comm->is_finalized, true))
        return fake_error(comm, COLL_NCCL_INVALID_ARGUMENT,
            "the communicator was finalized or revoked before");
    job = calloc(1, sizeof(*job));
    if (job == NULL)
        return COLL_NCCL_SYSTEM_ERROR;
    job->run = run_finalize;
    job->comm = comm;
    return fake_job_add(job);
}

/* Returns never: who tests that has a deadline. */
static void hang_for_ever(void)
{
    for (;;)
        pause();
}

static void stop(struct nccl_comm *comm, _Atomic bool *flag)
{
    atomic_store(flag, true);
    fake_comm_wake(comm);
    if (comm->parent != NULL)
        fake_comm_wake(comm->parent);
}

nccl_result_t ncclCommDestroy(struct nccl_comm *comm)
{
    nccl_result_t rc = fake_comm_check(comm);

    if (rc != COLL_NCCL_SUCCESS)
        return rc;
    if (fake_fault("destroy_hang", comm->rank, 0, NULL))
        hang_for_ever();
    fake_job_wait(comm);
    if (atomic_load(&comm->state) == COLL_NCCL_SUCCESS &&
        !atomic_load(&comm->is_revoked) &&
        !atomic_exchange(&comm->is_finalized, true)) {
        wait_for_launches(comm);
        fake_show(comm, FAKE_MEETING, NULL, NULL, 0);
    }
    stop(comm, &comm->is_aborted);
    fake_comm_release(comm);
    return COLL_NCCL_SUCCESS;
}

nccl_result_t ncclCommAbort(struct nccl_comm *comm)
{
    nccl_result_t rc = fake_comm_check(comm);

    if (rc != COLL_NCCL_SUCCESS)
        return rc;
    if (fake_fault("abort_hang", comm->rank, 0, NULL))
        hang_for_ever();
    stop(comm, &comm->is_aborted);
    fake_job_wait(comm);
    fake_comm_release(comm);
    return COLL_NCCL_SUCCESS;
}

#if FAKE_NCCL_SYMBOLS >= 22807
nccl_result_t ncclCommRevoke(struct nccl_comm *comm, int flags)
{
    nccl_result_t rc = fake_comm_check(comm);

    if (rc != COLL_NCCL_SUCCESS)
        return rc;
    if (flags != 0)
        return fake_error(
            comm, COLL_NCCL_INVALID_ARGUMENT, "flags %d are not known", flags);
    stop(comm, &comm->is_revoked);
    fake_job_wait(comm);
    atomic_store(&comm->state, COLL_NCCL_SUCCESS);
    return COLL_NCCL_SUCCESS;
}
#endif

/* --- What a communicator tells ----------------------------------------- */

nccl_result_t ncclCommGetAsyncError(
    struct nccl_comm *comm, nccl_result_t *error)
{
    nccl_result_t rc = fake_comm_check(comm);
    int busy;

    if (rc != COLL_NCCL_SUCCESS)
        return rc;
    *error = atomic_load(&comm->state);
    busy = atomic_load(&comm->busy);
    if (*error == COLL_NCCL_SUCCESS && busy > 0) {
        atomic_compare_exchange_strong(&comm->busy, &busy, busy - 1);
        *error = COLL_NCCL_IN_PROGRESS;
    }
    return COLL_NCCL_SUCCESS;
}

nccl_result_t ncclCommCount(struct nccl_comm *const comm, int *count)
{
    nccl_result_t rc = fake_comm_check_ready(comm);

    if (rc == COLL_NCCL_SUCCESS)
        *count = comm->size;
    return rc;
}

nccl_result_t ncclCommCuDevice(struct nccl_comm *const comm, int *device)
{
    nccl_result_t rc = fake_comm_check_ready(comm);

    if (rc == COLL_NCCL_SUCCESS)
        *device = comm->device;
    return rc;
}

nccl_result_t ncclCommUserRank(struct nccl_comm *const comm, int *rank)
{
    nccl_result_t rc = fake_comm_check_ready(comm);

    if (rc == COLL_NCCL_SUCCESS)
        *rank = comm->rank;
    return rc;
}

void fake_nccl_config(struct nccl_comm *comm, nccl_config_t *out)
{
    *out = comm->config;
}
