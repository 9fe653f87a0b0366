/*
 * See store_model.h. The first half is the model: what it knows, and what a
 * request makes of that. The second half drives it and the real store.
 *
 * The model does not know the memory limit. Where a run has a small one, the
 * model is followed until the first request that fails of it; from then on
 * only the limit itself, crashes and leaks are looked at.
 */
#include "store_model.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/base/buf.h"
#include "rendezvous/store_codec.h"
#include "rendezvous/store_keys.h"
#include "rendezvous/store_session.h"

#define NKEYS 6
#define NCLIENTS 4
#define LIST_MAX 4

static const struct store_bytes names[NKEYS] = {
    {"", 0}, {"\0", 1}, {"a", 1}, {"a\0", 2}, {"key", 3}, {"init/", 5}};

static const struct store_limits model_limits = {
    .key_len = 8,
    .value_len = 600000,
    .list_count = LIST_MAX,
    .memory = (size_t)1 << 30,
};

/* --- The model ------------------------------------------------------------ */

struct text {
    char *data; /* owned; NULL: there is none */
    size_t len;
};

struct request {
    enum store_op op;
    int rc; /* not 0: no request, but bytes that are refused with this */
    int64_t number;
    unsigned key;
    struct text expected, value;
    size_t n; /* of the list */
    unsigned keys[LIST_MAX];
    struct text values[LIST_MAX];
    uint64_t end; /* bytes of the client's stream until behind it */
};

struct wait {
    unsigned client;
    size_t n;
    unsigned missing[LIST_MAX];
};

struct client {
    struct model *model;
    bool is_open;
    bool has_ended; /* by others' requests: what they bring is too much */
    bool real_has_ended;
    bool has_greeted;
    enum store_dialect dialect;
    struct buf unsent; /* requests that are not on their way yet */
    uint64_t asked, fed; /* bytes of requests made, and arrived */
    struct request *requests; /* made and not executed yet */
    size_t nrequests;
    struct buf out; /* answers that it has not read */
    size_t done; /* waits that the current request has ended */
    struct text *notices; /* of the current request */
    size_t nnotices;
    struct store_session session; /* the real one */
};

struct model {
    struct text values[NKEYS];
    struct text *queues[NKEYS];
    size_t queue_len[NKEYS];
    struct wait *waits; /* the oldest first */
    size_t nwaits;
    bool watches[NCLIENTS][NKEYS];
    struct client clients[NCLIENTS];
    size_t executed;
    bool is_blind; /* memory has run out: the model cannot tell any more */
    struct store_limits limits;
    struct store_keys keys; /* the real ones */
};

static void *grown(void *array, size_t n, size_t size)
{
    array = realloc(array, (n + 1) * size);
    assert(array != NULL);
    return array;
}

static struct text blank(size_t len)
{
    struct text t = {calloc(1, len + 1), len};

    assert(t.data != NULL);
    return t;
}

static struct text copy(const void *data, size_t len)
{
    struct text t = blank(len);

    if (len > 0)
        memcpy(t.data, data, len);
    return t;
}

static void drop(struct text *t)
{
    free(t->data);
    *t = (struct text){NULL, 0};
}

static bool equal(struct text a, struct text b)
{
    return a.len == b.len && memcmp(a.data, b.data, a.len) == 0;
}

static void put(struct buf *out, const void *data, size_t len)
{
    int rc = buf_append(out, data, len);

    assert(rc == 0);
}

static void put_u64(struct buf *out, uint64_t value)
{
    for (int i = 0; i < 8; i++, value >>= 8)
        put(out, &(uint8_t){(uint8_t)value}, 1);
}

static void put_text(struct buf *out, struct text t)
{
    put_u64(out, t.len);
    put(out, t.data, t.len);
}

static bool exists(const struct model *m, unsigned key)
{
    return m->values[key].data != NULL || m->queue_len[key] > 0;
}

/* The key has come for a wait: all its mentions in there. */
static void come(struct model *m, size_t i, unsigned key)
{
    struct wait *w = &m->waits[i];
    size_t n = 0;

    for (size_t j = 0; j < w->n; j++)
        if (w->missing[j] != key)
            w->missing[n++] = w->missing[j];
    w->n = n;
}

static bool waits_for(const struct wait *w, unsigned key)
{
    for (size_t j = 0; j < w->n; j++)
        if (w->missing[j] == key)
            return true;
    return false;
}

