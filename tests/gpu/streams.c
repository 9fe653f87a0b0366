/*
 * Messages, streams, memory, groups and graphs on a device: each function makes
 * one row of the table, on the rig's group.
 */
#include "tests/gpu/streams.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define COUNT 1000
#define BYTES (COUNT * sizeof(float))

/* What rank has at i. */
static float mine(int rank, size_t i)
{
    return (float)(rank * 10 + (int)(i % 7));
}

static float sum_of_all(const struct rig *rig, size_t i)
{
    float sum = 0;
    int r;

    for (r = 0; r < rig->size; r++)
        sum += mine(r, i);
    return sum;
}

static void fill(float *x, int rank)
{
    size_t i;

    for (i = 0; i < COUNT; i++)
        x[i] = mine(rank, i);
}

/* times: how often what all ranks had was added up. */
static bool is_sum(
    struct rig *rig, const float *x, float times, const char *what)
{
    size_t i;

    for (i = 0; i < COUNT; i++)
        if (x[i] != times * sum_of_all(rig, i))
            return rig_fail(rig, "%s: element %zu is %g, expected %g", what, i,
                (double)x[i], (double)(times * sum_of_all(rig, i)));
    return true;
}

static bool is_from(struct rig *rig, const float *x, int rank, const char *what)
{
    size_t i;

    for (i = 0; i < COUNT; i++)
        if (x[i] != mine(rank, i))
            return rig_fail(rig,
                "%s of rank %d: element %zu is %g, expected "
                "%g",
                what, rank, i, (double)x[i], (double)mine(rank, i));
    return true;
}

/* The communicator, before there are messages. */
static bool connect(struct rig *rig)
{
    return rig_expect(
        rig, coll_gpu_connect(rig->group, NULL), COLL_OK, "coll_gpu_connect");
}

static bool stream_create(struct rig *rig, struct cu_stream **out)
{
    return rig_cuda_ok(rig,
        rig->cuda->stream_create(out, COLL_CUDA_STREAM_NON_BLOCKING, 0),
        "cuStreamCreateWithPriority");
}

static void stream_destroy(struct rig *rig, struct cu_stream *stream)
{
    if (stream != NULL)
        rig_cuda_ok(rig, rig->cuda->stream_destroy(stream), "cuStreamDestroy");
}

/* --- Host memory --------------------------------------------------------- */

bool check_memory_of_host(struct rig *rig, char *note, size_t size)
{
    float *x = rig_alloc(rig, BYTES), host[COUNT], back[COUNT];
    bool good = x != NULL;
    int round;

    fill(host, rig->rank);
    /* By turns, so that one has to wait for the other. */
    for (round = 0; good && round < 3; round++) {
        fill(host, rig->rank);
        good = rig_write(rig, x, host, BYTES) &&
               rig_expect(rig,
                   coll_all_reduce(
                       x, x, COUNT, COLL_FLOAT32, COLL_SUM, rig->group),
                   COLL_OK, "all_reduce of the device") &&
               rig_expect(rig,
                   coll_all_reduce(
                       host, host, COUNT, COLL_FLOAT32, COLL_SUM, rig->group),
                   COLL_OK, "all_reduce of the host") &&
               rig_expect(rig, coll_barrier(rig->group), COLL_OK, "barrier") &&
               rig_expect(rig, coll_gpu_synchronize(rig->group, 0), COLL_OK,
                   "coll_gpu_synchronize") &&
               rig_read(rig, back, x, BYTES) &&
               is_sum(rig, host, 1, "the host's sum") &&
               is_sum(rig, back, 1, "the device's sum");
    }
    rig_free(rig, x);
    snprintf(note, size, "the same group, by turns");
    return good;
}

/* --- Messages ------------------------------------------------------------ */

