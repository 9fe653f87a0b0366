/* See rdzv_options.h. */
#include "cmd/rdzv_options.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "rendezvous/base/log.h"
#include "rendezvous/base/text.h"
#include "rendezvous/membership.h"

/* torchrun's, where only a host is given. */
#define STATIC_PORT 29500
#define C10D_PORT 29400

/* torchrun's, in seconds; a lost node is noticed sooner (its values are 5 and
 * 3). */
#define TIMEOUT_S 900
#define JOIN_TIMEOUT_S 600
#define LAST_CALL_S 30
#define KEEP_ALIVE_S 1
#define KEEP_ALIVE_ATTEMPTS 5

#define NODES_MAX MEMBERSHIP_NODES_MAX

enum rdzv_backend { RDZV_STATIC, RDZV_C10D };

/* Port -1: none was given. */
struct endpoint {
    char host[RDZV_HOST_MAX];
    int port;
};

/* --- Number of nodes ---------------------------------------------------- */

static int read_nnodes(
    struct rdzv_options *r, const struct options *o, struct err *e)
{
    const char *colon = strchr(o->nnodes, ':');
    const char *max_text = colon != NULL ? colon + 1 : o->nnodes;
    char min_text[24];
    int64_t min, max;
    int len;

    len = snprintf(min_text, sizeof(min_text), "%.*s",
        colon != NULL ? (int)(colon - o->nnodes) : INT_MAX, o->nnodes);
    if (len >= (int)sizeof(min_text) || text_to_i64(min_text, &min) < 0 ||
        text_to_i64(max_text, &max) < 0)
        return err_set(e, -EINVAL,
            "%s='%s': expected a number of nodes, N or MIN:MAX",
            options_where(o, &o->nnodes).text, o->nnodes);
    if (min < 1 || min > max || max > NODES_MAX)
        return err_set(e, -EINVAL,
            "%s='%s': expected 1 to %d nodes, and MIN not above MAX",
            options_where(o, &o->nnodes).text, o->nnodes, NODES_MAX);
    r->min_nodes = (int)min;
    r->max_nodes = (int)max;
    return 0;
}

/* --- Backend and its settings ------------------------------------------- */

static int read_backend(
    enum rdzv_backend *backend, const struct options *o, struct err *e)
{
    const char *name = o->rdzv_backend;

    if (strcmp(name, "static") == 0) {
        *backend = RDZV_STATIC;
        return 0;
    }
    if (strcmp(name, "c10d") == 0) {
        *backend = RDZV_C10D;
        return 0;
    }
    if (strcmp(name, "etcd") == 0 || strcmp(name, "etcd-v2") == 0)
        return err_set(e, -EINVAL,
            "%s='%s': crun needs no etcd; use c10d, with one of the nodes as "
            "endpoint",
            options_where(o, &o->rdzv_backend).text, name);
    return err_set(e, -EINVAL, "%s='%s': expected one of static, c10d",
        options_where(o, &o->rdzv_backend).text, name);
}

enum conf_kind {
    CONF_SECONDS,
    CONF_COUNT,
    CONF_ATTEMPTS,
    CONF_BOOL,
    CONF_STORE,
    CONF_FIXED,
};

/* Of which backends a key is. */
#define OF(backend) (1u << (backend))
#define FIELD(name) offsetof(struct rdzv_options, name)

