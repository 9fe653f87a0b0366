/*
 * What the ranks of shm_boot.c leave for each other in the store: rank 0's
 * claim, and notes of failures.
 */
#include "shm_boot.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coll_ranks.h"
#include "coll_terms.h"
#include "rendezvous/base/clock.h"

void boot_key_of(
    const struct boot *b, char out[BOOT_KEY_BYTES], const char *what)
{
    snprintf(out, BOOT_KEY_BYTES, "%s%s", b->prefix, what);
}

void boot_failed_key(const struct boot *b, char out[BOOT_KEY_BYTES])
{
    char what[64];

    snprintf(what, sizeof(what), "failed/%s", b->leader);
    boot_key_of(b, out, what);
}

int boot_get_text(struct boot *b, const char *key, char *out, size_t cap,
    uint64_t deadline_ns, struct err *e)
{
    struct buf value;
    int rc;

    buf_init(&value, cap - 1);
    rc = coll_store_do_get(b->store, key, &value, deadline_ns, e);
    if (rc == 0) {
        if (value.len > 0)
            memcpy(out, buf_bytes(&value), value.len);
        out[value.len] = '\0';
    }
    buf_fini(&value);
    return rc;
}

void boot_set_text(struct boot *b, const char *key, const char *text)
{
    struct err e;

    /* On the way out: there is nobody to tell that this failed, too. */
    coll_store_do_set(b->store, key, store_bytes(text, strlen(text)),
        clock_deadline_ns(LAST_WORDS_MS), &e);
}

int boot_check(struct boot *b, const char *key, bool *exists, struct err *e)
{
    return coll_store_do_check(
        b->store, &key, 1, exists, coll_store_answer_ns(b->deadline_ns), e);
}

int boot_delete(struct boot *b, const char *key, struct err *e)
{
    return coll_store_do_delete(
        b->store, key, NULL, coll_store_answer_ns(b->deadline_ns), e);
}

int boot_swap_text(struct boot *b, const char *key, const char *expected,
    const char *desired, char *out, size_t cap, struct err *e)
{
    struct buf now;
    int rc;

    buf_init(&now, cap - 1);
    rc = coll_store_do_compare_set(b->store, key,
        store_bytes(expected, strlen(expected)),
        store_bytes(desired, strlen(desired)), &now,
        coll_store_answer_ns(b->deadline_ns), e);
    if (rc == 0) {
        if (now.len > 0)
            memcpy(out, buf_bytes(&now), now.len);
        out[now.len] = '\0';
    }
    buf_fini(&now);
    return rc;
}

/* There is no /proc, or a sandbox hides it. */
static bool is_hidden(int error)
{
    return error == ENOENT || error == ENOTDIR || error == EACCES ||
           error == EPERM;
}

coll_status_t boot_node_get(struct node *node)
{
    const char *path = "/proc/sys/kernel/random/boot_id";
    struct stat st;
    FILE *f = fopen(path, "re");

    /* Without /proc both stay as they are: equal on all ranks, and ranks
     * that are apart do not find each other's sockets. But a rank that only
     * cannot look now must not seem to be apart. */
    if (f == NULL && !is_hidden(errno))
        return boot_fail_errno(path);
    if (f == NULL || fscanf(f, "%39s", node->boot_id) != 1)
        snprintf(node->boot_id, sizeof(node->boot_id), "-");
    if (f != NULL)
        fclose(f);
    if (stat("/proc/self/ns/net", &st) == 0)
        node->netns = st.st_ino;
    else if (!is_hidden(errno))
        return boot_fail_errno("/proc/self/ns/net");
    node->uid = (unsigned int)geteuid();
    return COLL_OK;
}

void boot_claim_text(const struct boot *b, char *out, size_t cap)
{
    const struct claim *c = &b->own;
    char terms[COLL_TERMS_BYTES];

    coll_terms_text(terms, b->g);
    snprintf(out, cap, "%s%s %s %llu %u", terms, c->name, c->node.boot_id,
        c->node.netns, c->node.uid);
}

coll_status_t boot_claim_parse(
    struct boot *b, struct claim *c, const char *text)
{
    const char *rest;
    int end = 0;
    coll_status_t status = coll_terms_check(b->g, text, &rest);

    if (status == COLL_ERR_ENVIRONMENT && sscanf(rest, "%32s", c->name) != 1)
        c->name[0] = '\0';
    if (status != COLL_OK)
        return status;
    if (sscanf(rest, "%32s %39s %llu %u%n", c->name, c->node.boot_id,
            &c->node.netns, &c->node.uid, &end) == 4 &&
        rest[end] == '\0' && strlen(c->name) == SHM_NAME_BYTES)
        return COLL_OK;
    return coll_fail(
        COLL_ERR_STORE, "coll_init: what rank 0 left in the store is no claim");
}

coll_status_t boot_check_node(const struct boot *b, const struct claim *c)
{
    const struct node *own = &b->own.node;
    int rank = coll_rank_name(b->g->names, b->g->rank);
    int leader = coll_rank_name(b->g->names, 0);

    if (strcmp(c->node.boot_id, own->boot_id) != 0)
        return coll_fail(COLL_ERR_UNSUPPORTED,
            "coll_init: rank %d runs on another machine than rank %d; the back "
            "end \"shm\" serves the processes of one node",
            rank, leader);
    if (c->node.netns != own->netns)
        return coll_fail(COLL_ERR_UNSUPPORTED,
            "coll_init: rank %d runs in another network namespace than rank "
            "%d; the back end \"shm\" serves the processes of one node",
            rank, leader);
    if (c->node.uid != own->uid)
        return coll_fail(COLL_ERR_UNSUPPORTED,
            "coll_init: rank %d runs as user %u, rank %d as user %u; ranks "
            "share memory and must run as one user",
            rank, own->uid, leader, c->node.uid);
    return COLL_OK;
}
