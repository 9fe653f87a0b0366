/* Tables of options, and crun's own. */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/option_table.h"
#include "cmd/options.h"
#include "tests/unit/unit.h"

#define ARGS_MAX 24

static char *words[ARGS_MAX];
static char text_of_args[512];
static struct options o;
static struct err e;

/* Makes `crun` and the words of a line an argv, `_` in a word that is in
 * quotes standing for a blank; returns argc. */
static int split(const char *line)
{
    int argc = 0;
    char *word;

    snprintf(text_of_args, sizeof(text_of_args), "crun %s", line);
    for (word = strtok(text_of_args, " "); word != NULL;
         word = strtok(NULL, " ")) {
        ck_assert_int_lt(argc, ARGS_MAX - 1);
        for (char *c = word; word[0] == '\'' && *c != '\0'; c++)
            *c = *c == '_' ? ' ' : *c;
        words[argc++] = word;
    }
    words[argc] = NULL;
    memset(&e, 0, sizeof(e));
    return argc;
}

static int parse(const char *line)
{
    int argc = split(line);

    options_fini(&o);
    return options_parse(&o, argc, words, &e);
}

static void set_up(void)
{
    extern char **environ;

    /* What the tests are run in shall not show. */
    for (char **var = environ; *var != NULL;) {
        char name[64];

        if (strncmp(*var, "PET_", 4) != 0) {
            var++;
            continue;
        }
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(*var, "="), *var);
        unsetenv(name);
        var = environ;
    }
}

static void tear_down(void)
{
    options_fini(&o);
}

/* --- crun's options ----------------------------------------------------- */

START_TEST(defaults)
{
    ck_assert_int_eq(parse("prog"), 0);
    ck_assert_str_eq(o.nnodes, "1");
    ck_assert_str_eq(o.nproc_per_node, "1");
    ck_assert_str_eq(o.rdzv_backend, "static");
    ck_assert_str_eq(o.role, "default");
    ck_assert_ptr_null(o.master_addr);
    ck_assert_int_eq((int)o.master_port, OPTIONS_UNSET);
    ck_assert_int_eq((int)o.shutdown_timeout, OPTIONS_UNSET);
    ck_assert_int_eq((int)o.failure_grace, 100);
    ck_assert(!o.is_module && !o.is_no_python && !o.is_standalone);
    ck_assert_str_eq(o.program[0], "prog");
    ck_assert_ptr_null(o.program[1]);
    ck_assert_int_eq(options_source(&o, &o.role), OPTION_FROM_DEFAULT);
}
END_TEST

static const char *const same[] = {"--nproc_per_node=4 p",
    "--nproc-per-node=4 p", "--nproc_per-node 4 p", "--nproc-per-node 4 p",
    "--nproc_per_node=9 --nproc-per-node=4 p", "--nproc_per_node=4 -- p",
    "--nproc-per 4 p", "--nproc_per 4 p", "--np=4 p", "--nproc 4 p"};

START_TEST(spellings_are_the_same_option)
{
    ck_assert_int_eq(parse(same[_i]), 0);
    ck_assert_str_eq(o.nproc_per_node, "4");
    ck_assert_str_eq(o.program[0], "p");
}
END_TEST

/* ARG-02: each option by its two spellings, and torchrun's by each beginning
 * that is its own. */
START_TEST(both_spellings_of_every_option)
{
    const struct option_table *t = options_table();
    const struct option *opt = &t->options[_i];
    struct options other;
    char line[128];
    char *dashes;

    snprintf(line, sizeof(line), "--%s%s p", opt->name,
        opt->type == OPTION_FLAG      ? ""
        : opt->type == OPTION_CHOICE  ? " x"
        : opt->flags & OPTION_COMMAND ? "=/nowhere"
                                      : "=7");
    if (opt->type == OPTION_CHOICE)
        snprintf(line + strlen(line) - 3, 16, "%s p", opt->choices[0]);
    memset(&other, 0, sizeof(other));
    parse(line);
    dashes = strdup(line);
    for (char *c = dashes; *c != '\0'; c++)
        *c = *c == '_' ? '-' : *c;
    memcpy(&other, &o, sizeof(o));
    other.file = NULL;
    parse(dashes);
    /* The strings are in the same places of text_of_args. */
    ck_assert_int_eq(memcmp(&o, &other, sizeof(o)), 0);
    ck_assert(
        options_source(&o, (char *)&o + opt->offset) == OPTION_FROM_COMMAND);
    free(dashes);
}
END_TEST

