/*
 * The report as JSON (docs/report.md has the schema), and the error file for
 * whoever started crun as a worker. Files appear as a whole or not at all.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/error_file.h"
#include "agent/hints.h"
#include "agent/program.h"
#include "agent/report.h"
#include "agent/signal_names.h"
#include "rendezvous/base/clock.h"

#define REPORT_VERSION 1

static const char *const outcomes[] = {
    [LC_OUT_NONE] = "none",
    [LC_OUT_SUCCESS] = "success",
    [LC_OUT_FAILED] = "failed",
    [LC_OUT_COLLATERAL] = "collateral",
    [LC_OUT_STOPPED] = "stopped",
    [LC_OUT_NOT_BEGUN] = "not started",
};

static const char *const verdicts[] = {
    [RESTARTS_END] = "end",
    [RESTARTS_AGAIN] = "again",
    [RESTARTS_EXHAUSTED] = "restarts exhausted",
    [RESTARTS_CRASH_LOOP] = "crash loop",
};

/* Text of any bytes: JSON is UTF-8, so others are replaced. */
static json_t *text(const char *bytes)
{
    json_t *value;
    char *copy, *to;

    if (bytes == NULL)
        return json_null();
    value = json_string(bytes);
    if (value != NULL)
        return value;
    copy = strdup(bytes);
    if (copy == NULL)
        return NULL;
    for (to = copy; *to != '\0'; to++)
        if ((unsigned char)*to >= 0x80)
            *to = '?';
    value = json_string(copy);
    free(copy);
    return value;
}

static double unix_seconds(const struct report_input *in, uint64_t ns)
{
    return (double)((int64_t)ns + in->clock_offset_ns) / (double)CLOCK_NS_PER_S;
}

/* How a process ended; torchrun's number: a signal's is negative. */
static int exit_code_of(const struct lc_worker *w)
{
    if (w->outcome == LC_OUT_NOT_BEGUN)
        return program_start_code(w->start_error);
    return WIFSIGNALED(w->wait_status) ? -WTERMSIG(w->wait_status)
                                       : WEXITSTATUS(w->wait_status);
}

/* Takes value, also NULL; a report with a hole must not be written. */
static void put(json_t *object, const char *key, json_t *value, bool *is_whole)
{
    if (json_object_set_new(object, key, value) < 0)
        *is_whole = false;
}

static json_t *describe_error(
    const char *path, const struct error_file *f, bool *is_whole)
{
    json_t *error = json_object();

    put(error, "file", text(path), is_whole);
    put(error, "message", text(f->message), is_whole);
    put(error, "traceback", text(f->traceback), is_whole);
    if (f->timestamp > 0)
        put(error, "timestamp", json_real(f->timestamp), is_whole);
    if (f->problem[0] != '\0')
        put(error, "problem", text(f->problem), is_whole);
    return error;
}

static json_t *describe_worker(
    const struct report_input *in, int i, bool *is_whole)
{
    const struct lc_worker *w = &in->life->workers[i];
    const struct report_worker *more = &in->workers[i];
    struct hint_facts facts = {.program = in->program,
        .stderr_file = more->stderr_file,
        .oom_kills = in->oom_kills};
    json_t *o = json_object();
    struct error_file f;
    char hint[1024];

    put(o, "rank", json_integer(in->rank_base + i), is_whole);
    put(o, "local_rank", json_integer(i), is_whole);
    put(o, "outcome", text(outcomes[w->outcome]), is_whole);
    if (w->state != LC_WORKER_NEW && w->outcome != LC_OUT_NOT_BEGUN) {
        put(o, "pid", json_integer(w->pid), is_whole);
        put(o, "started", json_real(unix_seconds(in, w->started_ns)), is_whole);
    }
    if (w->state == LC_WORKER_ENDED) {
        put(o, "exit_code", json_integer(exit_code_of(w)), is_whole);
        put(o, "ended", json_real(unix_seconds(in, w->ended_ns)), is_whole);
        if (w->outcome != LC_OUT_NOT_BEGUN && WIFSIGNALED(w->wait_status))
            put(o, "signal", text(signal_name(WTERMSIG(w->wait_status))),
                is_whole);
    }
    if (w->sent_signal != 0)
        put(o, "sent_signal", text(signal_name(w->sent_signal)), is_whole);
    error_file_read(&f, more->error_file);
    facts.has_stack = f.traceback != NULL;
    if (f.json != NULL || f.problem[0] != '\0')
        put(o, "error", describe_error(more->error_file, &f, is_whole),
            is_whole);
    error_file_fini(&f);
    if (more->last_call != NULL)
        put(o, "last_call", text(more->last_call), is_whole);
    if (more->collateral != NULL)
        put(o, "collateral", text(more->collateral), is_whole);
    if (more->stderr_file != NULL)
        put(o, "stderr_file", text(more->stderr_file), is_whole);
    if ((w->outcome == LC_OUT_FAILED || w->outcome == LC_OUT_NOT_BEGUN) &&
        hint_for(w, &facts, hint, sizeof(hint)))
        put(o, "hint", text(hint), is_whole);
    return o;
}

