/*
 * Operations of several GPUs in one process: communicators of a world that is n
 * times as large, one per device, launched together.
 */
#include "gpu_internal.h"

#include <stdlib.h>

#include "coll_factor.h"
#include "kernel.h"

/* The communicators of a group for one number of devices. */
struct gpu_many {
    struct gpu_many *next;
    unsigned int n;
    struct gpu *gpus[];
};

static struct gpu_many *find(struct coll_group *g, int n)
{
    struct gpu_many *m;

    pthread_mutex_lock(&g->lock);
    m = g->gpu_many;
    while (m != NULL && m->n != (unsigned int)n)
        m = m->next;
    pthread_mutex_unlock(&g->lock);
    return m;
}

bool gpu_many_advance(struct coll_group *g)
{
    struct gpu_many *m;
    bool is_left = false;

    pthread_mutex_lock(&g->lock);
    m = g->gpu_many; /* what is there stays there */
    pthread_mutex_unlock(&g->lock);
    for (; m != NULL; m = m->next)
        for (unsigned int i = 0; i < m->n; i++)
            is_left |= gpu_reap(m->gpus[i]);
    return is_left;
}

void gpu_many_free(struct coll_group *g)
{
    while (g->gpu_many != NULL) {
        struct gpu_many *m = g->gpu_many;

        g->gpu_many = m->next;
        gpu_end(m->gpus, (int)m->n);
        free(m);
    }
}

static coll_status_t make(
    struct coll_group *g, struct coll_call *call, struct gpu_many **out)
{
    size_t n = (size_t)call->ndevices;
    struct gpu_many *m = calloc(1, sizeof(*m) + n * sizeof(*m->gpus));
    coll_status_t status;

    if (m == NULL)
        return coll_fail(COLL_ERR_MEMORY, "coll_gpu_connect: out of memory");
    m->n = (unsigned int)call->ndevices;
    status = gpu_meet(g, call, NULL, call->devices, call->ndevices, m->gpus);
    if (status != COLL_OK) {
        free(m);
        return status;
    }
    pthread_mutex_lock(&g->lock);
    m->next = g->gpu_many;
    g->gpu_many = m;
    pthread_mutex_unlock(&g->lock);
    *out = m;
    return COLL_OK;
}

/* The communicators of a number of devices are those of its first call. */
static coll_status_t check_devices(
    const struct gpu_many *m, const char *function, const int *devices)
{
    for (unsigned int i = 0; m != NULL && i < m->n; i++)
        if (m->gpus[i]->device != devices[i])
            return coll_fail(COLL_ERR_ARGUMENT,
                "%s: buffer %u is on GPU %d, in the first such call it was on "
                "GPU %d",
                function, i, devices[i], m->gpus[i]->device);
    return COLL_OK;
}

coll_status_t gpu_many_run(struct coll_group *g, struct coll_call *call)
{
    struct cu_stream *streams[GPU_MANY_MAX] = {NULL};
    struct coll_call *calls;
    struct gpu_many *m = find(g, call->ndevices);
    coll_status_t status = m == NULL ? make(g, call, &m) : COLL_OK;

    if (status == COLL_OK)
        status = check_devices(m, coll_kind_name(call->kind), call->devices);
    if (status != COLL_OK)
        return status;
    calls = calloc(m->n, sizeof(*calls));
    if (calls == NULL)
        return coll_fail(
            COLL_ERR_MEMORY, "%s: out of memory", coll_kind_name(call->kind));
    for (unsigned int i = 0; i < m->n; i++) {
        calls[i] = *call;
        calls[i].nmany = 0;
        calls[i].sendbuf = call->many_send == NULL ? NULL : call->many_send[i];
        calls[i].recvbuf = call->many_recv[i];
    }
    status = gpu_launch(m->gpus, streams, calls, (int)m->n);
    free(calls);
    return status;
}

/* --- Public ----------------------------------------------------------------
 */

/* What can be said without a look at the buffers. */
static coll_status_t check(const struct coll_group *g, const char *function,
    struct coll_call *call, int n)
{
    size_t size = coll_dtype_size(call->dtype);
    size_t parts = (size_t)g->size * (size_t)n;

    if (call->kind != COLL_KIND_ALL_GATHER &&
        call->kind != COLL_KIND_REDUCE_SCATTER)
        parts = 1;
    if (size == 0)
        return coll_fail(COLL_ERR_ARGUMENT, "%s: unknown data type %d",
            function, (int)call->dtype);
    if (call->count > (size_t)PTRDIFF_MAX / size / parts)
        return coll_fail(COLL_ERR_ARGUMENT,
            "%s: %zu elements of %s are more than the address space", function,
            call->count, coll_dtype_name(call->dtype));
    if (call->many_recv == NULL ||
        (call->kind != COLL_KIND_BROADCAST && call->many_send == NULL))
        return coll_fail(
            COLL_ERR_ARGUMENT, "%s: an array of buffers is NULL", function);
    if (call->root < 0 || call->root >= g->size * n)
        return coll_fail(COLL_ERR_ARGUMENT,
            "%s: root %d is not a rank of a world of %d", function, call->root,
            g->size * n);
    if (coll_factor_get(call->op, &call->factor)) {
        call->has_factor = true;
        call->op = COLL_SUM;
    }
    if (call->has_factor && call->dtype == COLL_BOOL)
        return coll_fail(COLL_ERR_ARGUMENT,
            "%s: a bool cannot be multiplied with a factor", function);
    if (!kernel_supports(call->dtype, call->op))
        return coll_fail(COLL_ERR_ARGUMENT, "%s: there is no %s of %s",
            function, coll_op_name(call->op), coll_dtype_name(call->dtype));
    return gpu_ops_check(NULL, function, call);
}

