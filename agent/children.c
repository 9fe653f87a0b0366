/*
 * See children.h. The kernel lists the children of each thread in
 * /proc/self/task/TID/children; where that file is not configured, the
 * parent field of every process in /proc tells the same.
 */
#include "agent/children.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"

static int signal_listed(const char *tid, int sig)
{
    char path[64];
    FILE *f;
    int pid;
    int n = 0;

    snprintf(path, sizeof(path), "/proc/self/task/%.20s/children", tid);
    f = fopen(path, "re");
    if (f == NULL)
        return -errno;
    while (fscanf(f, "%d", &pid) == 1) {
        kill(pid, sig);
        n++;
    }
    fclose(f);
    return n;
}

/* The parent's pid is the second field after the command's name, which is
 * in parentheses and may itself hold any byte. */
static int parent_of(const char *pid)
{
    char path[64];
    char stat[512];
    const char *end;
    ssize_t n;
    int parent;
    int fd;

    snprintf(path, sizeof(path), "/proc/%.20s/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    n = read(fd, stat, sizeof(stat) - 1);
    close(fd);
    if (n <= 0)
        return -1;
    stat[n] = '\0';
    end = strrchr(stat, ')');
    if (end == NULL || sscanf(end + 1, " %*c %d", &parent) != 1)
        return -1;
    return parent;
}

/* Calls visit for every entry of a directory whose name is a number; adds
 * up what it returns. A negative answer ends the walk and is returned. */
static int for_each_number(
    const char *path, int (*visit)(const char *, int), int sig)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    int total = 0;
    int n;

    if (dir == NULL)
        return -errno;
    while ((entry = readdir(dir)) != NULL) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        n = visit(entry->d_name, sig);
        if (n < 0) {
            total = n;
            break;
        }
        total += n;
    }
    closedir(dir);
    return total;
}

static int signal_if_child(const char *name, int sig)
{
    if (parent_of(name) != getpid())
        return 0;
    kill((pid_t)strtol(name, NULL, 10), sig);
    return 1;
}

int children_signal(int sig)
{
    int n = for_each_number("/proc/self/task", signal_listed, sig);

    return n >= 0 ? n : for_each_number("/proc", signal_if_child, sig);
}

/* True when there is no child left. */
static bool reap_ready(void)
{
    pid_t pid;

    do
        pid = waitpid(-1, NULL, WNOHANG);
    while (pid > 0 || (pid < 0 && errno == EINTR));
    return pid < 0;
}

int children_kill_all(uint64_t deadline_ns)
{
    const struct timespec pause = {.tv_nsec = 20 * 1000000};
    sigset_t chld;

    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    while (!reap_ready()) {
        int n = children_signal(SIGKILL);

        if (clock_now_ns() >= deadline_ns)
            return n > 0 ? n : 1;
        /* A child that dies now wakes us; the pause covers a SIGCHLD that
         * was merged into one already taken. */
        sigtimedwait(&chld, NULL, &pause);
    }
    return 0;
}
