/* A store and its clients' sockets, with peers that speak the protocol by
 * hand. Ports are in test_store_port.c. */
#include "rendezvous/store_server.h"

#include <dirent.h>
#include <fcntl.h>

#include "test_store_net.h"
#include "unit.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

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

/* --- Clients ------------------------------------------------------------ */

START_TEST(client_is_greeted_and_served)
{
    int fd = raw_client(served.port);

    raw_send(fd, "01 0200000000000000 2f61 0100000000000000 78"
                 "03 0200000000000000 2f61");
    raw_expect(fd, "0100000000000000 78");
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

START_TEST(one_request_may_wake_very_many)
{
    int fds[300];

    for (size_t i = 0; i < LENGTH_OF(fds); i++) {
        fds[i] = raw_client(served.port);
        raw_send(fds[i], "06 0100000000000000 0100000000000000 6b");
        raw_ping(fds[i]);
    }
    raw_send(fds[0], "01 0100000000000000 6b 0000000000000000");
    for (size_t i = 0; i < LENGTH_OF(fds); i++) {
        raw_expect(fds[i], "00");
        close(fds[i]);
    }
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
    GREETING GREETING,
    GREETING "13",
    GREETING "ff",
    GREETING "01 ffffffffffffff7f 00000000", /* STO-01: length 2^63-1 */
    GREETING "01 0100000000000000 6b ffffffffffffff7f 00000000",
    GREETING "01 0100000000000000 6b ffffffffffffffff 00000000",
    GREETING "06 ffffffffffffffff",
    GREETING "0b ffffffffffffff7f 0100000000000000 6b",
    /* ADD to a text without a number. */
    GREETING "01 0100000000000000 6b 0100000000000000 78"
             "04 0100000000000000 6b 0100000000000000",
};

START_TEST(garbage_ends_its_connection_and_harms_nobody)
{
    int client = raw_client(served.port);
    int fd = raw_connect(served.port);

    raw_send(fd, garbage[_i]);
    raw_expect_closed(fd);
    raw_ping(client);
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

/* STO-02. */
START_TEST(peers_that_connect_and_vanish_leave_nothing_behind)
{
    struct linger reset = {.l_onoff = 1, .l_linger = 0};
    int client = raw_client(served.port);
    int before = count_fds(), after;
    uint64_t deadline = clock_deadline_ns(PATIENCE_MS);

    for (int i = 0; i < 2000; i++) {
        int fd = raw_connect(served.port);

        if (i % 4 < 2)
            ck_assert_int_eq(
                setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)),
                0);
        if (i % 2 == 0)
            raw_send(fd, GREETING "01 0100000000000000 6b 0000100000000000");
        close(fd);
    }
    do { /* the server works through them in the order they came */
        assert_alive();
        after = count_fds();
    } while (after > before && clock_left_ms(deadline) > 0);
    ck_assert_int_le(after, before);
    raw_ping(client);
    close(client);
}
END_TEST

START_TEST(sockets_are_closed_on_exec_and_noticed_when_dead)
{
    int client = raw_client(served.port);
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;
    int alive = 0;

    ck_assert_ptr_nonnull(dir);
    while ((entry = readdir(dir)) != NULL) {
        int fd = atoi(entry->d_name), value;
        socklen_t len = sizeof(value);

        if (getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, &len) < 0)
            continue;
        ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        alive += value;
        if (value)
            ck_assert(fcntl(fd, F_GETFL) & O_NONBLOCK);
    }
    closedir(dir);
    ck_assert_int_eq(alive, 2); /* the listener and what it accepted */
    close(client);
}
END_TEST

/* --- Large values, and clients that do not read ------------------------- */

static const size_t sizes[] = {0, 1, 64 * KIB, 64 * MIB};

static void send_u64(int fd, uint64_t value)
{
    raw_send_bytes(fd, &value, sizeof(value)); /* little-endian */
}

static void expect_value(int fd, const char *want, size_t len)
{
    char *got = malloc(len + 1);
    uint64_t n;

    raw_recv(fd, (char *)&n, sizeof(n));
    ck_assert_uint_eq(n, len);
    raw_recv(fd, got, len);
    ck_assert(memcmp(got, want, len) == 0);
    free(got);
}

