/*
 * The limit for a store: a server that does nothing but epoll, recv and send.
 * It counts the bytes of requests, whose length the client has announced
 * (store_echo.h), throws them away, and answers each with that many bytes.
 *
 * Listens on a port of its own at 127.0.0.1, prints it, and ends when it is
 * killed.
 */
#include "tests/bench/store_echo.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/bench/store_bench.h"

#define EVENTS_MAX 64
#define REQUEST_MAX (16u << 20)

struct peer {
    int fd;
    struct echo_plan plan;
    size_t plan_len; /* of which so many bytes are there */
    unsigned step;
    size_t received; /* of the request that is coming */
    size_t to_send;
    uint32_t events;
};

static char in[256 << 10];
static char out[2 << 20];
static int epoll_fd;

static void peer_watch(struct peer *p, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = p};

    if (p->events == events)
        return;
    p->events = events;
    if (epoll_ctl(epoll_fd, EPOLL_CTL_MOD, p->fd, &ev) < 0)
        bench_die("epoll_ctl: %s", strerror(errno));
}

static void peer_close(struct peer *p)
{
    close(p->fd);
    free(p);
}

/* False: the peer is to be closed. */
static bool peer_send(struct peer *p)
{
    while (p->to_send > 0) {
        ssize_t n = send(p->fd, out,
            p->to_send < sizeof(out) ? p->to_send : sizeof(out), MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN)
            return false;
        if (n < 0)
            break;
        p->to_send -= (size_t)n;
    }
    /* Who does not read is not read from. */
    peer_watch(p, p->to_send > 0 ? EPOLLOUT : EPOLLIN);
    return true;
}

static bool plan_is_sound(const struct echo_plan *plan)
{
    if (plan->steps < 1 || plan->steps > ECHO_STEPS)
        return false;
    for (unsigned i = 0; i < plan->steps; i++) {
        if (plan->request_len[i] < 1 || plan->request_len[i] > REQUEST_MAX ||
            plan->reply_len[i] > REQUEST_MAX)
            return false;
    }
    return true;
}

static bool peer_receive(struct peer *p)
{
    ssize_t n;
    size_t left;

    if (p->plan_len < sizeof(p->plan)) {
        n = recv(p->fd, (char *)&p->plan + p->plan_len,
            sizeof(p->plan) - p->plan_len, 0);
        if (n <= 0)
            return n < 0 && errno == EAGAIN;
        p->plan_len += (size_t)n;
        return p->plan_len < sizeof(p->plan) || plan_is_sound(&p->plan);
    }
    n = recv(p->fd, in, sizeof(in), 0);
    if (n <= 0)
        return n < 0 && errno == EAGAIN;
    for (left = (size_t)n; left > 0;) {
        size_t missing = p->plan.request_len[p->step] - p->received;
        if (left < missing) {
            p->received += left;
            break;
        }
        left -= missing;
        p->received = 0;
        p->to_send += p->plan.reply_len[p->step];
        p->step = (p->step + 1) % p->plan.steps;
    }
    return peer_send(p);
}

static void accept_peer(int listener)
{
    struct epoll_event ev = {.events = EPOLLIN};
    struct peer *p;
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd < 0)
        return;
    p = calloc(1, sizeof(*p));
    if (p == NULL)
        bench_die("no memory");
    p->fd = fd;
    p->events = ev.events;
    ev.data.ptr = p;
    bench_no_delay(fd);
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0)
        bench_die("epoll_ctl: %s", strerror(errno));
}

int main(void)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t a_len = sizeof(a);
    struct epoll_event ev = {.events = EPOLLIN};
    struct epoll_event events[EVENTS_MAX];
    int listener =
        socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (listener < 0 || epoll_fd < 0 ||
        bind(listener, (struct sockaddr *)&a, sizeof(a)) < 0 ||
        listen(listener, SOMAXCONN) < 0 ||
        getsockname(listener, (struct sockaddr *)&a, &a_len) < 0 ||
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &ev) < 0)
        bench_die("cannot listen: %s", strerror(errno));
    printf("127.0.0.1:%d\n", ntohs(a.sin_port));
    fflush(stdout);

    for (;;) {
        int n = epoll_wait(epoll_fd, events, EVENTS_MAX, -1);
        for (int i = 0; i < n; i++) {
            struct peer *p = events[i].data.ptr;
            if (p == NULL)
                accept_peer(listener);
            else if (events[i].events & EPOLLOUT ? !peer_send(p)
                                                 : !peer_receive(p))
                peer_close(p);
        }
    }
}
