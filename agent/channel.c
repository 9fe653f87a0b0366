/*
 * The agent's end of the agent channel; see channel.h.
 *
 * Owns the listening socket, a connection for each worker that has attached
 * and for each stranger that has not said yet who it is, and for each local
 * rank the memory of its recorder. That outlives the rank's connections: it
 * is read when the rank is dead.
 *
 * A rank may be attached several times: a worker can be a shell that starts
 * several programs, or call coll_init() again. All of them are told, and all
 * write to the one recorder of their rank.
 */
#include "agent/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/agent_channel.h"
#include "rendezvous/base/log.h"
#include "rendezvous/base/text.h"
#include "rendezvous/fd_message.h"
#include "rendezvous/recorder.h"

/* Connections of one rank at a time. */
#define CONNS_PER_RANK 4

/* Connections that have not attached: one per rank is ordinary for a moment.
 * Of more, the oldest goes. */
#define STRANGERS_EXTRA 16

/* What one connection may say, an ATTACH and what failed, and how much of it
 * in one go. */
#define FRAMES_MAX 256
#define FRAMES_PER_TURN 8

struct conn {
    uv_poll_t poll;
    struct channel *channel; /* borrowed */
    int fd;
    int local_rank; /* -1: a stranger */
    int nframes; /* so far */
    bool is_closing; /* not in the list any more */
    struct conn *next, *prev;
};

struct member {
    int memfd; /* -1 while there is none */
    struct recorder *recorder; /* the mapping of it; NULL likewise */
    int nconns;
};

struct channel {
    uv_loop_t *loop;
    uv_poll_t listener;
    int fd;
    int nproc;
    int round;
    int rank_base;
    struct channel_callbacks callbacks;
    void *arg;
    char socket_name[64];
    char name[AGENT_CHANNEL_TEXT_MAX]; /* with the round */
    struct member *members; /* [nproc] */
    struct conn *oldest, *newest;
    int nstrangers;
    bool is_paused; /* no descriptors left: nobody is accepted */
    bool has_logged; /* a stranger's nonsense, in this round */
    bool has_failure;
    struct agent_frame failure; /* of this round, for those who come late */
    bool is_destroyed;
    int nhandles; /* not closed yet; the last one takes the memory along */
};

/* --- The end of things ---------------------------------------------------- */

static void release(struct channel *c)
{
    free(c->members);
    free(c);
}

static void handle_gone(struct channel *c)
{
    if (--c->nhandles == 0 && c->is_destroyed)
        release(c);
}

static void conn_closed_cb(uv_handle_t *handle)
{
    struct conn *conn = handle->data;

    handle_gone(conn->channel);
    free(conn);
}

static void listener_closed_cb(uv_handle_t *handle)
{
    handle_gone(handle->data);
}

static void listen_again(struct channel *c);

static void conn_close(struct conn *conn)
{
    struct channel *c = conn->channel;

    if (conn->is_closing)
        return;
    conn->is_closing = true;
    if (conn->local_rank >= 0)
        c->members[conn->local_rank].nconns--;
    else
        c->nstrangers--;
    *(conn->prev != NULL ? &conn->prev->next : &c->oldest) = conn->next;
    *(conn->next != NULL ? &conn->next->prev : &c->newest) = conn->prev;
    uv_close((uv_handle_t *)&conn->poll, conn_closed_cb);
    close(conn->fd);
    if (c->is_paused && !c->is_destroyed)
        listen_again(c);
}

static void member_forget(struct member *m)
{
    if (m->recorder != NULL)
        munmap(m->recorder, sizeof(*m->recorder));
    if (m->memfd >= 0)
        close(m->memfd);
    m->recorder = NULL;
    m->memfd = -1;
}

/* Whoever sends nonsense is closed, and the first one of a round told of. */
static void conn_refuse_nonsense(struct conn *conn, const char *what)
{
    struct channel *c = conn->channel;

    if (!c->has_logged)
        log_warn("channel",
            "closed a connection to the agent channel: %s; more of the kind "
            "are closed without a word",
            what);
    c->has_logged = true;
    conn_close(conn);
}

/* --- Frames --------------------------------------------------------------- */

