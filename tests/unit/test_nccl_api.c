/* Unit tests of worker/nccl_api.c, and through it of NCCL's double. */
#include <dlfcn.h>
#include <sched.h>
#include <stdint.h>

#include "tests/unit/gpu_fakes.h"
#include "worker/backend.h"

static void ck_contains(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "no '%s' in: %s", part, text);
}

/* --- The loader -------------------------------------------------------- */

START_TEST(absent_file_is_named)
{
    struct nccl_api api;

    ck_assert_int_eq(
        nccl_api_open(&api, "/nowhere/libnccl.so.2"), COLL_ERR_UNSUPPORTED);
    ck_contains(coll_last_error(), "/nowhere/libnccl.so.2");
    ck_contains(coll_last_error(), "COLL_NCCL_LIBRARY");
    ck_assert_ptr_null(api.handle);
}
END_TEST

START_TEST(other_library_is_refused)
{
    struct nccl_api api;

    ck_assert_int_eq(nccl_api_open(&api, "libc.so.6"), COLL_ERR_UNSUPPORTED);
    ck_contains(coll_last_error(), "libc.so.6");
    ck_contains(coll_last_error(), "ncclGetVersion");
}
END_TEST

START_TEST(old_version_is_refused)
{
    struct nccl_api api;
    char path[PATH_MAX];

    fake_file("2.17/libnccl.so.2", path);
    ck_assert_int_eq(nccl_api_open(&api, path), COLL_ERR_UNSUPPORTED);
    ck_contains(coll_last_error(), path);
    ck_contains(coll_last_error(), "is NCCL 2.17.1, and 2.18.0 or later");
}
END_TEST

START_TEST(missing_function_is_named)
{
    struct nccl_api api;
    char path[PATH_MAX];

    setenv("FAKE_NCCL_VERSION", "22809", 1);
    fake_file("2.17/libnccl.so.2", path);
    ck_assert_int_eq(nccl_api_open(&api, path), COLL_ERR_UNSUPPORTED);
    ck_contains(coll_last_error(), path);
    ck_contains(coll_last_error(), "(NCCL 2.28.9)");
    ck_contains(coll_last_error(), "ncclCommSplit");
}
END_TEST

