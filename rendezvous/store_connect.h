/*
 * Getting a connection to a TCPStore, and knowing what it speaks: the part
 * of the client that comes before any request.
 */
#ifndef CRUN_RENDEZVOUS_STORE_CONNECT_H
#define CRUN_RENDEZVOUS_STORE_CONNECT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "rendezvous/base/err.h"
#include "rendezvous/store_codec.h"

/* A server that has been found. */
struct store_peer {
    struct sockaddr_storage addr;
    socklen_t addr_len;
    enum store_dialect dialect;
    bool is_crun; /* a GET of a missing key does no harm */
};

/*
 * See store_client_connect() for retries, the deadline and errors. Returns a
 * greeted socket (store_io.h) that is the caller's, or a negative errno.
 */
int store_connect(struct store_peer *peer, const char *host, int port,
    uint64_t deadline_ns, struct err *e);

/* One more connection to the same server: one attempt, greeted as its
 * dialect wants, without an answer to wait for. */
int store_connect_again(const struct store_peer *peer, uint64_t deadline_ns);

#endif
