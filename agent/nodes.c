/* See nodes.h. */
#include "agent/nodes.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/log.h"
#include "rendezvous/coordinator.h"
#include "rendezvous/resolve.h"

#define RESOLVE_MS 30000

struct nodes {
    struct coordinator *coordinator; /* NULL: another node hosts it */
    struct store_port *port; /* of the coordinator; NULL: the meeting's is */
    struct node_link *link;
};

static void adopt(int fd, const void *head, size_t head_len, void *arg)
{
    struct nodes *n = arg;

    coordinator_adopt(fd, head, head_len, n->coordinator);
}

static bool is_loopback(const struct sockaddr *sa)
{
    const struct sockaddr_in *sin =
        (const struct sockaddr_in *)(const void *)sa;
    const struct sockaddr_in6 *sin6 =
        (const struct sockaddr_in6 *)(const void *)sa;

    if (sa->sa_family == AF_INET)
        return ntohl(sin->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&sin6->sin6_addr);
}

/* Whether the endpoint is nothing that another host could reach. A host's own
 * name may be a loopback address for itself only. */
static bool is_loopback_endpoint(const struct job_nodes *set)
{
    struct addrinfo *list;
    bool is_all = true;
    char name[256];

    if (gethostname(name, sizeof(name)) == 0 &&
        strncmp(set->host, name, strcspn(name, ".")) == 0)
        return false;
    if (resolve_until(
            set->host, set->port, 0, clock_deadline_ns(RESOLVE_MS), &list) != 0)
        return false;
    for (struct addrinfo *ai = list; ai != NULL; ai = ai->ai_next)
        is_all = is_all && is_loopback(ai->ai_addr);
    freeaddrinfo(list);
    return is_all;
}

static bool is_own_address(const char *host)
{
    int fds[LISTEN_MAX];
    int port;
    int n = listen_reserve(host, 0, fds, &port, NULL);

    for (int i = 0; i < n; i++)
        close(fds[i]);
    return n > 0;
}

static int create_coordinator(struct nodes *n, struct poller *p,
    const struct job *job, const char *run_id)
{
    const struct job_nodes *set = &job->nodes;
    struct membership_settings m = {.is_static = set->is_static,
        .min_nodes = set->min,
        .max_nodes = set->max,
        .max_restarts = job->max_restarts,
        .join_timeout_ms = set->join_timeout_ms,
        .last_call_ms = set->last_call_ms,
        .keep_alive_ms = set->keep_alive_ms,
        .keep_alive_attempts = set->keep_alive_attempts,
        .restart_delay_ms = job->restart_delay_ms,
        .restart_delay_max_ms = job->restart_delay_max_ms,
        .crash_loop_count = job->crash_loop_count,
        .crash_loop_ms = job->crash_loop_ms,
        .master_port = job->master_port};

    snprintf(m.run_id, sizeof(m.run_id), "%s", run_id);
    snprintf(m.master_addr, sizeof(m.master_addr), "%s", job->master_addr);
    return coordinator_create(&n->coordinator, p, &m);
}

/* Dynamic: beside the meeting. Whoever guesses gives way to whoever is there
 * already: on one host there may be several agents. */
static int host_dynamic(struct nodes *n, struct meeting *meeting,
    const struct job *job, const char *run_id, const char *listen_host,
    struct err *e)
{
    const struct job_nodes *set = &job->nodes;
    const struct store_port_options options = {
        .agent_cb = adopt, .agent_arg = n};
    int port, rc;

    if (set->is_host == 0 || (set->is_host < 0 && !is_own_address(set->host)))
        return 0;
    rc = store_port_create(
        &n->port, meeting->poller, listen_host, set->port, &options, &port, e);
    if (rc == -EADDRINUSE && set->is_host < 0)
        return 0;
    if (rc < 0)
        return rc;
    rc = create_coordinator(n, meeting->poller, job, run_id);
    return rc < 0 ? err_set(e, rc, "the coordinator: %s", strerror(-rc)) : 0;
}

static int open_meeting(struct nodes *n, uv_loop_t *loop,
    struct meeting *meeting, const struct job *job, const char *run_id,
    size_t nfds, struct err *e)
{
    const struct job_nodes *set = &job->nodes;
    bool is_local = is_loopback_endpoint(set);
    const char *listen_host = is_local ? set->host : "::";
    bool is_static_host = set->is_static && set->node_rank == 0;
    int rc;

    if (is_local)
        log_warn("agent",
            "the endpoint %s is a loopback address: nodes on other hosts "
            "cannot reach it",
            set->host);
    if (is_static_host) {
        meeting->agent_cb = adopt;
        meeting->agent_arg = n;
    }
    rc = meeting_open(meeting, loop, listen_host,
        is_static_host ? set->port : 0, true, job->nproc, nfds, e);
    if (rc < 0 || (set->is_static && !is_static_host))
        return rc;
    if (!is_static_host)
        return host_dynamic(n, meeting, job, run_id, listen_host, e);
    rc = create_coordinator(n, meeting->poller, job, run_id);
    return rc < 0 ? err_set(e, rc, "the coordinator: %s", strerror(-rc)) : 0;
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
        .is_static = job->nodes.is_static,
        .store_port = meeting->port,
        .pid = (int32_t)getpid()};
    snprintf(join->run_id, sizeof(join->run_id), "%s", run_id);
    snprintf(join->host, sizeof(join->host), "%s", host);
    snprintf(join->role, sizeof(join->role), "%s", job->role);
    if (job->nodes.local_addr != NULL)
        snprintf(join->addr, sizeof(join->addr), "%s", job->nodes.local_addr);
}

int nodes_create(struct nodes **out, uv_loop_t *loop, const struct job *job,
    struct meeting *meeting, const char *run_id, const char *host, size_t nfds,
    const struct node_link_callbacks *callbacks, void *arg, struct err *e)
{
    struct node_link_settings link = {.host = job->nodes.host,
        .port = job->nodes.port,
        .join_timeout_ms = job->nodes.join_timeout_ms};
    struct nodes *n = calloc(1, sizeof(*n));
    int rc;

    if (n == NULL)
        return err_set(e, -ENOMEM, "out of memory");
    *out = n;
    rc = open_meeting(n, loop, meeting, job, run_id, nfds, e);
    if (rc < 0)
        return rc;
    introduce(&link.join, job, meeting, run_id, host);
    rc = node_link_create(&n->link, loop, &link, callbacks, arg);
    return rc < 0 ? err_set(e, rc, "set-up: %s", strerror(-rc)) : 0;
}

void nodes_send(struct nodes *n, const struct node_msg *msg)
{
    node_link_send(n->link, msg);
}

void nodes_destroy(struct nodes *n)
{
    if (n == NULL)
        return;
    node_link_destroy(n->link);
    store_port_destroy(n->port);
    coordinator_destroy(n->coordinator);
    free(n);
}
