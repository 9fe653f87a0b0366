/* The report of a finished job. */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "agent/report.h"
#include "rendezvous/base/clock.h"
#include "tests/unit/unit.h"

#define NWORKERS 8

static struct lifecycle lc;
static struct buf text;

static void set_up(void)
{
    ck_assert_int_eq(lifecycle_init(&lc, NWORKERS, 1000, 0), 0);
    for (int i = 0; i < NWORKERS; i++)
        lc.workers[i] = (struct lc_worker){.state = LC_WORKER_ENDED,
            .outcome = LC_OUT_SUCCESS,
            .pid = 100 + i,
            .ended_ns = CLOCK_NS_PER_S / 2};
    buf_init(&text, 1 << 20);
}

static void tear_down(void)
{
    lifecycle_fini(&lc);
    buf_fini(&text);
}

static void set(int worker, enum lc_outcome outcome, int status, int sent)
{
    lc.workers[worker].outcome = outcome;
    lc.workers[worker].wait_status = status;
    lc.workers[worker].sent_signal = sent;
}

static void says(const char *want)
{
    ck_assert_int_eq(report_write(&lc, "train", "h", 0, &text), 0);
    ck_assert_int_eq(buf_append(&text, "", 1), 0);
    ck_assert_str_eq(buf_bytes(&text), want);
}

START_TEST(success_says_nothing)
{
    ck_assert_int_eq(report_write(&lc, "train", "h", 0, &text), 0);
    ck_assert_uint_eq(text.len, 0);
}
END_TEST

START_TEST(first_failure_comes_first_and_equal_ends_share_a_line)
{
    lc.first_failure = 2;
    set(2, LC_OUT_FAILED, 7 << 8, 0);
    set(0, LC_OUT_STOPPED, SIGTERM, SIGTERM);
    set(3, LC_OUT_STOPPED, SIGTERM, SIGTERM);
    set(4, LC_OUT_STOPPED, SIGTERM, SIGTERM);
    set(5, LC_OUT_STOPPED, SIGTERM, SIGTERM);
    set(6, LC_OUT_STOPPED, SIGKILL, SIGKILL);
    set(7, LC_OUT_STOPPED, SIGTERM, SIGTERM);
    says("crun: train FAILED: rank 2 (local rank 2, pid 102, host h) failed "
         "first: exit code 7 after 0.500 s\n"
         "crun:   ranks 0,3-5,7: stopped by crun with SIGTERM: signal 15 "
         "(SIGTERM)\n"
         "crun:   rank 1: exit code 0\n"
         "crun:   rank 6: stopped by crun with SIGKILL: signal 9 (SIGKILL)\n");
}
END_TEST

START_TEST(stop_from_outside_is_no_failure_of_a_rank)
{
    lc.stop_signal = SIGINT;
    for (int i = 0; i < NWORKERS; i++)
        set(i, LC_OUT_STOPPED, SIGINT, SIGINT);
    says("crun: train was stopped by SIGINT sent to crun\n"
         "crun:   ranks 0-7: stopped by crun with SIGINT: signal 2 "
         "(SIGINT)\n");
}
END_TEST

START_TEST(failed_exec_names_the_reason)
{
    lc.first_failure = 0;
    for (int i = 0; i < NWORKERS; i++)
        lc.workers[i] = (struct lc_worker){0};
    lc.workers[0].state = LC_WORKER_ENDED;
    lc.workers[0].outcome = LC_OUT_NOT_BEGUN;
    lc.workers[0].start_error = ENOENT;
    says("crun: train FAILED: rank 0 (local rank 0, host h) could not be "
         "started: No such file or directory, exit code 127\n"
         "crun:   ranks 1-7: not started\n");
}
END_TEST

START_TEST(long_title_hides_nothing)
{
    char title[4000];

    memset(title, 't', sizeof(title) - 1);
    title[sizeof(title) - 1] = '\0';
    lc.first_failure = 1;
    set(1, LC_OUT_FAILED, 7 << 8, 0);
    ck_assert_int_eq(report_write(&lc, title, "h", 0, &text), 0);
    ck_assert_int_eq(buf_append(&text, "", 1), 0);
    ck_assert_ptr_nonnull(strstr(buf_bytes(&text), "rank 1 (local rank 1"));
    ck_assert_ptr_nonnull(strstr(buf_bytes(&text), "exit code 7"));
}
END_TEST

START_TEST(lack_of_descriptors_is_no_fault_of_the_program)
{
    char how[256];

    lc.workers[0].outcome = LC_OUT_NOT_BEGUN;
    lc.workers[0].start_error = EMFILE;
    report_outcome(&lc.workers[0], how, sizeof(how));
    ck_assert_ptr_nonnull(strstr(how, "ulimit -Hn"));
    ck_assert_ptr_null(strstr(how, "126"));
}
END_TEST

START_TEST(what_could_not_be_killed_is_named)
{
    lc.first_failure = 0;
    lc.gave_up = true;
    set(0, LC_OUT_FAILED, SIGSEGV, 0);
    lc.workers[3].state = LC_WORKER_RUNNING;
    lc.workers[3].outcome = LC_OUT_NONE;
    ck_assert_int_eq(report_write(&lc, "train", "h", 8, &text), 0);
    ck_assert_int_eq(buf_append(&text, "", 1), 0);
    ck_assert_ptr_nonnull(strstr(buf_bytes(&text), "rank 8 (local rank 0"));
    ck_assert_ptr_nonnull(strstr(buf_bytes(&text), "signal 11 (SIGSEGV)"));
    ck_assert_ptr_nonnull(
        strstr(buf_bytes(&text), "rank 11: could not be killed (pid 103)"));
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("report");

    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, success_says_nothing);
    tcase_add_test(t, first_failure_comes_first_and_equal_ends_share_a_line);
    tcase_add_test(t, stop_from_outside_is_no_failure_of_a_rank);
    tcase_add_test(t, failed_exec_names_the_reason);
    tcase_add_test(t, long_title_hides_nothing);
    tcase_add_test(t, lack_of_descriptors_is_no_fault_of_the_program);
    tcase_add_test(t, what_could_not_be_killed_is_named);
    return unit_run("report", t);
}
