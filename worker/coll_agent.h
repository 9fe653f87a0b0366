/*
 * This process's end of the agent channel (rendezvous/agent_channel.h), from
 * coll_init() to coll_destroy(), and its recorder. Without an agent that
 * answers the recorder is private memory, and the rest does nothing.
 *
 * There is no thread: whoever waits watches coll_agent_fd() along with what
 * it waits for, and asks coll_agent_is_told() when that becomes readable.
 */
#ifndef COLL_AGENT_H
#define COLL_AGENT_H

#include <collective.h>

#include "rendezvous/interrupt.h"
#include "rendezvous/recorder.h"

/* How long an agent may take to answer. It does at once; one that is stopped
 * must not keep the workers from starting. */
#define COLL_AGENT_ANSWER_MS 1000

/* The end of a rank is seen by its peers before its launcher can tell of it:
 * so long they wait for the cause. */
#define COLL_AGENT_CAUSE_MS 1000

/* Attaches as the worker that the launcher's variables say this is. Never
 * fails. Not beside any other call of the library. */
void coll_agent_attach(void);
void coll_agent_detach(void);

/* Readable when the agent has said something; -1: it never will. Stays open,
 * and out of poll() once it is -1, until coll_agent_detach(). */
int coll_agent_fd(void);

/* Takes in what the agent has said. True: a rank has failed. Cheap after
 * that; else a system call, so ask when the descriptor is readable, or before
 * a sleep. From any thread. */
bool coll_agent_is_told(void);

/* A rank has ended and nobody said why: waits a moment for the agent to say
 * it. As coll_agent_is_told(). */
bool coll_agent_await_cause(void);

/* Fails in the agent's words, which it has said; call is "all_reduce #17". */
coll_status_t coll_agent_fail(const char *call);

/* Ends the waiting for the store while coll_init() runs. */
extern const struct interrupt coll_agent_interrupt;

/* A wait has ended with -ECANCELED: fails in the agent's words, or in those
 * that another interrupt has left as the thread's sentence when it was due. */
coll_status_t coll_agent_fail_canceled(const char *call);

/* A sleep that the agent can end. COLL_OK, or coll_agent_fail(). */
coll_status_t coll_agent_pause(const char *call, long ms);

/* --- What this rank says -------------------------------------------------- */

/* Never NULL; the same from one coll_agent_attach() to the next, also without
 * an agent and after coll_agent_detach(). */
struct recorder *coll_agent_recorder(void);

/* The same for whoever may run beside coll_agent_attach(), which waits while
 * it is held. */
const struct recorder *coll_agent_hold_recorder(void);
void coll_agent_release_recorder(void);

/* A call has failed with this status, and the thread's error sentence: says so
 * if it was on account of another rank. Does not block. */
void coll_agent_note_failure(coll_status_t status);

#endif
