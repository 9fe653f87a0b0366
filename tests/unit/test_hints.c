/*
 * Hints: what an end is taken for, and the count of out-of-memory kills in
 * trees of files that look like cgroups.
 */
#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/hints.h"
#include "agent/oom_kills.h"
#include "agent/plain_text.h"
#include "agent/report.h"
#include "tests/unit/unit.h"

static char folder[64];
static char path[256];
static char hint[1024];
static struct hint_facts facts;

static void set_up(void)
{
    snprintf(folder, sizeof(folder), "/tmp/test_hints.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    facts = (struct hint_facts){.oom_kills = -1};
}

static int remove_entry(
    const char *name, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(name);
}

static void tear_down(void)
{
    ck_assert_int_eq(nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
}

/* Makes a file below the test's folder, and the folders above it; path is
 * then its name. */
static void write_file(const char *name, const void *bytes, size_t len)
{
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    for (char *slash = path + strlen(folder) + 1;
         (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, len, f), len);
    ck_assert_int_eq(fclose(f), 0);
}

static void write_text(const char *name, const char *text)
{
    write_file(name, text, strlen(text));
}

/* --- Ends ------------------------------------------------------------------
 */

#define CODE(code) ((code) << 8)

static const struct {
    int status;
    int64_t oom_kills;
    const char *want; /* in the hint; NULL: there is none */
} ends[] = {
    {CODE(0), 5, NULL},
    {CODE(1), -1, NULL},
    {CODE(255), 0, NULL},
    {CODE(128), 0, NULL},
    {CODE(126), -1, "cannot be executed"},
    {CODE(127), -1, "not found"},
    {CODE(134), -1, "a shell's code for signal 6 (SIGABRT): it gave up"},
    {CODE(137), -1, "signal 9 (SIGKILL): somebody killed it"},
    {CODE(139), -1, "signal 11 (SIGSEGV): it used memory"},
    {CODE(143), -1, "signal 15 (SIGTERM): somebody other"},
    {SIGSEGV, -1, "coll_install_crash_handler()"},
    {SIGSEGV | 0x80, 3, "it used memory"}, /* with a core dump */
    {SIGBUS, -1, "/dev/shm"},
    {SIGILL, -1, "CPU"},
    {SIGPIPE, -1, "nobody reads"},
    {SIGXCPU, -1, "ulimit -t"},
    {SIGXFSZ, -1, "ulimit -f"},
    {SIGSYS, -1, "seccomp"},
    {SIGUSR1, -1, "no handler"},
    {SIGURG, -1, NULL},
    {SIGKILL, -1, "dmesg"},
    {SIGKILL, 0, "dmesg"},
    {SIGKILL, 1, "out of memory: the kernel killed 1 process of this cgroup"},
    {CODE(137), 2, "out of memory: the kernel killed 2 processes"},
    {CODE(1), 2, "out of memory: the kernel killed 2 processes"},
};

START_TEST(end_is_explained)
{
    struct lc_worker w = {.state = LC_WORKER_ENDED,
        .outcome = LC_OUT_FAILED,
        .wait_status = ends[_i].status};

    facts.oom_kills = ends[_i].oom_kills;
    ck_assert_int_eq(
        hint_for(&w, &facts, hint, sizeof(hint)), ends[_i].want != NULL);
    if (ends[_i].want != NULL)
        ck_assert_msg(strstr(hint, ends[_i].want) != NULL, "%s", hint);
}
END_TEST

START_TEST(who_has_told_where_is_not_told_how)
{
    const struct lc_worker w = {.state = LC_WORKER_ENDED,
        .outcome = LC_OUT_FAILED,
        .wait_status = SIGSEGV};

    facts.has_stack = true;
    ck_assert(hint_for(&w, &facts, hint, sizeof(hint)));
    ck_assert_str_eq(hint, "it used memory that is not its own");
}
END_TEST

START_TEST(nothing_is_said_of_what_has_not_ended)
{
    struct lc_worker w = {.state = LC_WORKER_RUNNING};

    ck_assert(!hint_for(&w, &facts, hint, sizeof(hint)));
}
END_TEST

START_TEST(line_of_the_dynamic_loader_is_quoted)
{
    static const char line[] =
        "./a.out: error while loading shared libraries: libx.so.3: cannot open";
    const struct lc_worker w = {.state = LC_WORKER_ENDED,
        .outcome = LC_OUT_FAILED,
        .wait_status = CODE(127)};
    size_t before = 100 * 1000;
    char *log = calloc(1, before + sizeof(line) + 10); /* NULs before it */

    ck_assert_ptr_nonnull(log);
    log[before - 1] = '\n';
    memcpy(log + before, line, sizeof(line) - 1);
    memcpy(log + before + sizeof(line) - 1, "\nmore\n", 6);
    write_file("stderr.log", log, before + sizeof(line) + 5);
    free(log);
    facts.stderr_file = path;
    ck_assert(hint_for(&w, &facts, hint, sizeof(hint)));
    ck_assert_int_eq(strncmp(hint, line, strlen(line)), 0);
    ck_assert_str_eq(hint + strlen(line), "; ldd PROGRAM lists what it needs");
}
END_TEST

START_TEST(log_that_is_no_file_is_not_waited_for)
{
    const struct lc_worker w = {.state = LC_WORKER_ENDED,
        .outcome = LC_OUT_FAILED,
        .wait_status = CODE(127)};

    snprintf(path, sizeof(path), "%s/fifo", folder);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    facts.stderr_file = path;
    ck_assert(hint_for(&w, &facts, hint, sizeof(hint)));
    ck_assert_ptr_nonnull(strstr(hint, "127 is a shell's code"));
}
END_TEST

static const struct {
    int error;
    const char *program; /* its content; NULL: it is gone */
    const char *want; /* NULL: no hint */
} starts[] = {
    {ENOENT, "#!/no/such/interpreter -x\nexit\n",
        "interpreter in its first line: #!/no/such/interpreter -x"},
    {ENOENT, "#!/bin/sh\r\nexit\r\n", "(#!/bin/sh), too: dos2unix"},
    {ENOENT, "#!", "interpreter in its first line: #!"},
    {ENOENT, "\177ELF", "dynamic loader"},
    {ENOENT, "", "dynamic loader"},
    {ENOENT, NULL, "was there when crun looked"},
    {ENOEXEC, "", "no program for this machine"},
    {EACCES, "", "noexec"},
    {ETXTBSY, "", "open for writing"},
    {E2BIG, "", "too long together"},
    {EIO, "", NULL},
};

START_TEST(start_that_failed_is_explained)
{
    const struct lc_worker w = {.state = LC_WORKER_ENDED,
        .outcome = LC_OUT_NOT_BEGUN,
        .start_error = starts[_i].error};

    snprintf(path, sizeof(path), "%s/program", folder);
    if (starts[_i].program != NULL)
        write_text("program", starts[_i].program);
    facts.program = path;
    ck_assert_int_eq(
        hint_for(&w, &facts, hint, sizeof(hint)), starts[_i].want != NULL);
    if (starts[_i].want != NULL)
        ck_assert_msg(strstr(hint, starts[_i].want) != NULL, "%s", hint);
}
END_TEST

START_TEST(state_of_a_process_is_told)
{
    pid_t pid = fork();
    siginfo_t info;

    if (pid == 0)
        _exit(0);
    ck_assert_int_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    hint_process_state(pid, hint, sizeof(hint));
    ck_assert_int_eq(strncmp(hint, "state Z (dead", 13), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    hint_process_state(pid, hint, sizeof(hint));
    ck_assert_str_eq(hint, "");
}
END_TEST

/* --- Out-of-memory kills ----------------------------------------------------
 */

static int64_t count(const char *cgroups)
{
    char root[80];

    write_text("cgroup", cgroups);
    snprintf(root, sizeof(root), "%s/fs", folder);
    return oom_kills_read(path, root);
}

START_TEST(kills_of_version_2_are_those_of_the_own_cgroup)
{
    write_text("fs/a/b/memory.events", "low 0\noom 9\noom_kill 7\n");
    write_text("fs/a/memory.events", "oom_kill 100\n");
    ck_assert_int_eq(count("0::/a/b\n"), 7);
    write_text("fs/a/b/memory.events.local",
        "low 0\noom 9\noom_kill 5\noom_group_kill 3\n");
    ck_assert_int_eq(count("0::/a/b\n"), 5);
}
END_TEST

START_TEST(cgroup_without_the_controller_counts_above)
{
    write_text("fs/a/memory.events", "oom_kill 4\n");
    write_text("fs/a/b/c/cgroup.procs", "1\n");
    ck_assert_int_eq(count("0::/a/b/c\n"), 4);
}
END_TEST

START_TEST(host_path_in_a_container_ends_at_the_mount)
{
    write_text("fs/memory.events", "oom_kill 3\n");
    ck_assert_int_eq(count("0::/docker/0123\n"), 3);
    ck_assert_int_eq(count("0::/\n"), 3);
    ck_assert_int_eq(count("0::/../..\n"), 3);
}
END_TEST

START_TEST(kills_of_version_1_are_in_oom_control)
{
    write_text("fs/memory/x/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
    ck_assert_int_eq(
        count("9:cpu:/y\n4:memory:/x\n1:name=systemd:/z\n0::/\n"), 2);
    write_text("fs/memory/x/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\n"); /* before Linux 4.13 */
    ck_assert_int_eq(count("4:memory:/x\n"), -1);
}
END_TEST

START_TEST(version_2_beside_version_1)
{
    write_text("fs/unified/x/memory.events", "oom_kill 6\n");
    ck_assert_int_eq(count("1:cpu:/y\n0::/x\n"), 6);
}
END_TEST

START_TEST(what_is_not_known_is_no_number)
{
    char text[5000];

    ck_assert_int_eq(count(""), -1);
    ck_assert_int_eq(count("nonsense"), -1);
    ck_assert_int_eq(count("0:\n0::\n::::\n"), -1);
    memset(text, '/', sizeof(text));
    memcpy(text, "0::", 3);
    text[sizeof(text) - 1] = '\0';
    ck_assert_int_eq(count(text), -1);
    ck_assert_int_eq(oom_kills_read("/no/such/file", folder), -1);
    ck_assert_int_ge(report_count_oom_kills(), -1);
}
END_TEST

/* --- Text for a terminal ----------------------------------------------------
 */

static const struct {
    const char *bytes;
    const char *want;
} texts[] = {
    {"", ""},
    {"plain \t text", "plain \t text"},
    {"\x1b[0m\n\x7f", "\\x1b[0m\\x0a\\x7f"},
    {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x94\xa5",
        "\xc3\xa9\xe2\x82\xac\xf0\x9f\x94\xa5"},
    {"\xc2\x9b", "\\xc2\\x9b"},
    {"a\xff", "a\\xff"},
    {"\xe2\x82", "\\xe2\\x82"},
};

START_TEST(text_is_fit_for_a_terminal)
{
    struct buf out;

    buf_init(&out, 1000);
    ck_assert_int_eq(
        plain_text_append(&out, texts[_i].bytes, strlen(texts[_i].bytes)), 0);
    ck_assert_int_eq(buf_append(&out, "", 1), 0);
    ck_assert_str_eq(buf_bytes(&out), texts[_i].want);
    buf_fini(&out);
}
END_TEST

START_TEST(text_that_does_not_fit_is_refused)
{
    struct buf out;

    buf_init(&out, 10);
    ck_assert_int_eq(plain_text_append(&out, "\x01\x02\x03", 3), -ENOBUFS);
    buf_fini(&out);
}
END_TEST

int main(void)
{
    TCase *hints = tcase_create("hints");
    TCase *kills = tcase_create("kills");
    TCase *plain = tcase_create("plain");
    Suite *suite = suite_create("hints");

    tcase_add_checked_fixture(hints, set_up, tear_down);
    tcase_add_loop_test(
        hints, end_is_explained, 0, sizeof(ends) / sizeof(ends[0]));
    tcase_add_test(hints, who_has_told_where_is_not_told_how);
    tcase_add_test(hints, nothing_is_said_of_what_has_not_ended);
    tcase_add_test(hints, line_of_the_dynamic_loader_is_quoted);
    tcase_add_test(hints, log_that_is_no_file_is_not_waited_for);
    tcase_add_loop_test(hints, start_that_failed_is_explained, 0,
        sizeof(starts) / sizeof(starts[0]));
    tcase_add_test(hints, state_of_a_process_is_told);
    suite_add_tcase(suite, hints);
    tcase_add_checked_fixture(kills, set_up, tear_down);
    tcase_add_test(kills, kills_of_version_2_are_those_of_the_own_cgroup);
    tcase_add_test(kills, cgroup_without_the_controller_counts_above);
    tcase_add_test(kills, host_path_in_a_container_ends_at_the_mount);
    tcase_add_test(kills, kills_of_version_1_are_in_oom_control);
    tcase_add_test(kills, version_2_beside_version_1);
    tcase_add_test(kills, what_is_not_known_is_no_number);
    suite_add_tcase(suite, kills);
    tcase_add_loop_test(
        plain, text_is_fit_for_a_terminal, 0, sizeof(texts) / sizeof(texts[0]));
    tcase_add_test(plain, text_that_does_not_fit_is_refused);
    suite_add_tcase(suite, plain);
    return unit_run_suite(suite);
}
