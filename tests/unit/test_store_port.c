/* A port: who is recognised as what, who goes when room is short, and stores
 * that come and go behind it. */
#include "rendezvous/store_port.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "rendezvous/base/log.h"
#include "rendezvous/listen.h"
#include "rendezvous/peer_log.h"
#include "test_store_peer.h"
#include "unit.h"

#define AGENT "89 6372756e"

static struct served served;

static void setup(void)
{
    served_start(&served);
}

static void teardown(void)
{
    served_stop(&served);
}

static void assert_alive(void)
{
    close(raw_client(served.port));
}

/* --- Recognising -------------------------------------------------------- */

/* PyTorch's own server fails this one. */
START_TEST(greeting_may_arrive_byte_by_byte)
{
    static const char *const bytes[] = {"00", "ce", "f7", "85", "3c"};
    int fd = raw_connect(served.port);

    for (size_t i = 0; i < LENGTH_OF(bytes); i++) {
        raw_send(fd, bytes[i]);
        assert_alive(); /* the byte was read alone */
    }
    raw_ping(fd);
    close(fd);
}
END_TEST

static const char *const garbage[] = {
    "474554202f20485454502f312e310d0a0d0a", /* GET / HTTP/1.1 */
    "16030100a5010000a10303", /* TLS */
    "0d 01020304", /* a PING, but no greeting: not of 1.13 */
    "00cef7853d 00000000", "896372756f", "ffffffffff",
    AGENT "00", /* no agents are served here */
};

START_TEST(garbage_ends_its_connection_and_harms_nobody)
{
    int client = raw_client(served.port);
    int fd = raw_connect(served.port);

    raw_send(fd, garbage[_i]);
    raw_expect_closed(fd);
    raw_ping(client);
    close(client);
}
END_TEST

/* Told apart while the bytes come one by one. */
START_TEST(garbage_is_refused_at_the_first_byte_that_is_wrong)
{
    int a = raw_connect(served.port), b = raw_connect(served.port);

    raw_send(a, "89637275");
    assert_alive();
    raw_send(a, "00");
    raw_expect_closed(a);
    raw_send(b, "8962");
    raw_expect_closed(b);
}
END_TEST

/* PyTorch 1.13's opcodes, without a greeting. */
START_TEST(old_clients_are_served_without_a_greeting)
{
    int fd = raw_connect(served.port);
    int watching = raw_connect(served.port);

    raw_send(fd, "03 0500000000000000 696e69742f 0100000000000000"
                 "02 0500000000000000 696e69742f");
    raw_expect(fd, "0100000000000000 0100000000000000 31");
    /* Its second connection says nothing until then. */
    raw_send(watching, "07 0100000000000000 6b");
    raw_expect(watching, "03");
    raw_send(fd, "00 0100000000000000 6b 0100000000000000 76");
    raw_expect(watching,
        "01 0100000000000000 6b 0000000000000000 0100000000000000 76");
    close(fd);
    close(watching);
}
END_TEST

static const struct {
    enum store_dialect old;
    const char *hex;
    const char *answer; /* NULL: refused */
} old_requests[] = {
    /* B: CANCEL_WAIT is 11, DELETE_KEY 7 */
    {STORE_DIALECT_B, "0b", "01"},
    {STORE_DIALECT_B, "07 0100000000000000 6b", "0000000000000000"},
    {STORE_DIALECT_A, "08 0100000000000000 6b", "0000000000000000"},
    {STORE_DIALECT_A, "0b", NULL},
    {STORE_DIALECT_C, "06", NULL},
    {STORE_DIALECT_C, "00 0100000000000000 6b", NULL},
};

START_TEST(option_says_how_old_clients_are_read)
{
    const struct store_port_options options = {
        .old_dialect = old_requests[_i].old};
    struct served s;
    int fd;

    served_prepare(&s, "127.0.0.1", &options, NULL);
    served_run(&s);
    fd = raw_connect(s.port);
    raw_send(fd, old_requests[_i].hex);
    if (old_requests[_i].answer != NULL) {
        raw_expect(fd, old_requests[_i].answer);
        close(fd);
    } else {
        raw_expect_closed(fd);
    }
    close(raw_client(s.port)); /* new ones are always served */
    served_stop(&s);
}
END_TEST

START_TEST(silent_connections_are_no_trouble)
{
    int silent[50];

    for (size_t i = 0; i < LENGTH_OF(silent); i++)
        silent[i] = raw_connect(served.port);
    for (int i = 0; i < 500; i++)
        assert_alive();
    for (size_t i = 0; i < LENGTH_OF(silent); i++) {
        raw_send(silent[i], "06"); /* GETNUMKEYS of 1.13 */
        raw_expect(silent[i], "0000000000000000");
        close(silent[i]);
    }
}
END_TEST

