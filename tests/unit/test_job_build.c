/* From options to a job. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/worker_vars.h"
#include "cmd/job_build.h"
#include "tests/unit/command_line.h"

static struct job job;
static struct job_parts parts;

static void set_up(void)
{
    static const char *const names[] = {"TORCHELASTIC_ENABLE_FILE_TIMER",
        "TORCHELASTIC_HEALTH_CHECK_PORT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "TORCHELASTIC_ERROR_FILE",
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "CUDA_VISIBLE_DEVICES",
        "CRUN_TOKEN_FILE", "NCCL_RAS_ADDR", "NCCL_RAS_ENABLE"};

    for (int i = 0; i < LEN(names); i++)
        unsetenv(names[i]);
    memset(&job, 0, sizeof(job));
    memset(&parts, 0, sizeof(parts));
    keep_logs();
    for (int sig = 1; sig < SIGRTMIN; sig++)
        signal(sig, SIG_DFL);
    inherited_save(&job.inherited);
}

static void tear_down(void)
{
    job_parts_fini(&parts, &job);
    options_fini(&o);
}

static int build(const char *line)
{
    parse_line(line);
    return job_build(&job, &parts, &o, &e);
}

static void built(const char *line)
{
    ck_assert_msg(build(line) == 0, "%s", e.msg);
}

START_TEST(defaults)
{
    setenv("CRUN_TEST_VAR", "x", 1);
    built("");
    ck_assert_int_eq(job.nproc, 1);
    ck_assert_str_eq(job.role, "default");
    ck_assert_str_eq(job.master_addr, "127.0.0.1");
    ck_assert_int_eq(job.master_port, 0);
    ck_assert(job.has_agent_store);
    ck_assert_ptr_null(job.run_id);
    ck_assert_int_eq(job.max_restarts, 0);
    ck_assert(job.restart_delay_ms == 0 && job.restart_delay_max_ms == 60000);
    ck_assert_int_eq(job.crash_loop_count, 0);
    ck_assert(job.grace_ms == 30000 && job.failure_grace_ms == 100);
    ck_assert_ptr_null(job.nodes.token_path);
    ck_assert_ptr_null(job.nodes.store_allow);
    ck_assert(job.nodes.coordinator_timeout_ms == 60000);
    ck_assert_str_eq(job.signals_text, "SIGTERM,SIGINT,SIGHUP,SIGQUIT");
    ck_assert(!job.is_exit_cause && !job.is_virtual_local_rank);
    ck_assert_int_eq(job.share_gpu, 1);
    ck_assert_int_eq(job.omp, JOB_OMP_TORCHRUN);
    ck_assert_ptr_null(job.binding);
    ck_assert_ptr_null(job.log.dir);
    ck_assert_ptr_null(job.log.prefix);
    ck_assert_ptr_null(job.log.shown);
    ck_assert_ptr_null(job.log.stdout_needles);
    ck_assert_int_eq(job.log.redirects[0], 0);
    ck_assert_int_eq(job.log.tees[0], 0);
    ck_assert_ptr_null(job.report_path);
    ck_assert_ptr_null(job.parent_error_file);
    ck_assert_str_eq(worker_vars_find(job.env, "CRUN_TEST_VAR"), "x");
    ck_assert_str_eq(log_text, "");
}
END_TEST

START_TEST(restarts_and_stops)
{
    built("--max_restarts 3 --restart_delay 0.5 --restart_delay_max 2 "
          "--crash_loop 3:1.5 --shutdown_timeout 0 --failure_grace 1 "
          "--exit_code cause");
    ck_assert_int_eq(job.max_restarts, 3);
    ck_assert(job.restart_delay_ms == 500 && job.restart_delay_max_ms == 2000);
    ck_assert(job.crash_loop_count == 3 && job.crash_loop_ms == 1500);
    ck_assert(job.grace_ms == 0 && job.failure_grace_ms == 1000);
    ck_assert(job.is_exit_cause);
}
END_TEST

START_TEST(long_delay_raises_its_own_maximum)
{
    built("--restart_delay 90");
    ck_assert(job.restart_delay_max_ms == 90000);
}
END_TEST

START_TEST(who_may_take_part_and_how_long_to_wait_for_it)
{
    built("--nnodes 2 --master_addr h --token_file t --store_allow "
          "10.0.0.0/8,fd00::/8 --coordinator_timeout 2.5");
    ck_assert_str_eq(job.nodes.token_path, "t");
    ck_assert_str_eq(job.nodes.store_allow, "10.0.0.0/8,fd00::/8");
    ck_assert(job.nodes.coordinator_timeout_ms == 2500);
    tear_down();
    built("--token_file /nowhere --store-allow ::1/128 "
          "--coordinator_timeout 0"); /* one node has no use for them */
    ck_assert(job.nodes.coordinator_timeout_ms == 0);
    ck_assert_str_eq(log_text, "");
}
END_TEST

