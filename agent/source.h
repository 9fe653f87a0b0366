/*
 * Where the console's streams come from: a pipe that a worker writes to, or a
 * file that grows, which is followed (inotify; where that is not to be had, by
 * looking every 50 ms).
 *
 * A source that the console has no room for is not read: a worker with a pipe
 * then waits in its own write, one with a file does not notice. A pipe whose
 * console is broken is closed, so that its worker gets SIGPIPE.
 */
#ifndef CRUN_AGENT_SOURCE_H
#define CRUN_AGENT_SOURCE_H

#include <stdbool.h>
#include <uv.h>

#include "agent/console.h"

struct sources;

/* For lines of a followed file that hold one of the needles. */
struct source_filter {
    const char *const *needles; /* borrowed, ended by NULL; NULL: no filter */
    int fd; /* where they are copied to, behind their prefix; a source has a
             * duplicate of its own, since it may outlive the attempt */
};

struct source_options {
    int local_rank;
    int sink; /* descriptor 1 or 2; -1: it is not shown */
    bool is_prefixed;
    struct source_filter filter;
};

int sources_create(
    struct sources **out, uv_loop_t *loop, struct console *console);

/* Takes fd, also on failure: the read end of a pipe, non-blocking. */
int sources_add_pipe(
    struct sources *s, int fd, const struct source_options *options);

/* Follows the file at path from its start. */
int sources_add_file(
    struct sources *s, const char *path, const struct source_options *options);

/* Whoever writes to files has ended: what they hold is taken in, and then
 * they are closed. */
void sources_end_files(struct sources *s);

/* Likewise for all: pipes that a stranger holds open are not waited for. */
void sources_end(struct sources *s);

/* True if a filtered line could not be written. */
bool sources_have_lost(const struct sources *s);

/* Closes them all; the memory goes in the last close callback. Takes NULL. */
void sources_destroy(struct sources *s);

#endif
