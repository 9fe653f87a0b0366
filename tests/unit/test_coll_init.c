/*
 * coll_init(): the environment of a worker, and joining and leaving, with
 * ranks as processes, because the default group is one per process.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rendezvous/worker_env.h"
#include "tests/unit/coll_harness.h"
#include "tests/unit/unit.h"
#include "worker/shm_boot.h"

/* Stands in for libc's: a name that nobody has told the name service yet. */
#define LATE_NAME "rank-0.not-yet"

int getaddrinfo(const char *host, const char *service,
    const struct addrinfo *hints, struct addrinfo **out)
{
    static int (*real)(const char *, const char *, const struct addrinfo *,
        struct addrinfo **);

    if (strcmp(host, LATE_NAME) == 0)
        return hints->ai_flags & AI_NUMERICHOST ? EAI_NONAME : EAI_AGAIN;
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    return real(host, service, hints, out);
}

static void clear_environment(void)
{
    static const char *const names[] = {ENV_RANK, ENV_WORLD_SIZE,
        ENV_LOCAL_RANK, ENV_LOCAL_WORLD_SIZE, ENV_GROUP_RANK, ENV_MASTER_ADDR,
        ENV_MASTER_PORT, ENV_USE_AGENT_STORE, ENV_RESTART_COUNT, "COLL_TIMEOUT",
        "COLL_BACKEND"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unsetenv(names[i]);
}

/* --- One process -------------------------------------------------------- */

static const struct {
    const char *set[6]; /* name, value, ... */
    coll_status_t status;
    const char *words;
} bad_environments[] = {
    {{NULL}, COLL_ERR_ENVIRONMENT,
        "RANK and WORLD_SIZE are not set: start the program with crun"},
    {{"RANK", "0"}, COLL_ERR_ENVIRONMENT, "WORLD_SIZE is not set"},
    {{"WORLD_SIZE", "4"}, COLL_ERR_ENVIRONMENT, "RANK is not set"},
    {{"WORLD_SIZE", "0"}, COLL_ERR_ENVIRONMENT, "WORLD_SIZE=\"0\""},
    {{"WORLD_SIZE", "-1"}, COLL_ERR_ENVIRONMENT, "WORLD_SIZE=\"-1\""},
    {{"WORLD_SIZE", "1x"}, COLL_ERR_ENVIRONMENT, "WORLD_SIZE=\"1x\""},
    {{"WORLD_SIZE", ""}, COLL_ERR_ENVIRONMENT, "WORLD_SIZE=\"\""},
    {{"WORLD_SIZE", "4294967297"}, COLL_ERR_ENVIRONMENT, "4294967297"},
    {{"WORLD_SIZE", "2", "RANK", "2"}, COLL_ERR_ENVIRONMENT,
        "RANK=\"2\" is not an integer from 0 to 1"},
    {{"WORLD_SIZE", "2", "RANK", " 1"}, COLL_ERR_ENVIRONMENT, "RANK=\" 1\""},
    {{"WORLD_SIZE", "1", "RANK", "1"}, COLL_ERR_ENVIRONMENT, "RANK=\"1\""},
    {{"WORLD_SIZE", "1", "LOCAL_RANK", "a"}, COLL_ERR_ENVIRONMENT,
        "LOCAL_RANK=\"a\""},
    {{"WORLD_SIZE", "2", "RANK", "0"}, COLL_ERR_ENVIRONMENT,
        "MASTER_ADDR is not set"},
    {{"WORLD_SIZE", "2", "RANK", "0", "MASTER_ADDR", "localhost"},
        COLL_ERR_ENVIRONMENT, "MASTER_PORT is not set"},
    {{"WORLD_SIZE", "2", "RANK", "0", "GROUP_RANK", "-1"}, COLL_ERR_ENVIRONMENT,
        "GROUP_RANK=\"-1\""},
    {{"WORLD_SIZE", "4", "RANK", "0", "LOCAL_WORLD_SIZE", "5"},
        COLL_ERR_ENVIRONMENT, "LOCAL_WORLD_SIZE=\"5\""},
    {{"WORLD_SIZE", "1", "COLL_BACKEND", "mpi"}, COLL_ERR_ENVIRONMENT,
        "no back end \"mpi\"; known are: shm, nodes, tcp, self, nccl"},
    {{"WORLD_SIZE", "1", "COLL_TIMEOUT", "0"}, COLL_ERR_ENVIRONMENT,
        "COLL_TIMEOUT=\"0\""},
    {{"WORLD_SIZE", "1", "COLL_TIMEOUT", "-5"}, COLL_ERR_ENVIRONMENT,
        "COLL_TIMEOUT=\"-5\""},
    {{"WORLD_SIZE", "1", "COLL_TIMEOUT", "5s"}, COLL_ERR_ENVIRONMENT,
        "COLL_TIMEOUT=\"5s\""},
    {{"WORLD_SIZE", "1", "COLL_TIMEOUT", "."}, COLL_ERR_ENVIRONMENT,
        "COLL_TIMEOUT=\".\""},
    {{"WORLD_SIZE", "1", "COLL_TIMEOUT", "1."}, COLL_ERR_ENVIRONMENT,
        "COLL_TIMEOUT=\"1.\""},
    {{"WORLD_SIZE", "1", "COLL_TIMEOUT", "inf"}, COLL_ERR_ENVIRONMENT,
        "COLL_TIMEOUT=\"inf\""},
};

START_TEST(bad_environment_is_refused_in_words)
{
    const char *const *set = bad_environments[_i].set;

    clear_environment();
    for (int i = 0; i < 6 && set[i] != NULL; i += 2)
        setenv(set[i], set[i + 1], 1);
    ck_assert_int_eq(coll_init(NULL), bad_environments[_i].status);
    ck_assert_msg(strstr(coll_last_error(), bad_environments[_i].words) != NULL,
        "\"%s\" is not in: %s", bad_environments[_i].words, coll_last_error());
    ck_assert(!coll_is_initialized());
}
END_TEST

START_TEST(bad_options_are_refused)
{
    coll_options_t options = COLL_OPTIONS_INIT;

    clear_environment();
    setenv(ENV_WORLD_SIZE, "1", 1);
    options.timeout_ms = -1;
    ck_assert_int_eq(coll_init(&options), COLL_ERR_ARGUMENT);
    options.timeout_ms = 0;
    options.backend = "mpi";
    ck_assert_int_eq(coll_init(&options), COLL_ERR_ARGUMENT);
    ck_assert_ptr_nonnull(
        strstr(coll_last_error(), "known are: shm, nodes, tcp, self"));
    ck_assert(!coll_is_initialized());
}
END_TEST

static const struct {
    const char *method;
    const char *words;
} bad_methods[] = {
    {"", "known are env://, tcp:// and file://"},
    {"env:", "known are"},
    {"http://127.0.0.1:1", "known are"},
    {"env://127.0.0.1", "nothing but ?rank=R&world_size=N may follow"},
    {"tcp://", "HOST:PORT"},
    {"tcp://127.0.0.1", "HOST:PORT"},
    {"tcp://:4711", "HOST:PORT"},
    {"tcp://[]:4711", "no host"},
    {"tcp://h:", "the port is no number from 1 to 65535"},
    {"tcp://h:0", "the port is no number"},
    {"tcp://h:65536", "the port is no number"},
    {"tcp://h:4711x", "the port is no number"},
    {"tcp://h:000000000004711", "the port is no number"},
    {"file://", "file:///PATH"},
    {"file:///", "file:///PATH"},
    {"file://relative/path", "file:///PATH"},
    {"tcp://h:1?world_size=0", "\"0\" is not an integer from 1"},
    {"tcp://h:1?world_size=2&rank=2", "\"2\" is not an integer from 0 to 1"},
    {"tcp://h:1?world_size=2&rank=x", "\"x\" is not an integer"},
    {"file:///x?world_size=11111111111111111111111111", "no number"},
};

START_TEST(bad_init_method_is_refused_in_words)
{
    coll_options_t options = {.init_method = bad_methods[_i].method};

    clear_environment();
    setenv(ENV_WORLD_SIZE, "1", 1);
    ck_assert_int_eq(coll_init(&options), COLL_ERR_ARGUMENT);
    ck_assert_msg(strstr(coll_last_error(), bad_methods[_i].words) != NULL,
        "\"%s\" is not in: %s", bad_methods[_i].words, coll_last_error());
    ck_assert(!coll_is_initialized());
}
END_TEST

/* Options before init_method before the environment. */
START_TEST(who_this_is_has_an_order)
{
    coll_options_t options = {.init_method = "tcp://h:1?world_size=1&rank=0"};

    clear_environment();
    ck_assert_int_eq(coll_init(&options), COLL_OK);
    ck_assert_ptr_null(coll_default_store());
    coll_destroy();
    setenv(ENV_WORLD_SIZE, "7", 1);
    setenv(ENV_RANK, "3", 1);
    ck_assert_int_eq(coll_init(&options), COLL_OK);
    coll_destroy();
    options.init_method = "env://?rank=7";
    ck_assert_int_eq(coll_init(&options), COLL_ERR_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(coll_last_error(), "from 0 to 6"));
    options.init_method = "tcp://h:1?world_size=4&rank=2";
    options.world_size = 1;
    ck_assert_int_eq(coll_init(&options), COLL_OK);
    coll_destroy();
    options.rank = 1;
    ck_assert_int_eq(coll_init(&options), COLL_ERR_ARGUMENT);
    ck_assert_ptr_nonnull(
        strstr(coll_last_error(), "rank 1 is none of a world of 1"));
    options.world_size = 0;
    ck_assert_int_eq(coll_init(&options), COLL_ERR_ARGUMENT);
    options.world_size = -1;
    ck_assert_int_eq(coll_init(&options), COLL_ERR_ARGUMENT);
}
END_TEST

START_TEST(world_of_one_needs_no_launcher)
{
    clear_environment();
    setenv(ENV_WORLD_SIZE, "1", 1);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(coll_init(NULL), COLL_OK);
        ck_assert(coll_is_initialized());
        ck_assert_int_eq(coll_rank(NULL), 0);
        ck_assert_int_eq(coll_world_size(NULL), 1);
        ck_assert_int_eq(coll_local_rank(), 0);
        ck_assert_str_eq(coll_backend_name(NULL), "self");
        ck_assert_int_eq(coll_barrier(NULL), COLL_OK);
        ck_assert_int_eq(coll_init(NULL), COLL_ERR_STATE);
        ck_assert_int_eq(coll_barrier(NULL), COLL_OK);
        ck_assert_int_eq(coll_destroy(), COLL_OK);
        ck_assert_int_eq(coll_destroy(), COLL_ERR_STATE);
        ck_assert_int_eq(coll_barrier(NULL), COLL_ERR_STATE);
    }
}
END_TEST

