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
#include "rendezvous/store_server.h"

#define STOP_SIGNALS_MAX 4
#define HOST_MAX 256
#define REPORT_MAX (4 * 1024 * 1024)

extern char **environ;

struct agent {
    const struct job *job;
    pid_t front;
    uv_loop_t loop;
    struct lifecycle life;
    struct store_server *store;
    int store_port;
    struct console *console;
    uv_signal_t signals[STOP_SIGNALS_MAX];
    int nsignals;
    uv_signal_t child_signal;
    uv_timer_t timer;
    char run_id[33];
    bool is_finishing; /* the last output is being written */
};

static void settle(struct agent *a);

/* --- Actions ------------------------------------------------------------ */

static void on_timer(uv_timer_t *timer);

static void carry_out(struct agent *a, const struct lc_action *act)
{
    uint64_t now;

    switch (act->kind) {
    case LC_ACT_SIGNAL:
        /* Its leader is not reaped, so the group's number is still its. */
        kill(-a->life.workers[act->worker].pid, act->signal);
        break;
    case LC_ACT_CHILDREN:
        children_signal(act->signal);
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

static void on_output_written(void *arg)
{
    struct agent *a = arg;

    uv_stop(&a->loop);
}

static void finish(struct agent *a)
{
    if (a->is_finishing)
        return;
    a->is_finishing = true;
    if (a->life.is_parent_lost)
        uv_stop(&a->loop); /* nobody waits for us or our output */
    else
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

/* Said at once; the report at the end comes after the grace. */
static void tell_failure(const struct agent *a, int worker)
{
    const struct lc_worker *w = &a->life.workers[worker];
    char how[256];

    report_outcome(w, how, sizeof(how));
    if (a->life.nrunning > 0)
        log_error("agent",
            "rank %d (local rank %d, pid %d) failed: %s; "
            "stopping the other %d",
            worker, worker, (int)w->pid, how, a->life.nrunning);
}

/* A worker has ended and is still a zombie, which keeps its number. */
static void reap_worker(struct agent *a, int worker, const siginfo_t *info)
{
    bool is_success = info->si_code == CLD_EXITED && info->si_status == 0;
    bool had_failure = a->life.first_failure >= 0;
    int status;

    if (!is_success)
        kill(-info->si_pid, SIGKILL); /* what it left in its group */
    while (waitpid(info->si_pid, &status, 0) < 0 && errno == EINTR)
        ;
    post(a, (struct lc_event){
                .kind = LC_EV_EXITED, .worker = worker, .wait_status = status});
    if (!had_failure && a->life.first_failure >= 0)
        tell_failure(a, worker);
}

/*
 * Reaps everything there is to reap and tells the machine what remains. A
 * loop, since actions of one pass may end children that the next one reaps.
 */
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
    post(a, (struct lc_event){
                .kind = rc < 0 ? LC_EV_CHILDREN_GONE : LC_EV_CHILDREN_LEFT});
    if (a->life.state == LC_DONE)
        finish(a);
}

static void on_child_signal(uv_signal_t *handle, int signum)
{
    (void)signum;
    settle(handle->data);
}

static void on_timer(uv_timer_t *timer)
{
    struct agent *a = timer->data;

    post(a, (struct lc_event){.kind = LC_EV_TIMER});
    settle(a);
}

static void on_stop_signal(uv_signal_t *handle, int signum)
{
    struct agent *a = handle->data;

    if (getppid() != a->front) {
        post(a, (struct lc_event){.kind = LC_EV_PARENT_LOST});
    } else {
        if (a->life.state == LC_RUNNING)
            log_warn("agent", "received %s; stopping %d workers with it",
                signal_name(signum), a->life.nrunning);
        post(a, (struct lc_event){.kind = LC_EV_STOP_SIGNAL, .signal = signum});
    }
    if (a->is_finishing)
        uv_stop(&a->loop); /* nobody reads our output: give up on it */
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
        .master_port = a->store_port,
        .run_id = job->run_id != NULL ? job->run_id : a->run_id};
    struct spawn s = {.path = job->program.path,
        .argv = job->program.argv,
        .out_fd = -1,
        .err_fd = -1,
        .mask = job->inherited.mask,
        .nofile = job->inherited.nofile};
    char **envp;
    int rc;

    envp = worker_vars_build(&vars, environ);
    rc = envp == NULL ? -ENOMEM : 0;
    if (rc == 0)
        rc = console_open_stream(a->console, STDOUT_FILENO, &s.out_fd);
    if (rc == 0)
        rc = console_open_stream(a->console, STDERR_FILENO, &s.err_fd);
    if (rc == 0) {
        s.envp = envp;
        rc = spawn_worker(&s);
    }
    if (s.out_fd >= 0)
        close(s.out_fd);
    if (s.err_fd >= 0)
        close(s.err_fd);
    free(envp);
    return rc;
}

static void start_workers(struct agent *a)
{
    for (int i = 0; i < a->job->nproc && a->life.state == LC_RUNNING; i++) {
        int rc = start_worker(a, i);

        if (rc < 0)
            post(a, (struct lc_event){
                        .kind = LC_EV_START_FAILED, .worker = i, .error = -rc});
        else
            post(a, (struct lc_event){
                        .kind = LC_EV_STARTED, .worker = i, .pid = rc});
    }
}

static int open_store(struct agent *a, struct err *e)
{
    int rc = store_server_create(&a->store, &a->loop);

    if (rc < 0)
        return err_set(e, rc, "cannot create the store: %s", strerror(-rc));
    return store_server_listen(
        a->store, a->job->master_addr, a->job->master_port, &a->store_port, e);
}

static int watch_signals(struct agent *a)
{
    sigset_t set;
    int rc;

    rc = uv_signal_init(&a->loop, &a->child_signal);
    if (rc < 0)
        return rc;
    a->child_signal.data = a;
    rc = uv_signal_start(&a->child_signal, on_child_signal, SIGCHLD);
    front_stop_signals(&set);
    for (int sig = 1; sig < SIGRTMIN && rc == 0; sig++) {
        uv_signal_t *handle = &a->signals[a->nsignals];

        if (sigismember(&set, sig) != 1)
            continue;
        rc = uv_signal_init(&a->loop, handle);
        if (rc < 0)
            break;
        a->nsignals++;
        handle->data = a;
        rc = uv_signal_start(handle, on_stop_signal, sig);
    }
    /* What came since the front blocked them is delivered now. */
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    return rc;
}

static void print_report(const struct agent *a)
{
    char host[HOST_MAX] = "?";
    struct buf text;

    gethostname(host, sizeof(host) - 1);
    buf_init(&text, REPORT_MAX);
    if (console_is_mid_line(a->console, STDERR_FILENO))
        buf_append(&text, "\n", 1);
    if (report_write(&a->life, a->job->program.title, host, 0, &text) < 0)
        log_error("agent", "out of memory: no report");
    for (size_t done = 0; done < text.len;) {
        ssize_t n =
            write(STDERR_FILENO, buf_bytes(&text) + done, text.len - done);

        if (n < 0 && errno != EINTR)
            break;
        done += n > 0 ? (size_t)n : 0;
    }
    buf_fini(&text);
}

static void close_all(struct agent *a)
{
    store_server_destroy(a->store);
    console_destroy(a->console);
    for (int i = 0; i < a->nsignals; i++)
        uv_close((uv_handle_t *)&a->signals[i], NULL);
    if (a->child_signal.data != NULL)
        uv_close((uv_handle_t *)&a->child_signal, NULL);
    if (a->timer.data != NULL)
        uv_close((uv_handle_t *)&a->timer, NULL);
    uv_run(&a->loop, UV_RUN_DEFAULT); /* only close callbacks are left */
    uv_loop_close(&a->loop);
    lifecycle_fini(&a->life);
}

static int set_up(struct agent *a, struct err *e)
{
    struct worker_vars vars = {.local_world_size = a->job->nproc};
    int rc;

    rc = lifecycle_init(
        &a->life, a->job->nproc, a->job->grace_ms, clock_now_ns());
    if (rc == 0)
        rc = text_random_hex(a->run_id);
    if (rc == 0)
        rc = uv_timer_init(&a->loop, &a->timer);
    if (rc < 0)
        return err_set(e, rc, "set-up: %s", strerror(-rc));
    a->timer.data = a;
    rc = console_create(&a->console, &a->loop, 2 * a->job->nproc);
    if (rc < 0)
        return err_set(e, rc, "set-up: %s", strerror(-rc));
    rc = open_store(a, e);
    if (rc < 0)
        return rc;
    rc = watch_signals(a);
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

int agent_run(const struct job *job, pid_t front)
{
    struct agent a = {.job = job, .front = front};
    struct err e = {0};
    int code = 1;
    int rc;

    inherited_take_over(&job->inherited);
    signal(SIGPIPE, SIG_IGN);
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
        settle(&a);
        uv_run(&a.loop, UV_RUN_DEFAULT);
        print_report(&a);
        code = lifecycle_exit_code(&a.life);
    }
    close_all(&a);
    return code;
}
