/* Host and port to addresses of stream sockets. */
#ifndef CRUN_RENDEZVOUS_RESOLVE_H
#define CRUN_RENDEZVOUS_RESOLVE_H

#include <netdb.h>
#include <stdint.h>

/*
 * As getaddrinfo() for TCP; the caller frees *out with freeaddrinfo(). A
 * number is tried first: that loads no name service, which takes longer than
 * the whole start of a server, and cannot block. A name can: the resolver has
 * time-outs of its own and cannot be cut short. So it is looked up in a thread
 * of its own, which ends by itself when the resolver has answered after all.
 * flags is 0 or AI_PASSIVE. Returns 0 or an EAI_ code for gai_strerror(); at
 * the deadline at the latest, then EAI_INPROGRESS.
 */
int resolve_until(const char *host, int port, int flags, uint64_t deadline_ns,
    struct addrinfo **out);

/*
 * Likewise, without waiting. *fd becomes readable when the answer is there;
 * it is closed by the end of the look-up. 0 or a negative errno.
 */
struct lookup;
int resolve_start(struct lookup **out, const char *host, int port, int *fd);

/* The answer, as resolve_until() has it; EAI_INPROGRESS if there is none yet:
 * then nobody wants it any more. */
int resolve_end(struct lookup *l, struct addrinfo **out);

#endif
