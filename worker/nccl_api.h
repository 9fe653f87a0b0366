/*
 * The part of NCCL (libnccl.so.2) that libcollective uses, of every version
 * from 2.18 on. As with cuda_api.h nothing here needs NCCL at build time; what
 * the library found lacks is NULL in the table.
 */
#ifndef COLL_NCCL_API_H
#define COLL_NCCL_API_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "worker/cuda_api.h"

/* As NCCL counts: major * 10000 + minor * 100 + patch, since 2.9. */
#define COLL_NCCL_VERSION_MIN 21800
/* The latest whose configuration is declared below. */
#define COLL_NCCL_VERSION_KNOWN 23005

typedef unsigned int nccl_result_t;
typedef unsigned int nccl_dtype_t;
typedef unsigned int nccl_op_t; /* also of the reductions that one creates */
typedef unsigned int nccl_residence_t;

struct nccl_comm;

typedef struct nccl_unique_id {
    char internal[128];
} nccl_unique_id_t;

/* X(name of ours, value, NVIDIA's name) */
#define COLL_NCCL_RESULT_MAP(X)                                                \
    X(COLL_NCCL_SUCCESS, 0, ncclSuccess)                                       \
    X(COLL_NCCL_UNHANDLED_CUDA_ERROR, 1, ncclUnhandledCudaError)               \
    X(COLL_NCCL_SYSTEM_ERROR, 2, ncclSystemError)                              \
    X(COLL_NCCL_INTERNAL_ERROR, 3, ncclInternalError)                          \
    X(COLL_NCCL_INVALID_ARGUMENT, 4, ncclInvalidArgument)                      \
    X(COLL_NCCL_INVALID_USAGE, 5, ncclInvalidUsage)                            \
    X(COLL_NCCL_REMOTE_ERROR, 6, ncclRemoteError)                              \
    X(COLL_NCCL_IN_PROGRESS, 7, ncclInProgress)

#define COLL_NCCL_CONSTANT_MAP(X)                                              \
    X(COLL_NCCL_SUM, 0, ncclSum)                                               \
    X(COLL_NCCL_PROD, 1, ncclProd)                                             \
    X(COLL_NCCL_MAX, 2, ncclMax)                                               \
    X(COLL_NCCL_MIN, 3, ncclMin)                                               \
    X(COLL_NCCL_AVG, 4, ncclAvg)                                               \
    X(COLL_NCCL_INT8, 0, ncclInt8)                                             \
    X(COLL_NCCL_UINT8, 1, ncclUint8)                                           \
    X(COLL_NCCL_INT32, 2, ncclInt32)                                           \
    X(COLL_NCCL_UINT32, 3, ncclUint32)                                         \
    X(COLL_NCCL_INT64, 4, ncclInt64)                                           \
    X(COLL_NCCL_UINT64, 5, ncclUint64)                                         \
    X(COLL_NCCL_FLOAT16, 6, ncclFloat16)                                       \
    X(COLL_NCCL_FLOAT32, 7, ncclFloat32)                                       \
    X(COLL_NCCL_FLOAT64, 8, ncclFloat64)                                       \
    X(COLL_NCCL_BFLOAT16, 9, ncclBfloat16)                                     \
    X(COLL_NCCL_SCALAR_DEVICE, 0, ncclScalarDevice)                            \
    X(COLL_NCCL_SCALAR_HOST, 1, ncclScalarHostImmediate)                       \
    X(COLL_NCCL_SPLIT_NO_COLOR, -1, NCCL_SPLIT_NOCOLOR)                        \
    X(COLL_NCCL_UNDEFINED, INT_MIN, NCCL_CONFIG_UNDEF_INT)

/* What only later headers have: 2.24 float8, 2.27 shrink, 2.28.7 revoke, 2.30
 * the result of an operation's own time-out. */
#define COLL_NCCL_FLOAT8_VERSION 22400
#define COLL_NCCL_FLOAT8_MAP(X)                                                \
    X(COLL_NCCL_FLOAT8_E4M3, 10, ncclFloat8e4m3)                               \
    X(COLL_NCCL_FLOAT8_E5M2, 11, ncclFloat8e5m2)
#define COLL_NCCL_SHRINK_VERSION 22700
#define COLL_NCCL_SHRINK_MAP(X)                                                \
    X(COLL_NCCL_SHRINK_DEFAULT, 0, NCCL_SHRINK_DEFAULT)                        \
    X(COLL_NCCL_SHRINK_ABORT, 1, NCCL_SHRINK_ABORT)
#define COLL_NCCL_TIMEOUT_VERSION 23000
#define COLL_NCCL_TIMEOUT_MAP(X) X(COLL_NCCL_TIMEOUT, 8, ncclTimeout)

enum {
#define COLL_NCCL_ENUM(name, value, theirs) name = value,
    COLL_NCCL_RESULT_MAP(COLL_NCCL_ENUM) COLL_NCCL_CONSTANT_MAP(COLL_NCCL_ENUM)
        COLL_NCCL_FLOAT8_MAP(COLL_NCCL_ENUM) COLL_NCCL_SHRINK_MAP(
            COLL_NCCL_ENUM) COLL_NCCL_TIMEOUT_MAP(COLL_NCCL_ENUM)
#undef COLL_NCCL_ENUM
};

