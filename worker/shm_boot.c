/*
 * Set-up of the back end "shm", in four steps:
 *
 * 1. Every rank listens on an abstract socket with a random name and
 *    registers name and node in the store, at addr/<rank>.
 * 2. Rank 0 collects the registrations, checks that all ranks can share
 *    memory, and answers each at table/<its random name>: the names of all,
 *    and a random token of the group. Or with why there is no group.
 * 3. Every rank connects to all lower ranks and accepts all higher ones.
 * 4. Rank 0 creates the segment and passes it over these sockets. A first
 *    tick makes sure that everybody has it.
 *
 * A rank that fails withdraws its registration (an empty value), so that it
 * may try again with the same store while the others still wait; its answer
 * then has another key than that of the failed attempt.
 *
 * Nothing here has a name in a file system, so there is nothing to clean up,
 * however a rank ends.
 */
#include "shm_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "coll_ranks.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/text.h"

/* Every rank holds a socket per peer and reads a cache line per peer and
 * tick: beyond this, sharing one flat segment is the wrong design. */
#define MAX_RANKS 1024

/* Besides sockets: the segment, the listener, the store, and what the
 * program has open itself. */
#define SPARE_FDS 16

/*
 * Data of one tick. Measured with 2 ranks, 1 MiB of float32: 150 to 170 us
 * with chunks of 32 to 128 KiB, 85 to 110 with 256 and 512; larger messages
 * are alike from 64 KiB on. Many ranks get smaller chunks, so that the
 * segment does not grow much beyond SEGMENT_BYTES.
 */
#define CHUNK_BYTES ((size_t)256 * 1024)
#define CHUNK_MIN_BYTES ((size_t)16 * 1024)
#define SEGMENT_BYTES ((size_t)64 * 1024 * 1024)

#define NAME_DIGITS 32
#define TABLE_MAX_BYTES ((size_t)(MAX_RANKS + 2) * (NAME_DIGITS + 1) + 64)

/* How long a failing rank may still talk to the store. */
#define LAST_WORDS_MS 1000

#define HELLO_MAGIC 0x636f6c6cu

struct hello {
    uint32_t magic;
    uint32_t rank;
    char token[NAME_DIGITS];
};

/* What ranks must have in common to share memory. */
struct node {
    char boot_id[40];
    unsigned long long netns;
    unsigned int uid;
};

struct registration {
    int world_size;
    struct node node;
    char name[NAME_DIGITS + 1];
};

struct boot {
    struct coll_group *g;
    struct shm_state *s;
    struct store_client *store;
    const char *prefix;
    uint64_t deadline_ns;
    int listener;
    int segment;
    bool is_registered;
    struct registration own;
    char token[NAME_DIGITS + 1];
    char (*names)[NAME_DIGITS + 1]; /* [size], "" where not known */
};

static coll_status_t fail_errno(const char *what)
{
    return coll_fail(
        COLL_ERR_SYSTEM, "coll_init: %s: %s", what, strerror(errno));
}

static coll_status_t fail_store(int rc, const struct err *e)
{
    return coll_fail(rc == -ENOMEM ? COLL_ERR_MEMORY : COLL_ERR_STORE,
        "coll_init: %s", e->msg);
}

static coll_status_t fail_peer(int rank)
{
    return coll_fail(
        COLL_ERR_PEER, "rank %d died or gave up during coll_init", rank);
}

/* --- The store ---------------------------------------------------------- */

static void key_of(
    const struct boot *b, char out[128], const char *what, const char *of)
{
    snprintf(out, 128, "%sshm/%s/%s", b->prefix, what, of);
}

static void addr_key(const struct boot *b, char out[128], int rank)
{
    char number[16];

    snprintf(number, sizeof(number), "%d", rank);
    key_of(b, out, "addr", number);
}

/* Reads a key into a NUL-terminated text; 0 or a negative errno. */
static int get_text(struct boot *b, const char *key, char *out, size_t cap,
    uint64_t deadline_ns, struct err *e)
{
    struct buf value;
    int rc;

    buf_init(&value, cap - 1);
    rc = store_client_get(b->store, key, &value, deadline_ns, e);
    if (rc == 0) {
        if (value.len > 0)
            memcpy(out, buf_bytes(&value), value.len);
        out[value.len] = '\0';
    }
    buf_fini(&value);
    return rc;
}

