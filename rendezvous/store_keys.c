/*
 * The key space; see store_keys.h. One table holds every key that anybody has
 * to do with: an entry has a value, a queue, waiters or watchers, and goes
 * away when it has none of them.
 *
 * Memory: what is allocated here is charged to the key space's budget first,
 * and given back when it is freed; but for notes of changes, which last for
 * one request only.
 */
#include "rendezvous/store_keys.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* A hash that is fast, and that nobody can aim at who does not know the
 * seed: else a client could send keys that all fall into one chain. */
#define XXH_INLINE_ALL
#include <xxhash.h>

static pthread_once_t seed_once = PTHREAD_ONCE_INIT;
static uint64_t hash_seed;

#define HASH_FUNCTION(key, len, hash)                                          \
    ((hash) = (unsigned)XXH3_64bits_withSeed(key, len, hash_seed))

/* Out of memory: leave the entry out and let the caller see hh.tbl == NULL,
 * rather than exit. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>
#include <utlist.h>

struct store_key {
    UT_hash_handle hh; /* knows the key's length */
    struct store_blob *value; /* owned reference; NULL: no value */
    struct store_tick *ticks; /* who waits for the key, the oldest first */
    struct store_watch *watches;
    struct store_queue *queue; /* owned; NULL: empty */
    char key[];
};

/* A WAIT for n keys, or a held BARRIER. */
struct store_wait {
    struct store_party *party;
    struct store_wait *prev, *next; /* of the party */
    size_t missing; /* keys that have not come yet */
    size_t n;
    struct store_tick {
        struct store_wait *wait;
        struct store_key *key; /* NULL once the key has come */
        struct store_tick *prev, *next; /* of the key */
    } ticks[];
};

struct store_watch {
    struct store_party *party;
    struct store_key *key;
    struct store_watch *prev, *next; /* of the key */
    struct store_watch *next_of_party;
};

struct store_queue {
    size_t len;
    struct store_item {
        struct store_blob *blob;
        struct store_item *prev, *next;
    } * items; /* the oldest first */
};

/* --- Memory --------------------------------------------------------------- */

/* Zeroed memory that counts; NULL and *rc set if there is none. */
static void *take_memory(struct store_budget *budget, size_t size, int *rc)
{
    void *memory = NULL;

    *rc = store_budget_take(budget, size);
    if (*rc < 0)
        return NULL;
    memory = calloc(1, size);
    if (memory == NULL) {
        store_budget_give(budget, size);
        *rc = -ENOMEM;
    }
    return memory;
}

static void give_memory(struct store_budget *budget, void *memory, size_t size)
{
    free(memory);
    store_budget_give(budget, size);
}

/* Work is counted in entries looked at and pieces of 64 bytes copied. */
static size_t work_of(size_t bytes)
{
    return 1 + bytes / 64;
}

static size_t blob_size(const struct store_blob *b)
{
    size_t in_front = 0;

    if (b->memory != NULL)
        in_front = (size_t)(b->data - (char *)b->memory);
    return sizeof(*b) + in_front + b->cap + 1;
}

/* A blob for cap bytes and a NUL, without content yet. */
static struct store_blob *new_blob(
    struct store_budget *budget, size_t cap, int *rc)
{
    struct store_blob *b;
    size_t size;

    /* What malloc() rounds up to anyway is room to grow: for a counter. */
    size =
        (sizeof(*b) + cap + 1 + sizeof(size_t) + 15) / 16 * 16 - sizeof(size_t);
    cap = size - sizeof(*b) - 1;
    *rc = budget != NULL ? store_budget_take(budget, size) : 0;
    if (*rc < 0)
        return NULL;
    b = malloc(size);
    if (b == NULL) {
        if (budget != NULL)
            store_budget_give(budget, size);
        *rc = -ENOMEM;
        return NULL;
    }
    *b = (struct store_blob){
        .budget = budget, .refs = 1, .cap = cap, .data = (char *)(b + 1)};
    return b;
}

/* Puts bytes at offset, which there is room for, and ends the blob there. */
static void fill_blob(
    struct store_blob *b, size_t offset, struct store_bytes bytes)
{
    if (bytes.len > 0)
        memmove(b->data + offset, bytes.data, bytes.len);
    b->len = offset + bytes.len;
    b->data[b->len] = '\0';
}

