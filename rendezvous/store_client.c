/*
 * The operations of the blocking store client; see store_client.h. How one
 * request is sent and its reply received is in store_call.c.
 */
#include "rendezvous/store_client.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/text.h"
#include "rendezvous/store_call.h"
#include "rendezvous/store_io.h"

/* Several small requests are sent together, up to that many bytes. */
#define STORE_BATCH_MAX ((size_t)64 << 10)

/* The longest pause between two lost races for an element of a queue. */
#define STORE_RACE_PAUSE_MS 50

/* --- Connecting ---------------------------------------------------------- */

/* Neither sets the host, the port and the server. */
static void client_init(struct store_client *c)
{
    c->fd = -1;
    c->limits = STORE_LIMITS_DEFAULT;
    buf_init(&c->request, c->limits.memory);
    buf_init(&c->list, c->limits.memory);
    buf_init(&c->reply, c->limits.memory);
}

int store_client_connect(struct store_client **out, const char *host, int port,
    uint64_t deadline_ns, struct err *e)
{
    struct store_client *c;
    int rc;

    if (port < 1 || port > 65535)
        return err_set(
            e, -EINVAL, "store port %d is not between 1 and 65535", port);
    c = calloc(1, sizeof(*c));
    if (c == NULL)
        return err_set(e, -ENOMEM, "out of memory");
    client_init(c);
    c->port = port;
    c->host = strdup(host);
    if (c->host == NULL) {
        rc = err_set(e, -ENOMEM, "out of memory");
        goto fail;
    }
    rc = store_connect(&c->peer, host, port, deadline_ns, e);
    if (rc < 0)
        goto fail;
    c->fd = rc;
    *out = c;
    return 0;
fail:
    store_client_close(c);
    return rc;
}

static void client_fini(struct store_client *c)
{
    if (c->fd >= 0)
        store_io_close(c->fd);
    buf_fini(&c->request);
    buf_fini(&c->list);
    buf_fini(&c->reply);
}

void store_client_close(struct store_client *c)
{
    if (c == NULL)
        return;
    client_fini(c);
    free(c->host);
    free(c);
}

int store_client_fd(const struct store_client *c)
{
    return c->fd;
}

enum store_dialect store_client_dialect(const struct store_client *c)
{
    return c->peer.dialect;
}

int store_client_check_in(
    struct store_client *c, int64_t *count, uint64_t deadline_ns, struct err *e)
{
    const struct store_call call = {c, "check in", deadline_ns, e};
    const struct store_request req = {
        .op = STORE_OP_ADD, .key = store_bytes("init/", 5), .number = 1};
    int rc = store_call_begin(&call);

    return rc < 0 ? rc : store_call_ask_number(&call, &req, count);
}

/* --- Waiting ------------------------------------------------------------- */

/*
 * The keys did not come in time: takes the WAIT back. The server may have
 * answered it in the meantime; its 0 is then in front of the 1, and the wait
 * has succeeded after all.
 */
static int cancel_wait(const struct store_call *call)
{
    const struct store_request req = {.op = STORE_OP_CANCEL_WAIT};
    struct store_reply reply;
    bool have_come = false;
    int rc;

    rc = store_call_send(call, &req);
    while (rc == 0) {
        rc = store_call_receive(call, STORE_OP_CANCEL_WAIT, 0, &reply);
        if (rc < 0)
            break;
        if (reply.byte == STORE_WAIT_CANCELED)
            return have_come ? 0 : -ETIMEDOUT;
        if (have_come)
            return store_call_lost(call, -EPROTO, "two for one wait");
        have_come = true;
    }
    return rc;
}

/*
 * The same with a server of dialect A, which keeps a WAIT until its
 * connection ends. Before that, CHECK: its answer tells that the server has
 * executed all that was sent before, so that nothing overtakes it on the new
 * connection. A late 0 of the WAIT means the same as one of the CHECK.
 */
