/*
 * When the time of an operation is over: on whose account that is. A rank that
 * is waited for may do no more than wait itself, and every rank shall name the
 * one at the end of the chain.
 *
 * So a rank whose time is over asks those it needs (P2P_ASK): about a step of a
 * collective whether they wait in that collective or an earlier one, about a
 * message whether they wait for one. Who does so says that (P2P_WAITS) at once,
 * and asks those it needs in turn, as if its own time was over. The one at the
 * end is silent, and its neighbours tell all others who that is.
 */
#include <stdio.h>
#include <string.h>

#include "coll_ranks.h"
#include "coll_signature.h"
#include "p2p_internal.h"
#include "rendezvous/base/clock.h"

/* For how long to wait for an answer; and for the sentence of another rank if
 * all have answered. If it does not come they wait for each other. */
#define ANSWER_NS (1500 * CLOCK_NS_PER_MS)
#define VERDICT_NS (2500 * CLOCK_NS_PER_MS)

/* More than this at a time does not count: who comes back after a longer break,
 * of itself or of the whole machine, has to look for answers first. */
#define LOOK_NS (250 * CLOCK_NS_PER_MS)

/* What other ranks ask about. */
struct questions {
    uint64_t seq; /* collectives up to this one, or 0 */
    bool of_messages;
};

bool p2p_is_message(const struct p2p_op *op)
{
    return op->call == NULL || op->call->kind == COLL_KIND_SEND ||
           op->call->kind == COLL_KIND_RECV;
}

uint64_t p2p_deadline_of(const struct p2p_op *op)
{
    return op->call != NULL ? op->call->deadline_ns : UINT64_MAX;
}

/* --- Sentences ------------------------------------------------------------ */

void p2p_mark_awaited(struct p2p *p, const struct p2p_op *op)
{
    int from = op->is_send ? op->peer : op->source;

    for (int r = 0; from == P2P_ANY_SOURCE && r < p->g->size; r++)
        p->set[r] |= r != p->g->rank;
    if (from != P2P_ANY_SOURCE)
        p->set[from] = true;
}

/* Whether it needs a rank that is marked. */
static bool needs_marked(const struct p2p *p, const struct p2p_op *op)
{
    int from = op->is_send ? op->peer : op->source;

    return from == P2P_ANY_SOURCE || p->set[from];
}

