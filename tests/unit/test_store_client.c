/* The blocking client: against the real server, and against peers that are
 * silent, refuse, close, or talk nonsense. */
#include "rendezvous/store_client.h"

#include <dlfcn.h>
#include <netdb.h>
#include <sys/syscall.h>
#include <time.h>

#include "test_store_net.h"
#include "unit.h"

static struct err e; /* of the latest call that a test makes */

static uint64_t soon(void)
{
    return clock_deadline_ns(100);
}

static uint64_t later(void)
{
    return clock_deadline_ns(PATIENCE_MS);
}

static struct store_client *connect_to(int port)
{
    struct store_client *c = NULL;

    ck_assert_msg(store_client_connect(&c, "127.0.0.1", port, later(), &e) == 0,
        "%s", e.msg);
    return c;
}

#define assert_ok(call)                                                        \
    do {                                                                       \
        int call_rc = (call);                                                  \
        ck_assert_msg(call_rc == 0, "%s: %d %s", #call, call_rc, e.msg);       \
    } while (0)

static void assert_get(
    struct store_client *c, const char *key, const char *want)
{
    struct buf out;

    buf_init(&out, 4096);
    assert_ok(store_client_get(c, key, &out, later(), &e));
    ck_assert_uint_eq(out.len, strlen(want));
    if (out.len > 0)
        ck_assert_mem_eq(buf_bytes(&out), want, out.len);
    buf_fini(&out);
}

static void set_text(struct store_client *c, const char *key, const char *text)
{
    assert_ok(store_client_set(c, key, text, strlen(text), later(), &e));
}

/* --- With the real server ------------------------------------------------ */

static struct served served;
static struct store_client *a, *b;

static void setup(void)
{
    served_start(&served);
    a = connect_to(served.port);
    b = connect_to(served.port);
}

static void teardown(void)
{
    store_client_close(a);
    store_client_close(b);
    served_stop(&served);
}

START_TEST(what_one_sets_another_gets)
{
    set_text(a, "key", "value");
    assert_get(b, "key", "value");
    set_text(a, "empty", "");
    assert_get(b, "empty", "");
}
END_TEST

START_TEST(get_appends_to_the_buffer)
{
    struct buf out = from_hex("61");

    set_text(a, "key", "bc");
    assert_ok(store_client_get(a, "key", &out, later(), &e));
    ck_assert_uint_eq(out.len, 3);
    ck_assert_mem_eq(buf_bytes(&out), "abc", 3);
    buf_fini(&out);
}
END_TEST

START_TEST(keys_get_the_slash_of_pytorch)
{
    int fd = raw_client(served.port);

    set_text(a, "key", "v");
    assert_get(a, "key", "v"); /* so it has arrived */
    raw_send(fd, "03 0400000000000000 2f6b6579");
    raw_expect(fd, "0100000000000000 76");
    close(fd);
}
END_TEST

START_TEST(add_counts_for_all)
{
    int64_t sum = 0;

    assert_ok(store_client_add(a, "n", 5, &sum, later(), &e));
    ck_assert_int_eq(sum, 5);
    assert_ok(store_client_add(b, "n", -7, &sum, later(), &e));
    ck_assert_int_eq(sum, -2);
    assert_get(a, "n", "-2");
}
END_TEST

START_TEST(check_tells_whether_all_keys_exist)
{
    const char *const keys[] = {"x", "y"};
    int all = -1;

    set_text(a, "x", "");
    assert_ok(store_client_check(a, keys, 2, &all, later(), &e));
    ck_assert_int_eq(all, 0);
    set_text(a, "y", "");
    assert_ok(store_client_check(a, keys, 2, &all, later(), &e));
    ck_assert_int_eq(all, 1);
    assert_ok(store_client_check(a, keys, 0, &all, later(), &e));
    ck_assert_int_eq(all, 1);
}
END_TEST

START_TEST(get_that_times_out_leaves_the_connection_usable)
{
    struct buf out = from_hex("61");
    int64_t sum;

    ck_assert_int_eq(
        store_client_get(a, "never", &out, soon(), &e), -ETIMEDOUT);
    ck_assert_int_eq(e.rc, -ETIMEDOUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "never"));
    ck_assert_uint_eq(out.len, 1);
    buf_fini(&out);

    /* A late answer would be taken for the first byte of the next one. */
    set_text(b, "never", "x");
    assert_get(b, "never", "x");
    assert_ok(store_client_add(a, "n", 1, &sum, later(), &e));
    ck_assert_int_eq(sum, 1);
    assert_get(a, "never", "x");
}
END_TEST

