/*
 * Every operation on one node against a slow reference that is computed from
 * what each rank is known to have sent: sizes of groups, counts, types,
 * reductions, in place or not.
 */
#include <stdint.h>
#include <stdlib.h>

#include "tests/unit/coll_harness.h"
#include "tests/unit/unit.h"

/* Element i of what a rank sends, small enough to be exact in every type. */
static int sent(int rank, size_t i)
{
    return (int)((i * 7 + (size_t)rank * 3 + i / 11) % 4);
}

static void put(char *at, coll_dtype_t dtype, double value)
{
    float f = (float)value;
    uint32_t bits;
    uint16_t bf;
    int64_t i64 = (int64_t)value;

    switch (dtype) {
    case COLL_FLOAT32:
        memcpy(at, &f, sizeof(f));
        return;
    case COLL_FLOAT64:
        memcpy(at, &value, sizeof(value));
        return;
    case COLL_BFLOAT16:
        memcpy(&bits, &f, sizeof(bits));
        bf = (uint16_t)(bits >> 16);
        memcpy(at, &bf, sizeof(bf));
        return;
    default: /* little-endian integers */
        memcpy(at, &i64, coll_dtype_size(dtype));
        return;
    }
}

/* What the operations must make of element i of all ranks. */
static double reduced(int size, size_t i, coll_op_t op)
{
    int acc = sent(0, i);

    for (int r = 1; r < size; r++) {
        int v = sent(r, i);

        if (op == COLL_MIN)
            acc = v < acc ? v : acc;
        else if (op == COLL_MAX)
            acc = v > acc ? v : acc;
        else if (op == COLL_BXOR)
            acc ^= v;
        else
            acc += v;
    }
    return acc;
}

struct buffers {
    int rank;
    size_t size; /* of an element */
    coll_dtype_t dtype;
    char *send, *recv;
    char *send_memory, *recv_memory;
    size_t send_count, recv_count;
};

/* Both filled: what is sent, and what must not remain. */
/* Which buffers come from coll_alloc(). */
static enum { ORDINARY, ALLOCATED, MIXED } memory;

static char *take(size_t bytes, int rank, int which)
{
    void *out = NULL;

    if (memory == ORDINARY || (memory == MIXED && (rank + which) % 2 == 0))
        return malloc(bytes);
    EXPECT_OK(coll_alloc(&out, bytes));
    return out;
}

static void give_back(char *buf, int rank, int which)
{
    if (memory == ORDINARY || (memory == MIXED && (rank + which) % 2 == 0))
        free(buf);
    else
        EXPECT_OK(coll_free(buf));
}

static void buffers_make(struct buffers *b, int rank, coll_dtype_t dtype,
    size_t send_count, size_t recv_count, int shift)
{
    *b = (struct buffers){.rank = rank,
        .size = coll_dtype_size(dtype),
        .dtype = dtype,
        .send_count = send_count,
        .recv_count = recv_count};
    b->send_memory = take(send_count * b->size + 8, rank, 0);
    b->recv_memory = take(recv_count * b->size + 8, rank, 1);
    b->send = b->send_memory + shift;
    b->recv = b->recv_memory + shift;
    for (size_t i = 0; i < send_count; i++)
        put(b->send + i * b->size, dtype, sent(rank, i));
    memset(b->recv, 0x5a, recv_count * b->size + 1);
}

static void buffers_free(struct buffers *b)
{
    EXPECT(b->recv[b->recv_count * b->size] == 0x5a,
        "rank %d: written behind the end", b->rank);
    give_back(b->send_memory, b->rank, 0);
    give_back(b->recv_memory, b->rank, 1);
}

static void expect_at(struct buffers *b, const char *what, const char *base,
    size_t i, double value)
{
    char want[8];

    put(want, b->dtype, value);
    EXPECT(memcmp(want, base + i * b->size, b->size) == 0,
        "%s: rank %d, element %zu of %s is wrong", what, b->rank, i,
        coll_dtype_name(b->dtype));
}

/* One case that all ranks run. */
struct ops_case {
    size_t count;
    coll_dtype_t dtype;
    coll_op_t op;
    int shift;
    bool in_place;
};

/* --- One operation each --------------------------------------------------- */

static void try_reduce(
    struct coll_group *g, int rank, const struct ops_case *c, int root)
{
    struct buffers b;
    char *send;

    buffers_make(&b, rank, c->dtype, c->count, c->count, c->shift);
    send = b.send;
    if (c->in_place && rank == root) {
        memcpy(b.recv, b.send, c->count * b.size);
        send = b.recv;
    }
    EXPECT_OK(coll_reduce(send, rank == root ? b.recv : NULL, c->count,
        c->dtype, c->op, root, g));
    for (size_t i = 0; rank == root && i < c->count; i++)
        expect_at(&b, "reduce", b.recv, i, reduced(g->size, i, c->op));
    buffers_free(&b);
}

