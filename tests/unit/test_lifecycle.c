/* The worker life cycle, driven by hand: events in, actions out. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "agent/lifecycle.h"
#include "rendezvous/base/clock.h"
#include "tests/unit/unit.h"

#define GRACE_MS 1000
#define FAILURE_GRACE_MS 100
#define NWORKERS 3
#define MS CLOCK_NS_PER_MS

#define EXIT_STATUS(code) ((code) << 8)

static struct lifecycle lc;
static uint64_t now;

static void post(struct lc_event ev)
{
    ev.now_ns = now;
    lifecycle_step(&lc, &ev);
}

static void start_all(void)
{
    for (int i = 0; i < NWORKERS; i++)
        post((struct lc_event){
            .kind = LC_EV_STARTED, .worker = i, .pid = 100 + i});
}

static void set_up(void)
{
    now = 5 * MS;
    ck_assert_int_eq(
        lifecycle_init(&lc, NWORKERS, GRACE_MS, FAILURE_GRACE_MS, now), 0);
    start_all();
}

static void tear_down(void)
{
    lifecycle_fini(&lc);
}

static void exited(int worker, int wait_status)
{
    post((struct lc_event){
        .kind = LC_EV_EXITED, .worker = worker, .wait_status = wait_status});
}

/* What the caller says after it has told of every exit there is. */
static void told(void)
{
    post((struct lc_event){.kind = LC_EV_CHILDREN_LEFT});
}

static int count_signals(int sig)
{
    int n = 0;

    for (size_t i = 0; i < lc.nactions; i++)
        n += lc.actions[i].kind == LC_ACT_SIGNAL && lc.actions[i].signal == sig;
    return n;
}

static int count_kind(enum lc_action_kind kind)
{
    int n = 0;

    for (size_t i = 0; i < lc.nactions; i++)
        n += lc.actions[i].kind == kind;
    return n;
}

/* The signal to all children, 0 if there is none. */
static int swept_with(void)
{
    for (size_t i = 0; i < lc.nactions; i++)
        if (lc.actions[i].kind == LC_ACT_CHILDREN)
            return lc.actions[i].signal;
    return 0;
}

static uint64_t armed(void)
{
    for (size_t i = 0; i < lc.nactions; i++)
        if (lc.actions[i].kind == LC_ACT_ARM)
            return lc.actions[i].deadline_ns;
    return 0;
}

START_TEST(all_succeed_and_nothing_is_signalled)
{
    for (int i = 0; i < NWORKERS; i++) {
        exited(i, 0);
        ck_assert_int_eq(lc.state, LC_RUNNING);
        ck_assert_uint_eq(lc.nactions, 0);
    }
    post((struct lc_event){.kind = LC_EV_CHILDREN_GONE});
    ck_assert_int_eq(lc.state, LC_DONE);
    ck_assert_int_eq(count_kind(LC_ACT_SIGNAL), 0);
    ck_assert_int_eq(count_kind(LC_ACT_CHILDREN), 0);
    ck_assert_int_eq(lifecycle_exit_code(&lc), 0);
}
END_TEST

START_TEST(early_success_lets_the_others_run)
{
    exited(1, 0);
    told();
    ck_assert_int_eq(lc.state, LC_RUNNING);
    ck_assert_int_eq(lc.nrunning, 2);
}
END_TEST

START_TEST(success_of_all_started_waits_for_those_to_be_started)
{
    struct lifecycle other;
    struct lc_event started = {.kind = LC_EV_STARTED, .pid = 7};
    struct lc_event ended = {.kind = LC_EV_EXITED};
    struct lc_event gone = {.kind = LC_EV_CHILDREN_GONE};

    ck_assert_int_eq(
        lifecycle_init(&other, 2, GRACE_MS, FAILURE_GRACE_MS, 0), 0);
    lifecycle_step(&other, &started);
    lifecycle_step(&other, &ended);
    lifecycle_step(&other, &gone);
    ck_assert_int_eq(other.state, LC_RUNNING);
    lifecycle_fini(&other);
}
END_TEST

START_TEST(first_failure_stops_the_others_after_which_they_are_no_failures)
{
    exited(1, EXIT_STATUS(7));
    told();
    ck_assert_int_eq(lc.state, LC_STOPPING);
    ck_assert_int_eq(count_signals(SIGTERM), 2);
    ck_assert_uint_eq(armed(), now + GRACE_MS * MS);
    exited(0, SIGTERM);
    exited(2, EXIT_STATUS(3));
    ck_assert_int_eq(lc.first_failure, 1);
    ck_assert_int_eq(lc.workers[0].outcome, LC_OUT_STOPPED);
    ck_assert_int_eq(lc.workers[1].outcome, LC_OUT_FAILED);
    ck_assert_int_eq(lc.workers[2].outcome, LC_OUT_STOPPED);
    post((struct lc_event){.kind = LC_EV_CHILDREN_GONE});
    ck_assert_int_eq(lc.state, LC_DONE);
    ck_assert_int_eq(lifecycle_exit_code(&lc), 1);
}
END_TEST

