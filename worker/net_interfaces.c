/* See net_interfaces.h. The rules are NCCL's: those of its documentation and,
 * where that is silent, of its versions 2.18 to 2.30. */
#include "worker/net_interfaces.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

/* --- Names ---------------------------------------------------------------- */

static bool is_in_list(
    const char *list, const char *interface, bool is_exact, bool *is_empty)
{
    size_t name_len = strlen(interface);

    *is_empty = true;
    while (*list != '\0') {
        size_t entry_len = strcspn(list, ",");
        size_t len = strcspn(list, ":,"); /* what follows is a port of IB */

        if (len > 0) {
            *is_empty = false;
            if (strncmp(list, interface, len) == 0 &&
                (!is_exact || len == name_len))
                return true;
        }
        list += entry_len;
        list += *list == ',';
    }
    return false;
}

bool net_interfaces_allows(const char *names, const char *interface)
{
    bool is_excluded, is_exact, is_found, is_empty;

    if (names == NULL || strlen(names) < 2)
        return true;
    is_excluded = *names == '^';
    names += is_excluded;
    is_exact = *names == '=';
    names += is_exact;
    is_found = is_in_list(names, interface, is_exact, &is_empty);
    /* A list without a name is one of all names. */
    return (is_found || is_empty) != is_excluded;
}

/* --- Interfaces ----------------------------------------------------------- */

/* An address that NCCL could use if the interface is running and allowed. */
static bool has_address(const struct ifaddrs *at, const char *family)
{
    const struct sockaddr_in6 *v6;
    int wanted = 0;

    if (family != NULL && strcmp(family, "AF_INET") == 0)
        wanted = AF_INET;
    else if (family != NULL && strcmp(family, "AF_INET6") == 0)
        wanted = AF_INET6;
    if (at->ifa_addr == NULL ||
        (wanted != 0 && at->ifa_addr->sa_family != wanted))
        return false;
    if (at->ifa_addr->sa_family == AF_INET)
        return true;
    v6 = (const struct sockaddr_in6 *)(const void *)at->ifa_addr;
    return at->ifa_addr->sa_family == AF_INET6 &&
           !IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

/* The first of the addresses of its interface? */
static bool is_first(
    const struct ifaddrs *all, const struct ifaddrs *at, const char *family)
{
    while (
        strcmp(all->ifa_name, at->ifa_name) != 0 || !has_address(all, family))
        all = all->ifa_next;
    return all == at;
}

static void describe(const struct ifaddrs *at, char *text, size_t size)
{
    const struct sockaddr *address = at->ifa_addr;
    const void *bytes =
        address->sa_family == AF_INET
            ? (const void *)&((const struct sockaddr_in *)(const void *)address)
                  ->sin_addr
            : (const void *)&(
                  (const struct sockaddr_in6 *)(const void *)address)
                  ->sin6_addr;
    char number[INET6_ADDRSTRLEN];

    if (inet_ntop(address->sa_family, bytes, number, sizeof(number)) == NULL)
        number[0] = '\0';
    snprintf(text, size, "%s (%s%s)", at->ifa_name, number,
        at->ifa_flags & IFF_RUNNING ? "" : ", not running");
}

bool net_interfaces_choose(const struct ifaddrs *all, const char *names,
    const char *family, char *text, size_t size)
{
    static const char more[] = ", ...";
    bool is_found = false;
    bool is_full = false;
    size_t len = 0;

    snprintf(text, size, "none");
    for (const struct ifaddrs *at = all; at != NULL; at = at->ifa_next) {
        char one[IF_NAMESIZE + INET6_ADDRSTRLEN + 32];
        const char *comma = len > 0 ? ", " : "";

        if (!has_address(at, family))
            continue;
        is_found = is_found || (at->ifa_flags & IFF_RUNNING &&
                                   net_interfaces_allows(names, at->ifa_name));
        if (is_full || !is_first(all, at, family))
            continue;
        describe(at, one, sizeof(one));
        /* Room for the sign that there are more is kept. */
        is_full = len + strlen(comma) + strlen(one) + sizeof(more) > size;
        len += (size_t)snprintf(text + len, size - len, "%s%s",
            is_full ? "" : comma, is_full ? more + (len > 0 ? 0 : 2) : one);
    }
    return is_found;
}

int net_interfaces_check(
    const char *names, const char *family, char *text, size_t size)
{
    struct ifaddrs *all;
    bool is_found;

    snprintf(text, size, "unknown");
    if (getifaddrs(&all) < 0)
        return -errno;
    is_found = net_interfaces_choose(all, names, family, text, size);
    freeifaddrs(all);
    return is_found;
}
