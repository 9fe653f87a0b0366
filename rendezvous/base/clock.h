/*
 * The one clock: CLOCK_MONOTONIC. Deadlines are absolute values of it;
 * pure modules never read it but take the time as an argument.
 */
#ifndef CRUN_BASE_CLOCK_H
#define CRUN_BASE_CLOCK_H

#include <stdint.h>

#define CLOCK_NS_PER_MS 1000000ull
#define CLOCK_NS_PER_S 1000000000ull

uint64_t clock_now_ns(void);

/* now + timeout_ms; a negative timeout means "already over", one beyond the
 * clock's range the end of that range. */
uint64_t clock_deadline_ns(int64_t timeout_ms);

/* Milliseconds until deadline_ns, rounded up, for poll(2): 0 when it is
 * over, at most INT_MAX. */
int clock_left_ms(uint64_t deadline_ns);

#endif
