/* See utf8.h. */
#include "rendezvous/base/utf8.h"

size_t utf8_decode(const char *bytes, size_t n, uint32_t *character)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char first = (unsigned char)bytes[0];
    uint32_t c;
    size_t len;

    if (first < 0x80) {
        *character = first;
        return 1;
    }
    len = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc0 || first > 0xf7 || len > n)
        return 0;
    c = first & (0xffu >> (len + 1));
    for (size_t i = 1; i < len; i++) {
        if (((unsigned char)bytes[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | ((unsigned char)bytes[i] & 0x3f);
    }
    /* Longer than needed, half of a UTF-16 pair, or beyond the last one. */
    if (c < least[len] || (c >= 0xd800 && c < 0xe000) || c > 0x10ffff)
        return 0;
    *character = c;
    return len;
}
