/*
 * Device memory beside everything else: streams and works, capture, groups and
 * their communicators, messages, threads, arguments. The device is a test
 * double whose memory is the host's, so what lies there can be looked at.
 */
#include <stdint.h>

#include "tests/unit/gpu_ranks.h"
#include "worker/gpu_internal.h"

#define N 999 /* a multiple of 3 */

/* --- Memory --------------------------------------------------------------- */

static int *ints(int value)
{
    int *at = device_memory(N * sizeof(*at), 0);

    for (int i = 0; i < N; i++)
        at[i] = value;
    return at;
}

static bool are(const int *at, int value)
{
    for (int i = 0; i < N; i++)
        if (at[i] != value)
            return false;
    return true;
}

static void copy_on(struct cu_stream *stream, int *to, const int *from)
{
    CU(memory_copy_async(
        (uintptr_t)to, (uintptr_t)from, N * sizeof(*to), stream));
}

/* Of ranks that have 1, 2, ... */
static int sum_of(int size)
{
    return size * (size + 1) / 2;
}

static coll_status_t sum(const int *from, int *to, coll_group_t *g)
{
    return coll_all_reduce(from, to, N, COLL_INT32, COLL_SUM, g);
}

static coll_status_t sum_async(
    const int *from, int *to, coll_group_t *g, coll_work_t **work)
{
    return coll_all_reduce_async(from, to, N, COLL_INT32, COLL_SUM, g, work);
}

/* Does the group do what it is for? */
static void expect_works(coll_group_t *g)
{
    int size = coll_world_size(g);
    int *x = ints(coll_rank(g) + 1);
    int host = coll_rank(g) + 1;

    EXPECT_OK(sum(x, x, g));
    EXPECT_OK(coll_gpu_synchronize(g, 0));
    EXPECT(are(x, sum_of(size)), "%d", x[0]);
    EXPECT_OK(coll_all_reduce(&host, &host, 1, COLL_INT32, COLL_SUM, g));
    EXPECT(host == sum_of(size), "%d", host);
    device_free(x);
}

/* --- Streams -------------------------------------------------------------- */

/* A call that waits returns at once, and is done in the order of its stream. */
static void call_on_stream(int rank, int size, void *arg)
{
    struct gate gate = GATE_CLOSED;
    struct cu_stream *stream = stream_make();
    int *first = ints(rank + 1), *x = ints(0), *y = ints(-1), *z = ints(-1);

    (void)arg;
    EXPECT_OK(coll_gpu_connect(NULL, NULL));
    EXPECT_OK(coll_gpu_set_stream(NULL, stream));
    CU(launch_host_function(stream, gate_pass, &gate));
    copy_on(stream, x, first);
    EXPECT_OK(sum(x, y, NULL));
    copy_on(stream, z, y);
    EXPECT_FAILS(coll_gpu_synchronize(NULL, 1), COLL_ERR_TIMEOUT, "it goes on");
    EXPECT_FAILS(
        coll_gpu_synchronize(NULL, -1), COLL_ERR_ARGUMENT, "timeout_ms is -1");
    EXPECT(are(y, -1), "%d", y[0]);
    gate_open(&gate);
    EXPECT_OK(coll_gpu_synchronize(NULL, 100000));
    EXPECT(are(y, sum_of(size)), "%d", y[0]);
    CU(stream_synchronize(stream));
    EXPECT(are(z, sum_of(size)), "%d", z[0]);
    EXPECT_OK(coll_gpu_set_stream(NULL, NULL));
    expect_works(NULL);
    CU(stream_destroy(stream));
    device_free(first);
    device_free(x);
    device_free(y);
    device_free(z);
}

START_TEST(calls_are_done_on_the_programs_stream)
{
    doubles_open("libnccl.so.2");
    gpu_ranks(2, call_on_stream, NULL);
}
END_TEST

/* A work comes after what is on the group's stream, and orders another one. */
static void work_after_stream(int rank, int size, void *arg)
{
    struct gate gate = GATE_CLOSED;
    struct cu_stream *stream = stream_make(), *other = stream_make();
    int *first = ints(rank + 1), *x = ints(0), *y = ints(-1), *z = ints(-1);
    coll_work_t *work;
    bool done = true;

    (void)arg;
    EXPECT_OK(coll_gpu_set_stream(NULL, stream));
    CU(launch_host_function(stream, gate_pass, &gate));
    copy_on(stream, x, first);
    EXPECT_OK(sum_async(x, y, NULL, &work));
    EXPECT_OK(coll_work_test(work, &done));
    EXPECT(!done, "it has waited for nothing");
    EXPECT_FAILS(coll_work_wait(work, 1), COLL_ERR_TIMEOUT, "it goes on");
    EXPECT_OK(coll_work_wait_stream(work, other));
    copy_on(other, z, y);
    EXPECT(are(y, -1), "%d", y[0]);
    gate_open(&gate);
    CU(stream_synchronize(other));
    EXPECT(are(z, sum_of(size)), "%d", z[0]);
    EXPECT_OK(coll_work_wait(work, 0));
    EXPECT_OK(coll_work_test(work, &done));
    EXPECT(done && coll_work_source(work) == -1, "done %d", done);
    EXPECT_OK(coll_work_wait_stream(work, other));
    coll_work_free(work);
    CU(stream_destroy(stream));
    CU(stream_destroy(other));
    device_free(first);
    device_free(x);
    device_free(y);
    device_free(z);
}

