/*
 * The store of kind "tcp": a client (store_client.h), and for a host the
 * server as well, in a thread of its own.
 *
 * The thread touches nothing but its struct host, from its start till it is
 * joined. It is told to end through an eventfd: then it serves on until every
 * worker has come, closes the port, so that nobody comes any more, and serves
 * on until the last worker has gone; all that while there is time. Clients that
 * have not checked in are no workers: nobody waits for them.
 */
#include "store.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/log.h"
#include "rendezvous/listen.h"
#include "rendezvous/poller.h"
#include "rendezvous/store_client.h"
#include "rendezvous/store_port.h"
#include "rendezvous/store_server.h"

/* More than a name service's own time-outs are, as a rule. */
#define HOST_NAME_MS 15000

struct host {
    struct poller *poller;
    struct store_port *port;
    struct store_server *server;
    struct poller_item stop;
    int stop_fd; /* eventfd */
    bool has_thread;
    pthread_t thread;
    bool is_stopping; /* the thread's own, as the next */
    bool is_broken; /* it cannot serve any more */
    /* Set before the eventfd: */
    _Atomic uint64_t end_ns;
    _Atomic int expected; /* check-ins to wait for */
};

struct store_impl {
    struct store_client *client;
    struct host *host; /* NULL: another process has it */
    int world_size; /* 0: not known */
    int64_t linger_ms;
    bool in_hurry; /* close waits for nobody who has not come yet */
};

/* --- The server ----------------------------------------------------------- */

static void discard_line(const char *line, size_t len, void *arg)
{
    (void)line;
    (void)len;
    (void)arg;
}

/* The library writes nothing to the program's stderr, so what a server has to
 * say of clients that misbehave is dropped. */
static void be_silent(void)
{
    log_set_writer(discard_line, NULL);
}

static void on_stop_cb(struct poller_item *item, uint32_t events)
{
    struct host *h =
        (struct host *)((char *)item - offsetof(struct host, stop));
    uint64_t count;

    (void)events;
    if (read(item->fd, &count, sizeof(count)) == sizeof(count))
        h->is_stopping = true;
}

static bool is_told_to_stop(const struct host *h)
{
    return h->is_stopping;
}

static bool all_have_come(const struct host *h)
{
    return store_server_check_ins(h->server) >=
           (size_t)atomic_load(&h->expected);
}

static bool all_have_gone(const struct host *h)
{
    return store_server_workers(h->server) == 0;
}

/* Waiting fails if the program has closed the library's descriptors: then the
 * clients see the end of the store. */
static void serve_until(struct host *h, bool (*is_enough)(const struct host *h))
{
    while (!h->is_broken && !is_enough(h)) {
        int left_ms =
            h->is_stopping ? clock_left_ms(atomic_load(&h->end_ns)) : -1;

        if (left_ms == 0)
            break;
        h->is_broken = poller_run(h->poller, left_ms) < 0;
    }
}

static void *host_main(void *arg)
{
    struct host *h = arg;

    serve_until(h, is_told_to_stop);
    serve_until(h, all_have_come);
    store_port_destroy(h->port);
    h->port = NULL;
    serve_until(h, all_have_gone);
    store_server_destroy(h->server);
    h->server = NULL;
    return NULL;
}

/* Takes NULL and half-built objects. */
static void host_destroy(struct host *h, int expected, uint64_t end_ns)
{
    const uint64_t one = 1;

    if (h == NULL)
        return;
    if (h->has_thread) {
        atomic_store(&h->end_ns, end_ns);
        atomic_store(&h->expected, expected);
        while (write(h->stop_fd, &one, sizeof(one)) < 0 && errno == EINTR)
            continue;
        pthread_join(h->thread, NULL);
    }
    store_port_destroy(h->port);
    store_server_destroy(h->server);
    if (h->poller != NULL)
        poller_remove(h->poller, &h->stop);
    poller_destroy(h->poller);
    if (h->stop_fd >= 0)
        close(h->stop_fd);
    free(h);
}

