/* See restarts.h. */
#include "agent/restarts.h"

#include <stdbool.h>
#include <string.h>

#include "rendezvous/base/clock.h"

static void note(
    struct restarts *r, const struct lifecycle *lc, uint64_t lived_ns)
{
    const struct lc_worker *w = &lc->workers[lc->first_failure];
    const int half = RESTARTS_HISTORY_MAX / 2;

    if (r->nhistory == RESTARTS_HISTORY_MAX) {
        memmove(&r->history[half], &r->history[half + 1],
            (size_t)(half - 1) * sizeof(r->history[0]));
        r->nhistory--;
        r->nforgotten++;
    }
    r->history[r->nhistory++] = (struct round_end){.restart_count = r->count,
        .local_rank = lc->first_failure,
        .outcome = w->outcome,
        .wait_status = w->wait_status,
        .start_error = w->start_error,
        .pid = w->pid,
        .lived_ns = lived_ns};
}

/* What cannot be executed now cannot be executed in a moment. And where
 * something is left of the old round there must be no new one. */
static bool is_worth_another(const struct lifecycle *lc)
{
    return lc->stop_signal == 0 && !lc->is_parent_lost && !lc->gave_up &&
           lc->workers[lc->first_failure].outcome != LC_OUT_NOT_BEGUN;
}

enum restarts_verdict restarts_decide(struct restarts *r,
    const struct lifecycle *lc, uint64_t lived_ns, uint64_t *delay_ms)
{
    uint64_t doubled = 2 * r->delay_ms;

    if (lc->first_failure < 0)
        return RESTARTS_END;
    note(r, lc, lived_ns);
    if (!is_worth_another(lc))
        return RESTARTS_END;
    r->nshort =
        lived_ns < r->crash_loop_ms * CLOCK_NS_PER_MS ? r->nshort + 1 : 0;
    if (r->count >= r->max_restarts)
        return RESTARTS_EXHAUSTED;
    if (r->crash_loop_count > 0 && r->nshort >= r->crash_loop_count)
        return RESTARTS_CRASH_LOOP;
    r->count++;
    *delay_ms = r->delay_ms;
    r->delay_ms = doubled < r->delay_max_ms ? doubled : r->delay_max_ms;
    return RESTARTS_AGAIN;
}
