/* The store of one process: the rules of each operation, and its threads. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "test_store.h"
#include "unit.h"
#include "worker/store.h"

#define K (&store_hash_kind)

/* Never over in a test that passes. */
#define FAR clock_deadline_ns(60000)
#define NOW clock_deadline_ns(0)

#define THREADS 8
#define ROUNDS 2000

static struct store_impl *store;
static struct err e;

/* Stands in for libc's: what to do at the end of the time, before the mutex is
 * there again. */
static void (*at_the_last_moment)(void);

int pthread_cond_timedwait(
    pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
    if (at_the_last_moment == NULL)
        return pthread_cond_clockwait(cond, mutex, CLOCK_MONOTONIC, until);
    pthread_mutex_unlock(mutex);
    at_the_last_moment();
    pthread_mutex_lock(mutex);
    return ETIMEDOUT;
}

static void setup(void)
{
    ck_assert_int_eq(store_hash_open(&store, &e), 0);
}

static void teardown(void)
{
    K->close(store);
}

static void set(const char *key, const char *value)
{
    struct err why;

    ck_assert_int_eq(K->set(store, key, text_bytes(value), FAR, &why), 0);
}

static void assert_value(const char *key, const char *want)
{
    struct buf value;

    buf_init(&value, SIZE_MAX / 2);
    ck_assert_int_eq(K->get(store, key, &value, NOW, &e), 0);
    assert_bytes(
        store_bytes(value.len > 0 ? buf_bytes(&value) : "", value.len), want);
    buf_fini(&value);
}

static bool has(const char *key)
{
    bool there;

    ck_assert_int_eq(K->check(store, &key, 1, &there, FAR, &e), 0);
    return there;
}

static pthread_t start(void *(*run)(void *), void *arg)
{
    pthread_t thread;

    ck_assert_int_eq(pthread_create(&thread, NULL, run, arg), 0);
    return thread;
}