/*
 * X(type, field, the version that brought it, what says "not set"), in the
 * order of memory: fields have only ever been added at the end, so one
 * declaration of all is every version's beginning.
 */
#define COLL_NCCL_CONFIG_MAP(X)                                                \
    X(int, blocking, 21400, COLL_NCCL_UNDEFINED)                               \
    X(int, cgaClusterSize, 21700, COLL_NCCL_UNDEFINED)                         \
    X(int, minCTAs, 21700, COLL_NCCL_UNDEFINED)                                \
    X(int, maxCTAs, 21700, COLL_NCCL_UNDEFINED)                                \
    X(const char *, netName, 21700, NULL)                                      \
    X(int, splitShare, 21800, COLL_NCCL_UNDEFINED)                             \
    X(int, trafficClass, 22600, COLL_NCCL_UNDEFINED)                           \
    X(const char *, commName, 22700, NULL)                                     \
    X(int, collnetEnable, 22700, COLL_NCCL_UNDEFINED)                          \
    X(int, CTAPolicy, 22700, COLL_NCCL_UNDEFINED)                              \
    X(int, shrinkShare, 22700, COLL_NCCL_UNDEFINED)                            \
    X(int, nvlsCTAs, 22700, COLL_NCCL_UNDEFINED)                               \
    X(int, nChannelsPerNetPeer, 22800, COLL_NCCL_UNDEFINED)                    \
    X(int, nvlinkCentricSched, 22800, COLL_NCCL_UNDEFINED)                     \
    X(int, graphUsageMode, 22900, COLL_NCCL_UNDEFINED)                         \
    X(int, numRmaCtx, 22900, COLL_NCCL_UNDEFINED)                              \
    X(int, maxP2pPeers, 23000, COLL_NCCL_UNDEFINED)                            \
    X(int, graphStreamOrdering, 23005, COLL_NCCL_UNDEFINED)

#define COLL_NCCL_CONFIG_MAGIC 0xcafebeefu

typedef struct nccl_config {
    size_t size;
    unsigned int magic;
    unsigned int version;
#define COLL_NCCL_CONFIG_FIELD(type, field, since, unset) type field;
    COLL_NCCL_CONFIG_MAP(COLL_NCCL_CONFIG_FIELD)
#undef COLL_NCCL_CONFIG_FIELD
} nccl_config_t;

/*
 * Nothing is set, and size and version are such that an NCCL of that version
 * reads all it knows and no more; one that is newer than
 * COLL_NCCL_VERSION_KNOWN takes its own defaults for the rest.
 */
void nccl_config_init(nccl_config_t *config, int version);

#define COLL_NCCL_STREAM struct nccl_comm *comm, struct cu_stream *stream

