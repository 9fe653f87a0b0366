/*
 * See verdict.h. The operations of a group are numbered, and all its ranks
 * make them in the same order. So of each group the first operation counts in
 * which a rank waits, or that has failed on it: whoever of the group has not
 * entered that one keeps the others waiting. coll_init, which has no number,
 * is looked at as an operation of a group of all ranks.
 *
 * A ring holds the last calls only. What is older is not known, and what is
 * not known is not claimed.
 */
#include "agent/verdict.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/fold.h"
#include "rendezvous/base/clock.h"

/* Groups that are looked at. */
#define GROUPS_MAX 64
/* Different calls that are told of where ranks should have made the same. */
#define VARIANTS_MAX 4
#define CALL_TEXT_MAX (3 * RECORDER_NAME_LEN + 96)
#define GROUP_TEXT_MAX (RECORDER_RANKS_LEN + 32)

/* Where a rank is, as to an operation. */
enum place {
    PLACE_OUTSIDE, /* not in the group, or nothing is known of it */
    PLACE_ABSENT, /* has not entered it */
    PLACE_ELSEWHERE, /* it is none of its last calls, older ones are not kept */
    PLACE_LATE, /* entered it when it had failed elsewhere */
    PLACE_WAITS, /* has not returned from it */
    PLACE_FAILED, /* has got an error from it */
    PLACE_PASSED, /* is done with it */
    PLACE_COUNT
};

/* The last calls of a rank that belong to its present groups. */
struct calls {
    struct recorder_seen seen[RECORDER_ENTRIES]; /* oldest first */
    size_t n;
    bool is_known; /* the recorder can be read */
    bool is_complete; /* there was none before these, since coll_init */
};

/* An operation as all ranks should have called it. */
struct operation {
    uint32_t group;
    bool is_init;
    uint64_t seq;
    /* NULL: not among its last calls. */
    const struct recorder_seen **at; /* [nranks] */
    enum place *places; /* [nranks] */
    const struct recorder_seen *first; /* some rank's */
    int counts[PLACE_COUNT];
    bool is_mismatch;
    bool is_misfit; /* coll_init, for what is set for the ranks */
    bool has_timed_out; /* nobody has failed in it earlier */
    bool has_others; /* there are ranks of other nodes in its group */
    bool has_all; /* every rank of the group has called it, as is known */
    uint64_t wait_ns; /* the longest of a rank in it */
};

/* Operations are told of in this order. */
enum weight {
    WEIGHT_MISMATCH,
    WEIGHT_CAUSE, /* somebody keeps the others waiting, and waits for nobody */
    WEIGHT_LINK, /* or somebody does who waits for others in turn */
    WEIGHT_ALL, /* all wait */
};

struct candidate {
    uint32_t group;
    bool is_init;
    uint64_t seq;
    enum weight weight;
    uint64_t wait_ns;
};

struct verdict {
    const struct verdict_input *in;
    struct calls *calls; /* [nranks] */
    struct operation op; /* the one that is looked at */
    char (*texts)[CALL_TEXT_MAX]; /* [nranks] */
    uint64_t *set; /* of ranks, for fold_ranks_text() */
    struct candidate candidates[GROUPS_MAX + 1];
    int ncandidates;
    struct buf *out;
    int rc; /* of out */
};

/* --- The recorders -------------------------------------------------------- */

/* Of the time that is looked at. */
static void keep_time(struct calls *c, uint64_t as_of_ns)
{
    size_t n = 0;

    for (size_t i = 0; i < c->n; i++) {
        struct recorder_seen *seen = &c->seen[i];

        if (seen->entered_ns > as_of_ns)
            continue;
        if (seen->finished_ns > as_of_ns)
            seen->is_finished = false;
        c->seen[n++] = *seen;
    }
    c->n = n;
}

/* With coll_init all groups begin anew. */
static void keep_since_init(struct calls *c)
{
    size_t first = c->n;

    while (first > 0 && !c->seen[first - 1].is_init)
        first--;
    if (first == 0)
        return;
    first--;
    c->n -= first;
    memmove(c->seen, c->seen + first, c->n * sizeof(c->seen[0]));
    c->is_complete = true;
}

/* A number that does not grow is of a group that took the place, and the
 * number, of an earlier one. */