static void try_all_reduce(
    struct coll_group *g, int rank, const struct ops_case *c)
{
    struct buffers b;
    char *send;

    buffers_make(&b, rank, c->dtype, c->count, c->count, c->shift);
    send = b.send;
    if (c->in_place) {
        memcpy(b.recv, b.send, c->count * b.size);
        send = b.recv;
    }
    EXPECT_OK(coll_all_reduce(send, b.recv, c->count, c->dtype, c->op, g));
    for (size_t i = 0; i < c->count; i++)
        expect_at(&b, "all_reduce", b.recv, i, reduced(g->size, i, c->op));
    buffers_free(&b);
}

static void try_broadcast(
    struct coll_group *g, int rank, const struct ops_case *c, int root)
{
    struct buffers b;

    buffers_make(&b, rank, c->dtype, c->count, c->count, c->shift);
    EXPECT_OK(coll_broadcast(
        rank == root ? b.send : b.recv, c->count, c->dtype, root, g));
    for (size_t i = 0; i < c->count; i++)
        expect_at(
            &b, "broadcast", rank == root ? b.send : b.recv, i, sent(root, i));
    buffers_free(&b);
}

/* root -1: all_gather */
static void try_gather(
    struct coll_group *g, int rank, const struct ops_case *c, int root)
{
    size_t n = (size_t)g->size;
    bool is_receiver = root < 0 || root == rank;
    struct buffers b;
    char *send;

    buffers_make(&b, rank, c->dtype, c->count, c->count * n, c->shift);
    send = b.send;
    if (c->in_place && is_receiver) {
        send = b.recv + (size_t)rank * c->count * b.size;
        memcpy(send, b.send, c->count * b.size);
    }
    if (root < 0)
        EXPECT_OK(coll_all_gather(send, b.recv, c->count, c->dtype, g));
    else
        EXPECT_OK(coll_gather(
            send, is_receiver ? b.recv : NULL, c->count, c->dtype, root, g));
    for (size_t r = 0; is_receiver && r < n; r++)
        for (size_t i = 0; i < c->count; i++)
            expect_at(&b, "gather", b.recv, r * c->count + i, sent((int)r, i));
    buffers_free(&b);
}

static void try_scatter(
    struct coll_group *g, int rank, const struct ops_case *c, int root)
{
    size_t n = (size_t)g->size;
    size_t first = (size_t)rank * c->count;
    struct buffers b;
    char *recv;

    buffers_make(&b, rank, c->dtype, c->count * n, c->count, c->shift);
    recv = c->in_place && rank == root ? b.send + first * b.size : b.recv;
    EXPECT_OK(coll_scatter(
        rank == root ? b.send : NULL, recv, c->count, c->dtype, root, g));
    for (size_t i = 0; i < c->count; i++)
        expect_at(&b, "scatter", recv, i, sent(root, first + i));
    buffers_free(&b);
}

static void try_reduce_scatter(
    struct coll_group *g, int rank, const struct ops_case *c)
{
    size_t n = (size_t)g->size;
    size_t first = (size_t)rank * c->count;
    struct buffers b;
    char *recv;

    buffers_make(&b, rank, c->dtype, c->count * n, c->count, c->shift);
    recv = c->in_place ? b.send + first * b.size : b.recv;
    EXPECT_OK(coll_reduce_scatter(b.send, recv, c->count, c->dtype, c->op, g));
    for (size_t i = 0; i < c->count; i++)
        expect_at(
            &b, "reduce_scatter", recv, i, reduced(g->size, first + i, c->op));
    buffers_free(&b);
}

static void try_all_to_all(
    struct coll_group *g, int rank, const struct ops_case *c)
{
    size_t n = (size_t)g->size;
    size_t first = (size_t)rank * c->count;
    struct buffers b;
    char *send;

    buffers_make(&b, rank, c->dtype, c->count * n, c->count * n, c->shift);
    send = b.send;
    if (c->in_place) {
        memcpy(b.recv, b.send, c->count * n * b.size);
        send = b.recv;
    }
    EXPECT_OK(coll_all_to_all(send, b.recv, c->count, c->dtype, g));
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < c->count; i++)
            expect_at(&b, "all_to_all", b.recv, r * c->count + i,
                sent((int)r, first + i));
    buffers_free(&b);
}

/* --- Parts of different length -------------------------------------------- */

/* Elements that go from one rank to another; some of them none. */
static size_t uneven(const struct ops_case *c, int from, int to)
{
    return c->count * (size_t)((from * 5 + to * 3) % 4) / 2;
}

