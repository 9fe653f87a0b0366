/*
 * coll_tune: a worker that measures which algorithm is the fastest for what on
 * the machines it runs on, says which one libcollective takes there, and why.
 * It knows of the library what is in its public header.
 */
#include <collective.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cmd/option_table.h"

#define EXIT_FAILED 1
#define EXIT_USAGE 2

#define USAGE "usage: crun [options] coll_tune [options]\n"

/* What another algorithm has to gain to be worth a word. */
#define MARGIN 1.1

#define WHY_BYTES 2048

struct settings {
    const char *operations; /* a list; NULL: all */
    int64_t min_bytes;
    int64_t max_bytes;
    int64_t factor;
    int64_t time_ms;
    bool is_allocated;
    bool is_help;
    bool is_version;
};

#define FIELD(field) .offset = offsetof(struct settings, field)
#define A_SIZE                                                                 \
    .type = OPTION_SIZE, .min = 4, .max = (int64_t)1 << 34, .value = "SIZE"

static const struct option options[] = {
    {.name = "operations",
        .type = OPTION_TEXT,
        FIELD(operations),
        .value = "NAME,...",
        .group = "options (SIZE is in bytes, or ends in K, M or G)",
        .help = "which ones (default: all that have a choice)"},
    {.name = "min-bytes",
        A_SIZE,
        FIELD(min_bytes),
        .help = "smallest message: the larger buffer of one rank"},
    {.name = "max-bytes", A_SIZE, FIELD(max_bytes), .help = "largest message"},
    {.name = "factor",
        .type = OPTION_NUMBER,
        FIELD(factor),
        .min = 2,
        .max = 1024,
        .value = "N",
        .help = "from one size to the next"},
    {.name = "time",
        .type = OPTION_SECONDS,
        FIELD(time_ms),
        .min = 1,
        .max = 3600 * 1000,
        .value = "SECONDS",
        .help = "how long to measure each algorithm at each size"},
    {.name = "alloc",
        .type = OPTION_FLAG,
        FIELD(is_allocated),
        .help = "buffers are of coll_alloc()"},
    {.name = "help",
        .letter = 'h',
        .type = OPTION_FLAG,
        FIELD(is_help),
        .help = "print this text"},
    {.name = "version",
        .type = OPTION_FLAG,
        FIELD(is_version),
        .help = "print the version"},
};

static const struct option_table table = {
    .options = options,
    .count = sizeof(options) / sizeof(options[0]),
    .hint = "",
};

static const struct settings defaults = {
    .min_bytes = 64, .max_bytes = 16 << 20, .factor = 4, .time_ms = 50};

/* --- Operations ----------------------------------------------------------- */

/* Elements are float32, and count is of a part. */
struct operation {
    const char *name;
    bool has_parts; /* a buffer has a part of each rank */
    coll_status_t (*run)(float *send, float *recv, size_t count);
};

static coll_status_t all_reduce(float *send, float *recv, size_t count)
{
    return coll_all_reduce(send, recv, count, COLL_FLOAT32, COLL_SUM, NULL);
}

static coll_status_t reduce(float *send, float *recv, size_t count)
{
    return coll_reduce(send, recv, count, COLL_FLOAT32, COLL_SUM, 0, NULL);
}

static coll_status_t broadcast(float *send, float *recv, size_t count)
{
    return coll_broadcast(
        coll_rank(NULL) == 0 ? send : recv, count, COLL_FLOAT32, 0, NULL);
}

static coll_status_t all_gather(float *send, float *recv, size_t count)
{
    return coll_all_gather(send, recv, count, COLL_FLOAT32, NULL);
}

static coll_status_t gather(float *send, float *recv, size_t count)
{
    return coll_gather(send, recv, count, COLL_FLOAT32, 0, NULL);
}

static coll_status_t scatter(float *send, float *recv, size_t count)
{
    return coll_scatter(send, recv, count, COLL_FLOAT32, 0, NULL);
}

static coll_status_t reduce_scatter(float *send, float *recv, size_t count)
{
    return coll_reduce_scatter(send, recv, count, COLL_FLOAT32, COLL_SUM, NULL);
}