START_TEST(workers_that_fail_together_were_not_stopped)
{
    exited(2, EXIT_STATUS(3));
    exited(0, EXIT_STATUS(4));
    told();
    ck_assert_int_eq(lc.first_failure, 2); /* told first */
    ck_assert_int_eq(lc.workers[0].outcome, LC_OUT_FAILED);
    ck_assert_int_eq(count_signals(SIGTERM), 1);
}
END_TEST

START_TEST(death_by_a_signal_that_was_not_sent_is_a_failure)
{
    exited(0, EXIT_STATUS(1));
    told();
    now += LC_SETTLE_MS * MS + 1;
    exited(1, SIGKILL);
    exited(2, SIGTERM);
    ck_assert_int_eq(lc.workers[1].outcome, LC_OUT_FAILED);
    ck_assert_int_eq(lc.workers[2].outcome, LC_OUT_STOPPED);
    ck_assert_int_eq(lc.first_failure, 0);
}
END_TEST

START_TEST(EXIT_03_death_by_a_signal_caused_the_exit_just_before)
{
    exited(0, EXIT_STATUS(1));
    told();
    now += LC_SETTLE_MS * MS;
    exited(1, SIGSEGV);
    ck_assert_int_eq(lc.first_failure, 1);
    exited(2, SIGKILL);
    ck_assert_int_eq(lc.first_failure, 1);
}
END_TEST

START_TEST(groups_of_stopped_workers_keep_the_grace)
{
    post((struct lc_event){.kind = LC_EV_STOP_SIGNAL, .signal = SIGTERM});
    for (int i = 0; i < NWORKERS; i++)
        exited(i, SIGTERM);
    post((struct lc_event){.kind = LC_EV_GROUP_GONE, .worker = 0});
    told();
    ck_assert_int_eq(lc.state, LC_STOPPING);
    ck_assert_uint_eq(lc.nactions, 0);
    post((struct lc_event){.kind = LC_EV_GROUP_GONE, .worker = 2});
    now += GRACE_MS * MS;
    post((struct lc_event){.kind = LC_EV_TIMER});
    ck_assert_int_eq(lc.state, LC_KILLING);
    ck_assert_int_eq(count_signals(SIGKILL), 1);
    ck_assert_int_eq(lc.actions[0].worker, 1);
    post((struct lc_event){.kind = LC_EV_GROUP_GONE, .worker = 1});
    told();
    ck_assert_int_eq(lc.state, LC_SWEEPING);
}
END_TEST

START_TEST(death_by_signal_is_a_failure)
{
    exited(2, SIGKILL);
    told();
    ck_assert_int_eq(lc.first_failure, 2);
    ck_assert_int_eq(lc.state, LC_STOPPING);
}
END_TEST

START_TEST(grace_ends_in_sigkill)
{
    exited(0, EXIT_STATUS(1));
    told();
    now += GRACE_MS * MS;
    post((struct lc_event){.kind = LC_EV_TIMER});
    ck_assert_int_eq(lc.state, LC_KILLING);
    ck_assert_int_eq(count_signals(SIGKILL), 2);
    exited(1, SIGKILL);
    told();
    ck_assert_int_eq(lc.state, LC_KILLING);
    exited(2, SIGKILL);
    post((struct lc_event){.kind = LC_EV_CHILDREN_GONE});
    ck_assert_int_eq(lc.state, LC_DONE);
    ck_assert(!lc.gave_up);
}
END_TEST

START_TEST(stop_signal_is_passed_on_as_it_is)
{
    post((struct lc_event){.kind = LC_EV_STOP_SIGNAL, .signal = SIGINT});
    ck_assert_int_eq(lc.state, LC_STOPPING);
    ck_assert_int_eq(count_signals(SIGINT), NWORKERS);
    for (int i = 0; i < NWORKERS; i++)
        exited(i, 0);
    post((struct lc_event){.kind = LC_EV_CHILDREN_GONE});
    ck_assert_int_eq(lc.first_failure, -1);
    ck_assert_int_eq(lifecycle_exit_code(&lc), 1);
}
END_TEST

