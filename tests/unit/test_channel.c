/* The agent's end of the agent channel, against sockets that say anything. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/channel.h"
#include "rendezvous/agent_channel.h"
#include "rendezvous/base/log.h"
#include "rendezvous/recorder.h"
#include "tests/unit/unit.h"

#define NPROC 3
#define BASE 8 /* global rank of local rank 0 */
#define ROUND 5
#define LIMIT_MS 10000

static uv_loop_t loop;
static uv_timer_t limit;
static struct channel *channel;
static int attached[NPROC], collateral[NPROC];
static char why[NPROC][600];
static int log_lines;

static void on_attached(void *arg, int local_rank)
{
    ck_assert_ptr_eq(arg, &channel);
    attached[local_rank]++;
}

static void on_collateral(void *arg, int local_rank, const char *text)
{
    ck_assert_ptr_eq(arg, &channel);
    collateral[local_rank]++;
    snprintf(why[local_rank], sizeof(why[0]), "%s", text);
}

static void on_limit(uv_timer_t *timer)
{
    (void)timer;
    ck_abort_msg("what was waited for did not happen");
}

static void count_line(const char *line, size_t len, void *arg)
{
    (void)line;
    (void)len;
    (void)arg;
    log_lines++;
}

static const struct channel_callbacks callbacks = {on_attached, on_collateral};

static void setup(void)
{
    struct err e = {0};

    log_set_writer(count_line, NULL);
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    uv_timer_init(&loop, &limit);
    uv_timer_start(&limit, on_limit, LIMIT_MS, 0);
    ck_assert_msg(
        channel_create(&channel, &loop, NPROC, &callbacks, &channel, &e) == 0,
        "%s", e.msg);
    channel_begin_round(channel, ROUND, BASE);
}

static void teardown(void)
{
    channel_destroy(channel);
    uv_close((uv_handle_t *)&limit, NULL);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

/* --- A worker ------------------------------------------------------------- */

static int connect_to_channel(void)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_un addr;
    socklen_t len;
    int32_t round;

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(
        agent_channel_parse(channel_name(channel), &addr, &len, &round), 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&addr, len), 0);
    return fd;
}

static void say(int fd, const struct agent_frame *f)
{
    uint8_t bytes[AGENT_FRAME_MAX];
    size_t len = agent_frame_encode(f, bytes);

    ck_assert_int_eq(send(fd, bytes, len, MSG_NOSIGNAL), (ssize_t)len);
}

static bool is_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, 0) > 0;
}

/* Lets the loop run until the descriptor has something. */
static void await(int fd)
{
    while (!is_readable(fd))
        uv_run(&loop, UV_RUN_ONCE);
}

/* False: closed. *memfd is what came along, or -1. */
static bool hear(int fd, struct agent_frame *f, int *memfd)
{
    uint8_t bytes[AGENT_FRAME_MAX];
    struct iovec iov = {bytes, sizeof(bytes)};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } passed;
    struct msghdr msg = {.msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = &passed,
        .msg_controllen = sizeof(passed)};
    struct cmsghdr *c;
    ssize_t n;

    await(fd);
    n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
    *memfd = -1;
    if (n == 0 || (n < 0 && errno == ECONNRESET))
        return false;
    ck_assert_int_gt(n, 0);
    c = CMSG_FIRSTHDR(&msg);
    if (c != NULL)
        memcpy(memfd, CMSG_DATA(c), sizeof(int));
    ck_assert_int_eq(agent_frame_decode(f, bytes, (size_t)n), 0);
    return true;
}

static void assert_hears(int fd, enum agent_frame_kind kind, const char *text)
{
    struct agent_frame f;
    int memfd;

    ck_assert(hear(fd, &f, &memfd));
    ck_assert_int_eq(memfd, -1);
    ck_assert_int_eq(f.kind, kind);
    ck_assert_msg(
        strstr(f.text, text) != NULL, "\"%s\" is not in: %s", text, f.text);
}

static void assert_closed(int fd)
{
    struct agent_frame f;
    int memfd;

    ck_assert(!hear(fd, &f, &memfd));
    close(fd);
}

