/*
 * Binding: the rules on machines that are tables, and the whole of it on
 * machines that hwloc makes up (HWLOC_SYNTHETIC), with CPUs of our choice.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/affinity.h"
#include "agent/binding_place.h"
#include "agent/spawn.h"
#include "tests/unit/unit.h"

#define CPUS_MAX 4096
#define SET_SIZE CPU_ALLOC_SIZE(CPUS_MAX)
#define WORKERS_MAX 16

/* --- The rules ------------------------------------------------------------ */

/* A machine as x86 servers number it: first the first hyper-thread of every
 * core. */
struct shape {
    int packages;
    int nodes; /* of a package */
    int caches; /* of a node; 0: not known */
    int cores; /* of a cache, or of a node without caches */
    int threads; /* of a core */
};

static const struct shape two_sockets = {2, 1, 1, 4, 2};
static const struct shape four_nodes = {2, 2, 2, 2, 1};
static const struct shape no_caches = {1, 1, 0, 4, 1};
static const struct shape huge = {2, 4, 2, 64, 2}; /* 2048 CPUs */

static struct binding_cpu cpus[CPUS_MAX];

static void add_cpu(struct binding_machine *m, const struct shape *s, int core,
    int thread, int ncores)
{
    int caches = s->caches > 0 ? s->caches : 1;
    int cache = core / s->cores;

    cpus[m->ncpus++] = (struct binding_cpu){
        .cpu = core + thread * ncores,
        .core = core,
        .cache = s->caches > 0 ? cache : -1,
        .node = cache / caches,
        .package = cache / caches / s->nodes,
    };
}

/* The CPUs of a machine from first to last. */
static struct binding_machine make(const struct shape *s, int first, int last)
{
    struct binding_machine m = {.cpus = cpus};
    int ncores =
        s->packages * s->nodes * (s->caches > 0 ? s->caches : 1) * s->cores;

    for (int core = 0; core < ncores; core++)
        for (int thread = 0; thread < s->threads; thread++) {
            int cpu = core + thread * ncores;

            if (cpu >= first && cpu <= last)
                add_cpu(&m, s, core, thread, ncores);
        }
    return m;
}

