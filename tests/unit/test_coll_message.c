/*
 * The public messages: who may send what to whom, and how a wait for one ends.
 * How they match and move is tested in test_p2p.c.
 */
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>

#include "tests/unit/coll_harness.h"
#include "tests/unit/coll_layouts.h"
#include "tests/unit/unit.h"

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

#define BAD(call, words) EXPECT_FAILS(call, COLL_ERR_ARGUMENT, words)

/* --- Arguments ------------------------------------------------------------ */

static void bad_messages(struct coll_group *g, int rank, void *arg)
{
    const int peers[] = {-1, g->size, INT32_MAX, INT32_MIN};
    const int other = g->size > 1 ? (rank + 1) % g->size : 1;
    coll_work_t *work = NULL;
    int32_t x = 5;
    int source = 77;

    (void)arg;
    for (int i = 0; i < 4; i++) {
        BAD(coll_send(&x, 1, COLL_INT32, peers[i], 0, g), "not a rank");
        BAD(coll_recv(&x, 1, COLL_INT32, peers[i], 0, &source, g),
            "not a rank");
        BAD(coll_isend(&x, 1, COLL_INT32, peers[i], 0, g, &work), "not a rank");
        BAD(coll_irecv(&x, 1, COLL_INT32, peers[i], 0, g, &work), "not a rank");
    }
    BAD(coll_send(&x, 1, COLL_INT32, rank, 0, g), "is this rank itself");
    BAD(coll_recv(&x, 1, COLL_INT32, rank, 0, &source, g), "itself");
    BAD(coll_isend(&x, 1, COLL_INT32, rank, 0, g, &work), "itself");
    BAD(coll_irecv(&x, 1, COLL_INT32, rank, 0, g, &work), "itself");
    BAD(coll_send(&x, 1, COLL_INT32, COLL_ANY_SOURCE, 0, g), "not a rank");
    if (g->size == 1) {
        BAD(coll_recv(&x, 1, COLL_INT32, COLL_ANY_SOURCE, 0, &source, g),
            "no other rank");
    } else {
        BAD(coll_send(&x, 1, COLL_INT32, other, -1, g), "tag is -1");
        BAD(coll_recv(&x, 1, COLL_INT32, other, INT32_MIN, NULL, g), "tag is");
        BAD(coll_send(NULL, 1, COLL_INT32, other, 0, g), "buf is NULL");
        BAD(coll_send(&x, 1, (coll_dtype_t)15, other, 0, g), "data type 15");
        BAD(coll_recv(&x, SIZE_MAX / 4 + 1, COLL_INT32, other, 0, NULL, g),
            "address space");
    }
    BAD(coll_isend(&x, 1, COLL_INT32, other, 0, g, NULL), "work is NULL");
    BAD(coll_batch(NULL, 2, g, &work), "messages is NULL, n is 2");
    BAD(coll_batch((coll_message_t[]){{true, &x, 1, COLL_INT32, other, 0},
                       {false, &x, 1, COLL_INT32, rank, 0}},
            2, g, &work),
        g->size == 1 ? "" : "itself");
    EXPECT(work == NULL && x == 5 && source == 77, "something has changed");
    /* None of them was sent, and none is any message's time. */
    EXPECT_OK(coll_batch(NULL, 0, g, &work));
    EXPECT_OK(coll_work_wait(work, 0));
    coll_work_free(work);
    EXPECT_OK(coll_barrier(g));
}

/* PG-15 */
START_TEST(bad_peers_are_refused)
{
    harness_backend = _i == 1 ? &coll_backend_self : &coll_backend_shm;
    harness_run(&store, _i, TIMEOUT_MS, bad_messages, NULL);
}
END_TEST

/* --- Mismatches ----------------------------------------------------------- */

static const struct unlike {
    size_t sent, received;
    coll_dtype_t sent_as, received_as;
} unlikes[] = {
    {3, 4, COLL_INT32, COLL_INT32},
    {3, 5, COLL_INT32, COLL_INT32},
    {5, 3, COLL_INT32, COLL_INT32},
    {3, 3, COLL_INT32, COLL_FLOAT32},
    {8, 4, COLL_INT32, COLL_INT64}, /* as many bytes */
    {0, 1, COLL_INT32, COLL_INT32},
    {1, 0, COLL_INT32, COLL_INT32},
    {1 << 20, (1 << 20) - 1, COLL_INT32, COLL_INT32},
    {3, 1 << 20, COLL_INT32, COLL_INT32},
};

