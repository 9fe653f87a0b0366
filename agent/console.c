/*
 * See console.h. lines.c decides what goes where; here are the pipes, the
 * writing, and the stopping and resuming of reading.
 *
 * Descriptors 1 and 2 were opened by somebody else, who may share them:
 * setting O_NONBLOCK on them would change them for the user's shell too. So
 * a sink asks poll() before each write and writes a piece that what polls as
 * writable takes without blocking: PIPE_BUF bytes for a pipe, less for a
 * terminal. For the same reason (uv_poll_init sets the flag) the loop watches
 * a full sink through an epoll descriptor of ours.
 */
#include "agent/console.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/lines.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/log.h"

#define READ_SIZE (64 * 1024)
#define TTY_PIECE 256
/* Reads from one worker before the others have their turn; and at the end,
 * where only a stranger that holds the pipe can fill it again. */
#define TURNS_MAX 8
#define FINISH_TURNS_MAX 1024

struct sink {
    struct line_sink lines;
    int fd;
    size_t piece; /* bytes of one write; 0: any number, it cannot block */
    bool is_blocked; /* watched for becoming writable */
    bool is_broken; /* cannot be written to: everything is dropped */
};

struct stream {
    struct console *console;
    struct sink *sink;
    struct line_stream lines;
    uv_poll_t poll;
    int fd; /* -1: closed */
    bool is_paused; /* not read until its sink, which is blocked, is not */
};

struct console {
    uv_loop_t *loop;
    struct sink sinks[2]; /* [1] is unused when 1 and 2 are one file */
    struct sink *of_workers[2]; /* for descriptors 1 and 2; NULL: inherited */
    struct sink *own_sink; /* stderr */
    struct line_stream own; /* crun's own lines */
    struct stream *streams;
    int nstreams; /* opened so far */
    int max_streams;
    uv_timer_t partial_timer;
    uv_poll_t writable_poll;
    int writable_epoll; /* -1 until a sink was full */
    void (*finish_cb)(void *arg);
    void *finish_arg;
    bool has_lost_output;
    int nhandles; /* not closed yet; the last one frees */
    char read_buf[READ_SIZE];
};

static void stream_close(struct stream *s);
static void pump_stream(struct stream *s);
static void resume_streams(struct console *c, const struct sink *k);
static void on_partial_timer(uv_timer_t *timer);

/* --- Sinks -------------------------------------------------------------- */

static void sink_init(struct sink *k, int fd)
{
    struct stat st;

    line_sink_init(&k->lines);
    k->fd = fd;
    if (isatty(fd))
        k->piece = TTY_PIECE;
    else if (fstat(fd, &st) == 0 &&
             (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode)))
        k->piece = PIPE_BUF;
}

static bool is_same_file(int a, int b)
{
    struct stat sa;
    struct stat sb;

    return fstat(a, &sa) == 0 && fstat(b, &sb) == 0 && sa.st_dev == sb.st_dev &&
           sa.st_ino == sb.st_ino;
}

/* Writes what can be written now: bytes, or a negative errno. */
static ssize_t sink_write(const struct sink *k)
{
    size_t n = k->lines.queue.len;
    ssize_t written;

    if (k->piece > 0) {
        struct pollfd p = {.fd = k->fd, .events = POLLOUT};

        if (poll(&p, 1, 0) == 0)
            return -EAGAIN;
        if (n > k->piece)
            n = k->piece;
    }
    written = write(k->fd, buf_bytes(&k->lines.queue), n);
    return written < 0 ? -errno : written;
}

/* Whoever writes shall learn it as without crun: by SIGPIPE or EPIPE. */
static void sink_break(struct console *c, struct sink *k, int rc)
{
    k->is_broken = true;
    line_sink_fini(&k->lines);
    for (int i = 0; i < c->nstreams; i++)
        if (c->streams[i].sink == k)
            stream_close(&c->streams[i]);
    if (rc == -EPIPE || rc == -ECONNRESET)
        return; /* the reader has gone, as readers may */
    c->has_lost_output = true;
    log_error("console", "writing to %s failed: %s; output is lost",
        k->fd == STDOUT_FILENO ? "stdout" : "stderr", strerror(-rc));
}