START_TEST(deadline_that_is_over_finds_only_what_is_there)
{
    const char *const key = "key";

    ck_assert_int_eq(store_client_wait(a, &key, 1, 0, &e), -ETIMEDOUT);
    set_text(a, "key", "v");
    assert_get(a, "key", "v");
}
END_TEST

struct setter {
    struct store_client *client;
    const char *key;
};

static void *set_in_thread(void *arg)
{
    struct setter *s = arg;

    store_client_set(s->client, s->key, "late", 4, later(), NULL);
    return NULL;
}

START_TEST(wait_is_released_by_another_client)
{
    struct setter setter = {.client = b, .key = "k2"};
    const char *const keys[] = {"k1", "k2"};
    pthread_t thread;

    set_text(a, "k1", "");
    ck_assert_int_eq(pthread_create(&thread, NULL, set_in_thread, &setter), 0);
    assert_ok(store_client_wait(a, keys, 2, later(), &e));
    assert_get(a, "k2", "late");
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}
END_TEST

/* Time-outs against sets at the same moment: whoever wins, every answer
 * belongs to its question. */
START_TEST(race_of_timeout_and_set_never_confuses_the_connection)
{
    for (int i = 0; i < 300; i++) {
        struct buf out = from_hex("");
        struct setter setter = {.client = b};
        char key[16];
        pthread_t thread;
        int64_t sum;
        int rc;

        snprintf(key, sizeof(key), "k%d", i);
        setter.key = key;
        ck_assert_int_eq(
            pthread_create(&thread, NULL, set_in_thread, &setter), 0);
        rc = store_client_get(
            a, key, &out, clock_now_ns() + (uint64_t)(i % 30) * 10000, &e);
        ck_assert(rc == 0 || rc == -ETIMEDOUT);
        ck_assert_uint_eq(out.len, rc == 0 ? 4 : 0);
        assert_ok(store_client_add(a, "n", 1, &sum, later(), &e));
        ck_assert_int_eq(sum, i + 1);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        buf_fini(&out);
    }
}
END_TEST

static const size_t sizes[] = {0, 1, 1 << 20, (size_t)64 << 20};

START_TEST(values_of_all_sizes_come_back_the_same)
{
    size_t size = sizes[_i];
    char *value = malloc(size + 1);
    struct buf out;

    for (size_t i = 0; i < size; i++)
        value[i] = (char)(i * 31 + i / 4099);
    buf_init(&out, STORE_VALUE_MAX);
    assert_ok(store_client_set(a, "big", value, size, later(), &e));
    assert_ok(store_client_get(b, "big", &out, later(), &e));
    ck_assert_uint_eq(out.len, size);
    if (size > 0)
        ck_assert(memcmp(buf_bytes(&out), value, size) == 0);
    buf_fini(&out);
    free(value);
}
END_TEST

START_TEST(too_long_is_refused_before_anything_is_sent)
{
    char key[STORE_KEY_MAX + 1];
    int64_t sum;

    memset(key, 'k', STORE_KEY_MAX);
    key[STORE_KEY_MAX] = '\0';
    ck_assert_int_eq(store_client_add(a, key, 1, &sum, later(), &e), -EMSGSIZE);
    ck_assert_int_eq(
        store_client_set(a, "k", "", STORE_VALUE_MAX + 1, later(), &e),
        -EMSGSIZE);
    key[STORE_KEY_MAX - 1] = '\0'; /* with the slash: just allowed */
    assert_ok(store_client_add(a, key, 1, &sum, later(), &e));
    ck_assert_int_eq(sum, 1);
}
END_TEST