START_TEST(works_wait_for_a_stream_and_are_waited_for)
{
    doubles_open("libnccl.so.2");
    gpu_ranks(2, work_after_stream, NULL);
}
END_TEST

/* The same with the default streams, and by a thread without a context. */
static void *order_default_stream(void *arg)
{
    EXPECT_OK(coll_work_wait_stream(arg, NULL));
    return NULL;
}

static void work_before_default_stream(int rank, int size, void *arg)
{
    struct gate gate = GATE_CLOSED;
    struct cu_stream *stream = stream_make();
    int *x = ints(rank + 1), *y = ints(-1), *z = ints(-1);
    pthread_t thread;
    coll_work_t *work;

    (void)arg;
    EXPECT_OK(coll_gpu_set_stream(NULL, stream));
    CU(launch_host_function(stream, gate_pass, &gate));
    EXPECT_OK(sum_async(x, y, NULL, &work));
    MUST(pthread_create(&thread, NULL, order_default_stream, work) == 0);
    pthread_join(thread, NULL);
    copy_on(NULL, z, y);
    gate_open(&gate);
    CU(stream_synchronize(NULL));
    EXPECT(are(z, sum_of(size)), "%d", z[0]);
    EXPECT_OK(coll_work_wait(work, 0));
    coll_work_free(work);
    CU(stream_destroy(stream));
    device_free(x);
    device_free(y);
    device_free(z);
}

START_TEST(default_stream_is_that_of_the_groups_device)
{
    doubles_open("libnccl.so.2");
    gpu_ranks(2, work_before_default_stream, NULL);
}
END_TEST

/* What comes later on the program's stream does not wait for a work, and the
 * next operation does. Rank 0 is ahead of the others. */
static void work_beside_stream(int rank, int size, void *arg)
{
    struct cu_stream *stream = stream_make();
    int *x = ints(rank + 1), *y = ints(-1), *z = ints(-1);
    coll_work_t *work;
    int word = 0;

    (void)arg;
    EXPECT_OK(coll_gpu_connect(NULL, NULL));
    EXPECT_OK(coll_gpu_set_stream(NULL, stream));
    if (rank > 0)
        EXPECT_OK(coll_recv(&word, 1, COLL_INT32, 0, 0, NULL, NULL));
    EXPECT_OK(sum_async(x, y, NULL, &work));
    if (rank == 0) {
        copy_on(stream, z, x);
        CU(stream_synchronize(stream));
        EXPECT(are(z, 1), "%d", z[0]);
        for (int r = 1; r < size; r++)
            EXPECT_OK(coll_send(&word, 1, COLL_INT32, r, 0, NULL));
    }
    EXPECT_OK(sum(y, z, NULL));
    EXPECT_OK(coll_gpu_synchronize(NULL, 0));
    EXPECT(are(z, size * sum_of(size)), "%d", z[0]);
    EXPECT_OK(coll_work_wait(work, 0));
    coll_work_free(work);
    CU(stream_destroy(stream));
    device_free(x);
    device_free(y);
    device_free(z);
}

START_TEST(works_go_beside_the_programs_stream)
{
    doubles_open("libnccl.so.2");
    gpu_ranks(3, work_beside_stream, NULL);
}
END_TEST

/* An operation in place that NCCL cannot do so is done with a copy, of which
 * there is one at a time; it may have to grow while the last one is used. */
static void copies_follow_each_other(int rank, int size, void *arg)
{
    struct gate gate = GATE_CLOSED;
    struct cu_stream *streams[2] = {stream_make(), stream_make()};
    static const int bases[3] = {0, 10, 100};
    static const size_t counts[3] = {1000, 1000, 20000};
    int *x[3];
    coll_work_t *work;

    (void)arg;
    for (int i = 0; i < 3; i++) {
        size_t n = counts[i] * (size_t)size;

        x[i] = device_memory(n * sizeof(int), 0);
        for (size_t j = 0; j < n; j++)
            x[i][j] = bases[i] + rank;
    }
    EXPECT_OK(coll_gpu_set_stream(NULL, streams[0]));
    CU(launch_host_function(streams[0], gate_pass, &gate));
    EXPECT_OK(
        coll_all_to_all_async(x[0], x[0], counts[0], COLL_INT32, NULL, &work));
    EXPECT_OK(coll_gpu_set_stream(NULL, streams[1]));
    for (int i = 1; i < 3; i++)
        EXPECT_OK(coll_all_to_all(x[i], x[i], counts[i], COLL_INT32, NULL));
    gate_open(&gate);
    EXPECT_OK(coll_gpu_synchronize(NULL, 0));
    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < counts[i] * (size_t)size; j++)
            EXPECT(x[i][j] == bases[i] + (int)(j / counts[i]), "%zu, %zu: %d",
                i, j, x[i][j]);
    EXPECT_OK(coll_work_wait(work, 0));
    coll_work_free(work);
    for (int i = 0; i < 3; i++)
        device_free(x[i]);
    for (int i = 0; i < 2; i++)
        CU(stream_destroy(streams[i]));
}

START_TEST(copies_are_not_overwritten)
{
    doubles_open("libnccl.so.2");
    gpu_ranks(3, copies_follow_each_other, NULL);
}
END_TEST

/* --- Works ---------------------------------------------------------------- */

struct told {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int calls;
    coll_status_t status;
};

