/*
 * A TCP port that recognises who connects by the first bytes (store_sniff.h)
 * and hands each connection on: TCPStore clients to the port's store, agents
 * to a callback. Who sends nothing is no trouble and stays, for the oldest
 * store clients open a connection that may be silent for its whole life. When
 * descriptors run short, those that have been silent for a second go, the
 * oldest first; if there are none, new ones wait in the backlog.
 */
#ifndef CRUN_RENDEZVOUS_STORE_PORT_H
#define CRUN_RENDEZVOUS_STORE_PORT_H

#include <stddef.h>
#include <stdint.h>

#include "rendezvous/access.h"
#include "rendezvous/base/err.h"
#include "rendezvous/poller.h"
#include "rendezvous/store_server.h"
#include "rendezvous/store_sniff.h"

struct store_port;

/* Takes fd, which is non-blocking; head is what the agent has already sent,
 * the magic included. May destroy the port. */
typedef void store_port_agent_cb(
    int fd, const void *head, size_t head_len, void *arg);

struct store_port_options {
    /* How clients without a greeting are read: STORE_DIALECT_A (the default,
     * PyTorch 1.13 and 2.0), STORE_DIALECT_B (2.1), or STORE_DIALECT_C: they
     * are refused. */
    enum store_dialect old_dialect;
    /* Strangers of the port and clients of its store together; beyond it the
     * oldest silent stranger is closed, else the new connection. 0: the
     * limits' default. */
    size_t max_connections;
    store_port_agent_cb *agent_cb; /* NULL: agents are refused */
    void *agent_arg;
    /* Who may connect; its second half is about TCPStore clients, not about
     * agents. It is asked for each connection anew and not about those that
     * are served already. Borrowed; NULL: everybody. */
    const struct access *access;
};

/*
 * Listens as listen_open() does. The poller is borrowed; options (NULL: the
 * defaults) are copied. *bound_port is the port.
 */
int store_port_create(struct store_port **out, struct poller *p,
    const char *host, int port, const struct store_port_options *options,
    int *bound_port, struct err *e);

/* Closes the listeners and whoever is not recognised yet, not the store's
 * clients. Takes NULL. */
void store_port_destroy(struct store_port *port);

/*
 * The store (borrowed) that clients get from now on. NULL: they are closed
 * after their first bytes, and come again if they are patient. Clients of the
 * store before are not touched: destroying that store closes them.
 */
void store_port_set_store(struct store_port *port, struct store_server *s);

/* Connections that are not recognised yet. */
size_t store_port_strangers(const struct store_port *port);

#endif
