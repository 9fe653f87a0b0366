/*
 * The operations over a net.
 *
 * agreement  before anything else: in ceil(log2 n) steps every rank learns
 *            whether all have called the same, and if not which two have not.
 *            It is the whole of a barrier.
 * all_reduce small: every rank gets the data of all and folds it in rank
 *            order. Large: a ring reduces and then passes on the results, so
 *            that each byte is sent twice however many ranks there are.
 * broadcast  a binomial tree, piece by piece.
 */
#include "tcp_internal.h"

#include <string.h>

#include "coll_signature.h"
#include "kernel.h"

#define AGREE_MAGIC 0x636f6c61u

/* What two ranks have called. */
struct agreement {
    uint32_t magic;
    int32_t first; /* the lowest rank that was heard of, by its name */
    int32_t other; /* the lowest that has called something else, or -1 */
    uint32_t unused;
    struct coll_signature of_first;
    struct coll_signature of_other;
};

static struct tcp_flow to(
    struct tcp_net *net, int rank, const void *data, size_t len)
{
    return (struct tcp_flow){tcp_net_link(net, rank), (char *)data, len};
}

static struct tcp_flow from(
    struct tcp_net *net, int rank, void *data, size_t len)
{
    return (struct tcp_flow){tcp_net_link(net, rank), data, len};
}

static const struct tcp_flow nothing = {NULL, NULL, 0};

/* --- Agreement ------------------------------------------------------------ */

/* One rank's call becomes part of what is known. The order does not matter:
 * what remains is the lowest rank, and the lowest that differs from it. */
static void note_call(
    struct agreement *a, int32_t rank, const struct coll_signature *sig)
{
    if (rank < 0)
        return;
    if (rank < a->first) {
        if (!coll_signature_is_same(sig, &a->of_first)) {
            a->other = a->first;
            a->of_other = a->of_first;
        }
        a->first = rank;
        a->of_first = *sig;
    } else if (!coll_signature_is_same(sig, &a->of_first) &&
               (a->other < 0 || rank < a->other)) {
        a->other = rank;
        a->of_other = *sig;
    }
}

static void merge(struct agreement *a, const struct agreement *b)
{
    note_call(a, b->first, &b->of_first);
    note_call(a, b->other, &b->of_other);
}

coll_status_t tcp_agree(struct tcp_net *net, const struct coll_call *call)
{
    struct agreement known = {
        .magic = AGREE_MAGIC,
        .first = net->names[net->rank],
        .other = -1,
        .of_first = coll_signature_of(call),
    };
    char one[96];
    char two[96];

    for (int d = 1; d < net->size; d *= 2) {
        struct agreement heard;
        coll_status_t status = tcp_exchange(net, call,
            to(net, (net->rank + d) % net->size, &known, sizeof(known)),
            from(net, (net->rank + net->size - d) % net->size, &heard,
                sizeof(heard)));

        if (status != COLL_OK)
            return status;
        if (heard.magic != AGREE_MAGIC)
            return coll_fail(COLL_ERR_SYSTEM,
                "%s: what came from rank %d is not the start of an operation",
                coll_call_text(one, sizeof(one), call),
                net->names[(net->rank + net->size - d) % net->size]);
        merge(&known, &heard);
    }
    if (known.other < 0)
        return COLL_OK;
    coll_signature_text(one, sizeof(one), &known.of_first);
    coll_signature_text(two, sizeof(two), &known.of_other);
    return coll_fail(COLL_ERR_MISMATCH,
        "mismatch at operation #%llu: rank %d called %s, rank %d called %s",
        (unsigned long long)call->seq, known.first, one, known.other, two);
}

/* --- all_reduce ----------------------------------------------------------- */

/* Block j of the scratch memory is that of rank + j. */
static coll_status_t all_reduce_small(
    struct tcp_net *net, const struct coll_call *call, size_t bytes)
{
    char *blocks = net->scratch;

    memcpy(blocks, call->sendbuf, bytes);
    for (int d = 1; d < net->size; d *= 2) {
        size_t len = (size_t)(d < net->size - d ? d : net->size - d) * bytes;
        coll_status_t status = tcp_exchange(net, call,
            to(net, (net->rank + net->size - d) % net->size, blocks, len),
            from(net, (net->rank + d) % net->size, blocks + (size_t)d * bytes,
                len));

        if (status != COLL_OK)
            return status;
    }
    for (int r = 0; r < net->size; r++)
        net->srcs[r] =
            blocks + (size_t)((r - net->rank + net->size) % net->size) * bytes;
    kernel_reduce(call->recvbuf, net->srcs, net->size, call->count, call->dtype,
        call->op);
    return COLL_OK;
}

/* A part of the message and how the ranks share it. */
struct piece {
    char *at;
    size_t count;
    size_t size; /* of an element */
    int shares;
};

static size_t share_begin(const struct piece *p, int share)
{
    return p->count * (size_t)share / (size_t)p->shares * p->size;
}

