/*
 * Large messages from memory of coll_alloc(), between two ranks of one node:
 * the sender says where in its memfd (coll_memory.c) the data lie, and the
 * receiver copies them from there. That is one copy at the speed of memcpy(),
 * and needs nobody's permission.
 *
 * A receiver has mapped all of the other side's memfd, for reading, and more of
 * it when it has grown. So there is nothing to look up, and nothing to drop;
 * what no message lies in costs addresses, no memory.
 */
#include "p2p_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "coll_memory.h"

/*
 * Measured with two ranks on two CPUs, in us, one after the other: 16 KiB 2.8
 * through the ring, 5.1 from a map; 32 KiB 5.0 and 5.4; 64 KiB 9.5 and 5.9;
 * 1 MiB, where it was pulled, 90 and 28. Through the ring the send is done
 * earlier.
 */
#define MAP_MIN_BYTES ((size_t)64 * 1024)

bool p2p_memory_find(
    struct p2p_peer *peer, const void *buf, size_t len, uint64_t *at)
{
    struct coll_extent e;

    if (len < MAP_MIN_BYTES)
        return false;
    coll_memory_find(&e, buf, len);
    if (e.len == 0 || shm_send_memory(peer->p2p->shm, peer->pipe.index) < 0)
        return false;
    *at = e.at + e.offset;
    return true;
}

/* Maps the memfd as large as it is now. 0 or a negative errno. */
static int map_all(struct p2p_peer *peer)
{
    struct p2p_pipe *pipe = &peer->pipe;
    int fd = shm_memory_of(peer->p2p->shm, pipe->index, peer->p2p->lane);
    int seals = fd < 0 ? 0 : fcntl(fd, F_GET_SEALS);
    struct stat st;
    size_t size;
    void *memory;

    if (fd < 0)
        return -EBADF;
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &st) < 0)
        return -EPROTO;
    size = (size_t)st.st_size;
    if (size <= pipe->memory_len)
        return -EFAULT;
    memory = pipe->memory == NULL
                 ? mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0)
                 : mremap(pipe->memory, pipe->memory_len, size, MREMAP_MAYMOVE);
    if (memory == MAP_FAILED)
        return -errno;
    /* In a core file it would be this rank's no more than the others', and to
     * write it there would fill what is free of it with pages. */
    madvise(memory, size, MADV_DONTDUMP);
    pipe->memory = memory;
    pipe->memory_len = size;
    return 0;
}

static bool is_mapped(const struct p2p_pipe *pipe, uint64_t at, size_t len)
{
    return at <= pipe->memory_len && len <= pipe->memory_len - at;
}

ssize_t p2p_memory_copy(
    struct p2p_peer *peer, void *buf, uint64_t at, size_t len)
{
    const struct p2p_pipe *pipe = &peer->pipe;
    int rc = is_mapped(pipe, at, len) ? 0 : map_all(peer);

    if (rc < 0)
        return rc;
    if (!is_mapped(pipe, at, len))
        return -EFAULT;
    memcpy(buf, pipe->memory + at, len);
    return (ssize_t)len;
}

void p2p_memory_close(struct p2p_peer *peer)
{
    if (peer->pipe.memory != NULL)
        munmap(peer->pipe.memory, peer->pipe.memory_len);
}
