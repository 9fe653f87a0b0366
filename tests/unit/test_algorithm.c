/*
 * Every algorithm of every operation, forced, on all back ends and layouts:
 * results, what coll_explain() says, ranks that were told differently, and
 * texts that name nothing.
 */
#include <stdatomic.h>

#include "tests/unit/coll_every.h"
#include "tests/unit/coll_layouts.h"
#include "tests/unit/unit.h"
#include "worker/coll_algorithm.h"

/* Long enough for any of these tests on a loaded machine, short enough to
 * tell a hang. */
#define TIMEOUT_MS 60000

static struct harness_store store;

static void setup(void)
{
    unsetenv(ENV_NODE_ADDR);
    harness_store_start(&store);
}

static void teardown(void)
{
    harness_store_stop(&store);
}

/* --- Right results -------------------------------------------------------- */

/* What is asked for: one algorithm of one operation. */
struct forced {
    enum every kind;
    char choice[64]; /* "all_reduce:ring" */
    bool is_allocated; /* the buffers are of coll_alloc() */
    bool is_deterministic;
    _Atomic int times; /* it was taken */
};

enum {
    MORE_RANKS = UNIT_IS_SANITIZED ? 3 : 5,
    MANY = UNIT_IS_SANITIZED ? 9001 : 20011
};

static const size_t counts[] = {0, 1, 5, 700, MANY};

/* Moves the buffers of a call to memory that others can map. */
static void allocate(struct every_call *c, size_t bytes, void *memory[2])
{
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(coll_alloc(&memory[i], bytes));
        memcpy(memory[i], i == 0 ? c->send : c->recv, bytes);
    }
    every_free(c);
    c->send = memory[0];
    c->recv = memory[1];
}

static void run_one(
    struct coll_group *g, struct forced *f, size_t count, int root)
{
    struct every_call c;
    void *memory[2];
    char why[1024];
    size_t wrong;

    every_make(&c, f->kind, count, root, g->rank, g->size);
    if (f->is_allocated)
        allocate(&c, every_elements(&c, g->size) * sizeof(int32_t) + 1, memory);
    EXPECT_OK(every_run(&c, g, NULL));
    wrong = every_wrong(&c, g->rank, g->size);
    EXPECT_OK(coll_explain(g, why, sizeof(why)));
    EXPECT(wrong == 0, "%s, %d ranks, %zu elements: %zu are wrong; %.300s",
        f->choice, g->size, count, wrong, why);
    if (strstr(why, "; forced") != NULL && strstr(why, "; forced but") == NULL)
        atomic_fetch_add(&f->times, 1);
    if (!f->is_allocated) {
        every_free(&c);
        return;
    }
    for (int i = 0; i < 2; i++)
        EXPECT_OK(coll_free(memory[i]));
}

static void run_forced(struct coll_group *g, int rank, void *arg)
{
    struct forced *f = arg;

    (void)rank;
    g->is_deterministic = f->is_deterministic;
    EXPECT_OK(coll_algorithm_set(g, f->choice));
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        run_one(g, f, counts[i], 0);
        if (every_ops[f->kind].has_root)
            run_one(g, f, counts[i], g->size - 1);
    }
    EXPECT_OK(coll_algorithm_set(g, NULL));
}

/* Two ranks are deterministic if the number is odd, more if it is even. */
static void run_everywhere(struct forced *f, int number)
{
    static const int sizes[] = {2, MORE_RANKS};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        f->is_deterministic = ((size_t)number + i) % 2 != 0;
        harness_backend = &coll_backend_shm;
        harness_node_of = NULL;
        harness_run(&store, sizes[i], TIMEOUT_MS, run_forced, f);
        for (int l = 0; l < LAYOUTS_OF_NODES; l++) {
            choose_layout(l);
            harness_run(&store, sizes[i], TIMEOUT_MS, run_forced, f);
        }
    }
}

/* _i: one of the operations that have a choice. */
START_TEST(forced_algorithms_do_the_same)
{
    const char *operation = every_ops[_i].name;
    const char *name;

    for (int n = 0; (name = coll_algorithm_name(operation, n)) != NULL; n++) {
        struct forced f = {.kind = (enum every)_i};

        snprintf(f.choice, sizeof(f.choice), "%s:%s", operation, name);
        f.is_allocated = strcmp(name, "mapped") == 0;
        run_everywhere(&f, n);
        ck_assert_msg(f.times > 0, "%s was never taken", f.choice);
    }
}
END_TEST

/* --- Choices -------------------------------------------------------------- */

#define EXPECT_WHY(g, words)                                                   \
    do {                                                                       \
        char expect_why[1024];                                                 \
        EXPECT_OK(coll_explain(g, expect_why, sizeof(expect_why)));            \
        EXPECT(strstr(expect_why, words) != NULL, "\"%s\" is not in: %.300s",  \
            words, expect_why);                                                \
    } while (0)

