/*
 * coll_spawn(): a program that starts its own workers.
 *
 * Between the caller and its workers stands a process of ours, the warden. It
 * has no children but the workers and what these leave behind, so it may wait
 * for any child, whatever the caller does with SIGCHLD; it hosts the store in a
 * thread, which the caller then need not have; and it outlives the caller by
 * the moment that it takes to kill everything below it. All processes are
 * forked while there is one thread of ours: the store's is started last, and
 * its port reaches the workers through a pipe.
 *
 *   caller, in coll_spawn()
 *     warden: own session, SIGTERM when the caller's thread ends, subreaper
 *       worker: own process group, SIGKILL when the warden ends
 */
#include "backend.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "coll_fds.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/text.h"
#include "rendezvous/worker_env.h"

#define NPROCS_MAX 1024
#define DEFAULT_GRACE_MS 30000
#define STORE_MS 30000 /* for a port of this machine, while it is busy */
#define SETTLE_MS 50
#define KILL_MS 5000 /* from SIGKILL to the end; more is a stuck driver */

/* What came of it: from the warden to the caller, in one write. */
struct verdict {
    coll_status_t status;
    char text[512];
};
_Static_assert(sizeof(struct verdict) <= PIPE_BUF, "a pipe takes it as one");

struct warden {
    coll_spawn_fn_t *fn;
    void *arg;
    int nprocs;
    int64_t grace_ms;
    sigset_t mask; /* the caller's */
    bool is_sigchld_ignored; /* the caller's, too */
    pid_t parent;
    pid_t pid;
    int verdict_fd;
    int port_pipe[2];
    coll_store_t *store;
    pid_t *pids; /* of the workers, 0 where there is none any more */
    int nrunning;
    uint64_t stop_ns; /* when the grace is over; 0: nobody has failed */
    uint64_t settle_ns; /* until then a death may replace it; 0: it stands */
    struct verdict verdict;
    bool is_killed; /* the verdict is that a worker was */
    bool is_final; /* what ends from now on is not the cause */
};

/* --- A worker ------------------------------------------------------------- */

/* Handlers of the caller's must not run in a worker that is told to end; what
 * the caller ignores stays ignored. */
