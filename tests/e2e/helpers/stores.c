/*
 * stores METHOD|env|second PORT|crash METHOD
 *
 * A worker that meets the others and uses a store.
 *
 *     METHOD       coll_init() with that init_method
 *     env          coll_init() without one; rank 0 leaves first, and the others
 *                  use the store when it has
 *     second PORT  coll_init() without one; then rank 0 hosts a second store at
 *                  that port, and all meet in it
 *     crash METHOD as METHOD, but every rank then ends at once, with status 9
 *
 * Prints "rank R of N ok".
 */
#include <collective.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, coll_last_error());
    return 1;
}

/* Every rank sets a key and sees those of all. */
static coll_status_t meet_in(coll_store_t *base)
{
    coll_store_t *store;
    char key[16];
    coll_status_t status = coll_store_prefix(&store, "stores", base);

    if (status != COLL_OK)
        return status;
    snprintf(key, sizeof(key), "%d", coll_rank(NULL));
    status = coll_store_set(store, key, key, strlen(key));
    for (int r = 0; status == COLL_OK && r < coll_world_size(NULL); r++) {
        void *value;
        size_t len;

        snprintf(key, sizeof(key), "%d", r);
        status = coll_store_get(store, key, &value, &len);
        if (status == COLL_OK)
            free(value);
    }
    coll_store_close(store);
    return status;
}

/* A group is made through the store as well. */
static coll_status_t meet_in_group(void)
{
    coll_group_t *group;
    coll_status_t status = coll_group_split(
        &group, NULL, coll_rank(NULL) % 2, coll_rank(NULL), NULL);

    if (status == COLL_OK)
        status = coll_barrier(group);
    if (status == COLL_OK)
        status = coll_group_destroy(group);
    return status;
}

static int leave_in_turn(void)
{
    coll_store_t *store = coll_default_store();

    if (coll_barrier(NULL) != COLL_OK)
        return fail("barrier");
    /* Without its group rank 0 is about to close the store. */
    if (coll_rank(NULL) != 0 && coll_barrier(NULL) != COLL_ERR_PEER)
        return fail("barrier");
    if (coll_rank(NULL) != 0 &&
        coll_store_set(store, "late", "x", 1) != COLL_OK)
        return fail("set");
    if (coll_rank(NULL) != 0 &&
        coll_store_num_keys(store, &(int64_t){0}) != COLL_OK)
        return fail("num_keys");
    return 0;
}

static int use_second_store(const char *port)
{
    coll_store_options_t options = COLL_STORE_OPTIONS_INIT;
    coll_store_t *store;
    coll_status_t status;

    options.is_host = coll_rank(NULL) == 0;
    options.world_size = coll_world_size(NULL);
    options.timeout_ms = 20000;
    if (coll_store_tcp(&store, "127.0.0.1", (int)strtol(port, NULL, 10),
            &options) != COLL_OK)
        return fail("second store");
    status = meet_in(store);
    coll_store_close(store);
    return status == COLL_OK ? 0 : fail("second store");
}

int main(int argc, char **argv)
{
    coll_options_t options = COLL_OPTIONS_INIT;
    const char *mode = argc > 1 ? argv[1] : "";
    bool is_second = strcmp(mode, "second") == 0 && argc == 3;
    bool is_env = strcmp(mode, "env") == 0;
    bool has_crash = strcmp(mode, "crash") == 0 && argc == 3;
    int rank, size;
    int rc = 0;

    if (argc < 2 || (argc == 3) != (is_second || has_crash)) {
        fprintf(stderr, "usage: stores METHOD|env|second PORT|crash METHOD\n");
        return 2;
    }
    if (!is_second && !is_env)
        options.init_method = argv[argc - 1];
    if (coll_init(&options) != COLL_OK)
        return fail("coll_init");
    rank = coll_rank(NULL);
    size = coll_world_size(NULL);
    if (is_second)
        rc = use_second_store(argv[2]);
    else if (is_env)
        rc = leave_in_turn();
    else if (meet_in_group() != COLL_OK)
        rc = fail("group");
    else if (meet_in(coll_default_store()) != COLL_OK)
        rc = fail("default store");
    if (has_crash && rc == 0)
        _exit(9); /* nothing is closed or removed */
    if (coll_destroy() != COLL_OK)
        rc = fail("coll_destroy");
    if (rc == 0)
        printf("rank %d of %d ok\n", rank, size);
    return rc;
}
