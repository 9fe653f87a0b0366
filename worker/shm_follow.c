/* The ranks of shm_boot.c beside rank 0: find it, join it, connect to each
 * other. */
#include "shm_boot.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"

/* Waits for the next event until the time is over. */
static coll_status_t follow_step(struct boot *b)
{
    int left_ms = clock_left_ms(b->deadline_ns);
    enum shm_event_kind kind = SHM_EV_NONE;
    struct shm_message msg = {.kind = SHM_FAILURE,
        .status = COLL_ERR_TIMEOUT,
        .timeout_ms = b->g->timeout_ms};
    struct shm_state *s = b->s;
    uint64_t end_ns;
    coll_status_t status;

    if (s->control != NULL && s->verdict_ns != 0 &&
        left_ms > clock_left_ms(s->verdict_ns))
        left_ms = clock_left_ms(s->verdict_ns);
    status = boot_step(b, left_ms, &kind);
    if (status != COLL_OK || kind != SHM_EV_NONE || left_ms > 0)
        return status;
    for (int r = 0; s->control != NULL && r < s->size; r++)
        if (s->peers[r].is_lost)
            return boot_fail_lost(b, r);
    if (s->control != NULL) {
        boot_mark_missing(s, s->rank + 1);
        return boot_fail_late(b, b->g->timeout_ms, " to connect");
    }
    /* Rank 0 knows who is missing; its answer names them. */
    end_ns = clock_deadline_ns(b->is_welcome ? LAST_WORDS_MS : 0);
    snprintf(msg.text, sizeof(msg.text), "timed out after %.1f s in coll_init",
        (double)b->g->timeout_ms / 1000.0);
    if (b->is_welcome)
        shm_send(s->peers[0].link, &msg, -1);
    do {
        left_ms = clock_left_ms(end_ns);
        status = boot_step(b, left_ms, &kind);
    } while (status == COLL_OK && left_ms > 0 && b->segment < 0);
    if (status != COLL_OK)
        return status;
    b->has_told = b->is_welcome;
    memset(s->set, 0, (size_t)s->size * sizeof(*s->set));
    s->set[0] = true;
    return boot_fail_late(b, b->g->timeout_ms, "");
}

/* What the key of rank 0 said when this rank came. */
static coll_status_t read_old_note(struct boot *b, char *out, size_t cap)
{
    char key[BOOT_KEY_BYTES];
    struct err e = {0};
    bool exists = false;
    int rc;

    out[0] = '\0';
    boot_key_of(b, key, "rank0");
    rc = boot_check(b, key, &exists, &e);
    if (rc == 0 && exists)
        rc = boot_get_text(b, key, out, cap, b->deadline_ns, &e);
    if (rc == -ETIMEDOUT) /* gone again */
        rc = 0;
    return rc < 0 ? coll_store_fail_init(rc, &e) : COLL_OK;
}

/*
 * Waits until rank 0's claim is there. *is_stale: look again, it is gone, or a
 * failure that was noted before this rank came. Whether that was in the same
 * attempt cannot be known; waiting for the next one is what heals.
 */
static coll_status_t find_claim(
    struct boot *b, const char *old_note, struct claim *claim, bool *is_stale)
{
    struct err e = {0};
    char key[BOOT_KEY_BYTES];
    char text[BOOT_TEXT_BYTES];
    coll_status_t fit;
    int status;
    int at = 0;
    int rc;

    boot_key_of(b, key, "rank0");
    rc = boot_get_text(b, key, text, sizeof(text), b->deadline_ns, &e);
    if (rc == -ETIMEDOUT) {
        memset(b->s->set, 0, (size_t)b->s->size * sizeof(*b->s->set));
        b->s->set[0] = true;
        return boot_fail_late(b, b->g->timeout_ms, "");
    }
    if (rc < 0)
        return coll_store_fail_init(rc, &e);
    /* Empty: the key was removed between waiting for it and reading it. */
    *is_stale =
        text[0] == '\0' || (text[0] == NOTE && strcmp(text, old_note) == 0);
    if (text[0] == NOTE && b->is_over != NULL &&
        (*is_stale || strncmp(text + 1, "0 ", 2) == 0)) {
        *b->is_over = true;
        return coll_fail(
            COLL_ERR_STORE, "coll_init: rank 0 is about to close its store");
    }
    if (*is_stale)
        return COLL_OK;
    if (text[0] == NOTE && sscanf(text + 1, "%d %*s %n", &status, &at) == 1 &&
        at > 0 && status < 0) {
        b->has_told = true;
        return boot_fail_told(b, (coll_status_t)status, text + 1 + at);
    }
    fit = boot_claim_parse(b, claim, text);
    if (fit == COLL_ERR_ENVIRONMENT) /* it is to hear of that */
        memcpy(b->leader, claim->name, sizeof(b->leader));
    return fit;
}

/* Connects to rank 0 and waits for its welcome. Not welcome afterwards: it
 * has gone. */
