/*
 * The coordinator and its connections over real sockets: the poller is run by
 * the test itself, while it waits for what an agent is told. All on loopback,
 * on ports that the kernel chooses; what needs other addresses has a network
 * of its own.
 */
#include "rendezvous/coordinator.h"

#include <sys/stat.h>

#include "rendezvous/base/log.h"
#include "rendezvous/node_conn.h"
#include "rendezvous/store_sniff.h"
#include "test_store_peer.h"
#include "unit.h"

/* Nobody is silent for that long here. */
#define LONG_MS 600000

/* An agent's end of a connection. */
struct agent {
    int fd;
    struct buf in;
    uint8_t nonce[TOKEN_NONCE_LEN]; /* the coordinator's, of HELLO */
};

static struct poller *poller;
static struct coordinator *coordinator;
static int listen_fd, port;
static char log_text[4096];

static void keep_log(const char *line, size_t len, void *arg)
{
    size_t used = strlen(log_text);

    (void)arg;
    snprintf(log_text + used, sizeof(log_text) - used, "%.*s", (int)len, line);
}

static void begin(
    const struct membership_settings *settings, const struct token *token)
{
    ck_assert_int_eq(
        coordinator_create(&coordinator, poller, settings, token), 0);
}

static void set_up(void)
{
    log_set_writer(keep_log, NULL);
    ck_assert_int_eq(poller_create(&poller), 0);
    listen_fd = raw_listen(&port);
    coordinator = NULL;
}

static void tear_down(void)
{
    coordinator_destroy(coordinator, "the test is over");
    poller_destroy(poller);
    close(listen_fd);
}

/* --- Agents ------------------------------------------------------------- */

/* Until one of them is ready: the coordinator, or what this agent hears. */
static void wait_for(struct agent *a)
{
    struct pollfd fds[] = {
        {.fd = poller_fd(poller), .events = POLLIN},
        {.fd = a->fd, .events = POLLIN},
    };
    int n = poll(fds, 2, PATIENCE_MS);

    ck_assert_msg(n > 0 || errno == EINTR, "nothing happens");
    ck_assert_int_ge(poller_run(poller, 0), 0);
}

/* Whatever is to be done now. */
static void turn(void)
{
    int n;

    do {
        n = poller_run(poller, 0);
        ck_assert_int_ge(n, 0);
    } while (n > 0);
}

/* False: the connection has ended. */
static bool hear_any(struct agent *a, struct node_msg *msg)
{
    uint64_t deadline = clock_deadline_ns(PATIENCE_MS);

    for (;;) {
        int n = node_msg_decode(msg, buf_bytes(&a->in), a->in.len);
        char *at = buf_reserve(&a->in, 4096);
        ssize_t got;

        ck_assert_int_ge(n, 0);
        if (n > 0) {
            buf_consume(&a->in, (size_t)n);
            return true;
        }
        ck_assert_ptr_nonnull(at);
        got = recv(a->fd, at, 4096, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno == ECONNRESET))
            return false;
        ck_assert_msg(got > 0 || errno == EAGAIN, "%s", strerror(errno));
        if (got > 0) {
            buf_added(&a->in, (size_t)got);
            continue;
        }
        ck_assert_msg(clock_left_ms(deadline) > 0, "nothing is said");
        wait_for(a);
    }
}

static struct node_msg hear(struct agent *a, enum node_msg_kind kind)
{
    struct node_msg msg;

    ck_assert_msg(
        hear_any(a, &msg), "closed, before %s came", node_msg_name(kind));
    ck_assert_msg(msg.kind == kind, "%s (%s) came, and not %s",
        node_msg_name(msg.kind), msg.text, node_msg_name(kind));
    return msg;
}

static void hang_up(struct agent *a)
{
    close(a->fd);
    buf_fini(&a->in);
    turn();
}

static void expect_closed(struct agent *a)
{
    struct node_msg msg;

    ck_assert_msg(!hear_any(a, &msg), "%s (%s) came, and not the end",
        node_msg_name(msg.kind), msg.text);
    hang_up(a);
}

static struct buf frame_of(const struct node_msg *msg)
{
    struct buf frame;

    buf_init(&frame, NODE_FRAME_MAX);
    ck_assert_int_eq(node_msg_encode(msg, &frame), 0);
    return frame;
}

static void say(struct agent *a, struct node_msg msg)
{
    struct buf frame = frame_of(&msg);

    raw_send_bytes(a->fd, buf_bytes(&frame), frame.len);
    buf_fini(&frame);
}

/* Nothing else is under way to it: what was sent before has been read. */
static void expect_nothing(struct agent *a)
{
    say(a, (struct node_msg){.kind = NODE_PING});
    hear(a, NODE_PONG);
}

