/* Job files: what is read, and where a mistake is. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/job_file.h"
#include "cmd/options.h"
#include "tests/unit/unit.h"

#define LEN(array) ((int)(sizeof(array) / sizeof((array)[0])))

static struct options o;
static struct err e;

static void set_up(void)
{
    memset(&o, 0, sizeof(o));
    memset(&e, 0, sizeof(e));
}

static void tear_down(void)
{
    options_fini(&o);
}

/* In memory of its own, so that a byte beyond the text is found. */
static int read_bytes(const char *text, size_t len)
{
    const struct option_target target = {.base = &o, .origins = o.origins};
    char *copy = malloc(len + 1);
    int rc;

    ck_assert_ptr_nonnull(copy);
    memcpy(copy, text, len);
    copy = realloc(copy, len > 0 ? len : 1);
    ck_assert_ptr_nonnull(copy);
    rc = job_file_parse(
        &o.file, "job.yaml", copy, len, options_table(), &target, &e);
    free(copy);
    return rc;
}

static int read_text(const char *text)
{
    return read_bytes(text, strlen(text));
}

static const char whole[] = "# a remark\n"
                            "nproc_per_node: 4\n"
                            "max-restarts: 3      # dashes too\n"
                            "shutdown_timeout: 0.5\n"
                            "standalone: true\n"
                            "fold: no\n"
                            "role: no\n"
                            "rdzv_id: \"17\"\n"
                            "exit_code: cause\n"
                            "tee: '0:3,1:1'\n"
                            "duplicate_stdout_filters: \"a b,c\"\n"
                            "program: ./train me.py\n"
                            "args:\n"
                            "  - --epochs\n"
                            "  - 10\n"
                            "  - 'it''s'\n"
                            "  - \"\"\n"
                            "  - \"\\u00e9\\n\"\n"
                            "env:\n"
                            "  OMP_NUM_THREADS: 4\n"
                            "  FLAG: yes\n"
                            "  NOTHING: ''\n"
                            "  \"CUDA_*\":\n"
                            "  HOME: ~\n";

START_TEST(everything_is_read)
{
    ck_assert_msg(read_text(whole) == 0, "%s", e.msg);
    ck_assert_str_eq(o.nproc_per_node, "4");
    ck_assert_int_eq((int)o.max_restarts, 3);
    ck_assert_int_eq((int)o.shutdown_timeout, 500);
    ck_assert(o.is_standalone && !o.is_folded);
    ck_assert_str_eq(o.role, "no");
    ck_assert_str_eq(o.rdzv_id, "17");
    ck_assert_str_eq(o.exit_code, "cause");
    ck_assert_str_eq(o.tee, "0:3,1:1");
    ck_assert_str_eq(o.file->program[0], "./train me.py");
    ck_assert_str_eq(o.file->program[1], "--epochs");
    ck_assert_str_eq(o.file->program[2], "10");
    ck_assert_str_eq(o.file->program[3], "it's");
    ck_assert_str_eq(o.file->program[4], "");
    ck_assert_str_eq(o.file->program[5], "\xc3\xa9\n");
    ck_assert_ptr_null(o.file->program[6]);
    ck_assert_uint_eq(o.file->env.count, 5);
    ck_assert_str_eq(o.file->env.entries[0].value, "4");
    ck_assert_str_eq(o.file->env.entries[1].value, "yes");
    ck_assert_str_eq(o.file->env.entries[2].value, "");
    ck_assert_str_eq(o.file->env.entries[3].name, "CUDA_*");
    ck_assert_ptr_null(o.file->env.entries[3].value);
    ck_assert_ptr_null(o.file->env.entries[4].value);
    ck_assert_str_eq(
        options_where(&o, &o.max_restarts).text, "job.yaml:3:15: max_restarts");
}
END_TEST

static const char *const empty[] = {
    "", "# nothing\n", "---\n{}\n", "{}", "--- {}\n...\n", "\n\n"};

