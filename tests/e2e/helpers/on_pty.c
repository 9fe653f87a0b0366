/*
 * Runs a program on a terminal of its own, as its session's leader:
 *
 *     on_pty COMMAND [ARGS...]
 *
 * What is read from standard input is typed there: \003 is a Ctrl-C. What the
 * terminal shows goes to standard output. Ends as COMMAND does, with 128+N
 * for signal N.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

static int fail(const char *what)
{
    perror(what);
    return 1;
}

static void be_child(int terminal, char **argv)
{
    /* What a script starts in the background ignores these. */
    signal(SIGINT, SIG_DFL);
    signal(SIGQUIT, SIG_DFL);
    setsid();
    if (ioctl(terminal, TIOCSCTTY, 0) < 0 || dup2(terminal, 0) < 0 ||
        dup2(terminal, 1) < 0 || dup2(terminal, 2) < 0)
        _exit(126);
    execvp(argv[0], argv);
    perror(argv[0]);
    _exit(127);
}

/* Copies what there is. False at the end. */
static bool copy(int from, int to)
{
    char bytes[4096];
    ssize_t n = read(from, bytes, sizeof(bytes));

    if (n < 0)
        return errno == EINTR;
    return n > 0 && write(to, bytes, (size_t)n) == n;
}

/* Until nobody has the terminal open: it hangs up when COMMAND ends. */
static void relay(int terminal)
{
    struct pollfd p[] = {{.fd = terminal, .events = POLLIN},
        {.fd = STDIN_FILENO, .events = POLLIN}};

    for (;;) {
        if (poll(p, 2, -1) < 0)
            continue; /* EINTR */
        if (p[0].revents != 0 && !copy(terminal, STDOUT_FILENO))
            return;
        if (p[1].revents != 0 && !copy(STDIN_FILENO, terminal))
            p[1].fd = -1;
    }
}

int main(int argc, char **argv)
{
    int ours, theirs, status;
    pid_t pid;

    if (argc < 2)
        return 2;
    ours = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (ours < 0 || grantpt(ours) < 0 || unlockpt(ours) < 0)
        return fail("posix_openpt");
    theirs = open(ptsname(ours), O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (theirs < 0)
        return fail(ptsname(ours));
    pid = fork();
    if (pid < 0)
        return fail("fork");
    if (pid == 0)
        be_child(theirs, argv + 1);
    close(theirs);
    relay(ours);
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return fail("waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
