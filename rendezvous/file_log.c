/* See file_log.h. */
#include "rendezvous/file_log.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define DELETION '-'
#define LEN_SIZE 4 /* bytes of a length field */

/* What a key may have beyond the user's: the minus sign and the slash. */
#define MARKS_MAX 2

/* Takes the length at *pos and the bytes behind it. 1; 0: they end behind
 * len, *pos is where they end at least; -EMSGSIZE. */
static int take(const char *data, size_t len, size_t max, const char *what,
    size_t *pos, struct store_bytes *out, struct err *e)
{
    size_t start = *pos + LEN_SIZE;
    uint32_t n;

    *pos = start;
    if (len < start)
        return 0;
    n = store_get_u32(data + start - LEN_SIZE);
    if (n > max)
        return err_set(e, -EMSGSIZE,
            "a %s of %" PRIu32 " bytes, which is over the limit of %zu", what,
            n, max);
    *pos = start + n;
    *out = store_bytes(data + start, n);
    return len < *pos ? 0 : 1;
}

int file_log_parse(const struct store_limits *limits, const void *data,
    size_t len, struct file_record *rec, size_t *size, struct err *e)
{
    struct file_record r = {0};
    size_t pos = 0;
    int rc;

    rc = take(data, len, limits->key_len + MARKS_MAX, "key", &pos, &r.key, e);
    if (rc == 1) {
        if (memchr(r.key.data, FILE_LOG_USER_KEY, r.key.len) == NULL)
            return err_set(e, -EPROTO, "a key without a slash");
        rc = take(data, len, limits->value_len, "value", &pos, &r.value, e);
    } else if (rc == 0) {
        pos += LEN_SIZE; /* of the value */
    }
    if (rc < 0)
        return rc;
    *size = pos;
    if (rc == 0)
        return 0;
    if (r.key.data[0] == DELETION) {
        r.is_deletion = true;
        r.key.data++;
        r.key.len--;
    }
    *rec = r;
    return 1;
}

int file_log_put_head(struct buf *out, const struct store_limits *limits,
    const struct file_record *rec)
{
    size_t key_len = rec->key.len + rec->is_deletion;
    size_t size = LEN_SIZE + key_len + LEN_SIZE;

    if (key_len > limits->key_len + MARKS_MAX ||
        rec->value.len > limits->value_len || rec->value.len > UINT32_MAX)
        return -EMSGSIZE;
    /* With the room there, nothing below fails. */
    if (buf_reserve(out, size) == NULL)
        return size > out->max - out->len ? -ENOBUFS : -ENOMEM;
    store_put_u32(out, (uint32_t)key_len);
    if (rec->is_deletion)
        store_put_u8(out, DELETION);
    buf_append(out, rec->key.data, rec->key.len);
    store_put_u32(out, (uint32_t)rec->value.len);
    return 0;
}
