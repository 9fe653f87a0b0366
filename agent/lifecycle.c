/*
 * See lifecycle.h. Each event has one function; a switch on the state inside
 * it says what the event means there. Functions named enter_ change the
 * state and emit what the new one begins with.
 */
#include "agent/lifecycle.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "agent/program.h"
#include "rendezvous/base/clock.h"

/* Beside one signal for each worker: a timer, the news, the children. */
#define ACTIONS_EXTRA 4

#define LC_NAME(name) [name] = #name,

const char *lc_state_name(enum lc_state state)
{
    static const char *const names[] = {LIFECYCLE_STATE_MAP(LC_NAME)};

    return names[state] + sizeof("LC_") - 1;
}

const char *lc_event_name(enum lc_event_kind kind)
{
    static const char *const names[] = {LIFECYCLE_EVENT_MAP(LC_NAME)};

    return names[kind] + sizeof("LC_EV_") - 1;
}

int lifecycle_init(struct lifecycle *lc, int nworkers, uint64_t grace_ms,
    uint64_t failure_grace_ms, uint64_t now_ns)
{
    assert(nworkers > 0);
    *lc = (struct lifecycle){.state = LC_RUNNING,
        .nworkers = nworkers,
        .first_failure = -1,
        .grace_ns = grace_ms * CLOCK_NS_PER_MS,
        .failure_grace_ns = failure_grace_ms * CLOCK_NS_PER_MS,
        .state_ns = now_ns};
    lc->workers = calloc((size_t)nworkers, sizeof(*lc->workers));
    lc->actions =
        calloc((size_t)nworkers + ACTIONS_EXTRA, sizeof(*lc->actions));
    if (lc->workers == NULL || lc->actions == NULL) {
        lifecycle_fini(lc);
        return -ENOMEM;
    }
    return 0;
}

void lifecycle_fini(struct lifecycle *lc)
{
    free(lc->workers);
    free(lc->actions);
    lc->workers = NULL;
    lc->actions = NULL;
}

static void act(struct lifecycle *lc, struct lc_action action)
{
    assert(lc->nactions < (size_t)lc->nworkers + ACTIONS_EXTRA);
    lc->actions[lc->nactions++] = action;
}

static void arm(struct lifecycle *lc, uint64_t deadline_ns)
{
    act(lc, (struct lc_action){.kind = LC_ACT_ARM, .deadline_ns = deadline_ns});
}

static void signal_group(struct lifecycle *lc, int worker, int sig)
{
    if (lc->workers[worker].state == LC_WORKER_RUNNING)
        lc->workers[worker].sent_signal = sig;
    else if (!lc->workers[worker].has_group)
        return;
    act(lc, (struct lc_action){
                .kind = LC_ACT_SIGNAL, .worker = worker, .signal = sig});
}

static void signal_groups(struct lifecycle *lc, int sig)
{
    for (int i = 0; i < lc->nworkers; i++)
        signal_group(lc, i, sig);
}

static void enter(struct lifecycle *lc, enum lc_state state, uint64_t now_ns)
{
    lc->state = state;
    lc->state_ns = now_ns;
}

static void enter_done(struct lifecycle *lc, uint64_t now_ns)
{
    enter(lc, LC_DONE, now_ns);
    act(lc, (struct lc_action){.kind = LC_ACT_DISARM});
}

/* Nothing is signalled yet: on a clean end the caller's next waitpid says
 * that there are no children, and that is all. */
static void enter_sweeping(struct lifecycle *lc, uint64_t now_ns)
{
    enter(lc, LC_SWEEPING, now_ns);
    act(lc, (struct lc_action){.kind = LC_ACT_DISARM});
}

static void enter_killing(struct lifecycle *lc, uint64_t now_ns)
{
    enter(lc, LC_KILLING, now_ns);
    signal_groups(lc, SIGKILL);
    arm(lc, now_ns + LC_KILL_WAIT_MS * CLOCK_NS_PER_MS);
}

static void enter_stopping(struct lifecycle *lc, int sig, uint64_t now_ns)
{
    if (lc->nrunning == 0 && lc->ngroups == 0) {
        enter_sweeping(lc, now_ns);
        return;
    }
    enter(lc, LC_STOPPING, now_ns);
    signal_groups(lc, sig);
    arm(lc, now_ns + lc->grace_ns);
}

