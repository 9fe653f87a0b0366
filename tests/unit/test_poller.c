/* Descriptors that become ready, change and go while others are served. */
#include "rendezvous/poller.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "rendezvous/poller_uv.h"
#include "unit.h"

#define MANY 200

static struct poller *p;

/* An eventfd, which is readable from the start. */
struct thing {
    struct poller_item item;
    int fd;
    int calls;
    struct thing *victim; /* is closed by the callback */
    struct thing *heir; /* takes the victim's descriptor */
};

static void setup(void)
{
    ck_assert_int_eq(poller_create(&p), 0);
}

static void teardown(void)
{
    poller_destroy(p);
}

static int readable_fd(void)
{
    int fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);

    ck_assert_int_ge(fd, 0);
    return fd;
}

static void thing_ready_cb(struct poller_item *item, uint32_t events);

static struct thing *thing_create(void)
{
    struct thing *t = calloc(1, sizeof(*t));

    ck_assert_ptr_nonnull(t);
    t->fd = readable_fd();
    ck_assert_int_eq(
        poller_add(p, &t->item, t->fd, EPOLLIN, thing_ready_cb), 0);
    return t;
}

static void thing_free(struct thing *t)
{
    poller_remove(p, &t->item);
    close(t->fd);
    poller_free_later(p, &t->item, t);
}

static void thing_ready_cb(struct poller_item *item, uint32_t events)
{
    struct thing *t = (struct thing *)item;
    struct thing *victim = t->victim, *heir = t->heir;

    ck_assert(events & EPOLLIN);
    t->calls++;
    if (victim == NULL)
        return;
    t->victim = t->heir = NULL;
    if (heir != NULL) {
        int fd = victim->fd;

        thing_free(victim);
        ck_assert_int_eq(dup2(heir->fd, fd), fd);
        ck_assert_int_eq(
            poller_add(p, &heir->item, fd, EPOLLIN, thing_ready_cb), 0);
        close(heir->fd);
        heir->fd = fd;
    } else {
        thing_free(victim);
    }
    if (victim == t)
        return; /* freed, but not before the batch is over */
    if (heir == NULL)
        ck_assert_int_eq(victim->calls, 0);
}

START_TEST(who_is_ready_is_called)
{
    struct thing *t = thing_create();
    uint64_t count;

    ck_assert_int_eq(poller_run(p, -1), 1);
    ck_assert_int_eq(t->calls, 1);
    ck_assert_int_eq(poller_run(p, 0), 1); /* level-triggered */
    ck_assert_int_eq(t->calls, 2);
    ck_assert_int_eq(read(t->fd, &count, sizeof(count)), sizeof(count));
    ck_assert_int_eq(poller_run(p, 0), 0);
    thing_free(t);
}
END_TEST

START_TEST(change_decides_what_is_watched)
{
    struct thing *t = thing_create();

    ck_assert_int_eq(poller_change(p, &t->item, 0), 0);
    ck_assert_int_eq(poller_run(p, 0), 0);
    ck_assert_int_eq(poller_change(p, &t->item, EPOLLIN), 0);
    ck_assert_int_eq(poller_run(p, 0), 1);
    thing_free(t);
}
END_TEST

START_TEST(removed_item_is_not_called_and_may_be_added_again)
{
    struct thing *t = thing_create();

    poller_remove(p, &t->item);
    poller_remove(p, &t->item); /* once more is nothing */
    ck_assert_int_eq(poller_run(p, 0), 0);
    ck_assert_int_eq(
        poller_add(p, &t->item, t->fd, EPOLLIN, thing_ready_cb), 0);
    ck_assert_int_eq(poller_run(p, 0), 1);
    thing_free(t);
}
END_TEST

/* Whichever of the two is called first ends the other, whose event has been
 * fetched already. */
