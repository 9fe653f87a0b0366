/*
 * Messages between two ranks: order, tags, sizes, time-outs, and every way in
 * which the other side can fail to do its part. Over each back end.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/coll_harness.h"
#include "tests/unit/unit.h"
#include "worker/p2p_internal.h"

enum { TIMEOUT_MS = 60000 };

static struct harness_store store;

static void setup(void)
{
    harness_store_start(&store);
}

static void teardown(void)
{
    harness_store_stop(&store);
}

/* --- What a rank does ----------------------------------------------------- */

static struct p2p_op send_op(
    int peer, int tag, const void *buf, size_t count, coll_dtype_t dtype)
{
    return (struct p2p_op){
        .is_send = true,
        .peer = peer,
        .tag = tag,
        .dtype = dtype,
        .count = count,
        .buf = (void *)(uintptr_t)buf,
    };
}

static struct p2p_op recv_op(
    int peer, int tag, void *buf, size_t count, coll_dtype_t dtype)
{
    return (struct p2p_op){
        .peer = peer,
        .tag = tag,
        .dtype = dtype,
        .count = count,
        .buf = buf,
    };
}

static void start(struct coll_group *g, struct p2p_op *op)
{
    p2p_post(g->p2p, &op, 1);
}

static coll_status_t wait_until(
    struct coll_group *g, struct p2p_op *op, int64_t timeout_ms)
{
    return p2p_wait(g->p2p, &op, 1, clock_deadline_ns(timeout_ms));
}

static coll_status_t finish(struct coll_group *g, struct p2p_op *op)
{
    return wait_until(g, op, TIMEOUT_MS);
}

static coll_status_t do_op(struct coll_group *g, struct p2p_op op)
{
    start(g, &op);
    return finish(g, &op);
}

static coll_status_t send_bytes(
    struct coll_group *g, int peer, int tag, const void *buf, size_t n)
{
    return do_op(g, send_op(peer, tag, buf, n, COLL_UINT8));
}

static coll_status_t recv_bytes(
    struct coll_group *g, int peer, int tag, void *buf, size_t n)
{
    return do_op(g, recv_op(peer, tag, buf, n, COLL_UINT8));
}

/* Something that depends on every place and on the message. */
static void fill(unsigned char *x, size_t n, unsigned int seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (unsigned char)((i * 2654435761u + seed * 40503u) >> 7);
}

static bool is_filled(const unsigned char *x, size_t n, unsigned int seed)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] != (unsigned char)((i * 2654435761u + seed * 40503u) >> 7))
            return false;
    return true;
}

/* --- Over which back end -------------------------------------------------- */

static int in_pairs(int rank)
{
    return rank / 2;
}

static int alternating(int rank)
{
    return rank % 2;
}

static const struct way {
    const char *name;
    const struct coll_backend *backend;
    int (*node_of)(int rank);
    const char *cma;
} ways[] = {
    {"shm", &coll_backend_shm, NULL, "1"},
    {"shm without cross-memory attach", &coll_backend_shm, NULL, "0"},
    {"tcp", &coll_backend_tcp, NULL, "1"},
    {"nodes of two", &coll_backend_nodes, in_pairs, "1"},
    {"nodes of every other rank", &coll_backend_nodes, alternating, "1"},
};

enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

/* Whether all ranks share memory. */
static bool is_within_node(int way, int size)
{
    return ways[way].backend == &coll_backend_shm ||
           (ways[way].node_of == in_pairs && size <= 2);
}

static void run_way(int way, int size, harness_rank_fn *run, void *arg)
{
    harness_backend = ways[way].backend;
    harness_node_of = ways[way].node_of;
    setenv("COLL_CMA", ways[way].cma, 1);
    harness_run(&store, size, TIMEOUT_MS, run, arg);
}

/* --- Sizes ---------------------------------------------------------------- */

static const size_t sizes[] = {0, 1, 3, 31, 32, 33, 64, 100, 1000, 4095, 4096,
    4097, 8191, 8192, 8193, 16384, 16385, 32768, 65503, 65504, 65535, 65536,
    65537, 100000, 131072, 1 << 20, (1 << 20) + 1, 3 << 20, 8 << 20};

enum { SIZES = sizeof(sizes) / sizeof(sizes[0]), MAX_BYTES = 8 << 20 };

static void one_way(struct coll_group *g, int rank, void *arg)
{
    unsigned char *x = malloc(MAX_BYTES + 1);

    (void)arg;
    for (size_t i = 0; i < SIZES; i++) {
        size_t n = sizes[i];

        for (unsigned int k = 0; k < 3; k++) {
            if (rank == 0) {
                fill(x, n, (unsigned int)i + k);
                EXPECT_OK(send_bytes(g, 1, 7, x, n));
                memset(x, 0xee, n);
            } else {
                memset(x, 0xaa, n + 1);
                EXPECT_OK(recv_bytes(g, 0, 7, x, n));
                EXPECT(is_filled(x, n, (unsigned int)i + k), "%zu bytes", n);
                EXPECT(x[n] == 0xaa, "%zu bytes", n);
            }
        }
    }
    free(x);
}

START_TEST(all_sizes_arrive)
{
    run_way(_i, 2, one_way, NULL);
}
END_TEST

/* Every rank sends to all others, all at once, as a collective would. */
static void all_at_once(struct coll_group *g, int rank, void *arg)
{
    int size = g->size;
    struct p2p_op ops[16];
    struct p2p_op *list[16];
    size_t max = 1 << 20;
    unsigned char *in = malloc(max * (size_t)size);
    unsigned char *out = malloc(max * (size_t)size);

    (void)arg;
    for (size_t i = 0; i < SIZES && sizes[i] <= max; i++) {
        size_t n = sizes[i];
        size_t count = 0;

        for (int r = 0; r < size; r++) {
            unsigned char *to = out + max * (size_t)r;
            unsigned char *from = in + max * (size_t)r;

            if (r == rank)
                continue;
            fill(
                to, n, (unsigned int)(i * 100) + (unsigned int)(rank * 10 + r));
            ops[count] = send_op(r, 1, to, n, COLL_UINT8);
            list[count] = &ops[count];
            count++;
            ops[count] = recv_op(r, 1, from, n, COLL_UINT8);
            list[count] = &ops[count];
            count++;
        }
        p2p_post(g->p2p, list, count);
        EXPECT_OK(p2p_wait(g->p2p, list, count, clock_deadline_ns(TIMEOUT_MS)));
        for (int r = 0; r < size; r++)
            EXPECT(r == rank || is_filled(in + max * (size_t)r, n,
                                    (unsigned int)(i * 100) +
                                        (unsigned int)(r * 10 + rank)),
                "%zu bytes from %d to %d", n, r, rank);
    }
    free(in);
    free(out);
}

