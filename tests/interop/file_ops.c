/*
 * A file store as a program, for PyTorch to share its file with.
 *
 *   file_ops PATH WORLD_SIZE
 *
 * Takes one call per line from standard input and answers each with one line:
 * "=" and the result, or "!" and the reason. Keys are words; values go in and
 * out as "x" and hexadecimal digits, so that an empty one is a word, too.
 * Ends when standard input does, and closes the store.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/base/clock.h"
#include "worker/store.h"

#define MAX_WORDS 16
#define PAIRS (MAX_WORDS / 2)

static const struct store_kind *const K = &store_file_kind;

struct call {
    struct store_impl *store;
    const char *words[MAX_WORDS];
    size_t count;
    struct buf value; /* of the value that is given or comes back */
    uint64_t deadline_ns;
    struct err e;
};

static void print_value(const struct buf *value, const char *lead)
{
    printf("%sx", lead);
    for (size_t i = 0; i < value->len; i++)
        printf("%02x", (unsigned char)buf_bytes(value)[i]);
}

/* A word of the form of values to bytes. */
static int read_value(const char *word, struct buf *out)
{
    unsigned byte;

    if (word == NULL || word[0] != 'x')
        return -EINVAL;
    for (word++; *word != '\0'; word += 2) {
        char c;

        if (sscanf(word, "%2x", &byte) != 1)
            return -EINVAL;
        c = (char)byte;
        if (buf_append(out, &c, 1) < 0)
            return -ENOMEM;
    }
    return 0;
}

static struct store_bytes bytes_of(const struct buf *b)
{
    return store_bytes(b->len > 0 ? buf_bytes(b) : "", b->len);
}

static int call_with_value(struct call *c,
    int (*call)(struct store_impl *s, const char *key, struct store_bytes value,
        uint64_t deadline_ns, struct err *e))
{
    int rc = read_value(c->words[2], &c->value);

    if (rc < 0)
        return err_set(&c->e, rc, "no value: %s", c->words[2]);
    rc =
        call(c->store, c->words[1], bytes_of(&c->value), c->deadline_ns, &c->e);
    if (rc == 0)
        printf("=");
    return rc;
}

static int do_set(struct call *c)
{
    return call_with_value(c, K->set);
}

static int do_append(struct call *c)
{
    return call_with_value(c, K->append);
}

static int do_get(struct call *c)
{
    int rc = K->get(c->store, c->words[1], &c->value, c->deadline_ns, &c->e);

    if (rc == 0)
        print_value(&c->value, "=");
    return rc;
}

static int do_add(struct call *c)
{
    int64_t times = c->words[3] != NULL ? strtoll(c->words[3], NULL, 10) : 1;
    int64_t sum = 0;
    int rc = 0;

    while (rc == 0 && times-- > 0)
        rc = K->add(c->store, c->words[1], strtoll(c->words[2], NULL, 10), &sum,
            c->deadline_ns, &c->e);
    if (rc == 0)
        printf("=%" PRId64, sum);
    return rc;
}

static int do_compare_set(struct call *c)
{
    struct buf expected, desired;
    int rc;

    buf_init(&expected, 1000);
    buf_init(&desired, 1000);
    if (read_value(c->words[2], &expected) < 0 ||
        read_value(c->words[3], &desired) < 0)
        rc = err_set(&c->e, -EINVAL, "no values");
    else
        rc = K->compare_set(c->store, c->words[1], bytes_of(&expected),
            bytes_of(&desired), &c->value, c->deadline_ns, &c->e);
    if (rc == 0)
        print_value(&c->value, "=");
    buf_fini(&expected);
    buf_fini(&desired);
    return rc;
}

static int do_delete(struct call *c)
{
    bool existed;
    int rc =
        K->delete_key(c->store, c->words[1], &existed, c->deadline_ns, &c->e);

    if (rc == 0)
        printf("=%d", existed);
    return rc;
}

static int do_check(struct call *c)
{
    bool there;
    int rc = K->check(
        c->store, c->words + 1, c->count - 1, &there, c->deadline_ns, &c->e);

    if (rc == 0)
        printf("=%d", there);
    return rc;
}

static int do_wait(struct call *c)
{
    int rc =
        K->wait(c->store, c->words + 1, c->count - 1, c->deadline_ns, &c->e);

    if (rc == 0)
        printf("=");
    return rc;
}

