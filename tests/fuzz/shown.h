/* What every text from a stranger has to be once it is decoded. */
#ifndef CRUN_TESTS_FUZZ_SHOWN_H
#define CRUN_TESTS_FUZZ_SHOWN_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* It ends within cap bytes, and has no control characters. */
static inline bool can_be_shown(const char *text, size_t cap)
{
    size_t len = strnlen(text, cap);

    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return false;
    return len < cap;
}

#endif
