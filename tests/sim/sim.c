/* One run: what the seed chooses, and all of it from the beginning to the end.
 * See sim.h. */
#include "tests/sim/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned choose_faults(struct sim *s)
{
    uint64_t kind = sim_between(s, 0, 99);
    unsigned all = (1u << FAULT_COUNT) - 1;

    if (kind < 10)
        return 0;
    if (kind < 20)
        return SIM_CLEAN_FAULTS;
    if (kind < 30)
        return all;
    if (kind < 50) /* one kind alone */
        return 1u << sim_between(s, 0, FAULT_COUNT - 1);
    return (unsigned)(sim_random(s) & sim_random(s)) & all;
}

static int choose_nodes(struct sim *s)
{
    return sim_chance(s, 90) ? (int)sim_between(s, 2, 9)
                             : (int)sim_between(s, 10, 40);
}

static void choose_settings(struct sim *s)
{
    struct membership_settings *set = &s->settings;
    int n = s->nnodes;

    *set = (struct membership_settings){.run_id = "job",
        .min_nodes = 1,
        .max_nodes = n > 2 && sim_chance(s, 30) ? n - 1 : n,
        .max_restarts = (int)sim_between(s, 0, 4),
        .join_timeout_ms = sim_between(s, 20, 60) * 1000,
        .last_call_ms = sim_between(s, 0, 3000),
        .keep_alive_ms = sim_between(s, 500, 1000),
        .keep_alive_attempts = (int)sim_between(s, 3, 5),
        .restart_delay_ms = sim_chance(s, 50) ? 0 : sim_between(s, 1, 500),
        .restart_delay_max_ms = 2000,
        .master_addr = "10.0.0.1",
        .master_port = 29400};
    s->is_hosted = sim_chance(s, 25);
    set->is_static = s->is_hosted && sim_chance(s, 50);
    s->is_patient = !s->is_hosted && sim_chance(s, 50);
    if (s->is_patient)
        set->max_restarts = 100000;
    else if (set->is_static)
        set->min_nodes = set->max_nodes = n;
    else
        set->min_nodes = (int)sim_between(s, 1, (uint64_t)set->max_nodes);
    /* All of them are in one round. */
    if (s->faults == 0) {
        set->max_nodes = n;
        set->last_call_ms = 3000;
    }
}

static void choose(struct sim *s)
{
    const struct sim_options *o = &s->options;
    const struct membership_settings *set = &s->settings;
    uint64_t limit_ms;

    s->nnodes = o->nodes > 0 ? o->nodes : choose_nodes(s);
    s->faults = o->faults >= 0 ? (unsigned)o->faults : choose_faults(s);
    if (o->nodes == 0)
        (void)sim_random(s);
    choose_settings(s);
    s->faults_end_ns = sim_between(s, 5, 60) * SIM_S;
    if (o->until_s > 0)
        s->faults_end_ns = (uint64_t)o->until_s * SIM_S;
    s->fault_gap_ns = sim_between(s, 200, 5000) * SIM_MS;
    s->grace_ms = sim_between(s, 500, 5000);
    s->failure_grace_ms = sim_chance(s, 20) ? 0 : 100;
    s->coordinator_timeout_ms = 60000;
    s->work_ns = sim_between(s, 500, 20000) * SIM_MS;
    s->base_delay_ns = sim_chance(s, 30) ? 50 * SIM_MS : SIM_MS;
    s->is_coupled = sim_chance(s, 70);
    s->noticed = sim_chance(s, 40) ? 0 : 50;
    s->is_long = sim_chance(s, 60);
    /* After the faults a round may end for what they have done, more than
     * once; with clocks that are slow. */
    limit_ms = s->coordinator_timeout_ms + 2 * set->join_timeout_ms +
               8 * (s->work_ns / SIM_MS + s->grace_ms + LC_KILL_WAIT_MS +
                       LC_STRAY_GRACE_MS + set->restart_delay_max_ms +
                       set->last_call_ms + MEMBERSHIP_RETURN_MS +
                       set->keep_alive_ms * (uint64_t)set->keep_alive_attempts);
    s->end_ns = s->faults_end_ns + limit_ms * 11 / 10 * SIM_MS;
}

static void set_up_machine(struct sim *s, struct machine *m)
{
    *m = (struct machine){
        .offset_ns = (int64_t)sim_between(s, SIM_S, 1000 * SIM_S),
        .is_up = true};
    if ((s->faults & 1u << FAULT_SKEW) != 0)
        m->rate = (int64_t)sim_between(s, 0, 100) - 50;
}

/* Nodes come one after another, and mostly all of them. */
static void start_nodes(struct sim *s)
{
    bool is_late = (s->faults & 1u << FAULT_JOIN) != 0;

    s->nodes = calloc((size_t)s->nnodes, sizeof(*s->nodes));
    if (s->nodes == NULL)
        abort();
    for (int i = 0; i < s->nnodes; i++) {
        struct sim_node *n = &s->nodes[i];

        n->index = i;
        n->nproc = (int)sim_between(s, 1, SIM_NPROC_MAX);
        set_up_machine(s, &n->machine);
        if (i == 0 || !is_late || sim_chance(s, 70))
            node_start_later(s, n, sim_between(s, 0, SIM_S));
    }
}

bool sim_run(struct sim *s, const struct sim_options *options)
{
    *s = (struct sim){.options = *options,
        .random = options->seed,
        .hash = 0xCBF29CE484222325u};
    ring_init(&s->agents);
    ring_init(&s->conns);
    ring_init(&s->coords);
    ring_init(&s->processes);
    choose(s);
    set_up_machine(s, &s->coord_machine);
    start_nodes(s);
    faults_start(s);
    while (s->violation[0] == '\0' && sim_step(s, s->end_ns))
        ;
    if (s->violation[0] == '\0')
        check_end(s);
    return s->violation[0] == '\0';
}

void sim_fini(struct sim *s)
{
    while (!ring_is_empty(&s->coords)) {
        struct coord *c = RING_OBJECT(s->coords.next, struct coord, link);

        coord_destroy(c);
        coord_free(c);
    }
    while (!ring_is_empty(&s->agents))
        agent_free(RING_OBJECT(s->agents.next, struct agent, link));
    while (!ring_is_empty(&s->conns))
        conn_free(RING_OBJECT(s->conns.next, struct conn, link));
    while (!ring_is_empty(&s->processes)) {
        struct process *p =
            RING_OBJECT(s->processes.next, struct process, link);

        ring_remove(&p->link);
        free(p);
    }
    check_fini(s);
    free(s->by_number);
    free(s->nodes);
    free(s->heap);
}
