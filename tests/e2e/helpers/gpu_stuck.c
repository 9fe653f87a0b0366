/*
 * gpu_stuck sleep|kill|hang RANK
 *
 * Three all_reduces on the device, then a fourth one, which does not end:
 * rank RANK never enters it (sleep), or kills itself when the others are in it
 * (kill), or it is the device that hangs (hang). The others print the error,
 * and all that can leave the group and exit, with status 3.
 */
#include <collective_gpu.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 1024, WAIT_MS = 60000 };

static void store_key(char *key, size_t size, int rank)
{
    snprintf(key, size, "entered/%d", rank);
}

static void say_entered(int rank)
{
    char key[32];

    store_key(key, sizeof(key), rank);
    coll_store_set(coll_default_store(), key, "", 0);
}

static void wait_for_others(int rank)
{
    for (int r = 0; r < coll_world_size(NULL); r++) {
        char text[32];
        const char *key = text;

        store_key(text, sizeof(text), r);
        if (r != rank)
            coll_store_wait(coll_default_store(), &key, 1, WAIT_MS);
    }
}

static void fail_as(const char *how, int rank)
{
    if (strcmp(how, "kill") == 0) {
        wait_for_others(rank);
        raise(SIGKILL);
    }
    while (strcmp(how, "sleep") == 0)
        pause();
}

static int run(const char *how, int victim, float *x)
{
    int rank = coll_rank(NULL);

    for (int i = 0; i < 3; i++)
        if (coll_all_reduce(x, x, COUNT, COLL_FLOAT32, COLL_SUM, NULL) !=
            COLL_OK)
            return 4;
    if (coll_gpu_synchronize(NULL, 0) != COLL_OK)
        return 4;
    if (rank == victim)
        fail_as(how, rank);
    if (coll_all_reduce(x, x, COUNT, COLL_FLOAT32, COLL_SUM, NULL) != COLL_OK)
        return 5;
    say_entered(rank);
    if (coll_gpu_synchronize(NULL, 0) == COLL_OK)
        return 0;
    printf("rank %d: %s\n", rank, coll_last_error());
    fflush(stdout);
    return 3;
}

int main(int argc, char **argv)
{
    void *x;
    int rc;

    if (argc != 3) {
        fprintf(stderr, "usage: gpu_stuck sleep|kill|hang RANK\n");
        return 2;
    }
    if (coll_gpu_device() < 0 || coll_init(NULL) != COLL_OK ||
        coll_gpu_alloc(&x, COUNT * sizeof(float)) != COLL_OK) {
        fprintf(stderr, "%s\n", coll_last_error());
        return 1;
    }
    rc = run(argv[1], (int)strtol(argv[2], NULL, 10), x);
    if (rc == 4 || rc == 5)
        printf("%s\n", coll_last_error());
    if (coll_destroy() != COLL_OK)
        printf("%s\n", coll_last_error());
    return rc;
}
