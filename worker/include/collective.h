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
 *   and receive buffer of one call do not overlap, unless they are in place:
 *   the same address, or where a rank's part lies in the larger of the two.
 * - Every call returns COLL_OK or a negative status; coll_last_error() then
 *   gives the calling thread a sentence that names the operation, its
 *   sequence number and the ranks at fault. A call that failed for its
 *   arguments (COLL_ERR_ARGUMENT) has communicated nothing and changed
 *   nothing, and so has one that could not begin for lack of memory. After any
 *   other failure of an operation the contents of its receive buffer are
 *   undefined, the group is broken, and each further operation on it returns
 *   the same error at once.
 * - A call that waits for other ranks blocks until it has its result, a peer
 *   has died or left, or the group's time-out is over; then for about three
 *   seconds more at most, in which the ranks find out who does not answer. It
 *   never hangs.
 * - crun tells its workers when one of them has failed. A coll_init() or an
 *   operation that waits then, or would have to, returns COLL_ERR_PEER within
 *   milliseconds and says which rank failed, where and how; so does every
 *   later one, as the job is ending: soon after, crun stops what still runs.
 *   In return crun learns of each COLL_ERR_PEER, and does not take a worker
 *   that ends after one for the cause of the failure.
 * - Calls on one group from several threads are serialised by the library;
 *   it is the program's duty that all ranks make them in the same order.
 *   Messages (coll_send() and so on) are no part of that order: they may be
 *   on their way while the group's operations run. Calls on different groups
 *   run at the same time. coll_init() and coll_destroy() must not run beside
 *   any other call, and no group may be used while it is destroyed.
 * - Every operation has a form that does not wait, coll_..._async() (of
 *   messages coll_isend() and coll_irecv()), see Work below.
 * - A group argument of NULL is the default group: all workers of the job. A
 *   group that has been destroyed is COLL_ERR_ARGUMENT, until 64 others have
 *   been: then it must not be used any more.
 *
 * The library writes nothing to stdout or stderr and installs no signal
 * handler unless asked to (coll_install_crash_handler()). It starts a thread
 * where this process hosts a store (with is_host in coll_store_tcp(), and in
 * coll_init() on rank 0 if the launcher provides no store), and for each group
 * with the first operation, and the first message, that does not wait, and with
 * a communicator of NCCL. These threads sleep while there is nothing to do,
 * have all signals blocked, and end with the store or the group. What a worker
 * forks off between coll_init() and coll_destroy() cannot use the library
 * (COLL_ERR_STATE), and keeps nobody from noticing the worker's end;
 * coll_spawn() is how a program forks its workers.
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
    X(COLL_ERR_STORE, -10, "rendezvous store failed")                          \
    X(COLL_ERR_ABORTED, -11, "aborted by coll_abort()")

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

/*
 * X(symbol, name, size in bytes)
 * FLOAT16 is IEEE binary16, BFLOAT16 the upper half of a float32. The two of
 * eight bits are those of the OCP: E4M3 has no infinities and one NaN of each
 * sign (PyTorch's float8_e4m3fn), E5M2 is IEEE's in small. A BOOL is one
 * byte, 0 or 1; any other value counts as 1.
 */
#define COLL_DTYPE_MAP(X)                                                      \
    X(COLL_FLOAT32, "float32", 4)                                              \
    X(COLL_FLOAT64, "float64", 8)                                              \
    X(COLL_INT32, "int32", 4)                                                  \
    X(COLL_INT64, "int64", 8)                                                  \
    X(COLL_FLOAT16, "float16", 2)                                              \
    X(COLL_BFLOAT16, "bfloat16", 2)                                            \
    X(COLL_FLOAT8_E4M3, "float8_e4m3", 1)                                      \
    X(COLL_FLOAT8_E5M2, "float8_e5m2", 1)                                      \
    X(COLL_INT8, "int8", 1)                                                    \
    X(COLL_INT16, "int16", 2)                                                  \
    X(COLL_UINT8, "uint8", 1)                                                  \
    X(COLL_UINT16, "uint16", 2)                                                \
    X(COLL_UINT32, "uint32", 4)                                                \
    X(COLL_UINT64, "uint64", 8)                                                \
    X(COLL_BOOL, "bool", 1)

typedef enum coll_dtype {
#define COLL_DTYPE_ENUM(symbol, name, size) symbol,
    COLL_DTYPE_MAP(COLL_DTYPE_ENUM)
#undef COLL_DTYPE_ENUM
        COLL_DTYPE_FIRST = COLL_FLOAT32
} coll_dtype_t;

/*
 * X(symbol, name)
 * SUM and PRODUCT of integers wrap modulo 2 to the number of bits. AVG is SUM
 * (which may wrap) divided by the size of the group: for floats one rounded
 * division, for integers the quotient truncated toward zero. MIN and MAX of
 * floats: if any rank's element is NaN the result is NaN; -0 and +0 compare
 * equal, so which of the two results follows from the order of the ranks.
 * Floats of 16 and 8 bits are computed in float32 and rounded to nearest,
 * ties to even: once where all ranks share a node, once per node or hop
 * otherwise. E4M3 has no infinity, so what is too large becomes NaN.
 * BAND, BOR and BXOR are for integers and BOOL; of BOOL, SUM and MAX are "or",
 * PRODUCT and MIN "and", and AVG is refused.
 */
#define COLL_OP_MAP(X)                                                         \
    X(COLL_SUM, "sum")                                                         \
    X(COLL_AVG, "avg")                                                         \
    X(COLL_MIN, "min")                                                         \
    X(COLL_MAX, "max")                                                         \
    X(COLL_PRODUCT, "product")                                                 \
    X(COLL_BAND, "band")                                                       \
    X(COLL_BOR, "bor")                                                         \
    X(COLL_BXOR, "bxor")

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
typedef struct coll_work coll_work_t;

/*
 * A reduction of this process: SUM of what each rank has multiplied with its
 * factor before, in its own type (of integers, with the factor's integer part);
 * not for BOOL. *op is for any group and type until coll_op_free(); there may
 * be 1024 at a time (COLL_ERR_MEMORY). The factor may differ between ranks.
 */
