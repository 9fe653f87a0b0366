/*
 * The collectives that are made of messages, on the back ends tcp and nodes,
 * ranks as threads: results against a slow reference, ranks that do not do the
 * same, and the same bits for every layout. And the arithmetic below them.
 */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "tests/unit/coll_cases.h"
#include "tests/unit/coll_layouts.h"
#include "tests/unit/unit.h"
#include "worker/flat_internal.h"
#include "worker/kernel.h"
#include "worker/pattern.h"

static struct harness_store store;

/* Long enough for any of these tests on a loaded machine, short enough to
 * tell a hang. */
#define TIMEOUT_MS 60000

static void setup(void)
{
    unsetenv(ENV_NODE_ADDR);
    harness_store_start(&store);
}

static void teardown(void)
{
    harness_store_stop(&store);
}

static const int sizes[] = {2, 3, 4, 7, 8};

#define SIZES ((int)(sizeof(sizes) / sizeof(sizes[0])))

/* --- Right results -------------------------------------------------------- */

enum { MAX_RANKS = 8 };

/* What a rank sends and shall have afterwards. */
struct trial {
    struct coll_group *g;
    struct coll_call call;
    char *send; /* all that this rank has to send */
    size_t send_len; /* elements */
    char *want; /* all that it shall have in recv */
    char *recv;
    size_t recv_len;
    size_t send_counts[MAX_RANKS];
    size_t send_at[MAX_RANKS];
    size_t recv_counts[MAX_RANKS];
    size_t recv_at[MAX_RANKS];
};

/* Uneven, and some are empty. */
static size_t uneven(const struct trial *t, int a, int b)
{
    return (size_t)(a * 3 + b * 5) % 4 * t->call.count / 3;
}

/* Parts lie in reverse order with a gap of one element; returns the end. */
static size_t place(int size, const size_t *counts, size_t *at)
{
    size_t end = 0;

    for (int r = size - 1; r >= 0; r--) {
        at[r] = end;
        end += counts[r] + 1;
    }
    return end;
}

/* What element i of a rank is before the call, and in a reduction after it. */
static void put_value(const struct trial *t, char *at, int rank, size_t i)
{
    put(at, t->call.dtype, value_of(rank, i, t->call.op));
}

/* n elements of recv come from a rank's from on, or -1: are reduced. */
static void expect(struct trial *t, size_t at, int rank, size_t from, size_t n)
{
    size_t elem = coll_dtype_size(t->call.dtype);

    for (size_t i = 0; i < n; i++) {
        char *to = t->want + (at + i) * elem;

        if (rank >= 0)
            put_value(t, to, rank, from + i);
        else
            put(to, t->call.dtype, reference(t->g->size, from + i, t->call.op));
    }
}

static void set_lengths(struct trial *t)
{
    size_t n = (size_t)t->g->size;
    size_t count = t->call.count;
    int rank = t->g->rank;
    bool is_root = rank == t->call.root;

    t->send_len = count;
    t->recv_len = count;
    switch (t->call.kind) {
    case COLL_KIND_REDUCE:
        t->recv_len = is_root ? count : 0;
        break;
    case COLL_KIND_ALL_GATHER:
        t->recv_len = n * count;
        break;
    case COLL_KIND_GATHER:
        t->recv_len = is_root ? n * count : 0;
        break;
    case COLL_KIND_SCATTER:
        t->send_len = is_root ? n * count : 0;
        break;
    case COLL_KIND_REDUCE_SCATTER:
        t->send_len = n * count;
        break;
    case COLL_KIND_ALL_TO_ALL:
        t->send_len = n * count;
        t->recv_len = n * count;
        break;
    case COLL_KIND_ALL_GATHER_V:
        for (int r = 0; r < t->g->size; r++)
            t->recv_counts[r] = uneven(t, r, 1);
        t->send_len = t->recv_counts[rank];
        t->recv_len = place(t->g->size, t->recv_counts, t->recv_at);
        break;
    case COLL_KIND_REDUCE_SCATTER_V:
        for (int r = 0; r < t->g->size; r++)
            t->send_counts[r] = uneven(t, r, 1);
        t->send_len = place(t->g->size, t->send_counts, t->send_at);
        t->recv_len = t->send_counts[rank];
        break;
    case COLL_KIND_ALL_TO_ALL_V:
        for (int r = 0; r < t->g->size; r++) {
            t->send_counts[r] = uneven(t, rank, r);
            t->recv_counts[r] = uneven(t, r, rank);
        }
        t->send_len = place(t->g->size, t->send_counts, t->send_at);
        t->recv_len = place(t->g->size, t->recv_counts, t->recv_at);
        break;
    default:
        break;
    }
}

