/*
 * The TCPStore wire format, without I/O: bytes to requests and back.
 *
 * This is the family of dialects that PyTorch 2.2 and newer speak: one
 * opcode byte, then the fields of that opcode one after the other, without a
 * length around the whole. Integers are little-endian; a byte string is a
 * u64 count and that many bytes; a list is a u64 count and that many items.
 * The first request of a connection is VALIDATE, which has no reply.
 */
#ifndef CRUN_RENDEZVOUS_STORE_CODEC_H
#define CRUN_RENDEZVOUS_STORE_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/base/buf.h"
#include "rendezvous/base/err.h"

/*
 * X(symbol, opcode, layout): one letter per field after the opcode.
 *   w  u32, a magic number or a nonce    i  i64
 *   k  byte string, a key                v  byte string, a value
 *   e  byte string, the expected value
 *   K  list of keys                      P  list of (key, value) pairs
 * A list comes last. An opcode that is not here is refused.
 */
#define STORE_OP_MAP(X)                                                        \
    X(VALIDATE, 0, "w")                                                        \
    X(SET, 1, "kv")                                                            \
    X(COMPARE_SET, 2, "kev")                                                   \
    X(GET, 3, "k")                                                             \
    X(ADD, 4, "ki")                                                            \
    X(CHECK, 5, "K")                                                           \
    X(WAIT, 6, "K")                                                            \
    X(GETNUMKEYS, 7, "")                                                       \
    X(DELETE_KEY, 8, "k")                                                      \
    X(APPEND, 9, "kv")                                                         \
    X(MULTI_GET, 10, "K")                                                      \
    X(MULTI_SET, 11, "P")                                                      \
    X(CANCEL_WAIT, 12, "")                                                     \
    X(PING, 13, "w")

enum store_op {
#define STORE_OP_ENUM(symbol, opcode, layout) STORE_OP_##symbol = opcode,
    STORE_OP_MAP(STORE_OP_ENUM)
#undef STORE_OP_ENUM
        STORE_OP_COUNT
};

/* "SET", ...; "?" for an opcode that is not in the list. */
const char *store_op_name(unsigned op);

#define STORE_MAGIC 0x3C85F7CEu

/* Bytes of the answer to WAIT, CANCEL_WAIT and CHECK. */
enum { STORE_WAIT_DONE = 0, STORE_WAIT_CANCELED = 1 };
enum { STORE_CHECK_READY = 0, STORE_CHECK_NOT_READY = 1 };

/*
 * Limits. Keys and lists as PyTorch's libuv server has them; values larger
 * than its 8 MiB, because its older server had no limit and programs rely on
 * that. A whole request holds at least a COMPARE_SET with two largest values.
 */
#define STORE_KEY_MAX 8192u
#define STORE_VALUE_MAX ((size_t)128 << 20)
#define STORE_LIST_MAX 131072u
#define STORE_REQUEST_MAX (2 * STORE_VALUE_MAX + ((size_t)64 << 10))

struct store_bytes {
    const char *data;
    size_t len;
};

static inline struct store_bytes store_bytes(const void *data, size_t len)
{
    return (struct store_bytes){data, len};
}

bool store_bytes_equal(struct store_bytes a, struct store_bytes b);

/* One request; the fields that its layout does not name are zero. */
struct store_request {
    enum store_op op;
    uint32_t word;
    int64_t number;
    struct store_bytes key;
    struct store_bytes expected;
    struct store_bytes value;
    size_t list_count; /* keys of K, pairs of P */
    struct store_bytes list; /* the items as on the wire, without the count */
};

/*
 * How far an incomplete request has been looked at. Zero at the start of a
 * request. It makes parsing linear: what was looked at once is not looked at
 * again when more bytes have come.
 */
struct store_parser {
    size_t pos;
    unsigned field;
    bool list_open;
    size_t items_left;
};

/*
 * Parses the request that starts at data, of which len bytes are there.
 * Returns 1: *req is set (its fields point into data), *used bytes belong to
 * it and the parser is zero again; 0: more bytes are needed, call again with
 * the same bytes and more behind them; -EPROTO (unknown opcode, wrong magic)
 * or -EMSGSIZE (over a limit), with the reason in e.
 */
int store_parse(struct store_parser *p, const void *data, size_t len,
    struct store_request *req, size_t *used, struct err *e);

/* Takes the next item off the front of a parsed list; false at its end. */
bool store_list_next(struct store_bytes *list, struct store_bytes *item);

/* Appends a request. Of a list, list and list_count are written as they are;
 * build list with store_put_bytes(). 0, -ENOBUFS or -ENOMEM. */
int store_encode(struct buf *out, const struct store_request *req);

/* The primitives, for replies and lists. 0, -ENOBUFS or -ENOMEM. */
int store_put_u8(struct buf *out, uint8_t value);
int store_put_u32(struct buf *out, uint32_t value);
int store_put_u64(struct buf *out, uint64_t value);
int store_put_bytes(struct buf *out, struct store_bytes bytes);

/* Little-endian integers at any alignment. */
uint32_t store_get_u32(const void *data);
uint64_t store_get_u64(const void *data);

#endif
