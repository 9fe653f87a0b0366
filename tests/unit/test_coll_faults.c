/*
 * coll_init() when something goes wrong in the middle of it: one rank is
 * killed at, or fails in, the first system call that matters, then the
 * second, and so on to the last. Each time the others must not wait for their
 * time-out, must name that rank, and must meet again with it or the process
 * that replaces it, whatever is left in the store.
 *
 * Ranks are processes. The functions below stand in for libc's in all of this
 * program, also in the library under test.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rendezvous/worker_env.h"
#include "tests/unit/coll_harness.h"
#include "tests/unit/unit.h"

/* FULL: from then on no descriptor can be made, till the attempt has failed.
 * NO_MEMORY: none for the segment, whatever the step. */
enum mode { DIES, FAILS, FULL, MODES, NO_MEMORY = MODES };

enum { SIZE = 3, ATTEMPTS = 6, FIRED = 10 };

/* The fault comes when it reaches 0; 0: none. The thread of a store that this
 * process hosts has its own, and no faults. */
static _Thread_local int countdown;
static enum mode fault_mode;
static bool has_struck;

static int strike(int error)
{
    has_struck = true;
    errno = error;
    return -1;
}

/* The limit of open files is the error that can happen anywhere. */
static bool fault(bool makes_fd)
{
    if (countdown == 0 || fault_mode == NO_MEMORY)
        return false;
    if (fault_mode == FULL) {
        countdown -= countdown > 1;
        return countdown == 1 && makes_fd && strike(EMFILE) < 0;
    }
    if (--countdown > 0)
        return false;
    if (fault_mode == DIES)
        kill(getpid(), SIGKILL);
    return strike(EMFILE) < 0;
}

/* X(result, name, makes a descriptor, parameters, arguments) */
#define CALL_MAP(X)                                                            \
    X(int, socket, true, (int domain, int type, int protocol),                 \
        (domain, type, protocol))                                              \
    X(int, bind, false, (int fd, const struct sockaddr *addr, socklen_t len),  \
        (fd, addr, len))                                                       \
    X(int, listen, false, (int fd, int n), (fd, n))                            \
    X(int, connect, false,                                                     \
        (int fd, const struct sockaddr *addr, socklen_t len), (fd, addr, len)) \
    X(int, accept4, true,                                                      \
        (int fd, struct sockaddr *addr, socklen_t *len, int flags),            \
        (fd, addr, len, flags))                                                \
    X(ssize_t, send, false, (int fd, const void *data, size_t len, int flags), \
        (fd, data, len, flags))                                                \
    X(ssize_t, recv, false, (int fd, void *data, size_t len, int flags),       \
        (fd, data, len, flags))                                                \
    X(ssize_t, sendmsg, false, (int fd, const struct msghdr *msg, int flags),  \
        (fd, msg, flags))                                                      \
    X(ssize_t, recvmsg, false, (int fd, struct msghdr *msg, int flags),        \
        (fd, msg, flags))                                                      \
    X(int, epoll_wait, false,                                                  \
        (int fd, struct epoll_event *events, int n, int timeout_ms),           \
        (fd, events, n, timeout_ms))                                           \
    X(int, memfd_create, true, (const char *name, unsigned int flags),         \
        (name, flags))

/* libc's own function, also for the threads of stores. ISO C has no cast from
 * an object to a function pointer, so it goes through memory. */
static void find_real(void *_Atomic *known, const char *name, void *real)
{
    void *address = atomic_load(known);

    if (address == NULL) {
        address = dlsym(RTLD_NEXT, name);
        atomic_store(known, address);
    }
    memcpy(real, &address, sizeof(address));
}

