/*
 * See spawn.h. As in posix_spawn, the child is cloned with CLONE_VM and
 * CLONE_VFORK: it runs in our memory on a stack of its own while we are
 * suspended, so no page table is copied and an error needs no pipe.
 */
#include "agent/spawn.h"

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SPAWN_STACK_SIZE (64 * 1024)

/* ThreadSanitizer takes every clone for a fork, with memory of its own, and
 * its state in shared memory would be changed twice. */
#ifdef __SANITIZE_THREAD__
#define CLONE_FLAGS (CLONE_VFORK | SIGCHLD)
#define STACK_SHARING MAP_SHARED /* the error must be seen here */
#else
#define CLONE_FLAGS (CLONE_VM | CLONE_VFORK | SIGCHLD)
#define STACK_SHARING MAP_PRIVATE
#endif

struct spawn_child {
    const struct spawn *spawn;
    pid_t parent;
    int error; /* errno of the step that failed */
};

/* All fields of the kernel's structure being 0 means SIG_DFL, whatever their
 * order is on this machine. */
static const unsigned long default_action[8];

/*
 * Runs in the child, in the parent's memory: only system calls here. Those
 * that sanitizers wrap are made without the wrapper, which would change the
 * parent's tables (handlers, pending signals, descriptors) in its place.
 */
__attribute__((no_sanitize("address", "thread", "undefined"))) static int
spawn_child(void *arg)
{
    struct spawn_child *c = arg;
    const struct spawn *s = c->spawn;

    /* The parent's handlers must not run in its memory from here. All
     * signals are blocked until they are reset. */
    for (int sig = 1; sig < SIGRTMIN; sig++)
        if (sigismember(&s->reset, sig) == 1 &&
            syscall(SYS_rt_sigaction, sig, default_action, NULL, _NSIG / 8) < 0)
            goto fail;
    /* A group of its own, in the agent's session: the kernel shares out CPU
     * time by session (sched_autogroup), so that in sessions of their own
     * workers that share a CPU could not yield it to each other. */
    if (setpgid(0, 0) < 0 || syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL) < 0)
        goto fail;
    if (getppid() != c->parent) {
        errno = ESRCH; /* the agent died before prctl */
        goto fail;
    }
    if (s->out_fd >= 0 && syscall(SYS_dup3, s->out_fd, STDOUT_FILENO, 0) < 0)
        goto fail;
    if (s->err_fd >= 0 && syscall(SYS_dup3, s->err_fd, STDERR_FILENO, 0) < 0)
        goto fail;
    if (setrlimit(RLIMIT_NOFILE, &s->nofile) < 0)
        goto fail;
    if (s->cpus != NULL && sched_setaffinity(0, s->cpus_size, s->cpus) < 0)
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
    struct spawn_child *c;
    sigset_t all;
    sigset_t saved;
    pid_t pid;
    int rc;

    /* The structure is at the low end; the stack grows down towards it. */
    c = mmap(NULL, SPAWN_STACK_SIZE, PROT_READ | PROT_WRITE,
        STACK_SHARING | MAP_ANONYMOUS, -1, 0);
    if (c == MAP_FAILED)
        return -errno;
    c->spawn = s;
    c->parent = getpid();
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &saved);
    pid = clone(spawn_child, (char *)c + SPAWN_STACK_SIZE, CLONE_FLAGS, c);
    rc = pid < 0 ? -errno : -c->error;
    sigprocmask(SIG_SETMASK, &saved, NULL);
    munmap(c, SPAWN_STACK_SIZE);
    if (pid > 0 && rc < 0)
        waitpid(pid, NULL, 0); /* it has ended: vfork returned */
    return rc < 0 ? rc : pid;
}
