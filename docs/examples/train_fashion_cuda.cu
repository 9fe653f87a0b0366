/*
 * train_fashion_cuda: train_fashion.c on GPUs. The same perceptron, data and
 * order of images, hence the same losses but for rounding.
 *
 *     crun --nproc_per_node=8 train_fashion_cuda           (a GPU each)
 *     crun --nproc_per_node=2 --share_gpu 2 train_fashion_cuda
 *     WORLD_SIZE=1 train_fashion_cuda          (alone, without a launcher)
 *
 * Every process (a "rank") keeps the whole data set and the whole model in the
 * memory of its GPU. All that a step does is put on the GPU's default stream:
 * cuBLAS multiplies matrices, small kernels do the rest, and coll_all_reduce(),
 * given memory of the device, adds the gradients up with NCCL on that stream.
 * The host waits once in an epoch.
 *
 * Read it top to bottom: kernels, model, the parts where ranks talk to each
 * other, training, main. Options, the reading of the data, and what ranks do
 * that cannot go on, are in fashion.h.
 *
 *     nvcc -O2 train_fashion_cuda.cu $(pkg-config --cflags --libs collective) \
 *         -lcublas -lz
 */
#define PROGRAM "train_fashion_cuda"
#include "fashion.h"

#include <collective_gpu.h>
#include <cublas_v2.h>
#include <cuda_runtime.h>

enum { THREADS = 256 }; /* of a block */

/* --- Kernels ------------------------------------------------------------ */

/* Matrices are stored row by row. One thread for an element, or for a row or a
 * column where something is summed up: no order of sums ever changes, so the
 * same run gives the same bits. */

static __device__ size_t thread_index(void)
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static int blocks(size_t threads)
{
    return (int)((threads + THREADS - 1) / THREADS);
}

/* Row r of to becomes image order[r], or image r if order is NULL: bytes
 * become floats with the mean and deviation of the training images. */
static __global__ void feed_kernel(
    const uint8_t *images, const int *order, size_t n, float *to)
{
    const size_t i = thread_index();
    size_t image = i / PIXELS;

    if (i >= n)
        return;
    if (order != NULL)
        image = order[image];
    to[i] = ((float)images[image * PIXELS + i % PIXELS] / 255.0f - 0.2860f) /
            0.3530f;
}

/* act[r][k] += b[k], then ReLU. */
static __global__ void bias_kernel(
    float *act, const float *b, int out, size_t n, bool has_relu)
{
    const size_t i = thread_index();

    if (i >= n)
        return;
    act[i] += b[i % out];
    if (has_relu && !(act[i] > 0.0f))
        act[i] = 0.0f;
}

/*
 * Softmax and cross entropy of one row per thread: its loss goes to losses, the
 * loss's gradient by the scores, times scale, to delta. The label of row r is
 * labels[order[r]].
 */
static __global__ void loss_kernel(const float *scores, const uint8_t *labels,
    const int *order, int rows, float scale, float *delta, float *losses)
{
    const size_t r = thread_index();
    const float *score = scores + r * CLASSES;
    float max, sum = 0.0f;
    int k, label;

    if (r >= (size_t)rows)
        return;
    delta += r * CLASSES;
    label = labels[order[r]];
    max = score[0];
    for (k = 1; k < CLASSES; k++)
        max = fmaxf(max, score[k]);
    for (k = 0; k < CLASSES; k++) /* exp(score - max) cannot overflow */
        sum += delta[k] = expf(score[k] - max);
    for (k = 0; k < CLASSES; k++)
        delta[k] *= scale / sum;
    delta[label] -= scale;
    losses[r] = logf(sum) - (score[label] - max);
}

/* out[k] = scale times the sum of column k. */
static __global__ void column_sum_kernel(
    const float *matrix, int rows, int columns, float scale, float *out)
{
    const size_t k = thread_index();
    float sum = 0.0f;
    int r;

    if (k >= (size_t)columns)
        return;
    for (r = 0; r < rows; r++)
        sum += matrix[(size_t)r * columns + k];
    out[k] = scale * sum;
}

