/* The operations of a script, and whether the engine keeps account of them. */
#include "tests/fuzz/message_ops.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT_MAX = 1 << 17 };

uint8_t script_next(struct script *s)
{
    if (s->left == 0)
        return 0;
    s->left--;
    return *s->at++;
}

uint32_t script_number(struct script *s, int bytes)
{
    uint32_t n = 0;

    while (bytes-- > 0)
        n = n << 8 | script_next(s);
    return n;
}

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

void script_check(struct script *s)
{
    struct p2p *p = s->p;
    int pending[MESSAGE_RANKS] = {0};
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
}

void script_start(struct script *s, uint8_t what)
{
    struct p2p_op *op;
    size_t count;

    if (s->ops_count == MESSAGE_OPS_MAX)
        return;
    op = calloc(1, sizeof(*op));
    assert(op != NULL);
    op->is_send = (what & 8) != 0;
    op->is_step = (what & 16) != 0;
    op->peer = 1 + (what & 1);
    if ((what & 2) != 0 && !op->is_send)
        op->peer = P2P_ANY_SOURCE;
    op->tag = (int8_t)script_next(s);
    op->dtype = (coll_dtype_t)(script_next(s) % 10);
    count = script_number(s, 3) % COUNT_MAX;
    op->count = count;
    /* Without a byte more than it has to have. */
    op->buf = malloc(count * coll_dtype_size(op->dtype));
    assert(op->buf != NULL);
    memset(op->buf, 's', count * coll_dtype_size(op->dtype));
    s->ops[s->ops_count++] = op;
    p2p_start(s->p, op);
}

void script_end(struct script *s)
{
    p2p_destroy(s->p);
    while (s->ops_count > 0) {
        struct p2p_op *op = s->ops[--s->ops_count];

        assert(op->is_done && op->status != COLL_OK);
        free(op->buf);
        free(op);
    }
}