static void node_get(struct node *node)
{
    struct stat st;
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

    /* Without /proc both stay as they are: equal on all ranks, and ranks
     * that are apart do not find each other's sockets. */
    if (f == NULL || fscanf(f, "%39s", node->boot_id) != 1)
        strcpy(node->boot_id, "-");
    if (f != NULL)
        fclose(f);
    if (stat("/proc/self/ns/net", &st) == 0)
        node->netns = st.st_ino;
    node->uid = (unsigned int)geteuid();
}

static bool parse_registration(struct registration *r, const char *text)
{
    int end = 0;

    if (sscanf(text, "1 %d %39s %llu %u %32s%n", &r->world_size,
            r->node.boot_id, &r->node.netns, &r->node.uid, r->name, &end) != 5)
        return false;
    return text[end] == '\0' && strlen(r->name) == NAME_DIGITS;
}

static coll_status_t register_self(struct boot *b)
{
    struct registration *own = &b->own;
    struct err e = {0};
    char key[128];
    char text[160];
    int rc;

    own->world_size = b->g->size;
    node_get(&own->node);
    snprintf(text, sizeof(text), "1 %d %s %llu %u %s", own->world_size,
        own->node.boot_id, own->node.netns, own->node.uid, own->name);
    addr_key(b, key, b->g->rank);
    rc =
        store_client_set(b->store, key, text, strlen(text), b->deadline_ns, &e);
    if (rc < 0)
        return fail_store(rc, &e);
    b->is_registered = true;
    return COLL_OK;
}

/* Two ranks that cannot share memory, or do not belong to one job. */
static coll_status_t check_registration(
    const struct boot *b, const struct registration *r, int rank)
{
    const struct registration *own = &b->own;

    if (r->world_size != own->world_size)
        return coll_fail(COLL_ERR_ENVIRONMENT,
            "coll_init: rank %d has a world size of %d, rank 0 of %d", rank,
            r->world_size, own->world_size);
    if (strcmp(r->node.boot_id, own->node.boot_id) != 0)
        return coll_fail(COLL_ERR_UNSUPPORTED,
            "coll_init: rank %d runs on another machine than rank 0; this "
            "version serves the processes of one node",
            rank);
    if (r->node.netns != own->node.netns)
        return coll_fail(COLL_ERR_UNSUPPORTED,
            "coll_init: rank %d runs in another network namespace than rank "
            "0; this version serves the processes of one node",
            rank);
    if (r->node.uid != own->node.uid)
        return coll_fail(COLL_ERR_UNSUPPORTED,
            "coll_init: rank %d runs as user %u, rank 0 as user %u; ranks "
            "share memory and must run as one user",
            rank, r->node.uid, own->node.uid);
    return COLL_OK;
}

/* What the store knows of a rank. */
enum presence {
    NEVER_CAME,
    HAS_WITHDRAWN, /* its attempt failed, perhaps for the same reason */
    IS_REGISTERED,
};

/* Sets *reg for a registered rank. */
static enum presence look_up(
    struct boot *b, int rank, uint64_t deadline_ns, struct registration *reg)
{
    struct err e = {0};
    char key[128];
    char text[160];
    const char *keys[] = {key};
    int exists = 0;

    addr_key(b, key, rank);
    if (store_client_check(b->store, keys, 1, &exists, deadline_ns, &e) < 0 ||
        !exists || get_text(b, key, text, sizeof(text), deadline_ns, &e) < 0)
        return NEVER_CAME;
    return parse_registration(reg, text) ? IS_REGISTERED : HAS_WITHDRAWN;
}

/* This rank's registration is not its own any more. */
static coll_status_t fail_same_rank(struct boot *b)
{
    b->is_registered = false; /* nothing here to withdraw */
    return coll_fail(COLL_ERR_ENVIRONMENT,
        "coll_init: another process has registered as rank %d: two workers "
        "of the job have the same RANK",
        b->g->rank);
}

/*
 * The time is over: says which ranks are missing. Those that have given up
 * are named only if nobody else is: the others' time-out is usually over at
 * the same moment. Rank 0 learns the names of those who still wait, so that
 * it can tell them.
 */