/* A gradient passes where ReLU let the sum through. */
static __global__ void relu_back_kernel(
    float *delta, const float *act, size_t n)
{
    const size_t i = thread_index();

    if (i < n && !(act[i] > 0.0f))
        delta[i] = 0.0f;
}

/* SGD with momentum. The loss, which lies behind the gradients, is kept. */
static __global__ void update_kernel(float *w, float *v, const float *g,
    size_t n, float lr, float momentum, float *loss)
{
    const size_t i = thread_index();

    if (i < n) {
        v[i] = momentum * v[i] + g[i];
        w[i] -= lr * v[i];
    } else if (i == n) {
        *loss = g[n];
    }
}

/* Adds the rows whose highest score is that of their label. */
static __global__ void correct_kernel(const float *scores,
    const uint8_t *labels, int rows, unsigned long long *correct)
{
    const size_t r = thread_index();
    const float *score = scores + r * CLASSES;
    int k, best = 0;

    if (r >= (size_t)rows)
        return;
    for (k = 1; k < CLASSES; k++)
        best = score[k] > score[best] ? k : best;
    if (best == labels[r])
        atomicAdd(correct, 1ull);
}

/* --- Errors of CUDA and cuBLAS ------------------------------------------ */

/* What has failed first is this rank's problem; see agree(). */
static bool cuda_ok(cudaError_t error, const char *what, struct problem *p)
{
    return error == cudaSuccess ||
           problem_set(p, EXIT_FAILURE, "rank %d: %s: %s", coll_rank(NULL),
               what, cudaGetErrorString(error));
}

static bool blas_ok(cublasStatus_t status, const char *what, struct problem *p)
{
    return status == CUBLAS_STATUS_SUCCESS ||
           problem_set(p, EXIT_FAILURE, "rank %d: %s: %s", coll_rank(NULL),
               what, cublasGetStatusString(status));
}

/* Memory of the device, of zeros. */
template <typename T>
static bool device_alloc(T **out, size_t count, struct problem *p)
{
    return cuda_ok(
               cudaMalloc((void **)out, count * sizeof(T)), "cudaMalloc", p) &&
           cuda_ok(cudaMemset(*out, 0, count * sizeof(T)), "cudaMemset", p);
}

template <typename T>
static bool copy_to_device(
    T *to, const T *from, size_t count, struct problem *p)
{
    return cuda_ok(
        cudaMemcpy(to, from, count * sizeof(T), cudaMemcpyHostToDevice),
        "copying to the GPU", p);
}

/* Waits for all that is on the default stream. */
template <typename T>
static bool copy_to_host(T *to, const T *from, size_t count, struct problem *p)
{
    return cuda_ok(
        cudaMemcpy(to, from, count * sizeof(T), cudaMemcpyDeviceToHost),
        "copying from the GPU", p);
}

/* --- Data --------------------------------------------------------------- */

/* A data set on the device, a byte for a pixel. */
struct device_data {
    int count;
    uint8_t *images, *labels; /* owned */
};

static bool device_data_init(
    struct device_data *d, const struct dataset *from, struct problem *p)
{
    const size_t pixels = (size_t)from->count * PIXELS;

    d->count = from->count;
    return device_alloc(&d->images, pixels, p) &&
           device_alloc(&d->labels, d->count, p) &&
           copy_to_device(d->images, from->images, pixels, p) &&
           copy_to_device(d->labels, from->labels, d->count, p);
}

static void device_data_fini(struct device_data *d)
{
    cudaFree(d->images);
    cudaFree(d->labels);
}

/* --- Model -------------------------------------------------------------- */

/* y = x W + b, then ReLU in every layer but the last; an image is a row. All
 * pointers are into memory of the device. */
struct layer {
    int in, out;
    float *w, *dw; /* [in][out], inside params and grads */
    float *b, *db; /* [out], inside params and grads */
    float *act, *delta; /* [rows][out]: outputs, and the loss's gradient by
                           the layer's sums; owned */
};

struct model {
    cublasHandle_t blas;
    int nlayers;
    struct layer layer[MAX_LAYERS];
    float *input; /* [rows][PIXELS] */
    float *row_losses; /* [rows] */
    /* As in train_fashion.c one array of parameters, and one of gradients with
     * the loss behind them: what one collective call adds up. */
    size_t nparams;
    float *params; /* [nparams] */
    float *grads; /* [nparams + 1] */
    float *velocity; /* [nparams] */
    unsigned long long *correct; /* right answers */
};

