/*
 * Which message goes to which receive, and the protocol between two ranks. No
 * waiting, and no I/O but through the peer's channel.
 *
 * An operation is in one queue of its peer at a time, or is what is being
 * sent or received right now. All that are not done are in one list as well:
 * when the engine fails they end, and the queues are not looked at any more.
 */
#include "p2p_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll_ranks.h"
#include "coll_signature.h"

/* Of one rank, before the others get their turn. */
#define MOVES_MAX 64

/* --- Queues and ends ------------------------------------------------------ */

static void push(struct p2p_queue *q, struct p2p_op *op)
{
    if (q->first == NULL)
        q->end = &q->first;
    op->next = NULL;
    *q->end = op;
    q->end = &op->next;
}

static struct p2p_op *take(struct p2p_queue *q, struct p2p_op **at)
{
    struct p2p_op *op = *at;

    *at = op->next;
    if (op->next == NULL)
        q->end = at;
    return op;
}

void p2p_report(struct p2p *p, struct p2p_op *op)
{
    struct p2p_op **at = &p->to_report;

    if (op->done_cb == NULL)
        return;
    while (*at != NULL)
        at = &(*at)->next;
    op->next = NULL;
    *at = op;
}

static void finish(struct p2p *p, struct p2p_op *op)
{
    int rank = op->is_send ? op->peer : op->source;

    p->peers[rank]->pending--;
    *op->before = op->after;
    if (op->after != NULL)
        op->after->before = op->before;
    op->status = COLL_OK;
    op->is_done = true;
    p->has_finished = true;
    p2p_report(p, op);
}

void p2p_end_all(struct p2p *p, coll_status_t status)
{
    p->failure = status;
    snprintf(p->failure_text, sizeof(p->failure_text), "%s", coll_last_error());
    while (p->outstanding != NULL) {
        struct p2p_op *op = p->outstanding;

        p->outstanding = op->after; /* from now on it may be gone */
        op->status = status;
        op->is_done = true;
        p2p_report(p, op);
    }
    p->has_finished = true;
}

void p2p_fail_all(struct p2p *p, coll_status_t status)
{
    if (p->failure != COLL_OK)
        return;
    if (p->shm != NULL)
        shm_announce_failure(p->shm, status,
            SHM_HAD_GROUP | (tcp_is_for_all(status) ? SHM_AS_IT_IS : 0));
    if (p->places != NULL)
        p2p_tcp_tell(p, status);
    p2p_end_all(p, status);
}

struct coll_call p2p_call_of(const struct p2p_op *op)
{
    struct coll_call call = {
        .kind = op->is_send ? COLL_KIND_SEND : COLL_KIND_RECV,
        .tag = op->tag,
    };

    /* A message may be one of a batch, which has one call for all. */
    return p2p_is_message(op) ? call : *op->call;
}

static int name_of(const struct p2p *p, int rank)
{
    return coll_rank_name(p->g->names, rank);
}

static void fail_memory(struct p2p *p)
{
    p2p_fail_all(p, coll_fail(COLL_ERR_MEMORY, "out of memory for a message"));
}

static void fail_garbage(struct p2p *p, const struct p2p_peer *peer)
{
    p2p_fail_all(
        p, coll_fail(COLL_ERR_PEER, "rank %d has sent what is no message",
               name_of(p, peer->rank)));
}

/* Its end is judged where it can be named, and if somebody needs the rank. */
static void on_channel_error(struct p2p *p, struct p2p_peer *peer, int rc)
{
    if (rc == -EPIPE || rc == -ECONNRESET)
        peer->has_ended = true;
    else if (rc == -EPROTO)
        fail_garbage(p, peer);
    else
        p2p_fail_all(
            p, coll_fail(rc == -ENOMEM ? COLL_ERR_MEMORY : COLL_ERR_SYSTEM,
                   "messages to and from rank %d: %s", name_of(p, peer->rank),
                   strerror(-rc)));
}

