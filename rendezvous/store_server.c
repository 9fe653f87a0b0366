/*
 * Sockets for the store: listeners, connections, and the moving of bytes
 * between them and the sessions. What the bytes mean is decided in
 * store_session.c.
 *
 * The sockets are ours and libuv only watches them (uv_poll_t). Its own TCP
 * handles would do two things that a store must not: raise SIGPIPE in the
 * process when a client is gone, and, out of descriptors, throw waiting
 * clients away or accept in an endless loop. Here accepting pauses.
 *
 * Handles are embedded in their objects, which are freed in the last close
 * callback: connections on their own, the server when it is the last.
 */
#include "rendezvous/store_server.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utlist.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/log.h"
#include "rendezvous/resolve.h"
#include "rendezvous/store_session.h"

/* Addresses that one host name may have on this machine. */
#define STORE_LISTEN_MAX 16

/* Port 0: how often the kernel's choice may be in use on another address. */
#define STORE_PORT_TRIES 16

/* Connections accepted, or bytes moved, before others have their turn. */
#define STORE_ACCEPT_BURST 64
#define STORE_READ_SIZE ((size_t)64 << 10)
#define STORE_SEND_SIZE ((size_t)1 << 20)

/* No descriptor for a new connection: how long until the next try. */
#define STORE_ACCEPT_PAUSE_MS 100

/* A client sends its greeting at once; who does not is no client. */
#define STORE_GREETING_MS 30000

/* Unsent replies smaller than this keep their buffer for the next ones. */
#define STORE_KEEP_BUFFER 1024

struct listener {
    uv_poll_t poll;
    struct store_server *server;
    int fd;
};

struct conn {
    uv_poll_t poll;
    struct store_server *server;
    int fd; /* -1 once closed; the memory waits for the close callback */
    bool wants_write;
    uint64_t greet_by_ns;
    struct store_session session;
    struct conn **list; /* &server->strangers or &server->clients */
    struct conn *prev, *next;
};

struct store_server {
    uv_loop_t *loop;
    struct store_keys keys;
    struct listener listeners[STORE_LISTEN_MAX];
    size_t nlisteners;
    struct conn *strangers; /* have not greeted yet, the oldest first */
    struct conn *clients;
    uv_timer_t greet_timer; /* for the oldest stranger */
    uv_timer_t accept_timer; /* ends a pause in accepting */
    bool accept_paused; /* and not caught up since: said once, then silent */
    bool is_closing;
    size_t open_handles; /* incl. connections that are being closed */
    uint64_t greeting_ms;
    char *read_buf; /* owned; one for all, as nobody reads in two places */
};

/* --- Addresses ---------------------------------------------------------- */

/* "127.0.0.1:4711" or "[::1]:4711", without asking any name service. */
static void addr_text(
    const struct sockaddr_storage *ss, socklen_t len, char *text, size_t size)
{
    char host[NI_MAXHOST], port[NI_MAXSERV];

    if (getnameinfo((const struct sockaddr *)ss, len, host, sizeof(host), port,
            sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(text, size, "?");
    else
        snprintf(text, size, strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s",
            host, port);
}

static void peer_text(int fd, char *text, size_t size)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof(ss);

    if (getpeername(fd, (struct sockaddr *)&ss, &len) < 0)
        snprintf(text, size, "gone"); /* reset in the meantime */
    else
        addr_text(&ss, len, text, size);
}

static void set_port(struct sockaddr *sa, int port)
{
    if (sa->sa_family == AF_INET6)
        ((struct sockaddr_in6 *)sa)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)sa)->sin_port = htons((uint16_t)port);
}

static int port_of(int fd)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof(ss);

    if (getsockname(fd, (struct sockaddr *)&ss, &len) < 0)
        return -errno;
    return ntohs(ss.ss_family == AF_INET6
                     ? ((struct sockaddr_in6 *)&ss)->sin6_port
                     : ((struct sockaddr_in *)&ss)->sin_port);
}

static int resolve_host(
    const char *host, int port, struct addrinfo **out, struct err *e)
{
    int rc = resolve(host, port, AI_PASSIVE, out);

    if (rc == 0)
        return 0;
    return err_set(e, rc == EAI_MEMORY ? -ENOMEM : -ENOENT,
        "cannot listen on %s port %d: the name does not resolve (%s)", host,
        port, gai_strerror(rc));
}

/* --- Connections -------------------------------------------------------- */

static void server_free_if_closed(struct store_server *s)
{
    if (!s->is_closing || s->open_handles > 0)
        return;
    store_keys_fini(&s->keys);
    free(s->read_buf);
    free(s);
}

static void handle_closed_cb(uv_handle_t *handle)
{
    struct store_server *s = handle->data;

    s->open_handles--;
    server_free_if_closed(s);
}