/* The workers that can be told of the failure are; they have a moment to end
 * by themselves. The others get the signal at once. */
static void enter_stopping_for_failure(struct lifecycle *lc, uint64_t now_ns)
{
    int ntold = 0;

    for (int i = 0; i < lc->nworkers && lc->failure_grace_ns > 0; i++)
        ntold += lc->workers[i].state == LC_WORKER_RUNNING &&
                 lc->workers[i].is_attached;
    if (ntold == 0) {
        enter_stopping(lc, SIGTERM, now_ns);
        return;
    }
    enter(lc, LC_STOPPING, now_ns);
    act(lc, (struct lc_action){.kind = LC_ACT_TELL});
    for (int i = 0; i < lc->nworkers; i++) {
        struct lc_worker *w = &lc->workers[i];

        if (w->state != LC_WORKER_RUNNING)
            continue;
        if (w->is_attached)
            w->is_collateral = true;
        else
            signal_group(lc, i, SIGTERM);
    }
    lc->is_signal_due = true;
    arm(lc, now_ns + lc->failure_grace_ns);
}

static void signal_the_told(struct lifecycle *lc)
{
    lc->is_signal_due = false;
    for (int i = 0; i < lc->nworkers; i++)
        if (lc->workers[i].sent_signal == 0)
            signal_group(lc, i, SIGTERM);
    arm(lc, lc->state_ns + lc->grace_ns);
}

static bool is_orderly(const struct lifecycle *lc)
{
    return lc->first_failure < 0 && lc->stop_signal == 0 &&
           !lc->is_parent_lost && !lc->is_cut;
}

static void on_start_failed(struct lifecycle *lc, const struct lc_event *ev)
{
    struct lc_worker *w = &lc->workers[ev->worker];

    w->state = LC_WORKER_ENDED;
    w->outcome = LC_OUT_NOT_BEGUN;
    w->start_error = ev->error;
    w->started_ns = w->ended_ns = ev->now_ns;
    if (lc->first_failure < 0)
        lc->first_failure = ev->worker;
    if (lc->state == LC_RUNNING)
        enter_stopping_for_failure(lc, ev->now_ns);
}

/*
 * A worker that was told to stop may end in any way, but not by a signal that
 * it was not sent. One whose call failed through another rank may give up: by
 * itself, in whatever way.
 */
static enum lc_outcome outcome_of(const struct lc_worker *w)
{
    int sig = WIFSIGNALED(w->wait_status) ? WTERMSIG(w->wait_status) : 0;

    if (w->sent_signal != 0 && (sig == 0 || sig == w->sent_signal))
        return LC_OUT_STOPPED;
    if (w->wait_status == 0)
        return LC_OUT_SUCCESS;
    return w->is_collateral && (sig == 0 || sig == SIGABRT) ? LC_OUT_COLLATERAL
                                                            : LC_OUT_FAILED;
}

/* A failure on account of another one stands for it only until that one is
 * known. */
static bool is_cause_of(
    const struct lc_worker *w, const struct lc_worker *first)
{
    if (first->outcome == LC_OUT_COLLATERAL)
        return w->outcome == LC_OUT_FAILED;
    return first->outcome == LC_OUT_FAILED && w->outcome == LC_OUT_FAILED &&
           !WIFSIGNALED(first->wait_status) && WIFSIGNALED(w->wait_status) &&
           w->ended_ns - first->ended_ns <= LC_SETTLE_MS * CLOCK_NS_PER_MS;
}

static void note_failure(struct lifecycle *lc, int worker)
{
    if (lc->first_failure < 0 ||
        is_cause_of(&lc->workers[worker], &lc->workers[lc->first_failure]))
        lc->first_failure = worker;
}

static void on_exited(struct lifecycle *lc, const struct lc_event *ev)
{
    struct lc_worker *w = &lc->workers[ev->worker];

    if (w->state != LC_WORKER_RUNNING)
        return;
    w->state = LC_WORKER_ENDED;
    w->wait_status = ev->wait_status;
    w->ended_ns = ev->now_ns;
    w->outcome = outcome_of(w);
    lc->nrunning--;
    if (w->outcome == LC_OUT_FAILED || w->outcome == LC_OUT_COLLATERAL)
        note_failure(lc, ev->worker);
    if (w->sent_signal != 0) {
        w->has_group = true;
        lc->ngroups++;
    }
}

