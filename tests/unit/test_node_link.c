/*
 * An agent's link on a real loop. The coordinator is the test itself: it
 * listens on loopback and says what it likes, while the loop is run for as
 * long as it waits for the link.
 */
#include "agent/node_link.h"

#include <sys/stat.h>

#include "rendezvous/base/log.h"
#include "rendezvous/listen.h"
#include "rendezvous/store_sniff.h"
#include "test_store_net.h"
#include "unit.h"

/* Nobody is silent for that long here. */
#define LONG_MS 600000
#define RUN_ID "job-17"

/* The coordinator's end of a connection. */
struct peer {
    int fd;
    struct buf in;
};

static uv_loop_t loop;
static uv_timer_t patience;
static struct node_link *node_link;
static struct node_link_settings settings;
static struct token *token;
static int reserved_fds[LISTEN_MAX], nreserved; /* they keep the port */
static int listen_fd, port;
static char done[512]; /* what the link has called since the last look */
static char why[1024]; /* of lost() or ended() */
static struct node_msg latest; /* of message() */
static int njoins, nlooked_up;

/* --- The link's owner --------------------------------------------------- */

static void drop_log(const char *line, size_t len, void *arg)
{
    (void)line;
    (void)len;
    (void)arg;
}

static void note(const char *what)
{
    size_t len = strlen(done);

    snprintf(done + len, sizeof(done) - len, "%s%s", len > 0 ? " " : "", what);
}

static void looked_up_cb(void *arg, const struct addrinfo *addresses)
{
    (void)arg;
    ck_assert_ptr_nonnull(addresses);
    nlooked_up++;
}

/* Each time something else. */
static void join_cb(void *arg, struct node_msg *join)
{
    (void)arg;
    join->round = 100 + ++njoins;
    note("join");
}

static void message_cb(void *arg, const struct node_msg *msg)
{
    (void)arg;
    latest = *msg;
    note(node_msg_name(msg->kind));
}

static void lost_cb(void *arg, const char *text)
{
    (void)arg;
    snprintf(why, sizeof(why), "%s", text);
    note("lost");
}

static void ended_cb(void *arg, const char *text)
{
    (void)arg;
    snprintf(why, sizeof(why), "%s", text);
    note("ended");
}

static void await_done(const char *what)
{
    while (
        strlen(done) < strlen(what) && strncmp(done, what, strlen(done)) == 0)
        uv_run(&loop, UV_RUN_ONCE);
}

/* That is done, in this order, and nothing else. */
#define expect(what)                                                           \
    do {                                                                       \
        await_done(what);                                                      \
        ck_assert_str_eq(done, what);                                          \
        done[0] = '\0';                                                        \
    } while (0)

/* The sentence about the coordinator begins like that behind its address. */
static void expect_why(const char *text)
{
    char start[256];

    snprintf(start, sizeof(start), "the coordinator at 127.0.0.1 port %d %s",
        port, text);
    ck_assert_msg(
        strncmp(why, start, strlen(start)) == 0, "%s, not %s", why, start);
}

static void load_token(void)
{
    char folder[] = "/tmp/test_node_link.XXXXXX";
    char path[sizeof(folder) + 16];
    struct err e = {0};
    FILE *f;

    umask(077);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/secret", folder);
    f = fopen(path, "we");
    ck_assert_ptr_nonnull(f);
    fputs("correct horse battery staple", f);
    ck_assert_int_eq(fclose(f), 0);
    ck_assert_msg(token_load(&token, path, &e) == 0, "%s", e.msg);
    remove(path);
    ck_assert_int_eq(rmdir(folder), 0);
    settings.token = token;
}

static void begin(void)
{
    static const struct node_link_callbacks callbacks = {
        join_cb, message_cb, lost_cb, ended_cb};

    ck_assert_int_eq(
        node_link_create(&node_link, &loop, &settings, &callbacks, NULL), 0);
}

/* --- The coordinator ---------------------------------------------------- */

