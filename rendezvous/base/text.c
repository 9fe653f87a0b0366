/* See text.h. */
#include "rendezvous/base/text.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

int text_to_i64(const char *text, int64_t *out)
{
    const char *digits = text;
    long long value;
    char *end;

    if (*digits == '+' || *digits == '-')
        digits++;
    if (!isdigit((unsigned char)*digits))
        return -EINVAL;
    errno = 0;
    value = strtoll(text, &end, 10);
    if (*end != '\0')
        return -EINVAL;
    if (errno == ERANGE)
        return -ERANGE;
    *out = value;
    return 0;
}

int text_random_hex(char out[33])
{
    unsigned char bytes[16];
    ssize_t n;

    /* So few bytes come whole or, while the kernel still gathers entropy
     * early at boot, not at all if a signal arrives. */
    do {
        n = getrandom(bytes, sizeof(bytes), 0);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;
    for (int i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}
