/*
 * How long it takes to start N processes of /bin/true and see them end:
 *
 *   spawn  posix_spawn and waitpid, N times, by this program: what the
 *          kernel takes, and the least that is possible
 *   floor  a fresh process that does just that: the least that a launcher,
 *          being a program of its own, can take
 *   crun   crun --nproc_per_node=N /bin/true
 *   hydra  mpiexec.hydra -np N /bin/true, where given
 *
 *     bench_start CRUN [MPIEXEC]
 *
 * Each round runs all of them once, so that a change of the machine's speed
 * meets them alike. Everything is timed here, from before the spawn to after
 * the wait; the figures are medians over the rounds.
 */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TRUE_PATH "/bin/true"
#define WARMUP_ROUNDS 5
#define ROUNDS 31
#define TRIES_HYDRA 10
#define PROCESSES_MAX 64

static const int process_counts[] = {1, 2, 8, PROCESSES_MAX};
#define COUNTS (sizeof(process_counts) / sizeof(process_counts[0]))

enum way { WAY_SPAWN, WAY_FLOOR, WAY_CRUN, WAY_HYDRA, WAY_COUNT };

extern char **environ;

static double now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

static int spawn(pid_t *pid, const char *path, char *const argv[])
{
    int rc = posix_spawn(pid, path, NULL, NULL, argv, environ);

    if (rc != 0)
        fprintf(stderr, "%s: cannot start: %s\n", path, strerror(rc));
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

static int run_true(int n)
{
    char *const argv[] = {(char *)TRUE_PATH, NULL};
    pid_t pids[PROCESSES_MAX];
    int started, rc = 0;

    for (started = 0; started < n && rc == 0; started++)
        rc = spawn(&pids[started], TRUE_PATH, argv);
    if (rc < 0)
        started--;
    while (started-- > 0) {
        int rc2 = wait_success(pids[started], TRUE_PATH);
        if (rc == 0)
            rc = rc2;
    }
    return rc;
}

static int run_program(char *const argv[])
{
    pid_t pid;
    int rc = spawn(&pid, argv[0], argv);

    return rc < 0 ? rc : wait_success(pid, argv[0]);
}

static int run_way(enum way way, int n, char *crun, char *hydra)
{
    char number[16], option[48];

    snprintf(number, sizeof(number), "%d", n);
    snprintf(option, sizeof(option), "--nproc_per_node=%d", n);
    switch (way) {
    case WAY_SPAWN:
        return run_true(n);
    case WAY_FLOOR:
        return run_program((char *[]){
            (char *)"/proc/self/exe", (char *)"--floor", number, NULL});
    case WAY_CRUN:
        return run_program((char *[]){crun, option, (char *)TRUE_PATH, NULL});
    case WAY_HYDRA:
        return run_program(
            (char *[]){hydra, (char *)"-np", number, (char *)TRUE_PATH, NULL});
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
    enum way way, int n, char *crun, char *hydra, double *ms, int *failures)
{
    int tries = way == WAY_HYDRA ? TRIES_HYDRA : 1;
    int rc = -EINVAL;

    for (; tries > 0; tries--) {
        double start = now_ms();
        rc = run_way(way, n, crun, hydra);
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

static double median(double *values, size_t n)
{
    qsort(values, n, sizeof(*values), compare_doubles);
    return values[n / 2];
}

/* Prints one line of the table. */
static int bench_count(FILE *table, int n, char *crun, char *hydra)
{
    static double ms[WAY_COUNT][ROUNDS];
    double med[WAY_COUNT];
    int failures = 0;
    int ways = hydra != NULL ? WAY_COUNT : WAY_HYDRA;

    for (int round = -WARMUP_ROUNDS; round < ROUNDS; round++) {
        for (int way = 0; way < ways; way++) {
            double one;
            int rc = time_way(way, n, crun, hydra, &one, &failures);
            if (rc < 0)
                return rc;
            if (round >= 0)
                ms[way][round] = one;
        }
    }
    for (int way = 0; way < ways; way++)
        med[way] = median(ms[way], ROUNDS);
    fprintf(table, "%4d %10.3f %10.3f %10.3f", n, med[WAY_SPAWN],
        med[WAY_FLOOR], med[WAY_CRUN]);
    if (hydra != NULL)
        fprintf(table, " %10.3f", med[WAY_HYDRA]);
    else
        fprintf(table, " %10s", "-");
    fprintf(table, " %12.2f %12.2f", med[WAY_CRUN] / med[WAY_SPAWN],
        med[WAY_CRUN] / med[WAY_FLOOR]);
    if (hydra != NULL)
        fprintf(table, " %12.2f", med[WAY_CRUN] / med[WAY_HYDRA]);
    else
        fprintf(table, " %12s", "-");
    if (failures > 0)
        fprintf(table, "  (hydra failed %d times)", failures);
    fputc('\n', table);
    fflush(table);
    return 0;
}

int main(int argc, char **argv)
{
    int null_fd, table_fd;
    FILE *table;

    if (argc == 3 && strcmp(argv[1], "--floor") == 0) {
        long n = strtol(argv[2], NULL, 10);
        return n < 1 || n > PROCESSES_MAX || run_true((int)n) < 0;
    }
    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: %s CRUN [MPIEXEC]\n", argv[0]);
        return 2;
    }

    /* Every process started here has /dev/null for input and output; the
     * table keeps the descriptor that was stdout. */
    null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    table_fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    if (null_fd < 0 || table_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0 ||
        dup2(null_fd, STDOUT_FILENO) < 0) {
        perror("/dev/null");
        return 1;
    }
    table = fdopen(table_fd, "w");
    if (table == NULL)
        return 1;

    fprintf(table, "%4s %10s %10s %10s %10s %12s %12s %12s\n", "N", "spawn ms",
        "floor ms", "crun ms", "hydra ms", "crun/spawn", "crun/floor",
        "crun/hydra");
    for (size_t i = 0; i < COUNTS; i++) {
        if (bench_count(table, process_counts[i], argv[1],
                argc == 3 ? argv[2] : NULL) < 0)
            return 1;
    }
    return fclose(table) != 0;
}
