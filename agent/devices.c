/*
 * See devices.h. Drivers are asked in a child process: they take memory and
 * threads that the agent must not keep, may crash, and may never answer.
 */
#include "agent/devices.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/affinity.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/log.h"
#include "rendezvous/base/text.h"
#include "rendezvous/worker_env.h"

#define DRIVER_TIMEOUT_MS 60000

/* What the child has to say, in one write that a pipe takes as a whole. */
struct answer {
    int rc; /* 0 or a negative errno */
    char why[sizeof(((struct err *)0)->msg)];
    struct devices devices;
};
_Static_assert(sizeof(struct answer) < 16384, "more than a pipe surely holds");

/* --- In the child --------------------------------------------------------- */

/* CUDA's error and ROCm's. */
#define NO_DEVICE 100

/* Both have the same functions, under names of their own. */
struct driver {
    const char *name;
    const char *variable; /* the list that it heeds */
    const char *libraries[5]; /* the first one found is taken */
    const char *init;
    const char *count;
    const char *get;
    const char *bus;
};

static const struct driver cuda = {"CUDA", ENV_CUDA_VISIBLE_DEVICES,
    {"libcuda.so.1"}, "cuInit", "cuDeviceGetCount", "cuDeviceGet",
    "cuDeviceGetPCIBusId"};
static const struct driver rocm = {"ROCm", "HIP_VISIBLE_DEVICES",
    {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6",
        "libamdhip64.so.5"},
    "hipInit", "hipGetDeviceCount", "hipDeviceGet", "hipDeviceGetPCIBusId"};

/* Reasons are collected: all that was tried failed. */
__attribute__((format(printf, 2, 3))) static void add_reason(
    struct answer *a, const char *fmt, ...)
{
    size_t len = strlen(a->why);
    va_list args;

    if (len > 0 && len + 2 < sizeof(a->why)) {
        memcpy(a->why + len, "; ", 3);
        len += 2;
    }
    va_start(args, fmt);
    vsnprintf(a->why + len, sizeof(a->why) - len, fmt, args);
    va_end(args);
}

/* PCI addresses are asked for if the driver is able to tell: they come in
 * capital letters, which those in /sys are not. */
static void find_buses(
    const struct driver *driver, void *library, struct devices *devices)
{
    int (*get)(int *, int) = (int (*)(int *, int))dlsym(library, driver->get);
    int (*bus)(char *, int, int) =
        (int (*)(char *, int, int))dlsym(library, driver->bus);

    for (int i = 0; i < devices->count && get != NULL && bus != NULL; i++) {
        char *text = devices->bus[i];
        int device;

        if (get(&device, i) != 0 || bus(text, GPU_BUS_SIZE, device) != 0)
            text[0] = '\0';
        for (; *text != '\0'; text++)
            if (*text >= 'A' && *text <= 'F')
                *text += 'a' - 'A';
    }
}

/* 0, -ENOENT if there is no such driver, -ENODEV if it shows no device, -EIO if
 * it fails. */
static int ask_driver(const struct driver *driver, struct answer *a)
{
    const char *list = getenv(driver->variable);
    void *library = NULL;
    int (*init)(unsigned);
    int (*get_count)(int *);
    int count = 0;
    int rc;

    for (int i = 0; library == NULL && driver->libraries[i] != NULL; i++) {
        library = dlopen(driver->libraries[i], RTLD_NOW | RTLD_LOCAL);
        if (library == NULL && i == 0)
            add_reason(a, "no %s driver: %s", driver->name, dlerror());
    }
    if (library == NULL)
        return -ENOENT;
    init = (int (*)(unsigned))dlsym(library, driver->init);
    get_count = (int (*)(int *))dlsym(library, driver->count);
    if (init == NULL || get_count == NULL) {
        add_reason(a, "the %s driver has no %s", driver->name,
            init == NULL ? driver->init : driver->count);
        return -ENOENT;
    }
    rc = init(0);
    if (rc == 0)
        rc = get_count(&count);
    if (rc != 0 || count <= 0) {
        add_reason(a, "the %s driver %s (error %d, %s=%.80s)", driver->name,
            rc == 0 || rc == NO_DEVICE ? "shows no device" : "fails", rc,
            driver->variable, list != NULL ? list : "unset");
        return rc == 0 || rc == NO_DEVICE ? -ENODEV : -EIO;
    }
    if (count > GPUS_MAX) {
        add_reason(a, "the %s driver shows %d devices, more than %d",
            driver->name, count, GPUS_MAX);
        return -E2BIG;
    }
    a->devices.count = count;
    find_buses(driver, library, &a->devices);
    return 0;
}

