/*
 * See store_out.h. A reference knows how many copied bytes come before it,
 * counted from the beginning of the stream; that number wraps and only its
 * distance to copied_sent is used.
 */
#include "rendezvous/store_out.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct store_out_ref {
    struct store_blob *blob;
    size_t sent; /* bytes of the value */
    size_t at; /* copied bytes in front of it, those sent included */
};

void store_out_init(struct store_out *out)
{
    memset(out, 0, sizeof(*out));
    buf_init(&out->bytes, SIZE_MAX / 2); /* the session bounds it */
}

void store_out_fini(struct store_out *out)
{
    for (size_t i = 0; i < out->nrefs; i++)
        store_blob_unref(out->refs[out->first_ref + i].blob);
    free(out->refs);
    buf_fini(&out->bytes);
    store_out_init(out);
}

size_t store_out_memory(const struct store_out *out)
{
    return out->bytes.cap + out->cap_refs * sizeof(*out->refs);
}

/* Room for one more reference. */
static int reserve_ref(struct store_out *out)
{
    struct store_out_ref *refs;
    size_t cap;

    if (out->first_ref + out->nrefs < out->cap_refs)
        return 0;
    if (out->first_ref > out->cap_refs / 2) {
        memmove(out->refs, out->refs + out->first_ref,
            out->nrefs * sizeof(*out->refs));
        out->first_ref = 0;
        return 0;
    }
    cap = out->cap_refs > 0 ? 2 * out->cap_refs : 4;
    refs = realloc(out->refs, cap * sizeof(*refs));
    if (refs == NULL)
        return -ENOMEM;
    out->refs = refs;
    out->cap_refs = cap;
    return 0;
}

int store_out_value(struct store_out *out, struct store_blob *value)
{
    struct store_bytes bytes = {NULL, 0};
    int rc;

    if (value != NULL)
        bytes = store_blob_bytes(value);
    if (bytes.len < STORE_OUT_COPY_MAX)
        return store_put_bytes(&out->bytes, bytes);
    rc = reserve_ref(out);
    if (rc == 0)
        rc = store_put_u64(&out->bytes, bytes.len);
    if (rc < 0)
        return rc;
    out->refs[out->first_ref + out->nrefs++] = (struct store_out_ref){
        .blob = store_blob_ref(value),
        .at = out->copied_sent + out->bytes.len,
    };
    out->ref_len += bytes.len;
    return 0;
}

int store_out_iov(const struct store_out *out, struct iovec *iov, int max)
{
    size_t done = 0; /* copied bytes */
    int n = 0;

    for (size_t i = 0; i <= out->nrefs && n < max; i++) {
        const struct store_out_ref *ref =
            i < out->nrefs ? &out->refs[out->first_ref + i] : NULL;
        size_t until =
            ref != NULL ? ref->at - out->copied_sent : out->bytes.len;

        if (until > done) {
            iov[n].iov_base = (char *)buf_bytes(&out->bytes) + done;
            iov[n++].iov_len = until - done;
            done = until;
        }
        if (ref != NULL && n < max) {
            iov[n].iov_base = ref->blob->data + ref->sent;
            iov[n++].iov_len = ref->blob->len - ref->sent;
        }
    }
    return n;
}

void store_out_sent(struct store_out *out, size_t n)
{
    assert(n <= store_out_len(out));
    while (n > 0) {
        struct store_out_ref *ref =
            out->nrefs > 0 ? &out->refs[out->first_ref] : NULL;
        size_t copied =
            ref != NULL ? ref->at - out->copied_sent : out->bytes.len;
        size_t left;

        if (copied > 0) {
            copied = n < copied ? n : copied;
            buf_consume(&out->bytes, copied);
            out->copied_sent += copied;
            n -= copied;
            continue;
        }
        left = ref->blob->len - ref->sent;
        if (n < left) {
            ref->sent += n;
            out->ref_len -= n;
            return;
        }
        n -= left;
        out->ref_len -= left;
        store_blob_unref(ref->blob);
        out->first_ref++;
        out->nrefs--;
    }
    if (store_out_len(out) == 0)
        store_out_fini(out); /* nothing to send takes no memory */
}
