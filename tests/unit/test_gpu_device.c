/*
 * Which device is a rank's, what ranks find out about each other's before there
 * is a communicator, and several devices in one process. The devices are test
 * doubles.
 */
#include <stdint.h>

#include "tests/unit/gpu_ranks.h"

#define N 500

static int *ints(int device, int value)
{
    struct cu_context *context;
    int *at;

    CU(init(0));
    CU(primary_context_retain(&context, device));
    CU(context_push(context));
    at = device_memory(N * sizeof(*at), 0);
    for (int i = 0; i < N; i++)
        at[i] = value;
    CU(context_pop(NULL));
    return at;
}

/* Whose memory it is does not matter. */
static void ints_free(int device, int *at)
{
    device_free(at);
    CU(primary_context_release(device));
}

static bool are(const int *at, size_t count, int value)
{
    for (size_t i = 0; i < count; i++)
        if (at[i] != value)
            return false;
    return true;
}

static int sum_of(int size)
{
    return size * (size + 1) / 2;
}

static void set(const char *name, const char *value)
{
    if (value != NULL)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

/* --- coll_gpu_device() ---------------------------------------------------- */

static const struct {
    const char *local_rank, *rank, *visible, *share, *devices;
    int want;
} choices[] = {
    {"3", "11", NULL, NULL, "8", 3},
    {"3", "3", "5", NULL, "8", 0}, /* bound to one by Slurm */
    {"3", "3", "4,6", NULL, "8", 1},
    {"9", "9", NULL, NULL, "8", 1},
    {NULL, "5", NULL, NULL, "8", 5},
    {NULL, "5", NULL, NULL, "2", 1},
    {NULL, NULL, NULL, NULL, "2", 0},
    {"x", "x", NULL, NULL, "2", 0},
    {"-1", NULL, NULL, NULL, "2", 0},
    {"3", "3", NULL, "2", "8", 1},
    {"3", "3", NULL, "4", "8", 0},
    {"3", "3", NULL, "0", "8", 3},
    {"3", "3", NULL, "-2", "8", 3},
    {"3", "3", NULL, "all", "8", 3},
    {"0", "0", "", NULL, "2", -1},
    {"0", "0", "7", NULL, "2", -1},
    {"0", "0", NULL, NULL, "0", -1},
};

START_TEST(device_follows_from_the_local_rank)
{
    int want = choices[_i].want;

    open_cuda();
    set("LOCAL_RANK", choices[_i].local_rank);
    set("RANK", choices[_i].rank);
    set("CUDA_VISIBLE_DEVICES", choices[_i].visible);
    set("COLL_SHARE_GPU", choices[_i].share);
    set("FAKE_CUDA_DEVICES", choices[_i].devices);
    for (int i = 0; i < 2; i++)
        ck_assert_msg(coll_gpu_device() == want, "%d: %s", coll_gpu_device(),
            coll_last_error());
    if (want < 0)
        ck_assert_msg(strstr(coll_last_error(), "coll_gpu_device: ") != NULL &&
                          strstr(coll_last_error(), "CUDA_VISIBLE_DEVICES"),
            "%s", coll_last_error());
}
END_TEST

START_TEST(device_that_cannot_be_asked_for_is_an_error)
{
    static const char *const scripts[] = {
        "cuInit:0:802", "cuDeviceGetCount:0:1"};
    static const char *const words[] = {"CUDA_ERROR_SYSTEM_NOT_READY",
        "cuDeviceGetCount: CUDA_ERROR_INVALID_VALUE"};

    open_cuda();
    setenv("FAKE_CUDA_FAIL", scripts[_i], 1);
    ck_assert_int_eq(coll_gpu_device(), -1);
    ck_assert_msg(
        strstr(coll_last_error(), words[_i]) != NULL, "%s", coll_last_error());
}
END_TEST

/* --- Meeting -------------------------------------------------------------- */

/* All ranks say the same, and go on with host memory. */
static void expect_same_refusal(int rank, int size, const char *words)
{
    char sentence[512];
    char *all;
    size_t lens[RANKS_MAX];
    int x = rank + 1;

    snprintf(sentence, sizeof(sentence), "%s", coll_last_error());
    EXPECT(strstr(sentence, words) != NULL, "no \"%s\" in: %.200s", words,
        sentence);
    EXPECT_OK(coll_all_gather_object(
        sentence, strlen(sentence) + 1, (void **)&all, lens, NULL));
    for (int r = 0, at = 0; r < size; at += (int)lens[r], r++)
        EXPECT(
            strcmp(all + at, sentence) == 0, "rank %d says: %s", r, all + at);
    free(all);
    EXPECT_OK(coll_all_reduce(&x, &x, 1, COLL_INT32, COLL_SUM, NULL));
    EXPECT(x == sum_of(size), "%d", x);
}

/* No call of device memory can be done, and each says why. */
static void expect_refused(int rank, int size, int device, const char *words)
{
    int *x = ints(device, rank);
    coll_group_t *part = NULL;
    coll_work_t *work = NULL;

    EXPECT(coll_gpu_connect(NULL, NULL) == COLL_ERR_ENVIRONMENT, "%s",
        coll_last_error());
    expect_same_refusal(rank, size, words);
    EXPECT(coll_all_reduce(x, x, N, COLL_INT32, COLL_SUM, NULL) ==
               COLL_ERR_ENVIRONMENT,
        "%s", coll_last_error());
    expect_same_refusal(rank, size, words);
    EXPECT(coll_broadcast_async(x, N, COLL_INT32, 0, NULL, &work) ==
                   COLL_ERR_ENVIRONMENT &&
               work == NULL,
        "%s", coll_last_error());
    expect_same_refusal(rank, size, words);
    EXPECT_OK(coll_group_split(&part, NULL, 0, rank, NULL));
    EXPECT_OK(coll_barrier(part));
    EXPECT_OK(coll_group_destroy(part));
    ints_free(device, x);
}

static void expect_works(int rank, int size, int device)
{
    int *x = ints(device, rank + 1);

    EXPECT_OK(coll_all_reduce(x, x, N, COLL_INT32, COLL_SUM, NULL));
    EXPECT_OK(coll_gpu_synchronize(NULL, 0));
    EXPECT(are(x, N, sum_of(size)), "%d", x[0]);
    ints_free(device, x);
}

/* Four ranks, of which two have a device each to share. */
static void share(int rank, int size, void *arg)
{
    int device = coll_gpu_device();
    char host[65] = "";
    char words[256];

    (void)arg;
    EXPECT(device == rank % 2, "%d", device);
    gethostname(host, sizeof(host) - 1);
    snprintf(words, sizeof(words),
        "ranks 0 and 2 on host %s share the GPU with bus id 0000:10:00.0; give "
        "each rank a device of its own (coll_gpu_device() tells which), or use "
        "crun --share_gpu N",
        host);
    EXPECT_OK(coll_init(NULL));
    expect_refused(rank, size, device, words);
    EXPECT_OK(coll_destroy());
}

START_TEST(shared_devices_are_told_before_any_communication)
{
    setenv("FAKE_CUDA_DEVICES", "2", 1);
    doubles_open("libnccl.so.2");
    gpu_ranks_bare(4, share, NULL);
}
END_TEST

/* The device is known by its bus id, not by its number here. */
static void share_by_visibility(int rank, int size, void *arg)
{
    (void)arg;
    setenv("CUDA_VISIBLE_DEVICES",
        rank == 0   ? "1,0"
        : rank == 1 ? "2"
                    : "0,1",
        1);
    EXPECT(coll_gpu_device() == 0 || rank == 2, "%d", coll_gpu_device());
    EXPECT_OK(coll_init(NULL));
    device_enter(rank == 2 ? 1 : 0);
    expect_refused(rank, size, rank == 2 ? 1 : 0, "ranks 0 and 2 on host ");
    device_leave(rank == 2 ? 1 : 0);
    EXPECT_OK(coll_destroy());
}

START_TEST(devices_are_known_by_their_bus_id)
{
    doubles_open("libnccl.so.2");
    gpu_ranks_bare(3, share_by_visibility, NULL);
}
END_TEST

/* Sharing is wanted: then NCCL is told that they are on different hosts. */
static void share_on_purpose(int rank, int size, void *arg)
{
    int device = coll_gpu_device();
    char id[16];

    (void)arg;
    snprintf(id, sizeof(id), "rank-%d", rank);
    setenv("NCCL_HOSTID", id, 1);
    EXPECT(device == rank / 2 % 2, "%d", device);
    EXPECT_OK(coll_init(NULL));
    if (size == 4)
        expect_works(rank, size, device);
    else /* one too many */
        expect_refused(rank, size, device,
            "share the GPU with bus id 0000:10:00.0; give each rank a device "
            "of its own (coll_gpu_device() tells which)");
    EXPECT_OK(coll_destroy());
}

START_TEST(so_many_ranks_share_a_device_as_are_allowed)
{
    setenv("FAKE_CUDA_DEVICES", "2", 1);
    setenv("COLL_SHARE_GPU", "2", 1);
    doubles_open("libnccl.so.2");
    gpu_ranks_bare(4 + _i, share_on_purpose, NULL);
}
END_TEST

/* What is wrong with one rank all are told. */
enum lack { VERSION, LIBRARY, DEVICE, OPTIONS };

static void lack(int rank, int size, void *arg)
{
    static const char *const words[] = {
        [VERSION] = "rank 0 (host ",
        [LIBRARY] = "on rank 1: NCCL cannot be loaded (/nowhere/libnccl.so.2",
        [DEVICE] = "on rank 1: ",
    };
    enum lack what = *(enum lack *)arg;
    int *x;

    if (rank == 1 && what == VERSION)
        setenv("FAKE_NCCL_VERSION", "22707", 1);
    if (rank == 1 && what == LIBRARY)
        setenv("COLL_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
    if (rank == 1 && what == DEVICE)
        setenv("CUDA_VISIBLE_DEVICES", "", 1);
    EXPECT_OK(coll_init(NULL));
    EXPECT(coll_gpu_connect(NULL, NULL) == COLL_ERR_ENVIRONMENT, "%s",
        coll_last_error());
    if (what == VERSION)
        EXPECT(strstr(coll_last_error(), "has NCCL 2.28.9, rank 1 (host ") !=
                       NULL &&
                   strstr(coll_last_error(), "has 2.27.7") != NULL,
            "%s", coll_last_error());
    expect_same_refusal(rank, size, words[what]);
    if (what == DEVICE && rank != 1) {
        x = ints(rank, 1);
        EXPECT_OK(coll_all_reduce(NULL, NULL, 0, COLL_INT32, COLL_SUM, NULL));
        ints_free(rank, x);
    } else if (what == DEVICE) {
        EXPECT_OK(coll_all_reduce(NULL, NULL, 0, COLL_INT32, COLL_SUM, NULL));
    }
    EXPECT_OK(coll_destroy());
}

START_TEST(what_one_rank_lacks_all_are_told)
{
    enum lack what = (enum lack)_i;

    doubles_open("libnccl.so.2");
    gpu_ranks_bare(3, lack, &what);
}
END_TEST

static void differ(int rank, int size, void *arg)
{
    coll_gpu_options_t options = COLL_GPU_OPTIONS_INIT;

    (void)arg;
    options.min_ctas = rank == 2 ? 3 : 2;
    EXPECT(coll_gpu_connect(NULL, &options) == COLL_ERR_ENVIRONMENT, "%s",
        coll_last_error());
    expect_same_refusal(rank, size, "ranks 0 and 2 pass different options");
    options.min_ctas = 2;
    EXPECT_OK(coll_gpu_connect(NULL, &options));
    expect_works(rank, size, rank);
}

START_TEST(options_are_the_same_on_all_ranks)
{
    doubles_open("libnccl.so.2");
    gpu_ranks(3, differ, NULL);
}
END_TEST

/* What only a newer NCCL can is no failure of the environment, also if there
 * was no communicator before. */
static void too_old(int rank, int size, void *arg)
{
    int *x = ints(rank, 0);
    coll_work_t *work = NULL;

    (void)arg;
    for (int i = 0; i < 2; i++) {
        EXPECT_FAILS(coll_all_reduce(x, x, 4, COLL_FLOAT8_E5M2, COLL_SUM, NULL),
            COLL_ERR_UNSUPPORTED, "NCCL 2.18.3 cannot reduce float8_e5m2");
        EXPECT_FAILS(coll_all_reduce_async(
                         x, x, 4, COLL_FLOAT8_E4M3, COLL_MAX, NULL, &work),
            COLL_ERR_UNSUPPORTED, "NCCL 2.18.3 cannot reduce float8_e4m3");
        EXPECT_OK(coll_broadcast(x, 4, COLL_FLOAT8_E4M3, 0, NULL));
    }
    expect_works(rank, size, rank);
    ints_free(rank, x);
}

START_TEST(old_nccl_says_so_without_a_communicator_too)
{
    doubles_open("2.18/libnccl.so.2");
    gpu_ranks(2, too_old, NULL);
}
END_TEST

/* Many ranks have several ids. */
static void several_ids(int rank, int size, void *arg)
{
    (void)arg;
    expect_works(rank, size, rank);
}

START_TEST(ids_are_as_many_as_are_wanted)
{
    setenv(
        "COLL_NCCL_RANKS_PER_ID", (const char *[]){"2", "1", "x"}[_i / 2], 1);
    doubles_open(_i % 2 == 0 ? "libnccl.so.2" : "2.18/libnccl.so.2");
    gpu_ranks(5, several_ids, NULL);
}
END_TEST

/* --- Several devices in one process --------------------------------------- */

/* So many devices of each rank: buffer i of rank r is on device r * MANY + i,
 * and those of a call with n are the first n. */
#define MANY 3

struct many {
    int n, rank, size;
    const void *send[MANY];
    void *recv[MANY];
    int *sends[MANY], *recvs[MANY];
};

static void many_take(struct many *m, int rank, int size)
{
    m->rank = rank;
    m->size = size;
    for (int i = 0; i < MANY; i++) {
        m->send[i] = m->sends[i] = ints(rank * MANY + i, 0);
        m->recv[i] = m->recvs[i] = ints(rank * MANY + i, -1);
    }
}

static void many_give(struct many *m)
{
    for (int i = 0; i < MANY; i++) {
        ints_free(m->rank * MANY + i, m->sends[i]);
        ints_free(m->rank * MANY + i, m->recvs[i]);
    }
}

/* What rank r of the larger world sends at j. */
static int word(int r, int j)
{
    return r * 1000 + j;
}

static void many_fill(struct many *m, int n)
{
    m->n = n;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < N; j++) {
            m->sends[i][j] = word(m->rank * n + i, j);
            m->recvs[i][j] = -1;
        }
    }
}

