/* A test double, see cuda_fake.h: the process, devices and contexts. */
#include "tests/fake_nccl/cuda_fake.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

pthread_mutex_t fake_cuda_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_cuda_changed = PTHREAD_COND_INITIALIZER;

static _Atomic pid_t owner; /* who has called cuInit() */
static int visible[FAKE_CUDA_DEVICES_MAX]; /* ordinal to machine's number */
static int nvisible;
struct cu_context fake_cuda_contexts[FAKE_CUDA_DEVICES_MAX];

#define STACK_DEPTH 16
static THREAD_LOCAL struct cu_context *stack[STACK_DEPTH];
static THREAD_LOCAL int depth;

static int setting(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text != NULL ? (int)strtol(text, NULL, 10) : otherwise;
}

static cu_result_t scripted(const char *function)
{
    static _Atomic unsigned int calls[16]; /* of each entry's function */
    const char *at = getenv("FAKE_CUDA_FAIL");
    size_t len = strlen(function);

    for (int i = 0; at != NULL && i < 16; i++) {
        unsigned int nth, error;

        if (strncmp(at, function, len) == 0 &&
            sscanf(at + len, ":%u:%u", &nth, &error) == 2) {
            unsigned int call = atomic_fetch_add(&calls[i], 1) + 1;

            if (nth == 0 || nth == call)
                return error;
        }
        at = strchr(at, ',');
        if (at != NULL)
            at++;
    }
    return COLL_CUDA_SUCCESS;
}

cu_result_t fake_cuda_enter(const char *function)
{
    if (atomic_load(&owner) != getpid())
        return COLL_CUDA_NOT_INITIALIZED;
    return scripted(function);
}

cu_result_t fake_cuda_enter_context(
    const char *function, struct cu_context **out)
{
    cu_result_t rc = fake_cuda_enter(function);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    if (depth == 0)
        return COLL_CUDA_INVALID_CONTEXT;
    pthread_mutex_lock(&fake_cuda_lock);
    if (stack[depth - 1]->refs == 0)
        rc = COLL_CUDA_CONTEXT_IS_DESTROYED;
    pthread_mutex_unlock(&fake_cuda_lock);
    *out = stack[depth - 1];
    return rc;
}

static void uuid_of(int number, cu_uuid_t *uuid)
{
    static const char base[16] = "a fake GPU: \0\0\0";

    memcpy(uuid->bytes, base, sizeof(base));
    uuid->bytes[15] = (char)(number + 1);
}

/* As nvidia-smi prints it. */
static void uuid_text(int number, char out[64])
{
    cu_uuid_t uuid;
    size_t len = 4;

    uuid_of(number, &uuid);
    memcpy(out, "GPU-", 5);
    for (int i = 0; i < 16; i++)
        len += (size_t)snprintf(out + len, 64 - len, "%s%02x",
            i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
            (unsigned char)uuid.bytes[i]);
}

/* The machine's number of what the list names first, or -1. */
static int named(const char *text, int count)
{
    size_t len = strcspn(text, ",");
    char uuid[64], *end;
    long number = strtol(text, &end, 10);

    if (end != text && (*end == '\0' || *end == ','))
        return number >= 0 && number < count ? (int)number : -1;
    for (int i = 0; len > 4 && i < count; i++) {
        uuid_text(i, uuid);
        if (strncasecmp(text, uuid, len) == 0)
            return i;
    }
    return -1;
}

/* What follows a device that is not there, or is named twice, is not seen. */
static void find_visible(int count)
{
    const char *at = getenv("CUDA_VISIBLE_DEVICES");

    nvisible = 0;
    if (at == NULL) {
        while (nvisible < count) {
            visible[nvisible] = nvisible;
            nvisible++;
        }
        return;
    }
    while (at != NULL && nvisible < count) {
        int number = named(at, count);

        for (int i = 0; i < nvisible; i++)
            if (visible[i] == number)
                number = -1;
        if (number < 0)
            return;
        visible[nvisible++] = number;
        at = strchr(at, ',');
        if (at != NULL)
            at++;
    }
}

cu_result_t cuInit(unsigned int flags)
{
    int count = setting("FAKE_CUDA_DEVICES", 2);
    cu_result_t rc = scripted(__func__);
    pid_t nobody = 0;

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    if (flags != 0 || count > FAKE_CUDA_DEVICES_MAX)
        return COLL_CUDA_INVALID_VALUE;
    pthread_mutex_lock(&fake_cuda_lock);
    if (atomic_load(&owner) == 0) {
        find_visible(count);
        for (int i = 0; i < nvisible; i++)
            fake_cuda_contexts[i].device = i;
    }
    if (nvisible == 0)
        rc = COLL_CUDA_NO_DEVICE;
    else if (!atomic_compare_exchange_strong(&owner, &nobody, getpid()) &&
             nobody != getpid())
        rc = COLL_CUDA_NOT_INITIALIZED;
    pthread_mutex_unlock(&fake_cuda_lock);
    return rc;
}

cu_result_t cuDriverGetVersion(int *version)
{
    cu_result_t rc = scripted(__func__);

    if (rc == COLL_CUDA_SUCCESS)
        *version = setting("FAKE_CUDA_VERSION", 13000);
    return rc;
}

static const struct {
    cu_result_t error;
    const char *name;
} names[] = {
#define NAME(ours, value, theirs) {ours, #theirs},
    COLL_CUDA_RESULT_MAP(NAME)
#undef NAME
};

cu_result_t cuGetErrorName(cu_result_t error, const char **text)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i].error == error) {
            *text = names[i].name;
            return COLL_CUDA_SUCCESS;
        }
    }
    *text = NULL;
    return COLL_CUDA_INVALID_VALUE;
}