static void send_unlike(struct coll_group *g, int rank, void *arg)
{
    const struct unlike *u = arg;
    size_t bytes = ((size_t)1 << 20) * sizeof(int32_t);
    char *memory = malloc(bytes + 64);
    coll_work_t *work = NULL;
    char words[96];

    snprintf(words, sizeof(words),
        "rank 0 sent %zu %s, rank 1 asked for %zu "
        "%s",
        u->sent, coll_dtype_name(u->sent_as), u->received,
        coll_dtype_name(u->received_as));
    memset(memory, 0x5a, bytes + 64);
    if (rank == 0) {
        /* May be done before the other side looks, but must not wait. */
        coll_status_t status =
            coll_isend(memory, u->sent, u->sent_as, 1, 3, g, &work);

        EXPECT(status == COLL_OK || status == COLL_ERR_MISMATCH, "%s",
            coll_last_error());
        status = status == COLL_OK ? coll_work_wait(work, 0) : status;
        EXPECT(status == COLL_OK || status == COLL_ERR_MISMATCH, "%s",
            coll_last_error());
        coll_work_free(work);
        EXPECT_FAILS(coll_recv(memory, 1, COLL_INT8, 1, 0, NULL, g),
            COLL_ERR_MISMATCH, words);
    } else if (rank == 1) {
        EXPECT_FAILS(
            coll_recv(memory, u->received, u->received_as, 0, 3, NULL, g),
            COLL_ERR_MISMATCH, words);
        for (size_t i = u->received * coll_dtype_size(u->received_as);
             i < bytes + 64; i++)
            if (memory[i] != 0x5a)
                EXPECT(false, "byte %zu behind the end was written", i);
    }
    EXPECT_FAILS(coll_barrier(g), COLL_ERR_MISMATCH, words);
    free(memory);
}

/* PG-13 */
START_TEST(unlike_messages_fail_on_every_rank)
{
    struct unlike u = unlikes[_i];

    for (int size = 2; size <= 3; size++)
        harness_run(&store, size, TIMEOUT_MS, send_unlike, &u);
}
END_TEST

/* --- Results -------------------------------------------------------------- */

/* Everybody with everybody, in one batch on each rank. */
static void batch(struct coll_group *g, int rank, void *arg)
{
    enum { N = 3000 };
    int n = g->size - 1;
    int32_t *out = malloc((size_t)n * N * sizeof(*out));
    int32_t *in = calloc((size_t)n * N, sizeof(*in));
    coll_message_t *messages = calloc((size_t)n * 2, sizeof(*messages));
    coll_work_t *work = NULL;

    (void)arg;
    for (int k = 0; k < n; k++) {
        int peer = (rank + 1 + k) % g->size;

        for (int i = 0; i < N; i++)
            out[k * N + i] = rank * 100000 + peer * 10000 + i;
        messages[k] = (coll_message_t){
            true, out + (size_t)k * N, N, COLL_INT32, peer, rank};
        messages[n + k] = (coll_message_t){
            false, in + (size_t)k * N, N, COLL_INT32, peer, peer};
    }
    EXPECT_OK(coll_batch(messages, (size_t)n * 2, g, &work));
    memset(messages, 0, (size_t)n * 2 * sizeof(*messages)); /* it was read */
    EXPECT_OK(coll_work_wait(work, 0));
    EXPECT(coll_work_source(work) == -1, "of many there is no source");
    for (int k = 0; k < n; k++) {
        int peer = (rank + 1 + k) % g->size;

        for (int i = 0; i < N; i++)
            EXPECT(in[k * N + i] == peer * 100000 + rank * 10000 + i,
                "from %d, element %d", peer, i);
    }
    coll_work_free(work);
    free(messages);
    free(in);
    free(out);
}

