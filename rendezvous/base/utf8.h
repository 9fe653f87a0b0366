/* UTF-8, byte by byte, for bytes that may be anything. Async-signal-safe. */
#ifndef CRUN_BASE_UTF8_H
#define CRUN_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* The character that stands for bytes that are none. */
#define UTF8_REPLACEMENT 0xfffdu

/* The character that the n > 0 bytes begin with; returns how many bytes it
 * has, 1 to 4, or 0 if they begin with none. */
size_t utf8_decode(const char *bytes, size_t n, uint32_t *character);

#endif