static void on_group_gone(struct lifecycle *lc, int worker)
{
    if (lc->workers[worker].has_group) {
        lc->workers[worker].has_group = false;
        lc->ngroups--;
    }
}

/* A worker has given up on account of another one, whose end will be told in
 * a moment: that one shall be named to the rest. */
static bool waits_for_cause(struct lifecycle *lc, uint64_t now_ns)
{
    const struct lc_worker *first = &lc->workers[lc->first_failure];
    uint64_t until_ns = first->ended_ns + LC_SETTLE_MS * CLOCK_NS_PER_MS;

    if (first->outcome != LC_OUT_COLLATERAL || lc->nrunning == 0 ||
        now_ns >= until_ns)
        return false;
    arm(lc, until_ns);
    return true;
}

/* Draws the conclusions from the exits noted since the last time. */
static void conclude(struct lifecycle *lc, uint64_t now_ns)
{
    switch (lc->state) {
    case LC_RUNNING:
        if (lc->first_failure >= 0 && !waits_for_cause(lc, now_ns))
            enter_stopping_for_failure(lc, now_ns);
        else if (lc->nstarted == lc->nworkers && lc->nrunning == 0)
            enter_sweeping(lc, now_ns);
        break;
    case LC_STOPPING:
        if (lc->nrunning == 0 && lc->ngroups == 0)
            enter_sweeping(lc, now_ns);
        break;
    case LC_KILLING:
        /* A zombie whose parent is not us counts as a member of its group
         * until the sweep has ended that parent. */
        if (lc->nrunning == 0)
            enter_sweeping(lc, now_ns);
        break;
    default:
        break;
    }
}

/* Of another node's doing. What fails here from now on fails because of it. */
static void on_cut(struct lifecycle *lc, const struct lc_event *ev)
{
    lc->is_cut = true;
    if (lc->state != LC_RUNNING)
        return;
    if (ev->kind == LC_EV_PEER_FAILED)
        enter_stopping_for_failure(lc, ev->now_ns);
    else
        enter_stopping(lc, SIGTERM, ev->now_ns);
}

/* The first request is polite, also if the workers are being stopped for a
 * failure already; a second one cuts the grace short. */
static void on_stop_signal(struct lifecycle *lc, const struct lc_event *ev)
{
    bool is_first = lc->stop_signal == 0;

    if (is_first)
        lc->stop_signal = ev->signal;
    if (lc->state == LC_RUNNING)
        enter_stopping(lc, ev->signal, ev->now_ns);
    else if (lc->state == LC_STOPPING && !is_first)
        enter_killing(lc, ev->now_ns);
}

static void on_parent_lost(struct lifecycle *lc, const struct lc_event *ev)
{
    lc->is_parent_lost = true;
    if (lc->state == LC_RUNNING || lc->state == LC_STOPPING)
        enter_killing(lc, ev->now_ns);
}

static void sweep_kill(struct lifecycle *lc)
{
    act(lc, (struct lc_action){.kind = LC_ACT_CHILDREN, .signal = SIGKILL});
}

static void on_timer(struct lifecycle *lc, const struct lc_event *ev)
{
    switch (lc->state) {
    case LC_RUNNING:
        conclude(lc, ev->now_ns);
        break;
    case LC_STOPPING:
        if (lc->is_signal_due)
            signal_the_told(lc);
        else
            enter_killing(lc, ev->now_ns);
        break;
    case LC_KILLING:
        /* Unkillable workers stay unreaped; sweep what can be swept. */
        enter(lc, LC_SWEEPING, ev->now_ns);
        lc->gave_up = true;
        lc->was_swept = true;
        sweep_kill(lc);
        arm(lc, ev->now_ns + LC_STRAY_GRACE_MS * CLOCK_NS_PER_MS);
        break;
    case LC_SWEEPING:
        if (ev->now_ns - lc->state_ns >=
                (LC_STRAY_GRACE_MS + LC_KILL_WAIT_MS) * CLOCK_NS_PER_MS ||
            lc->gave_up) {
            lc->gave_up = true;
            enter_done(lc, ev->now_ns);
            break;
        }
        lc->was_swept = true;
        sweep_kill(lc);
        arm(lc, lc->state_ns +
                    (LC_STRAY_GRACE_MS + LC_KILL_WAIT_MS) * CLOCK_NS_PER_MS);
        break;
    default:
        break;
    }
}

