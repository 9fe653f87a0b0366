/* What this process writes to its recorder, and how it is dumped. */
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rendezvous/worker_env.h"
#include "tests/unit/unit.h"
#include "worker/coll_agent.h"
#include "worker/coll_recorder.h"

static char dumped[RECORDER_ENTRIES * 1024];
static json_t *lines[RECORDER_ENTRIES];
static int nlines;

static void set_up(void)
{
    unsetenv(ENV_AGENT);
    setenv(ENV_RANK, "0", 1);
    setenv(ENV_WORLD_SIZE, "1", 1);
}

static void forget_lines(void)
{
    for (int i = 0; i < nlines; i++)
        json_decref(lines[i]);
    nlines = 0;
}

static void dump(void)
{
    FILE *f = tmpfile();
    char *save, *line;
    size_t n;

    forget_lines();
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(coll_recorder_dump(fileno(f)), COLL_OK);
    rewind(f);
    n = fread(dumped, 1, sizeof(dumped) - 1, f);
    dumped[n] = '\0';
    ck_assert(n == 0 || dumped[n - 1] == '\n');
    fclose(f);
    for (line = strtok_r(dumped, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        ck_assert_int_lt(nlines, RECORDER_ENTRIES);
        lines[nlines] = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        ck_assert_msg(lines[nlines] != NULL, "no JSON: %s", line);
        nlines++;
    }
}

/* A value as JSON has it. */
static void assert_value(int line, const char *key, const char *want)
{
    char *got = json_dumps(
        json_object_get(lines[line], key), JSON_ENCODE_ANY | JSON_COMPACT);

    ck_assert_ptr_nonnull(got);
    ck_assert_msg(strcmp(got, want) == 0, "%s is %s, not %s", key, got, want);
    free(got);
}

static json_int_t number(int line, const char *key)
{
    const json_t *value = json_object_get(lines[line], key);

    ck_assert(json_is_integer(value));
    return json_integer_value(value);
}

START_TEST(nothing_is_dumped_before_the_first_call)
{
    dump();
    ck_assert_int_eq(nlines, 0);
}
END_TEST

START_TEST(calls_are_dumped_also_when_all_is_over)
{
    float x[3] = {1, 2, 3};

    ck_assert_int_eq(coll_init(NULL), COLL_OK);
    ck_assert_int_eq(
        coll_all_reduce(x, x, 3, COLL_FLOAT32, COLL_MAX, NULL), COLL_OK);
    ck_assert_int_eq(coll_broadcast(x, 2, COLL_FLOAT32, 0, NULL), COLL_OK);
    ck_assert_int_eq(coll_barrier(NULL), COLL_OK);
    ck_assert_int_eq(coll_destroy(), COLL_OK);
    dump();
    ck_assert_int_eq(nlines, 4);
    assert_value(0, "kind", "\"coll_init\"");
    assert_value(0, "seq", "0");
    assert_value(0, "dtype", "null");
    assert_value(1, "kind", "\"all_reduce\"");
    assert_value(1, "group", "0");
    assert_value(1, "ranks", "null");
    assert_value(1, "seq", "1");
    assert_value(1, "dtype", "\"float32\"");
    assert_value(1, "op", "\"max\"");
    assert_value(1, "count", "3");
    assert_value(1, "root", "null");
    assert_value(1, "status", "0");
    assert_value(2, "kind", "\"broadcast\"");
    assert_value(2, "op", "null");
    assert_value(2, "root", "0");
    assert_value(3, "kind", "\"barrier\"");
    assert_value(3, "dtype", "null");
    for (int i = 0; i < 4; i++)
        ck_assert_int_ge(number(i, "finished_ns"), number(i, "entered_ns"));
}
END_TEST

START_TEST(a_call_that_has_not_ended_says_so)
{
    const struct coll_group g = {.id = 9, .size = 2};
    const struct coll_call call = {
        .kind = COLL_KIND_SEND, .dtype = COLL_INT8, .count = 7, .root = 1};
    uint64_t ticket;

    coll_agent_attach();
    ticket = coll_recorder_enter(&g, &call, 1000);
    dump();
    ck_assert_int_eq(nlines, 1);
    assert_value(0, "kind", "\"send\"");
    assert_value(0, "group", "9");
    assert_value(0, "root", "1");
    assert_value(0, "entered_ns", "1000");
    assert_value(0, "finished_ns", "null");
    assert_value(0, "status", "null");
    coll_recorder_finish(ticket, COLL_ERR_PEER, 1000);
    dump();
    assert_value(0, "status", "-8");
    ck_assert_int_gt(number(0, "finished_ns"), 1000);
}
END_TEST

/* The tick lies behind; an end does not lie before its beginning. */
START_TEST(a_call_does_not_end_before_it_begins)
{
    const struct coll_group g = {.size = 1};
    const struct coll_call call = {.kind = COLL_KIND_BARRIER, .seq = 1};

    coll_agent_attach();
    coll_recorder_finish(
        coll_recorder_enter(&g, &call, INT64_MAX / 2), COLL_OK, INT64_MAX / 2);
    dump();
    ck_assert_int_eq(number(0, "finished_ns"), INT64_MAX / 2);
}
END_TEST

START_TEST(groups_are_noted_by_the_names_of_their_ranks)
{
    static const int names[] = {1, 4, 5, 6};
    struct coll_group g = {.id = 9, .size = 4, .names = names};
    const struct coll_call call = {.kind = COLL_KIND_BARRIER, .seq = 1};

    coll_agent_attach();
    coll_recorder_add_group(&g);
    coll_recorder_enter(&g, &call, 1);
    dump();
    assert_value(0, "ranks", "\"1,4-6\"");
    g.size = 3;
    g.names = NULL;
    coll_recorder_add_group(&g);
    dump();
    assert_value(0, "ranks", "\"0-2\"");
    g.id = 0;
    coll_recorder_add_group(&g); /* the default group needs no place */
    ck_assert_uint_eq(atomic_load(&coll_agent_recorder()->ngroups), 1);
}
END_TEST

/* A stray pointer. */
START_TEST(garbage_is_dumped_as_json)
{
    struct recorder *r = coll_agent_recorder();
    unsigned int seed = (unsigned int)_i;

    coll_agent_attach();
    for (size_t i = offsetof(struct recorder, kinds); i < sizeof(*r); i++)
        ((unsigned char *)r)[i] = (unsigned char)rand_r(&seed);
    atomic_store(&r->head, RECORDER_ENTRIES);
    for (uint64_t i = 1; i <= RECORDER_ENTRIES; i++)
        atomic_store(&r->entries[i % RECORDER_ENTRIES].ticket, i);
    /* Numbers beyond 63 bits are none of jansson's. */
    for (int i = 0; i < RECORDER_ENTRIES; i++) {
        atomic_fetch_and(&r->entries[i].seq, INT64_MAX);
        atomic_fetch_and(&r->entries[i].count, INT64_MAX);
        atomic_fetch_and(&r->entries[i].entered_ns, INT64_MAX);
        atomic_fetch_and(&r->entries[i].finished_ns, INT64_MAX);
    }
    dump();
    ck_assert_int_eq(nlines, RECORDER_ENTRIES);
}
END_TEST

START_TEST(a_descriptor_that_takes_nothing_is_an_error)
{
    coll_agent_attach();
    coll_recorder_enter(&(struct coll_group){.size = 1},
        &(struct coll_call){.kind = COLL_KIND_BARRIER}, 1);
    ck_assert_int_eq(coll_recorder_dump(-1), COLL_ERR_SYSTEM);
    ck_assert_ptr_nonnull(
        strstr(coll_last_error(), "cannot write to descriptor -1"));
}
END_TEST

static _Atomic bool is_over;

static void *dump_again_and_again(void *arg)
{
    const int *fd = arg;
    long failures = 0;

    while (!atomic_load(&is_over))
        failures += coll_recorder_dump(*fd) != COLL_OK;
    return (void *)failures;
}

START_TEST(any_thread_may_dump_at_any_time)
{
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    pthread_t thread;
    void *failures;

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(
        pthread_create(&thread, NULL, dump_again_and_again, &fd), 0);
    for (int i = 0; i < 50; i++) {
        ck_assert_int_eq(coll_init(NULL), COLL_OK);
        for (int k = 0; k < 100; k++)
            ck_assert_int_eq(coll_barrier(NULL), COLL_OK);
        ck_assert_int_eq(coll_destroy(), COLL_OK);
    }
    atomic_store(&is_over, true);
    pthread_join(thread, &failures);
    ck_assert_ptr_null(failures);
    close(fd);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("coll_recorder");

    tcase_add_checked_fixture(t, set_up, forget_lines);
    tcase_add_test(t, nothing_is_dumped_before_the_first_call);
    tcase_add_test(t, calls_are_dumped_also_when_all_is_over);
    tcase_add_test(t, a_call_that_has_not_ended_says_so);
    tcase_add_test(t, a_call_does_not_end_before_it_begins);
    tcase_add_test(t, groups_are_noted_by_the_names_of_their_ranks);
    tcase_add_loop_test(t, garbage_is_dumped_as_json, 0, 20);
    tcase_add_test(t, a_descriptor_that_takes_nothing_is_an_error);
    tcase_add_test(t, any_thread_may_dump_at_any_time);
    return unit_run("coll_recorder", t);
}