COLL_API coll_status_t coll_op_premul_sum(coll_op_t *op, double factor);

/* COLL_ERR_ARGUMENT if there is no such reduction. */
COLL_API coll_status_t coll_op_free(coll_op_t op);

/* --- Stores ------------------------------------------------------------ */

/*
 * A store is a small table of keys and values that processes share: where
 * they meet before there is a group, and the place for what is small and
 * rare. It is PyTorch's: a Python and a C program see the same keys.
 *
 * Keys are C strings of up to 8,191 bytes with all prefixes; the empty one is
 * a key, too. Values are any bytes, of up to 128 MiB (8 MiB if the store is
 * hosted by PyTorch's libuv server), and one call takes up to 131,072 keys. A
 * call that may wait for others takes timeout_ms, in milliseconds: 0 stands
 * for the store's own time-out. COLL_ERR_TIMEOUT means that a key did not
 * appear in time, and the store goes on; so it does after COLL_ERR_ARGUMENT,
 * COLL_ERR_UNSUPPORTED (the server is too old) and COLL_ERR_MEMORY. After
 * COLL_ERR_STORE a TCP store is broken: every further call returns the same.
 *
 * A set, append or queue_push that has returned is on its way: others may not
 * see it yet. Once the same store has answered any later call, they do.
 *
 * Values that a call returns are the caller's, to be released with free(); a
 * NUL, not counted in the length, follows the last byte. Outputs are set only
 * on success. Calls on one store from several threads are serialised, so a
 * long wait holds up the others, whose own time begins after it: open a second
 * store for those. Only calls on an in-process store do not hold each other
 * up. Stores need no coll_init().
 */
typedef struct coll_store coll_store_t;

typedef struct coll_store_options {
    /* How long opening and each call may take. 0: 300,000, PyTorch's five
     * minutes. */
    int64_t timeout_ms;
    /*
     * TCP: serve the store in a thread of this process, listening at the
     * given host and port. Without it somebody else does. Nobody's garbage,
     * and no end of a client, disturbs the thread; it says nothing of them.
     */
    bool is_host;
    /*
     * TCP and file: how many workers use it, the host included, 0 if that is
     * not known. With it, a TCP client checks in (a host that is PyTorch's
     * waits for that), and a host that closes waits until all have come and
     * have closed, for at most the time-out, but not for clients that were
     * opened without it; where it is 0, closing the host ends the store for
     * everybody. A file store removes the file at the last
     * close.
     */
    int world_size;
} coll_store_options_t;

#ifdef __cplusplus
#define COLL_STORE_OPTIONS_INIT (coll_store_options_t())
#else
#define COLL_STORE_OPTIONS_INIT ((coll_store_options_t){0, false, 0})
#endif

/*
 * A TCPStore at host and port: crun's, torchrun's, or that of another worker.
 * A refused connection is tried again until the time-out, with growing
 * pauses; COLL_ERR_TIMEOUT or COLL_ERR_STORE then says what was found there.
 * With is_host it listens on the addresses of host ("0.0.0.0" or "::" for
 * all) and port 0 means any free port: coll_store_port() tells which. A port
 * in use is COLL_ERR_STORE at once.
 */
COLL_API coll_status_t coll_store_tcp(coll_store_t **store, const char *host,
    int port, const coll_store_options_t *options);

/*
 * A store in a file that all processes can open, in the format of PyTorch's
 * FileStore. The file must not be left over from an earlier job. Without
 * queues.
 */
COLL_API coll_status_t coll_store_file(coll_store_t **store, const char *path,
    const coll_store_options_t *options);

/* A store that lives in this process only, for its threads. */
COLL_API coll_status_t coll_store_hash(
    coll_store_t **store, const coll_store_options_t *options);

/*
 * A view of another store in which every key has prefix and a slash put in
 * front, as PyTorch's PrefixStore does. base must stay open until the view
 * is closed; they share the connection, the lock and the time-out.
 */
COLL_API coll_status_t coll_store_prefix(
    coll_store_t **store, const char *prefix, coll_store_t *base);

/*
 * Closes a store; it must not be used by another thread any more. Takes NULL.
 * A host with a world size waits for the other clients, see world_size.
 */
COLL_API void coll_store_close(coll_store_t *store);

/* The store through which coll_init() met the others, until coll_destroy(),
 * which closes it; NULL before, and with one worker. Keys that begin with
 * "coll/" are the library's: use a prefix of your own. */
COLL_API coll_store_t *coll_default_store(void);

/* TCP: the port of the server; -1 for other stores. */
COLL_API int coll_store_port(const coll_store_t *store);

/* From now on; timeout_ms must be greater than 0. */
COLL_API coll_status_t coll_store_set_timeout(
    coll_store_t *store, int64_t timeout_ms);

/* Sets key to len bytes at value. A TCP store does not answer: what the
 * server refuses is noticed by the next call. */
COLL_API coll_status_t coll_store_set(
    coll_store_t *store, const char *key, const void *value, size_t len);

/* Waits until key exists, for at most the store's time-out. */
COLL_API coll_status_t coll_store_get(
    coll_store_t *store, const char *key, void **value, size_t *len);

/* Adds delta to the decimal number at key, where a missing key counts as 0;
 * *result (result may be NULL) is the sum. A value that does not begin
 * with a number (what stands behind it is ignored) is an error: a TCP server
 * then closes the connection, and the store is broken. */
COLL_API coll_status_t coll_store_add(
    coll_store_t *store, const char *key, int64_t delta, int64_t *result);

/* Waits until all nkeys keys exist. */
COLL_API coll_status_t coll_store_wait(coll_store_t *store,
    const char *const *keys, size_t nkeys, int64_t timeout_ms);

/*
 * Sets key to desired if its value is expected, or if it is missing and
 * expected is empty. *value is then desired. Else it is what the key has; of
 * a missing key, expected comes back, and nothing was created. A store of
 * PyTorch's that is not the one with libuv does not wake those who wait for a
 * key that appears in this way: set it once more.
 */
