/*
 * The agent of a node around the real participant.c and lifecycle.c: what
 * agent/agent.c and agent/node_link.c do with libuv, with the same rules and
 * constants; and who starts it again after it has died. See sim.h.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/sim/sim.h"

/* As in agent/node_link.c. */
#define FIRST_PAUSE_MS 50
#define LAST_PAUSE_MS 1000
#define ATTEMPT_MS 5000
/* As in agent/agent.c. */
#define GROUP_CHECK_MS 100

uint64_t agent_now(const struct agent *a)
{
    return machine_now(a->sim, &a->node->machine);
}

/* --- The link: agent/node_link.c ---------------------------------------- */

static void try_later(struct agent *a, const char *problem);

static void link_timer(struct agent *a, uint64_t ms)
{
    timer_set(a->sim, &a->net.timer, agent_now(a) + ms * SIM_MS);
}

static void hang_up(struct agent *a)
{
    a->net.gen++;
    a->net.has_joined = false;
    if (a->net.end != NULL)
        end_close(a->net.end);
    a->net.end = NULL;
    timer_stop(&a->net.timer);
}

static void on_link_ended(struct agent *a, const char *why)
{
    sim_trace(a->sim, "link-ended", why, a->number, 0);
    if (a->is_finishing)
        return;
    participant_abandoned(&a->part);
    agent_settle(a);
}

static void link_end(struct agent *a, const char *why)
{
    hang_up(a);
    a->net.state = SIM_LINK_ENDED;
    on_link_ended(a, why);
}

static void try_later(struct agent *a, const char *problem)
{
    struct sim_link *l = &a->net;
    uint64_t now = agent_now(a);
    uint64_t left_ms;

    hang_up(a);
    if (now >= l->deadline_ns) {
        link_end(a, problem);
        return;
    }
    left_ms = (l->deadline_ns - now + SIM_MS - 1) / SIM_MS;
    l->state = SIM_LINK_PAUSING;
    link_timer(a, l->pause_ms < left_ms ? l->pause_ms : left_ms);
    l->pause_ms =
        2 * l->pause_ms < LAST_PAUSE_MS ? 2 * l->pause_ms : LAST_PAUSE_MS;
}

static void link_lose(struct agent *a, const char *how)
{
    struct sim_link *l = &a->net;

    sim_trace(a->sim, "link-lost", how, a->number, 0);
    if (!l->is_lasting) {
        link_end(a, how);
        return;
    }
    l->pause_ms = FIRST_PAUSE_MS;
    l->deadline_ns = agent_now(a) + a->sim->coordinator_timeout_ms * SIM_MS;
    l->state = SIM_LINK_PAUSING;
    try_later(a, how);
}

static void introduce(struct agent *a)
{
    const struct membership_settings *set = &a->sim->settings;
    struct node_msg join = {.kind = NODE_JOIN,
        .node_rank = set->is_static ? a->node->index : -1,
        .nproc = a->node->nproc,
        .min_nodes = set->min_nodes,
        .max_nodes = set->max_nodes,
        .max_restarts = set->max_restarts,
        .join_timeout_ms = (int32_t)set->join_timeout_ms,
        .last_call_ms = (int32_t)set->last_call_ms,
        .keep_alive_ms = (int32_t)set->keep_alive_ms,
        .keep_alive_attempts = set->keep_alive_attempts,
        .restart_delay_ms = (int32_t)set->restart_delay_ms,
        .restart_delay_max_ms = (int32_t)set->restart_delay_max_ms,
        .is_static = set->is_static,
        .store_port = 29500,
        .pid = a->number};

    memcpy(join.run_id, set->run_id, sizeof(join.run_id));
    snprintf(join.host, sizeof(join.host), "node%d", a->node->index);
    snprintf(join.role, sizeof(join.role), "default");
    snprintf(join.addrs, sizeof(join.addrs), "10.0.%d.%d",
        a->node->index >> 8 & 255, a->node->index & 255);
    participant_join(&a->part, &join);
    end_send(a->net.end, &join);
    a->net.has_joined = true;
    link_timer(a, ATTEMPT_MS);
}

static void be_welcome(struct agent *a, const struct node_msg *msg)
{
    struct sim_link *l = &a->net;

    l->state = SIM_LINK_UP;
    l->was_up = true;
    l->is_lasting = msg->is_lasting != 0;
    l->keep_alive_ms =
        msg->keep_alive_ms > 0 ? (uint64_t)msg->keep_alive_ms : LAST_PAUSE_MS;
    l->keep_alive_attempts = msg->keep_alive_attempts;
    link_timer(a, l->keep_alive_ms);
}

