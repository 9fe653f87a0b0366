/*
 * Reduction kernels against a slow reference, bit by bit, with each set of
 * kernels that the machine can run; and their documented rules.
 */
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/unit.h"
#include "worker/kernel.h"

enum {
    DTYPES = COLL_BOOL + 1,
    OPS = COLL_BXOR + 1,
    MAX_SRCS = 8,
    MAX_COUNT = 8193,
    UNTOUCHED = 0x5a,
};

static uint64_t random_state = 88172645463325252u;

static uint64_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* --- The reference: elements are bits in an uint64_t --------------------- */

static bool is_float(coll_dtype_t dtype)
{
    return dtype <= COLL_FLOAT64 ||
           (dtype >= COLL_FLOAT16 && dtype <= COLL_FLOAT8_E5M2);
}

static bool is_signed(coll_dtype_t dtype)
{
    return dtype == COLL_INT8 || dtype == COLL_INT16 || dtype == COLL_INT32 ||
           dtype == COLL_INT64;
}

/* The bits of a type's exponent and mantissa, and the only NaN that a kernel
 * makes. */
static const struct format {
    int exponent, mantissa;
    uint64_t nan;
} formats[] = {
    [COLL_FLOAT32] = {8, 23, 0x7fc00000},
    [COLL_FLOAT64] = {11, 52, 0x7ff8000000000000},
    [COLL_FLOAT16] = {5, 10, 0x7e00},
    [COLL_BFLOAT16] = {8, 7, 0x7fc0},
    [COLL_FLOAT8_E4M3] = {4, 3, 0x7f},
    [COLL_FLOAT8_E5M2] = {5, 2, 0x7f},
};

static uint64_t mask_of(int bits)
{
    return bits == 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
}

static double float_value(uint64_t bits, coll_dtype_t dtype)
{
    const struct format *f = &formats[dtype];
    int exponent = (int)(bits >> f->mantissa & mask_of(f->exponent));
    uint64_t mantissa = bits & mask_of(f->mantissa);
    int bias = (1 << (f->exponent - 1)) - 1;
    bool is_negative = bits >> (f->exponent + f->mantissa) & 1;
    double value;

    if (dtype == COLL_FLOAT8_E4M3 && (bits & 0x7f) == 0x7f)
        value = (double)NAN;
    else if (dtype != COLL_FLOAT8_E4M3 && exponent == (int)mask_of(f->exponent))
        value = mantissa != 0 ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        value = ldexp((double)mantissa, 1 - bias - f->mantissa);
    else
        value = ldexp((double)(mantissa | (uint64_t)1 << f->mantissa),
            exponent - bias - f->mantissa);
    return is_negative ? -value : value;
}

/* The code whose value is nearest, of two as near the even one. The code
 * after the highest finite one stands for infinity, or NaN in E4M3. */
static uint64_t nearest_code(double value, coll_dtype_t dtype)
{
    const struct format *f = &formats[dtype];
    bool has_infinity = dtype != COLL_FLOAT8_E4M3;
    uint64_t beyond =
        has_infinity ? mask_of(f->exponent) << f->mantissa : f->nan;
    uint64_t sign =
        signbit(value) ? (uint64_t)1 << (f->exponent + f->mantissa) : 0;
    double size = fabs(value);
    uint64_t low = 0, high = beyond;
    double below, above;

    if (isnan(value))
        return f->nan;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;

        if (float_value(middle, dtype) <= size)
            low = middle;
        else
            high = middle;
    }
    below = float_value(low, dtype);
    above = high < beyond ? float_value(high, dtype)
                          : 2 * below - float_value(low - 1, dtype);
    if (size - below > above - size ||
        (size - below == above - size && (low & 1) != 0))
        low = high;
    return low == f->nan ? f->nan : low | sign;
}

static uint64_t float_bits(double value, coll_dtype_t dtype)
{
    float single = (float)value;
    uint32_t bits32;
    uint64_t bits64;

    if (isnan(value))
        return formats[dtype].nan;
    switch (dtype) {
    case COLL_FLOAT32:
        memcpy(&bits32, &single, sizeof(bits32));
        return bits32;
    case COLL_FLOAT64:
        memcpy(&bits64, &value, sizeof(bits64));
        return bits64;
    default:
        return nearest_code(value, dtype);
    }
}

