/*
 * The workers' output on its way to crun's own stdout and stderr.
 *
 * A stream (one worker's stdout or stderr, the read end of a pipe) is cut
 * into lines; a sink (descriptor 1 or 2) gets whole lines of one stream at a
 * time. A line that stays unfinished for a while (lines.h) is shown as far as
 * it goes; if another stream writes before it is finished, a newline is put
 * between them, so bytes of two ranks never share a line. If descriptors 1
 * and 2 are the same file they share one sink.
 *
 * Nothing here blocks. A sink that takes no more (a paused pager) stops the
 * reading from workers once CONSOLE_QUEUE_MAX bytes wait, and they then
 * block in their own writes as if they wrote to it directly. A sink whose
 * reader has gone closes the streams, so that workers get SIGPIPE or EPIPE.
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
 * Makes the pipe of one stream to descriptor target (1 or 2). *write_end is
 * for the worker, and the caller closes it once the worker has it. If the
 * target is a terminal there is no pipe: *write_end is -1 and the worker
 * inherits the descriptor.
 */
int console_open_stream(struct console *c, int target, int *write_end);

/*
 * Call when no worker is left. Takes in what the pipes still hold, without
 * waiting for the ends of pipes that a stranger may keep open, and calls cb
 * (perhaps at once) when all of it is written or has no reader. A sink that
 * is not read keeps that from happening: whoever asked for the end decides
 * how long to wait.
 */
void console_finish(struct console *c, void (*cb)(void *arg), void *arg);

/* True if the last bytes written to descriptor target, a worker's, did not
 * end a line. */
bool console_is_mid_line(const struct console *c, int target);

/* Closes the handles; the memory goes in the last close callback, so run
 * the loop until it is empty. Drops what is not written. Takes NULL. */
void console_destroy(struct console *c);

#endif
