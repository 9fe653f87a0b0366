/*
 * coll_init(): who this process is, from the environment; the store; the
 * choice of the back end; the default group. The default group is the only
 * state of the library that is not reached from a handle.
 */
#include "backend.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/text.h"
#include "rendezvous/worker_env.h"

#define ENV_TIMEOUT "COLL_TIMEOUT"
#define ENV_BACKEND "COLL_BACKEND"

#define DEFAULT_TIMEOUT_MS ((int64_t)30 * 60 * 1000)

static struct {
    struct coll_group *group; /* NULL while not initialised */
    int local_rank;
} job;

/* What the environment says. */
struct worker {
    int rank;
    int world_size;
    int local_rank;
    int restart_count;
    const char *master_addr;
    int master_port;
};

/*
 * Reads an integer variable that lies in [min, max]. Where it is not set:
 * fallback, or an error if that is below min.
 */
static coll_status_t env_int(
    const char *name, int64_t min, int64_t max, int64_t fallback, int *out)
{
    const char *text = getenv(name);
    int64_t value = fallback;

    if (text == NULL && fallback < min)
        return coll_fail(COLL_ERR_ENVIRONMENT,
            "coll_init: %s is not set; start the program with crun, or set "
            "the variables of a worker by hand",
            name);
    if (text != NULL &&
        (text_to_i64(text, &value) < 0 || value < min || value > max))
        return coll_fail(COLL_ERR_ENVIRONMENT,
            "coll_init: %s=\"%s\" is not an integer from %" PRId64
            " to %" PRId64,
            name, text, min, max);
    *out = (int)value;
    return COLL_OK;
}

/* Ranks of several nodes: refused before anybody waits for the others. */
static coll_status_t check_one_node(const struct worker *w)
{
    int nodes = 1;
    int local_size = 1;
    coll_status_t status = env_int(ENV_GROUP_WORLD_SIZE, 1, INT_MAX, 1, &nodes);

    if (status == COLL_OK)
        status = env_int(
            ENV_LOCAL_WORLD_SIZE, 1, INT_MAX, w->world_size, &local_size);
    if (status != COLL_OK)
        return status;
    if (nodes > 1)
        return coll_fail(COLL_ERR_UNSUPPORTED,
            "coll_init: the job has %d nodes (" ENV_GROUP_WORLD_SIZE
            "); this version serves the processes of one node",
            nodes);
    if (local_size != w->world_size)
        return coll_fail(COLL_ERR_UNSUPPORTED,
            "coll_init: %d of %d ranks run on this node (" ENV_LOCAL_WORLD_SIZE
            "); this version serves the processes of one node",
            local_size, w->world_size);
    return COLL_OK;
}

static coll_status_t read_worker(struct worker *w)
{
    coll_status_t status;
    bool is_alone;

    if (getenv(ENV_WORLD_SIZE) == NULL && getenv(ENV_RANK) == NULL)
        return coll_fail(COLL_ERR_ENVIRONMENT,
            "coll_init: RANK and WORLD_SIZE are not set: start the program "
            "with crun (crun --nproc_per_node=N program), or set "
            "WORLD_SIZE=1 to run it alone");
    status = env_int(ENV_WORLD_SIZE, 1, INT_MAX, 0, &w->world_size);
    if (status != COLL_OK)
        return status;
    is_alone = w->world_size == 1;
    status =
        env_int(ENV_RANK, 0, w->world_size - 1, is_alone ? 0 : -1, &w->rank);
    if (status == COLL_OK)
        status = env_int(ENV_LOCAL_RANK, 0, INT_MAX, w->rank, &w->local_rank);
    if (status == COLL_OK)
        status = env_int(ENV_RESTART_COUNT, 0, INT_MAX, 0, &w->restart_count);
    if (status != COLL_OK || is_alone)
        return status;
    status = check_one_node(w);
    if (status != COLL_OK)
        return status;
    w->master_addr = getenv(ENV_MASTER_ADDR);
    if (w->master_addr == NULL || w->master_addr[0] == '\0')
        return coll_fail(COLL_ERR_ENVIRONMENT,
            "coll_init: " ENV_MASTER_ADDR " is not set; it names the host of "
            "the store where %d ranks meet",
            w->world_size);
    return env_int(ENV_MASTER_PORT, 1, 65535, 0, &w->master_port);
}

/* Seconds with up to three significant decimals, more are rounded up:
 * strtod() would follow the locale and accept "inf". */