static int word_sum(int world, int j)
{
    int sum = 0;

    for (int r = 0; r < world; r++)
        sum += word(r, j);
    return sum;
}

static void many_all_reduce(struct many *m)
{
    int world = m->n * m->size;

    EXPECT_OK(coll_all_reduce_multigpu(
        m->send, m->recv, m->n, N, COLL_INT32, COLL_SUM, NULL));
    EXPECT_OK(coll_gpu_synchronize(NULL, 0));
    for (int i = 0; i < m->n; i++)
        for (int j = 0; j < N; j++)
            EXPECT(m->recvs[i][j] == word_sum(world, j), "%d, %d: %d", i, j,
                m->recvs[i][j]);
}

static void many_reduce(struct many *m, int root)
{
    int world = m->n * m->size;

    EXPECT_OK(coll_reduce_multigpu(
        m->send, m->recv, m->n, N, COLL_INT32, COLL_MAX, root, NULL));
    EXPECT_OK(coll_gpu_synchronize(NULL, 0));
    for (int i = 0; i < m->n; i++) {
        bool is_root = m->rank * m->n + i == root;

        for (int j = 0; j < N; j++)
            EXPECT(m->recvs[i][j] == (is_root ? word(world - 1, j) : -1),
                "root %d: %d, %d: %d", root, i, j, m->recvs[i][j]);
    }
}