static void keep_last_lives(struct calls *c)
{
    bool is_old[RECORDER_ENTRIES] = {false};
    size_t n = 0;

    for (size_t i = c->n; i-- > 0;) {
        size_t next = i + 1;

        if (c->seen[i].seq == 0)
            continue;
        while (next < c->n && (c->seen[next].group != c->seen[i].group ||
                                  c->seen[next].seq == 0))
            next++;
        is_old[i] = next < c->n &&
                    (is_old[next] || c->seen[i].seq >= c->seen[next].seq);
    }
    for (size_t i = 0; i < c->n; i++)
        if (!is_old[i])
            c->seen[n++] = c->seen[i];
    c->n = n;
}

static void load(struct calls *c, const struct recorder *r, uint64_t as_of_ns)
{
    uint64_t head;

    if (r == NULL || !recorder_is_valid(r))
        return;
    head = atomic_load(&r->head);
    c->n = recorder_read(r, c->seen);
    c->is_known = c->n > 0 || head == 0;
    c->is_complete = head <= RECORDER_ENTRIES;
    keep_time(c, as_of_ns);
    keep_since_init(c);
    keep_last_lives(c);
}

/* --- Groups --------------------------------------------------------------- */

/* Whether a list like "0-2,7" has the rank. */
static bool is_listed(const char *ranks, long rank)
{
    while (*ranks >= '0' && *ranks <= '9') {
        char *end;
        long first = strtol(ranks, &end, 10);
        long last = *end == '-' ? strtol(end + 1, &end, 10) : first;

        if (rank >= first && rank <= last)
            return true;
        if (*end != ',')
            break;
        ranks = end + 1;
    }
    return false;
}

static bool find_group(const struct verdict *v, int i, uint32_t group,
    char ranks[RECORDER_RANKS_LEN], uint32_t *size)
{
    return v->calls[i].is_known &&
           recorder_find_group(v->in->ranks[i].recorder, group, ranks, size);
}

/* What any rank's recorder knows of the group; *size is 0 if none does. */
static void describe_group(const struct verdict *v, uint32_t group,
    char ranks[RECORDER_RANKS_LEN], uint32_t *size)
{
    ranks[0] = '\0';
    *size = 0;
    for (int i = 0; i < v->in->nranks && *size == 0; i++)
        if (!find_group(v, i, group, ranks, size))
            *size = 0;
}

static bool has_calls(const struct calls *c, uint32_t group)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->seen[i].seq != 0 && c->seen[i].group == group)
            return true;
    return false;
}

static bool is_member(
    const struct verdict *v, int i, uint32_t group, const char *listed)
{
    char ranks[RECORDER_RANKS_LEN];
    uint32_t size;

    return group == 0 || has_calls(&v->calls[i], group) ||
           is_listed(listed, v->in->rank_base + i) ||
           find_group(v, i, group, ranks, &size);
}

/* --- An operation --------------------------------------------------------- */

static enum place place_of_seen(const struct recorder_seen *seen)
{
    return !seen->is_finished  ? PLACE_WAITS
           : seen->status != 0 ? PLACE_FAILED
                               : PLACE_PASSED;
}

static const struct recorder_seen *find_call(
    const struct calls *c, const struct operation *op)
{
    for (size_t i = 0; i < c->n; i++) {
        const struct recorder_seen *seen = &c->seen[i];

        if (op->is_init ? seen->is_init
                        : !seen->is_init && seen->group == op->group &&
                              seen->seq == op->seq)
            return seen;
    }
    return NULL;
}

/* Of a rank of the group that has no such call. */
static enum place place_without(
    const struct calls *c, const struct operation *op, bool is_attached)
{
    bool has_any = false;

    if (op->is_init && !is_attached)
        return PLACE_ABSENT;
    if (!c->is_known)
        return PLACE_OUTSIDE;
    if (op->is_init)
        return c->is_complete ? PLACE_ABSENT : PLACE_PASSED;
    for (size_t i = 0; i < c->n; i++) {
        if (c->seen[i].seq == 0 || c->seen[i].group != op->group)
            continue;
        if (c->seen[i].seq > op->seq)
            return PLACE_PASSED;
        has_any = true;
    }
    return has_any || c->is_complete ? PLACE_ABSENT : PLACE_ELSEWHERE;
}

/* Who comes when others have given up is the one they waited for, whatever
 * becomes of it, if their time was over: else a third one has failed. */
