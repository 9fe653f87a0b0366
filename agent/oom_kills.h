/* How many processes the kernel has killed for lack of memory. */
#ifndef CRUN_AGENT_OOM_KILLS_H
#define CRUN_AGENT_OOM_KILLS_H

#include <stdint.h>

/*
 * The count of the memory cgroup that a process is in. cgroups is its
 * /proc/PID/cgroup, root where the hierarchies are mounted (/sys/fs/cgroup).
 * -1: it cannot be told.
 */
int64_t oom_kills_read(const char *cgroups, const char *root);

#endif