/* At the port that is kept. */
static void start_listening(void)
{
    struct sockaddr_in sin = {.sin_family = AF_INET,
        .sin_port = htons((uint16_t)port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;

    listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_ge(listen_fd, 0);
    ck_assert_int_eq(
        setsockopt(listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), 0);
    ck_assert_msg(bind(listen_fd, (struct sockaddr *)&sin, sizeof(sin)) == 0,
        "bind: %s", strerror(errno));
    ck_assert_int_eq(listen(listen_fd, 16), 0);
}

static void stop_listening(void)
{
    ck_assert_int_eq(close(listen_fd), 0);
    listen_fd = -1;
}

static void is_ready_cb(uv_poll_t *ear, int status, int events)
{
    bool *is_ready = ear->data;

    (void)status;
    (void)events;
    *is_ready = true;
    uv_poll_stop(ear);
}

/* Runs the loop, and the link on it, until then. */
static void await_readable(int fd)
{
    bool is_ready = false;
    uv_poll_t ear;

    ck_assert_int_eq(uv_poll_init(&loop, &ear, fd), 0);
    ear.data = &is_ready;
    ck_assert_int_eq(uv_poll_start(&ear, UV_READABLE, is_ready_cb), 0);
    while (!is_ready)
        uv_run(&loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&ear, NULL);
    uv_run(&loop, UV_RUN_NOWAIT); /* it is closed at the end of a turn */
}

/* False: the connection has ended. */
static bool read_more(struct peer *p)
{
    char *at = buf_reserve(&p->in, NODE_FRAME_MAX);
    ssize_t n;

    ck_assert_ptr_nonnull(at);
    await_readable(p->fd);
    n = recv(p->fd, at, NODE_FRAME_MAX, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno == ECONNRESET))
        return false;
    ck_assert_msg(n > 0, "recv: %s", strerror(errno));
    buf_added(&p->in, (size_t)n);
    return true;
}

static bool hear_any(struct peer *p, struct node_msg *msg)
{
    for (;;) {
        int n = node_msg_decode(msg, buf_bytes(&p->in), p->in.len);

        ck_assert_int_ge(n, 0);
        if (n > 0) {
            buf_consume(&p->in, (size_t)n);
            return true;
        }
        if (!read_more(p))
            return false;
    }
}

static struct node_msg hear(struct peer *p, enum node_msg_kind kind)
{
    struct node_msg msg;

    ck_assert_msg(
        hear_any(p, &msg), "closed, before %s came", node_msg_name(kind));
    ck_assert_msg(msg.kind == kind, "%s came, and not %s",
        node_msg_name(msg.kind), node_msg_name(kind));
    return msg;
}

static void say(struct peer *p, struct node_msg msg)
{
    struct buf frame;

    buf_init(&frame, NODE_FRAME_MAX);
    ck_assert_int_eq(node_msg_encode(&msg, &frame), 0);
    raw_send_bytes(p->fd, buf_bytes(&frame), frame.len);
    buf_fini(&frame);
}

static void hang_up(struct peer *p)
{
    ck_assert_int_eq(close(p->fd), 0);
    buf_fini(&p->in);
}

/* The link has closed, and said nothing more. */
static void expect_closed(struct peer *p)
{
    struct node_msg msg;

    ck_assert_msg(
        !hear_any(p, &msg), "%s came, not the end", node_msg_name(msg.kind));
    hang_up(p);
}

/* A connection, and the bytes by which an agent is known. */
static void reach(struct peer *p)
{
    await_readable(listen_fd);
    p->fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(p->fd, 0);
    buf_init(&p->in, SIZE_MAX / 2);
    while (p->in.len < SNIFF_AGENT_MAGIC_LEN)
        ck_assert(read_more(p));
    ck_assert_mem_eq(
        buf_bytes(&p->in), sniff_agent_magic, SNIFF_AGENT_MAGIC_LEN);
    buf_consume(&p->in, SNIFF_AGENT_MAGIC_LEN);
}

/* With a number that is as good as any. */
static struct node_msg hello_of(uint8_t number)
{
    struct node_msg hello = {.kind = NODE_HELLO};

    memset(hello.nonce, number, sizeof(hello.nonce));
    return hello;
}

static struct node_msg greet(struct peer *p)
{
    reach(p);
    say(p, hello_of(1));
    return hear(p, NODE_JOIN);
}

/* To that JOIN behind hello_of(number). */
static struct node_msg welcome_of(
    const struct node_msg *join, uint8_t number, bool is_lasting)
{
    struct node_msg welcome = {.kind = NODE_WELCOME,
        .keep_alive_ms = LONG_MS,
        .keep_alive_attempts = 3,
        .is_lasting = is_lasting};

    if (token != NULL)
        token_prove(token, TOKEN_COORDINATOR, join->nonce,
            hello_of(number).nonce, join->run_id, welcome.proof);
    return welcome;
}

static void let_in(struct peer *p, bool is_lasting)
{
    struct node_msg join = greet(p);

    say(p, welcome_of(&join, 1, is_lasting));
    expect("join WELCOME");
}

static struct node_msg round_msg(int round)
{
    return (struct node_msg){.kind = NODE_ROUND, .round = round};
}

/* --- The fixture -------------------------------------------------------- */

static void impatient_cb(uv_timer_t *timer)
{
    (void)timer;
    ck_abort_msg("nothing happens behind '%s'", done);
}

static void set_up(void)
{
    struct err e = {0};

    log_set_writer(drop_log, NULL);
    nreserved = listen_reserve("127.0.0.1", 0, reserved_fds, &port, &e);
    ck_assert_msg(nreserved > 0, "%s", e.msg);
    start_listening();
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    uv_timer_init(&loop, &patience);
    uv_timer_start(&patience, impatient_cb, PATIENCE_MS, 0);
    settings = (struct node_link_settings){.host = "127.0.0.1",
        .port = port,
        .join_timeout_ms = LONG_MS,
        .coordinator_timeout_ms = LONG_MS,
        .looked_up = looked_up_cb,
        .join = {
            .kind = NODE_JOIN, .nproc = 3, .run_id = RUN_ID, .host = "node-7"}};
}

/* Wherever a test has left the link: nothing of it stays in the loop, and
 * nobody is called any more. */
static void tear_down(void)
{
    node_link_destroy(node_link);
    uv_close((uv_handle_t *)&patience, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    ck_assert_str_eq(done, "");
    token_free(token);
    if (listen_fd >= 0)
        close(listen_fd);
    for (int i = 0; i < nreserved; i++)
        close(reserved_fds[i]);
}

/* --- Coming in ---------------------------------------------------------- */

START_TEST(link_joins_and_hands_on_what_it_hears)
{
    static const uint8_t zeros[TOKEN_NONCE_LEN];
    struct node_msg join;
    struct peer p;

    begin();
    join = greet(&p);
    ck_assert_int_eq(nlooked_up, 1);
    ck_assert_str_eq(join.run_id, RUN_ID);
    ck_assert_str_eq(join.host, "node-7");
    ck_assert_int_eq(join.nproc, 3);
    ck_assert_int_eq(join.round, 101); /* join_cb() has added that */
    ck_assert_int_eq(join.has_token, 0);
    ck_assert_mem_ne(join.nonce, zeros, sizeof(zeros));
    say(&p, welcome_of(&join, 1, false));
    expect("join WELCOME");
    ck_assert_int_eq(latest.keep_alive_ms, LONG_MS);
    say(&p, round_msg(4));
    expect("ROUND");
    ck_assert_int_eq(latest.round, 4);
    say(&p, (struct node_msg){.kind = NODE_PONG}); /* is for the link alone */
    say(&p, (struct node_msg){.kind = NODE_STOP, .round = 5});
    expect("STOP");
    ck_assert_int_eq(latest.round, 5);
    node_link_send(
        node_link, &(struct node_msg){.kind = NODE_READY, .round = 6});
    ck_assert_int_eq(hear(&p, NODE_READY).round, 6);
    hang_up(&p);
    expect("ended");
}
END_TEST

START_TEST(welcome_without_a_join_is_ignored)
{
    struct node_msg join = {0};
    struct peer p;

    begin();
    reach(&p);
    say(&p, welcome_of(&join, 1, true));
    say(&p, round_msg(1));
    say(&p, hello_of(1));
    expect("join");
    join = hear(&p, NODE_JOIN);
    say(&p, welcome_of(&join, 1, true));
    say(&p, round_msg(2));
    expect("WELCOME ROUND");
    ck_assert_int_eq(latest.round, 2);
    hang_up(&p);
    expect("lost");
}
END_TEST

START_TEST(nothing_is_handed_on_before_welcome)
{
    struct node_msg join;
    struct peer p;

    begin();
    join = greet(&p);
    say(&p, round_msg(1));
    say(&p, welcome_of(&join, 1, false));
    expect("join WELCOME");
    hang_up(&p);
    expect("ended");
}
END_TEST

START_TEST(second_hello_is_ignored)
{
    struct node_msg join;
    struct peer p;

    load_token();
    begin();
    join = greet(&p);
    say(&p, hello_of(2));
    say(&p, welcome_of(&join, 1, false)); /* the first one still counts */
    expect("join WELCOME");
    node_link_send(node_link, &(struct node_msg){.kind = NODE_READY});
    hear(&p, NODE_READY); /* no JOIN came before it */
    hang_up(&p);
    expect("ended");
}
END_TEST

/* In each state of a connection. */
START_TEST(refused_link_ends)
{
    struct peer p;

    begin();
    if (_i == 0) {
        reach(&p);
    } else if (_i == 1) {
        greet(&p);
        expect("join");
    } else {
        let_in(&p, true);
    }
    say(&p, (struct node_msg){.kind = NODE_REFUSED, .text = "there is one"});
    say(&p, round_msg(1));
    expect("ended");
    expect_why("refuses this node: there is one");
    expect_closed(&p);
}
END_TEST

START_TEST(nobody_listens)
{
    stop_listening();
    settings.join_timeout_ms = 3;
    begin();
    expect("ended");
    expect_why("cannot be reached within ");
    ck_assert_msg(strstr(why, ": Connection refused") != NULL, "%s", why);
}
END_TEST

START_TEST(link_waits_for_somebody_to_listen)
{
    struct peer p;

    stop_listening();
    begin();
    while (nlooked_up < 2) /* the first attempt has failed */
        uv_run(&loop, UV_RUN_ONCE);
    start_listening();
    let_in(&p, false);
    hang_up(&p);
    expect("ended");
}
END_TEST

/* --- Secrets ------------------------------------------------------------ */

static void expect_stranger(struct peer *p)
{
    char text[256];

    expect("ended");
    snprintf(text, sizeof(text),
        "whoever answers at 127.0.0.1 port %d does not know this job's secret "
        "(--token_file)",
        port);
    ck_assert_str_eq(why, text);
    expect_closed(p);
}

START_TEST(both_sides_prove_that_they_know_the_secret)
{
    struct node_msg join, hello = hello_of(1);
    struct peer p;

    load_token();
    begin();
    join = greet(&p);
    ck_assert_int_eq(join.has_token, 1);
    ck_assert(token_check(
        token, TOKEN_AGENT, join.nonce, hello.nonce, RUN_ID, join.proof));
    say(&p, welcome_of(&join, 1, false));
    say(&p, round_msg(1));
    expect("join WELCOME ROUND");
    hang_up(&p);
    expect("ended");
}
END_TEST

/* A bit that is wrong, none at all, the agent's own, or for another number. */
START_TEST(welcome_with_a_wrong_proof_ends_the_link)
{
    struct node_msg join, welcome;
    struct peer p;

    load_token();
    begin();
    join = greet(&p);
    expect("join");
    welcome = welcome_of(&join, _i == 3 ? 2 : 1, true);
    if (_i == 0)
        welcome.proof[TOKEN_PROOF_LEN - 1] ^= 1;
    else if (_i == 1)
        memset(welcome.proof, 0, sizeof(welcome.proof));
    else if (_i == 2)
        memcpy(welcome.proof, join.proof, sizeof(welcome.proof));
    say(&p, welcome);
    say(&p, round_msg(1));
    expect_stranger(&p);
}
END_TEST

/* Somebody who has listened to the first connection, and takes the next. */
START_TEST(welcome_of_an_earlier_connection_is_not_believed)
{
    struct node_msg join, welcome;
    struct peer p;

    load_token();
    begin();
    join = greet(&p);
    welcome = welcome_of(&join, 1, true);
    say(&p, welcome);
    expect("join WELCOME");
    hang_up(&p);
    expect("lost");
    reach(&p);
    say(&p, welcome);
    say(&p, round_msg(1));
    say(&p, hello_of(1)); /* the same, too */
    expect("join");
    hear(&p, NODE_JOIN);
    say(&p, welcome);
    say(&p, round_msg(2));
    expect_stranger(&p);
}
END_TEST

/* --- Losing it ---------------------------------------------------------- */

START_TEST(lost_coordinator_is_joined_again)
{
    struct node_msg first, second;
    struct peer p;

    begin();
    first = greet(&p);
    say(&p, welcome_of(&first, 1, true));
    expect("join WELCOME");
    hang_up(&p);
    expect("lost");
    expect_why("is lost: its connection was closed");
    node_link_send(node_link, &(struct node_msg){.kind = NODE_READY});
    second = greet(&p); /* nothing came before JOIN */
    ck_assert_int_eq(second.round, 102); /* join_cb() was asked again */
    ck_assert_str_eq(second.host, "node-7");
    ck_assert_mem_ne(first.nonce, second.nonce, sizeof(first.nonce));
    ck_assert_int_eq(nlooked_up, 1); /* that is for the first time only */
    say(&p, welcome_of(&second, 1, false));
    say(&p, round_msg(8));
    expect("join WELCOME ROUND");
    hang_up(&p);
    expect("ended"); /* what it said last counts */
    expect_why("is lost: its connection was closed");
}
END_TEST

START_TEST(coordinator_that_is_not_lasting_is_lost_for_good)
{
    struct peer p;

    begin();
    let_in(&p, false);
    hang_up(&p);
    expect("ended");
    expect_why("is lost: its connection was closed");
}
END_TEST

START_TEST(lost_coordinator_does_not_come_back)
{
    struct peer p;

    settings.coordinator_timeout_ms = 3;
    begin();
    let_in(&p, true);
    stop_listening();
    hang_up(&p);
    expect("lost ended");
    expect_why("was lost, and is not back after 0.003 s: ");
}
END_TEST

/* It is told that the node goes on, if it may come back. */
START_TEST(silent_coordinator_is_lost)
{
    bool is_lasting = _i == 1;
    struct node_msg join, welcome, msg;
    struct peer p;

    begin();
    join = greet(&p);
    welcome = welcome_of(&join, 1, is_lasting);
    welcome.keep_alive_ms = 2;
    welcome.keep_alive_attempts = 2;
    stop_listening();
    say(&p, welcome);
    expect(is_lasting ? "join WELCOME lost" : "join WELCOME ended");
    expect_why("is lost: nothing was heard of it for 0.004 s");
    msg.kind = NODE_PING;
    while (msg.kind == NODE_PING && hear_any(&p, &msg))
        ;
    ck_assert_int_eq(msg.kind, is_lasting ? NODE_AWAY : NODE_PING);
    if (is_lasting)
        expect_closed(&p);
    else
        hang_up(&p);
}
END_TEST

START_TEST(link_gives_signs_of_life)
{
    struct node_msg join, welcome;
    struct peer p;

    begin();
    join = greet(&p);
    welcome = welcome_of(&join, 1, false);
    welcome.keep_alive_ms = 2;
    welcome.keep_alive_attempts = LONG_MS;
    say(&p, welcome);
    hear(&p, NODE_PING);
    hear(&p, NODE_PING);
    say(&p, (struct node_msg){.kind = NODE_PONG});
    expect("join WELCOME");
    hang_up(&p);
    expect("ended");
}
END_TEST

/* --- Leaving ------------------------------------------------------------ */

START_TEST(node_may_leave_before_it_is_in)
{
    struct node_msg leave = {.kind = NODE_LEAVE, .text = "was asked to"};
    struct node_msg join;
    struct peer p;

    begin();
    reach(&p);
    node_link_send(node_link, &leave); /* nobody knows of it yet */
    say(&p, hello_of(1));
    join = hear(&p, NODE_JOIN);
    node_link_send(node_link, &(struct node_msg){.kind = NODE_READY});
    node_link_send(node_link, &leave);
    ck_assert_str_eq(hear(&p, NODE_LEAVE).text, "was asked to");
    say(&p, welcome_of(&join, 1, false));
    expect("join WELCOME");
    hang_up(&p);
    expect("ended");
}
END_TEST

START_TEST(node_that_is_through_does_not_join)
{
    struct peer p;

    begin();
    reach(&p);
    say(&p, hello_of(1)); /* which the link has not read */
    node_link_finish(node_link);
    expect_closed(&p);
    node_link_send(node_link, &(struct node_msg){.kind = NODE_LEAVE});
}
END_TEST

START_TEST(node_that_is_through_at_once_calls_nobody)
{
    begin();
    node_link_finish(node_link);
    uv_run(&loop, UV_RUN_NOWAIT); /* an attempt would begin in this turn */
    ck_assert_int_eq(nlooked_up, 0);
    ck_assert_int_lt(accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC), 0);
    ck_assert_int_eq(errno, EAGAIN);
}
END_TEST

START_TEST(node_that_is_through_after_join_hears_the_rest)
{
    struct node_msg join;
    struct peer p;

    begin();
    join = greet(&p);
    node_link_finish(node_link);
    say(&p, welcome_of(&join, 1, false));
    expect("join WELCOME");
    node_link_finish(node_link);
    say(&p, (struct node_msg){.kind = NODE_CLOSED});
    expect("CLOSED");
    hang_up(&p);
    expect("ended");
}
END_TEST

/* --- Destroying --------------------------------------------------------- */

enum stage {
    STAGE_NONE,
    STAGE_CREATED,
    STAGE_LOOKING_UP,
    STAGE_CONNECTING,
    STAGE_CONNECTED,
    STAGE_JOINED,
    STAGE_UP,
    STAGE_LOST,
    STAGE_BACK,
    STAGE_COUNT
};

/* The link's end of p is closed by it; the rest is for tear_down(). Those that
 * have ended or are through are destroyed by the tests above. */
START_TEST(link_is_destroyed_at_any_stage)
{
    enum stage stage = (enum stage)_i;
    struct peer p = {.fd = -1};

    if (stage == STAGE_LOOKING_UP)
        settings.host = "localhost";
    if (stage > STAGE_NONE)
        begin();
    /* Attempts begin in the first turn: a name is looked up in a thread, a
     * number is known, and then connected to in the next one. */
    if (stage == STAGE_LOOKING_UP || stage == STAGE_CONNECTING)
        uv_run(&loop, UV_RUN_NOWAIT);
    if (stage == STAGE_CONNECTED)
        reach(&p);
    if (stage == STAGE_JOINED) {
        greet(&p);
        expect("join");
    }
    if (stage >= STAGE_UP)
        let_in(&p, true);
    if (stage >= STAGE_LOST) {
        hang_up(&p);
        p.fd = -1;
        expect("lost");
    }
    if (stage == STAGE_BACK)
        let_in(&p, true);
    node_link_send(node_link, &(struct node_msg){.kind = NODE_READY});
    node_link_destroy(node_link);
    node_link = NULL;
    if (p.fd >= 0 && stage >= STAGE_UP) /* what was queued goes out */
        hear(&p, NODE_READY);
    if (p.fd >= 0)
        expect_closed(&p);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("node_link");
    TCase *t = tcase_create("link");

    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, link_joins_and_hands_on_what_it_hears);
    tcase_add_test(t, welcome_without_a_join_is_ignored);
    tcase_add_test(t, nothing_is_handed_on_before_welcome);
    tcase_add_test(t, second_hello_is_ignored);
    tcase_add_loop_test(t, refused_link_ends, 0, 3);
    tcase_add_test(t, nobody_listens);
    tcase_add_test(t, link_waits_for_somebody_to_listen);
    tcase_add_test(t, both_sides_prove_that_they_know_the_secret);
    tcase_add_loop_test(t, welcome_with_a_wrong_proof_ends_the_link, 0, 4);
    tcase_add_test(t, welcome_of_an_earlier_connection_is_not_believed);
    tcase_add_test(t, lost_coordinator_is_joined_again);
    tcase_add_test(t, coordinator_that_is_not_lasting_is_lost_for_good);
    tcase_add_test(t, lost_coordinator_does_not_come_back);
    tcase_add_loop_test(t, silent_coordinator_is_lost, 0, 2);
    tcase_add_test(t, link_gives_signs_of_life);
    tcase_add_test(t, node_may_leave_before_it_is_in);
    tcase_add_test(t, node_that_is_through_does_not_join);
    tcase_add_test(t, node_that_is_through_at_once_calls_nobody);
    tcase_add_test(t, node_that_is_through_after_join_hears_the_rest);
    tcase_add_loop_test(t, link_is_destroyed_at_any_stage, 0, STAGE_COUNT);
    tcase_set_timeout(t, 60);
    suite_add_tcase(s, t);
    return unit_run_suite(s);
}
