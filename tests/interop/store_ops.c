/*
 * Every operation of libcollective's public store calls against the TCPStore
 * that listens at HOST and PORT, crun's or PyTorch's of any age:
 *
 *     store_ops HOST PORT
 *
 * Prints TAP. What the server is too old for is a skip. The keys are this
 * process's own, so the store may be used by others, and several times.
 */
#include <collective.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int tests;
static int failures;

static void report(bool passed, const char *name, const char *detail)
{
    printf("%sok %d - %s\n", passed ? "" : "not ", ++tests, name);
    if (!passed) {
        failures++;
        printf("# %s\n", detail);
    }
}

/* The call went well, and so did what its result was compared with. */
static void check(coll_status_t status, bool is_right, const char *name)
{
    report(status == COLL_OK && is_right, name,
        status == COLL_OK ? "wrong result" : coll_last_error());
}

static void check_fails(
    coll_status_t status, coll_status_t wanted, const char *name)
{
    char text[600];

    snprintf(text, sizeof(text), "%s: %s", coll_strerror(status),
        status == COLL_OK ? "" : coll_last_error());
    report(status == wanted, name, text);
}

/* Prints a skip if the status is that the server cannot do it. */
static bool is_skipped(coll_status_t status, const char *name, const char *why)
{
    if (status != COLL_ERR_UNSUPPORTED)
        return false;
    printf("ok %d - %s # skip %s\n", ++tests, name, why);
    return true;
}

/* Is it the text? Frees the value. */
static bool is_text(void *value, size_t len, const char *want)
{
    bool is_equal = len == strlen(want) && memcmp(value, want, len + 1) == 0;

    free(value);
    return is_equal;
}

static void check_get(
    coll_store_t *s, const char *key, const char *want, const char *name)
{
    void *value = NULL;
    size_t len = 0;
    coll_status_t status = coll_store_get(s, key, &value, &len);

    check(status, status == COLL_OK && is_text(value, len, want), name);
}

static coll_status_t set_text(
    coll_store_t *s, const char *key, const char *value)
{
    return coll_store_set(s, key, value, strlen(value));
}

static void check_exist(coll_store_t *s, const char *const *keys, size_t nkeys,
    bool want, const char *name)
{
    bool exist = !want;
    coll_status_t status = coll_store_check(s, keys, nkeys, &exist);

    check(status, exist == want, name);
}

static void check_queue_len(coll_store_t *s, int64_t want, const char *name)
{
    int64_t n = -1;
    coll_status_t status = coll_store_queue_len(s, "queue", &n);

    check(status, n == want, name);
}

static void single_keys(coll_store_t *a, coll_store_t *b)
{
    coll_status_t status;
    bool existed = false;
    int64_t sum = 0;

    check(set_text(a, "key", "value"), true, "set");
    check_get(a, "key", "value", "get");
    check_get(b, "key", "value", "get by another client");
    check(set_text(a, "key", ""), true, "set to nothing");
    check_get(a, "key", "", "get of nothing");
    check(set_text(a, "", "empty"), true, "set of the empty key");
    check_get(a, "", "empty", "get of the empty key");
    check(set_text(a, "a//b", "two"), true, "set of a key with two slashes");
    check_get(a, "a//b", "two", "get of it");
    status = coll_store_add(a, "counter", 41, &sum);
    check(status, sum == 41, "add creates");
    status = coll_store_add(b, "counter", 1, &sum);
    check(status, sum == 42, "add by another client");
    status = coll_store_add(a, "counter", -50, &sum);
    check(status, sum == -8, "add of a negative number");
    check_get(a, "counter", "-8", "a counter is text");
    status = coll_store_delete(a, "key", &existed);
    check(status, existed, "delete");
    existed = true;
    status = coll_store_delete(a, "key", &existed);
    check(status, !existed, "delete of a missing key");
}

static void large_values(coll_store_t *a, coll_store_t *b)
{
    size_t len = (size_t)8 << 20; /* what every server takes */
    char *bytes = malloc(len);
    void *value = NULL;
    size_t got = 0;
    coll_status_t status;

    for (size_t i = 0; bytes != NULL && i < len; i++)
        bytes[i] = (char)(i * 31 + (i >> 9));
    status = bytes == NULL ? COLL_ERR_MEMORY
                           : coll_store_set(a, "large", bytes, len);
    check(status, true, "set of 8 MiB");
    if (status == COLL_OK) {
        status = coll_store_get(a, "large", &value, &got);
        check(status,
            status == COLL_OK && got == len && memcmp(value, bytes, len) == 0,
            "get of 8 MiB");
        free(value);
        check(coll_store_delete(b, "large", NULL), true, "delete of 8 MiB");
    }
    free(bytes);
}

static void check_swap(coll_store_t *s, const char *expected,
    const char *desired, const char *want, const char *name)
{
    void *value = NULL;
    size_t len = 0;
    coll_status_t status = coll_store_compare_set(s, "swap", expected,
        strlen(expected), desired, strlen(desired), &value, &len);

    check(status, status == COLL_OK && is_text(value, len, want), name);
}

static void compare_set(coll_store_t *s)
{
    static const char *const key[] = {"swap"};

    check_swap(s, "x", "new", "x", "compare_set of a missing key");
    check_exist(s, key, 1, false, "it creates nothing");
    check_swap(s, "", "new", "new", "compare_set creates");
    check_swap(s, "other", "newer", "new", "compare_set with another value");
    check_swap(s, "", "newer", "new", "compare_set with nothing expected");
    check_swap(s, "new", "newer", "newer", "compare_set swaps");
    check_get(s, "swap", "newer", "get after compare_set");
}

