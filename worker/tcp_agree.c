/*
 * What every operation over a net begins with: in ceil(log2 n) steps every rank
 * learns whether all have called the same, and if not which two have not. It is
 * the whole of a barrier, and of all that is small: then the data are in the
 * same messages. Each says how much follows, so that it is read to its end also
 * by a rank that calls something else.
 */
#include "tcp_internal.h"

#include <string.h>

#include "coll_signature.h"
#include "pattern.h"
#include "spread.h"

#define AGREE_MAGIC 0x636f6c62u

/* Scratch memory during an agreement: a message that goes out ends in the first
 * blocks, one that comes in has a place of its own. */
#define BLOCKS_AT ((size_t)128)
#define MESSAGE_AT (BLOCKS_AT + SPREAD_BYTES)

/* What two ranks have called. */
struct agreement {
    uint32_t magic;
    int32_t first; /* the lowest rank that was heard of, by its name */
    int32_t other; /* the lowest that has called something else, or -1 */
    uint32_t unused;
    uint64_t bytes; /* of blocks that follow */
    struct coll_signature of_first;
    struct coll_signature of_other;
};

_Static_assert(sizeof(struct agreement) <= BLOCKS_AT &&
                   MESSAGE_AT + sizeof(struct agreement) + SPREAD_BYTES <=
                       TCP_SCRATCH_BYTES,
    "an agreement fits the scratch memory");

/* One rank's call becomes part of what is known. The order does not matter:
 * what remains is the lowest rank, and the lowest that differs from it. */
static void note_call(
    struct agreement *a, int32_t rank, const struct coll_signature *sig)
{
    if (rank < 0)
        return;
    if (rank < a->first) {
        if (!coll_signature_is_same(sig, &a->of_first)) {
            a->other = a->first;
            a->of_other = a->of_first;
        }
        a->first = rank;
        a->of_first = *sig;
    } else if (!coll_signature_is_same(sig, &a->of_first) &&
               (a->other < 0 || rank < a->other)) {
        a->other = rank;
        a->of_other = *sig;
    }
}

static void merge(struct agreement *a, const struct agreement *b)
{
    note_call(a, b->first, &b->of_first);
    note_call(a, b->other, &b->of_other);
}

char *tcp_blocks(struct tcp_net *net)
{
    return net->scratch + BLOCKS_AT;
}

/* What goes out and comes in at a distance. */
struct step {
    int to;
    int from;
    size_t out; /* bytes of blocks, from the first on */
    size_t in;
    size_t in_at; /* behind what is here */
};

static struct step step_of(
    const struct tcp_net *net, const struct tcp_gift *gift, int d)
{
    int n = net->size;
    struct step s = {
        .to = (net->rank + n - d) % n,
        .from = (net->rank + d) % n,
    };
    int place;

    if (gift == NULL)
        return s;
    if (gift->giver < 0) {
        s.in_at = (size_t)d * gift->bytes;
        s.in = (size_t)(d < n - d ? d : n - d) * gift->bytes;
        s.out = s.in;
        return s;
    }
    /* The giver's block has come to those as far as d below it. */
    place = (gift->giver + n - net->rank) % n;
    if (place < d && place + d < n)
        s.out = gift->bytes;
    if (place >= d && place < 2 * d)
        s.in = gift->bytes;
    return s;
}

/* One message each way. *is_whole becomes false if not all the blocks came. */
static coll_status_t take_step(struct tcp_net *net,
    const struct coll_call *call, struct agreement *known, const struct step *s,
    bool *is_whole)
{
    char *blocks = tcp_blocks(net);
    char *message = net->scratch + MESSAGE_AT;
    struct agreement heard;
    struct tcp_flow out;
    struct tcp_flow in = {
        tcp_net_link(net, s->from), message, sizeof(heard) + s->in};
    coll_status_t status;
    size_t got;
    char name[64];

    known->bytes = *is_whole ? s->out : 0;
    out = (struct tcp_flow){tcp_net_link(net, s->to), blocks - sizeof(*known),
        sizeof(*known) + (size_t)known->bytes};
    memcpy(out.at, known, sizeof(*known));
    status = tcp_exchange_until(net, call, &out, &in, out.left, s->in);
    if (status != COLL_OK)
        return status;
    memcpy(&heard, message, sizeof(heard));
    got = (size_t)(in.at - message) - sizeof(heard);
    if (heard.magic != AGREE_MAGIC || heard.bytes > SPREAD_BYTES)
        return coll_fail(COLL_ERR_SYSTEM,
            "%s: what came from rank %d is not the start of an operation",
            coll_call_text(name, sizeof(name), call), net->names[s->from]);
    /* If they do not call the same it has another length: shorter, then it is
     * the last word of that rank; or longer. */
    in.left = heard.bytes > got ? (size_t)heard.bytes - got : 0;
    status = tcp_exchange_until(net, call, &out, &in, 0, 0);
    if (status != COLL_OK)
        return status;
    merge(known, &heard);
    if (heard.bytes != s->in || known->other >= 0)
        *is_whole = false;
    else
        memcpy(blocks + s->in_at, message + sizeof(heard), s->in);
    return COLL_OK;
}

coll_status_t tcp_agree(struct tcp_net *net, const struct coll_call *call,
    const struct tcp_gift *gift)
{
    struct agreement known = {
        .magic = AGREE_MAGIC,
        .first = net->names[net->rank],
        .other = -1,
        .of_first = coll_signature_of(call),
    };
    bool is_whole = true;
    char one[COLL_SIGNATURE_TEXT_BYTES];
    char two[COLL_SIGNATURE_TEXT_BYTES];

    for (int d = 1; d < net->size; d *= 2) {
        const struct step s = step_of(net, gift, d);
        coll_status_t status = take_step(net, call, &known, &s, &is_whole);

        if (status != COLL_OK)
            return status;
    }
    if (known.other < 0 && is_whole)
        return COLL_OK;
    coll_signature_text(one, sizeof(one), &known.of_first);
    if (known.other < 0)
        return coll_fail(COLL_ERR_MISMATCH,
            "mismatch at operation #%llu: %s does not mean the same to all "
            "ranks",
            (unsigned long long)call->seq, one);
    coll_signature_text(two, sizeof(two), &known.of_other);
    return coll_fail(COLL_ERR_MISMATCH,
        "mismatch at operation #%llu: rank %d called %s, rank %d called %s",
        (unsigned long long)call->seq, known.first, one, known.other, two);
}

void tcp_list_blocks(struct tcp_net *net, const struct tcp_gift *gift)
{
    for (int r = 0; r < net->size; r++) {
        int j = gift->giver < 0 ? pattern_shift(r, -net->rank, net->size) : 0;

        net->srcs[r] = tcp_blocks(net) + (size_t)j * gift->bytes;
    }
}

coll_status_t tcp_run_small(struct tcp_net *net, const struct coll_call *call,
    const struct spread *plan)
{
    const struct tcp_gift gift = {
        plan->bytes, plan->is_from_root ? call->root : -1};
    coll_status_t status;

    if (gift.giver < 0 || gift.giver == net->rank)
        spread_pack(plan, call, tcp_blocks(net), net->rank, net->size);
    status = tcp_agree(net, call, &gift);
    if (status != COLL_OK)
        return status;
    tcp_list_blocks(net, &gift);
    spread_unpack(call, net->srcs, net->rank, net->size);
    return COLL_OK;
}