COLL_API coll_status_t coll_store_compare_set(coll_store_t *store,
    const char *key, const void *expected, size_t expected_len,
    const void *desired, size_t desired_len, void **value, size_t *len);

/* *exist: whether all nkeys keys exist. Does not wait. */
COLL_API coll_status_t coll_store_check(
    coll_store_t *store, const char *const *keys, size_t nkeys, bool *exist);

/* *existed (existed may be NULL): whether there was such a key. */
COLL_API coll_status_t coll_store_delete(
    coll_store_t *store, const char *key, bool *existed);

/* All keys of the store, whatever the prefix; a store may keep one or two of
 * its own. */
COLL_API coll_status_t coll_store_num_keys(coll_store_t *store, int64_t *count);

/* Extends the value of key, or creates it. A TCP store does not answer. */
COLL_API coll_status_t coll_store_append(
    coll_store_t *store, const char *key, const void *value, size_t len);

/* Waits until all keys exist, for at most the store's time-out; values[i],
 * of lens[i] bytes, is the value of keys[i]. Both arrays hold nkeys. */
COLL_API coll_status_t coll_store_multi_get(coll_store_t *store,
    const char *const *keys, size_t nkeys, void **values, size_t *lens);

/* Sets keys[i] to lens[i] bytes at values[i]: one after the other, not all
 * at once. */
COLL_API coll_status_t coll_store_multi_set(coll_store_t *store,
    const char *const *keys, size_t nkeys, const void *const *values,
    const size_t *lens);

/*
 * Queues, with names of their own beside the keys. push appends an element,
 * pop takes the oldest and waits for one if there is none; each element is
 * given to one caller. check and wait see a queue that is not empty.
 */
COLL_API coll_status_t coll_store_queue_push(
    coll_store_t *store, const char *queue, const void *value, size_t len);
COLL_API coll_status_t coll_store_queue_pop(coll_store_t *store,
    const char *queue, void **value, size_t *len, int64_t timeout_ms);
COLL_API coll_status_t coll_store_queue_len(
    coll_store_t *store, const char *queue, int64_t *len);

/*
 * The keys of the store, in no particular order; of a view, those with its
 * prefix, without it. *keys is one block of *nkeys pointers and the strings
 * they point to, for one free(); NULL if there are none. Keys that hold a
 * NUL, which only other programs can make, are left out.
 */
COLL_API coll_status_t coll_store_list_keys(
    coll_store_t *store, char ***keys, size_t *nkeys);

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
     * else the library chooses: "self" with world size 1, "shm" where the
     * launcher says that all ranks are on one node (LOCAL_WORLD_SIZE is
     * WORLD_SIZE), else "nodes". All ranks must take the same, else all
     * get COLL_ERR_ENVIRONMENT.
     *   shm    shared memory; the processes of one node, one user's
     *   nodes  shared memory within a node, TCP between nodes; with one node
     *          the same as shm, but the ranks have to find that out
     *   tcp    every rank by itself over TCP, wherever it is
     *   self   world size 1
     *   nccl   what the library would choose, and beside it a communicator of
     *          NCCL, by way of which operations on host memory go, too, as far
     *          as NCCL has them; made in coll_init(), which fails without a GPU
     * Buffers on a GPU go through NCCL with each of them: collective_gpu.h.
     */
    const char *backend;
    /*
     * Where the ranks meet; NULL: "env://".
     *   env://            the store at MASTER_ADDR:MASTER_PORT
     *   tcp://HOST:PORT   the store there; an IPv6 HOST in brackets
     *   file:///PATH      the file store at /PATH, which must not be there yet
     * PyTorch's ?rank=R&world_size=N may follow. A TCP store is hosted by
     * rank 0, unless TORCHELASTIC_USE_AGENT_STORE is "True" and the address
     * is that of MASTER_ADDR and MASTER_PORT, letter by letter: then by the
     * launcher. crun sets it, and so does torchrun where it hosts a store;
     * set it on all ranks if you start them by hand, or with srun, beside a
     * store that is already there (crund).
     */
    const char *init_method;
    /* Who this process is. world_size 0 (and rank 0): what init_method says,
     * else the variables RANK and WORLD_SIZE. */
    int rank;
    int world_size;
    /*
     * Reductions give the same bits whichever ranks share a node: they fold in
     * rank order, which between nodes costs more messages. Also where
     * COLL_DETERMINISTIC is 1 in the environment. All ranks must take the same,
     * else all get COLL_ERR_ENVIRONMENT; groups have what the default group
     * has.
     */
    bool deterministic;
} coll_options_t;

#ifdef __cplusplus
#define COLL_OPTIONS_INIT (coll_options_t())
#else
#define COLL_OPTIONS_INIT ((coll_options_t){0, NULL, NULL, 0, 0, false})
#endif

/*
 * Joins the job and creates the default group; blocks until every rank has
 * called it. options may be NULL for the defaults.
 *
 * Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. With
 * WORLD_SIZE=1 nothing else is needed: no launcher, no store. Without
 * WORLD_SIZE it fails with COLL_ERR_ENVIRONMENT rather than run alone by
 * mistake.
 *
 * Two ranks are on one node if they have the same GROUP_RANK, as launchers set
 * it; where that is not set, or the program has defined a world of its own, if
 * they run under the same boot of a kernel and in the same network namespace.
 * Between nodes a rank is reached at CRUN_NODE_ADDR if that is set (a host or
 * an address, at most 255 characters), else at the address that it has on its
 * way to rank 0, and rank 0 at the one on its way to the store, or where the
 * store is if they are on the same host. It listens on all its addresses, at a
 * port that the kernel chooses: until it turns out that there is one node, else
 * as long as the group lives. Who connects there and does not know what the
 * store held while the group was made is not let in. An address that cannot
 * be reached is an error on every rank that names both ends; it takes 20 s at
 * most, or half of the time-out. What is sent between nodes is not encrypted.
 *
 * Otherwise the ranks meet in a store, see init_method. It may come up later
 * than the ranks, and so may the name of its host; but a name that the
 * resolver says does not exist is tried for a minute at most. Where rank 0
 * hosts it, it does so anew in each coll_init(), and the port must be free:
 * if it is in use rank 0 fails at once with COLL_ERR_STORE.
 *
 * Ranks of one node need two file descriptors per rank of it, and one more if
 * operations use coll_alloc()'s memory; rank 0 of "nodes" and "tcp" needs two
 * per rank of the group while the group is made; a rank 0 that hosts the store
 * needs one more. Between nodes four for each power of two below the number of
 * nodes are enough. If the soft limit (RLIMIT_NOFILE) is too low, coll_init()
 * raises it as far as needed; beyond the hard limit it fails with
 * COLL_ERR_SYSTEM, or for the memory the operation does.
 *
 * A second call without coll_destroy() in between: COLL_ERR_STATE. After a
 * failure the library is as before the call. If one rank fails or dies in
 * coll_init(), so do the others that have reached it, without waiting for
 * their time-out; all may call it again. What is wrong with a rank's own
 * arguments or environment it finds before it meets the others: those learn of
 * it from the launcher, when it ends with a failure.
 */
