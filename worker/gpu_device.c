/*
 * Devices: whether there may be any, which one is this rank's, and whether a
 * buffer lies on one.
 *
 * A pointer says by itself where it points to only to the driver. That has to
 * be loaded for it, which a program on a machine without GPUs need not pay for,
 * and not initialised: memory of a device is made after that only, and until
 * then the driver's answer is quick.
 */
#include "gpu_internal.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rendezvous/base/text.h"
#include "rendezvous/worker_env.h"

#define ENV_SHARE "COLL_SHARE_GPU"

/* The driver, once there may be memory of a device. */
static const struct cuda_api *_Atomic driver;

void gpu_look(void)
{
    static const char *const signs[] = {
        "/dev/nvidiactl", "/dev/nvhost-ctrl", "/dev/dxg"};
    const struct cuda_api *cu;
    void *loaded = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    bool may_be = loaded != NULL;

    if (loaded != NULL)
        dlclose(loaded);
    for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++)
        may_be |= access(signs[i], F_OK) == 0;
    if (may_be && cuda_api_get(&cu) == COLL_OK)
        atomic_store(&driver, cu);
}

bool gpu_is_possible(void)
{
    return atomic_load_explicit(&driver, memory_order_relaxed) != NULL;
}

int gpu_device_of(const void *buf)
{
    const struct cuda_api *cu =
        atomic_load_explicit(&driver, memory_order_acquire);
    unsigned int type = 0;
    int ordinal = GPU_HOST;
    cu_pointer_attribute_t what[] = {
        COLL_CUDA_POINTER_MEMORY_TYPE, COLL_CUDA_POINTER_ORDINAL};
    void *values[] = {&type, &ordinal};

    if (cu == NULL || buf == NULL)
        return GPU_HOST;
    if (cu->pointer_get_attributes(2, what, values,
            (cu_address_t)(uintptr_t)buf) != COLL_CUDA_SUCCESS ||
        type != COLL_CUDA_MEMORY_DEVICE)
        return GPU_HOST;
    return ordinal;
}

coll_status_t gpu_fail_cuda(const struct cuda_api *cu, const char *function,
    const char *what, cu_result_t error)
{
    char text[128];

    return coll_fail(
        error == COLL_CUDA_OUT_OF_MEMORY ? COLL_ERR_MEMORY : COLL_ERR_SYSTEM,
        "%s: %s: %s", function, what,
        cuda_api_error(cu, error, text, sizeof(text)));
}

coll_status_t gpu_driver(const struct cuda_api **out, const char *function)
{
    coll_status_t status = cuda_api_get(out);
    cu_result_t rc;

    if (status != COLL_OK)
        return status;
    rc = (*out)->init(0);
    if (rc != COLL_CUDA_SUCCESS) {
        char text[128];

        return coll_fail(COLL_ERR_ENVIRONMENT, "%s: cuInit: %s%s", function,
            cuda_api_error(*out, rc, text, sizeof(text)),
            rc == COLL_CUDA_NO_DEVICE
                ? "; CUDA_VISIBLE_DEVICES may hide all devices"
            : rc == COLL_CUDA_NOT_INITIALIZED
                ? "; a process that was forked off by one that uses CUDA "
                  "cannot use it"
                : "");
    }
    atomic_store(&driver, *out);
    return COLL_OK;
}

static int env_number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    int64_t value;

    return text != NULL && text_to_i64(text, &value) == 0 && value >= 0 &&
                   value <= 1000000
               ? (int)value
               : otherwise;
}

int gpu_share(void)
{
    int n = env_number(ENV_SHARE, 1);

    return n > 0 ? n : 1;
}

/* A rank without LOCAL_RANK is alone, as far as one can know. */
static coll_status_t device_of_rank(
    const struct cuda_api *cu, const char *function, int *device)
{
    int local = coll_local_rank();
    int count = 0;
    cu_result_t rc = cu->device_get_count(&count);

    if (rc != COLL_CUDA_SUCCESS)
        return gpu_fail_cuda(cu, function, "cuDeviceGetCount", rc);
    if (count < 1)
        return coll_fail(COLL_ERR_ENVIRONMENT,
            "%s: CUDA shows this process no device; look at "
            "CUDA_VISIBLE_DEVICES",
            function);
    if (local < 0)
        local = env_number(ENV_LOCAL_RANK, env_number(ENV_RANK, 0));
    *device = local / gpu_share() % count;
    return COLL_OK;
}

coll_status_t gpu_choose_device(
    const struct cuda_api *cu, const char *function, int *device)
{
    struct cu_context *current = NULL;

    if (cu->context_get(&current) == COLL_CUDA_SUCCESS && current != NULL &&
        cu->context_get_device(device) == COLL_CUDA_SUCCESS)
        return COLL_OK;
    return device_of_rank(cu, function, device);
}

int coll_gpu_device(void)
{
    const struct cuda_api *cu;
    int device = -1;
    coll_status_t status = gpu_driver(&cu, "coll_gpu_device");

    if (status == COLL_OK)
        status = device_of_rank(cu, "coll_gpu_device", &device);
    return status == COLL_OK ? device : -1;
}

struct cu_context *gpu_enter(
    const struct cuda_api *cu, struct cu_context *context)
{
    struct cu_context *before = NULL;

    cu->context_get(&before);
    if (before != context)
        cu->context_set(context);
    return before;
}

void gpu_leave(const struct cuda_api *cu, struct cu_context *entered,
    struct cu_context *before)
{
    if (before != entered)
        cu->context_set(before);
}
