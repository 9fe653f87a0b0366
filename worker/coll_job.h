/* What coll_init() has made: the only state of the library, beside the list of
 * groups, that is not reached from a handle. */
#ifndef COLL_JOB_H
#define COLL_JOB_H

#include "backend.h"

struct coll_job {
    struct coll_group *group; /* NULL while not initialised */
    coll_store_t *store; /* NULL also with one rank */
    int local_rank;
    int node; /* GROUP_RANK, or -1 */
    int64_t timeout_ms;
    char prefix[64]; /* in front of every key */
};

/* Never NULL; not beside coll_init() and coll_destroy(). */
const struct coll_job *coll_job(void);

#endif
