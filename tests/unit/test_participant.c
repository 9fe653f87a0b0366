/* What one node does in a job, event by event: everything that it does comes
 * out through callbacks, which write it down. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agent/participant.h"
#include "rendezvous/base/clock.h"
#include "tests/unit/unit.h"

#define MS CLOCK_NS_PER_MS
#define AGENT_ID 77

static struct participant part;
static struct node_msg sent[NODE_MSG_COUNT]; /* the last one of each kind */
static uint64_t now;
static char done[512]; /* what was done since the last look */
static int open_store_rc;

__attribute__((format(printf, 1, 2))) static void note(const char *fmt, ...)
{
    size_t len = strlen(done);
    va_list ap;

    if (len > 0)
        done[len++] = ' ';
    va_start(ap, fmt);
    vsnprintf(done + len, sizeof(done) - len, fmt, ap);
    va_end(ap);
}

static void send_cb(void *arg, const struct node_msg *msg)
{
    (void)arg;
    sent[msg->kind] = *msg;
    note("%s", node_msg_name(msg->kind));
}

static void allow_peers_cb(void *arg, const char *addrs, bool is_first)
{
    (void)arg;
    note("%s:%s", is_first ? "only" : "also", addrs);
}

static int open_store_cb(void *arg)
{
    (void)arg;
    note("open");
    return open_store_rc;
}

static void close_store_cb(void *arg)
{
    (void)arg;
    note("close");
}

static void start_cb(void *arg)
{
    (void)arg;
    note("start");
}

static void end_workers_cb(void *arg, const struct node_msg *why)
{
    (void)arg;
    note("end:%s", why == NULL ? "lost" : node_msg_name(why->kind));
}

static void tell_cb(void *arg, const struct node_msg *msg)
{
    (void)arg;
    note("tell:%s", node_msg_name(msg->kind));
}

static void finish_cb(void *arg)
{
    (void)arg;
    note("finish");
}

static void set_up(void)
{
    static const struct participant_callbacks callbacks = {send_cb,
        allow_peers_cb, open_store_cb, close_store_cb, start_cb, end_workers_cb,
        tell_cb, finish_cb};

    now = 1000 * CLOCK_NS_PER_S;
    participant_init(&part, &callbacks, NULL, AGENT_ID);
}

/* That has been done since the last look, and nothing else. */
#define expect(what)                                                           \
    do {                                                                       \
        ck_assert_str_eq(done, what);                                          \
        done[0] = '\0';                                                        \
    } while (0)

static void hear(struct node_msg msg)
{
    participant_message(&part, &msg, now);
}

static void hear_of_round(enum node_msg_kind kind, int round)
{
    hear((struct node_msg){.kind = kind, .round = round});
}

static void hear_peers(int round, const char *addrs)
{
    struct node_msg msg = {.kind = NODE_PEERS, .round = round};

    snprintf(msg.addrs, sizeof(msg.addrs), "%s", addrs);
    hear(msg);
}

static void hear_verdict(int round, int restart_count, enum node_next next)
{
    hear((struct node_msg){.kind = NODE_VERDICT,
        .round = round,
        .restart_count = restart_count,
        .rank = 3,
        .next = (int32_t)next});
}

static struct node_msg round_msg(int round, int restart_count)
{
    return (struct node_msg){.kind = NODE_ROUND,
        .round = round,
        .round_id = 500 + (uint64_t)round,
        .restart_count = restart_count,
        .group_rank = 1,
        .group_world_size = 3,
        .rank_base = 2};
}

static void begin(int round, int restart_count)
{
    hear(round_msg(round, restart_count));
    expect("close start");
}

static void worker_fails(int rank, uint64_t ago_ns)
{
    const struct node_msg failure = {.rank = rank, .wait_status = 256};

    participant_failed(&part, &failure, now - ago_ns, now);
}

static void come_back(void)
{
    hear((struct node_msg){.kind = NODE_WELCOME});
}