static void find_late(struct verdict *v)
{
    struct operation *op = &v->op;
    const struct recorder_seen *first = NULL;

    for (int i = 0; i < v->in->nranks; i++)
        if (op->places[i] == PLACE_FAILED &&
            (first == NULL || op->at[i]->finished_ns < first->finished_ns))
            first = op->at[i];
    op->has_timed_out = first != NULL && first->status == RECORDER_TIMEOUT;
    for (int i = 0; first != NULL && i < v->in->nranks; i++)
        if (op->at[i] != NULL && op->places[i] != PLACE_OUTSIDE &&
            op->at[i]->entered_ns > first->finished_ns)
            op->places[i] = PLACE_LATE;
}

static uint64_t wait_of(const struct verdict *v, int i)
{
    const struct recorder_seen *seen = v->op.at[i];
    uint64_t end_ns =
        seen->is_finished ? seen->finished_ns : v->in->ranks[i].ended_ns;

    if (end_ns > v->in->as_of_ns)
        end_ns = v->in->as_of_ns;
    return end_ns > seen->entered_ns ? end_ns - seen->entered_ns : 0;
}

static bool is_same(
    const struct recorder_seen *a, const struct recorder_seen *b)
{
    return strcmp(a->kind, b->kind) == 0 && strcmp(a->dtype, b->dtype) == 0 &&
           strcmp(a->op, b->op) == 0 && a->root == b->root;
}

static bool is_misfit(const struct recorder_seen *seen)
{
    return seen->is_finished && seen->status == RECORDER_ENVIRONMENT;
}

/* Counts alone may differ, as in all_to_all_v. */
static void compare_calls(struct verdict *v)
{
    struct operation *op = &v->op;

    op->first = NULL;
    op->is_mismatch = false;
    op->is_misfit = false;
    for (int i = 0; i < v->in->nranks; i++) {
        const struct recorder_seen *seen = op->at[i];

        if (seen == NULL)
            continue;
        if (op->first == NULL)
            op->first = seen;
        if (!is_same(op->first, seen) ||
            (seen->is_finished && seen->status == RECORDER_MISMATCH))
            op->is_mismatch = true;
        if (op->is_init && is_misfit(seen))
            op->is_misfit = true;
    }
}

/* Where every rank is as to the operation, which v->op names. */
static void look_at(struct verdict *v)
{
    struct operation *op = &v->op;
    int nmembers = 0;
    int ncalls = 0;
    char listed[RECORDER_RANKS_LEN];
    uint32_t size;

    describe_group(v, op->group, listed, &size);
    if (op->group == 0)
        size = (uint32_t)v->in->world_size;
    memset(op->counts, 0, sizeof(op->counts));
    op->wait_ns = 0;
    for (int i = 0; i < v->in->nranks; i++) {
        const struct calls *c = &v->calls[i];
        bool is_in = is_member(v, i, op->group, listed);

        nmembers += is_in;
        op->at[i] = find_call(c, op);
        ncalls += op->at[i] != NULL;
        op->places[i] =
            !is_in ? PLACE_OUTSIDE
            : op->at[i] == NULL
                ? place_without(c, op, v->in->ranks[i].recorder != NULL)
                : place_of_seen(op->at[i]);
    }
    op->has_others = size > (uint32_t)nmembers;
    op->has_all = size > 0 && (uint32_t)ncalls >= size;
    compare_calls(v);
    find_late(v);
    for (int i = 0; i < v->in->nranks; i++) {
        op->counts[op->places[i]]++;
        if ((op->places[i] == PLACE_WAITS || op->places[i] == PLACE_FAILED) &&
            wait_of(v, i) > op->wait_ns)
            op->wait_ns = wait_of(v, i);
    }
}

/* --- Which operations are stuck ------------------------------------------- */

/* Or has waited in vain. */
static bool is_waiting(const struct calls *c)
{
    for (size_t i = 0; i < c->n; i++)
        if (!c->seen[i].is_finished)
            return true;
    return c->n > 0 && place_of_seen(&c->seen[c->n - 1]) == PLACE_FAILED;
}

/* Whether the rank has lived on with other groups since this call failed. */
static bool went_on(const struct calls *c, const struct recorder_seen *failed)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->seen[i].entered_ns > failed->finished_ns &&
            c->seen[i].is_finished && c->seen[i].status == 0)
            return true;
    return false;
}

