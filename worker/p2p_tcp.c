/*
 * The bytes of two ranks of different nodes: each sends over a connection that
 * it makes to the other at its first message, or when it waits for the other
 * and has to hear of its end. On it go a word that says whose it is, then
 * messages. Back come only words: welcome, and later why no more will come.
 *
 * The two connections of a pair end independently. What was sent before the
 * end of a rank stays valid, so its end counts when both have ended, or some
 * time after the first sign of it.
 */
#include "p2p_internal.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "coll_agent.h"
#include "coll_ranks.h"
#include "coll_signature.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/resolve.h"
#include "rendezvous/worker_env.h"

/* Up to here it is not worth to ask first. */
#define EAGER_BYTES ((size_t)64 * 1024)

/* Small messages wait for this much of a large one. */
#define CHUNK_BYTES ((size_t)1 << 20)

/* Reading less than this goes through the memory for reading ahead. */
#define DIRECT_BYTES ((size_t)8 * 1024)

/* An address that does not answer for so long is one that cannot be reached:
 * the process there is known to be up. */
#define REACH_MS 20000

/* The connections of a rank that has ended may end so far apart. */
#define END_MS 1000

/* How long who leaves waits for what it has sent to be with the other side, and
 * how often it looks. */
#define LEAVE_MS 1000
#define LEAVE_STEP_MS 1

static int name_of(const struct p2p_peer *peer)
{
    return coll_rank_name(peer->p2p->g->names, peer->rank);
}

static bool is_end(int error)
{
    return error == ECONNRESET || error == EPIPE || error == ETIMEDOUT ||
           error == EHOSTUNREACH || error == ENETUNREACH ||
           error == ECONNREFUSED;
}

/* Shut down first: a process that was forked may have a copy. */
static void close_fd(struct p2p *p, int *fd)
{
    if (*fd < 0)
        return;
    p2p_unwatch(p, *fd);
    shutdown(*fd, SHUT_RDWR);
    close(*fd);
    *fd = -1;
}

static void note_end(struct p2p_wire *w)
{
    if (w->ended_ns == 0)
        w->ended_ns = clock_now_ns();
}

static void end_out(struct p2p_peer *peer)
{
    struct p2p_wire *w = peer->wire;

    close_fd(peer->p2p, &w->out);
    w->out_has_ended = true;
    if (!w->is_welcome && w->error == 0)
        w->error = ECONNREFUSED; /* it has not got as far as to accept us */
    w->can_write = false;
    note_end(w);
}

static void end_in(struct p2p_peer *peer)
{
    struct p2p_wire *w = peer->wire;

    close_fd(peer->p2p, &w->in);
    w->in_has_ended = true;
    w->can_read = false;
    note_end(w);
}

/* --- Connecting ----------------------------------------------------------- */

static void cannot_reach(struct p2p_peer *peer, int error)
{
    /* Its listener was closed before it had looked at this one. */
    if (error == ECONNRESET || error == EPIPE)
        error = ECONNREFUSED;
    peer->wire->error = error;
    end_out(peer);
}