static void conn_closed_cb(uv_handle_t *handle)
{
    struct conn *c = handle->data;
    struct store_server *s = c->server;

    free(c);
    s->open_handles--;
    server_free_if_closed(s);
}

static void conn_close(struct conn *c)
{
    if (c->fd < 0)
        return;
    DL_DELETE(*c->list, c);
    store_session_fini(&c->session);
    uv_close((uv_handle_t *)&c->poll, conn_closed_cb);
    close(c->fd); /* allowed: uv_close has stopped watching it */
    c->fd = -1;
}

/* For what a client did wrong: one line each. */
static void conn_refuse(struct conn *c, const char *reason)
{
    char peer[NI_MAXHOST + 16];

    peer_text(c->fd, peer, sizeof(peer));
    log_warn("store", "closed a connection: %s peer=%s", reason, peer);
    conn_close(c);
}

/* A client that does not read would not read the end of the stream either,
 * and the kernel would keep what it has taken until it did: reset. */
static void conn_give_up(struct conn *c)
{
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};

    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    conn_refuse(c, "the client does not read its replies");
}

static void conn_ready_cb(uv_poll_t *handle, int status, int events);

static int conn_watch(struct conn *c, bool wants_write)
{
    c->wants_write = wants_write;
    return uv_poll_start(
        &c->poll, UV_READABLE | (wants_write ? UV_WRITABLE : 0), conn_ready_cb);
}

/* Sends what the socket takes now; the rest goes when it is writable. */
static void conn_flush(struct conn *c)
{
    struct buf *out = &c->session.out;
    size_t len = out->len < STORE_SEND_SIZE ? out->len : STORE_SEND_SIZE;
    ssize_t n = 0;

    if (len > 0)
        n = send(c->fd, buf_bytes(out), len, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
        log_debug("store", "a client is gone: %s", strerror(errno));
        conn_close(c);
        return;
    }
    if (n > 0)
        buf_consume(out, (size_t)n);
    if (out->len == 0 && out->cap > STORE_KEEP_BUFFER)
        buf_fini(out);
    if (c->wants_write != (out->len > 0) && conn_watch(c, out->len > 0) < 0)
        conn_close(c);
}

static void conn_wake_cb(struct store_session *session, int rc)
{
    struct conn *c =
        (struct conn *)((char *)session - offsetof(struct conn, session));

    if (rc < 0)
        conn_give_up(c);
    else
        conn_flush(c);
}

static void conn_read(struct conn *c)
{
    struct store_server *s = c->server;
    struct err e;
    ssize_t n;
    int rc;

    do {
        n = recv(c->fd, s->read_buf, STORE_READ_SIZE, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) { /* the end of a client is no event worth a line */
        log_debug("store", "a client has left: %s",
            n == 0 ? "end of file" : strerror(errno));
        conn_close(c);
        return;
    }
    rc = store_session_feed(&c->session, s->read_buf, (size_t)n, &e);
    if (rc == -ENOBUFS) {
        conn_give_up(c);
        return;
    }
    if (rc < 0) {
        conn_refuse(c, e.msg);
        return;
    }
    if (c->session.has_greeted && c->list == &s->strangers) {
        DL_DELETE(s->strangers, c);
        c->list = &s->clients;
        DL_APPEND(s->clients, c);
    }
    conn_flush(c);
}

static void conn_ready_cb(uv_poll_t *handle, int status, int events)
{
    struct conn *c = handle->data;

    if (status < 0) { /* reset by the client */
        conn_close(c);
        return;
    }
    if (events & UV_WRITABLE)
        conn_flush(c);
    if (c->fd >= 0 && (events & UV_READABLE))
        conn_read(c);
}

static void greet_timer_cb(uv_timer_t *timer);

static void arm_greet_timer(struct store_server *s)
{
    if (s->strangers != NULL && !uv_is_active((uv_handle_t *)&s->greet_timer))
        uv_timer_start(&s->greet_timer, greet_timer_cb,
            (uint64_t)clock_left_ms(s->strangers->greet_by_ns), 0);
}

static void greet_timer_cb(uv_timer_t *timer)
{
    struct store_server *s = timer->data;

    while (
        s->strangers != NULL && clock_left_ms(s->strangers->greet_by_ns) == 0)
        conn_refuse(s->strangers, "it has not sent a greeting");
    arm_greet_timer(s);
}

/* Takes fd, also on failure. */
static int conn_create(struct store_server *s, int fd)
{
    struct conn *c = calloc(1, sizeof(*c));
    int rc;

    if (c == NULL) {
        close(fd);
        return -ENOMEM;
    }
    rc = uv_poll_init(s->loop, &c->poll, fd);
    if (rc < 0) {
        free(c);
        close(fd);
        return rc;
    }
    c->poll.data = c;
    c->server = s;
    c->fd = fd;
    c->greet_by_ns = clock_deadline_ns((int64_t)s->greeting_ms);
    store_session_init(&c->session, &s->keys, conn_wake_cb);
    c->list = &s->strangers;
    DL_APPEND(s->strangers, c);
    s->open_handles++;
    arm_greet_timer(s);
    rc = conn_watch(c, false);
    if (rc < 0)
        conn_close(c);
    return rc;
}

/* --- Accepting ---------------------------------------------------------- */

static void listener_ready_cb(uv_poll_t *handle, int status, int events);

static void accept_again_cb(uv_timer_t *timer)
{
    struct store_server *s = timer->data;

    for (size_t i = 0; i < s->nlisteners; i++)
        uv_poll_start(&s->listeners[i].poll, UV_READABLE, listener_ready_cb);
}

/*
 * Out of descriptors or memory. The listener would stay readable and the
 * loop spin, so stop looking at it for a while. The clients wait in the
 * backlog; those who are connected are served.
 */
static void pause_accepting(struct store_server *s, int rc)
{
    for (size_t i = 0; i < s->nlisteners; i++)
        uv_poll_stop(&s->listeners[i].poll);
    uv_timer_start(&s->accept_timer, accept_again_cb, STORE_ACCEPT_PAUSE_MS, 0);
    if (!s->accept_paused)
        log_warn("store",
            "cannot accept more connections for now: %s; those who connect "
            "have to wait (ulimit -n may be too low)",
            strerror(-rc));
    s->accept_paused = true;
}

static bool is_out_of_resources(int rc)
{
    return rc == -EMFILE || rc == -ENFILE || rc == -ENOBUFS || rc == -ENOMEM ||
           rc == -ENOSPC;
}

static void listener_ready_cb(uv_poll_t *handle, int status, int events)
{
    struct listener *l = handle->data;
    struct store_server *s = l->server;

    (void)events;
    if (status < 0) {
        pause_accepting(s, status);
        return;
    }
    for (int i = 0; i < STORE_ACCEPT_BURST; i++) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        int rc = fd < 0 ? -errno : conn_create(s, fd);

        if (rc == -EAGAIN) {
            s->accept_paused = false; /* nobody waits any more */
            return;
        }
        if (is_out_of_resources(rc)) {
            pause_accepting(s, rc);
            return;
        }
        /* Every other error is that of one connection, which came and went;
         * the next one may be fine. */
    }
}