static void several_keys(coll_store_t *a, coll_store_t *b)
{
    static const char *const keys[] = {"m0", "m1", "m2"};
    static const char *const missing[] = {"m0", "nowhere"};
    static const char old[] = "server has no multi_get";
    const void *const in[] = {"zero", "", "a\0b"};
    const size_t in_lens[] = {4, 0, 3};
    void *out[3] = {NULL};
    size_t lens[3] = {9, 9, 9};
    int64_t before = 0;
    int64_t after = 0;
    coll_status_t status = coll_store_num_keys(a, &before);

    check(status, before > 0, "num_keys");
    status = coll_store_multi_set(a, keys, 3, in, in_lens);
    if (!is_skipped(status, "multi_set", old))
        check(status, true, "multi_set");
    for (int i = 0; status == COLL_ERR_UNSUPPORTED && i < 3; i++)
        check(coll_store_set(a, keys[i], in[i], in_lens[i]), true, "set");
    status = coll_store_multi_get(a, keys, 3, out, lens);
    if (!is_skipped(status, "multi_get", old))
        check(status,
            lens[0] == 4 && lens[1] == 0 && lens[2] == 3 &&
                memcmp(out[2], in[2], 3) == 0,
            "multi_get");
    for (int i = 0; i < 3; i++)
        free(out[i]);
    check_exist(a, keys, 3, true, "check");
    status = coll_store_num_keys(b, &after);
    check(status, after == before + 3, "num_keys by another client");
    check_exist(b, missing, 2, false, "check of a missing key");
    check(coll_store_wait(b, keys, 3, 0), true, "wait for what is there");
    check_fails(coll_store_wait(b, missing, 2, 100), COLL_ERR_TIMEOUT,
        "wait for a missing key");
    check(set_text(b, "after", "x"), true, "set after that");
    check_get(b, "after", "x", "get after that: the store goes on");
    check_fails(coll_store_multi_get(b, missing, 2, out, lens),
        COLL_ERR_TIMEOUT, "multi_get of a missing key");
    check_get(b, "after", "x", "get after that");
    status = coll_store_append(a, "appended", "po", 2);
    if (!is_skipped(status, "append", old)) {
        check(status, true, "append creates");
        check(coll_store_append(a, "appended", "tato", 4), true, "append");
        check_get(a, "appended", "potato", "get of what was appended");
    }
}

static void queues(coll_store_t *a, coll_store_t *b)
{
    void *value = NULL;
    size_t len = 0;
    coll_status_t status = coll_store_queue_push(a, "queue", "first", 5);

    if (is_skipped(status, "queues", "server has no queues"))
        return;
    check(status, true, "queue_push");
    check(coll_store_queue_push(a, "queue", "second", 6), true, "again");
    check_queue_len(a, 2, "queue_len");
    status = coll_store_queue_pop(b, "queue", &value, &len, 0);
    check(status, status == COLL_OK && is_text(value, len, "first"),
        "queue_pop by another client");
    status = coll_store_queue_pop(a, "queue", &value, &len, 0);
    check(status, status == COLL_OK && is_text(value, len, "second"),
        "queue_pop");
    check_fails(coll_store_queue_pop(a, "queue", &value, &len, 100),
        COLL_ERR_TIMEOUT, "queue_pop of an empty queue");
    check_queue_len(a, 0, "queue_len after that");
}

static void lists(coll_store_t *s)
{
    char **keys = NULL;
    size_t nkeys = 0;
    size_t found = 0;
    coll_status_t status = coll_store_list_keys(s, &keys, &nkeys);

    if (is_skipped(status, "list_keys", "server cannot list keys"))
        return;
    for (size_t i = 0; status == COLL_OK && i < nkeys; i++)
        found += strcmp(keys[i], "swap") == 0 || strcmp(keys[i], "a//b") == 0;
    check(status, found == 2, "list_keys");
    free(keys);
}

/* A client may do so at any time, but this one is of no use afterwards. */
static void misuse(coll_store_t *s)
{
    check(set_text(s, "word", "word"), true, "set of a word");
    check_fails(
        coll_store_add(s, "word", 1, NULL), COLL_ERR_STORE, "add on a word");
    check_fails(set_text(s, "k", "v"), COLL_ERR_STORE,
        "which is the end of this client");
}

int main(int argc, char **argv)
{
    coll_store_options_t options = COLL_STORE_OPTIONS_INIT;
    int port = argc == 3 ? (int)strtol(argv[2], NULL, 10) : 0;
    coll_store_t *base[2] = {NULL};
    coll_store_t *view[2] = {NULL};
    char prefix[32];

    if (port < 1) {
        fprintf(stderr, "usage: store_ops HOST PORT\n");
        return 2;
    }
    options.timeout_ms = 10000;
    options.world_size = 2;
    snprintf(prefix, sizeof(prefix), "store_ops/%d", (int)getpid());
    for (int i = 0; i < 2; i++) {
        coll_status_t status =
            coll_store_tcp(&base[i], argv[1], port, &options);

        if (status == COLL_OK)
            status = coll_store_prefix(&view[i], prefix, base[i]);
        check(status, true, "connect");
        if (status != COLL_OK)
            goto done;
    }
    single_keys(view[0], view[1]);
    large_values(view[0], view[1]);
    compare_set(view[0]);
    check(coll_store_set_timeout(view[1], 1000), true, "set_timeout");
    several_keys(view[0], view[1]);
    queues(view[0], view[1]);
    lists(view[0]);
    misuse(view[0]);
done:
    for (int i = 0; i < 2; i++) {
        coll_store_close(view[i]);
        coll_store_close(base[i]);
    }
    printf("1..%d\n", tests);
    return failures != 0;
}
