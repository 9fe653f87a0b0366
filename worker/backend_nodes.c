/*
 * The back end "nodes": shared memory within a node, TCP between nodes. Of
 * each node the lowest rank leads: it alone is in the net.
 *
 * An operation has three parts. First the ranks of a node compare what they
 * have called and bring their data together; then the leaders do the same with
 * each other; then the leader gives its node the result. A leader that fails
 * in between says so in its node, and a node that fails says so, through its
 * leader, to the others.
 */
#include "tcp_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "coll_algorithm.h"
#include "coll_ranks.h"
#include "flat.h"
#include "kernel.h"
#include "p2p_internal.h"
#include "pairs.h"
#include "pattern.h"
#include "rendezvous/base/clock.h"
#include "shm_internal.h"
#include "spread.h"

/* All ranks of a node are known to be up when they meet there. */
#define LOCAL_MEET_MS 60000

struct nodes_state {
    int nodes_count;
    int *nodes; /* [size] of each rank */
    int *indices; /* [size] its rank within the node */
    int *ranks; /* [local_size] those of this node */
    int *names; /* [local_size] and what they are called */
    int local_size;
    int most_local; /* of any node */
    char *blocks; /* SPREAD_BYTES, for small operations */
    const void **srcs; /* [size] where in blocks each rank's are */
    struct coll_group *local; /* NULL if this rank is alone on its node */
    struct tcp_net *net; /* NULL unless this rank leads one of several nodes */
    struct tcp_places *places; /* NULL with one node */
    struct coll_group *g; /* whose it is */
    const struct coll_call *waits; /* for its node, in this part of a call */
    bool hears_net; /* while it waits there; see hear_net() */
};

static void release(struct nodes_state *s)
{
    if (s == NULL)
        return;
    coll_group_free(s->local);
    tcp_net_destroy(s->net);
    tcp_places_free(s->places);
    free(s->nodes);
    free(s->indices);
    free(s->ranks);
    free(s->names);
    free(s->blocks);
    free(s->srcs);
    free(s);
}

/* Fills in who is where. */
static coll_status_t take_nodes(struct nodes_state *s,
    const struct coll_group *g, const struct tcp_meeting *meeting)
{
    const int *nodes = tcp_meeting_nodes(meeting, &s->nodes_count);
    size_t size = (size_t)g->size;
    int *counts = calloc(size, sizeof(*counts));
    int own = nodes[g->rank];

    s->nodes = calloc(size, sizeof(*s->nodes));
    s->indices = calloc(size, sizeof(*s->indices));
    s->ranks = calloc(size, sizeof(*s->ranks));
    s->names = calloc(size, sizeof(*s->names));
    s->blocks = calloc(1, SPREAD_BYTES);
    s->srcs = calloc(size, sizeof(*s->srcs));
    if (counts == NULL || s->nodes == NULL || s->indices == NULL ||
        s->ranks == NULL || s->names == NULL || s->blocks == NULL ||
        s->srcs == NULL) {
        free(counts);
        return coll_fail(
            COLL_ERR_MEMORY, "out of memory for a group of %d ranks", g->size);
    }
    memcpy(s->nodes, nodes, size * sizeof(*nodes));
    for (int r = 0; r < g->size; r++) {
        if (nodes[r] == own) {
            s->ranks[counts[own]] = r;
            s->names[counts[own]] = coll_rank_name(g->names, r);
        }
        s->indices[r] = counts[nodes[r]]++;
        if (counts[nodes[r]] > s->most_local)
            s->most_local = counts[nodes[r]];
    }
    s->local_size = counts[own];
    free(counts);
    return COLL_OK;
}

static coll_status_t watch_local(void *arg, const struct coll_call *call)
{
    return shm_check_alive(arg, call);
}

static void tell_node(struct nodes_state *s, coll_status_t status)
{
    if (s->local != NULL)
        shm_announce_failure(s->local->state, status,
            SHM_HAD_GROUP | (tcp_is_for_all(status) ? SHM_AS_IT_IS : 0));
}