static void come_for_all(struct model *m, unsigned key)
{
    for (size_t i = 0; i < m->nwaits; i++)
        come(m, i, key);
}

/* Until it is all that one of them has waited for. */
static void come_for_oldest(struct model *m, unsigned key)
{
    for (size_t i = 0; i < m->nwaits; i++) {
        if (waits_for(&m->waits[i], key)) {
            come(m, i, key);
            if (m->waits[i].n == 0)
                return;
        }
    }
}

static void begin_wait(struct model *m, struct wait w)
{
    m->waits = grown(m->waits, m->nwaits, sizeof(w));
    m->waits[m->nwaits++] = w;
}

static void end_wait(struct model *m, size_t i)
{
    memmove(
        &m->waits[i], &m->waits[i + 1], (--m->nwaits - i) * sizeof(*m->waits));
}

static void forget_waits(struct model *m, unsigned client)
{
    for (size_t i = m->nwaits; i-- > 0;)
        if (m->waits[i].client == client)
            end_wait(m, i);
}

static void note(struct client *c, uint8_t kind, struct text name,
    struct text old, struct text now)
{
    const struct text empty = {(char[]){""}, 0};
    struct buf notice;

    buf_init(&notice, SIZE_MAX / 2);
    put(&notice, &kind, 1);
    put_text(&notice, name);
    put_text(&notice, old.data != NULL ? old : empty);
    put_text(&notice, now.data != NULL ? now : empty);
    c->notices = grown(c->notices, c->nnotices, sizeof(c->notices[0]));
    c->notices[c->nnotices++] = copy(buf_bytes(&notice), notice.len);
    buf_fini(&notice);
}

/* The key's value becomes now, which is taken; NULL data: it is deleted. */
static void change(struct model *m, unsigned key, struct text now)
{
    struct text name = copy(names[key].data, names[key].len);
    struct text old = m->values[key];
    uint8_t kind = old.data == NULL ? 1 : now.data == NULL ? 2 : 0;

    for (unsigned c = 0; c < NCLIENTS; c++)
        if (m->watches[c][key])
            note(&m->clients[c], kind, name, old, now);
    drop(&name);
    drop(&old);
    m->values[key] = now;
}

/* The number that a text begins with. */
static int number_of(struct text t, int64_t *out)
{
    __int128 number = 0;
    bool negative = false;
    size_t i = 0, digits = 0;

    while (i < t.len && strchr(" \t\n\v\f\r", t.data[i]) != NULL &&
           t.data[i] != '\0')
        i++;
    if (i < t.len && (t.data[i] == '-' || t.data[i] == '+'))
        negative = t.data[i++] == '-';
    for (; i < t.len && t.data[i] >= '0' && t.data[i] <= '9'; i++, digits++)
        if (number < (__int128)1 << 100) /* far out already */
            number = 10 * number + (t.data[i] - '0');
    if (digits == 0)
        return -EINVAL;
    if (negative)
        number = -number;
    if (number < INT64_MIN || number > INT64_MAX)
        return -ERANGE;
    *out = (int64_t)number;
    return 0;
}

static int add(struct model *m, unsigned key, int64_t delta, int64_t *sum)
{
    char digits[32];
    int64_t old = 0;
    int rc = 0;

    if (m->values[key].data != NULL)
        rc = number_of(m->values[key], &old);
    if (rc < 0)
        return rc;
    *sum = (int64_t)((uint64_t)old + (uint64_t)delta);
    snprintf(digits, sizeof(digits), "%" PRId64, *sum);
    change(m, key, copy(digits, strlen(digits)));
    return 0;
}

static void put_value(struct model *m, struct buf *out, unsigned key)
{
    if (m->values[key].data == NULL)
        put_u64(out, 0);
    else
        put_text(out, m->values[key]);
}

static void do_compare_set(
    struct model *m, struct buf *out, const struct request *r)
{
    struct text old = m->values[r->key];

    if (old.data == NULL && r->expected.len > 0) {
        put_text(out, r->expected);
    } else if (old.data != NULL && !equal(old, r->expected)) {
        put_text(out, old);
    } else {
        change(m, r->key, copy(r->value.data, r->value.len));
        come_for_all(m, r->key);
        put_text(out, r->value);
    }
}

static void do_wait(
    struct model *m, unsigned c, struct buf *out, const struct request *r)
{
    struct wait w = {.client = c};