START_TEST(item_that_goes_within_the_batch_is_not_called)
{
    struct thing *a = thing_create();
    struct thing *b = thing_create();
    struct thing *left;

    a->victim = b;
    b->victim = a;
    ck_assert_int_eq(poller_run(p, 0), 2);
    ck_assert_int_eq(poller_run(p, 0), 1);
    left = a->calls == 2 ? a : b;
    ck_assert_int_eq(left->calls, 2);
    thing_free(left);
}
END_TEST

START_TEST(item_may_free_itself_in_its_callback)
{
    struct thing *t = thing_create();

    t->victim = t;
    ck_assert_int_eq(poller_run(p, 0), 1);
    ck_assert_int_eq(poller_run(p, 0), 0);
}
END_TEST

/* The event that was fetched is the victim's, not that of who has its
 * descriptor now. Events come in the order of readiness, so a is first. */
START_TEST(reused_descriptor_does_not_inherit_an_event)
{
    struct thing *a = thing_create();
    struct thing *b = thing_create();
    struct thing *heir = thing_create();
    uint64_t count;

    poller_remove(p, &heir->item);
    ck_assert_int_eq(read(heir->fd, &count, sizeof(count)), sizeof(count));
    a->victim = b;
    a->heir = heir;
    ck_assert_int_eq(poller_run(p, 0), 2);
    ck_assert_int_eq(heir->calls, 0);
    ck_assert_int_eq(poller_run(p, 0), 1);
    ck_assert_int_eq(heir->calls, 0); /* it is not readable */
    thing_free(a);
    thing_free(heir);
}
END_TEST

START_TEST(nobody_starves_among_many)
{
    struct thing *things[MANY];
    int turns = 0, calls;

    for (int i = 0; i < MANY; i++)
        things[i] = thing_create();
    for (calls = 0; calls < MANY; turns++)
        calls += poller_run(p, 0);
    ck_assert_int_lt(turns, MANY);
    for (int i = 0; i < MANY; i++) {
        ck_assert_int_ge(things[i]->calls, 1);
        thing_free(things[i]);
    }
}
END_TEST

START_TEST(what_cannot_be_watched_is_an_error)
{
    struct poller_item item = {.fd = 7};

    ck_assert_int_lt(poller_add(p, &item, -1, EPOLLIN, thing_ready_cb), 0);
    ck_assert_int_eq(item.fd, -1);
}
END_TEST

START_TEST(waiting_has_an_end)
{
    ck_assert_int_eq(poller_run(p, 1), 0);
}
END_TEST

static int closed;

static void closed_cb(struct poller_uv *u)
{
    ck_assert_ptr_eq(u->poller, p);
    closed++;
}

START_TEST(libuv_loop_serves_a_guest)
{
    struct poller_uv u = {0}, unused = {0};
    struct thing *t = thing_create();
    uv_loop_t loop;

    ck_assert_int_eq(uv_loop_init(&loop), 0);
    poller_uv_close(&unused, closed_cb);
    ck_assert_int_eq(poller_uv_start(&u, &loop, p), 0);
    t->victim = t; /* its only call ends it */
    uv_run(&loop, UV_RUN_ONCE);
    ck_assert_int_eq(poller_run(p, 0), 0);
    poller_uv_close(&u, closed_cb);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(closed, 1);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}
END_TEST

START_TEST(destroy_takes_null)
{
    poller_destroy(NULL);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("poller");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, who_is_ready_is_called);
    tcase_add_test(tc, change_decides_what_is_watched);
    tcase_add_test(tc, removed_item_is_not_called_and_may_be_added_again);
    tcase_add_test(tc, item_that_goes_within_the_batch_is_not_called);
    tcase_add_test(tc, item_may_free_itself_in_its_callback);
    tcase_add_test(tc, reused_descriptor_does_not_inherit_an_event);
    tcase_add_test(tc, nobody_starves_among_many);
    tcase_add_test(tc, what_cannot_be_watched_is_an_error);
    tcase_add_test(tc, waiting_has_an_end);
    tcase_add_test(tc, libuv_loop_serves_a_guest);
    tcase_add_test(tc, destroy_takes_null);
    return unit_run("poller", tc);
}
