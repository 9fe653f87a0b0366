/*
 * A store without a group: the first process hosts it, the others find it, and
 * they share out numbered pieces of work, each to whoever is free.
 *
 *     store host 4711 &
 *     store work 4711 & store work 4711 &
 *
 * The host prints how many pieces each worker has done.
 */
#include <collective.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECES = 20, WORKERS = 2 };

static int fail(void)
{
    fprintf(stderr, "%s\n", coll_last_error());
    return 1;
}

static int host(coll_store_t *store)
{
    for (int i = 0; i < WORKERS; i++) {
        void *report;
        size_t len;

        if (coll_store_queue_pop(store, "reports", &report, &len, 0) != COLL_OK)
            return fail();
        printf("%s\n", (char *)report);
        free(report);
    }
    return 0;
}

static int work(coll_store_t *store)
{
    char report[64];
    int64_t piece;
    int done = 0;

    for (;;) {
        if (coll_store_add(store, "next", 1, &piece) != COLL_OK)
            return fail();
        if (piece > PIECES)
            break;
        usleep(1000); /* the work */
        done++;
    }
    snprintf(
        report, sizeof(report), "worker %d: %d pieces", (int)getpid(), done);
    if (coll_store_queue_push(store, "reports", report, strlen(report)) !=
        COLL_OK)
        return fail();
    return 0;
}

int main(int argc, char **argv)
{
    coll_store_options_t options = COLL_STORE_OPTIONS_INIT;
    coll_store_t *store;
    int rc;

    if (argc != 3) {
        fprintf(stderr, "usage: store host|work PORT\n");
        return 2;
    }
    options.is_host = strcmp(argv[1], "host") == 0;
    options.timeout_ms = 60000;
    options.world_size = WORKERS + 1; /* so the host stays for the others */
    if (coll_store_tcp(&store, "localhost", (int)strtol(argv[2], NULL, 10),
            &options) != COLL_OK)
        return fail();
    rc = options.is_host ? host(store) : work(store);
    coll_store_close(store);
    return rc;
}
