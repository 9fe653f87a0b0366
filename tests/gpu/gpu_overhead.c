/*
 * gpu_overhead: what a call of libcollective costs over one of NCCL.
 *
 *     crun --nproc_per_node=2 --share_gpu 2 gpu_overhead [ROUNDS]
 *
 * coll_all_reduce() and ncclAllReduce() on the same small buffer and stream,
 * with a communicator each, take turns in short blocks, so that both meet the
 * same clocks and neighbours. Two figures: how long a call keeps the host (a
 * block of calls, without a wait), and how long it takes until the result is
 * there (each call followed by cuStreamSynchronize). Medians over ROUNDS (400)
 * blocks, or as many as three seconds allow, of rank 0.
 *
 * The goals: the host is kept less than 1 us longer, and the result comes less
 * than 2 % later. Exit status 1 if one is missed, unless there is no GPU but
 * the doubles, whose times say nothing.
 */
#include "tests/gpu/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_DEFAULT 400
#define ROUNDS_MAX 100000
/* Less than what a stream holds until its caller is made to wait. */
#define LAUNCHES 64
#define WAITS 8
#define GOAL_US 1.0
#define GOAL_PERCENT 2.0

struct bench {
    struct rig *rig;
    const struct nccl_api *nccl;
    struct nccl_comm *comm; /* NCCL's own, of all ranks */
    struct cu_stream *stream;
    float *x;
    size_t count;
};

static bool nccl_ok(struct bench *b, nccl_result_t result, const char *what)
{
    return result == COLL_NCCL_SUCCESS || rig_fail(b->rig, "%s: %s (%s)", what,
                                              b->nccl->get_error_string(result),
                                              b->nccl->get_last_error(NULL));
}

static bool bench_init(struct bench *b)
{
    struct rig *rig = b->rig;
    nccl_unique_id_t id;
    nccl_config_t config;

    if (!rig_expect(rig, nccl_api_get(&b->nccl), COLL_OK, "NCCL"))
        return false;
    memset(&id, 0, sizeof(id));
    if (rig->rank == 0 &&
        !nccl_ok(b, b->nccl->get_unique_id(&id), "ncclGetUniqueId"))
        return false;
    nccl_config_init(&config, b->nccl->version);
    b->x = rig_alloc(rig, 1 << 20);
    return b->x != NULL &&
           rig_cuda_ok(rig, rig->cuda->memory_set((uintptr_t)b->x, 0, 1 << 20),
               "cuMemsetD8") &&
           rig_cuda_ok(rig,
               rig->cuda->stream_create(
                   &b->stream, COLL_CUDA_STREAM_NON_BLOCKING, 0),
               "cuStreamCreateWithPriority") &&
           rig_expect(rig,
               coll_broadcast(&id, sizeof(id), COLL_UINT8, 0, rig->group),
               COLL_OK, "sending the unique id") &&
           nccl_ok(b,
               b->nccl->comm_init(&b->comm, rig->size, id, rig->rank, &config),
               "ncclCommInitRankConfig") &&
           rig_expect(rig, coll_gpu_set_stream(rig->group, b->stream), COLL_OK,
               "coll_gpu_set_stream") &&
           rig_expect(rig, coll_gpu_connect(rig->group, NULL), COLL_OK,
               "coll_gpu_connect");
}

static void bench_fini(struct bench *b)
{
    struct rig *rig = b->rig;

    if (rig->group != NULL)
        rig_expect(rig, coll_gpu_set_stream(rig->group, NULL), COLL_OK,
            "coll_gpu_set_stream");
    if (b->comm != NULL)
        nccl_ok(b, b->nccl->comm_destroy(b->comm), "ncclCommDestroy");
    if (b->stream != NULL)
        rig_cuda_ok(
            rig, rig->cuda->stream_destroy(b->stream), "cuStreamDestroy");
    rig_free(rig, b->x);
}

static bool call_ours(struct bench *b)
{
    return coll_all_reduce(b->x, b->x, b->count, COLL_FLOAT32, COLL_SUM,
               b->rig->group) == COLL_OK ||
           rig_fail(b->rig, "coll_all_reduce: %s", coll_last_error());
}

static bool call_nccl(struct bench *b)
{
    return nccl_ok(b,
        b->nccl->all_reduce(b->x, b->x, b->count, COLL_NCCL_FLOAT32,
            COLL_NCCL_SUM, b->comm, b->stream),
        "ncclAllReduce");
}

