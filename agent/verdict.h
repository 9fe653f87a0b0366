/*
 * Which operation the ranks of this node hang in, and on whose account, by
 * what their recorders say. Pure but for reading those, which may be nonsense:
 * whoever writes there may be broken, or be writing.
 */
#ifndef CRUN_AGENT_VERDICT_H
#define CRUN_AGENT_VERDICT_H

#include <stdint.h>

#include "rendezvous/base/buf.h"
#include "rendezvous/recorder.h"

/* More would be a list, not a verdict. */
#define VERDICT_SENTENCES_MAX 3

struct verdict_rank {
    const struct recorder *recorder; /* NULL: it never attached */
    uint64_t ended_ns; /* until when it has waited in an open call */
};

struct verdict_input {
    const struct verdict_rank *ranks; /* [nranks], of this node */
    int nranks;
    int rank_base; /* the first one's rank */
    int world_size;
    int first_failure; /* index of the rank that failed first, or -1 */
    /* What came later is not looked at: workers that are stopped do not end
     * all at once. UINT64_MAX: look at everything. */
    uint64_t as_of_ns;
    /* An operation in which nobody has waited for so long is no hang. */
    uint64_t least_wait_ns;
};

/*
 * Appends a sentence with a newline for each group whose ranks are stuck in an
 * operation, the one nearest to the cause first: "rank 2 never entered
 * all_reduce #17 (1024 float32 sum, default group), in which ranks 0-1,3
 * waited for 2.004 s; its last call was broadcast #16". Nothing where nothing
 * is stuck. 0 or -ENOMEM.
 */
int verdict_write(const struct verdict_input *in, struct buf *out);

#endif
