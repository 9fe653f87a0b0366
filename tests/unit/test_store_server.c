/* The store's sockets, with peers that speak the protocol by hand. */
#include "rendezvous/store_server.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "test_store_net.h"
#include "unit.h"

static struct served served;

static void setup(void)
{
    served_start(&served);
}

static void teardown(void)
{
    served_stop(&served);
}

static void assert_alive(void)
{
    close(raw_client(served.port));
}

START_TEST(client_is_greeted_and_served)
{
    int fd = raw_client(served.port);

    raw_send(fd, "01 0200000000000000 2f61 0100000000000000 78"
                 "03 0200000000000000 2f61");
    raw_expect(fd, "0100000000000000 78");
    close(fd);
}
END_TEST

/* PyTorch's own server fails this one. */
START_TEST(greeting_may_arrive_byte_by_byte)
{
    static const char *const bytes[] = {"00", "ce", "f7", "85", "3c"};
    int fd = raw_connect(served.port);

    for (size_t i = 0; i < LENGTH_OF(bytes); i++) {
        raw_send(fd, bytes[i]);
        assert_alive(); /* the loop has turned: the byte was read alone */
    }
    raw_send(fd, "0d 01020304");
    raw_expect(fd, "01020304");
    close(fd);
}
END_TEST

START_TEST(wait_is_released_by_another_client)
{
    int waiting = raw_client(served.port);
    int setting = raw_client(served.port);

    raw_send(waiting, "06 0100000000000000 0100000000000000 6b 07");
    raw_expect(waiting, "0000000000000000"); /* the wait is registered */
    raw_send(setting, "01 0100000000000000 6b 0000000000000000");
    raw_expect(waiting, "00");
    close(waiting);
    close(setting);
}
END_TEST

START_TEST(waiter_that_left_is_forgotten)
{
    int waiting = raw_client(served.port);
    int setting = raw_client(served.port);

    raw_send(waiting, "06 0100000000000000 0100000000000000 6b 07");
    raw_expect(waiting, "0000000000000000");
    close(waiting);
    raw_send(setting, "04 0100000000000000 6b 0100000000000000");
    raw_expect(setting, "0100000000000000");
    close(setting);
    assert_alive();
}
END_TEST

static const char *const garbage[] = {
    "474554202f20485454502f312e310d0a0d0a", /* GET / HTTP/1.1 */
    "16030100a5010000a10303", /* TLS */
    "07",
    "00cef7853d",
    GREETING GREETING,
    GREETING "0e 0100000000000000 6b 00",
    GREETING "01 ffffffffffffff7f 00000000",
    GREETING "01 0100000000000000 6b ffffffffffffff7f 00000000",
    GREETING "06 ffffffffffffffff",
};

START_TEST(garbage_ends_its_connection_and_harms_nobody)
{
    int client = raw_client(served.port);
    int fd = raw_connect(served.port);

    raw_send(fd, garbage[_i]);
    raw_expect_closed(fd);
    raw_send(client, "0d 05060708");
    raw_expect(client, "05060708");
    close(client);
}
END_TEST

START_TEST(half_a_request_does_not_hold_up_others)
{
    int half = raw_client(served.port);

    raw_send(half, "01 0100000000000000 6b 0000100000000000 78");
    assert_alive();
    close(half);
    assert_alive();
}
END_TEST

START_TEST(client_that_does_not_read_does_not_hold_up_others)
{
    const size_t size = (size_t)32 << 20;
    char *value = calloc(1, size);
    int slow = raw_client(served.port);

    raw_send(slow, "01 0100000000000000 6b 0000000200000000");
    for (size_t sent = 0; sent < size;) {
        ssize_t n = send(slow, value + sent, size - sent, MSG_NOSIGNAL);

        ck_assert_int_gt(n, 0);
        sent += (size_t)n;
    }
    raw_send(slow, "03 0100000000000000 6b");
    assert_alive();
    raw_expect(slow, "0000000200000000");
    raw_recv(slow, value, size); /* and then gets all of it */
    free(value);
    close(slow);
}
END_TEST

/* It has to notice without reading: all that is sent to it is lost. */
START_TEST(client_that_never_reads_is_reset)
{
#define GET_K "03 0100000000000000 6b"
    static const char eight_gets[] =
        GET_K GET_K GET_K GET_K GET_K GET_K GET_K GET_K;
    const size_t size = (size_t)32 << 20;
    char *value = calloc(1, size);
    int slow = raw_client(served.port);
    struct pollfd p = {.fd = slow};

    raw_send(slow, "01 0100000000000000 6b 0000000200000000");
    for (size_t sent = 0; sent < size;) {
        ssize_t n = send(slow, value + sent, size - sent, MSG_NOSIGNAL);

        ck_assert_int_gt(n, 0);
        sent += (size_t)n;
    }
    raw_send(slow, eight_gets);
    ck_assert_int_eq(poll(&p, 1, PATIENCE_MS), 1);
    ck_assert(p.revents & POLLERR);
    free(value);
    close(slow);
    assert_alive();
}
END_TEST

