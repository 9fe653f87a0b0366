/* The account of a store's memory; see store_limits.h. */
#include "rendezvous/store_limits.h"

#include <assert.h>
#include <errno.h>

int store_budget_take(struct store_budget *b, size_t bytes)
{
    if (bytes > b->max || b->used > b->max - bytes)
        return -EDQUOT;
    b->used += bytes;
    return 0;
}

void store_budget_charge(struct store_budget *b, size_t bytes)
{
    b->used += bytes;
}

void store_budget_give(struct store_budget *b, size_t bytes)
{
    assert(bytes <= b->used);
    b->used -= bytes;
}