static const int group_sizes[] = {2, 3, 4, 7};

START_TEST(all_to_all_at_once)
{
    run_way(_i / 4, group_sizes[_i % 4], all_at_once, NULL);
}
END_TEST

/* --- Order ---------------------------------------------------------------- */

/* Sends tags 0 to 5, thrice, of small and large messages; they are asked for
 * in another order. */
static void out_of_order(struct coll_group *g, int rank, void *arg)
{
    enum { TAGS = 6, TIMES = 3, N = 20000 };
    static const int order[TAGS] = {3, 0, 5, 1, 4, 2};
    struct p2p_op ops[TAGS * TIMES];
    unsigned char *x = malloc(TAGS * TIMES * N);

    (void)arg;
    if (rank == 0) {
        for (int i = 0; i < TAGS * TIMES; i++) {
            size_t n = i % 2 == 0 ? N : 10;

            fill(x + i * N, n, (unsigned int)i);
            ops[i] = send_op(1, i % TAGS, x + i * N, n, COLL_UINT8);
            start(g, &ops[i]);
        }
        for (int i = 0; i < TAGS * TIMES; i++)
            EXPECT_OK(finish(g, &ops[i]));
    } else {
        for (int t = 0; t < TAGS; t++) {
            for (int k = 0; k < TIMES; k++) {
                int i = k * TAGS + order[t];
                size_t n = i % 2 == 0 ? N : 10;

                EXPECT_OK(recv_bytes(g, 0, order[t], x, n));
                EXPECT(is_filled(x, n, (unsigned int)i), "tag %d, number %d",
                    order[t], k);
            }
        }
    }
    free(x);
}

START_TEST(tags_are_asked_for_in_any_order)
{
    run_way(_i, 2, out_of_order, NULL);
}
END_TEST

/* Steps of collectives have tags of their own. */
static void steps_apart(struct coll_group *g, int rank, void *arg)
{
    struct coll_call call = {
        .kind = COLL_KIND_GATHER,
        .seq = 1,
        .deadline_ns = clock_deadline_ns(TIMEOUT_MS),
    };
    int32_t x = 5;
    struct p2p_op ops[2];

    (void)arg;
    ops[0] = rank == 0 ? send_op(1, 3, &x, 1, COLL_INT32)
                       : recv_op(0, 3, &x, 1, COLL_INT32);
    ops[0].is_step = true;
    ops[0].call = &call;
    if (rank == 0) {
        int32_t y = 6;

        EXPECT_OK(p2p_run(g->p2p, ops, 1));
        EXPECT_OK(do_op(g, send_op(1, 3, &y, 1, COLL_INT32)));
    } else {
        int32_t y = 0;

        x = 0;
        EXPECT_OK(do_op(g, recv_op(0, 3, &y, 1, COLL_INT32)));
        EXPECT(y == 6, "%d", y);
        EXPECT_OK(p2p_run(g->p2p, ops, 1));
        EXPECT(x == 5, "%d", x);
    }
}

START_TEST(steps_are_apart_from_messages)
{
    run_way(_i, 2, steps_apart, NULL);
}
END_TEST

/* Rank 0 takes from anybody, now posted before the messages come, now after. */
static void from_any(struct coll_group *g, int rank, void *arg)
{
    enum { EACH = 50 };
    bool is_large = arg != NULL;
    size_t n = is_large ? 100000 : 8;
    unsigned char *x = malloc(n);
    int seen[16] = {0};

    if (rank != 0) {
        for (unsigned int i = 0; i < EACH; i++) {
            fill(x, n, (unsigned int)rank * 1000 + i);
            EXPECT_OK(send_bytes(g, 0, 9, x, n));
        }
        free(x);
        return;
    }
    for (int i = 0; i < EACH * (g->size - 1); i++) {
        struct p2p_op op = recv_op(P2P_ANY_SOURCE, 9, x, n, COLL_UINT8);

        start(g, &op);
        EXPECT_OK(finish(g, &op));
        EXPECT(op.source > 0 && op.source < g->size, "source %d", op.source);
        if (op.source <= 0 || op.source >= g->size)
            break;
        EXPECT(
            is_filled(x, n, (unsigned int)(op.source * 1000 + seen[op.source])),
            "from %d, number %d", op.source, seen[op.source]);
        seen[op.source]++;
    }
    for (int r = 1; r < g->size; r++)
        EXPECT(seen[r] == EACH, "%d from %d", seen[r], r);
    free(x);
}

START_TEST(any_source_takes_from_all)
{
    run_way(_i / 2, 4, from_any, _i % 2 == 0 ? NULL : &store);
}
END_TEST

/* A receive from any rank and one from a certain one: who asked first. */
static void any_and_one(struct coll_group *g, int rank, void *arg)
{
    int32_t x[4] = {0};
    struct p2p_op ops[4];

    (void)arg;
    if (rank == 0) {
        for (int i = 0; i < 4; i++) {
            ops[i] = recv_op(
                i % 2 == 0 ? P2P_ANY_SOURCE : 1, 0, &x[i], 1, COLL_INT32);
            start(g, &ops[i]);
        }
        EXPECT_OK(send_bytes(g, 1, 1, NULL, 0));
        for (int i = 0; i < 4; i++) {
            EXPECT_OK(finish(g, &ops[i]));
            EXPECT(x[i] == i && ops[i].source == 1, "%d is %d from %d", i, x[i],
                ops[i].source);
        }
    } else {
        EXPECT_OK(recv_bytes(g, 0, 1, NULL, 0));
        for (int i = 0; i < 4; i++)
            EXPECT_OK(do_op(g, send_op(0, 0, &i, 1, COLL_INT32)));
    }
}

