/*
 * all_gather, of parts of equal length or not: all ranks know all lengths.
 *
 * bruck  in each of ceil(log2 n) steps a rank gets from a distance that doubles
 *        what that one has so far: few steps, for what is small.
 * ring   in rank order, so that most neighbours share a node: each rank sends
 *        on what it got in the step before.
 */
#include "flat_internal.h"

#include <stdlib.h>

/* Elements of the blocks of n ranks from a rank on. */
static size_t count_blocks(
    const struct flat *f, const struct pattern_parts *parts, int from, int n)
{
    size_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += pattern_part_count(parts, pattern_shift(from, i, f->size));
    return sum;
}

/* Blocks are in the order of ranks from this one on. */
coll_status_t flat_all_gather_bruck(
    const struct flat *f, void *buf, const struct pattern_parts *parts)
{
    char *blocks = flat_scratch(f, pattern_parts_sum(parts) * f->elem);
    coll_status_t status = COLL_OK;
    size_t have = pattern_part_count(parts, f->rank);
    size_t at = 0;

    if (blocks == NULL)
        return COLL_ERR_MEMORY;
    flat_copy(
        f, blocks, flat_at(f, buf, pattern_part_at(parts, f->rank)), have);
    for (int d = 1; d < f->size && status == COLL_OK; d *= 2) {
        int n = d < f->size - d ? d : f->size - d;
        int from = pattern_shift(f->rank, d, f->size);
        size_t out = count_blocks(f, parts, f->rank, n);
        size_t in = count_blocks(f, parts, from, n);
        struct p2p_op ops[] = {
            flat_recv(f, from, flat_at(f, blocks, have), in),
            flat_send(f, pattern_shift(f->rank, -d, f->size), blocks, out),
        };

        status = flat_wait(f, ops, 2);
        have += in;
    }
    for (int i = 0; i < f->size && status == COLL_OK; i++) {
        int r = pattern_shift(f->rank, i, f->size);
        size_t n = pattern_part_count(parts, r);

        flat_copy(f, flat_at(f, buf, pattern_part_at(parts, r)),
            flat_at(f, blocks, at), n);
        at += n;
    }
    free(blocks);
    return status;
}

coll_status_t flat_all_gather_ring(
    const struct flat *f, void *buf, const struct pattern_parts *parts)
{
    coll_status_t status = COLL_OK;

    for (int s = 0; s < f->size - 1 && status == COLL_OK; s++) {
        int have = pattern_shift(f->rank, -s, f->size);
        int want = pattern_shift(have, -1, f->size);
        struct p2p_op ops[] = {
            flat_recv(f, pattern_shift(f->rank, -1, f->size),
                flat_at(f, buf, pattern_part_at(parts, want)),
                pattern_part_count(parts, want)),
            flat_send(f, pattern_shift(f->rank, 1, f->size),
                flat_at(f, buf, pattern_part_at(parts, have)),
                pattern_part_count(parts, have)),
        };

        status = flat_wait(f, ops, 2);
    }
    return status;
}

coll_status_t flat_all_gather(const struct flat *f)
{
    const struct coll_call *call = f->call;
    struct pattern_parts parts = {
        .size = f->size,
        .counts = call->recv_counts,
        .at = call->recv_at,
        .total = call->count * (size_t)f->size,
    };
    void *own = flat_at(f, call->recvbuf, pattern_part_at(&parts, f->rank));

    flat_copy(f, own, call->sendbuf, pattern_part_count(&parts, f->rank));
    if (f->algorithm == COLL_ALGORITHM_BRUCK)
        return flat_all_gather_bruck(f, call->recvbuf, &parts);
    return flat_all_gather_ring(f, call->recvbuf, &parts);
}