START_TEST(secret_of_the_environment)
{
    setenv("CRUN_TOKEN_FILE", "theirs", 1);
    built("");
    ck_assert_str_eq(job.nodes.token_path, "theirs");
    tear_down();
    setenv("PET_TOKEN_FILE", "pet", 1);
    built("");
    ck_assert_str_eq(job.nodes.token_path, "pet");
    tear_down();
    built("--token_file mine");
    ck_assert_str_eq(job.nodes.token_path, "mine");
    tear_down();
    unsetenv("PET_TOKEN_FILE");
    setenv("CRUN_TOKEN_FILE", "", 1);
    built("");
    ck_assert_ptr_null(job.nodes.token_path);
}
END_TEST

START_TEST(grace_of_the_environment)
{
    setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7", 1);
    built("");
    ck_assert(job.grace_ms == 7000);
    tear_down();
    built("--shutdown_timeout 2");
    ck_assert(job.grace_ms == 2000);
    tear_down();
    setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "-1", 1);
    ck_assert_int_eq(build(""), -EINVAL);
    ck_assert_ptr_nonnull(strstr(e.msg, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT='-1'"));
}
END_TEST

START_TEST(signals)
{
    built("--signals_to_handle SIGUSR1,TERM,SIGWINCH");
    ck_assert_str_eq(job.signals_text, "SIGUSR1,TERM,SIGWINCH");
    ck_assert(sigismember(&job.inherited.stop, SIGUSR1));
    ck_assert(sigismember(&job.inherited.stop, SIGTERM));
    ck_assert(sigismember(&job.inherited.stop, SIGWINCH));
    ck_assert(!sigismember(&job.inherited.stop, SIGINT));
    ck_assert(!sigismember(&job.inherited.pass, SIGUSR1));
    ck_assert(sigismember(&job.inherited.pass, SIGUSR2));
}
END_TEST

START_TEST(logs)
{
    built("--nproc_per_node 12 --log_dir /l -r 11:3 -t 3 --fold --timestamps "
          "--local_ranks_filter 0,11 --duplicate_stdout_filters a,,b,c "
          "--duplicate-stderr-filters x --log-line-prefix-template ${rank}: "
          "--report /r");
    ck_assert_str_eq(job.log.dir, "/l");
    ck_assert_int_eq(job.log.redirects[11], 3);
    ck_assert_int_eq(job.log.redirects[1], 0);
    ck_assert_int_eq(job.log.tees[5], 3);
    ck_assert(job.log.is_folded && job.log.has_timestamps);
    ck_assert(job.log.shown[0] && !job.log.shown[1] && job.log.shown[11]);
    ck_assert_str_eq(job.log.stdout_needles[0], "a,b");
    ck_assert_str_eq(job.log.stdout_needles[1], "c");
    ck_assert_str_eq(job.log.stderr_needles[0], "x");
    ck_assert_str_eq(job.log.prefix, "${rank}:");
    ck_assert_str_eq(job.report_path, "/r");
}
END_TEST

START_TEST(variables_of_torchrun)
{
    setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "v:", 1);
    setenv("TORCHELASTIC_ERROR_FILE", "/outer", 1);
    setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1", 1);
    setenv("TORCHELASTIC_HEALTH_CHECK_PORT", "8080", 1);
    setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "0", 1);
    built("");
    ck_assert_str_eq(job.log.prefix, "v:");
    ck_assert_str_eq(job.parent_error_file, "/outer");
    ck_assert(!job.has_agent_store);
    ck_assert_ptr_nonnull(strstr(log_text, "TORCHELASTIC_HEALTH_CHECK_PORT"));
    tear_down();
    built("--log_line_prefix_template o:");
    ck_assert_str_eq(job.log.prefix, "o:");
    tear_down();
    setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0", 1);
    built("");
    ck_assert(job.has_agent_store);
    tear_down();
    built("--no_agent_store");
    ck_assert(!job.has_agent_store);
    tear_down();
    setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1", 1);
    ck_assert_int_eq(build(""), -ENOTSUP);
    ck_assert_ptr_nonnull(strstr(e.msg, "TORCHELASTIC_ENABLE_FILE_TIMER=1"));
}
END_TEST

