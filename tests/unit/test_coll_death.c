/*
 * A rank that dies: every other rank's call ends with an error that names
 * it, and none ends with wrong data. Ranks are processes; there is no
 * launcher that could help.
 */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rendezvous/worker_env.h"
#include "tests/unit/coll_harness.h"
#include "tests/unit/unit.h"

enum { MAX_RANKS = 8, VICTIM_GONE = 42 };

/* How the victim ends. KILLED: by the parent, at any instant. */
enum ending { KILLED, KILLED_WITH_CHILD, EXITS, ABORTS };

/* Where the kernel has no pidfd, or where one is not allowed. */
static bool is_without_pidfd;

/* Stands in for libc's, also in the library under test. */
long syscall(long number, ...)
{
    static long (*real)(long, ...);
    long a[6];
    va_list args;

    if (number == 434 && is_without_pidfd) {
        errno = ENOSYS;
        return -1;
    }
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "syscall");
    va_start(args, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(args, long);
    va_end(args);
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

struct plan {
    int size;
    int victim;
    size_t count;
    enum ending ending;
    const char *backend; /* NULL: shm */
};

struct pipes {
    int port[2]; /* the store's port, for each child */
    int going[2]; /* the victim, or its child, says 'x': it is in its loop */
    int hold[2]; /* the victim's own child lives until this is closed */
};

static void fork_idle_child(const struct pipes *p)
{
    char byte = '!';

    if (fork() != 0)
        return;
    close(p->hold[1]);
    /* A child cannot take its parent's place. */
    if (coll_barrier(NULL) == COLL_ERR_STATE &&
        strstr(coll_last_error(), "forked off by a worker") != NULL &&
        coll_init(NULL) == COLL_ERR_STATE && coll_destroy() == COLL_ERR_STATE &&
        coll_rank(NULL) >= 0)
        byte = 'x';
    if (write(p->going[1], &byte, 1) != 1)
        _exit(1);
    while (read(p->hold[0], &byte, 1) < 0)
        continue;
    _exit(0);
}

/* Reduces until it fails. Exit status 0: the error was the right one. */
static int reduce_until_error(const struct plan *plan, int rank)
{
    float *x = malloc(plan->count * sizeof(*x));
    float *y = malloc(plan->count * sizeof(*y));
    char words[64];
    coll_status_t status = COLL_OK;

    for (int i = 0; status == COLL_OK; i++) {
        size_t wrong = 0;
        float want = 0;

        for (size_t k = 0; k < plan->count; k++)
            x[k] = (float)(rank + i % 10);
        status =
            coll_all_reduce(x, y, plan->count, COLL_FLOAT32, COLL_SUM, NULL);
        for (int r = 0; r < plan->size; r++)
            want += (float)(r + i % 10);
        for (size_t k = 0; status == COLL_OK && k < plan->count; k++)
            wrong += y[k] != want;
        if (wrong != 0) {
            fprintf(stderr, "rank %d: wrong sum in %d\n", rank, i);
            return 3;
        }
    }
    free(x);
    free(y);
    snprintf(words, sizeof(words), "rank %d %s", plan->victim,
        plan->backend == NULL ? "(pid " : "at ");
    if (status != COLL_ERR_PEER || strstr(coll_last_error(), words) == NULL ||
        strstr(coll_last_error(), "during all_reduce #") == NULL) {
        fprintf(stderr, "rank %d: %s: %s\n", rank, coll_strerror(status),
            coll_last_error());
        return 4;
    }
    return coll_destroy() == COLL_OK ? 0 : 5;
}

static int be_victim(const struct plan *plan, const struct pipes *p, int rank)
{
    if (plan->ending == KILLED_WITH_CHILD)
        fork_idle_child(p);
    if (plan->ending == EXITS)
        _exit(VICTIM_GONE);
    if (plan->ending == ABORTS)
        abort();
    if (plan->ending != KILLED_WITH_CHILD && write(p->going[1], "x", 1) != 1)
        return 6;
    return reduce_until_error(plan, rank);
}

static int rank_main(const struct plan *plan, const struct pipes *p, int rank)
{
    char text[16];
    int port;

    close(p->hold[1]);
    if (read(p->port[0], &port, sizeof(port)) != sizeof(port))
        return 2;
    snprintf(text, sizeof(text), "%d", rank);
    setenv(ENV_RANK, text, 1);
    snprintf(text, sizeof(text), "%d", plan->size);
    setenv(ENV_WORLD_SIZE, text, 1);
    setenv(ENV_LOCAL_WORLD_SIZE, text, 1);
    harness_set_master(port);
    setenv("COLL_TIMEOUT", "60", 1);
    if (plan->backend != NULL)
        setenv("COLL_BACKEND", plan->backend, 1);
    if (coll_init(NULL) != COLL_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, coll_last_error());
        return 7;
    }
    return rank == plan->victim ? be_victim(plan, p, rank)
                                : reduce_until_error(plan, rank);
}

