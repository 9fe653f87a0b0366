/*
 * train_fashion: a multilayer perceptron learns Fashion-MNIST, data-parallel.
 *
 *     crun --nproc_per_node=2 train_fashion
 *     WORLD_SIZE=1 train_fashion                  (alone, without a launcher)
 *
 * Every process (a "rank") holds the whole model and the whole data set. In
 * each step all ranks look at the same global batch, each rank computes the
 * gradient of its own slice of it, coll_all_reduce() adds the gradients up,
 * and all ranks make the same update. So the result is that of one process
 * with the same batch, but for the rounding of the sums.
 *
 * Read it top to bottom: options, data, random numbers, model, the parts
 * where ranks talk to each other, training, main. It uses libc, zlib (to read
 * the data), CBLAS (to multiply matrices) and libcollective, and shows how a
 * program uses the latter; it is no framework.
 *
 *     cc -O2 train_fashion.c $(pkg-config --cflags --libs collective) \
 *         -lz -lblas -lm
 */
#include <collective.h>

#include <cblas.h>
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
        fprintf(stderr, "train_fashion: %s\n", p->text);
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

static const char help_text[] =
    "usage: train_fashion [options]\n"
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
    *d = (struct dataset){0};
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
    data = malloc((size_t)len);
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

/* --- Model -------------------------------------------------------------- */

/* y = x W + b, then ReLU in every layer but the last. Matrices are stored row
 * by row; an image is a row. */
struct layer {
    int in, out;
    float *w, *dw; /* [in][out], inside params and grads */
    float *b, *db; /* [out], inside params and grads */
    float *act, *delta; /* [rows][out]: outputs, and the loss's gradient by
                           the layer's sums; owned */
};

struct model {
    int nlayers;
    int rows; /* images that one pass can take */
    struct layer layer[MAX_LAYERS];
    float *input; /* [rows][PIXELS] */
    /*
     * All parameters lie in one array and all gradients in another, so that
     * one collective call moves them. The gradients' array has one more
     * element: the loss travels with them and needs no call of its own.
     */
    size_t nparams;
    float *params; /* [nparams] */
    float *grads; /* [nparams + 1] */
    float *velocity; /* [nparams] */
    float pixel[256]; /* byte to normalised float */
};

static void model_fini(struct model *m)
{
    int i;

    for (i = 0; i < m->nlayers; i++) {
        free(m->layer[i].act);
        free(m->layer[i].delta);
    }
    free(m->input);
    free(m->params);
    free(m->grads);
    free(m->velocity);
    *m = (struct model){0};
}

/* All zero at first; false if memory is out. */
static bool model_init(struct model *m, const struct options *o, int rows)
{
    struct layer *l;
    size_t at = 0;
    int i;

    *m = (struct model){.rows = rows, .nlayers = o->nhidden + 1};
    for (i = 0; i < 256; i++) /* mean and deviation of the training images */
        m->pixel[i] = ((float)i / 255.0f - 0.2860f) / 0.3530f;
    for (i = 0; i < m->nlayers; i++) {
        l = &m->layer[i];
        l->in = i == 0 ? PIXELS : o->hidden[i - 1];
        l->out = i == m->nlayers - 1 ? CLASSES : o->hidden[i];
        l->act = calloc((size_t)rows * l->out, sizeof(float));
        l->delta = calloc((size_t)rows * l->out, sizeof(float));
        if (l->act == NULL || l->delta == NULL)
            return false;
        m->nparams += ((size_t)l->in + 1) * l->out;
    }
    m->input = calloc((size_t)rows * PIXELS, sizeof(float));
    m->params = calloc(m->nparams, sizeof(float));
    m->grads = calloc(m->nparams + 1, sizeof(float));
    m->velocity = calloc(m->nparams, sizeof(float));
    if (m->input == NULL || m->params == NULL || m->grads == NULL ||
        m->velocity == NULL)
        return false;
    for (l = m->layer; l < m->layer + m->nlayers; l++) {
        l->w = m->params + at;
        l->dw = m->grads + at;
        at += (size_t)l->in * l->out;
        l->b = m->params + at;
        l->db = m->grads + at;
        at += l->out;
    }
    return true;
}

/*
 * He's initialisation (uniform): the variance 2/in keeps the size of the
 * activations from layer to layer under ReLU. Biases start at 0, and so does
 * the last layer: all classes are equally likely at first (loss ln 10), and
 * the first gradients are small. A ReLU that rounding turns on for one image
 * in one run and off in the other then makes no difference that grows.
 */
