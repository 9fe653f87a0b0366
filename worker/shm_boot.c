/*
 * Set-up of the back end "shm": how the ranks of a job meet.
 *
 * 1. Rank 0 listens on an abstract socket with a random name and claims the
 *    key "rank0" of the store with it. The others wait for that key.
 * 2. Every rank connects to rank 0 and says who it is. When all have come,
 *    rank 0 removes the key, creates the segment, and passes it, with the
 *    names of all ranks' sockets in it, over these connections.
 * 3. Every rank connects to all lower ranks and accepts all higher ones.
 * 4. A first tick makes sure that everybody has got that far.
 *
 * So when a group is made, nothing of it is in the store any more, and the
 * next program of the same workers may use the same keys. What a rank 0 that
 * was killed has left there is a name at which nobody listens: the others
 * look again until a new rank 0 claims the key.
 *
 * A rank that fails says why: to rank 0 over its connection, or through the
 * store (key "failed/<name of rank 0>") if it has none, and rank 0 to all;
 * once the segment is mapped, there. A failed rank may try again at once. For
 * that rank 0 first stops listening and takes its claim back, and tells the
 * others only then, so that none of them finds the attempt that has failed.
 */
#include "shm_internal.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* Descriptors beside a socket and a pidfd per peer: the segment, the
 * listener, the epoll set, and some that are no rank's. */
#define SPARE_FDS 16

/* What a failing rank may still spend on telling the others. */
#define LAST_WORDS_MS 1000

/* How long to sleep at most while nothing happens: bounds how late rank 0
 * sees in the store that another one has failed. */
#define SLICE_FIRST_MS 50
#define SLICE_LAST_MS 1000

/* A value of "rank0" that is a failure and no claim begins with it. */
#define NOTE '!'

/* What ranks must have in common to share memory. */
struct node {
    char boot_id[40];
    unsigned long long netns;
    unsigned int uid;
};

/* Rank 0's claim. */
struct claim {
    struct node node;
    char name[SHM_NAME_BYTES + 1];
};

struct boot {
    struct coll_group *g;
    struct shm_state *s;
    struct store_client *store;
    const char *prefix;
    uint64_t deadline_ns;
    int slice_ms;
    int listener;
    int segment;
    /* [size] connections that have not said yet which rank they are, -1
     * where there is none. The oldest goes when there are more. */
    int *strangers;
    unsigned int next_stranger;
    struct claim own; /* of the others only the name counts */
    char token[SHM_NAME_BYTES + 1];
    char (*names)[SHM_NAME_BYTES]; /* [size], rank 0: of those who came */
    char leader[SHM_NAME_BYTES + 1]; /* rank 0's name, "" while not known */
    bool has_claimed; /* rank 0: the key is its own */
    bool is_welcome; /* the others: rank 0 counts on this one */
    bool has_told; /* nobody has to be told of the failure any more */
};

static coll_status_t fail_rc(const char *what, int rc)
{
    return coll_fail(rc == -ENOMEM ? COLL_ERR_MEMORY : COLL_ERR_SYSTEM,
        "coll_init: %s: %s", what, strerror(-rc));
}

static coll_status_t fail_errno(const char *what)
{
    return fail_rc(what, -errno);
}

static coll_status_t fail_store(int rc, const struct err *e)
{
    coll_status_t status = COLL_ERR_STORE;

    if (rc == -ENOMEM)
        status = COLL_ERR_MEMORY;
    else if (rc == -ETIMEDOUT || rc == -EHOSTDOWN)
        status = COLL_ERR_TIMEOUT;
    return coll_fail(status, "coll_init: %s", e->msg);
}

/* A rank whose connection has ended. */
static coll_status_t fail_lost(struct boot *b, int rank)
{
    if (b->s->control != NULL && shm_has_failed(b->s, rank))
        return shm_fail_with(b->s, rank, true);
    if (b->s->peers[rank].pid <= 0)
        return coll_fail(
            COLL_ERR_PEER, "rank %d died or gave up during coll_init", rank);
    return coll_fail(COLL_ERR_PEER,
        "rank %d (pid %d) died or gave up during coll_init", rank,
        (int)b->s->peers[rank].pid);
}

/* Fails in the words of another rank. */
static coll_status_t fail_told(
    struct boot *b, coll_status_t status, const char *text)
{
    b->s->is_relaying = true;
    return coll_fail(status, "%s", text);
}

/* A rank has said that it gives up. */
static coll_status_t fail_gave_up(
    struct boot *b, int rank, coll_status_t status, const char *text)
{
    b->s->is_relaying = true;
    if (status == COLL_ERR_PEER)
        return coll_fail(status, "%s", text); /* it names who is at fault */
    return coll_fail(COLL_ERR_PEER, "rank %d gave up: %s", rank, text);
}

/* The time is over, this rank's or another's. */
static coll_status_t fail_late(
    struct boot *b, int64_t timeout_ms, const char *to_do)
{
    struct shm_state *s = b->s;
    char missing[256];

    coll_ranks_text(missing, sizeof(missing), s->set, s->size);
    return coll_fail(COLL_ERR_TIMEOUT,
        "timed out after %.1f s in coll_init waiting for %s%s",
        (double)timeout_ms / 1000.0, missing, to_do);
}

