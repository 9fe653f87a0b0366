/*
 * Plays the agents of many nodes against one crund: the real protocol over
 * real connections, and nothing behind them. Prints one line:
 *
 *   start_ms=61.2 start_worst_ms=70.4 join_ms=350.1 told_ms=22.0
 *   told_worst_ms=25.1 again_ms=90.8 join_messages=4.2 messages=12.3 cpu_us=80
 *
 * All figures are of jobs one after the other, medians or, with _worst, the
 * worst. start: from the last node's connect() until every node has been told
 * to start its workers, the others having joined before; join: from the first
 * connect() until all but the last one are in; told: from the failure that one
 * node tells until every other one has heard of it; again: from that failure
 * until every node has been told to start the next round. join_messages: those
 * that all agents send and are sent until the first round begins, for each
 * node; messages: in the whole job; signs of life are not counted, as they take
 * as long as nodes wait. cpu_us: the time of crund's process for each node and
 * job, if that is named.
 *
 *     node_load [options] ADDRESS:PORT
 *       -n NODES     (1000)
 *       -j JOBS      (5)
 *       -s PID       crund's process
 *       -c SECONDS   no figures: one job of which half of the nodes vanish in
 *                    each round, by turns in every way, and come back. Ends
 *                    with status 1 if a node is told what does not fit.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/node_conn.h"
#include "rendezvous/store_sniff.h"
#include "tests/bench/store_bench.h"

#define JOBS_MAX 1000
#define NODES_MAX 65536

/* Connections that are not yet let in, at a time: fewer than may wait at a
 * listening socket, or the kernel drops some for a second. */
#define AT_A_TIME 512

/* For whatever is waited for. */
#define PATIENCE_MS 60000

/* Between two looks at who has to give a sign of life. */
#define PING_LOOK_MS 50

enum node_state {
    NODE_IS_GONE, /* it has no connection */
    NODE_IS_JOINING,
    NODE_IS_WAITING, /* for a round */
    NODE_IS_RUNNING, /* in one */
    NODE_IS_DONE, /* with its part of one */
    NODE_IS_CLOSED, /* told that the job is over */
    NODE_STATES
};

/* A connection. One that its node has left is closed when crund does. */
struct line {
    struct node *node;
    struct node_conn *conn;
    int fd;
};

struct node {
    struct line *line; /* owned; NULL while it has none */
    enum node_state state;
    bool is_frozen; /* says nothing any more */
    bool has_verdict;
    uint64_t agent_id;
    uint64_t ping_ns; /* when the next one is due */
    struct node_msg round; /* its last one; round -1: none */
};

struct load {
    struct poller *poller;
    struct sockaddr_in server;
    struct node *nodes;
    int nnodes;
    int max_restarts;
    int keep_alive_ms;
    bool is_churn;
    char run_id[64];
    int count[NODE_STATES];
    uint64_t nmessages;
    uint64_t ntold; /* failures and stops that were heard of */
    uint64_t nlost; /* connections that crund has closed */
    uint64_t next_agent_id;
    uint64_t look_ns;
};

static struct load load;

static void set_state(struct node *n, enum node_state state)
{
    load.count[n->state]--;
    n->state = state;
    load.count[n->state]++;
}

static int number_of(const struct node *n)
{
    return (int)(n - load.nodes);
}

/* --- One node ----------------------------------------------------------- */

static void say(struct node *n, const struct node_msg *msg)
{
    load.nmessages += msg->kind != NODE_PING;
    node_conn_send(n->line->conn, msg);
}

static void line_close(struct line *l)
{
    node_conn_close(l->conn);
    free(l);
}

static void leave_line(struct node *n)
{
    n->line = NULL;
    n->is_frozen = false;
    set_state(n, NODE_IS_GONE);
}

static void hang_up(struct node *n)
{
    struct line *l = n->line;

    leave_line(n);
    line_close(l);
}

