/*
 * See store_io.h. The socket blocks, for a moment: most answers come within
 * microseconds, and a receive that waits for them by itself saves the poll()
 * in front of it. What takes longer is polled for.
 */
#include "rendezvous/store_io.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/interrupt.h"

/* How long a receive blocks, and how much time must be left for that: the
 * kernel's timers are coarse. */
#define STORE_IO_MOMENT_MS 10
#define STORE_IO_MOMENT_NEEDS_MS 50

/* A host that has vanished is noticed after 60 + 6 x 10 s of silence. */
#define STORE_IO_IDLE_S 60
#define STORE_IO_PROBE_S 10
#define STORE_IO_PROBES 6

/* ETIMEDOUT from the kernel is its verdict, not our deadline. */
static int socket_error(int error)
{
    return error == ETIMEDOUT ? -EHOSTDOWN : -error;
}

/*
 * On loopback a connection to a free port of the ephemeral range can end up
 * connected to itself, and then keeps the server from listening there.
 */
static bool is_connected_to_itself(int fd)
{
    struct sockaddr_storage local, peer;
    socklen_t local_len = sizeof(local), peer_len = sizeof(peer);

    memset(&local, 0, sizeof(local));
    memset(&peer, 0, sizeof(peer));
    return getsockname(fd, (struct sockaddr *)&local, &local_len) == 0 &&
           getpeername(fd, (struct sockaddr *)&peer, &peer_len) == 0 &&
           local_len == peer_len && memcmp(&local, &peer, local_len) == 0;
}

/* Closed in good order it would, for a minute, do the same. */
static void reset(int fd)
{
    const struct linger at_once = {.l_onoff = 1};

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

static int finish_connect(int fd, uint64_t deadline_ns)
{
    socklen_t len = sizeof(int);
    int error = 0;
    int rc = interrupt_wait(fd, POLLOUT, deadline_ns);

    if (rc < 0)
        return rc;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
        return -errno;
    return socket_error(error);
}

static void set_option(int fd, int level, int option, int value)
{
    /* All of them only improve things: failing is no reason to fail. */
    setsockopt(fd, level, option, &value, sizeof(value));
}

static int set_up(int fd)
{
    struct timeval moment = {.tv_usec = STORE_IO_MOMENT_MS * 1000};

    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, STORE_IO_IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, STORE_IO_PROBE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, STORE_IO_PROBES);
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &moment, sizeof(moment)) < 0)
        return -errno; /* a receive would block for ever */
    return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) < 0 ? -errno
                                                                    : 0;
}

int store_io_connect(
    const struct sockaddr *addr, socklen_t addr_len, uint64_t deadline_ns)
{
    int fd, rc;

    fd = socket(addr->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    rc = connect(fd, addr, addr_len) < 0 ? socket_error(errno) : 0;
    /* A signal does not stop a connect, it goes on by itself. */
    if (rc == -EINPROGRESS || rc == -EINTR)
        rc = finish_connect(fd, deadline_ns);
    if (rc == 0 && is_connected_to_itself(fd)) {
        reset(fd);
        rc = -ECONNREFUSED;
    }
    if (rc == 0)
        rc = set_up(fd);
    if (rc == 0)
        return fd;
    close(fd);
    return rc;
}

void store_io_close(int fd)
{
    shutdown(fd, SHUT_RDWR);
    close(fd);
}

int store_io_send(
    int fd, struct iovec *iov, size_t iov_count, uint64_t deadline_ns)
{
    while (iov_count > 0) {
        struct msghdr msg = {.msg_iov = iov, .msg_iovlen = iov_count};
        /* The simple call is the faster one. */
        ssize_t n = iov_count == 1
                        ? send(fd, iov->iov_base, iov->iov_len,
                              MSG_NOSIGNAL | MSG_DONTWAIT)
                        : sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        size_t left;

        if (n < 0 && errno == EAGAIN) {
            int rc = interrupt_wait(fd, POLLOUT, deadline_ns);

            if (rc < 0)
                return rc;
        } else if (n < 0 && errno != EINTR) {
            return socket_error(errno);
        }
        for (left = n > 0 ? (size_t)n : 0;
             iov_count > 0 && left >= iov->iov_len; iov_count--, iov++)
            left -= iov->iov_len;
        if (left > 0) {
            iov->iov_base = (char *)iov->iov_base + left;
            iov->iov_len -= left;
        }
    }
    return 0;
}

ssize_t store_io_recv(int fd, void *data, size_t max, uint64_t deadline_ns)
{
    bool may_block = clock_left_ms(deadline_ns) >= STORE_IO_MOMENT_NEEDS_MS;

    for (;;) {
        ssize_t n;

        if (!may_block) {
            int rc = interrupt_wait(fd, POLLIN, deadline_ns);

            if (rc < 0)
                return rc;
        }
        n = recv(fd, data, max, may_block ? 0 : MSG_DONTWAIT);
        if (n > 0)
            return n;
        if (n == 0)
            return -ECONNRESET;
        if (errno != EAGAIN && errno != EINTR)
            return socket_error(errno);
        may_block = false; /* it takes longer */
    }
}
