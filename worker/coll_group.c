/*
 * Groups and the public operations: checks arguments, serialises the calls
 * on a group, numbers them, and makes a failure sticky. The back end moves
 * the data.
 */
#include "backend.h"

#include <stdio.h>
#include <stdlib.h>

#include "coll_agent.h"
#include "rendezvous/base/clock.h"

/* Thirty years in milliseconds: longer time-outs mean this one, so that no
 * deadline overflows. */
#define TIMEOUT_MAX_MS ((int64_t)1000 * 1000 * 1000 * 1000)

coll_status_t coll_group_create(struct coll_group **out,
    const struct coll_backend *backend, int rank, int size, int64_t timeout_ms,
    const struct coll_boot *boot)
{
    struct coll_group *g;
    coll_status_t status =
        coll_backend_check_size(backend, size, COLL_ERR_UNSUPPORTED);

    if (status != COLL_OK)
        return status;
    g = calloc(1, sizeof(*g));
    if (g == NULL)
        return coll_fail(COLL_ERR_MEMORY, "out of memory for a group");
    g->backend = backend;
    g->rank = rank;
    g->size = size;
    g->timeout_ms = timeout_ms < TIMEOUT_MAX_MS ? timeout_ms : TIMEOUT_MAX_MS;
    g->failure = COLL_OK;
    g->names = boot == NULL ? NULL : boot->names;
    pthread_mutex_init(&g->lock, NULL);
    status = backend->create(g, boot);
    if (status != COLL_OK) {
        pthread_mutex_destroy(&g->lock);
        free(g);
        return status;
    }
    *out = g;
    return COLL_OK;
}

void coll_group_free(struct coll_group *g)
{
    if (g == NULL)
        return;
    g->backend->destroy(g);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

/* Runs a call between two marks in the recorder. */
static coll_status_t run_recorded(struct coll_group *g, struct coll_call *call)
{
    struct recorder *recorder = coll_agent_recorder();
    uint64_t now_ns = clock_now_ns();
    const struct recorder_call entry = {
        .group = g->id,
        .seq = call->seq,
        .count = call->count,
        .now_ns = now_ns,
        .root = call->root,
        .kind = (uint8_t)(1 + call->kind),
        .dtype =
            call->kind == COLL_KIND_BARRIER ? 0 : (uint8_t)(1 + call->dtype),
        .op = call->kind == COLL_KIND_ALL_REDUCE ? (uint8_t)(1 + call->op) : 0,
    };
    uint64_t ticket = recorder_enter(recorder, &entry);
    coll_status_t status;

    call->deadline_ns =
        now_ns + (uint64_t)g->timeout_ms * CLOCK_NS_PER_MS; /* no overflow */
    status = g->backend->run(g, call);
    recorder_finish(recorder, ticket, status, clock_now_ns());
    return status;
}

static coll_status_t group_run(struct coll_group *g, struct coll_call *call)
{
    coll_status_t status;

    pthread_mutex_lock(&g->lock);
    if (g->failure != COLL_OK) {
        status = coll_fail(g->failure, "%s", g->failure_text);
    } else {
        call->seq = ++g->seq;
        status = run_recorded(g, call);
        if (status != COLL_OK) {
            g->failure = status;
            snprintf(g->failure_text, sizeof(g->failure_text), "%s",
                coll_last_error());
            coll_agent_note_failure(status);
        }
    }
    pthread_mutex_unlock(&g->lock);
    return status;
}

/* Resolves the default group and checks what every operation with data has:
 * type and size. */
static coll_status_t check_call(
    struct coll_group **g, const struct coll_call *call)
{
    const char *name = coll_kind_name(call->kind);
    size_t size = coll_dtype_size(call->dtype);

    if (*g == NULL)
        *g = coll_default_group();
    if (*g == NULL)
        return coll_fail(COLL_ERR_STATE,
            "coll_%s: there is no group; call coll_init() first", name);
    if (size == 0)
        return coll_fail(COLL_ERR_ARGUMENT, "coll_%s: unknown data type %d",
            name, (int)call->dtype);
    if (call->count > (size_t)PTRDIFF_MAX / size)
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_%s: %zu elements of %s are more than the address space", name,
            call->count, coll_dtype_name(call->dtype));
    return COLL_OK;
}

static bool overlaps_partly(const void *a, const void *b, size_t len)
{
    uintptr_t x = (uintptr_t)a;
    uintptr_t y = (uintptr_t)b;

    return x < y ? y - x < len : x > y && x - y < len;
}

coll_status_t coll_all_reduce(const void *sendbuf, void *recvbuf, size_t count,
    coll_dtype_t dtype, coll_op_t op, coll_group_t *group)
{
    struct coll_call call = {
        .kind = COLL_KIND_ALL_REDUCE,
        .dtype = dtype,
        .op = op,
        .count = count,
        .sendbuf = sendbuf,
        .recvbuf = recvbuf,
    };
    coll_status_t status = check_call(&group, &call);

    if (status != COLL_OK)
        return status;
    if (op < COLL_SUM || op > COLL_PRODUCT)
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_all_reduce: unknown reduction %d", (int)op);
    if (count > 0 && (sendbuf == NULL || recvbuf == NULL))
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_all_reduce: %s is NULL, count is %zu",
            sendbuf == NULL ? "sendbuf" : "recvbuf", count);
    if (overlaps_partly(sendbuf, recvbuf, count * coll_dtype_size(dtype)))
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_all_reduce: sendbuf and recvbuf overlap without being the "
            "same");
    return group_run(group, &call);
}

coll_status_t coll_broadcast(
    void *buf, size_t count, coll_dtype_t dtype, int root, coll_group_t *group)
{
    struct coll_call call = {
        .kind = COLL_KIND_BROADCAST,
        .dtype = dtype,
        .root = root,
        .count = count,
        .recvbuf = buf,
    };
    coll_status_t status = check_call(&group, &call);

    if (status != COLL_OK)
        return status;
    if (root < 0 || root >= group->size)
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_broadcast: root %d is not a rank of a group of %d", root,
            group->size);
    if (count > 0 && buf == NULL)
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_broadcast: buf is NULL, count is %zu", count);
    return group_run(group, &call);
}

coll_status_t coll_barrier(coll_group_t *group)
{
    struct coll_call call = {.kind = COLL_KIND_BARRIER};
    coll_status_t status = check_call(&group, &call);

    return status == COLL_OK ? group_run(group, &call) : status;
}

int coll_rank(const coll_group_t *group)
{
    if (group == NULL)
        group = coll_default_group();
    return group == NULL ? -1 : group->rank;
}

int coll_world_size(const coll_group_t *group)
{
    if (group == NULL)
        group = coll_default_group();
    return group == NULL ? -1 : group->size;
}

const char *coll_backend_name(const coll_group_t *group)
{
    if (group == NULL)
        group = coll_default_group();
    return group == NULL ? NULL : group->backend->name;
}