/* As the port does it: more may have come with the magic. */
static void adopt(struct agent *a, int fd, const void *more, size_t len)
{
    char head[SNIFF_AGENT_MAGIC_LEN + NODE_FRAME_MAX];
    struct node_msg hello;
    int accepted = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    ck_assert_int_ge(accepted, 0);
    memcpy(head, sniff_agent_magic, SNIFF_AGENT_MAGIC_LEN);
    if (len > 0)
        memcpy(head + SNIFF_AGENT_MAGIC_LEN, more, len);
    coordinator_adopt(accepted, head, SNIFF_AGENT_MAGIC_LEN + len, coordinator);
    a->fd = fd;
    buf_init(&a->in, SIZE_MAX / 2);
    hello = hear(a, NODE_HELLO);
    memcpy(a->nonce, hello.nonce, sizeof(a->nonce));
}

static void reach(struct agent *a)
{
    adopt(a, raw_connect(port), NULL, 0);
}

/* Node i of the job, with one worker. */
static struct node_msg join_of(int i, const char *run_id, int min, int max)
{
    struct node_msg join = {.kind = NODE_JOIN,
        .node_rank = -1,
        .nproc = 1,
        .min_nodes = min,
        .max_nodes = max,
        .join_timeout_ms = LONG_MS,
        .keep_alive_ms = LONG_MS,
        .keep_alive_attempts = 3,
        .store_port = 4000 + i,
        .pid = 100 + i,
        .agent_id = 1000 + (uint64_t)i,
        .role = "default"};

    snprintf(join.run_id, sizeof(join.run_id), "%s", run_id);
    snprintf(join.host, sizeof(join.host), "node%d", i);
    return join;
}

static struct node_msg join(struct agent *a, struct node_msg msg)
{
    reach(a);
    say(a, msg);
    return hear(a, NODE_WELCOME);
}

/* The reason is told, and the connection ends. */
static void expect_refused(struct agent *a, const char *why)
{
    struct node_msg msg = hear(a, NODE_REFUSED);

    ck_assert_msg(strstr(msg.text, why) != NULL, "%s", msg.text);
    ck_assert_msg(strstr(log_text, msg.text) != NULL, "%s", log_text);
    expect_closed(a);
}

static void refuse(struct node_msg msg, const char *why)
{
    struct agent a;

    reach(&a);
    say(&a, msg);
    expect_refused(&a, why);
}

static void append_peers(struct agent *a, char *out, size_t size)
{
    struct node_msg msg;

    out[0] = '\0';
    for (;;) {
        ck_assert(hear_any(a, &msg));
        if (msg.kind != NODE_PEERS)
            break;
        snprintf(out + strlen(out), size - strlen(out), "%s ", msg.addrs);
    }
    ck_assert_int_eq(msg.kind, NODE_PREPARE);
    say(a, (struct node_msg){.kind = NODE_READY, .round = msg.round});
}

/* From the last WELCOME to the workers' start. */
static void begin_round(struct agent *agents, int n)
{
    struct node_msg msg;

    do {
        ck_assert(hear_any(&agents[0], &msg));
    } while (msg.kind == NODE_PEERS);
    ck_assert_int_eq(msg.kind, NODE_PREPARE);
    say(&agents[0], (struct node_msg){.kind = NODE_READY, .round = msg.round});
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(hear(&agents[i], NODE_ROUND).group_rank, i);
}

/* --- Jobs --------------------------------------------------------------- */

START_TEST(agents_are_greeted_each_with_a_number_of_its_own)
{
    struct agent a, b;

    begin(NULL, NULL);
    reach(&a);
    reach(&b);
    ck_assert_mem_ne(a.nonce, b.nonce, sizeof(a.nonce));
    hang_up(&a);
    hang_up(&b);
}
END_TEST

START_TEST(job_begins_and_ends)
{
    struct agent agents[3];

    begin(NULL, NULL);
    for (int i = 0; i < 3; i++) {
        struct node_msg welcome = join(&agents[i], join_of(i, "job", 3, 3));

        ck_assert_int_eq(welcome.keep_alive_ms, LONG_MS);
        ck_assert_int_eq(welcome.keep_alive_attempts, 3);
        ck_assert_int_eq(welcome.is_lasting, 1);
    }
    begin_round(agents, 3);
    for (int i = 0; i < 3; i++)
        say(&agents[i],
            (struct node_msg){.kind = NODE_ENDED, .result = NODE_SUCCEEDED});
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(hear(&agents[i], NODE_CLOSED).result, 0);
        hang_up(&agents[i]);
    }
}
END_TEST

START_TEST(jobs_are_told_apart_by_their_run_ids)
{
    struct agent jobs[3][2];
    struct node_msg msg;
    char run_id[16];

    begin(NULL, NULL);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 3; k++) {
            snprintf(run_id, sizeof(run_id), "job%d", k);
            msg = join_of(i, run_id, 2, 2 + k);
            msg.last_call_ms = LONG_MS;
            msg.agent_id += 10 * (uint64_t)k;
            msg.keep_alive_attempts = 1 + k;
            msg = join(&jobs[k][i], msg);
            ck_assert_int_eq(msg.keep_alive_attempts, 1 + k);
        }
    }
    begin_round(jobs[0], 2); /* the others wait for more */
    say(&jobs[0][0], (struct node_msg){.kind = NODE_FAILED, .rank = 0});
    ck_assert_int_eq(hear(&jobs[0][1], NODE_FAILED).rank, 0);
    for (int k = 1; k < 3; k++)
        for (int i = 0; i < 2; i++)
            expect_nothing(&jobs[k][i]);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 2; i++)
            hang_up(&jobs[k][i]);
}
END_TEST

