/* The limit of open files: see coll_fds.h. */
#include "coll_fds.h"

#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>

#include "backend.h"

/* Beside a socket and a pidfd per rank: the segment, listeners (the one of TCP
 * stays beside those of the node), epoll sets, the connection to the store, and
 * some that are no rank's. */
#define SPARE_FDS 17

/* Descriptors that may come later. */
static _Atomic int promised;

void coll_fds_promise(int count)
{
    atomic_fetch_add(&promised, count);
}

static int count_open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    if (dir == NULL)
        return 64; /* most programs have fewer */
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count - 3; /* ".", ".." and dir */
}

coll_status_t coll_fds_reserve(int ranks, int clients)
{
    rlim_t need = (rlim_t)(count_open_fds() + 2 * ranks + clients + SPARE_FDS);
    rlim_t most = need + (rlim_t)(ranks + atomic_load(&promised));
    struct rlimit limit;
    bool is_enough;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= most)
        return COLL_OK;
    is_enough = limit.rlim_cur >= need;
    limit.rlim_cur = limit.rlim_max < most ? limit.rlim_max : most;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0 && !is_enough)
        return coll_fail(COLL_ERR_SYSTEM,
            "coll_init: raise the limit of open files: %s", strerror(errno));
    if (limit.rlim_max >= need)
        return COLL_OK;
    return coll_fail(COLL_ERR_SYSTEM,
        "coll_init: %d ranks need %llu open files per process, the limit is "
        "%llu; raise it (ulimit -Hn)",
        ranks, (unsigned long long)need, (unsigned long long)limit.rlim_max);
}