const char *p2p_op_text(
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

static coll_status_t fail_waiting(
    struct p2p *p, const struct p2p_op *op, const char *how, uint64_t after_ns)
{
    char what[96];
    char late[256];

    coll_ranks_text(late, sizeof(late), p->set, p->g->size, p->g->names);
    return coll_fail(COLL_ERR_TIMEOUT, "%s after %.1f s in %s waiting for %s",
        how, (double)after_ns / (double)CLOCK_NS_PER_S,
        p2p_op_text(what, sizeof(what), p, op), late);
}

coll_status_t p2p_fail_late(
    struct p2p *p, const struct p2p_op *op, uint64_t since_ns)
{
    return fail_waiting(p, op, "timed out", clock_now_ns() - since_ns);
}

/* --- Who waits for whom --------------------------------------------------- */

static struct questions find_questions(const struct p2p *p)
{
    struct questions q = {0, false};

    for (int i = 0; i < p->active_count; i++) {
        uint64_t question = p->active[i]->question;

        if (question == P2P_ASK_MESSAGE)
            q.of_messages = true;
        else if (question > q.seq)
            q.seq = question;
    }
    return q;
}

bool p2p_has_question(const struct p2p *p, uint64_t seq)
{
    return find_questions(p).seq >= seq;
}

/* Whether the ranks that it needs are to be asked. */
static bool is_over(
    const struct p2p_op *op, const struct questions *q, uint64_t now_ns)
{
    if (p2p_deadline_of(op) <= now_ns)
        return true;
    return p2p_is_message(op) ? q->of_messages && op->waiters > 0
                              : op->call->seq <= q->seq;
}

/* Whether to wait for it is an answer. */
static bool is_answer(
    const struct p2p_op *op, uint64_t question, uint64_t now_ns)
{
    if (p2p_is_message(op))
        return question == P2P_ASK_MESSAGE &&
               (op->waiters > 0 || p2p_deadline_of(op) <= now_ns);
    return question != P2P_ASK_MESSAGE && op->call->seq <= question;
}

static void say(
    struct p2p *p, struct p2p_peer *peer, const struct p2p_header *header)
{
    p2p_reply(p, peer, header);
    if (p->failure == COLL_OK)
        p2p_move(p, peer);
}

void p2p_answer(struct p2p *p, struct p2p_peer *peer)
{
    const struct p2p_op *op = p->outstanding;
    const struct p2p_header header = {
        .kind = P2P_WAITS, .id = peer->question_id};
    uint64_t now_ns;

    if (peer->question == P2P_ASK_NOTHING || peer->is_answered)
        return;
    now_ns = clock_now_ns();
    while (op != NULL && !is_answer(op, peer->question, now_ns))
        op = op->after;
    if (op == NULL)
        return; /* perhaps later */
    peer->is_answered = true;
    if (peer->wire != NULL)
        p2p_tcp_answer(peer, peer->question_id);
    else
        p2p_reply(p, peer, &header);
}

/* Of a marked rank, or of one that is not any more. */
static void put_question(
    struct p2p *p, struct p2p_peer *peer, uint64_t question)
{
    struct p2p_header header = {.kind = P2P_ASK, .count = P2P_ASK_NOTHING};

    if (p->set[peer->rank] == (peer->asked_ns != 0))
        return;
    peer->asked_ns = 0;
    peer->waits = false;
    if (p->set[peer->rank]) {
        peer->asked_ns = p->attended_ns;
        peer->asked_id = header.id = ++p->asked;
        header.count = question;
    }
    say(p, peer, &header);
}

/* Marks the ranks that are needed for messages, or for steps, whose time is
 * over, and asks them. */
static void ask_ranks(
    struct p2p *p, bool of_messages, const struct questions *q, uint64_t now_ns)
{
    uint64_t question = of_messages ? P2P_ASK_MESSAGE : P2P_ASK_NOTHING;

    for (const struct p2p_op *op = p->outstanding; op != NULL; op = op->after) {
        if (p2p_is_message(op) != of_messages || !is_over(op, q, now_ns))
            continue;
        p2p_mark_awaited(p, op);
        if (!of_messages && op->call->seq > question)
            question = op->call->seq;
    }
    for (int r = 0; r < p->g->size && p->failure == COLL_OK; r++) {
        struct p2p_peer *peer = p->set[r] ? p2p_peer_get(p, r) : NULL;

        if (peer != NULL)
            put_question(p, peer, question);
    }
}

static bool is_silent(const struct p2p_peer *peer)
{
    return !peer->waits && peer->asked_ns + ANSWER_NS <= peer->p2p->attended_ns;
}

/* There is something to do then. */
static void wake_at(struct p2p *p, uint64_t attended_ns, uint64_t now_ns)
{
    uint64_t at_ns = now_ns + attended_ns - p->attended_ns;

    if (at_ns < p->expires_ns)
        p->expires_ns = at_ns;
}

/* Whether a marked rank is to blame; then only those are marked. Else
 * p->expires_ns is no later than when that may be so. */
static bool find_silent(struct p2p *p, uint64_t now_ns)
{
    bool is_found = false;

    for (int i = 0; i < p->active_count; i++) {
        const struct p2p_peer *peer = p->active[i];

        if (!p->set[peer->rank] || peer->waits)
            continue;
        if (is_silent(peer))
            is_found = true;
        else
            wake_at(p, peer->asked_ns + ANSWER_NS, now_ns);
    }
    for (int i = 0; is_found && i < p->active_count; i++)
        p->set[p->active[i]->rank] &= is_silent(p->active[i]);
    return is_found;
}

/* Notes whether the time of an operation is over here, and when that of the
 * next one is. */
static void look_at_deadlines(struct p2p *p, uint64_t now_ns)
{
    bool is_late = false;

    p->expires_ns = UINT64_MAX;
    for (const struct p2p_op *op = p->outstanding; op != NULL; op = op->after) {
        uint64_t deadline_ns = p2p_deadline_of(op);

        if (deadline_ns <= now_ns)
            is_late = true;
        else if (deadline_ns < p->expires_ns)
            p->expires_ns = deadline_ns;
    }
    if (!is_late)
        p->late_ns = 0;
    else if (p->late_ns == 0)
        p->late_ns = p->attended_ns;
}

/* The marked ranks are to blame. */
static void fail(struct p2p *p, const struct questions *q, uint64_t now_ns)
{
    const struct p2p_op *op = p->outstanding;
    const char *how = "timed out";
    uint64_t after_ns = 0;

    while (op != NULL && (!is_over(op, q, now_ns) || !needs_marked(p, op)))
        op = op->after;
    if (op == NULL)
        return; /* what they were needed for has come meanwhile */
    if (op->call != NULL)
        after_ns = (uint64_t)op->call->timeout_ms * CLOCK_NS_PER_MS;
    if (p2p_is_message(op) && p2p_deadline_of(op) > now_ns) {
        how = "another rank's time was over";
        after_ns -= op->call == NULL ? 0 : op->call->deadline_ns - now_ns;
    }
    p2p_fail_all(p, fail_waiting(p, op, how, after_ns));
}

void p2p_check_time(struct p2p *p)
{
    uint64_t now_ns = clock_now_ns();
    const struct questions q = find_questions(p);
    bool is_quiet = q.seq == 0 && !q.of_messages;
    bool is_stuck;

    for (int i = 0; i < p->active_count; i++)
        is_quiet &= p->active[i]->asked_ns == 0;
    if (is_quiet && now_ns < p->expires_ns)
        return;
    p->attended_ns +=
        now_ns - p->looked_ns < LOOK_NS ? now_ns - p->looked_ns : LOOK_NS;
    p->looked_ns = now_ns;
    look_at_deadlines(p, now_ns);
    for (int i = 0; i < p->active_count && p->failure == COLL_OK; i++) {
        struct p2p_peer *peer = p->active[i];

        p2p_answer(p, peer);
        if (peer->replies_count > 0)
            p2p_move(p, peer);
    }
    memset(p->set, 0, (size_t)p->g->size * sizeof(*p->set));
    ask_ranks(p, false, &q, now_ns);
    ask_ranks(p, true, &q, now_ns);
    for (int i = 0; i < p->active_count && p->failure == COLL_OK; i++)
        put_question(p, p->active[i], P2P_ASK_NOTHING);
    if (p->failure != COLL_OK || p->outstanding == NULL)
        return;
    is_stuck = p->late_ns != 0 && p->late_ns + VERDICT_NS <= p->attended_ns;
    if (p->late_ns != 0 && !is_stuck)
        wake_at(p, p->late_ns + VERDICT_NS, now_ns);
    if (find_silent(p, now_ns) || is_stuck)
        fail(p, &q, now_ns);
}
