/* Messages, streams, memory, and what else a group does on a device: rows of
 * rig_run(). */
#ifndef GPU_STREAMS_H
#define GPU_STREAMS_H

#include "tests/gpu/rig.h"

rig_check_t check_memory_of_host;
rig_check_t check_messages;
rig_check_t check_batch;
rig_check_t check_own_stream;
rig_check_t check_wait_stream;
rig_check_t check_order;
rig_check_t check_alloc_and_register;
rig_check_t check_options;
rig_check_t check_split;
rig_check_t check_multigpu;
rig_check_t check_capture;

#endif
