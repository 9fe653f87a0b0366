/*
 * What must hold, whatever goes wrong. The numbers are those of check_fail():
 *
 *   1  no two nodes have one rank of a round
 *   2  what is told of a round is the same on all of its nodes
 *   3  no worker of an older round lives where a new one begins
 *   4  every wait ends, and a job whose workers succeed ends with success
 *   5  restarts are counted: failures and lost nodes, and nothing else
 *   6  one verdict on a round
 *   7  a success is one of every worker
 *   8  messages are as many as nodes, times a constant
 *   9  what the membership keeps count of is so
 *   0  the simulator's own
 *
 * See sim.h.
 */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/sim/sim.h"

/* Of messages, but PING and PONG. */
#define MSGS_OF_ROUND 20 /* for each of its nodes */
#define MSGS_OF_JOIN 10
/* Counting everything anew after each event is for small jobs. */
#define RECOUNT_NODES_MAX 64

void check_fail(struct sim *s, int invariant, const char *fmt, ...)
{
    va_list ap;
    int n;

    if (s->violation[0] != '\0')
        return;
    n = snprintf(s->violation, sizeof(s->violation),
        "invariant %d at %.6f s: ", invariant,
        (double)s->now_ns / (double)SIM_S);
    va_start(ap, fmt);
    vsnprintf(s->violation + n, sizeof(s->violation) - (size_t)n, fmt, ap);
    va_end(ap);
}

static struct round *find_round(struct sim *s, uint64_t id)
{
    struct round *r;

    HASH_FIND(hh, s->rounds, &id, sizeof(id), r);
    return r;
}

static struct round *add_round(struct sim *s, const struct node_msg *msg)
{
    struct round *r = calloc(1, sizeof(*r));

    if (r == NULL)
        abort();
    r->id = msg->round_id;
    r->place = *msg;
    r->job = s->njobs;
    r->agents = calloc((size_t)msg->group_world_size, sizeof(*r->agents));
    r->nzero = calloc((size_t)msg->group_world_size, sizeof(*r->nzero));
    r->nproc = calloc((size_t)msg->group_world_size, sizeof(*r->nproc));
    r->taken = calloc((size_t)msg->world_size, sizeof(*r->taken));
    if (r->agents == NULL || r->nzero == NULL || r->nproc == NULL ||
        r->taken == NULL)
        abort();
    HASH_ADD(hh, s->rounds, id, sizeof(r->id), r);
    return r;
}

static void check_same(
    struct sim *s, const struct round *r, const struct node_msg *msg)
{
    const struct node_msg *p = &r->place;

    if (msg->round != p->round || msg->world_size != p->world_size ||
        msg->group_world_size != p->group_world_size ||
        msg->master_port != p->master_port ||
        strcmp(msg->master_addr, p->master_addr) != 0)
        check_fail(s, 2, "round %d is not the same on all nodes", msg->round);
    if (msg->restart_count != p->restart_count)
        check_fail(s, 5,
            "restart count of round %d is %d on one node and %d on another",
            msg->round, p->restart_count, msg->restart_count);
}

/* --- Told by the coordinator -------------------------------------------- */

/* One after another: what did the one before come to? */
static void check_count(struct coord *c, const struct node_msg *msg)
{
    struct sim *s = c->sim;
    const struct round *before = s->last_round;
    int known = s->known_job == s->njobs ? s->known_count : 0;
    int least, most;

    if (msg->restart_count > s->settings.max_restarts)
        check_fail(s, 5, "restart count %d, and at most %d are allowed",
            msg->restart_count, s->settings.max_restarts);
    if (before == NULL || before->job != s->njobs)
        return;
    least = before->place.restart_count + before->is_failed;
    most = least;
    if (known > before->place.restart_count) {
        least = least > known ? least : known;
        most = known + before->is_failed;
    }
    if (msg->restart_count < least || msg->restart_count > most)
        check_fail(s, 5, "restart count %d of round %d follows %d, which %s",
            msg->restart_count, msg->round, before->place.restart_count,
            before->is_failed ? "has failed" : "has not failed");
}

