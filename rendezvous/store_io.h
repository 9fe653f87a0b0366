/*
 * Bytes over the socket of a store's client, with deadlines (absolute values
 * of clock_now_ns()). -ETIMEDOUT means that the deadline is over, and nothing
 * else: a host that TCP has given up is -EHOSTDOWN. -ECANCELED: the thread's
 * interrupt is due (interrupt.h).
 */
#ifndef CRUN_RENDEZVOUS_STORE_IO_H
#define CRUN_RENDEZVOUS_STORE_IO_H

#include <netdb.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* A connected socket, ready for the calls below, or a negative errno. */
int store_io_connect(
    const struct sockaddr *addr, socklen_t addr_len, uint64_t deadline_ns);

/* Ends the connection. A process that a fork() has given the socket, too, does
 * not keep it. */
void store_io_close(int fd);

/* Sends everything; iov is used up. 0 or a negative errno: then an unknown
 * part has been sent. */
int store_io_send(
    int fd, struct iovec *iov, size_t iov_count, uint64_t deadline_ns);

/* Waits for bytes, and takes as many of them as there are, up to max: their
 * number, or a negative errno. -ECONNRESET also for an orderly end. */
ssize_t store_io_recv(int fd, void *data, size_t max, uint64_t deadline_ns);

#endif