static void tell(coll_status_t status, void *arg)
{
    struct told *told = arg;

    pthread_mutex_lock(&told->lock);
    told->calls++;
    told->status = status;
    pthread_cond_broadcast(&told->changed);
    pthread_mutex_unlock(&told->lock);
}

static void await_told(struct told *told)
{
    pthread_mutex_lock(&told->lock);
    while (told->calls == 0)
        pthread_cond_wait(&told->changed, &told->lock);
    EXPECT(told->calls == 1 && told->status == COLL_OK, "%d: %s", told->calls,
        coll_strerror(told->status));
    pthread_mutex_unlock(&told->lock);
}

static void *wait_for_work(void *arg)
{
    EXPECT_OK(coll_work_wait(arg, 0));
    return NULL;
}

static void works(int rank, int size, void *arg)
{
    struct gate gate = GATE_CLOSED;
    struct told told[2] = {
        {.lock = PTHREAD_MUTEX_INITIALIZER,
            .changed = PTHREAD_COND_INITIALIZER},
        {.lock = PTHREAD_MUTEX_INITIALIZER,
            .changed = PTHREAD_COND_INITIALIZER},
    };
    struct cu_stream *stream = stream_make();
    pthread_t threads[3];
    int *x = ints(rank + 1), *y = ints(0), *z = ints(0), *w = ints(0);
    coll_work_t *first, *second, *third;

    (void)arg;
    EXPECT_OK(coll_gpu_set_stream(NULL, stream));
    CU(launch_host_function(stream, gate_pass, &gate));
    EXPECT_OK(sum_async(x, y, NULL, &first));
    EXPECT_OK(sum_async(y, z, NULL, &second));
    EXPECT_OK(sum_async(z, w, NULL, &third));
    coll_work_free(third); /* it goes on */
    EXPECT_OK(coll_work_then(first, tell, &told[0]));
    EXPECT_FAILS(
        coll_work_then(first, tell, &told[0]), COLL_ERR_STATE, "already");
    for (int i = 0; i < 3; i++)
        MUST(pthread_create(&threads[i], NULL, wait_for_work, second) == 0);
    gate_open(&gate);
    await_told(&told[0]);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    EXPECT_OK(coll_work_then(second, tell, &told[1]));
    EXPECT(told[1].calls == 1, "not at once");
    coll_work_free(first);
    coll_work_free(second);
    EXPECT_OK(coll_gpu_synchronize(NULL, 0));
    EXPECT(are(z, size * sum_of(size)), "%d", z[0]);
    EXPECT(are(w, size * size * sum_of(size)), "%d", w[0]);
    CU(stream_destroy(stream));
    device_free(x);
    device_free(y);
    device_free(z);
    device_free(w);
}

START_TEST(works_are_as_others)
{
    doubles_open("libnccl.so.2");
    gpu_ranks(2, works, NULL);
}
END_TEST

