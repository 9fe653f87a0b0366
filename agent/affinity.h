/* The CPUs that this process may run on, however many the machine has. */
#ifndef CRUN_AGENT_AFFINITY_H
#define CRUN_AGENT_AFFINITY_H

#include <sched.h>
#include <stddef.h>

/* *out, of *size bytes, is the caller's: CPU_FREE() it. 0 or a negative
 * errno. */
int affinity_get(cpu_set_t **out, size_t *size);

/* "0-3,8" for a set, "" for an empty one; owned by the caller. NULL when out
 * of memory. */
char *affinity_text(const cpu_set_t *set, size_t size);

#endif