/* Each step is rounded as the documentation says. The sum, product and
 * quotient of two floats, rounded to double and then to float, are what float
 * arithmetic yields: double has more than twice the bits. */
static double rounded(double value, coll_dtype_t dtype)
{
    return dtype == COLL_FLOAT64 ? value : (double)(float)value;
}

static double float_step(double a, double b, coll_dtype_t dtype, coll_op_t op)
{
    switch (op) {
    case COLL_MIN:
        return isnan(a) || a < b ? a : b;
    case COLL_MAX:
        return isnan(a) || a > b ? a : b;
    case COLL_PRODUCT:
        return rounded(a * b, dtype);
    default:
        return rounded(a + b, dtype);
    }
}

static uint64_t integer_step(
    uint64_t a, uint64_t b, coll_dtype_t dtype, coll_op_t op)
{
    bool is_less = is_signed(dtype) ? (int64_t)a < (int64_t)b : a < b;

    switch (op) {
    case COLL_MIN:
        return is_less ? a : b;
    case COLL_MAX:
        return is_less ? b : a;
    case COLL_PRODUCT:
        return a * b;
    case COLL_BAND:
        return a & b;
    case COLL_BOR:
        return a | b;
    case COLL_BXOR:
        return a ^ b;
    default:
        return a + b;
    }
}

/* The integer of a type in 64 bits, with its sign if it has one. */
static uint64_t extended(uint64_t bits, coll_dtype_t dtype)
{
    int width = (int)coll_dtype_size(dtype) * 8;

    bits &= mask_of(width);
    if (is_signed(dtype) && bits >> (width - 1) != 0)
        bits |= ~mask_of(width);
    return bits;
}

static uint64_t integer_quotient(uint64_t bits, coll_dtype_t dtype, int divisor)
{
    bits = extended(bits, dtype);
    return is_signed(dtype) ? (uint64_t)((int64_t)bits / divisor)
                            : bits / (uint64_t)divisor;
}

static uint64_t reference(
    const uint64_t *elements, int nsrcs, coll_dtype_t dtype, coll_op_t op)
{
    uint64_t bits;

    if (nsrcs == 1 && dtype != COLL_BOOL)
        return elements[0];
    if (is_float(dtype)) {
        double value = float_value(elements[0], dtype);

        for (int s = 1; s < nsrcs; s++)
            value =
                float_step(value, float_value(elements[s], dtype), dtype, op);
        if (op == COLL_AVG)
            value = rounded(value / nsrcs, dtype);
        return float_bits(value, dtype);
    }
    if (dtype == COLL_BOOL) {
        int ones = 0;

        for (int s = 0; s < nsrcs; s++)
            ones += elements[s] != 0;
        if (op == COLL_BXOR)
            return ones % 2;
        if (op == COLL_SUM || op == COLL_MAX || op == COLL_BOR)
            return ones > 0;
        return ones == nsrcs;
    }
    bits = extended(elements[0], dtype);
    for (int s = 1; s < nsrcs; s++)
        bits = integer_step(bits, extended(elements[s], dtype), dtype, op);
    if (op == COLL_AVG)
        bits = integer_quotient(bits, dtype, nsrcs);
    return bits & mask_of((int)coll_dtype_size(dtype) * 8);
}

/* --- Buffers ------------------------------------------------------------- */

static uint64_t get(const char *buffer, size_t i, coll_dtype_t dtype)
{
    size_t size = coll_dtype_size(dtype);
    uint64_t bits = 0;

    for (size_t b = 0; b < size; b++)
        bits |= (uint64_t)(unsigned char)buffer[i * size + b] << (8 * b);
    return bits;
}

static void put(char *buffer, size_t i, coll_dtype_t dtype, uint64_t bits)
{
    size_t size = coll_dtype_size(dtype);

    for (size_t b = 0; b < size; b++)
        buffer[i * size + b] = (char)(bits >> (8 * b));
}

