/*
 * Data for tests of the operations, whose right results are known, and one
 * all_reduce that is checked element by element.
 */
#ifndef CRUN_TESTS_COLL_CASES_H
#define CRUN_TESTS_COLL_CASES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/coll_harness.h"

/* Small integers: every intermediate result is exact in every type. */
static inline int value_of(int rank, size_t i, coll_op_t op)
{
    if (op == COLL_PRODUCT)
        return (int)((i * 7 + (size_t)rank * 3) % 5) - 2;
    return (int)((i * 37 + (size_t)rank * 101) % 2001) - 1000;
}

static inline void put(char *at, coll_dtype_t dtype, double value)
{
    float f = (float)value;
    int32_t i32 = (int32_t)value;
    int64_t i64 = (int64_t)value;

    if (dtype == COLL_FLOAT32)
        memcpy(at, &f, sizeof(f));
    else if (dtype == COLL_FLOAT64)
        memcpy(at, &value, sizeof(value));
    else if (dtype == COLL_INT32)
        memcpy(at, &i32, sizeof(i32));
    else
        memcpy(at, &i64, sizeof(i64));
}

/* Converted to an integer type by put() it truncates toward zero. */
static inline double reference(int size, size_t i, coll_op_t op)
{
    double acc = value_of(0, i, op);

    for (int r = 1; r < size; r++) {
        double v = value_of(r, i, op);

        if (op == COLL_MIN)
            acc = v < acc ? v : acc;
        else if (op == COLL_MAX)
            acc = v > acc ? v : acc;
        else if (op == COLL_PRODUCT)
            acc *= v;
        else
            acc += v;
    }
    return op == COLL_AVG ? acc / size : acc;
}

/* style: bit 0 in place, bits 1 and 2 shift the buffers off alignment. */
static inline void reduce_once(struct coll_group *g, int rank, size_t count,
    coll_dtype_t dtype, coll_op_t op, int style)
{
    size_t size = coll_dtype_size(dtype);
    size_t bytes = count * size;
    char *send_memory = malloc(bytes + 16);
    char *recv_memory = malloc(bytes + 16);
    char *send = send_memory + (style & 2 ? 1 + rank % 3 : 0);
    char *recv = style & 1 ? send : recv_memory + (style & 4 ? 5 : 0);
    size_t wrong = 0;

    for (size_t i = 0; i < count; i++)
        put(send + i * size, dtype, value_of(rank, i, op));
    recv[bytes] = 77; /* nothing may be written behind the end */
    EXPECT_OK(coll_all_reduce(send, recv, count, dtype, op, g));
    for (size_t i = 0; i < count; i++) {
        char want[8];

        put(want, dtype, reference(g->size, i, op));
        wrong += memcmp(want, recv + i * size, size) != 0;
    }
    EXPECT(wrong == 0 && recv[bytes] == 77,
        "rank %d: %zu wrong of %zu %s %s, style %d, end %d", rank, wrong, count,
        coll_dtype_name(dtype), coll_op_name(op), style, recv[bytes]);
    free(send_memory);
    free(recv_memory);
}

#endif
