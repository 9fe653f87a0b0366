/*
 * Large operations on one node, where ranks take what they need from each
 * other's buffers: what only one of them is told, does, or is refused.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/uio.h>

#include "tests/unit/coll_harness.h"
#include "tests/unit/unit.h"

enum { COUNT = 70000 };

/* The library may find other ways faster for some of these sizes. */
#define READ_ALL "all_reduce:cma,all_gather:cma,gather:cma,reduce_scatter_v:cma"

static int node_of_two(int rank)
{
    return rank / 2;
}

/* --- Layouts -------------------------------------------------------------- */

/* Where rank's part for each other one begins is its own affair. */
static size_t part_at(int rank, int to, int size)
{
    return (size_t)((to + rank) % size) * (COUNT + 3);
}

static void scatter_from_own_layouts(
    struct coll_group *g, int rank, bool is_allocated)
{
    size_t bytes = (size_t)g->size * (COUNT + 3) * sizeof(int32_t);
    size_t counts[8];
    size_t at[8];
    int32_t *recv = calloc(COUNT, sizeof(*recv));
    void *memory = NULL;
    int32_t *send;

    if (is_allocated)
        EXPECT_OK(coll_alloc(&memory, bytes));
    else
        memory = calloc(1, bytes);
    send = memory;
    for (int to = 0; to < g->size; to++) {
        counts[to] = COUNT - (size_t)to;
        at[to] = part_at(rank, to, g->size);
        for (size_t i = 0; i < counts[to]; i++)
            send[at[to] + i] = (int32_t)i % 1000 * (to + 1) + rank;
    }
    EXPECT_OK(
        coll_reduce_scatter_v(send, counts, at, recv, COLL_INT32, COLL_SUM, g));
    for (size_t i = 0; i < counts[rank]; i++) {
        int32_t want = g->size * ((int32_t)i % 1000) * (rank + 1) +
                       g->size * (g->size - 1) / 2;

        if (recv[i] == want)
            continue;
        EXPECT(
            false, "rank %d, element %zu: %d, not %d", rank, i, recv[i], want);
        break;
    }
    if (is_allocated)
        EXPECT_OK(coll_free(memory));
    else
        free(memory);
    free(recv);
}

static void run_layouts(struct coll_group *g, int rank, void *arg)
{
    (void)arg;
    scatter_from_own_layouts(g, rank, false);
    EXPECT_OK(coll_algorithm_set(g, READ_ALL));
    scatter_from_own_layouts(g, rank, false);
    scatter_from_own_layouts(g, rank, true);
    scatter_from_own_layouts(g, rank, rank == 1);
}

START_TEST(each_rank_lays_out_its_own_buffer)
{
    static const struct coll_backend *const backends[] = {&coll_backend_shm,
        &coll_backend_shm, &coll_backend_nodes, &coll_backend_tcp};
    struct harness_store st;

    harness_backend = backends[_i];
    harness_node_of = node_of_two;
    if (_i == 1)
        setenv("COLL_CMA", "0", 1);
    harness_store_start(&st);
    harness_run(&st, 4, 60000, run_layouts, NULL);
    harness_store_stop(&st);
}
END_TEST

/* --- What one rank is told ------------------------------------------------ */

enum { RANKS = 3 };

static bool is_sum(const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (x[i] != RANKS * (RANKS - 1) / 2 + RANKS * (float)(i % 100))
            return false;
    return true;
}

/* Status of a worker: 0 if all went well. */
static int reduce_with_own_environment(int rank, void *arg)
{
    size_t count = 1 << 20;
    float *x = malloc(count * sizeof(*x));
    const coll_options_t options = {.timeout_ms = 20000};
    int rc = 0;

    if (rank == *(const int *)arg)
        setenv("COLL_CMA", "0", 1);
    if (coll_init(&options) != COLL_OK ||
        coll_algorithm_set(NULL, READ_ALL) != COLL_OK)
        return 2;
    for (int round = 0; round < 3 && rc == 0; round++) {
        for (size_t i = 0; i < count; i++)
            x[i] = (float)(i % 100) + (float)rank;
        if (coll_all_reduce(x, x, count, COLL_FLOAT32, COLL_SUM, NULL) !=
            COLL_OK)
            rc = 3;
        else if (!is_sum(x, count))
            rc = 4;
    }
    if (rc == 3)
        fprintf(stderr, "rank %d: %s\n", rank, coll_last_error());
    free(x);
    coll_destroy();
    return rc;
}

