/*
 * crun: the launcher. Everything that can be wrong with the command line is
 * found before anything is started; then the front forks the agent.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/devices.h"
#include "agent/front.h"
#include "agent/lifecycle.h"
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

static int run(void *job)
{
    return agent_run(job);
}

int main(int argc, char **argv)
{
    struct options o;
    struct job job = {.grace_ms = LC_GRACE_DEFAULT_MS};
    struct err e = {0};
    int code;

    inherited_save(&job.inherited);
    /* A broken stderr or a full disk is an error, not our death. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    log_init("crun");
    if (options_parse(&o, argc, argv, &e) < 0)
        return usage_error(&e);
    if (o.is_help) {
        options_print_help(stdout);
        return fflush(stdout) == 0 ? 0 : EXIT_FAILED;
    }
    if (o.is_version) {
        puts("crun " CRUN_VERSION);
        return fflush(stdout) == 0 ? 0 : EXIT_FAILED;
    }
    if (standard_fds_open() < 0) {
        fprintf(stderr, "crun: error: /dev/null: %s\n", strerror(errno));
        return EXIT_FAILED;
    }
    job.nproc = devices_nproc(o.nproc_per_node, &e);
    if (job.nproc < 0)
        return usage_error(&e);
    if (program_resolve(
            &job.program, o.program, o.is_module, o.is_no_python, &e) < 0) {
        fprintf(stderr, "crun: error: %s\n", e.msg);
        return EXIT_FAILED;
    }
    job.master_addr = o.master_addr != NULL ? o.master_addr : "127.0.0.1";
    /* Without a port torchrun runs on its own, with a random run id; with
     * one it is a static job, which it calls "none". */
    job.master_port =
        o.master_port == OPTIONS_PORT_UNSET ? 0 : (int)o.master_port;
    job.run_id = o.master_port == OPTIONS_PORT_UNSET ? NULL : "none";

    code = front_run(&job.inherited, run, &job);
    program_fini(&job.program);
    return code;
}
