/* See options.h. */
#include "cmd/options.h"

#include <errno.h>
#include <stddef.h>

#include "cmd/job_file.h"

#define FIELD(field) .offset = offsetof(struct options, field)
#define FLAG(field) .type = OPTION_FLAG, FIELD(field)
#define TEXT(field, called) .type = OPTION_TEXT, FIELD(field), .value = called
#define CHOICE(field, list, called)                                            \
    .type = OPTION_CHOICE, FIELD(field), .choices = list, .value = called
#define NUMBER(field, from, to, called)                                        \
    .type = OPTION_NUMBER, FIELD(field), .min = from, .max = to, .value = called
#define SECONDS(field, from)                                                   \
    .type = OPTION_SECONDS, FIELD(field), .min = from, .max = SECONDS_MAX,     \
    .value = "SECONDS"

/* Eleven days and more; a typing error is likelier. */
#define SECONDS_MAX ((int64_t)1000000 * 1000)

#define ENV OPTION_ENV
#define OWN (OPTION_ENV | OPTION_YIELDS) /* torchrun does not have it */

static const char *const start_methods[] = {
    "spawn", "fork", "forkserver", NULL};
static const char *const bindings[] = {
    "node", "socket", "exclusive", "core-complex", NULL};
static const char *const exit_codes[] = {"torchrun", "cause", NULL};
static const char *const shells[] = {"bash", "zsh", NULL};