static void set_want(struct trial *t)
{
    size_t count = t->call.count;
    int rank = t->g->rank;
    size_t own = (size_t)rank * count;
    struct trial *other;

    switch (t->call.kind) {
    case COLL_KIND_ALL_REDUCE:
    case COLL_KIND_REDUCE:
        expect(t, 0, -1, 0, t->recv_len);
        break;
    case COLL_KIND_ALL_GATHER:
    case COLL_KIND_GATHER:
        for (size_t r = 0; r * count < t->recv_len; r++)
            expect(t, r * count, (int)r, 0, count);
        break;
    case COLL_KIND_SCATTER:
        expect(t, 0, t->call.root, own, count);
        break;
    case COLL_KIND_REDUCE_SCATTER:
        expect(t, 0, -1, own, count);
        break;
    case COLL_KIND_ALL_TO_ALL:
        for (int r = 0; r < t->g->size; r++)
            expect(t, (size_t)r * count, r, own, count);
        break;
    case COLL_KIND_ALL_GATHER_V:
        for (int r = 0; r < t->g->size; r++)
            expect(t, t->recv_at[r], r, 0, t->recv_counts[r]);
        break;
    case COLL_KIND_REDUCE_SCATTER_V:
        expect(t, 0, -1, t->send_at[rank], t->recv_len);
        break;
    case COLL_KIND_ALL_TO_ALL_V:
        other = calloc(1, sizeof(*other));
        for (int r = 0; r < t->g->size; r++) {
            for (int q = 0; q < t->g->size; q++)
                other->send_counts[q] = uneven(t, r, q);
            place(t->g->size, other->send_counts, other->send_at);
            expect(
                t, t->recv_at[r], r, other->send_at[rank], t->recv_counts[r]);
        }
        free(other);
        break;
    default:
        break;
    }
}

/* Where the sent elements lie in recv, or the received ones in send. */
static void go_in_place(struct trial *t)
{
    size_t elem = coll_dtype_size(t->call.dtype);
    size_t own = (size_t)t->g->rank * t->call.count;
    bool is_root = t->g->rank == t->call.root;

    switch (t->call.kind) {
    case COLL_KIND_REDUCE:
        if (is_root)
            t->call.sendbuf = t->recv;
        break;
    case COLL_KIND_ALL_REDUCE:
    case COLL_KIND_ALL_TO_ALL:
        t->call.sendbuf = t->recv;
        break;
    case COLL_KIND_GATHER:
        if (is_root)
            t->call.sendbuf = t->recv + own * elem;
        break;
    case COLL_KIND_ALL_GATHER:
        t->call.sendbuf = t->recv + own * elem;
        break;
    case COLL_KIND_ALL_GATHER_V:
        t->call.sendbuf = t->recv + t->recv_at[t->g->rank] * elem;
        break;
    case COLL_KIND_SCATTER:
        if (is_root)
            t->call.recvbuf = t->send + own * elem;
        break;
    case COLL_KIND_REDUCE_SCATTER:
        t->call.recvbuf = t->send + own * elem;
        break;
    case COLL_KIND_REDUCE_SCATTER_V:
        t->call.recvbuf = t->send + t->send_at[t->g->rank] * elem;
        break;
    default:
        break;
    }
    if (t->call.sendbuf != t->send)
        memcpy((char *)t->call.sendbuf, t->send, t->send_len * elem);
}

