/* What the programs share that measure stores: time, latencies, sockets, and
 * what the kernel knows about the server's process. */
#ifndef CRUN_BENCH_STORE_BENCH_H
#define CRUN_BENCH_STORE_BENCH_H

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define NS_PER_S 1000000000ull

uint64_t bench_now_ns(void);

/* Says why and ends the program with status 1. */
_Noreturn void bench_die(const char *fmt, ...)
    __attribute__((format(printf, 1, 2)));

/* A whole decimal number within the bounds, or the end of the program. */
long bench_number(const char *text, long min, long max);

/* --- Latencies ---------------------------------------------------------- */

/* Counts by size: exact below 64 ns, then 32 steps for each doubling, so a
 * percentile is known to 3 %. */
#define BENCH_HIST_STEPS 32
struct bench_hist {
    uint64_t count[60 * BENCH_HIST_STEPS];
    uint64_t total;
    uint64_t max;
};

void bench_hist_add(struct bench_hist *h, uint64_t ns);

/* The value that the given share (0.99) of all values does not exceed. */
double bench_hist_us(const struct bench_hist *h, double share);

/* --- Sockets ------------------------------------------------------------ */

/* "127.0.0.1:29400"; a number, not a name. */
struct sockaddr_in bench_address(const char *host_port);

/*
 * A connected TCP socket without Nagle's delay. Non-blocking ones may still be
 * connecting. source: bound to 127.0.0.source first, because one address has
 * only some 28,000 ports; 0: not bound. The descriptor, or a negative errno.
 */
int bench_connect(const struct sockaddr_in *to, int source, int flags);

void bench_no_delay(int fd);

/* Raises the limit of descriptors; ends the program if it stays below n. */
void bench_need_descriptors(size_t n);

/* --- The server's process ----------------------------------------------- */

/* CPU time that it has used. */
uint64_t bench_cpu_ns(pid_t pid);

/* Resident memory. */
long bench_rss_kib(pid_t pid);

/* Open descriptors, or -1 once the process is gone. */
long bench_open_descriptors(pid_t pid);

/* Its limit of descriptors. */
long bench_descriptor_limit(pid_t pid);

#endif
