/*
 * The recorder: the last calls of one rank, in memory that its agent shares,
 * so that they can be read when the rank is dead. It is a ring; a rank writes
 * an entry when a call begins and adds to it when the call returns, with a
 * few stores and no lock. docs/protocol.md has the layout.
 *
 * The names of operations and types are in the memory, too: an agent can read
 * the recorder of a library that knows more than it does.
 *
 * The reader trusts nothing: the writer may have died in the middle of an
 * entry, and a stray pointer may have written anywhere.
 */
#ifndef CRUN_RENDEZVOUS_RECORDER_H
#define CRUN_RENDEZVOUS_RECORDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORDER_MAGIC 0x43455243u /* "CREC" */
#define RECORDER_VERSION 2
#define RECORDER_ENTRIES 64
#define RECORDER_NAMES 64
#define RECORDER_NAME_LEN 32
#define RECORDER_GROUPS 32
#define RECORDER_RANKS_LEN 64

/* The one kind with a fixed place: with it the groups begin anew, and their
 * numbers at 1. */
#define RECORDER_INIT (RECORDER_NAMES - 1)

/* Of the statuses, those that the reader tells from others: what is set for
 * the ranks does not do, nobody came in time, and ranks have called different
 * things. */
#define RECORDER_ENVIRONMENT (-3)
#define RECORDER_TIMEOUT (-7)
#define RECORDER_MISMATCH (-9)

/* A call without a root. */
#define RECORDER_NO_ROOT (-1)

/* A name of index 0 is empty: a call without it. */
typedef char recorder_names[RECORDER_NAMES][RECORDER_NAME_LEN];

struct recorder_entry {
    /* 1 for the first call of the rank, and so on; 0 while it is written. */
    _Atomic uint64_t ticket;
    _Atomic uint64_t seq; /* in the group; 0: the call has no number */
    _Atomic uint64_t count;
    _Atomic uint64_t entered_ns; /* of CLOCK_MONOTONIC */
    _Atomic uint64_t finished_ns; /* 0: not yet */
    _Atomic uint32_t group; /* 0: the default group */
    _Atomic int32_t root; /* or the peer; RECORDER_NO_ROOT */
    _Atomic int32_t status; /* valid once finished: 0 or an error */
    _Atomic uint8_t kind, dtype, op; /* of the names below */
    uint8_t unused[9];
};

/* A group that the rank is in, beside the default one. */
struct recorder_group {
    _Atomic uint32_t id;
    _Atomic uint32_t size; /* 0: the place is free, or being written */
    _Atomic uint64_t ranks[RECORDER_RANKS_LEN / 8]; /* a text */
};

struct recorder {
    uint32_t magic;
    uint32_t version;
    int32_t rank;
    uint32_t entry_size;
    uint32_t entry_count;
    uint32_t unused;
    _Atomic uint64_t head; /* calls so far: the last ticket that was taken */
    _Atomic uint32_t ngroups; /* so far; the table keeps the last ones */
    char padding[28];
    recorder_names kinds, dtypes, ops;
    struct recorder_group groups[RECORDER_GROUPS];
    struct recorder_entry entries[RECORDER_ENTRIES];
};

_Static_assert(sizeof(struct recorder_entry) == 64, "one cache line");
_Static_assert(offsetof(struct recorder, kinds) == 64, "as documented");
_Static_assert(offsetof(struct recorder, groups) == 6208, "as documented");
_Static_assert(offsetof(struct recorder, entries) == 8512, "as documented");

/* A call as it begins. */
struct recorder_call {
    uint64_t seq;
    uint64_t count;
    uint64_t now_ns;
    uint32_t group;
    int32_t root;
    uint8_t kind, dtype, op;
};

/* A call as it is read: names are texts, fit to be shown, without quotes. */
struct recorder_seen {
    char kind[RECORDER_NAME_LEN], dtype[RECORDER_NAME_LEN];
    char op[RECORDER_NAME_LEN];
    uint64_t ticket;
    uint64_t seq;
    uint64_t count;
    uint64_t entered_ns, finished_ns;
    uint32_t group;
    int32_t root;
    int32_t status;
    bool is_init;
    bool is_finished;
};

/* Memory of zeros becomes a recorder without entries. */
void recorder_init(struct recorder *r, int rank);

/* Whether what an agent passed has this layout. */
bool recorder_is_valid(const struct recorder *r);

/* index from 1; what is beyond the table has no name. */
void recorder_set_name(
    recorder_names names, unsigned int index, const char *name);

/* Notes a call; returns its ticket. Several threads, and processes, may do so
 * at a time. */
uint64_t recorder_enter(struct recorder *r, const struct recorder_call *call);

/* Notes its end, if the entry has not been used again since. */
void recorder_finish(
    struct recorder *r, uint64_t ticket, int32_t status, uint64_t now_ns);

/* Notes a group that the rank is in; ranks is like "0-2,7", cut where it is
 * too long. The id of one that is gone may be used again. */
void recorder_add_group(
    struct recorder *r, uint32_t id, int size, const char *ranks);

/* The group's ranks as a text, fit to be shown, and its size; false if the
 * table does not have it. */
bool recorder_find_group(const struct recorder *r, uint32_t id,
    char ranks[RECORDER_RANKS_LEN], uint32_t *size);

/* "default group", "group of ranks 0,2", or "group 7" if no more is known. */
void recorder_group_text(
    const struct recorder *r, uint32_t id, char *out, size_t size);

/* The last calls that can be read, oldest first; returns how many. */
size_t recorder_read(
    const struct recorder *r, struct recorder_seen out[RECORDER_ENTRIES]);

/* The last call that began; false if there is none. */
bool recorder_last(const struct recorder *r, struct recorder_seen *out);

/* The same for a person: "all_reduce #17 of 1024 float32, not finished". */
bool recorder_last_text(const struct recorder *r, char *out, size_t size);

#endif
