/*
 * Many buffers in one call, objects, and sums with factors: their limits and
 * their arithmetic, beside what test_coll_ops.c does with all operations.
 * Averages of every type are here, too.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "tests/unit/coll_harness.h"
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

static void on(int size, harness_rank_fn *fn, void *arg)
{
    harness_backend = size == 1 ? &coll_backend_self : &coll_backend_shm;
    harness_run(&store, size, TIMEOUT_MS, fn, arg);
}

static const int sizes[] = {1, 2, 3, 4, 7, 8};

enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

/* --- Numbers -------------------------------------------------------------- */

static double get(const void *at, coll_dtype_t dtype)
{
    union {
        float f;
        double d;
        uint32_t bits;
        int8_t i8;
        int16_t i16;
        int32_t i32;
        int64_t i64;
        uint8_t u8;
        uint16_t u16;
        uint32_t u32;
        uint64_t u64;
    } x = {.u64 = 0};

    memcpy(&x, at, coll_dtype_size(dtype));
    switch (dtype) {
    case COLL_FLOAT32:
        return (double)x.f;
    case COLL_FLOAT64:
        return x.d;
    case COLL_FLOAT16: /* of normal numbers, and zero */
        if ((x.u16 & 0x7fff) == 0)
            return 0;
        return ldexp(
            (x.u16 & 0x8000 ? -1.0 : 1.0) * (double)((x.u16 & 0x3ff) + 0x400),
            (x.u16 >> 10 & 31) - 25);
    case COLL_BFLOAT16:
        x.bits = (uint32_t)x.u16 << 16;
        return (double)x.f;
    case COLL_INT8:
        return x.i8;
    case COLL_INT16:
        return x.i16;
    case COLL_INT32:
        return x.i32;
    case COLL_INT64:
        return (double)x.i64;
    case COLL_UINT16:
        return x.u16;
    case COLL_UINT32:
        return x.u32;
    case COLL_UINT64:
        return (double)x.u64;
    default:
        return x.u8;
    }
}

/* Small integers only: exact in every type. */
static void put(void *at, coll_dtype_t dtype, int value)
{
    float f = (float)value;
    double d = value;
    int64_t i = value;
    uint32_t bits;
    uint16_t half = value < 0 ? 0x8000 : 0;
    unsigned int magnitude = (unsigned int)abs(value);
    int top;

    switch (dtype) {
    case COLL_FLOAT32:
        memcpy(at, &f, sizeof(f));
        return;
    case COLL_FLOAT64:
        memcpy(at, &d, sizeof(d));
        return;
    case COLL_BFLOAT16:
        memcpy(&bits, &f, sizeof(bits));
        bits >>= 16;
        memcpy(at, &bits, 2);
        return;
    case COLL_FLOAT16:
        if (magnitude != 0) {
            top = 31 - __builtin_clz(magnitude);
            half |= (uint16_t)((unsigned int)(top + 15) << 10 |
                               ((magnitude << (10 - top)) & 0x3ff));
        }
        memcpy(at, &half, sizeof(half));
        return;
    default: /* little-endian integers */
        memcpy(at, &i, coll_dtype_size(dtype));
        return;
    }
}

static bool is_float(coll_dtype_t dtype)
{
    return dtype == COLL_FLOAT32 || dtype == COLL_FLOAT64 ||
           dtype == COLL_FLOAT16 || dtype == COLL_BFLOAT16;
}

static bool is_signed(coll_dtype_t dtype)
{
    return is_float(dtype) || dtype == COLL_INT8 || dtype == COLL_INT16 ||
           dtype == COLL_INT32 || dtype == COLL_INT64;
}

/* --- Averages ------------------------------------------------------------- */

/* Of rank r at i: -7 and -8 make -7 of integers, 7 and 8 make 7. */
static int averaged(coll_dtype_t dtype, int rank, size_t i)
{
    int v = 7 + rank + (int)(i % 5);

    return is_signed(dtype) && i % 2 == 1 ? -v : v;
}