START_TEST(one_rank_may_be_told_not_to_read)
{
    ck_assert_msg(
        coll_spawn(reduce_with_own_environment, &_i, RANKS, NULL) == COLL_OK,
        "%s", coll_last_error());
}
END_TEST

/* --- Descriptors ---------------------------------------------------------- */

enum { MANY = 40 };

/* The memory of each rank is a descriptor in each other one. */
static int gather_with_few_descriptors(int rank, void *arg)
{
    const size_t count = 4096;
    struct rlimit limit;
    void *memory = NULL;
    int32_t *x;
    int rc = 0;

    (void)arg;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 32;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0 || coll_init(NULL) != COLL_OK)
        return 2;
    if (coll_alloc(&memory, MANY * count * sizeof(*x)) != COLL_OK)
        return 3;
    x = memory;
    for (size_t i = 0; i < count; i++)
        x[(size_t)rank * count + i] = rank;
    if (coll_all_gather(&x[(size_t)rank * count], x, count, COLL_INT32, NULL) !=
        COLL_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, coll_last_error());
        rc = 4;
    }
    for (size_t i = 0; i < MANY * count && rc == 0; i++)
        rc = x[i] == (int32_t)(i / count) ? 0 : 5;
    coll_destroy();
    coll_free(memory);
    return rc;
}

START_TEST(there_are_descriptors_for_the_memory_of_all)
{
    ck_assert_msg(
        coll_spawn(gather_with_few_descriptors, NULL, MANY, NULL) == COLL_OK,
        "%s", coll_last_error());
}
END_TEST

/* --- Memory that comes and goes ------------------------------------------- */

enum { BLOCKS = 100, ROUNDS = 600 };

static int32_t value(int rank, int round, size_t i)
{
    return (int32_t)(i % 1009) * (rank + 1) + round;
}

/* Takes other memory now and then, so that each rank has its own of many
 * sizes, and what others have mapped of it is used again for something else. */
static int32_t *some_memory(void **blocks, unsigned int *seed, size_t count)
{
    int k = rand_r(seed) % BLOCKS;

    if (coll_free(blocks[k]) != COLL_OK ||
        coll_alloc(&blocks[k], (count + 16) * sizeof(int32_t)) != COLL_OK)
        return NULL;
    return (int32_t *)blocks[k] + rand_r(seed) % 16;
}

static bool try_all_reduce(
    int32_t *send, int32_t *recv, size_t count, int rank, int round)
{
    for (size_t i = 0; i < count; i++)
        send[i] = value(rank, round, i);
    if (coll_all_reduce(send, recv, count, COLL_INT32, COLL_SUM, NULL) !=
        COLL_OK)
        return false;
    for (size_t i = 0; i < count; i++)
        if (recv[i] !=
            value(0, round, i) + value(1, round, i) + value(2, round, i))
            return false;
    return true;
}

static bool try_gather(
    int32_t *send, int32_t *recv, size_t count, int rank, int round)
{
    for (size_t i = 0; i < count; i++)
        send[i] = value(rank, round, i);
    if (coll_gather(send, recv, count, COLL_INT32, round % RANKS, NULL) !=
        COLL_OK)
        return false;
    for (size_t i = 0; rank == round % RANKS && i < RANKS * count; i++)
        if (recv[i] != value((int)(i / count), round, i % count))
            return false;
    return true;
}

static int use_memory(int rank, void *arg)
{
    void *blocks[2][BLOCKS] = {{NULL}};
    unsigned int own = 5 + (unsigned int)rank; /* the ranks differ */
    unsigned int same = 5;
    int rc = 0;

    (void)arg;
    if (coll_init(NULL) != COLL_OK)
        return 2;
    for (int round = 0; round < ROUNDS && rc == 0; round++) {
        size_t count = 5000 + (size_t)rand_r(&same) % 40000;
        int32_t *send = some_memory(blocks[0], &own, count);
        int32_t *recv = some_memory(blocks[1], &own, RANKS * count);

        if (send == NULL || recv == NULL)
            rc = 3;
        else if (!try_all_reduce(send, recv, count, rank, round))
            rc = 4;
        else if (!try_gather(send, recv, count, rank, round))
            rc = 5;
    }
    for (int k = 0; k < BLOCKS; k++) {
        coll_free(blocks[0][k]);
        coll_free(blocks[1][k]);
    }
    coll_destroy();
    return rc;
}

