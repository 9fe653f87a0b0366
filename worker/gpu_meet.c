/*
 * How the ranks of a group come to a communicator: over the group itself, which
 * works on host memory, they tell each other on which device they are, with
 * which NCCL, or what is missing. Only when all is well is NCCL asked, so that
 * nobody is left in it to wait for one who cannot come.
 */
#include "gpu_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "coll_agent.h"
#include "coll_ranks.h"
#include "coll_signature.h"
#include "net_interfaces.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/text.h"

#define FUNCTION "coll_gpu_connect"

/* While NCCL makes a communicator, so often is asked whether it still can. */
#define WAIT_MS 5

/* Ranks for each unique id: whom an id names serves so many others, one after
 * the other. PyTorch has the same number. */
#define RANKS_PER_ID 128
#define ENV_RANKS_PER_ID "COLL_NCCL_RANKS_PER_ID"

/* A name in NCCL_SOCKET_IFNAME that no interface has is the likeliest mistake,
 * and what NCCL says does not tell: false, and out says what there is. */
static bool is_interface_right(char *out, size_t size)
{
    const char *names = getenv("NCCL_SOCKET_IFNAME");
    char there[100];

    if (names == NULL ||
        net_interfaces_check(
            names, getenv("NCCL_SOCKET_FAMILY"), there, sizeof(there)) != 0)
        return true;
    snprintf(out, size,
        "NCCL_SOCKET_IFNAME=%.40s matches no interface; there are: %s", names,
        there);
    return false;
}

/* What a rank says of itself. Bytes that are not used are 0. */
struct hello {
    int32_t version; /* of NCCL; 0: reason says why there is none */
    int32_t devices; /* of this rank */
    int32_t share; /* ranks that may have a device */
    int32_t options[4];
    int32_t status; /* why there is none */
    uint64_t name; /* rank 0's is that of the communicator */
    char net_name[GPU_NET_NAME_SIZE];
    char host[64];
    char boot[40]; /* of its kernel: a host that has the same is the same */
    char reason[224];
};

/* Of one device. */
struct device_hello {
    cu_uuid_t uuid;
    char bus[20];
};

/* What a rank that names one has made of it; others have made nothing. */
struct id_hello {
    nccl_unique_id_t id;
    char reason[224];
};

/* All that this meeting is about. */
struct meeting {
    struct coll_group *g;
    struct coll_call *call;
    const coll_gpu_options_t *options;
    const struct cuda_api *cu;
    const struct nccl_api *nccl;
    const int *devices; /* [n] */
    int n;
    struct hello *hellos; /* [g->size] */
    struct device_hello *all; /* [g->size * n] */
    int nids;
    nccl_unique_id_t *ids; /* [nids] */
};

/* A step of the call: all ranks get what each has. */
static coll_status_t exchange(
    const struct meeting *m, const void *own, void *all, size_t bytes)
{
    struct coll_call step = *m->call;

    step.kind = COLL_KIND_ALL_GATHER;
    step.dtype = COLL_UINT8;
    step.op = COLL_SUM;
    step.root = 0;
    step.count = bytes;
    step.sendbuf = own;
    step.recvbuf = all;
    step.send_counts = step.recv_counts = NULL;
    step.send_at = step.recv_at = NULL;
    step.nmany = 0;
    step.has_factor = false;
    step.on_gpu = false;
    step.whole = m->call;
    return m->g->backend->run(m->g, &step);
}

/* --- Who is there ----------------------------------------------------------
 */

static void read_boot(char *out, size_t size)
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, out, size - 1);

    out[n > 0 ? n : 0] = '\0';
    out[strcspn(out, "\n")] = '\0';
    if (fd >= 0)
        close(fd);
}

static coll_status_t describe_devices(
    struct meeting *m, struct device_hello *own)
{
    coll_status_t status = COLL_OK;

    for (int i = 0; status == COLL_OK && i < m->n; i++) {
        cu_device_t handle;
        cu_result_t rc = COLL_CUDA_INVALID_DEVICE;

        if (m->devices[i] == GPU_HOST)
            return coll_fail(
                COLL_ERR_ENVIRONMENT, FUNCTION ": this rank has no device");
        rc = m->cu->device_get(&handle, m->devices[i]);
        if (rc == COLL_CUDA_SUCCESS)
            rc = m->cu->device_get_bus_id(
                own[i].bus, sizeof(own[i].bus), handle);
        if (rc == COLL_CUDA_SUCCESS && m->cu->device_get_uuid != NULL)
            rc = m->cu->device_get_uuid(&own[i].uuid, handle);
        if (rc != COLL_CUDA_SUCCESS)
            status = gpu_fail_cuda(m->cu, FUNCTION, "cuDeviceGet", rc);
    }
    return status;
}

