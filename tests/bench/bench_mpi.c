/* The collective benchmark over MPI: the peer that libcollective is measured
 * against. Compiled once with each MPI's own compiler. */
#include <stdio.h>

#include <mpi.h>

#include "tests/bench/coll_loop.h"

/* MPI's default error handler ends the job with a message, so a call that
 * returns has succeeded. */

static int all_reduce(const float *send, float *recv, size_t count)
{
    MPI_Allreduce(send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return 0;
}

static int broadcast(float *buf, size_t count)
{
    MPI_Bcast(buf, (int)count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    return 0;
}

static int all_gather(const float *send, float *recv, size_t count)
{
    MPI_Allgather(send, (int)count, MPI_FLOAT, recv, (int)count, MPI_FLOAT,
        MPI_COMM_WORLD);
    return 0;
}

static int reduce_scatter(const float *send, float *recv, size_t count)
{
    MPI_Reduce_scatter_block(
        send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return 0;
}

static int all_to_all(const float *send, float *recv, size_t count)
{
    MPI_Alltoall(send, (int)count, MPI_FLOAT, recv, (int)count, MPI_FLOAT,
        MPI_COMM_WORLD);
    return 0;
}

static int barrier(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
    return 0;
}

static int send_to(const float *buf, size_t count, int peer)
{
    MPI_Send(buf, (int)count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
    return 0;
}

static int recv_from(float *buf, size_t count, int peer)
{
    MPI_Recv(
        buf, (int)count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return 0;
}

int main(int argc, char **argv)
{
    struct bench_coll coll = {
        .all_reduce = all_reduce,
        .broadcast = broadcast,
        .all_gather = all_gather,
        .reduce_scatter = reduce_scatter,
        .all_to_all = all_to_all,
        .barrier = barrier,
        .send = send_to,
        .recv = recv_from,
    };
    int rc;

    MPI_Init(&argc, &argv);
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
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
