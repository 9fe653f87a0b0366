/*
 * crund: hosts a store and the coordinator of jobs on its own, so that they
 * outlive every training node.
 * This file is the program around it: options, limits of the process,
 * signals, and telling where it listens.
 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "cmd/option_table.h"
#include "cmd/standard_fds.h"
#include "rendezvous/access.h"
#include "rendezvous/base/log.h"
#include "rendezvous/base/text.h"
#include "rendezvous/coordinator.h"
#include "rendezvous/poller.h"
#include "rendezvous/store_port.h"
#include "rendezvous/store_server.h"

#define EXIT_FAILED 1
#define EXIT_USAGE 2

#define HOST_MAX 256 /* of a DNS name, with its NUL */

/* Descriptors that are not clients: the standard ones, listeners, signals. */
#define FDS_BESIDE_CLIENTS 32

#define USAGE "usage: crund --listen HOST:PORT [options]\n"

struct settings {
    const char *listen;
    const char *old_clients;
    const char *token_path; /* NULL: none */
    const char *store_allow; /* networks in a list; NULL: no more */
    int64_t ready_fd; /* -1: none */
    int64_t max_clients;
    int64_t max_key;
    int64_t max_value;
    int64_t max_keys;
    int64_t max_memory;
    bool is_help;
    bool is_version;
    /* What these say, checked: */
    char host[HOST_MAX]; /* empty: all addresses of this machine */
    int port;
    enum store_dialect old_dialect;
};

#define FIELD(field) .offset = offsetof(struct settings, field)
#define SIZE_LIMIT ((int64_t)1 << 40)
#define A_SIZE .type = OPTION_SIZE, .min = 1, .max = SIZE_LIMIT, .value = "SIZE"
#define A_NUMBER .type = OPTION_NUMBER, .max = INT32_MAX, .value = "N"

static const struct option options[] = {
    {.name = "listen",
        .type = OPTION_TEXT,
        FIELD(listen),
        .value = "HOST:PORT",
        .group = "options (SIZE is in bytes, or ends in K, M or G)",
        .help = "where to listen: an address or name of this\n"
                "machine, IPv6 as [::1]:PORT, * or nothing for\n"
                "all addresses; port 0 is any free one"},
    {.name = "ready-fd",
        A_NUMBER,
        FIELD(ready_fd),
        .min = 3,
        .help = "also write the line HOST:PORT to descriptor N,\n"
                "and close it"},
    {.name = "max-clients",
        A_NUMBER,
        FIELD(max_clients),
        .min = 1,
        .help = "connections at a time (default 65536)"},
    {.name = "max-key-bytes",
        A_SIZE,
        FIELD(max_key),
        .help = "length of a key (default 8K)"},
    {.name = "max-value-bytes",
        A_SIZE,
        FIELD(max_value),
        .help = "length of a value (default 128M)"},
    {.name = "max-keys",
        A_NUMBER,
        FIELD(max_keys),
        .min = 1,
        .help = "keys in one request (default 131072)"},
    {.name = "max-memory",
        A_SIZE,
        FIELD(max_memory),
        .help = "memory for keys, values and buffers (default 1G)"},
    {.name = "old-clients",
        .type = OPTION_TEXT,
        FIELD(old_clients),
        .value = "1.13|2.1|none",
        .help = "how to read clients older than PyTorch 2.2,\n"
                "which do not tell their version: as 1.13 and\n"
                "2.0 (default), as 2.1, or not at all"},
    {.name = "token-file",
        .type = OPTION_TEXT,
        FIELD(token_path),
        .value = "FILE",
        .help = "FILE holds the job's secret, and no agent takes\n"
                "part that does not know it (else CRUN_TOKEN_FILE)"},
    {.name = "store-allow",
        .type = OPTION_TEXT,
        FIELD(store_allow),
        .value = "CIDR,...",
        .help = "networks whose programs may use the store too, as\n"
                "in 10.0.0.0/8,fd00::/8"},
    {.name = "help",
        .letter = 'h',
        .type = OPTION_FLAG,
        FIELD(is_help),
        .help = "print this text"},
    {.name = "version",
        .type = OPTION_FLAG,
        FIELD(is_version),
        .help = "print the version"},
};

static const struct option_table table = {
    .options = options,
    .count = sizeof(options) / sizeof(options[0]),
    .hint = "",
};

/* --- The command line --------------------------------------------------- */

/* "HOST:PORT", "[ADDRESS]:PORT", ":PORT" or "*:PORT". */
static int parse_listen(struct settings *s, struct err *e)
{
    const char *host = s->listen;
    const char *colon = strrchr(s->listen, ':');
    size_t len = colon != NULL ? (size_t)(colon - host) : 0;
    int64_t port;

    if (colon == NULL || text_to_i64(colon + 1, &port) < 0 || port < 0 ||
        port > 65535)
        return err_set(e, -EINVAL,
            "--listen='%s': expected HOST:PORT, PORT from 0 to 65535",
            s->listen);
    if (len >= 2 && host[0] == '[' && host[len - 1] == ']') {
        host++;
        len -= 2;
    } else if (memchr(host, ':', len) != NULL) {
        return err_set(e, -EINVAL,
            "--listen='%s': an IPv6 address goes in brackets, [ADDRESS]:PORT",
            s->listen);
    }
    if (len == 1 && host[0] == '*')
        len = 0;
    if (len >= sizeof(s->host))
        return err_set(e, -EINVAL, "--listen: the name is too long");
    memcpy(s->host, host, len);
    s->host[len] = '\0';
    s->port = (int)port;
    return 0;
}

