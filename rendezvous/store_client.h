/*
 * Blocking client of a TCPStore: crun's, or one hosted by PyTorch of any age.
 * Every call has a deadline: an absolute value of clock_now_ns(). No libuv,
 * so that libcollective can use it. One thread at a time.
 *
 * Keys are C strings here and get PyTorch's leading slash on the wire, so C
 * and Python programs see the same keys.
 */
#ifndef CRUN_RENDEZVOUS_STORE_CLIENT_H
#define CRUN_RENDEZVOUS_STORE_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/base/buf.h"
#include "rendezvous/base/err.h"
#include "rendezvous/store_codec.h"

struct store_client;

/*
 * Connects and finds out which dialect the server speaks: VALIDATE and PING,
 * else VALIDATE alone (2.2 to 2.4), else the older ones. A refused or reset
 * connection, and a name that does not resolve yet, are tried again with a
 * growing delay until the deadline, a name that the resolver says does not
 * exist for a minute at most. On success *out is the caller's.
 * Errors: what the last attempt ended with that had time for it, told in e->msg
 * with what was tried. -ENOENT: the name does not resolve; -ECONNREFUSED:
 * nobody listens there; -ETIMEDOUT: no answer, or a connection but no answer to
 * the greeting; -ECONNRESET: closed at the greeting. At once, without another
 * attempt, -EPROTO: something answers that is no TCPStore.
 */
int store_client_connect(struct store_client **out, const char *host, int port,
    uint64_t deadline_ns, struct err *e);

/* Takes NULL. */
void store_client_close(struct store_client *c);

/* What the server turned out to speak. */
enum store_dialect store_client_dialect(const struct store_client *c);

/* The socket, for its addresses only: borrowed until the next call. -1 when the
 * connection has ended. */
int store_client_fd(const struct store_client *c);

/*
 * Checks in as a worker: ADD 1 to the counter "init/" (no slash in front),
 * for which the host of a store with a world size waits. Once per worker.
 * *count is the number of workers that have.
 */
int store_client_check_in(struct store_client *c, int64_t *count,
    uint64_t deadline_ns, struct err *e);

/*
 * Errors of the calls below. -ETIMEDOUT: a key did not appear; the connection
 * stays usable. -EMSGSIZE (a key, value or list over the limits of
 * store_limits.h), -EOPNOTSUPP (the server is too old for this operation and
 * it cannot be made of others), -ENOMEM while preparing: nothing was sent,
 * likewise. All others end the connection, and every further call returns
 * -ENOTCONN: -EHOSTDOWN (the server does not answer), -ECONNRESET or -EPIPE
 * (it has closed the connection), -EPROTO (its answer makes no sense).
 *
 * Taking back a wait whose time is over needs one more answer: with a server
 * that hangs, wait and get return up to 1 s after their deadline. A server of
 * 2.0 or older cannot take a wait back: the client connects anew then.
 *
 * Values are appended to initialised buffers of the caller's; -ENOBUFS if
 * their bound is in the way.
 */

int store_client_set(struct store_client *c, const char *key, const void *value,
    size_t len, uint64_t deadline_ns, struct err *e);

/* Waits until the key exists, then fetches its value. */
int store_client_get(struct store_client *c, const char *key, struct buf *out,
    uint64_t deadline_ns, struct err *e);

/* Adds delta to the counter at key (a missing one counts as 0). */
int store_client_add(struct store_client *c, const char *key, int64_t delta,
    int64_t *out, uint64_t deadline_ns, struct err *e);

/* Waits until all nkeys keys exist. */
int store_client_wait(struct store_client *c, const char *const *keys,
    size_t nkeys, uint64_t deadline_ns, struct err *e);

/* Sets the key to desired if it has the expected value, or if it is missing
 * and expected is empty. now then holds desired; else what the key has, or
 * expected if it is missing. */
int store_client_compare_set(struct store_client *c, const char *key,
    struct store_bytes expected, struct store_bytes desired, struct buf *now,
    uint64_t deadline_ns, struct err *e);

/* *existed (may be NULL): whether there was a key to delete. */
int store_client_delete(struct store_client *c, const char *key, bool *existed,
    uint64_t deadline_ns, struct err *e);

/* *out: whether all keys exist now. */
int store_client_check(struct store_client *c, const char *const *keys,
    size_t nkeys, bool *out, uint64_t deadline_ns, struct err *e);

/* *count: all keys of the server, of every prefix, its own included. */
int store_client_num_keys(struct store_client *c, int64_t *count,
    uint64_t deadline_ns, struct err *e);

/*
 * Creates or extends the value. On a server of 2.0 or older it is made of
 * compare_set, with what that lacks: it wakes nobody who waits for the key,
 * and of two clients that append the same bytes at the same time one may be
 * lost.
 */
int store_client_append(struct store_client *c, const char *key,
    const void *value, size_t len, uint64_t deadline_ns, struct err *e);

/* Waits until all keys exist; values[i] gets that of keys[i]. */
int store_client_multi_get(struct store_client *c, const char *const *keys,
    size_t nkeys, struct buf *values, uint64_t deadline_ns, struct err *e);

/* Not atomic: pair by pair, in this order; a failure can come in between. */
int store_client_multi_set(struct store_client *c, const char *const *keys,
    const struct store_bytes *values, size_t nkeys, uint64_t deadline_ns,
    struct err *e);

/* Queues: PyTorch 2.8 and newer with its libuv server. pop waits until there
 * is an element, also if others take them away: -ETIMEDOUT if none could be
 * had. */
int store_client_queue_push(struct store_client *c, const char *key,
    const void *value, size_t len, uint64_t deadline_ns, struct err *e);
int store_client_queue_pop(struct store_client *c, const char *key,
    struct buf *out, uint64_t deadline_ns, struct err *e);
int store_client_queue_len(struct store_client *c, const char *key,
    int64_t *len, uint64_t deadline_ns, struct err *e);

/*
 * Calls cb for each key that begins with PyTorch's slash, without it; the
 * bytes are valid during the call. PyTorch 2.10 and newer.
 */
int store_client_list_keys(struct store_client *c,
    void (*cb)(struct store_bytes key, void *arg), void *arg,
    uint64_t deadline_ns, struct err *e);

#endif
