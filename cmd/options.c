/* See options.h. */
#include "cmd/options.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "rendezvous/base/text.h"

enum option_type { OPTION_FLAG, OPTION_TEXT, OPTION_NUMBER };

struct option {
    const char *name; /* with underscores */
    char letter; /* 0: none */
    enum option_type type;
    size_t offset; /* of the field in struct options */
    int64_t min; /* of a number */
    int64_t max;
    const char *value; /* how --help calls the value */
    const char *help; /* lines after the first are indented by the printer */
};

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

#define NOPTIONS (sizeof(options) / sizeof(options[0]))

/* Compares the first n bytes of given, where a dash is an underscore, with
 * the whole of name. */
static bool is_name(const char *given, size_t n, const char *name)
{
    if (strlen(name) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((given[i] == '-' ? '_' : given[i]) != name[i])
            return false;
    return true;
}

static size_t common_prefix(const char *given, size_t n, const char *name)
{
    size_t i = 0;

    while (i < n && (given[i] == '-' ? '_' : given[i]) == name[i])
        i++;
    return i;
}

static int unknown_option(const char *arg, struct err *e)
{
    size_t n = strcspn(arg + 2, "=");
    const struct option *near = NULL;
    size_t best = 3; /* fewer equal letters are no hint */

    for (size_t i = 0; i < NOPTIONS && arg[1] == '-'; i++) {
        size_t same = common_prefix(arg + 2, n, options[i].name);

        if (same > best) {
            best = same;
            near = &options[i];
        }
    }
    if (near != NULL)
        return err_set(e, -EINVAL,
            "unknown option %s (did you mean --%s?); options of the program "
            "go after it",
            arg, near->name);
    return err_set(e, -EINVAL,
        "unknown option %s; options of the program go after it", arg);
}

static int store_number(const struct option *opt, struct options *o,
    const char *value, struct err *e)
{
    int64_t number;

    if (text_to_i64(value, &number) < 0 || number < opt->min ||
        number > opt->max)
        return err_set(e, -EINVAL,
            "--%s='%s': expected a number from %lld to %lld", opt->name, value,
            (long long)opt->min, (long long)opt->max);
    *(int64_t *)((char *)o + opt->offset) = number;
    return 0;
}

static int store_value(const struct option *opt, struct options *o,
    const char *value, struct err *e)
{
    switch (opt->type) {
    case OPTION_FLAG:
        if (value != NULL)
            return err_set(e, -EINVAL, "--%s takes no value, but got '%s'",
                opt->name, value);
        *(bool *)((char *)o + opt->offset) = true;
        return 0;
    case OPTION_NUMBER:
        return store_number(opt, o, value, e);
    case OPTION_TEXT:
        if (value[0] == '\0')
            return err_set(e, -EINVAL, "--%s: its value is empty", opt->name);
        *(const char **)((char *)o + opt->offset) = value;
        return 0;
    }
    return -EINVAL;
}

/* The option that arg names, and in *value what it says after `=` (or, for
 * a letter, right after it). */
static const struct option *find_option(const char *arg, const char **value)
{
    size_t n = strcspn(arg, "=");

    *value = NULL;
    for (size_t i = 0; i < NOPTIONS; i++) {
        const struct option *opt = &options[i];

        if (arg[1] == '-' && is_name(arg + 2, n - 2, opt->name)) {
            if (arg[n] == '=')
                *value = arg + n + 1;
            return opt;
        }
        if (arg[1] != '-' && opt->letter != 0 && arg[1] == opt->letter &&
            arg[2] == '\0')
            return opt;
    }
    return NULL;
}

int options_parse(struct options *o, int argc, char **argv, struct err *e)
{
    int i = 1;

    *o = (struct options){
        .nproc_per_node = "1", .master_port = OPTIONS_PORT_UNSET};
    while (i < argc && argv[i][0] == '-' && argv[i][1] != '\0') {
        const char *arg = argv[i++];
        const struct option *opt;
        const char *value;
        int rc;

        if (strcmp(arg, "--") == 0)
            break;
        opt = find_option(arg, &value);
        if (opt == NULL)
            return unknown_option(arg, e);
        if (opt->type != OPTION_FLAG && value == NULL) {
            if (i == argc)
                return err_set(e, -EINVAL, "--%s needs a value: %s", opt->name,
                    opt->value);
            value = argv[i++];
        }
        rc = store_value(opt, o, value, e);
        if (rc < 0)
            return rc;
    }
    o->program = argv + i;
    if (i == argc && !o->is_help && !o->is_version)
        return err_set(e, -EINVAL, "no program given");
    return 0;
}

/* Prints name and value in a column of their own, the help beside it. */
static void print_option(FILE *out, const struct option *opt)
{
    const char *line = opt->help;
    const char *end;
    char name[64];

    snprintf(name, sizeof(name), "%s%c%s--%s%s%s", opt->letter ? "-" : "",
        opt->letter ? opt->letter : ' ', opt->letter ? ", " : "   ", opt->name,
        opt->value != NULL ? " " : "", opt->value != NULL ? opt->value : "");
    for (; line != NULL; line = *end != '\0' ? end + 1 : NULL) {
        end = strchrnul(line, '\n');
        fprintf(out, "  %-36s %.*s\n", name, (int)(end - line), line);
        name[0] = '\0';
    }
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
    for (size_t i = 0; i < NOPTIONS; i++)
        print_option(out, &options[i]);
    fputs("\n"
          "environment: PYTHON_EXEC (interpreter), LOGLEVEL (ERROR, WARNING,\n"
          "INFO, DEBUG)\n"
          "\n"
          "exit status: 0 if every worker exited with 0, 1 if not, 2 for a\n"
          "mistake on the command line\n",
        out);
}
