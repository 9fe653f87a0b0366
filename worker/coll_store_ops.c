/*
 * The operations on stores: arguments are checked here, keys get the prefix
 * of a view, the store is locked, and what comes back is put into memory of
 * the caller's.
 */
#include "store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/store_limits.h"

static void lock(coll_store_t *store)
{
    if (!store->base->kind->is_threaded)
        pthread_mutex_lock(&store->base->lock);
}

static void unlock(coll_store_t *store)
{
    if (!store->base->kind->is_threaded)
        pthread_mutex_unlock(&store->base->lock);
}

/* --- Complete keys -------------------------------------------------------- */

typedef char full_key[FULL_KEY_MAX + 1];

/* Writes prefix and key to out if there is room. 0 or -EMSGSIZE. */
static int join_key(
    const coll_store_t *store, const char *key, full_key out, struct err *e)
{
    size_t len = strlen(key);

    if (len > FULL_KEY_MAX - store->prefix_len)
        return err_set(e, -EMSGSIZE,
            "a key of %zu bytes is longer than the %d that are allowed",
            store->prefix_len + len, FULL_KEY_MAX);
    memcpy(out, store->prefix, store->prefix_len);
    memcpy(out + store->prefix_len, key, len + 1);
    return 0;
}

/* The same for several: *out is one block for free_keys(). */
static int join_keys(const coll_store_t *store, const char *const *keys,
    size_t nkeys, const char *const **out, struct err *e)
{
    size_t max = STORE_LIMITS_DEFAULT.list_count;
    size_t bytes = nkeys * sizeof(char *);
    const char **list;
    char *at;
    full_key full;
    int rc;

    if (nkeys > max)
        return err_set(e, -EMSGSIZE,
            "%zu keys are more than the %zu that are allowed", nkeys, max);
    for (size_t i = 0; i < nkeys; i++)
        bytes += store->prefix_len + strlen(keys[i]) + 1;
    list = malloc(bytes + 1); /* not NULL for no keys */
    if (list == NULL)
        return err_set(e, -ENOMEM, "out of memory");
    at = (char *)(list + nkeys);
    for (size_t i = 0; i < nkeys; i++) {
        rc = join_key(store, keys[i], full, e);
        if (rc < 0) {
            free(list);
            return rc;
        }
        list[i] = at;
        at = stpcpy(at, full) + 1;
    }
    *out = list;
    return 0;
}

static void free_keys(const char *const *keys)
{
    free((void *)keys);
}

/* --- With an absolute deadline -------------------------------------------- */

int coll_store_do_set(coll_store_t *store, const char *key,
    struct store_bytes value, uint64_t deadline_ns, struct err *e)
{
    struct coll_store *b = store->base;
    full_key full;
    int rc = join_key(store, key, full, e);

    if (rc < 0)
        return rc;
    lock(store);
    rc = b->kind->set(b->impl, full, value, deadline_ns, e);
    unlock(store);
    return rc;
}

int coll_store_do_get(coll_store_t *store, const char *key, struct buf *out,
    uint64_t deadline_ns, struct err *e)
{
    struct coll_store *b = store->base;
    full_key full;
    int rc = join_key(store, key, full, e);

    if (rc < 0)
        return rc;
    lock(store);
    rc = b->kind->get(b->impl, full, out, deadline_ns, e);
    unlock(store);
    return rc;
}

int coll_store_do_add(coll_store_t *store, const char *key, int64_t delta,
    int64_t *out, uint64_t deadline_ns, struct err *e)
{
    struct coll_store *b = store->base;
    full_key full;
    int rc = join_key(store, key, full, e);

    if (rc < 0)
        return rc;
    lock(store);
    rc = b->kind->add(b->impl, full, delta, out, deadline_ns, e);
    unlock(store);
    return rc;
}

int coll_store_do_wait(coll_store_t *store, const char *const *keys,
    size_t nkeys, uint64_t deadline_ns, struct err *e)
{
    struct coll_store *b = store->base;
    const char *const *full;
    int rc = join_keys(store, keys, nkeys, &full, e);

    if (rc < 0)
        return rc;
    lock(store);
    rc = b->kind->wait(b->impl, full, nkeys, deadline_ns, e);
    unlock(store);
    free_keys(full);
    return rc;
}

