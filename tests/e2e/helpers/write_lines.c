/*
 * A worker that writes N lines to stdout and N to stderr, each in two write
 * calls, of lengths from 20 to 5000 bytes. A line is
 *   <rank>:<stream>:<number>:<length>:xxxx...
 * so that a reader can tell whether it arrived whole.
 *
 *     write_lines N
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_MIN 20
#define LINE_MAX_LEN 5000

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

            memset(line + head, 'x', len);
            line[(size_t)head + len] = '\n';
            if (write_all(fd, line, cut) < 0 ||
                write_all(fd, line + cut, (size_t)head + len + 1 - cut) < 0)
                return 1;
        }
    return 0;
}
