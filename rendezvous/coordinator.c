/*
 * See coordinator.h. The membership's messages are queued at the connections,
 * which tell of their ends from the poller only: so nothing here is called
 * while the membership is at work.
 */
#include "rendezvous/coordinator.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/log.h"
#include "rendezvous/base/random.h"
#include "rendezvous/node_conn.h"
#include "rendezvous/peer_log.h"
#include "rendezvous/store_sniff.h"

/* From the magic to JOIN. */
#define STRANGER_MS 10000

/* A job whose nodes are all gone: those that come back are of the same one. */
#define JOB_KEEP_MS 60000

/* Who has not joined yet; beyond it the oldest goes. */
#define STRANGERS_MAX 1024

/* At a time, where anybody's jobs are served. */
#define JOBS_MAX 1024

struct job {
    struct ring link;
    struct coordinator *coordinator;
    uint64_t empty_ns; /* since when it has no nodes; 0: it has */
    struct membership membership;
};

struct node {
    struct ring link; /* in nodes or strangers */
    struct coordinator *coordinator;
    struct node_conn *conn;
    struct job *job; /* NULL until it is let in */
    struct member *member; /* likewise, and when it is out */
    bool is_in; /* it has been let in */
    uint64_t since_ns;
    uint8_t nonce[TOKEN_NONCE_LEN];
    uint8_t proof[TOKEN_PROOF_LEN]; /* for WELCOME */
};

struct coordinator {
    struct poller *poller; /* borrowed */
    const struct token *token; /* borrowed; NULL: there is no secret */
    bool is_open; /* to any job */
    bool has_told; /* that there is no secret */
    struct ring jobs; /* else there is one, from the start to the end */
    int njobs;
    struct ring nodes;
    int nstrangers;
    struct peer_log complaints;
    struct ring strangers; /* not let in so far; the oldest first */
    struct poller_item timer;
    uint64_t due_ns; /* what the timer is set to */
    char own_addr[NODE_ADDR_MAX]; /* as other hosts see this one; "" unknown */
};

static void node_close(struct node *n)
{
    n->coordinator->nstrangers -= !n->is_in;
    ring_remove(&n->link);
    node_conn_close(n->conn);
    free(n);
}

/* --- Jobs --------------------------------------------------------------- */

static void send_cb(void *arg, struct member *m, const struct node_msg *msg);
static void drop_cb(void *arg, struct member *m, const char *why);

static struct job *job_create(
    struct coordinator *c, const struct membership_settings *settings)
{
    static const struct membership_callbacks callbacks = {send_cb, drop_cb};
    struct membership_settings set = *settings;
    struct job *job = calloc(1, sizeof(*job));

    if (job == NULL || random_bytes(&set.id, sizeof(set.id)) < 0) {
        free(job);
        return NULL;
    }
    job->coordinator = c;
    membership_init(&job->membership, &set, &callbacks, job, clock_now_ns());
    ring_add_last(&c->jobs, &job->link);
    c->njobs++;
    return job;
}

static void job_destroy(struct job *job)
{
    ring_remove(&job->link);
    job->coordinator->njobs--;
    membership_fini(&job->membership);
    free(job);
}

/* The one that has been so for longest makes room. */
static void forget_empty_job(struct coordinator *c)
{
    struct job *oldest = NULL;

    for (struct ring *r = c->jobs.next; r != &c->jobs; r = r->next) {
        struct job *job = RING_OBJECT(r, struct job, link);

        if (job->empty_ns != 0 &&
            (oldest == NULL || job->empty_ns < oldest->empty_ns))
            oldest = job;
    }
    if (oldest != NULL)
        job_destroy(oldest);
}

/* Whether it has nodes has changed, maybe. */
static void job_check(struct job *job)
{
    if (job->membership.nmembers > 0)
        job->empty_ns = 0;
    else if (job->empty_ns == 0)
        job->empty_ns = clock_now_ns();
}

static uint64_t job_due_ns(const struct job *job)
{
    uint64_t due = membership_due_ns(&job->membership);
    uint64_t end = job->empty_ns + JOB_KEEP_MS * CLOCK_NS_PER_MS;

    if (!job->coordinator->is_open || job->empty_ns == 0)
        return due;
    return end < due ? end : due;
}

static void job_tick(struct job *job, uint64_t now)
{
    if (now >= membership_due_ns(&job->membership))
        membership_tick(&job->membership, now);
    job_check(job);
    if (now >= job_due_ns(job) && job->coordinator->is_open &&
        job->empty_ns != 0)
        job_destroy(job);
}