    for (size_t i = 0; i < r->n; i++)
        if (!exists(m, r->keys[i]))
            w.missing[w.n++] = r->keys[i];
    if (w.n == 0)
        put(out, "\0", 1);
    else
        begin_wait(m, w);
}

static int do_append(struct model *m, const struct request *r)
{
    struct text old = m->values[r->key];
    struct text now;

    if (old.len + r->value.len > m->limits.value_len)
        return -EMSGSIZE;
    now = blank(old.len + r->value.len);
    if (old.len > 0)
        memcpy(now.data, old.data, old.len);
    memcpy(now.data + old.len, r->value.data, r->value.len);
    change(m, r->key, now);
    come_for_all(m, r->key);
    return 0;
}

static void do_pop(struct model *m, struct buf *out, unsigned key)
{
    struct text *queue = m->queues[key];

    put_u64(out, m->queue_len[key]);
    if (m->queue_len[key] == 0)
        return;
    put_text(out, queue[0]);
    drop(&queue[0]);
    memmove(&queue[0], &queue[1], --m->queue_len[key] * sizeof(queue[0]));
}

static size_t count_values(const struct model *m)
{
    size_t n = 0;

    for (unsigned key = 0; key < NKEYS; key++)
        n += m->values[key].data != NULL;
    return n;
}

/* n bytes of what the real session has to send, from offset on. */
static void real_out(
    const struct store_out *out, size_t offset, size_t n, struct buf *copied)
{
    static struct iovec iov[4096];
    int entries = store_out_iov(out, iov, 4096);

    for (int i = 0; i < entries && n > 0; i++) {
        size_t len = iov[i].iov_len;

        if (offset >= len) {
            offset -= len;
            continue;
        }
        len = len - offset < n ? len - offset : n;
        put(copied, (char *)iov[i].iov_base + offset, len);
        offset = 0;
        n -= len;
    }
    assert(n == 0);
}

/* The order of keys is the real store's; the keys are not. */
static void do_list_keys(struct model *m, struct client *c)
{
    bool seen[NKEYS] = {false};
    size_t start = c->out.len, len = 0;
    struct store_bytes list, name;

    for (unsigned key = 0; key < NKEYS; key++)
        if (m->values[key].data != NULL)
            len += 8 + names[key].len;
    put_u64(&c->out, count_values(m));
    real_out(&c->session.out, c->out.len, len, &c->out);
    list = store_bytes(buf_bytes(&c->out) + start + 8, len);
    while (store_list_next(&list, &name)) {
        unsigned key = 0;

        while (key < NKEYS && !store_bytes_equal(name, names[key]))
            key++;
        assert(key < NKEYS && m->values[key].data != NULL && !seen[key]);
        seen[key] = true;
    }
}

