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
    /* SIGHUP, SIGINT, SIGQUIT and SIGTERM, less those that are ignored
     * (nohup, a background job of a shell script): these stop a job. The
     * others stay ignored, by crun and by the workers. */
    sigset_t stop;
    /* What has its default action in workers: the set above and what crun
     * changes for itself (SIGCHLD, SIGPIPE, SIGXFSZ). */
    sigset_t reset;
    struct rlimit nofile;
};

/* Call first in main(). */
void inherited_save(struct inherited *in);

/* For the agent: as many descriptors as the hard limit allows, since it
 * needs several for each worker, and none open above last_kept. */
void inherited_take_over(const struct inherited *in, int last_kept);

#endif
