/*
 * The memory of coll_alloc(): one memfd for the process, which the other ranks
 * of its node may map, too. An allocation is an extent of it.
 */
#ifndef COLL_MEMORY_H
#define COLL_MEMORY_H

#include <collective.h>
#include <sys/types.h>

/* Where a buffer lies in the memfd. */
struct coll_extent {
    uint64_t at; /* of the extent that it is in; a multiple of the page size */
    uint64_t len; /* 0: the buffer is ordinary memory */
    uint64_t offset; /* of the buffer in the extent */
};

/* Looks up len bytes at buf. */
void coll_memory_find(struct coll_extent *out, const void *buf, size_t len);

/* Maps an extent of a memfd, this process's or another's, at an address that
 * suits huge pages if it is large. populate: 0 or MAP_POPULATE. 0 or a negative
 * errno. */
int coll_memory_map(char **out, int fd, uint64_t at, size_t len, int populate);

/* An operation has failed here that may go on elsewhere, and write to what is
 * allocated now: after it is freed nobody else gets that part of the memfd. */
void coll_memory_distrust(void);

/* The memfd, which is the library's; -1 while nothing was allocated. */
int coll_memory_fd(void);

#endif
