/*
 * See console.h. lines.c and fold.c decide what goes where; here are the
 * writing, and the stopping and resuming of the sources.
 *
 * Descriptors 1 and 2 were opened by somebody else, who may share them:
 * setting O_NONBLOCK on them would change them for the user's shell too. So a
 * pipe or a terminal is opened once more through /proc, which makes it ours
 * to set; a socket has a flag for each call; a file does not block. Where
 * none of that works (another user's pipe, no /proc) a sink asks poll()
 * before each write and writes a piece that what polls as writable takes
 * without blocking: PIPE_BUF bytes for a pipe, less for a terminal. For the
 * same reason (uv_poll_init sets the flag) the loop watches a full sink
 * through an epoll descriptor of ours.
 *
 * Sources are called from one place, run_ready(), and never from within what
 * they call: they are put into a list for that.
 */
#include "agent/console.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/fold.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/log.h"

#define TTY_PIECE 256
/* Of crun's own lines and its report, while nobody reads. */
#define OWN_WAITING_MAX ((size_t)8 << 20)
/* A file is given so much at a time, while more may come in the same turn of
 * the loop: few large writes cost less than many small ones. */
#define FILE_BATCH (256 * 1024)

struct console_sink {
    struct console *console;
    struct line_sink lines;
    struct fold *fold; /* owned; NULL: lines are not folded */
    struct line_stream folded; /* what leaves the fold */
    int fd; /* 1 or 2 */
    int write_fd; /* the same, or one of ours */
    size_t piece; /* bytes of one write after poll(); 0: any number */
    size_t batch; /* shorter than that, the queue waits for the turn's end */
    bool is_terminal;
    bool is_socket;
    bool is_blocked; /* watched for becoming writable */
    bool is_broken; /* cannot be written to: everything is dropped */
};

struct console {
    uv_loop_t *loop;
    struct console_settings settings;
    struct console_sink sinks[2]; /* [1] is unused when 1 and 2 are one file */
    struct console_sink *of_fd[2]; /* for descriptors 1 and 2 */
    struct line_stream own; /* crun's own lines */
    size_t own_waiting; /* bytes of them since stderr was last written out */
    struct buf prefix; /* with the time, of whoever is at it */
    struct buf folded_prefix; /* of the line that leaves a fold; that happens
                               * while somebody is at the other one */
    struct ring streams; /* all that are open */
    struct ring ready; /* whose source is to be called */
    struct console_stream *called; /* NULL once it is closed */
    uv_timer_t wake_timer; /* for ready, and to see whether it is the end */
    uv_timer_t tick_timer; /* for lines that wait */
    uint64_t tick_ns; /* when it fires, while it is active */
    uv_poll_t writable_poll;
    int writable_epoll; /* -1 until a sink was full */
    bool (*is_awaited)(const struct console *c); /* NULL: nothing is */
    void (*awaited_cb)(void *arg);
    void *awaited_arg;
    bool has_lost_output;
    int nhandles; /* not closed yet; the last one frees */
};

static void wake(struct console *c);
static void tick_in(struct console *c, uint64_t due_ns);

/* --- Sinks -------------------------------------------------------------- */

static void sink_open(struct console *c, struct console_sink *k, int fd)
{
    char path[64];
    struct stat st;

    k->console = c;
    k->fd = fd;
    k->write_fd = fd;
    k->is_terminal = isatty(fd);
    line_sink_init(&k->lines);
    line_stream_init(&k->folded);
    if (fstat(fd, &st) < 0)
        return;
    k->is_socket = S_ISSOCK(st.st_mode);
    k->batch = S_ISREG(st.st_mode) ? FILE_BATCH : 0;
    if (!k->is_terminal && !S_ISFIFO(st.st_mode))
        return;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    k->write_fd = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (k->write_fd >= 0)
        return;
    k->write_fd = fd;
    k->piece = k->is_terminal ? TTY_PIECE : PIPE_BUF;
}

static void sink_close(struct console_sink *k)
{
    line_sink_fini(&k->lines);
    line_stream_fini(&k->folded);
    fold_destroy(k->fold);
    if (k->write_fd != k->fd)
        close(k->write_fd);
}

