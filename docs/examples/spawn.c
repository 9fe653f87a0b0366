/*
 * A program that starts its own workers: no launcher is needed. Each of them
 * adds up every nprocs-th term of a series for pi, and rank 0 prints the sum.
 *
 *     ./spawn        four workers
 *     ./spawn 8      eight
 */
#include <collective.h>
#include <stdio.h>
#include <stdlib.h>

static const long terms = 10 * 1000 * 1000;

/* Runs in each worker; local_rank is also its rank. */
static int work(int local_rank, void *arg)
{
    const char *label = arg; /* memory from before is there, as a copy */
    double sum = 0.0;

    if (coll_init(NULL) != COLL_OK) {
        fprintf(stderr, "worker %d: %s\n", local_rank, coll_last_error());
        return 1;
    }
    for (long i = coll_rank(NULL); i < terms; i += coll_world_size(NULL))
        sum += (i % 2 == 0 ? 4.0 : -4.0) / (double)(2 * i + 1);
    if (coll_all_reduce(&sum, &sum, 1, COLL_FLOAT64, COLL_SUM, NULL) !=
        COLL_OK) {
        fprintf(stderr, "worker %d: %s\n", local_rank, coll_last_error());
        return 1;
    }
    if (coll_rank(NULL) == 0)
        printf("%s is about %.6f, say %d workers\n", label, sum,
            coll_world_size(NULL));
    coll_destroy();
    return 0;
}

int main(int argc, char **argv)
{
    char label[] = "pi";
    int nprocs = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 4;

    if (coll_spawn(work, label, nprocs, NULL) != COLL_OK) {
        fprintf(stderr, "%s\n", coll_last_error());
        return 1;
    }
    return 0;
}
