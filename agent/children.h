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
#include <sys/types.h>

/* Children that are to be left alone. */
struct children_known {
    pid_t *pids; /* owned */
    int n;
};

/* Notes the children there are now. Without any, which waitid tells, /proc
 * is not read. */
void children_note(struct children_known *known);
void children_forget(struct children_known *known);

/*
 * Sends sig to each present child (zombies included, harmlessly) but those
 * in except, which may be NULL. Returns how many there were, or a negative
 * errno: -ENOENT where /proc is missing or shows another namespace's
 * processes.
 */
int children_signal(int sig, const struct children_known *except);

/*
 * Kills and reaps until there is no child (but those in except) or the
 * deadline is over. Blocks. SIGCHLD must be blocked in the caller, it is
 * waited for. Returns 0, or how many children are left.
 */
int children_kill_all(
    const struct children_known *except, uint64_t deadline_ns);

#endif
