/* One client's conversation; see store_session.h. */
#include "rendezvous/store_session.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Bytes that go behind an incomplete request at a time; with it the bound of
 * the input buffer can never be in the way of a request. */
#define STORE_INPUT_SLICE ((size_t)1 << 20)

/* Bytes still to come of a request that are worth being read in place. */
#define STORE_SPACE_MIN ((size_t)16 << 10)

/* A value from this length on keeps the memory that it was read into. */
#define STORE_VALUE_KEEP_MIN ((size_t)64 << 10)

void store_session_init(struct store_session *s, struct store_keys *keys,
    const struct store_limits *limits, enum store_dialect dialect,
    store_session_wake_cb *wake_cb)
{
    memset(s, 0, sizeof(*s));
    s->keys = keys;
    s->limits = limits;
    s->wake_cb = wake_cb;
    s->dialect = dialect;
    s->has_greeted = dialect != STORE_DIALECT_C;
    buf_init(&s->in, store_limits_request(limits) + 2 * STORE_INPUT_SLICE);
    store_out_init(&s->out);
}

void store_session_fini(struct store_session *s)
{
    store_keys_leave(s->keys, &s->party);
    buf_fini(&s->in);
    store_out_fini(&s->out);
    store_budget_give(&s->keys->buffers, s->charged);
    s->charged = 0;
}

static struct store_session *session_of(struct store_party *party)
{
    return (struct store_session *)((char *)party -
                                    offsetof(struct store_session, party));
}

/* Brings the account and is_stalled in line with the buffers. What was
 * reserved and is not touched yet takes no memory, so it does not count. */
static void settle(struct store_session *s)
{
    size_t in_use = s->in.start + s->in.len + store_out_memory(&s->out);

    store_budget_give(&s->keys->buffers, s->charged);
    store_budget_charge(&s->keys->buffers, in_use);
    s->charged = in_use;
    s->is_stalled = store_out_len(&s->out) > STORE_OUT_HIGH;
}

/* A reply may hold very many values, but not more than all replies may. */
static int check_reply(const struct store_session *s)
{
    return store_out_memory(&s->out) > s->keys->buffers.max ? -EDQUOT : 0;
}

/* --- What others' requests bring about
 * ---------------------------------------- */

static int put_change(struct store_out *out, const struct store_change *change)
{
    int rc = store_put_u8(&out->bytes, (uint8_t)change->kind);

    if (rc == 0)
        rc = store_out_value(out, change->key);
    if (rc == 0)
        rc = store_out_value(out, change->old);
    if (rc == 0)
        rc = store_out_value(out, change->now);
    return rc;
}

/* Answers the WAITs that are done and sends the notices. */
static int tell(struct store_session *s)
{
    struct store_party *party = &s->party;
    struct store_change *change;
    int rc = party->has_lost ? -ENOMEM : 0;

    for (; rc == 0 && party->done > 0; party->done--)
        rc = store_put_u8(&s->out.bytes, STORE_WAIT_DONE);
    while (rc == 0 && (change = store_party_next_change(party)) != NULL) {
        rc = store_out_len(&s->out) > STORE_NOTICES_HIGH
                 ? -ENOBUFS
                 : put_change(&s->out, change);
        store_change_free(change);
    }
    settle(s);
    return rc;
}

/* Tells everybody whom the last request concerns. */
static int tell_all(struct store_session *s)
{
    struct store_party *party;
    int rc = 0;

    while ((party = store_keys_next_due(s->keys)) != NULL) {
        struct store_session *other = session_of(party);
        int told = tell(other);

        if (other == s)
            rc = told;
        else
            other->wake_cb(other, told);
    }
    return rc;
}

/* --- Requests
 * ------------------------------------------------------------------ */

/* In an error's reason nothing of the peer's but printable ASCII. */
static void printable(struct store_bytes bytes, char *text, size_t size)
{
    size_t n = 0;

    for (; n < bytes.len && n < size - 1; n++) {
        char c = bytes.data[n];

        text[n] = c >= 0x20 && c < 0x7f ? c : '?';
    }
    text[n] = '\0';
}