/* Numbers are the node's; the least sense is made of them. */
static uint64_t as_ms(int32_t ms)
{
    return ms > 0 ? (uint64_t)ms : 0;
}

static struct job *job_of_first_node(
    struct coordinator *c, const struct node_msg *join, struct err *e)
{
    struct membership_settings set = {.min_nodes = join->min_nodes,
        .max_nodes = join->max_nodes,
        .max_restarts = join->max_restarts,
        .has_agent_store = join->has_agent_store != 0,
        .join_timeout_ms = as_ms(join->join_timeout_ms),
        .last_call_ms = as_ms(join->last_call_ms),
        .keep_alive_ms =
            join->keep_alive_ms > 0 ? as_ms(join->keep_alive_ms) : 1000,
        .keep_alive_attempts =
            join->keep_alive_attempts > 0 ? join->keep_alive_attempts : 1,
        .restart_delay_ms = as_ms(join->restart_delay_ms),
        .restart_delay_max_ms = as_ms(join->restart_delay_max_ms),
        .crash_loop_count = join->crash_loop_count,
        .crash_loop_ms = as_ms(join->crash_loop_ms),
        .is_lasting = true};
    struct job *job;

    if (join->is_static != 0) {
        err_set(e, -EINVAL,
            "its backend is static, and node rank 0 of such a job is its own "
            "coordinator; with this one use --rdzv_backend c10d");
        return NULL;
    }
    if (set.min_nodes < 1 || set.max_nodes < set.min_nodes ||
        set.max_nodes > MEMBERSHIP_NODES_MAX) {
        err_set(e, -EINVAL, "--nnodes=%d:%d: expected 1 to %d nodes",
            set.min_nodes, set.max_nodes, MEMBERSHIP_NODES_MAX);
        return NULL;
    }
    if (c->njobs >= JOBS_MAX)
        forget_empty_job(c);
    if (c->njobs >= JOBS_MAX) {
        err_set(e, -EAGAIN, "there are %d jobs already", JOBS_MAX);
        return NULL;
    }
    memcpy(set.run_id, join->run_id, sizeof(set.run_id));
    job = job_create(c, &set);
    if (job == NULL)
        err_set(e, -ENOMEM, "the coordinator is out of memory");
    if (job != NULL && c->token == NULL && !c->has_told) {
        c->has_told = true;
        log_warn("coordinator",
            "there is no secret: whoever reaches this port can take part in "
            "its jobs (--token-file)");
    }
    return job;
}

static struct job *find_job(
    struct coordinator *c, const struct node_msg *join, struct err *e)
{
    if (!c->is_open)
        return RING_OBJECT(c->jobs.next, struct job, link);
    for (struct ring *r = c->jobs.next; r != &c->jobs; r = r->next) {
        struct job *job = RING_OBJECT(r, struct job, link);

        if (strcmp(job->membership.settings.run_id, join->run_id) != 0)
            continue;
        if (job->empty_ns == 0 || join->part != NODE_PART_NONE)
            return job;
        job_destroy(job); /* another one, with the same name */
        break;
    }
    return job_of_first_node(c, join, e);
}

/* --- Time --------------------------------------------------------------- */

static uint64_t oldest_stranger_due(const struct coordinator *c)
{
    if (ring_is_empty(&c->strangers))
        return UINT64_MAX;
    return RING_OBJECT(c->strangers.next, struct node, link)->since_ns +
           STRANGER_MS * CLOCK_NS_PER_MS;
}

static void set_timer(struct coordinator *c)
{
    uint64_t due = oldest_stranger_due(c);
    struct itimerspec at = {0};

    for (struct ring *r = c->jobs.next; r != &c->jobs; r = r->next) {
        uint64_t of_job = job_due_ns(RING_OBJECT(r, struct job, link));

        if (of_job < due)
            due = of_job;
    }
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
    while (now >= oldest_stranger_due(c))
        node_close(RING_OBJECT(c->strangers.next, struct node, link));
    for (struct ring *r = c->jobs.next; r != &c->jobs; r = next) {
        struct job *job = RING_OBJECT(r, struct job, link);

        next = r->next;
        job_tick(job, now);
    }
    set_timer(c);
}

/* --- The membership's side ---------------------------------------------- */

