/* Who is in the job, event by event, on a clock of the test's own. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/membership.h"
#include "tests/unit/unit.h"

#define MS CLOCK_NS_PER_MS
#define NODES 8
#define EXIT_STATUS(code) ((code) << 8)

/* What each node was told last, and how often of what. */
struct node {
    struct member *m;
    struct node_msg last;
    int told[NODE_MSG_COUNT];
    int ntold;
    bool is_dropped;
    char peers[8192]; /* all pieces of NODE_PEERS, with blanks around each */
};

static struct membership ms;
static struct membership_settings settings;
static struct node nodes[NODES];
static uint64_t now;
static struct err refusal;

static void send_cb(void *arg, struct member *m, const struct node_msg *msg)
{
    struct node *n = m->owner;

    (void)arg;
    n->last = *msg;
    n->told[msg->kind]++;
    n->ntold++;
    if (msg->kind == NODE_PEERS)
        snprintf(n->peers + strlen(n->peers),
            sizeof(n->peers) - strlen(n->peers), " %s ", msg->addrs);
}

static void drop_cb(void *arg, struct member *m, const char *why)
{
    struct node *n = m->owner;

    (void)arg;
    (void)why;
    n->is_dropped = true;
    n->m = NULL;
}

static void begin(int min, int max)
{
    static const struct membership_callbacks callbacks = {send_cb, drop_cb};

    settings.min_nodes = min;
    settings.max_nodes = max;
    membership_init(&ms, &settings, &callbacks, NULL, now);
}

static void set_up(void)
{
    memset(nodes, 0, sizeof(nodes));
    now = 1000 * CLOCK_NS_PER_S;
    settings = (struct membership_settings){.run_id = "job",
        .max_restarts = 1,
        .join_timeout_ms = 60000,
        .last_call_ms = 5000,
        .keep_alive_ms = 1000,
        .keep_alive_attempts = 5};
}

static void tear_down(void)
{
    membership_fini(&ms);
}

static struct node_msg join_of(int i, const char *host)
{
    struct node_msg join = {.kind = NODE_JOIN,
        .version = NODE_PROTOCOL_VERSION,
        .node_rank = -1,
        .nproc = 2,
        .min_nodes = settings.min_nodes,
        .max_nodes = settings.max_nodes,
        .max_restarts = settings.max_restarts,
        .is_static = settings.is_static,
        .store_port = 4000 + i,
        .pid = 100 + i,
        .agent_id = 1000 + (uint64_t)i,
        .run_id = "job",
        .role = "default"};

    snprintf(join.host, sizeof(join.host), "%s", host);
    return join;
}

/* What is counted up and down, counted anew after every event. */
static void recount(void)
{
    int nmembers = 0, ncandidates = 0, nactive = 0, nawaited = 0;

    for (struct ring *r = ms.members.next; r != &ms.members; r = r->next) {
        const struct member *m = RING_OBJECT(r, struct member, link);

        nmembers++;
        ncandidates += m->state == MEMBER_WAITING && !m->is_leaving;
    }
    ck_assert_int_eq(ms.nmembers, nmembers);
    ck_assert_int_eq(ms.ncandidates, ncandidates);
    for (int i = 0; i < ms.group_size; i++) {
        const struct place *place = &ms.group[i];

        nawaited += place->is_awaited;
        nactive += place->is_awaited ||
                   (place->m != NULL && place->m->state == MEMBER_ACTIVE);
    }
    ck_assert_int_eq(ms.nawaited, nawaited);
    if (ms.phase == MEMBERSHIP_PREPARING || ms.phase == MEMBERSHIP_RUNNING ||
        ms.phase == MEMBERSHIP_STOPPING)
        ck_assert_int_eq(ms.nactive, nactive);
}

static bool join_as(int i, const struct node_msg *join)
{
    char addr[32];

    snprintf(addr, sizeof(addr), "10.0.0.%d", i);
    nodes[i] = (struct node){0};
    nodes[i].m = membership_join(&ms, &nodes[i], join, addr, now, &refusal);
    recount();
    return nodes[i].m != NULL;
}

static void join(int i)
{
    struct node_msg msg;
    char host[32];

    snprintf(host, sizeof(host), "node%d", i);
    msg = join_of(i, host);
    if (settings.is_static)
        msg.node_rank = i;
    ck_assert_msg(join_as(i, &msg), "%s", refusal.msg);
}

static void say(int i, struct node_msg msg)
{
    if (msg.kind != NODE_PING)
        msg.round = ms.round;
    ck_assert_int_eq(membership_message(&ms, nodes[i].m, &msg, now), 0);
    recount();
}

static void lose(int i)
{
    struct member *m = nodes[i].m;

    nodes[i].m = NULL;
    membership_lost(&ms, m, "connection reset", now);
    recount();
}

/* Time passes as a shell would let it: those who live say so. */
static void pass(uint64_t ms_more)
{
    uint64_t until = now + ms_more * MS;

    for (;;) {
        uint64_t due = membership_due_ns(&ms);

        for (int i = 0; i < NODES; i++)
            if (nodes[i].m != NULL)
                nodes[i].m->seen_ns = now;
        if (due > until)
            break;
        now = due > now ? due : now;
        membership_tick(&ms, now);
        recount();
    }
    now = until;
}

static void ready(int i)
{
    ck_assert_int_eq(nodes[i].last.kind, NODE_PREPARE);
    say(i, (struct node_msg){.kind = NODE_READY});
    ck_assert_int_eq(ms.phase, MEMBERSHIP_RUNNING);
}

static void ended(int i, enum node_result result)
{
    say(i, (struct node_msg){.kind = NODE_ENDED, .result = (int32_t)result});
}

static void failed(int i, int rank, int wait_status)
{
    struct node_msg msg = {.kind = NODE_FAILED,
        .rank = rank,
        .wait_status = wait_status,
        .ago_ns = 1,
        .text = "how"};

    snprintf(msg.host, sizeof(msg.host), "node%d", i);
    say(i, msg);
}

/* --- Beginning ---------------------------------------------------------- */

START_TEST(round_begins_when_all_are_there_and_the_store_is_open)
{
    begin(3, 3);
    join(2);
    join(0);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_GATHERING);
    join(1);
    ck_assert_int_eq(nodes[0].last.kind, NODE_PREPARE);
    ck_assert_int_eq(nodes[1].last.kind, NODE_WELCOME);
    ready(0);
    for (int i = 0; i < 3; i++) {
        const struct node_msg *m = &nodes[i].last;

        ck_assert_int_eq(m->kind, NODE_ROUND);
        ck_assert_int_eq(m->round, 0);
        ck_assert_int_eq(m->restart_count, 0);
        ck_assert_int_eq(m->group_rank, i);
        ck_assert_int_eq(m->group_world_size, 3);
        ck_assert_int_eq(m->world_size, 6);
        ck_assert_int_eq(m->rank_base, 2 * i);
        ck_assert_int_eq(m->role_world_size, 6);
        ck_assert_int_eq(m->role_rank_base, 2 * i);
        ck_assert_str_eq(m->master_addr, "10.0.0.0");
        ck_assert_int_eq(m->master_port, 4000);
        ck_assert_int_eq(nodes[i].told[NODE_ROUND], 1);
    }
    ck_assert_str_eq(nodes[2].last.addr, "10.0.0.2");
}
END_TEST

START_TEST(nodes_are_ordered_as_people_count)
{
    static const char *const hosts[] = {
        "node10", "node2", "node02", "alpha", "node2a", "node1"};
    static const int want[] = {5, 3, 2, 0, 4, 1};

    begin(6, 6);
    for (int i = 0; i < 6; i++) {
        struct node_msg msg = join_of(i, hosts[i]);

        ck_assert(join_as(i, &msg));
    }
    ready(3);
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(nodes[i].last.group_rank, want[i]);
}
END_TEST

START_TEST(NODE_03_node_rank_is_the_first_key)
{
    begin(3, 3);
    for (int i = 0; i < 3; i++) {
        struct node_msg msg = join_of(i, "same");

        msg.node_rank = i == 2 ? -1 : 1 - i;
        ck_assert(join_as(i, &msg));
    }
    ready(1);
    ck_assert_int_eq(nodes[1].last.group_rank, 0);
    ck_assert_int_eq(nodes[0].last.group_rank, 1);
    ck_assert_int_eq(nodes[2].last.group_rank, 2);
}
END_TEST

