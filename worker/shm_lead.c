/* Rank 0 of shm_boot.c: claims the key, gathers the others, or dismisses
 * them. */
#include "shm_boot.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "coll_ranks.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/text.h"

/* How long to sleep at most while nothing happens, after a while. */
#define SLICE_LAST_MS 1000

/* Has a rank that cannot reach this one left its reason in the store? */
static coll_status_t read_failed(struct boot *b)
{
    char key[BOOT_KEY_BYTES];
    char text[BOOT_TEXT_BYTES];
    struct err e = {0};
    bool exists = false;
    int rank;
    int status;
    int at = 0;
    int rc;

    boot_failed_key(b, key);
    rc = boot_check(b, key, &exists, &e);
    if (rc < 0)
        return coll_store_fail_init(rc, &e);
    if (!exists)
        return COLL_OK;
    rc = boot_get_text(b, key, text, sizeof(text), b->deadline_ns, &e);
    if (rc == 0)
        rc = boot_delete(b, key, &e);
    if (rc < 0)
        return coll_store_fail_init(rc, &e);
    if (sscanf(text, "%d %d %n", &rank, &status, &at) != 2 || at == 0 ||
        status >= 0)
        return COLL_OK;
    if (status == COLL_ERR_UNSUPPORTED || status == COLL_ERR_ENVIRONMENT)
        return boot_fail_told(b, (coll_status_t)status, text + at);
    return boot_fail_gave_up(b, rank, (coll_status_t)status, text + at);
}

/* Waits for the next event with a look at store and clock now and then. */
static coll_status_t lead_step(struct boot *b)
{
    int left_ms = clock_left_ms(b->deadline_ns);
    enum shm_event_kind kind = SHM_EV_NONE;
    coll_status_t status =
        boot_step(b, left_ms < b->slice_ms ? left_ms : b->slice_ms, &kind);

    if (status != COLL_OK || kind != SHM_EV_NONE)
        return status;
    if (left_ms == 0) {
        boot_mark_missing(b->s, 1);
        return boot_fail_late(b, b->g->timeout_ms, "");
    }
    if (b->slice_ms < SLICE_LAST_MS)
        b->slice_ms *= 2;
    return read_failed(b);
}

/*
 * The key is taken by another claim. If its owner lives there are two ranks
 * 0; it is told by connecting, so that it fails, too. Else the claim was left
 * behind by a process that was killed, and *is_stale.
 */
static coll_status_t challenge(
    struct boot *b, const char *other, bool *is_stale)
{
    struct shm_message join = {
        .kind = SHM_JOIN, .rank = 0, .world_size = b->g->size};
    struct shm_state *s = b->s;
    struct claim claim;
    coll_status_t status;
    pid_t pid;
    int fd;
    int rc;

    *is_stale = true;
    if (boot_claim_parse(b, &claim, other) != COLL_OK)
        return COLL_OK;
    status = boot_try_connect(b, claim.name, &fd, &pid, &rc);
    if (status != COLL_OK || (fd < 0 && rc != -EAGAIN))
        return status;
    if (fd < 0) {
        *is_stale = false;
        return COLL_OK;
    }
    /* As if it were a peer for a moment, to learn whether it lives. */
    rc = shm_send(fd, &join, -1);
    if (rc == 0)
        rc = shm_add_peer(s, 0, fd, pid);
    else
        close(fd);
    if (rc == 0 && s->peers[0].link >= 0) {
        struct shm_event ev = {.kind = SHM_EV_NONE};
        uint64_t end_ns = clock_deadline_ns(LAST_WORDS_MS);

        do {
            rc = shm_next_event(s, clock_left_ms(end_ns), &ev);
        } while (rc == 0 && ev.kind == SHM_EV_LISTENER);
        *is_stale = ev.kind == SHM_EV_LOST;
        if (ev.kind == SHM_EV_MESSAGE && ev.msg.kind == SHM_FAILURE) {
            b->has_told = true;
            status = boot_fail_told(b, COLL_ERR_ENVIRONMENT, ev.msg.text);
        }
    }
    shm_drop_peer(s, 0);
    s->peers[0] = (struct shm_peer){.link = -1, .pidfd = -1};
    return status;
}

/* Stores of PyTorch without libuv wake those who wait for a key when it is set,
 * but not when it was swapped in. Nobody else writes here while the owner of
 * the claim lives. */
static coll_status_t wake_followers(
    struct boot *b, const char *key, const char *claim)
{
    struct err e = {0};
    int rc = coll_store_do_set(b->store, key, store_bytes(claim, strlen(claim)),
        coll_store_answer_ns(b->deadline_ns), &e);

    return rc < 0 ? coll_store_fail_init(rc, &e) : COLL_OK;
}

/* Puts this rank's name where the others look. */
static coll_status_t claim_key(struct boot *b)
{
    long delay_ms = 5;
    char expected[BOOT_TEXT_BYTES] = "";
    char found[BOOT_TEXT_BYTES];
    char desired[160];
    char key[BOOT_KEY_BYTES];

    boot_key_of(b, key, "rank0");
    boot_claim_text(b, desired, sizeof(desired));
    for (;;) {
        struct err e = {0};
        bool is_stale = false;
        coll_status_t status;
        int rc =
            boot_swap_text(b, key, expected, desired, found, sizeof(found), &e);

        if (rc < 0)
            return coll_store_fail_init(rc, &e);
        if (strcmp(found, desired) == 0)
            break;
        status = challenge(b, found, &is_stale);
        if (status != COLL_OK)
            return status;
        if (clock_left_ms(b->deadline_ns) == 0) {
            b->has_told = true; /* the key is the other one's */
            return coll_fail(COLL_ERR_TIMEOUT,
                "timed out after %.1f s in coll_init waiting for another "
                "rank 0 to give up",
                (double)b->g->timeout_ms / 1000.0);
        }
        /* If the key is gone since, the store answers with what was expected:
         * then nothing is. */
        if (is_stale && strcmp(found, expected) != 0) {
            memcpy(expected, found, sizeof(expected));
        } else {
            expected[0] = '\0';
            status = boot_pause_ms(&delay_ms);
            if (status != COLL_OK)
                return status;
        }
    }
    memcpy(b->leader, b->own.name, sizeof(b->leader));
    b->has_claimed = true;
    return wake_followers(b, key, desired);
}