static int count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    ck_assert_ptr_nonnull(dir);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

START_TEST(peers_that_connect_and_vanish_leave_nothing_behind)
{
    struct linger reset = {.l_onoff = 1, .l_linger = 0};
    int client = raw_client(served.port);
    int before = count_fds(), after;
    uint64_t deadline = clock_deadline_ns(PATIENCE_MS);

    for (int i = 0; i < 2000; i++) {
        int fd = raw_connect(served.port);

        if (i % 2 == 0)
            ck_assert_int_eq(
                setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)),
                0);
        close(fd);
    }
    do { /* the server works through them in the order they came */
        assert_alive();
        after = count_fds();
    } while (after > before && clock_left_ms(deadline) > 0);
    ck_assert_int_le(after, before);
    raw_send(client, "0d 05060708");
    raw_expect(client, "05060708");
    close(client);
}
END_TEST

START_TEST(client_reset_while_its_reply_is_sent_raises_no_signal)
{
    struct linger reset = {.l_onoff = 1, .l_linger = 0};

    signal(SIGPIPE, SIG_DFL);
    for (int i = 0; i < 200; i++) {
        int waiting = raw_client(served.port);
        int setting = raw_client(served.port);

        raw_send(waiting, "06 0100000000000000 0100000000000000 6b 07");
        raw_expect(waiting, "0000000000000000");
        ck_assert_int_eq(
            setsockopt(waiting, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)),
            0);
        raw_send(setting, "01 0100000000000000 6b 0000000000000000");
        close(waiting);
        raw_send(setting, "08 0100000000000000 6b");
        raw_expect(setting, "0100000000000000");
        close(setting);
    }
}
END_TEST

START_TEST(sockets_are_closed_on_exec)
{
    int client = raw_client(served.port);
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;

    ck_assert_ptr_nonnull(dir);
    while ((entry = readdir(dir)) != NULL) {
        int fd = atoi(entry->d_name), type;
        socklen_t len = sizeof(type);

        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0)
            ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    }
    closedir(dir);
    close(client);
}
END_TEST

START_TEST(stranger_that_sends_no_greeting_is_closed)
{
    struct served s;
    int silent, half, client;

    served_prepare(&s, "127.0.0.1");
    store_server_set_greeting_ms(s.server, 200);
    served_run(&s);
    silent = raw_connect(s.port);
    client = raw_client(s.port);
    half = raw_connect(s.port);
    raw_send(half, "00cef7");
    raw_expect_closed(silent);
    raw_expect_closed(half);
    raw_send(client, "0d 05060708"); /* who has greeted stays */
    raw_expect(client, "05060708");
    close(client);
    served_stop(&s);
}
END_TEST

START_TEST(destroying_the_server_closes_its_clients)
{
    struct served s;
    int waiting, silent;

    served_start(&s);
    waiting = raw_client(s.port);
    silent = raw_connect(s.port);
    raw_send(waiting, "06 0100000000000000 0100000000000000 6b 07");
    raw_expect(waiting, "0000000000000000");
    served_stop(&s);
    raw_expect_closed(waiting);
    raw_expect_closed(silent);
}
END_TEST

/* --- Listening ---------------------------------------------------------- */

/* Listens in a loop of its own that does not run; returns listen's rc. */
static int try_listen(const char *host, int port, int *bound, struct err *e)
{
    struct store_server *s;
    uv_loop_t loop;
    int rc;

    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_int_eq(store_server_create(&s, &loop), 0);
    rc = store_server_listen(s, host, port, bound, e);
    store_server_destroy(s);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    return rc;
}

START_TEST(port_in_use_is_an_error_that_names_it)
{
    struct err e = {0};
    char port[8];
    int bound = -1;

    snprintf(port, sizeof(port), "%d", served.port);
    ck_assert_int_eq(
        try_listen("127.0.0.1", served.port, &bound, &e), -EADDRINUSE);
    ck_assert_int_eq(bound, -1);
    ck_assert_ptr_nonnull(strstr(e.msg, "127.0.0.1"));
    ck_assert_ptr_nonnull(strstr(e.msg, port));
    ck_assert_ptr_nonnull(strstr(e.msg, "in use"));
}
END_TEST

START_TEST(port_can_be_bound_again_at_once)
{
    struct err e = {0};
    struct served s;
    int client, bound;

    served_start(&s);
    client = raw_client(s.port);
    served_stop(&s); /* closes first: its side lingers in TIME_WAIT */
    raw_expect_closed(client);
    ck_assert_msg(
        try_listen("127.0.0.1", s.port, &bound, &e) == 0, "%s", e.msg);
    ck_assert_int_eq(bound, s.port);
}
END_TEST

START_TEST(address_of_another_machine_is_an_error)
{
    struct err e = {0};
    int bound;

    ck_assert_int_eq(try_listen("192.0.2.1", 0, &bound, &e), -EADDRNOTAVAIL);
    ck_assert_ptr_nonnull(strstr(e.msg, "192.0.2.1"));
}
END_TEST

