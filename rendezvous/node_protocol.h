/*
 * The agents' protocol: what the agent of a node and the coordinator say to
 * each other over TCP. The codec does no I/O. docs/protocol.md has the bytes
 * and the conversation.
 *
 * An agent opens with the five bytes by which the port knows it
 * (store_sniff.h); then both sides send frames.
 */
#ifndef CRUN_RENDEZVOUS_NODE_PROTOCOL_H
#define CRUN_RENDEZVOUS_NODE_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>

#include "rendezvous/base/buf.h"
#include "rendezvous/token.h"

#define NODE_PROTOCOL_VERSION 1

/* Every frame is shorter: whoever announces more is no peer. */
#define NODE_FRAME_MAX 4096

#define NODE_HOST_MAX 256
#define NODE_ADDR_MAX 256 /* a name is allowed, too */
#define NODE_ROLE_MAX 128
#define NODE_RUN_ID_MAX 256
#define NODE_TEXT_MAX 512
#define NODE_ADDRS_MAX 256 /* several, with blanks between them */

/* X(symbol): see docs/protocol.md for who says what when. */
#define NODE_MSG_MAP(X)                                                        \
    X(NODE_HELLO) /* coordinator: how to prove who one is */                   \
    X(NODE_JOIN) /* agent: who it is, what it brings and where it was */       \
    X(NODE_WELCOME) /* it is in; how often to be heard of */                   \
    X(NODE_REFUSED) /* it is not, and why; the connection ends */              \
    X(NODE_PARKED) /* there are enough nodes; it is kept as a spare */         \
    X(NODE_PEERS) /* to group rank 0: from where the round's workers come */   \
    X(NODE_PREPARE) /* to group rank 0: open the store of the round */         \
    X(NODE_READY) /* agent: it is open */                                      \
    X(NODE_ROUND) /* start your workers, as these ranks */                     \
    X(NODE_FAILED) /* agent: a worker of mine has failed; coordinator: a       \
                      worker somewhere has, or a node is lost */               \
    X(NODE_STOP) /* end your workers: the round is over, without a failure */  \
    X(NODE_ENDED) /* agent: nothing is left of my workers of the round */      \
    X(NODE_VERDICT) /* who was first, and whether another round follows */     \
    X(NODE_CLOSED) /* the job is over */                                       \
    X(NODE_LEAVE) /* agent: it is asked to stop, alone */                      \
    X(NODE_AWAY) /* agent: it takes the coordinator for dead, and will join    \
                    again */                                                   \
    X(NODE_PING) /* agent: it is alive */                                      \
    X(NODE_PONG) /* the coordinator is, too */

enum node_msg_kind {
#define NODE_ENUM(name) name,
    NODE_MSG_MAP(NODE_ENUM) NODE_MSG_COUNT
#undef NODE_ENUM
};

/* "JOIN"; "?" for an unknown value. */
const char *node_msg_name(enum node_msg_kind kind);

/* NODE_ENDED. */
enum node_result { NODE_SUCCEEDED, NODE_STOPPED, NODE_HAS_FAILED };

/* NODE_JOIN: what has become of the last round, as far as the node knows. */
enum node_part {
    NODE_PART_NONE, /* there was none */
    NODE_PART_OPEN, /* it is in it; ENDED is still to be said, or once more */
    NODE_PART_DONE, /* the verdict is told, or the next one was about to begin
                     */
};

/* NODE_VERDICT. */
enum node_next {
    NODE_NEXT_ROUND,
    NODE_NEXT_EXHAUSTED,
    NODE_NEXT_CRASH_LOOP,
    NODE_NEXT_END
};

/* Fields that a kind does not have are 0 or empty. */
struct node_msg {
    enum node_msg_kind kind;
    int32_t version; /* of whoever sent it; set by decoding */
    int32_t round;
    uint64_t round_id; /* ROUND, JOIN: tells rounds of one number apart */
    int32_t restart_count;

    /* HELLO, JOIN, WELCOME */
    int32_t has_token; /* JOIN: proof is there */
    uint8_t nonce[TOKEN_NONCE_LEN];
    uint8_t proof[TOKEN_PROOF_LEN];

    /* JOIN: for a coordinator that is nobody's but for the first to come */
    int32_t join_timeout_ms;
    int32_t last_call_ms;
    uint64_t waited_ms; /* JOIN: for a round, so far */
    int32_t restart_delay_ms;
    int32_t restart_delay_max_ms;
    int32_t crash_loop_count;
    int32_t crash_loop_ms;

    /* JOIN: of the round that is named, if there was one */
    uint64_t agent_id; /* random: the same after a lost connection */
    int32_t part; /* enum node_part */
    int32_t round_restart_count; /* restart_count when it began */

    /* JOIN; then ROUND, for the node it is sent to */
    int32_t node_rank; /* -1: none was given */
    int32_t nproc;
    int32_t min_nodes;
    int32_t max_nodes;
    int32_t max_restarts;
    int32_t store_port; /* where its agent would serve a round's store */
    int32_t has_agent_store; /* else rank 0 hosts it, at that port */
    int32_t is_static; /* node_rank decides, and the store is at the endpoint */
    int32_t group_rank;
    int32_t group_world_size;
    int32_t world_size;
    int32_t rank_base;
    int32_t role_world_size;
    int32_t role_rank_base;
    char run_id[NODE_RUN_ID_MAX];
    char role[NODE_ROLE_MAX];
    char addr[NODE_ADDR_MAX]; /* JOIN: as declared, else empty; ROUND: the one
                               * that the other nodes see */
    char addrs[NODE_ADDRS_MAX]; /* JOIN: the node's; PEERS: of several nodes */
    char master_addr[NODE_HOST_MAX];
    int32_t master_port;

    /* WELCOME; JOIN, too */
    int32_t keep_alive_ms;
    int32_t keep_alive_attempts;
    int32_t is_lasting; /* a lost coordinator may come back */

    /* FAILED, VERDICT. Of a node that is lost rank is -1. */
    char host[NODE_HOST_MAX]; /* JOIN, too */
    int32_t pid; /* JOIN: of the agent */
    int32_t rank;
    int32_t local_rank;
    int32_t wait_status;
    int32_t error; /* errno of a start that failed; 0: it had begun */
    int32_t is_collateral; /* on account of another rank */
    uint64_t ago_ns; /* when it happened, before the message was sent */
    uint64_t lived_ns;
    int32_t next; /* VERDICT: enum node_next */
    uint64_t delay_ms; /* VERDICT: until the next round */

    int32_t result; /* ENDED: enum node_result; CLOSED: 0 is a success */
    char text[NODE_TEXT_MAX]; /* why, how, or what to do */
};

/* For how long nothing may be heard of the other side. */
static inline uint64_t node_silence_ms(uint64_t keep_alive_ms, int attempts)
{
    const uint64_t most_ms = 1000000000;
    uint64_t n = attempts > 0 ? (uint64_t)attempts : 1;

    return keep_alive_ms < most_ms / n ? keep_alive_ms * n : most_ms;
}

/* Appends the frame. 0 or -ENOMEM or -ENOBUFS: nothing was added. */
int node_msg_encode(const struct node_msg *m, struct buf *out);

/*
 * Takes one frame from the front of len bytes. Returns how many it was, 0 if
 * more are needed, or -EPROTO. Texts are fit to be shown. What a newer version
 * has appended to a frame is ignored; an unknown kind is -EPROTO.
 */
int node_msg_decode(struct node_msg *m, const void *bytes, size_t len);

#endif
