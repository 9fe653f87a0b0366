/* What the workers' environment is made of. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/job_env.h"
#include "tests/unit/unit.h"

static struct job_env env;
static char **vars;

static char *inherited[] = {"PATH=/bin", "HOME=/root", "CUDA_HOME=/cuda",
    "CUDA_VISIBLE_DEVICES=1", "EMPTY=", "WITH=a=b", NULL};

static void set_up(void)
{
    memset(&env, 0, sizeof(env));
    vars = NULL;
}

static void tear_down(void)
{
    free(vars);
    job_env_fini(&env);
}

/* The whole environment, with a blank after each variable. */
static const char *built(void)
{
    static char text[512];
    size_t len = 0;

    free(vars);
    vars = job_env_build(&env, inherited);
    ck_assert_ptr_nonnull(vars);
    text[0] = '\0';
    for (char **var = vars; *var != NULL; var++)
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s ", *var);
    return text;
}

START_TEST(without_entries_all_is_inherited)
{
    ck_assert_str_eq(built(), "PATH=/bin HOME=/root CUDA_HOME=/cuda "
                              "CUDA_VISIBLE_DEVICES=1 EMPTY= WITH=a=b ");
    free(vars);
    vars = job_env_build(NULL, inherited);
    ck_assert_ptr_eq(vars[0], inherited[0]);
    ck_assert_ptr_null(vars[6]);
}
END_TEST

START_TEST(values_are_set_whatever_was_inherited)
{
    ck_assert_int_eq(job_env_add(&env, "HOME", "/h"), 0);
    ck_assert_int_eq(job_env_add(&env, "NEW", "x y"), 0);
    ck_assert_int_eq(job_env_add(&env, "EMPTY", ""), 0);
    ck_assert_str_eq(built(), "PATH=/bin CUDA_HOME=/cuda "
                              "CUDA_VISIBLE_DEVICES=1 WITH=a=b HOME=/h "
                              "NEW=x y EMPTY= ");
}
END_TEST

START_TEST(patterns_choose_what_is_inherited)
{
    ck_assert_int_eq(job_env_add(&env, "CUDA_*", NULL), 0);
    ck_assert_int_eq(job_env_add(&env, "HOM?", NULL), 0);
    ck_assert_int_eq(job_env_add(&env, "CUDA_HOME", "/other"), 0);
    ck_assert_str_eq(
        built(), "HOME=/root CUDA_VISIBLE_DEVICES=1 CUDA_HOME=/other ");
}
END_TEST

START_TEST(pattern_is_matched_with_the_whole_name)
{
    ck_assert_int_eq(job_env_add(&env, "PAT", NULL), 0);
    ck_assert_str_eq(built(), "");
    ck_assert_int_eq(job_env_add(&env, "WITH", NULL), 0);
    ck_assert_str_eq(built(), "WITH=a=b ");
    ck_assert_int_eq(job_env_add(&env, "*", NULL), 0);
    ck_assert_ptr_nonnull(strstr(built(), "PATH=/bin"));
}
END_TEST

START_TEST(names_are_checked)
{
    ck_assert_int_eq(job_env_add(&env, "A", "1"), 0);
    ck_assert_int_eq(job_env_add(&env, "A", "2"), -EEXIST);
    ck_assert_int_eq(job_env_add(&env, "A", NULL), -EEXIST);
    ck_assert_int_eq(job_env_add(&env, "", "2"), -EINVAL);
    ck_assert_int_eq(job_env_add(&env, "A=B", "2"), -EINVAL);
    ck_assert_uint_eq(env.count, 1);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("job_env");

    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, without_entries_all_is_inherited);
    tcase_add_test(t, values_are_set_whatever_was_inherited);
    tcase_add_test(t, patterns_choose_what_is_inherited);
    tcase_add_test(t, pattern_is_matched_with_the_whole_name);
    tcase_add_test(t, names_are_checked);
    return unit_run("job_env", t);
}