/* Marks the ranks from first on that have no link; returns how many. */
static int mark_missing(struct shm_state *s, int first)
{
    int count = 0;

    for (int r = 0; r < s->size; r++) {
        s->set[r] = r >= first && r != s->rank && s->peers[r].link < 0;
        count += s->set[r];
    }
    return count;
}

static void pause_ms(long *ms)
{
    nanosleep(&(struct timespec){0, *ms * 1000000}, NULL);
    *ms = *ms < 80 ? *ms * 2 : 100;
}

/* --- The store ---------------------------------------------------------- */

static void key_of(const struct boot *b, char out[128], const char *what)
{
    snprintf(out, 128, "%sshm/%s", b->prefix, what);
}

static void failed_key(const struct boot *b, char out[128])
{
    char what[64];

    snprintf(what, sizeof(what), "failed/%s", b->leader);
    key_of(b, out, what);
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

/* For requests that a store that lives answers at once: also when the time is
 * nearly over, a slow answer is no missing one. */
static uint64_t answer_deadline_ns(const struct boot *b)
{
    uint64_t least_ns = clock_deadline_ns(LAST_WORDS_MS);

    return b->deadline_ns > least_ns ? b->deadline_ns : least_ns;
}

static void set_text(struct boot *b, const char *key, const char *text)
{
    struct err e;

    /* On the way out: there is nobody to tell that this failed, too. */
    store_client_set(b->store, key, text, strlen(text),
        clock_deadline_ns(LAST_WORDS_MS), &e);
}

/* Sets the key if it has the expected value, and reads what it has then. Unlike
 * a plain set it is done when it returns. 0 or a negative errno. */
static int swap_text(struct boot *b, const char *key, const char *expected,
    const char *desired, char *out, size_t cap, struct err *e)
{
    struct buf now;
    int rc;

    buf_init(&now, cap - 1);
    rc = store_client_compare_set(
        b->store, key, expected, desired, &now, answer_deadline_ns(b), e);
    if (rc == 0) {
        if (now.len > 0)
            memcpy(out, buf_bytes(&now), now.len);
        out[now.len] = '\0';
    }
    buf_fini(&now);
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

static void claim_text(char *out, size_t cap, const struct claim *c)
{
    snprintf(out, cap, "2 %s %llu %u %s", c->node.boot_id, c->node.netns,
        c->node.uid, c->name);
}

static bool parse_claim(struct claim *c, const char *text)
{
    int end = 0;

    if (sscanf(text, "2 %39s %llu %u %32s%n", c->node.boot_id, &c->node.netns,
            &c->node.uid, c->name, &end) != 4)
        return false;
    return text[end] == '\0' && strlen(c->name) == SHM_NAME_BYTES;
}

/* Can this rank share memory with rank 0? */
static coll_status_t check_node(const struct boot *b, const struct claim *c)
{
    const struct node *own = &b->own.node;

    if (strcmp(c->node.boot_id, own->boot_id) != 0)
        return coll_fail(COLL_ERR_UNSUPPORTED,
            "coll_init: rank %d runs on another machine than rank 0; this "
            "version serves the processes of one node",
            b->g->rank);
    if (c->node.netns != own->netns)
        return coll_fail(COLL_ERR_UNSUPPORTED,
            "coll_init: rank %d runs in another network namespace than rank "
            "0; this version serves the processes of one node",
            b->g->rank);
    if (c->node.uid != own->uid)
        return coll_fail(COLL_ERR_UNSUPPORTED,
            "coll_init: rank %d runs as user %u, rank 0 as user %u; ranks "
            "share memory and must run as one user",
            b->g->rank, own->uid, c->node.uid);
    return COLL_OK;
}

/* --- Sockets ------------------------------------------------------------ */

static socklen_t address_of(struct sockaddr_un *addr, const char *name)
{
    int len;

    memset(addr, 0, sizeof(*addr));
    addr->sun_family = AF_UNIX;
    len = snprintf(addr->sun_path + 1, sizeof(addr->sun_path) - 1,
        "libcollective-%.*s", SHM_NAME_BYTES, name);
    return (
        socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
}

/* SOCK_SEQPACKET: a message arrives whole or not at all. */
static int open_socket(void)
{
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
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

static int count_open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    if (dir == NULL)
        return 64; /* most programs have fewer */
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count - 3; /* ".", ".." and dir */
}

/* Raises the soft limit of open files if the group would not fit. */
static coll_status_t make_room_for_fds(int size)
{
    rlim_t need = (rlim_t)(count_open_fds() + 2 * size + SPARE_FDS);
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= need)
        return COLL_OK;
    if (limit.rlim_max < need)
        return coll_fail(COLL_ERR_SYSTEM,
            "coll_init: %d ranks need %llu open files per process, the limit "
            "is %llu; raise it (ulimit -Hn)",
            size, (unsigned long long)need, (unsigned long long)limit.rlim_max);
    limit.rlim_cur = need;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        return fail_errno("raise the limit of open files");
    return COLL_OK;
}

static coll_status_t start_listening(struct boot *b)
{
    struct sockaddr_un addr;
    socklen_t len;
    int rc;
    coll_status_t status = make_room_for_fds(b->g->size);

    if (status != COLL_OK)
        return status;
    rc = text_random_hex(b->own.name);
    if (rc < 0)
        return fail_rc("random number", rc);
    len = address_of(&addr, b->own.name);
    b->listener = open_socket();
    if (b->listener < 0)
        return fail_errno("Unix socket");
    if (bind(b->listener, (struct sockaddr *)&addr, len) < 0 ||
        listen(b->listener, b->g->size) < 0)
        return fail_errno("listen on a Unix socket");
    return COLL_OK;
}

/* Not before this rank can tell who belongs to its group: till then those who
 * connect wait in the backlog. */
static coll_status_t start_accepting(struct boot *b)
{
    int rc = shm_watch_listener(b->s, b->listener);

    return rc < 0 ? fail_rc("watch a socket", rc) : COLL_OK;
}

/* Takes it out of the list. */
static void forget_stranger(struct boot *b, int fd)
{
    shm_unwatch(b->s, fd);
    for (int i = 0; i < b->g->size; i++)
        if (b->strangers[i] == fd)
            b->strangers[i] = -1;
}

static void drop_stranger(struct boot *b, int *fd)
{
    if (*fd < 0)
        return;
    shm_unwatch(b->s, *fd);
    close(*fd);
    *fd = -1;
}

static void stop_listening(struct boot *b)
{
    if (b->listener < 0)
        return;
    shm_unwatch(b->s, b->listener);
    close(b->listener);
    b->listener = -1;
    for (int i = 0; i < b->g->size; i++)
        drop_stranger(b, &b->strangers[i]);
}

/* One attempt of at most a slice. *fd is a connected socket, or -1 and *rc
 * why not: -EAGAIN if the backlog is full. */
static coll_status_t try_connect(
    const struct boot *b, const char *name, int *fd, pid_t *pid, int *rc)
{
    int left_ms = clock_left_ms(b->deadline_ns);
    struct timeval tv = {0, (left_ms < 100 ? left_ms : 100) * 1000 + 1};
    struct sockaddr_un addr;
    socklen_t len = address_of(&addr, name);

    *rc = 0;
    *fd = open_socket();
    if (*fd < 0)
        return fail_errno("Unix socket");
    setsockopt(*fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
    if (connect(*fd, (struct sockaddr *)&addr, len) == 0) {
        if (peer_is_ours(*fd, pid))
            return COLL_OK;
        close(*fd);
        *fd = -1;
        return coll_fail(
            COLL_ERR_SYSTEM, "coll_init: a socket belongs to another user");
    }
    *rc = errno == EINTR ? -EAGAIN : -errno;
    close(*fd);
    *fd = -1;
    if (*rc == -EAGAIN || *rc == -ECONNREFUSED)
        return COLL_OK;
    return fail_rc("connect to a Unix socket", *rc);
}

/* --- Events ------------------------------------------------------------- */

/* A message of a rank that has a link. */
static coll_status_t on_message(struct boot *b, struct shm_event *ev)
{
    const struct shm_message *msg = &ev->msg;

    switch ((enum shm_message_kind)msg->kind) {
    case SHM_WELCOME:
        b->is_welcome = true;
        break;
    case SHM_SEGMENT:
        if (b->segment >= 0)
            break;
        if (ev->fd < 0)
            return coll_fail(COLL_ERR_SYSTEM,
                "coll_init: no descriptor for the shared memory came through; "
                "this process may have too many files open");
        memcpy(b->token, msg->token, SHM_NAME_BYTES);
        b->segment = ev->fd;
        return COLL_OK;
    case SHM_FAILURE:
        if (ev->fd >= 0)
            close(ev->fd);
        if (msg->status >= 0)
            return COLL_OK;
        if (b->s->rank != 0) {
            b->has_told = true;
            return fail_told(b, (coll_status_t)msg->status, msg->text);
        }
        if (msg->status != COLL_ERR_TIMEOUT)
            return fail_gave_up(
                b, ev->rank, (coll_status_t)msg->status, msg->text);
        mark_missing(b->s, 1);
        return fail_late(b, msg->timeout_ms, "");
    case SHM_JOIN:
    case SHM_HELLO:
        break;
    }
    if (ev->fd >= 0)
        close(ev->fd);
    return COLL_OK;
}

/* Has something happened to a rank that is just not its turn yet? */
static coll_status_t check_link(struct boot *b, int rank)
{
    struct shm_event ev;

    shm_peer_event(b->s, rank, &ev);
    if (ev.kind == SHM_EV_MESSAGE)
        return on_message(b, &ev);
    return ev.kind == SHM_EV_LOST ? fail_lost(b, rank) : COLL_OK;
}

/* Rank 0: a rank has connected. Takes fd. */
static coll_status_t admit(
    struct boot *b, int fd, pid_t pid, const struct shm_message *join)
{
    struct shm_state *s = b->s;
    struct shm_message answer = {.kind = SHM_WELCOME};
    int rank = join->rank;
    coll_status_t status = COLL_OK;
    int rc;

    /* A rank that has failed and tries again may be seen before that its
     * former connection has ended. It will look for the next attempt. */
    if (rank < s->size && s->peers[rank].link >= 0)
        status = check_link(b, rank);
    if (status != COLL_OK) {
        close(fd);
        return status;
    }

    if (join->world_size != s->size) {
        coll_fail(COLL_ERR_ENVIRONMENT,
            "coll_init: rank %d has a world size of %d, rank 0 of %d", rank,
            join->world_size, s->size);
    } else if (rank == 0 || s->peers[rank].link >= 0) {
        coll_fail(COLL_ERR_ENVIRONMENT,
            "coll_init: two workers of the job have the same RANK %d: "
            "processes %d and %d",
            rank, (int)(rank == 0 ? getpid() : s->peers[rank].pid), (int)pid);
    } else {
        rc = shm_add_peer(s, rank, fd, pid);
        if (rc < 0)
            return fail_rc("watch a rank", rc);
        memcpy(b->names[rank], join->name, SHM_NAME_BYTES);
        rc = shm_send(fd, &answer, -1);
        /* If it has gone meanwhile, that is the next event. */
        return rc == 0 || rc == -EPIPE || rc == -ECONNRESET
                   ? COLL_OK
                   : fail_rc("welcome a rank", rc);
    }
    /* It has no link over which it would be told with the others. */
    answer.kind = SHM_FAILURE;
    answer.status = COLL_ERR_ENVIRONMENT;
    snprintf(answer.text, sizeof(answer.text), "%s", coll_last_error());
    shm_send(fd, &answer, -1);
    close(fd);
    return COLL_ERR_ENVIRONMENT;
}

/* The first message of a connection. One that makes no sense here is closed
 * and forgotten. Takes fd. */
static coll_status_t greet_stranger(struct boot *b, int fd)
{
    struct shm_state *s = b->s;
    struct shm_message msg;
    pid_t pid;
    int descriptor;
    int rc = shm_receive(fd, &msg, &descriptor);

    if (rc == 0)
        return COLL_OK;
    if (descriptor >= 0)
        close(descriptor);
    forget_stranger(b, fd);
    if (rc < 0 && rc != -ECONNRESET) {
        close(fd);
        return fail_rc("receive", rc);
    }
    if (rc < 0 || !peer_is_ours(fd, &pid) || msg.rank < 0)
        goto drop;
    if (s->rank == 0 && msg.kind == SHM_JOIN && msg.rank < msg.world_size)
        return admit(b, fd, pid, &msg);
    if (s->rank == 0 || msg.kind != SHM_HELLO || msg.rank <= s->rank ||
        msg.rank >= s->size || s->peers[msg.rank].link >= 0 ||
        memcmp(msg.token, b->token, SHM_NAME_BYTES) != 0)
        goto drop;
    rc = shm_add_peer(s, msg.rank, fd, pid);
    return rc < 0 ? fail_rc("watch a rank", rc) : COLL_OK;
drop:
    close(fd);
    return COLL_OK;
}

static coll_status_t accept_stranger(struct boot *b)
{
    int *slot = &b->strangers[b->next_stranger++ % (unsigned int)b->g->size];
    int fd = accept4(b->listener, NULL, NULL, SOCK_CLOEXEC);
    int rc;

    if (fd < 0)
        return errno == EINTR || errno == ECONNABORTED ? COLL_OK
                                                       : fail_errno("accept");
    rc = shm_watch_stranger(b->s, fd);
    if (rc < 0) {
        close(fd);
        return fail_rc("watch a socket", rc);
    }
    drop_stranger(b, slot);
    *slot = fd;
    /* What a rank says first is usually there already. */
    return greet_stranger(b, fd);
}

/* Waits for one event and acts on it. NONE is no failure. */
static coll_status_t boot_step(
    struct boot *b, int timeout_ms, enum shm_event_kind *kind)
{
    struct shm_event ev;
    int rc = shm_next_event(b->s, timeout_ms, &ev);

    if (rc < 0)
        return fail_rc("epoll_wait", rc);
    *kind = ev.kind;
    switch (ev.kind) {
    case SHM_EV_LISTENER:
        return accept_stranger(b);
    case SHM_EV_STRANGER:
        return greet_stranger(b, ev.fd);
    case SHM_EV_MESSAGE:
        return on_message(b, &ev);
    case SHM_EV_LOST:
        /* A rank 0 that has not answered yet may be one that is on its way
         * out: another will come. */
        if (b->s->rank != 0 && !b->is_welcome)
            return COLL_OK;
        if (!shm_may_judge(b->s, ev.rank))
            return COLL_OK;
        return fail_lost(b, ev.rank);
    case SHM_EV_NONE:
        break;
    }
    return COLL_OK;
}

/* --- Rank 0 ------------------------------------------------------------- */

/* Has a rank that cannot reach this one left its reason in the store? */
static coll_status_t read_failed(struct boot *b)
{
    char key[128];
    char text[600];
    const char *keys[] = {key};
    struct err e = {0};
    int exists = 0;
    int rank;
    int status;
    int at = 0;
    int rc;

    failed_key(b, key);
    rc = store_client_check(
        b->store, keys, 1, &exists, answer_deadline_ns(b), &e);
    if (rc < 0)
        return fail_store(rc, &e);
    if (!exists)
        return COLL_OK;
    rc = get_text(b, key, text, sizeof(text), b->deadline_ns, &e);
    if (rc == 0)
        rc = store_client_delete(b->store, key, answer_deadline_ns(b), &e);
    if (rc < 0)
        return fail_store(rc, &e);
    if (sscanf(text, "%d %d %n", &rank, &status, &at) != 2 || at == 0 ||
        status >= 0)
        return COLL_OK;
    if (status == COLL_ERR_UNSUPPORTED)
        return fail_told(b, (coll_status_t)status, text + at);
    return fail_gave_up(b, rank, (coll_status_t)status, text + at);
}

/* Waits for the next event with a look at store and clock now and then. */
static coll_status_t lead_step(struct boot *b)
{
    int left_ms = clock_left_ms(b->deadline_ns);
    enum shm_event_kind kind = SHM_EV_NONE;
    coll_status_t status =
        boot_step(b, left_ms < b->slice_ms ? left_ms : b->slice_ms, &kind);

    if (status != COLL_OK || kind != SHM_EV_NONE)
        return status;
    if (left_ms == 0) {
        mark_missing(b->s, 1);
        return fail_late(b, b->g->timeout_ms, "");
    }
    if (b->slice_ms < SLICE_LAST_MS)
        b->slice_ms *= 2;
    return read_failed(b);
}

/*
 * The key is taken by another claim. If its owner lives there are two ranks
 * 0; it is told by connecting, so that it fails, too. Else the claim was left
 * behind by a process that was killed, and *is_stale.
 */
static coll_status_t challenge(
    struct boot *b, const char *other, bool *is_stale)
{
    struct shm_message join = {
        .kind = SHM_JOIN, .rank = 0, .world_size = b->g->size};
    struct shm_state *s = b->s;
    struct claim claim;
    coll_status_t status;
    pid_t pid;
    int fd;
    int rc;

    *is_stale = true;
    if (!parse_claim(&claim, other))
        return COLL_OK;
    status = try_connect(b, claim.name, &fd, &pid, &rc);
    if (status != COLL_OK || (fd < 0 && rc != -EAGAIN))
        return status;
    if (fd < 0) {
        *is_stale = false;
        return COLL_OK;
    }
    /* As if it were a peer for a moment, to learn whether it lives. */
    rc = shm_send(fd, &join, -1);
    if (rc == 0)
        rc = shm_add_peer(s, 0, fd, pid);
    else
        close(fd);
    if (rc == 0 && s->peers[0].link >= 0) {
        struct shm_event ev = {.kind = SHM_EV_NONE};
        uint64_t end_ns = clock_deadline_ns(LAST_WORDS_MS);

        do {
            rc = shm_next_event(s, clock_left_ms(end_ns), &ev);
        } while (rc == 0 && ev.kind == SHM_EV_LISTENER);
        *is_stale = ev.kind == SHM_EV_LOST;
        if (ev.kind == SHM_EV_MESSAGE && ev.msg.kind == SHM_FAILURE) {
            b->has_told = true;
            status = fail_told(b, COLL_ERR_ENVIRONMENT, ev.msg.text);
        }
    }
    shm_drop_peer(s, 0);
    s->peers[0] = (struct shm_peer){.link = -1, .pidfd = -1};
    return status;
}

/* Puts this rank's name where the others look. */
static coll_status_t claim_key(struct boot *b)
{
    long delay_ms = 5;
    char expected[600] = "";
    char found[600];
    char desired[160];
    char key[128];

    key_of(b, key, "rank0");
    claim_text(desired, sizeof(desired), &b->own);
    for (;;) {
        struct err e = {0};
        bool is_stale = false;
        coll_status_t status;
        int rc = swap_text(b, key, expected, desired, found, sizeof(found), &e);

        if (rc < 0)
            return fail_store(rc, &e);
        if (strcmp(found, desired) == 0)
            break;
        status = challenge(b, found, &is_stale);
        if (status != COLL_OK)
            return status;
        if (clock_left_ms(b->deadline_ns) == 0) {
            b->has_told = true; /* the key is the other one's */
            return coll_fail(COLL_ERR_TIMEOUT,
                "timed out after %.1f s in coll_init waiting for another "
                "rank 0 to give up",
                (double)b->g->timeout_ms / 1000.0);
        }
        /* If the key is gone since, the store answers with what was expected:
         * then nothing is. */
        if (is_stale && strcmp(found, expected) != 0) {
            memcpy(expected, found, sizeof(expected));
        } else {
            expected[0] = '\0';
            pause_ms(&delay_ms);
        }
    }
    memcpy(b->leader, b->own.name, sizeof(b->leader));
    b->has_claimed = true;
    return COLL_OK;
}

static coll_status_t give_up_claim(struct boot *b)
{
    struct err e = {0};
    char key[128];
    int rc;

    key_of(b, key, "rank0");
    rc = store_client_delete(b->store, key, answer_deadline_ns(b), &e);
    if (rc < 0)
        return fail_store(rc, &e);
    b->has_claimed = false;
    return COLL_OK;
}

static coll_status_t hand_out_segment(struct boot *b)
{
    struct shm_state *s = b->s;
    struct shm_message msg = {.kind = SHM_SEGMENT};
    int rc = text_random_hex(b->token);
    coll_status_t status;

    if (rc < 0)
        return fail_rc("random number", rc);
    status = shm_segment_create(s, &b->segment);
    if (status != COLL_OK)
        return status;
    memcpy(shm_segment_names(s), b->names, (size_t)s->size * sizeof(*b->names));
    memcpy(msg.token, b->token, SHM_NAME_BYTES);
    for (int r = 1; r < s->size; r++) {
        rc = shm_send(s->peers[r].link, &msg, b->segment);
        if (rc == -EPIPE || rc == -ECONNRESET)
            return fail_lost(b, r);
        if (rc < 0)
            return fail_rc("pass the shared memory", rc);
    }
    return COLL_OK;
}

static coll_status_t lead(struct boot *b)
{
    coll_status_t status = start_listening(b);

    if (status == COLL_OK)
        status = start_accepting(b);
    if (status == COLL_OK)
        status = claim_key(b);
    while (status == COLL_OK && mark_missing(b->s, 1) > 0)
        status = lead_step(b);
    if (status == COLL_OK)
        status = give_up_claim(b);
    if (status == COLL_OK)
        status = hand_out_segment(b);
    return status;
}

/*
 * Replaces this rank's claim, an older note or nothing by the reason of the
 * failure, for those who wait for a claim. No two notes are alike, so that an
 * old one can be told.
 */
static void leave_note(struct boot *b, coll_status_t status, const char *reason)
{
    char nonce[SHM_NAME_BYTES + 1];
    char expected[600] = "";
    char note[600];
    char found[600];
    char key[128];
    struct err e;

    /* Once all have come, there is nobody left who looks at the key. */
    if ((b->leader[0] != '\0' && !b->has_claimed) || text_random_hex(nonce) < 0)
        return;
    key_of(b, key, "rank0");
    snprintf(
        note, sizeof(note), "%c%d %s %s", NOTE, (int)status, nonce, reason);
    if (b->has_claimed)
        claim_text(expected, sizeof(expected), &b->own);
    if (swap_text(b, key, expected, note, found, sizeof(found), &e) == 0 &&
        found[0] == NOTE && strcmp(found, note) != 0)
        swap_text(b, key, found, note, expected, sizeof(expected), &e);
}

/*
 * Rank 0 gives up: tells all others, also those that arrive right now; if
 * the job is set up wrongly all its ranks are waited for, because they are
 * starting at this moment.
 */
static void dismiss(struct boot *b, coll_status_t status)
{
    struct shm_message msg = {.kind = SHM_FAILURE, .status = status};
    struct shm_state *s = b->s;
    char reason[sizeof(msg.text)];
    bool is_own = !s->is_relaying && status != COLL_ERR_PEER &&
                  status != COLL_ERR_TIMEOUT &&
                  status != COLL_ERR_ENVIRONMENT &&
                  status != COLL_ERR_UNSUPPORTED;
    enum shm_event_kind kind = SHM_EV_NONE;
    uint64_t end_ns = clock_deadline_ns(
        status == COLL_ERR_ENVIRONMENT || status == COLL_ERR_UNSUPPORTED
            ? LAST_WORDS_MS
            : 0);

    snprintf(reason, sizeof(reason), "%s", coll_last_error());
    /* The other sentences are true on every rank. */
    if (is_own)
        msg.status = COLL_ERR_PEER;
    snprintf(msg.text, sizeof(msg.text), "%s%.420s",
        is_own ? "rank 0 gave up: " : "", reason);
    while (b->listener >= 0 && mark_missing(s, 1) > 0) {
        int left_ms = clock_left_ms(end_ns);

        coll_status_t problem = boot_step(b, left_ms, &kind);

        if (kind == SHM_EV_NONE && left_ms == 0)
            break;
        /* Nobody can be accepted: would fail for ever. */
        if (problem == COLL_ERR_SYSTEM || problem == COLL_ERR_MEMORY)
            break;
    }
    stop_listening(b);
    leave_note(b, msg.status, msg.text);
    for (int r = 1; r < s->size; r++)
        if (s->peers[r].link >= 0)
            shm_send(s->peers[r].link, &msg, -1);
    coll_fail(status, "%s", reason);
}

/* --- The other ranks ---------------------------------------------------- */

/* Waits for the next event until the time is over. */
static coll_status_t follow_step(struct boot *b)
{
    int left_ms = clock_left_ms(b->deadline_ns);
    enum shm_event_kind kind = SHM_EV_NONE;
    struct shm_message msg = {.kind = SHM_FAILURE,
        .status = COLL_ERR_TIMEOUT,
        .timeout_ms = b->g->timeout_ms};
    struct shm_state *s = b->s;
    uint64_t end_ns;
    coll_status_t status;

    if (s->control != NULL && s->verdict_ns != 0 &&
        left_ms > clock_left_ms(s->verdict_ns))
        left_ms = clock_left_ms(s->verdict_ns);
    status = boot_step(b, left_ms, &kind);
    if (status != COLL_OK || kind != SHM_EV_NONE || left_ms > 0)
        return status;
    for (int r = 0; s->control != NULL && r < s->size; r++)
        if (s->peers[r].is_lost)
            return fail_lost(b, r);
    if (s->control != NULL) {
        mark_missing(s, s->rank + 1);
        return fail_late(b, b->g->timeout_ms, " to connect");
    }
    /* Rank 0 knows who is missing; its answer names them. */
    end_ns = clock_deadline_ns(b->is_welcome ? LAST_WORDS_MS : 0);
    snprintf(msg.text, sizeof(msg.text), "timed out after %.1f s in coll_init",
        (double)b->g->timeout_ms / 1000.0);
    if (b->is_welcome)
        shm_send(s->peers[0].link, &msg, -1);
    do {
        left_ms = clock_left_ms(end_ns);
        status = boot_step(b, left_ms, &kind);
    } while (status == COLL_OK && left_ms > 0 && b->segment < 0);
    if (status != COLL_OK)
        return status;
    b->has_told = b->is_welcome;
    memset(s->set, 0, (size_t)s->size * sizeof(*s->set));
    s->set[0] = true;
    return fail_late(b, b->g->timeout_ms, "");
}

/* What the key of rank 0 said when this rank came. */
static coll_status_t read_old_note(struct boot *b, char *out, size_t cap)
{
    char key[128];
    const char *keys[] = {key};
    struct err e = {0};
    int exists = 0;
    int rc;

    out[0] = '\0';
    key_of(b, key, "rank0");
    rc = store_client_check(
        b->store, keys, 1, &exists, answer_deadline_ns(b), &e);
    if (rc == 0 && exists)
        rc = get_text(b, key, out, cap, b->deadline_ns, &e);
    if (rc == -ETIMEDOUT) /* gone again */
        rc = 0;
    return rc < 0 ? fail_store(rc, &e) : COLL_OK;
}

/*
 * Waits until rank 0's claim is there. *is_stale: look again, it is gone, or a
 * failure that was noted before this rank came. Whether that was in the same
 * attempt cannot be known; waiting for the next one is what heals.
 */
static coll_status_t find_claim(
    struct boot *b, const char *old_note, struct claim *claim, bool *is_stale)
{
    struct err e = {0};
    char key[128];
    char text[600];
    int status;
    int at = 0;
    int rc;

    key_of(b, key, "rank0");
    rc = get_text(b, key, text, sizeof(text), b->deadline_ns, &e);
    if (rc == -ETIMEDOUT) {
        memset(b->s->set, 0, (size_t)b->s->size * sizeof(*b->s->set));
        b->s->set[0] = true;
        return fail_late(b, b->g->timeout_ms, "");
    }
    if (rc < 0)
        return fail_store(rc, &e);
    /* Empty: the key was removed between waiting for it and reading it. */
    *is_stale =
        text[0] == '\0' || (text[0] == NOTE && strcmp(text, old_note) == 0);
    if (*is_stale || parse_claim(claim, text))
        return COLL_OK;
    if (text[0] == NOTE && sscanf(text + 1, "%d %*s %n", &status, &at) == 1 &&
        at > 0 && status < 0) {
        b->has_told = true;
        return fail_told(b, (coll_status_t)status, text + 1 + at);
    }
    return coll_fail(COLL_ERR_STORE,
        "coll_init: what rank 0 left in the store is not from this version of "
        "the library");
}

/* Connects to rank 0 and waits for its welcome. Not welcome afterwards: it
 * has gone. */
static coll_status_t join_leader(struct boot *b, const struct claim *claim)
{
    struct shm_message join = {
        .kind = SHM_JOIN, .rank = b->g->rank, .world_size = b->g->size};
    struct shm_state *s = b->s;
    coll_status_t status;
    pid_t pid;
    int fd;
    int rc;

    status = try_connect(b, claim->name, &fd, &pid, &rc);
    if (status != COLL_OK || fd < 0)
        return status;
    memcpy(join.name, b->own.name, SHM_NAME_BYTES);
    rc = shm_send(fd, &join, -1);
    if (rc < 0) {
        close(fd);
        return rc == -EPIPE || rc == -ECONNRESET ? COLL_OK
                                                 : fail_rc("send", rc);
    }
    s->verdict_ns = 0; /* another rank 0 may have been lost before */
    rc = shm_add_peer(s, 0, fd, pid);
    if (rc < 0)
        return fail_rc("watch rank 0", rc);
    while (status == COLL_OK && !b->is_welcome && s->peers[0].link >= 0)
        status = follow_step(b);
    return status;
}

static coll_status_t find_leader(struct boot *b)
{
    long delay_ms = 5;
    char old_note[600];
    coll_status_t status = read_old_note(b, old_note, sizeof(old_note));

    while (status == COLL_OK) {
        struct claim claim;
        bool is_stale = false;

        status = find_claim(b, old_note, &claim, &is_stale);
        if (status != COLL_OK)
            return status;
        if (!is_stale) {
            memcpy(b->leader, claim.name, sizeof(b->leader));
            status = check_node(b, &claim);
            if (status == COLL_OK && b->listener < 0)
                status = start_listening(b);
            if (status == COLL_OK)
                status = join_leader(b, &claim);
            if (status != COLL_OK || b->is_welcome)
                return status;
        }
        /* The store cannot wait for a change, so ask now and then. */
        if (clock_left_ms(b->deadline_ns) == 0)
            status = follow_step(b);
        else
            pause_ms(&delay_ms);
    }
    return status;
}

/* A rank that has joined is not there any more. It, or its end, has told rank
 * 0, which is about to tell why. */
static coll_status_t fail_refused(struct boot *b, int rank)
{
    uint64_t end_ns = clock_deadline_ns(LAST_WORDS_MS);
    coll_status_t status = COLL_OK;
    int left_ms;

    do {
        enum shm_event_kind kind;

        left_ms = clock_left_ms(end_ns);
        status = boot_step(b, left_ms, &kind);
    } while (status == COLL_OK && left_ms > 0 && !shm_has_failed(b->s, rank));
    return status == COLL_OK ? fail_lost(b, rank) : status;
}

/* Connects to a rank that has joined, as this one. */
static coll_status_t connect_to(struct boot *b, int rank)
{
    struct shm_message hello = {.kind = SHM_HELLO, .rank = b->g->rank};
    struct shm_state *s = b->s;
    coll_status_t status;
    pid_t pid;
    int fd;
    int rc;

    for (;;) {
        enum shm_event_kind kind;

        status = try_connect(b, shm_segment_names(s)[rank], &fd, &pid, &rc);
        if (status != COLL_OK || rc != -EAGAIN)
            break;
        /* Its backlog is full. Meanwhile somebody else may fail. */
        status = boot_step(b, 0, &kind);
        if (status != COLL_OK)
            return status;
        if (clock_left_ms(b->deadline_ns) == 0) {
            memset(s->set, 0, (size_t)s->size * sizeof(*s->set));
            s->set[rank] = true;
            return fail_late(b, b->g->timeout_ms, "");
        }
    }
    if (status != COLL_OK)
        return status;
    if (fd < 0)
        return fail_refused(b, rank);
    memcpy(hello.token, b->token, SHM_NAME_BYTES);
    rc = shm_send(fd, &hello, -1);
    if (rc < 0) {
        close(fd);
        return rc == -EPIPE || rc == -ECONNRESET ? fail_refused(b, rank)
                                                 : fail_rc("send", rc);
    }
    rc = shm_add_peer(s, rank, fd, pid);
    return rc < 0 ? fail_rc("watch a rank", rc) : COLL_OK;
}

static coll_status_t follow(struct boot *b)
{
    struct shm_state *s = b->s;
    coll_status_t status = find_leader(b);

    while (status == COLL_OK && b->segment < 0)
        status = follow_step(b);
    if (status == COLL_OK)
        status = shm_segment_map(s, b->segment);
    if (status == COLL_OK)
        status = start_accepting(b);
    for (int r = 1; r < s->rank && status == COLL_OK; r++)
        status = connect_to(b, r);
    while (status == COLL_OK && mark_missing(s, s->rank + 1) > 0)
        status = follow_step(b);
    return status;
}

/* Tells rank 0, which tells the others. Not needed once the segment is
 * mapped: there all can see it. */
static void tell_leader(struct boot *b, coll_status_t status)
{
    struct shm_message msg = {
        .kind = SHM_FAILURE, .status = status, .timeout_ms = b->g->timeout_ms};
    char reason[sizeof(msg.text)];
    char text[600];
    char key[128];

    if (b->s->control != NULL || b->leader[0] == '\0')
        return;
    snprintf(reason, sizeof(reason), "%s", coll_last_error());
    if (b->s->peers[0].link >= 0) {
        snprintf(msg.text, sizeof(msg.text), "%s", reason);
        shm_send(b->s->peers[0].link, &msg, -1);
    } else if (!b->is_welcome && status != COLL_ERR_TIMEOUT) {
        snprintf(
            text, sizeof(text), "%d %d %s", b->g->rank, (int)status, reason);
        failed_key(b, key);
        set_text(b, key, text);
    }
    coll_fail(status, "%s", reason);
}

/* --- All of it ---------------------------------------------------------- */

/* Nobody may have failed since it published the first tick: it would come
 * again while this rank goes on. */
static coll_status_t check_nobody_failed(struct shm_state *s)
{
    for (int r = 0; r < s->size; r++)
        if (shm_has_failed(s, r))
            return shm_fail_with(s, r, false);
    return COLL_OK;
}

coll_status_t shm_connect(struct coll_group *g, const struct coll_boot *boot)
{
    struct boot b = {
        .g = g,
        .s = g->state,
        .store = boot->store,
        .prefix = boot->prefix,
        .deadline_ns = boot->deadline_ns,
        .slice_ms = SLICE_FIRST_MS,
        .listener = -1,
        .segment = -1,
    };
    coll_status_t status;

    b.names = calloc((size_t)g->size, sizeof(*b.names));
    b.strangers = calloc((size_t)g->size, sizeof(*b.strangers));
    for (int i = 0; b.strangers != NULL && i < g->size; i++)
        b.strangers[i] = -1;
    node_get(&b.own.node);
    if (b.names == NULL || b.strangers == NULL)
        status = coll_fail(COLL_ERR_MEMORY, "coll_init: out of memory");
    else if (g->size == 1)
        status = shm_segment_create(b.s, &b.segment);
    else
        status = g->rank == 0 ? lead(&b) : follow(&b);
    if (status != COLL_OK && !b.has_told && b.store != NULL) {
        if (g->rank == 0)
            dismiss(&b, status);
        else
            tell_leader(&b, status);
    }
    if (status == COLL_OK) {
        stop_listening(&b);
        status = shm_tick(g, NULL, b.deadline_ns);
    }
    if (status == COLL_OK)
        status = check_nobody_failed(b.s);
    /* In this order: who finds the listener gone finds the reason, too. */
    if (status != COLL_OK)
        shm_announce_failure(b.s, status);
    stop_listening(&b);
    if (b.segment >= 0)
        close(b.segment);
    free(b.names);
    free(b.strangers);
    return status;
}
