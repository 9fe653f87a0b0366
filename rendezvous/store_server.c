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
 */
#include "rendezvous/store_server.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
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

struct conn {
    struct poller_item item;
    struct store_server *server;
    uint32_t events; /* that are watched */
    int wake_rc;
    struct store_session session;
    struct conn **list; /* &server->clients or &server->woken */
    struct conn *prev, *next;
};

struct store_server {
    struct poller *poller; /* borrowed */
    struct store_limits limits;
    struct store_keys keys;
    struct conn *clients;
    struct conn *woken; /* clients with something new to send */
    size_t nclients;
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

/* Outside of poller_run() the memory is gone at once. */
static void conn_close(struct conn *c)
{
    struct poller *p = c->server->poller;
    int fd = c->item.fd;

    conn_move(c, NULL);
    c->server->nclients--;
    store_session_fini(&c->session);
    poller_remove(p, &c->item);
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

/* Watches for what this client can do next. */
static int conn_watch(struct conn *c)
{
    bool has_out = store_out_len(&c->session.out) > 0;
    uint32_t events =
        (c->session.is_stalled ? 0 : EPOLLIN) | (has_out ? EPOLLOUT : 0);
    int rc;

    assert(events != 0); /* stalled means that something is left to send */
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
            conn_refuse(c, e.msg);
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
            conn_refuse(c, strerror(-c->wake_rc));
        else
            conn_flush(c);
    }
}

/* Feeds bytes, or says that n came in place (bytes == NULL). */
static int conn_feed(struct conn *c, const void *bytes, size_t n)
{
    struct err e;
    int rc;

    rc = bytes != NULL ? store_session_feed(&c->session, bytes, n, &e)
                       : store_session_added(&c->session, n, &e);
    if (rc < 0) {
        conn_refuse(c, e.msg);
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
    else if (n == 0 || errno != EAGAIN)
        conn_ended(c, n == 0 ? 0 : errno);
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
    serve_woken(s);
}

/* --- The store ---------------------------------------------------------- */

int store_server_create(struct store_server **out, struct poller *p,
    const struct store_limits *limits)
{
    struct store_server *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return -ENOMEM;
    s->read_buf = malloc(STORE_READ_SIZE);
    if (s->read_buf == NULL) {
        free(s);
        return -ENOMEM;
    }
    s->poller = p;
    s->limits = limits != NULL ? *limits : STORE_LIMITS_DEFAULT;
    store_keys_init(&s->keys, &s->limits);
    *out = s;
    return 0;
}

void store_server_destroy(struct store_server *s)
{
    if (s == NULL)
        return;
    assert(s->woken == NULL);
    while (s->clients != NULL)
        conn_close(s->clients);
    store_keys_fini(&s->keys);
    peer_log_fini(&s->complaints);
    free(s->read_buf);
    free(s);
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
        serve_woken(s);
    }
    return rc;
}

size_t store_server_clients(const struct store_server *s)
{
    return s->nclients;
}

size_t store_server_keys(const struct store_server *s)
{
    return s->keys.count;
}
