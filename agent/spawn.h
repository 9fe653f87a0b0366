/*
 * Starting one worker. uv_spawn and posix_spawn have no hook between fork
 * and exec, and a worker needs one: its own group, SIGKILL when the agent
 * dies, the signal state that crun itself was started with.
 */
#ifndef CRUN_AGENT_SPAWN_H
#define CRUN_AGENT_SPAWN_H

#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/types.h>

struct spawn {
    const char *path; /* the file to execute, already found */
    char *const *argv;
    char *const *envp;
    int out_fd; /* becomes descriptor 1; -1 inherits ours */
    int err_fd; /* becomes descriptor 2; -1 inherits ours */
    sigset_t mask; /* signal mask of the worker */
    sigset_t reset; /* signals that get their default action */
    struct rlimit nofile;
    const cpu_set_t *cpus; /* CPUs it may run on; NULL: ours */
    size_t cpus_size; /* bytes of it */
};

/*
 * Starts a process and waits until its exec has happened or failed (a few
 * hundred microseconds). Returns its pid, or a negative errno of fork or
 * exec; no child is left behind then. Call from the thread that lives as
 * long as the workers shall: the kernel sends the parent-death signal when
 * the forking thread ends. Every descriptor above 2 must be close-on-exec.
 */
pid_t spawn_worker(const struct spawn *s);

#endif
