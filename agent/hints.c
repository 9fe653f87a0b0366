/*
 * See hints.h. Sources: signal(7) and core(5) for signals, POSIX for 126 and
 * 127, the kernel's cgroup documentation for memory.events.
 */
#include "agent/hints.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/report.h"

/* How much of the end of a worker's stderr is searched. */
#define TAIL_SIZE 8192

static const struct {
    int sig;
    const char *hint;
} signal_hints[] = {
    {SIGSEGV, "it used memory that is not its own; a core dump (ulimit -c) or "
              "coll_install_crash_handler() tells where"},
    {SIGBUS, "memory behind a mapping is missing: a file that was cut off, or "
             "a full /dev/shm or file system"},
    {SIGKILL, "somebody killed it: often the kernel for lack of memory (see "
              "dmesg), or an administrator"},
    {SIGABRT, "it gave up by itself: a failed assertion, an uncaught C++ "
              "exception, a damaged heap; its stderr says which"},
    {SIGILL, "an instruction that this CPU lacks: was it built for another?"},
    {SIGFPE, "an integer was divided by zero"},
    {SIGPIPE, "it wrote to a pipe or socket that nobody reads any more"},
    {SIGXCPU, "it used up its CPU time (ulimit -t)"},
    {SIGXFSZ, "a file grew beyond the limit (ulimit -f)"},
    {SIGSYS, "a system call was refused by a filter (seccomp)"},
    {SIGTERM, "somebody other than crun told it to stop"},
    {SIGHUP, "somebody other than crun told it that the terminal is gone"},
    {SIGINT, "somebody other than crun interrupted it"},
};

static const char *find_signal_hint(int sig)
{
    for (size_t i = 0; i < sizeof(signal_hints) / sizeof(signal_hints[0]); i++)
        if (signal_hints[i].sig == sig)
            return signal_hints[i].hint;
    return NULL;
}

/* Finds the line of a file's end that holds words. */
static bool find_line(
    const char *path, const char *words, char *out, size_t size)
{
    char tail[TAIL_SIZE + 1];
    char *at, *begin;
    ssize_t n;
    off_t end;
    int fd;

    fd = path == NULL
             ? -1
             : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return false;
    end = lseek(fd, 0, SEEK_END);
    n = pread(fd, tail, TAIL_SIZE, end > TAIL_SIZE ? end - TAIL_SIZE : 0);
    close(fd);
    tail[n > 0 ? n : 0] = '\0';
    at = strstr(tail, words);
    if (at == NULL)
        return false;
    for (begin = at; begin > tail && begin[-1] != '\n'; begin--)
        ;
    snprintf(out, size, "%.*s", (int)strcspn(begin, "\n"), begin);
    return true;
}

static bool hint_for_code(
    int code, const char *stderr_file, char *out, size_t size)
{
    char line[512];

    switch (code) {
    case 126:
        snprintf(out, size,
            "126 is a shell's code for a file that cannot be "
            "executed");
        return true;
    case 127:
        if (find_line(stderr_file, "error while loading shared libraries", line,
                sizeof(line)))
            snprintf(out, size, "%s; ldd PROGRAM lists what it needs", line);
        else
            snprintf(out, size,
                "127 is a shell's code for a command that is not found, and "
                "the dynamic loader's for a missing shared library: its stderr "
                "says which");
        return true;
    default:
        break;
    }
    if (code > 128 && find_signal_hint(code - 128) != NULL) {
        snprintf(out, size, "a shell's code for signal %d (%s): %s", code - 128,
            strsignal(code - 128), find_signal_hint(code - 128));
        return true;
    }
    return false;
}

bool hint_for(const struct lc_worker *w, int64_t oom_kills,
    const char *stderr_file, char *out, size_t size)
{
    const char *hint;

    if (w->outcome == LC_OUT_NOT_BEGUN) {
        if (w->start_error != ENOEXEC && w->start_error != ENOENT)
            return false;
        snprintf(out, size, "%s",
            w->start_error == ENOEXEC
                ? "the file is no program for this machine: is it built for "
                  "another, or a script without #! in its first line?"
                : "the file was there when crun looked: is the interpreter in "
                  "its first line, or its ELF loader, missing?");
        return true;
    }
    if (w->state != LC_WORKER_ENDED || w->wait_status == 0)
        return false;
    if (!WIFSIGNALED(w->wait_status))
        return hint_for_code(
            WEXITSTATUS(w->wait_status), stderr_file, out, size);
    if (WTERMSIG(w->wait_status) == SIGKILL && oom_kills > 0) {
        snprintf(out, size,
            "out of memory: the kernel killed %lld processes of this cgroup "
            "since the job began",
            (long long)oom_kills);
        return true;
    }
    hint = find_signal_hint(WTERMSIG(w->wait_status));
    if (hint != NULL)
        snprintf(out, size, "%s", hint);
    return hint != NULL;
}

static ssize_t read_small(const char *path, char *out, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;

    if (fd < 0)
        return -1;
    n = read(fd, out, size - 1);
    close(fd);
    out[n > 0 ? n : 0] = '\0';
    return n;
}

void hint_process_state(pid_t pid, char *out, size_t size)
{
    char path[64], stat[512], wchan[64];
    const char *end;

    out[0] = '\0';
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (read_small(path, stat, sizeof(stat)) <= 0)
        return;
    end = strrchr(stat, ')'); /* the name before it may hold anything */
    if (end == NULL || end[1] != ' ' || end[2] == '\0')
        return;
    snprintf(path, sizeof(path), "/proc/%d/wchan", (int)pid);
    if (read_small(path, wchan, sizeof(wchan)) <= 0 || wchan[0] == '0')
        wchan[0] = '\0';
    snprintf(out, size, "state %c%s%s%s", end[2],
        end[2] == 'D' ? " (uninterruptible)" : "",
        wchan[0] != '\0' ? ", in " : "", wchan);
}

/* The number behind key in a file of "key number" lines; -1: not there. */
static int64_t read_key(const char *path, const char *key)
{
    char text[1024];
    char *line;

    if (read_small(path, text, sizeof(text)) <= 0)
        return -1;
    for (line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"))
        if (strncmp(line, key, strlen(key)) == 0 && line[strlen(key)] == ' ')
            return strtoll(line + strlen(key), NULL, 10);
    return -1;
}

int64_t report_count_oom_kills(void)
{
    char text[4096], path[4300];
    int64_t kills = -1;
    char *line;
    char *save;

    if (read_small("/proc/self/cgroup", text, sizeof(text)) <= 0)
        return -1;
    /* "ID:CONTROLLERS:PATH"; version 2 has ID 0 and no controllers. */
    for (line = strtok_r(text, "\n", &save); line != NULL && kills < 0;
         line = strtok_r(NULL, "\n", &save)) {
        char *controllers = strchr(line, ':');
        char *folder = controllers ? strchr(controllers + 1, ':') : NULL;

        if (folder == NULL)
            continue;
        *folder++ = '\0';
        if (controllers[1] == '\0') {
            snprintf(
                path, sizeof(path), "/sys/fs/cgroup%s/memory.events", folder);
            kills = read_key(path, "oom_kill");
        } else if (strcmp(controllers + 1, "memory") == 0) {
            snprintf(path, sizeof(path),
                "/sys/fs/cgroup/memory%s/memory.oom_control", folder);
            kills = read_key(path, "oom_kill");
        }
    }
    return kills;
}
