/*
 * Prints the tables of the collective benchmark on one node: what each library
 * takes for every operation and size, how they compare, and which goals are
 * missed.
 *
 *   coll_table RANKS FOLDER MISSES [KIND NAME COMMAND]...
 *
 * KIND is ours, openmpi, mpich or gloo; ours comes first. COMMAND starts RANKS
 * ranks. Each miss is a line in the file MISSES, too: operation, ranks, bytes,
 * goal, what was reached, what was wanted.
 */
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/coll_jobs.h"
#include "tests/bench/coll_memory.h"

/* What is compared, ours with the two kinds of buffers. */
enum column {
    OURS,
    OURS_ALLOC,
    OPEN_MPI,
    MPICH,
    GLOO,
    COLUMNS,
};

/* The goals. Not slower: within a tenth or what a clock can tell. */
#define NOT_SLOWER_RATIO 1.10
#define NOT_SLOWER_US 0.2
#define LARGE_BYTES ((size_t)256 << 10)
#define LARGE_RATIO 1.1
#define LARGE_ALLOC_RATIO 2.5
#define CROWDED_MPICH_RATIO 5.0
#define GLOO_RATIO 5.0
#define MEMORY_BYTES ((size_t)16 << 20)
#define MEMORY_SHARE 0.60

/* Rounds of turns: large operations take their time, and vary less. */
#define ROUNDS_SMALL 5
#define ROUNDS_LARGE 3
#define FEW_BYTES ((size_t)4 << 20)

struct table {
    int ranks;
    bool is_crowded; /* more ranks than cores */
    struct bench_job jobs[COLUMNS]; /* of OURS_ALLOC: none */
    bool has_job[COLUMNS];
    FILE *misses;
    uint64_t wrong;
};

/* The figures of one line. us 0: there is none. */
struct line {
    enum bench_op op;
    size_t bytes;
    double us[COLUMNS];
    uint64_t wrong[COLUMNS];
    double memory; /* bytes per us; 0: not measured */
};

static struct bench_job *job_of(struct table *t, enum column column)
{
    return &t->jobs[column == OURS_ALLOC ? OURS : column];
}

static bool has_column(struct table *t, enum column column, enum bench_op op)
{
    struct bench_job *job = job_of(t, column);

    if (column == OURS_ALLOC)
        return t->has_job[OURS] && job->has_alloc && op != BENCH_BARRIER &&
               bench_job_has(job, op);
    return t->has_job[column] && bench_job_has(job, op);
}

/* --- Measuring ----------------------------------------------------------- */

static int measure(struct table *t, struct line *line)
{
    bool is_large = line->bytes >= FEW_BYTES;
    int rounds = is_large ? ROUNDS_LARGE : ROUNDS_SMALL;
    double us[COLUMNS][ROUNDS_SMALL], memory[ROUNDS_SMALL];
    double moved = bench_memory_bytes(line->op, t->ranks, line->bytes);
    bool is_memory = moved > 0 && line->bytes >= MEMORY_BYTES;

    for (int round = 0; round < rounds; round++) {
        for (enum column c = 0; c < COLUMNS; c++) {
            struct bench_turn turn = {
                .op = line->op,
                .with_alloc = c == OURS_ALLOC,
                .bytes = line->bytes,
                .budget_us = 10000,
                .calls_min = 2,
            };
            struct bench_time time;
            if (!has_column(t, c, line->op))
                continue;
            if (bench_job_turn(job_of(t, c), &turn, &time) < 0)
                return -1;
            /* The middle one is what the library does when nobody else
             * runs. With too few cores how long ranks wait for one is a part
             * of what is measured. */
            us[c][round] = t->is_crowded ? time.mean_us : time.median_us;
            line->wrong[c] += time.wrong;
        }
        if (is_memory) {
            memory[round] = bench_memory_bandwidth(t->ranks, line->bytes);
            if (memory[round] == 0)
                return -1;
        }
    }
    for (enum column c = 0; c < COLUMNS; c++)
        if (has_column(t, c, line->op))
            line->us[c] = bench_median(us[c], (size_t)rounds);
    if (is_memory)
        line->memory = bench_median(memory, (size_t)rounds);
    return 0;
}

/* --- Goals --------------------------------------------------------------- */

static double better(double a, double b)
{
    if (a == 0 || b == 0)
        return a + b;
    return a < b ? a : b;
}

/* Notes a miss unless reached is at least wanted. */
static void want(struct table *t, const struct line *line, const char *goal,
    double reached, double wanted)
{
    if (reached >= wanted)
        return;
    printf(" MISS %s", goal);
    fprintf(t->misses, "%s %d %zu %s %.3f %.3f\n", bench_op_name(line->op),
        t->ranks, line->bytes, goal, reached, wanted);
}

