/* The simulator's command line. See sim.h. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

static const char usage[] =
    "usage: sim [--seed S | --seeds A:B] [--nodes N] [--until SECONDS]\n"
    "           [--faults NAME,...|all|none] [--verbose]\n"
    "Without --faults and --nodes the seed chooses. Faults end after\n"
    "--until virtual seconds. --verbose prints all that happens.\n";

#define FAULT_NAME(symbol, name) name,
static const char *const fault_names[] = {SIM_FAULT_MAP(FAULT_NAME)};

struct totals {
    uint64_t nseeds, nevents, nmsgs, nrounds, nfailed, nsuccesses;
    uint64_t hash, started_ns, started_msgs;
};

static bool parse_number(const char *text, uint64_t most, uint64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && text[0] != '-' &&
           *out <= most;
}

static bool parse_seeds(char *text, uint64_t *first, uint64_t *last)
{
    char *colon = strchr(text, ':');

    if (colon == NULL)
        return false;
    *colon = '\0';
    return parse_number(text, UINT64_MAX, first) &&
           parse_number(colon + 1, UINT64_MAX, last) && *first <= *last;
}

static bool parse_faults(char *text, int64_t *faults)
{
    char *name;

    *faults = 0;
    if (strcmp(text, "none") == 0)
        return true;
    if (strcmp(text, "all") == 0) {
        *faults = (1 << FAULT_COUNT) - 1;
        return true;
    }
    while ((name = strsep(&text, ",")) != NULL) {
        int i = 0;

        while (i < FAULT_COUNT && strcmp(fault_names[i], name) != 0)
            i++;
        if (i == FAULT_COUNT)
            return false;
        *faults |= 1 << i;
    }
    return true;
}

static void print_faults(unsigned faults)
{
    const char *blank = "";

    for (int i = 0; i < FAULT_COUNT; i++) {
        if ((faults & 1u << i) == 0)
            continue;
        printf("%s%s", blank, fault_names[i]);
        blank = ",";
    }
    if (faults == 0)
        printf("none");
}

static void print_violation(const struct sim *s, const char *program)
{
    const struct sim_options *o = &s->options;

    sim_print_trace(s);
    printf("%s\n", s->violation);
    printf("%d nodes, --nnodes %d:%d, --max_restarts %d, %s%s, faults ",
        s->nnodes, s->settings.min_nodes, s->settings.max_nodes,
        s->settings.max_restarts, s->is_hosted ? "hosted" : "lasting",
        s->settings.is_static ? ", static" : "");
    print_faults(s->faults);
    printf("\nreplay: %s --seed %" PRIu64, program, o->seed);
    if (o->nodes > 0)
        printf(" --nodes %d", o->nodes);
    if (o->until_s > 0)
        printf(" --until %d", o->until_s);
    if (o->faults >= 0) {
        printf(" --faults ");
        print_faults(s->faults);
    }
    printf(" --verbose\n");
}

static bool run_seed(
    const struct sim_options *options, const char *program, struct totals *t)
{
    static struct sim s;
    bool is_good = sim_run(&s, options);

    t->nseeds++;
    t->nevents += s.nevents;
    t->nmsgs += s.nmsgs;
    t->nrounds += (uint64_t)s.nrounds;
    t->nfailed += (uint64_t)s.nfailed;
    t->nsuccesses += s.success_ns != 0;
    t->hash = t->hash * 31 + s.hash;
    t->started_msgs += s.started_msgs;
    t->started_ns += s.started_ns;
    if (!is_good)
        print_violation(&s, program);
    sim_fini(&s);
    return is_good;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        {"seed", required_argument, NULL, 's'},
        {"seeds", required_argument, NULL, 'S'},
        {"nodes", required_argument, NULL, 'n'},
        {"until", required_argument, NULL, 'u'},
        {"faults", required_argument, NULL, 'f'},
        {"verbose", no_argument, NULL, 'v'}, {NULL, 0, NULL, 0}};
    struct sim_options options = {.faults = -1};
    struct totals t = {0};
    uint64_t first = 1, last = 1, number;
    bool is_good = true;
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        bool is_known = true;

        if (c == 's') {
            is_known = parse_number(optarg, UINT64_MAX, &first);
            last = first;
        } else if (c == 'S') {
            is_known = parse_seeds(optarg, &first, &last);
        } else if (c == 'n') {
            is_known = parse_number(optarg, MEMBERSHIP_NODES_MAX, &number);
            options.nodes = (int)number;
        } else if (c == 'u') {
            is_known = parse_number(optarg, 1000000, &number);
            options.until_s = (int)number;
        } else if (c == 'f') {
            is_known = parse_faults(optarg, &options.faults);
        } else if (c == 'v') {
            options.is_verbose = true;
        } else {
            is_known = false;
        }
        if (!is_known) {
            fputs(usage, stderr);
            return 2;
        }
    }
    for (uint64_t seed = first; is_good; seed++) {
        options.seed = seed;
        is_good = run_seed(&options, argv[0], &t);
        if (seed == last)
            break;
    }
    printf("%" PRIu64 " seeds: %" PRIu64 " events, %" PRIu64
           " messages, %" PRIu64 " rounds, %" PRIu64 " of them failed, %" PRIu64
           " jobs succeeded; trace %016" PRIx64 "\n",
        t.nseeds, t.nevents, t.nmsgs, t.nrounds, t.nfailed, t.nsuccesses,
        t.hash);
    if (t.nseeds == 1)
        printf("all workers started after %.3f s and %" PRIu64 " messages\n",
            (double)t.started_ns / (double)SIM_S, t.started_msgs);
    return is_good ? 0 : 1;
}
