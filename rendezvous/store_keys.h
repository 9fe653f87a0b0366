/*
 * The key space of a store and those who wait for keys. No I/O.
 *
 * A key is any byte string. A waiter is released when every key that was
 * missing when it began to wait has existed since, be it deleted again; and
 * by an operation that leaves the key in existence only. Who is released is
 * put on a list, which the caller takes off after each operation: so nobody
 * is called back in the middle of a change.
 */
#ifndef CRUN_RENDEZVOUS_STORE_KEYS_H
#define CRUN_RENDEZVOUS_STORE_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/store_codec.h"

struct store_key;
struct store_wait;

enum store_waiter_state {
    STORE_WAITER_IDLE,
    STORE_WAITER_WAITING,
    STORE_WAITER_RELEASED, /* on the list of the released */
};

/* Memory of the caller's, zero at first; it must not move while waiting. */
struct store_waiter {
    enum store_waiter_state state;
    struct store_wait *waits; /* owned; one per key that was missing */
    size_t nwaits;
    size_t missing; /* of those, the keys that have not come yet */
    struct store_waiter *prev, *next;
};

struct store_keys {
    struct store_key *table; /* owned; keys with a value or with waiters */
    size_t count; /* keys with a value */
    struct store_waiter *released;
};

void store_keys_init(struct store_keys *keys);

/* Every waiter must be idle. The key space may be used again. */
void store_keys_fini(struct store_keys *keys);

/* False if the key does not exist. *value is valid until the next change. */
bool store_keys_get(const struct store_keys *keys, struct store_bytes key,
    struct store_bytes *value);

/* 0 or -ENOMEM; append also -EMSGSIZE when the value would exceed
 * STORE_VALUE_MAX. On failure nothing has changed. */
int store_keys_set(
    struct store_keys *keys, struct store_bytes key, struct store_bytes value);
int store_keys_append(
    struct store_keys *keys, struct store_bytes key, struct store_bytes value);

/*
 * Adds delta to the decimal number at key, wrapping like two's complement;
 * a missing key counts as 0. The number is read as strtoll() does, so white
 * space in front of and anything behind it are allowed. -EINVAL if there is
 * no number, -ERANGE if it does not fit 64 bits, -ENOMEM.
 */
int store_keys_add(struct store_keys *keys, struct store_bytes key,
    int64_t delta, int64_t *out);

/*
 * Sets the key to desired if it has the expected value, or if it is missing
 * and expected is empty. *now is then desired; else what the key has, or
 * expected if it is missing (a quirk that PyTorch's clients know). *now is
 * valid until the next change and as long as the arguments. 0 or -ENOMEM.
 */
int store_keys_compare_set(struct store_keys *keys, struct store_bytes key,
    struct store_bytes expected, struct store_bytes desired,
    struct store_bytes *now);

/* True if the key existed. */
bool store_keys_delete(struct store_keys *keys, struct store_bytes key);

/* True if all keys of a parsed list exist. */
bool store_keys_check(
    const struct store_keys *keys, struct store_bytes key_list);

/*
 * Begins to wait for the missing keys of a parsed list. 1: none is missing,
 * the waiter stays idle; 0: it waits now; -ENOMEM. The waiter must be idle.
 */
int store_keys_wait(struct store_keys *keys, struct store_waiter *w,
    struct store_bytes key_list);

/* Makes the waiter idle, whatever it was. */
void store_keys_cancel(struct store_keys *keys, struct store_waiter *w);

/* Takes the next released waiter, which is idle then; NULL if none is left. */
struct store_waiter *store_keys_next_released(struct store_keys *keys);

#endif
