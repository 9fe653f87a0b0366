/*
 * Every operation x type x reduction on device memory, checked element by
 * element against a reference that the host computes. Not every combination of
 * all that can vary is tried, which would take hours where ranks share a GPU:
 * every reduction of every type with small counts, every type with a large one,
 * and of two types all counts, in place and not, waiting and not.
 */
#include "tests/gpu/operations.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind {
    ALL_REDUCE,
    REDUCE,
    REDUCE_SCATTER,
    REDUCE_SCATTER_V,
    ALL_REDUCE_COALESCED,
    REDUCE_SCATTER_COALESCED,
    BROADCAST, /* from here on nothing is reduced */
    ALL_GATHER,
    GATHER,
    SCATTER,
    ALL_TO_ALL,
    ALL_GATHER_V,
    ALL_TO_ALL_V,
    ALL_GATHER_COALESCED,
    KINDS,
};

static const char *const kind_names[KINDS] = {
    [ALL_REDUCE] = "all_reduce",
    [REDUCE] = "reduce",
    [REDUCE_SCATTER] = "reduce_scatter",
    [REDUCE_SCATTER_V] = "reduce_scatter_v",
    [ALL_REDUCE_COALESCED] = "all_reduce_coalesced",
    [REDUCE_SCATTER_COALESCED] = "reduce_scatter_coalesced",
    [BROADCAST] = "broadcast",
    [ALL_GATHER] = "all_gather",
    [GATHER] = "gather",
    [SCATTER] = "scatter",
    [ALL_TO_ALL] = "all_to_all",
    [ALL_GATHER_V] = "all_gather_v",
    [ALL_TO_ALL_V] = "all_to_all_v",
    [ALL_GATHER_COALESCED] = "all_gather_coalesced",
};

#define COALESCED 3 /* buffers of a coalesced call */
#define RANKS_MAX 64
#define BYTES_MAX (1 << 20) /* of one rank's part */

/* One call, and the memory for it. Buffers are counted in elements; that of
 * a call in place is recv, or send where the result lies in what is sent. */
struct trial {
    enum kind kind;
    coll_dtype_t dtype;
    int op; /* a coll_op_t, or RIG_PREMUL */
    size_t count;
    int root;
    bool is_in_place, is_async;
    size_t element; /* its bytes */
    unsigned char *send, *recv; /* on the device */
    unsigned char *host; /* what is written there, and what comes back */
    double *expected; /* of the buffer with the result; NAN: untouched */
    size_t nsend, nrecv;
    coll_op_t premul;
};

/* What fills the elements that a call must leave alone. */
#define UNTOUCHED 0x2a

static bool reduces(enum kind kind)
{
    return kind < BROADCAST;
}

/* --- Where parts lie ----------------------------------------------------- */

/* In the calls with unlike parts: rank r's part of all_gather_v and of
 * reduce_scatter_v; what rank s sends to r in all_to_all_v. There is a gap of
 * one element between parts. */
static size_t part(const struct trial *t, int r)
{
    return t->count + (size_t)r;
}

static size_t part_at(const struct trial *t, int r)
{
    size_t at = 0;
    int i;

    for (i = 0; i < r; i++)
        at += part(t, i) + 1;
    return at;
}

static size_t between(const struct trial *t, int s, int r)
{
    return t->count + (size_t)(2 * s + r);
}

static size_t sent_at(const struct trial *t, int s, int r)
{
    size_t at = 0;
    int i;

    for (i = 0; i < r; i++)
        at += between(t, s, i) + 1;
    return at;
}

static size_t received_at(const struct trial *t, int r, int s)
{
    size_t at = 0;
    int i;

    for (i = 0; i < s; i++)
        at += between(t, i, r) + 1;
    return at;
}

/* Counts of a coalesced call; buffer i begins behind the ones before it. */
static size_t many(const struct trial *t, int i)
{
    return i == 1 ? 1 : i == 0 ? t->count : t->count / 2 + 1;
}

static size_t many_at(const struct trial *t, int i, size_t times)
{
    size_t at = 0;
    int k;

    for (k = 0; k < i; k++)
        at += many(t, k) * times;
    return at;
}

/* --- The reference ------------------------------------------------------- */

static double sent(const struct trial *t, int rank, size_t i)
{
    return rig_value(t->dtype, t->op, rank, i);
}

static double reduced(const struct rig *rig, const struct trial *t, size_t i)
{
    return rig_reduced(
        t->dtype, t->op, t->op == RIG_PREMUL ? 2 : 1, rig->size, i);
}