static bool is_same_file(int a, int b)
{
    struct stat sa;
    struct stat sb;

    return fstat(a, &sa) == 0 && fstat(b, &sb) == 0 && sa.st_dev == sb.st_dev &&
           sa.st_ino == sb.st_ino;
}

/* Writes what can be written now: bytes, or a negative errno. */
static ssize_t sink_write(const struct console_sink *k)
{
    const char *bytes = buf_bytes(&k->lines.queue);
    size_t n = k->lines.queue.len;
    ssize_t written;

    if (k->piece > 0) {
        struct pollfd p = {.fd = k->fd, .events = POLLOUT};

        if (poll(&p, 1, 0) == 0)
            return -EAGAIN;
        if (n > k->piece)
            n = k->piece;
    }
    written = k->is_socket ? send(k->fd, bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL)
                           : write(k->write_fd, bytes, n);
    return written < 0 ? -errno : written;
}

static void schedule(struct console_stream *s)
{
    ring_remove(&s->ready);
    ring_add_last(&s->console->ready, &s->ready);
    wake(s->console);
}

static void sink_break(struct console *c, struct console_sink *k, int rc)
{
    k->is_broken = true;
    line_sink_fini(&k->lines);
    for (struct ring *r = c->streams.next; r != &c->streams; r = r->next) {
        struct console_stream *s = RING_OBJECT(r, struct console_stream, all);

        if (s->sink == k)
            schedule(s);
    }
    if (rc == -EPIPE || rc == -ECONNRESET)
        return; /* the reader has gone, as readers may */
    c->has_lost_output = true;
    log_error("console", "writing to %s failed: %s; output is lost",
        k->fd == STDOUT_FILENO ? "stdout" : "stderr", strerror(-rc));
}

static void on_writable(uv_poll_t *handle, int status, int events);

static int sink_watch(struct console *c, struct console_sink *k, bool is_on)
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
            k->write_fd, &ev) < 0)
        return -errno;
    k->is_blocked = is_on;
    return 0;
}

static void sink_flush(struct console *c, struct console_sink *k)
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
    if (k == c->of_fd[1] && k->lines.queue.len == 0)
        c->own_waiting = 0;
    if (n < 0 && n != -EAGAIN)
        sink_break(c, k, (int)n);
    if (k->is_broken || k->lines.queue.len == 0)
        return; /* on_writable() ends the watch: streams may wait for it */
    rc = sink_watch(c, k, true);
    if (rc < 0)
        sink_break(c, k, rc);
}

/* Unfinished lines did not age while nobody could see them. */
static void watch_partial_lines(struct console *c, const struct console_sink *k)
{
    for (struct ring *r = c->streams.next; r != &c->streams; r = r->next) {
        struct console_stream *s = RING_OBJECT(r, struct console_stream, all);

        if (s->sink != k || !line_stream_is_partial(&s->lines))
            continue;
        s->lines.since_ns = clock_now_ns();
        tick_in(c, LINES_PARTIAL_MS * CLOCK_NS_PER_MS);
    }
}

static void on_writable(uv_poll_t *handle, int status, int events)
{
    struct console *c = handle->data;

    (void)status; /* a broken sink shows when it is written to */
    (void)events;
    for (int i = 0; i < 2; i++) {
        struct console_sink *k = &c->sinks[i];

        if (!k->is_blocked)
            continue;
        sink_flush(c, k);
        if (k->is_broken || k->lines.queue.len == 0) {
            sink_watch(c, k, false);
            watch_partial_lines(c, k);
        }
        if (k->is_broken || k->lines.queue.len >= CONSOLE_QUEUE_MAX / 2)
            continue;
        for (struct ring *r = c->streams.next; r != &c->streams; r = r->next) {
            struct console_stream *s =
                RING_OBJECT(r, struct console_stream, all);

            if (s->sink == k && s->is_waiting)
                schedule(s);
        }
    }
    wake(c);
}

/* --- Prefixes ----------------------------------------------------------- */