static struct store_blob *copy_blob(
    struct store_budget *budget, struct store_bytes bytes, int *rc)
{
    struct store_blob *b = new_blob(budget, bytes.len, rc);

    if (b != NULL)
        fill_blob(b, 0, bytes);
    return b;
}

struct store_blob *store_blob_ref(struct store_blob *b)
{
    b->refs++;
    return b;
}

void store_blob_unref(struct store_blob *b)
{
    if (b == NULL || --b->refs > 0)
        return;
    if (b->budget != NULL)
        store_budget_give(b->budget, blob_size(b));
    free(b->memory);
    free(b);
}

/* --- The table ------------------------------------------------------------ */

/* Without a random number the addresses of this process have to do. */
static void choose_seed(void)
{
    if (getrandom(&hash_seed, sizeof(hash_seed), GRND_NONBLOCK) !=
        sizeof(hash_seed))
        hash_seed = (uintptr_t)&hash_seed * 0x9e3779b97f4a7c15u;
}

void store_keys_init(struct store_keys *keys, const struct store_limits *l)
{
    pthread_once(&seed_once, choose_seed);
    memset(keys, 0, sizeof(*keys));
    keys->max_value_len = l->value_len;
    keys->buffers.max = store_limits_buffers(l);
    keys->budget.max = l->memory - keys->buffers.max;
}

/* What the table takes for an entry: its chains have ten entries at most, and
 * half of them may be empty. */
#define TABLE_SHARE 32

static size_t key_size(size_t key_len)
{
    return sizeof(struct store_key) + key_len + TABLE_SHARE;
}

static struct store_bytes key_bytes(const struct store_key *k)
{
    return store_bytes(k->key, k->hh.keylen);
}

static struct store_key *find(
    const struct store_keys *keys, struct store_bytes key)
{
    struct store_key *k;

    HASH_FIND(hh, keys->table, key.data, key.len, k);
    return k;
}

/* An entry that is new has nothing; see drop_if_empty(). */
static struct store_key *find_or_add(
    struct store_keys *keys, struct store_bytes key, int *rc)
{
    struct store_key *k = find(keys, key);

    *rc = 0;
    if (k != NULL)
        return k;
    keys->work++;
    k = take_memory(&keys->budget, key_size(key.len), rc);
    if (k == NULL)
        return NULL;
    if (key.len > 0)
        memcpy(k->key, key.data, key.len);
    HASH_ADD(hh, keys->table, key, key.len, k);
    if (k->hh.tbl == NULL) {
        give_memory(&keys->budget, k, key_size(key.len));
        *rc = -ENOMEM;
        return NULL;
    }
    return k;
}

static void drop_if_empty(struct store_keys *keys, struct store_key *k)
{
    size_t size = key_size(k->hh.keylen);

    if (k->value != NULL || k->ticks != NULL || k->watches != NULL ||
        k->queue != NULL)
        return;
    HASH_DEL(keys->table, k);
    give_memory(&keys->budget, k, size);
}

static bool key_exists(const struct store_key *k)
{
    return k != NULL && (k->value != NULL || k->queue != NULL);
}

static struct store_blob *pop_item(struct store_keys *keys, struct store_key *k)
{
    struct store_queue *queue = k->queue;
    struct store_item *item = queue->items;
    struct store_blob *blob = item->blob;

    DL_DELETE(queue->items, item);
    give_memory(&keys->budget, item, sizeof(*item));
    if (--queue->len == 0) {
        give_memory(&keys->budget, queue, sizeof(*queue));
        k->queue = NULL;
    }
    return blob;
}

void store_keys_fini(struct store_keys *keys)
{
    struct store_key *k, *tmp;

    HASH_ITER(hh, keys->table, k, tmp)
    {
        assert(k->ticks == NULL && k->watches == NULL);
        store_blob_unref(k->value);
        k->value = NULL;
        while (k->queue != NULL)
            store_blob_unref(pop_item(keys, k));
        drop_if_empty(keys, k);
    }
    assert(keys->due == NULL);
    assert(keys->budget.used == 0);
    keys->count = 0;
}

/* --- Those who are told --------------------------------------------------- */

