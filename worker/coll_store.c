/*
 * Stores as objects: opening, views, closing, and how an errno becomes a
 * status and a sentence. coll_store_ops.c has the operations.
 */
#include "store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "coll_agent.h"
#include "rendezvous/base/clock.h"

#define DEFAULT_TIMEOUT_MS ((int64_t)300 * 1000)

#define ANSWER_MS 1000

/* What closing in a hurry may take: the others are told to go at that very
 * moment. */
#define HURRY_MS 1000

coll_status_t coll_store_fail(const char *call, int rc, const struct err *e)
{
    coll_status_t status = COLL_ERR_STORE;

    switch (-rc) {
    case ECANCELED: /* happens in coll_init() only */
        return coll_agent_fail_canceled(call);
    case ETIMEDOUT:
        status = COLL_ERR_TIMEOUT;
        break;
    case EOPNOTSUPP:
        status = COLL_ERR_UNSUPPORTED;
        break;
    case ENOMEM:
        status = COLL_ERR_MEMORY;
        break;
    case EMSGSIZE:
        status = COLL_ERR_ARGUMENT;
        break;
    }
    return coll_fail(status, "%s: %s", call, e->msg);
}

coll_status_t coll_store_fail_init(int rc, const struct err *e)
{
    return coll_store_fail("coll_init", rc == -EHOSTDOWN ? -ETIMEDOUT : rc, e);
}

uint64_t coll_store_answer_ns(uint64_t deadline_ns)
{
    uint64_t grace_ns = ANSWER_MS * CLOCK_NS_PER_MS;
    uint64_t answer_ns = clock_deadline_ns(ANSWER_MS);

    if (deadline_ns >= answer_ns)
        return deadline_ns;
    return answer_ns < deadline_ns + grace_ns ? answer_ns
                                              : deadline_ns + grace_ns;
}

int coll_store_wrap(coll_store_t **out, const struct store_kind *kind,
    struct store_impl *impl, int port, int64_t timeout_ms, struct err *e)
{
    struct coll_store *s = calloc(1, sizeof(*s) + 1);
    pthread_mutexattr_t attr;

    if (s == NULL) {
        kind->close(impl);
        return err_set(e, -ENOMEM, "out of memory");
    }
    s->base = s;
    s->kind = kind;
    s->impl = impl;
    s->port = port;
    atomic_init(&s->timeout_ms, timeout_ms);
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&s->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    *out = s;
    return 0;
}

/* What all that open have in common. Fills in the time-out. */
static coll_status_t check_open(const char *call, coll_store_t *const *store,
    const coll_store_options_t **options, int64_t *timeout_ms)
{
    static const coll_store_options_t defaults = {0, false, 0};

    if (*options == NULL)
        *options = &defaults;
    *timeout_ms = (*options)->timeout_ms;
    if (store == NULL)
        return coll_fail(COLL_ERR_ARGUMENT, "%s: store is NULL", call);
    if (*timeout_ms < 0)
        return coll_fail(COLL_ERR_ARGUMENT,
            "%s: timeout_ms is %" PRId64 ", it must not be negative", call,
            *timeout_ms);
    if ((*options)->world_size < 0)
        return coll_fail(COLL_ERR_ARGUMENT,
            "%s: world_size is %d, it must not be negative", call,
            (*options)->world_size);
    if (*timeout_ms == 0)
        *timeout_ms = DEFAULT_TIMEOUT_MS;
    return COLL_OK;
}

static coll_status_t check_text(
    const char *call, const char *name, const char *text)
{
    if (text == NULL || text[0] == '\0')
        return coll_fail(COLL_ERR_ARGUMENT, "%s: %s is %s", call, name,
            text == NULL ? "NULL" : "empty");
    return COLL_OK;
}

/* The end of opening: rc is how it went. */
static coll_status_t finish_open(const char *call, coll_store_t **store, int rc,
    const struct store_kind *kind, struct store_impl *impl, int port,
    int64_t timeout_ms, struct err *e)
{
    if (rc == 0)
        rc = coll_store_wrap(store, kind, impl, port, timeout_ms, e);
    return rc == 0 ? COLL_OK : coll_store_fail(call, rc, e);
}

