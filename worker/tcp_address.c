/* Addresses and sockets of the TCP transport; see tcp_internal.h. */
#include "tcp_internal.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A host that has vanished without a word is noticed after two minutes, also
 * by a group that may wait longer. */
#define KEEPALIVE_IDLE_S 60
#define KEEPALIVE_INTERVAL_S 10
#define KEEPALIVE_PROBES 6

/* An IPv4 address that came through an IPv6 socket reads as what it is. */
static int address_text(
    const struct sockaddr_storage *ss, socklen_t len, char out[TCP_ADDR_BYTES])
{
    const char *mapped = "::ffff:";
    size_t skip = strlen(mapped);

    if (getnameinfo((const struct sockaddr *)ss, len, out, TCP_ADDR_BYTES, NULL,
            0, NI_NUMERICHOST) != 0)
        return -EAFNOSUPPORT;
    if (strncmp(out, mapped, skip) == 0 && strchr(out, '.') != NULL)
        memmove(out, out + skip, strlen(out + skip) + 1);
    return 0;
}

int tcp_local_address(int fd, char out[TCP_ADDR_BYTES])
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof(ss);

    if (getsockname(fd, (struct sockaddr *)&ss, &len) < 0)
        return -errno;
    return address_text(&ss, len, out);
}

int tcp_peer_address(int fd, char out[TCP_ADDR_BYTES])
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof(ss);

    if (getpeername(fd, (struct sockaddr *)&ss, &len) < 0)
        return -errno;
    return address_text(&ss, len, out);
}

static bool is_loopback(const char *addr)
{
    return strncmp(addr, "127.", 4) == 0 || strcmp(addr, "::1") == 0;
}

bool tcp_is_within_host(int fd)
{
    char local[TCP_ADDR_BYTES];
    char peer[TCP_ADDR_BYTES];

    return tcp_local_address(fd, local) == 0 &&
           tcp_peer_address(fd, peer) == 0 &&
           (is_loopback(peer) || strcmp(local, peer) == 0);
}

/* Connecting a datagram socket only looks up the route. The addresses are
 * those that are reserved for documents. */
void tcp_outward_address(char out[TCP_ADDR_BYTES])
{
    static const char *const anywhere[] = {"192.0.2.1", "2001:db8::1"};

    for (int i = 0; i < 2; i++) {
        const struct addrinfo hints = {
            .ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST};
        struct addrinfo *ai;
        bool is_found = false;
        int fd;

        if (getaddrinfo(anywhere[i], "9", &hints, &ai) != 0)
            continue;
        fd = socket(ai->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd >= 0) {
            is_found = connect(fd, ai->ai_addr, ai->ai_addrlen) == 0 &&
                       tcp_local_address(fd, out) == 0;
            close(fd);
        }
        freeaddrinfo(ai);
        if (is_found)
            return;
    }
    snprintf(out, TCP_ADDR_BYTES, "127.0.0.1");
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

static int listen_at(const struct sockaddr *addr, socklen_t len)
{
    const int off = 0;
    int fd =
        socket(addr->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int rc;

    if (fd < 0)
        return -errno;
    if (addr->sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (bind(fd, addr, len) == 0 && listen(fd, INT_MAX) == 0)
        return fd;
    rc = -errno;
    close(fd);
    return rc;
}

int tcp_listen(int *fd, int *port)
{
    const struct sockaddr_in6 both = {
        .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    const struct sockaddr_in old = {.sin_family = AF_INET};

    *fd = listen_at((const struct sockaddr *)&both, sizeof(both));
    if (*fd == -EAFNOSUPPORT || *fd == -EADDRNOTAVAIL) /* IPv6 is off */
        *fd = listen_at((const struct sockaddr *)&old, sizeof(old));
    if (*fd < 0)
        return *fd;
    *port = port_of(*fd);
    if (*port >= 0)
        return 0;
    close(*fd);
    *fd = -1;
    return *port;
}

static void set_option(int fd, int level, int name, int value)
{
    setsockopt(fd, level, name, &value, sizeof(value));
}

void tcp_set_options(int fd)
{
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES);
}
