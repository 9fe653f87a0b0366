/*
 * What ranks of other nodes send from arbitrary bytes: the messages that come
 * in, the words that come back, and those who knock at the door. The bytes are
 * a script; see step(). One rank is connected both ways; another one may come
 * in at the door, as may anybody.
 *
 * Whatever it is: nothing crashes or waits, no byte is written beside a buffer
 * or to one whose operation is done, and nobody is let in without the token.
 */
#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/fuzz/message_ops.h"

enum { FRIEND = 1, LATE = 2, GUESTS_MAX = 16 };

static const char TOKENS[2][TCP_TOKEN_BYTES + 1] = {
    "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The other ends. */
struct world {
    struct script s;
    int in, out; /* of the connections from and to FRIEND */
    int guests[GUESTS_MAX];
    int guests_count;
    struct sockaddr_un door;
    socklen_t door_len;
    bool shows_token; /* somebody may be let in as LATE */
};

static void put(int fd, const void *bytes, size_t len)
{
    /* What does not fit, or is for nobody any more, is lost. */
    if (fd >= 0 && len > 0)
        (void)!send(fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void put_next(struct world *w, int fd, size_t len)
{
    struct script *s = &w->s;

    if (len > s->left)
        len = s->left;
    put(fd, s->at, len);
    s->at += len;
    s->left -= len;
}

static void put_word(struct world *w, int fd, int token)
{
    struct script *s = &w->s;
    struct p2p_word word = {.magic = P2P_WORD_MAGIC};

    word.kind = script_next(s);
    word.rank = (int8_t)script_next(s);
    word.status = (int8_t)script_next(s);
    word.has_sent = script_next(s);
    word.seq = word.has_sent;
    memset(
        word.text, 't', (size_t)script_number(s, 2) % (sizeof(word.text) + 1));
    if (token < 2)
        memcpy(word.token, TOKENS[token], TCP_TOKEN_BYTES);
    w->shows_token |= token == 0;
    put(fd, &word, sizeof(word));
}

static void put_header(struct world *w, int fd)
{
    struct script *s = &w->s;
    struct p2p_header header = {.magic = P2P_MAGIC, .kind = script_next(s)};

    header.tag = (int8_t)script_next(s);
    header.dtype = script_next(s);
    header.id = script_next(s);
    header.count = script_number(s, 3);
    put(fd, &header, sizeof(header));
}

static void put_data(int fd, size_t len)
{
    static const char zeros[65536];

    put(fd, zeros, len);
}

/* The latest guest, or a new one. */
static int guest(struct world *w, bool is_new)
{
    int fd;

    if (!is_new || w->guests_count == GUESTS_MAX)
        return w->guests_count == 0 ? -1 : w->guests[w->guests_count - 1];
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, (struct sockaddr *)&w->door, w->door_len) < 0) {
        close(fd);
        return -1;
    }
    w->guests[w->guests_count++] = fd;
    return fd;
}

static void step(struct world *w)
{
    struct script *s = &w->s;
    uint8_t what = script_next(s);
    const int to[] = {w->in, w->out, -1, -1};
    int fd = (what & 2) != 0 ? guest(w, (what & 1) != 0) : to[what & 1];

    switch (what >> 5) {
    case 0:
        script_start(s, what | 2); /* a receive of any, or a send to */
        break;
    case 1:
        script_start(s, what & ~(uint8_t)3);
        break;
    case 2:
        put_header(w, fd);
        break;
    case 3:
        put_data(fd, script_number(s, 2));
        break;
    case 4:
        put_next(w, fd, (what >> 2 & 7) * 9u);
        break;
    case 5:
        put_word(w, fd, what >> 2 & 3);
        break;
    case 6:
        if (fd >= 0)
            shutdown(fd, (what & 4) != 0 ? SHUT_RDWR : SHUT_WR);
        break;
    case 7:
        p2p_check(s->p);
        break;
    }
    while (s->p->failure == COLL_OK && p2p_watch_step(s->p, 0))
        for (int i = 0; i < s->p->active_count; i++)
            p2p_move(s->p, s->p->active[i]);
}

/* --- The engine ----------------------------------------------------------- */

static struct tcp_places *make_places(struct world *w)
{
    char bytes[MESSAGE_RANKS * TCP_PLACE_BYTES];
    struct tcp_places *p = NULL;
    size_t len = 0;

    /* Nobody listens there. */
    for (int r = 0; r < MESSAGE_RANKS; r++)
        len += tcp_place_write(bytes + len, "127.0.0.1", 1);
    assert(tcp_places_read(&p, bytes, len, MESSAGE_RANKS, "127.0.0.1") == 0);
    memcpy(p->token[0], TOKENS[0], TCP_TOKEN_BYTES);
    memcpy(p->token[1], TOKENS[1], TCP_TOKEN_BYTES);
    p->listener =
        socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    w->door.sun_family = AF_UNIX;
    w->door_len = sizeof(w->door);
    /* Without a name the kernel chooses one. */
    assert(bind(p->listener, (struct sockaddr *)&w->door,
               sizeof(sa_family_t)) == 0 &&
           listen(p->listener, GUESTS_MAX) == 0 &&
           getsockname(
               p->listener, (struct sockaddr *)&w->door, &w->door_len) == 0);
    return p;
}

static void make_friend(struct world *w)
{
    struct p2p *p = w->s.p;
    struct p2p_peer *peer = p2p_peer_get(p, FRIEND);
    int in[2], out[2];

    assert(peer != NULL && peer->wire != NULL);
    assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) == 0 &&
           socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, out) == 0);
    p2p_tcp_admit(peer, in[0]);
    peer->wire->out = out[0];
    peer->wire->can_write = true;
    assert(p2p_watch(p, out[0], EPOLLIN | EPOLLRDHUP | EPOLLOUT | EPOLLET,
               P2P_WATCH_OUT, FRIEND) == 0);
    w->in = in[1];
    w->out = out[1];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct coll_group g = {
        .size = MESSAGE_RANKS, .backend = &coll_backend_self};
    struct world w = {.s = {.at = data, .left = size}};
    struct p2p *p;
    struct tcp_places *places;

    if (p2p_create(&w.s.p, &g) != COLL_OK)
        return -1;
    p = w.s.p;
    places = p->places = make_places(&w);
    assert(p2p_watch_open(p));
    make_friend(&w);
    while (w.s.left > 0 && p->failure == COLL_OK) {
        step(&w);
        script_check(&w.s);
        assert(p->peers[LATE] == NULL || w.shows_token ||
               p->peers[LATE]->wire->in < 0);
    }
    /* Who leaves a group that has failed waits for nobody. */
    g.failure = COLL_ERR_PEER;
    script_end(&w.s);
    tcp_places_free(places);
    close(w.in);
    close(w.out);
    while (w.guests_count > 0)
        close(w.guests[--w.guests_count]);
    return 0;
}
