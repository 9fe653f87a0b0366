/* The back end "tcp": every rank by itself, wherever it is. */
#include "flat.h"
#include "p2p.h"
#include "pairs.h"
#include "tcp_internal.h"

#include <stdlib.h>
#include <sys/eventfd.h>

static void release(struct tcp_state *s)
{
    tcp_net_destroy(s->net);
    tcp_places_free(s->places);
    free(s);
}

static coll_status_t tcp_create(
    struct coll_group *g, const struct coll_boot *boot)
{
    struct tcp_state *s;
    struct tcp_meeting *meeting;
    coll_status_t status;

    if (g->size == 1)
        return COLL_OK;
    s = calloc(1, sizeof(*s));
    if (s == NULL)
        return coll_fail(COLL_ERR_MEMORY, "out of memory for a group");
    status = tcp_meet(&meeting, &s->net, &s->places, g, boot, true);
    if (status == COLL_OK)
        status = tcp_meeting_end(meeting, COLL_OK);
    if (status != COLL_OK) {
        /* There may be ranks that were told to go before this one was not. */
        if (s->net != NULL)
            tcp_net_fail(s->net, 0, status);
        release(s);
        return status;
    }
    g->state = s;
    return COLL_OK;
}

static void tcp_destroy(struct coll_group *g)
{
    struct tcp_state *s = g->state;

    if (s == NULL)
        return;
    if (g->failure != COLL_OK)
        tcp_net_fail(s->net, g->seq, g->failure);
    else
        tcp_net_leave(s->net, g->seq);
    release(s);
    g->state = NULL;
}

/* Also on how long the parts of all_to_all_v are. */
static coll_status_t agree(struct coll_group *g, const struct coll_call *call)
{
    struct tcp_net *net = ((struct tcp_state *)g->state)->net;
    struct tcp_gift gift = {pairs_bytes(g->size, (size_t)g->size), -1};
    coll_status_t status;

    if (call->kind != COLL_KIND_ALL_TO_ALL_V)
        return tcp_agree(net, call, NULL);
    pairs_pack(call, g->rank, g->size, gift.bytes, tcp_blocks(net));
    status = tcp_agree(net, call, &gift);
    if (status != COLL_OK)
        return status;
    tcp_list_blocks(net, &gift);
    return pairs_check(g, call, net->srcs, gift.bytes);
}

static coll_status_t run_flat(struct coll_group *g,
    const struct coll_call *call, enum coll_algorithm algorithm)
{
    struct tcp_net *net = ((struct tcp_state *)g->state)->net;
    coll_status_t status = agree(g, call);

    if (status == COLL_OK)
        status = flat_run(g, call, algorithm);
    if (status != COLL_OK)
        tcp_net_fail(net, call->seq, status);
    return status;
}

static coll_status_t run(struct coll_group *g, const struct coll_call *call)
{
    struct tcp_state *s = g->state;
    enum coll_algorithm algorithm;

    if (s == NULL)
        return coll_backend_self.run(g, call);
    algorithm = tcp_choose(s->net, g, call, false);
    if (tcp_has(call->kind, algorithm))
        return tcp_run(s->net, call, algorithm);
    return run_flat(g, call, algorithm);
}

static void give_up(struct coll_group *g, coll_status_t status)
{
    struct tcp_state *s = g->state;

    if (s != NULL)
        tcp_net_fail(s->net, g->seq, status);
}

static coll_status_t look(struct coll_group *g, const struct coll_call *call)
{
    struct tcp_state *s = g->state;

    return s == NULL ? COLL_OK : tcp_look(s->net, call);
}

static void wake(struct coll_group *g)
{
    struct tcp_state *s = g->state;

    if (s != NULL)
        eventfd_write(s->net->wake_fd, 1);
}

static void after_fork(struct coll_group *g)
{
    struct tcp_state *s = g->state;

    if (s == NULL)
        return;
    tcp_net_after_fork(s->net);
    p2p_after_fork(g->p2p);
}

const struct coll_backend coll_backend_tcp = {
    .name = "tcp",
    .max_ranks = TCP_MAX_RANKS,
    .create = tcp_create,
    .destroy = tcp_destroy,
    .run = run,
    .give_up = give_up,
    .look = look,
    .wake = wake,
    .after_fork = after_fork,
};