static int execute(struct model *m, unsigned number, const struct request *r)
{
    struct client *c = &m->clients[number];
    struct buf *out = &c->out;
    int64_t sum;
    int rc = r->rc;

    if (rc != 0)
        return rc;
    switch (r->op) {
    case STORE_OP_VALIDATE:
        if (c->has_greeted)
            return -EPROTO;
        c->has_greeted = true;
        break;
    case STORE_OP_SET:
        change(m, r->key, copy(r->value.data, r->value.len));
        come_for_all(m, r->key);
        break;
    case STORE_OP_COMPARE_SET:
        do_compare_set(m, out, r);
        break;
    case STORE_OP_GET:
        put_value(m, out, r->key);
        break;
    case STORE_OP_ADD:
        rc = add(m, r->key, r->number, &sum);
        if (rc < 0)
            return rc;
        come_for_all(m, r->key);
        put_u64(out, (uint64_t)sum);
        break;
    case STORE_OP_CHECK:
        for (size_t i = 0; i < r->n; i++)
            rc |= !exists(m, r->keys[i]);
        put(out, &(uint8_t){(uint8_t)rc}, 1);
        break;
    case STORE_OP_WAIT:
        do_wait(m, number, out, r);
        break;
    case STORE_OP_GETNUMKEYS:
        put_u64(out, count_values(m));
        break;
    case STORE_OP_WATCH_KEY:
        m->watches[number][r->key] = true;
        put(out, "\3", 1);
        break;
    case STORE_OP_DELETE_KEY:
        put_u64(out, m->values[r->key].data != NULL);
        if (m->values[r->key].data != NULL)
            change(m, r->key, (struct text){NULL, 0});
        break;
    case STORE_OP_APPEND:
        return do_append(m, r);
    case STORE_OP_MULTI_GET:
        for (size_t i = 0; i < r->n; i++)
            put_value(m, out, r->keys[i]);
        break;
    case STORE_OP_MULTI_SET:
        for (size_t i = 0; i < r->n; i++) {
            change(m, r->keys[i], copy(r->values[i].data, r->values[i].len));
            come_for_all(m, r->keys[i]);
        }
        break;
    case STORE_OP_CANCEL_WAIT:
        forget_waits(m, number);
        put(out, "\1", 1);
        break;
    case STORE_OP_PING:
        put(out, "\x67\x45\x23\x01", 4);
        break;
    case STORE_OP_QUEUE_PUSH:
        m->queues[r->key] =
            grown(m->queues[r->key], m->queue_len[r->key], sizeof(struct text));
        m->queues[r->key][m->queue_len[r->key]++] =
            copy(r->value.data, r->value.len);
        come_for_oldest(m, r->key);
        break;
    case STORE_OP_QUEUE_POP:
        do_pop(m, out, r->key);
        break;
    case STORE_OP_QUEUE_LEN:
        put_u64(out, m->queue_len[r->key]);
        break;
    case STORE_OP_LIST_KEYS:
        do_list_keys(m, c);
        break;
    case STORE_OP_BARRIER:
        rc = add(m, r->key, 1, &sum);
        if (rc < 0)
            return rc;
        if (sum < r->number) {
            begin_wait(m, (struct wait){number, 1, {r->key}});
        } else {
            come_for_all(m, r->key);
            put(out, "\0", 1);
        }
        break;
    default:
        assert(!"an operation that the model does not know");
    }
    return 0;
}

static void forget(struct model *m, unsigned client)
{
    forget_waits(m, client);
    memset(m->watches[client], 0, sizeof(m->watches[client]));
}

/* What a watcher has seen, unless it reads nothing. 0 or why it ends. */
static int tell_changes(struct client *c)
{
    int rc = 0;

    for (size_t i = 0; i < c->nnotices; i++) {
        if (c->out.len > STORE_NOTICES_HIGH)
            rc = -ENOBUFS;
        if (rc == 0)
            put(&c->out, c->notices[i].data, c->notices[i].len);
        drop(&c->notices[i]);
    }
    c->nnotices = 0;
    return rc;
}

/* After a request of a client: those who have nothing to wait for any more
 * are told, and then what the watchers have seen. */
static int tell(struct model *m, unsigned number)
{
    int rc = 0;

    for (size_t i = m->nwaits; i-- > 0;) {
        if (m->waits[i].n == 0) {
            put(&m->clients[m->waits[i].client].out, "\0", 1);
            end_wait(m, i);
        }
    }
    for (unsigned i = 0; i < NCLIENTS; i++) {
        struct client *c = &m->clients[i];
        int told = tell_changes(c);

        if (i == number) {
            rc = told;
        } else if (told < 0) {
            forget(m, i);
            c->has_ended = true;
        }
    }
    return rc;
}

static void free_request(struct request *r)
{
    drop(&r->expected);
    drop(&r->value);
    for (size_t i = 0; i < LIST_MAX; i++)
        drop(&r->values[i]);
}

/* Executes what has arrived whole of a client's requests, as long as it does
 * not owe the reading of too many answers. 0 or why it is to be closed. */
static int execute_all(struct model *m, unsigned number)
{
    struct client *c = &m->clients[number];
    int rc = 0;

    while (rc == 0 && c->nrequests > 0 && c->requests[0].end <= c->fed &&
           c->out.len <= STORE_OUT_HIGH) {
        int told;

        rc = execute(m, number, &c->requests[0]);
        told = tell(m, number);
        if (rc == 0)
            rc = told;
        m->executed++;
        free_request(&c->requests[0]);
        memmove(&c->requests[0], &c->requests[1],
            --c->nrequests * sizeof(c->requests[0]));
    }
    return rc;
}

/* --- The driver ----------------------------------------------------------- */

struct input {
    const uint8_t *data;
    size_t size;
};

/* The next decision: less than n. */
static unsigned choose(struct input *in, unsigned n)
{
    if (in->size == 0)
        return 0;
    in->size--;
    return *in->data++ % n;
}

