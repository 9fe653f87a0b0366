/*
 * The public calls on stores: of every kind where they do the same, then what
 * is particular to views and to TCP, on both sides of it.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/coll_harness.h"
#include "tests/unit/unit.h"

#define LENGTH_OF(array) (sizeof(array) / sizeof((array)[0]))

#define OK(call)                                                               \
    ck_assert_msg((call) == COLL_OK, "%s: %s", #call, coll_last_error())

#define FAILS(call, status, words)                                             \
    do {                                                                       \
        coll_status_t fails_status = (call);                                   \
        ck_assert_msg(fails_status == (status), "%s: got %s: %s", #call,       \
            coll_strerror(fails_status), coll_last_error());                   \
        ck_assert_msg(strstr(coll_last_error(), (words)) != NULL,              \
            "\"%s\" is not in: %s", (words), coll_last_error());               \
    } while (0)

static void set(coll_store_t *s, const char *key, const char *value)
{
    OK(coll_store_set(s, key, value, strlen(value)));
}

/* The value is the text, and its NUL follows. */
static void has(coll_store_t *s, const char *key, const char *want)
{
    void *value = NULL;
    size_t len = 0;

    OK(coll_store_get(s, key, &value, &len));
    ck_assert_uint_eq(len, strlen(want));
    ck_assert_str_eq(value, want);
    free(value);
}

static bool exists(coll_store_t *s, const char *key)
{
    bool all = false;

    OK(coll_store_check(s, &key, 1, &all));
    return all;
}

/* --- Every kind ----------------------------------------------------------- */

/* What the tests of one kind work on. */
struct kind {
    coll_store_t *base; /* the host, if there is a client */
    coll_store_t *client;
    coll_store_t *inner;
    coll_store_t *s; /* the store to be used */
    char folder[32]; /* of the file, "" if there is none */
    char path[64];
};

enum kind_name { HOST, CLIENT, VIEW, NESTED_VIEW, FILE_STORE, HASH, KINDS };

static void open_kind(struct kind *k, int name)
{
    coll_store_options_t options = {.is_host = true};

    memset(k, 0, sizeof(*k));
    if (name == FILE_STORE) {
        strcpy(k->folder, "/tmp/coll_store.XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(k->folder));
        snprintf(k->path, sizeof(k->path), "%s/store", k->folder);
        options.world_size = 1; /* so that the file goes away */
        OK(coll_store_file(&k->base, k->path, &options));
    } else if (name == HASH) {
        OK(coll_store_hash(&k->base, NULL));
    } else {
        OK(coll_store_tcp(&k->base, "127.0.0.1", 0, &options));
    }
    k->s = k->base;
    if (name == CLIENT || name == VIEW || name == NESTED_VIEW) {
        OK(coll_store_tcp(
            &k->client, "127.0.0.1", coll_store_port(k->base), NULL));
        k->s = k->client;
    }
    if (name == NESTED_VIEW) {
        OK(coll_store_prefix(&k->inner, "inner", k->s));
        k->s = k->inner;
    }
    if (name == VIEW || name == NESTED_VIEW)
        OK(coll_store_prefix(&k->s, "", k->s));
}

static void close_kind(struct kind *k)
{
    if (k->s != k->client && k->s != k->base)
        coll_store_close(k->s);
    coll_store_close(k->inner);
    coll_store_close(k->client);
    coll_store_close(k->base);
    if (k->folder[0] != '\0')
        ck_assert_msg(rmdir(k->folder) == 0, "%s is left", k->path);
}

START_TEST(set_get_and_delete)
{
    static const char *const keys[] = {
        "", "/", "k", "/k", "k/", "k//l", "init/", "gr\xc3\xb6\xc3\x9f"};
    struct kind k;
    char value[16];
    bool existed;

    open_kind(&k, _i);
    for (size_t i = 0; i < LENGTH_OF(keys); i++) {
        snprintf(value, sizeof(value), "v%zu", i);
        set(k.s, keys[i], "before");
        set(k.s, keys[i], value);
    }
    for (size_t i = 0; i < LENGTH_OF(keys); i++) {
        snprintf(value, sizeof(value), "v%zu", i);
        has(k.s, keys[i], value);
    }
    OK(coll_store_delete(k.s, "k", &existed));
    ck_assert(existed);
    ck_assert(!exists(k.s, "k"));
    ck_assert(exists(k.s, "/k") && exists(k.s, "k/"));
    OK(coll_store_delete(k.s, "/k", NULL));
    ck_assert(!exists(k.s, "/k"));
    close_kind(&k);
}
END_TEST

START_TEST(add_counts)
{
    struct kind k;
    int64_t sum = 0;

    open_kind(&k, _i);
    OK(coll_store_add(k.s, "n", 5, &sum));
    ck_assert_int_eq(sum, 5);
    OK(coll_store_add(k.s, "n", -47, NULL));
    OK(coll_store_add(k.s, "n", 0, &sum));
    ck_assert_int_eq(sum, -42);
    has(k.s, "n", "-42");
    set(k.s, "n", "7");
    OK(coll_store_add(k.s, "n", INT64_MAX - 7, &sum));
    ck_assert(sum == INT64_MAX);
    close_kind(&k);
}
END_TEST

static void swaps_to(coll_store_t *s, const char *expected, const char *desired,
    const char *want)
{
    void *value = NULL;
    size_t len = 0;

    OK(coll_store_compare_set(s, "cs", expected, strlen(expected), desired,
        strlen(desired), &value, &len));
    ck_assert_uint_eq(len, strlen(want));
    ck_assert_str_eq(value, want);
    free(value);
}

START_TEST(compare_set_swaps)
{
    struct kind k;

    open_kind(&k, _i);
    swaps_to(k.s, "x", "new", "x"); /* missing: not created */
    ck_assert(!exists(k.s, "cs"));
    swaps_to(k.s, "", "new", "new");
    swaps_to(k.s, "other", "newer", "new");
    swaps_to(k.s, "", "newer", "new");
    swaps_to(k.s, "new", "new", "new");
    swaps_to(k.s, "new", "", "");
    ck_assert(exists(k.s, "cs"));
    swaps_to(k.s, "", "full", "full");
    has(k.s, "cs", "full");
    close_kind(&k);
}
END_TEST

START_TEST(check_and_wait_mean_all)
{
    static const char *const keys[] = {"a", "b", "a"};
    struct kind k;
    bool all = false;

    open_kind(&k, _i);
    set(k.s, "a", "");
    OK(coll_store_check(k.s, NULL, 0, &all));
    ck_assert(all);
    OK(coll_store_check(k.s, keys, 3, &all));
    ck_assert(!all);
    OK(coll_store_wait(k.s, NULL, 0, 1));
    FAILS(coll_store_wait(k.s, keys, 3, 1), COLL_ERR_TIMEOUT,
        "coll_store_wait: ");
    set(k.s, "b", "");
    OK(coll_store_check(k.s, keys, 3, &all));
    ck_assert(all);
    OK(coll_store_wait(k.s, keys, 3, 0));
    close_kind(&k);
}
END_TEST

START_TEST(append_and_multiple_keys)
{
    static const char *const keys[] = {"m0", "m1", "m2"};
    static const char *const missing[] = {"m0", "nowhere"};
    const void *const in[] = {"zero", NULL, "a\0b"};
    const size_t in_lens[] = {4, 0, 3};
    struct kind k;
    void *out[3] = {NULL};
    size_t lens[3];
    char *const untouched = (char *)in;

    open_kind(&k, _i);
    OK(coll_store_append(k.s, "ap", "po", 2));
    OK(coll_store_append(k.s, "ap", "tato", 4));
    OK(coll_store_append(k.s, "ap", NULL, 0));
    has(k.s, "ap", "potato");
    OK(coll_store_multi_set(k.s, keys, 3, in, in_lens));
    OK(coll_store_multi_get(k.s, keys, 3, out, lens));
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(lens[i], in_lens[i]);
        ck_assert(lens[i] == 0 || memcmp(out[i], in[i], lens[i]) == 0);
        ck_assert_int_eq(((char *)out[i])[lens[i]], '\0');
        free(out[i]);
        out[i] = untouched;
    }
    OK(coll_store_multi_set(k.s, NULL, 0, NULL, NULL));
    OK(coll_store_multi_get(k.s, NULL, 0, NULL, NULL));
    OK(coll_store_set_timeout(k.s, 1));
    FAILS(coll_store_multi_get(k.s, missing, 2, out, lens), COLL_ERR_TIMEOUT,
        "coll_store_multi_get: ");
    ck_assert(out[0] == untouched && out[1] == untouched);
    close_kind(&k);
}
END_TEST

