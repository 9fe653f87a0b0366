/*
 * How the ranks of a group meet that may be on several nodes.
 *
 * 1. Rank 0 listens and leaves a claim in the store: two random tokens, a port
 *    and an address. The others wait for that key and connect to rank 0.
 * 2. They say who they are, on which node, and where they listen. When all
 *    have come, rank 0 removes the key and tells everybody which ranks share a
 *    node, and the lowest rank of each node where its neighbours are.
 * 3. Neighbours connect, the higher rank to the lower one.
 * 4. Everybody tells rank 0 that it is ready; when all are, rank 0 says so.
 *
 * So there is one key for the whole group, each rank makes a handful of calls
 * to the store, and when a group is made nothing of it is there any more. A
 * claim that a killed rank 0 has left is one where nobody with its tokens
 * listens: the others look again until there is a new one.
 *
 * From joining to the end each rank keeps its connection to rank 0: whoever
 * fails says why over it, or ends it, and rank 0 tells all. Who cannot reach
 * rank 0 puts a note in the place of its claim.
 *
 * Who connects shows the first token, who accepts the second one. A stranger
 * has neither and is closed; one that says nothing takes a place among a few,
 * and nobody waits for it.
 *
 * Addresses. A rank publishes CRUN_NODE_ADDR if that is set, else the local
 * address of its connection to rank 0, and rank 0 that of its connection to
 * the store. Where such a connection does not leave the host the address would
 * be of no use elsewhere (a loopback one, as a rule): but then the rank is
 * where the others have reached rank 0, or the store, and publishes that. A
 * loopback address is so used only by those who have reached the store at one.
 */
#include "tcp_internal.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coll_agent.h"
#include "coll_fds.h"
#include "coll_ranks.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/text.h"
#include "rendezvous/poller.h"
#include "rendezvous/resolve.h"
#include "rendezvous/store_io.h"
#include "rendezvous/worker_env.h"
#include "store.h"

#define ENV_BACKEND "COLL_BACKEND"

#define MEET_MAGIC 0x636f6d31u /* and version */

/* An address that does not answer for so long is one that cannot be reached:
 * the process there is known to be up. */
#define REACH_MS 20000

/* For one attempt to join, and for what a rank that lives answers at once. */
#define JOIN_MS 5000

/* What a failing rank may still spend on hearing why. */
#define LAST_WORDS_MS 1000

/* How often rank 0 looks for a note in the store while nothing happens. */
#define SLICE_FIRST_MS 250
#define SLICE_LAST_MS 4000

/* Connections that have not said yet who they are. */
#define STRANGERS 128

/* In a claim: the address at which the others reach the store. */
#define AT_THE_STORE "@"

/* What a note begins with, and a claim. */
#define NOTE '!'
#define CLAIM_VERSION '1'

enum { CLAIM_BYTES = 700, KEY_BYTES = 128, NODE_BYTES = 96 };

enum message_kind {
    MEET_JOIN, /* to rank 0: who, which node, where */
    MEET_WELCOME, /* the answer to that and to MEET_HELLO */
    MEET_TABLE, /* from rank 0, followed by a table */
    MEET_HELLO, /* between neighbours */
    MEET_READY, /* to rank 0 */
    MEET_GO, /* from rank 0 */
    MEET_FAILURE, /* both ways: status and text, true on every rank */
};

/* In the byte order of the host: the magic number tells another one. */
struct message {
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

/* A neighbour in the table, behind the nodes of all ranks. */
struct place {
    int32_t port;
    char addr[TCP_ADDR_BYTES];
};

enum conn_role {
    CONN_STRANGER, /* accepted */
    CONN_MEMBER, /* rank 0: one that has joined */
    CONN_LEADER, /* the others: rank 0 */
    CONN_NEIGHBOUR, /* being connected */
};

struct conn {
    struct poller_item item;
    struct tcp_meeting *m;
    int fd;
    enum conn_role role;
    int rank; /* in the group; CONN_NEIGHBOUR: in the net */
    uint32_t channel;
    bool is_connecting;
    bool is_held; /* a neighbour that came before the table */
    struct message in;
    size_t in_len;
    char *table; /* what follows it */
    size_t table_len;
};

struct claim {
    char token[2][TCP_TOKEN_BYTES + 1]; /* of who connects, who accepts */
    int port;
    char addr[TCP_ADDR_BYTES];
};

struct tcp_meeting {
    struct coll_group *g;
    coll_store_t *store; /* borrowed */
    uint64_t deadline_ns;
    bool is_flat;
    char key[KEY_BYTES];
    struct claim claim;
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
    struct conn *strangers[STRANGERS];
    unsigned int next_stranger;
    struct conn *leader;
    char leader_addr[TCP_ADDR_BYTES];
    bool is_welcome;
    bool is_refused; /* rank 0 has gone before it said welcome */
    bool may_go;
    struct conn **members; /* rank 0: [size] */
    struct message *joins; /* rank 0: [size] what they have said */
    bool *is_ready; /* rank 0: [size] */
    int members_count;
    int ready_count;
    int slice_ms;
    int *nodes; /* [size] */
    int nodes_count;
    bool has_table;
    struct tcp_net *net; /* until tcp_meet() returns */
    struct place places[TCP_MAX_LINKS]; /* of its links */
    struct conn *outgoing[2 * TCP_MAX_LINKS];
    uint64_t reach_ns;
};

static coll_status_t fail_rc(const char *what, int rc)
{
    return coll_fail(rc == -ENOMEM ? COLL_ERR_MEMORY : COLL_ERR_SYSTEM,
        "coll_init: %s: %s", what, strerror(-rc));
}

static coll_status_t fail_late(int64_t timeout_ms, const char *whom)
{
    return coll_fail(COLL_ERR_TIMEOUT,
        "timed out after %.1f s in coll_init waiting for %s",
        (double)timeout_ms / 1000.0, whom);
}

static coll_status_t fail_unreachable(const struct tcp_meeting *m, int rank,
    const char *addr, int port, const char *why)
{
    return coll_fail(COLL_ERR_SYSTEM,
        "coll_init: rank %d at %s cannot reach rank %d at %s port %d: %s; "
        "%s can tell the address of a node that others reach",
        m->g->rank, m->own_addr, rank, addr, port, why, ENV_NODE_ADDR);
}

/* Half of what is left, so that rank 0 still hears of it. */
static uint64_t reach_deadline_ns(const struct tcp_meeting *m)
{
    int half_ms = clock_left_ms(m->deadline_ns) / 2;

    return clock_deadline_ns(half_ms < REACH_MS ? half_ms : REACH_MS);
}

/* --- Connections ---------------------------------------------------------- */

/* NULL is fine. */
static void conn_drop(struct conn **at, bool keeps_fd)
{
    struct conn *c = *at;

    *at = NULL;
    if (c == NULL)
        return;
    poller_remove(c->m->poller, &c->item);
    if (!keeps_fd && c->fd >= 0)
        store_io_close(c->fd);
    free(c->table);
    poller_free_later(c->m->poller, &c->item, c);
}

static void conn_ready_cb(struct poller_item *item, uint32_t events);

/* Takes fd, also on failure. */
static int conn_create(struct conn **out, struct tcp_meeting *m, int fd,
    enum conn_role role, int rank, uint32_t events)
{
    struct conn *c = calloc(1, sizeof(*c));
    int rc = -ENOMEM;

