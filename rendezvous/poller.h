/*
 * A set of descriptors and what to do when they are ready: epoll(7), and
 * nothing else. Servers are written against it rather than against libuv, so
 * that a store can live in a worker as well as in an agent's loop: a thread
 * calls poller_run(), a libuv loop watches poller_fd() (poller_uv.h).
 *
 * Descriptors are watched level-triggered. One thread at a time.
 */
#ifndef CRUN_RENDEZVOUS_POLLER_H
#define CRUN_RENDEZVOUS_POLLER_H

#include <stdint.h>
#include <sys/epoll.h>

struct poller;
struct poller_item;

/* events: EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP. An item that was removed and
 * added again may be called once for nothing. */
typedef void poller_ready_cb(struct poller_item *item, uint32_t events);

/* Embedded in its owner. Who was in a set is freed with poller_free_later(),
 * because an event of it may already have been fetched. */
struct poller_item {
    int fd; /* -1 while it is in no set */
    poller_ready_cb *ready_cb;
    struct poller_item *next_free;
    void *memory; /* what poller_free_later() will free */
};

int poller_create(struct poller **out);

/* Every item must have been removed. Not from within poller_run(). */
void poller_destroy(struct poller *p); /* takes NULL */

/* 0 or a negative errno; the item then is in no set. */
int poller_add(struct poller *p, struct poller_item *item, int fd,
    uint32_t events, poller_ready_cb *ready_cb);

/* 0 or a negative errno; the item is watched as before then. */
int poller_change(struct poller *p, struct poller_item *item, uint32_t events);

/* Before the descriptor is closed, which is the owner's. */
void poller_remove(struct poller *p, struct poller_item *item);

/* Frees the memory that holds a removed item: at once, or from within
 * poller_run() when that is about to return. */
void poller_free_later(
    struct poller *p, struct poller_item *item, void *memory);

/* Readable when somebody is ready. */
int poller_fd(const struct poller *p);

/* Calls those who are ready, each once; waits for the first for at most
 * timeout_ms (0: not at all, negative: for ever). Returns how many, 0 also
 * after a signal, or a negative errno. Not from within itself. */
int poller_run(struct poller *p, int timeout_ms);

#endif
