/*
 * Reads who this process is; see coll_worker.h. What the options say goes
 * before init_method, and that before the environment.
 */
#include "coll_worker.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "rendezvous/base/text.h"
#include "rendezvous/worker_env.h"

/* init_method in its parts. The texts are NULL where it does not say. */
struct method {
    const char *text; /* all of it */
    const char *place; /* behind the scheme */
    size_t place_len; /* up to the query */
    char rank[24];
    char world_size[24];
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

/* What the launcher says of its nodes. */
static coll_status_t read_node(struct coll_worker *w)
{
    int local_size = 0;
    coll_status_t status = COLL_OK;

    if (getenv(ENV_GROUP_RANK) != NULL)
        status = env_int(ENV_GROUP_RANK, 0, INT_MAX, 0, &w->node);
    if (status == COLL_OK && getenv(ENV_LOCAL_WORLD_SIZE) != NULL)
        status =
            env_int(ENV_LOCAL_WORLD_SIZE, 1, w->world_size, 0, &local_size);
    w->is_one_node = local_size == w->world_size;
    return status;
}

/* --- init_method ---------------------------------------------------------- */

static coll_status_t fail_method(const struct method *m, const char *why)
{
    return coll_fail(COLL_ERR_ARGUMENT, "coll_init: init_method \"%.256s\": %s",
        m->text, why);
}

/* Copies the value of name=value in a query, "" if it has none. */
static bool query_get(
    const char *query, const char *name, char *out, size_t cap)
{
    size_t name_len = strlen(name);

    out[0] = '\0';
    while (*query != '\0') {
        size_t len = strcspn(query, "&");

        if (len > name_len && strncmp(query, name, name_len) == 0 &&
            query[name_len] == '=') {
            if (len - name_len > cap)
                return false;
            memcpy(out, query + name_len + 1, len - name_len - 1);
            out[len - name_len - 1] = '\0';
        }
        query += len + (query[len] == '&');
    }
    return true;
}

static bool starts_with(const char *text, const char *start, const char **rest)
{
    size_t len = strlen(start);

    *rest = text + len;
    return strncmp(text, start, len) == 0;
}

/* HOST:PORT, a host with colons in brackets; what follows a slash is not
 * looked at, as with PyTorch. */
static coll_status_t parse_address(
    struct coll_worker *w, const struct method *m)
{
    const char *host = m->place;
    size_t len = strcspn(host, "/?");
    size_t host_len;
    const char *colon;
    char port[8];
    int64_t value = 0;

