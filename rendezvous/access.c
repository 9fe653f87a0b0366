/*
 * See access.h. Inside there is one kind of address, that of IPv6 with IPv4
 * mapped into it: so both forms of an IPv4 address are one, and so is the
 * arithmetic of ranges. Ranges are few, a person has typed them, and they are
 * gone through; addresses are many, a job's nodes, and lie in a hash table.
 */
#include "rendezvous/access.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Out of memory: leave the entry out and let the caller see hh.tbl == NULL,
 * rather than exit. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#define ADDRESS_BITS 128
#define MAPPED_BITS 96 /* in front of a mapped IPv4 address */

/* As much as a message repeats of what it is about. */
#define QUOTED_MAX 64

struct address {
    uint8_t bytes[ADDRESS_BITS / 8];
};

struct range {
    struct address first;
    unsigned prefix_bits;
};

struct entry {
    struct address address;
    UT_hash_handle hh;
};

struct access {
    struct entry *locals; /* owned; NULL: any */
    struct entry *peers; /* owned */
    struct range *ranges; /* owned */
    size_t nranges;
};

static const uint8_t mapped[MAPPED_BITS / 8] = {[10] = 0xff, [11] = 0xff};

static const struct range loopback[] = {
    {{{[15] = 1}}, ADDRESS_BITS},
    {{{[10] = 0xff, [11] = 0xff, [12] = 127}}, MAPPED_BITS + 8},
};

/* --- Addresses and ranges ------------------------------------------------ */

static bool is_ipv4(const struct address *a)
{
    return memcmp(a->bytes, mapped, sizeof(mapped)) == 0;
}

static void map_ipv4(struct address *a, const void *ipv4)
{
    memcpy(a->bytes, mapped, sizeof(mapped));
    memcpy(a->bytes + sizeof(mapped), ipv4, sizeof(struct in_addr));
}

static bool address_from(struct address *out, const struct sockaddr *sa)
{
    struct sockaddr_in6 sin6;
    struct sockaddr_in sin;

    switch (sa->sa_family) {
    case AF_INET:
        memcpy(&sin, sa, sizeof(sin));
        map_ipv4(out, &sin.sin_addr);
        return true;
    case AF_INET6:
        memcpy(&sin6, sa, sizeof(sin6));
        memcpy(out->bytes, &sin6.sin6_addr, sizeof(out->bytes));
        return true;
    default:
        return false;
    }
}

static bool address_parse(struct address *out, const char *text, size_t len)
{
    char copy[INET6_ADDRSTRLEN];
    struct in_addr ipv4;

    if (len >= sizeof(copy))
        return false;
    memcpy(copy, text, len);
    copy[len] = '\0';
    if (inet_pton(AF_INET, copy, &ipv4) == 1) {
        map_ipv4(out, &ipv4);
        return true;
    }
    return inet_pton(AF_INET6, copy, out->bytes) == 1;
}

static bool range_holds(const struct range *r, const struct address *a)
{
    size_t bytes = r->prefix_bits / 8;
    unsigned bits = r->prefix_bits % 8;

    return is_ipv4(a) == is_ipv4(&r->first) &&
           memcmp(a->bytes, r->first.bytes, bytes) == 0 &&
           (bits == 0 ||
               (a->bytes[bytes] ^ r->first.bytes[bytes]) >> (8 - bits) == 0);
}

static bool any_holds(
    const struct range *ranges, size_t n, const struct address *a)
{
    for (size_t i = 0; i < n; i++)
        if (range_holds(&ranges[i], a))
            return true;
    return false;
}

static bool is_loopback(const struct address *a)
{
    return any_holds(loopback, sizeof(loopback) / sizeof(loopback[0]), a);
}

/* --- Sets of addresses --------------------------------------------------- */

static bool set_has(const struct entry *set, const struct address *a)
{
    const struct entry *found;

    HASH_FIND(hh, set, a, sizeof(*a), found);
    return found != NULL;
}

static int set_add(struct entry **set, const struct address *a)
{
    struct entry *entry;

    if (set_has(*set, a))
        return 0;
    entry = calloc(1, sizeof(*entry));
    if (entry == NULL)
        return -ENOMEM;
    entry->address = *a;
    HASH_ADD(hh, *set, address, sizeof(entry->address), entry);
    if (entry->hh.tbl == NULL) {
        free(entry);
        return -ENOMEM;
    }
    return 0;
}

static void set_clear(struct entry **set)
{
    struct entry *entry, *tmp;

    HASH_ITER(hh, *set, entry, tmp)
    {
        HASH_DEL(*set, entry);
        free(entry);
    }
}

/* --- Lists of ranges ------------------------------------------------------ */

/* A number from min to max in at most three digits. */
static bool parse_bits(
    const char *text, size_t len, unsigned min, unsigned max, unsigned *out)
{
    unsigned value = 0;

    if (len < 1 || len > 3)
        return false;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        value = 10 * value + (unsigned)(text[i] - '0');
    }
    *out = value;
    return value >= min && value <= max;
}

