/*
 * One client's conversation with a store. No I/O: the bytes that came in go
 * to store_session_feed(), the bytes to send lie in out.
 *
 * A request of one client can release the WAIT of another: the answer is
 * then appended to that other session's out, and its wake_cb is called.
 */
#ifndef CRUN_RENDEZVOUS_STORE_SESSION_H
#define CRUN_RENDEZVOUS_STORE_SESSION_H

#include <stdbool.h>
#include <stddef.h>

#include "rendezvous/base/buf.h"
#include "rendezvous/base/err.h"
#include "rendezvous/store_codec.h"
#include "rendezvous/store_keys.h"

/* Replies that may lie unsent before the client is taken for stuck: room for
 * a largest value and many small ones. */
#define STORE_OUTPUT_MAX (STORE_VALUE_MAX + ((size_t)1 << 20))

struct store_session;

/*
 * Out has grown by another client's doing, or could not (rc < 0: close the
 * connection). Called from within that client's store_session_feed(); may
 * end this session, but no other.
 */
typedef void store_session_wake_cb(struct store_session *s, int rc);

struct store_session {
    struct store_keys *keys; /* borrowed */
    store_session_wake_cb *wake_cb;
    bool has_greeted;
    struct store_parser parser;
    struct buf in; /* an incomplete request; empty otherwise */
    struct buf out; /* the owner consumes what it has sent */
    struct store_waiter waiter;
};

void store_session_init(struct store_session *s, struct store_keys *keys,
    store_session_wake_cb *wake_cb);

/* Forgets the pending WAIT and frees the buffers. */
void store_session_fini(struct store_session *s);

/*
 * Executes the requests that are complete with these bytes. 0, or a negative
 * errno with the reason in e: then the connection has to be closed, and
 * nothing more be fed. -ENOBUFS: the client does not read its replies.
 */
int store_session_feed(
    struct store_session *s, const void *bytes, size_t len, struct err *e);

#endif