/* --- Agents ------------------------------------------------------------- */

struct agent_call {
    sem_t came;
    int fd;
    size_t head_len;
    char head[8192];
    struct store_port **destroy; /* the callback does it */
};

static void agent_cb(int fd, const void *head, size_t head_len, void *arg)
{
    struct agent_call *call = arg;

    call->fd = fd;
    call->head_len = head_len;
    ck_assert_uint_le(head_len, sizeof(call->head));
    memcpy(call->head, head, head_len);
    if (call->destroy != NULL) {
        store_port_destroy(*call->destroy);
        *call->destroy = NULL;
    }
    sem_post(&call->came);
}

static void serve_agents(struct served *s, struct agent_call *call)
{
    const struct store_port_options options = {
        .agent_cb = agent_cb, .agent_arg = call};

    memset(call, 0, sizeof(*call));
    ck_assert_int_eq(sem_init(&call->came, 0, 0), 0);
    served_prepare(s, "127.0.0.1", &options, NULL);
    served_run(s);
}

static void await_agent(struct agent_call *call)
{
    while (sem_wait(&call->came) < 0)
        ck_assert_int_eq(errno, EINTR);
}

/* However the magic is split, nothing of it nor of what follows is lost. */
START_TEST(agent_is_handed_over_with_what_it_has_sent)
{
    static const char sent[] = "\x89"
                               "crunhello";
    const size_t len = sizeof(sent) - 1;
    struct agent_call call;
    struct served s;
    char tail[sizeof(sent)];
    int fd;

    serve_agents(&s, &call);
    fd = raw_connect(s.port);
    raw_send_bytes(fd, sent, (size_t)_i);
    close(raw_client(s.port)); /* so that the part is read alone */
    raw_send_bytes(fd, sent + _i, len - (size_t)_i);
    await_agent(&call);
    ck_assert_uint_ge(call.head_len, SNIFF_AGENT_MAGIC_LEN);
    ck_assert_mem_eq(call.head, sent, call.head_len);
    if (call.head_len < len) { /* the rest is in the socket */
        ck_assert_int_eq(fcntl(call.fd, F_SETFL, 0), 0);
        raw_recv(call.fd, tail, len - call.head_len);
        ck_assert_mem_eq(tail, sent + call.head_len, len - call.head_len);
    }
    raw_send(call.fd, "6869");
    raw_expect(fd, "6869");
    served_stop(&s); /* the socket is not the port's any more */
    raw_send(call.fd, "6869");
    raw_expect(fd, "6869");
    close(call.fd);
    close(fd);
}
END_TEST

static void let_agent_destroy(struct served *s)
{
    ((struct agent_call *)s->arg)->destroy = &s->acceptor;
}

START_TEST(port_may_be_destroyed_when_an_agent_comes)
{
    struct agent_call call;
    struct served s;
    int fds[20], silent;

    serve_agents(&s, &call);
    s.arg = &call;
    served_call(&s, let_agent_destroy);
    silent = raw_connect(s.port);
    for (size_t i = 0; i < LENGTH_OF(fds); i++)
        fds[i] = raw_connect(s.port);
    raw_send(fds[7], AGENT);
    await_agent(&call);
    raw_expect_closed(silent);
    for (size_t i = 0; i < LENGTH_OF(fds); i++)
        if (i == 7)
            close(fds[i]);
        else
            raw_expect_closed(fds[i]);
    close(call.fd);
    served_stop(&s);
}
END_TEST

/* --- Stores that come and go -------------------------------------------- */

static void close_store(struct served *s)
{
    store_port_set_store(s->acceptor, NULL);
    store_server_destroy(s->store);
    s->store = NULL;
}

static void next_store(struct served *s)
{
    close_store(s);
    ck_assert_int_eq(store_server_create(&s->store, s->poller, NULL), 0);
    store_port_set_store(s->acceptor, s->store);
}

START_TEST(fresh_store_behind_the_port_knows_nothing_of_the_old)
{
    int waiting = raw_client(served.port);
    int client = raw_client(served.port);

    raw_send(waiting, "06 0100000000000000 0100000000000000 6b");
    raw_ping(waiting);
    served_call(&served, next_store);
    raw_expect_closed(waiting);
    raw_expect_closed(client);
    client = raw_client(served.port);
    raw_send(client, "01 0100000000000000 6b 0000000000000000 07");
    raw_expect(client, "0100000000000000");
    served_call(&served, next_store);
    raw_expect_closed(client);
    client = raw_client(served.port);
    raw_send(client, "07");
    raw_expect(client, "0000000000000000");
    close(client);
}
END_TEST