/* STO-06, the sizes that take no time; the others are below. */
START_TEST(values_are_any_bytes)
{
    static const size_t sizes[] = {0, 1, 255, 256, 257, 65536, 1 << 20};
    struct kind k;
    char *bytes = malloc(1 << 20);
    void *value;
    size_t len;

    for (int i = 0; i < 1 << 20; i++)
        bytes[i] = (char)(i * 7 + (i >> 8));
    open_kind(&k, _i);
    for (size_t i = 0; i < LENGTH_OF(sizes); i++) {
        OK(coll_store_set(k.s, "v", bytes, sizes[i]));
        OK(coll_store_get(k.s, "v", &value, &len));
        ck_assert_uint_eq(len, sizes[i]);
        ck_assert(memcmp(value, bytes, len) == 0);
        ck_assert_int_eq(((char *)value)[len], '\0');
        free(value);
        OK(coll_store_compare_set(
            k.s, "v", bytes, sizes[i], "x", 1, &value, &len));
        ck_assert_str_eq(value, "x");
        free(value);
    }
    close_kind(&k);
    free(bytes);
}
END_TEST

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

START_TEST(keys_are_counted_and_listed)
{
    struct kind k;
    int64_t before = 0;
    int64_t after = 0;
    char **keys = (char **)&k;
    size_t nkeys = 99;

    open_kind(&k, _i);
    OK(coll_store_num_keys(k.s, &before));
    set(k.s, "b", "1");
    set(k.s, "a", "1");
    set(k.s, "", "1");
    set(k.s, "a", "2");
    OK(coll_store_num_keys(k.s, &after));
    ck_assert_int_eq(after - before, 3);
    OK(coll_store_list_keys(k.s, &keys, &nkeys));
    qsort(keys, nkeys, sizeof(*keys), compare_texts);
    /* A file store has keys of its own. */
    ck_assert_uint_ge(nkeys, 3);
    ck_assert_str_eq(keys[0], "");
    ck_assert_str_eq(keys[1], "a");
    ck_assert_str_eq(keys[2], "b");
    free(keys);
    if (_i != FILE_STORE) {
        ck_assert_uint_eq(nkeys, 3);
        OK(coll_store_delete(k.s, "a", NULL));
        OK(coll_store_delete(k.s, "b", NULL));
        OK(coll_store_delete(k.s, "", NULL));
        OK(coll_store_list_keys(k.s, &keys, &nkeys));
        ck_assert_ptr_null(keys);
        ck_assert_uint_eq(nkeys, 0);
    }
    close_kind(&k);
}
END_TEST

