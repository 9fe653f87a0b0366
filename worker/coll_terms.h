/*
 * What all ranks of a group must take alike. Rank 0's claim in the store begins
 * with it, and is at one key for all back ends: so whoever looks for rank 0
 * finds it, and finds at once that the two would wait for each other in vain.
 *
 *   "rank0"      "VERSION BACKEND DETERMINISTIC ID ...", the rest being the
 * back end's "failed/ID"  "RANK STATUS TEXT": why a rank could not join, for
 * rank 0, which looks there now and then
 */
#ifndef COLL_TERMS_H
#define COLL_TERMS_H

#include "backend.h"

/* Of an ID, which is random and new for each attempt. */
enum { COLL_TERMS_ID_BYTES = 32 };

/* What a claim begins with, a space at the end included. */
enum { COLL_TERMS_BYTES = 32 };

void coll_terms_text(char out[COLL_TERMS_BYTES], const struct coll_group *g);

/* Of a claim: COLL_OK if they are this rank's, too; COLL_ERR_ENVIRONMENT if
 * not, in a sentence that is true on every rank; COLL_ERR_STORE if it is none.
 * *rest: the ID and what follows; not with the last one. */
coll_status_t coll_terms_check(
    const struct coll_group *g, const char *claim, const char **rest);

#endif