static void join(pthread_t thread)
{
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

/* --- Operations --------------------------------------------------------- */

START_TEST(values_are_set_extended_and_deleted)
{
    bool existed = false;

    set("k", "");
    assert_value("k", "");
    set("k", "one");
    ck_assert_int_eq(K->append(store, "k", text_bytes("two"), FAR, &e), 0);
    ck_assert_int_eq(K->append(store, "n", text_bytes("new"), FAR, &e), 0);
    assert_value("k", "onetwo");
    assert_value("n", "new");
    ck_assert_int_eq(K->delete_key(store, "k", &existed, FAR, &e), 0);
    ck_assert(existed);
    ck_assert_int_eq(K->delete_key(store, "k", &existed, FAR, &e), 0);
    ck_assert(!existed);
    ck_assert_int_eq(K->delete_key(store, "n", NULL, FAR, &e), 0);
    ck_assert(!has("n"));
}
END_TEST

static const struct {
    const char *old, *expected, *desired, *now, *after;
} cas_rows[] = {
    {NULL, "", "new", "new", "new"},
    {NULL, "x", "new", "x", NULL},
    {"x", "x", "new", "new", "new"},
    {"x", "y", "new", "x", "x"},
    {"x", "", "new", "x", "x"},
    {"", "", "new", "new", "new"},
};

START_TEST(compare_set_follows_the_table)
{
    struct buf now;

    if (cas_rows[_i].old != NULL)
        set("k", cas_rows[_i].old);
    buf_init(&now, 1000);
    ck_assert_int_eq(
        K->compare_set(store, "k", text_bytes(cas_rows[_i].expected),
            text_bytes(cas_rows[_i].desired), &now, FAR, &e),
        0);
    assert_bytes(store_bytes(buf_bytes(&now), now.len), cas_rows[_i].now);
    ck_assert_int_eq(has("k"), cas_rows[_i].after != NULL);
    if (cas_rows[_i].after != NULL)
        assert_value("k", cas_rows[_i].after);
    buf_fini(&now);
}
END_TEST

START_TEST(add_counts_in_decimal_text)
{
    int64_t sum;

    ck_assert_int_eq(K->add(store, "n", 40, &sum, FAR, &e), 0);
    ck_assert_int_eq(K->add(store, "n", 2, &sum, FAR, &e), 0);
    ck_assert_int_eq(sum, 42);
    assert_value("n", "42");
    set("n", "text");
    ck_assert_int_eq(K->add(store, "n", 2, &sum, FAR, &e), -EINVAL);
    ck_assert_ptr_nonnull(strstr(e.msg, "'n'"));
    assert_value("n", "text");
}
END_TEST

START_TEST(several_keys_at_a_time)
{
    const char *keys[] = {"a", "b", "a"};
    struct store_bytes values[] = {
        text_bytes("1"), text_bytes("2"), text_bytes("3")};
    struct buf got[3];
    bool there;

    ck_assert_int_eq(K->wait(store, keys, 0, NOW, &e), 0);
    ck_assert_int_eq(K->check(store, keys, 0, &there, NOW, &e), 0);
    ck_assert(there);
    ck_assert_int_eq(K->multi_set(store, keys, values, 1, FAR, &e), 0);
    ck_assert_int_eq(K->check(store, keys, 3, &there, FAR, &e), 0);
    ck_assert(!there);
    ck_assert_int_eq(K->multi_set(store, keys, values, 3, FAR, &e), 0);
    ck_assert_int_eq(K->wait(store, keys, 3, NOW, &e), 0);
    for (int i = 0; i < 3; i++)
        buf_init(&got[i], 10);
    ck_assert_int_eq(K->multi_get(store, keys, 3, got, NOW, &e), 0);
    for (int i = 0; i < 3; i++) {
        static const char *const want[] = {"3", "2", "3"};

        assert_bytes(store_bytes(buf_bytes(&got[i]), got[i].len), want[i]);
        buf_fini(&got[i]);
    }
}
END_TEST

static void note_key_cb(struct store_bytes key, void *arg)
{
    struct buf *all = arg;

    ck_assert_int_eq(buf_append(all, key.data, key.len), 0);
    ck_assert_int_eq(buf_append(all, ";", 1), 0);
}

START_TEST(keys_are_listed_and_counted_but_queues_are_not)
{
    struct buf all;
    int64_t number;

    set("one", "1");
    set("/two", "2");
    ck_assert_int_eq(
        K->queue_push(store, "three", text_bytes("3"), FAR, &e), 0);
    buf_init(&all, 1000);
    ck_assert_int_eq(K->list_keys(store, note_key_cb, &all, FAR, &e), 0);
    ck_assert_uint_eq(all.len, strlen("one;/two;"));
    ck_assert_int_eq(buf_append(&all, "", 1), 0);
    ck_assert_ptr_nonnull(strstr(buf_bytes(&all), "one;"));
    ck_assert_ptr_nonnull(strstr(buf_bytes(&all), "/two;"));
    buf_fini(&all);
    ck_assert_int_eq(K->num_keys(store, &number, FAR, &e), 0);
    ck_assert_int_eq(number, 2);
}
END_TEST

START_TEST(queues_give_what_was_pushed_in_order)
{
    struct buf out;
    int64_t len;

    ck_assert_int_eq(K->queue_len(store, "q", &len, FAR, &e), 0);
    ck_assert_int_eq(len, 0);
    ck_assert_int_eq(K->queue_push(store, "q", text_bytes("1"), FAR, &e), 0);
    ck_assert_int_eq(K->queue_push(store, "q", text_bytes("2"), FAR, &e), 0);
    ck_assert_int_eq(K->queue_len(store, "q", &len, FAR, &e), 0);
    ck_assert_int_eq(len, 2);
    ck_assert(has("q"));
    buf_init(&out, 10);
    ck_assert_int_eq(K->queue_pop(store, "q", &out, NOW, &e), 0);
    ck_assert_int_eq(K->queue_pop(store, "q", &out, NOW, &e), 0);
    assert_bytes(store_bytes(buf_bytes(&out), out.len), "12");
    ck_assert(!has("q"));
    buf_fini(&out);
}
END_TEST

START_TEST(what_does_not_come_ends_in_a_timeout_that_names_it)
{
    const char *keys[] = {"a", "missing"};
    uint64_t start_ns = clock_now_ns();
    struct buf out;

    set("a", "");
    ck_assert_int_eq(
        K->wait(store, keys, 2, clock_deadline_ns(30), &e), -ETIMEDOUT);
    ck_assert_uint_ge(clock_now_ns() - start_ns, 30 * CLOCK_NS_PER_MS);
    ck_assert_ptr_nonnull(strstr(e.msg, "'missing'"));
    buf_init(&out, 10);
    ck_assert_int_eq(
        K->get(store, "missing", &out, clock_deadline_ns(1), &e), -ETIMEDOUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "'missing'"));
    /* A value is no element of the queue of that name, nor the reverse. */
    ck_assert_int_eq(
        K->queue_pop(store, "a", &out, clock_deadline_ns(1), &e), -ETIMEDOUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "'a'"));
    ck_assert_int_eq(K->queue_push(store, "q", text_bytes("1"), FAR, &e), 0);
    ck_assert_int_eq(
        K->get(store, "q", &out, clock_deadline_ns(1), &e), -ETIMEDOUT);
    ck_assert_uint_eq(out.len, 0);
}
END_TEST

