/* Sets of ranks as a person reads them. */
#ifndef COLL_RANKS_H
#define COLL_RANKS_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Writes the ranks r with in[r], r < size: "rank 3", "ranks 1,2",
 * "ranks 0-2,7". A list too long for cap ends in "...". cap >= 32.
 */
void coll_ranks_text(char *out, size_t cap, const bool *in, int size);

#endif