static coll_status_t give_up_claim(struct boot *b)
{
    struct err e = {0};
    char key[BOOT_KEY_BYTES];
    int rc;

    boot_key_of(b, key, "rank0");
    rc = boot_delete(b, key, &e);
    if (rc < 0)
        return coll_store_fail_init(rc, &e);
    b->has_claimed = false;
    return COLL_OK;
}

static coll_status_t hand_out_segment(struct boot *b)
{
    struct shm_state *s = b->s;
    struct shm_message msg = {.kind = SHM_SEGMENT};
    int rc = text_random_hex(b->token);
    coll_status_t status;

    if (rc < 0)
        return boot_fail_rc("random number", rc);
    status = shm_segment_create(s, &b->segment);
    if (status != COLL_OK)
        return status;
    memcpy(shm_segment_names(s), b->names, (size_t)s->size * sizeof(*b->names));
    memcpy(msg.token, b->token, SHM_NAME_BYTES);
    for (int r = 1; r < s->size; r++) {
        rc = shm_send(s->peers[r].link, &msg, b->segment);
        if (rc == -EPIPE || rc == -ECONNRESET)
            return boot_fail_lost(b, r);
        if (rc < 0)
            return boot_fail_rc("pass the shared memory", rc);
    }
    return COLL_OK;
}

coll_status_t boot_lead(struct boot *b)
{
    coll_status_t status = boot_start_listening(b);

    if (status == COLL_OK)
        status = boot_start_accepting(b);
    if (status == COLL_OK)
        status = claim_key(b);
    while (status == COLL_OK && boot_mark_missing(b->s, 1) > 0)
        status = lead_step(b);
    if (status == COLL_OK)
        status = give_up_claim(b);
    if (status == COLL_OK)
        status = hand_out_segment(b);
    return status;
}

/* No two notes are alike, so that an old one can be told. */
void boot_leave_note(struct boot *b, coll_status_t status, const char *reason)
{
    char nonce[SHM_NAME_BYTES + 1];
    char expected[BOOT_TEXT_BYTES] = "";
    char note[BOOT_TEXT_BYTES];
    char found[BOOT_TEXT_BYTES];
    char key[BOOT_KEY_BYTES];
    struct err e;

    /* Once all have come, who looks at the key is early for the next attempt:
     * that is no concern of this one, unless there will be another store. */
    if (b->leader[0] != '\0' && !b->has_claimed) {
        if (b->is_over == NULL)
            return;
        status = COLL_OK;
    }
    if (text_random_hex(nonce) < 0)
        return;
    boot_key_of(b, key, "rank0");
    snprintf(
        note, sizeof(note), "%c%d %s %s", NOTE, (int)status, nonce, reason);
    if (b->has_claimed)
        boot_claim_text(b, expected, sizeof(expected));
    if (boot_swap_text(b, key, expected, note, found, sizeof(found), &e) == 0 &&
        found[0] == NOTE && strcmp(found, note) != 0)
        boot_swap_text(b, key, found, note, expected, sizeof(expected), &e);
}

/*
 * Rank 0 gives up: tells all others, also those that arrive right now; if
 * the job is set up wrongly all its ranks are waited for, because they are
 * starting at this moment.
 */
void boot_dismiss(struct boot *b, coll_status_t status)
{
    struct shm_message msg = {.kind = SHM_FAILURE, .status = status};
    struct shm_state *s = b->s;
    char reason[sizeof(msg.text)];
    bool is_own = !s->is_relaying && status != COLL_ERR_PEER &&
                  status != COLL_ERR_TIMEOUT &&
                  status != COLL_ERR_ENVIRONMENT &&
                  status != COLL_ERR_UNSUPPORTED;
    enum shm_event_kind kind = SHM_EV_NONE;
    uint64_t end_ns = clock_deadline_ns(
        status == COLL_ERR_ENVIRONMENT || status == COLL_ERR_UNSUPPORTED
            ? LAST_WORDS_MS
            : 0);

    snprintf(reason, sizeof(reason), "%s", coll_last_error());
    /* The other sentences are true on every rank. */
    if (is_own)
        msg.status = COLL_ERR_PEER;
    if (is_own)
        snprintf(msg.text, sizeof(msg.text), "rank %d gave up: %.400s",
            coll_rank_name(s->names, 0), reason);
    else
        snprintf(msg.text, sizeof(msg.text), "%s", reason);
    while (b->listener >= 0 && boot_mark_missing(s, 1) > 0) {
        int left_ms = clock_left_ms(end_ns);

        coll_status_t problem = boot_step(b, left_ms, &kind);

        if (kind == SHM_EV_NONE && left_ms == 0)
            break;
        /* Nobody can be accepted: would fail for ever. */
        if (problem == COLL_ERR_SYSTEM || problem == COLL_ERR_MEMORY)
            break;
    }
    boot_stop_listening(b);
    boot_leave_note(b, msg.status, msg.text);
    for (int r = 1; r < s->size; r++)
        if (s->peers[r].link >= 0)
            shm_send(s->peers[r].link, &msg, -1);
    coll_fail(status, "%s", reason);
}