START_TEST(value_larger_than_the_buffer_is_an_error)
{
    struct buf out;

    buf_init(&out, 3);
    set_text(a, "key", "four");
    ck_assert_int_eq(store_client_get(a, "key", &out, later(), &e), -ENOBUFS);
    ck_assert_uint_eq(out.len, 0);
    ck_assert_int_eq(store_client_get(a, "key", &out, later(), &e), -ENOTCONN);
    buf_fini(&out);
}
END_TEST

START_TEST(numbers_that_are_none_end_the_connection)
{
    int64_t sum = 0;

    set_text(a, "key", "x");
    ck_assert_int_eq(
        store_client_add(a, "key", 1, &sum, later(), &e), -ECONNRESET);
    ck_assert_int_eq(e.rc, -ECONNRESET);
    ck_assert_int_eq(store_client_add(a, "n", 1, &sum, later(), &e), -ENOTCONN);
    assert_ok(store_client_add(b, "n", 1, &sum, later(), &e));
}
END_TEST

START_TEST(server_that_ends_releases_who_waits)
{
    const char *const key = "never";
    struct store_client *c;
    struct served s;
    int raw;

    served_start(&s);
    c = connect_to(s.port);
    raw = raw_client(s.port);
    served_stop(&s);
    raw_expect_closed(raw);
    ck_assert_int_eq(store_client_wait(c, &key, 1, later(), &e), -ECONNRESET);
    store_client_close(c);
}
END_TEST

static void assert_compare_set(const char *expected, const char *now)
{
    struct buf out;

    buf_init(&out, 64);
    assert_ok(store_client_compare_set(
        a, "claim", expected, "mine", &out, later(), &e));
    ck_assert_uint_eq(out.len, strlen(now));
    ck_assert_mem_eq(buf_bytes(&out), now, out.len);
    buf_fini(&out);
}

START_TEST(compare_set_takes_what_is_free_or_as_expected)
{
    assert_compare_set("theirs", "theirs"); /* missing: not set */
    assert_compare_set("", "mine");
    assert_get(b, "claim", "mine");
    set_text(b, "claim", "theirs");
    assert_compare_set("", "theirs");
    assert_compare_set("mine", "theirs");
    assert_compare_set("theirs", "mine");
    assert_get(b, "claim", "mine");
}
END_TEST

START_TEST(deleted_key_is_gone_when_the_call_returns)
{
    const char *keys[] = {"gone"};
    int exists = -1;

    set_text(b, "gone", "x");
    assert_get(a, "gone", "x");
    assert_ok(store_client_delete(a, "gone", later(), &e));
    assert_ok(store_client_check(b, keys, 1, &exists, later(), &e));
    ck_assert_int_eq(exists, 0);
    assert_ok(store_client_delete(a, "gone", later(), &e));
}
END_TEST

START_TEST(localhost_is_found)
{
    struct store_client *c = NULL;

    assert_ok(store_client_connect(&c, "localhost", served.port, later(), &e));
    store_client_close(c);
}
END_TEST

START_TEST(sixty_four_clients_meet)
{
    struct store_client *clients[64];
    const char *keys[64];
    char names[64][16];

    for (int i = 0; i < 64; i++) {
        clients[i] = connect_to(served.port);
        snprintf(names[i], sizeof(names[i]), "r%d", i);
        keys[i] = names[i];
        set_text(clients[i], keys[i], keys[i]);
    }
    for (int i = 0; i < 64; i++) {
        assert_ok(store_client_wait(clients[i], keys, 64, later(), &e));
        assert_get(clients[i], keys[63 - i], keys[63 - i]);
    }
    for (int i = 0; i < 64; i++)
        store_client_close(clients[i]);
}
END_TEST

/* --- Peers that are no server -------------------------------------------- */

/* One connection's script: that many bytes to read, then what to send. */
struct step {
    const char *expect, *send;
};

struct fake {
    int listen_fd, port;
    const struct step *steps;
    size_t nsteps;
    int closed_first; /* connections that end after the greeting */
    pthread_t thread;
};

static bool read_exactly(int fd, size_t len)
{
    char byte;

    for (; len > 0; len--)
        if (recv(fd, &byte, 1, 0) != 1)
            return false;
    return true;
}