static uint64_t wall_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * CLOCK_NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* Into c->prefix, for one rank. */
static int render(struct console *c, int local_rank)
{
    char rank[16];
    char local[16];

    buf_consume(&c->prefix, c->prefix.len);
    snprintf(rank, sizeof(rank), "%d", c->settings.rank_base + local_rank);
    snprintf(local, sizeof(local), "%d", local_rank);
    return prefix_append(
        c->settings.prefix, rank, local, wall_ns(), &c->prefix);
}

/* For a stream whose prefix holds the time, at each use. Without memory the
 * line has the time of somebody else's, or none. */
static void refresh_prefix(struct console_stream *s)
{
    struct console *c = s->console;

    if (!s->is_prefixed || s->prefix != NULL)
        return;
    if (render(c, s->local_rank) < 0)
        c->has_lost_output = true;
    s->lines.prefix = buf_bytes(&c->prefix);
    s->lines.prefix_len = c->prefix.len;
}

static int init_prefix(struct console_stream *s)
{
    struct console *c = s->console;
    int rc;

    if (!s->is_prefixed || prefix_has_time(c->settings.prefix))
        return 0;
    rc = render(c, s->local_rank);
    if (rc < 0)
        return rc;
    if (c->prefix.len == 0) {
        s->is_prefixed = false; /* an empty template */
        return 0;
    }
    s->prefix = malloc(c->prefix.len);
    if (s->prefix == NULL)
        return -ENOMEM;
    memcpy(s->prefix, buf_bytes(&c->prefix), c->prefix.len);
    s->lines.prefix = s->prefix;
    s->lines.prefix_len = c->prefix.len;
    return 0;
}

void console_stream_prefix(
    struct console_stream *s, const char **prefix, size_t *len)
{
    refresh_prefix(s);
    *prefix = s->lines.prefix;
    *len = s->lines.prefix_len;
}

/* --- Folding ------------------------------------------------------------ */

/* A line leaves the fold, behind the prefix of all its ranks. */
static void on_folded_line(void *arg, const uint64_t *ranks, const char *line,
    size_t len, uint64_t since_ns)
{
    struct console_sink *k = arg;
    struct console *c = k->console;
    const struct console_settings *set = &c->settings;
    uint64_t now_ns = clock_now_ns();
    struct buf rank;
    struct buf local;
    int rc;

    if (k->is_broken)
        return;
    buf_init(&rank, SIZE_MAX / 2);
    buf_init(&local, SIZE_MAX / 2);
    rc = fold_ranks_text(ranks, set->nranks, set->rank_base, &rank);
    if (rc == 0)
        rc = fold_ranks_text(ranks, set->nranks, 0, &local);
    if (rc == 0)
        rc = buf_append(&rank, "", 1);
    if (rc == 0)
        rc = buf_append(&local, "", 1);
    buf_consume(&c->folded_prefix, c->folded_prefix.len);
    if (rc == 0)
        rc = prefix_append(set->prefix, buf_bytes(&rank), buf_bytes(&local),
            wall_ns() - (now_ns - since_ns), &c->folded_prefix);
    if (rc == 0) {
        k->folded.prefix = buf_bytes(&c->folded_prefix);
        k->folded.prefix_len = c->folded_prefix.len;
        rc = line_stream_take(&k->folded, &k->lines, line, len, now_ns);
    }
    buf_fini(&rank);
    buf_fini(&local);
    if (rc < 0)
        c->has_lost_output = true;
}

/*
 * Whole lines go to the fold. An unfinished one that is shown early, and the
 * pieces of one that is too long, go past it, behind what the rank has there.
 */
static int take_folded(
    struct console_stream *s, const char *bytes, size_t n, uint64_t now_ns)
{
    struct console_sink *k = s->sink;
    struct buf *pending = &s->lines.pending;
    int rc = 0;

    while (n > 0 && rc == 0) {
        const char *newline = memchr(bytes, '\n', n);
        size_t len = newline == NULL ? n : (size_t)(newline - bytes) + 1;

        if (newline == NULL || s->lines.is_cut ||
            pending->len + len > LINES_PIECE_MAX) {
            if (pending->len + len >= LINES_PIECE_MAX)
                fold_flush_rank(k->fold, s->local_rank);
            rc = line_stream_take(&s->lines, &k->lines, bytes, len, now_ns);
        } else if (pending->len == 0) {
            rc = fold_add(k->fold, s->local_rank, bytes, len, now_ns);
        } else {
            rc = buf_append(pending, bytes, len);
            if (rc == 0)
                rc = fold_add(k->fold, s->local_rank, buf_bytes(pending),
                    pending->len, now_ns);
            buf_fini(pending);
        }
        bytes += len;
        n -= len;
    }
    return rc;
}