    if (c != NULL) {
        c->m = m;
        c->fd = fd;
        c->role = role;
        c->rank = rank;
        rc = poller_add(m->poller, &c->item, fd, events, conn_ready_cb);
    }
    if (rc < 0) {
        free(c);
        store_io_close(fd);
        return rc;
    }
    *out = c;
    return 0;
}

/* Messages are few and small: only a table could wait for room. */
static int conn_send(struct conn *c, struct message *msg, const void *table)
{
    struct iovec iov[2] = {
        {msg, sizeof(*msg)}, {(void *)table, msg->table_bytes}};

    msg->magic = MEET_MAGIC;
    return store_io_send(
        c->fd, iov, msg->table_bytes > 0 ? 2 : 1, clock_deadline_ns(JOIN_MS));
}

static int conn_answer(struct conn *c)
{
    struct message msg = {.kind = MEET_WELCOME};

    memcpy(msg.token, c->m->claim.token[1], TCP_TOKEN_BYTES);
    return conn_send(c, &msg, NULL);
}

static bool shows(const struct message *msg, const char *token)
{
    return memcmp(msg->token, token, TCP_TOKEN_BYTES) == 0;
}

/* Bytes of the table that rank 0 may send. */
static size_t table_max(const struct tcp_meeting *m)
{
    return (size_t)m->g->size * sizeof(int32_t) +
           TCP_MAX_LINKS * sizeof(struct place);
}

/* Did the other side end it? Else it is this side that cannot. */
static bool is_end(int error)
{
    return error == ECONNRESET || error == EPIPE || error == ETIMEDOUT ||
           error == EHOSTUNREACH || error == ENETUNREACH;
}

/* 1: a message is complete; 0: not yet; -ECONNRESET: the connection is over,
 * or none of ours; another negative errno: this side cannot receive. */
static int conn_receive(struct conn *c)
{
    for (;;) {
        bool is_table = c->in_len == sizeof(c->in);
        char *at =
            is_table ? c->table + c->table_len : (char *)&c->in + c->in_len;
        size_t room = is_table ? c->in.table_bytes - c->table_len
                               : sizeof(c->in) - c->in_len;
        ssize_t n;

        if (is_table && room == 0)
            return 1;
        n = recv(c->fd, at, room, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return 0;
        if (n <= 0)
            return n == 0 || is_end(errno) ? -ECONNRESET : -errno;
        if (is_table) {
            c->table_len += (size_t)n;
            continue;
        }
        c->in_len += (size_t)n;
        /* As early as possible: a stranger may say little and then wait. */
        if (c->in_len >= sizeof(c->in.magic) && c->in.magic != MEET_MAGIC)
            return -ECONNRESET;
        if (c->in_len < sizeof(c->in))
            continue;
        c->in.node[sizeof(c->in.node) - 1] = '\0';
        c->in.addr[sizeof(c->in.addr) - 1] = '\0';
        c->in.text[sizeof(c->in.text) - 1] = '\0';
        if (c->in.table_bytes == 0)
            return 1;
        if (c->role != CONN_LEADER || c->in.table_bytes > table_max(c->m))
            return -ECONNRESET;
        free(c->table);
        c->table_len = 0;
        c->table = malloc(c->in.table_bytes);
        if (c->table == NULL)
            return -ENOMEM;
    }
}

static struct conn **slot_of(struct tcp_meeting *m, const struct conn *c)
{
    switch (c->role) {
    case CONN_MEMBER:
        return &m->members[c->rank];
    case CONN_LEADER:
        return &m->leader;
    case CONN_NEIGHBOUR:
        for (int i = 0; i < 2 * TCP_MAX_LINKS; i++)
            if (m->outgoing[i] == c)
                return &m->outgoing[i];
        break;
    case CONN_STRANGER:
        break;
    }
    for (int i = 0; i < STRANGERS; i++)
        if (m->strangers[i] == c)
            return &m->strangers[i];
    return NULL;
}

/* --- Neighbours ----------------------------------------------------------- */

static bool has_all_links(const struct tcp_meeting *m)
{
    for (int i = 0; m->net != NULL && i < m->net->nlinks; i++)
        if (m->net->links[i].data < 0 || m->net->links[i].news < 0)
            return false;
    return true;
}

/* The connection becomes a channel of a link. */
static void become_link(struct conn **at, struct tcp_link *link)
{
    struct conn *c = *at;
    int *fd = c->channel == 0 ? &link->data : &link->news;

    *fd = c->fd;
    if (tcp_peer_address(c->fd, link->addr) < 0)
        link->addr[0] = '\0';
    conn_drop(at, true);
}

/* A stranger says that it is a neighbour. */
static void greet_neighbour(struct tcp_meeting *m, struct conn **at)
{
    struct conn *c = *at;
    const struct message *msg = &c->in;
    struct tcp_link *link = NULL;

    if (!shows(msg, m->claim.token[0])) {
        conn_drop(at, false);
        return;
    }
    if (!m->has_table) {
        /* Nobody shall wait for room, or be read twice. */
        c->is_held = true;
        poller_remove(m->poller, &c->item);
        return;
    }
    if (m->net != NULL && msg->rank > m->net->rank)
        link = tcp_net_link(m->net, msg->rank);
    if (link == NULL || msg->channel > 1 ||
        (msg->channel == 0 ? link->data : link->news) >= 0 ||
        conn_answer(c) < 0) {
        conn_drop(at, false);
        return;
    }
    c->channel = msg->channel;
    become_link(at, link);
}

/* A neighbour cannot be reached. It was up a moment ago: if it has gone since,
 * rank 0 is about to say why. So that is waited for before this counts. */
static void note_link(struct tcp_meeting *m, const struct conn *c, int error)
{
    const struct place *place =
        &m->places[tcp_net_link(m->net, c->rank) - m->net->links];
    const char *addr = place->addr[0] == '\0' ? m->leader_addr : place->addr;

    if (m->link_status != COLL_OK)
        return;
    m->link_status = fail_unreachable(m, m->net->names[c->rank], addr,
        place->port, error == 0 ? "it closes the connection" : strerror(error));
    snprintf(m->link_reason, sizeof(m->link_reason), "%s", coll_last_error());
}

/* Starts to connect one channel to a lower neighbour. */
static coll_status_t start_link(
    struct tcp_meeting *m, int index, uint32_t channel)
{
    struct conn **at = &m->outgoing[2 * (unsigned int)index + channel];
    const struct place *place = &m->places[index];
    int rank = m->net->links[index].rank;
    const char *addr = place->addr[0] == '\0' ? m->leader_addr : place->addr;
    struct addrinfo *ai;
    int rc = resolve_until(addr, place->port, 0, m->reach_ns, &ai);
    int fd;

    if (rc != 0)
        return fail_unreachable(m, m->net->names[rank], addr, place->port,
            rc == EAI_INPROGRESS ? "the name service is silent"
                                 : gai_strerror(rc));
    fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, ai->ai_addr, ai->ai_addrlen) < 0 &&
        errno != EINPROGRESS && errno != EINTR) {
        rc = errno;
        close(fd);
        freeaddrinfo(ai);
        return fail_unreachable(
            m, m->net->names[rank], addr, place->port, strerror(rc));
    }
    freeaddrinfo(ai);
    if (fd < 0)
        return fail_rc("socket", -errno);
    tcp_set_options(fd);
    rc = conn_create(at, m, fd, CONN_NEIGHBOUR, rank, EPOLLOUT);
    if (rc < 0)
        return fail_rc("watch a socket", rc);
    (*at)->channel = channel;
    (*at)->is_connecting = true;
    return COLL_OK;
}

