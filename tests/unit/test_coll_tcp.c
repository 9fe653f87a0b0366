/*
 * The operations over TCP and over nodes, ranks as threads: results against a
 * slow reference, and what happens when ranks do not do the same, leave, die,
 * hang, or do not come; and strangers at the door.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>

#include "tests/unit/coll_cases.h"
#include "tests/unit/coll_layouts.h"
#include "tests/unit/unit.h"
#include "worker/spread.h"
#include "worker/store.h"
#include "worker/tcp_internal.h"

static struct harness_store store;

/* Long enough for any of these tests on a loaded machine, short enough to
 * tell a hang. */
#define TIMEOUT_MS 30000

static void setup(void)
{
    unsetenv(ENV_NODE_ADDR);
    harness_store_start(&store);
}

static void teardown(void)
{
    harness_store_stop(&store);
}

enum { MAX_RANKS = 9 };

/* Loop tests count through layouts, and through sizes for each. */
#define CASES (LAYOUTS * MAX_RANKS)

static void run_case(int i, harness_rank_fn *run, void *arg)
{
    choose_layout(i / MAX_RANKS);
    harness_run(&store, i % MAX_RANKS + 1, TIMEOUT_MS, run, arg);
}

/* --- all_reduce ----------------------------------------------------------- */

static const coll_dtype_t dtypes[] = {
    COLL_FLOAT32, COLL_FLOAT64, COLL_INT32, COLL_INT64};

static void every_small_reduction(struct coll_group *g, int rank, void *arg)
{
    static const size_t counts[] = {0, 1, 3, 1000};
    int style = 0;

    (void)arg;
    for (int t = 0; t < 4; t++)
        for (int op = COLL_SUM; op <= COLL_PRODUCT; op++)
            for (int c = 0; c < 4; c++)
                for (int i = 0; i < 2; i++)
                    reduce_once(g, rank, counts[c], dtypes[t], (coll_op_t)op,
                        style++ % 8);
}

START_TEST(small_reductions_are_right)
{
    run_case(_i, every_small_reduction, NULL);
}
END_TEST

/* Around the sizes where the way of working changes, and more than fits the
 * sockets' buffers. */
static void large_reductions(struct coll_group *g, int rank, void *arg)
{
    size_t least = SPREAD_BYTES / (size_t)g->size;
    int style = 0;

    (void)arg;
    for (int t = 0; t < 4; t++) {
        size_t size = coll_dtype_size(dtypes[t]);
        size_t counts[] = {least / size, least / size + 1, 100003};

        for (int c = 0; c < 3; c++, style++)
            reduce_once(g, rank, counts[c], dtypes[t],
                (coll_op_t)(style % (COLL_PRODUCT + 1)), style % 8);
    }
}

START_TEST(large_reductions_are_right)
{
    run_case(_i, large_reductions, NULL);
}
END_TEST

static void huge_reductions(struct coll_group *g, int rank, void *arg)
{
    size_t most = (TCP_SCRATCH_BYTES / 8 - 1) * (size_t)g->size;

    (void)arg;
    reduce_once(g, rank, most, COLL_FLOAT64, COLL_AVG, 1);
    reduce_once(g, rank, most + 1, COLL_INT64, COLL_SUM, 2);
    reduce_once(g, rank, 2 * most + 5, COLL_FLOAT64, COLL_MAX, 0);
}

START_TEST(messages_of_several_pieces_are_right)
{
    choose_layout(_i);
    harness_run(&store, 3, TIMEOUT_MS, huge_reductions, NULL);
}
END_TEST

/* --- Same bits ------------------------------------------------------------ */

enum { BITS_COUNT = 70001, BITS_RANKS = 7 };

static void reduce_noise(struct coll_group *g, int rank, void *arg)
{
    float *results = arg;
    float *mine = results + (size_t)rank * BITS_COUNT;

    /* Any bit pattern: rounding, infinities, NaNs with payloads. */
    for (uint32_t i = 0; i < BITS_COUNT; i++) {
        uint32_t bits = (i * 31 + (uint32_t)rank) * 2654435761u;
        memcpy(&mine[i], &bits, sizeof(bits));
    }
    EXPECT_OK(coll_all_reduce(mine, mine, 1001, COLL_FLOAT32, COLL_SUM, g));
    EXPECT_OK(coll_all_reduce(mine + 1001, mine + 1001, BITS_COUNT - 1001,
        COLL_FLOAT32, COLL_AVG, g));
}

START_TEST(all_ranks_get_the_same_bits)
{
    float *results = calloc(BITS_RANKS * BITS_COUNT, sizeof(float));

    choose_layout(_i);
    harness_run(&store, BITS_RANKS, TIMEOUT_MS, reduce_noise, results);
    for (size_t r = 1; r < BITS_RANKS; r++)
        ck_assert_int_eq(memcmp(results, results + r * BITS_COUNT,
                             BITS_COUNT * sizeof(float)),
            0);
    free(results);
}
END_TEST