static void make_due(struct store_keys *keys, struct store_party *party)
{
    if (party->is_due)
        return;
    party->is_due = true;
    DL_APPEND(keys->due, party);
}

struct store_party *store_keys_next_due(struct store_keys *keys)
{
    struct store_party *party = keys->due;

    if (party != NULL) {
        DL_DELETE(keys->due, party);
        party->is_due = false;
    }
    return party;
}

static struct store_wait *new_wait(
    struct store_keys *keys, struct store_party *party, size_t n, int *rc)
{
    struct store_wait *wait = take_memory(
        &keys->budget, sizeof(*wait) + n * sizeof(wait->ticks[0]), rc);

    if (wait == NULL)
        return NULL;
    wait->party = party;
    wait->n = n;
    DL_APPEND(party->waits, wait);
    return wait;
}

static void free_wait(struct store_keys *keys, struct store_wait *wait)
{
    DL_DELETE(wait->party->waits, wait);
    give_memory(
        &keys->budget, wait, sizeof(*wait) + wait->n * sizeof(wait->ticks[0]));
}

/* The next of the n ticks waits for this key. */
static void await(
    struct store_wait *wait, struct store_key *k, struct store_tick *tick)
{
    tick->wait = wait;
    tick->key = k;
    DL_APPEND(k->ticks, tick);
    wait->missing++;
}

/* The key has come for one who waits for it. */
static void tick_off(struct store_keys *keys, struct store_tick *tick)
{
    struct store_wait *wait = tick->wait;

    keys->work++;
    DL_DELETE(tick->key->ticks, tick);
    tick->key = NULL;
    if (--wait->missing > 0)
        return;
    wait->party->done++;
    make_due(keys, wait->party);
    free_wait(keys, wait);
}

static void wake_all(struct store_keys *keys, struct store_key *k)
{
    while (k->ticks != NULL)
        tick_off(keys, k->ticks);
}

/* The oldest waiter that waits for nothing else; those before it wait for
 * other keys, too, so that this one is ticked off, but nobody has woken. Who
 * lists the key twice has two ticks, side by side. */
static void wake_one(struct store_keys *keys, struct store_key *k)
{
    size_t done = 0;

    while (k->ticks != NULL && done == 0) {
        struct store_wait *oldest = k->ticks->wait;
        struct store_party *party = oldest->party;
        size_t before = party->done;

        while (k->ticks != NULL && k->ticks->wait == oldest)
            tick_off(keys, k->ticks);
        done = party->done - before;
    }
}

static void cancel(struct store_keys *keys, struct store_wait *wait)
{
    for (size_t i = 0; i < wait->n; i++) {
        struct store_tick *tick = &wait->ticks[i];
        struct store_key *k = tick->key;

        if (k == NULL)
            continue;
        DL_DELETE(k->ticks, tick);
        drop_if_empty(keys, k);
    }
    free_wait(keys, wait);
}

void store_change_free(struct store_change *change)
{
    if (change == NULL)
        return;
    store_blob_unref(change->key);
    store_blob_unref(change->old);
    store_blob_unref(change->now);
    free(change);
}

struct store_change *store_party_next_change(struct store_party *party)
{
    struct store_change *change = party->changes;

    if (change != NULL)
        DL_DELETE(party->changes, change);
    return change;
}

/* Notes a change for all who watch the key. Who changes it must not suffer
 * from them: notes are in no budget, as they become replies, which are, before
 * the next request; and without memory the watcher has lost the change. */
static void note_change(struct store_keys *keys, struct store_key *k,
    struct store_blob *old, struct store_blob *now)
{
    struct store_blob *key;
    struct store_watch *watch;
    int rc;

    if (k->watches == NULL)
        return;
    key = copy_blob(NULL, key_bytes(k), &rc);
    DL_FOREACH(k->watches, watch)
    {
        struct store_party *party = watch->party;
        struct store_change *change = NULL;

        make_due(keys, party);
        keys->work++;
        if (key != NULL)
            change = calloc(1, sizeof(*change));
        if (change == NULL) {
            party->has_lost = true;
            continue;
        }
        change->kind = now == NULL   ? STORE_CHANGE_DELETED
                       : old == NULL ? STORE_CHANGE_CREATED
                                     : STORE_CHANGE_UPDATED;
        change->key = store_blob_ref(key);
        change->old = old != NULL ? store_blob_ref(old) : NULL;
        change->now = now != NULL ? store_blob_ref(now) : NULL;
        DL_APPEND(party->changes, change);
    }
    store_blob_unref(key);
}

