/*
 * See node_link.h. Whatever keeps the coordinator from answering may pass: a
 * name that is not known yet, a host that is not up, a port that nobody
 * listens at, or where somebody hangs up. So all of it is tried again, first
 * soon and then each second, until the deadline, and told only then.
 */
#include "agent/node_link.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/log.h"
#include "rendezvous/base/random.h"
#include "rendezvous/node_conn.h"
#include "rendezvous/poller_uv.h"
#include "rendezvous/resolve.h"
#include "rendezvous/store_client.h"
#include "rendezvous/store_sniff.h"

#define FIRST_PAUSE_MS 50
#define LAST_PAUSE_MS 1000
/* For one address to answer, and for the coordinator behind it. */
#define ATTEMPT_MS 5000
/* For the last try before the deadline. */
#define LAST_TRY_MS 1000
/* For the coordinator of another host to be up, if there is one. */
#define OWN_HOST_MS 5000
/* For a TCPStore to answer. */
#define PROBE_MS 1000
/* The user is told why nothing happens. */
#define QUIET_MS 10000

enum link_state {
    LINK_PAUSING, /* until the next attempt */
    LINK_RESOLVING,
    LINK_CONNECTING,
    LINK_GREETING, /* connected; HELLO or WELCOME has not come */
    LINK_UP,
    LINK_ENDED,
};

struct node_link {
    struct node_link_settings settings;
    struct node_link_callbacks callbacks;
    void *arg;
    uv_loop_t *loop;
    enum link_state state;
    uint64_t deadline_ns; /* for WELCOME */
    uint64_t own_ns; /* from when on this host's own is called */
    bool is_lasting; /* it may come back */
    bool has_met; /* HELLO has come, once */
    bool has_probed; /* what it is that hangs up */
    bool is_store; /* a TCPStore, it seems */
    bool was_up;
    bool has_joined; /* JOIN is sent, over this connection */
    struct node_msg join; /* as it was sent last */
    uint8_t nonce[TOKEN_NONCE_LEN]; /* the coordinator's */
    uint64_t told_ns; /* when the user was told last */
    uint64_t pause_ms;
    uint64_t heard_ns;
    uint64_t keep_alive_ms;
    int keep_alive_attempts;
    char problem[256]; /* of the last attempt */
    uv_timer_t timer;
    struct lookup *lookup; /* under way */
    uv_poll_t *looking_up; /* freed by its close callback */
    struct addrinfo *addresses; /* owned */
    struct addrinfo *address; /* the one that is tried */
    uv_poll_t *connecting; /* freed by its close callback */
    int fd; /* of that one; -1 */
    struct poller *poller;
    struct poller_uv poller_uv;
    struct node_conn *conn;
    int nhandles;
};

static void attempt(struct node_link *l);
static void on_timer(uv_timer_t *timer);

static void set_timer(struct node_link *l, uint64_t ms)
{
    uv_update_time(l->loop);
    uv_timer_start(&l->timer, on_timer, ms, 0);
}

static void free_handle(uv_handle_t *handle)
{
    free(handle);
}

static void stop_connecting(struct node_link *l)
{
    if (l->connecting != NULL) {
        uv_poll_stop(l->connecting);
        uv_close((uv_handle_t *)l->connecting, free_handle);
        l->connecting = NULL;
    }
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
}

static void forget_addresses(struct node_link *l)
{
    if (l->addresses != NULL)
        freeaddrinfo(l->addresses);
    l->addresses = l->address = NULL;
}

/* With the answer, if there is one. A resolver that does not answer is left
 * alone. */
static int end_lookup(struct node_link *l)
{
    int rc;

    uv_poll_stop(l->looking_up);
    uv_close((uv_handle_t *)l->looking_up, free_handle);
    l->looking_up = NULL;
    rc = resolve_end(l->lookup, &l->addresses);
    l->lookup = NULL;
    l->address = l->addresses;
    return rc;
}

