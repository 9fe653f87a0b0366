/*
 * How the ranks of a group meet that may be on several nodes.
 *
 * 1. Rank 0 listens and leaves a claim in the store: two random tokens, a port
 *    and an address. The others wait for that key and connect to rank 0.
 * 2. They say who they are, on which node, and where they listen. When all
 *    have come, rank 0 removes the key and tells everybody which ranks share a
 *    node, and where each of them is.
 * 3. Neighbours connect, the higher rank to the lower one.
 * 4. Everybody tells rank 0 that it is ready; when all are, rank 0 says so.
 * 5. With several nodes they go on listening, for those who connect later.
 *
 * So there is one key for the whole group, each rank makes a handful of calls
 * to the store, and when a group is made nothing of it is there any more. A
 * claim that a killed rank 0 has left is one where nobody with its tokens
 * listens: the others look again until there is a new one.
 *
 * From joining to the end each rank keeps its connection to rank 0: whoever
 * fails says why over it, or ends it, and rank 0 tells all. Who cannot reach
 * rank 0 puts a note in the place of its claim; who finds a claim that does not
 * fit leaves it there for others, and says so elsewhere (coll_terms.h).
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
#include "tcp_meet.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coll_agent.h"
#include "coll_fds.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/worker_env.h"
#include "store.h"

#define ENV_BACKEND "COLL_BACKEND"

/* --- Waiting -------------------------------------------------------------- */

uint64_t meet_earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

coll_status_t meet_step(struct tcp_meeting *m, uint64_t until_ns)
{
    int rc;

    if (m->status == COLL_OK) {
        rc = poller_run(m->poller, clock_left_ms(until_ns));
        if (rc < 0)
            m->status = meet_fail_rc("epoll_wait", rc);
        if (m->status != COLL_OK)
            snprintf(m->reason, sizeof(m->reason), "%s", coll_last_error());
    }
    if (m->status != COLL_OK)
        return coll_fail(m->status, "%s", m->reason);
    return COLL_OK;
}

coll_status_t meet_either_step(struct tcp_meeting *m)
{
    return m->g->rank == 0 ? meet_lead_step(m) : meet_member_step(m);
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
        meet_step(m, 0);
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

/* --- From the beginning to the end ---------------------------------------- */

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
        meet_conn_drop(&m->strangers[i], false);
    for (int i = 0; i < 2 * TCP_MAX_LINKS; i++)
        meet_conn_drop(&m->outgoing[i], false);
    for (int r = 0; m->members != NULL && r < m->g->size; r++)
        meet_conn_drop(&m->members[r], false);
    meet_conn_drop(&m->leader, false);
    if (m->poller != NULL) {
        poller_remove(m->poller, &m->agent);
        poller_remove(m->poller, &m->door);
    }
    poller_destroy(m->poller);
    if (m->listener >= 0)
        close(m->listener);
    tcp_net_destroy(m->net);
    tcp_places_free(m->places);
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
        return meet_fail_rc("group", -ENOMEM);
    if (m->g->rank == 0) {
        m->members = calloc(size, sizeof(struct meet_conn *));
        m->joins = calloc(size, sizeof(*m->joins));
        m->is_ready = calloc(size, sizeof(*m->is_ready));
        if (m->members == NULL || m->joins == NULL || m->is_ready == NULL)
            return meet_fail_rc("group", -ENOMEM);
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
        return meet_fail_rc("watch the launcher", rc);
    rc = tcp_listen(&m->listener, &m->port);
    if (rc == 0)
        rc = poller_add(
            m->poller, &m->door, m->listener, EPOLLIN, meet_door_ready_cb);
    if (rc < 0)
        return meet_fail_rc("listen", rc);
    return COLL_OK;
}

/* All others of the group have made it, so no more connections are awaited
 * from now on: who comes later is left in the queue for the places' owner. */
static void hand_over(
    struct tcp_meeting *m, struct tcp_net **net, struct tcp_places **places)
{
    poller_remove(m->poller, &m->door);
    if (m->nodes_count > 1) {
        m->places->listener = m->listener;
        memcpy(m->places->token[0], m->claim.token[0], TCP_TOKEN_BYTES);
        memcpy(m->places->token[1], m->claim.token[1], TCP_TOKEN_BYTES);
    } else {
        close(m->listener);
        tcp_places_free(m->places);
        m->places = NULL;
    }
    m->listener = -1;
    *places = m->places;
    m->places = NULL;
    *net = m->net;
    m->net = NULL;
}

coll_status_t tcp_meet(struct tcp_meeting **out, struct tcp_net **net,
    struct tcp_places **places, struct coll_group *g,
    const struct coll_boot *boot, bool is_flat)
{
    struct tcp_meeting *m = calloc(1, sizeof(*m));
    struct meet_message self = {.kind = MEET_JOIN};
    coll_status_t status;

    if (m == NULL)
        return meet_fail_rc("group", -ENOMEM);
    m->g = g;
    m->store = boot->store;
    m->prefix = boot->prefix;
    m->deadline_ns = boot->deadline_ns;
    m->is_flat = is_flat;
    m->slice_ms = SLICE_FIRST_MS;
    m->listener = -1;
    m->agent.fd = -1;
    m->door.fd = -1;
    snprintf(m->key, sizeof(m->key), "%srank0", boot->prefix);
    status = prepare(m, boot->is_over != NULL);
    if (status == COLL_OK && !is_flat)
        status = name_node(self.node, boot->node);
    if (status == COLL_OK && g->rank == 0) {
        self.port = (uint32_t)m->port;
        m->joins[0] = self;
        status = meet_lead(m);
    } else if (status == COLL_OK) {
        status = meet_follow(m, &self);
    }
    if (status == COLL_OK)
        status = meet_await_links(m);
    if (status != COLL_OK)
        return tcp_meeting_end(m, status);
    hand_over(m, net, places);
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
    struct meet_message msg = {.kind = MEET_GO};
    coll_status_t status = COLL_OK;
    int rc;

    if (m->g->rank == 0) {
        while (status == COLL_OK && m->ready_count < m->g->size - 1)
            status = meet_lead_step(m);
        for (int r = 1; r < m->g->size && status == COLL_OK; r++) {
            rc = meet_conn_send(m->members[r], &msg, NULL);
            /* Who has ended meanwhile is missed in the first operation. */
            if (rc < 0 && !meet_is_end(-rc))
                status = meet_fail_rc("send", rc);
        }
        return status;
    }
    msg.kind = MEET_READY;
    rc = meet_conn_send(m->leader, &msg, NULL);
    /* If it has ended, what it has said before is still there. */
    if (rc < 0 && !meet_is_end(-rc))
        return meet_fail_rc("send", rc);
    while (status == COLL_OK && !m->may_go)
        status = meet_member_step(m);
    return status;
}

coll_status_t tcp_meeting_end(struct tcp_meeting *m, coll_status_t status)
{
    char reason[sizeof(m->reason)];
    struct meet_message msg;

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
                meet_dismiss(m, status);
        } else if (m->leader != NULL && !m->has_told) {
            meet_failure_message(m, status, &msg);
            meet_conn_send(m->leader, &msg, NULL);
        } else if (m->leader == NULL && m->claim_text[0] != '\0' &&
                   m->claim_text[0] != NOTE && !m->has_told &&
                   status != COLL_ERR_TIMEOUT && status != COLL_ERR_STORE) {
            meet_leave_note(m, status);
        }
        coll_fail(status, "%s", reason);
    }
    meeting_destroy(m);
    return status;
}