/* Of any bits, near one, or special. */
static uint64_t random_element(coll_dtype_t dtype)
{
    int width = (int)coll_dtype_size(dtype) * 8;
    uint64_t bits = random_bits();

    if (dtype == COLL_BOOL)
        return random_bits() % 3 != 0 ? bits % 2 : bits & 0xff;
    if (!is_float(dtype))
        return (random_bits() % 4 != 0 ? bits : bits % 8 - 4) & mask_of(width);
    switch (random_bits() % 16) {
    case 0: { /* A subnormal, or zero. */
        uint64_t sign = (uint64_t)1 << (width - 1);

        return bits & (sign | mask_of(formats[dtype].mantissa));
    }
    case 1: /* Infinities and numbers near them. */
        return float_bits(
                   random_bits() % 2 != 0 ? HUGE_VAL : -HUGE_VAL, dtype) -
               random_bits() % 3;
    case 2:
    case 3:
        return bits & mask_of(width);
    default:
        return float_bits(ldexp((double)(int64_t)bits, -62), dtype);
    }
}

static char *new_buffer(void)
{
    char *buffer = malloc(MAX_COUNT * sizeof(uint64_t) + 64);

    ck_assert_ptr_nonnull(buffer);
    return buffer;
}

struct buffers {
    char *src[MAX_SRCS], *dst, *want, *saved;
};

static void buffers_init(struct buffers *b)
{
    for (int s = 0; s < MAX_SRCS; s++)
        b->src[s] = new_buffer();
    b->dst = new_buffer();
    b->want = new_buffer();
    b->saved = new_buffer();
}

static void buffers_fini(struct buffers *b)
{
    for (int s = 0; s < MAX_SRCS; s++)
        free(b->src[s]);
    free(b->dst);
    free(b->want);
    free(b->saved);
}

/* One assertion for all elements: each costs a system call. */
static void check_result(const char *got, const char *want, int nsrcs,
    size_t count, coll_dtype_t dtype, coll_op_t op, const char *set)
{
    size_t i = 0;

    while (i < count && get(got, i, dtype) == get(want, i, dtype))
        i++;
    if (i < count)
        ck_abort_msg("%s %s of %d, element %zu of %zu, %s: %#llx instead of "
                     "%#llx",
            coll_dtype_name(dtype), coll_op_name(op), nsrcs, i, count, set,
            (unsigned long long)get(got, i, dtype),
            (unsigned long long)get(want, i, dtype));
}

static bool is_untouched(const char *from, const char *to)
{
    while (from < to && *from == UNTOUCHED)
        from++;
    return from == to;
}

/* Compares the result of every set of kernels, apart from the sources and in
 * the place of the first two, to that of the reference. */
static void check_reduce(struct buffers *b, const void *const *srcs, int nsrcs,
    size_t count, coll_dtype_t dtype, coll_op_t op)
{
    size_t bytes = count * coll_dtype_size(dtype);
    const char *set;

    for (size_t i = 0; i < count; i++) {
        uint64_t elements[MAX_SRCS];

        for (int s = 0; s < nsrcs; s++)
            elements[s] = get(srcs[s], i, dtype);
        put(b->want, i, dtype, reference(elements, nsrcs, dtype, op));
    }
    for (int k = 0; (set = kernel_use_set(k)) != NULL; k++) {
        char *dst = b->dst + (count + (size_t)nsrcs) % 8;

        memset(b->dst, UNTOUCHED, bytes + 16);
        kernel_reduce(dst, srcs, nsrcs, count, dtype, op);
        check_result(dst, b->want, nsrcs, count, dtype, op, set);
        ck_assert_msg(is_untouched(b->dst, dst) &&
                          is_untouched(dst + bytes, b->dst + bytes + 16),
            "%s %s of %d, %zu elements, %s writes beyond",
            coll_dtype_name(dtype), coll_op_name(op), nsrcs, count, set);
        for (int s = 0; s < 2 && s < nsrcs; s++) {
            char *own = (char *)srcs[s];

            memcpy(b->saved, own, bytes);
            kernel_reduce(own, srcs, nsrcs, count, dtype, op);
            check_result(own, b->want, nsrcs, count, dtype, op, set);
            memcpy(own, b->saved, bytes);
        }
    }
}

