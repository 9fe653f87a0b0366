/* The environment of a worker. */
#include <stdlib.h>
#include <string.h>

#include "agent/worker_vars.h"
#include "tests/unit/unit.h"

static const struct worker_vars vars = {.rank = 1,
    .role_rank = 1,
    .role_world_size = 2,
    .local_rank = 1,
    .world_size = 2,
    .local_world_size = 2,
    .group_world_size = 1,
    .role = "default",
    .master_addr = "127.0.0.1",
    .master_port = 4711,
    .run_id = "none",
    .has_agent_store = true,
    .error_file = "",
    .signals_text = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"};

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

START_TEST(what_is_decided_for_a_worker_replaces_what_is_inherited)
{
    char *base[] = {"OMP_NUM_THREADS=7", "CUDA_VISIBLE_DEVICES=GPU-1,GPU-2",
        "TORCHELASTIC_USE_AGENT_STORE=True", NULL};
    struct worker_vars v = vars;
    char **env = worker_vars_build(&v, base);

    ck_assert(has(env, "OMP_NUM_THREADS=7"));
    ck_assert(has(env, "CUDA_VISIBLE_DEVICES=GPU-1,GPU-2"));
    free(env);
    v.omp_num_threads = "4";
    v.visible_devices = "GPU-2";
    v.has_agent_store = false;
    v.error_file = "/tmp/e";
    env = worker_vars_build(&v, base);
    ck_assert(has(env, "OMP_NUM_THREADS=4"));
    ck_assert_int_eq(count(env, "OMP_NUM_THREADS"), 1);
    ck_assert(has(env, "CUDA_VISIBLE_DEVICES=GPU-2"));
    ck_assert_int_eq(count(env, "CUDA_VISIBLE_DEVICES"), 1);
    ck_assert(has(env, "TORCHELASTIC_USE_AGENT_STORE=False"));
    ck_assert(has(env, "TORCHELASTIC_ERROR_FILE=/tmp/e"));
    free(env);
}
END_TEST

START_TEST(the_agent_channel_is_never_that_of_an_outer_job)
{
    char *base[] = {"CRUN_AGENT=outer", "CRUN_AGENTS=2", NULL};
    struct worker_vars v = vars;
    char **env = worker_vars_build(&v, base);

    ck_assert_int_eq(count(env, "CRUN_AGENT"), 0);
    ck_assert(has(env, "CRUN_AGENTS=2"));
    free(env);
    v.agent = "inner";
    env = worker_vars_build(&v, base);
    ck_assert(has(env, "CRUN_AGENT=inner"));
    ck_assert_int_eq(count(env, "CRUN_AGENT"), 1);
    free(env);
}
END_TEST

START_TEST(an_empty_variable_is_found)
{
    char *base[] = {"OMP_NUM_THREADS=", "AB=1", NULL};

    ck_assert_str_eq(worker_vars_find(base, "OMP_NUM_THREADS"), "");
    ck_assert_str_eq(worker_vars_find(base, "AB"), "1");
    ck_assert_ptr_null(worker_vars_find(base, "A"));
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

/* --- NCCL ----------------------------------------------------------------- */

START_TEST(ranks_that_share_a_device_are_told_how)
{
    char *base[] = {"NCCL_ALGO=Ring", NULL};
    struct worker_vars v = vars;
    char **env;

    v.share_gpu = 1;
    env = worker_vars_build(&v, base);
    ck_assert_int_eq(count(env, "COLL_SHARE_GPU"), 0);
    ck_assert_int_eq(count(env, "NCCL_HOSTID"), 0);
    free(env);
    v.share_gpu = 3;
    env = worker_vars_build(&v, base);
    ck_assert(has(env, "COLL_SHARE_GPU=3"));
    ck_assert(has(env, "NCCL_MULTI_RANK_GPU_ENABLE=1"));
    ck_assert(has(env, "NCCL_HOSTID=crun-rank-1"));
    ck_assert(has(env, "NCCL_NET=Socket"));
    ck_assert(has(env, "NCCL_ALGO=Ring"));
    free(env);
}
END_TEST

START_TEST(what_the_user_says_of_sharing_stays)
{
    char *hosts[] = {"NCCL_HOSTID=h", "NCCL_NET=IB", NULL};
    char *new_nccl[] = {"NCCL_MULTI_RANK_GPU_ENABLE=1", NULL};
    struct worker_vars v = vars;
    char **env;

    v.share_gpu = 2;
    env = worker_vars_build(&v, hosts);
    ck_assert(has(env, "NCCL_HOSTID=h") && has(env, "NCCL_NET=IB"));
    ck_assert_int_eq(count(env, "NCCL_HOSTID"), 1);
    ck_assert_int_eq(count(env, "NCCL_NET"), 1);
    ck_assert(has(env, "NCCL_MULTI_RANK_GPU_ENABLE=1"));
    free(env);
    env = worker_vars_build(&v, new_nccl);
    ck_assert(has(env, "COLL_SHARE_GPU=2"));
    ck_assert_int_eq(count(env, "NCCL_MULTI_RANK_GPU_ENABLE"), 1);
    ck_assert_int_eq(count(env, "NCCL_HOSTID"), 0);
    ck_assert_int_eq(count(env, "NCCL_NET"), 0);
    free(env);
}
END_TEST

START_TEST(lines_of_nccl_are_told_the_rank)
{
    char *silent[] = {"NCCL_DEBUG=", NULL};
    char *debug[] = {"NCCL_DEBUG=INFO", "NCCL_DEBUG_FILE=/f.%p", NULL};
    char *format[] = {
        "NCCL_DEBUG=WARN", "NCCL_DEBUG_TIMESTAMP_FORMAT=[%T] ", NULL};
    char *levels[] = {"NCCL_DEBUG=WARN", "NCCL_DEBUG_TIMESTAMP_LEVELS=", NULL};
    struct worker_vars v = vars;
    char **env = worker_vars_build(&v, silent);

    ck_assert_int_eq(count(env, "NCCL_DEBUG_TIMESTAMP_FORMAT"), 0);
    free(env);
    env = worker_vars_build(&v, debug);
    ck_assert(has(env, "NCCL_DEBUG=INFO"));
    ck_assert(has(env, "NCCL_DEBUG_FILE=/f.%p"));
    ck_assert(has(env, "NCCL_DEBUG_TIMESTAMP_FORMAT=[rank 1] [%F %T] "));
    ck_assert(has(env, "NCCL_DEBUG_TIMESTAMP_LEVELS=ALL"));
    free(env);
    env = worker_vars_build(&v, format);
    ck_assert(has(env, "NCCL_DEBUG_TIMESTAMP_FORMAT=[%T] "));
    ck_assert_int_eq(count(env, "NCCL_DEBUG_TIMESTAMP_FORMAT"), 1);
    ck_assert_int_eq(count(env, "NCCL_DEBUG_TIMESTAMP_LEVELS"), 0);
    free(env);
    env = worker_vars_build(&v, levels);
    ck_assert_int_eq(count(env, "NCCL_DEBUG_TIMESTAMP_FORMAT"), 0);
    ck_assert(has(env, "NCCL_DEBUG_TIMESTAMP_LEVELS="));
    free(env);
}
END_TEST

START_TEST(what_an_outer_crun_told_nccl_is_not_the_users)
{
    char *base[] = {"NCCL_DEBUG=INFO", NULL};
    struct worker_vars outer = vars;
    struct worker_vars inner = vars;
    char **outer_env, **env;

    outer.share_gpu = inner.share_gpu = 2;
    inner.rank = 0;
    outer_env = worker_vars_build(&outer, base);
    env = worker_vars_build(&inner, outer_env);
    ck_assert(has(env, "NCCL_HOSTID=crun-rank-0"));
    ck_assert_int_eq(count(env, "NCCL_HOSTID"), 1);
    ck_assert_int_eq(count(env, "NCCL_MULTI_RANK_GPU_ENABLE"), 1);
    ck_assert(has(env, "NCCL_DEBUG_TIMESTAMP_FORMAT=[rank 0] [%F %T] "));
    ck_assert_int_eq(count(env, "NCCL_DEBUG_TIMESTAMP_FORMAT"), 1);
    ck_assert_int_eq(count(env, "NCCL_DEBUG_TIMESTAMP_LEVELS"), 1);
    free(env);
    free(outer_env);
}
END_TEST

START_TEST(the_port_of_nccls_ras_is_the_jobs)
{
    char *base[] = {"NCCL_RAS_TIMEOUT_FACTOR=2", NULL};
    struct worker_vars v = vars;
    char **env = worker_vars_build(&v, base);

    ck_assert_int_eq(count(env, "NCCL_RAS_ADDR"), 0);
    free(env);
    v.nccl_ras_addr = "127.0.0.1:4711";
    env = worker_vars_build(&v, base);
    ck_assert(has(env, "NCCL_RAS_ADDR=127.0.0.1:4711"));
    ck_assert(has(env, "NCCL_RAS_TIMEOUT_FACTOR=2"));
    free(env);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("worker_vars");

    tcase_add_test(t, contract_is_complete);
    tcase_add_test(t, what_an_outer_launcher_set_is_replaced_once);
    tcase_add_test(t, what_is_decided_for_a_worker_replaces_what_is_inherited);
    tcase_add_test(t, the_agent_channel_is_never_that_of_an_outer_job);
    tcase_add_test(t, an_empty_variable_is_found);
    tcase_add_test(t, inherited_nccl_error_handling_is_kept);
    tcase_add_test(t, ranks_that_share_a_device_are_told_how);
    tcase_add_test(t, what_the_user_says_of_sharing_stays);
    tcase_add_test(t, lines_of_nccl_are_told_the_rank);
    tcase_add_test(t, what_an_outer_crun_told_nccl_is_not_the_users);
    tcase_add_test(t, the_port_of_nccls_ras_is_the_jobs);
    return unit_run("worker_vars", t);
}
