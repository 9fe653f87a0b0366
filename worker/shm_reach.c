/* See shm_reach.h. */
#include "shm_reach.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "coll_memory.h"
#include "coll_ranks.h"
#include "coll_signature.h"
#include "rendezvous/base/clock.h"

/* Extents of one rank that stay mapped; more than that begin anew. */
#define MAPS_MAX 64

/* So long a rank that cannot be read may take to be known as dead. */
#define DEATH_MS 2000

/* What a rank puts into its slot for the first tick. */
struct offer {
    struct coll_extent send, recv;
    uint64_t send_address, recv_address;
    uint64_t send_bytes, recv_bytes;
    uint64_t probe_address, probe; /* what is to be read there */
    uint64_t is_readable; /* by the kernel, where it is not mapped */
    /* reduce_scatter_v: [size] where in the send buffer each rank's part
     * begins, in elements. */
    uint64_t parts[];
};

/* A slot has room for it. */
_Static_assert(sizeof(struct offer) + SHM_MAX_RANKS * sizeof(uint64_t) <=
                   SHM_CHUNK_MIN_BYTES,
    "an offer fits the smallest chunk");

struct mapping {
    uint64_t at, len;
    char *base;
};

struct reach_peer {
    struct mapping maps[MAPS_MAX];
    int maps_count;
};

struct shm_reach {
    int size;
    uint64_t probe;
    bool is_forbidden; /* to read others, by this process's environment */
    enum { READ_UNKNOWN, READ_YES, READ_NO } may_read; /* the same on all */
    struct shm_view *views; /* [2 * size] */
    struct reach_peer peers[];
};

/* --- Life ----------------------------------------------------------------- */

static void drop_maps(struct reach_peer *peer)
{
    for (int i = 0; i < peer->maps_count; i++)
        munmap(peer->maps[i].base, peer->maps[i].len);
    peer->maps_count = 0;
}

void shm_reach_free(struct shm_reach *r)
{
    if (r == NULL)
        return;
    for (int i = 0; i < r->size; i++)
        drop_maps(&r->peers[i]);
    free(r->views);
    free(r);
}

static struct shm_reach *reach_create(int size)
{
    const char *cma = getenv("COLL_CMA");
    size_t n = (size_t)size;
    struct shm_reach *r = calloc(1, sizeof(*r) + n * sizeof(r->peers[0]));

    if (r == NULL)
        return NULL;
    r->size = size;
    r->views = calloc(2 * n, sizeof(*r->views));
    if (r->views == NULL) {
        shm_reach_free(r);
        return NULL;
    }
    r->probe = clock_now_ns() ^ (uint64_t)(uintptr_t)r;
    r->is_forbidden = cma != NULL && strcmp(cma, "0") == 0;
    return r;
}

/* --- Mapping -------------------------------------------------------------- */

static coll_status_t fail(
    const struct coll_call *call, const char *what, int error)
{
    char name[64];

    return coll_fail(COLL_ERR_SYSTEM, "%s: %s: %s",
        coll_call_text(name, sizeof(name), call), what, strerror(error));
}

/* Those who do not have the descriptor of this process's memory get it; it is
 * in their sockets when they see the tick. */
static coll_status_t hand_out_memory(
    struct shm_state *s, const struct coll_call *call)
{
    for (int r = 0; r < s->size; r++) {
        int rc = r == s->rank ? 0 : shm_send_memory(s, r);

        /* Who has ended is noticed at the tick. */
        if (rc < 0 && rc != -EPIPE && rc != -ECONNRESET)
            return fail(call, "pass the memory on", -rc);
    }
    return COLL_OK;
}

static coll_status_t map_extent(struct shm_state *s,
    const struct coll_call *call, int rank, const struct coll_extent *extent,
    char **base)
{
    struct reach_peer *peer = &s->reach->peers[rank];
    char *memory;
    int fd, rc;

    for (int i = 0; i < peer->maps_count; i++) {
        const struct mapping *m = &peer->maps[i];

        if (extent->at >= m->at && extent->at + extent->len <= m->at + m->len) {
            *base = m->base + (extent->at - m->at) + extent->offset;
            return COLL_OK;
        }
    }
    fd = shm_memory_of(s, rank, SHM_LANE_MEMORY);
    /* The message has come, so it is the descriptor that found no place. */
    if (fd < 0)
        return fail(call, "take the memory of another rank", EMFILE);
    rc = coll_memory_map(&memory, fd, extent->at, extent->len, MAP_POPULATE);
    if (rc < 0)
        return fail(call, "map the memory of another rank", -rc);
    peer->maps[peer->maps_count++] =
        (struct mapping){extent->at, extent->len, memory};
    *base = memory + extent->offset;
    return COLL_OK;
}

