/*
 * See fold.h. The lines that wait are a queue, and each is also in the chain
 * of its hash, in the same order: so whatever leaves is the first of both.
 *
 * A rank that has nothing waiting could still join the first line; when there
 * is no such rank, the first line can leave. Hence only the number of such
 * ranks is kept.
 */
#include "agent/fold.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/base/clock.h"

#define NCHAINS 1024 /* a power of two */
#define BITS 64

struct entry {
    struct entry *next; /* in the queue */
    struct entry *chain_next;
    uint64_t hash;
    uint64_t number; /* counted up along the queue */
    uint64_t since_ns;
    size_t len;
    uint64_t ranks[]; /* the set; the line is behind it */
};

struct fold_rank {
    struct entry *last; /* its newest one; valid while npending > 0 */
    size_t npending;
    int nstreams;
};

struct chain {
    struct entry *first;
    struct entry *last;
};

struct fold {
    int nranks;
    size_t nwords; /* of a set */
    fold_line_cb cb;
    void *arg;
    struct fold_rank *ranks; /* owned, [nranks] */
    struct entry *first;
    struct entry *last;
    uint64_t next_number;
    size_t nbytes;
    size_t nlines;
    int nidle; /* ranks with a stream and nothing waiting; and the hold */
    struct chain chains[NCHAINS];
};

int fold_create(struct fold **out, int nranks, fold_line_cb cb, void *arg)
{
    struct fold *f = calloc(1, sizeof(*f));

    if (f == NULL)
        return -ENOMEM;
    f->nranks = nranks;
    f->nwords = ((size_t)nranks + BITS - 1) / BITS;
    f->cb = cb;
    f->arg = arg;
    f->ranks = calloc((size_t)nranks, sizeof(*f->ranks));
    if (f->ranks == NULL) {
        free(f);
        return -ENOMEM;
    }
    *out = f;
    return 0;
}

void fold_destroy(struct fold *f)
{
    if (f == NULL)
        return;
    while (f->first != NULL) {
        struct entry *e = f->first;

        f->first = e->next;
        free(e);
    }
    free(f->ranks);
    free(f);
}

static char *text_of(const struct fold *f, struct entry *e)
{
    return (char *)(e->ranks + f->nwords);
}

static bool has_rank(const uint64_t *ranks, int rank)
{
    return ranks[rank / BITS] >> (rank % BITS) & 1;
}

/* Eight bytes a step. It only has to be fast and to tell lines of a program
 * apart; equality is decided by comparing. */
static uint64_t hash_line(const char *line, size_t len)
{
    uint64_t h = len;

    while (len > 0) {
        size_t n = len < sizeof(h) ? len : sizeof(h);
        uint64_t word = 0;

        memcpy(&word, line, n);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
        line += n;
        len -= n;
    }
    return h;
}

static void pop_first(struct fold *f)
{
    struct entry *e = f->first;
    struct chain *chain = &f->chains[e->hash % NCHAINS];

    f->first = e->next;
    if (f->first == NULL)
        f->last = NULL;
    chain->first = e->chain_next;
    if (chain->first == NULL)
        chain->last = NULL;
    f->nbytes -= e->len;
    f->nlines--;
    for (int r = 0; r < f->nranks; r++)
        if (has_rank(e->ranks, r) && --f->ranks[r].npending == 0 &&
            f->ranks[r].nstreams > 0)
            f->nidle++;
    f->cb(f->arg, e->ranks, text_of(f, e), e->len, e->since_ns);
    free(e);
}

static void release(struct fold *f)
{
    while (f->first != NULL && (f->nidle == 0 || f->nbytes > FOLD_BYTES_MAX ||
                                   f->nlines > FOLD_LINES_MAX))
        pop_first(f);
}

void fold_join(struct fold *f, int rank)
{
    if (f->ranks[rank].nstreams++ == 0 && f->ranks[rank].npending == 0)
        f->nidle++;
}

