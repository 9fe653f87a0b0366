/* Rank 0 reduces while the others wait at a barrier: prints the error. */
#include <collective.h>
#include <stdio.h>

int main(void)
{
    float x[3] = {0};
    coll_status_t status;

    if (coll_init(NULL) != COLL_OK) {
        fprintf(stderr, "%s\n", coll_last_error());
        return 1;
    }
    if (coll_rank(NULL) == 0)
        status = coll_all_reduce(x, x, 3, COLL_FLOAT32, COLL_SUM, NULL);
    else
        status = coll_barrier(NULL);
    printf("rank %d: %s\n", coll_rank(NULL),
        status == COLL_OK ? "no error" : coll_last_error());
    coll_destroy();
    return status == COLL_ERR_MISMATCH ? 0 : 4;
}
