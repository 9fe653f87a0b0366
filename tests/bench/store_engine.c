/* See store_engine.h. */
#include "tests/bench/store_engine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/store_codec.h"
#include "tests/bench/store_echo.h"

#define EVENTS_MAX 64
#define REQUEST_MAX ((size_t)16 << 20)
/* So many bytes of equal requests are laid out for one send. */
#define SEND_BATCH ((size_t)64 << 10)

/* One request and what is known of its answer. */
struct step {
    struct buf request; /* one, or several equal ones behind each other */
    size_t request_len; /* of one */
    size_t reply_len; /* 0: the answer is a line, of any length */
};

struct client {
    int fd;
    bool wants_out;
    struct step step[ECHO_STEPS];
    unsigned current; /* step */
    size_t to_send;
    size_t sent; /* of step[current].request */
    size_t received; /* of the answer that is coming */
    uint64_t *started; /* ring of in_flight times */
    int oldest;
};

struct engine {
    struct engine_spec spec;
    unsigned steps;
    int epoll_fd;
    bool running;
    struct client *clients;
    char in[256 << 10];
};

static int by_name(const char *name, const char *const *names, int count)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(name, names[i]) == 0)
            return i;
    }
    return -1;
}

int engine_protocol_by_name(const char *name)
{
    static const char *const names[] = {
        "tcpstore", "tcpstore-a", "redis", "echo"};

    return by_name(name, names, 4);
}

int engine_op_by_name(const char *name)
{
    static const char *const names[] = {"set", "get", "wait_get", "add"};

    return by_name(name, names, 4);
}

/* --- Requests ----------------------------------------------------------- */

static void *allocate(size_t n, size_t size)
{
    void *p = calloc(n, size);

    if (p == NULL)
        bench_die("no memory");
    return p;
}

static void put(struct buf *out, const void *bytes, size_t len)
{
    if (buf_append(out, bytes, len) < 0)
        bench_die("no memory");
}

static enum store_dialect dialect(const struct engine *e)
{
    return e->spec.protocol == ENGINE_TCPSTORE_A ? STORE_DIALECT_A
                                                 : STORE_DIALECT_C;
}

static void put_request(
    const struct engine *e, struct buf *out, const struct store_request *req)
{
    if (store_encode(out, dialect(e), req) < 0)
        bench_die("no request of this dialect");
}

/* A request whose answer shows that all before it have been executed.
 * Returns the length of that answer. */
static size_t put_fence(const struct engine *e, struct buf *out)
{
    bool ping = store_opcode(dialect(e), STORE_OP_PING) >= 0;

    put_request(e, out,
        &(struct store_request){
            .op = ping ? STORE_OP_PING : STORE_OP_GETNUMKEYS});
    return ping ? 4 : 8;
}

/* Arguments of a redis command. */
static void put_redis(
    struct buf *out, const struct store_bytes *args, int count)
{
    char line[32];

    put(out, line, (size_t)snprintf(line, sizeof(line), "*%d\r\n", count));
    for (int i = 0; i < count; i++) {
        put(out, line,
            (size_t)snprintf(line, sizeof(line), "$%zu\r\n", args[i].len));
        put(out, args[i].data, args[i].len);
        put(out, "\r\n", 2);
    }
}

static void prepare_redis(const struct engine *e, struct client *c,
    struct store_bytes key, struct store_bytes value)
{
    struct step *step = &c->step[0];
    char head[32];

    switch (e->spec.op) {
    case ENGINE_SET:
        put_redis(&step->request,
            (struct store_bytes[]){store_bytes("SET", 3), key, value}, 3);
        step->reply_len = strlen("+OK\r\n");
        break;
    case ENGINE_GET:
        put_redis(&step->request,
            (struct store_bytes[]){store_bytes("GET", 3), key}, 2);
        step->reply_len =
            (size_t)snprintf(head, sizeof(head), "$%zu\r\n", value.len) +
            value.len + 2;
        break;
    case ENGINE_ADD:
        put_redis(&step->request,
            (struct store_bytes[]){
                store_bytes("INCRBY", 6), key, store_bytes("1", 1)},
            3);
        break;
    case ENGINE_WAIT_GET:
        bench_die("redis has no wait_get");
    }
}

static void prepare_tcpstore(const struct engine *e, struct client *c,
    struct store_bytes key, struct store_bytes value)
{
    struct step *step = &c->step[0];
    struct buf list;

