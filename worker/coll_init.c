/*
 * coll_init(): the choice of the back end; the store, which rank 0 hosts if
 * nobody else does; the default group. See coll_job.h.
 */
#include "coll_job.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll_agent.h"
#include "coll_algorithm.h"
#include "coll_fds.h"
#include "coll_work.h"
#include "coll_worker.h"
#include "collective_gpu.h"
#include "gpu.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/worker_env.h"
#include "store.h"

#define ENV_TIMEOUT "COLL_TIMEOUT"
#define ENV_BACKEND "COLL_BACKEND"
#define ENV_DETERMINISTIC "COLL_DETERMINISTIC"
#define ENV_ALGORITHM "COLL_ALGORITHM"

#define NCCL "nccl"

#define DEFAULT_TIMEOUT_MS ((int64_t)30 * 60 * 1000)

static struct coll_job job;

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

static coll_status_t choose_order(
    const coll_options_t *options, bool *is_deterministic)
{
    const char *text = env_option(ENV_DETERMINISTIC);

    *is_deterministic =
        options->deterministic || (text != NULL && strcmp(text, "1") == 0);
    if (text == NULL || strcmp(text, "1") == 0 || strcmp(text, "0") == 0)
        return COLL_OK;
    return coll_fail(COLL_ERR_ENVIRONMENT,
        "coll_init: " ENV_DETERMINISTIC "=\"%s\" is neither 0 nor 1", text);
}

static coll_status_t choose_backend(const coll_options_t *options,
    const struct coll_worker *w, const struct coll_backend **out, bool *stages)
{
    const char *name = options->backend;
    coll_status_t blame = COLL_ERR_ARGUMENT;
    char known[128];

    if (name == NULL) {
        name = env_option(ENV_BACKEND);
        blame = COLL_ERR_ENVIRONMENT;
    }
    /* Beside a back end for what the host's ranks have to agree on. */
    *stages = name != NULL && strcmp(name, NCCL) == 0;
    if (*stages)
        name = NULL;
    if (name == NULL) {
        name = w->world_size == 1 ? "self" : w->is_one_node ? "shm" : "nodes";
        blame = COLL_ERR_UNSUPPORTED;
    }
    *out = coll_backend_find(name);
    if (*out == NULL) {
        coll_backend_names(known, sizeof(known));
        return coll_fail(blame,
            "coll_init: there is no back end \"%s\"; known are: %s, " NCCL,
            name, known);
    }
    /* Before the store is asked, and before memory is taken. */
    return coll_backend_check_size(*out, w->world_size, blame);
}

/* --- The store ------------------------------------------------------------ */

/* How this process takes part in the meeting. */
struct meeting {
    const struct coll_worker *w;
    const struct coll_backend *backend;
    bool stages; /* host memory goes by way of the device */
    int64_t timeout_ms;
    bool is_deterministic;
    uint64_t deadline_ns;
    char prefix[64]; /* in front of every key of the group */
    char over_key[80];
    bool has_own_store; /* rank 0 hosts it */
    bool is_marked; /* the latest store that was found there */
    bool is_lost; /* it was found, but gone before it was of use */
    coll_store_t *store;
    struct coll_group *group;
};

/* A host's own name often stands for a loopback address in its /etc/hosts:
 * others, who reach it by that name, would knock at no door. */
static bool may_be_loopback_by_name(const struct coll_worker *w)
{
    return !w->is_one_node && strcmp(w->place, "localhost") != 0 &&
           strchr(w->place, ':') == NULL &&
           strspn(w->place, "0123456789.") != strlen(w->place);
}