START_TEST(queues_are_first_in_first_out)
{
    static const char *const queue[] = {"q"};
    struct kind k;
    int64_t n = -1;
    void *value = NULL;
    size_t len;

    open_kind(&k, _i);
    if (_i == FILE_STORE) {
        FAILS(coll_store_queue_push(k.s, "q", "x", 1), COLL_ERR_UNSUPPORTED,
            "coll_store_queue_push: ");
        set(k.s, "still", "usable");
        close_kind(&k);
        return;
    }
    OK(coll_store_queue_len(k.s, "q", &n));
    ck_assert_int_eq(n, 0);
    OK(coll_store_queue_push(k.s, "q", "first", 5));
    OK(coll_store_queue_push(k.s, "q", NULL, 0));
    OK(coll_store_queue_len(k.s, "q", &n));
    ck_assert_int_eq(n, 2);
    OK(coll_store_wait(k.s, queue, 1, 0));
    ck_assert(exists(k.s, "q"));
    set(k.s, "q", "a key");
    OK(coll_store_queue_pop(k.s, "q", &value, &len, 0));
    ck_assert_str_eq(value, "first");
    free(value);
    OK(coll_store_queue_pop(k.s, "q", &value, &len, 0));
    ck_assert_uint_eq(len, 0);
    free(value);
    FAILS(coll_store_queue_pop(k.s, "q", &value, &len, 1), COLL_ERR_TIMEOUT,
        "coll_store_queue_pop: ");
    has(k.s, "q", "a key");
    close_kind(&k);
}
END_TEST

START_TEST(time_out_leaves_the_store_usable)
{
    struct kind k;
    void *value = &k;
    size_t len = 99;

    open_kind(&k, _i);
    OK(coll_store_set_timeout(k.s, 20));
    for (int i = 0; i < 3; i++) {
        FAILS(coll_store_get(k.s, "missing", &value, &len), COLL_ERR_TIMEOUT,
            "coll_store_get: ");
        ck_assert(value == &k && len == 99);
    }
    OK(coll_store_set_timeout(k.s, 30000));
    set(k.s, "missing", "here");
    has(k.s, "missing", "here");
    close_kind(&k);
}
END_TEST

START_TEST(bad_arguments_are_refused)
{
    static const char *const keys[] = {"a", NULL};
    const void *const values[] = {"a", NULL};
    const size_t lens[] = {1, 1};
    const size_t huge = ((size_t)128 << 20) + 1;
    static char long_key[8193];
    struct kind k;
    void *value = NULL;
    size_t len;
    bool all;
    int64_t n;
    char **list;

    memset(long_key, 'k', sizeof(long_key) - 1);
    open_kind(&k, _i);
    FAILS(coll_store_set(NULL, "k", "v", 1), COLL_ERR_ARGUMENT,
        "coll_store_set: store is NULL");
    FAILS(coll_store_set(k.s, NULL, "v", 1), COLL_ERR_ARGUMENT, "key is NULL");
    FAILS(coll_store_set(k.s, "k", NULL, 1), COLL_ERR_ARGUMENT,
        "value is NULL, its length 1");
    FAILS(coll_store_set(k.s, "k", "v", huge), COLL_ERR_ARGUMENT,
        "134217729 bytes are more than the 128 MiB");
    FAILS(coll_store_set(k.s, long_key, "v", 1), COLL_ERR_ARGUMENT,
        "is longer than the 8191");
    FAILS(coll_store_get(k.s, "k", NULL, &len), COLL_ERR_ARGUMENT, "value is");
    FAILS(coll_store_get(k.s, "k", &value, NULL), COLL_ERR_ARGUMENT, "len is");
    FAILS(coll_store_get(NULL, "k", &value, &len), COLL_ERR_ARGUMENT, "store");
    FAILS(coll_store_add(k.s, NULL, 1, NULL), COLL_ERR_ARGUMENT, "key");
    FAILS(
        coll_store_wait(k.s, keys, 2, 1), COLL_ERR_ARGUMENT, "keys[1] is NULL");
    FAILS(coll_store_wait(k.s, NULL, 2, 1), COLL_ERR_ARGUMENT, "keys is NULL");
    FAILS(coll_store_wait(k.s, keys, 1, -1), COLL_ERR_ARGUMENT,
        "timeout_ms is -1");
    FAILS(coll_store_wait(k.s, keys, SIZE_MAX, 1), COLL_ERR_ARGUMENT,
        "are more than the 131072");
    FAILS(coll_store_compare_set(k.s, "k", NULL, 1, "v", 1, &value, &len),
        COLL_ERR_ARGUMENT, "expected is NULL");
    FAILS(coll_store_compare_set(k.s, "k", "v", 1, NULL, 1, &value, &len),
        COLL_ERR_ARGUMENT, "desired is NULL");
    FAILS(coll_store_compare_set(k.s, "k", "v", 1, "w", 1, NULL, &len),
        COLL_ERR_ARGUMENT, "value is NULL");
    FAILS(coll_store_check(k.s, keys, 1, NULL), COLL_ERR_ARGUMENT, "exist is");
    FAILS(coll_store_check(k.s, keys, 2, &all), COLL_ERR_ARGUMENT, "keys[1]");
    FAILS(coll_store_delete(k.s, NULL, NULL), COLL_ERR_ARGUMENT, "key is");
    FAILS(coll_store_num_keys(k.s, NULL), COLL_ERR_ARGUMENT, "count is");
    FAILS(coll_store_append(k.s, "k", NULL, 1), COLL_ERR_ARGUMENT, "value");
    FAILS(coll_store_multi_get(k.s, keys, 1, NULL, &len), COLL_ERR_ARGUMENT,
        "values is NULL");
    FAILS(coll_store_multi_get(k.s, keys, 1, &value, NULL), COLL_ERR_ARGUMENT,
        "lens is NULL");
    FAILS(coll_store_multi_set(k.s, keys, 1, NULL, lens), COLL_ERR_ARGUMENT,
        "values is NULL");
    FAILS(coll_store_multi_set(k.s, keys, 1, values + 1, lens),
        COLL_ERR_ARGUMENT, "a value is NULL");
    FAILS(coll_store_queue_push(k.s, NULL, "v", 1), COLL_ERR_ARGUMENT, "queue");
    FAILS(coll_store_queue_pop(k.s, "q", &value, &len, -5), COLL_ERR_ARGUMENT,
        "timeout_ms is -5");
    FAILS(coll_store_queue_len(k.s, "q", NULL), COLL_ERR_ARGUMENT, "len is");
    FAILS(coll_store_list_keys(k.s, &list, NULL), COLL_ERR_ARGUMENT, "nkeys");
    FAILS(coll_store_set_timeout(k.s, 0), COLL_ERR_ARGUMENT, "timeout_ms is 0");
    FAILS(coll_store_set_timeout(NULL, 1), COLL_ERR_ARGUMENT, "store is NULL");
    OK(coll_store_num_keys(k.s, &n));
    ck_assert(!exists(k.s, "k"));
    /* The longest key that there is, whatever the prefixes are. */
    for (len = 8191; len > 8180; len--) {
        long_key[len] = '\0';
        if (coll_store_set(k.s, long_key, "v", 1) == COLL_OK)
            break;
    }
    has(k.s, long_key, "v");
    ck_assert_uint_eq(len, 8191 - (_i == VIEW ? 1 : _i == NESTED_VIEW ? 7 : 0));
    close_kind(&k);
}
END_TEST

