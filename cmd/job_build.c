/* See job_build.h. */
#include "cmd/job_build.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/binding.h"
#include "agent/devices.h"
#include "agent/lifecycle.h"
#include "agent/signal_names.h"
#include "agent/worker_vars.h"
#include "cmd/job_file.h"
#include "cmd/log_spec.h"
#include "rendezvous/access.h"
#include "rendezvous/base/log.h"
#include "rendezvous/base/text.h"
#include "rendezvous/worker_env.h"

/* A variable that is no option's; NULL if it is empty. */
static const char *env_text(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && text[0] != '\0' ? text : NULL;
}

/* --- What is refused, or accepted with a word --------------------------- */

static int refuse_what_is_python(const struct options *o, struct err *e)
{
    if (o->is_run_path)
        return err_set(e, -EINVAL,
            "%s: crun has no interpreter to run a file in; leave it out, and "
            "the file runs as python -u FILE, which differs only in that an "
            "exception is not written to the error file without @record",
            options_where(o, &o->is_run_path).text);
    if (o->logs_specs != NULL && strcmp(o->logs_specs, "default") != 0)
        return err_set(e, -EINVAL,
            "%s='%s': that would be a Python plug-in; only default is there",
            options_where(o, &o->logs_specs).text, o->logs_specs);
    if (o->event_log_handler != NULL &&
        strcmp(o->event_log_handler, "null") != 0 &&
        strcmp(o->event_log_handler, "console") != 0)
        return err_set(e, -EINVAL,
            "%s='%s': that would be a Python plug-in; expected null or "
            "console",
            options_where(o, &o->event_log_handler).text, o->event_log_handler);
    return 0;
}

static int read_store_allow(const struct options *o, struct err *e)
{
    struct err why;
    int rc = access_check_cidrs(o->store_allow, &why);

    return rc < 0 ? err_set(e, rc, "%s: %s",
                        options_where(o, &o->store_allow).text, why.msg)
                  : 0;
}

static int refuse_file_timer(struct err *e)
{
    const char *timer = env_text("TORCHELASTIC_ENABLE_FILE_TIMER");

    if (timer == NULL || strcmp(timer, "1") != 0)
        return 0;
    return err_set(e, -ENOTSUP,
        "TORCHELASTIC_ENABLE_FILE_TIMER=1: crun has no file timers; unset it, "
        "and let the program set its own deadlines (the timeout of "
        "init_process_group)");
}

static void tell_what_has_no_effect(const struct options *o)
{
    if (o->event_log_handler != NULL &&
        strcmp(o->event_log_handler, "console") == 0)
        log_warn("options",
            "%s=console has no effect; --report FILE writes what happened",
            options_where(o, &o->event_log_handler).text);
    if (o->monitor_interval != OPTIONS_UNSET)
        log_warn("options",
            "%s has no effect: crun does not poll, it sees an exit at once",
            options_where(o, &o->monitor_interval).text);
    if (o->start_method != NULL)
        log_warn("options",
            "%s has no effect: workers are always executed anew",
            options_where(o, &o->start_method).text);
    if (env_text("TORCHELASTIC_HEALTH_CHECK_PORT") != NULL)
        log_warn("options",
            "TORCHELASTIC_HEALTH_CHECK_PORT has no effect: crun has no health "
            "check server");
}

/* --- Restarts and stops ------------------------------------------------- */

static int read_restarts(
    struct job *job, const struct options *o, struct err *e)
{
    bool has_max =
        options_source(o, &o->restart_delay_max) != OPTION_FROM_DEFAULT;
    int64_t max = o->restart_delay_max;

    if (max < o->restart_delay && has_max)
        return err_set(e, -EINVAL,
            "%s is less than %s; expected at least as much",
            options_where(o, &o->restart_delay_max).text,
            options_where(o, &o->restart_delay).text);
    job->max_restarts = (int)o->max_restarts;
    job->restart_delay_ms = (uint64_t)o->restart_delay;
    job->restart_delay_max_ms =
        (uint64_t)(max < o->restart_delay ? o->restart_delay : max);
    return 0;
}

/* N:SECONDS */
static int read_crash_loop(
    struct job *job, const struct options *o, struct err *e)
{
    const char *text = o->crash_loop;
    const char *colon;
    char count_text[16];
    int64_t count, ms;

