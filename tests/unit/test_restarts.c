/* Whether and when a round is followed by another one. */
#include <signal.h>

#include "agent/restarts.h"
#include "rendezvous/base/clock.h"
#include "tests/unit/unit.h"

#define LONG_NS (100 * CLOCK_NS_PER_S)
#define SHORT_NS CLOCK_NS_PER_S

static struct lifecycle lc;
static uint64_t delay_ms;

static void tear_down(void)
{
    lifecycle_fini(&lc);
}

/* A round of two workers in which rank 1 ended with wait_status. */
static void round_ended(int wait_status)
{
    struct lc_event ev = {.now_ns = 1};

    lifecycle_fini(&lc);
    ck_assert_int_eq(lifecycle_init(&lc, 2, 1000, 0, 1), 0);
    for (int i = 0; i < 2; i++) {
        ev = (struct lc_event){
            .kind = LC_EV_STARTED, .worker = i, .pid = 10 + i, .now_ns = 1};
        lifecycle_step(&lc, &ev);
    }
    for (int i = 1; i >= 0; i--) {
        ev = (struct lc_event){.kind = LC_EV_EXITED,
            .worker = i,
            .wait_status = i == 1 ? wait_status : 0,
            .now_ns = 2};
        lifecycle_step(&lc, &ev);
    }
    ev = (struct lc_event){.kind = LC_EV_CHILDREN_GONE, .now_ns = 3};
    lifecycle_step(&lc, &ev);
    ck_assert_int_eq(lc.state, LC_DONE);
}

static enum restarts_verdict decide(struct restarts *r, uint64_t lived_ns)
{
    return restarts_decide(r, &lc, lived_ns, &delay_ms);
}

START_TEST(success_is_the_end)
{
    struct restarts r = {.max_restarts = 3};

    round_ended(0);
    ck_assert_int_eq(decide(&r, LONG_NS), RESTARTS_END);
    ck_assert_int_eq(r.count, 0);
    ck_assert_int_eq(r.nhistory, 0);
}
END_TEST

START_TEST(failures_are_restarted_as_often_as_allowed)
{
    struct restarts r = {.max_restarts = 2};

    round_ended(7 << 8);
    for (int i = 1; i <= 2; i++) {
        ck_assert_int_eq(decide(&r, SHORT_NS), RESTARTS_AGAIN);
        ck_assert_int_eq(r.count, i);
        ck_assert_uint_eq(delay_ms, 0);
    }
    ck_assert_int_eq(decide(&r, SHORT_NS), RESTARTS_EXHAUSTED);
    ck_assert_int_eq(r.count, 2);
    ck_assert_int_eq(r.nhistory, 3);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(r.history[i].restart_count, i);
        ck_assert_int_eq(r.history[i].local_rank, 1);
        ck_assert_int_eq(r.history[i].pid, 11);
        ck_assert_int_eq(r.history[i].wait_status, 7 << 8);
    }
}
END_TEST

START_TEST(a_stop_is_no_failure_to_be_restarted)
{
    struct restarts r = {.max_restarts = 2};

    round_ended(SIGKILL);
    if (_i == 0)
        lc.stop_signal = SIGTERM;
    else if (_i == 1)
        lc.is_parent_lost = true;
    else if (_i == 2)
        lc.gave_up = true; /* something of this round is still there */
    else
        lc.workers[1].outcome = LC_OUT_NOT_BEGUN;
    ck_assert_int_eq(decide(&r, SHORT_NS), RESTARTS_END);
}
END_TEST

START_TEST(the_delay_is_doubled_up_to_its_limit)
{
    struct restarts r = {
        .max_restarts = 9, .delay_ms = 1000, .delay_max_ms = 3000};
    const uint64_t want[] = {1000, 2000, 3000, 3000};

    round_ended(SIGKILL);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(decide(&r, SHORT_NS), RESTARTS_AGAIN);
        ck_assert_uint_eq(delay_ms, want[i]);
    }
}
END_TEST

START_TEST(short_rounds_in_a_row_are_a_crash_loop)
{
    struct restarts r = {
        .max_restarts = 99, .crash_loop_count = 3, .crash_loop_ms = 5000};

    round_ended(SIGKILL);
    ck_assert_int_eq(decide(&r, SHORT_NS), RESTARTS_AGAIN);
    ck_assert_int_eq(decide(&r, SHORT_NS), RESTARTS_AGAIN);
    ck_assert_int_eq(decide(&r, LONG_NS), RESTARTS_AGAIN);
    ck_assert_int_eq(decide(&r, SHORT_NS), RESTARTS_AGAIN);
    ck_assert_int_eq(decide(&r, SHORT_NS), RESTARTS_AGAIN);
    ck_assert_int_eq(decide(&r, SHORT_NS), RESTARTS_CRASH_LOOP);
    ck_assert_int_eq(r.count, 5);
}
END_TEST

START_TEST(the_first_and_the_last_rounds_are_remembered)
{
    struct restarts r = {.max_restarts = 100};
    const int half = RESTARTS_HISTORY_MAX / 2;

    round_ended(SIGKILL);
    for (int i = 0; i < 40; i++)
        ck_assert_int_eq(decide(&r, SHORT_NS), RESTARTS_AGAIN);
    ck_assert_int_eq(r.nhistory, RESTARTS_HISTORY_MAX);
    ck_assert_int_eq(r.nforgotten, 40 - RESTARTS_HISTORY_MAX);
    for (int i = 0; i < half; i++) {
        ck_assert_int_eq(r.history[i].restart_count, i);
        ck_assert_int_eq(r.history[half + i].restart_count, 40 - half + i);
    }
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("restarts");

    tcase_add_checked_fixture(t, NULL, tear_down);
    tcase_add_test(t, success_is_the_end);
    tcase_add_test(t, failures_are_restarted_as_often_as_allowed);
    tcase_add_loop_test(t, a_stop_is_no_failure_to_be_restarted, 0, 4);
    tcase_add_test(t, the_delay_is_doubled_up_to_its_limit);
    tcase_add_test(t, short_rounds_in_a_row_are_a_crash_loop);
    tcase_add_test(t, the_first_and_the_last_rounds_are_remembered);
    return unit_run("restarts", t);
}
