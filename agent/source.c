/* See source.h. */
#include "agent/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uthash.h>

#include "rendezvous/base/log.h"

/* With its prefixes it is still in the cache when it is written. */
#define READ_SIZE (64 * 1024)
#define LOOK_MS 50
/* Reads from one source before the others have their turn; and at the end,
 * where only a stranger that holds the pipe can fill it again. */
#define TURNS_MAX 16
#define FINISH_TURNS_MAX 4096

struct source {
    struct console_stream stream; /* first: the console hands it back */
    struct sources *all;
    struct ring link;
    int fd;
    bool is_file;
    bool is_ending; /* closed when nothing is there any more */
    int nturns; /* of a pipe that is ending: reads so far */
    uv_poll_t *poll; /* of a pipe; freed by its close callback */
    off_t offset; /* of a file: what was read */
    off_t end; /* of a file that is ending: where its workers left it */
    int watch; /* of a file: inotify's number; -1: it is looked at */
    struct source_filter filter; /* its fd is owned; -1: none */
    struct buf filtered; /* its unfinished line */
    UT_hash_handle hh; /* by watch */
};

struct sources {
    uv_loop_t *loop;
    struct console *console;
    struct ring list;
    struct source *watched; /* table */
    char *read_buf; /* owned, made when it is needed */
    int inotify; /* -1: none */
    uv_poll_t inotify_poll;
    uv_timer_t look_timer;
    bool has_lost;
    int nhandles; /* of sources itself */
};

static void pump(struct source *s);

static void free_handle(uv_handle_t *handle)
{
    free(handle);
}

static void source_close(struct source *s)
{
    if (s->poll != NULL) {
        uv_poll_stop(s->poll);
        uv_close((uv_handle_t *)s->poll, free_handle);
    }
    if (s->watch >= 0) {
        inotify_rm_watch(s->all->inotify, s->watch);
        HASH_DEL(s->all->watched, s);
    }
    if (s->fd >= 0)
        close(s->fd);
    console_stream_close(&s->stream);
    if (s->filter.fd >= 0)
        close(s->filter.fd);
    buf_fini(&s->filtered);
    ring_remove(&s->link);
    free(s);
}

/* --- Filters ------------------------------------------------------------ */

static bool has_needle(
    const struct source_filter *f, const char *line, size_t n)
{
    for (const char *const *needle = f->needles; *needle != NULL; needle++)
        if (memmem(line, n, *needle, strlen(*needle)) != NULL)
            return true;
    return false;
}

static bool write_all(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t written = write(fd, bytes, n);

        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return false;
        bytes += written;
        n -= (size_t)written;
    }
    return true;
}

static void copy_line(struct source *s, const char *line, size_t n)
{
    const char *prefix;
    size_t prefix_len;

    if (!has_needle(&s->filter, line, n))
        return;
    console_stream_prefix(&s->stream, &prefix, &prefix_len);
    if (write_all(s->filter.fd, prefix, prefix_len) &&
        write_all(s->filter.fd, line, n) &&
        (line[n - 1] == '\n' || write_all(s->filter.fd, "\n", 1)))
        return;
    if (!s->all->has_lost)
        log_error(
            "logs", "a filtered log cannot be written: %s", strerror(errno));
    s->all->has_lost = true;
}

static void filter(struct source *s, const char *bytes, size_t n)
{
    const char *line;
    size_t len;
    int rc;

    while ((rc = line_split(&s->filtered, &bytes, &n, &line, &len)) == 1)
        copy_line(s, line, len);
    if (rc < 0)
        s->all->has_lost = true;
}

static void filter_rest(struct source *s)
{
    size_t n = s->filtered.len;

    /* A whole line that stands there was copied already. */
    if (n > 0 && n < LINES_PIECE_MAX && buf_bytes(&s->filtered)[n - 1] != '\n')
        copy_line(s, buf_bytes(&s->filtered), n);
}

/* --- Reading ------------------------------------------------------------ */

/* A worker may have cut off its own file: it is read again from the start. */
static ssize_t read_file(struct source *s)
{
    size_t room = READ_SIZE;
    struct stat st;
    ssize_t n;

    if (s->is_ending && s->end - s->offset < (off_t)room)
        room = s->end > s->offset ? (size_t)(s->end - s->offset) : 0;
    n = pread(s->fd, s->all->read_buf, room, s->offset);
    if (n == 0 && fstat(s->fd, &st) == 0 && st.st_size < s->offset) {
        s->offset = 0;
        n = pread(s->fd, s->all->read_buf, READ_SIZE, 0);
    }
    if (n > 0)
        s->offset += n;
    return n;
}

enum read_result { READ_MORE, READ_EMPTY, READ_END };