    switch (e->spec.op) {
    case ENGINE_SET:
        put_request(e, &step->request,
            &(struct store_request){
                .op = STORE_OP_SET, .key = key, .value = value});
        step->reply_len = put_fence(e, &step->request);
        break;
    case ENGINE_WAIT_GET:
        buf_init(&list, REQUEST_MAX);
        if (store_put_bytes(&list, key) < 0)
            bench_die("no memory");
        put_request(e, &step->request,
            &(struct store_request){.op = STORE_OP_WAIT,
                .list_count = 1,
                .list = store_bytes(buf_bytes(&list), list.len)});
        buf_fini(&list);
        step->reply_len = 1;
        step++;
        /* fall through */
    case ENGINE_GET:
        put_request(e, &step->request,
            &(struct store_request){.op = STORE_OP_GET, .key = key});
        step->reply_len = 8 + value.len;
        break;
    case ENGINE_ADD:
        put_request(e, &step->request,
            &(struct store_request){
                .op = STORE_OP_ADD, .key = key, .number = 1});
        step->reply_len = 8;
        break;
    }
}

/* --- Clients ------------------------------------------------------------ */

/* Sends all of out and takes n bytes of answer; the socket blocks still. */
static void exchange(int fd, const struct buf *out, size_t n)
{
    char in[64];

    for (size_t sent = 0; sent < out->len;) {
        ssize_t rc =
            send(fd, buf_bytes(out) + sent, out->len - sent, MSG_NOSIGNAL);
        if (rc < 0)
            bench_die("send: %s", strerror(errno));
        sent += (size_t)rc;
    }
    if (n > 0 && recv(fd, in, n, MSG_WAITALL) != (ssize_t)n)
        bench_die("the server did not answer the first request");
}

/* Greets the server and creates the key. */
static void introduce(const struct engine *e, const struct client *c,
    struct store_bytes key, struct store_bytes value)
{
    bool counter = e->spec.op == ENGINE_ADD;
    struct store_bytes first = counter ? store_bytes("0", 1) : value;
    struct echo_plan plan = {.steps = e->steps};
    size_t reply_len = 0;
    struct buf out;

    buf_init(&out, REQUEST_MAX);
    switch (e->spec.protocol) {
    case ENGINE_ECHO:
        for (unsigned i = 0; i < e->steps; i++) {
            plan.request_len[i] = (uint32_t)c->step[i].request_len;
            plan.reply_len[i] = (uint32_t)c->step[i].reply_len;
        }
        put(&out, &plan, sizeof(plan));
        break;
    case ENGINE_REDIS:
        put_redis(
            &out, (struct store_bytes[]){store_bytes("SET", 3), key, first}, 3);
        reply_len = strlen("+OK\r\n");
        break;
    case ENGINE_TCPSTORE:
        put(&out, store_greeting, STORE_GREETING_LEN);
        /* fall through */
    case ENGINE_TCPSTORE_A:
        put_request(e, &out,
            &(struct store_request){
                .op = STORE_OP_SET, .key = key, .value = first});
        reply_len = put_fence(e, &out);
        break;
    }
    exchange(c->fd, &out, reply_len);
    buf_fini(&out);
}

static void watch(const struct engine *e, struct client *c, int how)
{
    struct epoll_event ev = {
        .events = c->wants_out ? EPOLLIN | EPOLLOUT : EPOLLIN,
        .data.ptr = c,
    };

    if (epoll_ctl(e->epoll_fd, how, c->fd, &ev) < 0)
        bench_die("epoll_ctl: %s", strerror(errno));
}

static void client_init(struct engine *e, struct client *c, int number,
    const struct sockaddr_in *server, struct store_bytes value)
{
    char name[32];
    struct store_bytes key = {name, 0};

    for (unsigned i = 0; i < ECHO_STEPS; i++)
        buf_init(&c->step[i].request, REQUEST_MAX);
    key.len = (size_t)snprintf(name, sizeof(name), "/bench/%s/%04d",
        e->spec.op == ENGINE_ADD ? "count" : "value", number);
    if (e->spec.protocol == ENGINE_REDIS)
        prepare_redis(e, c, key, value);
    else
        prepare_tcpstore(e, c, key, value);
    for (unsigned i = 0; i < e->steps; i++)
        c->step[i].request_len = c->step[i].request.len;

    c->fd = bench_connect(server, 0, 0);
    if (c->fd < 0)
        bench_die("cannot connect: %s", strerror(-c->fd));
    introduce(e, c, key, value);
    if (fcntl(c->fd, F_SETFL, O_NONBLOCK) < 0)
        bench_die("fcntl: %s", strerror(errno));
    watch(e, c, EPOLL_CTL_ADD);

    c->started = allocate((size_t)e->spec.in_flight, sizeof(*c->started));
    for (int i = 1; i < e->spec.in_flight; i++) {
        struct buf *request = &c->step[0].request;
        size_t len = c->step[0].request_len;
        if (request->len + len > SEND_BATCH)
            break;
        if (buf_reserve(request, len) == NULL)
            bench_die("no memory");
        put(request, buf_bytes(request), len);
    }
}