static bool is_average(const char *at, coll_dtype_t dtype, int size, size_t i)
{
    double got = get(at, dtype);
    double sum = 0;
    double step = dtype == COLL_BFLOAT16 ? 0x1p-8 : 0x1p-11;

    for (int r = 0; r < size; r++)
        sum += averaged(dtype, r, i);
    if (!is_float(dtype))
        return got == trunc(sum / size);
    if (dtype == COLL_FLOAT64)
        return got == sum / size;
    if (dtype == COLL_FLOAT32)
        return (float)got == (float)(sum / size);
    return fabs(got - sum / size) <= fabs(sum / size) * step; /* one rounding */
}

struct average {
    coll_dtype_t dtype;
    size_t count;
};

static void average(struct coll_group *g, int rank, void *arg)
{
    const struct average *a = arg;
    size_t bytes = coll_dtype_size(a->dtype);
    size_t n = a->count * (size_t)g->size;
    char *x = malloc(n * bytes);
    char *y = calloc(n, bytes);
    int root = g->size / 2;

    for (size_t i = 0; i < n; i++)
        put(x + i * bytes, a->dtype, averaged(a->dtype, rank, i));
    EXPECT_OK(coll_all_reduce(x, y, a->count, a->dtype, COLL_AVG, g));
    for (size_t i = 0; i < a->count; i++)
        EXPECT(is_average(y + i * bytes, a->dtype, g->size, i),
            "%s %zu: %g of %d", coll_dtype_name(a->dtype), i,
            get(y + i * bytes, a->dtype), g->size);
    memset(y, 0, n * bytes);
    EXPECT_OK(coll_reduce(x, y, a->count, a->dtype, COLL_AVG, root, g));
    for (size_t i = 0; rank == root && i < a->count; i++)
        EXPECT(is_average(y + i * bytes, a->dtype, g->size, i), "reduce %s %zu",
            coll_dtype_name(a->dtype), i);
    EXPECT_OK(coll_reduce_scatter(x, y, a->count, a->dtype, COLL_AVG, g));
    for (size_t i = 0; i < a->count; i++)
        EXPECT(is_average(y + i * bytes, a->dtype, g->size,
                   (size_t)rank * a->count + i),
            "reduce_scatter %s %zu", coll_dtype_name(a->dtype), i);
    free(x);
    free(y);
}

static const coll_dtype_t numbers[] = {COLL_FLOAT16, COLL_BFLOAT16,
    COLL_FLOAT32, COLL_FLOAT64, COLL_INT8, COLL_INT16, COLL_INT32, COLL_INT64,
    COLL_UINT8, COLL_UINT16, COLL_UINT32, COLL_UINT64};

enum { NUMBERS = sizeof(numbers) / sizeof(numbers[0]) };

/* PG-17 */
START_TEST(averages_are_the_sum_divided_by_the_ranks)
{
    static const size_t counts[] = {1, 7, 8, 1003};
    static const int worlds[] = {1, 2, 3, 5};
    struct average a = {.dtype = numbers[_i]};

    for (int w = 0; w < 4; w++)
        for (int c = 0; c < 4; c++) {
            a.count = counts[c];
            on(worlds[w], average, &a);
        }
    if (a.dtype == COLL_FLOAT32) { /* of many chunks, with an odd end */
        a.count = 1000003;
        on(2, average, &a);
    }
}
END_TEST

static void average_of_bool(struct coll_group *g, int rank, void *arg)
{
    uint8_t x = 1;

    (void)rank;
    (void)arg;
    EXPECT_FAILS(coll_all_reduce(&x, &x, 1, COLL_BOOL, COLL_AVG, g),
        COLL_ERR_ARGUMENT, "there is no avg of bool");
    EXPECT_FAILS(coll_reduce(&x, &x, 0, COLL_BOOL, COLL_AVG, 0, g),
        COLL_ERR_ARGUMENT, "there is no avg of bool");
    EXPECT_OK(coll_barrier(g));
}

START_TEST(there_is_no_average_of_bool)
{
    on(2, average_of_bool, NULL);
}
END_TEST