void fold_leave(struct fold *f, int rank)
{
    if (--f->ranks[rank].nstreams == 0 && f->ranks[rank].npending == 0)
        f->nidle--;
    release(f);
}

void fold_hold(struct fold *f)
{
    f->nidle++;
}

void fold_unhold(struct fold *f)
{
    f->nidle--;
    release(f);
}

/* The first line that the rank may join: an equal one behind its newest. */
static struct entry *find(const struct fold *f, const struct fold_rank *r,
    uint64_t hash, const char *line, size_t len)
{
    struct entry *e = f->chains[hash % NCHAINS].first;
    uint64_t behind = 0;

    if (r->npending > 0) {
        behind = r->last->number;
        if (r->last->hash % NCHAINS == hash % NCHAINS)
            e = r->last->chain_next;
    }
    for (; e != NULL; e = e->chain_next)
        if (e->number > behind && e->hash == hash && e->len == len &&
            memcmp(text_of(f, e), line, len) == 0)
            return e;
    return NULL;
}

static struct entry *append(struct fold *f, uint64_t hash, const char *line,
    size_t len, uint64_t now_ns)
{
    struct chain *chain = &f->chains[hash % NCHAINS];
    size_t set_size = f->nwords * sizeof(uint64_t);
    struct entry *e = malloc(sizeof(*e) + set_size + len);

    if (e == NULL)
        return NULL;
    memset(e, 0, sizeof(*e) + set_size);
    memcpy(text_of(f, e), line, len);
    e->hash = hash;
    e->number = ++f->next_number;
    e->since_ns = now_ns;
    e->len = len;
    if (f->last != NULL)
        f->last->next = e;
    else
        f->first = e;
    f->last = e;
    if (chain->last != NULL)
        chain->last->chain_next = e;
    else
        chain->first = e;
    chain->last = e;
    f->nbytes += len;
    f->nlines++;
    return e;
}

int fold_add(
    struct fold *f, int rank, const char *line, size_t len, uint64_t now_ns)
{
    struct fold_rank *r = &f->ranks[rank];
    uint64_t hash = hash_line(line, len);
    struct entry *e = find(f, r, hash, line, len);

    if (e == NULL)
        e = append(f, hash, line, len, now_ns);
    if (e == NULL)
        return -ENOMEM;
    e->ranks[rank / BITS] |= (uint64_t)1 << (rank % BITS);
    r->last = e;
    if (r->npending++ == 0 && r->nstreams > 0)
        f->nidle--;
    release(f);
    return 0;
}

void fold_flush_rank(struct fold *f, int rank)
{
    while (f->ranks[rank].npending > 0)
        pop_first(f);
}

void fold_tick(struct fold *f, uint64_t now_ns)
{
    while (fold_due_ns(f, now_ns) == 0)
        pop_first(f);
}

uint64_t fold_due_ns(const struct fold *f, uint64_t now_ns)
{
    uint64_t due;

    if (f->first == NULL)
        return UINT64_MAX;
    due = f->first->since_ns + FOLD_WAIT_MS * CLOCK_NS_PER_MS;
    return due > now_ns ? due - now_ns : 0;
}

int fold_ranks_text(
    const uint64_t *ranks, int nranks, int base, struct buf *out)
{
    const char *comma = "";
    int rc = 0;

    for (int first = 0; rc == 0 && first < nranks; first++) {
        char text[32];
        int last = first;

        if (!has_rank(ranks, first))
            continue;
        while (last + 1 < nranks && has_rank(ranks, last + 1))
            last++;
        if (last > first)
            snprintf(text, sizeof(text), "%s%d-%d", comma, base + first,
                base + last);
        else
            snprintf(text, sizeof(text), "%s%d", comma, base + first);
        rc = buf_append(out, text, strlen(text));
        comma = ",";
        first = last;
    }
    return rc;
}