static const struct conf_key {
    const char *name;
    enum conf_kind kind;
    unsigned backends;
    size_t offset; /* of an int in struct rdzv_options; 0: of no effect */
} conf_keys[] = {
    {"timeout", CONF_SECONDS, OF(RDZV_STATIC), FIELD(timeout_s)},
    {"rank", CONF_COUNT, OF(RDZV_STATIC), 0},
    {"join_timeout", CONF_SECONDS, OF(RDZV_C10D), FIELD(join_timeout_s)},
    {"last_call_timeout", CONF_SECONDS, OF(RDZV_C10D), FIELD(last_call_s)},
    {"close_timeout", CONF_SECONDS, OF(RDZV_C10D), 0},
    {"heartbeat_timeout", CONF_SECONDS, OF(RDZV_C10D), 0},
    {"keep_alive_interval", CONF_SECONDS, OF(RDZV_C10D), FIELD(keep_alive_s)},
    {"keep_alive_max_attempt", CONF_ATTEMPTS, OF(RDZV_C10D),
        FIELD(keep_alive_attempts)},
    {"read_timeout", CONF_SECONDS, OF(RDZV_C10D), 0},
    {"is_host", CONF_BOOL, OF(RDZV_C10D), FIELD(is_host)},
    {"store_type", CONF_STORE, OF(RDZV_C10D), 0},
    {"backend", CONF_FIXED, 0, 0},
    {"endpoint", CONF_FIXED, 0, 0},
    {"run_id", CONF_FIXED, 0, 0},
    {"min_nodes", CONF_FIXED, 0, 0},
    {"max_nodes", CONF_FIXED, 0, 0},
    {"local_addr", CONF_FIXED, 0, 0},
};

/* One KEY=VALUE, cut at the blanks around it. */
struct setting {
    const char *key;
    int key_len;
    const char *value;
    int value_len;
};

static void trim(const char **text, int *len)
{
    while (*len > 0 && isspace((unsigned char)(*text)[*len - 1]))
        --*len;
    while (*len > 0 && isspace((unsigned char)**text)) {
        ++*text;
        --*len;
    }
}

static bool is_text(const char *text, int len, const char *word)
{
    return (int)strlen(word) == len &&
           strncasecmp(text, word, (size_t)len) == 0;
}

static bool is_one_of(const struct setting *s, const char *const words[])
{
    for (; *words != NULL; words++)
        if (is_text(s->value, s->value_len, *words))
            return true;
    return false;
}

/* Whether the value is of that kind; *number is then what it says as a number,
 * else *expected describes another one. */
static bool is_of_kind(const struct setting *s, enum conf_kind kind,
    int *number, const char **expected)
{
    static const char *const yes[] = {"1", "true", "t", "yes", "y", NULL};
    static const char *const no[] = {"0", "false", "f", "no", "n", NULL};
    static const char *const stores[] = {"tcp", "file", NULL};
    char text[24];
    int64_t n = 0;

    snprintf(text, sizeof(text), "%.*s", s->value_len, s->value);
    *number = 0;
    if (kind <= CONF_ATTEMPTS) {
        *expected = kind == CONF_SECONDS ? "whole seconds, at least 1"
                    : kind == CONF_COUNT ? "a number"
                                         : "a number, at least 1";
        if (text_to_i64(text, &n) < 0 || n < (kind != CONF_COUNT) ||
            n > INT32_MAX)
            return false;
        *number = (int)n;
        return true;
    }
    switch (kind) {
    case CONF_BOOL:
        *expected = "true or false";
        *number = is_one_of(s, yes);
        return *number || is_one_of(s, no);
    case CONF_STORE:
        *expected = "tcp or file";
        return is_one_of(s, stores);
    default:
        break;
    }
    *expected = "nothing: it has an option of its own";
    return false;
}

static const struct conf_key *find_key(const struct setting *s)
{
    for (size_t i = 0; i < sizeof(conf_keys) / sizeof(conf_keys[0]); i++)
        if ((int)strlen(conf_keys[i].name) == s->key_len &&
            memcmp(conf_keys[i].name, s->key, (size_t)s->key_len) == 0)
            return &conf_keys[i];
    return NULL;
}

static int read_setting(struct rdzv_options *r, const struct setting *s,
    enum rdzv_backend backend, bool *is_file, const struct options *o,
    struct err *e)
{
    const struct option_where where = options_where(o, &o->rdzv_conf);
    const struct conf_key *key = find_key(s);
    const char *expected;
    int number;