static void hang_up(struct node_link *l)
{
    if (l->looking_up != NULL)
        end_lookup(l);
    forget_addresses(l);
    stop_connecting(l);
    node_conn_close(l->conn);
    l->conn = NULL;
    l->has_joined = false;
    uv_timer_stop(&l->timer);
}

__attribute__((format(printf, 2, 3))) static void end(
    struct node_link *l, const char *fmt, ...)
{
    char why[768];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    hang_up(l);
    l->state = LINK_ENDED;
    l->callbacks.ended(l->arg, why);
}

/* --- Trying ------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void try_later(
    struct node_link *l, const char *fmt, ...)
{
    uint64_t now = clock_now_ns();
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(l->problem, sizeof(l->problem), fmt, ap);
    va_end(ap);
    hang_up(l);
    if (now >= l->deadline_ns && l->was_up) {
        end(l,
            "the coordinator at %s port %d was lost, and is not back after "
            "%.3f s: %s",
            l->settings.host, l->settings.port,
            (double)l->settings.coordinator_timeout_ms / 1000.0, l->problem);
        return;
    }
    if (now >= l->deadline_ns) {
        end(l,
            "the coordinator at %s port %d cannot be reached within %d s: %s",
            l->settings.host, l->settings.port,
            (int)(l->settings.join_timeout_ms / 1000), l->problem);
        return;
    }
    if (now >= l->told_ns + QUIET_MS * CLOCK_NS_PER_MS) {
        l->told_ns = now;
        log_warn("agent", "waiting for the coordinator at %s port %d: %s",
            l->settings.host, l->settings.port, l->problem);
    }
    if (l->settings.own_host != NULL && now >= l->own_ns) {
        l->settings.host = l->settings.own_host;
        l->settings.own_host = NULL;
        l->pause_ms = FIRST_PAUSE_MS;
    }
    l->state = LINK_PAUSING;
    set_timer(l, l->pause_ms < (uint64_t)clock_left_ms(l->deadline_ns)
                     ? l->pause_ms
                     : (uint64_t)clock_left_ms(l->deadline_ns));
    l->pause_ms =
        2 * l->pause_ms < LAST_PAUSE_MS ? 2 * l->pause_ms : LAST_PAUSE_MS;
}

static void connect_next(struct node_link *l);

/* Its workers go on, and it is tried again; else this is the end. */
__attribute__((format(printf, 2, 3))) static void lose(
    struct node_link *l, const char *fmt, ...)
{
    char how[256], why[640];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(how, sizeof(how), fmt, ap);
    va_end(ap);
    snprintf(why, sizeof(why), "the coordinator at %s port %d is lost: %s",
        l->settings.host, l->settings.port, how);
    if (!l->is_lasting) {
        end(l, "%s", why);
        return;
    }
    l->told_ns = clock_now_ns();
    l->pause_ms = FIRST_PAUSE_MS;
    l->deadline_ns =
        clock_deadline_ns((int64_t)l->settings.coordinator_timeout_ms);
    l->state = LINK_PAUSING;
    l->callbacks.lost(l->arg, why);
    if (l->state == LINK_PAUSING)
        try_later(l, "%s", how);
}

static void introduce(struct node_link *l, const struct node_msg *hello)
{
    struct node_msg *join = &l->join;
    const struct token *t = l->settings.token;
    int rc;

    *join = l->settings.join;
    l->callbacks.join(l->arg, join);
    memcpy(l->nonce, hello->nonce, sizeof(l->nonce));
    rc = random_bytes(join->nonce, sizeof(join->nonce));
    if (rc < 0) {
        try_later(l, "%s", strerror(-rc));
        return;
    }
    join->has_token = t != NULL;
    if (t != NULL)
        token_prove(
            t, TOKEN_AGENT, join->nonce, l->nonce, join->run_id, join->proof);
    node_conn_send(l->conn, join);
    l->has_joined = true;
    set_timer(l, ATTEMPT_MS);
}