START_TEST(first_positional_ends_the_options)
{
    ck_assert_int_eq(parse("-m p --nproc_per_node 2 -h -- --module"), 0);
    ck_assert(o.is_module);
    ck_assert_str_eq(o.nproc_per_node, "1");
    ck_assert(!o.is_help);
    ck_assert_str_eq(o.program[1], "--nproc_per_node");
    ck_assert_str_eq(o.program[4], "--");
    ck_assert_str_eq(o.program[5], "--module");
    ck_assert_int_eq(parse("-- --module -- x"), 0);
    ck_assert(!o.is_module);
    ck_assert_str_eq(o.program[0], "--module");
    ck_assert_str_eq(o.program[1], "--");
}
END_TEST

START_TEST(single_dash_is_a_program)
{
    ck_assert_int_eq(parse("- x"), 0);
    ck_assert_str_eq(o.program[0], "-");
}
END_TEST

static const struct {
    const char *line;
    const char *redirects;
    bool is_module;
} letters[] = {
    {"-r 3 p", "3", false},
    {"-r3 p", "3", false},
    {"-r=3 p", "3", false},
    {"-r 0:1,1:2 p", "0:1,1:2", false},
    {"-mr3 p", "3", true},
    {"-mr 3 p", "3", true},
    {"-m -r 3 p", "3", true},
    {"--redirects 1 -r 3 p", "3", false},
    {"--red 3 p", "3", false},
};

START_TEST(letters_take_values)
{
    ck_assert_int_eq(parse(letters[_i].line), 0);
    ck_assert_str_eq(o.redirects, letters[_i].redirects);
    ck_assert_int_eq(o.is_module, letters[_i].is_module);
    ck_assert_str_eq(o.program[0], "p");
}
END_TEST

/* What torchrun knows an option by is not lost to one that it lacks. */
START_TEST(own_options_yield_abbreviations)
{
    ck_assert_int_eq(parse("--re 3 --t 1 --e console --v --no-p p"), 0);
    ck_assert_str_eq(o.redirects, "3");
    ck_assert_str_eq(o.tee, "1");
    ck_assert_str_eq(o.event_log_handler, "console");
    ck_assert(o.is_virtual_local_rank && o.is_no_python);
    ck_assert_int_eq(
        parse("--fo --rep=x p"), -EINVAL); /* report, ..._bindings */
    ck_assert_int_eq(parse("--report=x p"), 0);
    ck_assert_str_eq(o.report, "x");
}
END_TEST

START_TEST(values_may_begin_with_a_dash)
{
    ck_assert_int_eq(parse("--role -1 p"), 0);
    ck_assert_str_eq(o.role, "-1");
    ck_assert_int_eq(parse("--role -.5 p"), 0);
    ck_assert_int_eq(parse("--role - p"), 0);
    ck_assert_int_eq(parse("--role=-x p"), 0);
    ck_assert_str_eq(o.role, "-x");
    ck_assert_int_eq(parse("--role '-x_y' p"), 0);
    ck_assert_int_lt(parse("--role -x p"), 0);
    ck_assert_int_lt(parse("--role -1x p"), 0);
    ck_assert_int_lt(parse("--role -1. p"), 0);
    ck_assert_int_lt(parse("--role -- p"), 0);
    ck_assert_ptr_nonnull(strstr(e.msg, "--role needs a value"));
}
END_TEST

START_TEST(empty_value_takes_back)
{
    ck_assert_int_eq(parse("--log_dir=x --log_dir= --rdzv_conf= p"), 0);
    ck_assert_ptr_null(o.log_dir);
    ck_assert_ptr_null(o.rdzv_conf);
}
END_TEST

static const struct {
    const char *text;
    int64_t ms; /* -1: a mistake */
} seconds[] = {
    {"0", 0},
    {"30", 30000},
    {"0.1", 100},
    {"0.3", 300},
    {"1.1", 1100},
    {"0.0001", 1},
    {"1e-9", 1},
    {"1.0005", 1001},
    {".5", 500},
    {"5.", 5000},
    {"1e3", 1000000},
    {"1000000", 1000000000},
    {"1000001", -1},
    {"-1", -1},
    {"-0.001", -1},
    {"", -1},
    {"x", -1},
    {"1s", -1},
    {"nan", -1},
    {"inf", -1},
    {"0x10", -1},
    {"1e999", -1},
    {"1.2.3", -1},
};

