/* See membership.h. */
/* An element without memory is not in the table then. */
#define HASH_NONFATAL_OOM 1
#include "rendezvous/membership.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "rendezvous/base/clock.h"

#define MS CLOCK_NS_PER_MS

/* Rounds and restarts, as told by others: they are still counted up. */
#define COUNT_MAX (1 << 30)

/* Until memory is asked for again. */
#define RETRY_MS 1000

/* Of one node; so many of MEMBERSHIP_NODES_MAX can be counted. */
#define WORKERS_MAX 4096

static void gather(struct membership *ms, uint64_t now_ns);
static void arrive(struct membership *ms, struct member *m, uint64_t now_ns);
static void check_over(struct membership *ms, uint64_t now_ns);

void membership_init(struct membership *ms,
    const struct membership_settings *settings,
    const struct membership_callbacks *callbacks, void *arg, uint64_t now_ns)
{
    *ms = (struct membership){.settings = *settings,
        .callbacks = *callbacks,
        .arg = arg,
        .phase_ns = now_ns,
        .round = -1,
        .last_round = -1,
        .delay_ms = settings->restart_delay_ms,
        .check_ns = UINT64_MAX};
    ring_init(&ms->members);
}

/* --- Members ------------------------------------------------------------ */

static bool is_candidate(const struct member *m)
{
    return m->state == MEMBER_WAITING && !m->is_leaving;
}

static void set_state(
    struct membership *ms, struct member *m, enum member_state state)
{
    ms->ncandidates -= is_candidate(m);
    m->state = state;
    ms->ncandidates += is_candidate(m);
}

static void set_leaving(struct membership *ms, struct member *m)
{
    ms->ncandidates -= is_candidate(m);
    m->is_leaving = true;
}

static void forget_member(struct membership *ms, struct member *m)
{
    if (m->by_rank.tbl != NULL)
        HASH_DELETE(by_rank, ms->ranks, m);
    if (m->by_agent.tbl != NULL)
        HASH_DELETE(by_agent, ms->agents, m);
}

static int add_member(struct membership *ms, struct member *m)
{
    HASH_ADD(by_agent, ms->agents, agent_id, sizeof(m->agent_id), m);
    if (ms->settings.is_static && m->by_agent.tbl != NULL)
        HASH_ADD(by_rank, ms->ranks, node_rank, sizeof(m->node_rank), m);
    if (m->by_agent.tbl == NULL ||
        (ms->settings.is_static && m->by_rank.tbl == NULL)) {
        forget_member(ms, m);
        return -ENOMEM;
    }
    ring_add_last(&ms->members, &m->link);
    ms->nmembers++;
    ms->ncandidates += is_candidate(m);
    return 0;
}

static void remove_member(struct membership *ms, struct member *m)
{
    ms->ncandidates -= is_candidate(m);
    ms->nmembers--;
    ring_remove(&m->link);
    forget_member(ms, m);
    free(m);
}

static struct member *find_agent(struct membership *ms, uint64_t agent_id)
{
    struct member *m;

    HASH_FIND(by_agent, ms->agents, &agent_id, sizeof(agent_id), m);
    return m;
}

static struct member *find_node_rank(struct membership *ms, int32_t node_rank)
{
    struct member *m;

    HASH_FIND(by_rank, ms->ranks, &node_rank, sizeof(node_rank), m);
    return m;
}

void membership_fini(struct membership *ms)
{
    while (!ring_is_empty(&ms->members))
        remove_member(ms, RING_OBJECT(ms->members.next, struct member, link));
    free(ms->group);
    ms->group = NULL;
}

/* --- Messages ----------------------------------------------------------- */

static void send_to(
    struct membership *ms, struct member *m, const struct node_msg *msg)
{
    ms->callbacks.send(ms->arg, m, msg);
}

/* To the nodes of the round that are still there, but one (NULL: all). */
static void send_to_group(
    struct membership *ms, const struct node_msg *msg, const struct member *but)
{
    for (int i = 0; i < ms->group_size; i++)
        if (ms->group[i].m != NULL && ms->group[i].m != but)
            send_to(ms, ms->group[i].m, msg);
}

static void send_to_all(struct membership *ms, const struct node_msg *msg)
{
    for (struct ring *r = ms->members.next; r != &ms->members; r = r->next)
        send_to(ms, RING_OBJECT(r, struct member, link), msg);
}

static void enter(
    struct membership *ms, enum membership_phase phase, uint64_t now_ns)
{
    ms->phase = phase;
    ms->phase_ns = now_ns;
}

static struct node_msg closed(const struct membership *ms)
{
    struct node_msg msg = {.kind = NODE_CLOSED, .result = ms->result};

    memcpy(msg.text, ms->why, sizeof(msg.text));
    return msg;
}

__attribute__((format(printf, 4, 5))) static void close_job(
    struct membership *ms, int result, uint64_t now_ns, const char *fmt, ...)
{
    struct node_msg msg;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(ms->why, sizeof(ms->why), fmt, ap);
    va_end(ap);
    ms->result = result;
    msg = closed(ms);
    enter(ms, MEMBERSHIP_CLOSED, now_ns);
    send_to_all(ms, &msg);
}

void membership_close(struct membership *ms, const char *why, uint64_t now_ns)
{
    if (ms->phase != MEMBERSHIP_CLOSED)
        close_job(ms, 1, now_ns, "%s", why);
}

/* --- Order -------------------------------------------------------------- */

/* As people count: node2 is before node10. */
static int compare_natural(const char *a, const char *b)
{
    while (*a != '\0' && *b != '\0') {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            size_t na, nb;
            int c;

            a += strspn(a, "0");
            b += strspn(b, "0");
            na = strspn(a, "0123456789");
            nb = strspn(b, "0123456789");
            c = na != nb ? (na < nb ? -1 : 1) : memcmp(a, b, na);
            if (c != 0)
                return c;
            a += na;
            b += nb;
        } else if (*a != *b) {
            return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
        } else {
            a++;
            b++;
        }
    }
    return (*a != '\0') - (*b != '\0');
}

