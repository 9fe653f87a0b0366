/*
 * Large operations on one node, where ranks take what they need from each
 * other's buffers: what only one of them is told, does, or is refused.
 */
#include <stdint.h>

#include "tests/unit/coll_harness.h"
#include "tests/unit/unit.h"

/* --- What one rank is told ------------------------------------------------ */

enum { RANKS = 3 };

static bool is_sum(const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (x[i] != RANKS * (RANKS - 1) / 2 + RANKS * (float)(i % 100))
            return false;
    return true;
}

/* Status of a worker: 0 if all went well. */
static int reduce_with_own_environment(int rank, void *arg)
{
    size_t count = 1 << 20;
    float *x = malloc(count * sizeof(*x));
    const coll_options_t options = {.timeout_ms = 20000};
    int rc = 0;

    if (rank == *(const int *)arg)
        setenv("COLL_CMA", "0", 1);
    if (coll_init(&options) != COLL_OK)
        return 2;
    for (int round = 0; round < 3 && rc == 0; round++) {
        for (size_t i = 0; i < count; i++)
            x[i] = (float)(i % 100) + (float)rank;
        if (coll_all_reduce(x, x, count, COLL_FLOAT32, COLL_SUM, NULL) !=
            COLL_OK)
            rc = 3;
        else if (!is_sum(x, count))
            rc = 4;
    }
    if (rc == 3)
        fprintf(stderr, "rank %d: %s\n", rank, coll_last_error());
    free(x);
    coll_destroy();
    return rc;
}

START_TEST(one_rank_may_be_told_not_to_read)
{
    ck_assert_msg(
        coll_spawn(reduce_with_own_environment, &_i, RANKS, NULL) == COLL_OK,
        "%s", coll_last_error());
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("coll_reach");

    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, one_rank_may_be_told_not_to_read, 0, RANKS);
    return unit_run("coll_reach", tc);
}
