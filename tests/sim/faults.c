/* What goes wrong, one thing after another, until the faults are over; then
 * all of it is put right. See sim.h. */
#include <signal.h>
#include <stdlib.h>

#include "tests/sim/sim.h"

#define FAULT_NAME(symbol, name) [symbol] = name,
static const char *const names[] = {SIM_FAULT_MAP(FAULT_NAME)};

static struct sim_node *some_node(struct sim *s)
{
    return &s->nodes[sim_between(s, 0, (uint64_t)s->nnodes - 1)];
}

static struct machine *coord_machine(struct sim *s)
{
    return s->is_hosted ? &s->nodes[0].machine : &s->coord_machine;
}

/* A while that is mostly short, and sometimes longer than anybody waits. */
static uint64_t some_time(struct sim *s)
{
    uint64_t most = sim_chance(s, 60) ? SIM_S : 15 * SIM_S;
    uint64_t ns = sim_between(s, 10 * SIM_MS, most);
    uint64_t left = s->faults_end_ns - s->now_ns;

    return ns < left ? ns : left;
}

static void heal_event(struct sim *s, void *obj, uint64_t arg)
{
    struct machine *m = obj;

    (void)s;
    (void)arg;
    m->is_apart = false;
}

static void hurry_event(struct sim *s, void *obj, uint64_t arg)
{
    struct machine *m = obj;

    (void)s;
    (void)arg;
    m->delay_ns = 0;
}

static void part(struct sim *s, struct machine *m)
{
    m->is_apart = true;
    sim_after(s, some_time(s), heal_event, m, 0);
}

static void freeze(struct sim *s, struct process *p)
{
    if (s->now_ns >= p->frozen_until_ns)
        p->frozen_until_ns = s->now_ns + some_time(s);
}

static void crash(struct sim *s, struct sim_node *n, bool is_power)
{
    agent_crash(n->agent, is_power);
    if (sim_chance(s, 80) && !n->is_coming)
        node_start_later(
            s, n, (is_power ? SIM_S : 100 * SIM_MS) + some_time(s));
}

static void coord_event(struct sim *s, void *obj, uint64_t arg)
{
    struct process *p = calloc(1, sizeof(*p));

    (void)obj;
    (void)arg;
    if (p == NULL)
        abort();
    s->coord_machine.is_up = true;
    process_init(p, &s->coord_machine);
    ring_add_last(&s->processes, &p->link);
    sim_trace(s, "coord-start", NULL, 0, 0);
    coord_create(s, p, true);
}

static void crash_coord(struct sim *s)
{
    struct coord *c = s->coord;

    if (c == NULL || s->is_hosted)
        return;
    if (sim_chance(s, 30)) { /* its machine */
        sim_trace(s, "coord-crash", "power", 0, 0);
        s->coord_machine.is_up = false;
        process_vanish(s, c->process);
    } else {
        sim_trace(s, "coord-crash", NULL, 0, 0);
        process_end(s, c->process);
    }
    coord_destroy(c);
    sim_after(s, some_time(s), coord_event, NULL, 0);
}

static void tempted_event(struct sim *s, void *obj, uint64_t arg)
{
    (void)obj;
    (void)arg;
    if (s->now_ns < s->faults_end_ns)
        crash_coord(s);
}

void faults_tempt(struct sim *s, const struct node_msg *msg, struct conn *conn)
{
    bool is_near = s->now_ns < s->faults_end_ns;

    if (!is_near || (msg->kind != NODE_STOP && msg->kind != NODE_FAILED &&
                        msg->kind != NODE_VERDICT && msg->kind != NODE_ROUND &&
                        msg->kind != NODE_CLOSED))
        return;
    if ((s->faults & 1u << FAULT_COORD_CRASH) != 0 && sim_chance(s, 2))
        sim_after(
            s, sim_between(s, 0, s->base_delay_ns), tempted_event, NULL, 0);
    if ((s->faults & 1u << FAULT_RESET) != 0 && sim_chance(s, 2))
        conn_reset(conn);
}

static void reset(struct sim *s)
{
    struct conn *c = NULL;

    if (s->coord != NULL)
        c = coord_some_conn(
            s->coord, (int)sim_between(s, 0, (uint64_t)s->nnodes));
    if (c != NULL)
        conn_reset(c);
}