/* --- Values --------------------------------------------------------------- */

struct store_blob *store_keys_get(
    const struct store_keys *keys, struct store_bytes key)
{
    struct store_key *k = find(keys, key);

    return k != NULL ? k->value : NULL;
}

/* The value becomes blob (takes the reference). */
static void replace_value(
    struct store_keys *keys, struct store_key *k, struct store_blob *blob)
{
    struct store_blob *old = k->value;

    k->value = blob;
    if (old == NULL)
        keys->count++;
    note_change(keys, k, old, blob);
    store_blob_unref(old);
}

/* True if the value may become len bytes where it is: nobody else looks at
 * it, and not much is wasted. */
static bool fits_in_place(const struct store_key *k, size_t len)
{
    const struct store_blob *b = k->value;

    return b != NULL && b->refs == 1 && k->watches == NULL && len <= b->cap &&
           (b->cap <= 64 || len >= b->cap / 2);
}

/*
 * Puts bytes behind the first offset bytes of the value, 0 or all of them.
 * The caller wakes whom it has to.
 */
static int write_value(struct store_keys *keys, struct store_key *k,
    size_t offset, struct store_bytes bytes)
{
    size_t len = offset + bytes.len;
    struct store_blob *b = NULL;
    int rc;

    keys->work += work_of(bytes.len);
    if (fits_in_place(k, len)) {
        fill_blob(k->value, offset, bytes);
        return 0;
    }
    if (offset > 0) /* doubling keeps many small pieces linear */
        b = new_blob(&keys->budget, len > 2 * offset ? len : 2 * offset, &rc);
    if (b == NULL)
        b = new_blob(&keys->budget, len, &rc);
    if (b == NULL)
        return rc;
    if (offset > 0) {
        memcpy(b->data, k->value->data, offset);
        keys->work += work_of(offset);
    }
    fill_blob(b, offset, bytes);
    replace_value(keys, k, b);
    return 0;
}

/* As write_value(), for a key that may be missing; *out is its entry. */
static int write_key(struct store_keys *keys, struct store_bytes key,
    size_t offset, struct store_bytes bytes, struct store_key **out)
{
    int rc;

    *out = find_or_add(keys, key, &rc);
    if (*out == NULL)
        return rc;
    rc = write_value(keys, *out, offset, bytes);
    if (rc < 0)
        drop_if_empty(keys, *out);
    return rc;
}

int store_keys_set(
    struct store_keys *keys, struct store_bytes key, struct store_bytes value)
{
    struct store_key *k;
    int rc = write_key(keys, key, 0, value, &k);

    if (rc == 0)
        wake_all(keys, k);
    return rc;
}

int store_keys_set_in(struct store_keys *keys, struct store_bytes key,
    struct store_bytes value, void *memory, size_t size)
{
    size_t offset = (size_t)(value.data - (char *)memory);
    size_t used = offset + value.len + 1;
    struct store_blob *b;
    struct store_key *k;
    int rc;

    assert(offset < size && value.len < size - offset);
    k = find_or_add(keys, key, &rc);
    if (k == NULL)
        return rc;
    rc = store_budget_take(&keys->budget, sizeof(*b) + used);
    if (rc < 0)
        goto fail;
    b = malloc(sizeof(*b));
    if (b == NULL) {
        store_budget_give(&keys->budget, sizeof(*b) + used);
        rc = -ENOMEM;
        goto fail;
    }
    *b = (struct store_blob){
        .budget = &keys->budget, .refs = 1, .len = value.len, .cap = value.len};
    /* What is behind the value goes back. */
    b->memory = size > used ? realloc(memory, used) : NULL;
    if (b->memory == NULL)
        b->memory = memory;
    b->data = (char *)b->memory + offset;
    b->data[b->len] = '\0';
    replace_value(keys, k, b);
    wake_all(keys, k);
    return 0;
fail:
    drop_if_empty(keys, k);
    return rc;
}

