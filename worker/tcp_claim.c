/*
 * The one key that a meeting has in the store: rank 0's claim, or a note in
 * its place.
 */
#include "tcp_meet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll_terms.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/text.h"
#include "rendezvous/worker_env.h"
#include "store.h"

int meet_remove_claim(struct tcp_meeting *m, struct err *e)
{
    int rc = 0;

    if (m->has_claimed)
        rc = coll_store_do_delete(
            m->store, m->key, NULL, coll_store_answer_ns(m->deadline_ns), e);
    if (rc == 0)
        m->has_claimed = false;
    return rc;
}

coll_status_t meet_make_claim(struct tcp_meeting *m)
{
    int fd = coll_store_fd(m->store);
    const char *named = getenv(ENV_NODE_ADDR);
    char terms[COLL_TERMS_BYTES];
    struct meet_claim *c = &m->claim;
    struct err e = {0};
    int rc = text_random_hex(c->token[0]);

    if (rc == 0)
        rc = text_random_hex(c->token[1]);
    if (rc < 0)
        return meet_fail_rc("random number", rc);
    if (named != NULL && named[0] != '\0')
        snprintf(c->addr, sizeof(c->addr), "%s", named);
    else if (fd >= 0 && tcp_is_within_host(fd))
        snprintf(c->addr, sizeof(c->addr), AT_THE_STORE);
    else if (fd < 0 || tcp_local_address(fd, c->addr) < 0)
        tcp_outward_address(c->addr);
    coll_terms_text(terms, m->g);
    snprintf(m->claim_text, sizeof(m->claim_text), "%s%s %s %d %s", terms,
        c->token[0], c->token[1], m->port, c->addr);
    rc = coll_store_do_set(m->store, m->key,
        store_bytes(m->claim_text, strlen(m->claim_text)),
        coll_store_answer_ns(m->deadline_ns), &e);
    if (rc < 0)
        return coll_store_fail_init(rc, &e);
    m->has_claimed = true;
    return COLL_OK;
}

static void failed_key(const struct tcp_meeting *m, char out[KEY_BYTES])
{
    snprintf(out, KEY_BYTES, "%sfailed/%s", m->prefix, m->claim.token[0]);
}

/* Rank 0, of this back end or another one, does not fit. */
static void tell_misfit(struct tcp_meeting *m, coll_status_t status)
{
    char key[KEY_BYTES];
    char text[CLAIM_BYTES];
    struct err e = {0};

    failed_key(m, key);
    snprintf(text, sizeof(text), "%d %d %s", m->g->rank, (int)status,
        coll_last_error());
    coll_store_do_set(m->store, key, store_bytes(text, strlen(text)),
        clock_deadline_ns(LAST_WORDS_MS), &e);
    m->has_told = true;
}

/* Has a rank found that it does not fit? */
static coll_status_t look_for_misfits(struct tcp_meeting *m)
{
    char name[KEY_BYTES];
    const char *key = name;
    char text[CLAIM_BYTES];
    struct err e = {0};
    struct buf value;
    bool is_there = false;
    int status;
    int at = 0;
    int rc;

    failed_key(m, name);
    rc = coll_store_do_check(
        m->store, &key, 1, &is_there, coll_store_answer_ns(m->deadline_ns), &e);
    if (rc == 0 && !is_there)
        return COLL_OK;
    buf_init(&value, sizeof(text) - 1);
    if (rc == 0)
        rc = coll_store_do_get(
            m->store, key, &value, coll_store_answer_ns(m->deadline_ns), &e);
    if (rc == 0)
        snprintf(text, sizeof(text), "%.*s", (int)value.len, buf_bytes(&value));
    buf_fini(&value);
    if (rc == 0)
        rc = coll_store_do_delete(
            m->store, key, NULL, coll_store_answer_ns(m->deadline_ns), &e);
    if (rc < 0)
        return coll_store_fail_init(rc, &e);
    if (sscanf(text, "%*d %d %n", &status, &at) != 1 || at == 0 || status >= 0)
        return COLL_OK;
    m->refused_count++;
    m->is_relayed = true;
    return coll_fail((coll_status_t)status, "%s", text + at);
}

