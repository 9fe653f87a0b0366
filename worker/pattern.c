/* See pattern.h. */
#include "pattern.h"

struct pattern_tree pattern_tree(int rank, int root, int size)
{
    struct pattern_tree t = {.place = pattern_shift(rank, -root, size)};
    int reach = 1;

    /* The lowest bit of the place, which the parent has not; of the root the
     * first power of two that covers all. */
    while (reach < size && (t.place & reach) == 0)
        reach *= 2;
    t.reach = reach;
    t.parent =
        t.place == 0 ? -1 : pattern_tree_rank(t.place - reach, root, size);
    t.span = reach < size - t.place ? reach : size - t.place;
    return t;
}

int pattern_tree_rank(int place, int root, int size)
{
    return pattern_shift(place, root - size, size);
}

int pattern_tree_below(const struct pattern_tree *t, int distance)
{
    int left = t->span - distance;

    if (left <= 0)
        return 0;
    return left < distance ? left : distance;
}

int pattern_partner(int rank, int step, int size)
{
    return pattern_shift(step, -rank, size);
}

size_t pattern_part_count(const struct pattern_parts *p, int rank)
{
    size_t n = (size_t)p->size;

    if (p->counts != NULL)
        return p->counts[rank];
    return p->total / n + ((size_t)rank < p->total % n);
}

size_t pattern_part_at(const struct pattern_parts *p, int rank)
{
    size_t n = (size_t)p->size;
    size_t more = p->total % n; /* the first ones get one more */
    size_t r = (size_t)rank;

    if (p->counts != NULL)
        return p->at[rank];
    return p->total / n * r + (r < more ? r : more);
}

size_t pattern_parts_sum(const struct pattern_parts *p)
{
    size_t sum = 0;

    if (p->counts == NULL)
        return p->total;
    for (int r = 0; r < p->size; r++)
        sum += p->counts[r];
    return sum;
}

size_t pattern_parts_most(const struct pattern_parts *p)
{
    size_t most = 0;

    for (int r = 0; r < p->size; r++)
        if (pattern_part_count(p, r) > most)
            most = pattern_part_count(p, r);
    return most;
}
