/*
 * What this process writes to its recorder (rendezvous/recorder.h). Kinds are
 * 1 + coll_kind there, and so are types and reductions.
 */
#ifndef COLL_RECORDER_H
#define COLL_RECORDER_H

#include "backend.h"
#include "rendezvous/recorder.h"

void coll_recorder_name_calls(struct recorder *r);

/* Notes a group that was made, unless it is the default one. */
void coll_recorder_add_group(const struct coll_group *g);

/* Notes a call as it begins, at now_ns; returns what coll_recorder_finish()
 * takes. */
uint64_t coll_recorder_enter(
    const struct coll_group *g, const struct coll_call *call, uint64_t now_ns);

void coll_recorder_finish(
    uint64_t ticket, coll_status_t status, uint64_t entered_ns);

#endif