static void many_broadcast(struct many *m, int root)
{
    EXPECT_OK(coll_broadcast_multigpu(
        (void *const *)m->sends, m->n, N, COLL_INT32, root, NULL));
    EXPECT_OK(coll_gpu_synchronize(NULL, 0));
    for (int i = 0; i < m->n; i++)
        for (int j = 0; j < N; j++)
            EXPECT(m->sends[i][j] == word(root, j), "root %d: %d, %d: %d", root,
                i, j, m->sends[i][j]);
}

static void many_all_gather(struct many *m)
{
    int world = m->n * m->size;
    int count = N / world;

    EXPECT_OK(coll_all_gather_multigpu(
        m->send, m->recv, m->n, (size_t)count, COLL_INT32, NULL));
    EXPECT_OK(coll_gpu_synchronize(NULL, 0));
    for (int i = 0; i < m->n; i++)
        for (int j = 0; j < count * world; j++)
            EXPECT(m->recvs[i][j] == word(j / count, j % count), "%d, %d: %d",
                i, j, m->recvs[i][j]);
}

static void many_reduce_scatter(struct many *m)
{
    int world = m->n * m->size;
    int count = N / world;

    EXPECT_OK(coll_reduce_scatter_multigpu(
        m->send, m->recv, m->n, (size_t)count, COLL_INT32, COLL_SUM, NULL));
    EXPECT_OK(coll_gpu_synchronize(NULL, 0));
    for (int i = 0; i < m->n; i++)
        for (int j = 0; j < count; j++)
            EXPECT(m->recvs[i][j] ==
                       word_sum(world, (m->rank * m->n + i) * count + j),
                "%d, %d: %d", i, j, m->recvs[i][j]);
}

