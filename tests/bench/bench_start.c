/*
 * How long it takes to start N processes of a program that does nothing, and
 * to see them end:
 *
 *   spawn     posix_spawn and waitpid, N times, by this program: what the
 *             kernel takes, and the least that is possible
 *   floor     a fresh process that does just that: the least that a launcher,
 *             being a program of its own, can take
 *   crun      crun --nproc_per_node=N PROGRAM
 *   hydra     MPIEXEC -np N PROGRAM, where given
 *   torchrun  PYTHON -m torch.distributed.run, where given, for few processes
 *             and few times: it takes seconds
 *
 *     bench_start [-m MPIEXEC] [-t PYTHON] CRUN PROGRAM
 *
 * Each round runs all of them once, so that a change of the machine's speed
 * meets them alike. Everything is timed here, from before the spawn to after
 * the wait; the figures are medians over the rounds.
 */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROCESSES_MAX 256
#define ROUNDS_MAX 31
#define TRIES_HYDRA 10
#define TORCHRUN_PROCESSES_MAX 8
#define TORCHRUN_ROUNDS 3

static const struct {
    int nprocesses;
    int nwarmup;
    int nrounds; /* odd, so that one is in the middle */
} counts[] = {
    {1, 5, ROUNDS_MAX},
    {2, 5, ROUNDS_MAX},
    {8, 5, ROUNDS_MAX},
    {64, 2, 15},
    {PROCESSES_MAX, 1, 7},
};
#define COUNTS (sizeof(counts) / sizeof(counts[0]))

enum way { WAY_SPAWN, WAY_FLOOR, WAY_CRUN, WAY_HYDRA, WAY_TORCHRUN, WAY_COUNT };

static const char *const way_names[] = {
    "spawn", "floor", "crun", "hydra", "torchrun"};

struct bench {
    char *program;
    char *launchers[WAY_COUNT]; /* NULL: there is none */
    FILE *table;
};

extern char **environ;

static double now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

static int spawn(pid_t *pid, char *const argv[])
{
    int rc = posix_spawn(pid, argv[0], NULL, NULL, argv, environ);

    if (rc != 0)
        fprintf(stderr, "%s: cannot start: %s\n", argv[0], strerror(rc));
    return -rc;
}

static int wait_success(pid_t pid, const char *name)
{
    int status;

    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            return -errno;
    }
    if (status == 0)
        return 0;
    fprintf(stderr, "%s: failed with wait status 0x%x\n", name, status);
    return -ECHILD;
}

static int run_processes(int n, char *program)
{
    char *const argv[] = {program, NULL};
    pid_t pids[PROCESSES_MAX];
    int started, rc = 0;

    for (started = 0; started < n && rc == 0; started++)
        rc = spawn(&pids[started], argv);
    if (rc < 0)
        started--;
    while (started-- > 0) {
        int rc2 = wait_success(pids[started], program);
        if (rc == 0)
            rc = rc2;
    }
    return rc;
}

static int run_launcher(char *const argv[])
{
    pid_t pid;
    int rc = spawn(&pid, argv);

    return rc < 0 ? rc : wait_success(pid, argv[0]);
}

#define ARGS(...)                                                              \
    (char *const[])                                                            \
    {                                                                          \
        __VA_ARGS__, NULL                                                      \
    }

static int run_way(const struct bench *b, enum way way, int n)
{
    char *launcher = b->launchers[way];
    char number[16], option[48];

    snprintf(number, sizeof(number), "%d", n);
    snprintf(option, sizeof(option), "--nproc_per_node=%d", n);
    switch (way) {
    case WAY_SPAWN:
        return run_processes(n, b->program);
    case WAY_FLOOR:
        return run_launcher(
            ARGS(launcher, (char *)"--floor", number, b->program));
    case WAY_CRUN:
        return run_launcher(ARGS(launcher, option, b->program));
    case WAY_HYDRA:
        return run_launcher(ARGS(launcher, (char *)"-np", number, b->program));
    case WAY_TORCHRUN:
        /* Its default looks the host's name up, which can take minutes where
         * nobody knows it. */
        return run_launcher(ARGS(launcher, (char *)"-m",
            (char *)"torch.distributed.run", (char *)"--rdzv_backend=c10d",
            (char *)"--rdzv_endpoint=127.0.0.1:0",
            (char *)"--local_addr=127.0.0.1", (char *)"--no_python", option,
            b->program));
    case WAY_COUNT:
        break;
    }
    return -EINVAL;
}

/*
 * Times one run. hydra now and then dies of SIGPIPE when its processes end
 * as soon as they have started: such a run is counted and made again. Nobody
 * else may fail.
 */