/* Offsets with holes, where they are asked for. */
static size_t lay_out(const size_t *counts, size_t *at, int n, size_t hole)
{
    size_t end = 0;

    for (int r = 0; r < n; r++) {
        at[r] = end;
        end += counts[r] + hole;
    }
    return end;
}

static void try_all_gather_v(
    struct coll_group *g, int rank, const struct ops_case *c)
{
    size_t counts[8];
    size_t at[8];
    size_t hole = c->shift != 0 ? 3 : 0;
    size_t end;
    struct buffers b;
    char *send;

    for (int r = 0; r < g->size; r++)
        counts[r] = uneven(c, r, 0);
    end = lay_out(counts, at, g->size, hole);
    buffers_make(&b, rank, c->dtype, counts[rank], end, c->shift);
    send = b.send;
    if (c->in_place) {
        send = b.recv + at[rank] * b.size;
        memcpy(send, b.send, counts[rank] * b.size);
    }
    EXPECT_OK(coll_all_gather_v(
        send, counts[rank], b.recv, counts, hole > 0 ? at : NULL, c->dtype, g));
    for (int r = 0; r < g->size; r++) {
        for (size_t i = 0; i < counts[r]; i++)
            expect_at(&b, "all_gather_v", b.recv, at[r] + i, sent(r, i));
        for (size_t i = 0; i < hole * b.size; i++)
            EXPECT(b.recv[(at[r] + counts[r]) * b.size + i] == 0x5a,
                "a hole was written");
    }
    buffers_free(&b);
}

static void try_reduce_scatter_v(
    struct coll_group *g, int rank, const struct ops_case *c)
{
    size_t counts[8];
    size_t at[8];
    size_t hole = c->shift != 0 ? 2 : 0;
    size_t end;
    struct buffers b;
    char *recv;

    for (int r = 0; r < g->size; r++)
        counts[r] = uneven(c, r, 1);
    end = lay_out(counts, at, g->size, hole);
    buffers_make(&b, rank, c->dtype, end, counts[rank], c->shift);
    recv = c->in_place ? b.send + at[rank] * b.size : b.recv;
    EXPECT_OK(coll_reduce_scatter_v(
        b.send, counts, hole > 0 ? at : NULL, recv, c->dtype, c->op, g));
    for (size_t i = 0; i < counts[rank]; i++)
        expect_at(&b, "reduce_scatter_v", recv, i,
            reduced(g->size, at[rank] + i, c->op));
    buffers_free(&b);
}

static void try_all_to_all_v(
    struct coll_group *g, int rank, const struct ops_case *c)
{
    size_t send_counts[8], send_at[8];
    size_t recv_counts[8], recv_at[8];
    size_t theirs[8], their_at[8];
    size_t hole = c->shift != 0 ? 1 : 0;
    size_t send_end, recv_end;
    struct buffers b;

    for (int r = 0; r < g->size; r++) {
        send_counts[r] = uneven(c, rank, r);
        recv_counts[r] = uneven(c, r, rank);
    }
    send_end = lay_out(send_counts, send_at, g->size, hole);
    recv_end = lay_out(recv_counts, recv_at, g->size, hole);
    buffers_make(&b, rank, c->dtype, send_end, recv_end, c->shift);
    EXPECT_OK(coll_all_to_all_v(b.send, send_counts, hole > 0 ? send_at : NULL,
        b.recv, recv_counts, hole > 0 ? recv_at : NULL, c->dtype, g));
    for (int r = 0; r < g->size; r++) {
        for (int to = 0; to < g->size; to++)
            theirs[to] = uneven(c, r, to);
        lay_out(theirs, their_at, g->size, hole);
        for (size_t i = 0; i < recv_counts[r]; i++)
            expect_at(&b, "all_to_all_v", b.recv, recv_at[r] + i,
                sent(r, their_at[rank] + i));
    }
    buffers_free(&b);
}

/* --- Many buffers --------------------------------------------------------- */

enum { MANY = 9 };

static void try_coalesced(
    struct coll_group *g, int rank, const struct ops_case *c)
{
    size_t n = (size_t)g->size;
    size_t counts[MANY];
    const void *send[MANY];
    void *recv[MANY];
    struct buffers b[MANY];

