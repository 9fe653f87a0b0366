/*
 * Which CPUs each worker may run on: torchrun's --numa-binding, computed with
 * hwloc, which is loaded only when a mode is asked for.
 *
 *   node          all CPUs of the NUMA node that the worker's device is at
 *   socket        all of that node's package
 *   exclusive     the node's cores, with their hyper-threads, divided among
 *                 the workers of that node
 *   core-complex  one group of cores that share a last-level cache
 *
 * Always within the CPUs that crun itself may use. A worker's device is the
 * CUDA device of its local rank, or that of several who share it; where there
 * is no device, workers are spread over the NUMA nodes evenly and in order.
 */
#ifndef CRUN_AGENT_BINDING_H
#define CRUN_AGENT_BINDING_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

#include "rendezvous/base/err.h"

enum binding_mode {
    BINDING_NONE,
    BINDING_NODE,
    BINDING_SOCKET,
    BINDING_EXCLUSIVE,
    BINDING_CORE_COMPLEX,
};

struct binding;

/* False for a name that is none of the four above. */
bool binding_mode_from_name(const char *name, enum binding_mode *out);

/* Works out the sets of nproc workers, of which share use one device; mode is
 * not BINDING_NONE. -ENOENT if hwloc is not there; -ENODEV, -E2BIG and the like
 * with a sentence that says what was expected. Forks and may block, see
 * devices_find(). */
int binding_create(struct binding **out, enum binding_mode mode, int nproc,
    int share, struct err *e);

/* The set for sched_setaffinity, size bytes of it. Borrowed. */
const cpu_set_t *binding_cpus(
    const struct binding *b, int local_rank, size_t *size);

/* "rank 0: CPUs 0-7,16-23 (NUMA node 0, GPU 0 at 0000:1b:00.0)\n" and so on
 * for each worker; owned by the caller. NULL when out of memory. Without a
 * binding (b is NULL): which CPUs all workers share. */
char *binding_report(const struct binding *b, int nproc);

/* Takes NULL. */
void binding_destroy(struct binding *b);

/* Reads the NUMA node of the device at a PCI address below a folder like
 * /sys/bus/pci/devices. One that the system does not know counts as 0. 0 or a
 * negative errno. */
int binding_device_node(const char *folder, const char *bus, int *node);

#endif