START_TEST(opening_checks_its_arguments)
{
    coll_store_options_t options = COLL_STORE_OPTIONS_INIT;
    coll_store_t *s = NULL;
    coll_store_t *view;
    static char prefix[8193];

    FAILS(coll_store_tcp(NULL, "h", 1, NULL), COLL_ERR_ARGUMENT,
        "coll_store_tcp: store is NULL");
    FAILS(coll_store_tcp(&s, NULL, 1, NULL), COLL_ERR_ARGUMENT, "host is NULL");
    FAILS(coll_store_tcp(&s, "", 1, NULL), COLL_ERR_ARGUMENT, "host is empty");
    FAILS(coll_store_tcp(&s, "h", 0, NULL), COLL_ERR_ARGUMENT,
        "port is 0, it must be from 1 to 65535");
    FAILS(coll_store_tcp(&s, "h", 65536, NULL), COLL_ERR_ARGUMENT, "65536");
    FAILS(coll_store_file(&s, "", NULL), COLL_ERR_ARGUMENT, "path is empty");
    FAILS(coll_store_file(&s, NULL, NULL), COLL_ERR_ARGUMENT, "path is NULL");
    FAILS(coll_store_file(NULL, "/x", NULL), COLL_ERR_ARGUMENT, "store is");
    FAILS(coll_store_hash(NULL, NULL), COLL_ERR_ARGUMENT, "store is NULL");
    options.timeout_ms = -1;
    FAILS(coll_store_hash(&s, &options), COLL_ERR_ARGUMENT, "timeout_ms is -1");
    options.timeout_ms = 0;
    options.world_size = -3;
    FAILS(coll_store_hash(&s, &options), COLL_ERR_ARGUMENT, "world_size is -3");
    options.world_size = 0;
    options.is_host = true;
    FAILS(coll_store_tcp(&s, "127.0.0.1", -1, &options), COLL_ERR_ARGUMENT,
        "port is -1, it must be from 0");
    FAILS(coll_store_file(&s, "/nowhere/at/all", NULL), COLL_ERR_STORE,
        "/nowhere/at/all");
    ck_assert_ptr_null(s);
    OK(coll_store_hash(&s, NULL));
    FAILS(coll_store_prefix(&view, NULL, s), COLL_ERR_ARGUMENT, "prefix is");
    FAILS(coll_store_prefix(&view, "p", NULL), COLL_ERR_ARGUMENT, "base is");
    FAILS(coll_store_prefix(NULL, "p", s), COLL_ERR_ARGUMENT, "store is");
    memset(prefix, 'p', sizeof(prefix) - 1);
    FAILS(coll_store_prefix(&view, prefix, s), COLL_ERR_ARGUMENT,
        "leaves no room for keys");
    ck_assert_int_eq(coll_store_port(s), -1);
    ck_assert_int_eq(coll_store_port(NULL), -1);
    coll_store_close(s);
    coll_store_close(NULL);
}
END_TEST

/* --- Threads of one process ---------------------------------------------- */

static void *wait_for_go(void *arg)
{
    const char *const key = "go";
    int64_t n;

    OK(coll_store_add(arg, "ready", 1, &n));
    OK(coll_store_wait(arg, &key, 1, 0));
    return NULL;
}

/* A store for threads would be of no use if a wait held up the others. */
START_TEST(hash_store_serves_threads_while_others_wait)
{
    const char *const ready = "ready";
    pthread_t threads[4];
    coll_store_t *s, *view;

    OK(coll_store_hash(&s, NULL));
    OK(coll_store_prefix(&view, "p", s));
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(
            pthread_create(&threads[i], NULL, wait_for_go, view), 0);
    OK(coll_store_wait(view, &ready, 1, 0));
    set(s, "p/go", "");
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    coll_store_close(view);
    coll_store_close(s);
}
END_TEST

