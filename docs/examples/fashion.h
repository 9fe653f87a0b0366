/*
 * What train_fashion.c and train_fashion_cuda.cu have in common, so that each
 * of them is about its model, and about how ranks share the work: options, the
 * data set, random numbers, the learning rate, and how ranks join and agree on
 * whether they can go on. For C and C++; who includes it defines PROGRAM, the
 * name that its messages bear.
 */
#ifndef FASHION_H
#define FASHION_H

#include <collective.h>

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

enum {
    SIDE = 28,
    PIXELS = SIDE * SIDE,
    CLASSES = 10,
    MAX_LAYERS = 8,
    MAX_WIDTH = 16384,
    MAX_IMAGES = 1000000, /* more than any data set of this format has */
    EVAL_ROWS = 250, /* test images per forward pass */
    WARMUP_STEPS = 200,
    EXIT_USAGE = 2,
};

/* Why this rank cannot go on, and the exit status that tells it. It is not
 * printed where it is found: see agree(). */
struct problem {
    int exit_code; /* 0: no problem */
    char text[1024];
};

/* Records the first problem; always returns false, so that a failing function
 * ends with `return problem_set(...)`. */
__attribute__((format(printf, 3, 4))) static bool problem_set(
    struct problem *p, int exit_code, const char *fmt, ...)
{
    va_list args;

    if (p->exit_code != 0)
        return false;
    p->exit_code = exit_code;
    va_start(args, fmt);
    vsnprintf(p->text, sizeof(p->text), fmt, args);
    va_end(args);
    return false;
}

static void print_problem(const struct problem *p)
{
    if (p->exit_code != 0)
        fprintf(stderr, PROGRAM ": %s\n", p->text);
}

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- Options ------------------------------------------------------------ */

struct options {
    const char *data;
    int hidden[MAX_LAYERS - 1];
    int nhidden;
    long epochs;
    long batch; /* of all ranks together */
    long seed;
    long steps; /* 0: as many as the epochs have */
    double lr;
    double momentum;
    bool log_steps;
    bool help;
};

static struct options default_options(void)
{
    struct options o;

    memset(&o, 0, sizeof(o));
    o.data = "/usr/share/datasets/fashion-mnist";
    o.hidden[0] = 512;
    o.hidden[1] = 256;
    o.nhidden = 2;
    o.epochs = 15;
    o.batch = 240;
    o.seed = 1;
    o.lr = 0.05;
    o.momentum = 0.9;
    return o;
}

static const char help_text[] =
    "usage: " PROGRAM " [options]\n"
    "\n"
    "Trains a multilayer perceptron on Fashion-MNIST, data-parallel over the\n"
    "processes of the job. Start it with crun, or alone with WORLD_SIZE=1.\n"
    "\n"
    "  --data DIR       folder of the four idx files, plain or .gz\n"
    "                   (/usr/share/datasets/fashion-mnist)\n"
    "  --epochs N       passes over the training images (15)\n"
    "  --batch N        images per step, all processes together (240)\n"
    "  --hidden N[,N]   widths of the hidden layers (512,256)\n"
    "  --lr X           peak learning rate (0.05)\n"
    "  --momentum X     momentum of SGD, 0 to less than 1 (0.9)\n"
    "  --seed N         of the first weights and of the shuffling (1)\n"
    "  --steps N        stop after N steps\n"
    "  --log-steps      print the loss of every step\n"
    "  --help           print this and exit\n";

/* A whole number in [min, max], and nothing else around it. */
static bool parse_whole(const char *name, const char *text, long min, long max,
    long *out, struct problem *p)
{
    char *end;
    long value;

    errno = 0;
    value = strtol(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 ||
        value < min || value > max)
        return problem_set(p, EXIT_USAGE,
            "--%s takes a whole number from %ld to %ld, not '%s'", name, min,
            max, text);
    *out = value;
    return true;
}

/* A decimal number in [min, max). */
static bool parse_real(const char *name, const char *text, double min,
    double max, double *out, struct problem *p)
{
    char *end;
    double value = strtod(text, &end);

    if (strspn(text, "0123456789.eE+-") != strlen(text) || end == text ||
        *end != '\0' || !(value >= min && value < max))
        return problem_set(p, EXIT_USAGE,
            "--%s takes a number from %g to less than %g, not '%s'", name, min,
            max, text);
    *out = value;
    return true;
}

