/* How the client finds its server and what that speaks, and what it says of
 * those that are no server. Scripted peers stand for PyTorch's ages. */
#include "rendezvous/store_connect.h"

#include <dlfcn.h>
#include <netdb.h>
#include <sys/syscall.h>
#include <time.h>

#include "rendezvous/listen.h"
#include "rendezvous/resolve.h"
#include "rendezvous/store_io.h"
#include "test_store_peer.h"
#include "unit.h"

/* Stand in for libc's: a clock and a name service for some of the tests. */
static enum { REAL, UNKNOWN, SILENT, TWO_ADDRESSES } names;
static _Atomic time_t fake_seconds;
static sem_t answers; /* what the silent name service waits for */

int clock_gettime(clockid_t id, struct timespec *ts)
{
    long rc = syscall(SYS_clock_gettime, id, ts);

    ts->tv_sec += fake_seconds;
    return (int)rc;
}

static int real_getaddrinfo(const char *host, const char *service,
    const struct addrinfo *hints, struct addrinfo **out)
{
    static int (*real)(const char *, const char *, const struct addrinfo *,
        struct addrinfo **);

    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    return real(host, service, hints, out);
}

int getaddrinfo(const char *host, const char *service,
    const struct addrinfo *hints, struct addrinfo **out)
{
    int rc;

    if (names == REAL || (hints->ai_flags & AI_NUMERICHOST) != 0)
        return real_getaddrinfo(host, service, hints, out);
    if (names == TWO_ADDRESSES) { /* of which the first has nobody */
        rc = real_getaddrinfo("127.0.0.2", service, hints, out);
        if (rc == 0)
            rc =
                real_getaddrinfo("127.0.0.1", service, hints, &(*out)->ai_next);
        return rc;
    }
    if (names == UNKNOWN)
        fake_seconds += 25;
    else
        while (sem_wait(&answers) < 0)
            ;
    return EAI_NONAME;
}

/* For one of the tests: the kernel gives the port that is connected to. */
static bool is_bound_to_the_same;

int connect(int fd, const struct sockaddr *addr, socklen_t len)
{
    static int (*real)(int, const struct sockaddr *, socklen_t);

    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "connect");
    if (is_bound_to_the_same && bind(fd, addr, len) < 0)
        return -1;
    return real(fd, addr, len);
}

static int fail_to_connect(const char *host, int port)
{
    struct store_client *c = NULL;
    int rc = store_client_connect(&c, host, port, clock_deadline_ns(300), &e);

    ck_assert_ptr_null(c);
    ck_assert_int_eq(rc, e.rc);
    return rc;
}

/* --- What it speaks ------------------------------------------------------ */

/* Each ends with a question that shows whose numbers are used. */
#define HOW_MANY "> 0500000000000000", "."

static const char *const newest[] = {
    "+", PING_GREETING, "=", "< 07", HOW_MANY, NULL};

/* 2.2 to 2.4 do not know PING; the four bytes behind VALIDATE make of it a
 * key of impossible length for older ones, which would wait for the rest of
 * a shorter one. */
static const char *const without_ping[] = {"+", PING_GREETING, "-", "+",
    PLAIN_GREETING,
    ": 0000000000000000 0100000000000000 0200000000000000 0300000000000000",
    "< 07", HOW_MANY, NULL};

static const char *const pytorch_2_1[] = {"+", PING_GREETING, "-", "+",
    PLAIN_GREETING, "-", "+", "< 0b", "> 01", "+", PING_GREETING, "-", "< 06",
    HOW_MANY, NULL};

static const char *const pytorch_1_13[] = {"+", PING_GREETING, "-", "+",
    PLAIN_GREETING, "-", "+", "< 0b", "-", "+", "< 06", ": 0000000000000000",
    "+", PING_GREETING, "-", "< 06", HOW_MANY, NULL};

/* crun's own server, which understands every age, came up between the guesses:
 * it is not taken for an old one. */