int store_keys_append(
    struct store_keys *keys, struct store_bytes key, struct store_bytes value)
{
    const struct store_blob *old = store_keys_get(keys, key);
    size_t old_len = old != NULL ? old->len : 0;
    struct store_key *k;
    int rc;

    if (value.len > keys->max_value_len ||
        old_len > keys->max_value_len - value.len)
        return -EMSGSIZE;
    rc = write_key(keys, key, old_len, value, &k);
    if (rc == 0)
        wake_all(keys, k);
    return rc;
}

/* What strtoll() reads, of so many bytes that nobody has to wait for it. */
static int read_number(const struct store_blob *b, long long *number)
{
    char text[STORE_NUMBER_MAX + 1];
    bool is_all = b->len <= STORE_NUMBER_MAX;
    char *end;

    if (!is_all) {
        memcpy(text, b->data, STORE_NUMBER_MAX);
        text[STORE_NUMBER_MAX] = '\0';
    }
    errno = 0;
    *number = strtoll(is_all ? b->data : text, &end, 10);
    if (end == (is_all ? b->data : text) || end == text + STORE_NUMBER_MAX)
        return -EINVAL;
    return errno == ERANGE ? -ERANGE : 0;
}

/* Adds without waking anybody; *out is the key's entry. */
static int add(struct store_keys *keys, struct store_bytes key, int64_t delta,
    int64_t *sum, struct store_key **out)
{
    const struct store_blob *old = store_keys_get(keys, key);
    long long number = 0;
    char text[24];
    int len;

    if (old != NULL) {
        int rc = read_number(old, &number);

        if (rc < 0)
            return rc;
    }
    *sum = (int64_t)((uint64_t)number + (uint64_t)delta);
    len = snprintf(text, sizeof(text), "%" PRId64, *sum);
    return write_key(keys, key, 0, store_bytes(text, (size_t)len), out);
}

int store_keys_add(struct store_keys *keys, struct store_bytes key,
    int64_t delta, int64_t *out)
{
    struct store_key *k;
    int64_t sum;
    int rc = add(keys, key, delta, &sum, &k);

    if (rc < 0)
        return rc;
    wake_all(keys, k);
    *out = sum;
    return 0;
}

int store_keys_compare_set(struct store_keys *keys, struct store_bytes key,
    struct store_bytes expected, struct store_bytes desired,
    struct store_bytes *now)
{
    const struct store_blob *old = store_keys_get(keys, key);
    int rc;

    keys->work += work_of(expected.len);
    if (old == NULL ? expected.len > 0
                    : !store_bytes_equal(store_blob_bytes(old), expected)) {
        *now = old != NULL ? store_blob_bytes(old) : expected;
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
    struct store_blob *old = k != NULL ? k->value : NULL;

    if (old == NULL)
        return false;
    k->value = NULL;
    keys->count--;
    note_change(keys, k, old, NULL);
    store_blob_unref(old);
    drop_if_empty(keys, k);
    return true;
}

static size_t count_missing(
    struct store_keys *keys, struct store_bytes key_list)
{
    struct store_bytes key;
    size_t missing = 0;

    for (; store_list_next(&key_list, &key); keys->work++)
        if (!key_exists(find(keys, key)))
            missing++;
    return missing;
}

bool store_keys_check(struct store_keys *keys, struct store_bytes key_list)
{
    return count_missing(keys, key_list) == 0;
}

void store_keys_each(struct store_keys *keys,
    void (*cb)(struct store_bytes key, void *arg), void *arg)
{
    struct store_key *k, *tmp;

    HASH_ITER(hh, keys->table, k, tmp)
    {
        keys->work++;
        if (k->value != NULL)
            cb(key_bytes(k), arg);
    }
}

/* --- Queues --------------------------------------------------------------- */

static int push_item(
    struct store_keys *keys, struct store_key *k, struct store_bytes value)
{
    struct store_item *item;
    int rc = 0;

    if (k->queue == NULL)
        k->queue = take_memory(&keys->budget, sizeof(*k->queue), &rc);
    if (k->queue == NULL)
        return rc;
    item = take_memory(&keys->budget, sizeof(*item), &rc);
    if (item != NULL)
        item->blob = copy_blob(&keys->budget, value, &rc);
    if (rc == 0) {
        DL_APPEND(k->queue->items, item);
        k->queue->len++;
        return 0;
    }
    if (item != NULL)
        give_memory(&keys->budget, item, sizeof(*item));
    if (k->queue->len == 0) {
        give_memory(&keys->budget, k->queue, sizeof(*k->queue));
        k->queue = NULL;
    }
    return rc;
}

int store_keys_push(
    struct store_keys *keys, struct store_bytes key, struct store_bytes value)
{
    int rc;
    struct store_key *k = find_or_add(keys, key, &rc);

