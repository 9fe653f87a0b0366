/* The worker's error file; see TORCHELASTIC_ERROR_FILE. */
#ifndef COLL_RECORD_H
#define COLL_RECORD_H

#include <limits.h>
#include <stdbool.h>

struct coll_record {
    char path[PATH_MAX];
};

/* Where the launcher wants the file. False if it wants none, or if the path
 * is too long to be one. */
bool coll_record_prepare(struct coll_record *r);

/*
 * Writes the file, with message (of any bytes) and the stack above the
 * caller, unless there is one already. Async-signal-safe once backtrace() has
 * been called in this process. Returns 0 or a negative errno.
 */
int coll_record_write(const struct coll_record *r, const char *message);

#endif