START_TEST(memory_comes_and_goes)
{
    ck_assert_msg(coll_spawn(use_memory, NULL, RANKS, NULL) == COLL_OK, "%s",
        coll_last_error());
}
END_TEST

/* --- What the kernel refuses ---------------------------------------------- */

/* NO_BYTE: nor can a rank read its own. */
static enum { ALL, NO_PART, NO_BYTE } refused;
static _Atomic int system_errors;
static _Atomic int reads; /* of more than a probe */

static ssize_t (*real_readv)(pid_t, const struct iovec *, unsigned long,
    const struct iovec *, unsigned long, unsigned long);

/* Stands in for libc's, also in the library under test. Of some memory, that
 * of devices, the kernel gives nothing, though it permits to read the rest. */
ssize_t process_vm_readv(pid_t pid, const struct iovec *here,
    unsigned long here_count, const struct iovec *there,
    unsigned long there_count, unsigned long flags)
{
    if (here->iov_len > sizeof(uint64_t))
        atomic_fetch_add(&reads, 1);
    if ((refused != ALL && here->iov_len > sizeof(uint64_t)) ||
        (refused == NO_BYTE && here->iov_len < sizeof(uint64_t))) {
        errno = EFAULT;
        return -1;
    }
    return real_readv(pid, here, here_count, there, there_count, flags);
}

/* It is nobody's death: the launcher must not take it for one. Who is first
 * tells the other one. */
static void run_refused(struct coll_group *g, int rank, void *arg)
{
    size_t count = 1 << 20;
    float *x = calloc(count, sizeof(*x));
    float *y = calloc(count, sizeof(*y));
    coll_status_t status;

    (void)rank;
    EXPECT_OK(coll_algorithm_set(g, READ_ALL));
    if (arg == NULL)
        status = coll_all_gather(x, y, count / 2, COLL_FLOAT32, g);
    else
        status = coll_all_reduce(x, y, count, COLL_FLOAT32, COLL_SUM, g);
    EXPECT(status == COLL_ERR_SYSTEM || status == COLL_ERR_PEER, "%s",
        coll_strerror(status));
    EXPECT(
        strstr(coll_last_error(), "#1: cannot read the buffer of rank") != NULL,
        "%s", coll_last_error());
    if (status == COLL_ERR_SYSTEM)
        atomic_fetch_add(&system_errors, 1);
    free(x);
    free(y);
}

START_TEST(memory_that_cannot_be_read_is_named)
{
    struct harness_store st;

    refused = NO_PART;
    harness_store_start(&st);
    harness_run(&st, 2, 60000, run_refused, _i == 0 ? NULL : &_i);
    harness_store_stop(&st);
    ck_assert_int_ge(atomic_load(&system_errors), 1);
}
END_TEST

static void run_beside(struct coll_group *g, int rank, void *arg)
{
    size_t count = 1 << 20;
    float *x = malloc(count * sizeof(*x));
    float *all = malloc(count * RANKS * sizeof(*x));

    (void)arg;
    EXPECT_OK(coll_algorithm_set(g, READ_ALL));
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(i % 100) + (float)rank;
    EXPECT_OK(coll_all_gather(x, all, count, COLL_FLOAT32, g));
    for (int r = 0; r < g->size; r++)
        EXPECT(all[(size_t)r * count + 57] == (float)(57 + r), "rank %d", r);
    EXPECT_OK(coll_all_reduce(x, x, count, COLL_FLOAT32, COLL_SUM, g));
    EXPECT(is_sum(x, count), "rank %d has wrong sums", rank);
    free(x);
    free(all);
}

START_TEST(memory_of_a_device_is_memory)
{
    struct harness_store st;

    refused = NO_BYTE;
    harness_store_start(&st);
    harness_run(&st, RANKS, 60000, run_beside, NULL);
    harness_store_stop(&st);
}
END_TEST

/* --- Messages ------------------------------------------------------------- */

