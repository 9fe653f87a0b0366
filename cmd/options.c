/* See options.h. */
#include "cmd/options.h"

#include <errno.h>
#include <stddef.h>

#include "cmd/option_table.h"

#define FIELD(field) offsetof(struct options, field)

static const struct option options[] = {
    {"nproc_per_node", 0, OPTION_TEXT, FIELD(nproc_per_node), 0, 0,
        "N|cpu|gpu|auto",
        "workers to start (default 1): a number, one per allowed\n"
        "CPU, one per CUDA device, or gpu if there is one, else cpu"},
    {"standalone", 0, OPTION_FLAG, FIELD(is_standalone), 0, 0, NULL,
        "one node; accepted for torchrun's sake, it is the default"},
    {"master_addr", 0, OPTION_TEXT, FIELD(master_addr), 0, 0, "ADDR",
        "address of this machine at which workers meet\n"
        "(default 127.0.0.1)"},
    {"master_port", 0, OPTION_NUMBER, FIELD(master_port), 0, 65535, "PORT",
        "port at which workers meet (default: a free one)"},
    {"module", 'm', OPTION_FLAG, FIELD(is_module), 0, 0, NULL,
        "PROGRAM is a Python module: run python -u -m PROGRAM"},
    {"no_python", 0, OPTION_FLAG, FIELD(is_no_python), 0, 0, NULL,
        "run PROGRAM directly, whatever it looks like"},
    {"help", 'h', OPTION_FLAG, FIELD(is_help), 0, 0, NULL, "print this text"},
    {"version", 0, OPTION_FLAG, FIELD(is_version), 0, 0, NULL,
        "print the version"},
};

static const struct option_table table = {
    .options = options,
    .count = sizeof(options) / sizeof(options[0]),
    .hint = "; options of the program go after it",
};

int options_parse(struct options *o, int argc, char **argv, struct err *e)
{
    int rest, rc;

    *o = (struct options){
        .nproc_per_node = "1", .master_port = OPTIONS_PORT_UNSET};
    rc = option_table_parse(&table, o, argc, argv, &rest, e);
    if (rc < 0)
        return rc;
    o->program = argv + rest;
    if (rest == argc && !o->is_help && !o->is_version)
        return err_set(e, -EINVAL, "no program given");
    return 0;
}

void options_print_help(FILE *out)
{
    fputs("usage: crun [options] PROGRAM [arguments]\n"
          "\n"
          "Starts PROGRAM as several workers of one job and gives each its\n"
          "RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the\n"
          "rest of torchrun's environment. If one fails, the others are\n"
          "stopped and it is named.\n"
          "\n"
          "PROGRAM is run by Python if it ends in .py or is no executable,\n"
          "else directly. Dashes and underscores in options are the same.\n"
          "\n"
          "options:\n",
        out);
    option_table_print(&table, out);
    fputs("\n"
          "environment: PYTHON_EXEC (interpreter), LOGLEVEL (ERROR, WARNING,\n"
          "INFO, DEBUG)\n"
          "\n"
          "exit status: 0 if every worker exited with 0, 1 if not, 2 for a\n"
          "mistake on the command line\n",
        out);
}