static bool is_left_behind(const struct verdict *v)
{
    if (v->op.counts[PLACE_WAITS] > 0)
        return false;
    for (int i = 0; i < v->in->nranks; i++)
        if (v->op.places[i] == PLACE_FAILED &&
            !went_on(&v->calls[i], v->op.at[i]))
            return false;
    return true;
}

static bool ended_within(const struct verdict *v)
{
    int i = v->in->first_failure;

    return i >= 0 && i < v->in->nranks && v->op.places[i] == PLACE_WAITS;
}

/* How many of the ranks that are missing wait for others in turn. */
static int count_links(const struct verdict *v)
{
    int n = 0;

    for (int i = 0; i < v->in->nranks; i++)
        n += v->op.places[i] == PLACE_ABSENT && is_waiting(&v->calls[i]);
    return n;
}

static enum weight weigh(const struct verdict *v)
{
    const struct operation *op = &v->op;

    if (op->is_mismatch || op->is_misfit)
        return WEIGHT_MISMATCH;
    if (op->counts[PLACE_ABSENT] > 0)
        return count_links(v) == 0 ? WEIGHT_CAUSE : WEIGHT_LINK;
    if (ended_within(v) || (op->counts[PLACE_LATE] > 0 && op->has_timed_out))
        return WEIGHT_CAUSE;
    return op->counts[PLACE_WAITS] + op->counts[PLACE_FAILED] <
                   v->in->nranks - op->counts[PLACE_OUTSIDE]
               ? WEIGHT_LINK
               : WEIGHT_ALL;
}

/* The first operation of a group in which somebody waits: false if there is
 * none. */
static bool find_stuck(struct verdict *v, uint32_t group)
{
    bool is_found = false;

    v->op.group = group;
    v->op.is_init = false;
    for (int k = 0; k < v->in->nranks; k++)
        for (size_t i = 0; i < v->calls[k].n; i++) {
            const struct recorder_seen *seen = &v->calls[k].seen[i];

            if (seen->group != group || seen->seq == 0 || seen->is_init ||
                place_of_seen(seen) == PLACE_PASSED ||
                (is_found && seen->seq >= v->op.seq))
                continue;
            v->op.seq = seen->seq;
            is_found = true;
        }
    return is_found;
}

static void consider(struct verdict *v)
{
    look_at(v);
    if (v->op.wait_ns < v->in->least_wait_ns || is_left_behind(v))
        return;
    v->candidates[v->ncandidates++] = (struct candidate){
        .group = v->op.group,
        .is_init = v->op.is_init,
        .seq = v->op.seq,
        .weight = weigh(v),
        .wait_ns = v->op.wait_ns,
    };
}

/* The groups with calls. */
static int list_groups(const struct verdict *v, uint32_t groups[GROUPS_MAX])
{
    int n = 0;

    for (int k = 0; k < v->in->nranks; k++)
        for (size_t i = 0; i < v->calls[k].n; i++) {
            int g = 0;

            if (v->calls[k].seen[i].seq == 0)
                continue;
            while (g < n && groups[g] != v->calls[k].seen[i].group)
                g++;
            if (g == n && n < GROUPS_MAX)
                groups[n++] = v->calls[k].seen[i].group;
        }
    return n;
}

static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->weight != y->weight)
        return x->weight < y->weight ? -1 : 1;
    return (x->wait_ns < y->wait_ns) - (x->wait_ns > y->wait_ns);
}

static void find_candidates(struct verdict *v)
{
    uint32_t groups[GROUPS_MAX];
    int ngroups = list_groups(v, groups);

    v->op.is_init = true;
    consider(v);
    for (int g = 0; g < ngroups; g++)
        if (find_stuck(v, groups[g]))
            consider(v);
    qsort(v->candidates, (size_t)v->ncandidates, sizeof(v->candidates[0]),
        compare_candidates);
}

/* --- Sentences ------------------------------------------------------------ */

