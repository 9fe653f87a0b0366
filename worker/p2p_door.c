/*
 * The epoll set of an engine, and how connections come to be in it: who
 * connects says first whose the messages are and that it belongs to the group.
 */
#include "p2p_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "coll_agent.h"
#include "coll_fds.h"

/* Descriptors more, each time. */
#define MORE_FDS 64

int p2p_watch(
    struct p2p *p, int fd, uint32_t events, enum p2p_watch what, int index)
{
    struct epoll_event ev = {
        .events = events,
        .data.u64 = (uint64_t)what << 32 | (uint32_t)index,
    };

    return epoll_ctl(p->epoll, EPOLL_CTL_ADD, fd, &ev) < 0 ? -errno : 0;
}

/* Before closing: a forked process may have a copy. */
void p2p_unwatch(struct p2p *p, int fd)
{
    epoll_ctl(p->epoll, EPOLL_CTL_DEL, fd, NULL);
}

bool p2p_more_fds(int error)
{
    return error == EMFILE && coll_fds_reserve(0, MORE_FDS) == COLL_OK;
}

static void fail_rc(struct p2p *p, const char *what, int rc)
{
    p2p_fail_all(p, coll_fail(rc == -ENOMEM ? COLL_ERR_MEMORY : COLL_ERR_SYSTEM,
                        "messages between ranks: %s: %s", what, strerror(-rc)));
}

static void close_set(struct p2p *p)
{
    if (p->epoll >= 0)
        close(p->epoll);
    if (p->wake_fd >= 0)
        close(p->wake_fd);
    p->epoll = -1;
    p->wake_fd = -1;
}

int p2p_watch_try(struct p2p *p)
{
    int rc = 0;

    if (p->epoll >= 0)
        return 0;
    p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->wake_fd >= 0)
        p->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (p->wake_fd < 0 || p->epoll < 0)
        rc = -errno;
    if (rc == 0)
        rc = p2p_watch(p, p->wake_fd, EPOLLIN, P2P_WATCH_WAKE, 0);
    /* The segment's set has the launcher in it. */
    if (rc == 0 && p->shm != NULL)
        rc = p2p_watch(p, p->shm->epoll, EPOLLIN, P2P_WATCH_SHM, 0);
    else if (rc == 0 && p->agent_fd >= 0)
        rc = p2p_watch(p, p->agent_fd, EPOLLIN, P2P_WATCH_AGENT, 0);
    if (rc == 0 && p->places != NULL)
        rc = p2p_watch(p, p->places->listener, EPOLLIN, P2P_WATCH_DOOR, 0);
    /* They are left there, so only what is new shall be told. */
    for (int i = 0; rc == 0 && p->net != NULL && i < p->net->nlinks; i++)
        rc = p2p_watch(
            p, p->net->links[i].news, EPOLLIN | EPOLLET, P2P_WATCH_NEWS, 0);
    if (rc < 0) {
        close_set(p);
        return rc;
    }
    if (p->shm != NULL)
        shm_set_wake_fd(p->shm, p->lane, p->wake_fd);
    return 0;
}

bool p2p_watch_open(struct p2p *p)
{
    int rc = p2p_watch_try(p);

    if (rc < 0)
        fail_rc(p, "wait", rc);
    return rc == 0;
}

/* --- Who comes in --------------------------------------------------------- */

static void drop_stranger(struct p2p *p, unsigned int slot, bool keeps_fd)
{
    struct p2p_stranger *stranger = p->strangers[slot];

    p->strangers[slot] = NULL;
    if (stranger == NULL)
        return;
    p2p_unwatch(p, stranger->fd);
    if (!keeps_fd)
        close(stranger->fd);
    free(stranger);
}

/* When there are too many the oldest has to go. */
static unsigned int free_slot(struct p2p *p)
{
    unsigned int slot;

    for (slot = 0; slot < P2P_STRANGERS; slot++)
        if (p->strangers[slot] == NULL)
            return slot;
    slot = p->next_stranger++ % P2P_STRANGERS;
    drop_stranger(p, slot, false);
    return slot;
}

