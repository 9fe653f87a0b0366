/* See random.h. */
#include "rendezvous/base/random.h"

#include <errno.h>
#include <sys/random.h>

int random_bytes(void *out, size_t len)
{
    ssize_t n;

    /* Early at boot, while the kernel still gathers entropy, none at all come
     * if a signal arrives. */
    do {
        n = getrandom(out, len, 0);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : 0;
}