START_TEST(fifty_rounds_of_clients)
{
    for (int round = 0; round < 50; round++) {
        int fds[4];

        for (int i = 0; i < 4; i++) {
            char hex[20];

            fds[i] = raw_client(served.port);
            raw_send(fds[i], "04 0100000000000000 6e 0100000000000000");
            snprintf(hex, sizeof(hex), "%02x00000000000000", i + 1);
            raw_expect(fds[i], hex);
        }
        served_call(&served, next_store);
        for (int i = 0; i < 4; i++)
            raw_expect_closed(fds[i]);
    }
}
END_TEST

/* Between two rounds who speaks is turned away, and who has not spoken yet
 * is a client of the next. */
START_TEST(between_stores_clients_are_closed_and_strangers_stay)
{
    int early = raw_connect(served.port), client;

    served_call(&served, close_store);
    client = raw_connect(served.port);
    raw_send(client, GREETING "0d 01020304");
    raw_expect_closed(client);
    raw_send(early, "00ce");
    client = raw_connect(served.port);
    raw_send(client, "06");
    raw_expect_closed(client);
    served_call(&served, next_store);
    raw_send(early, "f7853c 0d 01020304");
    raw_expect(early, "01020304");
    close(early);
}
END_TEST

/* The store of a round that is over may outlive it for a while. */
START_TEST(clients_stay_with_the_store_that_they_came_to)
{
    struct store_server *old = served.store;
    int client = raw_client(served.port), other;

    raw_send(client, "01 0100000000000000 6b 0000000000000000");
    raw_ping(client);
    served.store = NULL;
    served_call(&served, next_store);
    other = raw_client(served.port);
    raw_send(client, "07");
    raw_expect(client, "0100000000000000");
    raw_send(other, "07");
    raw_expect(other, "0000000000000000");
    served.arg = served.store;
    served.store = old;
    served_call(&served, close_store);
    raw_expect_closed(client);
    raw_ping(other);
    close(other);
    served.store = served.arg;
    store_port_set_store(served.acceptor, NULL);
}
END_TEST

struct second {
    struct store_server *store;
    struct store_port *port;
    int number;
};

static void open_second(struct served *s)
{
    struct second *two = s->arg;

    ck_assert_int_eq(store_server_create(&two->store, s->poller, NULL), 0);
    ck_assert_int_eq(store_port_create(&two->port, s->poller, "127.0.0.1", 0,
                         NULL, &two->number, &e),
        0);
    store_port_set_store(two->port, two->store);
}

static void close_second(struct served *s)
{
    struct second *two = s->arg;

    store_port_destroy(two->port);
    store_server_destroy(two->store);
}

START_TEST(two_ports_have_two_stores)
{
    struct second two;
    int a, b;

    served.arg = &two;
    served_call(&served, open_second);
    ck_assert_int_ne(two.number, served.port);
    a = raw_client(served.port);
    b = raw_client(two.number);
    raw_send(a, "01 0100000000000000 6b 0000000000000000 07");
    raw_expect(a, "0100000000000000");
    raw_send(b, "07");
    raw_expect(b, "0000000000000000");
    served_call(&served, close_second);
    raw_expect_closed(b);
    raw_ping(a);
    close(a);
}
END_TEST

static void close_port(struct served *s)
{
    store_port_destroy(s->acceptor);
    s->acceptor = NULL;
}

START_TEST(without_its_port_a_store_serves_its_clients)
{
    int client = raw_client(served.port);
    int stranger = raw_connect(served.port);

    assert_alive(); /* the stranger has been accepted */
    served_call(&served, close_port);
    raw_expect_closed(stranger);
    raw_ping(client);
    close(client);
}
END_TEST

START_TEST(destroying_everything_closes_everybody)
{
    struct served s;
    int waiting, silent, half;

    served_start(&s);
    silent = raw_connect(s.port);
    half = raw_connect(s.port);
    raw_send(half, "00cef7");
    waiting = raw_client(s.port);
    raw_send(waiting, "06 0100000000000000 0100000000000000 6b 07");
    raw_expect(waiting, "0000000000000000");
    served_stop(&s);
    raw_expect_closed(waiting);
    raw_expect_closed(silent);
    raw_expect_closed(half);
}
END_TEST