/* Round in a ring: with coll_send() and coll_recv(), then without waiting. */
bool check_messages(struct rig *rig, char *note, size_t size)
{
    const int to = (rig->rank + 1) % rig->size;
    const int from = (rig->rank + rig->size - 1) % rig->size;
    float *out = NULL, *in = NULL, host[COUNT];
    coll_work_t *works[2] = {NULL, NULL};
    const bool is_first = rig->rank % 2 == 0;
    bool good;
    int turn;

    if (rig->size == 1) {
        snprintf(note, size, "skip: one rank has nobody to send to");
        return true;
    }
    out = rig_alloc(rig, BYTES);
    in = rig_alloc(rig, BYTES);
    fill(host, rig->rank);
    good = connect(rig) && out != NULL && in != NULL &&
           rig_write(rig, out, host, BYTES);
    /* A send waits for its receive, and a receive for its send, each before
     * what its rank has called later: so neighbours take turns. */
    for (turn = 0; good && turn < 2; turn++) {
        if (is_first == (turn == 0))
            good = rig_expect(rig,
                coll_send(out, COUNT, COLL_FLOAT32, to, 0, rig->group), COLL_OK,
                "coll_send");
        else
            good = rig_expect(rig,
                coll_recv(in, COUNT, COLL_FLOAT32, from, 0, NULL, rig->group),
                COLL_OK, "coll_recv");
    }
    good = good &&
           rig_expect(rig, coll_gpu_synchronize(rig->group, 0), COLL_OK,
               "coll_gpu_synchronize") &&
           rig_read(rig, host, in, BYTES) && is_from(rig, host, from, "recv");

    memset(host, 0, sizeof(host));
    good = good && rig_write(rig, in, host, BYTES);
    for (turn = 0; good && turn < 2; turn++) {
        if (is_first == (turn == 0))
            good = rig_expect(rig,
                coll_isend(
                    out, COUNT, COLL_FLOAT32, to, 0, rig->group, &works[turn]),
                COLL_OK, "coll_isend");
        else
            good = rig_expect(rig,
                coll_irecv(
                    in, COUNT, COLL_FLOAT32, from, 0, rig->group, &works[turn]),
                COLL_OK, "coll_irecv");
    }
    for (turn = 0; turn < 2; turn++)
        if (works[turn] != NULL)
            good = rig_expect(rig, coll_work_wait(works[turn], 0), COLL_OK,
                       "coll_work_wait") &&
                   good;
    good = good && rig_read(rig, host, in, BYTES) &&
           is_from(rig, host, from, "irecv");
    for (turn = 0; turn < 2; turn++)
        coll_work_free(works[turn]);
    rig_free(rig, out);
    rig_free(rig, in);
    return good;
}

/* Everybody sends to everybody else, in one batch. */
bool check_batch(struct rig *rig, char *note, size_t size)
{
    coll_message_t messages[2 * 64];
    float *out = NULL, *in = NULL, host[COUNT];
    coll_work_t *work = NULL;
    bool good;
    size_t n = 0;
    int r;

    if (rig->size == 1) {
        snprintf(note, size, "skip: one rank has nobody to send to");
        return true;
    }
    out = rig_alloc(rig, BYTES);
    in = rig_alloc(rig, BYTES * (size_t)rig->size);
    good = connect(rig) && out != NULL && in != NULL;
    fill(host, rig->rank);
    good = good && rig_write(rig, out, host, BYTES);
    for (r = 0; good && r < rig->size; r++) {
        if (r == rig->rank)
            continue;
        messages[n++] = (coll_message_t){true, out, COUNT, COLL_FLOAT32, r, 0};
        messages[n++] = (coll_message_t){
            false, in + (size_t)r * COUNT, COUNT, COLL_FLOAT32, r, 0};
    }
    good = good &&
           rig_expect(rig, coll_batch(messages, n, rig->group, &work), COLL_OK,
               "coll_batch") &&
           rig_expect(rig, coll_work_wait(work, 0), COLL_OK, "coll_work_wait");
    for (r = 0; good && r < rig->size; r++)
        if (r != rig->rank)
            good = rig_read(rig, host, in + (size_t)r * COUNT, BYTES) &&
                   is_from(rig, host, r, "a batch's message");
    coll_work_free(work);
    rig_free(rig, out);
    rig_free(rig, in);
    snprintf(note, size, "%zu messages of each rank", n);
    return good;
}

/* --- Streams ------------------------------------------------------------- */