/* The time of what waits for the node is over, here or on another rank. */
static coll_status_t find_who_is_late(struct nodes_state *s)
{
    const struct shm_state *shm = s->local->state;
    int *late = calloc((size_t)s->local_size, sizeof(*late));
    coll_status_t status = COLL_OK;
    size_t n = 0;

    if (late == NULL)
        return coll_fail(COLL_ERR_MEMORY, "out of memory for a failure");
    for (int i = 0; i < s->local_size; i++)
        if (shm_is_behind(shm, i))
            late[n++] = s->ranks[i];
    if (n > 0)
        status = p2p_await(s->g->p2p, s->waits, late, n);
    free(late);
    return status;
}

/* While a rank waits for its node, what there is besides. */
static coll_status_t watch_outside(void *arg, const struct coll_call *part)
{
    struct nodes_state *s = arg;
    coll_status_t status = COLL_OK;

    if (s->hears_net)
        status = tcp_check(s->net, part);
    if (status == COLL_OK && (clock_now_ns() >= s->waits->deadline_ns ||
                                 p2p_is_asked(s->g->p2p, s->waits->seq)))
        status = find_who_is_late(s);
    if (status != COLL_OK)
        tell_node(s, status);
    return status;
}

static coll_status_t make_local(struct nodes_state *s,
    const struct coll_group *g, const struct coll_boot *boot)
{
    char prefix[128];
    struct coll_boot here = {
        .store = boot->store,
        .prefix = prefix,
        .deadline_ns = clock_deadline_ns(LOCAL_MEET_MS),
        .names = s->names,
        .tuning = g->tuning,
    };
    struct shm_state *shm;
    coll_status_t status;

    if (s->local_size == 1)
        return COLL_OK;
    if (here.deadline_ns > boot->deadline_ns)
        here.deadline_ns = boot->deadline_ns;
    snprintf(prefix, sizeof(prefix), "%sfrom%d/", boot->prefix, s->ranks[0]);
    status = coll_group_create(&s->local, &coll_backend_shm,
        s->indices[g->rank], s->local_size, g->timeout_ms, &here);
    if (status != COLL_OK)
        return status;
    shm = s->local->state;
    if (s->net != NULL) {
        s->net->watch_fd = shm->epoll;
        s->net->watch_cb = watch_local;
        s->net->watch_arg = shm;
    }
    if (s->nodes_count > 1) {
        shm->watch_cb = watch_outside;
        shm->watch_arg = s;
    }
    return COLL_OK;
}

static coll_status_t nodes_create(
    struct coll_group *g, const struct coll_boot *boot)
{
    struct nodes_state *s;
    struct tcp_meeting *meeting;
    coll_status_t status;

    if (g->size == 1)
        return COLL_OK;
    s = calloc(1, sizeof(*s));
    if (s == NULL)
        return coll_fail(COLL_ERR_MEMORY, "out of memory for a group");
    s->g = g;
    status = tcp_meet(&meeting, &s->net, &s->places, g, boot, false);
    if (status != COLL_OK) {
        release(s);
        return status;
    }
    status = take_nodes(s, g, meeting);
    tcp_meeting_watch(meeting);
    if (status == COLL_OK)
        status = make_local(s, g, boot);
    status = tcp_meeting_end(meeting, status);
    if (status != COLL_OK) {
        if (s->local != NULL)
            s->local->failure = status;
        /* There may be ranks that were told to go before this one was not. */
        if (s->net != NULL)
            tcp_net_fail(s->net, 0, status);
        release(s);
        return status;
    }
    g->state = s;
    return COLL_OK;
}

static void nodes_destroy(struct coll_group *g)
{
    struct nodes_state *s = g->state;

    if (s == NULL)
        return;
    if (s->local != NULL) {
        s->local->failure = g->failure;
        s->local->seq = g->seq;
    }
    if (s->net != NULL && g->failure != COLL_OK)
        tcp_net_fail(s->net, g->seq, g->failure);
    else if (s->net != NULL)
        tcp_net_leave(s->net, g->seq);
    release(s);
    g->state = NULL;
}

