/* See binding_place.h. */
#include "agent/binding_place.h"

#include <errno.h>
#include <stdlib.h>

/* --- The CPUs of one worker ----------------------------------------------- */

struct place {
    const struct binding_machine *m;
    int node;
    int index; /* of the worker among those of its node */
    int nworkers; /* of its node */
    cpu_set_t *set;
    size_t size;
    int *groups; /* room for a number for each CPU */
};

static void add_cpu(const struct place *p, const struct binding_cpu *cpu)
{
    CPU_SET_S(cpu->cpu, p->size, p->set);
}

static int take_node(const struct place *p, struct err *e)
{
    (void)e;
    for (int i = 0; i < p->m->ncpus; i++)
        if (p->m->cpus[i].node == p->node)
            add_cpu(p, &p->m->cpus[i]);
    return 0;
}

static bool is_package_of_node(const struct place *p, int package)
{
    for (int i = 0; i < p->m->ncpus; i++)
        if (p->m->cpus[i].node == p->node && p->m->cpus[i].package == package)
            return true;
    return false;
}

static int take_socket(const struct place *p, struct err *e)
{
    (void)e;
    for (int i = 0; i < p->m->ncpus; i++)
        if (is_package_of_node(p, p->m->cpus[i].package))
            add_cpu(p, &p->m->cpus[i]);
    return 0;
}

static int core_of(const struct binding_cpu *cpu)
{
    return cpu->core;
}

static int cache_of(const struct binding_cpu *cpu)
{
    return cpu->cache;
}

/* Lists in p->groups the different cores or caches of the node, in the order
 * of the hardware. */
static int list_groups(
    const struct place *p, int (*group_of)(const struct binding_cpu *))
{
    int n = 0;

    for (int i = 0; i < p->m->ncpus; i++) {
        int group = group_of(&p->m->cpus[i]);
        int at = n;

        if (p->m->cpus[i].node != p->node)
            continue;
        /* It is the latest one, as a rule. */
        while (at > 0 && p->groups[at - 1] != group)
            at--;
        if (at == 0)
            p->groups[n++] = group;
    }
    return n;
}

static void take_group(const struct place *p,
    int (*group_of)(const struct binding_cpu *), int group)
{
    for (int i = 0; i < p->m->ncpus; i++)
        if (p->m->cpus[i].node == p->node && group_of(&p->m->cpus[i]) == group)
            add_cpu(p, &p->m->cpus[i]);
}

static int take_exclusive(const struct place *p, struct err *e)
{
    int ncores = list_groups(p, core_of);
    int each = ncores / p->nworkers;
    int more = ncores % p->nworkers; /* so many workers get one more */
    int first = p->index * each + (p->index < more ? p->index : more);
    int count = each + (p->index < more);

    if (ncores < p->nworkers)
        return err_set(e, -E2BIG,
            "--numa_binding=exclusive: %d workers are on NUMA node %d, where "
            "crun may use %d core%s; use fewer workers, or node",
            p->nworkers, p->node, ncores, ncores == 1 ? "" : "s");
    for (int i = first; i < first + count; i++)
        take_group(p, core_of, p->groups[i]);
    return 0;
}

static int count_group(const struct place *p, int cache)
{
    int n = 0;

    for (int i = 0; i < p->m->ncpus; i++)
        n += p->m->cpus[i].node == p->node && p->m->cpus[i].cache == cache;
    return n;
}

/* Larger groups go first, those of one size in the order of the hardware. */
static void sort_groups(const struct place *p, int n)
{
    for (int i = 1; i < n; i++) {
        int group = p->groups[i];
        int count = count_group(p, group);
        int at = i;

        for (; at > 0 && count_group(p, p->groups[at - 1]) < count; at--)
            p->groups[at] = p->groups[at - 1];
        p->groups[at] = group;
    }
}

static int take_core_complex(const struct place *p, struct err *e)
{
    int n = list_groups(p, cache_of);

    for (int i = 0; i < n; i++)
        if (p->groups[i] < 0)
            return err_set(e, -ENOTSUP,
                "--numa_binding=core-complex: the system does not tell which "
                "CPUs of NUMA node %d share a cache; use node",
                p->node);
    sort_groups(p, n);
    take_group(p, cache_of, p->groups[p->index % n]);
    return 0;
}

/* --- All workers ---------------------------------------------------------- */

static int (*const rules[])(const struct place *p, struct err *e) = {
    [BINDING_NODE] = take_node,
    [BINDING_SOCKET] = take_socket,
    [BINDING_EXCLUSIVE] = take_exclusive,
    [BINDING_CORE_COMPLEX] = take_core_complex,
};

int binding_place(const struct binding_machine *m, enum binding_mode mode,
    int nproc, const int *nodes, cpu_set_t *const *sets, size_t size,
    struct err *e)
{
    struct place p = {.m = m, .size = size};
    int rc = 0;

    p.groups = calloc((size_t)m->ncpus + 1, sizeof(*p.groups));
    if (p.groups == NULL)
        return err_set(e, -ENOMEM, "out of memory");
    for (int i = 0; i < nproc && rc == 0; i++) {
        p.node = nodes[i];
        p.set = sets[i];
        p.index = 0;
        p.nworkers = 0;
        for (int j = 0; j < nproc; j++) {
            p.nworkers += nodes[j] == p.node;
            p.index += nodes[j] == p.node && j < i;
        }
        CPU_ZERO_S(size, p.set);
        if (list_groups(&p, core_of) == 0)
            rc = err_set(e, -ENODEV,
                "--numa_binding: local rank %d belongs to NUMA node %d, of "
                "which crun may use no CPU",
                i, p.node);
        else
            rc = rules[mode](&p, e);
    }
    free(p.groups);
    return rc;
}

/* The smallest NUMA node above the one given, -1 if there is none. */
static int next_node(const struct binding_machine *m, int above)
{
    int next = -1;

    for (int i = 0; i < m->ncpus; i++)
        if (m->cpus[i].node > above && (next < 0 || m->cpus[i].node < next))
            next = m->cpus[i].node;
    return next;
}

void binding_spread(const struct binding_machine *m, int nproc, int *nodes)
{
    int node = next_node(m, -1);
    int count = 0;
    int at = 0;

    for (int i = node; i >= 0; i = next_node(m, i))
        count++;
    for (int i = 0; i < nproc; i++) {
        for (; at < i * count / nproc; at++)
            node = next_node(m, node);
        nodes[i] = node;
    }
}
