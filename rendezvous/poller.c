/*
 * See poller.h. An event carries the address of its item. Items are removed
 * while a batch of events is being worked through, so a later event of the
 * batch may be one of an item that is in no set any more: its fd tells, and
 * its memory stays until the batch is done.
 */
#include "rendezvous/poller.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

/* Events fetched at a time. The kernel hands them out in turn, so nobody
 * starves behind those of one batch. */
#define POLLER_BATCH 64

struct poller {
    int fd;
    bool is_running; /* a batch is being worked through */
    struct poller_item *to_free;
};

int poller_create(struct poller **out)
{
    struct poller *p = calloc(1, sizeof(*p));

    if (p == NULL)
        return -ENOMEM;
    p->fd = epoll_create1(EPOLL_CLOEXEC);
    if (p->fd < 0) {
        int rc = -errno;

        free(p);
        return rc;
    }
    *out = p;
    return 0;
}

static void free_removed(struct poller *p)
{
    struct poller_item *item;

    while ((item = p->to_free) != NULL) {
        p->to_free = item->next_free;
        free(item->memory);
    }
}

void poller_destroy(struct poller *p)
{
    if (p == NULL)
        return;
    assert(!p->is_running);
    close(p->fd);
    free(p);
}

int poller_add(struct poller *p, struct poller_item *item, int fd,
    uint32_t events, poller_ready_cb *ready_cb)
{
    struct epoll_event ev = {.events = events, .data.ptr = item};

    item->fd = -1;
    if (epoll_ctl(p->fd, EPOLL_CTL_ADD, fd, &ev) < 0)
        return -errno;
    item->fd = fd;
    item->ready_cb = ready_cb;
    return 0;
}

int poller_change(struct poller *p, struct poller_item *item, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = item};

    return epoll_ctl(p->fd, EPOLL_CTL_MOD, item->fd, &ev) < 0 ? -errno : 0;
}

void poller_remove(struct poller *p, struct poller_item *item)
{
    if (item->fd < 0)
        return;
    /* Closing would not do while another process has the same socket. */
    epoll_ctl(p->fd, EPOLL_CTL_DEL, item->fd, NULL);
    item->fd = -1;
}

void poller_free_later(struct poller *p, struct poller_item *item, void *memory)
{
    assert(item->fd < 0);
    if (!p->is_running) {
        free(memory);
        return;
    }
    item->memory = memory;
    item->next_free = p->to_free;
    p->to_free = item;
}

int poller_fd(const struct poller *p)
{
    return p->fd;
}

int poller_run(struct poller *p, int timeout_ms)
{
    struct epoll_event events[POLLER_BATCH];
    int n;

    assert(!p->is_running);
    n = epoll_wait(p->fd, events, POLLER_BATCH, timeout_ms);
    if (n < 0)
        return errno == EINTR ? 0 : -errno;
    p->is_running = true;
    for (int i = 0; i < n; i++) {
        struct poller_item *item = events[i].data.ptr;

        if (item->fd >= 0)
            item->ready_cb(item, events[i].events);
    }
    p->is_running = false;
    free_removed(p);
    return n;
}