static void send_cb(void *arg, struct member *m, const struct node_msg *msg)
{
    const struct node *n = m->owner;
    struct node_msg welcome;

    (void)arg;
    if (msg->kind == NODE_WELCOME) {
        welcome = *msg;
        memcpy(welcome.proof, n->proof, sizeof(welcome.proof));
        msg = &welcome;
    }
    node_conn_send(n->conn, msg);
}

static void drop_cb(void *arg, struct member *m, const char *why)
{
    struct node *n = m->owner;

    (void)arg;
    log_warn(
        "coordinator", "node %s (pid %d) is lost: %s", m->host, m->pid, why);
    n->member = NULL;
    node_close(n);
}

/* --- The nodes' side ---------------------------------------------------- */

static void ended_cb(void *arg, const char *why)
{
    struct node *n = arg;
    struct coordinator *c = n->coordinator;
    struct job *job = n->job;

    if (n->member != NULL) {
        if (!n->member->is_leaving &&
            job->membership.phase != MEMBERSHIP_CLOSED)
            log_warn("coordinator", "node %s (pid %d) is lost: %s",
                n->member->host, n->member->pid, why);
        membership_lost(&job->membership, n->member, why, clock_now_ns());
        n->member = NULL;
        job_check(job);
    }
    if (!n->is_in && why != node_conn_closed)
        peer_log_warn(&c->complaints, node_conn_fd(n->conn),
            "closed an agent's connection: %s", why);
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
    memcpy(c->own_addr, own, sizeof(c->own_addr));
    for (struct ring *r = c->nodes.next; r != &c->nodes; r = r->next) {
        struct member *m = RING_OBJECT(r, struct node, link)->member;

        if (is_loopback(m->addr))
            memcpy(m->addr, own, sizeof(m->addr));
    }
}

/* Where it was seen is one of its addresses, whatever it says. */
static void find_addr(struct coordinator *c, const struct node *n,
    struct node_msg *join, char addr[NODE_ADDR_MAX])
{
    char own[NODE_ADDR_MAX];
    char addrs[2 * NODE_ADDRS_MAX];
    size_t len;

    node_conn_addresses(n->conn, addr, own);
    snprintf(addrs, sizeof(addrs), "%s %s", addr, join->addrs);
    len = strlen(addrs);
    if (len >=
        sizeof(join->addrs)) { /* an address that is cut is another one */
        len = sizeof(join->addrs) - 1;
        while (len > 0 && addrs[len] != ' ')
            len--;
    }
    memcpy(join->addrs, addrs, len);
    join->addrs[len] = '\0';
    if (addr[0] != '\0' && !is_loopback(addr) && c->own_addr[0] == '\0')
        learn_own_addr(c, own);
    if (is_loopback(addr) && c->own_addr[0] != '\0')
        memcpy(addr, c->own_addr, NODE_ADDR_MAX);
    if (join->addr[0] != '\0')
        memcpy(addr, join->addr, NODE_ADDR_MAX);
}

/* Whether the node knows the secret, if there is one; then proves that this
 * side does as well. */
static int check_token(
    struct node *n, const struct node_msg *msg, struct err *e)
{
    const struct token *t = n->coordinator->token;

    if (t == NULL)
        return msg->has_token == 0
                   ? 0
                   : err_set(e, -EACCES,
                         "it has a secret (--token_file), and the coordinator "
                         "has none");
    if (msg->has_token == 0)
        return err_set(e, -EACCES,
            "it has no secret, and the coordinator has one: give every node "
            "the same with --token_file");
    if (!token_check(
            t, TOKEN_AGENT, msg->nonce, n->nonce, msg->run_id, msg->proof))
        return err_set(e, -EACCES,
            "its secret (--token_file) is not the one of the coordinator");
    token_prove(
        t, TOKEN_COORDINATOR, msg->nonce, n->nonce, msg->run_id, n->proof);
    return 0;
}

static int let_in(struct node *n, const struct node_msg *msg, struct err *e)
{
    struct coordinator *c = n->coordinator;
    struct node_msg join = *msg;
    char addr[NODE_ADDR_MAX];
    struct job *job;

    if (check_token(n, msg, e) < 0)
        return -EACCES;
    job = find_job(c, msg, e);
    if (job == NULL)
        return -EINVAL;
    find_addr(c, n, &join, addr);
    n->job = job;
    n->member =
        membership_join(&job->membership, n, &join, addr, clock_now_ns(), e);
    if (n->member == NULL) {
        if (c->is_open && job->membership.next_number == 0)
            job_destroy(job); /* nobody was in it */
        return -EINVAL;
    }
    job_check(job);
    n->is_in = true;
    c->nstrangers--;
    ring_remove(&n->link);
    ring_add_last(&c->nodes, &n->link);
    log_debug("coordinator", "node %s (pid %d) has joined job '%s' from %s",
        msg->host, msg->pid, msg->run_id, addr);
    return 0;
}

