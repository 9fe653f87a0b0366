/*
 * Whole lines from many streams into one sink, each line behind the prefix of
 * its stream. Pure: bytes in, bytes in a queue out; the time is passed in.
 */
#ifndef CRUN_AGENT_LINES_H
#define CRUN_AGENT_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/base/buf.h"

/*
 * When an unfinished line is shown: it has waited for LINES_PARTIAL_MS and no
 * other stream wrote meanwhile, so nothing will run into it soon; or it has
 * waited for LINES_PARTIAL_MAX_MS, whatever the others do. A line that is
 * written in several pieces by a busy worker is so rarely cut.
 */
#define LINES_PARTIAL_MS 100
#define LINES_PARTIAL_MAX_MS 1000

/* A longer line is passed on in pieces of this size. */
#define LINES_PIECE_MAX (64 * 1024)

struct line_stream {
    struct buf pending; /* the unfinished line, less what was shown of it */
    uint64_t since_ns; /* when the first pending byte came */
    bool is_cut; /* some of the unfinished line was shown */
    /* What begins each line in the sink; borrowed, and the owner of the
     * stream may change it between two calls. None at first. */
    const char *prefix;
    size_t prefix_len;
};

struct line_sink {
    struct buf queue; /* what is to be written */
    const void *owner; /* the stream whose unfinished line was shown */
    uint64_t last_ns; /* when something was last put in */
};

void line_stream_init(struct line_stream *s);
void line_stream_fini(struct line_stream *s);
void line_sink_init(struct line_sink *k);
void line_sink_fini(struct line_sink *k);

/* Takes n bytes; every line that they finish goes to the queue. 0 or
 * -ENOMEM. */
int line_stream_take(struct line_stream *s, struct line_sink *k,
    const char *bytes, size_t n, uint64_t now_ns);

/* True while a part of a line waits for its rest. */
static inline bool line_stream_is_partial(const struct line_stream *s)
{
    return s->pending.len > 0;
}

/* Nanoseconds until the unfinished line should be shown; 0: now. Only for a
 * stream that has one. */
uint64_t line_stream_due_ns(
    const struct line_stream *s, const struct line_sink *k, uint64_t now_ns);

/* Shows the unfinished line as far as it goes. 0 or -ENOMEM. */
int line_stream_flush(
    struct line_stream *s, struct line_sink *k, uint64_t now_ns);

/*
 * The stream has ended. Shows its unfinished line; one with a prefix gets the
 * newline that is missing, one without stays as it is until another stream
 * writes. The sink forgets the stream. 0 or -ENOMEM.
 */
int line_stream_end(
    struct line_stream *s, struct line_sink *k, uint64_t now_ns);

/*
 * Cuts bytes into lines, one a call, for who wants to look at each: 1 and the
 * line with its newline, or a piece of LINES_PIECE_MAX bytes of a longer one;
 * 0 when all bytes are taken and the rest of them is in pending; -ENOMEM. The
 * line is valid until the next call. pending has LINES_PIECE_MAX as maximum.
 */
int line_split(struct buf *pending, const char **bytes, size_t *n,
    const char **line, size_t *len);

#endif