START_TEST(worker_counts_and_roles_may_differ)
{
    static const struct {
        int nproc;
        const char *role;
    } brought[] = {{1, "a"}, {3, "b"}, {2, "a"}, {1, "b"}};
    static const int want[4][3] = {{0, 3, 0}, {1, 4, 0}, {4, 3, 1}, {6, 4, 3}};

    begin(4, 4);
    for (int i = 0; i < 4; i++) {
        struct node_msg msg = join_of(i, "h");

        msg.nproc = brought[i].nproc;
        strcpy(msg.role, brought[i].role);
        ck_assert(join_as(i, &msg));
    }
    ready(0);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(nodes[i].last.world_size, 7);
        ck_assert_int_eq(nodes[i].last.rank_base, want[i][0]);
        ck_assert_int_eq(nodes[i].last.role_world_size, want[i][1]);
        ck_assert_int_eq(nodes[i].last.role_rank_base, want[i][2]);
    }
}
END_TEST

START_TEST(ELA_06_last_call_only_where_somebody_may_still_come)
{
    begin(1, 3);
    join(0);
    pass(4000);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_GATHERING);
    join(1);
    pass(1000);
    ready(0);
    ck_assert_int_eq(nodes[1].last.world_size, 4);
    /* One more: one new round, without a call. */
    join(2);
    ck_assert_int_eq(nodes[0].last.kind, NODE_STOP);
    ck_assert_int_eq(nodes[2].last.kind, NODE_WELCOME);
    ended(0, NODE_STOPPED);
    ended(1, NODE_STOPPED);
    ready(0);
    ck_assert_int_eq(nodes[2].last.world_size, 6);
    ck_assert_int_eq(nodes[2].last.restart_count, 0);
    ck_assert_int_eq(nodes[2].last.round, 1);
    ck_assert_int_eq(nodes[0].told[NODE_STOP], 1);
}
END_TEST

START_TEST(too_few_end_with_the_reason)
{
    begin(2, 2);
    join(0);
    pass(59999);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_GATHERING);
    pass(1);
    ck_assert_int_eq(nodes[0].last.kind, NODE_CLOSED);
    ck_assert_int_eq(nodes[0].last.result, 1);
    ck_assert_str_eq(nodes[0].last.text, "joined 1 of 2 nodes within 60 s");
}
END_TEST

/* --- Bugs */
START_TEST(node_that_comes_while_the_store_is_opened_is_in_the_round)
{
    begin(1, 3);
    join(0);
    pass(settings.last_call_ms);
    ck_assert_int_eq(nodes[0].last.kind, NODE_PREPARE);
    join(1);
    join(2);
    join(3);
    say(0, (struct node_msg){.kind = NODE_READY});
    ready(0); /* as the first node of a larger round */
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(nodes[i].last.kind, NODE_ROUND);
        ck_assert_int_eq(nodes[i].last.group_world_size, 3);
        ck_assert_int_eq(nodes[i].told[NODE_STOP], 0);
    }
    ck_assert_int_eq(nodes[3].last.kind, NODE_PARKED);
}
END_TEST

START_TEST(spare_that_comes_while_the_store_is_opened_is_told)
{
    begin(1, 1);
    join(0);
    ck_assert_int_eq(nodes[0].last.kind, NODE_PREPARE);
    join(1);
    ready(0);
    ck_assert_int_eq(nodes[0].last.kind, NODE_ROUND);
    ck_assert_int_eq(nodes[1].last.kind, NODE_PARKED);
}
END_TEST

/* --- Who may come ------------------------------------------------------- */

static void refuse(const struct node_msg *msg, const char *why)
{
    ck_assert(!join_as(NODES - 1, msg));
    ck_assert_msg(strstr(refusal.msg, why) != NULL, "%s", refusal.msg);
    ck_assert_int_eq(nodes[NODES - 1].told[NODE_WELCOME], 0);
}

START_TEST(who_does_not_belong_is_refused_with_the_reason)
{
    struct node_msg good, msg;

    begin(2, 3);
    good = join_of(0, "h");
    msg = good;
    msg.version = 2;
    refuse(&msg, "version 2");
    msg = good;
    strcpy(msg.run_id, "other");
    refuse(&msg, "'other', and the job's is 'job'");
    msg = good;
    msg.is_static = 1;
    refuse(&msg, "backend is static");
    msg = good;
    msg.min_nodes = 1;
    refuse(&msg, "--nnodes is 1:3 there and 2:3");
    msg = good;
    msg.max_nodes = 9;
    refuse(&msg, "--nnodes is 2:9 there and 2:3");
    msg = good;
    msg.max_restarts = 7;
    refuse(&msg, "--max_restarts is 7 there and 1");
    msg = good;
    msg.nproc = 0;
    refuse(&msg, "0 workers");
    ck_assert_int_eq(ms.nmembers, 0);
    ck_assert(join_as(0, &good));
}
END_TEST

START_TEST(NODE_01_static_ranks_are_taken_once)
{
    struct node_msg msg;

    settings.is_static = true;
    strcpy(settings.master_addr, "master");
    settings.master_port = 29500;
    begin(2, 2);
    join(0);
    msg = join_of(1, "node1");
    refuse(&msg, "node rank -1: expected 0 to 1");
    msg.node_rank = 2;
    refuse(&msg, "node rank 2: expected 0 to 1");
    msg.node_rank = 0;
    refuse(&msg, "node rank 0 is already taken by host node0, pid 100");
    join(1);
    ready(0);
    ck_assert_str_eq(nodes[1].last.master_addr, "master");
    ck_assert_int_eq(nodes[1].last.master_port, 29500);
    ck_assert_int_eq(nodes[1].last.group_rank, 1);
}
END_TEST

/* --- Ends --------------------------------------------------------------- */

static void start(int n)
{
    for (int i = 0; i < n; i++)
        join(i);
    pass(settings.last_call_ms);
    ready(0);
}

START_TEST(ELA_10_success_is_the_success_of_all)
{
    begin(2, 2);
    start(2);
    ended(0, NODE_SUCCEEDED);
    pass(3600 * 1000);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_RUNNING);
    ended(1, NODE_SUCCEEDED);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(nodes[i].last.kind, NODE_CLOSED);
        ck_assert_int_eq(nodes[i].last.result, 0);
    }
}
END_TEST

START_TEST(node_that_has_succeeded_may_go)
{
    begin(2, 2);
    start(2);
    ended(0, NODE_SUCCEEDED);
    lose(0);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_RUNNING);
    ended(1, NODE_SUCCEEDED);
    ck_assert_int_eq(nodes[1].last.kind, NODE_CLOSED);
    ck_assert_int_eq(nodes[1].last.result, 0);
}
END_TEST

START_TEST(ELA_03_failure_is_told_at_once_and_counted_once)
{
    begin(3, 3);
    start(3);
    for (int restart = 0; restart < 2; restart++) {
        failed(1, 2, EXIT_STATUS(1));
        ck_assert_int_eq(nodes[0].last.kind, NODE_FAILED);
        ck_assert_int_eq(nodes[2].last.kind, NODE_FAILED);
        ck_assert_int_eq(nodes[2].last.rank, 2);
        ck_assert_str_eq(nodes[2].last.host, "node1");
        ck_assert_int_ne(nodes[1].last.kind, NODE_FAILED);
        failed(1, 3, EXIT_STATUS(1));
        ck_assert_int_eq(nodes[0].told[NODE_FAILED], restart + 1);
        ended(1, NODE_HAS_FAILED);
        ended(0, NODE_STOPPED);
        pass(100);
        ck_assert_int_eq(ms.phase, MEMBERSHIP_STOPPING);
        ended(2, NODE_STOPPED);
        ck_assert_int_eq(nodes[0].told[NODE_VERDICT], restart + 1);
        if (restart == 0) {
            ready(0);
            for (int i = 0; i < 3; i++) {
                ck_assert_int_eq(nodes[i].last.restart_count, 1);
                ck_assert_int_eq(nodes[i].last.round, 1);
            }
        }
    }
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(nodes[i].last.kind, NODE_CLOSED);
        ck_assert_int_eq(nodes[i].last.result, 1);
        ck_assert_str_eq(nodes[i].last.text, "rank 2 on node1 failed: how");
    }
}
END_TEST

