/*
 * How long N clients take to meet at a store, all connecting at one time:
 * each greets the server (VALIDATE and PING), adds 1 to a counter, and waits
 * for a key that the last one to arrive sets. Prints one line:
 *
 *   clients=10000 connected_s=0.31 met_s=0.62 idle_kib=1.4
 *
 * Times count from the first connect; idle_kib is by how much the resident
 * memory of the server's process has grown for each client once all have met
 * and do nothing more than stay connected.
 *
 *     store_meet -s PID [-c CLIENTS] ADDRESS:PORT
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/store_codec.h"
#include "tests/bench/store_bench.h"

#define EVENTS_MAX 256
#define DEADLINE_NS (60 * NS_PER_S)
#define REQUEST_MAX 256
/* Clients behind one address: fewer than a range of ports has. */
#define CLIENTS_PER_ADDRESS 10000

enum state { CONNECTING, GREETED, ADDED, WAITING, MET };

/* Bytes of the answer that a client in a state waits for. */
static const size_t answer_len[] = {[GREETED] = 4, [ADDED] = 8, [WAITING] = 1};

struct client {
    int fd;
    enum state state;
    char answer[8];
    size_t answered;
};

struct meeting {
    int epoll_fd;
    int count;
    struct client *clients;
    int greeted;
    int met;
    uint64_t connected_ns; /* when the last one had been greeted */
    struct buf greet, add, wait, set; /* requests, the same for all */
};

static void put(struct buf *out, const struct store_request *req)
{
    if (store_encode(out, STORE_DIALECT_C, req) < 0)
        bench_die("no memory");
}

static void prepare(struct meeting *m)
{
    struct store_bytes counter = store_bytes("/meet/count", 11);
    struct store_bytes all_here = store_bytes("/meet/all_here", 14);
    struct buf list;

    buf_init(&m->greet, REQUEST_MAX);
    buf_init(&m->add, REQUEST_MAX);
    buf_init(&m->wait, REQUEST_MAX);
    buf_init(&m->set, REQUEST_MAX);
    buf_init(&list, REQUEST_MAX);
    put(&m->greet,
        &(struct store_request){.op = STORE_OP_VALIDATE, .word = STORE_MAGIC});
    put(&m->greet, &(struct store_request){.op = STORE_OP_PING, .word = 1});
    put(&m->add, &(struct store_request){
                     .op = STORE_OP_ADD, .key = counter, .number = 1});
    put(&m->set, &(struct store_request){
                     .op = STORE_OP_SET, .key = all_here, .value = all_here});
    if (store_put_bytes(&list, all_here) < 0)
        bench_die("no memory");
    put(&m->wait, &(struct store_request){.op = STORE_OP_WAIT,
                      .list_count = 1,
                      .list = store_bytes(buf_bytes(&list), list.len)});
    buf_fini(&list);
}

/* Requests are so short that they fit the empty buffer of a socket. */
static void request(struct client *c, const struct buf *bytes)
{
    ssize_t n = send(c->fd, buf_bytes(bytes), bytes->len, MSG_NOSIGNAL);

    if (n != (ssize_t)bytes->len)
        bench_die("send: %s", n < 0 ? strerror(errno) : "not all");
}

static void connect_all(struct meeting *m, const struct sockaddr_in *server)
{
    for (int i = 0; i < m->count; i++) {
        struct client *c = &m->clients[i];
        struct epoll_event ev = {.events = EPOLLOUT, .data.ptr = c};
        c->fd =
            bench_connect(server, 1 + i / CLIENTS_PER_ADDRESS, SOCK_NONBLOCK);
        if (c->fd < 0)
            bench_die("connection %d: %s", i + 1, strerror(-c->fd));
        if (epoll_ctl(m->epoll_fd, EPOLL_CTL_ADD, c->fd, &ev) < 0)
            bench_die("epoll_ctl: %s", strerror(errno));
    }
}

