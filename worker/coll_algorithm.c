/* See coll_algorithm.h. */
#include "coll_algorithm.h"

#include <stdio.h>
#include <string.h>

#include "flat_internal.h"
#include "shm_internal.h"
#include "spread.h"
#include "tcp_internal.h"

/* --- Where each is the fastest -------------------------------------------- */

/*
 * Measured with coll_tune, 2 and 4 ranks on two CPUs that share a core. Where
 * ranks share CPUs each tick costs them several switches between them.
 *
 * From here on the tick that tells where buffers are has paid for itself, if
 * they are mapped.
 */
#define MAPPED_MIN_BYTES ((size_t)16 * 1024)
#define MAPPED_CROWDED_MIN_BYTES ((size_t)64 * 1024)

/* The same, if the kernel has to read them. It copies more slowly than a
 * program, but once instead of twice. That pays in between: what is large
 * leaves the caches, where slots stay, and then all ranks had better copy. */
#define CMA_MIN_BYTES ((size_t)64 * 1024)
#define CMA_MAX_BYTES ((size_t)4 * 1024 * 1024)
#define CMA_GATHER_MAX_BYTES ((size_t)256 * 1024)

/* Blocks of all other ranks lie in memory at once: not for too many. */
#define CMA_REDUCE_MAX_RANKS 64

/* What all ranks have together: more than that they had better share. */
#define ONE_SHOT_MAX_BYTES ((size_t)24 * 1024)
#define ONE_SHOT_CROWDED_MAX_BYTES ((size_t)64 * 1024)

/* Partial results that go round pay from here on. */
#define RING_MIN_BYTES ((size_t)1 << 20)

static bool always(const struct coll_case *c)
{
    (void)c;
    return true;
}

static bool is_reduction(const struct coll_case *c)
{
    return c->kind == COLL_KIND_ALL_REDUCE || c->kind == COLL_KIND_REDUCE ||
           c->kind == COLL_KIND_REDUCE_SCATTER ||
           c->kind == COLL_KIND_REDUCE_SCATTER_V;
}

static bool may_reorder(const struct coll_case *c)
{
    return !(c->is_deterministic && is_reduction(c));
}

static bool fits_eager(const struct coll_case *c)
{
    return c->blocks <= SPREAD_BYTES;
}

static bool can_be_mapped(const struct coll_case *c)
{
    return c->part > 0 && (!c->is_reached || c->are_mapped);
}

static bool is_worth_mapping(const struct coll_case *c)
{
    size_t least = c->is_crowded ? MAPPED_CROWDED_MIN_BYTES : MAPPED_MIN_BYTES;

    return c->part >= least / (size_t)c->ranks;
}

static bool can_be_read(const struct coll_case *c)
{
    return c->part > 0 && (!c->is_reached || c->are_readable) &&
           (!is_reduction(c) || c->ranks <= CMA_REDUCE_MAX_RANKS);
}

static bool is_worth_reading(const struct coll_case *c)
{
    size_t most = CMA_MAX_BYTES;

    if (is_reduction(c)) /* it would have to read into memory first */
        return false;
    if (c->kind == COLL_KIND_GATHER || c->kind == COLL_KIND_ALL_GATHER ||
        c->kind == COLL_KIND_ALL_GATHER_V)
        most = CMA_GATHER_MAX_BYTES;
    return !c->is_crowded && c->part >= CMA_MIN_BYTES && c->part <= most;
}

static bool fits_one_shot(const struct coll_case *c)
{
    return c->message <= SHM_CHUNK_MIN_BYTES;
}

static bool is_one_shot(const struct coll_case *c)
{
    size_t most =
        c->is_crowded ? ONE_SHOT_CROWDED_MAX_BYTES : ONE_SHOT_MAX_BYTES;

    return c->message <= most / (size_t)c->ranks;
}

