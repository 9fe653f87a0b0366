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
    /* What stops a job: SIGHUP, SIGINT, SIGQUIT and SIGTERM, or those of
     * --signals_to_handle, less what was ignored at the start (nohup, a
     * background job of a shell script): that stays ignored, by crun and by
     * the workers. */
    sigset_t stop;
    /* What is passed on to the workers and means nothing to crun: SIGUSR1 and
     * SIGUSR2, likewise less what was ignored or stops a job. */
    sigset_t pass;
    /* What has its default action in workers: the set above and what crun
     * changes for itself (SIGCHLD, SIGPIPE, SIGXFSZ). */
    sigset_t reset;
    struct rlimit nofile;
};

/* Call first in main(). */
void inherited_save(struct inherited *in);

/* Replaces what stops a job. */
void inherited_set_stop(struct inherited *in, const sigset_t *stop);

/* For the agent: as many descriptors as the hard limit allows, since it
 * needs several for each worker, and none open above last_kept. */
void inherited_take_over(const struct inherited *in, int last_kept);

#endif