static void on_message(void *arg, const struct node_msg *msg)
{
    struct agent *a = arg;
    struct sim_link *l = &a->net;

    l->heard_ns = agent_now(a);
    if (msg->kind == NODE_REFUSED) {
        sim_trace(a->sim, "is-refused", NULL, a->number, 0);
        link_end(a, "refused");
    } else if (l->state == SIM_LINK_GREETING && msg->kind == NODE_HELLO) {
        introduce(a);
    } else if (l->state == SIM_LINK_GREETING && msg->kind == NODE_WELCOME) {
        be_welcome(a, msg);
    }
    if (l->state != SIM_LINK_UP || msg->kind == NODE_PONG)
        return;
    sim_trace(a->sim, "hears", node_msg_name(msg->kind), a->number,
        msg->kind == NODE_CLOSED ? msg->result : msg->round);
    check_told(a, msg);
    participant_message(&a->part, msg, agent_now(a));
    agent_settle(a);
}

static void on_conn_ended(void *arg, const char *why)
{
    struct agent *a = arg;

    if (a->net.state == SIM_LINK_UP)
        link_lose(a, why);
    else
        try_later(a, why);
}

static void connected_event(struct sim *s, void *obj, uint64_t gen)
{
    struct agent *a = obj;

    if (!process_takes(s, &a->process, connected_event, a, gen) ||
        gen != a->net.gen)
        return;
    a->net.state = SIM_LINK_GREETING;
    link_timer(a, ATTEMPT_MS);
}

static void refused_event(struct sim *s, void *obj, uint64_t gen)
{
    struct agent *a = obj;

    if (!process_takes(s, &a->process, refused_event, a, gen) ||
        gen != a->net.gen)
        return;
    try_later(a, "Connection refused");
}

/* The connection is made in the kernel, also while the coordinator stands
 * still. */
static void syn_event(struct sim *s, void *obj, uint64_t gen)
{
    struct agent *a = obj;
    struct machine *there =
        s->is_hosted ? &s->nodes[0].machine : &s->coord_machine;
    uint64_t delay = net_delay(s, &a->node->machine, there);
    struct conn *c;

    if (!a->process.is_alive || gen != a->net.gen)
        return;
    if (!net_is_open(&a->node->machine, there)) {
        sim_after(s, SIM_S, syn_event, a, gen);
        return;
    }
    if (s->coord == NULL) {
        sim_after(s, delay, refused_event, a, gen);
        return;
    }
    c = conn_create(s, &a->process, s->coord->process);
    a->net.end = &c->ends[0];
    a->net.end->message = on_message;
    a->net.end->ended = on_conn_ended;
    a->net.end->arg = a;
    /* Said before HELLO can be there. */
    c->ends[0].last_ns = s->now_ns + delay;
    sim_after(s, delay, connected_event, a, gen);
    coord_accept(s->coord, &c->ends[1]);
}

static void attempt(struct agent *a)
{
    struct sim *s = a->sim;
    struct machine *there =
        s->is_hosted ? &s->nodes[0].machine : &s->coord_machine;

    a->net.state = SIM_LINK_CONNECTING;
    a->net.gen++;
    link_timer(a, ATTEMPT_MS);
    sim_after(
        s, net_delay(s, &a->node->machine, there), syn_event, a, a->net.gen);
}

static void keep_alive(struct agent *a)
{
    struct sim_link *l = &a->net;
    const struct node_msg ping = {.kind = NODE_PING};
    const struct node_msg away = {
        .kind = NODE_AWAY, .round = a->part.place.round};
    uint64_t limit_ms = l->keep_alive_ms * (uint64_t)l->keep_alive_attempts;

    if (agent_now(a) >= l->heard_ns + limit_ms * SIM_MS) {
        if (l->is_lasting)
            end_send(l->end, &away);
        link_lose(a, "nothing was heard of it");
        return;
    }
    end_send(l->end, &ping);
    link_timer(a, l->keep_alive_ms);
}

