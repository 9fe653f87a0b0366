/*
 * A worker that does what it can to survive its launcher: it ignores every
 * signal it may, forks children that leave its session, scrub their
 * environment, double-fork and fork again, and each of them appends its pid
 * to a file before it settles down.
 *
 *     hostile PIDFILE [exit CODE]
 *
 * With "exit CODE" the worker itself leaves once its children are settled.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEPTH 3

static int pid_fd;

static void note_pid(void)
{
    char line[32];
    int n = snprintf(line, sizeof(line), "%d\n", (int)getpid());

    if (write(pid_fd, line, (size_t)n) != n)
        _exit(1);
}

static void sleep_for_ever(void)
{
    for (;;)
        pause();
}

/* Every level leaves one process behind; the last one's parent exits, so
 * that it becomes an orphan at once. */
static void leave_children(int depth)
{
    pid_t pid = fork();

    if (pid != 0)
        return;
    setsid();
    clearenv();
    if (depth > 1)
        leave_children(depth - 1);
    if (fork() > 0)
        _exit(0); /* double fork */
    note_pid();
    sleep_for_ever();
}

int main(int argc, char **argv)
{
    if (argc != 2 && argc != 4) {
        fprintf(stderr, "usage: hostile PIDFILE [exit CODE]\n");
        return 2;
    }
    pid_fd = open(argv[1], O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (pid_fd < 0) {
        perror(argv[1]);
        return 2;
    }
    for (int sig = 1; sig < SIGRTMIN; sig++)
        signal(sig, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    leave_children(DEPTH);
    note_pid();
    if (argc == 4) {
        usleep(50000); /* some children are settled, some are not */
        _exit((int)strtol(argv[3], NULL, 10));
    }
    sleep_for_ever();
}
