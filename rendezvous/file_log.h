/*
 * The records of the file that a file store lives in, without I/O. The file
 * is a log: a record is a u32 length and the key, a u32 length and the value,
 * integers little-endian; the last record of a key counts. A key that begins
 * with a minus sign deletes the key behind the sign.
 */
#ifndef CRUN_RENDEZVOUS_FILE_LOG_H
#define CRUN_RENDEZVOUS_FILE_LOG_H

#include <stdbool.h>
#include <stddef.h>

#include "rendezvous/base/buf.h"
#include "rendezvous/base/err.h"
#include "rendezvous/store_codec.h"
#include "rendezvous/store_limits.h"

/* Users' keys begin with this; the store's own do not. */
#define FILE_LOG_USER_KEY '/'

struct file_record {
    bool is_deletion;
    struct store_bytes key; /* without the minus sign of a deletion */
    struct store_bytes value;
};

/*
 * Parses the record that starts at data, of which len bytes are there.
 * Returns 1: *rec is set (it points into data), and *size bytes belong to it;
 * 0: the record is longer, and has at least *size bytes; -EPROTO (every
 * store's keys have a slash, this one has none) or -EMSGSIZE (over a limit),
 * with the reason in e.
 */
int file_log_parse(const struct store_limits *limits, const void *data,
    size_t len, struct file_record *rec, size_t *size, struct err *e);

/* Appends a record but for the bytes of its value (their number is appended).
 * 0, -EMSGSIZE (over a limit), -ENOBUFS or -ENOMEM: then nothing was
 * appended. */
int file_log_put_head(struct buf *out, const struct store_limits *limits,
    const struct file_record *rec);

#endif