/* As NVML sees it: 0, or a negative errno, of which -EAGAIN means that a->
 * devices is only likely and the driver should be asked. */
static int ask_nvml(struct answer *a)
{
    static struct gpu gpus[GPUS_MAX];
    const char *list = getenv(ENV_CUDA_VISIBLE_DEVICES);
    const char *order = getenv("CUDA_DEVICE_ORDER");
    struct gpus_visible visible;
    struct err why = {0};
    int ngpus = gpus_list(gpus, &why);

    if (ngpus <= 0) {
        add_reason(a, "%s", ngpus < 0 ? why.msg : "NVML shows no GPU");
        return -ENOENT;
    }
    gpus_visible(&visible, gpus, ngpus, list,
        order != NULL && strcmp(order, "PCI_BUS_ID") == 0);
    a->devices.count = visible.count;
    for (int i = 0; i < visible.count; i++)
        if (visible.gpu[i] >= 0)
            memcpy(a->devices.bus[i], gpus[visible.gpu[i]].bus, GPU_BUS_SIZE);
    if (visible.count == 0)
        add_reason(a, "NVML shows %d GPU%s, of which %s=%.80s leaves none",
            ngpus, ngpus == 1 ? "" : "s", ENV_CUDA_VISIBLE_DEVICES,
            list != NULL ? list : "unset");
    if (!visible.is_certain)
        return -EAGAIN;
    return visible.count > 0 ? 0 : -ENODEV;
}

static int ask(struct answer *a)
{
    struct devices likely;
    int rc = ask_nvml(a);

    if (rc == 0 || rc == -ENODEV)
        return rc;
    likely = a->devices;
    memset(&a->devices, 0, sizeof(a->devices));
    rc = ask_driver(&cuda, a);
    if (rc == -ENOENT && likely.count > 0) {
        a->devices = likely;
        return 0;
    }
    if (rc == -ENOENT || rc == -ENODEV)
        rc = ask_driver(&rocm, a);
    return rc == -ENOENT ? -ENODEV : rc;
}

/* --- In the agent --------------------------------------------------------- */

