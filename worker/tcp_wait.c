/*
 * All waiting of an operation over TCP: moving bytes both ways, taking in the
 * news, and finding out why something does not come. An error here is what
 * keeps every operation from hanging.
 *
 * News and data travel apart, so one may overtake the other. What was sent
 * before the end of a rank stays valid: a wait fails only when nothing more
 * can be moved, and only for the end of a rank that it needs, or for what
 * another rank has said of its failure.
 */
#include "tcp_internal.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "coll_agent.h"
#include "coll_signature.h"
#include "p2p.h"
#include "rendezvous/base/clock.h"

/* The two connections of a rank that has ended may end so far apart, and one
 * that fails says why before. */
#define END_MS 1000

/* How often who sleeps looks whether somebody's time is over who waits for it
 * elsewhere: see p2p_is_asked(). */
#define LOOK_MS 100

/* For so long a rank looks again before it sleeps. */
#define SPIN_NS ((uint64_t)50 * 1000)

/* --- Why it fails --------------------------------------------------------- */

/* What another rank has said, or COLL_OK. Who has failed in a later operation
 * has done its part of this one. */
static coll_status_t check_failures(
    const struct tcp_net *net, const struct coll_call *call)
{
    for (int i = 0; i < net->nlinks; i++) {
        const struct tcp_link *link = &net->links[i];

        if (link->failure != COLL_OK && link->failed_in <= call->seq)
            return coll_fail(link->failure, "%s", link->text);
    }
    return COLL_OK;
}

static coll_status_t fail_ended(const struct tcp_net *net,
    const struct tcp_link *link, const struct coll_call *call)
{
    int rank = net->names[link->rank];
    char name[64];

    coll_call_text(name, sizeof(name), call);
    if (link->failure != COLL_OK)
        return coll_fail(link->failure, "%s", link->text);
    if (link->has_left)
        return coll_fail(COLL_ERR_PEER,
            "rank %d left after operation %llu, rank %d is in %s", rank,
            (unsigned long long)link->left_after, net->names[net->rank], name);
    if (coll_agent_await_cause())
        return coll_agent_fail(name);
    return coll_fail(COLL_ERR_PEER,
        "rank %d at %s is gone: its connection ended during %s without "
        "coll_destroy()",
        rank, link->addr, name);
}

/* --- News ----------------------------------------------------------------- */

static void note_end(struct tcp_link *link)
{
    if (link->ended_ns == 0)
        link->ended_ns = clock_now_ns();
}

static void take_message(struct tcp_link *link)
{
    struct tcp_news *news = &link->in;

    news->text[sizeof(news->text) - 1] = '\0';
    switch ((enum tcp_news_kind)news->kind) {
    case TCP_FAILED:
        if (link->failure != COLL_OK || news->status >= 0)
            return;
        link->failure = (coll_status_t)news->status;
        link->failed_in = news->seq;
        memcpy(link->text, news->text, sizeof(link->text));
        return;
    case TCP_LEFT:
        link->has_left = true;
        link->left_after = news->seq;
        note_end(link);
        return;
    }
}

static void take_news(struct tcp_link *link)
{
    while (!link->news_have_ended) {
        char *in = (char *)&link->in;
        ssize_t n = recv(link->news, in + link->in_len,
            sizeof(link->in) - link->in_len, MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n > 0)
            link->in_len += (size_t)n;
        if (n <= 0 || (link->in_len == sizeof(link->in) &&
                          link->in.magic != TCP_NEWS_MAGIC)) {
            link->news_have_ended = true;
            note_end(link);
        } else if (link->in_len == sizeof(link->in)) {
            link->in_len = 0;
            take_message(link);
        }
    }
}

/* --- Waiting -------------------------------------------------------------- */

/* Has a rank that is needed ended, as far as can be known? Else *deadline_ns
 * is moved to when that may be said. */