/* --- Offers --------------------------------------------------------------- */

static const struct offer *offer_of(const struct shm_state *s, int rank)
{
    return (const struct offer *)(const void *)shm_slot(s, rank, s->tick);
}

/* The views of one rank. A place for two maps is free: see begin. */
static coll_status_t view_rank(struct shm_state *s,
    const struct coll_call *call, int rank, struct shm_views *views)
{
    const struct offer *offer = offer_of(s, rank);
    struct shm_view *send = &views->send[rank];
    struct shm_view *recv = &views->recv[rank];
    coll_status_t status = COLL_OK;

    *send = (struct shm_view){.address = offer->send_address};
    *recv = (struct shm_view){.address = offer->recv_address};
    if (call->send_at != NULL)
        send->part = offer->parts[s->rank] * coll_dtype_size(call->dtype);
    views->all_send_mapped &= offer->send_bytes == 0 || offer->send.len > 0;
    views->all_recv_mapped &= offer->recv_bytes == 0 || offer->recv.len > 0;
    views->may_read &= offer->is_readable != 0;
    if (rank == s->rank) {
        send->base = (char *)(uintptr_t)offer->send_address;
        recv->base = (char *)(uintptr_t)offer->recv_address;
        return COLL_OK;
    }
    if (offer->send.len > 0)
        status = map_extent(s, call, rank, &offer->send, &send->base);
    if (status == COLL_OK && offer->recv.len > 0)
        status = map_extent(s, call, rank, &offer->recv, &recv->base);
    return status;
}

static bool can_read(struct shm_state *s, int rank)
{
    const struct offer *offer = offer_of(s, rank);
    uint64_t found = 0;
    struct iovec here = {&found, sizeof(found)};
    struct iovec there = {
        (void *)(uintptr_t)offer->probe_address, sizeof(found)};

    return s->peers[rank].pid > 0 &&
           process_vm_readv(s->peers[rank].pid, &here, 1, &there, 1, 0) ==
               (ssize_t)sizeof(found) &&
           found == offer->probe;
}

/* Once for a group: do all ranks have that permission? With a tick more, and
 * on all of them: what one rank is told the others do not know. */
static coll_status_t probe(struct coll_group *g, const struct coll_call *call)
{
    struct shm_state *s = g->state;
    uint32_t *own = (uint32_t *)(void *)shm_slot(s, s->rank, s->tick + 1);
    bool all = !s->reach->is_forbidden;
    coll_status_t status;

    for (int r = 0; r < s->size && all; r++)
        all = r == s->rank || can_read(s, r);
    *own = all;
    status = shm_tick(g, call, call->deadline_ns);
    if (status != COLL_OK)
        return status;
    for (int r = 0; r < s->size; r++)
        all &= *(const uint32_t *)(const void *)shm_slot(s, r, s->tick) != 0;
    s->reach->may_read = all ? READ_YES : READ_NO;
    return COLL_OK;
}

/* The memory of a device, which a driver has mapped, is memory like any other
 * but for this. A buffer is taken to be of one kind from end to end. */
static bool is_readable(const void *buf, size_t len)
{
    char found[2];
    struct iovec here = {found, sizeof(found)};
    struct iovec there[] = {
        {(void *)buf, 1},
        {(char *)buf + len - 1, 1},
    };

    return process_vm_readv(getpid(), &here, 1, there, 2, 0) ==
           (ssize_t)sizeof(found);
}