static void on_writable(uv_poll_t *handle, int status, int events);

static int sink_watch(struct console *c, struct sink *k, bool is_on)
{
    struct epoll_event ev = {.events = EPOLLOUT, .data.ptr = k};
    int rc;

    if (is_on == k->is_blocked)
        return 0;
    if (c->writable_epoll < 0) {
        c->writable_epoll = epoll_create1(EPOLL_CLOEXEC);
        if (c->writable_epoll < 0)
            return -errno;
        rc = uv_poll_init(c->loop, &c->writable_poll, c->writable_epoll);
        if (rc < 0) {
            close(c->writable_epoll);
            c->writable_epoll = -1;
            return rc;
        }
        c->writable_poll.data = c;
        c->nhandles++;
        uv_poll_start(&c->writable_poll, UV_READABLE, on_writable);
    }
    if (epoll_ctl(c->writable_epoll, is_on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL,
            k->fd, &ev) < 0)
        return -errno;
    k->is_blocked = is_on;
    return 0;
}

static void sink_flush(struct console *c, struct sink *k)
{
    ssize_t n = 0;
    int rc;

    while (!k->is_broken && k->lines.queue.len > 0) {
        n = sink_write(k);
        if (n == -EINTR)
            continue;
        if (n < 0)
            break;
        buf_consume(&k->lines.queue, (size_t)n);
    }
    if (n < 0 && n != -EAGAIN)
        sink_break(c, k, (int)n);
    if (k->is_broken || k->lines.queue.len == 0)
        return; /* on_writable() ends the watch: streams may wait for it */
    rc = sink_watch(c, k, true);
    if (rc < 0)
        sink_break(c, k, rc);
}

static void check_finished(struct console *c)
{
    void (*cb)(void *arg) = c->finish_cb;

    if (cb == NULL)
        return;
    for (int i = 0; i < 2; i++)
        if (!c->sinks[i].is_broken && c->sinks[i].lines.queue.len > 0)
            return;
    for (int i = 0; i < c->nstreams; i++)
        if (c->streams[i].fd >= 0)
            return;
    c->finish_cb = NULL;
    cb(c->finish_arg);
}

static void on_writable(uv_poll_t *handle, int status, int events)
{
    struct console *c = handle->data;

    (void)status; /* a broken sink shows when it is written to */
    (void)events;
    for (int i = 0; i < 2; i++) {
        struct sink *k = &c->sinks[i];

        if (!k->is_blocked)
            continue;
        sink_flush(c, k);
        if (k->is_broken || k->lines.queue.len == 0)
            sink_watch(c, k, false);
        if (!k->is_broken && k->lines.queue.len < CONSOLE_QUEUE_MAX / 2)
            resume_streams(c, k);
    }
    check_finished(c);
}

/* --- Streams ------------------------------------------------------------ */

static void stream_close(struct stream *s)
{
    if (s->fd < 0)
        return;
    uv_poll_stop(&s->poll);
    close(s->fd);
    s->fd = -1;
    if (!s->sink->is_broken &&
        line_stream_flush(&s->lines, &s->sink->lines, clock_now_ns()) < 0)
        log_error("console", "out of memory: a worker's last line is lost");
    line_stream_fini(&s->lines);
}

/* What one read came to. */
enum read_result { READ_MORE, READ_EMPTY, READ_CLOSED };

static enum read_result read_stream(struct stream *s)
{
    struct console *c = s->console;
    bool is_finishing = c->finish_cb != NULL;
    ssize_t n;

    do
        n = read(s->fd, c->read_buf, READ_SIZE);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN && !is_finishing)
        return READ_EMPTY;
    if (n <= 0) {
        stream_close(s);
        return READ_CLOSED;
    }
    if (line_stream_take(&s->lines, &s->sink->lines, c->read_buf, (size_t)n,
            clock_now_ns()) < 0) {
        c->has_lost_output = true;
        log_error("console", "out of memory: a worker's output is cut");
        stream_close(s);
        return READ_CLOSED;
    }
    /* A short read very likely emptied the pipe; the loop tells if not. */
    return n < READ_SIZE && !is_finishing ? READ_EMPTY : READ_MORE;
}

