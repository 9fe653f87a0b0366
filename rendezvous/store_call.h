/*
 * The inside of the store's client: one request and its reply at a time, on
 * the connection that store_connect.c has made. store_client.c makes the
 * operations of these.
 *
 * Functions that can fail return 0 or a negative errno with the reason in the
 * call's e. Unless said otherwise a failure has ended the connection.
 */
#ifndef CRUN_RENDEZVOUS_STORE_CALL_H
#define CRUN_RENDEZVOUS_STORE_CALL_H

#include <stddef.h>
#include <stdint.h>

#include "rendezvous/base/buf.h"
#include "rendezvous/base/err.h"
#include "rendezvous/store_client.h"
#include "rendezvous/store_codec.h"
#include "rendezvous/store_connect.h"
#include "rendezvous/store_limits.h"

/* Whether a server of dialect C has what was added to it later. */
enum store_support { SUPPORT_UNKNOWN, SUPPORT_YES, SUPPORT_NO };

struct store_client {
    int fd; /* owned; -1 after a failure */
    char *host; /* owned */
    int port;
    struct store_peer peer;
    uint64_t start_ns; /* of the call that is being made */
    struct store_limits limits;
    enum store_support queues, listing;
    struct buf request; /* to be sent */
    struct buf list; /* keys as a list on the wire */
    struct buf reply; /* received, not yet used */
};

/* What one call of the user's hands down. */
struct store_call {
    struct store_client *c;
    const char *what; /* of the operation, for error messages */
    uint64_t deadline_ns;
    struct err *e; /* may be NULL */
};

/* The start of every call. */
int store_call_begin(const struct store_call *call);

/*
 * Ends the connection and says why; returns rc. A server that is silent
 * becomes -EHOSTDOWN: -ETIMEDOUT is kept for keys that did not come, after
 * which the connection goes on. why: of an answer that makes no sense, else
 * NULL.
 */
int store_call_lost(const struct store_call *call, int rc, const char *why);

/*
 * Deadlines beyond the caller's, both counted from the start of the call and
 * not from now, so that a call of several parts is late only once. For what a
 * server that is alive answers at once: a second at least. And for what has to
 * follow a wait that ended at the last moment: a second after the deadline.
 */
uint64_t store_call_answer_ns(const struct store_call *call);
uint64_t store_call_grace_ns(const struct store_call *call);

/* --- Requests: failures before anything is sent leave all as it is ------- */

int store_call_check_value(
    const struct store_call *call, const char *key, size_t len);

/* Makes keys the list of a request, and the first one its key, with PyTorch's
 * slash. They lie in the client until the next call of this. */
int store_call_set_keys(const struct store_call *call,
    struct store_request *req, const char *const *keys, size_t nkeys);
int store_call_set_key(
    const struct store_call *call, struct store_request *req, const char *key);

int store_call_send(
    const struct store_call *call, const struct store_request *req);

/* The same in two parts, for several requests in one packet: appends one to
 * c->request, except for a long value that ends it, which becomes *rest; and
 * sends what is there, and the rest behind it. */
int store_call_prepare(const struct store_call *call,
    const struct store_request *req, struct store_bytes *rest);
int store_call_flush(const struct store_call *call, struct store_bytes rest);

/* --- Replies ------------------------------------------------------------- */

/* The reply to a request; its parts lie in the client until more is received.
 * The second: -ETIMEDOUT has not ended the connection. */
int store_call_receive(const struct store_call *call, enum store_op op,
    size_t nkeys, struct store_reply *reply);
int store_call_try_receive(const struct store_call *call, enum store_op op,
    size_t nkeys, struct store_reply *reply);

/* A byte string of a reply, appended to out; memory is taken as it comes. */
int store_call_receive_value(const struct store_call *call, struct buf *out);

/* Sends a request that is answered with a number, and receives that. */
int store_call_ask_number(const struct store_call *call,
    const struct store_request *req, int64_t *number);

#endif
