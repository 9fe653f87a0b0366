/* The back end of a world of one: every operation is at most a copy. */
#include "backend.h"

#include <string.h>

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

static coll_status_t self_run(
    struct coll_group *g, const struct coll_call *call)
{
    (void)g;
    if (call->kind == COLL_KIND_ALL_REDUCE && call->count > 0 &&
        call->sendbuf != call->recvbuf)
        memcpy(call->recvbuf, call->sendbuf,
            call->count * coll_dtype_size(call->dtype));
    return COLL_OK;
}

const struct coll_backend coll_backend_self = {
    .name = "self",
    .max_ranks = 1,
    .create = self_create,
    .destroy = self_destroy,
    .run = self_run,
};
