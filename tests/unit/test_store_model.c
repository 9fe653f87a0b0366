/*
 * Random requests of several clients at the sessions and the key space, with
 * the same at a model of them. What a fuzzer does for hours, here for
 * seconds and always the same.
 */
#include <stdlib.h>

#include "unit.h"

/* A unit test is linked to what is tested, not to the fuzzer's files. */
#include "../fuzz/store_model.c"

#define RUNS 12

START_TEST(real_store_and_model_agree)
{
    size_t size = 80000, executed;
    uint8_t *data = malloc(size);
    uint32_t x = 2463534242u + (uint32_t)_i;

    for (size_t i = 0; i < size; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        data[i] = (uint8_t)(x >> 8);
    }
    data[0] = _i < RUNS - 2 ? 0 : 3; /* the last runs: with little memory */
    executed = store_model_check(data, size);
    ck_assert_uint_gt(executed, _i < RUNS - 2 ? 10000 : 10);
    free(data);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("model");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, real_store_and_model_agree, 0, RUNS);
    return unit_run("store_model", tc);
}
