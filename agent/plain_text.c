/* See plain_text.h. */
#include "agent/plain_text.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "rendezvous/base/utf8.h"

/* How many bytes a printable character at bytes has; 0: there is none. */
static size_t measure(const char *bytes, size_t len)
{
    uint32_t c = 0; /* no character is none that can be printed */
    size_t n = utf8_decode(bytes, len, &c);

    /* Control characters, and those of 8 bits, which terminals obey, too. */
    if ((c < ' ' && c != '\t') || (c >= 0x7f && c < 0xa0))
        return 0;
    return n;
}

int plain_text_append(struct buf *out, const char *bytes, size_t len)
{
    size_t done = 0; /* bytes that are appended */
    size_t i = 0;
    int rc = 0;

    while (i < len && rc == 0) {
        size_t n = measure(bytes + i, len - i);
        char escaped[8];

        if (n > 0) {
            i += n;
            continue;
        }
        rc = buf_append(out, bytes + done, i - done);
        snprintf(escaped, sizeof(escaped), "\\x%02x", (unsigned char)bytes[i]);
        if (rc == 0)
            rc = buf_append(out, escaped, strlen(escaped));
        done = ++i;
    }
    return rc == 0 ? buf_append(out, bytes + done, i - done) : rc;
}

int plain_text_append_line(struct buf *out, const char *text, size_t max)
{
    size_t len = strcspn(text, "\r\n");
    size_t n = len;
    int rc;

    if (len > max)
        for (n = max; n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80; n--)
            ;
    rc = plain_text_append(out, text, n);
    return rc == 0 && n < len ? buf_append(out, "...", 3) : rc;
}
