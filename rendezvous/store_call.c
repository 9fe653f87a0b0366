/*
 * One request and its reply, over the connection of a client; see
 * store_call.h.
 *
 * After a failure in the middle of a reply nobody knows what the next byte
 * belongs to, and requests like ADD must not be sent twice: so there is no
 * reconnecting, the connection is closed and stays so.
 */
#include "rendezvous/store_call.h"

#include <errno.h>
#include <string.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/store_io.h"

/* What is received at once for short replies, and room that is made for a
 * long one before its bytes come. */
#define STORE_RECV_FIRST ((size_t)4 << 10)
#define STORE_RECV_STEP ((size_t)1 << 20)

/* Values longer than this are sent from where they are. */
#define STORE_COPY_MAX ((size_t)4 << 10)

/* A buffer that has grown beyond that is not kept for the next call. */
#define STORE_KEEP_MAX ((size_t)64 << 10)

/* What a server that is alive needs at most for answers for which there is no
 * time left in the caller's deadline. */
#define STORE_GRACE_NS (1 * CLOCK_NS_PER_S)

int store_call_lost(const struct store_call *call, int rc, const char *why)
{
    struct store_client *c = call->c;

    if (c->fd >= 0)
        store_io_close(c->fd);
    c->fd = -1;
    switch (-rc) {
    case ETIMEDOUT:
    case EHOSTDOWN:
        return err_set(call->e, -EHOSTDOWN,
            "%s: the store at %s port %d did not answer in time; its host is "
            "down, overloaded, or the time-out too short",
            call->what, c->host, c->port);
    case ECONNRESET:
    case EPIPE:
        return err_set(call->e, rc,
            "%s: the store at %s port %d has closed the connection; its "
            "process has ended, or the request exceeded its limits",
            call->what, c->host, c->port);
    case EPROTO:
        return err_set(call->e, rc,
            "%s: the store at %s port %d sent an answer that is none (%s)",
            call->what, c->host, c->port, why);
    default:
        return err_set(call->e, rc, "%s at the store at %s port %d: %s",
            call->what, c->host, c->port, strerror(-rc));
    }
}

static void forget(struct buf *b)
{
    buf_consume(b, b->len);
    if (b->cap > STORE_KEEP_MAX)
        buf_fini(b);
}

int store_call_begin(const struct store_call *call)
{
    struct store_client *c = call->c;

    if (c->fd < 0)
        return err_set(call->e, -ENOTCONN,
            "%s: the connection to the store at %s port %d has failed before",
            call->what, c->host, c->port);
    if (c->reply.len > 0)
        return store_call_lost(call, -EPROTO, "nothing was asked");
    forget(&c->request); /* there may be what a call that failed has left */
    forget(&c->reply);
    c->start_ns = clock_now_ns();
    return 0;
}

uint64_t store_call_answer_ns(const struct store_call *call)
{
    uint64_t least_ns = call->c->start_ns + STORE_GRACE_NS;

    return call->deadline_ns < least_ns ? least_ns : call->deadline_ns;
}

uint64_t store_call_grace_ns(const struct store_call *call)
{
    uint64_t from_ns = call->deadline_ns;

    if (from_ns < call->c->start_ns)
        from_ns = call->c->start_ns;
    return from_ns > UINT64_MAX - STORE_GRACE_NS ? UINT64_MAX
                                                 : from_ns + STORE_GRACE_NS;
}

/* --- Requests ------------------------------------------------------------ */

int store_call_check_value(
    const struct store_call *call, const char *key, size_t len)
{
    size_t max = call->c->limits.value_len;

    if (len <= max)
        return 0;
    return err_set(call->e, -EMSGSIZE,
        "%s %.200s: a value of %zu bytes, the limit is %zu", call->what, key,
        len, max);
}

static int check_key(const struct store_call *call, const char *key)
{
    size_t len = strlen(key) + 1; /* PyTorch's slash */
    size_t max = call->c->limits.key_len;

    if (len <= max)
        return 0;
    return err_set(call->e, -EMSGSIZE,
        "%s: a store key of %zu bytes, the limit is %zu", call->what, len, max);
}

/* Appends a key with PyTorch's slash to the list. */
static int list_add(const struct store_call *call, const char *key)
{
    struct buf *list = &call->c->list;
    size_t len = strlen(key) + 1;
    int rc = check_key(call, key);

    if (rc < 0)
        return rc;
    if (store_put_u64(list, len) < 0 || buf_append(list, "/", 1) < 0 ||
        buf_append(list, key, len - 1) < 0)
        return err_set(
            call->e, -ENOMEM, "%s: out of memory for store keys", call->what);
    return 0;
}

int store_call_set_keys(const struct store_call *call,
    struct store_request *req, const char *const *keys, size_t nkeys)
{
    struct store_client *c = call->c;
    struct store_bytes list;
    int rc = 0;

    if (nkeys > c->limits.list_count)
        return err_set(call->e, -EMSGSIZE,
            "%s: %zu store keys at once, the limit is %zu", call->what, nkeys,
            c->limits.list_count);
    forget(&c->list);
    for (size_t i = 0; rc == 0 && i < nkeys; i++)
        rc = list_add(call, keys[i]);
    if (rc < 0)
        return rc;
    req->list_count = nkeys;
    if (nkeys == 0)
        return 0;
    req->list = store_bytes(buf_bytes(&c->list), c->list.len);
    list = req->list;
    store_list_next(&list, &req->key);
    return 0;
}

int store_call_set_key(
    const struct store_call *call, struct store_request *req, const char *key)
{
    return store_call_set_keys(call, req, &key, 1);
}

