/*
 * Ranks over TCP: what the back ends "tcp" (every rank) and "nodes" (one rank
 * of each node) have in common. They are the ranks of a net, 0 to size - 1.
 *
 * Rank r keeps links to r + 2^k and r - 2^k (modulo the size) for every 2^k
 * below the size: that is all that dissemination, a binomial tree from any
 * root and a ring need, and it grows with the logarithm of the size.
 *
 * A link is two connections. One carries data, without any framing, because
 * every operation begins with an agreement on what all ranks have called, and
 * after it both sides know what comes. The other carries news: why a rank
 * gives up, that it leaves. So a reason is never stuck
 * behind data that nobody takes, and never taken for data.
 */
#ifndef COLL_TCP_INTERNAL_H
#define COLL_TCP_INTERNAL_H

#include <poll.h>
#include <stdatomic.h>

#include "backend.h"
#include "coll_algorithm.h"
#include "spread.h"

/* Each rank learns of every other one where it is: beyond this that is no
 * longer small. */
#define TCP_MAX_RANKS 4096

/* Digits of a random token. */
#define TCP_TOKEN_BYTES 32

/* An address or a host's name, without port. */
#define TCP_ADDR_BYTES 256

/* Neighbours of a rank, at most. */
#define TCP_MAX_LINKS 64

/* The sentences of such failures are true on every rank: they say who is at
 * fault. Of others it has to be said whose they are. */
static inline bool tcp_is_for_all(coll_status_t status)
{
    return status == COLL_ERR_PEER || status == COLL_ERR_MISMATCH ||
           status == COLL_ERR_TIMEOUT;
}

enum tcp_news_kind {
    TCP_FAILED, /* the sender gives up in operation seq: status and text, true
                 * on every rank */
    TCP_LEFT, /* it has destroyed the group after operation seq */
};

#define TCP_NEWS_MAGIC 0x636f6c6eu

struct tcp_news {
    uint32_t magic;
    uint32_t kind;
    int32_t status;
    uint32_t unused;
    uint64_t seq;
    char text[440];
};

struct tcp_link {
    int rank; /* in the net */
    int data; /* sockets, -1 while there is none */
    int news;
    char addr[TCP_ADDR_BYTES]; /* of the other side */
    struct tcp_news in; /* being received */
    size_t in_len;
    uint64_t ended_ns; /* when the first sign of its end was seen, or 0 */
    bool data_has_ended; /* nothing more can be sent or received */
    bool news_have_ended;
    bool has_left;
    uint64_t left_after;
    coll_status_t failure; /* COLL_OK, or what it gave up with, and text */
    uint64_t failed_in; /* the operation */
    char text[440];
};

/* One direction of an exchange; link NULL: nothing. */
struct tcp_flow {
    struct tcp_link *link;
    char *at;
    size_t left;
};

struct tcp_net {
    int rank;
    int size;
    struct coll_group *g; /* whose it is */
    int *ranks; /* [size] their ranks in the group */
    int *names; /* [size] and what they are called in sentences */
    int nlinks;
    struct tcp_link *links; /* [nlinks], by rank */
    struct pollfd *polls; /* [nlinks + TCP_EXTRA_POLLS] */
    char *scratch; /* TCP_SCRATCH_BYTES for data of others */
    const void **srcs; /* [size] */
    atomic_flag has_told; /* that this rank gives up; by any thread */
    int wake_fd; /* an eventfd: look at the group's is_aborted */
    /* "nodes": what else can end a wait. */
    int watch_fd; /* -1: nothing */
    coll_status_t (*watch_cb)(void *arg, const struct coll_call *call);
    void *watch_arg;
};

/* Two data sockets, the agent, watch_fd, wake_fd. */
#define TCP_EXTRA_POLLS 5

#define TCP_SCRATCH_BYTES ((size_t)1 << 20)

/* --- tcp_net.c ------------------------------------------------------------ */

/* Makes a net of some ranks of the group, without connections. ranks are
 * copied. 0 or a negative errno. */