static void on_link_timer(void *arg)
{
    struct agent *a = arg;

    switch (a->net.state) {
    case SIM_LINK_PAUSING:
        attempt(a);
        break;
    case SIM_LINK_CONNECTING:
        try_later(a, "no answer");
        break;
    case SIM_LINK_GREETING:
        try_later(a, "whoever listens there does not answer agents");
        break;
    case SIM_LINK_UP:
        keep_alive(a);
        break;
    case SIM_LINK_ENDED:
        break;
    }
}

/* --- The end of an agent ------------------------------------------------ */

static void exit_event(struct sim *s, void *obj, uint64_t arg)
{
    struct agent *a = obj;

    if (!process_takes(s, &a->process, exit_event, a, arg))
        return;
    a->is_exited = true;
    sim_trace(s, "exit", a->is_success ? "success" : "failure", a->number,
        a->node->index);
    workers_die(a);
    hang_up(a);
    a->net.state = SIM_LINK_ENDED;
    if (a->coord != NULL)
        coord_destroy(a->coord);
    a->coord = NULL;
    timer_stop(&a->life_timer);
    timer_stop(&a->group_timer);
    process_end(s, &a->process);
}

/* What is left to be written takes its time. */
static void finish(struct agent *a)
{
    if (a->is_finishing)
        return;
    a->is_finishing = true;
    if (a->net.state != SIM_LINK_UP && !a->net.has_joined) {
        hang_up(a);
        a->net.state = SIM_LINK_ENDED;
    }
    a->finished_ns = a->sim->now_ns;
    a->is_success =
        a->part.is_success && a->life.stop_signal == 0 && !a->life.gave_up;
    sim_trace(a->sim, "finish", a->is_success ? "success" : "failure",
        a->number, a->node->index);
    sim_after(a->sim, sim_between(a->sim, 0, 100 * SIM_MS), exit_event, a, 0);
}

void agent_crash(struct agent *a, bool is_power)
{
    struct sim *s = a->sim;

    sim_trace(
        s, is_power ? "power-loss" : "crash", NULL, a->number, a->node->index);
    workers_die(a);
    if (is_power) {
        a->node->machine.is_up = false;
        process_vanish(s, &a->process);
    } else {
        process_end(s, &a->process);
    }
    hang_up(a);
    if (a->coord != NULL)
        coord_destroy(a->coord);
    a->coord = NULL;
}

/* --- The life of the workers: agent/agent.c ----------------------------- */

static void carry_out(struct agent *a, const struct lc_action *act)
{
    switch (act->kind) {
    case LC_ACT_SIGNAL:
        worker_signal(a, act->worker, act->signal);
        break;
    case LC_ACT_TELL:
        workers_tell(a);
        break;
    case LC_ACT_CHILDREN:
        workers_signal_strays(a, act->signal);
        break;
    case LC_ACT_ARM:
        timer_set(a->sim, &a->life_timer, act->deadline_ns);
        break;
    case LC_ACT_DISARM:
        timer_stop(&a->life_timer);
        break;
    }
}

void agent_post(struct agent *a, struct lc_event ev)
{
    enum lc_state before = a->life.state;

    ev.now_ns = agent_now(a);
    lifecycle_step(&a->life, &ev);
    if (a->life.state != before)
        sim_trace(a->sim, "life", lc_state_name(a->life.state), a->number,
            (int64_t)ev.kind);
    for (size_t i = 0; i < a->life.nactions; i++)
        carry_out(a, &a->life.actions[i]);
}

static bool is_idle(const struct agent *a)
{
    return a->part.state != PARTICIPANT_RUNNING;
}

static bool is_between_rounds(const struct agent *a)
{
    return a->is_round_due || is_idle(a);
}

static void tell_coordinator(struct agent *a)
{
    const struct lc_worker *w = &a->life.workers[a->life.first_failure];
    struct node_msg msg = {
        .rank = a->part.place.rank_base + a->life.first_failure,
        .local_rank = a->life.first_failure,
        .pid = (int32_t)w->pid,
        .wait_status = w->wait_status,
        .error = w->start_error,
        .is_collateral = w->outcome == LC_OUT_COLLATERAL,
        .lived_ns = w->ended_ns - w->started_ns};

    if (a->life.first_failure == a->told_failure)
        return;
    a->told_failure = a->life.first_failure;
    snprintf(msg.host, sizeof(msg.host), "node%d", a->node->index);
    snprintf(msg.text, sizeof(msg.text), "wait status %d", w->wait_status);
    participant_failed(&a->part, &msg, w->ended_ns, agent_now(a));
}

