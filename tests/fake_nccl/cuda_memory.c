/*
 * A test double, see cuda_fake.h: memory. All of it is the host's; a list says
 * what is taken for the memory of which device.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fake_nccl/cuda_fake.h"

struct piece {
    struct piece *next;
    char *memory;
    size_t bytes;
    int device;
    unsigned int type; /* COLL_CUDA_MEMORY_* */
};

static struct piece *pieces;

static void *pointer(cu_address_t address)
{
    return (void *)(uintptr_t)address;
}

static cu_result_t take(
    void **memory, size_t bytes, int device, unsigned int type)
{
    struct piece *piece;

    if (bytes == 0)
        return COLL_CUDA_INVALID_VALUE;
    piece = calloc(1, sizeof(*piece));
    if (piece == NULL)
        return COLL_CUDA_OUT_OF_MEMORY;
    if (posix_memalign((void **)&piece->memory, 512, bytes) != 0) {
        free(piece);
        return COLL_CUDA_OUT_OF_MEMORY;
    }
    memset(piece->memory, 0xa5, bytes); /* new memory is not 0 */
    piece->bytes = bytes;
    piece->device = device;
    piece->type = type;
    pthread_mutex_lock(&fake_cuda_lock);
    piece->next = pieces;
    pieces = piece;
    pthread_mutex_unlock(&fake_cuda_lock);
    *memory = piece->memory;
    return COLL_CUDA_SUCCESS;
}

static cu_result_t give(const void *memory, unsigned int type)
{
    struct piece *piece, **at;

    if (memory == NULL)
        return COLL_CUDA_SUCCESS;
    pthread_mutex_lock(&fake_cuda_lock);
    for (at = &pieces; (piece = *at) != NULL; at = &piece->next) {
        if (piece->memory == memory && piece->type == type) {
            *at = piece->next;
            break;
        }
    }
    pthread_mutex_unlock(&fake_cuda_lock);
    if (piece == NULL)
        return COLL_CUDA_INVALID_VALUE;
    free(piece->memory);
    free(piece);
    return COLL_CUDA_SUCCESS;
}

cu_result_t cuMemAlloc_v2(cu_address_t *address, size_t bytes)
{
    struct cu_context *context;
    void *memory;
    cu_result_t rc = fake_cuda_enter_context(__func__, &context);

    if (rc == COLL_CUDA_SUCCESS)
        rc = take(&memory, bytes, context->device, COLL_CUDA_MEMORY_DEVICE);
    if (rc == COLL_CUDA_SUCCESS)
        *address = (uintptr_t)memory;
    return rc;
}

cu_result_t cuMemFree_v2(cu_address_t address)
{
    cu_result_t rc = fake_cuda_enter(__func__);

    if (rc == COLL_CUDA_SUCCESS)
        rc = give(pointer(address), COLL_CUDA_MEMORY_DEVICE);
    return rc;
}

cu_result_t cuMemHostAlloc(void **memory, size_t bytes, unsigned int flags)
{
    struct cu_context *context;
    cu_result_t rc = fake_cuda_enter_context(__func__, &context);

    (void)flags;
    if (rc == COLL_CUDA_SUCCESS)
        rc = take(memory, bytes, context->device, COLL_CUDA_MEMORY_HOST);
    return rc;
}

cu_result_t cuMemFreeHost(void *memory)
{
    cu_result_t rc = fake_cuda_enter(__func__);

    if (rc == COLL_CUDA_SUCCESS)
        rc = give(memory, COLL_CUDA_MEMORY_HOST);
    return rc;
}

cu_result_t cuMemcpy(cu_address_t to, cu_address_t from, size_t bytes)
{
    struct cu_context *context;
    cu_result_t rc = fake_cuda_enter_context(__func__, &context);

    if (rc == COLL_CUDA_SUCCESS && bytes > 0)
        memmove(pointer(to), pointer(from), bytes);
    return rc;
}

cu_result_t cuMemsetD8_v2(
    cu_address_t address, unsigned char value, size_t bytes)
{
    struct cu_context *context;
    cu_result_t rc = fake_cuda_enter_context(__func__, &context);

    if (rc == COLL_CUDA_SUCCESS && bytes > 0)
        memset(pointer(address), value, bytes);
    return rc;
}