/* Whether the present job can know that the last round has failed. */
static bool knows_failure(const struct coord *c)
{
    const struct sim *s = c->sim;
    const struct membership *ms = c->job;

    if (!s->last_round->is_told_failed)
        return false;
    if (s->last_round->job == s->njobs)
        return true;
    if (s->last_round->resumed_job != s->njobs)
        return false; /* it had begun with other nodes by then */
    for (int i = 0; i < ms->group_size; i++) {
        const struct agent *a = s->by_number[ms->group[i].m->pid];

        if (a->round == s->last_round && a->knows_failure)
            return true;
    }
    return false;
}

static void check_round_said(
    struct coord *c, const struct member *m, const struct node_msg *msg)
{
    struct sim *s = c->sim;
    struct round *r = find_round(s, msg->round_id);
    const struct agent *a = s->by_number[m->pid];

    if (r == NULL) {
        check_count(c, msg);
        if (s->last_round == NULL ||
            (s->last_round->job != s->njobs && !s->has_known))
            s->nfailed = 0; /* nobody remembers another one: a new job */
        else if (knows_failure(c) && ++s->nfailed > s->settings.max_restarts)
            check_fail(
                s, 5, "%d rounds have failed and been followed", s->nfailed);
        if ((s->faults & ~SIM_CLEAN_FAULTS) == 0 && msg->restart_count != 0)
            check_fail(s, 5, "nodes only came and went, and a restart is used");
        r = add_round(s, msg);
        s->last_round = r;
        s->nrounds++;
    }
    check_same(s, r, msg);
    if (a->process.is_alive && msg->restart_count < a->part.restart_count)
        check_fail(s, 5, "restart count %d, and node %d has been told %d",
            msg->restart_count, a->node->index, a->part.restart_count);
    if (a->node->nlive > 0 && a->process.is_alive)
        check_fail(s, 3, "node %d has %d workers of an older round",
            a->node->index, a->node->nlive);
}

static void check_verdict(
    struct sim *s, struct round *r, const struct node_msg *msg)
{
    const struct node_msg *v = &r->verdict;

    if (!r->has_verdict) {
        r->has_verdict = true;
        r->verdict = *msg;
        r->verdict_job = s->njobs;
        return;
    }
    /* A later coordinator, that a node of an old round comes back to, may know
     * of restarts that have been since. */
    if (msg->next != v->next || msg->restart_count < v->restart_count ||
        (msg->restart_count != v->restart_count && r->verdict_job == s->njobs))
        check_fail(s, 6, "round %d: another one follows, or not", msg->round);
    if (r->verdict_job == s->njobs &&
        (msg->rank != v->rank || strcmp(msg->host, v->host) != 0 ||
            msg->wait_status != v->wait_status || msg->error != v->error))
        check_fail(s, 6, "round %d failed on %s and on %s first", msg->round,
            v->host, msg->host);
}

static bool is_success_of_all(const struct round *r)
{
    for (int i = 0; i < r->place.group_world_size; i++)
        if (r->agents[i] == NULL || r->nzero[i] < r->nproc[i])
            return false;
    return true;
}

/* It is said to many, and looked at once. */
static void check_success(struct coord *c)
{
    struct sim *s = c->sim;
    struct round *r = find_round(s, c->job->round_id);

    if (s->success_job == s->njobs)
        return;
    s->success_job = s->njobs;
    s->success_round = r;
    if (r == NULL || !is_success_of_all(r))
        check_fail(s, 7, "the job is said to be a success, which it is not");
}

void check_coordinator_says(
    struct coord *c, const struct member *m, const struct node_msg *msg)
{
    struct sim *s = c->sim;

    if (msg->kind == NODE_PONG)
        return;
    s->nmsgs++;
    if (msg->kind == NODE_STOP)
        s->stopped = m;
    if (msg->kind == NODE_WELCOME)
        s->nallowed += MSGS_OF_JOIN;
    else if (msg->kind == NODE_PREPARE)
        s->nallowed += MSGS_OF_ROUND * (uint64_t)c->job->group_size;
    else if (msg->kind == NODE_ROUND)
        check_round_said(c, m, msg);
    else if (msg->kind == NODE_VERDICT)
        check_verdict(s, find_round(s, c->job->round_id), msg);
    else if (msg->kind == NODE_CLOSED && msg->result == 0)
        check_success(c);
}