/* The timer that shows unfinished lines runs while there is one, with at
 * most this period. */
static void watch_partial(struct console *c, uint64_t due_ns)
{
    uv_timer_start(
        &c->partial_timer, on_partial_timer, due_ns / CLOCK_NS_PER_MS + 1, 0);
}

static void on_partial_timer(uv_timer_t *timer)
{
    struct console *c = timer->data;
    uint64_t now = clock_now_ns();
    uint64_t soonest = UINT64_MAX;

    for (int i = 0; i < c->nstreams; i++) {
        struct stream *s = &c->streams[i];
        uint64_t due;

        if (s->fd < 0 || !line_stream_is_partial(&s->lines))
            continue;
        /* Its rest may be in the pipe, and nobody would see it sooner. */
        if (s->is_paused || s->sink->is_blocked)
            s->lines.since_ns = now;
        due = line_stream_due_ns(&s->lines, &s->sink->lines, now);
        if (due > 0) {
            soonest = due < soonest ? due : soonest;
            continue;
        }
        if (line_stream_flush(&s->lines, &s->sink->lines, now) < 0)
            continue; /* kept; it is tried again with what comes next */
        sink_flush(c, s->sink);
    }
    if (soonest != UINT64_MAX)
        watch_partial(c, soonest);
}

static void on_readable(uv_poll_t *handle, int status, int events)
{
    (void)status; /* read() tells what is wrong */
    (void)events;
    pump_stream(handle->data);
    check_finished(((struct stream *)handle->data)->console);
}

/*
 * Takes in what the pipe holds and writes what can be written. A stream is
 * paused only if its sink is blocked, so that on_writable() resumes it. A
 * worker that writes without end must not keep the loop from the others, nor
 * from ending: hence the turns.
 */
static void pump_stream(struct stream *s)
{
    struct console *c = s->console;
    struct sink *k = s->sink;
    int max_turns = c->finish_cb != NULL ? FINISH_TURNS_MAX : TURNS_MAX;
    enum read_result result = READ_MORE;

    for (int turn = 0; s->fd >= 0 && result == READ_MORE; turn++) {
        if (turn < max_turns)
            result = read_stream(s);
        else if (c->finish_cb != NULL)
            stream_close(s);
        else
            break;
        sink_flush(c, k);
        if (k->is_blocked && k->lines.queue.len >= CONSOLE_QUEUE_MAX)
            break;
    }
    if (s->fd < 0)
        return;
    if (k->is_blocked && k->lines.queue.len >= CONSOLE_QUEUE_MAX) {
        s->is_paused = true;
        uv_poll_stop(&s->poll);
        return;
    }
    if (!uv_is_active((uv_handle_t *)&s->poll))
        uv_poll_start(&s->poll, UV_READABLE, on_readable);
    if (line_stream_is_partial(&s->lines) &&
        !uv_is_active((uv_handle_t *)&c->partial_timer))
        watch_partial(c, LINES_PARTIAL_MS * CLOCK_NS_PER_MS);
}

static void resume_streams(struct console *c, const struct sink *k)
{
    for (int i = 0; i < c->nstreams; i++)
        if (c->streams[i].sink == k && c->streams[i].is_paused) {
            c->streams[i].is_paused = false;
            pump_stream(&c->streams[i]);
        }
}

/* --- The console -------------------------------------------------------- */