START_TEST(job_is_gone_with_its_last_node)
{
    struct agent a, b, c;

    begin(NULL, NULL);
    join(&a, join_of(0, "job", 2, 3));
    join(&b, join_of(1, "job", 2, 3));
    refuse(join_of(2, "job", 1, 3), "--nnodes is 1:3 there and 2:3");
    hang_up(&a);
    refuse(join_of(2, "job", 1, 3), "--nnodes is 1:3 there and 2:3");
    hang_up(&b);
    join(&c, join_of(2, "job", 1, 1));
    begin_round(&c, 1);
    hang_up(&c);
}
END_TEST

/* All of them may have lost their connections at once. */
START_TEST(job_is_kept_for_those_who_come_back)
{
    struct node_msg msg = join_of(0, "job", 2, 2);
    struct agent a;

    begin(NULL, NULL);
    join(&a, msg);
    hang_up(&a);
    msg = join_of(0, "job", 3, 3);
    msg.part = NODE_PART_OPEN;
    msg.group_world_size = 3;
    refuse(msg, "--nnodes is 3:3 there and 2:2");
    msg.min_nodes = msg.max_nodes = 2;
    join(&a, msg);
    hear(&a, NODE_STOP); /* it never was in such a round */
    hang_up(&a);
}
END_TEST

/* Who was refused has described no job. */
START_TEST(first_node_that_is_refused_leaves_no_job_behind)
{
    struct node_msg msg = join_of(0, "job", 5, 5);
    struct agent a;

    begin(NULL, NULL);
    msg.nproc = 0;
    refuse(msg, "it has 0 workers");
    join(&a, join_of(0, "job", 1, 1));
    begin_round(&a, 1);
    hang_up(&a);
}
END_TEST

START_TEST(lack_of_a_secret_is_said_once)
{
    struct agent a, b;
    const char *said;

    begin(NULL, NULL);
    join(&a, join_of(0, "job", 2, 2));
    said = strstr(log_text, "there is no secret");
    ck_assert_ptr_nonnull(said);
    join(&b, join_of(1, "other", 2, 2));
    ck_assert_ptr_null(strstr(said + 1, "there is no secret"));
    hang_up(&a);
    hang_up(&b);
}
END_TEST

static const struct {
    int is_static, min_nodes, max_nodes;
    const char *why;
} no_jobs[] = {
    {1, 1, 1, "its backend is static"},
    {0, 0, 1, "--nnodes=0:1: expected 1 to 65536 nodes"},
    {0, -1, 1, "--nnodes=-1:1: expected 1 to 65536 nodes"},
    {0, 3, 2, "--nnodes=3:2: expected 1 to 65536 nodes"},
    {0, 1, 65537, "--nnodes=1:65537: expected 1 to 65536 nodes"},
};

START_TEST(jobs_that_cannot_be_are_refused)
{
    struct node_msg msg = join_of(0, "job", 1, 1);

    begin(NULL, NULL);
    msg.is_static = no_jobs[_i].is_static;
    msg.min_nodes = no_jobs[_i].min_nodes;
    msg.max_nodes = no_jobs[_i].max_nodes;
    refuse(msg, no_jobs[_i].why);
}
END_TEST

static struct membership_settings one_job(int n)
{
    return (struct membership_settings){.run_id = "job",
        .min_nodes = n,
        .max_nodes = n,
        .join_timeout_ms = LONG_MS,
        .keep_alive_ms = LONG_MS,
        .keep_alive_attempts = 1};
}

START_TEST(coordinator_of_one_job_has_no_other)
{
    const struct membership_settings settings = one_job(1);
    struct node_msg welcome;
    struct agent a;

    begin(&settings, NULL);
    refuse(join_of(0, "other", 1, 1), "'other', and the job's is 'job'");
    welcome = join(&a, join_of(0, "job", 1, 1));
    ck_assert_int_eq(welcome.is_lasting, 0);
    begin_round(&a, 1);
    say(&a, (struct node_msg){.kind = NODE_ENDED, .result = NODE_SUCCEEDED});
    hear(&a, NODE_CLOSED);
    hang_up(&a);
    /* Its end is remembered. */
    refuse(join_of(1, "job", 1, 1), "the job is over: success");
}
END_TEST

START_TEST(another_version_is_refused)
{
    struct node_msg msg = join_of(0, "job", 1, 1);
    struct buf frame = frame_of(&msg);
    struct agent a;
    char bytes[NODE_FRAME_MAX];

    begin(NULL, NULL);
    memcpy(bytes, buf_bytes(&frame), frame.len);
    bytes[4]++;
    reach(&a);
    raw_send_bytes(a.fd, bytes, frame.len);
    expect_refused(&a, "it speaks version 2");
    buf_fini(&frame);
}
END_TEST

/* --- Connections -------------------------------------------------------- */

