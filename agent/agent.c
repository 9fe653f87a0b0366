/*
 * See agent.h. Callbacks turn what happened into an event for the state
 * machine and carry out the actions it returns. There is one thread and one
 * loop; no libuv process handle exists, since children are reaped here.
 */
#include "agent/agent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "agent/children.h"
#include "agent/console.h"
#include "agent/front.h"
#include "agent/lifecycle.h"
#include "agent/report.h"
#include "agent/signal_names.h"
#include "agent/spawn.h"
#include "agent/worker_vars.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/err.h"
#include "rendezvous/base/log.h"
#include "rendezvous/base/text.h"
#include "rendezvous/poller_uv.h"
#include "rendezvous/store_port.h"
#include "rendezvous/store_server.h"

#define HOST_MAX 256
#define GROUP_CHECK_MS 100
#define REPORT_MAX (4 * 1024 * 1024)

extern char **environ;

/* What the loop holds for a worker. */
struct agent_worker {
    struct agent *agent;
    int local_rank;
    /* Readable when the process ends. The loop tells of several in the order
     * of their ends, which waitid does not. -1: not there (before Linux 5.3),
     * or closed. */
    int pidfd;
    uv_poll_t pidfd_poll;
};

struct agent {
    const struct job *job;
    uv_loop_t loop;
    struct lifecycle life;
    struct agent_worker *workers; /* owned, [job->nproc] */
    struct poller *poller; /* of the store, a guest in the loop */
    struct poller_uv poller_uv;
    struct store_server *store;
    struct store_port *port;
    int port_number;
    struct console *console;
    uv_poll_t front_poll;
    uv_signal_t child_signal;
    uv_timer_t timer;
    uv_timer_t tell_timer;
    uv_timer_t group_timer;
    char run_id[33];
    bool has_told_failure;
    bool has_told_proc;
    bool is_finishing; /* the last output is being written */
    bool is_over; /* nothing is left to be done */
};

static void settle(struct agent *a);

/* --- Actions ------------------------------------------------------------ */

static void on_timer(uv_timer_t *timer);

static void signal_children(struct agent *a, int sig)
{
    int n = children_signal(sig, NULL);

    if (n >= 0 || a->has_told_proc)
        return;
    a->has_told_proc = true;
    log_error("agent",
        "cannot end what the workers left behind: /proc does "
        "not list this process (%s)",
        strerror(-n));
}

static void carry_out(struct agent *a, const struct lc_action *act)
{
    uint64_t now;

    switch (act->kind) {
    case LC_ACT_SIGNAL:
        /* Its leader is not reaped, so the group's number is still its. */
        kill(-a->life.workers[act->worker].pid, act->signal);
        break;
    case LC_ACT_CHILDREN:
        signal_children(a, act->signal);
        break;
    case LC_ACT_ARM:
        now = clock_now_ns();
        uv_update_time(&a->loop);
        uv_timer_start(&a->timer, on_timer,
            act->deadline_ns <= now
                ? 0
                : (act->deadline_ns - now + CLOCK_NS_PER_MS - 1) /
                      CLOCK_NS_PER_MS,
            0);
        break;
    case LC_ACT_DISARM:
        uv_timer_stop(&a->timer);
        break;
    }
}

static void post(struct agent *a, struct lc_event ev)
{
    enum lc_state before = a->life.state;
    uint64_t entered_ns = a->life.state_ns;

    ev.now_ns = clock_now_ns();
    lifecycle_step(&a->life, &ev);
    if (a->life.state != before)
        log_debug("agent", "%s: %s->%s after %.3fs", lc_event_name(ev.kind),
            lc_state_name(before), lc_state_name(a->life.state),
            (double)(ev.now_ns - entered_ns) / (double)CLOCK_NS_PER_S);
    for (size_t i = 0; i < a->life.nactions; i++)
        carry_out(a, &a->life.actions[i]);
}

/* --- Ending ------------------------------------------------------------- */