/* What a rank of the group gives to one other. */
static size_t given(const struct coll_case *c)
{
    return c->kind == COLL_KIND_ALL_REDUCE || c->kind == COLL_KIND_REDUCE
               ? c->message
               : c->part;
}

/* One rank may have it of all the others at a time. */
static bool fits_one_rank(const struct coll_case *c)
{
    return given(c) <= FLAT_SCRATCH_BYTES / 4 / (size_t)c->ranks;
}

static bool fits_one_of_all(const struct coll_case *c)
{
    return !c->is_of_leaders && fits_one_rank(c);
}

static bool is_of_all(const struct coll_case *c)
{
    return !c->is_of_leaders;
}

/* The number of steps counts there and not the bytes. */
static bool is_small(const struct coll_case *c)
{
    return given(c) <= FLAT_SMALL_BYTES;
}

static bool is_worth_a_ring(const struct coll_case *c)
{
    return c->message > RING_MIN_BYTES && c->ranks > 2;
}

/* The tree's root sends everything to so many. The chain's end has waited for a
 * piece of each rank in between. */
static bool is_worth_a_tree(const struct coll_case *c)
{
    size_t levels = 0;

    while ((1 << levels) < c->ranks)
        levels++;
    return levels > 1 &&
           c->message < (size_t)(c->ranks - 2) * TCP_PIECE_BYTES / (levels - 1);
}

/* --- The table ------------------------------------------------------------ */

#define K(kind) (1u << COLL_KIND_##kind)

#define EAGER_KINDS                                                            \
    (K(REDUCE) | K(ALL_GATHER) | K(ALL_GATHER_V) | K(GATHER) | K(SCATTER) |    \
        K(REDUCE_SCATTER) | K(REDUCE_SCATTER_V) | K(ALL_TO_ALL))

#define TAKEN_KINDS                                                            \
    (K(ALL_REDUCE) | K(BROADCAST) | K(ALL_GATHER) | K(ALL_GATHER_V) |          \
        K(GATHER) | K(SCATTER) | K(REDUCE_SCATTER) | K(REDUCE_SCATTER_V) |     \
        K(ALL_TO_ALL))

struct coll_algorithm_row {
    enum coll_level level;
    enum coll_algorithm algorithm;
    const char *name;
    uint32_t kinds;
    bool (*is_possible)(const struct coll_case *c);
    const char *else_impossible; /* what is said if not; NULL: it always is */
    bool (*is_fastest)(const struct coll_case *c);
    const char *else_slower;
};

/* In a level and kind the first one that is both is taken; the last one is
 * possible for every case. */