int tcp_net_create(struct tcp_net **out, struct coll_group *g, int rank,
    int size, const int *ranks);

/* Closes everything. Takes NULL. */
void tcp_net_destroy(struct tcp_net *net);

/* In a forked child: closes its connections there. Takes NULL. */
void tcp_net_after_fork(struct tcp_net *net);

/* Writes the ranks that a rank has links to, ascending; returns how many. */
int tcp_neighbours(int rank, int size, int out[TCP_MAX_LINKS]);

/* NULL if it is no neighbour. */
struct tcp_link *tcp_net_link(struct tcp_net *net, int rank);

/* Sets the magic number. Never blocks. */
void tcp_news_send(struct tcp_link *link, struct tcp_news *news);

/* Tells the neighbours that this rank leaves, after operation seq. */
void tcp_net_leave(struct tcp_net *net, uint64_t seq);

/* Tells them that it gives up in operation seq with the calling thread's error
 * sentence; they will tell theirs. Only the first time. */
void tcp_net_fail(struct tcp_net *net, uint64_t seq, coll_status_t status);

/* --- tcp_wait.c ----------------------------------------------------------- */

/* Sends and receives at the same time, until no more than so much is left of
 * each. */
coll_status_t tcp_exchange_until(struct tcp_net *net,
    const struct coll_call *call, struct tcp_flow *out, struct tcp_flow *in,
    size_t out_left, size_t in_left);

/* The same until nothing is left of one of those that have something left. */
coll_status_t tcp_exchange_any(struct tcp_net *net,
    const struct coll_call *call, struct tcp_flow *out, struct tcp_flow *in);

/* For a rank that waits for something else before its part of a call: fails if
 * the call cannot succeed any more. */
coll_status_t tcp_check(struct tcp_net *net, const struct coll_call *call);

/* Takes in the news between two calls, for one that runs elsewhere: fails if a
 * rank has failed, or has ended and has not said that it leaves. */
coll_status_t tcp_look(struct tcp_net *net, const struct coll_call *call);

/* --- tcp_agree.c ---------------------------------------------------------- */

/* What ranks give each other along with an agreement: blocks of equal length,
 * of which the own one is at tcp_blocks() before. */
struct tcp_gift {
    size_t bytes; /* of a block, SPREAD_BYTES at most for all together */
    int giver; /* the only rank that gives, or -1: all do */
};

/* The block of the giver, or that of rank + 0, rank + 1, and so on, which can
 * be read until the next call. */
char *tcp_blocks(struct tcp_net *net);

/* net->srcs becomes where the block of each rank is. */
void tcp_list_blocks(struct tcp_net *net, const struct tcp_gift *gift);

/* Every rank learns whether all have called the same, and gets the blocks of
 * all if they have. It is a barrier, too. gift may be NULL. A failure is not
 * told. */
coll_status_t tcp_agree(struct tcp_net *net, const struct coll_call *call,
    const struct tcp_gift *gift);

/* The whole of a small operation. */
coll_status_t tcp_run_small(struct tcp_net *net, const struct coll_call *call,
    const struct spread *plan);

/* --- tcp_ops.c ------------------------------------------------------------ */

/*
 * Runs one call over the net: any small one (spread.h), all_reduce, broadcast
 * and barrier; of any other just the agreement. root is a rank of the net. A
 * failure is told.
 */
/* Bytes that go on their way at a time. */
#define TCP_PIECE_BYTES ((size_t)128 << 10)

/* is_of_leaders: the net's ranks are only those of the group that lead their
 * nodes. */
enum coll_algorithm tcp_choose(const struct tcp_net *net, struct coll_group *g,
    const struct coll_call *call, bool is_of_leaders);

/* Whether tcp_run() has it; else it is made of messages: flat.h. */
bool tcp_has(enum coll_kind kind, enum coll_algorithm algorithm);

coll_status_t tcp_run(struct tcp_net *net, const struct coll_call *call,
    enum coll_algorithm algorithm);

/* --- tcp_places.c: where the ranks are after their meeting ---------------- */