static coll_status_t all_to_all(float *send, float *recv, size_t count)
{
    return coll_all_to_all(send, recv, count, COLL_FLOAT32, NULL);
}

static const struct operation operations[] = {
    {"all_reduce", false, all_reduce},
    {"reduce", false, reduce},
    {"broadcast", false, broadcast},
    {"all_gather", true, all_gather},
    {"gather", true, gather},
    {"scatter", true, scatter},
    {"reduce_scatter", true, reduce_scatter},
    {"all_to_all", true, all_to_all},
};

#define OPERATIONS (sizeof(operations) / sizeof(operations[0]))

/* Whether it is in the list, or there is none. */
static bool is_wanted(const char *list, const char *name)
{
    size_t len = strlen(name);

    for (const char *at = list; at != NULL && *at != '\0';) {
        size_t n = strcspn(at, ",");

        if (n == len && memcmp(at, name, n) == 0)
            return true;
        at += n + (at[n] == ',');
    }
    return list == NULL;
}

static int check_list(const char *list, struct err *e)
{
    for (const char *at = list; at != NULL && *at != '\0';) {
        size_t n = strcspn(at, ",");
        bool is_known = false;

        for (size_t i = 0; i < OPERATIONS; i++)
            is_known |= strlen(operations[i].name) == n &&
                        memcmp(operations[i].name, at, n) == 0;
        if (!is_known)
            return err_set(e, -EINVAL,
                "--operations: \"%.*s\" is none of all_reduce, reduce, "
                "broadcast, all_gather, gather, scatter, reduce_scatter, "
                "all_to_all",
                (int)n, at);
        at += n + (at[n] == ',');
    }
    return 0;
}

/* --- Measuring ------------------------------------------------------------ */

struct bench {
    const struct settings *s;
    const struct operation *op;
    int rank;
    int size;
    float *send;
    float *recv;
    size_t count;
};

/* What was measured of one algorithm. */
struct result {
    bool is_taken; /* it is possible for the case */
    double us;
    char why[WHY_BYTES];
};

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The slowest rank counts. */
static coll_status_t slowest(double *us)
{
    return coll_all_reduce(us, us, 1, COLL_FLOAT64, COLL_MAX, NULL);
}

/* As a program would: writes what is sent, and reads what has come, so that
 * both are in the caches of this rank. Outside of the time, and all ranks begin
 * together. */
static coll_status_t run_once(const struct bench *b, double *us)
{
    size_t count = b->op->has_parts ? b->count * (size_t)b->size : b->count;
    volatile float sum = 0;
    double begin;
    coll_status_t status;

    for (size_t i = 0; i < count; i++)
        b->send[i] = (float)(i % 64);
    for (size_t i = 0; i < count; i += 16)
        sum += b->recv[i];
    status = coll_barrier(NULL);
    if (status == COLL_OK)
        status = coll_barrier(NULL);
    if (status != COLL_OK)
        return status;
    begin = now_us();
    status = b->op->run(b->send, b->recv, b->count);
    *us = now_us() - begin;
    return status;
}

/* The median of as many runs as the time allows, at least five. */
static coll_status_t measure(const struct bench *b, double *us)
{
    enum { MIN_RUNS = 5, MAX_RUNS = 1000 };
    double times[MAX_RUNS];
    double first = 0;
    int runs;
    coll_status_t status = COLL_OK;

    for (int i = 0; i < 2 && status == COLL_OK; i++)
        status = run_once(b, &first);
    if (status == COLL_OK)
        status = slowest(&first);
    if (status != COLL_OK)
        return status;
    /* The same on all ranks. */
    first = (double)b->s->time_ms * 1000 / (first > 0 ? first : 1);
    runs = first > MAX_RUNS   ? MAX_RUNS
           : first < MIN_RUNS ? MIN_RUNS
                              : (int)first;
    for (int i = 0; i < runs && status == COLL_OK; i++)
        status = run_once(b, &times[i]);
    if (status != COLL_OK)
        return status;
    qsort(times, (size_t)runs, sizeof(times[0]), compare);
    *us = times[runs / 2];
    return slowest(us);
}