static void model_fini(struct model *m)
{
    int i;

    for (i = 0; i < m->nlayers; i++) {
        cudaFree(m->layer[i].act);
        cudaFree(m->layer[i].delta);
    }
    cudaFree(m->input);
    cudaFree(m->row_losses);
    cudaFree(m->params);
    cudaFree(m->grads);
    cudaFree(m->velocity);
    cudaFree(m->correct);
    if (m->blas != NULL)
        cublasDestroy(m->blas);
}

static bool model_init(
    struct model *m, const struct options *o, int rows, struct problem *p)
{
    struct layer *l;
    size_t at = 0;
    int i;

    m->nlayers = o->nhidden + 1;
    for (i = 0; i < m->nlayers; i++) {
        l = &m->layer[i];
        l->in = i == 0 ? PIXELS : o->hidden[i - 1];
        l->out = i == m->nlayers - 1 ? CLASSES : o->hidden[i];
        if (!device_alloc(&l->act, (size_t)rows * l->out, p) ||
            !device_alloc(&l->delta, (size_t)rows * l->out, p))
            return false;
        m->nparams += ((size_t)l->in + 1) * l->out;
    }
    if (!device_alloc(&m->input, (size_t)rows * PIXELS, p) ||
        !device_alloc(&m->row_losses, rows, p) ||
        !device_alloc(&m->params, m->nparams, p) ||
        !device_alloc(&m->grads, m->nparams + 1, p) ||
        !device_alloc(&m->velocity, m->nparams, p) ||
        !device_alloc(&m->correct, 1, p) ||
        !blas_ok(cublasCreate(&m->blas), "cublasCreate", p))
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

/* The first weights are those of train_fashion.c, and so is why. */
static bool model_randomise(struct model *m, long seed, struct problem *p)
{
    uint64_t state = (uint64_t)seed;
    float *w = (float *)calloc(m->nparams, sizeof(*w)), *to = w, limit;
    const struct layer *l;
    size_t i;
    bool good;

    if (w == NULL)
        return problem_set(p, EXIT_FAILURE, "out of memory");
    for (l = m->layer; l < m->layer + m->nlayers - 1; l++) {
        limit = sqrtf(6.0f / (float)l->in);
        for (i = 0; i < (size_t)l->in * l->out; i++)
            to[i] = limit * random_unit(&state);
        to += (size_t)(l->in + 1) * l->out; /* biases stay 0 */
    }
    good = copy_to_device(m->params, w, m->nparams, p);
    free(w);
    return good;
}

/*
 * c[m][n] = a[m][k] b[k][n] by rows, a or b or none of them stored transposed.
 * cuBLAS thinks in columns, for which a matrix by rows is transposed: so it is
 * asked for the transpose of c, that of b times that of a.
 */
static bool multiply(struct model *model, bool a_transposed, bool b_transposed,
    int m, int n, int k, const float *a, const float *b, float *c,
    struct problem *p)
{
    const float one = 1.0f, zero = 0.0f;

