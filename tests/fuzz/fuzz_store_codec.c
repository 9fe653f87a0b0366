/*
 * The store's requests, in every dialect, from arbitrary bytes.
 *
 * The first byte of the input chooses the dialect, the second the size of the
 * pieces in which the rest arrives. Whatever that is: nothing crashes or
 * leaks; a request that is parsed gives its own bytes when it is encoded
 * again; and a client that gets its bytes in pieces has the same replies as
 * one that gets them at once.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "rendezvous/store_codec.h"
#include "rendezvous/store_session.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct store_limits limits = {
    .key_len = 64, .value_len = 4096, .list_count = 16, .memory = 1 << 20};

/* The same bytes again; without those of the value that ends it, if any. */
static void check_round_trip(enum store_dialect dialect,
    const struct store_request *req, const uint8_t *data, size_t len)
{
    struct buf again;
    int rc;

    buf_init(&again, store_limits_request(&limits));
    rc = store_encode(&again, dialect, req);
    assert(rc == 0);
    assert(again.len == len);
    assert(memcmp(buf_bytes(&again), data, len) == 0);
    buf_consume(&again, again.len);
    rc = store_encode_head(&again, dialect, req);
    assert(rc == 0);
    assert(again.len == len - req->value.len);
    assert(memcmp(buf_bytes(&again), data, again.len) == 0);
    buf_fini(&again);
}

/* A parser that is given ever more of the input says the same as one that is
 * given all, and never asks for what is there or for more than is allowed. */
static void check_pieces(enum store_dialect dialect, const uint8_t *data,
    size_t size, size_t piece, int want, size_t want_used)
{
    struct store_parser p = {0};
    struct store_request req;
    size_t used = 0, len = 0;
    struct err e;
    int rc;

    do {
        len = size - len < piece ? size : len + piece;
        rc = store_parse(&p, dialect, &limits, data, len, &req, &used, &e);
        if (rc == 0) {
            assert(p.need > len);
            assert(p.need <= store_limits_request(&limits));
        }
    } while (rc == 0 && len < size);
    assert(rc == want);
    assert(used == want_used);
}

static void check_requests(
    enum store_dialect dialect, const uint8_t *data, size_t size, size_t piece)
{
    int rc;

    do {
        struct store_parser p = {0};
        struct store_request req;
        size_t used = 0;
        struct err e = {0};

        rc = store_parse(&p, dialect, &limits, data, size, &req, &used, &e);
        assert(rc >= 0 || (e.rc == rc && e.msg[0] != '\0'));
        check_pieces(dialect, data, size, piece, rc, used);
        if (rc == 1)
            check_round_trip(dialect, &req, data, used);
        data += used;
        size -= used;
    } while (rc == 1);
}

static void ignore_wake_cb(struct store_session *s, int rc)
{
    (void)s;
    (void)rc;
}

/* One client of one store, and what it gets to read. */
struct world {
    struct store_keys keys;
    struct store_session client;
    struct buf read;
};

static void start(struct world *w, enum store_dialect dialect)
{
    store_keys_init(&w->keys, &limits);
    store_session_init(&w->client, &w->keys, &limits, dialect, ignore_wake_cb);
    buf_init(&w->read, SIZE_MAX / 2);
}

static int run(struct world *w, const uint8_t *data, size_t size, size_t piece)
{
    struct err e;
    int rc = 0;

    while (rc == 0 && size > 0) {
        size_t n = size < piece ? size : piece;

        rc = store_session_feed(&w->client, data, n, &e);
        data += n;
        size -= n;
        while (rc == 0 && store_out_len(&w->client.out) > 0) {
            struct iovec iov;

            assert(store_out_iov(&w->client.out, &iov, 1) == 1);
            assert(buf_append(&w->read, iov.iov_base, iov.iov_len) == 0);
            rc = store_session_sent(&w->client, iov.iov_len, &e);
        }
    }
    return rc;
}

static void end(struct world *w)
{
    buf_fini(&w->read);
    store_session_fini(&w->client);
    store_keys_fini(&w->keys);
    assert(w->keys.budget.used == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct world whole, pieces;
    enum store_dialect dialect;
    size_t piece;
    int rc_whole, rc_pieces;

    if (size < 2)
        return 0;
    dialect = (enum store_dialect)(data[0] % STORE_DIALECT_COUNT);
    piece = 1u + data[1];
    data += 2;
    size -= 2;
    check_requests(dialect, data, size, piece);

    start(&whole, dialect);
    start(&pieces, dialect);
    if (dialect == STORE_DIALECT_C) {
        rc_whole = run(&whole, store_greeting, STORE_GREETING_LEN, piece);
        rc_pieces = run(&pieces, store_greeting, STORE_GREETING_LEN, piece);
        assert(rc_whole == 0 && rc_pieces == 0);
    }
    rc_whole = run(&whole, data, size, size + 1);
    rc_pieces = run(&pieces, data, size, piece);
    assert(rc_whole == rc_pieces);
    if (rc_whole == 0) {
        assert(whole.read.len == pieces.read.len);
        assert(whole.read.len == 0 ||
               memcmp(buf_bytes(&whole.read), buf_bytes(&pieces.read),
                   whole.read.len) == 0);
    }
    assert(whole.keys.count == pieces.keys.count);
    end(&whole);
    end(&pieces);

    /* As a connection's first bytes, without a greeting put in front. */
    start(&whole, STORE_DIALECT_C);
    run(&whole, data, size, piece);
    end(&whole);
    return 0;
}
