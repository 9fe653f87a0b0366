/*
 * The store of one process, for its threads: a key space behind a mutex.
 * Every change that brings something wakes all threads that wait, and each
 * looks whether what it waits for is there: they are few.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/store_keys.h"
#include "worker/store.h"

#define SHOWN_KEY_MAX 100 /* bytes of a key in a sentence */

struct store_impl {
    pthread_mutex_t mutex; /* protects keys */
    pthread_cond_t changed; /* a value or an element has come */
    struct store_limits limits;
    struct store_keys keys;
};

static struct store_bytes bytes_of(const char *key)
{
    return store_bytes(key, strlen(key));
}

/* --- Around every operation --------------------------------------------- */

/* Ends a change: rc is what the key space said. */
static int end_change(
    struct store_impl *s, int rc, const char *key, struct err *e)
{
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    switch (rc) {
    case 0:
        return 0;
    case -EINVAL:
    case -ERANGE:
        return err_set(e, rc, "the value of key '%.*s' is no 64-bit number",
            SHOWN_KEY_MAX, key);
    case -EMSGSIZE:
        return err_set(e, rc,
            "the value of key '%.*s' would be over the limit of %zu bytes",
            SHOWN_KEY_MAX, key, s->limits.value_len);
    case -EDQUOT:
        return err_set(e, rc,
            "the keys and values of this process's store would be more than "
            "the limit of %zu bytes",
            s->limits.memory);
    default:
        return err_set(e, rc, "no memory for key '%.*s'", SHOWN_KEY_MAX, key);
    }
}

static int refuse_value(
    struct store_impl *s, struct store_bytes value, struct err *e)
{
    if (value.len <= s->limits.value_len)
        return 0;
    return err_set(e, -EMSGSIZE,
        "a value of %zu bytes is over the limit of %zu", value.len,
        s->limits.value_len);
}

static int copy_out(struct buf *out, struct store_bytes value, struct err *e)
{
    if (buf_append(out, value.data, value.len) < 0)
        return err_set(e, -ENOMEM, "no memory for a value");
    return 0;
}

/*
 * Sleeps until something may have come; false if the deadline is over. With
 * the mutex held, which it gives up meanwhile: so also then something may have
 * come, and who calls this looks once more.
 */
static bool sleep_once(struct store_impl *s, uint64_t deadline_ns)
{
    struct timespec until = {
        .tv_sec = (time_t)(deadline_ns / CLOCK_NS_PER_S),
        .tv_nsec = (long)(deadline_ns % CLOCK_NS_PER_S),
    };

    return pthread_cond_timedwait(&s->changed, &s->mutex, &until) == 0;
}

/* The keys as a parsed list of the wire, which the key space takes. */
static int make_list(
    const char *const *keys, size_t nkeys, struct buf *list, struct err *e)
{
    buf_init(list, SIZE_MAX / 2);
    for (size_t i = 0; i < nkeys; i++)
        if (store_put_bytes(list, bytes_of(keys[i])) < 0) {
            buf_fini(list);
            return err_set(e, -ENOMEM, "no memory for a list of keys");
        }
    return 0;
}

static struct store_bytes list_of(const struct buf *list)
{
    return store_bytes(list->len > 0 ? buf_bytes(list) : "", list->len);
}

static int say_missing(
    struct store_impl *s, const char *const *keys, size_t nkeys, struct err *e)
{
    const char *missing = "";

    for (size_t i = 0; i < nkeys; i++) {
        missing = keys[i];
        if (store_keys_get(&s->keys, bytes_of(missing)) == NULL)
            break;
    }
    return err_set(e, -ETIMEDOUT,
        "no thread of this process set key '%.*s' in time", SHOWN_KEY_MAX,
        missing);
}

/* --- Opening and closing ------------------------------------------------ */