COLL_API coll_status_t coll_init(const coll_options_t *options);

/* True between a successful coll_init() and coll_destroy(). */
COLL_API bool coll_is_initialized(void);

/*
 * Leaves the job and frees everything. A rank still waiting in an operation
 * that this one will not join gets COLL_ERR_PEER, saying that this rank left.
 * Does not wait for the others, with one exception: a rank 0 that hosts the
 * store keeps it until they have called coll_destroy(), too, or have ended,
 * for at most the group's time-out; after an operation that failed, for at
 * most one second. Without coll_init(), and while an operation of this rank is
 * on its way, as in coll_group_destroy(): COLL_ERR_STATE.
 */
COLL_API coll_status_t coll_destroy(void);

/* Rank of the caller in the group, its number of ranks. -1 before
 * coll_init() and for a group that has been destroyed. */
COLL_API int coll_rank(const coll_group_t *group);
COLL_API int coll_world_size(const coll_group_t *group);

/* Rank of the caller among the workers of its node (LOCAL_RANK; the rank
 * itself where that is not set). -1 before coll_init(). */
COLL_API int coll_local_rank(void);

/* Name of the group's back end, as in coll_options_t; NULL before
 * coll_init(). */
COLL_API const char *coll_backend_name(const coll_group_t *group);

/* --- Groups ------------------------------------------------------------- */

typedef struct coll_group_options {
    /* As in coll_options_t, for making the group and for each of its
     * operations. 0: that of the default group. */
    int64_t timeout_ms;
} coll_group_options_t;

#ifdef __cplusplus
#define COLL_GROUP_OPTIONS_INIT (coll_group_options_t())
#else
#define COLL_GROUP_OPTIONS_INIT ((coll_group_options_t){0})
#endif

/*
 * Makes a group of some ranks of the job: ranks[i], a rank of the default
 * group, becomes rank i of the new one. Its members call it with the same list
 * and wait for each other; nobody else has to. A rank that is not in the list
 * may call it, too, and gets NULL in *out, which is COLL_OK. Who makes several
 * groups makes those that it shares with another rank in the same order as that
 * one. Who does not come is named after the time-out. The same list may be
 * used again, also after a failure of the group. One thread at a time makes a
 * group; others wait. options may be NULL for the defaults.
 */
COLL_API coll_status_t coll_group_new(coll_group_t **out, const int *ranks,
    int nranks, const coll_group_options_t *options);

/* The color of a rank that wants no group. */
#define COLL_NO_COLOR (-1)

/*
 * Called by all ranks of parent, an operation of it: those that pass the same
 * color, 0 or greater, become a group, ordered by key and then by their rank in
 * parent. With COLL_NO_COLOR *out is NULL.
 */
COLL_API coll_status_t coll_group_split(coll_group_t **out,
    coll_group_t *parent, int color, int key,
    const coll_group_options_t *options);

/*
 * The group without some of its ranks, excluded[i], i < n, of group: after a
 * failure, those that are gone or that nobody can wait for. All others call it
 * with the same ranks, in any order; group may have failed, may be the default
 * group, and stays as it is. Ranks keep their order. They meet as in
 * coll_group_new(), also in its errors. Communicators of NCCL that are whole
 * are shrunk (ncclCommShrink(), where NCCL has it), else a new one is made when
 * it is needed.
 */
COLL_API coll_status_t coll_group_shrink(coll_group_t **out,
    coll_group_t *group, const int *excluded, int n,
    const coll_group_options_t *options);

/*
 * Leaves and frees a group made by the three above; each rank for itself. A
 * rank still waiting in an operation of it gets COLL_ERR_PEER. While an
 * operation of this rank is on its way (in another thread, or one that does not
 * wait) it is COLL_ERR_STATE and nothing happens: wait for it, or coll_abort()
 * first. The default group is left by coll_destroy() only, which also leaves
 * all others: COLL_ERR_ARGUMENT, and so for NULL.
 */
COLL_API coll_status_t coll_group_destroy(coll_group_t *group);

/* The rank in the default group of a rank in group, and the other way round;
 * -1 if there is none. */
COLL_API int coll_global_rank(const coll_group_t *group, int group_rank);
COLL_API int coll_group_rank(const coll_group_t *group, int global_rank);

/*
 * Ends all operations of the group on this rank: those that run and those to
 * come return COLL_ERR_ABORTED, within milliseconds. The other ranks get
 * COLL_ERR_PEER, saying so. From any thread. Then the group can be destroyed
 * and made anew.
 */
COLL_API coll_status_t coll_abort(coll_group_t *group);

/* --- Memory -------------------------------------------------------------- */