static coll_status_t find(struct meeting *m, struct device_hello *own)
{
    coll_status_t status = gpu_driver(&m->cu, FUNCTION);

    if (status == COLL_OK)
        status = nccl_api_get(&m->nccl);
    if (status == COLL_OK)
        status = describe_devices(m, own);
    if (status != COLL_OK)
        return COLL_ERR_ENVIRONMENT;
    return gpu_ops_check(m->nccl, coll_kind_name(m->call->kind), m->call);
}

static void describe(
    struct meeting *m, struct hello *own, struct device_hello *devices)
{
    coll_status_t status;

    memset(own, 0, sizeof(*own));
    memset(devices, 0, (size_t)m->n * sizeof(*devices));
    own->devices = m->n;
    own->share = gpu_share();
    own->options[0] = m->options->min_ctas;
    own->options[1] = m->options->max_ctas;
    own->options[2] = m->options->cga_cluster_size;
    own->options[3] = m->options->non_blocking;
    if (m->options->net_name != NULL)
        strncpy(own->net_name, m->options->net_name, sizeof(own->net_name) - 1);
    gethostname(own->host, sizeof(own->host) - 1);
    read_boot(own->boot, sizeof(own->boot));
    if (getrandom(&own->name, sizeof(own->name), GRND_NONBLOCK) !=
        sizeof(own->name))
        own->name = clock_now_ns();
    status = find(m, devices);
    if (status == COLL_OK)
        own->version = m->nccl->version;
    else
        strncpy(own->reason, coll_last_error(), sizeof(own->reason) - 1);
    own->status = status;
}

/* --- Is all well? ----------------------------------------------------------
 */

/* The same sentence on all ranks, of what all have heard; the group goes on. */
__attribute__((format(printf, 3, 4))) static coll_status_t refuse(
    struct meeting *m, coll_status_t status, const char *fmt, ...)
{
    char text[400];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    m->call->is_refused = true;
    return coll_fail(status, FUNCTION ": %s", text);
}

/* Of those that cannot, the ranks with the first one's reason. */
static coll_status_t check_reasons(struct meeting *m)
{
    char ranks[96];
    const char *reason = NULL;
    coll_status_t status = COLL_OK;
    bool *in = calloc((size_t)m->g->size, sizeof(*in));

    if (in == NULL)
        return coll_fail(COLL_ERR_MEMORY, FUNCTION ": out of memory");
    for (int r = 0; r < m->g->size; r++) {
        const struct hello *h = &m->hellos[r];

        if (h->version != 0)
            continue;
        if (reason == NULL) {
            reason = h->reason;
            status = (coll_status_t)h->status;
        }
        in[r] = strcmp(reason, h->reason) == 0;
    }
    if (reason != NULL)
        coll_ranks_text(ranks, sizeof(ranks), in, m->g->size, m->g->names);
    free(in);
    return reason == NULL ? COLL_OK
                          : refuse(m, status, "on %s: %s", ranks, reason);
}

static coll_status_t check_alike(struct meeting *m)
{
    char text[2][COLL_NCCL_VERSION_TEXT];
    const struct hello *first = &m->hellos[0];

    for (int r = 1; r < m->g->size; r++) {
        const struct hello *h = &m->hellos[r];
        int names[2] = {
            coll_rank_name(m->g->names, 0), coll_rank_name(m->g->names, r)};

        if (h->version != first->version)
            return refuse(m, COLL_ERR_ENVIRONMENT,
                "rank %d (host %s) has NCCL %s, rank %d (host %s) has %s; all "
                "ranks need the same",
                names[0], first->host,
                nccl_version_text(first->version, text[0]), names[1], h->host,
                nccl_version_text(h->version, text[1]));
        if (h->devices != first->devices)
            return refuse(m, COLL_ERR_ENVIRONMENT,
                "rank %d has %d devices in it, rank %d has %d", names[0],
                first->devices, names[1], h->devices);
        if (memcmp(h->options, first->options, sizeof(h->options)) != 0 ||
            strcmp(h->net_name, first->net_name) != 0)
            return refuse(m, COLL_ERR_ENVIRONMENT,
                "ranks %d and %d pass different options", names[0], names[1]);
    }
    return COLL_OK;
}

