/*
 * The blocking store client; see store_client.h. One socket, always
 * non-blocking; every send and every receive goes with poll() and a deadline.
 *
 * After a failure in the middle of a reply nobody knows what the next byte
 * belongs to, and requests like ADD must not be sent twice: so there is no
 * reconnecting, the connection is closed and stays so.
 */
#include "rendezvous/store_client.h"

#include <endian.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/resolve.h"
#include "rendezvous/store_codec.h"

/* Delay before the next attempt to connect: grows from the first to the
 * last, each time varied by half, so that many clients do not come at once. */
#define STORE_RETRY_FIRST_MS 20
#define STORE_RETRY_LAST_MS 2000

/* One attempt at one address: after that the name is looked up again, for
 * the server may have come up elsewhere. */
#define STORE_ATTEMPT_MS 20000

/* A name that the resolver says does not exist is most likely mistyped, but
 * some appear late (a Kubernetes service): how long that is waited for. */
#define STORE_UNKNOWN_MS 60000

/* An attempt that had less time than this and found nobody says nothing. */
#define STORE_USEFUL_MS 200

/* What a server that is alive needs at most for the answer to CANCEL_WAIT,
 * for which there is no time left in the caller's deadline. */
#define STORE_CANCEL_MS 1000

/* Room that is made for a value before its bytes come. */
#define STORE_RECV_STEP ((size_t)1 << 20)

struct store_client {
    int fd; /* -1 after a failure */
    char *host;
    int port;
    bool is_unknown; /* the latest attempt: there is no such host name */
    struct buf request;
    struct buf list; /* keys as a list on the wire */
};

/* --- Bytes with deadlines ------------------------------------------------ */

/* 0, -ETIMEDOUT or another negative errno. */
static int wait_for(int fd, short events, uint64_t deadline_ns)
{
    struct pollfd p = {.fd = fd, .events = events};
    int n;

    do {
        n = poll(&p, 1, clock_left_ms(deadline_ns));
    } while ((n < 0 && errno == EINTR) ||
             (n == 0 && clock_left_ms(deadline_ns) > 0));
    if (n < 0)
        return -errno;
    return n == 0 ? -ETIMEDOUT : 0;
}

static int send_all(int fd, const char *data, size_t len, uint64_t deadline_ns)
{
    while (len > 0) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);

        if (n >= 0) {
            data += n;
            len -= (size_t)n;
        } else if (errno == EAGAIN) {
            int rc = wait_for(fd, POLLOUT, deadline_ns);

            if (rc < 0)
                return rc;
        } else if (errno != EINTR) {
            return -errno;
        }
    }
    return 0;
}

/* -ECONNRESET also for an orderly end. */
static int recv_all(int fd, void *data, size_t len, uint64_t deadline_ns)
{
    char *dst = data;

    while (len > 0) {
        ssize_t n = recv(fd, dst, len, 0);

        if (n > 0) {
            dst += n;
            len -= (size_t)n;
        } else if (n == 0) {
            return -ECONNRESET;
        } else if (errno == EAGAIN) {
            int rc = wait_for(fd, POLLIN, deadline_ns);

            if (rc < 0)
                return rc;
        } else if (errno != EINTR) {
            return -errno;
        }
    }
    return 0;
}

static int recv_u64(int fd, uint64_t *out, uint64_t deadline_ns)
{
    char raw[8];
    int rc = recv_all(fd, raw, sizeof(raw), deadline_ns);

    if (rc == 0)
        *out = store_get_u64(raw);
    return rc;
}

/* Appends a byte string; takes memory only as the bytes come. */
static int recv_bytes(int fd, struct buf *out, uint64_t deadline_ns)
{
    size_t old_len = out->len;
    uint64_t left = 0;
    int rc;

    rc = recv_u64(fd, &left, deadline_ns);
    if (rc < 0)
        return rc;
    if (left > STORE_VALUE_MAX)
        return -EPROTO;
    while (rc == 0 && left > 0) {
        size_t n = left < STORE_RECV_STEP ? (size_t)left : STORE_RECV_STEP;
        char *dst = buf_reserve(out, n);

        if (dst == NULL) {
            rc = n > out->max - out->len ? -ENOBUFS : -ENOMEM;
            break;
        }
        rc = recv_all(fd, dst, n, deadline_ns);
        if (rc == 0)
            buf_added(out, n);
        left -= n;
    }
    if (rc < 0)
        out->len = old_len;
    return rc;
}