int store_call_prepare(const struct store_call *call,
    const struct store_request *req, struct store_bytes *rest)
{
    struct buf *request = &call->c->request;
    size_t old_len = request->len;
    int rc = store_encode_head(request, call->c->peer.dialect, req);

    *rest = store_bytes(NULL, 0);
    if (rc == 0 && req->value.len > STORE_COPY_MAX)
        *rest = req->value;
    else if (rc == 0)
        rc = buf_append(request, req->value.data, req->value.len);
    if (rc == 0)
        return 0;
    request->len = old_len; /* half a request must not be sent */
    return err_set(call->e, rc, "%s: %s", call->what, strerror(-rc));
}

int store_call_flush(const struct store_call *call, struct store_bytes rest)
{
    struct store_client *c = call->c;
    struct iovec iov[] = {
        {(void *)buf_bytes(&c->request), c->request.len},
        {(void *)rest.data, rest.len},
    };
    int rc = store_io_send(c->fd, iov, rest.len > 0 ? 2 : 1, call->deadline_ns);

    forget(&c->request);
    return rc < 0 ? store_call_lost(call, rc, NULL) : 0;
}

int store_call_send(
    const struct store_call *call, const struct store_request *req)
{
    struct store_bytes rest;
    int rc = store_call_prepare(call, req, &rest);

    return rc < 0 ? rc : store_call_flush(call, rest);
}

/* --- Replies ------------------------------------------------------------- */

/* Receives so that the reply has, if possible, need bytes. */
static int receive_more(const struct store_call *call, size_t need)
{
    struct store_client *c = call->c;
    size_t room = need > c->reply.len ? need - c->reply.len : 0;
    char *dst;
    ssize_t n;

    if (room < STORE_RECV_FIRST)
        room = STORE_RECV_FIRST;
    if (room > STORE_RECV_STEP)
        room = STORE_RECV_STEP;
    dst = buf_reserve(&c->reply, room);
    if (dst == NULL)
        return -ENOMEM;
    n = store_io_recv(c->fd, dst, room, call->deadline_ns);
    if (n < 0)
        return (int)n;
    buf_added(&c->reply, (size_t)n);
    return 0;
}

int store_call_try_receive(const struct store_call *call, enum store_op op,
    size_t nkeys, struct store_reply *reply)
{
    struct store_client *c = call->c;
    struct store_parser parser = {0};
    struct err why;
    size_t used;
    int rc;

    for (;;) {
        rc = store_parse_reply(&parser, op, nkeys, &c->limits,
            buf_bytes(&c->reply), c->reply.len, reply, &used, &why);
        if (rc != 0)
            break;
        rc = receive_more(call, parser.need);
        if (rc == -ETIMEDOUT)
            return rc;
        if (rc < 0)
            return store_call_lost(call, rc, NULL);
    }
    if (rc < 0)
        return store_call_lost(call, -EPROTO, why.msg);
    buf_consume(&c->reply, used); /* the bytes stay where they are */
    return 0;
}

int store_call_receive(const struct store_call *call, enum store_op op,
    size_t nkeys, struct store_reply *reply)
{
    int rc = store_call_try_receive(call, op, nkeys, reply);

    return rc == -ETIMEDOUT ? store_call_lost(call, rc, NULL) : rc;
}

/* The rest of a long value: what has come of it, then straight to out. */
static int receive_long(
    const struct store_call *call, size_t len, struct buf *out)
{
    struct store_client *c = call->c;
    size_t left = len;
    size_t step = c->reply.len < left ? c->reply.len : left;
    int rc = buf_append(out, buf_bytes(&c->reply), step);

    if (rc < 0)
        return rc;
    buf_consume(&c->reply, step);
    for (left -= step; left > 0; left -= step) {
        char *dst;
        ssize_t n;

        step = left < STORE_RECV_STEP ? left : STORE_RECV_STEP;
        dst = buf_reserve(out, step);
        if (dst == NULL)
            return -ENOMEM;
        n = store_io_recv(c->fd, dst, step, call->deadline_ns);
        if (n < 0)
            return (int)n;
        step = (size_t)n;
        buf_added(out, step);
    }
    return 0;
}

int store_call_receive_value(const struct store_call *call, struct buf *out)
{
    struct store_client *c = call->c;
    struct store_parser parser = {0};
    struct store_reply reply;
    struct err why;
    size_t old_len = out->len;
    size_t len, used;
    int rc;

    do {
        rc = store_parse_reply(&parser, STORE_OP_GET, 1, &c->limits,
            buf_bytes(&c->reply), c->reply.len, &reply, &used, &why);
        if (rc < 0)
            return store_call_lost(call, -EPROTO, why.msg);
        if (rc > 0 || c->reply.len >= sizeof(uint64_t))
            break;
        rc = receive_more(call, parser.need);
    } while (rc == 0);
    if (rc < 0)
        return store_call_lost(call, rc, NULL);
    len = (size_t)store_get_u64(buf_bytes(&c->reply));
    if (len > out->max - out->len)
        return store_call_lost(call, -ENOBUFS, NULL);
    buf_consume(&c->reply, sizeof(uint64_t));
    rc = receive_long(call, len, out);
    if (rc == 0)
        return 0;
    out->len = old_len;
    return store_call_lost(call, rc, NULL);
}

int store_call_ask_number(const struct store_call *call,
    const struct store_request *req, int64_t *number)
{
    struct store_reply reply;
    int rc = store_call_send(call, req);

    if (rc == 0)
        rc = store_call_receive(call, req->op, 0, &reply);
    if (rc < 0)
        return rc;
    *number = reply.number;
    return 0;
}
