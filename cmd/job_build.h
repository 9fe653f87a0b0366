/*
 * From options to a job (agent/job.h): every text is checked and understood,
 * everything that has no place here is refused or told. Nothing is started
 * and nothing is written.
 */
#ifndef CRUN_CMD_JOB_BUILD_H
#define CRUN_CMD_JOB_BUILD_H

#include "agent/job.h"
#include "cmd/options.h"
#include "cmd/rdzv_options.h"
#include "rendezvous/base/err.h"

/* What a job borrows, beside the options. */
struct job_parts {
    struct rdzv_options rdzv;
    char **env; /* owned, as are those below; lists of the job's are freed
                 * with it */
    struct binding *binding;
};

/*
 * Fills in all of job but program; its `inherited` is there already. o and
 * parts must outlive it. -EINVAL is a mistake of the user's in an option or
 * variable, which e names; another error is the system's. In any case end
 * with job_parts_fini().
 */
int job_build(struct job *job, struct job_parts *parts, const struct options *o,
    struct err *e);

void job_parts_fini(struct job_parts *parts, struct job *job);

#endif