/* The first failure, where another node had it. */
static json_t *describe_peer(const struct node_msg *f, bool *is_whole)
{
    const struct lc_worker w = {
        .outcome = f->error != 0 ? LC_OUT_NOT_BEGUN : LC_OUT_FAILED,
        .wait_status = f->wait_status,
        .start_error = f->error};
    json_t *o = json_object();

    put(o, "host", text(f->host), is_whole);
    put(o, "pid", json_integer(f->pid), is_whole);
    put(o, "message", text(f->text), is_whole);
    if (f->rank < 0)
        return o;
    put(o, "rank", json_integer(f->rank), is_whole);
    put(o, "local_rank", json_integer(f->local_rank), is_whole);
    put(o, "exit_code", json_integer(exit_code_of(&w)), is_whole);
    if (f->error == 0 && WIFSIGNALED(f->wait_status))
        put(o, "signal", text(signal_name(WTERMSIG(f->wait_status))), is_whole);
    put(o, "lived", json_real((double)f->lived_ns / (double)CLOCK_NS_PER_S),
        is_whole);
    return o;
}

static json_t *describe_history(const struct report_input *in, bool *is_whole)
{
    json_t *list = json_array();

    for (int i = 0; i < in->restarts->nhistory; i++) {
        const struct round_end *end = &in->restarts->history[i];
        const struct lc_worker w = {.outcome = end->outcome,
            .wait_status = end->wait_status,
            .start_error = end->start_error};
        json_t *o = json_object();

        put(o, "restart_count", json_integer(end->restart_count), is_whole);
        put(o, "rank", json_integer(in->rank_base + end->local_rank), is_whole);
        put(o, "pid", json_integer(end->pid), is_whole);
        put(o, "exit_code", json_integer(exit_code_of(&w)), is_whole);
        put(o, "lived",
            json_real((double)end->lived_ns / (double)CLOCK_NS_PER_S),
            is_whole);
        if (json_array_append_new(list, o) < 0)
            *is_whole = false;
    }
    return list;
}

/* The lines. */
static json_t *describe_collective(
    const struct report_input *in, bool *is_whole)
{
    const char *line = in->collective;
    json_t *list = json_array();

    while (line != NULL && line[0] != '\0') {
        size_t len = strcspn(line, "\n");

        if (json_array_append_new(list, json_stringn(line, len)) < 0)
            *is_whole = false;
        line += len + (line[len] == '\n');
    }
    return list;
}

/* Of the round that is reported: one that was to follow may have been called
 * off by a stop. */
static int count_restarts(const struct report_input *in)
{
    const struct restarts *r = in->restarts;

    return in->life->first_failure >= 0 && r->nhistory > 0
               ? r->history[r->nhistory - 1].restart_count
               : r->count;
}

/* NULL when out of memory. */
static json_t *describe_job(const struct report_input *in)
{
    const struct lifecycle *lc = in->life;
    json_t *o = json_object();
    json_t *workers = json_array();
    bool is_whole = true;

    put(o, "version", json_integer(REPORT_VERSION), &is_whole);
    put(o, "title", text(in->title), &is_whole);
    put(o, "program", text(in->program), &is_whole);
    put(o, "run_id", text(in->run_id), &is_whole);
    put(o, "host", text(in->host), &is_whole);
    put(o, "exit_code", json_integer(in->exit_code), &is_whole);
    put(o, "verdict", text(verdicts[in->verdict]), &is_whole);
    put(o, "restart_count", json_integer(count_restarts(in)), &is_whole);
    put(o, "max_restarts", json_integer(in->restarts->max_restarts), &is_whole);
    put(o, "stop_signal",
        lc->stop_signal != 0 ? text(signal_name(lc->stop_signal)) : json_null(),
        &is_whole);
    put(o, "log_folder", text(in->log_folder), &is_whole);
    put(o, "oom_kills",
        in->oom_kills < 0 ? json_null() : json_integer(in->oom_kills),
        &is_whole);
    put(o, "is_clean", json_boolean(!lc->gave_up), &is_whole);
    put(o, "first_failure",
        lc->first_failure >= 0
            ? describe_worker(in, lc->first_failure, &is_whole)
            : json_null(),
        &is_whole);
    put(o, "collective", describe_collective(in, &is_whole), &is_whole);
    put(o, "reason", text(in->reason), &is_whole);
    put(o, "peer_failure",
        in->peer != NULL ? describe_peer(in->peer, &is_whole) : json_null(),
        &is_whole);
    for (int i = 0; i < lc->nworkers; i++)
        if (json_array_append_new(workers, describe_worker(in, i, &is_whole)) <
            0)
            is_whole = false;
    put(o, "workers", workers, &is_whole);
    put(o, "history", describe_history(in, &is_whole), &is_whole);
    if (is_whole)
        return o;
    json_decref(o);
    return NULL;
}