static void reset_handlers(const struct warden *w)
{
    static const int signals[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    struct sigaction now;

    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        if (sigaction(signals[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            signal(signals[i], SIG_DFL);
    if (w->is_sigchld_ignored)
        signal(SIGCHLD, SIG_IGN);
}

static int set_number(const char *name, int value)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", value);
    return setenv(name, text, 1);
}

/* All that the agent of crun would set. A worker of a worker is none of the
 * launcher's. */
static int set_environment(int rank, int nprocs, int port)
{
    const struct {
        const char *name;
        int value;
    } numbers[] = {
        {ENV_RANK, rank},
        {ENV_LOCAL_RANK, rank},
        {ENV_ROLE_RANK, rank},
        {ENV_WORLD_SIZE, nprocs},
        {ENV_LOCAL_WORLD_SIZE, nprocs},
        {ENV_ROLE_WORLD_SIZE, nprocs},
        {ENV_GROUP_RANK, 0},
        {ENV_GROUP_WORLD_SIZE, 1},
        {ENV_RESTART_COUNT, 0},
        {ENV_MAX_RESTARTS, 0},
        {ENV_MASTER_PORT, port},
    };

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (set_number(numbers[i].name, numbers[i].value) < 0)
            return -1;
    unsetenv(ENV_AGENT);
    unsetenv(ENV_ERROR_FILE);
    unsetenv(ENV_RUN_ID);
    if (setenv(ENV_ROLE_NAME, "default", 1) < 0 ||
        setenv(ENV_MASTER_ADDR, "127.0.0.1", 1) < 0)
        return -1;
    return setenv(ENV_USE_AGENT_STORE, "True", 1);
}

/* -1 if the warden has given up. */
static int read_port(int fd)
{
    uint16_t port;
    ssize_t n;

    do
        n = read(fd, &port, sizeof(port));
    while (n < 0 && errno == EINTR);
    return n == sizeof(port) ? port : -1;
}

static _Noreturn void run_worker(const struct warden *w, int rank)
{
    int port;
    int value;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != w->pid || setpgid(0, 0) < 0)
        _exit(1);
    close(w->verdict_fd);
    close(w->port_pipe[1]);
    port = read_port(w->port_pipe[0]);
    close(w->port_pipe[0]);
    if (port < 0 || set_environment(rank, w->nprocs, port) < 0)
        _exit(1);
    reset_handlers(w);
    pthread_sigmask(SIG_SETMASK, &w->mask, NULL);
    value = w->fn(rank, w->arg);
    /* Not exit(): what the caller registered with atexit() is the caller's. */
    fflush(NULL);
    if (value != 0 && (value & 0xff) == 0)
        value = 1;
    _exit(value & 0xff);
}

/* --- The warden ----------------------------------------------------------- */

static void name_signal(int sig, char *out, size_t size)
{
    static const char *const names[] = {[SIGHUP] = "SIGHUP",
        [SIGINT] = "SIGINT",
        [SIGQUIT] = "SIGQUIT",
        [SIGILL] = "SIGILL",
        [SIGTRAP] = "SIGTRAP",
        [SIGABRT] = "SIGABRT",
        [SIGBUS] = "SIGBUS",
        [SIGFPE] = "SIGFPE",
        [SIGKILL] = "SIGKILL",
        [SIGUSR1] = "SIGUSR1",
        [SIGSEGV] = "SIGSEGV",
        [SIGUSR2] = "SIGUSR2",
        [SIGPIPE] = "SIGPIPE",
        [SIGALRM] = "SIGALRM",
        [SIGTERM] = "SIGTERM",
        [SIGXCPU] = "SIGXCPU",
        [SIGXFSZ] = "SIGXFSZ",
        [SIGSYS] = "SIGSYS"};
    const char *name = NULL;

    if (sig > 0 && (size_t)sig < sizeof(names) / sizeof(names[0]))
        name = names[sig];
    snprintf(
        out, size, name != NULL ? "signal %d (%s)" : "signal %d", sig, name);
}

__attribute__((format(printf, 3, 4))) static void decide(
    struct warden *w, coll_status_t status, const char *fmt, ...)
{
    va_list args;

    w->verdict.status = status;
    va_start(args, fmt);
    vsnprintf(w->verdict.text, sizeof(w->verdict.text), fmt, args);
    va_end(args);
}

/* To the worker's group, or to the worker, which may not have one yet. */
static void signal_worker(pid_t pid, int sig)
{
    if (kill(-pid, sig) < 0)
        kill(pid, sig);
}

static void signal_workers(const struct warden *w, int sig)
{
    for (int i = 0; i < w->nprocs; i++)
        if (w->pids[i] > 0)
            signal_worker(w->pids[i], sig);
}

/* A worker has ended; it is not reaped yet, so its number is still its own. */
static void on_worker_end(struct warden *w, int rank, const siginfo_t *info)
{
    bool is_signal = info->si_code != CLD_EXITED;
    char how[32];

    w->pids[rank] = 0;
    w->nrunning--;
    if (!is_signal && info->si_status == 0)
        return;
    kill(-info->si_pid, SIGKILL); /* what it leaves behind */
    /* Several may be found at once. Then the one that was killed is the cause:
     * others return an error because a peer is gone. */
    if (w->is_final ||
        (w->verdict.status != COLL_OK && (w->is_killed || !is_signal)))
        return;
    w->is_killed = is_signal;
    w->settle_ns = clock_deadline_ns(SETTLE_MS);
    if (is_signal)
        name_signal(info->si_status, how, sizeof(how));
    else
        snprintf(how, sizeof(how), "exit status %d", info->si_status);
    decide(w, COLL_ERR_PEER, "coll_spawn: rank %d (pid %d) failed first: %s",
        rank, (int)info->si_pid, how);
}

static int find_rank(const struct warden *w, pid_t pid)
{
    for (int i = 0; i < w->nprocs; i++)
        if (w->pids[i] == pid)
            return i;
    return -1; /* a worker's child that has lost its parent */
}

/* Reaps all that have ended. False: there are no children any more. */
static bool reap(struct warden *w)
{
    for (;;) {
        siginfo_t info = {0};
        int rank;

        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0)
            return errno != ECHILD;
        if (info.si_pid == 0)
            return true;
        rank = find_rank(w, info.si_pid);
        if (rank >= 0)
            on_worker_end(w, rank, &info);
        waitid(P_PID, (id_t)info.si_pid, &info, WEXITED | WNOHANG);
    }
}

/* Waits until a child has ended, until the caller has (false), or until the
 * deadline (0: none). */
static bool wait_for_signal(uint64_t deadline_ns)
{
    struct timespec left = {0, 0};
    sigset_t set;
    int sig;

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    if (deadline_ns == 0) {
        sig = sigwaitinfo(&set, NULL);
    } else {
        int ms = clock_left_ms(deadline_ns);

        left.tv_sec = ms / 1000;
        left.tv_nsec = ms % 1000 * 1000000L;
        sig = sigtimedwait(&set, NULL, &left);
    }
    return sig != SIGTERM;
}

/*
 * A worker that is killed closes its sockets before its death is told, so who
 * gave up on account of it may be told of first. A plain exit is therefore the
 * cause only if no death by a signal follows in a moment.
 */
static bool is_settling(struct warden *w)
{
    if (w->is_killed || w->settle_ns == 0 || clock_left_ms(w->settle_ns) == 0) {
        w->settle_ns = 0;
        return false;
    }
    return true;
}

/* Until all workers have ended, or those that are left must be killed. */
static void supervise(struct warden *w)
{
    for (;;) {
        reap(w);
        if (w->nrunning == 0)
            return;
        if (w->verdict.status != COLL_OK && w->stop_ns == 0 &&
            !is_settling(w)) {
            w->is_final = true;
            w->stop_ns = clock_deadline_ns(w->grace_ms);
            signal_workers(w, SIGTERM);
        }
        if (w->stop_ns > 0 && clock_left_ms(w->stop_ns) == 0)
            return;
        if (!wait_for_signal(w->stop_ns > 0 ? w->stop_ns : w->settle_ns)) {
            if (!w->is_final) /* somebody may have sent it who is not dead */
                decide(w, COLL_ERR_PEER,
                    "coll_spawn: the process that supervises the workers (pid "
                    "%d) was told to end",
                    (int)w->pid);
            return;
        }
    }
}

/* Kills the children as the kernel lists them; their own are ours next. */
static void kill_children(void)
{
    FILE *f = fopen("/proc/thread-self/children", "re");
    int pid;

    if (f == NULL)
        return; /* workers were killed by their numbers */
    while (fscanf(f, "%d", &pid) == 1)
        kill(pid, SIGKILL);
    fclose(f);
}

/* Kills whatever is left, generation by generation, until waiting says that
 * there is nothing. */
static void kill_rest(struct warden *w)
{
    uint64_t deadline_ns = clock_deadline_ns(KILL_MS);

    w->is_final = true;
    signal_workers(w, SIGKILL);
    while (reap(w) && clock_left_ms(deadline_ns) > 0) {
        kill_children();
        wait_for_signal(deadline_ns);
    }
}

static int start_workers(struct warden *w)
{
    w->pids = calloc((size_t)w->nprocs, sizeof(*w->pids));
    if (w->pids == NULL) {
        decide(w, COLL_ERR_MEMORY, "coll_spawn: out of memory");
        return -1;
    }
    if (pipe2(w->port_pipe, O_CLOEXEC) < 0) {
        decide(w, COLL_ERR_SYSTEM, "coll_spawn: pipe: %s", strerror(errno));
        return -1;
    }
    for (int i = 0; i < w->nprocs; i++) {
        pid_t pid = fork();

        if (pid == 0)
            run_worker(w, i);
        if (pid < 0) {
            decide(w, COLL_ERR_SYSTEM, "coll_spawn: fork for rank %d of %d: %s",
                i, w->nprocs, strerror(errno));
            return -1;
        }
        w->pids[i] = pid;
        w->nrunning++;
    }
    return 0;
}

/* Starts the thread, and lets the workers go. */
static int start_store(struct warden *w)
{
    const coll_store_options_t options = {
        .timeout_ms = STORE_MS, .is_host = true};
    uint16_t ports[NPROCS_MAX];

    if (coll_fds_reserve(0, w->nprocs) != COLL_OK) {
        decide(w, COLL_ERR_SYSTEM,
            "coll_spawn: a store for %d workers needs as many open files; "
            "raise the limit (ulimit -Hn)",
            w->nprocs);
        return -1;
    }
    w->verdict.status = coll_store_tcp(&w->store, "127.0.0.1", 0, &options);
    if (w->verdict.status != COLL_OK) {
        decide(w, w->verdict.status, "coll_spawn: %s", coll_last_error());
        return -1;
    }
    for (int i = 0; i < w->nprocs; i++)
        ports[i] = (uint16_t)coll_store_port(w->store);
    /* An empty pipe takes that at once. */
    if (write(w->port_pipe[1], ports, sizeof(ports[0]) * (size_t)w->nprocs) <
        0) {
        decide(w, COLL_ERR_SYSTEM, "coll_spawn: pipe: %s", strerror(errno));
        return -1;
    }
    return 0;
}

static _Noreturn void run_warden(struct warden *w)
{
    struct sigaction sigchld;

    w->pid = getpid();
    /* A session of its own: a signal to the caller's group must not end it
     * together with the caller. */
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != w->parent)
        _exit(1);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigaction(SIGCHLD, NULL, &sigchld);
    w->is_sigchld_ignored = sigchld.sa_handler == SIG_IGN;
    signal(SIGCHLD, SIG_DFL); /* all signals are blocked all the time */
    signal(SIGTERM, SIG_DFL);

    if (start_workers(w) == 0 && start_store(w) == 0) {
        prctl(PR_SET_NAME, "coll_spawn"); /* workers keep the program's */
        close(w->port_pipe[0]);
        close(w->port_pipe[1]);
        supervise(w);
    }
    kill_rest(w);
    if (w->nrunning > 0) {
        size_t len = strlen(w->verdict.text);

        snprintf(w->verdict.text + len, sizeof(w->verdict.text) - len,
            "; SIGKILL did not end %d of the workers", w->nrunning);
    }
    coll_store_close(w->store);
    if (write(w->verdict_fd, &w->verdict, sizeof(w->verdict)) < 0)
        _exit(1);
    _exit(0);
}