START_TEST(first_cause_is_waited_for)
{
    begin(2, 2);
    start(2);
    say(0, (struct node_msg){.kind = NODE_FAILED,
               .rank = 0,
               .is_collateral = 1,
               .wait_status = EXIT_STATUS(1)});
    ended(0, NODE_HAS_FAILED);
    pass(20);
    failed(1, 3, SIGKILL);
    ended(1, NODE_HAS_FAILED);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_STOPPING);
    pass(MEMBERSHIP_SETTLE_MS);
    ck_assert_int_eq(nodes[0].told[NODE_VERDICT], 1);
    ck_assert_int_eq(ms.failure.rank, 3);
}
END_TEST

START_TEST(earlier_death_is_the_first_whoever_is_heard_first)
{
    begin(2, 2);
    start(2);
    now += 500 * MS;
    say(0, (struct node_msg){.kind = NODE_FAILED,
               .rank = 1,
               .ago_ns = 1 * MS,
               .wait_status = EXIT_STATUS(1)});
    say(1, (struct node_msg){.kind = NODE_FAILED,
               .rank = 2,
               .ago_ns = 30 * MS,
               .wait_status = EXIT_STATUS(1)});
    ck_assert_int_eq(ms.failure.rank, 2);
    /* A plain exit does not explain a death by a signal. */
    failed(1, 3, SIGSEGV);
    ck_assert_int_eq(ms.failure.rank, 3);
    say(0, (struct node_msg){.kind = NODE_FAILED,
               .rank = 0,
               .ago_ns = 40 * MS,
               .wait_status = EXIT_STATUS(1)});
    ck_assert_int_eq(ms.failure.rank, 3);
}
END_TEST

START_TEST(what_cannot_be_executed_is_not_tried_again)
{
    begin(2, 2);
    start(2);
    say(1, (struct node_msg){.kind = NODE_FAILED, .rank = 2, .error = 2});
    ended(0, NODE_STOPPED);
    ended(1, NODE_HAS_FAILED);
    pass(MEMBERSHIP_SETTLE_MS);
    ck_assert_int_eq(nodes[0].last.kind, NODE_CLOSED);
    ck_assert_int_eq(ms.restart_count, 0);
}
END_TEST

START_TEST(restarts_wait_and_crash_loops_end)
{
    settings.max_restarts = 10;
    settings.restart_delay_ms = 1000;
    settings.restart_delay_max_ms = 1500;
    settings.crash_loop_count = 3;
    settings.crash_loop_ms = 5000;
    begin(1, 1);
    start(1);
    for (int i = 0; i < 3; i++) {
        failed(0, 0, EXIT_STATUS(1));
        ended(0, NODE_HAS_FAILED);
        pass(MEMBERSHIP_SETTLE_MS);
        if (i == 2)
            break;
        ck_assert_int_eq(ms.phase, MEMBERSHIP_DELAY);
        pass(i == 0 ? 999 : 1499);
        ck_assert_int_eq(ms.phase, MEMBERSHIP_DELAY);
        pass(1);
        ready(0);
    }
    ck_assert_int_eq(nodes[0].last.kind, NODE_CLOSED);
    ck_assert_int_eq(ms.restart_count, 2);
}
END_TEST

/* --- Nodes that go ------------------------------------------------------ */

START_TEST(ELA_02_lost_node_ends_the_round_and_is_waited_for)
{
    begin(1, 3);
    start(3);
    lose(1);
    ck_assert_int_eq(nodes[0].last.kind, NODE_FAILED);
    ck_assert_int_eq(nodes[0].last.rank, -1);
    ck_assert_str_eq(nodes[0].last.host, "node1");
    ended(0, NODE_STOPPED);
    ended(2, NODE_STOPPED);
    pass(MEMBERSHIP_SETTLE_MS);
    ck_assert_int_eq(nodes[2].last.kind, NODE_VERDICT);
    pass(settings.last_call_ms - 1);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_GATHERING);
    pass(1);
    ready(0);
    ck_assert_int_eq(nodes[2].last.group_rank, 1);
    ck_assert_int_eq(nodes[2].last.world_size, 4);
    ck_assert_int_eq(nodes[2].last.restart_count, 1);
    /* The second loss is one too many. */
    lose(0);
    ended(2, NODE_STOPPED);
    pass(MEMBERSHIP_SETTLE_MS);
    ck_assert_int_eq(nodes[2].last.kind, NODE_CLOSED);
    ck_assert_str_eq(
        nodes[2].last.text, "node node0 was lost: connection reset");
}
END_TEST

START_TEST(silent_node_is_lost)
{
    begin(2, 2);
    start(2);
    for (int i = 0; i < 4; i++) {
        now += 1000 * MS;
        say(0, (struct node_msg){.kind = NODE_PING});
        ck_assert_int_eq(nodes[0].last.kind, NODE_PONG);
        membership_tick(&ms, now);
    }
    ck_assert(!nodes[1].is_dropped);
    now += 1000 * MS;
    say(0, (struct node_msg){.kind = NODE_PING});
    membership_tick(&ms, now);
    ck_assert(nodes[1].is_dropped);
    ck_assert(!nodes[0].is_dropped);
    ck_assert_int_eq(nodes[0].last.kind, NODE_FAILED);
    ck_assert_str_eq(nodes[0].last.text, "nothing was heard of it for 5.000 s");
}
END_TEST

START_TEST(ELA_01_clean_leave_consumes_nothing_and_closes_nothing)
{
    begin(1, 2);
    start(2);
    for (int i = 0; i < 10; i++) {
        say(1, (struct node_msg){.kind = NODE_LEAVE, .text = "SIGTERM"});
        ck_assert_int_eq(nodes[0].last.kind, NODE_STOP);
        ended(1, NODE_STOPPED);
        lose(1);
        ended(0, NODE_STOPPED);
        ready(0);
        ck_assert_int_eq(nodes[0].last.world_size, 2);
        join(1);
        ended(0, NODE_STOPPED);
        ready(0);
        ck_assert_int_eq(nodes[1].last.world_size, 4);
        ck_assert_int_eq(nodes[1].last.restart_count, 0);
    }
    ended(0, NODE_SUCCEEDED);
    ended(1, NODE_SUCCEEDED);
    ck_assert_int_eq(nodes[0].last.result, 0);
}
END_TEST

START_TEST(static_node_cannot_be_spared)
{
    settings.is_static = true;
    begin(2, 2);
    start(2);
    say(1, (struct node_msg){.kind = NODE_LEAVE, .text = "SIGINT"});
    ended(0, NODE_STOPPED);
    ended(1, NODE_STOPPED);
    ck_assert_int_eq(nodes[0].last.kind, NODE_CLOSED);
    ck_assert_int_eq(nodes[0].last.result, 1);
}
END_TEST

START_TEST(spare_takes_the_place_of_the_lost)
{
    begin(2, 3);
    start(3);
    join(4);
    ck_assert_int_eq(nodes[4].last.kind, NODE_PARKED);
    lose(1);
    ck_assert_int_ne(nodes[4].last.kind, NODE_FAILED);
    ended(0, NODE_STOPPED);
    ended(2, NODE_STOPPED);
    pass(MEMBERSHIP_SETTLE_MS);
    ready(0);
    ck_assert_int_eq(nodes[0].last.group_rank, 0);
    ck_assert_int_eq(nodes[2].last.group_rank, 2);
    ck_assert_int_eq(nodes[4].last.group_rank, 1);
    ck_assert_int_eq(nodes[4].last.restart_count, 1);
}
END_TEST

START_TEST(nobody_is_disturbed_who_is_nearly_done)
{
    begin(1, 3);
    start(2);
    ended(0, NODE_SUCCEEDED);
    join(2);
    ck_assert_int_eq(nodes[2].last.kind, NODE_PARKED);
    ended(1, NODE_SUCCEEDED);
    ck_assert_int_eq(nodes[2].last.kind, NODE_CLOSED);
    ck_assert_int_eq(nodes[2].last.result, 0);
}
END_TEST

