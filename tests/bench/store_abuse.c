/*
 * What bad company does to the clients of a store: a few clients work all the
 * time (each adds to a counter and waits for the answer), many are connected
 * and idle, and meanwhile others misbehave, one way after the other:
 *
 *   none       nobody does: what to compare with
 *   elsewhere  the garbage below goes to a second server, so that the machine
 *              is as busy as it will be then (with -e; a fifth of it)
 *   garbage    200,000 connections that are no clients: scanners, browsers,
 *              noise, lengths that lie, resets
 *   half_open  more connections than the server may have descriptors, which
 *              say nothing or stop in the middle of the greeting
 *   frozen     clients that ask for large values and never read them, or stop
 *              in the middle of a request
 *   after      nobody again
 *
 * Prints a line for each, and one for the whole:
 *
 *   phase=garbage connections_s=21000 ops_s=61000 p50_us=98 p99_us=402 ...
 *   idle_lost=0 newcomer_ms=0.4 descriptors=7 descriptors_after=7 ...
 *
 * newcomer_ms: how long a client that came during half_open waited for its
 * first answer. Ends with status 1 if a working or an idle client was harmed,
 * the newcomer was not served, or the server keeps descriptors (or is gone).
 *
 *     store_abuse -s PID [-e ADDRESS:PORT] [-i IDLE] [-g GARBAGE]
 *         ADDRESS:PORT
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "rendezvous/store_codec.h"
#include "tests/bench/store_bench.h"
#include "tests/bench/store_engine.h"

#define WORKERS 8
#define QUIET_NS (2 * NS_PER_S)
#define SLICE_NS (NS_PER_S / 50)
#define GARBAGE_OPEN 256 /* connections of the garbage at a time */
#define FLOOD_BEYOND 500 /* half-open ones above the limit */
#define FROZEN 16
#define FROZEN_VALUE ((size_t)32 << 20)
#define FROZEN_GETS 1000
#define RECOVERY_NS (20 * NS_PER_S)
#define REQUEST_MAX (FROZEN_VALUE + 1024)
/* Source addresses 127.0.0.N: one for those who stay, several for the
 * garbage, whose ports are not free again at once. */
#define SOURCE_STAY 1
#define SOURCE_FLOOD 2
#define SOURCE_GARBAGE 10
#define SOURCE_COUNT 40

enum phase { NONE, ELSEWHERE, GARBAGE, HALF_OPEN, FROZEN_PEERS, AFTER };
static const char *const phase_names[] = {
    "none", "elsewhere", "garbage", "half_open", "frozen", "after"};
#define PHASE_COUNT 6

static struct {
    struct sockaddr_in server;
    pid_t pid;
    atomic_int phase;
    atomic_bool stop;
    /* The thread of those who work has these until it ends. */
    struct bench_hist latencies[PHASE_COUNT];
    uint64_t ns[PHASE_COUNT];
    uint64_t ops[PHASE_COUNT];
    /* Taken at the end of a phase. */
    double connections_s[PHASE_COUNT];
    long rss_kib[PHASE_COUNT];
} all;

/* --- Those who work ----------------------------------------------------- */

static void *work(void *arg)
{
    struct engine *e = arg;

    while (!all.stop) {
        int phase = all.phase;
        uint64_t took_ns;
        all.ops[phase] +=
            engine_run(e, SLICE_NS, &all.latencies[phase], &took_ns);
        all.ns[phase] += took_ns;
    }
    return NULL;
}

/* Lets the workers go on for a while with nothing else happening. */
static void quiet(enum phase phase)
{
    struct timespec ts = {.tv_sec = QUIET_NS / NS_PER_S};

    all.phase = phase;
    nanosleep(&ts, NULL);
}

static void note(enum phase phase, double connections_s)
{
    all.connections_s[phase] = connections_s;
    all.rss_kib[phase] = bench_rss_kib(all.pid);
}

static void report(enum phase phase)
{
    const struct bench_hist *h = &all.latencies[phase];

    if (all.ns[phase] == 0)
        return;
    printf("phase=%s connections_s=%.0f ops_s=%.0f p50_us=%.1f p99_us=%.1f "
           "max_us=%.0f rss_kib=%ld\n",
        phase_names[phase], all.connections_s[phase],
        (double)all.ops[phase] * 1e9 / (double)all.ns[phase],
        bench_hist_us(h, 0.5), bench_hist_us(h, 0.99), (double)h->max / 1e3,
        all.rss_kib[phase]);
}

/* --- Requests ----------------------------------------------------------- */

static void put(struct buf *out, const void *bytes, size_t len)
{
    if (buf_append(out, bytes, len) < 0)
        bench_die("no memory");
}

static void put_request(struct buf *out, const struct store_request *req)
{
    if (store_encode(out, STORE_DIALECT_C, req) < 0)
        bench_die("no memory");
}