static void *fake_main(void *arg)
{
    struct fake *f = arg;
    char byte;
    int fd;

    for (int i = 0; i < f->closed_first; i++) {
        fd = accept4(f->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        read_exactly(fd, 10); /* VALIDATE and PING */
        close(fd);
    }
    fd = accept4(f->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    for (size_t n = 0; n < f->nsteps; n++) {
        struct buf want = from_hex(f->steps[n].expect);
        struct buf answer = from_hex(f->steps[n].send);

        if (read_exactly(fd, want.len) && answer.len > 0)
            send(fd, buf_bytes(&answer), answer.len, MSG_NOSIGNAL);
        buf_fini(&want);
        buf_fini(&answer);
    }
    while (recv(fd, &byte, 1, 0) > 0)
        ; /* silent until the client has gone */
    close(fd);
    return NULL;
}

static void fake_start(struct fake *f)
{
    f->listen_fd = raw_listen(&f->port);
    ck_assert_int_eq(pthread_create(&f->thread, NULL, fake_main, f), 0);
}

static void fake_stop(struct fake *f)
{
    ck_assert_int_eq(pthread_join(f->thread, NULL), 0);
    close(f->listen_fd);
}

static int fail_to_connect(const char *host, int port)
{
    struct store_client *c = NULL;
    int rc = store_client_connect(&c, host, port, soon(), &e);

    ck_assert_ptr_null(c);
    ck_assert_int_eq(rc, e.rc);
    return rc;
}

static void assert_names(const char *host, int port)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", port);
    ck_assert_msg(strstr(e.msg, host) != NULL, "%s", e.msg);
    ck_assert_msg(strstr(e.msg, text) != NULL, "%s", e.msg);
}

START_TEST(refused_port_is_tried_until_the_deadline)
{
    int port;

    close(raw_listen(&port));
    ck_assert_int_eq(fail_to_connect("127.0.0.1", port), -ECONNREFUSED);
    assert_names("127.0.0.1", port);
    ck_assert_msg(strstr(e.msg, "refused") != NULL, "%s", e.msg);
    ck_assert_msg(strstr(e.msg, "(1 attempt ") == NULL, "%s", e.msg);
}
END_TEST

START_TEST(silent_peer_is_told_from_a_refused_port)
{
    int port, fd = raw_listen(&port);

    ck_assert_int_eq(fail_to_connect("127.0.0.1", port), -ETIMEDOUT);
    assert_names("127.0.0.1", port);
    ck_assert_msg(
        strstr(e.msg, "nobody answers the greeting") != NULL, "%s", e.msg);
    close(fd);
}
END_TEST

START_TEST(name_that_does_not_resolve_is_told)
{

    ck_assert_int_eq(fail_to_connect("no such host", 29500), -ENOENT);
    assert_names("no such host", 29500);
    ck_assert_msg(strstr(e.msg, "does not resolve") != NULL, "%s", e.msg);
}
END_TEST

/* Stands in for libc's: a clock and a resolver for the next test. */
static bool is_world_fake;
static time_t fake_seconds;

int clock_gettime(clockid_t id, struct timespec *ts)
{
    long rc = syscall(SYS_clock_gettime, id, ts);

    ts->tv_sec += fake_seconds;
    return (int)rc;
}

int getaddrinfo(const char *host, const char *service,
    const struct addrinfo *hints, struct addrinfo **out)
{
    static int (*real)(const char *, const char *, const struct addrinfo *,
        struct addrinfo **);

    if (is_world_fake) {
        fake_seconds += 4;
        return EAI_NONAME;
    }
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    return real(host, service, hints, out);
}

START_TEST(unknown_name_is_not_tried_for_ever)
{
    struct store_client *c = NULL;

    is_world_fake = true;
    ck_assert_int_eq(store_client_connect(&c, "mistyped", 29500,
                         clock_deadline_ns(30 * 60 * 1000), &e),
        -ENOENT);
    is_world_fake = false;
    ck_assert_msg(strstr(e.msg, "does not resolve") != NULL, "%s", e.msg);
    ck_assert_msg(strstr(e.msg, gai_strerror(EAI_NONAME)) != NULL, "%s", e.msg);
    ck_assert_int_ge(fake_seconds, 60);
    ck_assert_int_lt(fake_seconds, 120);
    fake_seconds = 0;
}
END_TEST

START_TEST(garbage_for_a_greeting_is_told_at_once)
{
    static const struct step ssh[] = {{"", "5353482d322e30"}};
    struct fake f = {.steps = ssh, .nsteps = 1};
    struct store_client *c = NULL;

    fake_start(&f);
    ck_assert_int_eq(
        store_client_connect(&c, "127.0.0.1", f.port, later(), &e), -EPROTO);
    assert_names("127.0.0.1", f.port);
    ck_assert_msg(strstr(e.msg, "no TCPStore") != NULL, "%s", e.msg);
    fake_stop(&f);
}
END_TEST

/* What the attempts before found is the better reason. */
START_TEST(attempt_without_time_left_does_not_hide_the_reason)
{
    struct fake f = {.closed_first = 2};
    struct store_client *c = NULL;

    fake_start(&f);
    ck_assert_int_eq(store_client_connect(
                         &c, "127.0.0.1", f.port, clock_deadline_ns(190), &e),
        -ECONNRESET);
    ck_assert_msg(strstr(e.msg, "closed at the greeting") != NULL, "%s", e.msg);
    close(raw_connect(f.port)); /* in case that nobody came */
    fake_stop(&f);
}
END_TEST

START_TEST(port_out_of_range_is_an_error)
{

    ck_assert_int_eq(fail_to_connect("127.0.0.1", 0), -EINVAL);
    ck_assert_int_eq(fail_to_connect("127.0.0.1", 65536), -EINVAL);
}
END_TEST

/* Also: PyTorch 2.2 to 2.4 closes on PING, and is asked otherwise then. */
START_TEST(server_that_closes_on_ping_is_asked_otherwise)
{
    static const struct step old[] = {
        {"000000000000", ""}, {"", "0000000000000000"}};
    struct fake f = {.steps = old, .nsteps = 2, .closed_first = 1};
    struct store_client *c;

    fake_start(&f);
    c = connect_to(f.port);
    store_client_close(c);
    fake_stop(&f);
}
END_TEST

/* Reads VALIDATE and PING, echoes the nonce, then follows the script. */
struct frozen {
    int listen_fd, port;
    const char *answer; /* to whatever comes after the greeting */
    pthread_t thread;
};

static void *frozen_main(void *arg)
{
    struct frozen *f = arg;
    int fd = accept4(f->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    struct buf answer = from_hex(f->answer);
    char greeting[10], byte;

    if (recv(fd, greeting, sizeof(greeting), MSG_WAITALL) == 10)
        send(fd, greeting + 6, 4, MSG_NOSIGNAL);
    if (recv(fd, &byte, 1, 0) == 1 && answer.len > 0)
        send(fd, buf_bytes(&answer), answer.len, MSG_NOSIGNAL);
    while (recv(fd, &byte, 1, 0) > 0)
        ;
    close(fd);
    buf_fini(&answer);
    return NULL;
}

static struct store_client *frozen_start(struct frozen *f, const char *answer)
{
    f->answer = answer;
    f->listen_fd = raw_listen(&f->port);
    ck_assert_int_eq(pthread_create(&f->thread, NULL, frozen_main, f), 0);
    return connect_to(f->port);
}

static void frozen_stop(struct frozen *f, struct store_client *c)
{
    store_client_close(c);
    ck_assert_int_eq(pthread_join(f->thread, NULL), 0);
    close(f->listen_fd);
}

START_TEST(frozen_server_does_not_hold_a_call_beyond_its_deadline)
{
    struct store_client *c;
    struct frozen f;
    int64_t sum;

    c = frozen_start(&f, "");
    ck_assert_int_eq(store_client_add(c, "n", 1, &sum, soon(), &e), -EHOSTDOWN);
    assert_names("127.0.0.1", f.port);
    ck_assert_int_eq(store_client_add(c, "n", 1, &sum, later(), &e), -ENOTCONN);
    frozen_stop(&f, c);
}
END_TEST

START_TEST(frozen_server_does_not_hold_a_wait_for_ever)
{
    const char *const key = "k";
    struct store_client *c;
    struct frozen f;

    c = frozen_start(&f, "");
    ck_assert_int_eq(store_client_wait(c, &key, 1, soon(), &e), -EHOSTDOWN);
    ck_assert_int_eq(e.rc, -EHOSTDOWN);
    frozen_stop(&f, c);
}
END_TEST

START_TEST(answer_that_is_none_ends_the_connection)
{
    const char *const key = "k";
    struct store_client *c;
    struct frozen f;

    c = frozen_start(&f, "07");
    ck_assert_int_eq(store_client_wait(c, &key, 1, later(), &e), -EPROTO);
    ck_assert_int_eq(store_client_wait(c, &key, 1, later(), &e), -ENOTCONN);
    frozen_stop(&f, c);
}
END_TEST

START_TEST(absurd_length_of_a_value_takes_no_memory)
{
    struct store_client *c;
    struct frozen f;
    struct buf out;

    buf_init(&out, SIZE_MAX / 2);
    c = frozen_start(&f, "00 ffffffffffffff7f"); /* WAIT, then GET */
    ck_assert_int_eq(store_client_get(c, "k", &out, later(), &e), -EPROTO);
    ck_assert_ptr_null(out.data);
    frozen_stop(&f, c);
}
END_TEST

START_TEST(close_takes_null)
{
    store_client_close(NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_client");
    TCase *tc = tcase_create("server");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, what_one_sets_another_gets);
    tcase_add_test(tc, get_appends_to_the_buffer);
    tcase_add_test(tc, keys_get_the_slash_of_pytorch);
    tcase_add_test(tc, add_counts_for_all);
    tcase_add_test(tc, check_tells_whether_all_keys_exist);
    tcase_add_test(tc, get_that_times_out_leaves_the_connection_usable);
    tcase_add_test(tc, deadline_that_is_over_finds_only_what_is_there);
    tcase_add_test(tc, wait_is_released_by_another_client);
    tcase_add_test(tc, race_of_timeout_and_set_never_confuses_the_connection);
    tcase_add_loop_test(
        tc, values_of_all_sizes_come_back_the_same, 0, (int)LENGTH_OF(sizes));
    tcase_add_test(tc, too_long_is_refused_before_anything_is_sent);
    tcase_add_test(tc, value_larger_than_the_buffer_is_an_error);
    tcase_add_test(tc, numbers_that_are_none_end_the_connection);
    tcase_add_test(tc, server_that_ends_releases_who_waits);
    tcase_add_test(tc, compare_set_takes_what_is_free_or_as_expected);
    tcase_add_test(tc, deleted_key_is_gone_when_the_call_returns);
    tcase_add_test(tc, localhost_is_found);
    tcase_add_test(tc, sixty_four_clients_meet);
    suite_add_tcase(suite, tc);

    tc = tcase_create("others");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, refused_port_is_tried_until_the_deadline);
    tcase_add_test(tc, silent_peer_is_told_from_a_refused_port);
    tcase_add_test(tc, name_that_does_not_resolve_is_told);
    tcase_add_test(tc, unknown_name_is_not_tried_for_ever);
    tcase_add_test(tc, attempt_without_time_left_does_not_hide_the_reason);
    tcase_add_test(tc, garbage_for_a_greeting_is_told_at_once);
    tcase_add_test(tc, port_out_of_range_is_an_error);
    tcase_add_test(tc, server_that_closes_on_ping_is_asked_otherwise);
    tcase_add_test(tc, frozen_server_does_not_hold_a_call_beyond_its_deadline);
    tcase_add_test(tc, frozen_server_does_not_hold_a_wait_for_ever);
    tcase_add_test(tc, answer_that_is_none_ends_the_connection);
    tcase_add_test(tc, absurd_length_of_a_value_takes_no_memory);
    tcase_add_test(tc, close_takes_null);
    suite_add_tcase(suite, tc);
    return unit_run_suite(suite);
}
