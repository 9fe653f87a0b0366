/* Sets of ranks as a person reads them. */
#ifndef COLL_RANKS_H
#define COLL_RANKS_H

#include <stdbool.h>
#include <stddef.h>

/* What a rank is called; names is NULL where ranks are called what they are. */
static inline int coll_rank_name(const int *names, int rank)
{
    return names == NULL ? rank : names[rank];
}

/*
 * Writes the ranks r with in[r], r < size: "rank 3", "ranks 1,2",
 * "ranks 0-2,7". A list too long for cap ends in "...". cap >= 32. names is
 * NULL, or what they are called, in ascending order.
 */
void coll_ranks_text(
    char *out, size_t cap, const bool *in, int size, const int *names);

#endif
