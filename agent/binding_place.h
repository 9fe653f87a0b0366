/*
 * Which CPUs each worker gets: the rules of binding.h, pure. The machine is a
 * table of its CPUs, so that every machine can be tested on any.
 */
#ifndef CRUN_AGENT_BINDING_PLACE_H
#define CRUN_AGENT_BINDING_PLACE_H

#include "agent/binding.h"

/* One CPU that may be used, as the operating system numbers it, and what it
 * belongs to: numbers that are equal for CPUs that share it. */
struct binding_cpu {
    int cpu;
    int core;
    int cache; /* the last-level one; -1 if not known */
    int node; /* of NUMA, as /sys numbers them */
    int package;
};

struct binding_machine {
    const struct binding_cpu *cpus; /* in the order of the hardware */
    int ncpus;
};

/*
 * Where nproc workers are without a device: over the NUMA nodes of the
 * machine evenly and in order. Fills in nodes[0] to nodes[nproc - 1].
 */
void binding_spread(const struct binding_machine *m, int nproc, int *nodes);

/*
 * Fills in sets[0] to sets[nproc - 1], each of size bytes and big enough for
 * every CPU. nodes has the NUMA node of each worker's device. 0, or a negative
 * errno with the numbers in a sentence.
 */
int binding_place(const struct binding_machine *m, enum binding_mode mode,
    int nproc, const int *nodes, cpu_set_t *const *sets, size_t size,
    struct err *e);

#endif