static struct client *client_of(struct store_session *s)
{
    return (struct client *)((char *)s - offsetof(struct client, session));
}

static void wake_cb(struct store_session *s, int rc)
{
    struct client *c = client_of(s);

    assert(c->is_open && !c->real_has_ended);
    if (rc == 0)
        return;
    assert(rc == -EDQUOT || rc == -ENOBUFS);
    if (rc == -EDQUOT)
        c->model->is_blind = true;
    store_session_fini(s);
    c->real_has_ended = true;
}

static void open_client(struct model *m, unsigned number, struct input *in)
{
    struct client *c = &m->clients[number];

    assert(!c->is_open);
    memset(c, 0, sizeof(*c));
    c->model = m;
    c->is_open = true;
    c->dialect = (enum store_dialect)choose(in, STORE_DIALECT_COUNT);
    buf_init(&c->unsent, SIZE_MAX / 2);
    buf_init(&c->out, SIZE_MAX / 2);
    store_session_init(&c->session, &m->keys, &m->limits, c->dialect, wake_cb);
}

static void close_client(struct model *m, unsigned number)
{
    struct client *c = &m->clients[number];

    if (!c->is_open)
        return;
    if (!c->real_has_ended)
        store_session_fini(&c->session);
    forget(m, number);
    for (size_t i = 0; i < c->nrequests; i++)
        free_request(&c->requests[i]);
    free(c->requests);
    buf_fini(&c->unsent);
    free(c->notices); /* none is left after a request */
    buf_fini(&c->out);
    c->is_open = false;
}

/* After a step of the real client that ended with rc: the model's. */
static void follow(struct model *m, unsigned number, int rc)
{
    struct client *c;

    if (rc == -EDQUOT)
        m->is_blind = true;
    if (!m->is_blind) {
        int want = execute_all(m, number);

        assert(want == rc);
    }
    if (rc < 0)
        close_client(m, number);
    for (unsigned i = 0; i < NCLIENTS; i++) {
        c = &m->clients[i];
        if (!c->is_open || !(c->has_ended || c->real_has_ended))
            continue;
        assert(m->is_blind || c->has_ended == c->real_has_ended);
        close_client(m, i);
    }
    /* Only a run with little memory may be short of it. */
    assert(!m->is_blind || m->limits.memory < model_limits.memory);
}

static void compare(const struct model *m)
{
    assert(m->keys.due == NULL);
    assert(m->keys.budget.used <= m->keys.budget.max);
    if (m->is_blind)
        return;
    assert(m->keys.count == count_values(m));
    for (unsigned key = 0; key < NKEYS; key++) {
        const struct store_blob *b = store_keys_get(&m->keys, names[key]);
        struct text want = m->values[key];

        assert((b != NULL) == (want.data != NULL));
        assert(b == NULL || b->len == want.len);
        assert(b == NULL || b->len > 64 ||
               memcmp(b->data, want.data, b->len + 1) == 0);
        assert(store_keys_queue_len(&m->keys, names[key]) == m->queue_len[key]);
    }
    for (unsigned i = 0; i < NCLIENTS; i++) {
        const struct client *c = &m->clients[i];
        bool waits = false;

        if (!c->is_open)
            continue;
        for (size_t j = 0; j < m->nwaits; j++)
            waits |= m->waits[j].client == i;
        assert((c->session.party.waits != NULL) == waits);
        assert(store_out_len(&c->session.out) == c->out.len);
        assert(c->session.is_stalled == (c->out.len > STORE_OUT_HIGH));
        /* Nothing is kept for who has nothing under way. */
        assert(c->out.len > 0 || store_out_memory(&c->session.out) == 0);
        assert(c->nrequests > 0 || c->session.in.data == NULL);
    }
}

/* The model does not tire. */
static int rest(struct client *c, int rc, struct err *e)
{
    while (rc == 0 && c->session.is_tired)
        rc = store_session_resume(&c->session, e);
    return rc;
}

