/*
 * Failures on a device: whoever waits for a rank that does not come, leaves,
 * aborts or dies gets an error that names it, in time, and a new group works.
 */
#include "tests/gpu/failures.h"

#include "tests/gpu/operations.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define COUNT 1000
#define BYTES (COUNT * sizeof(float))
#define TIMEOUT_MS 3000
/* Of a group where something else than a time-out is to end the wait, and does
 * so well before it. */
#define LATER_MS 15000
/* How long an error may take beyond the time-out, or where it does not depend
 * on that at all. */
#define SLACK_S 5.0
/* NCCL does not let a rank go whom others wait for; the library gives it five
 * seconds before it goes all the same, and the others hear of it. */
#define LEAVING_S 10.0

static int last_of(const struct rig *rig)
{
    return rig->size - 1;
}

/* The sentence of the failure must name a rank: "rank 3", and not "rank 31". */
static bool names(const char *text, int rank)
{
    char wanted[32];
    const char *at;
    size_t len;

    len = (size_t)snprintf(wanted, sizeof(wanted), "rank %d", rank);
    for (at = strstr(text, wanted); at != NULL; at = strstr(at + 1, wanted))
        if (at[len] < '0' || at[len] > '9')
            return true;
    return false;
}

/* One all_reduce of all, to see that the group is alive, and so that its
 * communicator is made and connected before the failure. */
static bool begin(struct rig *rig, int64_t timeout_ms)
{
    return rig_regroup(rig, timeout_ms) && operations_one(rig);
}

/*
 * Starts an operation that cannot end, and waits for it: the status must be
 * wanted, within limit_s, and the sentence name the rank. It goes to note.
 */
static bool fails(struct rig *rig, float *x, coll_status_t wanted,
    double limit_s, int rank, char *note, size_t size)
{
    const double start = rig_now();
    coll_status_t status;
    double seconds;
    char text[512];

    status = coll_all_reduce(x, x, COUNT, COLL_FLOAT32, COLL_SUM, rig->group);
    if (status == COLL_OK)
        status = coll_gpu_synchronize(rig->group, 0);
    seconds = rig_now() - start;
    snprintf(text, sizeof(text), "%s", coll_last_error());
    snprintf(note, size, "%.1f s: %.200s", seconds, text);
    if (!rig_expect(rig, status, wanted, "an operation that cannot end"))
        return false;
    if (!names(text, rank))
        return rig_fail(rig, "rank %d is at fault, but: %s", rank, text);
    if (seconds > limit_s)
        return rig_fail(
            rig, "the error took %.1f s, at most %.1f", seconds, limit_s);
    /* And the next call says the same at once. */
    return rig_expect(rig,
        coll_all_reduce(x, x, COUNT, COLL_FLOAT32, COLL_SUM, rig->group),
        wanted, "a call after the failure");
}

/* All ranks have come to here. By the store, since the groups are busy. */
static bool meet(struct rig *rig, const char *name)
{
    char key[64];
    const char *keys[1] = {key};
    coll_store_t *store = coll_default_store();
    int64_t count;

    snprintf(key, sizeof(key), "gpu_check/%s", name);
    if (!rig_expect(rig, coll_store_add(store, key, 1, &count), COLL_OK,
            "counting in the store"))
        return false;
    snprintf(key, sizeof(key), "gpu_check/%s/all", name);
    if (count == rig->size &&
        !rig_expect(
            rig, coll_store_set(store, key, "1", 1), COLL_OK, "the store"))
        return false;
    return rig_expect(rig, coll_store_wait(store, keys, 1, RIG_TIMEOUT_MS),
        COLL_OK, "waiting for all ranks in the store");
}

/* A group of the same ranks again, which works. */
static bool recover(struct rig *rig)
{
    return rig_regroup(rig, RIG_TIMEOUT_MS) && operations_one(rig);
}

static bool is_alone(struct rig *rig, char *note, size_t size)
{
    if (rig->size > 1)
        return false;
    snprintf(note, size, "skip: takes two ranks");
    return true;
}

/* The last rank stays away from an operation. */
bool check_timeout(struct rig *rig, char *note, size_t size)
{
    const int last = last_of(rig);
    float *x;
    bool good;

    if (is_alone(rig, note, size))
        return true;
    x = rig_alloc(rig, BYTES);
    good = x != NULL && begin(rig, TIMEOUT_MS);
    if (good && rig->rank != last)
        good = fails(rig, x, COLL_ERR_TIMEOUT, TIMEOUT_MS / 1000.0 + SLACK_S,
            last, note, size);
    good = meet(rig, "timeout") && good;
    rig_free(rig, x);
    return good && recover(rig);
}

