/* How a program is found and what is executed for it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/program.h"
#include "tests/unit/unit.h"

static char dir[] = "/tmp/crun-unit.XXXXXX";
static char *saved_path;
static struct program p;
static struct err e;

static void make(const char *name, const char *text, mode_t mode)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq((int)write(fd, text, strlen(text)), (int)strlen(text));
    ck_assert_int_eq(fchmod(fd, mode), 0);
    close(fd);
}

static void set_up(void)
{
    strcpy(dir + strlen(dir) - 6, "XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_int_eq(chdir(dir), 0);
    ck_assert_int_eq(mkdir("bin", 0755), 0);
    make("bin/python3", "\177ELF", 0755);
    make("bin/tool", "\177ELF", 0755);
    make("bin/locked", "\177ELF", 0644);
    saved_path = strdup(getenv("PATH"));
    setenv("PATH", "./nowhere:./bin", 1);
    unsetenv("PYTHON_EXEC");
    memset(&p, 0, sizeof(p));
}

static void tear_down(void)
{
    char command[64];

    program_fini(&p);
    setenv("PATH", saved_path, 1);
    free(saved_path);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
}

static int resolve(char *name, bool is_module, bool is_no_python)
{
    static char *args[3];

    args[0] = name;
    args[1] = "a b";
    memset(&e, 0, sizeof(e));
    return program_resolve(&p, args, is_module, is_no_python, &e);
}

static void runs(const char *path, const char *first, const char *second)
{
    ck_assert_str_eq(p.path, path);
    ck_assert_str_eq(p.argv[0], first);
    ck_assert_str_eq(p.argv[1], second);
}

START_TEST(script_by_suffix_runs_in_python)
{
    make("t.py", "#!/bin/sh\n", 0755);
    ck_assert_int_eq(resolve("t.py", false, false), 0);
    runs("./bin/python3", "./bin/python3", "-u");
    ck_assert_str_eq(p.argv[2], "t.py");
    ck_assert_str_eq(p.argv[3], "a b");
    ck_assert_ptr_null(p.argv[4]);
}
END_TEST

START_TEST(elf_and_executable_script_run_directly)
{
    make("elf", "\177ELF...", 0755);
    make("script", "#!/bin/sh\nexit 0\n", 0755);
    ck_assert_int_eq(resolve("./elf", false, false), 0);
    runs("./elf", "./elf", "a b");
    program_fini(&p);
    ck_assert_int_eq(resolve("./script", false, false), 0);
    runs("./script", "./script", "a b");
}
END_TEST

START_TEST(other_readable_file_runs_in_python)
{
    make("train", "import os\n", 0644);
    ck_assert_int_eq(resolve("train", false, false), 0);
    runs("./bin/python3", "./bin/python3", "-u");
    program_fini(&p);
    make("pyscript", "#!/usr/bin/env python3\n", 0644);
    ck_assert_int_eq(resolve("pyscript", false, false), 0);
    runs("./bin/python3", "./bin/python3", "-u");
}
END_TEST

START_TEST(name_is_found_on_path_before_the_folder)
{
    make("tool", "import os\n", 0644);
    ck_assert_int_eq(resolve("tool", false, false), 0);
    runs("./bin/tool", "tool", "a b");
}
END_TEST

START_TEST(module_runs_in_python)
{
    ck_assert_int_eq(resolve("pkg.mod", true, false), 0);
    runs("./bin/python3", "./bin/python3", "-u");
    ck_assert_str_eq(p.argv[2], "-m");
    ck_assert_str_eq(p.argv[3], "pkg.mod");
    ck_assert_str_eq(p.argv[4], "a b");
}
END_TEST

START_TEST(python_exec_overrides_the_path)
{
    make("other", "\177ELF", 0755);
    setenv("PYTHON_EXEC", "./other", 1);
    ck_assert_int_eq(resolve("m", true, false), 0);
    runs("./other", "./other", "-u");
    setenv("PYTHON_EXEC", "./absent", 1);
    program_fini(&p);
    ck_assert_int_lt(resolve("m", true, false), 0);
    ck_assert_ptr_nonnull(strstr(e.msg, "PYTHON_EXEC='./absent'"));
    setenv("PYTHON_EXEC", ".", 1);
    ck_assert_int_lt(resolve("m", true, false), 0);
    ck_assert_ptr_nonnull(strstr(e.msg, "PYTHON_EXEC='.'"));
}
END_TEST

START_TEST(missing_python_is_said)
{
    setenv("PATH", "./nowhere", 1);
    ck_assert_int_eq(resolve("m", true, false), -ENOENT);
    ck_assert_ptr_nonnull(strstr(e.msg, "no python3 on PATH"));
}
END_TEST

START_TEST(no_python_runs_anything_executable_directly)
{
    make("t.py", "print()\n", 0755);
    ck_assert_int_eq(resolve("./t.py", false, true), 0);
    runs("./t.py", "./t.py", "a b");
    program_fini(&p);
    make("bin/tool.py", "\177ELF", 0755);
    ck_assert_int_eq(resolve("tool.py", false, true), 0);
    runs("./bin/tool.py", "tool.py", "a b");
    program_fini(&p);
    ck_assert_int_lt(resolve("./t.py", true, true), 0);
}
END_TEST

static const struct {
    char *name;
    bool is_no_python;
    const char *named;
} bad[] = {
    {"nosuch", false, "exit code 127"},
    {"./nosuch", false, "exit code 127"},
    {"nosuch.py", false, "exit code 127"},
    {"", false, "empty"},
    {"bin", false, "folder"},
    {"locked", false, "exit code 126"},
    {"./bin/locked", false, "exit code 126"},
    {"plain", true, "exit code 126"},
    {"sh-script", false, "exit code 126"},
    {"plain/below", false, "exit code 127"},
    {"./lost", false, "interpreter /no/such does not exist (exit code 127)"},
    {"./dos", false, "DOS line ends"},
};

START_TEST(what_cannot_run_is_told_apart)
{
    make("plain", "text\n", 0644);
    make("sh-script", "#!/bin/sh\n", 0644);
    make("lost", "#! /no/such -x\n", 0755);
    make("dos", "#!/bin/sh\r\nexit 0\r\n", 0755);
    ck_assert_int_lt(resolve(bad[_i].name, false, bad[_i].is_no_python), 0);
    ck_assert_ptr_null(p.path);
    ck_assert_msg(strstr(e.msg, bad[_i].named) != NULL, "'%s' in '%s'",
        bad[_i].named, e.msg);
}
END_TEST

static const struct {
    char *arg;
    const char *want;
} macros[] = {
    {"${local_rank}", "12"},
    {"$local_rank", "12"},
    {"--local-rank=${local_rank}", "--local-rank=12"},
    {"a$local_rank.b${local_rank}c", "a12.b12c"},
    {"$local_rank-$local_rank", "12-12"},
    {"$local_rank\xc3\xa9", "12\xc3\xa9"},
    {"$local_ranks", "$local_ranks"},
    {"$local_rank_", "$local_rank_"},
    {"$local_rank0", "$local_rank0"},
    {"${local_ranks}", "${local_ranks}"},
    {"${local_rank", "${local_rank"},
    {"${ local_rank }", "${ local_rank }"},
    {"$LOCAL_RANK", "$LOCAL_RANK"},
    {"${rank} $x", "${rank} $x"},
    {"$$", "$$"},
    {"$$local_rank", "$$local_rank"},
    {"$${local_rank}", "$${local_rank}"},
    {"$$$local_rank", "$$12"},
    {"$", "$"},
    {"", ""},
};

START_TEST(macro_of_an_argument)
{
    char *args[] = {"./w${local_rank}", macros[_i].arg, "x", NULL};
    char **argv;

    make("w${local_rank}", "\177ELF", 0755);
    ck_assert_int_eq(program_resolve(&p, args, false, true, &e), 0);
    argv = program_argv(&p, 12);
    ck_assert_ptr_nonnull(argv);
    ck_assert_str_eq(argv[0], "./w${local_rank}");
    ck_assert_str_eq(argv[1], macros[_i].want);
    ck_assert_str_eq(argv[2], "x");
    ck_assert_ptr_null(argv[3]);
    free(argv);
}
END_TEST

START_TEST(script_is_an_argument_of_python)
{
    char *args[] = {"t${local_rank}.py", NULL};
    char **argv;

    make("t${local_rank}.py", "", 0644);
    ck_assert_int_eq(program_resolve(&p, args, false, false, &e), 0);
    argv = program_argv(&p, 0);
    ck_assert_str_eq(argv[2], "t0.py");
    free(argv);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("program");

    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, script_by_suffix_runs_in_python);
    tcase_add_test(t, elf_and_executable_script_run_directly);
    tcase_add_test(t, other_readable_file_runs_in_python);
    tcase_add_test(t, name_is_found_on_path_before_the_folder);
    tcase_add_test(t, module_runs_in_python);
    tcase_add_test(t, python_exec_overrides_the_path);
    tcase_add_test(t, missing_python_is_said);
    tcase_add_test(t, no_python_runs_anything_executable_directly);
    tcase_add_loop_test(
        t, what_cannot_run_is_told_apart, 0, sizeof(bad) / sizeof(bad[0]));
    tcase_add_loop_test(
        t, macro_of_an_argument, 0, sizeof(macros) / sizeof(macros[0]));
    tcase_add_test(t, script_is_an_argument_of_python);
    return unit_run("program", t);
}