static coll_status_t start_links(struct tcp_meeting *m)
{
    coll_status_t status = COLL_OK;

    m->reach_ns = reach_deadline_ns(m);
    for (int i = 0; m->net != NULL && i < m->net->nlinks; i++)
        for (uint32_t channel = 0; channel < 2 && status == COLL_OK; channel++)
            if (m->net->links[i].rank < m->net->rank)
                status = start_link(m, i, channel);
    return status;
}

/* The connection to a neighbour is there, or cannot be. */
static void finish_connect(struct conn *c)
{
    struct tcp_meeting *m = c->m;
    struct message msg = {
        .kind = MEET_HELLO, .rank = m->net->rank, .channel = c->channel};
    int error = 0;
    socklen_t len = sizeof(error);
    int rc;

    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &len);
    rc = -error;
    if (rc == 0) {
        c->is_connecting = false;
        memcpy(msg.token, m->claim.token[0], TCP_TOKEN_BYTES);
        rc = conn_send(c, &msg, NULL);
    }
    if (rc == 0)
        rc = poller_change(m->poller, &c->item, EPOLLIN);
    if (rc == 0)
        return;
    note_link(m, c, -rc);
    conn_drop(slot_of(m, c), false);
}

/* --- The table ------------------------------------------------------------ */

/* Makes the net of the lowest ranks of all nodes, where this is one. */
static coll_status_t make_net(struct tcp_meeting *m)
{
    int size = m->g->size;
    int *leads = calloc((size_t)size, sizeof(*leads));
    int own = -1;
    int count = 0;
    int rc = 0;

    if (leads == NULL)
        return fail_rc("table", -ENOMEM);
    for (int r = 0; r < size; r++) {
        if (m->nodes[r] != count)
            continue;
        if (r == m->g->rank)
            own = count;
        leads[count++] = r;
    }
    m->nodes_count = count;
    if (own >= 0 && count > 1)
        rc = tcp_net_create(&m->net, own, count, leads);
    free(leads);
    if (rc < 0)
        return fail_rc("table", rc);
    if (m->net != NULL)
        m->net->timeout_ms = m->g->timeout_ms;
    m->has_table = true;
    return COLL_OK;
}

static coll_status_t take_table(struct tcp_meeting *m, const struct conn *c)
{
    size_t nodes_bytes = (size_t)m->g->size * sizeof(*m->nodes);
    size_t places_bytes = 0;
    coll_status_t status;
    int next = 0;

    if (m->has_table || c->table_len < nodes_bytes)
        goto garbage;
    memcpy(m->nodes, c->table, nodes_bytes);
    for (int r = 0; r < m->g->size; r++) {
        if (m->nodes[r] < 0 || m->nodes[r] > next)
            goto garbage;
        next += m->nodes[r] == next;
    }
    status = make_net(m);
    if (status != COLL_OK)
        return status;
    if (m->net != NULL)
        places_bytes = (size_t)m->net->nlinks * sizeof(struct place);
    if (c->table_len != nodes_bytes + places_bytes)
        goto garbage;
    memcpy(m->places, c->table + nodes_bytes, places_bytes);
    for (int i = 0; i < TCP_MAX_LINKS; i++)
        m->places[i].addr[TCP_ADDR_BYTES - 1] = '\0';
    /* Those who came before it. */
    for (int i = 0; i < STRANGERS; i++)
        if (m->strangers[i] != NULL && m->strangers[i]->is_held)
            greet_neighbour(m, &m->strangers[i]);
    return start_links(m);
garbage:
    return coll_fail(
        COLL_ERR_SYSTEM, "coll_init: what rank 0 has sent is no table");
}

/* Rank 0: numbers the nodes. */
static void number_nodes(struct tcp_meeting *m)
{
    int count = 0;

    for (int r = 0; r < m->g->size; r++) {
        int first = m->is_flat ? r : 0;

        while (first < r && strcmp(m->joins[first].node, m->joins[r].node) != 0)
            first++;
        m->nodes[r] = first == r ? count++ : m->nodes[first];
    }
    m->nodes_count = count;
}

