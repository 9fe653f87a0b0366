/*
 * libcollective: the distributed layer of a C or CUDA program.
 *
 * A worker is one process of a job. Its launcher (crun, torchrun, srun, or
 * you) tells it who it is through the environment variables that PyTorch
 * uses; coll_init() reads them, meets the other workers, and from then on
 * the processes call the same operations in the same order:
 *
 *     #include <collective.h>
 *     #include <stdio.h>
 *
 *     int main(void)
 *     {
 *         float x;
 *         if (coll_init(NULL) != COLL_OK) {
 *             fprintf(stderr, "%s\n", coll_last_error());
 *             return 1;
 *         }
 *         x = (float)coll_rank(NULL);
 *         if (coll_all_reduce(&x, &x, 1, COLL_FLOAT32, COLL_SUM, NULL)
 *             != COLL_OK) {
 *             fprintf(stderr, "%s\n", coll_last_error());
 *             return 1;
 *         }
 *         if (coll_rank(NULL) == 0)
 *             printf("sum of ranks: %g\n", x);
 *         coll_destroy();
 *         return 0;
 *     }
 *
 *     cc hello.c $(pkg-config --cflags --libs collective)
 *     crun --nproc_per_node=4 ./a.out
 *
 * Conventions
 * - Counts are in elements, never in bytes, and are size_t: more than 2^31
 *   bytes are ordinary. A count of 0 is valid, touches no buffer (which may
 *   be NULL) and still counts as one operation of the sequence.
 * - Buffers belong to the caller and need no particular alignment. The send
 *   and receive buffer of one call are either the same address (in place)
 *   or do not overlap at all.
 * - Every call returns COLL_OK or a negative status; coll_last_error() then
 *   gives the calling thread a sentence that names the operation, its
 *   sequence number and the ranks at fault. A call that failed for its
 *   arguments (COLL_ERR_ARGUMENT) has communicated nothing and changed
 *   nothing. After any other failure of an operation the contents of its
 *   receive buffer are undefined, the group is broken, and each further
 *   operation on it returns the same error at once.
 * - A call that waits for other ranks blocks until it has its result, a peer
 *   has died or left, or the group's time-out is over. It never hangs.
 * - Calls on one group from several threads are serialised by the library;
 *   it is the program's duty that all ranks make them in the same order.
 *   coll_init() and coll_destroy() must not run beside any other call.
 * - A group argument of NULL is the default group: all workers of the job.
 *
 * The library writes nothing to stdout or stderr, installs no signal handler
 * and starts no thread. After fork() the child must not use it.
 */
#ifndef COLLECTIVE_H
#define COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define COLL_API __attribute__((visibility("default")))

#define COLL_VERSION_MAJOR 0
#define COLL_VERSION_MINOR 1
#define COLL_VERSION_PATCH 0

/* --- Status ------------------------------------------------------------ */

/* Each enum ends with a second name of its first value, because before C++11
 * there may be no comma at the end. */

/* X(symbol, value, text): one list yields the codes and coll_strerror(). */
#define COLL_STATUS_MAP(X)                                                     \
    X(COLL_OK, 0, "success")                                                   \
    X(COLL_ERR_ARGUMENT, -1, "invalid argument")                               \
    X(COLL_ERR_STATE, -2, "not initialized, or initialized twice")             \
    X(COLL_ERR_ENVIRONMENT, -3, "environment of the worker is incomplete")     \
    X(COLL_ERR_UNSUPPORTED, -4, "not supported")                               \
    X(COLL_ERR_SYSTEM, -5, "system call failed")                               \
    X(COLL_ERR_MEMORY, -6, "out of memory")                                    \
    X(COLL_ERR_TIMEOUT, -7, "timed out")                                       \
    X(COLL_ERR_PEER, -8, "another rank died, left or failed")                  \
    X(COLL_ERR_MISMATCH, -9, "ranks called different operations")              \
    X(COLL_ERR_STORE, -10, "rendezvous store failed")

typedef enum coll_status {
#define COLL_STATUS_ENUM(name, value, text) name = value,
    COLL_STATUS_MAP(COLL_STATUS_ENUM)
#undef COLL_STATUS_ENUM
        COLL_STATUS_FIRST = COLL_OK
} coll_status_t;

/* A fixed text for a status; never NULL, also for unknown values. */
COLL_API const char *coll_strerror(coll_status_t status);

/* The sentence of the calling thread's latest failed call, "" if there was
 * none. Valid until that thread's next call into the library. */
COLL_API const char *coll_last_error(void);

/* --- Types ------------------------------------------------------------- */

/* X(symbol, name, size in bytes) */
#define COLL_DTYPE_MAP(X)                                                      \
    X(COLL_FLOAT32, "float32", 4)                                              \
    X(COLL_FLOAT64, "float64", 8)                                              \
    X(COLL_INT32, "int32", 4)                                                  \
    X(COLL_INT64, "int64", 8)

typedef enum coll_dtype {
#define COLL_DTYPE_ENUM(symbol, name, size) symbol,
    COLL_DTYPE_MAP(COLL_DTYPE_ENUM)
#undef COLL_DTYPE_ENUM
        COLL_DTYPE_FIRST = COLL_FLOAT32
} coll_dtype_t;

