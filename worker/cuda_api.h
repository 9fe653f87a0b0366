/*
 * The part of the CUDA driver (libcuda.so.1) that libcollective uses. It is
 * looked up at run time, so nothing here needs CUDA: types and numbers are
 * declared anew under names of our own, and a test compares them with
 * NVIDIA's headers where these are installed.
 *
 * The driver and not the runtime (libcudart): every machine with a GPU has
 * it, in one version, while each program may bring a runtime of its own. Both
 * share the primary context of a device, and a cudaStream_t or cudaEvent_t
 * is the driver's handle, so programs that use the runtime may pass theirs.
 */
#ifndef COLL_CUDA_API_H
#define COLL_CUDA_API_H

#include <stddef.h>

#include "collective.h"

/* What the driver must be able to do: that is what NCCL 2.18 was made for. */
#define COLL_CUDA_VERSION_MIN 11000

typedef unsigned int cu_result_t;
typedef int cu_device_t;
typedef unsigned long long cu_address_t;
typedef struct cu_uuid {
    char bytes[16];
} cu_uuid_t;

struct cu_context;
struct cu_stream;
struct cu_event;

typedef void cu_host_function_t(void *arg);

/* X(name of ours, value, NVIDIA's name) */
#define COLL_CUDA_RESULT_MAP(X)                                                \
    X(COLL_CUDA_SUCCESS, 0, CUDA_SUCCESS)                                      \
    X(COLL_CUDA_INVALID_VALUE, 1, CUDA_ERROR_INVALID_VALUE)                    \
    X(COLL_CUDA_OUT_OF_MEMORY, 2, CUDA_ERROR_OUT_OF_MEMORY)                    \
    X(COLL_CUDA_NOT_INITIALIZED, 3, CUDA_ERROR_NOT_INITIALIZED)                \
    X(COLL_CUDA_STUB_LIBRARY, 34, CUDA_ERROR_STUB_LIBRARY)                     \
    X(COLL_CUDA_NO_DEVICE, 100, CUDA_ERROR_NO_DEVICE)                          \
    X(COLL_CUDA_INVALID_DEVICE, 101, CUDA_ERROR_INVALID_DEVICE)                \
    X(COLL_CUDA_INVALID_CONTEXT, 201, CUDA_ERROR_INVALID_CONTEXT)              \
    X(COLL_CUDA_INVALID_HANDLE, 400, CUDA_ERROR_INVALID_HANDLE)                \
    X(COLL_CUDA_NOT_READY, 600, CUDA_ERROR_NOT_READY)                          \
    X(COLL_CUDA_ILLEGAL_ADDRESS, 700, CUDA_ERROR_ILLEGAL_ADDRESS)              \
    X(COLL_CUDA_CONTEXT_IS_DESTROYED, 709, CUDA_ERROR_CONTEXT_IS_DESTROYED)    \
    X(COLL_CUDA_SYSTEM_NOT_READY, 802, CUDA_ERROR_SYSTEM_NOT_READY)            \
    X(COLL_CUDA_DRIVER_MISMATCH, 803, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)       \
    X(COLL_CUDA_CAPTURE_UNSUPPORTED, 900, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)

