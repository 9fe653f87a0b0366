/* Listening sockets of one port. */
#ifndef CRUN_RENDEZVOUS_LISTEN_H
#define CRUN_RENDEZVOUS_LISTEN_H

#include <stdint.h>

#include "rendezvous/base/err.h"

/* Addresses that one host name may have on this machine. */
#define LISTEN_MAX 16

/*
 * Listens on every address that host resolves to on this machine, all with
 * one port; port 0 lets the kernel choose. A numeric host is not looked up; a
 * name is, for half a minute at most. "::" stands for both families, or
 * for IPv4 where there is no IPv6.
 *
 * Returns the number of sockets in fds (non-blocking, close-on-exec, with
 * keep-alive and TCP_NODELAY, which accepted sockets inherit); *bound_port is
 * the port. Errors name host and port: -EADDRINUSE, -EADDRNOTAVAIL (no
 * address of this machine), -ENOENT (the name does not resolve), -ETIMEDOUT
 * (the name service is silent), others.
 */
int listen_open(const char *host, int port, int fds[LISTEN_MAX],
    int *bound_port, struct err *e);

/*
 * Binds the sockets and does not listen: nobody is given the port by the
 * kernel, but a program that sets SO_REUSEADDR, as servers do, may listen at
 * it. For a port that a worker shall listen at.
 */
int listen_reserve(const char *host, int port, int fds[LISTEN_MAX],
    int *bound_port, struct err *e);

/* Whether listen_open() would find addresses for the name before the deadline:
 * 0, or one of the last two errors. */
int listen_check_name(
    const char *host, int port, uint64_t deadline_ns, struct err *e);

#endif