/*
 * Memory of zeros that the other ranks of this node can reach. Operations take
 * any memory; of large buffers that come from here they copy nothing that they
 * need not, which is several times faster on one node. So do messages, of what
 * is sent from here. *out begins a page, of 2 MiB where bytes is as much or
 * more, and whole pages are used. It is there until coll_free(), whatever
 * becomes of groups, and needs no coll_init(). A forked child may use it as
 * memory only. COLL_ERR_MEMORY if there is not enough; /dev/shm and its size do
 * not matter. From any thread.
 *
 * When an operation has failed here, a rank that does not know yet may go on
 * writing to a receive buffer that comes from here, until its own call returns.
 * The buffer can be freed all the same: what is written late reaches no memory
 * that this process has, now or later. Pages that it fills are lost until the
 * process ends.
 *
 * Large buffers from elsewhere are read by the kernel (process_vm_readv) if it
 * permits that to all ranks of the node, and copied through memory that they
 * share if not. COLL_CMA=0 in the environment of a rank forbids it.
 */
COLL_API coll_status_t coll_alloc(void **out, size_t bytes);

/* Takes NULL. What did not come from coll_alloc(): COLL_ERR_ARGUMENT. Not while
 * an operation uses it. */
COLL_API coll_status_t coll_free(void *memory);

/* --- Operations -------------------------------------------------------- */

/* Where a size is given for a buffer below, n stands for the number of ranks
 * in the group. All ranks pass the same count, dtype, op and root. */

/*
 * recvbuf[i] = op over all ranks of sendbuf[i], the same bits on every rank.
 * Both buffers hold count elements; sendbuf == recvbuf is in place. On one
 * node sums are formed in rank order. On several the order depends on the
 * count and on which ranks share a node, and on nothing else: the same call
 * gives the same bits again.
 */
COLL_API coll_status_t coll_all_reduce(const void *sendbuf, void *recvbuf,
    size_t count, coll_dtype_t dtype, coll_op_t op, coll_group_t *group);

/* The same, but the result comes to rank root only: recvbuf of the others is
 * not looked at. */
COLL_API coll_status_t coll_reduce(const void *sendbuf, void *recvbuf,
    size_t count, coll_dtype_t dtype, coll_op_t op, int root,
    coll_group_t *group);

/* Copies count elements from buf on rank root to buf on every other rank. */
COLL_API coll_status_t coll_broadcast(
    void *buf, size_t count, coll_dtype_t dtype, int root, coll_group_t *group);

/* The count elements at sendbuf of every rank r come to recvbuf + r * count,
 * on every rank: recvbuf holds n * count. In place: sendbuf is where the
 * rank's own part lies in recvbuf. */
COLL_API coll_status_t coll_all_gather(const void *sendbuf, void *recvbuf,
    size_t count, coll_dtype_t dtype, coll_group_t *group);

/* The same, but to rank root only: recvbuf of the others is not looked at. */
COLL_API coll_status_t coll_gather(const void *sendbuf, void *recvbuf,
    size_t count, coll_dtype_t dtype, int root, coll_group_t *group);

/* Rank r gets the count elements at sendbuf + r * count of rank root: sendbuf
 * holds n * count there, and is not looked at elsewhere. In place on the root:
 * recvbuf is where its part lies. */
COLL_API coll_status_t coll_scatter(const void *sendbuf, void *recvbuf,
    size_t count, coll_dtype_t dtype, int root, coll_group_t *group);

/* Rank r gets count elements: op over all ranks of what they have at
 * sendbuf + r * count, which holds n * count. In place: recvbuf is where the
 * rank's own part lies in sendbuf. */
COLL_API coll_status_t coll_reduce_scatter(const void *sendbuf, void *recvbuf,
    size_t count, coll_dtype_t dtype, coll_op_t op, coll_group_t *group);

/* Rank r gets at recvbuf + s * count what rank s has at sendbuf + r * count.
 * Both hold n * count; sendbuf == recvbuf is in place, on all ranks or on none
 * (else COLL_ERR_MISMATCH). */
COLL_API coll_status_t coll_all_to_all(const void *sendbuf, void *recvbuf,
    size_t count, coll_dtype_t dtype, coll_group_t *group);

/*
 * The same three with parts of different length. Arrays hold n: how many
 * elements each part has, and where it begins (in elements from the start of
 * the buffer; NULL: one part after the other). recv_counts of all_gather_v and
 * send_counts of reduce_scatter_v are the same on every rank; of all_to_all_v
 * what a rank sends to another is what that one expects, else it is
 * COLL_ERR_MISMATCH on all. Parts of a buffer that is written do not overlap.
 * In place only as above in the first two; then the parts of reduce_scatter_v's
 * sendbuf do not overlap either.
 */
COLL_API coll_status_t coll_all_gather_v(const void *sendbuf, size_t send_count,
    void *recvbuf, const size_t *recv_counts, const size_t *recv_at,
    coll_dtype_t dtype, coll_group_t *group);
COLL_API coll_status_t coll_reduce_scatter_v(const void *sendbuf,
    const size_t *send_counts, const size_t *send_at, void *recvbuf,
    coll_dtype_t dtype, coll_op_t op, coll_group_t *group);
COLL_API coll_status_t coll_all_to_all_v(const void *sendbuf,
    const size_t *send_counts, const size_t *send_at, void *recvbuf,
    const size_t *recv_counts, const size_t *recv_at, coll_dtype_t dtype,
    coll_group_t *group);

/* Returns when every rank of the group has called it. */
COLL_API coll_status_t coll_barrier(coll_group_t *group);

/* The same with a time-out of its own, in milliseconds and greater than 0: who
 * waits longer fails with COLL_ERR_TIMEOUT, which names all ranks that have not
 * come (between nodes, a rank that all others wait for). */
COLL_API coll_status_t coll_monitored_barrier(
    int64_t timeout_ms, coll_group_t *group);

/*
 * Many buffers in one operation: sendbufs[i] and recvbufs[i], i < n, are those
 * of one call with counts[i]. Small ones travel together. The counts are the
 * same on all ranks.
 */
COLL_API coll_status_t coll_all_reduce_coalesced(const void *const *sendbufs,
    void *const *recvbufs, const size_t *counts, size_t n, coll_dtype_t dtype,
    coll_op_t op, coll_group_t *group);
