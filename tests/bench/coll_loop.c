/*
 * A rank of a collective benchmark: waits for its turn, and then for each call
 *
 *   1. writes all of the input anew, so that no call finds the data or the
 *      mappings of the one before it in a cache
 *   2. passes the loop's own barrier
 *   3. times the call
 *   4. checks every element
 */
#include "tests/bench/coll_loop.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/coll_turn.h"

/* Waiting: the ranks usually come together. One that waits for longer, as
 * for others of a job with more ranks than cores, must leave the core. */
#define BARRIER_SPINS 2000
#define BARRIER_YIELD_US 200.0
#define BARRIER_LIMIT_US 60e6

#define SHORT_US 2000.0

struct buffers {
    float *send;
    float *recv;
};

struct loop {
    const struct bench_coll *coll;
    struct bench_area *area;
    int fd;
    struct buffers ordinary; /* got when they are wanted first */
    struct buffers allocated; /* by the library */
    unsigned call; /* of all turns: no two calls have the same input */
};

/* One turn: sizes in elements. */
struct turn {
    enum bench_op op;
    struct buffers in;
    size_t count; /* of the size that is told */
    size_t part; /* of one rank */
    size_t messages; /* of a stream */
    int peer;
};

static double now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

/* --- Input and output ---------------------------------------------------- */

/* Integers below 4096: their sums are exact in any order, so results are
 * compared for equality. Parts, ranks and calls all differ. */
static inline float input(uint32_t i, uint32_t call, uint32_t rank)
{
    return (float)((i * 2654435761u + call * 40503u * 65537u +
                       rank * 2246822519u) >>
                   20);
}

static void write_input(float *buf, size_t count, unsigned call, int rank)
{
    for (uint32_t i = 0; i < (uint32_t)count; i++)
        buf[i] = input(i, call, (uint32_t)rank);
}

/* How many of the elements at got are not the sum of the input from index
 * first on of the ranks from low to high. */
static uint64_t count_wrong(const float *got, size_t count, size_t first,
    unsigned call, int low, int high)
{
    enum { BLOCK = 1024 };
    uint64_t wrong = 0;

    for (size_t at = 0; at < count; at += BLOCK) {
        uint32_t n = count - at < BLOCK ? (uint32_t)(count - at) : BLOCK;
        uint32_t bad = 0;
        float want[BLOCK] = {0};
        for (int rank = low; rank <= high; rank++)
            for (uint32_t i = 0; i < n; i++)
                want[i] +=
                    input((uint32_t)(first + at) + i, call, (uint32_t)rank);
        for (uint32_t i = 0; i < n; i++)
            bad += got[at + i] != want[i];
        wrong += bad;
    }
    return wrong;
}

static void prepare(const struct loop *loop, const struct turn *turn)
{
    int rank = loop->coll->rank;
    size_t count = turn->count * turn->messages;

    if (turn->op == BENCH_ALL_GATHER)
        count = turn->part;
    if (turn->op != BENCH_BROADCAST || rank == 0)
        write_input(turn->in.send, count, loop->call, rank);
}

static uint64_t check(const struct loop *loop, const struct turn *turn)
{
    const struct bench_coll *coll = loop->coll;
    const float *recv = turn->in.recv;
    unsigned call = loop->call;
    int last = coll->size - 1;
    uint64_t wrong = 0;

    switch (turn->op) {
    case BENCH_ALL_REDUCE:
        return count_wrong(recv, turn->count, 0, call, 0, last);
    case BENCH_BROADCAST:
        return coll->rank == 0 ? 0
                               : count_wrong(recv, turn->count, 0, call, 0, 0);
    case BENCH_ALL_GATHER:
        for (int r = 0; r <= last; r++)
            wrong += count_wrong(
                recv + (size_t)r * turn->part, turn->part, 0, call, r, r);
        return wrong;
    case BENCH_REDUCE_SCATTER:
        return count_wrong(
            recv, turn->part, (size_t)coll->rank * turn->part, call, 0, last);
    case BENCH_ALL_TO_ALL:
        for (int r = 0; r <= last; r++)
            wrong += count_wrong(recv + (size_t)r * turn->part, turn->part,
                (size_t)coll->rank * turn->part, call, r, r);
        return wrong;
    case BENCH_STREAM:
        if (coll->rank % 2 == 0)
            return 0;
        return count_wrong(recv, turn->count * turn->messages, 0, call,
            turn->peer, turn->peer);
    case BENCH_PING_PONG:
    case BENCH_EXCHANGE:
        return count_wrong(recv, turn->count, 0, call, turn->peer, turn->peer);
    default: /* a barrier moves nothing */
        return 0;
    }
}

