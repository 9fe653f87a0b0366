/* How many workers this node can take: --nproc_per_node as text. */
#ifndef CRUN_AGENT_DEVICES_H
#define CRUN_AGENT_DEVICES_H

#include "rendezvous/base/err.h"

/* More than any node has cores or devices; a typing error is likelier. */
#define DEVICES_NPROC_MAX 4096

/*
 * A number from 1 to DEVICES_NPROC_MAX, or
 *   cpu   CPUs this process may run on (as nproc counts; torchrun up to 2.9
 *         counts the whole machine)
 *   gpu   CUDA devices the driver shows, which honours CUDA_VISIBLE_DEVICES
 *   auto  gpu if there is one, else cpu
 * Returns the count or a negative errno with the reason. Counting devices
 * blocks for as long as the driver takes, at most 60 seconds.
 */
int devices_nproc(const char *text, struct err *e);

#endif