static const char *const just_started[] = {"+", PING_GREETING, "-", "+",
    PLAIN_GREETING, "-", "+", "< 0b", "-", "+", "< 06", "> 0000000000000000",
    "+", PING_GREETING, "=", "< 07", HOW_MANY, ".", NULL};

static const struct {
    const char *const *script;
    enum store_dialect dialect;
} ages[] = {
    {newest, STORE_DIALECT_C},
    {without_ping, STORE_DIALECT_C},
    {pytorch_2_1, STORE_DIALECT_B},
    {pytorch_1_13, STORE_DIALECT_A},
    {just_started, STORE_DIALECT_C},
};

START_TEST(every_age_is_recognised)
{
    struct store_client *c;
    struct script script;
    int64_t count = 0;

    script_start(&script, ages[_i].script);
    c = connect_to(script.port);
    ck_assert_int_eq(store_client_dialect(c), ages[_i].dialect);
    assert_ok(store_client_num_keys(c, &count, later(), &e));
    ck_assert_int_eq(count, 5);
    store_client_close(c);
    script_stop(&script);
}
END_TEST

/* The same with the parser of the real server, which has limits, too. */
START_TEST(every_dialect_of_the_real_server_is_recognised)
{
    static const enum store_dialect dialects[] = {
        STORE_DIALECT_A, STORE_DIALECT_B};
    struct store_client *c;
    struct old_served o;

    old_start(&o, dialects[_i]);
    c = connect_to(o.port);
    ck_assert_int_eq(store_client_dialect(c), dialects[_i]);
    store_client_close(c);
    old_stop(&o);
}
END_TEST

START_TEST(real_server_is_of_the_newest_dialect)
{
    struct store_client *c;
    struct served s;

    served_start(&s);
    c = connect_to(s.port);
    ck_assert_int_eq(store_client_dialect(c), STORE_DIALECT_C);
    store_client_close(c);
    served_stop(&s);
}
END_TEST

/* While it starts or ends, a server closes whatever is said to it. */
START_TEST(server_that_closes_everything_is_asked_again)
{
    static const char *const starting[] = {"+", PING_GREETING, "-", "+",
        PLAIN_GREETING, "-", "+", "< 0b", "-", "+", "< 06", "-", "+",
        PING_GREETING, "-", "+", PLAIN_GREETING, "-", "+", "< 0b", "-", "+",
        "< 06", "-", "+", PING_GREETING, "=", ".", NULL};
    struct store_client *c;
    struct script script;

    script_start(&script, starting);
    c = connect_to(script.port);
    ck_assert_int_eq(store_client_dialect(c), STORE_DIALECT_C);
    store_client_close(c);
    script_stop(&script);
}
END_TEST

START_TEST(answer_to_the_greeting_may_come_in_pieces)
{
    static const char *const pieces[] = {"+", PING_GREETING, "~", ".", NULL};
    struct script script;

    script_start(&script, pieces);
    store_client_close(connect_to(script.port));
    script_stop(&script);
}
END_TEST

START_TEST(localhost_is_found)
{
    struct store_client *c = NULL;
    struct served s;

    served_start(&s);
    assert_ok(store_client_connect(&c, "localhost", s.port, later(), &e));
    store_client_close(c);
    served_stop(&s);
}
END_TEST

/* --- What is no server --------------------------------------------------- */

START_TEST(refused_port_is_tried_until_the_deadline)
{
    int port;

    close(raw_listen(&port));
    ck_assert_int_eq(fail_to_connect("127.0.0.1", port), -ECONNREFUSED);
    assert_names("127.0.0.1", port);
    assert_says("refused");
    ck_assert_msg(strstr(e.msg, "(1 attempt ") == NULL, "%s", e.msg);
}
END_TEST

START_TEST(silent_peer_is_told_from_a_refused_port)
{
    int port, fd = raw_listen(&port);

    ck_assert_int_eq(fail_to_connect("127.0.0.1", port), -ETIMEDOUT);
    assert_names("127.0.0.1", port);
    assert_says("made, but nobody answers the greeting");
    close(fd);
}
END_TEST