START_TEST(omp_threads)
{
    cpu_set_t set;

    built("--omp_num_threads 6");
    ck_assert(job.omp == JOB_OMP_NUMBER && job.omp_threads == 6);
    tear_down();
    built("--omp_num_threads unset");
    ck_assert_int_eq(job.omp, JOB_OMP_UNSET);
    tear_down();
    ck_assert_int_eq(sched_getaffinity(0, sizeof(set), &set), 0);
    built("--omp_num_threads cores");
    ck_assert(job.omp == JOB_OMP_NUMBER);
    ck_assert_int_eq(job.omp_threads, CPU_COUNT(&set));
    tear_down();
    built("--omp_num_threads cores --nproc_per_node 4096");
    ck_assert_int_eq(job.omp_threads, 1);
}
END_TEST

START_TEST(virtual_local_rank_needs_a_device_each)
{
    setenv("CUDA_VISIBLE_DEVICES", "3,5", 1);
    built("--virtual_local_rank --nproc_per_node 2");
    ck_assert(job.is_virtual_local_rank);
    tear_down();
    ck_assert_int_eq(build("--virtual_local_rank --nproc_per_node 3"), -ENODEV);
}
END_TEST

START_TEST(devices_are_shared_by_no_more_than_was_said)
{
    built("--share_gpu 3 --nproc_per_node 7"); /* who knows of how many */
    ck_assert(job.share_gpu == 3 && job.nproc == 7);
    tear_down();
    setenv("CUDA_VISIBLE_DEVICES", "3,5", 1);
    built("--share-gpu 2 --nproc_per_node 4");
    tear_down();
    ck_assert_int_eq(build("--share_gpu 2 --nproc_per_node 5"), -ENODEV);
    ck_assert_str_eq(e.msg,
        "--share_gpu: CUDA_VISIBLE_DEVICES=3,5 has no entry for local rank 4, "
        "2 to a device");
    tear_down();
    built("--virtual_local_rank --share_gpu 2 --nproc_per_node 4");
    tear_down();
    ck_assert_int_eq(
        build("--virtual_local_rank --share_gpu 2 --nproc_per_node 5"),
        -ENODEV);
    tear_down();
    setenv("CUDA_VISIBLE_DEVICES", "", 1); /* on purpose */
    built("--share_gpu 2 --nproc_per_node 5");
}
END_TEST

START_TEST(nccl_has_a_port_unless_the_user_says_otherwise)
{
    built("--share_gpu 2");
    ck_assert(job.has_nccl_ras_port);
    tear_down();
    setenv("NCCL_RAS_ENABLE", "1", 1);
    built("--share_gpu 2");
    ck_assert(job.has_nccl_ras_port);
    tear_down();
    setenv("NCCL_RAS_ENABLE", "0", 1);
    built("--share_gpu 2");
    ck_assert(!job.has_nccl_ras_port);
    tear_down();
    unsetenv("NCCL_RAS_ENABLE");
    setenv("NCCL_RAS_ADDR", "localhost:28028", 1);
    built("--share_gpu 2");
    ck_assert(!job.has_nccl_ras_port);
}
END_TEST

