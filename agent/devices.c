/*
 * See devices.h. The CUDA driver is asked in a child process: initialising
 * it takes memory and threads that the agent must not keep.
 */
#include "agent/devices.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/text.h"

#define GPU_TIMEOUT_MS 60000
#define CPU_SET_MAX 65536

static int count_cpus(void)
{
    /* The kernel refuses a set smaller than its own number of CPUs. */
    for (int ncpus = 1024; ncpus <= CPU_SET_MAX; ncpus *= 2) {
        size_t size = CPU_ALLOC_SIZE(ncpus);
        cpu_set_t *set = CPU_ALLOC(ncpus);
        int n;

        if (set == NULL)
            return -ENOMEM;
        n = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set)
                                                 : -errno;
        CPU_FREE(set);
        if (n != -EINVAL)
            return n;
    }
    return -EINVAL;
}

struct gpu_answer {
    int rc; /* 0 or a negative errno */
    int count;
    char text[256];
};

/* Runs in the child. CUDA's codes: 0 success, 100 no device. */
static void ask_driver(struct gpu_answer *a)
{
    int (*init)(unsigned);
    int (*get_count)(int *);
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    int rc;

    if (lib == NULL) {
        a->rc = -ENODEV;
        snprintf(a->text, sizeof(a->text), "no CUDA driver: %s", dlerror());
        return;
    }
    init = (int (*)(unsigned))dlsym(lib, "cuInit");
    get_count = (int (*)(int *))dlsym(lib, "cuDeviceGetCount");
    if (init == NULL || get_count == NULL) {
        a->rc = -ENODEV;
        snprintf(a->text, sizeof(a->text),
            "libcuda.so.1 has no cuInit or no cuDeviceGetCount");
        return;
    }
    rc = init(0);
    if (rc == 0)
        rc = get_count(&a->count);
    if (rc != 0 || a->count == 0) {
        a->rc = -ENODEV;
        snprintf(a->text, sizeof(a->text),
            "the CUDA driver shows no device (error %d, "
            "CUDA_VISIBLE_DEVICES=%s)",
            rc, getenv("CUDA_VISIBLE_DEVICES") ?: "unset");
    }
}

static int read_answer(int fd, struct gpu_answer *a)
{
    uint64_t deadline = clock_deadline_ns(GPU_TIMEOUT_MS);
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

static int count_gpus(struct err *e)
{
    struct gpu_answer a = {0};
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
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        ask_driver(&a);
        _exit(write(fds[1], &a, sizeof(a)) == (ssize_t)sizeof(a) ? 0 : 1);
    }
    close(fds[1]);
    rc = read_answer(fds[0], &a);
    close(fds[0]);
    kill(pid, SIGKILL); /* it has answered, or never will */
    if (rc != -ETIMEDOUT)
        waitpid(pid, NULL, 0); /* else it may be stuck in the kernel */
    if (rc == -ETIMEDOUT)
        return err_set(e, rc, "the CUDA driver did not answer within %d s",
            GPU_TIMEOUT_MS / 1000);
    if (rc < 0)
        return err_set(e, rc,
            "asking the CUDA driver failed: it ended the "
            "process that asked");
    if (a.rc < 0)
        return err_set(e, a.rc, "%s", a.text);
    return a.count;
}

int devices_nproc(const char *text, struct err *e)
{
    struct err why;
    int64_t number;
    int n;

    if (text_to_i64(text, &number) == 0) {
        if (number >= 1 && number <= DEVICES_NPROC_MAX)
            return (int)number;
        return err_set(e, -EINVAL,
            "--nproc_per_node=%s: expected 1 to %d, or cpu, gpu, auto", text,
            DEVICES_NPROC_MAX);
    }
    if (strcmp(text, "gpu") == 0 || strcmp(text, "auto") == 0) {
        n = count_gpus(&why);
        if (n > 0)
            return n;
        if (text[0] == 'g')
            return err_set(e, n, "--nproc_per_node=gpu: %s", why.msg);
    } else if (strcmp(text, "cpu") != 0) {
        return err_set(e, -EINVAL,
            "--nproc_per_node='%s': expected a number from 1 to %d, or cpu, "
            "gpu, auto",
            text, DEVICES_NPROC_MAX);
    }
    n = count_cpus();
    if (n < 0)
        return err_set(e, n, "--nproc_per_node=%s: cannot count CPUs: %s", text,
            strerror(-n));
    return n;
}