/* Nobody waits: the watchdog ends it, and says so. */
static void work_of_nobody(int rank, int size, void *arg)
{
    struct told told = {
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    int *x = ints(rank + 1);
    coll_work_t *work;

    (void)arg;
    EXPECT_OK(sum_async(x, x, NULL, &work));
    EXPECT_OK(coll_work_then(work, tell, &told));
    coll_work_free(work);
    await_told(&told);
    EXPECT(are(x, sum_of(size)), "%d", x[0]);
    EXPECT_OK(coll_gpu_synchronize(NULL, 0));
    device_free(x);
}

START_TEST(works_end_without_a_wait)
{
    doubles_open("libnccl.so.2");
    gpu_ranks(2, work_of_nobody, NULL);
}
END_TEST

/* Both kinds of memory, in the order of the calls. */
static void both_memories(int rank, int size, void *arg)
{
    int *x = ints(rank + 1);
    int host[N];
    void *pinned;
    coll_work_t *works[2];

    (void)arg;
    for (int i = 0; i < N; i++)
        host[i] = rank + 1;
    for (int i = 0; i < 10; i++) {
        EXPECT_OK(sum_async(host, host, NULL, &works[0]));
        EXPECT_OK(sum_async(x, x, NULL, &works[1]));
        EXPECT_OK(coll_barrier(NULL));
        for (int k = 0; k < 2; k++) {
            EXPECT_OK(coll_work_wait(works[k], 0));
            coll_work_free(works[k]);
        }
        EXPECT(are(host, sum_of(size)) && are(x, sum_of(size)), "%d, %d",
            host[0], x[0]);
        for (int k = 0; k < N; k++)
            host[k] = x[k] = rank + 1;
    }
    CU(host_alloc(&pinned, N * sizeof(int), COLL_CUDA_HOST_PORTABLE));
    memcpy(pinned, host, sizeof(host));
    EXPECT_OK(sum(host, pinned, NULL)); /* both are the host's */
    EXPECT(are(pinned, sum_of(size)), "%d", *(int *)pinned);
    CU(host_free(pinned));
    expect_works(NULL);
    device_free(x);
}

START_TEST(host_memory_goes_its_own_way)
{
    doubles_open("libnccl.so.2");
    gpu_ranks(3, both_memories, NULL);
}
END_TEST

/* --- Capture -------------------------------------------------------------- */

static void set_capture(struct cu_stream *stream, cu_capture_status_t status)
{
    void (*set)(struct cu_stream *, cu_capture_status_t);

    *(void **)&set = dlsym(cu.handle, "fake_cuda_set_capture");
    MUST(set != NULL);
    set(stream, status);
}

static void capture(int rank, int size, void *arg)
{
    struct cu_stream *stream = stream_make();
    int *x = ints(rank + 1), *y = ints(-1);
    coll_work_t *work = NULL;
    const coll_message_t m = {rank == 0, x, N, COLL_INT32, 1 - rank, 0};

    (void)arg;
    (void)size;
    EXPECT_OK(coll_gpu_set_stream(NULL, stream));
    set_capture(stream, COLL_CUDA_CAPTURE_ACTIVE);
    EXPECT_FAILS(sum(x, y, NULL), COLL_ERR_STATE, "coll_gpu_connect()");
    set_capture(stream, COLL_CUDA_CAPTURE_NONE);
    EXPECT_OK(coll_gpu_connect(NULL, NULL));
    set_capture(stream, COLL_CUDA_CAPTURE_ACTIVE);
    EXPECT_OK(sum(x, y, NULL));
    EXPECT_OK(rank == 0 ? coll_send(x, N, COLL_INT32, 1, 0, NULL)
                        : coll_recv(y, N, COLL_INT32, 0, 0, NULL, NULL));
    EXPECT_FAILS(sum_async(x, y, NULL, &work), COLL_ERR_UNSUPPORTED,
        "coll_all_reduce_async: the stream captures a graph");
    EXPECT_FAILS(coll_isend(x, N, COLL_INT32, 1 - rank, 0, NULL, &work),
        COLL_ERR_UNSUPPORTED, "coll_isend: the stream captures a graph");
    EXPECT_FAILS(coll_batch(&m, 1, NULL, &work), COLL_ERR_UNSUPPORTED,
        "coll_batch: the stream captures a graph");
    EXPECT_FAILS(coll_all_to_all(x, x, 1, COLL_INT32, NULL),
        COLL_ERR_UNSUPPORTED, "in place");
    EXPECT_OK(coll_all_to_all(x, y, 1, COLL_INT32, NULL));
    EXPECT(work == NULL, "there is a work");
    EXPECT_OK(coll_gpu_synchronize(NULL, 0)); /* nothing is on its way */
    EXPECT(are(y, -1) && are(x, rank + 1), "%d, %d", x[0], y[0]);
    EXPECT_OK(coll_gpu_set_stream(NULL, NULL));
    expect_works(NULL); /* another stream does not capture */
    EXPECT_OK(coll_gpu_set_stream(NULL, stream));
    set_capture(stream, COLL_CUDA_CAPTURE_NONE);
    expect_works(NULL);
    CU(stream_destroy(stream));
    device_free(x);
    device_free(y);
}

START_TEST(graphs_take_calls_that_wait)
{
    doubles_open("libnccl.so.2");
    gpu_ranks(2, capture, NULL);
}
END_TEST

/* --- Groups --------------------------------------------------------------- */

static void several_groups(int rank, int size, void *arg)
{
    coll_group_t *pair, *all;
    const int reversed[] = {3, 2, 1, 0};
    const int pairs[2][2] = {{0, 1}, {3, 2}};
    int *x = ints(rank + 1), *y = ints(0), *z = ints(0);
    coll_work_t *works[3];

    (void)arg;
    EXPECT_OK(coll_group_new(&all, reversed, size, NULL));
    EXPECT_OK(coll_group_new(&pair, pairs[rank / 2], 2, NULL));
    EXPECT_FAILS(coll_send(x, 1, COLL_INT32, 1 - coll_rank(pair), 0, pair),
        COLL_ERR_STATE, "coll_gpu_connect()");
    EXPECT_OK(sum_async(x, y, pair, &works[0]));
    EXPECT_OK(sum_async(x, z, NULL, &works[1]));
    EXPECT_OK(coll_work_wait(works[0], 0));
    EXPECT_OK(coll_work_wait(works[1], 0));
    coll_work_free(works[0]);
    coll_work_free(works[1]);
    EXPECT(are(y, rank < 2 ? 3 : 7) && are(z, 10), "%d, %d", y[0], z[0]);
    EXPECT_OK(coll_all_gather_async(x, y, 1, COLL_INT32, all, &works[2]));
    EXPECT_OK(coll_work_wait(works[2], 0));
    coll_work_free(works[2]);
    EXPECT(y[0] == 4 && y[1] == 3 && y[2] == 2 && y[3] == 1, "%d", y[0]);
    EXPECT_OK(coll_group_destroy(pair));
    expect_works(all);
    expect_works(NULL);
    device_free(x);
    device_free(y);
    device_free(z);
}

START_TEST(groups_have_their_own_communicators)
{
    doubles_open("libnccl.so.2");
    gpu_ranks(4, several_groups, NULL);
}
END_TEST

/* How a communicator was made. */
static nccl_config_t config_of(coll_group_t *g)
{
    void (*get)(struct nccl_comm *, nccl_config_t *);
    nccl_config_t config;
    struct gpu *gpu = atomic_load(&g->gpu);

    memset(&config, 0, sizeof(config));
    *(void **)&get = dlsym(nccl.handle, "fake_nccl_config");
    MUST(get != NULL);
    EXPECT(gpu != NULL, "there is no communicator");
    if (gpu != NULL)
        get(gpu->comm, &config);
    return config;
}

/* Ranks 1, 3 and 4 become one group, the other way round; 0 another one; and 2
 * is in none. */
static void split(int rank, int size, void *arg)
{
    const coll_gpu_options_t *options = arg;
    coll_group_t *child = NULL, *grandchild = NULL;
    int color = rank == 2 ? COLL_NO_COLOR : rank > 0;
    nccl_config_t config;
    int *x = ints(rank + 1), *y = ints(0);

    EXPECT_OK(coll_gpu_connect(NULL, options));
    EXPECT_OK(coll_group_split(&child, NULL, color, -rank, NULL));
    EXPECT((child == NULL) == (rank == 2), "%d", child == NULL);
    if (child != NULL) {
        config = config_of(child);
        EXPECT(config.blocking == !options->non_blocking &&
                   config.minCTAs == options->min_ctas,
            "%d, %d", config.blocking, config.minCTAs);
        EXPECT_OK(coll_all_gather(x, y, 1, COLL_INT32, child));
        EXPECT_OK(coll_gpu_synchronize(child, 0));
        if (rank > 0)
            EXPECT(y[0] == 5 && y[1] == 4 && y[2] == 2, "%d", y[0]);
        else
            EXPECT(y[0] == 1, "%d", y[0]);
        expect_works(child);
        EXPECT_OK(coll_group_split(&grandchild, child, 7, rank, NULL));
        config_of(grandchild);
        expect_works(grandchild);
        EXPECT_OK(coll_group_destroy(child));
        expect_works(grandchild);
    }
    expect_works(NULL);
    device_free(x);
    device_free(y);
    (void)size;
}

START_TEST(parts_of_a_group_get_communicators)
{
    coll_gpu_options_t options = COLL_GPU_OPTIONS_INIT;

    doubles_open(_i == 1 ? "2.18/libnccl.so.2" : "libnccl.so.2");
    options.non_blocking = _i == 2;
    options.min_ctas = 4;
    options.max_ctas = 8;
    gpu_ranks(5, split, &options);
}
END_TEST

/* Without one in the parent there is none in the child. */
static void split_before(int rank, int size, void *arg)
{
    coll_group_t *child;

    (void)arg;
    EXPECT_OK(coll_group_split(&child, NULL, rank % 2, rank, NULL));
    EXPECT(atomic_load(&child->gpu) == NULL, "there is a communicator");
    expect_works(child);
    EXPECT_OK(coll_group_destroy(child));
    expect_works(NULL);
    (void)size;
}

START_TEST(parts_can_get_them_later)
{
    doubles_open("libnccl.so.2");
    gpu_ranks(4, split_before, NULL);
}
END_TEST

/* --- Options -------------------------------------------------------------- */

static void connect_all(int rank, int size, void *arg)
{
    coll_gpu_options_t options = *(coll_gpu_options_t *)arg;
    nccl_config_t config;

    EXPECT_OK(coll_gpu_connect(NULL, &options));
    EXPECT_OK(coll_gpu_connect(NULL, NULL)); /* it is there */
    config = config_of(coll_default_group());
    EXPECT(config.minCTAs == 2 && config.maxCTAs == 5 &&
               config.cgaClusterSize == 3 &&
               config.blocking == !options.non_blocking &&
               strcmp(config.netName, "Socket") == 0,
        "%d, %d, %d, %d, %s", config.minCTAs, config.maxCTAs,
        config.cgaClusterSize, config.blocking, config.netName);
    for (int i = 0; i < 20; i++)
        expect_works(NULL);
    options.min_ctas = -1;
    EXPECT_FAILS(
        coll_gpu_connect(NULL, &options), COLL_ERR_ARGUMENT, "min_ctas");
    (void)rank;
    (void)size;
}

START_TEST(options_come_to_nccl)
{
    coll_gpu_options_t options = {2, 5, 3, "Socket", _i == 1};

    doubles_open("libnccl.so.2");
    if (_i == 1)
        setenv("FAKE_NCCL_FAULT", "busy:*:*:3", 1);
    gpu_ranks(3, connect_all, &options);
}
END_TEST

/* --- Messages ------------------------------------------------------------- */

static void messages(int rank, int size, void *arg)
{
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    int *x = ints(rank + 1), *y = ints(0), *z = ints(0);
    coll_work_t *work = NULL, *works[2];
    coll_message_t m[4];
    int source = -1;
    int host = 0;

    (void)arg;
    EXPECT_FAILS(coll_send(x, N, COLL_INT32, next, 0, NULL), COLL_ERR_STATE,
        "coll_gpu_connect()");
    EXPECT_OK(coll_gpu_connect(NULL, NULL));
    /* One after the other, along the ring. */
    if (rank == 0)
        EXPECT_OK(coll_send(x, N, COLL_INT32, next, 1, NULL));
    EXPECT_OK(coll_recv(y, N, COLL_INT32, before, 2, &source, NULL));
    EXPECT_OK(coll_gpu_synchronize(NULL, 0));
    EXPECT(are(y, before + 1) && source == before, "%d, %d", y[0], source);
    if (rank != 0)
        EXPECT_OK(coll_send(x, N, COLL_INT32, next, 3, NULL));
    /* The same without waiting: even ranks begin. */
    EXPECT_OK(rank % 2 == 0
                  ? coll_isend(x, N, COLL_INT32, next, 0, NULL, &works[0])
                  : coll_irecv(y, N, COLL_INT32, before, 0, NULL, &works[0]));
    EXPECT_OK(rank % 2 != 0
                  ? coll_isend(x, N, COLL_INT32, next, 0, NULL, &works[1])
                  : coll_irecv(z, N, COLL_INT32, before, 0, NULL, &works[1]));
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(coll_work_wait(works[i], 0));
        EXPECT(coll_work_source(works[i]) ==
                   ((i == 1) == (rank % 2 == 0) ? before : -1),
            "%d: %d", i, coll_work_source(works[i]));
        coll_work_free(works[i]);
    }
    EXPECT(are(rank % 2 == 0 ? z : y, before + 1), "%d, %d", y[0], z[0]);
    /* At once, of several types, with an empty one, in the order of a pair. */
    memset(y, 0, N * sizeof(*y));
    m[0] = (coll_message_t){true, x, N, COLL_INT32, next, 0};
    m[1] = (coll_message_t){true, x, 3, COLL_UINT8, next, 9};
    m[2] = (coll_message_t){false, z, N, COLL_INT32, before, 5};
    m[3] = (coll_message_t){false, y, 3, COLL_UINT8, before, 0};
    EXPECT_OK(coll_batch(m, 4, NULL, &work));
    EXPECT_OK(coll_work_wait(work, 0));
    coll_work_free(work);
    work = NULL;
    EXPECT(are(z, before + 1) && y[0] == before + 1 && y[1] == 0, "%d, %d",
        z[0], y[0]);
    /* An empty one is no more than what is called for. */
    m[0].count = m[2].count = 0;
    m[1].count = m[3].count = 4;
    EXPECT_OK(coll_batch(m, 4, NULL, &work));
    EXPECT_OK(coll_work_wait(work, 0));
    coll_work_free(work);
    work = NULL;
    /* What there is not. */
    EXPECT_FAILS(coll_irecv(y, N, COLL_INT32, COLL_ANY_SOURCE, 0, NULL, &work),
        COLL_ERR_UNSUPPORTED, "name its source");
    EXPECT_FAILS(coll_recv(y, N, COLL_INT32, COLL_ANY_SOURCE, 0, NULL, NULL),
        COLL_ERR_UNSUPPORTED, "name its source");
    EXPECT_FAILS(coll_isend(x, N, COLL_INT32, rank, 0, NULL, &work),
        COLL_ERR_ARGUMENT, "this rank itself");
    EXPECT_FAILS(coll_isend(x, N, COLL_INT32, size, 0, NULL, &work),
        COLL_ERR_ARGUMENT, "is not a rank");
    m[3].buf = &host;
    EXPECT_FAILS(coll_batch(m, 4, NULL, &work), COLL_ERR_ARGUMENT,
        "one buffer is in host memory, another one on GPU");
    m[3].buf = y;
    m[3].peer = -1;
    EXPECT_FAILS(
        coll_batch(m, 4, NULL, &work), COLL_ERR_ARGUMENT, "is not a rank");
    EXPECT(work == NULL, "there is a work");
    expect_works(NULL);
    device_free(x);
    device_free(y);
    device_free(z);
}

