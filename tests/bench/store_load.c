/*
 * Measures one server at one kind of request and prints one line:
 *
 *   ops_s=81234 p50_us=11.2 p99_us=17.9 server_us=5.3
 *
 * server_us is the CPU time of the server's process for each operation.
 *
 *     store_load [options] ADDRESS:PORT
 *       -p PROTOCOL   tcpstore (default), tcpstore-a, redis, echo
 *       -o OPERATION  set (default), get, wait_get, add
 *       -v BYTES      length of values (64)
 *       -c CLIENTS    (1)
 *       -f REQUESTS   in flight of each client (1)
 *       -d MS         how long to measure (300)
 *       -s PID        the server's process
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/store_bench.h"
#include "tests/bench/store_engine.h"

#define VALUE_MAX (8l << 20)
#define WARM_UP_NS (NS_PER_S / 20)

static struct bench_hist latencies;

static int named(int found, const char *name)
{
    if (found < 0)
        bench_die("there is no '%s'", name);
    return found;
}

int main(int argc, char **argv)
{
    struct engine_spec spec = {.value_len = 64, .clients = 1, .in_flight = 1};
    uint64_t run_ns = 3 * NS_PER_S / 10;
    uint64_t done, took_ns, cpu_ns = 0;
    struct sockaddr_in server;
    struct engine *e;
    pid_t pid = 0;
    int option;

    while ((option = getopt(argc, argv, "p:o:v:c:f:d:s:")) != -1) {
        switch (option) {
        case 'p':
            spec.protocol = named(engine_protocol_by_name(optarg), optarg);
            break;
        case 'o':
            spec.op = named(engine_op_by_name(optarg), optarg);
            break;
        case 'v':
            spec.value_len = (size_t)bench_number(optarg, 1, VALUE_MAX);
            break;
        case 'c':
            spec.clients = (int)bench_number(optarg, 1, 10000);
            break;
        case 'f':
            spec.in_flight = (int)bench_number(optarg, 1, 10000);
            break;
        case 'd':
            run_ns = (uint64_t)bench_number(optarg, 1, 60000) * 1000000;
            break;
        case 's':
            pid = (pid_t)bench_number(optarg, 1, 1l << 30);
            break;
        default:
            return 2;
        }
    }
    if (optind + 1 != argc)
        bench_die("wants one ADDRESS:PORT");
    server = bench_address(argv[optind]);
    e = engine_create(&server, &spec);
    engine_run(e, WARM_UP_NS, NULL, &took_ns);
    if (pid != 0)
        cpu_ns = bench_cpu_ns(pid);
    done = engine_run(e, run_ns, &latencies, &took_ns);
    if (pid != 0)
        cpu_ns = bench_cpu_ns(pid) - cpu_ns;
    engine_destroy(e);

    if (done == 0)
        bench_die("not one answer within %.1f s", (double)took_ns / 1e9);
    printf("ops_s=%.0f p50_us=%.1f p99_us=%.1f", //
        (double)done * 1e9 / (double)took_ns, bench_hist_us(&latencies, 0.5),
        bench_hist_us(&latencies, 0.99));
    if (pid != 0)
        printf(" server_us=%.2f", (double)cpu_ns / 1e3 / (double)done);
    putchar('\n');
    return 0;
}