START_TEST(seconds_are_read)
{
    char line[64];
    int rc;

    snprintf(line, sizeof(line), "--shutdown_timeout=%s p", seconds[_i].text);
    rc = parse(line);
    if (seconds[_i].ms >= 0) {
        ck_assert_int_eq(rc, 0);
        ck_assert(o.shutdown_timeout == seconds[_i].ms);
    } else {
        ck_assert_int_eq(rc, -EINVAL);
        ck_assert_ptr_nonnull(strstr(e.msg, "--shutdown_timeout='"));
    }
}
END_TEST

static const struct {
    const char *line;
    const char *named; /* what the error must name */
} bad[] = {
    {"--nosuch p", "--nosuch"},
    {"--nproc_per_nodes=4 p", "--nproc_per_node?"},
    {"--nprocpernode=2 p", "--nprocpernode=2"},
    {"-x p", "-x"},
    {"-mx p", "-mx"},
    {"-m=1 p", "-m=1"},
    {"--=3 p", "--=3"},
    {"--rdzv x p", "--rdzv is ambiguous: --rdzv_backend, --rdzv_endpoint"},
    {"--log 1 p", "--log_dir, --log_line_prefix_template, --logs_specs"},
    {"--n 1 p", "--nnodes"},
    {"--max_restarts -1 p", "--max_restarts='-1'"},
    {"--max_restarts 1.5 p", "'1.5'"},
    {"--start_method foo p", "'foo': expected one of spawn, fork, forkserver"},
    {"--print_completion tcsh", "'tcsh': expected one of bash, zsh"},
    {"--exit-code 3 p", "torchrun, cause"},
    {"--monitor_interval 0 p", "--monitor_interval='0'"},
    {"--shutdown_timeout -1 p", "--shutdown_timeout='-1'"},
    {"--coordinator_timeout -1 p", "--coordinator_timeout='-1'"},
    {"--token_file= p", "--token_file: its value is empty"},
    {"--store_allow= p", "--store_allow: its value is empty"},
    {"--nproc_per_node --standalone p", "--standalone follows"},
    {"--master_port x p", "'x'"},
    {"--master_port 65536 p", "65536"},
    {"--master_port -1 p", "-1"},
    {"--master_port 1.5 p", "1.5"},
    {"--master_port 99999999999999999999 p", "99999999999999999999"},
    {"--master_port", "PORT"},
    {"-r", "SPEC"},
    {"--master_port= p", "''"},
    {"--role= p", "--role"},
    {"--nproc_per_node= p", "--nproc_per_node"},
    {"--module=1 p", "--module"},
    {"--config /nowhere/x p", "/nowhere/x"},
    {"--config /dev p", "/dev"},
    {"", "no program"},
    {"--module", "no program"},
    {"--", "no program"},
};

START_TEST(mistake_is_an_error_that_names_it)
{
    ck_assert_int_lt(parse(bad[_i].line), 0);
    ck_assert_msg(strstr(e.msg, bad[_i].named) != NULL, "'%s' in '%s'",
        bad[_i].named, e.msg);
}
END_TEST

START_TEST(environment_sets_what_the_command_line_does_not)
{
    setenv("PET_NPROC_PER_NODE", "3", 1);
    setenv("PET_STANDALONE", "1", 1);
    setenv("PET_MAX_RESTARTS", "2", 1);
    setenv("PET_SHUTDOWN_TIMEOUT", "0.5", 1);
    setenv("PET_CONFIG", "/nowhere", 1); /* of the command line only */
    setenv("PET_LOGS_SPECS", "plugin", 1); /* as in torchrun */
    ck_assert_int_eq(parse("--max-restarts=5 p"), 0);
    ck_assert_str_eq(o.nproc_per_node, "3");
    ck_assert(o.is_standalone);
    ck_assert_int_eq((int)o.max_restarts, 5);
    ck_assert_int_eq((int)o.shutdown_timeout, 500);
    ck_assert_ptr_null(o.logs_specs);
    ck_assert_int_eq(options_source(&o, &o.nproc_per_node), OPTION_FROM_ENV);
    ck_assert_str_eq(
        options_where(&o, &o.nproc_per_node).text, "PET_NPROC_PER_NODE");
    ck_assert_str_eq(options_where(&o, &o.max_restarts).text, "--max_restarts");
}
END_TEST

