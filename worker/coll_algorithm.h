/*
 * Which algorithm an operation takes: one table of them with their names, what
 * each is possible for and where it is the fastest, in the order of preference.
 * A back end asks for the one that suits its case, a user can force another one
 * (coll_algorithm_set(), COLL_ALGORITHM), and coll_explain() says which it was
 * and why none before it in the table.
 *
 * Every rank must choose the same: so a case holds nothing but what all ranks
 * of the group know alike.
 */
#ifndef COLL_ALGORITHM_H
#define COLL_ALGORITHM_H

#include "backend.h"

/* Where there is something to choose. */
enum coll_level {
    COLL_LEVEL_NODES, /* how ranks of several nodes work together */
    COLL_LEVEL_SHM, /* between the ranks of a node */
    COLL_LEVEL_NET, /* by messages */
    COLL_LEVELS
};

enum coll_algorithm {
    /* COLL_LEVEL_NODES */
    COLL_ALGORITHM_HIERARCHICAL, /* within nodes, between leaders, back */
    COLL_ALGORITHM_FLAT, /* any rank with any other */
    /* COLL_LEVEL_NODES and COLL_LEVEL_NET */
    COLL_ALGORITHM_EAGER, /* the data travel with the agreement: spread.h */
    /* COLL_LEVEL_SHM */
    COLL_ALGORITHM_MAPPED, /* in the buffers of others: shm_direct.c */
    COLL_ALGORITHM_CMA, /* the kernel reads them: likewise */
    COLL_ALGORITHM_ONE_SHOT, /* shm_reduce.c */
    COLL_ALGORITHM_TWO_SHOT, /* likewise */
    COLL_ALGORITHM_STAGED, /* through the slots */
    /* COLL_LEVEL_NET: see the files of flat.h, and tcp_ops.c */
    COLL_ALGORITHM_RING,
    COLL_ALGORITHM_CHAIN,
    COLL_ALGORITHM_TREE,
    COLL_ALGORITHM_LINEAR,
    COLL_ALGORITHM_GATHER,
    COLL_ALGORITHM_PAIRWISE,
    COLL_ALGORITHM_BRUCK,
};

/* What the choice depends on. */
struct coll_case {
    enum coll_kind kind;
    enum coll_kind whole; /* of the call that this is a step of, or kind */
    int ranks;
    size_t message; /* bytes of the call, in the larger one of its buffers */
    size_t part; /* bytes that a rank has for one other at most */
    size_t blocks; /* EAGER: of all ranks together; SIZE_MAX: it cannot be */
    bool is_deterministic;
    bool is_of_leaders; /* NET: of each node one rank, by links of its own */
    /* SHM: false: it is not known yet what ranks can see of each other, which
     * is taken for all. */
    bool is_reached;
    bool is_crowded; /* SHM: ranks share CPUs */
    bool are_mapped; /* the buffers that MAPPED needs */
    bool are_readable; /* those that CMA needs */
};

struct coll_algorithm_row;

/* What a group has for its choices. */
struct coll_tuning {
    /* 0, or one more than the index of the row that the user has forced. */
    uint8_t forced[COLL_LEVELS][COLL_KINDS];
    uint32_t code; /* a hash of all that; 0: nothing is forced */
    /* What was chosen last, for coll_explain(): of an operation's first step
     * and of the latest one of another kind. */
    struct coll_choice {
        const struct coll_algorithm_row *row; /* NULL: nothing yet */
        const struct coll_algorithm_row *forced; /* NULL: none was */
        struct coll_case of;
        uint64_t seq; /* of the operation */
    } last[COLL_LEVELS][2];
};

/* Of a call as it is run among so many ranks. blocks is left SIZE_MAX. */
struct coll_case coll_case_of(
    const struct coll_group *g, const struct coll_call *call, int ranks);

/* Chooses. The kind has algorithms at that level. */
enum coll_algorithm coll_algorithm_pick(const struct coll_tuning *t,
    enum coll_level level, const struct coll_case *c);

/* The same, and notes it for coll_explain(). */
enum coll_algorithm coll_algorithm_choose(struct coll_tuning *t,
    enum coll_level level, const struct coll_case *c, uint64_t seq);

/* Reads "all_reduce:ring,broadcast:tree" into t->forced; NULL or "": nothing is
 * forced. COLL_OK, or blame with a sentence that begins with where; t is then
 * as it was. */
coll_status_t coll_algorithm_parse(struct coll_tuning *t, const char *text,
    const char *where, coll_status_t blame);

#endif
