/*
 * The sockets over which the ranks of shm_boot.c meet: a listener, strangers
 * who have not said yet who they are, and what is said by those who have.
 */
#include "shm_boot.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "coll_agent.h"
#include "coll_fds.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/text.h"

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

coll_status_t boot_start_listening(struct boot *b)
{
    struct sockaddr_un addr;
    socklen_t len;
    int rc;
    bool is_host = b->is_over != NULL && b->g->rank == 0;
    coll_status_t status =
        coll_fds_reserve(b->g->size, is_host ? b->g->size : 0);

    if (status != COLL_OK)
        return status;
    rc = text_random_hex(b->own.name);
    if (rc < 0)
        return boot_fail_rc("random number", rc);
    len = address_of(&addr, b->own.name);
    b->listener = open_socket();
    if (b->listener < 0)
        return boot_fail_errno("Unix socket");
    if (bind(b->listener, (struct sockaddr *)&addr, len) < 0 ||
        listen(b->listener, b->g->size) < 0)
        return boot_fail_errno("listen on a Unix socket");
    return COLL_OK;
}

/* Not before this rank can tell who belongs to its group: till then those who
 * connect wait in the backlog. */
coll_status_t boot_start_accepting(struct boot *b)
{
    int rc = shm_watch_listener(b->s, b->listener);

    return rc < 0 ? boot_fail_rc("watch a socket", rc) : COLL_OK;
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

void boot_stop_listening(struct boot *b)
{
    if (b->listener < 0)
        return;
    shm_unwatch(b->s, b->listener);
    close(b->listener);
    b->listener = -1;
    for (int i = 0; i < b->g->size; i++)
        drop_stranger(b, &b->strangers[i]);
}

coll_status_t boot_try_connect(
    const struct boot *b, const char *name, int *fd, pid_t *pid, int *rc)
{
    int left_ms = clock_left_ms(b->deadline_ns);
    struct timeval tv = {0, (left_ms < 100 ? left_ms : 100) * 1000 + 1};
    struct sockaddr_un addr;
    socklen_t len = address_of(&addr, name);

    *rc = 0;
    *fd = open_socket();
    if (*fd < 0)
        return boot_fail_errno("Unix socket");
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
    return boot_fail_rc("connect to a Unix socket", *rc);
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
            return boot_fail_told(b, (coll_status_t)msg->status, msg->text);
        }
        if (msg->status != COLL_ERR_TIMEOUT)
            return boot_fail_gave_up(
                b, ev->rank, (coll_status_t)msg->status, msg->text);
        boot_mark_missing(b->s, 1);
        return boot_fail_late(b, msg->timeout_ms, "");
    case SHM_JOIN:
    case SHM_HELLO:
    case SHM_PIPE:
    case SHM_WAKE:
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
    return ev.kind == SHM_EV_LOST ? boot_fail_lost(b, rank) : COLL_OK;
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
            return boot_fail_rc("watch a rank", rc);
        memcpy(b->names[rank], join->name, SHM_NAME_BYTES);
        rc = shm_send(fd, &answer, -1);
        /* If it has gone meanwhile, that is the next event. */
        return rc == 0 || rc == -EPIPE || rc == -ECONNRESET
                   ? COLL_OK
                   : boot_fail_rc("welcome a rank", rc);
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
        return boot_fail_rc("receive", rc);
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
    return rc < 0 ? boot_fail_rc("watch a rank", rc) : COLL_OK;
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
        return errno == EINTR || errno == ECONNABORTED
                   ? COLL_OK
                   : boot_fail_errno("accept");
    rc = shm_watch_stranger(b->s, fd);
    if (rc < 0) {
        close(fd);
        return boot_fail_rc("watch a socket", rc);
    }
    drop_stranger(b, slot);
    *slot = fd;
    /* What a rank says first is usually there already. */
    return greet_stranger(b, fd);
}

coll_status_t boot_step(
    struct boot *b, int timeout_ms, enum shm_event_kind *kind)
{
    struct shm_event ev;
    int rc = shm_next_event(b->s, timeout_ms, &ev);

    if (rc < 0)
        return boot_fail_rc("epoll_wait", rc);
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
        return boot_fail_lost(b, ev.rank);
    case SHM_EV_AGENT:
        return coll_agent_fail_canceled("coll_init");
    case SHM_EV_NONE:
        break;
    }
    return COLL_OK;
}
