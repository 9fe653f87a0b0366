/*
 * Who may connect to a port that several nodes can reach: at which addresses
 * of this machine a connection may come in, and from which ones TCPStore
 * clients may come. Loopback always is one of them. This keeps out who has
 * lost the way and who looks for open ports; it proves nothing about who
 * somebody is.
 *
 * An IPv4 address is the same in its IPv6-mapped form; ports and scopes do not
 * count. No name is looked up. For one thread.
 */
#ifndef CRUN_RENDEZVOUS_ACCESS_H
#define CRUN_RENDEZVOUS_ACCESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "rendezvous/base/err.h"

struct access;

/* At first: connections may come in anywhere, clients from loopback alone. */
int access_create(struct access **out);

/* Takes NULL. */
void access_free(struct access *a);

/* --- At which local address ---------------------------------------------- */

/* One more address of this machine where connections may come in; from the
 * first on they may not at others. -EAFNOSUPPORT for what is no IP address,
 * -ENOMEM. */
int access_limit_local(struct access *a, const struct sockaddr *local);

bool access_is_local_allowed(
    const struct access *a, const struct sockaddr *local);

/* --- From which peer ------------------------------------------------------ */

/*
 * A list of addresses and ranges of them, "10.0.0.0/8,192.0.2.7,fd00::/8",
 * maybe with blanks around each. An address stands for itself; bits behind
 * the prefix do not count. Ranges are of one family: "::/0" holds no IPv4
 * address. 0, or -EINVAL with what was given and what is expected.
 */
int access_check_cidrs(const char *list, struct err *e);

/* Clients may come from there, too. After an error nothing has changed. */
int access_allow_cidrs(struct access *a, const char *list, struct err *e);

/* One more address that clients may come from, in numbers. -EINVAL if it is
 * something else, -ENOMEM. How many there are is for the caller to bound. */
int access_allow_address(struct access *a, const char *text);

/* Forgets what access_allow_address() was given. */
void access_clear_addresses(struct access *a);

bool access_is_client_allowed(
    const struct access *a, const struct sockaddr *peer);

/* An address of this machine for itself. */
bool access_is_loopback(const struct sockaddr *sa);

/* --- For messages --------------------------------------------------------- */

#define ACCESS_TEXT_SIZE INET6_ADDRSTRLEN

/* The address as access_allow_address() takes it; "?" if it is no IP
 * address. */
void access_text(const struct sockaddr *sa, char text[ACCESS_TEXT_SIZE]);

#endif
