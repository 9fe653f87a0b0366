/*
 * The error file of a worker: what coll_record_error() and the crash handler
 * leave for the launcher, read as crun reads it.
 */
#include <collective.h>
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/error_file.h"
#include "rendezvous/base/utf8.h"
#include "rendezvous/worker_env.h"
#include "tests/unit/unit.h"

static char folder[64];
static char path[128];
static struct error_file file;

static void set_up(void)
{
    snprintf(folder, sizeof(folder), "/tmp/test_coll_record.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/error.json", folder);
    setenv(ENV_ERROR_FILE, path, 1);
}

static void tear_down(void)
{
    error_file_fini(&file);
    unlink(path);
    ck_assert_int_eq(rmdir(folder), 0); /* so nothing else was left in it */
}

static const char *read_message(void)
{
    error_file_fini(&file);
    error_file_read(&file, path);
    ck_assert_str_eq(file.problem, "");
    ck_assert_ptr_nonnull(file.message);
    return file.message;
}

static int count_entries(void)
{
    DIR *dir = opendir(folder);
    int count = 0;

    ck_assert_ptr_nonnull(dir);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count - 2; /* "." and ".." */
}

/* --- coll_record_error() ------------------------------------------------- */

START_TEST(message_stack_and_time_are_written_in_the_form_of_torch)
{
    time_t before = time(NULL);

    ck_assert_int_eq(
        coll_record_error("no data in \"/data\"\n\tat all"), COLL_OK);
    ck_assert_str_eq(read_message(), "no data in \"/data\"\n\tat all");
    ck_assert_ptr_nonnull(file.traceback);
    ck_assert_ptr_nonnull(strstr(file.traceback, "test_coll_record"));
    /* All that torchrun shows. */
    ck_assert_int_eq(
        strncmp(file.traceback, "no data in \"/data\"\n\tat all\n", 26), 0);
    ck_assert(file.timestamp >= (double)before);
    ck_assert(file.timestamp <= (double)time(NULL));
    ck_assert(json_is_string(json_object_get(
        json_object_get(json_object_get(file.json, "message"), "extraInfo"),
        "timestamp")));
}
END_TEST

START_TEST(first_message_stays)
{
    ck_assert_int_eq(coll_record_error("first"), COLL_OK);
    ck_assert_int_eq(coll_record_error("second"), COLL_OK);
    ck_assert_str_eq(read_message(), "first");
}
END_TEST

START_TEST(without_a_name_nothing_is_written)
{
    setenv(ENV_ERROR_FILE, "", 1);
    ck_assert_int_eq(coll_record_error("x"), COLL_OK);
    ck_assert_int_eq(coll_install_crash_handler(), COLL_OK);
    unsetenv(ENV_ERROR_FILE);
    ck_assert_int_eq(coll_record_error("x"), COLL_OK);
    ck_assert_int_eq(coll_install_crash_handler(), COLL_OK);
    ck_assert_int_eq(count_entries(), 0);
}
END_TEST

START_TEST(null_is_no_message)
{
    ck_assert_int_eq(coll_record_error(NULL), COLL_ERR_ARGUMENT);
    ck_assert_int_eq(count_entries(), 0);
}
END_TEST

START_TEST(file_that_cannot_be_written_is_named)
{
    setenv(ENV_ERROR_FILE, "/no/such/folder/error.json", 1);
    ck_assert_int_eq(coll_record_error("x"), COLL_ERR_SYSTEM);
    ck_assert_str_eq(coll_last_error(),
        "coll_record_error: write /no/such/folder/error.json: No such file or "
        "directory");
}
END_TEST

START_TEST(name_that_is_too_long_is_refused)
{
    char name[PATH_MAX + 100];

    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    name[0] = '/';
    for (size_t len = PATH_MAX - 12; len < sizeof(name); len++) {
        char *cut = strndup(name, len);

        setenv(ENV_ERROR_FILE, cut, 1);
        free(cut);
        ck_assert_int_ne(coll_record_error("x"), COLL_ERR_ARGUMENT);
    }
    ck_assert_int_eq(count_entries(), 0);
}
END_TEST

