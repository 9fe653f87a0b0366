/* The collective benchmark over MPI: the peer that libcollective is measured
 * against. Compiled once with each MPI's own compiler. */
#include <stdio.h>

#include <mpi.h>

#include "tests/bench/coll_loop.h"

/* MPI's default error handler ends the job with a message, so a call that
 * returns has succeeded. */

static int barrier(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
    return 0;
}

static int all_reduce_sum(const float *send, float *recv, size_t count)
{
    MPI_Allreduce(send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return 0;
}

static int all_reduce_max(double *values, size_t count)
{
    MPI_Allreduce(
        MPI_IN_PLACE, values, (int)count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return 0;
}

int main(int argc, char **argv)
{
    struct bench_coll coll = {
        .barrier = barrier,
        .all_reduce_sum = all_reduce_sum,
        .all_reduce_max = all_reduce_max,
    };
    int rc;

    MPI_Init(&argc, &argv);
    if (argc != 2) {
        fprintf(stderr, "usage: %s OUTPUT\n", argv[0]);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &coll.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &coll.size);
    rc = bench_coll_loop(&coll, argv[1]);
    if (rc < 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return 0;
}