START_TEST(receives_match_in_the_order_of_asking)
{
    run_way(_i, 2, any_and_one, NULL);
}
END_TEST

/* --- Much ----------------------------------------------------------------- */

/* Both send first, much more than any buffer holds. */
static void both_send(struct coll_group *g, int rank, void *arg)
{
    size_t n = 4 << 20;
    unsigned char *out = malloc(n);
    unsigned char *in = malloc(n);
    struct p2p_op ops[2] = {
        send_op(1 - rank, 0, out, n, COLL_UINT8),
        recv_op(1 - rank, 0, in, n, COLL_UINT8),
    };
    struct p2p_op *list[2] = {&ops[0], &ops[1]};

    (void)arg;
    fill(out, n, (unsigned int)rank);
    p2p_post(g->p2p, list, 2);
    EXPECT_OK(p2p_wait(g->p2p, list, 2, clock_deadline_ns(TIMEOUT_MS)));
    EXPECT(is_filled(in, n, (unsigned int)(1 - rank)), "rank %d", rank);
    free(out);
    free(in);
}

START_TEST(both_may_send_first)
{
    run_way(_i, 2, both_send, NULL);
}
END_TEST

/* Thousands of small messages that nobody takes for a while. */
static void flood(struct coll_group *g, int rank, void *arg)
{
    enum { COUNT = 5000, WORDS = 30 };
    _Atomic int *sent = arg;
    uint32_t x[WORDS];

    for (uint32_t i = 0; i < COUNT; i++) {
        x[0] = x[WORDS - 1] = i;
        if (rank == 0) {
            EXPECT_OK(do_op(g, send_op(1, 2, x, WORDS, COLL_UINT32)));
            atomic_store(sent, (int)i);
            continue;
        }
        /* Not before the sender has to wait. */
        while (i == 0 && atomic_load(sent) < 50)
            sched_yield();
        x[0] = ~i;
        EXPECT_OK(do_op(g, recv_op(0, 2, x, WORDS, COLL_UINT32)));
        EXPECT(x[0] == i && x[WORDS - 1] == i, "%u is %u", i, x[0]);
    }
}

START_TEST(a_full_channel_makes_the_sender_wait)
{
    _Atomic int sent = 0;

    run_way(_i, 2, flood, &sent);
}
END_TEST

/* Takes other messages first: those that come before are kept. */
static void kept(struct coll_group *g, int rank, void *arg)
{
    enum { COUNT = 3000, WORDS = 30 };
    uint32_t x[WORDS] = {0};

    (void)arg;
    if (rank == 0) {
        for (uint32_t i = 0; i < COUNT; i++) {
            x[0] = x[WORDS - 1] = i;
            EXPECT_OK(do_op(g, send_op(1, 2, x, WORDS, COLL_UINT32)));
        }
        EXPECT_OK(send_bytes(g, 1, 1, NULL, 0));
        return;
    }
    EXPECT_OK(recv_bytes(g, 0, 1, NULL, 0));
    for (uint32_t i = 0; i < COUNT; i++) {
        EXPECT_OK(do_op(g, recv_op(0, 2, x, WORDS, COLL_UINT32)));
        EXPECT(x[0] == i && x[WORDS - 1] == i, "%u is %u", i, x[0]);
    }
}

START_TEST(messages_are_kept_until_they_are_asked_for)
{
    run_way(_i, 2, kept, NULL);
}
END_TEST

/* --- From memory of coll_alloc() ------------------------------------------ */

/* Blocks of a rank, which others have mapped, come and go. */
enum { BLOCKS = 8, BATCH = 4, BLOCK_MAX = 700000 };

static unsigned char *some_place(void **blocks, unsigned int *seed, size_t n)
{
    int k = rand_r(seed) % BLOCKS;
    size_t before = (size_t)rand_r(seed) % 5000;

    EXPECT_OK(coll_free(blocks[k]));
    EXPECT_OK(coll_alloc(&blocks[k], before + n));
    return (unsigned char *)blocks[k] + before;
}

/* Each rank sends to the next one, a batch at once. What is received into is
 * such memory or another. */
static void from_blocks(struct coll_group *g, int rank, void *arg)
{
    int to = (rank + 1) % g->size;
    int from = (rank + g->size - 1) % g->size;
    void *blocks[BATCH][BLOCKS] = {{NULL}};
    void *recv_block = NULL;
    unsigned char *in[BATCH];
    unsigned int own = 3 + (unsigned int)rank; /* the ranks differ */
    unsigned int same = 3;

    (void)arg;
    EXPECT_OK(coll_alloc(&recv_block, BLOCK_MAX));
    for (int k = 0; k < BATCH; k++)
        in[k] = k == 0 ? recv_block : malloc(BLOCK_MAX);
    for (unsigned int round = 0; round < 60; round++) {
        struct p2p_op ops[2 * BATCH];
        struct p2p_op *list[2 * BATCH];

        for (int k = 0; k < BATCH; k++) {
            size_t n = (size_t)rand_r(&same) % (1u << (rand_r(&same) % 20));
            unsigned char *out = some_place(blocks[k], &own, n);

            fill(out, n, round * 100 + (unsigned int)(rank * BATCH + k));
            memset(in[k], 0xaa, n + 1);
            list[k] = &ops[k];
            list[BATCH + k] = &ops[BATCH + k];
            ops[k] = send_op(to, k, out, n, COLL_UINT8);
            ops[BATCH + k] = recv_op(round % 2 == 0 ? from : P2P_ANY_SOURCE, k,
                in[k], n, COLL_UINT8);
        }
        p2p_post(g->p2p, list, 2 * BATCH);
        EXPECT_OK(
            p2p_wait(g->p2p, list, 2 * BATCH, clock_deadline_ns(TIMEOUT_MS)));
        for (int k = 0; k < BATCH; k++) {
            size_t n = ops[BATCH + k].count;

            EXPECT(is_filled(in[k], n,
                       round * 100 + (unsigned int)(from * BATCH + k)) &&
                       in[k][n] == 0xaa,
                "round %u, message %d of %zu bytes", round, k, n);
        }
    }
    for (int k = 0; k < BATCH; k++) {
        for (int b = 0; b < BLOCKS; b++)
            EXPECT_OK(coll_free(blocks[k][b]));
        if (k > 0)
            free(in[k]);
    }
    EXPECT_OK(coll_free(recv_block));
}