static void hash_close(struct store_impl *s)
{
    if (s == NULL)
        return;
    store_keys_fini(&s->keys);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

int store_hash_open(struct store_impl **out, struct err *e)
{
    struct store_impl *s;
    pthread_condattr_t attr;
    int rc;

    s = calloc(1, sizeof(*s));
    if (s == NULL)
        return err_set(e, -ENOMEM, "no memory for a store");
    s->limits = STORE_LIMITS_DEFAULT;
    store_keys_init(&s->keys, &s->limits);
    rc = pthread_condattr_init(&attr);
    if (rc != 0)
        goto fail;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    rc = pthread_cond_init(&s->changed, &attr);
    pthread_condattr_destroy(&attr);
    if (rc != 0)
        goto fail;
    pthread_mutex_init(&s->mutex, NULL);
    *out = s;
    return 0;
fail:
    free(s);
    return err_set(e, -rc, "cannot make a store: %s", strerror(rc));
}

/* --- Operations --------------------------------------------------------- */

/* change: store_keys_set() or its like. */
static int put(struct store_impl *s, const char *key, struct store_bytes value,
    int (*change)(struct store_keys *keys, struct store_bytes key,
        struct store_bytes value),
    struct err *e)
{
    int rc = refuse_value(s, value, e);

    if (rc < 0)
        return rc;
    pthread_mutex_lock(&s->mutex);
    rc = change(&s->keys, bytes_of(key), value);
    return end_change(s, rc, key, e);
}

static int hash_set(struct store_impl *s, const char *key,
    struct store_bytes value, uint64_t deadline_ns, struct err *e)
{
    (void)deadline_ns;
    return put(s, key, value, store_keys_set, e);
}

static int hash_append(struct store_impl *s, const char *key,
    struct store_bytes value, uint64_t deadline_ns, struct err *e)
{
    int rc;

    (void)deadline_ns;
    pthread_mutex_lock(&s->mutex);
    rc = store_keys_append(&s->keys, bytes_of(key), value);
    return end_change(s, rc, key, e);
}

static int hash_add(struct store_impl *s, const char *key, int64_t delta,
    int64_t *out, uint64_t deadline_ns, struct err *e)
{
    int rc;

    (void)deadline_ns;
    pthread_mutex_lock(&s->mutex);
    rc = store_keys_add(&s->keys, bytes_of(key), delta, out);
    return end_change(s, rc, key, e);
}

static int hash_compare_set(struct store_impl *s, const char *key,
    struct store_bytes expected, struct store_bytes desired, struct buf *now,
    uint64_t deadline_ns, struct err *e)
{
    struct store_bytes result;
    int rc = refuse_value(s, desired, e), copy_rc = 0;

    (void)deadline_ns;
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&s->mutex);
    rc = store_keys_compare_set(
        &s->keys, bytes_of(key), expected, desired, &result);
    if (rc == 0)
        copy_rc = copy_out(now, result, e);
    rc = end_change(s, rc, key, e);
    return rc < 0 ? rc : copy_rc;
}

static int hash_delete(struct store_impl *s, const char *key, bool *existed,
    uint64_t deadline_ns, struct err *e)
{
    bool did_exist;

    (void)deadline_ns;
    (void)e;
    pthread_mutex_lock(&s->mutex);
    did_exist = store_keys_delete(&s->keys, bytes_of(key));
    pthread_mutex_unlock(&s->mutex);
    if (existed != NULL)
        *existed = did_exist;
    return 0;
}

/*
 * A key that is set and deleted before this thread gets to run has come: that
 * is what the party knows. But an element of a queue ends the wait of one
 * party, while the queue is there for everybody: so the keys themselves are
 * looked at, too.
 */
static int hash_wait(struct store_impl *s, const char *const *keys,
    size_t nkeys, uint64_t deadline_ns, struct err *e)
{
    struct store_party party = {0};
    struct store_bytes list;
    struct buf bytes;
    bool has_time = true;
    int rc = make_list(keys, nkeys, &bytes, e);

    if (rc < 0)
        return rc;
    list = list_of(&bytes);
    pthread_mutex_lock(&s->mutex);
    rc = store_keys_wait(&s->keys, &party, list);
    if (rc < 0)
        err_set(e, rc, "no memory to wait for keys");
    while (rc == 0 && party.done == 0 && !store_keys_check(&s->keys, list))
        if (has_time)
            has_time = sleep_once(s, deadline_ns);
        else
            rc = say_missing(s, keys, nkeys, e);
    store_keys_leave(&s->keys, &party);
    pthread_mutex_unlock(&s->mutex);
    buf_fini(&bytes);
    return rc < 0 ? rc : 0;
}

static bool has_values(
    struct store_impl *s, const char *const *keys, size_t nkeys)
{
    for (size_t i = 0; i < nkeys; i++)
        if (store_keys_get(&s->keys, bytes_of(keys[i])) == NULL)
            return false;
    return true;
}

