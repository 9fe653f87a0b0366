/* What a client tells the echo server at the start of a connection: the
 * requests that will come, in turn, and the answer to each. */
#ifndef CRUN_BENCH_STORE_ECHO_H
#define CRUN_BENCH_STORE_ECHO_H

#include <stdint.h>

#define ECHO_STEPS 2

/* As it lies in memory: both ends are on one machine. */
struct echo_plan {
    uint32_t steps; /* 1 or 2 */
    uint32_t request_len[ECHO_STEPS];
    uint32_t reply_len[ECHO_STEPS]; /* 0: no answer */
};

#endif