    if (s->key_len == 0 || s->value_len == 0)
        return err_set(e, -EINVAL,
            "%s='%s': expected KEY=VALUE, but '%.*s' lacks a %s", where.text,
            o->rdzv_conf, s->key_len > 0 ? s->key_len : s->value_len,
            s->key_len > 0 ? s->key : s->value,
            s->key_len > 0 ? "value" : "key");
    if (key == NULL) {
        log_warn("options", "%s: unknown key '%.*s' is ignored", where.text,
            s->key_len, s->key);
        return 0;
    }
    if (!is_of_kind(s, key->kind, &number, &expected))
        return err_set(e, -EINVAL, "%s: %s='%.*s': expected %s", where.text,
            key->name, s->value_len, s->value, expected);
    if (!(key->backends & OF(backend)))
        log_warn("options", "%s: %s has no effect with the backend %s",
            where.text, key->name, o->rdzv_backend);
    if (key->offset != 0)
        memcpy((char *)r + key->offset, &number, sizeof(number));
    if (key->kind == CONF_STORE)
        *is_file = is_text(s->value, s->value_len, "file");
    return 0;
}

/* *is_file: the endpoint is the path of a file. */
static int read_conf(struct rdzv_options *r, enum rdzv_backend backend,
    bool *is_file, const struct options *o, struct err *e)
{
    const char *at = o->rdzv_conf;
    int rc = 0;

    while (rc == 0 && at != NULL) {
        int len = (int)strcspn(at, ",");
        int key_len = (int)strcspn(at, "=,");
        struct setting s = {at, key_len, at + key_len, len - key_len};

        if (s.value_len > 0) { /* the equals sign */
            s.value++;
            s.value_len--;
        }
        trim(&s.key, &s.key_len);
        trim(&s.value, &s.value_len);
        rc = read_setting(r, &s, backend, is_file, o, e);
        at = at[len] == ',' ? at + len + 1 : NULL;
    }
    return rc;
}

/* --- Endpoint ----------------------------------------------------------- */

static bool is_host(const char *host, size_t len, bool is_bracketed)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)host[i];

        if (!isalnum(c) && strchr("_.-", c) == NULL &&
            !(is_bracketed && (c == ':' || c == '%')))
            return false;
    }
    return len > 0 && len < RDZV_HOST_MAX;
}

/* HOST, HOST:PORT, [V6] or [V6]:PORT. */
static int read_endpoint(
    struct endpoint *ep, const struct options *o, struct err *e)
{
    const struct option_where where = options_where(o, &o->rdzv_endpoint);
    const char *text = o->rdzv_endpoint;
    bool is_bracketed = text[0] == '[';
    const char *host = text + is_bracketed;
    const char *end = strchrnul(host, is_bracketed ? ']' : ':');
    const char *after = end + (is_bracketed && *end == ']');
    int64_t port = -1;

    if (!is_bracketed && *end == ':' && strchr(end + 1, ':') != NULL)
        return err_set(e, -EINVAL,
            "%s='%s': an IPv6 address goes in brackets, [ADDRESS]:PORT",
            where.text, text);
    if ((is_bracketed && *end != ']') ||
        !is_host(host, (size_t)(end - host), is_bracketed) ||
        (*after != '\0' && *after != ':'))
        return err_set(e, -EINVAL,
            "%s='%s': expected HOST, HOST:PORT, [ADDRESS] or [ADDRESS]:PORT",
            where.text, text);
    if (*after == ':' &&
        (text_to_i64(after + 1, &port) < 0 || port < 0 || port > 65535))
        return err_set(e, -EINVAL,
            "%s='%s': expected a port from 0 to 65535 after the colon",
            where.text, text);
    snprintf(ep->host, sizeof(ep->host), "%.*s", (int)(end - host), host);
    ep->port = (int)port;
    return 0;
}

/* --- What all of it means ----------------------------------------------- */

static int check_node_rank(
    const struct rdzv_options *r, const struct options *o, struct err *e)
{
    if (o->node_rank < 0 || o->node_rank >= r->max_nodes)
        return err_set(e, -EINVAL, "%s='%lld': expected 0 to %d, as %s='%s'",
            options_where(o, &o->node_rank).text, (long long)o->node_rank,
            r->max_nodes - 1, options_where(o, &o->nnodes).text, o->nnodes);
    return 0;
}

/* The workers' address, NULL being that of this node, and port. */
static int place(struct rdzv_options *r, const char *addr, int port,
    const struct options *o, struct err *e)
{
    if (addr == NULL)
        addr = o->local_addr != NULL ? o->local_addr : "127.0.0.1";
    if (strlen(addr) >= sizeof(r->master_addr))
        return err_set(
            e, -EINVAL, "'%.40s...' is too long for an address", addr);
    strcpy(r->master_addr, addr);
    r->master_port = port;
    return 0;
}