static void bring_all(void)
{
    set("late", "x");
    ck_assert_int_eq(K->queue_push(store, "q", text_bytes("y"), FAR, &e), 0);
}

START_TEST(what_comes_with_the_timeout_has_come)
{
    const char *key = "late";
    struct buf out;

    at_the_last_moment = bring_all;
    buf_init(&out, 10);
    ck_assert_int_eq(K->wait(store, &key, 1, FAR, &e), 0);
    ck_assert_int_eq(K->delete_key(store, key, NULL, FAR, &e), 0);
    ck_assert_int_eq(K->get(store, key, &out, FAR, &e), 0);
    ck_assert_int_eq(K->queue_pop(store, "q", &out, FAR, &e), 0);
    ck_assert_int_eq(K->queue_pop(store, "q", &out, FAR, &e), 0);
    ck_assert_int_eq(K->queue_pop(store, "q", &out, FAR, &e), 0);
    assert_bytes(store_bytes(buf_bytes(&out), out.len), "xyyy");
    buf_fini(&out);
}
END_TEST

START_TEST(a_deadline_that_is_never_over_is_allowed)
{
    set("a", "1");
    ck_assert_int_eq(
        K->wait(store, (const char *[]){"a"}, 1, UINT64_MAX, &e), 0);
}
END_TEST

START_TEST(a_value_over_the_limit_changes_nothing)
{
    struct store_bytes huge = {"", ((size_t)128 << 20) + 1};
    struct buf now;

    set("k", "v");
    buf_init(&now, 10);
    ck_assert_int_eq(K->set(store, "k", huge, FAR, &e), -EMSGSIZE);
    ck_assert_int_eq(K->append(store, "k", huge, FAR, &e), -EMSGSIZE);
    ck_assert_int_eq(K->queue_push(store, "k", huge, FAR, &e), -EMSGSIZE);
    ck_assert_int_eq(
        K->compare_set(store, "k", text_bytes("v"), huge, &now, FAR, &e),
        -EMSGSIZE);
    assert_value("k", "v");
}
END_TEST

/* --- Threads ------------------------------------------------------------ */

static void *wait_for_both(void *arg)
{
    const char *keys[] = {"first", "second"};
    struct err why;

    (void)arg;
    ck_assert_int_eq(K->wait(store, keys, 2, FAR, &why), 0);
    set("woken", "");
    return NULL;
}

static void *get_woken(void *arg)
{
    struct buf value;
    struct err why;

    buf_init(&value, 10);
    ck_assert_int_eq(K->get(store, arg, &value, FAR, &why), 0);
    buf_fini(&value);
    return NULL;
}

/* What each kind of change brings. */
static void bring(const char *key, int how)
{
    struct buf now;
    int64_t sum;

    switch (how) {
    case 0:
        set(key, "1");
        break;
    case 1: /* PyTorch's forgets to wake */
        ck_assert_int_eq(K->add(store, key, 1, &sum, FAR, &e), 0);
        break;
    case 2:
        ck_assert_int_eq(K->append(store, key, text_bytes("1"), FAR, &e), 0);
        break;
    case 3:
        buf_init(&now, 10);
        ck_assert_int_eq(K->compare_set(store, key, text_bytes(""),
                             text_bytes("1"), &now, FAR, &e),
            0);
        buf_fini(&now);
        break;
    case 4:
        ck_assert_int_eq(
            K->queue_push(store, key, text_bytes("1"), FAR, &e), 0);
        break;
    }
}

/* The thread that waits stops neither the one that brings the keys nor
 * another one that waits. */
