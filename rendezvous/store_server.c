/*
 * See store_server.h: the clients' sockets, and the moving of bytes between
 * them and the sessions. What the bytes mean is decided in store_session.c.
 *
 * A request of one client may give others something to send. Those are put
 * on a list and served when that request is done, one after the other: so a
 * session is never entered from within another one, however long a chain of
 * clients that wake each other is.
 *
 * In the steady state a request costs one recv and one send. Reading stops
 * while a client does not take its replies; writing is watched only then.
 * Whoever has used up its turn (a tired session) is put at the end of a queue,
 * which is served one client at a time between the others.
 *
 * What all clients have in buffers is bounded together: while it is too much,
 * whoever has most of it is closed.
 */
#include "rendezvous/store_server.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utlist.h>

#include "rendezvous/base/log.h"
#include "rendezvous/peer_log.h"
#include "rendezvous/store_session.h"

/* Bytes moved for one client before others have their turn. */
#define STORE_READ_SIZE ((size_t)64 << 10)
#define STORE_READ_MAX ((size_t)256 << 10) /* of a large request, in place */
#define STORE_SEND_MAX ((size_t)1 << 20)
#define STORE_SEND_PARTS 16

/* With less than that in its buffers nobody is closed for others' sake. */
#define STORE_BUFFERS_MIN ((size_t)64 << 10)

struct conn {
    struct poller_item item;
    struct store_server *server;
    uint32_t events; /* that are watched */
    int wake_rc;
    bool is_queued; /* for its next turn */
    bool is_worker; /* counted as such */
    bool has_ended; /* sends nothing more; closed when out is empty */
    struct store_session session;
    struct conn **list; /* &server->clients or &server->woken */
    struct conn *prev, *next;
    struct conn *prev_turn, *next_turn;
};

struct store_server {
    struct poller *poller; /* borrowed */
    struct poller_item turn; /* an eventfd that is readable while: */
    struct conn *queue; /* clients that wait for their next turn */
    struct store_limits limits;
    struct store_keys keys;
    struct conn *clients;
    struct conn *woken; /* clients with something new to send */
    size_t nclients;
    size_t nworkers; /* of them, those that have checked in */
    size_t ncheck_ins; /* clients that ever have */
    struct peer_log complaints;
    char *read_buf; /* owned; one for all, as nobody reads in two places */
};

/* --- One client --------------------------------------------------------- */

static void conn_move(struct conn *c, struct conn **list)
{
    if (c->list == list)
        return;
    if (c->list != NULL)
        DL_DELETE(*c->list, c);
    c->list = list;
    if (list != NULL)
        DL_APPEND(*list, c);
}

/* Behind those who wait for their next turn already. */
static void conn_queue(struct conn *c)
{
    struct store_server *s = c->server;
    const uint64_t one = 1;

    if (c->is_queued)
        return;
    c->is_queued = true;
    /* A counter that is 0 has room. */
    if (s->queue == NULL && write(s->turn.fd, &one, sizeof(one)) < 0)
        log_error("store", "eventfd: %s", strerror(errno));
    DL_APPEND2(s->queue, c, prev_turn, next_turn);
}

static void conn_unqueue(struct conn *c)
{
    struct store_server *s = c->server;
    uint64_t count;

    if (!c->is_queued)
        return;
    c->is_queued = false;
    DL_DELETE2(s->queue, c, prev_turn, next_turn);
    if (s->queue == NULL && read(s->turn.fd, &count, sizeof(count)) < 0)
        log_error("store", "eventfd: %s", strerror(errno));
}

/* Outside of poller_run() the memory is gone at once. */
static void conn_close(struct conn *c)
{
    struct poller *p = c->server->poller;
    int fd = c->item.fd;

    conn_move(c, NULL);
    conn_unqueue(c);
    c->server->nclients--;
    c->server->nworkers -= c->is_worker;
    store_session_fini(&c->session);
    poller_remove(p, &c->item);
    shutdown(fd, SHUT_RDWR); /* a forked child may have it, too */
    close(fd);
    poller_free_later(p, &c->item, c);
}

/* For what a client did wrong. */
static void conn_refuse(struct conn *c, const char *reason)
{
    peer_log_warn(
        &c->server->complaints, c->item.fd, "closed a connection: %s", reason);
    conn_close(c);
}

/* The end of a client is no event worth a line. */
static void conn_ended(struct conn *c, int error)
{
    log_debug("store", "a client has left: %s",
        error == 0 ? "end of file" : strerror(error));
    conn_close(c);
}

