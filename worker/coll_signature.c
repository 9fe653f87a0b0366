/* See coll_signature.h. */
#include "coll_signature.h"

#include <stdio.h>
#include <string.h>

static const struct coll_call *whole_of(const struct coll_call *call)
{
    return call->whole != NULL ? call->whole : call;
}

struct coll_signature coll_signature_of(const struct coll_call *call)
{
    const struct coll_call *c = whole_of(call);

    return (struct coll_signature){
        .kind = (uint8_t)c->kind,
        .dtype = (uint8_t)c->dtype,
        .op = (uint8_t)c->op,
        .root = c->root,
        .count = c->count,
        .seq = c->seq,
    };
}

bool coll_signature_is_same(
    const struct coll_signature *a, const struct coll_signature *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

void coll_signature_text(
    char *out, size_t cap, const struct coll_signature *sig)
{
    const char *kind = coll_kind_name(sig->kind);
    const char *dtype = coll_dtype_name(sig->dtype);
    unsigned long long count = sig->count;

    switch ((enum coll_kind)sig->kind) {
    case COLL_KIND_ALL_REDUCE:
        snprintf(out, cap, "%s(count=%llu, %s, %s)", kind, count, dtype,
            coll_op_name(sig->op));
        return;
    case COLL_KIND_BROADCAST:
        snprintf(out, cap, "%s(count=%llu, %s, root=%d)", kind, count, dtype,
            (int)sig->root);
        return;
    case COLL_KIND_BARRIER:
        break;
    }
    snprintf(out, cap, "%s()", kind);
}

const char *coll_call_text(char *out, size_t cap, const struct coll_call *call)
{
    if (call == NULL)
        return "coll_init";
    call = whole_of(call);
    snprintf(out, cap, "%s #%llu", coll_kind_name(call->kind),
        (unsigned long long)call->seq);
    return out;
}