/* n bytes of what a client has asked arrive at the real session. */
static void feed(struct model *m, unsigned number, size_t n)
{
    struct client *c = &m->clients[number];

    while (n > 0 && c->is_open) {
        size_t len, piece = n < 65536 ? n : 65536;
        char *space = store_session_space(&c->session, &len);
        struct err e;
        int rc;

        if (space != NULL) {
            piece = n < len ? n : len;
            memcpy(space, buf_bytes(&c->unsent), piece);
            rc = store_session_added(&c->session, piece, &e);
        } else {
            rc = store_session_feed(
                &c->session, buf_bytes(&c->unsent), piece, &e);
        }
        rc = rest(c, rc, &e);
        assert(rc == 0 || (e.rc == rc && e.msg[0] != '\0'));
        buf_consume(&c->unsent, piece);
        c->fed += piece;
        n -= piece;
        follow(m, number, rc);
        compare(m);
    }
}

/* The client reads n bytes of its answers. */
static void read_out(struct model *m, unsigned number, size_t n)
{
    struct client *c = &m->clients[number];
    struct buf got;
    struct err e;

    if (!m->is_blind) {
        buf_init(&got, SIZE_MAX / 2);
        real_out(&c->session.out, 0, n, &got);
        assert(n == 0 || memcmp(buf_bytes(&got), buf_bytes(&c->out), n) == 0);
        buf_fini(&got);
        buf_consume(&c->out, n);
    }
    follow(m, number, rest(c, store_session_sent(&c->session, n, &e), &e));
    compare(m);
}

static struct text choose_value(struct model *m, struct input *in)
{
    static const struct store_bytes values[] = {{"", 0}, {"0", 1}, {"7", 1},
        {"-12", 3}, {" 41xyz", 6}, {"+", 1}, {"text", 4}, {"\0\xff\n", 3},
        {"9223372036854775807", 19}, {"9223372036854775808", 19},
        {"a value that is not that short, but not long either", 51}};
    unsigned i = choose(in, 64);
    size_t len;
    struct text t;

    if (i < sizeof(values) / sizeof(values[0]))
        return copy(values[i].data, values[i].len);
    if (i < 24) { /* what a key has, for a COMPARE_SET to succeed */
        t = m->values[i % NKEYS];
        return copy(t.data, t.len);
    }
    if (i < 56)
        return copy(&(char){(char)('0' + i % 10)}, 1);
    /* Long ones are rare, for they take time. */
    len = STORE_OUT_COPY_MAX - 1 + i % 3;
    if (i >= 62 && choose(in, 2) == 0)
        len = i == 62 ? 70000 + 1000 * choose(in, 100) : 400000;
    t = blank(len);
    memset(t.data, 'a' + (int)choose(in, 26), len);
    return t;
}

static struct store_bytes bytes_of(struct text t)
{
    return store_bytes(t.data, t.len);
}

/* Appends a request to what the client has asked. */
static void encode(struct model *m, struct client *c, struct request r)
{
    struct store_request req = {
        .op = r.op,
        .word = r.op == STORE_OP_VALIDATE ? STORE_MAGIC : 0x01234567,
        .number = r.number,
        .key = names[r.key],
        .expected = bytes_of(r.expected),
        .value = bytes_of(r.value),
        .list_count = r.n,
    };
    size_t before = c->unsent.len;
    struct buf list;
    int rc = 0;

    buf_init(&list, SIZE_MAX / 2);
    for (size_t i = 0; i < r.n; i++) {
        rc = store_put_bytes(&list, names[r.keys[i]]);
        if (rc == 0 && r.op == STORE_OP_MULTI_SET)
            rc = store_put_bytes(&list, bytes_of(r.values[i]));
        assert(rc == 0);
    }
    if (list.len > 0)
        req.list = store_bytes(buf_bytes(&list), list.len);
    switch (r.rc) {
    case 0:
        rc = store_encode(&c->unsent, c->dialect, &req);
        assert(rc == 0);
        break;
    case -EPROTO: /* no opcode at all */
        put(&c->unsent, "\xff", 1);
        break;
    default: /* a GET of a key that is one byte too long */
        put(&c->unsent, &(uint8_t){(uint8_t)store_opcode(c->dialect, r.op)}, 1);
        put_u64(&c->unsent, m->limits.key_len + 1);
    }
    buf_fini(&list);
    c->asked += c->unsent.len - before;
    r.end = c->asked;
    c->requests = grown(c->requests, c->nrequests, sizeof(r));
    c->requests[c->nrequests++] = r;
}

