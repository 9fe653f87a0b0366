/*
 * Blocking client of a TCPStore (crun's, or one hosted by PyTorch 2.2 or
 * newer). Every call has a deadline: an absolute value of clock_now_ns().
 * No libuv, so that libcollective can use it. One thread at a time.
 *
 * Keys are C strings here and get PyTorch's leading slash on the wire, so C
 * and Python programs see the same keys.
 */
#ifndef CRUN_RENDEZVOUS_STORE_CLIENT_H
#define CRUN_RENDEZVOUS_STORE_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "rendezvous/base/buf.h"
#include "rendezvous/base/err.h"

struct store_client;

/*
 * Connects, says VALIDATE and PING, and waits for the echo. A refused or
 * reset connection, and a name that does not resolve yet, are tried again
 * with a growing delay until the deadline, a name that the resolver says does
 * not exist for a minute at most. On success *out is the caller's.
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

/*
 * Errors of the calls below. -ETIMEDOUT: a key did not appear; the connection
 * stays usable. -EMSGSIZE (a key, value or list over the limits of
 * store_codec.h), -ENOMEM while preparing: nothing was sent, likewise. All
 * others end the connection, and every further call returns -ENOTCONN:
 * -EHOSTDOWN (the server does not answer), -ECONNRESET or -EPIPE (it has
 * closed the connection), -EPROTO (its answer makes no sense), -ENOBUFS (the
 * value exceeds the bound of out).
 *
 * Taking back a wait whose time is over needs one more answer: with a server
 * that hangs, wait and get return up to 1 s after their deadline.
 */

int store_client_set(struct store_client *c, const char *key, const void *value,
    size_t len, uint64_t deadline_ns, struct err *e);

/* Waits until the key exists, then appends its value to out (an initialised
 * buffer of the caller's). -ETIMEDOUT when the key did not appear; the
 * connection stays usable then. */
int store_client_get(struct store_client *c, const char *key, struct buf *out,
    uint64_t deadline_ns, struct err *e);

/* Adds delta to the counter at key (a missing one counts as 0). */
int store_client_add(struct store_client *c, const char *key, int64_t delta,
    int64_t *out, uint64_t deadline_ns, struct err *e);

/* Waits until all nkeys keys exist. -ETIMEDOUT as for get. */
int store_client_wait(struct store_client *c, const char *const *keys,
    size_t nkeys, uint64_t deadline_ns, struct err *e);

/* Sets the key to desired if it has the expected value, or if it is missing
 * and expected is "". now (an initialised, empty buffer of the caller's) then
 * holds desired; else what the key has, or expected if it is missing. */
int store_client_compare_set(struct store_client *c, const char *key,
    const char *expected, const char *desired, struct buf *now,
    uint64_t deadline_ns, struct err *e);

/* The key does not exist any more; it is no error if it never did. */
int store_client_delete(struct store_client *c, const char *key,
    uint64_t deadline_ns, struct err *e);

/* *out = 1 if all keys exist now, else 0. */
int store_client_check(struct store_client *c, const char *const *keys,
    size_t nkeys, int *out, uint64_t deadline_ns, struct err *e);

#endif