static void end_round(struct agent *a)
{
    if (a->is_finishing || is_between_rounds(a))
        return;
    if (a->life.is_parent_lost || a->life.gave_up)
        participant_give_up(&a->part);
    else
        participant_ended(&a->part, a->life.first_failure >= 0 ? NODE_HAS_FAILED
                                    : lifecycle_exit_code(&a->life) == 0
                                        ? NODE_SUCCEEDED
                                        : NODE_STOPPED);
}

static void reap_worker(struct agent *a, struct sim_worker *w)
{
    w->is_dead = false;
    /* What a failed worker left in its group is killed. */
    if (w->wait_status != 0 && a->life.workers[w->local_rank].sent_signal == 0)
        w->group_until_ns = 0;
    agent_post(a, (struct lc_event){.kind = LC_EV_EXITED,
                      .worker = w->local_rank,
                      .wait_status = w->wait_status});
}

static bool reap_next(struct agent *a)
{
    struct sim_worker *first = NULL;

    for (int i = 0; i < a->life.nworkers; i++) {
        struct sim_worker *w = &a->workers[i];

        if (w->is_dead && (first == NULL || w->dead_seq < first->dead_seq))
            first = w;
    }
    if (first != NULL)
        reap_worker(a, first);
    return first != NULL;
}

static bool has_children(const struct agent *a)
{
    for (int i = 0; i < a->life.nworkers; i++)
        if (a->workers[i].is_alive)
            return true;
    return a->nstrays > 0;
}

static void check_groups(struct agent *a)
{
    for (int i = 0; i < a->life.nworkers && a->life.ngroups > 0; i++)
        if (a->life.workers[i].has_group &&
            a->sim->now_ns >= a->workers[i].group_until_ns)
            agent_post(
                a, (struct lc_event){.kind = LC_EV_GROUP_GONE, .worker = i});
}

void agent_settle(struct agent *a)
{
    if (!a->process.is_alive)
        return;
    while (reap_next(a))
        ;
    check_groups(a);
    agent_post(
        a, (struct lc_event){.kind = has_children(a) ? LC_EV_CHILDREN_LEFT
                                                     : LC_EV_CHILDREN_GONE});
    if (!is_idle(a) && a->life.first_failure >= 0)
        tell_coordinator(a);
    if (a->life.nrunning == 0 && a->life.ngroups > 0)
        timer_set(
            a->sim, &a->group_timer, agent_now(a) + GROUP_CHECK_MS * SIM_MS);
    if (a->life.state == LC_DONE && !a->is_starting)
        end_round(a);
}

static void on_life_timer(void *arg)
{
    struct agent *a = arg;

    agent_post(a, (struct lc_event){.kind = LC_EV_TIMER});
    agent_settle(a);
}

static void on_group_timer(void *arg)
{
    agent_settle(arg);
}

static void on_part_end_workers(void *arg, const struct node_msg *why)
{
    struct agent *a = arg;

    if (a->is_round_due)
        return;
    agent_post(
        a, (struct lc_event){.kind = why != NULL && why->kind == NODE_FAILED
                                         ? LC_EV_PEER_FAILED
                                         : LC_EV_ROUND_OVER});
}

static void begin_next_round(struct sim *s, void *obj, uint64_t arg)
{
    struct agent *a = obj;

    if (!process_takes(s, &a->process, begin_next_round, a, arg) ||
        !a->is_round_due || a->is_finishing)
        return;
    a->is_round_due = false;
    lifecycle_fini(&a->life);
    if (lifecycle_init(&a->life, a->node->nproc, s->grace_ms,
            s->failure_grace_ms, agent_now(a)) < 0)
        abort();
    a->told_failure = -1;
    if (a->part.has_why || a->part.is_last)
        on_part_end_workers(a, a->part.has_why ? &a->part.why : NULL);
    a->round = check_round_begins(a);
    a->is_starting = true;
    for (int i = 0; i < a->node->nproc && a->life.state == LC_RUNNING; i++)
        worker_start(a, i);
    a->is_starting = false;
    agent_settle(a);
}

static void on_part_start(void *arg)
{
    struct agent *a = arg;

    a->is_round_due = true;
    sim_after(a->sim, sim_between(a->sim, 0, SIM_MS), begin_next_round, a, 0);
}

