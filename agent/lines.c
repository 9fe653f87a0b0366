/* See lines.h. */
#include "agent/lines.h"

#include <string.h>

#include "rendezvous/base/clock.h"

void line_stream_init(struct line_stream *s)
{
    buf_init(&s->pending, LINES_PIECE_MAX);
    s->since_ns = 0;
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

/* Puts bytes of s into the queue, on a line of their own unless they go on
 * with one of s. */
static int emit(const struct line_stream *s, struct line_sink *k,
    const char *bytes, size_t n, uint64_t now_ns)
{
    int rc = 0;

    if (n == 0)
        return 0;
    k->last_ns = now_ns;
    if (k->owner != NULL && k->owner != s)
        rc = buf_append(&k->queue, "\n", 1);
    if (rc == 0)
        rc = buf_append(&k->queue, bytes, n);
    if (rc == 0)
        k->owner = bytes[n - 1] == '\n' ? NULL : s;
    return rc;
}

int line_stream_flush(
    struct line_stream *s, struct line_sink *k, uint64_t now_ns)
{
    int rc = emit(s, k, buf_bytes(&s->pending), s->pending.len, now_ns);

    if (rc == 0)
        buf_consume(&s->pending, s->pending.len);
    return rc;
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