/* X(member, symbol, is it required, what it returns, arguments) */
#define COLL_NCCL_MAP(X)                                                       \
    X(get_version, ncclGetVersion, true, nccl_result_t, (int *version))        \
    X(get_unique_id, ncclGetUniqueId, true, nccl_result_t,                     \
        (nccl_unique_id_t * id))                                               \
    X(get_error_string, ncclGetErrorString, true, const char *,                \
        (nccl_result_t result))                                                \
    X(get_last_error, ncclGetLastError, true, const char *,                    \
        (struct nccl_comm * comm))                                             \
    X(comm_init, ncclCommInitRankConfig, true, nccl_result_t,                  \
        (struct nccl_comm * *comm, int size, nccl_unique_id_t id, int rank,    \
            nccl_config_t *config))                                            \
    X(comm_init_scalable, ncclCommInitRankScalable, false, nccl_result_t,      \
        (struct nccl_comm * *comm, int size, int rank, int nids,               \
            nccl_unique_id_t *ids, nccl_config_t *config))                     \
    X(comm_init_all, ncclCommInitAll, true, nccl_result_t,                     \
        (struct nccl_comm * *comms, int count, const int *devices))            \
    X(comm_split, ncclCommSplit, true, nccl_result_t,                          \
        (struct nccl_comm * comm, int color, int key, struct nccl_comm **made, \
            nccl_config_t *config))                                            \
    X(comm_shrink, ncclCommShrink, false, nccl_result_t,                       \
        (struct nccl_comm * comm, int *excluded, int count,                    \
            struct nccl_comm **made, nccl_config_t *config, int flags))        \
    X(comm_revoke, ncclCommRevoke, false, nccl_result_t,                       \
        (struct nccl_comm * comm, int flags))                                  \
    X(comm_finalize, ncclCommFinalize, true, nccl_result_t,                    \
        (struct nccl_comm * comm))                                             \
    X(comm_destroy, ncclCommDestroy, true, nccl_result_t,                      \
        (struct nccl_comm * comm))                                             \
    X(comm_abort, ncclCommAbort, true, nccl_result_t,                          \
        (struct nccl_comm * comm))                                             \
    X(comm_get_async_error, ncclCommGetAsyncError, true, nccl_result_t,        \
        (struct nccl_comm * comm, nccl_result_t * error))                      \
    X(comm_count, ncclCommCount, true, nccl_result_t,                          \
        (struct nccl_comm *const comm, int *count))                            \
    X(comm_device, ncclCommCuDevice, true, nccl_result_t,                      \
        (struct nccl_comm *const comm, int *device))                           \
    X(comm_rank, ncclCommUserRank, true, nccl_result_t,                        \
        (struct nccl_comm *const comm, int *rank))                             \
    X(comm_register, ncclCommRegister, false, nccl_result_t,                   \
        (struct nccl_comm *const comm, void *buffer, size_t bytes,             \
            void **handle))                                                    \
    X(comm_deregister, ncclCommDeregister, false, nccl_result_t,               \
        (struct nccl_comm *const comm, void *handle))                          \
    X(memory_alloc, ncclMemAlloc, false, nccl_result_t,                        \
        (void **memory, size_t bytes))                                         \
    X(memory_free, ncclMemFree, false, nccl_result_t, (void *memory))          \
    X(op_create_premul_sum, ncclRedOpCreatePreMulSum, true, nccl_result_t,     \
        (nccl_op_t * op, void *scalar, nccl_dtype_t dtype,                     \
            nccl_residence_t residence, struct nccl_comm *comm))               \
    X(op_destroy, ncclRedOpDestroy, true, nccl_result_t,                       \
        (nccl_op_t op, struct nccl_comm * comm))                               \
    X(group_start, ncclGroupStart, true, nccl_result_t, (void))                \
    X(group_end, ncclGroupEnd, true, nccl_result_t, (void))                    \
    X(all_reduce, ncclAllReduce, true, nccl_result_t,                          \
        (const void *from, void *to, size_t count, nccl_dtype_t dtype,         \
            nccl_op_t op, COLL_NCCL_STREAM))                                   \
    X(reduce, ncclReduce, true, nccl_result_t,                                 \
        (const void *from, void *to, size_t count, nccl_dtype_t dtype,         \
            nccl_op_t op, int root, COLL_NCCL_STREAM))                         \
    X(broadcast, ncclBroadcast, true, nccl_result_t,                           \
        (const void *from, void *to, size_t count, nccl_dtype_t dtype,         \
            int root, COLL_NCCL_STREAM))                                       \
    X(reduce_scatter, ncclReduceScatter, true, nccl_result_t,                  \
        (const void *from, void *to, size_t count, nccl_dtype_t dtype,         \
            nccl_op_t op, COLL_NCCL_STREAM))                                   \
    X(all_gather, ncclAllGather, true, nccl_result_t,                          \
        (const void *from, void *to, size_t count, nccl_dtype_t dtype,         \
            COLL_NCCL_STREAM))                                                 \
    X(all_to_all, ncclAlltoAll, false, nccl_result_t,                          \
        (const void *from, void *to, size_t count, nccl_dtype_t dtype,         \
            COLL_NCCL_STREAM))                                                 \
    X(gather, ncclGather, false, nccl_result_t,                                \
        (const void *from, void *to, size_t count, nccl_dtype_t dtype,         \
            int root, COLL_NCCL_STREAM))                                       \
    X(scatter, ncclScatter, false, nccl_result_t,                              \
        (const void *from, void *to, size_t count, nccl_dtype_t dtype,         \
            int root, COLL_NCCL_STREAM))                                       \
    X(send, ncclSend, true, nccl_result_t,                                     \
        (const void *from, size_t count, nccl_dtype_t dtype, int peer,         \
            COLL_NCCL_STREAM))                                                 \
    X(recv, ncclRecv, true, nccl_result_t,                                     \
        (void *to, size_t count, nccl_dtype_t dtype, int peer,                 \
            COLL_NCCL_STREAM))

struct nccl_api {
    void *handle; /* of dlopen() */
    int version; /* 22809 is 2.28.9 */
#define COLL_NCCL_MEMBER(member, symbol, required, result, args)               \
    result(*member) args;
    COLL_NCCL_MAP(COLL_NCCL_MEMBER)
#undef COLL_NCCL_MEMBER
};

/*
 * NCCL for this process: libnccl.so.2, or the file that COLL_NCCL_LIBRARY
 * names. Loaded by the first call and for good; what failed once fails alike
 * ever after. Sets *out on success only, else the sentence of the calling
 * thread. From any thread.
 */
coll_status_t nccl_api_get(const struct nccl_api **out);

/* The same for one file, each time anew; for tests, and the above. */
coll_status_t nccl_api_open(struct nccl_api *api, const char *file);
void nccl_api_close(struct nccl_api *api);

#define COLL_NCCL_VERSION_TEXT 40

/* "2.28.9" for what NCCL calls 22809; returns out. */
const char *nccl_version_text(int version, char out[COLL_NCCL_VERSION_TEXT]);

#endif