/* --- Tests --------------------------------------------------------------- */

static const int source_counts[] = {1, 2, 3, 5, 8};
static const size_t counts[] = {0, 1, 7, 8, 31, 64, 1000, MAX_COUNT};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

START_TEST(every_set_agrees_with_the_reference)
{
    coll_dtype_t dtype = (coll_dtype_t)(_i / OPS);
    coll_op_t op = (coll_op_t)(_i % OPS);
    struct buffers b;

    if (!kernel_supports(dtype, op))
        return;
    buffers_init(&b);
    for (size_t n = 0; n < LENGTH(source_counts); n++) {
        for (size_t c = 0; c < LENGTH(counts); c++) {
            int nsrcs = source_counts[n];
            size_t shift = random_bits() % 8;
            const void *srcs[MAX_SRCS];

            for (int s = 0; s < nsrcs; s++) {
                char *at = b.src[s] + (shift + (size_t)s * 3) % 8;

                for (size_t i = 0; i < counts[c]; i++)
                    put(at, i, dtype, random_element(dtype));
                srcs[s] = at;
            }
            check_reduce(&b, srcs, nsrcs, counts[c], dtype, op);
        }
    }
    buffers_fini(&b);
}
END_TEST

static const coll_op_t float_ops[] = {
    COLL_SUM, COLL_AVG, COLL_MIN, COLL_MAX, COLL_PRODUCT};

/* All pairs of elements of 8 bits. */
START_TEST(floats_of_8_bits_are_right_for_all_pairs)
{
    coll_dtype_t dtype = _i == 0 ? COLL_FLOAT8_E4M3 : COLL_FLOAT8_E5M2;
    struct buffers b;

    buffers_init(&b);
    for (size_t part = 0; part < 16; part++) {
        const void *srcs[] = {b.src[0], b.src[1]};

        for (size_t i = 0; i < 4096; i++) {
            put(b.src[0], i, dtype, part * 16 + i / 256);
            put(b.src[1], i, dtype, i % 256);
        }
        for (size_t o = 0; o < LENGTH(float_ops); o++)
            check_reduce(&b, srcs, 2, 4096, dtype, float_ops[o]);
    }
    buffers_fini(&b);
}
END_TEST

/* All elements of 16 bits, each with itself, with its negative, with zero, one
 * and two, and with others. */
START_TEST(floats_of_16_bits_are_right_for_all_elements)
{
    coll_dtype_t dtype = _i == 0 ? COLL_FLOAT16 : COLL_BFLOAT16;
    struct buffers b;

    buffers_init(&b);
    for (size_t part = 0; part < 16 * 8; part += UNIT_IS_SANITIZED ? 3 : 1) {
        const void *srcs[] = {b.src[0], b.src[1]};

        for (size_t i = 0; i < 4096; i++) {
            uint64_t element = part / 8 * 4096 + i;
            const uint64_t partners[] = {element, element ^ 0x8000, 0x8000,
                float_bits(1, dtype), float_bits(-2, dtype),
                random_bits() & 0xffff, random_element(dtype),
                element + (random_bits() % 64 << 8)};

            put(b.src[0], i, dtype, element);
            put(b.src[1], i, dtype, partners[part % 8]);
        }
        for (size_t o = 0; o < LENGTH(float_ops); o++)
            check_reduce(&b, srcs, 2, 4096, dtype, float_ops[o]);
    }
    buffers_fini(&b);
}
END_TEST

/* Which sum a float32 rounds to: each code's own value, the middles to the
 * next ones, and their neighbours. */
