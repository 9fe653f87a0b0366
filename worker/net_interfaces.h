/*
 * Which network interfaces NCCL finds by NCCL_SOCKET_IFNAME: for the error that
 * says why it found none. NCCL itself says only that.
 */
#ifndef CRUN_WORKER_NET_INTERFACES_H
#define CRUN_WORKER_NET_INTERFACES_H

#include <ifaddrs.h>
#include <stdbool.h>
#include <stddef.h>

/*
 * Whether that variable, names, allows an interface. Prefixes with commas
 * between them, each up to a colon, of which one has to match: behind a leading
 * "=" as a whole, and behind a leading "^" none may match; "^=" is both. NULL,
 * and less than two characters, which NCCL ignores, allow all. Pure.
 */
bool net_interfaces_allows(const char *names, const char *interface);

/*
 * Whether NCCL finds one among those of all, as getifaddrs() makes it, with
 * these names and a family (NCCL_SOCKET_FAMILY: "AF_INET", "AF_INET6"; NULL or
 * anything else: both). text, of size bytes, then has all that it could be told
 * to use, with an address each, and of the others with an address why not:
 *
 *     eth0 (192.0.2.7), eth1 (192.0.2.9, not running), lo (127.0.0.1)
 *
 * "none" if there are none, and with "..." at the end if there was no room for
 * the rest. Pure.
 */
bool net_interfaces_choose(const struct ifaddrs *all, const char *names,
    const char *family, char *text, size_t size);

/* The same for those of this machine: 1, 0, or a negative errno, and text is
 * "unknown" then. */
int net_interfaces_check(
    const char *names, const char *family, char *text, size_t size);

#endif
