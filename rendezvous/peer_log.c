/* See peer_log.h. */
#include "rendezvous/peer_log.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/log.h"

/* An address with its scope and a port. */
#define PEER_TEXT_MAX 80

/* An IPv4 peer at a socket for both families. */
static void unmap(struct sockaddr_storage *ss, socklen_t *len)
{
    struct sockaddr_in6 sin6;
    struct sockaddr_in sin = {.sin_family = AF_INET};

    if (ss->ss_family != AF_INET6)
        return;
    memcpy(&sin6, ss, sizeof(sin6));
    if (!IN6_IS_ADDR_V4MAPPED(&sin6.sin6_addr))
        return;
    memcpy(&sin.sin_addr, sin6.sin6_addr.s6_addr + 12, sizeof(sin.sin_addr));
    sin.sin_port = sin6.sin6_port;
    memcpy(ss, &sin, sizeof(sin));
    *len = sizeof(sin);
}

/* "127.0.0.1:4711" or "[::1]:4711". */
static void peer_text(int fd, char *text, size_t size)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof(ss);
    char host[64], port[8];

    if (getpeername(fd, (struct sockaddr *)&ss, &len) < 0) {
        snprintf(text, size, "gone"); /* reset in the meantime */
        return;
    }
    if (ss.ss_family != AF_INET && ss.ss_family != AF_INET6) {
        snprintf(text, size, "local");
        return;
    }
    unmap(&ss, &len);
    if (getnameinfo((struct sockaddr *)&ss, len, host, sizeof(host), port,
            sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(text, size, "?");
    else
        snprintf(text, size, strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s",
            host, port);
}

static bool may_show(struct peer_log *l)
{
    uint64_t second = clock_now_ns() / CLOCK_NS_PER_S;

    if (second != l->second) {
        l->second = second;
        l->shown = 0;
    }
    if (l->shown == PEER_LOG_PER_SECOND) {
        l->hidden++;
        return false;
    }
    l->shown++;
    return true;
}

static void tell_hidden(struct peer_log *l)
{
    if (l->hidden > 0)
        log_warn("store", "and %lu more like that were not shown", l->hidden);
    l->hidden = 0;
}

void peer_log_warn(struct peer_log *l, int fd, const char *fmt, ...)
{
    char what[512], peer[PEER_TEXT_MAX];
    va_list ap;

    if (!log_enabled(LOG_WARN) || !may_show(l))
        return;
    tell_hidden(l);
    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    peer_text(fd, peer, sizeof(peer));
    log_warn("store", "%s peer=%s", what, peer);
}

void peer_log_fini(struct peer_log *l)
{
    tell_hidden(l);
}
