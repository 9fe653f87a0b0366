/*
 * coll_spawn(): what workers find, how the first failure ends the others and
 * is told, that nothing of it survives, and that the caller is left as it was.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/coll_harness.h"
#include "tests/unit/unit.h"

#define MAX_RANKS 64

/* Stands in for libc's: from now on so many succeed. -1: all. */
static int forks_left = -1;

pid_t fork(void)
{
    static pid_t (*real)(void);

    if (forks_left == 0) {
        errno = EAGAIN;
        return -1;
    }
    if (forks_left > 0)
        forks_left--;
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "fork");
    return real();
}

/* What processes of one test share. */
struct shared {
    atomic_int count;
    atomic_int pids[MAX_RANKS];
    char text[MAX_RANKS][512];
};

static struct shared *shared;
/* Workers write a byte when they are where they should be. */
static int ready[2];
/* Held open by every process that must not survive. */
static int alive[2];

static void set_up(void)
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(shared, MAP_FAILED);
    ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(alive, O_CLOEXEC), 0);
}

static void say_ready(void)
{
    while (write(ready[1], "", 1) < 0)
        continue;
}

static void wait_ready(int n)
{
    char byte;

    while (n > 0)
        n -= read(ready[0], &byte, 1) == 1;
}

static _Noreturn void pause_forever(void)
{
    for (;;)
        pause();
}

/* Nobody else holds the pipe any more: what was started is gone. */
static void expect_all_gone(void)
{
    struct pollfd p = {.fd = alive[0], .events = POLLIN};

    close(alive[1]);
    ck_assert_int_eq(poll(&p, 1, 20000), 1);
    ck_assert(p.revents & POLLHUP);
}

static void expect_words(const char *words)
{
    ck_assert_msg(strstr(coll_last_error(), words) != NULL,
        "\"%s\" is not in: %s", words, coll_last_error());
}

static void expect_status(coll_status_t got, coll_status_t want)
{
    ck_assert_msg(got == want, "%s: %s", coll_strerror(got), coll_last_error());
}

/* --- What workers find ---------------------------------------------------- */

static const char *value_of(const char *name)
{
    const char *text = getenv(name);

    return text != NULL ? text : "-";
}

static int note_environment(int rank, void *arg)
{
    snprintf(shared->text[rank], sizeof(shared->text[rank]),
        "%s %s %s %s %s %s %s %s %s %s", value_of("RANK"),
        value_of("LOCAL_RANK"), value_of("WORLD_SIZE"),
        value_of("LOCAL_WORLD_SIZE"), value_of("GROUP_RANK"),
        value_of("GROUP_WORLD_SIZE"), value_of("MASTER_ADDR"),
        value_of("TORCHELASTIC_USE_AGENT_STORE"), value_of("CRUN_AGENT"),
        value_of("MINE"));
    atomic_store(&shared->pids[rank], atoi(value_of("MASTER_PORT")));
    return *(int *)arg == 4711 ? 0 : 1;
}

START_TEST(workers_have_their_environment)
{
    int arg = 4711;
    int port;

    /* That of a launcher is not theirs. */
    setenv("RANK", "7", 1);
    setenv("WORLD_SIZE", "8", 1);
    setenv("GROUP_RANK", "3", 1);
    setenv("CRUN_AGENT", "@x", 1);
    setenv("MASTER_ADDR", "example.org", 1);
    setenv("MASTER_PORT", "1", 1);
    setenv("MINE", "kept", 1);
    expect_status(coll_spawn(note_environment, &arg, 3, NULL), COLL_OK);
    ck_assert_str_eq(shared->text[0], "0 0 3 3 0 1 127.0.0.1 True - kept");
    ck_assert_str_eq(shared->text[2], "2 2 3 3 0 1 127.0.0.1 True - kept");
    port = atomic_load(&shared->pids[0]);
    ck_assert_int_gt(port, 1);
    ck_assert_int_eq(atomic_load(&shared->pids[2]), port);
    /* And the caller keeps it. */
    ck_assert_str_eq(getenv("RANK"), "7");
    ck_assert_str_eq(getenv("CRUN_AGENT"), "@x");
    ck_assert_str_eq(getenv("MASTER_PORT"), "1");
}
END_TEST