START_TEST(master_that_goes_before_the_round_is_replaced)
{
    begin(2, 3);
    for (int i = 0; i < 3; i++)
        join(i);
    ck_assert_int_eq(nodes[0].last.kind, NODE_PREPARE);
    lose(0);
    pass(settings.last_call_ms);
    ready(2); /* node 1 keeps its place */
    ck_assert_int_eq(nodes[1].last.group_rank, 1);
    ck_assert_int_eq(nodes[1].last.restart_count, 0);
    ck_assert_int_eq(nodes[1].last.master_port, 4002);
}
END_TEST

START_TEST(master_that_opens_no_store_is_lost)
{
    begin(2, 3);
    for (int i = 0; i < 3; i++)
        join(i);
    ck_assert_int_eq(nodes[0].last.kind, NODE_PREPARE);
    pass(MEMBERSHIP_PREPARE_MS - 1);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_PREPARING);
    pass(1);
    ck_assert(nodes[0].is_dropped);
    pass(settings.last_call_ms);
    ready(2);
    ck_assert_int_eq(nodes[1].last.world_size, 4);
}
END_TEST

START_TEST(old_words_mean_nothing)
{
    struct node_msg old = {.kind = NODE_ENDED, .round = 0};

    begin(2, 2);
    start(2);
    failed(0, 0, EXIT_STATUS(1));
    ended(0, NODE_HAS_FAILED);
    ended(1, NODE_STOPPED);
    pass(MEMBERSHIP_SETTLE_MS);
    ready(0);
    ck_assert_int_eq(membership_message(&ms, nodes[0].m, &old, now), 0);
    old.kind = NODE_FAILED;
    ck_assert_int_eq(membership_message(&ms, nodes[1].m, &old, now), 0);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_RUNNING);
    ck_assert_int_eq(ms.nactive, 2);
    old.kind = NODE_CLOSED;
    ck_assert_int_eq(membership_message(&ms, nodes[1].m, &old, now), -71);
}
END_TEST

START_TEST(NODE_06_after_the_end_nobody_is_let_in)
{
    struct node_msg msg;

    begin(1, 1);
    start(1);
    ended(0, NODE_SUCCEEDED);
    msg = join_of(1, "late");
    refuse(&msg, "the job is over: success");
}
END_TEST

START_TEST(node_that_is_lost_between_rounds_is_called_for)
{
    settings.restart_delay_ms = 1000;
    settings.restart_delay_max_ms = 1000;
    begin(1, 2);
    start(2);
    failed(1, 2, EXIT_STATUS(1));
    ended(1, NODE_HAS_FAILED);
    if (_i == 0)
        lose(1);
    ended(0, NODE_STOPPED);
    pass(MEMBERSHIP_SETTLE_MS);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_DELAY);
    if (_i == 1)
        lose(1);
    pass(settings.restart_delay_ms);
    pass(settings.last_call_ms - 1);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_GATHERING);
    join(1);
    ready(0);
    ck_assert_int_eq(nodes[1].last.group_world_size, 2);
    ck_assert_int_eq(nodes[1].last.restart_count, 1);
}
END_TEST

/* --- Coming back -------------------------------------------------------- */

#define ROUND_ID 7000

/* What an agent says that is in that round, with its number as group rank. */
static struct node_msg back_of(int i, int round, int size)
{
    struct node_msg msg;
    char host[32];

    snprintf(host, sizeof(host), "node%d", i);
    msg = join_of(i, host);
    msg.part = NODE_PART_OPEN;
    msg.round = round;
    msg.round_id = ROUND_ID + (uint64_t)round;
    msg.group_rank = i;
    msg.group_world_size = size;
    return msg;
}

static void come_back(int i, const struct node_msg *msg)
{
    ck_assert_msg(join_as(i, msg), "%s", refusal.msg);
    ck_assert_int_eq(nodes[i].told[NODE_WELCOME], 1);
}

static void back(int i, int round, int size)
{
    struct node_msg msg = back_of(i, round, size);

    come_back(i, &msg);
}

/* Of the round and with the number that it has at this coordinator. */
static struct node_msg now_of(int i)
{
    struct node_msg msg = back_of(i, ms.round, ms.group_size);

    msg.round_id = ms.round_id;
    msg.restart_count = msg.round_restart_count = ms.restart_count;
    msg.group_rank = nodes[i].m->group_rank;
    return msg;
}

static void only_welcome(int i)
{
    ck_assert_int_eq(nodes[i].told[NODE_WELCOME], 1);
    ck_assert_int_eq(nodes[i].ntold, 1);
}

static uint64_t return_ms(void)
{
    return settings.keep_alive_ms * (uint64_t)settings.keep_alive_attempts +
           MEMBERSHIP_RETURN_MS;
}

START_TEST(nobody_notices_who_comes_back_in_time)
{
    static const int order[] = {2, 0, 1};

    begin(2, 3);
    for (int i = 0; i < 3; i++) {
        struct node_msg msg = back_of(order[i], 4, 3);

        msg.restart_count = msg.round_restart_count = 1;
        come_back(order[i], &msg);
        ck_assert_int_eq(ms.phase, MEMBERSHIP_RUNNING);
        pass(return_ms() / 4);
    }
    pass(3600 * 1000);
    for (int i = 0; i < 3; i++)
        only_welcome(i);
    ck_assert_int_eq(ms.round, 4);
    ck_assert_int_eq(ms.restart_count, 1);
    /* The job goes on from there: this was the last restart. */
    failed(1, 2, EXIT_STATUS(1));
    ck_assert_int_eq(nodes[0].last.kind, NODE_FAILED);
    for (int i = 0; i < 3; i++)
        ended(i, i == 1 ? NODE_HAS_FAILED : NODE_STOPPED);
    pass(MEMBERSHIP_SETTLE_MS);
    ck_assert_int_eq(nodes[0].last.kind, NODE_CLOSED);
    ck_assert_int_eq(nodes[0].told[NODE_VERDICT], 1);
}
END_TEST

START_TEST(those_who_have_succeeded_say_so_again)
{
    begin(2, 2);
    back(1, 0, 2);
    ended(1, NODE_SUCCEEDED);
    back(0, 0, 2);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_RUNNING);
    ended(0, NODE_SUCCEEDED);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(nodes[i].last.kind, NODE_CLOSED);
        ck_assert_int_eq(nodes[i].last.result, 0);
    }
}
END_TEST

START_TEST(who_does_not_come_back_is_lost)
{
    begin(2, 3);
    back(1, 4, 3);
    pass(1000); /* the time is that of the first one */
    back(0, 4, 3);
    pass(return_ms() - 1001);
    only_welcome(0);
    only_welcome(1);
    pass(1);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(nodes[i].told[NODE_FAILED], 1);
        ck_assert_int_eq(nodes[i].last.rank, -1);
        ck_assert_int_eq(nodes[i].last.round, 4);
        ck_assert_str_eq(nodes[i].last.host, "with group rank 2");
        ended(i, NODE_STOPPED);
    }
    pass(MEMBERSHIP_SETTLE_MS);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(nodes[i].told[NODE_VERDICT], 1);
        ck_assert_int_eq(nodes[i].last.restart_count, 1);
    }
    pass(settings.last_call_ms - 1); /* it is missed */
    ck_assert_int_eq(ms.phase, MEMBERSHIP_GATHERING);
    pass(1);
    ready(0);
    ck_assert_int_eq(nodes[1].last.round, 5);
    ck_assert_int_eq(nodes[1].last.restart_count, 1);
    ck_assert_int_eq(nodes[1].last.group_world_size, 2);
}
END_TEST

/* One that did not hear of the round's beginning is there, though it cannot
 * say that it is. */
START_TEST(who_waits_elsewhere_is_not_lost)
{
    begin(3, 3);
    back(0, 4, 3);
    back(2, 4, 3);
    join(1);
    pass(return_ms() - 1);
    for (int i = 0; i < 3; i++)
        only_welcome(i);
    pass(1);
    ck_assert_int_eq(nodes[0].last.kind, NODE_STOP);
    ck_assert_int_eq(nodes[2].last.kind, NODE_STOP);
    only_welcome(1);
    ended(0, NODE_STOPPED);
    ended(2, NODE_STOPPED);
    ready(0);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(nodes[i].last.kind, NODE_ROUND);
        ck_assert_int_eq(nodes[i].last.round, 5);
        ck_assert_int_eq(nodes[i].last.restart_count, 0);
        ck_assert_int_eq(nodes[i].told[NODE_FAILED], 0);
        ck_assert_int_eq(nodes[i].told[NODE_VERDICT], 0);
    }
    ck_assert_int_eq(nodes[2].last.group_rank, 2);
}
END_TEST

