/* See buf.h. */
#include "rendezvous/base/buf.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define BUF_MIN_CAP 256

void buf_init(struct buf *b, size_t max)
{
    memset(b, 0, sizeof(*b));
    b->max = max;
}

void buf_fini(struct buf *b)
{
    size_t max = b->max;

    free(b->data);
    buf_init(b, max);
}

static char *reserve(struct buf *b, size_t n, bool is_exact)
{
    size_t cap;
    char *data;

    if (n > b->max || b->len > b->max - n)
        return NULL;
    if (b->data != NULL && b->cap - b->start - b->len >= n)
        return b->data + b->start + b->len;
    if (b->start > 0) {
        memmove(b->data, b->data + b->start, b->len);
        b->start = 0;
    }
    if (b->data == NULL || b->cap - b->len < n) {
        cap = b->cap < BUF_MIN_CAP ? BUF_MIN_CAP : b->cap;
        while (cap - b->len < n)
            cap *= 2;
        if (is_exact)
            cap = b->len + n;
        data = realloc(b->data, cap);
        if (data == NULL)
            return NULL;
        b->data = data;
        b->cap = cap;
    }
    return b->data + b->len;
}

char *buf_reserve(struct buf *b, size_t n)
{
    return reserve(b, n, false);
}

char *buf_reserve_exact(struct buf *b, size_t n)
{
    return reserve(b, n, true);
}

void buf_added(struct buf *b, size_t n)
{
    assert(n <= b->cap - b->start - b->len);
    b->len += n;
}

int buf_append(struct buf *b, const void *bytes, size_t n)
{
    char *dst;

    if (n == 0)
        return 0;
    dst = buf_reserve(b, n);
    if (dst == NULL)
        return n > b->max || b->len > b->max - n ? -ENOBUFS : -ENOMEM;
    memcpy(dst, bytes, n);
    b->len += n;
    return 0;
}

void buf_consume(struct buf *b, size_t n)
{
    assert(n <= b->len);
    b->start += n;
    b->len -= n;
    if (b->len == 0)
        b->start = 0;
}