/* --- Listening ---------------------------------------------------------- */

static int set_option(int fd, int level, int name, int value)
{
    return setsockopt(fd, level, name, &value, sizeof(value)) < 0 ? -errno : 0;
}

/*
 * Accepted sockets inherit these. Without keep-alive a client whose machine
 * has vanished would stay for ever.
 */
static int set_options(int fd, const struct sockaddr *sa)
{
    int rc;

    if ((rc = set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1)) < 0 ||
        (rc = set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1)) < 0 ||
        (rc = set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1)) < 0 ||
        (rc = set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 60)) < 0 ||
        (rc = set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10)) < 0)
        return rc;
    if (sa->sa_family != AF_INET6)
        return 0;
    /* "::" alone stands for both families, any other address for itself. */
    return set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY,
        !IN6_IS_ADDR_UNSPECIFIED(
            &((const struct sockaddr_in6 *)sa)->sin6_addr));
}

/* A listening socket, or a negative errno. */
static int open_listener(const struct addrinfo *ai)
{
    int fd, rc;

    fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    rc = set_options(fd, ai->ai_addr);
    if (rc < 0)
        goto fail;
    /* The kernel cuts the backlog down to net.core.somaxconn. */
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) < 0 || listen(fd, INT_MAX) < 0) {
        rc = -errno;
        goto fail;
    }
    return fd;
fail:
    close(fd);
    return rc;
}

/* A name can stand in /etc/hosts twice with one address. */
static bool is_repeated(const struct addrinfo *list, const struct addrinfo *ai)
{
    for (; list != ai; list = list->ai_next)
        if (list->ai_addrlen == ai->ai_addrlen &&
            memcmp(list->ai_addr, ai->ai_addr, ai->ai_addrlen) == 0)
            return true;
    return false;
}

static void close_all(int *fds, size_t n)
{
    for (size_t i = 0; i < n; i++)
        close(fds[i]);
}

/*
 * Opens a socket for each address that is one of this machine; all get the
 * port of the first. Returns their number or a negative errno; *port is the
 * port at the end or that of the failure.
 */
static int open_listeners(
    struct addrinfo *list, int fds[STORE_LISTEN_MAX], int *port)
{
    int rc = -EADDRNOTAVAIL;
    int n = 0;