static const struct coll_algorithm_row rows[] = {
    {COLL_LEVEL_NODES, COLL_ALGORITHM_HIERARCHICAL, "hierarchical",
        K(ALL_REDUCE) | K(BROADCAST) | K(BARRIER), may_reorder,
        "its sums depend on which ranks share a node", always, NULL},
    {COLL_LEVEL_NODES, COLL_ALGORITHM_EAGER, "eager",
        K(ALL_REDUCE) | EAGER_KINDS, fits_eager,
        "more than 128 KiB of all ranks, or agreed on before", always, NULL},
    {COLL_LEVEL_NODES, COLL_ALGORITHM_FLAT, "flat",
        K(ALL_REDUCE) | EAGER_KINDS | K(ALL_TO_ALL_V), always, NULL, always,
        NULL},

    {COLL_LEVEL_SHM, COLL_ALGORITHM_MAPPED, "mapped", K(REDUCE) | TAKEN_KINDS,
        can_be_mapped,
        "not all its buffers are of coll_alloc(), or an all_to_all in place",
        is_worth_mapping,
        "for 16 KiB of all ranks and more, 64 where they share CPUs"},
    {COLL_LEVEL_SHM, COLL_ALGORITHM_CMA, "cma", TAKEN_KINDS, can_be_read,
        "the kernel gives ranks no access to these buffers, or it is in place, "
        "or a reduction of more than 64 ranks",
        is_worth_reading,
        "for parts between 64 KiB and 4 MiB (gathered 256 KiB) that are only "
        "copied, where each rank has a CPU"},
    {COLL_LEVEL_SHM, COLL_ALGORITHM_ONE_SHOT, "one_shot",
        K(ALL_REDUCE) | K(REDUCE), fits_one_shot, "for 16 KiB at most",
        is_one_shot,
        "for 24 KiB of all ranks and less, 64 where they share CPUs"},
    {COLL_LEVEL_SHM, COLL_ALGORITHM_TWO_SHOT, "two_shot",
        K(ALL_REDUCE) | K(REDUCE), always, NULL, always, NULL},
    {COLL_LEVEL_SHM, COLL_ALGORITHM_STAGED, "staged",
        (TAKEN_KINDS & ~K(ALL_REDUCE)) | K(ALL_TO_ALL_V), always, NULL, always,
        NULL},

    {COLL_LEVEL_NET, COLL_ALGORITHM_EAGER, "eager",
        K(ALL_REDUCE) | K(BROADCAST) | K(BARRIER) | EAGER_KINDS, fits_eager,
        "more than 128 KiB of all ranks, or agreed on before", always, NULL},
    {COLL_LEVEL_NET, COLL_ALGORITHM_GATHER, "gather", K(REDUCE), fits_one_rank,
        "more than 1 MiB of all ranks", is_small, "for 16 KiB and less"},
    {COLL_LEVEL_NET, COLL_ALGORITHM_RING, "ring",
        K(REDUCE) | K(REDUCE_SCATTER) | K(REDUCE_SCATTER_V), may_reorder,
        "each part begins at another rank", is_worth_a_ring,
        "for more than 1 MiB of more than two ranks"},
    {COLL_LEVEL_NET, COLL_ALGORITHM_RING, "ring", K(ALL_REDUCE), may_reorder,
        "each part begins at another rank", always, NULL},
    {COLL_LEVEL_NET, COLL_ALGORITHM_GATHER, "gather", K(ALL_REDUCE),
        fits_one_of_all, "more than 1 MiB of all ranks, or between leaders",
        is_small, "for 16 KiB and less"},
    {COLL_LEVEL_NET, COLL_ALGORITHM_PAIRWISE, "pairwise",
        K(ALL_REDUCE) | K(REDUCE) | K(REDUCE_SCATTER) | K(REDUCE_SCATTER_V) |
            K(ALL_TO_ALL) | K(ALL_TO_ALL_V),
        is_of_all, "between leaders", always, NULL},
    {COLL_LEVEL_NET, COLL_ALGORITHM_TREE, "tree", K(BROADCAST), always, NULL,
        is_worth_a_tree, "for what is short among many ranks"},
    {COLL_LEVEL_NET, COLL_ALGORITHM_CHAIN, "chain", K(BROADCAST), always, NULL,
        always, NULL},
    {COLL_LEVEL_NET, COLL_ALGORITHM_BRUCK, "bruck",
        K(ALL_GATHER) | K(ALL_GATHER_V), fits_one_rank,
        "more than 1 MiB of all ranks", is_small, "for 16 KiB and less"},
    {COLL_LEVEL_NET, COLL_ALGORITHM_RING, "ring",
        K(ALL_GATHER) | K(ALL_GATHER_V), always, NULL, always, NULL},
    {COLL_LEVEL_NET, COLL_ALGORITHM_TREE, "tree", K(GATHER) | K(SCATTER),
        fits_one_rank, "more than 1 MiB of all ranks", is_small,
        "for 16 KiB and less"},
    {COLL_LEVEL_NET, COLL_ALGORITHM_LINEAR, "linear", K(GATHER) | K(SCATTER),
        always, NULL, always, NULL},
};

#define ROWS (sizeof(rows) / sizeof(rows[0]))

static bool is_of(const struct coll_algorithm_row *row, enum coll_level level,
    enum coll_kind kind)
{
    return row->level == level && (row->kinds >> kind & 1) != 0;
}