START_TEST(messages_of_device_memory)
{
    doubles_open("libnccl.so.2");
    gpu_ranks(4, messages, NULL);
}
END_TEST

/* An empty message in a batch, and the receive of it by itself. */
static void empty_message(int rank, int size, void *arg)
{
    int *x = ints(rank);
    coll_work_t *work;
    const coll_message_t m[] = {
        {true, x, 0, COLL_INT32, 1, 0}, {true, x, 2, COLL_INT32, 1, 0}};

    (void)arg;
    (void)size;
    EXPECT_OK(coll_gpu_connect(NULL, NULL));
    if (rank == 0) {
        EXPECT_OK(coll_batch(m, 2, NULL, &work));
        EXPECT_OK(coll_work_wait(work, 0));
        coll_work_free(work);
    } else {
        EXPECT_OK(coll_recv(x, 0, COLL_INT32, 0, 0, NULL, NULL));
        EXPECT_OK(coll_recv(x, 2, COLL_INT32, 0, 0, NULL, NULL));
        EXPECT_OK(coll_gpu_synchronize(NULL, 0));
        EXPECT(x[0] == 0 && x[1] == 0 && x[2] == 1, "%d", x[0]);
    }
    expect_works(NULL);
    device_free(x);
}

START_TEST(empty_messages_are_where_their_buffer_is)
{
    doubles_open("libnccl.so.2");
    gpu_ranks(2, empty_message, NULL);
}
END_TEST