/*
 * Children exist that are no workers: what workers left behind. After an
 * orderly end they get SIGTERM and a second; else SIGKILL. Killing one hands
 * its own children to us, so this event returns until there are none.
 */
static void on_children_left(struct lifecycle *lc, const struct lc_event *ev)
{
    conclude(lc, ev->now_ns);
    if (lc->state != LC_SWEEPING)
        return;
    if (lc->was_swept) {
        if (!is_orderly(lc) ||
            ev->now_ns - lc->state_ns >= LC_STRAY_GRACE_MS * CLOCK_NS_PER_MS)
            sweep_kill(lc);
        return;
    }
    lc->was_swept = true;
    if (is_orderly(lc)) {
        act(lc, (struct lc_action){.kind = LC_ACT_CHILDREN, .signal = SIGTERM});
        arm(lc, lc->state_ns + LC_STRAY_GRACE_MS * CLOCK_NS_PER_MS);
    } else {
        sweep_kill(lc);
        arm(lc, lc->state_ns +
                    (LC_STRAY_GRACE_MS + LC_KILL_WAIT_MS) * CLOCK_NS_PER_MS);
    }
}

static void on_children_gone(struct lifecycle *lc, const struct lc_event *ev)
{
    for (int i = 0; i < lc->nworkers; i++)
        on_group_gone(lc, i);
    lc->gave_up = false; /* nothing is left after all */
    conclude(lc, ev->now_ns);
    if (lc->state == LC_SWEEPING)
        enter_done(lc, ev->now_ns);
}

void lifecycle_step(struct lifecycle *lc, const struct lc_event *ev)
{
    lc->nactions = 0;
    switch (ev->kind) {
    case LC_EV_STARTED:
        lc->workers[ev->worker].state = LC_WORKER_RUNNING;
        lc->workers[ev->worker].pid = ev->pid;
        lc->workers[ev->worker].started_ns = ev->now_ns;
        lc->nrunning++;
        lc->nstarted++;
        break;
    case LC_EV_START_FAILED:
        on_start_failed(lc, ev);
        break;
    case LC_EV_EXITED:
        on_exited(lc, ev);
        break;
    case LC_EV_GROUP_GONE:
        on_group_gone(lc, ev->worker);
        break;
    case LC_EV_ATTACHED:
        lc->workers[ev->worker].is_attached = true;
        break;
    case LC_EV_COLLATERAL:
        lc->workers[ev->worker].is_collateral = true;
        break;
    case LC_EV_PEER_FAILED:
    case LC_EV_ROUND_OVER:
        on_cut(lc, ev);
        break;
    case LC_EV_STOP_SIGNAL:
        on_stop_signal(lc, ev);
        break;
    case LC_EV_PARENT_LOST:
        on_parent_lost(lc, ev);
        break;
    case LC_EV_TIMER:
        on_timer(lc, ev);
        break;
    case LC_EV_CHILDREN_LEFT:
        on_children_left(lc, ev);
        break;
    case LC_EV_CHILDREN_GONE:
        on_children_gone(lc, ev);
        break;
    case LC_EVENT_COUNT:
        break;
    }
}

int lifecycle_exit_code(const struct lifecycle *lc)
{
    return is_orderly(lc) && !lc->gave_up ? 0 : 1;
}

int lifecycle_cause_code(const struct lifecycle *lc)
{
    const struct lc_worker *first;

    if (lc->first_failure < 0)
        return lc->stop_signal != 0 ? 128 + lc->stop_signal
                                    : lifecycle_exit_code(lc);
    first = &lc->workers[lc->first_failure];
    if (first->outcome == LC_OUT_NOT_BEGUN)
        return program_start_code(first->start_error);
    return WIFSIGNALED(first->wait_status) ? 128 + WTERMSIG(first->wait_status)
                                           : WEXITSTATUS(first->wait_status);
}
