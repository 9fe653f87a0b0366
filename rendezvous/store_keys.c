/*
 * The key space; see store_keys.h. One table holds both the keys that have a
 * value and those that somebody waits for: an entry has either a value or
 * waiters, and goes away when it has neither.
 */
#include "rendezvous/store_keys.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Out of memory: leave the entry out and let the caller see hh.tbl == NULL,
 * rather than exit. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>
#include <utlist.h>

struct store_key {
    UT_hash_handle hh;
    char *value; /* owned; NULL: no value. A NUL follows the last byte. */
    size_t value_len;
    size_t value_cap; /* without the NUL */
    struct store_wait *waits;
    size_t key_len;
    char key[];
};

/* One waiter waiting for one key. */
struct store_wait {
    struct store_waiter *waiter;
    struct store_key *key; /* NULL once the key has come */
    struct store_wait *prev, *next;
};

void store_keys_init(struct store_keys *keys)
{
    memset(keys, 0, sizeof(*keys));
}

static void drop(struct store_keys *keys, struct store_key *k)
{
    HASH_DEL(keys->table, k);
    free(k->value);
    free(k);
}

void store_keys_fini(struct store_keys *keys)
{
    struct store_key *k, *tmp;

    HASH_ITER(hh, keys->table, k, tmp)
    {
        assert(k->waits == NULL);
        drop(keys, k);
    }
    assert(keys->released == NULL);
    store_keys_init(keys);
}

static struct store_key *find(
    const struct store_keys *keys, struct store_bytes key)
{
    struct store_key *k;

    HASH_FIND(hh, keys->table, key.data, key.len, k);
    return k;
}

static struct store_key *find_or_add(
    struct store_keys *keys, struct store_bytes key)
{
    struct store_key *k = find(keys, key);

    if (k != NULL)
        return k;
    k = calloc(1, sizeof(*k) + key.len);
    if (k == NULL)
        return NULL;
    k->key_len = key.len;
    if (key.len > 0)
        memcpy(k->key, key.data, key.len);
    HASH_ADD(hh, keys->table, key, k->key_len, k);
    if (k->hh.tbl == NULL) {
        free(k);
        return NULL;
    }
    return k;
}

static struct store_bytes value_of(const struct store_key *k)
{
    return store_bytes(k->value, k->value_len);
}

bool store_keys_get(const struct store_keys *keys, struct store_bytes key,
    struct store_bytes *value)
{
    struct store_key *k = find(keys, key);

    if (k == NULL || k->value == NULL)
        return false;
    *value = value_of(k);
    return true;
}

/* The key has come: ticks it off for everybody who waits for it. */
static void wake(struct store_keys *keys, struct store_key *k)
{
    struct store_wait *wait, *tmp;

    DL_FOREACH_SAFE(k->waits, wait, tmp)
    {
        struct store_waiter *w = wait->waiter;

        wait->key = NULL;
        if (--w->missing == 0) {
            w->state = STORE_WAITER_RELEASED;
            DL_APPEND(keys->released, w);
        }
    }
    k->waits = NULL;
}

/* Puts value at offset of what is there (0 replaces) and wakes. */
static int write_value(struct store_keys *keys, struct store_bytes key,
    size_t offset, struct store_bytes value)
{
    struct store_key *k = find_or_add(keys, key);
    size_t len = offset + value.len;

    if (k == NULL)
        return -ENOMEM;
    if (k->value == NULL || len > k->value_cap || len < k->value_cap / 2) {
        /* Appending doubles, so that many small pieces stay linear. */
        size_t cap =
            offset > 0 && len < 2 * k->value_cap ? 2 * k->value_cap : len;
        char *data = realloc(k->value, cap + 1);

        if (data == NULL) {
            if (k->value == NULL && k->waits == NULL)
                drop(keys, k);
            return -ENOMEM;
        }
        if (k->value == NULL)
            keys->count++;
        k->value = data;
        k->value_cap = cap;
    }
    if (value.len > 0)
        memcpy(k->value + offset, value.data, value.len);
    k->value[len] = '\0';
    k->value_len = len;
    wake(keys, k);
    return 0;
}

