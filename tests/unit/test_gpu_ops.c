/*
 * Every operation on device memory against a slow reference that is computed
 * from what each rank is known to have sent: types, reductions, counts, in
 * place or not, waiting or not, on groups of several sizes, with the NCCL of
 * today and with the oldest one. The device is a test double.
 */
#include <stdint.h>

#include "tests/unit/gpu_ranks.h"

#define PARTS 3 /* buffers of a coalesced call */
#define LARGE 10000 /* several chunks of the double */

/* --- What is sent --------------------------------------------------------- */

/* One operation, as one rank sees it. */
struct one {
    enum coll_kind kind;
    coll_dtype_t dtype;
    coll_op_t op;
    size_t count;
    int root;
    bool is_in_place;
    bool is_async;
    coll_op_t premul; /* op is a sum, and this one is passed */
    bool has_premul;
    int rank, size;
};

enum class { UNSIGNED, SIGNED, REAL };

static const struct {
    enum class class;
    int exponent, mantissa; /* bits, of floats */
} types[] = {
    [COLL_FLOAT32] = {REAL, 8, 23},
    [COLL_FLOAT64] = {REAL, 11, 52},
    [COLL_INT32] = {SIGNED, 0, 0},
    [COLL_INT64] = {SIGNED, 0, 0},
    [COLL_FLOAT16] = {REAL, 5, 10},
    [COLL_BFLOAT16] = {REAL, 8, 7},
    [COLL_FLOAT8_E4M3] = {REAL, 4, 3},
    [COLL_FLOAT8_E5M2] = {REAL, 5, 2},
    [COLL_INT8] = {SIGNED, 0, 0},
    [COLL_INT16] = {SIGNED, 0, 0},
    [COLL_UINT8] = {UNSIGNED, 0, 0},
    [COLL_UINT16] = {UNSIGNED, 0, 0},
    [COLL_UINT32] = {UNSIGNED, 0, 0},
    [COLL_UINT64] = {UNSIGNED, 0, 0},
    [COLL_BOOL] = {UNSIGNED, 0, 0},
};

enum { TYPES = sizeof(types) / sizeof(types[0]) };

static bool does_reduce(enum coll_kind kind)
{
    return kind == COLL_KIND_ALL_REDUCE || kind == COLL_KIND_REDUCE ||
           kind == COLL_KIND_REDUCE_SCATTER ||
           kind == COLL_KIND_REDUCE_SCATTER_V ||
           kind == COLL_KIND_ALL_REDUCE_COALESCED ||
           kind == COLL_KIND_REDUCE_SCATTER_COALESCED;
}

/* A small integer as an element of any type, which has it exactly. */
static uint64_t bits_of(coll_dtype_t dtype, int64_t value)
{
    int mantissa = types[dtype].mantissa;
    int exponent = types[dtype].exponent;
    uint64_t size = value < 0 ? (uint64_t)-value : (uint64_t)value;
    int power = 0;
    uint64_t bits;

    if (types[dtype].class != REAL)
        return (uint64_t)value;
    if (size == 0)
        return 0;
    while (size >> (power + 1) != 0)
        power++;
    bits = (uint64_t)(power + (1 << (exponent - 1)) - 1) << mantissa;
    bits |= ((size << mantissa) >> power) & ((UINT64_C(1) << mantissa) - 1);
    return bits | (uint64_t)(value < 0) << (exponent + mantissa);
}

/* Element i of what a rank sends to be reduced. Results are exact. */
static int64_t number(const struct one *c, int rank, size_t i)
{
    int64_t below = types[c->dtype].class == UNSIGNED ? 0 : 1;

    if (c->dtype == COLL_BOOL)
        return (i + (size_t)rank) % 3 == 0;
    switch (c->op) {
    case COLL_PRODUCT:
        return (i + (size_t)rank) % 3 == 0 ? 2 : 1;
    case COLL_AVG:
        return (int64_t)(2 + i % 2) + (rank == 0) - (rank == c->size - 1);
    case COLL_MIN:
    case COLL_MAX:
        return (int64_t)((i * 7 + (size_t)rank * 3) % 5) - 2 * below;
    default:
        return (int64_t)((i + (size_t)rank) % 2) -
               below * ((i + (size_t)rank) % 5 == 0);
    }
}

