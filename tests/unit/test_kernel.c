/* Reduction kernels against a slow reference, and their documented rules. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/unit.h"
#include "worker/kernel.h"

enum { MAX_SRCS = 5, MAX_COUNT = 5000 };

static const int counts[] = {
    0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 1000, 2048, 2049, 4097, MAX_COUNT};

#define COUNT_CASES ((int)(sizeof(counts) / sizeof(counts[0])))

/* Small integers, so that floating point is exact, too. */
static int value_of(int src, int i, coll_op_t op)
{
    if (op == COLL_PRODUCT)
        return (i * 7 + src * 3) % 5 - 2;
    return (i * 37 + src * 101) % 2001 - 1000;
}

static void put(void *at, coll_dtype_t dtype, double value)
{
    float f = (float)value;
    int32_t i32 = (int32_t)value;
    int64_t i64 = (int64_t)value;

    switch (dtype) {
    case COLL_FLOAT32:
        memcpy(at, &f, sizeof(f));
        return;
    case COLL_FLOAT64:
        memcpy(at, &value, sizeof(value));
        return;
    case COLL_INT32:
        memcpy(at, &i32, sizeof(i32));
        return;
    case COLL_INT64:
        memcpy(at, &i64, sizeof(i64));
        return;
    }
}

static double reference(int nsrcs, int i, coll_dtype_t dtype, coll_op_t op)
{
    double acc = value_of(0, i, op);

    for (int s = 1; s < nsrcs; s++) {
        double v = value_of(s, i, op);

        switch (op) {
        case COLL_SUM:
        case COLL_AVG:
            acc += v;
            break;
        case COLL_MIN:
            acc = v < acc ? v : acc;
            break;
        case COLL_MAX:
            acc = v > acc ? v : acc;
            break;
        case COLL_PRODUCT:
            acc *= v;
            break;
        }
    }
    if (op == COLL_AVG)
        acc /= nsrcs;
    if (op == COLL_AVG && (dtype == COLL_INT32 || dtype == COLL_INT64))
        acc = trunc(acc);
    return acc;
}

/* One (type, operation) per run: every source count, count, offset, and the
 * destination apart from the sources or one of the first two. */
START_TEST(kernels_agree_with_the_reference)
{
    coll_dtype_t dtype = (coll_dtype_t)(_i / (COLL_PRODUCT + 1));
    coll_op_t op = (coll_op_t)(_i % (COLL_PRODUCT + 1));
    size_t size = coll_dtype_size(dtype);
    char *memory[MAX_SRCS + 1];

    for (int s = 0; s <= MAX_SRCS; s++) {
        memory[s] = malloc(MAX_COUNT * size + 16);
        ck_assert_ptr_nonnull(memory[s]);
    }
    for (int c = 0; c < 3 * COUNT_CASES * MAX_SRCS; c++) {
        int count = counts[c % COUNT_CASES];
        int nsrcs = 1 + c / COUNT_CASES % MAX_SRCS;
        int place = c / COUNT_CASES / MAX_SRCS; /* 0, 1: in place; 2: apart */
        const void *srcs[MAX_SRCS];
        char *dst;

        for (int s = 0; s < nsrcs; s++) {
            char *at = memory[s] + (s * 3 + c) % 8;

            for (int i = 0; i < count; i++)
                put(at + (size_t)i * size, dtype, value_of(s, i, op));
            srcs[s] = at;
        }
        dst = place < 2 && place < nsrcs ? (char *)srcs[place]
                                         : memory[MAX_SRCS] + c % 7;
        kernel_reduce(dst, srcs, nsrcs, (size_t)count, dtype, op);
        for (int i = 0; i < count; i++) {
            char want[8];

            put(want, dtype, reference(nsrcs, i, dtype, op));
            ck_assert_msg(memcmp(want, dst + (size_t)i * size, size) == 0,
                "%s %s of %d at %d of %d, place %d", coll_dtype_name(dtype),
                coll_op_name(op), nsrcs, i, count, place);
        }
    }
    for (int s = 0; s <= MAX_SRCS; s++)
        free(memory[s]);
}
END_TEST