static enum read_result read_once(struct source *s)
{
    ssize_t n;

    do
        n = s->is_file ? read_file(s)
                       : read(s->fd, s->all->read_buf, READ_SIZE);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN)
        return s->is_ending ? READ_END : READ_EMPTY;
    if (n < 0 && s->is_file) {
        log_error("logs", "a log file cannot be read: %s", strerror(errno));
        s->all->has_lost = true;
        return READ_END;
    }
    if (n <= 0)
        return s->is_file && !s->is_ending ? READ_EMPTY : READ_END;
    if (s->filter.needles != NULL)
        filter(s, s->all->read_buf, (size_t)n);
    if (console_stream_take(&s->stream, s->all->read_buf, (size_t)n) < 0)
        return READ_END;
    return READ_MORE;
}

static void on_readable(uv_poll_t *handle, int status, int events)
{
    (void)status; /* read() tells what is wrong */
    (void)events;
    pump(handle->data);
}

static void on_look_timer(uv_timer_t *timer);

/* What was not read in these turns: a pipe's poll tells again, a file is
 * looked at in the next turn of the loop. */
static void come_again(struct source *s)
{
    if (s->poll != NULL)
        uv_poll_start(s->poll, UV_READABLE, on_readable);
    else
        uv_timer_start(&s->all->look_timer, on_look_timer, 0, 0);
}

/* Takes in what is there, as far as the console has room. */
static void pump(struct source *s)
{
    bool is_last = s->is_ending && !s->is_file;

    /* The last reads of a pipe are counted across calls: a stranger and a slow
     * console must not keep it open together. */
    for (int turn = 0;
         is_last ? s->nturns < FINISH_TURNS_MAX : turn < TURNS_MAX; turn++) {
        enum console_state state = console_stream_state(&s->stream);
        enum read_result result;

        /* A broken console is no reason to keep a file from its filter, but
         * there is nobody else who wants it. */
        if (state == CONSOLE_BROKEN &&
            (!s->is_file || s->filter.needles == NULL)) {
            source_close(s);
            return;
        }
        if (state == CONSOLE_FULL) {
            if (s->poll != NULL)
                uv_poll_stop(s->poll);
            return; /* on_ready() */
        }
        s->nturns += is_last;
        result = read_once(s);
        if (result == READ_END) {
            if (s->filter.needles != NULL)
                filter_rest(s);
            source_close(s);
            return;
        }
        if (result == READ_EMPTY) {
            if (s->poll != NULL)
                uv_poll_start(s->poll, UV_READABLE, on_readable);
            return;
        }
    }
    if (is_last)
        source_close(s); /* a stranger fills it faster than we read */
    else
        come_again(s);
}

static void on_ready(struct console_stream *stream)
{
    pump((struct source *)stream);
}

static void on_look_timer(uv_timer_t *timer)
{
    struct sources *all = timer->data;
    struct ring *next;
    bool is_needed = false;

    for (struct ring *r = all->list.next; r != &all->list; r = next) {
        struct source *s = RING_OBJECT(r, struct source, link);

        next = r->next;
        if (!s->is_file)
            continue;
        is_needed = is_needed || s->watch < 0;
        pump(s);
    }
    if (is_needed && !uv_is_active((uv_handle_t *)&all->look_timer))
        uv_timer_start(&all->look_timer, on_look_timer, LOOK_MS, 0);
}

static void on_inotify(uv_poll_t *handle, int status, int events)
{
    struct sources *all = handle->data;
    char buf[8192] __attribute__((aligned(__alignof__(struct inotify_event))));
    ssize_t n = read(all->inotify, buf, sizeof(buf));

    (void)status;
    (void)events;
    for (ssize_t at = 0; at < n;) {
        const struct inotify_event *ev =
            (const struct inotify_event *)(const void *)(buf + at);
        struct source *s;

        at += (ssize_t)(sizeof(*ev) + ev->len);
        if (ev->mask & IN_Q_OVERFLOW) {
            uv_timer_start(&all->look_timer, on_look_timer, 0, 0);
            continue;
        }
        HASH_FIND_INT(all->watched, &ev->wd, s);
        if (s != NULL)
            pump(s);
    }
}

/* --- Adding ------------------------------------------------------------- */

static int add(struct sources *all, int fd, const struct source_options *o,
    struct source **out)
{
    struct source *s = calloc(1, sizeof(*s));
    int rc;

