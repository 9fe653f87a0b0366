/* Every operation on device memory against what the host computes. */
#ifndef GPU_OPERATIONS_H
#define GPU_OPERATIONS_H

#include "tests/gpu/rig.h"

/* A row for each operation; false if one of them was not well. */
bool operations_run(struct rig *rig);

/* A row for the types and reductions that NCCL does not have. */
bool operations_unsupported(struct rig *rig, char *note, size_t size);

/* One all_reduce of float32 on the rig's group, into memory of its own, to see
 * whether a group works. */
bool operations_one(struct rig *rig);

#endif