struct engine *engine_create(
    const struct sockaddr_in *server, const struct engine_spec *spec)
{
    struct engine *e = allocate(1, sizeof(*e));
    char *value = allocate(1, spec->value_len + 1);

    e->spec = *spec;
    e->steps = spec->op == ENGINE_WAIT_GET ? 2 : 1;
    if (e->steps > 1 && spec->in_flight > 1)
        bench_die("wait_get is one request at a time");
    e->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (e->epoll_fd < 0)
        bench_die("epoll_create1: %s", strerror(errno));
    memset(value, 'v', spec->value_len);
    e->clients = allocate((size_t)spec->clients, sizeof(*e->clients));
    for (int i = 0; i < spec->clients; i++)
        client_init(
            e, &e->clients[i], i, server, store_bytes(value, spec->value_len));
    free(value);
    return e;
}

void engine_destroy(struct engine *e)
{
    for (int i = 0; i < e->spec.clients; i++) {
        struct client *c = &e->clients[i];
        close(c->fd);
        free(c->started);
        for (unsigned j = 0; j < ECHO_STEPS; j++)
            buf_fini(&c->step[j].request);
    }
    close(e->epoll_fd);
    free(e->clients);
    free(e);
}

/* --- Work --------------------------------------------------------------- */

static void client_send(struct engine *e, struct client *c)
{
    const struct step *step = &c->step[c->current];
    bool blocked = false;

    while (c->to_send > 0) {
        size_t n = step->request.len - c->sent;
        ssize_t rc = send(c->fd, buf_bytes(&step->request) + c->sent,
            n < c->to_send ? n : c->to_send, MSG_NOSIGNAL);
        if (rc < 0 && errno != EAGAIN)
            bench_die("send: %s", strerror(errno));
        blocked = rc < 0;
        if (blocked)
            break;
        c->to_send -= (size_t)rc;
        c->sent = (c->sent + (size_t)rc) % step->request.len;
    }
    if (blocked != c->wants_out) {
        c->wants_out = blocked;
        watch(e, c, EPOLL_CTL_MOD);
    }
}

/* Takes one answer, or a part of it, off the front of n > 0 bytes. Returns
 * how many bytes those were. */
static size_t take_answer(
    struct client *c, const char *in, size_t n, bool *complete)
{
    const struct step *step = &c->step[c->current];
    const char *newline;

    if (step->reply_len == 0) {
        newline = memchr(in, '\n', n);
        *complete = newline != NULL;
        return *complete ? (size_t)(newline - in) + 1 : n;
    }
    *complete = step->reply_len - c->received <= n;
    if (*complete)
        n = step->reply_len - c->received;
    c->received = *complete ? 0 : c->received + n;
    return n;
}

/* Returns how many operations were completed. */
static uint64_t client_receive(
    struct engine *e, struct client *c, struct bench_hist *latencies)
{
    ssize_t n = recv(c->fd, e->in, sizeof(e->in), 0);
    uint64_t now = bench_now_ns();
    uint64_t done = 0;
    bool complete;

    if (n < 0 && errno == EAGAIN)
        return 0;
    if (n <= 0)
        bench_die("the server has closed a connection");
    for (size_t used = 0; used < (size_t)n;) {
        used += take_answer(c, e->in + used, (size_t)n - used, &complete);
        if (!complete)
            break;
        if (c->current + 1 < e->steps) {
            c->current++;
            c->to_send += c->step[c->current].request_len;
            continue;
        }
        if (latencies != NULL)
            bench_hist_add(latencies, now - c->started[c->oldest]);
        c->started[c->oldest] = now;
        c->oldest = (c->oldest + 1) % e->spec.in_flight;
        c->current = 0;
        c->to_send += c->step[0].request_len;
        done++;
    }
    client_send(e, c);
    return done;
}

static void start(struct engine *e)
{
    for (int i = 0; i < e->spec.clients; i++) {
        struct client *c = &e->clients[i];
        for (int j = 0; j < e->spec.in_flight; j++)
            c->started[j] = bench_now_ns();
        c->to_send = c->step[0].request_len * (size_t)e->spec.in_flight;
        client_send(e, c);
    }
    e->running = true;
}

uint64_t engine_run(struct engine *e, uint64_t run_ns,
    struct bench_hist *latencies, uint64_t *took_ns)
{
    struct epoll_event events[EVENTS_MAX];
    uint64_t begin = bench_now_ns(), now = begin;
    uint64_t done = 0;

    if (!e->running)
        start(e);
    for (; now - begin < run_ns; now = bench_now_ns()) {
        /* Nobody answers for so long: not a server to measure. */
        int n = epoll_wait(e->epoll_fd, events, EVENTS_MAX, 30000);
        if (n < 0 && errno != EINTR)
            bench_die("epoll_wait: %s", strerror(errno));
        if (n == 0)
            bench_die("the server has not answered for 30 s");
        for (int i = 0; i < n; i++) {
            struct client *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT)
                client_send(e, c);
            if (events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP))
                done += client_receive(e, c, latencies);
        }
    }
    *took_ns = now - begin;
    return done;
}