static int add_up(int rank, void *arg)
{
    int64_t sum = rank + 1;
    int n = *(int *)arg;

    if (coll_init(NULL) != COLL_OK ||
        coll_all_reduce(&sum, &sum, 1, COLL_INT64, COLL_SUM, NULL) != COLL_OK)
        return 1;
    if (sum != n * (n + 1) / 2 || coll_rank(NULL) != rank ||
        coll_local_rank() != rank || coll_world_size(NULL) != n)
        return 2;
    atomic_fetch_add(&shared->count, 1);
    return coll_destroy() == COLL_OK ? 0 : 3;
}

static const int sizes[] = {1, 2, 3, 7, 16};

START_TEST(workers_meet)
{
    int n = sizes[_i];

    expect_status(coll_spawn(add_up, &n, n, NULL), COLL_OK);
    ck_assert_int_eq(atomic_load(&shared->count), n);
    /* And again. */
    expect_status(coll_spawn(add_up, &n, n, NULL), COLL_OK);
    ck_assert_int_eq(atomic_load(&shared->count), 2 * n);
}
END_TEST

static int spawn_again(int rank, void *arg)
{
    (void)rank;
    return coll_spawn(add_up, arg, *(int *)arg, NULL) == COLL_OK ? 0 : 1;
}

START_TEST(workers_may_spawn)
{
    int n = 3;

    expect_status(coll_spawn(spawn_again, &n, 2, NULL), COLL_OK);
    ck_assert_int_eq(atomic_load(&shared->count), 6);
}
END_TEST

static void on_signal(int sig)
{
    (void)sig;
}

static int check_signals(int rank, void *arg)
{
    struct sigaction now;
    sigset_t mask;
    bool is_right = getpgrp() == getpid() && getsid(0) == getppid();

    (void)rank;
    (void)arg;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    is_right = is_right && sigismember(&mask, SIGUSR1) &&
               !sigismember(&mask, SIGTERM) && !sigismember(&mask, SIGCHLD);
    sigaction(SIGINT, NULL, &now);
    is_right = is_right && now.sa_handler == SIG_DFL;
    sigaction(SIGTERM, NULL, &now);
    is_right = is_right && now.sa_handler == SIG_DFL;
    sigaction(SIGCHLD, NULL, &now);
    is_right = is_right && now.sa_handler == SIG_DFL;
    sigaction(SIGHUP, NULL, &now);
    is_right = is_right && now.sa_handler == SIG_IGN;
    sigaction(SIGUSR2, NULL, &now);
    return is_right && now.sa_handler == on_signal ? 0 : 1;
}

