/*
 * libcollective's end of the agent channel: ranks are processes, as the
 * default group is one per process, and this one is their agent.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "agent/channel.h"
#include "rendezvous/agent_channel.h"
#include "tests/unit/coll_harness.h"
#include "tests/unit/unit.h"
#include "worker/coll_agent.h"

#define NPROC 2
#define LIMIT_MS 30000

static uv_loop_t loop;
static uv_timer_t limit, tick;
static struct channel *channel;
static struct harness_store store;
static int attached[NPROC], collateral[NPROC];
static char why[NPROC][600];
static pid_t ranks[NPROC];
static int go[2]; /* its end lets a rank go on */
static int up[2]; /* a byte: a rank has left coll_init() */

static void on_attached(void *arg, int local_rank)
{
    (void)arg;
    attached[local_rank]++;
}

static void on_collateral(void *arg, int local_rank, const char *text)
{
    (void)arg;
    collateral[local_rank]++;
    snprintf(why[local_rank], sizeof(why[0]), "%s", text);
}

static void on_limit(uv_timer_t *timer)
{
    (void)timer;
    ck_abort_msg("what was waited for did not happen");
}

static void on_tick(uv_timer_t *timer)
{
    (void)timer;
}

static void setup(void)
{
    static const struct channel_callbacks callbacks = {
        on_attached, on_collateral};
    struct err e = {0};

    ck_assert_int_eq(uv_loop_init(&loop), 0);
    uv_timer_init(&loop, &limit);
    uv_timer_start(&limit, on_limit, LIMIT_MS, 0);
    uv_timer_init(&loop, &tick); /* conditions are looked at so often */
    uv_timer_start(&tick, on_tick, 1, 1);
    ck_assert_msg(
        channel_create(&channel, &loop, NPROC, &callbacks, NULL, &e) == 0, "%s",
        e.msg);
    ck_assert_int_eq(pipe2(go, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(up, O_CLOEXEC), 0);
    setenv(ENV_AGENT, channel_name(channel), 1);
    setenv(ENV_WORLD_SIZE, "2", 1);
    setenv("COLL_TIMEOUT", "60", 1);
    unsetenv(ENV_RESTART_COUNT);
    harness_set_master(harness_free_port());
}

static void teardown(void)
{
    for (int i = 0; i < NPROC; i++)
        if (ranks[i] > 0) {
            kill(ranks[i], SIGKILL);
            waitpid(ranks[i], NULL, 0);
        }
    channel_destroy(channel);
    uv_close((uv_handle_t *)&limit, NULL);
    uv_close((uv_handle_t *)&tick, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    if (store.store != NULL)
        harness_store_stop(&store);
}

/* --- The agent's part ----------------------------------------------------- */

static void be_rank(int rank)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", rank);
    setenv(ENV_RANK, text, 1);
    setenv(ENV_LOCAL_RANK, text, 1);
}

/* A rank: exits 0 if the function found nothing wrong. */
static void start(int rank, void (*run)(void))
{
    fflush(NULL);
    ranks[rank] = fork();
    ck_assert_int_ge(ranks[rank], 0);
    if (ranks[rank] == 0) {
        close(go[1]);
        be_rank(rank);
        run();
        if (harness_report.text[0] != '\0')
            fprintf(stderr, "rank %d: %s\n", rank, harness_report.text);
        _exit(harness_report.text[0] != '\0');
    }
}

/* At the address that the ranks know; starts a thread, so fork before. */
static void serve_store(void)
{
    const coll_store_options_t options = {.is_host = true};

    ck_assert_msg(coll_store_tcp(&store.store, "127.0.0.1",
                      atoi(getenv(ENV_MASTER_PORT)), &options) == COLL_OK,
        "%s", coll_last_error());
}

/* Until a rank has left coll_init(): it does so after others. */
static void await_up(void)
{
    struct pollfd p = {.fd = up[0], .events = POLLIN};

    while (poll(&p, 1, 0) == 0)
        uv_run(&loop, UV_RUN_ONCE);
}

/* Until its recorder says so. */
static void await_call(int rank, const char *want)
{
    char text[128] = "";

    while (!channel_last_call(channel, rank, text, sizeof(text)) ||
           strcmp(text, want) != 0)
        uv_run(&loop, UV_RUN_ONCE);
}

static void assert_ends_well(int rank)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(ranks[rank], &status, WNOHANG)) == 0)
        uv_run(&loop, UV_RUN_ONCE);
    ck_assert_int_eq(pid, ranks[rank]);
    ranks[rank] = 0;
    ck_assert_int_eq(status, 0);
    channel_catch_up(channel, rank);
}