START_TEST(second_stop_signal_cuts_the_grace_short)
{
    post((struct lc_event){.kind = LC_EV_STOP_SIGNAL, .signal = SIGINT});
    post((struct lc_event){.kind = LC_EV_STOP_SIGNAL, .signal = SIGINT});
    ck_assert_int_eq(lc.state, LC_KILLING);
    ck_assert_int_eq(count_signals(SIGKILL), NWORKERS);
}
END_TEST

START_TEST(stop_signal_after_a_failure_is_the_first_request)
{
    exited(0, EXIT_STATUS(1));
    told();
    post((struct lc_event){.kind = LC_EV_STOP_SIGNAL, .signal = SIGINT});
    ck_assert_int_eq(lc.state, LC_STOPPING);
    post((struct lc_event){.kind = LC_EV_STOP_SIGNAL, .signal = SIGINT});
    ck_assert_int_eq(lc.state, LC_KILLING);
}
END_TEST

START_TEST(lost_parent_kills_at_once)
{
    post((struct lc_event){.kind = LC_EV_PARENT_LOST});
    ck_assert_int_eq(lc.state, LC_KILLING);
    ck_assert_int_eq(count_signals(SIGKILL), NWORKERS);
    ck_assert_int_eq(lifecycle_exit_code(&lc), 1);
}
END_TEST

START_TEST(failed_start_stops_those_that_run)
{
    struct lifecycle other;
    struct lc_event started = {.kind = LC_EV_STARTED, .pid = 7};
    struct lc_event failed = {
        .kind = LC_EV_START_FAILED, .worker = 1, .error = ENOEXEC};

    ck_assert_int_eq(
        lifecycle_init(&other, 3, GRACE_MS, FAILURE_GRACE_MS, 0), 0);
    lifecycle_step(&other, &started);
    lifecycle_step(&other, &failed);
    ck_assert_int_eq(other.state, LC_STOPPING);
    ck_assert_int_eq(other.first_failure, 1);
    ck_assert_int_eq(other.workers[1].outcome, LC_OUT_NOT_BEGUN);
    ck_assert_int_eq((int)other.nactions, 2); /* one signal, one timer */
    lifecycle_fini(&other);
}
END_TEST

START_TEST(strays_of_successful_workers_get_term_then_kill)
{
    for (int i = 0; i < NWORKERS; i++)
        exited(i, 0);
    post((struct lc_event){.kind = LC_EV_CHILDREN_LEFT});
    ck_assert_int_eq(count_kind(LC_ACT_CHILDREN), 1);
    ck_assert_int_eq(swept_with(), SIGTERM);
    ck_assert_uint_eq(armed(), now + LC_STRAY_GRACE_MS * MS);
    post((struct lc_event){.kind = LC_EV_CHILDREN_LEFT});
    ck_assert_int_eq(count_kind(LC_ACT_CHILDREN), 0); /* once is enough */
    now += LC_STRAY_GRACE_MS * MS;
    post((struct lc_event){.kind = LC_EV_TIMER});
    ck_assert_int_eq(swept_with(), SIGKILL);
    post((struct lc_event){.kind = LC_EV_CHILDREN_LEFT});
    ck_assert_int_eq(swept_with(), SIGKILL); /* next generation */
    post((struct lc_event){.kind = LC_EV_CHILDREN_GONE});
    ck_assert_int_eq(lc.state, LC_DONE);
    ck_assert_int_eq(lifecycle_exit_code(&lc), 0);
}
END_TEST

START_TEST(strays_of_a_failed_job_are_killed_at_once)
{
    exited(0, EXIT_STATUS(1));
    exited(1, 0);
    exited(2, 0);
    told();
    ck_assert_int_eq(count_kind(LC_ACT_CHILDREN), 1);
    ck_assert_int_eq(swept_with(), SIGKILL);
}
END_TEST

START_TEST(unkillable_worker_is_given_up_and_said_so)
{
    exited(0, EXIT_STATUS(1));
    told();
    for (int i = 0; i < 4 && lc.state != LC_DONE; i++) {
        now += 40000 * MS;
        post((struct lc_event){.kind = LC_EV_TIMER});
        post((struct lc_event){.kind = LC_EV_CHILDREN_LEFT});
    }
    ck_assert_int_eq(lc.state, LC_DONE);
    ck_assert(lc.gave_up);
    ck_assert_int_eq(lc.workers[1].state, LC_WORKER_RUNNING);
    ck_assert_int_eq(lifecycle_exit_code(&lc), 1);
}
END_TEST

/*
 * Any sequence of events: no signal to a worker that has ended, a bounded
 * number of actions, and once asked to stop the machine ends by its own
 * timers within the sum of its graces, whatever the workers do.
 */