/* Kills some way into the victim's loop, elsewhere in every run. */
static void kill_victim(pid_t pid, const struct pipes *p, unsigned int run)
{
    unsigned int yields = run * 2654435761u % 2000;
    char byte;

    ck_assert_int_eq(read(p->going[0], &byte, 1), 1);
    ck_assert_int_eq(byte, 'x');
    while (yields-- > 0)
        sched_yield();
    kill(pid, SIGKILL);
}

static void run_plan(const struct plan *plan, unsigned int run)
{
    struct harness_store st;
    struct pipes p;
    pid_t pids[MAX_RANKS];
    int status;

    ck_assert_int_eq(pipe(p.port), 0);
    ck_assert_int_eq(pipe(p.going), 0);
    ck_assert_int_eq(pipe(p.hold), 0);
    for (int r = 0; r < plan->size; r++) {
        pids[r] = fork();
        ck_assert_int_ge(pids[r], 0);
        if (pids[r] == 0)
            _exit(rank_main(plan, &p, r));
    }
    harness_store_start(&st);
    for (int r = 0; r < plan->size; r++)
        ck_assert_int_eq(
            write(p.port[1], &st.port, sizeof(st.port)), sizeof(st.port));
    if (plan->ending == KILLED || plan->ending == KILLED_WITH_CHILD)
        kill_victim(pids[plan->victim], &p, run);
    /* The victim stays a zombie until all others have noticed. */
    for (int r = 0; r < plan->size; r++) {
        if (r == plan->victim)
            continue;
        ck_assert_int_eq(waitpid(pids[r], &status, 0), pids[r]);
        ck_assert_msg(status == 0, "rank %d: status %x", r, status);
    }
    ck_assert_int_eq(
        waitpid(pids[plan->victim], &status, 0), pids[plan->victim]);
    if (plan->ending == EXITS)
        ck_assert_int_eq(WEXITSTATUS(status), VICTIM_GONE);
    else
        ck_assert_int_eq(
            WTERMSIG(status), plan->ending == ABORTS ? SIGABRT : SIGKILL);
    harness_store_stop(&st);
    for (int i = 0; i < 2; i++) {
        close(p.port[i]);
        close(p.going[i]);
        close(p.hold[i]);
    }
}

START_TEST(rank_killed_in_large_reductions_is_named)
{
    for (unsigned int run = 0; run < 5; run++)
        run_plan(
            &(struct plan){4, _i, (size_t)1 << 20, KILLED, NULL}, run * 4 + _i);
}
END_TEST

START_TEST(rank_killed_in_small_reductions_is_named)
{
    for (unsigned int run = 0; run < 10; run++)
        run_plan(&(struct plan){2 + _i, _i, 3, KILLED, NULL}, run * 7 + _i);
}
END_TEST

START_TEST(rank_that_exits_or_aborts_is_named)
{
    run_plan(&(struct plan){3, 1, 1000, _i == 0 ? EXITS : ABORTS, NULL}, 0);
}
END_TEST

/* The victim's child inherits its sockets, so they are not closed. */
static void with_child(int size, int victim)
{
    run_plan(&(struct plan){size, victim, 1000, KILLED_WITH_CHILD, NULL}, 3);
}

START_TEST(death_is_seen_though_a_child_lives_on)
{
    is_without_pidfd = _i >= 2;
    with_child(3, _i % 2);
}
END_TEST

/* There it is nothing but the end of its connections. */
START_TEST(death_is_seen_between_nodes_though_a_child_lives_on)
{
    run_plan(&(struct plan){3, _i, 1000, KILLED_WITH_CHILD, "tcp"}, 3);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("death");

    tcase_set_timeout(tc, 180);
    tcase_add_loop_test(tc, rank_killed_in_large_reductions_is_named, 0, 4);
    tcase_add_loop_test(tc, rank_killed_in_small_reductions_is_named, 0, 4);
    tcase_add_loop_test(tc, rank_that_exits_or_aborts_is_named, 0, 2);
    tcase_add_loop_test(tc, death_is_seen_though_a_child_lives_on, 0, 4);
    tcase_add_loop_test(
        tc, death_is_seen_between_nodes_though_a_child_lives_on, 0, 3);
    return unit_run("coll_death", tc);
}