/* STO-06: every byte arrives, also where the value is compared. */
START_TEST(values_of_every_size_are_kept_byte_by_byte)
{
    size_t size = sizes[_i];
    char *value = malloc(size + 1);
    int fd = raw_client(served.port);

    for (size_t i = 0; i < size; i++)
        value[i] = (char)(i * 31 + i / 251);
    raw_send(fd, "01 0100000000000000 6b"); /* SET k */
    send_u64(fd, size);
    raw_send_bytes(fd, value, size);
    raw_send(fd, "03 0100000000000000 6b"); /* GET k */
    expect_value(fd, value, size);
    /* COMPARE_SET k, from what it has to what it has */
    raw_send(fd, "02 0100000000000000 6b");
    send_u64(fd, size);
    raw_send_bytes(fd, value, size);
    send_u64(fd, size);
    raw_send_bytes(fd, value, size);
    expect_value(fd, value, size);
    /* and with a wrong expectation: what it has */
    raw_send(fd, "02 0100000000000000 6b 0100000000000000 ff"
                 "0100000000000000 6e");
    expect_value(fd, value, size);
    /* A missing key: created if nothing is expected, else told what was. */
    raw_send(fd, "02 0100000000000000 6d 0100000000000000 78");
    send_u64(fd, size);
    raw_send_bytes(fd, value, size);
    raw_expect(fd, "0100000000000000 78");
    raw_send(fd, "02 0100000000000000 6d 0000000000000000");
    send_u64(fd, size);
    raw_send_bytes(fd, value, size);
    expect_value(fd, value, size);
    raw_send(fd, "09 0100000000000000 61"); /* APPEND a */
    send_u64(fd, size);
    raw_send_bytes(fd, value, size);
    raw_send(fd, "03 0100000000000000 61");
    expect_value(fd, value, size);
    free(value);
    close(fd);
}
END_TEST

/* Puts a value of zeros at k. */
static void set_k(int fd, size_t size)
{
    char *value = calloc(1, size);

    raw_send(fd, "01 0100000000000000 6b");
    send_u64(fd, size);
    raw_send_bytes(fd, value, size);
    free(value);
}

START_TEST(client_that_does_not_read_does_not_hold_up_others)
{
    const size_t size = 32 * MIB;
    char *value = calloc(1, size);
    int slow = raw_client(served.port);

    set_k(slow, size);
    raw_send(slow, "03 0100000000000000 6b");
    assert_alive();
    expect_value(slow, value, size); /* and then gets all of it */
    free(value);
    close(slow);
}
END_TEST

#define FLOOD_BATCHES 600
#define FLOOD_BATCH 1000 /* GETs at a time */
#define FLOOD_VALUE 100

static void *flood_main(void *arg)
{
    static const char get_k[10] = "\x03\x01\0\0\0\0\0\0\0k";
    static char batch[FLOOD_BATCH * sizeof(get_k)];
    const int *fd = arg;

    for (size_t i = 0; i < FLOOD_BATCH; i++)
        memcpy(batch + i * sizeof(get_k), get_k, sizeof(get_k));
    for (int i = 0; i < FLOOD_BATCHES; i++)
        raw_send_bytes(*fd, batch, sizeof(batch));
    return NULL;
}

/*
 * Asks 6 MB of questions and does not read 60 MB of replies. If either were
 * piled up, the client would be over the memory limit and be closed; instead
 * it is read no further, and has everything when it reads again.
 */