static bool is_same_device(const struct meeting *m, size_t a, size_t b)
{
    const struct hello *x = &m->hellos[a / (size_t)m->n];
    const struct hello *y = &m->hellos[b / (size_t)m->n];

    return strcmp(x->boot, y->boot) == 0 &&
           strcmp(m->all[a].bus, m->all[b].bus) == 0 &&
           memcmp(&m->all[a].uuid, &m->all[b].uuid, sizeof(cu_uuid_t)) == 0;
}

/* Those that are one device come side by side. */
static int by_device(const void *a, const void *b, void *arg)
{
    const struct meeting *m = arg;
    size_t x = *(const size_t *)a;
    size_t y = *(const size_t *)b;
    int c = strcmp(
        m->hellos[x / (size_t)m->n].boot, m->hellos[y / (size_t)m->n].boot);

    if (c == 0)
        c = strcmp(m->all[x].bus, m->all[y].bus);
    if (c == 0)
        c = memcmp(&m->all[x].uuid, &m->all[y].uuid, sizeof(cu_uuid_t));
    if (c == 0)
        c = x < y ? -1 : x > y;
    return c;
}

static coll_status_t check_sorted(struct meeting *m, const size_t *order)
{
    size_t total = (size_t)m->g->size * (size_t)m->n;
    size_t run = 1;

    for (size_t i = 1; i < total; i++) {
        size_t a = order[i - 1];
        size_t b = order[i];
        const struct hello *h = &m->hellos[b / (size_t)m->n];

        run = is_same_device(m, a, b) ? run + 1 : 1;
        if (run > 1 && run > (size_t)h->share)
            return refuse(m, COLL_ERR_ENVIRONMENT,
                "ranks %d and %d on host %s share the GPU with bus id %s; give "
                "each rank a device of its own (coll_gpu_device() tells "
                "which)%s",
                coll_rank_name(m->g->names, (int)(a / (size_t)m->n)),
                coll_rank_name(m->g->names, (int)(b / (size_t)m->n)), h->host,
                m->all[b].bus,
                h->share > 1 ? "" : ", or use crun --share_gpu N");
    }
    return COLL_OK;
}

static coll_status_t check_sharing(struct meeting *m)
{
    size_t total = (size_t)m->g->size * (size_t)m->n;
    size_t *order = malloc(total * sizeof(*order));
    coll_status_t status;

    if (order == NULL)
        return coll_fail(COLL_ERR_MEMORY, FUNCTION ": out of memory");
    for (size_t i = 0; i < total; i++)
        order[i] = i;
    qsort_r(order, total, sizeof(*order), by_device, m);
    status = check_sorted(m, order);
    free(order);
    return status;
}

/* --- Unique ids ------------------------------------------------------------
 */

static int ranks_per_id(void)
{
    const char *text = getenv(ENV_RANKS_PER_ID);
    int64_t value;

    return text != NULL && text_to_i64(text, &value) == 0 && value > 0 &&
                   value < INT32_MAX
               ? (int)value
               : RANKS_PER_ID;
}

/* The rank that makes id i: they are spread over all. */
static int maker_of(const struct meeting *m, int i)
{
    return (int)((int64_t)i * m->g->size / m->nids);
}

static void make_id(struct meeting *m, struct id_hello *own)
{
    nccl_result_t result = m->nccl->get_unique_id(&own->id);

    if (result == COLL_NCCL_SUCCESS)
        return;
    gpu_fail_nccl(&(struct gpu){.nccl = m->nccl, .device = m->devices[0]},
        m->call, result, NULL);
    if (is_interface_right(own->reason, sizeof(own->reason)))
        snprintf(own->reason, sizeof(own->reason), "%.190s", coll_last_error());
}