static struct node_msg joined(void)
{
    struct node_msg join = {.kind = NODE_JOIN, .part = -1};

    participant_join(&part, &join);
    return join;
}

/* --- What the coordinator is told of the last round --------------------- */

START_TEST(before_the_first_round_there_is_nothing_to_tell)
{
    struct node_msg join = joined();

    ck_assert_uint_eq(join.agent_id, AGENT_ID);
    ck_assert_int_eq(join.part, NODE_PART_NONE);
    ck_assert_int_eq(join.round, -1);
    ck_assert_int_eq(join.restart_count, 0);
}
END_TEST

START_TEST(join_tells_of_a_round_until_its_verdict_and_after)
{
    struct node_msg join;

    begin(4, 2);
    join = joined();
    ck_assert_int_eq(join.part, NODE_PART_OPEN);
    ck_assert_int_eq(join.round, 4);
    ck_assert_uint_eq(join.round_id, 504);
    ck_assert_int_eq(join.restart_count, 2);
    ck_assert_int_eq(join.round_restart_count, 2);
    ck_assert_int_eq(join.group_rank, 1);
    ck_assert_int_eq(join.group_world_size, 3);
    participant_ended(&part, NODE_STOPPED);
    ck_assert_int_eq(joined().part, NODE_PART_OPEN);
    hear_verdict(4, 3, NODE_NEXT_ROUND);
    join = joined();
    ck_assert_int_eq(join.part, NODE_PART_DONE);
    ck_assert_int_eq(join.round, 4);
    ck_assert_int_eq(join.restart_count, 3);
    ck_assert_int_eq(join.round_restart_count, 2);
    hear(round_msg(5, 3));
    join = joined();
    ck_assert_int_eq(join.part, NODE_PART_OPEN);
    ck_assert_int_eq(join.round, 5);
    ck_assert_int_eq(join.round_restart_count, 3);
}
END_TEST

/* --- The store ---------------------------------------------------------- */

START_TEST(store_is_new_for_each_round)
{
    struct node_msg msg = round_msg(0, 0);

    hear_of_round(NODE_PREPARE, 0);
    expect("close open READY");
    ck_assert_int_eq(sent[NODE_READY].round, 0);
    msg.group_rank = 0;
    hear(msg);
    expect("start"); /* it is this node's */
    hear_of_round(NODE_PREPARE, 1);
    expect(""); /* workers still use it */
    participant_ended(&part, NODE_STOPPED);
    expect("ENDED");
    hear_of_round(NODE_PREPARE, 1);
    expect("close open READY");
    ck_assert_int_eq(sent[NODE_READY].round, 1);
    /* Another node has become the first one. */
    hear(round_msg(2, 0));
    expect("close start");
}
END_TEST

START_TEST(node_that_cannot_open_a_store_gives_up)
{
    open_store_rc = -EMFILE;
    hear_of_round(NODE_PREPARE, 0);
    expect("close open finish");
    ck_assert_int_eq(part.state, PARTICIPANT_OVER);
    ck_assert(!part.is_success);
    hear_of_round(NODE_PREPARE, 1);
    hear(round_msg(1, 0));
    expect("");
}
END_TEST

START_TEST(peers_of_a_round_replace_those_of_the_one_before)
{
    hear_peers(0, "a b");
    expect("only:a b");
    hear_peers(0, "c");
    expect("also:c");
    hear_peers(1, "d");
    expect("only:d");
}
END_TEST

/* One that did not know of the round that was about to begin gives its number
 * once more. */
START_TEST(peers_of_another_coordinator_replace_those_of_the_one_before)
{
    hear_peers(0, "a b");
    expect("only:a b");
    come_back();
    hear_peers(0, "c");
    expect("only:c");
    hear_peers(0, "d");
    expect("also:d");
}
END_TEST

/* --- Rounds ------------------------------------------------------------- */