static void say_attach(int fd, int local_rank)
{
    say(fd, &(struct agent_frame){.kind = AGENT_ATTACH,
                .rank = BASE + local_rank,
                .local_rank = local_rank,
                .pid = 1,
                .round = ROUND});
}

static int attach(int local_rank, int *memfd)
{
    int fd = connect_to_channel();
    struct agent_frame f;

    say_attach(fd, local_rank);
    ck_assert(hear(fd, &f, memfd));
    ck_assert_int_eq(f.kind, AGENT_ATTACHED);
    ck_assert_int_ge(*memfd, 0);
    return fd;
}

static int attach_plainly(int local_rank)
{
    int memfd;
    int fd = attach(local_rank, &memfd);

    close(memfd);
    return fd;
}

static struct recorder *map_recorder(int memfd)
{
    struct recorder *r =
        mmap(NULL, sizeof(*r), PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);

    ck_assert_ptr_ne(r, MAP_FAILED);
    close(memfd);
    return r;
}

static void record(struct recorder *r, uint64_t seq)
{
    recorder_set_name(r->kinds, 1, "barrier");
    recorder_enter(r, &(struct recorder_call){.seq = seq, .kind = 1});
}

static void tell(const char *cause)
{
    channel_tell_failure(
        channel, &(struct channel_failure){
                     .rank = 9, .local_rank = 1, .host = "h", .cause = cause});
}

/* --- Attaching ------------------------------------------------------------ */

START_TEST(a_worker_attaches_and_is_told)
{
    int fd = attach_plainly(2);
    struct agent_frame f;
    int memfd;

    ck_assert_int_eq(attached[2], 1);
    ck_assert(!is_readable(fd));
    tell("signal 9 (SIGKILL)");
    ck_assert(hear(fd, &f, &memfd));
    ck_assert_int_eq(f.kind, AGENT_FAILURE);
    ck_assert_int_eq(f.rank, 9);
    ck_assert_int_eq(f.local_rank, 1);
    ck_assert_str_eq(f.host, "h");
    ck_assert_str_eq(f.text, "signal 9 (SIGKILL)");
    close(fd);
}
END_TEST

START_TEST(who_attaches_late_is_told_the_same)
{
    int fd;

    tell("exit code 3");
    fd = attach_plainly(0);
    assert_hears(fd, AGENT_FAILURE, "exit code 3");
    close(fd);
    channel_begin_round(channel, ROUND, BASE);
    fd = attach_plainly(0);
    ck_assert(!is_readable(fd)); /* that was the round before */
    close(fd);
}
END_TEST

START_TEST(collateral_comes_with_its_reason)
{
    int fd = attach_plainly(1);

    say(fd,
        &(struct agent_frame){.kind = AGENT_COLLATERAL, .text = "rank 9 left"});
    while (collateral[1] == 0)
        uv_run(&loop, UV_RUN_ONCE);
    ck_assert_str_eq(why[1], "rank 9 left");
    close(fd);
}
END_TEST

static const struct {
    int rank, local_rank, round;
    const char *words;
} refused[] = {
    {BASE, 1, ROUND, "none of this agent's workers"},
    {0, 0, ROUND, "none of this agent's workers"},
    {BASE - 1, -1, ROUND, "none of this agent's workers"},
    {BASE + NPROC, NPROC, ROUND, "none of this agent's workers"},
    {INT32_MAX, INT32_MAX, ROUND, "none of this agent's workers"},
    {BASE, 0, ROUND - 1, "round 4 is over, this is round 5"},
    {BASE, 0, ROUND + 1, "this is round 5"},
};

START_TEST(a_stranger_is_refused_with_the_reason)
{
    int fd = connect_to_channel();

    say(fd, &(struct agent_frame){.kind = AGENT_ATTACH,
                .rank = refused[_i].rank,
                .local_rank = refused[_i].local_rank,
                .round = refused[_i].round});
    assert_hears(fd, AGENT_REFUSED, refused[_i].words);
    assert_closed(fd);
    for (int i = 0; i < NPROC; i++)
        ck_assert_int_eq(attached[i], 0);
}
END_TEST

