/*
 * The process whose pid the user knows. It forks the agent before anything
 * is set up, forwards signals to it, waits for it and passes on its exit
 * status. If the agent dies it ends whatever the agent left: the workers die
 * with the agent (parent-death signal), and their children come to the front
 * (it is a subreaper), which kills them generation by generation.
 */
#ifndef CRUN_AGENT_FRONT_H
#define CRUN_AGENT_FRONT_H

#include <signal.h>
#include <sys/types.h>

/*
 * Runs run(arg, pid of the front) in a new process, the agent: a session of its
 * own, told with SIGTERM when the front dies, SIGCHLD and the handled signals
 * blocked until it installs its handlers. Returns its exit status, or 1 with a
 * message on stderr if it could not be started or was killed. Blocks.
 */
int front_run(int (*run)(void *arg, pid_t front), void *arg);

/* The signals that stop a job. One that is ignored when crun starts (nohup,
 * a background job of a shell script) stays ignored and is not in the set. */
void front_stop_signals(sigset_t *set);

#endif
