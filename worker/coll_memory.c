/*
 * See coll_memory.h. The memfd only grows; an extent that is freed gives its
 * pages back and is used again by an allocation of its size or less, whole.
 * So what another rank has mapped of it stays valid memory: one that has not
 * heard of a failure may still write there. Therefore what was allocated when
 * an operation failed is not used again; offsets are plenty.
 */
#include "coll_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend.h"

/* Where it pays, the kernel backs an allocation with huge pages. */
#define HUGE_BYTES ((size_t)2 << 20)

#define PAGE_BYTES ((size_t)4096)

struct extent {
    uint64_t at;
    size_t len;
    char *memory; /* NULL: free */
    bool is_distrusted; /* not to be used again */
};

static struct {
    pthread_rwlock_t lock;
    pid_t pid; /* who made the memfd: a forked child has none of its own */
    int fd;
    uint64_t end;
    struct extent *extents; /* in use ones first, by address; then free ones */
    size_t used, count, room;
} heap = {.lock = PTHREAD_RWLOCK_INITIALIZER, .fd = -1};

/* The number of extents in use that begin at or below. */
static size_t rank_of(const void *buf)
{
    size_t low = 0;
    size_t high = heap.used;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if ((uintptr_t)heap.extents[middle].memory <= (uintptr_t)buf)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void coll_memory_find(struct coll_extent *out, const void *buf, size_t len)
{
    size_t rank;

    *out = (struct coll_extent){0};
    pthread_rwlock_rdlock(&heap.lock);
    rank = rank_of(buf);
    if (rank > 0 && heap.pid == getpid()) {
        const struct extent *e = &heap.extents[rank - 1];
        size_t offset = (size_t)((uintptr_t)buf - (uintptr_t)e->memory);

        if (offset <= e->len && len <= e->len - offset)
            *out = (struct coll_extent){e->at, e->len, offset};
    }
    pthread_rwlock_unlock(&heap.lock);
}

void coll_memory_distrust(void)
{
    pthread_rwlock_wrlock(&heap.lock);
    for (size_t i = 0; i < heap.used; i++)
        heap.extents[i].is_distrusted = true;
    pthread_rwlock_unlock(&heap.lock);
}

int coll_memory_fd(void)
{
    int fd;

    pthread_rwlock_rdlock(&heap.lock);
    fd = heap.pid == getpid() ? heap.fd : -1;
    pthread_rwlock_unlock(&heap.lock);
    return fd;
}

/* 0 or a negative errno. */
static int open_heap(void)
{
    if (heap.fd >= 0 && heap.pid == getpid())
        return 0;
    /* What a parent has allocated stays mapped, and the parent's. */
    free(heap.extents);
    heap.extents = NULL;
    heap.used = heap.count = heap.room = 0;
    heap.end = 0;
    heap.pid = getpid();
    heap.fd = memfd_create("coll_alloc", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (heap.fd < 0)
        return -errno;
    /* No page can disappear under a reader. */
    return fcntl(heap.fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0 ? -errno : 0;
}

/* The smallest free extent that is large enough, or a new one at the end:
 * index, or a negative errno. */
static ssize_t choose(size_t len)
{
    size_t best = heap.count;

    for (size_t i = heap.used; i < heap.count; i++)
        if (heap.extents[i].len >= len && heap.extents[i].len / 2 <= len &&
            (best == heap.count ||
                heap.extents[i].len < heap.extents[best].len))
            best = i;
    if (best < heap.count)
        return (ssize_t)best;
    if (heap.count == heap.room) {
        size_t room = heap.room == 0 ? 16 : 2 * heap.room;
        struct extent *more =
            realloc(heap.extents, room * sizeof(*heap.extents));

        if (more == NULL)
            return -ENOMEM;
        heap.extents = more;
        heap.room = room;
    }
    /* Huge pages need both the address and the offset to be whole ones. */
    if (len >= HUGE_BYTES)
        heap.end = (heap.end + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    heap.extents[heap.count] = (struct extent){.at = heap.end, .len = len};
    heap.end += len;
    heap.count++;
    return (ssize_t)(heap.count - 1);
}

int coll_memory_map(char **out, int fd, uint64_t at, size_t len, int populate)
{
    size_t unit = len >= HUGE_BYTES ? HUGE_BYTES : PAGE_BYTES;
    size_t room = len + unit - PAGE_BYTES;
    size_t skip;
    char *memory = mmap(NULL, room, PROT_NONE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (memory == MAP_FAILED)
        return -errno;
    skip = (size_t)(-(uintptr_t)memory % unit);
    if (mmap(memory + skip, len, PROT_READ | PROT_WRITE,
            MAP_SHARED | MAP_FIXED | populate, fd, (off_t)at) == MAP_FAILED) {
        int rc = -errno;

        munmap(memory, room);
        return rc;
    }
    if (skip > 0)
        munmap(memory, skip);
    if (room > skip + len)
        munmap(memory + skip + len, room - skip - len);
    *out = memory + skip;
    if (len >= HUGE_BYTES)
        madvise(*out, len, MADV_HUGEPAGE); /* a hint */
    return 0;
}

/* Gives back the pages of an extent: they are zeros then. */
static void punch(const struct extent *e)
{
    fallocate(heap.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)e->at,
        (off_t)e->len);
}

/* Reserved, so that no page can be missing later. 0 or a negative errno. */
static int map(struct extent *e)
{
    int rc;

    do {
        rc = fallocate(heap.fd, 0, (off_t)e->at, (off_t)e->len);
    } while (rc < 0 && errno == EINTR);
    if (rc < 0)
        return -errno;
    rc = coll_memory_map(&e->memory, heap.fd, e->at, e->len, 0);
    if (rc < 0)
        punch(e);
    return rc;
}

static void swap(size_t a, size_t b)
{
    struct extent e = heap.extents[a];

    heap.extents[a] = heap.extents[b];
    heap.extents[b] = e;
}

/* The extent, which is mapped, takes its place among those in use. */
static void put_in_order(size_t index)
{
    size_t at;
    struct extent e;

    swap(index, heap.used);
    e = heap.extents[heap.used];
    at = rank_of(e.memory);
    memmove(&heap.extents[at + 1], &heap.extents[at],
        (heap.used - at) * sizeof(*heap.extents));
    heap.extents[at] = e;
    heap.used++;
}

/* 0 or a negative errno. */
static int allocate(void **out, size_t bytes)
{
    size_t unit = bytes >= HUGE_BYTES ? HUGE_BYTES : PAGE_BYTES;
    ssize_t index;
    int rc = open_heap();

    if (rc < 0)
        return rc;
    index = choose((bytes + unit - 1) / unit * unit);
    if (index < 0)
        return (int)index;
    rc = map(&heap.extents[index]);
    if (rc < 0)
        return rc; /* it stays as a free one */
    *out = heap.extents[index].memory;
    put_in_order((size_t)index);
    return 0;
}

coll_status_t coll_alloc(void **out, size_t bytes)
{
    int rc = -ENOMEM;

    if (out == NULL)
        return coll_fail(COLL_ERR_ARGUMENT, "coll_alloc: out is NULL");
    if (bytes == 0)
        bytes = 1;
    if (bytes <= PTRDIFF_MAX - HUGE_BYTES) {
        pthread_rwlock_wrlock(&heap.lock);
        rc = allocate(out, bytes);
        pthread_rwlock_unlock(&heap.lock);
    }
    if (rc == 0)
        return COLL_OK;
    return coll_fail(rc == -ENOMEM || rc == -ENOSPC || rc == -EFBIG
                         ? COLL_ERR_MEMORY
                         : COLL_ERR_SYSTEM,
        "coll_alloc: %zu bytes of shared memory: %s", bytes, strerror(-rc));
}

coll_status_t coll_free(void *memory)
{
    struct extent e = {0};
    size_t rank;

    if (memory == NULL)
        return COLL_OK;
    pthread_rwlock_wrlock(&heap.lock);
    rank = rank_of(memory);
    if (rank > 0 && heap.extents[rank - 1].memory == memory) {
        e = heap.extents[rank - 1];
        munmap(e.memory, e.len);
        if (heap.pid == getpid())
            punch(&e);
        memmove(&heap.extents[rank - 1], &heap.extents[rank],
            (heap.used - rank) * sizeof(*heap.extents));
        heap.used--;
        e.memory = NULL;
        heap.extents[heap.used] =
            e.is_distrusted ? heap.extents[--heap.count] : e;
    }
    pthread_rwlock_unlock(&heap.lock);
    return e.len > 0
               ? COLL_OK
               : coll_fail(COLL_ERR_ARGUMENT,
                     "coll_free: %p is not what coll_alloc() returned", memory);
}
