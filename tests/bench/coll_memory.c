/* The memory's bandwidth: see coll_memory.h. */
#include "tests/bench/coll_memory.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COPIES 3

/* Threads start at the gate: they go only if all of them could be made. */
struct gate {
    pthread_mutex_t lock;
    bool is_open;
    pthread_barrier_t barrier;
};

struct stream {
    pthread_t thread;
    struct gate *gate;
    char *from, *to;
    size_t bytes;
    double us[COPIES];
};

static double now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

static void *copy(void *arg)
{
    struct stream *s = arg;
    bool go;

    pthread_mutex_lock(&s->gate->lock);
    go = s->gate->is_open;
    pthread_mutex_unlock(&s->gate->lock);
    if (!go)
        return NULL;
    memset(s->to, 0, s->bytes);
    for (int i = 0; i < COPIES; i++) {
        double start;
        memset(s->from, i + 1, s->bytes);
        pthread_barrier_wait(&s->gate->barrier);
        start = now_us();
        memcpy(s->to, s->from, s->bytes);
        s->us[i] = now_us() - start;
        /* The compiler must not find that nobody looks at it. */
        __asm__ volatile("" : : "r"(s->to) : "memory");
        pthread_barrier_wait(&s->gate->barrier);
    }
    return NULL;
}

/* The fastest of the copies: what the memory can do when it is let. */
static double best_us(const struct stream *streams, int n)
{
    double best = 0;

    for (int i = 0; i < COPIES; i++) {
        double slowest = 0;
        for (int s = 0; s < n; s++)
            if (streams[s].us[i] > slowest)
                slowest = streams[s].us[i];
        if (best == 0 || slowest < best)
            best = slowest;
    }
    return best;
}

static bool get_buffers(struct stream *streams, int n, size_t bytes)
{
    for (int i = 0; i < n; i++) {
        streams[i].bytes = bytes;
        streams[i].from = malloc(bytes);
        streams[i].to = malloc(bytes);
        if (streams[i].from == NULL || streams[i].to == NULL)
            return false;
    }
    return true;
}

static bool run_threads(struct stream *streams, int n, struct gate *gate)
{
    int started = 0;

    pthread_mutex_lock(&gate->lock);
    while (started < n) {
        streams[started].gate = gate;
        if (pthread_create(
                &streams[started].thread, NULL, copy, &streams[started]) != 0)
            break;
        started++;
    }
    gate->is_open = started == n;
    pthread_mutex_unlock(&gate->lock);
    for (int i = 0; i < started; i++)
        pthread_join(streams[i].thread, NULL);
    return started == n;
}

double bench_memory_bandwidth(int n, size_t bytes)
{
    struct stream streams[BENCH_RANKS_MAX] = {0};
    struct gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER};
    double result = 0;

    if (n < 1 || n > BENCH_RANKS_MAX ||
        pthread_barrier_init(&gate.barrier, NULL, (unsigned)n) != 0)
        return 0;
    if (get_buffers(streams, n, bytes) && run_threads(streams, n, &gate))
        result = 2.0 * n * (double)bytes / best_us(streams, n);
    else
        fprintf(stderr, "memory bandwidth: no memory or no thread\n");
    for (int i = 0; i < n; i++) {
        free(streams[i].from);
        free(streams[i].to);
    }
    pthread_barrier_destroy(&gate.barrier);
    return result;
}

double bench_memory_bytes(enum bench_op op, int n, size_t bytes)
{
    double size = (double)bytes;

    switch (op) {
    case BENCH_ALL_REDUCE:
    case BENCH_ALL_GATHER:
    case BENCH_ALL_TO_ALL:
        return 2.0 * n * size;
    case BENCH_BROADCAST:
        return 2.0 * (n - 1) * size;
    case BENCH_REDUCE_SCATTER:
        return (n + 1.0) * size;
    case BENCH_PING_PONG:
    case BENCH_STREAM:
        return n * size;
    default:
        return 0;
    }
}
