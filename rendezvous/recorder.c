/*
 * Writing and reading the recorder; see recorder.h.
 *
 * An entry is valid if its ticket is the expected one before and after it was
 * read. For that its writer takes the ticket away first. Stores release and
 * loads acquire, so that neither side needs a fence: whoever sees a field of
 * a new entry sees that the old ticket is gone.
 */
#include "rendezvous/recorder.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PUT(field, value)                                                      \
    atomic_store_explicit(&(field), (value), memory_order_release)
#define GET(field) atomic_load_explicit(&(field), memory_order_acquire)

void recorder_init(struct recorder *r, int rank)
{
    r->rank = rank;
    r->entry_size = sizeof(struct recorder_entry);
    r->entry_count = RECORDER_ENTRIES;
    r->version = RECORDER_VERSION;
    r->magic = RECORDER_MAGIC;
}

bool recorder_is_valid(const struct recorder *r)
{
    return r->magic == RECORDER_MAGIC && r->version == RECORDER_VERSION &&
           r->entry_size == sizeof(struct recorder_entry) &&
           r->entry_count == RECORDER_ENTRIES;
}

void recorder_set_name(
    recorder_names names, unsigned int index, const char *name)
{
    if (index < RECORDER_NAMES)
        snprintf(names[index], RECORDER_NAME_LEN, "%s", name);
}

uint64_t recorder_enter(struct recorder *r, const struct recorder_call *call)
{
    uint64_t ticket =
        atomic_fetch_add_explicit(&r->head, 1, memory_order_relaxed) + 1;
    struct recorder_entry *e = &r->entries[ticket % RECORDER_ENTRIES];

    atomic_store_explicit(&e->ticket, 0, memory_order_relaxed);
    PUT(e->seq, call->seq);
    PUT(e->count, call->count);
    PUT(e->entered_ns, call->now_ns);
    PUT(e->finished_ns, 0);
    PUT(e->group, call->group);
    PUT(e->root, call->root);
    PUT(e->status, 0);
    PUT(e->kind, call->kind);
    PUT(e->dtype, call->dtype);
    PUT(e->op, call->op);
    PUT(e->ticket, ticket);
    return ticket;
}

void recorder_finish(
    struct recorder *r, uint64_t ticket, int32_t status, uint64_t now_ns)
{
    struct recorder_entry *e = &r->entries[ticket % RECORDER_ENTRIES];

    if (GET(e->ticket) != ticket)
        return;
    PUT(e->status, status);
    PUT(e->finished_ns, now_ns);
}

void recorder_add_group(
    struct recorder *r, uint32_t id, int size, const char *ranks)
{
    uint64_t words[RECORDER_RANKS_LEN / 8] = {0};
    struct recorder_group *g = NULL;

    snprintf((char *)words, sizeof(words), "%s", ranks);
    for (int i = 0; i < RECORDER_GROUPS && g == NULL; i++)
        if (GET(r->groups[i].size) != 0 && GET(r->groups[i].id) == id)
            g = &r->groups[i];
    if (g == NULL)
        g = &r->groups[atomic_fetch_add(&r->ngroups, 1) % RECORDER_GROUPS];
    PUT(g->size, 0);
    PUT(g->id, id);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        PUT(g->ranks[i], words[i]);
    PUT(g->size, (uint32_t)size);
}

/* In a line of text, and between quotes. */
static bool can_be_shown(unsigned char c)
{
    return c < 0x80 && isgraph(c) && c != '"' && c != '\\';
}

bool recorder_find_group(const struct recorder *r, uint32_t id,
    char ranks[RECORDER_RANKS_LEN], uint32_t *size)
{
    uint64_t words[RECORDER_RANKS_LEN / 8];
    const struct recorder_group *g = NULL;

    for (int i = 0; i < RECORDER_GROUPS && g == NULL; i++)
        if (GET(r->groups[i].size) != 0 && GET(r->groups[i].id) == id)
            g = &r->groups[i];
    if (g == NULL)
        return false;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        words[i] = GET(g->ranks[i]);
    *size = GET(g->size);
    if (*size == 0 || GET(g->id) != id)
        return false;
    memcpy(ranks, words, RECORDER_RANKS_LEN);
    ranks[RECORDER_RANKS_LEN - 1] = '\0';
    for (char *c = ranks; *c != '\0'; c++)
        if (!can_be_shown((unsigned char)*c))
            *c = '?';
    return true;
}

