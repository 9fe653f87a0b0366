/* See standard_fds.h. */
#include "cmd/standard_fds.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int standard_fds_open(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd < 0)
        return -errno;
    close(fd);
    return 0;
}
