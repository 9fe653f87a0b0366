/*
 * Which protocol a connection speaks, from its first bytes. One port serves
 * the workers' TCPStore, of every age, and the agents' own protocol.
 *
 *   00 CE F7 85 3C   TCPStore of PyTorch 2.2 and newer (VALIDATE). As a
 *                    request of an older one it would be a SET whose key is
 *                    longer than a gigabyte.
 *   89 63 72 75 6E   agents' protocol: no opcode of any TCPStore, then "crun"
 *   00 .. 0B         an opcode of PyTorch 1.13 to 2.1, where that is served
 */
#ifndef CRUN_RENDEZVOUS_STORE_SNIFF_H
#define CRUN_RENDEZVOUS_STORE_SNIFF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/store_codec.h"

/* Bytes after which every connection is recognised or refused. */
#define SNIFF_MAX 5

#define SNIFF_AGENT_MAGIC_LEN 5
extern const uint8_t sniff_agent_magic[SNIFF_AGENT_MAGIC_LEN];

enum sniff {
    SNIFF_MORE, /* cannot tell yet */
    SNIFF_STORE, /* *dialect is set */
    SNIFF_AGENT,
    SNIFF_UNKNOWN,
};

/* What old clients are taken for; STORE_DIALECT_C: they are refused. */
enum sniff sniff(const uint8_t *head, size_t len, enum store_dialect old,
    enum store_dialect *dialect);

#endif