static bool try_message(int32_t *x, size_t count, int rank, int from, int round)
{
    if (rank == from) {
        for (size_t i = 0; i < count; i++)
            x[i] = value(from, round, i);
        return coll_send(x, count, COLL_INT32, (from + 1) % RANKS, round,
                   NULL) == COLL_OK;
    }
    if (rank != (from + 1) % RANKS)
        return true;
    if (coll_recv(x, count, COLL_INT32, COLL_ANY_SOURCE, round, NULL, NULL) !=
        COLL_OK)
        return false;
    for (size_t i = 0; i < count; i++)
        if (x[i] != value(from, round, i))
            return false;
    return true;
}

/* Nothing of it is read by the kernel, permitted or not. */
static int send_memory(int rank, void *arg)
{
    void *blocks[BLOCKS] = {NULL};
    unsigned int own = 5 + (unsigned int)rank;
    unsigned int same = 5;
    int rc = 0;

    setenv("COLL_CMA", *(const int *)arg == 0 ? "0" : "1", 1);
    if (coll_init(NULL) != COLL_OK)
        return 2;
    for (int round = 0; round < ROUNDS && rc == 0; round++) {
        size_t count = 1 + (size_t)rand_r(&same) % 100000;
        int32_t *x = some_memory(blocks, &own, count);

        for (int from = 0; x != NULL && from < RANKS && rc == 0; from++)
            rc = try_message(x, count, rank, from, round) ? 0 : 3;
        if (x == NULL)
            rc = 4;
    }
    if (rc == 0 && atomic_load(&reads) > 0)
        rc = 5;
    for (int k = 0; k < BLOCKS; k++)
        coll_free(blocks[k]);
    coll_destroy();
    return rc;
}

START_TEST(messages_are_copied_from_memory)
{
    ck_assert_msg(coll_spawn(send_memory, &_i, RANKS, NULL) == COLL_OK, "%s",
        coll_last_error());
}
END_TEST

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* No more addresses than are in use now, and a few. */
static int limit_addresses(void)
{
    struct rlimit limit = {0, RLIM_INFINITY};
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    if (f == NULL || fscanf(f, "%lu", &pages) != 1)
        return -1;
    fclose(f);
    limit.rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE) + (1 << 20);
    return setrlimit(RLIMIT_AS, &limit);
}

/* Rank 1 can map what rank 0 has first, then no more, then all. */
static int map_little(int rank, void *arg)
{
    const size_t few = 1 << 18, many = 1 << 24;
    const struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};
    void *small = NULL, *large = NULL;

    (void)arg;
    if (coll_init(NULL) != COLL_OK ||
        coll_alloc(&small, few * sizeof(int32_t)) != COLL_OK ||
        !try_message(small, few, rank, 0, 0) ||
        coll_alloc(&large, many * sizeof(int32_t)) != COLL_OK ||
        (rank == 1 && limit_addresses() < 0))
        return 2;
    if (!try_message(large, many, rank, 0, 1))
        return 3;
    if (!try_message(small, few, rank, 0, 2))
        return 4;
    if (rank == 1 && setrlimit(RLIMIT_AS, &unlimited) < 0)
        return 5;
    if (!try_message(large, many, rank, 0, 3))
        return 6;
    coll_free(small);
    coll_free(large);
    coll_destroy();
    return 0;
}

START_TEST(memory_that_cannot_be_mapped_is_sent)
{
    ck_assert_msg(coll_spawn(map_little, NULL, 2, NULL) == COLL_OK, "%s",
        coll_last_error());
}
END_TEST
#endif

int main(void)
{
    TCase *tc = tcase_create("coll_reach");

    *(void **)&real_readv = dlsym(RTLD_NEXT, "process_vm_readv");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, each_rank_lays_out_its_own_buffer, 0, 4);
    tcase_add_loop_test(tc, one_rank_may_be_told_not_to_read, 0, RANKS);
    tcase_add_loop_test(tc, memory_that_cannot_be_read_is_named, 0, 2);
    tcase_add_test(tc, memory_of_a_device_is_memory);
    tcase_add_test(tc, there_are_descriptors_for_the_memory_of_all);
    tcase_add_test(tc, memory_comes_and_goes);
    tcase_add_loop_test(tc, messages_are_copied_from_memory, 0, 2);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    tcase_add_test(tc, memory_that_cannot_be_mapped_is_sent);
#endif
    return unit_run("coll_reach", tc);
}
