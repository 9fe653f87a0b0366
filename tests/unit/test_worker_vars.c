/* The environment of a worker. */
#include <stdlib.h>
#include <string.h>

#include "agent/worker_vars.h"
#include "tests/unit/unit.h"

static const struct worker_vars vars = {.rank = 1,
    .local_rank = 1,
    .world_size = 2,
    .local_world_size = 2,
    .group_world_size = 1,
    .role = "default",
    .master_addr = "127.0.0.1",
    .master_port = 4711,
    .run_id = "none"};

static int count(char **env, const char *name)
{
    size_t len = strlen(name);
    int n = 0;

    for (; *env != NULL; env++)
        n += strncmp(*env, name, len) == 0 && (*env)[len] == '=';
    return n;
}

static bool has(char **env, const char *entry)
{
    for (; *env != NULL; env++)
        if (strcmp(*env, entry) == 0)
            return true;
    return false;
}

START_TEST(contract_is_complete)
{
    static const char *const wanted[] = {"RANK=1", "LOCAL_RANK=1",
        "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=0",
        "GROUP_WORLD_SIZE=1", "ROLE_NAME=default", "ROLE_RANK=1",
        "ROLE_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=4711",
        "TORCHELASTIC_RESTART_COUNT=0", "TORCHELASTIC_MAX_RESTARTS=0",
        "TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_USE_AGENT_STORE=True",
        "TORCHELASTIC_ERROR_FILE=", "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
        "OMP_NUM_THREADS=1",
        "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT"};
    char *base[] = {NULL};
    char **env = worker_vars_build(&vars, base);
    size_t n = sizeof(wanted) / sizeof(wanted[0]);

    for (size_t i = 0; i < n; i++)
        ck_assert_msg(has(env, wanted[i]), "%s", wanted[i]);
    ck_assert_ptr_null(env[n]);
    free(env);
}
END_TEST

START_TEST(what_an_outer_launcher_set_is_replaced_once)
{
    char *base[] = {"RANK=5", "A=1\n2", "WORLD_SIZE=99", "RANK=6",
        "MASTER_ADDR=bogus", "RANKS=7", NULL};
    char **env = worker_vars_build(&vars, base);

    ck_assert_int_eq(count(env, "RANK"), 1);
    ck_assert(has(env, "RANK=1"));
    ck_assert(has(env, "WORLD_SIZE=2"));
    ck_assert(has(env, "MASTER_ADDR=127.0.0.1"));
    ck_assert(has(env, "RANKS=7"));
    ck_assert(has(env, "A=1\n2"));
    free(env);
}
END_TEST

static const struct {
    const char *given; /* in the agent's environment, NULL: unset */
    int nworkers;
    const char *want; /* NULL: unset */
} omp[] = {
    {NULL, 1, NULL},
    {NULL, 2, "OMP_NUM_THREADS=1"},
    {"OMP_NUM_THREADS=7", 2, "OMP_NUM_THREADS=7"},
    {"OMP_NUM_THREADS=", 2, "OMP_NUM_THREADS="},
};

START_TEST(ENV_02_omp_is_limited_only_if_unset_and_several)
{
    char *base[] = {(char *)omp[_i].given, NULL};
    struct worker_vars v = vars;
    char **env;

    v.local_world_size = omp[_i].nworkers;
    env = worker_vars_build(&v, base);
    if (omp[_i].want != NULL)
        ck_assert(has(env, omp[_i].want));
    ck_assert_int_eq(count(env, "OMP_NUM_THREADS"), omp[_i].want != NULL);
    ck_assert_int_eq(worker_vars_limits_omp(&v, base), _i == 1);
    free(env);
}
END_TEST

START_TEST(inherited_nccl_error_handling_is_kept)
{
    char *base[] = {"TORCH_NCCL_ASYNC_ERROR_HANDLING=3", NULL};
    char **env = worker_vars_build(&vars, base);

    ck_assert(has(env, "TORCH_NCCL_ASYNC_ERROR_HANDLING=3"));
    ck_assert_int_eq(count(env, "TORCH_NCCL_ASYNC_ERROR_HANDLING"), 1);
    free(env);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("worker_vars");

    tcase_add_test(t, contract_is_complete);
    tcase_add_test(t, what_an_outer_launcher_set_is_replaced_once);
    tcase_add_loop_test(t, ENV_02_omp_is_limited_only_if_unset_and_several, 0,
        sizeof(omp) / sizeof(omp[0]));
    tcase_add_test(t, inherited_nccl_error_handling_is_kept);
    return unit_run("worker_vars", t);
}
