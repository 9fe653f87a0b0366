/*
 * A store on a TCP port, served by the caller's libuv loop.
 *
 * struct store_keys (the key space) and struct store_session (one client's
 * protocol state) do no I/O; this file gives them sockets. A server owns one
 * key space. Destroying the server closes its listeners and every client.
 */
#ifndef CRUN_RENDEZVOUS_STORE_SERVER_H
#define CRUN_RENDEZVOUS_STORE_SERVER_H

#include <stdint.h>
#include <uv.h>

#include "rendezvous/base/err.h"

struct store_server;

int store_server_create(struct store_server **out, uv_loop_t *loop);

/*
 * Listens on every address that host resolves to on this machine, all with
 * one port; port 0 lets the kernel choose. *bound_port is the port. A
 * numeric host is not looked up. Errors name host and port: -EADDRINUSE,
 * -EADDRNOTAVAIL (no address of this machine), resolver's errors.
 */
int store_server_listen(struct store_server *s, const char *host, int port,
    int *bound_port, struct err *e);

/* How long a connection may stay without a greeting; 30 s unless set. For
 * connections accepted from now on. */
void store_server_set_greeting_ms(struct store_server *s, uint64_t ms);

/* Closes everything; memory is freed by the loop's later close callbacks,
 * so run the loop until it is empty. Takes NULL. */
void store_server_destroy(struct store_server *s);

#endif
