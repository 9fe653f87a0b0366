/*
 * A test double of NVML. FAKE_NVML_GPUS has a word for each GPU, and its
 * letters tell what is odd about it: "-" nothing, "m" MIG mode, "x" no
 * permission to use it, "l" it is lost, "o" another model. UUIDs are
 * GPU-<i><i>... for the GPU of index i, PCI addresses those from FAKE_NVML_BUS
 * on. FAKE_NVML_INIT is the error code of initialising.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NVML_SUCCESS 0
#define NVML_ERROR_INVALID_ARGUMENT 2
#define NVML_ERROR_NOT_SUPPORTED 3
#define NVML_ERROR_NO_PERMISSION 4
#define NVML_ERROR_GPU_IS_LOST 15
#define NVML_ERROR_LIB_RM_VERSION_MISMATCH 18

#define GPUS_MAX 16

struct device {
    unsigned int index;
    char word[8];
};

struct pci_info {
    char bus_id_legacy[16];
    unsigned int domain;
    unsigned int bus;
    unsigned int device;
    unsigned int pci_device_id;
    unsigned int pci_subsystem_id;
    char bus_id[32];
};

int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int code);
int nvmlDeviceGetCount_v2(unsigned int *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct device **device);
int nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned int size);
int nvmlDeviceGetName(struct device *device, char *name, unsigned int size);
int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *info);
int nvmlDeviceGetMigMode(
    struct device *device, unsigned int *current, unsigned int *pending);

static struct device devices[GPUS_MAX];
static unsigned int ndevices;

int nvmlInit_v2(void)
{
    const char *words = getenv("FAKE_NVML_GPUS");
    const char *code = getenv("FAKE_NVML_INIT");
    int used = 0;

    if (code != NULL)
        return (int)strtol(code, NULL, 10);
    for (ndevices = 0;
         words != NULL && ndevices < GPUS_MAX &&
         sscanf(words, "%7s%n", devices[ndevices].word, &used) == 1;
         words += used) {
        devices[ndevices].index = ndevices;
        ndevices++;
    }
    return NVML_SUCCESS;
}

int nvmlShutdown(void)
{
    return NVML_SUCCESS;
}

const char *nvmlErrorString(int code)
{
    return code == NVML_ERROR_LIB_RM_VERSION_MISMATCH
               ? "Driver/library version mismatch"
               : "Some error";
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = ndevices;
    return NVML_SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct device **device)
{
    if (index >= ndevices)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strchr(devices[index].word, 'x') != NULL)
        return NVML_ERROR_NO_PERMISSION;
    if (strchr(devices[index].word, 'l') != NULL)
        return NVML_ERROR_GPU_IS_LOST;
    *device = &devices[index];
    return NVML_SUCCESS;
}

int nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned int size)
{
    unsigned int digit = 0x11111111u * device->index;

    snprintf(uuid, size, "GPU-%08x-%04x-%04x-%04x-%08x%04x", digit,
        digit & 0xffff, digit & 0xffff, digit & 0xffff, digit, digit & 0xffff);
    return NVML_SUCCESS;
}

int nvmlDeviceGetName(struct device *device, char *name, unsigned int size)
{
    snprintf(name, size, "%s",
        strchr(device->word, 'o') != NULL ? "Other" : "Fake H100");
    return NVML_SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *info)
{
    const char *first = getenv("FAKE_NVML_BUS");

    memset(info, 0, sizeof(*info));
    info->bus = 0x1b;
    if (first != NULL && sscanf(first, "%x:%x:%x", &info->domain, &info->bus,
                             &info->device) != 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    info->bus += device->index;
    return NVML_SUCCESS;
}

int nvmlDeviceGetMigMode(
    struct device *device, unsigned int *current, unsigned int *pending)
{
    if (strchr(device->word, 'o') != NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = strchr(device->word, 'm') != NULL;
    return NVML_SUCCESS;
}
