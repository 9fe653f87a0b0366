/*
 * The kernels themselves. Each kernel_<set>.c includes this once, for one
 * instruction set, after it has defined
 *
 *   KERNEL_SET    the name of the struct kernel_set to define
 *   KERNEL_NAME   its name for people
 *   VECTOR_BYTES  the size of that instruction set's vectors
 *   HAS_F16C      1 if its instructions convert float16, else 0
 *
 * A kernel passes once over its sources and holds the partial results in
 * registers: as many loads as there are sources, one store. What is left
 * behind the last whole vector goes through the same vector operations, one
 * element at a time. So an element's result does not depend on where it lies,
 * nor on what surrounds it. It does not depend on the instruction set either:
 * every operation is IEEE's or an integer's, products and sums are not
 * contracted (the Makefile sees to that), and every NaN becomes the same one,
 * since which of two payloads survives is up to the compiler and the machine.
 *
 * Three things are told apart, and so are their names: the type of the
 * elements (f16), the packed vector of them that is loaded and stored (f16_p),
 * and the vector that is computed with (f32_v).
 */
#include <stdint.h>
#include <string.h>
#ifdef __aarch64__
#include <arm_neon.h>
#endif

#include "kernel_set.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
    "the first of two elements is the lower half of an integer");

#define INLINE static inline __attribute__((always_inline, unused))
#define VECTOR(type, bytes) type __attribute__((vector_size(bytes)))

/* --- Vectors ------------------------------------------------------------- */

typedef VECTOR(float, VECTOR_BYTES) f32_v;
typedef VECTOR(double, VECTOR_BYTES) f64_v;
typedef VECTOR(int8_t, VECTOR_BYTES) i8_v;
typedef VECTOR(int16_t, VECTOR_BYTES) i16_v;
typedef VECTOR(int32_t, VECTOR_BYTES) i32_v;
typedef VECTOR(int64_t, VECTOR_BYTES) i64_v;
typedef VECTOR(uint8_t, VECTOR_BYTES) u8_v;
typedef VECTOR(uint16_t, VECTOR_BYTES) u16_v;
typedef VECTOR(uint32_t, VECTOR_BYTES) u32_v;
typedef VECTOR(uint64_t, VECTOR_BYTES) u64_v;

/* Comparisons yield all ones or zero in each lane, as signed integers.
 * Integers compare equal to themselves: to them "or a is NaN" costs nothing. */
