/*
 * What an operation costs in the recorder: its two marks, as coll_group.c
 * makes them. The time at which it begins is not part of that: the deadline
 * needs it anyway. Prints the median of some rounds.
 */
#include <stdio.h>
#include <stdlib.h>

#include "rendezvous/base/clock.h"
#include "worker/coll_agent.h"
#include "worker/coll_recorder.h"

enum { ROUNDS = 15, CALLS = 1000 * 1000 };

static int compare(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

int main(void)
{
    static struct coll_group group = {.size = 2};
    struct coll_call call = {.kind = COLL_KIND_ALL_REDUCE, .count = 1024};
    double ns[ROUNDS];

    coll_agent_attach(); /* under no launcher: to private memory */
    for (int k = 0; k < ROUNDS; k++) {
        uint64_t begin_ns = clock_now_ns();

        for (int i = 0; i < CALLS; i++) {
            call.seq++;
            coll_recorder_finish(coll_recorder_enter(&group, &call, begin_ns),
                COLL_OK, begin_ns);
        }
        ns[k] = (double)(clock_now_ns() - begin_ns) / CALLS;
    }
    qsort(ns, ROUNDS, sizeof(ns[0]), compare);
    printf("recorder: %.0f ns per operation (goal 50)\n", ns[ROUNDS / 2]);
    return 0;
}