/* The devices of the buffers: each has one of its own. */
static coll_status_t find_devices(
    const char *function, const struct coll_call *call, int n, int *devices)
{
    for (int i = 0; i < n; i++) {
        const void *to = call->many_recv[i];
        const void *from = call->many_send == NULL ? to : call->many_send[i];

        devices[i] = gpu_device_of(from);
        if (devices[i] == GPU_HOST ||
            (to != NULL && gpu_device_of(to) != devices[i]) ||
            (to == NULL && call->kind != COLL_KIND_REDUCE))
            return coll_fail(COLL_ERR_ARGUMENT,
                "%s: buffers %d are not on one GPU", function, i);
        for (int k = 0; k < i; k++)
            if (devices[k] == devices[i])
                return coll_fail(COLL_ERR_ARGUMENT,
                    "%s: buffers %d and %d are on GPU %d both", function, k, i,
                    devices[i]);
    }
    return COLL_OK;
}

/* What only says what it is; the rest is checked here. */
static coll_status_t run(
    const char *function, struct coll_call *call, int n, coll_group_t *group)
{
    int devices[GPU_MANY_MAX];
    coll_status_t status = COLL_OK;
    struct coll_group *g = coll_group_get(group, function, &status);

    if (g == NULL)
        return status;
    if (n < 1 || n > GPU_MANY_MAX)
        return coll_fail(COLL_ERR_ARGUMENT, "%s: n is %d, it is 1 to %d",
            function, n, GPU_MANY_MAX);
    status = check(g, function, call, n);
    if (status != COLL_OK)
        return status;
    if (call->count == 0) { /* no buffer says where */
        call->root /= n;
        call->many_send = NULL;
        call->many_recv = NULL;
        return coll_group_run(g, call);
    }
    status = find_devices(function, call, n, devices);
    if (status == COLL_OK)
        status = check_devices(find(g, n), function, devices);
    if (status != COLL_OK)
        return status;
    call->on_gpu = true;
    call->ndevices = n;
    call->devices = devices;
    call->device = devices[0];
    return coll_group_run(g, call);
}

coll_status_t coll_all_reduce_multigpu(const void *const *sendbufs,
    void *const *recvbufs, int n, size_t count, coll_dtype_t dtype,
    coll_op_t op, coll_group_t *group)
{
    struct coll_call call = {.kind = COLL_KIND_ALL_REDUCE,
        .dtype = dtype,
        .op = op,
        .count = count,
        .many_send = sendbufs,
        .many_recv = recvbufs};

    return run("coll_all_reduce_multigpu", &call, n, group);
}

coll_status_t coll_reduce_multigpu(const void *const *sendbufs,
    void *const *recvbufs, int n, size_t count, coll_dtype_t dtype,
    coll_op_t op, int root, coll_group_t *group)
{
    struct coll_call call = {.kind = COLL_KIND_REDUCE,
        .dtype = dtype,
        .op = op,
        .root = root,
        .count = count,
        .many_send = sendbufs,
        .many_recv = recvbufs};

    return run("coll_reduce_multigpu", &call, n, group);
}

coll_status_t coll_broadcast_multigpu(void *const *bufs, int n, size_t count,
    coll_dtype_t dtype, int root, coll_group_t *group)
{
    struct coll_call call = {.kind = COLL_KIND_BROADCAST,
        .dtype = dtype,
        .root = root,
        .count = count,
        .many_recv = bufs};

    return run("coll_broadcast_multigpu", &call, n, group);
}

coll_status_t coll_all_gather_multigpu(const void *const *sendbufs,
    void *const *recvbufs, int n, size_t count, coll_dtype_t dtype,
    coll_group_t *group)
{
    struct coll_call call = {.kind = COLL_KIND_ALL_GATHER,
        .dtype = dtype,
        .count = count,
        .many_send = sendbufs,
        .many_recv = recvbufs};

    return run("coll_all_gather_multigpu", &call, n, group);
}

coll_status_t coll_reduce_scatter_multigpu(const void *const *sendbufs,
    void *const *recvbufs, int n, size_t count, coll_dtype_t dtype,
    coll_op_t op, coll_group_t *group)
{
    struct coll_call call = {.kind = COLL_KIND_REDUCE_SCATTER,
        .dtype = dtype,
        .op = op,
        .count = count,
        .many_send = sendbufs,
        .many_recv = recvbufs};

    return run("coll_reduce_scatter_multigpu", &call, n, group);
}
