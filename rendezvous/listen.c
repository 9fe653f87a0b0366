/*
 * See listen.h: from a host's name to sockets, with the options that every
 * connection of a port shall have.
 */
#include "rendezvous/listen.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/resolve.h"

/* Port 0: how often the kernel's choice may be in use on another address. */
#define LISTEN_TRIES 16

/* For the name service: more than its own time-outs are, as a rule. */
#define LISTEN_RESOLVE_MS 30000

/* A peer whose machine has vanished is noticed after two minutes. */
#define KEEPALIVE_IDLE_S 60
#define KEEPALIVE_INTERVAL_S 10
#define KEEPALIVE_PROBES 6

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

static int set_option(int fd, int level, int name, int value)
{
    return setsockopt(fd, level, name, &value, sizeof(value)) < 0 ? -errno : 0;
}

/*
 * Accepted sockets inherit these. Keep-alive and not TCP_USER_TIMEOUT: the
 * latter would also end a client that a debugger has stopped, whose kernel
 * still answers.
 */
static int set_options(int fd, const struct sockaddr *sa, bool is_alone)
{
    int rc;

    if ((rc = set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1)) < 0 ||
        (rc = set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1)) < 0 ||
        (rc = set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1)) < 0 ||
        (rc = set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S)) <
            0 ||
        (rc = set_option(
             fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)) < 0 ||
        (rc = set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES)) < 0)
        return rc;
    if (sa->sa_family != AF_INET6)
        return 0;
    /* "::" alone stands for both families; beside others, and any other
     * address, for itself. */
    return set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY,
        !is_alone || !IN6_IS_ADDR_UNSPECIFIED(
                         &((const struct sockaddr_in6 *)sa)->sin6_addr));
}

/* A bound socket, or a negative errno. */
static int open_socket(const struct addrinfo *ai, bool is_alone, bool listens)
{
    int fd, rc;

    fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    rc = set_options(fd, ai->ai_addr, is_alone);
    if (rc < 0)
        goto fail;
    /* The kernel cuts the backlog down to net.core.somaxconn. */
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) < 0 ||
        (listens && listen(fd, INT_MAX) < 0)) {
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

static void close_all(const int *fds, int n)
{
    for (int i = 0; i < n; i++)
        close(fds[i]);
}

/*
 * Opens a socket for each address that is one of this machine; all get the
 * port of the first. Returns their number or a negative errno; *port is the
 * port at the end or that of the failure.
 */
static int open_sockets(
    struct addrinfo *list, bool listens, int fds[LISTEN_MAX], int *port)
{
    int rc = -EADDRNOTAVAIL;
    int n = 0;

    /* Ports are compared too, so they have to be the same from the start. */
    for (struct addrinfo *ai = list; ai != NULL; ai = ai->ai_next)
        set_port(ai->ai_addr, 0);
    for (struct addrinfo *ai = list; ai != NULL && n < LISTEN_MAX;
         ai = ai->ai_next) {
        struct addrinfo with_port = *ai;
        struct sockaddr_storage ss;
        int fd;

        if (is_repeated(list, ai))
            continue;
        memcpy(&ss, ai->ai_addr, ai->ai_addrlen);
        with_port.ai_addr = (struct sockaddr *)&ss;
        set_port(with_port.ai_addr, *port);
        fd = open_socket(&with_port, list->ai_next == NULL, listens);
        if (fd == -EADDRNOTAVAIL || fd == -EAFNOSUPPORT)
            continue; /* not of this machine, or IPv6 is off */
        rc = fd;
        if (fd >= 0) {
            fds[n++] = fd;
            if (*port == 0)
                rc = *port = port_of(fd);
        }
        if (rc < 0) {
            close_all(fds, n);
            return rc;
        }
    }
    return n > 0 ? n : rc;
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

static int find_addresses(const char *host, int port, uint64_t deadline_ns,
    struct addrinfo **list, struct err *e)
{
    int rc = resolve_until(host, port, AI_PASSIVE, deadline_ns, list);

    if (rc == 0)
        return 0;
    if (rc == EAI_INPROGRESS)
        return err_set(e, -ETIMEDOUT,
            "cannot listen on %s port %d: the name does not resolve, the name "
            "service is silent",
            host, port);
    return err_set(e, rc == EAI_MEMORY ? -ENOMEM : -ENOENT,
        "cannot listen on %s port %d: the name does not resolve (%s)", host,
        port, gai_strerror(rc));
}

int listen_check_name(
    const char *host, int port, uint64_t deadline_ns, struct err *e)
{
    struct addrinfo *list;
    int rc = find_addresses(host, port, deadline_ns, &list, e);

    if (rc == 0)
        freeaddrinfo(list);
    return rc;
}

static int open_port(const char *host, int port, bool listens,
    int fds[LISTEN_MAX], int *bound_port, struct err *e)
{
    struct sockaddr_in any = {.sin_family = AF_INET};
    struct addrinfo ipv4 = {.ai_family = AF_INET,
        .ai_addr = (struct sockaddr *)&any,
        .ai_addrlen = sizeof(any)};
    struct addrinfo *list = NULL;
    int chosen = port;
    int rc, n;

    if (port < 0 || port > 65535)
        return err_set(e, -EINVAL, "port %d is not between 0 and 65535", port);
    rc = find_addresses(
        host, port, clock_deadline_ns(LISTEN_RESOLVE_MS), &list, e);
    if (rc < 0)
        return rc;
    n = open_sockets(list, listens, fds, &chosen);
    for (int i = 1; port == 0 && n == -EADDRINUSE && i < LISTEN_TRIES; i++) {
        chosen = 0;
        n = open_sockets(list, listens, fds, &chosen);
    }
    freeaddrinfo(list);
    if (n == -EADDRNOTAVAIL && strcmp(host, "::") == 0) /* IPv6 is off */
        n = open_sockets(&ipv4, listens, fds, &chosen);
    if (n < 0)
        return listen_error(host, chosen, n, e);
    *bound_port = chosen;
    return n;
}

int listen_open(const char *host, int port, int fds[LISTEN_MAX],
    int *bound_port, struct err *e)
{
    return open_port(host, port, true, fds, bound_port, e);
}

int listen_reserve(const char *host, int port, int fds[LISTEN_MAX],
    int *bound_port, struct err *e)
{
    return open_port(host, port, false, fds, bound_port, e);
}
