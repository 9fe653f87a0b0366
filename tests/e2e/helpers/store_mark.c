/*
 * Looks for a key in the store that the launcher hosts, prints whether it was
 * there (1) or not (0), and sets it.
 *
 *     store_mark KEY
 */
#include <collective.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    const coll_store_options_t options = {.timeout_ms = 20000};
    const char *addr = getenv("MASTER_ADDR");
    const char *port = getenv("MASTER_PORT");
    coll_store_t *store = NULL;
    const char *key;
    coll_status_t status;
    bool is_there = false;

    if (argc != 2 || addr == NULL || port == NULL) {
        fprintf(stderr, "usage: store_mark KEY, below a launcher\n");
        return 2;
    }
    key = argv[1];
    status =
        coll_store_tcp(&store, addr, (int)strtol(port, NULL, 10), &options);
    if (status == COLL_OK)
        status = coll_store_check(store, &key, 1, &is_there);
    if (status == COLL_OK)
        status = coll_store_set(store, key, "x", 1);
    if (status != COLL_OK)
        fprintf(stderr, "%s\n", coll_last_error());
    else
        printf("%d\n", is_there);
    coll_store_close(store);
    return status != COLL_OK;
}
