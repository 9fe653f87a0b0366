/*
 * The processes of the other ranks: a socket and a pidfd for each, all in one
 * epoll set, and the messages that ranks exchange while a group is made.
 *
 * A death is noticed by whichever comes first. The socket's end of file also
 * covers a peer in another PID namespace and one that has replaced its
 * program; the pidfd one whose socket lives on in a process that it has
 * forked. A pidfd becomes readable when the process ends, whether or not
 * somebody has waited for it, so a zombie is dead.
 */
#include "shm_internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "coll_agent.h"
#include "coll_memory.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/fd_message.h"
#include "rendezvous/interrupt.h"

#define MAGIC 0x636f6c32u

/* pidfd_open() has this number on every architecture. */
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

/* The high half of an event's data; the low half is a rank or descriptor. */
enum watch {
    WATCH_LISTENER,
    WATCH_STRANGER,
    WATCH_LINK,
    WATCH_PIDFD,
    WATCH_AGENT,
    WATCH_INTERRUPT,
};

static int watch(struct shm_state *s, int fd, enum watch what, int index)
{
    struct epoll_event ev = {
        .events = EPOLLIN | EPOLLRDHUP,
        .data.u64 = (uint64_t)what << 32 | (uint32_t)index,
    };

    return epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &ev) < 0 ? -errno : 0;
}

int shm_watch_listener(struct shm_state *s, int fd)
{
    return watch(s, fd, WATCH_LISTENER, fd);
}

int shm_watch_stranger(struct shm_state *s, int fd)
{
    return watch(s, fd, WATCH_STRANGER, fd);
}

int shm_watch_agent(struct shm_state *s)
{
    int fd = coll_agent_fd();

    return fd < 0 ? 0 : watch(s, fd, WATCH_AGENT, fd);
}

int shm_watch_interrupt(struct shm_state *s)
{
    int fd = interrupt_fd();

    return fd < 0 || fd == coll_agent_fd() ? 0
                                           : watch(s, fd, WATCH_INTERRUPT, fd);
}

void shm_unwatch_interrupt(struct shm_state *s)
{
    int fd = interrupt_fd();

    if (fd >= 0 && fd != coll_agent_fd())
        shm_unwatch(s, fd);
}

void shm_unwatch(struct shm_state *s, int fd)
{
    epoll_ctl(s->epoll, EPOLL_CTL_DEL, fd, NULL);
}

int shm_add_peer(struct shm_state *s, int rank, int fd, pid_t pid)
{
    struct shm_peer *peer = &s->peers[rank];
    int rc;

    *peer = (struct shm_peer){.link = fd, .pidfd = -1, .pid = pid};
    rc = watch(s, fd, WATCH_LINK, rank);
    if (rc < 0 || pid <= 0)
        return rc;
    peer->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (peer->pidfd >= 0)
        return watch(s, peer->pidfd, WATCH_PIDFD, rank);
    /* Linux before 5.3, or a sandbox: /proc has to do. */
    return errno == EMFILE || errno == ENFILE || errno == ENOMEM ? -errno : 0;
}

void shm_drop_peer(struct shm_state *s, int rank)
{
    struct shm_peer *peer = &s->peers[rank];

    if (peer->link >= 0) {
        shm_unwatch(s, peer->link);
        shutdown(peer->link, SHUT_RDWR);
        close(peer->link);
    }
    if (peer->pidfd >= 0) {
        shm_unwatch(s, peer->pidfd);
        close(peer->pidfd);
    }
    peer->link = -1;
    peer->pidfd = -1;
}

/* So few messages go over a socket that its buffer has room. */
int shm_send(int fd, struct shm_message *msg, int descriptor)
{
    msg->magic = MAGIC;
    return fd_message_send(fd, msg, sizeof(*msg), descriptor);
}

int shm_receive(int fd, struct shm_message *msg, int *descriptor)
{
    ssize_t n = fd_message_receive(fd, msg, sizeof(*msg), descriptor);

    if (n < 0)
        return n == -EAGAIN ? 0 : (int)n;
    if (n == (ssize_t)sizeof(*msg) && msg->magic == MAGIC) {
        msg->text[sizeof(msg->text) - 1] = '\0';
        return 1;
    }
    if (*descriptor >= 0)
        close(*descriptor);
    *descriptor = -1;
    return -ECONNRESET;
}

/* What a peer says last is still in its socket when it is dead. */
static void read_link(
    struct shm_state *s, int rank, bool has_ended, struct shm_event *ev)
{
    struct shm_peer *peer = &s->peers[rank];
    int rc = -ECONNRESET;

