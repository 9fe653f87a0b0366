/* See report.h. */
#include "agent/report.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "agent/error_file.h"
#include "agent/hints.h"
#include "agent/plain_text.h"
#include "agent/program.h"
#include "agent/signal_names.h"
#include "rendezvous/base/clock.h"

#define REPORT_TEXT_MAX 256
/* Of a traceback the end is shown, where the error is. */
#define TRACEBACK_MAX (64 * 1024)
/* Of what others than the first failure say. */
#define WORDS_MAX 400
#define FIELD_MAX 4096
/* Escaped, a byte becomes four. */
#define LINE_BYTES (4 * WORDS_MAX + 2 * REPORT_TEXT_MAX)

/* exec says what is wrong with the file; fork and the pipes before it, what
 * this machine is short of. */
static void describe_start_error(int error, char *out, size_t size)
{
    switch (error) {
    case EMFILE:
    case ENFILE:
        snprintf(out, size, "could not be started: %s (see ulimit -Hn)",
            strerror(error));
        return;
    case EAGAIN:
        snprintf(out, size, "could not be started: %s (see ulimit -u)",
            strerror(error));
        return;
    case ENOMEM:
        snprintf(out, size, "could not be started: %s", strerror(error));
        return;
    default:
        snprintf(out, size, "could not be started: %s, exit code %d",
            strerror(error),
            error == ENOENT ? PROGRAM_EXIT_NOT_FOUND
                            : PROGRAM_EXIT_NOT_EXECUTABLE);
    }
}

static void describe_unkillable(pid_t pid, char *out, size_t size)
{
    char state[128];

    hint_process_state(pid, state, sizeof(state));
    snprintf(out, size, "could not be killed (pid %d%s%s)", (int)pid,
        state[0] != '\0' ? ", " : "", state);
}

void report_outcome(const struct lc_worker *w, char *out, size_t size)
{
    int status = w->wait_status;

    if (w->outcome == LC_OUT_NOT_BEGUN)
        describe_start_error(w->start_error, out, size);
    else if (w->state == LC_WORKER_RUNNING)
        describe_unkillable(w->pid, out, size);
    else if (w->state == LC_WORKER_NEW)
        snprintf(out, size, "not started");
    else if (WIFSIGNALED(status))
        snprintf(out, size, "signal %d (%s)%s", WTERMSIG(status),
            signal_name(WTERMSIG(status)),
            WCOREDUMP(status) ? ", core dumped" : "");
    else
        snprintf(out, size, "exit code %d", WEXITSTATUS(status));
}

__attribute__((format(printf, 2, 3))) static int add(
    struct buf *out, const char *fmt, ...)
{
    char *text;
    va_list ap;
    int rc;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0)
        return -ENOMEM;
    rc = buf_append(out, text, (size_t)n);
    free(text);
    return rc;
}

/* What is said of a rank, and of those that ended in the same way. */
struct rank_line {
    struct buf text; /* what the line says after the ranks, as a string */
    bool is_told;
};

/* The first line of what the worker itself says, as far as it says anything. */
static int add_words(const struct report_worker *more, struct buf *out)
{
    struct error_file f;
    const char *words;
    int rc = 0;

    error_file_read(&f, more->error_file);
    words = f.message != NULL ? f.message : more->collateral;
    if (words != NULL && words[0] != '\0') {
        rc = add(out, ": ");
        if (rc == 0)
            rc = plain_text_append_line(out, words, WORDS_MAX);
    }
    error_file_fini(&f);
    return rc;
}

