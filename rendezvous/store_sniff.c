/* See store_sniff.h. */
#include "rendezvous/store_sniff.h"

#include <string.h>

const uint8_t sniff_agent_magic[SNIFF_AGENT_MAGIC_LEN] = {
    0x89, 'c', 'r', 'u', 'n'};

_Static_assert(
    SNIFF_AGENT_MAGIC_LEN <= SNIFF_MAX && STORE_GREETING_LEN <= SNIFF_MAX,
    "SNIFF_MAX bytes decide");

/* Whether head begins with magic, as far as it goes. */
static bool may_be(
    const uint8_t *head, size_t len, const uint8_t *magic, size_t magic_len)
{
    return memcmp(head, magic, len < magic_len ? len : magic_len) == 0;
}

enum sniff sniff(const uint8_t *head, size_t len, enum store_dialect old,
    enum store_dialect *dialect)
{
    if (len == 0)
        return SNIFF_MORE;
    if (may_be(head, len, store_greeting, STORE_GREETING_LEN)) {
        if (len < STORE_GREETING_LEN)
            return SNIFF_MORE;
        *dialect = STORE_DIALECT_C;
        return SNIFF_STORE;
    }
    if (may_be(head, len, sniff_agent_magic, SNIFF_AGENT_MAGIC_LEN))
        return len < SNIFF_AGENT_MAGIC_LEN ? SNIFF_MORE : SNIFF_AGENT;
    if (old == STORE_DIALECT_C || store_op_of(old, head[0]) < 0)
        return SNIFF_UNKNOWN;
    *dialect = old;
    return SNIFF_STORE;
}