/* Sets nsend, nrecv and expected, which is NAN throughout at first. */
static void expect(const struct rig *rig, struct trial *t)
{
    const int n = rig->size, me = rig->rank;
    const bool is_root = me == t->root;
    const size_t c = t->count;
    double *to = t->expected;
    size_t i, k, at;
    int r;

    switch (t->kind) {
    case ALL_REDUCE:
    case REDUCE:
        t->nsend = t->nrecv = c;
        if (t->kind == ALL_REDUCE || is_root)
            for (i = 0; i < c; i++)
                to[i] = reduced(rig, t, i);
        break;
    case REDUCE_SCATTER:
        t->nsend = c * (size_t)n;
        t->nrecv = c;
        for (i = 0; i < c; i++)
            to[i] = reduced(rig, t, (size_t)me * c + i);
        break;
    case REDUCE_SCATTER_V:
        t->nsend = part_at(t, n);
        t->nrecv = part(t, me);
        for (i = 0; i < t->nrecv; i++)
            to[i] = reduced(rig, t, part_at(t, me) + i);
        break;
    case ALL_REDUCE_COALESCED:
        t->nsend = t->nrecv = many_at(t, COALESCED, 1);
        for (i = 0; i < t->nrecv; i++)
            to[i] = reduced(rig, t, i);
        break;
    case REDUCE_SCATTER_COALESCED:
        t->nsend = many_at(t, COALESCED, (size_t)n);
        t->nrecv = many_at(t, COALESCED, 1);
        for (r = 0; r < COALESCED; r++)
            for (i = 0; i < many(t, r); i++)
                to[many_at(t, r, 1) + i] = reduced(rig, t,
                    many_at(t, r, (size_t)n) + (size_t)me * many(t, r) + i);
        break;
    case BROADCAST:
        t->nsend = t->nrecv = c;
        for (i = 0; i < c; i++)
            to[i] = sent(t, t->root, i);
        break;
    case ALL_GATHER:
    case GATHER:
        t->nsend = c;
        t->nrecv = c * (size_t)n;
        if (t->kind == ALL_GATHER || is_root)
            for (i = 0; i < t->nrecv; i++)
                to[i] = sent(t, (int)(i / c), i % c);
        break;
    case SCATTER:
        t->nsend = c * (size_t)n;
        t->nrecv = c;
        for (i = 0; i < c; i++)
            to[i] = sent(t, t->root, (size_t)me * c + i);
        break;
    case ALL_TO_ALL:
        t->nsend = t->nrecv = c * (size_t)n;
        for (i = 0; i < t->nrecv; i++)
            to[i] = sent(t, (int)(i / c), (size_t)me * c + i % c);
        break;
    case ALL_GATHER_V:
        t->nsend = part(t, me);
        t->nrecv = part_at(t, n);
        for (r = 0; r < n; r++)
            for (i = 0; i < part(t, r); i++)
                to[part_at(t, r) + i] = sent(t, r, i);
        break;
    case ALL_TO_ALL_V:
        t->nsend = sent_at(t, me, n);
        t->nrecv = received_at(t, me, n);
        for (r = 0; r < n; r++) {
            at = received_at(t, me, r);
            k = sent_at(t, r, me);
            for (i = 0; i < between(t, r, me); i++)
                to[at + i] = sent(t, r, k + i);
        }
        break;
    case ALL_GATHER_COALESCED:
        t->nsend = many_at(t, COALESCED, 1);
        t->nrecv = many_at(t, COALESCED, (size_t)n);
        for (r = 0; r < COALESCED; r++)
            for (i = 0; i < many(t, r) * (size_t)n; i++)
                to[many_at(t, r, (size_t)n) + i] = sent(t,
                    (int)(i / many(t, r)), many_at(t, r, 1) + i % many(t, r));
        break;
    case KINDS:
        break;
    }
}

/* --- The call ------------------------------------------------------------ */

/* Where this rank's own part lies in the larger buffer of a call in place, and
 * which buffer that is; false: this call has no form in place on this rank. */
