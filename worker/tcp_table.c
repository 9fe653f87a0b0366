/*
 * The table that rank 0 sends when all have come: the node of each rank, then
 * the places of the receiver's neighbours if it is in the net.
 */
#include "tcp_meet.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

size_t meet_table_max(const struct tcp_meeting *m)
{
    return (size_t)m->g->size * sizeof(int32_t) +
           TCP_MAX_LINKS * sizeof(struct meet_place);
}

/* Makes the net of the lowest ranks of all nodes, where this is one. */
static coll_status_t make_net(struct tcp_meeting *m)
{
    int size = m->g->size;
    int *leads = calloc((size_t)size, sizeof(*leads));
    int own = -1;
    int count = 0;
    int rc = 0;

    if (leads == NULL)
        return meet_fail_rc("table", -ENOMEM);
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
        return meet_fail_rc("table", rc);
    if (m->net != NULL)
        m->net->timeout_ms = m->g->timeout_ms;
    m->has_table = true;
    return COLL_OK;
}

coll_status_t meet_take_table(struct tcp_meeting *m, const struct meet_conn *c)
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
        places_bytes = (size_t)m->net->nlinks * sizeof(struct meet_place);
    if (c->table_len != nodes_bytes + places_bytes)
        goto garbage;
    memcpy(m->places, c->table + nodes_bytes, places_bytes);
    for (int i = 0; i < TCP_MAX_LINKS; i++)
        m->places[i].addr[TCP_ADDR_BYTES - 1] = '\0';
    /* Those who came before it. */
    for (int i = 0; i < STRANGERS; i++)
        if (m->strangers[i] != NULL && m->strangers[i]->is_held)
            meet_greet_neighbour(m, &m->strangers[i]);
    return meet_start_links(m);
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
    struct meet_message msg = {.kind = MEET_TABLE};
    size_t len = (size_t)m->g->size * sizeof(*m->nodes);
    int neighbours[TCP_MAX_LINKS];
    int count = 0;
    int rc;

    memcpy(table, m->nodes, len);
    if (is_lead)
        count = tcp_neighbours(m->nodes[rank], m->nodes_count, neighbours);
    for (int i = 0; i < count; i++) {
        const struct meet_message *join = &m->joins[leads[neighbours[i]]];
        struct meet_place place = {.port = (int32_t)join->port};

        memcpy(place.addr, join->addr, sizeof(place.addr));
        memcpy(table + len, &place, sizeof(place));
        len += sizeof(place);
    }
    msg.table_bytes = (uint32_t)len;
    rc = meet_conn_send(m->members[rank], &msg, table);
    if (rc == -EPIPE || rc == -ECONNRESET)
        return COLL_OK; /* the next event will tell */
    return rc < 0 ? meet_fail_rc("send the table", rc) : COLL_OK;
}

coll_status_t meet_send_tables(struct tcp_meeting *m)
{
    char *table = malloc(meet_table_max(m));
    int *leads = calloc((size_t)m->g->size, sizeof(*leads));
    coll_status_t status = COLL_OK;

    if (table == NULL || leads == NULL)
        status = meet_fail_rc("table", -ENOMEM);
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
