/* See coll_terms.h. */
#include "coll_terms.h"

#include <stdio.h>
#include <string.h>

#include "coll_ranks.h"

#define VERSION 3

void coll_terms_text(char out[COLL_TERMS_BYTES], const struct coll_group *g)
{
    snprintf(out, COLL_TERMS_BYTES, "%d %s %d ", VERSION,
        coll_group_backend_name(g), g->is_deterministic);
}

static const char *yes_or_no(bool is)
{
    return is ? "1" : "0";
}

coll_status_t coll_terms_check(
    const struct coll_group *g, const char *claim, const char **rest)
{
    int rank = coll_rank_name(g->names, g->rank);
    int leader = coll_rank_name(g->names, 0);
    char backend[16];
    int version;
    int is_deterministic;
    int end = 0;

    if (sscanf(claim, "%d %15s %d %n", &version, backend, &is_deterministic,
            &end) != 3 ||
        end == 0 || version != VERSION)
        return coll_fail(COLL_ERR_STORE,
            "coll_init: what rank %d left in the store is not from this "
            "version of the library",
            leader);
    *rest = claim + end;
    if (strcmp(backend, coll_group_backend_name(g)) != 0)
        return coll_fail(COLL_ERR_ENVIRONMENT,
            "coll_init: rank %d has the back end \"%s\", rank %d \"%s\"; all "
            "ranks must take the same (COLL_BACKEND)",
            rank, coll_group_backend_name(g), leader, backend);
    if ((is_deterministic != 0) != g->is_deterministic)
        return coll_fail(COLL_ERR_ENVIRONMENT,
            "coll_init: rank %d has %s for deterministic results, rank %d %s; "
            "all ranks must take the same (COLL_DETERMINISTIC)",
            rank, yes_or_no(g->is_deterministic), leader,
            yes_or_no(is_deterministic != 0));
    return COLL_OK;
}
