/*
 * See store_port.h: accepting, and the strangers, who have not yet sent the
 * few bytes that tell what they are. A stranger is a socket and those bytes;
 * once recognised the socket is somebody else's.
 *
 * Out of descriptors the listener would stay readable and the loop spin. The
 * silent strangers make room, the oldest first; when there is none, nobody
 * is accepted for a moment: those who connect wait in the backlog, and the
 * clients are served.
 */
#include "rendezvous/store_port.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <utlist.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/log.h"
#include "rendezvous/listen.h"
#include "rendezvous/peer_log.h"
#include "rendezvous/store_limits.h"

/* Connections accepted before others have their turn. */
#define PORT_ACCEPT_BURST 16

/* No descriptor for a new connection: how long until the next try. */
#define PORT_PAUSE_NS (100 * CLOCK_NS_PER_MS)

/* A client speaks as soon as it is connected. Who has not for so long may be
 * closed for lack of descriptors. */
#define PORT_SILENCE_NS (1 * CLOCK_NS_PER_S)

/* Trouble that comes again within this time is told once. */
#define PORT_SHORTAGE_NS (10 * CLOCK_NS_PER_S)

/* What a stranger has sent, as far as it is read before it is recognised. */
#define PORT_READ_SIZE 4096

struct listener {
    struct poller_item item;
    struct store_port *port;
};

struct stranger {
    struct poller_item item;
    struct store_port *port;
    uint64_t accepted_ns;
    size_t head_len;
    uint8_t head[SNIFF_MAX];
    struct stranger *prev, *next;
};

struct store_port {
    struct poller *poller; /* borrowed */
    struct store_port_options options;
    struct store_server *store; /* borrowed; NULL: no store is open */
    struct listener listeners[LISTEN_MAX];
    int nlisteners;
    struct poller_item timer; /* ends a pause in accepting */
    uint64_t short_ns; /* when descriptors were short the last time, or 0 */
    struct stranger *strangers; /* the oldest first */
    size_t nstrangers;
    struct peer_log complaints;
    bool has_told_no_store;
    char refused[ACCESS_TEXT_SIZE]; /* who was told of last */
    uint64_t refused_ns; /* and when */
};

/* --- Strangers ---------------------------------------------------------- */

/* The socket is the caller's then. Outside of poller_run() the memory is gone
 * at once. */
static int stranger_detach(struct stranger *st)
{
    struct store_port *port = st->port;
    int fd = st->item.fd;

    poller_remove(port->poller, &st->item);
    DL_DELETE(port->strangers, st);
    port->nstrangers--;
    poller_free_later(port->poller, &st->item, st);
    return fd;
}

static void stranger_close(struct stranger *st)
{
    int fd = stranger_detach(st);

    shutdown(fd, SHUT_RDWR); /* a forked child may have it, too */
    close(fd);
}

static void stranger_refuse(struct stranger *st, const char *reason)
{
    peer_log_warn(
        &st->port->complaints, st->item.fd, "closed a connection: %s", reason);
    stranger_close(st);
}

static void refuse_unknown(struct stranger *st, const uint8_t *head, size_t len)
{
    char reason[96];
    int n = snprintf(
        reason, sizeof(reason), "it is no client that is served here (");

    for (size_t i = 0; i < len && i < SNIFF_MAX; i++)
        n += snprintf(reason + n, sizeof(reason) - (size_t)n, "%s%02x",
            i > 0 ? " " : "", head[i]);
    snprintf(reason + n, sizeof(reason) - (size_t)n, ")");
    stranger_refuse(st, reason);
}

/* Clients are patient; agents of torchrun are clients, and wait in vain. */
static void tell_no_store(const struct stranger *st)
{
    struct store_port *port = st->port;

    log_debug("store", "closed a client: no store is open");
    if (port->options.agent_cb == NULL || port->has_told_no_store)
        return;
    port->has_told_no_store = true;
    peer_log_warn(&port->complaints, st->item.fd,
        "closed a TCPStore client, as no store is open here; if that is "
        "torchrun on another node: use crun on every node");
}

/* Whether a client may have the store; if not, it is closed. */
static bool let_in(struct stranger *st)
{
    const struct access *access = st->port->options.access;
    struct sockaddr_storage ss;
    struct sockaddr *peer = (struct sockaddr *)&ss;
    socklen_t len = sizeof(ss);
    char text[ACCESS_TEXT_SIZE], reason[192];

    if (access == NULL)
        return true;
    if (getpeername(st->item.fd, peer, &len) < 0) {
        stranger_close(st); /* reset in the meantime */
        return false;
    }
    if (access_is_client_allowed(access, peer))
        return true;
    access_text(peer, text);
    if (strcmp(text, st->port->refused) == 0 &&
        clock_now_ns() < st->port->refused_ns + PORT_SHORTAGE_NS) {
        stranger_close(st); /* clients try again and again */
        return false;
    }
    memcpy(st->port->refused, text, sizeof(text));
    st->port->refused_ns = clock_now_ns();
    snprintf(reason, sizeof(reason),
        "%s is not one of the job's nodes; if it should be, use "
        "--store-allow %s",
        text, text);
    stranger_refuse(st, reason);
    return false;
}