START_TEST(frames_may_come_in_any_pieces)
{
    struct node_msg msg = join_of(0, "job", 2, 2);
    struct buf frame = frame_of(&msg);
    struct agent a;

    begin(NULL, NULL);
    reach(&a);
    for (size_t i = 0; i < frame.len; i++) {
        raw_send_bytes(a.fd, buf_bytes(&frame) + i, 1);
        turn();
    }
    hear(&a, NODE_WELCOME);
    buf_fini(&frame);
    /* And many at once. */
    for (uint64_t i = 0; i < 100; i++) {
        const struct node_msg ping = {.kind = NODE_PING};

        ck_assert_int_eq(node_msg_encode(&ping, &frame), 0);
    }
    raw_send_bytes(a.fd, buf_bytes(&frame), frame.len);
    for (uint64_t i = 0; i < 100; i++)
        hear(&a, NODE_PONG);
    buf_fini(&frame);
    hang_up(&a);
}
END_TEST

/* The port has read them. */
START_TEST(frames_that_came_with_the_magic_count)
{
    struct node_msg msg = join_of(0, "job", 2, 2);
    struct buf frame = frame_of(&msg);
    struct agent a;

    begin(NULL, NULL);
    adopt(&a, raw_connect(port), buf_bytes(&frame), frame.len - (size_t)_i);
    raw_send_bytes(
        a.fd, buf_bytes(&frame) + frame.len - (size_t)_i, (size_t)_i);
    hear(&a, NODE_WELCOME);
    buf_fini(&frame);
    hang_up(&a);
}
END_TEST

static const char *const garbage[] = {
    "00000000", /* shorter than any frame */
    "03000000 0100 0000", "fd0f0000 0100", "ffffffff", /* longer */
    "04000000 0100 ffff", /* no such message */
    "04000000 0100 0d00", /* a PING without its number */
    "06000000 0100 0e00 0100", /* a LEAVE whose text ends early */
    "474554202f20485454502f312e310d0a", /* GET / HTTP/1.1 */
};

START_TEST(garbage_ends_its_connection_and_harms_nobody)
{
    struct agent a, b, stranger;

    begin(NULL, NULL);
    join(&a, join_of(0, "job", 3, 3));
    join(&b, join_of(1, "job", 3, 3));
    reach(&stranger);
    raw_send(stranger.fd, garbage[_i]);
    expect_closed(&stranger);
    raw_send(b.fd, garbage[_i]);
    expect_closed(&b);
    expect_nothing(&a);
    hang_up(&a);
}
END_TEST

/* What is said before JOIN, in its place, or by the wrong side. */
START_TEST(words_out_of_turn_end_the_connection)
{
    const struct node_msg msg = {.kind = (enum node_msg_kind)_i};
    bool is_word_of_agents = _i == NODE_READY || _i == NODE_FAILED ||
                             _i == NODE_ENDED || _i == NODE_LEAVE ||
                             _i == NODE_PING;
    struct agent stranger, a;

    begin(NULL, NULL);
    reach(&stranger);
    say(&stranger, msg);
    if (_i == NODE_JOIN)
        expect_refused(&stranger, "expected 1 to 65536 nodes");
    else
        expect_closed(&stranger);
    join(&a, join_of(0, "job", 2, 2));
    say(&a, msg);
    if (!is_word_of_agents) {
        expect_closed(&a);
        return;
    }
    if (_i == NODE_PING)
        hear(&a, NODE_PONG);
    expect_nothing(&a);
    hang_up(&a);
}
END_TEST

/* Its reason is told to the others. */
START_TEST(node_that_breaks_the_protocol_is_lost)
{
    struct agent agents[2];
    struct node_msg lost;

    begin(NULL, NULL);
    for (int i = 0; i < 2; i++)
        join(&agents[i], join_of(i, "job", 2, 2));
    begin_round(agents, 2);
    raw_send(agents[1].fd, "ffffffff");
    expect_closed(&agents[1]);
    lost = hear(&agents[0], NODE_FAILED);
    ck_assert_int_eq(lost.rank, -1);
    ck_assert_str_eq(lost.host, "node1");
    ck_assert_str_eq(lost.text, "it sent what is no frame");
    hang_up(&agents[0]);
}
END_TEST

START_TEST(node_whose_connection_is_closed_is_lost)
{
    struct agent agents[2];

    begin(NULL, NULL);
    for (int i = 0; i < 2; i++)
        join(&agents[i], join_of(i, "job", 2, 2));
    begin_round(agents, 2);
    hang_up(&agents[0]);
    ck_assert_str_eq(
        hear(&agents[1], NODE_FAILED).text, "its connection was closed");
    hang_up(&agents[1]);
}
END_TEST

/* It has said all that it had to, and goes without a look at what it was sent:
 * the connection is reset while there is more for it. */