static bool place(
    const struct rig *rig, const struct trial *t, size_t *at, bool *is_in_send)
{
    *at = 0;
    *is_in_send = false;
    switch (t->kind) {
    case ALL_REDUCE:
    case REDUCE:
    case ALL_REDUCE_COALESCED:
    case BROADCAST:
    case ALL_TO_ALL:
        return true;
    case ALL_GATHER:
        *at = (size_t)rig->rank * t->count;
        return true;
    case GATHER:
        *at = (size_t)rig->rank * t->count;
        return rig->rank == t->root;
    case ALL_GATHER_V:
        *at = part_at(t, rig->rank);
        return true;
    case REDUCE_SCATTER:
        *at = (size_t)rig->rank * t->count;
        *is_in_send = true;
        return true;
    case REDUCE_SCATTER_V:
        *at = part_at(t, rig->rank);
        *is_in_send = true;
        return true;
    case SCATTER:
        *at = (size_t)rig->rank * t->count;
        *is_in_send = true;
        return rig->rank == t->root;
    default:
        return false;
    }
}

/* The call that does not wait; all of them have one. */
static coll_status_t start_many(const struct rig *rig, const struct trial *t,
    const unsigned char *from, unsigned char *to, coll_work_t **work)
{
    /* Borrowed until the work is done, so until the next call. */
    static const void *sendbufs[COALESCED];
    static void *recvbufs[COALESCED];
    static size_t counts[COALESCED];
    const size_t n = (size_t)rig->size;
    const coll_op_t op = t->op == RIG_PREMUL ? t->premul : (coll_op_t)t->op;
    int i;

    for (i = 0; i < COALESCED; i++) {
        counts[i] = many(t, i);
        sendbufs[i] =
            from + many_at(t, i, t->kind == REDUCE_SCATTER_COALESCED ? n : 1) *
                       t->element;
        recvbufs[i] =
            to +
            many_at(t, i, t->kind == ALL_GATHER_COALESCED ? n : 1) * t->element;
    }
    switch (t->kind) {
    case ALL_REDUCE_COALESCED:
        if (work != NULL)
            return coll_all_reduce_coalesced_async(sendbufs, recvbufs, counts,
                COALESCED, t->dtype, op, rig->group, work);
        return coll_all_reduce_coalesced(
            sendbufs, recvbufs, counts, COALESCED, t->dtype, op, rig->group);
    case REDUCE_SCATTER_COALESCED:
        if (work != NULL)
            return coll_reduce_scatter_coalesced_async(sendbufs, recvbufs,
                counts, COALESCED, t->dtype, op, rig->group, work);
        return coll_reduce_scatter_coalesced(
            sendbufs, recvbufs, counts, COALESCED, t->dtype, op, rig->group);
    default:
        if (work != NULL)
            return coll_all_gather_coalesced_async(sendbufs, recvbufs, counts,
                COALESCED, t->dtype, rig->group, work);
        return coll_all_gather_coalesced(
            sendbufs, recvbufs, counts, COALESCED, t->dtype, rig->group);
    }
}

static coll_status_t start_parts(const struct rig *rig, const struct trial *t,
    const unsigned char *from, unsigned char *to, coll_work_t **work)
{
    static size_t counts[RANKS_MAX], at[RANKS_MAX];
    static size_t recv_counts[RANKS_MAX], recv_at[RANKS_MAX];
    const coll_op_t op = t->op == RIG_PREMUL ? t->premul : (coll_op_t)t->op;
    const int me = rig->rank;
    int r;

    for (r = 0; r < rig->size; r++) {
        counts[r] = t->kind == ALL_TO_ALL_V ? between(t, me, r) : part(t, r);
        at[r] = t->kind == ALL_TO_ALL_V ? sent_at(t, me, r) : part_at(t, r);
        recv_counts[r] = between(t, r, me);
        recv_at[r] = received_at(t, me, r);
    }
    switch (t->kind) {
    case REDUCE_SCATTER_V:
        if (work != NULL)
            return coll_reduce_scatter_v_async(
                from, counts, at, to, t->dtype, op, rig->group, work);
        return coll_reduce_scatter_v(
            from, counts, at, to, t->dtype, op, rig->group);
    case ALL_GATHER_V:
        if (work != NULL)
            return coll_all_gather_v_async(
                from, part(t, me), to, counts, at, t->dtype, rig->group, work);
        return coll_all_gather_v(
            from, part(t, me), to, counts, at, t->dtype, rig->group);
    default:
        if (work != NULL)
            return coll_all_to_all_v_async(from, counts, at, to, recv_counts,
                recv_at, t->dtype, rig->group, work);
        return coll_all_to_all_v(
            from, counts, at, to, recv_counts, recv_at, t->dtype, rig->group);
    }
}

