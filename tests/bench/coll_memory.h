/*
 * How fast this machine's memory is, and how much of it an operation needs.
 */
#ifndef CRUN_BENCH_COLL_MEMORY_H
#define CRUN_BENCH_COLL_MEMORY_H

#include <stddef.h>

#include "tests/bench/coll_turn.h"

/*
 * Copies bytes with memcpy() in each of n threads at once, a few times, each
 * thread between two buffers of its own. Returns the bytes that were read and
 * written, per microsecond; 0, having printed why, if it cannot.
 */
double bench_memory_bandwidth(int n, size_t bytes);

/*
 * The bytes that the processors must read and write, together, in one
 * operation of this size on n ranks that see each other's memory:
 *
 *   all_reduce      each of the n inputs is read once, each of the n outputs
 *                   written once: 2 n S
 *   broadcast       n - 1 ranks read the root's and write their own:
 *                   2 (n - 1) S
 *   all_gather      every rank reads n parts of S/n and writes them: 2 n S
 *   reduce_scatter  n inputs are read, n parts of S/n are written: (n + 1) S
 *   all_to_all      as all_gather: 2 n S
 *   ping_pong,      n/2 pairs with one message of S under way, read and
 *   stream          written once: n S
 *
 * 0 for other operations. What is still in a cache costs less, so small
 * operations can seem to be faster than the memory.
 */
double bench_memory_bytes(enum bench_op op, int n, size_t bytes);

#endif