START_TEST(integers_wrap)
{
    int32_t a[] = {INT32_MAX, INT32_MIN, 65536, -3};
    int32_t b[] = {1, -1, 65536, 5};
    int64_t c[] = {INT64_MAX, INT64_MIN, (int64_t)1 << 32, -3};
    int64_t d[] = {1, -1, (int64_t)1 << 32, 5};
    const void *ab[] = {a, b};
    const void *cd[] = {c, d};
    int32_t r32[4];
    int64_t r64[4];

    kernel_reduce(r32, ab, 2, 4, COLL_INT32, COLL_SUM);
    ck_assert_int_eq(r32[0], INT32_MIN);
    ck_assert_int_eq(r32[1], INT32_MAX);
    kernel_reduce(r32, ab, 2, 4, COLL_INT32, COLL_PRODUCT);
    ck_assert_int_eq(r32[1], INT32_MIN);
    ck_assert_int_eq(r32[2], 0);
    ck_assert_int_eq(r32[3], -15);
    kernel_reduce(r64, cd, 2, 4, COLL_INT64, COLL_SUM);
    ck_assert_int_eq(r64[0], INT64_MIN);
    ck_assert_int_eq(r64[1], INT64_MAX);
    kernel_reduce(r64, cd, 2, 4, COLL_INT64, COLL_PRODUCT);
    ck_assert_int_eq(r64[1], INT64_MIN);
    ck_assert_int_eq(r64[2], 0);
    ck_assert_int_eq(r64[3], -15);
}
END_TEST

START_TEST(integer_average_truncates_toward_zero)
{
    int32_t a[] = {7, -7, 1};
    int32_t b[] = {8, -8, -2};
    const void *srcs[] = {a, b};
    int32_t r[3];

    kernel_reduce(r, srcs, 2, 3, COLL_INT32, COLL_AVG);
    ck_assert_int_eq(r[0], 7);
    ck_assert_int_eq(r[1], -7);
    ck_assert_int_eq(r[2], 0);
}
END_TEST

START_TEST(average_of_one_source_is_the_source)
{
    float in[] = {1.5f, -0.0f, 3e38f};
    const void *srcs[] = {in};
    float out[3];

    kernel_reduce(out, srcs, 1, 3, COLL_FLOAT32, COLL_AVG);
    ck_assert_int_eq(memcmp(in, out, sizeof(in)), 0);
}
END_TEST

/* Long enough for the vector part, the NaN at every position, on every
 * source. */
START_TEST(nan_of_any_source_is_the_result)
{
    enum { N = 11 };

    for (int which = 0; which < 3; which++) {
        for (int at = 0; at < N; at++) {
            float f[3][N];
            double d[3][N];
            const void *fs[] = {f[0], f[1], f[2]};
            const void *ds[] = {d[0], d[1], d[2]};
            float rf[N];
            double rd[N];

            for (int s = 0; s < 3; s++) {
                for (int i = 0; i < N; i++) {
                    f[s][i] = (float)(s * 10 - i);
                    d[s][i] = f[s][i];
                }
            }
            f[which][at] = nanf("");
            d[which][at] = nan("");
            for (coll_op_t op = COLL_MIN; op <= COLL_MAX; op++) {
                kernel_reduce(rf, fs, 3, N, COLL_FLOAT32, op);
                kernel_reduce(rd, ds, 3, N, COLL_FLOAT64, op);
                for (int i = 0; i < N; i++) {
                    ck_assert_int_eq(!!isnan(rf[i]), i == at);
                    ck_assert_int_eq(!!isnan(rd[i]), i == at);
                }
            }
        }
    }
}
END_TEST

/* Ranks have buffers at different addresses; their results must agree to
 * the last bit, also where rounding and NaN payloads come in. */
START_TEST(bits_do_not_depend_on_the_address)
{
    enum { N = 1003 };
    float want[N];
    char raw[3][N * sizeof(float) + 16];
    char out[N * sizeof(float) + 16];

    for (int shift = 0; shift < 16; shift++) {
        const void *srcs[3];

        for (int s = 0; s < 3; s++) {
            srcs[s] = raw[s] + (shift * (s + 1)) % 16;
            for (int i = 0; i < N; i++) {
                uint32_t bits = (uint32_t)(i * 3 + s) * 2654435761u;
                memcpy((char *)srcs[s] + (size_t)i * 4, &bits, 4);
            }
        }
        kernel_reduce(out + shift, srcs, 3, N, COLL_FLOAT32, COLL_SUM);
        if (shift == 0)
            memcpy(want, out, sizeof(want));
        ck_assert_int_eq(memcmp(want, out + shift, sizeof(want)), 0);
    }
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("kernels");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, kernels_agree_with_the_reference, 0,
        (COLL_INT64 + 1) * (COLL_PRODUCT + 1));
    tcase_add_test(tc, integers_wrap);
    tcase_add_test(tc, integer_average_truncates_toward_zero);
    tcase_add_test(tc, average_of_one_source_is_the_source);
    tcase_add_test(tc, nan_of_any_source_is_the_result);
    tcase_add_test(tc, bits_do_not_depend_on_the_address);
    return unit_run("kernel", tc);
}
