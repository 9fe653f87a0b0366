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

struct pid_list {
    pid_t *pids; /* owned */
    int n;
    int cap;
};

static int list_add(struct pid_list *list, pid_t pid)
{
    if (list->n == list->cap) {
        int cap = list->cap == 0 ? 64 : 2 * list->cap;
        pid_t *pids = realloc(list->pids, (size_t)cap * sizeof(*pids));

        if (pids == NULL)
            return -ENOMEM;
        list->pids = pids;
        list->cap = cap;
    }
    list->pids[list->n++] = pid;
    return 0;
}

static int add_listed(const char *tid, struct pid_list *list)
{
    char path[64];
    FILE *f;
    int pid;
    int rc = 0;

    snprintf(path, sizeof(path), "/proc/self/task/%.20s/children", tid);
    f = fopen(path, "re");
    if (f == NULL)
        return -errno;
    while (rc == 0 && fscanf(f, "%d", &pid) == 1)
        rc = list_add(list, pid);
    fclose(f);
    return rc;
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

static int add_if_child(const char *name, struct pid_list *list)
{
    if (parent_of(name) != getpid())
        return 0;
    return list_add(list, (pid_t)strtol(name, NULL, 10));
}

/* Calls add for every entry of a folder whose name is a number, until one
 * fails. */
static int for_each_number(const char *path,
    int (*add)(const char *, struct pid_list *), struct pid_list *list)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    int rc = 0;

    if (dir == NULL)
        return -errno;
    while (rc == 0 && (entry = readdir(dir)) != NULL)
        if (isdigit((unsigned char)entry->d_name[0]))
            rc = add(entry->d_name, list);
    closedir(dir);
    return rc;
}

/* In a namespace whose /proc is that of another one, its numbers would be
 * those of strangers. */
static bool is_proc_ours(void)
{
    char self[32];
    ssize_t n = readlink("/proc/self", self, sizeof(self) - 1);

    if (n <= 0)
        return false;
    self[n] = '\0';
    return strtol(self, NULL, 10) == getpid();
}

static int list_children(struct pid_list *list)
{
    int rc;

    if (!is_proc_ours())
        return -ENOENT;
    rc = for_each_number("/proc/self/task", add_listed, list);
    if (rc == -ENOENT) {
        list->n = 0;
        rc = for_each_number("/proc", add_if_child, list);
    }
    return rc;
}

void children_note(struct children_known *known)
{
    struct pid_list list = {0};
    siginfo_t info;

    *known = (struct children_known){0};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0)
        return;
    /* A list cut short by a failure is better than none. */
    list_children(&list);
    known->pids = list.pids;
    known->n = list.n;
}

void children_forget(struct children_known *known)
{
    free(known->pids);
    *known = (struct children_known){0};
}

static bool is_known(const struct children_known *known, pid_t pid)
{
    for (int i = 0; known != NULL && i < known->n; i++)
        if (known->pids[i] == pid)
            return true;
    return false;
}

int children_signal(int sig, const struct children_known *except)
{
    struct pid_list list = {0};
    int rc = list_children(&list);
    int n = 0;

    for (int i = 0; i < list.n; i++)
        if (!is_known(except, list.pids[i])) {
            kill(list.pids[i], sig);
            n++;
        }
    free(list.pids);
    return rc < 0 ? rc : n;
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

int children_kill_all(const struct children_known *except, uint64_t deadline_ns)
{
    const struct timespec pause = {.tv_nsec = 20 * 1000000};
    sigset_t chld;

    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    while (!reap_ready()) {
        int n = children_signal(SIGKILL, except);

        if (n == 0)
            return 0; /* only those in except */
        if (n < 0 || clock_now_ns() >= deadline_ns)
            return n < 0 ? 1 : n;
        /* A child that dies now wakes us; the pause covers a SIGCHLD that
         * was merged into one already taken. */
        sigtimedwait(&chld, NULL, &pause);
    }
    return 0;
}
