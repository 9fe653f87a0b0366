/*
 * A list through its members: each embeds a link, and the list is a link of
 * its own, so that a member can leave without knowing which list it is in.
 */
#ifndef CRUN_BASE_RING_H
#define CRUN_BASE_RING_H

#include <stdbool.h>
#include <stddef.h>

struct ring {
    struct ring *next;
    struct ring *prev;
};

/* The object of a type that embeds the link as the given member. */
#define RING_OBJECT(link, type, member)                                        \
    ((type *)(void *)((char *)(link)-offsetof(type, member)))

/* An empty list, or a link that is in none. */
static inline void ring_init(struct ring *r)
{
    r->next = r;
    r->prev = r;
}

static inline bool ring_is_empty(const struct ring *r)
{
    return r->next == r;
}

static inline void ring_add_last(struct ring *list, struct ring *link)
{
    link->next = list;
    link->prev = list->prev;
    list->prev->next = link;
    list->prev = link;
}

/* Also for a link that is in no list. */
static inline void ring_remove(struct ring *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    ring_init(link);
}

#endif