/* --- Too many ----------------------------------------------------------- */

START_TEST(beyond_the_limit_the_oldest_stranger_goes)
{
    const struct store_port_options options = {.max_connections = 4};
    struct served s;
    int silent[4], clients[4], one_more;

    served_prepare(&s, "127.0.0.1", &options, NULL);
    served_run(&s);
    for (int i = 0; i < 4; i++)
        silent[i] = raw_connect(s.port);
    for (int i = 0; i < 4; i++) {
        clients[i] = raw_client(s.port);
        raw_expect_closed(silent[i]); /* in the order they came */
        for (int k = i + 1; k < 4; k++) {
            char byte;

            ck_assert_int_lt(recv(silent[k], &byte, 1, MSG_DONTWAIT), 0);
            ck_assert_int_eq(errno, EAGAIN);
        }
    }
    one_more = raw_connect(s.port); /* there is no stranger left */
    raw_expect_closed(one_more);
    for (int i = 0; i < 4; i++)
        raw_ping(clients[i]);
    close(clients[2]);
    while (true) { /* its place is free as soon as its end is seen */
        char got[4];

        one_more = raw_connect(s.port);
        raw_send(one_more, GREETING "0d 01020304");
        if (recv(one_more, got, sizeof(got), MSG_WAITALL) == sizeof(got))
            break;
        close(one_more);
    }
    close(one_more);
    served_stop(&s);
}
END_TEST

/* What a serving child shares with the test. */
struct child {
    pid_t pid;
    int port;
    unsigned long turns; /* of its loop */
    unsigned long lines; /* that it has logged */
};

static void count_line(const char *line, size_t len, void *arg)
{
    struct child *c = arg;

    (void)line;
    (void)len;
    __atomic_add_fetch(&c->lines, 1, __ATOMIC_SEQ_CST);
}

static unsigned long look(unsigned long *counter)
{
    return __atomic_load_n(counter, __ATOMIC_SEQ_CST);
}

#define FEW_FDS 24

/* A child serves with few descriptors, so that ours do not run out. */
static struct child *serve_with_few_fds(void)
{
    const struct rlimit few = {.rlim_cur = FEW_FDS, .rlim_max = FEW_FDS};
    struct child *c = mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int fds[2];
    char byte;
    pid_t pid;

    ck_assert_ptr_ne(c, MAP_FAILED);
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct served s;

        prctl(PR_SET_PDEATHSIG, SIGKILL); /* if the test fails */
        log_set_writer(count_line, c);
        served_prepare(&s, "127.0.0.1", NULL, NULL);
        c->port = s.port;
        if (setrlimit(RLIMIT_NOFILE, &few) < 0 || write(fds[1], "", 1) != 1)
            _exit(1);
        while (poller_run(s.poller, -1) >= 0)
            __atomic_add_fetch(&c->turns, 1, __ATOMIC_SEQ_CST);
        _exit(1);
    }
    close(fds[1]);
    ck_assert_int_eq(read(fds[0], &byte, 1), 1);
    close(fds[0]);
    c->pid = pid;
    return c;
}