static void print_report(const struct agent *a)
{
    char host[HOST_MAX] = "?";
    struct buf text;

    gethostname(host, sizeof(host) - 1);
    buf_init(&text, REPORT_MAX);
    if (report_write(&a->life, a->job->program.title, host, 0, &text) < 0)
        log_error("agent", "out of memory: no report");
    if (text.len > 0)
        console_say(a->console, buf_bytes(&text), text.len);
    buf_fini(&text);
}

/* uv_stop() ends one uv_run(), and there are several while workers are being
 * started. */
static void end_loop(struct agent *a)
{
    a->is_over = true;
    uv_stop(&a->loop);
}

static void on_output_written(void *arg)
{
    struct agent *a = arg;

    end_loop(a);
}

static void on_output_timeout(uv_timer_t *timer)
{
    end_loop(timer->data);
}

/*
 * Whoever asked for a stop does not want to wait for a reader that does not
 * read; without a stop a paused pager may take its time. A front that is
 * dead has nobody who waits for anything.
 */
static void finish(struct agent *a)
{
    if (a->is_finishing)
        return;
    a->is_finishing = true;
    if (a->life.is_parent_lost) {
        end_loop(a);
        return;
    }
    print_report(a);
    if (a->life.stop_signal != 0)
        uv_timer_start(&a->timer, on_output_timeout, a->job->grace_ms, 0);
    console_finish(a->console, on_output_written, a);
}

/* --- Events ------------------------------------------------------------- */

static int find_worker(const struct agent *a, pid_t pid)
{
    for (int i = 0; i < a->life.nworkers; i++)
        if (a->life.workers[i].state == LC_WORKER_RUNNING &&
            a->life.workers[i].pid == pid)
            return i;
    return -1;
}

/* Said as soon as the verdict stands; the report at the end comes after the
 * grace. */
static void on_tell_timer(uv_timer_t *timer)
{
    const struct agent *a = timer->data;
    int rank = a->life.first_failure;
    char how[256];

    if (a->life.nrunning == 0)
        return;
    report_outcome(&a->life.workers[rank], how, sizeof(how));
    log_error("agent",
        "rank %d (local rank %d, pid %d) failed: %s; stopping the other %d",
        rank, rank, (int)a->life.workers[rank].pid, how, a->life.nrunning);
}

static void tell_failure(struct agent *a)
{
    if (a->life.first_failure < 0 || a->has_told_failure)
        return;
    a->has_told_failure = true;
    uv_update_time(&a->loop);
    uv_timer_start(&a->tell_timer, on_tell_timer, LC_SETTLE_MS, 0);
}

static void close_pidfd(struct agent_worker *w)
{
    if (w->pidfd < 0)
        return;
    uv_poll_stop(&w->pidfd_poll);
    close(w->pidfd);
    w->pidfd = -1;
}

/* A worker has ended and is still a zombie, which keeps its number. */
static void reap_worker(struct agent *a, int worker, const siginfo_t *info)
{
    bool is_success = info->si_code == CLD_EXITED && info->si_status == 0;
    int status;

    /* What a failed worker left in its group; one that was told to stop may
     * have left something that is still busy stopping. */
    if (!is_success && a->life.workers[worker].sent_signal == 0)
        kill(-info->si_pid, SIGKILL);
    while (waitpid(info->si_pid, &status, 0) < 0 && errno == EINTR)
        ;
    close_pidfd(&a->workers[worker]);
    post(a, (struct lc_event){
                .kind = LC_EV_EXITED, .worker = worker, .wait_status = status});
}

/* Of workers that ended when told to, some groups may be empty by now. */
static void check_groups(struct agent *a)
{
    for (int i = 0; i < a->life.nworkers && a->life.ngroups > 0; i++)
        if (a->life.workers[i].has_group &&
            kill(-a->life.workers[i].pid, 0) < 0 && errno == ESRCH)
            post(a, (struct lc_event){.kind = LC_EV_GROUP_GONE, .worker = i});
}

static void on_group_timer(uv_timer_t *timer)
{
    settle(timer->data);
}

/* A group may become empty by the death of a process that is not our child,
 * of which nothing tells us. */
static void watch_groups(struct agent *a)
{
    if (a->life.nrunning == 0 && a->life.ngroups > 0)
        uv_timer_start(&a->group_timer, on_group_timer, GROUP_CHECK_MS, 0);
}

