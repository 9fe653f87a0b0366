/*
 * What t0220 runs: programs that start their own workers.
 *
 *     spawn_check sum N     N workers add up their ranks, 0 prints the sum
 *     spawn_check hold N    N workers that ignore SIGTERM, each with a child in
 *                           a session of its own, say "ready" and stay
 *     spawn_check die N     rank N-1 ends itself with SIGSEGV, the others wait
 *                           for it in a collective
 *     spawn_check cuda N    sum before and after CUDA was initialized
 */
#include <collective.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int fail(void)
{
    fprintf(stderr, "%s\n", coll_last_error());
    return 1;
}

static int sum_up(int local_rank, void *arg)
{
    int64_t sum = local_rank;

    (void)arg;
    if (coll_init(NULL) != COLL_OK ||
        coll_all_reduce(&sum, &sum, 1, COLL_INT64, COLL_SUM, NULL) != COLL_OK)
        return fail();
    if (local_rank == 0)
        printf("sum %d of %d\n", (int)sum, coll_world_size(NULL));
    coll_destroy();
    return 0;
}

static int hold(int local_rank, void *arg)
{
    (void)local_rank;
    (void)arg;
    signal(SIGTERM, SIG_IGN);
    if (fork() == 0)
        setsid();
    else
        puts("ready");
    fflush(stdout);
    while (pause() < 0)
        continue; /* a handler has run */
    return 0;
}

static int die(int local_rank, void *arg)
{
    const struct rlimit no_core = {0, 0};
    int nprocs = *(int *)arg;

    if (coll_init(NULL) != COLL_OK || coll_barrier(NULL) != COLL_OK)
        return fail();
    if (local_rank < nprocs - 1)
        return coll_barrier(NULL) == COLL_OK ? 0 : fail();
    setrlimit(RLIMIT_CORE, &no_core);
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
    return 0;
}

static int spawn(coll_spawn_fn_t *fn, int nprocs)
{
    return coll_spawn(fn, &nprocs, nprocs, NULL) == COLL_OK ? 0 : fail();
}

static int use_cuda(int nprocs)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = NULL;

    if (library != NULL)
        init = (int (*)(unsigned))dlsym(library, "cuInit");
    if (init == NULL) {
        fprintf(stderr, "there is no CUDA driver\n");
        return 2;
    }
    if (spawn(sum_up, nprocs) != 0)
        return 3;
    if (init(0) != 0)
        return 4;
    return spawn(sum_up, nprocs);
}

int main(int argc, char **argv)
{
    int nprocs = argc == 3 ? (int)strtol(argv[2], NULL, 10) : 0;

    if (nprocs > 0 && strcmp(argv[1], "sum") == 0)
        return spawn(sum_up, nprocs);
    if (nprocs > 0 && strcmp(argv[1], "hold") == 0)
        return spawn(hold, nprocs);
    if (nprocs > 0 && strcmp(argv[1], "die") == 0)
        return spawn(die, nprocs);
    if (nprocs > 0 && strcmp(argv[1], "cuda") == 0)
        return use_cuda(nprocs);
    fprintf(stderr, "usage: spawn_check sum|hold|die|cuda N\n");
    return 2;
}
