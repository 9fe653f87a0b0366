/*
 * The process state crun was started with. The agent changes it for itself;
 * workers get it back.
 */
#ifndef CRUN_AGENT_INHERITED_H
#define CRUN_AGENT_INHERITED_H

#include <signal.h>
#include <sys/resource.h>

struct inherited {
    sigset_t mask;
    struct rlimit nofile;
};

/* Call first in main(). */
void inherited_save(struct inherited *in);

/* For the agent: as many descriptors as the hard limit allows, since it
 * needs several for each worker, and none open above 2. */
void inherited_take_over(const struct inherited *in);

#endif
