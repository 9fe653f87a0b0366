/*
 * A test double, see nccl_fake.h: communicators that are made of another one.
 * A split is agreed on in the segment of the parent, by all its ranks; a
 * shrink is not, since some of them may be gone.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/fake_nccl/nccl_fake.h"

#if FAKE_NCCL_SYMBOLS >= 21800

/* All ranks of a child have the same name for it, and nobody else does. */
static void name_child(struct nccl_comm *parent, uint64_t which, char out[64])
{
    uint64_t hash = 14695981039346656037ULL;
    unsigned int number;

    pthread_mutex_lock(&parent->lock);
    number = ++parent->children;
    pthread_mutex_unlock(&parent->lock);
    for (const char *at = parent->name; *at != '\0'; at++)
        hash = (hash ^ (unsigned char)*at) * 1099511628211ULL;
    for (int i = 0; i < 8; i++)
        hash = (hash ^ (which >> 8 * i & 0xff)) * 1099511628211ULL;
    snprintf(
        out, 64, FAKE_ID_PREFIX "%016llx.%u", (unsigned long long)hash, number);
}

static nccl_result_t make_child(struct nccl_comm **out,
    struct nccl_comm *parent, uint64_t which, int size, int rank,
    const nccl_config_t *config)
{
    char name[64];

    name_child(parent, which, name);
    return fake_comm_make(out, name, size, rank, parent->device,
        config != NULL ? config : &parent->config);
}

/* All have shown their color and key: who is in the child, and where? */
static void find_place(struct nccl_comm *parent, const struct fake_call *mine,
    int *rank, int *size)
{
    *rank = 0;
    *size = 0;
    for (int i = 0; i < parent->size; i++) {
        const struct fake_call *its =
            &fake_slot_of(parent, FAKE_MEETING, i)->call;

        if (its->root != mine->root)
            continue;
        (*size)++;
        if ((int64_t)its->count < (int64_t)mine->count ||
            (its->count == mine->count && i < parent->rank))
            (*rank)++;
    }
}

static bool agree(const struct fake_job *job, int *rank, int *size)
{
    if (!fake_show(job->parent, FAKE_MEETING, &job->call, NULL, 0))
        return false;
    find_place(job->parent, &job->call, rank, size);
    return fake_show(job->parent, FAKE_MEETING, NULL, NULL, 0);
}

static nccl_result_t run_split(const struct fake_job *job)
{
    struct nccl_comm *comm = job->comm, *parent = job->parent;
    bool is_agreed;
    int rank, size;

    if (comm != parent)
        atomic_store(&parent->child, comm);
    is_agreed = agree(job, &rank, &size);
    atomic_store(&parent->child, NULL);
    if (!is_agreed)
        return COLL_NCCL_INTERNAL_ERROR;
    if (comm == parent) /* a rank that is in no child */
        return COLL_NCCL_SUCCESS;
    comm->rank = rank;
    comm->size = size;
    return fake_comm_meet(comm);
}

nccl_result_t ncclCommSplit(struct nccl_comm *parent, int color, int key,
    struct nccl_comm **made, nccl_config_t *config)
{
    nccl_result_t rc = fake_comm_check_ready(parent);
    struct nccl_comm *comm = parent;
    struct fake_job *job;

    if (rc != COLL_NCCL_SUCCESS)
        return rc;
    if (color < COLL_NCCL_SPLIT_NO_COLOR)
        return fake_error(
            parent, COLL_NCCL_INVALID_ARGUMENT, "Invalid color %d", color);
    /* Rank and size are not known yet: any that are valid. */
    rc = make_child(&comm, parent, (uint64_t)color, 1, 0, config);
    job = calloc(1, sizeof(*job));
    if (rc != COLL_NCCL_SUCCESS || job == NULL) {
        free(job);
        return rc != COLL_NCCL_SUCCESS ? rc : COLL_NCCL_SYSTEM_ERROR;
    }
    if (color == COLL_NCCL_SPLIT_NO_COLOR) {
        fake_comm_release(comm);
        comm = parent;
    } else {
        fake_comm_hold(parent);
        comm->parent = parent;
    }
    *made = comm != parent ? comm : NULL;
    job->run = run_split;
    job->comm = comm;
    job->parent = parent;
    job->call.root = color;
    job->call.count = (uint64_t)(int64_t)key;
    return fake_job_add(job);
}
#endif

#if FAKE_NCCL_SYMBOLS >= 22700
nccl_result_t ncclCommShrink(struct nccl_comm *parent, int *excluded, int count,
    struct nccl_comm **made, nccl_config_t *config, int flags)
{
    nccl_result_t rc = fake_comm_check(parent);
    struct nccl_comm *comm = NULL;
    uint64_t which = 1ULL << 63; /* no color of a split */
    int rank;

    if (rc != COLL_NCCL_SUCCESS)
        return rc;
    rank = parent->rank;
    for (int i = 0; i < count; i++) {
        if (excluded[i] < 0 || excluded[i] >= parent->size ||
            excluded[i] == parent->rank)
            return fake_error(parent, COLL_NCCL_INVALID_ARGUMENT,
                "rank %d cannot be excluded", excluded[i]);
        which |= 1ULL << excluded[i];
        rank -= excluded[i] < parent->rank;
    }
    if (flags & COLL_NCCL_SHRINK_ABORT) {
        atomic_store(&parent->is_revoked, true);
        fake_comm_wake(parent);
    } else if ((rc = fake_comm_check_ready(parent)) != COLL_NCCL_SUCCESS) {
        return rc;
    }
    rc = make_child(&comm, parent, which, parent->size - count, rank, config);
    return rc == COLL_NCCL_SUCCESS ? fake_comm_begin(made, comm) : rc;
}
#endif