static void tell(void)
{
    channel_tell_failure(channel, &(struct channel_failure){.rank = 1,
                                      .local_rank = 1,
                                      .host = "node-7",
                                      .cause = "signal 9 (SIGKILL)"});
}

#define TOLD                                                                   \
    "rank 1 (local rank 1 on host node-7) failed: signal 9 (SIGKILL), told "   \
    "by the launcher"

/* --- Told in the middle of something -------------------------------------- */

static void wait_for_go(void)
{
    char c;

    EXPECT(read(go[0], &c, 1) == 0, "no end of the pipe");
}

static void init_and_idle(void)
{
    EXPECT_OK(coll_init(NULL));
    EXPECT(write(up[1], "", 1) == 1, "%s", strerror(errno));
    wait_for_go();
}

static void init_and_reduce(void)
{
    float x = 1;

    EXPECT_OK(coll_init(NULL));
    EXPECT_FAILS(coll_all_reduce(&x, &x, 1, COLL_FLOAT32, COLL_SUM, NULL),
        COLL_ERR_PEER, "all_reduce #1: " TOLD);
    EXPECT_FAILS(coll_barrier(NULL), COLL_ERR_PEER, "all_reduce #1: " TOLD);
    EXPECT_OK(coll_destroy());
}

START_TEST(a_failure_ends_a_blocked_operation)
{
    start(0, init_and_reduce);
    start(1, init_and_idle);
    serve_store();
    await_call(0, "all_reduce #1 of 1 float32, not finished");
    await_up();
    tell();
    assert_ends_well(0);
    ck_assert_int_eq(attached[0], 1);
    ck_assert_int_eq(attached[1], 1);
    ck_assert_int_eq(collateral[0], 1);
    ck_assert_str_eq(why[0], "all_reduce #1: " TOLD);
    await_call(0, "all_reduce #1 of 1 float32, failed");
    ck_assert_int_eq(collateral[1], 0);
    close(go[1]);
    assert_ends_well(1);
}
END_TEST

static void init_in_vain(void)
{
    EXPECT_FAILS(coll_init(NULL), COLL_ERR_PEER, "coll_init: " TOLD);
    EXPECT(!coll_is_initialized(), "it is");
}

/* Rank 0 waits for the others to connect, another one for a key. */
START_TEST(a_failure_ends_coll_init)
{
    start(_i, init_in_vain);
    serve_store();
    await_call(_i, "coll_init, not finished");
    tell();
    assert_ends_well(_i);
    ck_assert_int_eq(collateral[_i], 1);
    await_call(_i, "coll_init, failed");
}
END_TEST

/* There is no store either, as rank 0 should have hosted it. */
START_TEST(a_failure_ends_the_search_for_a_store)
{
    if (_i == 0)
        unsetenv(ENV_USE_AGENT_STORE);
    start(1, init_in_vain);
    await_call(1, "coll_init, not finished");
    tell();
    assert_ends_well(1);
}
END_TEST

static char store_path[] = "/tmp/test_coll_agent.XXXXXX";

