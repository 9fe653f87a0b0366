/* Random bytes of the kernel, which nobody foresees. */
#ifndef CRUN_RENDEZVOUS_BASE_RANDOM_H
#define CRUN_RENDEZVOUS_BASE_RANDOM_H

#include <stddef.h>

/* len is at most 256: so many come whole. 0 or a negative errno. */
int random_bytes(void *out, size_t len);

#endif