static void say_join(struct node *n)
{
    struct node_msg join = {.kind = NODE_JOIN,
        .pid = number_of(n) + 1,
        .node_rank = -1,
        .nproc = 1,
        .role = "default",
        .min_nodes = load.nnodes,
        .max_nodes = load.nnodes,
        .max_restarts = load.max_restarts,
        .join_timeout_ms = PATIENCE_MS,
        .keep_alive_ms = load.keep_alive_ms,
        .keep_alive_attempts = 5,
        .store_port = 1,
        .agent_id = n->agent_id,
        .round = n->round.round,
        .round_id = n->round.round_id,
        .restart_count = n->round.restart_count,
        .round_restart_count = n->round.restart_count,
        .group_rank = n->round.group_rank,
        .group_world_size = n->round.group_world_size};

    join.part = n->round.round < 0 ? NODE_PART_NONE : NODE_PART_OPEN;
    snprintf(join.run_id, sizeof(join.run_id), "%s", load.run_id);
    snprintf(join.host, sizeof(join.host), "node%d", number_of(n));
    snprintf(join.addrs, sizeof(join.addrs), "10.0.%d.%d", number_of(n) / 256,
        number_of(n) % 256);
    say(n, &join);
}

static void say_ended(struct node *n, enum node_result result)
{
    const struct node_msg ended = {
        .kind = NODE_ENDED, .round = n->round.round, .result = result};

    set_state(n, NODE_IS_DONE);
    say(n, &ended);
}

static void on_round(struct node *n, const struct node_msg *msg)
{
    if (n->state != NODE_IS_WAITING && n->state != NODE_IS_DONE)
        bench_die("node %d is in a round and told to begin round %d",
            number_of(n), msg->round);
    if (msg->round <= n->round.round || msg->group_world_size != load.nnodes ||
        msg->group_rank < 0 || msg->group_rank >= load.nnodes ||
        msg->rank_base != msg->group_rank)
        bench_die("node %d: round %d of %d nodes after round %d, group rank "
                  "%d, first rank %d",
            number_of(n), msg->round, msg->group_world_size, n->round.round,
            msg->group_rank, msg->rank_base);
    n->round = *msg;
    n->has_verdict = false;
    set_state(n, NODE_IS_RUNNING);
}

/* It ends its workers at once. */
static void on_round_over(struct node *n, const struct node_msg *msg)
{
    load.ntold++;
    if (n->state != NODE_IS_RUNNING || msg->round != n->round.round)
        bench_die("node %d, last in round %d, is told to end round %d",
            number_of(n), n->round.round, msg->round);
    say_ended(n, NODE_STOPPED);
}

static void on_verdict(struct node *n, const struct node_msg *msg)
{
    if (n->state != NODE_IS_DONE || n->has_verdict ||
        msg->round != n->round.round || msg->next != NODE_NEXT_ROUND)
        bench_die("node %d, last in round %d, is told a verdict on round %d",
            number_of(n), n->round.round, msg->round);
    n->has_verdict = true;
}

static void on_welcome(struct node *n)
{
    n->ping_ns = clock_deadline_ns(load.keep_alive_ms);
    set_state(n, n->round.round < 0 ? NODE_IS_WAITING : NODE_IS_RUNNING);
}

static void message_cb(void *arg, const struct node_msg *msg)
{
    const struct node_msg ready = {.kind = NODE_READY, .round = msg->round};
    struct line *l = arg;
    struct node *n = l->node;

    load.nmessages += msg->kind != NODE_PONG;
    if (l != n->line || n->is_frozen)
        return;
    switch (msg->kind) {
    case NODE_HELLO:
        say_join(n);
        break;
    case NODE_WELCOME:
        on_welcome(n);
        break;
    case NODE_PREPARE:
        say(n, &ready);
        break;
    case NODE_ROUND:
        on_round(n, msg);
        break;
    case NODE_FAILED:
    case NODE_STOP:
        on_round_over(n, msg);
        break;
    case NODE_VERDICT:
        on_verdict(n, msg);
        break;
    case NODE_CLOSED:
        if (msg->result != 0)
            bench_die("the job is closed: %s", msg->text);
        set_state(n, NODE_IS_CLOSED);
        break;
    case NODE_PEERS:
    case NODE_PONG:
        break;
    default:
        bench_die("node %d is sent %s: %s", number_of(n),
            node_msg_name(msg->kind), msg->text);
    }
}