START_TEST(any_sequence_of_events_ends)
{
    unsigned seed = (unsigned)_i;
    uint64_t deadline = 0;
    uint64_t asked = 0;

    for (int step = 0; step < 400 && lc.state != LC_DONE; step++) {
        struct lc_event ev = {
            .kind = (enum lc_event_kind)(rand_r(&seed) % LC_EVENT_COUNT),
            .worker = rand_r(&seed) % NWORKERS,
            .signal = SIGTERM,
            .wait_status = rand_r(&seed) % 2 ? 0 : EXIT_STATUS(1)};

        if (ev.kind == LC_EV_STARTED || ev.kind == LC_EV_START_FAILED ||
            (ev.kind == LC_EV_CHILDREN_GONE && lc.nrunning > 0))
            continue; /* the caller cannot send these here */
        if (ev.kind == LC_EV_TIMER) {
            if (deadline == 0)
                continue;
            now = deadline > now ? deadline : now;
            deadline = 0;
        } else if (ev.kind == LC_EV_EXITED && rand_r(&seed) % 4 != 0) {
            continue; /* workers are slow to end */
        } else {
            now += (uint64_t)(rand_r(&seed) % 50) * MS;
            if (deadline != 0 && now > deadline)
                now = deadline;
        }
        post(ev);
        for (size_t i = 0; i < lc.nactions; i++) {
            const struct lc_action *a = &lc.actions[i];

            if (a->kind == LC_ACT_SIGNAL)
                ck_assert(lc.workers[a->worker].state == LC_WORKER_RUNNING ||
                          lc.workers[a->worker].has_group);
            if (a->kind == LC_ACT_ARM)
                deadline = a->deadline_ns;
            if (a->kind == LC_ACT_DISARM)
                deadline = 0;
        }
        if (asked == 0 && lc.state != LC_RUNNING)
            asked = now;
        /* While it waits for workers that it stopped, a timer must run. */
        if (lc.state == LC_STOPPING || lc.state == LC_KILLING)
            ck_assert_uint_ne(deadline, 0);
    }
    if (lc.state == LC_DONE)
        ck_assert_uint_le(now - asked,
            (GRACE_MS + 2 * LC_KILL_WAIT_MS + 2 * LC_STRAY_GRACE_MS) * MS);
}
END_TEST

static void attached(int worker)
{
    post((struct lc_event){.kind = LC_EV_ATTACHED, .worker = worker});
}

START_TEST(attached_workers_are_told_and_have_a_moment)
{
    attached(0);
    exited(1, EXIT_STATUS(3));
    told();
    ck_assert_int_eq(lc.state, LC_STOPPING);
    ck_assert_int_eq(lc.actions[0].kind, LC_ACT_TELL);
    /* Worker 2 cannot be told. */
    ck_assert_int_eq(count_signals(SIGTERM), 1);
    ck_assert_int_eq(lc.workers[2].sent_signal, SIGTERM);
    ck_assert_uint_eq(armed(), now + FAILURE_GRACE_MS * MS);
    now += FAILURE_GRACE_MS * MS;
    post((struct lc_event){.kind = LC_EV_TIMER});
    ck_assert_int_eq(count_signals(SIGTERM), 1);
    ck_assert_int_eq(lc.workers[0].sent_signal, SIGTERM);
    ck_assert_uint_eq(armed(), now + (GRACE_MS - FAILURE_GRACE_MS) * MS);
    now = armed();
    post((struct lc_event){.kind = LC_EV_TIMER});
    ck_assert_int_eq(lc.state, LC_KILLING);
}
END_TEST

START_TEST(who_ends_after_the_news_ended_on_account_of_it)
{
    attached(0);
    attached(2);
    exited(1, SIGKILL);
    told();
    exited(0, EXIT_STATUS(1));
    exited(2, SIGSEGV); /* not what giving up looks like */
    post((struct lc_event){.kind = LC_EV_CHILDREN_GONE});
    ck_assert_int_eq(lc.state, LC_DONE);
    ck_assert_int_eq(count_signals(SIGTERM), 0);
    ck_assert_int_eq(lc.first_failure, 1);
    ck_assert_int_eq(lc.workers[0].outcome, LC_OUT_COLLATERAL);
    ck_assert_int_eq(lc.workers[2].outcome, LC_OUT_FAILED);
}
END_TEST