static coll_status_t join_leader(struct boot *b, const struct claim *claim)
{
    struct shm_message join = {
        .kind = SHM_JOIN, .rank = b->g->rank, .world_size = b->g->size};
    struct shm_state *s = b->s;
    coll_status_t status;
    pid_t pid;
    int fd;
    int rc;

    status = boot_try_connect(b, claim->name, &fd, &pid, &rc);
    if (status != COLL_OK || fd < 0)
        return status;
    memcpy(join.name, b->own.name, SHM_NAME_BYTES);
    rc = shm_send(fd, &join, -1);
    if (rc < 0) {
        close(fd);
        return rc == -EPIPE || rc == -ECONNRESET ? COLL_OK
                                                 : boot_fail_rc("send", rc);
    }
    s->verdict_ns = 0; /* another rank 0 may have been lost before */
    rc = shm_add_peer(s, 0, fd, pid);
    if (rc < 0)
        return boot_fail_rc("watch rank 0", rc);
    while (status == COLL_OK && !b->is_welcome && s->peers[0].link >= 0)
        status = follow_step(b);
    return status;
}

static coll_status_t find_leader(struct boot *b)
{
    long delay_ms = 5;
    char old_note[BOOT_TEXT_BYTES];
    coll_status_t status = read_old_note(b, old_note, sizeof(old_note));

    while (status == COLL_OK) {
        struct claim claim;
        bool is_stale = false;

        status = find_claim(b, old_note, &claim, &is_stale);
        if (status != COLL_OK)
            return status;
        if (!is_stale) {
            memcpy(b->leader, claim.name, sizeof(b->leader));
            status = boot_check_node(b, &claim);
            if (status == COLL_OK && b->listener < 0)
                status = boot_start_listening(b);
            if (status == COLL_OK)
                status = join_leader(b, &claim);
            if (status != COLL_OK || b->is_welcome)
                return status;
        }
        /* The store cannot wait for a change, so ask now and then. */
        if (clock_left_ms(b->deadline_ns) == 0)
            status = follow_step(b);
        else
            status = boot_pause_ms(&delay_ms);
    }
    return status;
}

/* A rank that has joined is not there any more. It, or its end, has told rank
 * 0, which is about to tell why. */
static coll_status_t fail_refused(struct boot *b, int rank)
{
    uint64_t end_ns = clock_deadline_ns(LAST_WORDS_MS);
    coll_status_t status = COLL_OK;
    int left_ms;

    do {
        enum shm_event_kind kind;

        left_ms = clock_left_ms(end_ns);
        status = boot_step(b, left_ms, &kind);
    } while (status == COLL_OK && left_ms > 0 && !shm_has_failed(b->s, rank));
    return status == COLL_OK ? boot_fail_lost(b, rank) : status;
}

/* Connects to a rank that has joined, as this one. */
static coll_status_t connect_to(struct boot *b, int rank)
{
    struct shm_message hello = {.kind = SHM_HELLO, .rank = b->g->rank};
    struct shm_state *s = b->s;
    coll_status_t status;
    pid_t pid;
    int fd;
    int rc;

    for (;;) {
        enum shm_event_kind kind;

        status =
            boot_try_connect(b, shm_segment_names(s)[rank], &fd, &pid, &rc);
        if (status != COLL_OK || rc != -EAGAIN)
            break;
        /* Its backlog is full. Meanwhile somebody else may fail. */
        status = boot_step(b, 0, &kind);
        if (status != COLL_OK)
            return status;
        if (clock_left_ms(b->deadline_ns) == 0) {
            memset(s->set, 0, (size_t)s->size * sizeof(*s->set));
            s->set[rank] = true;
            return boot_fail_late(b, b->g->timeout_ms, "");
        }
    }
    if (status != COLL_OK)
        return status;
    if (fd < 0)
        return fail_refused(b, rank);
    memcpy(hello.token, b->token, SHM_NAME_BYTES);
    rc = shm_send(fd, &hello, -1);
    if (rc < 0) {
        close(fd);
        return rc == -EPIPE || rc == -ECONNRESET ? fail_refused(b, rank)
                                                 : boot_fail_rc("send", rc);
    }
    rc = shm_add_peer(s, rank, fd, pid);
    return rc < 0 ? boot_fail_rc("watch a rank", rc) : COLL_OK;
}

coll_status_t boot_follow(struct boot *b)
{
    struct shm_state *s = b->s;
    coll_status_t status = find_leader(b);

    while (status == COLL_OK && b->segment < 0)
        status = follow_step(b);
    if (status == COLL_OK)
        status = shm_segment_map(s, b->segment);
    if (status == COLL_OK)
        status = boot_start_accepting(b);
    for (int r = 1; r < s->rank && status == COLL_OK; r++)
        status = connect_to(b, r);
    while (status == COLL_OK && boot_mark_missing(s, s->rank + 1) > 0)
        status = follow_step(b);
    return status;
}

/* Tells rank 0, which tells the others. Not needed once the segment is
 * mapped: there all can see it. */
void boot_tell_leader(struct boot *b, coll_status_t status)
{
    struct shm_message msg = {
        .kind = SHM_FAILURE, .status = status, .timeout_ms = b->g->timeout_ms};
    char reason[sizeof(msg.text)];
    char text[BOOT_TEXT_BYTES];
    char key[BOOT_KEY_BYTES];

    if (b->s->control != NULL || b->leader[0] == '\0')
        return;
    snprintf(reason, sizeof(reason), "%s", coll_last_error());
    if (b->s->peers[0].link >= 0) {
        snprintf(msg.text, sizeof(msg.text), "%s", reason);
        shm_send(b->s->peers[0].link, &msg, -1);
    } else if (!b->is_welcome && status != COLL_ERR_TIMEOUT) {
        snprintf(
            text, sizeof(text), "%d %d %s", b->g->rank, (int)status, reason);
        boot_failed_key(b, key);
        boot_set_text(b, key, text);
    }
    coll_fail(status, "%s", reason);
}
