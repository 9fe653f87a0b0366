/* See affinity.h. */
#include "agent/affinity.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CPU_SET_MAX 65536

int affinity_get(cpu_set_t **out, size_t *size)
{
    /* The kernel refuses a set smaller than its own number of CPUs. */
    for (int ncpus = 1024; ncpus <= CPU_SET_MAX; ncpus *= 2) {
        cpu_set_t *set = CPU_ALLOC(ncpus);
        int rc = 0;

        if (set == NULL)
            return -ENOMEM;
        CPU_ZERO_S(CPU_ALLOC_SIZE(ncpus), set);
        if (sched_getaffinity(0, CPU_ALLOC_SIZE(ncpus), set) < 0)
            rc = -errno;
        if (rc == 0) {
            *out = set;
            *size = CPU_ALLOC_SIZE(ncpus);
            return 0;
        }
        CPU_FREE(set);
        if (rc != -EINVAL)
            return rc;
    }
    return -EINVAL;
}

char *affinity_text(const cpu_set_t *set, size_t size)
{
    int ncpus = (int)(size * 8);
    const char *comma = "";
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    if (f == NULL)
        return NULL;
    for (int first = 0; first < ncpus; first++) {
        int last = first;

        if (!CPU_ISSET_S(first, size, set))
            continue;
        while (last + 1 < ncpus && CPU_ISSET_S(last + 1, size, set))
            last++;
        fprintf(f, first == last ? "%s%d" : "%s%d-%d", comma, first, last);
        comma = ",";
        first = last;
    }
    if (fclose(f) == 0)
        return text;
    free(text);
    return NULL;
}