COLL_API coll_status_t coll_all_gather_coalesced(const void *const *sendbufs,
    void *const *recvbufs, const size_t *counts, size_t n, coll_dtype_t dtype,
    coll_group_t *group);
COLL_API coll_status_t coll_reduce_scatter_coalesced(
    const void *const *sendbufs, void *const *recvbufs, const size_t *counts,
    size_t n, coll_dtype_t dtype, coll_op_t op, coll_group_t *group);

/*
 * Bytes whose length the others do not know. broadcast_object: root passes what
 * it has in *data and *len; the others get a copy, to be released with free()
 * (NULL if *len is 0). all_gather_object: *all is one block, to be released
 * with free(), with what every rank has passed, one after the other in the
 * order of ranks; lens[r] bytes are rank r's. lens holds n.
 */
COLL_API coll_status_t coll_broadcast_object(
    void **data, size_t *len, int root, coll_group_t *group);
COLL_API coll_status_t coll_all_gather_object(const void *data, size_t len,
    void **all, size_t *lens, coll_group_t *group);

/* --- Messages ----------------------------------------------------------- */

/* As peer of a receive: whoever sends first. */
#define COLL_ANY_SOURCE (-2)

/*
 * From one rank to another one of the group. A tag is 0 or greater; a receive
 * takes, of the messages of peer with this tag, the one that was sent first.
 * Count and type are those of the send, else the receive is COLL_ERR_MISMATCH,
 * nothing is written behind the buffer's end, and the group is broken.
 *
 * coll_send() returns when buf may be used again, which may be before the
 * message is received, or only then: two ranks that first send to each other
 * and then receive may wait for each other until the time-out. *source (source
 * may be NULL) is the rank that has sent.
 *
 * A rank as peer that is not in the group, and this rank itself:
 * COLL_ERR_ARGUMENT. Other ranks' failures end a message as they do an
 * operation; what was sent before a rank left is still received.
 *
 * The time-out of a message is the group's and begins with the call that starts
 * it, not with a wait for it. When it is over the message ends in
 * COLL_ERR_TIMEOUT, and the group is broken, whether or not somebody waits:
 * as with NCCL's watchdog, and unlike PyTorch's Gloo, whose messages time out
 * only in a wait, so that those that nobody waits for stay for good. A receive
 * that may have to wait for long needs a group with a time-out to match.
 */
COLL_API coll_status_t coll_send(const void *buf, size_t count,
    coll_dtype_t dtype, int peer, int tag, coll_group_t *group);
COLL_API coll_status_t coll_recv(void *buf, size_t count, coll_dtype_t dtype,
    int peer, int tag, int *source, coll_group_t *group);

/* The same without waiting. buf is the library's until the work is done. */
COLL_API coll_status_t coll_isend(const void *buf, size_t count,
    coll_dtype_t dtype, int peer, int tag, coll_group_t *group,
    coll_work_t **work);
COLL_API coll_status_t coll_irecv(void *buf, size_t count, coll_dtype_t dtype,
    int peer, int tag, coll_group_t *group, coll_work_t **work);

typedef struct coll_message {
    bool is_send;
    void *buf; /* is_send: only read */
    size_t count;
    coll_dtype_t dtype;
    int peer;
    int tag;
} coll_message_t;

/* Starts n messages at once, in that order; the work is done when all are. */
COLL_API coll_status_t coll_batch(const coll_message_t *messages, size_t n,
    coll_group_t *group, coll_work_t **work);

/* --- Work ---------------------------------------------------------------- */

/*
 * What a call that does not wait returns in *work, to be given back with
 * coll_work_free(). Until it is done its buffers are the library's, and arrays
 * that were passed with them (counts, lists of buffers) stay as they are. The
 * call itself fails only for its arguments, for the state of the group, and
 * with COLL_ERR_MEMORY or COLL_ERR_SYSTEM if there is no memory or no thread
 * for it: then there is no work, and nothing was communicated.
 *
 * The operations of a group are done in the order of the calls, waiting or
 * not, one after the other. Works of different groups, and messages, progress
 * at the same time, whether or not somebody waits for them. The time-out of an
 * operation begins when its turn comes.
 */

/*
 * Waits until it is done and returns what the call would have. timeout_ms
 * greater than 0: for so long at most, then COLL_ERR_TIMEOUT, and the work goes
 * on. 0: for as long as it takes. May be called by several threads, and again.
 */
COLL_API coll_status_t coll_work_wait(coll_work_t *work, int64_t timeout_ms);

/* *done: whether it is done; then the result is returned, too. */
COLL_API coll_status_t coll_work_test(coll_work_t *work, bool *done);

/* A work of coll_irecv() that is done well: who sent; otherwise -1. */
COLL_API int coll_work_source(const coll_work_t *work);

/*
 * Has fn called with the result once it is done: by a thread of the library, by
 * one of the program's that moves messages of the group just then, in
 * coll_send() or coll_work_wait() for one, or, if it is done already, at once.
 * So hold no lock in those calls that fn takes. coll_last_error() is what the
 * wait would have said. At most one for each work: COLL_ERR_STATE for a second.
 *
 * In fn its own work is done: coll_work_wait() for it returns at once, and it
 * may be given back. fn may start works, test them and give them back, and wait
 * for those that are done. It must not wait for other ranks, for the thread it
 * runs in may be the one that has to move on: an operation or a message in the
 * form that waits, coll_work_wait() for a work that is not done, and to destroy
 * a group are COLL_ERR_STATE in fn, and nothing happens.
 */
typedef void coll_work_fn_t(coll_status_t status, void *arg);
COLL_API coll_status_t coll_work_then(
    coll_work_t *work, coll_work_fn_t *fn, void *arg);

/* Takes NULL. A work that is not done yet goes on, and is freed when it is.
 * Threads that are in a call on it (they wait, say) get the result as if it was
 * still there; nobody may begin one. */
COLL_API void coll_work_free(coll_work_t *work);

