/*
 * A test double, see nccl_fake.h: what a communicator is told beforehand, which
 * is reductions and memory.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/fake_nccl/nccl_fake.h"

#define DECLARE(member, symbol, required, args) cu_result_t symbol args;
COLL_CUDA_MAP(DECLARE)
#undef DECLARE

nccl_result_t ncclRedOpCreatePreMulSum(nccl_op_t *op, void *scalar,
    nccl_dtype_t dtype, nccl_residence_t residence, struct nccl_comm *comm)
{
    nccl_result_t rc = fake_comm_check_ready(comm);
    size_t size = fake_dtype_size(dtype);
    unsigned int i = 0;

    if (rc != COLL_NCCL_SUCCESS)
        return rc;
    if (size == 0 || residence > COLL_NCCL_SCALAR_HOST)
        return fake_error(comm, COLL_NCCL_INVALID_ARGUMENT,
            "a reduction of type %u, residence %u", dtype, residence);
    pthread_mutex_lock(&comm->lock);
    while (i < FAKE_OPS_MAX && comm->ops[i].is_used)
        i++;
    if (i < FAKE_OPS_MAX) {
        struct fake_op *made = &comm->ops[i];

        *made = (struct fake_op){.is_used = true,
            .dtype = dtype,
            .residence = residence,
            .at = scalar};
        if (residence == COLL_NCCL_SCALAR_HOST)
            memcpy(made->scalar, scalar, size);
        *op = COLL_NCCL_AVG + 1 + i;
    } else {
        rc = COLL_NCCL_SYSTEM_ERROR;
    }
    pthread_mutex_unlock(&comm->lock);
    return rc;
}

nccl_result_t ncclRedOpDestroy(nccl_op_t op, struct nccl_comm *comm)
{
    nccl_result_t rc = fake_comm_check(comm);
    uint32_t number = op - COLL_NCCL_AVG - 1;
    bool was_used = false;

    if (rc != COLL_NCCL_SUCCESS)
        return rc;
    pthread_mutex_lock(&comm->lock);
    if (op > COLL_NCCL_AVG && number < FAKE_OPS_MAX) {
        was_used = comm->ops[number].is_used;
        comm->ops[number].is_used = false;
    }
    pthread_mutex_unlock(&comm->lock);
    return was_used ? COLL_NCCL_SUCCESS
                    : fake_error(comm, COLL_NCCL_INVALID_ARGUMENT,
                          "ncclRedOpDestroy : operator unknown");
}

#if FAKE_NCCL_SYMBOLS >= 21900
struct registered {
    void *buffer;
    size_t bytes;
};

nccl_result_t ncclCommRegister(
    struct nccl_comm *const comm, void *buffer, size_t bytes, void **handle)
{
    nccl_result_t rc = fake_comm_check_ready(comm);
    struct registered *made;

    if (rc != COLL_NCCL_SUCCESS)
        return rc;
    made = malloc(sizeof(*made));
    if (made == NULL)
        return COLL_NCCL_SYSTEM_ERROR;
    *made = (struct registered){buffer, bytes};
    *handle = made;
    return COLL_NCCL_SUCCESS;
}

nccl_result_t ncclCommDeregister(struct nccl_comm *const comm, void *handle)
{
    nccl_result_t rc = fake_comm_check(comm);

    if (rc == COLL_NCCL_SUCCESS)
        free(handle);
    return rc;
}

nccl_result_t ncclMemAlloc(void **memory, size_t bytes)
{
    cu_address_t address;

    if (cuMemAlloc_v2(&address, bytes) != COLL_CUDA_SUCCESS)
        return fake_error(
            NULL, COLL_NCCL_UNHANDLED_CUDA_ERROR, "no memory on the device");
    *memory = (void *)(uintptr_t)address;
    return COLL_NCCL_SUCCESS;
}

nccl_result_t ncclMemFree(void *memory)
{
    return cuMemFree_v2((uintptr_t)memory) == COLL_CUDA_SUCCESS
               ? COLL_NCCL_SUCCESS
               : fake_error(NULL, COLL_NCCL_UNHANDLED_CUDA_ERROR,
                     "that is no memory of ncclMemAlloc()");
}
#endif
