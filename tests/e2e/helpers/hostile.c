/*
 * A worker that does what it can to survive its launcher. It ignores every
 * signal it may, and leaves behind processes that do so, too, are in sessions
 * of their own, and have neither its environment nor its name:
 *
 *   - a chain of orphans, each the child of one that has ended
 *   - one that has stopped itself
 *   - one that adopts orphans, and an orphan
 *   - one that hops: it lives for a moment, in which it forks its successor
 *
 *     hostile [-p] [-x CODE]
 *
 * With -p workers of an odd local rank give up their parent-death signal,
 * with -x the worker itself leaves while its children are still settling.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define DEPTH 3
#define HOP_US 2000
#define LEAVE_US 50000

/* The memory that ps and the like show. */
static char *command_line;
static size_t command_line_len;

static void sleep_for_ever(void)
{
    for (;;)
        pause();
}

static void pause_us(long us)
{
    const struct timespec ts = {0, us * 1000};

    nanosleep(&ts, NULL);
}

static void disguise(void)
{
    setsid();
    clearenv();
    prctl(PR_SET_NAME, "other");
    memset(command_line, 'x', command_line_len);
}

/* Every level leaves one process behind; the last one's parent exits, so
 * that it becomes an orphan at once. */
static void leave_chain(int depth)
{
    if (fork() != 0)
        return;
    disguise();
    if (depth > 1)
        leave_chain(depth - 1);
    if (fork() > 0)
        _exit(0); /* double fork */
    sleep_for_ever();
}

static void leave_stopped(void)
{
    if (fork() != 0)
        return;
    disguise();
    raise(SIGSTOP);
    sleep_for_ever();
}

static void leave_adopter(void)
{
    if (fork() != 0)
        return;
    disguise();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    leave_chain(1);
    sleep_for_ever();
}

static void leave_hopper(void)
{
    if (fork() != 0)
        return;
    disguise();
    for (;;) {
        pid_t next = fork();

        if (next > 0)
            _exit(0);
        if (next == 0)
            setsid();
        pause_us(HOP_US);
    }
}

int main(int argc, char **argv)
{
    const char *local_rank = getenv("LOCAL_RANK");
    int is_odd = local_rank != NULL && strtol(local_rank, NULL, 10) % 2 == 1;
    int has_code = 0;
    int code = 0;
    int opt;

    while ((opt = getopt(argc, argv, "px:")) != -1) {
        if (opt == 'p' && is_odd) {
            prctl(PR_SET_PDEATHSIG, 0);
        } else if (opt == 'x') {
            has_code = 1;
            code = (int)strtol(optarg, NULL, 10);
        } else if (opt == '?') {
            fprintf(stderr, "usage: hostile [-p] [-x CODE]\n");
            return 2;
        }
    }
    command_line = argv[0];
    command_line_len = strlen(argv[0]);
    for (int sig = 1; sig < SIGRTMIN; sig++)
        signal(sig, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    leave_hopper();
    leave_stopped();
    leave_adopter();
    leave_chain(DEPTH);
    if (has_code) {
        pause_us(LEAVE_US); /* some children are settled, some are not */
        _exit(code);
    }
    sleep_for_ever();
}