START_TEST(peer_that_closes_is_told)
{
    struct served s;

    served_prepare(&s, "127.0.0.1", NULL, NULL);
    store_port_set_store(s.acceptor, NULL); /* closes whoever comes */
    served_run(&s);
    ck_assert_int_eq(fail_to_connect("127.0.0.1", s.port), -ECONNRESET);
    assert_says("closed at the greeting");
    served_stop(&s);
}
END_TEST

/* A listener whose queue is full: the kernel then drops whoever comes. */
START_TEST(full_queue_is_told)
{
    struct sockaddr_in sin = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int port, fd = raw_listen(&port);
    int waiting[2];

    ck_assert_int_eq(listen(fd, 0), 0);
    sin.sin_port = htons((uint16_t)port);
    for (size_t i = 0; i < LENGTH_OF(waiting); i++) {
        waiting[i] =
            socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        connect(waiting[i], (struct sockaddr *)&sin, sizeof(sin));
    }
    ck_assert_int_eq(fail_to_connect("127.0.0.1", port), -ETIMEDOUT);
    assert_says("queue of who listens there is full");
    for (size_t i = 0; i < LENGTH_OF(waiting); i++)
        close(waiting[i]);
    close(fd);
}
END_TEST

START_TEST(black_hole_is_told)
{
    if (!enter_private_network())
        return;
    ck_assert_int_eq(fail_to_connect("10.1.2.3", 29500), -ETIMEDOUT);
    assert_names("10.1.2.3", 29500);
    assert_says("no answer at all");
}
END_TEST

/* The time is shared: the second address gets its turn. */
START_TEST(silent_address_leaves_time_for_the_next_one)
{
    struct sockaddr_in sin = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1)};
    struct store_client *c = NULL;
    struct served s;
    int fd;

    served_start(&s);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sin.sin_port = htons((uint16_t)s.port);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
    ck_assert_int_eq(listen(fd, 16), 0);
    names = TWO_ADDRESSES;
    assert_ok(
        store_client_connect(&c, "two", s.port, clock_deadline_ns(2000), &e));
    store_client_close(c);
    served_stop(&s);

    /* Where somebody is says more than where nobody is. */
    ck_assert_int_eq(fail_to_connect("two", s.port), -ETIMEDOUT);
    assert_says("at 127.0.0.2: the connection is made, but nobody");
    close(fd);
}
END_TEST

static const struct {
    const char *hex;
    const char *text;
} others[] = {
    {"> 5353482d322e302d4f70656e5353480d0a", "\"SSH-2.0-OpenSSH\\x0d\\x0a\""},
    {": 48", "\"H\""}, /* the first byte is enough */
    {"> 00cef7853c0dffffff", "\"\\x00\\xce"}, /* an echo */
};

START_TEST(wrong_service_is_told_at_once)
{
    const char *const lines[] = {"+", others[_i].hex, NULL};
    struct store_client *c = NULL;
    struct script script;

    script_start(&script, lines);
    ck_assert_int_eq(
        store_client_connect(&c, "127.0.0.1", script.port, later(), &e),
        -EPROTO);
    assert_names("127.0.0.1", script.port);
    assert_says("no TCPStore");
    assert_says(others[_i].text);
    assert_says("(1 attempt ");
    script_stop(&script);
}
END_TEST

/* What the attempts before found is the better reason. */
START_TEST(attempt_without_time_left_does_not_hide_the_reason)
{
    static const char *const twice[] = {"+", PING_GREETING, "-", "+",
        PLAIN_GREETING, "-", "+", "< 0b", "-", "+", "< 06", "-", NULL};
    struct store_client *c = NULL;
    struct script script;

    script_start(&script, twice);
    ck_assert_int_eq(store_client_connect(&c, "127.0.0.1", script.port,
                         clock_deadline_ns(190), &e),
        -ECONNRESET);
    assert_says("closed at the greeting");
    script_stop(&script);
}
END_TEST

START_TEST(port_out_of_range_is_an_error)
{
    ck_assert_int_eq(fail_to_connect("127.0.0.1", 0), -EINVAL);
    ck_assert_int_eq(fail_to_connect("127.0.0.1", 65536), -EINVAL);
}
END_TEST