static void join(struct node *n, const struct node_msg *msg)
{
    struct node_msg refused = {.kind = NODE_REFUSED};
    struct err e;

    if (let_in(n, msg, &e) == 0)
        return;
    peer_log_warn(&n->coordinator->complaints, node_conn_fd(n->conn),
        "node %s (pid %d) is refused: %s", msg->host, msg->pid, e.msg);
    memcpy(refused.text, e.msg, sizeof(refused.text));
    node_conn_send(n->conn, &refused);
    node_close(n);
}

/* It will be back. */
static void let_go(struct node *n)
{
    struct job *job = n->job;

    log_warn("coordinator",
        "node %s (pid %d) has heard nothing from here, and is awaited",
        n->member->host, n->member->pid);
    membership_away(&job->membership, n->member, clock_now_ns());
    n->member = NULL;
    job_check(job);
    node_close(n);
}

/* Where no worker runs nobody else is told. */
static void note_leave(const struct node *n, const struct node_msg *msg)
{
    enum membership_phase phase = n->job->membership.phase;

    if (phase == MEMBERSHIP_GATHERING || phase == MEMBERSHIP_DELAY)
        log_warn("coordinator", "node %s (pid %d) leaves: %s", n->member->host,
            n->member->pid, msg->text);
}

static void message_cb(void *arg, const struct node_msg *msg)
{
    struct node *n = arg;
    struct coordinator *c = n->coordinator;

    if (n->member != NULL && msg->kind == NODE_LEAVE)
        note_leave(n, msg);
    if (n->member == NULL && msg->kind == NODE_JOIN)
        join(n, msg);
    else if (n->member != NULL && msg->kind == NODE_AWAY)
        let_go(n);
    else if (n->member == NULL || membership_message(&n->job->membership,
                                      n->member, msg, clock_now_ns()) < 0)
        ended_cb(n, "it said what makes no sense here");
    set_timer(c);
}

static int greet(struct node *n)
{
    struct node_msg hello = {.kind = NODE_HELLO};
    int rc = random_bytes(n->nonce, sizeof(n->nonce));

    memcpy(hello.nonce, n->nonce, sizeof(hello.nonce));
    if (rc == 0)
        node_conn_send(n->conn, &hello);
    return rc;
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
    ring_add_last(&c->strangers, &n->link);
    if (++c->nstrangers > STRANGERS_MAX)
        node_close(RING_OBJECT(c->strangers.next, struct node, link));
    if (greet(n) < 0)
        node_close(n);
    set_timer(c);
}

/* --- The coordinator ---------------------------------------------------- */

int coordinator_create(struct coordinator **out, struct poller *p,
    const struct membership_settings *settings, const struct token *token)
{
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
    c->token = token;
    c->due_ns = UINT64_MAX;
    c->is_open = settings == NULL;
    ring_init(&c->jobs);
    ring_init(&c->nodes);
    ring_init(&c->strangers);
    if (!c->is_open && job_create(c, settings) == NULL) {
        coordinator_destroy(c, "");
        return -ENOMEM;
    }
    *out = c;
    return 0;
}

void coordinator_destroy(struct coordinator *c, const char *why)
{
    int fd;

    if (c == NULL)
        return;
    if (!c->is_open && !ring_is_empty(&c->jobs))
        membership_close(
            &RING_OBJECT(c->jobs.next, struct job, link)->membership, why,
            clock_now_ns());
    while (!ring_is_empty(&c->nodes))
        node_close(RING_OBJECT(c->nodes.next, struct node, link));
    while (!ring_is_empty(&c->strangers))
        node_close(RING_OBJECT(c->strangers.next, struct node, link));
    peer_log_fini(&c->complaints);
    fd = c->timer.fd;
    poller_remove(c->poller, &c->timer);
    close(fd);
    while (!ring_is_empty(&c->jobs))
        job_destroy(RING_OBJECT(c->jobs.next, struct job, link));
    poller_free_later(c->poller, &c->timer, c);
}