START_TEST(a_rank_may_attach_several_times_but_not_any_number)
{
    int fds[4];
    int fd;

    for (int i = 0; i < 4; i++)
        fds[i] = attach_plainly(0);
    fd = connect_to_channel();
    say_attach(fd, 0);
    assert_hears(fd, AGENT_REFUSED, "attached 4 times already");
    assert_closed(fd);
    tell("x");
    for (int i = 0; i < 4; i++)
        assert_hears(fds[i], AGENT_FAILURE, "x");
    /* One goes, and another can come. */
    close(fds[0]);
    while (uv_run(&loop, UV_RUN_NOWAIT) && attached[0] < 5) {
        fd = connect_to_channel();
        say_attach(fd, 0);
        await(fd);
        close(fd);
    }
    for (int i = 1; i < 4; i++)
        close(fds[i]);
}
END_TEST

START_TEST(a_round_that_begins_ends_what_was_before)
{
    int stranger = connect_to_channel();
    int fd = attach_plainly(0);
    char text[64];
    char name[AGENT_CHANNEL_TEXT_MAX];

    snprintf(name, sizeof(name), "%s", channel_name(channel));
    channel_begin_round(channel, ROUND + 1, BASE);
    ck_assert_str_ne(name, channel_name(channel));
    assert_closed(fd);
    assert_closed(stranger);
    ck_assert(!channel_last_call(channel, 0, text, sizeof(text)));
    fd = connect_to_channel();
    say_attach(fd, 0);
    assert_hears(fd, AGENT_REFUSED, "round 5 is over, this is round 6");
    assert_closed(fd);
}
END_TEST

/* --- The recorder --------------------------------------------------------- */

START_TEST(a_recorder_is_read_when_its_rank_is_gone)
{
    int memfd;
    int fd = attach(1, &memfd);
    struct recorder *r = map_recorder(memfd);
    char text[64];

    ck_assert(recorder_is_valid(r));
    ck_assert_int_eq(r->rank, BASE + 1);
    ck_assert(!channel_last_call(channel, 1, text, sizeof(text)));
    record(r, 7);
    munmap(r, sizeof(*r));
    close(fd);
    uv_run(&loop, UV_RUN_NOWAIT);
    ck_assert(channel_last_call(channel, 1, text, sizeof(text)));
    ck_assert_str_eq(text, "barrier #7, not finished");
    ck_assert(!channel_last_call(channel, 0, text, sizeof(text)));
    ck_assert(!channel_last_call(channel, -1, text, sizeof(text)));
    ck_assert(!channel_last_call(channel, NPROC, text, sizeof(text)));
    ck_assert(!channel_last_call(NULL, 0, text, sizeof(text)));
}
END_TEST

START_TEST(all_programs_of_a_rank_write_to_one_recorder)
{
    int memfds[2];
    int a = attach(1, &memfds[0]);
    int b = attach(1, &memfds[1]);
    struct recorder *first = map_recorder(memfds[0]);
    struct recorder *second = map_recorder(memfds[1]);
    char text[64];

    record(first, 1);
    record(second, 2);
    ck_assert_uint_eq(atomic_load(&first->head), 2);
    ck_assert(channel_last_call(channel, 1, text, sizeof(text)));
    ck_assert_str_eq(text, "barrier #2, not finished");
    munmap(first, sizeof(*first));
    munmap(second, sizeof(*second));
    close(a);
    close(b);
}
END_TEST