START_TEST(last_words_are_heard_after_a_reset)
{
    struct agent agents[3];

    begin(NULL, NULL);
    for (int i = 0; i < 3; i++) {
        struct node_msg msg = join_of(i, "job", 1, 3);

        msg.last_call_ms = LONG_MS;
        join(&agents[i], msg);
    }
    begin_round(agents, 3);
    say(&agents[0], (struct node_msg){.kind = NODE_LEAVE});
    hear(&agents[2], NODE_STOP);
    turn();
    /* The next message for it is written when the poller runs again. */
    say(&agents[1], (struct node_msg){.kind = NODE_PING});
    ck_assert_int_eq(poller_run(poller, PATIENCE_MS), 1);
    say(&agents[1], (struct node_msg){.kind = NODE_LEAVE});
    say(&agents[1],
        (struct node_msg){.kind = NODE_ENDED, .result = NODE_STOPPED});
    hang_up(&agents[1]);
    say(&agents[0],
        (struct node_msg){.kind = NODE_ENDED, .result = NODE_STOPPED});
    say(&agents[2],
        (struct node_msg){.kind = NODE_ENDED, .result = NODE_STOPPED});
    append_peers(&agents[2], (char[512]){""}, 512); /* and no verdict */
    ck_assert_int_eq(hear(&agents[2], NODE_ROUND).group_world_size, 1);
    ck_assert_ptr_null(strstr(log_text, "is lost"));
    hang_up(&agents[0]);
    hang_up(&agents[2]);
}
END_TEST

static void message_cb(void *arg, const struct node_msg *msg)
{
    (void)arg;
    ck_abort_msg("%s came", node_msg_name(msg->kind));
}

static void ended_cb(void *arg, const char *why)
{
    (void)arg;
    ck_abort_msg("ended: %s", why);
}

/* What group rank 0 of a job of 10,000 nodes is told at once. */
START_TEST(peers_of_large_jobs_fit_in_the_queue)
{
    static const struct node_conn_callbacks callbacks = {message_cb, ended_cb};
    struct node_msg peers = {.kind = NODE_PEERS};
    struct node_conn *conn;
    struct agent a;
    int fds[2];

    ck_assert_int_eq(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds),
        0);
    ck_assert_int_eq(
        node_conn_open(&conn, poller, fds[0], NULL, 0, &callbacks, NULL), 0);
    a.fd = fds[1];
    buf_init(&a.in, SIZE_MAX / 2);
    memset(peers.addrs, 'a', sizeof(peers.addrs) - 1);
    for (peers.round = 0; peers.round < 20000; peers.round++)
        node_conn_send(conn, &peers);
    for (int i = 0; i < 20000; i++)
        if (hear(&a, NODE_PEERS).round != i)
            ck_abort_msg("number %d is missing", i);
    node_conn_close(conn);
    hang_up(&a);
}
END_TEST

/* It asks and asks, and reads no answer. */
START_TEST(node_that_does_not_read_is_lost)
{
    const struct node_msg ping = {.kind = NODE_PING};
    struct agent agents[2];
    struct buf frames;
    size_t total = 0;
    bool is_open;

    begin(NULL, NULL);
    for (int i = 0; i < 2; i++)
        join(&agents[i], join_of(i, "job", 2, 2));
    begin_round(agents, 2);
    buf_init(&frames, SIZE_MAX / 2);
    for (int i = 0; i < 1000; i++)
        ck_assert_int_eq(node_msg_encode(&ping, &frames), 0);
    do { /* all frames are alike: it does not matter where one was cut */
        size_t at = total % frames.len;
        ssize_t n = send(agents[1].fd, buf_bytes(&frames) + at, frames.len - at,
            MSG_NOSIGNAL | MSG_DONTWAIT);

        is_open = n > 0 || errno == EAGAIN;
        total += n > 0 ? (size_t)n : 0;
        ck_assert_uint_lt(total, 1u << 30);
        ck_assert_int_ge(poller_run(poller, 0), 0);
    } while (is_open);
    ck_assert_str_eq(
        hear(&agents[0], NODE_FAILED).text, "it does not read what it is sent");
    buf_fini(&frames);
    hang_up(&agents[0]);
    hang_up(&agents[1]);
}
END_TEST

START_TEST(silent_node_is_dropped_in_time)
{
    struct node_msg msg = join_of(0, "job", 2, 2);
    struct agent a;

    msg.keep_alive_ms = msg.keep_alive_attempts = 1;
    begin(NULL, NULL);
    join(&a, msg);
    expect_closed(&a);
    /* And the job with it. */
    join(&a, join_of(0, "job", 1, 1));
    begin_round(&a, 1);
    hang_up(&a);
}
END_TEST

START_TEST(agent_may_come_over_another_connection)
{
    struct agent old, new;

    begin(NULL, NULL);
    join(&old, join_of(0, "job", 2, 2)); /* the only one there is */
    join(&new, join_of(0, "job", 2, 2));
    expect_closed(&old);
    expect_nothing(&new);
    hang_up(&new);
}
END_TEST