/* Reaps everything there is to reap and lets the machine conclude. */
static void settle(struct agent *a)
{
    siginfo_t info;
    int worker;
    int rc;

    for (;;) {
        info.si_pid = 0;
        rc = waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT);
        if (rc < 0 && errno == EINTR)
            continue;
        if (rc < 0 || info.si_pid == 0)
            break;
        worker = find_worker(a, info.si_pid);
        if (worker >= 0)
            reap_worker(a, worker, &info);
        else
            waitpid(info.si_pid, NULL, 0); /* an orphan that came to us */
    }
    check_groups(a);
    post(a, (struct lc_event){
                .kind = rc < 0 ? LC_EV_CHILDREN_GONE : LC_EV_CHILDREN_LEFT});
    tell_failure(a);
    watch_groups(a);
    if (a->life.state == LC_DONE)
        finish(a);
}

/* libuv calls this after the descriptors of the same turn, so pidfds have
 * told the order already. */
static void on_child_signal(uv_signal_t *handle, int signum)
{
    (void)signum;
    settle(handle->data);
}

static void on_pidfd(uv_poll_t *handle, int status, int events)
{
    struct agent_worker *w = handle->data;
    struct agent *a = w->agent;
    siginfo_t info = {0};

    (void)status;
    (void)events;
    if (waitid(P_PID, (id_t)a->life.workers[w->local_rank].pid, &info,
            WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid != 0)
        reap_worker(a, w->local_rank, &info);
    else
        close_pidfd(w); /* a debugger has it; SIGCHLD will tell */
}

static void on_timer(uv_timer_t *timer)
{
    struct agent *a = timer->data;

    post(a, (struct lc_event){.kind = LC_EV_TIMER});
    settle(a);
}

static void on_stop_signal(struct agent *a, int sig)
{
    bool was_running = a->life.state == LC_RUNNING;

    post(a, (struct lc_event){.kind = LC_EV_STOP_SIGNAL, .signal = sig});
    if (was_running)
        log_warn("agent", "received %s; stopping %d workers with it",
            signal_name(sig), a->life.nrunning);
    if (a->is_finishing)
        end_loop(a); /* nobody reads our output: give up on it */
}

/* A byte is a stop signal that the front was sent, the end its death. */
static void on_front(uv_poll_t *handle, int status, int events)
{
    struct agent *a = handle->data;
    unsigned char sigs[8];
    ssize_t n;

    (void)status;
    (void)events;
    n = read(FRONT_PIPE_FD, sigs, sizeof(sigs));
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    for (ssize_t i = 0; i < n; i++)
        on_stop_signal(a, sigs[i]);
    if (n <= 0) {
        uv_poll_stop(handle);
        post(a, (struct lc_event){.kind = LC_EV_PARENT_LOST});
        if (a->is_finishing)
            end_loop(a);
    }
    settle(a);
}

/* --- Starting ----------------------------------------------------------- */

static int start_worker(struct agent *a, int local_rank)
{
    const struct job *job = a->job;
    struct worker_vars vars = {.rank = local_rank,
        .local_rank = local_rank,
        .world_size = job->nproc,
        .local_world_size = job->nproc,
        .group_world_size = 1,
        .role = "default",
        .master_addr = job->master_addr,
        .master_port = a->port_number,
        .run_id = job->run_id != NULL ? job->run_id : a->run_id};
    struct spawn s = {.path = job->program.path,
        .argv = job->program.argv,
        .out_fd = -1,
        .err_fd = -1,
        .mask = job->inherited.mask,
        .reset = job->inherited.reset,
        .nofile = job->inherited.nofile};
    int out_err[2] = {-1, -1};
    char **envp;
    int rc;

    envp = worker_vars_build(&vars, environ);
    if (envp == NULL)
        return -ENOMEM;
    rc = console_open_streams(a->console, out_err);
    if (rc == 0) {
        s.envp = envp;
        s.out_fd = out_err[0];
        s.err_fd = out_err[1];
        rc = spawn_worker(&s);
    }
    if (out_err[0] >= 0)
        close(out_err[0]);
    if (out_err[1] >= 0 && out_err[1] != out_err[0])
        close(out_err[1]);
    free(envp);
    return rc;
}

/* Without a pidfd SIGCHLD still tells of the end, just not of the order. */
static void watch_worker(struct agent *a, int local_rank, pid_t pid)
{
    struct agent_worker *w = &a->workers[local_rank];

#ifdef SYS_pidfd_open
    w->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
#endif
    if (w->pidfd < 0)
        return;
    if (uv_poll_init(&a->loop, &w->pidfd_poll, w->pidfd) < 0) {
        close(w->pidfd);
        w->pidfd = -1;
        return;
    }
    w->pidfd_poll.data = w;
    uv_poll_start(&w->pidfd_poll, UV_READABLE, on_pidfd);
}

/* The loop has a turn after each start: workers that end at once are told in
 * order, a failure keeps further ones from being started, and a stop does
 * not wait. */
static void start_workers(struct agent *a)
{
    for (int i = 0; i < a->job->nproc && a->life.state == LC_RUNNING; i++) {
        int rc = start_worker(a, i);

        if (rc < 0) {
            post(a, (struct lc_event){
                        .kind = LC_EV_START_FAILED, .worker = i, .error = -rc});
            continue;
        }
        post(a,
            (struct lc_event){.kind = LC_EV_STARTED, .worker = i, .pid = rc});
        watch_worker(a, i, rc);
        uv_run(&a->loop, UV_RUN_NOWAIT);
    }
    settle(a);
}

/* Pipes and a pidfd for each worker, and what the agent opens now and then. */
#define FDS_OF_WORKER 4
#define FDS_OF_AGENT 64

/* Whoever connects to the store must not take the descriptors that the agent
 * needs; but the workers need some there, too. */
static size_t max_connections(int nproc)
{
    size_t own = FDS_OF_AGENT + FDS_OF_WORKER * (size_t)nproc;
    size_t least = 16 + 2 * (size_t)nproc;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur < own + least)
        return least;
    return limit.rlim_cur - own < STORE_LIMITS_DEFAULT.clients
               ? limit.rlim_cur - own
               : STORE_LIMITS_DEFAULT.clients;
}

