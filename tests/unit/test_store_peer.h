/*
 * Servers that PyTorch of other ages would be, for the tests of the client:
 * one that follows a script byte by byte, and the real store behind a
 * listener that takes everybody for a client of one old dialect.
 */
#ifndef CRUN_TEST_STORE_PEER_H
#define CRUN_TEST_STORE_PEER_H

#include <net/if.h>
#include <net/route.h>
#include <sched.h>
#include <sys/ioctl.h>

#include "rendezvous/store_client.h"
#include "test_store_net.h"

static struct err e; /* of the latest call that a test makes */

static inline uint64_t soon(void)
{
    return clock_deadline_ns(100);
}

static inline uint64_t later(void)
{
    return clock_deadline_ns(PATIENCE_MS);
}

static inline struct store_client *connect_to(int port)
{
    struct store_client *c = NULL;

    ck_assert_msg(store_client_connect(&c, "127.0.0.1", port, later(), &e) == 0,
        "%s", e.msg);
    return c;
}

#define assert_ok(call)                                                        \
    do {                                                                       \
        int call_rc = (call);                                                  \
        ck_assert_msg(call_rc == 0, "%s: %d %s", #call, call_rc, e.msg);       \
    } while (0)

static inline void assert_says(const char *text)
{
    ck_assert_msg(strstr(e.msg, text) != NULL, "no '%s' in: %s", text, e.msg);
}

static inline void assert_names(const char *host, int port)
{
    char text[32];

    snprintf(text, sizeof(text), "port %d", port);
    assert_says(host);
    assert_says(text);
}

/* --- Scripts ------------------------------------------------------------- */

/*
 * Lines of a script, in order; the last one is NULL.
 *   "+"         accepts a connection, which the lines behind it are about
 *   "< 06 ??"   these bytes come, ?? for any
 *   "="         sends the latest four bytes that came before a "|" back, and
 *               a 1: it is not crun's. "~" sends them one by one, "!" says
 *               that it is crun's
 *   "> 00"      sends these bytes
 *   ": 00"      the same, each in a packet of its own
 *   "?"         waits until the test calls script_stop()
 *   "-"         closes the connection, the one before it is next
 *   "."         the same after the client has, without a further byte
 */
struct script {
    int listen_fd, port;
    const char *const *lines;
    _Atomic size_t at; /* lines that are done */
    sem_t stop;
    pthread_t thread;
};

/* What a client of this project greets with. */
#define PING_GREETING                                                          \
    "< 00cef7853c 0dffffff?? | 05 0100000000000000 0500000000000000 "          \
    "6372756e2f"
#define PLAIN_GREETING "< 00cef7853c 07070707"

static inline void script_expect(int fd, const char *line, char *latest)
{
    bool is_noted = true;

    for (const char *p = line; *p != '\0';) {
        char byte, want[3] = "";
        char got[3];

        if (*p == ' ' || *p == '|') {
            is_noted &= *p++ != '|';
            continue;
        }
        memcpy(want, p, 2);
        p += 2;
        raw_recv(fd, &byte, 1);
        if (is_noted) {
            memmove(latest, latest + 1, 3);
            latest[3] = byte;
        }
        snprintf(got, sizeof(got), "%02x", (unsigned char)byte);
        ck_assert_msg(strcmp(want, "??") == 0 || strcmp(want, got) == 0,
            "%s came at ...%s of: %s", got, p - 2, line);
    }
}

/* The client may have gone away meanwhile: its tests say what it found. */
static inline void script_send(int fd, const char *line, bool in_pieces)
{
    struct buf b = from_hex(line);
    size_t step = in_pieces ? 1 : b.len;

    for (size_t i = 0; i < b.len; i += step)
        send(fd, buf_bytes(&b) + i, step, MSG_NOSIGNAL);
    buf_fini(&b);
}

static inline void *script_main(void *arg)
{
    struct script *s = arg;
    int fds[16] = {-1};
    int *fd = fds;
    char latest[5] = {0};

    for (const char *const *line = s->lines; *line != NULL; line++, s->at++) {
        switch (**line) {
        case '+':
            *++fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC);
            ck_assert_int_ge(*fd, 0);
            break;
        case '?':
            while (sem_wait(&s->stop) < 0)
                ;
            break;
        case '-':
            close(*fd--);
            break;
        case '.':
            raw_expect_closed(*fd--);
            break;
        case '<':
            script_expect(*fd, *line + 1, latest);
            break;
        case '=':
        case '!':
            latest[4] =
                **line == '!' ? STORE_CHECK_READY : STORE_CHECK_NOT_READY;
            raw_send_bytes(*fd, latest, sizeof(latest));
            break;
        case '~':
            latest[4] = STORE_CHECK_NOT_READY;
            for (size_t i = 0; i < sizeof(latest); i++)
                raw_send_bytes(*fd, latest + i, 1);
            break;
        default:
            script_send(*fd, *line + 1, **line == ':');
            break;
        }
    }
    while (fd > fds)
        close(*fd--);
    return NULL;
}

