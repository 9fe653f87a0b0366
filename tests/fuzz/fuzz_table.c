/*
 * The table of nodes and places that rank 0 sends to all others, from arbitrary
 * bytes; the first says how many ranks there are. Whatever they are: nothing
 * crashes, and what is taken for a table has nodes without gaps, a place for
 * every rank, and is what rank 0 would have written of it.
 */
#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "worker/tcp_meet.h"

enum { SIZE_MAX_RANKS = 40 };

static const char LEADER[] = "192.0.2.1";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What rank 0 writes; returns its length. */
static size_t write_places(const struct tcp_places *p, char *out)
{
    size_t len = 0;

    for (int r = 0; r < p->size; r++) {
        const char *addr;
        int port;

        assert(tcp_places_get(p, r, &addr, &port) == 0);
        assert(port > 0 && port <= UINT16_MAX && addr == p->of[r].addr);
        len += tcp_place_write(out + len, addr == p->text ? "" : addr, port);
    }
    assert(strcmp(p->text, LEADER) == 0);
    return len;
}

static void check_places(
    const struct tcp_places *p, const uint8_t *bytes, size_t len, int size)
{
    char *again = malloc((size_t)size * TCP_PLACE_BYTES);
    const char *addr;
    int port;

    assert(p->size == size && p->listener == -1);
    assert(tcp_places_get(p, -1, &addr, &port) == -EINVAL);
    assert(tcp_places_get(p, size, &addr, &port) == -EINVAL);
    if (again != NULL)
        assert(write_places(p, again) == len && memcmp(again, bytes, len) == 0);
    free(again);
}

static void check_nodes(const struct tcp_meeting *m, const uint8_t *bytes)
{
    int count = 0;

    assert(memcmp(m->nodes, bytes, (size_t)m->g->size * sizeof(int)) == 0);
    for (int r = 0; r < m->g->size; r++) {
        assert(m->nodes[r] >= 0 && m->nodes[r] <= count);
        count += m->nodes[r] == count;
    }
    assert(m->nodes_count == count);
    assert((m->net != NULL) == (count > 1));
    for (int i = 0; m->net != NULL && i < count; i++)
        assert(m->nodes[m->net->ranks[i]] == i);
}

static void take_table(const uint8_t *bytes, size_t len, int size)
{
    /* Rank 0 takes its own, and has no lower neighbours to connect to. */
    struct coll_group g = {.size = size};
    struct tcp_meeting *m = calloc(1, sizeof(*m));
    struct meet_conn c = {.table = malloc(len + 1), .table_len = len};
    size_t nodes_bytes = (size_t)size * sizeof(*m->nodes);

    assert(m != NULL && c.table != NULL);
    memcpy(c.table, bytes, len);
    memcpy(m->leader_addr, LEADER, sizeof(LEADER));
    m->g = &g;
    m->nodes = calloc((size_t)size, sizeof(*m->nodes));
    assert(m->nodes != NULL);
    if (meet_take_table(m, &c) == COLL_OK) {
        check_nodes(m, bytes);
        check_places(m->places, bytes + nodes_bytes, len - nodes_bytes, size);
        assert(meet_take_table(m, &c) != COLL_OK); /* there is one */
    }
    tcp_net_destroy(m->net);
    tcp_places_free(m->places);
    free(m->nodes);
    free(c.table);
    free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tcp_places *p = NULL;
    int ranks;
    int rc;

    if (size == 0)
        return 0;
    ranks = 1 + data[0] % SIZE_MAX_RANKS;
    data++;
    size--;
    rc = tcp_places_read(&p, (const char *)data, size, ranks, LEADER);
    assert(rc == 0 || rc == -EBADMSG);
    assert((rc == 0) == (p != NULL));
    if (rc == 0)
        check_places(p, data, size, ranks);
    tcp_places_free(p);
    take_table(data, size, ranks);
    return 0;
}
