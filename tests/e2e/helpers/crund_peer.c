/*
 * What a host of stores meets: clients that work, and peers that do not.
 *
 *     crund_peer say PORT N HEX      sends bytes, prints N bytes of the reply
 *                                    as hexadecimal, or fewer and "closed"
 *     crund_peer work PORT N         N clients set, get and add, and check
 *                                    every reply, until SIGTERM
 *     crund_peer idle PORT N         N clients that are greeted, then silent
 *     crund_peer silent PORT N       N connections that say nothing
 *     crund_peer vanish PORT N       N connections that are reset or closed
 *     crund_peer garbage PORT N      N connections with random bytes, and some
 *                                    that look like a protocol
 *
 * PORT is one of 127.0.0.1, or [::1]:PORT. idle and silent print "ready" and
 * stay until SIGTERM.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define GREETING "\x00\xce\xf7\x85\x3c"

static volatile sig_atomic_t is_stopped;

static void on_term(int sig)
{
    (void)sig;
    is_stopped = 1;
}

static void die(const char *what)
{
    fprintf(stderr, "crund_peer: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int connect_to(const char *where)
{
    struct sockaddr_in sin = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 sin6 = {
        .sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    int is_v6 = strncmp(where, "[::1]:", 6) == 0;
    uint16_t port =
        htons((uint16_t)strtol(is_v6 ? where + 6 : where, NULL, 10));
    const struct timeval patience = {.tv_sec = 60};
    int fd, one = 1;

    sin.sin_port = sin6.sin6_port = port;
    fd = socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
    if (fd < 0)
        die("socket");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (connect(fd, is_v6 ? (struct sockaddr *)&sin6 : (struct sockaddr *)&sin,
            is_v6 ? sizeof(sin6) : sizeof(sin)) < 0)
        die("connect");
    return fd;
}

static void send_all(int fd, const void *data, size_t len)
{
    if (send(fd, data, len, MSG_NOSIGNAL) != (ssize_t)len)
        die("send");
}

static void expect(int fd, const void *want, size_t len)
{
    size_t have = 0;
    char got[64];

    while (have < len) {
        ssize_t n = recv(fd, got + have, len - have, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            die(n == 0 ? "closed by the store" : "recv");
        have += (size_t)n;
    }
    if (memcmp(got, want, len) != 0) {
        fprintf(stderr, "crund_peer: a wrong reply\n");
        exit(1);
    }
}

static int connect_client(const char *where)
{
    int fd = connect_to(where);

    send_all(fd,
        GREETING "\x0d"
                 "ping",
        10);
    expect(fd, "ping", 4);
    return fd;
}

static int say(const char *where, size_t want, const char *hex)
{
    size_t len = strlen(hex) / 2;
    unsigned char *bytes = malloc(len + 1), byte;
    int fd = connect_to(where);
    unsigned value;

    for (size_t i = 0; i < len; i++) {
        if (sscanf(hex + 2 * i, "%2x", &value) != 1)
            return 2;
        bytes[i] = (unsigned char)value;
    }
    send(fd, bytes, len, MSG_NOSIGNAL); /* it may be closed meanwhile */
    free(bytes);
    for (; want > 0; want--) {
        if (recv(fd, &byte, 1, 0) != 1) {
            printf("closed");
            break;
        }
        printf("%02x", byte);
    }
    putchar('\n');
    return 0;
}

/* A request as it lies on the wire. */
struct message {
    char bytes[128];
    size_t len;
};

static void put(struct message *m, const void *data, size_t len)
{
    memcpy(m->bytes + m->len, data, len);
    m->len += len;
}

static void put_string(struct message *m, const char *text)
{
    uint64_t len = strlen(text);

    put(m, &len, sizeof(len));
    put(m, text, len);
}

/* SET and GET of a key of its own, ADD to a counter of its own. */
static void work_once(int fd, int client, uint64_t turn)
{
    struct message m = {.len = 0}, want = {.len = 0};
    char key[24], counter[24], value[24];
    uint64_t one = 1;

    snprintf(key, sizeof(key), "/key%d", client);
    snprintf(counter, sizeof(counter), "/counter%d", client);
    snprintf(value, sizeof(value), "%llu", (unsigned long long)turn);
    put(&m, "\x01", 1);
    put_string(&m, key);
    put_string(&m, value);
    put(&m, "\x03", 1);
    put_string(&m, key);
    put(&m, "\x04", 1);
    put_string(&m, counter);
    put(&m, &one, sizeof(one));
    put_string(&want, value);
    put(&want, &turn, sizeof(turn));
    send_all(fd, m.bytes, m.len);
    expect(fd, want.bytes, want.len);
}