/* All on a stream of the program's, and only in the end does the host wait. */
bool check_own_stream(struct rig *rig, char *note, size_t size)
{
    float *x = rig_alloc(rig, BYTES), *y = rig_alloc(rig, BYTES);
    struct cu_stream *stream = NULL;
    float host[COUNT], back[COUNT];
    bool good = x != NULL && y != NULL && stream_create(rig, &stream) &&
                rig_expect(rig, coll_gpu_set_stream(rig->group, stream),
                    COLL_OK, "coll_gpu_set_stream");

    fill(host, rig->rank);
    good = good &&
           rig_cuda_ok(rig,
               rig->cuda->memory_copy_async(
                   (uintptr_t)x, (uintptr_t)host, BYTES, stream),
               "cuMemcpyAsync") &&
           rig_expect(rig,
               coll_all_reduce(x, y, COUNT, COLL_FLOAT32, COLL_SUM, rig->group),
               COLL_OK, "all_reduce") &&
           rig_expect(rig,
               coll_all_reduce(y, y, COUNT, COLL_FLOAT32, COLL_SUM, rig->group),
               COLL_OK, "all_reduce of the result") &&
           rig_cuda_ok(rig,
               rig->cuda->memory_copy_async(
                   (uintptr_t)back, (uintptr_t)y, BYTES, stream),
               "cuMemcpyAsync") &&
           rig_cuda_ok(rig, rig->cuda->stream_synchronize(stream),
               "cuStreamSynchronize") &&
           is_sum(rig, back, (float)rig->size, "the sum of the sums");
    good = rig_expect(rig, coll_gpu_set_stream(rig->group, NULL), COLL_OK,
               "coll_gpu_set_stream") &&
           good;
    stream_destroy(rig, stream);
    rig_free(rig, x);
    rig_free(rig, y);
    snprintf(note, size, "copy, two all_reduce, copy; one wait");
    return good;
}

/* A stream waits for a work that the host does not wait for. */
bool check_wait_stream(struct rig *rig, char *note, size_t size)
{
    float *x = rig_alloc(rig, BYTES), host[COUNT], back[COUNT];
    struct cu_stream *stream = NULL;
    coll_work_t *work = NULL;
    bool good = x != NULL && stream_create(rig, &stream), done = false;

    fill(host, rig->rank);
    good =
        good && rig_write(rig, x, host, BYTES) &&
        rig_expect(rig,
            coll_all_reduce_async(
                x, x, COUNT, COLL_FLOAT32, COLL_SUM, rig->group, &work),
            COLL_OK, "all_reduce_async") &&
        rig_expect(rig, coll_work_wait_stream(work, stream), COLL_OK,
            "coll_work_wait_stream") &&
        rig_cuda_ok(rig,
            rig->cuda->memory_copy_async(
                (uintptr_t)back, (uintptr_t)x, BYTES, stream),
            "cuMemcpyAsync") &&
        rig_cuda_ok(rig, rig->cuda->stream_synchronize(stream),
            "cuStreamSynchronize") &&
        is_sum(rig, back, 1, "the sum behind the work") &&
        /* It is over, since the stream was behind it. */
        rig_expect(rig, coll_work_wait(work, RIG_TIMEOUT_MS), COLL_OK,
            "coll_work_wait") &&
        rig_expect(rig, coll_work_test(work, &done), COLL_OK, "coll_work_test");
    if (good && !done)
        good = rig_fail(rig, "a work that was waited for is not done");
    coll_work_free(work);
    stream_destroy(rig, stream);
    rig_free(rig, x);
    snprintf(note, size, "the host does not wait for the work");
    return good;
}

/* Many calls, of both kinds, on one buffer: done in the order of the calls. */
bool check_order(struct rig *rig, char *note, size_t size)
{
    enum { ROUNDS = 20 };
    float *x = rig_alloc(rig, BYTES), host[COUNT];
    coll_work_t *works[ROUNDS] = {NULL};
    bool good = x != NULL;
    int i;

    fill(host, rig->rank);
    good = good && rig_write(rig, x, host, BYTES);
    /* Each rank's part becomes the sum, which AVG then leaves as it is. */
    for (i = 0; good && i < ROUNDS; i++) {
        good = rig_expect(rig,
            coll_all_reduce_async(x, x, COUNT, COLL_FLOAT32,
                i == 0 ? COLL_SUM : COLL_AVG, rig->group, &works[i]),
            COLL_OK, "all_reduce_async");
        if (good && i % 5 == 4)
            good = rig_expect(rig, coll_work_wait_stream(works[i], NULL),
                       COLL_OK, "coll_work_wait_stream") &&
                   rig_expect(rig,
                       coll_all_reduce(
                           x, x, COUNT, COLL_FLOAT32, COLL_MAX, rig->group),
                       COLL_OK, "all_reduce");
    }
    good = good &&
           rig_expect(rig, coll_gpu_synchronize(rig->group, 0), COLL_OK,
               "coll_gpu_synchronize") &&
           rig_read(rig, host, x, BYTES) &&
           is_sum(rig, host, 1, "the sum after all calls");
    for (i = 0; i < ROUNDS; i++) {
        if (works[i] != NULL)
            good = rig_expect(rig, coll_work_wait(works[i], 0), COLL_OK,
                       "coll_work_wait") &&
                   good;
        coll_work_free(works[i]);
    }
    rig_free(rig, x);
    snprintf(note, size, "%d works, and calls between them", ROUNDS);
    return good;
}

