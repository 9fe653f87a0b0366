/* See poller_uv.h. An epoll descriptor can itself be watched. */
#include "rendezvous/poller_uv.h"

static void poll_cb(uv_poll_t *handle, int status, int events)
{
    struct poller_uv *u = handle->data;

    (void)status;
    (void)events;
    /* Whoever is not of this batch makes the descriptor readable again. */
    poller_run(u->poller, 0);
}

int poller_uv_start(struct poller_uv *u, uv_loop_t *loop, struct poller *p)
{
    int rc = uv_poll_init(loop, &u->poll, poller_fd(p));

    if (rc < 0)
        return rc;
    u->poll.data = u;
    u->poller = p;
    u->closed_cb = NULL;
    return uv_poll_start(&u->poll, UV_READABLE, poll_cb); /* cannot fail now */
}

static void close_cb(uv_handle_t *handle)
{
    struct poller_uv *u = handle->data;

    if (u->closed_cb != NULL)
        u->closed_cb(u);
}

void poller_uv_close(
    struct poller_uv *u, void (*closed_cb)(struct poller_uv *u))
{
    if (u->poll.data == NULL)
        return;
    u->closed_cb = closed_cb;
    uv_close((uv_handle_t *)&u->poll, close_cb);
}
