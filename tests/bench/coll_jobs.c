/*
 * Starts jobs, each in a process group and a folder of its own, and gives them
 * turns over a socket per rank. A rank that ends or does not answer fails the
 * benchmark; the last lines of its job's log say why.
 */
#include "tests/bench/coll_jobs.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define START_MS 60000
#define TURN_MS 120000
#define END_MS 10000

const char *bench_op_name(enum bench_op op)
{
    static const char *const names[] = {
#define BENCH_OP_NAME(symbol, name) [symbol] = name,
        BENCH_OP_MAP(BENCH_OP_NAME)
#undef BENCH_OP_NAME
    };

    return op < BENCH_OP_COUNT ? names[op] : "?";
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double bench_median(double *values, size_t n)
{
    qsort(values, n, sizeof(*values), compare_doubles);
    return values[n / 2];
}

/* --- Starting ------------------------------------------------------------ */

static void show_log(const struct bench_job *job)
{
    char command[256];

    fprintf(stderr, "%s failed; the end of its output:\n", job->name);
    snprintf(command, sizeof(command), "tail -n 20 '%s/log' >&2", job->dir);
    if (system(command) != 0)
        fprintf(stderr, "(none)\n");
}

static int make_area(struct bench_job *job)
{
    char path[128];
    int fd;

    snprintf(path, sizeof(path), "%s/area", job->dir);
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0 && ftruncate(fd, sizeof(*job->area)) == 0)
        job->area = mmap(NULL, sizeof(*job->area), PROT_READ | PROT_WRITE,
            MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (job->area != NULL && job->area != MAP_FAILED)
        return 0;
    job->area = NULL;
    perror(path);
    return -1;
}

static int listen_at(const struct bench_job *job)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(at.sun_path, sizeof(at.sun_path), "%s/turns", job->dir);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 &&
        listen(fd, BENCH_RANKS_MAX) == 0)
        return fd;
    perror(at.sun_path);
    if (fd >= 0)
        close(fd);
    return -1;
}