START_TEST(a_batch_is_done_when_all_of_it_is)
{
    for (int size = 2; size <= 8; size++)
        harness_run(&store, size, TIMEOUT_MS, batch, NULL);
}
END_TEST

/* Rank 0 hears from all, in whatever order; no elements are a message, too. */
static void any_source(struct coll_group *g, int rank, void *arg)
{
    enum { ROUNDS = 100 };
    int heard[8] = {0};
    int source = -5;
    coll_work_t *work = NULL;

    (void)arg;
    for (int i = 0; i < ROUNDS && rank != 0; i++) {
        EXPECT_OK(coll_send(&i, 1, COLL_INT32, 0, 1, g));
        EXPECT_OK(coll_send(NULL, 0, COLL_INT32, 0, 2, g));
    }
    for (int i = 0; i < ROUNDS * (g->size - 1) && rank == 0; i++) {
        int32_t x = -1;

        EXPECT_OK(
            coll_recv(NULL, 0, COLL_INT32, COLL_ANY_SOURCE, 2, &source, g));
        EXPECT(source > 0 && source < g->size, "source %d", source);
        EXPECT_OK(coll_irecv(&x, 1, COLL_INT32, COLL_ANY_SOURCE, 1, g, &work));
        EXPECT_OK(coll_work_wait(work, 0));
        source = coll_work_source(work);
        coll_work_free(work);
        EXPECT(source > 0 && source < g->size, "source %d", source);
        if (source > 0 && source < g->size)
            EXPECT(x == heard[source]++, "from %d: %d", source, (int)x);
    }
    EXPECT_OK(coll_barrier(g));
}

START_TEST(whoever_sends_first_is_told)
{
    for (int size = 2; size <= 4; size++)
        harness_run(&store, size, TIMEOUT_MS, any_source, NULL);
}
END_TEST

/* Messages of every size stay on their way while the group's operations run,
 * some of them given back at once. */
static void beside_operations(struct coll_group *g, int rank, void *arg)
{
    static const size_t sizes[] = {0, 1, 1000, 70000, 3 << 20};
    enum { N = 5 };
    int next = (rank + 1) % g->size;
    int before = (rank + g->size - 1) % g->size;
    char *out[N], *in[N];
    coll_work_t *sent[N] = {NULL};
    coll_work_t *received[N] = {NULL};

    (void)arg;
    for (int i = 0; i < N; i++) {
        out[i] = malloc(sizes[i] + 1);
        in[i] = calloc(sizes[i] + 1, 1);
        memset(out[i], 'a' + rank, sizes[i] + 1);
        EXPECT_OK(coll_irecv(
            in[i], sizes[i], COLL_UINT8, before, i, g, &received[i]));
    }
    for (int i = N - 1; i >= 0; i--) {
        int64_t x = rank;

        EXPECT_OK(
            coll_isend(out[i], sizes[i], COLL_UINT8, next, i, g, &sent[i]));
        EXPECT_OK(coll_all_reduce(&x, &x, 1, COLL_INT64, COLL_MAX, g));
        EXPECT(x == g->size - 1, "got %lld", (long long)x);
        if (i % 2 == 0) {
            coll_work_free(sent[i]);
            sent[i] = NULL;
        }
    }
    for (int i = 0; i < N; i++) {
        EXPECT_OK(coll_work_wait(received[i], 0));
        EXPECT(coll_work_source(received[i]) == before, "source %d",
            coll_work_source(received[i]));
        coll_work_free(received[i]);
        for (size_t k = 0; k < sizes[i]; k++)
            if (in[i][k] != 'a' + before)
                EXPECT(false, "message %d, byte %zu", i, k);
        EXPECT(in[i][sizes[i]] == 0, "written behind the end");
        if (sent[i] != NULL)
            EXPECT_OK(coll_work_wait(sent[i], 0));
        coll_work_free(sent[i]);
    }
    /* Those that nobody can wait for are done when everybody has his. */
    EXPECT_OK(coll_barrier(g));
    while (coll_group_is_busy(g))
        sched_yield();
    for (int i = 0; i < N; i++) {
        free(out[i]);
        free(in[i]);
    }
}

START_TEST(messages_are_on_their_way_beside_operations)
{
    for (int i = 0; i < 10; i++)
        harness_run(&store, 2 + i % 3, TIMEOUT_MS, beside_operations, NULL);
}
END_TEST