/* --- Connecting ---------------------------------------------------------- */

static int resolve_host(
    struct store_client *c, struct addrinfo **out, struct err *e)
{
    int rc = resolve(c->host, c->port, 0, out);

    c->is_unknown = rc == EAI_NONAME;
    if (rc == 0)
        return 0;
    if (rc == EAI_MEMORY)
        return err_set(e, -ENOMEM, "out of memory");
    return err_set(
        e, -ENOENT, "the name does not resolve (%s)", gai_strerror(rc));
}

/*
 * On loopback a connection to a free port of the ephemeral range can end up
 * connected to itself, and then keeps the server from listening there.
 */
static bool is_connected_to_itself(int fd)
{
    struct sockaddr_storage local, peer;
    socklen_t local_len = sizeof(local), peer_len = sizeof(peer);

    memset(&local, 0, sizeof(local));
    memset(&peer, 0, sizeof(peer));
    return getsockname(fd, (struct sockaddr *)&local, &local_len) == 0 &&
           getpeername(fd, (struct sockaddr *)&peer, &peer_len) == 0 &&
           local_len == peer_len && memcmp(&local, &peer, local_len) == 0;
}

static int finish_connect(int fd, uint64_t deadline_ns)
{
    socklen_t len = sizeof(int);
    int error = 0;
    int rc = wait_for(fd, POLLOUT, deadline_ns);

    if (rc < 0)
        return rc;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
        return -errno;
    return -error;
}

/* A connected socket or a negative errno. */
static int open_socket(const struct addrinfo *ai, uint64_t deadline_ns)
{
    int one = 1;
    int fd, rc;

    fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    rc = connect(fd, ai->ai_addr, ai->ai_addrlen) < 0 ? -errno : 0;
    if (rc == -EINPROGRESS)
        rc = finish_connect(fd, deadline_ns);
    if (rc == 0 && is_connected_to_itself(fd))
        rc = -ECONNREFUSED;
    if (rc < 0) {
        close(fd);
        return rc;
    }
    /* Both only improve things: failing is no reason to fail. */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    return fd;
}

/*
 * An arbitrary number whose low bytes are all ones: whoever takes the
 * greeting for a request of another protocol then reads a length beyond any
 * memory, and an echo service is not taken for a store.
 */
static uint32_t choose_nonce(void)
{
    uint8_t high = 0;

    if (getrandom(&high, sizeof(high), GRND_NONBLOCK) < 0)
        high = (uint8_t)getpid();
    return (uint32_t)high << 24 | 0x00ffffffu;
}

/* PyTorch 2.2 to 2.4 do not know PING; the number of keys is as good. */
static int probe_without_ping(int fd, uint64_t deadline_ns, struct err *e)
{
    const char request = STORE_OP_GETNUMKEYS;
    uint64_t nkeys = 0;
    int rc = send_all(fd, &request, sizeof(request), deadline_ns);

    if (rc == 0)
        rc = recv_u64(fd, &nkeys, deadline_ns);
    if (rc == 0 && nkeys >= (uint64_t)1 << 40)
        return err_set(e, -EPROTO,
            "it is no TCPStore of PyTorch 2.2 or newer: it answers the "
            "greeting with something else");
    return rc;
}

static int probe_with_ping(int fd, uint64_t deadline_ns, struct err *e)
{
    char request[5] = {STORE_OP_PING};
    uint32_t nonce = htole32(choose_nonce());
    char echo[4];
    int rc;

    memcpy(request + 1, &nonce, sizeof(nonce));
    rc = send_all(fd, request, sizeof(request), deadline_ns);
    if (rc == 0)
        rc = recv_all(fd, echo, sizeof(echo), deadline_ns);
    if (rc == 0 && memcmp(echo, &nonce, sizeof(echo)) != 0)
        return err_set(e, -EPROTO,
            "it is no TCPStore of PyTorch 2.2 or newer: it answers the "
            "greeting with the bytes %02x %02x %02x %02x",
            (unsigned char)echo[0], (unsigned char)echo[1],
            (unsigned char)echo[2], (unsigned char)echo[3]);
    return rc;
}