/* --- Cases ---------------------------------------------------------------- */

static size_t longest(const size_t *counts, int n)
{
    size_t most = 0;

    for (int r = 0; r < n; r++)
        if (counts[r] > most)
            most = counts[r];
    return most;
}

static enum coll_kind whole_kind(const struct coll_call *call)
{
    while (call->whole != NULL)
        call = call->whole;
    return call->kind;
}

struct coll_case coll_case_of(
    const struct coll_group *g, const struct coll_call *call, int ranks)
{
    size_t size = coll_dtype_size(call->dtype);
    size_t one = call->count * size;
    struct coll_case c = {
        .kind = call->kind,
        .whole = whole_kind(call),
        .ranks = ranks,
        .message = one,
        .part = one,
        .blocks = SIZE_MAX,
        .is_deterministic = g->is_deterministic,
    };

    switch (call->kind) {
    case COLL_KIND_ALL_REDUCE:
    case COLL_KIND_REDUCE:
        c.part = one / (size_t)ranks;
        break;
    case COLL_KIND_ALL_GATHER:
    case COLL_KIND_GATHER:
    case COLL_KIND_SCATTER:
    case COLL_KIND_REDUCE_SCATTER:
    case COLL_KIND_ALL_TO_ALL:
        c.message = one * (size_t)ranks;
        break;
    case COLL_KIND_ALL_GATHER_V:
        c.part = longest(call->recv_counts, g->size) * size;
        break;
    case COLL_KIND_REDUCE_SCATTER_V:
        c.part = longest(call->send_counts, g->size) * size;
        break;
    case COLL_KIND_BARRIER:
    case COLL_KIND_ALL_TO_ALL_V: /* no rank knows what the others have */
        c.message = 0;
        c.part = 0;
        break;
    default:
        break;
    }
    return c;
}

/* --- Choosing ------------------------------------------------------------- */

/* What the user has forced: for this operation, or for the one that it is a
 * step of. NULL: nothing. */
static const struct coll_algorithm_row *forced_row(const struct coll_tuning *t,
    enum coll_level level, const struct coll_case *c)
{
    uint8_t one = t->forced[level][c->kind];

    if (one == 0 && t->forced[level][c->whole] > 0 &&
        is_of(&rows[t->forced[level][c->whole] - 1], level, c->kind))
        one = t->forced[level][c->whole];
    return one == 0 ? NULL : &rows[one - 1];
}

/* Where there are no bytes there is nothing to do but to agree. */
static bool can_be_forced(
    const struct coll_algorithm_row *row, const struct coll_case *c)
{
    return c->message > 0 && row->is_possible(c);
}

static const struct coll_algorithm_row *pick(
    const struct coll_algorithm_row *forced, enum coll_level level,
    const struct coll_case *c)
{
    const struct coll_algorithm_row *row = &rows[0];

    if (forced != NULL && can_be_forced(forced, c))
        return forced;
    while (!is_of(row, level, c->kind) || !row->is_possible(c) ||
           !row->is_fastest(c))
        row++;
    return row;
}

enum coll_algorithm coll_algorithm_pick(const struct coll_tuning *t,
    enum coll_level level, const struct coll_case *c)
{
    return pick(forced_row(t, level, c), level, c)->algorithm;
}

enum coll_algorithm coll_algorithm_choose(struct coll_tuning *t,
    enum coll_level level, const struct coll_case *c, uint64_t seq)
{
    const struct coll_algorithm_row *forced = forced_row(t, level, c);
    const struct coll_choice choice = {pick(forced, level, c), forced, *c, seq};
    struct coll_choice *last = t->last[level];
    bool is_first =
        last[0].row == NULL || last[0].seq != seq || last[0].of.kind == c->kind;

    last[is_first ? 0 : 1] = choice;
    return choice.row->algorithm;
}

/* --- Forcing -------------------------------------------------------------- */