static double factor_of(const struct one *c, int rank)
{
    return c->size > 4 || c->dtype == COLL_FLOAT8_E5M2 ? 2 : 1 + rank % 2;
}

static int64_t reduced(const struct one *c, size_t i)
{
    int64_t acc = 0;

    for (int r = 0; r < c->size; r++) {
        int64_t v = number(c, r, i);
        bool is_first = r == 0;

        if (c->has_premul)
            v *= (int64_t)factor_of(c, r);
        switch (c->op) {
        case COLL_MIN:
            acc = is_first || v < acc ? v : acc;
            break;
        case COLL_MAX:
            acc = is_first || v > acc ? v : acc;
            break;
        case COLL_PRODUCT:
            acc = is_first ? v : acc * v;
            break;
        case COLL_BAND:
            acc = is_first ? v : acc & v;
            break;
        case COLL_BOR:
            acc |= v;
            break;
        default:
            acc += v;
            break;
        }
    }
    if (c->op == COLL_AVG)
        acc /= c->size;
    return c->dtype == COLL_BOOL ? acc != 0 : acc;
}

/* Element i of what a rank sends: what is only moved may be any bits. */
static uint64_t sent(const struct one *c, int rank, size_t i)
{
    if (does_reduce(c->kind))
        return bits_of(c->dtype, number(c, rank, i));
    return ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u + (uint64_t)rank * 77;
}

static void put(const struct one *c, char *at, uint64_t bits)
{
    memcpy(at, &bits, coll_dtype_size(c->dtype)); /* little-endian */
}

#define REDUCED (-1)

/* What lies at at is what rank from (or all, REDUCED) had from first on. */
static size_t wrong_in(
    const struct one *c, const char *at, size_t count, int from, size_t first)
{
    size_t size = coll_dtype_size(c->dtype);
    size_t wrong = 0;

    for (size_t i = 0; i < count; i++) {
        char want[8];

        put(c, want,
            from == REDUCED ? bits_of(c->dtype, reduced(c, first + i))
                            : sent(c, from, first + i));
        wrong += memcmp(at + i * size, want, size) != 0;
    }
    return wrong;
}

/* --- Where it is ---------------------------------------------------------- */

/* Of the _v operations: how much comes from one rank to another one, or of
 * one; and where that begins, in reverse order, with a gap. */
static size_t part(const struct one *c, int from, int to)
{
    if (c->count == 0 || (from + 2 * to) % 4 == 1)
        return 0;
    return c->count + (size_t)(from % 3) + (size_t)to % 2;
}

static size_t longest(const struct one *c)
{
    return c->count + 4;
}

static size_t place(const struct one *c, int rank)
{
    return (size_t)(c->size - 1 - rank) * (longest(c) + 1);
}

static size_t part_of_coalesced(const struct one *c, size_t k)
{
    return k == 1 ? 0 : c->count + k;
}

/* Where buffer k of a coalesced call begins, in elements of either side. */
static size_t place_of_coalesced(const struct one *c, size_t k)
{
    return k * (size_t)c->size * (c->count + PARTS);
}

/* Buffers that have room for everything, at any count. */
static size_t room(const struct one *c)
{
    return (size_t)c->size * (c->count + 8) * PARTS;
}

struct memory {
    char *send, *recv;
    size_t bytes; /* of each */
};

/* The arrays that a call needs for as long as it is on its way. */
struct arrays {
    size_t send_counts[RANKS_MAX], send_at[RANKS_MAX];
    size_t recv_counts[RANKS_MAX], recv_at[RANKS_MAX];
    const void *many_send[PARTS];
    void *many_recv[PARTS];
    size_t many_counts[PARTS];
};

