/*
 * A reason to wait no longer that comes from elsewhere. While a thread has
 * set an interrupt, whatever waits in it through interrupt_wait() ends with
 * -ECANCELED as soon as the interrupt is due; the store's client does.
 * It belongs to the thread because those who know the reason and those who
 * wait are many calls apart, and nobody in between has to do with it.
 */
#ifndef CRUN_RENDEZVOUS_INTERRUPT_H
#define CRUN_RENDEZVOUS_INTERRUPT_H

#include <stdbool.h>
#include <stdint.h>

struct interrupt {
    int (*fd)(void); /* readable: ask is_due; -1: there is none */
    bool (*is_due)(void); /* takes in what made it readable */
};

/* For the calling thread. Borrowed; NULL: none. */
void interrupt_set(const struct interrupt *interrupt);

/* What becomes readable when it may be due; -1: nothing. */
int interrupt_fd(void);

/* For pauses that are short by themselves. */
bool interrupt_is_due(void);

/*
 * Waits for events of poll(2) on fd; -1: only until the deadline. 0,
 * -ETIMEDOUT, -ECANCELED or another negative errno. Signals do not end it.
 */
int interrupt_wait(int fd, short events, uint64_t deadline_ns);

#endif
