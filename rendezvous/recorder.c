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

/* Copies a name from the table, or the number where it has none. */
static void name_of(
    const recorder_names names, uint8_t index, char out[RECORDER_NAME_LEN])
{
    size_t len = 0;

    if (index < RECORDER_NAMES)
        len = strnlen(names[index], RECORDER_NAME_LEN - 1);
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)names[index][i];

        out[i] = (char)(c < 0x80 && isgraph(c) ? c : '?');
    }
    out[len] = '\0';
    if (len == 0 && index != 0)
        snprintf(out, RECORDER_NAME_LEN, "%u", index);
}

static bool read_entry(
    const struct recorder *r, uint64_t ticket, struct recorder_seen *out)
{
    const struct recorder_entry *e = &r->entries[ticket % RECORDER_ENTRIES];
    uint8_t kind, dtype;

    if (GET(e->ticket) != ticket)
        return false;
    out->seq = GET(e->seq);
    out->count = GET(e->count);
    out->group = GET(e->group);
    out->is_finished = GET(e->finished_ns) != 0;
    out->status = GET(e->status);
    kind = GET(e->kind);
    dtype = GET(e->dtype);
    if (GET(e->ticket) != ticket)
        return false;
    name_of(r->kinds, kind, out->kind);
    name_of(r->dtypes, dtype, out->dtype);
    return true;
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
    char number[32] = "", group[32] = "", data[64] = "";

    if (!recorder_last(r, &seen))
        return false;
    if (seen.seq != 0)
        snprintf(number, sizeof(number), " #%" PRIu64, seen.seq);
    if (seen.group != 0)
        snprintf(group, sizeof(group), " in group %" PRIu32, seen.group);
    if (seen.dtype[0] != '\0')
        snprintf(
            data, sizeof(data), " of %" PRIu64 " %s", seen.count, seen.dtype);
    snprintf(out, size, "%s%s%s%s, %s", seen.kind, number, data, group,
        !seen.is_finished  ? "not finished"
        : seen.status == 0 ? "finished"
                           : "failed");
    return true;
}
