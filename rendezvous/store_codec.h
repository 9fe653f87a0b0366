/*
 * The TCPStore wire format, without I/O: bytes to requests and replies, and
 * back. Both sides are here, so that server, client, tests and fuzzer share
 * one description of it.
 *
 * A request is one opcode byte, then the fields of that opcode one after the
 * other, without a length around the whole. Integers are little-endian; a
 * byte string is a u64 count and that many bytes; a list is a u64 count and
 * that many items. A reply has no opcode: what it holds follows from the
 * request.
 */
#ifndef CRUN_RENDEZVOUS_STORE_CODEC_H
#define CRUN_RENDEZVOUS_STORE_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/base/buf.h"
#include "rendezvous/base/err.h"
#include "rendezvous/store_limits.h"

/*
 * PyTorch moved its opcodes twice. A: 1.13 and 2.0; B: 2.1; C: 2.2 and
 * newer, which has only appended since. A connection of C begins with
 * VALIDATE, which has no reply; A and B begin with any request, or none.
 */
enum store_dialect { STORE_DIALECT_A, STORE_DIALECT_B, STORE_DIALECT_C };
#define STORE_DIALECT_COUNT 3

/*
 * X(symbol, opcode in A, in B, in C, request, reply); -1: not in there.
 * One letter per field of the request:
 *   w  u32, a magic number or a nonce    i  i64
 *   k  byte string, a key                v  byte string, a value
 *   e  byte string, the expected value
 *   K  list of keys                      P  list of (key, value) pairs
 * A list comes last, and so does a value. Letters of the reply:
 *   b  one byte                          i  i64
 *   w  u32                               v  byte string
 *   V  as many byte strings as the request has keys, without a count
 *   q  i64, and a byte string if that is greater than 0
 *   L  list of byte strings
 * An opcode that is not here is refused.
 */
#define STORE_OP_MAP(X)                                                        \
    X(VALIDATE, -1, -1, 0, "w", "")                                            \
    X(SET, 0, 0, 1, "kv", "")                                                  \
    X(COMPARE_SET, 1, 1, 2, "kev", "v")                                        \
    X(GET, 2, 2, 3, "k", "v")                                                  \
    X(ADD, 3, 3, 4, "ki", "i")                                                 \
    X(CHECK, 4, 4, 5, "K", "b")                                                \
    X(WAIT, 5, 5, 6, "K", "b")                                                 \
    X(GETNUMKEYS, 6, 6, 7, "", "i")                                            \
    X(WATCH_KEY, 7, -1, -1, "k", "b")                                          \
    X(DELETE_KEY, 8, 7, 8, "k", "i")                                           \
    X(APPEND, -1, 8, 9, "kv", "")                                              \
    X(MULTI_GET, -1, 9, 10, "K", "V")                                          \
    X(MULTI_SET, -1, 10, 11, "P", "")                                          \
    X(CANCEL_WAIT, -1, 11, 12, "", "b")                                        \
    X(PING, -1, -1, 13, "w", "w")                                              \
    X(QUEUE_PUSH, -1, -1, 14, "kv", "")                                        \
    X(QUEUE_POP, -1, -1, 15, "k", "q")                                         \
    X(QUEUE_LEN, -1, -1, 16, "k", "i")                                         \
    X(LIST_KEYS, -1, -1, 17, "", "L")                                          \
    X(BARRIER, -1, -1, 18, "ki", "b")

enum store_op {
#define STORE_OP_ENUM(symbol, a, b, c, request, reply) STORE_OP_##symbol,
    STORE_OP_MAP(STORE_OP_ENUM)
#undef STORE_OP_ENUM
        STORE_OP_COUNT
};

/* "SET", ...; "?" for a number that is no operation. */
const char *store_op_name(unsigned op);

/* The opcode byte of an operation in a dialect; -1 if it has none. */
int store_opcode(enum store_dialect dialect, enum store_op op);

/* The operation (enum store_op) of an opcode byte; -1: there is none. */
int store_op_of(enum store_dialect dialect, uint8_t opcode);

#define STORE_MAGIC 0x3C85F7CEu

