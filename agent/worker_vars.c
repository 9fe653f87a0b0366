/* See worker_vars.h. */
#include "agent/worker_vars.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/job.h"
#include "rendezvous/worker_env.h"

/* Names and values, as text, of one worker. */
struct setting {
    const char *name;
    const char *text; /* NULL: number */
    int number;
};

#define SETTINGS_MAX 32

/* Where texts of settings are written. */
struct texts {
    char nccl_hostid[32];
    char nccl_timestamp[48];
};

const char *worker_vars_find(char *const *base, const char *name)
{
    size_t n = strlen(name);

    for (; *base != NULL; base++)
        if (strncmp(*base, name, n) == 0 && (*base)[n] == '=')
            return *base + n + 1;
    return NULL;
}

static const char *choose_omp(const struct job *job, char text[16])
{
    if (job->omp == JOB_OMP_UNSET ||
        worker_vars_find(job->env, ENV_OMP_NUM_THREADS) != NULL ||
        (job->omp == JOB_OMP_TORCHRUN && job->nproc == 1))
        return NULL;
    snprintf(
        text, 16, "%d", job->omp == JOB_OMP_TORCHRUN ? 1 : job->omp_threads);
    return text;
}

struct worker_vars worker_vars_of_job(
    const struct job *job, int local_rank, char omp_text[16])
{
    return (struct worker_vars){.rank = local_rank,
        .local_rank = job->is_virtual_local_rank ? 0 : local_rank,
        .world_size = job->nproc,
        .local_world_size = job->nproc,
        .group_world_size = 1,
        .role_rank = local_rank,
        .role_world_size = job->nproc,
        .max_restarts = job->max_restarts,
        .role = job->role,
        .master_addr = job->master_addr,
        .master_port = job->master_port,
        .has_agent_store = job->has_agent_store,
        .signals_text = job->signals_text,
        .share_gpu = job->share_gpu,
        .omp_num_threads = choose_omp(job, omp_text)};
}

/* Whether a value that crun may have set is an outer crun's, not the user's. */
static bool is_ours(const char *value, const char *mark)
{
    return value != NULL && strncmp(value, mark, strlen(mark)) == 0;
}

#define HOSTID_MARK "crun-rank-"
#define TIMESTAMP_MARK "[rank "

/*
 * What NCCL needs to take several ranks on one device. From 2.30.3 on there is
 * a switch for it; earlier ones refuse ranks of one host, but not those of
 * different hosts, which then can only use sockets. Whoever sets the switch
 * has such a version and is not kept from what it does within a host.
 */
static size_t list_sharing(const struct worker_vars *v, char *const *base,
    struct texts *texts, struct setting *s)
{
    const char *hostid = worker_vars_find(base, ENV_NCCL_HOSTID);
    bool has_outer = is_ours(hostid, HOSTID_MARK);
    size_t n = 0;

    s[n++] = (struct setting){ENV_SHARE_GPU, NULL, v->share_gpu};
    if (!has_outer &&
        worker_vars_find(base, ENV_NCCL_MULTI_RANK_GPU_ENABLE) != NULL)
        return n;
    s[n++] = (struct setting){ENV_NCCL_MULTI_RANK_GPU_ENABLE, NULL, 1};
    snprintf(texts->nccl_hostid, sizeof(texts->nccl_hostid), HOSTID_MARK "%d",
        v->rank);
    if (hostid == NULL || has_outer)
        s[n++] = (struct setting){ENV_NCCL_HOSTID, texts->nccl_hostid, 0};
    if (worker_vars_find(base, ENV_NCCL_NET) == NULL)
        s[n++] = (struct setting){ENV_NCCL_NET, "Socket", 0};
    return n;
}

/*
 * NCCL's own lines name host and device, but no rank. The time that it can put
 * in front of them (from 2.26 on) is a text of our choice.
 */
static size_t list_debug(const struct worker_vars *v, char *const *base,
    struct texts *texts, struct setting *s)
{
    const char *level = worker_vars_find(base, ENV_NCCL_DEBUG);
    const char *format =
        worker_vars_find(base, ENV_NCCL_DEBUG_TIMESTAMP_FORMAT);
    size_t n = 0;

    if (level == NULL || level[0] == '\0')
        return 0;
    if (!is_ours(format, TIMESTAMP_MARK) &&
        (format != NULL ||
            worker_vars_find(base, ENV_NCCL_DEBUG_TIMESTAMP_LEVELS) != NULL))
        return 0;
    snprintf(texts->nccl_timestamp, sizeof(texts->nccl_timestamp),
        TIMESTAMP_MARK "%d] [%%F %%T] ", v->rank);
    s[n++] = (struct setting){
        ENV_NCCL_DEBUG_TIMESTAMP_FORMAT, texts->nccl_timestamp, 0};
    s[n++] = (struct setting){ENV_NCCL_DEBUG_TIMESTAMP_LEVELS, "ALL", 0};
    return n;
}