START_TEST(back_end_can_be_chosen)
{
    coll_options_t options = COLL_OPTIONS_INIT;

    clear_environment();
    setenv(ENV_WORLD_SIZE, "1", 1);
    setenv("COLL_BACKEND", "shm", 1);
    ck_assert_int_eq(coll_init(NULL), COLL_OK);
    ck_assert_str_eq(coll_backend_name(NULL), "shm");
    coll_destroy();
    options.backend = "self"; /* before the environment */
    ck_assert_int_eq(coll_init(&options), COLL_OK);
    ck_assert_str_eq(coll_backend_name(NULL), "self");
    coll_destroy();
    setenv("COLL_BACKEND", "", 1); /* as if not set */
    ck_assert_int_eq(coll_init(NULL), COLL_OK);
    coll_destroy();
}
END_TEST

static const struct {
    const char *text;
    int64_t ms;
} timeouts[] = {{"5", 5000}, {"0.25", 250}, {"1.5", 1500}, {"0.0001", 1},
    {"2.0010", 2001}, {"007.0", 7000}, {"", 30 * 60 * 1000},
    {"99999999999999999999999", (int64_t)1000 * 1000 * 1000 * 1000}};

START_TEST(time_out_is_read_from_the_environment)
{
    coll_options_t options = {.timeout_ms = 77};

    clear_environment();
    setenv(ENV_WORLD_SIZE, "1", 1);
    setenv("COLL_TIMEOUT", timeouts[_i].text, 1);
    ck_assert_int_eq(coll_init(NULL), COLL_OK);
    ck_assert_int_eq(coll_default_group()->timeout_ms, timeouts[_i].ms);
    coll_destroy();
    ck_assert_int_eq(coll_init(&options), COLL_OK);
    ck_assert_int_eq(coll_default_group()->timeout_ms, 77);
    coll_destroy();
}
END_TEST