/* --- Factors -------------------------------------------------------------- */

/* Each rank has a factor of its own; the third one a plain sum. */
static void premultiplied(struct coll_group *g, int rank, void *arg)
{
    enum { N = 300 };
    coll_op_t op = COLL_SUM;
    size_t counts[8];
    size_t sizes_many[2] = {5, N - 5};

    (void)arg;
    EXPECT_OK(coll_op_premul_sum(&op, rank == 2 ? 1 : rank + 2.75));
    for (int r = 0; r < g->size; r++)
        counts[r] = (size_t)r + 1;
    for (int t = 0; t < NUMBERS; t++) {
        coll_dtype_t dtype = numbers[t];
        size_t bytes = coll_dtype_size(dtype);
        size_t n = N * (size_t)g->size;
        char *x = malloc(n * bytes);
        char *y = malloc(n * bytes);
        const void *send[2] = {x, x + 5 * bytes};
        void *recv[2] = {y, y + 5 * bytes};
        double want = 0;

        if (dtype == COLL_BFLOAT16 || dtype == COLL_INT8) {
            free(x);
            free(y);
            continue; /* too narrow for these sums */
        }
        for (int r = 0; r < g->size; r++)
            want += (r == 2 ? 1 : is_float(dtype) ? r + 2.75 : r + 2) * (r + 1);
        for (size_t i = 0; i < n; i++)
            put(x + i * bytes, dtype, rank + 1);
#define IS_RIGHT(name, count)                                                  \
    for (size_t i = 0; i < (count); i++)                                       \
    EXPECT(get(y + i * bytes, dtype) == want, "%s of %s: %g, not %g", name,    \
        coll_dtype_name(dtype), get(y + i * bytes, dtype), want)
        EXPECT_OK(coll_all_reduce(x, y, N, dtype, op, g));
        IS_RIGHT("all_reduce", N);
        memset(y, 0, n * bytes);
        EXPECT_OK(coll_reduce(x, y, N, dtype, op, 0, g));
        if (rank == 0)
            IS_RIGHT("reduce", N);
        memset(y, 0, n * bytes);
        EXPECT_OK(coll_reduce_scatter(x, y, N, dtype, op, g));
        IS_RIGHT("reduce_scatter", N);
        memset(y, 0, n * bytes);
        EXPECT_OK(coll_reduce_scatter_v(x, counts, NULL, y, dtype, op, g));
        IS_RIGHT("reduce_scatter_v", counts[rank]);
        memset(y, 0, n * bytes);
        EXPECT_OK(
            coll_all_reduce_coalesced(send, recv, sizes_many, 2, dtype, op, g));
        IS_RIGHT("coalesced", N);
        for (size_t i = 0; i < n; i++)
            EXPECT(get(x + i * bytes, dtype) == rank + 1, "sendbuf changed");
        /* In place. */
        EXPECT_OK(coll_all_reduce(x, x, N, dtype, op, g));
        memcpy(y, x, N * bytes);
        IS_RIGHT("in place", N);
        free(x);
        free(y);
    }
    EXPECT_OK(coll_op_free(op));
    EXPECT_FAILS(coll_op_free(op), COLL_ERR_ARGUMENT, "no reduction");
    EXPECT_FAILS(coll_all_reduce(NULL, NULL, 0, COLL_INT32, op, g),
        COLL_ERR_ARGUMENT, "unknown reduction");
    EXPECT_FAILS(coll_op_free(COLL_SUM), COLL_ERR_ARGUMENT, "no reduction");
    EXPECT_FAILS(coll_op_premul_sum(NULL, 1), COLL_ERR_ARGUMENT, "op is NULL");
}

START_TEST(factors_are_applied_before_the_sum)
{
    on(sizes[_i], premultiplied, NULL);
}
END_TEST

