/*
 * crun's stdout and stderr: the lines of the workers and crun's own.
 *
 * A stream (what one worker writes to one of the two, from whatever source)
 * is cut into lines; a sink (descriptor 1 or 2) gets whole lines of one stream
 * at a time. A line that stays unfinished for a while (lines.h) is shown as
 * far as it goes; if another stream writes before it is finished, a newline
 * is put between them, so bytes of two ranks never share a line. If
 * descriptors 1 and 2 are the same file they share one sink.
 *
 * Nothing here blocks. A sink that takes no more (a paused pager) is full
 * once CONSOLE_QUEUE_MAX bytes wait: its sources then stop reading, and are
 * called when there is room. A sink that cannot be written to (its reader has
 * gone, the disk is full) is broken for ever, and its sources are told.
 */
#ifndef CRUN_AGENT_CONSOLE_H
#define CRUN_AGENT_CONSOLE_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#include "agent/lines.h"
#include "agent/prefix.h"
#include "rendezvous/base/ring.h"

#define CONSOLE_QUEUE_MAX (1024 * 1024)

struct console;
struct console_sink;

struct console_settings {
    const struct prefix *prefix; /* borrowed */
    int nranks; /* of this node */
    int rank_base; /* global rank of local rank 0 */
    bool is_folded; /* equal lines of several ranks become one (fold.h) */
};

/* Embedded in a source of lines; the members are the console's. */
struct console_stream {
    struct console *console;
    struct console_sink *sink; /* NULL: what it takes is not shown */
    void (*ready_cb)(struct console_stream *s);
    struct ring all;
    struct ring ready;
    struct line_stream lines;
    char *prefix; /* owned; NULL: none, or another one at each time */
    int local_rank;
    bool is_prefixed;
    bool is_waiting; /* for room in its sink */
    bool is_due; /* its unfinished line shall be shown */
};

enum console_state {
    CONSOLE_OPEN,
    CONSOLE_FULL, /* take nothing more to it until ready_cb is called */
    CONSOLE_BROKEN, /* what it is given is dropped */
};

int console_create(
    struct console **out, uv_loop_t *loop, const struct console_settings *s);

bool console_is_terminal(const struct console *c, int fd);

/* True if descriptors 1 and 2 are the same file. */
bool console_is_one_file(const struct console *c);

/*
 * Opens a stream to descriptor 1 or 2, or with fd -1 to nowhere. The owner
 * keeps s until console_stream_close().
 *
 * ready_cb, called from the loop only: there is room again, or the sink is
 * broken, or an unfinished line waits and its rest may be there. It takes
 * what there is, and may close any stream.
 */
int console_stream_open(struct console *c, struct console_stream *s, int fd,
    int local_rank, bool is_prefixed,
    void (*ready_cb)(struct console_stream *s));

/* Global rank of local rank 0, for streams that are opened from now on. */
void console_set_rank_base(struct console *c, int rank_base);

/* Around the start of several workers: until the last stream is open, a line
 * that every open one has may still be folded with one of a later rank. */
void console_begin_start(struct console *c);
void console_end_start(struct console *c);

/* Asking is also how a source registers to be called when a full sink has
 * room. */
enum console_state console_stream_state(struct console_stream *s);

/* Takes bytes, and writes what can be written now. On failure, which is
 * logged, the stream is of no more use. 0 or -ENOMEM. */
int console_stream_take(struct console_stream *s, const char *bytes, size_t n);

/* The prefix of the stream's lines at this moment, valid until the next call
 * to the console. It may be empty. */
void console_stream_prefix(
    struct console_stream *s, const char **prefix, size_t *len);

/* The stream has ended: an unfinished line is shown. Also for one that is
 * closed already. */
void console_stream_close(struct console_stream *s);

/* Puts whole lines of crun's own on stderr, in order with the workers'. */
void console_say(struct console *c, const char *lines, size_t len);

/* Calls cb from the loop when no stream to descriptor 2 is open. */
void console_when_taken(struct console *c, void (*cb)(void *arg), void *arg);

/*
 * Calls cb from the loop when no stream is open and all is written or has no
 * reader. A sink that is not read keeps that from happening. One of the two
 * calls at a time.
 */
void console_when_written(struct console *c, void (*cb)(void *arg), void *arg);

/* True if bytes were lost because a sink could not be written to though
 * its reader had not gone. */
bool console_has_lost_output(const struct console *c);

/* Closes the handles; the memory goes in the last close callback, so run
 * the loop until it is empty. No stream may be open. Drops what is not
 * written. Takes NULL. */
void console_destroy(struct console *c);

#endif
