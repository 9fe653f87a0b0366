/* Unit tests of worker/cuda_api.c, and through it of the driver's double. */
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

#include "tests/unit/gpu_fakes.h"

static void ck_contains(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "no '%s' in: %s", part, text);
}

START_TEST(absent_file_is_named)
{
    struct cuda_api api;

    ck_assert_int_eq(
        cuda_api_open(&api, "/nowhere/libcuda.so.1"), COLL_ERR_UNSUPPORTED);
    ck_contains(coll_last_error(), "/nowhere/libcuda.so.1");
    ck_contains(coll_last_error(), "install");
    ck_assert_ptr_null(api.handle);
}
END_TEST

START_TEST(library_that_is_no_driver_is_refused)
{
    struct cuda_api api;
    char path[PATH_MAX];

    /* Loads, and has none of the functions. */
    ck_assert_int_eq(cuda_api_open(&api, "libc.so.6"), COLL_ERR_UNSUPPORTED);
    ck_contains(coll_last_error(), "libc.so.6");
    ck_contains(coll_last_error(), "cuInit");
    setenv("FAKE_CUDA_VERSION", "10020", 1);
    fake_file("libcuda.so.1", path);
    ck_assert_int_eq(cuda_api_open(&api, path), COLL_ERR_UNSUPPORTED);
    ck_contains(coll_last_error(), path);
    ck_contains(coll_last_error(), "CUDA 10.2");
    ck_contains(coll_last_error(), "11.0 or later");
    unsetenv("FAKE_CUDA_VERSION");
    setenv("FAKE_CUDA_FAIL", "cuDriverGetVersion:0:34", 1);
    ck_assert_int_eq(cuda_api_open(&api, path), COLL_ERR_UNSUPPORTED);
    ck_contains(coll_last_error(), "stub");
    setenv("FAKE_CUDA_FAIL", "cuDriverGetVersion:0:803", 1);
    ck_assert_int_eq(cuda_api_open(&api, path), COLL_ERR_SYSTEM);
    ck_contains(coll_last_error(), "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
}
END_TEST

static void *get_api(void *arg)
{
    const struct cuda_api *api = NULL;

    (void)arg;
    if (cuda_api_get(&api) != COLL_OK)
        ck_contains(coll_last_error(), "libcuda.so.1");
    return (void *)api;
}

START_TEST(process_has_one_driver)
{
    pthread_t threads[4];
    void *first, *other;

    /* There may be one on this machine or not: all threads get the same. */
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, get_api, NULL), 0);
    pthread_join(threads[0], &first);
    for (int i = 1; i < 4; i++) {
        pthread_join(threads[i], &other);
        ck_assert_ptr_eq(first, other);
    }
    ck_assert_ptr_eq(get_api(NULL), first);
}
END_TEST

START_TEST(driver_is_found_by_name)
{
    const struct cuda_api *api;

    /* A driver that is loaded already answers to the name alone. */
    open_cuda();
    ck_assert_msg(cuda_api_get(&api) == COLL_OK, "%s", coll_last_error());
    ck_assert_ptr_eq(api->init, cu.init);
    ck_assert_int_eq(api->version, 13000);
}
END_TEST

START_TEST(devices_are_described)
{
    char text[64], other[64];
    cu_uuid_t uuid, other_uuid;
    int count, value;
    cu_device_t device;

    setenv("FAKE_CUDA_DEVICES", "3", 1);
    open_cuda();
    ck_assert_uint_eq(cu.device_get_count(&count), COLL_CUDA_NOT_INITIALIZED);
    CU(init(0));
    CU(device_get_count(&count));
    ck_assert_int_eq(count, 3);
    CU(device_get(&device, 2));
    ck_assert_uint_eq(cu.device_get(&device, 3), COLL_CUDA_INVALID_DEVICE);
    CU(device_get_name(text, sizeof(text), 2));
    ck_assert_str_eq(text, "Fake GPU 2");
    CU(device_get_bus_id(text, sizeof(text), 0));
    CU(device_get_bus_id(other, sizeof(other), 1));
    ck_assert_str_eq(text, "0000:10:00.0");
    ck_assert_str_eq(other, "0000:11:00.0");
    CU(device_get_uuid(&uuid, 0));
    CU(device_get_uuid(&other_uuid, 1));
    ck_assert_int_ne(memcmp(&uuid, &other_uuid, sizeof(uuid)), 0);
    CU(device_get_attribute(&value, COLL_CUDA_CAPABILITY_MAJOR, 0));
    ck_assert_int_eq(value, 9);
    ck_assert_str_eq(
        cuda_api_error(&cu, COLL_CUDA_INVALID_DEVICE, text, sizeof(text)),
        "CUDA_ERROR_INVALID_DEVICE (what the test double says of it)");
    ck_assert_str_eq(
        cuda_api_error(&cu, 12345, text, sizeof(text)), "CUDA error 12345");
}
END_TEST

