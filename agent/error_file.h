/*
 * The file in which a worker says why it fails: what torch's @record writes,
 * libcollective's coll_record_error(), or any program that likes to.
 *
 *   {"message": {"message": TEXT, "extraInfo": {"py_callstack": TEXT,
 *    "timestamp": UNIX SECONDS AS TEXT}}}       or
 *   {"message": TEXT, "timestamp": UNIX SECONDS AS TEXT}
 */
#ifndef CRUN_AGENT_ERROR_FILE_H
#define CRUN_AGENT_ERROR_FILE_H

#include <jansson.h>
#include <stddef.h>

/* A longer file is refused. */
#define ERROR_FILE_MAX (1024 * 1024)

struct error_file {
    json_t *json; /* owned; the whole object; NULL: none could be read */
    const char *message; /* borrowed from json; NULL: none */
    const char *traceback; /* borrowed from json; NULL: none */
    double timestamp; /* finite, seconds since 1970; 0: none */
    char problem[160]; /* why it cannot be read; "" if it can or is not there */
};

/*
 * The same from the bytes of a file, which it changes: where Python's text
 * holds what is no character (half of a UTF-16 pair, for a byte of a file's
 * name), or a NUL, U+FFFD takes its place.
 */
void error_file_parse(struct error_file *f, char *bytes, size_t len);

/* Never fails and never blocks, whatever is at path (NULL, "": nothing). */
void error_file_read(struct error_file *f, const char *path);

void error_file_fini(struct error_file *f);

#endif
