/*
 * Who is missing when an operation on the device takes too long. NCCL does not
 * tell, and ranks that wait on the device cannot ask each other there: so each
 * rank whose time is over says so in the store, and looks who else does. Those
 * who have not come to the operation, or are not alive, say nothing.
 */
#include "gpu_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coll_job.h"
#include "coll_ranks.h"
#include "coll_signature.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/store_codec.h"
#include "store.h"

/* Ranks' clocks for a time-out differ by what lies between their launches; as
 * much longer the others may take. */
#define PATIENCE_MS 2000
#define PAUSE_MS 50

/* A store that does not answer: so much more in all. */
#define STORE_MS 500

/* In a large group so many ask, or the store would have much to do. */
#define LARGE 512
#define ASKERS 8

#define KEY_SIZE 128

struct board {
    coll_store_t *store;
    char (*keys)[KEY_SIZE]; /* [size] */
    const char **pointers;
    int size;
    uint64_t deadline_ns;
};

/* 1, 0, or that the store does not say. */
static int is_there(const struct board *b, int first, int n)
{
    struct err e = {0};
    bool are_all = false;
    int rc = coll_store_do_check(
        b->store, &b->pointers[first], (size_t)n, &are_all, b->deadline_ns, &e);

    return rc < 0 ? rc : are_all;
}

/* Waits until all are there, for a while. */
static bool await_all(const struct board *b)
{
    const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000 * 1000};
    uint64_t until_ns = clock_deadline_ns(PATIENCE_MS);
    int rc;

    while ((rc = is_there(b, 0, b->size)) == 0 && clock_now_ns() < until_ns)
        nanosleep(&pause, NULL);
    return rc >= 0;
}

/* Marks those that have said nothing, and counts them. */
static bool find_missing(const struct board *b, bool *missing, int *nmissing)
{
    for (int r = 0; r < b->size; r++) {
        int rc = is_there(b, r, 1);

        if (rc < 0)
            return false;
        missing[r] = rc == 0;
        *nmissing += missing[r];
    }
    return true;
}

/* False: it cannot be said. */
static bool ask(struct gpu *gpu, const char *name, bool *missing, int *nmissing)
{
    const struct coll_job *job = coll_job();
    const struct coll_group *g = gpu->group;
    struct board b = {
        .store = job->store,
        .size = g->size,
        .deadline_ns = clock_deadline_ns(PATIENCE_MS + STORE_MS),
    };
    struct err e = {0};
    bool is_known = false;

    if (b.store == NULL)
        return false;
    b.keys = calloc((size_t)b.size, sizeof(*b.keys));
    b.pointers = calloc((size_t)b.size, sizeof(*b.pointers));
    if (b.keys != NULL && b.pointers != NULL) {
        for (int r = 0; r < b.size; r++) {
            snprintf(b.keys[r], KEY_SIZE, "%sgpu/%016llx/%d", job->prefix,
                (unsigned long long)gpu->name, r);
            b.pointers[r] = b.keys[r];
        }
        is_known =
            coll_store_do_set(b.store, b.keys[g->rank],
                store_bytes(name, strlen(name)), b.deadline_ns, &e) == 0 &&
            (b.size <= LARGE || g->rank < ASKERS);
    }
    is_known = is_known && await_all(&b) && find_missing(&b, missing, nmissing);
    free(b.keys);
    free(b.pointers);
    return is_known;
}

/* A message waits for one other rank, whoever else has nothing to wait for. */
static void forget_others(
    const struct coll_call *call, bool *missing, int size, int *nmissing)
{
    if ((call->kind != COLL_KIND_SEND && call->kind != COLL_KIND_RECV) ||
        call->nmany != 1)
        return;
    *nmissing = missing[call->root];
    for (int r = 0; r < size; r++)
        missing[r] &= r == call->root;
}

coll_status_t gpu_blame(struct gpu *gpu, const struct coll_call *call)
{
    char name[64];
    char ranks[128];
    int nmissing = 0;
    int size = gpu->group->size;
    bool *missing = calloc((size_t)size, sizeof(*missing));
    bool is_known;
    double seconds = (double)call->timeout_ms / 1000.0;

    coll_call_text(name, sizeof(name), call);
    is_known = missing != NULL && ask(gpu, name, missing, &nmissing);
    if (is_known)
        forget_others(call, missing, size, &nmissing);
    if (is_known && nmissing > 0) {
        coll_ranks_text(ranks, sizeof(ranks), missing, size, gpu->group->names);
        coll_fail(COLL_ERR_TIMEOUT,
            "timed out after %.1f s in %s on GPU %d waiting for %s", seconds,
            name, gpu->device, ranks);
    } else {
        coll_fail(COLL_ERR_TIMEOUT, "timed out after %.1f s in %s on GPU %d%s",
            seconds, name, gpu->device,
            is_known
                ? "; so did all other ranks: the calls may differ, or what "
                  "the stream had to do before takes long"
                : "");
    }
    free(missing);
    return COLL_ERR_TIMEOUT;
}
