/*
 * coll_install_crash_handler(): an error file for a worker that is killed by
 * its own fault. The handler writes it, puts back the handler that was there
 * before, and sends itself the same signal with the same siginfo: so what was
 * to happen, a core dump or another library's handler, happens, and the wait
 * status is the signal.
 */
#include <errno.h>
#include <execinfo.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "backend.h"
#include "coll_record.h"

/* X(symbol) */
#define CRASH_SIGNAL_MAP(X)                                                    \
    X(SIGSEGV)                                                                 \
    X(SIGBUS)                                                                  \
    X(SIGFPE)                                                                  \
    X(SIGILL)                                                                  \
    X(SIGABRT)

/* Room for the handler when the stack has overflown; the kernel alone may
 * need 11 KiB of it for the registers of a large CPU. */
#define STACK_SIZE (64 * 1024)

/* A second thread that crashes gives the first one this long to finish. */
#define SECOND_MS 1000

static const struct {
    int sig;
    const char *name;
} signals[] = {
#define CRASH_SIGNAL(sig) {sig, #sig},
    CRASH_SIGNAL_MAP(CRASH_SIGNAL)
#undef CRASH_SIGNAL
};

#define NSIGNALS (sizeof(signals) / sizeof(signals[0]))

/* A signal handler is given no argument of ours. */
static struct {
    struct coll_record record;
    pid_t pid; /* whose crash it is; 0: not installed */
    struct sigaction before[NSIGNALS];
    atomic_int writer; /* tid of the first thread that crashed; 0: none */
    atomic_bool is_written;
} crash;

static char crash_stack[STACK_SIZE];

/* snprintf() may not be used here. */
static void add(char *text, size_t size, const char *more)
{
    size_t len = strlen(text);
    size_t n = strlen(more);

    if (n >= size - len)
        n = size - len - 1;
    memcpy(text + len, more, n);
    text[len + n] = '\0';
}

static void add_number(
    char *text, size_t size, uint64_t number, unsigned int base)
{
    char digits[24];
    char *at = digits + sizeof(digits) - 1;

    *at = '\0';
    do
        *--at = "0123456789abcdef"[number % base];
    while ((number /= base) > 0);
    add(text, size, at);
}

/* "signal 11 (SIGSEGV) at address 0x10". */
static void describe(
    size_t index, const siginfo_t *info, char *out, size_t size)
{
    out[0] = '\0';
    add(out, size, "signal ");
    add_number(out, size, (uint64_t)signals[index].sig, 10);
    add(out, size, " (");
    add(out, size, signals[index].name);
    add(out, size, ")");
    if (info->si_code > 0) { /* the kernel's: a fault */
        add(out, size, " at address 0x");
        add_number(out, size, (uintptr_t)info->si_addr, 16);
    } else if (info->si_pid != crash.pid) {
        add(out, size, " sent by process ");
        add_number(out, size, (uint64_t)info->si_pid, 10);
    }
}

static void wait_for_writer(void)
{
    const struct timespec pause = {.tv_nsec = 10 * 1000000};

    for (int i = 0; i < SECOND_MS / 10 && !atomic_load(&crash.is_written); i++)
        nanosleep(&pause, NULL);
}

static void record(size_t index, const siginfo_t *info)
{
    int tid = (int)syscall(SYS_gettid);
    int writer = 0;
    char message[128];

    if (getpid() != crash.pid)
        return; /* a fork: its end is not the worker's */
    if (atomic_compare_exchange_strong(&crash.writer, &writer, tid)) {
        describe(index, info, message, sizeof(message));
        coll_record_write(&crash.record, message);
        atomic_store(&crash.is_written, true);
    } else if (writer != tid) {
        wait_for_writer();
    }
}

/* Also the core dump, if there is one, tells of the fault and not of a
 * raise(), because the siginfo is passed on. */
static void raise_again(int sig, siginfo_t *info)
{
    if (syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), sig,
            info) < 0)
        raise(sig);
}

static void on_crash(int sig, siginfo_t *info, void *context)
{
    int error = errno;
    size_t index = 0;

    (void)context;
    while (index < NSIGNALS - 1 && signals[index].sig != sig)
        index++;
    /* What another process sent, and the program does not want to hear. */
    if (crash.before[index].sa_handler == SIG_IGN && info->si_code <= 0 &&
        info->si_pid != crash.pid)
        return;
    record(index, info);
    sigaction(sig, &crash.before[index], NULL);
    raise_again(sig, info); /* pending until this handler has returned */
    errno = error;
}

/* The calling thread's; another one that is there already is large enough for
 * the handlers of whoever made it. */
static int use_own_stack(void)
{
    stack_t now;

    if (sigaltstack(NULL, &now) < 0)
        return -errno;
    if ((now.ss_flags & SS_DISABLE) == 0)
        return 0;
    now = (stack_t){.ss_sp = crash_stack, .ss_size = sizeof(crash_stack)};
    return sigaltstack(&now, NULL) < 0 ? -errno : 0;
}

static int install(void)
{
    struct sigaction action = {
        .sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK};

    /* A fault in the handler must end the process, not call it again. */
    for (size_t i = 0; i < NSIGNALS; i++)
        sigaddset(&action.sa_mask, signals[i].sig);
    for (size_t i = 0; i < NSIGNALS; i++)
        if (sigaction(signals[i].sig, &action, &crash.before[i]) < 0)
            return -errno;
    return 0;
}

coll_status_t coll_install_crash_handler(void)
{
    bool is_installed = crash.pid != 0; /* perhaps before a fork */
    void *frame[1];
    int rc;

    if (crash.pid == getpid() || !coll_record_prepare(&crash.record))
        return COLL_OK;
    backtrace(frame, 1); /* loads what it needs, which a handler must not */
    rc = use_own_stack();
    if (rc == 0 && !is_installed)
        rc = install();
    if (rc < 0)
        return coll_fail(
            COLL_ERR_SYSTEM, "coll_install_crash_handler: %s", strerror(-rc));
    atomic_store(&crash.writer, 0);
    atomic_store(&crash.is_written, false);
    crash.pid = getpid();
    return COLL_OK;
}
