/* See nodes.h. */
#include "agent/nodes.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "rendezvous/access.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/log.h"
#include "rendezvous/coordinator.h"
#include "rendezvous/resolve.h"

#define RESOLVE_MS 30000

/* What the endpoint is here. */
struct endpoint {
    bool is_own; /* an address of this host */
    bool is_loopback; /* that no other host could reach */
};

struct nodes {
    uint64_t agent_id;
    struct token *token; /* NULL: there is no secret */
    struct coordinator *coordinator; /* NULL: another node hosts it */
    struct store_port *port; /* of the coordinator; NULL: the meeting's is */
    struct access *port_access; /* of that port */
    struct access *store_access; /* of the meeting's */
    const struct job *job; /* borrowed, as the next three */
    struct meeting *meeting;
    const char *run_id;
    const char *host;
    bool has_failed_late; /* to host the coordinator */
    struct endpoint endpoint;
    struct node_link *link;
};

static void adopt(int fd, const void *head, size_t head_len, void *arg)
{
    struct nodes *n = arg;

    coordinator_adopt(fd, head, head_len, n->coordinator);
}

static bool is_own_name(const char *host)
{
    char name[256];
    size_t len;

    if (gethostname(name, sizeof(name)) < 0)
        return false;
    len = strcspn(name, ".");
    return len > 0 && strncmp(host, name, len) == 0 &&
           (host[len] == '\0' || host[len] == '.');
}

static bool is_own_address(const struct sockaddr *sa, socklen_t len)
{
    int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_storage ss = {0};
    bool is_own;

    memcpy(&ss, sa, len);
    if (sa->sa_family == AF_INET6) /* any port */
        ((struct sockaddr_in6 *)&ss)->sin6_port = 0;
    else
        ((struct sockaddr_in *)&ss)->sin_port = 0;
    is_own = fd >= 0 && bind(fd, (struct sockaddr *)&ss, len) == 0;
    if (fd >= 0)
        close(fd);
    return is_own;
}

/*
 * A host's own name may be a loopback address for itself only, as Debian sets
 * it up. An endpoint that is no address of the host that is to listen there is
 * one of something in between: connections then come in at others.
 */
static int judge_endpoint(struct endpoint *ep, const struct addrinfo *list,
    const char *host, struct access *access, struct err *e)
{
    bool is_loopback_only = true;
    int rc = 0;

    *ep = (struct endpoint){0};
    for (const struct addrinfo *ai = list; ai != NULL; ai = ai->ai_next) {
        is_loopback_only = is_loopback_only && access_is_loopback(ai->ai_addr);
        if (is_own_address(ai->ai_addr, ai->ai_addrlen))
            ep->is_own = true;
    }
    ep->is_loopback = is_loopback_only && !is_own_name(host);
    if (!ep->is_own || (is_loopback_only && !ep->is_loopback))
        return 0;
    for (const struct addrinfo *ai = list; ai != NULL && rc == 0;
         ai = ai->ai_next)
        rc = access_limit_local(access, ai->ai_addr);
    return rc < 0 ? err_set(e, rc, "set-up: %s", strerror(-rc)) : 0;
}

/* A name that is not known yet may be later: host_late(). */
static int look_at_endpoint(struct endpoint *ep, const struct job_nodes *set,
    struct access *access, struct err *e)
{
    uint64_t limit_ms =
        set->join_timeout_ms < RESOLVE_MS ? set->join_timeout_ms : RESOLVE_MS;
    struct addrinfo *list;
    int rc;

    *ep = (struct endpoint){0};
    if (resolve_until(set->host, set->port, 0,
            clock_deadline_ns((int64_t)limit_ms), &list) != 0)
        return 0;
    rc = judge_endpoint(ep, list, set->host, access, e);
    freeaddrinfo(list);
    return rc;
}

/* Said by whoever listens for the others. */
static void say_who_may_connect(
    const struct nodes *n, const struct job_nodes *set, struct endpoint ep)
{
    if (ep.is_loopback)
        return;
    if (!ep.is_own)
        log_warn("agent",
            "the endpoint %s is no address of this host: connections are "
            "accepted at all its addresses",
            set->host);
    if (n->token == NULL)
        log_warn("agent",
            "this job has no secret: whoever reaches %s port %d can take part "
            "(--token_file)",
            set->host, set->port);
}

