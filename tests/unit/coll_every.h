/*
 * Every operation behind one function, waiting or not, for tests of what all
 * of them have in common. The data are int32 sums, known to every rank; what
 * other types and reductions make of them is tested elsewhere.
 */
#ifndef COLL_EVERY_H
#define COLL_EVERY_H

#include "tests/unit/coll_harness.h"

/* X(symbol, name, has a root, has a reduction) */
#define EVERY_MAP(X)                                                           \
    X(EVERY_ALL_REDUCE, "all_reduce", false, true)                             \
    X(EVERY_REDUCE, "reduce", true, true)                                      \
    X(EVERY_BROADCAST, "broadcast", true, false)                               \
    X(EVERY_ALL_GATHER, "all_gather", false, false)                            \
    X(EVERY_GATHER, "gather", true, false)                                     \
    X(EVERY_SCATTER, "scatter", true, false)                                   \
    X(EVERY_REDUCE_SCATTER, "reduce_scatter", false, true)                     \
    X(EVERY_ALL_TO_ALL, "all_to_all", false, false)                            \
    X(EVERY_ALL_GATHER_V, "all_gather_v", false, false)                        \
    X(EVERY_REDUCE_SCATTER_V, "reduce_scatter_v", false, true)                 \
    X(EVERY_ALL_TO_ALL_V, "all_to_all_v", false, false)                        \
    X(EVERY_ALL_REDUCE_COALESCED, "all_reduce_coalesced", false, true)         \
    X(EVERY_ALL_GATHER_COALESCED, "all_gather_coalesced", false, false)        \
    X(EVERY_REDUCE_SCATTER_COALESCED, "reduce_scatter_coalesced", false, true) \
    X(EVERY_BARRIER, "barrier", false, false)

enum every {
#define EVERY_ENUM(symbol, name, has_root, has_op) symbol,
    EVERY_MAP(EVERY_ENUM)
#undef EVERY_ENUM
};

static const struct {
    const char *name;
    bool has_root;
    bool has_op;
} every_ops[] = {
#define EVERY_ROW(symbol, name, has_root, has_op) {name, has_root, has_op},
    EVERY_MAP(EVERY_ROW)
#undef EVERY_ROW
};

enum {
    EVERY_OPS = sizeof(every_ops) / sizeof(every_ops[0]),
    EVERY_RANKS = 8,
    EVERY_MANY = 3
};

/* One call. What it points to stays until it is done. */
struct every_call {
    enum every kind;
    size_t count; /* of each part */
    coll_dtype_t dtype;
    coll_op_t op;
    int root;
    char *send; /* [every_elements()] each, or NULL */
    char *recv;
    size_t counts[EVERY_RANKS];
    const void *many_send[EVERY_MANY];
    void *many_recv[EVERY_MANY];
    size_t many_counts[EVERY_MANY];
};

static inline size_t every_elements(const struct every_call *c, int size)
{
    return c->count * (size_t)size * EVERY_MANY;
}

/* work == NULL: waits. */
static inline coll_status_t every_run(
    struct every_call *c, struct coll_group *g, coll_work_t **work)
{
    size_t bytes = coll_dtype_size(c->dtype);
    size_t stride = c->count * (size_t)g->size * bytes;

    for (int r = 0; r < EVERY_RANKS; r++)
        c->counts[r] = c->count;
    for (size_t k = 0; k < EVERY_MANY; k++) {
        c->many_send[k] = c->send == NULL ? NULL : c->send + k * stride;
        c->many_recv[k] = c->recv == NULL ? NULL : c->recv + k * stride;
        c->many_counts[k] = c->count;
    }
#define EVERY_FORM(name, ...)                                                  \
    return work == NULL ? coll_##name(__VA_ARGS__)                             \
                        : coll_##name##_async(__VA_ARGS__, work)
    switch (c->kind) {
    case EVERY_ALL_REDUCE:
        EVERY_FORM(all_reduce, c->send, c->recv, c->count, c->dtype, c->op, g);
    case EVERY_REDUCE:
        EVERY_FORM(
            reduce, c->send, c->recv, c->count, c->dtype, c->op, c->root, g);
    case EVERY_BROADCAST:
        EVERY_FORM(broadcast, g->rank == c->root ? c->send : c->recv, c->count,
            c->dtype, c->root, g);
    case EVERY_ALL_GATHER:
        EVERY_FORM(all_gather, c->send, c->recv, c->count, c->dtype, g);
    case EVERY_GATHER:
        EVERY_FORM(gather, c->send, c->recv, c->count, c->dtype, c->root, g);
    case EVERY_SCATTER:
        EVERY_FORM(scatter, c->send, c->recv, c->count, c->dtype, c->root, g);
    case EVERY_REDUCE_SCATTER:
        EVERY_FORM(
            reduce_scatter, c->send, c->recv, c->count, c->dtype, c->op, g);
    case EVERY_ALL_TO_ALL:
        EVERY_FORM(all_to_all, c->send, c->recv, c->count, c->dtype, g);
    case EVERY_ALL_GATHER_V:
        EVERY_FORM(all_gather_v, c->send, c->count, c->recv, c->counts, NULL,
            c->dtype, g);
    case EVERY_REDUCE_SCATTER_V:
        EVERY_FORM(reduce_scatter_v, c->send, c->counts, NULL, c->recv,
            c->dtype, c->op, g);
    case EVERY_ALL_TO_ALL_V:
        EVERY_FORM(all_to_all_v, c->send, c->counts, NULL, c->recv, c->counts,
            NULL, c->dtype, g);
    case EVERY_ALL_REDUCE_COALESCED:
        EVERY_FORM(all_reduce_coalesced, c->many_send, c->many_recv,
            c->many_counts, EVERY_MANY, c->dtype, c->op, g);
    case EVERY_ALL_GATHER_COALESCED:
        EVERY_FORM(all_gather_coalesced, c->many_send, c->many_recv,
            c->many_counts, EVERY_MANY, c->dtype, g);
    case EVERY_REDUCE_SCATTER_COALESCED:
        EVERY_FORM(reduce_scatter_coalesced, c->many_send, c->many_recv,
            c->many_counts, EVERY_MANY, c->dtype, c->op, g);
    case EVERY_BARRIER:
        break;
    }
#undef EVERY_FORM
    return work == NULL ? coll_barrier(g) : coll_barrier_async(g, work);
}