START_TEST(name_that_does_not_resolve_is_an_error)
{
    struct err e = {0};
    int bound;

    ck_assert_int_eq(try_listen("no such host", 0, &bound, &e), -ENOENT);
    ck_assert_ptr_nonnull(strstr(e.msg, "no such host"));
}
END_TEST

START_TEST(port_out_of_range_is_an_error)
{
    struct err e = {0};
    int bound;

    ck_assert_int_eq(try_listen("127.0.0.1", -1, &bound, &e), -EINVAL);
    ck_assert_int_eq(try_listen("127.0.0.1", 65536, &bound, &e), -EINVAL);
}
END_TEST

START_TEST(localhost_is_served_on_all_its_addresses)
{
    struct served s;

    served_prepare(&s, "localhost");
    served_run(&s);
    close(raw_client(s.port));
    served_stop(&s);
}
END_TEST

START_TEST(wildcard_serves_ipv4_too)
{
    struct served s;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in6 sin6 = {.sin6_family = AF_INET6};
    bool has_ipv6 =
        fd >= 0 && bind(fd, (struct sockaddr *)&sin6, sizeof(sin6)) == 0;

    if (fd >= 0)
        close(fd);
    served_prepare(&s, has_ipv6 ? "::" : "0.0.0.0");
    served_run(&s);
    close(raw_client(s.port));
    served_stop(&s);
}
END_TEST

START_TEST(destroy_takes_null)
{
    store_server_destroy(NULL);
}
END_TEST

/* --- Out of descriptors -------------------------------------------------- */

/* A child serves with few descriptors, so that ours do not run out. */
static pid_t serve_with_few_fds(int *port)
{
    struct rlimit few = {.rlim_cur = 24, .rlim_max = 24};
    int fds[2];
    pid_t pid;

    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct served s;

        served_prepare(&s, "127.0.0.1");
        if (setrlimit(RLIMIT_NOFILE, &few) < 0 ||
            write(fds[1], &s.port, sizeof(s.port)) != sizeof(s.port))
            _exit(1);
        uv_run(&s.loop, UV_RUN_DEFAULT);
        _exit(0);
    }
    close(fds[1]);
    ck_assert_int_eq(read(fds[0], port, sizeof(*port)), sizeof(*port));
    close(fds[0]);
    return pid;
}

START_TEST(without_descriptors_clients_wait_and_others_are_served)
{
    int fds[40], port, client;
    pid_t pid = serve_with_few_fds(&port);
    int status;

    client = raw_client(port);
    for (size_t i = 0; i < LENGTH_OF(fds); i++) { /* more than it can have */
        fds[i] = raw_connect(port);
        raw_send(fds[i], GREETING "0d 01020304");
    }
    for (int i = 0; i < 100; i++) {
        raw_send(client, "0d 05060708");
        raw_expect(client, "05060708");
    }
    /* Each in turn: those in front leave, those behind get their place. */
    for (size_t i = 0; i < LENGTH_OF(fds); i++) {
        raw_expect(fds[i], "01020304");
        close(fds[i]);
    }
    raw_send(client, "0d 05060708");
    raw_expect(client, "05060708");
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    close(client);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_server");
    TCase *tc = tcase_create("clients");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, client_is_greeted_and_served);
    tcase_add_test(tc, greeting_may_arrive_byte_by_byte);
    tcase_add_test(tc, wait_is_released_by_another_client);
    tcase_add_test(tc, waiter_that_left_is_forgotten);
    tcase_add_loop_test(tc, garbage_ends_its_connection_and_harms_nobody, 0,
        (int)LENGTH_OF(garbage));
    tcase_add_test(tc, half_a_request_does_not_hold_up_others);
    tcase_add_test(tc, client_that_does_not_read_does_not_hold_up_others);
    tcase_add_test(tc, client_that_never_reads_is_reset);
    tcase_add_test(tc, peers_that_connect_and_vanish_leave_nothing_behind);
    tcase_add_test(tc, client_reset_while_its_reply_is_sent_raises_no_signal);
    tcase_add_test(tc, sockets_are_closed_on_exec);
    tcase_add_test(tc, port_in_use_is_an_error_that_names_it);
    suite_add_tcase(suite, tc);

    tc = tcase_create("life");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, stranger_that_sends_no_greeting_is_closed);
    tcase_add_test(tc, destroying_the_server_closes_its_clients);
    tcase_add_test(tc, port_can_be_bound_again_at_once);
    tcase_add_test(tc, address_of_another_machine_is_an_error);
    tcase_add_test(tc, name_that_does_not_resolve_is_an_error);
    tcase_add_test(tc, port_out_of_range_is_an_error);
    tcase_add_test(tc, localhost_is_served_on_all_its_addresses);
    tcase_add_test(tc, wildcard_serves_ipv4_too);
    tcase_add_test(tc, destroy_takes_null);
    tcase_add_test(tc, without_descriptors_clients_wait_and_others_are_served);
    suite_add_tcase(suite, tc);
    return unit_run_suite(suite);
}