    if (text == NULL)
        return 0;
    colon = strchrnul(text, ':');
    snprintf(count_text, sizeof(count_text), "%.*s", (int)(colon - text), text);
    if (colon - text >= (ptrdiff_t)sizeof(count_text) || *colon != ':' ||
        text_to_i64(count_text, &count) < 0 || count < 1 || count > INT32_MAX ||
        option_parse_seconds(colon + 1, &ms) < 0 || ms < 1)
        return err_set(e, -EINVAL,
            "%s='%s': expected N:SECONDS, as in 3:10, both above 0",
            options_where(o, &o->crash_loop).text, text);
    job->crash_loop_count = (int)count;
    job->crash_loop_ms = (uint64_t)ms;
    return 0;
}

static int read_grace(struct job *job, const struct options *o, struct err *e)
{
    static const char name[] = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
    const char *text = env_text(name);
    int64_t ms = LC_GRACE_DEFAULT_MS;

    if (o->shutdown_timeout != OPTIONS_UNSET)
        ms = o->shutdown_timeout;
    else if (text != NULL && (option_parse_seconds(text, &ms) < 0 || ms < 0))
        return err_set(
            e, -EINVAL, "%s='%s': expected seconds, 0 or more", name, text);
    job->grace_ms = (uint64_t)ms;
    job->failure_grace_ms = (uint64_t)o->failure_grace;
    return 0;
}

/* The number of a signal by its name of len bytes, with or without SIG; 0 if
 * there is none. */
static int signal_number(const char *name, size_t len)
{
    if (len > 3 && strncmp(name, "SIG", 3) == 0) {
        name += 3;
        len -= 3;
    }
    for (int sig = 1; sig < SIGRTMIN; sig++) {
        const char *known = signal_name(sig);

        if (strncmp(known, "SIG", 3) == 0 && strlen(known + 3) == len &&
            strncmp(known + 3, name, len) == 0)
            return sig;
    }
    return 0;
}

/* Signals that nobody can handle, that are a fault of crun's own, or that it
 * needs itself. */
static bool is_not_for_users(int sig)
{
    static const int sigs[] = {SIGKILL, SIGSTOP, SIGILL, SIGTRAP, SIGABRT,
        SIGBUS, SIGFPE, SIGSEGV, SIGSYS, SIGCHLD, SIGPIPE, SIGXFSZ};

    for (size_t i = 0; i < sizeof(sigs) / sizeof(sigs[0]); i++)
        if (sig == sigs[i])
            return true;
    return false;
}

static int read_signals(struct job *job, const struct options *o, struct err *e)
{
    const struct option_where where = options_where(o, &o->signals_to_handle);
    const char *at = o->signals_to_handle;
    sigset_t stop;

    sigemptyset(&stop);
    for (;;) {
        size_t len;
        int sig;

        at += strspn(at, " ");
        len = strcspn(at, ", ");
        sig = signal_number(at, len);
        if (sig == 0)
            return err_set(e, -EINVAL,
                "%s: '%.*s' is no signal; expected names like SIGTERM,SIGUSR1",
                where.text, (int)len, at);
        if (is_not_for_users(sig))
            return err_set(e, -EINVAL, "%s: %s cannot be handled", where.text,
                signal_name(sig));
        sigaddset(&stop, sig);
        at += len;
        at += strspn(at, " ");
        if (*at == '\0')
            break;
        if (*at != ',')
            return err_set(e, -EINVAL,
                "%s='%s': expected names with commas between them", where.text,
                o->signals_to_handle);
        at++;
    }
    inherited_set_stop(&job->inherited, &stop);
    job->signals_text = o->signals_to_handle;
    return 0;
}

/* --- Logs --------------------------------------------------------------- */

/* Why a list of local ranks was not understood. */
static int list_failed(struct err *e, int rc, struct option_where where,
    const char *text, const char *form, long long rank, int nproc)
{
    if (rc == -EINVAL)
        return err_set(e, rc, "%s='%s': expected %s", where.text, text, form);
    if (rc == -ERANGE)
        return err_set(e, -EINVAL,
            "%s='%s': there is no local rank %lld, they go from 0 to %d",
            where.text, text, rank, nproc - 1);
    return err_set(e, rc, "out of memory");
}

static int read_streams(const struct options *o, const char *const *field,
    int nproc, unsigned char **out, struct err *e)
{
    long long rank = 0;
    int rc = log_spec_streams(*field, nproc, out, &rank);

    return rc == 0 ? 0
                   : list_failed(e, rc, options_where(o, field), *field,
                         "0, 1, 2 or 3 for all local ranks, or "
                         "RANK:N,RANK:N with such an N",
                         rank, nproc);
}

static int read_needles(
    const char *text, const char *const **out, struct err *e)
{
    if (text != NULL && log_spec_needles(text, out) < 0)
        return err_set(e, -ENOMEM, "out of memory");
    return 0;
}

