/*
 * all_to_all, with parts of equal length or not: every rank sends to the next
 * ones while it receives from the ones before, a few at a time. In place,
 * where a part must go before another comes, pairs of ranks change theirs,
 * piece by piece.
 */
#include "flat_internal.h"

#include <stdlib.h>

/* What goes to and comes from each rank. */
struct sides {
    struct pattern_parts out;
    struct pattern_parts in;
};

/* Both sides know what is empty, so that is not sent. */
static coll_status_t exchange(const struct flat *f, const struct sides *s)
{
    const struct coll_call *call = f->call;
    struct p2p_op ops[2 * FLAT_WINDOW];
    coll_status_t status = COLL_OK;
    size_t n = 0;

    for (int d = 1; d < f->size && status == COLL_OK; d++) {
        int to = pattern_shift(f->rank, d, f->size);
        int from = pattern_shift(f->rank, -d, f->size);
        size_t out = pattern_part_count(&s->out, to);
        size_t in = pattern_part_count(&s->in, from);

        if (in > 0)
            ops[n++] = flat_recv(f, from,
                flat_at(f, call->recvbuf, pattern_part_at(&s->in, from)), in);
        if (out > 0)
            ops[n++] = flat_send(f, to,
                flat_at(f, call->sendbuf, pattern_part_at(&s->out, to)), out);
        if (d % FLAT_WINDOW == 0 || d == f->size - 1) {
            status = flat_wait(f, ops, n);
            n = 0;
        }
    }
    return status;
}

static coll_status_t exchange_in_place(const struct flat *f)
{
    const struct coll_call *call = f->call;
    size_t most = FLAT_SCRATCH_BYTES / f->elem;
    size_t piece = call->count < most ? call->count : most;
    coll_status_t status = COLL_OK;
    char *scratch = flat_scratch(f, piece * f->elem);

    if (scratch == NULL)
        return COLL_ERR_MEMORY;
    for (int s = 0; s < f->size && status == COLL_OK; s++) {
        int peer = pattern_partner(f->rank, s, f->size);
        char *part = flat_at(f, call->recvbuf, (size_t)peer * call->count);

        for (size_t at = 0;
             peer != f->rank && at < call->count && status == COLL_OK;) {
            size_t n = call->count - at < piece ? call->count - at : piece;
            struct p2p_op ops[] = {
                flat_recv(f, peer, scratch, n),
                flat_send(f, peer, flat_at(f, part, at), n),
            };

            status = flat_wait(f, ops, 2);
            if (status == COLL_OK)
                flat_copy(f, flat_at(f, part, at), scratch, n);
            at += n;
        }
    }
    free(scratch);
    return status;
}

coll_status_t flat_all_to_all(const struct flat *f)
{
    const struct coll_call *call = f->call;
    struct pattern_parts parts = {
        .size = f->size, .total = call->count * (size_t)f->size};
    struct sides s = {parts, parts};
    size_t own = (size_t)f->rank * call->count;

    if (call->sendbuf == call->recvbuf)
        return exchange_in_place(f);
    flat_copy(f, flat_at(f, call->recvbuf, own), flat_at(f, call->sendbuf, own),
        call->count);
    return exchange(f, &s);
}

coll_status_t flat_all_to_all_v(const struct flat *f)
{
    const struct coll_call *call = f->call;
    struct sides s = {
        .out = {.size = f->size,
            .counts = call->send_counts,
            .at = call->send_at},
        .in = {.size = f->size,
            .counts = call->recv_counts,
            .at = call->recv_at},
    };

    flat_copy(f, flat_at(f, call->recvbuf, call->recv_at[f->rank]),
        flat_at(f, call->sendbuf, call->send_at[f->rank]),
        call->recv_counts[f->rank]);
    return exchange(f, &s);
}
