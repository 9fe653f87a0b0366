/* See report.h. */
#include "agent/report.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "agent/program.h"
#include "agent/signal_names.h"
#include "rendezvous/base/clock.h"

#define REPORT_TEXT_MAX 256

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

void report_outcome(const struct lc_worker *w, char *out, size_t size)
{
    int status = w->wait_status;

    if (w->outcome == LC_OUT_NOT_BEGUN)
        describe_start_error(w->start_error, out, size);
    else if (w->state == LC_WORKER_RUNNING)
        snprintf(out, size, "could not be killed (pid %d)", (int)w->pid);
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

struct rank_line {
    char text[REPORT_TEXT_MAX]; /* what the line says after the ranks */
    bool is_told;
};

static void describe(const struct lc_worker *w, struct rank_line *line)
{
    char how[REPORT_TEXT_MAX / 2];

    report_outcome(w, how, sizeof(how));
    if (w->outcome == LC_OUT_STOPPED)
        snprintf(line->text, sizeof(line->text), "stopped by crun with %s: %s",
            signal_name(w->sent_signal), how);
    else
        snprintf(line->text, sizeof(line->text), "%s", how);
}

static bool is_alike(const struct rank_line *lines, int i, int k)
{
    return !lines[k].is_told && strcmp(lines[k].text, lines[i].text) == 0;
}

/* "rank 3: ..." or "ranks 0,2-5: ..." for every rank whose text equals that
 * of the rank at index i; marks them as told. */
static int add_alike(
    struct rank_line *lines, int n, int i, int rank_base, struct buf *out)
{
    const char *separator = "";
    int nalike = 0;
    int rc;

    for (int k = i; k < n; k++)
        nalike += is_alike(lines, i, k);
    rc = add(out, "crun:   %s ", nalike == 1 ? "rank" : "ranks");
    for (int k = i; k < n && rc == 0; k++) {
        int end = k;

        if (!is_alike(lines, i, k))
            continue;
        while (end + 1 < n && is_alike(lines, i, end + 1))
            end++;
        rc = end == k ? add(out, "%s%d", separator, rank_base + k)
                      : add(out, "%s%d-%d", separator, rank_base + k,
                            rank_base + end);
        separator = ",";
        k = end;
    }
    for (int k = i; k < n; k++)
        if (is_alike(lines, i, k))
            lines[k].is_told = true;
    return rc == 0 ? add(out, ": %s\n", lines[i].text) : rc;
}

static int add_first_failure(const struct lifecycle *lc, const char *title,
    const char *host, int rank_base, struct buf *out)
{
    const struct lc_worker *w = &lc->workers[lc->first_failure];
    char how[256];

    report_outcome(w, how, sizeof(how));
    if (w->outcome == LC_OUT_NOT_BEGUN)
        return add(out,
            "crun: %s FAILED: rank %d (local rank %d, host %s) "
            "%s\n",
            title, rank_base + lc->first_failure, lc->first_failure, host, how);
    return add(out,
        "crun: %s FAILED: rank %d (local rank %d, pid %d, host %s) failed "
        "first: %s after %.3f s\n",
        title, rank_base + lc->first_failure, lc->first_failure, (int)w->pid,
        host, how,
        (double)(w->ended_ns - w->started_ns) / (double)CLOCK_NS_PER_S);
}

int report_write(const struct lifecycle *lc, const char *title,
    const char *host, int rank_base, struct buf *out)
{
    struct rank_line *lines;
    int rc = 0;

    if (lifecycle_exit_code(lc) == 0 && !lc->gave_up)
        return 0;
    lines = calloc((size_t)lc->nworkers, sizeof(*lines));
    if (lines == NULL)
        return -ENOMEM;
    for (int i = 0; i < lc->nworkers; i++)
        describe(&lc->workers[i], &lines[i]);
    if (lc->first_failure >= 0) {
        lines[lc->first_failure].is_told = true;
        rc = add_first_failure(lc, title, host, rank_base, out);
    }
    if (rc == 0 && lc->stop_signal != 0)
        rc = add(out, "crun: %s was stopped by %s sent to crun\n", title,
            signal_name(lc->stop_signal));
    else if (rc == 0 && lc->is_parent_lost)
        rc = add(out, "crun: %s was stopped since crun was killed\n", title);
    for (int i = 0; i < lc->nworkers && rc == 0; i++)
        if (!lines[i].is_told)
            rc = add_alike(lines, lc->nworkers, i, rank_base, out);
    if (rc == 0 && lc->gave_up)
        rc = add(out, "crun: processes are left that could not be ended\n");
    free(lines);
    return rc;
}