START_TEST(sums_round_to_the_nearest_and_ties_to_the_even)
{
    static const struct {
        coll_dtype_t dtype;
        uint64_t a, b, c, sum;
    } cases[] = {
        /* 1 + 1/2048 is a tie; the third source decides. */
        {COLL_FLOAT16, 0x3c00, 0x1000, 0x0000, 0x3c00},
        {COLL_FLOAT16, 0x3c01, 0x1000, 0x0000, 0x3c02},
        {COLL_FLOAT16, 0x3c00, 0x1000, 0x0400, 0x3c01},
        {COLL_FLOAT16, 0x3c01, 0x1000, 0x8400, 0x3c01},
        /* 65504 + 16 is the least that becomes infinite. */
        {COLL_FLOAT16, 0x7bff, 0x4c00, 0x0000, 0x7c00},
        {COLL_FLOAT16, 0xfbff, 0xcc00, 0x0000, 0xfc00},
        {COLL_FLOAT16, 0x7bff, 0x4bff, 0x0000, 0x7bff},
        /* 65504 + 65504 - 65504: what is between is not rounded. */
        {COLL_FLOAT16, 0x7bff, 0x7bff, 0xfbff, 0x7bff},
        {COLL_BFLOAT16, 0x3f80, 0x3b80, 0x0000, 0x3f80},
        {COLL_BFLOAT16, 0x3f81, 0x3b80, 0x0000, 0x3f82},
        {COLL_BFLOAT16, 0x7f7f, 0x7b00, 0x0000, 0x7f80},
        {COLL_BFLOAT16, 0x0001, 0x0001, 0x0001, 0x0003},
        /* 448 + 16 is a tie, and 448 the even one. */
        {COLL_FLOAT8_E4M3, 0x7e, 0x58, 0x00, 0x7e},
        {COLL_FLOAT8_E4M3, 0x7e, 0x58, 0x01, 0x7f},
        {COLL_FLOAT8_E4M3, 0xfe, 0xfe, 0x00, 0x7f},
        {COLL_FLOAT8_E4M3, 0x01, 0x01, 0x01, 0x03},
        /* 57344 + 4096 is a tie, and 57344 the odd one. */
        {COLL_FLOAT8_E5M2, 0x7b, 0x6b, 0x00, 0x7b},
        {COLL_FLOAT8_E5M2, 0x7b, 0x6c, 0x00, 0x7c},
        {COLL_FLOAT8_E5M2, 0x7c, 0xfc, 0x00, 0x7f},
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        char a[8] = {0}, b[8] = {0}, c[8] = {0}, sum[8];
        const void *srcs[] = {a, b, c};
        coll_dtype_t dtype = cases[i].dtype;

        put(a, 0, dtype, cases[i].a);
        put(b, 0, dtype, cases[i].b);
        put(c, 0, dtype, cases[i].c);
        for (int k = 0; kernel_use_set(k) != NULL; k++) {
            kernel_reduce(sum, srcs, 3, 1, dtype, COLL_SUM);
            ck_assert_msg(get(sum, 0, dtype) == cases[i].sum, "case %zu: %#llx",
                i, (unsigned long long)get(sum, 0, dtype));
        }
    }
}
END_TEST

/* Ranks cut a message in different ways and have it at different addresses;
 * they must agree to the last bit, NaNs included. */
START_TEST(bits_depend_neither_on_address_nor_on_neighbours)
{
    enum { N = 1003 };
    coll_dtype_t dtype = (coll_dtype_t)(_i / OPS);
    coll_op_t op = (coll_op_t)(_i % OPS);
    size_t size = coll_dtype_size(dtype);
    struct buffers b;

    if (!kernel_supports(dtype, op))
        return;
    buffers_init(&b);
    for (size_t i = 0; i < 3 * N; i++)
        put(b.src[i % 3], i / 3, dtype, random_bits());
    for (int k = 0; kernel_use_set(k) != NULL; k++) {
        const void *srcs[] = {b.src[0], b.src[1], b.src[2]};

        kernel_reduce(k == 0 ? b.want : b.dst, srcs, 3, N, dtype, op);
        if (k > 0)
            ck_assert_mem_eq(b.dst, b.want, N * size);
        for (size_t at = 0, n; at < N; at += n) {
            size_t shift = random_bits() % 16;
            const void *parts[] = {b.src[3] + shift, b.src[4] + shift * 3 % 16,
                b.src[5] + shift * 5 % 16};

            n = random_bits() % 100;
            n = n < N - at ? n : N - at;
            for (int s = 0; s < 3; s++)
                memcpy((char *)parts[s], b.src[s] + at * size, n * size);
            kernel_reduce(b.dst, parts, 3, n, dtype, op);
            ck_assert_mem_eq(b.dst, b.want + at * size, n * size);
        }
    }
    buffers_fini(&b);
}
END_TEST

