/*
 * The coordinator of a job of several nodes: membership.h, with connections
 * and a clock. Agents come from a port (store_port.h's agent_cb).
 */
#ifndef CRUN_RENDEZVOUS_COORDINATOR_H
#define CRUN_RENDEZVOUS_COORDINATOR_H

#include <stddef.h>

#include "rendezvous/membership.h"
#include "rendezvous/poller.h"

struct coordinator;

/* The poller is borrowed; settings are copied. */
int coordinator_create(struct coordinator **out, struct poller *p,
    const struct membership_settings *settings);

/* Takes fd, a connection that began with the agents' magic; head is what it has
 * sent, the magic included. A store_port_agent_cb with the coordinator as
 * arg. */
void coordinator_adopt(
    int fd, const void *head, size_t head_len, void *coordinator);

/* Nodes that are connected and let in. */
int coordinator_nodes(const struct coordinator *c);

/* Sends what is queued as far as that can be done now, and closes. Takes
 * NULL. */
void coordinator_destroy(struct coordinator *c);

#endif