static void say(struct verdict *v, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void say(struct verdict *v, const char *fmt, ...)
{
    char text[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (v->rc == 0)
        v->rc = buf_append(v->out, text, strlen(text));
}

static void clear_set(struct verdict *v)
{
    memset(v->set, 0, ((size_t)v->in->nranks / 64 + 1) * sizeof(v->set[0]));
}

static void put_in_set(struct verdict *v, int i)
{
    v->set[i / 64] |= UINT64_C(1) << (i % 64);
}

/* "rank 2", "ranks 0-1,3". */
static void say_set(struct verdict *v)
{
    int n = 0;

    for (int i = 0; i < v->in->nranks; i++)
        n += (int)(v->set[i / 64] >> (i % 64) & 1);
    say(v, n == 1 ? "rank " : "ranks ");
    if (v->rc == 0)
        v->rc =
            fold_ranks_text(v->set, v->in->nranks, v->in->rank_base, v->out);
}

/* The ranks at one of two places, but not the one at index except. */
static void say_ranks(
    struct verdict *v, enum place place, enum place other, int except)
{
    clear_set(v);
    for (int i = 0; i < v->in->nranks; i++)
        if ((v->op.places[i] == place || v->op.places[i] == other) &&
            i != except)
            put_in_set(v, i);
    say_set(v);
}

static void say_waiting(struct verdict *v, int except)
{
    say_ranks(v, PLACE_WAITS, PLACE_FAILED, except);
}

static void group_text(
    const struct verdict *v, uint32_t group, char out[GROUP_TEXT_MAX])
{
    char ranks[RECORDER_RANKS_LEN];
    uint32_t size;

    describe_group(v, group, ranks, &size);
    if (group == 0)
        snprintf(out, GROUP_TEXT_MAX, "default group");
    else if (size > 0)
        snprintf(out, GROUP_TEXT_MAX, "group of ranks %s", ranks);
    else
        snprintf(out, GROUP_TEXT_MAX, "group %" PRIu32, group);
}

/* "1024 float32 sum, root 0", as far as the call has them. */
static void data_text(const struct recorder_seen *seen, char *out, size_t size)
{
    char data[2 * RECORDER_NAME_LEN + 32] = "", root[32] = "";

    if (seen->dtype[0] != '\0')
        snprintf(data, sizeof(data), "%" PRIu64 " %s%s%s", seen->count,
            seen->dtype, seen->op[0] != '\0' ? " " : "", seen->op);
    if (seen->root != RECORDER_NO_ROOT)
        snprintf(root, sizeof(root), "%s%s %" PRId32,
            data[0] != '\0' ? ", " : "", seen->seq != 0 ? "root" : "peer",
            seen->root);
    snprintf(out, size, "%s%s", data, root);
}

/* "all_reduce #17 (1024 float32 sum, default group)". */
static void say_call(struct verdict *v, const struct recorder_seen *seen)
{
    char data[CALL_TEXT_MAX], group[GROUP_TEXT_MAX], number[32] = "";

    if (seen->is_init) {
        say(v, "%s", seen->kind);
        return;
    }
    data_text(seen, data, sizeof(data));
    group_text(v, seen->group, group);
    if (seen->seq != 0)
        snprintf(number, sizeof(number), " #%" PRIu64, seen->seq);
    say(v, "%s%s (%s%s%s)", seen->kind, number, data,
        data[0] != '\0' ? ", " : "", group);
}

/* The operation as somebody who waits in it has called it. */
static void say_operation(struct verdict *v)
{
    const struct recorder_seen *seen = v->op.first;

    for (int i = 0; i < v->in->nranks; i++)
        if (v->op.places[i] == PLACE_WAITS || v->op.places[i] == PLACE_FAILED) {
            seen = v->op.at[i];
            break;
        }
    say_call(v, seen);
}

static void say_wait(struct verdict *v)
{
    say(v, " for %.3f s", (double)v->op.wait_ns / (double)CLOCK_NS_PER_S);
}

/* What the ranks at a place did instead, if it can be said in few words. */
static void say_last_call(struct verdict *v, enum place place)
{
    const struct recorder_seen *last = NULL;
    const char *whose = v->op.counts[place] == 1 ? "its" : "their";

    for (int i = 0; i < v->in->nranks; i++) {
        const struct calls *c = &v->calls[i];
        const struct recorder_seen *seen;

        if (v->op.places[i] != place)
            continue;
        if (c->n == 0)
            return;
        seen = &c->seen[c->n - 1];
        if (last != NULL &&
            (!is_same(last, seen) || last->seq != seen->seq ||
                last->group != seen->group || last->count != seen->count ||
                place_of_seen(last) != place_of_seen(seen)))
            return;
        last = seen;
    }
    if (last == NULL)
        return;
    say(v, "; %s last call was ", whose);
    if (last->group == v->op.group && last->seq != 0)
        say(v, "%s #%" PRIu64, last->kind, last->seq);
    else
        say_call(v, last);
    if (place_of_seen(last) == PLACE_WAITS)
        say(v, ", not finished");
    else if (place_of_seen(last) == PLACE_FAILED)
        say(v, ", which failed");
}

static void write_texts(struct verdict *v)
{
    for (int i = 0; i < v->in->nranks; i++) {
        const struct recorder_seen *seen = v->op.at[i];
        char data[CALL_TEXT_MAX - RECORDER_NAME_LEN - 8];

        v->texts[i][0] = '\0';
        if (seen == NULL)
            continue;
        data_text(seen, data, sizeof(data));
        snprintf(v->texts[i], CALL_TEXT_MAX, data[0] != '\0' ? "%s (%s)" : "%s",
            seen->kind, data);
    }
}

/* "rank 0 called all_reduce (3 float32 sum), ranks 1-2 called barrier". */
static void say_variants(struct verdict *v)
{
    int nvariants = 0;

    for (int i = 0; i < v->in->nranks; i++) {
        char text[CALL_TEXT_MAX];

        if (v->texts[i][0] == '\0')
            continue;
        if (nvariants++ == VARIANTS_MAX) {
            say(v, ", and others something else");
            return;
        }
        memcpy(text, v->texts[i], sizeof(text));
        clear_set(v);
        for (int k = i; k < v->in->nranks; k++)
            if (strcmp(v->texts[k], text) == 0) {
                put_in_set(v, k);
                v->texts[k][0] = '\0';
            }
        if (nvariants > 1)
            say(v, ", ");
        say_set(v);
        say(v, " called %s", text);
    }
    if (nvariants == 1 && v->op.has_all)
        say(v, " alike; what is not recorded differs: forced algorithms "
               "(COLL_ALGORITHM), counts of single ranks, or who works in "
               "place");
    else if (nvariants == 1)
        say(v, ", which is not what the others called, or how "
               "(COLL_ALGORITHM, counts of single ranks)");
}

static void say_misfit(struct verdict *v)
{
    const struct operation *op = &v->op;

    clear_set(v);
    for (int i = 0; i < v->in->nranks; i++)
        if (op->at[i] != NULL && is_misfit(op->at[i]))
            put_in_set(v, i);
    say(v, "coll_init failed on ");
    say_set(v);
    say(v, " for the environment, which is incomplete or not the same on all "
           "ranks");
}

static void say_mismatch(struct verdict *v)
{
    char group[GROUP_TEXT_MAX];

    group_text(v, v->op.group, group);
    say(v, "operation #%" PRIu64 " of the %s differs: ", v->op.seq, group);
    write_texts(v);
    say_variants(v);
}

static void say_absent(struct verdict *v)
{
    say_ranks(v, PLACE_ABSENT, PLACE_ABSENT, -1);
    say(v, " never entered ");
    say_operation(v);
    say(v, ", in which ");
    say_waiting(v, -1);
    say(v, " waited");
    say_wait(v);
    say_last_call(v, PLACE_ABSENT);
}

static void say_ended_within(struct verdict *v)
{
    int i = v->in->first_failure;

    say(v, "rank %d ended within ", v->in->rank_base + i);
    say_operation(v);
    if (v->op.counts[PLACE_WAITS] + v->op.counts[PLACE_FAILED] == 1)
        return;
    say(v, ", in which ");
    say_waiting(v, i);
    say(v, " waited");
}

static void say_late(struct verdict *v)
{
    say_ranks(v, PLACE_LATE, PLACE_LATE, -1);
    say(v, " entered ");
    say_operation(v);
    say(v, " only when ");
    say_waiting(v, -1);
    say(v, " had waited");
    say_wait(v);
}

static void say_elsewhere(struct verdict *v)
{
    say_waiting(v, -1);
    say(v, " waited");
    say_wait(v);
    say(v, " in ");
    say_operation(v);
    say(v, ", which is none of the last calls of ");
    say_ranks(v, PLACE_ELSEWHERE, PLACE_ELSEWHERE, -1);
    say_last_call(v, PLACE_ELSEWHERE);
}

static void say_unreturned(struct verdict *v)
{
    say_operation(v);
    say(v, " failed on ");
    say_ranks(v, PLACE_FAILED, PLACE_FAILED, -1);
    say(v, " and ");
    say_ranks(v, PLACE_WAITS, PLACE_WAITS, -1);
    say(v, " never returned from it");
}

static void say_waited(struct verdict *v)
{
    const struct operation *op = &v->op;
    int n = op->counts[PLACE_WAITS] + op->counts[PLACE_FAILED];

    say_waiting(v, -1);
    say(v, n > 1 && op->counts[PLACE_PASSED] == 0 ? " all waited" : " waited");
    say_wait(v);
    say(v, " in ");
    say_operation(v);
    if (op->counts[PLACE_PASSED] > 0) {
        say(v, ", which ");
        say_ranks(v, PLACE_PASSED, PLACE_PASSED, -1);
        say(v, " had left");
        say_last_call(v, PLACE_PASSED);
    } else if (op->has_others) {
        say(v, ", for a rank of another node");
    }
}

static void say_sentence(struct verdict *v)
{
    const struct operation *op = &v->op;

    if (op->is_misfit)
        say_misfit(v);
    else if (op->is_mismatch && !op->is_init)
        say_mismatch(v);
    else if (op->counts[PLACE_ABSENT] > 0)
        say_absent(v);
    else if (ended_within(v))
        say_ended_within(v);
    else if (op->counts[PLACE_LATE] > 0 && op->has_timed_out)
        say_late(v);
    else if (op->counts[PLACE_ELSEWHERE] > 0)
        say_elsewhere(v);
    else if (op->counts[PLACE_WAITS] > 0 && op->counts[PLACE_FAILED] > 0)
        say_unreturned(v);
    else
        say_waited(v);
    say(v, "\n");
}

/* Where no group is stuck: who waits for one rank only. */
static void say_peers(struct verdict *v)
{
    int left = VERDICT_SENTENCES_MAX;

    for (int i = 0; i < v->in->nranks && left > 0; i++) {
        const struct calls *c = &v->calls[i];
        const struct recorder_seen *last;

        if (c->n == 0)
            continue;
        last = &c->seen[c->n - 1];
        if (last->is_init || last->seq != 0 ||
            place_of_seen(last) == PLACE_PASSED)
            continue;
        v->op.at[i] = last;
        v->op.wait_ns = wait_of(v, i);
        if (v->op.wait_ns < v->in->least_wait_ns)
            continue;
        say(v, "rank %d waited", v->in->rank_base + i);
        say_wait(v);
        say(v, " in ");
        say_call(v, last);
        say(v, "\n");
        left--;
    }
}

/* --- The interface -------------------------------------------------------- */

static void say_verdict(struct verdict *v)
{
    for (int i = 0; i < v->in->nranks; i++)
        load(&v->calls[i], v->in->ranks[i].recorder, v->in->as_of_ns);
    find_candidates(v);
    for (int i = 0; i < v->ncandidates && i < VERDICT_SENTENCES_MAX; i++) {
        v->op.group = v->candidates[i].group;
        v->op.is_init = v->candidates[i].is_init;
        v->op.seq = v->candidates[i].seq;
        look_at(v);
        say_sentence(v);
    }
    if (v->ncandidates == 0)
        say_peers(v);
}

int verdict_write(const struct verdict_input *in, struct buf *out)
{
    size_t n = (size_t)in->nranks;
    struct verdict v = {.in = in, .out = out};

    if (n == 0)
        return 0;
    v.calls = calloc(n, sizeof(*v.calls));
    v.texts = calloc(n, sizeof(*v.texts));
    v.set = calloc(n / 64 + 1, sizeof(*v.set));
    v.op.at = calloc(n, sizeof(const struct recorder_seen *));
    v.op.places = calloc(n, sizeof(*v.op.places));
    if (v.calls == NULL || v.texts == NULL || v.set == NULL ||
        v.op.at == NULL || v.op.places == NULL)
        v.rc = -ENOMEM;
    else
        say_verdict(&v);
    free(v.calls);
    free(v.texts);
    free(v.set);
    free(v.op.at);
    free(v.op.places);
    return v.rc;
}
