/*
 * The TCPStore wire format; see store_codec.h. Everything that differs
 * between operations is in STORE_OP_MAP. A message is looked at twice: scan()
 * walks over it as its bytes arrive and checks each length against its limit;
 * once the end is known, decoding only sets pointers.
 */
#include "rendezvous/store_codec.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

const uint8_t store_greeting[STORE_GREETING_LEN] = {
    0x00, 0xCE, 0xF7, 0x85, 0x3C};

static const struct {
    const char *name;
    int8_t opcode[STORE_DIALECT_COUNT];
    const char *request;
    const char *reply;
} store_ops[STORE_OP_COUNT] = {
#define STORE_OP_ROW(symbol, a, b, c, request, reply)                          \
    [STORE_OP_##symbol] = {#symbol, {a, b, c}, request, reply},
    STORE_OP_MAP(STORE_OP_ROW)
#undef STORE_OP_ROW
};

const char *store_op_name(unsigned op)
{
    return op < STORE_OP_COUNT ? store_ops[op].name : "?";
}

int store_opcode(enum store_dialect dialect, enum store_op op)
{
    return store_ops[op].opcode[dialect];
}

int store_op_of(enum store_dialect dialect, uint8_t opcode)
{
    switch (dialect) {
/* An operation that the dialect lacks gets a label that no byte reaches. */
#define STORE_LABEL(symbol, code)                                              \
    ((code) >= 0 ? (code) : 0x100 + STORE_OP_##symbol)
#define STORE_OP_CASE(symbol, code)                                            \
    case STORE_LABEL(symbol, code):                                            \
        return STORE_OP_##symbol;
#define STORE_OP_CASE_A(symbol, a, b, c, request, reply)                       \
    STORE_OP_CASE(symbol, a)
#define STORE_OP_CASE_B(symbol, a, b, c, request, reply)                       \
    STORE_OP_CASE(symbol, b)
#define STORE_OP_CASE_C(symbol, a, b, c, request, reply)                       \
    STORE_OP_CASE(symbol, c)
    case STORE_DIALECT_A:
        switch ((unsigned)opcode) {
            STORE_OP_MAP(STORE_OP_CASE_A)
        }
        break;
    case STORE_DIALECT_B:
        switch ((unsigned)opcode) {
            STORE_OP_MAP(STORE_OP_CASE_B)
        }
        break;
    case STORE_DIALECT_C:
        switch ((unsigned)opcode) {
            STORE_OP_MAP(STORE_OP_CASE_C)
        }
        break;
    }
    return -1;
}

bool store_has_reply(enum store_op op)
{
    return store_ops[op].reply[0] != '\0';
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

/* --- Walking over what has arrived ---------------------------------------- */

/* A message as far as it is there, and what it may be. */
struct scan {
    const char *data;
    size_t len;
    enum store_op op;
    const char *what; /* "request" or "reply" */
    size_t nkeys; /* of the request; for a reply with a value for each */
    const struct store_limits *limits;
    size_t max; /* bytes of the whole */
    struct err *e;
};

/* Steps over n bytes: 1, or 0 when they are not all there. */
static int scan_fixed(struct store_parser *p, const struct scan *s, size_t n)
{
    p->need = p->pos + n;
    if (s->len < p->need)
        return 0;
    p->pos = p->need;
    return 1;
}

/* Steps over a byte string, or leaves pos in front of it. */
static int scan_bytes(
    struct store_parser *p, const struct scan *s, size_t max, const char *item)
{
    uint64_t n;

    p->need = p->pos + sizeof(n);
    if (s->len < p->need)
        return 0;
    n = store_get_u64(s->data + p->pos);
    if (n > max)
        return err_set(s->e, -EMSGSIZE,
            "%s of %llu bytes in a %s %s, the limit is %zu", item,
            (unsigned long long)n, store_op_name(s->op), s->what, max);
    if (n > s->max || p->need > s->max - n)
        return err_set(s->e, -EMSGSIZE, "a %s %s of more than %zu bytes",
            store_op_name(s->op), s->what, s->max);
    return scan_fixed(p, s, sizeof(n) + (size_t)n);
}

static int scan_key(struct store_parser *p, const struct scan *s)
{
    return scan_bytes(p, s, s->limits->key_len, "a key");
}

static int scan_value(struct store_parser *p, const struct scan *s)
{
    return scan_bytes(p, s, s->limits->value_len, "a value");
}

/* Steps over the count of a list; V has none. */
static int scan_count(struct store_parser *p, const struct scan *s, char kind)
{
    /* Any number of keys may be in a store, but each takes its bytes. */
    size_t max =
        kind == 'L' ? s->max / sizeof(uint64_t) : s->limits->list_count;
    uint64_t n = s->nkeys;

    if (kind != 'V') {
        p->need = p->pos + sizeof(n);
        if (s->len < p->need)
            return 0;
        n = store_get_u64(s->data + p->pos);
        if (kind == 'q') { /* a length, with one element if it is not 0 */
            if (n > INT64_MAX)
                return err_set(s->e, -EPROTO, "a length below 0 in a %s %s",
                    store_op_name(s->op), s->what);
            n = n > 0;
        } else if (n > max) {
            return err_set(s->e, -EMSGSIZE,
                "%llu items in a %s %s, the limit is %zu",
                (unsigned long long)n, store_op_name(s->op), s->what, max);
        }
        p->pos = p->need;
    }
    p->items_left = (size_t)n * (kind == 'P' ? 2 : 1);
    p->list_open = true;
    return 1;
}

static int scan_list(struct store_parser *p, const struct scan *s, char kind)
{
    int rc = p->list_open ? 1 : scan_count(p, s, kind);

    while (rc == 1 && p->items_left > 0) {
        bool is_key = kind == 'K' || (kind == 'P' && p->items_left % 2 == 0);

        /* Servers of other makes may have longer keys to list than ours. */
        rc = is_key ? scan_key(p, s) : scan_value(p, s);
        if (rc == 1)
            p->items_left--;
    }
    return rc;
}

/* 1: the message ends at p->pos; 0: more bytes needed; or an error. */
static int scan(
    struct store_parser *p, const struct scan *s, const char *layout)
{
    for (; layout[p->field] != '\0'; p->field++) {
        char kind = layout[p->field];
        int rc = 0;

        switch (kind) {
        case 'b':
            rc = scan_fixed(p, s, sizeof(uint8_t));
            break;
        case 'w':
            rc = scan_fixed(p, s, sizeof(uint32_t));
            break;
        case 'i':
            rc = scan_fixed(p, s, sizeof(int64_t));
            break;
        case 'k':
            rc = scan_key(p, s);
            break;
        case 'e':
        case 'v':
            rc = scan_value(p, s);
            break;
        default: /* K, P, V, q, L */
            rc = scan_list(p, s, kind);
            break;
        }
        if (rc <= 0)
            return rc;
    }
    return 1;
}

/* --- Taking apart what is complete ---------------------------------------- */

static const char *take(struct store_bytes *rest, size_t n)
{
    const char *data = rest->data;

    assert(n <= rest->len);
    rest->data += n;
    rest->len -= n;
    return data;
}

static uint32_t take_u32(struct store_bytes *rest)
{
    return store_get_u32(take(rest, sizeof(uint32_t)));
}

static uint64_t take_u64(struct store_bytes *rest)
{
    return store_get_u64(take(rest, sizeof(uint64_t)));
}

static struct store_bytes take_bytes(struct store_bytes *rest)
{
    size_t len = (size_t)take_u64(rest);

    return store_bytes(take(rest, len), len);
}

bool store_list_next(struct store_bytes *list, struct store_bytes *item)
{
    if (list->len == 0)
        return false;
    *item = take_bytes(list);
    return true;
}

static void decode_request(
    struct store_request *req, enum store_op op, struct store_bytes rest)
{
    memset(req, 0, sizeof(*req));
    req->op = op;
    take(&rest, 1);
    for (const char *f = store_ops[op].request; *f != '\0'; f++) {
        switch (*f) {
        case 'w':
            req->word = take_u32(&rest);
            break;
        case 'i':
            req->number = (int64_t)take_u64(&rest);
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
        default: /* K, P */
            req->list_count = (size_t)take_u64(&rest);
            req->list = store_bytes(rest.data, rest.len);
            rest.len = 0;
            break;
        }
    }
    assert(rest.len == 0);
}

static int unknown_opcode(
    enum store_dialect dialect, uint8_t opcode, struct err *e)
{
    bool is_younger =
        dialect == STORE_DIALECT_A && store_op_of(STORE_DIALECT_B, opcode) >= 0;

    return err_set(e, -EPROTO, "unknown opcode %u%s", opcode,
        is_younger ? ", which PyTorch 2.1 has and 1.13 has not (crund "
                     "--old-clients=2.1 serves 2.1)"
                   : "");
}

int store_parse(struct store_parser *p, enum store_dialect dialect,
    const struct store_limits *limits, const void *data, size_t len,
    struct store_request *req, size_t *used, struct err *e)
{
    struct scan s = {
        .data = data,
        .len = len,
        .what = "request",
        .limits = limits,
        .max = store_limits_request(limits),
        .e = e,
    };
    int op, rc;

    if (len == 0) {
        p->need = 1;
        return 0;
    }
    op = store_op_of(dialect, *(const uint8_t *)data);
    if (op < 0)
        return unknown_opcode(dialect, *(const uint8_t *)data, e);
    s.op = (enum store_op)op;
    if (p->pos == 0)
        p->pos = 1;
    rc = scan(p, &s, store_ops[op].request);
    if (rc <= 0)
        return rc;
    decode_request(req, s.op, store_bytes(data, p->pos));
    if (s.op == STORE_OP_VALIDATE && req->word != STORE_MAGIC)
        return err_set(e, -EPROTO, "wrong magic number 0x%08x in the greeting",
            (unsigned)req->word);
    *used = p->pos;
    memset(p, 0, sizeof(*p));
    return 1;
}

static void decode_reply(struct store_reply *reply, enum store_op op,
    size_t nkeys, struct store_bytes rest)
{
    memset(reply, 0, sizeof(*reply));
    for (const char *f = store_ops[op].reply; *f != '\0'; f++) {
        switch (*f) {
        case 'b':
            reply->byte = *(const uint8_t *)take(&rest, 1);
            break;
        case 'w':
            reply->word = take_u32(&rest);
            break;
        case 'i':
            reply->number = (int64_t)take_u64(&rest);
            break;
        case 'v':
            reply->value = take_bytes(&rest);
            break;
        case 'q':
            reply->number = (int64_t)take_u64(&rest);
            if (reply->number > 0)
                reply->value = take_bytes(&rest);
            break;
        default: /* V, L */
            reply->list_count = *f == 'L' ? (size_t)take_u64(&rest) : nkeys;
            reply->list = store_bytes(rest.data, rest.len);
            rest.len = 0;
            break;
        }
    }
    assert(rest.len == 0);
}

static bool reply_makes_sense(enum store_op op, const struct store_reply *reply)
{
    switch (op) {
    case STORE_OP_CHECK:
    case STORE_OP_CANCEL_WAIT: /* 0: of a WAIT that was done before */
        return reply->byte <= 1;
    case STORE_OP_WAIT:
    case STORE_OP_BARRIER:
        return reply->byte == STORE_WAIT_DONE;
    case STORE_OP_WATCH_KEY:
        return reply->byte == STORE_WATCH_REGISTERED;
    case STORE_OP_DELETE_KEY:
        return reply->number == 0 || reply->number == 1;
    case STORE_OP_GETNUMKEYS:
    case STORE_OP_QUEUE_LEN:
        return reply->number >= 0;
    default:
        return true;
    }
}

int store_parse_reply(struct store_parser *p, enum store_op op, size_t nkeys,
    const struct store_limits *limits, const void *data, size_t len,
    struct store_reply *reply, size_t *used, struct err *e)
{
    struct scan s = {
        .data = data,
        .len = len,
        .op = op,
        .what = "reply",
        .nkeys = nkeys,
        .limits = limits,
        .max = limits->memory, /* nothing that a store can hold is longer */
        .e = e,
    };
    struct store_reply r;
    int rc = scan(p, &s, store_ops[op].reply);

    if (rc <= 0)
        return rc;
    decode_reply(&r, op, nkeys, store_bytes(data, p->pos));
    if (!reply_makes_sense(op, &r))
        return err_set(e, -EPROTO, "%lld is no reply to a %s request",
            r.byte != 0 ? (long long)r.byte : (long long)r.number,
            store_op_name(op));
    *reply = r;
    *used = p->pos;
    memset(p, 0, sizeof(*p));
    return 1;
}

/* --- Writing -------------------------------------------------------------- */

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
    struct buf *out, char kind, const struct store_request *req, bool head)
{
    int rc;

    switch (kind) {
    case 'w':
        return store_put_u32(out, req->word);
    case 'i':
        return store_put_u64(out, (uint64_t)req->number);
    case 'k':
        return store_put_bytes(out, req->key);
    case 'e':
        return store_put_bytes(out, req->expected);
    case 'v':
        return head ? store_put_u64(out, req->value.len)
                    : store_put_bytes(out, req->value);
    default: /* K, P */
        rc = store_put_u64(out, req->list_count);
        return rc < 0 ? rc : buf_append(out, req->list.data, req->list.len);
    }
}

static int encode(struct buf *out, enum store_dialect dialect,
    const struct store_request *req, bool head)
{
    int opcode = store_opcode(dialect, req->op);
    size_t old_len = out->len;
    int rc;

    if (opcode < 0)
        return -EOPNOTSUPP;
    rc = store_put_u8(out, (uint8_t)opcode);
    for (const char *f = store_ops[req->op].request; rc == 0 && *f != '\0'; f++)
        rc = encode_field(out, *f, req, head);
    if (rc < 0)
        out->len = old_len; /* half a request must never be sent */
    return rc;
}

int store_encode(struct buf *out, enum store_dialect dialect,
    const struct store_request *req)
{
    return encode(out, dialect, req, false);
}

int store_encode_head(struct buf *out, enum store_dialect dialect,
    const struct store_request *req)
{
    return encode(out, dialect, req, true);
}