static void ended_cb(void *arg, const char *why)
{
    struct line *l = arg;
    struct node *n = l->node;

    if (!load.is_churn)
        bench_die("node %d has lost crund: %s", number_of(n), why);
    load.nlost++;
    if (l == n->line)
        leave_line(n);
    line_close(l);
}

/* Every node from an address of its own, as far as there are some. */
static void dial(struct node *n)
{
    static const struct node_conn_callbacks callbacks = {message_cb, ended_cb};
    struct line *l = calloc(1, sizeof(*l));
    int rc = -ENOMEM;

    if (l != NULL)
        rc = bench_connect(&load.server, 2 + number_of(n) % 250, SOCK_NONBLOCK);
    if (rc >= 0) {
        *l = (struct line){.node = n, .fd = rc};
        rc = node_conn_open(
            &l->conn, load.poller, l->fd, NULL, 0, &callbacks, l);
    }
    if (rc < 0)
        bench_die("node %d cannot connect: %s", number_of(n), strerror(-rc));
    n->line = l;
    set_state(n, NODE_IS_JOINING);
    node_conn_send_bytes(l->conn, sniff_agent_magic, SNIFF_AGENT_MAGIC_LEN);
}

static struct node_msg failure_of(const struct node *n)
{
    return (struct node_msg){.kind = NODE_FAILED,
        .round = n->round.round,
        .rank = n->round.rank_base,
        .pid = number_of(n) + 1,
        .wait_status = 9,
        .host = "node",
        .text = "signal 9 (SIGKILL)"};
}

/* --- All of them -------------------------------------------------------- */

static void ping_those_due(void)
{
    const struct node_msg ping = {.kind = NODE_PING};
    uint64_t now = clock_now_ns();

    if (now < load.look_ns)
        return;
    load.look_ns = now + PING_LOOK_MS * CLOCK_NS_PER_MS;
    for (struct node *n = load.nodes; n < load.nodes + load.nnodes; n++) {
        if (n->state < NODE_IS_WAITING || n->state > NODE_IS_DONE ||
            n->is_frozen || now < n->ping_ns)
            continue;
        n->ping_ns = now + (uint64_t)load.keep_alive_ms * CLOCK_NS_PER_MS;
        say(n, &ping);
    }
}

static void run_once(void)
{
    int rc = poller_run(load.poller, PING_LOOK_MS);

    if (rc < 0)
        bench_die("poller: %s", strerror(-rc));
    ping_those_due();
}

/* Runs until so many nodes are in that state. */
static void run_until(enum node_state state, int n, const char *what)
{
    uint64_t until = clock_deadline_ns(PATIENCE_MS);

    while (load.count[state] < n) {
        if (clock_now_ns() > until)
            bench_die("%s: %d instead of %d nodes after %d s (gone %d, joining "
                      "%d, waiting %d, running %d, done %d, closed %d)",
                what, load.count[state], n, PATIENCE_MS / 1000,
                load.count[NODE_IS_GONE], load.count[NODE_IS_JOINING],
                load.count[NODE_IS_WAITING], load.count[NODE_IS_RUNNING],
                load.count[NODE_IS_DONE], load.count[NODE_IS_CLOSED]);
        run_once();
    }
}

/* The first n nodes, as far as they have no connection. */
static void dial_all(int n)
{
    for (int i = 0; i < n; i++) {
        if (load.nodes[i].state == NODE_IS_GONE)
            dial(&load.nodes[i]);
        while (load.count[NODE_IS_JOINING] >= AT_A_TIME)
            run_once();
    }
}

static void begin_job(int number)
{
    snprintf(
        load.run_id, sizeof(load.run_id), "load-%d-%d", (int)getpid(), number);
    memset(load.count, 0, sizeof(load.count));
    load.count[NODE_IS_GONE] = load.nnodes;
    for (int i = 0; i < load.nnodes; i++)
        load.nodes[i] =
            (struct node){.round.round = -1, .agent_id = ++load.next_agent_id};
}