/* --- The calls ----------------------------------------------------------- */

static int ping_pong(const struct bench_coll *coll, const struct turn *turn)
{
    const float *send = turn->in.send;
    float *recv = turn->in.recv;

    if (coll->rank % 2 == 0)
        return coll->send(send, turn->count, turn->peer) < 0
                   ? -1
                   : coll->recv(recv, turn->count, turn->peer);
    return coll->recv(recv, turn->count, turn->peer) < 0
               ? -1
               : coll->send(send, turn->count, turn->peer);
}

static int stream(const struct bench_coll *coll, const struct turn *turn)
{
    const float *send = turn->in.send;
    float *recv = turn->in.recv;
    bool is_sender = coll->rank % 2 == 0;

    for (size_t i = 0; i < turn->messages; i++) {
        size_t at = i * turn->count;
        int rc = is_sender ? coll->send(send + at, turn->count, turn->peer)
                           : coll->recv(recv + at, turn->count, turn->peer);
        if (rc < 0)
            return -1;
    }
    return is_sender ? coll->recv(recv, 1, turn->peer)
                     : coll->send(send, 1, turn->peer);
}

static int call(const struct bench_coll *coll, const struct turn *turn)
{
    const float *send = turn->in.send;
    float *recv = turn->in.recv;

    switch (turn->op) {
    case BENCH_ALL_REDUCE:
        return coll->all_reduce(send, recv, turn->count);
    case BENCH_BROADCAST:
        return coll->broadcast(
            coll->rank == 0 ? turn->in.send : recv, turn->count);
    case BENCH_ALL_GATHER:
        return coll->all_gather(send, recv, turn->part);
    case BENCH_REDUCE_SCATTER:
        return coll->reduce_scatter(send, recv, turn->part);
    case BENCH_ALL_TO_ALL:
        return coll->all_to_all(send, recv, turn->part);
    case BENCH_BARRIER:
        return coll->barrier();
    case BENCH_PING_PONG:
        return ping_pong(coll, turn);
    case BENCH_STREAM:
        return stream(coll, turn);
    case BENCH_EXCHANGE:
        return coll->exchange(send, recv, turn->count);
    default:
        return -1;
    }
}

/* What one message or operation of the call took, if all of it took us. */
static double share(const struct turn *turn, double us)
{
    if (turn->op == BENCH_PING_PONG)
        return us / 2;
    return us / (double)turn->messages;
}

/* --- Buffers ------------------------------------------------------------- */

static int get_buffers(struct buffers *b, void *(*alloc)(size_t))
{
    if (b->send == NULL)
        b->send = alloc(BENCH_BYTES_MAX);
    if (b->recv == NULL)
        b->recv = alloc(BENCH_BYTES_MAX);
    if (b->send != NULL && b->recv != NULL)
        return 0;
    fprintf(stderr, "out of memory\n");
    return -1;
}

static void put_buffers(struct buffers *b, void (*release)(void *))
{
    if (b->send != NULL)
        release(b->send);
    if (b->recv != NULL)
        release(b->recv);
}

/* --- A turn -------------------------------------------------------------- */

static int futex(atomic_uint *word, int op, unsigned value)
{
    struct timespec second = {1, 0};

    return (int)syscall(SYS_futex, word, op, value, &second, NULL, 0);
}

