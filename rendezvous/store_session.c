/* One client's conversation; see store_session.h. */
#include "rendezvous/store_session.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Bytes that go behind an incomplete request at a time; with it the bound of
 * the input buffer can never be in the way. */
#define STORE_INPUT_SLICE ((size_t)1 << 20)

void store_session_init(struct store_session *s, struct store_keys *keys,
    store_session_wake_cb *wake_cb)
{
    memset(s, 0, sizeof(*s));
    s->keys = keys;
    s->wake_cb = wake_cb;
    buf_init(&s->in, STORE_REQUEST_MAX + 2 * STORE_INPUT_SLICE);
    buf_init(&s->out, STORE_OUTPUT_MAX);
}

void store_session_fini(struct store_session *s)
{
    store_keys_cancel(s->keys, &s->waiter);
    buf_fini(&s->in);
    buf_fini(&s->out);
}

static struct store_session *session_of(struct store_waiter *w)
{
    return (struct store_session *)((char *)w -
                                    offsetof(struct store_session, waiter));
}

/* Answers every WAIT that the last request has released. */
static int answer_released(struct store_session *s)
{
    struct store_waiter *w;
    int rc = 0;

    while ((w = store_keys_next_released(s->keys)) != NULL) {
        struct store_session *other = session_of(w);
        int put = store_put_u8(&other->out, STORE_WAIT_DONE);

        if (other == s)
            rc = put;
        else
            other->wake_cb(other, put);
    }
    return rc;
}

static int do_add(
    struct store_session *s, const struct store_request *req, struct err *e)
{
    int64_t sum;
    int rc = store_keys_add(s->keys, req->key, req->number, &sum);

    if (rc == -EINVAL || rc == -ERANGE) {
        char name[65];
        size_t n = 0;

        for (; n < req->key.len && n < sizeof(name) - 1; n++) {
            unsigned char c = (unsigned char)req->key.data[n];

            name[n] = isprint(c) ? (char)c : '?';
        }
        name[n] = '\0';
        return err_set(
            e, rc, "ADD to key '%s', whose value is not a 64-bit number", name);
    }
    return rc < 0 ? rc : store_put_u64(&s->out, (uint64_t)sum);
}

static int do_get(struct store_session *s, struct store_bytes key)
{
    struct store_bytes value = {NULL, 0};

    store_keys_get(s->keys, key, &value);
    return store_put_bytes(&s->out, value);
}

static int do_multi_get(struct store_session *s, struct store_bytes list)
{
    struct store_bytes key;
    int rc = 0;

    while (rc == 0 && store_list_next(&list, &key))
        rc = do_get(s, key);
    return rc;
}

/* Not atomic: pair by pair, as PyTorch's servers do it. */
static int do_multi_set(struct store_session *s, struct store_bytes list)
{
    struct store_bytes key, value;
    int rc = 0;

    while (rc == 0 && store_list_next(&list, &key) &&
           store_list_next(&list, &value))
        rc = store_keys_set(s->keys, key, value);
    return rc;
}

static int do_compare_set(
    struct store_session *s, const struct store_request *req)
{
    struct store_bytes now;
    int rc = store_keys_compare_set(
        s->keys, req->key, req->expected, req->value, &now);

    return rc < 0 ? rc : store_put_bytes(&s->out, now);
}

static int do_wait(
    struct store_session *s, struct store_bytes list, struct err *e)
{
    int rc;

    /* PyTorch's servers mix up two waits of one connection, so no client
     * sends a second one. Refusing it bounds what a client can make us
     * remember. */
    if (s->waiter.state != STORE_WAITER_IDLE)
        return err_set(e, -EPROTO, "WAIT while another WAIT is pending");
    rc = store_keys_wait(s->keys, &s->waiter, list);
    return rc == 1 ? store_put_u8(&s->out, STORE_WAIT_DONE) : rc;
}

static int do_cancel_wait(struct store_session *s)
{
    store_keys_cancel(s->keys, &s->waiter);
    return store_put_u8(&s->out, STORE_WAIT_CANCELED);
}

