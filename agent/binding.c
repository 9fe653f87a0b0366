/*
 * See binding.h. hwloc says what the machine is made of, sysfs at which NUMA
 * node a device is; binding_place.c has the rules. CPUs are all that is bound:
 * memory then comes from the node of the CPU that touches it first, which is
 * the kernel's default.
 */
#include "agent/binding.h"

#include <dlfcn.h>
#include <errno.h>
#include <hwloc.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/affinity.h"
#include "agent/binding_place.h"
#include "agent/devices.h"
#include "rendezvous/base/text.h"

/* Of version 2, whose structures hwloc.h declares. */
#define HWLOC_LIBRARY "libhwloc.so.15"

#define PCI_FOLDER "/sys/bus/pci/devices"

struct binding {
    int nproc;
    int share; /* so many workers use one device */
    cpu_set_t **cpus; /* of each worker */
    size_t size; /* of each set */
    int *nodes;
    struct devices devices;
};

static const struct {
    const char *name;
    enum binding_mode mode;
} modes[] = {
    {"node", BINDING_NODE},
    {"socket", BINDING_SOCKET},
    {"exclusive", BINDING_EXCLUSIVE},
    {"core-complex", BINDING_CORE_COMPLEX},
};

bool binding_mode_from_name(const char *name, enum binding_mode *out)
{
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (strcmp(name, modes[i].name) != 0)
            continue;
        *out = modes[i].mode;
        return true;
    }
    return false;
}

/* --- The machine ---------------------------------------------------------- */

struct hwloc {
    void *library;
    hwloc_topology_t topology;
    int (*init)(hwloc_topology_t *topology);
    int (*load)(hwloc_topology_t topology);
    void (*destroy)(hwloc_topology_t topology);
    int (*depth)(hwloc_topology_t topology, hwloc_obj_type_t type);
    unsigned (*count)(hwloc_topology_t topology, int depth);
    hwloc_obj_t (*object)(hwloc_topology_t topology, int depth, unsigned index);
    int (*first)(hwloc_const_bitmap_t bitmap);
};

static void hwloc_close(struct hwloc *h)
{
    if (h->topology != NULL)
        h->destroy(h->topology);
    if (h->library != NULL)
        dlclose(h->library);
}

static int hwloc_open(struct hwloc *h, struct err *e)
{
    struct {
        const char *name;
        void **function;
    } symbols[] = {
        {"hwloc_topology_init", (void **)&h->init},
        {"hwloc_topology_load", (void **)&h->load},
        {"hwloc_topology_destroy", (void **)&h->destroy},
        {"hwloc_get_type_depth", (void **)&h->depth},
        {"hwloc_get_nbobjs_by_depth", (void **)&h->count},
        {"hwloc_get_obj_by_depth", (void **)&h->object},
        {"hwloc_bitmap_first", (void **)&h->first},
    };

    h->library = dlopen(HWLOC_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (h->library == NULL)
        return err_set(e, -ENOENT,
            "--numa_binding needs hwloc, version 2: %s; on Debian and Ubuntu "
            "it is in the package libhwloc15",
            dlerror());
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        *symbols[i].function = dlsym(h->library, symbols[i].name);
        if (*symbols[i].function == NULL)
            return err_set(e, -ENOENT, "--numa_binding: %s has no %s",
                HWLOC_LIBRARY, symbols[i].name);
    }
    if (h->init(&h->topology) < 0) {
        h->topology = NULL;
        return err_set(e, -ENOMEM, "--numa_binding: hwloc: out of memory");
    }
    if (h->load(h->topology) < 0)
        return err_set(e, -EIO,
            "--numa_binding: hwloc cannot read what the machine is made of");
    return 0;
}

/* What a CPU belongs to: its ancestors, in a virtual machine not all of them.
 */
static struct binding_cpu describe(const struct hwloc *h, hwloc_obj_t pu)
{
    struct binding_cpu cpu = {
        .cpu = (int)pu->os_index,
        .core = -1 - (int)pu->logical_index, /* its own, and no other's */
        .cache = -1,
        .node = h->first(pu->nodeset),
        .package = -1,
    };