static const struct option options[] = {
    {.name = "nnodes",
        .flags = ENV,
        TEXT(nnodes, "N|MIN:MAX"),
        .group = "topology",
        .help = "nodes that take part, each with a crun of its own"},
    {.name = "nproc_per_node",
        .flags = ENV,
        TEXT(nproc_per_node, "N|cpu|gpu|auto"),
        .help = "workers to start on this node: a number, one per\n"
                "allowed CPU, one per CUDA device, or gpu if there\n"
                "is a device, else cpu"},
    {.name = "node_rank",
        .flags = ENV,
        NUMBER(node_rank, INT32_MIN, INT32_MAX, "N"),
        .help = "place of this node among all, from 0"},
    {.name = "role",
        .flags = ENV,
        TEXT(role, "NAME"),
        .help = "what the workers are for: ROLE_NAME, and the\n"
                "prefix of their lines with --tee"},
    {.name = "standalone",
        .flags = ENV,
        FLAG(is_standalone),
        .help = "one node that needs no other, on a free port"},

    {.name = "rdzv_backend",
        .flags = ENV,
        TEXT(rdzv_backend, "NAME"),
        .group = "rendezvous",
        .help = "how nodes find each other: static or c10d"},
    {.name = "rdzv_endpoint",
        .flags = ENV | OPTION_EMPTY,
        TEXT(rdzv_endpoint, "HOST[:PORT]"),
        .help = "where they do; static: the workers too, instead\n"
                "of --master_addr and --master_port"},
    {.name = "rdzv_id",
        .flags = ENV | OPTION_EMPTY,
        TEXT(rdzv_id, "ID"),
        .help = "name of the job, TORCHELASTIC_RUN_ID (none for\n"
                "static, else a random one)"},
    {.name = "rdzv_conf",
        .flags = ENV | OPTION_EMPTY,
        TEXT(rdzv_conf, "KEY=VALUE,..."),
        .help = "settings of the backend"},
    {.name = "master_addr",
        .flags = ENV | OPTION_EMPTY,
        TEXT(master_addr, "ADDR"),
        .help = "static: where workers meet, an address or name of\n"
                "node 0 (else 127.0.0.1)"},
    {.name = "master_port",
        .flags = ENV,
        NUMBER(master_port, 0, 65535, "PORT"),
        .help = "static: the port of that (else a free one, or\n"
                "29500 with several nodes)"},
    {.name = "local_addr",
        .flags = ENV | OPTION_EMPTY,
        TEXT(local_addr, "ADDR"),
        .help = "address of this node as the others see it"},
    {.name = "no_agent_store",
        .flags = OWN,
        FLAG(has_no_agent_store),
        .help = "rank 0 hosts the store itself, at a port that was\n"
                "free; crun does so otherwise"},
    {.name = "token_file",
        .flags = OWN,
        TEXT(token_file, "FILE"),
        .help = "several nodes: FILE holds the job's secret, and no\n"
                "node takes part that does not know it\n"
                "(else CRUN_TOKEN_FILE)"},
    {.name = "store_allow",
        .flags = OWN,
        TEXT(store_allow, "CIDR,..."),
        .help = "several nodes: networks whose programs may use the\n"
                "store too, as in 10.0.0.0/8,fd00::/8"},
    {.name = "coordinator_timeout",
        .flags = OWN,
        SECONDS(coordinator_timeout, 0),
        .help = "several nodes: time for a coordinator that is gone\n"
                "to come back"},

    {.name = "module",
        .letter = 'm',
        .flags = ENV,
        FLAG(is_module),
        .group = "program",
        .help = "PROGRAM is a Python module: run\n"
                "python -u -m PROGRAM"},
    {.name = "no_python",
        .flags = ENV,
        FLAG(is_no_python),
        .help = "run PROGRAM directly, whatever it looks like"},
    {.name = "omp_num_threads",
        .flags = OWN,
        TEXT(omp_num_threads, "N|cores|unset"),
        .help = "OMP_NUM_THREADS where it is not set: a number,\n"
                "allowed CPUs divided by workers, or nothing (1 if\n"
                "there are several workers, with a warning)"},

    {.name = "max_restarts",
        .flags = ENV,
        NUMBER(max_restarts, 0, INT32_MAX, "N"),
        .group = "restarts and stops",
        .help = "how often workers are started anew after a failure"},
    {.name = "restart_delay",
        .flags = OWN,
        SECONDS(restart_delay, 0),
        .help = "wait before the first restart, twice as long\n"
                "before each further one"},
    {.name = "restart_delay_max",
        .flags = OWN,
        SECONDS(restart_delay_max, 0),
        .help = "but at most that long"},
    {.name = "crash_loop",
        .flags = OWN,
        TEXT(crash_loop, "N:SECONDS"),
        .help = "give up when N rounds in a row each lived for\n"
                "less than that"},
    {.name = "signals_to_handle",
        .flags = ENV,
        TEXT(signals_to_handle, "LIST"),
        .help = "signals to crun that stop the job, passed on"},
    {.name = "shutdown_timeout",
        .flags = ENV,
        SECONDS(shutdown_timeout, 0),
        .help = "from the signal that stops a worker to SIGKILL\n"
                "(TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30)"},
    {.name = "failure_grace",
        .flags = OWN,
        SECONDS(failure_grace, 0),
        .help = "time for workers that are told of a failure to\n"
                "end by themselves"},

    {.name = "log_dir",
        .flags = ENV | OPTION_EMPTY,
        TEXT(log_dir, "DIR"),
        .group = "logs",
        .help = "folder for files of output and errors (else a\n"
                "temporary one); /dev/null: no files"},
    {.name = "redirects",
        .letter = 'r',
        .flags = ENV,
        TEXT(redirects, "SPEC"),
        .help = "streams that go to files only: 0 none, 1 stdout,\n"
                "2 stderr, 3 both, or RANK:N,RANK:N"},
    {.name = "tee",
        .letter = 't',
        .flags = ENV,
        TEXT(tee, "SPEC"),
        .help = "streams that go to files and, with a prefix, to\n"
                "the console"},
    {.name = "log_line_prefix_template",
        .flags = ENV | OPTION_EMPTY,
        TEXT(log_line_prefix_template, "TEXT"),
        .help = "that prefix; ${role_name}, ${rank}, ${local_rank},\n"
                "${hostname}, ${time} are replaced\n"
                "(TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, else\n"
                "[${role_name}${local_rank}]:)"},
    {.name = "timestamps",
        .flags = OWN,
        FLAG(has_timestamps),
        .help = "the time in front of each line"},
    {.name = "fold",
        .flags = OWN,
        FLAG(is_folded),
        .help = "show equal lines of several ranks once, with\n"
                "their ranks"},
    {.name = "local_ranks_filter",
        .flags = ENV | OPTION_EMPTY,
        TEXT(local_ranks_filter, "RANK,..."),
        .help = "local ranks whose output reaches the console\n"
                "(else all)"},
    {.name = "duplicate_stdout_filters",
        .flags = ENV | OPTION_EMPTY,
        TEXT(duplicate_stdout_filters, "TEXT,..."),
        .help = "lines of stdout with --tee that hold one of these\n"
                "are copied to filtered_stdout.log (,, is a comma)"},
    {.name = "duplicate_stderr_filters",
        .flags = ENV | OPTION_EMPTY,
        TEXT(duplicate_stderr_filters, "TEXT,..."),
        .help = "the same for stderr"},

    {.name = "exit_code",
        .flags = OWN,
        CHOICE(exit_code, exit_codes, "torchrun|cause"),
        .group = "report",
        .help = "after a failure exit with 1, or with the first\n"
                "failure's own code or 128 + signal"},
    {.name = "report",
        .flags = OWN,
        TEXT(report, "FILE"),
        .help = "write what happened to FILE, as JSON"},

    {.name = "virtual_local_rank",
        .flags = ENV,
        FLAG(is_virtual_local_rank),
        .group = "devices",
        .help = "each worker sees one GPU and LOCAL_RANK 0"},
    {.name = "share_gpu",
        .flags = OWN,
        NUMBER(share_gpu, 1, 64, "N"),
        .help = "for development: N workers use each GPU, and NCCL\n"
                "is told so"},
    {.name = "numa_binding",
        CHOICE(numa_binding, bindings, "MODE"),
        .help = "CPUs for each worker by the place of its GPU:\n"
                "node, socket, exclusive or core-complex"},
    {.name = "report_bindings",
        .flags = OWN,
        FLAG(has_report_bindings),
        .help = "print the CPUs of each worker on stderr"},

    {.name = "config",
        .flags = OPTION_YIELDS | OPTION_COMMAND,
        TEXT(config, "FILE"),
        .group = "job file",
        .help = "read options from FILE, in YAML: each by its long\n"
                "name, and program, args, env. The command line is\n"
                "stronger, PET_ variables too"},
    {.name = "dry_run",
        .flags = OPTION_YIELDS | OPTION_COMMAND,
        FLAG(is_dry_run),
        .help = "print the job as such a file, and each worker's\n"
                "command and variables; start nothing"},

    {.name = "monitor_interval",
        .flags = ENV,
        SECONDS(monitor_interval, 1),
        .group = "of torchrun, without a meaning here",
        .help = "crun does not poll"},
    {.name = "start_method",
        .flags = ENV,
        CHOICE(start_method, start_methods, "METHOD"),
        .help = "workers are executed: spawn, fork, forkserver are\n"
                "the same"},
    {.name = "event_log_handler",
        .flags = ENV | OPTION_EMPTY,
        TEXT(event_log_handler, "null|console"),
        .help = "events are in the file of --report"},
    {.name = "logs_specs",
        .flags = OPTION_EMPTY,
        TEXT(logs_specs, "default"),
        .help = "other layouts of logs are Python plug-ins"},
    {.name = "run_path",
        .flags = ENV,
        FLAG(is_run_path),
        .help = "refused: there is no interpreter to run a file in"},
    {.name = "use_env",
        FLAG(is_use_env),
        .help = "of torch.distributed.launch; it is always so"},

    {.name = "help",
        .letter = 'h',
        .flags = OPTION_COMMAND,
        FLAG(is_help),
        .group = "information",
        .help = "print this text"},
    {.name = "version",
        .flags = OPTION_YIELDS | OPTION_COMMAND,
        FLAG(is_version),
        .help = "print the version"},
    {.name = "print_completion",
        .flags = OPTION_COMMAND,
        CHOICE(print_completion, shells, "bash|zsh"),
        .help = "print a script that completes options, for\n"
                "eval \"$(crun --print_completion bash)\""},
};

