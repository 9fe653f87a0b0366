/*
 * A store with its clients: a key space (store_keys.h), and one session
 * (store_session.h) and one socket for each client. Several can live in one
 * process. Clients come from a port (store_port.h).
 */
#ifndef CRUN_RENDEZVOUS_STORE_SERVER_H
#define CRUN_RENDEZVOUS_STORE_SERVER_H

#include <stddef.h>
#include <stdint.h>

#include "rendezvous/poller.h"
#include "rendezvous/store_codec.h"
#include "rendezvous/store_limits.h"

struct store_server;

/* The poller is borrowed; limits (NULL: the defaults) are copied. */
int store_server_create(struct store_server **out, struct poller *p,
    const struct store_limits *limits);

/* Closes every client, also in the middle of poller_run(). Takes NULL. No port
 * may have it as its store any more. */
void store_server_destroy(struct store_server *s);

/*
 * Takes a connected, non-blocking socket (also on failure) as a client that
 * speaks a dialect; head is what it has already sent. 0 or a negative errno,
 * which is the client's fault alone and has been logged.
 */
int store_server_adopt(struct store_server *s, int fd,
    enum store_dialect dialect, const void *head, size_t head_len);

size_t store_server_clients(const struct store_server *s);

/* Of the clients, those that have checked in as workers; and how many clients
 * ever have. */
size_t store_server_workers(const struct store_server *s);
size_t store_server_check_ins(const struct store_server *s);

/* Keys with a value. */
size_t store_server_keys(const struct store_server *s);

#endif
