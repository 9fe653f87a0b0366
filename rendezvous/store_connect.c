/*
 * Connecting; see store_connect.h.
 *
 * Nothing on the wire names a version, and a server closes the connection on
 * what it does not know. So the dialects are tried one after the other, each
 * on a connection of its own, and none of the bytes sent may harm a server of
 * another age: what is a greeting to one is the start of a request to another,
 * which then must not wait, or take memory, for its end.
 *
 * A server that is about to start or to end closes connections as well. Only
 * whoever answers has told what it is; a round without an answer is repeated.
 */
#include "rendezvous/store_connect.h"

#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/interrupt.h"
#include "rendezvous/resolve.h"
#include "rendezvous/store_io.h"

/* Delay before the next attempt to connect: grows from the first to the
 * last, each time varied by half, so that many clients do not come at once. */
#define STORE_RETRY_FIRST_MS 20
#define STORE_RETRY_LAST_MS 2000

/* One attempt at all addresses: after that the name is looked up again, for
 * the server may have come up elsewhere. */
#define STORE_ATTEMPT_MS 20000

/* For the answer to a guess after the first: a server that is too slow for
 * that is asked again. */
#define STORE_GUESS_MS 5000

/* A name that the resolver says does not exist is most likely mistyped, but
 * some appear late (a Kubernetes service): how long that is waited for. */
#define STORE_UNKNOWN_MS 60000

/* An attempt that had less time than this and found nobody says nothing. */
#define STORE_USEFUL_MS 200

/* --- What is tried ------------------------------------------------------- */

#define GUESS_MAX 48

/* The bytes to send, in one piece (PyTorch's libuv server closes if VALIDATE
 * comes in two), and those that must come back, as far as they are known. */
struct guess {
    enum store_dialect dialect;
    size_t request_len, reply_len;
    unsigned char request[GUESS_MAX];
    unsigned char reply[GUESS_MAX];
    unsigned char is_known[GUESS_MAX]; /* 1: this byte of the reply is */
};

enum { GUESS_PING, GUESS_VALIDATE, GUESS_CANCEL_WAIT, GUESS_BARE, GUESS_COUNT };

static void add_request(struct guess *g, const void *bytes, size_t len)
{
    memcpy(g->request + g->request_len, bytes, len);
    g->request_len += len;
}

static void add_reply(struct guess *g, const void *bytes, size_t len)
{
    memcpy(g->reply + g->reply_len, bytes, len);
    memset(g->is_known + g->reply_len, 1, len);
    g->reply_len += len;
}

static void add_opcode(struct guess *g, enum store_op op)
{
    unsigned char opcode = (unsigned char)store_opcode(g->dialect, op);

    add_request(g, &opcode, 1);
}

/* GETNUMKEYS: the answer is below 2^40, whatever it is. */
static void add_key_count(struct guess *g)
{
    add_opcode(g, STORE_OP_GETNUMKEYS);
    g->reply_len += 5;
    add_reply(g, "\0\0\0", 3);
}

/*
 * An arbitrary number whose low bytes are all ones: a server of dialect A or
 * B takes VALIDATE for a SET, and the bytes after it for the rest of the
 * length of a key. This one is beyond any memory, and it closes at once.
 */
static void add_ping(struct guess *g)
{
    unsigned char nonce[4] = {0xff, 0xff, 0xff};

    if (getrandom(nonce + 3, 1, GRND_NONBLOCK) < 0)
        nonce[3] = (unsigned char)getpid();
    add_opcode(g, STORE_OP_PING);
    add_request(g, nonce, sizeof(nonce));
    add_reply(g, nonce, sizeof(nonce));
}

/* Is it crun's? In the same packet, for it costs nothing there. */
static void add_crun_check(struct guess *g)
{
    const unsigned char count[8] = {1};
    const unsigned char len[8] = {sizeof(STORE_CRUN_KEY) - 1};

    add_opcode(g, STORE_OP_CHECK);
    add_request(g, count, sizeof(count));
    add_request(g, len, sizeof(len));
    add_request(g, STORE_CRUN_KEY, sizeof(STORE_CRUN_KEY) - 1);
    g->reply_len++;
}

static bool is_crun(const struct guess *g)
{
    return g->reply[g->reply_len - 1] == STORE_CHECK_READY;
}

