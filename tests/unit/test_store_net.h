/*
 * What the tests of the store's sockets share: a server whose loop runs in a
 * thread, and a peer that sends and expects bytes written by hand. All on
 * loopback, on ports that the kernel chooses.
 */
#ifndef CRUN_TEST_STORE_NET_H
#define CRUN_TEST_STORE_NET_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/store_server.h"
#include "test_store.h"

#define PATIENCE_MS 30000

struct served {
    uv_loop_t loop;
    uv_async_t stop;
    struct store_server *server;
    pthread_t thread;
    int port;
};

static inline void served_stop_cb(uv_async_t *async)
{
    struct served *s = async->data;

    store_server_destroy(s->server);
    uv_close((uv_handle_t *)async, NULL);
}

static inline void *served_main(void *arg)
{
    struct served *s = arg;

    uv_run(&s->loop, UV_RUN_DEFAULT);
    return NULL;
}

/* Everything but the thread, for tests that change something before. */
static inline void served_prepare(struct served *s, const char *host)
{
    struct err e = {0};

    ck_assert_int_eq(uv_loop_init(&s->loop), 0);
    ck_assert_int_eq(uv_async_init(&s->loop, &s->stop, served_stop_cb), 0);
    s->stop.data = s;
    ck_assert_int_eq(store_server_create(&s->server, &s->loop), 0);
    ck_assert_msg(store_server_listen(s->server, host, 0, &s->port, &e) == 0,
        "%s", e.msg);
    ck_assert_int_gt(s->port, 0);
}

static inline void served_run(struct served *s)
{
    ck_assert_int_eq(pthread_create(&s->thread, NULL, served_main, s), 0);
}

static inline void served_start(struct served *s)
{
    served_prepare(s, "127.0.0.1");
    served_run(s);
}

/* The loop must be empty then: no handle is left behind. */
static inline void served_stop(struct served *s)
{
    uv_async_send(&s->stop);
    ck_assert_int_eq(pthread_join(s->thread, NULL), 0);
    ck_assert_int_eq(uv_loop_close(&s->loop), 0);
}

static inline int raw_connect(int port)
{
    struct sockaddr_in sin = {.sin_family = AF_INET,
        .sin_port = htons((uint16_t)port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {.tv_sec = PATIENCE_MS / 1000};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1;

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)), 0);
    ck_assert_int_eq(
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)),
        0);
    ck_assert_msg(connect(fd, (struct sockaddr *)&sin, sizeof(sin)) == 0,
        "connect: %s", strerror(errno));
    return fd;
}

static inline void raw_send(int fd, const char *hex)
{
    struct buf b = from_hex(hex);

    ck_assert_int_eq(
        send(fd, buf_bytes(&b), b.len, MSG_NOSIGNAL), (ssize_t)b.len);
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
