/* See pairs.h. */
#include "pairs.h"

#include <string.h>

#include "coll_ranks.h"
#include "coll_signature.h"
#include "spread.h"

size_t pairs_bytes(int size, size_t blocks)
{
    size_t all = 2 * (size_t)size * sizeof(uint64_t);

    if (all <= SPREAD_BYTES / blocks)
        return all;
    return sizeof(uint64_t) <= SPREAD_BYTES / blocks ? sizeof(uint64_t) : 0;
}

/* Spreads the bits of what goes from one rank to another over 64: the
 * finalizer of splitmix64. */
static uint64_t mix(int from, int to, uint64_t count)
{
    uint64_t x =
        count + ((uint64_t)from << 32 | (uint64_t)to) * 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

void pairs_pack(
    const struct coll_call *call, int rank, int size, size_t bytes, void *block)
{
    bool is_sum = bytes == sizeof(uint64_t);
    uint64_t sum = 0;
    char *at = block;

    for (int r = 0; r < size; r++) {
        const uint64_t both[] = {call->send_counts[r], call->recv_counts[r]};

        if (!is_sum)
            memcpy(at + (size_t)r * sizeof(both), both, sizeof(both));
        /* If all fit, each term is there once with each sign. */
        sum += mix(rank, r, both[0]) - mix(r, rank, both[1]);
    }
    if (is_sum)
        memcpy(block, &sum, sizeof(sum));
}

static uint64_t count_at(
    const void *const *blocks, int rank, int other, bool is_recv)
{
    const char *block = blocks[rank];
    uint64_t count;

    memcpy(&count, block + ((size_t)other * 2 + is_recv) * sizeof(count),
        sizeof(count));
    return count;
}

static coll_status_t check_sums(const struct coll_group *g,
    const struct coll_call *call, const void *const *blocks)
{
    uint64_t sum = 0;

    for (int r = 0; r < g->size; r++) {
        uint64_t term;

        memcpy(&term, blocks[r], sizeof(term));
        sum += term;
    }
    if (sum == 0)
        return COLL_OK;
    return coll_fail(COLL_ERR_MISMATCH,
        "mismatch at operation #%llu: with all_to_all_v some rank sends "
        "another "
        "number of elements than the receiver awaits",
        (unsigned long long)call->seq);
}

coll_status_t pairs_check(const struct coll_group *g,
    const struct coll_call *call, const void *const *blocks, size_t bytes)
{
    if (bytes == 0)
        return COLL_OK;
    if (bytes == sizeof(uint64_t))
        return check_sums(g, call, blocks);
    for (int from = 0; from < g->size; from++)
        for (int to = 0; to < g->size; to++) {
            uint64_t sent = count_at(blocks, from, to, false);
            uint64_t awaited = count_at(blocks, to, from, true);

            if (sent != awaited)
                return coll_fail(COLL_ERR_MISMATCH,
                    "mismatch at operation #%llu: rank %d called all_to_all_v "
                    "with %llu elements for rank %d, which awaits %llu",
                    (unsigned long long)call->seq,
                    coll_rank_name(g->names, from), (unsigned long long)sent,
                    coll_rank_name(g->names, to), (unsigned long long)awaited);
        }
    return COLL_OK;
}