static int parse_old_clients(struct settings *s, struct err *e)
{
    static const struct {
        const char *name;
        enum store_dialect dialect;
    } names[] = {{"1.13", STORE_DIALECT_A}, {"2.1", STORE_DIALECT_B},
        {"none", STORE_DIALECT_C}};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(s->old_clients, names[i].name) == 0) {
            s->old_dialect = names[i].dialect;
            return 0;
        }
    return err_set(e, -EINVAL,
        "--old-clients='%s': expected one of 1.13, 2.1, none", s->old_clients);
}

/* NULL if the variable is empty. */
static const char *env_text(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && text[0] != '\0' ? text : NULL;
}

static int parse(struct settings *s, int argc, char **argv, struct err *e)
{
    const struct store_limits defaults = STORE_LIMITS_DEFAULT;
    const struct option_target target = {.base = s};
    int rest, rc;

    *s = (struct settings){.old_clients = "1.13",
        .ready_fd = -1,
        .max_clients = (int64_t)defaults.clients,
        .max_key = (int64_t)defaults.key_len,
        .max_value = (int64_t)defaults.value_len,
        .max_keys = (int64_t)defaults.list_count,
        .max_memory = (int64_t)defaults.memory};
    rc = option_table_parse(&table, &target, argc, argv, &rest, e);
    if (rc < 0 || s->is_help || s->is_version)
        return rc;
    if (rest < argc)
        return err_set(e, -EINVAL, "unexpected argument '%s'", argv[rest]);
    if (s->token_path == NULL)
        s->token_path = env_text("CRUN_TOKEN_FILE");
    if (s->listen == NULL)
        return err_set(e, -EINVAL, "--listen is missing: where to listen");
    if (s->ready_fd >= 0 && fcntl((int)s->ready_fd, F_GETFD) < 0)
        return err_set(e, -EINVAL, "--ready-fd=%d: that descriptor is not open",
            (int)s->ready_fd);
    rc = parse_old_clients(s, e);
    return rc < 0 ? rc : parse_listen(s, e);
}

static void print_help(void)
{
    fputs(USAGE "\n"
                "Hosts a store that speaks the protocol of PyTorch's TCPStore, "
                "and the\n"
                "coordinator of crun's jobs of several nodes, until SIGTERM or "
                "SIGINT.\n"
                "When it listens it prints HOST:PORT.\n"
                "\n",
        stdout);
    option_table_print(&table, NULL, stdout);
    fputs(
        "\n"
        "environment: LOGLEVEL (ERROR, WARNING, INFO, DEBUG), CRUN_TOKEN_FILE\n"
        "\n"
        "exit status: 0 after a signal to stop, 1 if it cannot listen or\n"
        "serve, 2 for a mistake on the command line\n",
        stdout);
}

/* --- The process -------------------------------------------------------- */

/* A reader of our log that does not read must not hold up the clients: what
 * cannot be written now is lost. A pipe or terminal that is ready takes a
 * line. */
static void write_log(const char *line, size_t len, void *arg)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};

    (void)arg;
    if (poll(&p, 1, 0) == 1 && write(STDERR_FILENO, line, len) < 0) {
        /* Nowhere is left to complain to. */
    }
}

/*
 * Values come and go, and large ones would each be mapped anew, or the heap
 * be cut after each and grow again: the kernel then clears every page. So
 * that much is kept.
 */
static void keep_freed_memory(void)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
#endif
}

/* As many descriptors as we may have. Too few for the number of clients that
 * somebody asked for is worth a line. */
static void raise_fd_limit(int64_t max_clients)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (max_clients != (int64_t)STORE_LIMITS_DEFAULT.clients &&
        limit.rlim_max < (rlim_t)max_clients + FDS_BESIDE_CLIENTS)
        log_warn("crund",
            "at most %llu files may be open here (ulimit -Hn), too few for "
            "%lld clients (--max-clients)",
            (unsigned long long)limit.rlim_max, (long long)max_clients);
}

/* Whoever waits for the line may be gone; that is no reason not to serve. */
static void announce(const struct settings *s, const char *host, int port)
{
    int fds[] = {STDOUT_FILENO, (int)s->ready_fd};
    char line[HOST_MAX + 16];
    int len = snprintf(line, sizeof(line),
        strchr(host, ':') != NULL ? "[%s]:%d\n" : "%s:%d\n", host, port);

    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0 && write(fds[i], line, (size_t)len) < 0)
            log_warn("crund", "cannot tell descriptor %d where it listens: %s",
                fds[i], strerror(errno));
    if (s->ready_fd >= 0)
        close((int)s->ready_fd);
}