/* work is NULL for the form that waits. */
static coll_status_t start(const struct rig *rig, const struct trial *t,
    const unsigned char *from, unsigned char *to, coll_work_t **work)
{
    const coll_op_t op = t->op == RIG_PREMUL ? t->premul : (coll_op_t)t->op;
    coll_group_t *group = rig->group;

    switch (t->kind) {
    case ALL_REDUCE:
        return work != NULL
                   ? coll_all_reduce_async(
                         from, to, t->count, t->dtype, op, group, work)
                   : coll_all_reduce(from, to, t->count, t->dtype, op, group);
    case REDUCE:
        return work != NULL ? coll_reduce_async(from, to, t->count, t->dtype,
                                  op, t->root, group, work)
                            : coll_reduce(from, to, t->count, t->dtype, op,
                                  t->root, group);
    case REDUCE_SCATTER:
        return work != NULL ? coll_reduce_scatter_async(
                                  from, to, t->count, t->dtype, op, group, work)
                            : coll_reduce_scatter(
                                  from, to, t->count, t->dtype, op, group);
    case BROADCAST:
        return work != NULL
                   ? coll_broadcast_async(
                         to, t->count, t->dtype, t->root, group, work)
                   : coll_broadcast(to, t->count, t->dtype, t->root, group);
    case ALL_GATHER:
        return work != NULL
                   ? coll_all_gather_async(
                         from, to, t->count, t->dtype, group, work)
                   : coll_all_gather(from, to, t->count, t->dtype, group);
    case GATHER:
        return work != NULL
                   ? coll_gather_async(
                         from, to, t->count, t->dtype, t->root, group, work)
                   : coll_gather(from, to, t->count, t->dtype, t->root, group);
    case SCATTER:
        return work != NULL
                   ? coll_scatter_async(
                         from, to, t->count, t->dtype, t->root, group, work)
                   : coll_scatter(from, to, t->count, t->dtype, t->root, group);
    case ALL_TO_ALL:
        return work != NULL
                   ? coll_all_to_all_async(
                         from, to, t->count, t->dtype, group, work)
                   : coll_all_to_all(from, to, t->count, t->dtype, group);
    case REDUCE_SCATTER_V:
    case ALL_GATHER_V:
    case ALL_TO_ALL_V:
        return start_parts(rig, t, from, to, work);
    default:
        return start_many(rig, t, from, to, work);
    }
}

static coll_status_t run_call(const struct rig *rig, const struct trial *t,
    const unsigned char *from, unsigned char *to)
{
    coll_work_t *work = NULL;
    coll_status_t status = start(rig, t, from, to, t->is_async ? &work : NULL);

    if (status == COLL_OK)
        status = t->is_async ? coll_work_wait(work, 0)
                             : coll_gpu_synchronize(rig->group, 0);
    coll_work_free(work);
    return status;
}

/* "float32 sum, 1000 elements, in place, async" */
static const char *describe(const struct trial *t, char *out, size_t size)
{
    snprintf(out, size, "%s of %s%s%s, count %zu, root %d%s%s",
        kind_names[t->kind], coll_dtype_name(t->dtype),
        reduces(t->kind) ? " " : "",
        !reduces(t->kind)     ? ""
        : t->op == RIG_PREMUL ? "premul_sum"
                              : coll_op_name((coll_op_t)t->op),
        t->count, t->root, t->is_in_place ? ", in place" : "",
        t->is_async ? ", async" : "");
    return out;
}

/* Compares the n elements that have come back with what is expected. */
static bool compare(struct rig *rig, const struct trial *t, size_t n)
{
    unsigned char wanted[8];
    const unsigned char *got;
    char text[160];
    size_t i;

    for (i = 0; i < n; i++) {
        memset(wanted, UNTOUCHED, sizeof(wanted));
        if (!isnan(t->expected[i]))
            rig_encode(t->dtype, t->expected[i], wanted);
        got = t->host + i * t->element;
        if (memcmp(got, wanted, t->element) != 0)
            return rig_fail(rig,
                "%s: element %zu of %zu begins with byte 0x%02x, expected "
                "0x%02x (%g)",
                describe(t, text, sizeof(text)), i, n, got[0], wanted[0],
                t->expected[i]);
    }
    return true;
}

/* More elements than any buffer of a call with this count has. */
static size_t reach(const struct rig *rig, size_t count)
{
    return 2 * (size_t)rig->size * count + 16384;
}

