/* The operations of flat.h by kind, and what all of them are made of. */
#include "flat_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "coll_signature.h"

void flat_copy(const struct flat *f, void *to, const void *from, size_t count)
{
    if (count > 0 && to != from)
        memcpy(to, from, count * f->elem);
}

void *flat_scratch(const struct flat *f, size_t bytes)
{
    void *memory = malloc(bytes > 0 ? bytes : 1);
    char name[64];

    if (memory == NULL)
        coll_fail(COLL_ERR_MEMORY, "out of memory for %zu bytes in %s", bytes,
            coll_call_text(name, sizeof(name), f->call));
    return memory;
}

/* Messages between two ranks arrive in the order in which they were sent, so
 * all those of an operation can have one tag; it is there to tell a rank that
 * is out of step. */
static struct p2p_op make_op(const struct flat *f, int peer, size_t count)
{
    return (struct p2p_op){
        .is_step = true,
        .peer = peer,
        .tag = (int)(f->call->seq & INT_MAX),
        .dtype = f->call->dtype,
        .count = count,
        .call = f->call,
    };
}

struct p2p_op flat_send(
    const struct flat *f, int peer, const void *buf, size_t count)
{
    struct p2p_op op = make_op(f, peer, count);

    op.is_send = true;
    op.buf = (void *)buf; /* only read */
    return op;
}

struct p2p_op flat_recv(const struct flat *f, int peer, void *buf, size_t count)
{
    struct p2p_op op = make_op(f, peer, count);

    op.buf = buf;
    return op;
}

coll_status_t flat_wait(const struct flat *f, struct p2p_op *ops, size_t n)
{
    return n == 0 ? COLL_OK : p2p_run(f->g->p2p, ops, n);
}

bool flat_batch_init(const struct flat *f, struct flat_batch *b, size_t room)
{
    *b = (struct flat_batch){
        .ops = flat_scratch(f, room * sizeof(*b->ops)),
        .list = flat_scratch(f, room * sizeof(*b->list)),
    };
    return b->ops != NULL && b->list != NULL;
}

void flat_batch_fini(struct flat_batch *b)
{
    free(b->ops);
    free(b->list);
}

void flat_batch_add(struct flat_batch *b, struct p2p_op op)
{
    b->ops[b->n] = op;
    b->list[b->n] = &b->ops[b->n];
    b->n++;
}

void flat_batch_post(const struct flat *f, struct flat_batch *b)
{
    if (b->n > 0)
        p2p_post(f->g->p2p, b->list, b->n);
}

coll_status_t flat_batch_finish(const struct flat *f, struct flat_batch *b)
{
    coll_status_t status = COLL_OK;

    if (b->n > 0)
        status = p2p_wait(f->g->p2p, b->list, b->n, UINT64_MAX);
    b->n = 0;
    return status;
}

coll_status_t flat_run(struct coll_group *g, const struct coll_call *call,
    enum coll_algorithm algorithm)
{
    const struct flat f = {
        .g = g,
        .call = call,
        .rank = g->rank,
        .size = g->size,
        .elem = coll_dtype_size(call->dtype),
        .algorithm = algorithm,
    };

    if (call->count == 0 && call->kind < COLL_KIND_ALL_GATHER_V)
        return COLL_OK;
    switch (call->kind) {
    case COLL_KIND_ALL_REDUCE:
        return flat_all_reduce(&f);
    case COLL_KIND_REDUCE:
        return flat_reduce(&f);
    case COLL_KIND_REDUCE_SCATTER:
    case COLL_KIND_REDUCE_SCATTER_V:
        return flat_reduce_scatter(&f);
    case COLL_KIND_ALL_GATHER:
    case COLL_KIND_ALL_GATHER_V:
        return flat_all_gather(&f);
    case COLL_KIND_GATHER:
        return flat_gather(&f);
    case COLL_KIND_SCATTER:
        return flat_scatter(&f);
    case COLL_KIND_ALL_TO_ALL:
        return flat_all_to_all(&f);
    case COLL_KIND_ALL_TO_ALL_V:
        return flat_all_to_all_v(&f);
    default:
        break;
    }
    return coll_fail(COLL_ERR_UNSUPPORTED, "back end \"%s\": no %s",
        g->backend->name, coll_kind_name(call->kind));
}