static void end_child(struct child *c)
{
    int status;

    ck_assert_int_eq(kill(c->pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(c->pid, &status, 0), c->pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    munmap(c, sizeof(*c));
}

/* STO-12: clients of whom there are more than descriptors. */
START_TEST(without_descriptors_clients_wait_and_others_are_served)
{
    struct child *c = serve_with_few_fds();
    int fds[40], client = raw_client(c->port);
    unsigned long turns;
    struct pollfd p;

    /* Nobody is closed just because he has not spoken at once. */
    for (size_t i = 0; i < LENGTH_OF(fds); i++)
        fds[i] = raw_connect(c->port);
    for (size_t i = 0; i < LENGTH_OF(fds); i++)
        raw_send(fds[i], GREETING "0d 01020304");
    for (int i = 0; i < 100; i++)
        raw_ping(client);
    /* Somebody waits in the backlog all the time, which must not make the
     * loop spin: it looks about ten times a second. */
    turns = look(&c->turns);
    p = (struct pollfd){.fd = fds[39], .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, 500), 0);
    ck_assert_uint_lt(look(&c->turns) - turns, 100);
    /* Each in turn: those in front leave, those behind get their place. */
    for (size_t i = 0; i < LENGTH_OF(fds); i++) {
        raw_expect(fds[i], "01020304");
        close(fds[i]);
    }
    raw_ping(client);
    ck_assert_uint_eq(look(&c->lines), 1);
    close(client);
    end_child(c);
}
END_TEST

/* More connections that say nothing than there are descriptors: they cost
 * nobody anything, and it is told once. */
START_TEST(without_descriptors_the_oldest_stranger_makes_room)
{
    struct child *c = serve_with_few_fds();
    int silent[60], clients[10];
    bool is_open = false;

    for (size_t i = 0; i < LENGTH_OF(silent); i++)
        silent[i] = raw_connect(c->port);
    for (size_t i = 0; i < LENGTH_OF(clients); i++)
        clients[i] = raw_client(c->port);
    for (size_t i = 0; i < LENGTH_OF(clients); i++)
        raw_ping(clients[i]);
    for (size_t i = 0; i < LENGTH_OF(silent); i++) {
        char byte;

        if (i < LENGTH_OF(silent) - FEW_FDS) { /* no longer in any case */
            raw_expect_closed(silent[i]);
            continue;
        }
        /* From the first that is open on all are. */
        if (recv(silent[i], &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN)
            is_open = true;
        else
            ck_assert(!is_open);
        close(silent[i]);
    }
    ck_assert_uint_eq(look(&c->lines), 1);
    for (size_t i = 0; i < LENGTH_OF(clients); i++)
        close(clients[i]);
    end_child(c);
}
END_TEST

/* --- The log ------------------------------------------------------------ */

struct tally {
    unsigned long lines; /* about one peer each */
    unsigned long hidden; /* as told */
};

static void tally_cb(const char *line, size_t len, void *arg)
{
    struct tally *t = arg;
    const char *more = strstr(line, "and ");

    ck_assert_uint_gt(len, 0);
    if (more != NULL)
        t->hidden += strtoul(more + 4, NULL, 10);
    else
        t->lines++;
}

START_TEST(flood_of_refusals_is_no_flood_of_lines)
{
    uint64_t begin = clock_now_ns() / CLOCK_NS_PER_S, seconds;
    struct peer_log l = {0};
    struct tally t = {0};

    log_set_writer(tally_cb, &t);
    for (int i = 0; i < 20000; i++)
        peer_log_warn(&l, -1, "closed a connection: %d", i);
    seconds = clock_now_ns() / CLOCK_NS_PER_S - begin + 1;
    peer_log_fini(&l);
    log_set_writer(NULL, NULL);
    ck_assert_uint_ge(t.lines, PEER_LOG_PER_SECOND);
    ck_assert_uint_le(t.lines, seconds * PEER_LOG_PER_SECOND);
    ck_assert_uint_eq(t.lines + t.hidden, 20000);
}
END_TEST

static void keep_line(const char *line, size_t len, void *arg)
{
    snprintf(arg, 256, "%.*s", (int)len, line);
}

/* The peer of an IPv4 client is told as such, also behind a socket for both
 * families. */
START_TEST(line_names_the_peer_in_numbers)
{
    struct sockaddr_in self;
    socklen_t len = sizeof(self);
    struct served s;
    char line[256], peer[40];
    int fd;

    log_set_writer(keep_line, line);
    served_prepare(&s, _i == 0 ? "127.0.0.1" : "::", NULL, NULL);
    served_run(&s);
    fd = raw_connect(s.port);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&self, &len), 0);
    snprintf(peer, sizeof(peer), "peer=127.0.0.1:%d\n", ntohs(self.sin_port));
    raw_send(fd, "ff");
    raw_expect_closed(fd);
    served_stop(&s);
    log_set_writer(NULL, NULL);
    ck_assert_msg(strstr(line, peer) != NULL, "%s in %s", peer, line);
}
END_TEST

/* --- Who may connect ---------------------------------------------------- */

/*
 * A port for both families or for IPv4 in a network of the test's own, whose
 * machine has all addresses of 10.0.0.0/8 beside those of loopback.
 */
struct guarded {
    struct served s;
    struct access *access;
    struct agent_call call;
    char line[256]; /* the latest of the log */
};

/* An address of a class A network is one with eight bits of prefix, and the
 * loopback device takes all that it covers for its own. */
static bool has_ten(void)
{
    struct ifreq lo = {.ifr_name = "lo:1"};
    struct sockaddr_in sin = {
        .sin_family = AF_INET, .sin_addr.s_addr = inet_addr("10.9.9.1")};
    int fd;

    if (!enter_private_network())
        return false;
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    memcpy(&lo.ifr_addr, &sin, sizeof(sin));
    ck_assert_msg(ioctl(fd, SIOCSIFADDR, &lo) == 0, "%s", strerror(errno));
    close(fd);
    return true;
}