START_TEST(round_is_ignored_while_one_runs)
{
    begin(0, 0);
    hear(round_msg(1, 1));
    expect("");
    ck_assert_int_eq(part.place.round, 0);
    ck_assert_int_eq(part.restart_count, 0);
}
END_TEST

static const enum node_msg_kind over[] = {NODE_FAILED, NODE_STOP};

START_TEST(round_that_is_over_elsewhere_ends_the_workers_once)
{
    enum node_msg_kind kind = over[_i];

    hear_of_round(kind, -1);
    hear_of_round(kind, 0);
    expect(""); /* none has begun */
    begin(1, 0);
    hear_of_round(kind, 0);
    hear_of_round(kind, 2);
    expect(""); /* another round */
    /* Also before they have been started, for all that is known here. */
    hear_of_round(kind, 1);
    ck_assert_int_eq(part.why.kind, kind);
    if (kind == NODE_FAILED)
        expect("end:FAILED");
    else
        expect("end:STOP");
    hear_of_round(NODE_FAILED, 1);
    hear_of_round(NODE_STOP, 1);
    expect("");
    ck_assert_int_eq(part.why.kind, NODE_FAILED); /* for another coordinator */
    participant_ended(&part, NODE_STOPPED);
    expect("ENDED");
    hear_of_round(kind, 1);
    expect("");
    /* It is not taken for the end of the next one. */
    begin(2, 0);
    ck_assert(!part.has_why);
    hear_of_round(NODE_STOP, 2);
    expect("end:STOP");
}
END_TEST

START_TEST(end_of_workers_is_told_once)
{
    participant_ended(&part, NODE_SUCCEEDED);
    expect(""); /* there were none */
    begin(3, 0);
    participant_ended(&part, NODE_SUCCEEDED);
    expect("ENDED");
    ck_assert_int_eq(sent[NODE_ENDED].round, 3);
    ck_assert_int_eq(sent[NODE_ENDED].result, NODE_SUCCEEDED);
    participant_ended(&part, NODE_HAS_FAILED);
    expect("");
    ck_assert_int_eq(part.result, NODE_SUCCEEDED);
}
END_TEST

START_TEST(failure_is_told_while_the_round_runs)
{
    worker_fails(2, 0);
    expect("");
    begin(3, 0);
    worker_fails(2, 5 * MS);
    expect("FAILED");
    ck_assert_int_eq(sent[NODE_FAILED].round, 3);
    ck_assert_int_eq(sent[NODE_FAILED].rank, 2);
    ck_assert_int_eq(sent[NODE_FAILED].wait_status, 256);
    ck_assert_uint_eq(sent[NODE_FAILED].ago_ns, 5 * MS);
    worker_fails(3, 7 * MS); /* this was the cause */
    expect("FAILED");
    ck_assert_int_eq(sent[NODE_FAILED].rank, 3);
    participant_ended(&part, NODE_HAS_FAILED);
    expect("ENDED");
    worker_fails(2, 0);
    expect("");
    ck_assert_int_eq(part.failure.rank, 3);
}
END_TEST

START_TEST(verdict_is_told_once)
{
    hear_verdict(-1, 1, NODE_NEXT_ROUND);
    expect("");
    begin(1, 0);
    participant_ended(&part, NODE_STOPPED);
    expect("ENDED");
    hear_verdict(0, 1, NODE_NEXT_ROUND);
    expect(""); /* of another round */
    ck_assert(!part.has_cause);
    hear_verdict(1, 1, NODE_NEXT_ROUND);
    expect("tell:VERDICT");
    ck_assert(part.has_cause);
    ck_assert_int_eq(part.cause.rank, 3);
    ck_assert_int_eq(part.restart_count, 1);
    hear_verdict(1, 2, NODE_NEXT_EXHAUSTED);
    expect("");
    ck_assert_int_eq(part.restart_count, 1);
    ck_assert_int_eq(part.cause.next, NODE_NEXT_ROUND);
    begin(2, 1);
    ck_assert(!part.has_cause);
}
END_TEST

