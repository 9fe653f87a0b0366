/*
 * Groups that are destroyed while they are still needed: by a message that
 * another thread waits for, or by a function that is called in the group's own
 * thread.
 */
#include <stdatomic.h>
#include <stdint.h>

#include "tests/unit/coll_harness.h"
#include "tests/unit/unit.h"
#include "worker/coll_agent.h"

#define TIMEOUT_MS 30000

static struct harness_store store;

static void setup(void)
{
    coll_agent_attach(); /* there is none, but now there is a recorder */
    harness_store_start(&store);
}

static void teardown(void)
{
    harness_store_stop(&store);
    coll_agent_detach();
}

/* A group that the test destroys itself. */
static struct coll_group *join_other(struct coll_group *g)
{
    const struct harness_job job = {
        .store = &store, .timeout_ms = TIMEOUT_MS, .prefix = "other/"};
    struct coll_group *other = NULL;

    EXPECT_OK(harness_join(&job, g->rank, g->size, &other));
    return other;
}

/* --- Messages ------------------------------------------------------------- */

static void *receive_main(void *arg)
{
    int32_t x = 0;

    EXPECT_OK(coll_recv(&x, 1, COLL_INT32, 1, 0, NULL, arg));
    EXPECT(x == 7, "got %d", x);
    return NULL;
}

/* The recorder shows when the other thread is in the call. */
static bool is_receiving(void)
{
    char text[64 * 1024];
    FILE *f = tmpfile();
    bool is_there = false;
    size_t n;

    if (f == NULL || coll_recorder_dump(fileno(f)) != COLL_OK)
        harness_wrong("cannot dump the recorder");
    if (f == NULL)
        return true;
    rewind(f);
    n = fread(text, 1, sizeof(text) - 1, f);
    text[n] = '\0';
    fclose(f);
    for (char *line = strtok(text, "\n"); line != NULL;
         line = strtok(NULL, "\n"))
        is_there |= strstr(line, "\"kind\": \"recv\"") != NULL &&
                    strstr(line, "\"finished_ns\": null") != NULL;
    return is_there;
}

static void destroy_under_a_message(struct coll_group *g, int rank, void *arg)
{
    struct coll_group *other = join_other(g);
    pthread_t thread;
    int32_t x = 7;

    (void)arg;
    if (other == NULL)
        return;
    if (rank == 0) {
        if (pthread_create(&thread, NULL, receive_main, other) != 0) {
            harness_wrong("no thread");
            return;
        }
        while (!is_receiving())
            sched_yield();
        EXPECT_FAILS(coll_group_destroy(other), COLL_ERR_STATE,
            "an operation is on its way");
        EXPECT_OK(coll_barrier(g));
        pthread_join(thread, NULL);
    } else {
        EXPECT_OK(coll_barrier(g));
        EXPECT_OK(coll_send(&x, 1, COLL_INT32, 0, 0, other));
    }
    EXPECT_OK(coll_group_destroy(other));
}

START_TEST(a_group_is_not_destroyed_under_a_message)
{
    harness_run(&store, 2, TIMEOUT_MS, destroy_under_a_message, NULL);
}
END_TEST

/* --- Functions ------------------------------------------------------------ */

struct wish {
    struct coll_group *g;
    _Atomic int calls;
};

static void destroy_cb(coll_status_t status, void *arg)
{
    struct wish *wish = arg;

    EXPECT(status == COLL_OK, "%s", coll_strerror(status));
    EXPECT_FAILS(coll_group_destroy(wish->g), COLL_ERR_STATE,
        "coll_group_destroy: called by a function of coll_work_then()");
    EXPECT_FAILS(coll_destroy(), COLL_ERR_STATE, "coll_destroy: called by");
    atomic_fetch_add(&wish->calls, 1);
}

/* The first one is in line behind an operation that cannot be over before the
 * function is known. */
static void destroy_in_a_function(struct coll_group *g, int rank, void *arg)
{
    struct coll_group *other = join_other(g);
    struct wish wish = {.g = other};
    coll_work_t *sum = NULL;
    coll_work_t *message = NULL;
    int64_t x = rank;
    int32_t y = 0;

    (void)arg;
    if (other == NULL)
        return;
    if (rank == 0) {
        EXPECT_OK(coll_all_reduce_async(
            &x, &x, 1, COLL_INT64, COLL_SUM, other, &sum));
        EXPECT_OK(coll_irecv(&y, 1, COLL_INT32, 1, 0, other, &message));
        EXPECT_OK(coll_work_then(sum, destroy_cb, &wish));
        EXPECT_OK(coll_work_then(message, destroy_cb, &wish));
    }
    EXPECT_OK(coll_barrier(g));
    if (rank == 1) {
        EXPECT_OK(coll_all_reduce(&x, &x, 1, COLL_INT64, COLL_SUM, other));
        EXPECT_OK(coll_send(&y, 1, COLL_INT32, 0, 0, other));
    }
    if (rank == 0) {
        EXPECT_OK(coll_work_wait(sum, 0));
        EXPECT_OK(coll_work_wait(message, 0));
        while (atomic_load(&wish.calls) < 2)
            sched_yield();
        coll_work_free(sum);
        coll_work_free(message);
    }
    EXPECT_OK(coll_group_destroy(other));
}

START_TEST(a_function_destroys_no_group)
{
    harness_run(&store, 2, TIMEOUT_MS, destroy_in_a_function, NULL);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("coll_life");

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_group_is_not_destroyed_under_a_message);
    tcase_add_test(tc, a_function_destroys_no_group);
    return unit_run("coll_life", tc);
}
