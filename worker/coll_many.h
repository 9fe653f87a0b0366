/* Operations that the core makes of calls of the back end: on many buffers,
 * with a factor, and those that have a name of their own only. */
#ifndef COLL_MANY_H
#define COLL_MANY_H

#include "backend.h"

/* Is it one of those? */
bool coll_many_is(const struct coll_call *call);

/* Runs it; the parts are the call's, and so its sequence number. */
coll_status_t coll_many_run(struct coll_group *g, const struct coll_call *call);

#endif
