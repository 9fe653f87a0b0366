/*
 * Set-up of the back end "shm": how the ranks of a job meet.
 *
 * 1. Rank 0 listens on an abstract socket with a random name and claims the
 *    key "rank0" of the store with it. The others wait for that key.
 * 2. Every rank connects to rank 0 and says who it is. When all have come,
 *    rank 0 removes the key, creates the segment, and passes it, with the
 *    names of all ranks' sockets in it, over these connections.
 * 3. Every rank connects to all lower ranks and accepts all higher ones.
 * 4. A first tick makes sure that everybody has got that far.
 *
 * The steps are in shm_lead.c for rank 0, in shm_follow.c for the others. What
 * both need: shm_claim.c (the store), shm_door.c (sockets and what is said).
 *
 * So when a group is made, nothing of it is in the store any more, and the
 * next program of the same workers may use the same keys. What a rank 0 that
 * was killed has left there is a name at which nobody listens: the others
 * look again until a new rank 0 claims the key. Where rank 0 hosts the store,
 * the next program has another one, and a rank that comes too early for that
 * is told to look for it.
 *
 * A rank that fails says why: to rank 0 over its connection, or through the
 * store (key "failed/<name of rank 0>") if it has none, and rank 0 to all;
 * once the segment is mapped, there. A failed rank may try again at once. For
 * that rank 0 first stops listening and takes its claim back, and tells the
 * others only then, so that none of them finds the attempt that has failed.
 */
#include "shm_boot.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coll_agent.h"
#include "coll_ranks.h"
#include "rendezvous/base/clock.h"

/* How long to sleep at most while nothing happens, at first: bounds how late
 * rank 0 sees in the store that another one has failed. */
#define SLICE_FIRST_MS 50

coll_status_t boot_fail_rc(const char *what, int rc)
{
    return coll_fail(rc == -ENOMEM ? COLL_ERR_MEMORY : COLL_ERR_SYSTEM,
        "coll_init: %s: %s", what, strerror(-rc));
}

coll_status_t boot_fail_errno(const char *what)
{
    return boot_fail_rc(what, -errno);
}

coll_status_t boot_fail_lost(struct boot *b, int rank)
{
    if (b->s->control != NULL && shm_has_failed(b->s, rank))
        return shm_fail_with(b->s, rank, true);
    if (coll_agent_await_cause())
        return coll_agent_fail("coll_init");
    if (b->s->peers[rank].pid <= 0)
        return coll_fail(COLL_ERR_PEER,
            "rank %d died or gave up during coll_init",
            coll_rank_name(b->s->names, rank));
    return coll_fail(COLL_ERR_PEER,
        "rank %d (pid %d) died or gave up during coll_init",
        coll_rank_name(b->s->names, rank), (int)b->s->peers[rank].pid);
}

coll_status_t boot_fail_told(
    struct boot *b, coll_status_t status, const char *text)
{
    b->s->is_relaying = true;
    return coll_fail(status, "%s", text);
}

coll_status_t boot_fail_gave_up(
    struct boot *b, int rank, coll_status_t status, const char *text)
{
    b->s->is_relaying = true;
    if (status == COLL_ERR_PEER)
        return coll_fail(status, "%s", text); /* it names who is at fault */
    return coll_fail(COLL_ERR_PEER, "rank %d gave up: %s",
        coll_rank_name(b->s->names, rank), text);
}

coll_status_t boot_fail_late(
    struct boot *b, int64_t timeout_ms, const char *to_do)
{
    struct shm_state *s = b->s;
    char missing[256];

    coll_ranks_text(missing, sizeof(missing), s->set, s->size, s->names);
    return coll_fail(COLL_ERR_TIMEOUT,
        "timed out after %.1f s in coll_init waiting for %s%s",
        (double)timeout_ms / 1000.0, missing, to_do);
}

int boot_mark_missing(struct shm_state *s, int first)
{
    int count = 0;

    for (int r = 0; r < s->size; r++) {
        s->set[r] = r >= first && r != s->rank && s->peers[r].link < 0;
        count += s->set[r];
    }
    return count;
}

coll_status_t boot_pause_ms(long *ms)
{
    coll_status_t status = coll_agent_pause("coll_init", *ms);

    *ms = *ms < 80 ? *ms * 2 : 100;
    return status;
}

/* --- All of it ---------------------------------------------------------- */

/* Nobody may have failed since it published the first tick: it would come
 * again while this rank goes on. But who failed with the group in its hands
 * cannot stop it any more, others have it: the first operation will tell. */
static coll_status_t check_nobody_failed(struct shm_state *s)
{
    for (int r = 0; r < s->size; r++) {
        uint32_t failure = atomic_load(&s->control[r].failure);

        if (failure != 0 && (failure & SHM_HAD_GROUP) == 0)
            return shm_fail_with(s, r, false);
    }
    return COLL_OK;
}

static coll_status_t prepare(struct boot *b)
{
    size_t size = (size_t)b->g->size;

    b->names = calloc(size, sizeof(*b->names));
    b->strangers = calloc(size, sizeof(*b->strangers));
    if (b->names == NULL || b->strangers == NULL)
        return coll_fail(COLL_ERR_MEMORY, "coll_init: out of memory");
    for (size_t i = 0; i < size; i++)
        b->strangers[i] = -1;
    return boot_node_get(&b->own.node);
}

coll_status_t shm_connect(struct coll_group *g, const struct coll_boot *boot)
{
    struct boot b = {
        .g = g,
        .s = g->state,
        .store = boot->store,
        .is_over = boot->is_over,
        .prefix = boot->prefix,
        .deadline_ns = boot->deadline_ns,
        .slice_ms = SLICE_FIRST_MS,
        .listener = -1,
        .segment = -1,
    };
    coll_status_t status = prepare(&b);

    if (status == COLL_OK && g->size == 1)
        status = shm_segment_create(b.s, &b.segment);
    else if (status == COLL_OK)
        status = g->rank == 0 ? boot_lead(&b) : boot_follow(&b);
    if (status != COLL_OK && !b.has_told && b.store != NULL) {
        if (g->rank == 0)
            boot_dismiss(&b, status);
        else
            boot_tell_leader(&b, status);
    }
    if (status == COLL_OK) {
        boot_stop_listening(&b);
        shm_put_cpus(b.s);
        status = shm_tick(g, NULL, b.deadline_ns);
        if (status == COLL_OK)
            status = check_nobody_failed(b.s);
        if (status == COLL_OK)
            shm_take_cpus(b.s);
        /* Who has failed before may be here again. */
        if (status != COLL_OK && g->rank == 0 && b.is_over != NULL)
            boot_leave_note(&b, COLL_OK, "over");
    }
    /* In this order: who finds the listener gone finds the reason, too. */
    if (status != COLL_OK)
        shm_announce_failure(b.s, status, 0);
    boot_stop_listening(&b);
    if (b.segment >= 0)
        close(b.segment);
    free(b.names);
    free(b.strangers);
    return status;
}
