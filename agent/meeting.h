/*
 * Where the workers of a round meet: a store of its own for each round,
 * behind one port for the whole job; or, where rank 0 hosts the store, a port
 * that is kept free for it.
 */
#ifndef CRUN_AGENT_MEETING_H
#define CRUN_AGENT_MEETING_H

#include <stdbool.h>
#include <uv.h>

#include "rendezvous/base/err.h"
#include "rendezvous/listen.h"
#include "rendezvous/poller_uv.h"
#include "rendezvous/store_port.h"

struct store_server;

struct meeting {
    /* Before meeting_open(), where agents shall be let in, too. */
    store_port_agent_cb *agent_cb;
    void *agent_arg;
    const struct access *access; /* borrowed; NULL: everybody may connect */
    bool has_store;
    int port; /* MASTER_PORT */
    struct poller *poller; /* a guest in the agent's loop */
    struct poller_uv poller_uv;
    struct store_port *listener;
    struct store_server *store; /* of this round; NULL between rounds */
    int reserved[LISTEN_MAX];
    int nreserved;
};

/*
 * Opens port (0: a free one) at host for rounds of nproc workers. Waits a
 * moment for a port in use: the agent of a crun that was killed ends just
 * after it. nfds: descriptors that the agent needs beside connections.
 */
int meeting_open(struct meeting *m, uv_loop_t *loop, const char *host, int port,
    bool has_store, int nproc, size_t nfds, struct err *e);

/* An empty store. */
int meeting_begin_round(struct meeting *m, struct err *e);

/* Closes whoever is still connected; nobody gets in until the next round. */
void meeting_end_round(struct meeting *m);

/* Closes the handles: run the loop until it is empty. Takes a zeroed or
 * half-opened *m. */
void meeting_close(struct meeting *m);

#endif