/* --- The caller ----------------------------------------------------------- */

/*
 * CUDA does not survive a fork: the workers' first call would fail. The driver
 * is in this process if the program, or a library of it, has loaded it; and it
 * was initialised if it is willing to count.
 */
static bool is_cuda_initialized(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    int (*get_count)(int *);
    int count;
    bool is_initialized = false;

    if (library == NULL)
        return false;
    get_count = (int (*)(int *))dlsym(library, "cuDeviceGetCount");
    if (get_count != NULL)
        is_initialized = get_count(&count) == 0;
    dlclose(library);
    return is_initialized;
}

static coll_status_t check_call(
    coll_spawn_fn_t *fn, int nprocs, const coll_spawn_options_t *options)
{
    if (fn == NULL)
        return coll_fail(COLL_ERR_ARGUMENT, "coll_spawn: fn is NULL");
    if (nprocs < 1 || nprocs > NPROCS_MAX)
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_spawn: nprocs is %d, it must be from 1 to %d", nprocs,
            NPROCS_MAX);
    if (options->grace_ms < 0)
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_spawn: grace_ms is %" PRId64 ", it must not be negative",
            options->grace_ms);
    if (coll_is_initialized())
        return coll_fail(COLL_ERR_STATE,
            "coll_spawn: this process has called coll_init(): start the "
            "workers before, or call coll_destroy() first");
    if (is_cuda_initialized())
        return coll_fail(COLL_ERR_STATE,
            "coll_spawn: CUDA is initialized in this process, and does not "
            "work in processes that it forks: start the workers before the "
            "first call of CUDA");
    return COLL_OK;
}