static int open_tcp(struct meeting *m, struct err *e)
{
    /* A host may be known to the others by an address that is none of its
     * machine's (of a router, or of a service of Kubernetes), or by a name
     * that appears only when it is up. */
    static const char *const others[] = {"::", "0.0.0.0"};
    const struct coll_worker *w = m->w;
    bool is_host = m->has_own_store && w->rank == 0;
    struct store_impl *impl;
    int port = w->port;
    int rc = -EADDRNOTAVAIL;
    bool is_elsewhere;

    if (!is_host || !may_be_loopback_by_name(w))
        rc = store_tcp_open(&impl, w->place, &port, is_host, w->world_size,
            m->timeout_ms, m->deadline_ns, e);
    is_elsewhere = is_host && clock_left_ms(m->deadline_ns) > 0 &&
                   (rc == -EADDRNOTAVAIL || rc == -ENOENT || rc == -ETIMEDOUT);

    for (int i = 0; i < 2 && is_elsewhere && rc < 0 && rc != -EADDRINUSE; i++)
        rc = store_tcp_open(&impl, others[i], &port, true, w->world_size,
            m->timeout_ms, m->deadline_ns, e);
    if (rc < 0)
        return rc;
    return coll_store_wrap(
        &m->store, &store_tcp_kind, impl, port, m->timeout_ms, e);
}

static int open_file(struct meeting *m, struct err *e)
{
    struct store_impl *impl;
    int rc = store_file_open(
        &impl, m->w->place, m->w->world_size, m->deadline_ns, e);

    if (rc < 0)
        return rc;
    return coll_store_wrap(
        &m->store, &store_file_kind, impl, -1, m->timeout_ms, e);
}

static coll_status_t open_store(struct meeting *m)
{
    struct err e = {0};
    int rc =
        m->w->meeting == COLL_MEETING_FILE ? open_file(m, &e) : open_tcp(m, &e);

    m->is_lost = rc == -ECONNRESET || rc == -EPIPE;
    if (rc == -EADDRINUSE)
        return coll_fail(COLL_ERR_STORE,
            "coll_init: %.300s; rank 0 hosts the store there: choose another "
            "port, or set " ENV_USE_AGENT_STORE "=True if a store that "
            "already listens at MASTER_ADDR:MASTER_PORT is meant",
            e.msg);
    return rc < 0 ? coll_store_fail_init(rc, &e) : COLL_OK;
}

/* --- Meeting -------------------------------------------------------------- */

static coll_status_t create_group(struct meeting *m)
{
    const struct coll_boot boot = {
        .store = m->store,
        .prefix = m->prefix,
        .deadline_ns = m->deadline_ns,
        .is_over = m->has_own_store ? &m->is_lost : NULL,
        .node = m->w->node,
        .is_deterministic = m->is_deterministic,
        .stages = m->stages,
    };

    return coll_group_create(&m->group, m->backend, m->w->rank,
        m->w->world_size, m->timeout_ms, &boot);
}

/* The group was made, and then this rank fails, with a sentence that is set:
 * those who have the group, too, learn of it there. */
static coll_status_t drop_group(struct meeting *m, coll_status_t status)
{
    m->group->failure = status;
    coll_group_free(m->group);
    m->group = NULL;
    return status;
}

/*
 * A store of rank 0's is for one coll_init() and the group that comes of it.
 * The next coll_init() has a new one at the same address, and a rank that is
 * early there may still find the old one. So rank 0 marks its store when the
 * group is made, nobody leaves coll_init() before, and who finds the mark
 * comes back later.
 */
static coll_status_t lead(struct meeting *m)
{
    coll_status_t status = open_store(m);
    struct err e = {0};
    int64_t count;
    int rc;

    if (status == COLL_OK)
        status = create_group(m);
    if (status != COLL_OK)
        return status;
    /* Unlike a set it is done when it returns. */
    rc = coll_store_do_add(m->store, m->over_key, 1, &count,
        coll_store_answer_ns(m->deadline_ns), &e);
    if (rc == 0)
        return COLL_OK;
    return drop_group(m, coll_store_fail_init(rc, &e));
}