START_TEST(visible_devices_are_chosen_by_number_and_uuid)
{
    static const struct {
        const char *setting;
        int count;
        const char *first; /* bus id */
    } cases[] = {
        {"2,0", 2, "0000:12:00.0"},
        {"1,9,0", 1, "0000:11:00.0"},
        {"1,1", 1, "0000:11:00.0"},
        {"GPU-61206661-6b65-2047-5055-3a2000000004", 1, "0000:13:00.0"},
        {"", 0, NULL},
        {"-1", 0, NULL},
    };
    int count;
    char text[64];

    setenv("CUDA_VISIBLE_DEVICES", cases[_i].setting, 1);
    open_cuda();
    if (cases[_i].count == 0) {
        ck_assert_uint_eq(cu.init(0), COLL_CUDA_NO_DEVICE);
        return;
    }
    CU(init(0));
    CU(device_get_count(&count));
    ck_assert_int_eq(count, cases[_i].count);
    CU(device_get_bus_id(text, sizeof(text), 0));
    ck_assert_str_eq(text, cases[_i].first);
}
END_TEST

START_TEST(contexts_are_of_threads)
{
    struct cu_context *zero, *one, *now;
    cu_device_t device;
    int least, greatest;

    open_cuda();
    CU(init(0));
    CU(context_get(&now));
    ck_assert_ptr_null(now);
    ck_assert_uint_eq(
        cu.context_get_device(&device), COLL_CUDA_INVALID_CONTEXT);
    CU(primary_context_retain(&zero, 0));
    CU(primary_context_retain(&one, 1));
    CU(context_set(zero));
    CU(context_push(one));
    CU(context_get_device(&device));
    ck_assert_int_eq(device, 1);
    CU(context_get_priorities(&least, &greatest));
    ck_assert_int_gt(least, greatest);
    CU(context_pop(&now));
    ck_assert_ptr_eq(now, one);
    CU(context_get(&now));
    ck_assert_ptr_eq(now, zero);
    CU(primary_context_release(0));
    ck_assert_uint_eq(
        cu.context_get_device(&device), COLL_CUDA_CONTEXT_IS_DESTROYED);
    CU(context_set(NULL));
    CU(context_get(&now));
    ck_assert_ptr_null(now);
    CU(primary_context_release(1));
    ck_assert_uint_eq(cu.primary_context_release(1), COLL_CUDA_INVALID_CONTEXT);
}
END_TEST

static void wait_until_set(void *arg)
{
    while (!atomic_load((_Atomic bool *)arg))
        sched_yield();
}

START_TEST(streams_run_in_order_and_beside_each_other)
{
    struct rank r = {.rank = 0};
    struct cu_stream *other;
    struct cu_event *event;
    static _Atomic bool gate;
    cu_capture_status_t capture;
    void *memory;
    unsigned char byte;

    open_cuda();
    rank_begin(&r, 0);
    memory = device_memory(1000, 1);
    CU(stream_create(&other, COLL_CUDA_STREAM_NON_BLOCKING, -1));
    CU(event_create(&event, COLL_CUDA_EVENT_NO_TIMING));
    CU(event_query(event)); /* was never recorded */
    CU(launch_host_function(r.stream, wait_until_set, &gate));
    CU(memory_set_async((uintptr_t)memory, 2, 1000, r.stream));
    CU(event_record(event, r.stream));
    CU(stream_wait_event(other, event, 0));
    CU(memory_copy_async((uintptr_t)&byte, (uintptr_t)memory + 999, 1, other));
    ck_assert_uint_eq(cu.stream_query(r.stream), COLL_CUDA_NOT_READY);
    ck_assert_uint_eq(cu.stream_query(other), COLL_CUDA_NOT_READY);
    ck_assert_uint_eq(cu.event_query(event), COLL_CUDA_NOT_READY);
    ck_assert_int_eq(((unsigned char *)memory)[999], 1);
    CU(stream_is_capturing(other, &capture));
    ck_assert_uint_eq(capture, COLL_CUDA_CAPTURE_NONE);
    atomic_store(&gate, true);
    CU(stream_synchronize(other));
    ck_assert_int_eq(byte, 2);
    CU(event_synchronize(event));
    CU(event_query(event));
    CU(stream_query(other));
    CU(event_destroy(event));
    CU(stream_destroy(other));
    ck_assert_uint_eq(cu.stream_query(other), COLL_CUDA_INVALID_HANDLE);
    device_free(memory);
    rank_end(&r, 0);
}
END_TEST

START_TEST(default_streams_are_one)
{
    struct rank r = {.rank = 0};
    static _Atomic bool gate;

    open_cuda();
    ck_assert_uint_eq(cu.stream_query(NULL), COLL_CUDA_NOT_INITIALIZED);
    rank_begin(&r, 0);
    CU(launch_host_function(NULL, wait_until_set, &gate));
    ck_assert_uint_eq(
        cu.stream_query((struct cu_stream *)2), COLL_CUDA_NOT_READY);
    atomic_store(&gate, true);
    CU(stream_synchronize(NULL));
    rank_end(&r, 0);
}
END_TEST