START_TEST(spare_is_told_that_it_is_one)
{
    hear((struct node_msg){.kind = NODE_PARKED});
    expect("tell:PARKED");
    ck_assert_int_eq(part.state, PARTICIPANT_WAITING);
    /* What makes no sense from a coordinator. */
    hear((struct node_msg){.kind = NODE_JOIN});
    hear((struct node_msg){.kind = NODE_ENDED});
    hear((struct node_msg){.kind = NODE_LEAVE});
    expect("");
}
END_TEST

/* --- A connection that was lost ----------------------------------------- */

START_TEST(welcome_asks_for_nothing_where_nothing_happened)
{
    come_back();
    expect("");
    begin(0, 0);
    come_back();
    expect("");
}
END_TEST

START_TEST(failure_and_end_are_said_again_to_whoever_is_there_now)
{
    begin(3, 0);
    worker_fails(2, 5 * MS);
    expect("FAILED");
    now += 400 * MS;
    come_back();
    expect("FAILED"); /* the others have to know as soon as they can */
    ck_assert_uint_eq(sent[NODE_FAILED].ago_ns, 405 * MS);
    participant_ended(&part, NODE_HAS_FAILED);
    expect("ENDED");
    now += 600 * MS;
    memset(sent, 0, sizeof(sent));
    come_back();
    expect("FAILED ENDED");
    ck_assert_uint_eq(sent[NODE_FAILED].ago_ns, 1005 * MS);
    ck_assert_int_eq(sent[NODE_FAILED].round, 3);
    ck_assert_int_eq(sent[NODE_FAILED].rank, 2);
    ck_assert_int_eq(sent[NODE_ENDED].round, 3);
    ck_assert_int_eq(sent[NODE_ENDED].result, NODE_HAS_FAILED);
    hear_verdict(3, 1, NODE_NEXT_ROUND);
    expect("tell:VERDICT");
    come_back();
    expect(""); /* that is settled */
    /* Nor is it taken for one of the next round. */
    begin(4, 1);
    come_back();
    expect("");
}
END_TEST

/* The others have to hear of it where the next coordinator has not. */
START_TEST(failure_elsewhere_is_told_to_another_coordinator)
{
    begin(3, 0);
    hear((struct node_msg){
        .kind = NODE_FAILED, .round = 3, .rank = 5, .ago_ns = 2 * MS});
    expect("end:FAILED");
    now += 100 * MS;
    come_back();
    expect("FAILED");
    ck_assert_int_eq(sent[NODE_FAILED].round, 3);
    ck_assert_int_eq(sent[NODE_FAILED].rank, 5);
    ck_assert_uint_eq(sent[NODE_FAILED].ago_ns, 102 * MS);
    worker_fails(2, 0);
    participant_ended(&part, NODE_HAS_FAILED);
    expect("FAILED ENDED");
    come_back();
    expect("FAILED FAILED ENDED"); /* its own, too */
    ck_assert_int_eq(sent[NODE_FAILED].rank, 5);
    hear_verdict(3, 1, NODE_NEXT_ROUND);
    expect("tell:VERDICT");
    come_back();
    expect("");
}
END_TEST

/* Nothing is left to be ended. */
START_TEST(failure_elsewhere_is_remembered_after_the_end)
{
    begin(3, 0);
    participant_ended(&part, NODE_SUCCEEDED);
    expect("ENDED");
    hear_of_round(NODE_FAILED, 3);
    expect("");
    come_back();
    expect("FAILED ENDED");
    begin(4, 1);
    come_back();
    expect("");
}
END_TEST

START_TEST(stop_is_not_told_to_another_coordinator)
{
    begin(3, 0);
    hear_of_round(NODE_STOP, 3);
    expect("end:STOP");
    come_back();
    expect("");
    participant_ended(&part, NODE_STOPPED);
    expect("ENDED");
    come_back();
    expect("ENDED");
}
END_TEST

