/*
 * The store's wire format and sessions against arbitrary bytes.
 *
 * The first byte of the input chooses the size of the pieces in which the
 * rest arrives. Whatever it is: nothing crashes or leaks; a request that is
 * parsed gives its own bytes when it is encoded again; and a client that gets
 * its bytes in pieces has the same replies as one that gets them at once.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "rendezvous/store_codec.h"
#include "rendezvous/store_session.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_round_trip(const uint8_t *data, size_t size)
{
    struct store_parser p = {0};
    struct store_request req;
    struct err e;
    size_t used;

    while (store_parse(&p, data, size, &req, &used, &e) == 1) {
        struct buf again;

        buf_init(&again, STORE_REQUEST_MAX);
        assert(store_encode(&again, &req) == 0);
        assert(again.len == used);
        assert(memcmp(buf_bytes(&again), data, used) == 0);
        buf_fini(&again);
        data += used;
        size -= used;
    }
}

static void ignore_wake_cb(struct store_session *s, int rc)
{
    (void)s;
    (void)rc;
}

/* One greeted client of one store, and what it gets to read. */
struct world {
    struct store_keys keys;
    struct store_session client;
};

static int run(struct world *w, const uint8_t *data, size_t size, size_t piece)
{
    static const uint8_t greeting[] = {0x00, 0xce, 0xf7, 0x85, 0x3c};
    struct err e;
    int rc;

    store_keys_init(&w->keys);
    store_session_init(&w->client, &w->keys, ignore_wake_cb);
    rc = store_session_feed(&w->client, greeting, sizeof(greeting), &e);
    assert(rc == 0);
    while (rc == 0 && size > 0) {
        size_t n = size < piece ? size : piece;

        rc = store_session_feed(&w->client, data, n, &e);
        data += n;
        size -= n;
    }
    return rc;
}

static void end(struct world *w)
{
    store_session_fini(&w->client);
    store_keys_fini(&w->keys);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct world whole, pieces;
    struct err e;
    size_t piece;
    int rc;

    if (size == 0)
        return 0;
    piece = 1 + data[0];
    data++;
    size--;
    check_round_trip(data, size);

    rc = run(&whole, data, size, size + 1);
    assert(run(&pieces, data, size, piece) == rc);
    assert(whole.client.out.len == pieces.client.out.len);
    assert(whole.client.out.len == 0 ||
           memcmp(buf_bytes(&whole.client.out), buf_bytes(&pieces.client.out),
               whole.client.out.len) == 0);
    assert(whole.keys.count == pieces.keys.count);
    end(&whole);
    end(&pieces);

    /* As a connection's first bytes, without a greeting put in front. */
    store_keys_init(&whole.keys);
    store_session_init(&whole.client, &whole.keys, ignore_wake_cb);
    store_session_feed(&whole.client, data, size, &e);
    end(&whole);
    return 0;
}