#define DEFINE_RULES(k, mask_v)                                                \
    INLINE k##_v select_##k(mask_v mask, k##_v a, k##_v b)                     \
    {                                                                          \
        return (k##_v)(((mask_v)a & mask) | ((mask_v)b & ~mask));              \
    }                                                                          \
    INLINE k##_v sum_rule_##k(k##_v a, k##_v b)                                \
    {                                                                          \
        return a + b;                                                          \
    }                                                                          \
    INLINE k##_v product_rule_##k(k##_v a, k##_v b)                            \
    {                                                                          \
        return a * b;                                                          \
    }                                                                          \
    INLINE k##_v min_rule_##k(k##_v a, k##_v b)                                \
    {                                                                          \
        return select_##k((a < b) | (a != a), a, b);                           \
    }                                                                          \
    INLINE k##_v max_rule_##k(k##_v a, k##_v b)                                \
    {                                                                          \
        return select_##k((a > b) | (a != a), a, b);                           \
    }                                                                          \
    /* How a fold ends: with its result, a quotient or a product. */           \
    INLINE k##_v no_operand_##k(double operand)                                \
    {                                                                          \
        (void)operand;                                                         \
        return (k##_v){};                                                      \
    }                                                                          \
    INLINE k##_v keep_##k(k##_v a, k##_v operand)                              \
    {                                                                          \
        (void)operand;                                                         \
        return a;                                                              \
    }                                                                          \
    INLINE k##_v divide_##k(k##_v a, k##_v operand)                            \
    {                                                                          \
        return a / operand;                                                    \
    }                                                                          \
    INLINE k##_v multiply_##k(k##_v a, k##_v operand)                          \
    {                                                                          \
        return a * operand;                                                    \
    }

#define DEFINE_BIT_RULES(k)                                                    \
    INLINE k##_v band_rule_##k(k##_v a, k##_v b)                               \
    {                                                                          \
        return a & b;                                                          \
    }                                                                          \
    INLINE k##_v bor_rule_##k(k##_v a, k##_v b)                                \
    {                                                                          \
        return a | b;                                                          \
    }                                                                          \
    INLINE k##_v bxor_rule_##k(k##_v a, k##_v b)                               \
    {                                                                          \
        return a ^ b;                                                          \
    }

DEFINE_RULES(f32, i32_v)
DEFINE_RULES(f64, i64_v)
DEFINE_RULES(i8, i8_v)
DEFINE_RULES(i16, i16_v)
DEFINE_RULES(i32, i32_v)
DEFINE_RULES(i64, i64_v)
DEFINE_RULES(u8, i8_v)
DEFINE_RULES(u16, i16_v)
DEFINE_RULES(u32, i32_v)
DEFINE_RULES(u64, i64_v)
DEFINE_BIT_RULES(u8)
DEFINE_BIT_RULES(u16)
DEFINE_BIT_RULES(u32)
DEFINE_BIT_RULES(u64)

/* --- From packed elements to what is computed with, and back ------------- */

#define DEFINE_INTEGER(t)                                                      \
    typedef t##_v t##_p;                                                       \
    INLINE t##_v decode_##t(t##_p packed)                                      \
    {                                                                          \
        return packed;                                                         \
    }                                                                          \
    INLINE t##_p encode_##t(t##_v value)                                       \
    {                                                                          \
        return value;                                                          \
    }

DEFINE_INTEGER(i8)
DEFINE_INTEGER(i16)
DEFINE_INTEGER(i32)
DEFINE_INTEGER(i64)
DEFINE_INTEGER(u8)
DEFINE_INTEGER(u16)
DEFINE_INTEGER(u32)
DEFINE_INTEGER(u64)

typedef u8_v truth_p;

INLINE u8_v decode_truth(truth_p packed)
{
    return (u8_v)(packed != 0) & 1;
}

INLINE truth_p encode_truth(u8_v value)
{
    return value;
}

typedef f32_v f32_p;
typedef f64_v f64_p;

INLINE f32_v decode_f32(f32_p packed)
{
    return packed;
}

INLINE f32_p encode_f32(f32_v value)
{
    const u32_v nan = (u32_v){} + 0x7fc00000u;

    return select_f32(value != value, (f32_v)nan, value);
}

INLINE f64_v decode_f64(f64_p packed)
{
    return packed;
}

INLINE f64_p encode_f64(f64_v value)
{
    const u64_v nan = (u64_v){} + 0x7ff8000000000000u;

    return select_f64(value != value, (f64_v)nan, value);
}

/*
 * The others are computed in float32. Instead of moving elements to where
 * wider ones have room, which is slow or takes other instructions everywhere,
 * every second element becomes a float32 in its place, then the others: two
 * vectors for one of 16 bits, and in the same way four for one of 8 bits.
 */
typedef struct {
    f32_v even, odd;
} f32x2_v;

typedef struct {
    f32x2_v even, odd;
} f32x4_v;

#define DEFINE_PARTS(rule)                                                     \
    INLINE f32x2_v rule##_f32x2(f32x2_v a, f32x2_v b)                          \
    {                                                                          \
        return (f32x2_v){                                                      \
            rule##_f32(a.even, b.even), rule##_f32(a.odd, b.odd)};             \
    }                                                                          \
    INLINE f32x4_v rule##_f32x4(f32x4_v a, f32x4_v b)                          \
    {                                                                          \
        return (f32x4_v){                                                      \
            rule##_f32x2(a.even, b.even), rule##_f32x2(a.odd, b.odd)};         \
    }

DEFINE_PARTS(sum_rule)
DEFINE_PARTS(product_rule)
DEFINE_PARTS(min_rule)
DEFINE_PARTS(max_rule)
DEFINE_PARTS(keep)
DEFINE_PARTS(divide)
DEFINE_PARTS(multiply)

typedef u16_v bf16_p;

INLINE f32x2_v decode_bf16(bf16_p packed)
{
    u32_v pair = (u32_v)packed;

    return (f32x2_v){(f32_v)(pair << 16), (f32_v)(pair & 0xffff0000)};
}

/* In the upper half; the lower one is rubbish. */
INLINE u32_v round_bf16(f32_v value)
{
    u32_v bits = (u32_v)value;

    return select_u32(value != value, (u32_v){} + 0x7fc00000,
        bits + 0x7fff + (bits >> 16 & 1));
}

INLINE bf16_p encode_bf16(f32x2_v value)
{
    return (bf16_p)(round_bf16(value.even) >> 16 |
                    (round_bf16(value.odd) & 0xffff0000));
}

/* A small float: a sign, the exponent, the mantissa. */
struct small {
    int exponent_bits;
    int mantissa_bits;
    /* The highest exponent is as in IEEE's formats; without that it is one
     * like the others, except that all ones are NaN. */
    int has_infinity;
    uint32_t nan;
};

static const struct small f16 = {5, 10, 1, 0x7e00};
static const struct small e5m2 = {5, 2, 1, 0x7f};
static const struct small e4m3 = {4, 3, 0, 0x7f};

/* What a float32's exponent is greater by, in its place there. */
INLINE uint32_t small_bias(struct small s)
{
    return (128u - (1u << (s.exponent_bits - 1))) << 23;
}

INLINE f32_v small_decode(u32_v code, struct small s)
{
    int magnitude_bits = s.exponent_bits + s.mantissa_bits;
    uint32_t bias = small_bias(s);
    uint32_t top = ((1u << s.exponent_bits) - 1) << 23;
    u32_v sign = code >> magnitude_bits << 31;
    u32_v bits = (code & ((1u << magnitude_bits) - 1))
                 << (23 - s.mantissa_bits);
    /* A subnormal has no leading one. Given one, it is too large by just that
     * much, and the difference is exact. */
    u32_v least = (u32_v){} + (bias + (1u << 23));
    u32_v tiny = (u32_v)((f32_v)(bits + least) - (f32_v)least);
    i32_v is_tiny = (i32_v)bits < 1 << 23;
    u32_v result = select_u32(is_tiny, tiny, bits + bias);

    if (s.has_infinity) {
        i32_v is_top = (i32_v)bits >= (int32_t)top;

        result += (u32_v)is_top & (0x7f800000 - top - bias);
    } else {
        i32_v is_nan =
            code << (32 - magnitude_bits) == s.nan << (32 - magnitude_bits);

        result |= (u32_v)is_nan & 0x7fc00000;
    }
    return (f32_v)(result | sign);
}

INLINE u32_v small_encode(f32_v value, struct small s)
{
    int drop = 23 - s.mantissa_bits;
    int magnitude_bits = s.exponent_bits + s.mantissa_bits;
    uint32_t bias = small_bias(s);
    uint32_t top = ((1u << s.exponent_bits) - 1) << 23;
    u32_v bits = (u32_v)value & 0x7fffffff;
    u32_v sign = (u32_v)value >> 31 << magnitude_bits;
    /* To nearest, ties to even; a carry out of the mantissa is right, too. */
    u32_v rounded =
        (bits + ((1u << (drop - 1)) - 1) + (bits >> drop & 1) - bias) >> drop;
    /* The addition of a number whose last bit is the format's least subnormal
     * rounds for us. */
    uint32_t unit_bits = bias + ((uint32_t)(drop + 1) << 23);
    f32_v unit = (f32_v)((u32_v){} + unit_bits);
    u32_v tiny = (u32_v)((f32_v)bits + unit) - unit_bits;
    i32_v is_tiny = (i32_v)bits < (int32_t)(bias + (1u << 23));
    u32_v result = select_u32(is_tiny, tiny, rounded);
    i32_v is_nan = value != value;

    if (s.has_infinity) {
        i32_v is_huge = (i32_v)bits >= (int32_t)(top + bias);

        result = select_u32(is_huge, (u32_v){} + (top >> drop), result);
    } else {
        is_nan |= (i32_v)bits >= (int32_t)((s.nan << drop) + bias);
        is_nan |= result == s.nan;
    }
    return select_u32(is_nan, (u32_v){} + s.nan, result | sign);
}

#define DEFINE_SMALL_8(t)                                                      \
    typedef u8_v t##_p;                                                        \
    INLINE f32x4_v decode_##t(t##_p packed)                                    \
    {                                                                          \
        u32_v x = (u32_v)packed;                                               \
                                                                               \
        return (f32x4_v){                                                      \
            {small_decode(x & 0xff, t), small_decode(x >> 16 & 0xff, t)},      \
            {small_decode(x >> 8 & 0xff, t), small_decode(x >> 24, t)}};       \
    }                                                                          \
    INLINE t##_p encode_##t(f32x4_v value)                                     \
    {                                                                          \
        u32_v even = small_encode(value.even.even, t) |                        \
                     small_encode(value.even.odd, t) << 16;                    \
        u32_v odd = small_encode(value.odd.even, t) |                          \
                    small_encode(value.odd.odd, t) << 16;                      \
                                                                               \
        return (t##_p)(even | odd << 8);                                       \
    }

DEFINE_SMALL_8(e4m3)
DEFINE_SMALL_8(e5m2)

#if HAS_F16C || defined(__aarch64__)
/* There are instructions for half a vector of them. */
typedef VECTOR(uint16_t, VECTOR_BYTES / 2) f16_p;
#define F16_VECTOR f32

INLINE f32_v decode_f16(f16_p packed)
{
#if HAS_F16C
    return (f32_v)_mm256_cvtph_ps((__m128i)packed);
#else
    return (f32_v)vcvt_f32_f16((float16x4_t)packed);
#endif
}

INLINE f16_p encode_f16(f32_v value)
{
    value = encode_f32(value);
#if HAS_F16C
    return (f16_p)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT);
#else
    return (f16_p)vcvt_f16_f32((float32x4_t)value);
#endif
}
#else
typedef u16_v f16_p;
#define F16_VECTOR f32x2

INLINE f32x2_v decode_f16(f16_p packed)
{
    u32_v pair = (u32_v)packed;

    return (f32x2_v){
        small_decode(pair & 0xffff, f16), small_decode(pair >> 16, f16)};
}

INLINE f16_p encode_f16(f32x2_v value)
{
    return (f16_p)(small_encode(value.even, f16) | small_encode(value.odd, f16)
                                                       << 16);
}
#endif

/* --- Memory -------------------------------------------------------------- */

/*
 * For elements of type t that are computed with in vectors of k. Addresses
 * need no alignment. What is moved is a whole packed vector or the beginning
 * of one; if bytes is a constant of up to eight that is a single move, too.
 */
#define DEFINE_ACCESS(t, k) DEFINE_ACCESS_(t, k)
#define DEFINE_ACCESS_(t, k)                                                   \
    typedef VECTOR(uint64_t, sizeof(t##_p)) t##_words;                         \
    INLINE k##_v load_##t(const char *at, size_t bytes)                        \
    {                                                                          \
        t##_p packed = {};                                                     \
        uint64_t word = 0;                                                     \
                                                                               \
        if (bytes == sizeof(packed)) {                                         \
            memcpy(&packed, at, sizeof(packed));                               \
        } else if (__builtin_constant_p(bytes) && bytes <= sizeof(word)) {     \
            memcpy(&word, at, bytes);                                          \
            packed = (t##_p)(t##_words){word};                                 \
        } else {                                                               \
            memcpy(&packed, at, bytes);                                        \
        }                                                                      \
        return decode_##t(packed);                                             \
    }                                                                          \
    INLINE void store_##t(char *at, k##_v value, size_t bytes)                 \
    {                                                                          \
        t##_p packed = encode_##t(value);                                      \
        uint64_t word = ((t##_words)packed)[0];                                \
                                                                               \
        if (bytes == sizeof(packed))                                           \
            memcpy(at, &packed, sizeof(packed));                               \
        else if (__builtin_constant_p(bytes) && bytes <= sizeof(word))         \
            memcpy(at, &word, bytes);                                          \
        else                                                                   \
            memcpy(at, &packed, bytes);                                        \
    }

DEFINE_ACCESS(f32, f32)
DEFINE_ACCESS(f64, f64)
DEFINE_ACCESS(f16, F16_VECTOR)
DEFINE_ACCESS(bf16, f32x2)
DEFINE_ACCESS(e4m3, f32x4)
DEFINE_ACCESS(e5m2, f32x4)
DEFINE_ACCESS(i8, i8)
DEFINE_ACCESS(i16, i16)
DEFINE_ACCESS(i32, i32)
DEFINE_ACCESS(i64, i64)
DEFINE_ACCESS(u8, u8)
DEFINE_ACCESS(u16, u16)
DEFINE_ACCESS(u32, u32)
DEFINE_ACCESS(u64, u64)
DEFINE_ACCESS(truth, u8)

/* --- Folds --------------------------------------------------------------- */

/* All sources of an element are read before it is written, so dst may be any
 * of them. */
#define FOLD_AT(t, k, rule, finish, bytes)                                     \
    do {                                                                       \
        k##_v a = load_##t((const char *)srcs[0] + at, bytes);                 \
                                                                               \
        for (int s = 1; s < nsrcs; s++)                                        \
            a = rule##_##k(a, load_##t((const char *)srcs[s] + at, bytes));    \
        store_##t((char *)dst + at, finish##_##k(a, with), bytes);             \
    } while (0)

/* So many bytes at a time, until fewer are left. */
#define FOLD_BY(t, k, rule, finish, bytes)                                     \
    for (; end - at >= (bytes); at += (bytes))                                 \
    FOLD_AT(t, k, rule, finish, bytes)

/* The same with four vectors, which need not wait for each other. */
#define FOLD_BY_FOUR(t, k, rule, finish)                                       \
    for (; end - at >= 4 * step; at += 4 * step) {                             \
        const char *in = (const char *)srcs[0] + at;                           \
        char *out = (char *)dst + at;                                          \
        k##_v a = load_##t(in, step);                                          \
        k##_v b = load_##t(in + step, step);                                   \
        k##_v c = load_##t(in + 2 * step, step);                               \
        k##_v d = load_##t(in + 3 * step, step);                               \
                                                                               \
        for (int s = 1; s < nsrcs; s++) {                                      \
            in = (const char *)srcs[s] + at;                                   \
            a = rule##_##k(a, load_##t(in, step));                             \
            b = rule##_##k(b, load_##t(in + step, step));                      \
            c = rule##_##k(c, load_##t(in + 2 * step, step));                  \
            d = rule##_##k(d, load_##t(in + 3 * step, step));                  \
        }                                                                      \
        store_##t(out, finish##_##k(a, with), step);                           \
        store_##t(out + step, finish##_##k(b, with), step);                    \
        store_##t(out + 2 * step, finish##_##k(c, with), step);                \
        store_##t(out + 3 * step, finish##_##k(d, with), step);                \
    }

/*
 * For elements of type t, kept as scalars of the given type, that are
 * computed with in vectors of k: name_t() folds by the rule and ends with
 * finish. Where k is several vectors already, four times as many would not
 * fit into the registers; where it is four, they need so many instructions
 * that a branch for the rest costs little, and more loops much space.
 */
#define DEFINE_FOLD(name, t, k, type, rule, finish, operand_vector)            \
    static void name##_##t(void *dst, const void *const *srcs, int nsrcs,      \
        size_t count, double operand)                                          \
    {                                                                          \
        const size_t step = sizeof(t##_p);                                     \
        const size_t end = count * sizeof(type);                               \
        const k##_v with = operand_vector(operand);                            \
        size_t at = 0, n;                                                      \
                                                                               \
        if (sizeof(k##_v) == 4 * VECTOR_BYTES) {                               \
            for (; at < end; at += n) {                                        \
                n = end - at < step ? end - at : step;                         \
                FOLD_AT(t, k, rule, finish, n);                                \
            }                                                                  \
            return;                                                            \
        }                                                                      \
        if (sizeof(k##_v) == VECTOR_BYTES)                                     \
            FOLD_BY_FOUR(t, k, rule, finish)                                   \
        FOLD_BY(t, k, rule, finish, step);                                     \
        FOLD_BY(t, k, rule, finish, sizeof(uint64_t));                         \
        FOLD_BY(t, k, rule, finish, sizeof(type));                             \
    }

#define DEFINE_PLAIN_FOLD(name, t, k, type)                                    \
    DEFINE_FOLD(name, t, k, type, name##_rule, keep, no_operand_##k)

/* Integers of one width add, multiply and combine bits alike: as unsigned
 * ones, which wrap. */
#define DEFINE_WIDTH_FOLDS(t, type)                                            \
    INLINE t##_v whole_operand_##t(double operand)                             \
    {                                                                          \
        return (t##_v){} + (type)kernel_whole(operand);                        \
    }                                                                          \
    DEFINE_PLAIN_FOLD(sum, t, t, type)                                         \
    DEFINE_PLAIN_FOLD(product, t, t, type)                                     \
    DEFINE_PLAIN_FOLD(band, t, t, type)                                        \
    DEFINE_PLAIN_FOLD(bor, t, t, type)                                         \
    DEFINE_PLAIN_FOLD(bxor, t, t, type)                                        \
    DEFINE_FOLD(scale, t, t, type, sum_rule, multiply, whole_operand_##t)

DEFINE_WIDTH_FOLDS(u8, uint8_t)
DEFINE_WIDTH_FOLDS(u16, uint16_t)
DEFINE_WIDTH_FOLDS(u32, uint32_t)
DEFINE_WIDTH_FOLDS(u64, uint64_t)

/* No vector unit divides integers. The type divided in must hold every
 * divisor: of uint8_t elements there may be a thousand sources. */
#define DEFINE_INTEGER_FOLDS(t, type, u, division)                             \
    DEFINE_PLAIN_FOLD(min, t, t, type)                                         \
    DEFINE_PLAIN_FOLD(max, t, t, type)                                         \
    static void avg_##t(void *dst, const void *const *srcs, int nsrcs,         \
        size_t count, double operand)                                          \
    {                                                                          \
        char *out = dst;                                                       \
                                                                               \
        sum_##u(dst, srcs, nsrcs, count, operand);                             \
        for (size_t i = 0; i < count; i++) {                                   \
            type value;                                                        \
                                                                               \
            memcpy(&value, out + i * sizeof(value), sizeof(value));            \
            value = (type)(value / (division)operand);                         \
            memcpy(out + i * sizeof(value), &value, sizeof(value));            \
        }                                                                      \
    }

DEFINE_INTEGER_FOLDS(i8, int8_t, u8, int)
DEFINE_INTEGER_FOLDS(i16, int16_t, u16, int)
DEFINE_INTEGER_FOLDS(i32, int32_t, u32, int)
DEFINE_INTEGER_FOLDS(i64, int64_t, u64, int64_t)
DEFINE_INTEGER_FOLDS(u8, uint8_t, u8, int)
DEFINE_INTEGER_FOLDS(u16, uint16_t, u16, int)
DEFINE_INTEGER_FOLDS(u32, uint32_t, u32, uint32_t)
DEFINE_INTEGER_FOLDS(u64, uint64_t, u64, uint64_t)

/* Not 0 + x, which is +0 if x is -0. */
INLINE f32_v real_operand_f32(double operand)
{
    return (float)operand - (f32_v){};
}

INLINE f64_v real_operand_f64(double operand)
{
    return operand - (f64_v){};
}

INLINE f32x2_v no_operand_f32x2(double operand)
{
    return (f32x2_v){no_operand_f32(operand), no_operand_f32(operand)};
}

INLINE f32x4_v no_operand_f32x4(double operand)
{
    return (f32x4_v){no_operand_f32x2(operand), no_operand_f32x2(operand)};
}

INLINE f32x2_v real_operand_f32x2(double operand)
{
    return (f32x2_v){real_operand_f32(operand), real_operand_f32(operand)};
}

INLINE f32x4_v real_operand_f32x4(double operand)
{
    return (f32x4_v){real_operand_f32x2(operand), real_operand_f32x2(operand)};
}

/* A divisor may be more than the type holds, a factor is an element. */
#define DEFINE_FLOAT_FOLDS(t, k, type) DEFINE_FLOAT_FOLDS_(t, k, type)
#define DEFINE_FLOAT_FOLDS_(t, k, type)                                        \
    INLINE k##_v factor_##t(double operand)                                    \
    {                                                                          \
        return decode_##t(encode_##t(real_operand_##k(operand)));              \
    }                                                                          \
    DEFINE_PLAIN_FOLD(sum, t, k, type)                                         \
    DEFINE_PLAIN_FOLD(product, t, k, type)                                     \
    DEFINE_PLAIN_FOLD(min, t, k, type)                                         \
    DEFINE_PLAIN_FOLD(max, t, k, type)                                         \
    DEFINE_FOLD(avg, t, k, type, sum_rule, divide, real_operand_##k)           \
    DEFINE_FOLD(scale, t, k, type, sum_rule, multiply, factor_##t)

DEFINE_FLOAT_FOLDS(f32, f32, float)
DEFINE_FLOAT_FOLDS(f64, f64, double)
DEFINE_FLOAT_FOLDS(f16, F16_VECTOR, uint16_t)
DEFINE_FLOAT_FOLDS(bf16, f32x2, uint16_t)
DEFINE_FLOAT_FOLDS(e4m3, f32x4, uint8_t)
DEFINE_FLOAT_FOLDS(e5m2, f32x4, uint8_t)

DEFINE_PLAIN_FOLD(band, truth, u8, uint8_t)
DEFINE_PLAIN_FOLD(bor, truth, u8, uint8_t)
DEFINE_PLAIN_FOLD(bxor, truth, u8, uint8_t)

#define FLOAT_ROW(t)                                                           \
    {                                                                          \
        [COLL_SUM] = sum_##t, [COLL_AVG] = avg_##t, [COLL_MIN] = min_##t,      \
        [COLL_MAX] = max_##t, [COLL_PRODUCT] = product_##t,                    \
    }
#define INTEGER_ROW(t, u)                                                      \
    {                                                                          \
        [COLL_SUM] = sum_##u, [COLL_AVG] = avg_##t, [COLL_MIN] = min_##t,      \
        [COLL_MAX] = max_##t, [COLL_PRODUCT] = product_##u,                    \
        [COLL_BAND] = band_##u, [COLL_BOR] = bor_##u, [COLL_BXOR] = bxor_##u,  \
    }
#define TRUTH_ROW                                                              \
    {                                                                          \
        [COLL_SUM] = bor_truth, [COLL_MIN] = band_truth,                       \
        [COLL_MAX] = bor_truth, [COLL_PRODUCT] = band_truth,                   \
        [COLL_BAND] = band_truth, [COLL_BOR] = bor_truth,                      \
        [COLL_BXOR] = bxor_truth,                                              \
    }

const struct kernel_set KERNEL_SET = {
    .name = KERNEL_NAME,
    .fold =
        {
            [COLL_FLOAT32] = FLOAT_ROW(f32),
            [COLL_FLOAT64] = FLOAT_ROW(f64),
            [COLL_FLOAT16] = FLOAT_ROW(f16),
            [COLL_BFLOAT16] = FLOAT_ROW(bf16),
            [COLL_FLOAT8_E4M3] = FLOAT_ROW(e4m3),
            [COLL_FLOAT8_E5M2] = FLOAT_ROW(e5m2),
            [COLL_INT8] = INTEGER_ROW(i8, u8),
            [COLL_INT16] = INTEGER_ROW(i16, u16),
            [COLL_INT32] = INTEGER_ROW(i32, u32),
            [COLL_INT64] = INTEGER_ROW(i64, u64),
            [COLL_UINT8] = INTEGER_ROW(u8, u8),
            [COLL_UINT16] = INTEGER_ROW(u16, u16),
            [COLL_UINT32] = INTEGER_ROW(u32, u32),
            [COLL_UINT64] = INTEGER_ROW(u64, u64),
            [COLL_BOOL] = TRUTH_ROW,
        },
    .scale =
        {
            [COLL_FLOAT32] = scale_f32,
            [COLL_FLOAT64] = scale_f64,
            [COLL_FLOAT16] = scale_f16,
            [COLL_BFLOAT16] = scale_bf16,
            [COLL_FLOAT8_E4M3] = scale_e4m3,
            [COLL_FLOAT8_E5M2] = scale_e5m2,
            [COLL_INT8] = scale_u8,
            [COLL_INT16] = scale_u16,
            [COLL_INT32] = scale_u32,
            [COLL_INT64] = scale_u64,
            [COLL_UINT8] = scale_u8,
            [COLL_UINT16] = scale_u16,
            [COLL_UINT32] = scale_u32,
            [COLL_UINT64] = scale_u64,
        },
};