/* A worker can neither make the agent fault nor keep others from it. */
START_TEST(a_recorder_cannot_be_resized)
{
    struct stat st;
    int memfd;
    int fd = attach(0, &memfd);

    ck_assert_int_eq(ftruncate(memfd, 0), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_int_eq(ftruncate(memfd, 1 << 20), -1);
    ck_assert_int_eq(fcntl(memfd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    ck_assert_int_eq(fcntl(memfd, F_GETFD), FD_CLOEXEC);
    ck_assert_int_eq(fstat(memfd, &st), 0);
    ck_assert_int_eq(st.st_size, sizeof(struct recorder));
    close(memfd);
    close(fd);
}
END_TEST

START_TEST(a_recorder_full_of_garbage_does_no_harm)
{
    int memfd;
    int fd = attach(0, &memfd);
    struct recorder *r = map_recorder(memfd);
    char text[64];

    for (int byte = 0; byte < 256; byte++) {
        memset((void *)r, byte, sizeof(*r));
        channel_last_call(channel, 0, text, sizeof(text));
    }
    munmap(r, sizeof(*r));
    close(fd);
}
END_TEST

/* --- Nonsense ------------------------------------------------------------- */

static const struct {
    const char *bytes;
    size_t len;
} nonsense[] = {
    {"x", 1}, {"GET / HTTP/1.1\r\n", 16},
    {"CRAC\2\0\0\0", 8}, /* another version */
    {"CRAC\1\0\1\0", 8}, /* ATTACHED is the agent's to say */
    {"CRAC\1\0\4\0\0\0", 10}, /* COLLATERAL before ATTACH */
    {"CRAC\1\0\0\0", 8}, /* half an ATTACH */
};
enum { NONSENSE = sizeof(nonsense) / sizeof(nonsense[0]) };

START_TEST(nonsense_is_closed_and_told_once)
{
    int fd;

    for (int i = 0; i < 3; i++) {
        fd = connect_to_channel();
        ck_assert_int_gt(
            send(fd, nonsense[_i].bytes, nonsense[_i].len, MSG_NOSIGNAL), 0);
        assert_closed(fd);
    }
    ck_assert_int_eq(log_lines, 1);
    fd = attach_plainly(0);
    ck_assert_int_eq(attached[0], 1);
    close(fd);
}
END_TEST

START_TEST(a_packet_of_any_size_and_a_descriptor_do_no_harm)
{
    static char big[65536];
    struct iovec iov = {big, 1};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } passed = {0};
    struct msghdr msg = {.msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = &passed,
        .msg_controllen = sizeof(passed)};
    int fd = connect_to_channel();

    ck_assert_int_eq(send(fd, big, sizeof(big), MSG_NOSIGNAL), sizeof(big));
    assert_closed(fd);
    fd = connect_to_channel();
    passed.header.cmsg_level = SOL_SOCKET;
    passed.header.cmsg_type = SCM_RIGHTS;
    passed.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&passed.header), &fd, sizeof(int));
    ck_assert_int_eq(sendmsg(fd, &msg, MSG_NOSIGNAL), 1);
    assert_closed(fd);
}
END_TEST

START_TEST(a_second_attach_on_one_connection_is_nonsense)
{
    int fd = attach_plainly(0);

    say_attach(fd, 1);
    assert_closed(fd);
    ck_assert_int_eq(attached[1], 0);
}
END_TEST

START_TEST(who_says_too_much_is_closed)
{
    struct agent_frame f = {.kind = AGENT_COLLATERAL, .text = "again"};
    uint8_t bytes[AGENT_FRAME_MAX];
    size_t len = agent_frame_encode(&f, bytes);
    int fd = attach_plainly(0);

    while (send(fd, bytes, len, MSG_NOSIGNAL) >= 0 || errno == EAGAIN)
        uv_run(&loop, UV_RUN_NOWAIT);
    ck_assert_int_eq(errno, EPIPE);
    ck_assert_int_lt(collateral[0], 300);
    close(fd);
}
END_TEST

