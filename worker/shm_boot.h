/*
 * What the files share that make a group of the back end "shm"; shm_boot.c
 * tells how it goes.
 */
#ifndef COLL_SHM_BOOT_H
#define COLL_SHM_BOOT_H

#include "shm_internal.h"
#include "store.h"

/* What a failing rank may still spend on telling the others. */
#define LAST_WORDS_MS 1000

/* A value of "rank0" that is a failure and no claim begins with it. */
#define NOTE '!'

/* Room for what "rank0" may hold, and for the names of keys. */
enum { BOOT_TEXT_BYTES = 600, BOOT_KEY_BYTES = 128 };

/* What ranks must have in common to share memory. */
struct node {
    char boot_id[40];
    unsigned long long netns;
    unsigned int uid;
};

/* Rank 0's claim. */
struct claim {
    struct node node;
    char name[SHM_NAME_BYTES + 1];
};

struct boot {
    struct coll_group *g;
    struct shm_state *s;
    coll_store_t *store;
    bool *is_over; /* see struct coll_boot */
    const char *prefix;
    uint64_t deadline_ns;
    int slice_ms;
    int listener;
    int segment;
    /* [size] connections that have not said yet which rank they are, -1
     * where there is none. The oldest goes when there are more. */
    int *strangers;
    unsigned int next_stranger;
    struct claim own; /* of the others only the name counts */
    char token[SHM_NAME_BYTES + 1];
    char (*names)[SHM_NAME_BYTES]; /* [size], rank 0: of those who came */
    char leader[SHM_NAME_BYTES + 1]; /* rank 0's name, "" while not known */
    bool has_claimed; /* rank 0: the key is its own */
    bool is_welcome; /* the others: rank 0 counts on this one */
    bool has_told; /* nobody has to be told of the failure any more */
};

/* --- shm_boot.c ----------------------------------------------------------- */

coll_status_t boot_fail_rc(const char *what, int rc);
coll_status_t boot_fail_errno(const char *what);

/* A rank whose connection has ended. */
coll_status_t boot_fail_lost(struct boot *b, int rank);

/* Fails in the words of another rank. */
coll_status_t boot_fail_told(
    struct boot *b, coll_status_t status, const char *text);

/* A rank has said that it gives up. */
coll_status_t boot_fail_gave_up(
    struct boot *b, int rank, coll_status_t status, const char *text);

/* The time is over, this rank's or another's; the set says who is missing. */
coll_status_t boot_fail_late(
    struct boot *b, int64_t timeout_ms, const char *to_do);

/* Marks the ranks from first on that have no link; returns how many. */
int boot_mark_missing(struct shm_state *s, int first);

/* Sleeps for so long, which grows. Fails if the launcher tells of a failure. */
coll_status_t boot_pause_ms(long *ms);

/* --- shm_claim.c: the store ----------------------------------------------- */

void boot_key_of(
    const struct boot *b, char out[BOOT_KEY_BYTES], const char *what);

/* Where a rank that cannot reach rank 0 leaves why it fails. */
void boot_failed_key(const struct boot *b, char out[BOOT_KEY_BYTES]);

/* Reads a key into a NUL-terminated text; 0 or a negative errno. */
int boot_get_text(struct boot *b, const char *key, char *out, size_t cap,
    uint64_t deadline_ns, struct err *e);

/* Whether the key exists now. 0 or a negative errno. */
int boot_check(struct boot *b, const char *key, bool *exists, struct err *e);

int boot_delete(struct boot *b, const char *key, struct err *e);

/* Whether that works is nobody's concern any more. */
void boot_set_text(struct boot *b, const char *key, const char *text);

/* Sets the key if it has the expected value, and reads what it has then. Unlike
 * a plain set it is done when it returns. 0 or a negative errno. */
int boot_swap_text(struct boot *b, const char *key, const char *expected,
    const char *desired, char *out, size_t cap, struct err *e);

coll_status_t boot_node_get(struct node *node);

/* This rank's claim, as rank 0. */
void boot_claim_text(const struct boot *b, char *out, size_t cap);

/* COLL_ERR_ENVIRONMENT: of a rank 0 that does not fit; its name is set. */
coll_status_t boot_claim_parse(
    struct boot *b, struct claim *c, const char *text);

/* Can this rank share memory with rank 0? */
coll_status_t boot_check_node(const struct boot *b, const struct claim *c);

/* --- shm_door.c: sockets -------------------------------------------------- */

coll_status_t boot_start_listening(struct boot *b);
coll_status_t boot_start_accepting(struct boot *b);
void boot_stop_listening(struct boot *b);

/* One attempt of at most a slice. *fd is a connected socket, or -1 and *rc
 * why not: -EAGAIN if the backlog is full. */
coll_status_t boot_try_connect(
    const struct boot *b, const char *name, int *fd, pid_t *pid, int *rc);

/* Waits for one event and acts on it. NONE is no failure. */
coll_status_t boot_step(
    struct boot *b, int timeout_ms, enum shm_event_kind *kind);

/* --- shm_lead.c: rank 0 --------------------------------------------------- */

coll_status_t boot_lead(struct boot *b);

/*
 * Replaces this rank's claim, an older note or nothing by the reason of the
 * failure, for those who wait for a claim. With COLL_OK it means: look for
 * another store.
 */
void boot_leave_note(struct boot *b, coll_status_t status, const char *reason);

/* Gives up: tells all others. */
void boot_dismiss(struct boot *b, coll_status_t status);

/* --- shm_follow.c: the other ranks ---------------------------------------- */

coll_status_t boot_follow(struct boot *b);

/* Gives up: tells rank 0, which tells the others. */
void boot_tell_leader(struct boot *b, coll_status_t status);

#endif