/* Watches for what this client can do next. A negative errno: it is closed. */
static int conn_watch(struct conn *c)
{
    bool has_out = store_out_len(&c->session.out) > 0;
    bool is_new_worker = c->session.has_checked_in && !c->is_worker;
    bool is_held = c->session.is_stalled || c->session.is_tired;
    uint32_t events =
        (is_held || c->has_ended ? 0 : EPOLLIN) | (has_out ? EPOLLOUT : 0);
    int rc;

    if (is_new_worker) {
        c->is_worker = true;
        c->server->nworkers++;
        c->server->ncheck_ins++;
    }
    if (c->session.is_tired)
        conn_queue(c);
    if (c->has_ended && !is_held && !has_out) {
        conn_ended(c, 0);
        return -ECONNRESET;
    }
    if (events == c->events)
        return 0;
    rc = poller_change(c->server->poller, &c->item, events);
    if (rc < 0) {
        conn_refuse(c, strerror(-rc));
        return rc;
    }
    c->events = events;
    return 0;
}

/* What to send next, at most max bytes. */
static size_t next_parts(
    const struct store_out *out, size_t max, struct iovec *iov, int *count)
{
    int n = store_out_iov(out, iov, STORE_SEND_PARTS);
    size_t len = 0;

    for (int i = 0; i < n; i++) {
        if (iov[i].iov_len >= max - len) {
            iov[i].iov_len = max - len;
            n = i + 1;
        }
        len += iov[i].iov_len;
    }
    *count = n;
    return len;
}

static ssize_t send_parts(int fd, struct iovec *iov, int count)
{
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)count};
    ssize_t n;

    do { /* the simple call is the faster one */
        n = count == 1 ? send(fd, iov->iov_base, iov->iov_len,
                             MSG_NOSIGNAL | MSG_DONTWAIT)
                       : sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    return n;
}

/* What it has been answered before its mistake, as far as the socket takes it,
 * and the reason in the log. */
static void conn_reject(struct conn *c, const char *reason)
{
    struct iovec iov[STORE_SEND_PARTS];
    int count;

    if (next_parts(&c->session.out, STORE_SEND_MAX, iov, &count) > 0 &&
        send_parts(c->item.fd, iov, count) < 0)
        log_debug("store", "last answers: %s", strerror(errno));
    conn_refuse(c, reason);
}

/* Sends what the socket takes now; the rest goes when it is writable. A
 * negative errno: the connection is closed. */
static int conn_flush(struct conn *c)
{
    struct iovec iov[STORE_SEND_PARTS];
    size_t budget = STORE_SEND_MAX;
    struct err e;
    int count, rc;

    while (budget > 0 && store_out_len(&c->session.out) > 0) {
        size_t len = next_parts(&c->session.out, budget, iov, &count);
        ssize_t n = send_parts(c->item.fd, iov, count);

        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            rc = -errno;
            conn_ended(c, -rc);
            return rc;
        }
        rc = store_session_sent(&c->session, (size_t)n, &e);
        if (rc < 0) {
            conn_reject(c, e.msg);
            return rc;
        }
        if ((size_t)n < len)
            break;
        budget -= (size_t)n;
    }
    return conn_watch(c);
}

static void conn_wake_cb(struct store_session *session, int rc)
{
    struct conn *c =
        (struct conn *)((char *)session - offsetof(struct conn, session));

    if (rc < 0)
        c->wake_rc = rc;
    conn_move(c, &c->server->woken);
}

/* Those whom a request has given something to send, and those whom these
 * give something in turn. It ends: each turn uses up requests that have
 * come. */
static void serve_woken(struct store_server *s)
{
    struct conn *c;

    while ((c = s->woken) != NULL) {
        conn_move(c, &s->clients);
        if (c->wake_rc < 0)
            conn_refuse(c, c->wake_rc == -ENOBUFS
                               ? "it does not read the notices it asked for"
                               : strerror(-c->wake_rc));
        else
            conn_flush(c);
    }
}

static struct conn *largest_client(const struct store_server *s)
{
    struct conn *c, *largest = NULL;

    DL_FOREACH(s->clients, c)
    if (largest == NULL || c->session.charged > largest->session.charged)
        largest = c;
    return largest;
}

static void bound_buffers(struct store_server *s)
{
    struct conn *c;
    char reason[192];

    while (store_budget_is_exceeded(&s->keys.buffers)) {
        c = largest_client(s);
        if (c == NULL || c->session.charged < STORE_BUFFERS_MIN)
            return;
        snprintf(reason, sizeof(reason),
            "of all it has most, %zu bytes, in requests that have not ended or "
            "replies that it does not read, and together they are over %zu",
            c->session.charged, s->keys.buffers.max);
        conn_refuse(c, reason);
    }
}

/* What follows a client's turn. */
static void end_turn(struct store_server *s)
{
    serve_woken(s);
    if (store_budget_is_exceeded(&s->keys.buffers))
        bound_buffers(s);
}

/* The next of those who have not finished. */
static void turn_ready_cb(struct poller_item *item, uint32_t events)
{
    struct store_server *s =
        (struct store_server *)((char *)item -
                                offsetof(struct store_server, turn));
    struct conn *c = s->queue;
    struct err e;

    (void)events;
    if (c == NULL)
        return;
    conn_unqueue(c);
    if (store_session_resume(&c->session, &e) < 0)
        conn_reject(c, e.msg);
    else
        conn_flush(c);
    end_turn(s);
}