static void many_devices(int rank, int size, void *arg)
{
    struct many m;
    coll_op_t op;

    (void)arg;
    EXPECT_OK(coll_init(NULL));
    many_take(&m, rank, size);
    for (int n = MANY; n >= 1; n--) {
        many_fill(&m, n);
        many_all_reduce(&m);
        many_fill(&m, n);
        many_all_gather(&m);
        many_fill(&m, n);
        many_reduce_scatter(&m);
        for (int root = 0; root < n * size; root++) {
            many_fill(&m, n);
            many_reduce(&m, root);
            many_broadcast(&m, root);
        }
    }
    /* A factor for each rank, in place. */
    many_fill(&m, 2);
    EXPECT_OK(coll_op_premul_sum(&op, rank + 1));
    EXPECT_OK(coll_all_reduce_multigpu(
        m.send, (void *const *)m.send, 2, N, COLL_INT32, op, NULL));
    EXPECT_OK(coll_op_free(op));
    EXPECT_OK(coll_gpu_synchronize(NULL, 0));
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < N; j++)
            EXPECT(m.sends[i][j] ==
                       word(0, j) + word(1, j) + 2 * (word(2, j) + word(3, j)),
                "%d, %d: %d", i, j, m.sends[i][j]);
    /* Beside the group's own communicator. */
    expect_works(rank, size, rank * MANY);
    many_fill(&m, 2);
    many_all_reduce(&m);
    many_give(&m);
    EXPECT_OK(coll_destroy());
}