static void connected(struct meeting *m, struct client *c)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
    socklen_t len = sizeof(int);
    int error;

    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0 || error != 0)
        bench_die("cannot connect: %s", strerror(error));
    if (epoll_ctl(m->epoll_fd, EPOLL_CTL_MOD, c->fd, &ev) < 0)
        bench_die("epoll_ctl: %s", strerror(errno));
    request(c, &m->greet);
    c->state = GREETED;
}

static void answered(struct meeting *m, struct client *c)
{
    switch (c->state) {
    case GREETED:
        if (++m->greeted == m->count)
            m->connected_ns = bench_now_ns();
        request(c, &m->add);
        c->state = ADDED;
        break;
    case ADDED:
        if (store_get_u64(c->answer) == (uint64_t)m->count)
            request(c, &m->set);
        request(c, &m->wait);
        c->state = WAITING;
        break;
    case WAITING:
        if (c->answer[0] != STORE_WAIT_DONE)
            bench_die("a wait ended with %d", c->answer[0]);
        m->met++;
        c->state = MET;
        break;
    case CONNECTING:
    case MET:
        bench_die("an answer that nobody has asked for");
    }
}

static void ready(struct meeting *m, struct client *c)
{
    ssize_t n;

    if (c->state == CONNECTING) {
        connected(m, c);
        return;
    }
    n = recv(
        c->fd, c->answer + c->answered, answer_len[c->state] - c->answered, 0);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0)
        bench_die("the server has closed a connection");
    c->answered += (size_t)n;
    if (c->answered < answer_len[c->state])
        return;
    c->answered = 0;
    answered(m, c);
}

static void meet(struct meeting *m)
{
    uint64_t deadline_ns = bench_now_ns() + DEADLINE_NS;
    struct epoll_event events[EVENTS_MAX];

    while (m->met < m->count) {
        int n = epoll_wait(m->epoll_fd, events, EVENTS_MAX, 1000);
        if (n < 0 && errno != EINTR)
            bench_die("epoll_wait: %s", strerror(errno));
        for (int i = 0; i < n; i++)
            ready(m, events[i].data.ptr);
        if (bench_now_ns() > deadline_ns)
            bench_die("%d of %d have been greeted, %d have met", m->greeted,
                m->count, m->met);
    }
}

static void part(struct meeting *m)
{
    for (int i = 0; i < m->count; i++)
        close(m->clients[i].fd);
    free(m->clients);
    close(m->epoll_fd);
    buf_fini(&m->greet);
    buf_fini(&m->add);
    buf_fini(&m->wait);
    buf_fini(&m->set);
}

int main(int argc, char **argv)
{
    struct meeting m = {.count = 10000};
    uint64_t begin_ns, end_ns;
    struct sockaddr_in server;
    pid_t pid = 0;
    long rss_kib;
    int option;

    while ((option = getopt(argc, argv, "c:s:")) != -1) {
        switch (option) {
        case 'c':
            m.count = (int)bench_number(optarg, 1, 1000000);
            break;
        case 's':
            pid = (pid_t)bench_number(optarg, 1, 1l << 30);
            break;
        default:
            return 2;
        }
    }
    if (optind + 1 != argc || pid == 0)
        bench_die("wants -s PID and one ADDRESS:PORT");
    server = bench_address(argv[optind]);
    bench_need_descriptors((size_t)m.count + 16);
    if (bench_descriptor_limit(pid) < m.count + 64)
        bench_die("the server may open only %ld descriptors",
            bench_descriptor_limit(pid));
    m.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    m.clients = calloc((size_t)m.count, sizeof(*m.clients));
    if (m.epoll_fd < 0 || m.clients == NULL)
        bench_die("cannot begin: %s", strerror(errno));
    prepare(&m);

    rss_kib = bench_rss_kib(pid);
    begin_ns = bench_now_ns();
    connect_all(&m, &server);
    meet(&m);
    end_ns = bench_now_ns();
    rss_kib = bench_rss_kib(pid) - rss_kib;
    part(&m);

    printf("clients=%d connected_s=%.2f met_s=%.2f idle_kib=%.2f\n", m.count,
        (double)(m.connected_ns - begin_ns) / 1e9,
        (double)(end_ns - begin_ns) / 1e9, (double)rss_kib / m.count);
    return 0;
}
