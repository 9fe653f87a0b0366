/* The public messages: coll_send() and its like, over the group's engine. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "coll_recorder.h"
#include "coll_work.h"
#include "gpu.h"
#include "p2p.h"
#include "rendezvous/base/clock.h"

/* Checks a message, and makes an operation of the engine of it. */
static coll_status_t prepare(struct p2p_op *op, const struct coll_group *g,
    const char *name, const coll_message_t *m)
{
    size_t size = coll_dtype_size(m->dtype);

    if (size == 0)
        return coll_fail(
            COLL_ERR_ARGUMENT, "%s: unknown data type %d", name, (int)m->dtype);
    if (m->count > (size_t)PTRDIFF_MAX / size)
        return coll_fail(COLL_ERR_ARGUMENT,
            "%s: %zu elements of %s are more than the address space", name,
            m->count, coll_dtype_name(m->dtype));
    if (m->count > 0 && m->buf == NULL)
        return coll_fail(
            COLL_ERR_ARGUMENT, "%s: buf is NULL, count is %zu", name, m->count);
    if (m->tag < 0)
        return coll_fail(COLL_ERR_ARGUMENT,
            "%s: tag is %d, it must not be negative", name, m->tag);
    if (m->peer == g->rank)
        return coll_fail(COLL_ERR_ARGUMENT, "%s: peer %d is this rank itself",
            name, m->peer);
    if ((m->peer < 0 || m->peer >= g->size) &&
        (m->is_send || m->peer != COLL_ANY_SOURCE))
        return coll_fail(COLL_ERR_ARGUMENT,
            "%s: peer %d is not a rank of a group of %d", name, m->peer,
            g->size);
    if (g->size == 1)
        return coll_fail(COLL_ERR_ARGUMENT,
            "%s: there is no other rank in this group", name);
    *op = (struct p2p_op){
        .is_send = m->is_send,
        .peer = m->peer == COLL_ANY_SOURCE ? P2P_ANY_SOURCE : m->peer,
        .tag = m->tag,
        .dtype = m->dtype,
        .count = m->count,
        .buf = m->buf,
    };
    return COLL_OK;
}

static struct coll_call describe(
    const struct coll_group *g, const coll_message_t *m)
{
    return (struct coll_call){
        .kind = m->is_send ? COLL_KIND_SEND : COLL_KIND_RECV,
        .dtype = m->dtype,
        .count = m->count,
        .root = m->peer,
        .tag = m->tag,
        .timeout_ms = g->timeout_ms,
        .deadline_ns =
            clock_now_ns() + (uint64_t)g->timeout_ms * CLOCK_NS_PER_MS,
    };
}

/* Are they messages of device memory? Then call is what gpu.h takes. */
static coll_status_t check_device(struct coll_group *g, const char *name,
    const coll_message_t *messages, size_t n, struct coll_call *call)
{
    coll_status_t status;

    call->messages = messages;
    call->nmany = n;
    status = gpu_check(g, name, call);
    if (!call->on_gpu)
        call->nmany = 0;
    for (size_t i = 0; status == COLL_OK && call->on_gpu && i < n; i++)
        if (messages[i].peer == COLL_ANY_SOURCE)
            status = coll_fail(COLL_ERR_UNSUPPORTED,
                "%s: a message to device memory has to name its source", name);
    return status;
}

/* Waits for it. */
static coll_status_t run(
    coll_group_t *group, const char *name, const coll_message_t *m, int *source)
{
    coll_status_t status = COLL_OK;
    struct coll_group *g = coll_group_get(group, name, &status);
    struct p2p_op op;
    struct coll_call call;
    uint64_t now_ns = clock_now_ns();
    uint64_t ticket;

    if (status == COLL_OK)
        status = prepare(&op, g, name, m);
    if (status == COLL_OK)
        status = coll_work_check_thread(name);
    if (status == COLL_OK)
        status = coll_group_check(g);
    if (status != COLL_OK)
        return status;
    call = describe(g, m);
    status = check_device(g, name, m, 1, &call);
    if (status == COLL_OK && call.on_gpu)
        status = gpu_send_recv(g, &call);
    if (status != COLL_OK || call.on_gpu) {
        if (status == COLL_OK && source != NULL)
            *source = m->peer;
        return status;
    }
    op.call = &call;
    atomic_fetch_add(&g->messages, 1);
    ticket = coll_recorder_enter(g, &call, now_ns);
    status = p2p_run(g->p2p, &op, 1);
    coll_recorder_finish(ticket, status, now_ns);
    if (status != COLL_OK)
        coll_group_fail(g, status);
    else if (source != NULL)
        *source = op.source;
    atomic_fetch_sub(&g->messages, 1);
    return status;
}