static coll_status_t fail_missing(struct boot *b)
{
    struct shm_state *s = b->s;
    uint64_t deadline_ns = clock_deadline_ns(LAST_WORDS_MS);
    enum presence least = IS_REGISTERED;
    char missing[256];

    for (int r = 0; r < s->size; r++) {
        struct registration reg;
        enum presence presence = look_up(b, r, deadline_ns, &reg);

        if (presence == IS_REGISTERED)
            memcpy(b->names[r], reg.name, sizeof(reg.name));
        if (r == s->rank && presence != NEVER_CAME &&
            (presence == HAS_WITHDRAWN || strcmp(reg.name, b->own.name) != 0))
            return fail_same_rank(b);
        if (presence < least) {
            memset(s->set, 0, (size_t)r * sizeof(*s->set));
            least = presence;
        }
        s->set[r] = presence != IS_REGISTERED && presence == least;
    }
    if (least == IS_REGISTERED)
        s->set[0] = true; /* all are there, but rank 0 does not answer */
    coll_ranks_text(missing, sizeof(missing), s->set, s->size);
    return coll_fail(COLL_ERR_TIMEOUT,
        "timed out after %.1f s in coll_init waiting for %s",
        (double)b->g->timeout_ms / 1000.0, missing);
}

/* Rank 0: waits for one rank's registration. */
static coll_status_t collect_one(struct boot *b, int rank)
{
    long delay_ms = 5;
    char key[128];

    addr_key(b, key, rank);
    for (;;) {
        struct registration r;
        struct err e = {0};
        char text[160];
        int rc = get_text(b, key, text, sizeof(text), b->deadline_ns, &e);

        if (rc == -ETIMEDOUT)
            return fail_missing(b);
        if (rc < 0)
            return fail_store(rc, &e);
        if (parse_registration(&r, text)) {
            memcpy(b->names[rank], r.name, sizeof(r.name));
            return check_registration(b, &r, rank);
        }
        if (text[0] != '\0')
            return coll_fail(COLL_ERR_STORE,
                "coll_init: what rank %d left in the store is not from this "
                "version of the library",
                rank);
        /* Withdrawn: the rank failed and may try again. The store cannot
         * wait for a change, so ask now and then. */
        if (clock_left_ms(b->deadline_ns) == 0)
            return fail_missing(b);
        nanosleep(&(struct timespec){0, delay_ms * 1000000}, NULL);
        delay_ms = delay_ms < 80 ? delay_ms * 2 : 100;
    }
}

/* Rank 0: gives every registered rank the same answer. */
static coll_status_t answer_all(
    struct boot *b, const char *text, size_t len, uint64_t deadline_ns)
{
    for (int r = 1; r < b->g->size; r++) {
        struct err e = {0};
        char key[128];
        int rc;

        if (b->names[r][0] == '\0')
            continue;
        key_of(b, key, "table", b->names[r]);
        rc = store_client_set(b->store, key, text, len, deadline_ns, &e);
        if (rc < 0)
            return fail_store(rc, &e);
    }
    return COLL_OK;
}

/* Rank 0, while failing: the others need not wait for their time-out. */
static void answer_failure(struct boot *b, coll_status_t status)
{
    char reason[512];
    char text[600];
    int len;

    /* A copy: answer_all() may set another reason. */
    snprintf(reason, sizeof(reason), "%s", coll_last_error());
    len = snprintf(text, sizeof(text), "!%d %s", (int)status, reason);
    answer_all(b, text, (size_t)len, clock_deadline_ns(LAST_WORDS_MS));
    coll_fail(status, "%s", reason);
}