/* The others, last: rank 0 has the group, too. */
static coll_status_t wait_for_mark(struct meeting *m)
{
    const char *key = m->over_key;
    struct err e = {0};
    coll_status_t status;
    int rc = coll_store_do_wait(
        m->store, &key, 1, coll_store_answer_ns(m->deadline_ns), &e);

    if (rc == 0)
        return COLL_OK;
    if (rc == -ETIMEDOUT)
        coll_fail(status = COLL_ERR_TIMEOUT,
            "timed out after %.1f s in coll_init waiting for rank 0",
            (double)m->timeout_ms / 1000.0);
    else if (rc == -ECONNRESET || rc == -EPIPE)
        coll_fail(status = COLL_ERR_PEER,
            "rank 0 died or gave up during coll_init, and its store with it");
    else
        status = coll_store_fail_init(rc, &e);
    return drop_group(m, status);
}

/* Is the store none for this coll_init(): marked, or gone? */
static bool is_over(struct meeting *m)
{
    const char *key = m->over_key;
    struct err e = {0};
    int rc;

    m->is_marked = false;
    rc = coll_store_do_check(m->store, &key, 1, &m->is_marked,
        coll_store_answer_ns(m->deadline_ns), &e);
    return m->is_marked || (rc < 0 && rc != -EHOSTDOWN);
}

/* One attempt. *again: that was no store for this coll_init(). */
static coll_status_t follow_once(struct meeting *m, bool *again)
{
    coll_status_t status = open_store(m);

    if (status != COLL_OK) {
        /* With little time left what is known for sure is the mark. */
        *again = status == COLL_ERR_TIMEOUT
                     ? m->is_marked
                     : m->is_lost && clock_left_ms(m->deadline_ns) > 0;
        return *again ? COLL_OK : status;
    }
    *again = is_over(m);
    if (*again)
        return COLL_OK;
    status = create_group(m);
    if (status == COLL_OK)
        return wait_for_mark(m);
    /* Who fails together with rank 0 fails. But who has not met it yet and
     * loses its store waits for the next one. */
    *again = status == COLL_ERR_STORE && (m->is_lost || is_over(m));
    return *again ? COLL_OK : status;
}

static coll_status_t follow(struct meeting *m)
{
    long pause_ms = 5;

    for (;;) {
        bool again = false;
        coll_status_t status = follow_once(m, &again);

        if (!again)
            return status;
        coll_store_close(m->store);
        m->store = NULL;
        if (clock_left_ms(m->deadline_ns) == 0)
            return coll_fail(COLL_ERR_TIMEOUT,
                "timed out after %.1f s in coll_init waiting for rank 0%s",
                (double)m->timeout_ms / 1000.0,
                m->is_marked ? ", which still has the store of the group "
                               "before: it has not called coll_destroy()"
                             : "");
        status = coll_agent_pause("coll_init", pause_ms);
        if (status != COLL_OK)
            return status;
        if (pause_ms < 80)
            pause_ms *= 2;
    }
}

/* Where a store serves many coll_init(), and with one rank. */
static coll_status_t join(struct meeting *m)
{
    coll_status_t status = COLL_OK;

    if (m->w->world_size > 1)
        status = open_store(m);
    return status == COLL_OK ? create_group(m) : status;
}

/* With an end to all waiting when the launcher tells of a failure, and between
 * two marks in the recorder. */
static coll_status_t meet(struct meeting *m)
{
    struct recorder *recorder = coll_agent_recorder();
    const struct recorder_call entry = {.kind = RECORDER_INIT,
        .root = RECORDER_NO_ROOT,
        .now_ns = clock_now_ns()};
    uint64_t ticket = recorder_enter(recorder, &entry);
    coll_status_t status;

    interrupt_set(&coll_agent_interrupt);
    if (!m->has_own_store)
        status = join(m);
    else
        status = m->w->rank == 0 ? lead(m) : follow(m);
    interrupt_set(NULL);
    recorder_finish(recorder, ticket, status, clock_now_ns());
    return status;
}