static void model_randomise(struct model *m, long seed)
{
    uint64_t state = (uint64_t)seed;
    struct layer *l;
    float limit;
    size_t i;

    for (l = m->layer; l < m->layer + m->nlayers - 1; l++) {
        limit = sqrtf(6.0f / (float)l->in);
        for (i = 0; i < (size_t)l->in * l->out; i++)
            l->w[i] = limit * random_unit(&state);
    }
}

/* Row r of the input becomes image order[r], or image r if order is NULL. */
static void model_feed(
    struct model *m, const uint8_t *images, const int *order, int rows)
{
    const uint8_t *src;
    float *dst = m->input;
    int r, k;

    for (r = 0; r < rows; r++) {
        src = images + (size_t)(order == NULL ? r : order[r]) * PIXELS;
        for (k = 0; k < PIXELS; k++)
            *dst++ = m->pixel[src[k]];
    }
}

/* The scores of the rows' classes: [rows][CLASSES], the last layer's act. */
static const float *model_forward(struct model *m, int rows)
{
    const float *x = m->input;
    const struct layer *l, *last = &m->layer[m->nlayers - 1];
    size_t i;
    int r;

    for (l = m->layer; l <= last; l++) {
        for (r = 0; r < rows; r++)
            memcpy(l->act + (size_t)r * l->out, l->b, l->out * sizeof(float));
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, l->out,
            l->in, 1.0f, x, l->in, l->w, l->out, 1.0f, l->act, l->out);
        if (l != last)
            for (i = 0; i < (size_t)rows * l->out; i++)
                l->act[i] = l->act[i] > 0.0f ? l->act[i] : 0.0f;
        x = l->act;
    }
    return x;
}

/*
 * Softmax and cross entropy. Returns the sum of the rows' losses and leaves
 * its gradient by the scores, times scale, in the last layer's delta. The
 * label of row r is labels[order[r]].
 */
static double model_loss(struct model *m, const uint8_t *labels,
    const int *order, int rows, float scale)
{
    struct layer *l = &m->layer[m->nlayers - 1];
    const float *score;
    float *delta, max, sum;
    double loss = 0.0;
    int r, k, label;

    for (r = 0; r < rows; r++) {
        score = l->act + (size_t)r * CLASSES;
        delta = l->delta + (size_t)r * CLASSES;
        label = labels[order[r]];
        max = score[0];
        for (k = 1; k < CLASSES; k++)
            max = score[k] > max ? score[k] : max;
        sum = 0.0f; /* of exp(score - max): cannot overflow */
        for (k = 0; k < CLASSES; k++)
            sum += delta[k] = expf(score[k] - max);
        for (k = 0; k < CLASSES; k++)
            delta[k] *= scale / sum;
        delta[label] -= scale;
        loss += (double)logf(sum) - (double)(score[label] - max);
    }
    return loss;
}

/* From the last layer's delta to every gradient. */
static void model_backward(struct model *m, int rows)
{
    struct layer *l, *below;
    const float *x;
    size_t i;
    int r, k, n;

    for (n = m->nlayers - 1; n >= 0; n--) {
        l = &m->layer[n];
        below = n > 0 ? &m->layer[n - 1] : NULL;
        x = below != NULL ? below->act : m->input;
        /* dw = x^T delta, db = sum of delta's rows */
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, l->in, l->out,
            rows, 1.0f, x, l->in, l->delta, l->out, 0.0f, l->dw, l->out);
        memset(l->db, 0, l->out * sizeof(float));
        for (r = 0; r < rows; r++)
            for (k = 0; k < l->out; k++)
                l->db[k] += l->delta[(size_t)r * l->out + k];
        if (below == NULL)
            break;
        /* below's delta = delta w^T where its ReLU let the sum through */
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, l->in,
            l->out, 1.0f, l->delta, l->out, l->w, l->out, 0.0f, below->delta,
            l->in);
        for (i = 0; i < (size_t)rows * l->in; i++)
            below->delta[i] = x[i] > 0.0f ? below->delta[i] : 0.0f;
    }
}

/* SGD with momentum. A plain loop on purpose: ranks with different CPUs, for
 * which BLAS picks different code, still compute the same bits. */
static void model_update(struct model *m, float lr, float momentum)
{
    float *w = m->params, *v = m->velocity;
    const float *g = m->grads;
    size_t i;

    for (i = 0; i < m->nparams; i++) {
        v[i] = momentum * v[i] + g[i];
        w[i] -= lr * v[i];
    }
}

/* Of the parameters' bits, in the manner of FNV-1a but word by word. */
static int64_t model_checksum(const struct model *m)
{
    uint64_t hash = 0xcbf29ce484222325u;
    uint32_t bits;
    size_t i;

    for (i = 0; i < m->nparams; i++) {
        memcpy(&bits, &m->params[i], sizeof(bits));
        hash = (hash ^ bits) * 0x100000001b3u;
    }
    return (int64_t)hash;
}

