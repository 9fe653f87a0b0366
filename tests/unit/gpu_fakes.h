/*
 * The test doubles of CUDA and NCCL for tests: where they are, and ranks on
 * them, as threads (each with its own device) or as processes.
 */
#ifndef CRUN_TESTS_GPU_FAKES_H
#define CRUN_TESTS_GPU_FAKES_H

#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/unit.h"
#include "worker/nccl_api.h"

#define RANKS_MAX 8

static struct cuda_api cu;
static struct nccl_api nccl;
static char folder[] = "/tmp/crun-gpu.XXXXXX";

/* The doubles are beside the folder of the test program. */
static inline const char *fake_file(const char *name, char out[PATH_MAX])
{
    ssize_t len = readlink("/proc/self/exe", out, PATH_MAX - 1);

    ck_assert_int_gt(len, 0);
    out[len] = '\0';
    *strrchr(out, '/') = '\0';
    len = (ssize_t)strlen(out);
    snprintf(out + len, (size_t)(PATH_MAX - len), "/../fake_nccl/%s", name);
    return out;
}

static inline void open_cuda(void)
{
    char path[PATH_MAX];

    ck_assert_msg(
        cuda_api_open(&cu, fake_file("libcuda.so.1", path)) == COLL_OK, "%s",
        coll_last_error());
}

static inline void open_nccl(const char *name)
{
    char path[PATH_MAX];

    open_cuda();
    ck_assert_msg(nccl_api_open(&nccl, fake_file(name, path)) == COLL_OK, "%s",
        coll_last_error());
}

/* Fixture: a folder for the ranks to meet in, and a device for each. */
static inline void fakes_setup(void)
{
    static const char *const variables[] = {"FAKE_CUDA_FAIL",
        "FAKE_CUDA_VERSION", "FAKE_NCCL_FAULT", "FAKE_NCCL_VERSION",
        "CUDA_VISIBLE_DEVICES", "NCCL_HOSTID", "COLL_NCCL_LIBRARY",
        "NCCL_MULTI_RANK_GPU_ENABLE"};

    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
        unsetenv(variables[i]);
    setenv("FAKE_CUDA_DEVICES", "8", 1);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    setenv("FAKE_NCCL_DIR", folder, 1);
}

/* What ranks that failed have left there goes, too. */
static inline void fakes_teardown(void)
{
    char command[PATH_MAX];

    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    ck_assert_int_eq(system(command), 0);
}

/*
 * Check's assertions may only run in the test's own thread, and a rank that
 * has failed would leave the others waiting: the whole test ends at once.
 */
#define MUST(condition)                                                        \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%s:%d: not true: %s (%s)\n", __FILE__, __LINE__,  \
                #condition,                                                    \
                nccl.handle != NULL ? nccl.get_last_error(NULL) : "");         \
            _exit(99);                                                         \
        }                                                                      \
    } while (0)
#define CU(call) MUST(cu.call == COLL_CUDA_SUCCESS)
#define NCCL(call) MUST(nccl.call == COLL_NCCL_SUCCESS)

struct rank {
    int rank, size;
    nccl_unique_id_t id;
    struct nccl_comm *comm; /* NULL until rank_meet() */
    struct cu_stream *stream;
    void (*run)(struct rank *r);
    const void *arg;
};

/* A current context on a device, and a stream. */
static inline void rank_begin(struct rank *r, int device)
{
    struct cu_context *context;

    CU(init(0));
    CU(primary_context_retain(&context, device));
    CU(context_set(context));
    CU(stream_create(&r->stream, COLL_CUDA_STREAM_NON_BLOCKING, 0));
}

static inline void rank_end(struct rank *r, int device)
{
    CU(stream_synchronize(r->stream));
    CU(stream_destroy(r->stream));
    CU(context_set(NULL));
    CU(primary_context_release(device));
}

static inline void rank_meet(struct rank *r)
{
    NCCL(comm_init(&r->comm, r->size, r->id, r->rank, NULL));
}

static inline void *rank_thread(void *arg)
{
    struct rank *r = arg;

    rank_begin(r, r->rank);
    r->run(r);
    rank_end(r, r->rank);
    return NULL;
}

/* Runs it in all ranks, which are threads of this process. */
static inline void run_threads(
    int size, void (*run)(struct rank *r), const void *arg)
{
    struct rank ranks[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    nccl_unique_id_t id;

    NCCL(get_unique_id(&id));
    for (int i = 0; i < size; i++) {
        ranks[i] = (struct rank){
            .rank = i, .size = size, .id = id, .run = run, .arg = arg};
        MUST(pthread_create(&threads[i], NULL, rank_thread, &ranks[i]) == 0);
    }
    for (int i = 0; i < size; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
}

/* In processes, all on the same device; host NULL: each on a host of its own,
 * as far as NCCL can see. */
static inline void run_processes(
    int size, void (*run)(struct rank *r), const void *arg, const char *host)
{
    pid_t children[RANKS_MAX];
    nccl_unique_id_t id;

    NCCL(get_unique_id(&id));
    for (int i = 0; i < size; i++) {
        struct rank r = {.rank = i, .size = size, .id = id, .arg = arg};
        char number[16];

        children[i] = fork();
        MUST(children[i] >= 0);
        if (children[i] > 0)
            continue;
        snprintf(number, sizeof(number), "%d", i);
        setenv("NCCL_HOSTID", host != NULL ? host : number, 1);
        rank_begin(&r, 0);
        run(&r);
        rank_end(&r, 0);
        _exit(0);
    }
    for (int i = 0; i < size; i++) {
        int status;

        MUST(waitpid(children[i], &status, 0) == children[i]);
        MUST(status == 0);
    }
}

/* Device memory with the same value in each byte. */
static inline void *device_memory(size_t bytes, unsigned char value)
{
    cu_address_t address;

    CU(memory_alloc(&address, bytes));
    CU(memory_set(address, value, bytes));
    return (void *)(uintptr_t)address;
}

static inline void device_free(void *memory)
{
    CU(memory_free((uintptr_t)memory));
}

#endif