START_TEST(every_change_wakes_those_who_wait)
{
    pthread_t waiter = start(wait_for_both, NULL);
    pthread_t getter = start(get_woken, (char[]){"woken"});

    bring("first", _i);
    bring("second", _i);
    join(waiter);
    join(getter);
}
END_TEST

/* A thread that waits for one key. */
struct waiter {
    const char *key;
    pthread_t thread;
    pid_t tid; /* atomic; 0 until it runs */
    bool is_done; /* atomic */
};

static void *wait_for_key(void *arg)
{
    struct waiter *w = arg;
    struct err why;

    __atomic_store_n(&w->tid, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    ck_assert_int_eq(K->wait(store, &w->key, 1, FAR, &why), 0);
    __atomic_store_n(&w->is_done, true, __ATOMIC_RELEASE);
    return NULL;
}

static bool is_done(struct waiter *w)
{
    return __atomic_load_n(&w->is_done, __ATOMIC_ACQUIRE);
}

/* Returns when the thread sleeps in its wait, or has ended it. */
static void until_asleep(struct waiter *w)
{
    char name[64], stat[256];
    pid_t tid;

    while ((tid = __atomic_load_n(&w->tid, __ATOMIC_ACQUIRE)) == 0)
        sched_yield();
    snprintf(name, sizeof(name), "/proc/self/task/%d/stat", (int)tid);
    while (!is_done(w)) {
        FILE *file = fopen(name, "re");
        const char *state;

        if (file == NULL)
            continue; /* it has just ended */
        state = fgets(stat, sizeof(stat), file);
        fclose(file);
        state = state != NULL ? strrchr(stat, ')') : NULL;
        if (state != NULL && state[2] == 'S')
            return;
        sched_yield();
    }
}

START_TEST(one_element_of_a_queue_wakes_all_who_only_look)
{
    struct waiter waiters[THREADS] = {0};

    for (int i = 0; i < THREADS; i++) {
        waiters[i].key = "q";
        waiters[i].thread = start(wait_for_key, &waiters[i]);
        until_asleep(&waiters[i]);
    }
    ck_assert_int_eq(K->queue_push(store, "q", text_bytes("1"), FAR, &e), 0);
    for (int i = 0; i < THREADS; i++)
        join(waiters[i].thread);
}
END_TEST

/* On one processor, where a thread that is woken does not interrupt the one
 * that woke it: so the waiter does not run before the key is deleted. */
static void wake_late(void)
{
    struct sched_param param = {0};
    cpu_set_t cpus;

    CPU_ZERO(&cpus);
    CPU_SET(sched_getcpu(), &cpus);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(cpus), &cpus), 0);
    ck_assert_int_eq(sched_setscheduler(0, SCHED_BATCH, &param), 0);
}

START_TEST(a_key_that_is_deleted_at_once_has_come)
{
    struct waiter w = {.key = "flicker"};

    wake_late();
    w.thread = start(wait_for_key, &w);
    /* Once is enough, unless it slept on its way there. */
    for (int i = 0; i < 3 && !is_done(&w); i++) {
        int rc[2];

        until_asleep(&w);
        rc[0] = K->set(store, "flicker", store_bytes("", 0), FAR, &e);
        rc[1] = K->delete_key(store, "flicker", NULL, FAR, &e);
        ck_assert_int_eq(rc[0], 0);
        ck_assert_int_eq(rc[1], 0);
    }
    join(w.thread);
}
END_TEST

/* Every operation, mixed; the thread's number is in what compare_set writes,
 * so that none takes another's success for its own. */
static void *count_up(void *arg)
{
    int number = *(int *)arg;
    char have[40] = "", want[40];
    struct err why;
    int64_t sum;
    bool there;

    for (int i = 0; i < ROUNDS; i++) {
        const char *key = "added";

        ck_assert_int_eq(K->add(store, key, 1, &sum, FAR, &why), 0);
        ck_assert_int_eq(K->check(store, &key, 1, &there, FAR, &why), 0);
        ck_assert(there);
        ck_assert_int_eq(
            K->append(store, "appended", text_bytes("x"), FAR, &why), 0);
        do {
            struct buf now;

            snprintf(want, sizeof(want), "%d by %d", atoi(have) + 1, number);
            buf_init(&now, sizeof(have) - 1);
            ck_assert_int_eq(K->compare_set(store, "swapped", text_bytes(have),
                                 text_bytes(want), &now, FAR, &why),
                0);
            snprintf(have, sizeof(have), "%.*s", (int)now.len,
                now.len > 0 ? buf_bytes(&now) : "");
            buf_fini(&now);
        } while (strcmp(have, want) != 0);
    }
    return NULL;
}