static void want_not_slower(struct table *t, const struct line *line,
    const char *goal, double ours, double peer)
{
    if (peer > 0 && ours > peer + NOT_SLOWER_US)
        want(t, line, goal, peer / ours, 1 / NOT_SLOWER_RATIO);
}

static double memory_share(
    const struct table *t, const struct line *line, double us)
{
    double moved = bench_memory_bytes(line->op, t->ranks, line->bytes);

    return us > 0 && line->memory > 0 ? moved / line->memory / us : 0;
}

static void judge_column(
    struct table *t, const struct line *line, enum column column)
{
    bool is_alloc = column == OURS_ALLOC;
    double us = line->us[column];
    double mpi = better(line->us[OPEN_MPI], line->us[MPICH]);

    if (us == 0)
        return;
    if (t->is_crowded) {
        want_not_slower(t, line, is_alloc ? "alloc<=OpenMPI" : "<=OpenMPI", us,
            line->us[OPEN_MPI]);
        if (line->us[MPICH] > 0)
            want(t, line, is_alloc ? "alloc-5x-MPICH" : "5x-MPICH",
                line->us[MPICH] / us, CROWDED_MPICH_RATIO);
    } else if (line->bytes < LARGE_BYTES) {
        want_not_slower(t, line, is_alloc ? "alloc<=MPI" : "<=MPI", us, mpi);
    } else if (mpi > 0) {
        want(t, line, is_alloc ? "alloc-2.5x-MPI" : "1.1x-MPI", mpi / us,
            is_alloc ? LARGE_ALLOC_RATIO : LARGE_RATIO);
    }
    if (line->us[GLOO] > 0)
        want(t, line, is_alloc ? "alloc-5x-Gloo" : "5x-Gloo",
            line->us[GLOO] / us, GLOO_RATIO);
    if (is_alloc && line->memory > 0)
        want(t, line, "alloc-60%-memory", memory_share(t, line, us),
            MEMORY_SHARE);
}

/* --- Printing ------------------------------------------------------------ */

/* algbw is size over time. busbw relates it to what has to pass the slowest
 * link whatever the algorithm, so that it can be compared between numbers of
 * ranks. The factors follow from counting what a rank must send or receive;
 * nccl-tests (doc/PERFORMANCE.md) has the same. */
static double bus_factor(enum bench_op op, int n)
{
    switch (op) {
    case BENCH_ALL_REDUCE: /* a part to everybody, a result from everybody */
        return 2.0 * (n - 1) / n;
    case BENCH_ALL_GATHER: /* all parts but the own */
    case BENCH_REDUCE_SCATTER:
    case BENCH_ALL_TO_ALL:
        return (double)(n - 1) / n;
    default:
        return 1;
    }
}

static void print_figures(struct table *t, const struct line *line)
{
    for (enum column c = 0; c < COLUMNS; c++) {
        double us = line->us[c],
               gb_per_s = us > 0 ? (double)line->bytes / us / 1e3 : 0;
        if (c == OURS_ALLOC ? !t->jobs[OURS].has_alloc : !t->has_job[c])
            continue;
        if (us == 0)
            printf(" | %9s %6s %6s %3s", "-", "-", "-", "-");
        else
            printf(" | %9.2f %6.2f %6.2f %3llu", us, gb_per_s,
                gb_per_s * bus_factor(line->op, t->ranks),
                (unsigned long long)line->wrong[c]);
        t->wrong += line->wrong[c];
    }
}

static void print_ratio(double peer, double ours)
{
    if (peer > 0 && ours > 0)
        printf(" %6.2f", peer / ours);
    else
        printf(" %6s", "-");
}

static void print_share(double share)
{
    if (share > 0)
        printf(" %3.0f%%", share * 100);
    else
        printf(" %4s", "-");
}

static void print_line(struct table *t, const struct line *line)
{
    bool has_alloc = t->jobs[OURS].has_alloc;

    printf("%9zu", line->bytes);
    print_figures(t, line);
    printf(" |");
    for (enum column c = OPEN_MPI; c < COLUMNS; c++)
        if (t->has_job[c])
            print_ratio(line->us[c], line->us[OURS]);
    if (has_alloc)
        print_ratio(
            better(line->us[OPEN_MPI], line->us[MPICH]), line->us[OURS_ALLOC]);
    printf(" |");
    print_share(memory_share(t, line, line->us[OURS]));
    if (has_alloc)
        print_share(memory_share(t, line, line->us[OURS_ALLOC]));
    judge_column(t, line, OURS);
    judge_column(t, line, OURS_ALLOC);
    printf("\n");
    fflush(stdout);
}