    for (hwloc_obj_t at = pu->parent; at != NULL; at = at->parent) {
        if (at->type == HWLOC_OBJ_CORE)
            cpu.core = (int)at->logical_index;
        else if (at->type == HWLOC_OBJ_PACKAGE)
            cpu.package = (int)at->logical_index;
        else if (at->type >= HWLOC_OBJ_L1CACHE && at->type <= HWLOC_OBJ_L5CACHE)
            cpu.cache = (int)at->logical_index; /* the outermost stays */
    }
    return cpu;
}

/* The CPUs of the machine that are in allowed; *cpus is the caller's. */
static int read_cpus(struct binding_cpu **cpus, int *ncpus,
    const cpu_set_t *allowed, size_t size, struct err *e)
{
    struct hwloc h = {0};
    int rc = hwloc_open(&h, e);
    unsigned total;
    int depth;

    if (rc < 0)
        goto out;
    depth = h.depth(h.topology, HWLOC_OBJ_PU);
    total = h.count(h.topology, depth);
    *cpus = calloc(total + 1, sizeof(**cpus));
    if (*cpus == NULL) {
        rc = err_set(e, -ENOMEM, "out of memory");
        goto out;
    }
    *ncpus = 0;
    for (unsigned i = 0; i < total; i++) {
        struct binding_cpu cpu = describe(&h, h.object(h.topology, depth, i));

        if (CPU_ISSET_S(cpu.cpu, size, allowed))
            (*cpus)[(*ncpus)++] = cpu;
    }
    if (*ncpus == 0)
        rc = err_set(e, -ENODEV,
            "--numa_binding: of the %u CPUs that hwloc shows crun may use none",
            total);
out:
    hwloc_close(&h);
    return rc;
}

/* --- Where the devices are ------------------------------------------------ */

int binding_device_node(const char *folder, const char *bus, int *node)
{
    char text[32] = "";
    int64_t number;
    char *path;
    FILE *f;
    int rc = 0;

    if (asprintf(&path, "%s/%s/numa_node", folder, bus) < 0)
        return -ENOMEM;
    f = fopen(path, "re");
    free(path);
    if (f == NULL)
        return -errno;
    if (fgets(text, sizeof(text), f) == NULL)
        rc = -EIO;
    fclose(f);
    text[strcspn(text, "\n")] = '\0';
    if (rc == 0 &&
        (text_to_i64(text, &number) < 0 || number < -1 || number > INT_MAX))
        rc = -EIO;
    if (rc == 0)
        *node = number < 0 ? 0 : (int)number;
    return rc;
}

static bool has_one_node(const struct binding_machine *m)
{
    for (int i = 1; i < m->ncpus; i++)
        if (m->cpus[i].node != m->cpus[0].node)
            return false;
    return true;
}

static int find_nodes(
    struct binding *b, const struct binding_machine *m, struct err *e)
{
    char shared[32] = "";

    if (b->devices.count == 0) {
        binding_spread(m, b->nproc, b->nodes);
        return 0;
    }
    if (b->share > 1)
        snprintf(shared, sizeof(shared), ", %d to a device", b->share);
    if ((b->nproc - 1) / b->share >= b->devices.count)
        return err_set(e, -ENODEV,
            "--numa_binding: there are %d workers%s, but %d device%s; with "
            "CUDA_VISIBLE_DEVICES empty workers are spread over the NUMA nodes",
            b->nproc, shared, b->devices.count,
            b->devices.count == 1 ? "" : "s");
    for (int i = 0; i < b->nproc; i++) {
        int device = i / b->share;
        const char *bus = b->devices.bus[device];
        int rc = bus[0] == '\0'
                     ? -ENODATA
                     : binding_device_node(PCI_FOLDER, bus, &b->nodes[i]);

        if (rc < 0 && has_one_node(m))
            b->nodes[i] = m->cpus[0].node;
        else if (rc < 0)
            return err_set(e, rc,
                "--numa_binding: cannot tell the NUMA node of GPU %d "
                "(" PCI_FOLDER "/%s/numa_node): %s",
                device, bus[0] == '\0' ? "?" : bus, strerror(-rc));
    }
    return 0;
}

/* --- Bindings ------------------------------------------------------------- */

