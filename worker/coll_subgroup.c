/*
 * Groups that the program makes of some ranks of the job. Their members meet as
 * those of the default group do, through the same store, at keys of their own:
 * the list of ranks gives the name. So nobody else has to take part, and the
 * same list can be used again, since a group that is made leaves no key.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll_agent.h"
#include "coll_algorithm.h"
#include "coll_fds.h"
#include "coll_job.h"
#include "coll_recorder.h"
#include "coll_work.h"
#include "gpu.h"
#include "rendezvous/base/clock.h"

/* function: that of the public call. NULL stands for the defaults. */
static coll_status_t check_options(
    const char *function, const coll_group_options_t *options)
{
    if (options == NULL || options->timeout_ms >= 0)
        return COLL_OK;
    return coll_fail(COLL_ERR_ARGUMENT,
        "%s: timeout_ms is %lld, it must not be negative", function,
        (long long)options->timeout_ms);
}

static coll_status_t check_ranks(
    const int *ranks, int nranks, int world, int own, int *index)
{
    bool *is_in;
    coll_status_t status = COLL_OK;

    *index = -1;
    if (ranks == NULL || nranks < 1 || nranks > world)
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_group_new: %s, nranks is %d; a group has 1 to %d ranks",
            ranks == NULL ? "ranks is NULL" : "ranks is given", nranks, world);
    is_in = calloc((size_t)world, sizeof(*is_in));
    if (is_in == NULL)
        return coll_fail(COLL_ERR_MEMORY, "coll_group_new: out of memory");
    for (int i = 0; status == COLL_OK && i < nranks; i++) {
        if (ranks[i] < 0 || ranks[i] >= world)
            status = coll_fail(COLL_ERR_ARGUMENT,
                "coll_group_new: %d is not a rank of the job, which has %d",
                ranks[i], world);
        else if (is_in[ranks[i]])
            status = coll_fail(COLL_ERR_ARGUMENT,
                "coll_group_new: rank %d is in the list twice", ranks[i]);
        else
            is_in[ranks[i]] = true;
        if (ranks[i] == own)
            *index = i;
    }
    free(is_in);
    return status;
}

/* FNV-1a of the list, a rank at a time. */
static uint64_t name_of(const int *ranks, int nranks)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (int i = 0; i < nranks; i++)
        h = (h ^ (uint64_t)ranks[i]) * 0x100000001b3u;
    return h ^ (uint64_t)nranks;
}

static coll_status_t make(struct coll_group **out, const int *ranks, int nranks,
    int index, int64_t timeout_ms)
{
    const struct coll_job *job = coll_job();
    uint64_t name = name_of(ranks, nranks);
    char prefix[96];
    struct coll_boot boot = {
        .store = job->store,
        .prefix = prefix,
        .deadline_ns = clock_deadline_ns(timeout_ms),
        .node = job->node,
        .is_deterministic = job->group->is_deterministic,
        .stages = job->group->stages,
    };
    int *names = malloc((size_t)nranks * sizeof(*names));
    coll_status_t status;

    if (names == NULL)
        return coll_fail(COLL_ERR_MEMORY, "coll_group_new: out of memory");
    memcpy(names, ranks, (size_t)nranks * sizeof(*names));
    boot.names = names;
    snprintf(prefix, sizeof(prefix), "%sgroup/%016llx/", job->prefix,
        (unsigned long long)name);
    coll_fds_reserve(nranks, 0);
    interrupt_set(&coll_agent_interrupt);
    status = coll_group_create(out,
        nranks == 1 ? &coll_backend_self : job->group->backend, index, nranks,
        timeout_ms, &boot);
    interrupt_set(NULL);
    if (status != COLL_OK) {
        free(names);
        coll_fail_reword("coll_init", "coll_group_new");
        coll_agent_note_failure(status);
        return status;
    }
    (*out)->own_names = names;
    (*out)->id = (uint32_t)(name ^ name >> 32) | 1; /* 0: the default group */
    *(*out)->tuning = *job->group->tuning;
    coll_recorder_add_group(*out);
    return COLL_OK;
}

coll_status_t coll_group_new(coll_group_t **out, const int *ranks, int nranks,
    const coll_group_options_t *options)
{
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    const coll_group_options_t defaults = COLL_GROUP_OPTIONS_INIT;
    const struct coll_job *job = coll_job();
    struct coll_group *made = NULL;
    coll_status_t status;
    int index;

    if (job->group == NULL)
        return coll_fail(COLL_ERR_STATE,
            "coll_group_new: not initialized; call coll_init() first");
    if (out == NULL)
        return coll_fail(COLL_ERR_ARGUMENT, "coll_group_new: out is NULL");
    status = check_options("coll_group_new", options);
    if (status == COLL_OK)
        status = check_ranks(
            ranks, nranks, job->group->size, job->group->rank, &index);
    if (status != COLL_OK)
        return status;
    if (options == NULL)
        options = &defaults;
    if (index >= 0) {
        pthread_mutex_lock(&one_at_a_time);
        status = make(&made, ranks, nranks, index,
            options->timeout_ms > 0 ? options->timeout_ms : job->timeout_ms);
        pthread_mutex_unlock(&one_at_a_time);
    }
    if (status == COLL_OK)
        *out = made;
    return status;
}

/* --- Split ---------------------------------------------------------------- */

struct member {
    int32_t color;
    int32_t key;
    int32_t rank; /* in parent; not sent */
};

static int by_key(const void *a, const void *b)
{
    const struct member *x = a;
    const struct member *y = b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->rank < y->rank ? -1 : 1;
}

/* The global ranks of those with this color, in order; returns how many. */
static int choose(const struct coll_group *g, int color, const int32_t *words,
    struct member *members, int *ranks)
{
    int n = 0;