/* The last line, that nobody has seen a part of, is one like any other. */
static void end_folded(struct console_stream *s)
{
    struct buf *pending = &s->lines.pending;

    if (s->lines.is_cut || pending->len >= LINES_PIECE_MAX)
        fold_flush_rank(s->sink->fold, s->local_rank);
    else if (take_folded(s, "\n", 1, clock_now_ns()) < 0)
        s->console->has_lost_output = true;
}

static bool is_folded(const struct console_stream *s)
{
    return s->sink != NULL && s->sink->fold != NULL && s->is_prefixed;
}

/* --- Lines that wait ---------------------------------------------------- */

static void on_tick_timer(uv_timer_t *timer);

static void tick_in(struct console *c, uint64_t due_ns)
{
    uint64_t at_ns = clock_now_ns() + due_ns;

    if (due_ns == UINT64_MAX ||
        (uv_is_active((uv_handle_t *)&c->tick_timer) && c->tick_ns <= at_ns))
        return;
    c->tick_ns = at_ns;
    uv_timer_start(
        &c->tick_timer, on_tick_timer, due_ns / CLOCK_NS_PER_MS + 1, 0);
}

static void watch_lines(struct console_stream *s)
{
    if (line_stream_is_partial(&s->lines))
        tick_in(s->console, LINES_PARTIAL_MS * CLOCK_NS_PER_MS);
    if (is_folded(s))
        tick_in(s->console, fold_due_ns(s->sink->fold, clock_now_ns()));
}

static void show_partial(struct console_stream *s)
{
    struct console_sink *k = s->sink;

    refresh_prefix(s);
    if (is_folded(s))
        fold_flush_rank(k->fold, s->local_rank);
    /* Without memory it is kept and tried again with what comes next. */
    if (line_stream_flush(&s->lines, &k->lines, clock_now_ns()) == 0)
        sink_flush(s->console, k);
}

/* 0: the unfinished line is due. */
static uint64_t partial_due_ns(struct console_stream *s, uint64_t now_ns)
{
    if (s->sink == NULL || s->sink->is_broken ||
        !line_stream_is_partial(&s->lines))
        return UINT64_MAX;
    /* Its rest may be there, and nobody would see it sooner:
     * watch_partial_lines(). */
    if (s->is_waiting || s->sink->is_blocked)
        return UINT64_MAX;
    return line_stream_due_ns(&s->lines, &s->sink->lines, now_ns);
}

static void on_tick_timer(uv_timer_t *timer)
{
    struct console *c = timer->data;
    uint64_t now_ns = clock_now_ns();
    uint64_t soonest = UINT64_MAX;

    for (int i = 0; i < 2; i++) {
        struct console_sink *k = &c->sinks[i];
        uint64_t due;

        if (k->fold == NULL)
            continue;
        fold_tick(k->fold, now_ns);
        sink_flush(c, k);
        due = fold_due_ns(k->fold, now_ns);
        soonest = due < soonest ? due : soonest;
    }
    for (struct ring *r = c->streams.next; r != &c->streams; r = r->next) {
        struct console_stream *s = RING_OBJECT(r, struct console_stream, all);
        uint64_t due = partial_due_ns(s, now_ns);

        if (due > 0) {
            soonest = due < soonest ? due : soonest;
            continue;
        }
        s->is_due = true; /* unless its source has the rest */
        schedule(s);
    }
    tick_in(c, soonest);
}

/* --- Calling the sources ------------------------------------------------ */

static void run_ready(struct console *c)
{
    while (!ring_is_empty(&c->ready)) {
        struct console_stream *s =
            RING_OBJECT(c->ready.next, struct console_stream, ready);
        bool is_due = s->is_due;

        ring_remove(&s->ready);
        s->is_waiting = false;
        s->is_due = false;
        c->called = s;
        s->ready_cb(s);
        if (c->called == s && is_due && partial_due_ns(s, clock_now_ns()) == 0)
            show_partial(s);
        c->called = NULL;
    }
}

