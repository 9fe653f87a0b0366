/*
 * A test double of the CUDA driver: what crun and libcollective ask it for.
 * FAKE_CUDA_DEVICES is the number of devices, or "abort". FAKE_CUDA_BUS is the
 * PCI address of the first device; the others follow on the next buses.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CUDA_SUCCESS 0
#define CUDA_ERROR_NOT_INITIALIZED 3
#define CUDA_ERROR_NO_DEVICE 100
#define CUDA_ERROR_INVALID_DEVICE 101

int cuInit(unsigned flags);
int cuDeviceGetCount(int *count);
int cuDeviceGet(int *device, int ordinal);
int cuDeviceGetPCIBusId(char *text, int size, int device);

static int is_initialized;

static const char *setting(void)
{
    const char *text = getenv("FAKE_CUDA_DEVICES");

    return text != NULL ? text : "0";
}

int cuInit(unsigned flags)
{
    (void)flags;
    if (strcmp(setting(), "abort") == 0)
        abort();
    if (strcmp(setting(), "0") == 0)
        return CUDA_ERROR_NO_DEVICE;
    is_initialized = 1;
    return CUDA_SUCCESS;
}

int cuDeviceGetCount(int *count)
{
    if (!is_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    *count = (int)strtol(setting(), NULL, 10);
    return CUDA_SUCCESS;
}

/* Handles are no ordinals. */
int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal + 1000;
    return CUDA_SUCCESS;
}

int cuDeviceGetPCIBusId(char *text, int size, int device)
{
    const char *first = getenv("FAKE_CUDA_BUS");
    unsigned int domain, bus, slot;

    if (first == NULL || sscanf(first, "%x:%x:%x", &domain, &bus, &slot) != 3 ||
        device < 1000)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(text, (size_t)size, "%04X:%02X:%02X.0", domain,
        bus + (unsigned int)device - 1000, slot);
    return CUDA_SUCCESS;
}
