/*
 * Messages between ranks from arbitrary bytes: a script of what this rank asks
 * for and sends, of what the channels from two others bring, and of when they
 * have room.
 *
 * Whatever it is: nothing crashes, no byte is written beside a buffer or to one
 * whose operation is done, and what the engine has counted is what there is.
 */
#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "worker/p2p_internal.h"

enum { SIZE = 3, OPS_MAX = 64, COUNT_MAX = 1 << 17, STREAM_MAX = 1 << 18 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What another rank has sent and is not taken in yet, and what it would take.
 */
struct side {
    char *bytes; /* [STREAM_MAX] */
    size_t at, end;
    size_t room;
    bool refuses_pull;
    bool has_ended;
};

struct script {
    const uint8_t *at;
    size_t left;
    struct p2p *p;
    struct p2p_op *ops[OPS_MAX];
    int ops_count;
};

static struct side sides_of_run[SIZE];

static uint8_t next(struct script *s)
{
    if (s->left == 0)
        return 0;
    s->left--;
    return *s->at++;
}

static uint32_t next_number(struct script *s, int bytes)
{
    uint32_t n = 0;

    while (bytes-- > 0)
        n = n << 8 | next(s);
    return n;
}

/* --- The channel ---------------------------------------------------------- */

static ssize_t side_send(
    struct p2p_peer *peer, const struct iovec *iov, int count)
{
    struct side *side = &sides_of_run[peer->rank];
    static volatile char sink;
    size_t taken = 0;