/* Feeds bytes, or says that n came in place (bytes == NULL). */
static int conn_feed(struct conn *c, const void *bytes, size_t n)
{
    struct err e;
    int rc;

    rc = bytes != NULL ? store_session_feed(&c->session, bytes, n, &e)
                       : store_session_added(&c->session, n, &e);
    if (rc < 0) {
        conn_reject(c, e.msg);
        return rc;
    }
    return conn_flush(c);
}

static void conn_read(struct conn *c)
{
    size_t len = 0;
    char *space = store_session_space(&c->session, &len);
    ssize_t n;

    if (space == NULL)
        len = STORE_READ_SIZE;
    else if (len > STORE_READ_MAX)
        len = STORE_READ_MAX;
    do {
        n = recv(c->item.fd, space != NULL ? space : c->server->read_buf, len,
            MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n > 0)
        conn_feed(c, space != NULL ? NULL : c->server->read_buf, (size_t)n);
    else if (n < 0 && errno != EAGAIN)
        conn_ended(c, errno);
    else if (n == 0) {
        c->has_ended = true;
        conn_watch(c);
    }
}

static void conn_ready_cb(struct poller_item *item, uint32_t events)
{
    struct conn *c = (struct conn *)item;
    struct store_server *s = c->server;

    if ((events & EPOLLOUT) && conn_flush(c) < 0)
        goto out;
    if (c->events & EPOLLIN) {
        if (events & (EPOLLIN | EPOLLERR | EPOLLHUP))
            conn_read(c);
    } else if (events & (EPOLLERR | EPOLLHUP)) {
        conn_ended(c, ECONNRESET); /* reading is off, so nobody would notice */
    }
out:
    end_turn(s);
}

/* --- The store ---------------------------------------------------------- */

int store_server_create(struct store_server **out, struct poller *p,
    const struct store_limits *limits)
{
    struct store_server *s = calloc(1, sizeof(*s));
    int fd, rc = -ENOMEM;

    if (s == NULL)
        return rc;
    s->read_buf = malloc(STORE_READ_SIZE);
    if (s->read_buf == NULL)
        goto fail;
    s->turn.fd = -1;
    fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) {
        rc = -errno;
        goto fail;
    }
    rc = poller_add(p, &s->turn, fd, EPOLLIN, turn_ready_cb);
    if (rc < 0) {
        close(fd);
        goto fail;
    }
    s->poller = p;
    s->limits = limits != NULL ? *limits : STORE_LIMITS_DEFAULT;
    store_keys_init(&s->keys, &s->limits);
    *out = s;
    return 0;
fail:
    free(s->read_buf);
    free(s);
    return rc;
}

void store_server_destroy(struct store_server *s)
{
    int fd;

    if (s == NULL)
        return;
    assert(s->woken == NULL);
    while (s->clients != NULL)
        conn_close(s->clients);
    store_keys_fini(&s->keys);
    peer_log_fini(&s->complaints);
    free(s->read_buf);
    fd = s->turn.fd;
    poller_remove(s->poller, &s->turn);
    close(fd);
    poller_free_later(s->poller, &s->turn, s);
}

/* Nothing but the socket is there yet. */
static int refuse_socket(struct store_server *s, int fd, int rc)
{
    peer_log_warn(&s->complaints, fd, "closed a connection: %s",
        rc == -EDQUOT ? "too many clients" : strerror(-rc));
    close(fd);
    return rc;
}

int store_server_adopt(struct store_server *s, int fd,
    enum store_dialect dialect, const void *head, size_t head_len)
{
    struct conn *c;
    int rc;

    if (s->nclients >= s->limits.clients)
        return refuse_socket(s, fd, -EDQUOT);
    c = calloc(1, sizeof(*c));
    if (c == NULL)
        return refuse_socket(s, fd, -ENOMEM);
    rc = poller_add(s->poller, &c->item, fd, EPOLLIN, conn_ready_cb);
    if (rc < 0) {
        free(c);
        return refuse_socket(s, fd, rc);
    }
    c->server = s;
    c->events = EPOLLIN;
    store_session_init(
        &c->session, &s->keys, &s->limits, dialect, conn_wake_cb);
    conn_move(c, &s->clients);
    s->nclients++;
    if (head_len > 0) {
        rc = conn_feed(c, head, head_len);
        end_turn(s);
    }
    return rc;
}

size_t store_server_clients(const struct store_server *s)
{
    return s->nclients;
}

size_t store_server_workers(const struct store_server *s)
{
    return s->nworkers;
}

size_t store_server_check_ins(const struct store_server *s)
{
    return s->ncheck_ins;
}

size_t store_server_keys(const struct store_server *s)
{
    return s->keys.count;
}