static void open_door(struct p2p *p)
{
    int fd =
        accept4(p->places->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct p2p_stranger *stranger;
    unsigned int slot;
    int rc;

    if (fd < 0) {
        if ((errno == EMFILE && !p2p_more_fds(errno)) || errno == ENFILE ||
            errno == ENOMEM || errno == ENOBUFS)
            fail_rc(p, "accept", -errno);
        return;
    }
    stranger = calloc(1, sizeof(*stranger));
    if (stranger == NULL) {
        close(fd);
        fail_rc(p, "accept", -ENOMEM);
        return;
    }
    tcp_set_options(fd);
    stranger->fd = fd;
    slot = free_slot(p);
    p->strangers[slot] = stranger;
    rc = p2p_watch(p, fd, EPOLLIN, P2P_WATCH_STRANGER, (int)slot);
    if (rc < 0)
        fail_rc(p, "accept", rc);
}

static bool is_ours(const struct p2p *p, const struct p2p_word *word)
{
    return word->magic == P2P_WORD_MAGIC && word->kind == P2P_WORD_HELLO &&
           memcmp(word->token, p->places->token[0], TCP_TOKEN_BYTES) == 0 &&
           word->rank >= 0 && word->rank < p->g->size &&
           word->rank != p->g->rank && !p2p_is_here(p, word->rank);
}

static void hear_stranger(struct p2p *p, unsigned int slot)
{
    struct p2p_stranger *stranger = p->strangers[slot];
    struct p2p_peer *peer;
    ssize_t n;
    int fd;
    int rank;

    if (stranger == NULL)
        return;
    n = recv(stranger->fd, (char *)&stranger->word + stranger->len,
        sizeof(stranger->word) - stranger->len, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0)
        stranger->len += (size_t)n;
    if (n <= 0 || (stranger->len >= sizeof(stranger->word.magic) &&
                      stranger->word.magic != P2P_WORD_MAGIC)) {
        drop_stranger(p, slot, false);
        return;
    }
    if (stranger->len < sizeof(stranger->word))
        return;
    if (!is_ours(p, &stranger->word)) {
        drop_stranger(p, slot, false);
        return;
    }
    fd = stranger->fd;
    rank = stranger->word.rank;
    drop_stranger(p, slot, true);
    peer = p2p_peer_get(p, rank);
    if (peer == NULL)
        close(fd);
    else
        p2p_tcp_admit(peer, fd);
}

/* --- Events --------------------------------------------------------------- */

static void on_event(struct p2p *p, const struct epoll_event *ev)
{
    int index = (int)(uint32_t)ev->data.u64;
    eventfd_t count;

    switch ((enum p2p_watch)(ev->data.u64 >> 32)) {
    case P2P_WATCH_WAKE:
        eventfd_read(p->wake_fd, &count);
        return;
    case P2P_WATCH_SHM:
        shm_look(p->shm, p->lane);
        return;
    case P2P_WATCH_AGENT:
        /* There is no second word, and the end of its channel would keep the
         * descriptor readable. */
        if (coll_agent_is_told() || coll_agent_fd() < 0)
            p2p_unwatch(p, p->agent_fd);
        return;
    case P2P_WATCH_DOOR:
        open_door(p);
        return;
    case P2P_WATCH_STRANGER:
        hear_stranger(p, (unsigned int)index);
        return;
    case P2P_WATCH_OUT:
        p2p_tcp_out_ready(p->peers[index], ev->events);
        return;
    case P2P_WATCH_IN:
        p2p_tcp_in_ready(p->peers[index]);
        return;
    case P2P_WATCH_NEWS:
        p2p_tcp_hear(p);
        return;
    }
}

bool p2p_watch_step(struct p2p *p, int timeout_ms)
{
    struct epoll_event events[32];
    int n;

    if (timeout_ms > 0) {
        p->is_asleep = true;
        p2p_unlock(p);
    }
    n = epoll_wait(p->epoll, events, 32, timeout_ms);
    if (timeout_ms > 0) {
        pthread_mutex_lock(&p->lock);
        p->is_asleep = false;
    }
    for (int i = 0; i < n && p->failure == COLL_OK; i++)
        on_event(p, &events[i]);
    return n > 0;
}

void p2p_watch_close(struct p2p *p)
{
    for (unsigned int slot = 0; slot < P2P_STRANGERS; slot++)
        drop_stranger(p, slot, false);
    if (p->shm != NULL)
        shm_set_wake_fd(p->shm, p->lane, -1);
    close_set(p);
}

void p2p_meet_neighbours(struct p2p *p)
{
    int ranks[TCP_MAX_LINKS];
    int n;

    if (p->knows_neighbours)
        return;
    p->knows_neighbours = true;
    n = tcp_neighbours(p->g->rank, p->g->size, ranks);
    for (int i = 0; i < n && p->failure == COLL_OK; i++) {
        struct p2p_peer *peer;

        if (p2p_is_here(p, ranks[i]))
            continue;
        peer = p2p_peer_get(p, ranks[i]);
        if (peer != NULL)
            p2p_tcp_reach(peer);
    }
}
