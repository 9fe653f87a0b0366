/*
 * What a kind of store (TCP, file, in-process) has to provide for the public
 * coll_store_ calls; coll_store.c does the rest: arguments, prefixes, the
 * lock, deadlines, statuses and sentences.
 */
#ifndef CRUN_WORKER_STORE_H
#define CRUN_WORKER_STORE_H

#include <collective.h>
#include <pthread.h>
#include <stdatomic.h>

#include "rendezvous/base/buf.h"
#include "rendezvous/base/err.h"
#include "rendezvous/store_codec.h"

struct store_impl; /* each kind's own */

/*
 * Keys are complete (prefixes included) but without PyTorch's slash. Calls
 * return 0 or a negative errno with the reason in e; errnos as those of
 * store_client.h: -ETIMEDOUT when a key did not appear, -EOPNOTSUPP. The
 * calls of one store are made one at a time, unless it is_threaded.
 */
struct store_kind {
    const char *name; /* "tcp", "file", "hash" */
    void (*close)(struct store_impl *s); /* takes NULL */
    int (*set)(struct store_impl *s, const char *key, struct store_bytes value,
        uint64_t deadline_ns, struct err *e);
    int (*get)(struct store_impl *s, const char *key, struct buf *out,
        uint64_t deadline_ns, struct err *e);
    int (*add)(struct store_impl *s, const char *key, int64_t delta,
        int64_t *out, uint64_t deadline_ns, struct err *e);
    int (*wait)(struct store_impl *s, const char *const *keys, size_t nkeys,
        uint64_t deadline_ns, struct err *e);
    int (*compare_set)(struct store_impl *s, const char *key,
        struct store_bytes expected, struct store_bytes desired,
        struct buf *now, uint64_t deadline_ns, struct err *e);
    int (*delete_key)(struct store_impl *s, const char *key, bool *existed,
        uint64_t deadline_ns, struct err *e);
    int (*check)(struct store_impl *s, const char *const *keys, size_t nkeys,
        bool *out, uint64_t deadline_ns, struct err *e);
    int (*num_keys)(struct store_impl *s, int64_t *count, uint64_t deadline_ns,
        struct err *e);
    int (*append)(struct store_impl *s, const char *key,
        struct store_bytes value, uint64_t deadline_ns, struct err *e);
    int (*multi_get)(struct store_impl *s, const char *const *keys,
        size_t nkeys, struct buf *values, uint64_t deadline_ns, struct err *e);
    int (*multi_set)(struct store_impl *s, const char *const *keys,
        const struct store_bytes *values, size_t nkeys, uint64_t deadline_ns,
        struct err *e);
    int (*queue_push)(struct store_impl *s, const char *key,
        struct store_bytes value, uint64_t deadline_ns, struct err *e);
    int (*queue_pop)(struct store_impl *s, const char *key, struct buf *out,
        uint64_t deadline_ns, struct err *e);
    int (*queue_len)(struct store_impl *s, const char *key, int64_t *len,
        uint64_t deadline_ns, struct err *e);
    int (*list_keys)(struct store_impl *s,
        void (*cb)(struct store_bytes key, void *arg), void *arg,
        uint64_t deadline_ns, struct err *e);
    bool is_threaded; /* its calls may be made at the same time */
};

/* store_file.c: joins the store in the file at path, which it creates with
 * mode 0644 if it is missing. world_size: 0, or after how many closes the
 * file goes away. Closing waits for the file's lock as long as opening may, but
 * half a minute at most. */
extern const struct store_kind store_file_kind;
int store_file_open(struct store_impl **out, const char *path, int world_size,
    uint64_t deadline_ns, struct err *e);

/* store_hash.c: an empty store in this process. */
extern const struct store_kind store_hash_kind;
int store_hash_open(struct store_impl **out, struct err *e);

/*
 * store_tcp.c: a client, and with is_host also a server in a thread of its
 * own. *port is the port (the one chosen, if a host gave 0). world_size > 0:
 * the client checks in; a host then waits in close, for at most linger_ms,
 * until the other clients have come and gone.
 */
extern const struct store_kind store_tcp_kind;
int store_tcp_open(struct store_impl **out, const char *host, int *port,
    bool is_host, int world_size, int64_t linger_ms, uint64_t deadline_ns,
    struct err *e);

int store_tcp_fd(const struct store_impl *s);

/* There is nothing to wait for any more: close lets those clients go that are
 * there, for at most linger_ms. */
void store_tcp_hurry(struct store_impl *s, int64_t linger_ms);

/* --- Inside the library ------------------------------------------------- */

/* Longest complete key, without PyTorch's slash. */
#define FULL_KEY_MAX 8191

struct coll_store {
    struct coll_store *base; /* itself, unless it is a view of another */
    /* Of a base only: */
    const struct store_kind *kind;
    struct store_impl *impl; /* owned */
    /* Recursive: the time of a public call begins when it has the lock, and
     * then it goes through the calls below. */
    pthread_mutex_t lock;
    _Atomic int64_t timeout_ms;
    int port; /* -1 unless it is TCP */
    /* What a view puts in front of keys, its base's prefix included. */
    size_t prefix_len;
    char prefix[];
};

/* Makes a store of an opened one. Takes impl, also on failure. */
int coll_store_wrap(coll_store_t **out, const struct store_kind *kind,
    struct store_impl *impl, int port, int64_t timeout_ms, struct err *e);

/* Closes a store after a failure: nobody will use it any more. Takes NULL. */
void coll_store_abandon(coll_store_t *store);

/* The socket of a TCP store, for its addresses only and until the next call;
 * -1 for other stores. */
int coll_store_fd(const coll_store_t *store);

/* Turns the errno of a store's call into a status and a sentence. */
coll_status_t coll_store_fail(const char *call, int rc, const struct err *e);

/* The same during coll_init(), where a store that does not answer is a
 * time-out. */
coll_status_t coll_store_fail_init(int rc, const struct err *e);

/*
 * In coll_init(), until when to wait for what a store that lives answers at
 * once. Also when the time is nearly over a slow answer is no missing one: so
 * a second from now, but not beyond a second after the deadline.
 */
uint64_t coll_store_answer_ns(uint64_t deadline_ns);

/*
 * The public calls with an absolute deadline and an errno, for coll_init.c
 * and the back ends. store is locked during the call.
 */
int coll_store_do_set(coll_store_t *store, const char *key,
    struct store_bytes value, uint64_t deadline_ns, struct err *e);
int coll_store_do_get(coll_store_t *store, const char *key, struct buf *out,
    uint64_t deadline_ns, struct err *e);
int coll_store_do_add(coll_store_t *store, const char *key, int64_t delta,
    int64_t *out, uint64_t deadline_ns, struct err *e);
int coll_store_do_wait(coll_store_t *store, const char *const *keys,
    size_t nkeys, uint64_t deadline_ns, struct err *e);
int coll_store_do_compare_set(coll_store_t *store, const char *key,
    struct store_bytes expected, struct store_bytes desired, struct buf *now,
    uint64_t deadline_ns, struct err *e);
int coll_store_do_delete(coll_store_t *store, const char *key, bool *existed,
    uint64_t deadline_ns, struct err *e);
int coll_store_do_check(coll_store_t *store, const char *const *keys,
    size_t nkeys, bool *out, uint64_t deadline_ns, struct err *e);

#endif