int store_keys_set(
    struct store_keys *keys, struct store_bytes key, struct store_bytes value)
{
    return write_value(keys, key, 0, value);
}

int store_keys_append(
    struct store_keys *keys, struct store_bytes key, struct store_bytes value)
{
    struct store_bytes old = {NULL, 0};

    store_keys_get(keys, key, &old);
    if (value.len > STORE_VALUE_MAX - old.len)
        return -EMSGSIZE;
    return write_value(keys, key, old.len, value);
}

int store_keys_add(struct store_keys *keys, struct store_bytes key,
    int64_t delta, int64_t *out)
{
    struct store_bytes old;
    long long number = 0;
    char text[24];
    int64_t sum;
    int rc;

    if (store_keys_get(keys, key, &old)) {
        char *end;

        errno = 0;
        number = strtoll(old.data, &end, 10);
        if (end == old.data)
            return -EINVAL;
        if (errno == ERANGE)
            return -ERANGE;
    }
    sum = (int64_t)((uint64_t)number + (uint64_t)delta);
    rc = snprintf(text, sizeof(text), "%" PRId64, sum);
    rc = store_keys_set(keys, key, store_bytes(text, (size_t)rc));
    if (rc == 0)
        *out = sum;
    return rc;
}

int store_keys_compare_set(struct store_keys *keys, struct store_bytes key,
    struct store_bytes expected, struct store_bytes desired,
    struct store_bytes *now)
{
    struct store_bytes old;
    bool exists = store_keys_get(keys, key, &old);
    int rc;

    if (exists ? !store_bytes_equal(old, expected) : expected.len > 0) {
        *now = exists ? old : expected;
        return 0;
    }
    rc = store_keys_set(keys, key, desired);
    if (rc == 0)
        *now = desired;
    return rc;
}

bool store_keys_delete(struct store_keys *keys, struct store_bytes key)
{
    struct store_key *k = find(keys, key);

    if (k == NULL || k->value == NULL)
        return false;
    assert(k->waits == NULL);
    drop(keys, k);
    keys->count--;
    return true;
}

static size_t count_missing(
    const struct store_keys *keys, struct store_bytes key_list)
{
    struct store_bytes key, value;
    size_t missing = 0;

    while (store_list_next(&key_list, &key))
        if (!store_keys_get(keys, key, &value))
            missing++;
    return missing;
}

bool store_keys_check(
    const struct store_keys *keys, struct store_bytes key_list)
{
    return count_missing(keys, key_list) == 0;
}

int store_keys_wait(struct store_keys *keys, struct store_waiter *w,
    struct store_bytes key_list)
{
    size_t missing = count_missing(keys, key_list);
    struct store_bytes key, value;

    assert(w->state == STORE_WAITER_IDLE);
    if (missing == 0)
        return 1;
    w->waits = calloc(missing, sizeof(*w->waits));
    if (w->waits == NULL)
        return -ENOMEM;
    w->state = STORE_WAITER_WAITING;
    while (store_list_next(&key_list, &key)) {
        struct store_wait *wait = &w->waits[w->nwaits];
        struct store_key *k;

        if (store_keys_get(keys, key, &value))
            continue;
        k = find_or_add(keys, key);
        if (k == NULL) {
            store_keys_cancel(keys, w);
            return -ENOMEM;
        }
        wait->waiter = w;
        wait->key = k;
        DL_APPEND(k->waits, wait);
        w->nwaits++;
        w->missing++;
    }
    return 0;
}

void store_keys_cancel(struct store_keys *keys, struct store_waiter *w)
{
    if (w->state == STORE_WAITER_RELEASED)
        DL_DELETE(keys->released, w);
    for (size_t i = 0; i < w->nwaits; i++) {
        struct store_key *k = w->waits[i].key;

        if (k == NULL)
            continue;
        DL_DELETE(k->waits, &w->waits[i]);
        if (k->waits == NULL)
            drop(keys, k);
    }
    free(w->waits);
    memset(w, 0, sizeof(*w));
}

struct store_waiter *store_keys_next_released(struct store_keys *keys)
{
    struct store_waiter *w = keys->released;

    if (w != NULL)
        store_keys_cancel(keys, w);
    return w;
}