/* The verdict was told to one node, and the last restart consumed by it. */
static struct node_msg done_of(int i, int size)
{
    struct node_msg msg = back_of(i, 4, size);

    msg.part = NODE_PART_DONE;
    msg.restart_count = settings.max_restarts;
    msg.round_restart_count = settings.max_restarts - 1;
    return msg;
}

START_TEST(restart_is_not_counted_by_two_coordinators)
{
    struct node_msg done, open;
    bool is_done_first = _i == 0;

    begin(2, 2);
    done = done_of(0, 2);
    open = back_of(1, 4, 2);
    open.restart_count = open.round_restart_count = settings.max_restarts - 1;
    if (is_done_first)
        come_back(0, &done);
    come_back(1, &open);
    failed(1, 2, EXIT_STATUS(1));
    ended(1, NODE_HAS_FAILED);
    if (!is_done_first)
        come_back(0, &done);
    pass(MEMBERSHIP_SETTLE_MS);
    ck_assert_int_eq(nodes[1].told[NODE_VERDICT], 1);
    ready(0);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(nodes[i].last.round, 5);
        ck_assert_int_eq(nodes[i].last.restart_count, settings.max_restarts);
    }
    /* A failure of the next one counts. */
    failed(0, 0, EXIT_STATUS(1));
    ended(0, NODE_HAS_FAILED);
    ended(1, NODE_STOPPED);
    pass(MEMBERSHIP_SETTLE_MS);
    ck_assert_int_eq(nodes[0].last.kind, NODE_CLOSED);
    ck_assert_int_eq(nodes[0].last.result, 1);
}
END_TEST

START_TEST(node_that_was_lost_before_is_not_counted_again)
{
    struct node_msg msg;

    begin(1, 2);
    msg = done_of(0, 2);
    come_back(0, &msg);
    pass(return_ms() + MEMBERSHIP_SETTLE_MS + settings.last_call_ms);
    ready(0);
    ck_assert_int_eq(nodes[0].last.restart_count, settings.max_restarts);
}
END_TEST

START_TEST(round_that_all_are_through_with_is_followed_by_the_next)
{
    begin(2, 3);
    for (int i = 0; i < 3; i++) {
        struct node_msg msg = done_of(i, 3);

        come_back(i, &msg);
    }
    ready(0);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(nodes[i].told[NODE_STOP], 0);
        ck_assert_int_eq(nodes[i].last.group_rank, i);
        ck_assert_int_eq(nodes[i].last.round, 5);
        ck_assert_int_eq(nodes[i].last.restart_count, settings.max_restarts);
    }
}
END_TEST

START_TEST(failure_is_told_to_those_who_come_back_later)
{
    begin(3, 3);
    back(0, 4, 3);
    failed(0, 1, EXIT_STATUS(1));
    ck_assert_int_eq(ms.phase, MEMBERSHIP_STOPPING);
    for (int i = 1; i < 3; i++) {
        back(i, 4, 3);
        ck_assert_int_eq(nodes[i].ntold, 2);
        ck_assert_int_eq(nodes[i].last.kind, NODE_FAILED);
        ck_assert_int_eq(nodes[i].last.round, 4);
        ck_assert_int_eq(nodes[i].last.rank, 1);
        ended(i, NODE_STOPPED);
        pass(MEMBERSHIP_SETTLE_MS);
        ck_assert_int_eq(nodes[i].told[NODE_VERDICT], 0);
    }
    ended(0, NODE_HAS_FAILED);
    ck_assert_int_eq(nodes[2].told[NODE_VERDICT], 1);
    ready(0);
    ck_assert_int_eq(nodes[2].last.restart_count, 1);
}
END_TEST

START_TEST(stop_is_told_to_those_who_come_back_later)
{
    begin(1, 2);
    back(0, 4, 2);
    say(0, (struct node_msg){.kind = NODE_LEAVE, .text = "SIGTERM"});
    ck_assert_int_eq(ms.phase, MEMBERSHIP_STOPPING);
    ended(0, NODE_STOPPED);
    lose(0);
    back(1, 4, 2);
    ck_assert_int_eq(nodes[1].ntold, 2);
    ck_assert_int_eq(nodes[1].last.kind, NODE_STOP);
    ck_assert_int_eq(nodes[1].last.round, 4);
    ended(1, NODE_STOPPED);
    ready(1);
    ck_assert_int_eq(nodes[1].last.restart_count, 0);
    ck_assert_int_eq(nodes[1].last.world_size, 2);
}
END_TEST

/* Workers that belong to no round of this job: they end before their node
 * gets others. */
static void assert_stale(int i, int round)
{
    ck_assert_int_eq(nodes[i].ntold, 2);
    ck_assert_int_eq(nodes[i].last.kind, NODE_STOP);
    ck_assert_int_eq(nodes[i].last.round, round);
    ck_assert_int_eq(nodes[i].m->state, MEMBER_STALE);
}

START_TEST(node_of_an_older_round_ends_its_workers_first)
{
    struct node_msg stop = {.kind = NODE_ENDED, .round = 3};

    begin(2, 3);
    back(0, 4, 2);
    back(1, 4, 2);
    back(2, 3, 3);
    assert_stale(2, 3);
    only_welcome(0);
    ck_assert_int_eq(membership_message(&ms, nodes[2].m, &stop, now), 0);
    recount();
    ck_assert_int_eq(nodes[2].m->state, MEMBER_WAITING);
    ck_assert_int_eq(nodes[0].last.kind, NODE_STOP); /* there is room */
    ended(0, NODE_STOPPED);
    ended(1, NODE_STOPPED);
    ready(0);
    ck_assert_int_eq(nodes[2].last.group_rank, 2);
    ck_assert_int_eq(nodes[2].last.round, 5);
    ck_assert_int_eq(nodes[2].last.restart_count, 0);
}
END_TEST

START_TEST(rounds_of_one_number_are_told_apart)
{
    struct node_msg msg;

    begin(2, 2);
    msg = back_of(1, 4, 2);
    msg.round_id++;
    back(0, 4, 2);
    come_back(1, &msg);
    assert_stale(1, 4);
    ck_assert_int_eq(ms.nawaited, 1);
    ended(1, NODE_STOPPED);
    only_welcome(0);
    /* So it is here, and not lost. */
    pass(return_ms());
    ck_assert_int_eq(nodes[0].last.kind, NODE_STOP);
    ended(0, NODE_STOPPED);
    ready(0);
    ck_assert_int_eq(nodes[1].last.round, 5);
    ck_assert_int_eq(nodes[1].last.restart_count, 0);
}
END_TEST

START_TEST(place_is_given_back_once)
{
    struct node_msg msg;

    begin(2, 3);
    back(0, 4, 2);
    msg = back_of(1, 4, 2);
    msg.group_rank = 0;
    come_back(1, &msg);
    assert_stale(1, 4);
    ck_assert_ptr_eq(ms.group[0].m, nodes[0].m);
}
END_TEST

START_TEST(stale_node_that_dies_is_missed_by_nobody)
{
    begin(2, 3);
    start(3);
    lose(2);
    ended(0, NODE_STOPPED);
    ended(1, NODE_STOPPED);
    pass(MEMBERSHIP_SETTLE_MS + settings.last_call_ms);
    ready(0);
    back(2, 0, 3);
    assert_stale(2, 0);
    lose(2);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_RUNNING);
    ck_assert_int_eq(nodes[0].last.kind, NODE_ROUND);
}
END_TEST

START_TEST(those_that_are_awaited_come_before_others)
{
    begin(1, _i);
    back(0, 4, 2);
    join(5);
    only_welcome(0);
    only_welcome(5);
    back(1, 4, 2);
    if (_i == 3) {
        ck_assert_int_eq(nodes[0].last.kind, NODE_STOP);
        ck_assert_int_eq(nodes[1].last.kind, NODE_STOP);
        only_welcome(5);
    } else {
        only_welcome(0);
        only_welcome(1);
        ck_assert_int_eq(nodes[5].last.kind, NODE_PARKED);
    }
}
END_TEST