static int take_memory(struct binding *b, size_t size)
{
    b->size = size;
    b->nodes = calloc((size_t)b->nproc, sizeof(*b->nodes));
    b->cpus = calloc((size_t)b->nproc, sizeof(cpu_set_t *));
    if (b->nodes == NULL || b->cpus == NULL)
        return -ENOMEM;
    for (int i = 0; i < b->nproc; i++) {
        b->cpus[i] = CPU_ALLOC(size * 8);
        if (b->cpus[i] == NULL)
            return -ENOMEM;
    }
    return 0;
}

/* Without a device workers are spread; but if the driver fails nobody can
 * tell where they belong. */
static int find_devices(struct binding *b, struct err *e)
{
    struct err why = {0};
    int rc = devices_find(&b->devices, &why);

    if (rc == 0 || rc == -ENODEV)
        return 0;
    return err_set(e, rc, "--numa_binding: %s", why.msg);
}

int binding_create(struct binding **out, enum binding_mode mode, int nproc,
    int share, struct err *e)
{
    struct binding *b = calloc(1, sizeof(*b));
    struct binding_cpu *cpus = NULL;
    struct binding_machine m = {0};
    cpu_set_t *allowed = NULL;
    size_t size = 0;
    int rc;

    if (b == NULL)
        return err_set(e, -ENOMEM, "out of memory");
    b->nproc = nproc;
    b->share = share;
    rc = affinity_get(&allowed, &size);
    if (rc < 0) {
        err_set(e, rc,
            "--numa_binding: cannot read which CPUs crun may use: "
            "%s",
            strerror(-rc));
        goto fail;
    }
    rc = take_memory(b, size);
    if (rc < 0) {
        err_set(e, rc, "out of memory");
        goto fail;
    }
    rc = read_cpus(&cpus, &m.ncpus, allowed, size, e);
    m.cpus = cpus;
    if (rc == 0)
        rc = find_devices(b, e);
    if (rc == 0)
        rc = find_nodes(b, &m, e);
    if (rc == 0)
        rc = binding_place(&m, mode, nproc, b->nodes, b->cpus, size, e);
    if (rc < 0)
        goto fail;
    free(cpus);
    CPU_FREE(allowed);
    *out = b;
    return 0;
fail:
    free(cpus);
    CPU_FREE(allowed);
    binding_destroy(b);
    return rc;
}

void binding_destroy(struct binding *b)
{
    if (b == NULL)
        return;
    for (int i = 0; b->cpus != NULL && i < b->nproc; i++)
        CPU_FREE(b->cpus[i]);
    free(b->cpus);
    free(b->nodes);
    free(b);
}

const cpu_set_t *binding_cpus(
    const struct binding *b, int local_rank, size_t *size)
{
    *size = b->size;
    return b->cpus[local_rank];
}

static int report_worker(FILE *f, const struct binding *b, int i)
{
    char *cpus = affinity_text(b->cpus[i], b->size);
    int device = i / b->share;

    if (cpus == NULL)
        return -ENOMEM;
    fprintf(f, "rank %d: CPUs %s (NUMA node %d", i, cpus, b->nodes[i]);
    free(cpus);
    if (device < b->devices.count)
        fprintf(f, ", GPU %d%s%s", device,
            b->devices.bus[device][0] != '\0' ? " at " : "",
            b->devices.bus[device]);
    fputs(")\n", f);
    return 0;
}

static int report_all(FILE *f)
{
    cpu_set_t *set;
    size_t size;
    char *cpus;
    int rc = affinity_get(&set, &size);

    if (rc < 0)
        return rc;
    cpus = affinity_text(set, size);
    CPU_FREE(set);
    if (cpus == NULL)
        return -ENOMEM;
    fprintf(f, "all ranks: CPUs %s (not bound)\n", cpus);
    free(cpus);
    return 0;
}

char *binding_report(const struct binding *b, int nproc)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    int rc = 0;

    if (f == NULL)
        return NULL;
    if (b == NULL)
        rc = report_all(f);
    for (int i = 0; b != NULL && i < nproc && rc == 0; i++)
        rc = report_worker(f, b, i);
    if (fclose(f) == 0 && rc == 0)
        return text;
    free(text);
    return NULL;
}
