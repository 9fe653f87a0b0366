/*
 * coll_die RANK ITERATION kill|exit|abort|freeze
 *
 * Reduces in a loop. Rank RANK dies, or stops for good, in iteration
 * ITERATION (0 is the first), a moment after the others have most likely
 * begun to wait for it. Every other rank prints the error and how long
 * the failing call took, and exits with status 3. A rank that sees wrong
 * data exits with status 4.
 *
 *     rank 0 error after 21 ms: rank 2 (pid 123) died during all_reduce #8...
 */
#include <collective.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { COUNT = 1 << 20 };

static int usage(void)
{
    fprintf(stderr, "usage: coll_die RANK ITERATION kill|exit|abort|freeze\n");
    return 2;
}

static int parse_number(const char *text, long *out)
{
    char *end;

    errno = 0;
    *out = strtol(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && *out >= 0;
}

static double now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

static void die(const char *how)
{
    fflush(stdout);
    nanosleep(&(struct timespec){.tv_nsec = 200 * 1000 * 1000}, NULL);
    if (strcmp(how, "kill") == 0)
        raise(SIGKILL);
    else if (strcmp(how, "exit") == 0)
        _exit(7);
    else if (strcmp(how, "abort") == 0)
        abort();
    else
        raise(SIGSTOP);
}

static int run(float *x, long victim, long iteration, const char *how)
{
    int rank = coll_rank(NULL);
    int size = coll_world_size(NULL);

    for (long i = 0;; i++) {
        double begin;

        for (int k = 0; k < COUNT; k++)
            x[k] = (float)(rank + i % 10);
        if (rank == victim && i == iteration)
            die(how);
        begin = now_ms();
        if (coll_all_reduce(x, x, COUNT, COLL_FLOAT32, COLL_SUM, NULL) !=
            COLL_OK) {
            printf("rank %d error after %.0f ms: %s\n", rank, now_ms() - begin,
                coll_last_error());
            return 3;
        }
        for (int k = 0; k < COUNT; k++)
            if (x[k] != (float)(size * (size - 1) / 2 + size * (i % 10)))
                return 4;
    }
}

int main(int argc, char **argv)
{
    long victim;
    long iteration;
    float *x;
    int rc;

    if (argc != 4 || !parse_number(argv[1], &victim) ||
        !parse_number(argv[2], &iteration) ||
        (strcmp(argv[3], "kill") != 0 && strcmp(argv[3], "exit") != 0 &&
            strcmp(argv[3], "abort") != 0 && strcmp(argv[3], "freeze") != 0))
        return usage();
    if (coll_init(NULL) != COLL_OK) {
        fprintf(stderr, "%s\n", coll_last_error());
        return 1;
    }
    if (victim >= coll_world_size(NULL)) {
        fprintf(stderr, "there is no rank %ld among %d\n", victim,
            coll_world_size(NULL));
        coll_destroy();
        return 2;
    }
    x = malloc(COUNT * sizeof(*x));
    if (x == NULL) {
        fprintf(stderr, "out of memory\n");
        coll_destroy();
        return 1;
    }
    rc = run(x, victim, iteration, argv[3]);
    free(x);
    coll_destroy();
    return rc;
}