/* True on every rank, because every rank gets this sentence. */
static void fail_mismatch(struct p2p *p, const struct p2p_peer *peer,
    const struct p2p_op *op, const struct p2p_header *header)
{
    int from = name_of(p, peer->rank);
    int to = name_of(p, p->g->rank);
    char what[64];

    if (op->call != NULL)
        coll_call_text(what, sizeof(what), op->call);
    else
        snprintf(what, sizeof(what), "recv from rank %d on rank %d, tag %d",
            from, to, op->tag);
    p2p_fail_all(p,
        coll_fail(COLL_ERR_MISMATCH,
            "%s: rank %d sent %llu %s, rank %d asked for %llu %s", what, from,
            (unsigned long long)header->count, coll_dtype_name(header->dtype),
            to, (unsigned long long)op->count, coll_dtype_name(op->dtype)));
}

/* --- Peers ---------------------------------------------------------------- */

struct p2p_peer *p2p_peer_get(struct p2p *p, int rank)
{
    struct p2p_peer *peer = p->peers[rank];

    if (peer != NULL)
        return peer;
    peer = calloc(1, sizeof(*peer));
    if (peer == NULL) {
        fail_memory(p);
        return NULL;
    }
    peer->p2p = p;
    peer->rank = rank;
    peer->kept_end = &peer->kept;
    if (p2p_is_here(p, rank)) {
        p2p_shm_open(peer);
    } else if (p2p_tcp_open(peer) < 0) {
        free(peer);
        fail_memory(p);
        return NULL;
    }
    p->peers[rank] = peer;
    p->active[p->active_count++] = peer;
    return peer;
}

void p2p_peer_free(struct p2p_peer *peer)
{
    if (peer == NULL)
        return;
    peer->ops->close(peer);
    if (peer->in.unexpected != NULL && peer->in.unexpected->op != NULL)
        free(peer->in.unexpected); /* it is in no list any more */
    while (peer->kept != NULL) {
        struct p2p_unexpected *u = peer->kept;

        peer->kept = u->next;
        free(u);
    }
    free(peer->replies);
    free(peer);
}

/* --- Out ------------------------------------------------------------------ */

void p2p_reply(
    struct p2p *p, struct p2p_peer *peer, const struct p2p_header *header)
{
    struct p2p_header *to;

    if (peer->replies_count == peer->replies_room) {
        size_t room = peer->replies_room * 2 + 8;
        void *more = realloc(peer->replies, room * sizeof(*peer->replies));

        if (more == NULL) {
            fail_memory(p);
            return;
        }
        peer->replies = more;
        peer->replies_room = room;
    }
    to = &peer->replies[peer->replies_count++];
    *to = *header;
    to->magic = P2P_MAGIC;
}

static void reply(struct p2p *p, struct p2p_peer *peer,
    enum p2p_header_kind kind, uint32_t id)
{
    p2p_reply(p, peer, &(struct p2p_header){.kind = (uint8_t)kind, .id = id});
}

/* Small messages go whole, of others the header. */
static void announce(struct p2p_peer *peer, struct p2p_op *op)
{
    struct p2p_out *out = &peer->out;
    uint64_t at = (uintptr_t)op->buf;
    bool is_mapped = peer->ops->find != NULL &&
                     peer->ops->find(peer, op->buf, op->bytes, &at);

    out->header = (struct p2p_header){
        .magic = P2P_MAGIC,
        .kind =
            is_mapped || op->bytes > peer->ops->eager_max ? P2P_RTS : P2P_EAGER,
        .is_step = op->is_step,
        .tag = op->tag,
        .dtype = (uint16_t)op->dtype,
        .is_mapped = is_mapped,
        .count = op->count,
    };
    out->op = op;
    out->at = op->buf;
    if (out->header.kind == P2P_EAGER) {
        out->left = op->bytes;
    } else {
        op->id = ++peer->last_id;
        out->header.id = op->id;
        out->header.at = at;
        out->left = 0;
    }
    out->header_left = sizeof(out->header);
}

static void send_part(struct p2p_peer *peer, struct p2p_op *op)
{
    struct p2p_out *out = &peer->out;
    size_t n = op->bytes - op->moved;

    if (n > peer->ops->chunk)
        n = peer->ops->chunk;
    out->header = (struct p2p_header){
        .magic = P2P_MAGIC,
        .kind = P2P_DATA,
        .id = op->id,
        .count = n,
    };
    out->op = op;
    out->at = (const char *)op->buf + op->moved;
    out->left = n;
    out->header_left = sizeof(out->header);
    op->moved += n;
}