/* The agent of a crun that was killed ends a moment after it, and its port is
 * free only then. */
#define PORT_PATIENCE_MS 1000
#define PORT_PAUSE_MS 20

static int open_port(struct agent *a, struct err *e)
{
    const struct timespec pause = {0, PORT_PAUSE_MS * 1000000};
    const struct store_port_options options = {
        .max_connections = max_connections(a->job->nproc)};
    uint64_t until_ns = clock_deadline_ns(PORT_PATIENCE_MS);
    int rc;

    for (;;) {
        rc = store_port_create(&a->port, a->poller, a->job->master_addr,
            a->job->master_port, &options, &a->port_number, e);
        if (rc != -EADDRINUSE || clock_left_ms(until_ns) == 0)
            return rc;
        nanosleep(&pause, NULL);
    }
}

static int open_store(struct agent *a, struct err *e)
{
    int rc = poller_create(&a->poller);

    if (rc == 0)
        rc = poller_uv_start(&a->poller_uv, &a->loop, a->poller);
    if (rc == 0)
        rc = store_server_create(&a->store, a->poller, NULL);
    if (rc < 0)
        return err_set(e, rc, "cannot create the store: %s", strerror(-rc));
    rc = open_port(a, e);
    if (rc == 0)
        store_port_set_store(a->port, a->store);
    return rc;
}

static void close_store(struct agent *a)
{
    store_port_destroy(a->port);
    store_server_destroy(a->store);
    poller_uv_close(&a->poller_uv, NULL);
    poller_destroy(a->poller);
}

static int watch_events(struct agent *a)
{
    sigset_t chld;
    int rc;

    rc = uv_poll_init(&a->loop, &a->front_poll, FRONT_PIPE_FD);
    if (rc < 0)
        return rc;
    a->front_poll.data = a;
    uv_poll_start(&a->front_poll, UV_READABLE, on_front);
    rc = uv_signal_init(&a->loop, &a->child_signal);
    if (rc < 0)
        return rc;
    a->child_signal.data = a;
    rc = uv_signal_start(&a->child_signal, on_child_signal, SIGCHLD);
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    sigprocmask(SIG_UNBLOCK, &chld, NULL);
    return rc;
}