static void run_count(struct coll_group *g, size_t count)
{
    struct every_call c;

    every_make(&c, EVERY_ALL_REDUCE, count, 0, g->rank, g->size);
    EXPECT_OK(every_run(&c, g, NULL));
    every_free(&c);
}

static void ask_why(struct coll_group *g, int rank, void *arg)
{
    char small[8];

    (void)rank;
    (void)arg;
    EXPECT_OK(coll_barrier(g));
    EXPECT_OK(coll_explain(g, small, sizeof(small)));
    EXPECT(small[0] == '\0', "a barrier: %s", small);
    run_count(g, 4);
    EXPECT_WHY(g, "shm: one_shot of all_reduce, 16 bytes, parts of 8, 2 ranks; "
                  "not mapped: for 16 KiB of all ranks");
    EXPECT_OK(coll_explain(g, small, sizeof(small)));
    EXPECT(strcmp(small, "shm: on") == 0, "cut: %s", small);
    run_count(g, 5000);
    EXPECT_WHY(g, "shm: two_shot of ");
    EXPECT_WHY(g, "; not one_shot: for 24 KiB of all ranks");
    EXPECT_OK(coll_algorithm_set(g, "all_reduce:one_shot"));
    run_count(g, 5000);
    EXPECT_WHY(g, "shm: two_shot of ");
    EXPECT_WHY(g, "; forced but impossible is one_shot: for 16 KiB at most");
    EXPECT_OK(coll_algorithm_set(g, "all_reduce:two_shot"));
    run_count(g, 4);
    EXPECT_WHY(g, "shm: two_shot of all_reduce, 16 bytes");
    EXPECT_WHY(g, "2 ranks; forced");
    run_count(g, 0);
    EXPECT_WHY(g, "; forced but impossible is two_shot: there are no bytes");
    EXPECT_OK(coll_algorithm_set(g, ""));
    EXPECT_WHY(g, "; forced but impossible is two_shot: there are no bytes");
    run_count(g, 4);
    EXPECT_WHY(g, "shm: one_shot of all_reduce, 16 bytes");
    /* It is of the operation, not of what was set since. */
    EXPECT_OK(coll_algorithm_set(g, "all_reduce:one_shot"));
    EXPECT_WHY(g, "2 ranks; not mapped: for 16 KiB");
    EXPECT_OK(coll_algorithm_set(g, NULL));
}

/* A message on its way is no operation. */
static void ask_beside_a_message(struct coll_group *g, int rank, void *arg)
{
    coll_work_t *work = NULL;
    int32_t x = 0;

    (void)arg;
    if (rank == 0)
        EXPECT_OK(coll_irecv(&x, 1, COLL_INT32, 1, 5, g, &work));
    EXPECT_OK(coll_algorithm_set(g, "all_reduce:two_shot"));
    run_count(g, 4);
    EXPECT_WHY(g, "2 ranks; forced");
    if (rank == 1)
        EXPECT_OK(coll_send(&x, 1, COLL_INT32, 0, 5, g));
    else
        EXPECT_OK(coll_work_wait(work, 0));
    coll_work_free(work);
}

/* What is forced for an operation is so for the steps of it. */
static void force_steps(struct coll_group *g, int rank, void *arg)
{
    (void)rank;
    (void)arg;
    EXPECT_OK(coll_algorithm_set(g, "all_reduce:two_shot"));
    run_count(g, 4);
    EXPECT_WHY(g, "nodes: hierarchical of all_reduce");
    EXPECT_WHY(
        g, "shm: two_shot of reduce, 16 bytes, parts of 8, 2 ranks; forced");
    EXPECT_WHY(g, "shm: staged of broadcast");
}

START_TEST(a_choice_is_explained)
{
    harness_backend = &coll_backend_shm;
    harness_node_of = NULL;
    harness_run(&store, 2, TIMEOUT_MS, ask_why, NULL);
    harness_run(&store, 2, TIMEOUT_MS, ask_beside_a_message, NULL);
    harness_backend = &coll_backend_nodes;
    harness_node_of = layout_pairs;
    harness_run(&store, 4, TIMEOUT_MS, force_steps, NULL);
}
END_TEST

static void force_unlike(struct coll_group *g, int rank, void *arg)
{
    const char *const *choices = arg;
    int32_t x[300] = {0};

    EXPECT_OK(coll_algorithm_set(g, choices[rank > 0]));
    EXPECT_FAILS(coll_all_reduce(x, x, 300, COLL_INT32, COLL_SUM, g),
        COLL_ERR_MISMATCH, "mismatch at operation #1: ");
    EXPECT(strstr(coll_last_error(), "algorithms") != NULL, "%s",
        coll_last_error());
}

