/*
 * The other nodes of the job, as one agent sees them: the coordinator, where
 * this node hosts it, and the connection to it.
 */
#ifndef CRUN_AGENT_NODES_H
#define CRUN_AGENT_NODES_H

#include <uv.h>

#include "agent/job.h"
#include "agent/meeting.h"
#include "agent/node_link.h"
#include "rendezvous/base/err.h"

struct nodes;

/*
 * Opens the meeting, too: with static rendezvous node rank 0 has it at the
 * endpoint, behind one port with the coordinator; with dynamic rendezvous
 * every node has one, at a port of its own, since any may become group rank
 * 0; so it is where rank 0 of the job hosts the store. job, meeting, run_id and
 * host are borrowed. nfds as meeting_open() has it. *out is to be destroyed
 * also after a failure, unless it is NULL.
 */
int nodes_create(struct nodes **out, uv_loop_t *loop, const struct job *job,
    struct meeting *meeting, const char *run_id, const char *host,
    uint64_t agent_id, size_t nfds, const struct node_link_callbacks *callbacks,
    void *arg, struct err *e);

void nodes_send(struct nodes *n, const struct node_msg *msg);

/* See node_link_finish(). */
void nodes_finish(struct nodes *n);

/* Workers come to this node's store from these addresses, too; is_first: from
 * those that were told of before they come no more. */
void nodes_allow_peers(struct nodes *n, const char *addrs, bool is_first);

/* Before meeting_close(). why: for the other nodes, if this one hosts the
 * coordinator and the job is not over. The memory goes in the last close
 * callback. Takes NULL. */
void nodes_destroy(struct nodes *n, const char *why);

#endif