START_TEST(leave_is_said_again)
{
    begin(0, 0);
    participant_leave(&part, "SIGTERM");
    expect("LEAVE");
    come_back();
    expect("LEAVE");
    ck_assert_str_eq(sent[NODE_LEAVE].text, "SIGTERM");
}
END_TEST

/* --- Ends --------------------------------------------------------------- */

static void hear_closed(int result)
{
    hear((struct node_msg){.kind = NODE_CLOSED, .result = result});
}

START_TEST(end_of_the_job_is_the_end_of_who_has_no_workers)
{
    begin(0, 0);
    participant_ended(&part, NODE_SUCCEEDED);
    expect("ENDED");
    hear_closed(0);
    expect("tell:CLOSED finish");
    ck_assert_int_eq(part.state, PARTICIPANT_OVER);
    ck_assert(part.is_success);
    hear_closed(1);
    hear(round_msg(1, 0));
    hear_of_round(NODE_PREPARE, 1);
    participant_leave(&part, "SIGTERM");
    participant_abandoned(&part);
    participant_give_up(&part);
    expect("");
    ck_assert(part.is_success);
}
END_TEST

START_TEST(end_of_the_job_ends_a_spare)
{
    hear_closed(1);
    expect("tell:CLOSED finish");
    ck_assert(!part.is_success);
}
END_TEST

/* What its workers come to meanwhile does not matter any more. */
START_TEST(end_of_the_job_ends_the_workers_first)
{
    begin(0, 0);
    hear_closed(_i);
    expect("tell:CLOSED end:CLOSED");
    ck_assert_int_eq(part.state, PARTICIPANT_RUNNING);
    hear_closed(_i);
    participant_abandoned(&part);
    expect(""); /* it is said already */
    participant_ended(&part, _i == 0 ? NODE_STOPPED : NODE_SUCCEEDED);
    expect("ENDED finish");
    ck_assert(part.is_success == (_i == 0));
}
END_TEST

START_TEST(node_that_is_abandoned_while_it_waits_ends)
{
    participant_abandoned(&part);
    expect("finish");
    ck_assert(!part.is_success);
    participant_abandoned(&part);
    expect("");
}
END_TEST

/* Nobody is left to ask: what this node came to is the result. */
START_TEST(node_that_is_abandoned_ends_its_workers)
{
    begin(0, 0);
    participant_abandoned(&part);
    expect("end:lost");
    participant_abandoned(&part);
    expect("");
    participant_ended(&part, (enum node_result)_i);
    expect("ENDED finish");
    ck_assert(part.is_success == (_i == NODE_SUCCEEDED));
}
END_TEST

START_TEST(node_that_is_abandoned_when_it_has_ended_goes_by_its_own_result)
{
    begin(0, 0);
    participant_ended(&part, (enum node_result)_i);
    expect("ENDED");
    participant_abandoned(&part);
    expect("finish");
    ck_assert(part.is_success == (_i == NODE_SUCCEEDED));
}
END_TEST

START_TEST(verdict_is_not_undone_by_success_here)
{
    begin(0, 0);
    participant_ended(&part, NODE_SUCCEEDED);
    hear_verdict(0, 0, NODE_NEXT_EXHAUSTED);
    expect("ENDED tell:VERDICT finish");
    participant_abandoned(&part);
    hear_of_round(NODE_CLOSED, 0);
    expect("");
    ck_assert(!part.is_success);
}
END_TEST

START_TEST(leave_is_at_once_where_there_are_no_workers)
{
    participant_leave(&part, "SIGINT");
    expect("LEAVE finish");
    ck_assert_str_eq(sent[NODE_LEAVE].text, "SIGINT");
    participant_leave(&part, "SIGINT");
    hear(round_msg(0, 0));
    expect("");
}
END_TEST

START_TEST(leave_waits_for_the_workers)
{
    begin(0, 0);
    participant_leave(&part, "SIGTERM");
    expect("LEAVE");
    participant_leave(&part, "SIGINT");
    expect("");
    ck_assert_str_eq(part.leave_text, "SIGTERM");
    participant_ended(&part, NODE_STOPPED);
    expect("ENDED finish");
    ck_assert(!part.is_success);
}
END_TEST