/* Whoever gets the socket may destroy the port: nothing follows. */
static void stranger_recognise(
    struct stranger *st, const uint8_t *head, size_t len)
{
    struct store_port *port = st->port;
    enum store_dialect dialect;

    switch (sniff(head, len, port->options.old_dialect, &dialect)) {
    case SNIFF_MORE:
        memcpy(st->head, head, len);
        st->head_len = len;
        break;
    case SNIFF_STORE:
        /* Between two stores nobody is told off: the nodes of the next one
         * may not be known yet. */
        if (port->store == NULL) {
            tell_no_store(st);
            stranger_close(st);
        } else if (let_in(st)) {
            store_server_adopt(
                port->store, stranger_detach(st), dialect, head, len);
        }
        break;
    case SNIFF_AGENT:
        if (port->options.agent_cb != NULL)
            port->options.agent_cb(
                stranger_detach(st), head, len, port->options.agent_arg);
        else
            stranger_refuse(st, "it is an agent, which is not served here");
        break;
    case SNIFF_UNKNOWN:
        refuse_unknown(st, head, len);
        break;
    }
}

static void stranger_ready_cb(struct poller_item *item, uint32_t events)
{
    struct stranger *st = (struct stranger *)item;
    uint8_t head[SNIFF_MAX + PORT_READ_SIZE];
    ssize_t n;

    (void)events;
    memcpy(head, st->head, st->head_len);
    do {
        n = recv(item->fd, head + st->head_len, PORT_READ_SIZE, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n > 0)
        stranger_recognise(st, head, st->head_len + (size_t)n);
    else if (n == 0 || errno != EAGAIN)
        stranger_close(st); /* gone without a word */
}

/* Takes fd, also on failure. */
static int stranger_create(struct store_port *port, int fd)
{
    struct stranger *st = calloc(1, sizeof(*st));
    int rc;

    rc = st == NULL ? -ENOMEM
                    : poller_add(port->poller, &st->item, fd, EPOLLIN,
                          stranger_ready_cb);
    if (rc < 0) {
        free(st);
        close(fd);
        return rc;
    }
    st->port = port;
    st->accepted_ns = clock_now_ns();
    DL_APPEND(port->strangers, st);
    port->nstrangers++;
    return 0;
}

/* Closes the oldest stranger, if it has been silent for so long. Who has just
 * spoken is about to be a client and does not count. */
static bool drop_stranger(struct store_port *port, uint64_t silence_ns)
{
    uint64_t now_ns = clock_now_ns();
    struct stranger *st;
    char byte;

    DL_FOREACH(port->strangers, st)
    {
        if (now_ns - st->accepted_ns < silence_ns)
            break;
        if (recv(st->item.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0) {
            stranger_close(st);
            return true;
        }
    }
    return false;
}

/* --- Accepting ---------------------------------------------------------- */

static void listeners_watch(struct store_port *port, uint32_t events)
{
    for (int i = 0; i < port->nlisteners; i++)
        poller_change(port->poller, &port->listeners[i].item, events);
}

static void timer_ready_cb(struct poller_item *item, uint32_t events)
{
    struct store_port *port =
        (struct store_port *)((char *)item -
                              offsetof(struct store_port, timer));
    uint64_t count;

    (void)events;
    if (read(item->fd, &count, sizeof(count)) > 0)
        listeners_watch(port, EPOLLIN);
}

static void pause_accepting(struct store_port *port)
{
    const struct itimerspec in_a_moment = {.it_value.tv_nsec = PORT_PAUSE_NS};

    if (timerfd_settime(port->timer.fd, 0, &in_a_moment, NULL) == 0)
        listeners_watch(port, 0);
}

static bool is_out_of_resources(int rc)
{
    return rc == -EMFILE || rc == -ENFILE || rc == -ENOBUFS || rc == -ENOMEM ||
           rc == -ENOSPC;
}

static bool has_visitor(int listen_fd)
{
    struct pollfd p = {.fd = listen_fd, .events = POLLIN};

    return poll(&p, 1, 0) > 0;
}

/* There was no descriptor for a connection. True if it is worth to try again
 * at once. */
static bool make_room(struct store_port *port, int listen_fd, int rc)
{
    uint64_t now_ns = clock_now_ns();

    /* accept() fails so even if nobody wants to connect. */
    if (!has_visitor(listen_fd))
        return false;
    if (port->short_ns == 0 || now_ns - port->short_ns > PORT_SHORTAGE_NS)
        log_warn("store",
            "cannot accept more connections for now: %s; those that say "
            "nothing are closed, new ones have to wait (ulimit -n may be too "
            "low)",
            strerror(-rc));
    port->short_ns = now_ns;
    if (drop_stranger(port, PORT_SILENCE_NS))
        return true;
    pause_accepting(port);
    return false;
}

static size_t count_connections(const struct store_port *port)
{
    return port->nstrangers +
           (port->store != NULL ? store_server_clients(port->store) : 0);
}

/* Whether a connection has come in where it may; if not, it is closed. */
static bool came_in_rightly(struct store_port *port, int fd)
{
    struct sockaddr_storage ss = {.ss_family = AF_UNSPEC};
    struct sockaddr *local = (struct sockaddr *)&ss;
    socklen_t len = sizeof(ss);
    char text[ACCESS_TEXT_SIZE];

    if (port->options.access == NULL)
        return true;
    getsockname(fd, local, &len); /* what fails is no address */
    if (access_is_local_allowed(port->options.access, local))
        return true;
    access_text(local, text);
    peer_log_warn(&port->complaints, fd,
        "closed a connection: it came in at %s, which is no address that the "
        "endpoint's name resolves to",
        text);
    close(fd);
    return false;
}

/* A new connection; 0 or a negative errno. */
static int welcome(struct store_port *port, int fd)
{
    if (!came_in_rightly(port, fd))
        return 0;
    if (count_connections(port) >= port->options.max_connections &&
        !drop_stranger(port, 0)) {
        peer_log_warn(&port->complaints, fd,
            "closed a connection: there are %zu already",
            port->options.max_connections);
        close(fd);
        return 0;
    }
    return stranger_create(port, fd);
}

static void listener_ready_cb(struct poller_item *item, uint32_t events)
{
    struct store_port *port = ((struct listener *)item)->port;

    (void)events;
    for (int i = 0; i < PORT_ACCEPT_BURST; i++) {
        int fd = accept4(item->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        int rc = fd < 0 ? -errno : welcome(port, fd);

        if (rc == -EAGAIN)
            return;
        if (is_out_of_resources(rc) && !make_room(port, item->fd, rc))
            return;
        /* Every other error is that of one connection, which came and went;
         * the next one may be fine. */
    }
}

/* --- The port ----------------------------------------------------------- */

static int watch_listeners(struct store_port *port, const int *fds, int n)
{
    int rc = 0;

    for (int i = 0; i < n; i++) {
        struct listener *l = &port->listeners[i];

        l->port = port;
        if (rc == 0)
            rc = poller_add(
                port->poller, &l->item, fds[i], EPOLLIN, listener_ready_cb);
        if (rc == 0)
            port->nlisteners++;
        else
            close(fds[i]);
    }
    return rc;
}

static int watch_timer(struct store_port *port)
{
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    int rc;

    if (fd < 0)
        return -errno;
    rc = poller_add(port->poller, &port->timer, fd, EPOLLIN, timer_ready_cb);
    if (rc < 0)
        close(fd);
    return rc;
}

int store_port_create(struct store_port **out, struct poller *p,
    const char *host, int port_number, const struct store_port_options *options,
    int *bound_port, struct err *e)
{
    struct store_port *port = calloc(1, sizeof(*port));
    int fds[LISTEN_MAX];
    int rc, number;

    if (port == NULL)
        return err_set(e, -ENOMEM, "out of memory");
    port->poller = p;
    port->timer.fd = -1;
    if (options != NULL)
        port->options = *options;
    if (port->options.max_connections == 0)
        port->options.max_connections = STORE_LIMITS_DEFAULT.clients;
    rc = listen_open(host, port_number, fds, &number, e);
    if (rc < 0)
        goto fail;
    rc = watch_listeners(port, fds, rc);
    if (rc == 0)
        rc = watch_timer(port);
    if (rc < 0) {
        err_set(
            e, rc, "cannot serve %s port %d: %s", host, number, strerror(-rc));
        goto fail;
    }
    *out = port;
    *bound_port = number;
    return 0;
fail:
    store_port_destroy(port);
    return rc;
}

static void item_close(struct poller *p, struct poller_item *item)
{
    int fd = item->fd;

    poller_remove(p, item);
    if (fd < 0)
        return;
    shutdown(fd, SHUT_RDWR); /* a forked child may have it, too */
    close(fd);
}

void store_port_destroy(struct store_port *port)
{
    if (port == NULL)
        return;
    for (int i = 0; i < port->nlisteners; i++)
        item_close(port->poller, &port->listeners[i].item);
    item_close(port->poller, &port->timer);
    while (port->strangers != NULL)
        stranger_close(port->strangers);
    peer_log_fini(&port->complaints);
    poller_free_later(port->poller, &port->timer, port);
}

void store_port_set_store(struct store_port *port, struct store_server *s)
{
    port->store = s;
}

size_t store_port_strangers(const struct store_port *port)
{
    return port->nstrangers;
}