static size_t share_bytes(const struct piece *p, int share)
{
    return share_begin(p, share + 1) - share_begin(p, share);
}

/* Shares go round; on arrival each is added to, until it is complete. */
static coll_status_t ring_reduce(
    struct tcp_net *net, const struct coll_call *call, const struct piece *p)
{
    coll_op_t op = call->op == COLL_AVG ? COLL_SUM : call->op;
    int n = net->size;

    for (int s = 0; s < n - 1; s++) {
        int mine = (net->rank + n - s) % n;
        int next = (mine + n - 1) % n;
        char *own = p->at + share_begin(p, next);
        const void *srcs[] = {net->scratch, own};
        coll_status_t status = tcp_exchange(net, call,
            to(net, (net->rank + 1) % n, p->at + share_begin(p, mine),
                share_bytes(p, mine)),
            from(net, (net->rank + n - 1) % n, net->scratch,
                share_bytes(p, next)));

        if (status != COLL_OK)
            return status;
        kernel_reduce(
            own, srcs, 2, share_bytes(p, next) / p->size, call->dtype, op);
        if (call->op == COLL_AVG && s == n - 2)
            kernel_divide(own, share_bytes(p, next) / p->size, call->dtype, n);
    }
    return COLL_OK;
}

static coll_status_t ring_gather(
    struct tcp_net *net, const struct coll_call *call, const struct piece *p)
{
    int n = net->size;

    for (int s = 0; s < n - 1; s++) {
        int have = (net->rank + 1 + n - s) % n;
        int want = (have + n - 1) % n;
        coll_status_t status = tcp_exchange(net, call,
            to(net, (net->rank + 1) % n, p->at + share_begin(p, have),
                share_bytes(p, have)),
            from(net, (net->rank + n - 1) % n, p->at + share_begin(p, want),
                share_bytes(p, want)));

        if (status != COLL_OK)
            return status;
    }
    return COLL_OK;
}

static coll_status_t all_reduce(
    struct tcp_net *net, const struct coll_call *call)
{
    size_t size = coll_dtype_size(call->dtype);
    size_t bytes = call->count * size;
    /* A share, which is rounded up, has to fit the scratch memory. */
    size_t most = (TCP_SCRATCH_BYTES / size - 1) * (size_t)net->size;

    if (bytes <= TCP_SCRATCH_BYTES / (size_t)net->size / 4)
        return all_reduce_small(net, call, bytes);
    if (call->recvbuf != call->sendbuf)
        memcpy(call->recvbuf, call->sendbuf, bytes);
    for (size_t done = 0; done < call->count;) {
        struct piece p = {
            .at = (char *)call->recvbuf + done * size,
            .count = call->count - done < most ? call->count - done : most,
            .size = size,
            .shares = net->size,
        };
        coll_status_t status = ring_reduce(net, call, &p);

        if (status == COLL_OK)
            status = ring_gather(net, call, &p);
        if (status != COLL_OK)
            return status;
        done += p.count;
    }
    return COLL_OK;
}

/* --- broadcast ------------------------------------------------------------ */

static coll_status_t broadcast_piece(
    struct tcp_net *net, const struct coll_call *call, char *at, size_t bytes)
{
    int n = net->size;
    int self = (net->rank - call->root + n) % n; /* the root is 0 */
    int d = 1;
    coll_status_t status = COLL_OK;

    while (d < n && (self & d) == 0)
        d *= 2;
    if (self != 0)
        status = tcp_exchange(
            net, call, nothing, from(net, (net->rank + n - d) % n, at, bytes));
    for (d /= 2; d > 0 && status == COLL_OK; d /= 2)
        if (self + d < n)
            status = tcp_exchange(
                net, call, to(net, (net->rank + d) % n, at, bytes), nothing);
    return status;
}

static coll_status_t broadcast(
    struct tcp_net *net, const struct coll_call *call)
{
    size_t left = call->count * coll_dtype_size(call->dtype);
    char *at = call->recvbuf;

    while (left > 0) {
        size_t n = left < TCP_SCRATCH_BYTES ? left : TCP_SCRATCH_BYTES;
        coll_status_t status = broadcast_piece(net, call, at, n);

        if (status != COLL_OK)
            return status;
        at += n;
        left -= n;
    }
    return COLL_OK;
}

/* --- All ------------------------------------------------------------------ */

coll_status_t tcp_run(struct tcp_net *net, const struct coll_call *call)
{
    coll_status_t status = tcp_agree(net, call);

    if (status == COLL_OK && call->count > 0) {
        switch (call->kind) {
        case COLL_KIND_ALL_REDUCE:
            status = all_reduce(net, call);
            break;
        case COLL_KIND_BROADCAST:
            status = broadcast(net, call);
            break;
        default: /* no data, or not over the net */
            break;
        }
    }
    if (status != COLL_OK)
        tcp_net_fail(net, call->seq, status);
    return status;
}