static void fail_worker(struct agent *a)
{
    int i = (int)sim_between(a->sim, 0, (uint64_t)a->node->nproc - 1);

    if (a->workers[i].is_alive)
        worker_fail(a, i);
}

static void leave(struct sim *s, struct sim_node *n)
{
    if (s->now_ns < n->agent->process.frozen_until_ns)
        return;
    agent_stop_signal(n->agent, SIGTERM);
    if (sim_chance(s, 60) && !n->is_coming)
        node_start_later(s, n, 500 * SIM_MS + some_time(s));
}

static void join(struct sim *s, struct sim_node *n)
{
    if (n->agent != NULL && (n->agent->process.is_alive || n->is_coming))
        return;
    if (n->agent == NULL || !n->agent->is_success)
        node_start(s, n);
}

static void inject(struct sim *s, enum sim_fault f, struct sim_node *n)
{
    switch (f) {
    case FAULT_CRASH:
    case FAULT_POWER:
        crash(s, n, f == FAULT_POWER);
        break;
    case FAULT_FREEZE:
        freeze(s, &n->agent->process);
        break;
    case FAULT_COORD_CRASH:
        crash_coord(s);
        break;
    case FAULT_COORD_FREEZE:
        if (s->coord != NULL)
            freeze(s, s->coord->process);
        break;
    case FAULT_PARTITION:
        part(s, &n->machine);
        break;
    case FAULT_COORD_PARTITION:
        part(s, coord_machine(s));
        break;
    case FAULT_RESET:
        reset(s);
        break;
    case FAULT_SLOW:
        n->machine.delay_ns = sim_between(s, 20 * SIM_MS, 2 * SIM_S);
        sim_after(s, some_time(s), hurry_event, &n->machine, 0);
        break;
    case FAULT_SKEW:
        machine_set_rate(s, sim_chance(s, 30) ? coord_machine(s) : &n->machine,
            (int64_t)sim_between(s, 0, 100) - 50);
        break;
    case FAULT_LEAVE:
        leave(s, n);
        break;
    case FAULT_JOIN:
        join(s, n);
        break;
    case FAULT_WORKER:
        fail_worker(n->agent);
        break;
    case FAULT_HANG: /* see worker.c */
    case FAULT_COUNT:
        break;
    }
}

static void fault_event(struct sim *s, void *obj, uint64_t arg)
{
    struct sim_node *n = some_node(s);
    enum sim_fault f = (enum sim_fault)sim_between(s, 0, FAULT_COUNT - 1);

    (void)obj;
    (void)arg;
    if (s->now_ns >= s->faults_end_ns)
        return;
    sim_after(s, sim_between(s, 0, 2 * s->fault_gap_ns), fault_event, NULL, 0);
    while ((s->faults & 1u << f) == 0)
        f = (enum sim_fault)((f + 1) % FAULT_COUNT);
    if (!node_is_running(n) && f != FAULT_JOIN)
        return;
    sim_trace(s, "fault", names[f], n->index, 0);
    inject(s, f, n);
}

/* Whoever was cut off, slow or stood still is back by itself. */
static void over_event(struct sim *s, void *obj, uint64_t arg)
{
    (void)obj;
    (void)arg;
    sim_trace(s, "faults-over", NULL, 0, 0);
    for (int i = 0; i < s->nnodes; i++) {
        s->nodes[i].machine.is_apart = false;
        s->nodes[i].machine.delay_ns = 0;
    }
    s->coord_machine.is_apart = false;
    /* One at least that does the work. */
    if (s->is_patient && s->success_ns == 0 && !s->nodes[0].is_coming &&
        (!node_is_running(&s->nodes[0]) ||
            s->nodes[0].agent->life.stop_signal != 0))
        node_start_later(s, &s->nodes[0], 15 * SIM_S);
}

void faults_start(struct sim *s)
{
    if (!s->is_hosted)
        sim_at(s, s->now_ns, coord_event, NULL, 0);
    sim_at(s, s->faults_end_ns, over_event, NULL, 0);
    if (s->faults != 0)
        sim_after(s, sim_between(s, 0, 3 * SIM_S), fault_event, NULL, 0);
}
