/* Names of signals; glibc has them only from 2.32 on. */
#ifndef CRUN_AGENT_SIGNAL_NAMES_H
#define CRUN_AGENT_SIGNAL_NAMES_H

/* "SIGTERM"; "real-time signal" for a number that has no name. */
const char *signal_name(int sig);

#endif