/* --- Memory -------------------------------------------------------------- */

bool check_alloc_and_register(struct rig *rig, char *note, size_t size)
{
    void *memory = NULL, *handle = NULL;
    float host[COUNT];
    coll_status_t status = COLL_OK;
    bool good;

    fill(host, rig->rank);
    good = connect(rig) &&
           rig_expect(rig, coll_gpu_alloc(&memory, 4 << 20), COLL_OK,
               "coll_gpu_alloc") &&
           rig_write(rig, memory, host, BYTES);
    if (good) {
        status = coll_gpu_register(rig->group, memory, 4 << 20, &handle);
        if (status == COLL_ERR_UNSUPPORTED)
            snprintf(note, size, "allocated; this NCCL registers nothing");
        else
            good = rig_expect(rig, status, COLL_OK, "coll_gpu_register");
    }
    good = good &&
           rig_expect(rig,
               coll_all_reduce(
                   memory, memory, COUNT, COLL_FLOAT32, COLL_SUM, rig->group),
               COLL_OK, "all_reduce") &&
           rig_expect(rig, coll_gpu_synchronize(rig->group, 0), COLL_OK,
               "coll_gpu_synchronize") &&
           rig_read(rig, host, memory, BYTES) &&
           is_sum(rig, host, 1, "the sum in memory of NCCL's");
    if (handle != NULL)
        good = rig_expect(rig, coll_gpu_deregister(rig->group, handle), COLL_OK,
                   "coll_gpu_deregister") &&
               good;
    if (memory != NULL)
        good =
            rig_expect(rig, coll_gpu_free(memory), COLL_OK, "coll_gpu_free") &&
            good;
    return good;
}

/* --- Groups -------------------------------------------------------------- */

static bool sum_of_group(
    struct rig *rig, coll_group_t *group, float wanted, const char *what)
{
    float value = (float)(rig->rank + 1), *x = rig_alloc(rig, sizeof(*x));
    bool good =
        x != NULL && rig_write(rig, x, &value, sizeof(value)) &&
        rig_expect(rig, coll_all_reduce(x, x, 1, COLL_FLOAT32, COLL_SUM, group),
            COLL_OK, what) &&
        rig_expect(rig, coll_gpu_synchronize(group, 0), COLL_OK, what) &&
        rig_read(rig, &value, x, sizeof(value));

    if (good && value != wanted)
        good = rig_fail(rig, "%s: the sum is %g, expected %g", what,
            (double)value, (double)wanted);
    rig_free(rig, x);
    return good;
}

/* Communicators with options, one of them of which no call blocks. */
bool check_options(struct rig *rig, char *note, size_t size)
{
    coll_gpu_options_t options = COLL_GPU_OPTIONS_INIT;
    const float wanted = (float)(rig->size * (rig->size + 1) / 2);
    bool good = true;
    int i;

    for (i = 0; good && i < 2; i++) {
        options.min_ctas = i == 0 ? 1 : 0;
        options.max_ctas = i == 0 ? 4 : 0;
        options.non_blocking = i == 1;
        good = rig_regroup(rig, RIG_TIMEOUT_MS) &&
               rig_expect(rig, coll_gpu_connect(rig->group, &options), COLL_OK,
                   i == 0 ? "coll_gpu_connect with few CTAs"
                          : "coll_gpu_connect that does not block") &&
               sum_of_group(rig, rig->group, wanted,
                   i == 0 ? "all_reduce with few CTAs"
                          : "all_reduce that does not block");
    }
    snprintf(note, size, "1 to 4 CTAs; one that never blocks");
    return good && rig_regroup(rig, RIG_TIMEOUT_MS);
}

