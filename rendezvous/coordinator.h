/*
 * The coordinator of jobs of several nodes: membership.h, with connections, a
 * clock, and a look at who may take part. Agents come from a port
 * (store_port.h's agent_cb).
 */
#ifndef CRUN_RENDEZVOUS_COORDINATOR_H
#define CRUN_RENDEZVOUS_COORDINATOR_H

#include <stddef.h>

#include "rendezvous/base/err.h"
#include "rendezvous/membership.h"
#include "rendezvous/poller.h"
#include "rendezvous/token.h"

struct coordinator;

/*
 * Of the job that settings (copied) describe; NULL: of whatever jobs come, told
 * apart by their run ids, each described by its first node. Such a coordinator
 * may be started again at its place while they run. The poller and the token
 * (NULL: there is no secret) are borrowed.
 */
int coordinator_create(struct coordinator **out, struct poller *p,
    const struct membership_settings *settings, const struct token *token);

/* Takes fd, a connection that began with the agents' magic; head is what it has
 * sent, the magic included. A store_port_agent_cb with the coordinator as
 * arg. */
void coordinator_adopt(
    int fd, const void *head, size_t head_len, void *coordinator);

/* Tells the nodes of the job that it was created for why it ends, unless it is
 * over; sends what is queued as far as that can be done now, and closes. Takes
 * NULL. */
void coordinator_destroy(struct coordinator *c, const char *why);

#endif
