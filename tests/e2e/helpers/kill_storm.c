/*
 * Starts a launcher again and again, kills it at a random moment, and counts
 * what is left of its job.
 *
 *     kill_storm [-k WHO] [-n ROUNDS] [-s SEED] [-w NAME] COMMAND [ARGS...]
 *
 * WHO is killed, by SIGKILL:
 *
 *   any     the process of COMMAND ("front") or the one it has started
 *           ("agent"), as it happens
 *   front, agent
 *   both    at one instant: stopped first, so that neither sees the other die
 *   none    COMMAND runs to its end
 *
 * This process is a subreaper, so whatever COMMAND starts stays a descendant
 * of it, in whatever session, by whatever name: that waitpid knows no child
 * is the proof that nothing is left. That must be so within a second, and at
 * once where none is killed. What is left all the same is listed on stderr,
 * counted (workers, which are called NAME, apart) and ended. Prints one line;
 * exits with 0 if nothing was left and COMMAND ended as it should, with 1 if
 * not. CK_TIMEOUT_MULTIPLIER stretches the second.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A launcher has started all it will within the first few milliseconds, so
 * every other round ends in these. */
/* While COMMAND starts and runs, which a sanitizer slows down. */
#ifdef __SANITIZE_ADDRESS__
#define KILL_WITHIN_MS 1500
#define KILL_EARLY_WITHIN_MS 50
#else
#define KILL_WITHIN_MS 300
#define KILL_EARLY_WITHIN_MS 10
#endif
#define GONE_WITHIN_MS 1000
#define APPEARS_WITHIN_MS 10000
#define ENDS_WITHIN_MS 60000
#define CLEAN_UP_MS 10000
#define PROCESSES_MAX 65536

enum victim { KILL_ANY, KILL_FRONT, KILL_AGENT, KILL_BOTH, KILL_NONE };

static const char *const victim_names[] = {
    "any", "front", "agent", "both", "none"};

struct process {
    pid_t pid;
    pid_t parent;
    char state;
    char name[32];
    bool is_ours; /* a descendant of this process */
};

struct tally {
    int nfront;
    int nagent;
    int nleft; /* processes, of all rounds */
    int nleft_workers; /* of those */
    int nwrong; /* rounds that went another way than they should */
    int status; /* of the last round's command */
    uint64_t longest_ns; /* from the kill until nothing was left */
};

static struct process processes[PROCESSES_MAX];
static int nprocesses;
static sigset_t inherited_mask;
static sigset_t child_mask;
static unsigned multiplier = 1;

static uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static uint64_t deadline_ns(unsigned ms)
{
    return now_ns() + (uint64_t)ms * multiplier * 1000000;
}

/* --- Processes ----------------------------------------------------------- */

