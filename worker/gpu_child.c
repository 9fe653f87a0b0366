/*
 * Communicators that NCCL makes of another one, which costs less than a new
 * one: of the parts of a group, and of what is left of it.
 */
#include "gpu_internal.h"

#include <stdlib.h>
#include <string.h>

#include "rendezvous/base/clock.h"

/* A child's, without a communicator yet. */
static coll_status_t create_child(
    struct gpu **out, struct gpu *parent, struct coll_group *child)
{
    coll_status_t status = gpu_create(out, child, parent->cu, parent->nccl,
        parent->device, "coll_group_split");

    if (status != COLL_OK)
        return status;
    (*out)->rank = child->rank;
    (*out)->size = child->size;
    gpu_configure_child(*out, parent);
    /* The same on all ranks of child, and no other one's. */
    (*out)->name = (parent->name ^ child->id) + ++parent->nchildren;
    return COLL_OK;
}

/* Runs the job, in which all ranks of g take part, and gives what it makes to
 * the child, NULL if this rank is in none. Takes the job. */
static coll_status_t make_child(struct gpu *parent, struct gpu_job *job,
    struct gpu *made, struct coll_group *g, const struct coll_call *call)
{
    coll_status_t status = COLL_OK;

    gpu_hold(parent);
    job->parent = parent->comm;
    gpu_job_start(job);
    if (made != NULL)
        status = gpu_take_made(made, job, g, call, false);
    if (status == COLL_OK && !parent->must_abort)
        status = gpu_await_parent(parent, job, g, call);
    gpu_let_go(parent);
    if (status == COLL_OK && made != NULL)
        status = gpu_watch_start(made);
    if (status != COLL_OK)
        coll_group_give_up(g, status); /* the others may wait for this rank */
    if (status == COLL_OK && made != NULL) {
        atomic_store_explicit(&made->group->gpu, made, memory_order_release);
    } else if (made != NULL) {
        gpu_abort(made);
        gpu_discard(made, job, GPU_DISCARD_MS);
    }
    gpu_job_release(job);
    return status;
}

coll_status_t gpu_split(
    struct coll_group *g, struct coll_group *child, int color, int key)
{
    const struct coll_call call = {
        .kind = COLL_KIND_GROUP_SPLIT,
        .timeout_ms = g->timeout_ms,
        .seq = g->seq,
        .deadline_ns = clock_deadline_ns(g->timeout_ms),
    };
    struct gpu *parent = gpu_of(g);
    struct gpu *made = NULL;
    struct gpu_job *job;
    coll_status_t status = COLL_OK;

    if (parent == NULL)
        return COLL_OK;
    if (child != NULL)
        status = create_child(&made, parent, child);
    if (status != COLL_OK)
        return status;
    job = gpu_job_create(made != NULL ? made : parent);
    if (job == NULL) {
        gpu_destroy(made);
        return coll_fail(COLL_ERR_MEMORY, "coll_group_split: out of memory");
    }
    job->run = gpu_job_split;
    job->color = child == NULL ? COLL_NCCL_SPLIT_NO_COLOR : color;
    job->key = key;
    return make_child(parent, job, made, g, &call);
}

/* What all ranks of child find: is the communicator there, and has nothing
 * failed? */
static coll_status_t agree(
    struct gpu *parent, struct coll_group *child, bool *is_whole, bool *is_well)
{
    uint8_t words[] = {
        parent != NULL && parent->comm != NULL &&
            parent->nccl->comm_shrink != NULL,
        parent != NULL && parent->group->failure == COLL_OK,
    };
    bool stages = child->stages;
    coll_status_t status;

    child->stages = false; /* nobody else has it yet */
    status = coll_all_reduce(words, words, sizeof(words), COLL_UINT8, COLL_MIN,
        (coll_group_t *)child);
    child->stages = stages;
    *is_whole = words[0];
    *is_well = words[1];
    return status;
}

coll_status_t gpu_shrink(
    struct coll_group *g, struct coll_group *child, const int *excluded, int n)
{
    const struct coll_call call = {
        .kind = COLL_KIND_GROUP_SPLIT,
        .timeout_ms = child->timeout_ms,
        .deadline_ns = clock_deadline_ns(child->timeout_ms),
    };
    struct gpu *parent = gpu_of(g);
    struct gpu *made = NULL;
    struct gpu_job *job;
    bool is_whole, is_well;
    coll_status_t status = agree(parent, child, &is_whole, &is_well);

    if (status != COLL_OK || !is_whole || n == 0)
        return status;
    status = create_child(&made, parent, child);
    if (status != COLL_OK)
        return status;
    job = gpu_job_create(made);
    if (job != NULL)
        job->excluded = malloc((size_t)n * sizeof(*job->excluded));
    if (job == NULL || job->excluded == NULL) {
        gpu_job_release(job);
        gpu_destroy(made);
        return coll_fail(COLL_ERR_MEMORY, "coll_group_shrink: out of memory");
    }
    memcpy(job->excluded, excluded, (size_t)n * sizeof(*job->excluded));
    job->nexcluded = n;
    job->run = gpu_job_shrink;
    /* Those that are excluded may be gone, with operations on their way. One
     * that was shrunk so can only be aborted: its end would wait for them. */
    job->flags = is_well ? COLL_NCCL_SHRINK_DEFAULT : COLL_NCCL_SHRINK_ABORT;
    parent->must_abort |= !is_well;
    return make_child(parent, job, made, child, &call);
}
