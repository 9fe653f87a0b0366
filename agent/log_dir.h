/*
 * The folder tree of one run's logs:
 *
 *   DIR/RUN_ID_xxxxxxxx/attempt_COUNT/LOCAL_RANK/NAME
 *
 * The x are random, so runs of one id do not meet. What exists is never
 * overwritten.
 *
 * Where nobody named a DIR and no log is written, what is needed is a place
 * for error files: then it is one temporary folder with files named
 * attempt_COUNT.LOCAL_RANK.NAME, since a folder for each worker would take as
 * long as starting it.
 */
#ifndef CRUN_AGENT_LOG_DIR_H
#define CRUN_AGENT_LOG_DIR_H

#include <stdbool.h>

#include "rendezvous/base/err.h"

/* What a worker writes when it fails; it makes the file itself. */
#define LOG_DIR_ERROR_FILE "error.json"

struct log_dir;

/*
 * has_logs: files beside error files are going to be made.
 *
 * Makes dir with its parents, and the run's folder in it (mode 0700). Without
 * a dir: in a folder torchelastic_xxxxxxxx of $TMPDIR or /tmp. *out is NULL
 * if dir is the null device. On failure e names the path, and what was made
 * is gone.
 */
int log_dir_create(struct log_dir **out, const char *dir, const char *run_id,
    bool has_logs, struct err *e);

/* The run's folder, an absolute path. */
const char *log_dir_path(const struct log_dir *d);

/* In a folder of our own choice, which the user does not know. */
bool log_dir_is_temporary(const struct log_dir *d);

/* Makes attempt_COUNT, or attempt_COUNT.rROUND if that exists, with a folder
 * for each local rank. */
int log_dir_begin_attempt(
    struct log_dir *d, int restart_count, int round, int nranks, struct err *e);

/* A path in the attempt: of a rank, or with rank -1 of the attempt itself.
 * The caller frees it; NULL: out of memory. */
char *log_dir_file(const struct log_dir *d, int local_rank, const char *name);

/* Creates a file that must not exist yet, for appending, close-on-exec. The
 * descriptor or a negative errno. */
int log_dir_open(struct log_dir *d, const char *path, struct err *e);

/* Frees d, and removes what no reader would miss: a run's folder without an
 * attempt, and a temporary tree in which log_dir_open() made no file and no
 * worker wrote into one. Takes NULL. */
void log_dir_destroy(struct log_dir *d);

#endif