/* What goes out next: answers, for which the other side waits; then new
 * messages, then parts of large ones. Whether there is anything. */
static bool choose_next(struct p2p_peer *peer)
{
    struct p2p_out *out = &peer->out;

    if (peer->replies_count > 0) {
        out->header = peer->replies[0];
        out->header_left = sizeof(out->header);
        out->op = NULL;
        memmove(peer->replies, peer->replies + 1,
            --peer->replies_count * sizeof(*peer->replies));
    } else if (peer->sends.first != NULL) {
        announce(peer, take(&peer->sends, &peer->sends.first));
    } else if (peer->streaming.first != NULL) {
        send_part(peer, peer->streaming.first);
    } else {
        return false;
    }
    return true;
}

static void on_sent(struct p2p *p, struct p2p_peer *peer)
{
    struct p2p_op *op = peer->out.op;

    switch ((enum p2p_header_kind)peer->out.header.kind) {
    case P2P_EAGER:
        finish(p, op);
        return;
    case P2P_RTS:
        push(&peer->announced, op);
        return;
    case P2P_DATA:
        if (op->moved == op->bytes)
            finish(p, take(&peer->streaming, &peer->streaming.first));
        return;
    case P2P_CTS:
    case P2P_FIN:
    case P2P_LEFT:
    case P2P_ASK:
    case P2P_WAITS:
        return;
    }
}

/* Whether the channel has taken all of it. */
static bool push_out(struct p2p *p, struct p2p_peer *peer, bool *has_moved)
{
    struct p2p_out *out = &peer->out;
    const char *header = (const char *)&out->header;
    struct iovec iov[2];
    int count = 0;
    ssize_t n;
    size_t of_header;

    if (out->header_left > 0)
        iov[count++] = (struct iovec){
            (void *)(uintptr_t)(header + sizeof(out->header) -
                                out->header_left),
            out->header_left,
        };
    if (out->left > 0)
        iov[count++] = (struct iovec){(void *)(uintptr_t)out->at, out->left};
    n = peer->ops->send(peer, iov, count);
    if (n < 0) {
        on_channel_error(p, peer, (int)n);
        return false;
    }
    *has_moved |= n > 0;
    of_header = (size_t)n < out->header_left ? (size_t)n : out->header_left;
    out->header_left -= of_header;
    if (out->left > 0) {
        out->at += (size_t)n - of_header;
        out->left -= (size_t)n - of_header;
    }
    return out->header_left == 0 && out->left == 0;
}

static bool move_out(struct p2p *p, struct p2p_peer *peer)
{
    struct p2p_out *out = &peer->out;
    bool has_moved = false;

    while (p->failure == COLL_OK && !peer->has_ended &&
           (out->header_left > 0 || out->left > 0 || choose_next(peer))) {
        if (!push_out(p, peer, &has_moved))
            break;
        on_sent(p, peer);
    }
    return has_moved;
}

/* --- Matching ------------------------------------------------------------- */

static bool fits(const struct p2p_op *op, const struct p2p_header *header)
{
    return op->tag == header->tag && op->is_step == (header->is_step != 0);
}

static struct p2p_op **find(
    struct p2p_queue *q, const struct p2p_header *header)
{
    struct p2p_op **at = &q->first;

    while (*at != NULL && !fits(*at, header))
        at = &(*at)->next;
    return at;
}

/* The receive that was posted first, of this rank or of any. */
static struct p2p_op *match(struct p2p *p, struct p2p_peer *peer)
{
    const struct p2p_header *header = &peer->in.header;
    struct p2p_op **one = find(&peer->recvs, header);
    struct p2p_op **any = find(&p->any, header);
    struct p2p_op *op;

    if (*any == NULL || (*one != NULL && (*one)->number < (*any)->number))
        return *one == NULL ? NULL : take(&peer->recvs, one);
    op = take(&p->any, any);
    op->source = peer->rank;
    peer->pending++;
    return op;
}

