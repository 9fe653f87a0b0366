/*
 * See coordinator.h. The membership's messages are queued at the connections,
 * which tell of their ends from the poller only: so nothing here is called
 * while the membership is at work.
 */
#include "rendezvous/coordinator.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/log.h"
#include "rendezvous/node_conn.h"
#include "rendezvous/store_sniff.h"

/* From the magic to JOIN. */
#define STRANGER_MS 10000

struct node {
    struct ring link;
    struct coordinator *coordinator;
    struct node_conn *conn;
    struct member *member; /* NULL until it is let in */
    uint64_t since_ns;
};

struct coordinator {
    struct poller *poller; /* borrowed */
    struct membership membership;
    struct ring nodes;
    struct poller_item timer;
    uint64_t due_ns; /* what the timer is set to */
    int nstrangers;
    char own_addr[NODE_ADDR_MAX]; /* as other hosts see this one; "" unknown */
};

static void node_close(struct node *n)
{
    if (n->member == NULL)
        n->coordinator->nstrangers--;
    ring_remove(&n->link);
    node_conn_close(n->conn);
    free(n);
}

/* --- Time --------------------------------------------------------------- */

static uint64_t oldest_stranger_due(const struct coordinator *c)
{
    for (struct ring *r = c->nodes.next; c->nstrangers > 0 && r != &c->nodes;
         r = r->next) {
        const struct node *n = RING_OBJECT(r, struct node, link);

        if (n->member == NULL)
            return n->since_ns + STRANGER_MS * CLOCK_NS_PER_MS;
    }
    return UINT64_MAX;
}

static void set_timer(struct coordinator *c)
{
    uint64_t due = membership_due_ns(&c->membership);
    uint64_t stranger = oldest_stranger_due(c);
    struct itimerspec at = {0};

    if (stranger < due)
        due = stranger;
    if (due == c->due_ns)
        return;
    c->due_ns = due;
    if (due != UINT64_MAX) {
        at.it_value.tv_sec = (time_t)(due / CLOCK_NS_PER_S);
        at.it_value.tv_nsec = (long)(due % CLOCK_NS_PER_S) + (due == 0);
    }
    timerfd_settime(c->timer.fd, TFD_TIMER_ABSTIME, &at, NULL);
}

static void timer_ready_cb(struct poller_item *item, uint32_t events)
{
    struct coordinator *c =
        (struct coordinator *)(void *)((char *)item -
                                       offsetof(struct coordinator, timer));
    uint64_t now = clock_now_ns();
    struct ring *next;
    uint64_t times;

    (void)events;
    if (read(item->fd, &times, sizeof(times)) < 0)
        return;
    c->due_ns = UINT64_MAX;
    for (struct ring *r = c->nodes.next; r != &c->nodes; r = next) {
        struct node *n = RING_OBJECT(r, struct node, link);

        next = r->next;
        if (n->member == NULL &&
            now >= n->since_ns + STRANGER_MS * CLOCK_NS_PER_MS)
            node_close(n);
    }
    membership_tick(&c->membership, now);
    set_timer(c);
}

/* --- The membership's side ---------------------------------------------- */

static void send_cb(void *arg, struct member *m, const struct node_msg *msg)
{
    const struct node *n = m->owner;

    (void)arg;
    node_conn_send(n->conn, msg);
}

static void drop_cb(void *arg, struct member *m)
{
    struct coordinator *c = arg;
    struct node *n = m->owner;

    log_warn("coordinator",
        "node %s (pid %d) is lost: it is silent, or does not do its part",
        m->host, m->pid);
    n->member = NULL;
    c->nstrangers++;
    node_close(n);
}

/* --- The nodes' side ---------------------------------------------------- */

static void ended_cb(void *arg, const char *why)
{
    struct node *n = arg;
    struct coordinator *c = n->coordinator;

    if (n->member != NULL) {
        if (!n->member->is_leaving && c->membership.phase != MEMBERSHIP_CLOSED)
            log_warn("coordinator", "node %s (pid %d) is lost: %s",
                n->member->host, n->member->pid, why);
        membership_lost(&c->membership, n->member, why, clock_now_ns());
        n->member = NULL;
        c->nstrangers++;
    }
    node_close(n);
    set_timer(c);
}

static bool is_loopback(const char *addr)
{
    return strncmp(addr, "127.", 4) == 0 || strcmp(addr, "::1") == 0;
}

/* The first node from elsewhere shows by which address others reach this
 * host: those that came over the loopback device are reached by it, too. */