START_TEST(memory_is_told_apart)
{
    struct rank r = {.rank = 1};
    int on_stack, ordinal;
    void *device, *host;
    struct cu_context *context, *current;
    unsigned int type, is_managed;
    cu_pointer_attribute_t asked[] = {COLL_CUDA_POINTER_MEMORY_TYPE,
        COLL_CUDA_POINTER_ORDINAL, COLL_CUDA_POINTER_IS_MANAGED};
    void *answers[] = {&type, &ordinal, &is_managed};
    char copy[3];

    open_cuda();
    rank_begin(&r, 1);
    device = device_memory(100, 7);
    CU(pointer_get_attribute(
        &type, COLL_CUDA_POINTER_MEMORY_TYPE, (uintptr_t)device + 99));
    ck_assert_uint_eq(type, COLL_CUDA_MEMORY_DEVICE);
    CU(pointer_get_attribute(
        &context, COLL_CUDA_POINTER_CONTEXT, (uintptr_t)device));
    CU(context_get(&current));
    ck_assert_ptr_eq(context, current);
    CU(pointer_get_attributes(3, asked, answers, (uintptr_t)device));
    ck_assert_int_eq(ordinal, 1);
    ck_assert_uint_eq(is_managed, 0);
    ck_assert_uint_eq(cu.pointer_get_attribute(&type,
                          COLL_CUDA_POINTER_MEMORY_TYPE, (uintptr_t)&on_stack),
        COLL_CUDA_INVALID_VALUE);
    CU(pointer_get_attributes(3, asked, answers, (uintptr_t)&on_stack));
    ck_assert_uint_eq(type, 0);
    CU(host_alloc(&host, 10, COLL_CUDA_HOST_PORTABLE));
    CU(pointer_get_attributes(3, asked, answers, (uintptr_t)host));
    ck_assert_uint_eq(type, COLL_CUDA_MEMORY_HOST);
    CU(memory_copy((uintptr_t)copy, (uintptr_t)device, sizeof(copy)));
    ck_assert_int_eq(copy[2], 7);
    ck_assert_uint_eq(cu.memory_free((uintptr_t)host), COLL_CUDA_INVALID_VALUE);
    CU(host_free(host));
    device_free(device);
    ck_assert_uint_eq(
        cu.memory_free((uintptr_t)&on_stack), COLL_CUDA_INVALID_VALUE);
    rank_end(&r, 1);
}
END_TEST

START_TEST(nth_call_fails_as_scripted)
{
    struct rank r = {.rank = 0};
    void *memory;
    cu_address_t other;

    setenv("FAKE_CUDA_FAIL", "cuMemAlloc_v2:2:2,cuStreamSynchronize:1:700", 1);
    open_cuda();
    rank_begin(&r, 0);
    memory = device_memory(1, 0);
    ck_assert_uint_eq(cu.memory_alloc(&other, 1), COLL_CUDA_OUT_OF_MEMORY);
    CU(memory_alloc(&other, 1));
    CU(memory_free(other));
    device_free(memory);
    ck_assert_uint_eq(
        cu.stream_synchronize(r.stream), COLL_CUDA_ILLEGAL_ADDRESS);
    rank_end(&r, 0);
}
END_TEST

START_TEST(child_of_a_process_with_devices_has_none)
{
    pid_t child;
    int status;

    open_cuda();
    CU(init(0));
    child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        _exit(cu.init(0) == COLL_CUDA_NOT_INITIALIZED &&
                      cu.device_get_count(&status) == COLL_CUDA_NOT_INITIALIZED
                  ? 0
                  : 1);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("cuda_api");

    tcase_add_checked_fixture(tcase, fakes_setup, fakes_teardown);
    tcase_add_test(tcase, absent_file_is_named);
    tcase_add_test(tcase, library_that_is_no_driver_is_refused);
    tcase_add_test(tcase, process_has_one_driver);
    tcase_add_test(tcase, driver_is_found_by_name);
    tcase_add_test(tcase, devices_are_described);
    tcase_add_loop_test(
        tcase, visible_devices_are_chosen_by_number_and_uuid, 0, 6);
    tcase_add_test(tcase, contexts_are_of_threads);
    tcase_add_test(tcase, streams_run_in_order_and_beside_each_other);
    tcase_add_test(tcase, default_streams_are_one);
    tcase_add_test(tcase, memory_is_told_apart);
    tcase_add_test(tcase, nth_call_fails_as_scripted);
    tcase_add_test(tcase, child_of_a_process_with_devices_has_none);
    return unit_run("cuda_api", tcase);
}