static coll_status_t check_flow(const struct tcp_net *net,
    const struct tcp_flow *flow, const struct coll_call *call,
    uint64_t *deadline_ns)
{
    const struct tcp_link *link = flow->link;
    uint64_t until_ns;

    if (flow->left == 0 || link->ended_ns == 0)
        return COLL_OK;
    until_ns = link->ended_ns + END_MS * CLOCK_NS_PER_MS;
    if ((link->data_has_ended && (link->news_have_ended || link->has_left)) ||
        clock_now_ns() >= until_ns)
        return fail_ended(net, link, call);
    if (until_ns < *deadline_ns)
        *deadline_ns = until_ns;
    return COLL_OK;
}

static void watch_flow(
    struct pollfd *p, const struct tcp_flow *flow, short events)
{
    *p = (struct pollfd){.fd = -1, .events = events};
    if (flow->left > 0 && !flow->link->data_has_ended)
        p->fd = flow->link->data;
}

/* Waits until something has happened or the time is over, and takes it in. */
static coll_status_t wait_once(struct tcp_net *net,
    const struct coll_call *call, const struct tcp_flow *out,
    const struct tcp_flow *in, uint64_t deadline_ns)
{
    struct pollfd *p = net->polls;
    struct pollfd *of_links = p + TCP_EXTRA_POLLS;
    char name[64];
    coll_status_t status = COLL_OK;

    watch_flow(&p[0], out, POLLOUT);
    watch_flow(&p[1], in, POLLIN);
    p[2] = (struct pollfd){.fd = coll_agent_fd(), .events = POLLIN};
    p[3] = (struct pollfd){.fd = net->watch_fd, .events = POLLIN};
    p[4] = (struct pollfd){.fd = net->wake_fd, .events = POLLIN};
    for (int i = 0; i < net->nlinks; i++) {
        const struct tcp_link *link = &net->links[i];

        of_links[i] = (struct pollfd){
            .fd = link->news_have_ended ? -1 : link->news, .events = POLLIN};
    }
    if (poll(p, (nfds_t)(TCP_EXTRA_POLLS + net->nlinks),
            clock_left_ms(deadline_ns)) < 0)
        return errno == EINTR ? COLL_OK
                              : coll_fail(COLL_ERR_SYSTEM, "%s: poll: %s",
                                    coll_call_text(name, sizeof(name), call),
                                    strerror(errno));
    for (int i = 0; i < net->nlinks; i++)
        if (of_links[i].revents != 0)
            take_news(&net->links[i]);
    if (p[4].revents != 0 && atomic_load(&net->g->is_aborted))
        status = coll_group_check(net->g);
    if (status != COLL_OK)
        return status;
    /* Who looked at messages may have taken the launcher's word. */
    if (coll_agent_is_told())
        status = coll_agent_fail(coll_call_text(name, sizeof(name), call));
    else if (p[3].revents != 0)
        status = net->watch_cb(net->watch_arg, call);
    return status;
}

/* The time is over, here or on another rank: finds out on whose account. */
static coll_status_t settle(const struct tcp_net *net,
    const struct coll_call *call, const struct tcp_flow *out,
    const struct tcp_flow *in)
{
    const struct tcp_flow *const flows[] = {in, out};
    int ranks[2];
    size_t n = 0;

    /* What is in a later operation does not count, or did not till now. */
    for (int i = 0; i < net->nlinks; i++)
        if (net->links[i].failure != COLL_OK)
            return coll_fail(net->links[i].failure, "%s", net->links[i].text);
    for (int i = 0; i < 2; i++)
        if (flows[i]->left > 0)
            ranks[n++] = net->ranks[flows[i]->link->rank];
    return p2p_await(net->g->p2p, call, ranks, n);
}

coll_status_t tcp_check(struct tcp_net *net, const struct coll_call *call)
{
    coll_status_t status;

    for (int i = 0; i < net->nlinks; i++)
        take_news(&net->links[i]);
    status = check_failures(net, call);
    for (int i = 0; i < net->nlinks && status == COLL_OK; i++)
        if (net->links[i].ended_ns != 0)
            status = fail_ended(net, &net->links[i], call);
    return status;
}