static int work(const char *where, int n)
{
    int *fds = malloc((size_t)n * sizeof(*fds));
    uint64_t turn;

    if (fds == NULL)
        die("malloc");
    for (int i = 0; i < n; i++)
        fds[i] = connect_client(where);
    puts("ready");
    fflush(stdout);
    for (turn = 1; !is_stopped; turn++)
        for (int i = 0; i < n; i++)
            work_once(fds[i], i, turn);
    free(fds);
    printf("worked %s\n", turn > 1 ? "well" : "never");
    return 0;
}

static int stay(const char *where, int n, int is_greeted)
{
    sigset_t none;

    for (int i = 0; i < n; i++)
        if (is_greeted)
            connect_client(where);
        else
            connect_to(where);
    puts("ready");
    fflush(stdout);
    sigemptyset(&none);
    while (!is_stopped)
        sigsuspend(&none);
    return 0;
}

static int vanish(const char *where, int n)
{
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};

    for (int i = 0; i < n; i++) {
        int fd = connect_to(where);

        if (i % 2 == 0)
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        close(fd);
    }
    return 0;
}

static const struct {
    const char *bytes;
    size_t len;
} lookalikes[] = {
#define LOOKALIKE(text)                                                        \
    {                                                                          \
        text, sizeof(text) - 1                                                 \
    }
    LOOKALIKE("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    LOOKALIKE("\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03"),
    LOOKALIKE("SSH-2.0-OpenSSH_9.2\r\n"),
    LOOKALIKE(GREETING "\x01\xff\xff\xff\xff\xff\xff\xff\x7f"),
    LOOKALIKE(
        GREETING "\x01\x01\0\0\0\0\0\0\0k\xff\xff\xff\xff\xff\xff\xff\x7f"),
    LOOKALIKE(GREETING "\x06\xff\xff\xff\xff\xff\xff\xff\x7f"),
    LOOKALIKE(GREETING "\x01\x01\0\0\0\0\0\0\0k\0\0\0\x07\0\0\0\0half"),
    LOOKALIKE("\x89"
              "crun"),
};

#define NLOOKALIKES (int)(sizeof(lookalikes) / sizeof(lookalikes[0]))

/* Reset, or ports would run out. */
static int garbage(const char *where, int n)
{
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    static unsigned char noise[1 << 20];
    unsigned seed = 1;

    for (size_t i = 0; i < sizeof(noise); i++)
        noise[i] = (unsigned char)rand_r(&seed);
    for (int i = 0; i < n; i++) {
        int fd = connect_to(where);
        size_t at = (size_t)rand_r(&seed) % (sizeof(noise) - 64);

        if (i == 0) /* a megabyte; it is closed meanwhile */
            send(fd, noise, sizeof(noise), MSG_NOSIGNAL);
        else if (i <= NLOOKALIKES)
            send_all(fd, lookalikes[i - 1].bytes, lookalikes[i - 1].len);
        else
            send(fd, noise + at, (size_t)(1 + i % 64), MSG_NOSIGNAL);
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        close(fd);
    }
    return 0;
}

static void raise_fd_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int argc, char **argv)
{
    const char *what = argc > 3 ? argv[1] : "";
    const char *where = argc > 3 ? argv[2] : "";
    int n = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 0;

    signal(SIGTERM, on_term);
    raise_fd_limit();
    if (strcmp(what, "say") == 0 && argc == 5)
        return say(where, (size_t)n, argv[4]);
    if (strcmp(what, "work") == 0)
        return work(where, n);
    if (strcmp(what, "idle") == 0)
        return stay(where, n, 1);
    if (strcmp(what, "silent") == 0)
        return stay(where, n, 0);
    if (strcmp(what, "vanish") == 0)
        return vanish(where, n);
    if (strcmp(what, "garbage") == 0)
        return garbage(where, n);
    fprintf(stderr, "usage: crund_peer WHAT PORT N [HEX]\n");
    return 2;
}