void recorder_group_text(
    const struct recorder *r, uint32_t id, char *out, size_t size)
{
    char ranks[RECORDER_RANKS_LEN];
    uint32_t n;

    if (id == 0)
        snprintf(out, size, "default group");
    else if (recorder_find_group(r, id, ranks, &n))
        snprintf(out, size, "group of ranks %s", ranks);
    else
        snprintf(out, size, "group %" PRIu32, id);
}

/* Copies a name from the table, or the number where it has none. */
static void name_of(
    const recorder_names names, uint8_t index, char out[RECORDER_NAME_LEN])
{
    size_t len = 0;

    if (index < RECORDER_NAMES)
        len = strnlen(names[index], RECORDER_NAME_LEN - 1);
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)names[index][i];

        out[i] = can_be_shown(c) ? (char)c : '?';
    }
    out[len] = '\0';
    if (len == 0 && index != 0)
        snprintf(out, RECORDER_NAME_LEN, "%u", index);
}

static bool read_entry(
    const struct recorder *r, uint64_t ticket, struct recorder_seen *out)
{
    const struct recorder_entry *e = &r->entries[ticket % RECORDER_ENTRIES];
    uint8_t kind, dtype, op;

    if (ticket == 0 || GET(e->ticket) != ticket)
        return false;
    out->ticket = ticket;
    out->seq = GET(e->seq);
    out->count = GET(e->count);
    out->entered_ns = GET(e->entered_ns);
    out->finished_ns = GET(e->finished_ns);
    out->is_finished = out->finished_ns != 0;
    out->group = GET(e->group);
    out->root = GET(e->root);
    out->status = GET(e->status);
    kind = GET(e->kind);
    dtype = GET(e->dtype);
    op = GET(e->op);
    if (GET(e->ticket) != ticket)
        return false;
    out->is_init = kind == RECORDER_INIT;
    name_of(r->kinds, kind, out->kind);
    name_of(r->dtypes, dtype, out->dtype);
    name_of(r->ops, op, out->op);
    return true;
}

size_t recorder_read(
    const struct recorder *r, struct recorder_seen out[RECORDER_ENTRIES])
{
    uint64_t head = GET(r->head);
    size_t n = 0;

    /* A rank may have died, or be, in the middle of an entry. */
    for (uint64_t back = RECORDER_ENTRIES; back-- > 0;)
        if (back < head && read_entry(r, head - back, &out[n]))
            n++;
    return n;
}

bool recorder_last(const struct recorder *r, struct recorder_seen *out)
{
    uint64_t head = GET(r->head);

    /* A rank may have died, or be, in the middle of an entry. */
    for (uint64_t back = 0; back < RECORDER_ENTRIES && back < head; back++)
        if (read_entry(r, head - back, out))
            return true;
    return false;
}

bool recorder_last_text(const struct recorder *r, char *out, size_t size)
{
    struct recorder_seen seen;
    char number[32] = "", group[128] = "", data[64] = "";
    char name[RECORDER_RANKS_LEN + 32];

    if (!recorder_last(r, &seen))
        return false;
    if (seen.seq != 0)
        snprintf(number, sizeof(number), " #%" PRIu64, seen.seq);
    if (seen.group != 0) {
        recorder_group_text(r, seen.group, name, sizeof(name));
        snprintf(group, sizeof(group), " in %s", name);
    }
    if (seen.dtype[0] != '\0')
        snprintf(
            data, sizeof(data), " of %" PRIu64 " %s", seen.count, seen.dtype);
    snprintf(out, size, "%s%s%s%s, %s", seen.kind, number, data, group,
        !seen.is_finished  ? "not finished"
        : seen.status == 0 ? "finished"
                           : "failed");
    return true;
}
