/*
 * The store's replies, as a client gets them, from arbitrary bytes.
 *
 * The first byte of the input chooses the request that is answered, the
 * second how many keys it had, the third the size of the pieces in which the
 * rest arrives. Whatever that is: nothing crashes; the outcome does not
 * depend on the pieces; and what is taken out of a reply lies in its bytes
 * and is all of them.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "rendezvous/store_codec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct store_limits limits = {
    .key_len = 64, .value_len = 4096, .list_count = 16, .memory = 1 << 20};

/* Bytes of the fields of a reply, as they must add up. */
static size_t size_of(enum store_op op, size_t nkeys, struct store_reply *reply)
{
    struct store_bytes item;
    size_t n = 0, count = 0;

    switch (op) {
    case STORE_OP_CHECK:
    case STORE_OP_WAIT:
    case STORE_OP_BARRIER:
    case STORE_OP_CANCEL_WAIT:
    case STORE_OP_WATCH_KEY:
        return sizeof(uint8_t);
    case STORE_OP_PING:
        return sizeof(uint32_t);
    case STORE_OP_GET:
    case STORE_OP_COMPARE_SET:
        return sizeof(uint64_t) + reply->value.len;
    case STORE_OP_QUEUE_POP:
        assert(reply->number > 0 || reply->value.len == 0);
        return reply->number > 0 ? 2 * sizeof(uint64_t) + reply->value.len
                                 : sizeof(uint64_t);
    case STORE_OP_MULTI_GET:
    case STORE_OP_LIST_KEYS:
        while (store_list_next(&reply->list, &item)) {
            n += sizeof(uint64_t) + item.len;
            count++;
        }
        assert(count == reply->list_count);
        assert(op == STORE_OP_LIST_KEYS || count == nkeys);
        return n + (op == STORE_OP_LIST_KEYS ? sizeof(uint64_t) : 0);
    case STORE_OP_ADD:
    case STORE_OP_GETNUMKEYS:
    case STORE_OP_DELETE_KEY:
    case STORE_OP_QUEUE_LEN:
        return sizeof(int64_t);
    default:
        assert(!store_has_reply(op));
        return 0;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct store_parser whole = {0}, pieces = {0};
    size_t nkeys, piece, used = 0, again = 0, len = 0;
    struct store_reply reply;
    enum store_op op;
    struct err e = {0};
    int want, rc;

    if (size < 3)
        return 0;
    op = (enum store_op)(data[0] % STORE_OP_COUNT);
    nkeys = data[1] % 8;
    piece = 1u + data[2];
    data += 3;
    size -= 3;
    want = store_parse_reply(
        &whole, op, nkeys, &limits, data, size, &reply, &used, &e);
    if (want < 0)
        assert(e.rc == want && e.msg[0] != '\0');
    if (want == 1)
        assert(size_of(op, nkeys, &reply) == used && used <= size);
    do {
        len = size - len < piece ? size : len + piece;
        rc = store_parse_reply(
            &pieces, op, nkeys, &limits, data, len, &reply, &again, &e);
        if (rc == 0)
            assert(pieces.need > len && pieces.need <= limits.memory);
    } while (rc == 0 && len < size);
    assert(rc == want);
    assert(again == used);
    return 0;
}
