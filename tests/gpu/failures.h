/* What must end in an error, and soon: rows of rig_run(), for two ranks or
 * more. */
#ifndef GPU_FAILURES_H
#define GPU_FAILURES_H

#include "tests/gpu/rig.h"

rig_check_t check_timeout;
rig_check_t check_abort;
rig_check_t check_left;

/* With COLL_CHECK=1 in the environment. */
rig_check_t check_mismatch;

/* The last rank kills itself, so the job fails, and what each of the others has
 * seen is a row of its own. The exit status of this rank. */
int check_killed(struct rig *rig);

#endif
