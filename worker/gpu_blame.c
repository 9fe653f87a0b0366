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

static bool is_there(const struct board *b, int first, int n)
{
    struct err e = {0};
    bool are_all = false;

    return coll_store_do_check(b->store, &b->pointers[first], (size_t)n,
               &are_all, clock_deadline_ns(PATIENCE_MS), &e) == 0 &&
           are_all;
}

static void await_all(const struct board *b)
{
    const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000 * 1000};

    while (!is_there(b, 0, b->size) && clock_now_ns() < b->deadline_ns)
        nanosleep(&pause, NULL);
}

/* Marks those that have said nothing, and returns how many. */
static int find_missing(const struct board *b, bool *missing)
{
    int n = 0;

    for (int r = 0; r < b->size; r++) {
        missing[r] = !is_there(b, r, 1);
        n += missing[r];
    }
    return n;
}

/* False: it cannot be said. */
static bool ask(struct gpu *gpu, const char *name, bool *missing, int *nmissing)
{
    const struct coll_job *job = coll_job();
    struct board b = {
        .store = job->store,
        .size = gpu->size,
        .deadline_ns = clock_deadline_ns(PATIENCE_MS),
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
            coll_store_do_set(b.store, b.keys[gpu->rank],
                store_bytes(name, strlen(name)), b.deadline_ns, &e) == 0 &&
            (b.size <= LARGE || gpu->rank < ASKERS);
    }
    if (is_known) {
        await_all(&b);
        *nmissing = find_missing(&b, missing);
    }
    free(b.keys);
    free(b.pointers);
    return is_known;
}

coll_status_t gpu_blame(struct gpu *gpu, const struct coll_call *call)
{
    char name[64];
    char ranks[128];
    int nmissing = 0;
    bool *missing = calloc((size_t)gpu->size, sizeof(*missing));
    bool is_known;
    double seconds = (double)call->timeout_ms / 1000.0;

    coll_call_text(name, sizeof(name), call);
    is_known = missing != NULL && ask(gpu, name, missing, &nmissing);
    /* Messages concern one other rank each. */
    if (is_known && nmissing > 0) {
        coll_ranks_text(
            ranks, sizeof(ranks), missing, gpu->size, gpu->group->names);
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