static int not_a_number(const struct store_request *req, int rc, struct err *e)
{
    char key[65];

    printable(req->key, key, sizeof(key));
    return err_set(e, rc, "%s to key '%s', whose value is not a 64-bit number",
        store_op_name(req->op), key);
}

static bool is_key(struct store_bytes key, const char *text)
{
    return store_bytes_equal(key, store_bytes(text, strlen(text)));
}

static int do_add(
    struct store_session *s, const struct store_request *req, struct err *e)
{
    int64_t sum;
    int rc = store_keys_add(s->keys, req->key, req->number, &sum);

    if (rc == -EINVAL || rc == -ERANGE)
        return not_a_number(req, rc, e);
    if (rc < 0)
        return rc;
    s->has_checked_in |= is_key(req->key, STORE_WORKERS_KEY);
    return store_put_u64(&s->out.bytes, (uint64_t)sum);
}

static int do_barrier(
    struct store_session *s, const struct store_request *req, struct err *e)
{
    int rc = store_keys_barrier(s->keys, &s->party, req->key, req->number);

    if (rc == -EINVAL || rc == -ERANGE)
        return not_a_number(req, rc, e);
    return rc == 1 ? store_put_u8(&s->out.bytes, STORE_WAIT_DONE) : rc;
}

/* A missing key has an empty value. */
static int do_get(struct store_session *s, struct store_bytes key)
{
    return store_out_value(&s->out, store_keys_get(s->keys, key));
}

static int do_multi_get(struct store_session *s, struct store_bytes list)
{
    struct store_bytes key;
    int rc = 0;

    while (rc == 0 && store_list_next(&list, &key)) {
        rc = do_get(s, key);
        if (rc == 0)
            rc = check_reply(s);
    }
    return rc;
}

/* A large value that ends the input buffer, and is most of it, keeps the
 * memory that it was read into. */
static int do_set(struct store_session *s, const struct store_request *req)
{
    struct buf *in = &s->in;
    const char *end = req->value.data + req->value.len;
    int rc;

    if (req->value.len < STORE_VALUE_KEEP_MIN || in->len == 0 ||
        end != buf_bytes(in) + in->len || end == in->data + in->cap ||
        req->value.len < (in->start + in->len) / 2)
        return store_keys_set(s->keys, req->key, req->value);
    rc = store_keys_set_in(s->keys, req->key, req->value, in->data, in->cap);
    if (rc == 0)
        buf_init(in, in->max);
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

    if (rc < 0)
        return rc;
    /* What the key has is a reference away, also if it is the desired. */
    if (now.data == req->expected.data)
        return store_put_bytes(&s->out.bytes, now);
    return do_get(s, req->key);
}

static int do_check(struct store_session *s, const struct store_request *req)
{
    struct store_bytes rest = req->list;
    struct store_bytes key;
    bool is_ready = store_keys_check(s->keys, req->list);

    if (req->list_count == 1 && store_list_next(&rest, &key))
        is_ready |= is_key(key, STORE_CRUN_KEY);
    return store_put_u8(
        &s->out.bytes, is_ready ? STORE_CHECK_READY : STORE_CHECK_NOT_READY);
}

static int do_wait(struct store_session *s, struct store_bytes list)
{
    int rc = store_keys_wait(s->keys, &s->party, list);

    return rc == 1 ? store_put_u8(&s->out.bytes, STORE_WAIT_DONE) : rc;
}

static int do_cancel_wait(struct store_session *s)
{
    store_keys_cancel(s->keys, &s->party);
    return store_put_u8(&s->out.bytes, STORE_WAIT_CANCELED);
}

static int do_watch(struct store_session *s, struct store_bytes key)
{
    int rc = store_keys_watch(s->keys, &s->party, key);

    return rc < 0 ? rc : store_put_u8(&s->out.bytes, STORE_WATCH_REGISTERED);
}

static int do_queue_pop(struct store_session *s, struct store_bytes key)
{
    struct store_blob *blob;
    int rc = store_put_u64(&s->out.bytes, store_keys_queue_len(s->keys, key));

    if (rc < 0)
        return rc;
    blob = store_keys_pop(s->keys, key);
    if (blob != NULL)
        rc = store_out_value(&s->out, blob);
    store_blob_unref(blob);
    return rc;
}