START_TEST(client_that_asks_and_does_not_read_is_paused)
{
    const struct store_limits limits = {.clients = 10,
        .key_len = 100,
        .value_len = 4 * KIB,
        .list_count = 10,
        .memory = 16 * MIB};
    static const char reply[8 + FLOOD_VALUE] = {FLOOD_VALUE};
    static char want[FLOOD_BATCH * sizeof(reply)], got[sizeof(want)];
    struct served s;
    pthread_t thread;
    int slow, other;

    for (size_t i = 0; i < FLOOD_BATCH; i++)
        memcpy(want + i * sizeof(reply), reply, sizeof(reply));
    served_prepare(&s, "127.0.0.1", NULL, &limits);
    served_run(&s);
    slow = raw_client(s.port);
    other = raw_client(s.port);
    set_k(slow, FLOOD_VALUE);
    ck_assert_int_eq(pthread_create(&thread, NULL, flood_main, &slow), 0);
    for (int i = 0; i < 5000; i++)
        raw_ping(other);
    for (int i = 0; i < FLOOD_BATCHES; i++) {
        raw_recv(slow, got, sizeof(got));
        ck_assert(memcmp(got, want, sizeof(want)) == 0);
    }
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    raw_ping(slow);
    raw_ping(other);
    close(slow);
    close(other);
    served_stop(&s);
}
END_TEST

