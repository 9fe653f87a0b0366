/*
 * Name resolution; see resolve.h. The look-up of a name shares one
 * object with its thread: whoever comes last, the thread or the caller who
 * has given up, frees it.
 */
#include "rendezvous/resolve.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"

struct lookup {
    pthread_mutex_t lock;
    pthread_cond_t has_ended;
    bool is_done; /* rc and list are set */
    bool is_abandoned; /* nobody waits for them any more */
    int rc;
    struct addrinfo *list;
    int fd; /* an event when it is done; -1: nobody watches */
    int flags, port;
    char host[];
};

/* hint_flags: AI_NUMERICHOST for a number, 0 for a name. */
static int look_up(const char *host, int port, int flags, int hint_flags,
    struct addrinfo **out)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
        .ai_flags = flags | hint_flags | AI_NUMERICSERV};
    char service[16];

    snprintf(service, sizeof(service), "%d", port);
    return getaddrinfo(host, service, &hints, out);
}

static void lookup_destroy(struct lookup *l)
{
    if (l->list != NULL)
        freeaddrinfo(l->list);
    if (l->fd >= 0)
        close(l->fd);
    pthread_cond_destroy(&l->has_ended);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static struct lookup *lookup_create(const char *host, int port, int flags)
{
    size_t len = strlen(host) + 1;
    struct lookup *l = calloc(1, sizeof(*l) + len);
    pthread_condattr_t attr;

    if (l == NULL)
        return NULL;
    memcpy(l->host, host, len);
    l->fd = -1;
    l->port = port;
    l->flags = flags;
    pthread_mutex_init(&l->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&l->has_ended, &attr);
    pthread_condattr_destroy(&attr);
    return l;
}

static void *lookup_main(void *arg)
{
    struct lookup *l = arg;
    struct addrinfo *list = NULL;
    int rc = look_up(l->host, l->port, l->flags, 0, &list);
    bool is_last;

    pthread_mutex_lock(&l->lock);
    l->rc = rc;
    l->list = rc == 0 ? list : NULL;
    l->is_done = true;
    is_last = l->is_abandoned;
    pthread_cond_signal(&l->has_ended);
    if (l->fd >= 0)
        eventfd_write(l->fd, 1); /* cannot fail: it is the first */
    pthread_mutex_unlock(&l->lock);
    if (is_last)
        lookup_destroy(l);
    return NULL;
}

/* The thread takes no signal: those are for the program that uses us. */
static bool lookup_start(struct lookup *l)
{
    sigset_t all, before;
    pthread_attr_t attr;
    pthread_t thread;
    int rc;

    sigfillset(&all);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&thread, &attr, lookup_main, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return rc == 0;
}

/* Frees the object, or leaves that to the thread. */
static int lookup_finish(
    struct lookup *l, uint64_t deadline_ns, struct addrinfo **out)
{
    const struct timespec until = {
        .tv_sec = (time_t)(deadline_ns / CLOCK_NS_PER_S),
        .tv_nsec = (long)(deadline_ns % CLOCK_NS_PER_S),
    };
    int rc = 0;

    pthread_mutex_lock(&l->lock);
    while (!l->is_done && rc == 0)
        rc = pthread_cond_timedwait(&l->has_ended, &l->lock, &until);
    if (!l->is_done) {
        l->is_abandoned = true;
        pthread_mutex_unlock(&l->lock);
        return EAI_INPROGRESS;
    }
    rc = l->rc;
    *out = l->list;
    l->list = NULL;
    pthread_mutex_unlock(&l->lock);
    lookup_destroy(l);
    return rc;
}

int resolve_until(const char *host, int port, int flags, uint64_t deadline_ns,
    struct addrinfo **out)
{
    int rc = look_up(host, port, flags, AI_NUMERICHOST, out);
    struct lookup *l;

    if (rc != EAI_NONAME)
        return rc;
    l = lookup_create(host, port, flags);
    if (l == NULL)
        return EAI_MEMORY;
    if (!lookup_start(l)) {
        lookup_destroy(l);
        return look_up(host, port, flags, 0, out); /* better late than never */
    }
    return lookup_finish(l, deadline_ns, out);
}

int resolve_start(struct lookup **out, const char *host, int port, int *fd)
{
    struct lookup *l = lookup_create(host, port, 0);
    int rc;

    if (l == NULL)
        return -ENOMEM;
    l->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->fd < 0) {
        rc = -errno;
        lookup_destroy(l);
        return rc;
    }
    *fd = l->fd;
    *out = l;
    l->rc = look_up(host, port, 0, AI_NUMERICHOST, &l->list);
    if (l->rc != EAI_NONAME) {
        l->is_done = true;
        eventfd_write(l->fd, 1);
    } else if (!lookup_start(l)) {
        lookup_destroy(l);
        return -EAGAIN;
    }
    return 0;
}

int resolve_end(struct lookup *l, struct addrinfo **out)
{
    return lookup_finish(l, 0, out);
}
