/*
 * Measures the blocking client (rendezvous/store_client.h) as
 * store_pytorch.py measures PyTorch's: so many processes with one client each.
 * Prints "ops_s=N".
 *
 *     store_client_bench [options] ADDRESS:PORT
 *       -o OPERATION  set (default), get, add
 *       -v BYTES      length of values (64)
 *       -c CLIENTS    processes (1)
 *       -d MS         how long to measure (300)
 *       -b            bare: sockets alone, which exchange as many bytes in as
 *                     many steps with store_echo; the limit for a client that
 *                     sends each request when it is made
 *
 * A set has no answer; the time until one more request has been answered,
 * which shows that all were executed, is counted too.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/store_client.h"
#include "tests/bench/store_bench.h"
#include "tests/bench/store_echo.h"

#define VALUE_MAX (8l << 20)
#define CLIENTS_MAX 1000
#define DEADLINE_MS 60000
#define HEAD_MAX 64 /* bytes of a request besides the value */

enum op { OP_SET, OP_GET, OP_ADD };

struct task {
    enum op op;
    size_t value_len;
    uint64_t run_ns;
    bool bare;
    const char *host;
    int port;
};

/* Written by a client's process, read by the parent when that has ended. */
struct result {
    uint64_t count;
    uint64_t begin_ns;
    uint64_t end_ns;
};

struct client {
    struct store_client *store; /* NULL if bare */
    int fd; /* if bare */
    struct echo_plan plan;
    char key[32];
    char *value;
    struct buf got;
};

static void check(int rc, const struct err *e)
{
    if (rc < 0)
        bench_die("%s", e->msg);
}

/* --- Bare sockets ------------------------------------------------------- */

/* The bytes of the requests of TCPStore; a get is a WAIT and a GET. */
static struct echo_plan plan_of(const struct task *task, size_t key_len)
{
    uint32_t key = (uint32_t)(8 + key_len);
    uint32_t value = (uint32_t)(8 + task->value_len);

    switch (task->op) {
    case OP_SET:
        return (struct echo_plan){.steps = 1, {1 + key + value}, {0}};
    case OP_GET:
        return (struct echo_plan){
            .steps = 2, {1 + 8 + key, 1 + key}, {1, value}};
    case OP_ADD:
        return (struct echo_plan){.steps = 1, {1 + key + 8}, {8}};
    }
    bench_die("no such operation");
}

static void bare_send(int fd, const void *bytes, size_t len)
{
    for (size_t sent = 0; sent < len;) {
        ssize_t n =
            send(fd, (const char *)bytes + sent, len - sent, MSG_NOSIGNAL);
        if (n < 0)
            bench_die("send: %s", strerror(errno));
        sent += (size_t)n;
    }
}

static void bare_connect(
    struct client *c, const struct task *task, size_t key_len)
{
    char address[64];
    struct sockaddr_in to;

    snprintf(address, sizeof(address), "%s:%d", task->host, task->port);
    to = bench_address(address);
    c->fd = bench_connect(&to, 0, 0);
    if (c->fd < 0)
        bench_die("cannot connect: %s", strerror(-c->fd));
    c->plan = plan_of(task, key_len);
    bare_send(c->fd, &c->plan, sizeof(c->plan));
}

/* c->value is as long as any request and answer. */
static void bare_call(struct client *c)
{
    for (unsigned i = 0; i < c->plan.steps; i++) {
        size_t len = c->plan.reply_len[i];
        bare_send(c->fd, c->value, c->plan.request_len[i]);
        for (size_t got = 0; got < len;) {
            ssize_t n = recv(c->fd, c->value + got, len - got, 0);
            if (n <= 0)
                bench_die("the server has closed the connection");
            got += (size_t)n;
        }
    }
}

/* The server closes when it has read everything. */
static void bare_fence(struct client *c)
{
    char byte;

    if (shutdown(c->fd, SHUT_WR) < 0 || recv(c->fd, &byte, 1, 0) != 0)
        bench_die("the server has not closed the connection");
}

/* --- Clients ------------------------------------------------------------ */

static void call_once(
    struct client *c, const struct task *task, uint64_t deadline_ns)
{
    struct err e = {0};
    int64_t count;

    switch (task->op) {
    case OP_SET:
        check(store_client_set(
                  c->store, c->key, c->value, task->value_len, deadline_ns, &e),
            &e);
        break;
    case OP_GET:
        buf_consume(&c->got, c->got.len);
        check(store_client_get(c->store, c->key, &c->got, deadline_ns, &e), &e);
        if (c->got.len != task->value_len)
            bench_die("a value of %zu bytes came back", c->got.len);
        break;
    case OP_ADD:
        check(
            store_client_add(c->store, c->key, 1, &count, deadline_ns, &e), &e);
        break;
    }
}

static void fence(struct client *c, uint64_t deadline_ns)
{
    struct err e = {0};
    int64_t count;

    check(store_client_num_keys(c->store, &count, deadline_ns, &e), &e);
}