static int describe(
    const struct report_input *in, int worker, struct rank_line *line)
{
    const struct lc_worker *w = &in->life->workers[worker];
    struct buf *out = &line->text;
    char how[REPORT_TEXT_MAX];
    int rc;

    report_outcome(w, how, sizeof(how));
    switch (w->outcome) {
    case LC_OUT_FAILED:
        rc = add(out, " failed too: %s", how);
        break;
    case LC_OUT_COLLATERAL:
        rc = add(out, " ended on account of it: %s", how);
        break;
    case LC_OUT_STOPPED:
        rc = add(out, ": stopped by crun with %s: %s",
            signal_name(w->sent_signal), how);
        break;
    default:
        rc = add(out, ": %s", how);
        break;
    }
    if (rc == 0 &&
        (w->outcome == LC_OUT_FAILED || w->outcome == LC_OUT_COLLATERAL))
        rc = add_words(&in->workers[worker], out);
    return rc == 0 ? buf_append(out, "", 1) : rc;
}

static bool is_alike(const struct rank_line *lines, int i, int k)
{
    return !lines[k].is_told &&
           strcmp(buf_bytes(&lines[k].text), buf_bytes(&lines[i].text)) == 0;
}

static int count_alike(const struct rank_line *lines, int n, int i)
{
    int count = 0;

    for (int k = 0; k < n; k++)
        count += is_alike(lines, i, k);
    return count;
}

/* "0,2-5": every rank that is not told and whose text equals that of the one at
 * index i. */
static int add_ranks(const struct report_input *in,
    const struct rank_line *lines, int i, struct buf *out)
{
    const char *separator = "";
    int n = in->life->nworkers;
    int rc = 0;

    for (int k = 0; k < n && rc == 0; k++) {
        int end = k;

        if (!is_alike(lines, i, k))
            continue;
        while (end + 1 < n && is_alike(lines, i, end + 1))
            end++;
        rc = end == k ? add(out, "%s%d", separator, in->rank_base + k)
                      : add(out, "%s%d-%d", separator, in->rank_base + k,
                            in->rank_base + end);
        separator = ",";
        k = end;
    }
    return rc;
}

/* One line for all ranks of which the same is to be said as of the one at
 * index i; marks them as told. */
static int add_alike(const struct report_input *in, struct rank_line *lines,
    int i, struct buf *out)
{
    int n = in->life->nworkers;
    int rc;

    rc = add(
        out, "crun:   %s ", count_alike(lines, n, i) == 1 ? "rank" : "ranks");
    if (rc == 0)
        rc = add_ranks(in, lines, i, out);
    for (int k = 0; k < n; k++)
        if (is_alike(lines, i, k))
            lines[k].is_told = true;
    return rc == 0 ? add(out, "%s\n", buf_bytes(&lines[i].text)) : rc;
}

/* The same for one rank alone, with its process. */
static int add_alone(const struct report_input *in, struct rank_line *lines,
    int i, struct buf *out)
{
    lines[i].is_told = true;
    return add(out, "crun:   rank %d (local rank %d, pid %d)%s\n",
        in->rank_base + i, i, (int)in->life->workers[i].pid,
        buf_bytes(&lines[i].text));
}

/* The time of a death as torchrun writes it, with milliseconds. */
static void format_time(
    const struct report_input *in, uint64_t ns, char *out, size_t size)
{
    int64_t unix_ns = (int64_t)ns + in->clock_offset_ns;
    time_t seconds = (time_t)(unix_ns / (int64_t)CLOCK_NS_PER_S);
    struct tm tm;
    size_t n;

    localtime_r(&seconds, &tm);
    n = strftime(out, size, "%Y-%m-%d_%H:%M:%S", &tm);
    snprintf(out + n, size - n, ".%03d",
        (int)(unix_ns % (int64_t)CLOCK_NS_PER_S / 1000000));
}

