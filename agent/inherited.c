/* See inherited.h. */
#include "agent/inherited.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Where neither close_range nor /proc is there. */
#define CLOSE_MAX 65536

static bool is_ignored(int sig)
{
    struct sigaction action;

    return sigaction(sig, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

void inherited_set_stop(struct inherited *in, const sigset_t *stop)
{
    static const int pass[] = {SIGUSR1, SIGUSR2};

    sigemptyset(&in->stop);
    sigemptyset(&in->pass);
    for (int sig = 1; sig < SIGRTMIN; sig++)
        if (sigismember(stop, sig) == 1 && !is_ignored(sig))
            sigaddset(&in->stop, sig);
    for (size_t i = 0; i < sizeof(pass) / sizeof(int); i++)
        if (sigismember(stop, pass[i]) == 0 && !is_ignored(pass[i]))
            sigaddset(&in->pass, pass[i]);
    sigorset(&in->reset, &in->stop, &in->pass);
    sigaddset(&in->reset, SIGCHLD);
    sigaddset(&in->reset, SIGPIPE);
    sigaddset(&in->reset, SIGXFSZ);
}

void inherited_save(struct inherited *in)
{
    static const int stop[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    sigset_t set;

    sigprocmask(SIG_SETMASK, NULL, &in->mask);
    getrlimit(RLIMIT_NOFILE, &in->nofile);
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof(stop) / sizeof(int); i++)
        sigaddset(&set, stop[i]);
    inherited_set_stop(in, &set);
}

static void close_above(int last_kept)
{
    struct dirent *entry;
    DIR *dir;

#ifdef SYS_close_range
    if (syscall(SYS_close_range, last_kept + 1, UINT_MAX, 0) == 0)
        return; /* Linux 5.9 */
#endif
    dir = opendir("/proc/self/fd");
    if (dir == NULL) {
        for (int fd = last_kept + 1; fd < CLOSE_MAX; fd++)
            close(fd);
        return;
    }
    while ((entry = readdir(dir)) != NULL) {
        int fd = (int)strtol(entry->d_name, NULL, 10);

        if (isdigit((unsigned char)entry->d_name[0]) && fd > last_kept &&
            fd != dirfd(dir))
            close(fd);
    }
    closedir(dir);
}

void inherited_take_over(const struct inherited *in, int last_kept)
{
    struct rlimit raised = in->nofile;

    raised.rlim_cur = raised.rlim_max;
    setrlimit(RLIMIT_NOFILE, &raised);
    close_above(last_kept);
}