START_TEST(shared_memory_comes_and_goes)
{
    run_way(_i / 2, 2 + _i % 2 * 2, from_blocks, NULL);
}
END_TEST

/* What has come through the ring from rank 0. */
static uint32_t taken_from_ring(const struct coll_group *g)
{
    return g->p2p->peers[0]->pipe.in_tail;
}

/* Rank 0 sends, rank 1 sees what of it came through the ring. */
static uint32_t send_mapped(
    struct coll_group *g, int rank, unsigned char *x, size_t n)
{
    uint32_t before = rank == 1 ? taken_from_ring(g) : 0;

    if (rank == 0) {
        fill(x, n, 5);
        EXPECT_OK(recv_bytes(g, 1, 0, NULL, 0));
        EXPECT_OK(send_bytes(g, 1, 0, x, n));
        return 0;
    }
    memset(x, 0, n);
    EXPECT_OK(send_bytes(g, 0, 0, NULL, 0));
    EXPECT_OK(recv_bytes(g, 0, 0, x, n));
    EXPECT(is_filled(x, n, 5), "%zu bytes", n);
    return taken_from_ring(g) - before;
}

/* The sender's descriptor finds no place here, or does. */
static void one_copy(struct coll_group *g, int rank, void *arg)
{
    const bool *has_no_place = arg;
    struct p2p *p = g->p2p;
    uint32_t taken;
    void *memory = NULL;
    size_t n = 3 << 20;

    EXPECT_OK(coll_alloc(&memory, n));
    if (rank == 0 && *has_no_place)
        EXPECT(shm_send_memory(p->shm, 1) == 0, "no link");
    EXPECT_OK(rank == 0 ? send_bytes(g, 1, 0, memory, 1)
                        : recv_bytes(g, 0, 0, memory, 1));
    if (rank == 1 && *has_no_place) {
        int fd;

        shm_look(p->shm, p->lane);
        fd = shm_take_pipe(p->shm, 0, SHM_LANE_MEMORY);
        EXPECT(fd >= 0, "no descriptor");
        close(fd);
    }
    taken = send_mapped(g, rank, memory, n);
    if (rank == 1 && *has_no_place)
        EXPECT(taken > n, "%u bytes through the ring", taken);
    else if (rank == 1)
        EXPECT(taken == sizeof(struct p2p_header), "%u bytes through the ring",
            taken);
    EXPECT_OK(coll_free(memory));
}

START_TEST(shared_memory_is_copied_once)
{
    bool has_no_place = _i % 2 != 0;

    if (is_within_node(_i / 2, 2))
        run_way(_i / 2, 2, one_copy, &has_no_place);
}
END_TEST

struct given_up {
    bool is_shared;
    pthread_barrier_t barrier;
};

/* Rank 0 fails, and has its memory back, when it has announced a message. */
static void given_up(struct coll_group *g, int rank, void *arg)
{
    enum { N = 1 << 20 };
    struct given_up *how = arg;
    void *memory = NULL;
    struct p2p_op op;

    if (how->is_shared)
        EXPECT_OK(coll_alloc(&memory, N));
    else
        memory = malloc(N);
    if (rank == 0) {
        op = send_op(1, 0, memory, N, COLL_UINT8);
        fill(memory, N, 5);
        start(g, &op);
        p2p_fail(g->p2p, coll_fail(COLL_ERR_TIMEOUT, "given up"));
        EXPECT(op.is_done && op.status == COLL_ERR_TIMEOUT, "not done");
        memset(memory, 0, N);
        pthread_barrier_wait(&how->barrier);
    } else {
        pthread_barrier_wait(&how->barrier);
        EXPECT(recv_bytes(g, 0, 0, memory, N) != COLL_OK, "received");
    }
    if (how->is_shared)
        EXPECT_OK(coll_free(memory));
    else
        free(memory);
}

START_TEST(what_was_given_up_is_not_received)
{
    struct given_up how = {.is_shared = _i % 2 == 0};

    pthread_barrier_init(&how.barrier, NULL, 2);
    run_way(_i / 2, 2, given_up, &how);
    pthread_barrier_destroy(&how.barrier);
}
END_TEST

/* --- Misuse (PG-13) ------------------------------------------------------- */

static const struct mismatch {
    size_t sent, asked;
    coll_dtype_t sent_type, asked_type;
    const char *words;
} mismatches[] = {
    {3, 4, COLL_FLOAT32, COLL_FLOAT32,
        "recv from rank 0 on rank 1, tag 5: rank 0 sent 3 float32, rank 1 "
        "asked for 4 float32"},
    {3, 5, COLL_FLOAT32, COLL_FLOAT32,
        "rank 0 sent 3 float32, rank 1 asked for 5 float32"},
    {5, 3, COLL_FLOAT32, COLL_FLOAT32,
        "rank 0 sent 5 float32, rank 1 asked for 3 float32"},
    {4, 4, COLL_FLOAT32, COLL_INT32,
        "rank 0 sent 4 float32, rank 1 asked for 4 int32"},
    {4, 2, COLL_FLOAT32, COLL_FLOAT64,
        "rank 0 sent 4 float32, rank 1 asked for 2 float64"},
    {0, 1, COLL_FLOAT32, COLL_FLOAT32,
        "rank 0 sent 0 float32, rank 1 asked for 1 float32"},
    {500000, 500001, COLL_FLOAT32, COLL_FLOAT32,
        "rank 0 sent 500000 float32, rank 1 asked for 500001 float32"},
    {500000, 3, COLL_FLOAT32, COLL_FLOAT32,
        "rank 0 sent 500000 float32, rank 1 asked for 3 float32"},
};

