/* See log.h. What is set there are the only globals of the programs. */
#include "rendezvous/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define LOG_LINE_MAX 1024

static const char *log_program = "crun";
static enum log_level log_level_now = LOG_WARN;
static void (*log_writer)(const char *line, size_t len, void *arg);
static void *log_writer_arg;

void log_set_writer(
    void (*writer)(const char *line, size_t len, void *arg), void *arg)
{
    log_writer = writer;
    log_writer_arg = arg;
}

void log_init(const char *program)
{
    static const struct {
        const char *name;
        enum log_level level;
    } names[] = {{"CRITICAL", LOG_ERROR}, {"ERROR", LOG_ERROR},
        {"WARNING", LOG_WARN}, {"WARN", LOG_WARN}, {"INFO", LOG_INFO},
        {"DEBUG", LOG_DEBUG}, {"TRACE", LOG_TRACE}};
    const char *text = getenv("LOGLEVEL");

    log_program = program;
    if (text == NULL)
        return;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcasecmp(text, names[i].name) == 0)
            log_level_now = names[i].level;
}

int log_enabled(enum log_level level)
{
    return level <= log_level_now;
}

void log_write(
    enum log_level level, const char *component, const char *fmt, ...)
{
    static const char letters[] = "EWIDT";
    char line[LOG_LINE_MAX];
    int saved_errno = errno;
    struct timespec now;
    struct tm tm;
    va_list ap;
    size_t len;
    int n;

    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &tm);
    n = snprintf(line, sizeof(line), "[%s %02d:%02d:%02d.%03ld %c %s] ",
        log_program, tm.tm_hour, tm.tm_min, tm.tm_sec, now.tv_nsec / 1000000,
        letters[level], component);
    len = (size_t)n;
    va_start(ap, fmt);
    n = vsnprintf(line + len, sizeof(line) - len, fmt, ap);
    va_end(ap);
    if (n > 0)
        len += (size_t)n;
    if (len > sizeof(line) - 1)
        len = sizeof(line) - 1; /* truncated: keep room for the newline */
    line[len++] = '\n';
    if (log_writer != NULL) {
        log_writer(line, len, log_writer_arg);
    } else if (write(STDERR_FILENO, line, len) < 0) {
        /* Nowhere is left to complain to. */
    }
    errno = saved_errno;
}