/* A copy, or with from == NULL a fill, that stands in a queue. */
struct move {
    void *to;
    const void *from;
    size_t bytes;
    unsigned char value;
};

static void run_move(void *arg)
{
    struct move *move = arg;

    if (move->from != NULL)
        memmove(move->to, move->from, move->bytes);
    else
        memset(move->to, move->value, move->bytes);
    free(move);
}

static cu_result_t push_move(struct cu_stream *stream, struct move what)
{
    struct move *move;
    cu_result_t rc;

    if (what.bytes == 0)
        return COLL_CUDA_SUCCESS;
    move = malloc(sizeof(*move));
    if (move == NULL)
        return COLL_CUDA_OUT_OF_MEMORY;
    *move = what;
    rc = fake_cuda_push(stream, run_move, move);
    if (rc != COLL_CUDA_SUCCESS)
        free(move);
    /* The real one would put it into the graph. */
    return rc == COLL_CUDA_CAPTURE_UNSUPPORTED ? COLL_CUDA_SUCCESS : rc;
}

cu_result_t cuMemcpyAsync(
    cu_address_t to, cu_address_t from, size_t bytes, struct cu_stream *stream)
{
    cu_result_t rc = fake_cuda_enter(__func__);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    if (bytes > 0 && (to == 0 || from == 0))
        return COLL_CUDA_INVALID_VALUE;
    return push_move(
        stream, (struct move){
                    .to = pointer(to), .from = pointer(from), .bytes = bytes});
}

cu_result_t cuMemsetD8Async(cu_address_t address, unsigned char value,
    size_t bytes, struct cu_stream *stream)
{
    cu_result_t rc = fake_cuda_enter(__func__);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    return push_move(stream,
        (struct move){.to = pointer(address), .bytes = bytes, .value = value});
}

static bool look_up(cu_address_t address, struct piece *out)
{
    const char *at = pointer(address);
    struct piece *piece;

    pthread_mutex_lock(&fake_cuda_lock);
    for (piece = pieces; piece != NULL; piece = piece->next)
        if (at >= piece->memory && at < piece->memory + piece->bytes)
            break;
    if (piece != NULL)
        *out = *piece;
    pthread_mutex_unlock(&fake_cuda_lock);
    return piece != NULL;
}

/* Of memory that the driver does not know: piece is NULL. */
static cu_result_t answer(
    void *value, cu_pointer_attribute_t attribute, const struct piece *piece)
{
    switch (attribute) {
    case COLL_CUDA_POINTER_CONTEXT:
        *(struct cu_context **)value =
            piece != NULL ? &fake_cuda_contexts[piece->device] : NULL;
        return COLL_CUDA_SUCCESS;
    case COLL_CUDA_POINTER_MEMORY_TYPE:
        *(unsigned int *)value = piece != NULL ? piece->type : 0;
        return COLL_CUDA_SUCCESS;
    case COLL_CUDA_POINTER_IS_MANAGED:
        *(unsigned int *)value = 0;
        return COLL_CUDA_SUCCESS;
    case COLL_CUDA_POINTER_ORDINAL:
        *(int *)value = piece != NULL ? piece->device : -2;
        return COLL_CUDA_SUCCESS;
    default:
        return COLL_CUDA_INVALID_VALUE;
    }
}

cu_result_t cuPointerGetAttribute(
    void *value, cu_pointer_attribute_t attribute, cu_address_t address)
{
    struct piece piece;
    cu_result_t rc = fake_cuda_enter(__func__);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    if (!look_up(address, &piece))
        return COLL_CUDA_INVALID_VALUE;
    return answer(value, attribute, &piece);
}

/* Of unknown memory this one answers, with nothing. */
cu_result_t cuPointerGetAttributes(unsigned int count,
    cu_pointer_attribute_t *attributes, void **values, cu_address_t address)
{
    struct piece piece;
    cu_result_t rc = fake_cuda_enter(__func__);
    bool is_known = rc == COLL_CUDA_SUCCESS && look_up(address, &piece);

    for (unsigned int i = 0; rc == COLL_CUDA_SUCCESS && i < count; i++)
        rc = answer(values[i], attributes[i], is_known ? &piece : NULL);
    return rc;
}