START_TEST(changes_of_eight_threads_are_not_lost)
{
    pthread_t threads[THREADS];
    int numbers[THREADS];
    struct buf value;

    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        threads[i] = start(count_up, &numbers[i]);
    }
    for (int i = 0; i < THREADS; i++)
        join(threads[i]);
    assert_value("added", "16000");
    buf_init(&value, SIZE_MAX / 2);
    ck_assert_int_eq(K->get(store, "appended", &value, NOW, &e), 0);
    ck_assert_uint_eq(value.len, THREADS * ROUNDS);
    buf_consume(&value, value.len);
    ck_assert_int_eq(K->get(store, "swapped", &value, NOW, &e), 0);
    ck_assert_int_eq(buf_append(&value, "", 1), 0);
    ck_assert_int_eq(atoi(buf_bytes(&value)), THREADS * ROUNDS);
    buf_fini(&value);
}
END_TEST

static void *push_numbers(void *arg)
{
    struct err why;

    for (int i = 0; i < ROUNDS; i++) {
        char text[16];

        snprintf(text, sizeof(text), "%d", *(int *)arg * ROUNDS + i);
        ck_assert_int_eq(
            K->queue_push(store, "q", text_bytes(text), FAR, &why), 0);
    }
    return NULL;
}

static int taken[THREADS / 2 * ROUNDS]; /* how often each number came */

static void *pop_numbers(void *arg)
{
    struct err why;
    struct buf out;

    (void)arg;
    buf_init(&out, 16);
    for (int i = 0; i < ROUNDS; i++) {
        int number;

        ck_assert_int_eq(K->queue_pop(store, "q", &out, FAR, &why), 0);
        ck_assert_int_eq(buf_append(&out, "", 1), 0);
        number = atoi(buf_bytes(&out));
        ck_assert_int_lt(number, THREADS / 2 * ROUNDS);
        __atomic_add_fetch(&taken[number], 1, __ATOMIC_RELAXED);
        buf_consume(&out, out.len);
    }
    buf_fini(&out);
    return NULL;
}

START_TEST(each_element_is_given_to_one_thread)
{
    pthread_t threads[THREADS];
    int numbers[THREADS];
    int64_t len;

    for (int i = 0; i < THREADS / 2; i++) {
        numbers[i] = i;
        threads[i] = start(pop_numbers, NULL);
        threads[THREADS / 2 + i] = start(push_numbers, &numbers[i]);
    }
    for (int i = 0; i < THREADS; i++)
        join(threads[i]);
    for (int i = 0; i < THREADS / 2 * ROUNDS; i++)
        ck_assert_int_eq(taken[i], 1);
    ck_assert_int_eq(K->queue_len(store, "q", &len, FAR, &e), 0);
    ck_assert_int_eq(len, 0);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("store_hash");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, values_are_set_extended_and_deleted);
    tcase_add_loop_test(
        t, compare_set_follows_the_table, 0, LENGTH_OF(cas_rows));
    tcase_add_test(t, add_counts_in_decimal_text);
    tcase_add_test(t, several_keys_at_a_time);
    tcase_add_test(t, keys_are_listed_and_counted_but_queues_are_not);
    tcase_add_test(t, queues_give_what_was_pushed_in_order);
    tcase_add_test(t, what_does_not_come_ends_in_a_timeout_that_names_it);
    tcase_add_test(t, what_comes_with_the_timeout_has_come);
    tcase_add_test(t, a_deadline_that_is_never_over_is_allowed);
    tcase_add_test(t, a_value_over_the_limit_changes_nothing);
    tcase_add_loop_test(t, every_change_wakes_those_who_wait, 0, 5);
    tcase_add_test(t, one_element_of_a_queue_wakes_all_who_only_look);
    tcase_add_test(t, a_key_that_is_deleted_at_once_has_come);
    tcase_add_test(t, changes_of_eight_threads_are_not_lost);
    tcase_add_test(t, each_element_is_given_to_one_thread);
    return unit_run("store_hash", t);
}
