/*
 * What one store, and one client of it, may take. Exceeding a limit ends the
 * client that did, with a line in the log, and nobody else; of requests and
 * replies that are too many together, the client that has most of them.
 */
#ifndef CRUN_RENDEZVOUS_STORE_LIMITS_H
#define CRUN_RENDEZVOUS_STORE_LIMITS_H

#include <stdbool.h>
#include <stddef.h>

struct store_limits {
    size_t clients; /* connections at a time, those still unknown included */
    size_t key_len; /* bytes of a key */
    size_t value_len; /* bytes of a value */
    size_t list_count; /* keys, or pairs, of one request */
    size_t memory; /* bytes of keys, values, queues, waits and buffers */
};

/*
 * Keys and lists as PyTorch's libuv server has them; values larger than its
 * 8 MiB, because its older server had no limit and programs rely on that.
 */
#define STORE_LIMITS_DEFAULT                                                   \
    ((struct store_limits){                                                    \
        .clients = 65536,                                                      \
        .key_len = 8192,                                                       \
        .value_len = (size_t)128 << 20,                                        \
        .list_count = 131072,                                                  \
        .memory = (size_t)1 << 30,                                             \
    })

/* Bytes of one request: a COMPARE_SET with two largest values fits, a list of
 * very many or very long items may not. */
static inline size_t store_limits_request(const struct store_limits *l)
{
    return 2 * l->value_len + l->key_len + ((size_t)64 << 10);
}

/*
 * The share of the memory limit that is for unfinished requests and unread
 * replies: a quarter, or what one largest request takes, but at most half.
 * The rest is for what is stored. So who fills the one is not in the way of
 * those who need the other.
 */
static inline size_t store_limits_buffers(const struct store_limits *l)
{
    size_t share = l->memory / 4;

    if (share < store_limits_request(l))
        share = store_limits_request(l);
    return share < l->memory / 2 ? share : l->memory / 2;
}

/* How much of a limit is in use. */
struct store_budget {
    size_t used;
    size_t max;
};

/* 0, or -EDQUOT when that would exceed the limit: then nothing was taken. */
int store_budget_take(struct store_budget *b, size_t bytes);
void store_budget_give(struct store_budget *b, size_t bytes);

/* The same as take, also beyond the limit. */
void store_budget_charge(struct store_budget *b, size_t bytes);

static inline bool store_budget_is_exceeded(const struct store_budget *b)
{
    return b->used > b->max;
}

#endif