static void run_trial(struct trial *t, bool is_in_place)
{
    size_t elem = coll_dtype_size(t->call.dtype);
    size_t wrong = 0;
    const char *got;

    set_lengths(t);
    t->send = malloc(t->send_len * elem + 1);
    t->recv = malloc(t->recv_len * elem + 1);
    t->want = malloc(t->recv_len * elem + 1);
    memset(t->recv, 77, t->recv_len * elem + 1);
    memset(t->want, 77, t->recv_len * elem + 1);
    for (size_t i = 0; i < t->send_len; i++)
        put_value(t, t->send + i * elem, t->g->rank, i);
    set_want(t);
    t->call.sendbuf = t->send;
    t->call.recvbuf = t->recv_len == 0 ? NULL : t->recv;
    if (t->call.kind >= COLL_KIND_ALL_GATHER_V &&
        t->call.kind <= COLL_KIND_ALL_TO_ALL_V) {
        t->call.send_counts = t->send_counts;
        t->call.send_at = t->send_at;
        t->call.recv_counts = t->recv_counts;
        t->call.recv_at = t->recv_at;
        if (t->call.kind == COLL_KIND_ALL_GATHER_V)
            t->call.send_counts = t->call.send_at = NULL;
        if (t->call.kind == COLL_KIND_REDUCE_SCATTER_V)
            t->call.recv_counts = t->call.recv_at = NULL;
    }
    if (is_in_place)
        go_in_place(t);
    got = t->call.recvbuf;
    EXPECT_OK(coll_group_run(t->g, &t->call));
    for (size_t i = 0; i < t->recv_len; i++)
        wrong += memcmp(got + i * elem, t->want + i * elem, elem) != 0;
    EXPECT(wrong == 0 && t->recv[t->recv_len * elem] == 77,
        "rank %d: %zu of %zu wrong: %s, count %zu, %s, %s, root %d, in place "
        "%d",
        t->g->rank, wrong, t->recv_len, coll_kind_name(t->call.kind),
        t->call.count, coll_dtype_name(t->call.dtype), coll_op_name(t->call.op),
        t->call.root, is_in_place);
    wrong = 0;
    for (size_t i = 0; i < t->send_len && t->call.recvbuf == t->recv; i++) {
        char was[16];

        put_value(t, was, t->g->rank, i);
        wrong += memcmp(was, t->send + i * elem, elem) != 0;
    }
    EXPECT(wrong == 0, "rank %d: %zu elements of sendbuf changed in %s",
        t->g->rank, wrong, coll_kind_name(t->call.kind));
    free(t->send);
    free(t->recv);
    free(t->want);
}

static const coll_dtype_t dtypes[] = {
    COLL_FLOAT32, COLL_FLOAT64, COLL_INT32, COLL_INT64};

static void run_counts(struct coll_group *g, enum coll_kind kind,
    const size_t *counts, int n, int roots)
{
    int style = (int)kind;

    for (int c = 0; c < n; c++)
        for (int root = 0; root < roots; root++)
            for (int i = 0; i < 2; i++, style++) {
                struct trial t = {
                    .g = g,
                    .call = {.kind = kind,
                        .dtype = dtypes[style % 4],
                        .op = (coll_op_t)(style % (COLL_PRODUCT + 1)),
                        .root = root,
                        .count = counts[c]},
                };

                run_trial(&t, i == 1);
            }
}

static bool has_root(enum coll_kind kind)
{
    return kind == COLL_KIND_REDUCE || kind == COLL_KIND_GATHER ||
           kind == COLL_KIND_SCATTER;
}

static void small_ones(struct coll_group *g, int rank, void *arg)
{
    static const size_t counts[] = {0, 1, 5, 1000, 1500, 3000};

    (void)rank;
    (void)arg;
    for (int k = COLL_KIND_REDUCE; k <= COLL_KIND_ALL_TO_ALL_V; k++)
        run_counts(g, (enum coll_kind)k, counts, 6,
            has_root((enum coll_kind)k) ? g->size : 1);
}

