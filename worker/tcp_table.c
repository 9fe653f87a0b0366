/*
 * The table that rank 0 sends when all have come: the node of each rank, then
 * the place of each (tcp_places.c).
 */
#include "tcp_meet.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

size_t meet_table_max(const struct tcp_meeting *m)
{
    return (size_t)m->g->size * (sizeof(*m->nodes) + TCP_PLACE_BYTES);
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
        rc = tcp_net_create(&m->net, m->g, own, count, leads);
    free(leads);
    if (rc < 0)
        return meet_fail_rc("table", rc);
    m->has_table = true;
    return COLL_OK;
}

/* What all ranks know from now on, rank 0 too. */
static coll_status_t take_table(
    struct tcp_meeting *m, const char *table, size_t len)
{
    size_t nodes_bytes = (size_t)m->g->size * sizeof(*m->nodes);
    int next = 0;
    int rc;

    if (m->has_table || len < nodes_bytes)
        goto garbage;
    memcpy(m->nodes, table, nodes_bytes);
    for (int r = 0; r < m->g->size; r++) {
        if (m->nodes[r] < 0 || m->nodes[r] > next)
            goto garbage;
        next += m->nodes[r] == next;
    }
    rc = tcp_places_read(&m->places, table + nodes_bytes, len - nodes_bytes,
        m->g->size, m->leader_addr);
    if (rc == -EBADMSG)
        goto garbage;
    return rc < 0 ? meet_fail_rc("table", rc) : make_net(m);
garbage:
    return coll_fail(
        COLL_ERR_SYSTEM, "coll_init: what rank 0 has sent is no table");
}

coll_status_t meet_take_table(struct tcp_meeting *m, const struct meet_conn *c)
{
    coll_status_t status = take_table(m, c->table, c->table_len);

    if (status != COLL_OK)
        return status;
    /* Those who came before it. */
    for (int i = 0; i < STRANGERS; i++)
        if (m->strangers[i] != NULL && m->strangers[i]->is_held)
            meet_greet_neighbour(m, &m->strangers[i]);
    return meet_start_links(m);
}

/* Two ranks are on one node if they call it the same. */
static void number_nodes(struct tcp_meeting *m)
{
    int count = 0;

    for (int r = 0; r < m->g->size; r++) {
        int first = m->is_flat ? r : 0;

        while (first < r && strcmp(m->joins[first].node, m->joins[r].node) != 0)
            first++;
        m->nodes[r] = first == r ? count++ : m->nodes[first];
    }
}

/* Those of its host reach rank 0 at some address, and it reaches them there. */
static void find_own_address(struct tcp_meeting *m)
{
    for (int r = 1; r < m->g->size; r++)
        if (m->joins[r].addr[0] == '\0' &&
            tcp_local_address(m->members[r]->fd, m->leader_addr) == 0)
            return;
}

static size_t write_table(struct tcp_meeting *m, char *table)
{
    size_t len = (size_t)m->g->size * sizeof(*m->nodes);

    number_nodes(m);
    memcpy(table, m->nodes, len);
    for (int r = 0; r < m->g->size; r++)
        len += tcp_place_write(
            table + len, m->joins[r].addr, (int)m->joins[r].port);
    return len;
}

coll_status_t meet_send_tables(struct tcp_meeting *m)
{
    char *table = malloc(meet_table_max(m));
    coll_status_t status;
    size_t len;

    if (table == NULL)
        return meet_fail_rc("table", -ENOMEM);
    len = write_table(m, table);
    find_own_address(m);
    status = take_table(m, table, len);
    for (int r = 1; r < m->g->size && status == COLL_OK; r++) {
        struct meet_message msg = {
            .kind = MEET_TABLE, .table_bytes = (uint32_t)len};
        int rc = meet_conn_send(m->members[r], &msg, table);

        /* If it has ended, the next event will tell. */
        if (rc < 0 && rc != -EPIPE && rc != -ECONNRESET)
            status = meet_fail_rc("send the table", rc);
    }
    free(table);
    return status;
}