static int greet(int fd, bool with_ping, uint64_t deadline_ns, struct err *e)
{
    /* These five bytes have to arrive in one piece: a server of PyTorch
     * that uses libuv closes the connection otherwise. */
    const unsigned char validate[5] = {STORE_OP_VALIDATE, STORE_MAGIC & 0xff,
        STORE_MAGIC >> 8 & 0xff, STORE_MAGIC >> 16 & 0xff, STORE_MAGIC >> 24};
    int rc;

    rc = send_all(fd, (const char *)validate, sizeof(validate), deadline_ns);
    e->rc = 0;
    if (rc == 0)
        rc = with_ping ? probe_with_ping(fd, deadline_ns, e)
                       : probe_without_ping(fd, deadline_ns, e);
    if (rc == 0 || e->rc != 0)
        return rc;
    if (rc == -ETIMEDOUT)
        return err_set(e, rc,
            "the connection is accepted, but nobody answers the greeting: "
            "something else listens there, or the server is stopped");
    return err_set(e, rc,
        "the connection is accepted, but closed at the greeting (%s)",
        strerror(-rc));
}

/* One attempt at one address: a greeted socket or a negative errno. */
static int try_address(const struct addrinfo *ai, bool with_ping,
    uint64_t deadline_ns, struct err *e)
{
    int fd = open_socket(ai, deadline_ns);
    int rc;

    if (fd == -ETIMEDOUT)
        return err_set(
            e, fd, "no answer at all: host down, or a firewall between");
    if (fd < 0)
        return err_set(e, fd, "%s", strerror(-fd));
    rc = greet(fd, with_ping, deadline_ns, e);
    if (rc == 0)
        return fd;
    close(fd);
    return rc;
}

