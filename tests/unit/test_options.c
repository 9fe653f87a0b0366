/* crun's command line. */
#include <stdlib.h>
#include <string.h>

#include "cmd/option_table.h"
#include "cmd/options.h"
#include "tests/unit/unit.h"

#define ARGS_MAX 16

static char *words[ARGS_MAX];
static char text_of_args[512];
static struct options o;
static struct err e;

/* Makes `crun` and the words of a line an argv; returns argc. */
static int split(const char *line)
{
    int argc = 0;
    char *word;

    snprintf(text_of_args, sizeof(text_of_args), "crun %s", line);
    for (word = strtok(text_of_args, " "); word != NULL;
         word = strtok(NULL, " "))
        words[argc++] = word;
    words[argc] = NULL;
    memset(&e, 0, sizeof(e));
    return argc;
}

static int parse(const char *line)
{
    int argc = split(line);

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

/* --- Tables in general -------------------------------------------------- */

struct values {
    bool is_set;
    const char *text;
    int64_t number;
    int64_t size;
};

static const struct option value_options[] = {
    {"a-flag", 'f', OPTION_FLAG, offsetof(struct values, is_set), 0, 0, NULL,
        "a flag"},
    {"a-text", 0, OPTION_TEXT, offsetof(struct values, text), 0, 0, "TEXT",
        "a text"},
    {"a-number", 0, OPTION_NUMBER, offsetof(struct values, number), -5, 5, "N",
        "a number"},
    {"a-size", 0, OPTION_SIZE, offsetof(struct values, size), 1,
        (int64_t)1 << 40, "SIZE", "a size"},
};

static struct values values;
static int rest;

static int parse_values(const char *line)
{
    const struct option_table table = {value_options,
        sizeof(value_options) / sizeof(value_options[0]), "; a hint"};
    int argc = split(line);

    values = (struct values){.text = "unset"};
    return option_table_parse(&table, &values, argc, words, &rest, &e);
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
    ck_assert_ptr_nonnull(strstr(e.msg, "; a hint"));
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
    tcase_add_test(t, table_tells_where_values_go);
    tcase_add_loop_test(
        t, size_is_a_number_with_a_unit, 0, sizeof(sizes) / sizeof(sizes[0]));
    tcase_add_test(t, unknown_option_is_hinted_at);
    return unit_run("options", t);
}