enum { MISMATCHES = sizeof(mismatches) / sizeof(mismatches[0]) };

static void disagree(struct coll_group *g, int rank, void *arg)
{
    const struct mismatch *m = arg;
    size_t bytes = 500002 * 8;
    unsigned char *x = malloc(bytes);
    coll_status_t status;
    size_t end = m->asked * coll_dtype_size(m->asked_type);

    memset(x, 0x55, bytes);
    if (rank == 0) {
        status = do_op(g, send_op(1, 5, x, m->sent, m->sent_type));
        EXPECT(status == COLL_OK || status == COLL_ERR_MISMATCH, "%s",
            coll_last_error());
        /* What it does next tells it in any case. */
        EXPECT_FAILS(do_op(g, recv_op(1, 5, x, 1, COLL_FLOAT32)),
            COLL_ERR_MISMATCH, m->words);
    } else {
        EXPECT_FAILS(do_op(g, recv_op(0, 5, x, m->asked, m->asked_type)),
            COLL_ERR_MISMATCH, m->words);
        for (size_t i = end; i < bytes; i++)
            if (x[i] != 0x55) {
                EXPECT(false, "byte %zu behind the end", i - end);
                break;
            }
        EXPECT_FAILS(send_bytes(g, 0, 1, x, 1), COLL_ERR_MISMATCH, m->words);
    }
    free(x);
}

START_TEST(different_messages_are_an_error_on_both_sides)
{
    run_way(_i / MISMATCHES, 2, disagree,
        (void *)(uintptr_t)&mismatches[_i % MISMATCHES]);
}
END_TEST

/* --- Time ----------------------------------------------------------------- */

/* A wait that ends without its message ends nothing else. */
static void late(struct coll_group *g, int rank, void *arg)
{
    pthread_barrier_t *barrier = arg;
    int32_t x = 0, y = 0;

    if (rank == 0) {
        struct p2p_op op = recv_op(1, 4, &x, 1, COLL_INT32);

        start(g, &op);
        EXPECT_FAILS(wait_until(g, &op, 20), COLL_ERR_TIMEOUT,
            "in recv from rank 1 on rank 0, tag 4 waiting for rank 1");
        EXPECT_OK(do_op(g, recv_op(1, 5, &y, 1, COLL_INT32)));
        EXPECT(y == 5, "%d", y);
        pthread_barrier_wait(barrier);
        EXPECT_OK(finish(g, &op));
        EXPECT(x == 4, "%d", x);
    } else {
        int32_t four = 4, five = 5;

        EXPECT_OK(do_op(g, send_op(0, 5, &five, 1, COLL_INT32)));
        pthread_barrier_wait(barrier);
        EXPECT_OK(do_op(g, send_op(0, 4, &four, 1, COLL_INT32)));
    }
}

START_TEST(a_time_out_is_not_the_end)
{
    pthread_barrier_t barrier;

    pthread_barrier_init(&barrier, NULL, 2);
    run_way(_i, 2, late, &barrier);
    pthread_barrier_destroy(&barrier);
}
END_TEST

/* But of a step of a collective it is the group's. */
static void late_step(struct coll_group *g, int rank, void *arg)
{
    struct coll_call call = {
        .kind = COLL_KIND_GATHER,
        .seq = 3,
        .deadline_ns = clock_deadline_ns(rank == 0 ? 20 : TIMEOUT_MS),
    };
    int32_t x = 0;
    struct p2p_op op = recv_op(1 - rank, 0, &x, 1, COLL_INT32);

    (void)arg;
    op.is_step = true;
    op.call = &call;
    if (rank == 0) {
        EXPECT_FAILS(p2p_run(g->p2p, &op, 1), COLL_ERR_TIMEOUT,
            "in gather #3 waiting for rank 1");
        EXPECT_FAILS(p2p_failure(g->p2p), COLL_ERR_TIMEOUT, "gather #3");
    } else {
        EXPECT_FAILS(p2p_run(g->p2p, &op, 1), COLL_ERR_TIMEOUT,
            "in gather #3 waiting for rank 1");
    }
}

START_TEST(a_time_out_of_a_step_ends_all)
{
    run_way(_i, 2, late_step, NULL);
}
END_TEST

/* --- Ends ----------------------------------------------------------------- */

/* Set when the thread of a rank has ended, and its group before it. */
static pthread_key_t at_end;

static void note_end(void *flag)
{
    atomic_store((_Atomic bool *)flag, true);
}

static void await_end(const _Atomic bool *flag)
{
    while (!atomic_load(flag))
        sched_yield();
}

/* Rank 0 sends and leaves; rank 1 takes what was sent, and no more comes. */
static void leave_early(struct coll_group *g, int rank, void *arg)
{
    int32_t x = 7;

    if (rank == 0) {
        pthread_setspecific(at_end, arg);
        EXPECT_OK(do_op(g, send_op(1, 0, &x, 1, COLL_INT32)));
        EXPECT_OK(do_op(g, send_op(1, 1, &x, 1, COLL_INT32)));
        return;
    }
    x = 0;
    await_end(arg);
    EXPECT_OK(do_op(g, recv_op(0, 1, &x, 1, COLL_INT32)));
    EXPECT(x == 7, "%d", x);
    EXPECT_OK(do_op(g, recv_op(P2P_ANY_SOURCE, 0, &x, 1, COLL_INT32)));
    EXPECT_FAILS(do_op(g, recv_op(0, 1, &x, 1, COLL_INT32)), COLL_ERR_PEER,
        "rank 0 left after operation 0, rank 1 is in recv, tag 1");
}