static bool is_taken(const struct console *c)
{
    for (struct ring *r = c->streams.next; r != &c->streams; r = r->next)
        if (RING_OBJECT(r, struct console_stream, all)->sink == c->of_fd[1])
            return false;
    return true;
}

static bool is_written(const struct console *c)
{
    for (int i = 0; i < 2; i++)
        if (!c->sinks[i].is_broken && c->sinks[i].lines.queue.len > 0)
            return false;
    return ring_is_empty(&c->streams);
}

static void check_awaited(struct console *c)
{
    if (c->is_awaited == NULL || !c->is_awaited(c))
        return;
    c->is_awaited = NULL;
    c->awaited_cb(c->awaited_arg);
}

static void await(struct console *c, bool (*what)(const struct console *c),
    void (*cb)(void *arg), void *arg)
{
    c->is_awaited = what;
    c->awaited_cb = cb;
    c->awaited_arg = arg;
    wake(c);
}

static void on_wake_timer(uv_timer_t *timer)
{
    struct console *c = timer->data;

    run_ready(c);
    for (int i = 0; i < 2; i++)
        if (!c->sinks[i].is_blocked)
            sink_flush(c, &c->sinks[i]);
    check_awaited(c);
}

static void wake(struct console *c)
{
    if (!uv_is_active((uv_handle_t *)&c->wake_timer))
        uv_timer_start(&c->wake_timer, on_wake_timer, 0, 0);
}

/* --- Streams ------------------------------------------------------------ */

int console_stream_open(struct console *c, struct console_stream *s, int fd,
    int local_rank, bool is_prefixed,
    void (*ready_cb)(struct console_stream *s))
{
    int rc;

    memset(s, 0, sizeof(*s));
    s->console = c;
    s->sink = fd < 0 ? NULL : c->of_fd[fd - 1];
    s->ready_cb = ready_cb;
    s->local_rank = local_rank;
    s->is_prefixed = is_prefixed;
    line_stream_init(&s->lines);
    ring_init(&s->ready);
    rc = init_prefix(s);
    if (rc < 0) {
        s->console = NULL;
        return rc;
    }
    ring_add_last(&c->streams, &s->all);
    if (is_folded(s))
        fold_join(s->sink->fold, local_rank);
    return 0;
}

enum console_state console_stream_state(struct console_stream *s)
{
    const struct console_sink *k = s->sink;

    if (k == NULL)
        return CONSOLE_OPEN;
    if (k->is_broken)
        return CONSOLE_BROKEN;
    s->is_waiting = k->is_blocked && k->lines.queue.len >= CONSOLE_QUEUE_MAX;
    return s->is_waiting ? CONSOLE_FULL : CONSOLE_OPEN;
}

int console_stream_take(struct console_stream *s, const char *bytes, size_t n)
{
    struct console *c = s->console;
    struct console_sink *k = s->sink;
    uint64_t now_ns = clock_now_ns();
    int rc;

    if (k == NULL || k->is_broken)
        return 0;
    refresh_prefix(s);
    rc = is_folded(s)
             ? take_folded(s, bytes, n, now_ns)
             : line_stream_take(&s->lines, &k->lines, bytes, n, now_ns);
    if (rc < 0) {
        c->has_lost_output = true;
        log_error("console", "out of memory: a worker's output is cut");
    }
    if (k->lines.queue.len >= k->batch)
        sink_flush(c, k);
    else
        wake(c);
    watch_lines(s);
    return rc;
}

void console_stream_close(struct console_stream *s)
{
    struct console *c = s->console;
    struct console_sink *k = s->sink;

    if (c == NULL)
        return;
    if (k != NULL && !k->is_broken) {
        refresh_prefix(s);
        if (is_folded(s) && line_stream_is_partial(&s->lines))
            end_folded(s);
        if (line_stream_end(&s->lines, &k->lines, clock_now_ns()) < 0) {
            c->has_lost_output = true;
            log_error("console", "out of memory: a worker's last line is lost");
        }
        if (is_folded(s))
            fold_leave(k->fold, s->local_rank);
        sink_flush(c, k);
    }
    line_stream_fini(&s->lines);
    free(s->prefix);
    ring_remove(&s->all);
    ring_remove(&s->ready);
    if (c->called == s)
        c->called = NULL;
    s->console = NULL;
    wake(c);
}