START_TEST(nothing_is_a_job_file_too)
{
    ck_assert_msg(read_text(empty[_i]) == 0, "%s", e.msg);
    ck_assert_ptr_null(o.file->program);
}
END_TEST

START_TEST(args_may_come_first)
{
    ck_assert_int_eq(read_text("{args: [a, b], program: p}"), 0);
    ck_assert_str_eq(o.file->program[0], "p");
    ck_assert_str_eq(o.file->program[2], "b");
}
END_TEST

/* What has set an option before the file was read stays. */
START_TEST(stronger_source_wins_but_the_file_is_checked)
{
    const struct option_target target = {.base = &o, .origins = o.origins};
    const struct option_table *t = options_table();
    const struct option_origin from = {.source = OPTION_FROM_COMMAND};

    ck_assert_int_eq(option_table_set(t, option_table_find(t, "max_restarts"),
                         &target, &from, "7", &e),
        0);
    ck_assert_int_eq(read_text("max_restarts: 1\nrole: r\n"), 0);
    ck_assert_int_eq((int)o.max_restarts, 7);
    ck_assert_str_eq(o.role, "r");
    options_fini(&o);
    ck_assert_int_eq(read_text("max_restarts: x\n"), -EINVAL);
    ck_assert_int_eq((int)o.max_restarts, 7);
}
END_TEST

static const struct {
    const char *text;
    const char *message; /* how it begins */
} bad[] = {
    {"nosuch: 1\n", "job.yaml:1:1: unknown key 'nosuch'"},
    {"role: r\n  \nnproc: 2\n", "job.yaml:3:1: unknown key 'nproc'"},
    {"<<: {}\n", "job.yaml:1:1: unknown key '<<'"},
    {"max_restarts: three\n", "job.yaml:1:15: max_restarts='three': expected"},
    {"max_restarts: 1.5\n", "job.yaml:1:15: max_restarts='1.5': expected"},
    {"max_restarts: -1\n", "job.yaml:1:15: max_restarts='-1': expected"},
    {"max_restarts: \"3\"\n", "job.yaml:1:15: max_restarts: expected a number"},
    {"max_restarts: [3]\n", "job.yaml:1:15: max_restarts: expected one value"},
    {"max_restarts: {a: 3}\n",
        "job.yaml:1:15: max_restarts: expected one value"},
    {"max_restarts:\nrole: x\n", "job.yaml:1:14: max_restarts: its value is"},
    {"role: ~\n", "job.yaml:1:7: role: its value is missing"},
    {"role: null\n", "job.yaml:1:7: role: its value is missing"},
    {"role: ''\n", "job.yaml:1:7: role: its value is empty"},
    {"standalone: 1\n", "job.yaml:1:13: standalone: expected true or false"},
    {"standalone: 'true'\n",
        "job.yaml:1:13: standalone: expected true or false"},
    {"standalone: maybe\n", "job.yaml:1:13: standalone='maybe': expected"},
    {"exit_code: 3\n", "job.yaml:1:12: exit_code='3': expected one of"},
    {"role: a\nrole: b\n", "job.yaml:2:1: role is given twice"},
    {"max_restarts: 1\nmax-restarts: 1\n",
        "job.yaml:2:1: max-restarts is given twice"},
    {"program: a\nprogram: b\n", "job.yaml:2:1: program is given twice"},
    {"config: x\n", "job.yaml:1:1: config belongs on the command line"},
    {"dry-run: true\n", "job.yaml:1:1: dry-run belongs on the command line"},
    {"help: true\n", "job.yaml:1:1: help belongs on the command line"},
    {"version: true\n", "job.yaml:1:1: version belongs"},
    {"print_completion: bash\n", "job.yaml:1:1: print_completion belongs"},
    {"program: [a, b]\n", "job.yaml:1:10: program: expected one value"},
    {"program: p\nargs: a b\n", "job.yaml:2:7: args: expected a list"},
    {"program: p\nargs: [a, [b]]\n", "job.yaml:2:11: args: expected one value"},
    {"program: p\nargs: [a, ~]\n", "job.yaml:2:11: args: its value is missing"},
    {"role: r\nargs: [a]\n", "job.yaml:2:7: args: there is no program"},
    {"env: [A]\n", "job.yaml:1:6: env: expected a mapping"},
    {"env:\n  A: [1]\n", "job.yaml:2:6: A: expected one value"},
    {"env:\n  A: 1\n  A: 2\n", "job.yaml:3:3: env: A is given twice"},
    {"env:\n  'A=B': 1\n", "job.yaml:2:3: env: 'A=B' cannot be the name"},
    {"env:\n  '': 1\n", "job.yaml:2:3: env: '' cannot be the name"},
    {"env:\n  A: \"x\\0y\"\n", "job.yaml:2:6: A: a NUL byte"},
    {"role: \"x\\0y\"\n", "job.yaml:1:7: role: a NUL byte"},
    {"\"ro\\0le\": x\n", "job.yaml:1:1: the name of an option: a NUL byte"},
    {"[a]: b\n", "job.yaml:1:1: the name of an option: expected one value"},
    {"role: &x a\n", "job.yaml:1:7: an anchor, &x"},
    {"role: *x\n", "job.yaml:1:7: an alias, *x"},
    {"&x {args: *x}\n", "job.yaml:1:1: an anchor, &x"},
    {"role: !!str a\n", "job.yaml:1:7: a tag, tag:yaml.org,2002:str"},
    {"role: a\n---\nrole: b\n", "job.yaml:2:1: a second document"},
    {"- role\n", "job.yaml:1:1: expected OPTION: VALUE"},
    {"role\n", "job.yaml:1:1: expected OPTION: VALUE"},
    {"--- ~\n", "job.yaml:1:5: expected OPTION: VALUE"},
    {"role: a\n b: c\n", "job.yaml:2:3: not YAML: "},
    {"args: [a\n", "job.yaml:2:1: not YAML: "},
    {"role: 'a\n", "job.yaml:2:1: not YAML: "},
    {"\trole: a\n", "job.yaml:1:1: not YAML: "},
    {"role: a\nx\xff: b\n", "job.yaml:2:2: not YAML: "},
    {"role: a\n\x01\n", "job.yaml:2:1: not YAML: "},
};

