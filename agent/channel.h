/*
 * The agent's end of the agent channel (rendezvous/agent_channel.h): workers
 * that use libcollective attach here, get memory for their recorder, are
 * told of a failure at once, and say when a call of theirs failed on account
 * of somebody else.
 */
#ifndef CRUN_AGENT_CHANNEL_H
#define CRUN_AGENT_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#include "rendezvous/base/err.h"

struct channel;
struct recorder;

struct channel_callbacks {
    /* A worker of this round has attached; from now on it is told. */
    void (*attached)(void *arg, int local_rank);
    /* A call of its failed because of another rank, in its own words. */
    void (*collateral)(void *arg, int local_rank, const char *why);
};

/* What workers are told when somebody has failed. */
struct channel_failure {
    int rank; /* global */
    int local_rank;
    const char *host;
    const char *cause; /* "signal 9 (SIGKILL)" */
};

/* Listens for the workers of rounds of nproc ranks each. */
int channel_create(struct channel **out, uv_loop_t *loop, int nproc,
    const struct channel_callbacks *callbacks, void *arg, struct err *e);

/* What CRUN_AGENT says to the workers: of one round, so ask anew for each. */
const char *channel_name(const struct channel *c);

/* Forgets the round before: its connections are closed, its recorders
 * dropped, and who attaches for it is refused. */
void channel_begin_round(struct channel *c, int round, int rank_base);

/*
 * Takes in at once what the loop has not come to yet of a rank. For when a
 * worker has ended: what it said before, that it has attached or that a call
 * of its failed, is then known before its end is judged.
 */
void channel_catch_up(struct channel *c, int local_rank);

/* Tells every attached worker, and those who attach later in this round.
 * Nothing blocks: whoever does not read is skipped. */
void channel_tell_failure(
    struct channel *c, const struct channel_failure *failure);

/*
 * What a worker's recorder says, after its death too, for a person:
 * "all_reduce #17 of 1024 float32, not finished" or "barrier #3, finished".
 * Returns false if it never attached or recorded nothing. Takes NULL for c.
 */
bool channel_last_call(
    const struct channel *c, int local_rank, char *out, size_t size);

/* The recorder itself, until the next round; NULL if the worker never
 * attached. */
const struct recorder *channel_recorder(
    const struct channel *c, int local_rank);

/* Closes the handles; run the loop until it is empty. Takes NULL. */
void channel_destroy(struct channel *c);

#endif