/* All of them are in one and the same round, each with a rank of its own. */
static void check_round(void)
{
    bool *taken = calloc((size_t)load.nnodes, sizeof(*taken));

    if (taken == NULL)
        bench_die("out of memory");
    for (int i = 0; i < load.nnodes; i++) {
        const struct node_msg *r = &load.nodes[i].round;

        if (r->round_id != load.nodes[0].round.round_id ||
            r->restart_count != load.nodes[0].round.restart_count)
            bench_die("nodes %d and 0 are in different rounds", i);
        if (taken[r->group_rank])
            bench_die("two nodes have group rank %d", r->group_rank);
        taken[r->group_rank] = true;
    }
    free(taken);
}

static void end_job(void)
{
    for (int i = 0; i < load.nnodes; i++)
        say_ended(&load.nodes[i], NODE_SUCCEEDED);
    run_until(NODE_IS_CLOSED, load.nnodes, "the end");
    for (int i = 0; i < load.nnodes; i++)
        hang_up(&load.nodes[i]);
}

/* --- Figures ------------------------------------------------------------ */

enum figure {
    FIGURE_START,
    FIGURE_JOIN,
    FIGURE_TOLD,
    FIGURE_AGAIN,
    FIGURE_JOIN_MESSAGES,
    FIGURE_MESSAGES,
    FIGURES
};

static double figures[FIGURES][JOBS_MAX];

static double ms_since(uint64_t begin_ns)
{
    return (double)(clock_now_ns() - begin_ns) / 1e6;
}

