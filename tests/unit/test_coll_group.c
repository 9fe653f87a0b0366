/* Arguments, names and misuse: what fails before anybody is asked. */
#include <stdint.h>

#include "tests/unit/coll_harness.h"
#include "tests/unit/unit.h"

static struct coll_group *alone;

static void setup(void)
{
    ck_assert_int_eq(
        coll_group_create(&alone, &coll_backend_self, 0, 1, 1000, NULL),
        COLL_OK);
}

static void teardown(void)
{
    coll_group_free(alone);
}

static void fails(coll_status_t got, coll_status_t want, const char *words)
{
    ck_assert_msg(got == want, "%s: %s", coll_strerror(got), coll_last_error());
    ck_assert_msg(strstr(coll_last_error(), words) != NULL,
        "\"%s\" is not in: %s", words, coll_last_error());
}

#define BAD_DTYPE ((coll_dtype_t)99)
#define BAD_OP ((coll_op_t)99)

START_TEST(bad_arguments_change_nothing)
{
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    float copy[8];
    struct coll_group *g = alone;

    memcpy(copy, x, sizeof(x));
    fails(coll_all_reduce(x, x, 8, BAD_DTYPE, COLL_SUM, g), COLL_ERR_ARGUMENT,
        "coll_all_reduce: unknown data type 99");
    fails(coll_all_reduce(x, x, 8, (coll_dtype_t)-1, COLL_SUM, g),
        COLL_ERR_ARGUMENT, "unknown data type");
    fails(coll_all_reduce(x, x, 8, COLL_FLOAT32, BAD_OP, g), COLL_ERR_ARGUMENT,
        "unknown reduction 99");
    fails(coll_all_reduce(x, x, 8, COLL_FLOAT32, (coll_op_t)-1, g),
        COLL_ERR_ARGUMENT, "unknown reduction");
    fails(coll_all_reduce(NULL, x, 8, COLL_FLOAT32, COLL_SUM, g),
        COLL_ERR_ARGUMENT, "sendbuf is NULL, count is 8");
    fails(coll_all_reduce(x, NULL, 8, COLL_FLOAT32, COLL_SUM, g),
        COLL_ERR_ARGUMENT, "recvbuf is NULL");
    fails(coll_all_reduce(x, x + 1, 4, COLL_FLOAT32, COLL_SUM, g),
        COLL_ERR_ARGUMENT, "overlap");
    fails(coll_all_reduce(x + 3, x, 4, COLL_FLOAT32, COLL_SUM, g),
        COLL_ERR_ARGUMENT, "overlap");
    fails(coll_all_reduce(x, x, SIZE_MAX, COLL_FLOAT32, COLL_SUM, g),
        COLL_ERR_ARGUMENT, "address space");
    fails(coll_all_reduce(x, x, SIZE_MAX / 4 + 2, COLL_FLOAT32, COLL_SUM, g),
        COLL_ERR_ARGUMENT, "address space");
    fails(coll_broadcast(x, 8, BAD_DTYPE, 0, g), COLL_ERR_ARGUMENT,
        "coll_broadcast: unknown data type");
    fails(coll_broadcast(x, 8, COLL_FLOAT32, 1, g), COLL_ERR_ARGUMENT,
        "root 1 is not a rank of a group of 1");
    fails(coll_broadcast(x, 8, COLL_FLOAT32, -1, g), COLL_ERR_ARGUMENT,
        "root -1");
    fails(coll_broadcast(NULL, 8, COLL_FLOAT32, 0, g), COLL_ERR_ARGUMENT,
        "buf is NULL");
    ck_assert_int_eq(memcmp(copy, x, sizeof(x)), 0);
    ck_assert_uint_eq(g->seq, 0);
    ck_assert_int_eq(coll_barrier(g), COLL_OK); /* not broken */
}
END_TEST

START_TEST(adjacent_buffers_do_not_overlap)
{
    int32_t x[8] = {1, 2, 3, 4, 0, 0, 0, 0};

    ck_assert_int_eq(
        coll_all_reduce(x, x + 4, 4, COLL_INT32, COLL_SUM, alone), COLL_OK);
    ck_assert_int_eq(x[7], 4);
}
END_TEST

/* Every operation is the identity, AVG included. */
START_TEST(world_of_one_copies)
{
    for (int op = COLL_SUM; op <= COLL_PRODUCT; op++) {
        double x[3] = {1.5, -2, 1e300};
        double y[3] = {0};

        ck_assert_int_eq(
            coll_all_reduce(x, y, 3, COLL_FLOAT64, (coll_op_t)op, alone),
            COLL_OK);
        ck_assert_int_eq(memcmp(x, y, sizeof(x)), 0);
        ck_assert_int_eq(
            coll_all_reduce(x, x, 3, COLL_FLOAT64, (coll_op_t)op, alone),
            COLL_OK);
        ck_assert_int_eq(memcmp(x, y, sizeof(x)), 0);
    }
}
END_TEST

START_TEST(zero_elements_are_a_step)
{
    for (int dtype = COLL_FLOAT32; dtype <= COLL_INT64; dtype++) {
        uint64_t seq = alone->seq;
        int64_t guard = 5;

        ck_assert_int_eq(coll_all_reduce(NULL, NULL, 0, (coll_dtype_t)dtype,
                             COLL_AVG, alone),
            COLL_OK);
        ck_assert_int_eq(coll_all_reduce(&guard, &guard, 0, (coll_dtype_t)dtype,
                             COLL_SUM, alone),
            COLL_OK);
        ck_assert_int_eq(
            coll_broadcast(NULL, 0, (coll_dtype_t)dtype, 0, alone), COLL_OK);
        ck_assert_int_eq(guard, 5);
        ck_assert_uint_eq(alone->seq, seq + 3);
    }
}
END_TEST