static void guess_init(struct guess *g, int which)
{
    memset(g, 0, sizeof(*g));
    g->dialect = STORE_DIALECT_C;
    switch (which) {
    case GUESS_PING: /* 2.5 and newer */
        add_request(g, store_greeting, STORE_GREETING_LEN);
        add_ping(g);
        add_crun_check(g);
        break;
    case GUESS_VALIDATE: /* 2.2 to 2.4; four to fill the length, see above */
        add_request(g, store_greeting, STORE_GREETING_LEN);
        for (int i = 0; i < 4; i++)
            add_key_count(g);
        break;
    case GUESS_CANCEL_WAIT: /* 2.1; unknown to older ones */
        g->dialect = STORE_DIALECT_B;
        add_opcode(g, STORE_OP_CANCEL_WAIT);
        add_reply(g, &(const char){STORE_WAIT_CANCELED}, 1);
        break;
    default:
        g->dialect = STORE_DIALECT_A;
        add_key_count(g);
        break;
    }
}

static bool is_as_guessed(
    const struct guess *g, const unsigned char *got, size_t len)
{
    if (len > g->reply_len)
        return false;
    for (size_t i = 0; i < len; i++)
        if (g->is_known[i] && got[i] != g->reply[i])
            return false;
    return true;
}

/* What something else has said, for people. */
static int refuse_answer(const unsigned char *got, size_t len, struct err *e)
{
    char text[4 * GUESS_MAX + 1];
    char *end = text;

    if (len > GUESS_MAX)
        len = GUESS_MAX;
    for (size_t i = 0; i < len; i++)
        if (isprint(got[i]) && got[i] < 0x80 && got[i] != '"')
            *end++ = (char)got[i];
        else
            end += sprintf(end, "\\x%02x", got[i]);
    *end = '\0';
    return err_set(e, -EPROTO,
        "what listens there is no TCPStore, it answers the greeting with "
        "\"%s\"",
        text);
}

/* 0 if the answer is that of the guess, where it is put; -ECONNRESET if it
 * was closed. */
static int ask(int fd, struct guess *g, uint64_t deadline_ns, struct err *e)
{
    struct iovec iov = {g->request, g->request_len};
    unsigned char got[GUESS_MAX + 16];
    size_t len = 0;
    ssize_t n = store_io_send(fd, &iov, 1, deadline_ns);

    while (n >= 0 && len < g->reply_len) {
        n = store_io_recv(fd, got + len, sizeof(got) - len, deadline_ns);
        if (n < 0)
            break;
        len += (size_t)n;
        if (!is_as_guessed(g, got, len))
            return refuse_answer(got, len, e);
    }
    if (n >= 0) {
        memcpy(g->reply, got, g->reply_len);
        return 0;
    }
    if (n == -ETIMEDOUT || n == -EHOSTDOWN)
        return err_set(e, -ETIMEDOUT,
            "the connection is made, but nobody answers the greeting: the "
            "server is stopped or too busy to accept it, or something else "
            "listens there");
    return err_set(e, -ECONNRESET,
        "the connection is made, but closed at the greeting (%s)",
        strerror((int)-n));
}

/* --- One attempt --------------------------------------------------------- */

/* What an attempt ended with, if without a connection. */
struct failure {
    struct err e;
    bool was_connected; /* there is somebody */
    bool may_pass; /* as with a server that is not up yet, or going down */
};

static bool may_pass(int rc)
{
    switch (-rc) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EADDRNOTAVAIL:
    case EAGAIN:
    case ENOENT: /* the name does not resolve */
        return true;
    default:
        return false;
    }
}

