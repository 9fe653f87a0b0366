/*
 * all_reduce, reduce and reduce_scatter.
 *
 * gather    one rank, or every rank, gets the data of all and folds it: few
 *           steps, for what is small.
 * pairwise  every rank gets of all others what belongs to its part, and folds
 *           that at once. all_reduce and reduce then put the parts together.
 * ring      partial results go round in rank order: no faster between equal
 *           ranks, but most neighbours share a node, and what crosses from
 *           node to node is one part for each step instead of one for each
 *           pair of ranks.
 *
 * The first two fold in the order of ranks, with one rounding where the kernel
 * has one, so that the bits do not depend on where ranks are; a ring begins
 * each part at another rank.
 */
#include "flat_internal.h"

#include <stdlib.h>

#include "kernel.h"

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Elements of a piece that begins at an offset into a rank's part. */
static size_t piece_of(
    const struct pattern_parts *parts, int rank, size_t at, size_t piece)
{
    size_t count = pattern_part_count(parts, rank);

    return count <= at ? 0 : min_size(count - at, piece);
}

/* --- Pairwise ------------------------------------------------------------- */

/* A part that is put together from the pieces of all ranks: while one is folded
 * the messages of the next are on their way. */
struct fold {
    const char *send; /* this rank's elements, of all parts */
    struct pattern_parts parts;
    char *to; /* where the own part goes: apart from send, or in its place */
    size_t piece; /* elements, at most */
    char *scratch[2]; /* [size * piece] each */
    struct flat_batch batch[2];
    const void **srcs; /* [size] */
};

static void post_piece(
    const struct flat *f, struct fold *p, size_t at, int slot)
{
    size_t in = piece_of(&p->parts, f->rank, at, p->piece);
    struct flat_batch *b = &p->batch[slot];

    for (int d = 1; d < f->size; d++) {
        int to = pattern_shift(f->rank, d, f->size);
        int from = pattern_shift(f->rank, -d, f->size);
        size_t out = piece_of(&p->parts, to, at, p->piece);

        if (in > 0)
            flat_batch_add(b,
                flat_recv(f, from,
                    flat_at(f, p->scratch[slot], (size_t)from * p->piece), in));
        if (out > 0)
            flat_batch_add(
                b, flat_send(f, to,
                       flat_at(f, p->send, pattern_part_at(&p->parts, to) + at),
                       out));
    }
    flat_batch_post(f, b);
}

static void fold_piece(
    const struct flat *f, const struct fold *p, size_t at, int slot)
{
    size_t n = piece_of(&p->parts, f->rank, at, p->piece);

    if (n == 0)
        return;
    for (int r = 0; r < f->size; r++)
        p->srcs[r] = flat_at(f, p->scratch[slot], (size_t)r * p->piece);
    p->srcs[f->rank] =
        flat_at(f, p->send, pattern_part_at(&p->parts, f->rank) + at);
    kernel_reduce(flat_at(f, p->to, at), p->srcs, f->size, n, f->call->dtype,
        f->call->op);
}

static coll_status_t run_fold(const struct flat *f, struct fold *p)
{
    size_t most = pattern_parts_most(&p->parts);
    int slot = 0;

    post_piece(f, p, 0, slot);
    for (size_t at = 0; at < most; at += p->piece, slot = 1 - slot) {
        coll_status_t status;

        if (at + p->piece < most)
            post_piece(f, p, at + p->piece, 1 - slot);
        status = flat_batch_finish(f, &p->batch[slot]);
        if (status != COLL_OK)
            return status;
        fold_piece(f, p, at, slot);
    }
    return COLL_OK;
}

static coll_status_t reduce_pairwise(const struct flat *f, const void *send,
    const struct pattern_parts *parts, void *to)
{
    size_t n = (size_t)f->size;
    size_t limit = FLAT_SCRATCH_BYTES / 2 / f->elem / n;
    struct fold p = {
        .send = send,
        .parts = *parts,
        .to = to,
        .piece = min_size(pattern_parts_most(parts), limit > 0 ? limit : 1),
    };
    coll_status_t status = COLL_ERR_MEMORY;
    bool is_ready;

    p.scratch[0] = flat_scratch(f, 2 * n * p.piece * f->elem);
    p.scratch[1] = flat_at(f, p.scratch[0], n * p.piece);
    p.srcs = flat_scratch(f, n * sizeof(*p.srcs));
    is_ready = p.scratch[0] != NULL && p.srcs != NULL;
    for (int i = 0; i < 2; i++)
        is_ready &= flat_batch_init(f, &p.batch[i], 2 * n);
    if (is_ready)
        status = run_fold(f, &p);
    for (int i = 0; i < 2; i++)
        flat_batch_fini(&p.batch[i]);
    free(p.srcs);
    free(p.scratch[0]);
    return status;
}