/* --- Threads -------------------------------------------------------------- */

#define ROUNDS 50

struct caller {
    coll_group_t *group;
    int device;
    pthread_t thread;
};

/* All calls are the same, so it does not matter which meet. Every third thread
 * has no context of its own. */
static void *call_often(void *arg)
{
    struct caller *caller = arg;
    int size = coll_world_size(caller->group);
    int *x, *y;
    coll_work_t *work;

    device_enter(caller->device);
    x = ints(coll_rank(caller->group) + 1);
    y = ints(0);
    CU(context_set(NULL));
    for (int i = 0; i < ROUNDS; i++) {
        memset(y, 0, N * sizeof(*y));
        if (i % 2 == 0) {
            EXPECT_OK(sum(x, y, caller->group));
            EXPECT_OK(coll_gpu_synchronize(caller->group, 0));
        } else {
            EXPECT_OK(sum_async(x, y, caller->group, &work));
            EXPECT_OK(coll_work_wait(work, 0));
            coll_work_free(work);
        }
        EXPECT(are(y, sum_of(size)), "round %d: %d", i, y[0]);
    }
    device_enter(caller->device);
    device_free(x);
    device_free(y);
    for (int i = 0; i < 2; i++)
        device_leave(caller->device);
    return NULL;
}

static void threads(int rank, int size, void *arg)
{
    const int *ngroups = arg;
    const int ranks[] = {0, 1, 2};
    struct caller callers[2];
    struct cu_stream *streams[2] = {stream_make(), stream_make()};

    for (int i = 0; i < 2; i++) {
        callers[i].group = NULL;
        callers[i].device = rank;
        if (i == 1 && *ngroups == 2)
            EXPECT_OK(coll_group_new(&callers[i].group, ranks, size, NULL));
        EXPECT_OK(coll_gpu_set_stream(callers[i].group, streams[i]));
    }
    for (int i = 0; i < 2; i++)
        MUST(pthread_create(
                 &callers[i].thread, NULL, call_often, &callers[i]) == 0);
    for (int i = 0; i < 2; i++)
        pthread_join(callers[i].thread, NULL);
    if (callers[1].group != NULL)
        EXPECT_OK(coll_group_destroy(callers[1].group));
    for (int i = 0; i < 2; i++)
        CU(stream_destroy(streams[i]));
}