/* --- Views ---------------------------------------------------------------- */

/* As PyTorch's PrefixStore: the outermost prefix is closest to the key, and no
 * slash is too many. */
START_TEST(prefixes_nest_as_in_pytorch)
{
    coll_store_t *base, *inner, *outer;
    char **keys;
    size_t nkeys;
    int64_t n;

    OK(coll_store_hash(&base, NULL));
    OK(coll_store_prefix(&inner, "inner/", base));
    OK(coll_store_prefix(&outer, "pfx", inner));
    set(outer, "kk", "v");
    has(base, "inner//pfx/kk", "v");
    has(inner, "pfx/kk", "v");
    set(base, "inner//pfx", "short");
    set(base, "inner//pfx/", "empty");
    set(base, "other", "x");
    has(outer, "", "empty");
    OK(coll_store_list_keys(outer, &keys, &nkeys));
    ck_assert_uint_eq(nkeys, 2);
    qsort(keys, nkeys, sizeof(*keys), compare_texts);
    ck_assert_str_eq(keys[0], "");
    ck_assert_str_eq(keys[1], "kk");
    free(keys);
    OK(coll_store_num_keys(outer, &n));
    ck_assert_int_eq(n, 4);
    /* The time-out is one, too. */
    OK(coll_store_set_timeout(outer, 1));
    FAILS(coll_store_wait(base, (const char *const[]){"no"}, 1, 0),
        COLL_ERR_TIMEOUT, "");
    coll_store_close(outer);
    has(inner, "pfx/kk", "v");
    coll_store_close(inner);
    coll_store_close(base);
}
END_TEST

/* --- TCP ------------------------------------------------------------------ */

static coll_store_t *open_host(int world_size, int64_t timeout_ms)
{
    const coll_store_options_t options = {
        .is_host = true, .world_size = world_size, .timeout_ms = timeout_ms};
    coll_store_t *s = NULL;

    OK(coll_store_tcp(&s, "127.0.0.1", 0, &options));
    ck_assert_int_gt(coll_store_port(s), 0);
    return s;
}

static coll_store_t *open_client(int port, int world_size)
{
    const coll_store_options_t options = {
        .world_size = world_size, .timeout_ms = 30000};
    coll_store_t *s = NULL;

    OK(coll_store_tcp(&s, "127.0.0.1", port, &options));
    return s;
}

/* STO-06 */
START_TEST(large_values)
{
    size_t len = (size_t)64 << 20;
    coll_store_t *host = open_host(0, 0);
    coll_store_t *client = open_client(coll_store_port(host), 0);
    char *bytes = malloc(len);
    void *value;
    size_t got;

    ck_assert_ptr_nonnull(bytes);
    OK(coll_store_set_timeout(client, 600000)); /* sanitizers are slow */
    for (size_t i = 0; i < len; i++)
        bytes[i] = (char)(i * 31 + (i >> 9));
    OK(coll_store_set(client, "large", bytes, len));
    OK(coll_store_get(client, "large", &value, &got));
    ck_assert_uint_eq(got, len);
    ck_assert(memcmp(value, bytes, len) == 0);
    free(value);
    OK(coll_store_compare_set(
        client, "large", bytes, len, bytes, len, &value, &got));
    ck_assert(got == len && memcmp(value, bytes, len) == 0);
    free(value);
    OK(coll_store_compare_set(client, "large", NULL, 0, "x", 1, &value, &got));
    ck_assert(got == len && memcmp(value, bytes, len) == 0);
    free(value);
    OK(coll_store_append(client, "large", bytes, len));
    OK(coll_store_get(client, "large", &value, &got));
    ck_assert_uint_eq(got, 2 * len);
    ck_assert(memcmp((char *)value + len, bytes, len) == 0);
    free(value);
    free(bytes);
    coll_store_close(client);
    coll_store_close(host);
}
END_TEST

START_TEST(client_and_host_see_one_store)
{
    coll_store_t *host = open_host(0, 0);
    coll_store_t *a = open_client(coll_store_port(host), 2);
    coll_store_t *b = open_client(coll_store_port(host), 2);
    int64_t n;

    ck_assert_int_eq(coll_store_port(a), coll_store_port(host));
    set(a, "k", "v");
    has(a, "k", "v"); /* so it has arrived */
    has(b, "k", "v");
    has(host, "k", "v");
    /* The counter of workers is no user's key. */
    OK(coll_store_num_keys(host, &n));
    ck_assert_int_eq(n, 2);
    ck_assert(!exists(host, "init/"));
    coll_store_close(b);
    coll_store_close(a);
    coll_store_close(host);
}
END_TEST

START_TEST(add_on_a_word_breaks_a_tcp_store)
{
    coll_store_t *host = open_host(0, 0);
    coll_store_t *client = open_client(coll_store_port(host), 0);
    int64_t sum;

    set(client, "word", "word");
    FAILS(coll_store_add(client, "word", 1, &sum), COLL_ERR_STORE,
        "coll_store_add: ");
    FAILS(coll_store_set(client, "k", "v", 1), COLL_ERR_STORE,
        "coll_store_set: ");
    FAILS(coll_store_num_keys(client, &sum), COLL_ERR_STORE,
        "coll_store_num_keys: ");
    coll_store_close(client);
    has(host, "word", "word");
    coll_store_close(host);
}
END_TEST

START_TEST(end_of_the_host_is_an_error)
{
    coll_store_t *host = open_host(0, 0);
    coll_store_t *client = open_client(coll_store_port(host), 0);
    void *value;
    size_t len;

    coll_store_close(host);
    FAILS(coll_store_get(client, "k", &value, &len), COLL_ERR_STORE,
        "coll_store_get: ");
    coll_store_close(client);
}
END_TEST