static int create_coordinator(struct nodes *n, struct err *e)
{
    const struct job *job = n->job;
    const struct job_nodes *set = &job->nodes;
    struct membership_settings m = {.is_static = set->is_static,
        .min_nodes = set->min,
        .max_nodes = set->max,
        .max_restarts = job->max_restarts,
        .join_timeout_ms = set->join_timeout_ms,
        .last_call_ms = set->last_call_ms,
        .keep_alive_ms = set->keep_alive_ms,
        .keep_alive_attempts = set->keep_alive_attempts,
        .has_agent_store = job->has_agent_store,
        .host_agent_id = n->agent_id,
        .restart_delay_ms = job->restart_delay_ms,
        .restart_delay_max_ms = job->restart_delay_max_ms,
        .crash_loop_count = job->crash_loop_count,
        .crash_loop_ms = job->crash_loop_ms,
        .master_port =
            set->is_static && job->has_agent_store ? job->master_port : 0};
    int rc;

    snprintf(m.run_id, sizeof(m.run_id), "%s", n->run_id);
    snprintf(m.host, sizeof(m.host), "%s", n->host);
    m.host_pid = (int)getpid();
    snprintf(m.master_addr, sizeof(m.master_addr), "%s", job->master_addr);
    rc = coordinator_create(&n->coordinator, n->meeting->poller, &m, n->token);
    return rc < 0 ? err_set(e, rc, "the coordinator: %s", strerror(-rc)) : 0;
}

/* Beside the meeting: dynamic, or where rank 0 hosts the store. Whoever guesses
 * gives way to whoever is there already: on one host there may be several
 * agents. */
static int host_apart(
    struct nodes *n, const char *listen_host, struct endpoint ep, struct err *e)
{
    const struct job_nodes *set = &n->job->nodes;
    const struct store_port_options options = {
        .agent_cb = adopt, .agent_arg = n, .access = n->port_access};
    int port, rc;

    if (!set->is_static &&
        (set->is_host == 0 || (set->is_host < 0 && !ep.is_own)))
        return 0;
    rc = store_port_create(&n->port, n->meeting->poller, listen_host, set->port,
        &options, &port, e);
    if (rc == -EADDRINUSE && !set->is_static && set->is_host < 0)
        return 0;
    if (rc < 0)
        return rc;
    rc = create_coordinator(n, e);
    if (rc < 0) {
        store_port_destroy(n->port);
        n->port = NULL;
        return rc;
    }
    say_who_may_connect(n, set, ep);
    return 0;
}

/* The name was not known at the start, or the address not there: whose it is
 * shows only now. */
static void host_late(void *arg, const struct addrinfo *addresses)
{
    struct nodes *n = arg;
    const struct job_nodes *set = &n->job->nodes;
    struct endpoint ep;
    struct err e;

    if (n->coordinator != NULL || n->has_failed_late || set->is_static ||
        set->is_host >= 0)
        return;
    if (judge_endpoint(&ep, addresses, set->host, n->port_access, &e) == 0 &&
        host_apart(n, "::", ep, &e) == 0)
        return;
    n->has_failed_late = true;
    log_error("agent", "%s", e.msg);
}

/* Descriptors for the other agents, which the store's clients must not take:
 * not so many that these have too few. */
static size_t fds_of_agents(const struct job_nodes *set)
{
    struct rlimit limit = {0};
    size_t n = (size_t)set->max;

    getrlimit(RLIMIT_NOFILE, &limit);
    return n < limit.rlim_cur / 4 ? n : (size_t)limit.rlim_cur / 4;
}

static int open_meeting(
    struct nodes *n, uv_loop_t *loop, size_t nfds, struct err *e)
{
    struct meeting *meeting = n->meeting;
    const struct job *job = n->job;
    const struct job_nodes *set = &job->nodes;
    bool is_static_host = set->is_static && set->node_rank == 0;
    bool is_typed = is_static_host && job->has_agent_store;
    const char *listen_host;
    struct endpoint ep;
    int rc;

    rc = look_at_endpoint(
        &ep, set, is_typed ? n->store_access : n->port_access, e);
    if (rc < 0)
        return rc;
    n->endpoint = ep;
    listen_host = ep.is_loopback ? set->host : "::";
    if (ep.is_loopback)
        log_warn("agent",
            "the endpoint %s is a loopback address: nodes on other hosts "
            "cannot reach it",
            set->host);
    if (is_typed) {
        meeting->agent_cb = adopt;
        meeting->agent_arg = n;
    }
    meeting->access = n->store_access;
    rc = meeting_open(meeting, loop, listen_host, is_typed ? set->port : 0,
        job->has_agent_store, job->nproc, nfds + fds_of_agents(set), e);
    if (rc < 0 || (set->is_static && !is_static_host))
        return rc;
    if (!is_typed)
        return host_apart(n, listen_host, ep, e);
    say_who_may_connect(n, set, ep);
    return create_coordinator(n, e);
}

/* --- Joining ------------------------------------------------------------ */

/* From where this node's workers may come, as far as there is room. */
static void list_own_addresses(char *out, size_t size)
{
    struct ifaddrs *list;
    size_t len = 0;

    if (getifaddrs(&list) < 0)
        return;
    for (struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
        const struct sockaddr *sa = i->ifa_addr;
        char text[ACCESS_TEXT_SIZE];

        if (sa == NULL ||
            (sa->sa_family != AF_INET && sa->sa_family != AF_INET6) ||
            (i->ifa_flags & IFF_LOOPBACK))
            continue;
        access_text(sa, text);
        if (len + 1 + strlen(text) < size)
            len += (size_t)snprintf(
                out + len, size - len, "%s%s", len > 0 ? " " : "", text);
    }
    freeifaddrs(list);
}

