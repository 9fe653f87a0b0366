/* Bytes whose length the others do not know: the lengths first. */
#include <stdlib.h>
#include <string.h>

#include "backend.h"

coll_status_t coll_broadcast_object(
    void **data, size_t *len, int root, coll_group_t *group)
{
    coll_status_t status = COLL_OK;
    struct coll_group *g =
        coll_group_get(group, "coll_broadcast_object", &status);
    void *copy = NULL;
    uint64_t n;
    struct coll_call call = {
        .kind = COLL_KIND_BROADCAST_OBJECT,
        .dtype = COLL_UINT64,
        .root = root,
        .count = 1,
        .recvbuf = &n,
    };

    if (g == NULL)
        return status;
    if (data == NULL || len == NULL)
        return coll_fail(COLL_ERR_ARGUMENT, "coll_broadcast_object: %s is NULL",
            data == NULL ? "data" : "len");
    if (root < 0 || root >= g->size)
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_broadcast_object: root %d is not a rank of a group of %d",
            root, g->size);
    if (g->rank == root && *len > 0 && *data == NULL)
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_broadcast_object: *data is NULL, *len is %zu", *len);
    if (g->rank == root && *len > PTRDIFF_MAX)
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_broadcast_object: *len is %zu, more than the address space",
            *len);
    n = g->rank == root ? *len : 0;
    status = coll_group_run(g, &call);
    if (status != COLL_OK)
        return status;
    if (g->rank == root)
        return coll_broadcast(*data, n, COLL_UINT8, root, g);
    if (n > 0) {
        copy = malloc(n);
        if (copy == NULL) {
            coll_fail(COLL_ERR_MEMORY,
                "coll_broadcast_object: out of memory for %llu bytes",
                (unsigned long long)n);
            coll_group_give_up(g, COLL_ERR_MEMORY);
            return COLL_ERR_MEMORY;
        }
    }
    status = coll_broadcast(copy, n, COLL_UINT8, root, g);
    if (status != COLL_OK) {
        free(copy);
        return status;
    }
    *data = copy;
    *len = n;
    return COLL_OK;
}

coll_status_t coll_all_gather_object(
    const void *data, size_t len, void **all, size_t *lens, coll_group_t *group)
{
    coll_status_t status = COLL_OK;
    struct coll_group *g =
        coll_group_get(group, "coll_all_gather_object", &status);
    uint64_t n = len;
    struct coll_call call = {
        .kind = COLL_KIND_ALL_GATHER_OBJECT,
        .dtype = COLL_UINT64,
        .count = 1,
        .sendbuf = &n,
        .recvbuf = lens,
    };
    size_t sum = 0;
    char *block;

    if (g == NULL)
        return status;
    if (all == NULL || lens == NULL || (data == NULL && len > 0))
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_all_gather_object: %s is NULL",
            all == NULL    ? "all"
            : lens == NULL ? "lens"
                           : "data");
    if (len > PTRDIFF_MAX)
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_all_gather_object: len is %zu, more than the address space",
            len);
    _Static_assert(sizeof(size_t) == sizeof(uint64_t), "lens holds them");
    status = coll_group_run(g, &call);
    if (status != COLL_OK)
        return status;
    for (int r = 0; r < g->size && sum <= PTRDIFF_MAX; r++)
        sum = lens[r] > PTRDIFF_MAX ? SIZE_MAX : sum + lens[r];
    block = sum <= PTRDIFF_MAX ? malloc(sum + 1) : NULL;
    if (block == NULL) {
        coll_fail(COLL_ERR_MEMORY,
            "coll_all_gather_object: out of memory for %zu bytes", sum);
        coll_group_give_up(g, COLL_ERR_MEMORY);
        return COLL_ERR_MEMORY;
    }
    status = coll_all_gather_v(data, len, block, lens, NULL, COLL_UINT8, g);
    if (status == COLL_OK)
        *all = block;
    else
        free(block);
    return status;
}