static int leave_wait(
    const struct store_call *call, const struct store_request *wait)
{
    struct store_client *c = call->c;
    struct store_request req = *wait;
    struct store_reply reply;
    int rc;

    req.op = STORE_OP_CHECK;
    rc = store_call_send(call, &req);
    if (rc == 0)
        rc = store_call_receive(call, STORE_OP_CHECK, req.list_count, &reply);
    if (rc < 0)
        return rc;
    rc = store_connect_again(&c->peer, call->deadline_ns);
    if (rc < 0)
        return store_call_lost(call, rc, NULL);
    store_io_close(c->fd);
    c->fd = rc;
    buf_consume(&c->reply, c->reply.len);
    return reply.byte == STORE_CHECK_READY ? 0 : -ETIMEDOUT;
}

/* Waits for the keys of a request's list. -ETIMEDOUT: they did not come, and
 * the connection is as before. */
static int wait_keys(
    const struct store_call *call, const struct store_request *keys)
{
    struct store_request req = *keys;
    struct store_reply reply;
    struct store_call again = *call;
    int rc;

    req.op = STORE_OP_WAIT;
    rc = store_call_send(call, &req);
    if (rc == 0)
        rc =
            store_call_try_receive(call, STORE_OP_WAIT, req.list_count, &reply);
    if (rc != -ETIMEDOUT)
        return rc;
    again.deadline_ns = store_call_grace_ns(call);
    if (store_opcode(call->c->peer.dialect, STORE_OP_CANCEL_WAIT) < 0)
        return leave_wait(&again, &req);
    return cancel_wait(&again);
}

/* The sentence for that. */
static int did_not_come(
    const struct store_call *call, const char *const *keys, size_t nkeys)
{
    struct store_client *c = call->c;

    if (nkeys == 1)
        return err_set(call->e, -ETIMEDOUT,
            "%s: key %.200s did not appear in the store at %s port %d in time",
            call->what, keys[0], c->host, c->port);
    return err_set(call->e, -ETIMEDOUT,
        "%s: not all of %zu keys (%.200s, ...) appeared in the store at %s "
        "port %d in time",
        call->what, nkeys, nkeys > 0 ? keys[0] : "", c->host, c->port);
}

/* Waits for keys, in a call that has begun, and leaves some time to fetch what
 * has come at the last moment. */
static int await(struct store_call *call, struct store_request *req,
    const char *const *keys, size_t nkeys)
{
    int rc = store_call_set_keys(call, req, keys, nkeys);

    if (rc == 0)
        rc = wait_keys(call, req);
    if (rc == -ETIMEDOUT)
        return did_not_come(call, keys, nkeys);
    call->deadline_ns = store_call_grace_ns(call);
    return rc;
}

int store_client_wait(struct store_client *c, const char *const *keys,
    size_t nkeys, uint64_t deadline_ns, struct err *e)
{
    struct store_call call = {c, "wait", deadline_ns, e};
    struct store_request req = {.op = STORE_OP_WAIT};
    int rc = store_call_begin(&call);

    return rc < 0 ? rc : await(&call, &req, keys, nkeys);
}

/*
 * A server of PyTorch may close the connection if a key is missing, so it is
 * waited for, and only then asked for. crun's is asked at once whether it is
 * there, and for it: one round trip if it is. What comes for a missing key is
 * dropped.
 */
static int ask_for_value(
    struct store_call *call, struct store_request *req, const char *key)
{
    struct store_request check = {.op = STORE_OP_CHECK};
    struct store_call soon = *call;
    struct store_bytes nothing;
    struct store_reply reply;
    int rc = store_call_begin(call);

    if (rc == 0)
        rc = store_call_set_key(call, req, key);
    if (rc < 0)
        return rc;
    if (call->c->peer.is_crun) {
        check.list_count = 1;
        check.list = req->list;
        soon.deadline_ns = store_call_answer_ns(call);
        rc = store_call_prepare(&soon, &check, &nothing);
        if (rc == 0)
            rc = store_call_send(&soon, req);
        if (rc == 0)
            rc = store_call_receive(&soon, STORE_OP_CHECK, 1, &reply);
        if (rc < 0 || reply.byte == STORE_CHECK_READY) {
            call->deadline_ns = soon.deadline_ns;
            return rc;
        }
        rc = store_call_receive(&soon, req->op, 1, &reply);
        if (rc < 0)
            return rc;
        if (clock_left_ms(call->deadline_ns) == 0)
            return did_not_come(call, &key, 1);
    }
    rc = await(call, req, &key, 1);
    return rc < 0 ? rc : store_call_send(call, req);
}