/* Whether packets to this address stay here: their source is the same. */
static bool is_this_host(const struct sockaddr *addr, socklen_t addr_len)
{
    struct sockaddr_storage local, peer;
    socklen_t local_len = sizeof(local), peer_len = sizeof(peer);
    int fd = socket(addr->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    char here[NI_MAXHOST] = "", there[NI_MAXHOST] = "";
    bool is_same;

    if (fd < 0)
        return false;
    is_same = connect(fd, addr, addr_len) == 0 &&
              getsockname(fd, (struct sockaddr *)&local, &local_len) == 0 &&
              getpeername(fd, (struct sockaddr *)&peer, &peer_len) == 0 &&
              getnameinfo((struct sockaddr *)&local, local_len, here,
                  sizeof(here), NULL, 0, NI_NUMERICHOST) == 0 &&
              getnameinfo((struct sockaddr *)&peer, peer_len, there,
                  sizeof(there), NULL, 0, NI_NUMERICHOST) == 0 &&
              strcmp(here, there) == 0;
    close(fd);
    return is_same;
}

static int connect_failed(
    const struct addrinfo *ai, int rc, struct failure *failure)
{
    failure->was_connected = false;
    if (rc != -ETIMEDOUT && rc != -EHOSTDOWN)
        return err_set(&failure->e, rc, "%s", strerror(-rc));
    if (!is_this_host(ai->ai_addr, ai->ai_addrlen))
        return err_set(&failure->e, -ETIMEDOUT,
            "no answer at all: host down, or a firewall between");
    return err_set(&failure->e, -ETIMEDOUT,
        "the connection is not accepted: the queue of who listens there is "
        "full, it is stopped or overloaded");
}

/* A socket that has answered as the guess says, or a negative errno. Only
 * success tells anything about the peer. */
static int try_guess(const struct addrinfo *ai, int which,
    struct store_peer *peer, uint64_t deadline_ns, struct failure *failure)
{
    int fd = store_io_connect(ai->ai_addr, ai->ai_addrlen, deadline_ns);
    struct guess guess;
    int rc;

    if (fd < 0)
        return connect_failed(ai, fd, failure);
    failure->was_connected = true;
    guess_init(&guess, which);
    rc = ask(fd, &guess, deadline_ns, &failure->e);
    if (rc < 0) {
        store_io_close(fd);
        return rc;
    }
    peer->dialect = guess.dialect;
    peer->is_crun = which == GUESS_PING && is_crun(&guess);
    return fd;
}

static uint64_t guess_deadline_ns(uint64_t deadline_ns)
{
    uint64_t until_ns = clock_deadline_ns(STORE_GUESS_MS);

    return until_ns < deadline_ns ? until_ns : deadline_ns;
}

/* The guesses after the first, which was answered by closing. failure is
 * changed only by an answer that nobody's is. */
static int guess_older(const struct addrinfo *ai, struct store_peer *peer,
    uint64_t deadline_ns, struct failure *failure)
{
    struct failure now = {0};
    int which, fd, newer_fd;

    for (which = GUESS_PING + 1; which < GUESS_COUNT; which++) {
        fd = try_guess(ai, which, peer, guess_deadline_ns(deadline_ns), &now);
        if (fd >= 0)
            break;
        if (fd == -EPROTO)
            *failure = now;
        if (fd != -ECONNRESET || !now.was_connected)
            return failure->e.rc;
    }
    if (which == GUESS_COUNT)
        return failure->e.rc;
    if (peer->dialect == STORE_DIALECT_C)
        return fd;
    /* A server that understands every dialect (crun's) may have come up
     * since the first guess: only who refuses that again is an old one. */
    newer_fd =
        try_guess(ai, GUESS_PING, peer, guess_deadline_ns(deadline_ns), &now);
    if (newer_fd == -ECONNRESET && now.was_connected)
        return fd;
    store_io_close(fd);
    return newer_fd >= 0 ? newer_fd : failure->e.rc;
}

/* A greeted socket, or a negative errno with the reason in failure. */
static int try_address(const struct addrinfo *ai, struct store_peer *peer,
    uint64_t deadline_ns, struct failure *failure)
{
    int fd = try_guess(ai, GUESS_PING, peer, deadline_ns, failure);

    if (fd == -ECONNRESET && failure->was_connected)
        fd = guess_older(ai, peer, deadline_ns, failure);
    failure->may_pass = fd < 0 && may_pass(fd);
    if (fd < 0)
        return fd;
    memcpy(&peer->addr, ai->ai_addr, ai->ai_addrlen);
    peer->addr_len = ai->ai_addrlen;
    return fd;
}

static void name_address(const struct addrinfo *ai, struct err *e)
{
    char name[NI_MAXHOST];
    struct err unnamed = *e;

    if (getnameinfo(ai->ai_addr, ai->ai_addrlen, name, sizeof(name), NULL, 0,
            NI_NUMERICHOST) == 0)
        err_set(e, e->rc, "at %s: %.400s", name, unnamed.msg);
}

/*
 * Tries the addresses one after the other, sharing the time that is left.
 * Of several failures the one that tells most is kept: where somebody is.
 */
static int try_addresses(const struct addrinfo *list, struct store_peer *peer,
    uint64_t deadline_ns, struct failure *failure)
{
    int left_ms = clock_left_ms(deadline_ns);
    int left_count = 0, fd = -ENOENT;
    bool are_several = list->ai_next != NULL;
    const struct addrinfo *ai;

    for (ai = list; ai != NULL; ai = ai->ai_next)
        left_count++;
    if (left_ms > STORE_ATTEMPT_MS)
        deadline_ns = clock_deadline_ns(STORE_ATTEMPT_MS);
    for (ai = list; ai != NULL && fd < 0; ai = ai->ai_next, left_count--) {
        uint64_t now_ns = clock_now_ns();
        uint64_t share_ns = deadline_ns > now_ns
                                ? (deadline_ns - now_ns) / (uint64_t)left_count
                                : 0;
        struct failure now = {0};
        bool may_pass_elsewhere = failure->may_pass;

        fd = try_address(ai, peer, now_ns + share_ns, &now);
        if (fd < 0 && are_several)
            name_address(ai, &now.e);
        if (fd < 0 && failure->e.rc != -EPROTO &&
            (now.was_connected || !failure->was_connected))
            *failure = now;
        failure->may_pass = now.may_pass || may_pass_elsewhere;
    }
    /* One wrong service is enough to know that the port is wrong. */
    if (failure->e.rc == -EPROTO)
        failure->may_pass = false;
    return fd < 0 ? failure->e.rc : fd;
}

/* *is_unknown: there is no such name. */
static int try_host(struct store_peer *peer, const char *host, int port,
    uint64_t deadline_ns, struct failure *failure, bool *is_unknown)
{
    struct addrinfo *list;
    int rc = resolve_until(host, port, 0, deadline_ns, &list);

    *is_unknown = rc == EAI_NONAME;
    memset(failure, 0, sizeof(*failure));
    if (rc == 0) {
        rc = try_addresses(list, peer, deadline_ns, failure);
        freeaddrinfo(list);
        return rc;
    }
    failure->may_pass = rc != EAI_MEMORY;
    if (rc == EAI_MEMORY)
        return err_set(&failure->e, -ENOMEM, "out of memory");
    if (rc == EAI_INPROGRESS)
        return err_set(&failure->e, -ETIMEDOUT,
            "the name does not resolve, the name service is silent");
    return err_set(&failure->e, -ENOENT, "the name does not resolve (%s)",
        gai_strerror(rc));
}

/* --- Again and again ----------------------------------------------------- */

static int pause_before_retry(int *delay_ms, uint64_t deadline_ns)
{
    uint16_t random = 0x8000;
    uint64_t end_ns;
    int ms;

    if (getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0)
        random = (uint16_t)(getpid() * 40503u);
    /* From half to one and a half of the delay. */
    ms = *delay_ms / 2 + (int)((uint64_t)*delay_ms * random / 0xffff);
    *delay_ms += *delay_ms / 2;
    if (*delay_ms > STORE_RETRY_LAST_MS)
        *delay_ms = STORE_RETRY_LAST_MS;
    end_ns = clock_deadline_ns(ms);
    return interrupt_wait(-1, 0, end_ns < deadline_ns ? end_ns : deadline_ns);
}

int store_connect(struct store_peer *peer, const char *host, int port,
    uint64_t deadline_ns, struct err *e)
{
    uint64_t start_ns = clock_now_ns();
    uint64_t unknown_until_ns = clock_deadline_ns(STORE_UNKNOWN_MS);
    int delay_ms = STORE_RETRY_FIRST_MS;
    unsigned attempts = 0;
    struct err last = {0};
    bool is_unknown;

    memset(peer, 0, sizeof(*peer));
    do {
        int had_ms = clock_left_ms(deadline_ns);
        struct failure failure;
        int fd = try_host(peer, host, port, deadline_ns, &failure, &is_unknown);

        if (fd >= 0)
            return fd;
        if (attempts++ == 0 || fd != -ETIMEDOUT || had_ms >= STORE_USEFUL_MS)
            last = failure.e;
        if (!is_unknown)
            unknown_until_ns = clock_deadline_ns(STORE_UNKNOWN_MS);
        if (!failure.may_pass || clock_now_ns() >= unknown_until_ns)
            break;
        if (pause_before_retry(&delay_ms, deadline_ns) == -ECANCELED)
            return err_set(e, -ECANCELED, "%s", strerror(ECANCELED));
    } while (clock_left_ms(deadline_ns) > 0);
    return err_set(e, last.rc,
        "cannot reach the store at %.200s port %d (%u attempt%s in %.1f s): "
        "%.300s; "
        "is the launcher running there, and are address and port right?",
        host, port, attempts, attempts == 1 ? "" : "s",
        (double)(clock_now_ns() - start_ns) / CLOCK_NS_PER_S, last.msg);
}

int store_connect_again(const struct store_peer *peer, uint64_t deadline_ns)
{
    struct iovec greeting = {(void *)store_greeting, STORE_GREETING_LEN};
    int fd = store_io_connect(
        (const struct sockaddr *)&peer->addr, peer->addr_len, deadline_ns);
    int rc = 0;

    if (fd >= 0 && peer->dialect == STORE_DIALECT_C)
        rc = store_io_send(fd, &greeting, 1, deadline_ns);
    if (rc == 0)
        return fd;
    store_io_close(fd);
    return rc;
}