int console_create(struct console **out, uv_loop_t *loop, int nstreams)
{
    struct console *c = calloc(1, sizeof(*c));

    if (c == NULL)
        return -ENOMEM;
    c->loop = loop;
    c->writable_epoll = -1;
    c->max_streams = nstreams;
    c->streams = calloc((size_t)nstreams, sizeof(*c->streams));
    if (c->streams == NULL) {
        free(c);
        return -ENOMEM;
    }
    sink_init(&c->sinks[0], STDOUT_FILENO);
    sink_init(&c->sinks[1], STDERR_FILENO);
    c->own_sink = is_same_file(STDOUT_FILENO, STDERR_FILENO) ? &c->sinks[0]
                                                             : &c->sinks[1];
    if (!isatty(STDOUT_FILENO))
        c->of_workers[0] = &c->sinks[0];
    if (!isatty(STDERR_FILENO))
        c->of_workers[1] = c->own_sink;
    line_stream_init(&c->own);
    uv_timer_init(loop, &c->partial_timer); /* cannot fail */
    c->partial_timer.data = c;
    c->nhandles = 1;
    *out = c;
    return 0;
}

/* The pipe of one stream; its write end is returned. */
static int open_stream(struct console *c, struct sink *k)
{
    struct stream *s;
    int fds[2];
    int rc;

    if (c->nstreams == c->max_streams)
        return -ENOSPC;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    s = &c->streams[c->nstreams];
    s->console = c;
    s->sink = k;
    s->fd = fds[0];
    line_stream_init(&s->lines);
    rc = uv_poll_init(c->loop, &s->poll, fds[0]); /* makes it non-blocking */
    if (rc < 0) {
        close(fds[0]);
        close(fds[1]);
        return rc;
    }
    s->poll.data = s;
    c->nstreams++;
    c->nhandles++;
    uv_poll_start(&s->poll, UV_READABLE, on_readable);
    return fds[1];
}

int console_open_streams(struct console *c, int out_err[2])
{
    int ends[2] = {-1, -1};

    for (int i = 0; i < 2; i++) {
        if (c->of_workers[i] == NULL)
            continue;
        if (i == 1 && c->of_workers[1] == c->of_workers[0])
            ends[1] = ends[0];
        else
            ends[i] = open_stream(c, c->of_workers[i]);
        if (ends[i] < 0) {
            /* The read end finds its end and closes by itself. */
            if (i == 1 && ends[0] >= 0)
                close(ends[0]);
            return ends[i];
        }
    }
    out_err[0] = ends[0];
    out_err[1] = ends[1];
    return 0;
}

void console_say(struct console *c, const char *lines, size_t len)
{
    struct sink *k = c->own_sink;

    if (k->is_broken || k->lines.queue.len >= 2 * CONSOLE_QUEUE_MAX)
        return; /* nobody reads */
    if (line_stream_take(&c->own, &k->lines, lines, len, clock_now_ns()) == 0)
        sink_flush(c, k);
}

bool console_has_lost_output(const struct console *c)
{
    return c->has_lost_output;
}

void console_finish(struct console *c, void (*cb)(void *arg), void *arg)
{
    c->finish_cb = cb;
    c->finish_arg = arg;
    for (int i = 0; i < c->nstreams; i++)
        if (c->streams[i].fd >= 0 && !c->streams[i].is_paused)
            pump_stream(&c->streams[i]);
    check_finished(c);
}

static void handle_closed(struct console *c)
{
    if (--c->nhandles > 0)
        return;
    for (int i = 0; i < 2; i++)
        line_sink_fini(&c->sinks[i].lines);
    line_stream_fini(&c->own);
    if (c->writable_epoll >= 0)
        close(c->writable_epoll);
    free(c->streams);
    free(c);
}

static void on_stream_closed(uv_handle_t *handle)
{
    handle_closed(((struct stream *)handle->data)->console);
}

static void on_own_closed(uv_handle_t *handle)
{
    handle_closed(handle->data);
}

void console_destroy(struct console *c)
{
    if (c == NULL)
        return;
    for (int i = 0; i < c->nstreams; i++) {
        stream_close(&c->streams[i]);
        uv_close((uv_handle_t *)&c->streams[i].poll, on_stream_closed);
    }
    if (c->writable_epoll >= 0)
        uv_close((uv_handle_t *)&c->writable_poll, on_own_closed);
    uv_close((uv_handle_t *)&c->partial_timer, on_own_closed);
}