START_TEST(small_operations_are_right)
{
    choose_layout(_i / SIZES);
    harness_run(&store, sizes[_i % SIZES], TIMEOUT_MS, small_ones, NULL);
}
END_TEST

/* More than what is sent in one piece. */
static void large_ones(struct coll_group *g, int rank, void *arg)
{
    static const size_t counts[] = {70000};
    static const size_t huge[] = {1200000};

    (void)rank;
    (void)arg;
    for (int k = COLL_KIND_REDUCE; k <= COLL_KIND_ALL_TO_ALL_V; k++)
        run_counts(g, (enum coll_kind)k, counts, 1,
            has_root((enum coll_kind)k) ? 2 : 1);
    run_counts(g, COLL_KIND_REDUCE, huge, 1, 2);
}

START_TEST(large_operations_are_right)
{
    int size = sizes[_i % SIZES];

    if (UNIT_IS_SANITIZED && size != 3 && size != 4)
        return;
    choose_layout(_i / SIZES);
    harness_run(&store, size, TIMEOUT_MS, large_ones, NULL);
}
END_TEST

/* --- The same bits -------------------------------------------------------- */

/* Any bit pattern: rounding, infinities, NaNs with payloads. */
static void make_noise(float *to, int rank, size_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = (i * 31 + (uint32_t)rank) * 2654435761u;

        memcpy(&to[i], &bits, sizeof(bits));
    }
}

enum { NOISE_RANKS = 7 };

static void reduce_noise(
    struct coll_group *g, enum coll_kind kind, size_t count, coll_op_t op)
{
    size_t n = kind == COLL_KIND_REDUCE_SCATTER ? count * NOISE_RANKS : count;
    size_t from =
        kind == COLL_KIND_REDUCE_SCATTER ? count * (size_t)g->rank : 0;
    float *all = malloc(NOISE_RANKS * n * sizeof(*all));
    float *want = malloc(n * sizeof(*want));
    float *got = malloc(n * sizeof(*got));
    const void *srcs[NOISE_RANKS];
    struct coll_call call = {
        .kind = kind,
        .dtype = COLL_FLOAT32,
        .op = op,
        .root = 3,
        .count = count,
        .sendbuf = all + (size_t)g->rank * n,
        .recvbuf = got,
    };

    for (int r = 0; r < NOISE_RANKS; r++) {
        make_noise(all + (size_t)r * n, r, n);
        srcs[r] = all + (size_t)r * n;
    }
    kernel_reduce(want, srcs, NOISE_RANKS, n, COLL_FLOAT32, op);
    EXPECT_OK(coll_group_run(g, &call));
    if (kind != COLL_KIND_REDUCE || g->rank == call.root)
        EXPECT(memcmp(want + from, got, count * sizeof(*got)) == 0,
            "rank %d: %s, %zu %s: other bits than in rank order", g->rank,
            coll_kind_name(kind), count, coll_op_name(op));
    free(all);
    free(want);
    free(got);
}

static void deterministic_ones(struct coll_group *g, int rank, void *arg)
{
    static const enum coll_kind kinds[] = {
        COLL_KIND_ALL_REDUCE, COLL_KIND_REDUCE, COLL_KIND_REDUCE_SCATTER};
    static const size_t counts[] = {1, 1001, 300001};

    (void)rank;
    (void)arg;
    g->is_deterministic = true;
    for (int k = 0; k < 3; k++)
        for (int c = 0; c < 3; c++)
            reduce_noise(
                g, kinds[k], counts[c], c % 2 == 0 ? COLL_AVG : COLL_SUM);
}

START_TEST(deterministic_results_are_those_of_one_node)
{
    choose_layout(_i);
    harness_run(&store, NOISE_RANKS, TIMEOUT_MS, deterministic_ones, NULL);
}
END_TEST

/* --- Ranks that do not do the same ---------------------------------------- */

enum { ODD_RANKS = 6, ODD_COUNT = 4, WAYS = 5 };