int coll_store_do_compare_set(coll_store_t *store, const char *key,
    struct store_bytes expected, struct store_bytes desired, struct buf *now,
    uint64_t deadline_ns, struct err *e)
{
    struct coll_store *b = store->base;
    full_key full;
    int rc = join_key(store, key, full, e);

    if (rc < 0)
        return rc;
    lock(store);
    rc = b->kind->compare_set(
        b->impl, full, expected, desired, now, deadline_ns, e);
    unlock(store);
    return rc;
}

int coll_store_do_delete(coll_store_t *store, const char *key, bool *existed,
    uint64_t deadline_ns, struct err *e)
{
    struct coll_store *b = store->base;
    bool was_there = false;
    full_key full;
    int rc = join_key(store, key, full, e);

    if (rc < 0)
        return rc;
    lock(store);
    rc = b->kind->delete_key(b->impl, full, &was_there, deadline_ns, e);
    unlock(store);
    if (rc == 0 && existed != NULL)
        *existed = was_there;
    return rc;
}

int coll_store_do_check(coll_store_t *store, const char *const *keys,
    size_t nkeys, bool *out, uint64_t deadline_ns, struct err *e)
{
    struct coll_store *b = store->base;
    const char *const *full;
    int rc = join_keys(store, keys, nkeys, &full, e);

    if (rc < 0)
        return rc;
    lock(store);
    rc = b->kind->check(b->impl, full, nkeys, out, deadline_ns, e);
    unlock(store);
    free_keys(full);
    return rc;
}

/* --- Public calls --------------------------------------------------------- */

/* One public call. It holds the lock from begin(), if that succeeds, to
 * end(). */
struct call {
    const char *name;
    coll_store_t *store;
    struct coll_store *base;
    uint64_t deadline_ns;
    bool is_locked;
    bool is_bad; /* an argument is; the sentence is set */
    int rc;
    struct err e;
};

/* The checks below return whether all is well. */
__attribute__((format(printf, 2, 3))) static bool refuse(
    struct call *c, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(c->e.msg, sizeof(c->e.msg), fmt, args);
    va_end(args);
    c->is_bad = true;
    return false;
}

static bool is_given(struct call *c, const char *name, const void *pointer)
{
    return pointer != NULL || refuse(c, "%s is NULL", name);
}

static bool is_value(
    struct call *c, const char *name, const void *value, size_t len)
{
    size_t max = STORE_LIMITS_DEFAULT.value_len;

    if (value == NULL && len > 0)
        return refuse(c, "%s is NULL, its length %zu", name, len);
    if (len > max)
        return refuse(c, "%s: %zu bytes are more than the %zu MiB allowed",
            name, len, max >> 20);
    return true;
}

static bool are_keys(struct call *c, const char *const *keys, size_t nkeys)
{
    size_t max = STORE_LIMITS_DEFAULT.list_count;

    if (keys == NULL && nkeys > 0)
        return refuse(c, "keys is NULL, nkeys is %zu", nkeys);
    if (nkeys > max)
        return refuse(
            c, "%zu keys are more than the %zu that are allowed", nkeys, max);
    for (size_t i = 0; i < nkeys; i++)
        if (keys[i] == NULL)
            return refuse(c, "keys[%zu] is NULL", i);
    return true;
}

/* The last check: then the lock is held and the time runs. timeout_ms 0: the
 * store's own. */
static bool begin(struct call *c, int64_t timeout_ms)
{
    if (!is_given(c, "store", c->store))
        return false;
    if (timeout_ms < 0)
        return refuse(c, "timeout_ms is %" PRId64 ", it must not be negative",
            timeout_ms);
    c->base = c->store->base;
    lock(c->store);
    c->is_locked = true;
    c->deadline_ns = clock_deadline_ns(
        timeout_ms > 0 ? timeout_ms : atomic_load(&c->base->timeout_ms));
    return true;
}

static coll_status_t end(struct call *c)
{
    if (c->is_locked)
        unlock(c->store);
    if (c->is_bad)
        return coll_fail(COLL_ERR_ARGUMENT, "%s: %s", c->name, c->e.msg);
    return c->rc == 0 ? COLL_OK : coll_store_fail(c->name, c->rc, &c->e);
}

