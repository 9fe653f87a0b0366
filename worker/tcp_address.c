/* Addresses and sockets of the TCP transport; see tcp_internal.h. */
#include "tcp_internal.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/listen.h"

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

int tcp_listen(int *fd, int *port)
{
    int fds[LISTEN_MAX];
    int n = listen_open("::", 0, fds, port, NULL); /* one for both families */

    *fd = n < 0 ? -1 : fds[0];
    return n < 0 ? n : 0;
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