coll_status_t coll_send(const void *buf, size_t count, coll_dtype_t dtype,
    int peer, int tag, coll_group_t *group)
{
    const coll_message_t m = {true, (void *)buf, count, dtype, peer, tag};

    return run(group, "coll_send", &m, NULL);
}

coll_status_t coll_recv(void *buf, size_t count, coll_dtype_t dtype, int peer,
    int tag, int *source, coll_group_t *group)
{
    const coll_message_t m = {false, buf, count, dtype, peer, tag};

    return run(group, "coll_recv", &m, source);
}

static coll_status_t check_and_launch(struct coll_group *g, const char *name,
    const coll_message_t *messages, size_t n, struct coll_call *call,
    coll_work_t **work)
{
    struct p2p_op op;
    coll_status_t status = COLL_OK;

    for (size_t i = 0; status == COLL_OK && i < n; i++)
        status = prepare(&op, g, name, &messages[i]);
    return status == COLL_OK ? coll_work_launch(work, g, call) : status;
}

static coll_status_t start(coll_group_t *group, const char *name,
    const coll_message_t *messages, size_t n, coll_work_t **work)
{
    coll_status_t status = COLL_OK;
    struct coll_group *g = coll_group_get(group, name, &status);
    struct coll_call call = {.kind = COLL_KIND_SEND};
    struct p2p_op *ops;
    coll_work_t *w;

    if (status != COLL_OK)
        return status;
    if (work == NULL)
        return coll_fail(COLL_ERR_ARGUMENT, "%s: work is NULL", name);
    if (n > 0 && messages == NULL)
        return coll_fail(
            COLL_ERR_ARGUMENT, "%s: messages is NULL, n is %zu", name, n);
    status = coll_group_check(g);
    if (status == COLL_OK && n > 0) {
        call = describe(g, &messages[0]);
        call.is_async = true;
        status = check_device(g, name, messages, n, &call);
    }
    if (status == COLL_OK && call.on_gpu)
        return check_and_launch(g, name, messages, n, &call, work);
    if (status == COLL_OK)
        status = coll_work_messages(&w, g, n, &ops);
    if (status != COLL_OK)
        return status;
    for (size_t i = 0; status == COLL_OK && i < n; i++)
        status = prepare(&ops[i], g, name, &messages[i]);
    if (status == COLL_OK && n > 0)
        status = p2p_start_thread(g->p2p);
    if (status != COLL_OK) {
        coll_work_discard(w);
        return status;
    }
    *work = w;
    coll_work_post(w, &call);
    return COLL_OK;
}

coll_status_t coll_isend(const void *buf, size_t count, coll_dtype_t dtype,
    int peer, int tag, coll_group_t *group, coll_work_t **work)
{
    const coll_message_t m = {true, (void *)buf, count, dtype, peer, tag};

    return start(group, "coll_isend", &m, 1, work);
}

coll_status_t coll_irecv(void *buf, size_t count, coll_dtype_t dtype, int peer,
    int tag, coll_group_t *group, coll_work_t **work)
{
    const coll_message_t m = {false, buf, count, dtype, peer, tag};

    return start(group, "coll_irecv", &m, 1, work);
}

coll_status_t coll_batch(const coll_message_t *messages, size_t n,
    coll_group_t *group, coll_work_t **work)
{
    return start(group, "coll_batch", messages, n, work);
}
