/* Events in the order of their times, chance, and the trace. See sim.h. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/sim.h"

/* So many events at one time are of something that goes round in circles. */
#define SIM_NOW_MAX 5000000

/* --- Events: a binary heap ---------------------------------------------- */

static bool is_before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->seq < b->seq;
}

void sim_at(
    struct sim *s, uint64_t at_ns, sim_event_fn *fn, void *obj, uint64_t arg)
{
    struct sim_event ev = {.at_ns = at_ns > s->now_ns ? at_ns : s->now_ns,
        .seq = s->seq++,
        .fn = fn,
        .obj = obj,
        .arg = arg};
    size_t i = s->nheap++;

    if (s->nheap > s->heap_cap) {
        s->heap_cap = s->heap_cap == 0 ? 1024 : 2 * s->heap_cap;
        s->heap = realloc(s->heap, s->heap_cap * sizeof(*s->heap));
        if (s->heap == NULL)
            abort();
    }
    for (; i > 0 && is_before(&ev, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = ev;
}

void sim_after(
    struct sim *s, uint64_t ns, sim_event_fn *fn, void *obj, uint64_t arg)
{
    sim_at(s, s->now_ns + ns, fn, obj, arg);
}

static struct sim_event take_first(struct sim *s)
{
    struct sim_event first = s->heap[0];
    struct sim_event ev = s->heap[--s->nheap];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;

        if (child + 1 < s->nheap &&
            is_before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (child >= s->nheap || !is_before(&s->heap[child], &ev))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = ev;
    return first;
}

bool sim_step(struct sim *s, uint64_t until_ns)
{
    struct sim_event ev;

    if (s->nheap == 0 || s->heap[0].at_ns > until_ns)
        return false;
    ev = take_first(s);
    s->nnow = ev.at_ns > s->now_ns ? 0 : s->nnow + 1;
    s->now_ns = ev.at_ns;
    s->nevents++;
    if (s->nnow > SIM_NOW_MAX)
        check_fail(s, 4, "time stands still");
    ev.fn(s, ev.obj, ev.arg);
    return true;
}

/* --- Chance: splitmix64 ------------------------------------------------- */

uint64_t sim_random(struct sim *s)
{
    uint64_t z = s->random += 0x9E3779B97F4A7C15u;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

uint64_t sim_between(struct sim *s, uint64_t lo, uint64_t hi)
{
    return hi <= lo ? lo : lo + sim_random(s) % (hi - lo + 1);
}

bool sim_chance(struct sim *s, int percent)
{
    return (int)(sim_random(s) % 100) < percent;
}

/* --- The trace ---------------------------------------------------------- */

static void print_line(const struct sim_trace *t)
{
    printf("%12.6f  %-18s %-12s %" PRId64 " %" PRId64 "\n",
        (double)t->at_ns / (double)SIM_S, t->what,
        t->detail != NULL ? t->detail : "", t->a, t->b);
}

static void hash_bytes(struct sim *s, const void *bytes, size_t len)
{
    const unsigned char *p = bytes;

    for (size_t i = 0; i < len; i++)
        s->hash = (s->hash ^ p[i]) * 0x100000001B3u;
}

void sim_trace(
    struct sim *s, const char *what, const char *detail, int64_t a, int64_t b)
{
    struct sim_trace *t = &s->trace[s->ntrace++ % SIM_TRACE_LEN];
    const int64_t numbers[] = {(int64_t)s->now_ns, a, b};

    *t = (struct sim_trace){s->now_ns, what, detail, a, b};
    hash_bytes(s, numbers, sizeof(numbers));
    hash_bytes(s, what, strlen(what));
    if (detail != NULL)
        hash_bytes(s, detail, strlen(detail));
    if (s->options.is_verbose)
        print_line(t);
}

void sim_print_trace(const struct sim *s)
{
    uint64_t n = s->ntrace < SIM_TRACE_LEN ? s->ntrace : SIM_TRACE_LEN;

    for (uint64_t i = s->ntrace - n; i < s->ntrace; i++)
        print_line(&s->trace[i % SIM_TRACE_LEN]);
}