static char *at(const struct one *c, char *buf, size_t elements)
{
    return buf + elements * coll_dtype_size(c->dtype);
}

static bool is_all_to_all(enum coll_kind kind)
{
    return kind == COLL_KIND_ALL_TO_ALL || kind == COLL_KIND_ALL_TO_ALL_V;
}

static void describe(const struct one *c, const struct memory *m, char *send,
    char *recv, struct arrays *a)
{
    (void)m;
    for (int r = 0; r < c->size; r++) {
        bool is_pair = c->kind == COLL_KIND_ALL_TO_ALL_V;

        a->send_counts[r] = part(c, c->rank, r);
        a->recv_counts[r] = part(c, r, c->rank);
        if (!is_pair)
            a->send_counts[r] = a->recv_counts[r] = part(c, r, 0);
        a->send_at[r] = a->recv_at[r] = place(c, r);
    }
    for (size_t k = 0; k < PARTS; k++) {
        a->many_send[k] = at(c, send, place_of_coalesced(c, k));
        a->many_recv[k] = at(c, recv, place_of_coalesced(c, k));
        a->many_counts[k] = part_of_coalesced(c, k);
        /* In place: the part of this rank in the larger buffer. */
        if (c->is_in_place && c->kind == COLL_KIND_ALL_GATHER_COALESCED)
            a->many_send[k] =
                at(c, a->many_recv[k], (size_t)c->rank * a->many_counts[k]);
        if (c->is_in_place && c->kind == COLL_KIND_REDUCE_SCATTER_COALESCED)
            a->many_recv[k] = at(c, (char *)a->many_send[k],
                (size_t)c->rank * a->many_counts[k]);
    }
}

/* --- The call ------------------------------------------------------------- */

static coll_status_t call(const struct one *c, const char *send, char *recv,
    struct arrays *a, coll_group_t *g, coll_work_t **work)
{
    coll_op_t op = c->has_premul ? c->premul : c->op;
    size_t n = c->count;

#define FORM(name, ...)                                                        \
    return work == NULL ? coll_##name(__VA_ARGS__)                             \
                        : coll_##name##_async(__VA_ARGS__, work)
    switch (c->kind) {
    case COLL_KIND_ALL_REDUCE:
        FORM(all_reduce, send, recv, n, c->dtype, op, g);
    case COLL_KIND_REDUCE:
        FORM(reduce, send, recv, n, c->dtype, op, c->root, g);
    case COLL_KIND_BROADCAST:
        FORM(broadcast, recv, n, c->dtype, c->root, g);
    case COLL_KIND_ALL_GATHER:
        FORM(all_gather, send, recv, n, c->dtype, g);
    case COLL_KIND_GATHER:
        FORM(gather, send, recv, n, c->dtype, c->root, g);
    case COLL_KIND_SCATTER:
        FORM(scatter, send, recv, n, c->dtype, c->root, g);
    case COLL_KIND_REDUCE_SCATTER:
        FORM(reduce_scatter, send, recv, n, c->dtype, op, g);
    case COLL_KIND_ALL_TO_ALL:
        FORM(all_to_all, send, recv, n, c->dtype, g);
    case COLL_KIND_ALL_GATHER_V:
        FORM(all_gather_v, send, a->recv_counts[c->rank], recv, a->recv_counts,
            a->recv_at, c->dtype, g);
    case COLL_KIND_REDUCE_SCATTER_V:
        FORM(reduce_scatter_v, send, a->send_counts, a->send_at, recv, c->dtype,
            op, g);
    case COLL_KIND_ALL_TO_ALL_V:
        FORM(all_to_all_v, send, a->send_counts, a->send_at, recv,
            a->recv_counts, a->recv_at, c->dtype, g);
    case COLL_KIND_ALL_REDUCE_COALESCED:
        FORM(all_reduce_coalesced, a->many_send, a->many_recv, a->many_counts,
            PARTS, c->dtype, op, g);
    case COLL_KIND_ALL_GATHER_COALESCED:
        FORM(all_gather_coalesced, a->many_send, a->many_recv, a->many_counts,
            PARTS, c->dtype, g);
    case COLL_KIND_REDUCE_SCATTER_COALESCED:
        FORM(reduce_scatter_coalesced, a->many_send, a->many_recv,
            a->many_counts, PARTS, c->dtype, op, g);
    default:
        break;
    }
#undef FORM
    return COLL_ERR_ARGUMENT;
}

