/*
 * Log lines about peers that misbehave: one for each, with its address in
 * numbers (no name service is asked), and few per second, so that a flood of
 * them does not become a flood of lines.
 */
#ifndef CRUN_RENDEZVOUS_PEER_LOG_H
#define CRUN_RENDEZVOUS_PEER_LOG_H

#include <stdint.h>

#define PEER_LOG_PER_SECOND 10

/* Zero at first. */
struct peer_log {
    uint64_t second; /* of the monotonic clock */
    unsigned shown; /* in that second */
    unsigned long hidden; /* since the last line that was shown */
};

/* A warning about who is at the other end of fd, or one more that is counted
 * and told of later. */
void peer_log_warn(struct peer_log *l, int fd, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Tells of those that were hidden last. */
void peer_log_fini(struct peer_log *l);

#endif
