/*
 * A store for the mind: what clients of a store must be answered, told by
 * arrays, linear search and copies of everything. It is run beside the real
 * sessions and the real key space, and each difference ends the program.
 */
#ifndef CRUN_TESTS_FUZZ_STORE_MODEL_H
#define CRUN_TESTS_FUZZ_STORE_MODEL_H

#include <stddef.h>
#include <stdint.h>

/*
 * Takes the bytes for the decisions of several clients of one store: who
 * connects, asks what, in which pieces, reads how much of the answers, leaves.
 * Fails an assertion if the real store does anything else than the model.
 * Returns how many requests were executed.
 */
size_t store_model_check(const uint8_t *data, size_t size);

#endif