/* False if the test has to be skipped. host_index: 0 or 1. */
static bool guarded_start(struct guarded *g, int host_index)
{
    struct store_port_options options = {
        .agent_cb = agent_cb, .agent_arg = &g->call};

    memset(g, 0, sizeof(*g));
    if (!has_ten())
        return false;
    ck_assert_int_eq(access_create(&g->access), 0);
    ck_assert_int_eq(sem_init(&g->call.came, 0, 0), 0);
    options.access = g->access;
    log_set_writer(keep_line, g->line);
    served_prepare(&g->s, host_index == 0 ? "0.0.0.0" : "::", &options, NULL);
    g->s.arg = g;
    served_run(&g->s);
    return true;
}

/* The log's line can be read afterwards. */
static void guarded_stop(struct guarded *g)
{
    served_stop(&g->s);
    log_set_writer(NULL, NULL);
    access_free(g->access);
    sem_destroy(&g->call.came);
}

static int raw_connect_between(const char *from, const char *to, int port)
{
    struct sockaddr_in sin = {
        .sin_family = AF_INET, .sin_addr.s_addr = inet_addr(from)};
    struct timeval patience = {.tv_sec = PATIENCE_MS / 1000};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)),
        0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
    sin.sin_port = htons((uint16_t)port);
    sin.sin_addr.s_addr = inet_addr(to);
    ck_assert_msg(connect(fd, (struct sockaddr *)&sin, sizeof(sin)) == 0,
        "connect: %s", strerror(errno));
    return fd;
}

static int ten_client(struct guarded *g, const char *from)
{
    int fd = raw_connect_between(from, "10.9.9.1", g->s.port);

    raw_send(fd, GREETING "0d 01020304");
    return fd;
}

static void let_nodes_in(struct served *s)
{
    struct guarded *g = s->arg;

    ck_assert_int_eq(access_allow_address(g->access, "10.9.9.2"), 0);
    ck_assert_int_eq(access_allow_cidrs(g->access, "10.8.0.0/16", &e), 0);
}

static void forget_nodes(struct served *s)
{
    access_clear_addresses(((struct guarded *)s->arg)->access);
}

START_TEST(stranger_is_refused_and_the_jobs_nodes_are_served)
{
    struct guarded g;
    int node, subnet;

    if (!guarded_start(&g, _i))
        return;
    close(raw_client(g.s.port)); /* loopback */
    raw_expect_closed(ten_client(&g, "10.9.9.2"));
    served_call(&g.s, let_nodes_in);
    node = ten_client(&g, "10.9.9.2");
    raw_expect(node, "01020304");
    subnet = ten_client(&g, "10.8.7.6");
    raw_expect(subnet, "01020304");
    raw_expect_closed(ten_client(&g, "10.9.9.3"));
    /* In the next round it is no node: who is served stays so. */
    served_call(&g.s, forget_nodes);
    raw_expect_closed(ten_client(&g, "10.9.9.2"));
    raw_ping(node);
    raw_ping(subnet);
    close(subnet);
    subnet = ten_client(&g, "10.8.7.6");
    raw_expect(subnet, "01020304");
    close(node);
    close(subnet);
    guarded_stop(&g);
}
END_TEST

START_TEST(refusal_names_the_peer_and_the_option)
{
    struct guarded g;

    if (!guarded_start(&g, _i))
        return;
    raw_expect_closed(ten_client(&g, "10.9.9.2"));
    guarded_stop(&g);
    ck_assert_msg(strstr(g.line, ": 10.9.9.2 is not") != NULL, "%s", g.line);
    ck_assert_msg(
        strstr(g.line, "--store-allow 10.9.9.2 ") != NULL, "%s", g.line);
    ck_assert_msg(strstr(g.line, "peer=10.9.9.2:") != NULL, "%s", g.line);
}
END_TEST

/* Which nodes the next store is for may not be known yet. But clients that come
 * where agents meet are told of, once. */
START_TEST(without_a_store_a_stranger_is_told_of_once)
{
    struct guarded g;

    if (!guarded_start(&g, _i))
        return;
    served_call(&g.s, close_store);
    raw_expect_closed(ten_client(&g, "10.9.9.2"));
    guarded_stop(&g);
    ck_assert_msg(
        strstr(g.line, "as no store is open here") != NULL, "%s", g.line);
}
END_TEST