/* Lines after the first are indented; what is too long loses its start. */
static int add_indented(struct buf *out, const char *text)
{
    size_t len = strlen(text);
    int rc = 0;

    while (len > 0 && text[len - 1] == '\n')
        len--;
    if (len > TRACEBACK_MAX) {
        text += len - TRACEBACK_MAX;
        len = TRACEBACK_MAX;
        rc = add(out, "[...] ");
        for (; len > 0 && ((unsigned char)*text & 0xc0) == 0x80; len--)
            text++; /* to the next whole character */
    }
    while (rc == 0 && len > 0) {
        const char *end = memchr(text, '\n', len);
        size_t n = end != NULL ? (size_t)(end - text) : len;

        rc = plain_text_append(out, text, n);
        if (end != NULL && rc == 0)
            rc = add(out, "\n  ");
        text += end != NULL ? n + 1 : n;
        len -= end != NULL ? n + 1 : n;
    }
    return rc == 0 ? add(out, "\n") : rc;
}

/* What the worker itself says: the traceback, preceded by the message unless
 * that is part of it. */
static int add_traceback(
    const struct lc_worker *w, const struct error_file *f, struct buf *out)
{
    int rc = add(out, "  traceback : ");

    if (rc == 0 && f->traceback != NULL) {
        if (f->message != NULL && strstr(f->traceback, f->message) == NULL) {
            rc = add_indented(out, f->message);
            if (rc == 0)
                rc = add(out, "  ");
        }
        return rc == 0 ? add_indented(out, f->traceback) : rc;
    }
    if (rc == 0 && f->message != NULL)
        return add_indented(out, f->message);
    if (rc == 0 && w->outcome != LC_OUT_NOT_BEGUN &&
        WIFSIGNALED(w->wait_status))
        return add(out, "Signal %d (%s) received by PID %d\n",
            WTERMSIG(w->wait_status), signal_name(WTERMSIG(w->wait_status)),
            (int)w->pid);
    return rc == 0 ? add(out, "<N/A>\n") : rc;
}

/* torchrun's form: the code, or minus the signal's number and its name. */
static int add_exitcode(const struct lc_worker *w, struct buf *out)
{
    if (WIFSIGNALED(w->wait_status))
        return add(out, "  exitcode  : %d (pid: %d) (%s)\n",
            -WTERMSIG(w->wait_status), (int)w->pid,
            signal_name(WTERMSIG(w->wait_status)));
    return add(out, "  exitcode  : %d (pid: %d)\n", WEXITSTATUS(w->wait_status),
        (int)w->pid);
}

/* A line of crun's own; nothing for NULL. */
static int add_field(struct buf *out, const char *name, const char *value)
{
    int rc;

    if (value == NULL)
        return 0;
    rc = add(out, "  %-10s: ", name);
    if (rc == 0)
        rc = plain_text_append_line(out, value, FIELD_MAX);
    return rc == 0 ? add(out, "\n") : rc;
}

/* torchrun's fields of a failure, then crun's own. */
static int add_fields(const struct report_input *in, int worker,
    const struct error_file *f, struct buf *out)
{
    const struct lc_worker *w = &in->life->workers[worker];
    const struct report_worker *more = &in->workers[worker];
    const struct hint_facts facts = {.program = in->program,
        .stderr_file = more->stderr_file,
        .has_stack = f->traceback != NULL,
        .oom_kills = in->oom_kills};
    bool has_file = f->json != NULL || f->problem[0] != '\0';
    char when[64], hint[1024], problem[200];
    int rc;

    format_time(in, w->ended_ns, when, sizeof(when));
    snprintf(problem, sizeof(problem), "cannot be read: %s", f->problem);
    rc = add(out, "  time      : %s\n  host      : %s\n", when, in->host);
    if (rc == 0)
        rc = add(out, "  rank      : %d (local_rank: %d)\n",
            in->rank_base + worker, worker);
    if (rc == 0 && w->outcome != LC_OUT_NOT_BEGUN)
        rc = add_exitcode(w, out);
    if (rc == 0)
        rc =
            add_field(out, "error_file", has_file ? more->error_file : "<N/A>");
    if (rc == 0)
        rc = add_field(out, "", f->problem[0] != '\0' ? problem : NULL);
    if (rc == 0)
        rc = add_traceback(w, f, out);
    if (rc == 0)
        rc = add_field(out, "peer lost", more->collateral);
    if (rc == 0)
        rc = add_field(out, "last call", more->last_call);
    if (rc == 0)
        rc = add_field(out, "stderr", more->stderr_file);
    if (rc == 0 && hint_for(w, &facts, hint, sizeof(hint)))
        rc = add_field(out, "hint", hint);
    return rc;
}