    colon = memrchr(host, ':', len);
    if (colon == NULL || colon == host)
        return fail_method(m, "a host and a port must follow, HOST:PORT");
    host_len = (size_t)(colon - host);
    snprintf(port, sizeof(port), "%.*s", (int)(len - host_len - 1), colon + 1);
    if (len - host_len > sizeof(port) || text_to_i64(port, &value) < 0 ||
        value < 1 || value > 65535)
        return fail_method(m, "the port is no number from 1 to 65535");
    if (host[0] == '[' && host[host_len - 1] == ']') {
        host++;
        host_len -= 2;
    }
    if (host_len == 0 || host_len >= sizeof(w->place))
        return fail_method(m, "that is no host");
    memcpy(w->place, host, host_len);
    w->place[host_len] = '\0';
    w->port = (int)value;
    w->meeting = COLL_MEETING_TCP;
    return COLL_OK;
}

static coll_status_t parse_path(struct coll_worker *w, const struct method *m)
{
    if (m->place[0] != '/' || m->place_len < 2)
        return fail_method(m, "an absolute path must follow, file:///PATH");
    if (m->place_len >= sizeof(w->place))
        return fail_method(m, "the path is too long");
    memcpy(w->place, m->place, m->place_len);
    w->place[m->place_len] = '\0';
    w->meeting = COLL_MEETING_FILE;
    return COLL_OK;
}

/* Does the launcher serve the store at this address? Its word is for the
 * address it gives, and no other. */
static bool is_agent_store(const struct coll_worker *w)
{
    const char *flag = getenv(ENV_USE_AGENT_STORE);
    const char *host = getenv(ENV_MASTER_ADDR);
    const char *port = getenv(ENV_MASTER_PORT);
    int64_t value;

    return flag != NULL && strcmp(flag, "True") == 0 && host != NULL &&
           strcmp(host, w->place) == 0 && port != NULL &&
           text_to_i64(port, &value) == 0 && value == w->port;
}

static coll_status_t read_master(struct coll_worker *w)
{
    const char *host = getenv(ENV_MASTER_ADDR);

    if (host == NULL || host[0] == '\0')
        return coll_fail(COLL_ERR_ENVIRONMENT,
            "coll_init: " ENV_MASTER_ADDR " is not set; it names the host of "
            "the store where %d ranks meet",
            w->world_size);
    if (strlen(host) >= sizeof(w->place))
        return coll_fail(COLL_ERR_ENVIRONMENT,
            "coll_init: " ENV_MASTER_ADDR " is too long for a host name");
    snprintf(w->place, sizeof(w->place), "%s", host);
    w->meeting = COLL_MEETING_TCP;
    return env_int(ENV_MASTER_PORT, 1, 65535, 0, &w->port);
}

static coll_status_t split_method(struct method *m, const char *text)
{
    const char *rest;
    const char *query;

    *m = (struct method){.text = text == NULL ? "env://" : text};
    rest = strstr(m->text, "://");
    if (rest == NULL)
        return fail_method(m, "known are env://, tcp:// and file://");
    m->place = rest + 3;
    m->place_len = strcspn(m->place, "?");
    query = m->place + m->place_len;
    query += *query == '?';
    if (!query_get(query, "rank", m->rank, sizeof(m->rank)) ||
        !query_get(query, "world_size", m->world_size, sizeof(m->world_size)))
        return fail_method(m, "rank or world_size is no number");
    return COLL_OK;
}

static coll_status_t read_meeting(struct coll_worker *w, const struct method *m)
{
    coll_status_t status;
    const char *rest;

    if (starts_with(m->text, "tcp://", &rest))
        status = parse_address(w, m);
    else if (starts_with(m->text, "file://", &rest))
        status = parse_path(w, m);
    else if (!starts_with(m->text, "env://", &rest))
        status = fail_method(m, "known are env://, tcp:// and file://");
    else if (m->place_len > 0)
        status = fail_method(m, "nothing but ?rank=R&world_size=N may follow");
    else
        status = w->world_size > 1 ? read_master(w) : COLL_OK;
    if (status == COLL_OK)
        w->has_agent_store =
            w->meeting == COLL_MEETING_TCP && is_agent_store(w);
    return status;
}

/* --- Who ------------------------------------------------------------------ */

/* A number that init_method has, or else the environment. */
static coll_status_t method_int(const struct method *m, const char *text,
    const char *name, int64_t min, int64_t max, int64_t fallback, int *out)
{
    int64_t value;
    char why[96];

    if (text[0] == '\0')
        return env_int(name, min, max, fallback, out);
    if (text_to_i64(text, &value) < 0 || value < min || value > max) {
        snprintf(why, sizeof(why),
            "\"%s\" is not an integer from %" PRId64 " to %" PRId64, text, min,
            max);
        return fail_method(m, why);
    }
    *out = (int)value;
    return COLL_OK;
}

static coll_status_t read_identity(
    struct coll_worker *w, const struct method *m, const coll_options_t *o)
{
    coll_status_t status;

    if (o->world_size != 0) {
        if (o->world_size < 0 || o->rank < 0 || o->rank >= o->world_size)
            return coll_fail(COLL_ERR_ARGUMENT,
                "coll_init: rank %d is none of a world of %d", o->rank,
                o->world_size);
        w->rank = o->rank;
        w->world_size = o->world_size;
        return COLL_OK;
    }
    if (o->rank != 0)
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_init: rank is %d, but world_size is 0", o->rank);
    if (m->rank[0] == '\0' && m->world_size[0] == '\0' &&
        getenv(ENV_WORLD_SIZE) == NULL && getenv(ENV_RANK) == NULL)
        return coll_fail(COLL_ERR_ENVIRONMENT,
            "coll_init: RANK and WORLD_SIZE are not set: start the program "
            "with crun (crun --nproc_per_node=N program), or set "
            "WORLD_SIZE=1 to run it alone");
    status = method_int(
        m, m->world_size, ENV_WORLD_SIZE, 1, INT_MAX, 0, &w->world_size);
    if (status != COLL_OK)
        return status;
    return method_int(m, m->rank, ENV_RANK, 0, w->world_size - 1,
        w->world_size == 1 ? 0 : -1, &w->rank);
}

coll_status_t coll_worker_read(
    struct coll_worker *w, const coll_options_t *options)
{
    struct method m;
    coll_status_t status = split_method(&m, options->init_method);

    w->node = -1;
    if (status == COLL_OK)
        status = read_identity(w, &m, options);
    if (status == COLL_OK)
        status = env_int(ENV_LOCAL_RANK, 0, INT_MAX, w->rank, &w->local_rank);
    if (status == COLL_OK)
        status = env_int(ENV_RESTART_COUNT, 0, INT_MAX, 0, &w->restart_count);
    /* What the launcher says of its nodes is about its own workers: not about
     * a world that the program has defined. */
    if (status == COLL_OK && w->world_size > 1 && options->world_size == 0 &&
        m.world_size[0] == '\0')
        status = read_node(w);
    return status == COLL_OK ? read_meeting(w, &m) : status;
}