/* One that may miss none says something in between. */
static uint64_t ping_ms(const struct node_link *l)
{
    return l->keep_alive_attempts > 1 ? l->keep_alive_ms : l->keep_alive_ms / 2;
}

static void be_welcome(struct node_link *l, const struct node_msg *msg)
{
    const struct token *t = l->settings.token;

    if (t != NULL && !token_check(t, TOKEN_COORDINATOR, l->join.nonce, l->nonce,
                         l->join.run_id, msg->proof)) {
        end(l,
            "whoever answers at %s port %d does not know this job's secret "
            "(--token_file)",
            l->settings.host, l->settings.port);
        return;
    }
    if (l->was_up)
        log_warn("agent", "the coordinator at %s port %d is back",
            l->settings.host, l->settings.port);
    l->state = LINK_UP;
    l->was_up = true;
    l->is_lasting = msg->is_lasting != 0;
    l->keep_alive_ms =
        msg->keep_alive_ms > 0 ? (uint64_t)msg->keep_alive_ms : LAST_PAUSE_MS;
    l->keep_alive_attempts = msg->keep_alive_attempts;
    set_timer(l, ping_ms(l));
}

static void greeted(struct node_link *l, const struct node_msg *hello)
{
    l->has_met = true;
    introduce(l, hello);
}

static void on_conn_message(void *arg, const struct node_msg *msg)
{
    struct node_link *l = arg;

    l->heard_ns = clock_now_ns();
    if (msg->kind == NODE_REFUSED)
        end(l, "the coordinator at %s port %d refuses this node: %s",
            l->settings.host, l->settings.port, msg->text);
    else if (l->state == LINK_GREETING && !l->has_joined &&
             msg->kind == NODE_HELLO)
        greeted(l, msg);
    else if (l->state == LINK_GREETING && l->has_joined &&
             msg->kind == NODE_WELCOME)
        be_welcome(l, msg);
    if (l->state == LINK_UP && msg->kind != NODE_PONG)
        l->callbacks.message(l->arg, msg);
}

/* Whether a TCPStore is there, as torchrun's agents have it. Nothing else goes
 * on as long as there was no coordinator, so it may take a moment. */
static bool answers_as_store(const struct node_link *l)
{
    struct store_client *client;
    struct err e;

    if (store_client_connect(&client, l->settings.host, l->settings.port,
            clock_deadline_ns(PROBE_MS), &e) < 0)
        return false;
    store_client_close(client);
    return true;
}

/* Somebody is there who is no coordinator, or not yet. */
static void look_who_it_is(struct node_link *l, const char *problem)
{
    /* A coordinator that is just being started again is no stranger: one that
     * is a store then still has no word for agents. */
    if (l->is_store && !l->has_met) {
        end(l,
            "at %s port %d there is no coordinator but a TCPStore, of torchrun "
            "or of another job's workers: use crun on every node of the job, "
            "and an endpoint of its own",
            l->settings.host, l->settings.port);
        return;
    }
    if (!l->has_probed && !l->has_met)
        l->is_store = answers_as_store(l);
    l->has_probed = true;
    try_later(l, "%s", problem);
}

static void on_conn_ended(void *arg, const char *why)
{
    struct node_link *l = arg;
    char problem[256];

    if (l->state == LINK_UP) {
        lose(l, "%s", why);
        return;
    }
    snprintf(problem, sizeof(problem),
        "whoever listens there hangs up on agents (%s)", why);
    look_who_it_is(l, problem);
}

static void greet(struct node_link *l)
{
    static const struct node_conn_callbacks callbacks = {
        on_conn_message, on_conn_ended};
    int fd = l->fd;
    int rc;

    l->fd = -1;
    stop_connecting(l);
    rc = node_conn_open(&l->conn, l->poller, fd, NULL, 0, &callbacks, l);
    if (rc < 0) {
        l->conn = NULL;
        try_later(l, "%s", strerror(-rc));
        return;
    }
    l->state = LINK_GREETING;
    node_conn_send_bytes(l->conn, sniff_agent_magic, SNIFF_AGENT_MAGIC_LEN);
    set_timer(l, ATTEMPT_MS);
}

