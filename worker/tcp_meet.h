/*
 * What the files share that make a group of the back ends "tcp" and "nodes";
 * tcp_meet.c tells how it goes.
 */
#ifndef COLL_TCP_MEET_H
#define COLL_TCP_MEET_H

#include "rendezvous/poller.h"
#include "tcp_internal.h"

struct err;

#define MEET_MAGIC 0x636f6d31u /* and version */

/* What a failing rank may still spend on hearing why. */
#define LAST_WORDS_MS 1000

/* How often rank 0 looks for a note in the store while nothing happens. */
#define SLICE_FIRST_MS 250
#define SLICE_LAST_MS 1000

/* Connections that have not said yet who they are. */
#define STRANGERS 128

/* In a claim: the address at which the others reach the store. */
#define AT_THE_STORE "@"

/* What a note begins with. */
#define NOTE '!'

enum { CLAIM_BYTES = 700, KEY_BYTES = 128, NODE_BYTES = 96 };

enum meet_kind {
    MEET_JOIN, /* to rank 0: who, which node, where */
    MEET_WELCOME, /* the answer to that and to MEET_HELLO */
    MEET_TABLE, /* from rank 0, followed by a table */
    MEET_HELLO, /* between neighbours */
    MEET_READY, /* to rank 0 */
    MEET_GO, /* from rank 0 */
    MEET_FAILURE, /* both ways: status and text, true on every rank */
};

/* In the byte order of the host: the magic number tells another one. */
struct meet_message {
    uint32_t magic;
    uint32_t kind;
    int32_t rank; /* MEET_HELLO: in the net */
    int32_t world_size;
    int32_t status;
    uint32_t channel; /* 0: data, 1: news */
    uint32_t port;
    uint32_t table_bytes; /* what follows */
    int64_t timeout_ms;
    char token[TCP_TOKEN_BYTES];
    char node[NODE_BYTES];
    char addr[TCP_ADDR_BYTES]; /* "": where rank 0 was reached */
    char text[440];
};

enum meet_role {
    CONN_STRANGER, /* accepted */
    CONN_MEMBER, /* rank 0: one that has joined */
    CONN_LEADER, /* the others: rank 0 */
    CONN_NEIGHBOUR, /* being connected */
};

struct meet_conn {
    struct poller_item item;
    struct tcp_meeting *m;
    int fd;
    enum meet_role role;
    int rank; /* in the group; CONN_NEIGHBOUR: in the net */
    uint32_t channel;
    bool is_connecting;
    bool is_held; /* a neighbour that came before the table */
    struct meet_message in;
    size_t in_len;
    char *table; /* what follows it */
    size_t table_len;
};

struct meet_claim {
    char token[2][TCP_TOKEN_BYTES + 1]; /* of who connects, who accepts */
    int port;
    char addr[TCP_ADDR_BYTES];
};

struct tcp_meeting {
    struct coll_group *g;
    coll_store_t *store; /* borrowed */
    uint64_t deadline_ns;
    bool is_flat;
    const char *prefix; /* borrowed */
    char key[KEY_BYTES];
    struct meet_claim claim;
    char claim_text[CLAIM_BYTES];
    bool has_claimed; /* rank 0: the key is there */
    bool has_told; /* the failure needs not be told to rank 0, or to all */
    bool is_relayed; /* it is in words that are true on every rank */
    coll_status_t status; /* of what happened in a callback, and why */
    char reason[512];
    coll_status_t link_status; /* a neighbour cannot be reached, and why */
    char link_reason[512];
    struct poller *poller;
    struct poller_item agent;
    struct poller_item door;
    int listener;
    int port;
    char own_addr[TCP_ADDR_BYTES]; /* for sentences */
    struct meet_conn *strangers[STRANGERS];
    unsigned int next_stranger;
    struct meet_conn *leader;
    char leader_addr[TCP_ADDR_BYTES]; /* rank 0: for those on its host */
    bool is_welcome;
    bool is_refused; /* rank 0 has gone before it said welcome */
    bool may_go;
    struct meet_conn **members; /* rank 0: [size] */
    struct meet_message *joins; /* rank 0: [size] what they have said */
    bool *is_ready; /* rank 0: [size] */
    int members_count;
    int refused_count; /* those that do not fit */
    int ready_count;
    int slice_ms;
    int *nodes; /* [size] */
    int nodes_count;
    bool has_table;
    struct tcp_net *net; /* these two until tcp_meet() returns */
    struct tcp_places *places; /* with the table */
    struct meet_conn *outgoing[2 * TCP_MAX_LINKS];
    uint64_t reach_ns;
};

/* --- tcp_meet.c: what all ranks do ---------------------------------------- */

uint64_t meet_earlier(uint64_t a, uint64_t b);

/* Waits for one event until then. */
coll_status_t meet_step(struct tcp_meeting *m, uint64_t until_ns);

/* As this rank must wait: see tcp_lead.c and tcp_follow.c. */
coll_status_t meet_either_step(struct tcp_meeting *m);

/* --- tcp_claim.c: the store ----------------------------------------------- */

