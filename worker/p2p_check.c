/*
 * Whether what is waited for can still come: another rank may have given up,
 * died or left, or the launcher may tell of that. What a rank sent before its
 * end is taken in first.
 */
#include <errno.h>
#include <stdio.h>

#include "coll_agent.h"
#include "coll_ranks.h"
#include "coll_signature.h"
#include "p2p_internal.h"

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

/* Where no new connection gets through there may be others that do: when the
 * time is over that rank is one that does not answer. */
static bool is_just_silent(const struct p2p_peer *peer)
{
    return peer->asked_ns != 0 && peer->wire != NULL && !peer->wire->has_left &&
           peer->wire->error != 0 && peer->wire->error != ECONNREFUSED;
}

static void check_peer(struct p2p *p, struct p2p_peer *peer)
{
    struct coll_call call;

    if (peer->pending == 0 || ask(p, peer) == P2P_GOES_ON ||
        peer->pending == 0 || p->failure != COLL_OK || is_just_silent(peer))
        return;
    call = call_for(p, peer->rank);
    p2p_fail_all(p, peer->ops->blame(peer, &call));
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
        p2p_op_text(what, sizeof(what), p, op));
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

void p2p_settle(struct p2p *p)
{
    for (int i = 0; i < SETTLE_STEPS && p2p_watch_open(p); i++)
        if (!p2p_watch_step(p, 0))
            break;
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
        p2p_settle(p);
    }
    if (p->failure == COLL_OK && p->told != COLL_OK)
        p2p_fail_all(
            p, add_own_wait(p, coll_fail(p->told, "%s", p->told_text)));
    for (int i = 0; i < p->active_count && p->failure == COLL_OK; i++)
        check_peer(p, p->active[i]);
    if (p->failure == COLL_OK && p->any.first != NULL)
        check_any(p);
    if (p->failure == COLL_OK && p->outstanding != NULL)
        p2p_check_time(p);
}
