/*
 * The process whose pid the user knows. It forks the agent before anything
 * is set up, passes stop signals on to it, waits for it and passes on its
 * exit status. If the agent dies it ends whatever the agent left: the workers
 * die with the agent (parent-death signal), and their children come to the
 * front (it is a subreaper), which kills them generation by generation.
 *
 * The two are connected by a pipe: each byte is the number of a stop signal,
 * and its end tells the agent that the front is dead. So it does not matter
 * which signals are ignored or blocked, nor that somebody signals all
 * processes of the job at once.
 */
#ifndef CRUN_AGENT_FRONT_H
#define CRUN_AGENT_FRONT_H

#include "agent/inherited.h"

/* Signals that mean nothing to crun (inherited.h) go the same way and are not
 * merged. */

/* The agent's end of the pipe; the only descriptor above 2 that it is given. */
#define FRONT_PIPE_FD 3

/* Stop signals that follow each other more closely count as one: a closing
 * terminal and the shell in it both send SIGHUP, a service manager signals
 * every process. */
#define FRONT_MERGE_MS 500

/*
 * Runs run(arg) in a new process, the agent: a session of its own, the stop
 * signals ignored, SIGCHLD blocked. Returns its exit status, or 1 with a
 * message on stderr if it could not be started or was killed. Blocks.
 */
int front_run(const struct inherited *in, int (*run)(void *arg), void *arg);

#endif
