/*
 * What cuda_api.h and nccl_api.h declare is what NVIDIA's headers declare.
 * Nearly all of it is checked by the compiler; where the headers are not
 * installed, or the build was made with WITH_CUDA=0, the test says so.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/unit.h"
#include "worker/nccl_api.h"

#ifdef COLL_GPU_HEADERS

#include <cuda.h>
#include <nccl.h>

#define SAME(ours, value, theirs)                                              \
    _Static_assert(                                                            \
        (long long)(ours) == (long long)(theirs), #ours " is not " #theirs);
COLL_CUDA_RESULT_MAP(SAME)
COLL_CUDA_CONSTANT_MAP(SAME)
COLL_NCCL_RESULT_MAP(SAME)
COLL_NCCL_CONSTANT_MAP(SAME)
#if NCCL_VERSION_CODE >= COLL_NCCL_FLOAT8_VERSION
COLL_NCCL_FLOAT8_MAP(SAME)
#endif
#if NCCL_VERSION_CODE >= COLL_NCCL_SHRINK_VERSION
COLL_NCCL_SHRINK_MAP(SAME)
#endif
#if NCCL_VERSION_CODE >= COLL_NCCL_TIMEOUT_VERSION
COLL_NCCL_TIMEOUT_MAP(SAME)
#endif

/* Enums are passed and returned as the integers that we take for them. */
#define COMPATIBLE(ours, theirs)                                               \
    _Static_assert(__builtin_types_compatible_p(ours, theirs),                 \
        #ours " is not compatible with " #theirs)
COMPATIBLE(cu_result_t, CUresult);
COMPATIBLE(cu_device_t, CUdevice);
COMPATIBLE(cu_address_t, CUdeviceptr);
COMPATIBLE(cu_device_attribute_t, CUdevice_attribute);
COMPATIBLE(cu_pointer_attribute_t, CUpointer_attribute);
COMPATIBLE(cu_capture_status_t, CUstreamCaptureStatus);
COMPATIBLE(cu_host_function_t *, CUhostFn);
COMPATIBLE(nccl_result_t, ncclResult_t);
COMPATIBLE(nccl_dtype_t, ncclDataType_t);
COMPATIBLE(nccl_op_t, ncclRedOp_t);
COMPATIBLE(nccl_residence_t, ncclScalarResidence_t);
/* A stream of the runtime is a stream of the driver. */
COMPATIBLE(CUstream, cudaStream_t);
COMPATIBLE(CUevent, cudaEvent_t);

#define SAME_SIZE(ours, theirs)                                                \
    _Static_assert(                                                            \
        sizeof(ours) == sizeof(theirs) && _Alignof(ours) == _Alignof(theirs),  \
        #ours " is not as large as " #theirs)
SAME_SIZE(cu_uuid_t, CUuuid);
SAME_SIZE(nccl_unique_id_t, ncclUniqueId);

/* Fields that the installed header does not have yet cannot be compared. */
#define SAME_FIELD(field)                                                      \
    _Static_assert(                                                            \
        offsetof(nccl_config_t, field) == offsetof(ncclConfig_t, field) &&     \
            __builtin_types_compatible_p(                                      \
                __typeof__(((nccl_config_t *)0)->field),                       \
                __typeof__(((ncclConfig_t *)0)->field)),                       \
        "field " #field " is another one")
SAME_FIELD(size);
SAME_FIELD(magic);
SAME_FIELD(version);
SAME_FIELD(blocking);
SAME_FIELD(cgaClusterSize);
SAME_FIELD(minCTAs);
SAME_FIELD(maxCTAs);
SAME_FIELD(netName);
SAME_FIELD(splitShare);
#if NCCL_VERSION_CODE >= 22600
SAME_FIELD(trafficClass);
#endif
#if NCCL_VERSION_CODE >= 22700
SAME_FIELD(commName);
SAME_FIELD(collnetEnable);
SAME_FIELD(CTAPolicy);
SAME_FIELD(shrinkShare);
SAME_FIELD(nvlsCTAs);
#endif
#if NCCL_VERSION_CODE >= 22800
SAME_FIELD(nChannelsPerNetPeer);
SAME_FIELD(nvlinkCentricSched);
#endif
#if NCCL_VERSION_CODE >= 22900
SAME_FIELD(graphUsageMode);
SAME_FIELD(numRmaCtx);
#endif
#if NCCL_VERSION_CODE >= 23000
SAME_FIELD(maxP2pPeers);
#endif
#if NCCL_VERSION_CODE >= 23005
SAME_FIELD(graphStreamOrdering);
#endif

START_TEST(config_is_what_the_header_initialises)
{
    ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
    nccl_config_t ours;

    nccl_config_init(&ours, NCCL_VERSION_CODE);
    ck_assert_uint_eq(ours.magic, theirs.magic);
    if (NCCL_VERSION_CODE <= COLL_NCCL_VERSION_KNOWN) {
        ck_assert_uint_eq(ours.size, theirs.size);
        ck_assert_uint_eq(ours.version, theirs.version);
    }
    ck_assert_int_eq(ours.blocking, theirs.blocking);
    ck_assert_int_eq(ours.splitShare, theirs.splitShare);
    ck_assert_ptr_null(ours.netName);
    printf("compared with CUDA %d.%d and NCCL %d.%d.%d\n", CUDA_VERSION / 1000,
        CUDA_VERSION % 1000 / 10, NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
}
END_TEST

/* Paths are "" where the libraries are not installed with the headers. */
START_TEST(installed_libraries_have_all_functions)
{
    struct nccl_api nccl;
    struct cuda_api cu;

    if (COLL_GPU_NCCL[0] == '\0') {
        printf("skipped: no libnccl.so.2 beside the headers\n");
    } else {
        ck_assert_msg(nccl_api_open(&nccl, COLL_GPU_NCCL) == COLL_OK, "%s",
            coll_last_error());
        ck_assert_int_eq(nccl.version, NCCL_VERSION_CODE);
#if NCCL_VERSION_CODE >= 22807
#define IS_THERE(member, symbol, required, result, args)                       \
    ck_assert_msg(nccl.member != NULL, "no %s", #symbol);
        COLL_NCCL_MAP(IS_THERE)
#endif
        nccl_api_close(&nccl);
    }
    if (COLL_GPU_STUB[0] == '\0') {
        printf("skipped: no stub of libcuda.so beside the headers\n");
    } else {
        /* It has all the functions, and says of itself what it is. */
        ck_assert_int_eq(
            cuda_api_open(&cu, COLL_GPU_STUB), COLL_ERR_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(coll_last_error(), "is the stub"));
    }
}
END_TEST

/*
 * The lists are expanded once more, with NVIDIA's types in the place of ours,
 * so each signature is compared with the real one.
 */
#define cu_result_t CUresult
#define cu_device_t CUdevice
#define cu_address_t CUdeviceptr
#define cu_uuid_t CUuuid
#define cu_device_attribute_t CUdevice_attribute
#define cu_pointer_attribute_t CUpointer_attribute
#define cu_capture_status_t CUstreamCaptureStatus
#define cu_context CUctx_st
#define cu_stream CUstream_st
#define cu_event CUevent_st
#define nccl_result_t ncclResult_t
#define nccl_dtype_t ncclDataType_t
#define nccl_op_t ncclRedOp_t
#define nccl_residence_t ncclScalarResidence_t
#define nccl_comm ncclComm
#define nccl_unique_id_t ncclUniqueId
#define nccl_config_t ncclConfig_t

#define CUDA_SIGNATURE(member, symbol, required, args)                         \
    _Static_assert(                                                            \
        __builtin_types_compatible_p(__typeof__(symbol), cu_result_t args),    \
        #symbol " has another signature");
COLL_CUDA_MAP(CUDA_SIGNATURE)

/* What is new in NCCL may be missing in its header. */
#define NCCL_SIGNATURE(member, symbol, required, result, args)                 \
    _Static_assert(                                                            \
        __builtin_types_compatible_p(__typeof__(symbol), result args),         \
        #symbol " has another signature");
#if NCCL_VERSION_CODE >= 22807
COLL_NCCL_MAP(NCCL_SIGNATURE)
#endif

#else

START_TEST(config_is_what_the_header_initialises)
{
    printf("skipped: " COLL_GPU_HEADERS_MISSING "\n");
}
END_TEST

#endif

int main(void)
{
    TCase *tcase = tcase_create("gpu_headers");

    tcase_add_test(tcase, config_is_what_the_header_initialises);
#ifdef COLL_GPU_HEADERS
    tcase_add_test(tcase, installed_libraries_have_all_functions);
#endif
    return unit_run("gpu_headers", tcase);
}
