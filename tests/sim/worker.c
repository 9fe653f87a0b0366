/*
 * The processes that an agent runs: they work for a while and succeed, fail,
 * or hang; they end when they are told to, sooner or later, or have to be
 * killed. Where they are coupled, as in training, none gets further than the
 * slowest, and when one is gone the others fail or wait in vain. See sim.h.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "tests/sim/sim.h"

#define EXIT_STATUS(code) ((code) << 8)

/* arg of events: the generation, and how it ends. */
#define AS_ARG(w, status) ((w)->gen << 16 | (uint64_t)(status))
#define GEN_OF(arg) ((arg) >> 16)
#define STATUS_OF(arg) ((int)((arg)&0xFFFF))

static void child_event(struct sim *s, void *obj, uint64_t arg)
{
    struct agent *a = obj;

    if (process_takes(s, &a->process, child_event, a, arg))
        agent_settle(a);
}

/* The others of the round notice that something is gone. */
static void break_round(struct agent *a);

static void die(struct sim_worker *w, int status)
{
    struct agent *a = w->agent;
    struct sim *s = a->sim;

    if (!w->is_alive)
        return;
    w->gen++;
    w->is_alive = false;
    w->is_dead = true;
    w->wait_status = status;
    w->dead_seq = s->dead_seq++;
    a->node->nlive--;
    sim_trace(s, "worker-ends", NULL, a->number, status);
    if (sim_chance(s, 10))
        w->group_until_ns = s->now_ns + sim_between(s, 0, SIM_S);
    if (sim_chance(s, 5))
        a->nstrays++;
    if (status != 0)
        break_round(a);
    else
        a->round->nzero[a->part.place.group_rank]++;
    sim_after(s, sim_between(s, 0, SIM_MS), child_event, a, 0);
}

static void die_event(struct sim *s, void *obj, uint64_t arg)
{
    struct sim_worker *w = obj;

    (void)s;
    if (GEN_OF(arg) == (w->gen & 0xFFFFFFFFFFFFu))
        die(w, STATUS_OF(arg));
}

/* Its connections to others are closed: a call fails, and it may say so. */
static void notice_event(struct sim *s, void *obj, uint64_t arg)
{
    struct sim_worker *w = obj;
    struct agent *a = w->agent;

    if (GEN_OF(arg) != (w->gen & 0xFFFFFFFFFFFFu) || !w->is_alive)
        return;
    if (w->is_attached && a->process.is_alive &&
        s->now_ns >= a->process.frozen_until_ns)
        agent_post(a, (struct lc_event){
                          .kind = LC_EV_COLLATERAL, .worker = w->local_rank});
    w->is_leaving = true;
    sim_after(s, sim_between(s, 0, 20 * SIM_MS), die_event, w,
        AS_ARG(w, EXIT_STATUS(1)));
}

static void break_round(struct agent *a)
{
    struct sim *s = a->sim;
    struct round *r = a->round;

    if (r->is_broken)
        return;
    r->is_broken = true;
    if (!s->is_coupled)
        return;
    for (int i = 0; i < r->place.group_world_size; i++) {
        struct agent *other = r->agents[i];

        if (other == NULL || other->round != r)
            continue;
        for (int k = 0; k < other->node->nproc; k++) {
            struct sim_worker *w = &other->workers[k];

            if (w->is_alive && !w->is_leaving && sim_chance(s, s->noticed))
                sim_after(s, sim_between(s, SIM_MS, 500 * SIM_MS), notice_event,
                    w, AS_ARG(w, 0));
        }
    }
}

/* It has done its work. */
static void done_event(struct sim *s, void *obj, uint64_t arg)
{
    struct sim_worker *w = obj;
    struct round *r = w->agent->round;

    if (GEN_OF(arg) != (w->gen & 0xFFFFFFFFFFFFu) || !w->is_alive)
        return;
    if (s->is_coupled && r->is_broken)
        w->is_blocked = true;
    else if (s->is_coupled && r->nstarted < r->place.group_world_size)
        sim_after(s, 100 * SIM_MS, done_event, w, arg);
    else
        die(w, 0);
}

