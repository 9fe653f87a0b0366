/* The collective benchmark over libcollective. */
#include <collective.h>
#include <stdio.h>

#include "tests/bench/coll_loop.h"

static int check(coll_status_t status)
{
    if (status == COLL_OK)
        return 0;
    fprintf(stderr, "%s\n", coll_last_error());
    return -1;
}

static int all_reduce(const float *send, float *recv, size_t count)
{
    return check(
        coll_all_reduce(send, recv, count, COLL_FLOAT32, COLL_SUM, NULL));
}

static int broadcast(float *buf, size_t count)
{
    return check(coll_broadcast(buf, count, COLL_FLOAT32, 0, NULL));
}

static int all_gather(const float *send, float *recv, size_t count)
{
    return check(coll_all_gather(send, recv, count, COLL_FLOAT32, NULL));
}

static int reduce_scatter(const float *send, float *recv, size_t count)
{
    return check(
        coll_reduce_scatter(send, recv, count, COLL_FLOAT32, COLL_SUM, NULL));
}

static int all_to_all(const float *send, float *recv, size_t count)
{
    return check(coll_all_to_all(send, recv, count, COLL_FLOAT32, NULL));
}

static int barrier(void)
{
    return check(coll_barrier(NULL));
}

static int send_to(const float *buf, size_t count, int peer)
{
    return check(coll_send(buf, count, COLL_FLOAT32, peer, 0, NULL));
}

static int recv_from(float *buf, size_t count, int peer)
{
    return check(coll_recv(buf, count, COLL_FLOAT32, peer, 0, NULL, NULL));
}

static void *alloc(size_t bytes)
{
    void *buf = NULL;

    return check(coll_alloc(&buf, bytes)) < 0 ? NULL : buf;
}

static void release(void *buf)
{
    (void)coll_free(buf);
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
        .alloc = alloc,
        .free = release,
    };
    int rc;

    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    if (check(coll_init(NULL)) < 0)
        return 1;
    coll.rank = coll_rank(NULL);
    coll.size = coll_world_size(NULL);
    rc = bench_coll_loop(&coll, argv[1]);
    if (rc == 0)
        rc = check(coll_destroy());
    return rc < 0;
}
