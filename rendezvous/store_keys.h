/*
 * The key space of a store: values, queues, and those who wait. No I/O.
 *
 * A key is any byte string. A WAIT ends when every key that was missing when
 * it began has existed since, be it deleted again; and by an operation that
 * leaves the key in existence only. Who is done is put on a list, which the
 * caller takes off after each operation: so nobody is called back in the
 * middle of a change.
 *
 * Values are shared, not copied: who still has to send one holds a reference,
 * and a later SET does not change it.
 */
#ifndef CRUN_RENDEZVOUS_STORE_KEYS_H
#define CRUN_RENDEZVOUS_STORE_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/store_codec.h"
#include "rendezvous/store_limits.h"

struct store_key;
struct store_wait;
struct store_watch;
struct store_change;

/* A value in memory, counted in the budget (NULL: in none); a NUL follows the
 * last byte. */
struct store_blob {
    struct store_budget *budget;
    size_t refs;
    size_t len;
    size_t cap; /* what len may become in place */
    char *data;
    void *memory; /* owned; where data lies, NULL: behind this struct */
};

static inline struct store_bytes store_blob_bytes(const struct store_blob *b)
{
    return store_bytes(b->data, b->len);
}

struct store_blob *store_blob_ref(struct store_blob *b);
void store_blob_unref(struct store_blob *b); /* takes NULL */

/*
 * Somebody who waits for, or watches, keys: one per connection. Memory of the
 * caller's, zero at first; it must not move until store_keys_leave().
 */
struct store_party {
    struct store_wait *waits; /* pending WAITs and BARRIERs */
    struct store_watch *watches;
    size_t done; /* WAITs and BARRIERs that ended; the caller sets it to 0 */
    struct store_change *changes; /* of watched keys, the oldest first */
    bool has_lost; /* no memory to note a change: the party must be told */
    bool is_due; /* on the list of store_keys_next_due() */
    struct store_party *prev, *next;
};

struct store_keys {
    struct store_key *table; /* owned */
    size_t count; /* keys with a value; queues are not counted */
    size_t max_value_len; /* bound of what append may make */
    struct store_budget budget; /* of what is stored, and of waits */
    /* Of the sessions, for what they receive and send. It may be exceeded:
     * then the server ends whoever has most of it. */
    struct store_budget buffers;
    /* What has been done, in entries looked at and 64 bytes copied. Whoever
     * shares out turns sets it to 0. */
    size_t work;
    struct store_party *due;
};

/* Limits are copied. */
void store_keys_init(struct store_keys *keys, const struct store_limits *l);

/* Every party must have left, every blob been given back. The key space may
 * be used again. */
void store_keys_fini(struct store_keys *keys);

/* NULL if the key has no value. Borrowed until the next change; take a
 * reference to keep it. */
struct store_blob *store_keys_get(
    const struct store_keys *keys, struct store_bytes key);

/* The changes return 0, -ENOMEM or -EDQUOT (over the memory limit), append
 * also -EMSGSIZE; on failure nothing has changed. */
int store_keys_set(
    struct store_keys *keys, struct store_bytes key, struct store_bytes value);
int store_keys_append(
    struct store_keys *keys, struct store_bytes key, struct store_bytes value);

/*
 * As set, without a copy: the value lies in a block of the heap of size bytes,
 * one of them behind the value, that the key space takes on success.
 */
int store_keys_set_in(struct store_keys *keys, struct store_bytes key,
    struct store_bytes value, void *memory, size_t size);

/*
 * Adds delta to the decimal number at key, wrapping like two's complement;
 * a missing key counts as 0. The number is read as strtoll() does, so white
 * space in front of and anything behind it are allowed; but it has to be
 * within the first STORE_NUMBER_MAX bytes. Also -EINVAL if there is no number,
 * -ERANGE if it does not fit 64 bits.
 */
#define STORE_NUMBER_MAX 1024u
int store_keys_add(struct store_keys *keys, struct store_bytes key,
    int64_t delta, int64_t *out);

/*
 * Sets the key to desired if it has the expected value, or if it is missing
 * and expected is empty. *now is then desired; else what the key has, or
 * expected if it is missing (a quirk that PyTorch's clients know). *now is
 * valid until the next change and as long as the arguments.
 */
int store_keys_compare_set(struct store_keys *keys, struct store_bytes key,
    struct store_bytes expected, struct store_bytes desired,
    struct store_bytes *now);

/* True if the key had a value. Wakes nobody. */
bool store_keys_delete(struct store_keys *keys, struct store_bytes key);

/* True if all keys of a parsed list exist: have a value or a non-empty
 * queue. */
bool store_keys_check(struct store_keys *keys, struct store_bytes key_list);

/* Calls cb for each key with a value, in no particular order. */
void store_keys_each(struct store_keys *keys,
    void (*cb)(struct store_bytes key, void *arg), void *arg);

/*
 * Queues live beside the values, under names of their own: get, delete, count
 * and each do not see them, check and wait do. push wakes one waiter (the
 * oldest), or nobody. pop returns NULL if the queue is empty; the reference
 * is the caller's.
 */
int store_keys_push(
    struct store_keys *keys, struct store_bytes key, struct store_bytes value);
struct store_blob *store_keys_pop(
    struct store_keys *keys, struct store_bytes key);
size_t store_keys_queue_len(
    const struct store_keys *keys, struct store_bytes key);

/*
 * Begins to wait for the missing keys of a parsed list. 1: none is missing;
 * 0: the party waits now, and done grows by one when it is over; -ENOMEM or
 * -EDQUOT. A party may have several waits.
 */
int store_keys_wait(struct store_keys *keys, struct store_party *party,
    struct store_bytes key_list);

/*
 * Adds one to the number at key. 1: it is now at least count, and all who
 * were held at that key are done; 0: the party is held, as by a wait. Errors
 * as of add. Until the barrier is complete the key exists, but who already
 * waits for it is not woken; a SET of the key releases everybody.
 */
int store_keys_barrier(struct store_keys *keys, struct store_party *party,
    struct store_bytes key, int64_t count);

/* Forgets the party's waits and barriers, and what was done of them and not
 * taken off yet. Its watches stay. */
void store_keys_cancel(struct store_keys *keys, struct store_party *party);

/* From now on each change of the key is noted for the party, once however
 * often it watches the key. 0 or an error of memory. */
int store_keys_watch(
    struct store_keys *keys, struct store_party *party, struct store_bytes key);

/* Forgets everything about the party. */
void store_keys_leave(struct store_keys *keys, struct store_party *party);

/* Takes the next party off the list of those for whom waits are done, or
 * changes noted or lost; NULL if there is none. */
struct store_party *store_keys_next_due(struct store_keys *keys);

/* The kinds of a change, with the numbers of the wire. */
enum store_change_kind {
    STORE_CHANGE_UPDATED = 0,
    STORE_CHANGE_CREATED = 1,
    STORE_CHANGE_DELETED = 2,
};

/* A change of a watched key; old and now are references, NULL where there is
 * none. */
struct store_change {
    struct store_change *prev, *next;
    enum store_change_kind kind;
    struct store_blob *key;
    struct store_blob *old;
    struct store_blob *now;
};

/* Takes the oldest noted change of the party, which the caller frees with
 * store_change_free(); NULL if there is none. */
struct store_change *store_party_next_change(struct store_party *party);
void store_change_free(struct store_change *change); /* takes NULL */

#endif
