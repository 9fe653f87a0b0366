/* See text.h. */
#include "rendezvous/base/text.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "rendezvous/base/random.h"

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
    int rc = random_bytes(bytes, sizeof(bytes));

    if (rc < 0)
        return rc;
    for (int i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}