    if (side->has_ended)
        return -EPIPE;
    for (int i = 0; i < count; i++)
        for (size_t k = 0; k < iov[i].iov_len && side->room > 0; k++) {
            sink = ((const char *)iov[i].iov_base)[k];
            side->room--;
            taken++;
        }
    (void)sink;
    return (ssize_t)taken;
}

static ssize_t side_recv(struct p2p_peer *peer, void *buf, size_t len)
{
    struct side *side = &sides_of_run[peer->rank];
    size_t there = side->end - side->at;

    if (there == 0)
        return side->has_ended ? -ECONNRESET : 0;
    if (len > there)
        len = there;
    memcpy(buf, side->bytes + side->at, len);
    side->at += len;
    return (ssize_t)len;
}

static ssize_t side_pull(
    struct p2p_peer *peer, void *buf, uint64_t from, size_t len)
{
    if (sides_of_run[peer->rank].refuses_pull)
        return from % 2 == 0 ? -EPERM : -ESRCH;
    if (len > 5000)
        len = 5000;
    memset(buf, 'p', len);
    return (ssize_t)len;
}

static void side_close(struct p2p_peer *peer)
{
    free(peer->wire); /* none of the real channel's is used */
}

static enum p2p_end side_ask(struct p2p_peer *peer)
{
    return sides_of_run[peer->rank].has_ended ? P2P_HAS_DIED : P2P_GOES_ON;
}

static coll_status_t side_blame(
    const struct p2p_peer *peer, const struct coll_call *call)
{
    (void)call;
    return coll_fail(COLL_ERR_PEER, "rank %d has ended", peer->rank);
}

static const struct p2p_channel_ops side_ops = {
    .eager_max = 1024,
    .chunk = 3000,
    .pull_min = 8192,
    .send = side_send,
    .recv = side_recv,
    .pull = side_pull,
    .close = side_close,
    .ask = side_ask,
    .blame = side_blame,
};

/* --- The engine ----------------------------------------------------------- */

static void check_peer(
    const struct p2p *p, const struct p2p_peer *peer, size_t *kept, int pending)
{
    bool is_listed = false;

    assert(peer->pending == pending);
    for (const struct p2p_unexpected *u = peer->kept; u != NULL; u = u->next) {
        *kept += sizeof(*u) + u->bytes;
        is_listed |= u == peer->in.unexpected;
        assert(u->op == NULL);
    }
    /* One whose receive has come, but not yet all of it, is in no list. */
    if (peer->in.unexpected != NULL && !is_listed) {
        assert(peer->in.unexpected->op != NULL);
        *kept += sizeof(*peer->in.unexpected) + peer->in.unexpected->bytes;
    }
    assert(peer->in.have <= sizeof(peer->in.header));
    assert(p->failure == COLL_OK);
}

/* Ends what is done: from now on nobody may look at it. */
static void check(struct script *s)
{
    struct p2p *p = s->p;
    int pending[SIZE] = {0};
    int outstanding = 0;
    size_t kept = 0;

    for (int i = 0; i < s->ops_count;) {
        struct p2p_op *op = s->ops[i];

        if (!op->is_done) {
            int rank = op->is_send ? op->peer : op->source;

            outstanding++;
            if (rank >= 0)
                pending[rank]++;
            i++;
            continue;
        }
        assert(op->status == p->failure || op->status == COLL_OK);
        assert(op->status != COLL_OK || op->is_send || op->source >= 0);
        free(op->buf);
        free(op);
        s->ops[i] = s->ops[--s->ops_count];
    }
    for (const struct p2p_op *op = p->outstanding; op != NULL; op = op->after)
        outstanding--;
    assert(outstanding == 0);
    for (int i = 0; i < p->active_count && p->failure == COLL_OK; i++)
        check_peer(p, p->active[i], &kept, pending[p->active[i]->rank]);
    assert(p->failure != COLL_OK || kept == p->kept_bytes);
    assert(p->failure == COLL_OK || p->failure_text[0] != '\0');
}

static void start(struct script *s, uint8_t what)
{
    struct p2p_op *op = calloc(1, sizeof(*op));
    size_t count;

    assert(op != NULL && s->ops_count < OPS_MAX);
    op->is_send = (what & 8) != 0;
    op->is_step = (what & 16) != 0;
    op->peer = 1 + (what & 1);
    if ((what & 2) != 0 && !op->is_send)
        op->peer = P2P_ANY_SOURCE;
    op->tag = (int8_t)next(s);
    op->dtype = (coll_dtype_t)(next(s) % 10);
    count = next_number(s, 3) % COUNT_MAX;
    op->count = count;
    /* Without a byte more than it has to have. */
    op->buf = malloc(count * coll_dtype_size(op->dtype));
    assert(op->buf != NULL);
    memset(op->buf, 's', count * coll_dtype_size(op->dtype));
    s->ops[s->ops_count++] = op;
    p2p_start(s->p, op);
}

static void bring(struct side *side, const void *bytes, size_t len)
{
    if (len > STREAM_MAX - side->end)
        len = STREAM_MAX - side->end;
    if (bytes != NULL)
        memcpy(side->bytes + side->end, bytes, len);
    else
        memset(side->bytes + side->end, 'd', len);
    side->end += len;
}

static void bring_header(struct script *s, struct side *side)
{
    struct p2p_header header = {.magic = P2P_MAGIC, .kind = next(s)};

    header.is_step = header.kind >> 7;
    header.kind &= 0x7f;
    header.tag = (int8_t)next(s);
    header.dtype = next(s);
    header.id = next(s);
    header.count = next_number(s, 3);
    if (header.count >> 20 == 0xf) /* no such message can be */
        header.count <<= 44;
    header.at = header.id;
    bring(side, &header, sizeof(header));
}

static void step(struct script *s)
{
    uint8_t what = next(s);
    int rank = 1 + (what & 1);
    struct side *side = &sides_of_run[rank];
    size_t len;

    switch (what >> 5) {
    case 0:
    case 1:
        if (s->ops_count < OPS_MAX)
            start(s, what);
        break;
    case 2:
        bring_header(s, side);
        break;
    case 3:
        bring(side, NULL, next_number(s, 2));
        break;
    case 4:
        len = what >> 1 & 15;
        if (len > s->left)
            len = s->left;
        bring(side, s->at, len);
        s->at += len;
        s->left -= len;
        break;
    case 5:
        side->room += next_number(s, 2);
        break;
    case 6:
        side->refuses_pull = (what & 2) != 0;
        side->has_ended |= (what & 4) != 0;
        break;
    case 7:
        p2p_check(s->p);
        break;
    }
    if (s->p->failure == COLL_OK)
        p2p_move(s->p, s->p->peers[rank]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct coll_group g = {.size = SIZE, .backend = &coll_backend_self};
    struct script s = {.at = data, .left = size};

    if (p2p_create(&s.p, &g) != COLL_OK)
        return -1;
    memset(sides_of_run, 0, sizeof(sides_of_run));
    for (int r = 1; r < SIZE; r++) {
        struct p2p_peer *peer = p2p_peer_get(s.p, r);

        sides_of_run[r].bytes = malloc(STREAM_MAX);
        assert(peer != NULL && sides_of_run[r].bytes != NULL);
        peer->ops = &side_ops;
        peer->can_pull = true;
    }
    while (s.left > 0 && s.p->failure == COLL_OK) {
        step(&s);
        check(&s);
    }
    /* What is not done fails now. */
    p2p_destroy(s.p);
    while (s.ops_count > 0) {
        struct p2p_op *op = s.ops[--s.ops_count];

        assert(op->is_done && op->status == COLL_ERR_STATE);
        free(op->buf);
        free(op);
    }
    for (int r = 1; r < SIZE; r++)
        free(sides_of_run[r].bytes);
    return 0;
}