static int read_logs(struct job *job, const struct options *o, struct err *e)
{
    struct log_options *log = &job->log;
    long long rank = 0;
    int rc;

    log->dir = o->log_dir;
    log->has_timestamps = o->has_timestamps;
    log->is_folded = o->is_folded;
    log->prefix = o->log_line_prefix_template;
    if (log->prefix == NULL)
        log->prefix = env_text("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
    rc = read_streams(o, &o->redirects, job->nproc, &log->redirects, e);
    if (rc == 0)
        rc = read_streams(o, &o->tee, job->nproc, &log->tees, e);
    if (rc == 0)
        rc = read_needles(o->duplicate_stdout_filters, &log->stdout_needles, e);
    if (rc == 0)
        rc = read_needles(o->duplicate_stderr_filters, &log->stderr_needles, e);
    if (rc < 0 || o->local_ranks_filter == NULL)
        return rc;
    rc = log_spec_ranks(o->local_ranks_filter, job->nproc, &log->shown, &rank);
    return rc == 0
               ? 0
               : list_failed(e, rc, options_where(o, &o->local_ranks_filter),
                     o->local_ranks_filter, "local ranks, as in 0,2", rank,
                     job->nproc);
}

/* --- Threads and CPUs --------------------------------------------------- */

static int read_omp(struct job *job, const struct options *o, struct err *e)
{
    const char *text = o->omp_num_threads;
    int64_t n;

    if (text == NULL) {
        job->omp = JOB_OMP_TORCHRUN;
        return 0;
    }
    if (strcmp(text, "unset") == 0) {
        job->omp = JOB_OMP_UNSET;
        return 0;
    }
    job->omp = JOB_OMP_NUMBER;
    if (strcmp(text, "cores") == 0) {
        int cpus = devices_nproc("cpu", 1, e);

        if (cpus < 0)
            return cpus;
        job->omp_threads = cpus > job->nproc ? cpus / job->nproc : 1;
        return 0;
    }
    if (text_to_i64(text, &n) < 0 || n < 1 || n > INT32_MAX)
        return err_set(e, -EINVAL,
            "%s='%s': expected a number from 1, cores or unset",
            options_where(o, &o->omp_num_threads).text, text);
    job->omp_threads = (int)n;
    return 0;
}

static int read_binding(struct job *job, struct job_parts *parts,
    const struct options *o, struct err *e)
{
    enum binding_mode mode;
    int rc;

    if (o->numa_binding == NULL)
        return 0;
    if (!binding_mode_from_name(o->numa_binding, &mode))
        return err_set(e, -EINVAL, "%s='%s': no such mode",
            options_where(o, &o->numa_binding).text, o->numa_binding);
    rc = binding_create(&parts->binding, mode, job->nproc, job->share_gpu, e);
    job->binding = parts->binding;
    /* Not a mistake in an option, whatever it is called. */
    return rc == -EINVAL ? -ENODEV : rc;
}

/* --- Devices ------------------------------------------------------------ */

/* devices_nproc() takes its text for the command line's. */
static int read_nproc(struct job *job, const struct options *o, struct err *e)
{
    enum option_source source = options_source(o, &o->nproc_per_node);
    struct err why = {0};

    job->nproc = devices_nproc(o->nproc_per_node, job->share_gpu, &why);
    if (job->nproc > 0)
        return 0;
    if (source == OPTION_FROM_COMMAND || source == OPTION_FROM_DEFAULT)
        return err_set(e, job->nproc, "%s", why.msg);
    return err_set(e, job->nproc, "%s: %s",
        options_where(o, &o->nproc_per_node).text, why.msg);
}

/* Each worker will be given a device of the list, or choose its own; so there
 * is one for the last. An empty list is for jobs that shall use no device. */
static int check_visible(
    const struct job *job, const struct options *o, struct err *e)
{
    const char *list = worker_vars_find(job->env, ENV_CUDA_VISIBLE_DEVICES);
    const void *field = &o->is_virtual_local_rank;
    struct err why = {0};
    char *device = NULL;
    int rc;

    if (!job->is_virtual_local_rank) {
        if (job->share_gpu == 1 || list == NULL || list[0] == '\0')
            return 0;
        field = &o->share_gpu;
    }
    rc = devices_visible(list, job->nproc - 1, job->share_gpu, &device, &why);
    free(device);
    return rc < 0 ? err_set(e, rc == -EINVAL ? -ENODEV : rc, "%s: %s",
                        options_where(o, field).text, why.msg)
                  : 0;
}

/* The default port of NCCL's service for queries would be the same for all
 * jobs of this machine. */
static bool wants_ras_port(const struct job *job)
{
    const char *enabled = worker_vars_find(job->env, ENV_NCCL_RAS_ENABLE);

    if (worker_vars_find(job->env, ENV_NCCL_RAS_ADDR) != NULL ||
        (enabled != NULL && strcmp(enabled, "0") == 0))
        return false;
    return job->share_gpu > 1 || access("/dev/nvidiactl", F_OK) == 0;
}

/* --- All of it ---------------------------------------------------------- */

/* What needs no look at this machine; so mistakes are told at once. */
static int read_texts(struct job *job, struct job_parts *parts,
    const struct options *o, struct err *e)
{
    int rc;

    rc = refuse_what_is_python(o, e);
    if (rc == 0)
        rc = rdzv_options_read(&parts->rdzv, o, e);
    if (rc == 0)
        rc = read_restarts(job, o, e);
    if (rc == 0)
        rc = read_crash_loop(job, o, e);
    if (rc == 0)
        rc = read_grace(job, o, e);
    if (rc == 0)
        rc = read_signals(job, o, e);
    if (rc == 0 && o->store_allow != NULL)
        rc = read_store_allow(o, e);
    if (rc == 0)
        rc = refuse_file_timer(e);
    return rc;
}

static void fill_in(
    struct job *job, const struct job_parts *parts, const struct options *o)
{
    const char *shared = env_text("TORCH_DISABLE_SHARE_RDZV_TCP_STORE");
    const char *token_path =
        o->token_file != NULL ? o->token_file : env_text("CRUN_TOKEN_FILE");

    job->role = o->role;
    job->master_addr = parts->rdzv.master_addr;
    job->master_port = parts->rdzv.master_port;
    job->run_id = parts->rdzv.run_id;
    job->nodes = (struct job_nodes){.min = parts->rdzv.min_nodes,
        .max = parts->rdzv.max_nodes,
        .is_static = parts->rdzv.is_static,
        .node_rank = parts->rdzv.node_rank,
        .is_host = parts->rdzv.is_host,
        .host = parts->rdzv.endpoint_host,
        .port = parts->rdzv.endpoint_port,
        .local_addr = o->local_addr,
        .join_timeout_ms = 1000 * (uint64_t)(parts->rdzv.is_static
                                                 ? parts->rdzv.timeout_s
                                                 : parts->rdzv.join_timeout_s),
        .last_call_ms = 1000 * (uint64_t)parts->rdzv.last_call_s,
        .keep_alive_ms = 1000 * (uint64_t)parts->rdzv.keep_alive_s,
        .keep_alive_attempts = parts->rdzv.keep_alive_attempts,
        .coordinator_timeout_ms = (uint64_t)o->coordinator_timeout,
        .token_path = token_path,
        .store_allow = o->store_allow};
    job->has_agent_store =
        !o->has_no_agent_store && (shared == NULL || strcmp(shared, "1") != 0);
    job->is_exit_cause = strcmp(o->exit_code, "cause") == 0;
    job->is_virtual_local_rank = o->is_virtual_local_rank;
    job->share_gpu = (int)o->share_gpu;
    job->report_path = o->report;
    job->parent_error_file = env_text(ENV_ERROR_FILE);
}

int job_build(struct job *job, struct job_parts *parts, const struct options *o,
    struct err *e)
{
    int rc;

    rc = read_texts(job, parts, o, e);
    if (rc < 0)
        return rc;
    fill_in(job, parts, o);
    parts->env = job_env_build(o->file != NULL ? &o->file->env : NULL, environ);
    if (parts->env == NULL)
        return err_set(e, -ENOMEM, "out of memory");
    job->env = parts->env;
    job->has_nccl_ras_port = wants_ras_port(job);
    rc = read_nproc(job, o, e);
    if (rc == 0)
        rc = read_logs(job, o, e);
    if (rc == 0)
        rc = read_omp(job, o, e);
    if (rc == 0)
        rc = check_visible(job, o, e);
    if (rc == 0)
        rc = read_binding(job, parts, o, e);
    if (rc < 0)
        return rc;
    tell_what_has_no_effect(o);
    return 0;
}

void job_parts_fini(struct job_parts *parts, struct job *job)
{
    free(job->log.redirects);
    free(job->log.tees);
    free(job->log.shown);
    free((void *)job->log.stdout_needles);
    free((void *)job->log.stderr_needles);
    job->log = (struct log_options){0};
    binding_destroy(parts->binding);
    free(parts->env);
    *parts = (struct job_parts){0};
}