static int parse_range(
    struct range *out, const char *text, size_t len, struct err *e)
{
    const char *slash = memchr(text, '/', len);
    size_t address_len = slash != NULL ? (size_t)(slash - text) : len;
    bool is_dotted = memchr(text, ':', address_len) == NULL;
    int quoted = (int)(len < QUOTED_MAX ? len : QUOTED_MAX);
    unsigned max = is_dotted ? ADDRESS_BITS - MAPPED_BITS : ADDRESS_BITS;
    unsigned min = 0;

    if (!address_parse(&out->first, text, address_len))
        return err_set(e, -EINVAL,
            "'%.*s': expected addresses in numbers, or ranges of them, as in "
            "10.0.0.0/8,192.0.2.7,fd00::/8",
            quoted, text);
    /* Written as IPv6, the front of a mapped address belongs to it: one of
     * less would be of neither family. */
    if (!is_dotted && is_ipv4(&out->first))
        min = MAPPED_BITS;
    out->prefix_bits = max;
    if (slash != NULL && !parse_bits(slash + 1, len - address_len - 1, min, max,
                             &out->prefix_bits))
        return err_set(e, -EINVAL,
            "'%.*s': expected a number of bits from %u to %u after the slash",
            quoted, text, min, max);
    if (is_dotted)
        out->prefix_bits += MAPPED_BITS;
    return 0;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* ranges has room for all of them, or is NULL. */
static int parse_list(
    const char *list, struct range *ranges, size_t *count, struct err *e)
{
    size_t n = 0;

    for (const char *next = list; next != NULL; n++) {
        const char *item = next;
        const char *end = item + strcspn(item, ",");
        struct range range;
        int rc;

        next = *end == ',' ? end + 1 : NULL;
        while (item < end && is_blank(*item))
            item++;
        while (item < end && is_blank(end[-1]))
            end--;
        rc = parse_range(&range, item, (size_t)(end - item), e);
        if (rc < 0)
            return rc;
        if (ranges != NULL)
            ranges[n] = range;
    }
    *count = n;
    return 0;
}

int access_check_cidrs(const char *list, struct err *e)
{
    size_t n;

    return parse_list(list, NULL, &n, e);
}

int access_allow_cidrs(struct access *a, const char *list, struct err *e)
{
    struct range *ranges;
    size_t n;
    int rc = parse_list(list, NULL, &n, e);

    if (rc < 0)
        return rc;
    ranges = reallocarray(a->ranges, a->nranges + n, sizeof(*ranges));
    if (ranges == NULL)
        return err_set(e, -ENOMEM, "out of memory");
    a->ranges = ranges;
    parse_list(list, ranges + a->nranges, &n, NULL);
    a->nranges += n;
    return 0;
}

/* --- Access --------------------------------------------------------------- */

int access_create(struct access **out)
{
    struct access *a = calloc(1, sizeof(*a));

    if (a == NULL)
        return -ENOMEM;
    *out = a;
    return 0;
}

void access_free(struct access *a)
{
    if (a == NULL)
        return;
    set_clear(&a->locals);
    set_clear(&a->peers);
    free(a->ranges);
    free(a);
}

int access_limit_local(struct access *a, const struct sockaddr *local)
{
    struct address address;

    if (!address_from(&address, local))
        return -EAFNOSUPPORT;
    return set_add(&a->locals, &address);
}

bool access_is_local_allowed(
    const struct access *a, const struct sockaddr *local)
{
    struct address address;

    if (a->locals == NULL)
        return true;
    return address_from(&address, local) &&
           (is_loopback(&address) || set_has(a->locals, &address));
}

bool access_is_loopback(const struct sockaddr *sa)
{
    struct address address;

    return address_from(&address, sa) && is_loopback(&address);
}

int access_allow_address(struct access *a, const char *text)
{
    /* "fe80::1%eth0": the scope has a meaning where it was written only. */
    size_t len = strchr(text, ':') != NULL ? strcspn(text, "%") : strlen(text);
    struct address address;

    if (!address_parse(&address, text, len))
        return -EINVAL;
    return set_add(&a->peers, &address);
}

void access_clear_addresses(struct access *a)
{
    set_clear(&a->peers);
}

bool access_is_client_allowed(
    const struct access *a, const struct sockaddr *peer)
{
    struct address address;

    return address_from(&address, peer) &&
           (is_loopback(&address) || set_has(a->peers, &address) ||
               any_holds(a->ranges, a->nranges, &address));
}

void access_text(const struct sockaddr *sa, char text[ACCESS_TEXT_SIZE])
{
    struct address a;

    if (!address_from(&a, sa))
        strcpy(text, "?");
    else if (is_ipv4(&a))
        inet_ntop(AF_INET, a.bytes + sizeof(mapped), text, ACCESS_TEXT_SIZE);
    else
        inet_ntop(AF_INET6, a.bytes, text, ACCESS_TEXT_SIZE);
}