int store_client_get(struct store_client *c, const char *key, struct buf *out,
    uint64_t deadline_ns, struct err *e)
{
    struct store_call call = {c, "get", deadline_ns, e};
    struct store_request req = {.op = STORE_OP_GET};
    int rc = ask_for_value(&call, &req, key);

    return rc < 0 ? rc : store_call_receive_value(&call, out);
}

/* --- One key ------------------------------------------------------------- */

/* Requests that end with a value and have no answer. */
static int put(const struct store_call *call, enum store_op op, const char *key,
    struct store_bytes value)
{
    struct store_request req = {.op = op, .value = value};
    int rc = store_call_begin(call);

    if (rc == 0)
        rc = store_call_check_value(call, key, value.len);
    if (rc == 0)
        rc = store_call_set_key(call, &req, key);
    return rc < 0 ? rc : store_call_send(call, &req);
}

int store_client_set(struct store_client *c, const char *key, const void *value,
    size_t len, uint64_t deadline_ns, struct err *e)
{
    const struct store_call call = {c, "set", deadline_ns, e};

    return put(&call, STORE_OP_SET, key, store_bytes(value, len));
}

/* Requests with one key that are answered with a number. */
static int ask_key(const struct store_call *call, enum store_op op,
    const char *key, int64_t number, int64_t *answer)
{
    struct store_request req = {.op = op, .number = number};
    int rc = store_call_begin(call);

    if (rc == 0)
        rc = store_call_set_key(call, &req, key);
    return rc < 0 ? rc : store_call_ask_number(call, &req, answer);
}

int store_client_add(struct store_client *c, const char *key, int64_t delta,
    int64_t *out, uint64_t deadline_ns, struct err *e)
{
    const struct store_call call = {c, "add", deadline_ns, e};

    return ask_key(&call, STORE_OP_ADD, key, delta, out);
}

int store_client_delete(struct store_client *c, const char *key, bool *existed,
    uint64_t deadline_ns, struct err *e)
{
    const struct store_call call = {c, "delete", deadline_ns, e};
    int64_t removed = 0;
    int rc = ask_key(&call, STORE_OP_DELETE_KEY, key, 0, &removed);

    if (rc == 0 && existed != NULL)
        *existed = removed > 0;
    return rc;
}

static int compare_set(const struct store_call *call, const char *key,
    struct store_bytes expected, struct store_bytes desired, struct buf *now)
{
    struct store_request req = {
        .op = STORE_OP_COMPARE_SET, .expected = expected, .value = desired};
    int rc = store_call_begin(call);

    if (rc == 0)
        rc = store_call_check_value(call, key, expected.len);
    if (rc == 0)
        rc = store_call_check_value(call, key, desired.len);
    if (rc == 0)
        rc = store_call_set_key(call, &req, key);
    if (rc == 0)
        rc = store_call_send(call, &req);
    return rc < 0 ? rc : store_call_receive_value(call, now);
}

int store_client_compare_set(struct store_client *c, const char *key,
    struct store_bytes expected, struct store_bytes desired, struct buf *now,
    uint64_t deadline_ns, struct err *e)
{
    const struct store_call call = {c, "compare and set", deadline_ns, e};

    return compare_set(&call, key, expected, desired, now);
}

static int check(const struct store_call *call, const char *const *keys,
    size_t nkeys, bool *out)
{
    struct store_request req = {.op = STORE_OP_CHECK};
    struct store_reply reply;
    int rc = store_call_begin(call);

    if (rc == 0)
        rc = store_call_set_keys(call, &req, keys, nkeys);
    if (rc == 0)
        rc = store_call_send(call, &req);
    if (rc == 0)
        rc = store_call_receive(call, STORE_OP_CHECK, nkeys, &reply);
    if (rc == 0)
        *out = reply.byte == STORE_CHECK_READY;
    return rc;
}

int store_client_check(struct store_client *c, const char *const *keys,
    size_t nkeys, bool *out, uint64_t deadline_ns, struct err *e)
{
    const struct store_call call = {c, "check", deadline_ns, e};

    return check(&call, keys, nkeys, out);
}

