/* The limit of open files. */
#ifndef COLL_FDS_H
#define COLL_FDS_H

#include <collective.h>

/*
 * Raises the soft limit so far that a group of so many ranks, and a store for
 * so many clients, can be made beside what is open now. COLL_ERR_SYSTEM if the
 * hard limit is lower; the soft one is then raised up to it. Also so far, if it
 * can be, that there is room for the memory of each rank (coll_alloc()), and
 * for what is promised.
 */
coll_status_t coll_fds_reserve(int ranks, int clients);

/* A group that is there: so many may still come to it, as the memory of other
 * ranks. Negative: no longer. */
void coll_fds_promise(int count);

#endif