/* The last call for a round that was there already. */
START_TEST(new_node_does_not_keep_the_round_from_going_on)
{
    begin(1, 3);
    join(5);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_GATHERING);
    pass(settings.last_call_ms - 1);
    back(0, 4, 1);
    ck_assert_int_eq(nodes[0].last.kind, NODE_STOP); /* all are back */
    ck_assert_int_eq(nodes[0].last.round, 4);
    pass(60000);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_STOPPING);
    ended(0, NODE_STOPPED);
    ready(0);
    ck_assert_int_eq(nodes[5].last.round, 5);
}
END_TEST

START_TEST(newer_round_is_the_one_that_goes_on)
{
    begin(2, 2);
    back(0, 4, 2);
    only_welcome(0);
    back(1, 5, 2);
    assert_stale(0, 4);
    only_welcome(1);
    ck_assert_int_eq(ms.round, 5);
    ck_assert_int_eq(ms.nawaited, 1);
    /* So it is here, and not lost. */
    say(0, (struct node_msg){.kind = NODE_ENDED});
    pass(return_ms());
    ck_assert_int_eq(nodes[1].last.kind, NODE_STOP);
    ended(1, NODE_STOPPED);
    ready(0);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(nodes[i].last.round, 6);
        ck_assert_int_eq(nodes[i].last.restart_count, 0);
    }
}
END_TEST

START_TEST(node_that_comes_back_after_the_end_is_told_of_it)
{
    struct node_msg msg;

    begin(2, 2);
    start(2);
    msg = now_of(1);
    ended(0, NODE_SUCCEEDED);
    ended(1, NODE_SUCCEEDED);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_CLOSED);
    for (int is_lost = 0; is_lost < 2; is_lost++) {
        if (is_lost)
            lose(1);
        come_back(1, &msg);
        ck_assert_int_eq(nodes[1].ntold, 2);
        ck_assert_int_eq(nodes[1].last.kind, NODE_CLOSED);
        ck_assert_int_eq(nodes[1].last.result, 0);
        ck_assert_str_eq(nodes[1].last.text, "success");
    }
    msg.part = NODE_PART_NONE;
    refuse(&msg, "the job is over: success");
}
END_TEST

/* --- What is no failure ------------------------------------------------- */

/* Workers that are ended may fail on account of that, or of each other. */
START_TEST(failure_after_a_stop_is_none)
{
    struct node_msg msg = {.kind = NODE_FAILED,
        .rank = 0,
        .wait_status = EXIT_STATUS(1),
        .is_collateral = _i == 1,
        .ago_ns = _i == 0 ? 0 : 30 * MS};

    begin(1, 3);
    start(2);
    now += 1000 * MS;
    join(2);
    ck_assert_int_eq(nodes[0].last.kind, NODE_STOP);
    now += 20 * MS;
    say(0, msg);
    ck_assert_int_eq(nodes[1].told[NODE_FAILED], 0);
    ended(0, NODE_HAS_FAILED);
    ended(1, NODE_STOPPED);
    pass(MEMBERSHIP_SETTLE_MS);
    /* The third kind happened before, and of its own. */
    ck_assert_int_eq(nodes[0].told[NODE_VERDICT], _i == 2);
    ready(0);
    ck_assert_int_eq(nodes[2].last.restart_count, _i == 2);
}
END_TEST

static const struct {
    int wait_status;
    uint64_t later_ms;
    bool is_failure;
} leaves[] = {
    {EXIT_STATUS(1), 0, false},
    {EXIT_STATUS(1), MEMBERSHIP_SETTLE_MS, false},
    {EXIT_STATUS(1), MEMBERSHIP_SETTLE_MS + 1, true},
    {SIGSEGV, 0, true},
};

/* Those who talked to the workers that are ended are heard of before. */
START_TEST(leave_explains_what_has_just_failed)
{
    begin(1, 2);
    start(2);
    failed(0, 0, leaves[_i].wait_status);
    pass(leaves[_i].later_ms);
    say(1, (struct node_msg){.kind = NODE_LEAVE, .text = "SIGTERM"});
    ended(0, NODE_HAS_FAILED);
    ended(1, NODE_STOPPED);
    lose(1);
    pass(MEMBERSHIP_SETTLE_MS);
    ck_assert_int_eq(nodes[0].told[NODE_VERDICT], leaves[_i].is_failure);
    ready(0);
    ck_assert_int_eq(nodes[0].last.restart_count, leaves[_i].is_failure);
}
END_TEST

/* Its part was not done, though nobody is left to say so. */
START_TEST(job_is_no_success_without_those_that_left)
{
    begin(1, 2);
    start(2);
    say(1, (struct node_msg){.kind = NODE_LEAVE, .text = "SIGTERM"});
    ended(1, NODE_STOPPED);
    lose(1);
    ended(0, NODE_SUCCEEDED);
    ck_assert_int_eq(nodes[0].told[NODE_CLOSED], 0);
    ready(0);
    ck_assert_int_eq(nodes[0].last.group_world_size, 1);
}
END_TEST

/* --- The same agent over another connection ----------------------------- */

START_TEST(connection_of_a_running_node_is_replaced)
{
    struct node_msg msg;

    begin(2, 2);
    start(2);
    msg = now_of(1);
    come_back(1, &msg);
    ck_assert(nodes[1].is_dropped); /* the one before */
    only_welcome(1);
    ck_assert_int_eq(nodes[0].last.kind, NODE_ROUND);
    pass(3600 * 1000);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_RUNNING);
    ended(0, NODE_SUCCEEDED);
    ended(1, NODE_SUCCEEDED);
    ck_assert_int_eq(nodes[1].last.kind, NODE_CLOSED);
    ck_assert_int_eq(nodes[1].last.result, 0);
}
END_TEST

START_TEST(connection_of_a_node_that_has_ended_is_replaced)
{
    struct node_msg msg;

    begin(2, 2);
    start(2);
    ended(1, NODE_SUCCEEDED);
    msg = now_of(1);
    come_back(1, &msg);
    only_welcome(1);
    ck_assert_int_eq(ms.nsucceeded, 0);
    ended(0, NODE_SUCCEEDED);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_RUNNING);
    ended(1, NODE_SUCCEEDED); /* which it says again */
    ck_assert_int_eq(nodes[0].last.kind, NODE_CLOSED);
    ck_assert_int_eq(nodes[0].last.result, 0);
}
END_TEST

START_TEST(connection_is_replaced_while_the_round_is_stopped)
{
    struct node_msg msg;

    begin(2, 2);
    start(2);
    msg = now_of(1);
    failed(0, 0, EXIT_STATUS(1));
    come_back(1, &msg);
    ck_assert_int_eq(nodes[1].last.kind, NODE_FAILED);
    ck_assert_int_eq(nodes[1].ntold, 2);
    ended(0, NODE_HAS_FAILED);
    ended(1, NODE_STOPPED);
    pass(MEMBERSHIP_SETTLE_MS);
    ready(0);
    ck_assert_int_eq(nodes[1].last.restart_count, 1);
}
END_TEST

START_TEST(connection_is_replaced_while_the_store_is_opened)
{
    struct node_msg msg;

    begin(2, 2);
    join(0);
    join(1);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_PREPARING);
    msg = join_of(_i, _i == 0 ? "node0" : "node1");
    come_back(_i, &msg);
    ck_assert(nodes[_i].is_dropped);
    ready(0);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(nodes[i].last.kind, NODE_ROUND);
        ck_assert_int_eq(nodes[i].last.group_world_size, 2);
        ck_assert_int_eq(nodes[i].last.restart_count, 0);
        ck_assert_int_eq(nodes[i].told[NODE_FAILED], 0);
    }
}
END_TEST

START_TEST(connection_of_a_spare_is_replaced)
{
    struct node_msg msg;

    begin(2, 2);
    start(2);
    join(4);
    msg = join_of(4, "node4");
    come_back(4, &msg);
    ck_assert(nodes[4].is_dropped);
    ck_assert_int_eq(nodes[4].last.kind, NODE_PARKED);
    ck_assert_int_eq(ms.nmembers, 3);
    ck_assert_int_eq(nodes[0].last.kind, NODE_ROUND);
}
END_TEST

START_TEST(static_node_keeps_its_rank_over_another_connection)
{
    struct node_msg msg;

    settings.is_static = true;
    begin(2, 2);
    start(2);
    msg = now_of(1);
    msg.node_rank = 1;
    come_back(1, &msg);
    only_welcome(1);
    msg.agent_id++;
    refuse(&msg, "node rank 1 is already taken");
}
END_TEST