coll_status_t shm_reach_begin(struct coll_group *g,
    const struct coll_call *call, size_t send_bytes, size_t recv_bytes,
    bool wants_read, struct shm_views *views)
{
    struct shm_state *s = g->state;
    struct offer *offer =
        (struct offer *)(void *)shm_slot(s, s->rank, s->tick + 1);
    coll_status_t status = COLL_OK;

    if (s->reach == NULL)
        s->reach = reach_create(s->size);
    if (s->reach == NULL)
        return coll_fail(COLL_ERR_MEMORY, "out of memory for an operation");
    *offer = (struct offer){
        .send_address = (uintptr_t)call->sendbuf,
        .recv_address = (uintptr_t)call->recvbuf,
        .send_bytes = send_bytes,
        .recv_bytes = recv_bytes,
        .probe_address = (uintptr_t)&s->reach->probe,
        .probe = s->reach->probe,
    };
    for (int r = 0; call->send_at != NULL && r < s->size; r++)
        offer->parts[r] = call->send_at[r];
    if (send_bytes > 0)
        coll_memory_find(&offer->send, call->sendbuf, send_bytes);
    if (recv_bytes > 0)
        coll_memory_find(&offer->recv, call->recvbuf, recv_bytes);
    wants_read &= s->reach->may_read != READ_NO;
    offer->is_readable = wants_read &&
                         (send_bytes == 0 || offer->send.len > 0 ||
                             is_readable(call->sendbuf, send_bytes)) &&
                         (recv_bytes == 0 || offer->recv.len > 0 ||
                             is_readable(call->recvbuf, recv_bytes));
    if (offer->send.len > 0 || offer->recv.len > 0)
        status = hand_out_memory(s, call);
    if (status == COLL_OK)
        status = shm_first_tick(g, call);
    *views = (struct shm_views){
        .send = s->reach->views,
        .recv = s->reach->views + s->size,
        .all_send_mapped = true,
        .all_recv_mapped = true,
        .may_read = true,
    };
    for (int r = 0; status == COLL_OK && r < s->size; r++) {
        if (s->reach->peers[r].maps_count > MAPS_MAX - 2)
            drop_maps(&s->reach->peers[r]);
        status = view_rank(s, call, r, views);
    }
    if (status == COLL_OK && s->reach->may_read == READ_UNKNOWN &&
        !(views->all_send_mapped && views->all_recv_mapped))
        status = probe(g, call);
    views->may_read &= s->reach->may_read == READ_YES;
    return status;
}

/* --- Reading -------------------------------------------------------------- */

/* A rank cannot be read any more: because it is dead, as a rule. */
static coll_status_t fail_read(
    struct shm_state *s, const struct coll_call *call, int rank, int error)
{
    uint64_t end_ns = clock_deadline_ns(DEATH_MS);
    char name[64];

    do {
        const struct timespec pause = {.tv_nsec = 1000 * 1000};
        coll_status_t status = shm_check_alive(s, call);

        if (status != COLL_OK)
            return status;
        nanosleep(&pause, NULL);
    } while (clock_now_ns() < end_ns);
    return coll_fail(COLL_ERR_SYSTEM,
        "%s: cannot read the buffer of rank %d: %s",
        coll_call_text(name, sizeof(name), call),
        coll_rank_name(s->names, rank), strerror(error));
}

coll_status_t shm_reach_copy(struct coll_group *g, const struct coll_call *call,
    int rank, const struct shm_view *view, size_t offset, size_t len, void *to)
{
    struct shm_state *s = g->state;

    if (view->base != NULL) {
        if (len > 0 && to != view->base + offset)
            memcpy(to, view->base + offset, len);
        return COLL_OK;
    }
    while (len > 0) {
        struct iovec here = {to, len};
        struct iovec there = {(void *)(uintptr_t)(view->address + offset), len};
        ssize_t n =
            process_vm_readv(s->peers[rank].pid, &here, 1, &there, 1, 0);

        if (n <= 0)
            return fail_read(s, call, rank, n == 0 ? EFAULT : errno);
        to = (char *)to + n;
        offset += (size_t)n;
        len -= (size_t)n;
    }
    return COLL_OK;
}

coll_status_t shm_reach_get(struct coll_group *g, const struct coll_call *call,
    int rank, const struct shm_view *view, size_t offset, size_t len,
    void *scratch, const void **out)
{
    if (view->base != NULL) {
        *out = view->base + offset;
        return COLL_OK;
    }
    *out = scratch;
    return shm_reach_copy(g, call, rank, view, offset, len, scratch);
}
