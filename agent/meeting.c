/* See meeting.h. */
#include "agent/meeting.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/store_limits.h"
#include "rendezvous/store_port.h"
#include "rendezvous/store_server.h"

#define PORT_PATIENCE_MS 1000
#define PORT_PAUSE_MS 20

/* Whoever connects to the store must not take the descriptors that the agent
 * needs; but the workers need some there, too. */
static size_t max_connections(int nproc, size_t own)
{
    size_t least = 16 + 2 * (size_t)nproc;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur < own + least)
        return least;
    return limit.rlim_cur - own < STORE_LIMITS_DEFAULT.clients
               ? limit.rlim_cur - own
               : STORE_LIMITS_DEFAULT.clients;
}

int meeting_open(struct meeting *m, uv_loop_t *loop, const char *host, int port,
    bool has_store, int nproc, size_t nfds, struct err *e)
{
    const struct timespec pause = {0, PORT_PAUSE_MS * 1000000};
    const struct store_port_options options = {
        .max_connections = max_connections(nproc, nfds),
        .agent_cb = m->agent_cb,
        .agent_arg = m->agent_arg,
        .access = m->access};
    uint64_t until_ns = clock_deadline_ns(PORT_PATIENCE_MS);
    int rc;

    rc = poller_create(&m->poller);
    if (rc == 0)
        rc = poller_uv_start(&m->poller_uv, loop, m->poller);
    if (rc < 0)
        return err_set(e, rc, "set-up: %s", strerror(-rc));
    m->has_store = has_store;
    for (;;) {
        if (has_store)
            rc = store_port_create(
                &m->listener, m->poller, host, port, &options, &m->port, e);
        else
            rc = listen_reserve(host, port, m->reserved, &m->port, e);
        if (rc != -EADDRINUSE || clock_left_ms(until_ns) == 0)
            break;
        nanosleep(&pause, NULL);
    }
    if (rc > 0)
        m->nreserved = rc;
    return rc < 0 ? rc : 0;
}

int meeting_begin_round(struct meeting *m, struct err *e)
{
    int rc;

    if (!m->has_store)
        return 0;
    rc = store_server_create(&m->store, m->poller, NULL);
    if (rc < 0)
        return err_set(e, rc, "cannot create the store: %s", strerror(-rc));
    store_port_set_store(m->listener, m->store);
    return 0;
}

void meeting_end_round(struct meeting *m)
{
    if (m->store == NULL)
        return;
    store_port_set_store(m->listener, NULL);
    store_server_destroy(m->store);
    m->store = NULL;
}

void meeting_close(struct meeting *m)
{
    meeting_end_round(m);
    store_port_destroy(m->listener);
    poller_uv_close(&m->poller_uv, NULL);
    poller_destroy(m->poller);
    for (int i = 0; i < m->nreserved; i++)
        close(m->reserved[i]);
}