static int execute(
    struct store_session *s, const struct store_request *req, struct err *e)
{
    switch (req->op) {
    case STORE_OP_VALIDATE:
        if (s->has_greeted)
            return err_set(e, -EPROTO, "a second greeting");
        s->has_greeted = true;
        return 0;
    case STORE_OP_SET:
        return store_keys_set(s->keys, req->key, req->value);
    case STORE_OP_COMPARE_SET:
        return do_compare_set(s, req);
    case STORE_OP_GET:
        return do_get(s, req->key);
    case STORE_OP_ADD:
        return do_add(s, req, e);
    case STORE_OP_CHECK:
        return store_put_u8(&s->out, store_keys_check(s->keys, req->list)
                                         ? STORE_CHECK_READY
                                         : STORE_CHECK_NOT_READY);
    case STORE_OP_WAIT:
        return do_wait(s, req->list, e);
    case STORE_OP_GETNUMKEYS:
        return store_put_u64(&s->out, s->keys->count);
    case STORE_OP_DELETE_KEY:
        return store_put_u64(
            &s->out, store_keys_delete(s->keys, req->key) ? 1 : 0);
    case STORE_OP_APPEND:
        return store_keys_append(s->keys, req->key, req->value);
    case STORE_OP_MULTI_GET:
        return do_multi_get(s, req->list);
    case STORE_OP_MULTI_SET:
        return do_multi_set(s, req->list);
    case STORE_OP_CANCEL_WAIT:
        return do_cancel_wait(s);
    case STORE_OP_PING:
        return store_put_u32(&s->out, req->word);
    case STORE_OP_COUNT:
        break;
    }
    return err_set(e, -EPROTO, "opcode %d has no handler", (int)req->op);
}

/* Executes the complete requests at data; *used is their length. */
static int execute_all(struct store_session *s, const char *data, size_t len,
    size_t *used, struct err *e)
{
    struct store_request req;
    size_t n;
    int rc;

    *used = 0;
    while (*used < len) {
        /* Before the greeting nothing else is even collected: a stranger
         * must not make us buffer a value. */
        if (!s->has_greeted && data[*used] != STORE_OP_VALIDATE)
            return err_set(e, -EPROTO,
                "the first byte is 0x%02x, no greeting of a PyTorch 2.2 or "
                "newer store client",
                (unsigned char)data[*used]);
        rc = store_parse(&s->parser, data + *used, len - *used, &req, &n, e);
        if (rc <= 0)
            return rc;
        rc = execute(s, &req, e);
        if (rc == 0)
            rc = answer_released(s);
        else
            answer_released(s); /* a half-done MULTI_SET has released some */
        if (rc < 0)
            return rc;
        *used += n;
    }
    return 0;
}

static int feed_slice(
    struct store_session *s, const char *bytes, size_t len, struct err *e)
{
    size_t used;
    int rc;

    rc = buf_append(&s->in, bytes, len);
    if (rc < 0)
        return rc;
    rc = execute_all(s, buf_bytes(&s->in), s->in.len, &used, e);
    if (rc < 0)
        return rc;
    buf_consume(&s->in, used);
    if (s->in.len == 0)
        buf_fini(&s->in); /* an idle client costs no buffer */
    return 0;
}

static int feed(
    struct store_session *s, const char *bytes, size_t len, struct err *e)
{
    size_t used;
    int rc;

    for (; s->in.len > 0 && len > 0; bytes += used, len -= used) {
        used = len < STORE_INPUT_SLICE ? len : STORE_INPUT_SLICE;
        rc = feed_slice(s, bytes, used, e);
        if (rc < 0)
            return rc;
    }
    if (len == 0)
        return 0;
    rc = execute_all(s, bytes, len, &used, e); /* mostly: nothing is copied */
    return rc < 0 ? rc : buf_append(&s->in, bytes + used, len - used);
}

int store_session_feed(
    struct store_session *s, const void *bytes, size_t len, struct err *e)
{
    int rc;

    e->rc = 0;
    rc = feed(s, bytes, len, e);
    if (rc == 0 || e->rc != 0)
        return rc;
    if (rc == -ENOBUFS)
        return err_set(e, rc,
            "the client does not read its replies, more "
            "than %zu bytes are waiting for it",
            STORE_OUTPUT_MAX);
    return err_set(e, rc, "%s", strerror(-rc));
}
