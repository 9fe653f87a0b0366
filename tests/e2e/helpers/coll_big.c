/*
 * coll_big COUNT
 *
 * all_reduce of COUNT float32 and broadcast of COUNT int32, in place, with
 * the first, the middle and the last elements checked. With COUNT above 2^30
 * that is more than 4 GiB per rank, which no 32-bit length survives. Prints
 * "rank R of N ok".
 */
#include <collective.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Elements at the start, around the middle and at the end. */
enum { PROBES = 64 };

static size_t probe(size_t count, size_t i)
{
    size_t part = i % 3;
    size_t at = i / 3;
    size_t from = part == 0   ? at
                  : part == 1 ? count / 2 + at
                              : count - 1 - at % count;

    return from < count ? from : count - 1;
}

static int check_reduce(float *x, size_t count)
{
    int rank = coll_rank(NULL);
    int size = coll_world_size(NULL);

    for (size_t i = 0; i < count; i++)
        x[i] = (float)(i % 1021) + (float)rank;
    if (coll_all_reduce(x, x, count, COLL_FLOAT32, COLL_SUM, NULL) != COLL_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, coll_last_error());
        return 1;
    }
    for (size_t i = 0; i < PROBES; i++) {
        size_t at = probe(count, i);

        if (x[at] !=
            (float)(at % 1021) * (float)size + (float)(size * (size - 1) / 2)) {
            fprintf(stderr, "rank %d: sum %zu is wrong\n", rank, at);
            return 1;
        }
    }
    return 0;
}

static int check_broadcast(int32_t *x, size_t count)
{
    int rank = coll_rank(NULL);
    int root = coll_world_size(NULL) - 1;

    for (size_t i = 0; i < count; i++)
        x[i] = rank == root ? (int32_t)(i % 65521) : -1;
    if (coll_broadcast(x, count, COLL_INT32, root, NULL) != COLL_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, coll_last_error());
        return 1;
    }
    for (size_t i = 0; i < PROBES; i++) {
        size_t at = probe(count, i);

        if (x[at] != (int32_t)(at % 65521)) {
            fprintf(stderr, "rank %d: element %zu is wrong\n", rank, at);
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    unsigned long long count = 0;
    char *end = NULL;
    void *x;
    int rc;

    errno = 0;
    if (argc == 2 && argv[1][0] >= '1' && argv[1][0] <= '9')
        count = strtoull(argv[1], &end, 10);
    if (count == 0 || errno != 0 || *end != '\0' || count > SIZE_MAX / 4) {
        fprintf(stderr, "usage: coll_big COUNT\n");
        return 2;
    }
    x = malloc((size_t)count * 4);
    if (x == NULL) {
        fprintf(stderr, "no memory for %llu elements\n", count);
        return 1;
    }
    if (coll_init(NULL) != COLL_OK) {
        fprintf(stderr, "%s\n", coll_last_error());
        free(x);
        return 1;
    }
    rc = check_reduce(x, (size_t)count);
    if (rc == 0)
        rc = check_broadcast(x, (size_t)count);
    if (rc == 0)
        printf("rank %d of %d ok\n", coll_rank(NULL), coll_world_size(NULL));
    free(x);
    coll_destroy();
    return rc;
}
