/*
 * A worker that runs a mixture of operations over types and sizes, checks
 * every element, and prints "rank R of N ok".
 */
#include <collective.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set(void *buf, size_t i, coll_dtype_t dtype, int64_t value)
{
    switch (dtype) {
    case COLL_FLOAT32:
        ((float *)buf)[i] = (float)value;
        return;
    case COLL_FLOAT64:
        ((double *)buf)[i] = (double)value;
        return;
    case COLL_INT32:
        ((int32_t *)buf)[i] = (int32_t)value;
        return;
    case COLL_INT64:
        ((int64_t *)buf)[i] = value;
        return;
    default:
        return; /* not used here */
    }
}

static int64_t get(const void *buf, size_t i, coll_dtype_t dtype)
{
    switch (dtype) {
    case COLL_FLOAT32:
        return (int64_t)((const float *)buf)[i];
    case COLL_FLOAT64:
        return (int64_t)((const double *)buf)[i];
    case COLL_INT32:
        return ((const int32_t *)buf)[i];
    case COLL_INT64:
        return ((const int64_t *)buf)[i];
    default:
        return 0;
    }
}

static int64_t value_of(int rank, size_t i)
{
    return (int64_t)(i % 17) + rank * 3;
}

static int64_t expected(size_t i, int size, coll_op_t op)
{
    int64_t first = value_of(0, i);
    int64_t last = value_of(size - 1, i);
    int64_t sum = (first + last) * size / 2; /* an arithmetic series */

    switch (op) {
    case COLL_SUM:
        return sum;
    case COLL_AVG:
        return sum / size;
    case COLL_MIN:
        return first;
    case COLL_MAX:
        return last;
    default:
        return 0; /* value_of() is not used for products */
    }
}

static int failed(const char *what)
{
    fprintf(
        stderr, "rank %d: %s: %s\n", coll_rank(NULL), what, coll_last_error());
    return 1;
}

static int check_reduce(
    void *send, void *recv, size_t count, coll_dtype_t dtype, coll_op_t op)
{
    int rank = coll_rank(NULL);
    int size = coll_world_size(NULL);

    for (size_t i = 0; i < count; i++)
        set(send, i, dtype, value_of(rank, i));
    if (coll_all_reduce(send, recv, count, dtype, op, NULL) != COLL_OK)
        return failed("all_reduce");
    for (size_t i = 0; i < count; i++) {
        if (get(recv, i, dtype) == expected(i, size, op))
            continue;
        fprintf(stderr, "rank %d: all_reduce %s %s: element %zu is wrong\n",
            rank, coll_dtype_name(dtype), coll_op_name(op), i);
        return 1;
    }
    return 0;
}

/* The product of 1s, and one 2 per rank. */
static int check_product(double *buf, size_t count)
{
    size_t rank = (size_t)coll_rank(NULL);
    size_t size = (size_t)coll_world_size(NULL);

    for (size_t i = 0; i < count; i++)
        buf[i] = i % size == rank ? 2 : 1;
    if (coll_all_reduce(buf, buf, count, COLL_FLOAT64, COLL_PRODUCT, NULL) !=
        COLL_OK)
        return failed("all_reduce");
    for (size_t i = 0; i < count; i++) {
        if (buf[i] != 2) {
            fprintf(stderr, "rank %zu: product %zu is wrong\n", rank, i);
            return 1;
        }
    }
    return 0;
}

static int check_broadcast(int32_t *buf, size_t count, int root)
{
    int rank = coll_rank(NULL);

    for (size_t i = 0; i < count; i++)
        buf[i] = rank == root ? (int32_t)i * 5 + root : -1;
    if (coll_broadcast(buf, count, COLL_INT32, root, NULL) != COLL_OK)
        return failed("broadcast");
    for (size_t i = 0; i < count; i++) {
        if (buf[i] != (int32_t)i * 5 + root) {
            fprintf(stderr, "rank %d: broadcast element %zu from %d is wrong\n",
                rank, i, root);
            return 1;
        }
    }
    return 0;
}

static int check_all(void *send, void *recv, size_t max_count)
{
    const size_t counts[] = {0, 1, 7, 1000, 33333, max_count};

    for (int c = 0; c < 6; c++) {
        size_t count = counts[c];

        for (int dtype = COLL_FLOAT32; dtype <= COLL_INT64; dtype++)
            for (int op = COLL_SUM; op < COLL_PRODUCT; op++)
                if (check_reduce(send, op % 2 ? send : recv, count,
                        (coll_dtype_t)dtype, (coll_op_t)op) != 0)
                    return 1;
        if (check_product(send, count) != 0)
            return 1;
        for (int root = 0; root < coll_world_size(NULL); root++)
            if (check_broadcast(recv, count, root) != 0)
                return 1;
        if (coll_barrier(NULL) != COLL_OK)
            return failed("barrier");
    }
    return 0;
}

int main(void)
{
    const size_t max_count = 300001;
    void *send = malloc(max_count * 8);
    void *recv = malloc(max_count * 8);
    int rc = 1;

    if (send == NULL || recv == NULL) {
        fprintf(stderr, "out of memory\n");
    } else if (coll_init(NULL) != COLL_OK) {
        fprintf(stderr, "%s\n", coll_last_error());
    } else {
        rc = check_all(send, recv, max_count);
        if (rc == 0)
            printf(
                "rank %d of %d ok\n", coll_rank(NULL), coll_world_size(NULL));
        coll_destroy();
    }
    free(send);
    free(recv);
    return rc;
}