static int time_way(
    const struct bench *b, enum way way, int n, double *ms, int *failures)
{
    int tries = way == WAY_HYDRA ? TRIES_HYDRA : 1;
    int rc = -EINVAL;

    for (; tries > 0; tries--) {
        double start = now_ms();
        rc = run_way(b, way, n);
        *ms = now_ms() - start;
        if (rc == 0)
            break;
        ++*failures;
    }
    return rc;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof(*values), compare_doubles);
    return values[n / 2];
}

static int nrounds_of(const struct bench *b, enum way way, size_t i)
{
    if (b->launchers[way] == NULL)
        return 0;
    if (way != WAY_TORCHRUN)
        return counts[i].nrounds;
    return counts[i].nprocesses <= TORCHRUN_PROCESSES_MAX ? TORCHRUN_ROUNDS : 0;
}

static void print_figure(FILE *table, int width, int digits, double value)
{
    if (value > 0)
        fprintf(table, " %*.*f", width, digits, value);
    else
        fprintf(table, " %*s", width, "-");
}

/* Prints one line of the table. */
static int bench_count(const struct bench *b, size_t i)
{
    static double ms[WAY_COUNT][ROUNDS_MAX];
    double med[WAY_COUNT] = {0};
    const int n = counts[i].nprocesses;
    int failures = 0;

    for (int round = -counts[i].nwarmup; round < counts[i].nrounds; round++) {
        for (int way = 0; way < WAY_COUNT; way++) {
            int nrounds = nrounds_of(b, way, i);
            double one;
            int rc;

            if (round >= nrounds || nrounds == 0 ||
                (way == WAY_TORCHRUN && round < 0))
                continue;
            rc = time_way(b, way, n, &one, &failures);
            if (rc < 0)
                return rc;
            if (round >= 0)
                ms[way][round] = one;
        }
    }
    fprintf(b->table, "%4d", n);
    for (int way = 0; way < WAY_COUNT; way++) {
        if (nrounds_of(b, way, i) > 0)
            med[way] = median(ms[way], nrounds_of(b, way, i));
        print_figure(b->table, 9, 2, med[way]);
    }
    fprintf(b->table, " |");
    for (int way = 0; way < WAY_COUNT; way++)
        if (way != WAY_CRUN)
            print_figure(b->table, 9, way == WAY_TORCHRUN ? 4 : 2,
                med[way] > 0 ? med[WAY_CRUN] / med[way] : 0);
    if (failures > 0)
        fprintf(b->table, "  (hydra failed %d times)", failures);
    fputc('\n', b->table);
    fflush(b->table);
    return 0;
}

static void print_head(FILE *table)
{
    fprintf(table, "%4s %49s | %s\n%4s", "", "milliseconds", "crun divided by",
        "N");
    for (int way = 0; way < WAY_COUNT; way++)
        fprintf(table, " %9s", way_names[way]);
    fprintf(table, " |");
    for (int way = 0; way < WAY_COUNT; way++)
        if (way != WAY_CRUN)
            fprintf(table, " %9s", way_names[way]);
    fputc('\n', table);
    fflush(table);
}

/* Every process started here has /dev/null for input and output; the table
 * keeps the descriptor that was stdout. */
static FILE *open_table(void)
{
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    int table_fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);

    if (null_fd < 0 || table_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0 ||
        dup2(null_fd, STDOUT_FILENO) < 0) {
        perror("/dev/null");
        return NULL;
    }
    return fdopen(table_fd, "w");
}

static int usage(const char *name)
{
    fprintf(stderr, "usage: %s [-m MPIEXEC] [-t PYTHON] CRUN PROGRAM\n", name);
    return 2;
}

int main(int argc, char **argv)
{
    struct bench b = {.launchers = {
                          [WAY_SPAWN] = (char *)"",
                          [WAY_FLOOR] = (char *)"/proc/self/exe",
                      }};
    int opt;

    if (argc == 4 && strcmp(argv[1], "--floor") == 0) {
        long n = strtol(argv[2], NULL, 10);
        return n < 1 || n > PROCESSES_MAX || run_processes((int)n, argv[3]) < 0;
    }
    while ((opt = getopt(argc, argv, "m:t:")) != -1) {
        if (opt == 'm')
            b.launchers[WAY_HYDRA] = optarg;
        else if (opt == 't')
            b.launchers[WAY_TORCHRUN] = optarg;
        else
            return usage(argv[0]);
    }
    if (argc != optind + 2)
        return usage(argv[0]);
    b.launchers[WAY_CRUN] = argv[optind];
    b.program = argv[optind + 1];
    b.table = open_table();
    if (b.table == NULL)
        return 1;

    print_head(b.table);
    for (size_t i = 0; i < COUNTS; i++)
        if (bench_count(&b, i) < 0)
            return 1;
    return fclose(b.table) != 0;
}