/* Is this how a server looks that is not up yet, or on its way down? */
static bool may_pass(int rc)
{
    switch (-rc) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
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

/* Tries each address of the host, sharing the time that is left. *may_retry
 * tells whether one of them is worth another attempt. */
static int try_host(struct store_client *c, bool with_ping,
    uint64_t deadline_ns, bool *may_retry, struct err *e)
{
    struct addrinfo *list, *ai;
    int left_count = 0;
    int rc;

    rc = resolve_host(c, &list, e);
    *may_retry = may_pass(rc);
    if (rc < 0)
        return rc;
    for (ai = list; ai != NULL; ai = ai->ai_next)
        left_count++;
    for (ai = list; ai != NULL; ai = ai->ai_next, left_count--) {
        int64_t share_ms = clock_left_ms(deadline_ns) / left_count;

        if (share_ms > STORE_ATTEMPT_MS)
            share_ms = STORE_ATTEMPT_MS;
        rc = try_address(ai, with_ping, clock_deadline_ns(share_ms), e);
        if (rc >= 0)
            break;
        *may_retry |= may_pass(rc);
    }
    freeaddrinfo(list);
    return rc;
}

static void pause_before_retry(int *delay_ms, uint64_t deadline_ns)
{
    uint16_t random = 0x8000;
    int left = clock_left_ms(deadline_ns);
    int ms;

    if (getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0)
        random = (uint16_t)(getpid() * 40503u);
    /* From half to one and a half of the delay. */
    ms = *delay_ms / 2 + (int)((uint64_t)*delay_ms * random / 0xffff);
    poll(NULL, 0, ms < left ? ms : left);
    *delay_ms += *delay_ms / 2;
    if (*delay_ms > STORE_RETRY_LAST_MS)
        *delay_ms = STORE_RETRY_LAST_MS;
}

static int connect_retrying(
    struct store_client *c, uint64_t deadline_ns, struct err *e)
{
    uint64_t start_ns = clock_now_ns();
    uint64_t unknown_until_ns = clock_deadline_ns(STORE_UNKNOWN_MS);
    int delay_ms = STORE_RETRY_FIRST_MS;
    bool with_ping = true, may_retry;
    unsigned attempts = 0;
    struct err last = {0};

    do {
        int had_ms = clock_left_ms(deadline_ns);
        struct err e_now;
        int rc = try_host(c, with_ping, deadline_ns, &may_retry, &e_now);

        if (rc >= 0) {
            c->fd = rc;
            return 0;
        }
        if (attempts++ == 0 || rc != -ETIMEDOUT || had_ms >= STORE_USEFUL_MS)
            last = e_now;
        if (!c->is_unknown)
            unknown_until_ns = clock_deadline_ns(STORE_UNKNOWN_MS);
        if (!may_retry || clock_now_ns() >= unknown_until_ns)
            break;
        /* Closed at the greeting: maybe for a PING it does not know. */
        if (rc == -ECONNRESET)
            with_ping = !with_ping;
        pause_before_retry(&delay_ms, deadline_ns);
    } while (clock_left_ms(deadline_ns) > 0);
    return err_set(e, last.rc,
        "cannot reach the store at %s port %d (%u attempt%s in %.1f s): "
        "%.300s; "
        "is the launcher running there, and are address and port right?",
        c->host, c->port, attempts, attempts == 1 ? "" : "s",
        (double)(clock_now_ns() - start_ns) / CLOCK_NS_PER_S, last.msg);
}

int store_client_connect(struct store_client **out, const char *host, int port,
    uint64_t deadline_ns, struct err *e)
{
    struct store_client *c;
    int rc;

    if (port < 1 || port > 65535)
        return err_set(
            e, -EINVAL, "store port %d is not between 1 and 65535", port);
    c = calloc(1, sizeof(*c));
    if (c == NULL)
        return err_set(e, -ENOMEM, "out of memory");
    c->fd = -1;
    c->port = port;
    buf_init(&c->request, STORE_REQUEST_MAX);
    buf_init(&c->list, STORE_REQUEST_MAX);
    c->host = strdup(host);
    if (c->host == NULL) {
        rc = err_set(e, -ENOMEM, "out of memory");
        goto fail;
    }
    rc = connect_retrying(c, deadline_ns, e);
    if (rc < 0)
        goto fail;
    *out = c;
    return 0;
fail:
    store_client_close(c);
    return rc;
}

void store_client_close(struct store_client *c)
{
    if (c == NULL)
        return;
    if (c->fd >= 0)
        close(c->fd);
    buf_fini(&c->request);
    buf_fini(&c->list);
    free(c->host);
    free(c);
}

/* --- Requests ------------------------------------------------------------ */

/*
 * Ends the connection and says why. A server that is silent becomes
 * -EHOSTDOWN: -ETIMEDOUT is kept for keys that did not come, after which the
 * connection goes on.
 */
static int lost(struct store_client *c, const char *what, int rc, struct err *e)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    if (rc == -ETIMEDOUT)
        return err_set(e, -EHOSTDOWN,
            "%s: the store at %s port %d did not answer in time; its host is "
            "down, overloaded, or the time-out too short",
            what, c->host, c->port);
    if (rc == -ECONNRESET || rc == -EPIPE)
        return err_set(e, rc,
            "%s: the store at %s port %d has closed the connection; its "
            "process has ended, or the request exceeded its limits",
            what, c->host, c->port);
    if (rc == -EPROTO)
        return err_set(e, rc,
            "%s: the store at %s port %d sent an answer that is none", what,
            c->host, c->port);
    return err_set(e, rc, "%s at the store at %s port %d: %s", what, c->host,
        c->port, strerror(-rc));
}

static int check_usable(struct store_client *c, const char *what, struct err *e)
{
    if (c->fd >= 0)
        return 0;
    return err_set(e, -ENOTCONN,
        "%s: the connection to the store at %s port %d has failed before", what,
        c->host, c->port);
}

/* Appends a key with PyTorch's slash to the list. */
static int list_add(struct store_client *c, const char *key, struct err *e)
{
    size_t len = strlen(key) + 1;

    if (len > STORE_KEY_MAX)
        return err_set(e, -EMSGSIZE,
            "a store key of %zu bytes, the limit is %u", len, STORE_KEY_MAX);
    if (store_put_u64(&c->list, len) < 0 || buf_append(&c->list, "/", 1) < 0 ||
        buf_append(&c->list, key, len - 1) < 0)
        return err_set(e, -ENOMEM, "out of memory for store keys");
    return 0;
}

/* Makes keys the list of a request; it lies in c->list. */
static int set_keys(struct store_client *c, struct store_request *req,
    const char *const *keys, size_t nkeys, struct err *e)
{
    int rc = 0;

    if (nkeys > STORE_LIST_MAX)
        return err_set(e, -EMSGSIZE, "%zu store keys at once, the limit is %u",
            nkeys, STORE_LIST_MAX);
    buf_consume(&c->list, c->list.len);
    for (size_t i = 0; rc == 0 && i < nkeys; i++)
        rc = list_add(c, keys[i], e);
    if (rc < 0)
        return rc;
    req->list_count = nkeys;
    if (nkeys > 0)
        req->list = store_bytes(buf_bytes(&c->list), c->list.len);
    return 0;
}