/* --- Time-outs ------------------------------------------------------------ */

/* How rank 0 waits for a message that never comes. */
enum way { RECEIVES, WAITS, WAITS_SHORTLY, TESTS, NEVER_WAITS, WAYS };

static void never_comes(struct coll_group *g, int rank, void *arg)
{
    const enum way way = *(const enum way *)arg;
    const char *words = "in recv from rank 1 on rank 0, tag 4 "
                        "waiting for rank 1";
    coll_status_t status = COLL_OK;
    coll_work_t *work = NULL;
    bool done = false;
    int32_t x;

    g->timeout_ms = 200;
    if (rank != 0) {
        g->timeout_ms = TIMEOUT_MS;
        EXPECT_FAILS(coll_recv(&x, 1, COLL_INT32, 0, 5, NULL, g),
            COLL_ERR_TIMEOUT, words);
        EXPECT(strstr(coll_last_error(),
                   "; rank 1 was in recv from rank 0 on rank 1, tag 5") != NULL,
            "%s", coll_last_error());
        return;
    }
    if (way == RECEIVES) {
        status = coll_recv(&x, 1, COLL_INT32, 1, 4, NULL, g);
    } else {
        EXPECT_OK(coll_irecv(&x, 1, COLL_INT32, 1, 4, g, &work));
        if (way == WAITS)
            status = coll_work_wait(work, 0);
        while (way == WAITS_SHORTLY && status == COLL_OK) {
            EXPECT(coll_work_wait(work, 20) == COLL_ERR_TIMEOUT, "%s",
                coll_last_error());
            if (strstr(coll_last_error(), "it goes on") == NULL)
                status = COLL_ERR_TIMEOUT;
        }
        while (way == TESTS && !done)
            status = coll_work_test(work, &done);
        while (way == NEVER_WAITS && coll_group_is_busy(g))
            sched_yield();
        if (way == NEVER_WAITS)
            status = coll_work_test(work, &done);
    }
    EXPECT(status == COLL_ERR_TIMEOUT, "got %s: %s", coll_strerror(status),
        coll_last_error());
    EXPECT(strstr(coll_last_error(), words) != NULL, "%s", coll_last_error());
    /* However long the last wait for it was. */
    EXPECT(strstr(coll_last_error(), "after 0.0 s") == NULL &&
               strstr(coll_last_error(), "after 0.1 s") == NULL,
        "%s", coll_last_error());
    /* Again, shortly, is no other answer. */
    if (work != NULL)
        EXPECT_FAILS(coll_work_wait(work, 1), COLL_ERR_TIMEOUT, words);
    coll_work_free(work);
    EXPECT_FAILS(coll_barrier(g), COLL_ERR_TIMEOUT, words);
}

/* PG-19: the group's time-out ends a message, however one waits. */
START_TEST(a_message_that_never_comes_is_a_time_out)
{
    enum way way = (enum way)(_i % WAYS);

    /* In shared memory, over TCP, and between nodes. */
    if (_i >= WAYS)
        choose_layout(_i / WAYS == 1 ? 0 : LAYOUTS_OF_NODES - 1);
    harness_run(&store, 2, TIMEOUT_MS, never_comes, &way);
}
END_TEST

/* Waits that hang on one rank, which does nothing till they are over. */
struct chain {
    pthread_barrier_t over; /* of all ranks */
    bool is_skewed; /* only rank 0's time is over */
};

static void choose_any_layout(int i)
{
    if (i > 0)
        choose_layout(i - 1);
}

/* 0 waits for 1, which waits for 2, and so on. */
static void wait_in_chain(struct coll_group *g, int rank, void *arg)
{
    struct chain *c = arg;
    const char *words = "waiting for rank 3";
    int32_t x;

    EXPECT_OK(coll_barrier(g)); /* all listen */
    g->timeout_ms = c->is_skewed && rank != 0 ? TIMEOUT_MS : 300;
    if (rank < g->size - 1)
        EXPECT_FAILS(coll_recv(&x, 1, COLL_INT32, rank + 1, 2, NULL, g),
            COLL_ERR_TIMEOUT, words);
    pthread_barrier_wait(&c->over);
    EXPECT_FAILS(coll_barrier(g), COLL_ERR_TIMEOUT, words);
    pthread_barrier_wait(&c->over); /* who leaves is heard of, too */
}