/* Node ranks first, then host names, then the order in which they came. */
static int compare_keys(const struct member *a, const struct member *b)
{
    int c = 0;

    if (a->node_rank != b->node_rank)
        return (unsigned)a->node_rank < (unsigned)b->node_rank ? -1 : 1;
    c = compare_natural(a->host, b->host);
    if (c == 0)
        c = strcmp(a->host, b->host);
    return c != 0 ? c : a->number < b->number ? -1 : 1;
}

/* Those of the last round before others, in the order that they had there. */
static int compare_members(const void *left, const void *right)
{
    const struct member *a = *(struct member *const *)left;
    const struct member *b = *(struct member *const *)right;

    if (a == b)
        return 0;
    if (a->round != b->round)
        return a->round > b->round ? -1 : 1;
    if (a->round >= 0)
        return a->group_rank < b->group_rank ? -1 : 1;
    return compare_keys(a, b);
}

/* --- Beginning a round -------------------------------------------------- */

static void park(struct membership *ms, struct member *m)
{
    struct node_msg msg = {.kind = NODE_PARKED};

    if (m->is_parked)
        return;
    m->is_parked = true;
    snprintf(msg.text, sizeof(msg.text), "%d nodes are there already",
        ms->group_size);
    send_to(ms, m, &msg);
}

/* Whoever was in the last round keeps the group rank that it had there, if
 * there is such a one; the others fill the holes in their order. */
static void place(struct membership *ms, struct member **sorted, int n)
{
    int hole = 0;

    for (int i = 0; i < n; i++) {
        struct member *m = sorted[i];
        bool is_kept = ms->round >= 0 && m->round == ms->round;

        if (ms->settings.is_static)
            ms->group[m->node_rank].m = m;
        else if (is_kept && m->group_rank < n)
            ms->group[m->group_rank].m = m;
        else
            continue;
        sorted[i] = NULL;
    }
    for (int i = 0; i < n; i++) {
        if (sorted[i] == NULL)
            continue;
        while (ms->group[hole].m != NULL)
            hole++;
        ms->group[hole].m = sorted[i];
    }
}

/* Group rank 0 is told from where workers may come to its store. */
static void tell_peers(struct membership *ms)
{
    struct node_msg msg = {.kind = NODE_PEERS, .round = ms->round};
    size_t len = 0;

    for (int i = 0; i < ms->group_size; i++) {
        const struct member *m = ms->group[i].m;
        const char *texts[] = {m->addr, m->addrs};

        for (size_t k = 0; k < 2; k++) {
            size_t more = strlen(texts[k]);

            if (len > 0 && len + 1 + more >= sizeof(msg.addrs)) {
                send_to(ms, ms->group[0].m, &msg);
                len = 0;
            }
            len += (size_t)snprintf(msg.addrs + len, sizeof(msg.addrs) - len,
                "%s%s", len > 0 ? " " : "", texts[k]);
        }
    }
    send_to(ms, ms->group[0].m, &msg);
}

/* Without memory nothing begins now; the next event tries again. */
static void begin(struct membership *ms, int ncandidates, uint64_t now_ns)
{
    int n = ncandidates < ms->settings.max_nodes ? ncandidates
                                                 : ms->settings.max_nodes;
    struct member **sorted = calloc((size_t)ncandidates, sizeof(*sorted));
    struct place *group = calloc((size_t)n, sizeof(*group));
    struct node_msg msg = {.kind = NODE_PREPARE};
    int i = 0;

    if (sorted == NULL || group == NULL) {
        free(sorted);
        free(group);
        ms->phase_ns = now_ns; /* for a later try */
        ms->last_call_ns = now_ns + RETRY_MS * MS;
        return;
    }
    for (struct ring *r = ms->members.next; r != &ms->members; r = r->next) {
        struct member *m = RING_OBJECT(r, struct member, link);

        if (is_candidate(m))
            sorted[i++] = m;
    }
    qsort(
        sorted, (size_t)ncandidates, sizeof(struct member *), compare_members);
    free(ms->group);
    ms->group = group;
    ms->group_size = n;
    for (i = n; i < ncandidates; i++)
        park(ms, sorted[i]);
    place(ms, sorted, n);
    free(sorted);
    ms->round = ++ms->last_round;
    ms->round_id = ms->settings.id + (uint64_t)ms->round;
    ms->round_restart_count = ms->restart_count;
    for (i = 0; i < n; i++) {
        set_state(ms, group[i].m, MEMBER_ACTIVE);
        group[i].m->group_rank = i;
        group[i].m->round = ms->round;
        group[i].m->is_parked = false;
    }
    ms->nactive = n;
    ms->nawaited = 0;
    ms->nsucceeded = 0;
    ms->last_call_ns = 0;
    ms->has_lost = ms->has_failure = ms->is_counted = false;
    ms->is_resumed = false;
    enter(ms, MEMBERSHIP_PREPARING, now_ns);
    tell_peers(ms);
    msg.round = ms->round;
    send_to(ms, group[0].m, &msg);
}

/* How many workers a role has, and how many of those are placed. */
struct role_count {
    const char *role;
    int n;
    int nplaced;
};

/* Jobs have few roles, mostly one. */
static struct role_count *find_role(
    struct role_count *roles, int *nroles, const char *role)
{
    for (int i = 0; i < *nroles; i++)
        if (strcmp(roles[i].role, role) == 0)
            return &roles[i];
    roles[*nroles] = (struct role_count){.role = role};
    return &roles[(*nroles)++];
}