static const struct {
    const char *value;
    int is_set; /* -1: a mistake */
} flags[] = {{"1", 1}, {"0", 0}, {"2", 1}, {"-1", 1}, {"true", 1}, {"True", 1},
    {"FALSE", 0}, {"yes", 1}, {"no", 0}, {"on", 1}, {"off", 0}, {"", 0},
    {"maybe", -1}, {"1.0", -1}, {" ", -1}};

START_TEST(flag_of_the_environment)
{
    int rc;

    setenv("PET_STANDALONE", flags[_i].value, 1);
    rc = parse("p");
    if (flags[_i].is_set < 0) {
        ck_assert_int_eq(rc, -EINVAL);
        ck_assert_ptr_nonnull(strstr(e.msg, "PET_STANDALONE='"));
        return;
    }
    ck_assert_int_eq(rc, 0);
    ck_assert_int_eq(o.is_standalone, flags[_i].is_set);
}
END_TEST

static const struct {
    const char *name;
    const char *value;
} bad_vars[] = {
    {"PET_MAX_RESTARTS", "x"},
    {"PET_START_METHOD", "foo"},
    {"PET_MONITOR_INTERVAL", "0"},
    {"PET_MASTER_PORT", "65536"},
    {"PET_NO_PYTHON", "y?"},
};

START_TEST(mistake_in_a_variable_names_it)
{
    setenv(bad_vars[_i].name, bad_vars[_i].value, 1);
    ck_assert_int_eq(parse("p"), -EINVAL);
    ck_assert_msg(
        strncmp(e.msg, bad_vars[_i].name, strlen(bad_vars[_i].name)) == 0, "%s",
        e.msg);
    /* Nobody asks for it where the command line says otherwise. */
    ck_assert_int_eq(parse("--max_restarts=1 --start-method fork "
                           "--monitor_interval=1 --master_port=1 --no_python "
                           "p"),
        0);
    ck_assert_int_eq(parse("--help"), 0);
}
END_TEST

START_TEST(help_and_the_like_need_no_program)
{
    ck_assert_int_eq(parse("--help"), 0);
    ck_assert(o.is_help);
    ck_assert_int_eq(parse("-h"), 0);
    ck_assert(o.is_help);
    ck_assert_int_eq(parse("--version"), 0);
    ck_assert(o.is_version);
    ck_assert_int_eq(parse("--print-completion bash"), 0);
    ck_assert_str_eq(o.print_completion, "bash");
}
END_TEST

START_TEST(help_names_every_option)
{
    const struct option_table *t = options_table();
    char *help = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&help, &size);

    ck_assert_ptr_nonnull(out);
    options_print_help(out);
    fclose(out);
    ck_assert_ptr_nonnull(strstr(help, "--nproc_per_node N|cpu|gpu|auto"));
    ck_assert_ptr_nonnull(strstr(help, "-m, --module"));
    ck_assert_ptr_nonnull(strstr(help, "(default 0; PET_MAX_RESTARTS)"));
    ck_assert_ptr_nonnull(strstr(help, "(default 0.1; PET_FAILURE_GRACE)"));
    for (size_t i = 0; i < t->count; i++) {
        char name[64];

        snprintf(name, sizeof(name), "--%s", t->options[i].name);
        ck_assert_msg(strstr(help, name) != NULL, "%s", name);
    }
    for (char *line = strtok(help, "\n"); line != NULL;
         line = strtok(NULL, "\n"))
        ck_assert_msg(strlen(line) <= 80, "%s", line);
    free(help);
}
END_TEST

/* --- Tables in general -------------------------------------------------- */

struct values {
    bool is_set;
    const char *text;
    int64_t number;
    int64_t size;
};

#define FIELD(field) .offset = offsetof(struct values, field)

static const struct option value_options[] = {
    {.name = "a-flag",
        .letter = 'f',
        .type = OPTION_FLAG,
        FIELD(is_set),
        .help = "a flag"},
    {.name = "a-text",
        .type = OPTION_TEXT,
        FIELD(text),
        .value = "TEXT",
        .help = "a text"},
    {.name = "a-number",
        .type = OPTION_NUMBER,
        FIELD(number),
        .min = -5,
        .max = 5,
        .value = "N",
        .help = "a number"},
    {.name = "a-size",
        .type = OPTION_SIZE,
        FIELD(size),
        .min = 1,
        .max = (int64_t)1 << 40,
        .value = "SIZE",
        .help = "a size"},
};

static struct values values;
static int rest;