/* Where the agents are is not known before they have come. */
START_TEST(agent_may_come_from_anywhere)
{
    struct guarded g;
    int fd;

    if (!guarded_start(&g, _i))
        return;
    fd = raw_connect_between("10.9.9.2", "10.9.9.1", g.s.port);
    raw_send(fd, AGENT);
    await_agent(&g.call);
    raw_send(g.call.fd, "6869");
    raw_expect(fd, "6869");
    close(g.call.fd);
    close(fd);
    guarded_stop(&g);
    ck_assert_str_eq(g.line, "");
}
END_TEST

static void limit_to_endpoint(struct served *s)
{
    struct guarded *g = s->arg;
    struct sockaddr_in sin = {
        .sin_family = AF_INET, .sin_addr.s_addr = inet_addr("10.9.9.1")};

    ck_assert_int_eq(access_limit_local(g->access, (struct sockaddr *)&sin), 0);
}

/* Whoever it is: the connection is closed before it has said a word. */
START_TEST(connection_comes_in_at_the_endpoint_or_not_at_all)
{
    struct guarded g;
    int elsewhere, fd;

    if (!guarded_start(&g, _i))
        return;
    served_call(&g.s, let_nodes_in);
    elsewhere = raw_connect_between("10.9.9.2", "10.7.7.7", g.s.port);
    raw_send(elsewhere, GREETING);
    raw_ping(elsewhere); /* at any address, and stays */
    served_call(&g.s, limit_to_endpoint);
    close(raw_client(g.s.port)); /* loopback */
    fd = ten_client(&g, "10.9.9.2");
    raw_expect(fd, "01020304");
    raw_expect_closed(raw_connect_between("10.9.9.2", "10.7.7.7", g.s.port));
    raw_ping(fd);
    raw_ping(elsewhere);
    close(fd);
    close(elsewhere);
    guarded_stop(&g);
    ck_assert_msg(strstr(g.line, "at 10.7.7.7,") != NULL, "%s", g.line);
    ck_assert_msg(strstr(g.line, "peer=10.9.9.2:") != NULL, "%s", g.line);
}
END_TEST

/* --- Listening ---------------------------------------------------------- */

/* Opens and closes; returns listen's rc. */
static int try_listen(const char *host, int port, int *bound)
{
    int fds[LISTEN_MAX];
    int n = listen_open(host, port, fds, bound, &e);

    for (int i = 0; i < n; i++)
        close(fds[i]);
    return n;
}

START_TEST(port_in_use_is_an_error_that_names_it)
{
    struct store_port *port = NULL;
    struct poller *p;
    char number[8];
    int bound = -1;

    snprintf(number, sizeof(number), "%d", served.port);
    ck_assert_int_eq(poller_create(&p), 0);
    ck_assert_int_eq(
        store_port_create(&port, p, "127.0.0.1", served.port, NULL, &bound, &e),
        -EADDRINUSE);
    ck_assert_ptr_null(port);
    ck_assert_int_eq(bound, -1);
    ck_assert_ptr_nonnull(strstr(e.msg, "127.0.0.1"));
    ck_assert_ptr_nonnull(strstr(e.msg, number));
    ck_assert_ptr_nonnull(strstr(e.msg, "in use"));
    poller_destroy(p);
}
END_TEST

START_TEST(port_can_be_bound_again_at_once)
{
    struct served s;
    int client, bound;

    served_start(&s);
    client = raw_client(s.port);
    served_stop(&s); /* closes first: its side lingers in TIME_WAIT */
    raw_expect_closed(client);
    ck_assert_msg(try_listen("127.0.0.1", s.port, &bound) > 0, "%s", e.msg);
    ck_assert_int_eq(bound, s.port);
}
END_TEST

START_TEST(address_of_another_machine_is_an_error)
{
    int bound;

    ck_assert_int_eq(try_listen("192.0.2.1", 0, &bound), -EADDRNOTAVAIL);
    ck_assert_ptr_nonnull(strstr(e.msg, "192.0.2.1"));
}
END_TEST

START_TEST(name_that_does_not_resolve_is_an_error)
{
    int bound;

    ck_assert_int_eq(try_listen("no such host", 0, &bound), -ENOENT);
    ck_assert_ptr_nonnull(strstr(e.msg, "no such host"));
}
END_TEST

START_TEST(port_out_of_range_is_an_error)
{
    int bound;

    ck_assert_int_eq(try_listen("127.0.0.1", -1, &bound), -EINVAL);
    ck_assert_int_eq(try_listen("127.0.0.1", 65536, &bound), -EINVAL);
}
END_TEST

/* The C library resolves it to the wildcard addresses of both families. */
START_TEST(star_is_every_address)
{
    struct served s;

    served_prepare(&s, "*", NULL, NULL);
    served_run(&s);
    close(raw_client(s.port));
    served_stop(&s);
}
END_TEST