/* 0 or a negative errno. */
int meet_remove_claim(struct tcp_meeting *m, struct err *e);

coll_status_t meet_make_claim(struct tcp_meeting *m);

/* Waits until the key is there. *is_claim: it is one, and taken over. */
coll_status_t meet_read_claim(struct tcp_meeting *m, bool *is_claim);

/* Has somebody replaced this rank's claim? */
coll_status_t meet_look_at_claim(struct tcp_meeting *m);

/* Puts why it fails in the place of the claim, for whoever made it. */
void meet_leave_note(struct tcp_meeting *m, coll_status_t status);

/* --- tcp_door.c: what comes in -------------------------------------------- */

void meet_door_ready_cb(struct poller_item *item, uint32_t events);
void meet_conn_ready_cb(struct poller_item *item, uint32_t events);

/* --- tcp_conn.c: connections and messages --------------------------------- */

/* Takes fd, also on failure. 0 or a negative errno. */
int meet_conn_create(struct meet_conn **out, struct tcp_meeting *m, int fd,
    enum meet_role role, int rank, uint32_t events);

/* Frees it and empties the slot. NULL in the slot is fine. */
void meet_conn_drop(struct meet_conn **at, bool keeps_fd);

/* Where the meeting keeps it. */
struct meet_conn **meet_conn_slot(
    struct tcp_meeting *m, const struct meet_conn *c);

/* Sets the magic number. table: what follows, if msg says so. 0 or a negative
 * errno. */
int meet_conn_send(
    struct meet_conn *c, struct meet_message *msg, const void *table);

/* Welcome, with the token of who accepts. */
int meet_conn_answer(struct meet_conn *c);

/* 1: a message is complete; 0: not yet; -ECONNRESET: the connection is over,
 * or none of ours; another negative errno: this side cannot receive. */
int meet_conn_receive(struct meet_conn *c);

bool meet_shows(const struct meet_message *msg, const char *token);

/* Did the other side end it? Else it is this side that cannot. */
bool meet_is_end(int error);

/* --- tcp_lead.c: rank 0 --------------------------------------------------- */

coll_status_t meet_lead(struct tcp_meeting *m);

/* Waits for one event, with a look at clock and store now and then. */
coll_status_t meet_lead_step(struct tcp_meeting *m);

/* Somebody with the token wants to join. */
coll_status_t meet_admit(struct tcp_meeting *m, struct meet_conn **at);

/* Gives up: tells all others. */
void meet_dismiss(struct tcp_meeting *m, coll_status_t status);

/* --- tcp_follow.c: the other ranks ---------------------------------------- */

/* join: what this rank says of itself, with the node filled in. */
coll_status_t meet_follow(struct tcp_meeting *m, struct meet_message *join);

/* Waits for one event, and at the end asks rank 0 who is late. */
coll_status_t meet_member_step(struct tcp_meeting *m);

/* --- tcp_table.c ---------------------------------------------------------- */

/* Rank 0: makes the table and tells all others. */
coll_status_t meet_send_tables(struct tcp_meeting *m);

/* The others: the message on this connection is one. */
coll_status_t meet_take_table(struct tcp_meeting *m, const struct meet_conn *c);

/* Bytes of the table that rank 0 may send. */
size_t meet_table_max(const struct tcp_meeting *m);

/* --- tcp_links.c: neighbours ---------------------------------------------- */

/* Until when an address may be tried: of what is left half, so that rank 0
 * still hears of it. */
uint64_t meet_reach_deadline_ns(const struct tcp_meeting *m);

/* Starts to connect to the lower neighbours. */
coll_status_t meet_start_links(struct tcp_meeting *m);

/* The connection to a neighbour is there, or cannot be. */
void meet_finish_connect(struct meet_conn *c);

/* A stranger says that it is a neighbour. */
void meet_greet_neighbour(struct tcp_meeting *m, struct meet_conn **at);

/* The connection becomes a channel of a link. */
void meet_become_link(struct meet_conn **at, struct tcp_link *link);

/* A neighbour cannot be reached; see there for when that counts. */
void meet_note_link(
    struct tcp_meeting *m, const struct meet_conn *c, int error);

/* Waits for the links to and from the neighbours. */
coll_status_t meet_await_links(struct tcp_meeting *m);

/* --- tcp_words.c: failures ------------------------------------------------ */

coll_status_t meet_fail_rc(const char *what, int rc);
coll_status_t meet_fail_late(int64_t timeout_ms, const char *whom);
coll_status_t meet_fail_unreachable(const struct tcp_meeting *m, int rank,
    const char *addr, int port, const char *why);

/* A rank whose connection has ended. */
coll_status_t meet_fail_lost(const struct tcp_meeting *m, int rank);

/* Rank 0: who is missed, for a sentence. False: nobody. */
bool meet_missing_text(const struct tcp_meeting *m, char *out, size_t cap);

/* Another rank says why there will be no group. */
coll_status_t meet_take_failure(
    struct tcp_meeting *m, const struct meet_message *msg);

/* The words of a failure for others. */
void meet_failure_message(const struct tcp_meeting *m, coll_status_t status,
    struct meet_message *msg);

#endif