/*
 * As long as the group lives each rank listens, and knows where all others do:
 * so any two may connect when they need to. Who connects begins with token[0],
 * who accepts answers with token[1]; whoever has no such token is a stranger,
 * and there may be any number of them at the door.
 */
struct tcp_places {
    int listener; /* this rank's: owned, non-blocking; -1: none */
    char token[2][TCP_TOKEN_BYTES]; /* no text: no byte behind it */
    int size;
    char *text; /* owned: the addresses */
    struct {
        const char *addr;
        int port;
    } of[]; /* [size] */
};

/* Where a rank of the group listens, for resolve_until(): of a rank on the host
 * of rank 0 the address at which this one has reached rank 0. *addr lives as
 * long as the places. 0, or -EINVAL if there is no such rank. */
int tcp_places_get(
    const struct tcp_places *p, int rank, const char **addr, int *port);

/* Closes the listener. Takes NULL. */
void tcp_places_free(struct tcp_places *p);

/* A place in a table takes so much at most. */
#define TCP_PLACE_BYTES (3 + TCP_ADDR_BYTES - 1)

/* Returns how much it takes. The address has less than TCP_ADDR_BYTES; "": the
 * one at which rank 0 was reached. */
size_t tcp_place_write(char out[TCP_PLACE_BYTES], const char *addr, int port);

/* Reads the places of all ranks, without tokens and listener. 0, -EBADMSG if
 * that is not what the bytes are, or -ENOMEM. */
int tcp_places_read(struct tcp_places **out, const char *bytes, size_t len,
    int size, const char *leader_addr);

/* --- tcp_meet.c: how the ranks of a group find each other ----------------- */

struct tcp_meeting;

/*
 * All ranks of the group meet at rank 0, and learn which of them share a node.
 * is_flat: none do. The lowest rank of each node then has its links to the
 * others in *net; for all others, and with one node, it is NULL. Where there
 * are several nodes every rank has *places, with its listener; with one node
 * they are NULL, and nobody listens any more. Both are the caller's.
 *
 * Nobody connects to a listener for the group's own purposes before
 * tcp_meeting_end() has succeeded, on the rank that connects; and by then all
 * ranks have returned from here.
 */
coll_status_t tcp_meet(struct tcp_meeting **out, struct tcp_net **net,
    struct tcp_places **places, struct coll_group *g,
    const struct coll_boot *boot, bool is_flat);

/* [size] the node of each rank: nodes are numbered by their lowest rank. */
const int *tcp_meeting_nodes(const struct tcp_meeting *m, int *count);

/* From now on waiting for the store, in this thread, ends when a rank gives up.
 * Until the end of the meeting. */
void tcp_meeting_watch(struct tcp_meeting *m);

/*
 * Says how this rank's part of the set-up went, and waits until that of all
 * others has gone well. If one has not, all return its reason. Frees m.
 */
coll_status_t tcp_meeting_end(struct tcp_meeting *m, coll_status_t status);

/* --- backend_tcp.c -------------------------------------------------------- */

/* What a group of the back end "tcp" has; NULL in a world of one. */
struct tcp_state {
    struct tcp_net *net;
    struct tcp_places *places;
};

/* --- tcp_address.c -------------------------------------------------------- */

/* The address of one end of a socket as text. 0 or a negative errno. */
int tcp_local_address(int fd, char out[TCP_ADDR_BYTES]);
int tcp_peer_address(int fd, char out[TCP_ADDR_BYTES]);

/* Whether both ends of the socket are on this host. */
bool tcp_is_within_host(int fd);

/* The address from which this host would reach any other: not a loopback
 * address unless there is nothing else. */
void tcp_outward_address(char out[TCP_ADDR_BYTES]);

/* A listening, non-blocking socket for all addresses of this host, with a
 * port that the kernel chooses. 0 or a negative errno. */
int tcp_listen(int *fd, int *port);

/* What every connection of a group shall have. Never fails. */
void tcp_set_options(int fd);

#endif