static bool wait(struct bench *b)
{
    return rig_cuda_ok(b->rig, b->rig->cuda->stream_synchronize(b->stream),
        "cuStreamSynchronize");
}

/* *us: of one call in a block of calls. */
static bool block(struct bench *b, bool (*call)(struct bench *b), int calls,
    bool has_wait, double *us)
{
    double start;
    int i;

    start = rig_now();
    for (i = 0; i < calls; i++)
        if (!call(b) || (has_wait && !wait(b)))
            return false;
    *us = (rig_now() - start) * 1e6 / calls;
    return wait(b);
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof(*values), compare_doubles);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* One line of the table. */
static const struct line {
    size_t count;
    bool has_wait;
} lines[] = {
    {1, false}, {256, false}, {256, true}, {16384, true}, {262144, true}};
#define LINES (sizeof(lines) / sizeof(lines[0]))

/* Where ranks share a GPU, and each waits for its turn, a call takes long. */
#define SECONDS_OF_A_LINE 3

/* *is_missed: the goal. */
static bool measure(struct bench *b, const struct line *line, int rounds,
    double *ours, double *theirs, bool *is_missed)
{
    const bool has_wait = line->has_wait;
    const int calls = has_wait ? WAITS : LAUNCHES;
    const double start = rig_now();
    double us, nccl_us, more, percent;
    char what[64], note[160];
    bool missed, has_time = true;
    int n;

    b->count = line->count;
    /* The first of each connects, and warms up. */
    if (!block(b, call_nccl, calls, has_wait, &theirs[0]) ||
        !block(b, call_ours, calls, has_wait, &ours[0]))
        return false;
    for (n = 0; n < rounds && has_time; n++) {
        /* Who comes first has no advantage. */
        if (n % 2 == 0 && !block(b, call_ours, calls, has_wait, &ours[n]))
            return false;
        if (!block(b, call_nccl, calls, has_wait, &theirs[n]))
            return false;
        if (n % 2 == 1 && !block(b, call_ours, calls, has_wait, &ours[n]))
            return false;
        if (!rig_has_time(b->rig, start + SECONDS_OF_A_LINE, &has_time))
            return false;
    }
    if (b->rig->rank != 0)
        return true;
    us = median(ours, n);
    nccl_us = median(theirs, n);
    more = us - nccl_us;
    percent = 100 * more / nccl_us;
    /* A rank alone has no result to wait for: NCCL leaves the buffer as it
     * is. */
    missed = has_wait ? percent >= GOAL_PERCENT && b->rig->size > 1
                      : more >= GOAL_US;
    snprintf(what, sizeof(what), "%s, %zu bytes",
        has_wait ? "result" : "launch", b->count * sizeof(float));
    snprintf(note, sizeof(note),
        "%.2f us, NCCL %.2f us: %+.2f us, %+.1f %%; goal: less than %s; %d "
        "rounds",
        us, nccl_us, more, percent, has_wait ? "2 %" : "1 us", n);
    rig_row(b->rig, what,
        b->rig->has_doubles ? "SKIP"
        : missed            ? "FAIL"
                            : "PASS",
        rig_now() - start, b->rig->has_doubles ? "no GPU" : note);
    *is_missed = *is_missed || (missed && !b->rig->has_doubles);
    return true;
}

int main(int argc, char **argv)
{
    const int rounds =
        argc > 1 ? (int)strtol(argv[1], NULL, 10) : ROUNDS_DEFAULT;
    struct rig rig;
    struct bench b = {.rig = &rig};
    double *ours = NULL, *theirs = NULL;
    bool good, is_missed = false;
    size_t i;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (rounds < 1 || rounds > ROUNDS_MAX || argc > 2) {
        fprintf(stderr, "usage: gpu_overhead [ROUNDS], 1 to %d\n", ROUNDS_MAX);
        return 2;
    }
    good = rig_open(&rig) && bench_init(&b);
    ours = malloc((size_t)rounds * sizeof(*ours));
    theirs = malloc((size_t)rounds * sizeof(*theirs));
    if (good && (ours == NULL || theirs == NULL))
        good = rig_fail(&rig, "no memory on the host");
    for (i = 0; good && i < LINES; i++)
        good = measure(&b, &lines[i], rounds, ours, theirs, &is_missed);
    free(ours);
    free(theirs);
    bench_fini(&b);
    rig_close(&rig);
    return good && !rig.has_failed && !is_missed ? EXIT_SUCCESS : EXIT_FAILURE;
}