static void measure(int job)
{
    struct node *last = &load.nodes[load.nnodes - 1];
    double n = (double)load.nnodes;
    struct node_msg failure;
    uint64_t begin;

    begin_job(job);
    load.nmessages = 0;
    begin = clock_now_ns();
    dial_all(load.nnodes - 1);
    run_until(NODE_IS_WAITING, load.nnodes - 1, "joining");
    figures[FIGURE_JOIN][job] = ms_since(begin);

    begin = clock_now_ns();
    dial(last);
    run_until(NODE_IS_RUNNING, load.nnodes, "the first round");
    figures[FIGURE_START][job] = ms_since(begin);
    figures[FIGURE_JOIN_MESSAGES][job] = (double)load.nmessages / n;
    check_round();

    begin = clock_now_ns();
    failure = failure_of(last);
    load.ntold = 0;
    say(last, &failure);
    say_ended(last, NODE_HAS_FAILED);
    while (load.ntold + 1 < (uint64_t)load.nnodes) {
        if (ms_since(begin) > PATIENCE_MS)
            bench_die("%d nodes are told of a failure", (int)load.ntold);
        run_once();
    }
    figures[FIGURE_TOLD][job] = ms_since(begin);
    run_until(NODE_IS_RUNNING, load.nnodes, "the second round");
    figures[FIGURE_AGAIN][job] = ms_since(begin);
    check_round();
    end_job();
    figures[FIGURE_MESSAGES][job] = (double)load.nmessages / n;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void measure_all(int njobs, pid_t server)
{
    uint64_t cpu_ns = server != 0 ? bench_cpu_ns(server) : 0;

    for (int job = 0; job < njobs; job++)
        measure(job);
    if (server != 0)
        cpu_ns = bench_cpu_ns(server) - cpu_ns;
    for (int i = 0; i < FIGURES; i++)
        qsort(
            figures[i], (size_t)njobs, sizeof(figures[i][0]), compare_doubles);
    printf("start_ms=%.2f start_worst_ms=%.2f join_ms=%.2f told_ms=%.2f "
           "told_worst_ms=%.2f again_ms=%.2f join_messages=%.2f messages=%.2f",
        figures[FIGURE_START][njobs / 2], figures[FIGURE_START][njobs - 1],
        figures[FIGURE_JOIN][njobs / 2], figures[FIGURE_TOLD][njobs / 2],
        figures[FIGURE_TOLD][njobs - 1], figures[FIGURE_AGAIN][njobs / 2],
        figures[FIGURE_JOIN_MESSAGES][njobs / 2],
        figures[FIGURE_MESSAGES][njobs / 2]);
    if (server != 0)
        printf(" cpu_us=%.1f",
            (double)cpu_ns / 1e3 / (double)njobs / (double)load.nnodes);
    putchar('\n');
}

/* --- Coming and going --------------------------------------------------- */

/* It may be back as itself, with its workers, or as somebody else. */
static void may_become_another(struct node *n)
{
    if (rand() % 2 == 0)
        return;
    n->round.round = -1;
    n->agent_id = ++load.next_agent_id;
}

static void vanish(struct node *n, bool may_freeze)
{
    const struct linger at_once = {.l_onoff = 1};

    switch (rand() % 8) {
    case 0: /* to be found silent */
        if (may_freeze) {
            n->is_frozen = true;
            return;
        }
        break;
    case 1: /* no frame */
        node_conn_send_bytes(
            n->line->conn, "\377\377\377\377\377\377\377\377", 8);
        n->is_frozen = true;
        return;
    case 2: /* comes back as itself before crund knows that it has gone */
        leave_line(n);
        return;
    case 3:
    case 4: /* with a reset */
        setsockopt(
            n->line->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
        break;
    default:
        break;
    }
    hang_up(n);
    may_become_another(n);
}

/* Until crund has found out all of those that it has to. */
static void await_frozen(void)
{
    uint64_t until = clock_deadline_ns(PATIENCE_MS);

    for (int i = 0; i < load.nnodes; i++) {
        struct node *n = &load.nodes[i];
        bool was_frozen = n->is_frozen;

        while (n->is_frozen) {
            if (clock_now_ns() > until)
                bench_die("node %d is not found silent", i);
            run_once();
        }
        if (was_frozen && n->state == NODE_IS_GONE)
            may_become_another(n);
    }
}

static void churn(uint64_t seconds)
{
    uint64_t until = clock_deadline_ns((int64_t)seconds * 1000);
    long rounds = 0, vanished = 0;

    begin_job(0);
    dial_all(load.nnodes);
    while (clock_now_ns() < until) {
        bool may_freeze = rand() % 4 == 0;

        run_until(NODE_IS_RUNNING, load.nnodes, "a round");
        check_round();
        rounds++;
        for (int i = 0; i < load.nnodes; i++) {
            if (rand() % 2 == 0)
                continue;
            vanish(&load.nodes[i], may_freeze);
            vanished++;
        }
        dial_all(load.nnodes);
        await_frozen();
        dial_all(load.nnodes);
    }
    run_until(NODE_IS_RUNNING, load.nnodes, "the last round");
    check_round();
    end_job();
    printf("rounds=%ld vanished=%ld told=%llu lost=%llu restarts=%d\n", rounds,
        vanished, (unsigned long long)load.ntold,
        (unsigned long long)load.nlost, load.nodes[0].round.restart_count);
}

int main(int argc, char **argv)
{
    long churn_seconds = 0;
    pid_t server = 0;
    int njobs = 5;
    int option;

    load = (struct load){.nnodes = 1000,
        .max_restarts = 1,
        .keep_alive_ms = 1000,
        .next_agent_id = (uint64_t)getpid() << 32};
    while ((option = getopt(argc, argv, "n:j:s:c:")) != -1) {
        switch (option) {
        case 'n':
            load.nnodes = (int)bench_number(optarg, 2, NODES_MAX);
            break;
        case 'j':
            njobs = (int)bench_number(optarg, 1, JOBS_MAX);
            break;
        case 's':
            server = (pid_t)bench_number(optarg, 1, 1l << 30);
            break;
        case 'c':
            churn_seconds = bench_number(optarg, 1, 100000);
            break;
        default:
            return 2;
        }
    }
    if (optind + 1 != argc)
        bench_die("wants one ADDRESS:PORT");
    load.server = bench_address(argv[optind]);
    bench_need_descriptors((size_t)load.nnodes + 32);
    load.nodes = calloc((size_t)load.nnodes, sizeof(*load.nodes));
    if (load.nodes == NULL || poller_create(&load.poller) < 0)
        bench_die("out of memory");
    if (churn_seconds > 0) {
        load.is_churn = true;
        load.max_restarts = 1 << 20;
        load.keep_alive_ms = 300;
        churn((uint64_t)churn_seconds);
    } else {
        measure_all(njobs, server);
    }
    poller_destroy(load.poller);
    free(load.nodes);
    return 0;
}
