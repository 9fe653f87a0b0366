/*
 * A worker of a job of several nodes on one machine, which measures how long
 * the launchers take to start the workers of all nodes, to stop them when one
 * has died, and to start them anew:
 *
 *     node_worker -s FILE COMMAND...           notes the time, runs a launcher
 *     LAUNCHER node_worker FILE DEATHS [WAY]
 *     node_worker -p FILE                      prints what was measured
 *
 * The workers of all generations share FILE as memory. When all of a generation
 * run, and there have not been DEATHS of them, the one with the last rank kills
 * itself; the others end as soon as they are told to stop; all of the last
 * generation succeed. WAY is how they wait: pause, attached (like that, with
 * libcollective), or reduce (in an all_reduce, which they leave with its error;
 * none that gets data or is stopped before counts as good).
 *
 * -p prints, in milliseconds, from the last -s until the last worker of the
 * first generation was in main(); then, of the deaths, median and worst of the
 * times until the last worker of any other node was about to end, or was back
 * from its call, and of those until the last worker of the next generation was
 * in main(). "-" stands for what there is not.
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

#include <collective.h>

#define WORKERS_MAX 256
#define DEATHS_MAX 32
#define PAUSE_NS (2 * 1000000)
#define TRIES_MAX 30000 /* of that: a minute */
#define QUIET_NS (50 * 1000000)

/* Of a worker: where it was and when. */
struct mark {
    int node;
    double started_ms;
    double stopped_ms; /* 0: it was not */
};

struct generation {
    atomic_int nup;
    int node; /* where one died */
    double died_ms;
    struct mark marks[WORKERS_MAX];
};

struct board {
    double launched_ms;
    atomic_int nstarted; /* in all generations */
    int nworkers;
    int ndeaths;
    struct generation generations[DEATHS_MAX + 1];
};

static struct mark *mark;

static double now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

static struct board *open_board(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *board = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, sizeof(struct board)) == 0)
        board = mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE,
            MAP_SHARED, fd, 0);
    if (board == MAP_FAILED) {
        perror(path);
        exit(1);
    }
    return board;
}

static void note_launch(const char *path)
{
    struct board *board = open_board(path);

    board->launched_ms = now_ms();
    munmap(board, sizeof(*board));
}

/* --- The worker --------------------------------------------------------- */

static void on_stop(int sig)
{
    (void)sig;
    mark->stopped_ms = now_ms();
    _exit(0);
}

/* The stop is too late, or what came instead of the error. */
static void on_early_stop(int sig)
{
    (void)sig;
    _exit(4);
}

static int variable(const char *name, int max)
{
    const char *text = getenv(name);
    long value = text != NULL ? strtol(text, NULL, 10) : -1;

    return value < 0 || value > max ? -1 : (int)value;
}

static bool wait_for_all(const struct generation *g, int nworkers)
{
    const struct timespec pause_ts = {0, PAUSE_NS};

    for (int i = 0; atomic_load(&g->nup) < nworkers; i++) {
        if (i == TRIES_MAX)
            return false;
        nanosleep(&pause_ts, NULL);
    }
    return true;
}

/* The others are asleep by then, and so are the launchers. */
static void die(struct generation *g)
{
    nanosleep(&(struct timespec){0, QUIET_NS}, NULL);
    g->node = mark->node;
    g->died_ms = now_ms();
    raise(SIGKILL);
}

/* In a call that cannot succeed. */
static int reduce(void)
{
    float x = 1;
    coll_status_t status;

    status = coll_all_reduce(&x, &x, 1, COLL_FLOAT32, COLL_SUM, NULL);
    if (status == COLL_OK)
        return 4;
    mark->stopped_ms = now_ms();
    return 3;
}

static int work(
    struct board *board, int ndeaths, const char *way, double started_ms)
{
    const int nworkers = variable("WORLD_SIZE", WORKERS_MAX);
    const int rank = variable("RANK", WORKERS_MAX - 1);
    const int node = variable("GROUP_RANK", WORKERS_MAX - 1);
    bool is_attached = strcmp(way, "pause") != 0;
    bool is_reducing = strcmp(way, "reduce") == 0;
    struct generation *g;
    int number;