/* A factor stays what it is for what is on its way. */
static void factor_in_flight(struct coll_group *g, int rank, void *arg)
{
    pthread_barrier_t *seen = arg;
    int64_t x[2] = {1, 1};
    int64_t y[2] = {0, 0};
    coll_work_t *work[2] = {NULL};
    coll_op_t op;

    if (rank == 1)
        pthread_barrier_wait(seen);
    EXPECT_OK(coll_op_premul_sum(&op, 10));
    EXPECT_OK(
        coll_all_reduce_async(&x[0], &y[0], 1, COLL_INT64, op, g, &work[0]));
    EXPECT_OK(coll_op_free(op));
    EXPECT_OK(coll_op_premul_sum(&op, -3));
    EXPECT_OK(
        coll_all_reduce_async(&x[1], &y[1], 1, COLL_INT64, op, g, &work[1]));
    if (rank == 0)
        pthread_barrier_wait(seen);
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(coll_work_wait(work[i], 0));
        coll_work_free(work[i]);
    }
    EXPECT(y[0] == 20 && y[1] == -6, "%d and %d", (int)y[0], (int)y[1]);
    EXPECT_OK(coll_op_free(op));
}

START_TEST(a_factor_may_be_freed_under_way)
{
    pthread_barrier_t seen;

    pthread_barrier_init(&seen, NULL, 2);
    on(2, factor_in_flight, &seen);
    pthread_barrier_destroy(&seen);
}
END_TEST

/* Numbers that no integer has, and a table that is full. */
static void odd_factors(struct coll_group *g, int rank, void *arg)
{
    const double factors[] = {NAN, INFINITY, -INFINITY, 1e300, -1e300, -0.5};
    uint8_t x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint8_t y[8];
    coll_op_t op;
    uint8_t b = 1;

    (void)rank;
    (void)arg;
    for (int f = 0; f < 6; f++) {
        EXPECT_OK(coll_op_premul_sum(&op, factors[f]));
        for (int dtype = 0; dtype < COLL_BOOL; dtype++)
            EXPECT_OK(
                coll_all_reduce(x, y, 8 / coll_dtype_size((coll_dtype_t)dtype),
                    (coll_dtype_t)dtype, op, g));
        EXPECT_FAILS(coll_all_reduce(&b, &b, 1, COLL_BOOL, op, g),
            COLL_ERR_ARGUMENT, "bool");
        EXPECT_OK(coll_op_free(op));
    }
}

START_TEST(odd_factors_end_nothing)
{
    on(2, odd_factors, NULL);
}
END_TEST

START_TEST(there_are_1024_factors)
{
    coll_op_t ops[1024];
    coll_op_t more;

    for (int i = 0; i < 1024; i++)
        ck_assert_int_eq(coll_op_premul_sum(&ops[i], i), COLL_OK);
    ck_assert_int_eq(coll_op_premul_sum(&more, 1), COLL_ERR_MEMORY);
    for (int i = 0; i < 1024; i++)
        ck_assert_int_eq(coll_op_free(ops[i]), COLL_OK);
    ck_assert_int_eq(coll_op_premul_sum(&more, 1), COLL_OK);
    ck_assert_int_eq(coll_op_free(more), COLL_OK);
}
END_TEST

/* --- Many buffers --------------------------------------------------------- */

/* Thousands, most of them small, some none at all, a few large; each rank has
 * them elsewhere. */