/* Sends with a descriptor, or without if it is -1. Whoever does not read is
 * not waited for. */
static int conn_send(
    const struct conn *conn, const struct agent_frame *frame, int descriptor)
{
    uint8_t bytes[AGENT_FRAME_MAX];
    size_t n = agent_frame_encode(frame, bytes);

    return fd_message_send(conn->fd, bytes, n, descriptor);
}

static void conn_tell(const struct conn *conn)
{
    const struct channel *c = conn->channel;
    int rc = conn_send(conn, &c->failure, -1);

    if (rc < 0)
        log_debug("channel", "could not tell local rank %d: %s",
            conn->local_rank, strerror(-rc));
}

/* Makes the rank's recorder. Without one it is attached all the same. */
static void member_prepare(struct member *m, int rank)
{
    const size_t size = sizeof(*m->recorder);
    void *map = MAP_FAILED;

    if (m->memfd >= 0)
        return;
    m->memfd = memfd_create("crun-recorder", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (m->memfd < 0)
        goto fail;
    /* Sealed, so that neither side can make the other one's reads fail. */
    if (ftruncate(m->memfd, (off_t)size) < 0 ||
        fcntl(m->memfd, F_ADD_SEALS,
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        goto fail;
    map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, m->memfd, 0);
    if (map == MAP_FAILED)
        goto fail;
    m->recorder = map;
    recorder_init(m->recorder, rank);
    return;
fail:
    log_debug("channel", "no recorder for rank %d: %s", rank, strerror(errno));
    member_forget(m);
}

static void conn_refuse(struct conn *conn, const char *why)
{
    struct agent_frame answer = {.kind = AGENT_REFUSED};

    snprintf(answer.text, sizeof(answer.text), "%s", why);
    conn_send(conn, &answer, -1);
    log_debug("channel", "refused a worker: %s", why);
    conn_close(conn);
}

static void on_attach(struct conn *conn, const struct agent_frame *f)
{
    const struct agent_frame answer = {.kind = AGENT_ATTACHED};
    struct channel *c = conn->channel;
    struct member *m;
    char why[128];

    if (f->local_rank < 0 || f->local_rank >= c->nproc ||
        f->rank != c->rank_base + f->local_rank) {
        snprintf(why, sizeof(why),
            "rank %d with local rank %d is none of this agent's workers",
            f->rank, f->local_rank);
        conn_refuse(conn, why);
        return;
    }
    if (f->round != c->round) {
        snprintf(why, sizeof(why), "round %d is over, this is round %d",
            f->round, c->round);
        conn_refuse(conn, why);
        return;
    }
    m = &c->members[f->local_rank];
    if (m->nconns >= CONNS_PER_RANK) {
        snprintf(why, sizeof(why), "rank %d is attached %d times already",
            f->rank, m->nconns);
        conn_refuse(conn, why);
        return;
    }
    member_prepare(m, f->rank);
    if (conn_send(conn, &answer, m->memfd) < 0) {
        conn_close(conn);
        return;
    }
    conn->local_rank = f->local_rank;
    m->nconns++;
    c->nstrangers--;
    log_debug("channel", "rank %d is attached pid=%d", f->rank, f->pid);
    if (c->has_failure)
        conn_tell(conn);
    c->callbacks.attached(c->arg, f->local_rank);
}

static void on_frame(struct conn *conn, const struct agent_frame *f)
{
    bool is_stranger = conn->local_rank < 0;
    struct channel *c = conn->channel;

    if (f->kind == AGENT_ATTACH && is_stranger)
        on_attach(conn, f);
    else if (f->kind == AGENT_COLLATERAL && !is_stranger)
        c->callbacks.collateral(c->arg, conn->local_rank, f->text);
    else
        conn_refuse_nonsense(conn, "it says what is not its turn to say");
}

/* Takes in one packet; false if there is none. */
static bool conn_read(struct conn *conn)
{
    uint8_t bytes[AGENT_FRAME_MAX];
    struct agent_frame frame;
    ssize_t n;
    int rc;

    /* A descriptor that comes along is dropped by the kernel, there is no
     * room for it; so is the rest of a packet longer than any frame. */
    n = recv(conn->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    /* A worker that has ended without having read everything: that is said
     * once, in front of what it has sent before. */
    if (n < 0 && errno == ECONNRESET)
        n = recv(conn->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        conn_close(conn);
        return false;
    }
    rc = agent_frame_decode(&frame, bytes, (size_t)n);
    if (rc == -EPROTONOSUPPORT)
        conn_refuse_nonsense(conn,
            "it speaks another version: libcollective and crun are not "
            "of the same release");
    else if (rc < 0)
        conn_refuse_nonsense(conn, "what it says is none of the protocol");
    else if (++conn->nframes > FRAMES_MAX)
        conn_refuse_nonsense(conn, "it says too much");
    else
        on_frame(conn, &frame);
    return !conn->is_closing;
}

static void conn_ready_cb(uv_poll_t *poll, int status, int events)
{
    struct conn *conn = poll->data;
    int left = FRAMES_PER_TURN;

    (void)events;
    /* An error, after which libuv watches no more: of a worker that has ended
     * without having read everything. What it has said is still there. */
    if (status < 0)
        left = FRAMES_MAX;
    while (left-- > 0 && conn_read(conn))
        continue;
    if (status < 0)
        conn_close(conn);
}

/* --- Connections ---------------------------------------------------------- */

static void drop_oldest_stranger(struct channel *c)
{
    struct conn *conn = c->oldest;

    while (conn != NULL && conn->local_rank >= 0)
        conn = conn->next;
    if (conn != NULL)
        conn_close(conn);
}

static bool is_ours(int fd)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0 &&
           cred.uid == geteuid();
}

/* Takes fd, also on failure. */
static int conn_create(struct channel *c, int fd)
{
    struct conn *conn = calloc(1, sizeof(*conn));
    int rc;

    if (conn == NULL) {
        close(fd);
        return -ENOMEM;
    }
    rc = uv_poll_init(c->loop, &conn->poll, fd);
    if (rc < 0) {
        close(fd);
        free(conn);
        return rc;
    }
    c->nhandles++;
    conn->poll.data = conn;
    conn->channel = c;
    conn->fd = fd;
    conn->local_rank = -1;
    conn->prev = c->newest;
    *(c->newest != NULL ? &c->newest->next : &c->oldest) = conn;
    c->newest = conn;
    c->nstrangers++;
    rc = uv_poll_start(&conn->poll, UV_READABLE, conn_ready_cb);
    if (rc < 0) {
        conn_close(conn);
        return rc;
    }
    if (c->nstrangers > c->nproc + STRANGERS_EXTRA)
        drop_oldest_stranger(c);
    return 0;
}

/* Accepts whoever is there; false if nobody is. */
static bool accept_one(struct channel *c)
{
    int fd = accept4(c->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd >= 0) {
        if (is_ours(fd))
            conn_create(c, fd);
        else
            close(fd);
        return true;
    }
    if (errno == EINTR || errno == ECONNABORTED)
        return true;
    if (errno != EAGAIN) {
        /* No descriptor or memory is left: else this would come back at once,
         * again and again. */
        log_debug("channel", "accept: %s", strerror(errno));
        uv_poll_stop(&c->listener);
        c->is_paused = true;
    }
    return false;
}

static void listener_ready_cb(uv_poll_t *poll, int status, int events)
{
    struct channel *c = poll->data;
    int left = FRAMES_PER_TURN;

    (void)events;
    if (status < 0)
        return;
    while (left-- > 0 && accept_one(c))
        continue;
}

static void listen_again(struct channel *c)
{
    c->is_paused =
        uv_poll_start(&c->listener, UV_READABLE, listener_ready_cb) < 0;
}

/* --- The interface -------------------------------------------------------- */

static void set_name(struct channel *c)
{
    snprintf(c->name, sizeof(c->name), "%s:%d", c->socket_name, c->round);
}

static int open_socket(struct channel *c)
{
    struct sockaddr_un addr;
    socklen_t len;
    int32_t round;
    char random[33];
    int rc = text_random_hex(random);

    if (rc < 0)
        return rc;
    snprintf(c->socket_name, sizeof(c->socket_name), "crun-agent-%s", random);
    set_name(c);
    rc = agent_channel_parse(c->name, &addr, &len, &round);
    if (rc < 0)
        return rc;
    c->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0)
        return -errno;
    /* Workers come all at once; more than the kernel allows it cuts. */
    if (bind(c->fd, (struct sockaddr *)&addr, len) < 0 ||
        listen(c->fd, c->nproc * CONNS_PER_RANK + STRANGERS_EXTRA) < 0)
        return -errno;
    return 0;
}

int channel_create(struct channel **out, uv_loop_t *loop, int nproc,
    const struct channel_callbacks *callbacks, void *arg, struct err *e)
{
    struct channel *c = calloc(1, sizeof(*c));
    int rc = -ENOMEM;

    if (c == NULL)
        return err_set(e, rc, "out of memory for the agent channel");
    c->loop = loop;
    c->fd = -1;
    c->nproc = nproc;
    c->callbacks = *callbacks;
    c->arg = arg;
    c->members = calloc((size_t)nproc, sizeof(*c->members));
    if (c->members == NULL)
        goto fail;
    for (int i = 0; i < nproc; i++)
        c->members[i].memfd = -1;
    rc = open_socket(c);
    if (rc == 0)
        rc = uv_poll_init(loop, &c->listener, c->fd);
    if (rc < 0)
        goto fail;
    c->nhandles++;
    c->listener.data = c;
    rc = uv_poll_start(&c->listener, UV_READABLE, listener_ready_cb);
    if (rc < 0)
        goto fail;
    *out = c;
    return 0;
fail:
    channel_destroy(c);
    return err_set(e, rc, "cannot open the agent channel: %s", strerror(-rc));
}

const char *channel_name(const struct channel *c)
{
    return c->name;
}

static void forget_round(struct channel *c)
{
    while (c->oldest != NULL)
        conn_close(c->oldest);
    for (int i = 0; c->members != NULL && i < c->nproc; i++)
        member_forget(&c->members[i]);
    c->has_failure = false;
    c->has_logged = false;
}

void channel_begin_round(struct channel *c, int round, int rank_base)
{
    forget_round(c);
    c->round = round;
    c->rank_base = rank_base;
    set_name(c);
}

void channel_catch_up(struct channel *c, int local_rank)
{
    int left = c->nproc * CONNS_PER_RANK + STRANGERS_EXTRA;
    struct conn *next;

    while (left-- > 0 && !c->is_paused && accept_one(c))
        continue;
    for (struct conn *conn = c->oldest; conn != NULL; conn = next) {
        if (conn->local_rank < 0 || conn->local_rank == local_rank)
            while (!conn->is_closing && conn_read(conn))
                continue;
        /* What is closed stays in memory until the loop runs. */
        next = conn->next;
    }
}

void channel_tell_failure(
    struct channel *c, const struct channel_failure *failure)
{
    c->failure = (struct agent_frame){
        .kind = AGENT_FAILURE,
        .rank = failure->rank,
        .local_rank = failure->local_rank,
    };
    snprintf(c->failure.host, sizeof(c->failure.host), "%s", failure->host);
    snprintf(c->failure.text, sizeof(c->failure.text), "%s", failure->cause);
    c->has_failure = true;
    for (struct conn *conn = c->oldest; conn != NULL; conn = conn->next)
        if (conn->local_rank >= 0)
            conn_tell(conn);
}

const struct recorder *channel_recorder(const struct channel *c, int local_rank)
{
    return c == NULL || local_rank < 0 || local_rank >= c->nproc
               ? NULL
               : c->members[local_rank].recorder;
}

bool channel_last_call(
    const struct channel *c, int local_rank, char *out, size_t size)
{
    const struct recorder *r = channel_recorder(c, local_rank);

    return r != NULL && recorder_last_text(r, out, size);
}

void channel_destroy(struct channel *c)
{
    if (c == NULL)
        return;
    c->is_destroyed = true;
    forget_round(c);
    if (c->listener.data != NULL)
        uv_close((uv_handle_t *)&c->listener, listener_closed_cb);
    if (c->fd >= 0)
        close(c->fd);
    if (c->nhandles == 0)
        release(c);
}
