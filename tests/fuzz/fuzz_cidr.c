/*
 * A list of addresses and ranges of arbitrary bytes. Whatever they are:
 * nothing crashes, a list is taken whole or refused with a reason and nothing
 * changed, every address that an accepted list names is let in, and a list of
 * one range keeps out what differs from it in the last bit of the prefix.
 */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "rendezvous/access.h"

#define LIST_MAX 1024

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An address as this test reads it: bits of one family. */
struct named {
    int family;
    unsigned nbits;
    uint8_t bytes[16];
};

static bool is_let_in(const struct access *a, const struct named *n)
{
    struct sockaddr_in sin = {.sin_family = AF_INET};
    struct sockaddr_in6 sin6 = {.sin6_family = AF_INET6};

    memcpy(&sin.sin_addr, n->bytes, sizeof(sin.sin_addr));
    memcpy(&sin6.sin6_addr, n->bytes, sizeof(sin6.sin6_addr));
    return access_is_client_allowed(a, n->family == AF_INET
                                           ? (struct sockaddr *)&sin
                                           : (struct sockaddr *)&sin6);
}

/* Of one item of an accepted list; returns the length of the prefix. */
static unsigned read_item(struct named *n, const char *item, size_t len)
{
    char text[64];
    char *bits;

    while (len > 0 && strchr(" \t", *item) != NULL) {
        item++;
        len--;
    }
    while (len > 0 && strchr(" \t", item[len - 1]) != NULL)
        len--;
    assert(len < sizeof(text));
    memcpy(text, item, len);
    text[len] = '\0';
    bits = strchr(text, '/');
    if (bits != NULL)
        *bits++ = '\0';
    n->family = strchr(text, ':') != NULL ? AF_INET6 : AF_INET;
    n->nbits = n->family == AF_INET6 ? 128 : 32;
    assert(inet_pton(n->family, text, n->bytes) == 1);
    return bits != NULL ? (unsigned)atoi(bits) : n->nbits;
}

static bool is_loopback(const struct named *n)
{
    struct in6_addr in6;

    if (n->family == AF_INET)
        return n->bytes[0] == 127;
    memcpy(&in6, n->bytes, sizeof(in6));
    return IN6_IS_ADDR_LOOPBACK(&in6) ||
           (IN6_IS_ADDR_V4MAPPED(&in6) && n->bytes[12] == 127);
}

static void check_list(const struct access *a, const char *list)
{
    struct named n;
    const char *item = list;

    while (true) {
        size_t len = strcspn(item, ",");
        unsigned prefix = read_item(&n, item, len);

        assert(prefix <= n.nbits);
        assert(is_let_in(a, &n));
        for (unsigned bit = prefix; bit < n.nbits; bit++) {
            struct named other = n;
            struct in6_addr in6;

            other.bytes[bit / 8] ^= 0x80 >> bit % 8;
            /* Mapped, it would be of the other family. */
            memcpy(&in6, other.bytes, sizeof(in6));
            assert(is_let_in(a, &other) ||
                   (n.family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&in6)));
        }
        if (item == list && item[len] == '\0' && prefix > 0) {
            n.bytes[(prefix - 1) / 8] ^= 0x80 >> (prefix - 1) % 8;
            assert(is_let_in(a, &n) == is_loopback(&n));
        }
        if (item[len] == '\0')
            break;
        item += len + 1;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct named before = {AF_INET, 32, {192, 0, 2, 7}};
    struct err checked = {0}, allowed = {0};
    struct access *a = NULL;
    char *list;
    int rc;

    /* Each bit of each item is tried against all items. */
    if (size > LIST_MAX)
        return 0;
    list = malloc(size + 1);
    if (list == NULL || access_create(&a) < 0) {
        free(list);
        return -1;
    }
    if (size > 0)
        memcpy(list, data, size);
    list[size] = '\0';
    rc = access_check_cidrs(list, &checked);
    assert(access_allow_cidrs(a, list, &allowed) == rc);
    assert(strcmp(checked.msg, allowed.msg) == 0);
    if (rc == 0) {
        check_list(a, list);
    } else {
        assert(rc == -EINVAL && checked.msg[0] != '\0');
        assert(!is_let_in(a, &before));
    }
    assert(access_allow_address(a, "192.0.2.7") == 0);
    assert(is_let_in(a, &before));
    rc = access_allow_address(a, list);
    assert(rc == 0 || rc == -EINVAL);
    access_free(a);
    free(list);
    return 0;
}
