/*
 * See coll_many.h. Of many buffers those that are small are packed into one,
 * so that they cost one call of the back end together; large ones are calls of
 * their own. What is packed depends on the counts only, which are the same on
 * all ranks.
 */
#include "coll_many.h"

#include <stdlib.h>
#include <string.h>

#include "kernel.h"

/* A compromise, estimated and not measured: copying a buffer twice costs less
 * than a call of its own up to a few KiB where every rank has a CPU, and up to
 * more than this where ranks share CPUs, or between nodes. A packed call stays
 * within the cache. */
#define SMALL_BYTES ((size_t)32 * 1024)
#define PACK_BYTES ((size_t)512 * 1024)

static enum coll_kind kind_of_part(enum coll_kind kind)
{
    switch (kind) {
    case COLL_KIND_ALL_REDUCE_COALESCED:
        return COLL_KIND_ALL_REDUCE;
    case COLL_KIND_ALL_GATHER_COALESCED:
        return COLL_KIND_ALL_GATHER;
    case COLL_KIND_REDUCE_SCATTER_COALESCED:
        return COLL_KIND_REDUCE_SCATTER;
    case COLL_KIND_GROUP_SPLIT:
    case COLL_KIND_ALL_GATHER_OBJECT:
        return COLL_KIND_ALL_GATHER;
    case COLL_KIND_BROADCAST_OBJECT:
        return COLL_KIND_BROADCAST;
    default:
        return kind;
    }
}

static bool is_coalesced(enum coll_kind kind)
{
    return kind == COLL_KIND_ALL_REDUCE_COALESCED ||
           kind == COLL_KIND_ALL_GATHER_COALESCED ||
           kind == COLL_KIND_REDUCE_SCATTER_COALESCED;
}

bool coll_many_is(const struct coll_call *call)
{
    return call->has_factor || kind_of_part(call->kind) != call->kind;
}

static coll_status_t fail_memory(const struct coll_call *call)
{
    return coll_fail(
        COLL_ERR_MEMORY, "%s: out of memory", coll_kind_name(call->kind));
}

/* --- With a factor -------------------------------------------------------- */

/* Elements at sendbuf, from its start to the end of the last part. */
static size_t sent_count(
    const struct coll_group *g, const struct coll_call *part)
{
    size_t end = 0;

    if (part->kind == COLL_KIND_REDUCE_SCATTER)
        return part->count * (size_t)g->size;
    if (part->kind != COLL_KIND_REDUCE_SCATTER_V)
        return part->count;
    for (int r = 0; r < g->size; r++)
        if (part->send_counts[r] > 0 &&
            part->send_at[r] + part->send_counts[r] > end)
            end = part->send_at[r] + part->send_counts[r];
    return end;
}

static coll_status_t run_scaled(
    struct coll_group *g, const struct coll_call *call)
{
    struct coll_call part = *call;
    size_t count = sent_count(g, call);
    coll_status_t status;
    void *scaled = NULL;

    if (count > 0) {
        scaled = malloc(count * coll_dtype_size(call->dtype));
        if (scaled == NULL)
            return fail_memory(call);
        kernel_scale(scaled, call->sendbuf, count, call->dtype, call->factor);
        part.sendbuf = scaled;
    }
    part.has_factor = false;
    part.whole = call;
    status = g->backend->run(g, &part);
    free(scaled);
    return status;
}

static coll_status_t run_part(
    struct coll_group *g, const struct coll_call *part)
{
    return part->has_factor ? run_scaled(g, part) : g->backend->run(g, part);
}

/* --- Many buffers --------------------------------------------------------- */

/* A run of small buffers, and where they lie when packed. */
struct pack {
    const struct coll_call *call;
    size_t first, end; /* indices */
    size_t count; /* elements of one part of all of them */
    size_t parts_sent, parts_received; /* 1, or one for each rank */
};

/* Copies between the program's buffers and packed memory, where the parts of
 * rank 0 come first, then those of rank 1 and so on. */
static void copy(const struct pack *p, char *packed, bool is_send)
{
    const struct coll_call *call = p->call;
    size_t size = coll_dtype_size(call->dtype);
    size_t parts = is_send ? p->parts_sent : p->parts_received;

    for (size_t part = 0; part < parts; part++) {
        for (size_t i = p->first; i < p->end; i++) {
            size_t bytes = call->many_counts[i] * size;

            if (bytes > 0 && is_send)
                memcpy(packed, (const char *)call->many_send[i] + part * bytes,
                    bytes);
            else if (bytes > 0)
                memcpy(
                    (char *)call->many_recv[i] + part * bytes, packed, bytes);
            packed += bytes;
        }
    }
}

static coll_status_t run_pack(struct coll_group *g, const struct pack *p,
    struct coll_call *part, char *memory)
{
    size_t bytes = p->count * coll_dtype_size(part->dtype);
    coll_status_t status;

    part->count = p->count;
    part->sendbuf = memory;
    part->recvbuf = p->parts_sent == p->parts_received
                        ? memory
                        : memory + p->parts_sent * bytes;
    copy(p, memory, true);
    status = run_part(g, part);
    if (status == COLL_OK)
        copy(p, part->recvbuf, false);
    return status;
}

static coll_status_t run_packs(
    struct coll_group *g, struct pack *p, struct coll_call *part, char *memory)
{
    const struct coll_call *call = p->call;
    size_t size = coll_dtype_size(call->dtype);
    size_t parts = p->parts_sent + p->parts_received;
    coll_status_t status = COLL_OK;

    while (status == COLL_OK && p->first < call->nmany) {
        p->end = p->first;
        p->count = 0;
        while (
            p->end < call->nmany &&
            call->many_counts[p->end] * size <= SMALL_BYTES &&
            (p->count + call->many_counts[p->end]) * size * parts <= PACK_BYTES)
            p->count += call->many_counts[p->end++];
        if (p->end - p->first > 1) {
            status = run_pack(g, p, part, memory);
        } else {
            p->end = p->first + 1;
            part->count = call->many_counts[p->first];
            part->sendbuf = call->many_send[p->first];
            part->recvbuf = call->many_recv[p->first];
            status = run_part(g, part);
        }
        p->first = p->end;
    }
    return status;
}

coll_status_t coll_many_run(struct coll_group *g, const struct coll_call *call)
{
    struct coll_call part = *call;
    struct pack p = {.call = call, .parts_sent = 1, .parts_received = 1};
    coll_status_t status;
    char *memory;

    part.kind = kind_of_part(call->kind);
    if (part.kind == call->kind)
        return run_scaled(g, call);
    part.whole = call;
    if (!is_coalesced(call->kind))
        return g->backend->run(g, &part);
    if (call->nmany == 0) {
        part.kind = COLL_KIND_BARRIER;
        return g->backend->run(g, &part);
    }
    if (part.kind == COLL_KIND_ALL_GATHER)
        p.parts_received = (size_t)g->size;
    if (part.kind == COLL_KIND_REDUCE_SCATTER)
        p.parts_sent = (size_t)g->size;
    memory = malloc(PACK_BYTES);
    if (memory == NULL)
        return fail_memory(call);
    status = run_packs(g, &p, &part, memory);
    free(memory);
    return status;
}