static void thousands(struct coll_group *g, int rank, void *arg)
{
    enum { N = 5000 };
    static const size_t counts_of[] = {1, 0, 3, 17, 2, 64, 0, 5};
    size_t n = (size_t)g->size;
    size_t *counts = malloc(N * sizeof(*counts));
    const void **send = malloc(N * sizeof(*send));
    void **recv = malloc(N * sizeof(*recv));
    size_t sum = 0;
    int16_t *x, *y;
    size_t at = 0;

    (void)arg;
    for (size_t k = 0; k < N; k++) {
        counts[k] = k % 1700 == 1699 ? 40000 : counts_of[k % 8];
        sum += counts[k];
    }
    x = malloc(sum * n * sizeof(*x));
    y = malloc(sum * n * sizeof(*y));
    for (size_t i = 0; i < sum * n; i++)
        x[i] = (int16_t)(i % 97 + (size_t)rank);
    for (size_t k = 0; k < N; k++) {
        send[k] = counts[k] == 0 ? NULL : x + at;
        recv[k] = counts[k] == 0 ? NULL : y + at;
        at += counts[k] * n;
    }
    EXPECT_OK(coll_all_reduce_coalesced(
        send, recv, counts, N, COLL_INT16, COLL_MAX, g));
    for (size_t k = 0; k < N; k++)
        for (size_t i = 0; i < counts[k]; i++)
            EXPECT(
                ((int16_t *)recv[k])[i] ==
                    (int16_t)((size_t)((int16_t *)recv[k] - y + (long)i) % 97 +
                              n - 1),
                "all_reduce: buffer %zu, element %zu", k, i);
    EXPECT_OK(coll_all_gather_coalesced(send, recv, counts, N, COLL_INT16, g));
    for (size_t k = 0; k < N; k++)
        for (size_t i = 0; i < counts[k] * n; i++)
            EXPECT(((int16_t *)recv[k])[i] ==
                       (int16_t)((size_t)((int16_t *)recv[k] - y +
                                          (long)(i % counts[k])) %
                                     97 +
                                 i / counts[k]),
                "all_gather: buffer %zu, element %zu", k, i);
    EXPECT_OK(coll_reduce_scatter_coalesced(
        send, recv, counts, N, COLL_INT16, COLL_MIN, g));
    for (size_t k = 0; k < N; k++)
        for (size_t i = 0; i < counts[k]; i++)
            EXPECT(
                ((int16_t *)recv[k])[i] ==
                    (int16_t)((size_t)((int16_t *)recv[k] - y +
                                       (long)((size_t)rank * counts[k] + i)) %
                              97),
                "reduce_scatter: buffer %zu, element %zu", k, i);
    free(counts);
    free(send);
    free(recv);
    free(x);
    free(y);
}

START_TEST(thousands_of_buffers_travel_together)
{
    on(sizes[_i], thousands, NULL);
}
END_TEST

/* No buffers, and no elements in one: both are a step, and not the same. */
static void none(struct coll_group *g, int rank, void *arg)
{
    size_t zero = 0;
    const void *send = NULL;
    void *recv = NULL;
    coll_work_t *work = NULL;

    (void)arg;
    for (int dtype = 0; dtype <= COLL_BOOL; dtype++) {
        uint64_t seq = g->seq;

        EXPECT_OK(coll_all_reduce_coalesced(
            NULL, NULL, NULL, 0, (coll_dtype_t)dtype, COLL_MAX, g));
        EXPECT_OK(coll_all_gather_coalesced(
            NULL, NULL, NULL, 0, (coll_dtype_t)dtype, g));
        EXPECT_OK(coll_reduce_scatter_coalesced_async(
            NULL, NULL, NULL, 0, (coll_dtype_t)dtype, COLL_MAX, g, &work));
        EXPECT_OK(coll_work_wait(work, 0));
        coll_work_free(work);
        EXPECT_OK(coll_all_reduce_coalesced(
            &send, &recv, &zero, 1, (coll_dtype_t)dtype, COLL_MAX, g));
        EXPECT(g->seq == seq + 4, "steps");
    }
    if (g->size > 1)
        EXPECT_FAILS(coll_all_reduce_coalesced(&send, &recv, &zero,
                         rank == 0 ? 1 : 0, COLL_INT32, COLL_MAX, g),
            COLL_ERR_MISMATCH, "all_reduce_coalesced");
}

START_TEST(no_buffers_are_a_step)
{
    on(sizes[_i], none, NULL);
}
END_TEST