    if (k == NULL)
        return rc;
    rc = push_item(keys, k, value);
    if (rc == 0)
        wake_one(keys, k);
    else
        drop_if_empty(keys, k);
    return rc;
}

struct store_blob *store_keys_pop(
    struct store_keys *keys, struct store_bytes key)
{
    struct store_key *k = find(keys, key);
    struct store_blob *blob;

    if (k == NULL || k->queue == NULL)
        return NULL;
    blob = pop_item(keys, k);
    drop_if_empty(keys, k);
    return blob;
}

size_t store_keys_queue_len(
    const struct store_keys *keys, struct store_bytes key)
{
    const struct store_key *k = find(keys, key);

    return k != NULL && k->queue != NULL ? k->queue->len : 0;
}

/* --- Parties -------------------------------------------------------------- */

int store_keys_wait(struct store_keys *keys, struct store_party *party,
    struct store_bytes key_list)
{
    size_t missing = count_missing(keys, key_list);
    struct store_wait *wait;
    struct store_bytes key;
    size_t n = 0;
    int rc;

    if (missing == 0)
        return 1;
    wait = new_wait(keys, party, missing, &rc);
    if (wait == NULL)
        return rc;
    while (store_list_next(&key_list, &key)) {
        struct store_key *k = find(keys, key);

        if (key_exists(k))
            continue;
        if (k == NULL)
            k = find_or_add(keys, key, &rc);
        if (k == NULL) {
            cancel(keys, wait);
            return rc;
        }
        await(wait, k, &wait->ticks[n++]);
    }
    return 0;
}

int store_keys_barrier(struct store_keys *keys, struct store_party *party,
    struct store_bytes key, int64_t count)
{
    struct store_wait *wait;
    struct store_key *k;
    int64_t sum;
    int rc;

    wait = new_wait(keys, party, 1, &rc); /* first: an ADD is not undone */
    if (wait == NULL)
        return rc;
    rc = add(keys, key, 1, &sum, &k);
    if (rc == 0 && sum < count) {
        await(wait, k, &wait->ticks[0]);
        return 0;
    }
    free_wait(keys, wait);
    if (rc < 0)
        return rc;
    wake_all(keys, k);
    return 1;
}

void store_keys_cancel(struct store_keys *keys, struct store_party *party)
{
    while (party->waits != NULL)
        cancel(keys, party->waits);
    party->done = 0;
    if (party->is_due && party->changes == NULL && !party->has_lost) {
        DL_DELETE(keys->due, party);
        party->is_due = false;
    }
}

int store_keys_watch(
    struct store_keys *keys, struct store_party *party, struct store_bytes key)
{
    struct store_watch *watch;
    struct store_key *k;
    int rc;

    k = find_or_add(keys, key, &rc);
    if (k == NULL)
        return rc;
    for (watch = k->watches; watch != NULL; watch = watch->next, keys->work++)
        if (watch->party == party)
            return 0;
    watch = take_memory(&keys->budget, sizeof(*watch), &rc);
    if (watch == NULL) {
        drop_if_empty(keys, k);
        return rc;
    }
    watch->party = party;
    watch->key = k;
    DL_APPEND(k->watches, watch);
    LL_PREPEND2(party->watches, watch, next_of_party);
    return 0;
}

void store_keys_leave(struct store_keys *keys, struct store_party *party)
{
    struct store_change *change;

    while (party->watches != NULL) {
        struct store_watch *watch = party->watches;

        LL_DELETE2(party->watches, watch, next_of_party);
        DL_DELETE(watch->key->watches, watch);
        drop_if_empty(keys, watch->key);
        give_memory(&keys->budget, watch, sizeof(*watch));
    }
    while ((change = store_party_next_change(party)) != NULL)
        store_change_free(change);
    party->has_lost = false;
    store_keys_cancel(keys, party);
}
