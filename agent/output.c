/*
 * See output.h: which stream of which worker goes where. console.c writes,
 * source.c reads, log_dir.c has the folders.
 */
#include "agent/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/console.h"
#include "agent/log_dir.h"
#include "agent/prefix.h"
#include "agent/source.h"
#include "rendezvous/base/log.h"

/* Index 0 is stdout, 1 is stderr. */
static const char *const log_names[] = {"stdout.log", "stderr.log"};
static const char *const filter_names[] = {
    "filtered_stdout.log", "filtered_stderr.log"};

struct output {
    struct output_settings settings;
    struct log_dir *dir; /* NULL: there are no folders */
    struct prefix *prefix;
    struct console *console;
    struct sources *sources;
    int filter_fds[2]; /* of the attempt; -1: no filter */
    char **error_files; /* owned [nproc]; NULL: "" */
    char **stderr_files; /* owned [nproc]; NULL: none */
};

static unsigned int bit_of(int stream)
{
    return stream == 0 ? LOG_STDOUT : LOG_STDERR;
}

static bool is_teed(const struct output *o, int local_rank, int stream)
{
    return o->dir != NULL &&
           (o->settings.log->tees[local_rank] & bit_of(stream)) != 0;
}

static bool has_file(const struct output *o, int local_rank, int stream)
{
    return o->dir != NULL && ((o->settings.log->redirects[local_rank] |
                                  o->settings.log->tees[local_rank]) &
                                 bit_of(stream)) != 0;
}

static bool is_shown(const struct output *o, int local_rank)
{
    return o->settings.log->shown == NULL || o->settings.log->shown[local_rank];
}

static const char *const *needles_of(const struct output *o, int stream)
{
    return stream == 0 ? o->settings.log->stdout_needles
                       : o->settings.log->stderr_needles;
}

static bool wants_files(const struct log_options *log, int nproc)
{
    for (int i = 0; i < nproc; i++)
        if ((log->redirects[i] | log->tees[i]) != LOG_NONE)
            return true;
    return false;
}

int output_create(struct output **out, uv_loop_t *loop,
    const struct output_settings *s, struct err *e)
{
    const struct log_options *log = s->log;
    struct console_settings console = {
        .nranks = s->nproc, .is_folded = log->is_folded};
    struct output *o = calloc(1, sizeof(*o));
    int rc;

    if (o == NULL)
        return err_set(e, -ENOMEM, "out of memory");
    o->settings = *s;
    o->filter_fds[0] = o->filter_fds[1] = -1;
    rc = log_dir_create(
        &o->dir, log->dir, s->run_id, wants_files(log, s->nproc), e);
    if (rc < 0)
        goto fail;
    o->error_files = calloc((size_t)s->nproc, sizeof(char *));
    o->stderr_files = calloc((size_t)s->nproc, sizeof(char *));
    rc = o->error_files == NULL || o->stderr_files == NULL ? -ENOMEM : 0;
    if (rc == 0)
        rc = prefix_create(&o->prefix,
            log->prefix != NULL ? log->prefix : PREFIX_DEFAULT,
            log->has_timestamps, s->role, s->hostname);
    console.prefix = o->prefix;
    if (rc == 0)
        rc = console_create(&o->console, loop, &console);
    if (rc == 0)
        rc = sources_create(&o->sources, loop, o->console);
    if (rc < 0) {
        err_set(e, rc, "cannot set up the output: %s", strerror(-rc));
        goto fail;
    }
    if (o->dir != NULL && log_dir_is_temporary(o->dir) &&
        wants_files(log, s->nproc))
        log_warn("logs", "the workers' output is in %s", log_dir_path(o->dir));
    *out = o;
    return 0;
fail:
    output_destroy(o);
    return rc;
}

const char *output_folder(const struct output *o)
{
    return o->dir == NULL ? NULL : log_dir_path(o->dir);
}

static void forget_attempt(struct output *o)
{
    for (int i = 0; i < 2; i++) {
        if (o->filter_fds[i] >= 0)
            close(o->filter_fds[i]);
        o->filter_fds[i] = -1;
    }
    for (int i = 0; i < o->settings.nproc; i++) {
        if (o->error_files != NULL)
            free(o->error_files[i]);
        if (o->stderr_files != NULL)
            free(o->stderr_files[i]);
        if (o->error_files != NULL)
            o->error_files[i] = NULL;
        if (o->stderr_files != NULL)
            o->stderr_files[i] = NULL;
    }
}

/* A file in the attempt; local_rank -1: of all. */
static int open_log(struct output *o, int local_rank, const char *name,
    char **path, struct err *e)
{
    *path = log_dir_file(o->dir, local_rank, name);
    if (*path == NULL)
        return err_set(e, -ENOMEM, "out of memory for the name of a log file");
    return log_dir_open(o->dir, *path, e);
}

static bool has_teed(const struct output *o, int stream)
{
    for (int i = 0; i < o->settings.nproc; i++)
        if (is_teed(o, i, stream))
            return true;
    return false;
}

int output_begin_attempt(
    struct output *o, int restart_count, int round, struct err *e)
{
    int rc = 0;

    sources_end_files(o->sources);
    forget_attempt(o);
    if (o->dir == NULL)
        return 0;
    rc = log_dir_begin_attempt(
        o->dir, restart_count, round, o->settings.nproc, e);
    for (int i = 0; i < 2 && rc == 0; i++) {
        char *path = NULL;

        if (needles_of(o, i) == NULL || !has_teed(o, i))
            continue; /* only what is tee'd is filtered */
        o->filter_fds[i] = open_log(o, -1, filter_names[i], &path, e);
        rc = o->filter_fds[i] < 0 ? o->filter_fds[i] : 0;
        free(path);
    }
    return rc;
}