/* --- Numbers ------------------------------------------------------------ */

static const struct {
    int round, restart_count, round_restart_count;
} absurd[] = {
    {-1, 0, 0},
    {INT32_MIN, 0, 0},
    {INT32_MAX, 0, 0},
    {(1 << 30) + 1, 0, 0},
    {0, -1, -1},
    {0, INT32_MAX, 0},
    {0, 0, 1},
    {0, 1, -1},
};

START_TEST(absurd_numbers_are_refused)
{
    struct node_msg msg;

    begin(1, 2);
    msg = back_of(0, absurd[_i].round, 2);
    msg.restart_count = absurd[_i].restart_count;
    msg.round_restart_count = absurd[_i].round_restart_count;
    refuse(&msg, "it was in round ");
    msg.part = NODE_PART_DONE;
    refuse(&msg, "it was in round ");
    ck_assert_int_eq(ms.nmembers, 0);
    ck_assert_int_eq(ms.round, -1);
    ck_assert_int_eq(ms.last_round, -1);
    msg.part = NODE_PART_NONE; /* then a round means nothing */
    ck_assert(
        join_as(0, &msg) == (msg.restart_count == 0 || msg.restart_count == 1));
}
END_TEST

/* No round of this job: its workers end, and it waits. */
START_TEST(nobody_can_make_sense_of_such_a_place)
{
    static const int places[][2] = {
        {0, 0}, {0, 4}, {-1, 3}, {3, 3}, {INT32_MAX, INT32_MAX}};
    struct node_msg msg;

    begin(1, 3);
    msg = back_of(0, 4, places[_i][1]);
    msg.group_rank = places[_i][0];
    come_back(0, &msg);
    assert_stale(0, 4);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_GATHERING);
    ended(0, NODE_STOPPED); /* whatever the number */
    pass(settings.last_call_ms);
    ready(0);
    ck_assert_int_eq(nodes[0].last.round, 5);
    /* The same of one that comes while a round is awaited. */
    lose(0);
    tear_down();
    begin(1, 3);
    back(1, 4, 3);
    come_back(0, &msg);
    if (places[_i][0] == 0) /* the size was told by the first */
        ck_assert_int_eq(nodes[0].m->state, MEMBER_ACTIVE);
    else
        assert_stale(0, 4);
}
END_TEST

START_TEST(numbers_of_rounds_never_go_back)
{
    struct node_msg msg;

    begin(1, 2);
    msg = back_of(2, 41, 3);
    back(0, 4, 2);
    back(1, 4, 2);
    come_back(2, &msg);
    assert_stale(2, 41);
    failed(0, 0, EXIT_STATUS(1));
    ended(0, NODE_HAS_FAILED);
    ended(1, NODE_STOPPED);
    pass(MEMBERSHIP_SETTLE_MS);
    ready(0);
    ck_assert_int_eq(nodes[0].last.round, 42);
    ck_assert_int_eq(nodes[1].last.round, 42);
}
END_TEST

START_TEST(rounds_of_two_coordinators_have_other_ids)
{
    uint64_t ids[2];

    for (int i = 0; i < 2; i++) {
        settings.id = 1000 * (uint64_t)(i + 1);
        begin(1, 1);
        start(1);
        ck_assert_int_eq(nodes[0].last.round, 0);
        ids[i] = nodes[0].last.round_id;
        tear_down();
    }
    ck_assert_uint_ne(ids[0], ids[1]);
    begin(1, 1);
}
END_TEST

/* --- Who may use the store ---------------------------------------------- */

static void name_address(char *out, size_t size, int node, int k)
{
    snprintf(out, size, "2001:db8:%x::%x", node, k);
}

START_TEST(peers_are_all_addresses_of_all_nodes)
{
    char addr[64], want[80];

    begin(NODES, NODES);
    for (int i = 0; i < NODES; i++) {
        struct node_msg msg = join_of(i, "h");
        size_t len = 0;

        /* Node 0 has declared no other one, the next ones more and more. */
        for (int k = 0; k < 2 * i; k++) {
            name_address(addr, sizeof(addr), i, k);
            len += (size_t)snprintf(msg.addrs + len, sizeof(msg.addrs) - len,
                "%s%s", k > 0 ? " " : "", addr);
            ck_assert_uint_lt(len, sizeof(msg.addrs));
        }
        ck_assert(join_as(i, &msg));
    }
    ck_assert_int_gt(nodes[0].told[NODE_PEERS], 1);
    ck_assert_uint_lt(strlen(nodes[0].peers), sizeof(nodes[0].peers) - 1);
    for (int i = 0; i < NODES; i++) {
        snprintf(want, sizeof(want), " 10.0.0.%d ", i);
        ck_assert_ptr_nonnull(strstr(nodes[0].peers, want));
        for (int k = 0; k < 2 * i; k++) {
            name_address(addr, sizeof(addr), i, k);
            snprintf(want, sizeof(want), " %s ", addr);
            ck_assert_msg(strstr(nodes[0].peers, want) != NULL, "no%sin%s",
                want, nodes[0].peers);
        }
        ck_assert_int_eq(nodes[i].told[NODE_PEERS] > 0, i == 0);
    }
    ck_assert_int_eq(nodes[0].last.kind, NODE_PREPARE);
}
END_TEST

/* Of any length, to the longest. */
START_TEST(peers_fit_in_any_case)
{
    const size_t len = NODE_ADDRS_MAX / 2 - 1;
    size_t total = 0;

    begin(3, 3);
    for (int i = 0; i < 3; i++) {
        struct node_msg msg = join_of(i, "h");
        char addr[NODE_ADDR_MAX] = "";

        memset(addr, 'a' + i, len);
        memset(msg.addrs, 'A' + i, (size_t)_i);
        nodes[i] = (struct node){0};
        nodes[i].m = membership_join(&ms, &nodes[i], &msg, addr, now, &refusal);
        ck_assert_ptr_nonnull(nodes[i].m);
    }
    for (const char *p = nodes[0].peers; *p != '\0'; p++)
        total += *p != ' ';
    ck_assert_uint_eq(total, 3 * (len + (size_t)_i));
}
END_TEST

START_TEST(stale_node_that_leaves_disturbs_nobody)
{
    begin(1, 3);
    back(0, 4, 1);
    back(1, 3, 2);
    assert_stale(1, 3);
    say(1, (struct node_msg){.kind = NODE_LEAVE, .text = "SIGTERM"});
    ended(1, NODE_STOPPED);
    only_welcome(0);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_RUNNING);
}
END_TEST

/* It is here. */
START_TEST(node_that_connects_anew_between_rounds_is_not_called_for)
{
    struct node_msg msg;

    settings.restart_delay_ms = 1000;
    settings.restart_delay_max_ms = 1000;
    begin(1, 3);
    start(2);
    failed(1, 2, EXIT_STATUS(1));
    ended(1, NODE_HAS_FAILED);
    ended(0, NODE_STOPPED);
    pass(MEMBERSHIP_SETTLE_MS);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_DELAY);
    msg = now_of(1);
    msg.part = NODE_PART_DONE;
    msg.round_restart_count = 0;
    come_back(1, &msg);
    pass(settings.restart_delay_ms);
    ready(0);
    ck_assert_int_eq(nodes[1].last.group_world_size, 2);
}
END_TEST

START_TEST(part_that_there_is_not_is_refused)
{
    struct node_msg msg;

    begin(1, 2);
    msg = back_of(0, 4, 2);
    msg.part = -1;
    refuse(&msg, "part");
    msg.part = NODE_PART_DONE + 1;
    refuse(&msg, "part");
}
END_TEST

/* Also before the host's own agent has joined. */
START_TEST(NODE_01_the_host_is_node_rank_0)
{
    struct node_msg msg;

    settings.is_static = true;
    settings.host_agent_id = 1000;
    settings.host_pid = 4711;
    strcpy(settings.host, "node0");
    begin(2, 2);
    msg = join_of(1, "node1");
    msg.node_rank = 0;
    refuse(&msg, "node rank 0 is already taken by host node0, pid 4711");
    join(0);
    join(1);
    ready(0);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_RUNNING);
}
END_TEST