static void learn_own_addr(struct coordinator *c, const char *own)
{
    struct ring *members = &c->membership.members;

    memcpy(c->own_addr, own, sizeof(c->own_addr));
    for (struct ring *r = members->next; r != members; r = r->next) {
        struct member *m = RING_OBJECT(r, struct member, link);

        if (is_loopback(m->addr))
            memcpy(m->addr, own, sizeof(m->addr));
    }
}

static void find_addr(struct coordinator *c, const struct node *n,
    const struct node_msg *join, char addr[NODE_ADDR_MAX])
{
    char own[NODE_ADDR_MAX];

    node_conn_addresses(n->conn, addr, own);
    if (!is_loopback(addr) && c->own_addr[0] == '\0')
        learn_own_addr(c, own);
    if (is_loopback(addr) && c->own_addr[0] != '\0')
        memcpy(addr, c->own_addr, NODE_ADDR_MAX);
    if (join->addr[0] != '\0')
        memcpy(addr, join->addr, NODE_ADDR_MAX);
}

static void join(struct node *n, const struct node_msg *msg)
{
    struct coordinator *c = n->coordinator;
    struct node_msg refused = {.kind = NODE_REFUSED};
    char addr[NODE_ADDR_MAX];
    struct err e;

    find_addr(c, n, msg, addr);
    n->member =
        membership_join(&c->membership, n, msg, addr, clock_now_ns(), &e);
    if (n->member != NULL) {
        c->nstrangers--;
        log_debug("coordinator", "node %s (pid %d) has joined from %s",
            msg->host, msg->pid, addr);
        return;
    }
    log_warn("coordinator", "node %s (pid %d) is refused: %s", msg->host,
        msg->pid, e.msg);
    memcpy(refused.text, e.msg, sizeof(refused.text));
    node_conn_send(n->conn, &refused);
    node_close(n);
}

static void message_cb(void *arg, const struct node_msg *msg)
{
    struct node *n = arg;
    struct coordinator *c = n->coordinator;

    if (n->member == NULL && msg->kind == NODE_JOIN)
        join(n, msg);
    else if (n->member == NULL || membership_message(&c->membership, n->member,
                                      msg, clock_now_ns()) < 0)
        ended_cb(n, "it said what makes no sense here");
    set_timer(c);
}

void coordinator_adopt(
    int fd, const void *head, size_t head_len, void *coordinator)
{
    static const struct node_conn_callbacks callbacks = {message_cb, ended_cb};
    struct coordinator *c = coordinator;
    struct node *n = calloc(1, sizeof(*n));

    if (n == NULL) {
        close(fd);
        return;
    }
    n->coordinator = c;
    n->since_ns = clock_now_ns();
    if (node_conn_open(&n->conn, c->poller, fd,
            (const char *)head + SNIFF_AGENT_MAGIC_LEN,
            head_len - SNIFF_AGENT_MAGIC_LEN, &callbacks, n) < 0) {
        free(n);
        return;
    }
    ring_add_last(&c->nodes, &n->link);
    c->nstrangers++;
    set_timer(c);
}

/* --- The coordinator ---------------------------------------------------- */

int coordinator_create(struct coordinator **out, struct poller *p,
    const struct membership_settings *settings)
{
    static const struct membership_callbacks callbacks = {send_cb, drop_cb};
    struct coordinator *c = calloc(1, sizeof(*c));
    int fd, rc;

    if (c == NULL)
        return -ENOMEM;
    fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    rc =
        fd < 0 ? -errno : poller_add(p, &c->timer, fd, EPOLLIN, timer_ready_cb);
    if (rc < 0) {
        if (fd >= 0)
            close(fd);
        free(c);
        return rc;
    }
    c->poller = p;
    c->due_ns = UINT64_MAX;
    ring_init(&c->nodes);
    membership_init(&c->membership, settings, &callbacks, c, clock_now_ns());
    *out = c;
    return 0;
}

int coordinator_nodes(const struct coordinator *c)
{
    return c->membership.nmembers;
}

void coordinator_destroy(struct coordinator *c)
{
    int fd;

    if (c == NULL)
        return;
    while (!ring_is_empty(&c->nodes))
        node_close(RING_OBJECT(c->nodes.next, struct node, link));
    fd = c->timer.fd;
    poller_remove(c->poller, &c->timer);
    close(fd);
    membership_fini(&c->membership);
    poller_free_later(c->poller, &c->timer, c);
}
