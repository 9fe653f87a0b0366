/* The limit of open files. */
#ifndef COLL_FDS_H
#define COLL_FDS_H

#include <collective.h>

/*
 * Raises the soft limit so far that a group of so many ranks, and a store for
 * so many clients, can be made beside what is open now. COLL_ERR_SYSTEM if the
 * hard limit is lower; the soft one is then raised up to it.
 */
coll_status_t coll_fds_reserve(int ranks, int clients);

#endif