static const struct {
    const char *bytes;
    const char *want;
} encodings[] = {
    {"", ""},
    {"\x01\x1f\x7f\\/", "\x01\x1f\x7f\\/"},
    {"gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f"},
    {"\xe2\x82\xac \xf0\x9f\x94\xa5", "\xe2\x82\xac \xf0\x9f\x94\xa5"},
    {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
    /* not UTF-8: alone, cut off, too long, half a pair, beyond the end */
    {"a\xff"
     "b",
        "a\xef\xbf\xbd"
        "b"},
    {"a\xe2\x82", "a\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
};

START_TEST(any_bytes_become_a_text)
{
    ck_assert_int_eq(coll_record_error(encodings[_i].bytes), COLL_OK);
    ck_assert_str_eq(read_message(), encodings[_i].want);
}
END_TEST

START_TEST(file_is_ascii)
{
    char every[256];
    FILE *f;
    int c;

    for (int i = 0; i < 255; i++)
        every[i] = (char)(i + 1);
    every[255] = '\0';
    ck_assert_int_eq(coll_record_error(every), COLL_OK);
    read_message();
    f = fopen(path, "re");
    ck_assert_ptr_nonnull(f);
    while ((c = getc(f)) != EOF)
        ck_assert(c >= ' ' && c < 0x7f);
    fclose(f);
}
END_TEST

START_TEST(long_message_is_cut_and_can_still_be_read)
{
    size_t len = 4 * 1024 * 1024;
    char *message = malloc(len + 1);
    struct stat st;

    ck_assert_ptr_nonnull(message);
    memset(message, '\x01', len); /* six bytes each */
    message[len] = '\0';
    ck_assert_int_eq(coll_record_error(message), COLL_OK);
    free(message);
    ck_assert_uint_eq(strlen(read_message()), 64 * 1024);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_lt(st.st_size, ERROR_FILE_MAX);
}
END_TEST

#define NTHREADS 8

static void *record_one(void *barrier)
{
    pthread_barrier_wait(barrier);
    return coll_record_error("one of many") == COLL_OK ? NULL : barrier;
}

START_TEST(one_of_many_threads_is_first)
{
    pthread_t threads[NTHREADS];
    pthread_barrier_t barrier;
    void *failed;

    pthread_barrier_init(&barrier, NULL, NTHREADS);
    for (int i = 0; i < NTHREADS; i++)
        ck_assert_int_eq(
            pthread_create(&threads[i], NULL, record_one, &barrier), 0);
    for (int i = 0; i < NTHREADS; i++) {
        ck_assert_int_eq(pthread_join(threads[i], &failed), 0);
        ck_assert_ptr_null(failed);
    }
    pthread_barrier_destroy(&barrier);
    ck_assert_str_eq(read_message(), "one of many");
    ck_assert_int_eq(count_entries(), 1);
}
END_TEST

START_TEST(decoding_never_reads_beyond_the_end)
{
    char bytes[4] = {'\xf0', '\x9f', '\x94', '\xa5'};
    uint32_t c;

    for (size_t n = 1; n < 4; n++)
        ck_assert_uint_eq(utf8_decode(bytes, n, &c), 0);
    ck_assert_uint_eq(utf8_decode(bytes, 4, &c), 4);
    ck_assert_uint_eq(c, 0x1f525);
}
END_TEST

/* --- The crash handler --------------------------------------------------- */

static volatile int zero;

/* Volatile, or the compiler makes a trap of it. */
static int *volatile nowhere = (int *)16;

static void fault_segv(void)
{
    *nowhere = 1;
}

static void fault_bus(void)
{
    int fd = memfd_create("empty", MFD_CLOEXEC);
    volatile char *page = mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);

    (void)*page;
}

static void fault_ill(void)
{
#if defined(__x86_64__)
    __asm__ volatile("ud2");
#else
    raise(SIGILL);
#endif
}

static void fault_fpe(void)
{
#if defined(__x86_64__)
    __asm__ volatile("divl %0" ::"m"(zero), "a"(1), "d"(0));
#else
    raise(SIGFPE);
#endif
}

static const struct {
    void (*fault)(void);
    int sig;
    const char *message;
} crashes[] = {
    {fault_segv, SIGSEGV, "signal 11 (SIGSEGV) at address 0x10"},
    {fault_bus, SIGBUS, "signal 7 (SIGBUS) at address 0x"},
    {fault_ill, SIGILL, "signal 4 (SIGILL)"},
    {fault_fpe, SIGFPE, "signal 8 (SIGFPE)"},
    {abort, SIGABRT, "signal 6 (SIGABRT)"},
};

/* A sanitizer's handlers end the process in a way of their own. */
static void default_handlers(void)
{
    for (size_t i = 0; i < sizeof(crashes) / sizeof(crashes[0]); i++)
        signal(crashes[i].sig, SIG_DFL);
}

/* Runs fn in a process with a crash handler; returns its wait status. */
static int run_in_child(void (*fn)(void))
{
    int status;
    pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        default_handlers();
        if (coll_install_crash_handler() != COLL_OK)
            _exit(100);
        fn();
        _exit(101);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return status;
}

START_TEST(crash_is_recorded_and_ends_by_its_signal)
{
    int status = run_in_child(crashes[_i].fault);

    ck_assert(WIFSIGNALED(status));
    ck_assert_int_eq(WTERMSIG(status), crashes[_i].sig);
    ck_assert_int_eq(strncmp(read_message(), crashes[_i].message,
                         strlen(crashes[_i].message)),
        0);
    ck_assert_ptr_nonnull(strstr(file.traceback, "test_coll_record"));
}
END_TEST

static void raise_all_the_same(void)
{
    kill(getpid(), SIGSEGV);
}

static void be_killed_by_child(void)
{
    if (fork() == 0) {
        kill(getppid(), SIGBUS);
        _exit(0);
    }
    for (;;)
        pause();
}

START_TEST(signal_that_somebody_sent_is_no_fault)
{
    int status = run_in_child(raise_all_the_same);

    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    ck_assert_str_eq(read_message(), "signal 11 (SIGSEGV)");
    unlink(path);
    status = run_in_child(be_killed_by_child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    ck_assert_int_eq(
        strncmp(read_message(), "signal 7 (SIGBUS) sent by process ", 34), 0);
}
END_TEST

/* The kernel needs no stack to deliver the signal, since the handler has one
 * of its own; whoever walks this one is ended by it. */
static void fault_without_stack(void)
{
#if defined(__x86_64__)
    __asm__ volatile("mov $0x10, %%rsp\n\tmov $0x10, %%rbp\n\tud2" ::
                         : "memory");
#elif defined(__aarch64__)
    __asm__ volatile("mov x9, #0x10\n\tmov sp, x9\n\tmov x29, x9\n\tudf #0" ::
                         : "memory");
#else
    fault_ill();
#endif
}

START_TEST(smashed_stack_does_not_keep_the_message_from_being_written)
{
    int status = run_in_child(fault_without_stack);

    ck_assert(WIFSIGNALED(status));
    ck_assert_int_eq(strncmp(read_message(), "signal 4 (SIGILL)", 17), 0);
}
END_TEST

static void ignore_what_others_send(void)
{
    int status;
    pid_t pid;

    signal(SIGBUS, SIG_IGN);
    if (coll_install_crash_handler() != COLL_OK)
        _exit(100);
    pid = fork();
    if (pid == 0)
        _exit(kill(getppid(), SIGBUS));
    waitpid(pid, &status, 0);
    _exit(access(path, F_OK) == 0 ? 102 : 0);
}

/* Without run_in_child(): the handler comes after the program's choice. */
START_TEST(ignored_signal_is_no_crash)
{
    int status;
    pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        default_handlers();
        ignore_what_others_send();
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}
END_TEST

static void record_and_crash(void)
{
    coll_record_error("the real reason");
    abort();
}

START_TEST(crash_does_not_replace_what_was_said)
{
    int status = run_in_child(record_and_crash);

    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    ck_assert_str_eq(read_message(), "the real reason");
}
END_TEST

/* With a result that is used after the call, there is no tail call. */
static int overflow(volatile char *above, int depth)
{
    volatile char here[4096];

    here[0] = above[0];
    return depth == 0 ? 0 : overflow(here, depth - 1) + here[0];
}

static void overflow_stack(void)
{
    volatile char here[1] = {0};

    overflow(here, INT_MAX);
}

START_TEST(overflow_of_the_stack_is_recorded)
{
    int status = run_in_child(overflow_stack);

    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    ck_assert_int_eq(
        strncmp(read_message(), "signal 11 (SIGSEGV) at address", 30), 0);
}
END_TEST

static void *crash_in_thread(void *arg)
{
    if (arg != NULL)
        pthread_barrier_wait(arg);
    fault_segv();
    return NULL;
}

static void crash_two_threads(void)
{
    pthread_barrier_t barrier;
    pthread_t thread;

    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&thread, NULL, crash_in_thread, &barrier);
    crash_in_thread(&barrier);
}

START_TEST(threads_that_crash_at_once_leave_one_whole_file)
{
    int status = run_in_child(crash_two_threads);

    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    ck_assert_str_eq(read_message(), "signal 11 (SIGSEGV) at address 0x10");
    ck_assert_int_eq(count_entries(), 1);
}
END_TEST

static void on_segv(int sig, siginfo_t *info, void *context)
{
    (void)sig;
    (void)context;
    _exit(info->si_addr == (void *)nowhere && info->si_code == SEGV_MAPERR
              ? 42
              : 43);
}

START_TEST(handler_that_was_there_gets_the_same_signal)
{
    struct sigaction action = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO};
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        sigaction(SIGSEGV, &action, NULL);
        coll_install_crash_handler();
        coll_install_crash_handler(); /* does nothing */
        fault_segv();
        _exit(44);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 42);
    ck_assert_str_eq(read_message(), "signal 11 (SIGSEGV) at address 0x10");
}
END_TEST