START_TEST(client_that_resets_while_it_is_paused_is_forgotten)
{
    struct linger reset = {.l_onoff = 1, .l_linger = 0};
    uint64_t deadline = clock_deadline_ns(PATIENCE_MS);
    int before = count_fds(), after;
    int slow = raw_client(served.port);

    set_k(slow, 32 * MIB);
    for (int i = 0; i < 16; i++)
        raw_send(slow, "03 0100000000000000 6b");
    ck_assert_int_eq(
        setsockopt(slow, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
    close(slow);
    do {
        assert_alive();
        after = count_fds();
    } while (after > before && clock_left_ms(deadline) > 0);
    ck_assert_int_le(after, before);
}
END_TEST

/* --- Limits ------------------------------------------------------------- */

static const char *const too_much[] = {
    "01 0500000000000000 6b6b6b6b6b 0000000000000000", /* the key */
    "01 0100000000000000 6b 6500000000000000", /* the value */
    "05 0400000000000000", /* the keys */
};

START_TEST(over_a_limit_only_that_client_is_closed)
{
    const struct store_limits limits = {.clients = 2,
        .key_len = 4,
        .value_len = 100,
        .list_count = 3,
        .memory = MIB};
    struct served s;
    int client, bad;

    served_prepare(&s, "127.0.0.1", NULL, &limits);
    served_run(&s);
    client = raw_client(s.port);
    bad = raw_client(s.port);
    raw_send(bad, too_much[_i]);
    raw_expect_closed(bad);
    raw_ping(client);
    close(raw_client(s.port)); /* its place is free again */
    raw_ping(client);
    close(client);
    served_stop(&s);
}
END_TEST

START_TEST(memory_limit_ends_who_exceeds_it_and_keeps_the_rest)
{
    const struct store_limits limits = {.clients = 10,
        .key_len = 100,
        .value_len = MIB,
        .list_count = 3,
        .memory = 3 * MIB + 512 * KIB}; /* half of it for values */
    char *value = calloc(1, 900 * KIB);
    struct served s;
    int client, bad;

    served_prepare(&s, "127.0.0.1", NULL, &limits);
    served_run(&s);
    client = raw_client(s.port);
    bad = raw_client(s.port);
    set_k(client, 900 * KIB);
    raw_send(bad, "01 0100000000000000 61 0100000000000000 78 0d 01020304");
    raw_expect(bad, "01020304");
    raw_send(bad, "01 0100000000000000 62");
    send_u64(bad, MIB);
    for (int i = 0; i < 16; i++) /* not a byte more than it has announced */
        if (send(bad, value, 64 * KIB, MSG_NOSIGNAL) < 0)
            break; /* closed already */
    raw_expect_closed(bad);
    raw_send(client, "03 0100000000000000 6b 03 0100000000000000 61");
    expect_value(client, value, 900 * KIB);
    expect_value(client, "x", 1);
    free(value);
    close(client);
    served_stop(&s);
}
END_TEST

/* Two requests that do not end fill the buffers: whoever has more goes. */
START_TEST(client_that_fills_the_buffers_is_closed_not_the_others)
{
    const struct store_limits limits = {.clients = 10,
        .key_len = 100,
        .value_len = 4 * MIB,
        .list_count = 3,
        .memory = 4 * MIB}; /* half of it for buffers */
    static char value[64 * KIB];
    struct served s;
    int one, two, other;

    served_prepare(&s, "127.0.0.1", NULL, &limits);
    served_run(&s);
    other = raw_client(s.port);
    one = raw_client(s.port);
    two = raw_client(s.port);
    raw_send(one, "01 0100000000000000 61");
    send_u64(one, 2 * MIB);
    raw_send(two, "01 0100000000000000 62");
    send_u64(two, MIB + 512 * KIB);
    for (int i = 0; i < 24; i++) /* 1.5 MiB */
        raw_send_bytes(one, value, sizeof(value));
    for (int i = 0; i < 16; i++) { /* 1 MiB */
        raw_send_bytes(two, value, sizeof(value));
        raw_ping(other);
    }
    raw_expect_closed(one);
    for (int i = 0; i < 8; i++)
        raw_send_bytes(two, value, sizeof(value));
    raw_send(two, "05 0100000000000000 0100000000000000 62");
    raw_expect(two, "00");
    raw_ping(other);
    close(two);
    close(other);
    served_stop(&s);
}
END_TEST

/* shutdown(2) says that no request follows, not that nobody reads. */
START_TEST(client_that_sends_no_more_gets_all_its_replies)
{
    char *got = malloc(20 * MIB);
    int fd = raw_client(served.port);

    set_k(fd, 20 * MIB);
    raw_send(fd, "03 0100000000000000 6b 0d 01020304");
    ck_assert_int_eq(shutdown(fd, SHUT_WR), 0);
    raw_recv(fd, got, 8);
    raw_recv(fd, got, 20 * MIB);
    raw_expect(fd, "01020304");
    raw_expect_closed(fd);
    assert_alive();
    free(got);
}
END_TEST

START_TEST(requests_before_a_bad_one_are_answered)
{
    int fd = raw_client(served.port);

    raw_send(fd, "04 0100000000000000 6e 0100000000000000 ff");
    raw_expect(fd, "0100000000000000");
    raw_expect_closed(fd);
}
END_TEST

/* The others come in between, however short the requests are that take long. */
START_TEST(client_that_makes_much_work_does_not_keep_others_waiting)
{
    struct buf request = from_hex("06 0000010000000000"); /* WAIT, 65536 keys */
    int busy = raw_client(served.port), other = raw_client(served.port);
    char replies[8 * 2000], byte;

    for (int i = 0; i < 65536; i++) {
        char key[16];

        snprintf(key, sizeof(key), "%d", i);
        ck_assert_int_eq(store_put_bytes(&request, text_bytes(key)), 0);
    }
    raw_send_bytes(busy, buf_bytes(&request), request.len);
    buf_consume(&request, request.len);
    for (int i = 0; i < 2000; i++)
        put_hex(&request, "11"); /* LIST_KEYS */
    raw_ping(busy);
    raw_send_bytes(busy, buf_bytes(&request), request.len);
    raw_recv(busy, &byte, 1); /* it is at it */
    raw_ping(other);
    /* One turn is 32768 entries: so it is far from done. */
    ck_assert_int_lt(
        recv(busy, replies, sizeof(replies), MSG_PEEK | MSG_DONTWAIT),
        (ssize_t)sizeof(replies) / 2);
    raw_recv(busy, replies, sizeof(replies) - 1);
    close(busy);
    close(other);
    buf_fini(&request);
}
END_TEST

/* --- Stores as objects, in this thread ---------------------------------- */

static struct poller *p;

static void object_setup(void)
{
    ck_assert_int_eq(poller_create(&p), 0);
}

static void object_teardown(void)
{
    poller_destroy(p);
}

static struct store_server *new_store(const struct store_limits *limits)
{
    struct store_server *s;

    ck_assert_int_eq(store_server_create(&s, p, limits), 0);
    return s;
}

/* The peer of a client of the store; the store's end in *fd. */
static int new_pair(int *fd)
{
    int fds[2];

    ck_assert_int_eq(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds),
        0);
    *fd = fds[0];
    return fds[1];
}

static int new_client(struct store_server *s)
{
    int fd, peer = new_pair(&fd);
    struct buf b = from_hex(GREETING);

    ck_assert_int_eq(
        store_server_adopt(s, fd, STORE_DIALECT_C, buf_bytes(&b), b.len), 0);
    buf_fini(&b);
    return peer;
}

/* Lets everything happen that can. */
static void turn(void)
{
    while (poller_run(p, 0) > 0)
        ;
}

START_TEST(what_came_before_the_store_got_the_socket_is_executed)
{
    struct store_server *s = new_store(NULL);
    int fd, peer = new_pair(&fd);
    struct buf b = from_hex(
        GREETING "01 0100000000000000 61 0100000000000000 78 0301000000");

    ck_assert_int_eq(
        store_server_adopt(s, fd, STORE_DIALECT_C, buf_bytes(&b), b.len), 0);
    ck_assert_uint_eq(store_server_keys(s), 1);
    raw_send(peer, "00000000 61");
    turn();
    raw_expect(peer, "0100000000000000 78");
    buf_fini(&b);
    store_server_destroy(s);
    raw_expect_closed(peer);
}
END_TEST

START_TEST(socket_is_taken_even_if_it_is_refused)
{
    struct store_server *s = new_store(NULL);
    int fd, peer = new_pair(&fd);

    ck_assert_int_lt(store_server_adopt(s, fd, STORE_DIALECT_C, "GET /", 5), 0);
    ck_assert_uint_eq(store_server_clients(s), 0);
    raw_expect_closed(peer);
    store_server_destroy(s);
}
END_TEST

START_TEST(client_too_many_is_refused)
{
    struct store_limits limits = STORE_LIMITS_DEFAULT;
    struct store_server *s;
    int a, b, fd, peer = new_pair(&fd);

    limits.clients = 2;
    s = new_store(&limits);
    a = new_client(s);
    b = new_client(s);
    ck_assert_int_lt(store_server_adopt(s, fd, STORE_DIALECT_C, NULL, 0), 0);
    raw_expect_closed(peer);
    ck_assert_uint_eq(store_server_clients(s), 2);
    close(a);
    turn();
    ck_assert_uint_eq(store_server_clients(s), 1);
    a = new_client(s);
    store_server_destroy(s);
    raw_expect_closed(a);
    raw_expect_closed(b);
}
END_TEST

START_TEST(each_store_has_keys_and_clients_of_its_own)
{
    struct store_server *one = new_store(NULL), *two = new_store(NULL);
    int a = new_client(one), b = new_client(two);

    raw_send(b, "06 0100000000000000 0100000000000000 6b"); /* WAIT k */
    turn();
    raw_send(a, "01 0100000000000000 6b 0000000000000000 07");
    raw_send(b, "07");
    turn();
    raw_expect(a, "0100000000000000");
    raw_expect(b, "0000000000000000");
    ck_assert_uint_eq(store_server_keys(one), 1);
    ck_assert_uint_eq(store_server_keys(two), 0);
    store_server_destroy(one);
    raw_expect_closed(a);
    raw_send(b, "04 0100000000000000 6b 0100000000000000");
    turn();
    raw_expect(b, "0100000000000000 00"); /* and its own wait is done */
    store_server_destroy(two);
    raw_expect_closed(b);
}
END_TEST

/* The setter's request comes before the waiter's end is seen. */
START_TEST(reply_to_a_client_that_has_gone_raises_no_signal)
{
    struct store_server *s = new_store(NULL);
    int waiting = new_client(s), setting = new_client(s);

    signal(SIGPIPE, SIG_DFL);
    raw_send(waiting, "06 0100000000000000 0100000000000000 6b");
    turn();
    raw_send(setting, "04 0100000000000000 6b 0100000000000000");
    close(waiting);
    turn();
    raw_expect(setting, "0100000000000000");
    ck_assert_uint_eq(store_server_clients(s), 1);
    store_server_destroy(s);
    raw_expect_closed(setting);
}
END_TEST

/* Destroys the store when it is called. */
struct destroyer {
    struct poller_item item;
    struct store_server **store;
};

static void destroyer_cb(struct poller_item *item, uint32_t events)
{
    struct destroyer *d = (struct destroyer *)item;
    int fd = item->fd;

    (void)events;
    store_server_destroy(*d->store);
    *d->store = NULL;
    poller_remove(p, item);
    close(fd);
}

/* In one batch: some clients' requests, then the end of the store, then
 * other clients' requests, which must not be looked at any more. */
START_TEST(store_may_be_destroyed_in_the_middle_of_a_batch)
{
    struct store_server *s = new_store(NULL);
    struct destroyer d = {.store = &s};
    int fds[8], trigger;

    trigger = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ck_assert_int_eq(poller_add(p, &d.item, trigger, EPOLLIN, destroyer_cb), 0);
    for (size_t i = 0; i < LENGTH_OF(fds); i++)
        fds[i] = new_client(s);
    for (int i = 0; i <= (int)LENGTH_OF(fds); i++) {
        if (i == _i) {
            uint64_t one = 1;

            ck_assert_int_eq(write(trigger, &one, sizeof(one)), sizeof(one));
        }
        if (i < (int)LENGTH_OF(fds))
            raw_send(fds[i], "04 0100000000000000 6b 0100000000000000");
    }
    turn();
    ck_assert_ptr_null(s);
    for (int i = 0; i < (int)LENGTH_OF(fds); i++) {
        if (i < _i) {
            char hex[20];

            snprintf(hex, sizeof(hex), "%02x00000000000000", i + 1);
            raw_expect(fds[i], hex);
        }
        raw_expect_closed(fds[i]);
    }
}
END_TEST

START_TEST(destroy_takes_null)
{
    store_server_destroy(NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_server");
    TCase *tc = tcase_create("clients");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, client_is_greeted_and_served);
    tcase_add_test(tc, wait_is_released_by_another_client);
    tcase_add_test(tc, one_request_may_wake_very_many);
    tcase_add_test(tc, waiter_that_left_is_forgotten);
    tcase_add_loop_test(tc, garbage_ends_its_connection_and_harms_nobody, 0,
        (int)LENGTH_OF(garbage));
    tcase_add_test(tc, half_a_request_does_not_hold_up_others);
    tcase_add_test(tc, peers_that_connect_and_vanish_leave_nothing_behind);
    tcase_add_test(tc, sockets_are_closed_on_exec_and_noticed_when_dead);
    tcase_add_loop_test(tc, values_of_every_size_are_kept_byte_by_byte, 0,
        (int)LENGTH_OF(sizes));
    tcase_add_test(tc, client_that_does_not_read_does_not_hold_up_others);
    tcase_add_test(tc, client_that_resets_while_it_is_paused_is_forgotten);
    tcase_add_test(tc, client_that_sends_no_more_gets_all_its_replies);
    tcase_add_test(tc, requests_before_a_bad_one_are_answered);
    tcase_add_test(
        tc, client_that_makes_much_work_does_not_keep_others_waiting);
    suite_add_tcase(suite, tc);

    tc = tcase_create("limits");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, client_that_asks_and_does_not_read_is_paused);
    tcase_add_loop_test(
        tc, over_a_limit_only_that_client_is_closed, 0, LENGTH_OF(too_much));
    tcase_add_test(tc, memory_limit_ends_who_exceeds_it_and_keeps_the_rest);
    tcase_add_test(tc, client_that_fills_the_buffers_is_closed_not_the_others);
    suite_add_tcase(suite, tc);

    tc = tcase_create("objects");
    tcase_add_checked_fixture(tc, object_setup, object_teardown);
    tcase_add_test(tc, what_came_before_the_store_got_the_socket_is_executed);
    tcase_add_test(tc, socket_is_taken_even_if_it_is_refused);
    tcase_add_test(tc, client_too_many_is_refused);
    tcase_add_test(tc, each_store_has_keys_and_clients_of_its_own);
    tcase_add_test(tc, reply_to_a_client_that_has_gone_raises_no_signal);
    tcase_add_loop_test(
        tc, store_may_be_destroyed_in_the_middle_of_a_batch, 0, 9);
    tcase_add_test(tc, destroy_takes_null);
    suite_add_tcase(suite, tc);
    return unit_run_suite(suite);
}
