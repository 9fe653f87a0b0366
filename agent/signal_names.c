/* See signal_names.h. */
#include "agent/signal_names.h"

#include <signal.h>
#include <stddef.h>

#define SIGNAL_MAP(X)                                                          \
    X(SIGHUP)                                                                  \
    X(SIGINT)                                                                  \
    X(SIGQUIT)                                                                 \
    X(SIGILL)                                                                  \
    X(SIGTRAP)                                                                 \
    X(SIGABRT)                                                                 \
    X(SIGBUS)                                                                  \
    X(SIGFPE)                                                                  \
    X(SIGKILL)                                                                 \
    X(SIGUSR1)                                                                 \
    X(SIGSEGV)                                                                 \
    X(SIGUSR2)                                                                 \
    X(SIGPIPE)                                                                 \
    X(SIGALRM)                                                                 \
    X(SIGTERM)                                                                 \
    X(SIGSTKFLT)                                                               \
    X(SIGCHLD)                                                                 \
    X(SIGCONT)                                                                 \
    X(SIGSTOP)                                                                 \
    X(SIGTSTP)                                                                 \
    X(SIGTTIN)                                                                 \
    X(SIGTTOU)                                                                 \
    X(SIGURG)                                                                  \
    X(SIGXCPU)                                                                 \
    X(SIGXFSZ)                                                                 \
    X(SIGVTALRM)                                                               \
    X(SIGPROF)                                                                 \
    X(SIGWINCH)                                                                \
    X(SIGIO)                                                                   \
    X(SIGPWR)                                                                  \
    X(SIGSYS)

const char *signal_name(int sig)
{
#define SIGNAL_NAME(sig) [sig] = #sig,
    static const char *const names[] = {SIGNAL_MAP(SIGNAL_NAME)};
    const char *name = NULL;

    if (sig > 0 && (size_t)sig < sizeof(names) / sizeof(names[0]))
        name = names[sig];
    return name != NULL ? name : "real-time signal";
}