/* Whose end it is; a program's name may be anything. */
static int add_title(const struct report_input *in, struct buf *out)
{
    int rc = add(out, "crun: ");

    return rc == 0 ? plain_text_append(
                         out, in->title, strnlen(in->title, FIELD_MAX))
                   : rc;
}

static int add_first_failure(const struct report_input *in, struct buf *out)
{
    int worker = in->life->first_failure;
    const struct lc_worker *w = &in->life->workers[worker];
    struct error_file f;
    char how[256];
    int rc;

    report_outcome(w, how, sizeof(how));
    rc = add_title(in, out);
    if (rc < 0)
        return rc;
    if (w->outcome == LC_OUT_NOT_BEGUN)
        rc = add(out, " FAILED: rank %d (local rank %d, host %s) %s\n",
            in->rank_base + worker, worker, in->host, how);
    else
        rc = add(out,
            " FAILED: rank %d (local rank %d, pid %d, host %s) failed first: "
            "%s after %.3f s\n",
            in->rank_base + worker, worker, (int)w->pid, in->host, how,
            (double)(w->ended_ns - w->started_ns) / (double)CLOCK_NS_PER_S);
    if (rc < 0)
        return rc;
    error_file_read(&f, in->workers[worker].error_file);
    rc = add_fields(in, worker, &f, out);
    error_file_fini(&f);
    return rc;
}

/* The first failure, that another node reports in full. */
static int add_peer_failure(const struct report_input *in, struct buf *out)
{
    const struct node_msg *f = in->peer;
    int rc = add_title(in, out);

    if (rc < 0)
        return rc;
    if (f->rank < 0)
        return add(out, " FAILED: node %s was lost: %s\n", f->host, f->text);
    return add(out,
        " FAILED: rank %d (local rank %d, pid %d, host %s) failed first: %s "
        "after %.3f s\n",
        f->rank, f->local_rank, f->pid, f->host, f->text,
        (double)f->lived_ns / (double)CLOCK_NS_PER_S);
}

/* The one that ended next after those told, of those with this outcome. */
static int find_next(const struct lifecycle *lc, const struct rank_line *lines,
    enum lc_outcome outcome)
{
    int next = -1;

    for (int i = 0; i < lc->nworkers; i++)
        if (!lines[i].is_told && lc->workers[i].outcome == outcome &&
            (next < 0 || lc->workers[i].ended_ns < lc->workers[next].ended_ns))
            next = i;
    return next;
}

/* Failures in the order of their deaths, then those on account of them. */
static int add_others(
    const struct report_input *in, struct rank_line *lines, struct buf *out)
{
    int rc = 0;
    int i;

    while (rc == 0 && (i = find_next(in->life, lines, LC_OUT_FAILED)) >= 0)
        rc = add_alone(in, lines, i, out);
    while (rc == 0 && (i = find_next(in->life, lines, LC_OUT_COLLATERAL)) >= 0)
        rc = count_alike(lines, in->life->nworkers, i) == 1
                 ? add_alone(in, lines, i, out)
                 : add_alike(in, lines, i, out);
    for (i = 0; i < in->life->nworkers && rc == 0; i++)
        if (!lines[i].is_told)
            rc = add_alike(in, lines, i, out);
    return rc;
}