START_TEST(silent_strangers_make_room_for_new_ones)
{
    struct agent_frame f;
    int fds[64], memfd;

    for (int i = 0; i < 64; i++) {
        fds[i] = connect_to_channel();
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    assert_closed(fds[0]);
    say_attach(fds[63], 0);
    ck_assert(hear(fds[63], &f, &memfd));
    ck_assert_int_eq(f.kind, AGENT_ATTACHED);
    close(memfd);
    for (int i = 1; i < 64; i++)
        close(fds[i]);
}
END_TEST

/* Nobody is waited for: the socket's buffer is all that he can fill. */
START_TEST(who_does_not_read_is_skipped)
{
    int deaf = attach_plainly(0);
    int fd;

    for (int i = 0; i < 5000; i++)
        tell("again and again");
    fd = attach_plainly(1);
    assert_hears(fd, AGENT_FAILURE, "again");
    ck_assert(is_readable(deaf));
    close(deaf);
    close(fd);
}
END_TEST

/* Without a descriptor for those who come the loop must not turn for ever. */
START_TEST(no_descriptors_left_means_later)
{
    struct rlimit old, now;
    int fds[8], fd;

    for (int i = 0; i < 8; i++)
        fds[i] = attach_plainly(i % 2);
    fd = connect_to_channel();
    say_attach(fd, 2);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    now = old;
    now.rlim_cur = 3;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &now), 0);
    uv_run(&loop, UV_RUN_ONCE); /* tries, and gives up for now */
    ck_assert_int_eq(uv_run(&loop, UV_RUN_NOWAIT), 1);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    ck_assert(!is_readable(fd));
    close(fds[0]);
    await(fd);
    while (attached[2] == 0)
        uv_run(&loop, UV_RUN_ONCE);
    for (int i = 1; i < 8; i++)
        close(fds[i]);
    close(fd);
}
END_TEST

/* --- The end of a worker -------------------------------------------------- */

START_TEST(the_last_words_of_a_worker_are_heard_in_time)
{
    int fd = connect_to_channel();

    say_attach(fd, 1);
    channel_catch_up(channel, 1);
    ck_assert_int_eq(attached[1], 1);
    say(fd, &(struct agent_frame){.kind = AGENT_COLLATERAL, .text = "why"});
    channel_catch_up(channel, 0);
    ck_assert_int_eq(collateral[1], 0);
    close(fd);
    channel_catch_up(channel, 1);
    ck_assert_int_eq(collateral[1], 1);
    ck_assert_str_eq(why[1], "why");
}
END_TEST

/* The kernel calls that a reset, and libuv an error. */
START_TEST(so_are_those_of_a_worker_that_had_not_read_everything)
{
    int fd = attach_plainly(1);

    tell("x");
    say(fd, &(struct agent_frame){.kind = AGENT_COLLATERAL, .text = "why"});
    close(fd);
    while (collateral[1] == 0)
        uv_run(&loop, UV_RUN_ONCE);
    ck_assert_str_eq(why[1], "why");
}
END_TEST

START_TEST(null_is_destroyed)
{
    channel_destroy(NULL);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("channel");
    int nrefused = sizeof(refused) / sizeof(refused[0]);

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 20);
    tcase_add_test(tcase, a_worker_attaches_and_is_told);
    tcase_add_test(tcase, who_attaches_late_is_told_the_same);
    tcase_add_test(tcase, collateral_comes_with_its_reason);
    tcase_add_loop_test(
        tcase, a_stranger_is_refused_with_the_reason, 0, nrefused);
    tcase_add_test(tcase, a_rank_may_attach_several_times_but_not_any_number);
    tcase_add_test(tcase, a_round_that_begins_ends_what_was_before);
    tcase_add_test(tcase, a_recorder_is_read_when_its_rank_is_gone);
    tcase_add_test(tcase, all_programs_of_a_rank_write_to_one_recorder);
    tcase_add_test(tcase, a_recorder_cannot_be_resized);
    tcase_add_test(tcase, a_recorder_full_of_garbage_does_no_harm);
    tcase_add_loop_test(tcase, nonsense_is_closed_and_told_once, 0, NONSENSE);
    tcase_add_test(tcase, a_packet_of_any_size_and_a_descriptor_do_no_harm);
    tcase_add_test(tcase, a_second_attach_on_one_connection_is_nonsense);
    tcase_add_test(tcase, who_says_too_much_is_closed);
    tcase_add_test(tcase, silent_strangers_make_room_for_new_ones);
    tcase_add_test(tcase, who_does_not_read_is_skipped);
    tcase_add_test(tcase, no_descriptors_left_means_later);
    tcase_add_test(tcase, the_last_words_of_a_worker_are_heard_in_time);
    tcase_add_test(
        tcase, so_are_those_of_a_worker_that_had_not_read_everything);
    tcase_add_test(tcase, null_is_destroyed);
    return unit_run("channel", tcase);
}
