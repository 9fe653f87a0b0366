/*
 * crun's options: the table of them (option_table.h), and the three places
 * that they come from. The command line is stronger than the environment,
 * which is stronger than a job file (job_file.h), which is stronger than the
 * defaults.
 */
#ifndef CRUN_CMD_OPTIONS_H
#define CRUN_CMD_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "cmd/option_table.h"
#include "rendezvous/base/err.h"

/* A number that was not given. */
#define OPTIONS_UNSET (-1)

/* More than there are options. */
#define OPTIONS_MAX 64

struct job_file;

/* Texts are NULL where nothing was given and there is no default. Only the
 * form of numbers and choices is checked here; what texts mean is checked by
 * job_build(). */
struct options {
    /* topology */
    const char *nnodes;
    const char *nproc_per_node;
    int64_t node_rank;
    const char *role;
    bool is_standalone;
    /* rendezvous */
    const char *rdzv_backend;
    const char *rdzv_endpoint;
    const char *rdzv_id;
    const char *rdzv_conf;
    const char *master_addr;
    int64_t master_port;
    const char *local_addr;
    bool has_no_agent_store;
    const char *token_file;
    const char *store_allow;
    int64_t coordinator_timeout; /* milliseconds */
    /* program */
    bool is_module;
    bool is_no_python;
    const char *omp_num_threads;
    /* restarts and stops */
    int64_t max_restarts;
    int64_t restart_delay; /* milliseconds, as are those below */
    int64_t restart_delay_max;
    const char *crash_loop;
    const char *signals_to_handle;
    int64_t shutdown_timeout;
    int64_t failure_grace;
    /* logs */
    const char *log_dir;
    const char *redirects;
    const char *tee;
    const char *log_line_prefix_template;
    bool has_timestamps;
    bool is_folded;
    const char *local_ranks_filter;
    const char *duplicate_stdout_filters;
    const char *duplicate_stderr_filters;
    /* report */
    const char *exit_code;
    const char *report;
    /* devices */
    const char *numa_binding;
    bool has_report_bindings;
    bool is_virtual_local_rank;
    int64_t share_gpu;
    /* job file */
    const char *config;
    bool is_dry_run;
    /* what has no effect */
    bool is_run_path;
    const char *start_method;
    int64_t monitor_interval;
    const char *event_log_handler;
    const char *logs_specs;
    bool is_use_env;
    /* information */
    bool is_help;
    bool is_version;
    const char *print_completion;

    char **program; /* borrowed: the program and its arguments, then NULL */
    struct job_file *file; /* owned; NULL: none */
    struct option_origin origins[OPTIONS_MAX];
};

/* The table that all of crun reads. */
const struct option_table *options_table(void);

/*
 * Reads everything; most strings are borrowed from argv and the environment.
 * The first word that is no option is the program, all after it is the
 * program's. A missing program is an error. After --help, --version and
 * --print_completion nothing else is read. On failure e says why, beginning
 * with where. Call options_fini() in any case.
 */
int options_parse(struct options *o, int argc, char **argv, struct err *e);

void options_fini(struct options *o);

/* Who set a field of o, also for a message about its value. */
struct option_where options_where(const struct options *o, const void *field);
enum option_source options_source(const struct options *o, const void *field);

/* The text of --help. */
void options_print_help(FILE *out);

#endif
