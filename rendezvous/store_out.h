/*
 * The bytes that a session has to send, in order: small ones copied, values
 * as references. So a value that a thousand clients read at once lies in
 * memory once.
 */
#ifndef CRUN_RENDEZVOUS_STORE_OUT_H
#define CRUN_RENDEZVOUS_STORE_OUT_H

#include <stddef.h>
#include <sys/uio.h>

#include "rendezvous/base/buf.h"
#include "rendezvous/store_keys.h"

/* Values shorter than this are copied, which is cheaper. */
#define STORE_OUT_COPY_MAX 512u

struct store_out_ref;

struct store_out {
    struct buf bytes; /* the copied ones; add to them directly */
    size_t copied_sent; /* of those, how many have been sent ever */
    struct store_out_ref *refs; /* owned; a queue like bytes */
    size_t first_ref, nrefs, cap_refs;
    size_t ref_len; /* bytes of values that are left to send */
};

void store_out_init(struct store_out *out);
void store_out_fini(struct store_out *out);

/* All bytes that are left to send. */
static inline size_t store_out_len(const struct store_out *out)
{
    return out->bytes.len + out->ref_len;
}

/* Bytes of memory that are its own, not the values'. */
size_t store_out_memory(const struct store_out *out);

/* Appends a length and the value, of which it takes a reference if it is
 * long. NULL stands for an empty value. 0 or -ENOMEM. */
int store_out_value(struct store_out *out, struct store_blob *value);

/* Fills at most max entries with what comes next; returns how many. They are
 * valid until the next change of out. */
int store_out_iov(const struct store_out *out, struct iovec *iov, int max);

/* The first n bytes have been sent, n <= store_out_len(). */
void store_out_sent(struct store_out *out, size_t n);

#endif