#define COLL_CUDA_CONSTANT_MAP(X)                                              \
    X(COLL_CUDA_SM_COUNT, 16, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)        \
    X(COLL_CUDA_COMPUTE_MODE, 20, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)            \
    X(COLL_CUDA_CAPABILITY_MAJOR, 75,                                          \
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)                          \
    X(COLL_CUDA_CAPABILITY_MINOR, 76,                                          \
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)                          \
    X(COLL_CUDA_STREAM_DEFAULT, 0, CU_STREAM_DEFAULT)                          \
    X(COLL_CUDA_STREAM_NON_BLOCKING, 1, CU_STREAM_NON_BLOCKING)                \
    X(COLL_CUDA_EVENT_DEFAULT, 0, CU_EVENT_DEFAULT)                            \
    X(COLL_CUDA_EVENT_BLOCKING_SYNC, 1, CU_EVENT_BLOCKING_SYNC)                \
    X(COLL_CUDA_EVENT_NO_TIMING, 2, CU_EVENT_DISABLE_TIMING)                   \
    X(COLL_CUDA_CAPTURE_NONE, 0, CU_STREAM_CAPTURE_STATUS_NONE)                \
    X(COLL_CUDA_CAPTURE_ACTIVE, 1, CU_STREAM_CAPTURE_STATUS_ACTIVE)            \
    X(COLL_CUDA_CAPTURE_INVALIDATED, 2, CU_STREAM_CAPTURE_STATUS_INVALIDATED)  \
    X(COLL_CUDA_HOST_PORTABLE, 1, CU_MEMHOSTALLOC_PORTABLE)                    \
    X(COLL_CUDA_POINTER_CONTEXT, 1, CU_POINTER_ATTRIBUTE_CONTEXT)              \
    X(COLL_CUDA_POINTER_MEMORY_TYPE, 2, CU_POINTER_ATTRIBUTE_MEMORY_TYPE)      \
    X(COLL_CUDA_POINTER_IS_MANAGED, 8, CU_POINTER_ATTRIBUTE_IS_MANAGED)        \
    X(COLL_CUDA_POINTER_ORDINAL, 9, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)       \
    X(COLL_CUDA_MEMORY_HOST, 1, CU_MEMORYTYPE_HOST)                            \
    X(COLL_CUDA_MEMORY_DEVICE, 2, CU_MEMORYTYPE_DEVICE)

enum {
#define COLL_CUDA_ENUM(name, value, theirs) name = value,
    COLL_CUDA_RESULT_MAP(COLL_CUDA_ENUM) COLL_CUDA_CONSTANT_MAP(COLL_CUDA_ENUM)
#undef COLL_CUDA_ENUM
};

/* Enums of the driver in its signatures: ints of ours. */
typedef unsigned int cu_device_attribute_t;
typedef unsigned int cu_pointer_attribute_t;
typedef unsigned int cu_capture_status_t;

/*
 * X(member, symbol, is it required, arguments). All return cu_result_t. The
 * symbol is what the library exports today under the name that its manual
 * has: cuMemAlloc is cuMemAlloc_v2.
 */