static coll_status_t send_table(struct tcp_meeting *m, int rank,
    const int *leads, bool is_lead, char *table)
{
    struct message msg = {.kind = MEET_TABLE};
    size_t len = (size_t)m->g->size * sizeof(*m->nodes);
    int neighbours[TCP_MAX_LINKS];
    int count = 0;
    int rc;

    memcpy(table, m->nodes, len);
    if (is_lead)
        count = tcp_neighbours(m->nodes[rank], m->nodes_count, neighbours);
    for (int i = 0; i < count; i++) {
        const struct message *join = &m->joins[leads[neighbours[i]]];
        struct place place = {.port = (int32_t)join->port};

        memcpy(place.addr, join->addr, sizeof(place.addr));
        memcpy(table + len, &place, sizeof(place));
        len += sizeof(place);
    }
    msg.table_bytes = (uint32_t)len;
    rc = conn_send(m->members[rank], &msg, table);
    if (rc == -EPIPE || rc == -ECONNRESET)
        return COLL_OK; /* the next event will tell */
    return rc < 0 ? fail_rc("send the table", rc) : COLL_OK;
}

static coll_status_t send_tables(struct tcp_meeting *m)
{
    char *table = malloc(table_max(m));
    int *leads = calloc((size_t)m->g->size, sizeof(*leads));
    coll_status_t status = COLL_OK;

    if (table == NULL || leads == NULL)
        status = fail_rc("table", -ENOMEM);
    if (status == COLL_OK) {
        number_nodes(m);
        for (int r = m->g->size - 1; r >= 0; r--)
            leads[m->nodes[r]] = r;
        status = make_net(m);
    }
    for (int r = 1; r < m->g->size && status == COLL_OK; r++)
        status = send_table(m, r, leads, leads[m->nodes[r]] == r, table);
    free(table);
    free(leads);
    return status;
}

/* --- What is said --------------------------------------------------------- */

/* Marks who is missed; the text for a sentence. */
static bool missing_text(const struct tcp_meeting *m, char *out, size_t cap)
{
    bool has_all = m->members_count == m->g->size - 1;
    bool *missing = calloc((size_t)m->g->size, sizeof(*missing));
    bool is_any = false;

    snprintf(out, cap, "the other ranks");
    if (missing == NULL)
        return true;
    for (int r = 1; r < m->g->size; r++) {
        missing[r] = has_all ? !m->is_ready[r] : m->members[r] == NULL;
        is_any |= missing[r];
    }
    if (is_any)
        coll_ranks_text(out, cap, missing, m->g->size, NULL);
    free(missing);
    return is_any;
}

static coll_status_t fail_lost(int rank)
{
    if (coll_agent_await_cause())
        return coll_agent_fail("coll_init");
    return coll_fail(
        COLL_ERR_PEER, "rank %d died or gave up during coll_init", rank);
}

/* Another rank says why there will be no group. */
static coll_status_t take_failure(
    struct tcp_meeting *m, const struct message *msg)
{
    char missing[256];

    m->is_relayed = true;
    m->has_told = m->g->rank != 0;
    if (msg->status >= 0)
        return coll_fail(COLL_ERR_PEER, "a rank gave up during coll_init");
    /* Who waits does not know for whom: rank 0 does. */
    if (m->g->rank == 0 && msg->status == COLL_ERR_TIMEOUT &&
        missing_text(m, missing, sizeof(missing)))
        return fail_late(msg->timeout_ms, missing);
    return coll_fail((coll_status_t)msg->status, "%s", msg->text);
}

/* The words of a failure for others. */
static void failure_message(
    const struct tcp_meeting *m, coll_status_t status, struct message *msg)
{
    bool is_for_all = m->is_relayed || status == COLL_ERR_PEER ||
                      status == COLL_ERR_TIMEOUT ||
                      status == COLL_ERR_ENVIRONMENT;

    *msg = (struct message){.kind = MEET_FAILURE,
        .status = is_for_all ? status : COLL_ERR_PEER,
        .timeout_ms = m->g->timeout_ms};
    if (is_for_all)
        snprintf(msg->text, sizeof(msg->text), "%s", coll_last_error());
    else
        snprintf(msg->text, sizeof(msg->text), "rank %d gave up: %.400s",
            m->g->rank, coll_last_error());
    memcpy(msg->token, m->claim.token[m->g->rank == 0], TCP_TOKEN_BYTES);
}