START_TEST(one_process_drives_several_devices)
{
    doubles_open("libnccl.so.2");
    gpu_ranks_bare(2, many_devices, NULL);
}
END_TEST

/* What is no such call, and changes nothing. */
static void many_mistakes(int rank, int size, void *arg)
{
    struct many m;
    int host[N];
    void *mixed[2];
    coll_op_t op;

    (void)arg;
    EXPECT_OK(coll_init(NULL));
    EXPECT_OK(coll_op_premul_sum(&op, 2));
    many_take(&m, rank, size);
    mixed[0] = m.recv[0];
    for (int i = 0; i < 2; i++) {
        EXPECT_FAILS(coll_all_reduce_multigpu(
                         m.send, m.recv, 0, N, COLL_INT32, COLL_SUM, NULL),
            COLL_ERR_ARGUMENT, "n is 0, it is 1 to 64");
        EXPECT_FAILS(coll_all_reduce_multigpu(
                         m.send, m.recv, 65, N, COLL_INT32, COLL_SUM, NULL),
            COLL_ERR_ARGUMENT, "n is 65, it is 1 to 64");
        EXPECT_FAILS(coll_all_reduce_multigpu(
                         NULL, m.recv, 2, N, COLL_INT32, COLL_SUM, NULL),
            COLL_ERR_ARGUMENT, "NULL");
        EXPECT_FAILS(coll_broadcast_multigpu(NULL, 2, N, COLL_INT32, 0, NULL),
            COLL_ERR_ARGUMENT, "NULL");
        EXPECT_FAILS(coll_broadcast_multigpu(m.recv, 2, N, COLL_INT32, 4, NULL),
            COLL_ERR_ARGUMENT, "root 4 is not a rank of a world of 4");
        EXPECT_FAILS(coll_all_reduce_multigpu(m.send, m.recv, 2, N,
                         (coll_dtype_t)99, COLL_SUM, NULL),
            COLL_ERR_ARGUMENT, "unknown data type 99");
        EXPECT_FAILS(coll_all_reduce_multigpu(
                         m.send, m.recv, 2, N, COLL_INT32, (coll_op_t)99, NULL),
            COLL_ERR_ARGUMENT, "");
        EXPECT_FAILS(coll_all_reduce_multigpu(
                         m.send, m.recv, 2, N, COLL_INT32, COLL_BAND, NULL),
            COLL_ERR_UNSUPPORTED, "NCCL has no band of int32");
        EXPECT_FAILS(
            coll_all_reduce_multigpu(m.send, m.recv, 2, N, COLL_BOOL, op, NULL),
            COLL_ERR_ARGUMENT, "a bool cannot be multiplied");
        EXPECT_FAILS(coll_all_gather_multigpu(
                         m.send, m.recv, 2, SIZE_MAX / 8, COLL_INT32, NULL),
            COLL_ERR_ARGUMENT, "more than the address space");
        mixed[1] = host;
        EXPECT_FAILS(coll_all_reduce_multigpu(
                         m.send, mixed, 2, N, COLL_INT32, COLL_SUM, NULL),
            COLL_ERR_ARGUMENT, "buffers 1 are not on one GPU");
        mixed[1] = m.recv[2];
        EXPECT_FAILS(coll_all_reduce_multigpu(
                         m.send, mixed, 2, N, COLL_INT32, COLL_SUM, NULL),
            COLL_ERR_ARGUMENT, "buffers 1 are not on one GPU");
        mixed[1] = NULL;
        EXPECT_FAILS(coll_broadcast_multigpu(mixed, 2, N, COLL_INT32, 0, NULL),
            COLL_ERR_ARGUMENT, "buffers 1 are not on one GPU");
        mixed[1] = m.recv[0];
        EXPECT_FAILS(coll_broadcast_multigpu(mixed, 2, N, COLL_INT32, 0, NULL),
            COLL_ERR_ARGUMENT, "buffers 0 and 1 are on GPU");
        /* The first one of a number of devices decides which they are. */
        mixed[1] = m.recv[2];
        if (i == 1)
            EXPECT_FAILS(
                coll_broadcast_multigpu(mixed, 2, N, COLL_INT32, 0, NULL),
                COLL_ERR_ARGUMENT, "in the first such call it was on GPU");
        many_fill(&m, 2);
        many_all_reduce(&m);
        /* Of nothing there need be no buffers. */
        mixed[0] = mixed[1] = NULL;
        EXPECT_OK(coll_broadcast_multigpu(mixed, 2, 0, COLL_INT32, 3, NULL));
        EXPECT_OK(coll_reduce_scatter_multigpu((const void *const *)mixed,
            mixed, 2, 0, COLL_INT32, COLL_SUM, NULL));
        mixed[0] = m.recv[0];
    }
    EXPECT_OK(coll_op_free(op));
    many_give(&m);
    EXPECT_OK(coll_destroy());
}

