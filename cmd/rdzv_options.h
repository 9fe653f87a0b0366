/*
 * The options that say how many nodes there are and how they find each other,
 * checked and understood. Everything that torchrun's options mean about that
 * is decided here.
 */
#ifndef CRUN_CMD_RDZV_OPTIONS_H
#define CRUN_CMD_RDZV_OPTIONS_H

#include <stdbool.h>

#include "cmd/options.h"
#include "rendezvous/base/err.h"

#define RDZV_HOST_MAX 256 /* of a DNS name, with its NUL */

struct rdzv_options {
    int min_nodes;
    int max_nodes;
    /* What the workers see; port 0 is a free one. */
    char master_addr[RDZV_HOST_MAX];
    int master_port;
    const char *run_id; /* borrowed; NULL: a random one */

    /* With several nodes: where agents meet, and the settings of rdzv_conf. */
    bool is_static;
    int node_rank; /* -1: none was given */
    char endpoint_host[RDZV_HOST_MAX];
    int endpoint_port;
    int is_host; /* 1, 0, or -1: not said */
    int timeout_s; /* static */
    int join_timeout_s; /* c10d */
    int last_call_s;
    int keep_alive_s;
    int keep_alive_attempts;
};

/*
 * Reads nnodes, node_rank, rdzv_*, master_*, local_addr and standalone. How
 * workers meet then follows from the mode:
 *
 *   standalone   a free port, or --master_port; one node
 *   static       without an endpoint and a port, and on one node: the same;
 *                else the endpoint, or --master_addr and --master_port (29500)
 *   c10d         a free port; the endpoint is for the agents
 *
 * The run id is rdzv_id; without one it is "none" where a static job has an
 * endpoint or port, else a random one. MASTER_ADDR is --master_addr (not with
 * c10d), else --local_addr (but not for a port that was given), else
 * 127.0.0.1.
 *
 * -EINVAL, with a sentence; what is only odd is logged.
 */
int rdzv_options_read(
    struct rdzv_options *r, const struct options *o, struct err *e);

#endif