static const struct {
    const struct shape *shape;
    int first; /* CPU that may be used */
    int last;
    enum binding_mode mode;
    const char *nodes; /* a digit for each worker; "": spread them */
    int nproc;
    const char *want; /* the sets; an error if it begins with a '!' */
} places[] = {
    /* Sockets are nodes 0 and 1, with CPUs 0-3,8-11 and 4-7,12-15. */
    {&two_sockets, 0, 99, BINDING_NODE, "01", 2, "0-3,8-11 4-7,12-15"},
    {&two_sockets, 0, 99, BINDING_NODE, "110", 3,
        "4-7,12-15 4-7,12-15 0-3,8-11"},
    {&two_sockets, 0, 99, BINDING_NODE, "", 1, "0-3,8-11"},
    {&two_sockets, 0, 99, BINDING_NODE, "", 2, "0-3,8-11 4-7,12-15"},
    {&two_sockets, 0, 99, BINDING_NODE, "", 3, "0-3,8-11 0-3,8-11 4-7,12-15"},
    {&two_sockets, 2, 12, BINDING_NODE, "01", 2, "2-3,8-11 4-7,12"},
    {&two_sockets, 0, 3, BINDING_NODE, "", 2, "0-3 0-3"},
    {&two_sockets, 0, 3, BINDING_NODE, "01", 2,
        "!local rank 1 belongs to NUMA node 1, of which crun may use no CPU"},
    {&two_sockets, 0, 99, BINDING_SOCKET, "01", 2, "0-3,8-11 4-7,12-15"},
    /* Eight cores of two threads. */
    {&two_sockets, 0, 99, BINDING_EXCLUSIVE, "00", 2, "0-1,8-9 2-3,10-11"},
    {&two_sockets, 0, 99, BINDING_EXCLUSIVE, "01", 2, "0-3,8-11 4-7,12-15"},
    {&two_sockets, 0, 99, BINDING_EXCLUSIVE, "000", 3, "0-1,8-9 2,10 3,11"},
    {&two_sockets, 0, 99, BINDING_EXCLUSIVE, "0101", 4,
        "0-1,8-9 4-5,12-13 2-3,10-11 6-7,14-15"},
    {&two_sockets, 0, 99, BINDING_EXCLUSIVE, "0000", 4, "0,8 1,9 2,10 3,11"},
    {&two_sockets, 0, 99, BINDING_EXCLUSIVE, "00000", 5,
        "!5 workers are on NUMA node 0, where crun may use 4 cores"},
    {&two_sockets, 0, 1, BINDING_EXCLUSIVE, "00", 2, "0 1"},
    {&two_sockets, 0, 0, BINDING_EXCLUSIVE, "00", 2,
        "!2 workers are on NUMA node 0, where crun may use 1 core;"},
    /* One hyper-thread of a core is a core. */
    {&two_sockets, 8, 9, BINDING_EXCLUSIVE, "00", 2, "8 9"},
    /* Packages of two nodes, each of two caches of two cores. */
    {&four_nodes, 0, 99, BINDING_NODE, "2", 1, "8-11"},
    {&four_nodes, 0, 99, BINDING_SOCKET, "2", 1, "8-15"},
    {&four_nodes, 0, 99, BINDING_SOCKET, "103", 3, "0-7 0-7 8-15"},
    {&four_nodes, 0, 12, BINDING_SOCKET, "3", 1, "8-12"},
    {&four_nodes, 0, 99, BINDING_NODE, "", 2, "0-3 8-11"},
    {&four_nodes, 0, 99, BINDING_NODE, "", 4, "0-3 4-7 8-11 12-15"},
    {&four_nodes, 0, 99, BINDING_NODE, "", 6, "0-3 0-3 4-7 8-11 8-11 12-15"},
    {&four_nodes, 4, 15, BINDING_NODE, "", 3, "4-7 8-11 12-15"},
    {&four_nodes, 0, 99, BINDING_CORE_COMPLEX, "0", 1, "0-1"},
    {&four_nodes, 0, 99, BINDING_CORE_COMPLEX, "000", 3, "0-1 2-3 0-1"},
    {&four_nodes, 0, 99, BINDING_CORE_COMPLEX, "303", 3, "12-13 0-1 14-15"},
    /* The larger group goes first. */
    {&four_nodes, 1, 15, BINDING_CORE_COMPLEX, "00", 2, "2-3 1"},
    {&four_nodes, 0, 1, BINDING_CORE_COMPLEX, "00", 2, "0-1 0-1"},
    {&no_caches, 0, 99, BINDING_CORE_COMPLEX, "0", 1,
        "!which CPUs of NUMA node 0 share a cache"},
    {&no_caches, 0, 99, BINDING_EXCLUSIVE, "000", 3, "0-1 2 3"},
    /* More than a cpu_set_t holds. */
    {&huge, 0, 9999, BINDING_NODE, "7", 1, "896-1023,1920-2047"},
    {&huge, 0, 9999, BINDING_CORE_COMPLEX, "77", 2,
        "896-959,1920-1983 960-1023,1984-2047"},
};

static void read_nodes(const struct binding_machine *m, int *nodes, int at)
{
    const char *text = places[at].nodes;

    if (text[0] == '\0')
        binding_spread(m, places[at].nproc, nodes);
    for (int i = 0; text[i] != '\0'; i++)
        nodes[i] = text[i] - '0';
}

static void append(char *all, size_t size, char *text)
{
    size_t len = strlen(all);

    ck_assert_ptr_nonnull(text);
    snprintf(all + len, size - len, "%s%s", len > 0 ? " " : "", text);
    free(text);
}

