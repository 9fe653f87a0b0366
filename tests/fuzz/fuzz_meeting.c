/*
 * What comes over the connections of a meeting to rank 0, from arbitrary
 * bytes: those of strangers at its door, of ranks that have joined, and (so
 * that what the others hear is read, too) of a leader.
 *
 * The first byte says how many ranks there are, and of which back end. Then
 * there is one connection after the other: a byte for whose it is, two for its
 * length, and what it says. Where the highest bit of the first is set that is
 * not the messages but, shorter, what is in them.
 *
 * Whatever the bytes are: nothing crashes or waits, nobody joins without the
 * token, twice, or with half a place; and if all have joined, what rank 0 makes
 * of it is a table that it would take itself.
 */
#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "worker/store.h"
#include "worker/tcp_meet.h"

enum { RANKS_MAX = 9, CONNS_MAX = 40, SAYS_MAX = 16384 };

static const char TOKENS[2][TCP_TOKEN_BYTES + 1] = {
    "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *at;
    size_t left;
};

static uint8_t next(struct input *in)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->at++;
}

static struct input part(struct input *in, size_t len)
{
    struct input p = {in->at, len < in->left ? len : in->left};

    in->at += p.left;
    in->left -= p.left;
    return p;
}

/* A text and its NUL, if there is room. */
static void next_text(struct input *in, char *out, size_t cap)
{
    struct input p = part(in, next(in));

    memcpy(out, p.at, p.left < cap ? p.left : cap);
}

/* --- What is said --------------------------------------------------------- */

static void next_message(struct input *in, struct meet_message *msg)
{
    uint8_t flags = next(in);

    memset(msg, 0, sizeof(*msg));
    msg->magic = MEET_MAGIC;
    msg->kind = next(in);
    msg->rank = (int8_t)next(in);
    msg->world_size = (int8_t)next(in);
    msg->status = (int8_t)next(in);
    msg->channel = next(in);
    msg->port = (uint32_t)next(in) << (flags & 16 ? 16 : 0);
    msg->table_bytes = next(in);
    msg->timeout_ms = next(in);
    if ((flags & 3) < 2)
        memcpy(msg->token, TOKENS[flags & 1], TCP_TOKEN_BYTES);
    if (flags & 4)
        next_text(in, msg->node, sizeof(msg->node));
    if (flags & 8)
        next_text(in, msg->addr, sizeof(msg->addr));
    if (flags & 32)
        next_text(in, msg->text, sizeof(msg->text));
}

