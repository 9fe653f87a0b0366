/* Which ranks share a node, and through which back end they meet. */
#ifndef CRUN_TESTS_COLL_LAYOUTS_H
#define CRUN_TESTS_COLL_LAYOUTS_H

#include "tests/unit/coll_harness.h"

static inline int layout_pairs(int rank)
{
    return rank / 2;
}

static inline int layout_in_turn(int rank)
{
    return rank % 3;
}

/* The first node has one rank, the second all others. */
static inline int layout_lopsided(int rank)
{
    return rank > 0;
}

static inline int layout_together(int rank)
{
    (void)rank;
    return 7;
}

static const struct {
    const struct coll_backend *backend;
    int (*node_of)(int rank);
} layouts[] = {
    {&coll_backend_tcp, NULL},
    {&coll_backend_nodes, layout_pairs},
    {&coll_backend_nodes, layout_in_turn},
    {&coll_backend_nodes, layout_lopsided},
    /* One node, as the launcher says, or as the ranks find out. */
    {&coll_backend_nodes, layout_together},
    {&coll_backend_nodes, NULL},
};

#define LAYOUTS ((int)(sizeof(layouts) / sizeof(layouts[0])))

/* Those with several nodes come first. */
#define LAYOUTS_OF_NODES 4

static inline void choose_layout(int i)
{
    harness_backend = layouts[i].backend;
    harness_node_of = layouts[i].node_of;
}

#endif
