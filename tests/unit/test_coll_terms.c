/*
 * Ranks that have not taken the same: another back end, or other results. Each
 * of them is told, and what both sides have taken.
 */
#include "tests/unit/coll_harness.h"
#include "tests/unit/unit.h"
#include "worker/coll_terms.h"

enum { TIMEOUT_MS = 60000, SIZE = 3 };

static struct harness_store store;

static void setup(void)
{
    harness_store_start(&store);
}

static void teardown(void)
{
    harness_store_stop(&store);
}

struct terms {
    const struct coll_backend *backend;
    bool is_deterministic;
    const char *words; /* what the sentence says of them */
};

struct joiner {
    const struct terms *terms;
    int rank;
    int attempt; /* those of one number meet */
    coll_status_t status;
    char text[512];
    pthread_t thread;
};

static void *join_main(void *arg)
{
    struct joiner *j = arg;
    const coll_store_options_t options = {.timeout_ms = TIMEOUT_MS};
    struct coll_group *g = NULL;
    char prefix[32];
    struct coll_boot boot = {
        .prefix = prefix,
        .deadline_ns = clock_deadline_ns(TIMEOUT_MS),
        .node = j->rank % 2,
        .is_deterministic = j->terms->is_deterministic,
    };

    snprintf(prefix, sizeof(prefix), "terms/%d/", j->attempt);
    j->status = coll_store_tcp(&boot.store, "127.0.0.1", store.port, &options);
    if (j->status == COLL_OK) {
        j->status = coll_group_create(
            &g, j->terms->backend, j->rank, SIZE, TIMEOUT_MS, &boot);
        snprintf(j->text, sizeof(j->text), "%s", coll_last_error());
    }
    coll_group_free(g);
    coll_store_close(boot.store);
    return NULL;
}

static void join(
    struct joiner *j, int rank, const struct terms *terms, int attempt)
{
    *j = (struct joiner){.terms = terms, .rank = rank, .attempt = attempt};
    ck_assert_int_eq(pthread_create(&j->thread, NULL, join_main, j), 0);
}

static const struct terms all[] = {
    {&coll_backend_shm, false, "\"shm\""},
    {&coll_backend_nodes, false, "\"nodes\""},
    {&coll_backend_tcp, false, "\"tcp\""},
    {&coll_backend_shm, true, "1"},
    {&coll_backend_nodes, true, "1"},
    {&coll_backend_tcp, true, "1"},
};

enum { BACKENDS = 3, ORDERS = 2 };

/* Ranks of which one or two differ. Whoever has told that lingers for a second,
 * so several such groups try at the same time. */
struct odd_group {
    struct joiner j[SIZE];
    char words[96];
};

/* order 0: rank 0 comes first, and rank 2 is like it; 1: last, and it is not.
 */
static void differ_start(struct odd_group *o, int attempt,
    const struct terms *leader, const struct terms *misfit, int order)
{
    const struct terms *of[SIZE] = {
        leader, misfit, order == 0 ? leader : misfit};

    for (int i = 0; i < SIZE; i++) {
        int r = order == 0 ? i : SIZE - 1 - i;

        join(&o->j[r], r, of[r], attempt);
    }
}

static void differ_end(struct odd_group *o)
{
    for (int r = 0; r < SIZE; r++) {
        struct joiner *j = &o->j[r];

        pthread_join(j->thread, NULL);
        ck_assert_msg(j->status == COLL_ERR_ENVIRONMENT, "rank %d: %s: %s", r,
            coll_strerror(j->status), j->text);
        ck_assert_msg(strstr(j->text, o->words) != NULL &&
                          strstr(j->text, "all ranks must take the same"),
            "\"%s\" is not in: %s", o->words, j->text);
    }
}

START_TEST(another_back_end_is_told)
{
    struct odd_group groups[BACKENDS * BACKENDS];
    int n = 0;

    for (int a = 0; a < BACKENDS; a++) {
        for (int b = 0; b < BACKENDS; b++) {
            struct odd_group *o = &groups[n];

            if (a == b)
                continue;
            snprintf(o->words, sizeof(o->words),
                " has the back end %s, rank 0 %s", all[b].words, all[a].words);
            differ_start(o, n++, &all[a], &all[b], _i);
        }
    }
    for (int i = 0; i < n; i++)
        differ_end(&groups[i]);
}
END_TEST

START_TEST(other_results_are_told)
{
    struct odd_group groups[2 * BACKENDS];

    for (int i = 0; i < 2 * BACKENDS; i++) {
        struct odd_group *o = &groups[i];
        int is_leader = i < BACKENDS;

        snprintf(o->words, sizeof(o->words),
            " has %d for deterministic results, rank 0 %d", is_leader,
            !is_leader);
        differ_start(o, i, &all[i], &all[(i + BACKENDS) % (2 * BACKENDS)], _i);
    }
    for (int i = 0; i < 2 * BACKENDS; i++)
        differ_end(&groups[i]);
}
END_TEST

/* What was told is no hindrance to those who try again. */
START_TEST(alike_ranks_meet_afterwards)
{
    struct odd_group groups[2 * BACKENDS];

    for (int a = 0; a < 2 * BACKENDS; a++) {
        groups[a].words[0] = '\0';
        differ_start(&groups[a], a, &all[a], &all[(a + 1) % BACKENDS], 0);
    }
    for (int a = 0; a < 2 * BACKENDS; a++)
        differ_end(&groups[a]);
    for (int a = 0; a < 2 * BACKENDS; a++) {
        struct joiner j[SIZE];

        for (int r = 0; r < SIZE; r++)
            join(&j[r], r, &all[a], a);
        for (int r = 0; r < SIZE; r++) {
            pthread_join(j[r].thread, NULL);
            ck_assert_msg(j[r].status == COLL_OK, "rank %d: %s", r, j[r].text);
        }
    }
}
END_TEST

START_TEST(what_is_no_claim_is_told)
{
    static const char *const texts[] = {"", "3", "3 shm", "2 shm 0 x", "shm 0"};
    struct coll_group g = {.backend = &coll_backend_shm, .rank = 1, .size = 2};
    char own[COLL_TERMS_BYTES];
    const char *rest = NULL;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        ck_assert_int_eq(coll_terms_check(&g, texts[i], &rest), COLL_ERR_STORE);
    coll_terms_text(own, &g);
    ck_assert_int_eq(coll_terms_check(&g, own, &rest), COLL_OK);
    ck_assert_str_eq(rest, "");
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("coll_terms");

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, another_back_end_is_told, 0, ORDERS);
    tcase_add_loop_test(tc, other_results_are_told, 0, ORDERS);
    tcase_add_test(tc, alike_ranks_meet_afterwards);
    tcase_add_test(tc, what_is_no_claim_is_told);
    return unit_run("coll_terms", tc);
}