/* A receive meets its message: whether they are alike. */
static bool agree(struct p2p *p, const struct p2p_peer *peer,
    const struct p2p_op *op, const struct p2p_header *header)
{
    if (header->dtype == (uint32_t)op->dtype && header->count == op->count)
        return true;
    fail_mismatch(p, peer, op, header);
    return false;
}

/* The sender shall send it. */
static void ask_for(struct p2p *p, struct p2p_peer *peer, struct p2p_op *op)
{
    op->moved = 0;
    push(&peer->taking, op);
    reply(p, peer, P2P_CTS, op->id);
}

static void fetch(struct p2p *p, struct p2p_peer *peer, struct p2p_op *op,
    const struct p2p_header *header)
{
    op->id = header->id;
    op->from = header->at;
    op->is_mapped = header->is_mapped != 0;
    op->moved = 0;
    if (op->is_mapped ? peer->ops->copy != NULL
                      : peer->can_pull && op->bytes >= peer->ops->pull_min)
        push(&peer->pulling, op);
    else
        ask_for(p, peer, op);
}

/* --- Messages that nobody has asked for ----------------------------------- */

static void keep(struct p2p *p, struct p2p_peer *peer)
{
    struct p2p_in *in = &peer->in;
    size_t bytes = in->header.kind == P2P_EAGER ? in->left : 0;
    struct p2p_unexpected *u;

    if (p->kept_bytes > P2P_UNEXPECTED_MAX) {
        p2p_fail_all(p,
            coll_fail(COLL_ERR_MEMORY,
                "rank %d holds %zu MiB of messages that no receive asks for, "
                "the last from rank %d with tag %d",
                name_of(p, p->g->rank), p->kept_bytes >> 20,
                name_of(p, peer->rank), (int)in->header.tag));
        return;
    }
    u = malloc(sizeof(*u) + bytes);
    if (u == NULL) {
        fail_memory(p);
        return;
    }
    *u = (struct p2p_unexpected){
        .header = in->header,
        .arrival = ++p->arrivals,
        .bytes = bytes,
        .is_whole = bytes == 0,
    };
    p->kept_bytes += sizeof(*u) + bytes;
    *peer->kept_end = u;
    peer->kept_end = &u->next;
    in->unexpected = u;
    in->at = u->data;
}

static void forget(struct p2p *p, struct p2p_unexpected *u)
{
    p->kept_bytes -= sizeof(*u) + u->bytes;
    free(u);
}

static void hand_over(
    struct p2p *p, struct p2p_op *op, struct p2p_unexpected *u)
{
    if (u->bytes > 0)
        memcpy(op->buf, u->data, u->bytes);
    forget(p, u);
    finish(p, op);
}

static struct p2p_unexpected **find_kept(
    struct p2p_peer *peer, const struct p2p_op *op)
{
    struct p2p_unexpected **at = &peer->kept;

    while (*at != NULL && !fits(op, &(*at)->header))
        at = &(*at)->next;
    return at;
}

/* Whether the message of a new receive was here. */
static bool take_kept(struct p2p *p, struct p2p_peer *peer, struct p2p_op *op,
    struct p2p_unexpected **at)
{
    struct p2p_unexpected *u = *at;

    if (u == NULL)
        return false;
    *at = u->next;
    if (u->next == NULL)
        peer->kept_end = at;
    if (op->peer == P2P_ANY_SOURCE)
        peer->pending++;
    op->source = peer->rank;
    if (!agree(p, peer, op, &u->header)) {
        /* If the rest of it were to come: it will not, all has failed. */
        if (peer->in.unexpected == u)
            peer->in.unexpected = NULL;
        free(u);
    } else if (u->header.kind == P2P_RTS) {
        fetch(p, peer, op, &u->header);
        forget(p, u);
    } else if (u->is_whole) {
        hand_over(p, op, u);
    } else {
        u->op = op;
    }
    return true;
}

static bool take_kept_of_any(struct p2p *p, struct p2p_op *op)
{
    struct p2p_unexpected **best = NULL;
    struct p2p_peer *from = NULL;

    for (int i = 0; i < p->active_count; i++) {
        struct p2p_unexpected **at = find_kept(p->active[i], op);

        if (*at != NULL &&
            (best == NULL || (*at)->arrival < (*best)->arrival)) {
            best = at;
            from = p->active[i];
        }
    }
    return best != NULL && take_kept(p, from, op, best);
}

