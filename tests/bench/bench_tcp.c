/*
 * The collective benchmark over two bare TCP connections between two ranks:
 * what the network between two nodes can do. Rank 0 listens at MASTER_ADDR and
 * MASTER_PORT. A message goes there and back over the first connection; an
 * exchange has a connection for each direction.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/coll_loop.h"

#define WAIT_MS 30000
#define RETRY_MS 20
#define RECV_TRIES 200

/* [0]: from rank 0 to rank 1, and there and back. [1]: from 1 to 0. */
static int connections[2] = {-1, -1};
static int my_rank;

static int fail(const char *what)
{
    perror(what);
    return -1;
}

static int wait_for(struct pollfd *fds, nfds_t n)
{
    int rc;

    do
        rc = poll(fds, n, WAIT_MS);
    while (rc < 0 && errno == EINTR);
    if (rc > 0)
        return 0;
    if (rc == 0)
        errno = ETIMEDOUT;
    return fail("poll");
}

static int send_to(const float *buf, size_t count, int peer)
{
    const char *at = (const char *)buf;
    size_t left = count * sizeof(*buf);

    (void)peer;
    while (left > 0) {
        ssize_t n = send(connections[0], at, left, MSG_NOSIGNAL);
        if (n < 0)
            return fail("send");
        at += n;
        left -= (size_t)n;
    }
    return 0;
}

/* Asks for a while before it sleeps, which is the fastest that there is. */
static int recv_from(float *buf, size_t count, int peer)
{
    char *at = (char *)buf;
    size_t left = count * sizeof(*buf);
    int tries = 0;

    (void)peer;
    while (left > 0) {
        int flags = tries++ < RECV_TRIES ? MSG_DONTWAIT : 0;
        ssize_t n = recv(connections[0], at, left, flags);
        if (n < 0 && flags != 0 && errno == EAGAIN)
            continue;
        if (n <= 0)
            return fail("recv");
        at += n;
        left -= (size_t)n;
        tries = 0;
    }
    return 0;
}

/* What could be sent or received now; -1 after a failure or the end. */
static ssize_t progress(ssize_t n)
{
    if (n > 0)
        return n;
    return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

static int exchange(const float *send_buf, float *recv_buf, size_t count)
{
    int out = connections[my_rank], in = connections[my_rank ^ 1];
    size_t bytes = count * sizeof(*send_buf);
    size_t sent = 0, received = 0;

    while (sent < bytes || received < bytes) {
        struct pollfd fds[2] = {
            {.fd = sent < bytes ? out : -1, .events = POLLOUT},
            {.fd = received < bytes ? in : -1, .events = POLLIN},
        };
        ssize_t s = 0, r = 0;
        if (sent < bytes)
            s = progress(send(out, (const char *)send_buf + sent, bytes - sent,
                MSG_DONTWAIT | MSG_NOSIGNAL));
        if (received < bytes)
            r = progress(recv(in, (char *)recv_buf + received, bytes - received,
                MSG_DONTWAIT));
        if (s < 0 || r < 0)
            return fail("exchange");
        sent += (size_t)s;
        received += (size_t)r;
        if (s == 0 && r == 0 && wait_for(fds, 2) < 0)
            return -1;
    }
    return 0;
}

static int listen_for(const struct sockaddr_in *at)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int one = 1, rc = -1;

    if (fd < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
        bind(fd, (const struct sockaddr *)at, sizeof(*at)) < 0 ||
        listen(fd, 2) < 0) {
        fail("listen");
        goto done;
    }
    for (int i = 0; i < 2; i++) {
        if (wait_for(&p, 1) < 0)
            goto done;
        connections[i] = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        if (connections[i] < 0) {
            fail("accept");
            goto done;
        }
    }
    rc = 0;
done:
    if (fd >= 0)
        close(fd);
    return rc;
}

/* One connection; rank 0 may not listen yet. */
static int connect_to(const struct sockaddr_in *at)
{
    struct timespec pause = {0, RETRY_MS * 1000000L};

    for (int waited = 0; waited < WAIT_MS; waited += RETRY_MS) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            return fail("socket");
        if (connect(fd, (const struct sockaddr *)at, sizeof(*at)) == 0)
            return fd;
        close(fd);
        nanosleep(&pause, NULL);
    }
    return fail("connect");
}

static int join(void)
{
    const char *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    struct sockaddr_in at = {.sin_family = AF_INET};
    int one = 1;

    if (host == NULL || port == NULL ||
        inet_pton(AF_INET, host, &at.sin_addr) != 1) {
        fprintf(stderr, "MASTER_ADDR (an IPv4 address) or _PORT is missing\n");
        return -1;
    }
    at.sin_port = htons((uint16_t)strtoul(port, NULL, 10));
    if (my_rank == 0) {
        if (listen_for(&at) < 0)
            return -1;
    } else {
        for (int i = 0; i < 2; i++) {
            connections[i] = connect_to(&at);
            if (connections[i] < 0)
                return -1;
        }
    }
    for (int i = 0; i < 2; i++)
        if (setsockopt(connections[i], IPPROTO_TCP, TCP_NODELAY, &one,
                sizeof(one)) < 0)
            return fail("TCP_NODELAY");
    return 0;
}

int main(int argc, char **argv)
{
    struct bench_coll coll = {
        .size = 2,
        .send = send_to,
        .recv = recv_from,
        .exchange = exchange,
    };
    const char *rank = getenv("RANK");

    if (argc != 2 || rank == NULL) {
        fprintf(stderr, "usage: RANK=0|1 %s FOLDER\n", argv[0]);
        return 2;
    }
    coll.rank = my_rank = strcmp(rank, "0") != 0;
    if (join() < 0)
        return 1;
    return bench_coll_loop(&coll, argv[1]) < 0;
}