START_TEST(port_in_use_is_told_at_once)
{
    const coll_store_options_t options = {.is_host = true};
    coll_store_t *host = open_host(0, 0);
    coll_store_t *second = NULL;
    char words[32];

    snprintf(words, sizeof(words), "%d", coll_store_port(host));
    FAILS(coll_store_tcp(&second, "127.0.0.1", coll_store_port(host), &options),
        COLL_ERR_STORE, words);
    ck_assert_msg(
        strstr(coll_last_error(), "in use") != NULL, "%s", coll_last_error());
    ck_assert_ptr_null(second);
    coll_store_close(host);
}
END_TEST

/* A socket that accepts nobody; with an empty backlog the next connection but
 * one gets no answer at all. */
static int deaf_listener(int backlog, int *port)
{
    struct sockaddr_in sin = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sin);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_eq(bind(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
    ck_assert_int_eq(listen(fd, backlog), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&sin, &len), 0);
    *port = ntohs(sin.sin_port);
    return fd;
}

static int connect_to(int port)
{
    struct sockaddr_in sin = {.sin_family = AF_INET,
        .sin_port = htons((uint16_t)port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_eq(connect(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
    return fd;
}

/* STO-05: what is found there is told apart. */
START_TEST(connecting_has_a_time_limit)
{
    const coll_store_options_t options = {.timeout_ms = 700};
    coll_store_t *s = NULL;
    int port;
    int deaf, first;

    FAILS(coll_store_tcp(&s, "127.0.0.1", harness_free_port(), &options),
        COLL_ERR_STORE, "refused");
    deaf = deaf_listener(16, &port);
    FAILS(coll_store_tcp(&s, "127.0.0.1", port, &options), COLL_ERR_TIMEOUT,
        "nobody answers the greeting");
    close(deaf);
    deaf = deaf_listener(0, &port);
    first = connect_to(port);
    FAILS(coll_store_tcp(&s, "127.0.0.1", port, &options), COLL_ERR_TIMEOUT,
        "not accepted");
    close(first);
    close(deaf);
    ck_assert_ptr_null(s);
}
END_TEST

/* Nobody's mistake or malice ends the thread. */
START_TEST(host_survives_its_peers)
{
    static const char *const nonsense[] = {"GET / HTTP/1.1\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "\x00\xce\xf7\x85\x3c\x01\xff\xff\xff\xff\xff\xff\xff\x7f", "", "\xff"};
    static const size_t lens[] = {18, 11, 14, 0, 1};
    const struct linger reset = {1, 0};
    coll_store_t *host = open_host(0, 0);
    int idle = connect_to(coll_store_port(host));

    for (int i = 0; i < 200; i++) {
        int fd = connect_to(coll_store_port(host));

        if (i % 2 == 0)
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        send(fd, nonsense[i % 5], lens[i % 5], MSG_NOSIGNAL);
        close(fd);
    }
    set(host, "k", "v");
    has(host, "k", "v");
    coll_store_close(host);
    close(idle);
}
END_TEST

enum { MAX_FDS = 256 };

static int count_fds(void)
{
    int count = 0;

    for (int fd = 0; fd < MAX_FDS; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

START_TEST(nothing_is_left_of_a_store)
{
    bool was_open[MAX_FDS];
    int before = count_fds();

    for (int fd = 0; fd < MAX_FDS; fd++)
        was_open[fd] = fcntl(fd, F_GETFD) >= 0;
    for (int i = 0; i < 50; i++) {
        coll_store_t *host = open_host(i % 2 * 2, 1000);
        coll_store_t *client = open_client(coll_store_port(host), i % 2 * 2);

        for (int fd = 0; fd < MAX_FDS; fd++) {
            int flags = fcntl(fd, F_GETFD);

            ck_assert(was_open[fd] || flags < 0 || (flags & FD_CLOEXEC));
        }
        coll_store_close(client);
        coll_store_close(host);
        ck_assert_int_eq(count_fds(), before);
    }
}
END_TEST

/* It would end the process if the host's thread took it. */
START_TEST(signals_are_not_for_the_host)
{
    coll_store_t *host = open_host(0, 0);
    sigset_t set_of_one;
    int number;

    sigemptyset(&set_of_one);
    sigaddset(&set_of_one, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set_of_one, NULL);
    ck_assert_int_eq(kill(getpid(), SIGUSR1), 0);
    set(host, "k", "v");
    has(host, "k", "v");
    ck_assert_int_eq(sigwait(&set_of_one, &number), 0);
    ck_assert_int_eq(number, SIGUSR1);
    coll_store_close(host);
}
END_TEST

/* --- Threads -------------------------------------------------------------- */

enum { THREADS = 6, ROUNDS = 60 };

struct user {
    pthread_t thread;
    coll_store_t *store;
    int number;
};

static void *use_store(void *arg)
{
    struct user *u = arg;
    coll_store_t *view = NULL;
    char name[16];
    int64_t sum = 0;
    void *value;
    size_t len;

    snprintf(name, sizeof(name), "t%d", u->number);
    EXPECT_OK(coll_store_prefix(&view, name, u->store));
    for (int i = 0; i < ROUNDS; i++) {
        EXPECT_OK(coll_store_add(u->store, "all", 1, NULL));
        EXPECT_OK(coll_store_add(view, "own", 1, &sum));
        EXPECT(sum == i + 1, "sum is %d", (int)sum);
        EXPECT_OK(coll_store_set(view, "name", name, strlen(name)));
        EXPECT_OK(coll_store_get(view, "name", &value, &len));
        EXPECT(strcmp(value, name) == 0, "got %s", (char *)value);
        free(value);
    }
    coll_store_close(view);
    return NULL;
}

START_TEST(threads_share_a_store)
{
    struct kind k;
    struct user users[THREADS];
    char text[16];

    open_kind(&k, _i);
    for (int i = 0; i < THREADS; i++) {
        users[i] = (struct user){.store = k.s, .number = i};
        ck_assert_int_eq(
            pthread_create(&users[i].thread, NULL, use_store, &users[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(users[i].thread, NULL);
    ck_assert_msg(harness_report.text[0] == '\0', "%s", harness_report.text);
    snprintf(text, sizeof(text), "%d", THREADS * ROUNDS);
    has(k.s, "all", text);
    close_kind(&k);
}
END_TEST

static void *wait_in_vain(void *arg)
{
    static const char *const keys[] = {"never"};
    struct user *u = arg;

    EXPECT_FAILS(
        coll_store_wait(u->store, keys, 1, 400), COLL_ERR_TIMEOUT, "never");
    return NULL;
}

/* A call that had to wait for another one's end has its time all the same:
 * it would break the connection if it began when that is over. */
START_TEST(time_begins_when_the_store_is_free)
{
    coll_store_t *host = open_host(0, 100);
    struct user u = {.store = host};

    ck_assert_int_eq(pthread_create(&u.thread, NULL, wait_in_vain, &u), 0);
    for (int i = 0; i < 50; i++) {
        set(host, "k", "v");
        has(host, "k", "v");
        poll(NULL, 0, 1);
    }
    pthread_join(u.thread, NULL);
    ck_assert_msg(harness_report.text[0] == '\0', "%s", harness_report.text);
    coll_store_close(host);
}
END_TEST

/* --- Processes ------------------------------------------------------------ */

#define CHILD_OK(call)                                                         \
    do {                                                                       \
        if ((call) != COLL_OK) {                                               \
            fprintf(stderr, "%s: %s\n", #call, coll_last_error());             \
            _exit(1);                                                          \
        }                                                                      \
    } while (0)

struct child {
    pid_t pid;
    int to; /* write end of its pipe */
    int alive; /* end of file when it has ended */
};

/* Runs fn(value read from the pipe) in a child. */
static struct child start_child(void (*fn)(int value))
{
    struct child c;
    int to[2], alive[2];
    int value;

    ck_assert_int_eq(pipe2(to, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(alive, O_CLOEXEC), 0);
    c.pid = fork();
    ck_assert_int_ge(c.pid, 0);
    if (c.pid == 0) {
        close(to[1]);
        close(alive[0]);
        if (read(to[0], &value, sizeof(value)) != sizeof(value))
            _exit(2);
        fn(value);
        _exit(0);
    }
    close(to[0]);
    close(alive[1]);
    c.to = to[1];
    c.alive = alive[0];
    return c;
}

static void tell(const struct child *c, int value)
{
    ck_assert_int_eq(write(c->to, &value, sizeof(value)), sizeof(value));
}

static void end_child(const struct child *c)
{
    int status;

    ck_assert_int_eq(waitpid(c->pid, &status, 0), c->pid);
    ck_assert_msg(status == 0, "child: status %x", status);
    close(c->to);
    close(c->alive);
}

static void be_client(int port)
{
    static const char *const all[] = {"here/0", "here/1", "here/2"};
    const coll_store_options_t options = {.timeout_ms = 30000, .world_size = 4};
    coll_store_t *s;
    int64_t number;
    char key[32];
    void *value;
    size_t len;

    CHILD_OK(coll_store_tcp(&s, "127.0.0.1", port, &options));
    CHILD_OK(coll_store_add(s, "numbers", 1, &number));
    snprintf(key, sizeof(key), "here/%d", (int)number - 1);
    CHILD_OK(coll_store_set(s, key, key, strlen(key)));
    CHILD_OK(coll_store_wait(s, all, 3, 0));
    CHILD_OK(coll_store_get(s, "from host", &value, &len));
    if (strcmp(value, "hello") != 0)
        _exit(3);
    free(value);
    CHILD_OK(coll_store_queue_push(s, "done", key, strlen(key)));
    coll_store_close(s);
}

START_TEST(processes_meet_in_a_store)
{
    struct child c[3];
    coll_store_t *host;
    void *value;
    size_t len;

    for (int i = 0; i < 3; i++)
        c[i] = start_child(be_client);
    host = open_host(4, 30000);
    for (int i = 0; i < 3; i++)
        tell(&c[i], coll_store_port(host));
    set(host, "from host", "hello");
    for (int i = 0; i < 3; i++) {
        OK(coll_store_queue_pop(host, "done", &value, &len, 0));
        free(value);
    }
    for (int i = 0; i < 3; i++)
        end_child(&c[i]);
    coll_store_close(host);
}
END_TEST

static int port_pipe[2];

/* Below 0: its own connection is broken when it closes. */
static void host_and_go(int world_size)
{
    const coll_store_options_t options = {.timeout_ms = 60000,
        .world_size = world_size < 0 ? -world_size : world_size,
        .is_host = true};
    coll_store_t *s;
    int port;

    CHILD_OK(coll_store_tcp(&s, "127.0.0.1", 0, &options));
    port = coll_store_port(s);
    CHILD_OK(coll_store_set(s, "k", "v", 1));
    if (write(port_pipe[1], &port, sizeof(port)) != sizeof(port))
        _exit(4);
    if (world_size < 0 && coll_store_add(s, "k", 1, NULL) != COLL_ERR_STORE)
        _exit(5);
    coll_store_close(s);
}

/* Whoever was expected finds the store, and can use it as long as he likes. */
START_TEST(host_waits_for_its_clients)
{
    struct child host;
    struct pollfd alive;
    coll_store_t *a, *b;
    int port;

    ck_assert_int_eq(pipe2(port_pipe, O_CLOEXEC), 0);
    host = start_child(host_and_go);
    alive = (struct pollfd){.fd = host.alive, .events = POLLIN};
    tell(&host, _i == 0 ? 3 : -3);
    ck_assert_int_eq(read(port_pipe[0], &port, sizeof(port)), sizeof(port));
    /* These waits are to no avail, or the host is gone too early. */
    ck_assert_int_eq(poll(&alive, 1, 100), 0);
    a = open_client(port, 3);
    has(a, "k", "v");
    coll_store_close(a);
    ck_assert_int_eq(poll(&alive, 1, 100), 0);
    b = open_client(port, 3);
    ck_assert_int_eq(poll(&alive, 1, 100), 0);
    set(b, "later", "still works");
    has(b, "later", "still works");
    coll_store_close(b);
    ck_assert_int_eq(poll(&alive, 1, 30000), 1);
    end_child(&host);
    close(port_pipe[0]);
    close(port_pipe[1]);
}
END_TEST

/* But not for ever, whether they have come or not. */
START_TEST(host_does_not_wait_for_ever)
{
    coll_store_t *host = open_host(2, 100);
    coll_store_t *client = open_client(coll_store_port(host), 2);
    int64_t n;

    coll_store_close(host);
    FAILS(coll_store_num_keys(client, &n), COLL_ERR_STORE, "");
    coll_store_close(client);
    coll_store_close(open_host(3, 100));
}
END_TEST

/* Not for who only looks in, nor for a second store of its own. */
START_TEST(host_waits_for_workers_only)
{
    coll_store_t *host = open_host(2, 3600 * 1000);
    coll_store_t *worker = open_client(coll_store_port(host), 2);
    coll_store_t *other = open_client(coll_store_port(host), 0);
    int64_t n;

    set(other, "k", "v");
    coll_store_close(worker);
    coll_store_close(host);
    FAILS(coll_store_num_keys(other, &n), COLL_ERR_STORE, "");
    coll_store_close(other);
}
END_TEST

/* STO-11, the first half: a store of one's own, whatever the launcher says. */
START_TEST(launchers_flag_is_for_its_own_store)
{
    coll_store_t *launchers = open_host(0, 0);
    coll_store_t *own, *client;

    harness_set_master(coll_store_port(launchers));
    own = open_host(0, 0);
    client = open_client(coll_store_port(own), 0);
    set(client, "k", "v");
    has(own, "k", "v");
    ck_assert(!exists(launchers, "k"));
    coll_store_close(client);
    coll_store_close(own);
    coll_store_close(launchers);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coll_store");
    TCase *kinds = tcase_create("every kind");
    TCase *views = tcase_create("views");
    TCase *tcp = tcase_create("tcp");
    TCase *threads = tcase_create("threads");
    TCase *processes = tcase_create("processes");

    tcase_set_timeout(kinds, 60);
    tcase_add_loop_test(kinds, set_get_and_delete, 0, KINDS);
    tcase_add_loop_test(kinds, add_counts, 0, KINDS);
    tcase_add_loop_test(kinds, compare_set_swaps, 0, KINDS);
    tcase_add_loop_test(kinds, check_and_wait_mean_all, 0, KINDS);
    tcase_add_loop_test(kinds, append_and_multiple_keys, 0, KINDS);
    tcase_add_loop_test(kinds, values_are_any_bytes, 0, KINDS);
    tcase_add_loop_test(kinds, keys_are_counted_and_listed, 0, KINDS);
    tcase_add_loop_test(kinds, queues_are_first_in_first_out, 0, KINDS);
    tcase_add_loop_test(kinds, time_out_leaves_the_store_usable, 0, KINDS);
    tcase_add_loop_test(kinds, bad_arguments_are_refused, 0, KINDS);
    tcase_add_test(kinds, opening_checks_its_arguments);
    suite_add_tcase(suite, kinds);

    tcase_add_test(views, prefixes_nest_as_in_pytorch);
    tcase_add_test(views, hash_store_serves_threads_while_others_wait);
    suite_add_tcase(suite, views);

    tcase_set_timeout(tcp, 60);
    tcase_add_test(tcp, large_values);
    tcase_add_test(tcp, client_and_host_see_one_store);
    tcase_add_test(tcp, add_on_a_word_breaks_a_tcp_store);
    tcase_add_test(tcp, end_of_the_host_is_an_error);
    tcase_add_test(tcp, port_in_use_is_told_at_once);
    tcase_add_test(tcp, connecting_has_a_time_limit);
    tcase_add_test(tcp, host_survives_its_peers);
    tcase_add_test(tcp, nothing_is_left_of_a_store);
    tcase_add_test(tcp, signals_are_not_for_the_host);
    suite_add_tcase(suite, tcp);

    tcase_set_timeout(threads, 60);
    tcase_add_loop_test(threads, threads_share_a_store, 0, KINDS);
    tcase_add_test(threads, time_begins_when_the_store_is_free);
    suite_add_tcase(suite, threads);

    tcase_set_timeout(processes, 60);
    tcase_add_test(processes, processes_meet_in_a_store);
    tcase_add_loop_test(processes, host_waits_for_its_clients, 0, 2);
    tcase_add_test(processes, host_waits_for_workers_only);
    tcase_add_test(processes, host_does_not_wait_for_ever);
    tcase_add_test(processes, launchers_flag_is_for_its_own_store);
    suite_add_tcase(suite, processes);
    return unit_run_suite(suite);
}