START_TEST(division_and_scaling_agree_with_the_reference)
{
    static const int divisors[] = {1, 2, 3, 7, 127, 128, 255, 300, 1000, 70000};
    static const double factors[] = {0, 1, -1, 2, 0.5, 1.0 / 3, -2.7, 100, 1e-3,
        300.9, 1e6, 1e300, -1e300, 0x1p63, (double)INFINITY, (double)NAN};
    coll_dtype_t dtype = (coll_dtype_t)_i;
    struct buffers b;
    const char *set;

    buffers_init(&b);
    for (size_t i = 0; i < 1000; i++)
        put(b.src[0], i, dtype, random_element(dtype));
    for (size_t d = 0; d < LENGTH(divisors); d++) {
        for (size_t i = 0; i < 1000; i++) {
            uint64_t bits = get(b.src[0], i, dtype);

            put(b.want, i, dtype,
                is_float(dtype)
                    ? float_bits(rounded(float_value(bits, dtype) / divisors[d],
                                     dtype),
                          dtype)
                    : integer_quotient(bits, dtype, divisors[d]));
        }
        for (int k = 0; (set = kernel_use_set(k)) != NULL; k++) {
            memcpy(b.dst, b.src[0], 8000);
            kernel_divide(b.dst, 1000, dtype, divisors[d]);
            check_result(
                b.dst, b.want, divisors[d], 1000, dtype, COLL_AVG, set);
        }
    }
    for (size_t f = 0; f < LENGTH(factors); f++) {
        double factor = factors[f];
        uint64_t whole = isnan(factor)      ? 0
                         : factor >= 0x1p64 ? UINT64_MAX
                         : factor >= 0x1p63 ? (uint64_t)factor
                         : factor < -0x1p63 ? (uint64_t)INT64_MIN
                                            : (uint64_t)(int64_t)factor;

        for (size_t i = 0; i < 1000; i++) {
            uint64_t bits = get(b.src[0], i, dtype);

            if (is_float(dtype)) {
                uint64_t element = float_bits(rounded(factor, dtype), dtype);

                put(b.want, i, dtype,
                    float_bits(rounded(float_value(bits, dtype) *
                                           float_value(element, dtype),
                                   dtype),
                        dtype));
            } else {
                put(b.want, i, dtype, bits * whole);
            }
        }
        for (int k = 0; (set = kernel_use_set(k)) != NULL; k++) {
            kernel_scale(b.dst, b.src[0], 1000, dtype, factor);
            check_result(b.dst, b.want, 1, 1000, dtype, COLL_PRODUCT, set);
            memcpy(b.dst, b.src[0], 8000);
            kernel_scale(b.dst, b.dst, 1000, dtype, factor);
            check_result(b.dst, b.want, 1, 1000, dtype, COLL_PRODUCT, set);
        }
    }
    buffers_fini(&b);
}
END_TEST

START_TEST(what_has_no_meaning_is_not_supported)
{
    for (int dtype = -1; dtype <= DTYPES; dtype++) {
        for (int op = -1; op <= OPS; op++) {
            bool is_known = dtype >= 0 && dtype < DTYPES && op >= 0 && op < OPS;
            bool is_bits = op >= COLL_BAND;
            bool want = is_known &&
                        !(is_float((coll_dtype_t)dtype) && is_bits) &&
                        !(dtype == COLL_BOOL && op == COLL_AVG);

            ck_assert_int_eq(
                kernel_supports((coll_dtype_t)dtype, (coll_op_t)op), want);
        }
    }
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
    uint8_t c[] = {200, 255, 3};
    uint8_t d[] = {100, 255, 4};
    const void *ab[] = {a, b};
    const void *cd[] = {c, d};
    int32_t r32[3];
    uint8_t r8[3];

    kernel_reduce(r32, ab, 2, 3, COLL_INT32, COLL_AVG);
    ck_assert_int_eq(r32[0], 7);
    ck_assert_int_eq(r32[1], -7);
    ck_assert_int_eq(r32[2], 0);
    /* The sum wraps before it is divided. */
    kernel_reduce(r8, cd, 2, 3, COLL_UINT8, COLL_AVG);
    ck_assert_int_eq(r8[0], (300 - 256) / 2);
    ck_assert_int_eq(r8[1], (510 - 256) / 2);
    ck_assert_int_eq(r8[2], 3);
}
END_TEST