#define OPTIONS_COUNT (sizeof(options) / sizeof(options[0]))
_Static_assert(OPTIONS_COUNT <= OPTIONS_MAX, "OPTIONS_MAX is too small");

static const struct option_table table = {
    .options = options,
    .count = OPTIONS_COUNT,
    .env_prefix = "PET_",
    .hint = "; options of the program go after it",
    .has_abbreviations = true,
};

static const struct options defaults = {
    .nnodes = "1",
    .nproc_per_node = "1",
    .role = "default",
    .rdzv_backend = "static",
    .master_port = OPTIONS_UNSET,
    .coordinator_timeout = 60 * 1000,
    .restart_delay_max = 60 * 1000,
    .signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    .shutdown_timeout = OPTIONS_UNSET,
    .failure_grace = 100,
    .redirects = "0",
    .tee = "0",
    .share_gpu = 1,
    .exit_code = "torchrun",
    .monitor_interval = OPTIONS_UNSET,
};

const struct option_table *options_table(void)
{
    return &table;
}

/* The option whose value is in a field of o. */
static size_t index_of(const struct options *o, const void *field)
{
    size_t offset = (size_t)((const char *)field - (const char *)o);
    size_t i = 0;

    while (i < OPTIONS_COUNT - 1 && options[i].offset != offset)
        i++;
    return i;
}