COLL_API coll_status_t coll_all_reduce_async(const void *sendbuf, void *recvbuf,
    size_t count, coll_dtype_t dtype, coll_op_t op, coll_group_t *group,
    coll_work_t **work);
COLL_API coll_status_t coll_reduce_async(const void *sendbuf, void *recvbuf,
    size_t count, coll_dtype_t dtype, coll_op_t op, int root,
    coll_group_t *group, coll_work_t **work);
COLL_API coll_status_t coll_broadcast_async(void *buf, size_t count,
    coll_dtype_t dtype, int root, coll_group_t *group, coll_work_t **work);
COLL_API coll_status_t coll_all_gather_async(const void *sendbuf, void *recvbuf,
    size_t count, coll_dtype_t dtype, coll_group_t *group, coll_work_t **work);
COLL_API coll_status_t coll_gather_async(const void *sendbuf, void *recvbuf,
    size_t count, coll_dtype_t dtype, int root, coll_group_t *group,
    coll_work_t **work);
COLL_API coll_status_t coll_scatter_async(const void *sendbuf, void *recvbuf,
    size_t count, coll_dtype_t dtype, int root, coll_group_t *group,
    coll_work_t **work);
COLL_API coll_status_t coll_reduce_scatter_async(const void *sendbuf,
    void *recvbuf, size_t count, coll_dtype_t dtype, coll_op_t op,
    coll_group_t *group, coll_work_t **work);
COLL_API coll_status_t coll_all_to_all_async(const void *sendbuf, void *recvbuf,
    size_t count, coll_dtype_t dtype, coll_group_t *group, coll_work_t **work);
COLL_API coll_status_t coll_all_gather_v_async(const void *sendbuf,
    size_t send_count, void *recvbuf, const size_t *recv_counts,
    const size_t *recv_at, coll_dtype_t dtype, coll_group_t *group,
    coll_work_t **work);
COLL_API coll_status_t coll_reduce_scatter_v_async(const void *sendbuf,
    const size_t *send_counts, const size_t *send_at, void *recvbuf,
    coll_dtype_t dtype, coll_op_t op, coll_group_t *group, coll_work_t **work);
COLL_API coll_status_t coll_all_to_all_v_async(const void *sendbuf,
    const size_t *send_counts, const size_t *send_at, void *recvbuf,
    const size_t *recv_counts, const size_t *recv_at, coll_dtype_t dtype,
    coll_group_t *group, coll_work_t **work);
COLL_API coll_status_t coll_barrier_async(
    coll_group_t *group, coll_work_t **work);
COLL_API coll_status_t coll_all_reduce_coalesced_async(
    const void *const *sendbufs, void *const *recvbufs, const size_t *counts,
    size_t n, coll_dtype_t dtype, coll_op_t op, coll_group_t *group,
    coll_work_t **work);
COLL_API coll_status_t coll_all_gather_coalesced_async(
    const void *const *sendbufs, void *const *recvbufs, const size_t *counts,
    size_t n, coll_dtype_t dtype, coll_group_t *group, coll_work_t **work);
COLL_API coll_status_t coll_reduce_scatter_coalesced_async(
    const void *const *sendbufs, void *const *recvbufs, const size_t *counts,
    size_t n, coll_dtype_t dtype, coll_op_t op, coll_group_t *group,
    coll_work_t **work);

/* --- Starting workers --------------------------------------------------- */

/* What a worker does; 0 is success, as with main(). */
typedef int coll_spawn_fn_t(int local_rank, void *arg);

typedef struct coll_spawn_options {
    /* Milliseconds from SIGTERM to SIGKILL for the workers that are left when
     * one has failed. 0: 30,000. */
    int64_t grace_ms;
} coll_spawn_options_t;

#ifdef __cplusplus
#define COLL_SPAWN_OPTIONS_INIT (coll_spawn_options_t())
#else
#define COLL_SPAWN_OPTIONS_INIT ((coll_spawn_options_t){0})
#endif

/*
 * Without a launcher: forks nprocs workers on this node, 1 to 1024, that each
 * call fn(local_rank, arg), and waits until all have ended. In a worker the
 * variables of env:// are set (in place of those that a launcher may have
 * set), so that fn can call coll_init(NULL); a store serves them. options may
 * be NULL for the defaults.
 *
 * COLL_OK when every worker has returned 0 or has exited with it. The first
 * one that fails ends the others: with SIGTERM, and with SIGKILL when the
 * grace is over; COLL_ERR_PEER then, and coll_last_error() says which it was
 * and how: "rank 2 (pid 123) failed first: signal 9 (SIGKILL)". COLL_ERR_STATE
 * between coll_init() and coll_destroy(), and once CUDA was initialized.
 *
 * Waits for as long as workers run: there is no time-out. Signals that the
 * program handles do not end the wait. A program that dies meanwhile, or that
 * Ctrl-C ends, takes the workers along: so do the thread that made the call,
 * and the process that supervises them for it. What workers have started and
 * left behind is killed when the last one has ended.
 *
 * The workers are forks, with what that means: they begin with a copy of the
 * memory and the open files, but without other threads, and a lock that another
 * thread holds is locked in them for good. So start workers before threads. A
 * worker runs in a process group of its own. SIGHUP, SIGINT, SIGQUIT, SIGTERM
 * and SIGCHLD have their default action there, unless they are ignored. When fn
 * returns, stdio is flushed and the worker ends without the program's atexit()
 * functions.
 */
COLL_API coll_status_t coll_spawn(coll_spawn_fn_t *fn, void *arg, int nprocs,
    const coll_spawn_options_t *options);

/* --- Telling why --------------------------------------------------------- */

/*
 * Tells the launcher why this worker is about to fail: writes message (of any
 * bytes, at most 64 KiB of it are kept) and the calling thread's stack to the
 * file that TORCHELASTIC_ERROR_FILE names. crun and torchrun show it in their
 * report. The form is that of torch's @record. Without that variable nothing
 * is written, and so if the file is there already: what was said first is
 * nearer to the cause. It appears as a whole or not at all.
 *
 * The library calls it for no failure of its own, since a program may go on
 * after one. A program that does not should say so:
 *
 *     if (coll_barrier(NULL) != COLL_OK) {
 *         coll_record_error(coll_last_error());
 *         return 1;
 *     }
 *
 * Any thread may call it, before coll_init() and after coll_destroy(), too.
 * COLL_ERR_ARGUMENT if message is NULL, COLL_ERR_SYSTEM if the file cannot be
 * written.
 */