    if (nworkers < 1 || rank < 0 || node < 0) {
        fprintf(stderr, "node_worker: not below a launcher\n");
        return 2;
    }
    /* Not all launchers number generations alike on all nodes; but none starts
     * before the one before has been started everywhere. */
    number = atomic_fetch_add(&board->nstarted, 1) / nworkers;
    if (number > ndeaths) {
        fprintf(stderr, "node_worker: started once too often\n");
        return 1;
    }
    g = &board->generations[number];
    mark = &g->marks[rank];
    mark->node = node;
    mark->started_ms = started_ms;
    board->nworkers = nworkers;
    board->ndeaths = ndeaths;
    signal(SIGTERM, is_reducing ? on_early_stop : on_stop);
    if (is_attached && coll_init(NULL) != COLL_OK) {
        fprintf(stderr, "node_worker: %s\n", coll_last_error());
        return 1;
    }
    atomic_fetch_add(&g->nup, 1);
    if (!wait_for_all(g, nworkers))
        return 1;
    if (number == ndeaths)
        return 0;
    if (rank == nworkers - 1)
        die(g);
    if (is_reducing)
        return reduce();
    for (;;)
        pause();
}

/* --- Figures ------------------------------------------------------------ */

static double latest_start(const struct board *board, int generation)
{
    double max = 0;

    for (int i = 0; i < board->nworkers; i++)
        if (board->generations[generation].marks[i].started_ms > max)
            max = board->generations[generation].marks[i].started_ms;
    return max;
}

/* Of other nodes; 0 if one of them was not stopped. */
static double latest_stop(const struct board *board, int generation)
{
    const struct generation *g = &board->generations[generation];
    double max = 0;

    for (int i = 0; i < board->nworkers; i++) {
        if (g->marks[i].node == g->node)
            continue;
        if (g->marks[i].stopped_ms <= 0)
            return 0;
        if (g->marks[i].stopped_ms > max)
            max = g->marks[i].stopped_ms;
    }
    return max;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void print_times(double *ms, int n)
{
    qsort(ms, (size_t)n, sizeof(*ms), compare_doubles);
    if (n > 0)
        printf(" %.2f %.2f", ms[n / 2], ms[n - 1]);
    else
        printf(" - -");
}

static int print(const struct board *board)
{
    double stop[DEATHS_MAX], start[DEATHS_MAX];

    for (int n = 0; n < board->ndeaths; n++) {
        double died_ms = board->generations[n].died_ms;
        double stopped_ms = latest_stop(board, n);
        double started_ms = latest_start(board, n + 1);

        if (died_ms <= 0 || stopped_ms <= 0 || started_ms <= 0) {
            fprintf(stderr, "node_worker: death %d has not ended all\n", n);
            return 1;
        }
        stop[n] = stopped_ms - died_ms;
        start[n] = started_ms - died_ms;
    }
    if (board->nworkers == 0)
        return 1;
    printf("%.2f", latest_start(board, 0) - board->launched_ms);
    print_times(stop, board->ndeaths);
    print_times(start, board->ndeaths);
    putchar('\n');
    return 0;
}

static int usage(void)
{
    fprintf(stderr, "usage: node_worker FILE DEATHS [pause|attached|reduce]\n"
                    "       node_worker -s FILE COMMAND...\n"
                    "       node_worker -p FILE\n");
    return 2;
}

int main(int argc, char **argv)
{
    double started_ms = now_ms();
    long ndeaths;

    if (argc == 3 && strcmp(argv[1], "-p") == 0)
        return print(open_board(argv[2]));
    if (argc > 3 && strcmp(argv[1], "-s") == 0) {
        note_launch(argv[2]);
        execvp(argv[3], argv + 3);
        perror(argv[3]);
        return 127;
    }
    ndeaths = argc == 3 || argc == 4 ? strtol(argv[2], NULL, 10) : -1;
    if (ndeaths < 0 || ndeaths > DEATHS_MAX)
        return usage();
    return work(open_board(argv[1]), (int)ndeaths,
        argc == 4 ? argv[3] : "pause", started_ms);
}
