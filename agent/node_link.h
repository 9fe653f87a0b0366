/*
 * The agent's connection to the coordinator of a job of several nodes: it is
 * looked up and called until it answers or the time is over, each side proves
 * that it knows the job's secret, if there is one, and then it is kept alive.
 * A coordinator that may come back after it was lost is called again.
 */
#ifndef CRUN_AGENT_NODE_LINK_H
#define CRUN_AGENT_NODE_LINK_H

#include <netdb.h>
#include <uv.h>

#include "rendezvous/node_protocol.h"
#include "rendezvous/token.h"

struct node_link;

struct node_link_settings {
    const char *host; /* borrowed; of the coordinator */
    /* This host has one, too, but the endpoint's address is none of its own:
     * that one is called when nobody else answers within a few seconds.
     * Borrowed; NULL: there is none. */
    const char *own_host;
    int port;
    uint64_t join_timeout_ms; /* until it is reached */
    uint64_t coordinator_timeout_ms; /* until it is back */
    /* What the host's name means now, before it is called; NULL: nobody asks.
     */
    void (*looked_up)(void *arg, const struct addrinfo *addresses);
    void *looked_up_arg;
    const struct token *token; /* borrowed; NULL: there is no secret */
    struct node_msg join; /* what it is told first */
};

struct node_link_callbacks {
    /* Adds what is to be told now. */
    void (*join)(void *arg, struct node_msg *join);
    /* From WELCOME on, which comes again after lost(). */
    void (*message)(void *arg, const struct node_msg *msg);
    /* The coordinator is gone, and may come back: one sentence. */
    void (*lost)(void *arg, const char *why);
    /* The coordinator cannot be reached, has refused this node, or is lost:
     * one sentence. Nothing follows. */
    void (*ended)(void *arg, const char *why);
};

int node_link_create(struct node_link **out, uv_loop_t *loop,
    const struct node_link_settings *settings,
    const struct node_link_callbacks *callbacks, void *arg);

/* Without a connection it says nothing to anybody. */
void node_link_send(struct node_link *l, const struct node_msg *msg);

/* The node is through: if it is not in, it does not come in any more. */
void node_link_finish(struct node_link *l);

/* Sends what is queued as far as that can be done now. The memory goes in the
 * last close callback: run the loop until it is empty. Takes NULL. */
void node_link_destroy(struct node_link *l);

#endif