static coll_status_t lead(struct boot *b)
{
    coll_status_t status = COLL_OK;
    char *table;
    size_t len = 0;

    for (int r = 1; r < b->g->size && status == COLL_OK; r++)
        status = collect_one(b, r);
    if (status != COLL_OK) {
        answer_failure(b, status);
        return status;
    }
    memcpy(b->names[0], b->own.name, sizeof(b->own.name));
    if (text_random_hex(b->token) < 0)
        return fail_errno("random number");
    table = malloc(TABLE_MAX_BYTES);
    if (table == NULL)
        return coll_fail(COLL_ERR_MEMORY, "coll_init: out of memory");
    len += (size_t)snprintf(table, TABLE_MAX_BYTES, "%s", b->token);
    for (int r = 0; r < b->g->size; r++)
        len += (size_t)snprintf(
            table + len, TABLE_MAX_BYTES - len, " %s", b->names[r]);
    status = answer_all(b, table, len, b->deadline_ns);
    free(table);
    return status;
}

static coll_status_t parse_table(struct boot *b, const char *text)
{
    const size_t item = NAME_DIGITS + 1;

    if (text[0] == '!') {
        int status;
        int at;

        if (sscanf(text, "!%d %n", &status, &at) == 1 && status < 0)
            return coll_fail((coll_status_t)status, "%s", text + at);
    } else if (strlen(text) == item * ((size_t)b->g->size + 1) - 1) {
        memcpy(b->token, text, NAME_DIGITS);
        for (int r = 0; r < b->g->size; r++)
            memcpy(b->names[r], text + item * ((size_t)r + 1), NAME_DIGITS);
        return COLL_OK;
    }
    return coll_fail(COLL_ERR_STORE,
        "coll_init: rank 0's answer in the store is not from this version of "
        "the library");
}

static coll_status_t follow(struct boot *b)
{
    coll_status_t status;
    struct err e = {0};
    char key[128];
    char *text = malloc(TABLE_MAX_BYTES);
    int rc;

    if (text == NULL)
        return coll_fail(COLL_ERR_MEMORY, "coll_init: out of memory");
    key_of(b, key, "table", b->own.name);
    rc = get_text(b, key, text, TABLE_MAX_BYTES, b->deadline_ns, &e);
    if (rc == -ETIMEDOUT)
        status = fail_missing(b);
    else if (rc < 0)
        status = fail_store(rc, &e);
    else
        status = parse_table(b, text);
    free(text);
    return status;
}

static void withdraw(struct boot *b)
{
    struct err e = {0};
    char key[128];

    if (!b->is_registered)
        return;
    addr_key(b, key, b->g->rank);
    store_client_set(
        b->store, key, "", 0, clock_deadline_ns(LAST_WORDS_MS), &e);
}

/* --- Sockets ------------------------------------------------------------ */

static socklen_t address_of(struct sockaddr_un *addr, const char *name)
{
    int len;

    memset(addr, 0, sizeof(*addr));
    addr->sun_family = AF_UNIX;
    len = snprintf(addr->sun_path + 1, sizeof(addr->sun_path) - 1,
        "libcollective-%s", name);
    return (
        socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
}

/* SOCK_SEQPACKET: a message arrives whole or not at all. */
static int open_socket(void)
{
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
}

static coll_status_t listen_on_own_name(struct boot *b)
{
    struct sockaddr_un addr;
    socklen_t len;

    if (text_random_hex(b->own.name) < 0)
        return fail_errno("random number");
    len = address_of(&addr, b->own.name);
    b->listener = open_socket();
    if (b->listener < 0)
        return fail_errno("Unix socket");
    if (bind(b->listener, (struct sockaddr *)&addr, len) < 0 ||
        listen(b->listener, b->g->size) < 0)
        return fail_errno("listen on a Unix socket");
    return COLL_OK;
}

/* The other side must be this user; notes its pid. */
static bool peer_is_ours(int fd, pid_t *pid)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0 ||
        cred.uid != geteuid())
        return false;
    *pid = cred.pid;
    return true;
}