/* Where send and recv begin if they are in place. */
static void overlay(const struct one *c, char **send, char **recv)
{
    size_t own = (size_t)c->rank * c->count;

    switch (c->kind) {
    case COLL_KIND_ALL_GATHER:
        *send = at(c, *recv, own);
        break;
    case COLL_KIND_GATHER:
        if (c->rank == c->root)
            *send = at(c, *recv, own);
        break;
    case COLL_KIND_SCATTER:
        if (c->rank == c->root)
            *recv = at(c, *send, own);
        break;
    case COLL_KIND_REDUCE_SCATTER:
        *recv = at(c, *send, own);
        break;
    case COLL_KIND_ALL_GATHER_V:
        *send = at(c, *recv, place(c, c->rank));
        break;
    case COLL_KIND_REDUCE_SCATTER_V:
        *recv = at(c, *send, place(c, c->rank));
        break;
    case COLL_KIND_ALL_GATHER_COALESCED:
    case COLL_KIND_REDUCE_SCATTER_COALESCED:
        break; /* describe() has done it */
    default:
        *send = *recv;
        break;
    }
}

/* Element i of every buffer that is sent from is sent(c, rank, i). */
static void fill(const struct one *c, const struct memory *m, char *send,
    char *recv, const struct arrays *a)
{
    size_t size = coll_dtype_size(c->dtype);
    size_t n = room(c);
    bool is_small = c->kind == COLL_KIND_ALL_GATHER ||
                    c->kind == COLL_KIND_GATHER ||
                    c->kind == COLL_KIND_ALL_GATHER_V;

    memset(m->recv, 0x5a, m->bytes);
    if (c->kind == COLL_KIND_BROADCAST) {
        for (size_t i = 0; c->rank == c->root && i < c->count; i++)
            put(c, recv + i * size, sent(c, c->rank, i));
        return;
    }
    if (c->kind == COLL_KIND_ALL_GATHER_COALESCED) {
        for (size_t k = 0; k < PARTS; k++)
            for (size_t i = 0; i < a->many_counts[k]; i++)
                put(c, (char *)a->many_send[k] + i * size,
                    sent(c, c->rank, place_of_coalesced(c, k) + i));
        return;
    }
    if (c->kind == COLL_KIND_ALL_GATHER_V)
        n = a->recv_counts[c->rank];
    else if (is_small)
        n = c->count;
    for (size_t i = 0; i < n; i++)
        put(c, send + i * size, sent(c, c->rank, i));
}