START_TEST(workers_get_the_cpus_of_their_device)
{
    struct binding_machine m =
        make(places[_i].shape, places[_i].first, places[_i].last);
    cpu_set_t *sets[WORKERS_MAX];
    int nodes[WORKERS_MAX];
    char got[512] = "";
    struct err e = {0};
    int rc;

    read_nodes(&m, nodes, _i);
    for (int i = 0; i < places[_i].nproc; i++)
        sets[i] = CPU_ALLOC(CPUS_MAX);
    rc = binding_place(
        &m, places[_i].mode, places[_i].nproc, nodes, sets, SET_SIZE, &e);
    for (int i = 0; i < places[_i].nproc; i++) {
        if (rc == 0)
            append(got, sizeof(got), affinity_text(sets[i], SET_SIZE));
        CPU_FREE(sets[i]);
    }
    if (places[_i].want[0] == '!') {
        ck_assert_int_lt(rc, 0);
        ck_assert_msg(strstr(e.msg, places[_i].want + 1) != NULL, "%s", e.msg);
    } else {
        ck_assert_msg(rc == 0, "%s", e.msg);
        ck_assert_str_eq(got, places[_i].want);
    }
}
END_TEST

/* --- With hwloc ----------------------------------------------------------- */

/* Stands in for libc's: CPUs from..to of a machine of ncpus. */
static struct {
    int ncpus; /* 0: ask the kernel */
    int from;
    int to;
} fake;

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    static int (*real)(pid_t, size_t, cpu_set_t *);

    if (fake.ncpus == 0) {
        if (real == NULL)
            *(void **)&real = dlsym(RTLD_NEXT, "sched_getaffinity");
        return real(pid, size, set);
    }
    if (size * 8 < (size_t)fake.ncpus) {
        errno = EINVAL;
        return -1;
    }
    CPU_ZERO_S(size, set);
    for (int cpu = fake.from; cpu <= fake.to; cpu++)
        CPU_SET_S(cpu, size, set);
    return 0;
}

static void set_machine(const char *synthetic, int ncpus, int from, int to)
{
    fake.ncpus = ncpus;
    fake.from = from;
    fake.to = to;
    setenv("HWLOC_SYNTHETIC", synthetic, 1);
    /* Whatever devices this machine has are not meant. */
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    setenv("HIP_VISIBLE_DEVICES", "", 1);
    setenv("ROCR_VISIBLE_DEVICES", "", 1);
}

static void expect_report(enum binding_mode mode, int nproc, const char *want)
{
    struct binding *b = NULL;
    struct err e = {0};
    char *report;

    ck_assert_msg(binding_create(&b, mode, nproc, 1, &e) == 0, "%s", e.msg);
    report = binding_report(b, nproc);
    ck_assert_ptr_nonnull(report);
    ck_assert_str_eq(report, want);
    free(report);
    binding_destroy(b);
}

#define SERVER "pack:2 numa:2 l3:2 core:4 pu:2" /* 64 CPUs */

START_TEST(hwloc_tells_what_cpus_belong_to)
{
    set_machine(SERVER, 64, 0, 63);
    expect_report(BINDING_NODE, 2,
        "rank 0: CPUs 0-15 (NUMA node 0)\n"
        "rank 1: CPUs 32-47 (NUMA node 2)\n");
    expect_report(BINDING_SOCKET, 2,
        "rank 0: CPUs 0-31 (NUMA node 0)\n"
        "rank 1: CPUs 32-63 (NUMA node 2)\n");
    expect_report(BINDING_EXCLUSIVE, 8,
        "rank 0: CPUs 0-7 (NUMA node 0)\nrank 1: CPUs 8-15 (NUMA node 0)\n"
        "rank 2: CPUs 16-23 (NUMA node 1)\nrank 3: CPUs 24-31 (NUMA node 1)\n"
        "rank 4: CPUs 32-39 (NUMA node 2)\nrank 5: CPUs 40-47 (NUMA node 2)\n"
        "rank 6: CPUs 48-55 (NUMA node 3)\n"
        "rank 7: CPUs 56-63 (NUMA node 3)\n");
    expect_report(BINDING_CORE_COMPLEX, 1, "rank 0: CPUs 0-7 (NUMA node 0)\n");
}
END_TEST