START_TEST(self_refuses_more_than_one_rank)
{
    struct coll_group *g = NULL;

    fails(coll_group_create(&g, &coll_backend_self, 0, 2, 1000, NULL),
        COLL_ERR_UNSUPPORTED, "up to 1 rank, not 2");
    ck_assert_ptr_null(g);
}
END_TEST

START_TEST(shm_refuses_more_ranks_than_its_limit)
{
    struct coll_group *g = NULL;
    struct coll_boot boot = {.prefix = "x/"};

    fails(coll_group_create(&g, &coll_backend_shm, 0, 100000, 1000, &boot),
        COLL_ERR_UNSUPPORTED, "up to 1024 ranks, not 100000");
    fails(coll_group_create(&g, &coll_backend_shm, 0, INT32_MAX, 1000, &boot),
        COLL_ERR_UNSUPPORTED, "up to 1024 ranks, not 2147483647");
    ck_assert_ptr_null(g);
}
END_TEST

START_TEST(shm_serves_one_rank)
{
    struct coll_group *g = NULL;
    struct coll_boot boot = {
        .prefix = "x/", .deadline_ns = clock_deadline_ns(10000)};
    int32_t x = 7;
    int32_t y = 0;

    ck_assert_int_eq(
        coll_group_create(&g, &coll_backend_shm, 0, 1, 10000, &boot), COLL_OK);
    ck_assert_int_eq(
        coll_all_reduce(&x, &y, 1, COLL_INT32, COLL_AVG, g), COLL_OK);
    ck_assert_int_eq(y, 7);
    ck_assert_int_eq(coll_broadcast(&y, 1, COLL_INT32, 0, g), COLL_OK);
    ck_assert_int_eq(coll_barrier(g), COLL_OK);
    coll_group_free(g);
}
END_TEST

START_TEST(no_default_group_before_init)
{
    float x = 0;

    ck_assert(!coll_is_initialized());
    ck_assert_int_eq(coll_rank(NULL), -1);
    ck_assert_int_eq(coll_world_size(NULL), -1);
    ck_assert_int_eq(coll_local_rank(), -1);
    ck_assert_ptr_null(coll_backend_name(NULL));
    fails(coll_all_reduce(&x, &x, 1, COLL_FLOAT32, COLL_SUM, NULL),
        COLL_ERR_STATE, "coll_all_reduce: there is no group");
    fails(coll_broadcast(&x, 1, COLL_FLOAT32, 0, NULL), COLL_ERR_STATE,
        "coll_broadcast: there is no group");
    fails(
        coll_barrier(NULL), COLL_ERR_STATE, "coll_barrier: there is no group");
    fails(coll_destroy(), COLL_ERR_STATE, "not initialized");
    coll_group_free(NULL);
}
END_TEST

START_TEST(every_value_has_a_name)
{
    ck_assert_str_eq(coll_strerror(COLL_OK), "success");
    ck_assert_str_eq(coll_strerror(COLL_ERR_TIMEOUT), "timed out");
    ck_assert_str_eq(coll_strerror((coll_status_t)-99), "unknown status");
    ck_assert_str_eq(coll_dtype_name(COLL_INT64), "int64");
    ck_assert_str_eq(coll_dtype_name(BAD_DTYPE), "?");
    ck_assert_uint_eq(coll_dtype_size(COLL_FLOAT64), 8);
    ck_assert_uint_eq(coll_dtype_size(COLL_INT32), 4);
    ck_assert_uint_eq(coll_dtype_size(BAD_DTYPE), 0);
    ck_assert_str_eq(coll_op_name(COLL_AVG), "avg");
    ck_assert_str_eq(coll_op_name(BAD_OP), "?");
    ck_assert_str_eq(coll_kind_name(COLL_KIND_BARRIER), "barrier");
    ck_assert_str_eq(coll_kind_name((enum coll_kind)99), "?");
    ck_assert_ptr_eq(coll_backend_find("self"), &coll_backend_self);
    ck_assert_ptr_eq(coll_backend_find("shm"), &coll_backend_shm);
    ck_assert_ptr_null(coll_backend_find("shmem"));
}
END_TEST

static void *error_of_other_thread(void *arg)
{
    (void)arg;
    ck_assert_str_eq(coll_last_error(), "");
    coll_fail(COLL_ERR_SYSTEM, "theirs");
    return NULL;
}

START_TEST(error_text_is_the_threads_own)
{
    pthread_t thread;

    coll_fail(COLL_ERR_SYSTEM, "mine");
    ck_assert_int_eq(
        pthread_create(&thread, NULL, error_of_other_thread, NULL), 0);
    pthread_join(thread, NULL);
    ck_assert_str_eq(coll_last_error(), "mine");
    coll_fail(COLL_ERR_SYSTEM, "still %s", coll_last_error());
    ck_assert_str_eq(coll_last_error(), "still mine");
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("group");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, bad_arguments_change_nothing);
    tcase_add_test(tc, adjacent_buffers_do_not_overlap);
    tcase_add_test(tc, world_of_one_copies);
    tcase_add_test(tc, zero_elements_are_a_step);
    tcase_add_test(tc, self_refuses_more_than_one_rank);
    tcase_add_test(tc, shm_refuses_more_ranks_than_its_limit);
    tcase_add_test(tc, shm_serves_one_rank);
    tcase_add_test(tc, no_default_group_before_init);
    tcase_add_test(tc, every_value_has_a_name);
    tcase_add_test(tc, error_text_is_the_threads_own);
    return unit_run("coll_group", tc);
}