/* --- Ring ----------------------------------------------------------------- */

/* One piece of every part goes round: what comes in the last step is the own
 * one. Buffers alternate: one is sent while the other is received into. */
struct lane {
    size_t at; /* into the parts */
    char *buffers[2];
    const char *from; /* what is sent next */
    struct p2p_op ops[2];
    struct p2p_op *list[2];
    struct flat_batch batch;
};

/* Two pieces take turns, so that there is something on its way while one is
 * folded. */
struct ring {
    const char *send;
    struct pattern_parts parts;
    char *to;
    size_t piece; /* elements, at most */
    struct lane lanes[2];
};

static void ring_post(
    const struct flat *f, const struct ring *ring, struct lane *l, int step)
{
    int mine = pattern_shift(f->rank, -(step + 1), f->size);
    int next = pattern_shift(mine, -1, f->size);

    if (step == 0)
        l->from =
            flat_at(f, ring->send, pattern_part_at(&ring->parts, mine) + l->at);
    l->batch = (struct flat_batch){.ops = l->ops, .list = l->list};
    flat_batch_add(&l->batch,
        flat_recv(f, pattern_shift(f->rank, -1, f->size), l->buffers[step % 2],
            piece_of(&ring->parts, next, l->at, ring->piece)));
    flat_batch_add(
        &l->batch, flat_send(f, pattern_shift(f->rank, 1, f->size), l->from,
                       piece_of(&ring->parts, mine, l->at, ring->piece)));
    flat_batch_post(f, &l->batch);
}

static coll_status_t ring_finish(
    const struct flat *f, const struct ring *ring, struct lane *l, int step)
{
    coll_op_t op = f->call->op == COLL_AVG ? COLL_SUM : f->call->op;
    int next = pattern_shift(f->rank, -(step + 2), f->size);
    size_t n = piece_of(&ring->parts, next, l->at, ring->piece);
    char *in = l->buffers[step % 2];
    char *to = step == f->size - 2 ? flat_at(f, ring->to, l->at) : in;
    const void *srcs[] = {in,
        flat_at(f, ring->send, pattern_part_at(&ring->parts, next) + l->at)};
    coll_status_t status = flat_batch_finish(f, &l->batch);

    if (status != COLL_OK || n == 0)
        return status;
    kernel_reduce(to, srcs, 2, n, f->call->dtype, op);
    if (to != in && f->call->op == COLL_AVG)
        kernel_divide(to, n, f->call->dtype, f->size);
    l->from = to;
    return COLL_OK;
}

static coll_status_t run_ring(
    const struct flat *f, struct ring *ring, int lanes)
{
    coll_status_t status = COLL_OK;

    for (int step = 0; step < f->size; step++)
        for (int i = 0; i < lanes && status == COLL_OK; i++) {
            if (step > 0)
                status = ring_finish(f, ring, &ring->lanes[i], step - 1);
            if (status == COLL_OK && step < f->size - 1)
                ring_post(f, ring, &ring->lanes[i], step);
        }
    return status;
}

static coll_status_t reduce_ring(const struct flat *f, const void *send,
    const struct pattern_parts *parts, void *to)
{
    size_t most = pattern_parts_most(parts);
    struct ring ring = {
        .send = send,
        .parts = *parts,
        .to = to,
        .piece = min_size((most + 1) / 2, FLAT_SCRATCH_BYTES / 4 / f->elem),
    };
    char *scratch = flat_scratch(f, 4 * ring.piece * f->elem);
    coll_status_t status = scratch == NULL ? COLL_ERR_MEMORY : COLL_OK;

    for (size_t at = 0; at < most && status == COLL_OK;) {
        int lanes = 0;

        for (; lanes < 2 && at < most; lanes++, at += ring.piece) {
            ring.lanes[lanes].at = at;
            for (size_t i = 0; i < 2; i++)
                ring.lanes[lanes].buffers[i] =
                    flat_at(f, scratch, (2 * (size_t)lanes + i) * ring.piece);
        }
        status = run_ring(f, &ring, lanes);
    }
    free(scratch);
    return status;
}

/* --- The operations ------------------------------------------------------- */

/* This rank's part of what all ranks have in send, reduced, goes to "to",
 * which is apart from send or in the part's place there. */
static coll_status_t reduce_parts(const struct flat *f, const void *send,
    const struct pattern_parts *parts, void *to)
{
    if (f->algorithm == COLL_ALGORITHM_RING)
        return reduce_ring(f, send, parts, to);
    return reduce_pairwise(f, send, parts, to);
}

coll_status_t flat_reduce_scatter(const struct flat *f)
{
    const struct coll_call *call = f->call;
    const struct pattern_parts parts = {
        .size = f->size,
        .counts = call->send_counts,
        .at = call->send_at,
        .total = call->count * (size_t)f->size,
    };

    return reduce_parts(f, call->sendbuf, &parts, call->recvbuf);
}

