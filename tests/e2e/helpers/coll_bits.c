/*
 * Sums numbers of very different size, whose sum depends on the order, and
 * prints a hash of the bits: on rank 0 "bits HASH".
 */
#include <collective.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 300001 };

int main(void)
{
    static float x[COUNT];
    uint64_t hash = 0xcbf29ce484222325u;

    if (coll_init(NULL) != COLL_OK)
        goto fail;
    for (int i = 0; i < COUNT; i++)
        x[i] = 1.0f / (float)(1 + (i * 7 + coll_rank(NULL) * 13) % 101) *
               (i % 7 == coll_rank(NULL) ? 1e6f : 1.0f);
    if (coll_all_reduce(x, x, COUNT, COLL_FLOAT32, COLL_SUM, NULL) != COLL_OK)
        goto fail;
    for (int i = 0; i < COUNT; i++) {
        uint32_t bits;

        memcpy(&bits, &x[i], sizeof(bits));
        hash = (hash ^ bits) * 0x100000001b3u;
    }
    if (coll_rank(NULL) == 0)
        printf("bits %016" PRIx64 "\n", hash);
    coll_destroy();
    return 0;
fail:
    fprintf(stderr, "%s\n", coll_last_error());
    return 1;
}