static bool parse_seconds(const char *text, int64_t *ms)
{
    const int64_t max_s = INT64_MAX / 2000;
    int64_t seconds = 0;
    int64_t fraction = 0;
    int64_t scale = 100;
    const char *at = text;

    for (; *at >= '0' && *at <= '9'; at++)
        seconds = seconds < max_s / 10 ? seconds * 10 + (*at - '0') : max_s;
    if (at == text)
        return false;
    if (*at == '.') {
        const char *first = ++at;
        bool is_more = false;

        for (; *at >= '0' && *at <= '9'; at++, scale /= 10) {
            fraction += (*at - '0') * scale;
            is_more |= scale == 0 && *at != '0';
        }
        if (at == first)
            return false;
        fraction += is_more;
    }
    *ms = seconds * 1000 + fraction;
    return *at == '\0' && *ms > 0;
}

/* A variable that is set but empty counts as not set. */
static const char *env_option(const char *name)
{
    const char *text = getenv(name);

    return text == NULL || text[0] == '\0' ? NULL : text;
}

static coll_status_t choose_timeout(
    const coll_options_t *options, int64_t *timeout_ms)
{
    const char *text = env_option(ENV_TIMEOUT);

    *timeout_ms = DEFAULT_TIMEOUT_MS;
    if (options->timeout_ms < 0)
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_init: timeout_ms is %" PRId64 ", it must not be negative",
            options->timeout_ms);
    if (options->timeout_ms > 0) {
        *timeout_ms = options->timeout_ms;
    } else if (text != NULL && !parse_seconds(text, timeout_ms)) {
        return coll_fail(COLL_ERR_ENVIRONMENT,
            "coll_init: " ENV_TIMEOUT "=\"%s\" is not a positive number of "
            "seconds",
            text);
    }
    return COLL_OK;
}

static coll_status_t choose_backend(const coll_options_t *options,
    int world_size, const struct coll_backend **out)
{
    const char *name = options->backend;
    coll_status_t blame = COLL_ERR_ARGUMENT;
    char known[128];

    if (name == NULL) {
        name = env_option(ENV_BACKEND);
        blame = COLL_ERR_ENVIRONMENT;
    }
    if (name == NULL) {
        name = world_size == 1 ? "self" : "shm";
        blame = COLL_ERR_UNSUPPORTED;
    }
    *out = coll_backend_find(name);
    if (*out == NULL) {
        coll_backend_names(known, sizeof(known));
        return coll_fail(blame,
            "coll_init: there is no back end \"%s\"; known are: %s", name,
            known);
    }
    /* Before the store is asked, and before memory is taken. */
    return coll_backend_check_size(*out, world_size, blame);
}

static coll_status_t open_store(
    const struct worker *w, uint64_t deadline_ns, struct store_client **out)
{
    struct err e = {0};
    int rc = store_client_connect(
        out, w->master_addr, w->master_port, deadline_ns, &e);

    if (rc < 0)
        return coll_fail(rc == -ETIMEDOUT ? COLL_ERR_TIMEOUT : COLL_ERR_STORE,
            "coll_init: %s", e.msg);
    return COLL_OK;
}

coll_status_t coll_init(const coll_options_t *options)
{
    const coll_options_t defaults = COLL_OPTIONS_INIT;
    const struct coll_backend *backend = NULL;
    struct coll_boot boot = {0};
    struct worker w = {0};
    int64_t timeout_ms;
    char prefix[64];
    coll_status_t status;

    if (job.group != NULL)
        return coll_fail(COLL_ERR_STATE,
            "coll_init: already initialized; call coll_destroy() first");
    if (options == NULL)
        options = &defaults;
    status = choose_timeout(options, &timeout_ms);
    if (status == COLL_OK)
        status = read_worker(&w);
    if (status == COLL_OK)
        status = choose_backend(options, w.world_size, &backend);
    if (status != COLL_OK)
        return status;

    /* A store that outlives a restart must not mix the two attempts. */
    snprintf(prefix, sizeof(prefix), "coll/%d/", w.restart_count);
    boot.prefix = prefix;
    boot.deadline_ns = clock_deadline_ns(timeout_ms);
    if (w.world_size > 1)
        status = open_store(&w, boot.deadline_ns, &boot.store);
    if (status == COLL_OK)
        status = coll_group_create(
            &job.group, backend, w.rank, w.world_size, timeout_ms, &boot);
    store_client_close(boot.store);
    if (status == COLL_OK)
        job.local_rank = w.local_rank;
    return status;
}

bool coll_is_initialized(void)
{
    return job.group != NULL;
}

coll_status_t coll_destroy(void)
{
    if (job.group == NULL)
        return coll_fail(COLL_ERR_STATE,
            "coll_destroy: not initialized; call coll_init() first");
    coll_group_destroy(job.group);
    job.group = NULL;
    return COLL_OK;
}

int coll_local_rank(void)
{
    return job.group == NULL ? -1 : job.local_rank;
}

struct coll_group *coll_default_group(void)
{
    return job.group;
}
