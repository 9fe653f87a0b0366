/*
 * See hints.h. Sources: signal(7), core(5) and execve(2), POSIX for 126 and
 * 127, proc(5) for the states of a process.
 */
#include "agent/hints.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/program.h"
#include "agent/signal_names.h"

/* How much of the end of a worker's stderr is searched. */
#define TAIL_SIZE 8192

/* A shell's exit code for a command that a signal ended, less the signal. */
#define SHELL_SIGNAL_BASE 128

static const struct {
    int sig;
    const char *hint;
} signal_hints[] = {
    {SIGSEGV, "it used memory that is not its own"},
    {SIGBUS, "memory behind a mapping is missing: a file that was cut off, or "
             "a full /dev/shm or file system"},
    {SIGKILL, "somebody killed it: often the kernel for lack of memory (see "
              "dmesg), or an administrator"},
    {SIGABRT, "it gave up by itself: a failed assertion, an uncaught C++ "
              "exception, a damaged heap; its stderr says which"},
    {SIGILL, "an instruction that this CPU lacks: was it built for another?"},
    {SIGFPE, "an integer was divided by zero"},
    {SIGTRAP, "it met a breakpoint, or a trap that the compiler put there"},
    {SIGPIPE, "it wrote to a pipe or socket that nobody reads any more"},
    {SIGALRM, "a timer of its own ran out (alarm)"},
    {SIGXCPU, "it used up its CPU time (ulimit -t)"},
    {SIGXFSZ, "a file grew beyond the limit (ulimit -f)"},
    {SIGSYS, "a system call was refused by a filter (seccomp)"},
    {SIGUSR1, "it has no handler for it; schedulers send it as a warning"},
    {SIGUSR2, "it has no handler for it; schedulers send it as a warning"},
    {SIGTERM, "somebody other than crun told it to stop"},
    {SIGQUIT, "somebody other than crun told it to quit"},
    {SIGHUP, "somebody other than crun told it that the terminal is gone"},
    {SIGINT, "somebody other than crun interrupted it"},
};

static const struct {
    int error;
    const char *hint;
} start_hints[] = {
    {ENOEXEC, "the file is no program for this machine: is it built for "
              "another, or a script without #! in its first line?"},
    {EACCES, "it may not be executed: a file system mounted with noexec, or "
             "an interpreter (#!) without that permission"},
    {ETXTBSY, "somebody has the file open for writing: is it still being "
              "copied or built?"},
    {E2BIG, "arguments and environment are too long together"},
};

/* What the dynamic loaders of glibc and musl begin with. */
static const char *const loader_words[] = {
    "error while loading shared libraries", "Error loading shared library"};

static const char *find_signal_hint(int sig)
{
    for (size_t i = 0; i < sizeof(signal_hints) / sizeof(signal_hints[0]); i++)
        if (signal_hints[i].sig == sig)
            return signal_hints[i].hint;
    return NULL;
}

/* The end, or the beginning, of a regular file as a string, with a blank for
 * each NUL in it. */
