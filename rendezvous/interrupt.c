/* Waiting that can be ended early; see interrupt.h. */
#include "rendezvous/interrupt.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>

#include "rendezvous/base/clock.h"

static _Thread_local const struct interrupt *current;

void interrupt_set(const struct interrupt *interrupt)
{
    current = interrupt;
}

int interrupt_fd(void)
{
    return current == NULL ? -1 : current->fd();
}

bool interrupt_is_due(void)
{
    return current != NULL && current->is_due();
}

int interrupt_wait(int fd, short events, uint64_t deadline_ns)
{
    for (;;) {
        struct pollfd p[2] = {
            {.fd = fd, .events = events},
            {.fd = -1, .events = POLLIN},
        };
        int left_ms = clock_left_ms(deadline_ns);
        int n;

        /* It may have become due where nobody waited. */
        if (interrupt_is_due())
            return -ECANCELED;
        if (current != NULL)
            p[1].fd = current->fd();
        n = poll(p, 2, left_ms);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0 && p[0].revents != 0)
            return 0;
        if (n == 0 && clock_left_ms(deadline_ns) == 0)
            return -ETIMEDOUT;
    }
}