static void crash_in_fork(void)
{
    int status;
    pid_t pid = fork();

    if (pid == 0)
        fault_segv();
    waitpid(pid, &status, 0);
    _exit(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV ? 0 : 102);
}

static void install_in_fork(void)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        coll_install_crash_handler();
        fault_segv();
    }
    waitpid(pid, &status, 0);
    _exit(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV ? 0 : 102);
}

START_TEST(fork_speaks_for_the_worker_only_if_it_says_so)
{
    ck_assert_int_eq(run_in_child(crash_in_fork), 0);
    ck_assert_int_eq(count_entries(), 0);
    ck_assert_int_eq(run_in_child(install_in_fork), 0);
    ck_assert_str_eq(read_message(), "signal 11 (SIGSEGV) at address 0x10");
}
END_TEST

static void crash_without_folder(void)
{
    rmdir(folder);
    fault_segv();
}

START_TEST(crash_ends_as_it_would_where_nothing_can_be_written)
{
    int status = run_in_child(crash_without_folder);

    mkdir(folder, 0700);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}
END_TEST

int main(void)
{
    TCase *record = tcase_create("record");
    TCase *crash = tcase_create("crash");
    Suite *suite = suite_create("coll_record");
    const int nencodings = (int)(sizeof(encodings) / sizeof(encodings[0]));
    const int ncrashes = (int)(sizeof(crashes) / sizeof(crashes[0]));

    tcase_add_checked_fixture(record, set_up, tear_down);
    tcase_add_test(
        record, message_stack_and_time_are_written_in_the_form_of_torch);
    tcase_add_test(record, first_message_stays);
    tcase_add_test(record, without_a_name_nothing_is_written);
    tcase_add_test(record, null_is_no_message);
    tcase_add_test(record, file_that_cannot_be_written_is_named);
    tcase_add_test(record, name_that_is_too_long_is_refused);
    tcase_add_loop_test(record, any_bytes_become_a_text, 0, nencodings);
    tcase_add_test(record, file_is_ascii);
    tcase_add_test(record, long_message_is_cut_and_can_still_be_read);
    tcase_add_test(record, one_of_many_threads_is_first);
    tcase_add_test(record, decoding_never_reads_beyond_the_end);
    suite_add_tcase(suite, record);
    tcase_add_checked_fixture(crash, set_up, tear_down);
    tcase_add_loop_test(
        crash, crash_is_recorded_and_ends_by_its_signal, 0, ncrashes);
    tcase_add_test(crash, signal_that_somebody_sent_is_no_fault);
    tcase_add_test(
        crash, smashed_stack_does_not_keep_the_message_from_being_written);
    tcase_add_test(crash, ignored_signal_is_no_crash);
    tcase_add_test(crash, crash_does_not_replace_what_was_said);
    tcase_add_test(crash, overflow_of_the_stack_is_recorded);
    tcase_add_test(crash, threads_that_crash_at_once_leave_one_whole_file);
    tcase_add_test(crash, handler_that_was_there_gets_the_same_signal);
    tcase_add_test(crash, fork_speaks_for_the_worker_only_if_it_says_so);
    tcase_add_test(crash, crash_ends_as_it_would_where_nothing_can_be_written);
    suite_add_tcase(suite, crash);
    return unit_run_suite(suite);
}