START_TEST(newer_functions_may_be_absent)
{
    open_nccl("2.18/libnccl.so.2");
    ck_assert_int_eq(nccl.version, 21803);
    ck_assert(nccl.comm_split != NULL);
    ck_assert(nccl.comm_init_scalable == NULL);
    ck_assert(nccl.comm_register == NULL);
    ck_assert(nccl.comm_shrink == NULL);
    ck_assert(nccl.all_to_all == NULL);
    ck_assert(nccl.comm_revoke == NULL);
    nccl_api_close(&nccl);
    ck_assert_ptr_null(nccl.handle);
    open_nccl("libnccl.so.2");
    ck_assert_int_eq(nccl.version, 22809);
#define CHECK(member, symbol, required, result, args)                          \
    ck_assert_msg(nccl.member != NULL, "%s", #symbol);
    COLL_NCCL_MAP(CHECK)
#undef CHECK
}
END_TEST

static void *get_api(void *arg)
{
    const struct nccl_api *api = NULL;

    *(coll_status_t *)arg = nccl_api_get(&api);
    return (void *)api;
}

START_TEST(variable_names_the_library_of_the_process)
{
    pthread_t threads[4];
    coll_status_t status[4];
    char path[PATH_MAX];
    void *first, *other;

    setenv("COLL_NCCL_LIBRARY", fake_file("libnccl.so.2", path), 1);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(
            pthread_create(&threads[i], NULL, get_api, &status[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], i == 0 ? &first : &other);
        ck_assert_int_eq(status[i], COLL_OK);
        ck_assert(i == 0 || other == first);
    }
    ck_assert_int_eq(((struct nccl_api *)first)->version, 22809);
}
END_TEST

START_TEST(failure_to_load_stays)
{
    coll_status_t status;

    setenv("COLL_NCCL_LIBRARY", "/nowhere/at.all", 1);
    for (int i = 0; i < 2; i++) {
        ck_assert_ptr_null(get_api(&status));
        ck_assert_int_eq(status, COLL_ERR_UNSUPPORTED);
        ck_contains(coll_last_error(), "/nowhere/at.all");
        coll_fail(COLL_OK, "something else");
        unsetenv("COLL_NCCL_LIBRARY");
    }
}
END_TEST

START_TEST(versions_are_written_as_people_do)
{
    char text[COLL_NCCL_VERSION_TEXT];

    ck_assert_str_eq(nccl_version_text(22809, text), "2.28.9");
    ck_assert_str_eq(nccl_version_text(21805, text), "2.18.5");
    ck_assert_str_eq(nccl_version_text(2708, text), "2.7.8");
}
END_TEST

START_TEST(config_is_as_large_as_the_version_knows)
{
    /* What sizeof(ncclConfig_t) is in that version, with 64 bits. */
    static const struct {
        int version;
        size_t size;
    } cases[] = {{21803, 48}, {22503, 48}, {22602, 48}, {22703, 72},
        {22809, 80}, {22907, 88}, {23003, 96}, {23007, 96}};
    nccl_config_t config;

    nccl_config_init(&config, cases[_i].version);
    ck_assert_uint_eq(config.size, cases[_i].size);
    ck_assert_uint_le(config.version, (unsigned int)cases[_i].version);
    ck_assert_int_eq(config.graphStreamOrdering, COLL_NCCL_UNDEFINED);
}
END_TEST

/* --- Operations -------------------------------------------------------- */

#define COUNT 20000 /* several chunks of the double's */
#define ALL_TYPES 12

/* 0, 1, 2, 3, 6 and 12 in every type, as bits. */
static const struct {
    size_t size;
    uint64_t bits[6];
} types[ALL_TYPES] = {
    [COLL_NCCL_INT8] = {1, {0, 1, 2, 3, 6, 12}},
    [COLL_NCCL_UINT8] = {1, {0, 1, 2, 3, 6, 12}},
    [COLL_NCCL_INT32] = {4, {0, 1, 2, 3, 6, 12}},
    [COLL_NCCL_UINT32] = {4, {0, 1, 2, 3, 6, 12}},
    [COLL_NCCL_INT64] = {8, {0, 1, 2, 3, 6, 12}},
    [COLL_NCCL_UINT64] = {8, {0, 1, 2, 3, 6, 12}},
    [COLL_NCCL_FLOAT16] = {2, {0, 0x3c00, 0x4000, 0x4200, 0x4600, 0x4a00}},
    [COLL_NCCL_FLOAT32] = {4,
        {0, 0x3f800000, 0x40000000, 0x40400000, 0x40c00000, 0x41400000}},
    [COLL_NCCL_FLOAT64] = {8,
        {0, 0x3ff0000000000000, 0x4000000000000000, 0x4008000000000000,
            0x4018000000000000, 0x4028000000000000}},
    [COLL_NCCL_BFLOAT16] = {2, {0, 0x3f80, 0x4000, 0x4040, 0x40c0, 0x4140}},
    [COLL_NCCL_FLOAT8_E4M3] = {1, {0, 0x38, 0x40, 0x44, 0x4c, 0x54}},
    [COLL_NCCL_FLOAT8_E5M2] = {1, {0, 0x3c, 0x40, 0x42, 0x46, 0x4a}},
};

enum { ZERO, ONE, TWO, THREE, SIX, TWELVE };

static void fill(void *memory, int type, int value, size_t count)
{
    for (size_t i = 0; i < count; i++)
        memcpy((char *)memory + i * types[type].size, &types[type].bits[value],
            types[type].size);
}

/* Elements at..at + count are that value. */
static bool holds(
    const void *memory, int type, int value, size_t at, size_t count)
{
    size_t size = types[type].size;

    for (size_t i = at; i < at + count; i++)
        if (memcmp((const char *)memory + i * size, &types[type].bits[value],
                size) != 0)
            return false;
    return true;
}

#define SYNC(r) CU(stream_synchronize((r)->stream))

/* Three ranks have 1, 2 and 3; in place with an odd type. */
static void reduce_all(struct rank *r)
{
    static const int results[] = {SIX, SIX, THREE, ONE, TWO, TWELVE};
    int type = *(const int *)r->arg;
    size_t bytes = COUNT * types[type].size;
    void *from = device_memory(bytes, 0), *to = device_memory(bytes, 0);
    nccl_op_t premul;
    uint64_t two = types[type].bits[TWO];

    rank_meet(r);
    NCCL(op_create_premul_sum(
        &premul, &two, type, COLL_NCCL_SCALAR_HOST, r->comm));
    for (int i = 0; i < 6; i++) {
        nccl_op_t op = i < 5 ? (nccl_op_t)i : premul;
        void *target = type % 2 != 0 ? from : to;

        fill(from, type, ONE + r->rank, COUNT);
        NCCL(all_reduce(from, target, COUNT, type, op, r->comm, r->stream));
        SYNC(r);
        MUST(holds(target, type, results[i], 0, COUNT));
        fill(from, type, ONE + r->rank, COUNT);
        NCCL(reduce(from, to, COUNT, type, op, 1, r->comm, r->stream));
        SYNC(r);
        MUST(r->rank != 1 || holds(to, type, results[i], 0, COUNT));
        /* Three blocks, of which each rank gets its own. */
        fill(from, type, ONE + r->rank, COUNT);
        NCCL(reduce_scatter(from, to, COUNT / 3, type, op, r->comm, r->stream));
        SYNC(r);
        MUST(holds(to, type, results[i], 0, COUNT / 3));
    }
    NCCL(op_destroy(premul, r->comm));
    MUST(nccl.op_destroy(premul, r->comm) == COLL_NCCL_INVALID_ARGUMENT);
    MUST(nccl.all_reduce(from, to, 1, type, premul, r->comm, r->stream) ==
         COLL_NCCL_INVALID_ARGUMENT);
    NCCL(comm_destroy(r->comm));
    device_free(from);
    device_free(to);
}

START_TEST(every_type_is_reduced)
{
    int type = _i;

    open_nccl("libnccl.so.2");
    run_threads(3, reduce_all, &type);
}
END_TEST

/* Block i of a buffer holds what rank i is: 1, 2 or 3. */
static void move_all(struct rank *r)
{
    size_t n = 6000, bytes = 3 * n * 4;
    int *from = device_memory(bytes, 0), *to = device_memory(bytes, 0);
    const int type = COLL_NCCL_INT32, root = 2;

    rank_meet(r);
    fill(from, type, ONE + r->rank, n);
    NCCL(all_gather(from, to, n, type, r->comm, r->stream));
    SYNC(r);
    for (int i = 0; i < 3; i++)
        MUST(holds(to, type, ONE + i, (size_t)i * n, n));
    NCCL(broadcast(from, to, n, type, root, r->comm, r->stream));
    SYNC(r);
    MUST(holds(to, type, THREE, 0, n) && holds(to, type, TWO, n, n));
    memset(to, 0, bytes);
    NCCL(gather(from, to, n, type, root, r->comm, r->stream));
    SYNC(r);
    for (int i = 0; i < 3; i++)
        MUST(holds(
            to, type, r->rank == root ? ONE + i : ZERO, (size_t)i * n, n));
    for (int i = 0; i < 3; i++)
        fill(from + (size_t)i * n, type, ONE + i, n);
    NCCL(scatter(from, to, n, type, root, r->comm, r->stream));
    SYNC(r);
    MUST(holds(to, type, ONE + r->rank, 0, n));
    NCCL(all_to_all(from, to, n, type, r->comm, r->stream));
    SYNC(r);
    MUST(holds(to, type, ONE + r->rank, 0, 3 * n));
    NCCL(all_reduce(NULL, NULL, 0, type, COLL_NCCL_SUM, r->comm, r->stream));
    SYNC(r);
    NCCL(comm_destroy(r->comm));
    device_free(from);
    device_free(to);
}

START_TEST(data_are_moved)
{
    open_nccl("libnccl.so.2");
    run_threads(3, move_all, NULL);
}
END_TEST

START_TEST(data_are_moved_between_processes)
{
    open_nccl("libnccl.so.2");
    run_processes(3, move_all, NULL, NULL);
}
END_TEST

/* Around a ring, in one group, with a message to itself and an empty one. */
static void send_around(struct rank *r)
{
    int next = (r->rank + 1) % r->size;
    int before = (r->rank + r->size - 1) % r->size;
    int *from = device_memory(COUNT * 4, 0), *to = device_memory(COUNT * 4, 0);
    int own[2] = {7 + r->rank, 0};
    const int type = COLL_NCCL_INT32;

    rank_meet(r);
    fill(from, type, ONE + r->rank, COUNT);
    NCCL(group_start());
    NCCL(send(from, COUNT / 2, type, next, r->comm, r->stream));
    NCCL(send(from, COUNT / 2, type, next, r->comm, r->stream));
    NCCL(group_start());
    NCCL(recv(to, COUNT / 2, type, before, r->comm, r->stream));
    NCCL(recv(to + COUNT / 2, COUNT / 2, type, before, r->comm, r->stream));
    NCCL(group_end());
    NCCL(send(from, 0, type, next, r->comm, r->stream));
    NCCL(recv(to, 0, type, before, r->comm, r->stream));
    NCCL(recv(&own[1], 1, type, r->rank, r->comm, r->stream));
    NCCL(send(&own[0], 1, type, r->rank, r->comm, r->stream));
    NCCL(group_end());
    MUST(nccl.group_end() == COLL_NCCL_INVALID_USAGE);
    SYNC(r);
    MUST(holds(to, type, ONE + before, 0, COUNT));
    MUST(own[1] == 7 + r->rank);
    NCCL(comm_destroy(r->comm));
    device_free(from);
    device_free(to);
}

START_TEST(messages_pass_each_other_in_a_group)
{
    open_nccl("libnccl.so.2");
    run_threads(3, send_around, NULL);
}
END_TEST

/* One thread, four devices; and the operations of a group on two streams. */
START_TEST(one_thread_drives_several_devices)
{
    struct nccl_comm *comms[4];
    struct rank ranks[4];
    struct cu_stream *second;
    int *data[4];
    static const int devices[4] = {3, 1, 2, 0};

    open_nccl("libnccl.so.2");
    for (int i = 0; i < 4; i++) {
        rank_begin(&ranks[i], devices[i]);
        data[i] = device_memory(8, 0);
        data[i][0] = i;
    }
    CU(stream_create(&second, COLL_CUDA_STREAM_NON_BLOCKING, 0));
    NCCL(comm_init_all(comms, 4, devices));
    for (int i = 0; i < 4; i++) {
        int rank, device, size;

        NCCL(comm_rank(comms[i], &rank));
        NCCL(comm_device(comms[i], &device));
        NCCL(comm_count(comms[i], &size));
        MUST(rank == i && device == devices[i] && size == 4);
    }
    NCCL(group_start());
    for (int i = 0; i < 4; i++) {
        NCCL(all_reduce(data[i], data[i], 1, COLL_NCCL_INT32, COLL_NCCL_SUM,
            comms[i], ranks[i].stream));
        NCCL(all_reduce(data[i], data[i] + 1, 1, COLL_NCCL_INT32, COLL_NCCL_MAX,
            comms[i], i == 0 ? second : ranks[i].stream));
    }
    NCCL(group_end());
    CU(stream_synchronize(second)); /* is behind both */
    ck_assert_int_eq(data[0][0], 6);
    ck_assert_int_eq(data[0][1], 6);
    NCCL(group_start());
    for (int i = 0; i < 4; i++)
        NCCL(comm_finalize(comms[i]));
    NCCL(group_end());
    for (int i = 0; i < 4; i++) {
        NCCL(comm_destroy(comms[i]));
        ck_assert_int_eq(data[i][1], 6);
        device_free(data[i]);
    }
    CU(stream_destroy(second));
}
END_TEST

static void reduce_with_old(struct rank *r)
{
    nccl_config_t config;
    int one = 1;

    nccl_config_init(&config, nccl.version);
    config.splitShare = 1;
    NCCL(comm_init(&r->comm, r->size, r->id, r->rank, &config));
    NCCL(all_reduce(
        &one, &one, 1, COLL_NCCL_INT32, COLL_NCCL_SUM, r->comm, r->stream));
    SYNC(r);
    MUST(one == 2);
    MUST(nccl.all_reduce(&one, &one, 1, COLL_NCCL_FLOAT8_E4M3, COLL_NCCL_SUM,
             r->comm, r->stream) == COLL_NCCL_INVALID_ARGUMENT);
    NCCL(comm_destroy(r->comm));
}

START_TEST(oldest_version_knows_less)
{
    open_nccl("2.18/libnccl.so.2");
    run_threads(2, reduce_with_old, NULL);
}
END_TEST

/* --- Communicators ----------------------------------------------------- */

static nccl_result_t wait_until_ready(struct nccl_comm *comm)
{
    nccl_result_t state;

    do {
        NCCL(comm_get_async_error(comm, &state));
        sched_yield();
    } while (state == COLL_NCCL_IN_PROGRESS);
    return state;
}

static void make_children(struct rank *r)
{
    struct nccl_comm *child, *grandchild;
    int rank, size, one = 1;

    rank_meet(r);
    /* Even and odd, in the reverse order. */
    NCCL(comm_split(r->comm, r->rank % 2, -r->rank, &child, NULL));
    NCCL(comm_rank(child, &rank));
    NCCL(comm_count(child, &size));
    MUST(size == 2 && rank == (r->rank < 2 ? 1 : 0));
    NCCL(comm_split(child, COLL_NCCL_SPLIT_NO_COLOR, 0, &grandchild, NULL));
    MUST(grandchild == NULL);
    NCCL(all_reduce(
        &one, &one, 1, COLL_NCCL_INT32, COLL_NCCL_SUM, child, r->stream));
    SYNC(r);
    MUST(one == 2);
    NCCL(comm_destroy(child));
    if (r->rank != 2) {
        int gone = 2;

        NCCL(comm_shrink(
            r->comm, &gone, 1, &child, NULL, COLL_NCCL_SHRINK_ABORT));
        NCCL(comm_rank(child, &rank));
        MUST(rank == (r->rank == 3 ? 2 : r->rank));
        one = 1;
        NCCL(all_reduce(
            &one, &one, 1, COLL_NCCL_INT32, COLL_NCCL_SUM, child, r->stream));
        SYNC(r);
        MUST(one == 3);
        NCCL(comm_destroy(child));
    }
    NCCL(comm_abort(r->comm));
}

START_TEST(communicators_have_children)
{
    open_nccl("libnccl.so.2");
    run_threads(4, make_children, NULL);
}
END_TEST

static void init_without_blocking(struct rank *r)
{
    nccl_config_t config, seen;
    int size, one = 1;
    nccl_unique_id_t ids[2] = {r->id, r->id};
    struct nccl_comm *child;
    void (*get)(struct nccl_comm * comm, nccl_config_t * out);
    void *symbol = dlsym(nccl.handle, "fake_nccl_config");

    memcpy(&get, &symbol, sizeof(get));
    nccl_config_init(&config, nccl.version);
    config.blocking = 0;
    config.maxCTAs = 4;
    config.netName = "Socket";
    MUST(nccl.comm_init_scalable(&r->comm, r->size, r->rank, 2, ids, &config) ==
         COLL_NCCL_IN_PROGRESS);
    MUST(wait_until_ready(r->comm) == COLL_NCCL_SUCCESS);
    get(r->comm, &seen);
    MUST(seen.maxCTAs == 4 && strcmp(seen.netName, "Socket") == 0);
    MUST(seen.commName == NULL && seen.minCTAs == COLL_NCCL_UNDEFINED);
    NCCL(comm_count(r->comm, &size));
    MUST(size == r->size);
    /* Scripted: a launch is not done at once. */
    MUST(nccl.all_reduce(&one, &one, 1, COLL_NCCL_INT32, COLL_NCCL_SUM, r->comm,
             r->stream) == COLL_NCCL_IN_PROGRESS);
    MUST(nccl.comm_count(r->comm, &size) == COLL_NCCL_INVALID_ARGUMENT);
    MUST(wait_until_ready(r->comm) == COLL_NCCL_SUCCESS);
    SYNC(r);
    MUST(one == r->size);
    MUST(nccl.comm_split(r->comm, 0, r->rank, &child, NULL) ==
         COLL_NCCL_IN_PROGRESS);
    MUST(wait_until_ready(r->comm) == COLL_NCCL_SUCCESS);
    MUST(wait_until_ready(child) == COLL_NCCL_SUCCESS);
    MUST(nccl.comm_finalize(child) == COLL_NCCL_IN_PROGRESS);
    MUST(wait_until_ready(child) == COLL_NCCL_SUCCESS);
    NCCL(comm_destroy(child));
    NCCL(comm_destroy(r->comm));
}

START_TEST(init_need_not_block)
{
    setenv("FAKE_NCCL_FAULT", "busy:*:1:3", 1);
    open_nccl("libnccl.so.2");
    run_threads(3, init_without_blocking, NULL);
}
END_TEST

START_TEST(config_is_checked)
{
    struct rank r = {.size = 1};
    nccl_config_t config;

    open_nccl("libnccl.so.2");
    rank_begin(&r, 0);
    NCCL(get_unique_id(&r.id));
    nccl_config_init(&config, nccl.version);
    config.magic = 0;
    MUST(nccl.comm_init(&r.comm, 1, r.id, 0, &config) ==
         COLL_NCCL_INVALID_ARGUMENT);
    nccl_config_init(&config, nccl.version);
    config.blocking = 2;
    MUST(nccl.comm_init(&r.comm, 1, r.id, 0, &config) ==
         COLL_NCCL_INVALID_ARGUMENT);
    MUST(nccl.comm_init(&r.comm, 1, r.id, 1, NULL) ==
         COLL_NCCL_INVALID_ARGUMENT);
    memset(&r.id, 0, sizeof(r.id));
    MUST(nccl.comm_init(&r.comm, 1, r.id, 0, NULL) ==
         COLL_NCCL_INVALID_ARGUMENT);
    MUST(nccl.comm_destroy(NULL) == COLL_NCCL_INVALID_ARGUMENT);
    rank_end(&r, 0);
}
END_TEST

static void share_a_device(struct rank *r)
{
    nccl_result_t rc;

    rc = nccl.comm_init(&r->comm, r->size, r->id, r->rank, NULL);
    MUST(rc == *(const nccl_result_t *)r->arg);
    if (rc != COLL_NCCL_SUCCESS) {
        MUST(strstr(nccl.get_last_error(r->comm), "Duplicate GPU detected") !=
             NULL);
        NCCL(comm_abort(r->comm));
    } else {
        NCCL(comm_destroy(r->comm));
    }
}

START_TEST(a_device_is_shared_only_if_told)
{
    nccl_result_t wanted = COLL_NCCL_INVALID_USAGE;

    setenv("FAKE_CUDA_DEVICES", "1", 1);
    setenv("NCCL_HOSTID", "one", 1);
    open_nccl("libnccl.so.2");
    if (_i == 0) { /* other host ids */
        wanted = COLL_NCCL_SUCCESS;
        run_processes(2, share_a_device, &wanted, NULL);
        return;
    }
    if (_i == 1) { /* this came with 2.30 */
        wanted = COLL_NCCL_SUCCESS;
        setenv("FAKE_NCCL_VERSION", "23003", 1);
    }
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    run_processes(2, share_a_device, &wanted, "one");
}
END_TEST

static void register_memory(struct rank *r)
{
    void *memory, *handle;
    float *factor = device_memory(sizeof(float), 0), value = 1;
    nccl_op_t op;

    rank_meet(r);
    NCCL(memory_alloc(&memory, 4096));
    NCCL(comm_register(r->comm, memory, 4096, &handle));
    NCCL(comm_deregister(r->comm, handle));
    NCCL(memory_free(memory));
    MUST(nccl.memory_free(&value) == COLL_NCCL_UNHANDLED_CUDA_ERROR);
    /* On the device the factor is read when the operation runs. */
    NCCL(op_create_premul_sum(
        &op, factor, COLL_NCCL_FLOAT32, COLL_NCCL_SCALAR_DEVICE, r->comm));
    *factor = (float)(r->rank + 1);
    NCCL(all_reduce(
        &value, &value, 1, COLL_NCCL_FLOAT32, op, r->comm, r->stream));
    SYNC(r);
    MUST(value == 3);
    NCCL(comm_destroy(r->comm));
    device_free(factor);
}

START_TEST(memory_is_registered)
{
    open_nccl("libnccl.so.2");
    run_threads(2, register_memory, NULL);
}
END_TEST

/* --- Failures ---------------------------------------------------------- */

/* What an operation that is not answered ends with, and what it leaves. */
static void abort_alone(struct rank *r)
{
    int one = 1;

    rank_meet(r);
    if (r->rank == 0) {
        NCCL(all_reduce(
            &one, &one, 1, COLL_NCCL_INT32, COLL_NCCL_SUM, r->comm, r->stream));
        /* A second one stands behind it in the queue. */
        NCCL(all_reduce(
            &one, &one, 1, COLL_NCCL_INT32, COLL_NCCL_SUM, r->comm, r->stream));
        MUST(cu.stream_query(r->stream) == COLL_CUDA_NOT_READY);
        MUST(wait_until_ready(r->comm) == COLL_NCCL_SUCCESS);
    }
    NCCL(comm_abort(r->comm));
    SYNC(r);
    MUST(one == 1);
}

START_TEST(abort_ends_what_runs)
{
    open_nccl("libnccl.so.2");
    run_threads(2, abort_alone, NULL);
}
END_TEST

static void revoke_alone(struct rank *r)
{
    int one = 1;
    struct nccl_comm *child;

    rank_meet(r);
    if (r->rank == 0)
        NCCL(all_reduce(
            &one, &one, 1, COLL_NCCL_INT32, COLL_NCCL_SUM, r->comm, r->stream));
    NCCL(comm_revoke(r->comm, 0));
    SYNC(r);
    MUST(nccl.all_reduce(&one, &one, 1, COLL_NCCL_INT32, COLL_NCCL_SUM, r->comm,
             r->stream) == COLL_NCCL_INVALID_USAGE);
    MUST(nccl.comm_finalize(r->comm) == COLL_NCCL_INVALID_ARGUMENT);
    NCCL(comm_split(r->comm, 0, 0, &child, NULL));
    NCCL(comm_destroy(child));
    NCCL(comm_destroy(r->comm));
}

START_TEST(revoked_communicator_can_be_split)
{
    open_nccl("libnccl.so.2");
    run_threads(2, revoke_alone, NULL);
}
END_TEST

/* Rank 0's second operation fails or hangs; rank 1 waits in vain. */
static void fail_second(struct rank *r)
{
    bool has_error = *(const bool *)r->arg;
    int one = 1;
    nccl_result_t state = COLL_NCCL_SUCCESS;

    rank_meet(r);
    for (int i = 0; i < 2; i++) {
        SYNC(r); /* the first one ends on both */
        NCCL(all_reduce(
            &one, &one, 1, COLL_NCCL_INT32, COLL_NCCL_SUM, r->comm, r->stream));
    }
    while (has_error && r->rank == 0 && state == COLL_NCCL_SUCCESS) {
        NCCL(comm_get_async_error(r->comm, &state));
        sched_yield();
    }
    MUST(state == (has_error && r->rank == 0 ? COLL_NCCL_SYSTEM_ERROR
                                             : COLL_NCCL_SUCCESS));
    MUST(cu.stream_query(r->stream) == COLL_CUDA_NOT_READY);
    NCCL(comm_abort(r->comm));
    SYNC(r);
}

START_TEST(scripted_operation_fails_or_hangs)
{
    bool has_error = _i == 0;

    setenv("FAKE_NCCL_FAULT", has_error ? "op_error:0:2:2" : "op_hang:0:2", 1);
    open_nccl("libnccl.so.2");
    run_threads(2, fail_second, &has_error);
}
END_TEST

static void init_hangs(struct rank *r)
{
    nccl_config_t config;
    nccl_result_t state;

    nccl_config_init(&config, nccl.version);
    config.blocking = 0;
    MUST(nccl.comm_init(&r->comm, r->size, r->id, r->rank, &config) ==
         COLL_NCCL_IN_PROGRESS);
    NCCL(comm_get_async_error(r->comm, &state));
    MUST(state == COLL_NCCL_IN_PROGRESS);
    NCCL(comm_abort(r->comm));
}

START_TEST(init_that_hangs_can_be_aborted)
{
    setenv("FAKE_NCCL_FAULT", "init_hang:1", 1);
    open_nccl("libnccl.so.2");
    run_threads(2, init_hangs, NULL);
}
END_TEST

static void init_fails(struct rank *r)
{
    MUST(nccl.comm_init(&r->comm, r->size, r->id, r->rank, NULL) ==
         COLL_NCCL_INVALID_USAGE);
    MUST(strstr(nccl.get_last_error(r->comm), "Mismatched NCCL version") !=
         NULL);
    NCCL(comm_abort(r->comm));
}

START_TEST(versions_must_not_differ)
{
    setenv("FAKE_NCCL_FAULT", "version:1::21903", 1);
    open_nccl("libnccl.so.2");
    run_threads(2, init_fails, NULL);
}
END_TEST

START_TEST(scripted_init_fails)
{
    struct rank r = {.size = 1};

    setenv("FAKE_NCCL_FAULT", "init_fail:0::3", 1);
    open_nccl("libnccl.so.2");
    rank_begin(&r, 0);
    NCCL(get_unique_id(&r.id));
    MUST(nccl.comm_init(&r.comm, 1, r.id, 0, NULL) == COLL_NCCL_INTERNAL_ERROR);
    MUST(strcmp(nccl.get_error_string(COLL_NCCL_INTERNAL_ERROR),
             "ncclInternalError") == 0);
    NCCL(comm_abort(r.comm));
    rank_end(&r, 0);
}
END_TEST

static void differ(struct rank *r)
{
    int two[2] = {0, 0};
    nccl_result_t state = COLL_NCCL_SUCCESS;

    rank_meet(r);
    NCCL(all_reduce(two, two, 1 + (size_t)r->rank, COLL_NCCL_INT32,
        COLL_NCCL_SUM, r->comm, r->stream));
    while (state == COLL_NCCL_SUCCESS)
        NCCL(comm_get_async_error(r->comm, &state));
    MUST(state == COLL_NCCL_INVALID_USAGE);
    MUST(strstr(nccl.get_last_error(r->comm), "called AllReduce(") != NULL);
    NCCL(comm_abort(r->comm));
}

START_TEST(different_calls_are_noticed)
{
    open_nccl("libnccl.so.2");
    run_threads(2, differ, NULL);
}
END_TEST

static void *abort_comm(void *arg)
{
    nccl.comm_abort(arg);
    _exit(98); /* has returned */
}

static void *destroy_comm(void *arg)
{
    nccl.comm_destroy(arg);
    _exit(98);
}

START_TEST(scripted_end_hangs)
{
    struct rank r = {.size = 1};
    pthread_t thread;
    int one = 1;

    setenv("FAKE_NCCL_FAULT", _i == 0 ? "abort_hang:0" : "destroy_hang:0", 1);
    open_nccl("libnccl.so.2");
    rank_begin(&r, 0);
    NCCL(get_unique_id(&r.id));
    NCCL(comm_init(&r.comm, 1, r.id, 0, NULL));
    MUST(pthread_create(
             &thread, NULL, _i == 0 ? abort_comm : destroy_comm, r.comm) == 0);
    NCCL(all_reduce(
        &one, &one, 1, COLL_NCCL_INT32, COLL_NCCL_SUM, r.comm, r.stream));
    SYNC(&r);
    pthread_cancel(thread);
    pthread_join(thread, NULL);
    unsetenv("FAKE_NCCL_FAULT");
    NCCL(comm_abort(r.comm));
    rank_end(&r, 0);
}
END_TEST

START_TEST(captured_operations_do_not_run)
{
    struct rank r = {.size = 1};
    void (*capture)(struct cu_stream * stream, cu_capture_status_t status);
    void *symbol;
    int from = 1, to = 0;

    open_nccl("libnccl.so.2");
    symbol = dlsym(cu.handle, "fake_cuda_set_capture");
    memcpy(&capture, &symbol, sizeof(capture));
    rank_begin(&r, 0);
    NCCL(get_unique_id(&r.id));
    NCCL(comm_init(&r.comm, 1, r.id, 0, NULL));
    capture(r.stream, COLL_CUDA_CAPTURE_ACTIVE);
    NCCL(all_reduce(
        &from, &to, 1, COLL_NCCL_INT32, COLL_NCCL_SUM, r.comm, r.stream));
    MUST(cu.stream_synchronize(r.stream) == COLL_CUDA_CAPTURE_UNSUPPORTED);
    capture(r.stream, COLL_CUDA_CAPTURE_NONE);
    SYNC(&r);
    MUST(to == 0);
    NCCL(comm_destroy(r.comm));
    rank_end(&r, 0);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("nccl_api");

    tcase_set_timeout(tcase, 30);
    tcase_add_checked_fixture(tcase, fakes_setup, fakes_teardown);
    tcase_add_test(tcase, absent_file_is_named);
    tcase_add_test(tcase, other_library_is_refused);
    tcase_add_test(tcase, old_version_is_refused);
    tcase_add_test(tcase, missing_function_is_named);
    tcase_add_test(tcase, newer_functions_may_be_absent);
    tcase_add_test(tcase, variable_names_the_library_of_the_process);
    tcase_add_test(tcase, failure_to_load_stays);
    tcase_add_test(tcase, versions_are_written_as_people_do);
    tcase_add_loop_test(tcase, config_is_as_large_as_the_version_knows, 0, 8);
    tcase_add_loop_test(tcase, every_type_is_reduced, 0, ALL_TYPES);
    tcase_add_test(tcase, data_are_moved);
    tcase_add_test(tcase, data_are_moved_between_processes);
    tcase_add_test(tcase, messages_pass_each_other_in_a_group);
    tcase_add_test(tcase, oldest_version_knows_less);
    tcase_add_test(tcase, one_thread_drives_several_devices);
    tcase_add_test(tcase, communicators_have_children);
    tcase_add_test(tcase, init_need_not_block);
    tcase_add_test(tcase, config_is_checked);
    tcase_add_loop_test(tcase, a_device_is_shared_only_if_told, 0, 3);
    tcase_add_test(tcase, memory_is_registered);
    tcase_add_test(tcase, abort_ends_what_runs);
    tcase_add_test(tcase, revoked_communicator_can_be_split);
    tcase_add_loop_test(tcase, scripted_operation_fails_or_hangs, 0, 2);
    tcase_add_test(tcase, init_that_hangs_can_be_aborted);
    tcase_add_test(tcase, versions_must_not_differ);
    tcase_add_test(tcase, scripted_init_fails);
    tcase_add_test(tcase, different_calls_are_noticed);
    tcase_add_loop_test(tcase, scripted_end_hangs, 0, 2);
    tcase_add_test(tcase, captured_operations_do_not_run);
    return unit_run("nccl_api", tcase);
}