/* 0 or an errno value. */
static int start_connect(struct p2p_peer *peer)
{
    struct p2p_wire *w = peer->wire;
    struct p2p *p = peer->p2p;
    struct addrinfo *ai;
    const char *addr;
    int port;
    int rc = 0;

    if (tcp_places_get(p->places, peer->rank, &addr, &port) < 0)
        return EINVAL;
    w->reach_ns = clock_deadline_ns(REACH_MS);
    if (resolve_until(addr, port, 0, w->reach_ns, &ai) != 0)
        return EHOSTUNREACH;
    do {
        w->out = socket(
            ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    } while (w->out < 0 && p2p_more_fds(errno));
    if (w->out >= 0)
        tcp_set_options(w->out);
    if (w->out < 0 || (connect(w->out, ai->ai_addr, ai->ai_addrlen) < 0 &&
                          errno != EINPROGRESS && errno != EINTR))
        rc = errno;
    freeaddrinfo(ai);
    if (rc != 0)
        return rc;
    w->is_connecting = true;
    /* Told once when it is connected or has room again. */
    return -p2p_watch(p, w->out, EPOLLIN | EPOLLRDHUP | EPOLLOUT | EPOLLET,
        P2P_WATCH_OUT, peer->rank);
}

void p2p_tcp_reach(struct p2p_peer *peer)
{
    struct p2p_wire *w = peer->wire;
    int error;

    if (w->out >= 0 || w->out_has_ended || !p2p_watch_open(peer->p2p))
        return;
    error = start_connect(peer);
    if (error == 0)
        return;
    if (is_end(error))
        cannot_reach(peer, error);
    else
        p2p_fail_all(peer->p2p,
            coll_fail(error == ENOMEM ? COLL_ERR_MEMORY : COLL_ERR_SYSTEM,
                "connect to rank %d: %s", name_of(peer), strerror(error)));
}

/* A socket that has just been connected has room for this. */
static void finish_connect(struct p2p_peer *peer)
{
    struct p2p_wire *w = peer->wire;
    const struct p2p *p = peer->p2p;
    struct p2p_word word = {
        .magic = P2P_WORD_MAGIC,
        .kind = P2P_WORD_HELLO,
        .rank = p->g->rank,
    };
    int error = 0;
    socklen_t len = sizeof(error);

    getsockopt(w->out, SOL_SOCKET, SO_ERROR, &error, &len);
    if (error == 0) {
        ssize_t n;

        memcpy(word.token, p->places->token[0], TCP_TOKEN_BYTES);
        n = send(w->out, &word, sizeof(word), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n != (ssize_t)sizeof(word))
            error = n < 0 ? errno : ENOBUFS;
    }
    w->is_connecting = false;
    w->can_write = error == 0;
    if (error != 0)
        cannot_reach(peer, error);
}

void p2p_tcp_admit(struct p2p_peer *peer, int fd)
{
    struct p2p *p = peer->p2p;
    struct p2p_wire *w = peer->wire;
    struct p2p_word word = {
        .magic = P2P_WORD_MAGIC,
        .kind = P2P_WORD_WELCOME,
    };
    int rc;

    if (w->in >= 0 || w->in_has_ended) {
        close(fd); /* it has one: this is none of its own doing */
        return;
    }
    memcpy(word.token, p->places->token[1], TCP_TOKEN_BYTES);
    /* It may have left already; what it has sent is there all the same. */
    send(fd, &word, sizeof(word), MSG_NOSIGNAL | MSG_DONTWAIT);
    w->in = fd;
    w->can_read = true;
    rc = p2p_watch(p, fd, EPOLLIN, P2P_WATCH_IN, peer->rank);
    if (rc < 0)
        p2p_fail_all(p, coll_fail(COLL_ERR_SYSTEM, "messages from rank %d: %s",
                            name_of(peer), strerror(-rc)));
}

/* --- Words ---------------------------------------------------------------- */

/* Only the first reason counts. text has 440 bytes. */
static void note_failure(struct p2p *p, int32_t status, const char *text)
{
    if (p->told != COLL_OK)
        return;
    p->told = (coll_status_t)status;
    snprintf(p->told_text, sizeof(p->told_text), "%.*s",
        (int)sizeof(p->told_text) - 1, text);
}

/* Whether it is one that we expect. */
static bool take_word(struct p2p_peer *peer)
{
    struct p2p_wire *w = peer->wire;
    struct p2p *p = peer->p2p;
    const struct p2p_word *word = &w->word;

    if (word->magic != P2P_WORD_MAGIC ||
        memcmp(word->token, p->places->token[1], TCP_TOKEN_BYTES) != 0)
        return false;
    switch (word->kind) {
    case P2P_WORD_WELCOME:
        w->is_welcome = true;
        return true;
    case P2P_WORD_HAS_LEFT:
        w->has_left = true;
        w->left_after = word->seq;
        w->has_sent = word->has_sent != 0;
        note_end(w);
        return true;
    case P2P_WORD_FAILED:
        if (word->status < 0)
            note_failure(p, word->status, word->text);
        return true;
    case P2P_WORD_WAITS:
        peer->waits |= word->seq == peer->asked_id;
        return true;
    }
    return false;
}

static void take_words(struct p2p_peer *peer)
{
    struct p2p_wire *w = peer->wire;

    while (w->out >= 0) {
        ssize_t n = recv(w->out, (char *)&w->word + w->word_len,
            sizeof(w->word) - w->word_len, MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n > 0)
            w->word_len += (size_t)n;
        if (n <= 0) {
            end_out(peer);
        } else if (w->word_len == sizeof(w->word)) {
            w->word_len = 0;
            if (!take_word(peer))
                cannot_reach(peer, EPROTO); /* not one of ours at all */
        }
    }
}

static void say(struct p2p_peer *peer, struct p2p_word *word)
{
    struct p2p_wire *w = peer->wire;

    if (w == NULL || w->in < 0)
        return;
    word->magic = P2P_WORD_MAGIC;
    memcpy(word->token, peer->p2p->places->token[1], TCP_TOKEN_BYTES);
    /* So few that they fit: what does not is for a rank that reads nothing. */
    send(w->in, word, sizeof(*word), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void p2p_tcp_answer(struct p2p_peer *peer, uint32_t id)
{
    struct p2p_word word = {.kind = P2P_WORD_WAITS, .seq = id};

    say(peer, &word);
}

void p2p_tcp_tell(struct p2p *p, coll_status_t status)
{
    struct p2p_word word = {.kind = P2P_WORD_FAILED, .status = status};
    if (tcp_is_for_all(status)) {
        snprintf(word.text, sizeof(word.text), "%.439s", coll_last_error());
    } else {
        word.status = COLL_ERR_PEER;
        snprintf(word.text, sizeof(word.text), "rank %d gave up: %.400s",
            coll_rank_name(p->g->names, p->g->rank), coll_last_error());
    }
    for (int i = 0; i < p->active_count; i++)
        say(p->active[i], &word);
    if (p->net != NULL)
        tcp_net_fail(p->net, 0, status);
}

/* What neighbours in the net have said over connections that are there from
 * the beginning. It is left there, for the collectives. */
static void peek_at_news(struct p2p *p, const struct tcp_link *link)
{
    struct tcp_news news[4];
    struct p2p_peer *peer = p2p_peer_get(p, p->net->ranks[link->rank]);
    ssize_t n = recv(link->news, news, sizeof(news), MSG_PEEK | MSG_DONTWAIT);

    if (peer == NULL || peer->wire == NULL)
        return;
    peer->wire->has_news = n > 0 || (n < 0 && errno == EAGAIN);
    for (int i = 0; (i + 1) * (ssize_t)sizeof(news[0]) <= n; i++) {
        if (news[i].magic != TCP_NEWS_MAGIC)
            return; /* somebody is reading it just now */
        if (news[i].kind == TCP_FAILED && news[i].status < 0)
            note_failure(p, news[i].status, news[i].text);
        if (news[i].kind != TCP_LEFT)
            continue;
        peer->wire->has_left = true;
        peer->wire->left_after = news[i].seq;
        note_end(peer->wire);
    }
}

void p2p_tcp_hear(struct p2p *p)
{
    for (int i = 0; p->net != NULL && i < p->net->nlinks; i++)
        if (p->failure == COLL_OK)
            peek_at_news(p, &p->net->links[i]);
}

/* --- Events --------------------------------------------------------------- */

void p2p_tcp_out_ready(struct p2p_peer *peer, uint32_t events)
{
    struct p2p_wire *w = peer->wire;

    if (w->out < 0)
        return;
    if (w->is_connecting)
        finish_connect(peer);
    else if ((events & EPOLLOUT) != 0)
        w->can_write = true;
    if ((events & ~(uint32_t)EPOLLOUT) != 0)
        take_words(peer);
}

void p2p_tcp_in_ready(struct p2p_peer *peer)
{
    peer->wire->can_read = peer->wire->in >= 0;
}

/* --- The stream ----------------------------------------------------------- */

static ssize_t tcp_channel_send(
    struct p2p_peer *peer, const struct iovec *iov, int count)
{
    struct p2p_wire *w = peer->wire;
    struct msghdr msg = {
        .msg_iov = (struct iovec *)(uintptr_t)iov,
        .msg_iovlen = (size_t)count,
    };
    size_t wanted = 0;
    ssize_t n;

    if (w->out_has_ended)
        return -EPIPE;
    p2p_tcp_reach(peer);
    if (!w->can_write)
        return 0;
    do {
        n = sendmsg(w->out, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    for (int i = 0; i < count; i++)
        wanted += iov[i].iov_len;
    w->can_write = n == (ssize_t)wanted;
    if (n >= 0 || errno == EAGAIN)
        return n < 0 ? 0 : n;
    if (!is_end(errno))
        return -errno;
    /* Why may be in what came back. */
    take_words(peer);
    if (!w->out_has_ended)
        end_out(peer);
    return -EPIPE;
}

static ssize_t receive(struct p2p_peer *peer, void *buf, size_t len)
{
    struct p2p_wire *w = peer->wire;
    ssize_t n;

    do {
        n = recv(w->in, buf, len, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) {
        w->can_read = false;
        return 0;
    }
    if (n < 0 && !is_end(errno))
        return -errno;
    if (n <= 0) {
        end_in(peer);
        return 0; /* the end counts when it is known which one it is */
    }
    /* The set tells when there is more, or the end. */
    w->can_read = (size_t)n == len;
    return n;
}

static ssize_t tcp_channel_recv(struct p2p_peer *peer, void *buf, size_t len)
{
    struct p2p_wire *w = peer->wire;

    if (w->at == w->end) {
        ssize_t n;

        if (!w->can_read)
            return 0;
        if (len >= DIRECT_BYTES)
            return receive(peer, buf, len);
        n = receive(peer, w->ahead, sizeof(w->ahead));
        if (n <= 0)
            return n;
        w->at = 0;
        w->end = (size_t)n;
    }
    if (len > w->end - w->at)
        len = w->end - w->at;
    memcpy(buf, w->ahead + w->at, len);
    w->at += len;
    return (ssize_t)len;
}

/* --- Ends ----------------------------------------------------------------- */

static enum p2p_end tcp_channel_ask(struct p2p_peer *peer)
{
    struct p2p_wire *w = peer->wire;
    bool more_may_come;

    p2p_tcp_reach(peer);
    if (w->is_connecting && clock_now_ns() >= w->reach_ns)
        cannot_reach(peer, ETIMEDOUT);
    if (w->ended_ns == 0)
        return P2P_GOES_ON;
    more_may_come =
        w->in >= 0 || (w->has_sent && !w->in_has_ended) ||
        (!w->has_left && (!w->out_has_ended || (w->error != 0 && w->has_news)));
    if (more_may_come &&
        clock_now_ns() < w->ended_ns + END_MS * CLOCK_NS_PER_MS)
        return P2P_GOES_ON;
    return w->has_left ? P2P_HAS_LEFT : P2P_HAS_DIED;
}

static coll_status_t fail_unreachable(
    const struct p2p_peer *peer, const char *call)
{
    const struct p2p *p = peer->p2p;
    const char *addr = "";
    int port = 0;

    tcp_places_get(p->places, peer->rank, &addr, &port);
    /* Its listener is there as long as its group. */
    if (peer->wire->error == ECONNREFUSED)
        return coll_fail(COLL_ERR_PEER,
            "rank %d at %s is gone: it does not listen at port %d any more, "
            "rank %d is in %s",
            name_of(peer), addr, port, coll_rank_name(p->g->names, p->g->rank),
            call);
    return coll_fail(COLL_ERR_SYSTEM,
        "%s: rank %d cannot reach rank %d at %s port %d: %s; %s can tell the "
        "address of a node that others reach",
        call, coll_rank_name(p->g->names, p->g->rank), name_of(peer), addr,
        port, strerror(peer->wire->error), ENV_NODE_ADDR);
}

static coll_status_t tcp_channel_blame(
    const struct p2p_peer *peer, const struct coll_call *call)
{
    const struct p2p_wire *w = peer->wire;
    char text[64];
    const char *name = coll_call_text(text, sizeof(text), call);

    if (w->has_left)
        return coll_fail(COLL_ERR_PEER,
            "rank %d left after operation %llu, rank %d is in %s",
            name_of(peer), (unsigned long long)w->left_after,
            coll_rank_name(peer->p2p->g->names, peer->p2p->g->rank), name);
    if (coll_agent_await_cause())
        return coll_agent_fail(name);
    if (w->error != 0)
        return fail_unreachable(peer, name);
    return coll_fail(COLL_ERR_PEER,
        "rank %d at %s is gone: its connection ended during %s without "
        "coll_destroy()",
        name_of(peer), peer->p2p->places->of[peer->rank].addr, name);
}

/* --- Leaving -------------------------------------------------------------- */

/* What is not read when a socket is closed would undo what was sent. Whether
 * the other side is still there. */
static bool read_off(int fd)
{
    char scratch[4096];
    ssize_t n;

    do {
        n = recv(fd, scratch, sizeof(scratch), MSG_DONTWAIT);
    } while (n > 0 || (n < 0 && errno == EINTR));
    return n < 0 && errno == EAGAIN;
}

static bool is_on_its_way(const struct p2p_peer *peer)
{
    int unsent = 0;

    if (peer->wire == NULL || !peer->wire->can_write || peer->wire->out < 0)
        return false;
    /* Of a socket that was reset the kernel counts what nobody will read. */
    return read_off(peer->wire->out) &&
           ioctl(peer->wire->out, SIOCOUTQ, &unsent) == 0 && unsent > 0;
}

static void say_goodbye(struct p2p_peer *peer)
{
    struct p2p_wire *w = peer->wire;
    struct p2p_header header = {
        .magic = P2P_MAGIC,
        .kind = P2P_LEFT,
        .count = peer->p2p->g->seq,
    };
    struct p2p_word word = {
        .kind = P2P_WORD_HAS_LEFT,
        .seq = peer->p2p->g->seq,
    };

    if (w == NULL)
        return;
    word.has_sent = w->out >= 0 && !w->is_connecting;
    say(peer, &word);
    /* Not in the middle of a message. */
    if (w->can_write && peer->out.header_left == 0 && peer->out.left == 0)
        send(w->out, &header, sizeof(header), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (w->out >= 0)
        shutdown(w->out, SHUT_WR);
}

void p2p_tcp_leave(struct p2p *p)
{
    uint64_t end_ns = clock_deadline_ns(LEAVE_MS);

    for (int i = 0; i < p->active_count; i++)
        say_goodbye(p->active[i]);
    for (int i = 0; i < p->active_count; i++)
        while (is_on_its_way(p->active[i]) && clock_now_ns() < end_ns)
            poll(NULL, 0, LEAVE_STEP_MS);
}

static void tcp_channel_close(struct p2p_peer *peer)
{
    struct p2p_wire *w = peer->wire;
    int *const fds[] = {&w->out, &w->in};

    for (int i = 0; i < 2; i++) {
        if (*fds[i] < 0)
            continue;
        shutdown(*fds[i], SHUT_WR);
        read_off(*fds[i]);
        close(*fds[i]);
    }
    free(w);
}

void p2p_after_fork(struct p2p *p)
{
    for (int i = 0; p != NULL && i < p->active_count; i++) {
        const struct p2p_wire *w = p->active[i]->wire;

        if (w == NULL)
            continue;
        close(w->out);
        close(w->in);
    }
}

static const struct p2p_channel_ops tcp_ops = {
    .eager_max = EAGER_BYTES,
    .chunk = CHUNK_BYTES,
    .send = tcp_channel_send,
    .recv = tcp_channel_recv,
    .close = tcp_channel_close,
    .ask = tcp_channel_ask,
    .blame = tcp_channel_blame,
};

int p2p_tcp_open(struct p2p_peer *peer)
{
    struct p2p_wire *w = malloc(sizeof(*w));

    if (w == NULL)
        return -ENOMEM;
    memset(w, 0, offsetof(struct p2p_wire, ahead));
    w->out = -1;
    w->in = -1;
    peer->wire = w;
    peer->ops = &tcp_ops;
    return 0;
}