static bool has_ended(int fd)
{
    char byte;

    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* Rank 0: somebody with the token wants to join. */
static coll_status_t admit(struct tcp_meeting *m, struct conn **at)
{
    struct conn *c = *at;
    struct message msg = c->in;
    struct message refusal;
    coll_status_t status = COLL_ERR_ENVIRONMENT;
    int rank = msg.rank;

    if (msg.world_size != m->g->size) {
        coll_fail(status,
            "coll_init: rank %d has a world size of %d, rank 0 of %d", rank,
            (int)msg.world_size, m->g->size);
    } else if (rank < 0 || rank >= m->g->size) {
        conn_drop(at, false);
        return COLL_OK;
    } else if (rank > 0 && m->members[rank] != NULL &&
               has_ended(m->members[rank]->fd)) {
        /* It has failed, and tries again: it will look for the next attempt. */
        conn_drop(at, false);
        return fail_lost(rank);
    } else if (rank == 0 || m->members[rank] != NULL) {
        char other[TCP_ADDR_BYTES] = "?";

        tcp_peer_address(c->fd, other);
        coll_fail(status,
            "coll_init: two workers of the job have the same RANK %d, one of "
            "them at %s",
            rank, other);
    } else if (conn_answer(c) < 0) {
        conn_drop(at, false);
        return COLL_OK;
    } else {
        c->role = CONN_MEMBER;
        c->rank = rank;
        c->in_len = 0;
        m->joins[rank] = msg;
        m->members[rank] = c;
        m->members_count++;
        *at = NULL;
        return COLL_OK;
    }
    /* It is no member that would be told with the others. */
    failure_message(m, status, &refusal);
    conn_send(c, &refusal, NULL);
    conn_drop(at, false);
    return status;
}

static coll_status_t on_end(struct tcp_meeting *m, struct conn *c)
{
    struct conn **at = slot_of(m, c);
    int rank = c->rank;
    coll_status_t status = COLL_OK;

    switch (c->role) {
    case CONN_STRANGER:
        break;
    case CONN_MEMBER:
        status = fail_lost(rank);
        break;
    case CONN_LEADER:
        m->has_told = true;
        if (m->is_welcome)
            status = fail_lost(0);
        else
            m->is_refused = true;
        break;
    case CONN_NEIGHBOUR:
        note_link(m, c, 0);
        break;
    }
    conn_drop(at, false);
    return status;
}

static coll_status_t on_message(struct tcp_meeting *m, struct conn *c)
{
    const struct message *msg = &c->in;
    struct conn **at = slot_of(m, c);

    switch (c->role) {
    case CONN_STRANGER:
        if (msg->kind == MEET_JOIN && m->g->rank == 0 && m->has_claimed &&
            shows(msg, m->claim.token[0]))
            return admit(m, at);
        if (msg->kind == MEET_HELLO)
            greet_neighbour(m, at);
        else
            conn_drop(at, false);
        return COLL_OK;
    case CONN_MEMBER:
        if (msg->kind == MEET_FAILURE)
            return take_failure(m, msg);
        if (msg->kind == MEET_READY && !m->is_ready[c->rank]) {
            m->is_ready[c->rank] = true;
            m->ready_count++;
        }
        break;
    case CONN_LEADER:
        /* Nothing before the welcome counts: it may be a stranger. */
        if (msg->kind == MEET_WELCOME)
            m->is_welcome |= shows(msg, m->claim.token[1]);
        else if (msg->kind == MEET_FAILURE && shows(msg, m->claim.token[1]))
            return take_failure(m, msg);
        else if (msg->kind == MEET_TABLE && m->is_welcome)
            return take_table(m, c);
        else if (msg->kind == MEET_GO && m->is_welcome)
            m->may_go = true;
        break;
    case CONN_NEIGHBOUR:
        if (msg->kind == MEET_WELCOME && shows(msg, m->claim.token[1])) {
            become_link(at, tcp_net_link(m->net, c->rank));
        } else {
            note_link(m, c, EPROTO);
            conn_drop(at, false);
        }
        return COLL_OK;
    }
    return COLL_OK;
}

static void conn_ready_cb(struct poller_item *item, uint32_t events)
{
    struct conn *c =
        (struct conn *)((char *)item - offsetof(struct conn, item));
    struct tcp_meeting *m = c->m;
    int rc = 0;

    (void)events;
    if (m->status != COLL_OK)
        return;
    if (c->is_connecting) {
        finish_connect(c);
        return;
    }
    rc = conn_receive(c);
    if (rc == -ECONNRESET)
        m->status = on_end(m, c);
    else if (rc < 0)
        m->status = fail_rc("receive", rc);
    if (rc > 0) {
        /* Before it is acted upon, for that may free it. A held one keeps its
         * message, and is not read again. */
        c->in_len = 0;
        m->status = on_message(m, c);
    }
}

static void door_ready_cb(struct poller_item *item, uint32_t events)
{
    struct tcp_meeting *m =
        (struct tcp_meeting *)((char *)item -
                               offsetof(struct tcp_meeting, door));
    struct conn **at = NULL;
    int fd = accept4(m->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    int rc;

    (void)events;
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
                      errno == ENOBUFS))
        m->status = fail_rc("accept", -errno);
    if (fd < 0)
        return;
    /* The oldest goes when there are more, but for those who are known. */
    for (int i = 0; i < STRANGERS && at == NULL; i++)
        if (m->strangers[i] == NULL)
            at = &m->strangers[i];
    for (int i = 0; i < STRANGERS && at == NULL; i++) {
        struct conn **next = &m->strangers[m->next_stranger++ % STRANGERS];

        if (!(*next)->is_held)
            at = next;
    }
    if (at == NULL) {
        close(fd);
        return;
    }
    conn_drop(at, false);
    tcp_set_options(fd);
    rc = conn_create(at, m, fd, CONN_STRANGER, -1, EPOLLIN);
    if (rc < 0)
        m->status = fail_rc("watch a socket", rc);
}

static void agent_ready_cb(struct poller_item *item, uint32_t events)
{
    struct tcp_meeting *m =
        (struct tcp_meeting *)((char *)item -
                               offsetof(struct tcp_meeting, agent));

    (void)events;
    if (coll_agent_is_told()) {
        m->is_relayed = true;
        m->status = coll_agent_fail("coll_init");
    } else if (coll_agent_fd() < 0) {
        poller_remove(m->poller, &m->agent);
    }
}

/* --- Waiting -------------------------------------------------------------- */

/* Waits for one event until then. */
static coll_status_t step(struct tcp_meeting *m, uint64_t until_ns)
{
    int rc;

    if (m->status == COLL_OK) {
        rc = poller_run(m->poller, clock_left_ms(until_ns));
        if (rc < 0)
            m->status = fail_rc("epoll_wait", rc);
        if (m->status != COLL_OK)
            snprintf(m->reason, sizeof(m->reason), "%s", coll_last_error());
    }
    if (m->status != COLL_OK)
        return coll_fail(m->status, "%s", m->reason);
    return COLL_OK;
}

/* --- Being interrupted ---------------------------------------------------- */

/* The thread's. */
static _Thread_local struct tcp_meeting *watched;

static int watched_fd(void)
{
    return poller_fd(watched->poller);
}

static bool watched_is_due(void)
{
    struct tcp_meeting *m = watched;

    if (m->status == COLL_OK)
        step(m, 0);
    if (m->status != COLL_OK)
        coll_fail(m->status, "%s", m->reason);
    return m->status != COLL_OK;
}

static const struct interrupt meeting_interrupt = {
    .fd = watched_fd, .is_due = watched_is_due};

