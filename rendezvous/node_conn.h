/*
 * One connection of the agents' protocol, on a poller: bytes to frames and
 * back. Both ends use it. What is sent is queued and written when the poller
 * runs; nothing here calls back from within a call of the owner's.
 */
#ifndef CRUN_RENDEZVOUS_NODE_CONN_H
#define CRUN_RENDEZVOUS_NODE_CONN_H

#include <stdbool.h>
#include <stddef.h>

#include "rendezvous/node_protocol.h"
#include "rendezvous/poller.h"

struct node_conn;

struct node_conn_callbacks {
    /* One frame. May close the connection. */
    void (*message)(void *arg, const struct node_msg *msg);
    /* It is of no more use, for that reason; close it. */
    void (*ended)(void *arg, const char *why);
};

/* Takes fd, which is non-blocking, also on failure; head is what the other
 * side has already sent, its magic excluded. */
int node_conn_open(struct node_conn **out, struct poller *p, int fd,
    const void *head, size_t head_len,
    const struct node_conn_callbacks *callbacks, void *arg);

/* Queues a frame. One that does not fit, as the other side has read nothing
 * for long, ends the connection. */
void node_conn_send(struct node_conn *c, const struct node_msg *msg);

/* Likewise bytes that are no frame: the magic. */
void node_conn_send_bytes(struct node_conn *c, const void *bytes, size_t len);

/* Sends what is queued as far as that can be done now, and closes. Takes
 * NULL. */
void node_conn_close(struct node_conn *c);

/* Why a connection is of no more use when the other side has closed it. */
extern const char node_conn_closed[];

/* For its addresses only. */
int node_conn_fd(const struct node_conn *c);

/* The other side's address, or this side's, in numbers; "" if unknown. */
void node_conn_addresses(const struct node_conn *c, char peer[NODE_ADDR_MAX],
    char own[NODE_ADDR_MAX]);

#endif
