/* See front.h. It stays small and does little: it must not fail. */
#include "agent/front.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/children.h"
#include "agent/signal_names.h"
#include "rendezvous/base/clock.h"

#define ORPHAN_DEADLINE_MS 10000
/* The first asks for a stop, the second makes the agent kill; this one is
 * for an agent that does neither. */
#define STOPS_MAX 3

/* One line on stderr, unless that would block: nobody may read it. */
__attribute__((format(printf, 1, 2))) static void say(const char *fmt, ...)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    char line[512];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof(line))
        n = (int)sizeof(line) - 1;
    if (poll(&p, 1, 0) == 1 && write(STDERR_FILENO, line, (size_t)n) < 0) {
        /* Nowhere is left to complain to. */
    }
}

static int be_agent(
    const struct inherited *in, int pipe_fd, int (*run)(void *arg), void *arg)
{
    /* The pipe's other end must be closed here, or we would never see the
     * front's death; so must all that crun inherited. */
    if (pipe_fd != FRONT_PIPE_FD && dup2(pipe_fd, FRONT_PIPE_FD) < 0)
        return 1;
    fcntl(FRONT_PIPE_FD, F_SETFD, FD_CLOEXEC);
    inherited_take_over(in, FRONT_PIPE_FD);
    for (int sig = 1; sig < SIGRTMIN; sig++)
        if (sigismember(&in->stop, sig) == 1 ||
            sigismember(&in->pass, sig) == 1)
            signal(sig, SIG_IGN);
    sigprocmask(SIG_UNBLOCK, &in->stop, NULL);
    sigprocmask(SIG_UNBLOCK, &in->pass, NULL);
    setsid();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    return run(arg);
}

/* Tells the agent of a signal; false if it cannot be told: it has closed its
 * end, or has not read thousands. */
static bool pass_on(int pipe_fd, int sig)
{
    char byte = (char)sig;

    return write(pipe_fd, &byte, 1) == 1;
}

/* Waits for the agent's end and returns its wait status. Children that come
 * to us from elsewhere are reaped. */
static int wait_for_agent(const struct inherited *in, pid_t agent, int pipe_fd,
    const sigset_t *awaited)
{
    uint64_t last_stop_ns = 0;
    int nstops = 0;
    int status;
    pid_t pid;

    for (;;) {
        int sig = sigwaitinfo(awaited, NULL);
        uint64_t now = clock_now_ns();

        if (sig > 0 && sigismember(&in->pass, sig) == 1) {
            pass_on(pipe_fd, sig);
        } else if (sig > 0 && sig != SIGCHLD &&
                   (nstops == 0 || now - last_stop_ns >=
                                       FRONT_MERGE_MS * CLOCK_NS_PER_MS)) {
            last_stop_ns = now;
            if (++nstops >= STOPS_MAX || !pass_on(pipe_fd, sig))
                kill(agent, SIGKILL);
        }
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
            if (pid == agent)
                return status;
    }
}

int front_run(const struct inherited *in, int (*run)(void *arg), void *arg)
{
    struct children_known strangers;
    sigset_t awaited;
    int fds[2];
    pid_t agent;
    int status;
    int left;

    sigorset(&awaited, &in->stop, &in->pass);
    sigaddset(&awaited, SIGCHLD);
    sigprocmask(SIG_BLOCK, &awaited, NULL);
    /* An ignored SIGCHLD would have the kernel reap in our place. */
    signal(SIGCHLD, SIG_DFL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    /* A shell may have started others before it executed us. */
    children_note(&strangers);

    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0) {
        say("crun: error: pipe: %s\n", strerror(errno));
        return 1;
    }
    agent = fork();
    if (agent < 0) {
        say("crun: error: cannot fork the agent: %s\n", strerror(errno));
        return 1;
    }
    if (agent == 0)
        exit(be_agent(in, fds[0], run, arg));
    close(fds[0]);

    status = wait_for_agent(in, agent, fds[1], &awaited);
    left = children_kill_all(&strangers, clock_deadline_ns(ORPHAN_DEADLINE_MS));
    children_forget(&strangers);
    close(fds[1]);
    if (left > 0)
        say("crun: %d processes of the job could not be killed\n", left);
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    say("crun: the agent (pid %d) was ended by signal %d (%s); its workers "
        "have been killed\n",
        (int)agent, WTERMSIG(status), signal_name(WTERMSIG(status)));
    return 1;
}