void check_let_in(struct coord *c, const struct member *m,
    const struct node_msg *join, bool was_new)
{
    struct round *r = find_round(c->sim, c->job->round_id);

    if (r != NULL)
        r->resumed_job = c->sim->njobs;
    if (was_new && join->part == NODE_PART_OPEN &&
        c->job->round_id != join->round_id)
        check_fail(c->sim, 3, "round %d does not go on", join->round);
    if (m->state == MEMBER_STALE && c->job->phase != MEMBERSHIP_CLOSED &&
        c->sim->stopped != m)
        check_fail(c->sim, 3,
            "%s runs workers of another round, and is not told to end them",
            m->host);
}

/* --- Heard by the coordinator ------------------------------------------- */

static bool is_under_way(const struct membership *ms)
{
    return ms->phase == MEMBERSHIP_RUNNING || ms->phase == MEMBERSHIP_STOPPING;
}

/* What fails after a round was stopped for another reason fails because of
 * that. */
static void note_failure(struct coord *c, const struct node_msg *msg)
{
    const struct membership *ms = c->job;
    struct round *r = find_round(c->sim, ms->round_id);
    uint64_t now = machine_now(c->sim, c->process->machine);

    if (r == NULL)
        return;
    if (ms->phase == MEMBERSHIP_RUNNING ||
        (!msg->is_collateral && now - msg->ago_ns < ms->phase_ns))
        r->is_failed = true;
}

/* What failed elsewhere a moment ago failed because its workers were ended. */
static void note_leave(struct coord *c, const struct member *m)
{
    const struct membership *ms = c->job;
    struct round *r = find_round(c->sim, ms->round_id);
    const struct node_msg *f = &ms->failure;
    bool is_exit = f->rank >= 0 && f->error == 0 && WIFEXITED(f->wait_status);

    if (r == NULL || m->state != MEMBER_ACTIVE || !ms->has_failure ||
        ms->phase != MEMBERSHIP_STOPPING || !is_exit ||
        machine_now(c->sim, c->process->machine) >
            ms->heard_ns + MEMBERSHIP_SETTLE_MS * SIM_MS)
        return;
    r->is_failed = r->is_told_failed = false;
    r->is_left = true;
}

/* Of a failure here the coordinator has been told before. */
static void note_ended(
    struct coord *c, const struct member *m, const struct node_msg *msg)
{
    const struct membership *ms = c->job;
    struct round *r = find_round(c->sim, ms->round_id);

    if (r != NULL && ms->phase == MEMBERSHIP_RUNNING &&
        m->state == MEMBER_ACTIVE && msg->round == ms->round &&
        msg->result == NODE_HAS_FAILED)
        r->is_failed = true;
}

void check_coordinator_hears(
    struct coord *c, const struct member *m, const struct node_msg *msg)
{
    const struct membership *ms = c->job;

    if (msg->kind == NODE_LEAVE)
        note_leave(c, m);
    else if (msg->kind == NODE_ENDED)
        note_ended(c, m, msg);

    if (msg->kind != NODE_PING)
        c->sim->nmsgs++;
    if (msg->kind == NODE_FAILED && is_under_way(ms) &&
        m->state == MEMBER_ACTIVE && m->round == ms->round &&
        msg->round == ms->round)
        note_failure(c, msg);
}

void check_joins(struct coord *c, const struct node_msg *join)
{
    struct sim *s = c->sim;

    s->nmsgs++;
    if (s->known_job != s->njobs) {
        s->known_job = s->njobs;
        s->known_count = 0;
        s->has_known = false;
    }
    if (join->restart_count > s->known_count)
        s->known_count = join->restart_count;
    if (join->part != NODE_PART_NONE)
        s->has_known = true;
}

void check_node_lost(struct coord *c, const struct member *m)
{
    const struct membership *ms = c->job;
    struct round *r = find_round(c->sim, ms->round_id);

    if (r != NULL && is_under_way(ms) && m->state == MEMBER_ACTIVE &&
        m->round == ms->round && !m->is_leaving)
        r->is_failed = true;
}

