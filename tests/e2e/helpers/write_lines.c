/*
 * A worker that writes N lines to stdout and N to stderr, each in two write
 * calls, of lengths from 20 to 5000 bytes. A line is
 *   <rank>:<stream>:<number>:<length>:xxxx...
 * so that a reader can tell whether it arrived whole.
 *
 *     write_lines N
 *
 * crun shows a line in parts if its rest does not come for a while. So if this
 * process was held up within a line it leaves the file that the environment
 * names as WRITE_LINES_STALLED.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_MIN 20
#define LINE_MAX_LEN 5000

/* Half of what crun waits. */
#define STALL_S 0.05

static int write_all(int fd, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t done = write(fd, text, n);

        if (done < 0)
            return -1;
        text += done;
        n -= (size_t)done;
    }
    return 0;
}

static double now_s(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void note_stall(double since_s)
{
    const char *path = getenv("WRITE_LINES_STALLED");
    int fd;

    if (path == NULL || now_s() - since_s < STALL_S)
        return;
    fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv)
{
    const char *rank = getenv("RANK");
    long nlines = argc == 2 ? strtol(argv[1], NULL, 10) : 0;
    unsigned seed;

    if (rank == NULL || nlines <= 0) {
        fprintf(stderr, "usage: RANK=r write_lines N, N > 0\n");
        return 2;
    }
    seed = (unsigned)strtol(rank, NULL, 10);
    for (long i = 0; i < nlines; i++)
        for (int fd = 1; fd <= 2; fd++) {
            char line[LINE_MAX_LEN + 64];
            size_t len =
                LINE_MIN + (size_t)rand_r(&seed) % (LINE_MAX_LEN - LINE_MIN);
            int head = snprintf(
                line, sizeof(line), "%s:%d:%ld:%zu:", rank, fd, i, len);
            size_t cut = 1 + (size_t)rand_r(&seed) % (len - 1);
            double since_s;

            memset(line + head, 'x', len);
            line[(size_t)head + len] = '\n';
            since_s = now_s();
            if (write_all(fd, line, cut) < 0 ||
                write_all(fd, line + cut, (size_t)head + len + 1 - cut) < 0)
                return 1;
            note_stall(since_s);
        }
    return 0;
}
