/* See store_bench.h. */
#include "tests/bench/store_bench.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

uint64_t bench_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

void bench_die(const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "%s: ", program_invocation_short_name);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(1);
}

long bench_number(const char *text, long min, long max)
{
    char *end;
    long n;

    errno = 0;
    n = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || n < min || n > max)
        bench_die("'%s' is no number from %ld to %ld", text, min, max);
    return n;
}

/* --- Latencies ---------------------------------------------------------- */

static size_t hist_slot(uint64_t ns)
{
    unsigned doublings;

    if (ns < 2 * BENCH_HIST_STEPS)
        return (size_t)ns;
    doublings = 63 - (unsigned)__builtin_clzll(ns) - 5;
    return (size_t)doublings * BENCH_HIST_STEPS + (size_t)(ns >> doublings);
}

/* The largest value of a slot. */
static double hist_value(size_t slot)
{
    size_t doublings;

    if (slot < 2 * BENCH_HIST_STEPS)
        return (double)slot;
    doublings = slot / BENCH_HIST_STEPS - 1;
    return (double)(((slot % BENCH_HIST_STEPS + BENCH_HIST_STEPS + 1)
                        << doublings) -
                    1);
}

void bench_hist_add(struct bench_hist *h, uint64_t ns)
{
    h->count[hist_slot(ns)]++;
    h->total++;
    if (ns > h->max)
        h->max = ns;
}

double bench_hist_us(const struct bench_hist *h, double share)
{
    uint64_t seen = 0;
    size_t slot;

    if (h->total == 0)
        return 0;
    for (slot = 0; slot < sizeof(h->count) / sizeof(h->count[0]); slot++) {
        seen += h->count[slot];
        if ((double)seen >= share * (double)h->total)
            break;
    }
    return (hist_value(slot) < (double)h->max ? hist_value(slot)
                                              : (double)h->max) /
           1e3;
}

/* --- Sockets ------------------------------------------------------------ */

struct sockaddr_in bench_address(const char *host_port)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    const char *colon = strrchr(host_port, ':');
    char host[INET_ADDRSTRLEN];

    if (colon == NULL || (size_t)(colon - host_port) >= sizeof(host))
        bench_die("'%s' is not ADDRESS:PORT", host_port);
    memcpy(host, host_port, (size_t)(colon - host_port));
    host[colon - host_port] = '\0';
    if (inet_pton(AF_INET, host, &a.sin_addr) != 1)
        bench_die("'%s' is no IPv4 address", host);
    a.sin_port = htons((uint16_t)bench_number(colon + 1, 1, 65535));
    return a;
}

void bench_no_delay(int fd)
{
    const int one = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

int bench_connect(const struct sockaddr_in *to, int source, int flags)
{
    const int one = 1;
    struct sockaddr_in from = {.sin_family = AF_INET,
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + (uint32_t)source)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    int rc;

    if (fd < 0)
        return -errno;
    bench_no_delay(fd);
    if (source != 0) {
        /* Without it bind takes a port for all destinations. */
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
        if (bind(fd, (struct sockaddr *)&from, sizeof(from)) < 0)
            goto fail;
    }
    if (connect(fd, (const struct sockaddr *)to, sizeof(*to)) == 0 ||
        errno == EINPROGRESS)
        return fd;
fail:
    rc = -errno;
    close(fd);
    return rc;
}

void bench_need_descriptors(size_t n)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        bench_die("getrlimit: %s", strerror(errno));
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur < n)
        bench_die("%zu descriptors are needed and %zu allowed (ulimit -n)", n,
            (size_t)limit.rlim_cur);
}

/* --- The server's process ----------------------------------------------- */

uint64_t bench_cpu_ns(pid_t pid)
{
    struct timespec ts;
    clockid_t clock;
    int rc = clock_getcpuclockid(pid, &clock);

    if (rc != 0 || clock_gettime(clock, &ts) < 0)
        bench_die("process %d cannot be measured", (int)pid);
    return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* The first number behind label in /proc/PID/name; -1 if there is none. */
static long proc_number(pid_t pid, const char *name, const char *label)
{
    char path[64], line[256];
    long value = -1;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    f = fopen(path, "re");
    if (f == NULL)
        return -1;
    while (value < 0 && fgets(line, sizeof(line), f) != NULL) {
        if (strncmp(line, label, strlen(label)) == 0)
            value = strtol(line + strlen(label), NULL, 10);
    }
    fclose(f);
    return value;
}

long bench_rss_kib(pid_t pid)
{
    return proc_number(pid, "status", "VmRSS:");
}

long bench_descriptor_limit(pid_t pid)
{
    return proc_number(pid, "limits", "Max open files");
}

long bench_open_descriptors(pid_t pid)
{
    char path[64];
    long n = 0;
    DIR *dir;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    dir = opendir(path);
    if (dir == NULL)
        return -1;
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n - 2; /* "." and ".." */
}