/* Rank 4 calls something else. */
static void make_odd(struct coll_call *call, int way)
{
    switch (way) {
    case 0:
        call->count++;
        call->extra++; /* of the _v kinds: the counts */
        break;
    case 1:
        call->dtype = COLL_INT32;
        break;
    case 2:
        call->op = COLL_MAX;
        break;
    case 3:
        call->root = 1;
        break;
    default:
        call->kind = COLL_KIND_BARRIER;
        break;
    }
}

static void one_differs(struct coll_group *g, int rank, void *arg)
{
    const int *what = arg;
    float send[(ODD_COUNT + 1) * ODD_RANKS] = {0};
    float recv[(ODD_COUNT + 1) * ODD_RANKS];
    size_t counts[ODD_RANKS];
    size_t at[ODD_RANKS];
    struct coll_call call = {
        .kind = (enum coll_kind)what[0],
        .dtype = COLL_FLOAT32,
        .count = ODD_COUNT,
        .sendbuf = send,
        .recvbuf = recv,
        .send_counts = counts,
        .send_at = at,
        .recv_counts = counts,
        .recv_at = at,
    };
    coll_status_t status;

    if (call.kind < COLL_KIND_ALL_GATHER_V)
        call.send_counts = call.send_at = call.recv_counts = call.recv_at =
            NULL;
    for (size_t i = 0; i < ODD_RANKS; i++) {
        counts[i] = ODD_COUNT;
        at[i] = i * ODD_COUNT;
    }
    if (rank == 4)
        make_odd(&call, what[1]);
    status = coll_group_run(g, &call);
    EXPECT(status == COLL_ERR_MISMATCH, "rank %d: %s way %d: %s %s", rank,
        coll_kind_name((enum coll_kind)what[0]), what[1], coll_strerror(status),
        coll_last_error());
    EXPECT(strstr(coll_last_error(), "mismatch at operation #1: ") != NULL &&
               strstr(coll_last_error(), "4 called ") != NULL,
        "%s", coll_last_error());
}

/* Whether calls of a kind differ in that way at all. */
static bool is_different(enum coll_kind kind, int way)
{
    if (way == 0) /* all_to_all_v: see below */
        return kind != COLL_KIND_ALL_TO_ALL_V;
    if (way == 2)
        return kind == COLL_KIND_REDUCE || kind == COLL_KIND_REDUCE_SCATTER ||
               kind == COLL_KIND_REDUCE_SCATTER_V;
    return way != 3 || has_root(kind);
}

START_TEST(different_calls_fail_everywhere)
{
    choose_layout(_i);
    for (int k = COLL_KIND_REDUCE; k <= COLL_KIND_ALL_TO_ALL_V; k++)
        for (int way = 0; way < WAYS; way++) {
            int what[] = {k, way};

            if (is_different((enum coll_kind)k, way))
                harness_run(&store, ODD_RANKS, TIMEOUT_MS, one_differs, what);
        }
}
END_TEST

/* Rank 1 sends one element more to rank 4 than that one awaits, or to itself.
 */
static void counts_differ(struct coll_group *g, int rank, void *arg)
{
    const int *to = arg;
    float send[2 * ODD_RANKS] = {0};
    float recv[2 * ODD_RANKS];
    size_t send_counts[ODD_RANKS];
    size_t counts[ODD_RANKS];
    size_t at[ODD_RANKS];
    struct coll_call call = {
        .kind = COLL_KIND_ALL_TO_ALL_V,
        .dtype = COLL_FLOAT32,
        .sendbuf = send,
        .recvbuf = recv,
        .send_counts = send_counts,
        .send_at = at,
        .recv_counts = counts,
        .recv_at = at,
    };
    char words[128];

    for (size_t i = 0; i < ODD_RANKS; i++) {
        counts[i] = 1;
        send_counts[i] = rank == 1 && (int)i == *to ? 2 : 1;
        at[i] = 2 * i;
    }
    snprintf(words, sizeof(words),
        "rank 1 called all_to_all_v with 2 elements for rank %d, which awaits "
        "1",
        *to);
    EXPECT_FAILS(coll_group_run(g, &call), COLL_ERR_MISMATCH, words);
}