/* "512" or "512,256": one layer for each width. */
static bool parse_hidden(const char *text, struct options *o, struct problem *p)
{
    const char *s = text;
    char *end;
    long width;

    o->nhidden = 0;
    do {
        width = *s >= '0' && *s <= '9' ? strtol(s, &end, 10) : 0;
        if (width < 1 || width > MAX_WIDTH || (*end != ',' && *end != '\0') ||
            o->nhidden == MAX_LAYERS - 1)
            return problem_set(p, EXIT_USAGE,
                "--hidden takes 1 to %d widths from 1 to %d with commas in "
                "between, not '%s'",
                MAX_LAYERS - 1, MAX_WIDTH, text);
        o->hidden[o->nhidden++] = (int)width;
        s = end + 1;
    } while (*end == ',');
    return true;
}

static bool parse_options(
    int argc, char **argv, struct options *o, struct problem *p)
{
    static const struct option table[] = {
        {"data", required_argument, NULL, 'd'},
        {"epochs", required_argument, NULL, 'e'},
        {"batch", required_argument, NULL, 'b'},
        {"hidden", required_argument, NULL, 'n'},
        {"lr", required_argument, NULL, 'l'},
        {"momentum", required_argument, NULL, 'm'},
        {"seed", required_argument, NULL, 's'},
        {"steps", required_argument, NULL, 't'},
        {"log-steps", no_argument, NULL, 'g'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    bool good = true;
    int c;

    opterr = 0;
    while (good && (c = getopt_long(argc, argv, ":", table, NULL)) != -1) {
        switch (c) {
        case 'd':
            o->data = optarg;
            break;
        case 'e':
            good = parse_whole("epochs", optarg, 1, 100000, &o->epochs, p);
            break;
        case 'b':
            good = parse_whole("batch", optarg, 1, MAX_IMAGES, &o->batch, p);
            break;
        case 'n':
            good = parse_hidden(optarg, o, p);
            break;
        case 'l':
            good = parse_real("lr", optarg, 0, 1000, &o->lr, p);
            break;
        case 'm':
            good = parse_real("momentum", optarg, 0, 1, &o->momentum, p);
            break;
        case 's':
            good = parse_whole("seed", optarg, 0, LONG_MAX, &o->seed, p);
            break;
        case 't':
            good = parse_whole("steps", optarg, 1, LONG_MAX, &o->steps, p);
            break;
        case 'g':
            o->log_steps = true;
            break;
        case 'h':
            o->help = true;
            break;
        case ':':
            return problem_set(
                p, EXIT_USAGE, "option %s needs a value", argv[optind - 1]);
        default:
            if (argv[optind - 1][1] != '-')
                return problem_set(p, EXIT_USAGE,
                    "unknown option -%c; --help lists the options", optopt);
            return problem_set(p, EXIT_USAGE,
                optopt == 0 ? "unknown option %s; --help lists the options"
                            : "option %s does not take a value",
                argv[optind - 1]);
        }
    }
    if (good && optind < argc)
        return problem_set(p, EXIT_USAGE,
            "unexpected argument '%s'; --help lists the options", argv[optind]);
    return good;
}

/* --- Data --------------------------------------------------------------- */

/* Pixels stay bytes, a quarter of the memory; a batch becomes floats when it
 * is used. */
struct dataset {
    int count;
    uint8_t *images; /* [count][PIXELS], owned */
    uint8_t *labels; /* [count], owned */
};

static void dataset_fini(struct dataset *d)
{
    free(d->images);
    free(d->labels);
    memset(d, 0, sizeof(*d));
}

/* "PATH: what is wrong; what to do" */
__attribute__((format(printf, 3, 4))) static bool data_problem(
    struct problem *p, const char *path, const char *fmt, ...)
{
    char what[256];
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    return problem_set(p, EXIT_FAILURE,
        "%s: %s; install the Debian package dataset-fashion-mnist or name "
        "another folder with --data DIR",
        path, what);
}

/* Opens path, which ends in .gz, or else the same name without that. zlib
 * reads both. On success path is what was opened. */
static gzFile open_idx(char *path, struct problem *p)
{
    /* Without O_NONBLOCK, opening a FIFO would wait for a writer. */
    const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
    char *suffix = path + strlen(path) - strlen(".gz");
    int fd = open(path, flags);
    struct stat st;
    gzFile f;

    if (fd < 0 && errno == ENOENT) {
        *suffix = '\0';
        fd = open(path, flags);
        if (fd < 0 && errno == ENOENT) {
            *suffix = '.';
            data_problem(p, path, "no such file, and none without .gz");
            return NULL;
        }
    }
    if (fd < 0 || fstat(fd, &st) < 0) {
        data_problem(p, path, "cannot open: %s", strerror(errno));
        goto fail;
    }
    if (!S_ISREG(st.st_mode)) {
        data_problem(p, path, "not a regular file");
        goto fail;
    }
    f = gzdopen(fd, "rb");
    if (f != NULL)
        return f;
    data_problem(p, path, "cannot open: out of memory");
fail:
    if (fd >= 0)
        close(fd);
    return NULL;
}

/* Why zlib gave less than the expected bytes. */
static bool read_problem(
    gzFile f, const char *path, int expected, struct problem *p)
{
    int error = errno, code;
    const char *text = gzerror(f, &code);

    if (code == Z_OK || code == Z_BUF_ERROR)
        return data_problem(p, path, "%sends after %ld bytes, expected %d%s",
            code == Z_OK ? "" : "compressed data ", (long)gztell(f), expected,
            code == Z_OK ? "" : " and a check sum");
    if (code == Z_ERRNO)
        text = strerror(error);
    else if (strncmp(text, path, strlen(path)) == 0)
        text += strlen(path) + strlen(": "); /* zlib repeats the path */
    return data_problem(p, path, "cannot read: %s", text);
}

static uint32_t be32(const uint8_t *b)
{
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 |
           b[3];
}

/* An idx file starts with the magic number 0x0800 (bytes) plus the number of
 * dimensions, and each dimension: big-endian words. */
static bool check_header(
    const uint8_t *header, int ndims, const char *path, struct problem *p)
{
    const uint32_t magic = be32(header), count = be32(header + 4);

    if (magic != 0x0800u + (uint32_t)ndims)
        return data_problem(p, path,
            "starts with 0x%08" PRIx32 ", expected 0x%08x (idx, bytes, %d "
            "dimensions)",
            magic, 0x0800 + ndims, ndims);
    if (count < 1 || count > MAX_IMAGES)
        return data_problem(p, path,
            "says it has %" PRIu32 " items, expected 1 to %d", count,
            MAX_IMAGES);
    if (ndims == 3 && (be32(header + 8) != SIDE || be32(header + 12) != SIDE))
        return data_problem(p, path,
            "has images of %" PRIu32 " x %" PRIu32 " pixels, expected %d x %d",
            be32(header + 8), be32(header + 12), SIDE, SIDE);
    return true;
}

/* Reads DIR/NAME.gz or DIR/NAME as a whole. On success *out is the caller's
 * to free. */
static bool read_idx(const char *dir, const char *name, int ndims,
    uint8_t **out, int *out_count, struct problem *p)
{
    const int header_len = 4 + 4 * ndims;
    char path[4096];
    uint8_t header[16], extra, *data = NULL;
    gzFile f = NULL;
    int count, len, n, code;

    n = snprintf(path, sizeof(path), "%s/%s.gz", dir, name);
    if (n < 0 || (size_t)n >= sizeof(path))
        return data_problem(p, name, "the path of its folder is too long");
    f = open_idx(path, p);
    if (f == NULL)
        return false;
    gzbuffer(f, 1 << 17);
    if (gzread(f, header, (unsigned)header_len) != header_len) {
        read_problem(f, path, header_len, p);
        goto fail;
    }
    if (!check_header(header, ndims, path, p))
        goto fail;
    count = (int)be32(header + 4);
    len = count * (ndims == 3 ? PIXELS : 1); /* MAX_IMAGES keeps it an int */
    data = (uint8_t *)malloc((size_t)len);
    if (data == NULL) {
        problem_set(p, EXIT_FAILURE, "%s: no memory for %d bytes", path, len);
        goto fail;
    }
    if (gzread(f, data, (unsigned)len) != len) {
        read_problem(f, path, header_len + len, p);
        goto fail;
    }
    /* Only at the end of a .gz file does zlib check its sum. */
    n = gzread(f, &extra, 1);
    gzerror(f, &code);
    if (n > 0) {
        data_problem(p, path,
            "goes on after the %d items that it has by its "
            "header",
            count);
        goto fail;
    }
    if (n < 0 || code != Z_OK) {
        read_problem(f, path, header_len + len, p);
        goto fail;
    }
    gzclose(f);
    *out = data;
    *out_count = count;
    return true;
fail:
    gzclose(f);
    free(data);
    return false;
}

/* prefix is "train" or "t10k". */
static bool dataset_load(
    struct dataset *d, const char *dir, const char *prefix, struct problem *p)
{
    char images[64], labels[64];
    int count = 0, i;

    snprintf(images, sizeof(images), "%s-images-idx3-ubyte", prefix);
    snprintf(labels, sizeof(labels), "%s-labels-idx1-ubyte", prefix);
    if (!read_idx(dir, images, 3, &d->images, &d->count, p) ||
        !read_idx(dir, labels, 1, &d->labels, &count, p))
        return false;
    if (count != d->count)
        return data_problem(p, dir,
            "%s has %d labels, expected one for each "
            "of the %d images",
            labels, count, d->count);
    for (i = 0; i < count; i++)
        if (d->labels[i] >= CLASSES)
            return data_problem(p, dir,
                "label %d of %s is %d, expected 0 to "
                "%d",
                i, labels, d->labels[i], CLASSES - 1);
    return true;
}

/* --- Random numbers ----------------------------------------------------- */

/*
 * SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
 * Generators, OOPSLA 2014). A counter and a mixing function: any seed is a
 * good one, and every rank gets the same numbers from the same seed.
 */
static uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* In [-1, 1), of 24 bits: each value is a float exactly. */
static float random_unit(uint64_t *state)
{
    return (float)(random_next(state) >> 40) * 0x1p-23f - 1.0f;
}

/* Fisher-Yates. Scaling 32 bits to the range favours some places by less than
 * count / 2^32, which is nothing here. */
static void shuffle(int *order, int count, long seed, int epoch)
{
    uint64_t state = (uint64_t)seed;
    int i, j, tmp;

    state = random_next(&state) + (uint64_t)epoch;
    for (i = 0; i < count; i++)
        order[i] = i;
    for (i = count - 1; i > 0; i--) {
        j = (int)((random_next(&state) >> 32) * (uint64_t)(i + 1) >> 32);
        tmp = order[i];
        order[i] = order[j];
        order[j] = tmp;
    }
}

/* --- Training ----------------------------------------------------------- */

/* Rises for WARMUP_STEPS, then falls to 0 along half a cosine. */
static double learning_rate(double peak, long step, long total)
{
    const long most = WARMUP_STEPS;
    const long warmup = total / 2 < most ? total / 2 : most;

    if (step < warmup)
        return peak * (double)(step + 1) / (double)warmup;
    return peak * 0.5 *
           (1.0 +
               cos(M_PI * (double)(step - warmup) / (double)(total - warmup)));
}

/* --- Ranks together ----------------------------------------------------- */

static bool coll_ok(coll_status_t status)
{
    int rank = coll_rank(NULL);

    if (status == COLL_OK)
        return true;
    fprintf(stderr, PROGRAM ": rank %d: %s\n", rank, coll_last_error());
    return false;
}

/* Joins the job, also when this rank has a problem: it can be told in good
 * order then, see agree(). Returns the exit status, after saying why. */
static int join(const struct problem *p)
{
    coll_options_t options = COLL_OPTIONS_INIT;

    /* Whoever cannot train does not wait for long until it may say so. */
    if (p->exit_code != 0)
        options.timeout_ms = 5000;
    if (coll_init(&options) == COLL_OK)
        return EXIT_SUCCESS;
    if (p->exit_code != 0) {
        print_problem(p);
        return p->exit_code;
    }
    fprintf(stderr, PROGRAM ": %s\n", coll_last_error());
    return EXIT_FAILURE;
}

/*
 * Every rank calls it with its problem or none. If any has one, all ranks
 * return an exit status, and the first one that has a problem tells it: once,
 * although all ranks may have met the same missing folder. The barrier keeps
 * the others from ending, and the launcher from stopping the job because of
 * that, before the problem is told.
 */
static int agree(const struct problem *p)
{
    const int rank = coll_rank(NULL), size = coll_world_size(NULL);
    int64_t first = p->exit_code != 0 ? rank : size;
    int64_t exit_code = p->exit_code;

    if (!coll_ok(
            coll_all_reduce(&first, &first, 1, COLL_INT64, COLL_MIN, NULL)) ||
        !coll_ok(coll_all_reduce(
            &exit_code, &exit_code, 1, COLL_INT64, COLL_MAX, NULL))) {
        print_problem(p);
        return EXIT_FAILURE;
    }
    if (first == size)
        return EXIT_SUCCESS;
    if (first == rank)
        print_problem(p);
    coll_ok(coll_barrier(NULL));
    return (int)exit_code;
}

#endif
