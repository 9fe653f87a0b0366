/* What begins each line of a worker. */
#include <stdlib.h>
#include <time.h>

#include "agent/prefix.h"
#include "rendezvous/base/clock.h"
#include "tests/unit/unit.h"

static const struct {
    const char *template;
    const char *text;
} cases[] = {
    {PREFIX_DEFAULT, "[trainer3]:"},
    {"", ""},
    {"plain", "plain"},
    {"${rank}/$local_rank ", "0-3/3 "},
    {"$$ $${rank} $", "$ ${rank} $"},
    {"${hostname}", "node7"},
    {"$rankle ${nope} $nope", "$rankle ${nope} $nope"},
    {"${rank", "${rank"},
    {"${}$1${1}", "${}$1${1}"},
    {"${ rank}", "${ rank}"},
    {"${rank}${rank}", "0-30-3"},
    {"$rank}", "0-3}"},
    {"$role_name.$rank", "trainer.0-3"},
};

START_TEST(templates)
{
    struct prefix *p = NULL;
    struct buf out;

    buf_init(&out, 1000);
    ck_assert_int_eq(prefix_create(&p, cases[_i].template, false, "trainer",
                         "node7.example.org"),
        0);
    ck_assert(!prefix_has_time(p));
    ck_assert_int_eq(prefix_append(p, "0-3", "3", 0, &out), 0);
    ck_assert_int_eq(buf_append(&out, "", 1), 0);
    ck_assert_str_eq(buf_bytes(&out), cases[_i].text);
    buf_fini(&out);
    prefix_destroy(p);
}
END_TEST

START_TEST(times)
{
    const uint64_t wall_ns = 1796040184567 * (uint64_t)CLOCK_NS_PER_MS;
    struct prefix *p = NULL;
    struct buf out;

    setenv("TZ", "UTC0", 1);
    tzset();
    buf_init(&out, 1000);
    ck_assert_int_eq(prefix_create(&p, "<${time}>", true, "r", "h"), 0);
    ck_assert(prefix_has_time(p));
    ck_assert_int_eq(prefix_append(p, "0", "0", wall_ns, &out), 0);
    ck_assert_int_eq(buf_append(&out, "", 1), 0);
    ck_assert_str_eq(
        buf_bytes(&out), "2026-11-30T12:03:04.567 <2026-11-30T12:03:04.567>");
    buf_fini(&out);
    prefix_destroy(p);
}
END_TEST

START_TEST(no_room_is_an_error)
{
    struct prefix *p = NULL;
    struct buf out;

    buf_init(&out, 3);
    ck_assert_int_eq(prefix_create(&p, "$rank$rank", false, "r", "h"), 0);
    ck_assert_int_lt(prefix_append(p, "12", "0", 0, &out), 0);
    buf_fini(&out);
    prefix_destroy(p);
    prefix_destroy(NULL);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("prefix");

    tcase_add_loop_test(
        t, templates, 0, (int)(sizeof(cases) / sizeof(cases[0])));
    tcase_add_test(t, times);
    tcase_add_test(t, no_room_is_an_error);
    return unit_run("prefix", t);
}