/* --- Ranks together ----------------------------------------------------- */

static bool coll_ok(coll_status_t status)
{
    int rank = coll_rank(NULL);

    if (status == COLL_OK)
        return true;
    fprintf(stderr, "train_fashion: rank %d: %s\n", rank, coll_last_error());
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
    fprintf(stderr, "train_fashion: %s\n", coll_last_error());
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

/* Right answers for all test images. Each rank tries its share of them. */
static bool count_correct(
    struct model *m, const struct dataset *test, int64_t *out)
{
    int rank = coll_rank(NULL), size = coll_world_size(NULL);
    int at = (int)((int64_t)test->count * rank / size);
    int end = (int)((int64_t)test->count * (rank + 1) / size);
    const float *score;
    int64_t correct = 0;
    int rows, r, k, best;

    for (; at < end; at += rows) {
        rows = end - at < m->rows ? end - at : m->rows;
        model_feed(m, test->images + (size_t)at * PIXELS, NULL, rows);
        score = model_forward(m, rows);
        for (r = 0; r < rows; r++, score += CLASSES) {
            best = 0;
            for (k = 1; k < CLASSES; k++)
                best = score[k] > score[best] ? k : best;
            correct += best == test->labels[at + r];
        }
    }
    if (!coll_ok(
            coll_all_reduce(&correct, &correct, 1, COLL_INT64, COLL_SUM, NULL)))
        return false;
    *out = correct;
    return true;
}

/* All ranks must hold the same bits in the end; *same tells whether. */
static bool compare_ranks(const struct model *m, int64_t correct, bool *same)
{
    const int64_t mine[2] = {model_checksum(m), correct};
    int64_t min[2], max[2];

    if (!coll_ok(coll_all_reduce(mine, min, 2, COLL_INT64, COLL_MIN, NULL)) ||
        !coll_ok(coll_all_reduce(mine, max, 2, COLL_INT64, COLL_MAX, NULL)))
        return false;
    *same = min[0] == max[0] && min[1] == max[1];
    return true;
}

/* --- Training ----------------------------------------------------------- */

/* Rises for WARMUP_STEPS, then falls to 0 along half a cosine. */
static double learning_rate(double peak, long step, long total)
{
    const long warmup = total / 2 < WARMUP_STEPS ? total / 2 : WARMUP_STEPS;

    if (step < warmup)
        return peak * (double)(step + 1) / (double)warmup;
    return peak * 0.5 *
           (1.0 +
               cos(M_PI * (double)(step - warmup) / (double)(total - warmup)));
}

/* The line that a terminal shows while an epoch runs, ten times a second. */
static void show_progress(int epoch, int step, int nsteps, double loss)
{
    static double next;
    double now = now_s();

    if (now < next)
        return;
    next = now + 0.1;
    printf("\repoch %3d  step %d/%d  loss %.4f ", epoch, step, nsteps, loss);
    fflush(stdout);
}

/* Returns the exit status. */
static int train(const struct options *o, const struct dataset *data,
    const struct dataset *test, struct model *m, int *order)
{
    const int rank = coll_rank(NULL), size = coll_world_size(NULL);
    const int batch = (int)o->batch, share = batch / size;
    /* Images that fill no batch have their turn in another epoch. */
    const int per_epoch = data->count / batch;
    const long total = o->epochs * per_epoch;
    const long stop = o->steps > 0 && o->steps < total ? o->steps : total;
    const bool chatty = rank == 0 && isatty(STDOUT_FILENO) && !o->log_steps;
    struct problem problem = {0};
    double start, train_s = 0.0, epoch_s, epoch_loss, loss;
    const int *mine;
    int64_t correct = 0;
    bool same;
    long step = 0;
    int epoch, b;

    /* All ranks start from rank 0's weights. */
    if (rank == 0)
        model_randomise(m, o->seed);
    if (!coll_ok(coll_broadcast(m->params, m->nparams, COLL_FLOAT32, 0, NULL)))
        return EXIT_FAILURE;

    for (epoch = 1; step < stop; epoch++) {
        start = now_s();
        epoch_loss = 0.0;
        shuffle(order, data->count, o->seed, epoch);
        for (b = 0; b < per_epoch && step < stop; b++, step++) {
            /* This rank's slice of the global batch. */
            mine = order + b * batch + rank * share;
            model_feed(m, data->images, mine, share);
            model_forward(m, share);
            loss =
                model_loss(m, data->labels, mine, share, 1.0f / (float)batch);
            model_backward(m, share);
            /* Each rank has its part of the mean over the global batch, of
             * the gradient as of the loss: their sum is the mean. */
            m->grads[m->nparams] = (float)(loss / batch);
            if (!coll_ok(coll_all_reduce(m->grads, m->grads, m->nparams + 1,
                    COLL_FLOAT32, COLL_SUM, NULL)))
                return EXIT_FAILURE;
            loss = (double)m->grads[m->nparams];
            if (!isfinite(loss)) {
                problem_set(&problem, EXIT_FAILURE,
                    "the loss of step %ld is not finite; try a smaller --lr",
                    step + 1);
                return agree(&problem);
            }
            model_update(m, (float)learning_rate(o->lr, step, total),
                (float)o->momentum);
            epoch_loss += loss;
            if (rank == 0 && o->log_steps)
                printf("step %ld loss %.9g\n", step + 1, loss);
            if (chatty)
                show_progress(epoch, b + 1, per_epoch, epoch_loss / (b + 1));
        }
        epoch_s = now_s() - start;
        train_s += epoch_s;
        if (!count_correct(m, test, &correct))
            return EXIT_FAILURE;
        if (rank == 0)
            printf("%sepoch %3d  loss %.4f  test accuracy %5.2f %%  "
                   "%7.0f images/s  %5.2f s\n",
                chatty ? "\r" : "", epoch, epoch_loss / b,
                100.0 * (double)correct / test->count,
                (double)b * batch / epoch_s, now_s() - start);
    }
    if (!compare_ranks(m, correct, &same))
        return EXIT_FAILURE;
    if (!same) {
        problem_set(&problem, EXIT_FAILURE,
            "the ranks have ended with different parameters or accuracies");
        return agree(&problem);
    }
    if (rank == 0)
        printf("\n"
               "test accuracy %.2f %%  (%d images)\n"
               "throughput    %.0f images/s\n"
               "processes     %d\n",
            100.0 * (double)correct / test->count, test->count,
            (double)stop * batch / train_s, size);
    return EXIT_SUCCESS;
}

/* --- main --------------------------------------------------------------- */

/* "784-512-256-10" */
static void print_intro(
    const struct options *o, const struct dataset *data, const struct model *m)
{
    const int size = coll_world_size(NULL);
    int i;

    printf("perceptron %d", PIXELS);
    for (i = 0; i < m->nlayers; i++)
        printf("-%d", m->layer[i].out);
    printf(", %zu parameters; %d training images; batch %ld = %d x %ld; "
           "back end %s\n",
        m->nparams, data->count, o->batch, size, o->batch / size,
        coll_backend_name(NULL));
}

int main(int argc, char **argv)
{
    struct options o = {
        .data = "/usr/share/datasets/fashion-mnist",
        .hidden = {512, 256},
        .nhidden = 2,
        .epochs = 15,
        .batch = 240,
        .seed = 1,
        .lr = 0.05,
        .momentum = 0.9,
    };
    struct problem problem = {0};
    struct dataset data = {0}, test = {0};
    struct model model = {0};
    const char *env_rank = getenv("RANK");
    int *order = NULL;
    int rc, size, share;

    /* Lines appear at once also where stdout is a pipe or a file. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (parse_options(argc, argv, &o, &problem)) {
        if (o.help) {
            if (env_rank == NULL || strcmp(env_rank, "0") == 0)
                fputs(help_text, stdout);
            return EXIT_SUCCESS;
        }
        if (dataset_load(&data, o.data, "train", &problem) &&
            dataset_load(&test, o.data, "t10k", &problem) &&
            data.count < o.batch)
            problem_set(&problem, EXIT_USAGE,
                "--batch %ld is more than the %d training images of %s",
                o.batch, data.count, o.data);
    }
    rc = join(&problem);
    if (rc != 0)
        goto out;
    size = coll_world_size(NULL);
    share = (int)(o.batch / size);
    if (o.batch % size != 0)
        problem_set(&problem, EXIT_USAGE,
            "--batch %ld cannot be shared evenly by %d processes; try "
            "--batch %ld",
            o.batch, size, o.batch + size - o.batch % size);
    if (problem.exit_code == 0) {
        order = malloc((size_t)data.count * sizeof(*order));
        if (order == NULL ||
            !model_init(&model, &o, share > EVAL_ROWS ? share : EVAL_ROWS))
            problem_set(&problem, EXIT_FAILURE, "rank %d: out of memory",
                coll_rank(NULL));
    }
    rc = agree(&problem);
    if (rc != 0)
        goto out;
    if (coll_rank(NULL) == 0)
        print_intro(&o, &data, &model);
    rc = train(&o, &data, &test, &model, order);
out:
    if (coll_is_initialized() && !coll_ok(coll_destroy()) && rc == 0)
        rc = EXIT_FAILURE;
    free(order);
    model_fini(&model);
    dataset_fini(&data);
    dataset_fini(&test);
    return rc;
}