START_TEST(too_many_ranks_are_refused_without_the_store)
{
    clear_environment();
    setenv(ENV_WORLD_SIZE, "2147483647", 1);
    setenv(ENV_RANK, "0", 1);
    setenv(ENV_MASTER_ADDR, "127.0.0.1", 1);
    setenv(ENV_MASTER_PORT, "1", 1); /* nobody listens there */
    ck_assert_int_eq(coll_init(NULL), COLL_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(coll_last_error(), "not 2147483647") != NULL, "%s",
        coll_last_error());
}
END_TEST

START_TEST(descriptor_limit_is_named)
{
    struct harness_store st;
    struct rlimit limit = {40, 40};

    clear_environment();
    harness_store_start(&st);
    setenv(ENV_WORLD_SIZE, "100", 1);
    setenv(ENV_RANK, "0", 1);
    harness_set_master(st.port);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_int_eq(coll_init(NULL), COLL_ERR_SYSTEM);
    ck_assert_msg(strstr(coll_last_error(), "the limit is 40") != NULL, "%s",
        coll_last_error());
    harness_store_stop(&st);
}
END_TEST

/* --- Several processes -------------------------------------------------- */

/* Returns a line number where it went wrong, 0 if all is well. */
typedef int process_fn(int rank, int size);

#define CHECK_THAT(cond)                                                       \
    do {                                                                       \
        if (!(cond)) {                                                         \
            fprintf(                                                           \
                stderr, "rank %d: %s: %s\n", rank, #cond, coll_last_error());  \
            return 1;                                                          \
        }                                                                      \
    } while (0)

static bool is_by_hand;

static void run_processes(int size, process_fn *fn)
{
    struct harness_store st;
    int port_pipe[2];
    pid_t pids[8];

    clear_environment();
    ck_assert_int_le(size, 8);
    ck_assert_int_eq(pipe(port_pipe), 0);
    for (int r = 0; r < size; r++) {
        pids[r] = fork();
        ck_assert_int_ge(pids[r], 0);
        if (pids[r] == 0) {
            char text[16];
            int port;

            if (read(port_pipe[0], &port, sizeof(port)) != sizeof(port))
                _exit(2);
            close(port_pipe[0]);
            close(port_pipe[1]);
            snprintf(text, sizeof(text), "%d", r);
            setenv(ENV_RANK, text, 1);
            snprintf(text, sizeof(text), "%d", size);
            setenv(ENV_WORLD_SIZE, text, 1);
            /* A launcher that says nothing of nodes has started them. */
            if (!is_by_hand)
                setenv(ENV_LOCAL_WORLD_SIZE, text, 1);
            harness_set_master(port);
            setenv("COLL_TIMEOUT", "30", 1);
            exit(fn(r, size));
        }
    }
    harness_store_start(&st);
    for (int r = 0; r < size; r++)
        ck_assert_int_eq(
            write(port_pipe[1], &st.port, sizeof(st.port)), sizeof(st.port));
    for (int r = 0; r < size; r++) {
        int status;

        ck_assert_int_eq(waitpid(pids[r], &status, 0), pids[r]);
        ck_assert_msg(status == 0, "rank %d: status %x", r, status);
    }
    harness_store_stop(&st);
    close(port_pipe[0]);
    close(port_pipe[1]);
}

static int join_and_sum(int rank, int size)
{
    int64_t x = rank;

    setenv(ENV_LOCAL_RANK, rank == 0 ? "3" : "4", 1);
    CHECK_THAT(coll_init(NULL) == COLL_OK);
    CHECK_THAT(coll_rank(NULL) == rank && coll_world_size(NULL) == size);
    CHECK_THAT(coll_local_rank() == (rank == 0 ? 3 : 4));
    CHECK_THAT(
        strcmp(coll_backend_name(NULL), is_by_hand ? "nodes" : "shm") == 0);
    CHECK_THAT(
        coll_all_reduce(&x, &x, 1, COLL_INT64, COLL_SUM, NULL) == COLL_OK);
    CHECK_THAT(x == size * (size - 1) / 2);
    CHECK_THAT(coll_destroy() == COLL_OK);
    return 0;
}

START_TEST(processes_join_and_reduce)
{
    run_processes(2 + 3 * _i, join_and_sum);
}
END_TEST

START_TEST(processes_started_by_hand_find_their_nodes)
{
    is_by_hand = true;
    run_processes(2 + 3 * _i, join_and_sum);
}
END_TEST

/* They must not overflow into the past. */
static int join_with_no_time_limit(int rank, int size)
{
    coll_options_t options = {.timeout_ms = INT64_MAX};

    (void)size;
    setenv("COLL_TIMEOUT", "18446744073", 1);
    CHECK_THAT(coll_init(NULL) == COLL_OK);
    CHECK_THAT(coll_barrier(NULL) == COLL_OK);
    CHECK_THAT(coll_destroy() == COLL_OK);
    CHECK_THAT(coll_init(&options) == COLL_OK);
    CHECK_THAT(coll_barrier(NULL) == COLL_OK);
    CHECK_THAT(coll_destroy() == COLL_OK);
    return 0;
}

START_TEST(large_time_outs_are_no_short_ones)
{
    run_processes(2 + _i, join_with_no_time_limit);
}
END_TEST

/* Not even for the store's connection is there room. */
static int join_with_few_descriptors(int rank, int size)
{
    struct rlimit limit = {0, 200};

    (void)size;
    CHECK_THAT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK_THAT(coll_init(NULL) == COLL_OK);
    CHECK_THAT(coll_barrier(NULL) == COLL_OK);
    CHECK_THAT(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK_THAT(limit.rlim_cur > 0 && limit.rlim_cur < 200);
    CHECK_THAT(coll_destroy() == COLL_OK);
    return 0;
}

START_TEST(descriptor_limit_is_raised)
{
    run_processes(8, join_with_few_descriptors);
}
END_TEST

/* Who cannot look where it runs must not seem to run elsewhere. */
START_TEST(node_is_known_or_an_error)
{
    struct rlimit limit, none;
    struct node node = {0};

    ck_assert_int_eq(boot_node_get(&node), COLL_OK);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = (struct rlimit){0, limit.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    ck_assert_int_eq(boot_node_get(&node), COLL_ERR_SYSTEM);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_ptr_nonnull(strstr(coll_last_error(), "boot_id"));
}
END_TEST

static _Atomic int *told; /* shared: ranks that know of the failure */

/* Before it can be reached: nobody waits for a rank that will not come. One
 * that is late learns of it in the next attempt of rank 0. */
static int one_has_no_descriptors(int rank, int size)
{
    struct rlimit limit = {20, 20};
    coll_options_t options = {.timeout_ms = 1000};

    if (rank != 1) {
        coll_status_t status = coll_init(NULL);

        atomic_fetch_add(told, 1);
        CHECK_THAT(status == COLL_ERR_PEER);
        CHECK_THAT(strstr(coll_last_error(), "rank 1 gave up: ") != NULL &&
                   strstr(coll_last_error(), "the limit is 20") != NULL);
        while (rank == 0 && atomic_load(told) < size - 1)
            CHECK_THAT(coll_init(&options) != COLL_OK);
        return 0;
    }
    CHECK_THAT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK_THAT(coll_init(NULL) == COLL_ERR_SYSTEM);
    CHECK_THAT(strstr(coll_last_error(), "the limit is 20") != NULL);
    while (atomic_load(told) < size - 1)
        CHECK_THAT(coll_init(&options) != COLL_OK);
    return 0;
}

static void run_and_tell(int size, process_fn *fn)
{
    told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(told, MAP_FAILED);
    run_processes(size, fn);
    munmap(told, sizeof(*told));
}

START_TEST(failure_before_joining_is_told)
{
    run_and_tell(3 + _i, one_has_no_descriptors);
}
END_TEST

/* Rank 0 tries until the others, whenever they came, have seen it fail. */
static int rank_0_has_no_descriptors(int rank, int size)
{
    struct rlimit limit = {20, 20};

    if (rank != 0) {
        coll_status_t status = coll_init(NULL);

        atomic_fetch_add(told, 1);
        CHECK_THAT(status == COLL_ERR_PEER);
        CHECK_THAT(strstr(coll_last_error(), "rank 0 gave up: ") != NULL &&
                   strstr(coll_last_error(), "the limit is 20") != NULL);
        return 0;
    }
    CHECK_THAT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    while (atomic_load(told) < size - 1)
        CHECK_THAT(coll_init(NULL) == COLL_ERR_SYSTEM);
    return 0;
}

START_TEST(failure_of_rank_0_before_its_claim_is_told)
{
    run_and_tell(3, rank_0_has_no_descriptors);
}
END_TEST

/* A store that answers the greeting and nothing else. */
static void *freeze(void *arg)
{
    int listener = *(int *)arg;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    char request[32]; /* VALIDATE, PING, and a CHECK, which is answered 1 */

    if (recv(fd, request, sizeof(request), MSG_WAITALL) == sizeof(request) &&
        send(fd, request + 6, 4, MSG_NOSIGNAL) == 4 &&
        send(fd, "\1", 1, MSG_NOSIGNAL) == 1)
        while (recv(fd, request, 1, 0) > 0)
            continue;
    close(fd);
    return NULL;
}

START_TEST(frozen_store_is_a_time_out)
{
    struct sockaddr_in sin = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sin);
    /* Enough for the greeting. */
    coll_options_t options = {.timeout_ms = 2000};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pthread_t thread;
    char text[16];

    ck_assert_int_eq(bind(listener, (struct sockaddr *)&sin, sizeof(sin)), 0);
    ck_assert_int_eq(listen(listener, 1), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&sin, &len), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, freeze, &listener), 0);
    clear_environment();
    snprintf(text, sizeof(text), "%d", _i);
    setenv(ENV_RANK, text, 1);
    setenv(ENV_WORLD_SIZE, "2", 1);
    harness_set_master(ntohs(sin.sin_port));
    ck_assert_int_eq(coll_init(&options), COLL_ERR_TIMEOUT);
    ck_assert_msg(strstr(coll_last_error(), "did not answer") != NULL, "%s",
        coll_last_error());
    pthread_join(thread, NULL);
    close(listener);
}
END_TEST

