/*
 * A growable byte buffer with a bound. It is a queue: bytes are appended at
 * the end and consumed from the front.
 */
#ifndef CRUN_BASE_BUF_H
#define CRUN_BASE_BUF_H

#include <stddef.h>

struct buf {
    char *data; /* owned; the unread bytes start at data + start */
    size_t start;
    size_t len; /* unread bytes */
    size_t cap;
    size_t max; /* appending past max unread bytes fails with -ENOBUFS */
};

void buf_init(struct buf *b, size_t max);

/* Frees the memory; the buffer may be used again. */
void buf_fini(struct buf *b);

/* Makes room for n more bytes and returns where they go, or NULL when that
 * would exceed max or memory is out. Follow with buf_added(b, used). */
char *buf_reserve(struct buf *b, size_t n);

/* The same without room to grow further, for what ends there. */
char *buf_reserve_exact(struct buf *b, size_t n);
void buf_added(struct buf *b, size_t n);

/* 0, -ENOBUFS or -ENOMEM; on failure nothing was added. */
int buf_append(struct buf *b, const void *bytes, size_t n);

/* Drops n bytes from the front, n <= len. */
void buf_consume(struct buf *b, size_t n);

static inline const char *buf_bytes(const struct buf *b)
{
    return b->data == NULL ? "" : b->data + b->start;
}

#endif