struct key_lister {
    struct store_session *s;
    int rc;
};

static void list_key(struct store_bytes key, void *arg)
{
    struct key_lister *l = arg;

    if (l->rc == 0)
        l->rc = store_put_bytes(&l->s->out.bytes, key);
    if (l->rc == 0)
        l->rc = check_reply(l->s);
}

static int do_list_keys(struct store_session *s)
{
    struct key_lister l = {.s = s};

    l.rc = store_put_u64(&s->out.bytes, s->keys->count);
    store_keys_each(s->keys, list_key, &l);
    return l.rc;
}

static int execute(
    struct store_session *s, const struct store_request *req, struct err *e)
{
    struct buf *bytes = &s->out.bytes;

    switch (req->op) {
    case STORE_OP_VALIDATE:
        if (s->has_greeted)
            return err_set(e, -EPROTO, "a second greeting");
        s->has_greeted = true;
        return 0;
    case STORE_OP_SET:
        return do_set(s, req);
    case STORE_OP_COMPARE_SET:
        return do_compare_set(s, req);
    case STORE_OP_GET:
        return do_get(s, req->key);
    case STORE_OP_ADD:
        return do_add(s, req, e);
    case STORE_OP_CHECK:
        return do_check(s, req);
    case STORE_OP_WAIT:
        return do_wait(s, req->list);
    case STORE_OP_GETNUMKEYS:
        return store_put_u64(bytes, s->keys->count);
    case STORE_OP_WATCH_KEY:
        return do_watch(s, req->key);
    case STORE_OP_DELETE_KEY:
        return store_put_u64(bytes, store_keys_delete(s->keys, req->key));
    case STORE_OP_APPEND:
        return store_keys_append(s->keys, req->key, req->value);
    case STORE_OP_MULTI_GET:
        return do_multi_get(s, req->list);
    case STORE_OP_MULTI_SET:
        return do_multi_set(s, req->list);
    case STORE_OP_CANCEL_WAIT:
        return do_cancel_wait(s);
    case STORE_OP_PING:
        return store_put_u32(bytes, req->word);
    case STORE_OP_QUEUE_PUSH:
        return store_keys_push(s->keys, req->key, req->value);
    case STORE_OP_QUEUE_POP:
        return do_queue_pop(s, req->key);
    case STORE_OP_QUEUE_LEN:
        return store_put_u64(bytes, store_keys_queue_len(s->keys, req->key));
    case STORE_OP_LIST_KEYS:
        return do_list_keys(s);
    case STORE_OP_BARRIER:
        return do_barrier(s, req, e);
    case STORE_OP_COUNT:
        break;
    }
    return err_set(e, -EPROTO, "operation %d has no handler", (int)req->op);
}

/* --- Bytes in and out
 * ---------------------------------------------------------- */

/* Executes the complete requests at data, until the session is stalled;
 * *used is their length. */
static int execute_all(struct store_session *s, const char *data, size_t len,
    size_t *used, struct err *e)
{
    struct store_request req;
    size_t n;
    int rc, told;

    *used = 0;
    while (*used < len && !s->is_stalled && !s->is_tired) {
        /* Before the greeting nothing else is even collected: a stranger
         * must not make us buffer a value. */
        if (!s->has_greeted && (uint8_t)data[*used] != store_greeting[0])
            return err_set(e, -EPROTO,
                "the first byte is 0x%02x, no greeting of a PyTorch 2.2 or "
                "newer store client",
                (uint8_t)data[*used]);
        rc = store_parse(&s->parser, s->dialect, s->limits, data + *used,
            len - *used, &req, &n, e);
        if (rc <= 0)
            return rc;
        rc = execute(s, &req, e);
        told = tell_all(s); /* also if a MULTI_SET failed half-way */
        if (rc == 0)
            rc = told;
        settle(s);
        if (rc < 0)
            return rc;
        *used += n;
        s->is_tired = s->keys->work > STORE_TURN_WORK;
    }
    return 0;
}

/* Executed bytes in front of what is left, up to which nothing is done. */
#define STORE_INPUT_SPENT ((size_t)4 << 10)

