/* The report of a finished job. */
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/report.h"
#include "rendezvous/base/clock.h"
#include "tests/unit/unit.h"

#define NWORKERS 8

static struct lifecycle lc;
static struct buf text;

static void set_up_input(void);

static void set_up(void)
{
    ck_assert_int_eq(lifecycle_init(&lc, NWORKERS, 1000, 0, 0), 0);
    for (int i = 0; i < NWORKERS; i++)
        lc.workers[i] = (struct lc_worker){.state = LC_WORKER_ENDED,
            .outcome = LC_OUT_SUCCESS,
            .pid = 100 + i,
            .ended_ns = CLOCK_NS_PER_S / 2};
    buf_init(&text, 1 << 20);
    set_up_input();
}

static void tear_down(void)
{
    lifecycle_fini(&lc);
    buf_fini(&text);
}

static struct restarts restarts;
static struct report_worker workers[NWORKERS];
static struct report_input in;

static void set_up_input(void)
{
    restarts = (struct restarts){0};
    memset(workers, 0, sizeof(workers));
    in = (struct report_input){.life = &lc,
        .restarts = &restarts,
        .workers = workers,
        .title = "train",
        .program = "/bin/train",
        .host = "h",
        .run_id = "none",
        .exit_code = 1,
        .oom_kills = -1};
    setenv("TZ", "UTC", 1);
    tzset();
}

static void set(int worker, enum lc_outcome outcome, int status, int sent)
{
    lc.workers[worker].outcome = outcome;
    lc.workers[worker].wait_status = status;
    lc.workers[worker].sent_signal = sent;
}

static void says(const char *want)
{
    ck_assert_int_eq(report_write(&in, &text), 0);
    ck_assert_int_eq(buf_append(&text, "", 1), 0);
    ck_assert_str_eq(buf_bytes(&text), want);
}