struct option_where options_where(const struct options *o, const void *field)
{
    size_t i = index_of(o, field);

    return option_table_where(&table, &options[i], &o->origins[i]);
}

enum option_source options_source(const struct options *o, const void *field)
{
    return o->origins[index_of(o, field)].source;
}

int options_parse(struct options *o, int argc, char **argv, struct err *e)
{
    const struct option_target target = {.base = o, .origins = o->origins};
    int rest, rc;

    *o = defaults;
    rc = option_table_parse(&table, &target, argc, argv, &rest, e);
    if (rc < 0 || o->is_help || o->is_version || o->print_completion != NULL)
        return rc;
    if (o->config != NULL) {
        rc = job_file_load(&o->file, o->config, &table, &target, e);
        if (rc < 0)
            return rc;
    }
    rc = option_table_read_env(&table, &target, e);
    if (rc < 0)
        return rc;
    if (rest < argc)
        o->program = argv + rest;
    else if (o->file != NULL)
        o->program = o->file->program;
    if (o->program == NULL)
        return err_set(e, -EINVAL, "no program given");
    return 0;
}

void options_fini(struct options *o)
{
    job_file_destroy(o->file);
    o->file = NULL;
}

void options_print_help(FILE *out)
{
    fputs("usage: crun [options] PROGRAM [arguments]\n"
          "       crun --config FILE [options] [PROGRAM [arguments]]\n"
          "\n"
          "Starts PROGRAM as several workers of one job and gives each its\n"
          "RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the\n"
          "rest of torchrun's environment. If one fails, the others are\n"
          "stopped and it is named.\n"
          "\n"
          "PROGRAM is run by Python if it ends in .py or is no executable,\n"
          "else directly; ${local_rank} in its arguments is replaced.\n"
          "Dashes and underscores in options are the same, and a long option\n"
          "may be cut short. A variable named below (PET_...) sets an option\n"
          "that the command line does not.\n"
          "\n",
        out);
    option_table_print(&table, &defaults, out);
    fputs("\n"
          "environment: PYTHON_EXEC (interpreter), LOGLEVEL (ERROR, WARNING,\n"
          "INFO, DEBUG)\n"
          "\n"
          "exit status: 0 if every worker exited with 0, 1 if not, 2 for a\n"
          "mistake on the command line, in a variable or in a job file\n",
        out);
}
