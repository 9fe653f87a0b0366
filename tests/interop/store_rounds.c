/*
 * A port whose store is replaced on command, as an agent does from round to
 * round: prints the port, then for each line "next" destroys the store with
 * its connections, puts a fresh one behind the port, and answers "round N".
 * The end of the input ends it.
 */
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "rendezvous/base/log.h"
#include "rendezvous/poller.h"
#include "rendezvous/store_port.h"
#include "rendezvous/store_server.h"

struct rounds {
    struct poller *poller;
    struct store_port *port;
    struct store_server *store;
    struct poller_item input;
    char line[16];
    size_t line_len;
    int round;
    int rc; /* 1: go on */
};

static int next_round(struct rounds *r)
{
    int rc;

    store_port_set_store(r->port, NULL);
    store_server_destroy(r->store);
    r->store = NULL;
    rc = store_server_create(&r->store, r->poller, NULL);
    if (rc == 0)
        store_port_set_store(r->port, r->store);
    return rc;
}

static int command(struct rounds *r)
{
    int rc;

    r->line[r->line_len] = '\0';
    r->line_len = 0;
    if (strcmp(r->line, "next") != 0) {
        fprintf(stderr, "store_rounds: unknown command '%s'\n", r->line);
        return -1;
    }
    rc = next_round(r);
    if (rc < 0) {
        fprintf(stderr, "store_rounds: %s\n", strerror(-rc));
        return -1;
    }
    printf("round %d\n", ++r->round);
    return fflush(stdout) == 0 ? 1 : -1;
}

static void input_ready_cb(struct poller_item *item, uint32_t events)
{
    struct rounds *r =
        (struct rounds *)((char *)item - offsetof(struct rounds, input));
    char bytes[64];
    ssize_t n = read(item->fd, bytes, sizeof(bytes));

    (void)events;
    if (n <= 0)
        r->rc = (int)n;
    for (ssize_t i = 0; i < n && r->rc == 1; i++) {
        if (bytes[i] == '\n')
            r->rc = command(r);
        else if (r->line_len + 1 < sizeof(r->line))
            r->line[r->line_len++] = bytes[i];
    }
}

int main(int argc, char **argv)
{
    struct rounds r = {.input.fd = -1, .rc = 1};
    const char *host = argc > 1 ? argv[1] : "127.0.0.1";
    struct err e = {0};
    int port;

    signal(SIGPIPE, SIG_IGN);
    log_init("crund");
    if (poller_create(&r.poller) < 0 ||
        store_port_create(&r.port, r.poller, host, 0, NULL, &port, &e) < 0 ||
        next_round(&r) < 0 ||
        poller_add(r.poller, &r.input, STDIN_FILENO, EPOLLIN, input_ready_cb) <
            0) {
        fprintf(stderr, "store_rounds: cannot start: %s\n", e.msg);
        return 1;
    }
    printf("%d\n", port);
    fflush(stdout);
    while (r.rc == 1)
        if (poller_run(r.poller, -1) < 0)
            r.rc = -1;
    poller_remove(r.poller, &r.input);
    store_port_destroy(r.port);
    store_server_destroy(r.store);
    poller_destroy(r.poller);
    return r.rc == 0 ? 0 : 1;
}
