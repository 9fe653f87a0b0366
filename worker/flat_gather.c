/*
 * gather and scatter.
 *
 * tree    a binomial one: its inner ranks pass on what is of, or for, those
 *         below them, and the root has log2 n messages instead of n. For what
 *         is small, since each byte that is passed on is sent twice.
 * linear  the root has a message of or for each rank.
 */
#include "flat_internal.h"

#include <stdlib.h>

/* Receives from, or sends to, all others, a few at a time. all is where the
 * parts of all ranks lie. */
static coll_status_t run_on_root(
    const struct flat *f, void *all, size_t count, bool is_gather)
{
    struct p2p_op ops[FLAT_WINDOW];
    coll_status_t status = COLL_OK;
    size_t n = 0;

    for (int d = 1; d < f->size && status == COLL_OK; d++) {
        int peer = pattern_shift(f->rank, d, f->size);
        void *at = flat_at(f, all, (size_t)peer * count);

        ops[n++] = is_gather ? flat_recv(f, peer, at, count)
                             : flat_send(f, peer, at, count);
        if (n == FLAT_WINDOW || d == f->size - 1) {
            status = flat_wait(f, ops, n);
            n = 0;
        }
    }
    return status;
}

/* Parts are in the order of places, this rank's first. */
coll_status_t flat_gather_tree(const struct flat *f, int root, const void *own,
    void *recvbuf, size_t count)
{
    struct pattern_tree t = pattern_tree(f->rank, root, f->size);
    struct p2p_op ops[sizeof(int) * 8];
    coll_status_t status;
    size_t n = 0;
    char *parts;

    parts = flat_scratch(f, (size_t)t.span * count * f->elem);
    if (parts == NULL)
        return COLL_ERR_MEMORY;
    flat_copy(f, parts, own, count);
    for (int d = 1; d < t.reach; d *= 2) {
        size_t below = (size_t)pattern_tree_below(&t, d);

        if (below > 0)
            ops[n++] =
                flat_recv(f, pattern_tree_rank(t.place + d, root, f->size),
                    flat_at(f, parts, (size_t)d * count), below * count);
    }
    status = flat_wait(f, ops, n);
    if (status == COLL_OK && t.parent >= 0) {
        ops[0] = flat_send(f, t.parent, parts, (size_t)t.span * count);
        status = flat_wait(f, ops, 1);
    } else if (status == COLL_OK) {
        size_t r = (size_t)root;
        size_t rest = (size_t)f->size - r;

        flat_copy(f, flat_at(f, recvbuf, r * count), parts, rest * count);
        flat_copy(f, recvbuf, flat_at(f, parts, rest * count), r * count);
    }
    free(parts);
    return status;
}

static coll_status_t scatter_tree(const struct flat *f)
{
    const struct coll_call *call = f->call;
    struct pattern_tree t = pattern_tree(f->rank, call->root, f->size);
    struct p2p_op ops[sizeof(int) * 8];
    coll_status_t status = COLL_OK;
    size_t count = call->count;
    size_t n = 0;
    char *parts;

    parts = flat_scratch(f, (size_t)t.span * count * f->elem);
    if (parts == NULL)
        return COLL_ERR_MEMORY;
    if (t.parent >= 0) {
        ops[0] = flat_recv(f, t.parent, parts, (size_t)t.span * count);
        status = flat_wait(f, ops, 1);
    } else {
        size_t r = (size_t)call->root;
        size_t rest = (size_t)f->size - r;

        flat_copy(f, parts, flat_at(f, call->sendbuf, r * count), rest * count);
        flat_copy(f, flat_at(f, parts, rest * count), call->sendbuf, r * count);
    }
    /* The largest subtree first: it has the longest way to go. */
    for (int d = t.reach / 2; d > 0; d /= 2) {
        size_t below = (size_t)pattern_tree_below(&t, d);

        if (below > 0)
            ops[n++] = flat_send(f,
                pattern_tree_rank(t.place + d, call->root, f->size),
                flat_at(f, parts, (size_t)d * count), below * count);
    }
    if (status == COLL_OK)
        status = flat_wait(f, ops, n);
    if (status == COLL_OK)
        flat_copy(f, call->recvbuf, parts, count);
    free(parts);
    return status;
}

coll_status_t flat_gather(const struct flat *f)
{
    const struct coll_call *call = f->call;
    struct p2p_op op;

    if (f->algorithm == COLL_ALGORITHM_TREE)
        return flat_gather_tree(
            f, call->root, call->sendbuf, call->recvbuf, call->count);
    if (f->rank != call->root) {
        op = flat_send(f, call->root, call->sendbuf, call->count);
        return flat_wait(f, &op, 1);
    }
    flat_copy(f, flat_at(f, call->recvbuf, (size_t)f->rank * call->count),
        call->sendbuf, call->count);
    return run_on_root(f, call->recvbuf, call->count, true);
}

coll_status_t flat_scatter(const struct flat *f)
{
    const struct coll_call *call = f->call;
    struct p2p_op op;

    if (f->algorithm == COLL_ALGORITHM_TREE)
        return scatter_tree(f);
    if (f->rank != call->root) {
        op = flat_recv(f, call->root, call->recvbuf, call->count);
        return flat_wait(f, &op, 1);
    }
    flat_copy(f, call->recvbuf,
        flat_at(f, call->sendbuf, (size_t)f->rank * call->count), call->count);
    return run_on_root(f, (void *)call->sendbuf, call->count, false);
}
