/*
 * The coordinator around the real membership.c: what rendezvous/coordinator.c
 * does with epoll, with the same rules and constants. There is one run id, so
 * one job at most; strangers have a timer each instead of a list. See sim.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/base/err.h"
#include "tests/sim/sim.h"

/* As in rendezvous/coordinator.c. */
#define STRANGER_MS 10000
#define JOB_KEEP_MS 60000

struct coord_node {
    struct ring link;
    struct coord *coord;
    struct end *end;
    struct member *member; /* NULL until it is let in */
    struct sim_timer timer; /* until JOIN */
};

static uint64_t coord_now(const struct coord *c)
{
    return machine_now(c->sim, c->process->machine);
}

static void node_close(struct coord_node *n)
{
    timer_stop(&n->timer);
    ring_remove(&n->link);
    end_close(n->end);
    ring_add_last(&n->coord->gone, &n->link); /* events may name its timer */
    n->member = NULL;
}

/* --- Jobs --------------------------------------------------------------- */

static void send_cb(void *arg, struct member *m, const struct node_msg *msg)
{
    struct coord *c = arg;

    struct end *e = ((struct coord_node *)m->owner)->end;

    check_coordinator_says(c, m, msg);
    end_send(e, msg);
    faults_tempt(c->sim, msg, e->conn);
}

static void drop_cb(void *arg, struct member *m, const char *why)
{
    struct coord *c = arg;

    sim_trace(c->sim, "drop", why, m->pid, (int64_t)m->state);
    /* It comes over another connection, and is awaited in its round. */
    if (c->joining == NULL || c->joining->part != NODE_PART_OPEN ||
        c->joining->round_id != c->job->round_id)
        check_node_lost(c, m);
    node_close(m->owner);
}

static struct membership *job_create(
    struct coord *c, const struct membership_settings *settings)
{
    static const struct membership_callbacks callbacks = {send_cb, drop_cb};
    struct membership_settings set = *settings;
    struct membership *ms = malloc(sizeof(*ms));

    if (ms == NULL)
        abort();
    set.id = sim_random(c->sim);
    set.is_lasting = c->is_open;
    c->sim->njobs++;
    membership_init(ms, &set, &callbacks, c, coord_now(c));
    return ms;
}

static void job_destroy(struct coord *c)
{
    if (c->job != NULL)
        membership_fini(c->job);
    free(c->job);
    c->job = NULL;
}

/* Nobody is left. Whoever comes back in time is of the same job. */
static void job_check(struct coord *c)
{
    if (!c->is_open || c->job == NULL || c->job->nmembers > 0) {
        timer_stop(&c->keep_timer);
        c->is_empty = false;
    } else if (!c->is_empty) {
        c->is_empty = true;
        timer_set(c->sim, &c->keep_timer, coord_now(c) + JOB_KEEP_MS * SIM_MS);
    }
}

static void on_keep_timer(void *arg)
{
    struct coord *c = arg;

    sim_trace(c->sim, "job-forgotten", NULL, 0, 0);
    job_destroy(c);
    job_check(c);
}

static void find_job(struct coord *c, const struct node_msg *join)
{
    struct membership_settings set = {.min_nodes = join->min_nodes,
        .max_nodes = join->max_nodes,
        .max_restarts = join->max_restarts,
        .join_timeout_ms = (uint64_t)join->join_timeout_ms,
        .last_call_ms = (uint64_t)join->last_call_ms,
        .keep_alive_ms = (uint64_t)join->keep_alive_ms,
        .keep_alive_attempts = join->keep_alive_attempts,
        .restart_delay_ms = (uint64_t)join->restart_delay_ms,
        .restart_delay_max_ms = (uint64_t)join->restart_delay_max_ms,
        .crash_loop_count = join->crash_loop_count,
        .crash_loop_ms = (uint64_t)join->crash_loop_ms};

    /* One that knows of no round is of another job with the same name. */
    if (c->is_open && c->job != NULL && c->job->nmembers == 0 &&
        join->part == NODE_PART_NONE) {
        sim_trace(c->sim, "job-replaced", NULL, 0, 0);
        job_destroy(c);
    }
    if (c->job != NULL)
        return;
    memcpy(set.run_id, join->run_id, sizeof(set.run_id));
    c->job = job_create(c, &set);
}

/* --- Time --------------------------------------------------------------- */

static void set_timer(struct coord *c)
{
    uint64_t due = c->job != NULL ? membership_due_ns(c->job) : UINT64_MAX;

    if (c->job != NULL)
        check_membership(c->sim, c->job);
    if (due == c->due_ns)
        return;
    c->due_ns = due;
    if (due != UINT64_MAX)
        timer_set(c->sim, &c->timer, due);
    else
        timer_stop(&c->timer);
}

static void on_timer(void *arg)
{
    struct coord *c = arg;
    uint64_t now = coord_now(c);

    c->due_ns = UINT64_MAX;
    if (c->job != NULL && now >= membership_due_ns(c->job)) {
        check_gives_up(c, now);
        membership_tick(c->job, now);
    }
    job_check(c);
    set_timer(c);
}

/* --- The nodes' side ---------------------------------------------------- */

static void ended_cb(void *arg, const char *why)
{
    struct coord_node *n = arg;
    struct coord *c = n->coord;

    if (n->member != NULL) {
        sim_trace(c->sim, "coord-lost", why, n->member->pid,
            (int64_t)n->member->state);
        check_node_lost(c, n->member);
        membership_lost(c->job, n->member, why, coord_now(c));
        n->member = NULL;
        job_check(c);
    }
    node_close(n);
    set_timer(c);
}