/* FNV-1a. Ranks that were told differently notice it by this: see
 * coll_signature.h. */
static uint32_t code_of(const struct coll_tuning *t)
{
    uint32_t code = 0x811c9dc5u;
    bool is_any = false;

    for (int l = 0; l < COLL_LEVELS; l++)
        for (int k = 0; k < COLL_KINDS; k++) {
            code = (code ^ t->forced[l][k]) * 0x01000193u;
            is_any |= t->forced[l][k] > 0;
        }
    return !is_any ? 0 : code != 0 ? code : 1;
}

static bool is_word(const char *word, size_t len, const char *name)
{
    return strlen(name) == len && memcmp(word, name, len) == 0;
}

/* In all levels that have it. */
static bool force(
    struct coll_tuning *t, enum coll_kind kind, const char *name, size_t len)
{
    bool is_known = false;

    for (size_t i = 0; i < ROWS; i++)
        if (is_of(&rows[i], rows[i].level, kind) &&
            is_word(name, len, rows[i].name)) {
            t->forced[rows[i].level][kind] = (uint8_t)(i + 1);
            is_known = true;
        }
    return is_known;
}

/* Whether a level has several algorithms for it. */
static bool has_choice(enum coll_kind kind)
{
    int known[COLL_LEVELS] = {0};
    bool is_found = false;

    for (size_t i = 0; i < ROWS; i++)
        if (is_of(&rows[i], rows[i].level, kind))
            is_found |= ++known[rows[i].level] > 1;
    return is_found;
}

/* The kind of that name that has a choice, or COLL_KINDS. */
static int kind_of(const char *word, size_t len)
{
    for (int k = 0; k < COLL_KINDS; k++)
        if (is_word(word, len, coll_kind_name(k)) && has_choice(k))
            return k;
    return COLL_KINDS;
}

/* Appends to what is a string already. */
static void append(char *out, size_t cap, const char *separator, const char *s)
{
    size_t len = strlen(out);

    snprintf(out + len, cap - len, "%s%s", len > 0 ? separator : "", s);
}

static void list_kinds(char *out, size_t cap)
{
    out[0] = '\0';
    for (int k = 0; k < COLL_KINDS; k++)
        if (coll_algorithm_name(coll_kind_name(k), 0) != NULL)
            append(out, cap, ", ", coll_kind_name(k));
}

static void list_algorithms(char *out, size_t cap, enum coll_kind kind)
{
    const char *name;

    out[0] = '\0';
    for (int i = 0;
         (name = coll_algorithm_name(coll_kind_name(kind), i)) != NULL; i++)
        append(out, cap, ", ", name);
}

/* One OPERATION:ALGORITHM. */
static coll_status_t parse_entry(struct coll_tuning *t, const char *entry,
    size_t len, const char *where, coll_status_t blame)
{
    const char *colon = memchr(entry, ':', len);
    size_t kind_len = colon == NULL ? len : (size_t)(colon - entry);
    int kind = kind_of(entry, kind_len);
    char known[256];

    if (kind == COLL_KINDS) {
        list_kinds(known, sizeof(known));
        return coll_fail(blame,
            "%s: \"%.*s\" is no operation with a choice; expected "
            "OPERATION:ALGORITHM, ... with one of: %s",
            where, (int)kind_len, entry, known);
    }
    if (colon != NULL && force(t, kind, colon + 1, len - kind_len - 1))
        return COLL_OK;
    list_algorithms(known, sizeof(known), kind);
    return coll_fail(blame,
        "%s: \"%.*s\" does not name an algorithm; expected %s:ALGORITHM with "
        "one of: %s",
        where, (int)len, entry, coll_kind_name(kind), known);
}

coll_status_t coll_algorithm_parse(struct coll_tuning *t, const char *text,
    const char *where, coll_status_t blame)
{
    struct coll_tuning next = *t;

    memset(next.forced, 0, sizeof(next.forced));
    while (text != NULL && *text != '\0') {
        size_t len = strcspn(text, ",");
        coll_status_t status = parse_entry(&next, text, len, where, blame);

        if (status != COLL_OK)
            return status;
        text += len + (text[len] == ',');
    }
    next.code = code_of(&next);
    *t = next;
    return COLL_OK;
}

