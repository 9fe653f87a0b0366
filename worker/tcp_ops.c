/*
 * The large operations over a net, after the agreement.
 *
 * all_reduce a ring reduces and then passes on the results, so that each byte
 *            is sent twice however many ranks there are.
 * broadcast  a chain of all ranks, each of which sends every byte on once; or,
 *            where that takes too long to begin, a binomial tree.
 *
 * All go piece by piece, and what is sent does not wait for what is received
 * unless it is the same: so both directions of a wire are in use, and while one
 * rank computes the other's bytes wait in the sockets' buffers. A piece is
 * small enough to be in the cache still when it is used.
 */
#include "tcp_internal.h"

#include "kernel.h"
#include "pattern.h"
#include "spread.h"

static struct tcp_flow flow_of(
    struct tcp_net *net, int by, const void *data, size_t len)
{
    int rank = pattern_shift(net->rank, by, net->size);

    return (struct tcp_flow){tcp_net_link(net, rank), (char *)data, len};
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* --- all_reduce ----------------------------------------------------------- */

/*
 * The message is cut into rounds, and each round into a share for each rank. In
 * a round a rank takes 2 * (n - 1) steps: in the first half partial results go
 * round and are added to, in the second half the results go round. A step
 * sends what the one before has received; two rounds take turns, so that there
 * is something else to send meanwhile.
 */
struct ring {
    struct tcp_net *net;
    const struct coll_call *call;
    size_t elem; /* bytes */
    size_t round; /* elements of a round, but the last */
    size_t rounds;
    int steps; /* of a round */
};

/* The place of a step of a round in the order of all. */
struct ring_step {
    size_t round;
    int step;
    int turns; /* rounds that take turns here */
};

static struct ring_step ring_locate(const struct ring *ring, size_t k)
{
    size_t per_pair = 2 * (size_t)ring->steps;
    size_t pair = k / per_pair;
    size_t rest = k % per_pair;
    size_t turns = min_size(ring->rounds - 2 * pair, 2);

    return (struct ring_step){
        .round = 2 * pair + rest % turns,
        .step = (int)(rest / turns),
        .turns = (int)turns,
    };
}

/* Where the share is that a rank sends in a step; what it receives is the one
 * of the next step. */
struct ring_share {
    size_t at; /* elements into the message */
    size_t count;
};

static struct ring_share ring_share(
    const struct ring *ring, const struct ring_step *s, int step)
{
    int n = ring->net->size;
    int rank = pattern_shift(ring->net->rank, -(step % n), n);
    size_t begin = s->round * ring->round;
    const struct pattern_parts parts = {
        .size = n,
        .total = min_size(ring->call->count - begin, ring->round),
    };

    return (struct ring_share){
        begin + pattern_part_at(&parts, rank),
        pattern_part_count(&parts, rank),
    };
}

static struct tcp_flow ring_out(const struct ring *ring, size_t k)
{
    struct ring_step s = ring_locate(ring, k);
    struct ring_share share = ring_share(ring, &s, s.step);
    const char *from = s.step == 0 ? ring->call->sendbuf : ring->call->recvbuf;

    return flow_of(
        ring->net, 1, from + share.at * ring->elem, share.count * ring->elem);
}

static bool is_reducing(const struct ring *ring, const struct ring_step *s)
{
    return s->step < ring->net->size - 1;
}

static struct tcp_flow ring_in(const struct ring *ring, size_t k)
{
    struct ring_step s = ring_locate(ring, k);
    struct ring_share share = ring_share(ring, &s, s.step + 1);
    char *to = ring->net->scratch;

    if (!is_reducing(ring, &s))
        to = (char *)ring->call->recvbuf + share.at * ring->elem;
    return flow_of(ring->net, -1, to, share.count * ring->elem);
}

/* What has come is used. */
static void ring_take(const struct ring *ring, size_t k)
{
    const struct coll_call *call = ring->call;
    struct ring_step s = ring_locate(ring, k);
    struct ring_share share = ring_share(ring, &s, s.step + 1);
    char *to = (char *)call->recvbuf + share.at * ring->elem;
    const void *srcs[] = {ring->net->scratch,
        (const char *)call->sendbuf + share.at * ring->elem};
    coll_op_t op = call->op == COLL_AVG ? COLL_SUM : call->op;

    if (!is_reducing(ring, &s))
        return;
    kernel_reduce(to, srcs, 2, share.count, call->dtype, op);
    if (call->op == COLL_AVG && s.step == ring->net->size - 2)
        kernel_divide(to, share.count, call->dtype, ring->net->size);
}

/* Whether a step may send: it has received what it sends on. */
static bool ring_may_send(const struct ring *ring, size_t k, size_t taken)
{
    struct ring_step s = ring_locate(ring, k);

    return s.step == 0 || taken + (size_t)s.turns > k;
}

static coll_status_t all_reduce(
    struct tcp_net *net, const struct coll_call *call)
{
    size_t elem = coll_dtype_size(call->dtype);
    struct ring ring = {
        .net = net,
        .call = call,
        .elem = elem,
        .round = TCP_PIECE_BYTES / elem * (size_t)net->size,
        .steps = 2 * (net->size - 1),
    };
    struct tcp_flow out = {0};
    struct tcp_flow in;
    size_t sent = 0; /* steps whose sending has begun */
    size_t taken = 0;
    size_t all;

