/*
 * The back end "tcp": every rank by itself, wherever it is. Owns the group's
 * struct tcp_net, which is NULL in a world of one.
 */
#include "tcp_internal.h"

static coll_status_t tcp_create(
    struct coll_group *g, const struct coll_boot *boot)
{
    struct tcp_meeting *meeting;
    struct tcp_net *net;
    coll_status_t status;

    if (g->size == 1)
        return COLL_OK;
    status = tcp_meet(&meeting, &net, g, boot, true);
    if (status != COLL_OK)
        return status;
    status = tcp_meeting_end(meeting, COLL_OK);
    if (status != COLL_OK) {
        tcp_net_destroy(net);
        return status;
    }
    g->state = net;
    return COLL_OK;
}

static void tcp_destroy(struct coll_group *g)
{
    struct tcp_net *net = g->state;

    if (net == NULL)
        return;
    if (g->failure != COLL_OK)
        tcp_net_fail(net, g->seq, g->failure);
    else
        tcp_net_leave(net, g->seq);
    tcp_net_destroy(net);
    g->state = NULL;
}

static coll_status_t run(struct coll_group *g, const struct coll_call *call)
{
    return g->state == NULL ? coll_backend_self.run(g, call)
                            : tcp_run(g->state, call);
}

const struct coll_backend coll_backend_tcp = {
    .name = "tcp",
    .max_ranks = TCP_MAX_RANKS,
    .create = tcp_create,
    .destroy = tcp_destroy,
    .run = run,
};
