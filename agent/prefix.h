/*
 * What begins each line of a worker on the console. Pure.
 *
 * A template as Python's string.Template reads it: ${name} or $name, and $$
 * for a dollar. Names: role_name, rank, local_rank, hostname (up to its first
 * dot), time (2026-11-30T12:03:04.567, local). Other names stay as they are.
 */
#ifndef CRUN_AGENT_PREFIX_H
#define CRUN_AGENT_PREFIX_H

#include <stdbool.h>
#include <stdint.h>

#include "rendezvous/base/buf.h"

#define PREFIX_DEFAULT "[${role_name}${local_rank}]:"

struct prefix;

/* Compiles a template; with has_timestamp the time and a blank go in front of
 * it. Borrows nothing. 0 or -ENOMEM. */
int prefix_create(struct prefix **out, const char *template, bool has_timestamp,
    const char *role, const char *hostname);
void prefix_destroy(struct prefix *p);

/* True if it is another one every millisecond. */
bool prefix_has_time(const struct prefix *p);

/* Appends the prefix. rank and local_rank are texts: several ranks can share
 * a line. wall_ns is the time since 1970. 0 or a negative errno. */
int prefix_append(const struct prefix *p, const char *rank,
    const char *local_rank, uint64_t wall_ns, struct buf *out);

#endif