/* The caller may ignore SIGCHLD, or reap every child in a handler: then there
 * is nothing to wait for (ECHILD), but the warden has ended all the same. */
static void wait_for_end(pid_t pid)
{
    siginfo_t info;

    while (waitid(P_PID, (id_t)pid, &info, WEXITED) < 0 && errno == EINTR)
        continue;
}

coll_status_t coll_spawn(coll_spawn_fn_t *fn, void *arg, int nprocs,
    const coll_spawn_options_t *options)
{
    const coll_spawn_options_t defaults = COLL_SPAWN_OPTIONS_INIT;
    struct warden w = {.fn = fn, .arg = arg, .nprocs = nprocs};
    coll_status_t status;
    sigset_t all;
    int fds[2];
    pid_t pid;
    ssize_t n;

    if (options == NULL)
        options = &defaults;
    status = check_call(fn, nprocs, options);
    if (status != COLL_OK)
        return status;
    w.grace_ms = options->grace_ms > 0 ? options->grace_ms : DEFAULT_GRACE_MS;
    w.parent = getpid();
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return coll_fail(
            COLL_ERR_SYSTEM, "coll_spawn: pipe: %s", strerror(errno));
    w.verdict_fd = fds[1];
    fflush(NULL); /* else each worker would write it again */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &w.mask);
    pid = fork();
    if (pid == 0) {
        close(fds[0]);
        run_warden(&w);
    }
    if (pid < 0)
        status =
            coll_fail(COLL_ERR_SYSTEM, "coll_spawn: fork: %s", strerror(errno));
    pthread_sigmask(SIG_SETMASK, &w.mask, NULL);
    close(fds[1]);
    if (pid > 0) {
        wait_for_end(pid);
        n = read(fds[0], &w.verdict, sizeof(w.verdict));
        if (n != sizeof(w.verdict))
            status = coll_fail(COLL_ERR_PEER,
                "coll_spawn: the process that supervised the workers (pid %d) "
                "was killed, and they with it",
                (int)pid);
        else if (w.verdict.status != COLL_OK)
            status = coll_fail(w.verdict.status, "%s", w.verdict.text);
    }
    close(fds[0]);
    return status;
}
