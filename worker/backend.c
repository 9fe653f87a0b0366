/* The table of back ends. */
#include "backend.h"

#include <stdio.h>
#include <string.h>

static const struct coll_backend *const backends[] = {
    &coll_backend_shm,
    &coll_backend_nodes,
    &coll_backend_tcp,
    &coll_backend_self,
};

enum { BACKEND_COUNT = sizeof(backends) / sizeof(backends[0]) };

const struct coll_backend *coll_backend_find(const char *name)
{
    for (int i = 0; i < BACKEND_COUNT; i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return NULL;
}

coll_status_t coll_backend_check_size(
    const struct coll_backend *backend, int size, coll_status_t blame)
{
    if (size <= backend->max_ranks)
        return COLL_OK;
    return coll_fail(blame,
        "coll_init: back end \"%s\" serves up to %d rank%s, not %d",
        backend->name, backend->max_ranks, backend->max_ranks == 1 ? "" : "s",
        size);
}

void coll_backend_names(char *out, size_t cap)
{
    size_t len = 0;

    out[0] = '\0';
    for (int i = 0; i < BACKEND_COUNT && len < cap; i++)
        len += (size_t)snprintf(out + len, cap - len, "%s%s",
            i == 0 ? "" : ", ", backends[i]->name);
}