#define DEFINE_CALL(result, name, makes_fd, parameters, arguments)             \
    result name parameters                                                     \
    {                                                                          \
        static void *_Atomic known;                                            \
        result(*real) parameters;                                              \
        find_real(&known, #name, &real);                                       \
        return fault(makes_fd) ? -1 : real arguments;                          \
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
CALL_MAP(DEFINE_CALL)
#pragma GCC diagnostic pop

int epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
    static void *_Atomic known;
    int (*real)(int, int, int, struct epoll_event *);

    find_real(&known, "epoll_ctl", &real);
    /* Taking out what is in the set cannot fail. */
    return op == EPOLL_CTL_ADD && fault(false) ? -1
                                               : real(epoll, op, fd, event);
}

int fallocate(int fd, int mode, off_t at, off_t len)
{
    static void *_Atomic known;
    int (*real)(int, int, off_t, off_t);

    find_real(&known, "fallocate", &real);
    if (countdown > 0 && fault_mode == NO_MEMORY)
        return strike(ENOSPC);
    return fault(false) ? -1 : real(fd, mode, at, len);
}

/* --- A run with one fault ------------------------------------------------ */

struct plan {
    const char *backend;
    int own_port; /* rank 0 hosts the store there; 0: the test does */
    int victim;
    enum mode mode;
    int step;
};

/* Joins and meets the others once. */
static coll_status_t try_once(void)
{
    coll_status_t status = coll_init(NULL);

    if (status == COLL_OK) {
        countdown = 0;
        status = coll_barrier(NULL);
        if (status != COLL_OK)
            coll_destroy();
    }
    return status;
}

static int try_until_all_meet(const struct plan *plan, int rank, bool is_victim)
{
    char words[64];
    int failures = 0;

    snprintf(words, sizeof(words), "rank %d%s", plan->victim,
        plan->mode == NO_MEMORY ? " gave up: coll_init: cannot reserve" : "");
    if (is_victim) {
        countdown = plan->step;
        fault_mode = plan->mode;
    }
    for (coll_status_t status; (status = try_once()) != COLL_OK;) {
        countdown = 0;
        if (++failures == ATTEMPTS || status == COLL_ERR_TIMEOUT ||
            (!is_victim && failures == 1 &&
                strstr(coll_last_error(), words) == NULL)) {
            fprintf(stderr, "step %d of %d, rank %d, failure %d: %s: %s\n",
                plan->step, plan->victim, rank, failures, coll_strerror(status),
                coll_last_error());
            return 1;
        }
    }
    if (coll_destroy() != COLL_OK)
        return 2;
    return has_struck ? FIRED : 0; /* also where the library helped itself */
}

static int rank_main(
    const struct plan *plan, int port_pipe, int rank, bool is_victim)
{
    char text[16];
    int port;

    if (read(port_pipe, &port, sizeof(port)) != sizeof(port))
        return 0; /* a replacement that is not needed */
    snprintf(text, sizeof(text), "%d", rank);
    setenv(ENV_RANK, text, 1);
    snprintf(text, sizeof(text), "%d", SIZE);
    setenv(ENV_WORLD_SIZE, text, 1);
    setenv(ENV_LOCAL_WORLD_SIZE, text, 1);
    harness_set_master(port);
    if (plan->own_port != 0)
        unsetenv(ENV_USE_AGENT_STORE);
    setenv("COLL_BACKEND", plan->backend, 1);
    setenv("COLL_TIMEOUT", "50", 1);
    return try_until_all_meet(plan, rank, is_victim);
}

struct process {
    pid_t pid;
    int port_pipe; /* its write end */
};

/* Before the store's thread is there. The process waits for the port. */
static struct process start(const struct plan *plan, int rank, bool is_victim)
{
    struct process p;
    int fds[2];

    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    p.pid = fork();
    ck_assert_int_ge(p.pid, 0);
    if (p.pid == 0) {
        close(fds[1]);
        _exit(rank_main(plan, fds[0], rank, is_victim));
    }
    close(fds[0]);
    p.port_pipe = fds[1];
    return p;
}

static void tell(const struct process *p, int port)
{
    ck_assert_int_eq(write(p->port_pipe, &port, sizeof(port)), sizeof(port));
}

static int end(const struct process *p)
{
    int status;

    close(p->port_pipe);
    ck_assert_int_eq(waitpid(p->pid, &status, 0), p->pid);
    return status;
}

/* False if the victim has got through without reaching that step. */
static bool run_plan(const struct plan *plan)
{
    struct harness_store st;
    struct process others[SIZE];
    struct process victim;
    struct process replacement;
    bool has_fired;
    int port = plan->own_port;
    int status;

    /* The replacement is first: so it holds no pipe of the others open. */
    replacement = start(plan, plan->victim, false);
    victim = start(plan, plan->victim, true);
    for (int r = 0; r < SIZE; r++)
        if (r != plan->victim)
            others[r] = start(plan, r, false);
    if (port == 0) {
        harness_store_start(&st);
        port = st.port;
    }
    /* Let the others be first in every second run. */
    if (plan->step % 2 == 0)
        tell(&victim, port);
    for (int r = 0; r < SIZE; r++)
        if (r != plan->victim)
            tell(&others[r], port);
    if (plan->step % 2 != 0)
        tell(&victim, port);
    status = end(&victim);
    has_fired = status != 0;
    if (plan->mode == DIES && has_fired) {
        ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
            "victim: status %x", status);
        tell(&replacement, port);
    } else if (has_fired) {
        ck_assert_int_eq(WEXITSTATUS(status), FIRED);
    }
    ck_assert_int_eq(end(&replacement), 0);
    for (int r = 0; r < SIZE; r++)
        if (r != plan->victim)
            ck_assert_msg(
                end(&others[r]) == 0, "rank %d, step %d", r, plan->step);
    if (plan->own_port == 0)
        harness_store_stop(&st);
    return has_fired;
}

/* Every rank, in every mode. */
static void try_every_step(int number, int own_port, const char *backend)
{
    struct plan plan = {.backend = backend,
        .own_port = own_port,
        .victim = number / MODES,
        .mode = (enum mode)(number % MODES)};

    do {
        /* Of either parity in turn. */
        plan.step += UNIT_IS_SANITIZED ? 3 : 1;
        ck_assert_int_lt(plan.step, 500);
    } while (run_plan(&plan));
    ck_assert_int_gt(plan.step, 10);
}

START_TEST(fault_in_any_step_is_told_and_healed)
{
    try_every_step(_i, 0, "shm");
}
END_TEST

/* Where the store comes and goes with rank 0. */
START_TEST(so_it_is_where_rank_0_hosts_the_store)
{
    try_every_step(_i, harness_free_port(), "shm");
}
END_TEST

START_TEST(so_it_is_over_tcp)
{
    try_every_step(_i, 0, "tcp");
}
END_TEST

/* The reason itself reaches the others, not only who had it. */
START_TEST(reason_of_a_failure_is_told)
{
    struct plan plan = {
        .backend = "shm", .victim = _i, .mode = NO_MEMORY, .step = 1};

    ck_assert(run_plan(&plan));
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("faults");

    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(
        tc, fault_in_any_step_is_told_and_healed, 0, MODES * SIZE);
    tcase_add_loop_test(
        tc, so_it_is_where_rank_0_hosts_the_store, 0, MODES * SIZE);
    tcase_add_loop_test(tc, so_it_is_over_tcp, 0, MODES * SIZE);
    tcase_add_loop_test(tc, reason_of_a_failure_is_told, 0, SIZE);
    return unit_run("coll_faults", tc);
}