/* VALIDATE as it lies on the wire: what a client of dialect C begins with. */
#define STORE_GREETING_LEN 5
extern const uint8_t store_greeting[STORE_GREETING_LEN];

/* Bytes of the answer to WAIT, BARRIER, CANCEL_WAIT, CHECK and WATCH_KEY. */
enum { STORE_WAIT_DONE = 0, STORE_WAIT_CANCELED = 1 };
enum { STORE_CHECK_READY = 0, STORE_CHECK_NOT_READY = 1 };
enum { STORE_WATCH_REGISTERED = 3 };

/* The counter to which each worker adds 1 when it comes; the one key of
 * clients that does not begin with a slash. */
#define STORE_WORKERS_KEY "init/"

/*
 * How a client finds out that a server is crun's, which answers a GET of a
 * missing key, where some of PyTorch's close: CHECK of this key alone says
 * "ready". Nobody can set it, as keys of clients begin with a slash; it is
 * neither counted nor listed.
 */
#define STORE_CRUN_KEY "crun/"

struct store_bytes {
    const char *data;
    size_t len;
};

static inline struct store_bytes store_bytes(const void *data, size_t len)
{
    return (struct store_bytes){data, len};
}

bool store_bytes_equal(struct store_bytes a, struct store_bytes b);

/* --- Requests ----------------------------------------------------------- */

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
 * How far an incomplete message has been looked at. Zero at the start of
 * one. It makes parsing linear: what was looked at once is not looked at
 * again when more bytes have come.
 */
struct store_parser {
    size_t pos;
    unsigned field;
    bool list_open;
    size_t items_left;
    /* Bytes from the start of the message that are needed to get on; right
     * after a store_parse() that returned 0. No more than the limits allow. */
    size_t need;
};

/*
 * Parses the request that starts at data, of which len bytes are there.
 * Returns 1: *req is set (its fields point into data), *used bytes belong to
 * it and the parser is zero again; 0: more bytes are needed, call again with
 * the same bytes and more behind them; -EPROTO (unknown opcode, wrong magic)
 * or -EMSGSIZE (over a limit), with the reason in e.
 */
int store_parse(struct store_parser *p, enum store_dialect dialect,
    const struct store_limits *limits, const void *data, size_t len,
    struct store_request *req, size_t *used, struct err *e);

/* Takes the next item (of P: key and value in turn) off the front of a
 * parsed list. False when there is none left. */
bool store_list_next(struct store_bytes *list, struct store_bytes *item);

/* Appends a request; list must be laid out as on the wire. 0, -EOPNOTSUPP
 * (the dialect does not have it), -ENOBUFS or -ENOMEM: then nothing was
 * appended. */
int store_encode(struct buf *out, enum store_dialect dialect,
    const struct store_request *req);

/* The same without the bytes of the value that ends a SET, COMPARE_SET,
 * APPEND or QUEUE_PUSH (its length is appended): the caller sends those from
 * where they are. */
int store_encode_head(struct buf *out, enum store_dialect dialect,
    const struct store_request *req);

/* --- Replies ------------------------------------------------------------ */

struct store_reply {
    uint8_t byte;
    uint32_t word;
    int64_t number;
    struct store_bytes value;
    size_t list_count; /* of V and L */
    struct store_bytes list; /* their items, for store_list_next() */
};

/* True if the operation is answered at all. */
bool store_has_reply(enum store_op op);

/*
 * As store_parse(), for the reply to a request op that had nkeys keys. -EPROTO
 * if the bytes cannot be such a reply (a byte or a number out of its range),
 * -EMSGSIZE if a value is over the limits.
 */
int store_parse_reply(struct store_parser *p, enum store_op op, size_t nkeys,
    const struct store_limits *limits, const void *data, size_t len,
    struct store_reply *reply, size_t *used, struct err *e);

/* --- Parts of messages -------------------------------------------------- */

int store_put_u8(struct buf *out, uint8_t value);
int store_put_u32(struct buf *out, uint32_t value);
int store_put_u64(struct buf *out, uint64_t value);
int store_put_bytes(struct buf *out, struct store_bytes bytes);
uint32_t store_get_u32(const void *data);
uint64_t store_get_u64(const void *data);

#endif