static int32_t as_i32(uint64_t n)
{
    return n < INT32_MAX ? (int32_t)n : INT32_MAX;
}

static void introduce(struct node_msg *join, const struct job *job,
    const struct meeting *meeting, const char *run_id, const char *host)
{
    *join = (struct node_msg){.kind = NODE_JOIN,
        .node_rank = job->nodes.node_rank,
        .nproc = job->nproc,
        .min_nodes = job->nodes.min,
        .max_nodes = job->nodes.max,
        .max_restarts = job->max_restarts,
        .join_timeout_ms = as_i32(job->nodes.join_timeout_ms),
        .last_call_ms = as_i32(job->nodes.last_call_ms),
        .keep_alive_ms = as_i32(job->nodes.keep_alive_ms),
        .keep_alive_attempts = job->nodes.keep_alive_attempts,
        .restart_delay_ms = as_i32(job->restart_delay_ms),
        .restart_delay_max_ms = as_i32(job->restart_delay_max_ms),
        .crash_loop_count = job->crash_loop_count,
        .crash_loop_ms = as_i32(job->crash_loop_ms),
        .is_static = job->nodes.is_static,
        .has_agent_store = job->has_agent_store,
        .store_port = meeting->port,
        .pid = (int32_t)getpid()};
    snprintf(join->run_id, sizeof(join->run_id), "%s", run_id);
    snprintf(join->host, sizeof(join->host), "%s", host);
    snprintf(join->role, sizeof(join->role), "%s", job->role);
    if (job->nodes.local_addr != NULL)
        snprintf(join->addr, sizeof(join->addr), "%s", job->nodes.local_addr);
    list_own_addresses(join->addrs, sizeof(join->addrs));
}

static int decide_who_may_connect(
    struct nodes *n, const struct job_nodes *set, struct err *e)
{
    int rc = 0;

    if (set->token_path != NULL)
        rc = token_load(&n->token, set->token_path, e);
    if (rc < 0)
        return rc;
    if (access_create(&n->port_access) < 0 ||
        access_create(&n->store_access) < 0)
        return err_set(e, -ENOMEM, "out of memory");
    if (set->store_allow != NULL)
        rc = access_allow_cidrs(n->store_access, set->store_allow, e);
    return rc;
}

int nodes_create(struct nodes **out, uv_loop_t *loop, const struct job *job,
    struct meeting *meeting, const char *run_id, const char *host,
    uint64_t agent_id, size_t nfds, const struct node_link_callbacks *callbacks,
    void *arg, struct err *e)
{
    struct node_link_settings link = {.host = job->nodes.host,
        .port = job->nodes.port,
        .join_timeout_ms = job->nodes.join_timeout_ms,
        .coordinator_timeout_ms = job->nodes.coordinator_timeout_ms,
        .looked_up = host_late};
    struct nodes *n = calloc(1, sizeof(*n));
    int rc;

    if (n == NULL)
        return err_set(e, -ENOMEM, "out of memory");
    *out = n;
    n->agent_id = agent_id;
    n->job = job;
    n->meeting = meeting;
    n->run_id = run_id;
    n->host = host;
    rc = decide_who_may_connect(n, &job->nodes, e);
    if (rc < 0)
        return rc;
    link.token = n->token;
    link.looked_up_arg = n;
    rc = open_meeting(n, loop, nfds, e);
    if (rc < 0)
        return rc;
    /* The endpoint may be none that leads back to this host; or it leads to
     * another one, where node rank 0 (is_host) is given, too. */
    if (n->coordinator != NULL && !n->endpoint.is_own)
        link.own_host = "127.0.0.1";
    else if (n->coordinator != NULL && !n->endpoint.is_loopback)
        link.host = "127.0.0.1";
    introduce(&link.join, job, meeting, run_id, host);
    rc = node_link_create(&n->link, loop, &link, callbacks, arg);
    return rc < 0 ? err_set(e, rc, "set-up: %s", strerror(-rc)) : 0;
}

void nodes_send(struct nodes *n, const struct node_msg *msg)
{
    node_link_send(n->link, msg);
}

void nodes_finish(struct nodes *n)
{
    node_link_finish(n->link);
}

void nodes_allow_peers(struct nodes *n, const char *addrs, bool is_first)
{
    char copy[NODE_ADDRS_MAX];
    char *rest = copy;
    char *addr;

    if (is_first)
        access_clear_addresses(n->store_access);
    snprintf(copy, sizeof(copy), "%s", addrs);
    while ((addr = strsep(&rest, " ")) != NULL)
        access_allow_address(n->store_access, addr); /* names are none */
}

void nodes_destroy(struct nodes *n, const char *why)
{
    if (n == NULL)
        return;
    node_link_destroy(n->link);
    store_port_destroy(n->port);
    coordinator_destroy(n->coordinator, why);
    access_free(n->port_access);
    access_free(n->store_access);
    token_free(n->token);
    free(n);
}