/* --- The console -------------------------------------------------------- */

int console_create(
    struct console **out, uv_loop_t *loop, const struct console_settings *s)
{
    struct console *c = calloc(1, sizeof(*c));
    int rc = 0;

    if (c == NULL)
        return -ENOMEM;
    c->loop = loop;
    c->settings = *s;
    c->writable_epoll = -1;
    ring_init(&c->streams);
    ring_init(&c->ready);
    buf_init(&c->prefix, SIZE_MAX / 2);
    buf_init(&c->folded_prefix, SIZE_MAX / 2);
    line_stream_init(&c->own);
    for (int i = 0; i < 2; i++) {
        struct console_sink *k = &c->sinks[i];

        sink_open(c, k, STDOUT_FILENO + i);
        if (rc == 0 && s->is_folded)
            rc = fold_create(&k->fold, s->nranks, on_folded_line, k);
    }
    if (rc < 0) {
        sink_close(&c->sinks[0]);
        sink_close(&c->sinks[1]);
        free(c);
        return rc;
    }
    c->of_fd[0] = &c->sinks[0];
    c->of_fd[1] = is_same_file(STDOUT_FILENO, STDERR_FILENO) ? &c->sinks[0]
                                                             : &c->sinks[1];
    uv_timer_init(loop, &c->wake_timer); /* cannot fail */
    c->wake_timer.data = c;
    uv_timer_init(loop, &c->tick_timer);
    c->tick_timer.data = c;
    c->nhandles = 2;
    *out = c;
    return 0;
}

void console_set_rank_base(struct console *c, int rank_base)
{
    c->settings.rank_base = rank_base;
}

void console_begin_start(struct console *c)
{
    for (int i = 0; i < 2; i++)
        if (c->sinks[i].fold != NULL)
            fold_hold(c->sinks[i].fold);
}

void console_end_start(struct console *c)
{
    for (int i = 0; i < 2; i++) {
        struct console_sink *k = &c->sinks[i];

        if (k->fold == NULL)
            continue;
        fold_unhold(k->fold);
        sink_flush(c, k);
    }
}

bool console_is_terminal(const struct console *c, int fd)
{
    return c->sinks[fd - 1].is_terminal;
}

bool console_is_one_file(const struct console *c)
{
    return c->of_fd[0] == c->of_fd[1];
}

void console_say(struct console *c, const char *lines, size_t len)
{
    struct console_sink *k = c->of_fd[1];

    if (k->is_broken || c->own_waiting + len > OWN_WAITING_MAX)
        return; /* nobody reads */
    c->own_waiting += len;
    if (line_stream_take(&c->own, &k->lines, lines, len, clock_now_ns()) == 0)
        sink_flush(c, k);
}

bool console_has_lost_output(const struct console *c)
{
    return c->has_lost_output;
}

void console_when_taken(struct console *c, void (*cb)(void *arg), void *arg)
{
    await(c, is_taken, cb, arg);
}

void console_when_written(struct console *c, void (*cb)(void *arg), void *arg)
{
    await(c, is_written, cb, arg);
}

static void on_closed(uv_handle_t *handle)
{
    struct console *c = handle->data;

    if (--c->nhandles > 0)
        return;
    for (int i = 0; i < 2; i++)
        sink_close(&c->sinks[i]);
    line_stream_fini(&c->own);
    buf_fini(&c->prefix);
    buf_fini(&c->folded_prefix);
    if (c->writable_epoll >= 0)
        close(c->writable_epoll);
    free(c);
}

void console_destroy(struct console *c)
{
    if (c == NULL)
        return;
    assert(ring_is_empty(&c->streams));
    if (c->writable_epoll >= 0)
        uv_close((uv_handle_t *)&c->writable_poll, on_closed);
    uv_close((uv_handle_t *)&c->wake_timer, on_closed);
    uv_close((uv_handle_t *)&c->tick_timer, on_closed);
}