static int hash_multi_get(struct store_impl *s, const char *const *keys,
    size_t nkeys, struct buf *values, uint64_t deadline_ns, struct err *e)
{
    bool has_time = true;
    int rc = 0;

    pthread_mutex_lock(&s->mutex);
    while (rc == 0 && !has_values(s, keys, nkeys))
        if (has_time)
            has_time = sleep_once(s, deadline_ns);
        else
            rc = say_missing(s, keys, nkeys, e);
    for (size_t i = 0; i < nkeys && rc == 0; i++) {
        struct store_blob *value = store_keys_get(&s->keys, bytes_of(keys[i]));

        rc = copy_out(&values[i], store_blob_bytes(value), e);
    }
    pthread_mutex_unlock(&s->mutex);
    return rc;
}

static int hash_get(struct store_impl *s, const char *key, struct buf *out,
    uint64_t deadline_ns, struct err *e)
{
    return hash_multi_get(s, &key, 1, out, deadline_ns, e);
}

static int hash_check(struct store_impl *s, const char *const *keys,
    size_t nkeys, bool *out, uint64_t deadline_ns, struct err *e)
{
    struct buf bytes;
    int rc = make_list(keys, nkeys, &bytes, e);

    (void)deadline_ns;
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&s->mutex);
    *out = store_keys_check(&s->keys, list_of(&bytes));
    pthread_mutex_unlock(&s->mutex);
    buf_fini(&bytes);
    return 0;
}

static int hash_num_keys(
    struct store_impl *s, int64_t *count, uint64_t deadline_ns, struct err *e)
{
    (void)deadline_ns;
    (void)e;
    pthread_mutex_lock(&s->mutex);
    *count = (int64_t)s->keys.count;
    pthread_mutex_unlock(&s->mutex);
    return 0;
}

/* Pair by pair: not all at once, as with the other kinds. */
static int hash_multi_set(struct store_impl *s, const char *const *keys,
    const struct store_bytes *values, size_t nkeys, uint64_t deadline_ns,
    struct err *e)
{
    int rc = 0;

    for (size_t i = 0; i < nkeys && rc == 0; i++)
        rc = hash_set(s, keys[i], values[i], deadline_ns, e);
    return rc;
}

static int hash_queue_push(struct store_impl *s, const char *key,
    struct store_bytes value, uint64_t deadline_ns, struct err *e)
{
    (void)deadline_ns;
    return put(s, key, value, store_keys_push, e);
}

static int hash_queue_pop(struct store_impl *s, const char *key,
    struct buf *out, uint64_t deadline_ns, struct err *e)
{
    struct store_blob *element;
    bool has_time = true;
    int rc = 0;

    pthread_mutex_lock(&s->mutex);
    while (rc == 0 && store_keys_queue_len(&s->keys, bytes_of(key)) == 0)
        if (has_time)
            has_time = sleep_once(s, deadline_ns);
        else
            rc = err_set(e, -ETIMEDOUT,
                "no thread of this process pushed to queue '%.*s' in time",
                SHOWN_KEY_MAX, key);
    if (rc == 0) {
        element = store_keys_pop(&s->keys, bytes_of(key));
        rc = copy_out(out, store_blob_bytes(element), e);
        store_blob_unref(element);
    }
    pthread_mutex_unlock(&s->mutex);
    return rc;
}

static int hash_queue_len(struct store_impl *s, const char *key, int64_t *len,
    uint64_t deadline_ns, struct err *e)
{
    (void)deadline_ns;
    (void)e;
    pthread_mutex_lock(&s->mutex);
    *len = (int64_t)store_keys_queue_len(&s->keys, bytes_of(key));
    pthread_mutex_unlock(&s->mutex);
    return 0;
}

/* cb runs with the mutex held: it must not call the store. */
static int hash_list_keys(struct store_impl *s,
    void (*cb)(struct store_bytes key, void *arg), void *arg,
    uint64_t deadline_ns, struct err *e)
{
    (void)deadline_ns;
    (void)e;
    pthread_mutex_lock(&s->mutex);
    store_keys_each(&s->keys, cb, arg);
    pthread_mutex_unlock(&s->mutex);
    return 0;
}

const struct store_kind store_hash_kind = {
    .name = "hash",
    .close = hash_close,
    .set = hash_set,
    .get = hash_get,
    .add = hash_add,
    .wait = hash_wait,
    .compare_set = hash_compare_set,
    .delete_key = hash_delete,
    .check = hash_check,
    .num_keys = hash_num_keys,
    .append = hash_append,
    .multi_get = hash_multi_get,
    .multi_set = hash_multi_set,
    .queue_push = hash_queue_push,
    .queue_pop = hash_queue_pop,
    .queue_len = hash_queue_len,
    .list_keys = hash_list_keys,
    .is_threaded = true,
};
