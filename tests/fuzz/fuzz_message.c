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

#include "tests/fuzz/message_ops.h"

enum { STREAM_MAX = 1 << 18 };

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

static struct side sides_of_run[MESSAGE_RANKS];

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

static bool side_find(
    struct p2p_peer *peer, const void *buf, size_t len, uint64_t *at)
{
    (void)peer;
    (void)buf;
    *at = len;
    return len % 5 == 0 && len > 500;
}

static ssize_t side_copy(
    struct p2p_peer *peer, void *buf, uint64_t at, size_t len)
{
    if (sides_of_run[peer->rank].refuses_pull)
        return at % 2 == 0 ? -EFAULT : -ESRCH;
    memset(buf, 'm', len);
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
    .find = side_find,
    .copy = side_copy,
    .close = side_close,
    .ask = side_ask,
    .blame = side_blame,
};

/* --- The script ---------------------------------------------------------- */

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
    struct p2p_header header = {.magic = P2P_MAGIC, .kind = script_next(s)};

    header.is_step = header.kind >> 7;
    header.is_mapped = header.kind >> 6 & 1;
    header.kind &= 0x3f;
    header.tag = (int8_t)script_next(s);
    header.dtype = script_next(s);
    header.id = script_next(s);
    header.count = script_number(s, 3);
    if (header.count >> 20 == 0xf) /* no such message can be */
        header.count <<= 44;
    header.at = header.id;
    bring(side, &header, sizeof(header));
}

static void step(struct script *s)
{
    uint8_t what = script_next(s);
    int rank = 1 + (what & 1);
    struct side *side = &sides_of_run[rank];
    size_t len;

    switch (what >> 5) {
    case 0:
    case 1:
        script_start(s, what);
        break;
    case 2:
        bring_header(s, side);
        break;
    case 3:
        bring(side, NULL, script_number(s, 2));
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
        side->room += script_number(s, 2);
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
    struct coll_group g = {
        .size = MESSAGE_RANKS, .backend = &coll_backend_self};
    struct script s = {.at = data, .left = size};

    if (p2p_create(&s.p, &g) != COLL_OK)
        return -1;
    memset(sides_of_run, 0, sizeof(sides_of_run));
    for (int r = 1; r < MESSAGE_RANKS; r++) {
        struct p2p_peer *peer = p2p_peer_get(s.p, r);

        sides_of_run[r].bytes = malloc(STREAM_MAX);
        assert(peer != NULL && sides_of_run[r].bytes != NULL);
        peer->ops = &side_ops;
        peer->can_pull = true;
    }
    while (s.left > 0 && s.p->failure == COLL_OK) {
        step(&s);
        script_check(&s);
    }
    script_end(&s);
    for (int r = 1; r < MESSAGE_RANKS; r++)
        free(sides_of_run[r].bytes);
    return 0;
}
