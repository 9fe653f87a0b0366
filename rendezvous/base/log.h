/*
 * Log lines on stderr: one write per line, so that lines of several
 * processes never mix.
 *
 *   [crun 12:03:04.567 W store] refused a connection peer=10.0.0.3:4711
 *
 * The level is read once from LOGLEVEL (the variable that torchrun reads):
 * ERROR, WARNING (the default), INFO, DEBUG, TRACE. errno is preserved.
 */
#ifndef CRUN_BASE_LOG_H
#define CRUN_BASE_LOG_H

#include <stddef.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_TRACE };

/* Reads LOGLEVEL; without this call the level is LOG_WARN. Lines begin with
 * the program (borrowed). */
void log_init(const char *program);

/*
 * Hands every finished line (its newline included) to writer instead of
 * writing it to stderr; NULL undoes that. For a process that must not block
 * in a write.
 */
void log_set_writer(
    void (*writer)(const char *line, size_t len, void *arg), void *arg);

int log_enabled(enum log_level level);

void log_write(enum log_level level, const char *component, const char *fmt,
    ...) __attribute__((format(printf, 3, 4)));

/* The level is tested before the arguments are evaluated. */
#define LOG_AT(level, ...)                                                     \
    do {                                                                       \
        if (log_enabled(level))                                                \
            log_write(level, __VA_ARGS__);                                     \
    } while (0)
#define log_error(...) LOG_AT(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) LOG_AT(LOG_WARN, __VA_ARGS__)
#define log_info(...) LOG_AT(LOG_INFO, __VA_ARGS__)
#define log_debug(...) LOG_AT(LOG_DEBUG, __VA_ARGS__)

#endif