int store_client_num_keys(
    struct store_client *c, int64_t *count, uint64_t deadline_ns, struct err *e)
{
    const struct store_call call = {c, "count keys", deadline_ns, e};
    const struct store_request req = {.op = STORE_OP_GETNUMKEYS};
    int rc = store_call_begin(&call);

    return rc < 0 ? rc : store_call_ask_number(&call, &req, count);
}

/* --- Append -------------------------------------------------------------- */

static struct store_bytes view(const struct buf *b)
{
    return store_bytes(b->len > 0 ? buf_bytes(b) : NULL, b->len);
}

/* What the value of a key is, as far as COMPARE_SET tells. */
struct snapshot {
    struct buf value;
    bool is_missing;
};

/* An expectation that no value meets: the answer is then the value, or the
 * expectation itself if the key is missing. Nothing is changed. */
static int take_snapshot(
    const struct store_call *call, const char *key, struct snapshot *now)
{
    char token[33];
    struct store_bytes unlikely = store_bytes(token, sizeof(token) - 1);
    int rc = text_random_hex(token);

    if (rc < 0)
        return err_set(call->e, -ENOMEM, "append: no random number");
    rc = compare_set(call, key, unlikely, unlikely, &now->value);
    now->is_missing = rc == 0 && store_bytes_equal(view(&now->value), unlikely);
    return rc;
}

/* Sets the key to what it was and the tail behind it. 1: done; 0: somebody
 * was faster, *now is what the key is now. */
static int extend_snapshot(const struct store_call *call, const char *key,
    struct snapshot *now, struct store_bytes tail)
{
    size_t max = call->c->limits.value_len;
    struct buf answer, longer;
    struct store_bytes expected;
    int rc;

    buf_init(&answer, max);
    buf_init(&longer, max);
    if (now->is_missing)
        buf_fini(&now->value);
    expected = view(&now->value);
    rc = buf_append(&longer, expected.data, expected.len);
    if (rc == 0)
        rc = buf_append(&longer, tail.data, tail.len);
    if (rc == -ENOBUFS)
        rc = store_call_check_value(call, key, expected.len + tail.len);
    else if (rc < 0)
        err_set(call->e, rc, "append: %s", strerror(-rc));
    else
        rc = compare_set(call, key, expected, view(&longer), &answer);
    if (rc == 0 && store_bytes_equal(view(&answer), view(&longer)))
        rc = 1;
    if (rc == 0) {
        now->is_missing =
            !now->is_missing && store_bytes_equal(view(&answer), expected);
        buf_fini(&now->value);
        now->value = answer;
        buf_init(&answer, max);
    }
    buf_fini(&longer);
    buf_fini(&answer);
    return rc;
}

/* Without an operation for it. */
static int append_by_hand(
    const struct store_call *call, const char *key, struct store_bytes tail)
{
    struct snapshot now;
    int rc;

    buf_init(&now.value, call->c->limits.value_len);
    rc = take_snapshot(call, key, &now);
    while (rc == 0)
        rc = extend_snapshot(call, key, &now, tail);
    buf_fini(&now.value);
    return rc < 0 ? rc : 0;
}

int store_client_append(struct store_client *c, const char *key,
    const void *value, size_t len, uint64_t deadline_ns, struct err *e)
{
    const struct store_call call = {c, "append", deadline_ns, e};

    if (store_opcode(c->peer.dialect, STORE_OP_APPEND) < 0)
        return append_by_hand(&call, key, store_bytes(value, len));
    return put(&call, STORE_OP_APPEND, key, store_bytes(value, len));
}

/* --- Many keys ----------------------------------------------------------- */

/* One request each: all in one, unanswered, could fill the buffers of both
 * sides, and then neither goes on. */
static int get_one_by_one(const struct store_call *call,
    const struct store_request *keys, struct buf *values)
{
    struct store_request get = {.op = STORE_OP_GET};
    struct store_bytes list = keys->list;
    int rc = 0;

    while (rc == 0 && store_list_next(&list, &get.key)) {
        rc = store_call_send(call, &get);
        if (rc == 0)
            rc = store_call_receive_value(call, values++);
    }
    return rc;
}

static int get_together(const struct store_call *call,
    const struct store_request *req, struct buf *values)
{
    int rc = store_call_send(call, req);

    for (size_t i = 0; rc == 0 && i < req->list_count; i++)
        rc = store_call_receive_value(call, &values[i]);
    return rc;
}