/* --- In ------------------------------------------------------------------- */

static void on_whole(struct p2p *p, struct p2p_peer *peer)
{
    struct p2p_in *in = &peer->in;
    struct p2p_op *op = in->op;
    struct p2p_unexpected *u = in->unexpected;

    in->have = 0;
    in->op = NULL;
    in->unexpected = NULL;
    if (in->header.kind == P2P_DATA) {
        op->moved += in->header.count;
        if (op->moved == op->bytes)
            finish(p, take(&peer->taking, &peer->taking.first));
    } else if (op != NULL) {
        finish(p, op);
    } else if (u->op != NULL) {
        hand_over(p, u->op, u);
    } else {
        u->is_whole = true;
    }
}

static void on_message(struct p2p *p, struct p2p_peer *peer)
{
    struct p2p_in *in = &peer->in;
    const struct p2p_header *header = &in->header;
    size_t size = coll_dtype_size((coll_dtype_t)header->dtype);
    struct p2p_op *op;

    if (size == 0 || header->count > PTRDIFF_MAX / size ||
        (header->kind == P2P_EAGER &&
            header->count * size > peer->ops->eager_max)) {
        fail_garbage(p, peer);
        return;
    }
    if (header->kind == P2P_EAGER)
        in->left = header->count * size;
    op = match(p, peer);
    if (op == NULL) {
        keep(p, peer);
    } else if (!agree(p, peer, op, header)) {
        return;
    } else if (header->kind == P2P_RTS) {
        fetch(p, peer, op, header);
    } else {
        in->op = op;
        in->at = op->buf;
    }
    if (header->kind == P2P_RTS) {
        in->have = 0;
        in->unexpected = NULL;
    }
}

/* The other side has our number for a message that we have announced. */
static void on_answer(struct p2p *p, struct p2p_peer *peer)
{
    struct p2p_in *in = &peer->in;
    struct p2p_op **at = &peer->announced.first;
    struct p2p_op *op;

    while (*at != NULL && (*at)->id != in->header.id)
        at = &(*at)->next;
    if (*at == NULL) {
        fail_garbage(p, peer);
        return;
    }
    in->have = 0;
    op = take(&peer->announced, at);
    if (in->header.kind == P2P_FIN) {
        finish(p, op);
    } else {
        op->moved = 0;
        push(&peer->streaming, op);
    }
}

/* Parts come in the order in which they were asked for. */
static void on_data(struct p2p *p, struct p2p_peer *peer)
{
    struct p2p_in *in = &peer->in;
    struct p2p_op *op = peer->taking.first;

    if (op == NULL || op->id != in->header.id || in->header.count == 0 ||
        in->header.count > op->bytes - op->moved) {
        fail_garbage(p, peer);
        return;
    }
    in->op = op;
    in->at = (char *)op->buf + op->moved;
    in->left = in->header.count;
}

static void on_header(struct p2p *p, struct p2p_peer *peer)
{
    if (peer->in.header.magic != P2P_MAGIC) {
        fail_garbage(p, peer);
        return;
    }
    switch (peer->in.header.kind) {
    case P2P_EAGER:
    case P2P_RTS:
        on_message(p, peer);
        return;
    case P2P_CTS:
    case P2P_FIN:
        on_answer(p, peer);
        return;
    case P2P_DATA:
        on_data(p, peer);
        return;
    case P2P_LEFT:
        if (peer->wire == NULL)
            break;
        peer->in.have = 0;
        peer->wire->has_left = true;
        peer->wire->left_after = peer->in.header.count;
        return;
    case P2P_ASK:
        peer->in.have = 0;
        peer->question = peer->in.header.count;
        peer->question_id = peer->in.header.id;
        peer->is_answered = false;
        p2p_answer(p, peer);
        return;
    case P2P_WAITS:
        peer->in.have = 0;
        peer->waits |= peer->in.header.id == peer->asked_id;
        return;
    }
    fail_garbage(p, peer);
}

/* Bytes of what comes next: 0 if there are none now. */
static size_t receive(
    struct p2p *p, struct p2p_peer *peer, char *at, size_t len)
{
    ssize_t n = peer->ops->recv(peer, at, len);