/* name NULL: what the library takes. One run tells whether it is possible. */
static coll_status_t try_algorithm(
    const struct bench *b, const char *name, struct result *r)
{
    char choice[64] = "";
    double us;
    coll_status_t status;

    if (name != NULL)
        snprintf(choice, sizeof(choice), "%s:%s", b->op->name, name);
    status = coll_algorithm_set(NULL, choice);
    if (status == COLL_OK)
        status = run_once(b, &us);
    if (status == COLL_OK)
        status = coll_explain(NULL, r->why, sizeof(r->why));
    if (status != COLL_OK)
        return status;
    r->is_taken = name == NULL || strstr(r->why, "; forced") != NULL;
    if (strstr(r->why, "; forced but") != NULL)
        r->is_taken = false;
    /* Ranks may differ: where one leads a node, for example. */
    us = r->is_taken;
    status = slowest(&us);
    r->is_taken = us > 0;
    if (status == COLL_OK && r->is_taken)
        status = measure(b, &r->us);
    if (status == COLL_OK)
        status = coll_algorithm_set(NULL, NULL);
    return status;
}

/* --- The table ------------------------------------------------------------ */

/* The names of the algorithms in an explanation: "hierarchical, two_shot". */
static void list_names(char *out, size_t cap, const char *why)
{
    size_t len = 0;

    out[0] = '\0';
    for (const char *line = why; line != NULL && *line != '\0';) {
        const char *name = strchr(line, ' ');
        int n = name == NULL ? 0 : (int)strcspn(name + 1, " ");

        if (n > 0 && len < cap)
            len += (size_t)snprintf(out + len, cap - len, "%s%.*s",
                len > 0 ? ", " : "", n, name + 1);
        line = strchr(line, '\n');
        line = line == NULL ? NULL : line + 1;
    }
}

static bool names_one(const char *names, const char *name)
{
    size_t len = strlen(name);

    for (const char *at = names; (at = strstr(at, name)) != NULL; at += len)
        if ((at == names || at[-1] == ' ') &&
            (at[len] == '\0' || at[len] == ','))
            return true;
    return false;
}

/* A line of the table; the reasons where others are taken than at the size
 * before. */
static coll_status_t run_size(
    const struct bench *b, size_t bytes, char *before, size_t before_cap)
{
    struct result own;
    struct result other;
    char names[128];
    char best[64] = "";
    double best_us;
    const char *name;
    coll_status_t status = try_algorithm(b, NULL, &own);

    if (status != COLL_OK)
        return status;
    list_names(names, sizeof(names), own.why);
    /* Rank 0 leads a node, and knows of the levels that others may not see. */
    status = coll_broadcast(names, sizeof(names), COLL_UINT8, 0, NULL);
    if (status != COLL_OK)
        return status;
    best_us = own.us / MARGIN;
    if (b->rank == 0)
        printf("%-14s %9zu  %10.2f  %-22s", b->op->name, bytes, own.us, names);
    for (int i = 0; (name = coll_algorithm_name(b->op->name, i)) != NULL; i++) {
        if (names_one(names, name))
            continue;
        status = try_algorithm(b, name, &other);
        if (status != COLL_OK)
            return status;
        if (!other.is_taken)
            continue;
        if (b->rank == 0)
            printf("  %s %.2f", name, other.us);
        if (other.us < best_us) {
            best_us = other.us;
            snprintf(best, sizeof(best), "%s", name);
        }
    }
    if (b->rank != 0)
        return COLL_OK;
    if (best[0] != '\0')
        printf("  <- %s:%s is %.2f times as fast", b->op->name, best,
            own.us / best_us);
    printf("\n");
    if (strcmp(before, names) != 0)
        for (char *line = strtok(own.why, "\n"); line != NULL;
             line = strtok(NULL, "\n"))
            printf("    %s\n", line);
    snprintf(before, before_cap, "%s", names);
    fflush(stdout);
    return COLL_OK;
}

static coll_status_t run_operation(
    const struct settings *s, struct bench *b, const struct operation *op)
{
    char before[128] = "";
    coll_status_t status = COLL_OK;
    size_t parts = op->has_parts ? (size_t)b->size : 1;

    b->op = op;
    for (int64_t bytes = s->min_bytes;
         bytes <= s->max_bytes && status == COLL_OK; bytes *= s->factor) {
        b->count = (size_t)bytes / sizeof(float) / parts;
        if (b->count > 0)
            status = run_size(
                b, b->count * parts * sizeof(float), before, sizeof(before));
    }
    return status;
}