/* How much of the result is not what it must be; and *end is where it ends. */
static size_t wrong_of(
    const struct one *c, char *recv, const struct arrays *a, size_t *end)
{
    size_t n = c->count;
    size_t own = (size_t)c->rank * n;
    size_t wrong = 0;

    *end = n;
    switch (c->kind) {
    case COLL_KIND_ALL_REDUCE:
        return wrong_in(c, recv, n, REDUCED, 0);
    case COLL_KIND_REDUCE:
        *end = c->rank == c->root ? n : 0;
        return wrong_in(c, recv, *end, REDUCED, 0);
    case COLL_KIND_BROADCAST:
        return wrong_in(c, recv, n, c->root, 0);
    case COLL_KIND_SCATTER:
        return wrong_in(c, recv, n, c->root, own);
    case COLL_KIND_REDUCE_SCATTER:
        return wrong_in(c, recv, n, REDUCED, own);
    case COLL_KIND_REDUCE_SCATTER_V:
        *end = a->send_counts[c->rank];
        return wrong_in(c, recv, *end, REDUCED, place(c, c->rank));
    case COLL_KIND_GATHER:
        *end = c->rank == c->root ? n * (size_t)c->size : 0;
        for (int r = 0; c->rank == c->root && r < c->size; r++)
            wrong += wrong_in(c, at(c, recv, n * (size_t)r), n, r, 0);
        return wrong;
    case COLL_KIND_ALL_GATHER:
    case COLL_KIND_ALL_TO_ALL:
        *end = n * (size_t)c->size;
        for (int r = 0; r < c->size; r++)
            wrong += wrong_in(c, at(c, recv, n * (size_t)r), n, r,
                is_all_to_all(c->kind) ? own : 0);
        return wrong;
    case COLL_KIND_ALL_GATHER_V:
    case COLL_KIND_ALL_TO_ALL_V:
        *end = a->recv_at[0] + a->recv_counts[0];
        for (int r = 0; r < c->size; r++)
            wrong += wrong_in(c, at(c, recv, a->recv_at[r]), a->recv_counts[r],
                r, is_all_to_all(c->kind) ? place(c, c->rank) : 0);
        return wrong;
    default:
        break;
    }
    for (size_t k = 0; k < PARTS; k++) {
        size_t first = place_of_coalesced(c, k);
        char *to = a->many_recv[k];
        size_t count = a->many_counts[k];

        if (c->kind == COLL_KIND_ALL_REDUCE_COALESCED)
            wrong += wrong_in(c, to, count, REDUCED, first);
        else if (c->kind == COLL_KIND_REDUCE_SCATTER_COALESCED)
            wrong += wrong_in(
                c, to, count, REDUCED, first + (size_t)c->rank * count);
        else
            for (int r = 0; r < c->size; r++)
                wrong +=
                    wrong_in(c, at(c, to, (size_t)r * count), count, r, first);
    }
    *end = place_of_coalesced(c, PARTS);
    return wrong;
}

/* Does one operation and looks at what has become of it. */
static void check_one(
    const struct one *c, const struct memory *m, coll_group_t *g)
{
    struct arrays a;
    char *send = m->send;
    char *recv = m->recv;
    coll_work_t *work = NULL;
    size_t wrong;
    size_t end;

    MUST(room(c) * coll_dtype_size(c->dtype) < m->bytes);
    if (c->is_in_place)
        overlay(c, &send, &recv);
    describe(c, m, send, recv, &a);
    fill(c, m, send, recv, &a);
    EXPECT_OK(call(c, send, recv, &a, g, c->is_async ? &work : NULL));
    if (c->is_async)
        EXPECT_OK(coll_work_wait(work, 0));
    else
        EXPECT_OK(coll_gpu_synchronize(g, 0));
    coll_work_free(work);
    wrong = wrong_of(c, recv, &a, &end);
    /* In place there is something else behind it. */
    if (!c->is_in_place && *at(c, recv, end) != 0x5a)
        wrong++;
    EXPECT(wrong == 0,
        "%zu elements of %s are wrong: %zu of %s, %s, root %d, in place %d, "
        "async %d, rank %d of %d",
        wrong, coll_kind_name(c->kind), c->count, coll_dtype_name(c->dtype),
        c->has_premul ? "premul" : coll_op_name(c->op), c->root, c->is_in_place,
        c->is_async, c->rank, c->size);
}

/* --- All of them ---------------------------------------------------------- */