static inline void script_start(struct script *s, const char *const *lines)
{
    s->lines = lines;
    s->at = 0;
    ck_assert_int_eq(sem_init(&s->stop, 0, 0), 0);
    s->listen_fd = raw_listen(&s->port);
    ck_assert_int_eq(pthread_create(&s->thread, NULL, script_main, s), 0);
}

static inline void script_stop(struct script *s)
{
    sem_post(&s->stop);
    ck_assert_int_eq(pthread_join(s->thread, NULL), 0);
    close(s->listen_fd);
    sem_destroy(&s->stop);
}

/* --- The real store, as one of an old dialect ---------------------------- */

struct old_served {
    struct served s; /* its own port is not used */
    struct poller_item listener;
    int port;
    enum store_dialect dialect;
};

static inline void old_accept_cb(struct poller_item *item, uint32_t events)
{
    struct old_served *o =
        (struct old_served *)((char *)item -
                              offsetof(struct old_served, listener));
    int fd = accept4(item->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    (void)events;
    ck_assert_int_ge(fd, 0);
    store_server_adopt(o->s.store, fd, o->dialect, NULL, 0);
}

static inline void old_start(struct old_served *o, enum store_dialect dialect)
{
    served_prepare(&o->s, "127.0.0.1", NULL, NULL);
    o->dialect = dialect;
    ck_assert_int_eq(poller_add(o->s.poller, &o->listener, raw_listen(&o->port),
                         EPOLLIN, old_accept_cb),
        0);
    served_run(&o->s);
}

static inline void old_stop_fn(struct served *s)
{
    struct old_served *o = (struct old_served *)s; /* its first member */
    int fd = o->listener.fd;

    poller_remove(s->poller, &o->listener);
    close(fd);
}

static inline void old_stop(struct old_served *o)
{
    served_call(&o->s, old_stop_fn);
    served_stop(&o->s);
}

/* --- A network of this test alone ---------------------------------------- */

static inline bool set_loopback(short flags)
{
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = flags};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool is_set = ioctl(fd, SIOCSIFFLAGS, &lo) == 0;

    close(fd);
    return is_set;
}

/* In it, packets to 10.0.0.0/8 go nowhere. False if the machine does not
 * allow that, which is printed. To be called before there are threads. */
static inline bool enter_private_network(void)
{
    struct sockaddr_in dst = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(10 << 24)};
    struct sockaddr_in mask = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(0xff000000)};
    char device[] = "lo";
    struct rtentry route = {.rt_flags = RTF_UP, .rt_dev = device};
    bool is_in = unshare(CLONE_NEWNET) == 0 ||
                 unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0;
    int fd;

    memcpy(&route.rt_dst, &dst, sizeof(dst));
    memcpy(&route.rt_genmask, &mask, sizeof(mask));
    if (is_in) {
        is_in = set_loopback(IFF_UP | IFF_RUNNING);
        fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        is_in = is_in && ioctl(fd, SIOCADDRT, &route) == 0;
        close(fd);
    }
    if (!is_in)
        fprintf(stderr, "skipped a test: no network namespaces here\n");
    return is_in;
}

#endif
