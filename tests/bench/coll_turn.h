/*
 * What the processes of a collective benchmark say to each other.
 *
 * All libraries that are compared run at once, each as a job of its own, and
 * take turns: the driver (coll_jobs.c) tells the ranks of one job what to time,
 * while those of the others sleep in a read (coll_loop.c). So whatever else
 * the machine does meets all of them alike.
 *
 * In a job's folder are a socket, at which every rank says hello and waits for
 * its turns, and a file that the ranks and the driver map: the barrier of the
 * loop and the times. That barrier is the same for every library, as the time
 * of a call depends on how much apart the ranks begin it.
 */
#ifndef CRUN_BENCH_COLL_TURN_H
#define CRUN_BENCH_COLL_TURN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BENCH_RANKS_MAX 16
#define BENCH_CALLS_MAX 500
#define BENCH_BYTES_MIN ((size_t)4)
#define BENCH_BYTES_MAX ((size_t)64 << 20)
#define BENCH_STREAM_MESSAGES ((size_t)16)

/*
 * X(symbol, name). The size of an operation is, as in nccl-tests, that of the
 * larger of its two buffers on one rank: of all_gather what a rank receives,
 * of reduce_scatter what it gives.
 * Ranks 0 and 1, 2 and 3, ... are partners. ping_pong: there and back, half of
 * the time. stream: the even rank sends several messages, the odd one answers
 * the last; the time of one. exchange: both send, and receive, at once.
 */
#define BENCH_OP_MAP(X)                                                        \
    X(BENCH_ALL_REDUCE, "all_reduce")                                          \
    X(BENCH_BROADCAST, "broadcast")                                            \
    X(BENCH_ALL_GATHER, "all_gather")                                          \
    X(BENCH_REDUCE_SCATTER, "reduce_scatter")                                  \
    X(BENCH_ALL_TO_ALL, "all_to_all")                                          \
    X(BENCH_BARRIER, "barrier")                                                \
    X(BENCH_PING_PONG, "ping_pong")                                            \
    X(BENCH_STREAM, "stream")                                                  \
    X(BENCH_EXCHANGE, "exchange")

enum bench_op {
#define BENCH_OP_ENUM(symbol, name) symbol,
    BENCH_OP_MAP(BENCH_OP_ENUM)
#undef BENCH_OP_ENUM
        BENCH_OP_COUNT
};

/* A rank's first message. */
struct bench_hello {
    int32_t rank;
    uint32_t ops; /* a bit for each operation that the library has */
    int32_t has_alloc;
};

struct bench_turn {
    uint32_t op;
    int32_t with_alloc; /* in buffers from the library's allocator */
    uint64_t bytes;
    uint32_t budget_us; /* for all calls and what is between them */
    uint32_t calls_min;
};

/* A rank's answer when its turn is over. */
struct bench_done {
    int32_t rc;
    uint32_t calls;
    uint64_t wrong; /* elements that this rank found wrong */
};

struct bench_area {
    /* The barrier: how many have come, and how often it has opened. */
    _Alignas(64) atomic_uint arrived;
    _Alignas(64) atomic_uint opened;
    /* How many calls this turn has; rank 0 sets it. */
    _Alignas(64) uint32_t calls;
    double us[BENCH_RANKS_MAX][BENCH_CALLS_MAX];
};

/* How many messages of this size one call of a stream sends. */
static inline size_t bench_stream_messages(size_t bytes)
{
    size_t most = BENCH_BYTES_MAX / bytes;

    return most < BENCH_STREAM_MESSAGES ? most : BENCH_STREAM_MESSAGES;
}

#endif