/* --- Broadcast and barrier ------------------------------------------------ */

static void broadcasts(struct coll_group *g, int rank, void *arg)
{
    size_t counts[] = {
        0, 1, 3, 1000, TCP_SCRATCH_BYTES / 8, TCP_SCRATCH_BYTES / 8 + 1};

    (void)arg;
    for (int root = 0; root < g->size; root++) {
        for (int c = 0; c < (root < 2 ? 6 : 4); c++) {
            size_t bytes = counts[c] * 8;
            char *memory = malloc(bytes + 16);
            char *buf = memory + (rank + c) % 5;
            size_t wrong = 0;

            for (size_t i = 0; i < bytes; i++)
                buf[i] = rank == root ? (char)(i * 7 + (size_t)root) : -1;
            buf[bytes] = 77;
            EXPECT_OK(coll_broadcast(
                counts[c] == 0 ? NULL : buf, counts[c], COLL_INT64, root, g));
            for (size_t i = 0; i < bytes; i++)
                wrong += buf[i] != (char)(i * 7 + (size_t)root);
            EXPECT(wrong == 0 && buf[bytes] == 77,
                "rank %d: %zu of %zu bytes from %d are wrong", rank, wrong,
                bytes, root);
            free(memory);
        }
    }
}

START_TEST(broadcast_reaches_everybody_from_every_root)
{
    run_case(_i, broadcasts, NULL);
}
END_TEST

static void barriers(struct coll_group *g, int rank, void *arg)
{
    _Atomic int *arrived = arg;

    (void)rank;
    for (int i = 1; i <= 50; i++) {
        atomic_fetch_add(arrived, 1);
        EXPECT_OK(coll_barrier(g));
        EXPECT(
            atomic_load(arrived) >= i * g->size, "barrier %d let through", i);
    }
}

START_TEST(barrier_waits_for_everybody)
{
    _Atomic int arrived = 0;

    run_case(_i, barriers, &arrived);
}
END_TEST

/* All kinds in one sequence, and a count of 0 is a step of it. */
static void mixture(struct coll_group *g, int rank, void *arg)
{
    (void)arg;
    for (uint64_t i = 0; i < 100; i += 4) {
        int64_t x = rank;
        int64_t y[50] = {0};

        EXPECT_OK(coll_all_reduce(&x, &x, 1, COLL_INT64, COLL_SUM, g));
        EXPECT(x == g->size * (g->size - 1) / 2, "sum is %lld", (long long)x);
        EXPECT_OK(coll_all_reduce(NULL, NULL, 0, COLL_FLOAT32, COLL_AVG, g));
        EXPECT_OK(coll_broadcast(y, 50, COLL_INT64, (int)i % g->size, g));
        EXPECT_OK(coll_barrier(g));
        EXPECT(g->seq == i + 4, "sequence is %llu after %llu operations",
            (unsigned long long)g->seq, (unsigned long long)i + 4);
    }
}

START_TEST(kinds_mix_in_one_sequence)
{
    run_case(_i, mixture, NULL);
}
END_TEST

/* --- Ranks that do not do the same ---------------------------------------- */

enum { ODD_RANKS = 6 };

/* Rank 4 calls something else at operation 2. */
static void one_differs(struct coll_group *g, int rank, void *arg)
{
    int what = *(int *)arg;
    float x[8] = {0};
    coll_status_t status;

    EXPECT_OK(coll_barrier(g));
    if (rank != 4)
        status = coll_all_reduce(x, x, 4, COLL_FLOAT32, COLL_SUM, g);
    else if (what == 0)
        status = coll_all_reduce(x, x, 5, COLL_FLOAT32, COLL_SUM, g);
    else if (what == 1)
        status = coll_all_reduce(x, x, 4, COLL_INT32, COLL_SUM, g);
    else if (what == 2)
        status = coll_all_reduce(x, x, 4, COLL_FLOAT32, COLL_MAX, g);
    else if (what == 3)
        status = coll_broadcast(x, 4, COLL_FLOAT32, 1, g);
    else
        status = coll_barrier(g);
    EXPECT_FAILS(status, COLL_ERR_MISMATCH, "mismatch at operation #2: ");
    EXPECT_FAILS(
        status, COLL_ERR_MISMATCH, "called all_reduce(count=4, float32");
    EXPECT_FAILS(status, COLL_ERR_MISMATCH,
        what < 3 ? "4 called all_reduce(" : "4 called b");
    EXPECT_FAILS(coll_barrier(g), COLL_ERR_MISMATCH, "operation #2");
}

START_TEST(different_calls_fail_everywhere)
{
    int what = _i % 5;

    choose_layout(_i / 5);
    harness_run(&store, ODD_RANKS, TIMEOUT_MS, one_differs, &what);
}
END_TEST

static void roots_differ(struct coll_group *g, int rank, void *arg)
{
    float x = 0;

    (void)arg;
    EXPECT_FAILS(coll_broadcast(&x, 1, COLL_FLOAT32, rank == 5 ? 2 : 3, g),
        COLL_ERR_MISMATCH, "5 called broadcast(count=1, float32, root=2)");
}

