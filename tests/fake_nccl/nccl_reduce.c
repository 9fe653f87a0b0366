/*
 * A test double, see nccl_fake.h: arithmetic, slow and plain. Integers are
 * computed in 64 bits, floats in double (16 and 8 bits: in float), in the
 * order of the ranks, and rounded once at the end.
 */
#include <math.h>
#include <string.h>

#include "tests/fake_nccl/nccl_fake.h"

enum class { UNSIGNED, SIGNED, REAL };

static const struct {
    size_t size;
    enum class class;
    /* Of small floats: bits of exponent and mantissa, and whether the largest
     * exponent is that of infinities. */
    int exponent, mantissa;
    bool has_infinity;
} dtypes[] = {
    [COLL_NCCL_INT8] = {1, SIGNED, 0, 0, false},
    [COLL_NCCL_UINT8] = {1, UNSIGNED, 0, 0, false},
    [COLL_NCCL_INT32] = {4, SIGNED, 0, 0, false},
    [COLL_NCCL_UINT32] = {4, UNSIGNED, 0, 0, false},
    [COLL_NCCL_INT64] = {8, SIGNED, 0, 0, false},
    [COLL_NCCL_UINT64] = {8, UNSIGNED, 0, 0, false},
    [COLL_NCCL_FLOAT16] = {2, REAL, 5, 10, true},
    [COLL_NCCL_FLOAT32] = {4, REAL, 0, 0, true},
    [COLL_NCCL_FLOAT64] = {8, REAL, 0, 0, true},
    [COLL_NCCL_BFLOAT16] = {2, REAL, 8, 7, true},
    [COLL_NCCL_FLOAT8_E4M3] = {1, REAL, 4, 3, false},
    [COLL_NCCL_FLOAT8_E5M2] = {1, REAL, 5, 2, true},
};

#define DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

size_t fake_dtype_size(nccl_dtype_t dtype)
{
    /* Float8 came with 2.24. */
    if (FAKE_NCCL_SYMBOLS < COLL_NCCL_FLOAT8_VERSION &&
        dtype >= COLL_NCCL_FLOAT8_E4M3)
        return 0;
    return dtype < DTYPES ? dtypes[dtype].size : 0;
}

static uint64_t read_bits(const unsigned char *at, size_t size)
{
    uint8_t b;
    uint16_t h;
    uint32_t w;
    uint64_t d;

    switch (size) {
    case 1:
        memcpy(&b, at, 1);
        return b;
    case 2:
        memcpy(&h, at, 2);
        return h;
    case 4:
        memcpy(&w, at, 4);
        return w;
    default:
        memcpy(&d, at, 8);
        return d;
    }
}

static void write_bits(unsigned char *at, size_t size, uint64_t bits)
{
    uint8_t b = (uint8_t)bits;
    uint16_t h = (uint16_t)bits;
    uint32_t w = (uint32_t)bits;

    switch (size) {
    case 1:
        memcpy(at, &b, 1);
        break;
    case 2:
        memcpy(at, &h, 2);
        break;
    case 4:
        memcpy(at, &w, 4);
        break;
    default:
        memcpy(at, &bits, 8);
        break;
    }
}

static int64_t read_signed(nccl_dtype_t dtype, const unsigned char *at)
{
    unsigned int shift = 64 - 8 * (unsigned int)dtypes[dtype].size;

    return (int64_t)(read_bits(at, dtypes[dtype].size) << shift) >> shift;
}

/* The largest exponent that numbers have, unbiased. */
static int top_exponent(nccl_dtype_t dtype)
{
    int bias = (1 << (dtypes[dtype].exponent - 1)) - 1;

    return dtypes[dtype].has_infinity ? bias : bias + 1;
}

static double read_small(nccl_dtype_t dtype, uint64_t bits)
{
    int mantissa = dtypes[dtype].mantissa, exponent = dtypes[dtype].exponent;
    int bias = (1 << (exponent - 1)) - 1, top = (1 << exponent) - 1;
    uint64_t fraction = bits & ((1u << mantissa) - 1);
    int power = (int)(bits >> mantissa) & top;
    double value;

    if (power == top && dtypes[dtype].has_infinity)
        value = fraction == 0 ? (double)INFINITY : (double)NAN;
    else if (power == top && fraction == (1u << mantissa) - 1)
        value = (double)NAN;
    else if (power == 0)
        value = ldexp((double)fraction, 1 - bias - mantissa);
    else
        value =
            ldexp((double)(fraction | 1u << mantissa), power - bias - mantissa);
    return bits >> (mantissa + exponent) & 1 ? -value : value;
}