START_TEST(round_goes_on_at_a_coordinator_that_knows_nothing)
{
    struct node_msg msg;
    struct agent agents[2];

    begin(NULL, NULL);
    for (int i = 0; i < 2; i++) {
        msg = join_of(i, "job", 2, 2);
        msg.part = NODE_PART_OPEN;
        msg.round = 7;
        msg.round_id = 99;
        msg.restart_count = msg.round_restart_count = 3;
        msg.max_restarts = 3;
        msg.group_rank = i;
        msg.group_world_size = 2;
        join(&agents[i], msg);
    }
    for (int i = 0; i < 2; i++)
        expect_nothing(&agents[i]);
    for (int i = 0; i < 2; i++)
        say(&agents[i], (struct node_msg){.kind = NODE_ENDED, .round = 7});
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(hear(&agents[i], NODE_CLOSED).result, 0);
        hang_up(&agents[i]);
    }
}
END_TEST

START_TEST(end_of_the_coordinator_closes_all)
{
    struct agent member, stranger;
    struct node_msg msg;

    begin(NULL, NULL);
    join(&member, join_of(0, "job", 1, 1));
    reach(&stranger);
    coordinator_destroy(coordinator, "the test is over");
    coordinator = NULL;
    /* What it had been told was sent. */
    do {
        ck_assert(hear_any(&member, &msg));
    } while (msg.kind == NODE_PEERS);
    ck_assert_int_eq(msg.kind, NODE_PREPARE);
    expect_closed(&member);
    expect_closed(&stranger);
}
END_TEST

/* --- Secrets ------------------------------------------------------------ */

static struct token *load_token(const char *secret)
{
    struct token *token = NULL;
    char folder[64], path[96];
    FILE *f;

    umask(077);
    snprintf(folder, sizeof(folder), "/tmp/test_coordinator.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/secret", folder);
    f = fopen(path, "we");
    ck_assert_ptr_nonnull(f);
    fputs(secret, f);
    ck_assert_int_eq(fclose(f), 0);
    ck_assert_msg(token_load(&token, path, &e) == 0, "%s", e.msg);
    remove(path);
    ck_assert_int_eq(rmdir(folder), 0);
    return token;
}

/* JOIN, with a proof for this connection. */
static struct node_msg prove(const struct agent *a, const struct token *token)
{
    struct node_msg msg = join_of(0, "job", 2, 2);

    msg.has_token = 1;
    memset(msg.nonce, 42, sizeof(msg.nonce));
    token_prove(token, TOKEN_AGENT, msg.nonce, a->nonce, msg.run_id, msg.proof);
    return msg;
}

START_TEST(both_sides_prove_that_they_know_the_secret)
{
    struct token *token = load_token("right");
    struct node_msg msg, welcome;
    struct agent a;

    begin(NULL, token);
    reach(&a);
    msg = prove(&a, token);
    say(&a, msg);
    welcome = hear(&a, NODE_WELCOME);
    ck_assert(token_check(token, TOKEN_COORDINATOR, msg.nonce, a.nonce,
        msg.run_id, welcome.proof));
    ck_assert_ptr_null(strstr(log_text, "there is no secret"));
    hang_up(&a);
    coordinator_destroy(coordinator, "the test is over");
    coordinator = NULL;
    token_free(token);
}
END_TEST

START_TEST(who_does_not_know_the_secret_is_refused)
{
    struct token *token = load_token("right");
    struct token *wrong = load_token("wrong");
    struct node_msg msg;
    struct agent a, b;

    begin(NULL, token);
    reach(&a);
    msg = prove(&a, wrong);
    say(&a, msg);
    expect_refused(&a, "its secret (--token_file) is not the one");
    refuse(join_of(0, "job", 2, 2), "it has no secret, and the coordinator");
    /* The proof of another connection. */
    reach(&a);
    reach(&b);
    msg = prove(&a, token);
    say(&b, msg);
    expect_refused(&b, "its secret (--token_file) is not the one");
    /* Of another job. */
    strcpy(msg.run_id, "other");
    say(&a, msg);
    expect_refused(&a, "its secret (--token_file) is not the one");
    /* Of the other side. */
    reach(&a);
    msg = prove(&a, token);
    token_prove(
        token, TOKEN_COORDINATOR, msg.nonce, a.nonce, msg.run_id, msg.proof);
    say(&a, msg);
    expect_refused(&a, "its secret (--token_file) is not the one");
    coordinator_destroy(coordinator, "the test is over");
    coordinator = NULL;
    token_free(token);
    token_free(wrong);
}
END_TEST

START_TEST(secret_that_the_coordinator_does_not_know_is_refused)
{
    struct node_msg msg = join_of(0, "job", 2, 2);

    begin(NULL, NULL);
    msg.has_token = 1;
    refuse(msg, "it has a secret (--token_file), and the coordinator has none");
}
END_TEST

/* --- Addresses ---------------------------------------------------------- */

static bool is_in_list(const char *list, const char *addr)
{
    size_t len = strlen(addr);

    for (const char *p = list; (p = strstr(p, addr)) != NULL; p += len)
        if ((p == list || p[-1] == ' ') && (p[len] == ' ' || p[len] == '\0'))
            return true;
    return false;
}