static coll_status_t get_buffer(const struct settings *s, float **out)
{
    size_t bytes = (size_t)s->max_bytes;

    if (s->is_allocated)
        return coll_alloc((void **)out, bytes);
    *out = malloc(bytes);
    if (*out != NULL)
        memset(*out, 0, bytes);
    return *out == NULL ? COLL_ERR_MEMORY : COLL_OK;
}

static void put_buffer(const struct settings *s, float *buffer)
{
    if (s->is_allocated)
        (void)coll_free(buffer);
    else
        free(buffer);
}

static coll_status_t run_all(const struct settings *s)
{
    struct bench b = {
        .s = s, .rank = coll_rank(NULL), .size = coll_world_size(NULL)};
    coll_status_t status = get_buffer(s, &b.send);

    if (status == COLL_OK)
        status = get_buffer(s, &b.recv);
    if (b.rank == 0 && status == COLL_OK)
        printf("# %d ranks, back end %s, buffers %s, float32\n"
               "# operation, bytes, us (median, of the slowest rank), what the "
               "library takes; the others, us\n",
            b.size, coll_backend_name(NULL),
            s->is_allocated ? "of coll_alloc()" : "of malloc()");
    for (size_t i = 0; i < OPERATIONS && status == COLL_OK; i++)
        if (is_wanted(s->operations, operations[i].name))
            status = run_operation(s, &b, &operations[i]);
    put_buffer(s, b.send);
    put_buffer(s, b.recv);
    return status;
}

/* --- The program ---------------------------------------------------------- */

static int parse(int argc, char **argv, struct settings *s, struct err *e)
{
    const struct option_target target = {.base = s};
    int rest;
    int rc;

    *s = defaults;
    rc = option_table_parse(&table, &target, argc, argv, &rest, e);
    if (rc < 0 || s->is_help || s->is_version)
        return rc;
    if (rest < argc)
        return err_set(e, -EINVAL, "unexpected argument '%s'", argv[rest]);
    if (s->min_bytes > s->max_bytes)
        return err_set(e, -EINVAL,
            "--min-bytes=%lld is more than --max-bytes=%lld",
            (long long)s->min_bytes, (long long)s->max_bytes);
    return check_list(s->operations, e);
}

static void print_help(void)
{
    fputs(USAGE
        "\n"
        "Measures every algorithm that libcollective has for an operation, at "
        "sizes\n"
        "from small to large, among the workers that it is started as. Of each "
        "size\n"
        "it prints what the library takes, and the others; the reasons where "
        "that\n"
        "changes; and <- where another one is faster by more than a tenth. "
        "Such a\n"
        "OPERATION:ALGORITHM can be forced with COLL_ALGORITHM or\n"
        "coll_algorithm_set().\n"
        "\n",
        stdout);
    option_table_print(&table, &defaults, stdout);
    fputs("\n"
          "exit status: 0, 1 if an operation fails, 2 for a mistake on the "
          "command line\n",
        stdout);
}

int main(int argc, char **argv)
{
    struct settings s;
    struct err e = {0};
    coll_status_t status;

    if (parse(argc, argv, &s, &e) < 0) {
        fprintf(stderr, "coll_tune: %s\n" USAGE, e.msg);
        return EXIT_USAGE;
    }
    if (s.is_help) {
        print_help();
        return 0;
    }
    if (s.is_version) {
        puts("coll_tune " CRUN_VERSION);
        return 0;
    }
    status = coll_init(NULL);
    if (status == COLL_OK && coll_world_size(NULL) == 1)
        puts("coll_tune: one rank alone has nothing to choose");
    else if (status == COLL_OK)
        status = run_all(&s);
    if (status == COLL_OK)
        status = coll_destroy();
    if (status != COLL_OK) {
        fprintf(stderr, "coll_tune: %s\n", coll_last_error());
        return EXIT_FAILED;
    }
    return 0;
}