START_TEST(different_roots_fail_everywhere)
{
    choose_layout(_i);
    harness_run(&store, ODD_RANKS, TIMEOUT_MS, roots_differ, NULL);
}
END_TEST

/* --- Ranks that go -------------------------------------------------------- */

struct hang {
    int who;
    int left; /* ranks that still wait */
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

static void one_leaves(struct coll_group *g, int rank, void *arg)
{
    int leaver = *(int *)arg;

    EXPECT_OK(coll_barrier(g));
    EXPECT_OK(coll_barrier(g));
    if (rank != leaver)
        EXPECT_FAILS(coll_barrier(g), COLL_ERR_PEER, "left after operation 2");
}

START_TEST(rank_that_left_is_named)
{
    int leaver = _i % ODD_RANKS;

    choose_layout(_i / ODD_RANKS);
    harness_run(&store, ODD_RANKS, TIMEOUT_MS, one_leaves, &leaver);
}
END_TEST

/* What a rank has received last may be in before what it has sent is out. */
static void rings(struct coll_group *g, int rank, void *arg)
{
    const struct tcp_net *net = ((struct tcp_state *)g->state)->net;
    size_t most = 200000;
    int32_t *x = malloc(most * sizeof(*x));
    int little = 1; /* the kernel takes the least that it allows */

    (void)arg;
    for (int i = 0; i < net->nlinks; i++)
        setsockopt(
            net->links[i].data, SOL_SOCKET, SO_SNDBUF, &little, sizeof(little));
    for (int i = 0; i < 30; i++) {
        size_t count = most - (size_t)i * 577;
        size_t wrong = 0;

        for (size_t k = 0; k < count; k++)
            x[k] = rank + (int)(k % 7);
        EXPECT_OK(coll_all_reduce(x, x, count, COLL_INT32, COLL_SUM, g));
        for (size_t k = 0; k < count; k++)
            wrong +=
                x[k] != g->size * (g->size - 1) / 2 + g->size * (int)(k % 7);
        EXPECT(wrong == 0, "rank %d: %zu wrong in %d", rank, wrong, i);
    }
    free(x);
}

START_TEST(rings_come_to_their_end)
{
    choose_layout(0);
    harness_run(&store, 4, TIMEOUT_MS, rings, NULL);
}
END_TEST

/* What the end of a process does to its connections. */
static void cut_off(struct tcp_net *net)
{
    for (int i = 0; i < net->nlinks; i++) {
        shutdown(net->links[i].data, SHUT_RDWR);
        shutdown(net->links[i].news, SHUT_RDWR);
    }
    atomic_flag_test_and_set(&net->has_told); /* the dead do not speak */
}

enum { BIG = 3000000 };

static void one_dies(struct coll_group *g, int rank, void *arg)
{
    const int *what = arg;
    float *x = calloc(BIG, sizeof(*x));
    coll_status_t status;

    EXPECT_OK(coll_barrier(g));
    if (rank == what[0]) {
        cut_off(((struct tcp_state *)g->state)->net);
        g->failure = COLL_ERR_PEER;
    } else {
        status = what[1] == 0 ? coll_barrier(g)
                 : what[1] == 1
                     ? coll_all_reduce(x, x, BIG, COLL_FLOAT32, COLL_SUM, g)
                     : coll_broadcast(x, BIG, COLL_FLOAT32, 1, g);
        EXPECT_FAILS(status, COLL_ERR_PEER, "is gone");
        EXPECT_FAILS(status, COLL_ERR_PEER, what[0] == 0 ? "rank 0" : "rank 3");
        EXPECT_FAILS(coll_barrier(g), COLL_ERR_PEER, "is gone");
    }
    free(x);
}

START_TEST(end_of_a_rank_is_told_to_all)
{
    int what[] = {_i % 2 == 0 ? 0 : 3, _i / 2};

    choose_layout(0);
    harness_run(&store, 7, TIMEOUT_MS, one_dies, what);
}
END_TEST

/* In the middle of the data: the receiver has seen a part of it. */
static void one_dies_in_the_middle(struct coll_group *g, int rank, void *arg)
{
    struct tcp_net *net = ((struct tcp_state *)g->state)->net;
    float *x = calloc(BIG, sizeof(*x));
    struct coll_call call = {.kind = COLL_KIND_BROADCAST,
        .dtype = COLL_FLOAT32,
        .count = BIG,
        .seq = 1,
        .recvbuf = x,
        .deadline_ns = clock_deadline_ns(TIMEOUT_MS)};
    struct coll_call none = call;

    (void)arg;
    if (rank == 0) {
        /* Agrees to all of it, and sends less. */
        none.count = 0;
        none.whole = &call;
        EXPECT_OK(tcp_run(net, &none, COLL_ALGORITHM_EAGER));
        EXPECT(send(tcp_net_link(net, 2)->data, x, 100000, MSG_NOSIGNAL) > 0,
            "send: %s", strerror(errno));
        cut_off(net);
        g->failure = COLL_ERR_PEER;
    } else {
        EXPECT_FAILS(coll_broadcast(x, BIG, COLL_FLOAT32, 0, g), COLL_ERR_PEER,
            "rank 0 at 127.0.0.1 is gone");
    }
    free(x);
}

START_TEST(end_in_the_middle_of_data_is_told)
{
    choose_layout(0);
    harness_run(&store, 4, TIMEOUT_MS, one_dies_in_the_middle, NULL);
}
END_TEST

/* A rank that is late on one node does not keep its leader from hearing that
 * the other node has left. */
static void leader_waits_at_home(struct coll_group *g, int rank, void *arg)
{
    struct hang *h = arg;

    EXPECT_OK(coll_barrier(g));
    if (rank < 2)
        return; /* the first node goes */
    if (rank == 2) {
        EXPECT_FAILS(coll_barrier(g), COLL_ERR_PEER, "left after operation 1");
        pthread_mutex_lock(&h->lock);
        h->left = 0;
        pthread_cond_signal(&h->changed);
        pthread_mutex_unlock(&h->lock);
        return;
    }
    pthread_mutex_lock(&h->lock);
    while (h->left > 0)
        pthread_cond_wait(&h->changed, &h->lock);
    pthread_mutex_unlock(&h->lock);
    EXPECT_FAILS(coll_barrier(g), COLL_ERR_PEER, "left after operation 1");
}

START_TEST(failure_elsewhere_is_heard_at_home)
{
    struct hang h = {.left = 1,
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .changed = PTHREAD_COND_INITIALIZER};

    choose_layout(1);
    harness_run(&store, 4, TIMEOUT_MS, leader_waits_at_home, &h);
}
END_TEST

/* What was sent before the end stays valid. */
static void last_one_leaves_early(struct coll_group *g, int rank, void *arg)
{
    float x = 1;

    (void)arg;
    for (int i = 0; i < 20; i++)
        EXPECT_OK(coll_all_reduce(&x, &x, 1, COLL_FLOAT32, COLL_MAX, g));
    EXPECT(rank >= 0 && x == 1, "%g", x);
}

START_TEST(leaving_after_the_last_operation_is_no_error)
{
    run_case(_i, last_one_leaves_early, NULL);
}
END_TEST

/* --- Ranks that hang ------------------------------------------------------ */

/* Goes on when all others have got their error. */
static void one_hangs(struct coll_group *g, int rank, void *arg)
{
    struct hang *h = arg;
    float *x = calloc(BIG, sizeof(*x));
    char who[32];
    coll_status_t status;

    EXPECT_OK(coll_barrier(g));
    pthread_mutex_lock(&h->lock);
    while (rank == h->who && h->left > 0)
        pthread_cond_wait(&h->changed, &h->lock);
    pthread_mutex_unlock(&h->lock);
    if (rank != h->who) {
        snprintf(who, sizeof(who), "waiting for rank %d", h->who);
        status = coll_all_reduce(x, x, BIG, COLL_FLOAT32, COLL_SUM, g);
        EXPECT_FAILS(status, COLL_ERR_TIMEOUT, "timed out after 1.5 s in");
        EXPECT_FAILS(status, COLL_ERR_TIMEOUT, "all_reduce #2");
        EXPECT_FAILS(status, COLL_ERR_TIMEOUT, who);
        pthread_mutex_lock(&h->lock);
        h->left--;
        pthread_cond_signal(&h->changed);
        pthread_mutex_unlock(&h->lock);
    } else {
        status = coll_all_reduce(x, x, BIG, COLL_FLOAT32, COLL_SUM, g);
        EXPECT(status != COLL_OK, "it went on alone");
    }
    free(x);
}

START_TEST(rank_that_hangs_is_named_by_all)
{
    struct hang h = {.who = _i == 0 ? 0 : 3,
        .left = ODD_RANKS - 1,
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .changed = PTHREAD_COND_INITIALIZER};

    choose_layout(_i / 2);
    harness_run(&store, ODD_RANKS, 1500, one_hangs, &h);
}
END_TEST

/* --- Meeting -------------------------------------------------------------- */

static struct harness_job job_of(int size, int64_t timeout_ms)
{
    struct harness_job job = {.store = &store,
        .size = size,
        .timeout_ms = timeout_ms,
        .prefix = "meet/"};

