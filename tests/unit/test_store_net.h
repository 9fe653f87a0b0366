/*
 * What the tests of the store's sockets share: a port and a store in a thread
 * of their own, and a peer that sends and expects bytes written by hand. All
 * on loopback, on ports that the kernel chooses.
 */
#ifndef CRUN_TEST_STORE_NET_H
#define CRUN_TEST_STORE_NET_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/poller.h"
#include "rendezvous/store_port.h"
#include "rendezvous/store_server.h"
#include "test_store.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define PATIENCE_MS 150000
#else
#define PATIENCE_MS 30000
#endif

struct served;
typedef void served_call_fn(struct served *s);

struct served {
    struct poller *poller;
    struct store_server *store; /* the present one */
    struct store_port *acceptor; /* whose store it is */
    int port;
    void *arg; /* of the test */
    pthread_t thread;
    struct poller_item calls;
    served_call_fn *call;
    sem_t called;
    bool is_stopped;
};

static inline void served_calls_cb(struct poller_item *item, uint32_t events)
{
    struct served *s =
        (struct served *)((char *)item - offsetof(struct served, calls));
    uint64_t count;

    (void)events;
    ck_assert_int_eq(read(item->fd, &count, sizeof(count)), sizeof(count));
    s->call(s);
    sem_post(&s->called);
}

static inline void *served_main(void *arg)
{
    struct served *s = arg;

    while (!s->is_stopped)
        ck_assert_int_ge(poller_run(s->poller, -1), 0);
    return NULL;
}

/* Runs fn in the serving thread and returns when it is done. */
static inline void served_call(struct served *s, served_call_fn *fn)
{
    uint64_t one = 1;

    s->call = fn;
    ck_assert_int_eq(write(s->calls.fd, &one, sizeof(one)), sizeof(one));
    while (sem_wait(&s->called) < 0)
        ck_assert_int_eq(errno, EINTR);
}

/* Everything but the thread. */
static inline void served_prepare(struct served *s, const char *host,
    const struct store_port_options *options, const struct store_limits *limits)
{
    struct err e = {0};
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    memset(s, 0, sizeof(*s));
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(sem_init(&s->called, 0, 0), 0);
    ck_assert_int_eq(poller_create(&s->poller), 0);
    ck_assert_int_eq(
        poller_add(s->poller, &s->calls, fd, EPOLLIN, served_calls_cb), 0);
    ck_assert_int_eq(store_server_create(&s->store, s->poller, limits), 0);
    ck_assert_msg(store_port_create(&s->acceptor, s->poller, host, 0, options,
                      &s->port, &e) == 0,
        "%s", e.msg);
    store_port_set_store(s->acceptor, s->store);
    ck_assert_int_gt(s->port, 0);
}

static inline void served_run(struct served *s)
{
    ck_assert_int_eq(pthread_create(&s->thread, NULL, served_main, s), 0);
}

static inline void served_start(struct served *s)
{
    served_prepare(s, "127.0.0.1", NULL, NULL);
    served_run(s);
}

static inline void served_stop_fn(struct served *s)
{
    s->is_stopped = true;
    store_port_destroy(s->acceptor);
    store_server_destroy(s->store);
}

static inline void served_stop(struct served *s)
{
    int fd = s->calls.fd;

    served_call(s, served_stop_fn);
    ck_assert_int_eq(pthread_join(s->thread, NULL), 0);
    poller_remove(s->poller, &s->calls);
    close(fd);
    poller_destroy(s->poller);
    sem_destroy(&s->called);
}

static inline int raw_connect_to(const struct sockaddr *sa, socklen_t len)
{
    struct timeval patience = {.tv_sec = PATIENCE_MS / 1000};
    int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1;

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)), 0);
    ck_assert_int_eq(
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)),
        0);
    ck_assert_msg(connect(fd, sa, len) == 0, "connect: %s", strerror(errno));
    return fd;
}

static inline int raw_connect(int port)
{
    struct sockaddr_in sin = {.sin_family = AF_INET,
        .sin_port = htons((uint16_t)port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    return raw_connect_to((struct sockaddr *)&sin, sizeof(sin));
}

static inline void raw_send_bytes(int fd, const void *data, size_t len)
{
    const char *bytes = data;

    while (len > 0) {
        ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);

        ck_assert_msg(n > 0, "send: %s", strerror(errno));
        bytes += n;
        len -= (size_t)n;
    }
}

static inline void raw_send(int fd, const char *hex)
{
    struct buf b = from_hex(hex);

    raw_send_bytes(fd, buf_bytes(&b), b.len);
    buf_fini(&b);
}

static inline void raw_recv(int fd, char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = recv(fd, data, len, 0);

        ck_assert_msg(n > 0, "recv: %s", n == 0 ? "EOF" : strerror(errno));
        data += n;
        len -= (size_t)n;
    }
}

static inline void raw_expect(int fd, const char *hex)
{
    struct buf want = from_hex(hex);
    char *got = malloc(want.len);

    raw_recv(fd, got, want.len);
    ck_assert_mem_eq(got, buf_bytes(&want), want.len);
    free(got);
    buf_fini(&want);
}

/* The other side has closed: end of file or reset, but no more bytes. */
static inline void raw_expect_closed(int fd)
{
    char byte;
    ssize_t n = recv(fd, &byte, 1, 0);

    ck_assert_msg(n == 0 || (n < 0 && errno == ECONNRESET), "n=%zd %s", n,
        n < 0 ? strerror(errno) : "");
    close(fd);
}

/* PING and its echo: the connection is served, and all that was sent before
 * it has been executed. */
static inline void raw_ping(int fd)
{
    raw_send(fd, "0d 01020304");
    raw_expect(fd, "01020304");
}

/* A greeted connection, sure to be accepted. */
static inline int raw_client(int port)
{
    int fd = raw_connect(port);

    raw_send(fd, GREETING "0d 01020304");
    raw_expect(fd, "01020304");
    return fd;
}

/* A listening socket that nobody serves; *port is its port. */
static inline int raw_listen(int *port)
{
    struct sockaddr_in sin = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sin);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
    ck_assert_int_eq(listen(fd, 16), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&sin, &len), 0);
    *port = ntohs(sin.sin_port);
    return fd;
}

#endif