START_TEST(the_end_of_a_chain_of_waits_is_named)
{
    struct chain c = {.is_skewed = _i % 2 == 1};

    choose_any_layout(_i / 2);
    pthread_barrier_init(&c.over, NULL, 4);
    harness_run(&store, 4, TIMEOUT_MS, wait_in_chain, &c);
    pthread_barrier_destroy(&c.over);
}
END_TEST

/* The other ranks are in an operation. */
static void time_out_beside(struct coll_group *g, int rank, void *arg)
{
    struct chain *c = arg;
    const char *words = "in recv from rank 3 on rank 0, tag 2 waiting for";
    int32_t x;

    EXPECT_OK(coll_barrier(g));
    g->timeout_ms = rank == 0 ? 300 : TIMEOUT_MS;
    if (rank == 0)
        EXPECT_FAILS(coll_recv(&x, 1, COLL_INT32, 3, 2, NULL, g),
            COLL_ERR_TIMEOUT, words);
    else if (rank != 3)
        EXPECT_FAILS(coll_barrier(g), COLL_ERR_TIMEOUT, words);
    pthread_barrier_wait(&c->over);
    EXPECT_FAILS(coll_barrier(g), COLL_ERR_TIMEOUT, words);
}

START_TEST(a_time_out_is_one_on_all_ranks)
{
    struct chain c = {.is_skewed = false};

    choose_any_layout(_i);
    pthread_barrier_init(&c.over, NULL, 4);
    harness_run(&store, 4, TIMEOUT_MS, time_out_beside, &c);
    pthread_barrier_destroy(&c.over);
}
END_TEST

/* A short wait is not the message's end. */
static void comes_late(struct coll_group *g, int rank, void *arg)
{
    pthread_barrier_t *seen = arg;
    coll_work_t *work = NULL;
    int32_t x = rank;

    if (rank == 0) {
        EXPECT_OK(coll_irecv(&x, 1, COLL_INT32, 1, 0, g, &work));
        EXPECT_FAILS(coll_work_wait(work, 1), COLL_ERR_TIMEOUT, "it goes on");
        EXPECT_FAILS(coll_work_wait(work, 5), COLL_ERR_TIMEOUT, "it goes on");
        pthread_barrier_wait(seen);
        EXPECT_OK(coll_work_wait(work, INT64_MAX));
        EXPECT(x == 1, "got %d", (int)x);
        coll_work_free(work);
    } else {
        pthread_barrier_wait(seen);
        EXPECT_OK(coll_send(&x, 1, COLL_INT32, 0, 0, g));
    }
    EXPECT_OK(coll_barrier(g));
}

START_TEST(a_short_wait_does_not_end_a_message)
{
    pthread_barrier_t seen;

    pthread_barrier_init(&seen, NULL, 2);
    harness_run(&store, 2, TIMEOUT_MS, comes_late, &seen);
    pthread_barrier_destroy(&seen);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("message");

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, bad_peers_are_refused, 1, 4);
    tcase_add_loop_test(tc, unlike_messages_fail_on_every_rank, 0,
        (int)(sizeof(unlikes) / sizeof(unlikes[0])));
    tcase_add_test(tc, a_batch_is_done_when_all_of_it_is);
    tcase_add_test(tc, whoever_sends_first_is_told);
    tcase_add_test(tc, messages_are_on_their_way_beside_operations);
    tcase_add_loop_test(
        tc, a_message_that_never_comes_is_a_time_out, 0, 3 * WAYS);
    tcase_add_loop_test(tc, the_end_of_a_chain_of_waits_is_named, 0,
        2 * (1 + LAYOUTS_OF_NODES));
    tcase_add_loop_test(
        tc, a_time_out_is_one_on_all_ranks, 0, 1 + LAYOUTS_OF_NODES);
    tcase_add_test(tc, a_short_wait_does_not_end_a_message);
    return unit_run("coll_message", tc);
}