START_TEST(waiting_is_counted_over_coordinators)
{
    struct node_msg msg;

    begin(2, 2);
    msg = join_of(0, "node0");
    msg.waited_ms = settings.join_timeout_ms - 10;
    ck_assert(join_as(0, &msg));
    pass(9);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_GATHERING);
    pass(1);
    ck_assert_int_eq(nodes[0].last.kind, NODE_CLOSED);
}
END_TEST

/* It has stood still: what was said meanwhile is still to be read. */
START_TEST(coordinator_that_stood_still_blames_nobody)
{
    begin(2, 2);
    join(0);
    join(1);
    ready(0);
    now += 60 * CLOCK_NS_PER_S;
    membership_tick(&ms, now);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_RUNNING);
    /* From now on nobody says anything. */
    for (int i = 0; i < 5; i++) {
        now += settings.keep_alive_ms * MS;
        membership_tick(&ms, now);
    }
    ck_assert(nodes[0].is_dropped && nodes[1].is_dropped);
}
END_TEST

START_TEST(node_that_is_away_is_awaited)
{
    struct node_msg msg;
    struct member *m;

    begin(2, 2);
    join(0);
    join(1);
    ready(0);
    if (_i == 1)
        ended(1, NODE_SUCCEEDED);
    m = nodes[1].m;
    nodes[1].m = NULL;
    membership_away(&ms, m, now);
    ck_assert_int_eq(ms.phase, MEMBERSHIP_RUNNING);
    ck_assert_int_eq(nodes[0].told[NODE_FAILED], 0);
    if (_i == 2) { /* and does not come */
        pass(return_ms());
        ck_assert_int_eq(nodes[0].told[NODE_FAILED], 1);
        return;
    }
    msg = back_of(1, ms.round, 2);
    msg.round_id = ms.round_id;
    msg.agent_id = 1001;
    come_back(1, &msg);
    ck_assert_int_eq(nodes[1].ntold, 1); /* WELCOME */
    ended(0, NODE_SUCCEEDED);
    ended(1, NODE_SUCCEEDED);
    ck_assert_int_eq(nodes[1].last.kind, NODE_CLOSED);
    ck_assert_int_eq(nodes[1].last.result, 0);
}
END_TEST

START_TEST(restarts_never_go_back)
{
    struct node_msg msg;

    begin(2, 2);
    back(0, 4, 2);
    msg = back_of(1, 5, 2);
    msg.restart_count = msg.round_restart_count = 1;
    come_back(1, &msg);
    assert_stale(0, 4);
    ended(0, NODE_STOPPED);
    pass(return_ms());
    ended(1, NODE_STOPPED);
    ready(0);
    ck_assert_int_eq(nodes[1].last.round, 6);
    ck_assert_int_eq(nodes[1].last.restart_count, 1);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("membership");

    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, round_begins_when_all_are_there_and_the_store_is_open);
    tcase_add_test(t, nodes_are_ordered_as_people_count);
    tcase_add_test(t, NODE_03_node_rank_is_the_first_key);
    tcase_add_test(t, worker_counts_and_roles_may_differ);
    tcase_add_test(t, ELA_06_last_call_only_where_somebody_may_still_come);
    tcase_add_test(t, too_few_end_with_the_reason);
    tcase_add_test(t, who_does_not_belong_is_refused_with_the_reason);
    tcase_add_test(t, NODE_01_static_ranks_are_taken_once);
    tcase_add_test(t, ELA_10_success_is_the_success_of_all);
    tcase_add_test(t, node_that_has_succeeded_may_go);
    tcase_add_test(t, ELA_03_failure_is_told_at_once_and_counted_once);
    tcase_add_test(t, first_cause_is_waited_for);
    tcase_add_test(t, earlier_death_is_the_first_whoever_is_heard_first);
    tcase_add_test(t, what_cannot_be_executed_is_not_tried_again);
    tcase_add_test(t, restarts_wait_and_crash_loops_end);
    tcase_add_test(t, ELA_02_lost_node_ends_the_round_and_is_waited_for);
    tcase_add_test(t, silent_node_is_lost);
    tcase_add_test(t, ELA_01_clean_leave_consumes_nothing_and_closes_nothing);
    tcase_add_test(t, static_node_cannot_be_spared);
    tcase_add_test(t, spare_takes_the_place_of_the_lost);
    tcase_add_test(t, nobody_is_disturbed_who_is_nearly_done);
    tcase_add_test(t, master_that_goes_before_the_round_is_replaced);
    tcase_add_test(t, master_that_opens_no_store_is_lost);
    tcase_add_test(t, old_words_mean_nothing);
    tcase_add_test(t, NODE_06_after_the_end_nobody_is_let_in);
    tcase_add_test(t, nobody_notices_who_comes_back_in_time);
    tcase_add_test(t, those_who_have_succeeded_say_so_again);
    tcase_add_test(t, who_does_not_come_back_is_lost);
    tcase_add_test(t, who_waits_elsewhere_is_not_lost);
    tcase_add_loop_test(t, restart_is_not_counted_by_two_coordinators, 0, 2);
    tcase_add_test(t, node_that_was_lost_before_is_not_counted_again);
    tcase_add_test(t, round_that_all_are_through_with_is_followed_by_the_next);
    tcase_add_test(t, failure_is_told_to_those_who_come_back_later);
    tcase_add_test(t, stop_is_told_to_those_who_come_back_later);
    tcase_add_test(t, node_of_an_older_round_ends_its_workers_first);
    tcase_add_test(t, rounds_of_one_number_are_told_apart);
    tcase_add_test(t, place_is_given_back_once);
    tcase_add_test(t, stale_node_that_dies_is_missed_by_nobody);
    tcase_add_loop_test(t, those_that_are_awaited_come_before_others, 2, 4);
    tcase_add_test(t, new_node_does_not_keep_the_round_from_going_on);
    tcase_add_test(t, connection_of_a_running_node_is_replaced);
    tcase_add_test(t, connection_of_a_node_that_has_ended_is_replaced);
    tcase_add_test(t, connection_is_replaced_while_the_round_is_stopped);
    tcase_add_loop_test(
        t, connection_is_replaced_while_the_store_is_opened, 0, 2);
    tcase_add_test(t, connection_of_a_spare_is_replaced);
    tcase_add_test(t, static_node_keeps_its_rank_over_another_connection);
    tcase_add_loop_test(t, absurd_numbers_are_refused, 0,
        (int)(sizeof(absurd) / sizeof(absurd[0])));
    tcase_add_loop_test(t, nobody_can_make_sense_of_such_a_place, 0, 5);
    tcase_add_test(t, numbers_of_rounds_never_go_back);
    tcase_add_test(t, rounds_of_two_coordinators_have_other_ids);
    tcase_add_test(t, peers_are_all_addresses_of_all_nodes);
    tcase_add_loop_test(t, peers_fit_in_any_case, 100, NODE_ADDRS_MAX);
    tcase_add_test(
        t, node_that_comes_while_the_store_is_opened_is_in_the_round);
    tcase_add_test(t, spare_that_comes_while_the_store_is_opened_is_told);
    tcase_add_test(t, stale_node_that_leaves_disturbs_nobody);
    tcase_add_loop_test(
        t, node_that_is_lost_between_rounds_is_called_for, 0, 2);
    tcase_add_test(t, node_that_connects_anew_between_rounds_is_not_called_for);
    tcase_add_test(t, part_that_there_is_not_is_refused);
    tcase_add_test(t, restarts_never_go_back);
    tcase_add_test(t, NODE_01_the_host_is_node_rank_0);
    tcase_add_test(t, waiting_is_counted_over_coordinators);
    tcase_add_test(t, coordinator_that_stood_still_blames_nobody);
    tcase_add_loop_test(t, node_that_is_away_is_awaited, 0, 3);
    tcase_add_test(t, newer_round_is_the_one_that_goes_on);
    tcase_add_test(t, node_that_comes_back_after_the_end_is_told_of_it);
    tcase_add_loop_test(t, failure_after_a_stop_is_none, 0, 3);
    tcase_add_loop_test(t, leave_explains_what_has_just_failed, 0,
        (int)(sizeof(leaves) / sizeof(leaves[0])));
    tcase_add_test(t, job_is_no_success_without_those_that_left);
    return unit_run("membership", t);
}
