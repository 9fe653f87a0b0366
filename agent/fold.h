/*
 * Equal lines of several ranks become one. Pure: lines in, lines with the set
 * of their ranks out; the time is passed in.
 *
 * Lines wait in the order in which the first of their ranks wrote them, and
 * leave in that order, so what one rank writes stays in order. The first of
 * them leaves when no rank can join it any more (each has it, or has written
 * something later) or when it has waited for FOLD_WAIT_MS.
 */
#ifndef CRUN_AGENT_FOLD_H
#define CRUN_AGENT_FOLD_H

#include <stddef.h>
#include <stdint.h>

#include "rendezvous/base/buf.h"

#define FOLD_WAIT_MS 250

/* When more than this waits, the first ones leave before their time. */
#define FOLD_BYTES_MAX (256 * 1024)
#define FOLD_LINES_MAX 4096

struct fold;

/* A line leaves. ranks is a bit set (fold_ranks_text()); since_ns is when the
 * line came. All of it is valid during the call, which may not call back. */
typedef void (*fold_line_cb)(void *arg, const uint64_t *ranks, const char *line,
    size_t len, uint64_t since_ns);

int fold_create(struct fold **out, int nranks, fold_line_cb cb, void *arg);

/* Drops what still waits. Takes NULL. */
void fold_destroy(struct fold *f);

/* A stream of the rank begins, and ends: only ranks with a stream are waited
 * for. */
void fold_join(struct fold *f, int rank);
void fold_leave(struct fold *f, int rank);

/* Between them streams of further ranks are going to begin, so no line is
 * complete yet. */
void fold_hold(struct fold *f);
void fold_unhold(struct fold *f);

/* Takes one line of a rank. 0, or -ENOMEM and nothing was taken. */
int fold_add(
    struct fold *f, int rank, const char *line, size_t len, uint64_t now_ns);

/* Lets everything leave that this rank has waiting, and what is before it. */
void fold_flush_rank(struct fold *f, int rank);

/* Lets everything leave whose time is over. */
void fold_tick(struct fold *f, uint64_t now_ns);

/* Nanoseconds until the next fold_tick(); UINT64_MAX: nothing waits. */
uint64_t fold_due_ns(const struct fold *f, uint64_t now_ns);

/* Appends a set as "0-3,6", base added to each rank. 0 or -ENOMEM. */
int fold_ranks_text(
    const uint64_t *ranks, int nranks, int base, struct buf *out);

#endif