static int read_answer(int fd, struct answer *a)
{
    uint64_t deadline = clock_deadline_ns(DRIVER_TIMEOUT_MS);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    size_t have = 0;

    while (have < sizeof(*a)) {
        ssize_t n;
        int ready = poll(&p, 1, clock_left_ms(deadline));

        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return ready == 0 ? -ETIMEDOUT : -errno;
        n = read(fd, (char *)a + have, sizeof(*a) - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n == 0 ? -EPIPE : -errno;
        have += (size_t)n;
    }
    return 0;
}

static void run_child(int fd, pid_t parent)
{
    struct answer a = {0};

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    a.rc = ask(&a);
    _exit(write(fd, &a, sizeof(a)) == (ssize_t)sizeof(a) ? 0 : 1);
}

int devices_find(struct devices *out, struct err *e)
{
    struct answer a = {0};
    pid_t parent = getpid();
    int fds[2];
    pid_t pid;
    int rc;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_set(e, -errno, "pipe: %s", strerror(errno));
    pid = fork();
    if (pid < 0) {
        rc = -errno;
        close(fds[0]);
        close(fds[1]);
        return err_set(e, rc, "fork: %s", strerror(-rc));
    }
    if (pid == 0)
        run_child(fds[1], parent);
    close(fds[1]);
    rc = read_answer(fds[0], &a);
    close(fds[0]);
    kill(pid, SIGKILL); /* it has answered, or never will */
    if (rc != -ETIMEDOUT) /* else it may be stuck in the kernel */
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    if (rc == -ETIMEDOUT)
        return err_set(e, rc, "the GPU driver did not answer within %d s",
            DRIVER_TIMEOUT_MS / 1000);
    if (rc < 0)
        return err_set(e, rc,
            "asking the GPU driver failed: it ended the process that asked");
    if (a.rc < 0)
        return err_set(e, a.rc, "%s", a.why);
    *out = a.devices;
    return 0;
}

static int count_cpus(int share, struct err *e)
{
    cpu_set_t *set;
    size_t size;
    int rc = affinity_get(&set, &size);

    (void)share;
    if (rc < 0)
        return err_set(e, rc, "cannot count CPUs: %s", strerror(-rc));
    rc = CPU_COUNT_S(size, set);
    CPU_FREE(set);
    return rc;
}

static int count_devices(int share, struct err *e)
{
    struct devices devices;
    int rc = devices_find(&devices, e);

    return rc < 0 ? rc : devices.count * share;
}

static int count_any(int share, struct err *e)
{
    struct err why = {0};
    int n = count_devices(share, &why);

    if (n > 0)
        return n;
    /* That there is no device is what auto is for. */
    if (n != -ENODEV)
        log_warn("devices", "--nproc_per_node=auto counts CPUs: %s", why.msg);
    return count_cpus(share, e);
}

int devices_nproc(const char *text, int share, struct err *e)
{
    static const struct {
        const char *name;
        int (*count)(int share, struct err *e);
    } kinds[] = {
        {"cpu", count_cpus}, {"gpu", count_devices}, {"auto", count_any}};
    struct err why = {0};
    int64_t number;

    if (text_to_i64(text, &number) == 0 && number >= 1 &&
        number <= DEVICES_NPROC_MAX)
        return (int)number;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        int n;

        if (strcmp(text, kinds[i].name) != 0)
            continue;
        n = kinds[i].count(share, &why);
        if (n > DEVICES_NPROC_MAX)
            n = DEVICES_NPROC_MAX;
        return n > 0 ? n
                     : err_set(e, n, "--nproc_per_node=%s: %s", text, why.msg);
    }
    if (strcmp(text, "xpu") == 0)
        return err_set(e, -EINVAL,
            "--nproc_per_node=xpu: crun does not count Intel's devices; give "
            "their number (xpu-smi discovery lists them)");
    return err_set(e, -EINVAL,
        "--nproc_per_node=%s: expected a number from 1 to %d, or cpu, gpu, "
        "auto",
        text, DEVICES_NPROC_MAX);
}

int devices_visible(
    const char *list, int local_rank, int share, char **out, struct err *e)
{
    int device = local_rank / share;
    const char *entry = list;
    char shared[32] = "";
    size_t len;

    if (list == NULL) {
        if (asprintf(out, "%d", device) < 0)
            return err_set(e, -ENOMEM, "out of memory");
        return 0;
    }
    for (int i = 0; i < device && entry != NULL; i++) {
        entry = strchr(entry, ',');
        entry = entry == NULL ? NULL : entry + 1;
    }
    len = entry == NULL ? 0 : strcspn(entry, ",");
    if (share > 1)
        snprintf(shared, sizeof(shared), ", %d to a device", share);
    if (len == 0)
        return err_set(e, -EINVAL,
            ENV_CUDA_VISIBLE_DEVICES "=%s has no entry for local rank %d%s",
            list, local_rank, shared);
    *out = strndup(entry, len);
    return *out == NULL ? err_set(e, -ENOMEM, "out of memory") : 0;
}