START_TEST(success_says_nothing)
{
    ck_assert_int_eq(report_write(&in, &text), 0);
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
         "  time      : 1970-01-01_00:00:00.500\n"
         "  host      : h\n"
         "  rank      : 2 (local_rank: 2)\n"
         "  exitcode  : 7 (pid: 102)\n"
         "  error_file: <N/A>\n"
         "  traceback : <N/A>\n"
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

START_TEST(what_hung_is_told_after_a_stop)
{
    lc.stop_signal = SIGINT;
    in.collective = "rank 2 never entered barrier #1\nranks 0-1 waited\n";
    for (int i = 0; i < NWORKERS; i++)
        set(i, LC_OUT_STOPPED, SIGINT, SIGINT);
    says("crun: train was stopped by SIGINT sent to crun\n"
         "  collective: rank 2 never entered barrier #1\n"
         "  collective: ranks 0-1 waited\n"
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
         "  time      : 1970-01-01_00:00:00.000\n"
         "  host      : h\n"
         "  rank      : 0 (local_rank: 0)\n"
         "  error_file: <N/A>\n"
         "  traceback : <N/A>\n"
         "  hint      : the file was there when crun looked; if it still is, "
         "its dynamic loader is not: was it built for another system?\n"
         "crun:   ranks 1-7: not started\n");
}
END_TEST

/* A file for the test's report, gone when it ends. */
static char folder[] = "/tmp/test_report.XXXXXX";
static char path[64];

static void write_error_file(const char *content)
{
    FILE *f;

    strcpy(folder + sizeof("/tmp/test_report.") - 1, "XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/error.json", folder);
    f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_ge(fputs(content, f), 0);
    ck_assert_int_eq(fclose(f), 0);
}

static void remove_folder(void)
{
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}

static const struct {
    const char *file;
    const char *want; /* in the report */
} error_files[] = {
    {"{\"message\": \"disk on fire\", \"timestamp\": \"1700000000\"}",
        "  traceback : disk on fire\n"},
    {"{\"message\": {\"message\": \"E: x\", \"extraInfo\": "
     "{\"py_callstack\": \"Traceback:\\n line 1\\nE: x\\n\", "
     "\"timestamp\": \"1\"}}}",
        "  traceback : Traceback:\n   line 1\n  E: x\n"},
    {"{\"message\": {\"message\": \"E: x\", \"extraInfo\": "
     "{\"py_callstack\": \"main+0x10\", \"timestamp\": \"1\"}}}",
        "  traceback : E: x\n  main+0x10\n"},
    {"{\"message\": \"cut o", "cannot be read: it is no JSON: line 1"},
    /* A colour, a bell, and a control character of 8 bits. */
    {"{\"message\": \"\\u001b[31mred\\u0007 \\u009b \\t\\u00e9\"}",
        "  traceback : \\x1b[31mred\\x07 \\xc2\\x9b \t\xc3\xa9\n"},
    /* What Python makes of a byte in a file's name, and of a NUL. */
    {"{\"message\": \"\\udce9 \\u0000 \\ud83d\\udd25 \\ud83d \\\\ud83d\"}",
        "  traceback : \xef\xbf\xbd \xef\xbf\xbd \xf0\x9f\x94\xa5 "
        "\xef\xbf\xbd \\ud83d\n"},
    {"{\"message\": \"caf\xe9\"}", "cannot be read: it is no JSON: line 1: "},
    {"", "cannot be read: it is empty\n"},
    {"{\"message\": {\"extraInfo\": {}}}",
        "cannot be read: it has no \"message\"\n"},
    {"[1]", "cannot be read: it has no \"message\"\n"},
    {"{\"message\": 7}", "cannot be read: it has no \"message\"\n"},
};

START_TEST(error_file_is_shown_whatever_it_holds)
{
    lc.first_failure = 2;
    set(2, LC_OUT_FAILED, 7 << 8, 0);
    write_error_file(error_files[_i].file);
    workers[2].error_file = path;
    ck_assert_int_eq(report_write(&in, &text), 0);
    ck_assert_int_eq(buf_append(&text, "", 1), 0);
    ck_assert_msg(strstr(buf_bytes(&text), error_files[_i].want) != NULL, "%s",
        buf_bytes(&text));
    ck_assert_ptr_nonnull(strstr(buf_bytes(&text), path));
    remove_folder();
}
END_TEST

START_TEST(long_error_file_is_refused_and_a_long_message_cut)
{
    size_t len = _i == 0 ? 2 * 1024 * 1024 : 1000 * 1000;
    char *file = malloc(len + 1);

    lc.first_failure = 2;
    set(2, LC_OUT_FAILED, 7 << 8, 0);
    ck_assert_ptr_nonnull(file);
    memset(file, 'x', len);
    file[len] = '\0';
    memcpy(file, "{\"message\": \"", 13);
    memcpy(file + len - 6, "END\"}", 6);
    write_error_file(file);
    free(file);
    workers[2].error_file = path;
    ck_assert_int_eq(report_write(&in, &text), 0);
    ck_assert_int_eq(buf_append(&text, "", 1), 0);
    ck_assert_uint_lt(text.len, 70000);
    ck_assert_ptr_nonnull(strstr(buf_bytes(&text),
        _i == 0 ? "cannot be read: it is longer than 1048576 bytes\n"
                : "xxxEND\n"));
    remove_folder();
}
END_TEST

START_TEST(error_file_that_is_no_file_is_not_waited_for)
{
    lc.first_failure = 2;
    set(2, LC_OUT_FAILED, 7 << 8, 0);
    write_error_file("");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(_i == 0 ? mkfifo(path, 0600) : mkdir(path, 0700), 0);
    workers[2].error_file = path;
    ck_assert_int_eq(report_write(&in, &text), 0);
    ck_assert_int_eq(buf_append(&text, "", 1), 0);
    ck_assert_ptr_nonnull(
        strstr(buf_bytes(&text), "cannot be read: it is no regular file"));
    ck_assert_int_eq(_i == 0 ? unlink(path) : rmdir(path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

START_TEST(failures_come_in_order_then_who_ended_on_account_of_them)
{
    const char *at;

    lc.first_failure = 2;
    set(2, LC_OUT_FAILED, SIGKILL, 0);
    set(1, LC_OUT_FAILED, 3 << 8, 0);
    lc.workers[1].ended_ns = 900;
    set(5, LC_OUT_FAILED, 4 << 8, 0);
    lc.workers[5].ended_ns = 800;
    set(6, LC_OUT_COLLATERAL, 1 << 8, 0);
    workers[6].collateral = "all_reduce: rank 2 died";
    workers[2].last_call = "barrier #3, not finished";
    in.collective = "rank 2 ended within barrier #3\n";
    in.oom_kills = 2;
    ck_assert_int_eq(report_write(&in, &text), 0);
    ck_assert_int_eq(buf_append(&text, "", 1), 0);
    at = strstr(buf_bytes(&text), "failed first: signal 9 (SIGKILL)");
    ck_assert_ptr_nonnull(at);
    at = strstr(at, "  exitcode  : -9 (pid: 102) (SIGKILL)\n");
    ck_assert_ptr_nonnull(at);
    at = strstr(at, "  traceback : Signal 9 (SIGKILL) received by PID 102\n"
                    "  last call : barrier #3, not finished\n"
                    "  hint      : out of memory: the kernel killed 2 ");
    ck_assert_ptr_nonnull(at);
    at = strstr(at, "  collective: rank 2 ended within barrier #3\n");
    ck_assert_ptr_nonnull(at);
    at = strstr(at, "rank 5 (local rank 5, pid 105) failed too: exit code 4\n");
    ck_assert_ptr_nonnull(at);
    at = strstr(at, "rank 1 (local rank 1, pid 101) failed too: exit code 3\n");
    ck_assert_ptr_nonnull(at);
    at = strstr(at, "rank 6 (local rank 6, pid 106) ended on account of it: "
                    "exit code 1: all_reduce: rank 2 died\n");
    ck_assert_ptr_nonnull(at);
}
END_TEST

START_TEST(first_failure_says_which_peer_it_has_lost)
{
    lc.first_failure = 2;
    set(2, LC_OUT_COLLATERAL, 1 << 8, 0);
    workers[2].collateral = "all_reduce: rank 9 is gone";
    ck_assert_int_eq(report_write(&in, &text), 0);
    ck_assert_int_eq(buf_append(&text, "", 1), 0);
    ck_assert_ptr_nonnull(strstr(
        buf_bytes(&text), "\n  peer lost : all_reduce: rank 9 is gone\n"));
}
END_TEST

START_TEST(equal_words_of_many_ranks_share_a_line)
{
    lc.first_failure = 3;
    set(3, LC_OUT_FAILED, SIGKILL, 0);
    for (int i = 0; i < NWORKERS; i++) {
        if (i == 3)
            continue;
        set(i, LC_OUT_COLLATERAL, 1 << 8, 0);
        lc.workers[i].ended_ns = (uint64_t)(1000 - i);
        workers[i].collateral =
            i == 5 ? "barrier: rank 3 died\nmore\x1b" : "all_reduce: \x1b[1m";
    }
    ck_assert_int_eq(report_write(&in, &text), 0);
    ck_assert_int_eq(buf_append(&text, "", 1), 0);
    ck_assert_ptr_nonnull(strstr(buf_bytes(&text),
        "crun:   ranks 0-2,4,6-7 ended on account of it: exit code 1: "
        "all_reduce: \\x1b[1m\n"
        "crun:   rank 5 (local rank 5, pid 105) ended on account of it: exit "
        "code 1: barrier: rank 3 died\n"));
}
END_TEST

START_TEST(words_of_other_failures_are_bounded)
{
    char words[4000];

    for (size_t i = 0; i < sizeof(words) - 2; i += 2)
        memcpy(words + i, "\xc3\xa9", 2);
    words[sizeof(words) - 2] = '\0';
    words[0] = words[1] = 'x'; /* so that the cut is within a character */
    memmove(words, words + 1, sizeof(words) - 1);
    lc.first_failure = 2;
    set(2, LC_OUT_FAILED, 7 << 8, 0);
    set(4, LC_OUT_COLLATERAL, 7 << 8, 0);
    workers[4].collateral = words;
    ck_assert_int_eq(report_write(&in, &text), 0);
    ck_assert_int_eq(buf_append(&text, "", 1), 0);
    ck_assert_uint_lt(text.len, 1500);
    ck_assert_ptr_nonnull(strstr(buf_bytes(&text), "\xc3\xa9...\n"));
    ck_assert_ptr_null(strstr(buf_bytes(&text), "\\x"));
}
END_TEST

START_TEST(earlier_rounds_and_the_end_of_restarts_are_told)
{
    lc.first_failure = 2;
    set(2, LC_OUT_FAILED, 7 << 8, 0);
    restarts = (struct restarts){.max_restarts = 1,
        .count = 1,
        .nhistory = 2,
        .history = {{.local_rank = 3,
                        .outcome = LC_OUT_FAILED,
                        .wait_status = SIGSEGV,
                        .lived_ns = CLOCK_NS_PER_S},
            {.restart_count = 1, .local_rank = 2}}};
    in.verdict = RESTARTS_EXHAUSTED;
    ck_assert_int_eq(report_write(&in, &text), 0);
    ck_assert_int_eq(buf_append(&text, "", 1), 0);
    ck_assert_ptr_nonnull(strstr(buf_bytes(&text),
        "crun:   round 0: rank 3 failed first: signal 11 (SIGSEGV) after "
        "1.000 s\n"
        "crun:   no restart is left of --max_restarts=1\n"));
    ck_assert_ptr_null(strstr(buf_bytes(&text), "round 1"));
}
END_TEST

static json_t *written_json(void)
{
    struct err e;
    json_t *root;

    ck_assert_int_eq(report_write_json(&in, path, &e), 0);
    root = json_load_file(path, 0, NULL);
    ck_assert_ptr_nonnull(root);
    return root;
}

/* A stop came while the next round was being waited for. */
START_TEST(round_that_never_began_is_not_counted)
{
    json_t *root;

    lc.first_failure = 2;
    lc.stop_signal = SIGINT;
    set(2, LC_OUT_FAILED, 7 << 8, 0);
    restarts = (struct restarts){.max_restarts = 3,
        .count = 1,
        .nhistory = 1,
        .history = {{.local_rank = 2,
            .outcome = LC_OUT_FAILED,
            .wait_status = 7 << 8}}};
    ck_assert_int_eq(report_write(&in, &text), 0);
    ck_assert_int_eq(buf_append(&text, "", 1), 0);
    ck_assert_ptr_null(strstr(buf_bytes(&text), "round 0"));
    write_error_file("");
    root = written_json();
    ck_assert_int_eq(
        json_integer_value(json_object_get(root, "restart_count")), 0);
    json_decref(root);
    remove_folder();
}
END_TEST

START_TEST(time_that_is_no_number_costs_no_report)
{
    static const char *const times[] = {
        "\"inf\"", "\"nan\"", "\"1e999\"", "-1", "[]"};
    char content[100], report[sizeof(path) + 8];
    json_t *root;
    struct err e;

    lc.first_failure = 2;
    set(2, LC_OUT_FAILED, 7 << 8, 0);
    snprintf(content, sizeof(content),
        "{\"message\": \"x\", \"timestamp\": %s}", times[_i]);
    write_error_file(content);
    workers[2].error_file = path;
    snprintf(report, sizeof(report), "%s.report", path);
    ck_assert_int_eq(report_write_json(&in, report, &e), 0);
    root = json_load_file(report, 0, NULL);
    ck_assert_ptr_nonnull(root);
    ck_assert_ptr_null(json_object_get(
        json_object_get(json_object_get(root, "first_failure"), "error"),
        "timestamp"));
    json_decref(root);
    ck_assert_int_eq(unlink(report), 0);
    remove_folder();
}
END_TEST

START_TEST(report_replaces_no_device_and_keeps_a_link)
{
    char target[sizeof(path) + 8];
    struct stat st;
    struct err e;

    write_error_file("old");
    snprintf(target, sizeof(target), "%s.target", path);
    ck_assert_int_eq(rename(path, target), 0);
    ck_assert_int_eq(symlink(target, path), 0);
    ck_assert_int_eq(report_write_json(&in, path, &e), 0);
    ck_assert_int_eq(lstat(path, &st), 0);
    ck_assert(S_ISLNK(st.st_mode));
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_gt(st.st_size, 100);
    ck_assert_int_eq(unlink(target), 0);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(report_write_json(&in, path, &e), -EINVAL);
    ck_assert_ptr_nonnull(strstr(e.msg, "it is no regular file"));
    ck_assert_int_eq(lstat(path, &st), 0);
    ck_assert(S_ISFIFO(st.st_mode));
    remove_folder();
}
END_TEST

START_TEST(report_has_the_permissions_of_any_new_file)
{
    struct stat st;
    mode_t mask = umask(027);

    write_error_file("");
    json_decref(written_json());
    umask(mask);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0640);
    remove_folder();
}
END_TEST

START_TEST(json_has_every_worker_and_replaces_the_file)
{
    struct err e;
    json_t *root, *list;

    lc.first_failure = 2;
    set(2, LC_OUT_FAILED, SIGKILL, 0);
    set(1, LC_OUT_STOPPED, SIGTERM, SIGTERM);
    in.title = "caf\xe9"; /* not UTF-8 */
    write_error_file("old");
    in.collective = "first\nsecond\n";
    ck_assert_int_eq(report_write_json(&in, path, &e), 0);
    root = json_load_file(path, 0, NULL);
    ck_assert_ptr_nonnull(root);
    ck_assert_str_eq(json_string_value(json_object_get(root, "title")), "caf?");
    list = json_object_get(root, "collective");
    ck_assert_uint_eq(json_array_size(list), 2);
    ck_assert_str_eq(json_string_value(json_array_get(list, 1)), "second");
    ck_assert_uint_eq(
        json_array_size(json_object_get(root, "workers")), NWORKERS);
    ck_assert_int_eq(json_integer_value(json_object_get(
                         json_object_get(root, "first_failure"), "exit_code")),
        -9);
    json_decref(root);
    remove_folder();
    ck_assert_int_eq(report_write_json(&in, path, &e), -ENOENT);
    ck_assert_ptr_nonnull(strstr(e.msg, path));
}
END_TEST

START_TEST(parent_is_given_the_error_with_its_exit_code)
{
    char parent[80];
    struct err e;
    json_t *root, *message;

    lc.first_failure = 2;
    set(2, LC_OUT_FAILED, 7 << 8, 0);
    write_error_file("{\"message\": {\"message\": \"E: x\", \"extraInfo\": "
                     "{\"timestamp\": \"1\"}}}");
    snprintf(parent, sizeof(parent), "%s/parent", folder);
    if (_i == 0)
        workers[2].error_file = path;
    ck_assert_int_eq(report_copy_error(&in, parent, &e), 0);
    root = json_load_file(parent, 0, NULL);
    message = json_object_get(root, "message");
    ck_assert_int_eq(
        json_integer_value(json_object_get(message, "errorCode")), 7);
    ck_assert_str_eq(json_string_value(json_object_get(message, "message")),
        _i == 0 ? "E: x" : "rank 2 on h: exit code 7");
    json_decref(root);
    ck_assert_int_eq(unlink(parent), 0);
    remove_folder();
}
END_TEST

START_TEST(long_title_hides_nothing)
{
    char title[4000];

    memset(title, 't', sizeof(title) - 1);
    title[sizeof(title) - 1] = '\0';
    lc.first_failure = 1;
    set(1, LC_OUT_FAILED, 7 << 8, 0);
    in.title = title;
    ck_assert_int_eq(report_write(&in, &text), 0);
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
    in.rank_base = 8;
    ck_assert_int_eq(report_write(&in, &text), 0);
    ck_assert_int_eq(buf_append(&text, "", 1), 0);
    ck_assert_ptr_nonnull(strstr(buf_bytes(&text), "rank 8 (local rank 0"));
    ck_assert_ptr_nonnull(strstr(buf_bytes(&text), "signal 11 (SIGSEGV)"));
    ck_assert_ptr_nonnull(
        strstr(buf_bytes(&text), "rank 11: could not be killed (pid 103"));
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("report");

    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, success_says_nothing);
    tcase_add_test(t, first_failure_comes_first_and_equal_ends_share_a_line);
    tcase_add_test(t, stop_from_outside_is_no_failure_of_a_rank);
    tcase_add_test(t, what_hung_is_told_after_a_stop);
    tcase_add_test(t, failed_exec_names_the_reason);
    tcase_add_loop_test(t, error_file_is_shown_whatever_it_holds, 0,
        sizeof(error_files) / sizeof(error_files[0]));
    tcase_add_loop_test(
        t, long_error_file_is_refused_and_a_long_message_cut, 0, 2);
    tcase_add_loop_test(t, error_file_that_is_no_file_is_not_waited_for, 0, 2);
    tcase_add_test(t, failures_come_in_order_then_who_ended_on_account_of_them);
    tcase_add_test(t, equal_words_of_many_ranks_share_a_line);
    tcase_add_test(t, first_failure_says_which_peer_it_has_lost);
    tcase_add_test(t, words_of_other_failures_are_bounded);
    tcase_add_test(t, earlier_rounds_and_the_end_of_restarts_are_told);
    tcase_add_test(t, round_that_never_began_is_not_counted);
    tcase_add_loop_test(t, time_that_is_no_number_costs_no_report, 0, 5);
    tcase_add_test(t, report_replaces_no_device_and_keeps_a_link);
    tcase_add_test(t, report_has_the_permissions_of_any_new_file);
    tcase_add_test(t, json_has_every_worker_and_replaces_the_file);
    tcase_add_loop_test(t, parent_is_given_the_error_with_its_exit_code, 0, 2);
    tcase_add_test(t, long_title_hides_nothing);
    tcase_add_test(t, lack_of_descriptors_is_no_fault_of_the_program);
    tcase_add_test(t, what_could_not_be_killed_is_named);
    return unit_run("report", t);
}