START_TEST(different_counts_of_a_pair_fail_everywhere)
{
    int to = _i % 2 == 0 ? 4 : 1;

    choose_layout(_i / 2);
    harness_run(&store, ODD_RANKS, TIMEOUT_MS, counts_differ, &to);
}
END_TEST

/* --- A rank that dies ----------------------------------------------------- */

enum { MORTALS = 4, MORTAL_COUNT = 40000 };

static const enum coll_kind deadly_kinds[] = {COLL_KIND_REDUCE,
    COLL_KIND_ALL_GATHER, COLL_KIND_SCATTER, COLL_KIND_REDUCE_SCATTER,
    COLL_KIND_ALL_TO_ALL};

#define DEADLY_KINDS ((int)(sizeof(deadly_kinds) / sizeof(deadly_kinds[0])))

/* The victim tells when it is in the middle, and runs until it is killed. The
 * others run until they hear of it. */
static int run_until_death(
    struct coll_group *g, enum coll_kind kind, int victim, int told)
{
    size_t bytes = MORTALS * MORTAL_COUNT * sizeof(double);
    struct coll_call call = {
        .kind = kind,
        .dtype = COLL_FLOAT64,
        .count = MORTAL_COUNT,
        .sendbuf = calloc(1, bytes),
        .recvbuf = calloc(1, bytes),
    };
    coll_status_t status = COLL_OK;
    char name[16];

    for (int i = 0; status == COLL_OK; i++) {
        if (g->rank == victim && i == 3 && write(told, "", 1) != 1)
            return 2;
        status = coll_group_run(g, &call);
    }
    snprintf(name, sizeof(name), "rank %d", victim);
    free((void *)call.sendbuf);
    free(call.recvbuf);
    if (status == COLL_ERR_PEER && strstr(coll_last_error(), name) != NULL)
        return 0;
    fprintf(stderr, "rank %d: %s: %s\n", g->rank, coll_strerror(status),
        coll_last_error());
    return 3;
}

static int mortal_main(
    int layout, enum coll_kind kind, int rank, int victim, int port, int told)
{
    struct harness_store st = {.port = port};
    struct harness_job job = {
        .store = &st, .size = MORTALS, .timeout_ms = TIMEOUT_MS};
    struct coll_group *g = NULL;
    int rc;

    choose_layout(layout);
    snprintf(job.prefix, sizeof(job.prefix), "mortals/");
    if (harness_join(&job, rank, MORTALS, &g) != COLL_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, coll_last_error());
        return 4;
    }
    rc = run_until_death(g, kind, victim, told);
    coll_group_free(g);
    return rc;
}