START_TEST(declared_address_is_the_one_that_others_see)
{
    struct node_msg msg = join_of(0, "job", 2, 2);
    struct agent a, b;
    char peers[1024];

    begin(NULL, NULL);
    strcpy(msg.addr, "name.example");
    strcpy(msg.addrs, "10.1.2.3 10.1.2.4");
    join(&a, msg);
    join(&b, join_of(1, "job", 2, 2));
    append_peers(&a, peers, sizeof(peers));
    ck_assert(is_in_list(peers, "name.example"));
    ck_assert(is_in_list(peers, "127.0.0.1")); /* as it was seen */
    ck_assert(is_in_list(peers, "10.1.2.3"));
    ck_assert(is_in_list(peers, "10.1.2.4"));
    msg = hear(&a, NODE_ROUND);
    ck_assert_str_eq(msg.addr, "name.example");
    ck_assert_str_eq(msg.master_addr, "name.example");
    ck_assert_int_eq(msg.master_port, 4000);
    msg = hear(&b, NODE_ROUND);
    ck_assert_str_eq(msg.addr, "127.0.0.1");
    ck_assert_str_eq(msg.master_addr, "name.example");
    hang_up(&a);
    hang_up(&b);
}
END_TEST

/* Where there is no room for all of them the last ones are left out, and none
 * of them is cut to another one. */
START_TEST(addresses_are_left_out_as_a_whole)
{
    struct node_msg msg = join_of(0, "job", 1, 1);
    char peers[1024], addr[32];
    struct agent a;
    size_t len = 0;
    int n = 0;

    for (int i = 0; len + 13 + 1 <= sizeof(msg.addrs) - 1; i++)
        len += (size_t)snprintf(msg.addrs + len, sizeof(msg.addrs) - len,
            "10.100.100.%d ", 100 + i);
    msg.addrs[len - 1] = '\0';
    begin(NULL, NULL);
    join(&a, msg);
    append_peers(&a, peers, sizeof(peers));
    for (char *rest = peers, *word; (word = strsep(&rest, " ")) != NULL;) {
        if (*word == '\0' || strcmp(word, "127.0.0.1") == 0)
            continue;
        snprintf(addr, sizeof(addr), "10.100.100.%d", 100 + n++);
        ck_assert_str_eq(word, addr);
    }
    ck_assert_int_gt(n, 10);
    hang_up(&a);
}
END_TEST

/* An IPv4 address that a dual-stack socket shows is told as what it is. */
START_TEST(mapped_addresses_are_told_as_ipv4)
{
    struct sockaddr_in6 sin6 = {.sin6_family = AF_INET6};
    socklen_t len = sizeof(sin6);
    struct agent a;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

    inet_pton(AF_INET6, "::ffff:127.0.0.1", &sin6.sin6_addr);
    if (fd < 0 || bind(fd, (struct sockaddr *)&sin6, len) < 0) {
        fprintf(stderr, "skipped a test: no IPv6 here\n");
        if (fd >= 0)
            close(fd);
        return;
    }
    close(listen_fd);
    listen_fd = fd;
    ck_assert_int_eq(listen(fd, 16), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&sin6, &len), 0);
    port = ntohs(sin6.sin6_port);
    begin(NULL, NULL);
    join(&a, join_of(0, "job", 1, 1));
    append_peers(&a, (char[512]){""}, 512);
    ck_assert_str_eq(hear(&a, NODE_ROUND).addr, "127.0.0.1");
    hang_up(&a);
}
END_TEST

START_TEST(local_sockets_have_no_address)
{
    static const struct node_conn_callbacks none = {NULL, NULL};
    char peer[NODE_ADDR_MAX], own[NODE_ADDR_MAX];
    struct node_conn *conn;
    int fds[2];

    ck_assert_int_eq(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds),
        0);
    ck_assert_int_eq(
        node_conn_open(&conn, poller, fds[0], NULL, 0, &none, NULL), 0);
    node_conn_addresses(conn, peer, own);
    ck_assert_str_eq(peer, "");
    ck_assert_str_eq(own, "");
    node_conn_close(conn);
    close(fds[1]);
}
END_TEST

static void add_address(const char *label, const char *addr)
{
    struct sockaddr_in sin = {.sin_family = AF_INET};
    struct ifreq ifr = {0};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "%s", label);
    inet_pton(AF_INET, addr, &sin.sin_addr);
    memcpy(&ifr.ifr_addr, &sin, sizeof(sin));
    ck_assert_int_eq(ioctl(fd, SIOCSIFADDR, &ifr), 0);
    close(fd);
}

static void join_from(struct agent *a, const char *from, const char *to,
    const struct node_msg *msg)
{
    struct sockaddr_in src = {.sin_family = AF_INET};
    struct sockaddr_in dst = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    inet_pton(AF_INET, from, &src.sin_addr);
    inet_pton(AF_INET, to, &dst.sin_addr);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&src, sizeof(src)), 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&dst, sizeof(dst)), 0);
    adopt(a, fd, NULL, 0);
    say(a, *msg);
    hear(a, NODE_WELCOME);
}

/* Of a node on the coordinator's host others see another address than the
 * loopback one that it came from: the first node from elsewhere shows which. */