    ev->rank = rank;
    if (peer->link >= 0)
        rc = shm_receive(peer->link, &ev->msg, &ev->fd);
    if (rc > 0) {
        ev->kind = SHM_EV_MESSAGE;
    } else if (rc < 0 || has_ended) {
        shm_drop_peer(s, rank);
        peer->is_lost = true;
        if (s->verdict_ns == 0)
            s->verdict_ns = clock_deadline_ns(SHM_VERDICT_MS);
        ev->kind = SHM_EV_LOST;
    }
}

void shm_peer_event(struct shm_state *s, int rank, struct shm_event *ev)
{
    ev->kind = SHM_EV_NONE;
    ev->fd = -1;
    read_link(s, rank, false, ev);
}

int shm_next_event(struct shm_state *s, int timeout_ms, struct shm_event *ev)
{
    struct epoll_event raw;
    int n = epoll_wait(s->epoll, &raw, 1, timeout_ms);
    int index;

    ev->kind = SHM_EV_NONE;
    ev->fd = -1;
    if (n <= 0)
        return n == 0 || errno == EINTR ? 0 : -errno;
    index = (int)(uint32_t)raw.data.u64;
    switch ((enum watch)(raw.data.u64 >> 32)) {
    case WATCH_LISTENER:
        ev->kind = SHM_EV_LISTENER;
        break;
    case WATCH_STRANGER:
        ev->kind = SHM_EV_STRANGER;
        ev->fd = index;
        break;
    case WATCH_LINK:
        read_link(s, index, false, ev);
        break;
    case WATCH_PIDFD:
        read_link(s, index, true, ev);
        break;
    case WATCH_INTERRUPT:
        if (interrupt_is_due()) {
            ev->kind = SHM_EV_AGENT;
            shm_unwatch(s, index);
        }
        break;
    case WATCH_AGENT:
        if (coll_agent_is_told())
            ev->kind = SHM_EV_AGENT;
        /* There is no second word, and more of the first would keep the
         * descriptor readable. */
        if (ev->kind == SHM_EV_AGENT || coll_agent_fd() < 0)
            shm_unwatch(s, index);
        break;
    }
    return 0;
}

bool shm_may_judge(const struct shm_state *s, int rank)
{
    return s->rank == 0 || rank == 0 || clock_now_ns() >= s->verdict_ns;
}

/* For kernels without pidfd. A zombie still has threads while only its first
 * one has ended. */
static bool is_dead_by_proc(pid_t pid)
{
    char path[64];
    char text[512];
    char *at;
    char state;
    long threads;
    size_t n;
    FILE *f;

    if (kill(pid, 0) < 0 && errno == ESRCH)
        return true;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    f = fopen(path, "re");
    if (f == NULL)
        return false;
    n = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[n] = '\0';
    at = strrchr(text, ')'); /* the name before it may hold anything */
    if (at == NULL ||
        sscanf(at + 1,
            " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
            "%*s %ld",
            &state, &threads) != 2)
        return false;
    return (state == 'Z' || state == 'X') && threads <= 1;
}

/* --- What comes for those who exchange messages -------------------------- */

static void wake_lane(struct shm_state *s, uint32_t lane, enum shm_lane own)
{
    for (uint32_t l = 0; l < SHM_LANES; l++)
        if ((l == lane || lane == SHM_LANES) && l != (uint32_t)own &&
            s->inboxes[l].wake_fd >= 0)
            eventfd_write(s->inboxes[l].wake_fd, 1);
}

/* A second pipe of the same lane would be a fault of the other side. */
static void take_in(
    struct shm_state *s, struct shm_event *ev, enum shm_lane own)
{
    const struct shm_message *msg = &ev->msg;

    if (msg->kind == SHM_PIPE && msg->lane < SHM_LANES && ev->fd >= 0 &&
        s->inboxes[msg->lane].pipes[ev->rank] < 0) {
        s->inboxes[msg->lane].pipes[ev->rank] = ev->fd;
        ev->fd = -1;
    } else if (msg->kind == SHM_WAKE) {
        wake_lane(s, msg->lane, own);
    } else if (msg->kind == SHM_FAILURE && msg->status < 0) {
        shm_note_failure(s, ev->rank, (uint32_t)-msg->status, msg->text);
        wake_lane(s, SHM_LANES, own);
    }
    if (ev->fd >= 0)
        close(ev->fd);
}

static void look(struct shm_state *s, enum shm_lane own)
{
    struct shm_event ev;

    /* Every event but one is the last of its kind, and of messages a peer can
     * send only a few that are not asked for: so this ends. */
    while (shm_next_event(s, 0, &ev) == 0 && ev.kind != SHM_EV_NONE) {
        if (ev.kind == SHM_EV_MESSAGE)
            take_in(s, &ev, own);
        else
            wake_lane(s, SHM_LANES, own);
    }
}