/* Closes a value with a NUL that is not counted. */
static void terminate(struct call *c, struct buf *b)
{
    if (c->rc == 0 && buf_append(b, "", 1) < 0)
        c->rc = err_set(&c->e, -ENOMEM, "out of memory for a value");
}

/* Hands a terminated value to the caller without copying it. */
static void hand_over(struct buf *b, void **value, size_t *len)
{
    char *fit;

    memmove(b->data, buf_bytes(b), b->len);
    fit = realloc(b->data, b->len);
    *value = fit != NULL ? fit : b->data;
    *len = b->len - 1;
    buf_init(b, 0);
}

static void init_value(struct buf *b)
{
    buf_init(b, SIZE_MAX / 2);
}

coll_status_t coll_store_set(
    coll_store_t *store, const char *key, const void *value, size_t len)
{
    struct call c = {.name = "coll_store_set", .store = store};

    if (is_given(&c, "key", key) && is_value(&c, "value", value, len) &&
        begin(&c, 0))
        c.rc = coll_store_do_set(
            store, key, store_bytes(value, len), c.deadline_ns, &c.e);
    return end(&c);
}

coll_status_t coll_store_get(
    coll_store_t *store, const char *key, void **value, size_t *len)
{
    struct call c = {.name = "coll_store_get", .store = store};
    struct buf out;

    init_value(&out);
    if (is_given(&c, "key", key) && is_given(&c, "value", value) &&
        is_given(&c, "len", len) && begin(&c, 0)) {
        c.rc = coll_store_do_get(store, key, &out, c.deadline_ns, &c.e);
        terminate(&c, &out);
        if (c.rc == 0)
            hand_over(&out, value, len);
    }
    buf_fini(&out);
    return end(&c);
}

coll_status_t coll_store_add(
    coll_store_t *store, const char *key, int64_t delta, int64_t *result)
{
    struct call c = {.name = "coll_store_add", .store = store};
    int64_t sum;

    if (is_given(&c, "key", key) && begin(&c, 0)) {
        c.rc = coll_store_do_add(store, key, delta, &sum, c.deadline_ns, &c.e);
        if (c.rc == 0 && result != NULL)
            *result = sum;
    }
    return end(&c);
}

coll_status_t coll_store_wait(coll_store_t *store, const char *const *keys,
    size_t nkeys, int64_t timeout_ms)
{
    struct call c = {.name = "coll_store_wait", .store = store};

    if (are_keys(&c, keys, nkeys) && begin(&c, timeout_ms))
        c.rc = coll_store_do_wait(store, keys, nkeys, c.deadline_ns, &c.e);
    return end(&c);
}

coll_status_t coll_store_compare_set(coll_store_t *store, const char *key,
    const void *expected, size_t expected_len, const void *desired,
    size_t desired_len, void **value, size_t *len)
{
    struct call c = {.name = "coll_store_compare_set", .store = store};
    struct buf now;

    init_value(&now);
    if (is_given(&c, "key", key) &&
        is_value(&c, "expected", expected, expected_len) &&
        is_value(&c, "desired", desired, desired_len) &&
        is_given(&c, "value", value) && is_given(&c, "len", len) &&
        begin(&c, 0)) {
        c.rc = coll_store_do_compare_set(store, key,
            store_bytes(expected, expected_len),
            store_bytes(desired, desired_len), &now, c.deadline_ns, &c.e);
        terminate(&c, &now);
        if (c.rc == 0)
            hand_over(&now, value, len);
    }
    buf_fini(&now);
    return end(&c);
}

coll_status_t coll_store_check(
    coll_store_t *store, const char *const *keys, size_t nkeys, bool *exist)
{
    struct call c = {.name = "coll_store_check", .store = store};
    bool all = false;

    if (are_keys(&c, keys, nkeys) && is_given(&c, "exist", exist) &&
        begin(&c, 0)) {
        c.rc =
            coll_store_do_check(store, keys, nkeys, &all, c.deadline_ns, &c.e);
        if (c.rc == 0)
            *exist = all;
    }
    return end(&c);
}