static void on_writable(uv_poll_t *poll, int status, int events)
{
    struct node_link *l = poll->data;
    socklen_t len = sizeof(int);
    int error = 0;

    (void)status;
    (void)events;
    if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
        error = errno;
    if (error == 0) {
        greet(l);
        return;
    }
    snprintf(l->problem, sizeof(l->problem), "%s", strerror(error));
    l->address = l->address->ai_next;
    connect_next(l);
}

static int start_connecting(struct node_link *l)
{
    const struct addrinfo *ai = l->address;
    const int on = 1;
    int rc;

    l->fd =
        socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->fd < 0)
        return -errno;
    setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (connect(l->fd, ai->ai_addr, ai->ai_addrlen) < 0 && errno != EINPROGRESS)
        return -errno;
    l->connecting = malloc(sizeof(*l->connecting));
    if (l->connecting == NULL)
        return -ENOMEM;
    rc = uv_poll_init(l->loop, l->connecting, l->fd);
    if (rc < 0) {
        free(l->connecting);
        l->connecting = NULL;
        return rc;
    }
    l->connecting->data = l;
    return uv_poll_start(l->connecting, UV_WRITABLE, on_writable);
}

/* Not much beyond the deadline. */
static uint64_t attempt_ms(const struct node_link *l)
{
    uint64_t left = (uint64_t)clock_left_ms(l->deadline_ns);

    return left > ATTEMPT_MS    ? ATTEMPT_MS
           : left < LAST_TRY_MS ? LAST_TRY_MS
                                : left;
}

/* The address that is due, or the next one that can be tried at all. */
static void connect_next(struct node_link *l)
{
    char problem[sizeof(l->problem)];

    for (; l->address != NULL; l->address = l->address->ai_next) {
        int rc;

        stop_connecting(l);
        rc = start_connecting(l);
        if (rc == 0) {
            l->state = LINK_CONNECTING;
            set_timer(l, attempt_ms(l));
            return;
        }
        snprintf(l->problem, sizeof(l->problem), "%s", strerror(-rc));
    }
    memcpy(problem, l->problem, sizeof(problem));
    try_later(l, "%s", problem);
}

static void on_looked_up(uv_poll_t *poll, int status, int events)
{
    struct node_link *l = poll->data;
    int rc = end_lookup(l);

    (void)status;
    (void)events;
    if (rc != 0) {
        try_later(l, "%s", gai_strerror(rc));
        return;
    }
    if (l->settings.looked_up != NULL && !l->was_up)
        l->settings.looked_up(l->settings.looked_up_arg, l->addresses);
    connect_next(l);
}

static int start_lookup(struct node_link *l)
{
    int fd, rc;

    l->looking_up = malloc(sizeof(*l->looking_up));
    if (l->looking_up == NULL)
        return -ENOMEM;
    rc = resolve_start(&l->lookup, l->settings.host, l->settings.port, &fd);
    if (rc < 0) {
        free(l->looking_up);
        l->looking_up = NULL;
        return rc;
    }
    rc = uv_poll_init(l->loop, l->looking_up, fd);
    if (rc < 0) {
        free(l->looking_up);
        l->looking_up = NULL;
        resolve_end(l->lookup, &l->addresses);
        l->lookup = NULL;
        return rc;
    }
    l->looking_up->data = l;
    return uv_poll_start(l->looking_up, UV_READABLE, on_looked_up);
}

static void attempt(struct node_link *l)
{
    uint64_t left = (uint64_t)clock_left_ms(
        l->settings.own_host != NULL ? l->own_ns : l->deadline_ns);
    int rc = start_lookup(l);

    if (rc < 0) {
        try_later(l, "%s", strerror(-rc));
        return;
    }
    l->state = LINK_RESOLVING;
    set_timer(l, left < LAST_TRY_MS ? LAST_TRY_MS : left);
}

