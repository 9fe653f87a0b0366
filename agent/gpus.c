/*
 * See gpus.h. NVML is loaded when it is asked for, and its few types are
 * declared here: crun is built on machines without it.
 */
#include "agent/gpus.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define NVML_LIBRARY "libnvidia-ml.so.1"

#define NVML_SUCCESS 0
#define NVML_ERROR_NO_PERMISSION 4

struct nvml_pci_info {
    char bus_id_legacy[16];
    unsigned int domain;
    unsigned int bus;
    unsigned int device;
    unsigned int pci_device_id;
    unsigned int pci_subsystem_id;
    char bus_id[32];
};

typedef struct nvml_device *nvml_device_t;

struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*error_string)(int code);
    int (*count)(unsigned int *count);
    int (*by_index)(unsigned int index, nvml_device_t *device);
    int (*uuid)(nvml_device_t device, char *uuid, unsigned int size);
    int (*name)(nvml_device_t device, char *name, unsigned int size);
    int (*pci_info)(nvml_device_t device, struct nvml_pci_info *info);
    /* NULL in drivers that are older than MIG. */
    int (*mig_mode)(
        nvml_device_t device, unsigned int *current, unsigned int *pending);
};

static int nvml_fail(
    const struct nvml *n, struct err *e, const char *call, int code)
{
    return err_set(e, -ENODEV, NVML_LIBRARY ": %s: %s (error %d)", call,
        n->error_string(code), code);
}

static int nvml_open(struct nvml *n, struct err *e)
{
    struct {
        const char *name;
        void **function;
    } symbols[] = {
        {"nvmlInit_v2", (void **)&n->init},
        {"nvmlShutdown", (void **)&n->shutdown},
        {"nvmlErrorString", (void **)&n->error_string},
        {"nvmlDeviceGetCount_v2", (void **)&n->count},
        {"nvmlDeviceGetHandleByIndex_v2", (void **)&n->by_index},
        {"nvmlDeviceGetUUID", (void **)&n->uuid},
        {"nvmlDeviceGetName", (void **)&n->name},
        {"nvmlDeviceGetPciInfo_v3", (void **)&n->pci_info},
    };
    int code;

    n->library = dlopen(NVML_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (n->library == NULL)
        return err_set(e, -ENOENT, "%s", dlerror());
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        *symbols[i].function = dlsym(n->library, symbols[i].name);
        if (*symbols[i].function == NULL) {
            dlclose(n->library);
            return err_set(
                e, -ENOENT, NVML_LIBRARY " has no %s", symbols[i].name);
        }
    }
    *(void **)&n->mig_mode = dlsym(n->library, "nvmlDeviceGetMigMode");
    code = n->init();
    if (code != NVML_SUCCESS) {
        nvml_fail(n, e, "nvmlInit", code);
        dlclose(n->library);
        return -ENODEV;
    }
    return 0;
}

static void nvml_close(struct nvml *n)
{
    n->shutdown();
    dlclose(n->library);
}

static int read_gpu(
    const struct nvml *n, nvml_device_t device, struct gpu *gpu, struct err *e)
{
    struct nvml_pci_info pci;
    unsigned int mig = 0;
    unsigned int pending;
    int code = n->uuid(device, gpu->uuid, sizeof(gpu->uuid));

    if (code != NVML_SUCCESS)
        return nvml_fail(n, e, "nvmlDeviceGetUUID", code);
    code = n->name(device, gpu->model, sizeof(gpu->model));
    if (code != NVML_SUCCESS)
        return nvml_fail(n, e, "nvmlDeviceGetName", code);
    code = n->pci_info(device, &pci);
    if (code != NVML_SUCCESS)
        return nvml_fail(n, e, "nvmlDeviceGetPciInfo", code);
    /* A GPU is function 0, and NVML does not say so. */
    snprintf(gpu->bus, sizeof(gpu->bus), "%04x:%02x:%02x.0", pci.domain,
        pci.bus & 0xff, pci.device & 0xff);
    /* Most models know no MIG, which is an error of this call. */
    gpu->is_mig = n->mig_mode != NULL &&
                  n->mig_mode(device, &mig, &pending) == NVML_SUCCESS &&
                  mig != 0;
    return 0;
}

int gpus_list(struct gpu gpus[GPUS_MAX], struct err *e)
{
    struct nvml n = {0};
    unsigned int total = 0;
    int count = 0;
    int code;
    int rc = nvml_open(&n, e);

    if (rc < 0)
        return rc;
    code = n.count(&total);
    if (code != NVML_SUCCESS)
        rc = nvml_fail(&n, e, "nvmlDeviceGetCount", code);
    else if (total > GPUS_MAX)
        rc = err_set(e, -E2BIG, NVML_LIBRARY " shows %u GPUs, more than %d",
            total, GPUS_MAX);
    for (unsigned int i = 0; rc == 0 && i < total; i++) {
        nvml_device_t device;

        code = n.by_index(i, &device);
        /* It is there, but not for us (a cgroup of a scheduler): CUDA does
         * not even count it. */
        if (code == NVML_ERROR_NO_PERMISSION)
            continue;
        if (code != NVML_SUCCESS)
            rc = nvml_fail(&n, e, "nvmlDeviceGetHandleByIndex", code);
        else
            rc = read_gpu(&n, device, &gpus[count++], e);
    }
    nvml_close(&n);
    return rc < 0 ? rc : count;
}

