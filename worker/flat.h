/*
 * Collectives made of messages between any two ranks (p2p.h), whatever lies
 * between them: for the back ends whose ranks do not all share memory. The
 * caller has made sure that all ranks call the same, numbers the call, and
 * tells the others if it fails.
 */
#ifndef COLL_FLAT_H
#define COLL_FLAT_H

#include "backend.h"

/* Whether calls of a kind are for flat_run(), or the back end has a better
 * way. */
bool flat_is_for(const struct coll_group *g, enum coll_kind kind);

/* Runs one of those. */
coll_status_t flat_run(struct coll_group *g, const struct coll_call *call);

#endif
