/*
 * A worker that measures how long its launcher takes to stop and to start
 * workers anew after one of them has died:
 *
 *     LAUNCHER restart_worker FILE
 *     restart_worker -p FILE
 *
 * The workers of all rounds share FILE as memory. When all of a round run,
 * one of them kills itself; those that are told to stop do so at once; in the
 * last round all succeed. With -p: prints for the rounds that ended so the
 * medians of the times from the death until the last of the others was about
 * to end, and until the last worker of the next round was in main(), and the
 * worst of the latter, in milliseconds.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define RANKS_MAX 256
#define ROUNDS_MAX 64
#define PAUSE_NS (2 * 1000000)
#define TRIES_MAX 30000 /* of that: a minute */
#define QUIET_NS (20 * 1000000)

struct round {
    atomic_int nup;
    double died_ms;
    double started_ms[RANKS_MAX];
    double stopped_ms[RANKS_MAX];
};

struct board {
    int nranks;
    struct round rounds[ROUNDS_MAX];
};

static struct round *this_round;
static int rank;

static double now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

static void on_stop(int sig)
{
    (void)sig;
    this_round->stopped_ms[rank] = now_ms();
    _exit(0);
}

static int variable(const char *name, int max)
{
    const char *text = getenv(name);
    long value = text != NULL ? strtol(text, NULL, 10) : -1;

    return value < 0 || value > max ? -1 : (int)value;
}

static int work(struct board *board, double started_ms)
{
    const struct timespec pause_ts = {0, PAUSE_NS};
    const int nranks = variable("WORLD_SIZE", RANKS_MAX);
    const int round = variable("TORCHELASTIC_RESTART_COUNT", ROUNDS_MAX - 1);
    const int last = variable("TORCHELASTIC_MAX_RESTARTS", ROUNDS_MAX - 1);

    rank = variable("RANK", RANKS_MAX - 1);
    if (nranks < 0 || round < 0 || last < 0 || rank < 0) {
        fprintf(stderr, "restart_worker: not below a launcher\n");
        return 2;
    }
    this_round = &board->rounds[round];
    this_round->started_ms[rank] = started_ms;
    board->nranks = nranks;
    signal(SIGTERM, on_stop);
    atomic_fetch_add(&this_round->nup, 1);
    for (int i = 0; atomic_load(&this_round->nup) < nranks; i++) {
        if (i == TRIES_MAX)
            return 1;
        nanosleep(&pause_ts, NULL);
    }
    if (round == last)
        return 0;
    if (rank == nranks / 2) {
        /* The others are asleep by then, and so is the launcher. */
        nanosleep(&(struct timespec){0, QUIET_NS}, NULL);
        this_round->died_ms = now_ms();
        kill(getpid(), SIGKILL);
    }
    for (;;)
        pause();
}

static double latest(const double *values, int n)
{
    double max = 0;

    for (int i = 0; i < n; i++)
        if (values[i] > max)
            max = values[i];
    return max;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int print(const struct board *board)
{
    double stop[ROUNDS_MAX], start[ROUNDS_MAX];
    int n = 0;

    for (; n < ROUNDS_MAX - 1 && board->rounds[n].died_ms > 0; n++) {
        const struct round *r = &board->rounds[n];

        stop[n] = latest(r->stopped_ms, board->nranks) - r->died_ms;
        start[n] = latest(r[1].started_ms, board->nranks) - r->died_ms;
    }
    if (n == 0)
        return 1;
    qsort(stop, (size_t)n, sizeof(*stop), compare_doubles);
    qsort(start, (size_t)n, sizeof(*start), compare_doubles);
    printf("%.2f %.2f %.2f\n", stop[n / 2], start[n / 2], start[n - 1]);
    return 0;
}

int main(int argc, char **argv)
{
    double started_ms = now_ms();
    bool has_print = argc == 3 && strcmp(argv[1], "-p") == 0;
    struct board *board;
    int fd;

    if (argc != 2 && !has_print) {
        fprintf(stderr, "usage: restart_worker [-p] FILE\n");
        return 2;
    }
    fd = open(argv[argc - 1], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(*board)) < 0) {
        perror(argv[argc - 1]);
        return 1;
    }
    board =
        mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (board == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    return has_print ? print(board) : work(board, started_ms);
}