START_TEST(localhost_is_served_on_all_its_addresses)
{
    struct served s;

    served_prepare(&s, "localhost", NULL, NULL);
    served_run(&s);
    close(raw_client(s.port));
    served_stop(&s);
}
END_TEST

static bool has_ipv6(void)
{
    struct sockaddr_in6 sin6 = {
        .sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && bind(fd, (struct sockaddr *)&sin6, sizeof(sin6)) == 0;

    if (fd >= 0)
        close(fd);
    return ok;
}

START_TEST(ipv6_is_served)
{
    struct sockaddr_in6 sin6 = {
        .sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    struct served s;
    int fd;

    served_prepare(&s, _i == 0 ? "::1" : "::", NULL, NULL);
    served_run(&s);
    sin6.sin6_port = htons((uint16_t)s.port);
    fd = raw_connect_to((struct sockaddr *)&sin6, sizeof(sin6));
    raw_send(fd, GREETING);
    raw_ping(fd);
    close(fd);
    if (_i == 1)
        close(raw_client(s.port)); /* IPv4 too */
    served_stop(&s);
}
END_TEST

START_TEST(destroy_takes_null)
{
    store_port_destroy(NULL);
}
END_TEST

int main(void)
{
    int families = has_ipv6() ? 2 : 1;
    Suite *suite = suite_create("store_port");
    TCase *tc = tcase_create("served");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, greeting_may_arrive_byte_by_byte);
    tcase_add_loop_test(tc, garbage_ends_its_connection_and_harms_nobody, 0,
        (int)LENGTH_OF(garbage));
    tcase_add_test(tc, garbage_is_refused_at_the_first_byte_that_is_wrong);
    tcase_add_test(tc, old_clients_are_served_without_a_greeting);
    tcase_add_test(tc, silent_connections_are_no_trouble);
    tcase_add_test(tc, fresh_store_behind_the_port_knows_nothing_of_the_old);
    tcase_add_test(tc, fifty_rounds_of_clients);
    tcase_add_test(tc, between_stores_clients_are_closed_and_strangers_stay);
    tcase_add_test(tc, clients_stay_with_the_store_that_they_came_to);
    tcase_add_test(tc, two_ports_have_two_stores);
    tcase_add_test(tc, without_its_port_a_store_serves_its_clients);
    tcase_add_test(tc, port_in_use_is_an_error_that_names_it);
    suite_add_tcase(suite, tc);

    tc = tcase_create("own");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, option_says_how_old_clients_are_read, 0,
        (int)LENGTH_OF(old_requests));
    tcase_add_loop_test(tc, agent_is_handed_over_with_what_it_has_sent, 0, 11);
    tcase_add_test(tc, port_may_be_destroyed_when_an_agent_comes);
    tcase_add_test(tc, destroying_everything_closes_everybody);
    tcase_add_test(tc, beyond_the_limit_the_oldest_stranger_goes);
    tcase_add_test(tc, without_descriptors_clients_wait_and_others_are_served);
    tcase_add_test(tc, without_descriptors_the_oldest_stranger_makes_room);
    tcase_add_test(tc, flood_of_refusals_is_no_flood_of_lines);
    tcase_add_loop_test(tc, line_names_the_peer_in_numbers, 0, families);
    tcase_add_loop_test(
        tc, stranger_is_refused_and_the_jobs_nodes_are_served, 0, families);
    tcase_add_loop_test(tc, refusal_names_the_peer_and_the_option, 0, families);
    tcase_add_loop_test(
        tc, without_a_store_a_stranger_is_told_of_once, 0, families);
    tcase_add_loop_test(tc, agent_may_come_from_anywhere, 0, families);
    tcase_add_loop_test(
        tc, connection_comes_in_at_the_endpoint_or_not_at_all, 0, families);
    tcase_add_test(tc, port_can_be_bound_again_at_once);
    tcase_add_test(tc, address_of_another_machine_is_an_error);
    tcase_add_test(tc, name_that_does_not_resolve_is_an_error);
    tcase_add_test(tc, port_out_of_range_is_an_error);
    tcase_add_test(tc, localhost_is_served_on_all_its_addresses);
    tcase_add_test(tc, star_is_every_address);
    tcase_add_loop_test(tc, ipv6_is_served, 0, has_ipv6() ? 2 : 0);
    tcase_add_test(tc, destroy_takes_null);
    suite_add_tcase(suite, tc);
    return unit_run_suite(suite);
}