static void put_u64(struct buf *out, uint64_t value)
{
    if (store_put_u64(out, value) < 0)
        bench_die("no memory");
}

static void put_opcode(struct buf *out, enum store_op op)
{
    uint8_t byte = (uint8_t)store_opcode(STORE_DIALECT_C, op);

    put(out, &byte, 1);
}

static void put_ping(struct buf *out)
{
    put_request(out, &(struct store_request){.op = STORE_OP_PING, .word = 1});
}

/* Connects, from a source address, and waits as long as that takes. */
static int dial(const struct sockaddr_in *server, int source)
{
    int fd = bench_connect(server, source, 0);

    if (fd < 0)
        bench_die("cannot connect: %s", strerror(-fd));
    return fd;
}

static bool send_all(int fd, const struct buf *bytes)
{
    for (size_t sent = 0; sent < bytes->len;) {
        ssize_t n =
            send(fd, buf_bytes(bytes) + sent, bytes->len - sent, MSG_NOSIGNAL);
        if (n < 0)
            return false;
        sent += (size_t)n;
    }
    return true;
}

/* Sends requests of which the last is a PING that stands for them all. */
static bool ask(int fd, const struct buf *bytes)
{
    char answer[4];

    return send_all(fd, bytes) &&
           recv(fd, answer, sizeof(answer), MSG_WAITALL) == sizeof(answer);
}

/* --- Those who are idle ------------------------------------------------- */

static void connect_idle(int *fds, int count)
{
    struct buf hello;

    buf_init(&hello, 64);
    put(&hello, store_greeting, STORE_GREETING_LEN);
    put_ping(&hello);
    for (int i = 0; i < count; i++) {
        fds[i] = dial(&all.server, SOURCE_STAY);
        if (!ask(fds[i], &hello))
            bench_die("idle client %d was not greeted", i + 1);
    }
    buf_fini(&hello);
}

/* How many are not served any more. */
static int count_lost(const int *fds, int count)
{
    struct buf ping;
    int lost = 0;

    buf_init(&ping, 64);
    put_ping(&ping);
    for (int i = 0; i < count; i++)
        lost += !ask(fds[i], &ping);
    buf_fini(&ping);
    return lost;
}

/* --- Garbage ------------------------------------------------------------ */

/* The same noise in every run: a failure can be had again. */
static uint64_t noise(void)
{
    static uint64_t x = 88172645463325252ull;

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}

static void put_noise(struct buf *out, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        char byte = (char)noise();
        put(out, &byte, 1);
    }
}

static void put_garbage(struct buf *out)
{
    static const char http[] =
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: x\r\n\r\n";
    static const uint8_t tls[] = {
        0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03};

    switch (noise() % 9) {
    case 0:
        put_noise(out, 1 + noise() % 600);
        break;
    case 1:
        put(out, http, sizeof(http) - 1);
        break;
    case 2:
        put(out, tls, sizeof(tls));
        put_noise(out, 506);
        break;
    case 3: /* a key of four exabytes */
        put(out, store_greeting, STORE_GREETING_LEN);
        put_opcode(out, STORE_OP_SET);
        put_u64(out, 1ull << 62);
        put_noise(out, 100);
        break;
    case 4: /* a value of a terabyte */
        put(out, store_greeting, STORE_GREETING_LEN);
        put_opcode(out, STORE_OP_SET);
        put_u64(out, 1);
        put(out, "k", 1);
        put_u64(out, 1ull << 40);
        put_noise(out, 100);
        break;
    case 5: /* a list of 2^40 pairs */
        put(out, store_greeting, STORE_GREETING_LEN);
        put_opcode(out, STORE_OP_MULTI_SET);
        put_u64(out, 1ull << 40);
        put_noise(out, 100);
        break;
    case 6: /* a large value that does not come */
        put(out, store_greeting, STORE_GREETING_LEN);
        put_opcode(out, STORE_OP_SET);
        put_u64(out, 1);
        put(out, "k", 1);
        put_u64(out, (uint64_t)100 << 20);
        break;
    case 7: /* no operation */
        put(out, store_greeting, STORE_GREETING_LEN);
        put(out, "\xee", 1);
        break;
    case 8: /* nothing at all */
        break;
    }
}

static void hang_up(int fd)
{
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};

    if (noise() % 2 == 0)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    close(fd);
}