    /* Less than two rounds could not take turns. */
    ring.round = min_size(ring.round, (call->count + 1) / 2);
    ring.rounds = (call->count + ring.round - 1) / ring.round;
    all = ring.rounds * (size_t)ring.steps;
    in = ring_in(&ring, 0);
    while (taken < all || sent < all || out.left > 0) {
        coll_status_t status;

        while (out.left == 0 && sent < all && ring_may_send(&ring, sent, taken))
            out = ring_out(&ring, sent++);
        status = tcp_exchange_any(net, call, &out, &in);
        if (status != COLL_OK)
            return status;
        while (in.left == 0 && taken < all) {
            ring_take(&ring, taken++);
            if (taken < all)
                in = ring_in(&ring, taken);
        }
    }
    return COLL_OK;
}

/* --- broadcast ------------------------------------------------------------ */

/* From the root on each rank sends to the next one what it has so far. */
static coll_status_t broadcast_chain(
    struct tcp_net *net, const struct coll_call *call, size_t bytes)
{
    int place = pattern_shift(net->rank, -call->root, net->size);
    bool is_last = place == net->size - 1;
    size_t have = place == 0 ? bytes : 0;
    size_t sent = is_last ? bytes : 0;
    struct tcp_flow out = {0};
    struct tcp_flow in = {0};
    char *buf = call->recvbuf;

    while (have < bytes || sent < bytes) {
        size_t coming =
            have < bytes ? min_size(bytes - have, TCP_PIECE_BYTES) : 0;
        coll_status_t status;

        if (in.left == 0 && coming > 0)
            in = flow_of(net, -1, buf + have, coming);
        if (out.left == 0 && sent < have)
            out = flow_of(net, 1, buf + sent, have - sent);
        status = tcp_exchange_any(net, call, &out, &in);
        if (status != COLL_OK)
            return status;
        if (coming > 0 && in.left == 0)
            have += coming;
        if (!is_last && out.link != NULL)
            sent = (size_t)(out.at - buf);
    }
    return COLL_OK;
}

static coll_status_t broadcast_tree(
    struct tcp_net *net, const struct coll_call *call, size_t bytes)
{
    const struct pattern_tree t =
        pattern_tree(net->rank, call->root, net->size);
    struct tcp_flow none = {0};
    coll_status_t status = COLL_OK;

    if (t.parent >= 0) {
        struct tcp_flow in = flow_of(net, -t.reach, call->recvbuf, bytes);

        status = tcp_exchange_any(net, call, &none, &in);
    }
    for (int d = t.reach / 2; d > 0 && status == COLL_OK; d /= 2)
        if (pattern_tree_below(&t, d) > 0) {
            struct tcp_flow out = flow_of(net, d, call->recvbuf, bytes);

            status = tcp_exchange_any(net, call, &out, &none);
        }
    return status;
}

/* --- All ------------------------------------------------------------------ */

enum coll_algorithm tcp_choose(const struct tcp_net *net, struct coll_group *g,
    const struct coll_call *call, bool is_of_leaders)
{
    struct coll_case c = coll_case_of(g, call, net->size);
    struct spread plan;

    if (call->kind == COLL_KIND_BARRIER)
        c.blocks = 0;
    else if (spread_plan(&plan, call, net->size))
        c.blocks =
            plan.is_from_root ? plan.bytes : plan.bytes * (size_t)net->size;
    c.is_of_leaders = is_of_leaders;
    return coll_algorithm_choose(g->tuning, COLL_LEVEL_NET, &c, call->seq);
}

bool tcp_has(enum coll_kind kind, enum coll_algorithm algorithm)
{
    return algorithm == COLL_ALGORITHM_EAGER || kind == COLL_KIND_BROADCAST ||
           (kind == COLL_KIND_ALL_REDUCE && algorithm == COLL_ALGORITHM_RING);
}

static coll_status_t run_large(struct tcp_net *net,
    const struct coll_call *call, enum coll_algorithm algorithm)
{
    size_t bytes = call->count * coll_dtype_size(call->dtype);
    coll_status_t status = tcp_agree(net, call, NULL);

    if (status != COLL_OK)
        return status;
    switch (algorithm) {
    case COLL_ALGORITHM_RING:
        return all_reduce(net, call);
    case COLL_ALGORITHM_TREE:
        return broadcast_tree(net, call, bytes);
    case COLL_ALGORITHM_CHAIN:
        return broadcast_chain(net, call, bytes);
    default: /* a barrier */
        return COLL_OK;
    }
}

coll_status_t tcp_run(struct tcp_net *net, const struct coll_call *call,
    enum coll_algorithm algorithm)
{
    bool is_small = algorithm == COLL_ALGORITHM_EAGER;
    struct spread plan;
    coll_status_t status;

    if (is_small && spread_plan(&plan, call, net->size))
        status = tcp_run_small(net, call, &plan);
    else
        status = run_large(net, call, algorithm);
    if (status != COLL_OK)
        tcp_net_fail(net, call->seq, status);
    return status;
}
