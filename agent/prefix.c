/*
 * See prefix.h. The template becomes one text in which what is known at once
 * is filled in, and a list of the places where something is to be inserted.
 */
#include "agent/prefix.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rendezvous/base/clock.h"

enum macro { MACRO_RANK, MACRO_LOCAL_RANK, MACRO_TIME };

struct insertion {
    size_t at; /* offset in the text */
    enum macro macro;
};

struct prefix {
    struct buf text;
    struct insertion *insertions; /* owned, in the order of their places */
    size_t ninsertions;
    bool has_time;
};

static int insert(struct prefix *p, enum macro macro)
{
    struct insertion *more =
        realloc(p->insertions, (p->ninsertions + 1) * sizeof(*more));

    if (more == NULL)
        return -ENOMEM;
    p->insertions = more;
    more[p->ninsertions++] =
        (struct insertion){.at = p->text.len, .macro = macro};
    p->has_time = p->has_time || macro == MACRO_TIME;
    return 0;
}

static bool is_name_char(char c, bool is_first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (!is_first && c >= '0' && c <= '9');
}

/* Length of what stands at a '$', and the name in it; a length of 1 is a
 * dollar that means nothing. */
static size_t parse_macro(const char *at, const char **name, size_t *name_len)
{
    bool has_brace = at[1] == '{';
    size_t len = 0;

    *name = at + 1 + has_brace;
    while (is_name_char((*name)[len], len == 0))
        len++;
    *name_len = len;
    if (len == 0 || (has_brace && (*name)[len] != '}'))
        return 1;
    return 1 + len + (has_brace ? 2 : 0);
}

static int put_macro(struct prefix *p, const char *at, size_t n,
    const char *name, size_t name_len, const char *role, const char *hostname)
{
#define IS(text)                                                               \
    (name_len == sizeof(text) - 1 && memcmp(name, text, name_len) == 0)
    if (n > 1 && IS("rank"))
        return insert(p, MACRO_RANK);
    if (n > 1 && IS("local_rank"))
        return insert(p, MACRO_LOCAL_RANK);
    if (n > 1 && IS("time"))
        return insert(p, MACRO_TIME);
    if (n > 1 && IS("role_name"))
        return buf_append(&p->text, role, strlen(role));
    if (n > 1 && IS("hostname"))
        return buf_append(&p->text, hostname, strcspn(hostname, "."));
    return buf_append(&p->text, at, n);
#undef IS
}

static int compile(struct prefix *p, const char *template, const char *role,
    const char *hostname)
{
    int rc = 0;

    while (rc == 0 && *template != '\0') {
        size_t n = strcspn(template, "$");
        const char *name;
        size_t name_len;

        rc = buf_append(&p->text, template, n);
        template += n;
        if (rc < 0 || *template == '\0')
            break;
        if (template[1] == '$') {
            rc = buf_append(&p->text, "$", 1);
            template += 2;
            continue;
        }
        n = parse_macro(template, &name, &name_len);
        rc = put_macro(p, template, n, name, name_len, role, hostname);
        template += n;
    }
    return rc;
}

int prefix_create(struct prefix **out, const char *template, bool has_timestamp,
    const char *role, const char *hostname)
{
    struct prefix *p = calloc(1, sizeof(*p));
    int rc = 0;

    if (p == NULL)
        return -ENOMEM;
    buf_init(&p->text, SIZE_MAX / 2);
    if (has_timestamp)
        rc = insert(p, MACRO_TIME);
    if (rc == 0 && has_timestamp)
        rc = buf_append(&p->text, " ", 1);
    if (rc == 0)
        rc = compile(p, template, role, hostname);
    if (rc < 0) {
        prefix_destroy(p);
        return rc;
    }
    *out = p;
    return 0;
}

void prefix_destroy(struct prefix *p)
{
    if (p == NULL)
        return;
    buf_fini(&p->text);
    free(p->insertions);
    free(p);
}

bool prefix_has_time(const struct prefix *p)
{
    return p->has_time;
}

static int append_time(uint64_t wall_ns, struct buf *out)
{
    time_t s = (time_t)(wall_ns / CLOCK_NS_PER_S);
    char text[64];
    struct tm tm;
    size_t n;

    if (localtime_r(&s, &tm) == NULL)
        return -EOVERFLOW;
    n = strftime(text, sizeof(text) - 8, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(text + n, 8, ".%03u",
        (unsigned)(wall_ns % CLOCK_NS_PER_S / CLOCK_NS_PER_MS));
    return buf_append(out, text, n);
}

int prefix_append(const struct prefix *p, const char *rank,
    const char *local_rank, uint64_t wall_ns, struct buf *out)
{
    size_t done = 0;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < p->ninsertions; i++) {
        const struct insertion *in = &p->insertions[i];

        rc = buf_append(out, buf_bytes(&p->text) + done, in->at - done);
        done = in->at;
        if (rc < 0)
            break;
        switch (in->macro) {
        case MACRO_RANK:
            rc = buf_append(out, rank, strlen(rank));
            break;
        case MACRO_LOCAL_RANK:
            rc = buf_append(out, local_rank, strlen(local_rank));
            break;
        case MACRO_TIME:
            rc = append_time(wall_ns, out);
            break;
        }
    }
    if (rc == 0)
        rc = buf_append(out, buf_bytes(&p->text) + done, p->text.len - done);
    return rc;
}