/* --- Operations ----------------------------------------------------------- */

/* The end of its time is watch_outside()'s matter: who is late within the node
 * may wait for another one. */
static coll_status_t run_local(
    struct nodes_state *s, const struct coll_call *part)
{
    struct coll_call here = *part;

    if (s->local == NULL)
        return COLL_OK;
    s->local->seq = part->seq;
    s->waits = part;
    here.deadline_ns = UINT64_MAX;
    return coll_backend_shm.run(s->local, &here);
}

static bool has_root(
    const struct nodes_state *s, const struct coll_group *g, int root)
{
    return s->nodes[root] == s->nodes[g->rank];
}

/* What ranks compare and sentences name is the whole call. */
static struct coll_call part_of(const struct coll_call *call)
{
    struct coll_call part = *call;

    if (part.whole == NULL)
        part.whole = call;
    return part;
}

/* The node's ranks compare their calls; then the leader's recvbuf has the
 * node's data, unless it is alone there. */
static coll_status_t bring_together(
    struct nodes_state *s, struct coll_group *g, const struct coll_call *call)
{
    struct coll_call part = part_of(call);

    if (call->kind == COLL_KIND_BROADCAST) {
        part.root = s->indices[call->root];
        if (!has_root(s, g, call->root))
            part.kind = COLL_KIND_BARRIER;
    } else if (call->kind == COLL_KIND_ALL_REDUCE) {
        part.kind = COLL_KIND_REDUCE;
        part.root = 0;
        if (s->net == NULL)
            part.recvbuf = NULL;
        if (call->op == COLL_AVG)
            part.op = COLL_SUM;
    }
    return run_local(s, &part);
}

static coll_status_t run_between(
    struct nodes_state *s, struct coll_group *g, const struct coll_call *call)
{
    struct coll_call part = part_of(call);
    coll_status_t status;

    if (s->local != NULL)
        part.sendbuf = call->recvbuf;
    if (call->kind == COLL_KIND_BROADCAST)
        part.root = s->nodes[call->root];
    if (call->kind == COLL_KIND_ALL_REDUCE && call->op == COLL_AVG)
        part.op = COLL_SUM;
    status = tcp_run(s->net, &part, tcp_choose(s->net, g, &part, true));
    if (status == COLL_OK && part.op != call->op)
        kernel_divide(call->recvbuf, call->count, call->dtype, g->size);
    return status;
}

/* Also tells the node's ranks that all went well elsewhere. */
static coll_status_t hand_out(
    struct nodes_state *s, struct coll_group *g, const struct coll_call *call)
{
    struct coll_call part = part_of(call);

    part.root = 0;
    part.kind = COLL_KIND_BROADCAST;
    if (call->kind == COLL_KIND_BARRIER ||
        (call->kind == COLL_KIND_BROADCAST && has_root(s, g, call->root)))
        part.kind = COLL_KIND_BARRIER;
    return run_local(s, &part);
}

/* Before its part between the nodes a leader hears of failures there even
 * while it waits for its own node; afterwards they are of later operations. */
static void hear_net(struct nodes_state *s, bool is_on)
{
    s->hears_net = is_on && s->net != NULL;
}

/* Within the nodes, between them, and back. */
static coll_status_t run_in_parts(
    struct nodes_state *s, struct coll_group *g, const struct coll_call *call)
{
    coll_status_t status;

    hear_net(s, true);
    status = bring_together(s, g, call);
    hear_net(s, false);
    if (status == COLL_OK && s->net != NULL) {
        status = run_between(s, g, call);
        if (status != COLL_OK)
            tell_node(s, status);
    }
    return status == COLL_OK ? hand_out(s, g, call) : status;
}

/* --- Small operations ----------------------------------------------------- */

