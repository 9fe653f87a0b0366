/*
 * Many clients of one store at once, a thread each:
 *
 *     burst HOST PORT COUNT
 *
 * All connect in the same moment; each sets a key of its own and waits for
 * those of all others. Prints how many have got that far, and the reasons of
 * those who have not.
 */
#include <collective.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

static const char *host;
static int port;
static size_t count;
static const char **keys;
static pthread_barrier_t start;

static void *client(void *arg)
{
    const coll_store_options_t options = {.timeout_ms = 120000};
    coll_store_t *store = NULL;
    coll_status_t status;

    pthread_barrier_wait(&start);
    status = coll_store_tcp(&store, host, port, &options);
    if (status == COLL_OK)
        status = coll_store_set(store, *(const char **)arg, "x", 1);
    if (status == COLL_OK)
        status = coll_store_wait(store, keys, count, 0);
    if (status != COLL_OK)
        fprintf(stderr, "%s\n", coll_last_error());
    coll_store_close(store);
    return status == COLL_OK ? arg : NULL;
}

static void raise_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv)
{
    pthread_t *threads;
    pthread_attr_t attr;
    size_t done = 0;

    if (argc != 4)
        return 2;
    host = argv[1];
    port = atoi(argv[2]);
    count = (size_t)atoi(argv[3]);
    raise_limit();
    threads = calloc(count, sizeof(*threads));
    keys = calloc(count, sizeof(*keys));
    if (threads == NULL || keys == NULL)
        return 1;
    pthread_barrier_init(&start, NULL, (unsigned)count);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 256 << 10);
    for (size_t i = 0; i < count; i++) {
        char *key = malloc(32);

        if (key == NULL)
            return 1;
        snprintf(key, 32, "client/%zu", i);
        keys[i] = key;
    }
    for (size_t i = 0; i < count; i++)
        if (pthread_create(&threads[i], &attr, client, &keys[i]) != 0) {
            perror("burst: pthread_create");
            return 1;
        }
    for (size_t i = 0; i < count; i++) {
        void *ok;

        pthread_join(threads[i], &ok);
        done += ok != NULL;
        free((void *)keys[i]);
    }
    printf("%zu\n", done);
    free(keys);
    free(threads);
    return done == count ? 0 : 1;
}