START_TEST(cpus_are_within_those_of_crun)
{
    set_machine(SERVER, 64, 6, 19);
    expect_report(BINDING_NODE, 2,
        "rank 0: CPUs 6-15 (NUMA node 0)\n"
        "rank 1: CPUs 16-19 (NUMA node 1)\n");
    expect_report(BINDING_EXCLUSIVE, 2,
        "rank 0: CPUs 6-15 (NUMA node 0)\n"
        "rank 1: CPUs 16-19 (NUMA node 1)\n");
}
END_TEST

START_TEST(more_cpus_than_a_cpu_set_holds)
{
    size_t size;
    struct binding *b = NULL;
    struct err e = {0};
    const cpu_set_t *set;

    set_machine("pack:2 numa:4 l3:2 core:64 pu:2", 2048, 1000, 2047);
    ck_assert_msg(binding_create(&b, BINDING_NODE, 5, 1, &e) == 0, "%s", e.msg);
    set = binding_cpus(b, 4, &size);
    ck_assert_uint_ge(size * 8, 2048);
    ck_assert_int_eq(CPU_COUNT_S(size, set), 256);
    ck_assert(CPU_ISSET_S(1792, size, set) && CPU_ISSET_S(2047, size, set));
    set = binding_cpus(b, 0, &size);
    ck_assert_int_eq(CPU_COUNT_S(size, set), 24);
    binding_destroy(b);
}
END_TEST

START_TEST(no_cpu_and_too_few_cores_are_errors)
{
    struct binding *b = NULL;
    struct err e = {0};

    set_machine("numa:2 core:1 pu:2", 64, 8, 9);
    ck_assert_int_eq(binding_create(&b, BINDING_NODE, 1, 1, &e), -ENODEV);
    ck_assert_msg(
        strstr(e.msg, "of the 4 CPUs that hwloc shows crun may use none") !=
            NULL,
        "%s", e.msg);
    set_machine("numa:2 core:1 pu:2", 64, 0, 1);
    ck_assert_int_eq(binding_create(&b, BINDING_EXCLUSIVE, 2, 1, &e), -E2BIG);
    ck_assert_ptr_null(b);
    binding_destroy(b);
}
END_TEST

START_TEST(without_a_binding_the_shared_cpus_are_reported)
{
    char *report;

    set_machine(SERVER, 64, 3, 5);
    report = binding_report(NULL, 4);
    ck_assert_str_eq(report, "all ranks: CPUs 3-5 (not bound)\n");
    free(report);
}
END_TEST

START_TEST(modes_have_names)
{
    static const char *const names[] = {
        "node", "socket", "exclusive", "core-complex"};
    enum binding_mode mode = BINDING_NONE;

    for (int i = 0; i < 4; i++) {
        ck_assert(binding_mode_from_name(names[i], &mode));
        ck_assert_int_eq(mode, BINDING_NODE + i);
    }
    ck_assert(!binding_mode_from_name("none", &mode));
    ck_assert(!binding_mode_from_name("", &mode));
    ck_assert(!binding_mode_from_name("nodes", &mode));
}
END_TEST

/* --- Where a device is ---------------------------------------------------- */

static const struct {
    const char *content; /* NULL: there is no such file */
    int rc;
    int node;
} files[] = {
    {"0\n", 0, 0},
    {"3\n", 0, 3},
    {"-1\n", 0, 0},
    {"12", 0, 12},
    {"-2\n", -EIO, 0},
    {"\n", -EIO, 0},
    {"", -EIO, 0},
    {"1x\n", -EIO, 0},
    {"4294967296\n", -EIO, 0},
    {NULL, -ENOENT, 0},
};