/* The same for a request that has one key. */
static int set_key(struct store_client *c, struct store_request *req,
    const char *key, struct err *e)
{
    struct store_bytes list;
    int rc = set_keys(c, req, &key, 1, e);

    if (rc < 0)
        return rc;
    list = req->list;
    store_list_next(&list, &req->key);
    return 0;
}

static int send_request(struct store_client *c, const struct store_request *req,
    const char *what, uint64_t deadline_ns, struct err *e)
{
    int rc;

    buf_consume(&c->request, c->request.len);
    rc = store_encode(&c->request, req);
    if (rc < 0) /* nothing has been sent, the connection is as it was */
        return err_set(e, rc, "%s: %s", what, strerror(-rc));
    rc = send_all(c->fd, buf_bytes(&c->request), c->request.len, deadline_ns);
    buf_fini(&c->request); /* it may have been large; small ones are cheap */
    return rc < 0 ? lost(c, what, rc, e) : 0;
}

/*
 * The key did not come in time: takes the WAIT back. The server may have
 * answered it in the meantime; its 0 is then in front of the 1, and the wait
 * has succeeded after all (returns 0).
 */
static int cancel_wait(struct store_client *c, const char *what, struct err *e)
{
    const struct store_request req = {.op = STORE_OP_CANCEL_WAIT};
    uint64_t deadline_ns = clock_deadline_ns(STORE_CANCEL_MS);
    bool came = false;
    uint8_t answer;
    int rc;

    rc = send_request(c, &req, what, deadline_ns, e);
    if (rc < 0)
        return rc;
    do {
        rc = recv_all(c->fd, &answer, 1, deadline_ns);
        if (rc == 0 && answer == STORE_WAIT_DONE && !came)
            came = true;
        else if (rc == 0 && answer != STORE_WAIT_CANCELED)
            rc = -EPROTO;
        else if (rc == 0)
            return came ? 0 : -ETIMEDOUT;
    } while (rc == 0);
    return lost(c, what, rc, e);
}

/* Sends the WAIT and waits. -ETIMEDOUT: the keys did not come. */
static int wait_keys(struct store_client *c, const struct store_request *req,
    const char *what, uint64_t deadline_ns, struct err *e)
{
    uint8_t answer;
    int rc;

    rc = send_request(c, req, what, deadline_ns, e);
    if (rc < 0)
        return rc;
    rc = recv_all(c->fd, &answer, 1, deadline_ns);
    if (rc == -ETIMEDOUT)
        return cancel_wait(c, what, e);
    if (rc == 0 && answer != STORE_WAIT_DONE)
        rc = -EPROTO;
    return rc < 0 ? lost(c, what, rc, e) : 0;
}

int store_client_set(struct store_client *c, const char *key, const void *value,
    size_t len, uint64_t deadline_ns, struct err *e)
{
    struct store_request req = {
        .op = STORE_OP_SET, .value = store_bytes(value, len)};
    int rc;

    if ((rc = check_usable(c, "set", e)) < 0 ||
        (rc = set_key(c, &req, key, e)) < 0)
        return rc;
    if (len > STORE_VALUE_MAX)
        return err_set(e, -EMSGSIZE,
            "set %.200s: a value of %zu bytes, the limit is %zu", key, len,
            STORE_VALUE_MAX);
    return send_request(c, &req, "set", deadline_ns, e);
}

int store_client_get(struct store_client *c, const char *key, struct buf *out,
    uint64_t deadline_ns, struct err *e)
{
    struct store_request get = {.op = STORE_OP_GET};
    struct store_request wait = {.op = STORE_OP_WAIT};
    int rc;

    if ((rc = check_usable(c, "get", e)) < 0 ||
        (rc = set_keys(c, &wait, &key, 1, e)) < 0)
        return rc;
    rc = wait_keys(c, &wait, "get", deadline_ns, e);
    if (rc == -ETIMEDOUT)
        return err_set(e, rc,
            "get: key %.200s did not appear in the store at %s port %d in time",
            key, c->host, c->port);
    if (rc < 0)
        return rc;
    rc = set_key(c, &get, key, e);
    if (rc < 0)
        return rc;
    /* The key is there. If it came at the last moment, there is still some
     * time to fetch it. */
    if (clock_left_ms(deadline_ns) < STORE_CANCEL_MS)
        deadline_ns = clock_deadline_ns(STORE_CANCEL_MS);
    rc = send_request(c, &get, "get", deadline_ns, e);
    if (rc < 0)
        return rc;
    rc = recv_bytes(c->fd, out, deadline_ns);
    return rc < 0 ? lost(c, "get", rc, e) : 0;
}

