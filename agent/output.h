/*
 * All that the workers print, on its way to files and to crun's stdout and
 * stderr, and the folder tree that the files are in:
 *
 *   DIR/RUN_ID_xxxxxxxx/attempt_COUNT/LOCAL_RANK/stdout.log
 *                                                stderr.log
 *                                                error.json
 *   DIR/RUN_ID_xxxxxxxx/attempt_COUNT/filtered_stdout.log
 *
 * For each stream of each worker (log_options.h):
 *
 *   redirected    the file is the worker's descriptor; nothing on the console
 *   tee'd         likewise, and the agent follows the file (inotify), so the
 *                 worker never waits for a reader and the file is verbatim
 *   not shown     the null device, or only the file
 *   otherwise     a terminal is inherited; else a pipe (console.h)
 */
#ifndef CRUN_AGENT_OUTPUT_H
#define CRUN_AGENT_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#include "agent/log_options.h"
#include "rendezvous/base/err.h"

struct output;

struct output_settings {
    const struct log_options *log; /* borrowed for the object's life */
    const char *role; /* for the prefix, as are the next two */
    const char *hostname;
    const char *run_id; /* names the run's folder; '/' in it becomes '_' */
    int nproc;
};

/* What one worker is given. */
struct output_worker {
    int out_fd; /* its descriptor 1; -1: it inherits ours */
    int err_fd; /* its descriptor 2, perhaps the same number; -1: likewise */
    const char *error_file; /* a path, or "" where there is no folder; valid
                             * until the next output_begin_attempt() */
};

/* Makes the run's folder (parents too) and checks that it can be written.
 * On failure e names the path and nothing is left behind. */
int output_create(struct output **out, uv_loop_t *loop,
    const struct output_settings *s, struct err *e);

/* The run's folder; NULL if there is none. */
const char *output_folder(const struct output *o);

/*
 * Workers of restart count are about to start: makes attempt_COUNT, or
 * attempt_COUNT.rROUND where that exists already. What is left in the files
 * and pipes of the attempt before is still taken in.
 */
int output_begin_attempt(
    struct output *o, int restart_count, int round, struct err *e);

/* The global rank of local rank 0, from the next attempt on. */
void output_set_rank_base(struct output *o, int rank_base);

/* Around the start of an attempt's workers. */
void output_begin_start(struct output *o);
void output_end_start(struct output *o);

/* Opens the files and pipes of one worker; the caller closes what it is given
 * once the worker has it. */
int output_open_worker(
    struct output *o, int local_rank, struct output_worker *w, struct err *e);

/* Path of the worker's stderr.log in this attempt; NULL if there is none. */
const char *output_stderr_path(const struct output *o, int local_rank);

/* Puts whole lines of crun's own on stderr, in order with the workers'. */
void output_say(struct output *o, const char *lines, size_t len);

/*
 * Call when no worker is left. Takes in what the pipes and files still hold,
 * without waiting for the ends of pipes that a stranger may keep open, and
 * calls cb when all that goes to stderr is in: what is said then comes behind
 * it. A console that is not read keeps that from happening: whoever asked for
 * the end decides how long to wait.
 */
void output_finish(struct output *o, void (*cb)(void *arg), void *arg);

/* After that: calls cb when everything is written or has no reader. */
void output_flush(struct output *o, void (*cb)(void *arg), void *arg);

/* True if bytes were lost: a console or file could not be written to, though
 * its reader had not gone. */
bool output_has_lost(const struct output *o);

/* Closes the handles; the memory goes in the last close callback, so run the
 * loop until it is empty. Removes a temporary folder in which nothing was
 * written. Takes NULL. */
void output_destroy(struct output *o);

#endif