START_TEST(sysfs_tells_the_node_of_a_device)
{
    char folder[] = "/tmp/crun-binding-XXXXXX";
    char device[64];
    char file[96];
    int node = 77;

    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(device, sizeof(device), "%s/0000:1b:00.0", folder);
    snprintf(file, sizeof(file), "%s/numa_node", device);
    ck_assert_int_eq(mkdir(device, 0700), 0);
    if (files[_i].content != NULL) {
        FILE *f = fopen(file, "w");

        ck_assert_ptr_nonnull(f);
        fputs(files[_i].content, f);
        fclose(f);
    }
    ck_assert_int_eq(
        binding_device_node(folder, "0000:1b:00.0", &node), files[_i].rc);
    ck_assert_int_eq(node, files[_i].rc == 0 ? files[_i].node : 77);
    unlink(file);
    rmdir(device);
    rmdir(folder);
}
END_TEST

/* --- In the worker -------------------------------------------------------- */

/* Starts a shell on the given CPUs; its exit status, or spawn's error. */
static int run_shell(const char *script, const cpu_set_t *set, size_t size)
{
    char *argv[] = {"sh", "-c", (char *)script, NULL};
    char *envp[] = {"PATH=/usr/bin:/bin", NULL};
    struct spawn s = {.path = "/bin/sh",
        .argv = argv,
        .envp = envp,
        .out_fd = -1,
        .err_fd = -1,
        .cpus = set,
        .cpus_size = size};
    int status;
    pid_t pid;

    sigemptyset(&s.mask);
    sigemptyset(&s.reset);
    getrlimit(RLIMIT_NOFILE, &s.nofile);
    pid = spawn_worker(&s);
    if (pid < 0)
        return pid;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

START_TEST(a_worker_starts_on_its_cpus)
{
    char script[256];
    cpu_set_t *set;
    size_t size;
    int last = -1;

    fake.ncpus = 0;
    ck_assert_int_eq(affinity_get(&set, &size), 0);
    for (int cpu = 0; cpu < (int)size * 8; cpu++)
        if (CPU_ISSET_S(cpu, size, set))
            last = cpu;
    CPU_ZERO_S(size, set);
    CPU_SET_S(last, size, set);
    snprintf(script, sizeof(script),
        "grep -q '^Cpus_allowed_list:[[:blank:]]*%d$' /proc/self/status", last);
    ck_assert_int_eq(run_shell(script, set, size), 0);
    /* And not where there is none. */
    CPU_ZERO_S(size, set);
    ck_assert_int_eq(run_shell("exit 3", set, size), -EINVAL);
    ck_assert_int_eq(run_shell("exit 3", NULL, 0), 3);
    CPU_FREE(set);
}
END_TEST

#define COUNT(a) ((int)(sizeof(a) / sizeof(a[0])))

int main(void)
{
    TCase *tcase = tcase_create("binding");

    tcase_set_timeout(tcase, 30);
    tcase_add_loop_test(
        tcase, workers_get_the_cpus_of_their_device, 0, COUNT(places));
    tcase_add_test(tcase, hwloc_tells_what_cpus_belong_to);
    tcase_add_test(tcase, cpus_are_within_those_of_crun);
    tcase_add_test(tcase, more_cpus_than_a_cpu_set_holds);
    tcase_add_test(tcase, no_cpu_and_too_few_cores_are_errors);
    tcase_add_test(tcase, without_a_binding_the_shared_cpus_are_reported);
    tcase_add_test(tcase, modes_have_names);
    tcase_add_loop_test(
        tcase, sysfs_tells_the_node_of_a_device, 0, COUNT(files));
    tcase_add_test(tcase, a_worker_starts_on_its_cpus);
    return unit_run("binding", tcase);
}
