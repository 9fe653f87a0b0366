/*
 * Why there will be no group, in words: those of this rank, those for the
 * others, and those that came from one of them.
 */
#include "tcp_meet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll_agent.h"
#include "coll_ranks.h"
#include "rendezvous/worker_env.h"

coll_status_t meet_fail_rc(const char *what, int rc)
{
    return coll_fail(rc == -ENOMEM ? COLL_ERR_MEMORY : COLL_ERR_SYSTEM,
        "coll_init: %s: %s", what, strerror(-rc));
}

coll_status_t meet_fail_late(int64_t timeout_ms, const char *whom)
{
    return coll_fail(COLL_ERR_TIMEOUT,
        "timed out after %.1f s in coll_init waiting for %s",
        (double)timeout_ms / 1000.0, whom);
}

coll_status_t meet_fail_unreachable(const struct tcp_meeting *m, int rank,
    const char *addr, int port, const char *why)
{
    return coll_fail(COLL_ERR_SYSTEM,
        "coll_init: rank %d at %s cannot reach rank %d at %s port %d: %s; "
        "%s can tell the address of a node that others reach",
        coll_rank_name(m->g->names, m->g->rank), m->own_addr,
        coll_rank_name(m->g->names, rank), addr, port, why, ENV_NODE_ADDR);
}

coll_status_t meet_fail_lost(const struct tcp_meeting *m, int rank)
{
    if (coll_agent_await_cause())
        return coll_agent_fail("coll_init");
    return coll_fail(COLL_ERR_PEER, "rank %d died or gave up during coll_init",
        coll_rank_name(m->g->names, rank));
}

/* Marks who is missed; the text for a sentence. */
bool meet_missing_text(const struct tcp_meeting *m, char *out, size_t cap)
{
    bool has_all = m->members_count == m->g->size - 1;
    bool *missing = calloc((size_t)m->g->size, sizeof(*missing));
    bool is_any = false;

    snprintf(out, cap, "the other ranks");
    if (missing == NULL)
        return true;
    for (int r = 1; r < m->g->size; r++) {
        missing[r] = has_all ? !m->is_ready[r] : m->members[r] == NULL;
        is_any |= missing[r];
    }
    if (is_any)
        coll_ranks_text(out, cap, missing, m->g->size, m->g->names);
    free(missing);
    return is_any;
}

coll_status_t meet_take_failure(
    struct tcp_meeting *m, const struct meet_message *msg)
{
    char missing[256];

    m->is_relayed = true;
    m->has_told = m->g->rank != 0;
    if (msg->status >= 0)
        return coll_fail(COLL_ERR_PEER, "a rank gave up during coll_init");
    /* Who waits does not know for whom: rank 0 does. */
    if (m->g->rank == 0 && msg->status == COLL_ERR_TIMEOUT &&
        meet_missing_text(m, missing, sizeof(missing)))
        return meet_fail_late(msg->timeout_ms, missing);
    return coll_fail((coll_status_t)msg->status, "%s", msg->text);
}

void meet_failure_message(
    const struct tcp_meeting *m, coll_status_t status, struct meet_message *msg)
{
    bool is_for_all = m->is_relayed || status == COLL_ERR_PEER ||
                      status == COLL_ERR_TIMEOUT ||
                      status == COLL_ERR_ENVIRONMENT;

    *msg = (struct meet_message){.kind = MEET_FAILURE,
        .status = is_for_all ? status : COLL_ERR_PEER,
        .timeout_ms = m->g->timeout_ms};
    if (is_for_all)
        snprintf(msg->text, sizeof(msg->text), "%s", coll_last_error());
    else
        snprintf(msg->text, sizeof(msg->text), "rank %d gave up: %.400s",
            coll_rank_name(m->g->names, m->g->rank), coll_last_error());
    memcpy(msg->token, m->claim.token[m->g->rank == 0], TCP_TOKEN_BYTES);
}