void shm_look(struct shm_state *s, enum shm_lane lane)
{
    pthread_mutex_lock(&s->lock);
    look(s, lane);
    pthread_mutex_unlock(&s->lock);
}

void shm_look_for_deaths(struct shm_state *s)
{
    pthread_mutex_lock(&s->lock);
    look(s, SHM_LANES);
    for (int r = 0; r < s->size; r++) {
        struct shm_peer *peer = &s->peers[r];

        if (peer->pidfd < 0 && peer->pid > 0 && !peer->is_lost &&
            shm_is_behind(s, r) && is_dead_by_proc(peer->pid)) {
            shm_drop_peer(s, r);
            peer->is_lost = true;
        }
    }
    pthread_mutex_unlock(&s->lock);
}

bool shm_has_ended(struct shm_state *s, int rank)
{
    struct shm_peer *peer = &s->peers[rank];
    bool has_ended;

    pthread_mutex_lock(&s->lock);
    has_ended = peer->is_lost;
    if (!has_ended) {
        struct pollfd p[] = {
            {.fd = peer->link, .events = POLLRDHUP},
            {.fd = peer->pidfd, .events = POLLIN},
        };

        has_ended =
            (poll(p, 2, 0) > 0 && (p[0].revents | p[1].revents) != 0) ||
            (peer->pidfd < 0 && peer->pid > 0 && is_dead_by_proc(peer->pid));
    }
    pthread_mutex_unlock(&s->lock);
    return has_ended;
}

static int send_pipe(
    struct shm_state *s, int rank, enum shm_lane lane, int descriptor)
{
    struct shm_message msg = {.kind = SHM_PIPE, .lane = (uint32_t)lane};
    int link = s->peers[rank].link;
    int rc = link < 0 ? -EPIPE : shm_send(link, &msg, descriptor);

    if (rc == 0)
        atomic_fetch_add(&s->control[rank].pipes, 1);
    return rc;
}

int shm_send_pipe(
    struct shm_state *s, int rank, enum shm_lane lane, int descriptor)
{
    int rc;

    pthread_mutex_lock(&s->lock);
    rc = send_pipe(s, rank, lane, descriptor);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int shm_take_pipe(struct shm_state *s, int rank, enum shm_lane lane)
{
    int fd;

    pthread_mutex_lock(&s->lock);
    fd = s->inboxes[lane].pipes[rank];
    s->inboxes[lane].pipes[rank] = -1;
    pthread_mutex_unlock(&s->lock);
    return fd;
}

int shm_send_memory(struct shm_state *s, int rank)
{
    _Atomic bool *has_memory = &s->peers[rank].has_memory;
    int rc = 0;

    if (atomic_load_explicit(has_memory, memory_order_relaxed))
        return 0;
    pthread_mutex_lock(&s->lock);
    if (!atomic_load_explicit(has_memory, memory_order_relaxed)) {
        rc = send_pipe(s, rank, SHM_LANE_MEMORY, coll_memory_fd());
        atomic_store_explicit(has_memory, rc == 0, memory_order_relaxed);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int shm_memory_of(struct shm_state *s, int rank, enum shm_lane lane)
{
    const int *fd = &s->inboxes[SHM_LANE_MEMORY].pipes[rank];
    int found;

    pthread_mutex_lock(&s->lock);
    if (*fd < 0)
        look(s, lane);
    found = *fd;
    pthread_mutex_unlock(&s->lock);
    return found;
}

void shm_set_wake_fd(struct shm_state *s, enum shm_lane lane, int fd)
{
    pthread_mutex_lock(&s->lock);
    s->inboxes[lane].wake_fd = fd;
    pthread_mutex_unlock(&s->lock);
}

void shm_wake(struct shm_state *s, int rank, enum shm_lane lane)
{
    struct shm_message msg = {.kind = SHM_WAKE, .lane = (uint32_t)lane};
    _Atomic uint32_t *asleep = &s->control[rank].asleep;
    uint32_t bit = 1u << lane;

    if ((atomic_load(asleep) & bit) == 0 ||
        (atomic_fetch_and(asleep, ~bit) & bit) == 0)
        return;
    pthread_mutex_lock(&s->lock);
    /* A full socket has something to read, which wakes as well. */
    if (s->peers[rank].link >= 0)
        shm_send(s->peers[rank].link, &msg, -1);
    pthread_mutex_unlock(&s->lock);
}