static int start_thread(struct host *h)
{
    sigset_t all, old;
    int rc;

    /* The program's signals are for the program's threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&h->thread, NULL, host_main, h);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    h->has_thread = rc == 0;
    return -rc;
}

/* The parts of a host that have nothing to do with its address. */
static int host_prepare(struct host *h)
{
    int rc = poller_create(&h->poller);

    if (rc < 0)
        return rc;
    h->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->stop_fd < 0)
        return -errno;
    rc = poller_add(h->poller, &h->stop, h->stop_fd, EPOLLIN, on_stop_cb);
    if (rc < 0)
        return rc;
    return store_server_create(&h->server, h->poller, NULL);
}

/* Of the time that is left, what a silent name service may take: the others
 * have to come as well. */
static uint64_t name_deadline_ns(uint64_t deadline_ns)
{
    int ms = clock_left_ms(deadline_ns) / 2;

    return clock_deadline_ns(ms < HOST_NAME_MS ? ms : HOST_NAME_MS);
}

static int host_create(struct host **out, const char *name, int *port,
    uint64_t deadline_ns, struct err *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct host *h = calloc(1, sizeof(*h));
    int rc;

    if (h == NULL)
        return err_set(e, -ENOMEM, "out of memory");
    pthread_once(&once, be_silent);
    h->stop.fd = -1;
    h->stop_fd = -1;
    rc = listen_check_name(name, *port, name_deadline_ns(deadline_ns), e);
    if (rc < 0)
        goto fail;
    rc = host_prepare(h);
    if (rc < 0) {
        err_set(e, rc, "cannot prepare a store server: %s", strerror(-rc));
        goto fail;
    }
    rc = store_port_create(&h->port, h->poller, name, *port, NULL, port, e);
    if (rc < 0)
        goto fail;
    store_port_set_store(h->port, h->server);
    rc = start_thread(h);
    if (rc < 0) {
        err_set(e, rc, "cannot start a thread: %s", strerror(-rc));
        goto fail;
    }
    *out = h;
    return 0;
fail:
    host_destroy(h, 0, 0);
    return rc;
}

/* --- The store ------------------------------------------------------------ */

static void tcp_close(struct store_impl *s)
{
    uint64_t end_ns;

    if (s == NULL)
        return;
    end_ns = clock_deadline_ns(s->world_size > 0 ? s->linger_ms : 0);
    store_client_close(s->client);
    host_destroy(s->host, s->in_hurry ? 0 : s->world_size, end_ns);
    free(s);
}

void store_tcp_hurry(struct store_impl *s, int64_t linger_ms)
{
    s->in_hurry = true;
    s->linger_ms = linger_ms;
}

int store_tcp_fd(const struct store_impl *s)
{
    return store_client_fd(s->client);
}

int store_tcp_open(struct store_impl **out, const char *host, int *port,
    bool is_host, int world_size, int64_t linger_ms, uint64_t deadline_ns,
    struct err *e)
{
    struct store_impl *s = calloc(1, sizeof(*s));
    int64_t count;
    int rc = 0;