/*
 * X(symbol, name)
 * SUM and PRODUCT of integers wrap modulo 2^32 or 2^64. AVG is SUM divided
 * by the world size: for floats one rounded division, for integers the
 * quotient truncated toward zero. MIN and MAX of floats: if any rank's
 * element is NaN the result is NaN; -0 and +0 compare equal, so which of the
 * two results follows from the order of the ranks.
 */
#define COLL_OP_MAP(X)                                                         \
    X(COLL_SUM, "sum")                                                         \
    X(COLL_AVG, "avg")                                                         \
    X(COLL_MIN, "min")                                                         \
    X(COLL_MAX, "max")                                                         \
    X(COLL_PRODUCT, "product")

typedef enum coll_op {
#define COLL_OP_ENUM(symbol, name) symbol,
    COLL_OP_MAP(COLL_OP_ENUM)
#undef COLL_OP_ENUM
        COLL_OP_FIRST = COLL_SUM
} coll_op_t;

/* Bytes per element, 0 for an unknown type. */
COLL_API size_t coll_dtype_size(coll_dtype_t dtype);

/* "float32", "sum", ...; "?" for an unknown value. */
COLL_API const char *coll_dtype_name(coll_dtype_t dtype);
COLL_API const char *coll_op_name(coll_op_t op);

typedef struct coll_group coll_group_t;

/* --- Joining and leaving ----------------------------------------------- */

typedef struct coll_options {
    /*
     * Milliseconds that joining, and later each operation, may wait for
     * other ranks. 0 takes COLL_TIMEOUT (seconds, decimal fractions
     * allowed) from the environment, else 1,800,000: the 30 minutes of
     * PyTorch's CPU back end. Negative: COLL_ERR_ARGUMENT.
     */
    int64_t timeout_ms;
    /*
     * Name of the back end, NULL takes COLL_BACKEND from the environment,
     * else the library chooses. Known: "shm" (processes of one node),
     * "self" (world size 1).
     */
    const char *backend;
} coll_options_t;

#ifdef __cplusplus
#define COLL_OPTIONS_INIT (coll_options_t())
#else
#define COLL_OPTIONS_INIT ((coll_options_t){0, NULL})
#endif

/*
 * Joins the job and creates the default group; blocks until every rank has
 * called it. options may be NULL for the defaults.
 *
 * Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. With
 * WORLD_SIZE=1 nothing else is needed: no launcher, no store. Without
 * WORLD_SIZE it fails with COLL_ERR_ENVIRONMENT rather than run alone by
 * mistake. Otherwise a TCPStore must listen at MASTER_ADDR:MASTER_PORT,
 * which crun and torchrun provide; all ranks must run on one node in this
 * version (COLL_ERR_UNSUPPORTED else).
 *
 * The store may come up later than the ranks, and so may the name of its
 * host; but a name that the resolver says does not exist is tried for a
 * minute at most.
 *
 * Ranks of one node need two file descriptors per rank. If the soft limit
 * (RLIMIT_NOFILE) is too low, coll_init() raises it as far as needed; beyond
 * the hard limit it fails with COLL_ERR_SYSTEM.
 *
 * A second call without coll_destroy() in between: COLL_ERR_STATE. After a
 * failure the library is as before the call. If one rank fails or dies in
 * coll_init(), so do the others that have reached it, without waiting for
 * their time-out; all may call it again.
 */
COLL_API coll_status_t coll_init(const coll_options_t *options);

/* True between a successful coll_init() and coll_destroy(). */
COLL_API bool coll_is_initialized(void);

/*
 * Leaves the job and frees everything. Does not wait for the others: a rank
 * still waiting in an operation that this one will not join gets
 * COLL_ERR_PEER, saying that this rank left. Without coll_init():
 * COLL_ERR_STATE.
 */
COLL_API coll_status_t coll_destroy(void);

/* Rank of the caller in the group, its number of ranks. -1 before
 * coll_init(). */
COLL_API int coll_rank(const coll_group_t *group);
COLL_API int coll_world_size(const coll_group_t *group);

/* Rank of the caller among the workers of its node (LOCAL_RANK; the rank
 * itself where that is not set). -1 before coll_init(). */
COLL_API int coll_local_rank(void);

/* Name of the group's back end, "shm" or "self"; NULL before coll_init(). */
COLL_API const char *coll_backend_name(const coll_group_t *group);

/* --- Operations -------------------------------------------------------- */

/*
 * recvbuf[i] = op over all ranks of sendbuf[i], the same bits on every rank.
 * Both buffers hold count elements; sendbuf == recvbuf is in place. Sums are
 * formed in rank order.
 */
COLL_API coll_status_t coll_all_reduce(const void *sendbuf, void *recvbuf,
    size_t count, coll_dtype_t dtype, coll_op_t op, coll_group_t *group);

/* Copies count elements from buf on rank root to buf on every other rank. */
COLL_API coll_status_t coll_broadcast(
    void *buf, size_t count, coll_dtype_t dtype, int root, coll_group_t *group);

/* Returns when every rank of the group has called it. */
COLL_API coll_status_t coll_barrier(coll_group_t *group);

#ifdef __cplusplus
}
#endif

#endif