    if (all->read_buf == NULL)
        all->read_buf = malloc(READ_SIZE);
    rc = s == NULL || all->read_buf == NULL
             ? -ENOMEM
             : console_stream_open(all->console, &s->stream, o->sink,
                   o->local_rank, o->is_prefixed, on_ready);
    if (rc < 0) {
        free(s);
        close(fd);
        return rc;
    }
    s->all = all;
    s->fd = fd;
    s->watch = -1;
    s->filter.fd = -1;
    buf_init(&s->filtered, LINES_PIECE_MAX);
    ring_add_last(&all->list, &s->link);
    *out = s;
    return 0;
}

int sources_add_pipe(
    struct sources *all, int fd, const struct source_options *options)
{
    struct source *s;
    int rc = add(all, fd, options, &s);

    if (rc < 0)
        return rc;
    s->poll = malloc(sizeof(*s->poll));
    rc = s->poll == NULL ? -ENOMEM : uv_poll_init(all->loop, s->poll, fd);
    if (rc < 0) {
        free(s->poll);
        s->poll = NULL;
        source_close(s);
        return rc;
    }
    s->poll->data = s;
    uv_poll_start(s->poll, UV_READABLE, on_readable);
    return 0;
}

/* Without inotify, or when its limits are reached, files are looked at. */
static void watch_file(struct source *s, const char *path)
{
    struct sources *all = s->all;

    if (all->inotify < 0) {
        all->inotify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
        if (all->inotify >= 0 &&
            uv_poll_init(all->loop, &all->inotify_poll, all->inotify) < 0) {
            close(all->inotify);
            all->inotify = -1;
        }
        if (all->inotify >= 0) {
            all->inotify_poll.data = all;
            all->nhandles++;
            uv_poll_start(&all->inotify_poll, UV_READABLE, on_inotify);
        }
    }
    if (all->inotify >= 0)
        s->watch = inotify_add_watch(all->inotify, path, IN_MODIFY);
    if (s->watch >= 0)
        HASH_ADD_INT(all->watched, watch, s);
    else
        uv_timer_start(&all->look_timer, on_look_timer, LOOK_MS, 0);
}

int sources_add_file(
    struct sources *all, const char *path, const struct source_options *options)
{
    struct source *s;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    int rc;

    if (fd < 0)
        return -errno;
    rc = add(all, fd, options, &s);
    if (rc < 0)
        return rc;
    s->is_file = true;
    s->filter.needles = options->filter.needles;
    if (s->filter.needles != NULL)
        s->filter.fd = fcntl(options->filter.fd, F_DUPFD_CLOEXEC, 0);
    if (s->filter.needles != NULL && s->filter.fd < 0) {
        rc = -errno;
        source_close(s);
        return rc;
    }
    watch_file(s, path);
    return 0;
}

/* --- The end ------------------------------------------------------------ */

/* First all of them take in what is there, so that equal lines can still meet
 * before the first stream ends. */
static void end_some(struct sources *all, bool with_pipes)
{
    struct ring *next;
    struct stat st;

    for (struct ring *r = all->list.next; r != &all->list; r = next) {
        struct source *s = RING_OBJECT(r, struct source, link);

        next = r->next;
        if (s->is_file || with_pipes)
            pump(s);
    }
    for (struct ring *r = all->list.next; r != &all->list; r = next) {
        struct source *s = RING_OBJECT(r, struct source, link);

        next = r->next;
        if (!s->is_file && !with_pipes)
            continue;
        s->is_ending = true;
        /* A stranger may go on writing to it. */
        s->end = s->is_file && fstat(s->fd, &st) == 0 ? st.st_size : s->offset;
        pump(s);
    }
}

void sources_end_files(struct sources *all)
{
    end_some(all, false);
}

void sources_end(struct sources *all)
{
    end_some(all, true);
}

bool sources_have_lost(const struct sources *all)
{
    return all->has_lost;
}

int sources_create(
    struct sources **out, uv_loop_t *loop, struct console *console)
{
    struct sources *all = calloc(1, sizeof(*all));

    if (all == NULL)
        return -ENOMEM;
    all->loop = loop;
    all->console = console;
    all->inotify = -1;
    ring_init(&all->list);
    uv_timer_init(loop, &all->look_timer); /* cannot fail */
    all->look_timer.data = all;
    all->nhandles = 1;
    *out = all;
    return 0;
}

static void on_closed(uv_handle_t *handle)
{
    struct sources *all = handle->data;

    if (--all->nhandles > 0)
        return;
    if (all->inotify >= 0)
        close(all->inotify);
    free(all->read_buf);
    free(all);
}

void sources_destroy(struct sources *all)
{
    if (all == NULL)
        return;
    while (!ring_is_empty(&all->list))
        source_close(RING_OBJECT(all->list.next, struct source, link));
    if (all->inotify >= 0)
        uv_close((uv_handle_t *)&all->inotify_poll, on_closed);
    uv_close((uv_handle_t *)&all->look_timer, on_closed);
}
