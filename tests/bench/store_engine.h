/*
 * Many connections in one thread that make one kind of request as fast as the
 * answers come. The same for every server, so that what the client costs is
 * the same too.
 *
 * A failure ends the program: every request here has to succeed.
 */
#ifndef CRUN_BENCH_STORE_ENGINE_H
#define CRUN_BENCH_STORE_ENGINE_H

#include <stdint.h>

#include "tests/bench/store_bench.h"

/* ECHO: the bytes of TCPSTORE at a server that knows only their number. */
enum engine_protocol {
    ENGINE_TCPSTORE, /* as PyTorch 2.2 and newer speak it */
    ENGINE_TCPSTORE_A, /* 1.13 and 2.0 */
    ENGINE_REDIS,
    ENGINE_ECHO,
};

/*
 * SET has no answer in TCPStore: a PING (A: GETNUMKEYS) in the same segment
 * stands for it, as redis' +OK does. WAIT_GET is what PyTorch's clients do:
 * one round trip for WAIT, then one for GET; it is no request of redis.
 */
enum engine_op { ENGINE_SET, ENGINE_GET, ENGINE_WAIT_GET, ENGINE_ADD };

struct engine_spec {
    enum engine_protocol protocol;
    enum engine_op op;
    size_t value_len; /* of SET and the GETs */
    int clients;
    int in_flight; /* requests of one client at a time; 1 for WAIT_GET */
};

struct engine;

/* -1 if there is no such thing. */
int engine_protocol_by_name(const char *name);
int engine_op_by_name(const char *name);

/* Connects all clients, each with a key of its own, which exists then. */
struct engine *engine_create(
    const struct sockaddr_in *server, const struct engine_spec *spec);
void engine_destroy(struct engine *e);

/* Works for at least so long and returns how many operations were completed.
 * *took_ns: the time that really was. latencies may be NULL. */
uint64_t engine_run(struct engine *e, uint64_t run_ns,
    struct bench_hist *latencies, uint64_t *took_ns);

#endif