/* Those that were awaited and have not come are lost, unless they are here
 * and know nothing of the round. */
void check_gives_up(struct coord *c, uint64_t now_ns)
{
    const struct membership *ms = c->job;
    struct round *r = find_round(c->sim, ms->round_id);

    if (r != NULL && is_under_way(ms) && ms->nawaited > 0 &&
        now_ns >= ms->await_ns && ms->ncandidates < ms->nawaited)
        r->is_failed = true;
}

/* --- On the nodes ------------------------------------------------------- */

/* It starts its workers. */
struct round *check_round_begins(struct agent *a)
{
    struct sim *s = a->sim;
    const struct node_msg *p = &a->part.place;
    struct round *r = find_round(s, p->round_id);

    if (r == NULL) {
        check_fail(s, 0, "nobody has told of this round");
        abort();
    }
    sim_trace(s, "round-begins", NULL, a->number, p->round);
    check_same(s, r, p);
    if (a->node->nlive > 0)
        check_fail(s, 3, "node %d begins round %d with workers of another one",
            a->node->index, p->round);
    if (p->group_rank < 0 || p->group_rank >= r->place.group_world_size ||
        p->rank_base < 0 ||
        p->rank_base + a->node->nproc > r->place.world_size) {
        check_fail(s, 1, "node %d has group rank %d of %d, ranks from %d of %d",
            a->node->index, p->group_rank, r->place.group_world_size,
            p->rank_base, r->place.world_size);
        return r;
    }
    if (r->agents[p->group_rank] != NULL)
        check_fail(s, 1, "nodes %d and %d both have group rank %d of round %d",
            r->agents[p->group_rank]->node->index, a->node->index,
            p->group_rank, p->round);
    r->agents[p->group_rank] = a;
    a->knows_failure = false;
    r->nproc[p->group_rank] = a->node->nproc;
    for (int i = 0; i < a->node->nproc; i++) {
        if (r->taken[p->rank_base + i])
            check_fail(s, 1, "rank %d of round %d is there twice",
                p->rank_base + i, p->round);
        r->taken[p->rank_base + i] = true;
    }
    if (++r->nstarted == r->place.group_world_size && s->started_ns == 0) {
        s->started_ns = s->now_ns;
        s->started_msgs = s->nmsgs;
    }
    return r;
}

void check_told(struct agent *a, const struct node_msg *msg)
{
    struct sim *s = a->sim;
    struct round *r = find_round(s, a->part.place.round_id);
    bool is_of_round = r != NULL && msg->round == a->part.place.round &&
                       (a->part.state == PARTICIPANT_RUNNING ||
                           a->part.state == PARTICIPANT_ENDED);

    if (is_of_round && ((msg->kind == NODE_FAILED && !r->is_left) ||
                           msg->kind == NODE_VERDICT))
        a->knows_failure = r->is_told_failed = true;
    if (msg->kind == NODE_CLOSED && msg->result != 0) {
        s->failed_job = s->njobs;
        s->nfailed = 0; /* what follows is another job, whoever is in it */
        if (s->last_round != NULL)
            s->last_round->is_told_failed = false;
    } else if (msg->kind == NODE_CLOSED && s->success_ns == 0) {
        s->success_ns = s->now_ns;
    }
}

/* --- The membership ----------------------------------------------------- */