static int count_fds(void)
{
    int n = 0;

    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

START_TEST(signals_and_files_stay_as_they_were)
{
    struct sigaction now;
    struct rlimit before, after;
    sigset_t mask, old;
    int nfds = count_fds();

    getrlimit(RLIMIT_NOFILE, &before);
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    signal(SIGCHLD, on_signal);
    signal(SIGUSR2, on_signal);
    signal(SIGHUP, SIG_IGN);
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    sigprocmask(SIG_SETMASK, &mask, &old);
    expect_status(coll_spawn(check_signals, NULL, 2, NULL), COLL_OK);
    sigprocmask(SIG_SETMASK, &old, &mask);
    ck_assert(sigismember(&mask, SIGUSR1) && !sigismember(&mask, SIGTERM));
    sigaction(SIGTERM, NULL, &now);
    ck_assert(now.sa_handler == on_signal);
    sigaction(SIGCHLD, NULL, &now);
    ck_assert(now.sa_handler == on_signal);
    getrlimit(RLIMIT_NOFILE, &after);
    ck_assert_int_eq(before.rlim_cur, after.rlim_cur);
    ck_assert_int_eq(count_fds(), nfds);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
}
END_TEST

static int say_nothing(int rank, void *arg)
{
    (void)rank;
    fputs(arg, stdout);
    return 0;
}

static void say_farewell(void)
{
    fputs("farewell ", stdout);
}

START_TEST(output_is_written_once)
{
    char text[256] = "";
    int out[2];
    int status;
    pid_t pid;

    ck_assert_int_eq(pipe(out), 0);
    pid = fork();
    if (pid == 0) {
        dup2(out[1], STDOUT_FILENO);
        atexit(say_farewell);
        fputs("before ", stdout);
        if (coll_spawn(say_nothing, "worker ", 2, NULL) != COLL_OK)
            _exit(1);
        fputs("after ", stdout);
        exit(0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert_int_gt(read(out[0], text, sizeof(text) - 1), 0);
    ck_assert_str_eq(text, "before worker worker after farewell ");
    close(out[0]);
    close(out[1]);
}
END_TEST

/* --- Failures ------------------------------------------------------------- */

struct end {
    int value; /* what the failing worker returns */
    int code; /* or else its exit() */
    int sig; /* or else the signal that it sends itself */
    const char *words;
};

static struct end ends[] = {
    {.value = 7, .words = "failed first: exit status 7"},
    {.value = 256, .words = "failed first: exit status 1"},
    {.value = -1, .words = "failed first: exit status 255"},
    {.code = 3, .words = "failed first: exit status 3"},
    {.sig = SIGKILL, .words = "failed first: signal 9 (SIGKILL)"},
    {.sig = SIGABRT, .words = "failed first: signal 6 (SIGABRT)"},
    {.sig = 40, .words = "failed first: signal 40"},
};

/* Rank 1 fails when the others are asleep. */
static int end_rank_1(int rank, void *arg)
{
    const struct end *end = arg;
    const struct rlimit no_core = {0, 0};

    atomic_store(&shared->pids[rank], getpid());
    if (rank != 1) {
        say_ready();
        pause_forever();
    }
    wait_ready(3);
    setrlimit(RLIMIT_CORE, &no_core);
    if (end->sig > 0) {
        signal(end->sig, SIG_DFL);
        raise(end->sig);
    }
    if (end->code > 0)
        _exit(end->code);
    return end->value;
}

START_TEST(the_first_failure_ends_the_others_and_is_told)
{
    char who[64];

    expect_status(coll_spawn(end_rank_1, &ends[_i], 4, NULL), COLL_ERR_PEER);
    snprintf(who, sizeof(who), "coll_spawn: rank 1 (pid %d) ",
        atomic_load(&shared->pids[1]));
    expect_words(who);
    expect_words(ends[_i].words);
    expect_all_gone();
}
END_TEST

static atomic_int was_told;

static void on_term(int sig)
{
    (void)sig;
    atomic_store(&was_told, 1);
}

/* Rank 0 fails; the others leave in good order. */
static int leave_when_told(int rank, void *arg)
{
    sigset_t mask, old;

    (void)arg;
    if (rank == 0) {
        wait_ready(2);
        return 5;
    }
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    sigprocmask(SIG_BLOCK, &mask, &old);
    signal(SIGTERM, on_term);
    say_ready();
    while (!atomic_load(&was_told))
        sigsuspend(&old);
    atomic_fetch_add(&shared->count, 1);
    return 0;
}

START_TEST(the_others_are_asked_before_they_are_killed)
{
    expect_status(coll_spawn(leave_when_told, NULL, 3, NULL), COLL_ERR_PEER);
    expect_words("rank 0 ");
    expect_words("exit status 5");
    ck_assert_int_eq(atomic_load(&shared->count), 2);
}
END_TEST

static int stay_when_told(int rank, void *arg)
{
    (void)arg;
    if (rank == 0) {
        wait_ready(2);
        return 5;
    }
    signal(SIGTERM, SIG_IGN);
    say_ready();
    pause_forever();
}

START_TEST(who_stays_is_killed)
{
    coll_spawn_options_t options = COLL_SPAWN_OPTIONS_INIT;

    options.grace_ms = 10;
    expect_status(coll_spawn(stay_when_told, NULL, 3, &options), COLL_ERR_PEER);
    expect_words("rank 0 ");
    expect_all_gone();
}
END_TEST

/* Rank 2 is killed in the middle of it; the others' calls fail. */
static int reduce_until_killed(int rank, void *arg)
{
    float x = 1;

    (void)arg;
    if (coll_init(NULL) != COLL_OK)
        return 1;
    for (int i = 0; i < 100 || rank != 2; i++)
        if (coll_all_reduce(&x, &x, 1, COLL_FLOAT32, COLL_AVG, NULL) != COLL_OK)
            return 2;
    kill(getpid(), SIGKILL);
    return 3;
}

START_TEST(a_death_is_the_cause_and_not_what_it_causes)
{
    for (int i = 0; i < 10; i++) {
        expect_status(
            coll_spawn(reduce_until_killed, NULL, 4, NULL), COLL_ERR_PEER);
        expect_words("rank 2 ");
        expect_words("SIGKILL");
    }
}
END_TEST

static bool is_zombie(pid_t pid)
{
    char path[64];
    char state = '?';
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    f = fopen(path, "r");
    if (f == NULL)
        return false;
    if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
        state = '?';
    fclose(f);
    return state == 'Z';
}

/* Both ranks 0 and 1 end while the supervisor cannot look. */
static int end_at_once(int rank, void *arg)
{
    int *go = arg;
    char byte;

    atomic_store(&shared->pids[rank], getpid());
    if (rank < 2) {
        say_ready();
        while (read(go[0], &byte, 1) != 1)
            continue;
        if (rank == 1)
            raise(SIGKILL);
        return 4;
    }
    wait_ready(2);
    kill(getppid(), SIGSTOP);
    if (write(go[1], "go", 2) != 2)
        return 5;
    while (!is_zombie(atomic_load(&shared->pids[0])) ||
           !is_zombie(atomic_load(&shared->pids[1])))
        sched_yield();
    kill(getppid(), SIGCONT);
    return 0;
}

START_TEST(of_two_that_end_at_once_the_killed_one_is_the_cause)
{
    int go[2];

    ck_assert_int_eq(pipe(go), 0);
    expect_status(coll_spawn(end_at_once, go, 3, NULL), COLL_ERR_PEER);
    expect_words("rank 1 ");
    expect_words("SIGKILL");
}
END_TEST

static int kill_parent(int rank, void *arg)
{
    if (rank == 0) {
        wait_ready(1);
        kill(getppid(), *(int *)arg);
    } else {
        say_ready();
    }
    pause_forever();
}

START_TEST(a_lost_supervisor_is_an_error)
{
    int sig = SIGKILL;

    expect_status(coll_spawn(kill_parent, &sig, 2, NULL), COLL_ERR_PEER);
    expect_words("the process that supervised the workers");
    sig = SIGTERM;
    expect_status(coll_spawn(kill_parent, &sig, 2, NULL), COLL_ERR_PEER);
    expect_words("was told to end");
    expect_all_gone();
}
END_TEST

START_TEST(too_few_processes_or_files_are_errors)
{
    struct rlimit limit = {20, 20};
    int n = 4;

    forks_left = 0;
    expect_status(coll_spawn(add_up, &n, n, NULL), COLL_ERR_SYSTEM);
    expect_words("coll_spawn: fork: ");
    forks_left = 3;
    expect_status(coll_spawn(add_up, &n, n, NULL), COLL_ERR_SYSTEM);
    expect_words("fork for rank 2 of 4: Resource temporarily unavailable");
    forks_left = -1;
    setrlimit(RLIMIT_NOFILE, &limit);
    expect_status(coll_spawn(add_up, &n, MAX_RANKS, NULL), COLL_ERR_SYSTEM);
    expect_words("a store for 64 workers needs as many open files");
    ck_assert_int_eq(atomic_load(&shared->count), 0);
    expect_all_gone();
}
END_TEST

/* --- Nothing survives ----------------------------------------------------- */

/* A process that nobody waits for. */
static void leave_behind(bool has_own_session)
{
    pid_t pid = fork();

    if (pid != 0)
        return;
    signal(SIGTERM, SIG_IGN);
    if (has_own_session)
        setsid();
    if (fork() == 0)
        say_ready();
    pause_forever();
}

/* Each with a child and a grandchild, in the session or out of it. */
static int leave_processes(int rank, void *arg)
{
    int value = *(int *)arg;

    leave_behind(rank % 2 == 1);
    wait_ready(1);
    return rank == 0 ? value : 0;
}

START_TEST(what_workers_leave_behind_is_killed)
{
    int value = _i;

    expect_status(coll_spawn(leave_processes, &value, 4, NULL),
        value == 0 ? COLL_OK : COLL_ERR_PEER);
    expect_all_gone();
}
END_TEST

/* Rank 0's orphans end while it runs, and do not pile up. */
static int have_orphans(int rank, void *arg)
{
    (void)rank;
    (void)arg;
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();

        if (pid == 0) {
            if (fork() == 0)
                say_ready();
            _exit(0);
        }
        waitpid(pid, NULL, 0);
    }
    wait_ready(20);
    return 0;
}

START_TEST(orphans_are_not_taken_for_workers)
{
    expect_status(coll_spawn(have_orphans, NULL, 1, NULL), COLL_OK);
}
END_TEST

static int ignore_and_pause(int rank, void *arg)
{
    (void)arg;
    signal(SIGTERM, SIG_IGN);
    leave_behind(rank == 1);
    say_ready();
    pause_forever();
}

/* The caller is killed, alone or with its process group. */
START_TEST(a_caller_that_is_killed_takes_all_along)
{
    bool is_group = _i == 1;
    pid_t pid = fork();

    if (pid == 0) {
        setpgid(0, 0);
        coll_spawn(ignore_and_pause, NULL, 2, NULL);
        _exit(1);
    }
    wait_ready(4);
    ck_assert_int_eq(kill(is_group ? -pid : pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    expect_all_gone();
}
END_TEST

/* --- The caller's own children -------------------------------------------- */

static atomic_int reaped;

static void reap_all(int sig)
{
    int saved_errno = errno;

    (void)sig;
    while (waitpid(-1, NULL, WNOHANG) > 0)
        atomic_fetch_add(&reaped, 1);
    errno = saved_errno;
}

static int return_rank(int rank, void *arg)
{
    (void)arg;
    return rank;
}

static int check_sigchld(int rank, void *arg)
{
    struct sigaction now;

    (void)rank;
    sigaction(SIGCHLD, NULL, &now);
    return now.sa_handler == (*(int *)arg == 0 ? SIG_IGN : SIG_DFL) ? 0 : 1;
}

static void set_sigchld(int how)
{
    struct sigaction sa = {0};

    sa.sa_handler = how == 0 ? SIG_IGN : how == 1 ? SIG_DFL : reap_all;
    sa.sa_flags = how == 1 ? SA_NOCLDWAIT : 0;
    sigaction(SIGCHLD, &sa, NULL);
}

START_TEST(whoever_reaps_the_verdict_arrives)
{
    int how = _i;

    set_sigchld(how);
    expect_status(coll_spawn(check_sigchld, &how, 1, NULL), COLL_OK);
    expect_status(coll_spawn(return_rank, NULL, 2, NULL), COLL_ERR_PEER);
    expect_words("rank 1 ");
    /* No more than the two supervisors came to the caller's attention. */
    ck_assert_int_le(atomic_load(&reaped), 2);
}
END_TEST

START_TEST(other_children_are_left_alone)
{
    pid_t pid = fork();
    int status;

    if (pid == 0)
        _exit(5);
    expect_status(coll_spawn(return_rank, NULL, 1, NULL), COLL_OK);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 5);
}
END_TEST

static void on_usr1(int sig)
{
    (void)sig;
    atomic_fetch_add(&shared->count, 1);
}

/* Sends until the handler has run often: one signal alone may come before the
 * caller waits, and a sanitizer may hold it back till the next one. */
static int interrupt_caller(int rank, void *arg)
{
    (void)rank;
    while (atomic_load(&shared->count) < 20) {
        kill(*(pid_t *)arg, SIGUSR1);
        sched_yield();
    }
    return 0;
}

START_TEST(handled_signals_do_not_end_the_wait)
{
    struct sigaction sa = {.sa_handler = on_usr1};
    pid_t self = getpid();

    sigaction(SIGUSR1, &sa, NULL);
    expect_status(coll_spawn(interrupt_caller, &self, 1, NULL), COLL_OK);
}
END_TEST

/* --- Refusals ------------------------------------------------------------- */

START_TEST(bad_arguments_are_refused)
{
    coll_spawn_options_t options = COLL_SPAWN_OPTIONS_INIT;
    int n = 1;

    expect_status(coll_spawn(NULL, NULL, 1, NULL), COLL_ERR_ARGUMENT);
    expect_words("fn is NULL");
    expect_status(coll_spawn(add_up, &n, 0, NULL), COLL_ERR_ARGUMENT);
    expect_status(coll_spawn(add_up, &n, -1, NULL), COLL_ERR_ARGUMENT);
    expect_status(coll_spawn(add_up, &n, 1025, NULL), COLL_ERR_ARGUMENT);
    expect_words("nprocs is 1025, it must be from 1 to 1024");
    options.grace_ms = -1;
    expect_status(coll_spawn(add_up, &n, 1, &options), COLL_ERR_ARGUMENT);
    ck_assert_int_eq(atomic_load(&shared->count), 0);
}
END_TEST

START_TEST(a_member_of_a_job_cannot_spawn)
{
    int n = 2;

    setenv("WORLD_SIZE", "1", 1);
    unsetenv("RANK");
    expect_status(coll_init(NULL), COLL_OK);
    expect_status(coll_spawn(add_up, &n, n, NULL), COLL_ERR_STATE);
    expect_words("has called coll_init()");
    expect_status(coll_destroy(), COLL_OK);
    expect_status(coll_spawn(add_up, &n, n, NULL), COLL_OK);
    ck_assert_int_eq(atomic_load(&shared->count), 2);
}
END_TEST

#define COUNT(a) ((int)(sizeof(a) / sizeof(a[0])))

int main(void)
{
    TCase *tcase = tcase_create("coll_spawn");

    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, NULL);
    tcase_add_test(tcase, workers_have_their_environment);
    tcase_add_loop_test(tcase, workers_meet, 0, COUNT(sizes));
    tcase_add_test(tcase, workers_may_spawn);
    tcase_add_test(tcase, signals_and_files_stay_as_they_were);
    tcase_add_test(tcase, output_is_written_once);
    tcase_add_loop_test(
        tcase, the_first_failure_ends_the_others_and_is_told, 0, COUNT(ends));
    tcase_add_test(tcase, the_others_are_asked_before_they_are_killed);
    tcase_add_test(tcase, who_stays_is_killed);
    tcase_add_test(tcase, a_death_is_the_cause_and_not_what_it_causes);
    tcase_add_test(tcase, of_two_that_end_at_once_the_killed_one_is_the_cause);
    tcase_add_test(tcase, a_lost_supervisor_is_an_error);
    tcase_add_test(tcase, too_few_processes_or_files_are_errors);
    tcase_add_loop_test(tcase, what_workers_leave_behind_is_killed, 0, 2);
    tcase_add_test(tcase, orphans_are_not_taken_for_workers);
    tcase_add_loop_test(tcase, a_caller_that_is_killed_takes_all_along, 0, 2);
    tcase_add_loop_test(tcase, whoever_reaps_the_verdict_arrives, 0, 3);
    tcase_add_test(tcase, other_children_are_left_alone);
    tcase_add_test(tcase, handled_signals_do_not_end_the_wait);
    tcase_add_test(tcase, bad_arguments_are_refused);
    tcase_add_test(tcase, a_member_of_a_job_cannot_spawn);
    return unit_run("coll_spawn", tcase);
}