/* The last rank leaves the group while the others wait for it. */
bool check_left(struct rig *rig, char *note, size_t size)
{
    const int last = last_of(rig);
    float *x;
    bool good;

    if (is_alone(rig, note, size))
        return true;
    x = rig_alloc(rig, BYTES);
    good = x != NULL && begin(rig, LATER_MS);
    if (good && rig->rank == last) {
        good = rig_expect(
            rig, coll_group_destroy(rig->group), COLL_OK, "coll_group_destroy");
        rig->group = NULL;
    } else if (good) {
        good = fails(rig, x, COLL_ERR_PEER, LEAVING_S, last, note, size);
    }
    good = meet(rig, "left") && good;
    rig_free(rig, x);
    return good && recover(rig);
}

static void *abort_group(void *arg)
{
    static coll_status_t status;

    status = coll_abort(arg);
    return &status;
}

/* Rank 0 aborts while it waits for the last rank; the others are told. */
bool check_abort(struct rig *rig, char *note, size_t size)
{
    const int last = last_of(rig);
    const double start = rig_now();
    coll_work_t *work = NULL;
    pthread_t thread;
    void *aborted;
    float *x;
    bool good;

    if (is_alone(rig, note, size))
        return true;
    x = rig_alloc(rig, BYTES);
    good = x != NULL && begin(rig, LATER_MS);
    if (good && rig->rank == 0) {
        good = rig_expect(rig,
            coll_all_reduce_async(
                x, x, COUNT, COLL_FLOAT32, COLL_SUM, rig->group, &work),
            COLL_OK, "all_reduce_async");
        if (good && pthread_create(&thread, NULL, abort_group, rig->group) != 0)
            good = rig_fail(rig, "no thread");
        if (good) {
            good = rig_expect(rig, coll_work_wait(work, 0), COLL_ERR_ABORTED,
                "the work that was aborted");
            pthread_join(thread, &aborted);
            good = rig_expect(
                       rig, *(coll_status_t *)aborted, COLL_OK, "coll_abort") &&
                   good;
        }
        coll_work_free(work);
        good = good && rig_expect(rig, coll_gpu_synchronize(rig->group, 0),
                           COLL_ERR_ABORTED, "coll_gpu_synchronize");
        snprintf(
            note, size, "%.1f s: %.200s", rig_now() - start, coll_last_error());
        if (good && rig_now() - start > SLACK_S)
            good = rig_fail(rig, "the abort took %.1f s", rig_now() - start);
    } else if (good && rig->rank != last) {
        good = fails(rig, x, COLL_ERR_PEER, SLACK_S, 0, note, size);
    }
    good = meet(rig, "abort") && good;
    /* Where two ranks are all, nobody has waited for rank 0's end but it. */
    if (good && rig->rank == last)
        good = fails(rig, x, COLL_ERR_PEER, SLACK_S, 0, note, size);
    rig_free(rig, x);
    return good && recover(rig);
}

/* COLL_CHECK=1: unlike counts are an error, and nothing hangs. */
bool check_mismatch(struct rig *rig, char *note, size_t size)
{
    float *x;
    bool good;

    if (is_alone(rig, note, size))
        return true;
    x = rig_alloc(rig, BYTES);
    good = x != NULL && begin(rig, RIG_TIMEOUT_MS) &&
           rig_expect(rig,
               coll_all_reduce(x, x, rig->rank == 0 ? 7 : 8, COLL_FLOAT32,
                   COLL_SUM, rig->group),
               COLL_ERR_MISMATCH, "unlike counts");
    snprintf(note, size, "%.200s", coll_last_error());
    rig_free(rig, x);
    return good && recover(rig);
}

int check_killed(struct rig *rig)
{
    const int last = last_of(rig);
    char note[256] = "";
    float *x = rig_alloc(rig, BYTES);
    double start;
    bool good;

    if (x == NULL || !begin(rig, RIG_TIMEOUT_MS) || !meet(rig, "killed"))
        return 1;
    if (rig->rank == last)
        kill(getpid(), SIGKILL);
    start = rig_now();
    good = fails(rig, x, COLL_ERR_PEER, SLACK_S, last, note, sizeof(note));
    rig_row(
        rig, "killed rank", good ? "PASS" : "FAIL", rig_now() - start, note);
    return good ? 0 : 1;
}
