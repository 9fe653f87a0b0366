/*
 * The back end "shm": the ranks of one node through one segment of shared
 * memory. Owns the group's struct shm_state from create to destroy; see
 * shm_internal.h for how it works.
 */
#include "shm_internal.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void release(struct shm_state *s)
{
    if (s == NULL)
        return;
    if (s->control != NULL)
        munmap(s->control, s->map_bytes);
    for (int r = 0; s->links != NULL && r < s->size; r++)
        if (s->links[r].fd >= 0)
            close(s->links[r].fd);
    free(s->links);
    free(s->pids);
    free(s->is_lost);
    free(s->set);
    free(s);
}

/* Spinning for a rank that waits for this CPU only delays it. */
static bool has_cpu_per_rank(int size)
{
    cpu_set_t *set;
    int cpus = 0;

    /* The kernel refuses a mask smaller than its own: grow until it fits. */
    for (int bits = 1024; cpus == 0 && bits <= 1 << 20; bits *= 2) {
        set = CPU_ALLOC(bits);
        if (set == NULL)
            return false;
        if (sched_getaffinity(0, CPU_ALLOC_SIZE(bits), set) == 0)
            cpus = CPU_COUNT_S(CPU_ALLOC_SIZE(bits), set);
        CPU_FREE(set);
    }
    return cpus >= size;
}

static coll_status_t shm_create(
    struct coll_group *g, const struct coll_boot *boot)
{
    size_t size = (size_t)g->size;
    struct shm_state *s = calloc(1, sizeof(*s));
    coll_status_t status;

    if (s == NULL)
        goto fail_memory;
    s->rank = g->rank;
    s->size = g->size;
    s->links = calloc(size, sizeof(*s->links));
    s->pids = calloc(size, sizeof(*s->pids));
    s->is_lost = calloc(size, sizeof(*s->is_lost));
    s->set = calloc(size, sizeof(*s->set));
    if (s->links == NULL)
        goto fail_memory;
    for (int r = 0; r < s->size; r++)
        s->links[r].fd = -1; /* poll() ignores it; 0 is a valid fd */
    if (s->pids == NULL || s->is_lost == NULL || s->set == NULL)
        goto fail_memory;
    s->may_spin = has_cpu_per_rank(s->size);
    g->state = s;
    status = shm_connect(g, boot);
    if (status != COLL_OK) {
        shm_announce_failure(s, status);
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

    own->left_after_seq = g->seq;
    atomic_store(&own->has_left, 1);
    shm_wake_all(s);
    release(s);
    g->state = NULL;
}

static coll_status_t shm_run(struct coll_group *g, const struct coll_call *call)
{
    coll_status_t status = COLL_ERR_UNSUPPORTED;

    switch (call->kind) {
    case COLL_KIND_ALL_REDUCE:
        status = shm_all_reduce(g, call);
        break;
    case COLL_KIND_BROADCAST:
        status = shm_broadcast(g, call);
        break;
    case COLL_KIND_BARRIER:
        status = shm_first_tick(g, call);
        break;
    }
    if (status != COLL_OK)
        shm_announce_failure(g->state, status);
    return status;
}

const struct coll_backend coll_backend_shm = {
    .name = "shm",
    .create = shm_create,
    .destroy = shm_destroy,
    .run = shm_run,
};