static void ask(struct model *m, unsigned number, struct input *in)
{
    struct client *c = &m->clients[number];
    /* What makes keys go is asked for more often than what makes them come,
     * so that there is something to wait for. */
    static const enum store_op often[] = {STORE_OP_DELETE_KEY,
        STORE_OP_DELETE_KEY, STORE_OP_DELETE_KEY, STORE_OP_WAIT, STORE_OP_WAIT,
        STORE_OP_BARRIER, STORE_OP_QUEUE_PUSH, STORE_OP_QUEUE_POP,
        STORE_OP_QUEUE_POP};
    static const int numbers[] = {-1, 0, 1, 2, 3, 5, 9, 50};
    struct request r = {.op = STORE_OP_GET};
    unsigned op = choose(in, 128);

    if (c->asked == 0 && c->dialect == STORE_DIALECT_C)
        r.op = STORE_OP_VALIDATE;
    else if (op == 0)
        r.rc = choose(in, 2) ? -EPROTO : -EMSGSIZE;
    else if (op == 1)
        r.op = STORE_OP_VALIDATE; /* a second time */
    else if (op < 64)
        r.op = often[op % (sizeof(often) / sizeof(often[0]))];
    else
        r.op = (enum store_op)(1 + op % (STORE_OP_COUNT - 1));
    if (store_opcode(c->dialect, r.op) < 0)
        r.op = STORE_OP_SET;
    r.key = choose(in, NKEYS);
    switch (r.op) {
    case STORE_OP_COMPARE_SET:
        r.expected = choose_value(m, in);
        r.value = choose_value(m, in);
        break;
    case STORE_OP_SET:
    case STORE_OP_APPEND:
    case STORE_OP_QUEUE_PUSH:
        r.value = choose_value(m, in);
        break;
    case STORE_OP_ADD:
    case STORE_OP_BARRIER:
        r.number = numbers[choose(in, 8)];
        break;
    case STORE_OP_CHECK:
    case STORE_OP_WAIT:
    case STORE_OP_MULTI_GET:
    case STORE_OP_MULTI_SET:
        r.n = choose(in, LIST_MAX + 1);
        for (size_t i = 0; i < r.n; i++) {
            r.keys[i] = choose(in, NKEYS);
            if (r.op == STORE_OP_MULTI_SET)
                r.values[i] = choose_value(m, in);
        }
        break;
    default:
        break;
    }
    encode(m, c, r);
}

static void step(struct model *m, struct input *in)
{
    unsigned number = choose(in, NCLIENTS);
    struct client *c = &m->clients[number];
    unsigned what = choose(in, 64);
    size_t n;

    if (!c->is_open)
        open_client(m, number, in);
    if (what == 0) {
        close_client(m, number);
        compare(m);
    } else if (what < 12) {
        n = store_out_len(&c->session.out);
        read_out(m, number, what < 10 ? n : n * choose(in, 256) / 256);
    } else if (what < 18) { /* pipelined, or in pieces */
        ask(m, number, in);
    } else if (what < 24) {
        n = c->unsent.len;
        feed(m, number,
            n < 64 ? choose(in, (unsigned)n + 1) : n * choose(in, 256) / 256);
    } else {
        ask(m, number, in);
        feed(m, number, c->unsent.len);
    }
}

static void finish(struct model *m)
{
    for (unsigned i = 0; i < NCLIENTS; i++) {
        struct client *c = &m->clients[i];

        while (c->is_open && store_out_len(&c->session.out) > 0)
            read_out(m, i, store_out_len(&c->session.out));
    }
    for (unsigned i = 0; i < NCLIENTS; i++)
        close_client(m, i);
    assert(m->nwaits == 0);
    free(m->waits);
    for (unsigned key = 0; key < NKEYS; key++) {
        drop(&m->values[key]);
        for (size_t i = 0; i < m->queue_len[key]; i++)
            drop(&m->queues[key][i]);
        free(m->queues[key]);
    }
    store_keys_fini(&m->keys);
    assert(m->keys.budget.used == 0);
    assert(m->keys.buffers.used == 0);
}

size_t store_model_check(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct model *m = calloc(1, sizeof(*m));
    size_t executed;

    assert(m != NULL);
    m->limits = model_limits;
    if (choose(&in, 4) == 3) /* from nearly nothing to 1 MiB */
        m->limits.memory = (size_t)4096 * (1 + choose(&in, 256));
    store_keys_init(&m->keys, &m->limits);
    while (in.size > 0)
        step(m, &in);
    finish(m);
    executed = m->executed;
    free(m);
    return executed;
}
