/* A poller as a guest in a libuv loop. */
#ifndef CRUN_RENDEZVOUS_POLLER_UV_H
#define CRUN_RENDEZVOUS_POLLER_UV_H

#include <uv.h>

#include "rendezvous/poller.h"

/* Memory of the caller's, zero at first, which must stay until closed_cb. */
struct poller_uv {
    uv_poll_t poll;
    struct poller *poller; /* borrowed */
    void (*closed_cb)(struct poller_uv *u); /* may be NULL */
};

/* 0 or a negative errno, and nothing has to be closed then. */
int poller_uv_start(struct poller_uv *u, uv_loop_t *loop, struct poller *p);

/* Call it before poller_destroy(); closed_cb follows from the loop. Does
 * nothing, and calls nobody, if it was never started. */
void poller_uv_close(
    struct poller_uv *u, void (*closed_cb)(struct poller_uv *u));

#endif