    /* Ports are compared too, so they have to be the same from the start. */
    for (struct addrinfo *ai = list; ai != NULL; ai = ai->ai_next)
        set_port(ai->ai_addr, 0);
    for (struct addrinfo *ai = list; ai != NULL && n < STORE_LISTEN_MAX;
         ai = ai->ai_next) {
        struct addrinfo with_port = *ai;
        struct sockaddr_storage ss;
        int fd;

        if (is_repeated(list, ai))
            continue;
        memcpy(&ss, ai->ai_addr, ai->ai_addrlen);
        with_port.ai_addr = (struct sockaddr *)&ss;
        set_port(with_port.ai_addr, *port);
        fd = open_listener(&with_port);
        if (fd == -EADDRNOTAVAIL || fd == -EAFNOSUPPORT)
            continue; /* not of this machine, or IPv6 is off */
        rc = fd;
        if (fd >= 0) {
            fds[n++] = fd;
            if (*port == 0)
                rc = *port = port_of(fd);
        }
        if (rc < 0) {
            close_all(fds, (size_t)n);
            return rc;
        }
    }
    return n > 0 ? n : rc;
}

static int watch_listener(struct store_server *s, int fd)
{
    struct listener *l = &s->listeners[s->nlisteners];
    int rc = uv_poll_init(s->loop, &l->poll, fd);

    if (rc < 0) {
        close(fd);
        return rc;
    }
    l->poll.data = l;
    l->server = s;
    l->fd = fd;
    s->nlisteners++;
    s->open_handles++;
    return uv_poll_start(&l->poll, UV_READABLE, listener_ready_cb);
}

static void listener_closed_cb(uv_handle_t *handle)
{
    struct listener *l = handle->data;

    l->server->open_handles--;
    server_free_if_closed(l->server);
}

static int listen_error(const char *host, int port, int rc, struct err *e)
{
    if (rc == -EADDRINUSE)
        return err_set(e, rc,
            "cannot listen on %s port %d: the port is in use by another "
            "program or job; choose another port, or 0 for any free one",
            host, port);
    if (rc == -EADDRNOTAVAIL)
        return err_set(e, rc,
            "cannot listen on %s port %d: that is no address of this machine",
            host, port);
    return err_set(
        e, rc, "cannot listen on %s port %d: %s", host, port, strerror(-rc));
}

int store_server_listen(struct store_server *s, const char *host, int port,
    int *bound_port, struct err *e)
{
    struct addrinfo *list = NULL;
    int fds[STORE_LISTEN_MAX];
    int chosen = port;
    int rc, n;

    if (port < 0 || port > 65535)
        return err_set(e, -EINVAL, "port %d is not between 0 and 65535", port);
    if (s->nlisteners > 0)
        return err_set(e, -EALREADY, "the store is listening already");
    rc = resolve_host(host, port, &list, e);
    if (rc < 0)
        return rc;
    n = open_listeners(list, fds, &chosen);
    for (int i = 1; port == 0 && n == -EADDRINUSE && i < STORE_PORT_TRIES;
         i++) {
        chosen = 0;
        n = open_listeners(list, fds, &chosen);
    }
    freeaddrinfo(list);
    if (n < 0)
        return listen_error(host, chosen, n, e);
    for (int i = 0; i < n; i++) {
        rc = watch_listener(s, fds[i]);
        if (rc < 0) {
            close_all(fds + i + 1, (size_t)(n - i - 1));
            return listen_error(host, chosen, rc, e);
        }
    }
    *bound_port = chosen;
    return 0;
}

/* --- The server --------------------------------------------------------- */

static void timer_init(struct store_server *s, uv_timer_t *timer)
{
    uv_timer_init(s->loop, timer); /* cannot fail */
    timer->data = s;
    s->open_handles++;
}

int store_server_create(struct store_server **out, uv_loop_t *loop)
{
    struct store_server *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return -ENOMEM;
    s->read_buf = malloc(STORE_READ_SIZE);
    if (s->read_buf == NULL) {
        free(s);
        return -ENOMEM;
    }
    s->loop = loop;
    s->greeting_ms = STORE_GREETING_MS;
    store_keys_init(&s->keys);
    timer_init(s, &s->greet_timer);
    timer_init(s, &s->accept_timer);
    *out = s;
    return 0;
}

void store_server_set_greeting_ms(struct store_server *s, uint64_t ms)
{
    s->greeting_ms = ms;
}

void store_server_destroy(struct store_server *s)
{
    if (s == NULL)
        return;
    s->is_closing = true;
    for (size_t i = 0; i < s->nlisteners; i++) {
        uv_close((uv_handle_t *)&s->listeners[i].poll, listener_closed_cb);
        close(s->listeners[i].fd);
    }
    while (s->strangers != NULL)
        conn_close(s->strangers);
    while (s->clients != NULL)
        conn_close(s->clients);
    uv_close((uv_handle_t *)&s->greet_timer, handle_closed_cb);
    uv_close((uv_handle_t *)&s->accept_timer, handle_closed_cb);
}
