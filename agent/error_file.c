/* See error_file.h. Whatever a worker left there is only looked at. */
#include "agent/error_file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
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
    else if (st.st_size == 0)
        snprintf(problem, 160, "it is empty");
    else if ((text = malloc((size_t)st.st_size)) == NULL)
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
    double seconds = json_is_string(value)
                         ? strtod(json_string_value(value), NULL)
                         : json_number_value(value); /* 0 for any other */

    return isfinite(seconds) && seconds > 0 ? seconds : 0;
}

/* The number of an escape like \u00e9 with len bytes left at it; -1: it is
 * no such escape. */
static int read_escape(const char *at, size_t len)
{
    char digits[5] = "";

    if (len < 6 || at[0] != '\\' || at[1] != 'u')
        return -1;
    memcpy(digits, at + 2, 4);
    if (strspn(digits, "0123456789abcdefABCDEF") != 4)
        return -1;
    return (int)strtol(digits, NULL, 16);
}

static bool is_half(int unit, int from)
{
    return unit >= from && unit < from + 0x400;
}

/* Makes U+FFFD of what is a valid escape in JSON, but no character. */
static void mend_escapes(char *bytes, size_t len)
{
    size_t i = 0;

    while (i < len) {
        int unit = read_escape(bytes + i, len - i);

        if (unit < 0) {
            i += bytes[i] == '\\' ? 2 : 1; /* a backslash may be escaped */
            continue;
        }
        if (is_half(unit, 0xd800) && len - i > 6 &&
            is_half(read_escape(bytes + i + 6, len - i - 6), 0xdc00))
            i += 6;
        else if (unit == 0 || is_half(unit, 0xd800) || is_half(unit, 0xdc00))
            memcpy(bytes + i + 2, "fffd", 4);
        i += 6;
    }
}

void error_file_parse(struct error_file *f, char *bytes, size_t len)
{
    json_error_t error;
    const json_t *message;
    const json_t *extra;

    *f = (struct error_file){0};
    mend_escapes(bytes, len);
    f->json = json_loadb(bytes, len, 0, &error);
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

void error_file_read(struct error_file *f, const char *path)
{
    size_t len;
    char *text;

    *f = (struct error_file){0};
    if (path == NULL || path[0] == '\0')
        return;
    text = read_file(path, &len, f->problem);
    if (text != NULL)
        error_file_parse(f, text, len);
    free(text);
}

void error_file_fini(struct error_file *f)
{
    json_decref(f->json);
    f->json = NULL;
}
