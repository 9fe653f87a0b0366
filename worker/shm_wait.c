/*
 * Ticks: publishing one, waiting for those of the others, and finding out
 * why one does not come. An error here is what keeps every operation of the
 * back end from hanging, so all waiting of an operation is in this file.
 */
#include "shm_internal.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "coll_agent.h"
#include "coll_ranks.h"
#include "coll_signature.h"
#include "rendezvous/base/clock.h"

/*
 * Waiting has three steps. Spinning answers fastest, but only helps while
 * the others run at the same time. Yielding costs a microsecond or so per
 * operation where ranks share CPUs, sleeping and being woken 20. After
 * YIELD_NS somebody is really late, and burning a CPU would slow it down.
 */
#define SPIN_MAX_ROUNDS 40
#define YIELD_NS (100 * 1000ull)

/*
 * The longest sleep without a look at the peers. Publishing wakes sleepers at
 * once, and so does a rank that has noticed a death; this bounds how late the
 * first of them does. A millisecond per rank keeps the looks of all ranks
 * together at a thousand per second.
 */
#define SLICE_MIN_MS 4
#define SLICE_MAX_MS 200

/* Not FUTEX_PRIVATE: the word is shared between processes. */
static void futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t ns)
{
    struct timespec ts = {
        .tv_sec = (time_t)(ns / CLOCK_NS_PER_S),
        .tv_nsec = (long)(ns % CLOCK_NS_PER_S),
    };

    syscall(SYS_futex, word, FUTEX_WAIT, value, &ts, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void shm_wake_all(struct shm_state *s)
{
    for (int r = 0; r < s->size; r++)
        for (int parity = 0; parity < 2; parity++)
            futex_wake_all(&s->control[r].ticks[parity].tick);
}

/* Two threads may find a failure at the same time, so only under the lock. */
void shm_note_failure(
    struct shm_state *s, int rank, uint32_t failure, const char *text)
{
    struct shm_control *c;

    if (s->control == NULL)
        return;
    c = &s->control[rank];
    if (atomic_load(&c->failure) == 0) {
        snprintf(c->failure_text, sizeof(c->failure_text), "%s", text);
        atomic_store(&c->failure, failure);
    }
    shm_wake_all(s);
}

void shm_announce_failure(
    struct shm_state *s, coll_status_t status, uint32_t flags)
{
    struct shm_message msg = {.kind = SHM_WAKE, .lane = SHM_LANES};

    if (s->is_relaying)
        flags |= SHM_IS_RELAYED;
    pthread_mutex_lock(&s->lock);
    shm_note_failure(s, s->rank, (uint32_t)-status | flags, coll_last_error());
    /* Who has no group yet does not expect that message. */
    for (int r = 0; (flags & SHM_HAD_GROUP) != 0 && r < s->size; r++)
        if (s->peers[r].link >= 0)
            shm_send(s->peers[r].link, &msg, -1);
    pthread_mutex_unlock(&s->lock);
}

bool shm_has_failed(const struct shm_state *s, int rank)
{
    return atomic_load(&s->control[rank].failure) != 0;
}

coll_status_t shm_fail_with(struct shm_state *s, int rank, bool is_behind)
{
    const struct shm_control *c = &s->control[rank];
    uint32_t failure = atomic_load_explicit(&c->failure, memory_order_acquire);
    coll_status_t status = -(coll_status_t)(failure & ~SHM_FAILURE_FLAGS);
    coll_status_t said = status;
    int len = (int)strnlen(c->failure_text, sizeof(c->failure_text));

    s->is_relaying = true;
    if ((failure & SHM_AS_IT_IS) != 0)
        return coll_fail(said, "%.*s", len, c->failure_text);
    /* A rank that waited for the same third one shares its time-out; one
     * that was late itself has lost a peer. */
    if (status != COLL_ERR_MISMATCH &&
        (status != COLL_ERR_TIMEOUT || is_behind))
        status = COLL_ERR_PEER;
    /* These sentences are true on every rank: they say who is at fault. */
    if ((failure & SHM_IS_RELAYED) != 0 || said == COLL_ERR_PEER ||
        said == COLL_ERR_MISMATCH)
        return coll_fail(status, "%.*s", len, c->failure_text);
    return coll_fail(status, "rank %d gave up: %.*s",
        coll_rank_name(s->names, rank), len, c->failure_text);
}

static coll_status_t fail_timeout(
    const struct coll_group *g, const struct coll_call *call)
{
    struct shm_state *s = g->state;
    char name[64];
    char late[256];

    for (int r = 0; r < s->size; r++)
        s->set[r] = shm_is_behind(s, r);
    coll_ranks_text(late, sizeof(late), s->set, s->size, s->names);
    return coll_fail(COLL_ERR_TIMEOUT,
        "timed out after %.1f s in %s waiting for %s",
        (double)(call == NULL ? g->timeout_ms : call->timeout_ms) / 1000.0,
        coll_call_text(name, sizeof(name), call), late);
}

coll_status_t shm_fail_dead(
    const struct shm_state *s, int rank, const struct coll_call *call)
{
    char name[64];

    if (coll_agent_await_cause())
        return coll_agent_fail(coll_call_text(name, sizeof(name), call));
    if (s->peers[rank].pid <= 0) /* in another PID namespace */
        return coll_fail(COLL_ERR_PEER,
            "rank %d died during %s: its process ended without coll_destroy()",
            coll_rank_name(s->names, rank),
            coll_call_text(name, sizeof(name), call));
    return coll_fail(COLL_ERR_PEER,
        "rank %d (pid %d) died during %s: its process ended without "
        "coll_destroy()",
        coll_rank_name(s->names, rank), (int)s->peers[rank].pid,
        coll_call_text(name, sizeof(name), call));
}

coll_status_t shm_check_alive(struct shm_state *s, const struct coll_call *call)
{
    shm_look_for_deaths(s);
    for (int r = 0; r < s->size; r++) {
        if (shm_has_failed(s, r))
            return shm_fail_with(s, r, true);
        if (s->peers[r].is_lost)
            return shm_fail_dead(s, r, call);
    }
    return COLL_OK;
}

coll_status_t shm_check_others(
    struct shm_state *s, const struct coll_call *call, bool is_numbered)
{
    char name[64];

    shm_look_for_deaths(s);
    for (int r = 0; r < s->size; r++) {
        const struct shm_control *c = &s->control[r];

        if (shm_has_failed(s, r))
            return shm_fail_with(s, r, true);
        if (atomic_load(&c->has_left) != 0) {
            if (!is_numbered || call->seq <= c->left_after_seq)
                continue;
            return coll_fail(COLL_ERR_PEER,
                "rank %d left after operation %llu, rank %d is in %s",
                coll_rank_name(s->names, r),
                (unsigned long long)c->left_after_seq,
                coll_rank_name(s->names, s->rank),
                coll_call_text(name, sizeof(name), call));
        }
        if (s->peers[r].is_lost)
            return shm_fail_dead(s, r, call);
    }
    return COLL_OK;
}

/*
 * Says whether waiting still makes sense. COLL_OK: yes, or it is over. What
 * a rank published before it died, left or failed stays valid, so only a
 * rank that is behind can be a reason to fail, or one that failed while
 * somebody else is behind.
 */
static coll_status_t check_peers(
    struct coll_group *g, const struct coll_call *call, uint64_t deadline_ns)
{
    struct shm_state *s = g->state;
    char name[64];
    int failed = -1;
    bool failed_is_behind = false;
    bool any_is_behind = false;

    if (atomic_load(&g->is_aborted))
        return coll_group_check(g);
    shm_look_for_deaths(s);
    if (coll_agent_is_told())
        return coll_agent_fail(coll_call_text(name, sizeof(name), call));
    for (int r = 0; r < s->size; r++) {
        struct shm_control *c = &s->control[r];
        /* Read before the tick, so that a tick seen as missing then is one
         * that will not come. */
        bool has_failed = shm_has_failed(s, r);
        bool has_left = atomic_load(&c->has_left) != 0;
        bool is_behind = shm_is_behind(s, r);

        any_is_behind |= is_behind;
        if (has_failed && (failed < 0 || (is_behind && !failed_is_behind))) {
            failed = r;
            failed_is_behind = is_behind;
        }
        if (!is_behind || has_failed)
            continue;
        if (has_left)
            return coll_fail(COLL_ERR_PEER,
                "rank %d left after operation %llu, rank %d is in %s",
                coll_rank_name(s->names, r),
                (unsigned long long)c->left_after_seq,
                coll_rank_name(s->names, s->rank),
                coll_call_text(name, sizeof(name), call));
        if (!s->peers[r].is_lost || (call == NULL && !shm_may_judge(s, r)))
            continue;
        return shm_fail_dead(s, r, call);
    }
    if (!any_is_behind)
        return COLL_OK;
    if (failed >= 0)
        return shm_fail_with(s, failed, failed_is_behind);
    if (clock_now_ns() >= deadline_ns)
        return fail_timeout(g, call);
    if (s->watch_cb != NULL && call != NULL)
        return s->watch_cb(s->watch_arg, call);
    return COLL_OK;
}

/* Sleeps until rank publishes, somebody gives up, or the slice is over. */
static void sleep_on(struct shm_state *s, int rank, uint64_t deadline_ns)
{
    struct shm_control *c = &s->control[rank];
    _Atomic uint32_t *word = &c->ticks[s->tick & 1].tick;
    uint64_t now = clock_now_ns();
    uint64_t ns = deadline_ns > now ? deadline_ns - now : 0;
    uint64_t slice_ms = (uint64_t)s->size;
    uint32_t tick;

    if (slice_ms < SLICE_MIN_MS)
        slice_ms = SLICE_MIN_MS;
    if (slice_ms > SLICE_MAX_MS)
        slice_ms = SLICE_MAX_MS;
    if (ns > slice_ms * CLOCK_NS_PER_MS)
        ns = slice_ms * CLOCK_NS_PER_MS;
    /* Announce, then look again: the publisher stores its tick, then looks
     * for sleepers. Sequentially consistent on both sides, one of the two
     * sees the other. */
    atomic_fetch_add(&c->sleepers, 1);
    tick = atomic_load(word);
    if ((int32_t)(tick - s->tick) < 0)
        futex_wait(word, tick, ns);
    atomic_fetch_sub(&c->sleepers, 1);
}

static bool spin(struct shm_state *s, int rank)
{
    for (int i = 0; i < s->spin_rounds; i++) {
        if (!shm_is_behind(s, rank)) {
            s->spin_rounds =
                shm_spin_next(s->spin_rounds, true, SPIN_MAX_ROUNDS);
            return true;
        }
        shm_relax();
    }
    s->spin_rounds = shm_spin_next(s->spin_rounds, false, SPIN_MAX_ROUNDS);
    return false;
}

static coll_status_t wait_for(struct coll_group *g,
    const struct coll_call *call, int rank, uint64_t deadline_ns)
{
    struct shm_state *s = g->state;
    uint64_t yield_until;

    if (s->may_spin && spin(s, rank))
        return COLL_OK;
    yield_until = clock_now_ns() + YIELD_NS;
    do {
        for (int i = 0; i < 8; i++) {
            sched_yield();
            if (!shm_is_behind(s, rank))
                return COLL_OK;
        }
    } while (clock_now_ns() < yield_until);
    for (;;) {
        coll_status_t status;

        sleep_on(s, rank, deadline_ns);
        if (!shm_is_behind(s, rank))
            return COLL_OK;
        status = check_peers(g, call, deadline_ns);
        if (status != COLL_OK)
            return status;
    }
}

coll_status_t shm_tick(
    struct coll_group *g, const struct coll_call *call, uint64_t deadline_ns)
{
    struct shm_state *s = g->state;
    struct shm_control *own = &s->control[s->rank];
    _Atomic uint32_t *word;

    s->tick++;
    word = &own->ticks[s->tick & 1].tick;
    atomic_store(word, s->tick);
    if (atomic_load(&own->sleepers) != 0)
        futex_wake_all(word);
    for (int r = 0; r < s->size; r++) {
        if (shm_is_behind(s, r)) {
            coll_status_t status = wait_for(g, call, r, deadline_ns);

            if (status != COLL_OK)
                return status;
        }
    }
    return COLL_OK;
}

/* Says which ranks called what, equal calls together, in rank order. */
static coll_status_t fail_mismatch(
    struct shm_state *s, const struct coll_call *call)
{
    char text[400];
    size_t len = 0;

    for (int first = 0; first < s->size && len < sizeof(text); first++) {
        const struct coll_signature *sig =
            &s->control[first].ticks[s->tick & 1].signature;
        char ranks[96];
        char what[COLL_SIGNATURE_TEXT_BYTES];
        bool is_repeat = false;

        for (int r = 0; r < s->size; r++) {
            s->set[r] = coll_signature_is_same(
                sig, &s->control[r].ticks[s->tick & 1].signature);
            is_repeat |= s->set[r] && r < first;
        }
        if (is_repeat)
            continue;
        coll_ranks_text(ranks, sizeof(ranks), s->set, s->size, s->names);
        coll_signature_text(what, sizeof(what), sig);
        len += (size_t)snprintf(text + len, sizeof(text) - len,
            "%s%s called %s", len == 0 ? "" : ", ", ranks, what);
    }
    return coll_fail(COLL_ERR_MISMATCH, "mismatch at operation #%llu: %s",
        (unsigned long long)call->seq, text);
}

coll_status_t shm_next_tick(
    struct coll_group *g, const struct coll_call *call, bool is_first)
{
    const struct shm_state *s = g->state;

    return is_first && !s->has_begun ? shm_first_tick(g, call)
                                     : shm_tick(g, call, call->deadline_ns);
}

coll_status_t shm_first_tick(struct coll_group *g, const struct coll_call *call)
{
    struct shm_state *s = g->state;
    struct coll_signature sig = coll_signature_of(call);
    coll_status_t status;

    s->control[s->rank].ticks[(s->tick + 1) & 1].signature = sig;
    status = shm_tick(g, call, call->deadline_ns);
    if (status != COLL_OK)
        return status;
    for (int r = 0; r < s->size; r++)
        if (!coll_signature_is_same(
                &sig, &s->control[r].ticks[s->tick & 1].signature))
            return fail_mismatch(s, call);
    return COLL_OK;
}