START_TEST(mistakes_with_several_devices_change_nothing)
{
    doubles_open("libnccl.so.2");
    gpu_ranks_bare(2, many_mistakes, NULL);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("device");

    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, gpu_setup, fakes_teardown);
    tcase_add_loop_test(tcase, device_follows_from_the_local_rank, 0,
        sizeof(choices) / sizeof(choices[0]));
    tcase_add_loop_test(
        tcase, device_that_cannot_be_asked_for_is_an_error, 0, 2);
    tcase_add_test(tcase, shared_devices_are_told_before_any_communication);
    tcase_add_test(tcase, devices_are_known_by_their_bus_id);
    tcase_add_loop_test(
        tcase, so_many_ranks_share_a_device_as_are_allowed, 0, 2);
    tcase_add_loop_test(tcase, what_one_rank_lacks_all_are_told, 0, OPTIONS);
    tcase_add_test(tcase, options_are_the_same_on_all_ranks);
    tcase_add_test(tcase, old_nccl_says_so_without_a_communicator_too);
    tcase_add_loop_test(tcase, ids_are_as_many_as_are_wanted, 0, 6);
    tcase_add_test(tcase, one_process_drives_several_devices);
    tcase_add_test(tcase, mistakes_with_several_devices_change_nothing);
    return unit_run("gpu_device", tcase);
}