/* --- Data, and what must become of them ----------------------------------- */

static inline int32_t every_sent(int rank, size_t i)
{
    return rank * 1000 + (int32_t)(i % 641);
}

/* Of int32, filled; op is a sum. */
static inline void every_make(struct every_call *c, enum every kind,
    size_t count, int root, int rank, int size)
{
    size_t n;

    *c = (struct every_call){.kind = kind,
        .count = count,
        .dtype = COLL_INT32,
        .op = COLL_SUM,
        .root = root};
    n = every_elements(c, size);
    c->send = malloc(n * sizeof(int32_t) + 1);
    c->recv = malloc(n * sizeof(int32_t) + 1);
    memset(c->recv, 0x5a, n * sizeof(int32_t) + 1);
    for (size_t i = 0; i < n; i++) {
        int32_t v = every_sent(rank, i);

        memcpy(c->send + i * sizeof(v), &v, sizeof(v));
    }
}

static inline void every_free(struct every_call *c)
{
    free(c->send);
    free(c->recv);
}

static inline int32_t every_sum(int size, size_t i)
{
    int32_t sum = 0;

    for (int r = 0; r < size; r++)
        sum += every_sent(r, i);
    return sum;
}

/* One buffer: what lies at `at` in recv is made of what lay there in send. */
static inline size_t every_wrong_in(
    const struct every_call *c, size_t at, int rank, int size)
{
    size_t mine = at + (size_t)rank * c->count;
    size_t wrong = 0;

    for (size_t i = 0; i < c->count * (size_t)size; i++) {
        int from = (int)(i / c->count);
        size_t j = i % c->count;
        bool is_first = from == 0;
        int32_t want;
        int32_t got;

        memcpy(&got, c->recv + (at + i) * sizeof(got), sizeof(got));
        switch (c->kind) {
        case EVERY_ALL_REDUCE:
        case EVERY_ALL_REDUCE_COALESCED:
            want = every_sum(size, at + j);
            wrong += is_first && got != want;
            break;
        case EVERY_REDUCE:
            want = every_sum(size, at + j);
            wrong += is_first && rank == c->root && got != want;
            break;
        case EVERY_BROADCAST:
            want = every_sent(c->root, at + j);
            wrong += is_first && rank != c->root && got != want;
            break;
        case EVERY_ALL_GATHER:
        case EVERY_ALL_GATHER_V:
        case EVERY_ALL_GATHER_COALESCED:
            wrong += got != every_sent(from, at + j);
            break;
        case EVERY_GATHER:
            wrong += rank == c->root && got != every_sent(from, at + j);
            break;
        case EVERY_SCATTER:
            wrong += is_first && got != every_sent(c->root, mine + j);
            break;
        case EVERY_REDUCE_SCATTER:
        case EVERY_REDUCE_SCATTER_V:
        case EVERY_REDUCE_SCATTER_COALESCED:
            wrong += is_first && got != every_sum(size, mine + j);
            break;
        case EVERY_ALL_TO_ALL:
        case EVERY_ALL_TO_ALL_V:
            wrong += got != every_sent(from, mine + j);
            break;
        case EVERY_BARRIER:
            break;
        }
    }
    return wrong;
}

static inline bool every_is_coalesced(enum every kind)
{
    return kind == EVERY_ALL_REDUCE_COALESCED ||
           kind == EVERY_ALL_GATHER_COALESCED ||
           kind == EVERY_REDUCE_SCATTER_COALESCED;
}

/* How many elements are not what they must be. */
static inline size_t every_wrong(const struct every_call *c, int rank, int size)
{
    size_t buffers = every_is_coalesced(c->kind) ? EVERY_MANY : 1;
    size_t wrong = 0;

    for (size_t k = 0; k < buffers; k++)
        wrong += every_wrong_in(c, k * c->count * (size_t)size, rank, size);
    return wrong;
}

#endif