/* all: the elements of all ranks. */
static coll_status_t fold_all(const struct flat *f, const char *all)
{
    const struct coll_call *call = f->call;
    const void **srcs = flat_scratch(f, (size_t)f->size * sizeof(*srcs));

    if (srcs == NULL)
        return COLL_ERR_MEMORY;
    for (int r = 0; r < f->size; r++)
        srcs[r] = flat_at(f, all, (size_t)r * call->count);
    kernel_reduce(
        call->recvbuf, srcs, f->size, call->count, call->dtype, call->op);
    free(srcs);
    return COLL_OK;
}

static coll_status_t all_reduce_gather(const struct flat *f)
{
    const struct coll_call *call = f->call;
    const struct pattern_parts parts = {
        .size = f->size, .total = call->count * (size_t)f->size};
    char *all = flat_scratch(f, parts.total * f->elem);
    coll_status_t status;

    if (all == NULL)
        return COLL_ERR_MEMORY;
    flat_copy(f, flat_at(f, all, pattern_part_at(&parts, f->rank)),
        call->sendbuf, call->count);
    status = flat_all_gather_bruck(f, all, &parts);
    if (status == COLL_OK)
        status = fold_all(f, all);
    free(all);
    return status;
}

coll_status_t flat_all_reduce(const struct flat *f)
{
    const struct coll_call *call = f->call;
    const struct pattern_parts parts = {.size = f->size, .total = call->count};
    coll_status_t status;

    if (f->algorithm == COLL_ALGORITHM_GATHER)
        return all_reduce_gather(f);
    status = reduce_parts(f, call->sendbuf, &parts,
        flat_at(f, call->recvbuf, pattern_part_at(&parts, f->rank)));
    if (status != COLL_OK)
        return status;
    if (pattern_parts_most(&parts) * f->elem <= FLAT_SMALL_BYTES)
        return flat_all_gather_bruck(f, call->recvbuf, &parts);
    return flat_all_gather_ring(f, call->recvbuf, &parts);
}

static coll_status_t reduce_gather(const struct flat *f)
{
    const struct coll_call *call = f->call;
    char *all = NULL;
    coll_status_t status;

    if (f->rank == call->root) {
        all = flat_scratch(f, (size_t)f->size * call->count * f->elem);
        if (all == NULL)
            return COLL_ERR_MEMORY;
    }
    status = flat_gather_tree(f, call->root, call->sendbuf, all, call->count);
    if (status == COLL_OK && all != NULL)
        status = fold_all(f, all);
    free(all);
    return status;
}

/* The root gets the parts of a piece that begins at an offset. */
static coll_status_t collect(const struct flat *f,
    const struct pattern_parts *parts, size_t at, const void *own)
{
    const struct coll_call *call = f->call;
    struct p2p_op ops[FLAT_WINDOW];
    coll_status_t status = COLL_OK;
    size_t n = 0;

    if (f->rank != call->root) {
        ops[0] =
            flat_send(f, call->root, own, pattern_part_count(parts, f->rank));
        return flat_wait(f, ops, 1);
    }
    for (int d = 1; d < f->size && status == COLL_OK; d++) {
        int r = pattern_shift(f->rank, d, f->size);

        ops[n++] = flat_recv(f, r,
            flat_at(f, call->recvbuf, at + pattern_part_at(parts, r)),
            pattern_part_count(parts, r));
        if (n == FLAT_WINDOW || d == f->size - 1) {
            status = flat_wait(f, ops, n);
            n = 0;
        }
    }
    return status;
}

/* Piece by piece, because ranks beside the root have no buffer for their
 * part. */
static coll_status_t reduce_in_parts(const struct flat *f)
{
    const struct coll_call *call = f->call;
    size_t most = FLAT_SCRATCH_BYTES / f->elem;
    struct pattern_parts parts = {
        .size = f->size, .total = min_size(call->count, most)};
    char *scratch = flat_scratch(f, pattern_parts_most(&parts) * f->elem);
    coll_status_t status = scratch == NULL ? COLL_ERR_MEMORY : COLL_OK;

    for (size_t at = 0; at < call->count && status == COLL_OK;) {
        char *own = scratch;

        parts.total = min_size(call->count - at, most);
        if (f->rank == call->root)
            own = flat_at(
                f, call->recvbuf, at + pattern_part_at(&parts, f->rank));
        status = reduce_parts(f, flat_at(f, call->sendbuf, at), &parts, own);
        if (status == COLL_OK)
            status = collect(f, &parts, at, own);
        at += parts.total;
    }
    free(scratch);
    return status;
}

coll_status_t flat_reduce(const struct flat *f)
{
    return f->algorithm == COLL_ALGORITHM_GATHER ? reduce_gather(f)
                                                 : reduce_in_parts(f);
}