coll_status_t meet_read_claim(struct tcp_meeting *m, bool *is_claim)
{
    struct meet_claim *c = &m->claim;
    struct err e = {0};
    struct buf value;
    const char *rest;
    coll_status_t status;
    int end = 0;
    int rc;

    buf_init(&value, sizeof(m->claim_text) - 1);
    rc = coll_store_do_get(m->store, m->key, &value, m->deadline_ns, &e);
    if (rc == 0) {
        memcpy(m->claim_text, buf_bytes(&value), value.len);
        m->claim_text[value.len] = '\0';
    }
    buf_fini(&value);
    if (rc == -ETIMEDOUT)
        return meet_fail_late(m->g->timeout_ms, "rank 0");
    if (rc < 0)
        return coll_store_fail_init(rc, &e);
    *is_claim = false;
    /* Empty: it was removed between waiting for it and reading it. */
    if (m->claim_text[0] == '\0' || m->claim_text[0] == NOTE)
        return COLL_OK;
    status = coll_terms_check(m->g, m->claim_text, &rest);
    if (status == COLL_ERR_ENVIRONMENT &&
        sscanf(rest, "%32s", c->token[0]) == 1)
        tell_misfit(m, status);
    if (status != COLL_OK)
        return status;
    if (sscanf(rest, "%32s %32s %d %255s%n", c->token[0], c->token[1], &c->port,
            c->addr, &end) != 4 ||
        rest[end] != '\0' || c->port <= 0 || c->port > UINT16_MAX ||
        strlen(c->token[0]) != TCP_TOKEN_BYTES ||
        strlen(c->token[1]) != TCP_TOKEN_BYTES)
        return coll_fail(COLL_ERR_STORE,
            "coll_init: what rank 0 left in the store is no claim");
    *is_claim = true;
    return COLL_OK;
}

coll_status_t meet_look_at_claim(struct tcp_meeting *m)
{
    struct err e = {0};
    struct buf value;
    const char *text;
    bool is_there = false;
    const char *key = m->key;
    coll_status_t status = look_for_misfits(m);
    int rc;

    if (status != COLL_OK)
        return status;
    rc = coll_store_do_check(
        m->store, &key, 1, &is_there, coll_store_answer_ns(m->deadline_ns), &e);
    buf_init(&value, sizeof(m->claim_text) - 1);
    if (rc == 0 && is_there)
        rc = coll_store_do_get(
            m->store, key, &value, coll_store_answer_ns(m->deadline_ns), &e);
    text = buf_bytes(&value);
    if (rc < 0 && rc != -ETIMEDOUT) {
        status = coll_store_fail_init(rc, &e);
    } else if (rc == 0 && value.len > 0 && text[0] == NOTE) {
        m->is_relayed = true;
        status = coll_fail(COLL_ERR_PEER, "%.*s", (int)value.len - 1, text + 1);
    } else if (rc == 0 && value.len > 0 &&
               (value.len != strlen(m->claim_text) ||
                   memcmp(text, m->claim_text, value.len) != 0)) {
        /* The key is the other one's, which learns of it there. */
        m->has_claimed = false;
        memcpy(m->claim_text, text, value.len);
        m->claim_text[value.len] = '\0';
        status = coll_fail(COLL_ERR_ENVIRONMENT,
            "coll_init: two workers of the job have the same RANK 0");
        meet_leave_note(m, status);
    }
    buf_fini(&value);
    return status;
}

void meet_leave_note(struct tcp_meeting *m, coll_status_t status)
{
    char note[CLAIM_BYTES];
    struct meet_message msg;
    struct err e = {0};
    struct buf now;

    meet_failure_message(m, status, &msg);
    snprintf(note, sizeof(note), "%c%s", NOTE, msg.text);
    buf_init(&now, CLAIM_BYTES);
    coll_store_do_compare_set(m->store, m->key,
        store_bytes(m->claim_text, strlen(m->claim_text)),
        store_bytes(note, strlen(note)), &now, clock_deadline_ns(LAST_WORDS_MS),
        &e);
    buf_fini(&now);
}
