/* See clock.h. */
#include "rendezvous/base/clock.h"

#include <limits.h>
#include <time.h>

uint64_t clock_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * CLOCK_NS_PER_S + (uint64_t)ts.tv_nsec;
}

uint64_t clock_deadline_ns(int64_t timeout_ms)
{
    uint64_t now = clock_now_ns();

    if (timeout_ms <= 0)
        return now;
    if ((uint64_t)timeout_ms > (UINT64_MAX - now) / CLOCK_NS_PER_MS)
        return UINT64_MAX;
    return now + (uint64_t)timeout_ms * CLOCK_NS_PER_MS;
}

int clock_left_ms(uint64_t deadline_ns)
{
    uint64_t now = clock_now_ns();
    uint64_t left_ms;

    if (deadline_ns <= now)
        return 0;
    left_ms = (deadline_ns - now - 1) / CLOCK_NS_PER_MS + 1;
    return left_ms > INT_MAX ? INT_MAX : (int)left_ms;
}