static size_t list_settings(const struct worker_vars *v, char *const *base,
    struct texts *texts, struct setting s[SETTINGS_MAX])
{
    size_t n = 0;

    s[n++] = (struct setting){ENV_RANK, NULL, v->rank};
    s[n++] = (struct setting){ENV_LOCAL_RANK, NULL, v->local_rank};
    s[n++] = (struct setting){ENV_WORLD_SIZE, NULL, v->world_size};
    s[n++] = (struct setting){ENV_LOCAL_WORLD_SIZE, NULL, v->local_world_size};
    s[n++] = (struct setting){ENV_GROUP_RANK, NULL, v->group_rank};
    s[n++] = (struct setting){ENV_GROUP_WORLD_SIZE, NULL, v->group_world_size};
    s[n++] = (struct setting){ENV_ROLE_NAME, v->role, 0};
    s[n++] = (struct setting){ENV_ROLE_RANK, NULL, v->role_rank};
    s[n++] = (struct setting){ENV_ROLE_WORLD_SIZE, NULL, v->role_world_size};
    s[n++] = (struct setting){ENV_MASTER_ADDR, v->master_addr, 0};
    s[n++] = (struct setting){ENV_MASTER_PORT, NULL, v->master_port};
    s[n++] = (struct setting){ENV_RESTART_COUNT, NULL, v->restart_count};
    s[n++] = (struct setting){ENV_MAX_RESTARTS, NULL, v->max_restarts};
    s[n++] = (struct setting){ENV_RUN_ID, v->run_id, 0};
    s[n++] = (struct setting){
        ENV_USE_AGENT_STORE, v->has_agent_store ? "True" : "False", 0};
    s[n++] = (struct setting){ENV_ERROR_FILE, v->error_file, 0};
    s[n++] = (struct setting){ENV_SIGNALS_TO_HANDLE, v->signals_text, 0};
    if (worker_vars_find(base, ENV_NCCL_ASYNC_ERROR_HANDLING) == NULL)
        s[n++] = (struct setting){ENV_NCCL_ASYNC_ERROR_HANDLING, NULL, 1};
    if (v->omp_num_threads != NULL)
        s[n++] = (struct setting){ENV_OMP_NUM_THREADS, v->omp_num_threads, 0};
    if (v->visible_devices != NULL)
        s[n++] =
            (struct setting){ENV_CUDA_VISIBLE_DEVICES, v->visible_devices, 0};
    if (v->share_gpu > 1)
        n += list_sharing(v, base, texts, s + n);
    if (v->nccl_ras_addr != NULL)
        s[n++] = (struct setting){ENV_NCCL_RAS_ADDR, v->nccl_ras_addr, 0};
    n += list_debug(v, base, texts, s + n);
    if (v->agent != NULL)
        s[n++] = (struct setting){ENV_AGENT, v->agent, 0};
    if (v->node_addr != NULL)
        s[n++] = (struct setting){ENV_NODE_ADDR, v->node_addr, 0};
    return n;
}

static bool is_overridden(const char *entry, const struct setting *s, size_t n)
{
    /* A launcher around this one has an agent of its own. */
    if (strncmp(entry, ENV_AGENT "=", sizeof(ENV_AGENT)) == 0 ||
        strncmp(entry, ENV_NODE_ADDR "=", sizeof(ENV_NODE_ADDR)) == 0)
        return true;
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(s[i].name);

        if (strncmp(entry, s[i].name, len) == 0 && entry[len] == '=')
            return true;
    }
    return false;
}

static int print_setting(char *at, size_t size, const struct setting *s)
{
    return s->text != NULL ? snprintf(at, size, "%s=%s", s->name, s->text)
                           : snprintf(at, size, "%s=%d", s->name, s->number);
}

char **worker_vars_build(const struct worker_vars *v, char *const *base)
{
    struct setting s[SETTINGS_MAX];
    struct texts texts;
    size_t n = list_settings(v, base, &texts, s);
    size_t nbase = 0;
    size_t text_len = 0;
    size_t k = 0;
    char **env;
    char *text;

    while (base[nbase] != NULL)
        nbase++;
    for (size_t i = 0; i < n; i++)
        text_len += (size_t)print_setting(NULL, 0, &s[i]) + 1;
    /* The pointers first, then the text of the settings. */
    env = malloc((nbase + n + 1) * sizeof(*env) + text_len);
    if (env == NULL)
        return NULL;
    text = (char *)(env + nbase + n + 1);
    for (size_t i = 0; i < nbase; i++)
        if (!is_overridden(base[i], s, n))
            env[k++] = base[i];
    for (size_t i = 0; i < n; i++) {
        env[k++] = text;
        text += print_setting(text, text_len, &s[i]) + 1;
    }
    env[k] = NULL;
    return env;
}