/* The store is open: everybody starts. */
static int start(struct membership *ms, uint64_t now_ns)
{
    const struct membership_settings *set = &ms->settings;
    struct role_count *roles = calloc((size_t)ms->group_size, sizeof(*roles));
    struct node_msg msg = {.kind = NODE_ROUND,
        .round = ms->round,
        .round_id = ms->round_id,
        .restart_count = ms->restart_count,
        .group_world_size = ms->group_size,
        .master_port = set->master_port != 0 ? set->master_port
                                             : ms->group[0].m->store_port};
    int nroles = 0;

    if (roles == NULL)
        return -ENOMEM;
    snprintf(msg.master_addr, sizeof(msg.master_addr), "%s",
        set->is_static ? set->master_addr : ms->group[0].m->addr);
    for (int i = 0; i < ms->group_size; i++) {
        const struct member *m = ms->group[i].m;

        msg.world_size += m->nproc;
        find_role(roles, &nroles, m->role)->n += m->nproc;
    }
    ms->round_ns = now_ns;
    enter(ms, MEMBERSHIP_RUNNING, now_ns);
    for (int i = 0; i < ms->group_size; i++) {
        struct member *m = ms->group[i].m;
        struct role_count *role = find_role(roles, &nroles, m->role);

        msg.group_rank = i;
        msg.role_world_size = role->n;
        msg.role_rank_base = role->nplaced;
        memcpy(msg.addr, m->addr, sizeof(msg.addr));
        send_to(ms, m, &msg);
        msg.rank_base += m->nproc;
        role->nplaced += m->nproc;
    }
    free(roles);
    return 0;
}

/* --- Gathering ---------------------------------------------------------- */

static void call_in_vain(struct membership *ms, int n, uint64_t now_ns)
{
    close_job(ms, 1, now_ns, "joined %d of %d nodes within %d s", n,
        ms->settings.min_nodes, (int)(ms->settings.join_timeout_ms / 1000));
}

/* Begins a round if it is time. */
static void gather(struct membership *ms, uint64_t now_ns)
{
    const struct membership_settings *set = &ms->settings;
    bool is_late = now_ns >= ms->phase_ns + set->join_timeout_ms * MS;
    int n = ms->ncandidates;

    if (n < set->min_nodes) {
        ms->last_call_ns = 0;
        if (is_late)
            call_in_vain(ms, n, now_ns);
        return;
    }
    if (n < set->max_nodes && (ms->round < 0 || ms->has_lost) && !is_late) {
        if (ms->last_call_ns == 0)
            ms->last_call_ns = now_ns + set->last_call_ms * MS;
        if (now_ns < ms->last_call_ns)
            return;
    }
    begin(ms, n, now_ns);
}

static void enter_gathering(struct membership *ms, uint64_t now_ns)
{
    enter(ms, MEMBERSHIP_GATHERING, now_ns);
    ms->last_call_ns = 0;
    gather(ms, now_ns);
}

/* --- The end of a round ------------------------------------------------- */

/* Nobody has started a worker yet. */
static void abandon_round(struct membership *ms, uint64_t now_ns)
{
    for (int i = 0; i < ms->group_size; i++)
        if (ms->group[i].m != NULL)
            set_state(ms, ms->group[i].m, MEMBER_WAITING);
    enter_gathering(ms, now_ns);
}

/* The others end their workers; no failure. */
__attribute__((format(printf, 4, 5))) static void stop_round(
    struct membership *ms, const struct member *but, uint64_t now_ns,
    const char *fmt, ...)
{
    struct node_msg msg = {.kind = NODE_STOP, .round = ms->round};
    va_list ap;

    if (ms->phase != MEMBERSHIP_RUNNING)
        return;
    va_start(ap, fmt);
    vsnprintf(msg.text, sizeof(msg.text), fmt, ap);
    va_end(ap);
    enter(ms, MEMBERSHIP_STOPPING, now_ns);
    send_to_group(ms, &msg, but);
}

static bool is_signal(const struct node_msg *f)
{
    return f->rank < 0 || (f->error == 0 && WIFSIGNALED(f->wait_status));
}

/* Whether the failure is the cause of that one, which is known already. */
static bool is_cause_of(const struct node_msg *f, uint64_t at_ns,
    const struct node_msg *known, uint64_t known_ns)
{
    uint64_t settle_ns = MEMBERSHIP_SETTLE_MS * MS;

    if (f->is_collateral != known->is_collateral)
        return known->is_collateral;
    if (is_signal(f) != is_signal(known))
        return is_signal(f) ? at_ns <= known_ns + settle_ns
                            : at_ns + settle_ns < known_ns;
    return at_ns < known_ns;
}

/* The first one ends the round; the others may still turn out to be its
 * cause. */
static void note_failure(struct membership *ms, const struct member *from,
    const struct node_msg *f, uint64_t now_ns)
{
    uint64_t at_ns = f->ago_ns < now_ns ? now_ns - f->ago_ns : 0;

    /* What fails after the round was stopped fails on account of that. */
    if (ms->phase == MEMBERSHIP_STOPPING && !ms->has_failure && f->rank >= 0 &&
        (f->is_collateral || at_ns >= ms->phase_ns))
        return;
    if (!ms->has_failure) {
        ms->heard_ns = now_ns;
    } else if (now_ns > ms->heard_ns + MEMBERSHIP_SETTLE_MS * MS ||
               !is_cause_of(f, at_ns, &ms->failure, ms->failure_ns)) {
        return;
    }
    ms->has_failure = true;
    ms->failure = *f;
    ms->failure_ns = at_ns;
    if (ms->phase != MEMBERSHIP_RUNNING)
        return;
    enter(ms, MEMBERSHIP_STOPPING, now_ns);
    send_to_group(ms, f, from);
}

/* Those that have gone since, too. */
static bool is_everybody_done(const struct membership *ms)
{
    return ms->nsucceeded == ms->group_size;
}

static bool is_in_group(const struct membership *ms, const struct member *m)
{
    return ms->round >= 0 && m->round == ms->round && m->group_rank >= 0 &&
           m->group_rank < ms->group_size && ms->group[m->group_rank].m == m;
}

