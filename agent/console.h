/*
 * The workers' output, and crun's own lines, on their way to crun's stdout
 * and stderr.
 *
 * A stream (one worker's stdout or stderr, the read end of a pipe) is cut
 * into lines; a sink (descriptor 1 or 2) gets whole lines of one stream at a
 * time. A line that stays unfinished for a while (lines.h) is shown as far as
 * it goes; if another stream writes before it is finished, a newline is put
 * between them, so bytes of two ranks never share a line. If descriptors 1
 * and 2 are the same file they share one sink, and each worker has one pipe
 * for both, so that what it writes stays in order.
 *
 * Nothing here blocks. A sink that takes no more (a paused pager) stops the
 * reading from workers once CONSOLE_QUEUE_MAX bytes wait, and they then
 * block in their own writes as if they wrote to it directly. A sink that
 * cannot be written to (its reader has gone, the disk is full) closes the
 * streams, so that workers get SIGPIPE or EPIPE.
 */
#ifndef CRUN_AGENT_CONSOLE_H
#define CRUN_AGENT_CONSOLE_H

#include <stdbool.h>
#include <uv.h>

#define CONSOLE_QUEUE_MAX (1024 * 1024)

struct console;

/* Prepares for at most nstreams streams. */
int console_create(struct console **out, uv_loop_t *loop, int nstreams);

/*
 * Makes the pipes of one worker. out_err[0] and [1] are what it gets as
 * descriptors 1 and 2: write ends of pipes, perhaps the same one, which the
 * caller closes once the worker has them; -1 where the descriptor is a
 * terminal, which the worker inherits. On failure nothing is left open.
 */
int console_open_streams(struct console *c, int out_err[2]);

/* Puts whole lines of crun's own on stderr, in order with the workers'. */
void console_say(struct console *c, const char *lines, size_t len);

/*
 * Call when no worker is left. Takes in what the pipes still hold, without
 * waiting for the ends of pipes that a stranger may keep open, and calls cb
 * (perhaps at once) when all of it is written or has no reader. A sink that
 * is not read keeps that from happening: whoever asked for the end decides
 * how long to wait.
 */
void console_finish(struct console *c, void (*cb)(void *arg), void *arg);

/* True if bytes were lost because a sink could not be written to though
 * its reader had not gone. */
bool console_has_lost_output(const struct console *c);

/* Closes the handles; the memory goes in the last close callback, so run
 * the loop until it is empty. Drops what is not written. Takes NULL. */
void console_destroy(struct console *c);

#endif