static void say(int fd, const void *what, size_t len)
{
    /* If nobody listens any more that is for us to bear. */
    if (len > 0 && send(fd, what, len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        assert(errno == EPIPE || errno == ECONNRESET || errno == EAGAIN);
}

static void say_all(int fd, struct input said, bool is_short)
{
    static struct meet_message msg;

    if (!is_short)
        say(fd, said.at, said.left);
    while (is_short && said.left > 0) {
        struct input table;

        next_message(&said, &msg);
        say(fd, &msg, sizeof(msg));
        table = part(&said, msg.table_bytes);
        say(fd, table.at, table.left);
    }
}

/* --- The meeting ---------------------------------------------------------- */

/* Where a connection of that kind would be kept, if there can be a new one. */
static struct meet_conn **free_slot(
    struct tcp_meeting *m, uint8_t whose, enum meet_role *role, int *rank)
{
    *rank = 0;
    if ((whose & 3) == 2 && m->leader == NULL) {
        *role = CONN_LEADER;
        return &m->leader;
    }
    *role = CONN_STRANGER;
    *rank = -1;
    for (int i = 0; i < STRANGERS; i++)
        if (m->strangers[i] == NULL)
            return &m->strangers[i];
    return NULL;
}

static void run(struct tcp_meeting *m)
{
    while (m->status == COLL_OK && poller_run(m->poller, 0) > 0)
        continue;
}

/* Returns the other end of the connection. */
static int connect_to(struct tcp_meeting *m, uint8_t whose)
{
    enum meet_role role;
    int rank;
    struct meet_conn **at = free_slot(m, whose, &role, &rank);
    int fds[2];

    if (at == NULL ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        return -1;
    assert(meet_conn_create(at, m, fds[0], role, rank, EPOLLIN) == 0);
    return fds[1];
}

static void check(const struct tcp_meeting *m)
{
    int members = 0;
    int ready = 0;

    for (int r = 0; r < m->g->size; r++) {
        const struct meet_message *join = &m->joins[r];

        ready += m->is_ready[r];
        if (r == 0 || m->members[r] == NULL)
            continue;
        members++;
        assert(m->members[r]->role == CONN_MEMBER && m->members[r]->rank == r);
        assert(meet_shows(join, TOKENS[0]) && join->rank == r);
        assert(join->port > 0 && join->port <= UINT16_MAX);
        assert(strnlen(join->node, NODE_BYTES) < NODE_BYTES);
        assert(strnlen(join->addr, TCP_ADDR_BYTES) < TCP_ADDR_BYTES);
        assert(join->world_size == m->g->size);
    }
    if (m->status != COLL_OK)
        return; /* who has failed or died has been dropped */
    assert(members == m->members_count && ready == m->ready_count);
    assert(!m->has_table || m->places != NULL);
}

static struct tcp_meeting *start(
    struct coll_group *g, coll_store_t *store, bool is_flat)
{
    struct tcp_meeting *m = calloc(1, sizeof(*m));
    size_t size = (size_t)g->size;

    assert(m != NULL);
    m->g = g;
    m->store = store;
    m->is_flat = is_flat;
    m->listener = -1;
    m->agent.fd = -1;
    m->door.fd = -1;
    m->has_claimed = true;
    memcpy(m->key, "key", 4);
    memcpy(m->claim.token, TOKENS, sizeof(TOKENS));
    m->nodes = calloc(size, sizeof(*m->nodes));
    m->members = calloc(size, sizeof(struct meet_conn *));
    m->joins = calloc(size, sizeof(*m->joins));
    m->is_ready = calloc(size, sizeof(*m->is_ready));
    assert(m->nodes != NULL && m->members != NULL && m->joins != NULL &&
           m->is_ready != NULL && poller_create(&m->poller) == 0);
    m->joins[0].port = 4711;
    return m;
}

static void meet(struct tcp_meeting *m, struct input in)
{
    int fds[CONNS_MAX];
    int count = 0;

    while (in.left > 0 && count < CONNS_MAX && m->status == COLL_OK) {
        uint8_t whose = next(&in);
        size_t len = next(&in);

        len |= (size_t)next(&in) << 8;
        fds[count] = connect_to(m, whose);
        if (fds[count] < 0)
            break;
        say_all(fds[count], part(&in, len < SAYS_MAX ? len : SAYS_MAX),
            (whose & 0x80) != 0);
        if (whose & 4)
            shutdown(fds[count], SHUT_WR);
        count++;
        run(m);
        check(m);
        if (m->status == COLL_OK && !m->has_table &&
            m->members_count == m->g->size - 1) {
            assert(meet_send_tables(m) == COLL_OK);
            run(m);
            check(m);
        }
    }
    coll_fail(COLL_ERR_TIMEOUT, "the end");
    tcp_meeting_end(m, COLL_ERR_TIMEOUT);
    while (count > 0)
        close(fds[--count]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    uint8_t first = next(&in);
    struct coll_group g = {
        .size = 2 + (first & 7) % (RANKS_MAX - 1),
        .timeout_ms = 1000,
        .backend = first & 8 ? &coll_backend_tcp : &coll_backend_nodes,
    };
    int *names = calloc((size_t)g.size, sizeof(*names));
    coll_store_t *store = NULL;

    if (names == NULL || coll_store_hash(&store, NULL) != COLL_OK) {
        free(names);
        return -1;
    }
    for (int r = 0; r < g.size; r++)
        names[r] = 10 + r;
    if (first & 16)
        g.names = names;
    meet(start(&g, store, (first & 8) != 0), in);
    coll_store_close(store);
    free(names);
    return 0;
}