static coll_status_t meet_ids(struct meeting *m)
{
    struct id_hello own;
    struct id_hello *all = calloc((size_t)m->g->size, sizeof(*all));
    int total = m->g->size * m->n;
    int per_id = ranks_per_id();
    coll_status_t status;

    m->nids = 1;
    if (total > per_id && m->nccl->comm_init_scalable != NULL)
        m->nids = (total + per_id - 1) / per_id;
    if (m->nids > m->g->size)
        m->nids = m->g->size;
    m->ids = calloc((size_t)m->nids, sizeof(*m->ids));
    if (all == NULL || m->ids == NULL) {
        free(all);
        return coll_fail(COLL_ERR_MEMORY, FUNCTION ": out of memory");
    }
    memset(&own, 0, sizeof(own));
    for (int i = 0; i < m->nids; i++)
        if (maker_of(m, i) == m->g->rank)
            make_id(m, &own);
    status = exchange(m, &own, all, sizeof(own));
    for (int i = 0; status == COLL_OK && i < m->nids; i++) {
        int maker = maker_of(m, i);

        m->ids[i] = all[maker].id;
        if (all[maker].reason[0] != '\0')
            status = refuse(m, COLL_ERR_ENVIRONMENT, "on rank %d: %.200s",
                coll_rank_name(m->g->names, maker), all[maker].reason);
    }
    free(all);
    return status;
}

/* --- The communicator ------------------------------------------------------
 */

/* NCCL keeps the pointer to the name, and reads it for children, too. */
static void configure(struct gpu *gpu, const coll_gpu_options_t *options)
{
    gpu->config.blocking = !options->non_blocking;
    if (options->min_ctas > 0)
        gpu->config.minCTAs = options->min_ctas;
    if (options->max_ctas > 0)
        gpu->config.maxCTAs = options->max_ctas;
    if (options->cga_cluster_size > 0)
        gpu->config.cgaClusterSize = options->cga_cluster_size;
    if (options->net_name != NULL) {
        strncpy(gpu->net_name, options->net_name, sizeof(gpu->net_name) - 1);
        gpu->config.netName = gpu->net_name;
    }
}

/* A configuration that is given is taken instead of the parent's. */
void gpu_configure_child(struct gpu *gpu, const struct gpu *parent)
{
    gpu->config = parent->config;
    memcpy(gpu->net_name, parent->net_name, sizeof(gpu->net_name));
    if (parent->config.netName != NULL)
        gpu->config.netName = gpu->net_name;
}

/* The job is done, or its communicator is being made (it does not block). */
static coll_status_t fail_making(struct gpu *gpu, const struct gpu_job *job,
    const struct coll_call *call, nccl_result_t result)
{
    char hint[240];
    coll_status_t status = gpu_fail_nccl(gpu, call, result, job->error);

    if (is_interface_right(hint, sizeof(hint)))
        return status;
    return coll_fail(status, "%.200s; %s", coll_last_error(), hint);
}

/* Is there a reason to wait no longer? */
static coll_status_t fail_waiting(const struct gpu *gpu, struct coll_group *g,
    const struct coll_call *call, bool has_turn)
{
    char name[64];
    coll_status_t status = coll_group_check(g);

    if (status != COLL_OK)
        return status;
    coll_call_text(name, sizeof(name), call);
    if (coll_agent_is_told())
        return coll_agent_fail(name);
    if (clock_now_ns() > call->deadline_ns)
        return coll_fail(COLL_ERR_TIMEOUT,
            "timed out after %.1f s in %s: NCCL was making a communicator of "
            "%d ranks; NCCL_DEBUG=INFO says how far it came",
            (double)call->timeout_ms / 1000.0, name, gpu->size);
    if (!has_turn)
        return coll_group_look(g, call);
    return g->backend->look == NULL ? COLL_OK : g->backend->look(g, call);
}

/* The job is done, and the communicator of gpu is ready: the one that the job
 * makes (is_made), or its parent. */
static coll_status_t await_ready(struct gpu *gpu, struct gpu_job *job,
    struct coll_group *g, const struct coll_call *call, bool has_turn,
    bool is_made)
{
    const struct timespec pause = {.tv_nsec = 1000 * 1000};
    coll_status_t status = COLL_OK;
    nccl_result_t state = COLL_NCCL_IN_PROGRESS;

    while (status == COLL_OK && !gpu_job_wait(job, clock_deadline_ns(WAIT_MS)))
        status = fail_waiting(gpu, g, call, has_turn);
    /* Of a call that has not returned there is nothing to take, nor to abort.
     */
    if (status != COLL_OK)
        return status;
    if (is_made)
        gpu->comm = job->comm;
    state = job->result;
    while (status == COLL_OK &&
           (state == COLL_NCCL_SUCCESS || state == COLL_NCCL_IN_PROGRESS)) {
        state = gpu_async_error(gpu);
        if (state == COLL_NCCL_SUCCESS)
            return COLL_OK;
        if (state == COLL_NCCL_IN_PROGRESS) {
            nanosleep(&pause, NULL);
            status = fail_waiting(gpu, g, call, has_turn);
        }
    }
    return status != COLL_OK ? status : fail_making(gpu, job, call, state);
}

