/*
 * What calls that do not wait leave behind: an operation with its turn in the
 * group's line, run by the group's thread; or messages, which the engine of
 * p2p.h moves.
 */
#ifndef COLL_WORK_H
#define COLL_WORK_H

#include "backend.h"
#include "p2p.h"

void coll_work_queue_init(struct coll_work_queue *q);

/* Ends the thread, which has nothing to do any more. */
void coll_work_queue_end(struct coll_work_queue *q);

/* Takes a turn for the call and returns; call->owned is the work's, also on
 * failure. */
coll_status_t coll_work_start(
    coll_work_t **out, struct coll_group *g, const struct coll_call *call);

/* Puts a call of device memory on the group's stream for works; its end there
 * ends the work. */
coll_status_t coll_work_launch(
    coll_work_t **out, struct coll_group *g, struct coll_call *call);
void coll_work_finish(coll_work_t *work, coll_status_t status);

/* Makes a work of n messages, which the caller fills in and then posts; they
 * carry the call, with its deadline. */
coll_status_t coll_work_messages(
    coll_work_t **out, struct coll_group *g, size_t n, struct p2p_op **ops);
void coll_work_post(coll_work_t *work, const struct coll_call *call);

/* Instead of that. */
void coll_work_discard(coll_work_t *work);

/* Fails in a function of coll_work_then(): it may be run by the thread that has
 * to do what it would wait for, or that needs what it would free. function: the
 * public one. */
coll_status_t coll_work_check_thread(const char *function);

#endif
