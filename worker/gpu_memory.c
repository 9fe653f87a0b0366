/* Memory of a device: NCCL's own, and its registration. */
#include "gpu_internal.h"

#include <stdlib.h>

/* What coll_gpu_alloc() has returned. */
struct piece {
    struct piece *next;
    void *memory;
    bool is_nccl;
    struct cu_context *context;
};

static struct {
    pthread_mutex_t lock;
    struct piece *first;
} pieces = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A context that is current, and was before if there was one. */
static coll_status_t use_device(const struct cuda_api *cu, const char *function,
    struct cu_context **context, bool *is_new)
{
    cu_device_t handle;
    cu_result_t rc;
    int device;
    coll_status_t status;

    *context = NULL;
    *is_new = false;
    if (cu->context_get(context) == COLL_CUDA_SUCCESS && *context != NULL)
        return COLL_OK;
    status = gpu_choose_device(cu, function, &device);
    if (status != COLL_OK)
        return status;
    rc = cu->device_get(&handle, device);
    /* The process keeps it: memory outlives what allocates it. */
    if (rc == COLL_CUDA_SUCCESS)
        rc = cu->primary_context_retain(context, handle);
    if (rc == COLL_CUDA_SUCCESS)
        rc = cu->context_set(*context);
    *is_new = true;
    return rc == COLL_CUDA_SUCCESS
               ? COLL_OK
               : gpu_fail_cuda(cu, function, "cuDevicePrimaryCtxRetain", rc);
}

static coll_status_t allocate(
    const struct cuda_api *cu, struct piece *p, size_t bytes)
{
    const struct nccl_api *nccl;
    cu_address_t address;
    cu_result_t rc;

    if (nccl_api_get(&nccl) == COLL_OK && nccl->memory_alloc != NULL &&
        nccl->memory_alloc(&p->memory, bytes) == COLL_NCCL_SUCCESS) {
        p->is_nccl = true;
        return COLL_OK;
    }
    rc = cu->memory_alloc(&address, bytes);
    if (rc != COLL_CUDA_SUCCESS)
        return gpu_fail_cuda(cu, "coll_gpu_alloc", "cuMemAlloc", rc);
    p->memory = (void *)(uintptr_t)address;
    return COLL_OK;
}

coll_status_t coll_gpu_alloc(void **out, size_t bytes)
{
    struct piece *p;
    const struct cuda_api *cu;
    bool is_new = false;
    coll_status_t status;

    if (out == NULL)
        return coll_fail(COLL_ERR_ARGUMENT, "coll_gpu_alloc: out is NULL");
    status = gpu_driver(&cu, "coll_gpu_alloc");
    if (status != COLL_OK)
        return status;
    p = calloc(1, sizeof(*p));
    if (p == NULL)
        return coll_fail(COLL_ERR_MEMORY, "coll_gpu_alloc: out of memory");
    status = use_device(cu, "coll_gpu_alloc", &p->context, &is_new);
    if (status == COLL_OK)
        status = allocate(cu, p, bytes == 0 ? 1 : bytes);
    if (is_new)
        cu->context_set(NULL);
    if (status != COLL_OK) {
        free(p);
        return status;
    }
    *out = p->memory;
    pthread_mutex_lock(&pieces.lock);
    p->next = pieces.first;
    pieces.first = p;
    pthread_mutex_unlock(&pieces.lock);
    return COLL_OK;
}

static struct piece *take(const void *memory)
{
    struct piece **at;
    struct piece *p;

    pthread_mutex_lock(&pieces.lock);
    at = &pieces.first;
    while (*at != NULL && (*at)->memory != memory)
        at = &(*at)->next;
    p = *at;
    if (p != NULL)
        *at = p->next;
    pthread_mutex_unlock(&pieces.lock);
    return p;
}

coll_status_t coll_gpu_free(void *memory)
{
    const struct cuda_api *cu;
    const struct nccl_api *nccl;
    struct cu_context *before;
    struct piece *p;
    coll_status_t status = COLL_OK;
    cu_result_t rc = COLL_CUDA_SUCCESS;

    if (memory == NULL)
        return COLL_OK;
    p = take(memory);
    if (p == NULL)
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_gpu_free: %p is not what coll_gpu_alloc() returned", memory);
    status = gpu_driver(&cu, "coll_gpu_free");
    if (status == COLL_OK) {
        before = gpu_enter(cu, p->context);
        if (!p->is_nccl)
            rc = cu->memory_free((cu_address_t)(uintptr_t)memory);
        else if (nccl_api_get(&nccl) == COLL_OK &&
                 nccl->memory_free(memory) != COLL_NCCL_SUCCESS)
            rc = COLL_CUDA_INVALID_VALUE;
        gpu_leave(cu, p->context, before);
        if (rc != COLL_CUDA_SUCCESS)
            status = gpu_fail_cuda(cu, "coll_gpu_free",
                p->is_nccl ? "ncclMemFree" : "cuMemFree", rc);
    }
    free(p);
    return status;
}

/* --- Registration ----------------------------------------------------------
 */

static coll_status_t find(
    coll_group_t *group, const char *function, struct gpu **out)
{
    coll_status_t status = COLL_OK;
    struct coll_group *g = coll_group_get(group, function, &status);

    if (g == NULL)
        return status;
    status = coll_group_check(g);
    if (status != COLL_OK)
        return status;
    *out = gpu_of(g);
    if (*out == NULL)
        return coll_fail(COLL_ERR_STATE,
            "%s: the group has no communicator yet; call coll_gpu_connect()",
            function);
    if ((*out)->nccl->comm_register == NULL ||
        (*out)->nccl->comm_deregister == NULL) {
        char text[COLL_NCCL_VERSION_TEXT];

        return coll_fail(COLL_ERR_UNSUPPORTED,
            "%s: NCCL %s has no ncclCommRegister(); 2.19 has", function,
            nccl_version_text((*out)->nccl->version, text));
    }
    return COLL_OK;
}

static coll_status_t conclude(
    const struct gpu *gpu, const char *function, nccl_result_t result)
{
    if (result == COLL_NCCL_SUCCESS)
        return COLL_OK;
    return coll_fail(COLL_ERR_SYSTEM, "%s: NCCL says: %s", function,
        gpu->nccl->get_error_string(result));
}

coll_status_t coll_gpu_register(
    coll_group_t *group, void *buf, size_t bytes, void **handle)
{
    static const char function[] = "coll_gpu_register";
    struct cu_context *before;
    struct gpu *gpu;
    nccl_result_t result;
    coll_status_t status = find(group, function, &gpu);

    if (status != COLL_OK)
        return status;
    if (handle == NULL || gpu_device_of(buf) != gpu->device)
        return coll_fail(COLL_ERR_ARGUMENT,
            handle == NULL ? "%s: handle is NULL"
                           : "%s: buf is not on the communicator's GPU",
            function);
    gpu_hold(gpu);
    before = gpu_enter(gpu->cu, gpu->context);
    result = gpu->nccl->comm_register(gpu->comm, buf, bytes, handle);
    gpu_leave(gpu->cu, gpu->context, before);
    gpu_let_go(gpu);
    return conclude(gpu, function, result);
}

coll_status_t coll_gpu_deregister(coll_group_t *group, void *handle)
{
    static const char function[] = "coll_gpu_deregister";
    struct gpu *gpu;
    nccl_result_t result;
    coll_status_t status = find(group, function, &gpu);

    if (status != COLL_OK)
        return status;
    gpu_hold(gpu);
    result = gpu->nccl->comm_deregister(gpu->comm, handle);
    gpu_let_go(gpu);
    return conclude(gpu, function, result);
}