static coll_status_t connect_to(struct boot *b, int rank)
{
    struct hello hello = {HELLO_MAGIC, (uint32_t)b->g->rank, {0}};
    struct sockaddr_un addr;
    socklen_t len = address_of(&addr, b->names[rank]);
    int fd = open_socket();

    if (fd < 0)
        return fail_errno("Unix socket");
    b->s->links[rank].fd = fd;
    for (;;) {
        /* A full backlog makes connect() wait; this bounds it. 0 would mean
         * forever. */
        int left_ms = clock_left_ms(b->deadline_ns);
        struct timeval tv = {left_ms / 1000, left_ms % 1000 * 1000 + 1};

        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
        if (connect(fd, (struct sockaddr *)&addr, len) == 0)
            break;
        if (errno == ECONNREFUSED)
            return fail_peer(rank);
        if (errno == EAGAIN)
            return coll_fail(COLL_ERR_TIMEOUT,
                "timed out after %.1f s in coll_init waiting for rank %d",
                (double)b->g->timeout_ms / 1000.0, rank);
        if (errno != EINTR)
            return fail_errno("connect to a Unix socket");
    }
    if (!peer_is_ours(fd, &b->s->pids[rank]))
        return coll_fail(COLL_ERR_SYSTEM,
            "coll_init: the socket of rank %d belongs to another user", rank);
    memcpy(hello.token, b->token, sizeof(hello.token));
    if (send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) < 0)
        return errno == EPIPE || errno == ECONNRESET ? fail_peer(rank)
                                                     : fail_errno("send");
    return COLL_OK;
}

/*
 * Waits until fd can be read. Meanwhile any connected peer may end: then
 * there will be no group.
 */
static coll_status_t wait_readable(struct boot *b, int fd)
{
    struct shm_state *s = b->s;
    struct pollfd fds[s->size + 1];

    for (int r = 0; r < s->size; r++)
        fds[r] = (struct pollfd){.fd = s->links[r].fd, .events = 0};
    fds[s->size] = (struct pollfd){.fd = fd, .events = POLLIN};
    for (;;) {
        int left_ms = clock_left_ms(b->deadline_ns);
        int n = poll(fds, (nfds_t)s->size + 1, left_ms);

        if (n < 0 && errno != EINTR)
            return fail_errno("poll");
        if (n > 0 && fds[s->size].revents != 0)
            return COLL_OK;
        for (int r = 0; n > 0 && r < s->size; r++)
            if (fds[r].revents & (POLLHUP | POLLERR))
                return fail_peer(r);
        if (n == 0 && left_ms == 0)
            return COLL_ERR_TIMEOUT; /* the caller knows who is missing */
    }
}

/* Accepts one connection. One that does not come from a higher rank of this
 * group is closed and forgotten. */