    return blas_ok(
        cublasSgemm(model->blas, b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
            a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &one, b,
            b_transposed ? k : n, a, a_transposed ? m : k, &zero, c, n),
        "cublasSgemm", p);
}

/* The scores of the rows' classes: [rows][CLASSES], the last layer's act. */
static bool model_forward(struct model *m, const uint8_t *images,
    const int *order, int rows, struct problem *p)
{
    const struct layer *l, *last = &m->layer[m->nlayers - 1];
    const float *x = m->input;
    size_t n = (size_t)rows * PIXELS;

    feed_kernel<<<blocks(n), THREADS>>>(images, order, n, m->input);
    for (l = m->layer; l <= last; l++) {
        if (!multiply(m, false, false, rows, l->out, l->in, x, l->w, l->act, p))
            return false;
        n = (size_t)rows * l->out;
        bias_kernel<<<blocks(n), THREADS>>>(l->act, l->b, l->out, n, l != last);
        x = l->act;
    }
    return cuda_ok(cudaGetLastError(), "forward pass", p);
}

/* From the scores to every gradient, and to the loss behind them: each is this
 * rank's part of the mean over the global batch. */
static bool model_backward(struct model *m, const uint8_t *labels,
    const int *order, int rows, float scale, struct problem *p)
{
    struct layer *l = &m->layer[m->nlayers - 1], *below;
    const float *x;
    size_t elements;
    int n;

    loss_kernel<<<blocks(rows), THREADS>>>(
        l->act, labels, order, rows, scale, l->delta, m->row_losses);
    column_sum_kernel<<<1, THREADS>>>(
        m->row_losses, rows, 1, scale, m->grads + m->nparams);
    for (n = m->nlayers - 1; n >= 0; n--) {
        l = &m->layer[n];
        below = n > 0 ? &m->layer[n - 1] : NULL;
        x = below != NULL ? below->act : m->input;
        /* dw = x^T delta, db = sum of delta's rows */
        if (!multiply(
                m, true, false, l->in, l->out, rows, x, l->delta, l->dw, p))
            return false;
        column_sum_kernel<<<blocks(l->out), THREADS>>>(
            l->delta, rows, l->out, 1.0f, l->db);
        if (below == NULL)
            break;
        /* below's delta = delta w^T where its ReLU let the sum through */
        if (!multiply(m, false, true, rows, l->in, l->out, l->delta, l->w,
                below->delta, p))
            return false;
        elements = (size_t)rows * l->in;
        relu_back_kernel<<<blocks(elements), THREADS>>>(
            below->delta, x, elements);
    }
    return cuda_ok(cudaGetLastError(), "backward pass", p);
}

/* Of the parameters' bits, as in train_fashion.c. */
static bool model_checksum(
    const struct model *m, int64_t *out, struct problem *p)
{
    uint32_t *bits = (uint32_t *)malloc(m->nparams * sizeof(*bits));
    uint64_t hash = 0xcbf29ce484222325u;
    bool good;
    size_t i;

    if (bits == NULL)
        return problem_set(p, EXIT_FAILURE, "out of memory");
    good = copy_to_host(bits, (const uint32_t *)m->params, m->nparams, p);
    for (i = 0; good && i < m->nparams; i++)
        hash = (hash ^ bits[i]) * 0x100000001b3u;
    free(bits);
    *out = (int64_t)hash;
    return good;
}

/* --- Ranks together ----------------------------------------------------- */

/* What a rank has found wrong with its GPU in the middle of the training, the
 * others learn when it ends; it tells at once. */
static bool fail(const struct problem *p)
{
    print_problem(p);
    return false;
}

/* Right answers for all test images. Each rank tries its share of them, and
 * the numbers are added up where they are, on the devices. */
static bool count_correct(
    struct model *m, const struct device_data *test, int64_t *out)
{
    const int rank = coll_rank(NULL), size = coll_world_size(NULL);
    const float *scores = m->layer[m->nlayers - 1].act;
    struct problem problem = {};
    int at = (int)((int64_t)test->count * rank / size);
    int end = (int)((int64_t)test->count * (rank + 1) / size);
    unsigned long long correct;
    int rows;