START_TEST(leave_between_rounds)
{
    begin(0, 0);
    participant_ended(&part, NODE_STOPPED);
    expect("ENDED");
    participant_leave(&part, "SIGTERM");
    expect("LEAVE finish");
}
END_TEST

START_TEST(reason_that_is_too_long_is_cut)
{
    char why[2 * NODE_TEXT_MAX];

    memset(why, 'w', sizeof(why));
    why[sizeof(why) - 1] = '\0';
    participant_leave(&part, why);
    ck_assert_uint_eq(strlen(sent[NODE_LEAVE].text), NODE_TEXT_MAX - 1);
}
END_TEST

/* Whatever its workers do: it is not there any more. */
START_TEST(node_that_gives_up_is_gone)
{
    begin(0, 0);
    participant_give_up(&part);
    expect("finish");
    participant_give_up(&part);
    participant_ended(&part, NODE_SUCCEEDED);
    worker_fails(0, 0);
    hear_of_round(NODE_STOP, 0);
    hear_closed(0);
    participant_abandoned(&part);
    expect("");
    ck_assert(!part.is_success);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("participant");

    tcase_add_checked_fixture(t, set_up, NULL);
    tcase_add_test(t, before_the_first_round_there_is_nothing_to_tell);
    tcase_add_test(t, join_tells_of_a_round_until_its_verdict_and_after);
    tcase_add_test(t, store_is_new_for_each_round);
    tcase_add_test(t, node_that_cannot_open_a_store_gives_up);
    tcase_add_test(t, peers_of_a_round_replace_those_of_the_one_before);
    tcase_add_test(
        t, peers_of_another_coordinator_replace_those_of_the_one_before);
    tcase_add_test(t, round_is_ignored_while_one_runs);
    tcase_add_loop_test(
        t, round_that_is_over_elsewhere_ends_the_workers_once, 0, 2);
    tcase_add_test(t, end_of_workers_is_told_once);
    tcase_add_test(t, failure_is_told_while_the_round_runs);
    tcase_add_test(t, verdict_is_told_once);
    tcase_add_test(t, spare_is_told_that_it_is_one);
    tcase_add_test(t, welcome_asks_for_nothing_where_nothing_happened);
    tcase_add_test(t, failure_and_end_are_said_again_to_whoever_is_there_now);
    tcase_add_test(t, failure_elsewhere_is_told_to_another_coordinator);
    tcase_add_test(t, failure_elsewhere_is_remembered_after_the_end);
    tcase_add_test(t, stop_is_not_told_to_another_coordinator);
    tcase_add_test(t, leave_is_said_again);
    tcase_add_test(t, end_of_the_job_is_the_end_of_who_has_no_workers);
    tcase_add_test(t, end_of_the_job_ends_a_spare);
    tcase_add_loop_test(t, end_of_the_job_ends_the_workers_first, 0, 2);
    tcase_add_test(t, node_that_is_abandoned_while_it_waits_ends);
    tcase_add_loop_test(t, node_that_is_abandoned_ends_its_workers,
        NODE_SUCCEEDED, NODE_HAS_FAILED + 1);
    tcase_add_loop_test(t,
        node_that_is_abandoned_when_it_has_ended_goes_by_its_own_result,
        NODE_SUCCEEDED, NODE_HAS_FAILED + 1);
    tcase_add_test(t, verdict_is_not_undone_by_success_here);
    tcase_add_test(t, leave_is_at_once_where_there_are_no_workers);
    tcase_add_test(t, leave_waits_for_the_workers);
    tcase_add_test(t, leave_between_rounds);
    tcase_add_test(t, reason_that_is_too_long_is_cut);
    tcase_add_test(t, node_that_gives_up_is_gone);
    return unit_run("participant", t);
}
