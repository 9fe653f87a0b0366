/* What the tests of the store share: bytes as hexadecimal text. */
#ifndef CRUN_TEST_STORE_H
#define CRUN_TEST_STORE_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/base/buf.h"
#include "rendezvous/store_codec.h"

#define GREETING "00cef7853c"

#define LENGTH_OF(array) (sizeof(array) / sizeof((array)[0]))

/* Appends the bytes of a text like "06 0100"; spaces do not count. */
static inline void put_hex(struct buf *out, const char *hex)
{
    unsigned value;

    while (*hex != '\0') {
        if (*hex == ' ') {
            hex++;
            continue;
        }
        ck_assert_int_eq(sscanf(hex, "%2x", &value), 1);
        ck_assert_int_eq(store_put_u8(out, (uint8_t)value), 0);
        hex += 2;
    }
}

static inline struct buf from_hex(const char *hex)
{
    struct buf b;

    buf_init(&b, SIZE_MAX / 2);
    put_hex(&b, hex);
    return b;
}

static inline void assert_is_hex(const char *data, size_t len, const char *hex)
{
    struct buf want = from_hex(hex);

    ck_assert_uint_eq(len, want.len);
    if (len > 0)
        ck_assert_mem_eq(data, buf_bytes(&want), len);
    buf_fini(&want);
}

static inline struct store_bytes text_bytes(const char *text)
{
    return store_bytes(text, strlen(text));
}

#define assert_bytes(bytes, text)                                              \
    ck_assert_msg(store_bytes_equal(bytes, text_bytes(text)),                  \
        "%s is '%.*s', not '%s'", #bytes, (int)(bytes).len, (bytes).data,      \
        text)

#endif
