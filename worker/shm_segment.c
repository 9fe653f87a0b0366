/*
 * The segment of the back end "shm": its layout, and its memory. It is a
 * memfd without a name in any file system, so there is nothing to clean up,
 * however a rank ends.
 */
#include "shm_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Data of one tick. Measured with 2 ranks, 1 MiB of float32: 150 to 170 us
 * with chunks of 32 to 128 KiB, 85 to 110 with 256 and 512; larger messages
 * are alike from 64 KiB on. Many ranks get smaller chunks, so that the
 * segment does not grow much beyond SEGMENT_BYTES.
 */
#define CHUNK_BYTES ((size_t)256 * 1024)
#define SEGMENT_BYTES ((size_t)64 * 1024 * 1024)

/* Rank 0's two slots are in use before its first tick: for the names. */
_Static_assert((size_t)SHM_MAX_RANKS *SHM_NAME_BYTES <= 2 * SHM_CHUNK_MIN_BYTES,
    "the names of all ranks fit the slots of one");

static coll_status_t fail_errno(const char *what)
{
    return coll_fail(
        COLL_ERR_SYSTEM, "coll_init: %s: %s", what, strerror(errno));
}

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static size_t rank_bytes(const struct shm_state *s)
{
    return 2 * (s->chunk_bytes + s->result_bytes);
}

/* Every rank computes the same layout; nobody has to send it. Slots are
 * whole pages, so that they can lie on the NUMA node of their writer. Returns
 * where they begin. */
static size_t lay_out(struct shm_state *s)
{
    size_t size = (size_t)s->size;
    size_t chunk = SEGMENT_BYTES / (2 * size);
    size_t page = 4096;
    size_t slots_at;

    if (chunk > CHUNK_BYTES)
        chunk = CHUNK_BYTES;
    if (chunk < SHM_CHUNK_MIN_BYTES)
        chunk = SHM_CHUNK_MIN_BYTES;
    s->chunk_bytes = round_up(chunk, page);
    /* A share of a chunk is rounded up to a cache line, then to pages. */
    s->result_bytes = round_up(s->chunk_bytes / size + 2 * 64, page);
    slots_at = round_up(size * sizeof(struct shm_control), page);
    s->map_bytes = slots_at + size * rank_bytes(s);
    return slots_at;
}

/* Pages that are reserved now cannot be missing later, when the only way to
 * say so would be SIGBUS. */
static coll_status_t reserve(int fd, size_t at, size_t len)
{
    int rc;

    do {
        rc = fallocate(fd, 0, (off_t)at, (off_t)len);
    } while (rc < 0 && errno == EINTR);
    if (rc < 0)
        return coll_fail(errno == ENOSPC || errno == ENOMEM ? COLL_ERR_MEMORY
                                                            : COLL_ERR_SYSTEM,
            "coll_init: cannot reserve %zu KiB of shared memory: %s",
            len / 1024, strerror(errno));
    return COLL_OK;
}

/* Maps the segment; each rank reserves its own slots, so the pages come from
 * its NUMA node. */
static coll_status_t map(struct shm_state *s, int fd, size_t slots_at)
{
    coll_status_t status;
    void *memory;

    status =
        reserve(fd, slots_at + (size_t)s->rank * rank_bytes(s), rank_bytes(s));
    if (status != COLL_OK)
        return status;
    memory =
        mmap(NULL, s->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return fail_errno("map the shared memory");
    s->control = memory;
    s->slots = (char *)memory + slots_at;
    s->tick = SHM_FIRST_TICK;
    return COLL_OK;
}

coll_status_t shm_segment_create(struct shm_state *s, int *fd)
{
    size_t slots_at = lay_out(s);
    coll_status_t status;

    *fd = memfd_create("libcollective", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0)
        return fail_errno("memfd_create");
    if (ftruncate(*fd, (off_t)s->map_bytes) < 0)
        return fail_errno("size of the shared memory");
    /* Nobody can make a page disappear under a reader. */
    if (fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
        return fail_errno("seal of the shared memory");
    status = reserve(*fd, 0, slots_at);
    if (status == COLL_OK)
        status = map(s, *fd, slots_at);
    /* Before anybody else has it, so nobody sees a tick that was never
     * set. */
    for (int r = 0; r < s->size && status == COLL_OK; r++)
        for (int parity = 0; parity < 2; parity++)
            atomic_store(&s->control[r].ticks[parity].tick, SHM_FIRST_TICK);
    return status;
}

coll_status_t shm_segment_map(struct shm_state *s, int fd)
{
    size_t slots_at = lay_out(s);
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;

    if (fstat(fd, &st) < 0 || (size_t)st.st_size != s->map_bytes || seals < 0 ||
        (seals & F_SEAL_SHRINK) == 0)
        return coll_fail(COLL_ERR_SYSTEM,
            "coll_init: the shared memory of rank 0 is not of this version "
            "of the library");
    return map(s, fd, slots_at);
}

char (*shm_segment_names(const struct shm_state *s))[SHM_NAME_BYTES]
{
    return (char(*)[SHM_NAME_BYTES])s->slots;
}
