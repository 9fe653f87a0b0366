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
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "agent/binding.h"
#include "agent/channel.h"
#include "agent/children.h"
#include "agent/devices.h"
#include "agent/front.h"
#include "agent/lifecycle.h"
#include "agent/meeting.h"
#include "agent/nodes.h"
#include "agent/output.h"
#include "agent/participant.h"
#include "agent/report.h"
#include "agent/restarts.h"
#include "agent/signal_names.h"
#include "agent/spawn.h"
#include "agent/verdict.h"
#include "agent/worker_vars.h"
#include "rendezvous/base/buf.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/err.h"
#include "rendezvous/base/log.h"
#include "rendezvous/base/random.h"
#include "rendezvous/base/text.h"
#include "rendezvous/listen.h"
#include "rendezvous/worker_env.h"

#define HOST_MAX 256
#define LAST_CALL_MAX 256
#define GROUP_CHECK_MS 100
/* The verdict on a failure is waited for so long, then it is told as it looks
 * from here. */
#define OWN_VIEW_MS 1000
/* Workers that are stopped in an operation that has not waited for longer
 * were not stuck in it. */
#define STUCK_MS 1000
#define VERDICT_BYTES_MAX (256 * 1024)
#define REPORT_MAX (4 * 1024 * 1024)

/* Pipes, files, a pidfd, a recorder and connections for each worker, and what
 * the agent opens now and then. */
#define FDS_OF_WORKER 8
#define FDS_OF_AGENT 64
/* With fewer, workers could not be started, or not meet; and libuv aborts
 * instead of failing. */
#define FDS_LEAST 17
#define FDS_LEAST_OF_WORKER 6

/* What is held for a worker of the present round. */
struct agent_worker {
    struct agent *agent;
    int local_rank;
    /* Readable when the process ends. The loop tells of several in the order
     * of their ends, which waitid does not. NULL: not there (before Linux
     * 5.3), or closed. */
    uv_poll_t *pidfd_poll; /* freed by its close callback */
    int pidfd;
    char *error_file; /* owned */
    char *collateral; /* owned; why a call failed, in its words */
};

struct agent {
    const struct job *job;
    uv_loop_t loop;
    struct lifecycle life; /* of the present round */
    struct restarts restarts;
    enum restarts_verdict verdict;
    int round; /* as many as have begun, less one */
    uint64_t began_ns; /* when this agent began */
    uint64_t round_ns; /* when the present one began */
    uint64_t stop_ns; /* when it was told to stop, if nothing had failed */
    struct agent_worker *workers; /* owned, [job->nproc] */
    struct meeting meeting;
    int ras_fd; /* keeps the port where NCCL answers queries; -1: none */
    char ras_addr[32]; /* that port's; "": there is none */
    struct nodes *nodes; /* NULL: a job of one node */
    struct participant part; /* several nodes: this one's */
    char reason[768]; /* several nodes: why it ended, if not by a failure */
    int told_failure; /* local rank that the coordinator was told of, or -1 */
    struct channel *channel;
    struct output *output;
    uv_poll_t front_poll;
    uv_signal_t child_signal;
    uv_timer_t timer;
    uv_timer_t tell_timer;
    uv_timer_t group_timer;
    uv_timer_t restart_timer;
    char run_id[33];
    char host[HOST_MAX];
    int64_t oom_kills; /* counted when the first worker began */
    int exit_code;
    bool is_starting; /* workers of the round are being started */
    bool is_round_due; /* the next one is to be begun, outside the loop */
    bool has_told_failure;
    bool has_told_proc;
    bool is_finishing; /* the last output is being written */
    bool is_output_taken; /* and so is the report */
    bool is_over; /* nothing is left to be done */
};

static void settle(struct agent *a);
static bool is_idle(const struct agent *a);
static void end_round(struct agent *a);
static void on_restart_timer(uv_timer_t *timer);

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

/* The rank that failed first, to every worker that is attached. */
static void tell_workers(struct agent *a)
{
    int failed = a->life.first_failure;
    const struct node_msg *peer = &a->part.why;
    char how[256];

    if (a->part.has_why && peer->kind == NODE_FAILED) {
        channel_tell_failure(
            a->channel, &(struct channel_failure){.rank = peer->rank,
                            .local_rank = peer->local_rank,
                            .host = peer->host,
                            .cause = peer->text});
        return;
    }
    report_outcome(&a->life.workers[failed], how, sizeof(how));
    channel_tell_failure(a->channel,
        &(struct channel_failure){.rank = a->part.place.rank_base + failed,
            .local_rank = failed,
            .host = a->host,
            .cause = how});
}