START_TEST(a_victim_is_not_the_cause_though_it_ends_first)
{
    attached(0);
    attached(1);
    attached(2);
    post((struct lc_event){.kind = LC_EV_COLLATERAL, .worker = 0});
    exited(0, EXIT_STATUS(1));
    told();
    ck_assert_int_eq(lc.state, LC_RUNNING); /* the cause is on its way */
    ck_assert_uint_eq(armed(), now + LC_SETTLE_MS * MS);
    now += 2 * MS;
    exited(1, EXIT_STATUS(9));
    told();
    ck_assert_int_eq(lc.state, LC_STOPPING);
    ck_assert_int_eq(lc.first_failure, 1);
    ck_assert_int_eq(count_kind(LC_ACT_TELL), 1);
}
END_TEST

START_TEST(a_victim_without_a_cause_stops_the_others_all_the_same)
{
    attached(0);
    post((struct lc_event){.kind = LC_EV_COLLATERAL, .worker = 0});
    exited(0, EXIT_STATUS(1));
    told();
    now = armed();
    post((struct lc_event){.kind = LC_EV_TIMER});
    ck_assert_int_eq(lc.state, LC_STOPPING);
    ck_assert_int_eq(lc.first_failure, 0);
    ck_assert_int_eq(count_signals(SIGTERM), 2);
}
END_TEST

START_TEST(exit_status_can_be_that_of_the_cause)
{
    ck_assert_int_eq(lifecycle_cause_code(&lc), 0);
    post((struct lc_event){.kind = LC_EV_STOP_SIGNAL, .signal = SIGINT});
    ck_assert_int_eq(lifecycle_cause_code(&lc), 130);
    exited(0, _i == 0 ? EXIT_STATUS(3) : SIGSEGV);
    ck_assert_int_eq(lifecycle_cause_code(&lc), _i == 0 ? 130 : 139);
}
END_TEST

START_TEST(shortage_is_not_the_programs_fault)
{
    static const struct {
        int error;
        int code;
    } starts[] = {{ENOENT, 127}, {EACCES, 126}, {ENOEXEC, 126}, {EAGAIN, 1},
        {EMFILE, 1}, {ENFILE, 1}, {ENOMEM, 1}};

    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
        lifecycle_fini(&lc);
        set_up();
        post((struct lc_event){
            .kind = LC_EV_START_FAILED, .worker = 1, .error = starts[i].error});
        ck_assert_int_eq(lc.first_failure, 1);
        ck_assert_int_eq(lifecycle_cause_code(&lc), starts[i].code);
    }
}
END_TEST

START_TEST(names_are_those_of_the_lists)
{
    ck_assert_str_eq(lc_state_name(LC_SWEEPING), "SWEEPING");
    ck_assert_str_eq(lc_event_name(LC_EV_CHILDREN_GONE), "CHILDREN_GONE");
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("lifecycle");

    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, all_succeed_and_nothing_is_signalled);
    tcase_add_test(t, early_success_lets_the_others_run);
    tcase_add_test(
        t, first_failure_stops_the_others_after_which_they_are_no_failures);
    tcase_add_test(t, success_of_all_started_waits_for_those_to_be_started);
    tcase_add_test(t, workers_that_fail_together_were_not_stopped);
    tcase_add_test(t, death_by_a_signal_that_was_not_sent_is_a_failure);
    tcase_add_test(t, EXIT_03_death_by_a_signal_caused_the_exit_just_before);
    tcase_add_test(t, groups_of_stopped_workers_keep_the_grace);
    tcase_add_test(t, stop_signal_after_a_failure_is_the_first_request);
    tcase_add_test(t, death_by_signal_is_a_failure);
    tcase_add_test(t, grace_ends_in_sigkill);
    tcase_add_test(t, stop_signal_is_passed_on_as_it_is);
    tcase_add_test(t, second_stop_signal_cuts_the_grace_short);
    tcase_add_test(t, lost_parent_kills_at_once);
    tcase_add_test(t, failed_start_stops_those_that_run);
    tcase_add_test(t, strays_of_successful_workers_get_term_then_kill);
    tcase_add_test(t, strays_of_a_failed_job_are_killed_at_once);
    tcase_add_test(t, attached_workers_are_told_and_have_a_moment);
    tcase_add_test(t, who_ends_after_the_news_ended_on_account_of_it);
    tcase_add_test(t, a_victim_is_not_the_cause_though_it_ends_first);
    tcase_add_test(t, a_victim_without_a_cause_stops_the_others_all_the_same);
    tcase_add_loop_test(t, exit_status_can_be_that_of_the_cause, 0, 2);
    tcase_add_test(t, unkillable_worker_is_given_up_and_said_so);
    tcase_add_loop_test(t, any_sequence_of_events_ends, 0, 500);
    tcase_add_test(t, shortage_is_not_the_programs_fault);
    tcase_add_test(t, names_are_those_of_the_lists);
    return unit_run("lifecycle", t);
}