void output_set_rank_base(struct output *o, int rank_base)
{
    console_set_rank_base(o->console, rank_base);
}

void output_begin_start(struct output *o)
{
    console_begin_start(o->console);
}

void output_end_start(struct output *o)
{
    console_end_start(o->console);
}

/* --- One stream --------------------------------------------------------- */

/* The file, and if it is tee'd or filtered the follower. */
static int open_file(
    struct output *o, int local_rank, int stream, int *fd, struct err *e)
{
    const struct source_options options = {.local_rank = local_rank,
        .sink = is_shown(o, local_rank) ? stream + 1 : -1,
        .is_prefixed = true,
        .filter = {.needles = o->filter_fds[stream] >= 0 ? needles_of(o, stream)
                                                         : NULL,
            .fd = o->filter_fds[stream]}};
    char *path = NULL;
    int rc = 0;

    *fd = open_log(o, local_rank, log_names[stream], &path, e);
    if (*fd >= 0 && is_teed(o, local_rank, stream) &&
        (options.sink > 0 || options.filter.needles != NULL)) {
        rc = sources_add_file(o->sources, path, &options);
        if (rc < 0)
            err_set(e, rc, "cannot follow %s: %s", path, strerror(-rc));
    }
    if (stream == 1) {
        o->stderr_files[local_rank] = path;
        path = NULL;
    }
    free(path);
    return *fd < 0 ? *fd : rc;
}

/* Whether lines that are not tee'd, too, get their prefix. */
static bool is_marked(const struct output *o)
{
    return o->settings.log->is_folded || o->settings.log->has_timestamps;
}

static int open_pipe(
    struct output *o, int local_rank, int stream, int *fd, struct err *e)
{
    const struct source_options options = {.local_rank = local_rank,
        .sink = stream + 1,
        .is_prefixed = is_marked(o)};
    int ends[2];
    int rc;

    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_set(e, -errno, "cannot make a pipe: %s", strerror(errno));
    fcntl(ends[0], F_SETFL, O_NONBLOCK); /* a new pipe has no other flag */
    *fd = ends[1];
    rc = sources_add_pipe(o->sources, ends[0], &options);
    if (rc < 0)
        return err_set(e, rc, "cannot read a pipe: %s", strerror(-rc));
    return 0;
}

static int open_null(int *fd, struct err *e)
{
    *fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (*fd < 0)
        return err_set(e, -errno, "/dev/null: %s", strerror(errno));
    return 0;
}

static int open_stream(
    struct output *o, int local_rank, int stream, int *fd, struct err *e)
{
    if (has_file(o, local_rank, stream))
        return open_file(o, local_rank, stream, fd, e);
    if (!is_shown(o, local_rank))
        return open_null(fd, e);
    if (console_is_terminal(o->console, stream + 1) && !is_marked(o))
        return 0; /* inherited */
    return open_pipe(o, local_rank, stream, fd, e);
}

/* One pipe for both, so that the order between them is kept. */
static bool shares_pipe(const struct output *o, int local_rank)
{
    return console_is_one_file(o->console) && !has_file(o, local_rank, 0) &&
           !has_file(o, local_rank, 1);
}

int output_open_worker(
    struct output *o, int local_rank, struct output_worker *w, struct err *e)
{
    int rc;

    *w = (struct output_worker){.out_fd = -1, .err_fd = -1, .error_file = ""};
    if (o->dir != NULL) {
        o->error_files[local_rank] =
            log_dir_file(o->dir, local_rank, LOG_DIR_ERROR_FILE);
        if (o->error_files[local_rank] == NULL)
            return err_set(e, -ENOMEM, "out of memory for an error file");
        w->error_file = o->error_files[local_rank];
    }
    rc = open_stream(o, local_rank, 0, &w->out_fd, e);
    if (rc == 0 && shares_pipe(o, local_rank))
        w->err_fd = w->out_fd;
    else if (rc == 0)
        rc = open_stream(o, local_rank, 1, &w->err_fd, e);
    if (rc == 0)
        return 0;
    if (w->out_fd >= 0)
        close(w->out_fd);
    if (w->err_fd >= 0)
        close(w->err_fd);
    w->out_fd = w->err_fd = -1;
    return rc;
}

const char *output_stderr_path(const struct output *o, int local_rank)
{
    return o->stderr_files[local_rank];
}

void output_say(struct output *o, const char *lines, size_t len)
{
    console_say(o->console, lines, len);
}

void output_finish(struct output *o, void (*cb)(void *arg), void *arg)
{
    sources_end(o->sources);
    console_when_taken(o->console, cb, arg);
}

void output_flush(struct output *o, void (*cb)(void *arg), void *arg)
{
    console_when_written(o->console, cb, arg);
}

bool output_has_lost(const struct output *o)
{
    return console_has_lost_output(o->console) || sources_have_lost(o->sources);
}

/* The prefix is the console's until its handles are closed, but only open
 * streams and the fold use it, and those end here. */
void output_destroy(struct output *o)
{
    if (o == NULL)
        return;
    sources_destroy(o->sources);
    console_destroy(o->console);
    forget_attempt(o);
    free(o->error_files);
    free(o->stderr_files);
    prefix_destroy(o->prefix);
    log_dir_destroy(o->dir);
    free(o);
}
