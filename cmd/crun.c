/*
 * crun: the launcher. Everything that can be wrong with the command line is
 * found before anything is started; then the front forks the agent.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/binding.h"
#include "agent/front.h"
#include "agent/report.h"
#include "cmd/completion.h"
#include "cmd/dry_run.h"
#include "cmd/job_build.h"
#include "cmd/options.h"
#include "cmd/standard_fds.h"
#include "rendezvous/base/log.h"

#define EXIT_FAILED 1
#define EXIT_USAGE 2

static int usage_error(const struct err *e)
{
    fprintf(stderr,
        "usage: crun [options] PROGRAM [arguments]\n"
        "crun: error: %s\n"
        "crun --help lists the options\n",
        e->msg);
    return EXIT_USAGE;
}

static int failed(const struct err *e)
{
    fprintf(stderr, "crun: error: %s\n", e->msg);
    return EXIT_FAILED;
}

/* --help and the like. */
static int inform(const struct options *o)
{
    if (o->is_help)
        options_print_help(stdout);
    else if (o->is_version)
        puts("crun " CRUN_VERSION);
    else
        completion_print(options_table(), "crun", o->print_completion, stdout);
    return fflush(stdout) == 0 ? 0 : EXIT_FAILED;
}

static int print_bindings(const struct job *job, struct err *e)
{
    char *text = binding_report(job->binding, job->nproc);

    if (text == NULL)
        return err_set(e, -ENOMEM, "out of memory");
    fputs(text, stderr);
    free(text);
    return 0;
}

static int run(void *job)
{
    return agent_run(job);
}

/* With a job that is complete. */
static int launch(struct job *job, const struct options *o)
{
    struct err e = {0};

    if (o->has_report_bindings && print_bindings(job, &e) < 0)
        return failed(&e);
    if (!o->is_dry_run && job->report_path != NULL &&
        report_check_path(job->report_path, &e) < 0)
        return failed(&e);
    if (!o->is_dry_run)
        return front_run(&job->inherited, run, job);
    if (dry_run_print(job, o, stdout) < 0 || fflush(stdout) != 0) {
        err_set(&e, -EIO, "the job cannot be printed");
        return failed(&e);
    }
    return 0;
}

static int build_and_launch(struct job *job, const struct options *o)
{
    struct job_parts parts = {0};
    struct err e = {0};
    int code, rc;

    rc = job_build(job, &parts, o, &e);
    if (rc == -EINVAL) {
        code = usage_error(&e);
    } else if (rc < 0) {
        code = failed(&e);
    } else if ((rc = program_resolve(&job->program, o->program, o->is_module,
                    o->is_no_python, &e)) < 0) {
        code = failed(&e);
        if (job->is_exit_cause && rc == -ENOENT)
            code = PROGRAM_EXIT_NOT_FOUND;
        else if (job->is_exit_cause && rc == -EACCES)
            code = PROGRAM_EXIT_NOT_EXECUTABLE;
    } else {
        code = launch(job, o);
        program_fini(&job->program);
    }
    job_parts_fini(&parts, job);
    return code;
}

int main(int argc, char **argv)
{
    struct options o;
    struct job job = {0};
    struct err e = {0};
    int code, rc;

    inherited_save(&job.inherited);
    /* A broken stderr or a full disk is an error, not our death. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    log_init("crun");
    rc = options_parse(&o, argc, argv, &e);
    if (rc < 0) {
        code = usage_error(&e);
    } else if (o.is_help || o.is_version || o.print_completion != NULL) {
        code = inform(&o);
    } else if ((rc = standard_fds_open()) < 0) {
        err_set(&e, rc, "/dev/null: %s", strerror(-rc));
        code = failed(&e);
    } else {
        code = build_and_launch(&job, &o);
    }
    options_fini(&o);
    return code;
}
