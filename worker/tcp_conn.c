/*
 * The connections of a meeting: each is in the meeting's poller, belongs to
 * one slot of it, and carries whole messages. What they mean is told in
 * tcp_door.c.
 */
#include "tcp_meet.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/store_io.h"

/* For what a rank that lives takes at once. */
#define SEND_MS 5000

void meet_conn_drop(struct meet_conn **at, bool keeps_fd)
{
    struct meet_conn *c = *at;

    *at = NULL;
    if (c == NULL)
        return;
    poller_remove(c->m->poller, &c->item);
    if (!keeps_fd && c->fd >= 0)
        store_io_close(c->fd);
    free(c->table);
    poller_free_later(c->m->poller, &c->item, c);
}

int meet_conn_create(struct meet_conn **out, struct tcp_meeting *m, int fd,
    enum meet_role role, int rank, uint32_t events)
{
    struct meet_conn *c = calloc(1, sizeof(*c));
    int rc = -ENOMEM;

    if (c != NULL) {
        c->m = m;
        c->fd = fd;
        c->role = role;
        c->rank = rank;
        rc = poller_add(m->poller, &c->item, fd, events, meet_conn_ready_cb);
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
int meet_conn_send(
    struct meet_conn *c, struct meet_message *msg, const void *table)
{
    struct iovec iov[2] = {
        {msg, sizeof(*msg)}, {(void *)table, msg->table_bytes}};

    msg->magic = MEET_MAGIC;
    return store_io_send(
        c->fd, iov, msg->table_bytes > 0 ? 2 : 1, clock_deadline_ns(SEND_MS));
}

int meet_conn_answer(struct meet_conn *c)
{
    struct meet_message msg = {.kind = MEET_WELCOME};

    memcpy(msg.token, c->m->claim.token[1], TCP_TOKEN_BYTES);
    return meet_conn_send(c, &msg, NULL);
}

bool meet_shows(const struct meet_message *msg, const char *token)
{
    return memcmp(msg->token, token, TCP_TOKEN_BYTES) == 0;
}

bool meet_is_end(int error)
{
    return error == ECONNRESET || error == EPIPE || error == ETIMEDOUT ||
           error == EHOSTUNREACH || error == ENETUNREACH;
}

int meet_conn_receive(struct meet_conn *c)
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
            return n == 0 || meet_is_end(errno) ? -ECONNRESET : -errno;
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
        if (c->role != CONN_LEADER || c->in.table_bytes > meet_table_max(c->m))
            return -ECONNRESET;
        free(c->table);
        c->table_len = 0;
        c->table = malloc(c->in.table_bytes);
        if (c->table == NULL)
            return -ENOMEM;
    }
}

struct meet_conn **meet_conn_slot(
    struct tcp_meeting *m, const struct meet_conn *c)
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
