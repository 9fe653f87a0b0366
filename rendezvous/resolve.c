/* See resolve.h. */
#include "rendezvous/resolve.h"

#include <stdio.h>
#include <sys/socket.h>

int resolve(const char *host, int port, int flags, struct addrinfo **out)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
        .ai_flags = flags | AI_NUMERICHOST | AI_NUMERICSERV};
    char service[16];
    int rc;

    snprintf(service, sizeof(service), "%d", port);
    rc = getaddrinfo(host, service, &hints, out);
    if (rc == EAI_NONAME) {
        hints.ai_flags &= ~AI_NUMERICHOST;
        rc = getaddrinfo(host, service, &hints, out);
    }
    return rc;
}
