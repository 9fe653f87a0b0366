/* The calling thread's error sentence, and the names of the public enums. */
#include "backend.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[512];

coll_status_t coll_fail(coll_status_t status, const char *fmt, ...)
{
    char text[sizeof(last_error)]; /* an argument may be last_error itself */
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    memcpy(last_error, text, sizeof(last_error));
    return status;
}

void coll_fail_reword(const char *word, const char *other)
{
    const char *at = strstr(last_error, word);

    if (at != NULL)
        coll_fail(COLL_OK, "%.*s%s%s", (int)(at - last_error), last_error,
            other, at + strlen(word));
}

const char *coll_last_error(void)
{
    return last_error;
}

const char *coll_strerror(coll_status_t status)
{
    switch (status) {
#define CASE(name, value, text)                                                \
    case name:                                                                 \
        return text;
        COLL_STATUS_MAP(CASE)
#undef CASE
    }
    return "unknown status";
}

size_t coll_dtype_size(coll_dtype_t dtype)
{
    switch (dtype) {
#define CASE(symbol, name, size)                                               \
    case symbol:                                                               \
        return size;
        COLL_DTYPE_MAP(CASE)
#undef CASE
    }
    return 0;
}

const char *coll_dtype_name(coll_dtype_t dtype)
{
    switch (dtype) {
#define CASE(symbol, name, size)                                               \
    case symbol:                                                               \
        return name;
        COLL_DTYPE_MAP(CASE)
#undef CASE
    }
    return "?";
}

const char *coll_op_name(coll_op_t op)
{
    switch (op) {
#define CASE(symbol, name)                                                     \
    case symbol:                                                               \
        return name;
        COLL_OP_MAP(CASE)
#undef CASE
    }
    return "?";
}

const char *coll_kind_name(enum coll_kind kind)
{
    switch (kind) {
#define CASE(symbol, name)                                                     \
    case symbol:                                                               \
        return name;
        COLL_KIND_MAP(CASE)
#undef CASE
    }
    return "?";
}
