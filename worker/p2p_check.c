/*
 * Whether what is waited for can still come: another rank may have given up,
 * died or left, or the launcher may tell of that. What a rank sent before its
 * end is taken in first.
 */
#include <stdio.h>
#include <string.h>

#include "coll_agent.h"
#include "coll_ranks.h"
#include "coll_signature.h"
#include "p2p_internal.h"
#include "rendezvous/base/clock.h"

/* A connection is accepted, says whose it is, and is read: each is a step. */
#define SETTLE_STEPS 8

/* The operation that needs a rank. */
static struct coll_call call_for(const struct p2p *p, int rank)
{
    const struct p2p_op *op = p->outstanding;

    while (op->after != NULL && op->peer != rank && op->source != rank)
        op = op->after;
    return p2p_call_of(op);
}

static enum p2p_end ask(struct p2p *p, struct p2p_peer *peer)
{
    enum p2p_end end = peer->ops->ask(peer);

    while (end != P2P_GOES_ON && p->failure == COLL_OK && p2p_move(p, peer))
        continue;
    return end;
}

static void check_peer(struct p2p *p, struct p2p_peer *peer)
{
    struct coll_call call;

    if (peer->pending == 0 || ask(p, peer) == P2P_GOES_ON ||
        peer->pending == 0 || p->failure != COLL_OK)
        return;
    call = call_for(p, peer->rank);
    p2p_fail_all(p, peer->ops->blame(peer, &call));
}

/* --- Time ----------------------------------------------------------------- */

bool p2p_is_message(const struct p2p_op *op)
{
    return op->call == NULL || op->call->kind == COLL_KIND_SEND ||
           op->call->kind == COLL_KIND_RECV;
}

uint64_t p2p_deadline_of(const struct p2p_op *op)
{
    return op->call != NULL && p2p_is_message(op) ? op->call->deadline_ns
                                                  : UINT64_MAX;
}

void p2p_mark_awaited(struct p2p *p, const struct p2p_op *op)
{
    int from = op->is_send ? op->peer : op->source;

    for (int r = 0; from == P2P_ANY_SOURCE && r < p->g->size; r++)
        p->set[r] |= r != p->g->rank;
    if (from != P2P_ANY_SOURCE)
        p->set[from] = true;
}

/* What it is, in words that are true on every rank. */
static const char *op_text(
    char *out, size_t cap, const struct p2p *p, const struct p2p_op *op)
{
    const struct coll_call call = p2p_call_of(op);
    char peer[32] = "any rank";

    if (!p2p_is_message(op))
        return coll_call_text(out, cap, &call);
    if (op->peer != P2P_ANY_SOURCE)
        snprintf(peer, sizeof(peer), "rank %d",
            coll_rank_name(p->g->names, op->peer));
    snprintf(out, cap, "%s %s on rank %d, tag %d",
        op->is_send ? "send to" : "recv from", peer,
        coll_rank_name(p->g->names, p->g->rank), op->tag);
    return out;
}

coll_status_t p2p_fail_late(
    struct p2p *p, const struct p2p_op *op, uint64_t since_ns)
{
    const struct coll_call *call = op->call;
    char what[96];
    char late[256];

    if (call != NULL && call->timeout_ms > 0)
        since_ns =
            call->deadline_ns - (uint64_t)call->timeout_ms * CLOCK_NS_PER_MS;
    coll_ranks_text(late, sizeof(late), p->set, p->g->size, p->g->names);
    return coll_fail(COLL_ERR_TIMEOUT,
        "timed out after %.1f s in %s waiting for %s",
        (double)(clock_now_ns() - since_ns) / (double)CLOCK_NS_PER_S,
        op_text(what, sizeof(what), p, op), late);
}