/* --- The public functions ------------------------------------------------- */

static bool has_earlier(size_t row, enum coll_kind kind)
{
    for (size_t i = 0; i < row; i++)
        if (is_of(&rows[i], rows[i].level, kind) &&
            strcmp(rows[i].name, rows[row].name) == 0)
            return true;
    return false;
}

const char *coll_algorithm_name(const char *operation, int index)
{
    int kind =
        operation == NULL ? COLL_KINDS : kind_of(operation, strlen(operation));

    for (size_t i = 0; i < ROWS && kind < COLL_KINDS; i++)
        if (is_of(&rows[i], rows[i].level, kind) && !has_earlier(i, kind) &&
            index-- == 0)
            return rows[i].name;
    return NULL;
}

coll_status_t coll_algorithm_set(coll_group_t *group, const char *choices)
{
    coll_status_t status;
    struct coll_group *g = coll_group_get(group, "coll_algorithm_set", &status);

    if (g == NULL)
        return status;
    if (coll_group_is_running(g))
        return coll_fail(COLL_ERR_STATE,
            "coll_algorithm_set: an operation of the group is on its way");
    return coll_algorithm_parse(
        g->tuning, choices, "coll_algorithm_set", COLL_ERR_ARGUMENT);
}

static const char *level_name(enum coll_level level)
{
    static const char *const names[COLL_LEVELS] = {"nodes", "shm", "net"};

    return names[level];
}

/* Why the library did not take a row by itself, NULL: it might have. */
static const char *objection(
    const struct coll_algorithm_row *row, const struct coll_case *c)
{
    if (!row->is_fastest(c))
        return row->else_slower;
    return row->is_possible(c) ? NULL : row->else_impossible;
}

static void explain(
    char *out, size_t cap, enum coll_level level, const struct coll_choice *of)
{
    const struct coll_case *c = &of->of;
    const char *why;
    char line[192];

    snprintf(line, sizeof(line),
        "%s: %s of %s, %zu bytes, parts of %zu, %d ranks", level_name(level),
        of->row->name, coll_kind_name(c->kind), c->message, c->part, c->ranks);
    append(out, cap, "\n", line);
    if (of->row == of->forced) {
        append(out, cap, "", "; forced");
        return;
    }
    if (of->forced != NULL) {
        why = c->message == 0 ? "there are no bytes"
                              : of->forced->else_impossible;
        snprintf(line, sizeof(line), "; forced but impossible is %s: %s",
            of->forced->name, why);
        append(out, cap, "", line);
    }
    for (const struct coll_algorithm_row *row = rows; row < of->row; row++) {
        why = is_of(row, level, c->kind) ? objection(row, c) : NULL;
        if (why == NULL)
            continue;
        snprintf(line, sizeof(line), "; not %s: %s", row->name, why);
        append(out, cap, "", line);
    }
}

coll_status_t coll_explain(const coll_group_t *group, char *out, size_t cap)
{
    coll_status_t status;
    struct coll_group *g = coll_group_get(group, "coll_explain", &status);

    if (g == NULL)
        return status;
    if (out == NULL || cap == 0)
        return coll_fail(
            COLL_ERR_ARGUMENT, "coll_explain: there is no room for the text");
    if (coll_group_is_running(g))
        return coll_fail(COLL_ERR_STATE,
            "coll_explain: an operation of the group is on its way");
    out[0] = '\0';
    for (int l = 0; l < COLL_LEVELS; l++)
        for (int i = 0; i < 2; i++) {
            const struct coll_choice *of = &g->tuning->last[l][i];

            if (of->row != NULL && of->seq == g->seq)
                explain(out, cap, l, of);
        }
    return COLL_OK;
}