static int some_bad_status(struct sim *s)
{
    static const int statuses[] = {
        EXIT_STATUS(1), EXIT_STATUS(3), SIGKILL, SIGSEGV, SIGABRT};

    return statuses[sim_between(s, 0, 4)];
}

static bool has_fault(const struct sim *s, enum sim_fault f)
{
    return (s->faults & 1u << f) != 0 && s->now_ns < s->faults_end_ns;
}

void worker_start(struct agent *a, int local_rank)
{
    struct sim *s = a->sim;
    struct sim_worker *w = &a->workers[local_rank];
    uint64_t work = sim_between(s, s->work_ns / 4, s->work_ns);

    if (s->is_long && s->now_ns < s->faults_end_ns)
        work += s->faults_end_ns - s->now_ns;

    w->gen = (w->gen + 1) & 0xFFFFFFFFFFFFu;
    w->is_alive = true;
    w->is_dead = w->is_blocked = w->is_leaving = false;
    w->is_attached = sim_chance(s, 50);
    w->is_stubborn = sim_chance(s, 5);
    w->group_until_ns = 0;
    a->node->nlive++;
    if (has_fault(s, FAULT_WORKER) && sim_chance(s, 8))
        sim_after(s, sim_between(s, 0, s->work_ns), die_event, w,
            AS_ARG(w, some_bad_status(s)));
    else if (has_fault(s, FAULT_HANG) && sim_chance(s, 5))
        sim_at(s,
            s->faults_end_ns + sim_between(s, 0, s->work_ns), /* somebody's
                                                                 patience */
            die_event, w, AS_ARG(w, SIGKILL));
    else
        sim_after(s, work, done_event, w, AS_ARG(w, 0));
    agent_post(a, (struct lc_event){.kind = LC_EV_STARTED,
                      .worker = local_rank,
                      .pid = local_rank + 1});
    if (w->is_attached)
        agent_post(
            a, (struct lc_event){.kind = LC_EV_ATTACHED, .worker = local_rank});
}

void worker_signal(struct agent *a, int local_rank, int sig)
{
    struct sim *s = a->sim;
    struct sim_worker *w = &a->workers[local_rank];

    if (sig == SIGKILL) {
        w->group_until_ns = 0;
        sim_after(s, sim_between(s, 0, 20 * SIM_MS), die_event, w,
            AS_ARG(w, SIGKILL));
    } else if (w->is_alive && !w->is_stubborn) {
        w->is_leaving = true;
        sim_after(s,
            sim_between(s, 0, sim_chance(s, 10) ? 3 * SIM_S : 200 * SIM_MS),
            die_event, w, AS_ARG(w, sim_chance(s, 50) ? sig : EXIT_STATUS(1)));
    }
}

void workers_tell(struct agent *a)
{
    struct sim *s = a->sim;

    for (int i = 0; i < a->life.nworkers; i++) {
        struct sim_worker *w = &a->workers[i];

        if (w->is_alive && w->is_attached && sim_chance(s, 70))
            sim_after(s, sim_between(s, 0, 150 * SIM_MS), die_event, w,
                AS_ARG(w, EXIT_STATUS(1)));
    }
}

static void stray_event(struct sim *s, void *obj, uint64_t arg)
{
    struct agent *a = obj;

    if (!process_takes(s, &a->process, stray_event, a, arg))
        return;
    a->nstrays = 0;
    agent_settle(a);
}

void workers_signal_strays(struct agent *a, int sig)
{
    for (int i = 0; i < a->life.nworkers && sig == SIGKILL; i++)
        worker_signal(a, i, sig);
    if (a->nstrays > 0 && (sig == SIGKILL || sim_chance(a->sim, 50)))
        sim_after(
            a->sim, sim_between(a->sim, 0, 20 * SIM_MS), stray_event, a, 0);
}

void workers_die(struct agent *a)
{
    bool was_alive = false;

    for (int i = 0; i < SIM_NPROC_MAX; i++) {
        struct sim_worker *w = &a->workers[i];

        if (!w->is_alive)
            continue;
        was_alive = true;
        w->gen++;
        w->is_alive = false;
        a->node->nlive--;
    }
    a->nstrays = 0;
    if (was_alive)
        break_round(a);
}

void worker_fail(struct agent *a, int local_rank)
{
    die(&a->workers[local_rank], some_bad_status(a->sim));
}