/* What becomes of the job after a failure. */
static enum node_next decide(struct membership *ms, uint64_t now_ns)
{
    const struct membership_settings *set = &ms->settings;
    uint64_t doubled = 2 * ms->delay_ms;

    if (ms->is_counted)
        return NODE_NEXT_ROUND;
    if (ms->failure.error != 0)
        return NODE_NEXT_END; /* what cannot be executed now cannot be later */
    /* When a resumed round began nobody knows. */
    ms->nshort =
        !ms->is_resumed && now_ns - ms->round_ns < set->crash_loop_ms * MS
            ? ms->nshort + 1
            : 0;
    if (ms->restart_count >= set->max_restarts)
        return NODE_NEXT_EXHAUSTED;
    if (set->crash_loop_count > 0 && ms->nshort >= set->crash_loop_count)
        return NODE_NEXT_CRASH_LOOP;
    ms->restart_count++;
    ms->delay_until_ns = now_ns + ms->delay_ms * MS;
    ms->delay_ms = doubled < set->restart_delay_max_ms
                       ? doubled
                       : set->restart_delay_max_ms;
    return NODE_NEXT_ROUND;
}

static void tell_verdict(struct membership *ms, uint64_t now_ns)
{
    struct node_msg msg = ms->failure;
    enum node_next next = decide(ms, now_ns);

    msg.kind = NODE_VERDICT;
    msg.round = ms->round;
    msg.restart_count = ms->restart_count;
    msg.next = next;
    if (next == NODE_NEXT_ROUND && ms->delay_until_ns > now_ns)
        msg.delay_ms = (ms->delay_until_ns - now_ns) / MS;
    send_to_group(ms, &msg, NULL);
    for (struct ring *r = ms->members.next; r != &ms->members; r = r->next) {
        struct member *m = RING_OBJECT(r, struct member, link);

        if (m->state == MEMBER_WAITING && !is_in_group(ms, m))
            send_to(ms, m, &msg);
    }
    if (next == NODE_NEXT_ROUND)
        enter(ms, MEMBERSHIP_DELAY, now_ns);
    else if (ms->failure.rank < 0)
        close_job(ms, 1, now_ns, "node %s was lost: %s", ms->failure.host,
            ms->failure.text);
    else
        close_job(ms, 1, now_ns, "rank %d on %s failed: %s", ms->failure.rank,
            ms->failure.host, ms->failure.text);
}

/* Nothing is left of the round anywhere. */
static void end_round(struct membership *ms, uint64_t now_ns)
{
    for (int i = 0; i < ms->group_size; i++)
        if (ms->group[i].m != NULL)
            set_state(ms, ms->group[i].m, MEMBER_WAITING);
    if (ms->has_failure) {
        tell_verdict(ms, now_ns);
        if (ms->phase == MEMBERSHIP_DELAY && now_ns >= ms->delay_until_ns)
            enter_gathering(ms, now_ns);
    } else if (is_everybody_done(ms)) {
        close_job(ms, 0, now_ns, "success");
    } else {
        enter_gathering(ms, now_ns);
    }
}

/* Whether the round has ended, by success or after it was stopped; the first
 * cause is waited for. */
static void check_over(struct membership *ms, uint64_t now_ns)
{
    if ((ms->phase != MEMBERSHIP_RUNNING && ms->phase != MEMBERSHIP_STOPPING) ||
        ms->nactive > 0)
        return;
    if (ms->has_failure && now_ns < ms->heard_ns + MEMBERSHIP_SETTLE_MS * MS)
        return; /* membership_tick() */
    end_round(ms, now_ns);
}

/* --- Joining ------------------------------------------------------------ */

static int check_static(
    struct membership *ms, const struct node_msg *join, struct err *e)
{
    const struct member *other;

    if (join->node_rank < 0 || join->node_rank >= ms->settings.max_nodes)
        return err_set(e, -EINVAL, "node rank %d: expected 0 to %d",
            join->node_rank, ms->settings.max_nodes - 1);
    if (join->node_rank == 0 && ms->settings.host_agent_id != 0 &&
        ms->settings.host_agent_id != join->agent_id)
        return err_set(e, -EEXIST,
            "node rank 0 is already taken by host %s, pid %d, which hosts the "
            "coordinator",
            ms->settings.host, ms->settings.host_pid);
    other = find_node_rank(ms, join->node_rank);
    if (other == NULL || other->agent_id == join->agent_id)
        return 0;
    return err_set(e, -EEXIST,
        "node rank %d is already taken by host %s, pid %d", join->node_rank,
        other->host, other->pid);
}

static int check_join(
    struct membership *ms, const struct node_msg *join, struct err *e)
{
    const struct membership_settings *set = &ms->settings;