/* The back end that was asked for by name has to be there. */
static coll_status_t connect_devices(void)
{
    char text[512];
    coll_status_t status = coll_gpu_connect(NULL, NULL);

    if (status == COLL_OK)
        return COLL_OK;
    snprintf(text, sizeof(text), "%s", coll_last_error());
    coll_destroy();
    return coll_fail(status, "%s", text);
}

coll_status_t coll_init(const coll_options_t *options)
{
    const coll_options_t defaults = COLL_OPTIONS_INIT;
    struct coll_worker w = {0};
    struct meeting m = {.w = &w};
    struct coll_tuning tuning = {.code = 0};
    coll_status_t status;

    status = coll_group_check_fork("coll_init");
    if (status != COLL_OK)
        return status;
    if (job.group != NULL)
        return coll_fail(COLL_ERR_STATE,
            "coll_init: already initialized; call coll_destroy() first");
    if (options == NULL)
        options = &defaults;
    status = choose_timeout(options, &m.timeout_ms);
    if (status == COLL_OK)
        status = choose_order(options, &m.is_deterministic);
    if (status == COLL_OK)
        status = coll_algorithm_parse(&tuning, env_option(ENV_ALGORITHM),
            "coll_init: " ENV_ALGORITHM, COLL_ERR_ENVIRONMENT);
    if (status == COLL_OK)
        status = coll_worker_read(&w, options);
    if (status == COLL_OK)
        status = choose_backend(options, &w, &m.backend, &m.stages);
    if (status != COLL_OK)
        return status;

    /* A store that outlives a restart must not mix the two attempts. */
    snprintf(m.prefix, sizeof(m.prefix), "coll/%d/", w.restart_count);
    snprintf(m.over_key, sizeof(m.over_key), "%sover", m.prefix);
    m.deadline_ns = clock_deadline_ns(m.timeout_ms);
    m.has_own_store =
        w.world_size > 1 && w.meeting == COLL_MEETING_TCP && !w.has_agent_store;
    /* What cannot be had is told by the back end, which can tell the others. */
    if (w.world_size > 1)
        coll_fds_reserve(
            w.world_size, m.has_own_store && w.rank == 0 ? w.world_size : 0);
    gpu_look();
    coll_agent_attach();
    status = meet(&m);
    if (status != COLL_OK) {
        coll_agent_note_failure(status);
        coll_agent_detach();
        coll_store_abandon(m.store);
        return status;
    }
    *m.group->tuning = tuning;
    job.group = m.group;
    job.store = m.store;
    job.local_rank = w.local_rank;
    job.node = w.node;
    job.timeout_ms = m.timeout_ms;
    memcpy(job.prefix, m.prefix, sizeof(job.prefix));
    return m.stages ? connect_devices() : COLL_OK;
}

bool coll_is_initialized(void)
{
    return job.group != NULL;
}

coll_status_t coll_destroy(void)
{
    coll_status_t status = coll_group_check_fork("coll_destroy");
    bool is_broken;

    if (status == COLL_OK)
        status = coll_work_check_thread("coll_destroy");
    if (status != COLL_OK)
        return status;
    if (job.group == NULL)
        return coll_fail(COLL_ERR_STATE,
            "coll_destroy: not initialized; call coll_init() first");
    if (coll_groups_are_in_use())
        return coll_fail(COLL_ERR_STATE,
            "coll_destroy: an operation is on its way in another thread, or "
            "one that nobody has waited for; wait for it, or call "
            "coll_abort() first");
    coll_groups_free_made();
    /* The others may be stuck for good then: their store need not wait. */
    is_broken = job.group->failure != COLL_OK;
    coll_group_free(job.group);
    job.group = NULL;
    coll_agent_detach();
    if (is_broken)
        coll_store_abandon(job.store);
    else
        coll_store_close(job.store);
    job.store = NULL;
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

const struct coll_job *coll_job(void)
{
    return &job;
}

coll_store_t *coll_default_store(void)
{
    return job.store;
}