    for (int form = 0; form < 3; form++) {
        for (size_t k = 0; k < MANY; k++) {
            counts[k] = c->count * (k % 3) / 2 + k % 2;
            buffers_make(&b[k], rank, c->dtype, counts[k] * (form == 2 ? n : 1),
                counts[k] * (form == 1 ? n : 1), c->shift);
            send[k] = b[k].send;
            recv[k] = b[k].recv;
        }
        if (form == 0)
            EXPECT_OK(coll_all_reduce_coalesced(
                send, recv, counts, MANY, c->dtype, c->op, g));
        else if (form == 1)
            EXPECT_OK(coll_all_gather_coalesced(
                send, recv, counts, MANY, c->dtype, g));
        else
            EXPECT_OK(coll_reduce_scatter_coalesced(
                send, recv, counts, MANY, c->dtype, c->op, g));
        for (size_t k = 0; k < MANY; k++) {
            size_t first = form == 2 ? (size_t)rank * counts[k] : 0;

            for (size_t i = 0; i < counts[k]; i++) {
                if (form != 1)
                    expect_at(&b[k], "coalesced", recv[k], i,
                        reduced(g->size, first + i, c->op));
                else
                    for (size_t r = 0; r < n; r++)
                        expect_at(&b[k], "coalesced", recv[k],
                            r * counts[k] + i, sent((int)r, i));
            }
            buffers_free(&b[k]);
        }
    }
}

/* --- The tests ------------------------------------------------------------ */

static void run_case(struct coll_group *g, int rank, void *arg)
{
    const struct ops_case *c = arg;

    try_all_reduce(g, rank, c);
    try_reduce(g, rank, c, 0);
    try_reduce(g, rank, c, g->size - 1);
    try_broadcast(g, rank, c, g->size / 2);
    try_gather(g, rank, c, -1);
    try_gather(g, rank, c, g->size - 1);
    try_scatter(g, rank, c, 0);
    try_scatter(g, rank, c, g->size - 1);
    try_reduce_scatter(g, rank, c);
    try_all_to_all(g, rank, c);
    try_all_gather_v(g, rank, c);
    try_reduce_scatter_v(g, rank, c);
    if (!c->in_place)
        try_all_to_all_v(g, rank, c);
    if (!c->in_place && c->count < 1000)
        try_coalesced(g, rank, c);
    EXPECT_OK(coll_barrier(g));
}

/* All cases of one group, which is made once. */
static void run_all(struct coll_group *g, int rank, void *arg)
{
    static const size_t counts[] = {0, 1, 5, 1000, 20000};
    static const struct {
        coll_dtype_t dtype;
        coll_op_t op;
    } kinds[] = {
        {COLL_FLOAT32, COLL_SUM},
        {COLL_INT64, COLL_MAX},
        {COLL_UINT8, COLL_BXOR},
        {COLL_BFLOAT16, COLL_SUM},
    };

    (void)arg;
    for (size_t k = 0; k < 4; k++)
        for (size_t n = 0; n < (UNIT_IS_SANITIZED && k > 0 ? 4 : 5); n++)
            for (int style = 0; style < 2; style++) {
                struct ops_case c = {.count = counts[n],
                    .dtype = kinds[k].dtype,
                    .op = kinds[k].op,
                    .shift = style == 0 ? 0 : 1 + (int)k % 3,
                    .in_place = style == 0};

                run_case(g, rank, &c);
                c.in_place = !c.in_place;
                run_case(g, rank, &c);
            }
}

static void every_operation(int size)
{
    struct harness_store st;

    harness_store_start(&st);
    harness_run(&st, size, 60000, run_all, NULL);
    harness_store_stop(&st);
}

static const int sizes[] = {1, 2, 3, 4, 7, 8};

START_TEST(on_one_node)
{
    harness_backend = sizes[_i] == 1 ? &coll_backend_self : &coll_backend_shm;
    every_operation(sizes[_i]);
}
END_TEST

/* Larger than all slots, and of more than one chunk per lane. */
static void run_large(struct coll_group *g, int rank, void *arg)
{
    struct ops_case c = {
        .count = 300001, .dtype = COLL_FLOAT32, .op = COLL_SUM, .shift = 1};

    (void)arg;
    for (int i = 0; i < 3; i++) {
        run_case(g, rank, &c);
        c.in_place = !c.in_place;
        c.shift = i == 1 ? 0 : 1;
        c.dtype = i == 0 ? COLL_BFLOAT16 : COLL_INT32;
        c.count = i == 0 ? 40000 : 9001;
    }
}

/* Read by the kernel, mapped, some of both, and neither. */
START_TEST(large_ones)
{
    static const int sizes_of[] = {3, 4, 3, 2};
    struct harness_store st;

    memory = _i == 1 ? ALLOCATED : _i == 2 ? MIXED : ORDINARY;
    if (_i == 3)
        setenv("COLL_CMA", "0", 1);
    harness_store_start(&st);
    harness_run(&st, sizes_of[_i], 60000, run_large, NULL);
    harness_store_stop(&st);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("coll_ops");

    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(
        tc, on_one_node, 0, (int)(sizeof(sizes) / sizeof(sizes[0])));
    tcase_add_loop_test(tc, large_ones, 0, 4);
    return unit_run("coll_ops", tc);
}