/* Even and odd ranks, each among themselves, beside the whole group. */
bool check_split(struct rig *rig, char *note, size_t size)
{
    const int parity = rig->rank % 2;
    coll_group_t *half = NULL;
    float all = 0, some = 0;
    bool good;
    int r;

    for (r = 0; r < rig->size; r++) {
        all += (float)(r + 1);
        some += r % 2 == parity ? (float)(r + 1) : 0;
    }
    good = rig_expect(rig, coll_group_split(&half, rig->group, parity, 0, NULL),
               COLL_OK, "coll_group_split") &&
           sum_of_group(rig, half, some, "all_reduce of every other rank") &&
           sum_of_group(rig, rig->group, all, "all_reduce of all ranks") &&
           sum_of_group(rig, half, some, "all_reduce of every other again");
    if (half != NULL)
        good = rig_expect(rig, coll_group_destroy(half), COLL_OK,
                   "coll_group_destroy") &&
               good;
    snprintf(note, size, "even and odd ranks beside all");
    return good;
}

/* The calls for several devices of a process, with all that it sees where it
 * is alone, else with its own. */
bool check_multigpu(struct rig *rig, char *note, size_t size)
{
    enum { MOST = 8 };
    struct cu_context *contexts[MOST], *own = NULL;
    void *x[MOST] = {NULL};
    float value, sum = 0;
    cu_device_t device;
    bool good;
    int n = 1, i;

    good = rig_cuda_ok(rig, rig->cuda->context_get(&own), "cuCtxGetCurrent");
    if (rig->size == 1)
        good = good && rig_cuda_ok(rig, rig->cuda->device_get_count(&n),
                           "cuDeviceGetCount");
    n = n < MOST ? n : MOST;
    for (i = 0; good && i < n; i++) {
        value = (float)(rig->rank * n + i + 1);
        good = rig_cuda_ok(rig,
                   rig->cuda->device_get(
                       &device, rig->size == 1 ? i : rig->device),
                   "cuDeviceGet") &&
               rig_cuda_ok(rig,
                   rig->cuda->primary_context_retain(&contexts[i], device),
                   "cuDevicePrimaryCtxRetain") &&
               rig_cuda_ok(rig, rig->cuda->context_set(contexts[i]),
                   "cuCtxSetCurrent") &&
               (x[i] = rig_alloc(rig, sizeof(value))) != NULL &&
               rig_write(rig, x[i], &value, sizeof(value));
    }
    for (i = 0; i < n * rig->size; i++)
        sum += (float)(i + 1);
    good = good &&
           rig_cuda_ok(rig, rig->cuda->context_set(own), "cuCtxSetCurrent") &&
           rig_expect(rig,
               coll_all_reduce_multigpu((const void *const *)x, x, n, 1,
                   COLL_FLOAT32, COLL_SUM, rig->group),
               COLL_OK, "coll_all_reduce_multigpu") &&
           rig_expect(rig,
               coll_broadcast_multigpu(
                   x, n, 1, COLL_FLOAT32, n * rig->size - 1, rig->group),
               COLL_OK, "coll_broadcast_multigpu") &&
           rig_expect(rig, coll_gpu_synchronize(rig->group, 0), COLL_OK,
               "coll_gpu_synchronize");
    for (i = 0; i < n; i++) {
        if (x[i] == NULL)
            continue;
        good = rig_cuda_ok(rig, rig->cuda->context_set(contexts[i]),
                   "cuCtxSetCurrent") &&
               good;
        good = good && rig_read(rig, &value, x[i], sizeof(value));
        if (good && value != sum)
            good = rig_fail(rig, "the sum on device %d is %g, expected %g", i,
                (double)value, (double)sum);
        rig_free(rig, x[i]);
    }
    good = rig_cuda_ok(rig, rig->cuda->context_set(own), "cuCtxSetCurrent") &&
           good;
    snprintf(note, size, "%d device%s of each rank", n, n == 1 ? "" : "s");
    return good;
}

/* --- Graphs -------------------------------------------------------------- */

/* What capturing takes; the library itself uses none of it. */
struct graph_api {
    cu_result_t (*begin)(struct cu_stream *stream, unsigned int mode);
    cu_result_t (*end)(struct cu_stream *stream, void **graph);
    cu_result_t (*instantiate)(
        void **exec, void *graph, unsigned long long flags);
    cu_result_t (*launch)(void *exec, struct cu_stream *stream);
    cu_result_t (*exec_destroy)(void *exec);
    cu_result_t (*destroy)(void *graph);
};

/* Other threads, the library's for one, may go on calling CUDA. */
#define CAPTURE_THREAD_LOCAL 1

