/*
 * The job, the device and the table that the checks of a GPU share. Results go
 * from rank to rank through the default group and host memory, so that a check
 * may leave its own group broken.
 */
#include "tests/gpu/rig.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double rig_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

bool rig_fail(struct rig *rig, const char *fmt, ...)
{
    char text[1024];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    fprintf(stderr, "rank %d: %s\n", rig->rank, text);
    rig->has_failed = true;
    return false;
}

bool rig_expect(struct rig *rig, coll_status_t status, coll_status_t wanted,
    const char *what)
{
    if (status == wanted)
        return true;
    return rig_fail(rig, "%s: got \"%s\", expected \"%s\"; %s", what,
        coll_strerror(status), coll_strerror(wanted),
        status == COLL_OK ? "" : coll_last_error());
}

bool rig_cuda_ok(struct rig *rig, cu_result_t result, const char *what)
{
    char text[160];

    return result == COLL_CUDA_SUCCESS ||
           rig_fail(rig, "%s: %s", what,
               cuda_api_error(rig->cuda, result, text, sizeof(text)));
}

bool rig_regroup(struct rig *rig, int64_t timeout_ms)
{
    coll_group_options_t options = COLL_GROUP_OPTIONS_INIT;
    int ranks[64], i;

    if (rig->group != NULL && !rig_expect(rig, coll_group_destroy(rig->group),
                                  COLL_OK, "destroying the group"))
        return false;
    rig->group = NULL;
    for (i = 0; i < rig->size; i++)
        ranks[i] = i;
    options.timeout_ms = timeout_ms;
    return rig_expect(rig,
        coll_group_new(&rig->group, ranks, rig->size, &options), COLL_OK,
        "making a group");
}

/* The primary context of this rank's device becomes the current one, as
 * cudaSetDevice() does it. */
static bool take_device(struct rig *rig)
{
    struct cu_context *context;
    cu_device_t device;

    rig->device = coll_gpu_device();
    if (rig->device < 0)
        return rig_fail(rig, "no device: %s", coll_last_error());
    if (!rig_expect(rig, cuda_api_get(&rig->cuda), COLL_OK, "the driver"))
        return false;
    rig->has_doubles =
        dlsym(rig->cuda->handle, "fake_cuda_set_capture") != NULL;
    return rig_cuda_ok(rig, rig->cuda->init(0), "cuInit") &&
           rig_cuda_ok(rig, rig->cuda->device_get(&device, rig->device),
               "cuDeviceGet") &&
           rig_cuda_ok(rig, rig->cuda->primary_context_retain(&context, device),
               "cuDevicePrimaryCtxRetain") &&
           rig_cuda_ok(rig, rig->cuda->context_set(context), "cuCtxSetCurrent");
}

bool rig_open(struct rig *rig)
{
    int64_t good;

    *rig = (struct rig){.rank = -1};
    if (!rig_expect(rig, coll_init(NULL), COLL_OK, "joining the job"))
        return false;
    rig->rank = coll_rank(NULL);
    rig->size = coll_world_size(NULL);
    if (rig->size > 64)
        return rig_fail(rig, "this is made for 64 ranks at most");
    /* Nobody waits for a rank that has no device. */
    good = take_device(rig);
    return rig_expect(rig,
               coll_all_reduce(&good, &good, 1, COLL_INT64, COLL_MIN, NULL),
               COLL_OK, "asking all ranks for their devices") &&
           good == 1 && rig_regroup(rig, RIG_TIMEOUT_MS);
}

void rig_close(struct rig *rig)
{
    if (!coll_is_initialized())
        return;
    if (rig->group != NULL)
        rig_expect(rig, coll_group_destroy(rig->group), COLL_OK,
            "destroying the group");
    rig_expect(rig, coll_destroy(), COLL_OK, "leaving the job");
}

void *rig_alloc(struct rig *rig, size_t bytes)
{
    cu_address_t address;

    if (!rig_cuda_ok(
            rig, rig->cuda->memory_alloc(&address, bytes), "cuMemAlloc"))
        return NULL;
    return (void *)(uintptr_t)address;
}

void rig_free(struct rig *rig, void *memory)
{
    if (memory != NULL)
        rig_cuda_ok(
            rig, rig->cuda->memory_free((uintptr_t)memory), "cuMemFree");
}

bool rig_write(struct rig *rig, void *to, const void *from, size_t bytes)
{
    /* A copy from the host may return while the last part is on its way, for
     * which other streams than the default one would not wait. */
    return bytes == 0 ||
           (rig_cuda_ok(rig,
                rig->cuda->memory_copy((uintptr_t)to, (uintptr_t)from, bytes),
                "cuMemcpy to the device") &&
               rig_cuda_ok(rig, rig->cuda->stream_synchronize(NULL),
                   "cuStreamSynchronize"));
}

bool rig_read(struct rig *rig, void *to, const void *from, size_t bytes)
{
    return bytes == 0 ||
           rig_cuda_ok(rig,
               rig->cuda->memory_copy((uintptr_t)to, (uintptr_t)from, bytes),
               "cuMemcpy from the device");
}