START_TEST(a_bool_is_zero_or_one)
{
    uint8_t a[] = {0, 2, 255, 1};
    uint8_t b[] = {0, 4, 0, 1};
    const void *srcs[] = {a, b};
    uint8_t r[4];

    kernel_reduce(r, srcs, 2, 4, COLL_BOOL, COLL_BAND);
    ck_assert_mem_eq(r, ((uint8_t[]){0, 1, 0, 1}), 4);
    kernel_reduce(r, srcs, 2, 4, COLL_BOOL, COLL_SUM);
    ck_assert_mem_eq(r, ((uint8_t[]){0, 1, 1, 1}), 4);
    kernel_reduce(r, srcs, 2, 4, COLL_BOOL, COLL_BXOR);
    ck_assert_mem_eq(r, ((uint8_t[]){0, 0, 1, 0}), 4);
    kernel_reduce(r, srcs, 1, 4, COLL_BOOL, COLL_MAX);
    ck_assert_mem_eq(r, ((uint8_t[]){0, 1, 1, 1}), 4);
}
END_TEST

START_TEST(one_source_is_copied)
{
    float in[] = {1.5f, -0.0f, 3e38f};
    const void *srcs[] = {in};
    float out[3];

    kernel_reduce(out, srcs, 1, 3, COLL_FLOAT32, COLL_AVG);
    ck_assert_mem_eq(in, out, sizeof(in));
    kernel_reduce(
        NULL, (const void *const[]){NULL}, 1, 0, COLL_FLOAT32, COLL_AVG);
}
END_TEST

static void *reduce_once(void *arg)
{
    const float ones[] = {1, 1, 1};
    const void *srcs[] = {ones, ones};

    kernel_reduce(arg, srcs, 2, 3, COLL_FLOAT32, COLL_SUM);
    return NULL;
}

/* For ThreadSanitizer: a process's first calls choose the set. */
START_TEST(threads_may_make_the_first_call_at_once)
{
    pthread_t threads[4];
    float sums[4][3];

    for (int t = 0; t < 4; t++)
        ck_assert_int_eq(
            pthread_create(&threads[t], NULL, reduce_once, sums[t]), 0);
    for (int t = 0; t < 4; t++) {
        ck_assert_int_eq(pthread_join(threads[t], NULL), 0);
        for (int i = 0; i < 3; i++)
            ck_assert_float_eq(sums[t][i], 2);
    }
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("kernels");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(
        tc, every_set_agrees_with_the_reference, 0, DTYPES * OPS);
    tcase_add_loop_test(tc, floats_of_8_bits_are_right_for_all_pairs, 0, 2);
    tcase_add_loop_test(tc, floats_of_16_bits_are_right_for_all_elements, 0, 2);
    tcase_add_test(tc, sums_round_to_the_nearest_and_ties_to_the_even);
    tcase_add_loop_test(
        tc, bits_depend_neither_on_address_nor_on_neighbours, 0, DTYPES * OPS);
    tcase_add_loop_test(
        tc, division_and_scaling_agree_with_the_reference, 0, COLL_BOOL);
    tcase_add_test(tc, what_has_no_meaning_is_not_supported);
    tcase_add_test(tc, integers_wrap);
    tcase_add_test(tc, integer_average_truncates_toward_zero);
    tcase_add_test(tc, a_bool_is_zero_or_one);
    tcase_add_test(tc, one_source_is_copied);
    tcase_add_test(tc, threads_may_make_the_first_call_at_once);
    return unit_run("kernel", tc);
}