static coll_status_t accept_one(struct boot *b)
{
    struct shm_state *s = b->s;
    struct hello hello;
    coll_status_t status = wait_readable(b, b->listener);
    pid_t pid;
    int fd;

    if (status != COLL_OK)
        return status;
    fd = accept4(b->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return errno == EINTR || errno == ECONNABORTED ? COLL_OK
                                                       : fail_errno("accept");
    if (!peer_is_ours(fd, &pid))
        goto drop;
    status = wait_readable(b, fd);
    if (status != COLL_OK) {
        close(fd);
        return status;
    }
    if (recv(fd, &hello, sizeof(hello), MSG_DONTWAIT) != sizeof(hello) ||
        hello.magic != HELLO_MAGIC ||
        memcmp(hello.token, b->token, sizeof(hello.token)) != 0)
        goto drop;
    if (hello.rank <= (uint32_t)s->rank || hello.rank >= (uint32_t)s->size ||
        s->links[hello.rank].fd >= 0)
        goto drop;
    s->links[hello.rank].fd = fd;
    s->pids[hello.rank] = pid;
    return COLL_OK;
drop:
    close(fd);
    return COLL_OK;
}

static coll_status_t connect_all(struct boot *b)
{
    struct shm_state *s = b->s;
    char missing[256];

    for (int r = 0; r < s->rank; r++) {
        coll_status_t status = connect_to(b, r);

        if (status != COLL_OK)
            return status;
    }
    for (;;) {
        coll_status_t status;
        int count = 0;

        for (int r = 0; r < s->size; r++) {
            s->set[r] = r > s->rank && s->links[r].fd < 0;
            count += s->set[r];
        }
        if (count == 0)
            return COLL_OK;
        status = accept_one(b);
        if (status == COLL_ERR_TIMEOUT) {
            coll_ranks_text(missing, sizeof(missing), s->set, s->size);
            return coll_fail(status,
                "timed out after %.1f s in coll_init waiting for %s to "
                "connect",
                (double)b->g->timeout_ms / 1000.0, missing);
        }
        if (status != COLL_OK)
            return status;
    }
}

/* --- The segment -------------------------------------------------------- */

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Every rank computes the same layout; nobody has to send it. Slots are
 * whole pages, so that they can lie on the NUMA node of their writer. */
static void lay_out(struct shm_state *s, size_t *slots_at)
{
    size_t size = (size_t)s->size;
    size_t chunk = SEGMENT_BYTES / (2 * size);
    size_t page = 4096;

    if (chunk > CHUNK_BYTES)
        chunk = CHUNK_BYTES;
    if (chunk < CHUNK_MIN_BYTES)
        chunk = CHUNK_MIN_BYTES;
    s->chunk_bytes = round_up(chunk, page);
    /* A share of a chunk is rounded up to a cache line, then to pages. */
    s->result_bytes = round_up(s->chunk_bytes / size + 2 * 64, page);
    *slots_at = round_up(size * sizeof(struct shm_control), page);
    s->map_bytes = *slots_at + 2 * size * (s->chunk_bytes + s->result_bytes);
}

static coll_status_t create_segment(struct boot *b)
{
    struct shm_state *s = b->s;
    size_t slots_at;

    lay_out(s, &slots_at);
    b->segment = memfd_create("libcollective", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (b->segment < 0)
        return fail_errno("memfd_create");
    if (ftruncate(b->segment, (off_t)s->map_bytes) < 0)
        return fail_errno("size of the shared memory");
    /* Nobody can make a page disappear under a reader. */
    if (fcntl(b->segment, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
        return fail_errno("seal of the shared memory");
    return COLL_OK;
}

static coll_status_t send_segment(struct boot *b, int rank)
{
    char byte = 0;
    struct iovec iov = {&byte, 1};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr msg = {
        .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.space,
        .msg_controllen = sizeof(control.space),
    };
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &b->segment, sizeof(int));
    /* The first message on this socket: the buffer has room for it. */
    if (sendmsg(b->s->links[rank].fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return errno == EPIPE || errno == ECONNRESET ? fail_peer(rank)
                                                     : fail_errno("sendmsg");
    return COLL_OK;
}

static coll_status_t receive_segment(struct boot *b)
{
    struct shm_state *s = b->s;
    char byte;
    struct iovec iov = {&byte, 1};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr msg = {
        .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.space,
        .msg_controllen = sizeof(control.space),
    };
    struct cmsghdr *c;
    struct stat st;
    size_t slots_at;
    ssize_t n;
    int seals;
    coll_status_t status = wait_readable(b, s->links[0].fd);

    if (status == COLL_ERR_TIMEOUT)
        return coll_fail(status,
            "timed out after %.1f s in coll_init waiting for the shared "
            "memory of rank 0",
            (double)b->g->timeout_ms / 1000.0);
    if (status != COLL_OK)
        return status;
    n = recvmsg(s->links[0].fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno == ECONNRESET))
        return fail_peer(0);
    if (n < 0)
        return fail_errno("recvmsg");
    c = CMSG_FIRSTHDR(&msg);
    if (c == NULL || c->cmsg_level != SOL_SOCKET ||
        c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(int)))
        return coll_fail(COLL_ERR_SYSTEM,
            "coll_init: no descriptor for the shared memory came through "
            "(this process may have at most %s open)",
            "ulimit -n");
    memcpy(&b->segment, CMSG_DATA(c), sizeof(int));
    lay_out(s, &slots_at);
    seals = fcntl(b->segment, F_GET_SEALS);
    if (fstat(b->segment, &st) < 0 || (size_t)st.st_size != s->map_bytes ||
        seals < 0 || (seals & F_SEAL_SHRINK) == 0)
        return coll_fail(COLL_ERR_SYSTEM,
            "coll_init: the shared memory of rank 0 is not of this version "
            "of the library");
    return COLL_OK;
}

/* Pages that are reserved now cannot be missing later, when the only way to
 * say so would be SIGBUS. */
static coll_status_t reserve(struct boot *b, size_t at, size_t len)
{
    int rc;

    do {
        rc = fallocate(b->segment, 0, (off_t)at, (off_t)len);
    } while (rc < 0 && errno == EINTR);
    if (rc < 0)
        return coll_fail(errno == ENOSPC || errno == ENOMEM ? COLL_ERR_MEMORY
                                                            : COLL_ERR_SYSTEM,
            "coll_init: cannot reserve %zu KiB of shared memory: %s",
            len / 1024, strerror(errno));
    return COLL_OK;
}

static coll_status_t map_segment(struct boot *b)
{
    struct shm_state *s = b->s;
    size_t rank_bytes = 2 * (s->chunk_bytes + s->result_bytes);
    size_t slots_at = s->map_bytes - (size_t)s->size * rank_bytes;
    coll_status_t status;
    void *map;

    if (s->rank == 0) {
        status = reserve(b, 0, slots_at);
        if (status != COLL_OK)
            return status;
    }
    /* Each rank its own slots: the pages come from its NUMA node. */
    status = reserve(b, slots_at + (size_t)s->rank * rank_bytes, rank_bytes);
    if (status != COLL_OK)
        return status;
    map = mmap(
        NULL, s->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, b->segment, 0);
    if (map == MAP_FAILED)
        return fail_errno("map the shared memory");
    s->control = map;
    s->slots = (char *)map + slots_at;
    s->tick = SHM_FIRST_TICK;
    return COLL_OK;
}

static coll_status_t share_segment(struct boot *b)
{
    struct shm_state *s = b->s;
    coll_status_t status;

    if (s->rank != 0) {
        status = receive_segment(b);
        return status == COLL_OK ? map_segment(b) : status;
    }
    status = create_segment(b);
    if (status == COLL_OK)
        status = map_segment(b);
    /* Before anybody else has it, so nobody sees a tick that was never
     * set. */
    for (int r = 0; r < s->size && status == COLL_OK; r++)
        atomic_store(&s->control[r].tick, SHM_FIRST_TICK);
    for (int r = 1; r < s->size && status == COLL_OK; r++)
        status = send_segment(b, r);
    return status;
}

/* --- All of it ---------------------------------------------------------- */

static coll_status_t check_limits(const struct coll_group *g)
{
    struct rlimit limit;

    if (g->size > MAX_RANKS)
        return coll_fail(COLL_ERR_UNSUPPORTED,
            "coll_init: back end \"shm\" serves up to %d ranks, not %d",
            MAX_RANKS, g->size);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
        limit.rlim_cur < (rlim_t)(g->size + SPARE_FDS))
        return coll_fail(COLL_ERR_SYSTEM,
            "coll_init: %d ranks need %d open files per process, the limit "
            "is %llu; raise it (ulimit -n)",
            g->size, g->size + SPARE_FDS, (unsigned long long)limit.rlim_cur);
    return COLL_OK;
}

static coll_status_t meet(struct boot *b)
{
    coll_status_t status = listen_on_own_name(b);

    if (status == COLL_OK)
        status = register_self(b);
    if (status == COLL_OK)
        status = b->g->rank == 0 ? lead(b) : follow(b);
    if (status == COLL_OK)
        status = connect_all(b);
    return status;
}

coll_status_t shm_connect(struct coll_group *g, const struct coll_boot *boot)
{
    struct boot b = {
        .g = g,
        .s = g->state,
        .store = boot->store,
        .prefix = boot->prefix,
        .deadline_ns = boot->deadline_ns,
        .listener = -1,
        .segment = -1,
    };
    coll_status_t status = check_limits(g);

    if (status != COLL_OK)
        return status;
    b.names = calloc((size_t)g->size, sizeof(*b.names));
    if (b.names == NULL)
        return coll_fail(COLL_ERR_MEMORY, "coll_init: out of memory");
    if (g->size > 1)
        status = meet(&b);
    if (status == COLL_OK)
        status = share_segment(&b);
    if (status == COLL_OK)
        status = shm_tick(g, NULL, b.deadline_ns);
    if (status != COLL_OK && b.store != NULL) {
        char reason[512];

        snprintf(reason, sizeof(reason), "%s", coll_last_error());
        withdraw(&b);
        coll_fail(status, "%s", reason);
    }
    if (b.listener >= 0)
        close(b.listener);
    if (b.segment >= 0)
        close(b.segment);
    free(b.names);
    return status;
}