/* Forks before there are threads; the port follows. */
static pid_t fork_mortal(
    int layout, enum coll_kind kind, int rank, int victim, int ports, int told)
{
    pid_t pid = fork();
    int port;

    ck_assert_int_ge(pid, 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (read(ports, &port, sizeof(port)) != sizeof(port))
        _exit(5);
    _exit(mortal_main(layout, kind, rank, victim, port, told));
}

START_TEST(a_rank_that_dies_is_named_by_all)
{
    enum coll_kind kind = deadly_kinds[_i / 4];
    int layout = _i % 2;
    int victim = _i % 4 < 2 ? 2 : 3; /* with pairs 2 leads its node */
    pid_t pids[MORTALS];
    int ports[2];
    int told[2];
    char byte;
    int status;

    ck_assert_int_eq(pipe(ports), 0);
    ck_assert_int_eq(pipe(told), 0);
    for (int r = 0; r < MORTALS; r++)
        pids[r] = fork_mortal(layout, kind, r, victim, ports[0], told[1]);
    close(told[1]);
    harness_store_start(&store);
    for (int r = 0; r < MORTALS; r++)
        ck_assert_int_eq(
            write(ports[1], &store.port, sizeof(int)), sizeof(int));
    ck_assert_int_eq(read(told[0], &byte, 1), 1);
    kill(pids[victim], SIGKILL);
    for (int r = 0; r < MORTALS; r++) {
        ck_assert_int_eq(waitpid(pids[r], &status, 0), pids[r]);
        ck_assert_msg(r == victim ? WIFSIGNALED(status) : status == 0,
            "%s, layout %d, rank %d: status %x", coll_kind_name(kind), layout,
            r, status);
    }
    harness_store_stop(&store);
    close(told[0]);
    close(ports[0]);
    close(ports[1]);
}
END_TEST

/* --- Arithmetic ----------------------------------------------------------- */

/* Every rank but the root has a parent that has it for a child, and the
 * subtrees below a rank and itself make up its span. */
START_TEST(trees_hold_together)
{
    for (int size = 1; size < 70; size++)
        for (int root = 0; root < size; root += 3)
            for (int r = 0; r < size; r++) {
                struct pattern_tree t = pattern_tree(r, root, size);
                int below = 1;

                ck_assert_int_eq(pattern_tree_rank(t.place, root, size), r);
                for (int d = 1; d < t.reach; d *= 2) {
                    int n = pattern_tree_below(&t, d);
                    struct pattern_tree child;

                    below += n;
                    if (n == 0)
                        continue;
                    child = pattern_tree(
                        pattern_tree_rank(t.place + d, root, size), root, size);
                    ck_assert_int_eq(child.parent, r);
                    ck_assert_int_eq(child.span, n);
                }
                ck_assert_int_eq(below, t.span);
                ck_assert_int_eq(t.parent < 0, r == root);
                if (r == root)
                    ck_assert_int_eq(t.span, size);
            }
}
END_TEST

START_TEST(partners_choose_each_other_once)
{
    for (int size = 1; size < 40; size++)
        for (int r = 0; r < size; r++) {
            bool met[40] = {false};

            for (int s = 0; s < size; s++) {
                int peer = pattern_partner(r, s, size);

                ck_assert_int_eq(pattern_partner(peer, s, size), r);
                ck_assert(!met[peer]);
                met[peer] = true;
            }
        }
}
END_TEST

START_TEST(parts_follow_each_other)
{
    static const size_t totals[] = {0, 1, 6, 7, 8, 1000, SIZE_MAX};

    for (int size = 1; size < 12; size++)
        for (size_t i = 0; i < sizeof(totals) / sizeof(totals[0]); i++) {
            struct pattern_parts p = {.size = size, .total = totals[i]};
            size_t end = 0;

            for (int r = 0; r < size; r++) {
                size_t n = pattern_part_count(&p, r);

                ck_assert_uint_eq(pattern_part_at(&p, r), end);
                ck_assert_uint_le(n, pattern_parts_most(&p));
                ck_assert_uint_le(pattern_parts_most(&p) - n, 1);
                end += n;
            }
            ck_assert_uint_eq(end, totals[i]);
            ck_assert_uint_eq(pattern_parts_sum(&p), totals[i]);
        }
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("flat");
    TCase *deaths = tcase_create("deaths");
    Suite *suite = suite_create("flat");

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(
        tc, small_operations_are_right, 0, LAYOUTS_OF_NODES * SIZES);
    tcase_add_loop_test(
        tc, large_operations_are_right, 0, LAYOUTS_OF_NODES * SIZES);
    tcase_add_loop_test(
        tc, deterministic_results_are_those_of_one_node, 0, LAYOUTS_OF_NODES);
    tcase_add_loop_test(
        tc, different_calls_fail_everywhere, 0, LAYOUTS_OF_NODES);
    tcase_add_loop_test(tc, different_counts_of_a_pair_fail_everywhere, 0,
        2 * LAYOUTS_OF_NODES);
    tcase_add_test(tc, trees_hold_together);
    tcase_add_test(tc, partners_choose_each_other_once);
    tcase_add_test(tc, parts_follow_each_other);
    tcase_set_timeout(deaths, 120);
    tcase_add_loop_test(
        deaths, a_rank_that_dies_is_named_by_all, 0, 4 * DEADLY_KINDS);
    suite_add_tcase(suite, tc);
    suite_add_tcase(suite, deaths);
    return unit_run_suite(suite);
}