#define COLL_CUDA_MAP(X)                                                       \
    X(init, cuInit, true, (unsigned int flags))                                \
    X(driver_get_version, cuDriverGetVersion, true, (int *version))            \
    X(get_error_name, cuGetErrorName, true,                                    \
        (cu_result_t error, const char **text))                                \
    X(get_error_string, cuGetErrorString, true,                                \
        (cu_result_t error, const char **text))                                \
    X(device_get_count, cuDeviceGetCount, true, (int *count))                  \
    X(device_get, cuDeviceGet, true, (cu_device_t * device, int ordinal))      \
    X(device_get_name, cuDeviceGetName, true,                                  \
        (char *name, int size, cu_device_t device))                            \
    X(device_get_uuid, cuDeviceGetUuid_v2, false,                              \
        (cu_uuid_t * uuid, cu_device_t device))                                \
    X(device_get_bus_id, cuDeviceGetPCIBusId, true,                            \
        (char *text, int size, cu_device_t device))                            \
    X(device_get_attribute, cuDeviceGetAttribute, true,                        \
        (int *value, cu_device_attribute_t attribute, cu_device_t device))     \
    X(primary_context_retain, cuDevicePrimaryCtxRetain, true,                  \
        (struct cu_context * *context, cu_device_t device))                    \
    X(primary_context_release, cuDevicePrimaryCtxRelease_v2, true,             \
        (cu_device_t device))                                                  \
    X(context_get, cuCtxGetCurrent, true, (struct cu_context * *context))      \
    X(context_set, cuCtxSetCurrent, true, (struct cu_context * context))       \
    X(context_push, cuCtxPushCurrent_v2, true, (struct cu_context * context))  \
    X(context_pop, cuCtxPopCurrent_v2, true, (struct cu_context * *context))   \
    X(context_get_device, cuCtxGetDevice, true, (cu_device_t * device))        \
    X(context_get_priorities, cuCtxGetStreamPriorityRange, true,               \
        (int *least, int *greatest))                                           \
    X(stream_create, cuStreamCreateWithPriority, true,                         \
        (struct cu_stream * *stream, unsigned int flags, int priority))        \
    X(stream_destroy, cuStreamDestroy_v2, true, (struct cu_stream * stream))   \
    X(stream_query, cuStreamQuery, true, (struct cu_stream * stream))          \
    X(stream_synchronize, cuStreamSynchronize, true,                           \
        (struct cu_stream * stream))                                           \
    X(stream_wait_event, cuStreamWaitEvent, true,                              \
        (struct cu_stream * stream, struct cu_event * event,                   \
            unsigned int flags))                                               \
    X(stream_is_capturing, cuStreamIsCapturing, true,                          \
        (struct cu_stream * stream, cu_capture_status_t * status))             \
    X(launch_host_function, cuLaunchHostFunc, true,                            \
        (struct cu_stream * stream, cu_host_function_t * run, void *arg))      \
    X(event_create, cuEventCreate, true,                                       \
        (struct cu_event * *event, unsigned int flags))                        \
    X(event_record, cuEventRecord, true,                                       \
        (struct cu_event * event, struct cu_stream * stream))                  \
    X(event_query, cuEventQuery, true, (struct cu_event * event))              \
    X(event_synchronize, cuEventSynchronize, true, (struct cu_event * event))  \
    X(event_destroy, cuEventDestroy_v2, true, (struct cu_event * event))       \
    X(memory_alloc, cuMemAlloc_v2, true,                                       \
        (cu_address_t * address, size_t bytes))                                \
    X(memory_free, cuMemFree_v2, true, (cu_address_t address))                 \
    X(memory_copy, cuMemcpy, true,                                             \
        (cu_address_t to, cu_address_t from, size_t bytes))                    \
    X(memory_copy_async, cuMemcpyAsync, true,                                  \
        (cu_address_t to, cu_address_t from, size_t bytes,                     \
            struct cu_stream * stream))                                        \
    X(memory_set, cuMemsetD8_v2, true,                                         \
        (cu_address_t address, unsigned char value, size_t bytes))             \
    X(memory_set_async, cuMemsetD8Async, true,                                 \
        (cu_address_t address, unsigned char value, size_t bytes,              \
            struct cu_stream *stream))                                         \
    X(host_alloc, cuMemHostAlloc, true,                                        \
        (void **memory, size_t bytes, unsigned int flags))                     \
    X(host_free, cuMemFreeHost, true, (void *memory))                          \
    X(pointer_get_attribute, cuPointerGetAttribute, true,                      \
        (void *value, cu_pointer_attribute_t attribute, cu_address_t address)) \
    X(pointer_get_attributes, cuPointerGetAttributes, true,                    \
        (unsigned int count, cu_pointer_attribute_t *attributes,               \
            void **values, cu_address_t address))

struct cuda_api {
    void *handle; /* of dlopen() */
    int version; /* of CUDA that the driver is made for: 13000 is 13.0 */
#define COLL_CUDA_MEMBER(member, symbol, required, args)                       \
    cu_result_t(*member) args;
    COLL_CUDA_MAP(COLL_CUDA_MEMBER)
#undef COLL_CUDA_MEMBER
};

/*
 * The driver of this process, loaded by the first call and for good; what
 * failed once fails alike ever after. Sets *out on success only, else the
 * sentence of the calling thread. From any thread. Does not call cuInit(),
 * which a process must not have done before it forks workers.
 */
coll_status_t cuda_api_get(const struct cuda_api **out);

/* The same for one file, each time anew; for tests, and the above. */
coll_status_t cuda_api_open(struct cuda_api *api, const char *file);
void cuda_api_close(struct cuda_api *api);

/* "CUDA_ERROR_INVALID_VALUE (invalid argument)"; returns out. */
const char *cuda_api_error(
    const struct cuda_api *api, cu_result_t error, char *out, size_t size);

#endif
