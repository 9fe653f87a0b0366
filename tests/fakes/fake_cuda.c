/*
 * A test double of the CUDA driver: the two functions that crun asks for the
 * number of devices. FAKE_CUDA_DEVICES is that number, or "abort".
 */
#include <stdlib.h>
#include <string.h>

#define CUDA_SUCCESS 0
#define CUDA_ERROR_NO_DEVICE 100

int cuInit(unsigned flags);
int cuDeviceGetCount(int *count);

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
    return strcmp(setting(), "0") == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

int cuDeviceGetCount(int *count)
{
    *count = (int)strtol(setting(), NULL, 10);
    return CUDA_SUCCESS;
}