/* What is on a device may be behind a rank's last word, and before its failure
 * in a later operation. */
coll_status_t tcp_look(struct tcp_net *net, const struct coll_call *call)
{
    for (int i = 0; i < net->nlinks; i++) {
        struct tcp_link *link = &net->links[i];

        take_news(link);
        if (link->failure != COLL_OK ||
            (link->ended_ns != 0 && !link->has_left))
            return fail_ended(net, link, call);
    }
    return COLL_OK;
}

/* --- Moving --------------------------------------------------------------- */

/* Moves what can be moved without waiting; whether that was anything. */
static bool move_flow(struct tcp_flow *flow, bool is_out)
{
    bool has_moved = false;

    while (flow->left > 0 && !flow->link->data_has_ended) {
        ssize_t n =
            is_out ? send(flow->link->data, flow->at, flow->left,
                         MSG_NOSIGNAL | MSG_DONTWAIT)
                   : recv(flow->link->data, flow->at, flow->left, MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n <= 0) {
            flow->link->data_has_ended = true;
            note_end(flow->link);
            break;
        }
        flow->at += n;
        flow->left -= (size_t)n;
        has_moved = true;
        /* The other direction must not wait for all of a large buffer. */
        if (flow->left > 0)
            break;
    }
    return has_moved;
}

/* Until the two have no more than so much left; or, is_any, one of them. */
static coll_status_t exchange(struct tcp_net *net, const struct coll_call *call,
    struct tcp_flow *out, struct tcp_flow *in, size_t out_left, size_t in_left,
    bool is_any)
{
    uint64_t spin_ns = 0;
    uint64_t look_ns = 0; /* no wait was that long yet */

    for (;;) {
        bool has_moved = move_flow(out, true);
        uint64_t deadline_ns = call->deadline_ns;
        coll_status_t status;

        has_moved |= move_flow(in, false);
        if (is_any ? out->left <= out_left || in->left <= in_left
                   : out->left <= out_left && in->left <= in_left)
            return COLL_OK;
        if (has_moved) {
            spin_ns = 0;
            continue;
        }
        /* What comes at once is not worth going to sleep for. */
        if (spin_ns == 0)
            spin_ns = clock_now_ns() + SPIN_NS;
        if (clock_now_ns() < spin_ns) {
            sched_yield();
            continue;
        }
        status = check_failures(net, call);
        if (status == COLL_OK)
            status = check_flow(net, in, call, &deadline_ns);
        if (status == COLL_OK)
            status = check_flow(net, out, call, &deadline_ns);
        if (status != COLL_OK)
            return status;
        if (clock_now_ns() >= call->deadline_ns ||
            (look_ns != 0 && clock_now_ns() >= look_ns &&
                p2p_is_asked(net->g->p2p, call->seq)))
            return settle(net, call, out, in);
        if (look_ns == 0 || clock_now_ns() >= look_ns)
            look_ns = clock_deadline_ns(LOOK_MS);
        if (look_ns < deadline_ns)
            deadline_ns = look_ns;
        status = wait_once(net, call, out, in, deadline_ns);
        if (status != COLL_OK)
            return status;
    }
}

coll_status_t tcp_exchange_until(struct tcp_net *net,
    const struct coll_call *call, struct tcp_flow *out, struct tcp_flow *in,
    size_t out_left, size_t in_left)
{
    return exchange(net, call, out, in, out_left, in_left, false);
}

coll_status_t tcp_exchange_any(struct tcp_net *net,
    const struct coll_call *call, struct tcp_flow *out, struct tcp_flow *in)
{
    /* What has nothing left already does not count. */
    return exchange(net, call, out, in, 0, 0, out->left > 0 && in->left > 0);
}