    if (s == NULL)
        return err_set(e, -ENOMEM, "out of memory");
    s->world_size = world_size;
    s->linger_ms = linger_ms;
    if (is_host)
        rc = host_create(&s->host, host, port, deadline_ns, e);
    if (rc == 0)
        rc = store_client_connect(&s->client, host, *port, deadline_ns, e);
    if (rc == 0 && world_size > 0)
        rc = store_client_check_in(s->client, &count, deadline_ns, e);
    if (rc < 0) {
        store_tcp_hurry(s, 0);
        tcp_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

/* --- The operations: the client's ----------------------------------------- */

static int tcp_set(struct store_impl *s, const char *key,
    struct store_bytes value, uint64_t deadline_ns, struct err *e)
{
    return store_client_set(
        s->client, key, value.data, value.len, deadline_ns, e);
}

static int tcp_get(struct store_impl *s, const char *key, struct buf *out,
    uint64_t deadline_ns, struct err *e)
{
    return store_client_get(s->client, key, out, deadline_ns, e);
}

static int tcp_add(struct store_impl *s, const char *key, int64_t delta,
    int64_t *out, uint64_t deadline_ns, struct err *e)
{
    return store_client_add(s->client, key, delta, out, deadline_ns, e);
}

static int tcp_wait(struct store_impl *s, const char *const *keys, size_t nkeys,
    uint64_t deadline_ns, struct err *e)
{
    return store_client_wait(s->client, keys, nkeys, deadline_ns, e);
}

static int tcp_compare_set(struct store_impl *s, const char *key,
    struct store_bytes expected, struct store_bytes desired, struct buf *now,
    uint64_t deadline_ns, struct err *e)
{
    return store_client_compare_set(
        s->client, key, expected, desired, now, deadline_ns, e);
}

static int tcp_delete(struct store_impl *s, const char *key, bool *existed,
    uint64_t deadline_ns, struct err *e)
{
    return store_client_delete(s->client, key, existed, deadline_ns, e);
}

static int tcp_check(struct store_impl *s, const char *const *keys,
    size_t nkeys, bool *out, uint64_t deadline_ns, struct err *e)
{
    return store_client_check(s->client, keys, nkeys, out, deadline_ns, e);
}

static int tcp_num_keys(
    struct store_impl *s, int64_t *count, uint64_t deadline_ns, struct err *e)
{
    return store_client_num_keys(s->client, count, deadline_ns, e);
}

static int tcp_append(struct store_impl *s, const char *key,
    struct store_bytes value, uint64_t deadline_ns, struct err *e)
{
    return store_client_append(
        s->client, key, value.data, value.len, deadline_ns, e);
}

static int tcp_multi_get(struct store_impl *s, const char *const *keys,
    size_t nkeys, struct buf *values, uint64_t deadline_ns, struct err *e)
{
    return store_client_multi_get(
        s->client, keys, nkeys, values, deadline_ns, e);
}

static int tcp_multi_set(struct store_impl *s, const char *const *keys,
    const struct store_bytes *values, size_t nkeys, uint64_t deadline_ns,
    struct err *e)
{
    return store_client_multi_set(
        s->client, keys, values, nkeys, deadline_ns, e);
}

static int tcp_queue_push(struct store_impl *s, const char *key,
    struct store_bytes value, uint64_t deadline_ns, struct err *e)
{
    return store_client_queue_push(
        s->client, key, value.data, value.len, deadline_ns, e);
}

static int tcp_queue_pop(struct store_impl *s, const char *key, struct buf *out,
    uint64_t deadline_ns, struct err *e)
{
    return store_client_queue_pop(s->client, key, out, deadline_ns, e);
}

static int tcp_queue_len(struct store_impl *s, const char *key, int64_t *len,
    uint64_t deadline_ns, struct err *e)
{
    return store_client_queue_len(s->client, key, len, deadline_ns, e);
}

static int tcp_list_keys(struct store_impl *s,
    void (*cb)(struct store_bytes key, void *arg), void *arg,
    uint64_t deadline_ns, struct err *e)
{
    return store_client_list_keys(s->client, cb, arg, deadline_ns, e);
}

const struct store_kind store_tcp_kind = {
    .name = "tcp",
    .close = tcp_close,
    .set = tcp_set,
    .get = tcp_get,
    .add = tcp_add,
    .wait = tcp_wait,
    .compare_set = tcp_compare_set,
    .delete_key = tcp_delete,
    .check = tcp_check,
    .num_keys = tcp_num_keys,
    .append = tcp_append,
    .multi_get = tcp_multi_get,
    .multi_set = tcp_multi_set,
    .queue_push = tcp_queue_push,
    .queue_pop = tcp_queue_pop,
    .queue_len = tcp_queue_len,
    .list_keys = tcp_list_keys,
};
