/*
 * Collectives made of messages between any two ranks (p2p.h), whatever lies
 * between them: for the back ends whose ranks do not all share memory. The
 * caller has made sure that all ranks call the same, numbers the call, and
 * tells the others if it fails.
 */
#ifndef COLL_FLAT_H
#define COLL_FLAT_H

#include "coll_algorithm.h"

/* Any call but a broadcast or a barrier, in one of the ways that there are for
 * it: see the files. */
coll_status_t flat_run(struct coll_group *g, const struct coll_call *call,
    enum coll_algorithm algorithm);

#endif