/* The earlier rounds, and why there is no further one. */
static int add_history(const struct report_input *in, struct buf *out)
{
    const struct restarts *r = in->restarts;
    int rc = 0;

    for (int i = 0; i < r->nhistory && rc == 0; i++) {
        const struct round_end *end = &r->history[i];
        struct lc_worker w = {.state = LC_WORKER_ENDED,
            .outcome = end->outcome,
            .wait_status = end->wait_status,
            .start_error = end->start_error};
        char how[256];

        if (i + 1 == r->nhistory && in->life->first_failure >= 0)
            break; /* the round that is reported above */
        report_outcome(&w, how, sizeof(how));
        rc = add(out,
            "crun:   round %d: rank %d failed first: %s after %.3f s\n",
            end->restart_count, in->rank_base + end->local_rank, how,
            (double)end->lived_ns / (double)CLOCK_NS_PER_S);
        if (rc == 0 && i + 1 == RESTARTS_HISTORY_MAX / 2 && r->nforgotten > 0)
            rc = add(out, "crun:   ... %d more\n", r->nforgotten);
    }
    if (rc == 0 && in->verdict == RESTARTS_EXHAUSTED && r->max_restarts > 0)
        rc = add(out, "crun:   no restart is left of --max_restarts=%d\n",
            r->max_restarts);
    if (rc == 0 && in->verdict == RESTARTS_CRASH_LOOP)
        rc = add(out,
            "crun:   no further restart: %d rounds in a row lived for less "
            "than %.3f s (--crash_loop)\n",
            r->crash_loop_count, (double)r->crash_loop_ms / 1000.0);
    return rc;
}

/* What the recorders say, if anything. */
static int add_collective(const struct report_input *in, struct buf *out)
{
    const char *line = in->collective;
    int rc = 0;

    while (rc == 0 && line != NULL && line[0] != '\0') {
        rc = add_field(out, "collective", line);
        line += strcspn(line, "\n");
        line += *line == '\n';
    }
    return rc;
}

static int write_all(
    const struct report_input *in, struct rank_line *lines, struct buf *out)
{
    const struct lifecycle *lc = in->life;
    int rc = 0;

    if (in->peer != NULL) {
        rc = add_peer_failure(in, out);
    } else if (lc->first_failure >= 0) {
        lines[lc->first_failure].is_told = true;
        rc = add_first_failure(in, out);
    }
    if (rc == 0 && (lc->stop_signal != 0 || lc->is_parent_lost))
        rc = add_title(in, out);
    if (rc == 0 && lc->stop_signal != 0)
        rc = add(out, " was stopped by %s sent to crun\n",
            signal_name(lc->stop_signal));
    else if (rc == 0 && lc->is_parent_lost)
        rc = add(out, " was stopped since crun was killed\n");
    if (rc == 0)
        rc = add_collective(in, out);
    if (rc == 0)
        rc = add_others(in, lines, out);
    if (rc == 0 && in->is_own_view && lc->first_failure >= 0)
        rc = add(out,
            "crun:   as this node has seen it: the coordinator has not said "
            "which rank of the job was first\n");
    if (rc == 0)
        rc = add_history(in, out);
    if (rc == 0 && lc->gave_up)
        rc = add(out, "crun: processes are left that could not be ended\n");
    return rc;
}

int report_write(const struct report_input *in, struct buf *out)
{
    const struct lifecycle *lc = in->life;
    struct rank_line *lines;
    int rc = 0;

    if (lifecycle_exit_code(lc) == 0 && !lc->gave_up && in->peer == NULL)
        return 0;
    lines = calloc((size_t)lc->nworkers, sizeof(*lines));
    if (lines == NULL)
        return -ENOMEM;
    for (int i = 0; i < lc->nworkers; i++)
        buf_init(&lines[i].text, LINE_BYTES);
    for (int i = 0; i < lc->nworkers && rc == 0; i++)
        rc = describe(in, i, &lines[i]);
    if (rc == 0)
        rc = write_all(in, lines, out);
    for (int i = 0; i < lc->nworkers; i++)
        buf_fini(&lines[i].text);
    free(lines);
    return rc;
}