START_TEST(what_was_sent_before_leaving_arrives)
{
    _Atomic bool has_ended = false;

    pthread_key_create(&at_end, note_end);
    run_way(_i, 2, leave_early, &has_ended);
}
END_TEST

/* Elsewhere a rank that leaves before it was reached may just be gone. */
static bool knows_leaving(const struct coll_group *g)
{
    return g->backend == &coll_backend_shm;
}

/* Others wait already. The second one cannot send so much by itself. */
static void leave_while_awaited(struct coll_group *g, int rank, void *arg)
{
    size_t n = 1 << 20;
    char *x = calloc(n, 1);

    (void)arg;
    if (rank == 0)
        EXPECT_OK(recv_bytes(g, 1, 0, x, 1));
    else if (rank == 1)
        EXPECT_OK(send_bytes(g, 0, 0, x, 1));
    if (rank == 1)
        EXPECT_FAILS(send_bytes(g, 0, 1, x, n), COLL_ERR_PEER,
            "rank 0 left after operation 0, rank ");
    if (rank == 2)
        EXPECT_FAILS(recv_bytes(g, 0, 0, x, n), COLL_ERR_PEER,
            knows_leaving(g) ? "rank 0 left" : "rank 0 ");
    free(x);
}

START_TEST(leaving_ends_the_waits_of_others)
{
    run_way(_i, 3, leave_while_awaited, NULL);
}
END_TEST

static void all_leave(struct coll_group *g, int rank, void *arg)
{
    int32_t x;

    (void)arg;
    if (rank == 0)
        EXPECT_FAILS(do_op(g, recv_op(P2P_ANY_SOURCE, 3, &x, 1, COLL_INT32)),
            COLL_ERR_PEER, knows_leaving(g) ? "all ranks but 0 " : "rank");
}

START_TEST(nobody_is_left_to_send)
{
    run_way(_i, 3, all_leave, NULL);
}
END_TEST

/* A collective that fails ends the messages as well. */
static void collective_fails(struct coll_group *g, int rank, void *arg)
{
    int32_t x[4] = {0};
    int32_t y;
    struct p2p_op op = recv_op(1 - rank, 0, &y, 1, COLL_INT32);

    (void)arg;
    start(g, &op);
    EXPECT_FAILS(
        coll_all_reduce(x, x, (size_t)rank + 1, COLL_INT32, COLL_SUM, g),
        COLL_ERR_MISMATCH, "mismatch at operation #1: ");
    EXPECT_FAILS(
        finish(g, &op), COLL_ERR_MISMATCH, "mismatch at operation #1: ");
}

START_TEST(a_failed_collective_ends_messages)
{
    run_way(_i, 2, collective_fails, NULL);
}
END_TEST

/* And messages that fail end the collective that others wait in. */
static void message_fails(struct coll_group *g, int rank, void *arg)
{
    int32_t x[4] = {0};

    (void)arg;
    if (rank == 0)
        EXPECT_OK(do_op(g, send_op(1, 0, x, 3, COLL_INT32)));
    if (rank == 1)
        EXPECT_FAILS(do_op(g, recv_op(0, 0, x, 4, COLL_INT32)),
            COLL_ERR_MISMATCH, "rank 1 asked for 4 int32");
    else
        EXPECT_FAILS(
            coll_barrier(g), COLL_ERR_MISMATCH, "rank 1 asked for 4 int32");
}

START_TEST(a_failed_message_ends_collectives)
{
    run_way(_i, 3, message_fails, NULL);
}
END_TEST

/* A third one that waits for a rank that is all right hears of it, too. */
static void third_one_waits(struct coll_group *g, int rank, void *arg)
{
    int32_t x[4] = {0};

    (void)arg;
    if (rank == 0) {
        do_op(g, send_op(1, 0, x, 3, COLL_INT32));
        EXPECT_FAILS(do_op(g, recv_op(2, 0, x, 1, COLL_INT32)),
            COLL_ERR_MISMATCH, "rank 1 asked for 4 int32");
    } else if (rank == 1) {
        EXPECT_FAILS(do_op(g, recv_op(0, 0, x, 4, COLL_INT32)),
            COLL_ERR_MISMATCH, "rank 1 asked for 4 int32");
    } else {
        EXPECT_FAILS(do_op(g, recv_op(0, 0, x, 1, COLL_INT32)),
            COLL_ERR_MISMATCH, "rank 1 asked for 4 int32");
    }
}

START_TEST(everybody_hears_of_a_failure)
{
    run_way(_i, 3, third_one_waits, NULL);
}
END_TEST

/* --- Threads -------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 300 };

struct talker {
    struct coll_group *g;
    int rank;
    int tag;
    size_t bytes;
};

/* Ping-pong with the same thread of the other rank. */
static void *talk(void *arg)
{
    const struct talker *t = arg;
    unsigned char *x = malloc(t->bytes);

    for (unsigned int i = 0; i < ROUNDS; i++) {
        unsigned int seed = i * 10 + (unsigned int)t->tag;

        if (t->rank == 0) {
            fill(x, t->bytes, seed);
            EXPECT_OK(send_bytes(t->g, 1, t->tag, x, t->bytes));
            memset(x, 0, t->bytes);
        }
        EXPECT_OK(recv_bytes(t->g, 1 - t->rank, t->tag, x, t->bytes));
        EXPECT(is_filled(x, t->bytes, seed), "tag %d, round %u", t->tag, i);
        if (t->rank == 1)
            EXPECT_OK(send_bytes(t->g, 0, t->tag, x, t->bytes));
    }
    free(x);
    return NULL;
}