/* In place, packed and not. */
static void many_in_place(struct coll_group *g, int rank, void *arg)
{
    enum { N = 4 };
    size_t n = (size_t)g->size;
    const size_t counts[N] = {3, 100000, 1, 0};
    int32_t *x[N];
    const void *own[N];
    void *all[N];

    (void)arg;
    for (int k = 0; k < N; k++) {
        x[k] = malloc((counts[k] * n + 1) * sizeof(int32_t));
        for (size_t i = 0; i < counts[k] * n; i++)
            x[k][i] = i / (counts[k] == 0 ? 1 : counts[k]) == (size_t)rank
                          ? rank * 10 + (int)(i % 7)
                          : -1;
        all[k] = x[k];
        own[k] = x[k] + (size_t)rank * counts[k];
    }
    EXPECT_OK(coll_all_gather_coalesced(own, all, counts, N, COLL_INT32, g));
    for (int k = 0; k < N; k++)
        for (size_t i = 0; i < counts[k] * n; i++)
            EXPECT(x[k][i] == (int)(i / counts[k]) * 10 + (int)(i % 7),
                "all_gather: buffer %d, element %zu", k, i);
    EXPECT_OK(coll_reduce_scatter_coalesced((const void *const *)all,
        (void *const *)own, counts, N, COLL_INT32, COLL_SUM, g));
    for (int k = 0; k < N; k++)
        for (size_t i = 0; i < counts[k]; i++) {
            size_t at = (size_t)rank * counts[k] + i;

            EXPECT(x[k][at] == g->size * (rank * 10 + (int)(at % 7)),
                "reduce_scatter: buffer %d, element %zu", k, i);
        }
    for (int k = 0; k < N; k++)
        free(x[k]);
}

START_TEST(many_buffers_may_be_in_place)
{
    on(sizes[_i], many_in_place, NULL);
}
END_TEST

/* --- Objects -------------------------------------------------------------- */

static char *object(size_t len, int rank)
{
    char *data = malloc(len + 1);

    for (size_t i = 0; i < len; i++)
        data[i] = (char)(i * 31 + (size_t)rank);
    return data;
}

static bool is_object(const char *data, size_t len, int rank)
{
    for (size_t i = 0; i < len; i++)
        if (data[i] != (char)(i * 31 + (size_t)rank))
            return false;
    return true;
}

static void objects(struct coll_group *g, int rank, void *arg)
{
    static const size_t lens[] = {0, 1, 5, 10 << 20};

    (void)arg;
    /* The large one takes its time. */
    for (int i = 0; i < (g->size == 2 ? 4 : 3); i++) {
        int root = i % g->size;
        char *mine = object(lens[i], rank);
        void *data = rank == root ? mine : (void *)&lens;
        size_t len = rank == root ? lens[i] : 77;
        size_t got[8];
        void *all = NULL;
        size_t at = 0;

        EXPECT_OK(coll_broadcast_object(&data, &len, root, g));
        EXPECT(len == lens[i], "len is %zu", len);
        if (rank == root)
            EXPECT(data == mine, "root's own was replaced");
        else if (len == 0)
            EXPECT(data == NULL, "not NULL");
        if (len > 0)
            EXPECT(is_object(data, len, root), "of %zu bytes", len);
        if (rank != root)
            free(data);
        /* Of all: the length differs, and one has nothing. */
        len = lens[i] / (size_t)(rank + 1);
        if (rank == root)
            len = 0;
        EXPECT_OK(
            coll_all_gather_object(len == 0 ? NULL : mine, len, &all, got, g));
        EXPECT(all != NULL, "there is a block");
        for (int r = 0; r < g->size; r++) {
            size_t want = r == root ? 0 : lens[i] / (size_t)(r + 1);

            EXPECT(got[r] == want, "rank %d has %zu bytes", r, got[r]);
            if (got[r] != want)
                break;
            EXPECT(is_object((char *)all + at, got[r], r), "of rank %d", r);
            at += got[r];
        }
        free(all);
        free(mine);
    }
}

START_TEST(objects_of_any_length_arrive)
{
    on(sizes[_i], objects, NULL);
}
END_TEST