coll_status_t coll_store_delete(
    coll_store_t *store, const char *key, bool *existed)
{
    struct call c = {.name = "coll_store_delete", .store = store};

    if (is_given(&c, "key", key) && begin(&c, 0))
        c.rc = coll_store_do_delete(store, key, existed, c.deadline_ns, &c.e);
    return end(&c);
}

coll_status_t coll_store_num_keys(coll_store_t *store, int64_t *count)
{
    struct call c = {.name = "coll_store_num_keys", .store = store};
    int64_t n;

    if (is_given(&c, "count", count) && begin(&c, 0)) {
        c.rc = c.base->kind->num_keys(c.base->impl, &n, c.deadline_ns, &c.e);
        if (c.rc == 0)
            *count = n;
    }
    return end(&c);
}

coll_status_t coll_store_append(
    coll_store_t *store, const char *key, const void *value, size_t len)
{
    struct call c = {.name = "coll_store_append", .store = store};
    full_key full;

    if (is_given(&c, "key", key) && is_value(&c, "value", value, len) &&
        begin(&c, 0)) {
        c.rc = join_key(store, key, full, &c.e);
        if (c.rc == 0)
            c.rc = c.base->kind->append(c.base->impl, full,
                store_bytes(value, len), c.deadline_ns, &c.e);
    }
    return end(&c);
}

coll_status_t coll_store_multi_get(coll_store_t *store, const char *const *keys,
    size_t nkeys, void **values, size_t *lens)
{
    struct call c = {.name = "coll_store_multi_get", .store = store};
    const char *const *full = NULL;
    struct buf *out = NULL;

    if (!are_keys(&c, keys, nkeys) ||
        (nkeys > 0 && !is_given(&c, "values", values)) ||
        (nkeys > 0 && !is_given(&c, "lens", lens)) || !begin(&c, 0))
        return end(&c);
    c.rc = join_keys(store, keys, nkeys, &full, &c.e);
    if (c.rc < 0)
        return end(&c);
    out = calloc(nkeys + 1, sizeof(*out));
    if (out == NULL)
        c.rc = err_set(&c.e, -ENOMEM, "out of memory for %zu values", nkeys);
    for (size_t i = 0; c.rc == 0 && i < nkeys; i++)
        init_value(&out[i]);
    if (c.rc == 0)
        c.rc = c.base->kind->multi_get(
            c.base->impl, full, nkeys, out, c.deadline_ns, &c.e);
    for (size_t i = 0; c.rc == 0 && i < nkeys; i++)
        terminate(&c, &out[i]);
    for (size_t i = 0; c.rc == 0 && i < nkeys; i++)
        hand_over(&out[i], &values[i], &lens[i]);
    for (size_t i = 0; out != NULL && i < nkeys; i++)
        buf_fini(&out[i]);
    free(out);
    free_keys(full);
    return end(&c);
}

coll_status_t coll_store_multi_set(coll_store_t *store, const char *const *keys,
    size_t nkeys, const void *const *values, const size_t *lens)
{
    struct call c = {.name = "coll_store_multi_set", .store = store};
    const char *const *full = NULL;
    struct store_bytes *list = NULL;
    bool is_well = are_keys(&c, keys, nkeys) &&
                   (nkeys == 0 || is_given(&c, "values", values)) &&
                   (nkeys == 0 || is_given(&c, "lens", lens));

    for (size_t i = 0; is_well && i < nkeys; i++)
        is_well = is_value(&c, "a value", values[i], lens[i]);
    if (!is_well || !begin(&c, 0))
        return end(&c);
    c.rc = join_keys(store, keys, nkeys, &full, &c.e);
    if (c.rc < 0)
        return end(&c);
    list = calloc(nkeys + 1, sizeof(*list));
    if (list == NULL)
        c.rc = err_set(&c.e, -ENOMEM, "out of memory for %zu values", nkeys);
    for (size_t i = 0; c.rc == 0 && i < nkeys; i++)
        list[i] = store_bytes(values[i], lens[i]);
    if (c.rc == 0)
        c.rc = c.base->kind->multi_set(
            c.base->impl, full, list, nkeys, c.deadline_ns, &c.e);
    free(list);
    free_keys(full);
    return end(&c);
}