/* The time of a message is over, whether or not somebody waits for it. */
static void check_time(struct p2p *p)
{
    uint64_t now_ns = clock_now_ns();
    const struct p2p_op *first = NULL;

    if (now_ns < p->expires_ns)
        return;
    p->expires_ns = UINT64_MAX;
    memset(p->set, 0, (size_t)p->g->size * sizeof(*p->set));
    for (const struct p2p_op *op = p->outstanding; op != NULL; op = op->after) {
        uint64_t deadline_ns = p2p_deadline_of(op);

        if (deadline_ns <= now_ns)
            p2p_mark_awaited(p, op);
        if (deadline_ns < p->expires_ns) {
            p->expires_ns = deadline_ns;
            first = op;
        }
    }
    if (p->expires_ns <= now_ns)
        p2p_fail_all(p, p2p_fail_late(p, first, now_ns));
}

/* Another rank's time is over. It may have waited for this one, which waits
 * itself: that is where to look on. */
static coll_status_t add_own_wait(const struct p2p *p, coll_status_t status)
{
    const struct p2p_op *op = p->outstanding;
    char what[96];

    if (status != COLL_ERR_TIMEOUT || op == NULL || !p2p_is_message(op))
        return status;
    return coll_fail(status, "%.380s; rank %d was in %s", coll_last_error(),
        coll_rank_name(p->g->names, p->g->rank),
        op_text(what, sizeof(what), p, op));
}

/* --- Ends ----------------------------------------------------------------- */

/* A receive from any rank fails when one has died, for it may be the one; and
 * when all have left. */
static void check_any(struct p2p *p)
{
    const struct coll_call call = p2p_call_of(p->any.first);
    int left = 0;
    char name[64];

    for (int r = 0; r < p->g->size; r++) {
        struct p2p_peer *peer = r == p->g->rank ? NULL : p2p_peer_get(p, r);
        enum p2p_end end = peer == NULL ? P2P_GOES_ON : ask(p, peer);

        if (p->failure != COLL_OK || p->any.first == NULL)
            return;
        left += end == P2P_HAS_LEFT;
        if (end == P2P_HAS_DIED) {
            p2p_fail_all(p, peer->ops->blame(peer, &call));
            return;
        }
    }
    if (left == p->g->size - 1)
        p2p_fail_all(p, coll_fail(COLL_ERR_PEER,
                            "all ranks but %d have left, which is in %s",
                            coll_rank_name(p->g->names, p->g->rank),
                            coll_call_text(name, sizeof(name), &call)));
}

/* What the ranks of this node have failed with. */
static void look_at_node(struct p2p *p)
{
    p2p_shm_look(p);
    for (int i = 0; i < p->shm->size && p->failure == COLL_OK; i++)
        if (shm_has_failed(p->shm, i))
            p2p_fail_all(p, add_own_wait(p, shm_fail_with(p->shm, i, false)));
}

void p2p_check(struct p2p *p)
{
    char name[64];

    if (p->failure != COLL_OK || p->outstanding == NULL)
        return;
    if (coll_agent_is_told()) {
        const struct coll_call call = p2p_call_of(p->outstanding);

        p2p_fail_all(
            p, coll_agent_fail(coll_call_text(name, sizeof(name), &call)));
        return;
    }
    if (p->shm != NULL)
        look_at_node(p);
    if (p->failure == COLL_OK && p->places != NULL) {
        p2p_meet_neighbours(p);
        p2p_tcp_hear(p);
        /* After the news of an end, so that what came before is here. */
        for (int i = 0; i < SETTLE_STEPS && p2p_watch_open(p); i++)
            if (!p2p_watch_step(p, 0))
                break;
    }
    if (p->failure == COLL_OK && p->told != COLL_OK)
        p2p_fail_all(
            p, add_own_wait(p, coll_fail(p->told, "%s", p->told_text)));
    for (int i = 0; i < p->active_count && p->failure == COLL_OK; i++)
        check_peer(p, p->active[i]);
    if (p->failure == COLL_OK && p->any.first != NULL)
        check_any(p);
    if (p->failure == COLL_OK && p->outstanding != NULL)
        check_time(p);
}
