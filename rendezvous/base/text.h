/* Text to numbers, strictly: the whole text or nothing. */
#ifndef CRUN_BASE_TEXT_H
#define CRUN_BASE_TEXT_H

#include <stdint.h>

/* Decimal integer with an optional sign and nothing else around it.
 * 0, -EINVAL (no number) or -ERANGE; *out is set only on success. */
int text_to_i64(const char *text, int64_t *out);

/* A random 128-bit number as 32 hexadecimal digits and a NUL. 0 or a
 * negative errno. */
int text_random_hex(char out[33]);

#endif
