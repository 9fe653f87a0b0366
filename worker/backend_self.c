/* The back end of a world of one: every operation is at most a copy. */
#include "backend.h"

#include <string.h>

#include "kernel.h"

static coll_status_t self_create(
    struct coll_group *g, const struct coll_boot *boot)
{
    (void)g;
    (void)boot;
    return COLL_OK;
}

static void self_destroy(struct coll_group *g)
{
    (void)g;
}

static bool is_reduction(enum coll_kind kind)
{
    return kind == COLL_KIND_ALL_REDUCE || kind == COLL_KIND_REDUCE ||
           kind == COLL_KIND_REDUCE_SCATTER ||
           kind == COLL_KIND_REDUCE_SCATTER_V;
}

/* The only part begins where the call says. */
static size_t offset(const size_t *at)
{
    return at == NULL ? 0 : at[0];
}

static coll_status_t self_run(
    struct coll_group *g, const struct coll_call *call)
{
    size_t size = coll_dtype_size(call->dtype);
    const char *from = (const char *)call->sendbuf;
    char *to = call->recvbuf;

    (void)g;
    if (call->kind == COLL_KIND_BARRIER || call->kind == COLL_KIND_BROADCAST ||
        call->count == 0)
        return COLL_OK;
    from += offset(call->send_at) * size;
    to += offset(call->recv_at) * size;
    /* A bool that is not 0 becomes 1. */
    if (is_reduction(call->kind))
        kernel_reduce(
            to, (const void *[]){from}, 1, call->count, call->dtype, call->op);
    else if (from != to)
        memcpy(to, from, call->count * size);
    return COLL_OK;
}

static void self_give_up(struct coll_group *g, coll_status_t status)
{
    (void)g;
    (void)status;
}

static void self_wake(struct coll_group *g)
{
    (void)g;
}

const struct coll_backend coll_backend_self = {
    .name = "self",
    .max_ranks = 1,
    .create = self_create,
    .destroy = self_destroy,
    .run = self_run,
    .give_up = self_give_up,
    .wake = self_wake,
};