    if (join->version != NODE_PROTOCOL_VERSION)
        return err_set(e, -EPROTONOSUPPORT,
            "it speaks version %d of the agents' protocol, and the "
            "coordinator version %d: use the same crun on every node",
            join->version, NODE_PROTOCOL_VERSION);
    if (strcmp(join->run_id, set->run_id) != 0)
        return err_set(e, -EINVAL,
            "its run id (--rdzv_id) is '%.100s', and the job's is '%.100s'",
            join->run_id, set->run_id);
    if (ms->phase == MEMBERSHIP_CLOSED && join->part == NODE_PART_NONE)
        return err_set(e, -ESHUTDOWN, "the job is over: %.300s", ms->why);
    if ((join->is_static != 0) != set->is_static)
        return err_set(e, -EINVAL,
            "its rendezvous backend is %s, and the coordinator's is %s",
            join->is_static ? "static" : "c10d",
            set->is_static ? "static" : "c10d");
    if (join->min_nodes != set->min_nodes || join->max_nodes != set->max_nodes)
        return err_set(e, -EINVAL,
            "--nnodes is %d:%d there and %d:%d at the coordinator; it has to "
            "be the same on every node",
            join->min_nodes, join->max_nodes, set->min_nodes, set->max_nodes);
    if ((join->has_agent_store != 0) != set->has_agent_store)
        return err_set(e, -EINVAL,
            "--no_agent_store (or TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1) is "
            "given %s; it has to be the same on every node",
            set->has_agent_store ? "there and not at the coordinator"
                                 : "at the coordinator and not there");
    if (join->max_restarts != set->max_restarts)
        return err_set(e, -EINVAL,
            "--max_restarts is %d there and %d at the coordinator; it has to "
            "be the same on every node",
            join->max_restarts, set->max_restarts);
    if (join->nproc < 1 || join->nproc > WORKERS_MAX)
        return err_set(e, -EINVAL, "it has %d workers", join->nproc);
    if (join->store_port < 0 || join->store_port > 65535)
        return err_set(e, -EINVAL, "its store has port %d", join->store_port);
    if (join->part < NODE_PART_NONE || join->part > NODE_PART_DONE)
        return err_set(e, -EINVAL,
            "its part in the last round is %d: expected %d to %d", join->part,
            NODE_PART_NONE, NODE_PART_DONE);
    if (join->restart_count < 0 || join->restart_count > COUNT_MAX ||
        (join->part != NODE_PART_NONE &&
            (join->round < 0 || join->round > COUNT_MAX ||
                join->round_restart_count < 0 ||
                join->round_restart_count > join->restart_count)))
        return err_set(e, -EINVAL, "it was in round %d, with restart count %d",
            join->round, join->restart_count);
    return set->is_static ? check_static(ms, join, e) : 0;
}

/* A node that has come while a round is running: there is room for it, or it
 * waits as a spare. Nobody is disturbed who is nearly done; and those that are
 * awaited come first. */
static void come_late(struct membership *ms, struct member *m, uint64_t now_ns)
{
    if (ms->phase != MEMBERSHIP_RUNNING || ms->nawaited > 0 || m->is_leaving)
        return;
    if (ms->group_size < ms->settings.max_nodes && ms->nsucceeded == 0)
        stop_round(ms, NULL, now_ns, "node %s has joined", m->host);
    else
        park(ms, m);
}

/* A node that has no workers: it waits for a round. */
static void arrive(struct membership *ms, struct member *m, uint64_t now_ns)
{
    set_state(ms, m, MEMBER_WAITING);
    if (ms->phase == MEMBERSHIP_GATHERING)
        gather(ms, now_ns);
    else
        come_late(ms, m, now_ns);
}

/* --- Coming back -------------------------------------------------------- */

/* What a node knows of the job's restarts, also one that is in no round. If it
 * is more than there were when the round began, the coordinator before this one
 * has counted the round's failure and told some of it. */
static void learn_count(struct membership *ms, int restart_count)
{
    if (restart_count > ms->restart_count)
        ms->restart_count = restart_count;
    if (ms->is_resumed && ms->restart_count > ms->round_restart_count)
        ms->is_counted = true;
}

static uint64_t await_until_ns(const struct membership *ms, uint64_t now_ns)
{
    return now_ns + (node_silence_ms(ms->settings.keep_alive_ms,
                         ms->settings.keep_alive_attempts) +
                        MEMBERSHIP_RETURN_MS) *
                        MS;
}

/* The first node that comes to a coordinator that knows nothing shows what
 * there was. */
static int resume(
    struct membership *ms, const struct node_msg *join, uint64_t now_ns)
{
    const struct membership_settings *set = &ms->settings;
    struct place *group;

    if (join->group_world_size < 1 || join->group_world_size > set->max_nodes ||
        join->group_rank < 0 || join->group_rank >= join->group_world_size)
        return -EINVAL;
    group = calloc((size_t)join->group_world_size, sizeof(*group));
    if (group == NULL)
        return -ENOMEM;
    for (int i = 0; i < join->group_world_size; i++)
        group[i].is_awaited = true;
    ms->group = group;
    ms->group_size = ms->nactive = ms->nawaited = join->group_world_size;
    ms->round = join->round;
    ms->round_id = join->round_id;
    ms->round_restart_count = join->round_restart_count;
    ms->round_ns = now_ns;
    ms->is_resumed = true;
    ms->last_call_ns = 0;
    learn_count(ms, join->restart_count);
    ms->await_ns = await_until_ns(ms, now_ns);
    enter(ms, MEMBERSHIP_RUNNING, now_ns);
    return 0;
}

/* Those who could not be seen to when they came: all are back now, or the
 * store is open. */
static void admit_late(struct membership *ms, uint64_t now_ns)
{
    for (struct ring *r = ms->members.next;
         r != &ms->members && ms->phase == MEMBERSHIP_RUNNING; r = r->next) {
        struct member *m = RING_OBJECT(r, struct member, link);

        if (is_candidate(m))
            come_late(ms, m, now_ns);
    }
}

/* As if it had never been away. A node that is through with the round knows
 * that all others are as well. */
static void take_place(struct membership *ms, struct member *m,
    const struct node_msg *join, uint64_t now_ns)
{
    struct node_msg stop = {.kind = NODE_STOP,
        .round = ms->round,
        .text = "the round was over before this node was back"};

    ms->group[join->group_rank] = (struct place){.m = m};
    ms->nawaited--;
    m->round = ms->round;
    m->group_rank = join->group_rank;
    set_state(ms, m, MEMBER_ACTIVE);
    m->result = NODE_STOPPED;
    if (join->part == NODE_PART_DONE) {
        set_state(ms, m, MEMBER_ENDED);
        ms->nactive--;
        stop_round(ms, m, now_ns, "node %s knows that it is over", m->host);
    } else if (ms->phase == MEMBERSHIP_STOPPING) {
        send_to(ms, m, ms->has_failure ? &ms->failure : &stop);
    }
    if (ms->nawaited == 0)
        admit_late(ms, now_ns);
    check_over(ms, now_ns);
}