/* What is left behind a large request must not keep its memory. */
static int compact_in(struct store_session *s)
{
    struct buf rest;
    int rc;

    if (s->in.start <= STORE_INPUT_SPENT || s->in.start <= s->in.len)
        return 0;
    buf_init(&rest, s->in.max);
    rc = buf_append(&rest, buf_bytes(&s->in), s->in.len);
    if (rc < 0)
        return rc;
    buf_fini(&s->in);
    s->in = rest;
    return 0;
}

/* Executes what is in the input buffer. */
static int execute_in(struct store_session *s, struct err *e)
{
    size_t used;
    int rc;

    if (s->in.len == 0)
        return 0;
    rc = execute_all(s, buf_bytes(&s->in), s->in.len, &used, e);
    if (rc < 0)
        return rc;
    if (s->in.len > 0) /* unless a value has kept the buffer */
        buf_consume(&s->in, used);
    if (s->in.len == 0)
        buf_fini(&s->in); /* an idle client costs no buffer */
    else
        rc = compact_in(s);
    settle(s);
    return rc;
}

static int feed(
    struct store_session *s, const char *bytes, size_t len, struct err *e)
{
    size_t n;
    int rc;

    while (s->in.len > 0 && len > 0) {
        n = len < STORE_INPUT_SLICE ? len : STORE_INPUT_SLICE;
        rc = buf_append(&s->in, bytes, n);
        if (rc == 0)
            rc = execute_in(s, e);
        if (rc < 0)
            return rc;
        bytes += n;
        len -= n;
    }
    if (len == 0)
        return 0;
    rc = execute_all(s, bytes, len, &n, e); /* mostly: nothing is copied */
    if (rc == 0)
        rc = buf_append(&s->in, bytes + n, len - n);
    settle(s);
    return rc;
}

/* Says in e why rc is what it is, unless that has been done. */
static int explain(const struct store_session *s, int rc, struct err *e)
{
    if (rc == 0 || e->rc != 0)
        return rc;
    switch (rc) {
    case -EDQUOT:
        return err_set(e, rc,
            "the store is full: its limits are %zu bytes for what is stored "
            "and %zu for requests and replies",
            s->keys->budget.max, s->keys->buffers.max);
    case -EMSGSIZE:
        return err_set(e, rc, "a value that grew over the limit of %zu bytes",
            s->limits->value_len);
    case -ENOBUFS:
        return err_set(e, rc,
            "more was sent than is read of a client that "
            "does not take its replies");
    default:
        return err_set(e, rc, "%s", strerror(-rc));
    }
}

int store_session_feed(
    struct store_session *s, const void *bytes, size_t len, struct err *e)
{
    e->rc = 0;
    s->keys->work = 0;
    return explain(s, feed(s, bytes, len, e), e);
}

char *store_session_space(struct store_session *s, size_t *len)
{
    size_t have = s->in.len;
    size_t max = have > STORE_INPUT_SLICE ? have : STORE_INPUT_SLICE;
    size_t missing;

    if (s->is_stalled || s->is_tired || have == 0 || s->parser.need <= have)
        return NULL;
    missing = s->parser.need - have;
    if (missing < STORE_SPACE_MIN)
        return NULL;
    *len = missing < max ? missing : max;
    /* Not more than that and a NUL: a value may keep the memory, and equal
     * sizes are what malloc() can use again without the kernel. */
    return buf_reserve_exact(&s->in, *len + 1);
}

int store_session_added(struct store_session *s, size_t len, struct err *e)
{
    e->rc = 0;
    s->keys->work = 0;
    buf_added(&s->in, len);
    settle(s);
    return explain(s, execute_in(s, e), e);
}

int store_session_resume(struct store_session *s, struct err *e)
{
    e->rc = 0;
    s->keys->work = 0;
    s->is_tired = false;
    return explain(s, execute_in(s, e), e);
}

int store_session_sent(struct store_session *s, size_t len, struct err *e)
{
    bool was_stalled = s->is_stalled;
    int rc = 0;

    e->rc = 0;
    store_out_sent(&s->out, len);
    settle(s);
    if (was_stalled && !s->is_stalled)
        rc = execute_in(s, e);
    return explain(s, rc, e);
}