static void print_head(struct table *t, enum bench_op op)
{
    static const char *const ratios[COLUMNS] = {
        [OPEN_MPI] = "xOMPI", [MPICH] = "xMPICH", [GLOO] = "xGloo"};
    bool has_alloc = t->jobs[OURS].has_alloc;

    printf("\n%s, float32, %d ranks%s\n%9s", bench_op_name(op), t->ranks,
        t->is_crowded ? " (more than cores)" : "", "");
    for (enum column c = 0; c < COLUMNS; c++)
        if (t->has_job[c] || (c == OURS_ALLOC && has_alloc))
            printf(" | %-27s",
                c == OURS_ALLOC ? "the same, coll_alloc" : t->jobs[c].name);
    printf("\n%9s", "bytes");
    for (enum column c = 0; c < COLUMNS; c++)
        if (t->has_job[c] || (c == OURS_ALLOC && has_alloc))
            printf(" | %9s %6s %6s %3s", "us", "algbw", "busbw", "bad");
    printf(" |");
    for (enum column c = OPEN_MPI; c < COLUMNS; c++)
        if (t->has_job[c])
            printf(" %6s", ratios[c]);
    printf("%s | %s%s\n", has_alloc ? " alloc " : "", "mem ",
        has_alloc ? "alloc" : "");
}

static int print_table(struct table *t, enum bench_op op)
{
    struct line line = {.op = op};

    if (!bench_job_has(&t->jobs[OURS], op)) {
        printf("\n%s: not in this libcollective\n", bench_op_name(op));
        return 0;
    }
    print_head(t, op);
    if (op == BENCH_BARRIER) {
        if (measure(t, &line) < 0)
            return -1;
        print_line(t, &line);
        return 0;
    }
    for (size_t bytes = BENCH_BYTES_MIN; bytes <= BENCH_BYTES_MAX; bytes *= 4) {
        line = (struct line){.op = op, .bytes = bytes};
        if ((op == BENCH_ALL_GATHER || op == BENCH_REDUCE_SCATTER ||
                op == BENCH_ALL_TO_ALL) &&
            bytes < (size_t)t->ranks * sizeof(float))
            continue; /* less than an element for each */
        if (op == BENCH_STREAM && bench_stream_messages(bytes) == 1)
            continue; /* that is a ping_pong */
        if (measure(t, &line) < 0)
            return -1;
        print_line(t, &line);
    }
    return 0;
}

/* --- main ---------------------------------------------------------------- */

static int column_of(const char *kind)
{
    static const char *const kinds[COLUMNS] = {[OURS] = "ours",
        [OPEN_MPI] = "openmpi",
        [MPICH] = "mpich",
        [GLOO] = "gloo"};

    for (int c = 0; c < COLUMNS; c++)
        if (kinds[c] != NULL && strcmp(kind, kinds[c]) == 0)
            return c;
    return -1;
}

static int start(struct table *t, const char *folder, char **library)
{
    char dir[PATH_MAX];
    int column = column_of(library[0]);
    int rc;

    if (column < 0 || t->has_job[column]) {
        fprintf(
            stderr, "%s: not a kind of library, or there twice\n", library[0]);
        return -1;
    }
    snprintf(dir, sizeof(dir), "%s/%s.%d", folder, library[0], t->ranks);
    rc = bench_job_start(
        &t->jobs[column], library[1], library[2], dir, t->ranks);
    t->has_job[column] = true; /* to be ended in any case */
    return rc;
}

int main(int argc, char **argv)
{
    struct table t = {0};
    cpu_set_t cpus;
    int rc = -1;

    if (argc < 7 || argc % 3 != 1 || (t.ranks = atoi(argv[1])) < 2 ||
        t.ranks % 2 != 0 || strcmp(argv[4], "ours") != 0) {
        fprintf(stderr,
            "usage: %s RANKS FOLDER MISSES ours NAME COMMAND "
            "[KIND NAME COMMAND]...\n",
            argv[0]);
        return 2;
    }
    if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0)
        t.is_crowded = t.ranks > CPU_COUNT(&cpus);
    t.misses = fopen(argv[3], "a");
    if (t.misses == NULL) {
        perror(argv[3]);
        return 1;
    }
    for (int i = 4; i < argc; i += 3)
        if (start(&t, argv[2], argv + i) < 0)
            goto done;
    for (enum bench_op op = 0; op <= BENCH_STREAM; op++)
        if (print_table(&t, op) < 0)
            goto done;
    rc = 0;
    if (t.wrong > 0) {
        fprintf(stderr, "some results were wrong\n");
        rc = -1;
    }
done:
    for (enum column c = 0; c < COLUMNS; c++)
        if (t.has_job[c])
            bench_job_end(&t.jobs[c]);
    if (fclose(t.misses) != 0) {
        perror(argv[3]);
        rc = -1;
    }
    return rc < 0;
}