static void bad_objects(struct coll_group *g, int rank, void *arg)
{
    void *data = NULL;
    size_t len = 3;
    size_t lens[2];

    (void)arg;
#define BAD(call, words) EXPECT_FAILS(call, COLL_ERR_ARGUMENT, words)
    BAD(coll_broadcast_object(NULL, &len, 0, g), "data is NULL");
    BAD(coll_broadcast_object(&data, NULL, 0, g), "len is NULL");
    BAD(coll_broadcast_object(&data, &len, rank, g), "*data is NULL");
    BAD(coll_broadcast_object(&data, &len, 2, g),
        "coll_broadcast_object: root 2");
    BAD(coll_broadcast_object(&data, &len, -1, g),
        "coll_broadcast_object: root -1");
    BAD(coll_all_gather_object("x", 1, NULL, lens, g), "all is NULL");
    BAD(coll_all_gather_object("x", 1, &data, NULL, g), "lens is NULL");
    BAD(coll_all_gather_object(NULL, 1, &data, lens, g), "data is NULL");
    EXPECT(data == NULL && len == 3, "something has changed");
    EXPECT_OK(coll_barrier(g));
    /* Different roots are seen before anything is copied. */
    data = "abc";
    EXPECT_FAILS(coll_broadcast_object(&data, &len, rank, g), COLL_ERR_MISMATCH,
        "root=1");
}

START_TEST(bad_objects_are_refused)
{
    on(2, bad_objects, NULL);
}
END_TEST

/* What calls are made of is not what they are called. */
static void named_as_called(struct coll_group *g, int rank, void *arg)
{
    size_t lens[2];
    void *data = NULL;

    (void)arg;
    EXPECT_FAILS(rank == 0 ? coll_all_gather_object("x", 1, &data, lens, g)
                           : coll_barrier(g),
        COLL_ERR_MISMATCH,
        "rank 0 called all_gather_object(), rank 1 called barrier()");
}

static void factor_or_none(struct coll_group *g, int rank, void *arg)
{
    coll_op_t op = COLL_SUM;
    float x = 1;

    (void)arg;
    if (rank == 1)
        EXPECT_OK(coll_op_premul_sum(&op, 1));
    EXPECT_FAILS(coll_all_reduce(&x, &x, 1, COLL_FLOAT32, op, g),
        COLL_ERR_MISMATCH, "premul_sum");
    if (rank == 1)
        EXPECT_OK(coll_op_free(op));
}

START_TEST(calls_that_differ_have_their_names)
{
    on(2, named_as_called, NULL);
    on(2, factor_or_none, NULL);
}
END_TEST

/* Told before the length has gone to the others. */
static void endless_objects(struct coll_group *g, int rank, void *arg)
{
    size_t len = SIZE_MAX;
    size_t lens[2];
    void *data = &len;

    (void)arg;
    if (rank == 0) {
        EXPECT_FAILS(coll_broadcast_object(&data, &len, 0, g),
            COLL_ERR_ARGUMENT, "more than the address space");
        EXPECT_FAILS(coll_all_gather_object(data, len, &data, lens, g),
            COLL_ERR_ARGUMENT, "more than the address space");
    }
    EXPECT_OK(coll_barrier(g));
}

START_TEST(objects_of_impossible_length_are_refused)
{
    on(2, endless_objects, NULL);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("many");

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(
        tc, averages_are_the_sum_divided_by_the_ranks, 0, NUMBERS);
    tcase_add_test(tc, there_is_no_average_of_bool);
    tcase_add_loop_test(tc, factors_are_applied_before_the_sum, 0, SIZES);
    tcase_add_test(tc, a_factor_may_be_freed_under_way);
    tcase_add_test(tc, odd_factors_end_nothing);
    tcase_add_test(tc, there_are_1024_factors);
    tcase_add_loop_test(tc, thousands_of_buffers_travel_together, 0, SIZES);
    tcase_add_loop_test(tc, no_buffers_are_a_step, 0, SIZES);
    tcase_add_loop_test(tc, many_buffers_may_be_in_place, 0, SIZES);
    tcase_add_loop_test(tc, objects_of_any_length_arrive, 0, SIZES);
    tcase_add_test(tc, bad_objects_are_refused);
    tcase_add_test(tc, objects_of_impossible_length_are_refused);
    tcase_add_test(tc, calls_that_differ_have_their_names);
    return unit_run("coll_many", tc);
}