    if (n >= 0)
        return (size_t)n;
    on_channel_error(p, peer, (int)n);
    return 0;
}

static bool move_in(struct p2p *p, struct p2p_peer *peer)
{
    struct p2p_in *in = &peer->in;
    int moves = 0;

    while (moves < MOVES_MAX && p->failure == COLL_OK) {
        size_t n;

        if (in->have < sizeof(in->header)) {
            n = receive(p, peer, (char *)&in->header + in->have,
                sizeof(in->header) - in->have);
            if (n == 0)
                break;
            moves++;
            in->have += n;
            if (in->have < sizeof(in->header))
                continue;
            on_header(p, peer);
            /* Of messages without data nothing more comes. */
            if (p->failure != COLL_OK || in->have == 0)
                continue;
        } else {
            n = receive(p, peer, in->at, in->left);
            if (n == 0)
                break;
            moves++;
            in->at += n;
            in->left -= n;
        }
        if (in->left == 0)
            on_whole(p, peer);
    }
    return moves > 0;
}

/* From the sender's memory: bytes, or a negative errno. */
static ssize_t take_part(struct p2p_peer *peer, struct p2p_op *op)
{
    char *to = (char *)op->buf + op->moved;
    uint64_t from = op->from + op->moved;
    size_t n = op->bytes - op->moved;

    if (n > peer->ops->chunk)
        n = peer->ops->chunk;
    if (op->is_mapped)
        return peer->ops->copy(peer, to, from, n);
    return peer->can_pull ? peer->ops->pull(peer, to, from, n) : -EPERM;
}

/* Takes one part of a large message, so that small ones are not held up. */
static bool move_pull(struct p2p *p, struct p2p_peer *peer)
{
    struct p2p_op *op = peer->pulling.first;
    ssize_t n;

    if (op == NULL || p->failure != COLL_OK)
        return false;
    n = take_part(peer, op);
    if (n < 0) {
        /* Its end is noticed elsewhere. Else its memory is not for us, or
         * not for this call: it can send it. */
        if (n == -ESRCH)
            return false;
        if (!op->is_mapped)
            peer->can_pull = false;
        ask_for(p, peer, take(&peer->pulling, &peer->pulling.first));
        return true;
    }
    op->moved += (size_t)n;
    if (op->moved == op->bytes) {
        take(&peer->pulling, &peer->pulling.first);
        reply(p, peer, P2P_FIN, op->id);
        finish(p, op);
    }
    return true;
}

bool p2p_move(struct p2p *p, struct p2p_peer *peer)
{
    bool has_moved = move_in(p, peer);

    has_moved |= move_pull(p, peer);
    has_moved |= move_out(p, peer);
    return has_moved;
}

/* --- New operations ------------------------------------------------------- */

static void start_send(struct p2p *p, struct p2p_op *op)
{
    struct p2p_peer *peer = p2p_peer_get(p, op->peer);

    if (peer == NULL)
        return;
    peer->pending++;
    push(&peer->sends, op);
    move_out(p, peer);
}

static void start_recv(struct p2p *p, struct p2p_op *op)
{
    struct p2p_peer *peer;

    op->number = ++p->posted;
    op->source = op->peer;
    if (op->peer == P2P_ANY_SOURCE) {
        if (!take_kept_of_any(p, op))
            push(&p->any, op);
        return;
    }
    peer = p2p_peer_get(p, op->peer);
    if (peer == NULL)
        return;
    peer->pending++;
    if (!take_kept(p, peer, op, find_kept(peer, op)))
        push(&peer->recvs, op);
}

void p2p_start(struct p2p *p, struct p2p_op *op)
{
    op->is_done = false;
    op->bytes = op->count * coll_dtype_size(op->dtype);
    op->moved = 0;
    op->waiters = 0;
    op->before = &p->outstanding;
    op->after = p->outstanding;
    if (op->after != NULL)
        op->after->before = &op->after;
    p->outstanding = op;
    if (p2p_deadline_of(op) < p->expires_ns)
        p->expires_ns = p2p_deadline_of(op);
    if (op->is_send)
        start_send(p, op);
    else
        start_recv(p, op);
}