static int read_standalone(
    struct rdzv_options *r, const struct options *o, struct err *e)
{
    if (r->min_nodes > 1)
        return err_set(e, -EINVAL, "%s is one node, but %s='%s' asks for more",
            options_where(o, &o->is_standalone).text,
            options_where(o, &o->nnodes).text, o->nnodes);
    r->max_nodes = 1;
    return place(r, o->master_addr,
        o->master_port == OPTIONS_UNSET ? 0 : (int)o->master_port, o, e);
}

static int read_static(
    struct rdzv_options *r, const struct options *o, struct err *e)
{
    struct endpoint ep = {.port = -1};
    bool has_port = o->master_port != OPTIONS_UNSET;
    int rc;

    rc = check_node_rank(r, o, e);
    if (rc == 0 && o->rdzv_endpoint != NULL)
        rc = read_endpoint(&ep, o, e);
    if (rc < 0)
        return rc;
    if (o->rdzv_endpoint == NULL && !has_port && r->max_nodes == 1)
        return place(r, o->master_addr, 0, o, e);
    if (r->run_id == NULL)
        r->run_id = "none";
    if (o->rdzv_endpoint == NULL)
        return place(r, o->master_addr != NULL ? o->master_addr : "127.0.0.1",
            has_port ? (int)o->master_port : STATIC_PORT, o, e);
    if (ep.port < 0)
        return err_set(e, -EINVAL,
            "%s='%s': the backend static needs a port too, HOST:PORT",
            options_where(o, &o->rdzv_endpoint).text, o->rdzv_endpoint);
    return place(r, ep.host, ep.port, o, e);
}

static void warn_of_master(const struct options *o, const void *field)
{
    /* In variables it is there for every job of a cluster. */
    if (options_source(o, field) == OPTION_FROM_COMMAND ||
        options_source(o, field) == OPTION_FROM_FILE)
        log_warn("options", "%s has no effect with the backend c10d",
            options_where(o, field).text);
}

static int read_c10d(struct rdzv_options *r, struct endpoint *ep, bool is_file,
    const struct options *o, struct err *e)
{
    int rc = 0;

    if (o->rdzv_endpoint != NULL && !is_file)
        rc = read_endpoint(ep, o, e);
    if (rc < 0)
        return rc;
    if (ep->port < 0)
        ep->port = C10D_PORT;
    warn_of_master(o, &o->master_addr);
    warn_of_master(o, &o->master_port);
    /* The endpoint is where agents meet. Workers have a port of their own,
     * which the agent of a single node needs nobody to tell. */
    return place(r, NULL, r->max_nodes > 1 ? ep->port : 0, o, e);
}

static bool is_link_local(const char *host)
{
    char number[INET6_ADDRSTRLEN];
    struct in6_addr addr;

    snprintf(number, sizeof(number), "%.*s", (int)strcspn(host, "%"), host);
    return inet_pton(AF_INET6, number, &addr) == 1 &&
           IN6_IS_ADDR_LINKLOCAL(&addr);
}