START_TEST(mistake_is_told_where_it_is)
{
    ck_assert_int_eq(read_text(bad[_i].text), -EINVAL);
    ck_assert_ptr_null(o.file);
    ck_assert_msg(strncmp(e.msg, bad[_i].message, strlen(bad[_i].message)) == 0,
        "%s", e.msg);
}
END_TEST

/* Whatever is left of a file or put into it: it is read, or there is a place
 * and a sentence; under the sanitizers nothing leaks. */
START_TEST(no_text_does_harm)
{
    static const char garbage[] = "\n \t:-,[]{}'\"&*!~#%\\\x01\xff\x80?|>";
    char text[sizeof(whole)];

    for (size_t len = 0; len < sizeof(whole); len++) {
        int rc = read_bytes(whole, len);

        ck_assert(rc == 0 || (rc == -EINVAL && e.msg[0] != '\0'));
        tear_down();
        set_up();
    }
    for (size_t at = 0; at < sizeof(whole) - 1; at++)
        for (size_t g = 0; g < sizeof(garbage); g++) {
            int rc;

            memcpy(text, whole, sizeof(whole));
            text[at] = garbage[g];
            rc = read_bytes(text, sizeof(whole) - 1);
            ck_assert(rc == 0 || (rc == -EINVAL && e.msg[0] != '\0'));
            tear_down();
            set_up();
        }
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("job_file");

    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, everything_is_read);
    tcase_add_loop_test(t, nothing_is_a_job_file_too, 0, LEN(empty));
    tcase_add_test(t, args_may_come_first);
    tcase_add_test(t, stronger_source_wins_but_the_file_is_checked);
    tcase_add_loop_test(t, mistake_is_told_where_it_is, 0, LEN(bad));
    tcase_add_test(t, no_text_does_harm);
    return unit_run("job_file", t);
}