int store_client_multi_get(struct store_client *c, const char *const *keys,
    size_t nkeys, struct buf *values, uint64_t deadline_ns, struct err *e)
{
    struct store_call call = {c, "multi get", deadline_ns, e};
    struct store_request req = {.op = STORE_OP_MULTI_GET};
    size_t *old_lens = calloc(nkeys > 0 ? nkeys : 1, sizeof(*old_lens));
    int rc;

    if (old_lens == NULL)
        return err_set(e, -ENOMEM, "multi get: out of memory");
    for (size_t i = 0; i < nkeys; i++)
        old_lens[i] = values[i].len;
    rc = store_call_begin(&call);
    if (rc == 0)
        rc = await(&call, &req, keys, nkeys);
    if (rc == 0 && store_opcode(c->peer.dialect, req.op) < 0)
        rc = get_one_by_one(&call, &req, values);
    else if (rc == 0)
        rc = get_together(&call, &req, values);
    for (size_t i = 0; rc < 0 && i < nkeys; i++)
        values[i].len = old_lens[i];
    free(old_lens);
    return rc;
}

/* One pair, sent now if it is large, else with those that follow. */
static int put_pair(const struct store_call *call, struct store_bytes key,
    struct store_bytes value)
{
    const struct store_request set = {
        .op = STORE_OP_SET, .key = key, .value = value};
    struct store_bytes rest;
    int rc = store_call_prepare(call, &set, &rest);

    if (rc == 0 && (rest.len > 0 || call->c->request.len >= STORE_BATCH_MAX))
        rc = store_call_flush(call, rest);
    return rc;
}

/* As several SETs: every dialect has that, it means the same, and a server's
 * limit for one request does not matter. */
int store_client_multi_set(struct store_client *c, const char *const *keys,
    const struct store_bytes *values, size_t nkeys, uint64_t deadline_ns,
    struct err *e)
{
    const struct store_call call = {c, "multi set", deadline_ns, e};
    struct store_request req = {.op = STORE_OP_SET};
    struct store_bytes list, key;
    int rc = store_call_begin(&call);

    for (size_t i = 0; rc == 0 && i < nkeys; i++)
        rc = store_call_check_value(&call, keys[i], values[i].len);
    if (rc == 0)
        rc = store_call_set_keys(&call, &req, keys, nkeys);
    list = req.list;
    for (; rc == 0 && store_list_next(&list, &key); values++)
        rc = put_pair(&call, key, *values);
    if (rc == 0 && c->request.len > 0)
        rc = store_call_flush(&call, store_bytes(NULL, 0));
    return rc;
}

/* --- Queues and lists: what not every server has ------------------------- */

/*
 * Whether a server of dialect C knows an operation. It closes the connection
 * if not: so it is asked on another one, where something that it does know
 * comes first, to tell this from a server that closes for other reasons.
 */
static int probe(const struct store_call *call, enum store_op op,
    enum store_support *support)
{
    const struct store_request known = {.op = STORE_OP_GETNUMKEYS};
    const struct store_request asked = {.op = op};
    uint64_t deadline_ns = store_call_answer_ns(call);
    struct store_client other = *call->c;
    struct store_call there = {&other, call->what, deadline_ns, NULL};
    int64_t nkeys;
    char byte;
    int rc;

    client_init(&other);
    rc = store_connect_again(&other.peer, deadline_ns);
    if (rc >= 0) {
        other.fd = rc;
        rc = store_call_ask_number(&there, &known, &nkeys);
    }
    if (rc == 0)
        rc = store_call_send(&there, &asked);
    if (rc == 0) {
        rc = (int)store_io_recv(other.fd, &byte, 1, deadline_ns);
        *support = rc > 0 ? SUPPORT_YES : SUPPORT_NO;
        if (rc == -ECONNRESET)
            rc = 0;
    }
    client_fini(&other);
    return rc < 0 ? store_call_lost(call, rc, NULL) : 0;
}

/* The start of a call that needs what servers have only lately. */
static int begin_late(const struct store_call *call, enum store_op op,
    enum store_support *support, const char *lack)
{
    struct store_client *c = call->c;
    int rc = store_call_begin(call);