START_TEST(threads_share_a_group_or_have_their_own)
{
    int ngroups = _i;

    doubles_open("libnccl.so.2");
    gpu_ranks(3, threads, &ngroups);
}
END_TEST

/* --- Memory --------------------------------------------------------------- */

static void allocate(int rank, int size, void *arg)
{
    struct cu_context *context = NULL, *after = NULL;
    void *a = NULL, *b = NULL, *handle = NULL;
    int host, ordinal = -1;
    bool is_old = *(bool *)arg;

    CU(context_get(&context));
    CU(context_set(NULL));
    EXPECT_OK(coll_gpu_alloc(&a, 100));
    CU(context_get(&after));
    EXPECT(after == NULL, "a context is left behind");
    CU(context_set(context));
    EXPECT_OK(coll_gpu_alloc(&b, 0));
    CU(pointer_get_attribute(
        &ordinal, COLL_CUDA_POINTER_ORDINAL, (uintptr_t)a));
    EXPECT(ordinal == rank && a != b && b != NULL, "%d", ordinal);
    EXPECT_FAILS(coll_gpu_alloc(NULL, 1), COLL_ERR_ARGUMENT, "out is NULL");
    EXPECT_FAILS(coll_gpu_register(NULL, a, 100, &handle), COLL_ERR_STATE,
        "coll_gpu_connect()");
    EXPECT_FAILS(
        coll_gpu_deregister(NULL, a), COLL_ERR_STATE, "coll_gpu_connect()");
    EXPECT_OK(coll_gpu_connect(NULL, NULL));
    if (is_old) {
        EXPECT_FAILS(coll_gpu_register(NULL, a, 100, &handle),
            COLL_ERR_UNSUPPORTED, "NCCL 2.18.3 has no ncclCommRegister()");
    } else {
        EXPECT_FAILS(coll_gpu_register(NULL, a, 100, NULL), COLL_ERR_ARGUMENT,
            "handle is NULL");
        EXPECT_FAILS(coll_gpu_register(NULL, &host, sizeof(host), &handle),
            COLL_ERR_ARGUMENT, "buf is not on the communicator's GPU");
        EXPECT_OK(coll_gpu_register(NULL, a, 100, &handle));
        EXPECT_OK(coll_gpu_deregister(NULL, handle));
    }
    *(int *)a = rank + 1;
    EXPECT_OK(coll_all_reduce(a, a, 1, COLL_INT32, COLL_SUM, NULL));
    EXPECT_OK(coll_gpu_synchronize(NULL, 0));
    EXPECT(*(int *)a == sum_of(size), "%d", *(int *)a);
    EXPECT_FAILS(coll_gpu_free(&host), COLL_ERR_ARGUMENT, "coll_gpu_alloc()");
    EXPECT_OK(coll_gpu_free(a));
    EXPECT_OK(coll_gpu_free(b));
    EXPECT_FAILS(coll_gpu_free(a), COLL_ERR_ARGUMENT, "coll_gpu_alloc()");
    EXPECT_OK(coll_gpu_free(NULL));
}

START_TEST(memory_comes_from_nccl_or_the_driver)
{
    bool is_old = _i == 1;

    doubles_open(is_old ? "2.18/libnccl.so.2" : "libnccl.so.2");
    gpu_ranks(2, allocate, &is_old);
}
END_TEST

/* --- Arguments ------------------------------------------------------------ */