static int run_command(struct bench_job *job, const char *command)
{
    job->pid = fork();
    if (job->pid < 0) {
        perror("fork");
        return -1;
    }
    if (job->pid == 0) {
        char line[4096], path[128];
        int in, out;
        setpgid(0, 0);
        snprintf(path, sizeof(path), "%s/log", job->dir);
        in = open("/dev/null", O_RDONLY);
        out = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
        if (in < 0 || out < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 ||
            dup2(out, 2) < 0)
            _exit(126);
        close(in);
        close(out);
        snprintf(line, sizeof(line), "exec %s %s", command, job->dir);
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    setpgid(job->pid, job->pid);
    return 0;
}

static bool is_readable(int fd, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int n;

    do
        n = poll(&p, 1, timeout_ms);
    while (n < 0 && errno == EINTR);
    return n == 1;
}

/* Waits in steps, so that a job that cannot start is noticed at once. */
static bool somebody_comes(const struct bench_job *job, int listener)
{
    for (int waited = 0; waited < START_MS; waited += 100) {
        siginfo_t ended = {0};
        if (is_readable(listener, 100))
            return true;
        if (waitid(P_PID, (id_t)job->pid, &ended, WEXITED | WNOHANG | WNOWAIT) <
                0 ||
            ended.si_pid != 0)
            return false;
    }
    return false;
}

static int meet_rank(struct bench_job *job, int listener)
{
    struct bench_hello hello;
    int fd;

    if (!somebody_comes(job, listener))
        return -1;
    fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return -1;
    if (!is_readable(fd, START_MS) ||
        recv(fd, &hello, sizeof(hello), 0) != (ssize_t)sizeof(hello) ||
        hello.rank < 0 || hello.rank >= job->size ||
        job->fds[hello.rank] >= 0) {
        close(fd);
        return -1;
    }
    job->fds[hello.rank] = fd;
    job->ops &= hello.ops;
    job->has_alloc = job->has_alloc && hello.has_alloc;
    return 0;
}

int bench_job_start(struct bench_job *job, const char *name,
    const char *command, const char *dir, int size)
{
    int listener = -1;

    *job = (struct bench_job){
        .name = name, .size = size, .ops = ~0u, .has_alloc = true};
    for (int i = 0; i < BENCH_RANKS_MAX; i++)
        job->fds[i] = -1;
    if (snprintf(job->dir, sizeof(job->dir), "%s", dir) >=
            (int)sizeof(job->dir) ||
        size > BENCH_RANKS_MAX) {
        fprintf(stderr, "%s: too long a name, or too many ranks\n", dir);
        return -1;
    }
    if (mkdir(dir, 0700) < 0) {
        perror(dir);
        return -1;
    }
    listener = listen_at(job);
    if (listener < 0 || make_area(job) < 0 || run_command(job, command) < 0)
        goto fail;
    for (int i = 0; i < size; i++) {
        if (meet_rank(job, listener) < 0) {
            show_log(job);
            goto fail;
        }
    }
    close(listener);
    return 0;
fail:
    if (listener >= 0)
        close(listener);
    return -1;
}

/* --- Turns --------------------------------------------------------------- */

bool bench_job_has(const struct bench_job *job, enum bench_op op)
{
    return (job->ops >> op & 1) != 0;
}

static int run_turn(struct bench_job *job, const struct bench_turn *turn,
    struct bench_done *sum)
{
    for (int i = 0; i < job->size; i++)
        if (send(job->fds[i], turn, sizeof(*turn), MSG_NOSIGNAL) < 0)
            return -1;
    for (int i = 0; i < job->size; i++) {
        struct bench_done done;
        if (!is_readable(job->fds[i], TURN_MS) ||
            recv(job->fds[i], &done, sizeof(done), 0) !=
                (ssize_t)sizeof(done) ||
            done.rc < 0 || done.calls == 0 || done.calls > BENCH_CALLS_MAX)
            return -1;
        sum->calls = done.calls;
        sum->wrong += done.wrong;
    }
    return 0;
}

int bench_job_turn(struct bench_job *job, const struct bench_turn *turn,
    struct bench_time *time)
{
    double us[BENCH_CALLS_MAX];
    double sum_us = 0;
    struct bench_done done = {0};

    if (run_turn(job, turn, &done) < 0) {
        fprintf(stderr, "%s of %llu bytes:\n",
            bench_op_name((enum bench_op)turn->op),
            (unsigned long long)turn->bytes);
        show_log(job);
        return -1;
    }
    for (uint32_t i = 0; i < done.calls; i++) {
        us[i] = 0;
        for (int rank = 0; rank < job->size; rank++)
            if (job->area->us[rank][i] > us[i])
                us[i] = job->area->us[rank][i];
        sum_us += us[i];
    }
    time->mean_us = sum_us / done.calls;
    time->median_us = bench_median(us, done.calls);
    time->wrong = done.wrong;
    return 0;
}

/* --- Ending -------------------------------------------------------------- */

static bool has_ended(pid_t pid)
{
    struct timespec pause = {0, 20000000};

    for (int waited = 0; waited < END_MS; waited += 20) {
        if (waitpid(pid, NULL, WNOHANG) != 0)
            return true;
        nanosleep(&pause, NULL);
    }
    return false;
}

void bench_job_end(struct bench_job *job)
{
    for (int i = 0; i < job->size; i++) {
        if (job->fds[i] >= 0)
            close(job->fds[i]);
        job->fds[i] = -1;
    }
    /* A launcher passes a SIGTERM on to its ranks. */
    if (job->pid > 0 && !has_ended(job->pid)) {
        kill(-job->pid, SIGTERM);
        if (!has_ended(job->pid)) {
            kill(-job->pid, SIGKILL);
            waitpid(job->pid, NULL, 0);
        }
    }
    job->pid = 0;
    if (job->area != NULL)
        munmap(job->area, sizeof(*job->area));
    job->area = NULL;
}
