/*
 * What stands in the store where rank 0's claim should be, from arbitrary
 * bytes. Whatever they are: nothing crashes, a claim that is taken is complete,
 * and rank 0 fails when it finds what is not its own.
 */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/base/clock.h"
#include "worker/store.h"
#include "worker/tcp_meet.h"

#define KEY "tcp/rank0"
#define OWN                                                                    \
    "3 tcp 0 0123456789abcdef0123456789abcdef "                                \
    "fedcba9876543210fedcba9876543210 4711 192.0.2.1"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void put(coll_store_t *store, const uint8_t *data, size_t size)
{
    struct err e = {0};

    assert(coll_store_do_set(store, KEY, store_bytes((const char *)data, size),
               clock_deadline_ns(1000), &e) == 0);
}

static struct tcp_meeting *meeting(coll_store_t *store, struct coll_group *g)
{
    struct tcp_meeting *m = calloc(1, sizeof(*m));

    assert(m != NULL);
    m->g = g;
    m->store = store;
    m->prefix = "";
    m->deadline_ns = clock_deadline_ns(1000);
    memcpy(m->key, KEY, sizeof(KEY));
    return m;
}

/* As the other ranks do. */
static void follow(coll_store_t *store, const uint8_t *data, size_t size)
{
    struct coll_group g = {
        .backend = &coll_backend_tcp, .rank = 1, .size = 2, .timeout_ms = 1000};
    struct tcp_meeting *m = meeting(store, &g);
    const struct meet_claim *c = &m->claim;
    bool is_claim = false;
    coll_status_t status = meet_read_claim(m, &is_claim);

    assert(status != COLL_OK || size < CLAIM_BYTES);
    if (status == COLL_OK && is_claim) {
        for (int i = 0; i < 2; i++)
            assert(
                strnlen(c->token[i], sizeof(c->token[i])) == TCP_TOKEN_BYTES);
        assert(c->port > 0 && c->port <= UINT16_MAX);
        assert(c->addr[0] != '\0');
        assert(memchr(c->addr, '\0', sizeof(c->addr)) != NULL);
    } else if (status == COLL_OK) {
        assert(size == 0 || data[0] == NOTE || data[0] == '\0');
    } else {
        assert(coll_last_error()[0] != '\0');
    }
    free(m);
}

/* As rank 0 does, now and then. */
static void look(coll_store_t *store, const uint8_t *data, size_t size)
{
    struct coll_group g = {
        .backend = &coll_backend_tcp, .size = 2, .timeout_ms = 1000};
    struct tcp_meeting *m = meeting(store, &g);
    bool is_own = size == strlen(OWN) && memcmp(data, OWN, size) == 0;
    coll_status_t status;

    m->has_claimed = true;
    memcpy(m->claim_text, OWN, sizeof(OWN));
    status = meet_look_at_claim(m);
    /* An empty one is one that is being removed. */
    assert((status == COLL_OK) == (is_own || size == 0));
    free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    coll_store_t *store = NULL;

    if (coll_store_hash(&store, NULL) != COLL_OK)
        return -1;
    put(store, data, size);
    follow(store, data, size);
    look(store, data, size);
    coll_store_close(store);
    return 0;
}
