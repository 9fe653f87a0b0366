/*
 * All children of this process, known and adopted. A subreaper uses it to
 * end what its workers left behind: signal every child, reap, and repeat,
 * since each death hands the dead one's own children over, until waitpid
 * says that there are none. That answer is the proof; /proc is read only
 * when it says otherwise.
 */
#ifndef CRUN_AGENT_CHILDREN_H
#define CRUN_AGENT_CHILDREN_H

#include <stdint.h>

/* Sends sig to each present child (zombies included, harmlessly). Returns
 * how many there were, or a negative errno if /proc cannot be read. */
int children_signal(int sig);

/*
 * Kills and reaps until there is no child or the deadline is over. Blocks.
 * SIGCHLD must be blocked in the caller, it is waited for. Returns 0, or
 * how many children are left.
 */
int children_kill_all(uint64_t deadline_ns);

#endif