START_TEST(nodes_beside_the_coordinator_have_its_address)
{
    static const struct {
        const char *from, *to, *declared, *want;
    } conns[] = {
        {"127.0.0.1", "127.0.0.1", "", "10.0.0.1"},
        {"10.0.0.2", "10.0.0.1", "", "10.0.0.2"},
        {"127.0.0.1", "127.0.0.1", "", "10.0.0.1"},
        {"10.0.0.3", "10.0.0.4", "", "10.0.0.3"}, /* the first one counts */
        {"127.0.0.1", "127.0.0.1", "10.9.9.9", "10.9.9.9"},
        {"127.0.0.1", "127.0.0.1", "", "10.0.0.1"},
    };
    struct sockaddr_in any = {.sin_family = AF_INET};
    socklen_t len = sizeof(any);
    struct agent agents[LENGTH_OF(conns)];
    char peers[1024];

    if (!enter_private_network())
        return;
    add_address("lo:1", "10.0.0.1");
    add_address("lo:2", "10.0.0.2");
    add_address("lo:3", "10.0.0.3");
    add_address("lo:4", "10.0.0.4");
    close(listen_fd);
    listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(listen_fd, (struct sockaddr *)&any, len), 0);
    ck_assert_int_eq(listen(listen_fd, 16), 0);
    ck_assert_int_eq(getsockname(listen_fd, (struct sockaddr *)&any, &len), 0);
    port = ntohs(any.sin_port);
    begin(NULL, NULL);
    for (int i = 0; i < (int)LENGTH_OF(conns); i++) {
        struct node_msg msg =
            join_of(i, "job", LENGTH_OF(conns), LENGTH_OF(conns));

        strcpy(msg.addr, conns[i].declared);
        join_from(&agents[i], conns[i].from, conns[i].to, &msg);
    }
    append_peers(&agents[0], peers, sizeof(peers));
    for (size_t i = 0; i < LENGTH_OF(conns); i++) {
        struct node_msg msg = hear(&agents[i], NODE_ROUND);

        ck_assert_str_eq(msg.addr, conns[i].want);
        ck_assert_str_eq(msg.master_addr, "10.0.0.1");
        ck_assert(is_in_list(peers, conns[i].want));
        ck_assert(is_in_list(peers, conns[i].from));
        hang_up(&agents[i]);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("coordinator");
    TCase *t = tcase_create("jobs");

    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, agents_are_greeted_each_with_a_number_of_its_own);
    tcase_add_test(t, job_begins_and_ends);
    tcase_add_test(t, jobs_are_told_apart_by_their_run_ids);
    tcase_add_test(t, job_is_gone_with_its_last_node);
    tcase_add_test(t, job_is_kept_for_those_who_come_back);
    tcase_add_test(t, first_node_that_is_refused_leaves_no_job_behind);
    tcase_add_test(t, lack_of_a_secret_is_said_once);
    tcase_add_loop_test(
        t, jobs_that_cannot_be_are_refused, 0, LENGTH_OF(no_jobs));
    tcase_add_test(t, coordinator_of_one_job_has_no_other);
    tcase_add_test(t, another_version_is_refused);
    suite_add_tcase(s, t);
    t = tcase_create("connections");
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, frames_may_come_in_any_pieces);
    tcase_add_loop_test(t, frames_that_came_with_the_magic_count, 0, 2);
    tcase_add_loop_test(
        t, garbage_ends_its_connection_and_harms_nobody, 0, LENGTH_OF(garbage));
    tcase_add_loop_test(
        t, words_out_of_turn_end_the_connection, 0, NODE_MSG_COUNT);
    tcase_add_test(t, node_that_breaks_the_protocol_is_lost);
    tcase_add_test(t, node_whose_connection_is_closed_is_lost);
    tcase_add_test(t, last_words_are_heard_after_a_reset);
    tcase_add_test(t, peers_of_large_jobs_fit_in_the_queue);
    tcase_add_test(t, node_that_does_not_read_is_lost);
    tcase_add_test(t, silent_node_is_dropped_in_time);
    tcase_add_test(t, agent_may_come_over_another_connection);
    tcase_add_test(t, round_goes_on_at_a_coordinator_that_knows_nothing);
    tcase_add_test(t, end_of_the_coordinator_closes_all);
    tcase_set_timeout(t, 60);
    suite_add_tcase(s, t);
    t = tcase_create("secrets");
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, both_sides_prove_that_they_know_the_secret);
    tcase_add_test(t, who_does_not_know_the_secret_is_refused);
    tcase_add_test(t, secret_that_the_coordinator_does_not_know_is_refused);
    suite_add_tcase(s, t);
    t = tcase_create("addresses");
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, declared_address_is_the_one_that_others_see);
    tcase_add_test(t, addresses_are_left_out_as_a_whole);
    tcase_add_test(t, mapped_addresses_are_told_as_ipv4);
    tcase_add_test(t, local_sockets_have_no_address);
    tcase_add_test(t, nodes_beside_the_coordinator_have_its_address);
    suite_add_tcase(s, t);
    return unit_run_suite(s);
}