static void many_threads(struct coll_group *g, int rank, void *arg)
{
    struct talker talkers[THREADS];
    pthread_t threads[THREADS];
    int32_t x[100] = {0};

    if (arg != NULL)
        EXPECT_OK(p2p_start_thread(g->p2p));
    for (int i = 0; i < THREADS; i++) {
        talkers[i] = (struct talker){g, rank, i, i == 0 ? 20000 : 10};
        pthread_create(&threads[i], NULL, talk, &talkers[i]);
    }
    /* Collectives go on beside them. */
    for (int i = 0; i < ROUNDS; i++)
        EXPECT_OK(coll_all_reduce(x, x, 100, COLL_INT32, COLL_SUM, g));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

START_TEST(threads_wait_side_by_side)
{
    run_way(_i / 2, 2, many_threads, _i % 2 == 0 ? NULL : &store);
}
END_TEST

/* Nobody waits on rank 1, and rank 0 gets its answers all the same. */
static void unattended(struct coll_group *g, int rank, void *arg)
{
    enum { N = 3 << 20 };
    pthread_barrier_t *barrier = arg;
    unsigned char *x = malloc(N);
    unsigned char *y = malloc(N);
    struct p2p_op in = recv_op(1 - rank, 0, y, N, COLL_UINT8);
    struct p2p_op out = send_op(1 - rank, 0, x, N, COLL_UINT8);

    EXPECT_OK(p2p_start_thread(g->p2p));
    for (unsigned int i = 0; i < 10; i++) {
        fill(x, N, i + (unsigned int)rank);
        start(g, &in);
        start(g, &out);
        if (rank == 0) {
            EXPECT_OK(finish(g, &in));
            EXPECT_OK(finish(g, &out));
        }
        pthread_barrier_wait(barrier);
        if (rank == 1) {
            EXPECT_OK(finish(g, &in));
            EXPECT_OK(finish(g, &out));
        }
        EXPECT(is_filled(y, N, i + (unsigned int)(1 - rank)), "round %u", i);
    }
    free(x);
    free(y);
}

START_TEST(a_thread_moves_what_nobody_waits_for)
{
    pthread_barrier_t barrier;

    pthread_barrier_init(&barrier, NULL, 2);
    run_way(_i, 2, unattended, &barrier);
    pthread_barrier_destroy(&barrier);
}
END_TEST

/* A receive that is open all the time costs the others nothing but time. */
static void open_receive(struct coll_group *g, int rank, void *arg)
{
    int32_t last = 0;
    struct p2p_op op = recv_op(1 - rank, 99, &last, 1, COLL_INT32);
    int32_t x = 0;

    (void)arg;
    EXPECT_OK(p2p_start_thread(g->p2p));
    start(g, &op);
    for (int i = 0; i < 2000; i++) {
        if (rank == 0)
            EXPECT_OK(do_op(g, send_op(1, 0, &i, 1, COLL_INT32)));
        EXPECT_OK(do_op(g, recv_op(1 - rank, 0, &x, 1, COLL_INT32)));
        EXPECT(x == i, "%d is %d", i, x);
        if (rank == 1)
            EXPECT_OK(do_op(g, send_op(0, 0, &i, 1, COLL_INT32)));
    }
    x = 4711;
    EXPECT_OK(do_op(g, send_op(1 - rank, 99, &x, 1, COLL_INT32)));
    while (!p2p_is_done(g->p2p, &op))
        sched_yield();
    EXPECT(op.status == COLL_OK && last == 4711, "%d", last);
}

START_TEST(a_thread_leaves_the_driving_to_those_who_wait)
{
    run_way(_i, 2, open_receive, NULL);
}
END_TEST

/* --- Deaths: ranks are processes ------------------------------------------ */

enum ending {
    DIES_SILENT, /* the others wait to receive */
    DIES_ASKED, /* they wait with a large message for it */
    DIES_IN_TURN, /* it has announced a large message, nobody has taken it */
    DIES_MAPPED, /* likewise, from memory of coll_alloc() */
    DIES_LATE, /* its message is in the channel, its end known */
    FREEZES,
    ENDINGS,
};

static void await_death(int gone)
{
    char byte;

    while (read(gone, &byte, 1) > 0)
        continue;
}

static bool is_announced(enum ending ending)
{
    return ending == DIES_IN_TURN || ending == DIES_MAPPED;
}

/* Rank 1. */
static void be_victim(struct coll_group *g, enum ending ending)
{
    enum { N = 2 << 20 };
    void *memory = NULL;
    unsigned char *x =
        ending == DIES_MAPPED && coll_alloc(&memory, N) == COLL_OK ? memory
                                                                   : malloc(N);
    struct p2p_op op = send_op(0, 0, x, N, COLL_UINT8);

    fill(x, N, 9);
    if (is_announced(ending) || ending == DIES_LATE)
        send_bytes(g, 0, 1, x, 1);
    if (is_announced(ending))
        start(g, &op);
    if (ending == DIES_LATE)
        send_bytes(g, 0, 2, x, 1);
    raise(ending == FREEZES ? SIGSTOP : SIGKILL);
}

/* Rank 0: whether it hears of it. */
static int be_survivor(
    struct coll_group *g, enum ending ending, int gone, bool is_local)
{
    enum { N = 2 << 20 };
    unsigned char *x = calloc(N, 1);
    bool is_left = ending == DIES_MAPPED && is_local; /* what was sent is */
    coll_status_t want = ending == FREEZES ? COLL_ERR_TIMEOUT : COLL_ERR_PEER;
    const char *died =
        is_local ? "rank 1 (pid " : "rank 1 at 127.0.0.1 is gone";
    const char *words = ending == FREEZES ? "waiting for rank 1" : died;
    coll_status_t status = COLL_OK;
    struct p2p_op op = recv_op(1, 0, x, 1, COLL_UINT8);

    if (is_announced(ending) || ending == DIES_LATE) {
        await_death(gone);
        status = recv_bytes(g, 1, 1, x, 1);
    }
    if (ending == DIES_LATE && status == COLL_OK)
        status = recv_bytes(g, P2P_ANY_SOURCE, 2, x, 1);
    if (status != COLL_OK) {
        fprintf(stderr, "a message is lost: %s\n", coll_last_error());
        return 5;
    }
    if (ending == DIES_ASKED) {
        status = send_bytes(g, 1, 0, x, N);
    } else if (is_announced(ending)) {
        status = recv_bytes(g, 1, 0, x, N);
        if (is_left && (status != COLL_OK || !is_filled(x, N, 9))) {
            fprintf(stderr, "what was sent is lost: %s\n", coll_last_error());
            return 6;
        }
        if (is_left)
            status = recv_bytes(g, 1, 0, x, N);
    } else {
        start(g, &op);
        status = wait_until(g, &op, ending == FREEZES ? 300 : TIMEOUT_MS);
    }
    free(x);
    if (status != want || strstr(coll_last_error(), words) == NULL) {
        fprintf(stderr, "%s: %s\n", coll_strerror(status), coll_last_error());
        return 3;
    }
    return coll_destroy() == COLL_OK ? 0 : 4;
}

static int process_main(
    int way, enum ending ending, int rank, int port, int gone)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", rank);
    setenv(ENV_RANK, text, 1);
    setenv(ENV_WORLD_SIZE, "2", 1);
    setenv(ENV_LOCAL_WORLD_SIZE, "2", 1);
    if (ways[way].node_of != NULL) {
        snprintf(text, sizeof(text), "%d", ways[way].node_of(rank));
        setenv(ENV_GROUP_RANK, text, 1);
    }
    harness_set_master(port);
    setenv("COLL_BACKEND", ways[way].backend->name, 1);
    setenv("COLL_TIMEOUT", "60", 1);
    setenv("COLL_CMA", ways[way].cma, 1);
    if (coll_init(NULL) != COLL_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, coll_last_error());
        return 7;
    }
    if (rank == 0)
        return be_survivor(
            coll_default_group(), ending, gone, is_within_node(way, 2));
    be_victim(coll_default_group(), ending);
    return 8;
}