static void init_in_vain_at_file(void)
{
    coll_options_t options = COLL_OPTIONS_INIT;
    char method[64];

    snprintf(method, sizeof(method), "file://%s/store", store_path);
    options.init_method = method;
    EXPECT_FAILS(coll_init(&options), COLL_ERR_PEER, "coll_init: " TOLD);
}

START_TEST(a_failure_ends_the_waiting_for_a_file)
{
    char path[64];

    ck_assert_ptr_nonnull(mkdtemp(store_path));
    start(1, init_in_vain_at_file);
    await_call(1, "coll_init, not finished");
    tell();
    assert_ends_well(1);
    snprintf(path, sizeof(path), "%s/store", store_path);
    unlink(path);
    rmdir(store_path);
}
END_TEST

START_TEST(who_comes_late_is_told_at_once)
{
    tell();
    start(0, init_in_vain);
    serve_store();
    assert_ends_well(0);
    ck_assert_int_eq(attached[0], 1);
    ck_assert_int_eq(collateral[0], 1);
}
END_TEST

/* --- Deaths, told and not ------------------------------------------------- */

static void init_and_die(void)
{
    EXPECT_OK(coll_init(NULL));
    wait_for_go();
    _exit(7);
}

static void init_and_lose(void)
{
    EXPECT_OK(coll_init(NULL));
    EXPECT_FAILS(coll_barrier(NULL), COLL_ERR_PEER, "died during barrier #1");
}

/* The agent calls it a success, or does not know: then there is no cause. */
START_TEST(a_death_of_which_nobody_tells_is_seen_as_ever)
{
    int status;

    start(0, init_and_lose);
    start(1, init_and_die);
    serve_store();
    await_call(0, "barrier #1, not finished");
    close(go[1]);
    ck_assert_int_eq(waitpid(ranks[1], &status, 0), ranks[1]);
    ranks[1] = 0;
    assert_ends_well(0);
    ck_assert_int_eq(collateral[0], 1);
    ck_assert_ptr_nonnull(strstr(why[0], "rank 1 (pid "));
}
END_TEST

/* --- Alone, and again ----------------------------------------------------- */

static void init_alone_twice(void)
{
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(coll_init(NULL));
        EXPECT_OK(coll_barrier(NULL));
        EXPECT_OK(coll_destroy());
    }
}

START_TEST(a_world_of_one_attaches_and_may_do_so_again)
{
    setenv(ENV_WORLD_SIZE, "1", 1);
    start(0, init_alone_twice);
    assert_ends_well(0);
    ck_assert_int_eq(attached[0], 2);
    await_call(0, "barrier #1, finished");
}
END_TEST

static void init_and_look_at_fds(void)
{
    bool was_open[256];

    for (int fd = 0; fd < 256; fd++)
        was_open[fd] = fcntl(fd, F_GETFD) >= 0;
    for (int i = 0; i < 3; i++) {
        EXPECT_OK(coll_init(NULL));
        for (int fd = 0; fd < 256; fd++)
            EXPECT(was_open[fd] || fcntl(fd, F_GETFD) != 0,
                "descriptor %d is not close-on-exec", fd);
        EXPECT_OK(coll_destroy());
    }
    for (int fd = 0; fd < 256; fd++)
        EXPECT(was_open[fd] == (fcntl(fd, F_GETFD) >= 0), "descriptor %d", fd);
}

START_TEST(no_descriptor_is_left_or_inherited)
{
    setenv(ENV_WORLD_SIZE, "1", 1);
    start(0, init_and_look_at_fds);
    assert_ends_well(0);
    ck_assert_int_eq(attached[0], 3);
}
END_TEST

/* --- Without an agent ----------------------------------------------------- */

static void init_alone(void)
{
    char text[64] = "";

    EXPECT_OK(coll_init(NULL));
    EXPECT_OK(coll_barrier(NULL));
    EXPECT(recorder_last_text(coll_agent_recorder(), text, sizeof(text)) &&
               strcmp(text, "barrier #1, finished") == 0,
        "%s", text);
    EXPECT(coll_agent_fd() == -1, "attached");
    EXPECT_OK(coll_destroy());
}