coll_status_t coll_store_tcp(coll_store_t **store, const char *host, int port,
    const coll_store_options_t *options)
{
    const char *call = "coll_store_tcp";
    struct store_impl *impl = NULL;
    struct err e = {0};
    int64_t timeout_ms;
    int least;
    int rc;
    coll_status_t status = check_open(call, store, &options, &timeout_ms);

    if (status == COLL_OK)
        status = check_text(call, "host", host);
    if (status != COLL_OK)
        return status;
    least = options->is_host ? 0 : 1;
    if (port < least || port > 65535)
        return coll_fail(COLL_ERR_ARGUMENT,
            "%s: port is %d, it must be from %d to 65535", call, port, least);
    rc = store_tcp_open(&impl, host, &port, options->is_host,
        options->world_size, timeout_ms, clock_deadline_ns(timeout_ms), &e);
    return finish_open(
        call, store, rc, &store_tcp_kind, impl, port, timeout_ms, &e);
}

coll_status_t coll_store_file(
    coll_store_t **store, const char *path, const coll_store_options_t *options)
{
    const char *call = "coll_store_file";
    struct store_impl *impl = NULL;
    struct err e = {0};
    int64_t timeout_ms;
    int rc;
    coll_status_t status = check_open(call, store, &options, &timeout_ms);

    if (status == COLL_OK)
        status = check_text(call, "path", path);
    if (status != COLL_OK)
        return status;
    rc = store_file_open(
        &impl, path, options->world_size, clock_deadline_ns(timeout_ms), &e);
    return finish_open(
        call, store, rc, &store_file_kind, impl, -1, timeout_ms, &e);
}

coll_status_t coll_store_hash(
    coll_store_t **store, const coll_store_options_t *options)
{
    const char *call = "coll_store_hash";
    struct store_impl *impl = NULL;
    struct err e = {0};
    int64_t timeout_ms;
    int rc;
    coll_status_t status = check_open(call, store, &options, &timeout_ms);

    if (status != COLL_OK)
        return status;
    rc = store_hash_open(&impl, &e);
    return finish_open(
        call, store, rc, &store_hash_kind, impl, -1, timeout_ms, &e);
}

coll_status_t coll_store_prefix(
    coll_store_t **store, const char *prefix, coll_store_t *base)
{
    const char *call = "coll_store_prefix";
    struct coll_store *s;
    size_t len;

    if (store == NULL || prefix == NULL || base == NULL)
        return coll_fail(COLL_ERR_ARGUMENT, "%s: %s is NULL", call,
            store == NULL    ? "store"
            : prefix == NULL ? "prefix"
                             : "base");
    len = strlen(prefix);
    if (len >= FULL_KEY_MAX - base->prefix_len)
        return coll_fail(COLL_ERR_ARGUMENT,
            "%s: a prefix of %zu bytes leaves no room for keys, which may "
            "have %d with all prefixes",
            call, base->prefix_len + len, FULL_KEY_MAX);
    s = calloc(1, sizeof(*s) + base->prefix_len + len + 2);
    if (s == NULL)
        return coll_fail(COLL_ERR_MEMORY, "%s: out of memory", call);
    s->base = base->base;
    s->prefix_len = base->prefix_len + len + 1;
    memcpy(s->prefix, base->prefix, base->prefix_len);
    memcpy(s->prefix + base->prefix_len, prefix, len);
    s->prefix[s->prefix_len - 1] = '/';
    *store = s;
    return COLL_OK;
}

void coll_store_close(coll_store_t *store)
{
    if (store == NULL)
        return;
    if (store == store->base) {
        store->kind->close(store->impl);
        pthread_mutex_destroy(&store->lock);
    }
    free(store);
}

void coll_store_abandon(coll_store_t *store)
{
    if (store != NULL && store->kind == &store_tcp_kind)
        store_tcp_hurry(store->impl, HURRY_MS);
    coll_store_close(store);
}

int coll_store_port(const coll_store_t *store)
{
    return store == NULL ? -1 : store->base->port;
}

int coll_store_fd(const coll_store_t *store)
{
    const struct coll_store *b = store->base;

    return b->kind == &store_tcp_kind ? store_tcp_fd(b->impl) : -1;
}

coll_status_t coll_store_set_timeout(coll_store_t *store, int64_t timeout_ms)
{
    if (store == NULL)
        return coll_fail(
            COLL_ERR_ARGUMENT, "coll_store_set_timeout: store is NULL");
    if (timeout_ms <= 0)
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_store_set_timeout: timeout_ms is %" PRId64
            ", it must be greater than 0",
            timeout_ms);
    atomic_store(&store->base->timeout_ms, timeout_ms);
    return COLL_OK;
}