static const enum coll_kind kinds[] = {
    COLL_KIND_ALL_REDUCE,
    COLL_KIND_REDUCE,
    COLL_KIND_BROADCAST,
    COLL_KIND_ALL_GATHER,
    COLL_KIND_GATHER,
    COLL_KIND_SCATTER,
    COLL_KIND_REDUCE_SCATTER,
    COLL_KIND_ALL_TO_ALL,
    COLL_KIND_ALL_GATHER_V,
    COLL_KIND_REDUCE_SCATTER_V,
    COLL_KIND_ALL_TO_ALL_V,
    COLL_KIND_ALL_REDUCE_COALESCED,
    COLL_KIND_ALL_GATHER_COALESCED,
    COLL_KIND_REDUCE_SCATTER_COALESCED,
};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static void memory_take(struct memory *m, int size, size_t count)
{
    const struct one widest = {.size = size, .count = count};

    m->bytes = room(&widest) * 8 + 64;
    m->send = device_memory(m->bytes, 0);
    m->recv = device_memory(m->bytes, 0);
}

static void memory_give(struct memory *m)
{
    device_free(m->send);
    device_free(m->recv);
}

/* Counts and ways to call, with one type and reduction. */
static void every_shape(int rank, int size, void *arg)
{
    static const size_t counts[] = {0, 1, 3, 1000, LARGE};
    size_t ncounts = size > 4 ? 4 : 5;
    struct memory m;

    (void)arg;
    memory_take(&m, size, LARGE);
    for (size_t i = 0; i < KINDS * ncounts * 4; i++) {
        struct one c = {.kind = kinds[i / 4 % KINDS],
            .dtype = COLL_INT32,
            .op = COLL_SUM,
            .count = counts[i / 4 / KINDS],
            .root = (int)((i + i / 4 + i / 4 / KINDS) % (size_t)size),
            .is_in_place = i % 2 == 1,
            .is_async = i / 2 % 2 == 1,
            .rank = rank,
            .size = size};

        /* There is no such thing. */
        if (c.is_in_place && c.kind == COLL_KIND_ALL_TO_ALL_V)
            continue;
        check_one(&c, &m, NULL);
    }
    memory_give(&m);
}

/* What must become of a reduction. */
static coll_status_t status_of(coll_dtype_t dtype, coll_op_t op, int version)
{
    bool is_bitwise = op == COLL_BAND || op == COLL_BOR || op == COLL_BXOR;
    bool is_float8 = dtype == COLL_FLOAT8_E4M3 || dtype == COLL_FLOAT8_E5M2;

    if (is_bitwise ? types[dtype].class == REAL
                   : dtype == COLL_BOOL && op == COLL_AVG)
        return COLL_ERR_ARGUMENT;
    if (dtype == COLL_INT16 || dtype == COLL_UINT16 || op == COLL_BXOR ||
        (is_bitwise && dtype != COLL_BOOL) || (is_float8 && version < 22400))
        return COLL_ERR_UNSUPPORTED;
    return COLL_OK;
}

/* The way to call changes from one to the next. */
static struct one next_case(size_t *i, int rank, int size)
{
    struct one c = {.count = *i % 3 == 0 ? 1000 : 5,
        .root = (int)(*i / 4 % (size_t)size),
        .is_in_place = *i / 2 % 2 == 1,
        .is_async = *i % 2 == 1,
        .rank = rank,
        .size = size};

    ++*i;
    return c;
}

static void refused(const struct one *c, const struct memory *m)
{
    coll_status_t want = status_of(c->dtype, c->op, nccl.version);
    struct arrays a;
    coll_work_t *work = NULL;
    coll_status_t got;

    describe(c, m, m->send, m->recv, &a);
    got = call(c, m->send, m->recv, &a, NULL, c->is_async ? &work : NULL);
    EXPECT(got == want && work == NULL, "%s of %s, %s, async %d: %s (%s)",
        coll_kind_name(c->kind), coll_dtype_name(c->dtype), coll_op_name(c->op),
        c->is_async, coll_strerror(got), coll_last_error());
    EXPECT(strstr(coll_last_error(), coll_kind_name(c->kind)) != NULL &&
               strstr(coll_last_error(), coll_dtype_name(c->dtype)) != NULL,
        "%s", coll_last_error());
}

