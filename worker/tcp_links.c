/*
 * The links of a rank of the net: it connects to its lower neighbours, the
 * higher ones connect to it.
 */
#include "tcp_meet.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/resolve.h"

/* An address that does not answer for so long is one that cannot be reached:
 * the process there is known to be up. */
#define REACH_MS 20000

uint64_t meet_reach_deadline_ns(const struct tcp_meeting *m)
{
    int half_ms = clock_left_ms(m->deadline_ns) / 2;

    return clock_deadline_ns(half_ms < REACH_MS ? half_ms : REACH_MS);
}

static bool has_all_links(const struct tcp_meeting *m)
{
    for (int i = 0; m->net != NULL && i < m->net->nlinks; i++)
        if (m->net->links[i].data < 0 || m->net->links[i].news < 0)
            return false;
    return true;
}

void meet_become_link(struct meet_conn **at, struct tcp_link *link)
{
    struct meet_conn *c = *at;
    int *fd = c->channel == 0 ? &link->data : &link->news;

    *fd = c->fd;
    if (tcp_peer_address(c->fd, link->addr) < 0)
        link->addr[0] = '\0';
    meet_conn_drop(at, true);
}

void meet_greet_neighbour(struct tcp_meeting *m, struct meet_conn **at)
{
    struct meet_conn *c = *at;
    const struct meet_message *msg = &c->in;
    struct tcp_link *link = NULL;

    if (!meet_shows(msg, m->claim.token[0])) {
        meet_conn_drop(at, false);
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
        meet_conn_answer(c) < 0) {
        meet_conn_drop(at, false);
        return;
    }
    c->channel = msg->channel;
    meet_become_link(at, link);
}

/* It was up a moment ago: if it has gone since, rank 0 is about to say why. So
 * that is waited for before this counts. */
void meet_note_link(struct tcp_meeting *m, const struct meet_conn *c, int error)
{
    int rank = m->net->ranks[c->rank];
    const char *addr;
    int port;

    if (m->link_status != COLL_OK)
        return;
    tcp_places_get(m->places, rank, &addr, &port);
    m->link_status = meet_fail_unreachable(m, rank, addr, port,
        error == 0 ? "it closes the connection" : strerror(error));
    snprintf(m->link_reason, sizeof(m->link_reason), "%s", coll_last_error());
}

/* Starts to connect one channel to a lower neighbour. */
static coll_status_t start_link(
    struct tcp_meeting *m, int index, uint32_t channel)
{
    struct meet_conn **at = &m->outgoing[2 * (unsigned int)index + channel];
    int in_net = m->net->links[index].rank;
    int rank = m->net->ranks[in_net];
    struct addrinfo *ai;
    const char *addr;
    int port;
    int rc;
    int fd;

    tcp_places_get(m->places, rank, &addr, &port);
    rc = resolve_until(addr, port, 0, m->reach_ns, &ai);
    if (rc != 0)
        return meet_fail_unreachable(m, rank, addr, port,
            rc == EAI_INPROGRESS ? "the name service is silent"
                                 : gai_strerror(rc));
    fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, ai->ai_addr, ai->ai_addrlen) < 0 &&
        errno != EINPROGRESS && errno != EINTR) {
        rc = errno;
        close(fd);
        freeaddrinfo(ai);
        return meet_fail_unreachable(m, rank, addr, port, strerror(rc));
    }
    freeaddrinfo(ai);
    if (fd < 0)
        return meet_fail_rc("socket", -errno);
    tcp_set_options(fd);
    rc = meet_conn_create(at, m, fd, CONN_NEIGHBOUR, in_net, EPOLLOUT);
    if (rc < 0)
        return meet_fail_rc("watch a socket", rc);
    (*at)->channel = channel;
    (*at)->is_connecting = true;
    return COLL_OK;
}

coll_status_t meet_start_links(struct tcp_meeting *m)
{
    coll_status_t status = COLL_OK;

    m->reach_ns = meet_reach_deadline_ns(m);
    for (int i = 0; m->net != NULL && i < m->net->nlinks; i++)
        for (uint32_t channel = 0; channel < 2 && status == COLL_OK; channel++)
            if (m->net->links[i].rank < m->net->rank)
                status = start_link(m, i, channel);
    return status;
}

void meet_finish_connect(struct meet_conn *c)
{
    struct tcp_meeting *m = c->m;
    struct meet_message msg = {
        .kind = MEET_HELLO, .rank = m->net->rank, .channel = c->channel};
    int error = 0;
    socklen_t len = sizeof(error);
    int rc;

    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &len);
    rc = -error;
    if (rc == 0) {
        c->is_connecting = false;
        memcpy(msg.token, m->claim.token[0], TCP_TOKEN_BYTES);
        rc = meet_conn_send(c, &msg, NULL);
    }
    if (rc == 0)
        rc = poller_change(m->poller, &c->item, EPOLLIN);
    if (rc == 0)
        return;
    meet_note_link(m, c, -rc);
    meet_conn_drop(meet_conn_slot(m, c), false);
}

coll_status_t meet_await_links(struct tcp_meeting *m)
{
    coll_status_t status = COLL_OK;
    uint64_t end_ns = 0; /* until when rank 0 may say why one is missing */

    while (status == COLL_OK && !has_all_links(m)) {
        const struct meet_conn *late = NULL;

        for (int i = 0; i < 2 * TCP_MAX_LINKS && late == NULL; i++)
            late = m->outgoing[i];
        if (late != NULL && clock_now_ns() >= m->reach_ns)
            meet_note_link(m, late, ETIMEDOUT);
        if (m->link_status != COLL_OK && end_ns == 0)
            end_ns = clock_deadline_ns(LAST_WORDS_MS);
        if (end_ns != 0 && clock_now_ns() >= end_ns)
            return coll_fail(m->link_status, "%s", m->link_reason);
        if (end_ns != 0)
            status = meet_step(m, end_ns);
        else if (late != NULL && m->reach_ns < m->deadline_ns)
            status = meet_step(m, m->reach_ns);
        else
            status = meet_either_step(m);
    }
    return status;
}