static void recount(struct sim *s, const struct membership *ms)
{
    int nmembers = 0, ncandidates = 0, nactive = 0, nawaited = 0;
    int nsucceeded = 0;

    for (const struct ring *r = ms->members.next; r != &ms->members;
         r = r->next) {
        const struct member *m = RING_OBJECT(r, struct member, link);

        nmembers++;
        ncandidates += m->state == MEMBER_WAITING && !m->is_leaving;
        if (m->state != MEMBER_ACTIVE && m->state != MEMBER_ENDED)
            continue;
        if (m->group_rank < 0 || m->group_rank >= ms->group_size ||
            ms->group[m->group_rank].m != m || m->round != ms->round)
            check_fail(
                s, 9, "%s is in the round and has no place there", m->host);
    }
    for (int i = 0; i < ms->group_size; i++) {
        const struct place *p = &ms->group[i];

        nawaited += p->is_awaited;
        nactive +=
            p->is_awaited || (p->m != NULL && p->m->state == MEMBER_ACTIVE);
        nsucceeded += p->m != NULL && p->m->state == MEMBER_ENDED &&
                      p->m->result == NODE_SUCCEEDED;
        if (p->is_awaited && p->m != NULL)
            check_fail(s, 9, "group rank %d is there, and awaited", i);
    }
    if (nmembers != ms->nmembers || ncandidates != ms->ncandidates)
        check_fail(s, 9, "%d members and %d candidates, counted as %d and %d",
            nmembers, ncandidates, ms->nmembers, ms->ncandidates);
    if (ms->phase != MEMBERSHIP_PREPARING && !is_under_way(ms))
        return;
    if (nactive != ms->nactive || nawaited != ms->nawaited)
        check_fail(s, 9, "%d active and %d awaited, counted as %d and %d",
            nactive, nawaited, ms->nactive, ms->nawaited);
    if (nsucceeded > ms->nsucceeded)
        check_fail(s, 9, "%d have succeeded, counted as %d", nsucceeded,
            ms->nsucceeded);
}

void check_membership(struct sim *s, const struct membership *ms)
{
    if (s->nmsgs > s->nallowed + MSGS_OF_JOIN * (uint64_t)s->nagents)
        check_fail(s, 8, "%" PRIu64 " messages, and %" PRIu64 " are expected",
            s->nmsgs, s->nallowed);
    if (s->nnodes <= RECOUNT_NODES_MAX)
        recount(s, ms);
}

/* --- The end ------------------------------------------------------------ */

static void check_agent_at_end(struct sim *s, const struct agent *a)
{
    static const char *const states[] = {"waiting", "running", "ended", "over"};
    /* What a coordinator knew that has crashed nobody knows. */
    bool was_there = s->success_job == s->njobs && s->success_ns != 0 &&
                     a->is_exited && a->finished_ns >= s->success_ns &&
                     a->life.stop_signal == 0;

    if (a->process.is_alive)
        check_fail(s, 4,
            "node %d is still there: %s, round %d, %d workers, link %d",
            a->node->index, states[a->part.state], a->part.place.round,
            a->node->nlive, (int)a->net.state);
    else if (was_there && !a->is_success && a->round == s->success_round &&
             a->round != NULL)
        check_fail(s, 4,
            "the job is a success, and node %d (agent %d) ends with a failure",
            a->node->index, a->number);
    else if (!s->is_hosted && /* else it may have nobody left to ask */
             a->is_exited && a->is_success && a->round == s->last_round &&
             a->round->job == s->failed_job)
        check_fail(s, 6,
            "the job has failed, and node %d (agent %d) ends with a success",
            a->node->index, a->number);
    else if (s->faults == 0 && !a->is_success)
        check_fail(s, 4, "nothing went wrong, but node %d ends with a failure",
            a->node->index);
}

static bool is_success_of_one(const struct sim *s)
{
    for (int i = 0; i < s->nagents; i++)
        if (s->by_number[i]->is_exited && s->by_number[i]->is_success)
            return true;
    return false;
}

void check_end(struct sim *s)
{
    for (const struct ring *r = s->agents.next; r != &s->agents; r = r->next)
        check_agent_at_end(s, RING_OBJECT(r, struct agent, link));
    if (s->is_patient && !is_success_of_one(s))
        check_fail(s, 4, "the job never ends with success");
    if (s->faults == 0 && s->nrounds != 1)
        check_fail(
            s, 4, "nothing went wrong, and there were %d rounds", s->nrounds);
    if (s->faults == 0 && s->started_msgs > 10 * (uint64_t)s->nnodes + 10)
        check_fail(s, 8, "%" PRIu64 " messages until %d nodes had started",
            s->started_msgs, s->nnodes);
}

void check_fini(struct sim *s)
{
    struct round *r, *next;

    HASH_ITER(hh, s->rounds, r, next)
    {
        HASH_DEL(s->rounds, r);
        free(r->agents);
        free(r->nzero);
        free(r->nproc);
        free(r->taken);
        free(r);
    }
}