static bool graph_api_get(const struct rig *rig, struct graph_api *api)
{
    const struct {
        const char *name;
        void *to;
    } table[] = {
        {"cuStreamBeginCapture_v2", &api->begin},
        {"cuStreamEndCapture", &api->end},
        {"cuGraphInstantiateWithFlags", &api->instantiate},
        {"cuGraphLaunch", &api->launch},
        {"cuGraphExecDestroy", &api->exec_destroy},
        {"cuGraphDestroy", &api->destroy},
    };
    void *symbol;
    size_t i;

    for (i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        symbol = dlsym(rig->cuda->handle, table[i].name);
        if (symbol == NULL)
            return false;
        memcpy(table[i].to, &symbol, sizeof(symbol));
    }
    return true;
}

/* The calls that the graph is made of. One that does not wait is refused, which
 * must not spoil the capture. */
static bool capture(struct rig *rig, const struct graph_api *api,
    struct cu_stream *stream, float *x, float *y, void **graph)
{
    coll_work_t *work = NULL;
    bool good;

    if (!rig_cuda_ok(
            rig, api->begin(stream, CAPTURE_THREAD_LOCAL), "begin of capture"))
        return false;
    good = rig_expect(rig,
        coll_all_reduce(x, y, COUNT, COLL_FLOAT32, COLL_SUM, rig->group),
        COLL_OK, "all_reduce in a capture");
    if (good && coll_all_reduce_async(y, y, COUNT, COLL_FLOAT32, COLL_SUM,
                    rig->group, &work) == COLL_OK) {
        coll_work_free(work);
        good = rig_fail(rig, "a capture takes a call that does not wait");
    }
    good = good &&
           rig_expect(rig,
               coll_all_reduce(y, y, COUNT, COLL_FLOAT32, COLL_SUM, rig->group),
               COLL_OK, "another all_reduce in a capture");
    /* Also after a failure: the stream must not stay as it is. */
    return rig_cuda_ok(rig, api->end(stream, graph), "end of capture") && good;
}

bool check_capture(struct rig *rig, char *note, size_t size)
{
    enum { REPLAYS = 3 };
    struct graph_api api;
    struct cu_stream *stream = NULL;
    float *x, *y, host[COUNT];
    void *graph = NULL, *exec = NULL;
    bool good;
    int i;

    if (!graph_api_get(rig, &api)) {
        snprintf(note, size, "skip: this driver has no graphs");
        return true;
    }
    x = rig_alloc(rig, BYTES);
    y = rig_alloc(rig, BYTES);
    good = x != NULL && y != NULL && connect(rig) &&
           stream_create(rig, &stream) &&
           rig_expect(rig, coll_gpu_set_stream(rig->group, stream), COLL_OK,
               "coll_gpu_set_stream") &&
           /* NCCL connects in the first call of its kind. */
           rig_expect(rig,
               coll_all_reduce(x, y, COUNT, COLL_FLOAT32, COLL_SUM, rig->group),
               COLL_OK, "all_reduce before the capture") &&
           rig_expect(rig, coll_gpu_synchronize(rig->group, 0), COLL_OK,
               "coll_gpu_synchronize") &&
           capture(rig, &api, stream, x, y, &graph) &&
           rig_cuda_ok(
               rig, api.instantiate(&exec, graph, 0), "cuGraphInstantiate");
    for (i = 0; good && i < REPLAYS; i++) {
        fill(host, rig->rank);
        good = rig_write(rig, x, host, BYTES) &&
               rig_cuda_ok(rig, api.launch(exec, stream), "cuGraphLaunch") &&
               rig_cuda_ok(rig, rig->cuda->stream_synchronize(stream),
                   "cuStreamSynchronize") &&
               rig_read(rig, host, y, BYTES) &&
               is_sum(rig, host, (float)rig->size, "what a graph has summed");
    }
    if (exec != NULL)
        good = rig_cuda_ok(rig, api.exec_destroy(exec), "cuGraphExecDestroy") &&
               good;
    if (graph != NULL)
        good = rig_cuda_ok(rig, api.destroy(graph), "cuGraphDestroy") && good;
    if (stream != NULL)
        good = rig_expect(rig, coll_gpu_set_stream(rig->group, NULL), COLL_OK,
                   "coll_gpu_set_stream") &&
               good;
    stream_destroy(rig, stream);
    rig_free(rig, x);
    rig_free(rig, y);
    snprintf(note, size, "two all_reduce, %d replays", REPLAYS);
    return good;
}
