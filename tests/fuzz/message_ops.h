/*
 * What the fuzz targets of messages between ranks share: a script of bytes, and
 * the operations that it asks for.
 */
#ifndef CRUN_TESTS_FUZZ_MESSAGE_OPS_H
#define CRUN_TESTS_FUZZ_MESSAGE_OPS_H

#include <stdint.h>

#include "worker/p2p_internal.h"

enum { MESSAGE_RANKS = 3, MESSAGE_OPS_MAX = 64 };

struct script {
    const uint8_t *at;
    size_t left;
    struct p2p *p;
    struct p2p_op *ops[MESSAGE_OPS_MAX];
    int ops_count;
};

/* 0 at the end. */
uint8_t script_next(struct script *s);
uint32_t script_number(struct script *s, int bytes);

/* Posts a send or a receive, as the bits of what and the next bytes say, if
 * there may be one more. */
void script_start(struct script *s, uint8_t what);

/* What the engine has counted is what there is. Ends what is done: from then on
 * nobody may look at it. */
void script_check(struct script *s);

/* Destroys the engine; what is not done fails. */
void script_end(struct script *s);

#endif