/* The first one to come showed a round that others knew to be over: they have
 * been in a later one. Who is of the old one was taken for lost. */
static void forget_round(struct membership *ms, uint64_t now_ns)
{
    struct node_msg stop = {.kind = NODE_STOP,
        .round = ms->round,
        .text = "this node was taken for lost"};

    for (int i = 0; i < ms->group_size; i++) {
        struct member *m = ms->group[i].m;

        if (m == NULL)
            continue;
        if (m->state == MEMBER_ACTIVE) {
            set_state(ms, m, MEMBER_STALE);
            send_to(ms, m, &stop);
        } else {
            set_state(ms, m, MEMBER_WAITING);
        }
    }
    free(ms->group);
    ms->group = NULL;
    ms->group_size = ms->nactive = ms->nawaited = ms->nsucceeded = 0;
    ms->has_failure = ms->has_lost = ms->is_counted = false;
    ms->is_resumed = false;
    ms->round = -1;
    enter(ms, MEMBERSHIP_GATHERING, now_ns);
}

/* A node that has been in a round before. */
static void come_back(struct membership *ms, struct member *m,
    const struct node_msg *join, uint64_t now_ns)
{
    struct node_msg stop = {.kind = NODE_STOP,
        .round = join->round,
        .text = "this node was taken for lost"};

    if (join->round > ms->last_round)
        ms->last_round = join->round;
    if (ms->is_resumed && ms->nawaited > 0 && join->round > ms->round)
        forget_round(ms, now_ns);
    /* One that is over, and was followed by more than one restart, was not the
     * last: others were in those after it. */
    if (ms->round < 0 && ms->phase == MEMBERSHIP_GATHERING &&
        (join->part == NODE_PART_OPEN ||
            (join->part == NODE_PART_DONE &&
                ms->restart_count <= join->round_restart_count + 1)))
        resume(ms, join, now_ns); /* else it is as any other */
    if (ms->nawaited > 0 && join->round_id == ms->round_id &&
        join->group_rank >= 0 && join->group_rank < ms->group_size &&
        ms->group[join->group_rank].is_awaited) {
        take_place(ms, m, join, now_ns);
    } else if (join->part == NODE_PART_OPEN) {
        send_to(ms, m, &stop);
    } else {
        arrive(ms, m, now_ns);
    }
}

/* Those that have not come back are lost, unless they are here and just did
 * not hear that the round had begun. */
static void give_up_awaited(struct membership *ms, uint64_t now_ns)
{
    struct node_msg lost = {.kind = NODE_FAILED,
        .round = ms->round,
        .rank = -1,
        .local_rank = -1,
        .text = "it has not come back to the coordinator"};
    int n = ms->nawaited;

    for (int i = 0; i < ms->group_size; i++) {
        if (ms->group[i].is_awaited)
            snprintf(lost.host, sizeof(lost.host), "with group rank %d", i);
        ms->group[i].is_awaited = false;
    }
    ms->nactive -= n;
    ms->nawaited = 0;
    ms->has_lost = true;
    if (ms->ncandidates >= n)
        stop_round(
            ms, NULL, now_ns, "nodes have not come back to the coordinator");
    else
        note_failure(ms, NULL, &lost, now_ns);
}

/* Its place is kept; it will say again what it has said. Frees m. */
static void await_again(struct membership *ms, struct member *m)
{
    ms->group[m->group_rank] = (struct place){.is_awaited = true};
    ms->nawaited++;
    if (m->state == MEMBER_ENDED) {
        ms->nactive++;
        ms->nsucceeded -= m->result == NODE_SUCCEEDED;
    }
    remove_member(ms, m);
}

/* The same agent comes over another connection: the old one is dead. If
 * nothing has become of its round, it is awaited there for a moment. */
static void replace(struct membership *ms, struct member *old,
    const struct node_msg *join, uint64_t now_ns)
{
    bool is_same = join->part == NODE_PART_OPEN &&
                   join->round_id == ms->round_id &&
                   join->group_rank == old->group_rank &&
                   (old->state == MEMBER_ACTIVE || old->state == MEMBER_ENDED);
    bool had_lost = ms->has_lost;

    ms->callbacks.drop(ms->arg, old, "its agent has connected anew");
    if (!is_same) {
        membership_lost(ms, old, "its agent has connected anew", now_ns);
        ms->has_lost = ms->has_lost && had_lost; /* it is here */
        return;
    }
    await_again(ms, old);
}

/* The join time-out is the first node's, who may have waited before. */
static void count_wait(
    struct membership *ms, const struct node_msg *join, uint64_t now_ns)
{
    uint64_t since_ns =
        join->waited_ms < now_ns / MS ? now_ns - join->waited_ms * MS : 0;

    if (ms->nmembers == 0)
        ms->phase_ns = now_ns;
    if (ms->round < 0 && since_ns < ms->phase_ns)
        ms->phase_ns = since_ns;
}

struct member *membership_join(struct membership *ms, void *owner,
    const struct node_msg *join, const char *addr, uint64_t now_ns,
    struct err *e)
{
    struct node_msg welcome = {.kind = NODE_WELCOME,
        .keep_alive_ms = (int32_t)ms->settings.keep_alive_ms,
        .keep_alive_attempts = ms->settings.keep_alive_attempts,
        .is_lasting = ms->settings.is_lasting,
        .restart_count = ms->restart_count};
    struct node_msg over;
    struct member *old, *m;