static int do_num_keys(struct call *c)
{
    int64_t number;
    int rc = K->num_keys(c->store, &number, c->deadline_ns, &c->e);

    if (rc == 0)
        printf("=%" PRId64, number);
    return rc;
}

static void print_key_cb(struct store_bytes key, void *arg)
{
    (void)arg;
    printf(" %.*s", (int)key.len, key.data);
}

static int do_list_keys(struct call *c)
{
    printf("=");
    return K->list_keys(c->store, print_key_cb, NULL, c->deadline_ns, &c->e);
}

static int do_multi_get(struct call *c)
{
    struct buf values[MAX_WORDS];
    int rc;

    for (size_t i = 0; i < MAX_WORDS; i++)
        buf_init(&values[i], SIZE_MAX / 2);
    rc = K->multi_get(
        c->store, c->words + 1, c->count - 1, values, c->deadline_ns, &c->e);
    if (rc == 0)
        printf("=");
    for (size_t i = 0; i < MAX_WORDS; i++) {
        if (rc == 0 && i < c->count - 1)
            print_value(&values[i], " ");
        buf_fini(&values[i]);
    }
    return rc;
}

static int do_multi_set(struct call *c)
{
    const char *keys[PAIRS] = {0};
    struct buf values[PAIRS] = {0};
    struct store_bytes bytes[PAIRS] = {0};
    size_t n = (c->count - 1) / 2;
    int rc = 0;

    for (size_t i = 0; i < n; i++) {
        keys[i] = c->words[1 + 2 * i];
        buf_init(&values[i], SIZE_MAX / 2);
        if (read_value(c->words[2 + 2 * i], &values[i]) < 0)
            rc = err_set(&c->e, -EINVAL, "no value of key %s", keys[i]);
        bytes[i] = bytes_of(&values[i]);
    }
    if (rc == 0)
        rc = K->multi_set(c->store, keys, bytes, n, c->deadline_ns, &c->e);
    for (size_t i = 0; i < n; i++)
        buf_fini(&values[i]);
    if (rc == 0)
        printf("=");
    return rc;
}

static const struct {
    const char *name;
    size_t words;
    int (*run)(struct call *c);
} calls[] = {
    {"set", 3, do_set},
    {"get", 2, do_get},
    {"add", 3, do_add},
    {"wait", 2, do_wait},
    {"compare_set", 4, do_compare_set},
    {"delete", 2, do_delete},
    {"check", 2, do_check},
    {"num_keys", 1, do_num_keys},
    {"append", 3, do_append},
    {"multi_get", 2, do_multi_get},
    {"multi_set", 3, do_multi_set},
    {"list_keys", 1, do_list_keys},
};

/* "within MS" in front of a call sets its deadline, else 60 s. */
static int run_line(struct call *c, char *line)
{
    int64_t timeout_ms = 60000;
    char *rest;

    memset(c->words, 0, sizeof(c->words));
    c->count = 0;
    for (char *word = strtok_r(line, " \n", &rest);
         word != NULL && c->count < MAX_WORDS;
         word = strtok_r(NULL, " \n", &rest)) {
        c->words[c->count++] = word;
        if (c->count == 2 && strcmp(c->words[0], "within") == 0) {
            timeout_ms = strtoll(word, NULL, 10);
            c->count = 0;
        }
    }
    c->deadline_ns = clock_deadline_ns(timeout_ms);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (c->count >= calls[i].words &&
            strcmp(calls[i].name, c->words[0]) == 0)
            return calls[i].run(c);
    return err_set(&c->e, -EINVAL, "no such call");
}

int main(int argc, char **argv)
{
    struct call c = {0};
    char *line = NULL;
    size_t size = 0;

    if (argc != 3) {
        fprintf(stderr, "usage: file_ops PATH WORLD_SIZE\n");
        return 2;
    }
    if (store_file_open(&c.store, argv[1], atoi(argv[2]),
            clock_deadline_ns(30000), &c.e) < 0) {
        printf("!%s\n", c.e.msg);
        return 1;
    }
    printf("=open\n");
    fflush(stdout);
    while (getline(&line, &size, stdin) > 0) {
        buf_init(&c.value, SIZE_MAX / 2);
        if (run_line(&c, line) < 0)
            printf("!%s", c.e.msg);
        printf("\n");
        fflush(stdout);
        buf_fini(&c.value);
    }
    K->close(c.store);
    free(line);
    return 0;
}