/* It does not keep the server from that port, not even when it is over. */
START_TEST(connection_to_itself_is_none)
{
    struct sockaddr_in sin = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fds[LISTEN_MAX];
    int port;

    ck_assert_int_eq(listen_open("127.0.0.1", 0, fds, &port, &e), 1);
    close(fds[0]);
    sin.sin_port = htons((uint16_t)port);
    is_bound_to_the_same = true;
    ck_assert_int_eq(
        store_io_connect((struct sockaddr *)&sin, sizeof(sin), later()),
        -ECONNREFUSED);
    ck_assert_msg(
        listen_open("127.0.0.1", port, fds, &port, &e) == 1, "%s", e.msg);
    close(fds[0]);
}
END_TEST

/* --- Names --------------------------------------------------------------- */

START_TEST(unknown_name_is_not_tried_for_ever)
{
    struct store_client *c = NULL;

    names = UNKNOWN;
    ck_assert_int_eq(store_client_connect(&c, "mistyped", 29500,
                         clock_deadline_ns(30 * 60 * 1000), &e),
        -ENOENT);
    assert_names("mistyped", 29500);
    assert_says("does not resolve");
    assert_says(gai_strerror(EAI_NONAME));
    ck_assert_int_ge(fake_seconds, 60);
    ck_assert_int_lt(fake_seconds, 600);
}
END_TEST

/* It is left behind, and frees what it has when it comes back. */
START_TEST(silent_name_service_does_not_hold_up_the_deadline)
{
    struct addrinfo *list = NULL;

    ck_assert_int_eq(sem_init(&answers, 0, 0), 0);
    names = SILENT;
    ck_assert_int_eq(fail_to_connect("slow", 29500), -ETIMEDOUT);
    assert_says("the name service is silent");
    ck_assert_int_eq(
        listen_check_name("slow", 29500, clock_now_ns(), &e), -ETIMEDOUT);
    assert_says("the name service is silent");
    ck_assert_int_eq(
        resolve_until("slow", 29500, 0, clock_now_ns(), &list), EAI_INPROGRESS);
    sem_post(&answers);
    sem_post(&answers);
    sem_post(&answers);
    /* A number needs no service. */
    ck_assert_int_eq(
        resolve_until("127.0.0.1", 29500, 0, clock_now_ns(), &list), 0);
    freeaddrinfo(list);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_connect");
    TCase *tc = tcase_create("ages");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, every_age_is_recognised, 0, (int)LENGTH_OF(ages));
    tcase_add_loop_test(
        tc, every_dialect_of_the_real_server_is_recognised, 0, 2);
    tcase_add_test(tc, real_server_is_of_the_newest_dialect);
    tcase_add_test(tc, server_that_closes_everything_is_asked_again);
    tcase_add_test(tc, answer_to_the_greeting_may_come_in_pieces);
    tcase_add_test(tc, localhost_is_found);
    suite_add_tcase(suite, tc);

    tc = tcase_create("others");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, refused_port_is_tried_until_the_deadline);
    tcase_add_test(tc, silent_peer_is_told_from_a_refused_port);
    tcase_add_test(tc, peer_that_closes_is_told);
    tcase_add_test(tc, full_queue_is_told);
    tcase_add_test(tc, connection_to_itself_is_none);
    tcase_add_test(tc, black_hole_is_told);
    tcase_add_test(tc, silent_address_leaves_time_for_the_next_one);
    tcase_add_loop_test(
        tc, wrong_service_is_told_at_once, 0, (int)LENGTH_OF(others));
    tcase_add_test(tc, attempt_without_time_left_does_not_hide_the_reason);
    tcase_add_test(tc, port_out_of_range_is_an_error);
    suite_add_tcase(suite, tc);

    tc = tcase_create("names");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, unknown_name_is_not_tried_for_ever);
    tcase_add_test(tc, silent_name_service_does_not_hold_up_the_deadline);
    suite_add_tcase(suite, tc);
    return unit_run_suite(suite);
}