/* --- Serving ------------------------------------------------------------ */

struct host {
    struct poller *poller;
    struct token *token; /* NULL: there is no secret */
    struct access *access;
    struct coordinator *coordinator;
    struct store_server *store;
    struct store_port *port;
    struct poller_item signals;
    bool is_stopped;
};

static void signals_ready_cb(struct poller_item *item, uint32_t events)
{
    struct host *h =
        (struct host *)((char *)item - offsetof(struct host, signals));

    (void)events;
    h->is_stopped = true;
}

static int watch_signals(struct host *h)
{
    sigset_t set;
    int fd, rc;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        return -errno;
    rc = poller_add(h->poller, &h->signals, fd, EPOLLIN, signals_ready_cb);
    if (rc < 0)
        close(fd);
    return rc;
}

/* *host becomes what it listens on. */
static int open_port(struct host *h, const struct settings *s,
    const char **host, int *port, struct err *e)
{
    const struct store_port_options port_options = {
        .old_dialect = s->old_dialect,
        .max_connections = (size_t)s->max_clients,
        .agent_cb = coordinator_adopt,
        .agent_arg = h->coordinator,
        .access = h->access};
    int rc;

    *host = s->host[0] != '\0' ? s->host : "::";
    rc = store_port_create(
        &h->port, h->poller, *host, s->port, &port_options, port, e);
    if (rc == -EADDRNOTAVAIL && s->host[0] == '\0') { /* IPv6 is off */
        *host = "0.0.0.0";
        rc = store_port_create(
            &h->port, h->poller, *host, s->port, &port_options, port, e);
    }
    return rc;
}

/* Without the option everybody may use the store. */
static int decide_who_may_connect(
    struct host *h, const struct settings *s, struct err *e)
{
    int rc = 0;

    if (s->token_path != NULL)
        rc = token_load(&h->token, s->token_path, e);
    if (rc < 0 || s->store_allow == NULL)
        return rc;
    rc = access_create(&h->access);
    return rc < 0 ? err_set(e, rc, "set-up: %s", strerror(-rc))
                  : access_allow_cidrs(h->access, s->store_allow, e);
}

static int set_up(struct host *h, const struct settings *s, struct err *e)
{
    const struct store_limits limits = {.clients = (size_t)s->max_clients,
        .key_len = (size_t)s->max_key,
        .value_len = (size_t)s->max_value,
        .list_count = (size_t)s->max_keys,
        .memory = (size_t)s->max_memory};
    const char *host;
    int port, rc;

    rc = decide_who_may_connect(h, s, e);
    if (rc < 0)
        return rc;
    rc = poller_create(&h->poller);
    if (rc == 0)
        rc = watch_signals(h);
    if (rc == 0)
        rc = store_server_create(&h->store, h->poller, &limits);
    if (rc == 0)
        rc = coordinator_create(&h->coordinator, h->poller, NULL, h->token);
    if (rc < 0)
        return err_set(e, rc, "set-up: %s", strerror(-rc));
    rc = open_port(h, s, &host, &port, e);
    if (rc < 0)
        return rc;
    store_port_set_store(h->port, h->store);
    announce(s, host, port);
    return 0;
}

static void tear_down(struct host *h)
{
    int fd = h->signals.fd;

    store_port_destroy(h->port);
    store_server_destroy(h->store);
    coordinator_destroy(h->coordinator, "crund has ended");
    if (fd >= 0) {
        poller_remove(h->poller, &h->signals);
        close(fd);
    }
    poller_destroy(h->poller);
    access_free(h->access);
    token_free(h->token);
}

static int serve(const struct settings *s)
{
    struct host h = {.signals.fd = -1};
    struct err e = {0};
    int rc;

    rc = set_up(&h, s, &e);
    while (rc >= 0 && !h.is_stopped) {
        rc = poller_run(h.poller, -1);
        if (rc < 0)
            err_set(&e, rc, "waiting for clients: %s", strerror(-rc));
    }
    if (rc < 0)
        fprintf(stderr, "crund: error: %s\n", e.msg);
    tear_down(&h);
    return rc < 0 ? EXIT_FAILED : 0;
}

int main(int argc, char **argv)
{
    struct settings s;
    struct err e = {0};
    int rc;

    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    log_init("crund");
    if (parse(&s, argc, argv, &e) < 0) {
        fprintf(stderr,
            USAGE "crund: error: %s\ncrund --help lists the options\n", e.msg);
        return EXIT_USAGE;
    }
    if (s.is_help || s.is_version) {
        if (s.is_help)
            print_help();
        else
            puts("crund " CRUN_VERSION);
        return fflush(stdout) == 0 ? 0 : EXIT_FAILED;
    }
    rc = standard_fds_open();
    if (rc < 0) {
        fprintf(stderr, "crund: error: /dev/null: %s\n", strerror(-rc));
        return EXIT_FAILED;
    }
    log_set_writer(write_log, NULL);
    keep_freed_memory();
    raise_fd_limit(s.max_clients);
    return serve(&s);
}
