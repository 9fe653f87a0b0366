/*
 * Who talks to whom: the arithmetic of trees, rings and exchanges, and of how
 * a message is shared out. It knows nothing of buffers or transports.
 */
#ifndef COLL_PATTERN_H
#define COLL_PATTERN_H

#include <stddef.h>

/* Smallest and largest of the ranks, and what is between, are numbered round
 * the circle: rank + by, by may be negative down to -size. */
static inline int pattern_shift(int rank, int by, int size)
{
    return (rank + size + by) % size;
}

/*
 * A rank's place in the binomial tree from a root. Ranks count from the root
 * here: place 0 is the root, and a place has below it those up to place + span.
 */
struct pattern_tree {
    int place;
    int parent; /* rank, -1 for the root */
    int span; /* places of the subtree, with this one */
    int reach; /* a power of two: the children are at place + reach / 2, reach /
                  4, ..., 1 as far as they are within the span */
};

struct pattern_tree pattern_tree(int rank, int root, int size);

/* The rank at a place. */
int pattern_tree_rank(int place, int root, int size);

/* How many places are below the child at a distance, with itself; 0: there is
 * no such child. */
int pattern_tree_below(const struct pattern_tree *t, int distance);

/*
 * The rank to exchange with in a step of 0 to size - 1, such that both choose
 * each other and each pair meets once; in one of the steps it is the rank
 * itself.
 */
int pattern_partner(int rank, int step, int size);

/* How elements are shared among ranks. */
struct pattern_parts {
    int size;
    size_t total; /* what there is to share as evenly as it goes, if... */
    const size_t *counts; /* ...this is NULL: [size] of each rank */
    const size_t *at; /* [size] where they begin, with counts */
};

size_t pattern_part_count(const struct pattern_parts *p, int rank);
size_t pattern_part_at(const struct pattern_parts *p, int rank);

/* The sum and the largest of all counts. */
size_t pattern_parts_sum(const struct pattern_parts *p);
size_t pattern_parts_most(const struct pattern_parts *p);

#endif