/* What path leads to. A device or a pipe is nothing that a file may replace,
 * and a link shall stay one. */
static int resolve(const char *path, char **out, struct err *e)
{
    struct stat st;
    bool is_there = stat(path, &st) == 0;

    if (is_there && !S_ISREG(st.st_mode))
        return err_set(
            e, -EINVAL, "cannot write %s: it is no regular file", path);
    if (!is_there && lstat(path, &st) == 0)
        return err_set(e, -ENOENT,
            "cannot write %s: it is a symbolic link to what does not exist",
            path);
    *out = is_there ? realpath(path, NULL) : strdup(path);
    return *out != NULL ? 0
                        : err_set(e, -errno, "cannot write %s: %s", path,
                              strerror(errno));
}

static int dump(const json_t *value, size_t flags, FILE *f)
{
    errno = 0;
    if (json_dumpf(value, f, flags) < 0 || fputc('\n', f) < 0 || fflush(f) != 0)
        return errno != 0 ? -errno : -EIO;
    return 0;
}

/* Writes a file with the permissions that one by open() has. */
static int write_file(const json_t *value, size_t flags, int fd)
{
    mode_t mask = umask(0);
    FILE *f;
    int rc;

    umask(mask);
    f = fdopen(fd, "w");
    if (f == NULL) {
        rc = -errno;
        close(fd);
        return rc;
    }
    rc = fchmod(fd, 0666 & ~mask) < 0 ? -errno : dump(value, flags, f);
    if (fclose(f) != 0 && rc == 0)
        rc = -errno;
    return rc;
}

/* A new file in the same folder. *beside is the caller's, also on failure. */
static int create_beside(const char *path, char **beside)
{
    int fd;

    if (asprintf(beside, "%s.XXXXXX", path) < 0) {
        *beside = NULL;
        return -ENOMEM;
    }
    fd = mkostemp(*beside, O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int write_beside(const json_t *value, size_t flags, const char *path)
{
    char *beside;
    int fd = create_beside(path, &beside);
    int rc = fd;

    if (fd >= 0) {
        rc = write_file(value, flags, fd);
        if (rc == 0 && rename(beside, path) < 0)
            rc = -errno;
        if (rc < 0)
            unlink(beside);
    }
    free(beside);
    return rc;
}

/* Takes value, also NULL. */
static int replace_file(
    json_t *value, size_t flags, const char *path, struct err *e)
{
    char *target = NULL;
    int rc;

    if (value == NULL)
        return err_set(e, -ENOMEM, "cannot write %s: out of memory", path);
    rc = resolve(path, &target, e);
    if (rc == 0) {
        rc = write_beside(value, flags, target);
        if (rc < 0)
            err_set(e, rc, "cannot write %s: %s", path, strerror(-rc));
    }
    free(target);
    json_decref(value);
    return rc;
}

int report_check_path(const char *path, struct err *e)
{
    char *beside = NULL;
    char *target;
    int rc = resolve(path, &target, e);
    int fd;

    if (rc < 0)
        return rc;
    fd = create_beside(target, &beside);
    if (fd < 0) {
        rc = err_set(e, fd, "cannot write %s: %s", path, strerror(-fd));
    } else {
        close(fd);
        unlink(beside);
    }
    free(beside);
    free(target);
    return rc;
}

int report_write_json(
    const struct report_input *in, const char *path, struct err *e)
{
    return replace_file(describe_job(in), JSON_INDENT(2), path, e);
}

/* The error file with the exit code in it; one is made where there is none. */
static json_t *make_error(const struct report_input *in)
{
    int worker = in->life->first_failure;
    const struct lc_worker *w = &in->life->workers[worker];
    struct error_file f;
    json_t *message;
    json_t *root;
    char words[512], how[256], when[32];

    error_file_read(&f, in->workers[worker].error_file);
    root = f.json;
    message = json_object_get(root, "message");
    if (json_is_object(message)) {
        if (json_object_set_new(
                message, "errorCode", json_integer(exit_code_of(w))) == 0)
            return root;
        error_file_fini(&f);
        return NULL;
    }
    report_outcome(w, how, sizeof(how));
    snprintf(words, sizeof(words), "rank %d on %s: %s", in->rank_base + worker,
        in->host, how);
    snprintf(when, sizeof(when), "%.0f",
        f.timestamp > 0 ? f.timestamp : unix_seconds(in, w->ended_ns));
    root = json_pack("{s:{s:o, s:i, s:{s:s}}}", "message", "message",
        text(f.message != NULL ? f.message : words), "errorCode",
        exit_code_of(w), "extraInfo", "timestamp", when);
    error_file_fini(&f);
    return root;
}

int report_copy_error(
    const struct report_input *in, const char *path, struct err *e)
{
    if (in->life->first_failure < 0)
        return 0;
    return replace_file(make_error(in), JSON_ENSURE_ASCII, path, e);
}