static const char *const no_agents[] = {
    NULL, "", "nonsense", ":1",
    "crun-agent-00000000000000000000000000000000:0", /* nobody listens there */
};

START_TEST(without_an_agent_all_is_as_before)
{
    if (no_agents[_i] == NULL)
        unsetenv(ENV_AGENT);
    else
        setenv(ENV_AGENT, no_agents[_i], 1);
    setenv(ENV_WORLD_SIZE, "1", 1);
    start(0, init_alone);
    assert_ends_well(0);
    ck_assert_int_eq(attached[0], 0);
}
END_TEST

static void init_alone_as_rank_9(void)
{
    setenv(ENV_LOCAL_RANK, "9", 1);
    init_alone();
}

START_TEST(a_refusal_is_no_failure)
{
    setenv(ENV_WORLD_SIZE, "1", 1);
    start(0, init_alone_as_rank_9);
    assert_ends_well(0);
    channel_begin_round(channel, 1, 0); /* the name is of round 0 */
    start(0, init_alone);
    assert_ends_well(0);
    ck_assert_int_eq(attached[0], 0);
}
END_TEST

/* Another program at that name: one that is stopped, one that is no agent. */
static int listen_as_agent(const char *text)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct sockaddr_un addr;
    socklen_t len;
    int32_t round;

    ck_assert_int_eq(agent_channel_parse(text, &addr, &len, &round), 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&addr, len), 0);
    ck_assert_int_eq(listen(fd, 0), 0);
    setenv(ENV_AGENT, text, 1);
    return fd;
}

START_TEST(an_agent_that_does_not_answer_is_none)
{
    char name[64];
    int fd;

    snprintf(name, sizeof(name), "test-silent-%d:0", (int)getpid());
    fd = listen_as_agent(name);
    setenv(ENV_WORLD_SIZE, "1", 1);
    for (int i = 0; i < 3; i++) { /* till the backlog is full, too */
        start(0, init_alone);
        assert_ends_well(0);
    }
    close(fd);
}
END_TEST

static const struct {
    const char *bytes;
    size_t len;
} answers[] = {
    {"", 0}, /* closes */
    {"hello", 5}, {"CRAC\2\0\1\0", 8},
    {"CRAC\1\0\2\0\3\0why", 13}, /* REFUSED */
    {"CRAC\1\0\4\0\3\0why", 13}, /* not the agent's to say */
};

START_TEST(an_agent_that_answers_nonsense_is_none)
{
    char name[64];
    int fd, conn;

    snprintf(name, sizeof(name), "test-strange-%d:0", (int)getpid());
    fd = listen_as_agent(name);
    setenv(ENV_WORLD_SIZE, "1", 1);
    start(0, init_alone);
    conn = accept(fd, NULL, NULL);
    ck_assert_int_ge(conn, 0);
    if (answers[_i].len > 0)
        ck_assert_int_eq(
            send(conn, answers[_i].bytes, answers[_i].len, MSG_NOSIGNAL),
            (ssize_t)answers[_i].len);
    close(conn);
    assert_ends_well(0);
    close(fd);
}
END_TEST

/* ATTACHED without memory, or with memory that cannot be trusted. */
static void pass(int conn, int descriptor)
{
    static char attached_bytes[] = "CRAC\1\0\1\0";
    struct iovec iov = {attached_bytes, 8};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } passed = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (descriptor >= 0) {
        msg.msg_control = passed.space;
        msg.msg_controllen = sizeof(passed.space);
        passed.header.cmsg_level = SOL_SOCKET;
        passed.header.cmsg_type = SCM_RIGHTS;
        passed.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&passed.header), &descriptor, sizeof(int));
    }
    ck_assert_int_eq(sendmsg(conn, &msg, MSG_NOSIGNAL), 8);
}

