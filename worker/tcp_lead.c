/* Rank 0's part of a meeting: it lets the others in and hears from them. */
#include "tcp_meet.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "coll_ranks.h"
#include "rendezvous/base/clock.h"
#include "store.h"

static bool has_ended(int fd)
{
    char byte;

    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

coll_status_t meet_admit(struct tcp_meeting *m, struct meet_conn **at)
{
    struct meet_conn *c = *at;
    struct meet_message msg = c->in;
    struct meet_message refusal;
    coll_status_t status = COLL_ERR_ENVIRONMENT;
    int rank = msg.rank;

    if (msg.world_size != m->g->size) {
        coll_fail(status,
            "coll_init: rank %d has a world size of %d, rank 0 of %d", rank,
            (int)msg.world_size, m->g->size);
    } else if (rank < 0 || rank >= m->g->size || msg.port == 0 ||
               msg.port > UINT16_MAX) {
        meet_conn_drop(at, false);
        return COLL_OK;
    } else if (rank > 0 && m->members[rank] != NULL &&
               has_ended(m->members[rank]->fd)) {
        /* It has failed, and tries again: it will look for the next attempt. */
        meet_conn_drop(at, false);
        return meet_fail_lost(m, rank);
    } else if (rank == 0 || m->members[rank] != NULL) {
        char other[TCP_ADDR_BYTES] = "?";

        tcp_peer_address(c->fd, other);
        coll_fail(status,
            "coll_init: two workers of the job have the same RANK %d, one of "
            "them at %s",
            rank, other);
    } else if (meet_conn_answer(c) < 0) {
        meet_conn_drop(at, false);
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
    m->refused_count++;
    meet_failure_message(m, status, &refusal);
    meet_conn_send(c, &refusal, NULL);
    meet_conn_drop(at, false);
    return status;
}

coll_status_t meet_lead_step(struct tcp_meeting *m)
{
    uint64_t slice_ns = clock_deadline_ns(m->slice_ms);
    char missing[256];
    coll_status_t status = meet_step(m, meet_earlier(slice_ns, m->deadline_ns));

    if (status != COLL_OK)
        return status;
    if (clock_left_ms(m->deadline_ns) == 0) {
        meet_missing_text(m, missing, sizeof(missing));
        return meet_fail_late(m->g->timeout_ms, missing);
    }
    if (clock_now_ns() < slice_ns || !m->has_claimed)
        return COLL_OK;
    if (m->slice_ms < SLICE_LAST_MS)
        m->slice_ms *= 2;
    return meet_look_at_claim(m);
}

coll_status_t meet_lead(struct tcp_meeting *m)
{
    struct err e = {0};
    coll_status_t status = meet_make_claim(m);
    int rc;

    while (status == COLL_OK && m->members_count < m->g->size - 1)
        status = meet_lead_step(m);
    if (status != COLL_OK)
        return status;
    rc = meet_remove_claim(m, &e);
    if (rc < 0)
        return coll_store_fail_init(rc, &e);
    status = meet_send_tables(m);
    return status == COLL_OK ? meet_start_links(m) : status;
}

/* The job is set up wrongly: all its ranks are starting at this moment, and
 * those that still come shall hear of it. */
static void await_others(struct tcp_meeting *m)
{
    uint64_t end_ns = clock_deadline_ns(LAST_WORDS_MS);
    coll_status_t status = COLL_OK;

    while (m->has_claimed &&
           m->members_count + m->refused_count < m->g->size - 1 &&
           (status == COLL_OK || status == COLL_ERR_ENVIRONMENT) &&
           clock_left_ms(end_ns) > 0) {
        m->status = COLL_OK;
        status = meet_step(m, end_ns);
    }
}

/* First nobody may find this attempt any more: who has
 * failed may try again at once. */
void meet_dismiss(struct tcp_meeting *m, coll_status_t status)
{
    struct meet_message msg;
    struct err e = {0};

    meet_failure_message(m, status, &msg);
    if (status == COLL_ERR_ENVIRONMENT)
        await_others(m);
    poller_remove(m->poller, &m->door);
    if (m->listener >= 0)
        close(m->listener);
    m->listener = -1;
    meet_remove_claim(m, &e);
    for (int r = 1; r < m->g->size; r++)
        if (m->members[r] != NULL)
            meet_conn_send(m->members[r], &msg, NULL);
}