void tcp_meeting_watch(struct tcp_meeting *m)
{
    watched = m;
    interrupt_set(&meeting_interrupt);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Who waits for a rank 0 that it has joined asks it who is missing. */
static coll_status_t ask_who_is_late(struct tcp_meeting *m)
{
    struct message msg;
    uint64_t end_ns = clock_deadline_ns(LAST_WORDS_MS);
    coll_status_t status = fail_late(m->g->timeout_ms, "rank 0");

    failure_message(m, status, &msg);
    if (conn_send(m->leader, &msg, NULL) == 0)
        m->has_told = true;
    status = COLL_OK;
    while (status == COLL_OK && clock_left_ms(end_ns) > 0)
        status = step(m, end_ns);
    if (status != COLL_OK)
        return status;
    return fail_late(m->g->timeout_ms, "rank 0");
}

/* Puts why it fails in the place of the claim, for whoever made it. */
static void leave_note(struct tcp_meeting *m, coll_status_t status)
{
    char note[CLAIM_BYTES];
    struct message msg;
    struct err e = {0};
    struct buf now;

    failure_message(m, status, &msg);
    snprintf(note, sizeof(note), "%c%s", NOTE, msg.text);
    buf_init(&now, CLAIM_BYTES);
    coll_store_do_compare_set(m->store, m->key,
        store_bytes(m->claim_text, strlen(m->claim_text)),
        store_bytes(note, strlen(note)), &now, clock_deadline_ns(LAST_WORDS_MS),
        &e);
    buf_fini(&now);
}

/* Has somebody replaced this rank's claim? */
static coll_status_t look_at_claim(struct tcp_meeting *m)
{
    struct err e = {0};
    struct buf value;
    const char *text;
    bool is_there = false;
    const char *key = m->key;
    coll_status_t status = COLL_OK;
    int rc = coll_store_do_check(
        m->store, &key, 1, &is_there, coll_store_answer_ns(m->deadline_ns), &e);

    buf_init(&value, sizeof(m->claim_text) - 1);
    if (rc == 0 && is_there)
        rc = coll_store_do_get(
            m->store, key, &value, coll_store_answer_ns(m->deadline_ns), &e);
    text = buf_bytes(&value);
    if (rc < 0 && rc != -ETIMEDOUT) {
        status = coll_store_fail_init(rc, &e);
    } else if (rc == 0 && value.len > 0 && text[0] == NOTE) {
        m->is_relayed = true;
        status = coll_fail(COLL_ERR_PEER, "%.*s", (int)value.len - 1, text + 1);
    } else if (rc == 0 && value.len > 0 &&
               (value.len != strlen(m->claim_text) ||
                   memcmp(text, m->claim_text, value.len) != 0)) {
        /* The key is the other one's, which learns of it there. */
        m->has_claimed = false;
        memcpy(m->claim_text, text, value.len);
        m->claim_text[value.len] = '\0';
        status = coll_fail(COLL_ERR_ENVIRONMENT,
            "coll_init: two workers of the job have the same RANK 0");
        leave_note(m, status);
    }
    buf_fini(&value);
    return status;
}

/* Rank 0 waits for one event, with a look at clock and store now and then. */
static coll_status_t lead_step(struct tcp_meeting *m)
{
    uint64_t slice_ns = clock_deadline_ns(m->slice_ms);
    char missing[256];
    coll_status_t status = step(m, earlier(slice_ns, m->deadline_ns));

    if (status != COLL_OK)
        return status;
    if (clock_left_ms(m->deadline_ns) == 0) {
        missing_text(m, missing, sizeof(missing));
        return fail_late(m->g->timeout_ms, missing);
    }
    if (clock_now_ns() < slice_ns || !m->has_claimed)
        return COLL_OK;
    if (m->slice_ms < SLICE_LAST_MS)
        m->slice_ms *= 2;
    return look_at_claim(m);
}

static coll_status_t member_step(struct tcp_meeting *m)
{
    coll_status_t status = step(m, m->deadline_ns);

    if (status != COLL_OK || clock_left_ms(m->deadline_ns) > 0)
        return status;
    return ask_who_is_late(m);
}

static coll_status_t either_step(struct tcp_meeting *m)
{
    return m->g->rank == 0 ? lead_step(m) : member_step(m);
}

/* Waits for the links to and from the neighbours. */
static coll_status_t await_links(struct tcp_meeting *m)
{
    coll_status_t status = COLL_OK;
    uint64_t end_ns = 0; /* until when rank 0 may say why one is missing */

    while (status == COLL_OK && !has_all_links(m)) {
        const struct conn *late = NULL;

        for (int i = 0; i < 2 * TCP_MAX_LINKS && late == NULL; i++)
            late = m->outgoing[i];
        if (late != NULL && clock_now_ns() >= m->reach_ns)
            note_link(m, late, ETIMEDOUT);
        if (m->link_status != COLL_OK && end_ns == 0)
            end_ns = clock_deadline_ns(LAST_WORDS_MS);
        if (end_ns != 0 && clock_now_ns() >= end_ns)
            return coll_fail(m->link_status, "%s", m->link_reason);
        if (end_ns != 0)
            status = step(m, end_ns);
        else if (late != NULL && m->reach_ns < m->deadline_ns)
            status = step(m, m->reach_ns);
        else
            status = either_step(m);
    }
    return status;
}

/* --- Rank 0 --------------------------------------------------------------- */

static int remove_claim(struct tcp_meeting *m, struct err *e)
{
    int rc = 0;

    if (m->has_claimed)
        rc = coll_store_do_delete(
            m->store, m->key, NULL, coll_store_answer_ns(m->deadline_ns), e);
    if (rc == 0)
        m->has_claimed = false;
    return rc;
}

static coll_status_t make_claim(struct tcp_meeting *m)
{
    int fd = coll_store_fd(m->store);
    const char *named = getenv(ENV_NODE_ADDR);
    struct claim *c = &m->claim;
    struct err e = {0};
    int rc = text_random_hex(c->token[0]);

    if (rc == 0)
        rc = text_random_hex(c->token[1]);
    if (rc < 0)
        return fail_rc("random number", rc);
    if (named != NULL && named[0] != '\0')
        snprintf(c->addr, sizeof(c->addr), "%s", named);
    else if (fd >= 0 && tcp_is_within_host(fd))
        snprintf(c->addr, sizeof(c->addr), AT_THE_STORE);
    else if (fd < 0 || tcp_local_address(fd, c->addr) < 0)
        tcp_outward_address(c->addr);
    snprintf(m->claim_text, sizeof(m->claim_text), "1 %s %s %d %s", c->token[0],
        c->token[1], m->port, c->addr);
    rc = coll_store_do_set(m->store, m->key,
        store_bytes(m->claim_text, strlen(m->claim_text)),
        coll_store_answer_ns(m->deadline_ns), &e);
    if (rc < 0)
        return coll_store_fail_init(rc, &e);
    m->has_claimed = true;
    return COLL_OK;
}

static coll_status_t lead(struct tcp_meeting *m)
{
    struct err e = {0};
    coll_status_t status = make_claim(m);
    int rc;

    while (status == COLL_OK && m->members_count < m->g->size - 1)
        status = lead_step(m);
    if (status != COLL_OK)
        return status;
    rc = remove_claim(m, &e);
    if (rc < 0)
        return coll_store_fail_init(rc, &e);
    status = send_tables(m);
    return status == COLL_OK ? start_links(m) : status;
}

/* Tells all others. First nobody may find this attempt any more: who has
 * failed may try again at once. */
static void dismiss(struct tcp_meeting *m, coll_status_t status)
{
    struct message msg;
    struct err e = {0};

    failure_message(m, status, &msg);
    poller_remove(m->poller, &m->door);
    if (m->listener >= 0)
        close(m->listener);
    m->listener = -1;
    remove_claim(m, &e);
    for (int r = 1; r < m->g->size; r++)
        if (m->members[r] != NULL)
            conn_send(m->members[r], &msg, NULL);
}

/* --- The others ----------------------------------------------------------- */

static coll_status_t read_claim(struct tcp_meeting *m, bool *is_claim)
{
    struct claim *c = &m->claim;
    struct err e = {0};
    struct buf value;
    int end = 0;
    int rc;

    buf_init(&value, sizeof(m->claim_text) - 1);
    rc = coll_store_do_get(m->store, m->key, &value, m->deadline_ns, &e);
    if (rc == 0) {
        memcpy(m->claim_text, buf_bytes(&value), value.len);
        m->claim_text[value.len] = '\0';
    }
    buf_fini(&value);
    if (rc == -ETIMEDOUT)
        return fail_late(m->g->timeout_ms, "rank 0");
    if (rc < 0)
        return coll_store_fail_init(rc, &e);
    *is_claim = false;
    /* Empty: it was removed between waiting for it and reading it. */
    if (m->claim_text[0] == '\0' || m->claim_text[0] == NOTE)
        return COLL_OK;
    if (sscanf(m->claim_text, "1 %32s %32s %d %255s%n", c->token[0],
            c->token[1], &c->port, c->addr, &end) != 4 ||
        m->claim_text[end] != '\0' || strlen(c->token[0]) != TCP_TOKEN_BYTES ||
        strlen(c->token[1]) != TCP_TOKEN_BYTES)
        return coll_fail(COLL_ERR_STORE,
            "coll_init: what rank 0 left in the store is not from this version "
            "of the library");
    *is_claim = true;
    return COLL_OK;
}

/* Where to reach rank 0. */
static coll_status_t find_address(struct tcp_meeting *m)
{
    int fd = coll_store_fd(m->store);

    snprintf(m->leader_addr, sizeof(m->leader_addr), "%s", m->claim.addr);
    if (fd < 0 || tcp_local_address(fd, m->own_addr) < 0)
        tcp_outward_address(m->own_addr);
    if (strcmp(m->claim.addr, AT_THE_STORE) != 0)
        return COLL_OK;
    if (fd < 0 || tcp_peer_address(fd, m->leader_addr) < 0)
        return coll_fail(COLL_ERR_STORE,
            "coll_init: rank 0 is where its store is, and this rank has "
            "another store");
    return COLL_OK;
}

/* What this rank says of itself over its connection to rank 0. */
static void describe(struct tcp_meeting *m, struct message *msg, int fd)
{
    const char *named = getenv(ENV_NODE_ADDR);

    msg->kind = MEET_JOIN;
    msg->rank = m->g->rank;
    msg->world_size = m->g->size;
    msg->port = (uint32_t)m->port;
    memcpy(msg->token, m->claim.token[0], TCP_TOKEN_BYTES);
    if (named != NULL && named[0] != '\0')
        snprintf(msg->addr, sizeof(msg->addr), "%s", named);
    else if (!tcp_is_within_host(fd))
        tcp_local_address(fd, msg->addr);
    if (msg->addr[0] != '\0')
        memcpy(m->own_addr, msg->addr, sizeof(m->own_addr));
}

/* One attempt, until then. *rc: why rank 0 could not be reached. */
static coll_status_t join_once(
    struct tcp_meeting *m, struct message *join, uint64_t until_ns, int *rc)
{
    coll_status_t status = COLL_OK;
    struct addrinfo *ai;
    int fd;

    *rc = -ENOENT;
    if (resolve_until(m->leader_addr, m->claim.port, 0, until_ns, &ai) != 0)
        return COLL_OK;
    fd = store_io_connect(ai->ai_addr, ai->ai_addrlen, until_ns);
    freeaddrinfo(ai);
    *rc = fd;
    if (fd == -ECANCELED)
        return coll_agent_fail("coll_init");
    if (fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM)
        return fail_rc("connect to rank 0", fd);
    if (fd < 0)
        return COLL_OK;
    tcp_set_options(fd);
    describe(m, join, fd);
    m->is_refused = false;
    *rc = conn_create(&m->leader, m, fd, CONN_LEADER, 0, EPOLLIN);
    if (*rc < 0)
        return fail_rc("watch a socket", *rc);
    *rc = conn_send(m->leader, join, NULL);
    while (*rc == 0 && status == COLL_OK && !m->is_welcome && !m->is_refused) {
        status = step(m, until_ns);
        if (clock_left_ms(until_ns) == 0)
            *rc = -ETIMEDOUT;
    }
    if (m->is_refused)
        *rc = -ECONNRESET;
    if (status == COLL_OK && !m->is_welcome) {
        m->has_told = false;
        conn_drop(&m->leader, false);
    }
    return status;
}

static coll_status_t find_leader(struct tcp_meeting *m, struct message *join)
{
    uint64_t reach_ns = 0;
    char tried[CLAIM_BYTES] = "";
    long pause_ms = 5;

    for (;;) {
        bool is_claim = false;
        int rc = 0;
        coll_status_t status = read_claim(m, &is_claim);

        if (status == COLL_OK && is_claim)
            status = find_address(m);
        if (status == COLL_OK && is_claim &&
            strcmp(tried, m->claim_text) != 0) {
            memcpy(tried, m->claim_text, sizeof(tried));
            reach_ns = reach_deadline_ns(m);
        }
        if (status == COLL_OK && is_claim)
            status = join_once(
                m, join, earlier(reach_ns, clock_deadline_ns(JOIN_MS)), &rc);
        if (status != COLL_OK || m->is_welcome)
            return status;
        if (is_claim && clock_now_ns() >= reach_ns)
            return fail_unreachable(
                m, 0, m->leader_addr, m->claim.port, strerror(-rc));
        if (clock_left_ms(m->deadline_ns) == 0)
            return fail_late(m->g->timeout_ms, "rank 0");
        status = coll_agent_pause("coll_init", pause_ms);
        if (status != COLL_OK)
            return status;
        pause_ms = pause_ms < 50 ? pause_ms * 2 : 100;
    }
}

static coll_status_t follow(struct tcp_meeting *m, struct message *join)
{
    coll_status_t status = find_leader(m, join);

    while (status == COLL_OK && !m->has_table)
        status = member_step(m);
    return status;
}

/* --- All ------------------------------------------------------------------ */

/* Two ranks are on one node if their texts are equal. */
static coll_status_t name_node(char out[NODE_BYTES], int node)
{
    const char *path = "/proc/sys/kernel/random/boot_id";
    char boot_id[40] = "-";
    struct stat st = {0};
    FILE *f;

    if (node >= 0) {
        snprintf(out, NODE_BYTES, "group %d", node);
        return COLL_OK;
    }
    f = fopen(path, "re");
    if (f == NULL || fscanf(f, "%39s", boot_id) != 1 ||
        stat("/proc/self/ns/net", &st) < 0) {
        coll_fail(COLL_ERR_SYSTEM,
            "coll_init: cannot tell which node this is (%s); " ENV_GROUP_RANK
            " can, or " ENV_BACKEND "=tcp",
            path);
        if (f != NULL)
            fclose(f);
        return COLL_ERR_SYSTEM;
    }
    fclose(f);
    snprintf(
        out, NODE_BYTES, "%s %llu", boot_id, (unsigned long long)st.st_ino);
    return COLL_OK;
}

/* Takes NULL and half-built objects. */
static void meeting_destroy(struct tcp_meeting *m)
{
    if (m == NULL)
        return;
    for (int i = 0; i < STRANGERS; i++)
        conn_drop(&m->strangers[i], false);
    for (int i = 0; i < 2 * TCP_MAX_LINKS; i++)
        conn_drop(&m->outgoing[i], false);
    for (int r = 0; m->members != NULL && r < m->g->size; r++)
        conn_drop(&m->members[r], false);
    conn_drop(&m->leader, false);
    if (m->poller != NULL) {
        poller_remove(m->poller, &m->agent);
        poller_remove(m->poller, &m->door);
    }
    poller_destroy(m->poller);
    if (m->listener >= 0)
        close(m->listener);
    tcp_net_destroy(m->net);
    free(m->members);
    free(m->joins);
    free(m->is_ready);
    free(m->nodes);
    free(m);
}

static coll_status_t prepare(struct tcp_meeting *m, bool is_host)
{
    size_t size = (size_t)m->g->size;
    coll_status_t status;
    int rc;

    m->nodes = calloc(size, sizeof(*m->nodes));
    if (m->nodes == NULL)
        return fail_rc("group", -ENOMEM);
    if (m->g->rank == 0) {
        m->members = calloc(size, sizeof(struct conn *));
        m->joins = calloc(size, sizeof(*m->joins));
        m->is_ready = calloc(size, sizeof(*m->is_ready));
        if (m->members == NULL || m->joins == NULL || m->is_ready == NULL)
            return fail_rc("group", -ENOMEM);
        /* What cannot be had is better told now than after the others came. */
        status = coll_fds_reserve(m->g->size, is_host ? m->g->size : 0);
        if (status != COLL_OK)
            return status;
    }
    rc = poller_create(&m->poller);
    if (rc == 0 && coll_agent_fd() >= 0)
        rc = poller_add(
            m->poller, &m->agent, coll_agent_fd(), EPOLLIN, agent_ready_cb);
    if (rc < 0)
        return fail_rc("watch the launcher", rc);
    rc = tcp_listen(&m->listener, &m->port);
    if (rc == 0)
        rc = poller_add(
            m->poller, &m->door, m->listener, EPOLLIN, door_ready_cb);
    if (rc < 0)
        return fail_rc("listen", rc);
    return COLL_OK;
}

coll_status_t tcp_meet(struct tcp_meeting **out, struct tcp_net **net,
    struct coll_group *g, const struct coll_boot *boot, bool is_flat)
{
    struct tcp_meeting *m = calloc(1, sizeof(*m));
    struct message self = {.kind = MEET_JOIN};
    coll_status_t status;

    if (m == NULL)
        return fail_rc("group", -ENOMEM);
    m->g = g;
    m->store = boot->store;
    m->deadline_ns = boot->deadline_ns;
    m->is_flat = is_flat;
    m->slice_ms = SLICE_FIRST_MS;
    m->listener = -1;
    m->agent.fd = -1;
    m->door.fd = -1;
    snprintf(m->key, sizeof(m->key), "%stcp/rank0", boot->prefix);
    status = prepare(m, boot->is_over != NULL);
    if (status == COLL_OK && !is_flat)
        status = name_node(self.node, boot->node);
    if (status == COLL_OK && g->rank == 0) {
        self.port = (uint32_t)m->port;
        m->joins[0] = self;
        status = lead(m);
    } else if (status == COLL_OK) {
        status = follow(m, &self);
    }
    if (status == COLL_OK)
        status = await_links(m);
    if (status != COLL_OK)
        return tcp_meeting_end(m, status);
    *net = m->net;
    m->net = NULL;
    *out = m;
    return COLL_OK;
}

const int *tcp_meeting_nodes(const struct tcp_meeting *m, int *count)
{
    *count = m->nodes_count;
    return m->nodes;
}

/* All are ready, or somebody is not. */
static coll_status_t await_all(struct tcp_meeting *m)
{
    struct message msg = {.kind = MEET_GO};
    coll_status_t status = COLL_OK;
    int rc;

    if (m->g->rank == 0) {
        while (status == COLL_OK && m->ready_count < m->g->size - 1)
            status = lead_step(m);
        for (int r = 1; r < m->g->size && status == COLL_OK; r++) {
            rc = conn_send(m->members[r], &msg, NULL);
            /* Who has ended meanwhile is missed in the first operation. */
            if (rc < 0 && !is_end(-rc))
                status = fail_rc("send", rc);
        }
        return status;
    }
    msg.kind = MEET_READY;
    rc = conn_send(m->leader, &msg, NULL);
    /* If it has ended, what it has said before is still there. */
    if (rc < 0 && !is_end(-rc))
        return fail_rc("send", rc);
    while (status == COLL_OK && !m->may_go)
        status = member_step(m);
    return status;
}

coll_status_t tcp_meeting_end(struct tcp_meeting *m, coll_status_t status)
{
    char reason[sizeof(m->reason)];
    struct message msg;

    if (watched == m) {
        watched = NULL;
        interrupt_set(&coll_agent_interrupt);
    }
    if (status == COLL_OK)
        status = await_all(m);
    if (status != COLL_OK) {
        snprintf(reason, sizeof(reason), "%s", coll_last_error());
        if (m->g->rank == 0) {
            if (m->members != NULL)
                dismiss(m, status);
        } else if (m->leader != NULL && !m->has_told) {
            failure_message(m, status, &msg);
            conn_send(m->leader, &msg, NULL);
        } else if (m->leader == NULL && m->claim_text[0] == CLAIM_VERSION &&
                   !m->has_told && status != COLL_ERR_TIMEOUT &&
                   status != COLL_ERR_STORE) {
            leave_note(m, status);
        }
        coll_fail(status, "%s", reason);
    }
    meeting_destroy(m);
    return status;
}
