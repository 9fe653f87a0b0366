/*
 * One client's conversation with a store. No I/O: the bytes that came in are
 * fed, the bytes to send lie in out.
 *
 * A request of one client can end the WAIT of another: the answer is then
 * appended to that other session's out, and its wake_cb is called.
 *
 * A client that does not read its replies is not served further until it
 * does: while more than STORE_OUT_HIGH bytes lie unsent the session executes
 * nothing (it is stalled), and its owner reads nothing from the client.
 *
 * Nor may one client keep the others waiting: after STORE_TURN_WORK, as the
 * key space counts it, the session executes nothing more (it is tired) until
 * store_session_resume(); its owner serves the others first.
 */
#ifndef CRUN_RENDEZVOUS_STORE_SESSION_H
#define CRUN_RENDEZVOUS_STORE_SESSION_H

#include <stdbool.h>
#include <stddef.h>

#include "rendezvous/base/buf.h"
#include "rendezvous/base/err.h"
#include "rendezvous/store_codec.h"
#include "rendezvous/store_keys.h"
#include "rendezvous/store_out.h"

#define STORE_OUT_HIGH ((size_t)1 << 20)

/* A millisecond or so; what a client sends at once seldom needs a tenth. */
#define STORE_TURN_WORK 32768u

/* Unsent bytes with which a client gets no further notice of a watched key
 * but its end: it has asked for them, and does not read. */
#define STORE_NOTICES_HIGH (16 * STORE_OUT_HIGH)

struct store_session;

/*
 * Out has grown by another client's doing, or could not (rc < 0: close the
 * connection: there is no memory for it, or it does not read its notices).
 * Called from within that client's store_session_feed(), _added(), _resume()
 * or _sent(); may end this session, and do nothing else with any.
 */
typedef void store_session_wake_cb(struct store_session *s, int rc);

struct store_session {
    struct store_keys *keys; /* borrowed */
    const struct store_limits *limits; /* borrowed */
    store_session_wake_cb *wake_cb;
    enum store_dialect dialect;
    bool has_greeted; /* C: VALIDATE has come */
    bool has_checked_in; /* as a worker: ADD to STORE_WORKERS_KEY */
    bool is_stalled; /* read nothing more; send */
    bool is_tired; /* read nothing more; serve others, then resume */
    struct store_parser parser;
    struct buf in; /* what is not executed yet; empty otherwise */
    struct store_out out; /* the owner tells what it has sent */
    size_t charged; /* bytes of in and out, in the buffers of keys */
    struct store_party party;
};

void store_session_init(struct store_session *s, struct store_keys *keys,
    const struct store_limits *limits, enum store_dialect dialect,
    store_session_wake_cb *wake_cb);

/* Forgets what the client waits for and frees the buffers. */
void store_session_fini(struct store_session *s);

/*
 * Executes the requests that are complete with these bytes. 0, or a negative
 * errno with the reason in e: then nothing more is to be fed, and the
 * connection to be closed, after what out holds for the requests before.
 * At most 1 MiB at a time; what comes while the session is stalled or tired is
 * kept.
 */
int store_session_feed(
    struct store_session *s, const void *bytes, size_t len, struct err *e);

/*
 * Where a large request is under way: memory behind what has come of it, so
 * that bytes need not be copied. *len bytes: no more than are missing, and no
 * more than 1 MiB or what is there. Returns NULL if there is nothing of the
 * kind or no memory: feed then. Follow with store_session_added().
 */
char *store_session_space(struct store_session *s, size_t *len);
int store_session_added(struct store_session *s, size_t len, struct err *e);

/* The others have been served: goes on. Errors as of feed. */
int store_session_resume(struct store_session *s, struct err *e);

/* Out was sent: says how much, and executes what was stalled if there is room
 * now. Errors as of feed. */
int store_session_sent(struct store_session *s, size_t len, struct err *e);

#endif