coll_status_t gpu_take_made(struct gpu *gpu, struct gpu_job *job,
    struct coll_group *g, const struct coll_call *call, bool has_turn)
{
    return await_ready(gpu, job, g, call, has_turn, true);
}

coll_status_t gpu_await_parent(struct gpu *parent, struct gpu_job *job,
    struct coll_group *g, const struct coll_call *call)
{
    return await_ready(parent, job, g, call, false, false);
}

static coll_status_t start_one(
    struct meeting *m, int i, struct gpu *gpu, struct gpu_job **out)
{
    struct gpu_job *job;

    gpu->rank = m->g->rank * m->n + i;
    gpu->size = m->g->size * m->n;
    gpu->name = m->hellos[0].name;
    configure(gpu, m->options);
    job = gpu_job_create(gpu);
    *out = job;
    if (job == NULL)
        return coll_fail(COLL_ERR_MEMORY, FUNCTION ": out of memory");
    job->ids = malloc((size_t)m->nids * sizeof(*job->ids));
    if (job->ids == NULL)
        return coll_fail(COLL_ERR_MEMORY, FUNCTION ": out of memory");
    memcpy(job->ids, m->ids, (size_t)m->nids * sizeof(*job->ids));
    job->nids = m->nids;
    job->rank = gpu->rank;
    job->size = gpu->size;
    job->run = gpu_job_init;
    gpu_job_start(job);
    return COLL_OK;
}

/* Each device's in a thread of its own: one waits for the other. */
static coll_status_t make(struct meeting *m, struct gpu **out)
{
    coll_status_t status = COLL_OK;
    struct gpu_job *jobs[GPU_MANY_MAX] = {NULL};

    for (int i = 0; status == COLL_OK && i < m->n; i++) {
        status =
            gpu_create(&out[i], m->g, m->cu, m->nccl, m->devices[i], FUNCTION);
        if (status == COLL_OK)
            status = start_one(m, i, out[i], &jobs[i]);
    }
    for (int i = 0; status == COLL_OK && i < m->n; i++)
        status = gpu_take_made(out[i], jobs[i], m->g, m->call, true);
    for (int i = 0; status == COLL_OK && i < m->n; i++)
        status = gpu_watch_start(out[i]);
    for (int i = 0; i < m->n; i++) {
        if (status != COLL_OK && out[i] != NULL) {
            gpu_abort(out[i]);
            gpu_discard(out[i], jobs[i], GPU_DISCARD_MS);
            out[i] = NULL;
        }
        gpu_job_release(jobs[i]);
    }
    return status;
}

coll_status_t gpu_meet(struct coll_group *g, struct coll_call *call,
    const coll_gpu_options_t *options, const int *devices, int n,
    struct gpu **out)
{
    static const coll_gpu_options_t defaults = {0, 0, 0, NULL, false};
    struct meeting m = {
        .g = g,
        .call = call,
        .options = options == NULL ? &defaults : options,
        .devices = devices,
        .n = n,
    };
    size_t size = (size_t)g->size;
    struct device_hello own_devices[GPU_MANY_MAX];
    struct hello own;
    coll_status_t status = COLL_OK;

    m.hellos = calloc(size, sizeof(*m.hellos));
    m.all = calloc(size * (size_t)n, sizeof(*m.all));
    if (m.hellos == NULL || m.all == NULL)
        status = coll_fail(COLL_ERR_MEMORY, FUNCTION ": out of memory");
    if (status == COLL_OK) {
        describe(&m, &own, own_devices);
        status = exchange(&m, &own, m.hellos, sizeof(own));
    }
    if (status == COLL_OK)
        status = check_reasons(&m);
    if (status == COLL_OK)
        status = check_alike(&m);
    if (status == COLL_OK)
        status = exchange(&m, own_devices, m.all, (size_t)n * sizeof(*m.all));
    if (status == COLL_OK)
        status = check_sharing(&m);
    if (status == COLL_OK)
        status = meet_ids(&m);
    if (status == COLL_OK)
        status = make(&m, out);
    free(m.hellos);
    free(m.all);
    free(m.ids);
    return status;
}
