/*
 * The back end "shm": the ranks of one node through one segment of shared
 * memory. Owns the group's struct shm_state from create to destroy; see
 * shm_internal.h for how it works.
 */
#include "shm_reach.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "coll_fds.h"

static void release(struct shm_state *s)
{
    if (s == NULL)
        return;
    coll_fds_promise(-s->size);
    if (s->control != NULL)
        munmap(s->control, s->map_bytes);
    for (int r = 0; s->peers != NULL && r < s->size; r++)
        shm_drop_peer(s, r);
    if (s->epoll >= 0)
        close(s->epoll);
    for (int l = 0; l < SHM_LANES; l++) {
        int *pipes = s->inboxes[l].pipes;

        for (int r = 0; pipes != NULL && r < s->size; r++)
            if (pipes[r] >= 0)
                close(pipes[r]);
        free(pipes);
    }
    pthread_mutex_destroy(&s->lock);
    shm_reach_free(s->reach);
    free(s->scratch);
    free(s->peers);
    free(s->set);
    free(s->srcs);
    free(s);
}

static coll_status_t shm_create(
    struct coll_group *g, const struct coll_boot *boot)
{
    size_t size = (size_t)g->size;
    struct shm_state *s = calloc(1, sizeof(*s));
    coll_status_t status;
    int rc;

    if (s == NULL)
        goto fail_memory;
    pthread_mutex_init(&s->lock, NULL);
    s->rank = g->rank;
    s->size = g->size;
    coll_fds_promise(s->size);
    s->names = g->names;
    s->epoll = -1;
    s->set = calloc(size, sizeof(*s->set));
    s->srcs = calloc(size, sizeof(*s->srcs));
    s->peers = calloc(size, sizeof(*s->peers));
    if (s->set == NULL || s->srcs == NULL || s->peers == NULL)
        goto fail_memory;
    for (int r = 0; r < s->size; r++)
        s->peers[r] = (struct shm_peer){.link = -1, .pidfd = -1};
    for (int l = 0; l < SHM_LANES; l++) {
        s->inboxes[l].wake_fd = -1;
        s->inboxes[l].pipes = malloc(size * sizeof(*s->inboxes[l].pipes));
        if (s->inboxes[l].pipes == NULL)
            goto fail_memory;
        for (int r = 0; r < s->size; r++)
            s->inboxes[l].pipes[r] = -1;
    }
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (s->epoll < 0) {
        status = coll_fail(
            COLL_ERR_SYSTEM, "coll_init: epoll_create1: %s", strerror(errno));
        release(s);
        return status;
    }
    g->state = s;
    rc = shm_watch_agent(s);
    if (rc == 0)
        rc = shm_watch_interrupt(s);
    if (rc < 0)
        status = coll_fail(COLL_ERR_SYSTEM, "coll_init: watch the launcher: %s",
            strerror(-rc));
    else
        status = shm_connect(g, boot);
    shm_unwatch_interrupt(s);
    if (status != COLL_OK) {
        release(s);
        g->state = NULL;
    }
    return status;
fail_memory:
    release(s);
    return coll_fail(
        COLL_ERR_MEMORY, "out of memory for a group of %d ranks", g->size);
}

static void shm_destroy(struct coll_group *g)
{
    struct shm_state *s = g->state;
    struct shm_control *own = &s->control[s->rank];

    /* coll_init() failed on this rank after the group was made. */
    if (g->failure != COLL_OK && !shm_has_failed(s, s->rank))
        shm_announce_failure(s, g->failure, SHM_HAD_GROUP);
    own->left_after_seq = g->seq;
    atomic_store(&own->has_left, 1);
    shm_wake_all(s);
    release(s);
    g->state = NULL;
}

/* Through the slots. */
static coll_status_t run_staged(struct coll_group *g,
    const struct coll_call *call, enum coll_algorithm algorithm)
{
    switch (call->kind) {
    case COLL_KIND_ALL_REDUCE:
    case COLL_KIND_REDUCE:
        return shm_reduce(g, call, algorithm);
    case COLL_KIND_BROADCAST:
        return shm_broadcast(g, call);
    case COLL_KIND_BARRIER:
        return shm_first_tick(g, call);
    case COLL_KIND_ALL_GATHER:
    case COLL_KIND_ALL_GATHER_V:
    case COLL_KIND_GATHER:
        return shm_gather(g, call);
    case COLL_KIND_SCATTER:
    case COLL_KIND_REDUCE_SCATTER:
    case COLL_KIND_REDUCE_SCATTER_V:
    case COLL_KIND_ALL_TO_ALL:
        return shm_scatter(g, call);
    case COLL_KIND_ALL_TO_ALL_V:
        return shm_all_to_all_v(g, call);
    case COLL_KIND_ALL_REDUCE_COALESCED:
    case COLL_KIND_ALL_GATHER_COALESCED:
    case COLL_KIND_REDUCE_SCATTER_COALESCED:
    case COLL_KIND_GROUP_SPLIT:
    case COLL_KIND_BROADCAST_OBJECT:
    case COLL_KIND_ALL_GATHER_OBJECT:
    case COLL_KIND_GPU_CONNECT:
    case COLL_KIND_SEND:
    case COLL_KIND_RECV:
        break; /* the core's */
    }
    return COLL_ERR_UNSUPPORTED;
}

static coll_status_t shm_run(struct coll_group *g, const struct coll_call *call)
{
    struct shm_state *s = g->state;
    enum coll_algorithm algorithm = COLL_ALGORITHM_STAGED;
    coll_status_t status = COLL_OK;

    s->has_begun = false;
    if (call->kind != COLL_KIND_BARRIER && call->kind != COLL_KIND_ALL_TO_ALL_V)
        status = shm_direct(g, call, &algorithm);
    if (status == COLL_OK && algorithm != COLL_ALGORITHM_MAPPED &&
        algorithm != COLL_ALGORITHM_CMA)
        status = run_staged(g, call, algorithm);
    if (status != COLL_OK)
        shm_announce_failure(s, status, SHM_HAD_GROUP);
    return status;
}

static void shm_give_up(struct coll_group *g, coll_status_t status)
{
    shm_announce_failure(g->state, status, SHM_HAD_GROUP);
}

static coll_status_t look_for_others(
    struct coll_group *g, const struct coll_call *call)
{
    return shm_check_others(g->state, call, true);
}

static void shm_look_up(struct coll_group *g)
{
    shm_wake_all(g->state);
}

const struct coll_backend coll_backend_shm = {
    .name = "shm",
    .max_ranks = SHM_MAX_RANKS,
    .create = shm_create,
    .destroy = shm_destroy,
    .run = shm_run,
    .give_up = shm_give_up,
    .look = look_for_others,
    .wake = shm_look_up,
};