/* So that crun's own lines neither block nor cut a worker's line in two. */
static void log_to_console(const char *line, size_t len, void *console)
{
    console_say(console, line, len);
}

static void close_if_open(uv_handle_t *handle)
{
    if (handle->data != NULL) /* set once it is initialised */
        uv_close(handle, NULL);
}

static void close_all(struct agent *a)
{
    log_set_writer(NULL, NULL);
    close_store(a);
    console_destroy(a->console);
    for (int i = 0; a->workers != NULL && i < a->job->nproc; i++) {
        close_pidfd(&a->workers[i]);
        close_if_open((uv_handle_t *)&a->workers[i].pidfd_poll);
    }
    close_if_open((uv_handle_t *)&a->front_poll);
    close_if_open((uv_handle_t *)&a->child_signal);
    close_if_open((uv_handle_t *)&a->timer);
    close_if_open((uv_handle_t *)&a->tell_timer);
    close_if_open((uv_handle_t *)&a->group_timer);
    /* Only close callbacks are left; a stop may be pending from before. */
    while (uv_run(&a->loop, UV_RUN_DEFAULT) != 0)
        ;
    uv_loop_close(&a->loop);
    free(a->workers);
    lifecycle_fini(&a->life);
}

static int set_up(struct agent *a, struct err *e)
{
    struct worker_vars vars = {.local_world_size = a->job->nproc};
    int rc;

    a->workers = calloc((size_t)a->job->nproc, sizeof(*a->workers));
    rc = a->workers == NULL ? -ENOMEM : 0;
    for (int i = 0; rc == 0 && i < a->job->nproc; i++)
        a->workers[i] =
            (struct agent_worker){.agent = a, .local_rank = i, .pidfd = -1};
    if (rc == 0)
        rc = lifecycle_init(
            &a->life, a->job->nproc, a->job->grace_ms, clock_now_ns());
    if (rc == 0)
        rc = text_random_hex(a->run_id);
    if (rc == 0)
        rc = uv_timer_init(&a->loop, &a->timer);
    if (rc < 0)
        return err_set(e, rc, "set-up: %s", strerror(-rc));
    a->timer.data = a;
    uv_timer_init(&a->loop, &a->tell_timer); /* cannot fail */
    a->tell_timer.data = a;
    uv_timer_init(&a->loop, &a->group_timer);
    a->group_timer.data = a;
    rc = console_create(&a->console, &a->loop, 2 * a->job->nproc);
    if (rc < 0)
        return err_set(e, rc, "set-up: %s", strerror(-rc));
    log_set_writer(log_to_console, a->console);
    rc = open_store(a, e);
    if (rc < 0)
        return rc;
    rc = watch_events(a);
    if (rc < 0)
        return err_set(e, rc, "set-up: %s", strerror(-rc));
    if (worker_vars_limits_omp(&vars, environ))
        log_warn("agent",
            "OMP_NUM_THREADS is unset: set to 1 for each of "
            "the %d workers, so that they do not overload this "
            "machine; set it to what suits the program",
            a->job->nproc);
    return 0;
}

int agent_run(const struct job *job)
{
    struct agent a = {.job = job};
    struct err e = {0};
    int code = 1;
    int rc;

    rc = uv_loop_init(&a.loop);
    if (rc < 0) {
        fprintf(stderr, "crun: error: event loop: %s\n", uv_strerror(rc));
        return 1;
    }
    rc = set_up(&a, &e);
    if (rc < 0) {
        fprintf(stderr, "crun: error: %s\n", e.msg);
    } else {
        start_workers(&a);
        if (!a.is_over)
            uv_run(&a.loop, UV_RUN_DEFAULT);
        code = console_has_lost_output(a.console)
                   ? 1
                   : lifecycle_exit_code(&a.life);
    }
    close_all(&a);
    return code;
}