/* Nearest, ties to even: rint() of the value in units of its last place. */
static uint64_t write_small(nccl_dtype_t dtype, double value)
{
    int mantissa = dtypes[dtype].mantissa, exponent = dtypes[dtype].exponent;
    int bias = (1 << (exponent - 1)) - 1, power;
    uint64_t sign = (uint64_t)(signbit(value) != 0) << (mantissa + exponent);
    uint64_t ones = (1u << exponent) - 1, units;
    uint64_t nan = ones << mantissa | ((1u << mantissa) - 1);

    if (isnan(value))
        return sign | nan;
    value = fabs(value);
    if (value == 0)
        return sign;
    frexp(value, &power);
    power = power - 1 < 1 - bias ? 1 - bias : power - 1;
    if (isinf(value) || power > top_exponent(dtype))
        units = UINT64_MAX;
    else /* a carry of rounding goes into the exponent, as it should */
        units = (uint64_t)rint(ldexp(value, mantissa - power)) +
                ((uint64_t)(power + bias - 1) << mantissa);
    if (dtypes[dtype].has_infinity)
        return sign | (units >= ones << mantissa ? ones << mantissa : units);
    return sign | (units >= nan ? nan : units);
}

static double read_real(nccl_dtype_t dtype, const unsigned char *at)
{
    float f;
    double d;

    switch (dtype) {
    case COLL_NCCL_FLOAT32:
        memcpy(&f, at, sizeof(f));
        return f;
    case COLL_NCCL_FLOAT64:
        memcpy(&d, at, sizeof(d));
        return d;
    default:
        return read_small(dtype, read_bits(at, dtypes[dtype].size));
    }
}

static void write_real(nccl_dtype_t dtype, unsigned char *at, double value)
{
    float f = (float)value;

    switch (dtype) {
    case COLL_NCCL_FLOAT32:
        memcpy(at, &f, sizeof(f));
        break;
    case COLL_NCCL_FLOAT64:
        memcpy(at, &value, sizeof(value));
        break;
    default:
        write_bits(at, dtypes[dtype].size, write_small(dtype, (double)f));
        break;
    }
}

static double fold_real(uint32_t op, double a, double b)
{
    switch (op) {
    case COLL_NCCL_PROD:
        return a * b;
    case COLL_NCCL_MAX:
        return isnan(a) || a > b ? a : b;
    case COLL_NCCL_MIN:
        return isnan(a) || a < b ? a : b;
    default:
        return a + b;
    }
}

static uint64_t fold_int(uint32_t op, bool is_signed, uint64_t a, uint64_t b)
{
    bool is_less = is_signed ? (int64_t)a < (int64_t)b : a < b;

    switch (op) {
    case COLL_NCCL_PROD:
        return a * b;
    case COLL_NCCL_MAX:
        return is_less ? b : a;
    case COLL_NCCL_MIN:
        return is_less ? a : b;
    default:
        return a + b;
    }
}

static void reduce_real(const struct fake_work *work,
    const unsigned char *const *from, int ranks, size_t at, unsigned char *to)
{
    nccl_dtype_t dtype = work->call.dtype;
    double sum = read_real(dtype, from[0] + at);

    for (int i = 1; i < ranks; i++)
        sum = fold_real(work->call.op, sum, read_real(dtype, from[i] + at));
    if (work->call.op == COLL_NCCL_AVG)
        sum /= ranks;
    write_real(dtype, to + at, sum);
}

static void reduce_int(const struct fake_work *work,
    const unsigned char *const *from, int ranks, size_t at, unsigned char *to)
{
    nccl_dtype_t dtype = work->call.dtype;
    size_t size = dtypes[dtype].size;
    bool is_signed = dtypes[dtype].class == SIGNED;
    uint64_t sum = 0;

    for (int i = 0; i < ranks; i++) {
        uint64_t its = is_signed ? (uint64_t)read_signed(dtype, from[i] + at)
                                 : read_bits(from[i] + at, size);

        sum = i == 0 ? its : fold_int(work->call.op, is_signed, sum, its);
    }
    if (work->call.op == COLL_NCCL_AVG) {
        write_bits(to + at, size, sum); /* what wraps, wraps before */
        sum = is_signed ? (uint64_t)(read_signed(dtype, to + at) / ranks)
                        : read_bits(to + at, size) / (uint64_t)ranks;
    }
    write_bits(to + at, size, sum);
}

void fake_reduce(const struct fake_work *work, const unsigned char *const *from,
    int ranks, unsigned char *to, size_t count)
{
    size_t size = dtypes[work->call.dtype].size;

    for (size_t i = 0; i < count; i++) {
        if (dtypes[work->call.dtype].class == REAL)
            reduce_real(work, from, ranks, i * size, to);
        else
            reduce_int(work, from, ranks, i * size, to);
    }
}

void fake_scalar_read(
    nccl_dtype_t dtype, const void *at, struct fake_work *work)
{
    if (dtypes[dtype].class == REAL)
        work->factor = read_real(dtype, at);
    else
        work->factor_int = dtypes[dtype].class == SIGNED
                               ? read_signed(dtype, at)
                               : (int64_t)read_bits(at, dtypes[dtype].size);
}

void fake_scale(const struct fake_work *work, unsigned char *data, size_t count)
{
    nccl_dtype_t dtype = work->call.dtype;
    size_t size = dtypes[dtype].size;

    for (size_t i = 0; i < count; i++, data += size) {
        if (dtypes[dtype].class == REAL)
            write_real(dtype, data, read_real(dtype, data) * work->factor);
        else
            write_bits(
                data, size, read_bits(data, size) * (uint64_t)work->factor_int);
    }
}