    for (int r = 0; r < g->size; r++)
        if (words[2 * r] == color)
            members[n++] = (struct member){color, words[2 * r + 1], r};
    qsort(members, (size_t)n, sizeof(*members), by_key);
    for (int i = 0; i < n; i++)
        ranks[i] = coll_global_rank(g, members[i].rank);
    return n;
}

/* All ranks get what all others say. */
static coll_status_t exchange_words(
    struct coll_group *g, const int32_t own[2], int32_t *words)
{
    struct coll_call call = {
        .kind = COLL_KIND_GROUP_SPLIT,
        .dtype = COLL_INT32,
        .count = 2,
        .sendbuf = own,
        .recvbuf = words,
    };

    return coll_group_run(g, &call);
}

coll_status_t coll_group_split(coll_group_t **out, coll_group_t *parent,
    int color, int key, const coll_group_options_t *options)
{
    coll_status_t status = COLL_OK;
    struct coll_group *g = coll_group_get(parent, "coll_group_split", &status);
    const int32_t own[2] = {color, key};
    struct coll_group *made = NULL;
    struct member *members;
    int32_t *words;
    int *ranks;

    if (g == NULL)
        return status;
    if (out == NULL)
        return coll_fail(COLL_ERR_ARGUMENT, "coll_group_split: out is NULL");
    if (color < 0 && color != COLL_NO_COLOR)
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_group_split: color is %d; it is 0 or greater, or "
            "COLL_NO_COLOR",
            color);
    status = check_options("coll_group_split", options);
    if (status != COLL_OK)
        return status;
    words = calloc((size_t)g->size, sizeof(own));
    members = calloc((size_t)g->size, sizeof(*members));
    ranks = calloc((size_t)g->size, sizeof(*ranks));
    if (words == NULL || members == NULL || ranks == NULL)
        status = coll_fail(COLL_ERR_MEMORY, "coll_group_split: out of memory");
    else
        status = exchange_words(g, own, words);
    if (status == COLL_OK && color != COLL_NO_COLOR)
        status = coll_group_new(
            &made, ranks, choose(g, color, words, members, ranks), options);
    if (status == COLL_OK)
        status = gpu_split(g, made, color, key);
    if (status == COLL_OK)
        *out = made;
    else
        coll_group_free(made);
    free(words);
    free(members);
    free(ranks);
    return status;
}

/* --- Shrink --------------------------------------------------------------- */

/* The global ranks of those that stay; *nranks, how many. */
static coll_status_t choose_rest(const struct coll_group *g,
    const int *excluded, int n, int *ranks, int *nranks)
{
    bool *is_out = calloc((size_t)g->size, sizeof(*is_out));
    coll_status_t status = COLL_OK;

    *nranks = 0;
    if (is_out == NULL)
        return coll_fail(COLL_ERR_MEMORY, "coll_group_shrink: out of memory");
    for (int i = 0; status == COLL_OK && i < n; i++) {
        if (excluded[i] < 0 || excluded[i] >= g->size)
            status = coll_fail(COLL_ERR_ARGUMENT,
                "coll_group_shrink: %d is not a rank of a group of %d",
                excluded[i], g->size);
        else if (excluded[i] == g->rank)
            status = coll_fail(COLL_ERR_ARGUMENT,
                "coll_group_shrink: %d is this rank itself", excluded[i]);
        else
            is_out[excluded[i]] = true;
    }
    for (int r = 0; status == COLL_OK && r < g->size; r++)
        if (!is_out[r])
            ranks[(*nranks)++] = coll_global_rank(g, r);
    free(is_out);
    return status;
}

coll_status_t coll_group_shrink(coll_group_t **out, coll_group_t *group,
    const int *excluded, int n, const coll_group_options_t *options)
{
    coll_status_t status = COLL_OK;
    struct coll_group *g = coll_group_get(group, "coll_group_shrink", &status);
    struct coll_group *made = NULL;
    int nranks;
    int *ranks;

    if (g == NULL)
        return status;
    if (out == NULL || n < 0 || (n > 0 && excluded == NULL))
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_group_shrink: out is %s, excluded is %s, n is %d",
            out == NULL ? "NULL" : "given", excluded == NULL ? "NULL" : "given",
            n);
    status = check_options("coll_group_shrink", options);
    if (status != COLL_OK)
        return status;
    ranks = calloc((size_t)g->size, sizeof(*ranks));
    if (ranks == NULL)
        return coll_fail(COLL_ERR_MEMORY, "coll_group_shrink: out of memory");
    status = choose_rest(g, excluded, n, ranks, &nranks);
    if (status == COLL_OK)
        status = coll_group_new(&made, ranks, nranks, options);
    if (status == COLL_OK)
        status = gpu_shrink(g, made, excluded, n);
    free(ranks);
    if (status == COLL_OK)
        *out = made;
    else
        coll_group_free(made);
    return status;
}

coll_status_t coll_group_destroy(coll_group_t *group)
{
    coll_status_t status = COLL_OK;
    struct coll_group *g;

    if (group == NULL || group == coll_default_group())
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_group_destroy: the default group is left by coll_destroy()");
    g = coll_group_get(group, "coll_group_destroy", &status);
    if (g == NULL)
        return status;
    status = coll_work_check_thread("coll_group_destroy");
    if (status != COLL_OK)
        return status;
    if (coll_group_is_in_use(g))
        return coll_fail(COLL_ERR_STATE,
            "coll_group_destroy: an operation is on its way in another thread, "
            "or one that nobody has waited for; wait for it, or call "
            "coll_abort() first");
    coll_group_free(g);
    return COLL_OK;
}