static void open_client(
    struct client *c, const struct task *task, int number, uint64_t deadline_ns)
{
    struct err e = {0};
    int len;

    buf_init(&c->got, task->value_len);
    c->value = malloc(task->value_len + HEAD_MAX);
    if (c->value == NULL)
        bench_die("no memory");
    memset(c->value, 'v', task->value_len + HEAD_MAX);
    len = snprintf(c->key, sizeof(c->key), "bench/%s/%04d",
        task->op == OP_ADD ? "count" : "value", number);
    if (task->bare) {
        bare_connect(c, task, 1 + (size_t)len);
        return;
    }
    check(store_client_connect(
              &c->store, task->host, task->port, deadline_ns, &e),
        &e);
    if (task->op != OP_ADD)
        check(store_client_set(
                  c->store, c->key, c->value, task->value_len, deadline_ns, &e),
            &e);
    fence(c, deadline_ns);
}

static void close_client(struct client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    store_client_close(c->store);
    buf_fini(&c->got);
    free(c->value);
}

/* Tells ready that it is connected, and begins when go is closed. */
static void work(const struct task *task, int number, int ready, int go,
    struct result *result)
{
    uint64_t deadline_ns = clock_deadline_ns(DEADLINE_MS);
    struct client c = {.fd = -1};
    uint64_t now;
    char byte = 0;

    open_client(&c, task, number, deadline_ns);
    if (write(ready, &byte, 1) != 1 || read(go, &byte, 1) != 0)
        bench_die("the parent has gone");
    result->begin_ns = now = bench_now_ns();
    for (; now - result->begin_ns < task->run_ns; now = bench_now_ns()) {
        if (task->bare)
            bare_call(&c);
        else
            call_once(&c, task, deadline_ns);
        result->count++;
    }
    if (task->bare)
        bare_fence(&c);
    else
        fence(&c, deadline_ns);
    result->end_ns = bench_now_ns();
    close_client(&c);
}

static double measure(const struct task *task, int clients)
{
    struct result *results = mmap(NULL, (size_t)clients * sizeof(*results),
        PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int ready[2], go[2], status, failed = 0;
    uint64_t count = 0, begin_ns = UINT64_MAX, end_ns = 0;
    char byte;

    if (results == MAP_FAILED || pipe(ready) < 0 || pipe(go) < 0)
        bench_die("cannot begin: %s", strerror(errno));
    for (int i = 0; i < clients; i++) {
        pid_t pid = fork();
        if (pid < 0)
            bench_die("fork: %s", strerror(errno));
        if (pid == 0) {
            close(ready[0]);
            close(go[1]);
            work(task, i, ready[1], go[0], &results[i]);
            _exit(0);
        }
    }
    close(ready[1]);
    close(go[0]);
    /* Who fails ends, and then this reads the end of the pipe. */
    for (int i = 0; i < clients; i++) {
        if (read(ready[0], &byte, 1) != 1)
            break;
    }
    close(go[1]);
    for (int i = 0; i < clients; i++) {
        if (wait(&status) < 0 || status != 0)
            failed++;
    }
    close(ready[0]);
    if (failed > 0)
        bench_die("%d of %d clients failed", failed, clients);
    for (int i = 0; i < clients; i++) {
        count += results[i].count;
        if (results[i].begin_ns < begin_ns)
            begin_ns = results[i].begin_ns;
        if (results[i].end_ns > end_ns)
            end_ns = results[i].end_ns;
    }
    munmap(results, (size_t)clients * sizeof(*results));
    return (double)count * 1e9 / (double)(end_ns - begin_ns);
}

static enum op op_by_name(const char *name)
{
    static const char *const names[] = {
        [OP_SET] = "set", [OP_GET] = "get", [OP_ADD] = "add"};

    for (int i = 0; i < 3; i++) {
        if (strcmp(name, names[i]) == 0)
            return (enum op)i;
    }
    bench_die("there is no '%s'", name);
}

int main(int argc, char **argv)
{
    struct task task = {.value_len = 64, .run_ns = 3 * NS_PER_S / 10};
    int clients = 1, option;
    char *colon;

    while ((option = getopt(argc, argv, "o:v:c:d:b")) != -1) {
        switch (option) {
        case 'o':
            task.op = op_by_name(optarg);
            break;
        case 'v':
            task.value_len = (size_t)bench_number(optarg, 1, VALUE_MAX);
            break;
        case 'c':
            clients = (int)bench_number(optarg, 1, CLIENTS_MAX);
            break;
        case 'd':
            task.run_ns = (uint64_t)bench_number(optarg, 1, 60000) * 1000000;
            break;
        case 'b':
            task.bare = true;
            break;
        default:
            return 2;
        }
    }
    colon = optind + 1 == argc ? strrchr(argv[optind], ':') : NULL;
    if (colon == NULL)
        bench_die("wants one ADDRESS:PORT");
    *colon = '\0';
    task.host = argv[optind];
    task.port = (int)bench_number(colon + 1, 1, 65535);
    printf("ops_s=%.0f\n", measure(&task, clients));
    return 0;
}