cu_result_t cuGetErrorString(cu_result_t error, const char **text)
{
    cu_result_t rc = cuGetErrorName(error, text);

    if (rc == COLL_CUDA_SUCCESS)
        *text = "what the test double says of it";
    return rc;
}

cu_result_t cuDeviceGetCount(int *count)
{
    cu_result_t rc = fake_cuda_enter(__func__);

    if (rc == COLL_CUDA_SUCCESS)
        *count = nvisible;
    return rc;
}

static cu_result_t enter_device(const char *function, int device)
{
    cu_result_t rc = fake_cuda_enter(function);

    if (rc == COLL_CUDA_SUCCESS && (device < 0 || device >= nvisible))
        rc = COLL_CUDA_INVALID_DEVICE;
    return rc;
}

cu_result_t cuDeviceGet(cu_device_t *device, int ordinal)
{
    cu_result_t rc = enter_device(__func__, ordinal);

    if (rc == COLL_CUDA_SUCCESS)
        *device = ordinal;
    return rc;
}

cu_result_t cuDeviceGetName(char *name, int size, cu_device_t device)
{
    cu_result_t rc = enter_device(__func__, device);

    if (rc == COLL_CUDA_SUCCESS)
        snprintf(name, (size_t)size, "Fake GPU %d", visible[device]);
    return rc;
}

cu_result_t cuDeviceGetUuid_v2(cu_uuid_t *uuid, cu_device_t device)
{
    cu_result_t rc = enter_device(__func__, device);

    if (rc == COLL_CUDA_SUCCESS)
        uuid_of(visible[device], uuid);
    return rc;
}

cu_result_t cuDeviceGetPCIBusId(char *text, int size, cu_device_t device)
{
    cu_result_t rc = enter_device(__func__, device);

    if (rc == COLL_CUDA_SUCCESS)
        snprintf(text, (size_t)size, "0000:%02X:00.0", 0x10 + visible[device]);
    return rc;
}

cu_result_t cuDeviceGetAttribute(
    int *value, cu_device_attribute_t attribute, cu_device_t device)
{
    cu_result_t rc = enter_device(__func__, device);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    switch (attribute) {
    case COLL_CUDA_SM_COUNT:
        *value = 132;
        return COLL_CUDA_SUCCESS;
    case COLL_CUDA_COMPUTE_MODE:
    case COLL_CUDA_CAPABILITY_MINOR:
        *value = 0;
        return COLL_CUDA_SUCCESS;
    case COLL_CUDA_CAPABILITY_MAJOR:
        *value = 9;
        return COLL_CUDA_SUCCESS;
    default:
        return COLL_CUDA_INVALID_VALUE;
    }
}

cu_result_t cuDevicePrimaryCtxRetain(
    struct cu_context **context, cu_device_t device)
{
    cu_result_t rc = enter_device(__func__, device);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    pthread_mutex_lock(&fake_cuda_lock);
    fake_cuda_contexts[device].refs++;
    pthread_mutex_unlock(&fake_cuda_lock);
    *context = &fake_cuda_contexts[device];
    return COLL_CUDA_SUCCESS;
}

cu_result_t cuDevicePrimaryCtxRelease_v2(cu_device_t device)
{
    cu_result_t rc = enter_device(__func__, device);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    pthread_mutex_lock(&fake_cuda_lock);
    if (fake_cuda_contexts[device].refs == 0)
        rc = COLL_CUDA_INVALID_CONTEXT;
    else
        fake_cuda_contexts[device].refs--;
    pthread_mutex_unlock(&fake_cuda_lock);
    return rc;
}

static bool is_context(const struct cu_context *context)
{
    return context >= fake_cuda_contexts &&
           context < fake_cuda_contexts + nvisible;
}

cu_result_t cuCtxGetCurrent(struct cu_context **context)
{
    cu_result_t rc = fake_cuda_enter(__func__);

    if (rc == COLL_CUDA_SUCCESS)
        *context = depth > 0 ? stack[depth - 1] : NULL;
    return rc;
}

cu_result_t cuCtxPushCurrent_v2(struct cu_context *context)
{
    cu_result_t rc = fake_cuda_enter(__func__);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    if (!is_context(context))
        return COLL_CUDA_INVALID_CONTEXT;
    if (depth == STACK_DEPTH)
        return COLL_CUDA_OUT_OF_MEMORY;
    stack[depth++] = context;
    return COLL_CUDA_SUCCESS;
}

cu_result_t cuCtxPopCurrent_v2(struct cu_context **context)
{
    cu_result_t rc = fake_cuda_enter(__func__);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    if (depth == 0)
        return COLL_CUDA_INVALID_CONTEXT;
    depth--;
    if (context != NULL)
        *context = stack[depth];
    return COLL_CUDA_SUCCESS;
}

/* What is on top is replaced; NULL takes it away. */
cu_result_t cuCtxSetCurrent(struct cu_context *context)
{
    cu_result_t rc = fake_cuda_enter(__func__);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    if (context != NULL && !is_context(context))
        return COLL_CUDA_INVALID_CONTEXT;
    if (depth > 0)
        depth--;
    if (context != NULL)
        stack[depth++] = context;
    return COLL_CUDA_SUCCESS;
}

cu_result_t cuCtxGetDevice(cu_device_t *device)
{
    struct cu_context *context;
    cu_result_t rc = fake_cuda_enter_context(__func__, &context);

    if (rc == COLL_CUDA_SUCCESS)
        *device = context->device;
    return rc;
}

cu_result_t cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    struct cu_context *context;
    cu_result_t rc = fake_cuda_enter_context(__func__, &context);

    if (rc == COLL_CUDA_SUCCESS) {
        *least = 0;
        *greatest = -5;
    }
    return rc;
}