COLL_API coll_status_t coll_record_error(const char *message);

/*
 * From now on a crash of this process (SIGSEGV, SIGBUS, SIGFPE, SIGILL,
 * SIGABRT) writes that file: "signal 11 (SIGSEGV) at address 0x10" and the
 * stack of the thread at fault, for addr2line; link with -rdynamic for names
 * of functions. Then the handler that was there before is put back and gets
 * the same signal: without one the process ends by it, with a core dump where
 * there is to be one.
 *
 * Call it once, early in main() and before other threads; a second call does
 * nothing, and without TORCHELASTIC_ERROR_FILE neither does the first. An
 * overflow of the stack is recorded in the calling thread only, which gets an
 * alternate signal stack if it has none, and in threads that have one. A
 * process that is forked off writes nothing unless it makes the call itself.
 * Not for programs whose run-time system handles these signals as a matter of
 * course, as Java's does. COLL_ERR_SYSTEM if a system call fails.
 */
COLL_API coll_status_t coll_install_crash_handler(void);

/*
 * Writes what this rank's recorder holds, its last 64 calls, to a descriptor:
 * oldest first, one JSON object in a line,
 *
 *     {"group": 0, "ranks": null, "seq": 17, "kind": "all_reduce",
 *      "dtype": "float32", "op": "sum", "count": 1024, "root": null,
 *      "entered_ns": 5017000123, "finished_ns": null, "status": null}
 *
 * without the line break in the middle. group is 0 for the default group, else
 * a number of the group's own, and ranks are its ranks ("0-2,7") as far as
 * there is room. seq is 0 for calls without a number, such as coll_init. Times
 * are of CLOCK_MONOTONIC, that of a successful end is of the kernel's tick.
 * While a call has not ended finished_ns and status (0 or an error) are null.
 *
 * Any thread may call it at any time, while another one waits in an operation,
 * before coll_init() (there is nothing to write) and after coll_destroy(), too;
 * not a signal handler. It writes as write() does: a reader that is slow is
 * waited for. COLL_ERR_SYSTEM if the descriptor takes no more.
 */
COLL_API coll_status_t coll_recorder_dump(int fd);

/* --- Algorithms ----------------------------------------------------------- */

/*
 * An operation can be done in several ways, and the library takes one by size,
 * number of ranks and where they are. The program coll_tune measures them all
 * on a machine and prints which the library takes and why; the following is
 * what it is made of, and lets a program take another one.
 *
 * On one node                  (level "shm")
 *   mapped        ranks work in each other's buffers, which must be of
 *                 coll_alloc()
 *   cma           the kernel lets ranks read each other's buffers (cross-memory
 *                 attach, process_vm_readv)
 *   one_shot      reductions: every rank reduces the data of all
 *   two_shot      reductions: every rank reduces its share, and all copy that
 *   staged        the rest, through shared memory
 * By messages                  (level "net")
 *   eager         the data travel with the first messages
 *   ring, chain, tree, linear, bruck, pairwise
 *                 as the literature calls them: R. Thakur, R. Rabenseifner,
 *                 W. Gropp, "Optimization of Collective Communication
 *                 Operations in MPICH", IJHPCA 19(1), 2005; pairwise
 *                 reductions are its pairwise exchange
 *   gather        reductions: one rank, or every rank, gets the data of all
 * Ranks of several nodes       (level "nodes")
 *   hierarchical  within each node, between one rank of each, and back
 *   eager         the same in one go, with the data of every rank apart
 *   flat          by messages between any two ranks
 */

/*
 * The names of the algorithms that an operation ("all_reduce", ...) has at any
 * level: index 0 is the first, NULL is behind the last, or there is no such
 * operation with a choice. The text is a constant.
 */
COLL_API const char *coll_algorithm_name(const char *operation, int index);

/*
 * Has a group take these algorithms, "all_reduce:ring,broadcast:tree", from its
 * next operation on, at each level that has one of that name. NULL or "" leaves
 * all to the library again. For a call for which it is impossible (mapped
 * without memory of coll_alloc(), ...) the library chooses as without it. group
 * NULL means all ranks.
 *
 * All ranks of the group must set the same before the same operation; else that
 * operation fails with COLL_ERR_MISMATCH on all of them. It does not
 * communicate, and may not be called while an operation of the group, other
 * than a message, is on its way (COLL_ERR_STATE). The list has no blanks; of
 * two entries for one operation and level the latter counts; an operation that
 * is done in steps (all_reduce on several nodes: reduce, all_reduce, broadcast)
 * hands its choice on to them. COLL_ERR_ARGUMENT: the text names what does not
 * exist, and nothing has changed. The variable COLL_ALGORITHM does the same for
 * the default group in coll_init(); groups begin with what the default group
 * has.
 */
COLL_API coll_status_t coll_algorithm_set(
    coll_group_t *group, const char *choices);

/*
 * How the group's last operation was done on this rank, and why so. Writes to
 * out, of cap bytes, a text with a line for each level at which there was a
 * choice (two, where it had steps of two kinds there):
 *
 *     shm: two_shot of all_reduce, 65536 bytes, parts of 16384, 4 ranks; not
 *     mapped: not all its buffers are of coll_alloc(); not cma: ...
 *
 * (without the break): the level, the algorithm, the operation or the step of
 * it, the size, and why none was taken that the library would sooner take. It
 * is cut if cap is too small, and "" if there was no choice. 2048 bytes are
 * always enough. COLL_ERR_STATE while an operation of the group is on its way.
 */
COLL_API coll_status_t coll_explain(
    const coll_group_t *group, char *out, size_t cap);

#ifdef __cplusplus
}
#endif

#endif
