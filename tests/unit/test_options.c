/* crun's command line. */
#include <stdlib.h>
#include <string.h>

#include "cmd/options.h"
#include "tests/unit/unit.h"

#define ARGS_MAX 16

static char *words[ARGS_MAX];
static char text_of_args[512];
static struct options o;
static struct err e;

/* Parses `crun` followed by the words of a line. */
static int parse(const char *line)
{
    int argc = 0;
    char *word;

    snprintf(text_of_args, sizeof(text_of_args), "crun %s", line);
    for (word = strtok(text_of_args, " "); word != NULL;
         word = strtok(NULL, " "))
        words[argc++] = word;
    words[argc] = NULL;
    memset(&e, 0, sizeof(e));
    return options_parse(&o, argc, words, &e);
}

START_TEST(defaults)
{
    ck_assert_int_eq(parse("prog"), 0);
    ck_assert_str_eq(o.nproc_per_node, "1");
    ck_assert_ptr_null(o.master_addr);
    ck_assert_int_eq((int)o.master_port, OPTIONS_PORT_UNSET);
    ck_assert(!o.is_module && !o.is_no_python && !o.is_standalone);
    ck_assert_str_eq(o.program[0], "prog");
    ck_assert_ptr_null(o.program[1]);
}
END_TEST

static const char *const same[] = {"--nproc_per_node=4 p",
    "--nproc-per-node=4 p", "--nproc_per-node 4 p", "--nproc-per-node 4 p",
    "--nproc_per_node=9 --nproc-per-node=4 p", "--nproc_per_node=4 -- p"};

START_TEST(spellings_are_the_same_option)
{
    ck_assert_int_eq(parse(same[_i]), 0);
    ck_assert_str_eq(o.nproc_per_node, "4");
    ck_assert_str_eq(o.program[0], "p");
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
}
END_TEST

START_TEST(single_dash_is_a_program)
{
    ck_assert_int_eq(parse("- x"), 0);
    ck_assert_str_eq(o.program[0], "-");
}
END_TEST

START_TEST(every_option_is_stored)
{
    ck_assert_int_eq(parse("--standalone --no-python --master_addr h "
                           "--master-port 0 p"),
        0);
    ck_assert(o.is_standalone && o.is_no_python);
    ck_assert_str_eq(o.master_addr, "h");
    ck_assert_int_eq((int)o.master_port, 0);
    ck_assert_int_eq(parse("--help"), 0);
    ck_assert(o.is_help);
    ck_assert_int_eq(parse("--version"), 0);
    ck_assert(o.is_version);
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
    {"--master_port x p", "'x'"},
    {"--master_port 65536 p", "65536"},
    {"--master_port -1 p", "-1"},
    {"--master_port 1.5 p", "1.5"},
    {"--master_port 99999999999999999999 p", "99999999999999999999"},
    {"--master_port", "PORT"},
    {"--master_port= p", "''"},
    {"--master_addr= p", "--master_addr"},
    {"--module=1 p", "--module"},
    {"", "no program"},
    {"--module", "no program"},
};

START_TEST(mistake_is_an_error_that_names_it)
{
    ck_assert_int_lt(parse(bad[_i].line), 0);
    ck_assert_msg(strstr(e.msg, bad[_i].named) != NULL, "'%s' in '%s'",
        bad[_i].named, e.msg);
}
END_TEST

START_TEST(help_names_every_option)
{
    char *help = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&help, &size);

    ck_assert_ptr_nonnull(out);
    options_print_help(out);
    fclose(out);
    ck_assert_ptr_nonnull(strstr(help, "--nproc_per_node N|cpu|gpu|auto"));
    ck_assert_ptr_nonnull(strstr(help, "-m, --module"));
    ck_assert_ptr_nonnull(strstr(help, "--no_python"));
    free(help);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("options");

    tcase_add_test(t, defaults);
    tcase_add_loop_test(
        t, spellings_are_the_same_option, 0, sizeof(same) / sizeof(same[0]));
    tcase_add_test(t, first_positional_ends_the_options);
    tcase_add_test(t, single_dash_is_a_program);
    tcase_add_test(t, every_option_is_stored);
    tcase_add_loop_test(
        t, mistake_is_an_error_that_names_it, 0, sizeof(bad) / sizeof(bad[0]));
    tcase_add_test(t, help_names_every_option);
    return unit_run("options", t);
}
