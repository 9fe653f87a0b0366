/*
 * The smallest program with libcollective: every process contributes its
 * rank, and rank 0 prints the sum.
 *
 *     crun --nproc_per_node=4 hello
 */
#include <collective.h>
#include <stdio.h>

int main(void)
{
    float x;

    if (coll_init(NULL) != COLL_OK) {
        fprintf(stderr, "%s\n", coll_last_error());
        return 1;
    }
    x = (float)coll_rank(NULL);
    if (coll_all_reduce(&x, &x, 1, COLL_FLOAT32, COLL_SUM, NULL) != COLL_OK) {
        fprintf(stderr, "%s\n", coll_last_error());
        return 1;
    }
    if (coll_rank(NULL) == 0)
        printf("sum of %d ranks: %g\n", coll_world_size(NULL), x);
    coll_destroy();
    return 0;
}