static int barrier(const struct loop *loop)
{
    struct bench_area *area = loop->area;
    unsigned opened = atomic_load(&area->opened);
    double start;

    if (atomic_fetch_add(&area->arrived, 1) + 1 == (unsigned)loop->coll->size) {
        atomic_store(&area->arrived, 0);
        atomic_store(&area->opened, opened + 1);
        futex(&area->opened, FUTEX_WAKE, BENCH_RANKS_MAX);
        return 0;
    }
    for (int i = 0; i < BARRIER_SPINS; i++)
        if (atomic_load_explicit(&area->opened, memory_order_acquire) != opened)
            return 0;
    start = now_us();
    while (atomic_load(&area->opened) == opened) {
        double waited = now_us() - start;
        if (waited < BARRIER_YIELD_US) {
            sched_yield();
        } else if (waited < BARRIER_LIMIT_US) {
            futex(&area->opened, FUTEX_WAIT, opened);
        } else {
            fprintf(
                stderr, "rank %d: the others did not come\n", loop->coll->rank);
            return -1;
        }
    }
    return 0;
}

static int time_call(
    struct loop *loop, const struct turn *turn, double *us, uint64_t *wrong)
{
    double start;

    loop->call++;
    prepare(loop, turn);
    /* Twice: after the first all are awake, so the second ends for all of
     * them at about the same time. */
    if (barrier(loop) < 0 || barrier(loop) < 0)
        return -1;
    start = now_us();
    if (call(loop->coll, turn) < 0)
        return -1;
    *us = share(turn, now_us() - start);
    *wrong += check(loop, turn);
    return 0;
}

/* How many more calls rank 0 wants, who knows what the latest took. */
static int agree(struct loop *loop, uint32_t calls)
{
    if (loop->coll->rank == 0)
        loop->area->calls = calls;
    return barrier(loop);
}

static uint32_t calls_in(const struct bench_turn *order, double us)
{
    double calls = (double)order->budget_us / us;

    if (calls < order->calls_min)
        return order->calls_min;
    return calls > BENCH_CALLS_MAX ? BENCH_CALLS_MAX : (uint32_t)calls;
}

static int take_turn(
    struct loop *loop, const struct bench_turn *order, struct bench_done *done)
{
    const struct bench_coll *coll = loop->coll;
    struct bench_area *area = loop->area;
    struct turn turn = {
        .op = (enum bench_op)order->op,
        .count = order->bytes / sizeof(float),
        .messages = 1,
        .peer = coll->rank ^ 1,
    };
    double *us = area->us[coll->rank];
    double start;

    if (get_buffers(order->with_alloc ? &loop->allocated : &loop->ordinary,
            order->with_alloc ? coll->alloc : malloc) < 0)
        return -1;
    turn.in = order->with_alloc ? loop->allocated : loop->ordinary;
    turn.part = turn.count / (size_t)coll->size;
    if (turn.op == BENCH_ALL_REDUCE && coll->reduces_in_place)
        turn.in.recv = turn.in.send;
    if (turn.op == BENCH_STREAM)
        turn.messages = bench_stream_messages(order->bytes);
    /* The first call of a turn finds cold caches, and maybe memory that is
     * not there yet; two more do not matter where calls are short. */
    start = now_us();
    if (time_call(loop, &turn, &us[0], &done->wrong) < 0 ||
        agree(loop, now_us() - start < SHORT_US ? 2 : 0) < 0)
        return -1;
    for (uint32_t i = area->calls; i > 0; i--) {
        start = now_us();
        if (time_call(loop, &turn, &us[0], &done->wrong) < 0)
            return -1;
    }
    /* All have read what was agreed on before. */
    if (barrier(loop) < 0 || agree(loop, calls_in(order, now_us() - start)) < 0)
        return -1;
    done->calls = area->calls;
    for (uint32_t i = 0; i < done->calls; i++)
        if (time_call(loop, &turn, &us[i], &done->wrong) < 0)
            return -1;
    return 0;
}

/* --- The driver ---------------------------------------------------------- */

static int map_area(struct loop *loop, const char *dir)
{
    char path[4096];
    int fd;

    snprintf(path, sizeof(path), "%s/area", dir);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        loop->area = mmap(NULL, sizeof(*loop->area), PROT_READ | PROT_WRITE,
            MAP_SHARED, fd, 0);
        close(fd);
        if (loop->area != MAP_FAILED)
            return 0;
        loop->area = NULL;
    }
    perror(path);
    return -1;
}