/* The root's block, as a broadcast. */
static coll_status_t spread_from_root(struct nodes_state *s,
    struct coll_group *g, const struct coll_call *call,
    const struct spread *plan)
{
    struct coll_call part = part_of(call);
    coll_status_t status;

    part.kind = COLL_KIND_BROADCAST;
    part.count = plan->count;
    part.recvbuf = s->blocks;
    if (g->rank == call->root)
        spread_pack(plan, call, s->blocks, g->rank, g->size);
    status = run_in_parts(s, g, &part);
    for (int r = 0; r < g->size; r++)
        s->srcs[r] = s->blocks;
    return status;
}

/* Where a rank puts its block to share it. */
static char *own_block(const struct nodes_state *s)
{
    return s->local == NULL ? tcp_blocks(s->net) : s->blocks;
}

static coll_status_t run_on_blocks(struct nodes_state *s,
    const struct coll_call *call, enum coll_kind kind, void *recvbuf,
    size_t bytes)
{
    struct coll_call part = {
        .kind = kind,
        .dtype = COLL_UINT8,
        .count = bytes,
        .sendbuf = kind == COLL_KIND_GATHER ? s->blocks : NULL,
        .recvbuf = recvbuf,
        .seq = call->seq,
        .timeout_ms = call->timeout_ms,
        .deadline_ns = call->deadline_ns,
        .whole = call,
    };

    return run_local(s, &part);
}

/* Blocks of so many bytes come together in the leader of each node, go from
 * each leader to all others, and then to the ranks of its node: s->srcs. */
static coll_status_t share_blocks(struct nodes_state *s,
    const struct coll_group *g, const struct coll_call *call, size_t bytes)
{
    size_t most = (size_t)s->most_local;
    size_t node_bytes = most * bytes;
    const struct tcp_gift gift = {node_bytes, -1};
    char *all = s->net == NULL ? s->blocks : tcp_blocks(s->net);
    coll_status_t status;

    hear_net(s, true);
    status = run_on_blocks(
        s, call, COLL_KIND_GATHER, s->net == NULL ? NULL : all, bytes);
    hear_net(s, false);
    if (status == COLL_OK && s->net != NULL) {
        status = tcp_agree(s->net, call, &gift);
        if (status != COLL_OK)
            tell_node(s, status);
    }
    for (int r = 0; r < g->size; r++) {
        int node =
            pattern_shift(s->nodes[r], -s->nodes[g->rank], s->nodes_count);

        s->srcs[r] =
            all + (size_t)node * node_bytes + (size_t)s->indices[r] * bytes;
    }
    if (status != COLL_OK)
        return status;
    return run_on_blocks(
        s, call, COLL_KIND_BROADCAST, all, (size_t)s->nodes_count * node_bytes);
}

static coll_status_t run_eager(
    struct nodes_state *s, struct coll_group *g, const struct coll_call *call)
{
    struct spread plan;
    coll_status_t status;

    spread_plan(&plan, call, g->size);
    if (plan.is_from_root) {
        status = spread_from_root(s, g, call, &plan);
    } else {
        spread_pack(&plan, call, own_block(s), g->rank, g->size);
        status = share_blocks(s, g, call, plan.bytes);
    }
    if (status == COLL_OK)
        spread_unpack(call, s->srcs, g->rank, g->size);
    return status;
}

/* --- Large operations ----------------------------------------------------- */

/* All know that they call the same; and how long the parts of all_to_all_v
 * are. */
static coll_status_t agree(
    struct nodes_state *s, struct coll_group *g, const struct coll_call *call)
{
    struct coll_call part = part_of(call);
    size_t bytes;
    coll_status_t status;

    if (call->kind != COLL_KIND_ALL_TO_ALL_V) {
        part.kind = COLL_KIND_BARRIER;
        return run_in_parts(s, g, &part);
    }
    bytes =
        pairs_bytes(g->size, (size_t)s->nodes_count * (size_t)s->most_local);
    pairs_pack(call, g->rank, g->size, bytes, own_block(s));
    status = share_blocks(s, g, call, bytes);
    return status == COLL_OK ? pairs_check(g, call, s->srcs, bytes) : status;
}