/* Returns connections per second. */
static double garbage(const struct sockaddr_in *server, int count)
{
    uint64_t begin_ns = bench_now_ns();
    int open[GARBAGE_OPEN];
    struct buf bytes;

    buf_init(&bytes, 4096);
    for (int i = 0; i < count; i++) {
        int *slot = &open[i % GARBAGE_OPEN];
        if (i >= GARBAGE_OPEN)
            hang_up(*slot);
        *slot = dial(server, SOURCE_GARBAGE + i % SOURCE_COUNT);
        buf_consume(&bytes, bytes.len);
        put_garbage(&bytes);
        /* The server may have closed it by now: that is its right. */
        send_all(*slot, &bytes);
    }
    for (int i = 0; i < count && i < GARBAGE_OPEN; i++)
        hang_up(open[i]);
    buf_fini(&bytes);
    return count * 1e9 / (double)(bench_now_ns() - begin_ns);
}

/* --- Half-open connections ---------------------------------------------- */

/* In a process of its own, because the idle ones use up this one's
 * descriptors. */
struct flooder {
    pid_t pid;
    int to; /* takes how many; when it is closed, they all end */
    int from; /* gives a byte when all are there */
};

static void flood(int to, int from)
{
    char byte = 0;
    int count;

    if (read(to, &count, sizeof(count)) != sizeof(count))
        return;
    bench_need_descriptors((size_t)count + 16);
    for (int i = 0; i < count; i++) {
        int fd = bench_connect(&all.server, SOURCE_FLOOD, SOCK_NONBLOCK);
        if (fd < 0)
            bench_die("half-open connection %d: %s", i + 1, strerror(-fd));
        /* It may have been closed, or not be accepted yet. */
        if (i % 2 == 0)
            send(fd, store_greeting, 2, MSG_NOSIGNAL);
    }
    if (write(from, &byte, 1) != 1 || read(to, &byte, 1) != 0)
        bench_die("the parent has gone");
}

static struct flooder start_flooder(void)
{
    int to[2], from[2];
    struct flooder f;

    if (pipe(to) < 0 || pipe(from) < 0 || (f.pid = fork()) < 0)
        bench_die("cannot start a process: %s", strerror(errno));
    if (f.pid == 0) {
        close(to[1]);
        close(from[0]);
        flood(to[0], from[1]);
        _exit(0);
    }
    close(to[0]);
    close(from[1]);
    f.to = to[1];
    f.from = from[0];
    return f;
}

/* How long a client that comes now waits for its first answer; negative if it
 * gets none. */
static double newcomer_ms(void)
{
    const struct timeval patience = {.tv_sec = 10};
    uint64_t begin_ns = bench_now_ns();
    int fd = dial(&all.server, SOURCE_STAY);
    struct buf hello;
    bool served;

    buf_init(&hello, 64);
    put(&hello, store_greeting, STORE_GREETING_LEN);
    put_ping(&hello);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    served = ask(fd, &hello);
    close(fd);
    buf_fini(&hello);
    return served ? (double)(bench_now_ns() - begin_ns) / 1e6 : -1;
}

/* Returns what newcomer_ms() said; *count is how many were half open. */
static double half_open(struct flooder *f, int *count)
{
    int status;
    double ms;
    char byte;

    *count = (int)(bench_descriptor_limit(all.pid) -
                   bench_open_descriptors(all.pid)) +
             FLOOD_BEYOND;
    if (write(f->to, count, sizeof(*count)) != sizeof(*count) ||
        read(f->from, &byte, 1) != 1)
        bench_die("the flood has failed");
    ms = newcomer_ms();
    quiet(HALF_OPEN);
    close(f->to);
    close(f->from);
    if (waitpid(f->pid, &status, 0) != f->pid || status != 0)
        bench_die("the flood has failed");
    return ms;
}

/* --- Frozen clients ----------------------------------------------------- */

static void store_large_value(struct store_bytes key)
{
    char *value = calloc(1, FROZEN_VALUE);
    struct buf bytes;
    int fd = dial(&all.server, SOURCE_STAY);

    if (value == NULL)
        bench_die("no memory");
    buf_init(&bytes, REQUEST_MAX);
    put(&bytes, store_greeting, STORE_GREETING_LEN);
    put_request(&bytes, &(struct store_request){.op = STORE_OP_SET,
                            .key = key,
                            .value = store_bytes(value, FROZEN_VALUE)});
    put_ping(&bytes);
    if (!ask(fd, &bytes))
        bench_die("a value of %zu bytes cannot be stored", FROZEN_VALUE);
    buf_fini(&bytes);
    free(value);
    close(fd);
}

static void drop_large_value(struct store_bytes key)
{
    int fd = dial(&all.server, SOURCE_STAY);
    char answer[8];
    struct buf bytes;

    buf_init(&bytes, 256);
    put(&bytes, store_greeting, STORE_GREETING_LEN);
    put_request(
        &bytes, &(struct store_request){.op = STORE_OP_DELETE_KEY, .key = key});
    if (!send_all(fd, &bytes) || recv(fd, answer, 8, MSG_WAITALL) != 8)
        bench_die("the large value cannot be deleted");
    buf_fini(&bytes);
    close(fd);
}