/* --- The table ----------------------------------------------------------- */

void rig_row(const struct rig *rig, const char *what, const char *result,
    double seconds, const char *note)
{
    printf(
        "%-32s %5d  %-6s %9.2f  %s\n", what, rig->size, result, seconds, note);
    fflush(stdout);
}

bool rig_run(struct rig *rig, const char *what, rig_check_t *check)
{
    char note[256] = "";
    const double start = rig_now();
    int64_t bad = !check(rig, note, sizeof(note)), any = 1;
    const char *result = "PASS";

    if (!rig_expect(rig,
            coll_all_reduce(&bad, &any, 1, COLL_INT64, COLL_MAX, NULL), COLL_OK,
            "comparing results"))
        any = 1;
    if (any != 0)
        result = "FAIL";
    else if (strncmp(note, "skip", 4) == 0)
        result = "SKIP";
    if (rig->rank == 0)
        rig_row(rig, what, result, rig_now() - start, note);
    return any == 0;
}

bool rig_has_time(struct rig *rig, double end, bool *has_time)
{
    int64_t more = rig_now() < end;

    if (!rig_expect(rig, coll_broadcast(&more, 1, COLL_INT64, 0, NULL), COLL_OK,
            "agreeing whether there is time"))
        return false;
    *has_time = more != 0;
    return true;
}

/* --- Numbers ------------------------------------------------------------- */

static bool is_float8(coll_dtype_t dtype)
{
    return dtype == COLL_FLOAT8_E4M3 || dtype == COLL_FLOAT8_E5M2;
}

static bool is_float(coll_dtype_t dtype)
{
    return dtype == COLL_FLOAT32 || dtype == COLL_FLOAT64 ||
           dtype == COLL_FLOAT16 || dtype == COLL_BFLOAT16 || is_float8(dtype);
}

static bool is_signed(coll_dtype_t dtype)
{
    return is_float(dtype) || dtype == COLL_INT8 || dtype == COLL_INT16 ||
           dtype == COLL_INT32 || dtype == COLL_INT64;
}

double rig_value(coll_dtype_t dtype, int op, int rank, size_t i)
{
    uint64_t x = (uint64_t)i * 64 + (unsigned int)rank + 1;
    double value;

    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    x >>= 40;
    if (dtype == COLL_BOOL)
        return (double)(x & 1);
    /* 8-bit floats have two bits behind the first one. */
    value = 1 + (double)(x % (is_float8(dtype) ? 2 : 3));
    /* How the mean of whole numbers is rounded is NCCL's business. */
    if (is_signed(dtype) && (x & 64) != 0 && op != COLL_AVG)
        value = -value;
    return value;
}

double rig_reduced(coll_dtype_t dtype, int op, double factor, int n, size_t i)
{
    double sum = 0, product = 1, min = 1e9, max = -1e9, value;
    int rank;

    for (rank = 0; rank < n; rank++) {
        value = rig_value(dtype, op, rank, i) * factor;
        sum += value;
        product *= value;
        min = value < min ? value : min;
        max = value > max ? value : max;
    }
    switch (op) {
    case COLL_AVG:
        sum /= n;
        return is_float(dtype) ? sum : (double)(int64_t)sum;
    case COLL_MIN:
        return min;
    case COLL_MAX:
        return max;
    case COLL_PRODUCT:
        return product;
    default:
        return dtype == COLL_BOOL ? sum != 0 : sum;
    }
}

/* A float of one sign, exponent_bits and fraction_bits, as in IEEE 754. value
 * must be one that it holds exactly, and not be subnormal. */
static uint32_t encode_float(double value, int exponent_bits, int fraction_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const uint32_t sign = value < 0;
    uint32_t fraction = 0;
    int exponent = 0;
    double rest = value < 0 ? -value : value;

    if (rest != 0) {
        for (exponent = bias; rest >= 2; exponent++)
            rest /= 2;
        for (; rest < 1; exponent--)
            rest *= 2;
        fraction = (uint32_t)((rest - 1) * (1 << fraction_bits));
    }
    return sign << (exponent_bits + fraction_bits) |
           (uint32_t)exponent << fraction_bits | fraction;
}

void rig_encode(coll_dtype_t dtype, double value, void *to)
{
    const int64_t whole = (int64_t)value;
    float narrow = (float)value;
    uint32_t bits = 0;

    switch (dtype) {
    case COLL_FLOAT64:
        memcpy(to, &value, sizeof(value));
        return;
    case COLL_FLOAT32:
        memcpy(to, &narrow, sizeof(narrow));
        return;
    case COLL_FLOAT16:
        bits = encode_float(value, 5, 10);
        break;
    case COLL_BFLOAT16:
        bits = encode_float(value, 8, 7);
        break;
    case COLL_FLOAT8_E4M3:
        bits = encode_float(value, 4, 3);
        break;
    case COLL_FLOAT8_E5M2:
        bits = encode_float(value, 5, 2);
        break;
    default: /* little-endian, as every machine with such a GPU */
        memcpy(to, &whole, coll_dtype_size(dtype));
        return;
    }
    memcpy(to, &bits, coll_dtype_size(dtype));
}
