/* See coll_factor.h: a table of factors, whose index is the reduction. */
#include "coll_factor.h"

#include <pthread.h>

#include "backend.h"

/* The first of them: far above those with a name. */
#define FIRST 0x10000

#define MAX 1024

static struct {
    pthread_mutex_t lock;
    double factors[MAX];
    bool is_used[MAX];
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int index_of(coll_op_t op)
{
    int at = (int)op - FIRST;

    return at >= 0 && at < MAX ? at : -1;
}

bool coll_factor_get(coll_op_t op, double *factor)
{
    int at = index_of(op);
    bool is_used;

    if (at < 0)
        return false;
    pthread_mutex_lock(&table.lock);
    is_used = table.is_used[at];
    if (is_used)
        *factor = table.factors[at];
    pthread_mutex_unlock(&table.lock);
    return is_used;
}

coll_status_t coll_op_premul_sum(coll_op_t *op, double factor)
{
    int at = 0;

    if (op == NULL)
        return coll_fail(COLL_ERR_ARGUMENT, "coll_op_premul_sum: op is NULL");
    pthread_mutex_lock(&table.lock);
    while (at < MAX && table.is_used[at])
        at++;
    if (at < MAX) {
        table.is_used[at] = true;
        table.factors[at] = factor;
    }
    pthread_mutex_unlock(&table.lock);
    if (at == MAX)
        return coll_fail(COLL_ERR_MEMORY,
            "coll_op_premul_sum: there are %d reductions already; free one "
            "with coll_op_free()",
            MAX);
    *op = (coll_op_t)(FIRST + at);
    return COLL_OK;
}

coll_status_t coll_op_free(coll_op_t op)
{
    int at = index_of(op);
    bool was_used = false;

    if (at >= 0) {
        pthread_mutex_lock(&table.lock);
        was_used = table.is_used[at];
        table.is_used[at] = false;
        pthread_mutex_unlock(&table.lock);
    }
    return was_used
               ? COLL_OK
               : coll_fail(COLL_ERR_ARGUMENT,
                     "coll_op_free: %d is no reduction that was made", (int)op);
}