static void every_type(int rank, int size, void *arg)
{
    struct memory m;
    size_t i = 0;

    (void)arg;
    memory_take(&m, size, 1000);
    EXPECT_OK(coll_gpu_connect(NULL, NULL));
    for (size_t k = 0; k < KINDS; k++) {
        for (int t = 0; t < TYPES; t++) {
            for (int op = COLL_SUM; op <= COLL_BXOR; op++) {
                struct one c = next_case(&i, rank, size);

                c.kind = kinds[k];
                c.dtype = (coll_dtype_t)t;
                c.op = (coll_op_t)op;
                c.is_in_place &= c.kind != COLL_KIND_ALL_TO_ALL_V;
                if (!does_reduce(c.kind) && op > COLL_SUM)
                    break;
                if (!does_reduce(c.kind) ||
                    status_of(c.dtype, c.op, nccl.version) == COLL_OK)
                    check_one(&c, &m, NULL);
                else
                    refused(&c, &m);
            }
        }
    }
    memory_give(&m);
}

static void every_factor(int rank, int size, void *arg)
{
    struct memory m;
    size_t i = 0;

    (void)arg;
    memory_take(&m, size, 1000);
    for (size_t k = 0; k < KINDS; k++) {
        for (int t = 0; t < TYPES; t++) {
            struct one c = next_case(&i, rank, size);

            c.kind = kinds[k];
            c.dtype = (coll_dtype_t)t;
            if (!does_reduce(c.kind) || c.dtype == COLL_BOOL ||
                status_of(c.dtype, COLL_SUM, nccl.version) != COLL_OK)
                continue;
            c.has_premul = true;
            EXPECT_OK(coll_op_premul_sum(&c.premul, factor_of(&c, rank)));
            check_one(&c, &m, NULL);
            EXPECT_OK(coll_op_free(c.premul));
        }
    }
    memory_give(&m);
}

/*
 * Seven ranks only for what depends on their number; and since sanitizers look
 * for other mistakes than those in data, less with them: they are slow.
 */
static const int sizes[] = {1, 2, 3, 4, 7};
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { FIRST_TYPED = 2, LAST_TYPED = 3 };
#else
enum { FIRST_TYPED = 0, LAST_TYPED = 4 };
#endif

START_TEST(every_count_and_form)
{
    doubles_open("libnccl.so.2");
    gpu_ranks(sizes[_i], every_shape, NULL);
}
END_TEST

START_TEST(every_type_and_reduction)
{
    doubles_open("libnccl.so.2");
    gpu_ranks(sizes[_i], every_type, NULL);
}
END_TEST

START_TEST(every_premultiplied_sum)
{
    doubles_open("libnccl.so.2");
    gpu_ranks(sizes[_i], every_factor, NULL);
}
END_TEST

/* Without gather, scatter, all_to_all and the floats of eight bits. */
START_TEST(the_oldest_nccl_does_the_same)
{
    static gpu_rank_fn *const runs[] = {every_shape, every_type, every_factor};

    doubles_open("2.18/libnccl.so.2");
    ck_assert_ptr_null(nccl.all_to_all);
    gpu_ranks(3, runs[_i], NULL);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("operations");

    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, gpu_setup, fakes_teardown);
    tcase_add_loop_test(tcase, every_count_and_form, 0, 5);
    tcase_add_loop_test(
        tcase, every_type_and_reduction, FIRST_TYPED, LAST_TYPED);
    tcase_add_loop_test(
        tcase, every_premultiplied_sum, FIRST_TYPED, LAST_TYPED);
    tcase_add_loop_test(tcase, the_oldest_nccl_does_the_same, 0, 3);
    return unit_run("gpu_ops", tcase);
}
