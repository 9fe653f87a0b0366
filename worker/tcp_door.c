/*
 * Who comes in, and who is asked about a message or the end of a connection:
 * what a meeting does when one of its sockets is ready.
 */
#include "tcp_meet.h"

#include <errno.h>
#include <stddef.h>
#include <sys/socket.h>
#include <unistd.h>

static coll_status_t on_end(struct tcp_meeting *m, struct meet_conn *c)
{
    struct meet_conn **at = meet_conn_slot(m, c);
    int rank = c->rank;
    coll_status_t status = COLL_OK;

    switch (c->role) {
    case CONN_STRANGER:
        break;
    case CONN_MEMBER:
        status = meet_fail_lost(m, rank);
        break;
    case CONN_LEADER:
        m->has_told = true;
        if (m->is_welcome)
            status = meet_fail_lost(m, 0);
        else
            m->is_refused = true;
        break;
    case CONN_NEIGHBOUR:
        meet_note_link(m, c, 0);
        break;
    }
    meet_conn_drop(at, false);
    return status;
}

static coll_status_t on_message(struct tcp_meeting *m, struct meet_conn *c)
{
    const struct meet_message *msg = &c->in;
    struct meet_conn **at = meet_conn_slot(m, c);

    switch (c->role) {
    case CONN_STRANGER:
        if (msg->kind == MEET_JOIN && m->g->rank == 0 && m->has_claimed &&
            meet_shows(msg, m->claim.token[0]))
            return meet_admit(m, at);
        if (msg->kind == MEET_HELLO)
            meet_greet_neighbour(m, at);
        else
            meet_conn_drop(at, false);
        return COLL_OK;
    case CONN_MEMBER:
        if (msg->kind == MEET_FAILURE)
            return meet_take_failure(m, msg);
        if (msg->kind == MEET_READY && !m->is_ready[c->rank]) {
            m->is_ready[c->rank] = true;
            m->ready_count++;
        }
        break;
    case CONN_LEADER:
        /* Nothing before the welcome counts: it may be a stranger. */
        if (msg->kind == MEET_WELCOME)
            m->is_welcome |= meet_shows(msg, m->claim.token[1]);
        else if (msg->kind == MEET_FAILURE &&
                 meet_shows(msg, m->claim.token[1]))
            return meet_take_failure(m, msg);
        else if (msg->kind == MEET_TABLE && m->is_welcome)
            return meet_take_table(m, c);
        else if (msg->kind == MEET_GO && m->is_welcome)
            m->may_go = true;
        break;
    case CONN_NEIGHBOUR:
        if (msg->kind == MEET_WELCOME && meet_shows(msg, m->claim.token[1])) {
            meet_become_link(at, tcp_net_link(m->net, c->rank));
        } else {
            meet_note_link(m, c, EPROTO);
            meet_conn_drop(at, false);
        }
        return COLL_OK;
    }
    return COLL_OK;
}

void meet_conn_ready_cb(struct poller_item *item, uint32_t events)
{
    struct meet_conn *c =
        (struct meet_conn *)((char *)item - offsetof(struct meet_conn, item));
    struct tcp_meeting *m = c->m;
    int rc = 0;

    (void)events;
    if (m->status != COLL_OK)
        return;
    if (c->is_connecting) {
        meet_finish_connect(c);
        return;
    }
    rc = meet_conn_receive(c);
    if (rc == -ECONNRESET)
        m->status = on_end(m, c);
    else if (rc < 0)
        m->status = meet_fail_rc("receive", rc);
    if (rc > 0) {
        /* Before it is acted upon, for that may free it. A held one keeps its
         * message, and is not read again. */
        c->in_len = 0;
        m->status = on_message(m, c);
    }
}

void meet_door_ready_cb(struct poller_item *item, uint32_t events)
{
    struct tcp_meeting *m =
        (struct tcp_meeting *)((char *)item -
                               offsetof(struct tcp_meeting, door));
    struct meet_conn **at = NULL;
    int fd = accept4(m->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    int rc;

    (void)events;
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
                      errno == ENOBUFS))
        m->status = meet_fail_rc("accept", -errno);
    if (fd < 0)
        return;
    /* The oldest goes when there are more, but for those who are known. */
    for (int i = 0; i < STRANGERS && at == NULL; i++)
        if (m->strangers[i] == NULL)
            at = &m->strangers[i];
    for (int i = 0; i < STRANGERS && at == NULL; i++) {
        struct meet_conn **next = &m->strangers[m->next_stranger++ % STRANGERS];

        if (!(*next)->is_held)
            at = next;
    }
    if (at == NULL) {
        close(fd);
        return;
    }
    meet_conn_drop(at, false);
    tcp_set_options(fd);
    rc = meet_conn_create(at, m, fd, CONN_STRANGER, -1, EPOLLIN);
    if (rc < 0)
        m->status = meet_fail_rc("watch a socket", rc);
}
