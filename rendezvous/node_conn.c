/* See node_conn.h. */
#include "rendezvous/node_conn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_SIZE 16384
/* Frames that the other side has not read: one may be told of the addresses of
 * all the others at once. */
#define QUEUE_MAX ((size_t)32 * 1024 * 1024)

const char node_conn_closed[] = "its connection was closed";

struct node_conn {
    struct poller_item item;
    struct poller *poller; /* borrowed */
    struct node_conn_callbacks callbacks;
    void *arg;
    struct buf in;
    struct buf out;
    bool is_writing; /* watched for becoming writable */
    bool is_stuck; /* a frame did not fit */
    bool is_closed;
};

/* Watched for writability also where nothing can be known yet: so every write,
 * and the end of a connection, comes from the poller. */
static void watch(struct node_conn *c, bool is_writing)
{
    if (c->is_writing == is_writing)
        return;
    c->is_writing = is_writing;
    poller_change(
        c->poller, &c->item, is_writing ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void node_conn_send_bytes(struct node_conn *c, const void *bytes, size_t len)
{
    if (buf_append(&c->out, bytes, len) < 0)
        c->is_stuck = true;
    watch(c, true);
}

void node_conn_send(struct node_conn *c, const struct node_msg *msg)
{
    if (node_msg_encode(msg, &c->out) < 0)
        c->is_stuck = true;
    watch(c, true);
}

static int write_out(struct node_conn *c)
{
    while (c->out.len > 0) {
        ssize_t n = send(c->item.fd, buf_bytes(&c->out), c->out.len,
            MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? 0 : -errno;
        buf_consume(&c->out, (size_t)n);
    }
    return 0;
}

/* True while the connection is still the owner's. */
static bool hand_on(struct node_conn *c)
{
    struct node_msg msg;

    for (;;) {
        int n = node_msg_decode(&msg, buf_bytes(&c->in), c->in.len);

        if (n == 0)
            return true;
        if (n < 0) {
            c->callbacks.ended(c->arg, "it sent what is no frame");
            return false;
        }
        buf_consume(&c->in, (size_t)n);
        c->callbacks.message(c->arg, &msg);
        if (c->is_closed)
            return false;
    }
}

static void read_in(struct node_conn *c)
{
    char *at = buf_reserve(&c->in, READ_SIZE);
    ssize_t n = -1;

    errno = ENOMEM;
    if (at != NULL)
        n = recv(c->item.fd, at, READ_SIZE, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        c->callbacks.ended(c->arg, n == 0 ? node_conn_closed : strerror(errno));
        return;
    }
    buf_added(&c->in, (size_t)n);
    hand_on(c);
}

/* Reading tells of the end: what the other side has said before that counts,
 * also if it can be told nothing more. */
static void ready_cb(struct poller_item *item, uint32_t events)
{
    struct node_conn *c = (struct node_conn *)item;

    if (c->is_closed)
        return;
    if (c->is_stuck) {
        c->callbacks.ended(c->arg, "it does not read what it is sent");
        return;
    }
    if ((events & EPOLLOUT) && write_out(c) < 0)
        buf_consume(&c->out, c->out.len);
    if (c->out.len == 0)
        watch(c, false);
    /* What came with the magic is there before. */
    if (hand_on(c) && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
        read_in(c);
}

int node_conn_open(struct node_conn **out, struct poller *p, int fd,
    const void *head, size_t head_len,
    const struct node_conn_callbacks *callbacks, void *arg)
{
    struct node_conn *c = calloc(1, sizeof(*c));
    int rc = c == NULL ? -ENOMEM : 0;

    if (rc == 0) {
        c->poller = p;
        c->callbacks = *callbacks;
        c->arg = arg;
        buf_init(&c->in, READ_SIZE + NODE_FRAME_MAX);
        buf_init(&c->out, QUEUE_MAX);
        rc = buf_append(&c->in, head, head_len);
    }
    if (rc == 0) {
        c->is_writing = true;
        rc = poller_add(p, &c->item, fd, EPOLLIN | EPOLLOUT, ready_cb);
    }
    if (rc < 0) {
        close(fd);
        if (c != NULL)
            buf_fini(&c->in);
        free(c);
        return rc;
    }
    *out = c;
    return 0;
}

void node_conn_close(struct node_conn *c)
{
    int fd;

    if (c == NULL)
        return;
    fd = c->item.fd;
    write_out(c);
    c->is_closed = true;
    poller_remove(c->poller, &c->item);
    shutdown(fd, SHUT_WR); /* a forked child may have it, too */
    close(fd);
    buf_fini(&c->in);
    buf_fini(&c->out);
    poller_free_later(c->poller, &c->item, c);
}

int node_conn_fd(const struct node_conn *c)
{
    return c->item.fd;
}

/* An IPv4 address that came in as an IPv6 one is told as what it is. */
static void format(const struct sockaddr_storage *ss, char out[NODE_ADDR_MAX])
{
    const struct sockaddr_in6 *sin6 = (const struct sockaddr_in6 *)ss;
    const struct sockaddr_in *sin = (const struct sockaddr_in *)ss;

    out[0] = '\0';
    if (ss->ss_family == AF_INET)
        inet_ntop(AF_INET, &sin->sin_addr, out, NODE_ADDR_MAX);
    else if (ss->ss_family == AF_INET6 &&
             IN6_IS_ADDR_V4MAPPED(&sin6->sin6_addr))
        inet_ntop(AF_INET, &sin6->sin6_addr.s6_addr[12], out, NODE_ADDR_MAX);
    else if (ss->ss_family == AF_INET6)
        inet_ntop(AF_INET6, &sin6->sin6_addr, out, NODE_ADDR_MAX);
}

void node_conn_addresses(const struct node_conn *c, char peer[NODE_ADDR_MAX],
    char own[NODE_ADDR_MAX])
{
    struct sockaddr_storage ss = {0};
    socklen_t len = sizeof(ss);

    peer[0] = own[0] = '\0';
    if (getpeername(c->item.fd, (struct sockaddr *)&ss, &len) == 0)
        format(&ss, peer);
    len = sizeof(ss);
    if (getsockname(c->item.fd, (struct sockaddr *)&ss, &len) == 0)
        format(&ss, own);
}
