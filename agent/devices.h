/* Devices of this node: how many workers it can take (--nproc_per_node as
 * text), and where each of them has its device. */
#ifndef CRUN_AGENT_DEVICES_H
#define CRUN_AGENT_DEVICES_H

#include "agent/gpus.h"
#include "rendezvous/base/err.h"

/* More than any node has cores or devices; a typing error is likelier. */
#define DEVICES_NPROC_MAX 4096

/* What a CUDA or ROCm program sees, in its order. */
struct devices {
    int count;
    /* PCI addresses as in /sys/bus/pci/devices; "" if not known. */
    char bus[GPUS_MAX][GPU_BUS_SIZE];
};

/*
 * Asks NVML, or where that does not know the CUDA driver, or that of ROCm;
 * CUDA_VISIBLE_DEVICES and its likes are heeded. 0, -ENODEV if there is no
 * device, or another negative errno; the reason says what was looked for and
 * what the driver answered. Blocks for as long as the driver takes, at most 60
 * seconds. Forks, so call it before the first thread is started.
 */
int devices_find(struct devices *out, struct err *e);

/*
 * A number from 1 to DEVICES_NPROC_MAX, or
 *   cpu   CPUs this process may run on (as nproc counts; torchrun up to 2.9
 *         counts the whole machine)
 *   gpu   what devices_find() counts, each for as many workers as share it
 *   auto  gpu if there is one, else cpu
 * Returns the count or a negative errno with the reason.
 */
int devices_nproc(const char *text, int share, struct err *e);

/*
 * What CUDA_VISIBLE_DEVICES is for a worker that shall see one device only
 * (--virtual_local_rank): of the list that crun inherited the entry number
 * local_rank / share, byte for byte, or that number itself where list is NULL.
 * *out is the caller's. -EINVAL if the list is too short.
 */
int devices_visible(
    const char *list, int local_rank, int share, char **out, struct err *e);

#endif