static void frozen(void)
{
    struct store_bytes key = store_bytes("/abuse/large", 12);
    struct buf gets, half;
    int fds[FROZEN];

    store_large_value(key);
    buf_init(&gets, 1 << 20);
    put(&gets, store_greeting, STORE_GREETING_LEN);
    for (int i = 0; i < FROZEN_GETS; i++)
        put_request(
            &gets, &(struct store_request){.op = STORE_OP_GET, .key = key});
    buf_init(&half, 1 << 20);
    put(&half, store_greeting, STORE_GREETING_LEN);
    put_opcode(&half, STORE_OP_SET);
    put_u64(&half, key.len);
    put(&half, key.data, key.len);
    put_u64(&half, FROZEN_VALUE);
    put_noise(&half, 100000);
    for (int i = 0; i < FROZEN; i++) {
        fds[i] = dial(&all.server, SOURCE_STAY);
        /* Who is not read from any more may not wait here for that. */
        send(fds[i], buf_bytes(i % 2 == 0 ? &gets : &half),
            i % 2 == 0 ? gets.len : half.len, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    quiet(FROZEN_PEERS);
    note(FROZEN_PEERS, 0);
    for (int i = 0; i < FROZEN; i++)
        close(fds[i]);
    buf_fini(&gets);
    buf_fini(&half);
    drop_large_value(key);
}

/* --- The whole ---------------------------------------------------------- */

/* Waits until the server has closed what it opened; how many descriptors it
 * then has. */
static long descriptors_after(long before)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    uint64_t deadline_ns = bench_now_ns() + RECOVERY_NS;
    long now;

    while ((now = bench_open_descriptors(all.pid)) > before &&
           bench_now_ns() < deadline_ns)
        nanosleep(&pause, NULL);
    if (now < 0)
        bench_die("the server has gone");
    return now;
}

int main(int argc, char **argv)
{
    struct engine_spec spec = {
        .op = ENGINE_ADD, .value_len = 1, .clients = WORKERS, .in_flight = 1};
    int idle_count = 10000, garbage_count = 200000;
    struct sockaddr_in elsewhere = {0};
    long descriptors, after, rss_kib;
    int option, flooded, lost;
    struct flooder flooder;
    struct engine *engine;
    pthread_t worker;
    double ms;
    int *idle;

    while ((option = getopt(argc, argv, "s:e:i:g:")) != -1) {
        switch (option) {
        case 's':
            all.pid = (pid_t)bench_number(optarg, 1, 1l << 30);
            break;
        case 'e':
            elsewhere = bench_address(optarg);
            break;
        case 'i':
            idle_count = (int)bench_number(optarg, 0, 25000);
            break;
        case 'g':
            garbage_count = (int)bench_number(optarg, 1, 10000000);
            break;
        default:
            return 2;
        }
    }
    if (optind + 1 != argc || all.pid == 0)
        bench_die("wants -s PID and one ADDRESS:PORT");
    all.server = bench_address(argv[optind]);
    bench_need_descriptors((size_t)idle_count + GARBAGE_OPEN + 64);
    idle = calloc((size_t)idle_count + 1, sizeof(*idle));
    if (idle == NULL)
        bench_die("no memory");
    descriptors = bench_open_descriptors(all.pid);
    rss_kib = bench_rss_kib(all.pid);
    flooder = start_flooder();
    connect_idle(idle, idle_count);
    engine = engine_create(&all.server, &spec);
    if (pthread_create(&worker, NULL, work, engine) != 0)
        bench_die("cannot start a thread");

    quiet(NONE);
    note(NONE, 0);
    if (elsewhere.sin_port != 0) {
        all.phase = ELSEWHERE;
        note(ELSEWHERE, garbage(&elsewhere, garbage_count / 5));
    }
    all.phase = GARBAGE;
    note(GARBAGE, garbage(&all.server, garbage_count));
    ms = half_open(&flooder, &flooded);
    note(HALF_OPEN, 0);
    frozen();
    quiet(AFTER);
    note(AFTER, 0);

    all.stop = true;
    pthread_join(worker, NULL);
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        report((enum phase)phase);
    lost = count_lost(idle, idle_count);
    engine_destroy(engine);
    for (int i = 0; i < idle_count; i++)
        close(idle[i]);
    free(idle);
    after = descriptors_after(descriptors);
    printf("idle=%d idle_lost=%d half_open=%d newcomer_ms=%.1f "
           "descriptors=%ld descriptors_after=%ld rss_kib=%ld "
           "rss_after_kib=%ld\n",
        idle_count, lost, flooded, ms, descriptors, after, rss_kib,
        bench_rss_kib(all.pid));
    return lost > 0 || ms < 0 || after > descriptors;
}
