/* See lines.h. */
#include "agent/lines.h"

#include <errno.h>
#include <string.h>

#include "rendezvous/base/clock.h"

/* A stream keeps no more memory than this between two lines: there may be
 * hundreds of streams. */
#define PENDING_KEPT 1024
/* Room is made for so many prefixes at a time. */
#define PREFIXES_AHEAD 256

void line_stream_init(struct line_stream *s)
{
    memset(s, 0, sizeof(*s));
    buf_init(&s->pending, LINES_PIECE_MAX);
}

void line_stream_fini(struct line_stream *s)
{
    buf_fini(&s->pending);
}

/* Whoever fills the queue stops taking input while it is long; it has no
 * maximum of its own, since a line that was taken must not be lost. */
void line_sink_init(struct line_sink *k)
{
    buf_init(&k->queue, SIZE_MAX / 2);
    k->owner = NULL;
    k->last_ns = 0;
}

void line_sink_fini(struct line_sink *k)
{
    buf_fini(&k->queue);
}

/* Copies bytes, the prefix in front of every line that begins in them. */
static int put_prefixed(const struct line_stream *s, struct buf *queue,
    const char *bytes, size_t n, bool is_inside)
{
    const char *end = bytes + n;
    size_t room = 0; /* for prefixes, behind what is to be copied */
    char *dst = NULL;
    char *begin = NULL;

    while (bytes < end) {
        const char *newline = memchr(bytes, '\n', (size_t)(end - bytes));
        size_t len = (size_t)((newline == NULL ? end : newline + 1) - bytes);
        size_t head = is_inside ? 0 : s->prefix_len;

        if (dst == NULL || head > room) {
            if (dst != NULL)
                buf_added(queue, (size_t)(dst - begin));
            room = PREFIXES_AHEAD * s->prefix_len;
            begin = buf_reserve(queue, room + (size_t)(end - bytes));
            if (begin == NULL)
                return -ENOMEM;
            dst = begin;
        }
        memcpy(dst, s->prefix, head);
        memcpy(dst + head, bytes, len);
        dst += head + len;
        room -= head;
        bytes += len;
        is_inside = false;
    }
    buf_added(queue, (size_t)(dst - begin));
    return 0;
}

/* Puts bytes of s into the queue, on a line of their own unless they go on
 * with one of s. */
static int emit(struct line_stream *s, struct line_sink *k, const char *bytes,
    size_t n, uint64_t now_ns)
{
    int rc = 0;

    if (n == 0)
        return 0;
    k->last_ns = now_ns;
    if (k->owner != NULL && k->owner != s)
        rc = buf_append(&k->queue, "\n", 1);
    if (rc == 0)
        rc = s->prefix_len == 0
                 ? buf_append(&k->queue, bytes, n)
                 : put_prefixed(s, &k->queue, bytes, n, k->owner == s);
    if (rc < 0)
        return rc;
    s->is_cut = bytes[n - 1] != '\n';
    k->owner = s->is_cut ? s : NULL;
    return 0;
}

int line_stream_flush(
    struct line_stream *s, struct line_sink *k, uint64_t now_ns)
{
    int rc = emit(s, k, buf_bytes(&s->pending), s->pending.len, now_ns);

    if (rc < 0)
        return rc;
    buf_consume(&s->pending, s->pending.len);
    if (s->pending.cap > PENDING_KEPT)
        buf_fini(&s->pending);
    return 0;
}

int line_stream_take(struct line_stream *s, struct line_sink *k,
    const char *bytes, size_t n, uint64_t now_ns)
{
    const char *last = memrchr(bytes, '\n', n);
    size_t nlines = last == NULL ? 0 : (size_t)(last - bytes) + 1;
    int rc;

    if (nlines > 0) {
        /* The pending part has no newline, so these two make one piece. */
        rc = line_stream_flush(s, k, now_ns);
        if (rc == 0)
            rc = emit(s, k, bytes, nlines, now_ns);
        if (rc < 0)
            return rc;
        bytes += nlines;
        n -= nlines;
    }
    while (n > 0) {
        size_t room = LINES_PIECE_MAX - s->pending.len;
        size_t piece = n < room ? n : room;

        if (s->pending.len == 0)
            s->since_ns = now_ns;
        rc = buf_append(&s->pending, bytes, piece);
        if (rc < 0)
            return rc;
        bytes += piece;
        n -= piece;
        if (s->pending.len == LINES_PIECE_MAX) {
            rc = line_stream_flush(s, k, now_ns);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

int line_stream_end(struct line_stream *s, struct line_sink *k, uint64_t now_ns)
{
    int rc = line_stream_flush(s, k, now_ns);

    if (rc == 0 && k->owner == s && s->prefix_len > 0) {
        rc = buf_append(&k->queue, "\n", 1);
        k->owner = rc == 0 ? NULL : s;
    }
    s->is_cut = false;
    if (k->owner == s)
        k->owner = k; /* nobody's, as far as the others are concerned */
    return rc;
}

static uint64_t left(uint64_t since_ns, uint64_t wait_ms, uint64_t now_ns)
{
    uint64_t due = since_ns + wait_ms * CLOCK_NS_PER_MS;

    return due > now_ns ? due - now_ns : 0;
}

uint64_t line_stream_due_ns(
    const struct line_stream *s, const struct line_sink *k, uint64_t now_ns)
{
    uint64_t last = k->last_ns > s->since_ns ? k->last_ns : s->since_ns;
    uint64_t quiet = left(last, LINES_PARTIAL_MS, now_ns);
    uint64_t at_most = left(s->since_ns, LINES_PARTIAL_MAX_MS, now_ns);

    return quiet < at_most ? quiet : at_most;
}

int line_split(struct buf *pending, const char **bytes, size_t *n,
    const char **line, size_t *len)
{
    const char *newline = memchr(*bytes, '\n', *n);
    size_t room;
    int rc;

    /* What was handed out by the call before; a rest never looks like it. */
    if (pending->len > 0 && (pending->len == LINES_PIECE_MAX ||
                                buf_bytes(pending)[pending->len - 1] == '\n'))
        buf_consume(pending, pending->len);
    room = LINES_PIECE_MAX - pending->len;
    *len = newline == NULL ? *n : (size_t)(newline - *bytes) + 1;
    if (*len > room)
        *len = room;
    *line = *bytes;
    *bytes += *len;
    *n -= *len;
    if (pending->len == 0 &&
        (*len == LINES_PIECE_MAX || (*len > 0 && (*line)[*len - 1] == '\n')))
        return 1;
    rc = buf_append(pending, *line, *len);
    if (rc < 0)
        return rc;
    *line = buf_bytes(pending);
    *len = pending->len;
    return *len > 0 && (*len == LINES_PIECE_MAX || (*line)[*len - 1] == '\n');
}