static void on_part_send(void *arg, const struct node_msg *msg)
{
    struct agent *a = arg;

    sim_trace(a->sim, "says", node_msg_name(msg->kind), a->number,
        msg->kind == NODE_ENDED ? msg->result : msg->round);
    if (a->net.state == SIM_LINK_UP ||
        (a->net.state == SIM_LINK_GREETING && a->net.has_joined &&
            msg->kind == NODE_LEAVE))
        end_send(a->net.end, msg);
}

static void on_part_allow_peers(void *arg, const char *addrs, bool is_first)
{
    (void)arg;
    (void)addrs;
    (void)is_first;
}

static int on_part_open_store(void *arg)
{
    (void)arg;
    return 0;
}

static void on_part_close_store(void *arg)
{
    (void)arg;
}

static void on_part_tell(void *arg, const struct node_msg *msg)
{
    (void)arg;
    (void)msg;
}

static void on_part_finish(void *arg)
{
    finish(arg);
}

/* TERM of this node alone. */
void agent_stop_signal(struct agent *a, int sig)
{
    bool is_first = a->life.stop_signal == 0;

    sim_trace(a->sim, "stop-signal", NULL, a->number, sig);
    agent_post(a, (struct lc_event){.kind = LC_EV_STOP_SIGNAL, .signal = sig});
    if (is_first && !a->is_finishing)
        participant_leave(&a->part, "it received a signal");
    if (is_between_rounds(a)) {
        a->is_round_due = false;
        finish(a);
    }
    agent_settle(a);
}

/* --- Nodes -------------------------------------------------------------- */

bool node_is_running(const struct sim_node *n)
{
    return n->agent != NULL && n->agent->process.is_alive &&
           !n->agent->is_finishing;
}

void node_start(struct sim *s, struct sim_node *n)
{
    static const struct participant_callbacks callbacks = {.send = on_part_send,
        .allow_peers = on_part_allow_peers,
        .open_store = on_part_open_store,
        .close_store = on_part_close_store,
        .start = on_part_start,
        .end_workers = on_part_end_workers,
        .tell = on_part_tell,
        .finish = on_part_finish};
    struct agent *a = calloc(1, sizeof(*a));

    if (a == NULL)
        abort();
    n->machine.is_up = true;
    n->agent = a;
    a->sim = s;
    a->node = n;
    a->number = s->nagents++;
    s->by_number =
        realloc(s->by_number, (size_t)s->nagents * sizeof(struct agent *));
    if (s->by_number == NULL)
        abort();
    s->by_number[a->number] = a;
    ring_add_last(&s->agents, &a->link);
    process_init(&a->process, &n->machine);
    participant_init(&a->part, &callbacks, a, sim_random(s));
    if (lifecycle_init(&a->life, n->nproc, s->grace_ms, s->failure_grace_ms,
            agent_now(a)) < 0)
        abort();
    a->life.state = LC_DONE;
    a->told_failure = -1;
    for (int i = 0; i < SIM_NPROC_MAX; i++)
        a->workers[i] = (struct sim_worker){.agent = a, .local_rank = i};
    a->life_timer = (struct sim_timer){
        .process = &a->process, .fn = on_life_timer, .arg = a};
    a->group_timer = (struct sim_timer){
        .process = &a->process, .fn = on_group_timer, .arg = a};
    a->net = (struct sim_link){.state = SIM_LINK_PAUSING,
        .pause_ms = FIRST_PAUSE_MS,
        .deadline_ns = agent_now(a) + s->settings.join_timeout_ms * SIM_MS,
        .timer = {.process = &a->process, .fn = on_link_timer, .arg = a}};
    sim_trace(s, "start", NULL, a->number, n->index);
    if (s->is_hosted && n->index == 0)
        a->coord = coord_create(s, &a->process, false);
    link_timer(a, 0);
}

static void start_event(struct sim *s, void *obj, uint64_t arg)
{
    struct sim_node *n = obj;

    (void)arg;
    if (n->agent != NULL && n->agent->process.is_alive &&
        n->agent->life.stop_signal != 0) { /* not yet gone */
        sim_after(s, SIM_S, start_event, n, 0);
        return;
    }
    n->is_coming = false;
    if (n->agent == NULL || !n->agent->process.is_alive)
        node_start(s, n);
}

void node_start_later(struct sim *s, struct sim_node *n, uint64_t ns)
{
    n->is_coming = true;
    sim_after(s, ns, start_event, n, 0);
}

void agent_free(struct agent *a)
{
    lifecycle_fini(&a->life);
    ring_remove(&a->link);
    free(a);
}
