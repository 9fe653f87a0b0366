/* The reductions that a program has made: coll_op_premul_sum(). */
#ifndef COLL_FACTOR_H
#define COLL_FACTOR_H

#include <collective.h>

/* Whether op is one, and then its factor. */
bool coll_factor_get(coll_op_t op, double *factor);

#endif
