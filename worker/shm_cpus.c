/*
 * Which CPUs the ranks of a node may use: spinning for a rank that waits for
 * this CPU only delays it. A rank that is bound to one CPU has that for itself
 * if the others are bound to others, so all of them have to say what they have.
 */
#include "shm_internal.h"

#include <sched.h>
#include <string.h>

/* Behind the data of a slot, where the names of all ranks are not. */
static cpu_set_t *set_of(const struct shm_state *s, int rank, uint32_t tick)
{
    return (cpu_set_t *)(void *)(shm_slot(s, rank, tick) + s->chunk_bytes);
}

void shm_put_cpus(struct shm_state *s)
{
    cpu_set_t *own = set_of(s, s->rank, s->tick + 1);

    CPU_ZERO(own);
    /* The kernel refuses a mask smaller than its own: then there are plenty. */
    if (sched_getaffinity(0, sizeof(*own), own) < 0)
        memset(own, 0xff, sizeof(*own));
}

void shm_take_cpus(struct shm_state *s)
{
    cpu_set_t all;

    CPU_ZERO(&all);
    for (int r = 0; r < s->size; r++)
        CPU_OR(&all, &all, set_of(s, r, s->tick));
    s->may_spin = CPU_COUNT(&all) >= s->size;
}
