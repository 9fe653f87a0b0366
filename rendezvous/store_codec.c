/*
 * The TCPStore wire format; see store_codec.h. Everything that differs
 * between opcodes is the layout string of STORE_OP_MAP. A request is looked
 * at twice: scan() walks over it as its bytes arrive and checks each length
 * against its limit; once the end is known, decode() only sets pointers.
 */
#include "rendezvous/store_codec.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

static const struct {
    const char *name;
    const char *layout;
} store_ops[STORE_OP_COUNT] = {
#define STORE_OP_ROW(symbol, opcode, layout) [opcode] = {#symbol, layout},
    STORE_OP_MAP(STORE_OP_ROW)
#undef STORE_OP_ROW
};

static bool op_is_known(unsigned op)
{
    return op < STORE_OP_COUNT && store_ops[op].name != NULL;
}

const char *store_op_name(unsigned op)
{
    return op_is_known(op) ? store_ops[op].name : "?";
}

bool store_bytes_equal(struct store_bytes a, struct store_bytes b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

uint32_t store_get_u32(const void *data)
{
    uint32_t value;

    memcpy(&value, data, sizeof(value));
    return le32toh(value);
}

uint64_t store_get_u64(const void *data)
{
    uint64_t value;

    memcpy(&value, data, sizeof(value));
    return le64toh(value);
}

/* Steps over n bytes of fixed size: 1, or 0 when they are not all there. */
static int scan_fixed(struct store_parser *p, size_t len, size_t n)
{
    if (len - p->pos < n)
        return 0;
    p->pos += n;
    return 1;
}

/* Steps over a byte string, or leaves pos in front of it. */
static int scan_bytes(struct store_parser *p, const char *data, size_t len,
    size_t max, const char *what, struct err *e)
{
    uint64_t n;

    if (len - p->pos < sizeof(n))
        return 0;
    n = store_get_u64(data + p->pos);
    if (n > max)
        return err_set(e, -EMSGSIZE,
            "%s of %llu bytes in a %s request, the limit is %zu", what,
            (unsigned long long)n, store_op_name((unsigned char)data[0]), max);
    if (n > STORE_REQUEST_MAX - sizeof(n) - p->pos)
        return err_set(e, -EMSGSIZE, "a %s request of more than %zu bytes",
            store_op_name((unsigned char)data[0]), STORE_REQUEST_MAX);
    return scan_fixed(p, len, sizeof(n) + (size_t)n);
}

static int scan_key(
    struct store_parser *p, const char *data, size_t len, struct err *e)
{
    return scan_bytes(p, data, len, STORE_KEY_MAX, "a key", e);
}

static int scan_value(
    struct store_parser *p, const char *data, size_t len, struct err *e)
{
    return scan_bytes(p, data, len, STORE_VALUE_MAX, "a value", e);
}

static int scan_list(struct store_parser *p, const char *data, size_t len,
    bool pairs, struct err *e)
{
    if (!p->list_open) {
        uint64_t n;

        if (len - p->pos < sizeof(n))
            return 0;
        n = store_get_u64(data + p->pos);
        if (n > STORE_LIST_MAX)
            return err_set(e, -EMSGSIZE,
                "%llu keys in a %s request, the limit is %u",
                (unsigned long long)n, store_op_name((unsigned char)data[0]),
                STORE_LIST_MAX);
        p->pos += sizeof(n);
        p->items_left = (size_t)n * (pairs ? 2 : 1);
        p->list_open = true;
    }
    for (; p->items_left > 0; p->items_left--) {
        bool is_value = pairs && p->items_left % 2 == 1;
        int rc =
            is_value ? scan_value(p, data, len, e) : scan_key(p, data, len, e);

        if (rc <= 0)
            return rc;
    }
    return 1;
}

/* 1: the request ends at p->pos; 0: more bytes needed; or an error. */
static int scan(
    struct store_parser *p, const char *data, size_t len, struct err *e)
{
    const char *layout;
    unsigned op;

    if (len == 0)
        return 0;
    op = (unsigned char)data[0];
    if (!op_is_known(op))
        return err_set(e, -EPROTO, "unknown opcode %u", op);
    if (p->pos == 0)
        p->pos = 1;
    layout = store_ops[op].layout;
    for (; layout[p->field] != '\0'; p->field++) {
        int rc = 0;

        switch (layout[p->field]) {
        case 'w':
            rc = scan_fixed(p, len, sizeof(uint32_t));
            break;
        case 'i':
            rc = scan_fixed(p, len, sizeof(int64_t));
            break;
        case 'k':
            rc = scan_key(p, data, len, e);
            break;
        case 'e':
        case 'v':
            rc = scan_value(p, data, len, e);
            break;
        case 'K':
            rc = scan_list(p, data, len, false, e);
            break;
        case 'P':
            rc = scan_list(p, data, len, true, e);
            break;
        }
        if (rc <= 0)
            return rc;
    }
    return 1;
}

/* Takes a scanned byte string off the front of rest. */
static struct store_bytes take_bytes(struct store_bytes *rest)
{
    struct store_bytes item;

    assert(rest->len >= sizeof(uint64_t));
    item.len = (size_t)store_get_u64(rest->data);
    assert(item.len <= rest->len - sizeof(uint64_t));
    item.data = rest->data + sizeof(uint64_t);
    rest->data = item.data + item.len;
    rest->len -= sizeof(uint64_t) + item.len;
    return item;
}

/* Sets the fields of a request that scan() has found complete. */
static void decode(struct store_request *req, struct store_bytes rest)
{
    memset(req, 0, sizeof(*req));
    req->op = (enum store_op)(unsigned char)rest.data[0];
    rest.data++;
    rest.len--;
    for (const char *f = store_ops[req->op].layout; *f != '\0'; f++) {
        switch (*f) {
        case 'w':
            req->word = store_get_u32(rest.data);
            rest.data += sizeof(uint32_t);
            rest.len -= sizeof(uint32_t);
            break;
        case 'i':
            req->number = (int64_t)store_get_u64(rest.data);
            rest.data += sizeof(int64_t);
            rest.len -= sizeof(int64_t);
            break;
        case 'k':
            req->key = take_bytes(&rest);
            break;
        case 'e':
            req->expected = take_bytes(&rest);
            break;
        case 'v':
            req->value = take_bytes(&rest);
            break;
        case 'K':
        case 'P':
            req->list_count = (size_t)store_get_u64(rest.data);
            req->list = store_bytes(
                rest.data + sizeof(uint64_t), rest.len - sizeof(uint64_t));
            rest.len = 0;
            break;
        }
    }
    assert(rest.len == 0);
}

int store_parse(struct store_parser *p, const void *data, size_t len,
    struct store_request *req, size_t *used, struct err *e)
{
    int rc = scan(p, data, len, e);

    if (rc <= 0)
        return rc;
    decode(req, store_bytes(data, p->pos));
    if (req->op == STORE_OP_VALIDATE && req->word != STORE_MAGIC)
        return err_set(e, -EPROTO, "wrong magic number 0x%08x in the greeting",
            (unsigned)req->word);
    *used = p->pos;
    memset(p, 0, sizeof(*p));
    return 1;
}

bool store_list_next(struct store_bytes *list, struct store_bytes *item)
{
    if (list->len == 0)
        return false;
    *item = take_bytes(list);
    return true;
}

int store_put_u8(struct buf *out, uint8_t value)
{
    return buf_append(out, &value, sizeof(value));
}

int store_put_u32(struct buf *out, uint32_t value)
{
    value = htole32(value);
    return buf_append(out, &value, sizeof(value));
}

int store_put_u64(struct buf *out, uint64_t value)
{
    value = htole64(value);
    return buf_append(out, &value, sizeof(value));
}

int store_put_bytes(struct buf *out, struct store_bytes bytes)
{
    int rc = store_put_u64(out, bytes.len);

    return rc < 0 ? rc : buf_append(out, bytes.data, bytes.len);
}

static int encode_field(
    struct buf *out, char field, const struct store_request *req)
{
    int rc;

    switch (field) {
    case 'w':
        return store_put_u32(out, req->word);
    case 'i':
        return store_put_u64(out, (uint64_t)req->number);
    case 'k':
        return store_put_bytes(out, req->key);
    case 'e':
        return store_put_bytes(out, req->expected);
    case 'v':
        return store_put_bytes(out, req->value);
    default: /* K, P */
        rc = store_put_u64(out, req->list_count);
        return rc < 0 ? rc : buf_append(out, req->list.data, req->list.len);
    }
}

int store_encode(struct buf *out, const struct store_request *req)
{
    size_t old_len = out->len;
    int rc = store_put_u8(out, (uint8_t)req->op);

    for (const char *f = store_ops[req->op].layout; rc == 0 && *f != '\0'; f++)
        rc = encode_field(out, *f, req);
    if (rc < 0)
        out->len = old_len; /* half a request must never be sent */
    return rc;
}