static const struct {
    const char *line;
    const char *named[2];
} bad[] = {
    {"--nproc_per_node 0", {"--nproc_per_node=0"}},
    {"--nproc_per_node x", {"--nproc_per_node=x"}},
    {"--nnodes 0", {"--nnodes='0'"}},
    {"--run_path", {"--run_path", "python -u FILE"}},
    {"--logs_specs mine", {"--logs_specs='mine'", "default"}},
    {"--event_log_handler mine", {"--event_log_handler='mine'", "console"}},
    {"--restart_delay 3 --restart_delay_max 2",
        {"--restart_delay_max", "--restart_delay;"}},
    {"--crash_loop 3", {"--crash_loop='3'", "N:SECONDS"}},
    {"--crash_loop 0:3", {"--crash_loop='0:3'"}},
    {"--crash_loop 3:0", {"--crash_loop='3:0'"}},
    {"--crash_loop x:1", {"--crash_loop='x:1'"}},
    {"--crash_loop 3:", {"--crash_loop='3:'"}},
    {"--crash_loop 11111111111111111111:1", {"--crash_loop='1"}},
    {"--signals_to_handle SIGFOO", {"'SIGFOO' is no signal"}},
    {"--signals_to_handle TERM,", {"'' is no signal"}},
    {"--signals_to_handle TERM,,INT", {"'' is no signal"}},
    {"--signals_to_handle SIG", {"'SIG' is no signal"}},
    {"--signals_to_handle sigterm", {"'sigterm' is no signal"}},
    {"--signals_to_handle TER", {"'TER' is no signal"}},
    {"--signals_to_handle SIGSIGTERM", {"'SIGSIGTERM' is no signal"}},
    {"--signals_to_handle 15", {"'15' is no signal"}},
    {"--signals_to_handle KILL", {"SIGKILL cannot be handled"}},
    {"--signals_to_handle SIGTERM,SIGSTOP", {"SIGSTOP cannot be handled"}},
    {"--signals_to_handle SIGCHLD", {"SIGCHLD cannot be handled"}},
    {"--signals_to_handle SIGSEGV", {"SIGSEGV cannot be handled"}},
    {"-r 4", {"--redirects='4'", "RANK:N"}},
    {"-r 10:1", {"--redirects='10:1'", "no local rank 10"}},
    {"-t 0:1,1:1", {"--tee='0:1,1:1'", "no local rank 1, they go from 0 to 0"}},
    {"--local_ranks_filter 1", {"--local_ranks_filter='1'", "no local rank 1"}},
    {"--local_ranks_filter a", {"--local_ranks_filter='a'", "0,2"}},
    {"--omp_num_threads 0", {"--omp_num_threads='0'", "cores or unset"}},
    {"--omp_num_threads all", {"--omp_num_threads='all'"}},
};

START_TEST(mistake_is_named)
{
    ck_assert_int_eq(build(bad[_i].line), -EINVAL);
    for (int i = 0; i < 2 && bad[_i].named[i] != NULL; i++)
        ck_assert_msg(strstr(e.msg, bad[_i].named[i]) != NULL, "'%s' in '%s'",
            bad[_i].named[i], e.msg);
}
END_TEST

START_TEST(mistake_in_a_variable_names_it)
{
    setenv("PET_NPROC_PER_NODE", "foo", 1);
    ck_assert_int_eq(build(""), -EINVAL);
    ck_assert_ptr_nonnull(strstr(e.msg, "PET_NPROC_PER_NODE: "));
    unsetenv("PET_NPROC_PER_NODE");
    tear_down();
    setenv("PET_TEE", "9", 1);
    ck_assert_int_eq(build(""), -EINVAL);
    ck_assert_ptr_nonnull(strstr(e.msg, "PET_TEE='9'"));
}
END_TEST

static const struct {
    const char *line;
    const char *word; /* NULL: accepted in silence */
} idle[] = {
    {"--monitor_interval 5", "--monitor_interval has no effect"},
    {"--start_method fork", "--start_method has no effect"},
    {"--event_log_handler console", "--report FILE"},
    {"--event_log_handler null", NULL},
    {"--logs_specs default", NULL},
    {"--use_env", NULL},
    {"--node_rank 0", NULL},
};

START_TEST(what_has_no_effect_is_accepted)
{
    built(idle[_i].line);
    if (idle[_i].word == NULL)
        ck_assert_str_eq(log_text, "");
    else
        ck_assert_msg(strstr(log_text, idle[_i].word) != NULL, "%s", log_text);
    ck_assert_msg(
        strchr(log_text, '\n') == strrchr(log_text, '\n'), "%s", log_text);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("job_build");

    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, defaults);
    tcase_add_test(t, restarts_and_stops);
    tcase_add_test(t, long_delay_raises_its_own_maximum);
    tcase_add_test(t, who_may_take_part_and_how_long_to_wait_for_it);
    tcase_add_test(t, secret_of_the_environment);
    tcase_add_test(t, grace_of_the_environment);
    tcase_add_test(t, signals);
    tcase_add_test(t, logs);
    tcase_add_test(t, variables_of_torchrun);
    tcase_add_test(t, omp_threads);
    tcase_add_test(t, virtual_local_rank_needs_a_device_each);
    tcase_add_test(t, devices_are_shared_by_no_more_than_was_said);
    tcase_add_test(t, nccl_has_a_port_unless_the_user_says_otherwise);
    tcase_add_loop_test(t, mistake_is_named, 0, LEN(bad));
    tcase_add_test(t, mistake_in_a_variable_names_it);
    tcase_add_loop_test(t, what_has_no_effect_is_accepted, 0, LEN(idle));
    return unit_run("job_build", t);
}