/* --- CUDA_VISIBLE_DEVICES ------------------------------------------------- */

enum entry_kind { ENTRY_INDEX, ENTRY_GPU, ENTRY_MIG };

/* One entry of the list; text is not terminated. */
struct entry {
    enum entry_kind kind;
    const char *text;
    size_t len;
};

/* Reads the entry at *list and moves on to the next one. */
static struct entry next_entry(const char **list)
{
    struct entry entry = {.text = *list, .len = strcspn(*list, ",")};

    *list += entry.len + ((*list)[entry.len] == ',');
    for (; entry.len > 0 && isspace((unsigned char)*entry.text); entry.len--)
        entry.text++;
    while (entry.len > 0 && isspace((unsigned char)entry.text[entry.len - 1]))
        entry.len--;
    if (entry.len >= 4 && memcmp(entry.text, "GPU-", 4) == 0)
        entry.kind = ENTRY_GPU;
    else if (entry.len >= 4 && memcmp(entry.text, "MIG-", 4) == 0)
        entry.kind = ENTRY_MIG;
    else
        entry.kind = ENTRY_INDEX;
    return entry;
}

/* The GPU whose UUID begins with the entry, -1 if none does or several do. */
static int find_uuid(
    const struct gpu *gpus, int ngpus, const struct entry *entry)
{
    int found = -1;

    for (int i = 0; i < ngpus; i++) {
        if (strncmp(gpus[i].uuid, entry->text, entry->len) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

/* The driver reads the digits that the entry begins with, after a sign. */
static int find_index(int ngpus, const struct entry *entry)
{
    size_t at = entry->len > 0 && entry->text[0] == '+';
    size_t first = at;
    int index = 0;

    for (; at < entry->len && isdigit((unsigned char)entry->text[at]); at++) {
        index = index * 10 + (entry->text[at] - '0');
        if (index >= ngpus)
            return -1;
    }
    return at == first || index >= ngpus ? -1 : index;
}

static bool is_seen(const struct gpus_visible *v, int gpu)
{
    for (int i = 0; i < v->count; i++)
        if (v->gpu[i] == gpu)
            return true;
    return false;
}

/* PyTorch's reading of the driver: the same GPU twice means none at all, and
 * a list is either of indices or of UUIDs. */
static void apply_list(
    struct gpus_visible *v, const struct gpu *gpus, int ngpus, const char *list)
{
    enum entry_kind kind = ENTRY_INDEX;

    for (bool is_first = true; *list != '\0'; is_first = false) {
        struct entry entry = next_entry(&list);
        int gpu;

        if (is_first)
            kind = entry.kind;
        if (entry.kind != kind && entry.kind != ENTRY_INDEX) {
            v->is_certain = false;
            return;
        }
        if (entry.kind != kind || entry.kind == ENTRY_MIG)
            return;
        gpu = entry.kind == ENTRY_GPU ? find_uuid(gpus, ngpus, &entry)
                                      : find_index(ngpus, &entry);
        if (gpu < 0)
            return;
        if (is_seen(v, gpu)) {
            v->is_certain = false;
            v->count = 0;
            return;
        }
        v->gpu[v->count++] = gpu;
    }
}

static bool are_alike(const struct gpu *gpus, int ngpus)
{
    for (int i = 1; i < ngpus; i++)
        if (strcmp(gpus[i].model, gpus[0].model) != 0)
            return false;
    return true;
}

/* Where a MIG device can be seen no other device is. */
static void apply_mig(
    struct gpus_visible *v, const struct gpu *gpus, int ngpus, const char *list)
{
    bool is_chosen = list != NULL && next_entry(&list).kind == ENTRY_MIG;

    for (int i = 0; i < ngpus; i++) {
        if (!gpus[i].is_mig)
            continue;
        /* Which MIG devices there are, and what more the list may say of
         * them, differs between versions of the driver. */
        v->is_certain = false;
        if (is_chosen || is_seen(v, i)) {
            v->count = 1;
            v->gpu[0] = is_chosen ? -1 : i;
            return;
        }
    }
}

void gpus_visible(struct gpus_visible *out, const struct gpu *gpus, int ngpus,
    const char *list, bool is_bus_order)
{
    out->count = 0;
    out->is_certain = true;
    if (list != NULL)
        apply_list(out, gpus, ngpus, list);
    else
        while (out->count < ngpus) {
            out->gpu[out->count] = out->count;
            out->count++;
        }
    apply_mig(out, gpus, ngpus, list);
    /* CUDA's own order is the fastest model first. */
    if (!is_bus_order && !are_alike(gpus, ngpus))
        out->is_certain = false;
}
