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
 * Read it top to bottom: model, the parts where ranks talk to each other,
 * training, main. Options, the reading of the data, and what ranks do that
 * cannot go on, are in fashion.h. It uses libc, zlib (to read the data), CBLAS
 * (to multiply matrices) and libcollective, and shows how a program uses the
 * latter; it is no framework. train_fashion_cuda.cu is the same on GPUs.
 *
 *     cc -O2 train_fashion.c $(pkg-config --cflags --libs collective) \
 *         -lz -lblas -lm
 */
#define PROGRAM "train_fashion"
#include "fashion.h"

#include <cblas.h>

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
    struct options o = default_options();
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