static int count_fds(void)
{
    int count = 0;

    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static int many_cycles(int rank, int size)
{
    int before = count_fds();

    for (int i = 0; i < 100; i++) {
        int32_t x = rank + i;

        CHECK_THAT(coll_init(NULL) == COLL_OK);
        CHECK_THAT(
            coll_all_reduce(&x, &x, 1, COLL_INT32, COLL_MAX, NULL) == COLL_OK);
        CHECK_THAT(x == size - 1 + i);
        CHECK_THAT(coll_destroy() == COLL_OK);
        CHECK_THAT(count_fds() == before);
    }
    return 0;
}

START_TEST(init_and_destroy_may_be_repeated)
{
    run_processes(3, many_cycles);
}
END_TEST

/* Rank 1 fails twice, before and after it has talked to the store; nobody
 * else notices. */
static int one_tries_again(int rank, int size)
{
    coll_options_t options = COLL_OPTIONS_INIT;
    int32_t x = rank;

    for (int cycle = 0; cycle < 2; cycle++) {
        if (rank == 1) {
            options.backend = "self";
            CHECK_THAT(coll_init(&options) == COLL_ERR_ARGUMENT);
            options.backend = NULL;
        }
        CHECK_THAT(coll_init(&options) == COLL_OK);
        CHECK_THAT(
            coll_all_reduce(&x, &x, 1, COLL_INT32, COLL_MAX, NULL) == COLL_OK);
        CHECK_THAT(x == size - 1);
        CHECK_THAT(coll_destroy() == COLL_OK);
    }
    return 0;
}

START_TEST(failed_init_can_be_retried)
{
    run_processes(3, one_tries_again);
}
END_TEST

/* Descriptors that a program started by a worker would inherit. */
static int descriptors_close_on_exec(int rank, int size)
{
    int before[64];

    (void)size;
    for (int fd = 0; fd < 64; fd++)
        before[fd] = fcntl(fd, F_GETFD);
    CHECK_THAT(coll_init(NULL) == COLL_OK);
    for (int fd = 0; fd < 64; fd++) {
        int flags = fcntl(fd, F_GETFD);

        if (before[fd] < 0 && flags >= 0)
            CHECK_THAT(flags & FD_CLOEXEC);
    }
    CHECK_THAT(coll_barrier(NULL) == COLL_OK);
    CHECK_THAT(coll_destroy() == COLL_OK);
    return 0;
}

START_TEST(nothing_is_inherited_by_programs)
{
    run_processes(3, descriptors_close_on_exec);
}
END_TEST

/* --- Without a launcher's store ------------------------------------------- */

static char method[128]; /* of all ranks; "": that of the environment */
static char folder[64]; /* for the file of a method */
static bool has_left_file; /* it was there when the last rank had ended */
static int go_pipe[2]; /* what ranks tell each other in a test */

/* Ranks that get nothing but who they are, and an address or a file that none
 * of them uses yet. */
static void run_alone(int size, const char *scheme, process_fn *fn)
{
    int port = harness_free_port();
    pid_t pids[8];
    char text[16];

    clear_environment();
    ck_assert_int_le(size, 8);
    strcpy(folder, "/tmp/coll_init.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(pipe(go_pipe), 0);
    if (strcmp(scheme, "tcp") == 0)
        snprintf(method, sizeof(method), "tcp://127.0.0.1:%d", port);
    else if (strcmp(scheme, "file") == 0)
        snprintf(method, sizeof(method), "file://%s/store", folder);
    setenv("COLL_TIMEOUT", "30", 1);
    snprintf(text, sizeof(text), "%d", size);
    setenv(ENV_WORLD_SIZE, text, 1);
    if (strcmp(scheme, "env") == 0) {
        harness_set_master(port);
        unsetenv(ENV_USE_AGENT_STORE);
    }
    for (int r = 0; r < size; r++) {
        pids[r] = fork();
        ck_assert_int_ge(pids[r], 0);
        if (pids[r] == 0) {
            snprintf(text, sizeof(text), "%d", r);
            setenv(ENV_RANK, text, 1);
            exit(fn(r, size));
        }
    }
    close(go_pipe[0]);
    close(go_pipe[1]);
    for (int r = 0; r < size; r++) {
        int status;

        ck_assert_int_eq(waitpid(pids[r], &status, 0), pids[r]);
        ck_assert_msg(status == 0, "rank %d: status %x", r, status);
    }
    has_left_file =
        strcmp(scheme, "file") == 0 && unlink(method + strlen("file://")) == 0;
    ck_assert_int_eq(rmdir(folder), 0);
}

static const char *const schemes[] = {"env", "tcp", "file"};

static coll_status_t init_by_method(void)
{
    coll_options_t options = COLL_OPTIONS_INIT;

    options.init_method = method[0] == '\0' ? NULL : method;
    return coll_init(&options);
}

static int meet_and_use_the_store(int rank, int size)
{
    coll_store_t *store;
    int64_t x = rank;
    int64_t sum;
    char key[16];
    void *value;
    size_t len;

    CHECK_THAT(coll_default_store() == NULL);
    CHECK_THAT(init_by_method() == COLL_OK);
    CHECK_THAT(
        coll_all_reduce(&x, &x, 1, COLL_INT64, COLL_SUM, NULL) == COLL_OK);
    CHECK_THAT(x == size * (size - 1) / 2);
    CHECK_THAT(
        coll_store_prefix(&store, "mine", coll_default_store()) == COLL_OK);
    snprintf(key, sizeof(key), "%d", rank);
    CHECK_THAT(coll_store_set(store, key, key, strlen(key)) == COLL_OK);
    snprintf(key, sizeof(key), "%d", (rank + 1) % size);
    CHECK_THAT(coll_store_get(store, key, &value, &len) == COLL_OK);
    CHECK_THAT(strcmp(value, key) == 0);
    free(value);
    CHECK_THAT(coll_store_add(store, "n", 1, &sum) == COLL_OK);
    coll_store_close(store);
    CHECK_THAT(coll_destroy() == COLL_OK);
    CHECK_THAT(coll_default_store() == NULL);
    return 0;
}

START_TEST(ranks_meet_without_a_launcher)
{
    run_alone(2 + _i / 3 * 3, schemes[_i % 3], meet_and_use_the_store);
    ck_assert(!has_left_file);
}
END_TEST

/* One init after the other: nobody may find what is left of the one before. */
START_TEST(descriptor_limit_is_raised_for_a_store)
{
    run_alone(8, "env", join_with_few_descriptors);
}
END_TEST

static int many_cycles_alone(int rank, int size)
{
    int before = count_fds();

    for (int i = 0; i < 60; i++) {
        int32_t x = rank + i;

        CHECK_THAT(init_by_method() == COLL_OK);
        CHECK_THAT(
            coll_all_reduce(&x, &x, 1, COLL_INT32, COLL_MAX, NULL) == COLL_OK);
        CHECK_THAT(x == size - 1 + i);
        CHECK_THAT(coll_destroy() == COLL_OK);
        CHECK_THAT(count_fds() == before);
    }
    return 0;
}

START_TEST(cycles_without_a_launcher)
{
    run_alone(3, schemes[_i], many_cycles_alone);
}
END_TEST

/* Rank 1 is ahead: rank 0 still has the store of the first group. */
static int one_is_early(int rank, int size)
{
    /* Enough to find the store, and what rank 0 has left in it. */
    coll_options_t options = {.timeout_ms = 2000};
    char byte = 'x';

    (void)size;
    CHECK_THAT(init_by_method() == COLL_OK);
    if (rank == 1) {
        CHECK_THAT(coll_destroy() == COLL_OK);
        options.init_method = method[0] == '\0' ? NULL : method;
        CHECK_THAT(coll_init(&options) == COLL_ERR_TIMEOUT);
        CHECK_THAT(strstr(coll_last_error(), "waiting for rank 0, which still "
                                             "has the store") != NULL);
        CHECK_THAT(write(go_pipe[1], &byte, 1) == 1);
    } else {
        close(go_pipe[1]);
        CHECK_THAT(read(go_pipe[0], &byte, 1) == 1);
        CHECK_THAT(coll_destroy() == COLL_OK);
    }
    CHECK_THAT(init_by_method() == COLL_OK);
    CHECK_THAT(coll_barrier(NULL) == COLL_OK);
    CHECK_THAT(coll_destroy() == COLL_OK);
    return 0;
}

START_TEST(store_of_an_earlier_group_is_not_met_in)
{
    run_alone(2, schemes[_i], one_is_early);
}
END_TEST

/* STO-09: the host leaves first, and nobody else minds. */
static int host_leaves_first(int rank, int size)
{
    coll_store_t *store;
    char key[32];
    void *value;
    size_t len;

    CHECK_THAT(init_by_method() == COLL_OK);
    store = coll_default_store();
    CHECK_THAT(coll_barrier(NULL) == COLL_OK);
    if (rank != 0) {
        /* Its group is gone, so it is about to close the store. */
        CHECK_THAT(coll_barrier(NULL) == COLL_ERR_PEER);
        CHECK_THAT(strstr(coll_last_error(), "rank 0 ") != NULL);
        snprintf(key, sizeof(key), "late/%d", rank);
        CHECK_THAT(coll_store_set(store, key, key, strlen(key)) == COLL_OK);
        snprintf(key, sizeof(key), "late/%d", rank % (size - 1) + 1);
        CHECK_THAT(coll_store_get(store, key, &value, &len) == COLL_OK);
        CHECK_THAT(strcmp(value, key) == 0);
        free(value);
    }
    CHECK_THAT(coll_destroy() == COLL_OK);
    return 0;
}

START_TEST(host_that_leaves_first_waits_for_the_others)
{
    run_alone(4, schemes[_i], host_leaves_first);
}
END_TEST

/* A rank that is killed in the group's life does not keep the host. */
static int one_ends_without_destroy(int rank, int size)
{
    (void)size;
    CHECK_THAT(init_by_method() == COLL_OK);
    CHECK_THAT(coll_barrier(NULL) == COLL_OK);
    if (rank == 1)
        _exit(0);
    CHECK_THAT(coll_destroy() == COLL_OK);
    return 0;
}

START_TEST(host_does_not_wait_for_the_dead)
{
    run_alone(3, schemes[_i], one_ends_without_destroy);
}
END_TEST

/* A child that a rank has forked holds its sockets, but is no rank. This one
 * lives until both ranks have ended. */
static int one_forks(int rank, int size)
{
    char byte;

    (void)size;
    setenv("COLL_TIMEOUT", "3600", 1);
    CHECK_THAT(coll_init(NULL) == COLL_OK);
    if (rank == 1) {
        close(go_pipe[1]);
        if (fork() == 0)
            _exit((int)read(go_pipe[0], &byte, 1));
    }
    CHECK_THAT(coll_barrier(NULL) == COLL_OK);
    CHECK_THAT(coll_destroy() == COLL_OK);
    return 0;
}

START_TEST(forked_child_does_not_keep_the_host)
{
    run_alone(2, "env", one_forks);
}
END_TEST

/* Rank 0 must not join a store that is somebody else's. */
START_TEST(port_in_use_is_no_store_of_rank_0)
{
    struct harness_store st;
    coll_options_t options = {.timeout_ms = 20000};
    char *const words = "set TORCHELASTIC_USE_AGENT_STORE=True";

    clear_environment();
    harness_store_start(&st);
    harness_set_master(st.port);
    setenv(ENV_RANK, "0", 1);
    setenv(ENV_WORLD_SIZE, "2", 1);
    setenv(ENV_USE_AGENT_STORE, _i == 0 ? "true" : "1", 1); /* not "True" */
    ck_assert_int_eq(coll_init(&options), COLL_ERR_STORE);
    ck_assert_msg(
        strstr(coll_last_error(), words) != NULL, "%s", coll_last_error());
    ck_assert_ptr_nonnull(strstr(coll_last_error(), "in use"));
    harness_store_stop(&st);
}
END_TEST

/* The others may know rank 0's machine by an address that is none of its own
 * (here one that is nobody's), or by a name that comes later. Then it listens
 * on all that it has. */
START_TEST(address_need_not_be_one_of_rank_0s_machine)
{
    /* Enough to get as far as to wait. */
    coll_options_t options = {.timeout_ms = 2000};

    clear_environment();
    harness_set_master(harness_free_port());
    setenv(ENV_MASTER_ADDR, _i == 0 ? "192.0.2.1" : LATE_NAME, 1);
    unsetenv(ENV_USE_AGENT_STORE);
    setenv(ENV_RANK, "0", 1);
    setenv(ENV_WORLD_SIZE, "2", 1);
    ck_assert_int_eq(coll_init(&options), COLL_ERR_TIMEOUT);
    ck_assert_msg(strstr(coll_last_error(), "waiting for rank 1") != NULL, "%s",
        coll_last_error());
}
END_TEST

/* STO-11: under a launcher, but at an address that is not its store's. */
static int meet_elsewhere(int rank, int size)
{
    CHECK_THAT(coll_init(NULL) == COLL_OK);
    snprintf(method, sizeof(method), "tcp://localhost:%s",
        getenv("TEST_OTHER_PORT"));
    CHECK_THAT(coll_destroy() == COLL_OK);
    return meet_and_use_the_store(rank, size);
}

START_TEST(launchers_flag_is_for_its_own_address)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", harness_free_port());
    setenv("TEST_OTHER_PORT", text, 1);
    run_processes(3, meet_elsewhere);
    unsetenv("TEST_OTHER_PORT");
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("init");

    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, bad_environment_is_refused_in_words, 0,
        (int)(sizeof(bad_environments) / sizeof(bad_environments[0])));
    tcase_add_test(tc, bad_options_are_refused);
    tcase_add_loop_test(tc, bad_init_method_is_refused_in_words, 0,
        (int)(sizeof(bad_methods) / sizeof(bad_methods[0])));
    tcase_add_test(tc, who_this_is_has_an_order);
    tcase_add_test(tc, world_of_one_needs_no_launcher);
    tcase_add_test(tc, back_end_can_be_chosen);
    tcase_add_loop_test(tc, time_out_is_read_from_the_environment, 0,
        (int)(sizeof(timeouts) / sizeof(timeouts[0])));
    tcase_add_test(tc, too_many_ranks_are_refused_without_the_store);
    tcase_add_test(tc, descriptor_limit_is_named);
    tcase_add_loop_test(tc, large_time_outs_are_no_short_ones, 0, 2);
    tcase_add_test(tc, descriptor_limit_is_raised);
    tcase_add_test(tc, descriptor_limit_is_raised_for_a_store);
    tcase_add_test(tc, node_is_known_or_an_error);
    tcase_add_loop_test(tc, failure_before_joining_is_told, 0, 2);
    tcase_add_test(tc, failure_of_rank_0_before_its_claim_is_told);
    tcase_add_loop_test(tc, frozen_store_is_a_time_out, 0, 2);
    tcase_add_loop_test(tc, processes_join_and_reduce, 0, 3);
    tcase_add_loop_test(tc, processes_started_by_hand_find_their_nodes, 0, 3);
    tcase_add_test(tc, init_and_destroy_may_be_repeated);
    tcase_add_test(tc, failed_init_can_be_retried);
    tcase_add_test(tc, nothing_is_inherited_by_programs);
    tcase_add_loop_test(tc, ranks_meet_without_a_launcher, 0, 6);
    tcase_add_loop_test(tc, cycles_without_a_launcher, 0, 3);
    tcase_add_loop_test(tc, store_of_an_earlier_group_is_not_met_in, 0, 2);
    tcase_add_loop_test(tc, host_that_leaves_first_waits_for_the_others, 0, 3);
    tcase_add_loop_test(tc, host_does_not_wait_for_the_dead, 0, 3);
    tcase_add_loop_test(tc, port_in_use_is_no_store_of_rank_0, 0, 2);
    tcase_add_loop_test(tc, address_need_not_be_one_of_rank_0s_machine, 0, 2);
    tcase_add_test(tc, forked_child_does_not_keep_the_host);
    tcase_add_test(tc, launchers_flag_is_for_its_own_address);
    return unit_run("coll_init", tc);
}