/* One call from beginning to end. */
static bool try_call(struct rig *rig, struct trial *t)
{
    unsigned char *from = t->send, *to = t->recv;
    bool is_in_send = false, is_broadcast = t->kind == BROADCAST;
    size_t at = 0, i;
    char text[160];
    coll_status_t status;

    t->element = coll_dtype_size(t->dtype);
    for (i = 0; i < reach(rig, t->count); i++)
        t->expected[i] = NAN;
    expect(rig, t);
    if (is_broadcast || (t->is_in_place && place(rig, t, &at, &is_in_send))) {
        if (is_in_send)
            to = from + at * t->element;
        else
            from = to + at * t->element;
    }

    /* First the result's buffer, then what may lie in it. */
    memset(t->host, UNTOUCHED, t->nrecv * t->element);
    if (!rig_write(rig, to, t->host, t->nrecv * t->element))
        return false;
    for (i = 0; i < t->nsend; i++)
        rig_encode(t->dtype, sent(t, rig->rank, i), t->host + i * t->element);
    if (!rig_write(rig, from, t->host, t->nsend * t->element))
        return false;
    /* In place where there is no result, what was sent is left. */
    if (t->kind == REDUCE && t->is_in_place && rig->rank != t->root)
        for (i = 0; i < t->nsend; i++)
            t->expected[i] = sent(t, rig->rank, i);

    status = run_call(rig, t, from, to);
    if (!rig_expect(rig, status, COLL_OK, describe(t, text, sizeof(text))))
        return false;
    return rig_read(rig, t->host, to, t->nrecv * t->element) &&
           compare(rig, t, t->nrecv);
}

/* --- What is tried ------------------------------------------------------- */

static bool trial_init(struct rig *rig, struct trial *t)
{
    const size_t most = reach(rig, BYTES_MAX); /* of one byte */
    const size_t bytes = reach(rig, BYTES_MAX / 8) * 8;

    t->send = rig_alloc(rig, bytes);
    t->recv = rig_alloc(rig, bytes);
    t->host = malloc(bytes);
    t->expected = malloc(most * sizeof(*t->expected));
    if (t->host == NULL || t->expected == NULL)
        return rig_fail(rig, "no memory on the host");
    return t->send != NULL && t->recv != NULL;
}

static void trial_fini(struct rig *rig, struct trial *t)
{
    rig_free(rig, t->send);
    rig_free(rig, t->recv);
    free(t->host);
    free(t->expected);
}

/* What NCCL reduces; the rest is COLL_ERR_UNSUPPORTED. */
static bool has_type(coll_dtype_t dtype)
{
    const struct nccl_api *nccl;

    if (dtype == COLL_FLOAT8_E4M3 || dtype == COLL_FLOAT8_E5M2)
        return nccl_api_get(&nccl) == COLL_OK &&
               nccl->version >= COLL_NCCL_FLOAT8_VERSION;
    return dtype != COLL_INT16 && dtype != COLL_UINT16;
}

static bool can_try(const struct trial *t)
{
    if (!reduces(t->kind))
        return t->op == COLL_SUM; /* it is not looked at: once is enough */
    if (!has_type(t->dtype))
        return false;
    return t->dtype != COLL_BOOL || (t->op != COLL_AVG && t->op != RIG_PREMUL);
}

static const coll_dtype_t dtypes[] = {
#define TYPE(symbol, name, size) symbol,
    COLL_DTYPE_MAP(TYPE)
#undef TYPE
};
#define DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

static const int ops[] = {
    COLL_SUM, COLL_AVG, COLL_MIN, COLL_MAX, COLL_PRODUCT, RIG_PREMUL};
#define OPS (sizeof(ops) / sizeof(ops[0]))

static enum kind current_kind;

/* What has been tried so far, and until when another one may be begun. */
struct progress {
    unsigned int calls;
    double end;
    bool is_late;
};

/* Tries one call more, if there is time. The root goes round. */
static bool next(struct rig *rig, struct trial *t, struct progress *p)
{
    bool has_time = true;

    if (p->is_late || !can_try(t))
        return true;
    if (p->calls > 0 && !rig_has_time(rig, p->end, &has_time))
        return false;
    p->is_late = !has_time;
    if (p->is_late)
        return true;
    t->root = (int)(p->calls % (unsigned int)rig->size);
    p->calls++;
    return try_call(rig, t);
}