static void init_with_private_memory(void)
{
    char text[64] = "";

    EXPECT_OK(coll_init(NULL));
    EXPECT(coll_agent_fd() >= 0, "not attached");
    EXPECT_OK(coll_barrier(NULL));
    EXPECT(recorder_last_text(coll_agent_recorder(), text, sizeof(text)) &&
               strcmp(text, "barrier #1, finished") == 0,
        "%s", text);
    EXPECT_OK(coll_destroy());
}

START_TEST(memory_that_is_none_is_not_used)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
    int memfd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    char name[64];
    int fd, conn;

    switch (_i) {
    case 0: /* could be cut while it is used */
        ck_assert_int_eq(ftruncate(memfd, sizeof(struct recorder)), 0);
        break;
    case 1: /* too short */
        ck_assert_int_eq(ftruncate(memfd, 64), 0);
        ck_assert_int_eq(fcntl(memfd, F_ADD_SEALS, seals), 0);
        break;
    case 2: /* no recorder */
        ck_assert_int_eq(ftruncate(memfd, sizeof(struct recorder)), 0);
        ck_assert_int_eq(fcntl(memfd, F_ADD_SEALS, seals), 0);
        break;
    case 3:
        close(memfd);
        memfd = -1;
        break;
    }
    snprintf(name, sizeof(name), "test-memory-%d:0", (int)getpid());
    fd = listen_as_agent(name);
    setenv(ENV_WORLD_SIZE, "1", 1);
    start(0, init_with_private_memory);
    conn = accept(fd, NULL, NULL);
    ck_assert_int_ge(conn, 0);
    pass(conn, memfd);
    assert_ends_well(0);
    close(conn);
    close(fd);
    if (memfd >= 0)
        close(memfd);
}
END_TEST

static void init_and_pass_barrier(void)
{
    EXPECT_OK(coll_init(NULL));
    EXPECT_OK(coll_barrier(NULL));
}

static void init_and_pass_barrier_later(void)
{
    EXPECT_OK(coll_init(NULL));
    wait_for_go();
    EXPECT_OK(coll_barrier(NULL));
}

/* An agent that goes away tells of no failure. */
START_TEST(the_end_of_the_agent_ends_no_operation)
{
    start(0, init_and_pass_barrier);
    start(1, init_and_pass_barrier_later);
    serve_store();
    await_call(0, "barrier #1, not finished");
    channel_begin_round(channel, 1, 0); /* closes the connections */
    close(go[1]);
    assert_ends_well(0);
    assert_ends_well(1);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("coll_agent");
    int nno_agents = sizeof(no_agents) / sizeof(no_agents[0]);
    int nanswers = sizeof(answers) / sizeof(answers[0]);

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, a_failure_ends_a_blocked_operation);
    tcase_add_loop_test(tcase, a_failure_ends_coll_init, 0, NPROC);
    tcase_add_loop_test(tcase, a_failure_ends_the_search_for_a_store, 0, 2);
    tcase_add_test(tcase, a_failure_ends_the_waiting_for_a_file);
    tcase_add_test(tcase, who_comes_late_is_told_at_once);
    tcase_add_test(tcase, a_death_of_which_nobody_tells_is_seen_as_ever);
    tcase_add_test(tcase, a_world_of_one_attaches_and_may_do_so_again);
    tcase_add_test(tcase, no_descriptor_is_left_or_inherited);
    tcase_add_loop_test(
        tcase, without_an_agent_all_is_as_before, 0, nno_agents);
    tcase_add_test(tcase, a_refusal_is_no_failure);
    tcase_add_test(tcase, an_agent_that_does_not_answer_is_none);
    tcase_add_loop_test(
        tcase, an_agent_that_answers_nonsense_is_none, 0, nanswers);
    tcase_add_loop_test(tcase, memory_that_is_none_is_not_used, 0, 4);
    tcase_add_test(tcase, the_end_of_the_agent_ends_no_operation);
    return unit_run("coll_agent", tcase);
}