static bool read_part(const char *path, bool is_end, char *out, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    off_t len, from;
    ssize_t n;

    if (fd < 0)
        return false;
    len = lseek(fd, 0, SEEK_END);
    from = is_end && len >= (off_t)size ? len - (off_t)size + 1 : 0;
    n = len < 0 ? -1 : pread(fd, out, size - 1, from);
    close(fd);
    for (ssize_t i = 0; i < n; i++)
        if (out[i] == '\0')
            out[i] = ' ';
    out[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* The line of the worker's stderr in which the dynamic loader complains. */
static bool find_loader_line(const char *path, char *out, size_t size)
{
    char tail[TAIL_SIZE];
    const char *at = NULL;

    if (path == NULL || !read_part(path, true, tail, sizeof(tail)))
        return false;
    for (size_t i = 0; at == NULL && i < 2; i++)
        at = strstr(tail, loader_words[i]);
    if (at == NULL)
        return false;
    while (at > tail && at[-1] != '\n')
        at--;
    snprintf(out, size, "%.*s", (int)strcspn(at, "\n"), at);
    return true;
}

static bool hint_for_code(
    int code, const struct hint_facts *facts, char *out, size_t size)
{
    int sig = code - SHELL_SIGNAL_BASE;
    char line[512];

    if (code == PROGRAM_EXIT_NOT_EXECUTABLE) {
        snprintf(out, size,
            "126 is a shell's code for a file that cannot be executed");
    } else if (code != PROGRAM_EXIT_NOT_FOUND) {
        if (find_signal_hint(sig) == NULL)
            return false;
        snprintf(out, size, "a shell's code for signal %d (%s): %s", sig,
            signal_name(sig), find_signal_hint(sig));
    } else if (find_loader_line(facts->stderr_file, line, sizeof(line))) {
        snprintf(out, size, "%s; ldd PROGRAM lists what it needs", line);
    } else {
        snprintf(out, size,
            "127 is a shell's code for a command that is not found, and the "
            "dynamic loader's for a missing shared library: its stderr says "
            "which");
    }
    return true;
}

/* The file was there when crun looked, but something that it names is not. */
static void hint_for_missing(const char *program, char *out, size_t size)
{
    char head[256];
    size_t len;

    if (program == NULL || !read_part(program, false, head, sizeof(head)) ||
        strncmp(head, "#!", 2) != 0) {
        snprintf(out, size,
            "the file was there when crun looked; if it still is, its dynamic "
            "loader is not: was it built for another system?");
        return;
    }
    len = strcspn(head, "\n");
    if (head[len - 1] == '\r')
        snprintf(out, size,
            "its lines end with carriage returns, the first one (%.*s), too: "
            "dos2unix removes them",
            (int)len - 1, head);
    else
        snprintf(out, size,
            "the file is there, but not the interpreter in its first line: "
            "%.*s",
            (int)len, head);
}

static bool hint_for_start(
    int error, const struct hint_facts *facts, char *out, size_t size)
{
    if (error == ENOENT) {
        hint_for_missing(facts->program, out, size);
        return true;
    }
    for (size_t i = 0; i < sizeof(start_hints) / sizeof(start_hints[0]); i++)
        if (start_hints[i].error == error) {
            snprintf(out, size, "%s", start_hints[i].hint);
            return true;
        }
    return false;
}

static bool hint_for_signal(
    int sig, const struct hint_facts *facts, char *out, size_t size)
{
    const char *hint = find_signal_hint(sig);

    if (hint != NULL)
        snprintf(out, size, "%s%s", hint,
            sig == SIGSEGV && !facts->has_stack
                ? "; a core dump (ulimit -c) or coll_install_crash_handler() "
                  "tells where"
                : "");
    return hint != NULL;
}

static bool hint_for_end(
    int wait_status, const struct hint_facts *facts, char *out, size_t size)
{
    bool has_signal = WIFSIGNALED(wait_status);
    int sig = has_signal ? WTERMSIG(wait_status)
                         : WEXITSTATUS(wait_status) - SHELL_SIGNAL_BASE;

    if (sig != SIGKILL || facts->oom_kills <= 0) {
        if (has_signal
                ? hint_for_signal(sig, facts, out, size)
                : hint_for_code(WEXITSTATUS(wait_status), facts, out, size))
            return true;
        /* It may have failed because a child of its was killed. */
        if (facts->oom_kills <= 0)
            return false;
    }
    snprintf(out, size,
        "out of memory: the kernel killed %lld %s of this cgroup since the "
        "job began",
        (long long)facts->oom_kills,
        facts->oom_kills == 1 ? "process" : "processes");
    return true;
}

bool hint_for(const struct lc_worker *w, const struct hint_facts *facts,
    char *out, size_t size)
{
    if (w->outcome == LC_OUT_NOT_BEGUN)
        return hint_for_start(w->start_error, facts, out, size);
    if (w->state != LC_WORKER_ENDED || w->wait_status == 0)
        return false;
    return hint_for_end(w->wait_status, facts, out, size);
}

static const char *state_name(char state)
{
    switch (state) {
    case 'D':
        return " (uninterruptible)";
    case 'Z':
        return " (dead, but not reaped)";
    case 'T':
    case 't':
        return " (stopped)";
    default:
        return "";
    }
}

/* A file of /proc, of one line; "" if it cannot be read. */
static void read_proc(pid_t pid, const char *name, char *out, size_t size)
{
    char path[64];
    ssize_t n;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? -1 : read(fd, out, size - 1);
    out[n > 0 ? n : 0] = '\0';
    if (fd >= 0)
        close(fd);
}

void hint_process_state(pid_t pid, char *out, size_t size)
{
    char stat[512], wchan[64];
    const char *end;

    out[0] = '\0';
    read_proc(pid, "stat", stat, sizeof(stat));
    end = strrchr(stat, ')'); /* the name before it may hold anything */
    if (end == NULL || end[1] != ' ' || end[2] == '\0')
        return;
    read_proc(pid, "wchan", wchan, sizeof(wchan));
    if (wchan[0] == '0') /* it waits for nothing, or we may not know */
        wchan[0] = '\0';
    snprintf(out, size, "state %c%s%s%s", end[2], state_name(end[2]),
        wchan[0] != '\0' ? ", in " : "", wchan);
}