static bool read_process(const char *pid, struct process *p)
{
    char path[64], stat[512];
    char *name, *end;
    ssize_t n;
    int fd;

    snprintf(path, sizeof(path), "/proc/%.20s/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    n = read(fd, stat, sizeof(stat) - 1);
    close(fd);
    if (n <= 0)
        return false;
    stat[n] = '\0';
    name = strchr(stat, '(');
    end = strrchr(stat, ')');
    *p = (struct process){0};
    if (name == NULL || end == NULL ||
        sscanf(end + 1, " %c %d", &p->state, &p->parent) != 2)
        return false;
    p->pid = (pid_t)strtol(pid, NULL, 10);
    snprintf(p->name, sizeof(p->name), "%.*s", (int)(end - name - 1), name + 1);
    return true;
}

static bool is_descendant(const struct process *p)
{
    if (p->parent == getpid())
        return true;
    for (int i = 0; i < nprocesses; i++)
        if (processes[i].pid == p->parent)
            return processes[i].is_ours;
    return false;
}

/* The processes that there are, though not all at the same moment. */
static void read_processes(void)
{
    DIR *dir = opendir("/proc");
    struct dirent *entry;
    bool has_changed;

    nprocesses = 0;
    if (dir == NULL)
        return;
    while ((entry = readdir(dir)) != NULL && nprocesses < PROCESSES_MAX)
        if (isdigit((unsigned char)entry->d_name[0]) &&
            read_process(entry->d_name, &processes[nprocesses]))
            nprocesses++;
    closedir(dir);
    do {
        has_changed = false;
        for (int i = 0; i < nprocesses; i++)
            if (!processes[i].is_ours && is_descendant(&processes[i]))
                has_changed = processes[i].is_ours = true;
    } while (has_changed);
}

static pid_t child_of(pid_t parent)
{
    read_processes();
    for (int i = 0; i < nprocesses; i++)
        if (processes[i].parent == parent)
            return processes[i].pid;
    return -1;
}

/* Reaps what has ended, and takes the status of pid. False if no child is
 * left. */
static bool reap(pid_t pid, int *status)
{
    pid_t ended;
    int one;

    while ((ended = waitpid(-1, &one, WNOHANG)) > 0)
        if (ended == pid)
            *status = one;
    return ended == 0;
}

static void wait_for_death(void)
{
    const struct timespec at_most = {0, 5 * 1000000};

    sigtimedwait(&child_mask, NULL, &at_most);
}

/* Waits until no descendant is left. */
static bool wait_for_none(pid_t pid, int *status, uint64_t until_ns)
{
    while (reap(pid, status)) {
        if (now_ns() >= until_ns)
            return false;
        wait_for_death();
    }
    return true;
}

/* Lists, counts and ends what is left. */
static void clean_up(const char *worker, struct tally *t)
{
    const uint64_t until_ns = deadline_ns(CLEAN_UP_MS);
    bool is_first = true;
    int status;

    while (reap(0, &status) && now_ns() < until_ns) {
        int nleft = 0;

        read_processes();
        for (int i = 0; i < nprocesses; i++) {
            const struct process *p = &processes[i];

            if (!p->is_ours || p->state == 'Z')
                continue;
            kill(p->pid, SIGKILL);
            nleft++;
            if (!is_first)
                continue;
            fprintf(stderr, "left: pid %d, child of %d, state %c, %s\n",
                (int)p->pid, (int)p->parent, p->state, p->name);
            t->nleft_workers += strcmp(p->name, worker) == 0;
        }
        if (is_first)
            t->nleft += nleft > 0 ? nleft : 1; /* one that /proc missed */
        is_first = false;
        wait_for_death();
    }
}

/* --- Rounds -------------------------------------------------------------- */

static pid_t start(char **argv)
{
    pid_t pid = fork();
    int fd;

    if (pid != 0)
        return pid;
    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (fd < 0 || dup2(fd, STDIN_FILENO) < 0 || dup2(fd, STDOUT_FILENO) < 0)
        _exit(126);
    sigprocmask(SIG_SETMASK, &inherited_mask, NULL);
    execvp(argv[0], argv);
    perror(argv[0]);
    _exit(127);
}

static bool has_ended(pid_t pid)
{
    siginfo_t info = {0};

    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0 ||
           info.si_pid != 0;
}

/* Kills whom it shall. False if there was nobody to be killed. */
static bool kill_victim(enum victim victim, pid_t front, struct tally *t)
{
    const uint64_t until_ns = deadline_ns(APPEARS_WITHIN_MS);
    pid_t agent = -1;

    while (victim != KILL_FRONT && (agent = child_of(front)) < 0 &&
           !has_ended(front) && now_ns() < until_ns)
        ;
    if (has_ended(front) || (victim != KILL_FRONT && agent < 0))
        return false;
    if (victim == KILL_BOTH) {
        kill(front, SIGSTOP);
        kill(agent, SIGSTOP);
    }
    if (victim != KILL_FRONT) {
        kill(agent, SIGKILL);
        t->nagent++;
    }
    if (victim != KILL_AGENT) {
        kill(front, SIGKILL);
        t->nfront++;
    }
    return true;
}

static void run_round(
    enum victim victim, char **argv, const char *worker, struct tally *t)
{
    const long within_ms =
        random() % 2 == 0 ? KILL_WITHIN_MS : KILL_EARLY_WITHIN_MS;
    const long at_us = random() % (within_ms * 1000L);
    const struct timespec at = {at_us / 1000000, at_us % 1000000 * 1000};
    pid_t front;
    int status = -1;
    uint64_t killed_ns;
    bool is_as_expected;

    if (victim == KILL_ANY)
        victim = random() % 2 == 0 ? KILL_FRONT : KILL_AGENT;
    front = start(argv);
    if (front < 0) {
        perror("fork");
        exit(1);
    }
    if (victim == KILL_NONE) {
        const uint64_t until_ns = deadline_ns(ENDS_WITHIN_MS);

        while (reap(front, &status) && status == -1 && now_ns() < until_ns)
            wait_for_death();
        is_as_expected = status != -1;
    } else {
        nanosleep(&at, NULL);
        is_as_expected = kill_victim(victim, front, t);
        killed_ns = now_ns();
        if (wait_for_none(front, &status, deadline_ns(GONE_WITHIN_MS)) &&
            now_ns() - killed_ns > t->longest_ns)
            t->longest_ns = now_ns() - killed_ns;
        is_as_expected = is_as_expected &&
                         (victim == KILL_AGENT
                                 ? WIFEXITED(status) && WEXITSTATUS(status) == 1
                                 : WIFSIGNALED(status));
    }
    if (!is_as_expected) {
        fprintf(stderr,
            "%s ended with wait status 0x%x, %s killed after %ld "
            "us\n",
            argv[0], (unsigned)status, victim_names[victim], at_us);
        t->nwrong++;
    }
    t->status = status;
    clean_up(worker, t);
}

static void print(enum victim victim, int nrounds, const struct tally *t)
{
    printf("%d rounds: ", nrounds);
    if (victim == KILL_NONE)
        printf("none killed, the last one ended with status %d, processes left "
               "at the end: %d\n",
            WIFEXITED(t->status) ? WEXITSTATUS(t->status) : -1, t->nleft);
    else if (victim == KILL_BOTH)
        printf("front and agent killed at once, after %g s workers left: %d, "
               "others: %d\n",
            GONE_WITHIN_MS * multiplier / 1e3, t->nleft_workers,
            t->nleft - t->nleft_workers);
    else
        printf("front killed %d, agent killed %d, processes left after %g s: "
               "%d (the slowest were gone after %.0f ms)\n",
            t->nfront, t->nagent, GONE_WITHIN_MS * multiplier / 1e3, t->nleft,
            (double)t->longest_ns / 1e6);
    if (t->nwrong > 0)
        printf("%d rounds went wrong\n", t->nwrong);
}

static int usage(void)
{
    fprintf(stderr, "usage: kill_storm [-k any|front|agent|both|none] "
                    "[-n ROUNDS] [-s SEED] [-w NAME] COMMAND [ARGS...]\n");
    return 2;
}

int main(int argc, char **argv)
{
    const char *slow = getenv("CK_TIMEOUT_MULTIPLIER");
    unsigned seed = (unsigned)now_ns();
    enum victim victim = KILL_ANY;
    struct tally t = {0};
    const char *worker = "";
    int nrounds = 1;
    int opt;

    while ((opt = getopt(argc, argv, "+k:n:s:w:")) != -1) {
        switch (opt) {
        case 'k':
            for (victim = KILL_ANY; victim <= KILL_NONE; victim++)
                if (strcmp(optarg, victim_names[victim]) == 0)
                    break;
            if (victim > KILL_NONE)
                return usage();
            break;
        case 'n':
            nrounds = (int)strtol(optarg, NULL, 10);
            break;
        case 's':
            seed = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'w':
            worker = optarg;
            break;
        default:
            return usage();
        }
    }
    if (optind == argc || nrounds < 1)
        return usage();
    if (slow != NULL && strtol(slow, NULL, 10) > 1)
        multiplier = (unsigned)strtol(slow, NULL, 10);
    fprintf(stderr, "seed %u\n", seed);
    srandom(seed);
    sigemptyset(&child_mask);
    sigaddset(&child_mask, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child_mask, &inherited_mask);
    signal(SIGCHLD, SIG_DFL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int i = 0; i < nrounds; i++)
        run_round(victim, argv + optind, worker, &t);
    print(victim, nrounds, &t);
    return t.nleft > 0 || t.nwrong > 0;
}