    if (check_join(ms, join, e) < 0)
        return NULL;
    m = malloc(sizeof(*m));
    if (m == NULL) {
        err_set(e, -ENOMEM, "the coordinator is out of memory");
        return NULL;
    }
    /* Until it is known better, one with workers is no candidate. */
    *m = (struct member){.owner = owner,
        .state = join->part == NODE_PART_OPEN ? MEMBER_STALE : MEMBER_WAITING,
        .number = ms->next_number++,
        .seen_ns = now_ns,
        .group_rank = -1,
        .round = -1,
        .node_rank = join->node_rank,
        .nproc = join->nproc,
        .store_port = join->store_port,
        .pid = join->pid,
        .agent_id = join->agent_id};
    memcpy(m->host, join->host, sizeof(m->host));
    memcpy(m->addrs, join->addrs, sizeof(m->addrs));
    memcpy(m->role, join->role, sizeof(m->role));
    snprintf(m->addr, sizeof(m->addr), "%s", addr);
    if (ms->check_ns == UINT64_MAX)
        ms->check_ns = now_ns + ms->settings.keep_alive_ms * MS;
    old = find_agent(ms, join->agent_id);
    if (old != NULL)
        replace(ms, old, join, now_ns);
    if (ms->phase == MEMBERSHIP_GATHERING)
        count_wait(ms, join, now_ns);
    if (add_member(ms, m) < 0) {
        free(m);
        err_set(e, -ENOMEM, "the coordinator is out of memory");
        return NULL;
    }
    learn_count(ms, join->restart_count);
    send_to(ms, m, &welcome);
    if (ms->phase == MEMBERSHIP_CLOSED) { /* it was away then */
        over = closed(ms);
        send_to(ms, m, &over);
        return m;
    }
    if (join->part != NODE_PART_NONE)
        come_back(ms, m, join, now_ns);
    else
        arrive(ms, m, now_ns);
    return m;
}

/* --- What nodes say ----------------------------------------------------- */

static bool is_of_round(const struct membership *ms, const struct member *m,
    const struct node_msg *msg)
{
    return msg->round == ms->round && m->round == ms->round &&
           m->state == MEMBER_ACTIVE;
}

/* Who has come meanwhile is let in now, while nobody has started a worker. */
static void on_ready(struct membership *ms, uint64_t now_ns)
{
    bool is_too_small =
        ms->ncandidates > 0 && ms->group_size < ms->settings.max_nodes;

    if (is_too_small || start(ms, now_ns) < 0)
        abandon_round(ms, now_ns);
    else
        admit_late(ms, now_ns);
}

static void on_ended(struct membership *ms, struct member *m,
    const struct node_msg *msg, uint64_t now_ns)
{
    set_state(ms, m, MEMBER_ENDED);
    m->result = msg->result == NODE_SUCCEEDED ? NODE_SUCCEEDED
                : msg->result == NODE_STOPPED ? NODE_STOPPED
                                              : NODE_HAS_FAILED;
    ms->nactive--;
    ms->nsucceeded += m->result == NODE_SUCCEEDED;
    /* Of why it has, another coordinator was told. */
    if (m->result != NODE_SUCCEEDED)
        stop_round(ms, m, now_ns, "it is over on node %s", m->host);
    check_over(ms, now_ns);
}

static void on_leave(struct membership *ms, struct member *m,
    const struct node_msg *msg, uint64_t now_ns)
{
    bool is_busy = m->state == MEMBER_ACTIVE ||
                   (m->state == MEMBER_ENDED && m->result != NODE_SUCCEEDED);

    /* What has just failed elsewhere failed because its workers were ended. */
    if (ms->phase == MEMBERSHIP_STOPPING && m->state == MEMBER_ACTIVE &&
        !is_signal(&ms->failure) &&
        now_ns <= ms->heard_ns + MEMBERSHIP_SETTLE_MS * MS)
        ms->has_failure = false;
    set_leaving(ms, m);
    if (ms->phase == MEMBERSHIP_CLOSED)
        return;
    if (ms->settings.host_agent_id == m->agent_id) {
        close_job(ms, 1, now_ns,
            "node %s, which hosts the coordinator, was stopped: %.200s",
            m->host, msg->text);
        return;
    }
    if (ms->settings.is_static && is_busy && !ms->has_failure) {
        close_job(ms, 1, now_ns,
            "node %s was stopped (%.200s), and no node of a static job can be "
            "spared",
            m->host, msg->text);
        return;
    }
    if (ms->phase == MEMBERSHIP_PREPARING && m->state == MEMBER_ACTIVE)
        abandon_round(ms, now_ns);
    else if (is_busy)
        stop_round(ms, m, now_ns, "node %s leaves: %.200s", m->host, msg->text);
    else if (ms->phase == MEMBERSHIP_GATHERING)
        gather(ms, now_ns);
}

int membership_message(struct membership *ms, struct member *m,
    const struct node_msg *msg, uint64_t now_ns)
{
    struct node_msg pong = {.kind = NODE_PONG};

    m->seen_ns = now_ns;
    switch (msg->kind) {
    case NODE_PING:
        send_to(ms, m, &pong);
        return 0;
    case NODE_READY:
        if (ms->phase == MEMBERSHIP_PREPARING && is_of_round(ms, m, msg) &&
            m->group_rank == 0)
            on_ready(ms, now_ns);
        return 0;
    case NODE_FAILED:
        if (is_of_round(ms, m, msg) && (ms->phase == MEMBERSHIP_RUNNING ||
                                           ms->phase == MEMBERSHIP_STOPPING))
            note_failure(ms, m, msg, now_ns);
        return 0;
    case NODE_ENDED:
        if (m->state == MEMBER_STALE)
            arrive(ms, m, now_ns);
        else if (is_of_round(ms, m, msg) &&
                 (ms->phase == MEMBERSHIP_RUNNING ||
                     ms->phase == MEMBERSHIP_STOPPING))
            on_ended(ms, m, msg, now_ns);
        return 0;
    case NODE_LEAVE:
        on_leave(ms, m, msg, now_ns);
        return 0;
    default:
        return -EPROTO;
    }
}

