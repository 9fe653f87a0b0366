/* See front.h. It stays small and does little: it must not fail. */
#include "agent/front.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/children.h"
#include "agent/signal_names.h"
#include "rendezvous/base/clock.h"

#define ORPHAN_DEADLINE_MS 10000
#define STOPS_MAX 3

static const int stop_signals[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};

void front_stop_signals(sigset_t *set)
{
    struct sigaction action;

    sigemptyset(set);
    for (size_t i = 0; i < sizeof(stop_signals) / sizeof(int); i++)
        if (sigaction(stop_signals[i], NULL, &action) == 0 &&
            action.sa_handler != SIG_IGN)
            sigaddset(set, stop_signals[i]);
}

static int be_agent(pid_t front, int (*run)(void *arg, pid_t front), void *arg)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != front)
        return 1; /* killed before we could ask to be told */
    setsid();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    return run(arg, front);
}

/* Waits for the agent's end, forwarding signals meanwhile: the first asks for
 * a stop, the second makes the agent kill. A third is for an agent that does
 * neither. Children that come to us from elsewhere are reaped. */
static int wait_for_agent(pid_t agent, const sigset_t *awaited)
{
    int nstops = 0;
    int status;
    pid_t pid;
    int sig;

    for (;;) {
        sig = sigwaitinfo(awaited, NULL);
        if (sig > 0 && sig != SIGCHLD)
            kill(agent, ++nstops < STOPS_MAX ? sig : SIGKILL);
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
            if (pid == agent)
                return status;
    }
}

int front_run(int (*run)(void *arg, pid_t front), void *arg)
{
    sigset_t awaited;
    pid_t front = getpid();
    pid_t agent;
    int status;
    int left;

    front_stop_signals(&awaited);
    sigaddset(&awaited, SIGCHLD);
    sigprocmask(SIG_BLOCK, &awaited, NULL);
    /* An ignored SIGCHLD would have the kernel reap in our place. */
    signal(SIGCHLD, SIG_DFL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);

    agent = fork();
    if (agent < 0) {
        fprintf(stderr, "crun: error: cannot fork the agent: %s\n",
            strerror(errno));
        return 1;
    }
    if (agent == 0)
        _exit(be_agent(front, run, arg));

    status = wait_for_agent(agent, &awaited);
    left = children_kill_all(clock_deadline_ns(ORPHAN_DEADLINE_MS));
    if (left > 0)
        fprintf(stderr, "crun: %d processes of the job could not be killed\n",
            left);
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    fprintf(stderr,
        "crun: the agent (pid %d) was ended by signal %d (%s); "
        "its workers have been killed\n",
        (int)agent, WTERMSIG(status), signal_name(WTERMSIG(status)));
    return 1;
}