    return job;
}

struct joiner {
    struct harness_job job;
    int rank;
    int size;
    coll_status_t status;
    char text[512];
    pthread_t thread;
};

static void *join_main(void *arg)
{
    struct joiner *j = arg;
    struct coll_group *g = NULL;

    j->status = harness_join(&j->job, j->rank, j->size, &g);
    snprintf(j->text, sizeof(j->text), "%s", coll_last_error());
    coll_group_free(g);
    return NULL;
}

static void join_start(struct joiner *j, int rank, int size, int64_t timeout_ms)
{
    *j = (struct joiner){
        .job = job_of(size, timeout_ms), .rank = rank, .size = size};
    ck_assert_int_eq(pthread_create(&j->thread, NULL, join_main, j), 0);
}

static void join_fails(
    struct joiner *j, coll_status_t status, const char *words)
{
    pthread_join(j->thread, NULL);
    ck_assert_msg(j->status == status && strstr(j->text, words) != NULL,
        "rank %d: %s: %s", j->rank, coll_strerror(j->status), j->text);
}

static bool has_claim(void)
{
    const char *key = "meet/rank0";
    bool exists = false;

    ck_assert_int_eq(coll_store_check(store.store, &key, 1, &exists), COLL_OK);
    return exists;
}

static int64_t count_keys(void)
{
    int64_t count = -1;

    ck_assert_int_eq(coll_store_num_keys(store.store, &count), COLL_OK);
    return count;
}

START_TEST(ranks_that_do_not_join_are_named)
{
    struct joiner j[3];
    int64_t before = count_keys();

    choose_layout(_i);
    for (int i = 0; i < 3; i++)
        join_start(&j[i], i, 5, 700);
    for (int i = 0; i < 3; i++)
        join_fails(&j[i], COLL_ERR_TIMEOUT, "waiting for ranks 3,4");
    ck_assert_int_eq(count_keys(), before);
}
END_TEST

START_TEST(missing_rank_0_is_named)
{
    struct joiner j;

    choose_layout(_i);
    join_start(&j, 1, 2, 300);
    join_fails(&j, COLL_ERR_TIMEOUT, "in coll_init waiting for rank 0");
}
END_TEST

START_TEST(different_world_sizes_are_told)
{
    struct joiner j[2];

    choose_layout(_i);
    join_start(&j[0], 0, 3, TIMEOUT_MS);
    join_start(&j[1], 1, 2, TIMEOUT_MS);
    for (int i = 0; i < 2; i++)
        join_fails(&j[i], COLL_ERR_ENVIRONMENT,
            "rank 1 has a world size of 2, rank 0 of 3");
}
END_TEST

START_TEST(same_rank_twice_is_told)
{
    struct joiner j[3];

    choose_layout(_i);
    join_start(&j[0], 0, 4, TIMEOUT_MS);
    for (int i = 1; i < 3; i++)
        join_start(&j[i], 2, 4, TIMEOUT_MS);
    for (int i = 0; i < 3; i++)
        join_fails(&j[i], COLL_ERR_ENVIRONMENT, "have the same RANK 2");
}
END_TEST

START_TEST(rank_0_twice_is_told)
{
    struct joiner j[2];

    choose_layout(_i);
    for (int i = 0; i < 2; i++)
        join_start(&j[i], 0, 2, TIMEOUT_MS);
    for (int i = 0; i < 2; i++) {
        pthread_join(j[i].thread, NULL);
        ck_assert_msg(
            strstr(j[i].text, "have the same RANK 0") != NULL, "%s", j[i].text);
        ck_assert_int_ne(j[i].status, COLL_OK);
    }
}
END_TEST

START_TEST(nothing_of_a_group_stays_in_the_store)
{
    int64_t before = count_keys();

    choose_layout(_i);
    harness_run(&store, 5, TIMEOUT_MS, mixture, NULL);
    ck_assert_int_eq(count_keys(), before);
}
END_TEST

/* A claim that a killed rank 0 has left. */
START_TEST(claim_of_a_dead_rank_0_is_replaced)
{
    const char *key = "meet/rank0";
    char claim[128];
    struct joiner j[3];

    choose_layout(_i);
    snprintf(claim, sizeof(claim), "3 %s 0 %032d %032d %d 127.0.0.1",
        harness_backend->name, 1, 2, harness_free_port());
    ck_assert_int_eq(
        coll_store_set(store.store, key, claim, strlen(claim)), COLL_OK);
    for (int i = 2; i >= 0; i--)
        join_start(&j[i], i, 3, TIMEOUT_MS);
    for (int i = 0; i < 3; i++)
        join_fails(&j[i], COLL_OK, "");
}
END_TEST

START_TEST(address_that_cannot_be_reached_is_told)
{
    struct joiner j[2];
    char words[64];

    /* Nobody has an address of this block, and no route leads there. */
    choose_layout(_i);
    setenv(ENV_NODE_ADDR, "240.0.0.1", 1);
    for (int i = 0; i < 2; i++)
        join_start(&j[i], i, 2, 1500);
    pthread_join(j[1].thread, NULL);
    ck_assert_int_ne(j[1].status, COLL_OK);
    snprintf(words, sizeof(words), "cannot reach rank 0 at 240.0.0.1 port ");
    ck_assert_msg(strstr(j[1].text, words) != NULL, "%s", j[1].text);
    ck_assert_msg(
        strstr(j[1].text, "rank 1 at 127.0.0.1 ") != NULL, "%s", j[1].text);
    pthread_join(j[0].thread, NULL);
    ck_assert_int_ne(j[0].status, COLL_OK);
}
END_TEST

START_TEST(address_that_is_given_is_published)
{
    choose_layout(_i);
    setenv(ENV_NODE_ADDR, "localhost", 1);
    harness_run(&store, 4, TIMEOUT_MS, mixture, NULL);
}
END_TEST

/* --- Strangers ------------------------------------------------------------ */

static bool claim_port(int *port)
{
    void *value;
    size_t len;
    char text[256];

    if (!has_claim())
        return false;
    ck_assert_int_eq(
        coll_store_get(store.store, "meet/rank0", &value, &len), COLL_OK);
    ck_assert_uint_lt(len, sizeof(text));
    memcpy(text, value, len);
    text[len] = '\0';
    free(value);
    return sscanf(text, "3 %*s %*d %*s %*s %d", port) == 1;
}

static int connect_stranger(int port)
{
    struct sockaddr_in sin = {.sin_family = AF_INET,
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
        .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
    return fd;
}

static void is_closed(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char byte;

    ck_assert_int_eq(poll(&p, 1, TIMEOUT_MS), 1);
    ck_assert_int_le(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

/* More of them than there are places, and all kinds. */
START_TEST(strangers_disturb_nobody)
{
    static const char request[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    enum { SILENT = 300 };
    int silent[SILENT];
    char garbage[4096];
    struct joiner j[4];
    int port;
    int fd;

    choose_layout(_i);
    join_start(&j[0], 0, 4, TIMEOUT_MS);
    while (!claim_port(&port))
        sched_yield();
    for (int i = 0; i < SILENT; i++)
        silent[i] = connect_stranger(port);
    fd = connect_stranger(port);
    ck_assert_int_gt(send(fd, request, strlen(request), MSG_NOSIGNAL), 0);
    is_closed(fd);
    /* The right magic number and then nothing of use. */
    memset(garbage, 0, sizeof(garbage));
    memcpy(garbage, &(const uint32_t){0x636f6d31u}, 4);
    fd = connect_stranger(port);
    ck_assert_int_gt(send(fd, garbage, sizeof(garbage), MSG_NOSIGNAL), 0);
    is_closed(fd);
    for (int i = 1; i < 4; i++)
        join_start(&j[i], i, 4, TIMEOUT_MS);
    for (int i = 0; i < 4; i++)
        join_fails(&j[i], COLL_OK, "");
    for (int i = 0; i < SILENT; i++)
        is_closed(silent[i]);
}
END_TEST

/* A stranger where a rank 0 was: it gets no further than that. */
START_TEST(stranger_in_the_place_of_rank_0_is_no_rank_0)
{
    struct sockaddr_in sin = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sin);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char claim[128];
    struct joiner j;

    choose_layout(_i);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&sin, &len), 0);
    snprintf(claim, sizeof(claim), "3 %s 0 %032d %032d %d 127.0.0.1",
        harness_backend->name, 1, 2, ntohs(sin.sin_port));
    ck_assert_int_eq(
        coll_store_set(store.store, "meet/rank0", claim, strlen(claim)),
        COLL_OK);
    join_start(&j, 1, 2, 500);
    join_fails(&j, COLL_ERR_SYSTEM, "cannot reach rank 0 at 127.0.0.1 port ");
    close(fd);
}
END_TEST

/* --- Places --------------------------------------------------------------- */

/* A back end that does nothing but meet: the group's state is its places. */
static coll_status_t only_meet(
    struct coll_group *g, const struct coll_boot *boot)
{
    struct tcp_meeting *meeting;
    struct tcp_places *places;
    struct tcp_net *net;
    coll_status_t status =
        tcp_meet(&meeting, &net, &places, g, boot, harness_node_of == NULL);

    if (status != COLL_OK)
        return status;
    status = tcp_meeting_end(meeting, COLL_OK);
    tcp_net_destroy(net);
    if (status == COLL_OK)
        g->state = places;
    else
        tcp_places_free(places);
    return status;
}

static void free_places(struct coll_group *g)
{
    tcp_places_free(g->state);
}

static const struct coll_backend only_places = {.name = "places",
    .max_ranks = TCP_MAX_RANKS,
    .create = only_meet,
    .destroy = free_places};

struct greeting {
    char token[TCP_TOKEN_BYTES];
    int32_t rank;
};

static void greet(const struct tcp_places *places, int rank, int to)
{
    struct greeting hello = {.rank = rank};
    struct sockaddr_in sin = {.sin_family = AF_INET};
    const char *addr = "";
    int port = 0;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    EXPECT(tcp_places_get(places, to, &addr, &port) == 0, "no rank %d", to);
    EXPECT(inet_pton(AF_INET, addr, &sin.sin_addr) == 1,
        "rank %d has for %d: %s", rank, to, addr);
    sin.sin_port = htons((uint16_t)port);
    EXPECT(connect(fd, (struct sockaddr *)&sin, sizeof(sin)) == 0,
        "rank %d cannot reach %d at %s port %d: %s", rank, to, addr, port,
        strerror(errno));
    memcpy(hello.token, places->token[0], sizeof(hello.token));
    EXPECT(send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello),
        "send to %d: %s", to, strerror(errno));
    close(fd);
}

/* Every rank connects to every other one. */
static void greet_all(struct coll_group *g, int rank, void *arg)
{
    const struct tcp_places *places = g->state;
    bool *has_come;
    const char *addr;
    int port;

    (void)arg;
    if (harness_node_of == layout_pairs && g->size == 2) {
        EXPECT(places == NULL, "rank %d listens within its node", rank);
        return;
    }
    has_come = calloc((size_t)g->size, sizeof(*has_come));
    EXPECT(tcp_places_get(places, -1, &addr, &port) == -EINVAL, "rank -1");
    EXPECT(tcp_places_get(places, g->size, &addr, &port) == -EINVAL, "size");
    for (int r = 0; r < g->size; r++)
        if (r != rank)
            greet(places, rank, r);
    for (int i = 1; i < g->size; i++) {
        struct pollfd p = {.fd = places->listener, .events = POLLIN};
        struct greeting hello = {.rank = -1};
        int fd;

        EXPECT(poll(&p, 1, TIMEOUT_MS) == 1, "only %d ranks came", i - 1);
        fd = accept4(places->listener, NULL, NULL, SOCK_CLOEXEC);
        EXPECT(recv(fd, &hello, sizeof(hello), MSG_WAITALL) == sizeof(hello),
            "receive: %s", strerror(errno));
        EXPECT(memcmp(hello.token, places->token[0], TCP_TOKEN_BYTES) == 0,
            "rank %d: a stranger", rank);
        EXPECT(hello.rank >= 0 && hello.rank < g->size && hello.rank != rank &&
                   !has_come[hello.rank],
            "rank %d: %d has come", rank, hello.rank);
        if (hello.rank >= 0 && hello.rank < g->size)
            has_come[hello.rank] = true;
        close(fd);
    }
    EXPECT(memcmp(places->token[0], places->token[1], TCP_TOKEN_BYTES) != 0,
        "one token");
    free(has_come);
}

START_TEST(any_two_ranks_can_connect_later)
{
    static int (*const layout[])(int) = {
        NULL, layout_pairs, layout_in_turn, layout_lopsided};

    harness_backend = &only_places;
    harness_node_of = layout[_i / 8];
    harness_run(&store, _i % 8 + 2, TIMEOUT_MS, greet_all, NULL);
}
END_TEST

/* Sockets of this process at which TCP is listened. */
static int count_listeners(void)
{
    int count = 0;

    for (int fd = 0; fd < 1024; fd++) {
        int domain = 0;
        int is_listening = 0;
        socklen_t len = sizeof(int);

        if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 &&
            domain != AF_UNIX &&
            getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &len) == 0)
            count += is_listening;
    }
    return count;
}