/* Forks before there are threads; the port follows. */
static pid_t fork_rank(
    int way, enum ending ending, int rank, int ports[2], int gone[2])
{
    pid_t pid = fork();
    int port;

    ck_assert_int_ge(pid, 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (rank == 0)
        close(gone[1]);
    if (read(ports[0], &port, sizeof(port)) != sizeof(port))
        _exit(2);
    _exit(process_main(way, ending, rank, port, gone[0]));
}

START_TEST(a_rank_that_dies_is_named)
{
    int way = _i / ENDINGS;
    enum ending ending = (enum ending)(_i % ENDINGS);
    struct harness_store st;
    int ports[2], gone[2];
    pid_t pids[2];
    int status;

    ck_assert_int_eq(pipe(ports), 0);
    ck_assert_int_eq(pipe(gone), 0);
    for (int r = 0; r < 2; r++)
        pids[r] = fork_rank(way, ending, r, ports, gone);
    close(gone[1]);
    harness_store_start(&st);
    for (int r = 0; r < 2; r++)
        ck_assert_int_eq(
            write(ports[1], &st.port, sizeof(st.port)), sizeof(st.port));
    ck_assert_int_eq(waitpid(pids[0], &status, 0), pids[0]);
    ck_assert_msg(
        status == 0, "%s, %d: status %x", ways[way].name, ending, status);
    kill(pids[1], SIGKILL);
    ck_assert_int_eq(waitpid(pids[1], &status, 0), pids[1]);
    ck_assert_int_eq(WTERMSIG(status), SIGKILL);
    harness_store_stop(&st);
    close(gone[0]);
    close(ports[0]);
    close(ports[1]);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("p2p");
    TCase *deaths = tcase_create("deaths");
    Suite *suite = suite_create("p2p");

    tcase_set_timeout(tc, 120);
    tcase_set_timeout(deaths, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, all_sizes_arrive, 0, WAYS);
    tcase_add_loop_test(tc, all_to_all_at_once, 0, WAYS * 4);
    tcase_add_loop_test(tc, tags_are_asked_for_in_any_order, 0, WAYS);
    tcase_add_loop_test(tc, steps_are_apart_from_messages, 0, WAYS);
    tcase_add_loop_test(tc, any_source_takes_from_all, 0, WAYS * 2);
    tcase_add_loop_test(tc, receives_match_in_the_order_of_asking, 0, WAYS);
    tcase_add_loop_test(tc, both_may_send_first, 0, WAYS);
    tcase_add_loop_test(tc, a_full_channel_makes_the_sender_wait, 0, WAYS);
    tcase_add_loop_test(
        tc, messages_are_kept_until_they_are_asked_for, 0, WAYS);
    tcase_add_loop_test(tc, shared_memory_comes_and_goes, 0, WAYS * 2);
    tcase_add_loop_test(tc, shared_memory_is_copied_once, 0, WAYS * 2);
    tcase_add_loop_test(tc, what_was_given_up_is_not_received, 0, WAYS * 2);
    tcase_add_loop_test(tc, different_messages_are_an_error_on_both_sides, 0,
        WAYS * MISMATCHES);
    tcase_add_loop_test(tc, a_time_out_is_not_the_end, 0, WAYS);
    tcase_add_loop_test(tc, a_time_out_of_a_step_ends_all, 0, WAYS);
    tcase_add_loop_test(tc, what_was_sent_before_leaving_arrives, 0, WAYS);
    tcase_add_loop_test(tc, leaving_ends_the_waits_of_others, 0, WAYS);
    tcase_add_loop_test(tc, nobody_is_left_to_send, 0, WAYS);
    tcase_add_loop_test(tc, a_failed_collective_ends_messages, 0, WAYS);
    tcase_add_loop_test(tc, a_failed_message_ends_collectives, 0, WAYS);
    tcase_add_loop_test(tc, everybody_hears_of_a_failure, 0, WAYS);
    tcase_add_loop_test(tc, threads_wait_side_by_side, 0, WAYS * 2);
    tcase_add_loop_test(tc, a_thread_moves_what_nobody_waits_for, 0, WAYS);
    tcase_add_loop_test(
        tc, a_thread_leaves_the_driving_to_those_who_wait, 0, WAYS);
    tcase_add_loop_test(deaths, a_rank_that_dies_is_named, 0, WAYS * ENDINGS);
    suite_add_tcase(suite, tc);
    suite_add_tcase(suite, deaths);
    return unit_run_suite(suite);
}