static void arguments(int rank, int size, void *arg)
{
    int other = rank + 4;
    int *x = ints(rank + 1), *y, *z;
    int host[N];
    coll_work_t *work = NULL;
    const void *send[2];
    void *recv[2];
    const size_t counts[2] = {1, 1};

    (void)arg;
    device_enter(other);
    y = ints(0);
    z = ints(0);
    device_leave(other);
    device_enter(rank);
    for (int i = 0; i < 2; i++) {
        EXPECT_FAILS(sum(x, host, NULL), COLL_ERR_ARGUMENT,
            "coll_all_reduce: one buffer is in host memory, another one on");
        EXPECT_FAILS(sum_async(host, x, NULL, &work), COLL_ERR_ARGUMENT,
            "coll_all_reduce: one buffer is in host memory, another one on");
        EXPECT_FAILS(sum(x, y, NULL), COLL_ERR_ARGUMENT,
            "coll_all_reduce: one buffer is on GPU");
        send[0] = x;
        recv[0] = x;
        send[1] = host;
        recv[1] = host;
        EXPECT_FAILS(coll_all_reduce_coalesced(
                         send, recv, counts, 2, COLL_INT32, COLL_SUM, NULL),
            COLL_ERR_ARGUMENT, "one buffer is in host memory");
        EXPECT_FAILS(coll_all_reduce(x, x, 1, COLL_INT16, COLL_SUM, NULL),
            COLL_ERR_UNSUPPORTED, "NCCL has no sum of int16");
        EXPECT(work == NULL, "there is a work");
        if (i == 0)
            EXPECT_OK(coll_gpu_connect(NULL, NULL));
    }
    EXPECT_FAILS(sum(y, z, NULL), COLL_ERR_ARGUMENT, "the buffers are on GPU");
    EXPECT_FAILS(sum_async(y, z, NULL, &work), COLL_ERR_ARGUMENT,
        "the group's communicator on GPU");
    EXPECT_FAILS(
        coll_work_wait_stream(NULL, NULL), COLL_ERR_ARGUMENT, "work is NULL");
    expect_works(NULL);
    device_free(x);
    device_free(y);
    device_free(z);
    CU(primary_context_release(rank));
    (void)size;
}

START_TEST(buffers_are_on_one_device)
{
    doubles_open("libnccl.so.2");
    gpu_ranks(3, arguments, NULL);
}
END_TEST

/* --- COLL_CHECK ----------------------------------------------------------- */

static void check_calls(int rank, int size, void *arg)
{
    coll_group_t *group;
    const int ranks[] = {0, 1, 2};
    int *x = ints(rank + 1), *y = ints(0);
    coll_work_t *work = NULL;
    int host[N] = {0};

    (void)arg;
    for (int i = 0; i < 4; i++) {
        EXPECT_OK(coll_group_new(&group, ranks, size, NULL));
        expect_works(group);
        if (i == 0)
            EXPECT_FAILS(coll_all_reduce(x, y, rank == 1 ? 3 : 4, COLL_INT32,
                             COLL_SUM, group),
                COLL_ERR_MISMATCH, "all_reduce");
        else if (i == 1)
            EXPECT_FAILS(coll_broadcast(x, 4, COLL_INT32, rank == 2, group),
                COLL_ERR_MISMATCH, "broadcast");
        else if (i == 2 && rank == 0)
            EXPECT_FAILS(coll_all_gather(x, y, 4, COLL_INT32, group),
                COLL_ERR_MISMATCH, "all_gather");
        else if (i == 2)
            EXPECT_FAILS(coll_reduce(x, y, 4, COLL_INT32, COLL_MAX, 0, group),
                COLL_ERR_MISMATCH, "reduce");
        else /* one of device memory, the others of host memory */
            EXPECT_FAILS(sum(rank == 0 ? x : host, rank == 0 ? y : host, group),
                COLL_ERR_MISMATCH, "sum) on a GPU");
        EXPECT_FAILS(sum_async(x, y, group, &work), COLL_ERR_MISMATCH, "");
        EXPECT_OK(coll_group_destroy(group));
    }
    EXPECT(are(x, rank + 1), "%d", x[0]);
    expect_works(NULL);
    device_free(x);
    device_free(y);
}

START_TEST(differing_calls_are_found_if_wanted)
{
    setenv("COLL_CHECK", "1", 1);
    doubles_open("libnccl.so.2");
    gpu_ranks(3, check_calls, NULL);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("streams");

    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, gpu_setup, fakes_teardown);
    tcase_add_test(tcase, calls_are_done_on_the_programs_stream);
    tcase_add_test(tcase, works_wait_for_a_stream_and_are_waited_for);
    tcase_add_test(tcase, default_stream_is_that_of_the_groups_device);
    tcase_add_test(tcase, works_go_beside_the_programs_stream);
    tcase_add_test(tcase, copies_are_not_overwritten);
    tcase_add_test(tcase, works_are_as_others);
    tcase_add_test(tcase, works_end_without_a_wait);
    tcase_add_test(tcase, host_memory_goes_its_own_way);
    tcase_add_test(tcase, graphs_take_calls_that_wait);
    tcase_add_test(tcase, groups_have_their_own_communicators);
    tcase_add_loop_test(tcase, parts_of_a_group_get_communicators, 0, 3);
    tcase_add_test(tcase, parts_can_get_them_later);
    tcase_add_loop_test(tcase, options_come_to_nccl, 0, 2);
    tcase_add_test(tcase, messages_of_device_memory);
    tcase_add_test(tcase, empty_messages_are_where_their_buffer_is);
    tcase_add_loop_test(tcase, threads_share_a_group_or_have_their_own, 1, 3);
    tcase_add_loop_test(tcase, memory_comes_from_nccl_or_the_driver, 0, 2);
    tcase_add_test(tcase, buffers_are_on_one_device);
    tcase_add_test(tcase, differing_calls_are_found_if_wanted);
    return unit_run("gpu_streams", tcase);
}