static void carry_out(struct agent *a, const struct lc_action *act)
{
    uint64_t now;

    switch (act->kind) {
    case LC_ACT_SIGNAL:
        /* Its leader is not reaped, so the group's number is still its. */
        kill(-a->life.workers[act->worker].pid, act->signal);
        break;
    case LC_ACT_TELL:
        tell_workers(a);
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

static int64_t clock_offset_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * (int64_t)CLOCK_NS_PER_S + now.tv_nsec -
           (int64_t)clock_now_ns();
}

static const char *run_id(const struct agent *a)
{
    return a->job->run_id != NULL ? a->job->run_id : a->run_id;
}

/* Reports the end on stderr. */
static void say_report(struct agent *a, const struct report_input *in)
{
    struct buf text;

    buf_init(&text, REPORT_MAX);
    if (report_write(in, &text) < 0)
        log_error("agent", "out of memory: the report is not whole");
    if (text.len > 0)
        output_say(a->output, buf_bytes(&text), text.len);
    buf_fini(&text);
}

/* Likewise in the file that --report names, and to whoever started crun as a
 * worker. */
static void write_reports(struct agent *a, const struct report_input *in)
{
    const char *parent = a->job->parent_error_file;
    struct err e;

    if (a->job->report_path != NULL &&
        report_write_json(in, a->job->report_path, &e) < 0) {
        log_error("agent", "%s", e.msg);
        if (a->exit_code == 0)
            a->exit_code = 1; /* whoever asked for it relies on it */
    }
    if (parent != NULL && parent[0] != '\0' &&
        report_copy_error(in, parent, &e) < 0)
        log_error("agent", "%s", e.msg);
}

/* OOM kills since the first worker began, -1: unknown. Nobody asks for them
 * after a success without --report. */
static int64_t new_oom_kills(const struct agent *a)
{
    int64_t now = -1;

    if (a->exit_code != 0 || a->job->report_path != NULL)
        now = report_count_oom_kills();
    return now < 0 || a->oom_kills < 0 ? -1 : now - a->oom_kills;
}

/* The first failure, if another node had it. */
static const struct node_msg *find_peer(const struct agent *a)
{
    int first = a->life.first_failure;

    const struct node_msg *cause = &a->part.cause;

    if (!a->part.has_cause ||
        (first >= 0 && cause->round == a->round &&
            cause->rank == a->part.place.rank_base + first))
        return NULL;
    return cause;
}

/* What the workers of the round hung in, if it failed or was stopped. */
static void write_verdict(
    const struct agent *a, const struct report_input *in, struct buf *out)
{
    struct verdict_rank *ranks;
    struct verdict_input what = {.nranks = in->life->nworkers,
        .rank_base = in->rank_base,
        .world_size =
            a->nodes != NULL ? a->part.place.world_size : in->life->nworkers,
        .first_failure = in->peer == NULL ? in->life->first_failure : -1,
        .as_of_ns = UINT64_MAX};

    if (in->life->first_failure < 0 && in->peer == NULL) {
        if (a->stop_ns == 0)
            return;
        what.as_of_ns = a->stop_ns;
        what.least_wait_ns = STUCK_MS * CLOCK_NS_PER_MS;
    }
    ranks = calloc((size_t)what.nranks + 1, sizeof(*ranks));
    for (int i = 0; ranks != NULL && i < what.nranks; i++) {
        const struct lc_worker *w = &in->life->workers[i];

        ranks[i].recorder = channel_recorder(a->channel, i);
        ranks[i].ended_ns =
            w->state == LC_WORKER_ENDED ? w->ended_ns : clock_now_ns();
    }
    what.ranks = ranks;
    if (ranks == NULL || verdict_write(&what, out) < 0 ||
        buf_append(out, "", 1) < 0) {
        log_error("agent", "out of memory: the report is not whole");
        buf_fini(out); /* a part is no string */
    }
    free(ranks);
}

/* Gathers what is known of the last round. */
static void report_end(struct agent *a,
    void (*tell)(struct agent *a, const struct report_input *in))
{
    size_t nproc = (size_t)a->job->nproc;
    struct report_worker *workers = calloc(nproc, sizeof(*workers));
    char *last_calls = calloc(nproc, LAST_CALL_MAX);
    struct lifecycle life = a->life;
    struct buf collective;
    struct report_input in = {.life = &life,
        .restarts = &a->restarts,
        .workers = workers,
        .verdict = a->verdict,
        .title = a->job->program.title,
        .rank_base = a->part.place.rank_base,
        .peer = find_peer(a),
        .reason = a->reason[0] != '\0' ? a->reason : NULL,
        .is_own_view = a->nodes != NULL && !a->part.has_cause,
        .program = a->job->program.path,
        .host = a->host,
        .run_id = run_id(a),
        .log_folder = output_folder(a->output),
        .exit_code = a->exit_code,
        .oom_kills = new_oom_kills(a),
        .clock_offset_ns = clock_offset_ns()};

    if (a->nodes != NULL && a->part.place.round < 0)
        life.nworkers = 0; /* a spare, or one that waited: it had none */
    for (int i = 0; workers != NULL && last_calls != NULL && i < a->job->nproc;
         i++) {
        char *last_call = &last_calls[(size_t)i * LAST_CALL_MAX];

        workers[i] =
            (struct report_worker){.error_file = a->workers[i].error_file,
                .stderr_file = output_stderr_path(a->output, i),
                .collateral = a->workers[i].collateral};
        if (channel_last_call(a->channel, i, last_call, LAST_CALL_MAX))
            workers[i].last_call = last_call;
    }
    buf_init(&collective, VERDICT_BYTES_MAX);
    write_verdict(a, &in, &collective);
    in.collective = buf_bytes(&collective);
    if (workers != NULL && last_calls != NULL)
        tell(a, &in);
    else
        log_error("agent", "out of memory: there is no report");
    buf_fini(&collective);
    free(last_calls);
    free(workers);
}

/* What a round that is followed by another one hung in: its recorders go. */
static void log_collective(struct agent *a, const struct report_input *in)
{
    const char *line = in->collective;

    (void)a;
    while (line[0] != '\0') {
        int len = (int)strcspn(line, "\n");

        log_warn("agent", "%.*s", len, line);
        line += len + (line[len] == '\n');
    }
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
    end_loop(arg);
}

/* The report comes behind what the workers wrote. */
static void on_output_taken(void *arg)
{
    struct agent *a = arg;

    a->is_output_taken = true;
    report_end(a, say_report);
    output_flush(a->output, on_output_written, a);
}

/* Nobody reads it. */
static void give_up_output(struct agent *a)
{
    if (!a->is_output_taken)
        report_end(a, say_report);
    a->is_output_taken = true;
    if (a->exit_code == 0)
        a->exit_code = 1;
    end_loop(a);
}

static void on_output_timeout(uv_timer_t *timer)
{
    give_up_output(timer->data);
}

static void limit_output(struct agent *a)
{
    uv_update_time(&a->loop);
    uv_timer_start(&a->timer, on_output_timeout, a->job->grace_ms, 0);
}

/* With several nodes: what the coordinator says, unless this one was stopped.
 */
static int code_of_job(const struct agent *a)
{
    const struct node_msg *f = &a->part.cause;

    if (a->part.is_success && a->life.stop_signal == 0 && !a->life.gave_up)
        return 0;
    if (!a->job->is_exit_cause)
        return 1;
    if (a->life.stop_signal != 0)
        return 128 + a->life.stop_signal;
    if (!a->part.has_cause || f->rank < 0)
        return 1;
    if (f->error != 0)
        return program_start_code(f->error);
    return WIFSIGNALED(f->wait_status) ? 128 + WTERMSIG(f->wait_status)
                                       : WEXITSTATUS(f->wait_status);
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
    if (a->nodes != NULL)
        nodes_finish(a->nodes);
    a->exit_code = a->nodes != NULL        ? code_of_job(a)
                   : a->job->is_exit_cause ? lifecycle_cause_code(&a->life)
                                           : lifecycle_exit_code(&a->life);
    if (a->life.is_parent_lost) {
        end_loop(a);
        return;
    }
    report_end(a, write_reports);
    if (a->life.stop_signal != 0)
        limit_output(a);
    output_finish(a->output, on_output_taken, a);
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

/* Several nodes, and some take their time: which rank was first is not known
 * yet. */
static void tell_own_view(struct agent *a)
{
    int rank = a->life.first_failure;
    char how[256];

    if (!is_idle(a) || a->part.has_cause || a->is_finishing)
        return;
    report_outcome(&a->life.workers[rank], how, sizeof(how));
    log_error("agent",
        "rank %d (local rank %d, pid %d) failed: %s; waiting for the workers "
        "of the other nodes to end",
        a->part.place.rank_base + rank, rank, (int)a->life.workers[rank].pid,
        how);
}

/* Said as soon as the verdict stands; the report at the end comes after the
 * grace. */
static void on_tell_timer(uv_timer_t *timer)
{
    struct agent *a = timer->data;
    int rank = a->life.first_failure;
    char how[256];

    if (a->life.nrunning == 0) {
        tell_own_view(a);
        return;
    }
    report_outcome(&a->life.workers[rank], how, sizeof(how));
    log_error("agent",
        "rank %d (local rank %d, pid %d) failed: %s; stopping the other %d",
        a->part.place.rank_base + rank, rank, (int)a->life.workers[rank].pid,
        how, a->life.nrunning);
}

static void tell_failure(struct agent *a)
{
    if (a->life.first_failure < 0 || a->has_told_failure)
        return;
    a->has_told_failure = true;
    uv_update_time(&a->loop);
    uv_timer_start(&a->tell_timer, on_tell_timer, LC_SETTLE_MS, 0);
}

static void free_poll(uv_handle_t *handle)
{
    free(handle);
}

static void close_pidfd(struct agent_worker *w)
{
    if (w->pidfd_poll == NULL)
        return;
    uv_poll_stop(w->pidfd_poll);
    uv_close((uv_handle_t *)w->pidfd_poll, free_poll);
    w->pidfd_poll = NULL;
    close(w->pidfd);
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
    channel_catch_up(a->channel, worker);
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

/* Several nodes: nothing is left of a round here, and the next one has not
 * begun. */
static bool is_idle(const struct agent *a)
{
    return a->nodes != NULL && a->part.state != PARTICIPANT_RUNNING;
}

static bool is_between_rounds(const struct agent *a)
{
    return a->is_round_due || is_idle(a) ||
           uv_is_active((const uv_handle_t *)&a->restart_timer);
}

/* --- Several nodes ------------------------------------------------------ */

/* The first failure here, as soon as it is known, and again if another one
 * turns out to be its cause. */
static void tell_coordinator(struct agent *a)
{
    const struct lc_worker *w = &a->life.workers[a->life.first_failure];
    struct node_msg msg = {
        .rank = a->part.place.rank_base + a->life.first_failure,
        .local_rank = a->life.first_failure,
        .pid = (int32_t)w->pid,
        .wait_status = w->wait_status,
        .error = w->start_error,
        .is_collateral = w->outcome == LC_OUT_COLLATERAL,
        .lived_ns = w->ended_ns - w->started_ns};

    if (a->life.first_failure == a->told_failure)
        return;
    a->told_failure = a->life.first_failure;
    snprintf(msg.host, sizeof(msg.host), "%s", a->host);
    report_outcome(w, msg.text, sizeof(msg.text));
    participant_failed(&a->part, &msg, w->ended_ns, clock_now_ns());
}

/* Nothing is left of the round here; the coordinator says what follows. The
 * store stays for those nodes that are not so far yet. */
static void end_round_of_many(struct agent *a)
{
    if (a->life.first_failure >= 0)
        uv_timer_start(&a->tell_timer, on_tell_timer, OWN_VIEW_MS, 0);
    if (a->life.is_parent_lost || a->life.gave_up)
        participant_give_up(&a->part);
    else
        participant_ended(&a->part, a->life.first_failure >= 0 ? NODE_HAS_FAILED
                                    : lifecycle_exit_code(&a->life) == 0
                                        ? NODE_SUCCEEDED
                                        : NODE_STOPPED);
}

/* Another node goes on; this one is asked to stop. */
static void leave(struct agent *a, int sig)
{
    char why[64];

    snprintf(why, sizeof(why), "it received %s", signal_name(sig));
    participant_leave(&a->part, why);
}

static void on_part_send(void *arg, const struct node_msg *msg)
{
    struct agent *a = arg;

    nodes_send(a->nodes, msg);
}

static void on_part_allow_peers(void *arg, const char *addrs, bool is_first)
{
    struct agent *a = arg;

    nodes_allow_peers(a->nodes, addrs, is_first);
}

static int on_part_open_store(void *arg)
{
    struct agent *a = arg;
    struct err e;
    int rc = meeting_begin_round(&a->meeting, &e);

    if (rc < 0)
        log_error("agent", "%s", e.msg);
    return rc;
}

static void on_part_close_store(void *arg)
{
    struct agent *a = arg;

    meeting_end_round(&a->meeting);
}

static void on_part_start(void *arg)
{
    struct agent *a = arg;

    a->round = a->part.place.round;
    a->restarts.count = a->part.place.restart_count;
    a->is_round_due = true; /* on_restart_timer() tells why not here */
    uv_stop(&a->loop);
}

static void say_why(const struct agent *a, const struct node_msg *why)
{
    int n = a->life.nrunning;

    if (why->kind == NODE_STOP)
        log_warn(
            "agent", "%s; stopping %d workers for a new round", why->text, n);
    else if (why->kind == NODE_FAILED && why->rank < 0)
        log_error("agent", "node %s is lost: %s; stopping %d workers",
            why->host, why->text, n);
    else if (why->kind == NODE_FAILED)
        log_error("agent",
            "rank %d (local rank %d, host %s) failed: %s; stopping %d workers",
            why->rank, why->local_rank, why->host, why->text, n);
}

/* Before they are started begin_next_round() sees to it. */
static void on_part_end_workers(void *arg, const struct node_msg *why)
{
    struct agent *a = arg;

    if (a->is_round_due)
        return;
    if (why != NULL)
        say_why(a, why);
    post(a, (struct lc_event){.kind = why != NULL && why->kind == NODE_FAILED
                                          ? LC_EV_PEER_FAILED
                                          : LC_EV_ROUND_OVER});
}

static void tell_verdict(struct agent *a, const struct node_msg *msg)
{
    char when[32] = "";

    a->verdict = msg->next == NODE_NEXT_EXHAUSTED    ? RESTARTS_EXHAUSTED
                 : msg->next == NODE_NEXT_CRASH_LOOP ? RESTARTS_CRASH_LOOP
                                                     : RESTARTS_END;
    if (msg->next != NODE_NEXT_ROUND)
        return;
    if (msg->delay_ms > 0)
        snprintf(
            when, sizeof(when), " in %.3f s", (double)msg->delay_ms / 1000.0);
    if (msg->rank < 0)
        log_warn("agent", "node %s was lost: %s; restart %d of %d%s", msg->host,
            msg->text, msg->restart_count, a->job->max_restarts, when);
    else
        log_warn("agent",
            "rank %d (host %s) failed first: %s; restart %d of %d%s", msg->rank,
            msg->host, msg->text, msg->restart_count, a->job->max_restarts,
            when);
    report_end(a, log_collective);
}

static void on_part_tell(void *arg, const struct node_msg *msg)
{
    struct agent *a = arg;

    if (msg->kind == NODE_VERDICT)
        tell_verdict(a, msg);
    else if (msg->kind == NODE_PARKED)
        log_warn("agent", "this node waits as a spare: %s", msg->text);
    else if (msg->kind == NODE_CLOSED && msg->result != 0 &&
             (!a->part.has_cause || a->part.cause.next == NODE_NEXT_ROUND)) {
        snprintf(a->reason, sizeof(a->reason), "%s", msg->text);
        if (!a->part.is_leaving)
            log_error("agent", "the job has ended: %s", msg->text);
    }
}

static void on_part_finish(void *arg)
{
    finish(arg);
}

static void on_node_join(void *arg, struct node_msg *join)
{
    const struct agent *a = arg;

    participant_join(&a->part, join);
    if (a->part.place.round < 0 && !a->part.was_parked)
        join->waited_ms = (clock_now_ns() - a->began_ns) / CLOCK_NS_PER_MS;
}

/* Whatever answers there, numbers that are counted with are checked. */
static bool is_sane(const struct agent *a, const struct node_msg *msg)
{
    int nproc = a->job->nproc;

    return msg->kind != NODE_ROUND ||
           (msg->round >= 0 && msg->restart_count >= 0 &&
               msg->group_rank >= 0 &&
               msg->group_rank < msg->group_world_size && msg->rank_base >= 0 &&
               msg->world_size >= nproc &&
               msg->rank_base <= msg->world_size - nproc &&
               msg->role_rank_base >= 0 && msg->role_world_size >= nproc &&
               msg->role_rank_base <= msg->role_world_size - nproc &&
               msg->master_port > 0 && msg->master_port <= 65535);
}

static void on_nodes_ended(void *arg, const char *why);

static void on_node_message(void *arg, const struct node_msg *msg)
{
    struct agent *a = arg;

    if (!is_sane(a, msg)) {
        on_nodes_ended(a, "the coordinator said what makes no sense");
        return;
    }
    participant_message(&a->part, msg, clock_now_ns());
    settle(a);
}

static void on_nodes_lost(void *arg, const char *why)
{
    const struct agent *a = arg;

    if (!a->part.is_closed)
        log_warn("agent", "%s; waiting for it%s", why,
            a->life.nrunning > 0 ? ", workers go on" : "");
}

/* Without a coordinator there is no job, but what is done is done. */
static void on_nodes_ended(void *arg, const char *why)
{
    struct agent *a = arg;

    if (a->is_finishing)
        return;
    if (!a->part.is_last) {
        snprintf(a->reason, sizeof(a->reason), "%s", why);
        if (a->part.state == PARTICIPANT_ENDED && !a->part.is_done &&
            a->part.result == NODE_SUCCEEDED)
            log_warn("agent",
                "%s; the workers of this node have succeeded, whether others "
                "have is not known",
                why);
        else
            log_error("agent", "%s", why);
    }
    participant_abandoned(&a->part);
    settle(a);
}

/* Nothing is left of the round. */
static void end_round(struct agent *a)
{
    uint64_t delay_ms = 0;
    char when[32] = "";
    char how[256];
    int rank;

    if (a->is_finishing || is_between_rounds(a))
        return;
    uv_timer_stop(&a->tell_timer);
    if (a->nodes != NULL) {
        end_round_of_many(a);
        return;
    }
    meeting_end_round(&a->meeting);
    a->verdict = restarts_decide(
        &a->restarts, &a->life, clock_now_ns() - a->round_ns, &delay_ms);
    if (a->verdict != RESTARTS_AGAIN) {
        finish(a);
        return;
    }
    rank = a->life.first_failure;
    report_outcome(&a->life.workers[rank], how, sizeof(how));
    if (delay_ms > 0)
        snprintf(when, sizeof(when), " in %.3f s", (double)delay_ms / 1000.0);
    log_warn("agent",
        "rank %d (local rank %d, pid %d) failed: %s; restart %d of %d%s", rank,
        rank, (int)a->life.workers[rank].pid, how, a->restarts.count,
        a->job->max_restarts, when);
    report_end(a, log_collective);
    uv_update_time(&a->loop);
    uv_timer_start(&a->restart_timer, on_restart_timer, delay_ms, 0);
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
    if (a->nodes != NULL && !is_idle(a) && a->life.first_failure >= 0)
        tell_coordinator(a);
    watch_groups(a);
    if (a->life.state == LC_DONE && !a->is_starting)
        end_round(a);
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

/* There is nobody to be stopped, only a round that will not begin. */
static void stop_waiting(struct agent *a)
{
    if (!is_between_rounds(a))
        return;
    uv_timer_stop(&a->restart_timer);
    a->is_round_due = false;
    a->verdict = RESTARTS_END;
    finish(a);
}

static void pass_signal(struct agent *a, int sig)
{
    for (int i = 0; i < a->life.nworkers; i++)
        if (a->life.workers[i].state == LC_WORKER_RUNNING)
            kill(-a->life.workers[i].pid, sig);
}

static void on_stop_signal(struct agent *a, int sig)
{
    bool was_running = a->life.state == LC_RUNNING;
    bool is_first = a->life.stop_signal == 0;

    if (was_running && a->life.first_failure < 0)
        a->stop_ns = clock_now_ns();
    post(a, (struct lc_event){.kind = LC_EV_STOP_SIGNAL, .signal = sig});
    if (was_running)
        log_warn("agent", "received %s; stopping %d workers with it",
            signal_name(sig), a->life.nrunning);
    if (a->nodes != NULL && is_first && !a->is_finishing)
        leave(a, sig);
    if (a->is_finishing && is_first)
        limit_output(a);
    else if (a->is_finishing)
        give_up_output(a);
    stop_waiting(a);
}

/* A byte is a signal that the front was sent, the end its death. */
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
        if (sigismember(&a->job->inherited.pass, sigs[i]) == 1)
            pass_signal(a, sigs[i]);
        else
            on_stop_signal(a, sigs[i]);
    if (n <= 0) {
        uv_poll_stop(handle);
        post(a, (struct lc_event){.kind = LC_EV_PARENT_LOST});
        if (a->is_finishing)
            end_loop(a);
        stop_waiting(a);
    }
    settle(a);
}

/* --- The agent channel -------------------------------------------------- */

static void on_attached(void *arg, int local_rank)
{
    post(arg, (struct lc_event){.kind = LC_EV_ATTACHED, .worker = local_rank});
}

static void on_collateral(void *arg, int local_rank, const char *why)
{
    struct agent *a = arg;
    struct agent_worker *w = &a->workers[local_rank];

    post(a, (struct lc_event){.kind = LC_EV_COLLATERAL, .worker = local_rank});
    if (w->collateral == NULL)
        w->collateral = strdup(why); /* the first; without memory none */
}

/* --- Starting ----------------------------------------------------------- */

static void warn_of_omp(const struct job *job)
{
    if (job->omp == JOB_OMP_TORCHRUN && job->nproc > 1 &&
        worker_vars_find(job->env, ENV_OMP_NUM_THREADS) == NULL)
        log_warn("agent",
            "OMP_NUM_THREADS is unset: set to 1 for each of the %d workers, so "
            "that they do not overload this machine; set it to what suits the "
            "program, or see --omp_num_threads",
            job->nproc);
}

/* Executes the program with what the worker is given. */
static int spawn(const struct agent *a, int local_rank,
    const struct worker_vars *vars, const struct output_worker *w)
{
    const struct job *job = a->job;
    struct spawn s = {.path = job->program.path,
        .out_fd = w->out_fd,
        .err_fd = w->err_fd,
        .mask = job->inherited.mask,
        .reset = job->inherited.reset,
        .nofile = job->inherited.nofile};
    char **argv = program_argv(&job->program, local_rank);
    char **envp = worker_vars_build(vars, job->env);
    int rc = -ENOMEM;

    if (job->binding != NULL)
        s.cpus = binding_cpus(job->binding, local_rank, &s.cpus_size);
    if (argv != NULL && envp != NULL) {
        s.argv = argv;
        s.envp = envp;
        rc = spawn_worker(&s);
    }
    free(argv);
    free(envp);
    return rc;
}

static void set_place(
    struct worker_vars *vars, const struct node_msg *place, int local_rank)
{
    vars->rank = place->rank_base + local_rank;
    vars->world_size = place->world_size;
    vars->group_rank = place->group_rank;
    vars->group_world_size = place->group_world_size;
    vars->role_rank = place->role_rank_base + local_rank;
    vars->role_world_size = place->role_world_size;
    vars->master_addr = place->master_addr;
    vars->master_port = place->master_port;
    vars->node_addr = place->addr;
}

/* Returns the worker's pid or a negative errno. */
static int start_worker(struct agent *a, int local_rank)
{
    const struct job *job = a->job;
    struct output_worker w = {.out_fd = -1, .err_fd = -1};
    char omp_text[16];
    struct worker_vars vars = worker_vars_of_job(job, local_rank, omp_text);
    char *devices = NULL;
    struct err e = {0};
    int rc;

    vars.restart_count = a->restarts.count;
    vars.master_port = a->meeting.port;
    if (a->nodes != NULL)
        set_place(&vars, &a->part.place, local_rank);
    vars.run_id = run_id(a);
    vars.nccl_ras_addr = a->ras_addr[0] != '\0' ? a->ras_addr : NULL;
    vars.agent = channel_name(a->channel);
    rc = output_open_worker(a->output, local_rank, &w, &e);
    if (rc == 0 && job->is_virtual_local_rank)
        rc = devices_visible(
            worker_vars_find(job->env, ENV_CUDA_VISIBLE_DEVICES), local_rank,
            job->share_gpu, &devices, &e);
    if (rc < 0) {
        log_error("agent", "local rank %d: %s", local_rank, e.msg);
    } else {
        a->workers[local_rank].error_file = strdup(w.error_file);
        vars.error_file = w.error_file;
        vars.visible_devices = devices;
        rc = spawn(a, local_rank, &vars, &w);
    }
    if (w.out_fd >= 0)
        close(w.out_fd);
    if (w.err_fd >= 0 && w.err_fd != w.out_fd)
        close(w.err_fd);
    free(devices);
    return rc;
}

/* Without a pidfd SIGCHLD still tells of the end, just not of the order. */
static void watch_worker(struct agent *a, int local_rank, pid_t pid)
{
    struct agent_worker *w = &a->workers[local_rank];
    int fd = -1;

#ifdef SYS_pidfd_open
    fd = (int)syscall(SYS_pidfd_open, pid, 0);
#endif
    if (fd < 0)
        return;
    w->pidfd_poll = malloc(sizeof(*w->pidfd_poll));
    if (w->pidfd_poll == NULL ||
        uv_poll_init(&a->loop, w->pidfd_poll, fd) < 0) {
        free(w->pidfd_poll);
        w->pidfd_poll = NULL;
        close(fd);
        return;
    }
    w->pidfd = fd;
    w->pidfd_poll->data = w;
    uv_poll_start(w->pidfd_poll, UV_READABLE, on_pidfd);
}

/* The loop has a turn after each start: workers that end at once are told in
 * order, a failure keeps further ones from being started, and a stop does
 * not wait. */
static void start_workers(struct agent *a)
{
    a->is_starting = true;
    output_begin_start(a->output);
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
        if (a->round == 0 && i == 0)
            a->oom_kills = report_count_oom_kills(); /* while it starts */
        uv_run(&a->loop, UV_RUN_NOWAIT);
    }
    output_end_start(a->output);
    a->is_starting = false;
    settle(a);
}

static void forget_workers(struct agent *a)
{
    for (int i = 0; a->workers != NULL && i < a->job->nproc; i++) {
        struct agent_worker *w = &a->workers[i];

        close_pidfd(w);
        free(w->error_file);
        free(w->collateral);
        w->error_file = w->collateral = NULL;
    }
}

/* Everything that a round has for itself: a store, folders, recorders. On
 * failure the round before is still the present one, for its report. */
static int prepare_round(struct agent *a, struct err *e)
{
    uint64_t now_ns = clock_now_ns();
    struct lifecycle life;
    int rc;

    rc = output_begin_attempt(a->output, a->restarts.count, a->round, e);
    if (rc == 0 && a->nodes == NULL)
        rc = meeting_begin_round(&a->meeting, e);
    if (rc < 0)
        return rc;
    rc = lifecycle_init(&life, a->job->nproc, a->job->grace_ms,
        a->job->failure_grace_ms, now_ns);
    if (rc < 0)
        return err_set(e, rc, "a round: %s", strerror(-rc));
    channel_begin_round(a->channel, a->round, a->part.place.rank_base);
    output_set_rank_base(a->output, a->part.place.rank_base);
    forget_workers(a);
    uv_timer_stop(&a->tell_timer); /* it is about the round before */
    lifecycle_fini(&a->life);
    a->life = life;
    a->has_told_failure = false;
    a->told_failure = -1;
    a->round_ns = now_ns;
    return 0;
}

/* The loop has turns while workers are started, so not from within it. */
static void on_restart_timer(uv_timer_t *timer)
{
    struct agent *a = timer->data;

    a->is_round_due = true;
    uv_stop(&a->loop);
}

static void begin_next_round(struct agent *a)
{
    struct err e;

    a->is_round_due = false;
    if (a->nodes == NULL)
        a->round++;
    if (prepare_round(a, &e) < 0) {
        log_error(
            "agent", "cannot begin restart %d: %s", a->restarts.count, e.msg);
        if (a->nodes == NULL)
            a->restarts.count--; /* there was none */
        a->verdict = RESTARTS_END;
        if (a->nodes != NULL)
            participant_give_up(&a->part);
        else
            finish(a);
        return;
    }
    /* It may be over already. */
    if (a->part.has_why || a->part.is_last)
        on_part_end_workers(a, a->part.has_why ? &a->part.why : NULL);
    start_workers(a);
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
static void log_to_output(const char *line, size_t len, void *output)
{
    output_say(output, line, len);
}

static void close_if_open(uv_handle_t *handle)
{
    if (handle->data != NULL) /* set once it is initialised */
        uv_close(handle, NULL);
}

static void close_nodes(struct agent *a)
{
    char why[NODE_TEXT_MAX];

    if (a->life.stop_signal != 0)
        snprintf(why, sizeof(why),
            "node %s, which hosts the coordinator, was stopped: it received %s",
            a->host, signal_name(a->life.stop_signal));
    else
        snprintf(why, sizeof(why),
            "node %s, which hosts the coordinator, has ended", a->host);
    nodes_destroy(a->nodes, why);
}

static void close_all(struct agent *a)
{
    log_set_writer(NULL, NULL);
    close_nodes(a);
    meeting_close(&a->meeting);
    if (a->ras_fd >= 0)
        close(a->ras_fd);
    channel_destroy(a->channel);
    output_destroy(a->output);
    forget_workers(a);
    close_if_open((uv_handle_t *)&a->front_poll);
    close_if_open((uv_handle_t *)&a->child_signal);
    close_if_open((uv_handle_t *)&a->timer);
    close_if_open((uv_handle_t *)&a->tell_timer);
    close_if_open((uv_handle_t *)&a->group_timer);
    close_if_open((uv_handle_t *)&a->restart_timer);
    /* Only close callbacks are left; a stop may be pending from before. */
    while (uv_run(&a->loop, UV_RUN_DEFAULT) != 0)
        ;
    uv_loop_close(&a->loop);
    free(a->workers);
    lifecycle_fini(&a->life);
}

/* What needs the loop and nothing else; cannot fail but for memory. */
static int set_up_loop(struct agent *a)
{
    uv_timer_t *const timers[] = {
        &a->timer, &a->tell_timer, &a->group_timer, &a->restart_timer};
    int rc = text_random_hex(a->run_id);

    a->workers = calloc((size_t)a->job->nproc, sizeof(*a->workers));
    if (a->workers == NULL)
        return -ENOMEM;
    for (int i = 0; i < a->job->nproc; i++)
        a->workers[i] = (struct agent_worker){.agent = a, .local_rank = i};
    for (size_t i = 0; i < sizeof(timers) / sizeof(timers[0]); i++) {
        uv_timer_init(&a->loop, timers[i]);
        timers[i]->data = a;
    }
    return rc;
}

/* Without a port of its own the job does as without crun: the processes of
 * one user share the default port, those of others get none. */
static void reserve_ras_port(struct agent *a)
{
    struct err e = {0};
    int fds[LISTEN_MAX];
    int port;

    if (listen_reserve("127.0.0.1", 0, fds, &port, &e) < 0) {
        log_debug("agent", "no port for NCCL's queries: %s", e.msg);
        return;
    }
    a->ras_fd = fds[0]; /* such an address is one socket */
    snprintf(a->ras_addr, sizeof(a->ras_addr), "127.0.0.1:%d", port);
    log_info(
        "agent", "the RAS of NCCL, if workers use it, is at %s", a->ras_addr);
}

/* The coordinator says when; until then it is as if one had ended. */
static int wait_for_round(struct agent *a, struct err *e)
{
    int rc = lifecycle_init(&a->life, a->job->nproc, a->job->grace_ms,
        a->job->failure_grace_ms, clock_now_ns());

    if (rc < 0)
        return err_set(e, rc, "set-up: %s", strerror(-rc));
    a->life.state = LC_DONE;
    return 0;
}

static int set_up(struct agent *a, struct err *e)
{
    static const struct channel_callbacks callbacks = {
        .attached = on_attached, .collateral = on_collateral};
    static const struct node_link_callbacks node_callbacks = {
        .join = on_node_join,
        .message = on_node_message,
        .lost = on_nodes_lost,
        .ended = on_nodes_ended};
    static const struct participant_callbacks part_callbacks = {
        .send = on_part_send,
        .allow_peers = on_part_allow_peers,
        .open_store = on_part_open_store,
        .close_store = on_part_close_store,
        .start = on_part_start,
        .end_workers = on_part_end_workers,
        .tell = on_part_tell,
        .finish = on_part_finish};
    size_t nfds = FDS_OF_AGENT + FDS_OF_WORKER * (size_t)a->job->nproc;
    const struct job *job = a->job;
    const struct output_settings settings = {.log = &job->log,
        .role = job->role,
        .hostname = a->host,
        .run_id = run_id(a),
        .nproc = job->nproc};
    uint64_t agent_id;
    int rc = set_up_loop(a);

    if (rc == 0)
        rc = random_bytes(&agent_id, sizeof(agent_id));
    if (rc < 0)
        return err_set(e, rc, "set-up: %s", strerror(-rc));
    a->began_ns = clock_now_ns();
    participant_init(&a->part, &part_callbacks, a, agent_id);
    snprintf(a->host, sizeof(a->host), "?");
    gethostname(a->host, sizeof(a->host) - 1);
    rc = job->nodes.max > 1
             ? nodes_create(&a->nodes, &a->loop, job, &a->meeting, run_id(a),
                   a->host, agent_id, nfds, &node_callbacks, a, e)
             : meeting_open(&a->meeting, &a->loop, job->master_addr,
                   job->master_port, job->has_agent_store, job->nproc, nfds, e);
    if (rc == 0)
        rc =
            channel_create(&a->channel, &a->loop, job->nproc, &callbacks, a, e);
    if (rc == 0)
        rc = output_create(&a->output, &a->loop, &settings, e);
    if (rc < 0)
        return rc;
    log_set_writer(log_to_output, a->output);
    rc = watch_events(a);
    if (rc < 0)
        return err_set(e, rc, "set-up: %s", strerror(-rc));
    warn_of_omp(job);
    if (job->has_nccl_ras_port)
        reserve_ras_port(a);
    if (a->nodes != NULL)
        return wait_for_round(a, e);
    return prepare_round(a, e);
}

int agent_run(const struct job *job)
{
    struct agent a = {.job = job,
        .restarts = {.max_restarts = job->max_restarts,
            .delay_ms = job->restart_delay_ms,
            .delay_max_ms = job->restart_delay_max_ms,
            .crash_loop_count = job->crash_loop_count,
            .crash_loop_ms = job->crash_loop_ms},
        .oom_kills = -1,
        .ras_fd = -1,
        .exit_code = 1};
    struct rlimit files;
    struct err e = {0};
    int rc;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0 &&
        files.rlim_cur < FDS_LEAST + FDS_LEAST_OF_WORKER * (rlim_t)job->nproc) {
        fprintf(stderr,
            "crun: error: the limit of open files is %d, and crun needs at "
            "least %d for %d workers: raise it with ulimit -n\n",
            (int)files.rlim_cur, FDS_LEAST + FDS_LEAST_OF_WORKER * job->nproc,
            job->nproc);
        return 1;
    }
    rc = uv_loop_init(&a.loop);
    if (rc < 0) {
        fprintf(stderr, "crun: error: event loop: %s\n", uv_strerror(rc));
        return 1;
    }
    rc = set_up(&a, &e);
    if (rc < 0) {
        log_set_writer(NULL, NULL);
        fprintf(stderr, "crun: error: %s\n", e.msg);
    } else {
        if (a.nodes == NULL)
            start_workers(&a);
        while (!a.is_over) {
            uv_run(&a.loop, UV_RUN_DEFAULT);
            /* The loop runs timers without a look at descriptors when a
             * signal has ended its wait: a stop may have come before. */
            if (a.is_round_due && !a.is_over)
                uv_run(&a.loop, UV_RUN_NOWAIT);
            if (a.is_round_due && !a.is_over)
                begin_next_round(&a);
        }
        if (output_has_lost(a.output) && a.exit_code == 0)
            a.exit_code = 1;
    }
    close_all(&a);
    return a.exit_code;
}