/* --- Staying ------------------------------------------------------------ */

static void keep_alive(struct node_link *l)
{
    const struct node_msg ping = {.kind = NODE_PING};
    const struct node_msg away = {.kind = NODE_AWAY};
    uint64_t limit_ms =
        node_silence_ms(l->keep_alive_ms, l->keep_alive_attempts);

    if (clock_now_ns() >= l->heard_ns + limit_ms * CLOCK_NS_PER_MS) {
        if (l->is_lasting)
            node_conn_send(l->conn, &away);
        lose(
            l, "nothing was heard of it for %.3f s", (double)limit_ms / 1000.0);
        return;
    }
    node_conn_send(l->conn, &ping);
    set_timer(l, ping_ms(l));
}

static void on_timer(uv_timer_t *timer)
{
    struct node_link *l = timer->data;

    switch (l->state) {
    case LINK_PAUSING:
        attempt(l);
        break;
    case LINK_CONNECTING:
        snprintf(l->problem, sizeof(l->problem), "no answer");
        l->address = l->address->ai_next;
        connect_next(l);
        break;
    case LINK_GREETING:
        look_who_it_is(l, "whoever listens there does not answer agents");
        break;
    case LINK_UP:
        keep_alive(l);
        break;
    case LINK_RESOLVING:
        try_later(l, "the name service does not answer");
        break;
    case LINK_ENDED:
        break;
    }
}

/* --- The link ----------------------------------------------------------- */

int node_link_create(struct node_link **out, uv_loop_t *loop,
    const struct node_link_settings *settings,
    const struct node_link_callbacks *callbacks, void *arg)
{
    struct node_link *l = calloc(1, sizeof(*l));
    int rc;

    if (l == NULL)
        return -ENOMEM;
    rc = poller_create(&l->poller);
    if (rc == 0)
        rc = poller_uv_start(&l->poller_uv, loop, l->poller);
    if (rc < 0) {
        poller_destroy(l->poller);
        free(l);
        return rc;
    }
    l->settings = *settings;
    l->callbacks = *callbacks;
    l->arg = arg;
    l->loop = loop;
    l->fd = -1;
    l->pause_ms = FIRST_PAUSE_MS;
    l->told_ns = clock_now_ns();
    l->deadline_ns = clock_deadline_ns((int64_t)settings->join_timeout_ms);
    l->own_ns = clock_deadline_ns(OWN_HOST_MS);
    l->nhandles = 2;
    uv_timer_init(loop, &l->timer); /* cannot fail */
    l->timer.data = l;
    set_timer(l, 0);
    l->state = LINK_PAUSING;
    *out = l;
    return 0;
}

/* A node that leaves does not wait to be let in: it would be taken for lost. */
void node_link_send(struct node_link *l, const struct node_msg *msg)
{
    bool is_early = l != NULL && l->has_joined && msg->kind == NODE_LEAVE;

    if (l != NULL && (l->state == LINK_UP || is_early))
        node_conn_send(l->conn, msg);
}

void node_link_finish(struct node_link *l)
{
    if (l->state == LINK_UP || l->has_joined)
        return;
    hang_up(l);
    l->state = LINK_ENDED;
}

static void release(struct node_link *l)
{
    if (--l->nhandles == 0)
        free(l);
}

static void on_timer_closed(uv_handle_t *handle)
{
    release(handle->data);
}

static void on_poller_closed(struct poller_uv *u)
{
    struct node_link *l =
        (struct node_link *)(void *)((char *)u -
                                     offsetof(struct node_link, poller_uv));

    poller_destroy(l->poller);
    release(l);
}

void node_link_destroy(struct node_link *l)
{
    if (l == NULL)
        return;
    hang_up(l);
    l->state = LINK_ENDED;
    poller_uv_close(&l->poller_uv, on_poller_closed);
    uv_close((uv_handle_t *)&l->timer, on_timer_closed);
}