int store_client_add(struct store_client *c, const char *key, int64_t delta,
    int64_t *out, uint64_t deadline_ns, struct err *e)
{
    struct store_request req = {.op = STORE_OP_ADD, .number = delta};
    uint64_t sum = 0;
    int rc;

    if ((rc = check_usable(c, "add", e)) < 0 ||
        (rc = set_key(c, &req, key, e)) < 0 ||
        (rc = send_request(c, &req, "add", deadline_ns, e)) < 0)
        return rc;
    rc = recv_u64(c->fd, &sum, deadline_ns);
    if (rc < 0)
        return lost(c, "add", rc, e);
    *out = (int64_t)sum;
    return 0;
}

int store_client_compare_set(struct store_client *c, const char *key,
    const char *expected, const char *desired, struct buf *now,
    uint64_t deadline_ns, struct err *e)
{
    struct store_request req = {
        .op = STORE_OP_COMPARE_SET,
        .expected = store_bytes(expected, strlen(expected)),
        .value = store_bytes(desired, strlen(desired)),
    };
    int rc;

    if ((rc = check_usable(c, "compare and set", e)) < 0 ||
        (rc = set_key(c, &req, key, e)) < 0 ||
        (rc = send_request(c, &req, "compare and set", deadline_ns, e)) < 0)
        return rc;
    rc = recv_bytes(c->fd, now, deadline_ns);
    return rc < 0 ? lost(c, "compare and set", rc, e) : 0;
}

int store_client_delete(struct store_client *c, const char *key,
    uint64_t deadline_ns, struct err *e)
{
    struct store_request req = {.op = STORE_OP_DELETE_KEY};
    uint64_t existed = 0;
    int rc;

    if ((rc = check_usable(c, "delete", e)) < 0 ||
        (rc = set_key(c, &req, key, e)) < 0 ||
        (rc = send_request(c, &req, "delete", deadline_ns, e)) < 0)
        return rc;
    rc = recv_u64(c->fd, &existed, deadline_ns);
    if (rc == 0 && existed > 1)
        rc = -EPROTO;
    return rc < 0 ? lost(c, "delete", rc, e) : 0;
}

int store_client_wait(struct store_client *c, const char *const *keys,
    size_t nkeys, uint64_t deadline_ns, struct err *e)
{
    struct store_request req = {.op = STORE_OP_WAIT};
    int rc;

    if ((rc = check_usable(c, "wait", e)) < 0 ||
        (rc = set_keys(c, &req, keys, nkeys, e)) < 0)
        return rc;
    rc = wait_keys(c, &req, "wait", deadline_ns, e);
    if (rc == -ETIMEDOUT)
        return err_set(e, rc,
            "wait: not all of %zu keys (%.200s%s) appeared in the store at %s "
            "port %d in time",
            nkeys, keys[0], nkeys > 1 ? ", ..." : "", c->host, c->port);
    return rc;
}

int store_client_check(struct store_client *c, const char *const *keys,
    size_t nkeys, int *out, uint64_t deadline_ns, struct err *e)
{
    struct store_request req = {.op = STORE_OP_CHECK};
    uint8_t answer;
    int rc;

    if ((rc = check_usable(c, "check", e)) < 0 ||
        (rc = set_keys(c, &req, keys, nkeys, e)) < 0 ||
        (rc = send_request(c, &req, "check", deadline_ns, e)) < 0)
        return rc;
    rc = recv_all(c->fd, &answer, 1, deadline_ns);
    if (rc == 0 && answer > STORE_CHECK_NOT_READY)
        rc = -EPROTO;
    if (rc < 0)
        return lost(c, "check", rc, e);
    *out = answer == STORE_CHECK_READY;
    return 0;
}