    if (rc == 0 && store_opcode(c->peer.dialect, op) < 0)
        *support = SUPPORT_NO;
    if (rc == 0 && *support == SUPPORT_UNKNOWN)
        rc = probe(call, op, support);
    if (rc < 0 || *support == SUPPORT_YES)
        return rc;
    return err_set(call->e, -EOPNOTSUPP, "%s: the store at %s port %d %s",
        call->what, c->host, c->port, lack);
}

static int begin_queue(const struct store_call *call)
{
    return begin_late(call, STORE_OP_QUEUE_LEN, &call->c->queues,
        "has no queues, it is older than PyTorch 2.8 or not its libuv server");
}

int store_client_queue_push(struct store_client *c, const char *key,
    const void *value, size_t len, uint64_t deadline_ns, struct err *e)
{
    const struct store_call call = {c, "queue push", deadline_ns, e};
    int rc = begin_queue(&call);

    if (rc < 0)
        return rc;
    return put(&call, STORE_OP_QUEUE_PUSH, key, store_bytes(value, len));
}

int store_client_queue_len(struct store_client *c, const char *key,
    int64_t *len, uint64_t deadline_ns, struct err *e)
{
    const struct store_call call = {c, "queue length", deadline_ns, e};
    int rc = begin_queue(&call);

    return rc < 0 ? rc : ask_key(&call, STORE_OP_QUEUE_LEN, key, 0, len);
}

/* Takes an element, if there is one: *had tells how many there were. */
static int pop(const struct store_call *call, const struct store_request *key,
    struct buf *out, int64_t *had)
{
    struct store_request req = *key;
    struct store_reply reply;
    int rc;

    req.op = STORE_OP_QUEUE_POP;
    rc = store_call_send(call, &req);
    /* The number alone is the answer to QUEUE_LEN, the rest a value. */
    if (rc == 0)
        rc = store_call_receive(call, STORE_OP_QUEUE_LEN, 0, &reply);
    if (rc == 0 && reply.number > 0)
        rc = store_call_receive_value(call, out);
    if (rc == 0)
        *had = reply.number;
    return rc;
}

/*
 * A wait that ends tells that there was an element; others may have it by
 * now, so it goes on. It pauses, longer each time, because an ordinary key of
 * the same name ends every wait at once.
 */
int store_client_queue_pop(struct store_client *c, const char *key,
    struct buf *out, uint64_t deadline_ns, struct err *e)
{
    struct store_call call = {c, "queue pop", deadline_ns, e};
    struct store_request req = {.op = STORE_OP_QUEUE_POP};
    int pause_ms = 0;
    int64_t had = 0;
    int rc = begin_queue(&call);

    while (rc == 0 && had == 0) {
        call.deadline_ns = deadline_ns;
        if (pause_ms > clock_left_ms(deadline_ns))
            pause_ms = clock_left_ms(deadline_ns);
        if (pause_ms > 0)
            poll(NULL, 0, pause_ms);
        rc = await(&call, &req, &key, 1);
        if (rc == 0)
            rc = pop(&call, &req, out, &had);
        if (rc == 0 && had == 0 && clock_left_ms(deadline_ns) == 0)
            return did_not_come(&call, &key, 1);
        pause_ms = pause_ms == 0 ? 1 : 2 * pause_ms;
        if (pause_ms > STORE_RACE_PAUSE_MS)
            pause_ms = STORE_RACE_PAUSE_MS;
    }
    return rc;
}

int store_client_list_keys(struct store_client *c,
    void (*cb)(struct store_bytes key, void *arg), void *arg,
    uint64_t deadline_ns, struct err *e)
{
    const struct store_call call = {c, "list keys", deadline_ns, e};
    const struct store_request req = {.op = STORE_OP_LIST_KEYS};
    struct store_reply reply;
    struct store_bytes key;
    int rc = begin_late(&call, req.op, &c->listing,
        "cannot list its keys, it is older than PyTorch 2.10");

    if (rc == 0)
        rc = store_call_send(&call, &req);
    if (rc == 0)
        rc = store_call_receive(&call, req.op, 0, &reply);
    while (rc == 0 && store_list_next(&reply.list, &key))
        if (key.len > 0 && key.data[0] == '/')
            cb(store_bytes(key.data + 1, key.len - 1), arg);
    return rc;
}