/* What several nodes need beyond one. */
static int check_nodes(struct rdzv_options *r, bool is_file,
    const struct options *o, struct err *e)
{
    const struct option_where where = options_where(o, &o->nnodes);

    if (is_file)
        return err_set(e, -EINVAL,
            "%s: store_type=file is for one node; several meet at a host and "
            "port",
            options_where(o, &o->rdzv_conf).text);
    if (strcmp(r->endpoint_host, "0.0.0.0") == 0 ||
        strcmp(r->endpoint_host, "::") == 0)
        return err_set(e, -EINVAL,
            "%s='%s': %s is no address that other nodes can reach; give the "
            "one of the node that they meet at",
            where.text, o->nnodes, r->endpoint_host);
    if (is_link_local(r->endpoint_host))
        return err_set(e, -EINVAL,
            "%s='%s': %s is a link-local address, which means another place "
            "on each host; give one that is valid everywhere",
            where.text, o->nnodes, r->endpoint_host);
    if (r->run_id != NULL && strlen(r->run_id) >= NODE_RUN_ID_MAX)
        return err_set(e, -EINVAL, "%s: expected at most %d bytes",
            options_where(o, &o->rdzv_id).text, NODE_RUN_ID_MAX - 1);
    if (strlen(o->role) >= NODE_ROLE_MAX)
        return err_set(e, -EINVAL, "%s: expected at most %d bytes",
            options_where(o, &o->role).text, NODE_ROLE_MAX - 1);
    if (o->local_addr != NULL && strlen(o->local_addr) >= NODE_ADDR_MAX)
        return err_set(e, -EINVAL, "%s: expected at most %d bytes",
            options_where(o, &o->local_addr).text, NODE_ADDR_MAX - 1);
    if (!r->is_static && o->rdzv_endpoint == NULL && r->min_nodes > 1)
        return err_set(e, -EINVAL,
            "%s='%s': with the backend c10d %s is needed, a host that all "
            "nodes can reach",
            where.text, o->nnodes, options_where(o, &o->rdzv_endpoint).text);
    if (r->is_static && o->rdzv_endpoint == NULL && o->master_addr == NULL)
        log_warn("options",
            "%s='%s' without %s: the nodes meet at 127.0.0.1, which is another "
            "place on each host",
            where.text, o->nnodes, options_where(o, &o->master_addr).text);
    if (r->master_port == 0)
        return err_set(e, -EINVAL,
            "%s='%s': port 0 is one that the kernel chooses, which the other "
            "nodes cannot know; give a port",
            where.text, o->nnodes);
    return 0;
}

/* Dynamic: only the order of the nodes depends on it. Slurm's is there where
 * srun has started crun on each of them. */
static int order_key(const struct options *o)
{
    const char *slurm = getenv("SLURM_NODEID");
    int64_t id;

    if (options_source(o, &o->node_rank) != OPTION_FROM_DEFAULT)
        return (int)o->node_rank;
    if (slurm == NULL || text_to_i64(slurm, &id) < 0 || id < 0 ||
        id > INT32_MAX)
        return -1;
    return (int)id;
}

static void set_endpoint(
    struct rdzv_options *r, const char *host, int port, bool is_static)
{
    snprintf(r->endpoint_host, sizeof(r->endpoint_host), "%s", host);
    r->endpoint_port = port;
    r->is_static = is_static;
}

int rdzv_options_read(
    struct rdzv_options *r, const struct options *o, struct err *e)
{
    enum rdzv_backend backend = RDZV_C10D;
    struct endpoint ep = {.host = "localhost", .port = C10D_PORT};
    bool is_file = false;
    int rc;

    *r = (struct rdzv_options){.run_id = o->rdzv_id,
        .node_rank = -1,
        .is_host = -1,
        .timeout_s = TIMEOUT_S,
        .join_timeout_s = JOIN_TIMEOUT_S,
        .last_call_s = LAST_CALL_S,
        .keep_alive_s = KEEP_ALIVE_S,
        .keep_alive_attempts = KEEP_ALIVE_ATTEMPTS};
    rc = read_nnodes(r, o, e);
    if (rc == 0 && !o->is_standalone)
        rc = read_backend(&backend, o, e);
    if (rc == 0)
        rc = read_conf(r, backend, &is_file, o, e);
    if (rc < 0)
        return rc;
    if (o->is_standalone)
        rc = read_standalone(r, o, e);
    else if (backend == RDZV_STATIC)
        rc = read_static(r, o, e);
    else
        rc = read_c10d(r, &ep, is_file, o, e);
    if (rc < 0 || r->max_nodes == 1)
        return rc;
    if (r->run_id == NULL)
        r->run_id = "none"; /* the same everywhere */
    if (backend == RDZV_STATIC) {
        set_endpoint(r, r->master_addr, r->master_port, true);
        r->node_rank = (int)o->node_rank;
        r->min_nodes = r->max_nodes; /* as torchrun has it */
    } else {
        set_endpoint(r, ep.host, r->master_port, false);
        r->node_rank = order_key(o);
    }
    return check_nodes(r, is_file, o, e);
}