/* _i: a layout, or behind them shared memory alone. */
START_TEST(unlike_choices_are_a_mismatch)
{
    static const char *const unlike[][2] = {
        {"all_reduce:ring", "all_reduce:eager"},
        {"", "all_reduce:two_shot"},
        {"all_reduce:one_shot", "all_reduce:mapped"},
        {"all_reduce:hierarchical", "all_reduce:flat"},
        {"all_reduce:ring", "all_reduce:ring,gather:tree"},
        {"all_reduce:two_shot", "all_gather_v:ring"},
        {"all_reduce:cma,broadcast:chain",
            "all_reduce:two_shot,broadcast:tree"},
    };

    harness_backend = &coll_backend_shm;
    harness_node_of = NULL;
    if (_i < LAYOUTS)
        choose_layout(_i);
    for (size_t i = 0; i < sizeof(unlike) / sizeof(unlike[0]); i++)
        harness_run(&store, 3, TIMEOUT_MS, force_unlike, (void *)unlike[i]);
}
END_TEST

/* --- Texts ---------------------------------------------------------------- */

static const struct {
    const char *text;
    const char *words;
} bad_texts[] = {
    {"reduce_all:ring", "\"reduce_all\" is no operation with a choice"},
    {"barrier:eager", "with one of: all_reduce, broadcast, reduce, "},
    {"all_reduce", "\"all_reduce\" does not name an algorithm"},
    {"all_reduce:", "does not name an algorithm"},
    {"all_reduce:star", "with one of: hierarchical, eager, flat, mapped, cma, "
                        "one_shot, two_shot, "},
    {"all_reduce:ring ", "\"all_reduce:ring \" does not name"},
    {"all_reduce:ring,,gather:tree", "\"\" is no operation"},
    {"all_reduce=ring", "\"all_reduce=ring\" is no operation"},
    {"send:eager", "\"send\" is no operation"},
    {":ring", "\"\" is no operation"},
};

static void fails(coll_status_t got, coll_status_t want, const char *words)
{
    ck_assert_int_eq(got, want);
    ck_assert_msg(strstr(coll_last_error(), words) != NULL,
        "\"%s\" is not in: %s", words, coll_last_error());
}

START_TEST(bad_texts_change_nothing)
{
    struct coll_tuning t = {.code = 0};
    struct coll_tuning before;

    ck_assert_int_eq(
        coll_algorithm_parse(&t, "all_reduce:ring", "x", COLL_ERR_ARGUMENT),
        COLL_OK);
    before = t;
    fails(coll_algorithm_parse(
              &t, bad_texts[_i].text, "where", COLL_ERR_ENVIRONMENT),
        COLL_ERR_ENVIRONMENT, bad_texts[_i].words);
    ck_assert_msg(
        strncmp(coll_last_error(), "where: ", 7) == 0, "%s", coll_last_error());
    ck_assert_mem_eq(&t, &before, sizeof(t));
}
END_TEST

/* Choices that differ have different codes. */
START_TEST(codes_tell_choices_apart)
{
    struct coll_tuning t = {.code = 0};
    uint32_t seen[16];
    int n = 0;
    const char *name;

    for (int i = 0; (name = coll_algorithm_name("all_reduce", i)) != NULL;
         i++, n++) {
        char text[64];

        snprintf(text, sizeof(text), "all_reduce:%s", name);
        ck_assert_int_eq(
            coll_algorithm_parse(&t, text, "x", COLL_ERR_ARGUMENT), COLL_OK);
        ck_assert_int_ne(t.code, 0);
        ck_assert_int_lt(n, 16);
        for (int k = 0; k < n; k++)
            ck_assert_uint_ne(t.code, seen[k]);
        seen[n] = t.code;
    }
    ck_assert_int_ge(n, 6);
    ck_assert_int_eq(
        coll_algorithm_parse(&t, NULL, "x", COLL_ERR_ARGUMENT), COLL_OK);
    ck_assert_int_eq(t.code, 0);
    ck_assert_ptr_null(coll_algorithm_name("all_reduce", n));
    ck_assert_ptr_null(coll_algorithm_name("send", 0));
    ck_assert_ptr_null(coll_algorithm_name("", 0));
    ck_assert_ptr_null(coll_algorithm_name(NULL, 0));
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("algorithm");

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(
        tc, forced_algorithms_do_the_same, 0, EVERY_REDUCE_SCATTER_V + 1);
    tcase_add_test(tc, a_choice_is_explained);
    tcase_add_loop_test(tc, unlike_choices_are_a_mismatch, 0, LAYOUTS + 1);
    tcase_add_loop_test(tc, bad_texts_change_nothing, 0,
        sizeof(bad_texts) / sizeof(bad_texts[0]));
    tcase_add_test(tc, codes_tell_choices_apart);
    return unit_run("algorithm", tc);
}
