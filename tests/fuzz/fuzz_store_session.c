/*
 * Sessions of several clients and the key space behind them, against a slow
 * and obvious model of the same; see store_model.h.
 */
#include <stdint.h>

#include "store_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    store_model_check(data, size);
    return 0;
}