/* Without origins: a program that has a command line only. */
static int parse_values(const char *line)
{
    const struct option_table table = {.options = value_options,
        .count = sizeof(value_options) / sizeof(value_options[0]),
        .hint = "; a hint"};
    const struct option_target target = {.base = &values};
    int argc = split(line);

    values = (struct values){.text = "unset"};
    return option_table_parse(&table, &target, argc, words, &rest, &e);
}

START_TEST(table_tells_where_values_go)
{
    ck_assert_int_eq(
        parse_values("-f --a_text=x --a-number -3 --a_size 8 y --a-text z"), 0);
    ck_assert(values.is_set);
    ck_assert_str_eq(values.text, "x");
    ck_assert_int_eq((int)values.number, -3);
    ck_assert_int_eq((int)values.size, 8);
    ck_assert_int_eq(rest, 7);
    ck_assert_int_eq(parse_values(""), 0);
    ck_assert_str_eq(values.text, "unset");
    ck_assert_int_eq(rest, 1);
}
END_TEST

static const struct {
    const char *text;
    int64_t size; /* 0: a mistake */
} sizes[] = {
    {"1", 1},
    {"17", 17},
    {"8K", 8192},
    {"128M", (int64_t)128 << 20},
    {"3G", (int64_t)3 << 30},
    {"1024G", (int64_t)1 << 40},
    {"1025G", 0},
    {"0", 0},
    {"0K", 0},
    {"-1K", 0},
    {"K", 0},
    {"1k", 0},
    {"1KB", 0},
    {"1KK", 0},
    {"1.5G", 0},
    {"K1", 0},
    {"9223372036854775807G", 0},
    {"99999999999999999999999999999999999K", 0},
};

START_TEST(size_is_a_number_with_a_unit)
{
    char line[64];
    int rc;

    snprintf(line, sizeof(line), "--a-size=%s", sizes[_i].text);
    rc = parse_values(line);
    if (sizes[_i].size != 0) {
        ck_assert_int_eq(rc, 0);
        ck_assert(values.size == sizes[_i].size);
    } else {
        ck_assert_int_lt(rc, 0);
        ck_assert_ptr_nonnull(strstr(e.msg, "--a-size='"));
        ck_assert_ptr_nonnull(strstr(e.msg, "size from 1"));
    }
}
END_TEST

START_TEST(unknown_option_is_hinted_at)
{
    ck_assert_int_lt(parse_values("--a_numbers=4"), 0);
    ck_assert_ptr_nonnull(strstr(e.msg, "did you mean --a-number?"));
    ck_assert_int_lt(parse_values("--a_numb=4"), 0); /* not cut short here */
    ck_assert_ptr_nonnull(strstr(e.msg, "did you mean --a-number?"));
    ck_assert_ptr_nonnull(strstr(e.msg, "; a hint"));
}
END_TEST

#define LEN(array) ((int)(sizeof(array) / sizeof((array)[0])))

int main(void)
{
    TCase *t = tcase_create("options");

    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, defaults);
    tcase_add_loop_test(t, spellings_are_the_same_option, 0, LEN(same));
    tcase_add_loop_test(
        t, both_spellings_of_every_option, 0, (int)options_table()->count);
    tcase_add_test(t, first_positional_ends_the_options);
    tcase_add_test(t, single_dash_is_a_program);
    tcase_add_loop_test(t, letters_take_values, 0, LEN(letters));
    tcase_add_test(t, own_options_yield_abbreviations);
    tcase_add_test(t, values_may_begin_with_a_dash);
    tcase_add_test(t, empty_value_takes_back);
    tcase_add_loop_test(t, seconds_are_read, 0, LEN(seconds));
    tcase_add_loop_test(t, mistake_is_an_error_that_names_it, 0, LEN(bad));
    tcase_add_test(t, environment_sets_what_the_command_line_does_not);
    tcase_add_loop_test(t, flag_of_the_environment, 0, LEN(flags));
    tcase_add_loop_test(t, mistake_in_a_variable_names_it, 0, LEN(bad_vars));
    tcase_add_test(t, help_and_the_like_need_no_program);
    tcase_add_test(t, help_names_every_option);
    tcase_add_test(t, table_tells_where_values_go);
    tcase_add_loop_test(t, size_is_a_number_with_a_unit, 0, LEN(sizes));
    tcase_add_test(t, unknown_option_is_hinted_at);
    return unit_run("options", t);
}
