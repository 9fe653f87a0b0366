/*
 * The NVIDIA GPUs of this machine, as NVML lists them, and which of them
 * CUDA_VISIBLE_DEVICES shows to a CUDA program. NVML answers in milliseconds
 * where initialising CUDA takes seconds, but it does not heed the variable.
 */
#ifndef CRUN_AGENT_GPUS_H
#define CRUN_AGENT_GPUS_H

#include <stdbool.h>

#include "rendezvous/base/err.h"

#define GPUS_MAX 256 /* of one machine */
#define GPU_BUS_SIZE 24 /* of an address, "0000:1b:00.0", and its NUL */

struct gpu {
    char uuid[96]; /* "GPU-8932f937-d72c-..." */
    char model[96];
    char bus[GPU_BUS_SIZE]; /* PCI address as in /sys/bus/pci/devices */
    bool is_mig; /* divided into MIG devices */
};

/*
 * Fills in the GPUs that this process may use, in the order of their PCI
 * addresses. Their number, which may be 0, or a negative errno with the
 * reason: -ENOENT if there is no NVML. Blocks for as long as the driver takes.
 */
int gpus_list(struct gpu gpus[GPUS_MAX], struct err *e);

/* What a CUDA program sees. */
struct gpus_visible {
    int count;
    int gpu[GPUS_MAX]; /* indices; -1: a MIG device, on one of the GPUs */
    /* False where only the CUDA driver knows for sure. */
    bool is_certain;
};

/*
 * Applies CUDA_VISIBLE_DEVICES, list (NULL: it is not set), to the ngpus GPUs
 * of the machine; is_bus_order: CUDA_DEVICE_ORDER is PCI_BUS_ID. The list
 * holds indices or UUIDs, which may be shortened, and ends at the first entry
 * that means no GPU. A CUDA program sees one MIG device at most.
 */
void gpus_visible(struct gpus_visible *out, const struct gpu *gpus, int ngpus,
    const char *list, bool is_bus_order);

#endif