    if (!cuda_ok(cudaMemsetAsync(m->correct, 0, sizeof(*m->correct)),
            "cudaMemsetAsync", &problem))
        return fail(&problem);
    for (; at < end; at += rows) {
        rows = end - at < EVAL_ROWS ? end - at : EVAL_ROWS;
        if (!model_forward(
                m, test->images + (size_t)at * PIXELS, NULL, rows, &problem))
            return fail(&problem);
        correct_kernel<<<blocks(rows), THREADS>>>(
            scores, test->labels + at, rows, m->correct);
    }
    if (!coll_ok(coll_all_reduce(
            m->correct, m->correct, 1, COLL_INT64, COLL_SUM, NULL)))
        return false;
    if (!copy_to_host(&correct, m->correct, 1, &problem))
        return fail(&problem);
    *out = (int64_t)correct;
    return true;
}

/* All ranks must hold the same bits in the end; *same tells whether. These
 * numbers are in the host's memory, and go the way of such. */
static bool compare_ranks(const struct model *m, int64_t correct, bool *same)
{
    int64_t mine[2] = {0, correct}, min[2], max[2];
    struct problem problem = {};

    if (!model_checksum(m, &mine[0], &problem))
        return fail(&problem);
    if (!coll_ok(coll_all_reduce(mine, min, 2, COLL_INT64, COLL_MIN, NULL)) ||
        !coll_ok(coll_all_reduce(mine, max, 2, COLL_INT64, COLL_MAX, NULL)))
        return false;
    *same = min[0] == max[0] && min[1] == max[1];
    return true;
}

/* --- Training ----------------------------------------------------------- */

/* What an epoch needs beside the model. */
struct plan {
    int *order; /* of the images; [count] */
    int *device_order; /* the same on the device */
    float *losses; /* of the epoch's steps; [count / batch] */
    float *device_losses;
};

static bool plan_init(
    struct plan *plan, int count, int batch, struct problem *p)
{
    plan->order = (int *)malloc((size_t)count * sizeof(*plan->order));
    plan->losses =
        (float *)malloc((size_t)(count / batch) * sizeof(*plan->losses));
    if (plan->order == NULL || plan->losses == NULL)
        return problem_set(
            p, EXIT_FAILURE, "rank %d: out of memory", coll_rank(NULL));
    return device_alloc(&plan->device_order, count, p) &&
           device_alloc(&plan->device_losses, count / batch, p);
}

static void plan_fini(struct plan *plan)
{
    free(plan->order);
    free(plan->losses);
    cudaFree(plan->device_order);
    cudaFree(plan->device_losses);
}

/* One step: puts all of it on the stream, and does not wait for it. */
static bool train_step(struct model *m, const struct device_data *data,
    const int *mine, int share, int batch, float lr, float momentum,
    float *loss)
{
    struct problem problem = {};

    if (!model_forward(m, data->images, mine, share, &problem) ||
        !model_backward(
            m, data->labels, mine, share, 1.0f / (float)batch, &problem))
        return fail(&problem);
    /* Each rank has its part of the mean over the global batch, of the
     * gradient as of the loss: their sum is the mean. */
    if (!coll_ok(coll_all_reduce(
            m->grads, m->grads, m->nparams + 1, COLL_FLOAT32, COLL_SUM, NULL)))
        return false;
    update_kernel<<<blocks(m->nparams + 1), THREADS>>>(
        m->params, m->velocity, m->grads, m->nparams, lr, momentum, loss);
    return cuda_ok(cudaGetLastError(), "update", &problem) || fail(&problem);
}

/* Returns the exit status. */
static int train(const struct options *o, const struct device_data *data,
    const struct device_data *test, struct model *m, struct plan *plan)
{
    const int rank = coll_rank(NULL), size = coll_world_size(NULL);
    const int batch = (int)o->batch, share = batch / size;
    /* Images that fill no batch have their turn in another epoch. */
    const int per_epoch = data->count / batch;
    const long total = o->epochs * per_epoch;
    const long stop = o->steps > 0 && o->steps < total ? o->steps : total;
    struct problem problem = {};
    double start, train_s = 0.0, epoch_s, epoch_loss;
    int64_t correct = 0;
    bool same;
    long step = 0, s;
    int epoch, b, i;

    /* All ranks start from rank 0's weights. */
    if (rank == 0)
        model_randomise(m, o->seed, &problem);
    if (agree(&problem) != 0 ||
        !coll_ok(coll_broadcast(m->params, m->nparams, COLL_FLOAT32, 0, NULL)))
        return EXIT_FAILURE;

    for (epoch = 1; step < stop; epoch++) {
        start = now_s();
        shuffle(plan->order, data->count, o->seed, epoch);
        if (!copy_to_device(
                plan->device_order, plan->order, data->count, &problem))
            goto fail;
        for (b = 0; b < per_epoch && step + b < stop; b++) {
            /* This rank's slice of the global batch. */
            if (!train_step(m, data,
                    plan->device_order + b * batch + rank * share, share, batch,
                    (float)learning_rate(o->lr, step + b, total),
                    (float)o->momentum, plan->device_losses + b))
                return EXIT_FAILURE;
        }
        if (!copy_to_host(plan->losses, plan->device_losses, b, &problem))
            goto fail;
        /* With a time-out or a failure elsewhere, what is there is nothing. */
        if (!coll_ok(coll_gpu_synchronize(NULL, 0)))
            return EXIT_FAILURE;
        epoch_s = now_s() - start;
        train_s += epoch_s;
        epoch_loss = 0.0;
        for (i = 0; i < b; i++) {
            s = step + i + 1;
            if (!isfinite(plan->losses[i])) { /* on all ranks the same */
                problem_set(&problem, EXIT_FAILURE,
                    "the loss of step %ld is not finite; try a smaller --lr",
                    s);
                return agree(&problem);
            }
            epoch_loss += plan->losses[i];
            if (rank == 0 && o->log_steps)
                printf("step %ld loss %.9g\n", s, plan->losses[i]);
        }
        step += b;
        if (!count_correct(m, test, &correct))
            return EXIT_FAILURE;
        if (rank == 0)
            printf("epoch %3d  loss %.4f  test accuracy %5.2f %%  "
                   "%7.0f images/s  %5.2f s\n",
                epoch, epoch_loss / b, 100.0 * (double)correct / test->count,
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
fail:
    print_problem(&problem);
    return EXIT_FAILURE;
}

/* --- main --------------------------------------------------------------- */

/* "784-512-256-10" */
static void print_intro(
    const struct options *o, int images, const struct model *m)
{
    const int size = coll_world_size(NULL);
    cudaDeviceProp gpu;
    int device, i;

    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaGetDeviceProperties(&gpu, device) != cudaSuccess)
        return;
    printf("perceptron %d", PIXELS);
    for (i = 0; i < m->nlayers; i++)
        printf("-%d", m->layer[i].out);
    printf(", %zu parameters; %d training images; batch %ld = %d x %ld; "
           "back end %s; %s\n",
        m->nparams, images, o->batch, size, o->batch / size,
        coll_backend_name(NULL), gpu.name);
}

/* This rank's GPU becomes the current one, and gets the data. */
static bool set_up(const struct options *o, const struct dataset *data,
    const struct dataset *test, struct device_data *device_data,
    struct device_data *device_test, struct model *model, struct plan *plan,
    struct problem *p)
{
    const int device = coll_gpu_device();
    const int share = (int)o->batch / coll_world_size(NULL);

    if (device < 0)
        return problem_set(
            p, EXIT_FAILURE, "rank %d: %s", coll_rank(NULL), coll_last_error());
    return cuda_ok(cudaSetDevice(device), "cudaSetDevice", p) &&
           device_data_init(device_data, data, p) &&
           device_data_init(device_test, test, p) &&
           model_init(model, o, share > EVAL_ROWS ? share : EVAL_ROWS, p) &&
           plan_init(plan, data->count, (int)o->batch, p);
}

int main(int argc, char **argv)
{
    struct options o = default_options();
    struct problem problem = {};
    struct dataset data = {}, test = {};
    struct device_data device_data = {}, device_test = {};
    struct model model = {};
    struct plan plan = {};
    const char *env_rank = getenv("RANK");
    int rc, size;

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
    if (o.batch % size != 0)
        problem_set(&problem, EXIT_USAGE,
            "--batch %ld cannot be shared evenly by %d processes; try "
            "--batch %ld",
            o.batch, size, o.batch + size - o.batch % size);
    if (problem.exit_code == 0)
        set_up(&o, &data, &test, &device_data, &device_test, &model, &plan,
            &problem);
    rc = agree(&problem);
    if (rc != 0)
        goto out;
    if (coll_rank(NULL) == 0)
        print_intro(&o, data.count, &model);
    rc = train(&o, &device_data, &device_test, &model, &plan);
out:
    /* The communicator goes first, while its device is still in use. */
    if (coll_is_initialized() && !coll_ok(coll_destroy()) && rc == 0)
        rc = EXIT_FAILURE;
    plan_fini(&plan);
    model_fini(&model);
    device_data_fini(&device_data);
    device_data_fini(&device_test);
    dataset_fini(&data);
    dataset_fini(&test);
    return rc;
}