/* Any rank with any other. */
static coll_status_t run_flat(
    struct nodes_state *s, struct coll_group *g, const struct coll_call *call)
{
    struct coll_case c = coll_case_of(g, call, g->size);
    coll_status_t status = agree(s, g, call);

    if (status != COLL_OK)
        return status;
    status = flat_run(g, call,
        coll_algorithm_choose(g->tuning, COLL_LEVEL_NET, &c, call->seq));
    if (status != COLL_OK)
        tell_node(s, status);
    return status;
}

/* All nodes are taken to have as many ranks as the largest. */
static enum coll_algorithm choose(
    struct nodes_state *s, struct coll_group *g, const struct coll_call *call)
{
    struct coll_case c = coll_case_of(g, call, g->size);
    struct spread plan;

    if (spread_plan(&plan, call, g->size))
        c.blocks = plan.is_from_root ? plan.bytes
                                     : plan.bytes * (size_t)s->nodes_count *
                                           (size_t)s->most_local;
    return coll_algorithm_choose(g->tuning, COLL_LEVEL_NODES, &c, call->seq);
}

static coll_status_t nodes_run(
    struct coll_group *g, const struct coll_call *call)
{
    struct nodes_state *s = g->state;
    coll_status_t status;

    if (s == NULL)
        return coll_backend_self.run(g, call);
    if (s->nodes_count == 1) {
        s->local->seq = call->seq;
        return coll_backend_shm.run(s->local, call);
    }
    switch (choose(s, g, call)) {
    case COLL_ALGORITHM_HIERARCHICAL:
        status = run_in_parts(s, g, call);
        break;
    case COLL_ALGORITHM_EAGER:
        status = run_eager(s, g, call);
        break;
    default:
        status = run_flat(s, g, call);
        break;
    }
    if (status != COLL_OK && s->net != NULL)
        tcp_net_fail(s->net, call->seq, status);
    return status;
}

void nodes_find_ways(struct p2p *p, const struct coll_group *g)
{
    const struct nodes_state *s = g->state;

    if (s->local != NULL) {
        p->shm = s->local->state;
        p->local = s->ranks;
        p->indices = s->indices;
    }
    p->nodes = s->nodes;
    p->places = s->places;
    p->net = s->net;
}

static void nodes_give_up(struct coll_group *g, coll_status_t status)
{
    struct nodes_state *s = g->state;

    if (s == NULL)
        return;
    tell_node(s, status);
    if (s->net != NULL)
        tcp_net_fail(s->net, g->seq, status);
}

static coll_status_t nodes_look(
    struct coll_group *g, const struct coll_call *call)
{
    struct nodes_state *s = g->state;
    coll_status_t status = COLL_OK;

    if (s != NULL && s->local != NULL)
        status = shm_check_others(s->local->state, call, false);
    if (status == COLL_OK && s != NULL && s->net != NULL)
        status = tcp_look(s->net, call);
    return status;
}

static void nodes_wake(struct coll_group *g)
{
    struct nodes_state *s = g->state;

    if (s == NULL)
        return;
    if (s->local != NULL) {
        coll_group_check(g);
        coll_group_fail(s->local, g->failure);
        atomic_store(&s->local->is_aborted, true);
        coll_backend_shm.wake(s->local);
    }
    if (s->net != NULL)
        eventfd_write(s->net->wake_fd, 1);
}

static void nodes_after_fork(struct coll_group *g)
{
    struct nodes_state *s = g->state;

    if (s == NULL)
        return;
    tcp_net_after_fork(s->net);
    p2p_after_fork(g->p2p);
}

const struct coll_backend coll_backend_nodes = {
    .name = "nodes",
    .max_ranks = TCP_MAX_RANKS,
    .create = nodes_create,
    .destroy = nodes_destroy,
    .run = nodes_run,
    .give_up = nodes_give_up,
    .look = nodes_look,
    .wake = nodes_wake,
    .after_fork = nodes_after_fork,
};