static bool try_kind(struct rig *rig, struct trial *t, struct progress *p)
{
    static const coll_dtype_t thorough[] = {COLL_FLOAT32, COLL_UINT8};
    static const size_t counts[] = {1, 3, 1000};
    size_t i, k;

    /* Every way to call, with every count. */
    t->op = COLL_SUM;
    for (i = 0; i < 2; i++)
        for (k = 0; k < 16; k++) {
            t->dtype = thorough[i];
            t->is_in_place = (k & 1) != 0;
            t->is_async = (k & 2) != 0;
            t->count = k / 4 < 3 ? counts[k / 4]
                                 : BYTES_MAX / coll_dtype_size(t->dtype);
            if (!next(rig, t, p))
                return false;
        }
    /* Every reduction of every type. */
    for (i = 0; i < DTYPES; i++)
        for (k = 0; k < 2 * OPS; k++) {
            t->dtype = dtypes[i];
            t->op = ops[k / 2];
            t->count = k % 2 == 0 ? 3 : 1000;
            t->is_in_place = (i + k) % 2 == 0;
            t->is_async = (i + k / 2) % 2 == 0;
            if (!next(rig, t, p))
                return false;
        }
    /* Every type with many elements. */
    t->op = COLL_SUM;
    for (i = 0; i < DTYPES; i++) {
        t->dtype = dtypes[i];
        t->count = BYTES_MAX / coll_dtype_size(t->dtype);
        t->is_in_place = i % 2 == 0;
        t->is_async = i % 4 < 2;
        if (!next(rig, t, p))
            return false;
    }
    return true;
}

/* GPU_CHECK_SECONDS for an operation: what is not begun by then is left out,
 * and the note says so. Ranks that share a GPU may need long. */
static double seconds_of_a_kind(void)
{
    const char *text = getenv("GPU_CHECK_SECONDS");
    const double seconds = text == NULL ? 0 : strtod(text, NULL);

    return seconds > 0 ? seconds : 1e9;
}

static bool check_kind(struct rig *rig, char *note, size_t size)
{
    struct trial t = {.kind = current_kind};
    struct progress p = {.end = rig_now() + seconds_of_a_kind()};
    bool good;

    good = rig_expect(rig, coll_op_premul_sum(&t.premul, 2.0), COLL_OK,
               "coll_op_premul_sum") &&
           trial_init(rig, &t) && try_kind(rig, &t, &p);
    trial_fini(rig, &t);
    coll_op_free(t.premul);
    snprintf(note, size, "%u calls%s", p.calls,
        p.is_late ? "; the rest left out, as time was over" : "");
    return good;
}

bool operations_run(struct rig *rig)
{
    for (current_kind = 0; current_kind < KINDS; current_kind++)
        if (!rig_run(rig, kind_names[current_kind], check_kind))
            return false; /* the group may be broken: nothing else is heard */
    return true;
}

bool operations_one(struct rig *rig)
{
    struct trial t = {.kind = ALL_REDUCE,
        .dtype = COLL_FLOAT32,
        .op = COLL_SUM,
        .count = 1000};
    const bool good = trial_init(rig, &t) && try_call(rig, &t);

    trial_fini(rig, &t);
    return good;
}

bool operations_unsupported(struct rig *rig, char *note, size_t size)
{
    static const coll_op_t bitwise[] = {COLL_BAND, COLL_BOR, COLL_BXOR};
    void *x = rig_alloc(rig, 4096);
    bool good = x != NULL;
    unsigned int calls = 0;
    size_t i;

    for (i = 0; good && i < DTYPES; i++) {
        if (has_type(dtypes[i]))
            continue;
        good = rig_expect(rig,
            coll_all_reduce(x, x, 8, dtypes[i], COLL_SUM, rig->group),
            COLL_ERR_UNSUPPORTED, coll_dtype_name(dtypes[i]));
        calls++;
    }
    for (i = 0; good && i < 3; i++, calls++)
        good = rig_expect(rig,
            coll_all_reduce(x, x, 8, COLL_INT32, bitwise[i], rig->group),
            COLL_ERR_UNSUPPORTED, coll_op_name(bitwise[i]));
    if (good)
        good = rig_expect(rig,
            coll_recv(x, 8, COLL_INT32, COLL_ANY_SOURCE, 0, NULL, rig->group),
            rig->size == 1 ? COLL_ERR_ARGUMENT : COLL_ERR_UNSUPPORTED,
            "a message from any rank");
    rig_free(rig, x);
    snprintf(note, size, "%u calls refused", calls);
    return good && operations_one(rig); /* the group goes on */
}