static void on_stranger_timer(void *arg)
{
    struct coord_node *n = arg;

    if (n->member == NULL)
        node_close(n);
}

static void join(struct coord_node *n, const struct node_msg *msg)
{
    struct node_msg refused = {.kind = NODE_REFUSED};
    struct node_msg join = *msg;
    struct coord *c = n->coord;
    char addr[NODE_ADDR_MAX];
    bool was_new; /* the job had no round */
    struct err e;

    /* As find_addr(): where it was seen is one of its addresses. */
    snprintf(addr, sizeof(addr), "10.%d.%d.%d", msg->pid >> 16 & 255,
        msg->pid >> 8 & 255, msg->pid & 255);
    snprintf(join.addrs, sizeof(join.addrs), "%.20s %.200s", addr, msg->addrs);
    find_job(c, msg);
    check_joins(c, msg);
    timer_stop(&n->timer);
    sim_trace(c->sim, "coord-join",
        msg->part == NODE_PART_NONE   ? "none"
        : msg->part == NODE_PART_OPEN ? "open"
                                      : "done",
        msg->pid, msg->round);
    was_new = c->job->round < 0 && c->job->phase == MEMBERSHIP_GATHERING;
    c->joining = msg;
    c->sim->stopped = NULL;
    n->member = membership_join(c->job, n, &join, addr, coord_now(c), &e);
    c->joining = NULL;
    job_check(c);
    if (n->member != NULL) {
        check_let_in(c, n->member, msg, was_new);
        return;
    }
    sim_trace(c->sim, "refused", NULL, msg->pid, 0);
    snprintf(refused.text, sizeof(refused.text), "%s", e.msg);
    end_send(n->end, &refused);
    node_close(n);
}

static void message_cb(void *arg, const struct node_msg *msg)
{
    struct coord_node *n = arg;
    struct coord *c = n->coord;

    if (n->member != NULL)
        check_coordinator_hears(c, n->member, msg);
    if (n->member == NULL && msg->kind == NODE_JOIN) {
        join(n, msg);
    } else if (n->member != NULL && msg->kind == NODE_AWAY) {
        membership_away(c->job, n->member, coord_now(c));
        n->member = NULL;
        job_check(c);
        node_close(n);
    } else if (n->member == NULL ||
               membership_message(c->job, n->member, msg, coord_now(c)) < 0) {
        check_fail(c->sim, 0, "an agent said %s, which makes no sense",
            node_msg_name(msg->kind));
        ended_cb(n, "it said what makes no sense here");
    }
    set_timer(c);
}

static void accept_event(struct sim *s, void *obj, uint64_t arg)
{
    struct end *e = obj;
    struct coord_node *n;
    struct node_msg hello = {.kind = NODE_HELLO};

    (void)arg;
    if (e->is_open && s->now_ns < e->process->frozen_until_ns) {
        sim_at(s, e->process->frozen_until_ns, accept_event, e, 0);
        return;
    }
    if (!e->is_open || s->coord == NULL || s->coord->process != e->process) {
        end_close(e);
        return;
    }
    n = calloc(1, sizeof(*n));
    if (n == NULL)
        abort();
    n->coord = s->coord;
    n->end = e;
    n->timer = (struct sim_timer){
        .process = e->process, .fn = on_stranger_timer, .arg = n};
    ring_add_last(&n->coord->nodes, &n->link);
    e->message = message_cb;
    e->ended = ended_cb;
    e->arg = n;
    timer_set(s, &n->timer, coord_now(n->coord) + STRANGER_MS * SIM_MS);
    end_send(e, &hello);
}

void coord_accept(struct coord *c, struct end *e)
{
    sim_at(c->sim, c->sim->now_ns, accept_event, e, 0);
}

/* --- The coordinator ---------------------------------------------------- */

struct coord *coord_create(struct sim *s, struct process *p, bool is_open)
{
    struct coord *c = calloc(1, sizeof(*c));

    if (c == NULL)
        abort();
    c->sim = s;
    c->process = p;
    c->is_open = is_open;
    c->due_ns = UINT64_MAX;
    c->timer = (struct sim_timer){.process = p, .fn = on_timer, .arg = c};
    c->keep_timer =
        (struct sim_timer){.process = p, .fn = on_keep_timer, .arg = c};
    ring_init(&c->nodes);
    ring_init(&c->gone);
    ring_add_last(&s->coords, &c->link);
    if (!is_open)
        c->job = job_create(c, &s->settings);
    s->coord = c;
    return c;
}

void coord_destroy(struct coord *c)
{
    struct sim *s = c->sim;

    if (s->coord == c)
        s->coord = NULL;
    timer_stop(&c->timer);
    timer_stop(&c->keep_timer);
    while (!ring_is_empty(&c->nodes))
        node_close(RING_OBJECT(c->nodes.next, struct coord_node, link));
    job_destroy(c);
}

void coord_free(struct coord *c)
{
    while (!ring_is_empty(&c->gone)) {
        struct coord_node *n =
            RING_OBJECT(c->gone.next, struct coord_node, link);

        ring_remove(&n->link);
        free(n);
    }
    ring_remove(&c->link);
    free(c);
}

struct conn *coord_some_conn(struct coord *c, int which)
{
    struct ring *r = c->nodes.next;

    if (ring_is_empty(&c->nodes))
        return NULL;
    for (; which > 0; which--)
        r = r->next == &c->nodes ? c->nodes.next : r->next;
    if (r == &c->nodes)
        r = r->next;
    return RING_OBJECT(r, struct coord_node, link)->end->conn;
}
