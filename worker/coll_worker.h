/* Who this process is and where it meets the others: what coll_init() is told
 * by its options, by init_method, and by the environment. */
#ifndef COLL_WORKER_H
#define COLL_WORKER_H

#include <collective.h>
#include <stdbool.h>

enum coll_meeting { COLL_MEETING_TCP, COLL_MEETING_FILE };

struct coll_worker {
    int rank;
    int world_size;
    int local_rank;
    int restart_count;
    /* What the launcher says of its nodes, unless the program has defined a
     * world of its own. */
    int node; /* GROUP_RANK, or -1 */
    bool is_one_node; /* LOCAL_WORLD_SIZE is all */
    /* With one rank there is no meeting, and the rest is not set. */
    enum coll_meeting meeting;
    char place[4096]; /* host or path */
    int port;
    bool has_agent_store; /* the launcher hosts it, not rank 0 */
};

coll_status_t coll_worker_read(
    struct coll_worker *w, const coll_options_t *options);

#endif
