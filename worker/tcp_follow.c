/* The other ranks' part of a meeting: they find rank 0 and hear from it. */
#include "tcp_meet.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll_agent.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/resolve.h"
#include "rendezvous/store_io.h"
#include "rendezvous/worker_env.h"
#include "store.h"

/* For one attempt to join. */
#define JOIN_MS 5000

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
static void describe(struct tcp_meeting *m, struct meet_message *msg, int fd)
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
static coll_status_t join_once(struct tcp_meeting *m, struct meet_message *join,
    uint64_t until_ns, int *rc)
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
        return meet_fail_rc("connect to rank 0", fd);
    if (fd < 0)
        return COLL_OK;
    tcp_set_options(fd);
    describe(m, join, fd);
    m->is_refused = false;
    *rc = meet_conn_create(&m->leader, m, fd, CONN_LEADER, 0, EPOLLIN);
    if (*rc < 0)
        return meet_fail_rc("watch a socket", *rc);
    *rc = meet_conn_send(m->leader, join, NULL);
    while (*rc == 0 && status == COLL_OK && !m->is_welcome && !m->is_refused) {
        status = meet_step(m, until_ns);
        if (clock_left_ms(until_ns) == 0)
            *rc = -ETIMEDOUT;
    }
    if (m->is_refused)
        *rc = -ECONNRESET;
    if (status == COLL_OK && !m->is_welcome) {
        m->has_told = false;
        meet_conn_drop(&m->leader, false);
    }
    return status;
}

static coll_status_t find_leader(
    struct tcp_meeting *m, struct meet_message *join)
{
    uint64_t reach_ns = 0;
    char tried[CLAIM_BYTES] = "";
    long pause_ms = 5;

    for (;;) {
        bool is_claim = false;
        int rc = 0;
        coll_status_t status = meet_read_claim(m, &is_claim);

        if (status == COLL_OK && is_claim)
            status = find_address(m);
        if (status == COLL_OK && is_claim &&
            strcmp(tried, m->claim_text) != 0) {
            memcpy(tried, m->claim_text, sizeof(tried));
            reach_ns = meet_reach_deadline_ns(m);
        }
        if (status == COLL_OK && is_claim)
            status = join_once(m, join,
                meet_earlier(reach_ns, clock_deadline_ns(JOIN_MS)), &rc);
        if (status != COLL_OK || m->is_welcome)
            return status;
        if (is_claim && clock_now_ns() >= reach_ns)
            return meet_fail_unreachable(
                m, 0, m->leader_addr, m->claim.port, strerror(-rc));
        if (clock_left_ms(m->deadline_ns) == 0)
            return meet_fail_late(m->g->timeout_ms, "rank 0");
        status = coll_agent_pause("coll_init", pause_ms);
        if (status != COLL_OK)
            return status;
        pause_ms = pause_ms < 50 ? pause_ms * 2 : 100;
    }
}

coll_status_t meet_follow(struct tcp_meeting *m, struct meet_message *join)
{
    coll_status_t status = find_leader(m, join);

    while (status == COLL_OK && !m->has_table)
        status = meet_member_step(m);
    return status;
}

/* Who waits for a rank 0 that it has joined asks it who is missing. */
static coll_status_t ask_who_is_late(struct tcp_meeting *m)
{
    struct meet_message msg;
    uint64_t end_ns = clock_deadline_ns(LAST_WORDS_MS);
    coll_status_t status = meet_fail_late(m->g->timeout_ms, "rank 0");

    meet_failure_message(m, status, &msg);
    if (meet_conn_send(m->leader, &msg, NULL) == 0)
        m->has_told = true;
    status = COLL_OK;
    while (status == COLL_OK && clock_left_ms(end_ns) > 0)
        status = meet_step(m, end_ns);
    if (status != COLL_OK)
        return status;
    return meet_fail_late(m->g->timeout_ms, "rank 0");
}

coll_status_t meet_member_step(struct tcp_meeting *m)
{
    coll_status_t status = meet_step(m, m->deadline_ns);

    if (status != COLL_OK || clock_left_ms(m->deadline_ns) > 0)
        return status;
    return ask_who_is_late(m);
}
