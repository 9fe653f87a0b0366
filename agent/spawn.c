/*
 * See spawn.h. As in posix_spawn, the child is cloned with CLONE_VM and
 * CLONE_VFORK: it runs in our memory on a stack of its own while we are
 * suspended, so no page table is copied and an error needs no pipe.
 */
#include "agent/spawn.h"

#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SPAWN_STACK_SIZE (64 * 1024)

/* The agent handles or ignores these; a worker starts with the default. A
 * signal that was ignored when crun started is not in the agent's hands and
 * stays ignored (nohup). */
static const int reset_signals[] = {
    SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGCHLD, SIGPIPE};

struct spawn_child {
    const struct spawn *spawn;
    pid_t parent;
    int error; /* errno of the step that failed */
};

/* Runs in the child, in the parent's memory: only system calls here, and
 * nothing that a sanitizer would instrument. */
__attribute__((no_sanitize("address", "thread", "undefined"))) static int
spawn_child(void *arg)
{
    struct spawn_child *c = arg;
    const struct spawn *s = c->spawn;
    struct sigaction action;

    /* The parent's handlers must not run in its memory from here. All
     * signals are blocked until they are reset. */
    for (size_t i = 0; i < sizeof(reset_signals) / sizeof(int); i++) {
        if (sigaction(reset_signals[i], NULL, &action) < 0)
            goto fail;
        if (action.sa_handler == SIG_IGN && reset_signals[i] != SIGPIPE)
            continue;
        action.sa_handler = SIG_DFL;
        action.sa_flags = 0;
        if (sigaction(reset_signals[i], &action, NULL) < 0)
            goto fail;
    }
    if (setsid() < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        goto fail;
    if (getppid() != c->parent) {
        errno = ESRCH; /* the agent died before prctl */
        goto fail;
    }
    if (s->out_fd >= 0 && dup2(s->out_fd, STDOUT_FILENO) < 0)
        goto fail;
    if (s->err_fd >= 0 && dup2(s->err_fd, STDERR_FILENO) < 0)
        goto fail;
    if (setrlimit(RLIMIT_NOFILE, &s->nofile) < 0)
        goto fail;
    if (sigprocmask(SIG_SETMASK, &s->mask, NULL) < 0)
        goto fail;
    execve(s->path, s->argv, s->envp);
fail:
    c->error = errno;
    _exit(127);
}

pid_t spawn_worker(const struct spawn *s)
{
    struct spawn_child c = {.spawn = s, .parent = getpid()};
    char *stack;
    sigset_t all;
    sigset_t saved;
    pid_t pid;
    int rc;

    stack = malloc(SPAWN_STACK_SIZE);
    if (stack == NULL)
        return -ENOMEM;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &saved);
    pid = clone(spawn_child,
        (char *)((uintptr_t)(stack + SPAWN_STACK_SIZE) & ~(uintptr_t)15),
        CLONE_VM | CLONE_VFORK | SIGCHLD, &c);
    rc = pid < 0 ? -errno : -c.error;
    sigprocmask(SIG_SETMASK, &saved, NULL);
    free(stack);
    if (pid > 0 && rc < 0)
        waitpid(pid, NULL, 0); /* it has ended: vfork returned */
    return rc < 0 ? rc : pid;
}
