/*
 * coll_stuck init|sleep|late|dump RANK
 *
 * Three broadcasts, then an all_reduce, in which all but rank RANK wait for
 * it: it calls coll_init() never (init), or the all_reduce never (sleep) or
 * when the others have given up (late), and says first what its recorder
 * holds (dump). The others print a line before they enter, and the error. They
 * exit with status 3, or wait to be stopped (late).
 */
#include <collective.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 1024, WAIT_MS = 60000 };

static void sleep_for_ever(void)
{
    for (;;)
        pause();
}

static void store_key(char *key, size_t size, int rank)
{
    snprintf(key, size, "gave up/%d", rank);
}

static void say_over(int rank)
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

/* The victim. */
static void hang(const char *how, int rank)
{
    if (strcmp(how, "dump") == 0 &&
        coll_recorder_dump(STDOUT_FILENO) != COLL_OK)
        printf("%s\n", coll_last_error());
    if (strcmp(how, "late") == 0)
        wait_for_others(rank);
    else
        sleep_for_ever();
}

static int run(const char *how, int victim)
{
    static float x[COUNT];
    int rank = coll_rank(NULL);

    for (int i = 0; i < 3; i++)
        if (coll_broadcast(x, 3, COLL_FLOAT32, 1, NULL) != COLL_OK)
            return 4;
    if (rank == victim)
        hang(how, rank);
    printf("rank %d enters\n", rank);
    fflush(stdout);
    if (coll_all_reduce(x, x, COUNT, COLL_FLOAT32, COLL_SUM, NULL) == COLL_OK)
        return 0;
    printf("rank %d: %s\n", rank, coll_last_error());
    fflush(stdout);
    if (strcmp(how, "late") == 0) {
        say_over(rank);
        sleep_for_ever();
    }
    return 3;
}

int main(int argc, char **argv)
{
    const char *rank = getenv("RANK");
    int victim;
    int rc;

    if (argc != 3 || rank == NULL) {
        fprintf(stderr, "usage: coll_stuck init|sleep|late|dump RANK\n");
        return 2;
    }
    victim = (int)strtol(argv[2], NULL, 10);
    if (strcmp(argv[1], "init") == 0 && strtol(rank, NULL, 10) == victim)
        sleep_for_ever();
    if (coll_init(NULL) != COLL_OK) {
        fprintf(stderr, "%s\n", coll_last_error());
        return 1;
    }
    rc = run(argv[1], victim);
    coll_destroy();
    return rc;
}