static void count_while_it_lives(struct coll_group *g, int rank, void *arg)
{
    EXPECT_OK(coll_barrier(g));
    if (rank == 0)
        *(int *)arg = count_listeners();
    EXPECT_OK(coll_barrier(g));
}

START_TEST(ranks_listen_while_a_group_of_several_nodes_lives)
{
    int before = count_listeners();
    int meanwhile = 0;
    bool is_one_node = layouts[_i].node_of == layout_together ||
                       (layouts[_i].node_of == NULL &&
                           layouts[_i].backend == &coll_backend_nodes);

    choose_layout(_i);
    harness_run(&store, 5, TIMEOUT_MS, count_while_it_lives, &meanwhile);
    ck_assert_int_eq(meanwhile, before + (is_one_node ? 0 : 5));
    ck_assert_int_eq(count_listeners(), before);
}
END_TEST

/* What rank 0 writes is read, and nothing else is. */
START_TEST(places_are_read_as_they_were_written)
{
    char longest[TCP_ADDR_BYTES];
    char table[4 * TCP_PLACE_BYTES];
    struct tcp_places *places = NULL;
    const char *addr;
    size_t len = 0;
    int port;

    memset(longest, 'a', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    len += tcp_place_write(table + len, "10.0.0.1", 1);
    len += tcp_place_write(table + len, "", 65535);
    len += tcp_place_write(table + len, longest, 40000);
    len += tcp_place_write(table + len, "::1", 5);
    ck_assert_int_eq(tcp_places_read(&places, table, len, 4, "leader"), 0);
    ck_assert_int_eq(tcp_places_get(places, 0, &addr, &port), 0);
    ck_assert(strcmp(addr, "10.0.0.1") == 0 && port == 1);
    ck_assert_int_eq(tcp_places_get(places, 1, &addr, &port), 0);
    ck_assert(strcmp(addr, "leader") == 0 && port == 65535);
    ck_assert_int_eq(tcp_places_get(places, 2, &addr, &port), 0);
    ck_assert(strcmp(addr, longest) == 0 && port == 40000);
    ck_assert_int_eq(tcp_places_get(places, 3, &addr, &port), 0);
    ck_assert(strcmp(addr, "::1") == 0 && port == 5);
    ck_assert_int_eq(places->listener, -1);
    tcp_places_free(places);
    for (size_t n = 0; n < len; n++) {
        char *part = malloc(n + 1); /* for the sanitizer: no byte more */

        memcpy(part + 1, table, n);
        ck_assert_int_eq(
            tcp_places_read(&places, part + 1, n, 4, "leader"), -EBADMSG);
        free(part);
    }
    ck_assert_int_eq(
        tcp_places_read(&places, table, len, 3, "leader"), -EBADMSG);
    table[3] = '\0'; /* in the first address */
    ck_assert_int_eq(
        tcp_places_read(&places, table, len, 4, "leader"), -EBADMSG);
    table[3] = '1';
    memset(table, 0, 2); /* its port */
    ck_assert_int_eq(
        tcp_places_read(&places, table, len, 4, "leader"), -EBADMSG);
}
END_TEST

/* --- Helpers of the arithmetic -------------------------------------------- */

/* Whoever is a neighbour of another has it for one, and there are few. */
START_TEST(neighbours_are_mutual_and_few)
{
    for (int size = 1; size < 200; size++)
        for (int r = 0; r < size; r++) {
            int mine[TCP_MAX_LINKS];
            int count = tcp_neighbours(r, size, mine);

            ck_assert_int_le(count, 16);
            for (int i = 0; i < count; i++) {
                int theirs[TCP_MAX_LINKS];
                int n = tcp_neighbours(mine[i], size, theirs);
                bool is_mutual = false;

                ck_assert_int_ne(mine[i], r);
                ck_assert(i == 0 || mine[i] > mine[i - 1]);
                for (int k = 0; k < n; k++)
                    is_mutual |= theirs[k] == r;
                ck_assert(is_mutual);
            }
        }
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("tcp");

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, small_reductions_are_right, 0, CASES);
    tcase_add_loop_test(tc, large_reductions_are_right, 0, CASES);
    tcase_add_loop_test(tc, messages_of_several_pieces_are_right, 0, LAYOUTS);
    tcase_add_loop_test(tc, all_ranks_get_the_same_bits, 0, LAYOUTS);
    tcase_add_test(tc, rings_come_to_their_end);
    tcase_add_loop_test(
        tc, broadcast_reaches_everybody_from_every_root, 0, CASES);
    tcase_add_loop_test(tc, barrier_waits_for_everybody, 0, CASES);
    tcase_add_loop_test(tc, kinds_mix_in_one_sequence, 0, CASES);
    tcase_add_loop_test(tc, different_calls_fail_everywhere, 0, 5 * LAYOUTS);
    tcase_add_loop_test(tc, different_roots_fail_everywhere, 0, LAYOUTS);
    tcase_add_loop_test(tc, rank_that_left_is_named, 0, ODD_RANKS * LAYOUTS);
    tcase_add_loop_test(tc, end_of_a_rank_is_told_to_all, 0, 6);
    tcase_add_test(tc, end_in_the_middle_of_data_is_told);
    tcase_add_test(tc, failure_elsewhere_is_heard_at_home);
    tcase_add_loop_test(
        tc, leaving_after_the_last_operation_is_no_error, 0, CASES);
    tcase_add_loop_test(tc, rank_that_hangs_is_named_by_all, 0, 4);
    tcase_add_loop_test(tc, ranks_that_do_not_join_are_named, 0, 2);
    tcase_add_loop_test(tc, missing_rank_0_is_named, 0, 2);
    tcase_add_loop_test(tc, different_world_sizes_are_told, 0, 2);
    tcase_add_loop_test(tc, same_rank_twice_is_told, 0, 2);
    tcase_add_loop_test(tc, rank_0_twice_is_told, 0, 2);
    tcase_add_loop_test(tc, nothing_of_a_group_stays_in_the_store, 0, LAYOUTS);
    tcase_add_loop_test(tc, claim_of_a_dead_rank_0_is_replaced, 0, LAYOUTS);
    tcase_add_loop_test(tc, address_that_cannot_be_reached_is_told, 0, 2);
    tcase_add_loop_test(tc, address_that_is_given_is_published, 0, 2);
    tcase_add_loop_test(tc, strangers_disturb_nobody, 0, 2);
    tcase_add_loop_test(tc, stranger_in_the_place_of_rank_0_is_no_rank_0, 0, 2);
    tcase_add_loop_test(tc, any_two_ranks_can_connect_later, 0, 4 * 8);
    tcase_add_loop_test(
        tc, ranks_listen_while_a_group_of_several_nodes_lives, 0, LAYOUTS);
    tcase_add_test(tc, places_are_read_as_they_were_written);
    tcase_add_test(tc, neighbours_are_mutual_and_few);
    return unit_run("coll_tcp", tc);
}