/* A node of the round is gone; true if it ran workers that nobody told of. */
static bool leave_group(struct membership *ms, struct member *m)
{
    if (!is_in_group(ms, m))
        return false;
    ms->group[m->group_rank].m = NULL;
    if (m->state != MEMBER_ACTIVE)
        return false;
    ms->nactive--;
    return true;
}

void membership_lost(
    struct membership *ms, struct member *m, const char *why, uint64_t now_ns)
{
    struct node_msg lost = {.kind = NODE_FAILED,
        .round = ms->round,
        .rank = -1,
        .local_rank = -1,
        .pid = m->pid};
    bool was_leaving = m->is_leaving;
    bool is_missed = is_in_group(ms, m) && !was_leaving;
    bool was_active = leave_group(ms, m);

    memcpy(lost.host, m->host, sizeof(lost.host));
    snprintf(lost.text, sizeof(lost.text), "%s", why);
    remove_member(ms, m);
    ms->has_lost = ms->has_lost || is_missed;
    switch (ms->phase) {
    case MEMBERSHIP_GATHERING:
        gather(ms, now_ns);
        break;
    case MEMBERSHIP_PREPARING:
        if (was_active)
            abandon_round(ms, now_ns);
        break;
    case MEMBERSHIP_RUNNING:
    case MEMBERSHIP_STOPPING:
        if (was_active && !was_leaving)
            note_failure(ms, NULL, &lost, now_ns);
        check_over(ms, now_ns);
        break;
    case MEMBERSHIP_DELAY:
    case MEMBERSHIP_CLOSED:
        break;
    }
}

void membership_away(struct membership *ms, struct member *m, uint64_t now_ns)
{
    if (is_in_group(ms, m) &&
        (m->state == MEMBER_ACTIVE || m->state == MEMBER_ENDED) &&
        (ms->phase == MEMBERSHIP_RUNNING || ms->phase == MEMBERSHIP_STOPPING)) {
        ms->await_ns = await_until_ns(ms, now_ns);
        await_again(ms, m);
    } else {
        membership_lost(ms, m, "it has taken the coordinator for dead", now_ns);
    }
}

/* --- Time --------------------------------------------------------------- */

/* The look comes late: it was this side that stood still, and what others have
 * said is still to be read. */
static void forgive_silence(struct membership *ms, uint64_t now_ns)
{
    for (struct ring *r = ms->members.next; r != &ms->members; r = r->next)
        RING_OBJECT(r, struct member, link)->seen_ns = now_ns;
}

static void drop_silent(struct membership *ms, uint64_t now_ns)
{
    uint64_t limit_ns = node_silence_ms(ms->settings.keep_alive_ms,
                            ms->settings.keep_alive_attempts) *
                        MS;
    struct ring *next;
    char why[128];

    if (now_ns >= ms->check_ns + ms->settings.keep_alive_ms * MS)
        forgive_silence(ms, now_ns);
    snprintf(why, sizeof(why), "nothing was heard of it for %.3f s",
        (double)limit_ns / (double)CLOCK_NS_PER_S);
    for (struct ring *r = ms->members.next; r != &ms->members; r = next) {
        struct member *m = RING_OBJECT(r, struct member, link);

        next = r->next;
        if (now_ns < m->seen_ns + limit_ns)
            continue;
        ms->callbacks.drop(ms->arg, m, why);
        membership_lost(ms, m, why, now_ns);
    }
    ms->check_ns = ring_is_empty(&ms->members)
                       ? UINT64_MAX
                       : now_ns + ms->settings.keep_alive_ms * MS;
}

/* Alive, but of no use. */
static void drop_preparer(struct membership *ms, uint64_t now_ns)
{
    struct member *m = ms->group[0].m;

    if (now_ns < ms->phase_ns + MEMBERSHIP_PREPARE_MS * MS)
        return;
    ms->callbacks.drop(ms->arg, m, "it has not opened the store");
    membership_lost(ms, m, "it has not opened the store", now_ns);
}

void membership_tick(struct membership *ms, uint64_t now_ns)
{
    if (now_ns >= ms->check_ns)
        drop_silent(ms, now_ns);
    switch (ms->phase) {
    case MEMBERSHIP_GATHERING:
        gather(ms, now_ns);
        break;
    case MEMBERSHIP_RUNNING:
    case MEMBERSHIP_STOPPING:
        if (ms->nawaited > 0 && now_ns >= ms->await_ns)
            give_up_awaited(ms, now_ns);
        check_over(ms, now_ns);
        break;
    case MEMBERSHIP_DELAY:
        if (now_ns >= ms->delay_until_ns)
            enter_gathering(ms, now_ns);
        break;
    case MEMBERSHIP_PREPARING:
        drop_preparer(ms, now_ns);
        break;
    case MEMBERSHIP_CLOSED:
        break;
    }
}

uint64_t membership_due_ns(const struct membership *ms)
{
    uint64_t due = UINT64_MAX;

    switch (ms->phase) {
    case MEMBERSHIP_GATHERING:
        due = ms->phase_ns + ms->settings.join_timeout_ms * MS;
        if (ms->nmembers == 0)
            due = UINT64_MAX;
        if (ms->last_call_ns != 0 && ms->last_call_ns < due)
            due = ms->last_call_ns;
        break;
    case MEMBERSHIP_RUNNING:
    case MEMBERSHIP_STOPPING:
        if (ms->has_failure && ms->nactive == 0)
            due = ms->heard_ns + MEMBERSHIP_SETTLE_MS * MS;
        if (ms->nawaited > 0)
            due = ms->await_ns;
        break;
    case MEMBERSHIP_DELAY:
        due = ms->delay_until_ns;
        break;
    case MEMBERSHIP_PREPARING:
        due = ms->phase_ns + MEMBERSHIP_PREPARE_MS * MS;
        break;
    case MEMBERSHIP_CLOSED:
        break;
    }
    return ms->check_ns < due ? ms->check_ns : due;
}