coll_status_t coll_store_queue_push(
    coll_store_t *store, const char *queue, const void *value, size_t len)
{
    struct call c = {.name = "coll_store_queue_push", .store = store};
    full_key full;

    if (is_given(&c, "queue", queue) && is_value(&c, "value", value, len) &&
        begin(&c, 0)) {
        c.rc = join_key(store, queue, full, &c.e);
        if (c.rc == 0)
            c.rc = c.base->kind->queue_push(c.base->impl, full,
                store_bytes(value, len), c.deadline_ns, &c.e);
    }
    return end(&c);
}

coll_status_t coll_store_queue_pop(coll_store_t *store, const char *queue,
    void **value, size_t *len, int64_t timeout_ms)
{
    struct call c = {.name = "coll_store_queue_pop", .store = store};
    struct buf out;
    full_key full;

    init_value(&out);
    if (is_given(&c, "queue", queue) && is_given(&c, "value", value) &&
        is_given(&c, "len", len) && begin(&c, timeout_ms)) {
        c.rc = join_key(store, queue, full, &c.e);
        if (c.rc == 0)
            c.rc = c.base->kind->queue_pop(
                c.base->impl, full, &out, c.deadline_ns, &c.e);
        terminate(&c, &out);
        if (c.rc == 0)
            hand_over(&out, value, len);
    }
    buf_fini(&out);
    return end(&c);
}

coll_status_t coll_store_queue_len(
    coll_store_t *store, const char *queue, int64_t *len)
{
    struct call c = {.name = "coll_store_queue_len", .store = store};
    full_key full;
    int64_t n;

    if (is_given(&c, "queue", queue) && is_given(&c, "len", len) &&
        begin(&c, 0)) {
        c.rc = join_key(store, queue, full, &c.e);
        if (c.rc == 0)
            c.rc = c.base->kind->queue_len(
                c.base->impl, full, &n, c.deadline_ns, &c.e);
        if (c.rc == 0)
            *len = n;
    }
    return end(&c);
}

/* --- Listing keys --------------------------------------------------------- */

struct listing {
    const coll_store_t *store;
    struct buf names; /* each with its NUL */
    size_t count;
    int rc;
};

static void list_key_cb(struct store_bytes key, void *arg)
{
    struct listing *l = arg;
    size_t skip = l->store->prefix_len;
    size_t old_len = l->names.len;

    if (l->rc < 0 || key.len < skip ||
        (skip > 0 && memcmp(key.data, l->store->prefix, skip) != 0) ||
        (key.len > 0 && memchr(key.data, '\0', key.len) != NULL))
        return;
    l->rc =
        buf_append(&l->names, (const char *)key.data + skip, key.len - skip);
    if (l->rc == 0)
        l->rc = buf_append(&l->names, "", 1);
    if (l->rc < 0)
        l->names.len = old_len;
    else
        l->count++;
}

/* Pointers first, then the names. NULL for no memory. */
static char **make_list(const struct listing *l)
{
    char **list = malloc(l->count * sizeof(*list) + l->names.len);
    char *at;

    if (list == NULL)
        return NULL;
    at = (char *)(list + l->count);
    memcpy(at, buf_bytes(&l->names), l->names.len);
    for (size_t i = 0; i < l->count; i++) {
        list[i] = at;
        at += strlen(at) + 1;
    }
    return list;
}

coll_status_t coll_store_list_keys(
    coll_store_t *store, char ***keys, size_t *nkeys)
{
    struct call c = {.name = "coll_store_list_keys", .store = store};
    struct listing l = {.store = store};
    char **list = NULL;

    init_value(&l.names);
    if (is_given(&c, "keys", keys) && is_given(&c, "nkeys", nkeys) &&
        begin(&c, 0)) {
        c.rc = c.base->kind->list_keys(
            c.base->impl, list_key_cb, &l, c.deadline_ns, &c.e);
        if (c.rc == 0 && l.rc == 0 && l.count > 0) {
            list = make_list(&l);
            l.rc = list == NULL ? -ENOMEM : 0;
        }
        if (c.rc == 0 && l.rc < 0)
            c.rc = err_set(&c.e, -ENOMEM, "out of memory for the keys");
        if (c.rc == 0) {
            *keys = list;
            *nkeys = l.count;
        }
    }
    buf_fini(&l.names);
    return end(&c);
}
