/* See error_file.h. Whatever a worker left there is only looked at. */
#include "agent/error_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Returns the bytes of a regular file, or NULL: *problem says why, unless
 * there is none. */
static char *read_file(const char *path, size_t *len, char problem[160])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;
    char *text = NULL;

    if (fd < 0) {
        if (errno != ENOENT)
            snprintf(problem, 160, "%s", strerror(errno));
        return NULL;
    }
    *len = 0;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        snprintf(problem, 160, "it is no regular file");
    else if (st.st_size > ERROR_FILE_MAX)
        snprintf(problem, 160, "it is longer than %d bytes", ERROR_FILE_MAX);
    else if (st.st_size > 0 && (text = malloc((size_t)st.st_size)) == NULL)
        snprintf(problem, 160, "out of memory");
    while (text != NULL && *len < (size_t)st.st_size) {
        ssize_t n = read(fd, text + *len, (size_t)st.st_size - *len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        *len += (size_t)n;
    }
    close(fd);
    return text;
}

static double read_timestamp(const json_t *value)
{
    if (json_is_string(value))
        return strtod(json_string_value(value), NULL);
    return json_number_value(value); /* 0 for what is no number */
}

void error_file_read(struct error_file *f, const char *path)
{
    json_error_t error;
    const json_t *message;
    const json_t *extra;
    size_t len;
    char *text;

    *f = (struct error_file){0};
    if (path == NULL || path[0] == '\0')
        return;
    text = read_file(path, &len, f->problem);
    if (text == NULL)
        return;
    f->json = json_loadb(text, len, 0, &error);
    free(text);
    if (f->json == NULL) {
        snprintf(f->problem, sizeof(f->problem),
            "it is no JSON: line %d: %.100s", error.line, error.text);
        return;
    }
    message = json_object_get(f->json, "message");
    extra = json_object_get(message, "extraInfo");
    if (json_is_object(message)) {
        f->message = json_string_value(json_object_get(message, "message"));
        f->traceback =
            json_string_value(json_object_get(extra, "py_callstack"));
        f->timestamp = read_timestamp(json_object_get(extra, "timestamp"));
    } else {
        f->message = json_string_value(message);
        f->timestamp = read_timestamp(json_object_get(f->json, "timestamp"));
    }
    if (f->message == NULL)
        snprintf(f->problem, sizeof(f->problem), "it has no \"message\"");
}

void error_file_fini(struct error_file *f)
{
    json_decref(f->json);
    f->json = NULL;
}
