/* See coll_signature.h. */
#include "coll_signature.h"

#include <stdio.h>
#include <string.h>

static const struct coll_call *whole_of(const struct coll_call *call)
{
    while (call->whole != NULL)
        call = call->whole;
    return call;
}

static uint8_t op_of(const struct coll_call *c)
{
    if (c->kind == COLL_KIND_ALL_TO_ALL)
        return c->count > 0 && c->sendbuf == c->recvbuf
                   ? COLL_SIGNATURE_IN_PLACE
                   : 0;
    return c->has_factor ? COLL_SIGNATURE_PREMUL : (uint8_t)c->op;
}

struct coll_signature coll_signature_of(const struct coll_call *call)
{
    const struct coll_call *c = whole_of(call);

    return (struct coll_signature){
        .kind = (uint8_t)c->kind,
        .dtype = (uint8_t)c->dtype,
        .op = op_of(c),
        .flags = (uint8_t)((c->algorithms != 0 ? COLL_SIGNATURE_FORCED : 0) |
                           (c->on_gpu ? COLL_SIGNATURE_ON_GPU : 0)),
        .root = c->root,
        .count = c->kind == COLL_KIND_ALL_TO_ALL_V ? 0 : c->count,
        .seq = (uint32_t)c->seq,
        .extra = c->extra ^ c->algorithms,
    };
}

bool coll_signature_is_same(
    const struct coll_signature *a, const struct coll_signature *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

static const char *op_name(const struct coll_signature *sig)
{
    return sig->op == COLL_SIGNATURE_PREMUL ? "premul_sum"
                                            : coll_op_name(sig->op);
}

static void write_call(char *out, size_t cap, const struct coll_signature *sig)
{
    const char *kind = coll_kind_name(sig->kind);
    const char *dtype = coll_dtype_name(sig->dtype);
    unsigned long long count = sig->count;

    switch ((enum coll_kind)sig->kind) {
    case COLL_KIND_ALL_REDUCE:
    case COLL_KIND_REDUCE_SCATTER:
        snprintf(out, cap, "%s(count=%llu, %s, %s)", kind, count, dtype,
            op_name(sig));
        return;
    case COLL_KIND_REDUCE:
        snprintf(out, cap, "%s(count=%llu, %s, %s, root=%d)", kind, count,
            dtype, op_name(sig), (int)sig->root);
        return;
    case COLL_KIND_BROADCAST_OBJECT:
        snprintf(out, cap, "%s(root=%d)", kind, (int)sig->root);
        return;
    case COLL_KIND_BROADCAST:
    case COLL_KIND_GATHER:
    case COLL_KIND_SCATTER:
        snprintf(out, cap, "%s(count=%llu, %s, root=%d)", kind, count, dtype,
            (int)sig->root);
        return;
    case COLL_KIND_ALL_GATHER:
    case COLL_KIND_ALL_TO_ALL:
        snprintf(out, cap, "%s(count=%llu, %s%s)", kind, count, dtype,
            sig->op == COLL_SIGNATURE_IN_PLACE ? ", in place" : "");
        return;
    case COLL_KIND_ALL_GATHER_V:
    case COLL_KIND_ALL_GATHER_COALESCED:
        snprintf(out, cap, "%s(sum %llu of counts %08x, %s)", kind, count,
            (unsigned)sig->extra, dtype);
        return;
    case COLL_KIND_REDUCE_SCATTER_V:
    case COLL_KIND_ALL_REDUCE_COALESCED:
    case COLL_KIND_REDUCE_SCATTER_COALESCED:
        snprintf(out, cap, "%s(sum %llu of counts %08x, %s, %s)", kind, count,
            (unsigned)sig->extra, dtype, op_name(sig));
        return;
    case COLL_KIND_ALL_TO_ALL_V:
        snprintf(out, cap, "%s(%s)", kind, dtype);
        return;
    case COLL_KIND_BARRIER:
    case COLL_KIND_GROUP_SPLIT:
    case COLL_KIND_ALL_GATHER_OBJECT:
    case COLL_KIND_GPU_CONNECT:
    case COLL_KIND_SEND:
    case COLL_KIND_RECV:
        break;
    }
    snprintf(out, cap, "%s()", kind);
}

void coll_signature_text(
    char *out, size_t cap, const struct coll_signature *sig)
{
    size_t len;

    write_call(out, cap, sig);
    len = strlen(out);
    if (sig->flags & COLL_SIGNATURE_ON_GPU) {
        snprintf(out + len, cap - len, " on a GPU");
        len = strlen(out);
    }
    if (sig->flags & COLL_SIGNATURE_FORCED)
        snprintf(out + len, cap - len, " with algorithms forced (%08x)",
            (unsigned)sig->extra);
}

const char *coll_call_text(char *out, size_t cap, const struct coll_call *call)
{
    if (call == NULL)
        return "coll_init";
    call = whole_of(call);
    if (call->kind == COLL_KIND_SEND || call->kind == COLL_KIND_RECV) {
        snprintf(out, cap, "%s, tag %d", coll_kind_name(call->kind), call->tag);
        return out;
    }
    snprintf(out, cap, "%s #%llu", coll_kind_name(call->kind),
        (unsigned long long)call->seq);
    return out;
}