static int connect_driver(struct loop *loop, const char *dir)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int len = snprintf(at.sun_path, sizeof(at.sun_path), "%s/turns", dir);

    if (len >= (int)sizeof(at.sun_path)) {
        fprintf(stderr, "%s: the name is too long\n", dir);
        return -1;
    }
    loop->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (loop->fd >= 0 &&
        connect(loop->fd, (struct sockaddr *)&at, sizeof(at)) == 0)
        return 0;
    perror(at.sun_path);
    return -1;
}

static int say_hello(const struct loop *loop)
{
    const struct bench_coll *coll = loop->coll;
    bool has_pairs = coll->send != NULL && coll->recv != NULL;
    struct bench_hello hello = {
        .rank = coll->rank,
        .has_alloc = coll->alloc != NULL,
        .ops = (uint32_t)(coll->all_reduce != NULL) << BENCH_ALL_REDUCE |
               (uint32_t)(coll->broadcast != NULL) << BENCH_BROADCAST |
               (uint32_t)(coll->all_gather != NULL) << BENCH_ALL_GATHER |
               (uint32_t)(coll->reduce_scatter != NULL)
                   << BENCH_REDUCE_SCATTER |
               (uint32_t)(coll->all_to_all != NULL) << BENCH_ALL_TO_ALL |
               (uint32_t)(coll->barrier != NULL) << BENCH_BARRIER |
               (uint32_t)has_pairs << BENCH_PING_PONG |
               (uint32_t)has_pairs << BENCH_STREAM |
               (uint32_t)(coll->exchange != NULL) << BENCH_EXCHANGE,
    };

    if (send(loop->fd, &hello, sizeof(hello), MSG_NOSIGNAL) ==
        (ssize_t)sizeof(hello))
        return 0;
    perror("hello");
    return -1;
}

static int take_turns(struct loop *loop)
{
    for (;;) {
        struct bench_turn order;
        struct bench_done done = {0};
        ssize_t n = recv(loop->fd, &order, sizeof(order), 0);
        if (n == 0)
            return 0; /* that was all */
        if (n < 0 && errno == EINTR)
            continue;
        if (n != (ssize_t)sizeof(order) || order.bytes > BENCH_BYTES_MAX) {
            fprintf(stderr, "rank %d: no turn\n", loop->coll->rank);
            return -1;
        }
        done.rc = take_turn(loop, &order, &done);
        if (send(loop->fd, &done, sizeof(done), MSG_NOSIGNAL) < 0 ||
            done.rc < 0)
            return -1;
    }
}

/* Every library gets the same places: a core for each rank where there are
 * enough, and where the scheduler puts them otherwise. A launcher that has
 * bound this process already has done the same. */
static void take_core(const struct bench_coll *coll)
{
    cpu_set_t all, mine;
    int nth = coll->rank;

    if (sched_getaffinity(0, sizeof(all), &all) < 0 ||
        CPU_COUNT(&all) < coll->size)
        return;
    CPU_ZERO(&mine);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && nth-- == 0)
            CPU_SET(cpu, &mine);
    if (sched_setaffinity(0, sizeof(mine), &mine) < 0)
        perror("sched_setaffinity");
}

int bench_coll_loop(const struct bench_coll *coll, const char *dir)
{
    struct loop loop = {.coll = coll, .fd = -1};
    int rc = -1;

    if (coll->size > BENCH_RANKS_MAX) {
        fprintf(stderr, "at most %d ranks\n", BENCH_RANKS_MAX);
        return -1;
    }
    take_core(coll);
    if (map_area(&loop, dir) < 0 || connect_driver(&loop, dir) < 0 ||
        say_hello(&loop) < 0)
        goto done;
    rc = take_turns(&loop);
done:
    if (loop.fd >= 0)
        close(loop.fd);
    if (loop.area != NULL)
        munmap(loop.area, sizeof(*loop.area));
    put_buffers(&loop.allocated, coll->free);
    put_buffers(&loop.ordinary, free);
    return rc;
}
